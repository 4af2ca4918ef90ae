"""The engine as PyTorch operators: what autograd, torch.compile, torch.func and the FLOP counter see of it."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from . import _core

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


def core_options(mask, diagonal, scale, softcap, bias=None, slopes=None, dropout=0.0, seed=0, kept_by_mask=None):
    """The engine's options inside an operator: what wants a gradient is seen to around it."""
    return _core.ScoreOptions(mask, kept_by_mask, scale, bias, softcap, slopes, diagonal, None, dropout, seed, None, True)


def new_outputs(q, v):
    """Empty `out` [B, H, M, E], in memory ordered as q is, and `lse` [B, H, M]."""
    B, H, M, _ = q.shape
    E = v.shape[3]
    if q.stride(1) < q.stride(2):
        out = q.new_empty((B, M, H, E)).transpose(1, 2)
    else:
        out = q.new_empty((B, H, M, E))
    return out, q.new_empty((B, H, M), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


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


@torch.library.custom_op("attend::attention", mutates_args=(), device_types=("cpu", "cuda"), schema=_FORWARD)
def attention_op(q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right, first_key,
                 dropout):
    if _nothing_left(q, v, dropout):
        return tuple(x.zero_() for x in new_outputs(q, v))
    return run_forward(q, k, v, _options(visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right,
                                         first_key, dropout))


@attention_op.register_fake
def _(q, k, v, *options):
    return new_outputs(q, v)


def _new_gradients(q, k, v, bias, want_dbias):
    # An operator returns tensors only: an empty one stands for no gradient of the bias.
    dbias = torch.empty(bias.shape, dtype=bias.dtype, device=q.device) if want_dbias else q.new_empty((0,))
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dbias


@torch.library.custom_op("attend::attention_backward", mutates_args=(), device_types=("cpu", "cuda"),
                         schema=_BACKWARD)
def attention_backward_op(dout, q, k, v, out, lse, visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap,
                          left, right, first_key, dropout, want_dbias):
    dq, dk, dv, dbias = gradients = _new_gradients(q, k, v, bias, want_dbias)
    if _nothing_left(q, v, dropout):
        return tuple(x.zero_() for x in gradients)
    options = _options(visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right, first_key,
                       dropout)
    dout, q, k, v = (laid_for_gpu(x) for x in (dout, q, k, v))
    _core.operator_attention_backward(dout, q, k, v, out, lse, dq, dk, dv, dbias if want_dbias else None, options)
    return gradients


@attention_backward_op.register_fake
def _(dout, q, k, v, out, lse, visible, bias, *options):
    return _new_gradients(q, k, v, bias, options[-1])


# --- gradients --------------------------------------------------------------------------------------------------------


def _setup_context(ctx, inputs, output):
    q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, visible, bias, slopes, cu_queries, cu_keys, seed)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(backward, ctx, dout):
    if dout is None:
        return (None,) * 15
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    want_dbias = ctx.needs_input_grad[4]
    dq, dk, dv, dbias = backward(dout, q, k, v, out, lse, *tensors, *ctx.numbers, want_dbias)
    return dq, dk, dv, None, dbias if want_dbias else None, *(None,) * 10


attention_op.register_autograd(lambda ctx, dout, dlse: _backward(attention_backward_op, ctx, dout),
                               setup_context=_setup_context)


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


def _each(function, info, in_dims, inputs):
    """A rule for torch.vmap: one call for each, which is what the engine would do inside."""
    results = [function(*(x if dim is None else x.select(dim, i) for x, dim in zip(inputs, in_dims)))
               for i in range(info.batch_size)]
    if isinstance(results[0], tuple):
        return tuple(torch.stack(parts) for parts in zip(*results)), (0,) * len(results[0])
    return torch.stack(results), 0


class _Underivable(torch.autograd.Function):
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


class _Backward(_Underivable):
    forward = staticmethod(lambda *inputs: attention_backward_op(*inputs))
    vmap = staticmethod(lambda info, in_dims, *inputs: _each(_Backward.apply, info, in_dims, inputs))


class _Weights(_Underivable):
    forward = staticmethod(lambda *inputs: weights_op(*inputs))
    vmap = staticmethod(lambda info, in_dims, *inputs: _each(_Weights.apply, info, in_dims, inputs))


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
        return _backward(_Backward.apply, ctx, dout)

    @staticmethod
    def jvp(ctx, dq, dk, dv, dvisible, dbias, dslopes, *rest):
        if dslopes is not None:
            raise NotImplementedError("attend has no derivative by ALiBi's slopes: detach them")
        q, k, v, _, _, *tensors = ctx.saved_tensors
        return _tangent(q, k, v, tensors, ctx.numbers, dq, dk, dv, dbias), None

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _each(_Attention.apply, info, in_dims, inputs)


def _tangent(q, k, v, tensors, numbers, dq, dk, dv, dbias):
    """With weights P, what dropout keeps Z, and ds = dscores: (Z P (ds - sum(P ds))) v + (Z P) dv. In M x N memory."""
    scale, softcap, *_, dropout = numbers
    if _nothing_left(q, v, dropout):
        return new_outputs(q, v)[0].zero_()
    weights = _Weights.apply(q, k, v, *tensors, *numbers)
    groups, dtype = q.shape[1] // k.shape[1], weights.dtype
    seen = (weights != 0).any(2).unflatten(1, (-1, groups)).any(2)[..., None]

    def wide(x):
        return x.to(dtype)

    def spread(x):  # KV heads as query heads; what nobody sees must not matter, not even a NaN
        return torch.where(seen, wide(x), 0).repeat_interleave(groups, 1)

    scale = q.shape[3] ** -0.5 if scale is None else scale
    P = weights.abs()
    Z = (weights > 0).to(dtype) / (1 - dropout) if dropout > 0 else torch.ones((), dtype=dtype, device=q.device)
    ds = torch.zeros((), dtype=dtype, device=q.device)
    if dq is not None:
        ds = ds + wide(dq) @ spread(k).mT
    if dk is not None:
        ds = ds + wide(q) @ spread(dk).mT
    ds = scale * ds
    if softcap != 0:
        ds = ds * (1 - torch.tanh(scale * (wide(q) @ spread(k).mT) / softcap) ** 2)
    if dbias is not None:
        ds = ds + wide(dbias)
    weighted = torch.where(P > 0, P * ds, 0)
    dout = (Z * (weighted - P * weighted.sum(-1, keepdim=True))) @ spread(v)
    if dv is not None:
        dout = dout + (Z * P) @ spread(dv)
    return dout.to(q.dtype)


def is_differentiated(x):
    """Somebody wants derivatives by this tensor (or None), by the tape, by torch.func or by forward mode."""
    if x is None:
        return False
    return (x.requires_grad and torch.is_grad_enabled()) or torch._C._functorch.is_functorch_wrapped_tensor(x) or (
        forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None)


def attention(*inputs):
    """attention_op, by way of _Attention where somebody differentiates by other means than autograd's tape."""
    if not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active()
                                              or forward_ad._current_level >= 0):
        return _Attention.apply(*inputs)
    return attention_op(*inputs)


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
