"""adaptive_span, its gradient and its penalty over anybody's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _core
from ._arrays import describe, empty, finish
from ._attention import _inputs, _lse_view, _new_results, _wide
from ._linformer import _mask
from .masks import Mask, diagonal


class AdaptiveSpanGradients(NamedTuple):
    """What adaptive_span_backward returns.

    >>> dspan = attend.adaptive_span_backward(dout, q, k, v, span, out, lse).dspan
    """

    dq: Any
    dk: Any
    dv: Any
    dspan: Any


def _span(x):
    """[heads] as [1, heads, 1, 1]."""
    array = describe(x, "span")
    if len(array.shape) != 1:
        raise ValueError(f"span has {len(array.shape)} dimensions, expected 1: one span per head")
    array.shape, array.strides = (1,) + array.shape + (1, 1), (0,) + array.strides + (0, 0)
    return array


def _options(mask, ramp, max_span, symmetric, align, scale):
    return _core.AdaptiveSpanOptions(float(ramp), float(max_span), bool(symmetric), diagonal(align), _mask(mask), scale)


def adaptive_span(q: Any, k: Any, v: Any, span: Any, mask: Optional[Mask] = None, *, ramp: float = 32.0,
                  max_span: float = 1024.0, symmetric: bool = False, align: str = "last_key",
                  scale: Optional[float] = None, layout: str = "bhld", return_lse: bool = False) -> Any:
    """Causal attention in which each head looks back over a span of its own, learned (Sukhbaatar et al. 2019).

    The weight of a key ``x`` tokens back is multiplied by clamp((ramp + span[h] - x) / ramp, 0, 1) and the row is
    normalised again; nothing further back is computed. span is [heads], in tokens, and counts as clamped to
    [0, max_span]. symmetric: as far ahead too. q, k and v as in attention; the mask may be attend.padding(lengths).

    >>> span = np.full(8, 200.0, np.float32)
    >>> out = attend.adaptive_span(q, k, v, span)
    """
    order, a = _inputs(layout, q=q, k=k, v=v)
    kind = a["q"].kind
    out, out_view, lse, lse_view = _new_results(a["q"], a["v"].shape[order[3]], order, return_lse)
    span_array = _span(span)
    _core.adaptive_span(a["q"].view(order), a["k"].view(order), a["v"].view(order), span_array.view(),
                        out_view, _options(mask, ramp, max_span, symmetric, align, scale), lse_view)
    return (finish(kind, out), finish(kind, lse)) if return_lse else finish(kind, out)


def adaptive_span_backward(dout: Any, q: Any, k: Any, v: Any, span: Any, out: Any, lse: Any,
                           mask: Optional[Mask] = None, *, ramp: float = 32.0, max_span: float = 1024.0,
                           symmetric: bool = False, align: str = "last_key", scale: Optional[float] = None,
                           layout: str = "bhld") -> AdaptiveSpanGradients:
    """The gradients of q, k, v and span, from what adaptive_span(..., return_lse=True) gave.

    Give it the options that adaptive_span was given. Of a span outside [0, max_span] the gradient is that of the bound
    where a step downhill leads back inside, else 0. dspan is float32 (float64 for float64).

    >>> out, lse = attend.adaptive_span(q, k, v, span, return_lse=True)
    >>> dq, dk, dv, dspan = attend.adaptive_span_backward(dout, q, k, v, span, out, lse)
    """
    order, a = _inputs(layout, dout=dout, q=q, k=k, v=v, out=out)
    lse_array, span_array = describe(lse, "lse"), _span(span)
    kind, dtype = a["q"].kind, a["q"].dtype
    grads = {name: empty(kind, dtype, a[name].shape) for name in ("q", "k", "v")}
    dspan, dspan_array = empty(kind, _wide(dtype), span_array.shape)
    _core.adaptive_span_backward(a["dout"].view(order), a["q"].view(order), a["k"].view(order), a["v"].view(order),
                                 span_array.view(), a["out"].view(order), _lse_view(lse_array),
                                 *(grads[n][1].view(order) for n in "qkv"), dspan_array.view(),
                                 _options(mask, ramp, max_span, symmetric, align, scale))
    return AdaptiveSpanGradients(*(finish(kind, grads[n][0]) for n in "qkv"), finish(kind, dspan.reshape(-1)))


def adaptive_span_penalty(span: Any, loss_weight: float, *, max_span: float = 1024.0) -> tuple:
    """loss_weight / heads * sum of the spans, to be added to the loss, and its gradient [heads].

    >>> penalty, dspan = attend.adaptive_span_penalty(span, 2e-6)
    """
    array = _span(span)
    dspan, dspan_array = empty(array.kind, _wide(array.dtype), array.shape)
    options = _options(None, 32.0, max_span, False, "last_key", None)
    penalty = _core.adaptive_span_penalty(array.view(), float(loss_weight), options, dspan_array.view())
    return penalty, finish(array.kind, dspan.reshape(-1))
