"""linformer and its gradient over anybody's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _core
from ._arrays import describe, empty, finish
from ._attention import _inputs, _leading_ones, _wide
from .masks import Mask, no_mask


class LinformerGradients(NamedTuple):
    """What linformer_backward returns; df is None where e serves for values too.

    >>> de = attend.linformer_backward(dout, q, k, v, e, f, out, lse).de
    """

    dq: Any
    dk: Any
    dv: Any
    de: Any
    df: Any


def _mask(mask):
    mask = no_mask() if mask is None else mask
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}, expected attend.padding(lengths) or None")
    return mask._core


def _projection(x, name):
    """[rank, length] or [heads, rank, length] as [1, 1|heads, rank, length]."""
    array = describe(x, name)
    if len(array.shape) not in (2, 3):
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected [rank, length] or [heads, rank, length]")
    return _leading_ones(array)


def linformer(q: Any, k: Any, v: Any, e: Any, f: Any = None, mask: Optional[Mask] = None, *,
              scale: Optional[float] = None, layout: str = "bhld", return_lse: bool = False) -> Any:
    """softmax(scale * q @ (e @ k)^T) @ (f @ v): keys and values are projected along the length (Wang et al. 2020).

    q, k, v as in attention; e and f are [rank, length], one for all heads, or [kv heads, rank, length]; without f, e
    serves both. The keys may be fewer than ``length``: the first columns are used. The mask may be
    attend.padding(lengths): padded keys are left out. A causal mask is refused, since each projected key mixes all
    positions.

    >>> e = np.random.randn(256, 4096).astype(np.float32) / 64
    >>> out = attend.linformer(q, k, v, e)
    """
    order, a = _inputs(layout, q=q, k=k, v=v)
    kind, dtype = a["q"].kind, a["q"].dtype
    B, H, M = (a["q"].shape[axis] for axis in order[:3])
    shape = [B, H, M, a["v"].shape[order[3]]]
    out, out_array = empty(kind, dtype, [shape[axis] for axis in order])
    lse, lse_array = empty(kind, _wide(dtype), (B, H, M)) if return_lse else (None, None)
    if return_lse:
        lse_array.shape, lse_array.strides = lse_array.shape + (1,), lse_array.strides + (1,)
    f_array = None if f is None else _projection(f, "f")
    e_array = _projection(e, "e")
    _core.linformer(a["q"].view(order), a["k"].view(order), a["v"].view(order), e_array.view(),
                    None if f is None else f_array.view(), out_array.view(order), _mask(mask), scale,
                    lse_array.view() if return_lse else None)
    return (finish(kind, out), finish(kind, lse)) if return_lse else finish(kind, out)


def linformer_backward(dout: Any, q: Any, k: Any, v: Any, e: Any, f: Any, out: Any, lse: Any,
                       mask: Optional[Mask] = None, *, scale: Optional[float] = None,
                       layout: str = "bhld") -> LinformerGradients:
    """The gradients of q, k, v, e and f, from what linformer(..., return_lse=True) gave.

    Give it the options that linformer was given. de and df are float32 (float64 for float64).

    >>> out, lse = attend.linformer(q, k, v, e, f, return_lse=True)
    >>> dq, dk, dv, de, df = attend.linformer_backward(dout, q, k, v, e, f, out, lse)
    """
    order, a = _inputs(layout, dout=dout, q=q, k=k, v=v, out=out)
    lse_array = _lse(lse)
    kind, dtype = a["q"].kind, a["q"].dtype
    e_array = _projection(e, "e")
    f_array = None if f is None else _projection(f, "f")
    grads = {name: empty(kind, dtype, a[name].shape) for name in ("q", "k", "v")}
    de, de_array = empty(kind, _wide(dtype), e_array.shape)
    df, df_array = (None, None) if f is None else empty(kind, _wide(dtype), f_array.shape)
    _core.linformer_backward(a["dout"].view(order), a["q"].view(order), a["k"].view(order), a["v"].view(order),
                             e_array.view(), None if f is None else f_array.view(), a["out"].view(order),
                             lse_array.view(), *(grads[n][1].view(order) for n in "qkv"), de_array.view(),
                             None if f is None else df_array.view(), _mask(mask), scale)
    shaped = lambda x, like: None if x is None else finish(kind, x.reshape(tuple(like.shape)))  # noqa: E731
    return LinformerGradients(*(finish(kind, grads[n][0]) for n in "qkv"), shaped(de, e), shaped(df, f))


def _lse(lse):
    array = describe(lse, "lse")
    if len(array.shape) != 3:
        raise ValueError(f"lse has {len(array.shape)} dimensions, expected 3: batch, heads and queries")
    array.shape, array.strides = array.shape + (1,), array.strides + (1,)
    return array
