"""PyTorch's scaled_dot_product_attention on this engine: autograd, torch.compile, and a whole model at once.

Needs PyTorch 2.4 or later.

>>> import torch, attend.torch
>>> out = attend.torch.scaled_dot_product_attention(query, key, value, is_causal=True)
>>> with attend.torch.patched():
...     logits = model(tokens)
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from . import _core
from ._errors import InvalidArgument as Invalid
from ._errors import WrongType
from ._torch_ops import attention, library
from ._whole import flag

try:  # sizes that torch.export does not know before the program runs
    from torch.fx.experimental.symbolic_shapes import guard_or_false
except ImportError:
    guard_or_false = bool

try:  # what torch.compile traces with
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
except ImportError:
    FakeTensor = FunctionalTensor = ()

__all__ = ["patched", "scaled_dot_product_attention"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def draw_seed():
    """A dropout seed from PyTorch's CPU generator, as a tensor: torch.manual_seed repeats it, backward reuses it."""
    return torch.randint(2**62, (), device="cpu")


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def _has_own_meaning(x):
    """A subclass that says itself what its operators do need not hold what its memory says."""
    kind = type(x)
    if kind in _PLAIN_TYPES or isinstance(x, (FakeTensor, FunctionalTensor)):
        return False
    own_function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return own_function not in _PLAIN_FUNCTIONS or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def refuse_subclass(name, x):
    if _has_own_meaning(x):
        raise WrongType(f"{name} is a {type(x).__name__}, expected a plain tensor: only that class knows what it means")


_PLAIN_FUNCTIONS = (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)


def check_tensors(gpu=False, **tensors):
    """Dense, of one dtype that the engine has, all on the CPU (or all on the meta device, which has no values); where
    `gpu` is set, on a CUDA device as well."""
    first = None
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise WrongType(f"{name} is a {type(x).__name__}, expected a tensor")
        refuse_subclass(name, x)
        if x.device.type not in ("cpu", "meta") and not (gpu and x.is_cuda):
            raise Invalid(f"{name} is on {x.device}, expected a CPU tensor: move it with .cpu()")
        if x.layout is not torch.strided or x.is_nested:
            raise WrongType(f"{name} is a {'nested' if x.is_nested else x.layout} tensor, expected a dense one")
        if x.dtype not in _DTYPES:
            raise WrongType(f"{name} dtype is {x.dtype}, expected float32, float16, bfloat16 or float64")
        first = first or (name, x.dtype, x)
        if x.dtype != first[1]:
            raise Invalid(f"{name} dtype is {x.dtype}, expected that of {first[0]}: {first[1]}")
        check_device(name, x, *first[::2])


def check_device(name, x, beside, other):
    """`x` lies where `other` does."""
    if x is not None and x.device.type != other.device.type:
        raise Invalid(f"{name} is on {x.device}, expected {other.device}, where {beside} is")


def _broadcast(what, *shapes):
    if shapes[0] == shapes[1] == shapes[2]:
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        shown = " and ".join(str(list(shape)) for shape in shapes)
        raise Invalid(f"{what} are {shown}, expected shapes that broadcast together (for fewer key heads than query "
                      "heads: enable_gqa=True)") from error


def _repeated_heads(query, key, value):
    """Grouped heads: as they are, unless K and V group differently, which the engine has no name for."""
    if min(query.dim(), key.dim(), value.dim()) < 3:
        raise Invalid(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions, expected "
                      "at least 3 with enable_gqa: heads, length and dim")
    H, Hk, Hv = query.shape[-3], key.shape[-3], value.shape[-3]
    if (Hk == 0) != (H == 0) or (Hv == 0) != (H == 0) or (H and (H % Hk or H % Hv)):
        raise Invalid(f"query has {H} heads, key {Hk} and value {Hv}, expected query heads to be a multiple of both")
    if Hk == Hv:
        return key, value
    return key.repeat_interleave(H // Hk, -3), value.repeat_interleave(H // Hv, -3)


def _merged(x, batch, heads):
    """[..., length, dim] as [batch, heads, length, dim]: leading dimensions repeated, then all but one merged. A view
    wherever strides can say it."""
    if x.dim() == 4 and x.shape[0] == math.prod(batch) and x.shape[1] == heads:
        return x
    return x.expand(*batch, heads, *x.shape[-2:]).reshape(math.prod(batch), heads, *x.shape[-2:])


def _may_broadcast(size, full):
    """Whether a dimension is of length 1 or as long as the other. One that torch.export does not know may be: the
    operator checks it."""
    return guard_or_false(size == 1) or not guard_or_false(size != full)


def _merged_mask(mask, batch, heads, L, S, rank):
    full = (*batch, heads, L, S)
    if not 2 <= mask.dim() <= rank or not all(map(_may_broadcast, mask.shape[::-1], full[::-1])):
        raise Invalid(f"attn_mask has shape {list(mask.shape)}, expected one that broadcasts to "
                      f"{list(full[len(full) - rank:])} and has at least 2 dimensions")
    mask = mask[(None,) * (len(full) - mask.dim())]
    if len(batch) == 1:
        return mask
    tail = mask.shape[-3:]
    if all(guard_or_false(size == 1) for size in mask.shape[:-3]):
        return mask.reshape(1, *tail)
    return mask.expand(*batch, *tail).reshape(math.prod(batch), *tail)


def _autocast(query, key, value, attn_mask):
    """What autocast does to PyTorch's own: all to its dtype, float64 excepted."""
    dtype = torch.get_autocast_dtype(query.device.type)
    cast = lambda x: x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x  # noqa: E731
    return cast(query), cast(key), cast(value), None if attn_mask is None else cast(attn_mask)


def _is_ready(query, key, value, enable_gqa):
    """Whether the operator takes the tensors as they are: the common case, whose checks must cost microseconds."""
    if type(query) not in _PLAIN_TYPES or type(key) not in _PLAIN_TYPES or type(value) not in _PLAIN_TYPES:
        return False
    dtype, strided = query.dtype, torch.strided
    if query.is_cuda:
        same_device = key.is_cuda and value.is_cuda and query.get_device() == key.get_device() == value.get_device()
        autocast = torch.is_autocast_enabled("cuda")
    else:
        same_device, autocast = query.is_cpu and key.is_cpu and value.is_cpu, torch.is_autocast_enabled("cpu")
    if (not same_device or autocast or dtype not in _DTYPES or key.dtype is not dtype or value.dtype is not dtype
            or query.layout is not strided or key.layout is not strided or value.layout is not strided
            or query.is_nested or key.is_nested or value.is_nested):
        return False
    q, k, v = query.shape, key.shape, value.shape
    if len(q) != 4 or len(k) != 4 or k[:3] != v[:3] or len(v) != 4:
        return False
    H, Hk = q[1], k[1]
    return q[0] == k[0] and q[3] == k[3] and q[3] != 0 and (H == Hk or (enable_gqa and Hk > 0 and H % Hk == 0))


def _attend(query, key, value, is_causal, scale):
    return attention(query, key, value, None, None, None, None, None, None, scale, 0.0, -1, 0 if is_causal else -1,
                     True, 0.0)[0]


def _with_a_dim(query, key, scale):
    """Query and key of head dim 0 with one dim of zeros: all scores are 0, whatever the scale, which would be 1 / 0."""
    if query.shape[-1] != 0:
        return query, key, scale
    return F.pad(query, (0, 1)), F.pad(key, (0, 1)), 1.0


def _causal_bias(mask, L, S):
    """Whether PyTorch's CausalBias is aligned to the first key."""
    if (mask.seq_len_q, mask.seq_len_kv) != (L, S):
        raise Invalid(f"attn_mask is a CausalBias of {mask.seq_len_q} queries and {mask.seq_len_kv} keys, expected "
                      f"{L} and {S}, as query and key have")
    return mask.variant == CausalVariant.UPPER_LEFT


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor] = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
                                 enable_gqa: bool = False) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` on this engine, for tensors of the CPU or of
    a CUDA device (bfloat16 and float16, dims up to 256: docs/guide/gpu.md).

    query [..., L, E], key [..., S, E] and value [..., S, Ev] -> [..., L, Ev], in any number of leading dimensions that
    broadcast; float32, float16, bfloat16 or float64. Memory is linear in the lengths for every mask, dtype, Ev and
    dropout_p, forward and backward.

    attn_mask   boolean (True: visible) or additive; broadcasts to [..., L, S]. Read in place (with more than 4
                dimensions it may be copied). An additive mask gets its gradient too. Or one of PyTorch's causal biases
                (torch.nn.attention.bias); another subclass of Tensor is refused.
    dropout_p   of the weights. The seed is drawn from PyTorch's CPU generator: torch.manual_seed repeats it. Which
                weights are dropped is not PyTorch's choice.
    is_causal   query i sees keys 0 to i: aligned to the first key, as PyTorch's
    enable_gqa  fewer key and value heads (dimension -3), each read by a group of query heads, without repeating them

    A row that sees no key gives zeros and passes no gradient (before version 2.5 PyTorch gave NaN). Wrong arguments are
    ValueError or TypeError, and RuntimeError too, which PyTorch raises. It can be differentiated by torch.autograd,
    torch.func (grad, vjp, jacrev, jvp, jacfwd) and dual numbers, and works with torch.vmap, torch.compile, torch.export and
    checkpointing. Forward mode takes L x S memory. There is no second derivative.

    >>> out = attend.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> out.sum().backward()
    """
    is_causal, enable_gqa = flag(is_causal, "is_causal"), flag(enable_gqa, "enable_gqa")
    if attn_mask is None and dropout_p == 0 and _is_ready(query, key, value, enable_gqa):
        return _attend(query, key, value, is_causal, scale)
    causal = attn_mask if isinstance(attn_mask, CausalBias) else None
    if causal is not None:
        attn_mask = None
    elif attn_mask is not None:
        if not isinstance(attn_mask, torch.Tensor):
            raise WrongType(f"attn_mask is a {type(attn_mask).__name__}, expected a tensor")
        refuse_subclass("attn_mask", attn_mask)
    if isinstance(query, torch.Tensor) and query.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(query.device.type):
        query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    check_tensors(gpu=True, query=query, key=key, value=value)
    rank = max(query.dim(), key.dim(), value.dim())
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise Invalid(f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions, expected "
                      "at least 2: length and dim")
    if key.shape[-1] != query.shape[-1] or value.shape[-2] != key.shape[-2]:
        raise Invalid(f"query is {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}, expected "
                      "[..., L, E], [..., S, E] and [..., S, Ev]")
    query, key, scale = _with_a_dim(query, key, scale)
    if not 0 <= dropout_p <= 1:
        raise Invalid(f"dropout_p is {dropout_p}, expected 0 to 1")
    if is_causal and (attn_mask is not None or causal is not None):
        raise Invalid("got both attn_mask and is_causal=True, expected one of them: put the causal rule in the mask")

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
    first_key = True
    if causal is not None:
        is_causal, first_key = True, _causal_bias(causal, L, S)
    if attn_mask is not None:
        if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            raise WrongType(f"attn_mask dtype is {attn_mask.dtype}, expected bool, float32 or that of query: "
                            f"{query.dtype}")
        check_device("attn_mask", attn_mask, "query", query)
        mask = _merged_mask(attn_mask, batch, heads, L, S, rank)
        visible, bias = (mask, None) if mask.dtype == torch.bool else (None, mask)
    seed = draw_seed() if dropout_p > 0 else None
    out, _ = attention(q, k, v, visible, bias, None, None, None, seed, scale, 0.0, -1, 0 if is_causal else -1,
                       first_key, float(dropout_p))
    return out if rank == 4 else out.reshape(*(batch + (heads,) if rank > 2 else ()), L, value.shape[-1])


_original = F.scaled_dot_product_attention
_lock = threading.Lock()
_depth = 0


_refusals = {}  # why a CUDA device cannot run the kernels, "" where it can; asked once for each


def _gpu_refusal(index):
    if index not in _refusals:
        if not torch.cuda.is_available():  # fake tensors: the operator checks the GPU when it runs
            return ""
        with torch.cuda.device(index):
            _refusals[index] = _core.gpu_why_not()
    return _refusals[index]


# torch.compile calls it while it traces and keeps the answer. (torch.compiler.assume_constant_result sets this too, but
# imports the whole compiler.)
_gpu_refusal._dynamo_marked_constant = True


def _fits_gpu(x):
    """What the GPU's kernels take, forward and backward: else PyTorch's own serves."""
    return (x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and x.shape[-1] <= 256 and x.shape[-1] % 8 == 0
            and not _gpu_refusal(x.device.index))


def _ours(x):
    return (isinstance(x, torch.Tensor) and (x.device.type == "cpu" or _fits_gpu(x)) and x.dtype in _DTYPES
            and x.layout is torch.strided and not x.is_nested and not _has_own_meaning(x))


def _our_mask(mask):
    return mask is None or isinstance(mask, CausalBias) or (isinstance(mask, torch.Tensor) and not _has_own_meaning(mask))


def _routed(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if (attn_mask is None and dropout_p == 0 and type(is_causal) is bool and type(enable_gqa) is bool
            and _is_ready(query, key, value, enable_gqa)
            and (query.is_cpu or (_fits_gpu(query) and _fits_gpu(value)))):
        return _attend(query, key, value, is_causal, scale)
    ours = _ours(query) and _ours(key) and _ours(value) and _our_mask(attn_mask)
    function = scaled_dot_product_attention if ours else _original
    return function(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


# TorchScript compiles no Python of this package: inside patched() it takes the function for this operator.
library.define("scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
                "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor")
library.impl("scaled_dot_product_attention", _routed, "CompositeImplicitAutograd")


@functools.lru_cache(maxsize=None)
def _register_with_torchscript():
    builtins, name = getattr(torch.jit, "_builtins", None), "attend::scaled_dot_product_attention"
    if getattr(builtins, "_builtin_table", None) is not None:
        builtins._register_builtin(_routed, name)
    elif hasattr(builtins, "_builtin_ops"):  # of which the table is built when it is needed
        builtins._builtin_ops.append((_routed, name))


class patched:
    """Within the block, ``torch.nn.functional.scaled_dot_product_attention`` is this engine's, for a whole model.

    PyTorch's own function still receives tensors on another device, of another dtype, sparse, nested or of a subclass, and
    arguments that are not tensors. The swap is for the process, not the thread; blocks may nest and overlap between threads,
    and the last one out restores PyTorch's. The block may be around a compiled function or inside it. What
    torch.jit.script compiles in the block calls this engine from then on. Modules that hold a reference of their own
    (``from torch.nn.functional import scaled_dot_product_attention``) and code that never calls the function (the fused
    inference path of nn.TransformerEncoderLayer) are not reached.

    >>> with attend.torch.patched():
    ...     loss = model(tokens).loss
    ...     loss.backward()
    """

    def __enter__(self) -> None:
        global _original, _depth
        if torch.compiler.is_compiling():  # the compiler follows the swap within its graph, but no lock
            self.outside = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = _routed
            return
        _register_with_torchscript()
        with _lock:
            if _depth == 0:
                _original, F.scaled_dot_product_attention = F.scaled_dot_product_attention, _routed
            _depth += 1

    def __exit__(self, *exception: object) -> None:
        global _depth
        if torch.compiler.is_compiling():
            F.scaled_dot_product_attention = self.outside
            return
        with _lock:
            _depth -= 1
            if _depth == 0:
                F.scaled_dot_product_attention = _original
