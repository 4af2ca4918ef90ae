"""Linear attention and the gated delta rule over anybody's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core
from ._arrays import describe, empty, finish
from ._attention import _four, _inputs, _wide
from ._whole import flag
from .masks import _ints


class LinearAttentionGradients(NamedTuple):
    """What linear_attention_backward returns; None for what was not given.

    >>> dq = attend.linear_attention_backward(dout, q, k, v).dq
    """

    dq: Any
    dk: Any
    dv: Any
    dlog_decay: Any
    dbeta: Any
    dinitial_state: Any


def _scalars(x, name):
    """[heads], [batch, heads] or [batch, heads, length] as [1|B, heads, 1|N, 1]."""
    if x is None:
        return None, None
    array = describe(x, name)
    shape, strides = array.shape, array.strides
    if len(shape) not in (1, 2, 3):
        raise ValueError(f"{name} has {len(shape)} dimensions, expected [heads], [batch, heads] or [batch, heads, length]")
    before, after = (1 if len(shape) == 1 else 0), 3 - max(2, len(shape)) + 1
    array.shape = (1,) * before + shape + (1,) * after
    array.strides = (0,) * before + strides + (0,) * after
    return array, shape


class _Options:
    """The options of a call, kept alive together."""

    def __init__(self, feature_map, causal, normalise, scale, eps, log_decay, beta, lengths, initial_state):
        self.log_decay, self.log_decay_shape = _scalars(log_decay, "log_decay")
        self.beta, self.beta_shape = _scalars(beta, "beta")
        self.initial = None if initial_state is None else _four(describe(initial_state, "initial_state"),
                                                                "initial_state")
        self.causal = bool(causal)
        view = lambda array: None if array is None else array.view()  # noqa: E731
        self.core = _core.LinearAttentionOptions(
            str(feature_map), self.causal, bool(normalise), float(scale), float(eps), view(self.log_decay),
            view(self.beta), [] if lengths is None else _ints(lengths, "lengths"), view(self.initial))


def linear_attention(q: Any, k: Any, v: Any, *, feature_map: str = "elu+1", causal: bool = True,
                     normalise: bool = True, scale: float = 1.0, eps: float = 0.0, log_decay: Any = None,
                     beta: Any = None, lengths: Any = None, initial_state: Any = None, layout: str = "bhld",
                     return_state: bool = False) -> Any:
    """Attention by a state of fixed size, in time linear in the length: S_t = a_t S_{t-1} + phi(k_t) v_t^T,
    out_t = scale * S_t^T phi(q_t) / (z_t . phi(q_t) + eps), with z made as S is, of ones instead of v.

    q, k, v and layout as in attend.attention; causal needs as many keys as queries.

    feature_map    "elu+1", "relu" or "identity"; for any other map apply it to q and k before, and say "identity"
    causal         False: one state from all keys
    normalise      False: no denominator (retention). A denominator of 0 gives zeros
    log_decay      log of a_t, at most 0: [heads] (retention), [batch, heads] or [batch, heads, length] (gated)
    beta           [batch, heads, length]: the gated delta rule, S_t = a_t (I - beta_t k_t k_t^T) S_{t-1}
                   + beta_t k_t v_t^T; needs normalise=False
    lengths        keys of each batch that count
    initial_state, return_state   the state before the first token and after the last, [batch, heads, features, dim of
                   v (+ 1 with normalise: z)], float32: a long text goes through in pieces. Pieces of whole multiples of
                   64 tokens give the bits of one call

    Heads of log_decay and beta are those of k, or those of q: then each query head has a state of its own.

    >>> out = attend.linear_attention(q, k, v)
    >>> retention = attend.linear_attention(q, k, v, feature_map="identity", normalise=False,
    ...                                     log_decay=np.log(1 - 2.0 ** (-5 - np.arange(8))))
    >>> out, state = attend.linear_attention(q, k, v, return_state=True)
    """
    options = _Options(feature_map, causal, normalise, scale, eps, log_decay, beta, lengths, initial_state)
    order, a = _inputs(layout, q=q, k=k, v=v)
    kind, dtype = a["q"].kind, a["q"].dtype
    views = {name: array.view(order) for name, array in a.items()}
    shape = [a["q"].shape[axis] for axis in order[:3]] + [a["v"].shape[order[3]]]
    out, out_array = empty(kind, dtype, [shape[axis] for axis in order])
    state = state_view = None
    if flag(return_state, "return_state"):
        state, state_array = empty(kind, _wide(dtype), _core.linear_state_shape(**views, options=options.core))
        state_view = state_array.view()
    _core.linear_attention(**views, out=out_array.view(order), options=options.core, final_state=state_view)
    return (finish(kind, out), finish(kind, state)) if return_state else finish(kind, out)


def linear_attention_backward(dout: Any, q: Any, k: Any, v: Any, *, feature_map: str = "elu+1", causal: bool = True,
                              normalise: bool = True, scale: float = 1.0, eps: float = 0.0, log_decay: Any = None,
                              beta: Any = None, lengths: Any = None, initial_state: Any = None,
                              dfinal_state: Any = None, final_state: Any = None,
                              layout: str = "bhld") -> LinearAttentionGradients:
    """The gradients of linear_attention called with the same options, from that of its output and, with dfinal_state,
    of its state. Those of log_decay and beta have their shapes, in float32. ``final_state``, as forward returned it,
    saves a third of the work where it is not causal.

    >>> dq, dk, dv, dlog_decay, dbeta, dinitial_state = attend.linear_attention_backward(dout, q, k, v)
    """
    options = _Options(feature_map, causal, normalise, scale, eps, log_decay, beta, lengths, initial_state)
    order, a = _inputs(layout, dout=dout, q=q, k=k, v=v)
    kind, dtype = a["q"].kind, a["q"].dtype
    views = {name: array.view(order) for name, array in a.items()}
    results, result_views = [], []
    for name in ("q", "k", "v"):
        x, array = empty(kind, dtype, a[name].shape)
        results.append(x)
        result_views.append(array.view(order))
    for array, shape in ((options.log_decay, options.log_decay_shape), (options.beta, options.beta_shape)):
        x = view = None
        if array is not None:
            x, x_array = empty(kind, _wide(dtype), array.shape)
            view, x = x_array.view(), x.reshape(shape)
        results.append(x)
        result_views.append(view)
    x = view = None
    if options.initial is not None:
        x, x_array = empty(kind, _wide(dtype), options.initial.shape)
        view = x_array.view()
    results.append(x)
    states = [None if x is None else _four(describe(x, name), name)
              for x, name in ((dfinal_state, "dfinal_state"), (final_state, "final_state"))]
    _core.linear_attention_backward(views["dout"], views["q"], views["k"], views["v"], *result_views, view,
                                    options.core, *(None if x is None else x.view() for x in states))
    return LinearAttentionGradients(*(finish(kind, x) for x in results))


def linear_attention_step(q: Any, k: Any, v: Any, state: Any, *, feature_map: str = "elu+1", normalise: bool = True,
                          scale: float = 1.0, eps: float = 0.0, log_decay: Any = None, beta: Any = None,
                          layout: str = "bhld") -> Any:
    """The next tokens of causal linear_attention; ``state``, an array that can be written, goes on to after the last
    of them. Costs the same at any position.

    >>> out, state = attend.linear_attention(q, k, v, return_state=True)
    >>> next_out = attend.linear_attention_step(next_q, next_k, next_v, state)
    """
    options = _Options(feature_map, True, normalise, scale, eps, log_decay, beta, None, None)
    order, a = _inputs(layout, q=q, k=k, v=v)
    held = _four(describe(state, "state"), "state")
    kind = a["q"].kind
    shape = [a["q"].shape[axis] for axis in order[:3]] + [a["v"].shape[order[3]]]
    out, out_array = empty(kind, a["q"].dtype, [shape[axis] for axis in order])
    _core.linear_attention_step(a["q"].view(order), a["k"].view(order), a["v"].view(order), out_array.view(order),
                                held.view(), options.core)
    return finish(kind, out)
