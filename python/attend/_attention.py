"""attention and its gradient over anybody's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _core
from ._arrays import describe, empty, finish
from .masks import Mask, diagonal, no_mask

_LAYOUTS = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3)}


class AttentionGradients(NamedTuple):
    """What attention_backward returns; dbias (of bias or of distance_bias) and dsinks are None without them.

    >>> out, lse = attend.attention(q, k, v, return_lse=True)
    >>> dq = attend.attention_backward(dout, q, k, v, out, lse).dq
    """

    dq: Any
    dk: Any
    dv: Any
    dbias: Any
    dsinks: Any


def _order(layout):
    if layout not in _LAYOUTS:
        raise ValueError(f'layout is {layout!r}, expected "bhld" or "blhd"')
    return _LAYOUTS[layout]


def _four(array, name):
    if len(array.shape) != 4:
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected 4: batch, heads, length and dim")
    return array


def _leading_ones(array):
    array.shape = (1,) * (4 - len(array.shape)) + array.shape
    array.strides = (0,) * (4 - len(array.strides)) + array.strides
    return array


def _per_head(x, name):
    """[H] or [B, H] as [1|B, H, 1, 1]."""
    if x is None:
        return None
    array = describe(x, name)
    if len(array.shape) not in (1, 2):
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected [heads] or [batch, heads]")
    array.shape = (1,) * (2 - len(array.shape)) + array.shape + (1, 1)
    array.strides = (0,) * (2 - len(array.strides)) + array.strides + (0, 0)
    return array


class Options:
    """The score options of a call, kept alive together: forward and backward must be given the same."""

    def __init__(self, mask=None, scale=None, bias=None, softcap=0.0, alibi_slopes=None, alibi_align="last_key",
                 sinks=None, dropout=0.0, seed=0, distance_bias=None):
        if mask is None:
            mask = no_mask()
        if not isinstance(mask, Mask):
            raise TypeError(f"mask is a {type(mask).__name__}, expected a mask such as attend.causal(), or "
                            "attend.dense(array) for a boolean array")
        self.mask = mask
        self.bias = None if bias is None else describe(bias, "bias")
        if self.bias is not None:
            if len(self.bias.shape) > 4:
                raise ValueError(f"bias has {len(self.bias.shape)} dimensions, expected at most 4")
            self.bias_shape = self.bias.shape
            self.bias = _leading_ones(self.bias)
        self.distance_bias = None
        if distance_bias is not None:
            by_distance = describe(distance_bias, "distance_bias")
            if len(by_distance.shape) not in (1, 2):
                raise ValueError(f"distance_bias has {len(by_distance.shape)} dimensions, expected [queries + keys - 1] "
                                 "or [heads, queries + keys - 1]")
            self.bias_shape = by_distance.shape
            heads, stride = (1, 0) if len(by_distance.shape) == 1 else (by_distance.shape[0], by_distance.strides[0])
            by_distance.shape = (1, heads, 1, by_distance.shape[-1])
            by_distance.strides = (0, stride, 0, by_distance.strides[-1])
            self.distance_bias = by_distance
        self.alibi = _per_head(alibi_slopes, "alibi_slopes")
        self.sinks = _per_head(sinks, "sinks")
        view = lambda array: None if array is None else array.view()  # noqa: E731
        self.core = _core.Options(
            mask._core, None if scale is None else float(scale), float(softcap), view(self.bias), view(self.alibi),
            diagonal(alibi_align), view(self.sinks), float(dropout), int(seed),
            view(self.distance_bias))


def _wide(dtype):
    return "f64" if dtype == "f64" else "f32"


def _inputs(layout, **arrays):
    order = _order(layout)
    described = {name: _four(describe(x, name), name) for name, x in arrays.items()}
    return order, described


def attention(q: Any, k: Any, v: Any, mask: Optional[Mask] = None, *, scale: Optional[float] = None, bias: Any = None,
              softcap: float = 0.0, alibi_slopes: Any = None, alibi_align: str = "last_key", sinks: Any = None,
              dropout: float = 0.0, seed: int = 0, distance_bias: Any = None, layout: str = "bhld",
              return_lse: bool = False, return_weights: bool = False) -> Any:
    """softmax(scale * q.k + ...) . v, exactly, in memory linear in the length.

    q is [batch, heads, queries, dim] (layout "bhld") or [batch, queries, heads, dim] ("blhd"); k and v may have fewer
    heads (GQA, MQA) and v another dim. float32, float16, bfloat16 or float64; NumPy, PyTorch (CPU), JAX (CPU), or
    anything with DLPack. No input is copied; the result is of q's library.

    mask           attend.causal(), window(n), padding(lengths), ... composed with &
    scale          1/sqrt(dim) by default; 1.0 turns it off
    bias           added to the scores; broadcasts over batch, heads, queries and keys
    distance_bias  instead of bias, [queries + keys - 1] or [heads, queries + keys - 1]: element queries - 1 + j - i is
                   added to the score of query i and key j (attend.t5_bias makes one)
    softcap        s becomes softcap * tanh(s / softcap)
    alibi_slopes   [heads] or [batch, heads]
    sinks          [heads]: one more logit per row that takes weight and gives no value
    dropout, seed  of the weights; the same seed drops the same weights, whatever the threads
    return_lse, return_weights   also the log-sum-exp [batch, heads, queries] and the weights [batch, heads, queries,
                                 keys] (before dropout), in float32

    >>> out = attend.attention(q, k, v, mask=attend.causal() & attend.window(1023))
    """
    options = Options(mask, scale, bias, softcap, alibi_slopes, alibi_align, sinks, dropout, seed, distance_bias)
    out, lse, weights = _forward(q, k, v, options, layout, return_lse, return_weights)
    result = (out,) + ((lse,) if return_lse else ()) + ((weights,) if return_weights else ())
    return result if len(result) > 1 else out


def _forward(q, k, v, options, layout, want_lse, want_weights):
    order, a = _inputs(layout, q=q, k=k, v=v)
    kind, dtype = a["q"].kind, a["q"].dtype
    B, H, M = (a["q"].shape[axis] for axis in order[:3])
    N, E = a["k"].shape[order[2]], a["v"].shape[order[3]]
    shape = [B, H, M, E]
    out, out_array = empty(kind, dtype, [shape[axis] for axis in order])
    lse = weights = lse_view = weights_view = None
    if want_lse:
        lse, lse_array = empty(kind, _wide(dtype), (B, H, M))
        lse_array.shape, lse_array.strides = lse_array.shape + (1,), lse_array.strides + (1,)
        lse_view = lse_array.view()
    if want_weights:
        weights, weights_array = empty(kind, _wide(dtype), (B, H, M, N))
        weights_view = weights_array.view()
    _core.attention(a["q"].view(order), a["k"].view(order), a["v"].view(order), out_array.view(order), options.core,
                    lse_view, weights_view)
    return finish(kind, out), finish(kind, lse), finish(kind, weights)


def attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, mask: Optional[Mask] = None, *,
                       scale: Optional[float] = None, bias: Any = None, softcap: float = 0.0, alibi_slopes: Any = None,
                       alibi_align: str = "last_key", sinks: Any = None, dropout: float = 0.0, seed: int = 0,
                       distance_bias: Any = None, layout: str = "bhld") -> AttentionGradients:
    """The gradients of q, k and v (and of bias and sinks), from what attention(..., return_lse=True) gave.

    Give it the options that attention was given.

    >>> out, lse = attend.attention(q, k, v, mask, return_lse=True)
    >>> dq, dk, dv, dbias, dsinks = attend.attention_backward(dout, q, k, v, out, lse, mask)
    """
    options = Options(mask, scale, bias, softcap, alibi_slopes, alibi_align, sinks, dropout, seed, distance_bias)
    return _backward(dout, q, k, v, out, lse, options, layout)


def _backward(dout, q, k, v, out, lse, options, layout):
    order, a = _inputs(layout, dout=dout, q=q, k=k, v=v, out=out)
    lse_array = describe(lse, "lse")
    if len(lse_array.shape) != 3:
        raise ValueError(f"lse has {len(lse_array.shape)} dimensions, expected 3: batch, heads and queries")
    lse_array.shape, lse_array.strides = lse_array.shape + (1,), lse_array.strides + (1,)
    kind, dtype = a["q"].kind, a["q"].dtype
    grads = {name: empty(kind, dtype, a[name].shape) for name in ("q", "k", "v")}
    bias = options.bias if options.bias is not None else options.distance_bias
    dbias = empty(kind, _wide(dtype), bias.shape) if bias is not None else (None, None)
    dsinks = empty(kind, _wide(dtype), options.sinks.shape) if options.sinks is not None else (None, None)
    view = lambda array: None if array is None else array.view()  # noqa: E731
    _core.attention_backward(a["dout"].view(order), a["q"].view(order), a["k"].view(order), a["v"].view(order),
                             a["out"].view(order), lse_array.view(), *(grads[n][1].view(order) for n in "qkv"),
                             view(dbias[1]), view(dsinks[1]), options.core)
    return AttentionGradients(*(finish(kind, grads[n][0]) for n in "qkv"),
                              dbias[0] if dbias[0] is None else finish(kind, dbias[0].reshape(options.bias_shape)),
                              dsinks[0] if dsinks[0] is None else finish(kind, dsinks[0].reshape(-1)))
