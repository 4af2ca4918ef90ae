"""PyTorch's scaled_dot_product_attention on this engine: autograd, torch.compile, and a whole model at once.

Needs PyTorch 2.4 or later.

>>> import torch, attend.torch
>>> out = attend.torch.scaled_dot_product_attention(query, key, value, is_causal=True)
>>> with attend.torch.patched():
...     logits = model(tokens)
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Iterator, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _core

__all__ = ["patched", "scaled_dot_product_attention"]

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}

# What forward and backward share, in this order. Masks travel as numbers and tensors, so that the compiler sees through
# them: `visible` boolean and `bias` additive [1|B, 1|H, 1|M, 1|N], `slopes` [H] or [B, H], cumulative lengths of packed
# documents, `seed` a tensor (drawn when a graph runs, not when it is traced), left and right the window, -1 unlimited.
_OPTIONS = ("Tensor? visible, Tensor? bias, Tensor? slopes, Tensor? cu_queries, Tensor? cu_keys, Tensor? seed, "
            "float? scale, float softcap, int left, int right, bool first_key, float dropout")
_FORWARD = f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)"
_BACKWARD = (f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, bool want_dbias) "
             "-> (Tensor, Tensor, Tensor, Tensor)")


def view(x):
    """The engine's view of a [batch, heads, length, dim] tensor."""
    return _core.View(x.data_ptr(), NAMES[x.dtype], x.shape, x.stride(), True)


def _lse_view(lse):
    return _core.View(lse.data_ptr(), NAMES[lse.dtype], (*lse.shape, 1), (*lse.stride(), 1), True)


def slopes_view(slopes):
    """[heads] or [batch, heads] as [1|batch, heads, 1, 1]."""
    lead = () if slopes.dim() == 2 else (1,)
    return _core.View(slopes.data_ptr(), NAMES[slopes.dtype], (*lead, *slopes.shape, 1, 1),
                      (*lead, *slopes.stride(), 1, 1), True)


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
    return _core.Options(mask, scale, softcap, None if bias is None else view(bias),
                         None if slopes is None else slopes_view(slopes), diagonal, None, dropout,
                         0 if seed is None else seed.item())


def new_outputs(q, v):
    """Empty `out` [B, H, M, E], in memory ordered as q is, and `lse` [B, H, M]."""
    B, H, M, _ = q.shape
    E = v.shape[3]
    if q.stride(1) < q.stride(2):
        out = q.new_empty((B, M, H, E)).transpose(1, 2)
    else:
        out = q.new_empty((B, H, M, E))
    return out, q.new_empty((B, H, M), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def run_forward(q, k, v, options, weights=None):
    """One call of the engine, without autograd: `out` and `lse`."""
    out, lse = new_outputs(q, v)
    _core.attention(view(q), view(k), view(v), view(out), options, _lse_view(lse),
                    None if weights is None else view(weights))
    return out, lse


def _nothing_left(q, v, dropout):
    # No output to compute, or every weight dropped: neither is the engine's business.
    return q.shape[1] == 0 or v.shape[3] == 0 or dropout >= 1


@torch.library.custom_op("attend::attention", mutates_args=(), device_types="cpu", schema=_FORWARD)
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


@torch.library.custom_op("attend::attention_backward", mutates_args=(), device_types="cpu", schema=_BACKWARD)
def attention_backward_op(dout, q, k, v, out, lse, visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap,
                          left, right, first_key, dropout, want_dbias):
    dq, dk, dv, dbias = gradients = _new_gradients(q, k, v, bias, want_dbias)
    if _nothing_left(q, v, dropout):
        return tuple(x.zero_() for x in gradients)
    options = _options(visible, bias, slopes, cu_queries, cu_keys, seed, scale, softcap, left, right, first_key,
                       dropout)
    _core.attention_backward(view(dout), view(q), view(k), view(v), view(out), _lse_view(lse), view(dq), view(dk),
                             view(dv), view(dbias) if want_dbias else None, None, options)
    return gradients


@attention_backward_op.register_fake
def _(dout, q, k, v, out, lse, visible, bias, *options):
    return _new_gradients(q, k, v, bias, options[-1])


def _setup_context(ctx, inputs, output):
    q, k, v, visible, bias, slopes, cu_queries, cu_keys, seed, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, visible, bias, slopes, cu_queries, cu_keys, seed)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _autograd_backward(ctx, dout, dlse):
    if dout is None:
        return (None,) * 15
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    want_dbias = ctx.needs_input_grad[4]
    dq, dk, dv, dbias = attention_backward_op(dout, q, k, v, out, lse, *tensors, *ctx.numbers, want_dbias)
    return dq, dk, dv, None, dbias if want_dbias else None, *(None,) * 10


attention_op.register_autograd(_autograd_backward, setup_context=_setup_context)


def draw_seed():
    """A dropout seed from PyTorch's CPU generator, as a tensor: torch.manual_seed repeats it, backward reuses it."""
    return torch.randint(2**62, ())


def check_tensors(**tensors):
    """CPU, dense, of one dtype that the engine has."""
    first = None
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}, expected a tensor")
        if x.device.type not in ("cpu", "meta"):
            raise ValueError(f"{name} is on {x.device}, expected a CPU tensor: move it with .cpu()")
        if x.layout is not torch.strided or x.is_nested:
            raise TypeError(f"{name} is a {'nested' if x.is_nested else x.layout} tensor, expected a dense one")
        if x.dtype not in NAMES:
            raise TypeError(f"{name} dtype is {x.dtype}, expected float32, float16, bfloat16 or float64")
        first = first or (name, x.dtype)
        if x.dtype != first[1]:
            raise ValueError(f"{name} dtype is {x.dtype}, expected that of {first[0]}: {first[1]}")


def _broadcast(what, *shapes):
    if shapes[0] == shapes[1] == shapes[2]:
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        shown = " and ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{what} are {shown}, expected shapes that broadcast together (for fewer key heads than query "
                         "heads: enable_gqa=True)") from error


def _repeated_heads(query, key, value):
    """Grouped heads: as they are, unless K and V group differently, which the engine has no name for."""
    if min(query.dim(), key.dim(), value.dim()) < 3:
        raise ValueError(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions, expected "
                         "at least 3 with enable_gqa: heads, length and dim")
    H, Hk, Hv = query.shape[-3], key.shape[-3], value.shape[-3]
    if (Hk == 0) != (H == 0) or (Hv == 0) != (H == 0) or (H and (H % Hk or H % Hv)):
        raise ValueError(f"query has {H} heads, key {Hk} and value {Hv}, expected query heads to be a multiple of both")
    if Hk == Hv:
        return key, value
    return key.repeat_interleave(H // Hk, -3), value.repeat_interleave(H // Hv, -3)


def _merged(x, batch, heads):
    """[..., length, dim] as [batch, heads, length, dim]: leading dimensions repeated, then all but one merged. A view
    wherever strides can say it."""
    if x.dim() == 4 and x.shape[0] == math.prod(batch) and x.shape[1] == heads:
        return x
    return x.expand(*batch, heads, *x.shape[-2:]).reshape(math.prod(batch), heads, *x.shape[-2:])


def _merged_mask(mask, batch, heads, L, S, rank):
    full = (*batch, heads, L, S)
    if not 2 <= mask.dim() <= rank or any(m not in (1, f) for m, f in zip(mask.shape[::-1], full[::-1])):
        raise ValueError(f"attn_mask has shape {list(mask.shape)}, expected one that broadcasts to "
                         f"{list(full[len(full) - rank:])} and has at least 2 dimensions")
    mask = mask[(None,) * (len(full) - mask.dim())]
    tail = mask.shape[-3:]
    if all(size == 1 for size in mask.shape[:-3]):
        return mask.reshape(1, *tail)
    return mask.expand(*batch, *tail).reshape(math.prod(batch), *tail)


def _autocast(query, key, value, attn_mask):
    """What autocast does to PyTorch's own: all to its dtype, float64 excepted."""
    dtype = torch.get_autocast_dtype("cpu")
    cast = lambda x: x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x  # noqa: E731
    return cast(query), cast(key), cast(value), None if attn_mask is None else cast(attn_mask)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` on this engine, for CPU tensors.

    query [..., L, E], key [..., S, E] and value [..., S, Ev] -> [..., L, Ev], in any number of leading dimensions that
    broadcast; float32, float16, bfloat16 or float64. Memory is linear in the lengths for every mask, dtype, Ev and
    dropout_p, forward and backward.

    attn_mask   boolean (True: visible) or additive; broadcasts to [..., L, S]. Read in place (with more than 4
                dimensions it may be copied). An additive mask gets its gradient too.
    dropout_p   of the weights. The seed is drawn from PyTorch's CPU generator: torch.manual_seed repeats it. Which
                weights are dropped is not PyTorch's choice.
    is_causal   query i sees keys 0 to i: aligned to the first key, as PyTorch's
    enable_gqa  fewer key and value heads (dimension -3), each read by a group of query heads, without repeating them

    A row that sees no key gives zeros and passes no gradient (before version 2.5 PyTorch gave NaN). Wrong arguments are
    ValueError or TypeError, where PyTorch raises RuntimeError. There is no second derivative, and torch.func.grad does
    not reach through (torch.autograd, torch.compile, torch.export and checkpointing do).

    >>> out = attend.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> out.sum().backward()
    """
    if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
        raise TypeError(f"attn_mask is a {type(attn_mask).__name__}, expected a tensor")
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    check_tensors(query=query, key=key, value=value)
    rank = max(query.dim(), key.dim(), value.dim())
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise ValueError(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions, expected "
                         "at least 2: length and dim")
    if key.shape[-1] != query.shape[-1] or value.shape[-2] != key.shape[-2]:
        raise ValueError(f"query is {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}, expected "
                         "[..., L, E], [..., S, E] and [..., S, Ev]")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p is {dropout_p}, expected 0 to 1")
    if is_causal and attn_mask is not None:
        raise ValueError("got both attn_mask and is_causal=True, expected one of them: put the causal rule in the mask")

    L, S = query.shape[-2], key.shape[-2]
    if enable_gqa:
        key, value = _repeated_heads(query, key, value)
        batch = _broadcast("the batch dimensions of query, key and value", *(x.shape[:-3] for x in (query, key, value)))
        heads, kv_heads = query.shape[-3], key.shape[-3]
    else:
        lead = _broadcast("the leading dimensions of query, key and value",
                          *(x.shape[:-2] for x in (query, key, value)))
        batch, heads = lead[:-1], (lead[-1] if lead else 1)
        kv_heads = heads
    q, k, v = _merged(query, batch, heads), _merged(key, batch, kv_heads), _merged(value, batch, kv_heads)
    visible = bias = None
    if attn_mask is not None:
        if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            raise TypeError(f"attn_mask dtype is {attn_mask.dtype}, expected bool, float32 or that of query: "
                            f"{query.dtype}")
        if attn_mask.device != query.device:
            raise ValueError(f"attn_mask is on {attn_mask.device}, expected {query.device}, where query is")
        mask = _merged_mask(attn_mask, batch, heads, L, S, rank)
        visible, bias = (mask, None) if mask.dtype == torch.bool else (None, mask)
    seed = draw_seed() if dropout_p > 0 else None
    out, _ = attention_op(q, k, v, visible, bias, None, None, None, seed, scale, 0.0, -1, 0 if is_causal else -1, True,
                          float(dropout_p))
    return out if rank == 4 else out.reshape(*(batch + (heads,) if rank > 2 else ()), L, value.shape[-1])


_original = F.scaled_dot_product_attention
_lock = threading.Lock()
_depth = 0


def _ours(x):
    return x.device.type == "cpu" and x.dtype in NAMES and x.layout is torch.strided and not x.is_nested


def _routed(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    function = scaled_dot_product_attention if _ours(query) and _ours(key) and _ours(value) else _original
    return function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Within the block, ``torch.nn.functional.scaled_dot_product_attention`` is this engine's, for a whole model.

    Tensors on another device, of another dtype, sparse or nested go to PyTorch's own, as before. The swap is for the
    process, not the thread; blocks may nest and overlap between threads, and the last one out restores PyTorch's.
    Modules that hold a reference of their own (``from torch.nn.functional import scaled_dot_product_attention``) and
    code that never calls the function (the fused inference path of nn.TransformerEncoderLayer) are not reached.

    >>> with attend.torch.patched():
    ...     loss = model(tokens).loss
    ...     loss.backward()
    """
    global _original, _depth
    with _lock:
        if _depth == 0:
            _original, F.scaled_dot_product_attention = F.scaled_dot_product_attention, _routed
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                F.scaled_dot_product_attention = _original
