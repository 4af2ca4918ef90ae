"""Attention as Transformers' models call it: as autograd functions, which torch.func sees through, and as PyTorch operators,
which torch.compile and torch.export trace.

q, k and v are [batch, length, heads, dim]. What both take after them, in this order: `visible` boolean and `bias` additive,
which broadcast to [batch, heads, queries, keys]; `sinks` [heads]; `seed` of the dropout; scale, softcap, the window (left and
right, -1 unlimited), whether it is aligned to the first key, dropout, and whether the weights are wanted.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _core, masks
from ._attention import _order
from ._torch_ops import Underivable, core_options, each, kept, register_vmap, window_mask
from ._weights_math import output_gradients, output_tangent, weights_gradients, weights_tangent

try:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
except ImportError:
    FakeTensor = FunctionalTensor = ()

_ORDER = _order("blhd")  # what Transformers wants back; q, k and v come as views and are never copied


class Options(NamedTuple):
    """What attention is given next to q, k and v."""

    visible: Optional[Tensor] = None
    bias: Optional[Tensor] = None
    sinks: Optional[Tensor] = None
    seed: Optional[Tensor] = None
    scale: Optional[float] = None
    softcap: float = 0.0
    left: int = -1
    right: int = -1
    first_key: bool = True
    dropout: float = 0.0


_OPTIONS = ("Tensor? visible, Tensor? bias, Tensor? sinks, Tensor? seed, float? scale, float softcap, int left, int right, "
            "bool first_key, float dropout")


def mask_of(rule: Optional[masks.Mask], options: Options) -> masks.Mask:
    """The mask of a call as one of the package's masks."""
    mask = masks.no_mask() if rule is None else rule
    align = "first_key" if options.first_key else "last_key"
    if options.right == 0:
        mask = mask & masks.causal(align)
    if options.left >= 0:
        mask = mask & masks.window(options.left, masks.UNLIMITED, align=align)
    return mask if options.visible is None else mask & masks.dense(options.visible.numpy())


def _engine_options(rule, visible, bias, sinks, seed, scale, softcap, left, right, first_key, dropout):
    diagonal = _core.Diagonal.first_key() if first_key else _core.Diagonal.last_key()
    mask = window_mask(left, right, diagonal) if rule is None else rule._core
    if visible is not None:
        visible = visible.reshape((1,) * (4 - visible.dim()) + visible.shape)
        mask = mask & _core.dense(visible.data_ptr(), visible.shape, visible.stride())
    return core_options(mask, diagonal, scale, softcap, bias, None, dropout, 0 if seed is None else seed.item(),
                        (rule, visible), sinks)


# ---- One call of the engine, without autograd ----


@torch.no_grad()
def _forward(rule, q, k, v, *options):
    """out [batch, queries, heads, dim], lse, weights [batch, heads, queries, keys] before dropout, and which of them
    dropout kept; the last two empty unless weights (and dropout) are wanted."""
    *options, want_weights = options
    out, lse, weights, _ = _core.array_attention(q, k, v, _engine_options(rule, *options), _ORDER, True, want_weights)
    seed, dropout = options[3], options[-1]
    if want_weights and dropout > 0:
        is_kept = kept(seed, dropout, *weights.shape).to(q.device)
    else:
        is_kept = torch.empty((0,), dtype=torch.bool, device=q.device)
    return out, lse, weights if want_weights else lse.new_empty((0,)), is_kept


@torch.no_grad()
def _backward(rule, dout, q, k, v, out, lse, *options):
    """Gradients of q, k, v, bias and sinks, those of an absent bias and of absent sinks empty. `want_dbias` is last."""
    *options, want_dbias = options
    gradients = _core.array_attention_backward(dout, q, k, v, out, lse, _engine_options(rule, *options), _ORDER, want_dbias)
    given = (q, k, v, options[1] if want_dbias else None, options[2])
    return tuple(lse.new_empty((0,)) if x is None else gradient.reshape(x.shape).to(x.dtype)
                 for gradient, x in zip(gradients, given))


def _new_outputs(q, k, v, *options):
    B, M, H, _ = q.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    *_, dropout, want_weights = options
    weights, kept = (B, H, M, k.shape[1]) if want_weights else (0,), (0,)
    if want_weights and dropout > 0:
        kept = weights
    return (q.new_empty((B, M, H, v.shape[3])), q.new_empty((B, H, M), dtype=wide), q.new_empty(weights, dtype=wide),
            q.new_empty(kept, dtype=torch.bool))


def _new_gradients(dout, q, k, v, out, lse, visible, bias, sinks, *rest):
    return tuple(lse.new_empty((0,)) if x is None else x.new_empty(x.shape)
                 for x in (q, k, v, bias if rest[-1] else None, sinks))


# ---- Autograd: shared by the functions and the operators ----


def _save(ctx, inputs, output):
    q, k, v, visible, bias, sinks, seed, *numbers, want_weights = inputs
    out, lse, weights, kept = output
    # Of the weights the output follows by _ThroughWeights.
    ctx.mark_non_differentiable(lse, kept, out if want_weights else weights)
    ctx.set_materialize_grads(False)
    ctx.numbers, ctx.want_weights = numbers, want_weights
    return q, k, v, out, lse, weights, visible, bias, sinks, seed


def _gradients(ctx, engine, dout, dweights, want_dbias):
    """Of q, k, v, visible, bias and sinks; `engine` gives those of the output."""
    q, k, v, out, lse, weights, visible, bias, sinks, seed = ctx.saved_tensors
    if ctx.want_weights and dweights is not None:
        scale, softcap = ctx.numbers[:2]
        dq, dk, dbias, dsinks = weights_gradients(dweights, weights, q.transpose(1, 2), k.transpose(1, 2),
                                                  bias if want_dbias else None, sinks, scale, softcap)
        return dq.transpose(1, 2), dk.transpose(1, 2), None, None, dbias, dsinks
    if ctx.want_weights or dout is None:
        return (None,) * 6
    dq, dk, dv, dbias, dsinks = engine(dout, q, k, v, out, lse, visible, bias, sinks, seed, *ctx.numbers, want_dbias)
    return dq, dk, dv, None, dbias if want_dbias else None, None if sinks is None else dsinks


_NUMBERS = (None,) * 8  # seed to want_weights have no gradient


class _Gradients(Underivable):
    forward = staticmethod(_backward)
    vmap = staticmethod(lambda info, in_dims, *inputs: each(_Gradients.apply, info, in_dims, inputs))


class _Attention(torch.autograd.Function):
    """Attention with all that Transformers' models ask for. `rule` is a mask of this package, or None."""

    forward = staticmethod(_forward)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.rule = inputs[0]
        saved = _save(ctx, inputs[1:], output)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx, dout, dlse, dweights, dkept):
        function = _Gradients.apply if torch.is_grad_enabled() else _backward
        engine = lambda *inputs: function(ctx.rule, *inputs)  # noqa: E731
        return None, *_gradients(ctx, engine, dout, dweights, ctx.needs_input_grad[5]), *_NUMBERS

    @staticmethod
    def jvp(ctx, drule, dq, dk, dv, dvisible, dbias, dsinks, *rest):
        q, k, v, out, lse, weights, visible, bias, sinks, seed = ctx.saved_tensors
        scale, softcap, *_, dropout = ctx.numbers
        kept = None
        if not ctx.want_weights:
            _, _, weights, kept = _Attention.apply(ctx.rule, q, k, v, visible, bias, sinks, seed, *ctx.numbers, True)
        q, k, v, dq, dk, dv = (None if x is None else x.transpose(1, 2) for x in (q, k, v, dq, dk, dv))
        dweights = weights_tangent(weights, q, k, dq, dk, dbias, dsinks, scale, softcap)
        if ctx.want_weights:
            return None, None, dweights, None
        dout = output_tangent(weights, dweights, v, dv, kept, dropout).to(q.dtype)
        return dout.transpose(1, 2).contiguous(), None, None, None

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return each(_Attention.apply, info, in_dims, inputs)


class _ThroughWeights(torch.autograd.Function):
    """The output, with its gradient by way of the weights that the caller is given: so they have one, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(out, weights, exact, v, kept, dropout):
        return out.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, weights, exact, v, kept, ctx.dropout = inputs
        ctx.dtype = weights.dtype
        ctx.save_for_backward(exact, v, kept)
        ctx.save_for_forward(exact, v, kept)

    @staticmethod
    def backward(ctx, dout):
        exact, v, kept = ctx.saved_tensors
        dweights, dv = output_gradients(dout.transpose(1, 2), exact, v.transpose(1, 2), kept, ctx.dropout)
        return None, dweights.to(ctx.dtype), None, dv.transpose(1, 2), None, None


class _ThroughWeightsInForwardMode(_ThroughWeights):
    """The same with a derivative in forward mode, which torch.compile does not trace."""

    @staticmethod
    def jvp(ctx, dout, dweights, dexact, dv, dkept, ddropout):
        exact, v, kept = ctx.saved_tensors
        dweights = torch.zeros_like(exact) if dweights is None else dweights.to(exact.dtype)
        dv = None if dv is None else dv.transpose(1, 2)
        dout = output_tangent(exact, dweights, v.transpose(1, 2), dv, kept, ctx.dropout).to(v.dtype)
        return dout.transpose(1, 2).contiguous()


# ---- The operators ----


@torch.library.custom_op("attend::attention_with_weights", mutates_args=(), schema=(
    f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}, bool want_weights) -> (Tensor, Tensor, Tensor, Tensor)"))
def attention_op(*inputs):
    return _forward(None, *inputs)


@torch.library.custom_op("attend::attention_with_weights_backward", mutates_args=(), schema=(
    f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, bool want_dbias) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"))
def attention_backward_op(*inputs):
    return _backward(None, *inputs)


attention_op.register_fake(_new_outputs)
attention_backward_op.register_fake(_new_gradients)


def _setup_operator(ctx, inputs, output):
    ctx.save_for_backward(*_save(ctx, inputs, output))


def _operator_backward(ctx, dout, dlse, dweights, dkept):
    return *_gradients(ctx, attention_backward_op, dout, dweights, ctx.needs_input_grad[4]), *_NUMBERS


def _no_second_derivative(ctx, *gradients):
    raise NotImplementedError("attend has no second derivative of attention")


attention_op.register_autograd(_operator_backward, setup_context=_setup_operator)
attention_backward_op.register_autograd(_no_second_derivative)
for _op in (attention_op, attention_backward_op):
    register_vmap(_op)


# ---- The call ----


def is_traced(q: Tensor) -> bool:
    """Whether a compiler records what is done with `q`, instead of computing it."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(q, (FakeTensor, FunctionalTensor))


def attend(rule: Optional[masks.Mask], q: Tensor, k: Tensor, v: Tensor, options: Options,
           want_weights: bool) -> Any:
    """out [batch, queries, heads, dim], and the weights [batch, heads, queries, keys] in q's dtype, None unless wanted."""
    inputs = q, k, v, *options, want_weights
    through = _ThroughWeightsInForwardMode
    if is_traced(q):
        through = _ThroughWeights
        result = attention_op(*inputs)
    elif (torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
          or (torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs))):
        result = _Attention.apply(rule, *inputs)
    else:
        with torch.no_grad():
            out, _, weights, _ = _core.array_attention(q, k, v, _engine_options(rule, *options), _ORDER, False, want_weights)
        return out, None if weights is None else weights.to(q.dtype)
    out, _, exact, kept = result
    if not want_weights:
        return out, None
    weights = exact.to(q.dtype)
    return through.apply(out, weights, exact.detach(), v, kept, options.dropout), weights
