"""Derivatives of attention's weights in PyTorch's own operations, in memory of queries x keys. All tensors are [batch, heads,
length, dim]; `weights` are those before dropout."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor


def spread(x: Tensor, weights: Tensor) -> Tensor:
    """Keys or values with query heads in place of KV heads, in the dtype of the weights. A key that no query sees is zero:
    it must not matter, not even as a NaN."""
    groups = weights.shape[1] // x.shape[1]
    seen = (weights != 0).any(2).unflatten(1, (-1, groups)).any(2)[..., None]
    return torch.where(seen, x.to(weights.dtype), 0).repeat_interleave(groups, 1)


def _gathered(x: Tensor, like: Tensor) -> Tensor:
    """Gradients of query heads, added up for the KV heads of `like`."""
    return x.unflatten(1, (like.shape[1], -1)).sum(2).to(like.dtype)


def _factor(q: Tensor, scale: Optional[float]) -> float:
    return q.shape[3] ** -0.5 if scale is None else scale


def _slope_of_cap(q: Tensor, k: Tensor, scale: float, softcap: float) -> Tensor:
    """The derivative of softcap * tanh(score / softcap) by the score."""
    return 1 - torch.tanh(scale * (q @ k.mT) / softcap) ** 2


def weights_tangent(weights: Tensor, q: Tensor, k: Tensor, dq: Optional[Tensor], dk: Optional[Tensor],
                    dbias: Optional[Tensor], dsinks: Optional[Tensor], scale: Optional[float], softcap: float) -> Tensor:
    """The change of the weights for a change of their inputs (None: no change)."""
    wide, scale = weights.dtype, _factor(q, scale)
    ds = torch.zeros((), dtype=wide, device=q.device)
    if dq is not None:
        ds = ds + dq.to(wide) @ spread(k, weights).mT
    if dk is not None:
        ds = ds + q.to(wide) @ spread(dk, weights).mT
    ds = scale * ds
    if softcap != 0:
        ds = ds * _slope_of_cap(q.to(wide), spread(k, weights), scale, softcap)
    if dbias is not None:
        ds = ds + dbias.to(wide)
    weighted = torch.where(weights > 0, weights * ds, 0)
    total = weighted.sum(-1, keepdim=True)
    if dsinks is not None:
        total = total + _weight_of_sink(weights) * dsinks.to(wide)[:, None, None]
    return weighted - weights * total


def _weight_of_sink(weights: Tensor) -> Tensor:
    return 1 - weights.sum(-1, keepdim=True)


def weights_gradients(dweights: Tensor, weights: Tensor, q: Tensor, k: Tensor, bias: Optional[Tensor],
                      sinks: Optional[Tensor], scale: Optional[float],
                      softcap: float) -> Tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """Gradients of q, k, bias and sinks from those of the weights."""
    wide, scale = weights.dtype, _factor(q, scale)
    weighted = torch.where(weights > 0, weights * dweights.to(wide), 0)
    total = weighted.sum(-1, keepdim=True)
    ds = weighted - weights * total
    dbias = None if bias is None else ds.sum_to_size(bias.shape).to(bias.dtype)
    dsinks = None if sinks is None else -(_weight_of_sink(weights) * total).sum((0, 2, 3)).to(sinks.dtype)
    keys = spread(k, weights)
    if softcap != 0:
        ds = ds * _slope_of_cap(q.to(wide), keys, scale, softcap)
    ds = scale * ds
    return (ds @ keys).to(q.dtype), _gathered(ds.mT @ q.to(wide), k), dbias, dsinks


def output_tangent(weights: Tensor, dweights: Tensor, v: Tensor, dv: Optional[Tensor], kept: Optional[Tensor],
                   dropout: float) -> Tensor:
    """The change of the output, in the dtype of the weights."""
    dout = _after_dropout(dweights, kept, dropout) @ spread(v, weights)
    return dout if dv is None else dout + _after_dropout(weights, kept, dropout) @ spread(dv, weights)


def output_gradients(dout: Tensor, weights: Tensor, v: Tensor, kept: Optional[Tensor],
                     dropout: float) -> Tuple[Tensor, Tensor]:
    """Gradients of the weights and of v from that of the output."""
    dout, groups = dout.to(weights.dtype), weights.shape[1] // v.shape[1]
    dweights = dout @ v.to(weights.dtype).repeat_interleave(groups, 1).mT
    return _after_dropout(dweights, kept, dropout), _gathered(_after_dropout(weights, kept, dropout).mT @ dout, v)


def _after_dropout(x: Tensor, kept: Optional[Tensor], dropout: float) -> Tensor:
    return x if dropout == 0 else torch.where(kept, x, 0) / (1 - dropout)
