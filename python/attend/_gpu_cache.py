"""flash_attn_with_kvcache for CUDA tensors. Lengths and tables stay on the GPU: nothing is copied to the host, nothing
waits, and a captured graph sees what they are when it runs."""

from __future__ import annotations

import torch

from . import _core
from ._errors import InvalidArgument as Invalid
from ._errors import WrongType
from ._torch_ops import core_options, laid_for_gpu, new_outputs, window_mask
from .torch import check_tensors

FORMATS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


def _whole_numbers(x, name, shape, q):
    """int32 on q's device, [batch] or [batch, pages]."""
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64) or x.dim() != len(shape) or any(
            n is not None and n != m for n, m in zip(shape, x.shape)):
        got = f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        shown = ", ".join("pages per sequence" if n is None else str(n) for n in shape)
        raise Invalid(f"{name} is {got}, expected int32 [{shown}]")
    if x.device != q.device:
        raise Invalid(f"{name} is on {x.device}, expected {q.device}, where q is: the kernels read it there")
    x = x.to(torch.int32)
    apart = x.dim() == 1 or x.shape[0] <= 1 or x.stride(0) >= x.shape[1]  # not so in an expanded table
    return x if apart and (x.stride(-1) == 1 or x.shape[-1] <= 1) else x.contiguous()


def _lengths(cache_seqlens, q):
    if cache_seqlens is None:
        return None
    if isinstance(cache_seqlens, int):
        return torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    return _whole_numbers(cache_seqlens, "cache_seqlens", (q.shape[0],), q).contiguous()


def _check_cache(name, cache, q, dtype):
    if not isinstance(cache, torch.Tensor):
        raise WrongType(f"{name} is a {type(cache).__name__}, expected a tensor")
    if cache.device != q.device:
        raise Invalid(f"{name} is on {cache.device}, expected {q.device}, where q is")
    if cache.dim() != 4:
        raise Invalid(f"{name} has {cache.dim()} dimensions, expected 4: [rows or pages, tokens, heads, dim]")
    if cache.dtype != dtype or (dtype != q.dtype and dtype not in FORMATS):
        raise WrongType(f"{name} dtype is {cache.dtype}, expected {q.dtype} as q, int8 or float8_e4m3fn, k_cache and "
                        "v_cache the same")


def _scales(x, name, cache):
    """[pages, heads, tokens, 1] of those of each row, of each page and head, or of each head."""
    if x is None:
        return None
    pages, tokens, heads, _ = cache.shape
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32 or x.device != cache.device:
        raise WrongType(f"{name} is not a float32 tensor on {cache.device}, where the cache is")
    if cache.dtype not in FORMATS:
        raise Invalid(f"got {name} for a cache of {cache.dtype}, expected one of int8 or float8_e4m3fn")
    if tuple(x.shape) == (heads,):
        return x.view(1, heads, 1, 1)
    if tuple(x.shape) == (pages, heads):
        return x[:, :, None, None]
    if tuple(x.shape) == (pages, tokens, heads):
        return x.permute(0, 2, 1)[..., None]
    raise Invalid(f"{name} has shape {list(x.shape)}, expected [{heads}] (heads), [{pages}, {heads}] or [{pages}, "
                  f"{tokens}, {heads}] (a scale for each row)")


def _side(cache):
    by_head = cache.transpose(1, 2)
    return _core.GpuCacheSide(cache.data_ptr(), tuple(by_head.shape), tuple(by_head.stride()))


class _Cache:
    """The tensors of a cache, which stay alive as long as it does."""

    def __init__(self, q, k_cache, v_cache, k_descale, v_descale, cache_batch_idx, block_table):
        _check_cache("k_cache", k_cache, q, k_cache.dtype if isinstance(k_cache, torch.Tensor) else q.dtype)
        _check_cache("v_cache", v_cache, q, k_cache.dtype)
        fits = k_cache.shape[3] == q.shape[3] <= 256 and v_cache.shape[3] <= 256
        if not fits or k_cache.shape[:3] != v_cache.shape[:3]:
            raise Invalid(f"q is {list(q.shape)}, k_cache {list(k_cache.shape)} and v_cache {list(v_cache.shape)}, "
                          "expected q and k_cache of one dim, the caches of one size but for it, dims up to 256")
        if k_cache.dtype == torch.int8 and (k_descale is None or v_descale is None):
            raise Invalid("an int8 cache came without k_descale and v_descale, expected float32 [pages, tokens, heads]")
        self.tensors = k_cache, v_cache
        self.scales = _scales(k_descale, "k_descale", k_cache), _scales(v_descale, "v_descale", v_cache)
        self.table = None
        if block_table is not None:
            self.table = _whole_numbers(block_table, "block_table", (q.shape[0], None), q)
        elif cache_batch_idx is not None:  # a page for each sequence
            self.table = _whole_numbers(cache_batch_idx, "cache_batch_idx", (q.shape[0],), q)[:, None]

    def at(self, lengths):
        width, step = (0, 0) if self.table is None else (self.table.shape[1], self.table.stride(0))
        return _core.GpuCache(FORMATS.get(self.tensors[0].dtype, "plain"), *map(_side, self.tensors), *self.scales,
                              0 if lengths is None else lengths.data_ptr(),
                              0 if self.table is None else self.table.data_ptr(), width, max(step, width))


def with_gpu_cache(q, k_cache, v_cache, k, v, turned, cache_seqlens, cache_batch_idx, block_table, slopes, numbers,
                   k_descale, v_descale, stream):
    """out [batch, M, heads, dim] and lse. `turned`: q and k at their rotary positions, from the lengths before."""
    check_tensors(gpu=True, q=q)
    scale, softcap, left, right = numbers
    cache = _Cache(q, k_cache, v_cache, k_descale, v_descale, cache_batch_idx, block_table)
    lengths = _lengths(cache_seqlens, q)
    if k is not None:
        if lengths is None:
            raise Invalid("got k and v but no cache_seqlens, expected the lengths at which to append them")
        check_tensors(gpu=True, q=q, k=k, v=v)
        q, k = turned(q, k, lengths)
        cache.at(lengths).append(k.transpose(1, 2), v.transpose(1, 2), True, stream)
        lengths = lengths + k.shape[1]
    diagonal = _core.Diagonal.last_key()
    options = core_options(window_mask(left, right, diagonal), diagonal, scale, softcap, slopes=slopes)
    q = laid_for_gpu(q.transpose(1, 2))
    out, lse = new_outputs(q, v_cache)
    cache.at(lengths).attention(q, out, lse[..., None], options.core, stream)
    return out.transpose(1, 2), lse
