"""The engine as PyTorch operators: what autograd, torch.compile, torch.func and the FLOP counter see of it."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from . import _core
from ._weights_math import output_tangent, weights_tangent

# What forward and backward share, in this order. Masks travel as numbers and tensors, so that the compiler sees through
# them: `visible` boolean and `bias` additive [1|B, 1|H, 1|M, 1|N], `slopes` [H] or [B, H], cumulative lengths of packed
# documents, `seed` a tensor (drawn when a graph runs, not when it is traced), left and right the window, -1 unlimited.
_OPTIONS = ("Tensor? visible, Tensor? bias, Tensor? slopes, Tensor? cu_queries, Tensor? cu_keys, Tensor? seed, "
            "float? scale, float softcap, int left, int right, bool first_key, float dropout")
_FORWARD = f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)"
_BACKWARD = (f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, bool want_dbias) "
             "-> (Tensor, Tensor, Tensor, Tensor)")


def window_mask(left, right, diagonal):
    """Keys from `left` before a query's own to `right` after it; a negative side is unlimited."""
    if left < 0 and right < 0:
        return _core.no_mask()
    return _core.causal(diagonal) if left < 0 and right == 0 else _core.window(max(left, -1), max(right, -1), diagonal)


def _options(visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right, first_key, dropout):
    diagonal = _core.Diagonal.first_key() if first_key else _core.Diagonal.last_key()
    mask = window_mask(left, right, diagonal)
    if visible is not None:
        mask = mask & _core.dense(visible.data_ptr(), visible.shape, visible.stride())
    if cu_queries is not None:
        mask = mask & _core.segments(cu_queries.tolist(), cu_keys.tolist())
    return core_options(mask, diagonal, scale, softcap, bias, slopes, dropout, 0 if seed is None else seed.item(),
                        visible)


def core_options(mask, diagonal, scale, softcap, bias=None, slopes=None, dropout=0.0, seed=0, kept_by_mask=None,
                 sinks=None):
    """The engine's options inside an operator: what wants a gradient is seen to around it."""
    return _core.ScoreOptions(mask, kept_by_mask, scale, bias, softcap, slopes, diagonal, sinks, dropout, seed, None, True)


def _ordered_as(like, shape):
    """Empty [B, H, M, E], with heads and lengths in memory in the order of `like`. Not a view: forward mode requires a
    view and its tangent to have one layout."""
    B, H, M, E = shape
    if like.stride(1) < like.stride(2):
        return like.new_empty_strided((B, H, M, E), (M * H * E, E, H * E, 1))
    return like.new_empty((B, H, M, E))


def new_outputs(q, v):
    """Empty `out` [B, H, M, E], in memory ordered as q is, and `lse` [B, H, M]."""
    B, H, M, _ = q.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _ordered_as(q, (B, H, M, v.shape[3])), q.new_empty((B, H, M), dtype=wide)


def laid_for_gpu(x):
    """As the GPU's copy engine reads rows: contiguous, 16 bytes apart or a multiple. A copy where `x` lies otherwise."""
    if x.is_cpu or (x.stride(-1) == 1 and x.data_ptr() % 16 == 0
                    and all(size == 1 or (step > 0 and step % 8 == 0) for size, step in zip(x.shape[:-1], x.stride()))):
        return x
    return x.contiguous()


def run_forward(q, k, v, options, weights=None):
    """One call of the engine, without autograd: `out` and `lse`."""
    q, k, v = laid_for_gpu(q), laid_for_gpu(k), laid_for_gpu(v)
    out, lse = new_outputs(q, v)
    _core.operator_attention(q, k, v, out, lse, weights, options)
    return out, lse


def _nothing_left(q, v, dropout):
    # No output to compute, or every weight dropped: neither is the engine's business.
    return q.shape[1] == 0 or v.shape[3] == 0 or dropout >= 1


def _new_gradients(q, k, v, bias, want_dbias):
    # An operator returns tensors only: an empty one means no gradient of the bias.
    dbias = torch.empty(bias.shape, dtype=bias.dtype, device=q.device) if want_dbias else q.new_empty((0,))
    return (*(_ordered_as(x, x.shape) for x in (q, k, v)), dbias)


# --- the operators: kernels in C++ (python/src/torch_operators.cpp), below in Python for PyTorch before 2.10 -------------

library = torch.library.Library("attend", "FRAGMENT")
for _schema in ("attention" + _FORWARD, "attention_backward" + _BACKWARD):
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
attention_op = torch.ops.attend.attention.default
attention_backward_op = torch.ops.attend.attention_backward.default


def _attention_kernel(q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right, first_key,
                      dropout):
    if _nothing_left(q, v, dropout):
        return tuple(x.zero_() for x in new_outputs(q, v))
    return run_forward(q, k, v, _options(visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right,
                                         first_key, dropout))


def _attention_backward_kernel(dout, q, k, v, out, lse, visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap,
                               left, right, first_key, dropout, want_dbias):
    dq, dk, dv, dbias = gradients = _new_gradients(q, k, v, bias, want_dbias)
    if _nothing_left(q, v, dropout):
        return tuple(x.zero_() for x in gradients)
    options = _options(visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right, first_key,
                       dropout)
    dout, q, k, v = (laid_for_gpu(x) for x in (dout, q, k, v))
    _core.operator_attention_backward(dout, q, k, v, out, lse, dq, dk, dv, dbias if want_dbias else None, options)
    return gradients


if not _core.register_torch_operators():
    for _key in ("CPU", "CUDA"):
        library.impl("attention", _attention_kernel, _key)
        library.impl("attention_backward", _attention_backward_kernel, _key)


@torch.library.register_fake("attend::attention", lib=library)
def _(q, k, v, *options):
    return new_outputs(q, v)


@torch.library.register_fake("attend::attention_backward", lib=library)
def _(dout, q, k, v, out, lse, visible, bias, *options):
    return _new_gradients(q, k, v, bias, options[-1])


# --- gradients --------------------------------------------------------------------------------------------------------


def _setup_context(ctx, inputs, output):
    q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, visible, bias, slopes, cu_queries, cu_keys, seed)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(backward, ctx, dout, want_dbias):
    if dout is None:
        return (None,) * 15
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    dq, dk, dv, dbias = backward(dout, q, k, v, out, lse, *tensors, *ctx.numbers, want_dbias)
    return dq, dk, dv, None, dbias if want_dbias else None, *(None,) * 10


_BELOW_AUTOGRAD = torch._C._after_autograd_keyset


def _run_kernel(op, keyset, inputs):
    """The operator below autograd, called by autograd's kernel with its `keyset`, or directly (None). A kernel's error
    is raised in its own class, not as PyTorch's RuntimeError."""
    try:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs) if keyset is None else op.redispatch(keyset & _BELOW_AUTOGRAD, *inputs)
    except RuntimeError as error:
        _core.raise_operator_error(str(error))
        raise


_NO_TENSORS = (None,) * 6  # visible to seed


def _gradients(*inputs):
    if torch.is_grad_enabled():  # create_graph=True
        return attention_backward_op(*inputs)
    return _run_kernel(attention_backward_op, None, inputs)


class _AttentionTape(torch.autograd.Function):
    """The operator on autograd's tape."""

    @staticmethod
    def forward(ctx, op, keyset, *inputs):
        output = _run_kernel(op, keyset, inputs)
        _setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, dout, dlse):
        return None, None, *_backward(_gradients, ctx, dout, ctx.needs_input_grad[6])


class _PlainTape(torch.autograd.Function):
    """The same of q, k and v and numbers only: a third of the arguments to look through."""

    @staticmethod
    def forward(ctx, q, k, v, numbers):
        output = _run_kernel(attention_op, None, (q, k, v, *_NO_TENSORS, *numbers))
        ctx.save_for_backward(q, k, v, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.numbers = numbers
        return output

    @staticmethod
    def backward(ctx, dout, dlse):
        if dout is None:
            return None, None, None, None
        dq, dk, dv, _ = _gradients(dout, *ctx.saved_tensors, *_NO_TENSORS, *ctx.numbers, False)
        return dq, dk, dv, None


class _BackwardTape(torch.autograd.Function):
    """The operator of the gradients, which has none."""

    @staticmethod
    def forward(ctx, op, keyset, *inputs):
        return _run_kernel(op, keyset, inputs)

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("attend has no second derivative of attention")


def _register_autograd(op, tape):
    # As torch.library.register_autograd does, which takes four times as long for a call.
    def kernel(keyset, *inputs):
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs):
            return tape.apply(op, keyset, *inputs)
        return _run_kernel(op, keyset, inputs)

    library.impl(op, kernel, "Autograd", with_keyset=True)


_register_autograd(attention_op, _AttentionTape)
_register_autograd(attention_backward_op, _BackwardTape)


@torch.library.custom_op("attend::weights", mutates_args=(), device_types="cpu",
                         schema=f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> Tensor")
def weights_op(q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right, first_key,
               dropout):
    """The weights [B, H, M, N], negated where dropout took them."""
    weights = _new_weights(q, k)
    run_forward(q, k, v, _options(visible, bias, slopes, cu_queries, cu_keys, None, scale, softcap, left, right,
                                  first_key, 0.0), weights)
    if dropout == 0:
        return weights
    B, H, M, N = weights.shape
    return torch.where(kept(seed, dropout, B, H, M, N), weights, -weights)


@weights_op.register_fake
def _new_weights(q, k, *rest):
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:3], k.shape[2]), dtype=dtype)


def kept(seed, dropout, B, H, M, N, q0=0, k0=0):
    """Which weights dropout keeps, [B, H, M, N], of queries from q0 and keys from k0 on."""
    if not M or not N:
        return torch.ones((B, H, M, N), dtype=torch.bool, device="cpu")
    # That depends on the seed and the place alone: even scores over values that form the identity show it.
    diagonal = _core.Diagonal.last_key()
    mask = _core.segments([0, q0, q0 + M], [0, k0, k0 + N]) & _core.left_padding([k0]) if q0 or k0 else _core.no_mask()
    zero = torch.zeros((), device="cpu")
    identity = torch.cat((torch.zeros((k0, N), device="cpu"), torch.eye(N, device="cpu")))
    out, _ = run_forward(zero.expand(B, H, q0 + M, 1), zero.expand(B, 1, k0 + N, 1), identity.expand(B, 1, k0 + N, N),
                         core_options(mask, diagonal, 1.0, 0.0, dropout=dropout, seed=seed.item()))
    return out[:, :, q0:] > 0


# --- torch.func and forward mode --------------------------------------------------------------------------------------


def each(function, info, in_dims, inputs):
    """A rule for torch.vmap: one call for each, which is what the engine would do inside."""
    results = [function(*(x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims)))
               for i in range(info.batch_size)]
    if isinstance(results[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*results)), (0,) * len(results[0])
    return torch.stack(results), 0


def register_vmap(op):
    """Gives an operator the rule, for torch.vmap within a compiled function."""
    if hasattr(torch.library, "register_vmap"):  # from PyTorch 2.5 on
        torch.library.register_vmap(op, lambda info, in_dims, *inputs: each(op, info, in_dims, inputs), lib=library)


for _op in (attention_op, attention_backward_op):
    register_vmap(_op)


class Underivable(torch.autograd.Function):
    """An operator that has no derivative of its own, for torch.vmap."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("attend has no second derivative of attention")

    @staticmethod
    def jvp(ctx, *tangents):
        raise NotImplementedError("attend has no second derivative of attention")


class _Backward(Underivable):
    forward = staticmethod(lambda *inputs: attention_backward_op(*inputs))
    vmap = staticmethod(lambda info, in_dims, *inputs: each(_Backward.apply, info, in_dims, inputs))


class _Weights(Underivable):
    forward = staticmethod(lambda *inputs: weights_op(*inputs))
    vmap = staticmethod(lambda info, in_dims, *inputs: each(_Weights.apply, info, in_dims, inputs))


class _Attention(torch.autograd.Function):
    """The operator once more, in the form that torch.func and forward mode ask for."""

    @staticmethod
    def forward(*inputs):
        return attention_op(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _setup_context(ctx, inputs, output)
        q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, *_ = inputs
        ctx.save_for_forward(q, k, v, *output, visible, bias, slopes, cu_queries, cu_keys, seed)

    @staticmethod
    def backward(ctx, dout, dlse):
        return _backward(_Backward.apply, ctx, dout, ctx.needs_input_grad[4])

    @staticmethod
    def jvp(ctx, dq, dk, dv, dvisible, dbias, dslopes, *rest):
        if dslopes is not None:
            raise NotImplementedError("attend has no derivative by ALiBi's slopes: detach them")
        q, k, v, _, _, *tensors = ctx.saved_tensors
        return _tangent(q, k, v, tensors, ctx.numbers, dq, dk, dv, dbias), None

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return each(_Attention.apply, info, in_dims, inputs)


def _tangent(q, k, v, tensors, numbers, dq, dk, dv, dbias):
    """The change of the output for a change of its inputs. In M x N memory."""
    scale, softcap, *_, dropout = numbers
    if _nothing_left(q, v, dropout):
        return new_outputs(q, v)[0].zero_()
    signed = _Weights.apply(q, k, v, *tensors, *numbers)
    weights = signed.abs()
    dweights = weights_tangent(weights, q, k, dq, dk, dbias, None, scale, softcap)
    return output_tangent(weights, dweights, v, dv, signed > 0, dropout).to(q.dtype)


def is_differentiated(x):
    """Somebody wants derivatives by this tensor (or None), by the tape, by torch.func or by forward mode."""
    if x is None:
        return False
    return (x.requires_grad and torch.is_grad_enabled()) or torch._C._functorch.is_functorch_wrapped_tensor(x) or (
        forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None)


def attention(q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, *numbers):
    """attention_op, by way of _Attention where somebody differentiates by other means than autograd's tape. In eager mode
    autograd's kernel is called here: reached through the dispatcher it takes 10 us more."""
    inputs = q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, *numbers
    if torch.compiler.is_compiling():
        return attention_op(*inputs)
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return _Attention.apply(*inputs)
    if torch.is_grad_enabled():
        if visible is None and bias is None and slopes is None and cu_queries is None and seed is None:
            if q.requires_grad or k.requires_grad or v.requires_grad:
                return _PlainTape.apply(q, k, v, numbers)
        elif torch._C._any_requires_grad(*inputs):
            return _AttentionTape.apply(attention_op, None, *inputs)
    return _run_kernel(attention_op, None, inputs)


# --- the FLOP counter: products of matrices, all of them, as PyTorch counts its own ----------------------------------


def _scores(q, k, cu_queries=None, cu_keys=None):
    if cu_queries is None or cu_queries.is_meta or not q.shape[0]:
        return q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return q.shape[0] * q.shape[1] * int((cu_queries.diff().long() * cu_keys.diff().long()).sum())


@register_flop_formula(torch.ops.attend.attention, get_raw=True)
def _attention_flops(q, k, v, visible, bias, slopes, cu_queries, cu_keys, *rest, **kwargs):
    return 2 * _scores(q, k, cu_queries, cu_keys) * (q.shape[3] + v.shape[3])


@register_flop_formula(torch.ops.attend.attention_backward, get_raw=True)
def _backward_flops(dout, q, k, v, out, lse, visible, bias, slopes, cu_queries, cu_keys, *rest, **kwargs):
    return 2 * _scores(q, k, cu_queries, cu_keys) * (3 * q.shape[3] + 2 * v.shape[3])
