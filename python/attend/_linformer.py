"""linformer and its gradient over anybody's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _core
from ._arrays import describe, empty, finish
from ._attention import _four, _inputs, _lse_view, _new_results, _wide
from ._whole import flag
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
    lead = 4 - len(array.shape)
    array.shape, array.strides = (1,) * lead + array.shape, (0,) * lead + array.strides
    return array


def linformer(q: Any, k: Any, v: Any, e: Any, f: Any = None, mask: Optional[Mask] = None, *,
              scale: Optional[float] = None, layout: str = "bhld", return_lse: bool = False,
              return_projected: bool = False) -> Any:
    """softmax(scale * q @ (e @ k)^T) @ (f @ v): keys and values are projected along the length (Wang et al. 2020).

    q, k, v as in attention; e and f are [rank, length], one for all heads, or [kv heads, rank, length]; without f, e
    serves both. The keys may be fewer than ``length``: the first columns are used. The mask may be
    attend.padding(lengths): padded keys are left out. A causal mask is refused, since each projected key mixes all
    positions. return_lse, return_projected: also the log-sum-exp, and the pair (e @ k, f @ v) that saves backward
    making it again, in float32 (float64 for float64).

    >>> e = np.random.randn(256, 4096).astype(np.float32) / 64
    >>> out = attend.linformer(q, k, v, e)
    """
    order, a = _inputs(layout, q=q, k=k, v=v)
    kind, dtype = a["q"].kind, a["q"].dtype
    out, out_view, lse, lse_view = _new_results(a["q"], a["v"].shape[order[3]], order, return_lse)
    f_array = None if f is None else _projection(f, "f")
    e_array = _projection(e, "e")
    pair_views = (None, None)
    if flag(return_projected, "return_projected"):
        made = [empty(kind, _wide(dtype), (a[n].shape[0], a[n].shape[order[1]], e_array.shape[2], a[n].shape[order[3]])) for n in "kv"]
        pair_views = tuple(array.view() for _, array in made)
    _core.linformer(a["q"].view(order), a["k"].view(order), a["v"].view(order), e_array.view(),
                    None if f is None else f_array.view(), out_view, _mask(mask), scale, lse_view, *pair_views)
    if return_projected:
        pair = tuple(finish(kind, x) for x, _ in made)
    result = (finish(kind, out),) + ((finish(kind, lse),) if return_lse else ()) + ((pair,) if return_projected else ())
    return result if len(result) > 1 else result[0]


def linformer_backward(dout: Any, q: Any, k: Any, v: Any, e: Any, f: Any, out: Any, lse: Any,
                       mask: Optional[Mask] = None, *, scale: Optional[float] = None, projected: Any = None,
                       layout: str = "bhld") -> LinformerGradients:
    """The gradients of q, k, v, e and f, from what linformer(..., return_lse=True) gave.

    Give it the options that linformer was given, and ``projected`` as it gave it, if it did. de and df are float32 (float64 for float64).

    >>> out, lse = attend.linformer(q, k, v, e, f, return_lse=True)
    >>> dq, dk, dv, de, df = attend.linformer_backward(dout, q, k, v, e, f, out, lse)
    """
    order, a = _inputs(layout, dout=dout, q=q, k=k, v=v, out=out)
    lse_array = describe(lse, "lse")
    kind, dtype = a["q"].kind, a["q"].dtype
    e_array = _projection(e, "e")
    f_array = None if f is None else _projection(f, "f")
    kept = [] if projected is None else [_four(describe(x, n), n) for x, n in zip(projected, ("keys", "values"))]
    views = [x.view() for x in kept] or [None, None]
    grads = {name: empty(kind, dtype, a[name].shape) for name in ("q", "k", "v")}
    de, de_array = empty(kind, _wide(dtype), e_array.shape)
    df, df_array = (None, None) if f is None else empty(kind, _wide(dtype), f_array.shape)
    _core.linformer_backward(a["dout"].view(order), a["q"].view(order), a["k"].view(order), a["v"].view(order),
                             e_array.view(), None if f is None else f_array.view(), a["out"].view(order),
                             _lse_view(lse_array), *views, *(grads[n][1].view(order) for n in "qkv"), de_array.view(),
                             None if f is None else df_array.view(), _mask(mask), scale)
    shaped = lambda x, like: None if x is None else finish(kind, x.reshape(tuple(like.shape)))  # noqa: E731
    return LinformerGradients(*(finish(kind, grads[n][0]) for n in "qkv"), shaped(de, e), shaped(df, f))
