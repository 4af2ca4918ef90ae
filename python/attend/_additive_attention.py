"""Additive attention (Bahdanau) and Luong's scores, with their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _core
from ._arrays import describe, empty, finish
from ._attention import _checked_mask, _inputs, _lse_view, _new_results
from .masks import Mask


class AdditiveGradients(NamedTuple):
    """What additive_attention_backward returns.

    >>> out, lse = attend.additive_attention(a, b, w, v, return_lse=True)
    >>> da = attend.additive_attention_backward(dout, a, b, w, v, out, lse).da
    """

    da: Any
    db: Any
    dw: Any
    dv: Any


class AlignmentGradients(NamedTuple):
    """What aligned_attention_backward returns; None for matrices the score does not use.

    >>> out, lse = attend.aligned_attention(q, k, v, "general", wq=wq, return_lse=True)
    >>> dwq = attend.aligned_attention_backward(dout, q, k, v, out, lse, "general", wq=wq).dwq
    """

    dq: Any
    dk: Any
    dv: Any
    dwq: Any
    dwk: Any
    dw: Any


def _vectors(w):
    """[H, D] as [1, H, 1, D]."""
    array = describe(w, "w")
    if len(array.shape) != 2:
        raise ValueError(f"w has {len(array.shape)} dimensions, expected 2: heads and dim")
    array.shape = (1, array.shape[0], 1, array.shape[1])
    array.strides = (0, array.strides[0], 0, array.strides[1])
    return array


def _matrix(x, name):
    """[out, in] or [heads, out, in] as [1, 1|heads, out, in]."""
    array = describe(x, name)
    if len(array.shape) not in (2, 3):
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected [out, in] or [heads, out, in]")
    array.shape = (1,) * (4 - len(array.shape)) + array.shape
    array.strides = (0,) * (4 - len(array.strides)) + array.strides
    return array


def additive_attention(a: Any, b: Any, w: Any, v: Any, mask: Optional[Mask] = None, *, scale: float = 1.0,
                       layout: str = "bhld", return_lse: bool = False) -> Any:
    """softmax(scale * sum over d of w[h, d] * tanh(a[i, d] + b[j, d])) . v, in memory linear in the length.

    a is [batch, heads, queries, dim], the projected queries; b and v, the projected keys and the values, may have
    fewer heads; w is [heads, dim]. Masks, layouts and libraries as for attention. return_lse also gives the
    log-sum-exp [batch, heads, queries], which the gradient needs.

    >>> out = attend.additive_attention(q @ wq, k @ wk, w, v, attend.causal())
    """
    order, arrays = _inputs(layout, a=a, b=b, v=v)
    w_array, rules = _vectors(w), _checked_mask(mask)._core
    kind = arrays["a"].kind
    out, out_view, lse, lse_view = _new_results(arrays["a"], arrays["v"].shape[order[3]], order, return_lse)
    _core.additive_attention(arrays["a"].view(order), arrays["b"].view(order), w_array.view(), arrays["v"].view(order),
                             out_view, rules, float(scale), lse_view)
    return (finish(kind, out), finish(kind, lse)) if return_lse else finish(kind, out)


def additive_attention_backward(dout: Any, a: Any, b: Any, w: Any, v: Any, out: Any, lse: Any,
                                mask: Optional[Mask] = None, *, scale: float = 1.0,
                                layout: str = "bhld") -> AdditiveGradients:
    """The gradients of a, b, w and v, from what additive_attention(..., return_lse=True) gave.

    >>> out, lse = attend.additive_attention(a, b, w, v, return_lse=True)
    >>> da, db, dw, dv = attend.additive_attention_backward(dout, a, b, w, v, out, lse)
    """
    order, arrays = _inputs(layout, dout=dout, a=a, b=b, v=v, out=out)
    w_array, lse_array, rules = _vectors(w), describe(lse, "lse"), _checked_mask(mask)._core
    kind, dtype = arrays["a"].kind, arrays["a"].dtype
    grads = {name: empty(kind, dtype, arrays[name].shape) for name in ("a", "b", "v")}
    dw, dw_array = empty(kind, w_array.dtype, w_array.shape)
    view = {name: array.view(order) for name, array in arrays.items()}
    _core.additive_attention_backward(view["dout"], view["a"], view["b"], w_array.view(), view["v"], view["out"],
                                      _lse_view(lse_array), grads["a"][1].view(order), grads["b"][1].view(order),
                                      dw_array.view(), grads["v"][1].view(order), rules, float(scale))
    return AdditiveGradients(finish(kind, grads["a"][0]), finish(kind, grads["b"][0]),
                             finish(kind, dw.reshape(w_array.shape[1], w_array.shape[3])), finish(kind, grads["v"][0]))


_USED = {"dot": (), "general": ("wq",), "concat": ("wq", "wk", "w")}


def _score_weights(score, wq, wk, w):
    if score not in _USED:
        raise ValueError(f'score is {score!r}, expected "dot", "general" or "concat"')
    given = {"wq": wq, "wk": wk, "w": w}
    for name, x in given.items():
        if (x is not None) != (name in _USED[score]):
            word = "missing" if x is None else "given"
            raise ValueError(f"{name} is {word}, expected {' and '.join(_USED[score]) or 'no matrices'} for {score!r}")
    make = {"wq": lambda x: _matrix(x, "wq"), "wk": lambda x: _matrix(x, "wk"), "w": _vectors}
    return {name: None if x is None else make[name](x) for name, x in given.items()}


def aligned_attention(q: Any, k: Any, v: Any, score: str = "dot", mask: Optional[Mask] = None, *, wq: Any = None,
                      wk: Any = None, w: Any = None, scale: float = 1.0, layout: str = "bhld",
                      return_lse: bool = False) -> Any:
    """softmax(scale * s) . v with Luong's scores s from plain queries and keys.

    "dot"      s = q . k
    "general"  s = (wq q) . k, with wq [dim of k, dim of q], or one for each head
    "concat"   s = w . tanh(wq q + wk k): W [q; k] with W = [wq wk], which is also Bahdanau's score; wq [A, dim of q],
               wk [A, dim of k], or one for each head, and w [heads, A]

    >>> out = attend.aligned_attention(q, k, v, "concat", attend.causal(), wq=wq, wk=wk, w=w)
    """
    order, arrays = _inputs(layout, q=q, k=k, v=v)
    weights, rules = _score_weights(score, wq, wk, w), _checked_mask(mask)._core
    kind = arrays["q"].kind
    out, out_view, lse, lse_view = _new_results(arrays["q"], arrays["v"].shape[order[3]], order, return_lse)
    _core.aligned_attention(score, *(arrays[n].view(order) for n in "qkv"),
                            *(None if x is None else x.view() for x in weights.values()), out_view,
                            rules, float(scale), lse_view)
    return (finish(kind, out), finish(kind, lse)) if return_lse else finish(kind, out)


def aligned_attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, score: str = "dot",
                               mask: Optional[Mask] = None, *, wq: Any = None, wk: Any = None, w: Any = None,
                               scale: float = 1.0, layout: str = "bhld") -> AlignmentGradients:
    """The gradients of q, k, v and of the score's matrices, from what aligned_attention(..., return_lse=True) gave.

    >>> out, lse = attend.aligned_attention(q, k, v, "dot", return_lse=True)
    >>> dq = attend.aligned_attention_backward(dout, q, k, v, out, lse, "dot").dq
    """
    order, arrays = _inputs(layout, dout=dout, q=q, k=k, v=v, out=out)
    weights, lse_array, rules = _score_weights(score, wq, wk, w), describe(lse, "lse"), _checked_mask(mask)._core
    kind, dtype = arrays["q"].kind, arrays["q"].dtype
    grads = {name: empty(kind, dtype, arrays[name].shape) for name in ("q", "k", "v")}
    of_weights = {n: (None, None) if x is None else empty(kind, x.dtype, x.shape) for n, x in weights.items()}
    view = {name: array.view(order) for name, array in arrays.items()}
    optional = lambda array: None if array is None else array.view()  # noqa: E731
    _core.aligned_attention_backward(score, view["dout"], view["q"], view["k"], view["v"],
                                     *(optional(x) for x in weights.values()), view["out"], _lse_view(lse_array),
                                     *(grads[n][1].view(order) for n in "qkv"),
                                     *(optional(x[1]) for x in of_weights.values()), rules, float(scale))
    shapes = {"wq": wq, "wk": wk, "w": w}
    return AlignmentGradients(*(finish(kind, grads[n][0]) for n in "qkv"),
                              *(None if x is None else finish(kind, x.reshape(tuple(shapes[n].shape)))
                                for n, (x, _) in of_weights.items()))
