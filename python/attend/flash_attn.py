"""FlashAttention 2's functions: the same signatures and semantics over this engine, on the CPU and on a GPU.

>>> from attend.flash_attn import flash_attn_func
>>> out = flash_attn_func(q, k, v, causal=True)        # [batch, length, heads, dim]

What holds for all of them: layout [batch, length, heads, dim], or [total, heads, dim] packed; float32, float16,
bfloat16 or float64; fewer KV heads than query heads allowed; a causal rule, a window and ALiBi count from the last key
(with 2 queries and 5 keys, query 0 stands at key 3). `window_size` is (left, right), inclusive, -1 for unlimited.
Nothing is copied unless said so. `deterministic` is accepted and always true. A row that sees no key gives zeros and a
log-sum-exp of -inf (FlashAttention: +inf). Gradients reach q, k and v, from the output alone.
"""

from __future__ import annotations

import math
from typing import Optional, Tuple, Union

import torch
from torch import Tensor

from . import _core
from ._errors import InvalidArgument as Invalid
from ._errors import WrongType
from ._gpu_cache import with_gpu_cache
from ._torch_ops import (attention, core_options, is_differentiated, kept, new_outputs, run_forward, weights_op,
                         window_mask)
from ._whole import flag, whole
from .torch import check_device, check_tensors, draw_seed

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
]

Window = Tuple[int, int]
# With return_attn_probs: also the log-sum-exp and S_dmask.
Result = Union[Tensor, Tuple[Tensor, Tensor, Tensor]]


def _check_shapes(rank, q, k, v):
    check_tensors(gpu=True, q=q, k=k, v=v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != rank:
            layout = "[batch, length, heads, dim]" if rank == 4 else "[total, heads, dim]"
            raise Invalid(f"{name} has {x.dim()} dimensions, expected {rank}: {layout}")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1]:
        raise Invalid(f"q is {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}, expected q and k of one dim, "
                      "k and v of one length and number of heads")


def _part(x, name, index, count):
    if not isinstance(x, torch.Tensor):
        raise WrongType(f"{name} is a {type(x).__name__}, expected a tensor")
    if x.dim() < 3 or x.shape[index] != count:
        raise Invalid(f"{name} has shape {list(x.shape)}, expected {count} at dimension {index}")
    return x.unbind(index)


def _window(window_size, causal):
    if len(window_size) != 2:
        raise Invalid(f"window_size is {window_size}, expected (left, right), -1 for unlimited")
    left, right = window_size
    return whole(left, "window_size[0]"), 0 if flag(causal, "causal") else whole(right, "window_size[1]")


def _check_slopes(alibi_slopes, batch, heads, q):
    if alibi_slopes is None:
        return
    check_tensors(gpu=True, alibi_slopes=alibi_slopes)
    check_device("alibi_slopes", alibi_slopes, "q", q)
    if tuple(alibi_slopes.shape) not in ((heads,), (batch, heads)):
        raise Invalid(f"alibi_slopes has shape {list(alibi_slopes.shape)}, expected [{heads}] (heads) or [{batch}, "
                      f"{heads}] (batch, heads)")


def _check_dropout(dropout_p):
    if not 0 <= dropout_p < 1:
        raise Invalid(f"dropout_p is {dropout_p}, expected 0 or more and less than 1")
    return float(dropout_p)


def _detached(*tensors):
    return tuple(x.detach() for x in tensors)


def _attend(q, k, v, dropout, scale, window, softcap, slopes, return_attn_probs):
    """[batch, length, heads, dim] -> out, lse [batch, heads, length] and S_dmask or None."""
    seed = draw_seed() if dropout > 0 else None
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    options = None, None, slopes, None, None, seed, scale, float(softcap), *window, False, dropout
    out, lse = attention(q, k, v, *options)
    s_dmask = weights_op(*_detached(q, k, v), *options) if return_attn_probs else None
    return out.transpose(1, 2), lse, s_dmask


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                    causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Result:
    """Attention over q [batch, M, heads, dim] and k, v [batch, N, kv_heads, dim].

    With return_attn_probs: (out, softmax_lse [batch, heads, M], S_dmask [batch, heads, M, N]). S_dmask holds the
    weights in float32 (float64 for float64), without the 1 / (1 - dropout_p), negated where dropout took them;
    FlashAttention gives it when dropout_p > 0 only, here it is always there. It takes M x N memory.

    >>> out = flash_attn_func(q, k, v, causal=True, window_size=(1023, 0))
    """
    return_attn_probs = flag(return_attn_probs, "return_attn_probs")
    _check_shapes(4, q, k, v)
    _check_slopes(alibi_slopes, q.shape[0], q.shape[2], q)
    result = _attend(q, k, v, _check_dropout(dropout_p), softmax_scale, _window(window_size, causal), softcap,
                     alibi_slopes, return_attn_probs)
    return result if return_attn_probs else result[0]


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                             causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Result:
    """flash_attn_func with k and v in one tensor [batch, N, 2, kv_heads, dim].

    >>> out = flash_attn_kvpacked_func(q, kv, causal=True)
    """
    k, v = _part(kv, "kv", -3, 2)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                           return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                              causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Result:
    """flash_attn_func with q, k and v in one tensor [batch, length, 3, heads, dim].

    >>> out = flash_attn_qkvpacked_func(qkv, causal=True)
    """
    q, k, v = _part(qkv, "qkv", -3, 3)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                           return_attn_probs)


# --- packed documents -------------------------------------------------------------------------------------------------


def _check_cumulative(x, name, q):
    if not isinstance(x, torch.Tensor):
        raise WrongType(f"{name} is a {type(x).__name__}, expected an int32 tensor")
    if x.dtype not in (torch.int32, torch.int64) or x.dim() != 1 or x.shape[0] < 1:
        raise Invalid(f"{name} is {x.dtype} of shape {list(x.shape)}, expected int32 [sequences + 1]")
    if isinstance(q, torch.Tensor):
        check_device(name, x, "q", q)


def _document_ends(q, k, cu_q, cu_k):
    q_ends, k_ends = cu_q.tolist(), cu_k.tolist()
    _core.segments(q_ends, k_ends)  # checks that they start at 0 and never fall
    if q_ends[-1] > q.shape[0] or k_ends[-1] > k.shape[0]:
        raise Invalid(f"cu_seqlens end at {q_ends[-1]} queries and {k_ends[-1]} keys, expected at most "
                      f"{q.shape[0]} and {k.shape[0]}, the packed lengths")
    return list(zip(q_ends, q_ends[1:], k_ends, k_ends[1:]))


def _each_document(q, k, v, cu_q, cu_k, dropout, scale, window, softcap, slopes, return_attn_probs):
    """One call per document, each with its own slopes, weights and dropout seed."""
    outs, lses, weights = [], [], []
    for s, (q0, q1, k0, k1) in enumerate(_document_ends(q, k, cu_q, cu_k)):
        out, lse, s_dmask = _attend(q[None, q0:q1], k[None, k0:k1], v[None, k0:k1], dropout, scale, window, softcap,
                                    slopes[s], return_attn_probs)
        outs.append(out[0]), lses.append(lse[0]), weights.append(s_dmask)
    left = q.shape[0] - sum(x.shape[0] for x in outs)
    outs.append(q.new_zeros((left, q.shape[1], v.shape[2])))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    lses.append(q.new_full((q.shape[1], left), float("-inf"), dtype=wide))
    return torch.cat(outs), torch.cat(lses, 1), weights


def _document_weights(q, k, v, cu_q, cu_k, seed, dropout, scale, window, softcap, slopes):
    """S_dmask of each document, with what one seed drops of the whole pack."""
    weights = []
    for q0, q1, k0, k1 in _document_ends(q, k, cu_q, cu_k):
        heads_first = (x.transpose(0, 1)[None] for x in _detached(q[q0:q1], k[k0:k1], v[k0:k1]))
        w = weights_op(*heads_first, None, None, slopes, None, None, None, scale, float(softcap), *window, False, 0.0)
        if dropout > 0:
            w = torch.where(kept(seed, dropout, *w.shape, q0, k0), w, -w)
        weights.append(w)
    return weights


def _stacked_weights(weights, heads, longest_q, longest_k):
    if not weights:
        return torch.zeros((0, heads, longest_q, longest_k), device="cpu")
    longest_q, longest_k = (max(n, *(w.shape[d] for w in weights)) for n, d in ((longest_q, 2), (longest_k, 3)))
    result = weights[0].new_zeros((len(weights), heads, longest_q, longest_k))
    for s, w in enumerate(weights):
        result[s, :, : w.shape[2], : w.shape[3]] = w[0]
    return result


def _packed_pages(k, v, cu_seqlens_k, block_table):
    """Paged keys and values [pages, page_size, kv_heads, dim], copied together document after document."""
    ends = cu_seqlens_k.tolist()
    lengths = [b - a for a, b in zip(ends, ends[1:])]
    pages = _checked_pages(block_table, len(lengths), lengths, k.shape[:2])
    take = lambda x: torch.cat([x[:0].flatten(0, 1)] + [  # noqa: E731
        x[pages[s, : -(-n // x.shape[1])]].flatten(0, 1)[:n] for s, n in enumerate(lengths)])
    return take(k), take(v)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: Optional[float] = None, causal: bool = False, window_size: Window = (-1, -1),
                           softcap: float = 0.0, alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Optional[Tensor] = None) -> Result:
    """Documents of different lengths, packed one after another: q [total_q, heads, dim], k and v [total_k, kv_heads,
    dim].

    cu_seqlens_q and cu_seqlens_k are the cumulative lengths, [documents + 1], starting at 0. Causal rule, window and
    ALiBi count within each document. The whole pack is one call of the engine; slopes per document, [documents, heads],
    take one call each. Queries past the last document give zeros.

    With return_attn_probs: (out, softmax_lse [heads, total_q], S_dmask [documents, heads, max_seqlen_q, max_seqlen_k]),
    S_dmask as in flash_attn_func and 0 beyond a document's lengths. With a block_table [documents, pages], k and v are
    pages [pages, page_size, kv_heads, dim], which are copied together first.

    >>> out = flash_attn_varlen_func(q, k, v, cu, cu, 512, 512, causal=True)
    """
    return_attn_probs = flag(return_attn_probs, "return_attn_probs")
    _check_cumulative(cu_seqlens_q, "cu_seqlens_q", q)
    _check_cumulative(cu_seqlens_k, "cu_seqlens_k", q)
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise Invalid(f"cu_seqlens_q has {cu_seqlens_q.shape[0]} numbers and cu_seqlens_k {cu_seqlens_k.shape[0]}, "
                      "expected as many")
    if block_table is not None:
        _check_shapes(4, q[None], k, v)
        k, v = _packed_pages(k, v, cu_seqlens_k, block_table)
    _check_shapes(3, q, k, v)
    documents = cu_seqlens_q.shape[0] - 1
    _check_slopes(alibi_slopes, documents, q.shape[1], q)
    dropout, window = _check_dropout(dropout_p), _window(window_size, causal)
    numbers = softmax_scale, window, softcap, alibi_slopes
    if alibi_slopes is not None and alibi_slopes.dim() == 2:
        out, lse, weights = _each_document(q, k, v, cu_seqlens_q, cu_seqlens_k, dropout, *numbers, return_attn_probs)
    else:
        seed = draw_seed() if dropout > 0 else None
        # The mask's lists are the host's: one copy serves forward and backward.
        out, lse = attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), None, None, alibi_slopes, cu_seqlens_q.cpu(),
                             cu_seqlens_k.cpu(), seed, softmax_scale, float(softcap), *window, False, dropout)
        out, lse = out[0].transpose(0, 1), lse[0]
        if return_attn_probs:
            weights = _document_weights(q, k, v, cu_seqlens_q, cu_seqlens_k, seed, dropout, *numbers)
    if not return_attn_probs:
        return out
    longest = whole(max_seqlen_q, "max_seqlen_q"), whole(max_seqlen_k, "max_seqlen_k")
    return out, lse, _stacked_weights(weights, q.shape[1], *longest)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: Optional[float] = None, causal: bool = False,
                                    window_size: Window = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Result:
    """flash_attn_varlen_func with k and v in one tensor [total_k, 2, kv_heads, dim].

    >>> out = flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, 512, 512)
    """
    k, v = _part(kv, "kv", -3, 2)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: Optional[float] = None, causal: bool = False,
                                     window_size: Window = (-1, -1), softcap: float = 0.0,
                                     alibi_slopes: Optional[Tensor] = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Result:
    """flash_attn_varlen_func with q, k and v in one tensor [total, 3, heads, dim].

    >>> out = flash_attn_varlen_qkvpacked_func(qkv, cu, 512, causal=True)
    """
    q, k, v = _part(qkv, "qkv", -3, 3)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale,
                                  causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


# --- the cache --------------------------------------------------------------------------------------------------------


def _per_sequence(x, name, batch, default):
    """One whole number per sequence, as a list."""
    if x is None:
        return [default] * batch
    if isinstance(x, int):
        return [x] * batch
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64) or tuple(x.shape) != (batch,):
        got = f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise Invalid(f"{name} is {got}, expected int32 [{batch}] (batch)")
    return x.tolist()


def _checked_pages(block_table, batch, lengths, pool):
    """The page numbers in use as int64, 0 where none is needed."""
    pages, size = pool
    if (not isinstance(block_table, torch.Tensor) or block_table.dtype not in (torch.int32, torch.int64)
            or block_table.dim() != 2 or block_table.shape[0] != batch):
        got = list(block_table.shape) if isinstance(block_table, torch.Tensor) else type(block_table).__name__
        raise Invalid(f"block_table is {got}, expected an int32 tensor [{batch}, pages per sequence]")
    if size < 1:
        raise Invalid("the pages hold 0 tokens each, expected at least 1")
    needed = torch.tensor([-(-n // size) for n in lengths], dtype=torch.int64, device="cpu")
    most = int(needed.max()) if batch else 0
    if most > block_table.shape[1]:
        raise Invalid(f"block_table has {block_table.shape[1]} pages per sequence, expected {most} for "
                      f"{max(lengths)} tokens in pages of {size}")
    used = torch.arange(block_table.shape[1], device="cpu") < needed[:, None]
    table = torch.where(used, block_table.to(torch.int64), 0)
    if bool(((table < 0) | (table >= pages))[used].any()):
        raise Invalid(f"block_table names a page that does not exist, expected 0 to {pages - 1}")
    return table[:, :most]


class _Rows:
    """Where sequence b's tokens lie: in a row of the cache, or in pages."""

    def __init__(self, k_cache, v_cache, batch, lengths, cache_batch_idx, block_table):
        self.k, self.v, self.lengths, self.longest = k_cache, v_cache, lengths, max(lengths, default=0)
        self.rows = self.pages = None
        if block_table is not None:
            if cache_batch_idx is not None:
                raise Invalid("got both block_table and cache_batch_idx, expected one of them")
            self.pages = _checked_pages(block_table, batch, lengths, k_cache.shape[:2])
            return
        if self.longest > k_cache.shape[1]:
            raise Invalid(f"a sequence has {self.longest} tokens with the new ones, the cache holds "
                          f"{k_cache.shape[1]}")
        if cache_batch_idx is None:
            if k_cache.shape[0] != batch:
                raise Invalid(f"the cache holds {k_cache.shape[0]} sequences, expected {batch} (the batch of q), or "
                              "say which with cache_batch_idx")
            return
        self.rows = _per_sequence(cache_batch_idx, "cache_batch_idx", batch, 0)
        if any(not 0 <= row < k_cache.shape[0] for row in self.rows):
            raise Invalid(f"cache_batch_idx names a row that does not exist, expected 0 to {k_cache.shape[0] - 1}")

    def append(self, starts, k, v):
        """Writes [batch, new, kv_heads, dim] at `starts` of each sequence."""
        at = (torch.tensor(starts, dtype=torch.int64, device="cpu")[:, None]
              + torch.arange(k.shape[1], device="cpu"))
        if self.pages is not None:
            size = self.k.shape[1]
            where = self.pages.gather(1, at // size), at % size
        else:
            where = torch.tensor(self.rows or range(len(starts)), dtype=torch.int64, device="cpu")[:, None], at
        self.k[where], self.v[where] = k, v

    def batches(self):
        """(sequences, k, v): everything at once where strides can say it."""
        if self.pages is not None:
            yield slice(None), *(x[self.pages].flatten(1, 2)[:, : self.longest] for x in (self.k, self.v))
        elif self.rows is None:
            yield slice(None), self.k[:, : self.longest], self.v[:, : self.longest]
        else:
            for b, row in enumerate(self.rows):
                n = self.lengths[b]
                yield slice(b, b + 1), self.k[row : row + 1, :n], self.v[row : row + 1, :n]


def _rotated(x, cos, sin, positions, interleaved):
    """x [batch, length, heads, dim] turned at `positions` [batch, length]."""
    half = cos.shape[1]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    c, s = (t[positions].to(wide)[:, :, None] for t in (cos, sin))
    turned = x[..., : 2 * half].to(c.dtype)
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    parts = (first * c - second * s, first * s + second * c)
    turned = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)


def _check_rotary(cos, sin, q, last_position):
    if cos is None or sin is None:
        raise Invalid("got one of rotary_cos and rotary_sin, expected both")
    check_tensors(gpu=True, rotary_cos=cos, rotary_sin=sin)
    check_device("rotary_cos", cos, "q", q)
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > q.shape[3]:
        raise Invalid(f"rotary_cos is {list(cos.shape)} and rotary_sin {list(sin.shape)}, expected [positions, "
                      f"rotary_dim / 2] both, rotary_dim at most {q.shape[3]}")
    if last_position >= cos.shape[0]:
        raise Invalid(f"rotary_cos has {cos.shape[0]} positions, expected at least {last_position + 1}")


def _check_new(q, k, v, k_cache, v_cache, cache_seqlens):
    if k is None or v is None:
        raise Invalid("got one of k and v, expected both")
    if cache_seqlens is None:
        raise Invalid("got k and v but no cache_seqlens, expected the lengths at which to append them")
    check_tensors(gpu=True, q=q, k=k, v=v)
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        expected = (q.shape[0], k.shape[1] if k.dim() == 4 else None, *cache.shape[2:])
        if tuple(x.shape) != expected:
            raise Invalid(f"{name} has shape {list(x.shape)}, expected [batch, new, kv_heads, dim] = {expected}")


def _check_scores(q, k_cache, v_cache, scale, softcap):
    """What the engine would refuse too, but after the cache has changed."""
    H, Hk = q.shape[2], k_cache.shape[2]
    if Hk < 1 or H < 1 or H % Hk or q.shape[3] < 1 or v_cache.shape[3] < 1:
        raise Invalid(f"q is {list(q.shape)} and the cache {list(k_cache.shape)}, expected a whole number of query "
                      "heads for each KV head and a dim of at least 1")
    if not (math.isfinite(softcap) and softcap >= 0 and math.isfinite(1.0 if scale is None else scale)):
        raise Invalid(f"softcap is {softcap} and softmax_scale {scale}, expected finite numbers, softcap 0 or more")


def _turned(q, k, cos, sin, begin, follows, interleaved):
    """q and k with their rotary positions from `begin` [batch] on; q all at its beginning unless it `follows`."""
    M, new = q.shape[1], k.shape[1]
    _check_rotary(cos, sin, q, max(begin.tolist(), default=0) + max(new, M if follows else 1) - 1)
    after = lambda count: begin[:, None] + torch.arange(count, device="cpu")  # noqa: E731
    return (_rotated(q, cos, sin, after(M) if follows else after(1).expand(-1, M), interleaved),
            _rotated(k, cos, sin, after(new), interleaved))


@torch.library.custom_op("attend::attention_rows", mutates_args=(), device_types="cpu", schema=(
    "(Tensor q, Tensor k, Tensor v, Tensor? slopes, int[] lengths, int[] pads, float? scale, float softcap, int left, "
    "int right) -> (Tensor, Tensor)"))
def _rows_op(q, k, v, slopes, lengths, pads, scale, softcap, left, right):
    """Keys pads[b] to lengths[b] of each row; the last query stands at the last of them."""
    diagonal = _core.Diagonal.at([n - q.shape[2] for n in lengths])
    mask = window_mask(left, right, diagonal) & _core.padding(lengths) & _core.left_padding(pads)
    return run_forward(q, k, v, core_options(mask, diagonal, scale, softcap, slopes=slopes))


@_rows_op.register_fake
def _(q, k, v, *rest):
    return new_outputs(q, v)


def _attend_rows(q, rows, pads, alibi_slopes, *numbers):
    """out [batch, M, heads, dim] and lse [batch, heads, M] over the tokens of each row."""
    if not q.shape[0]:
        return q.new_empty((*q.shape[:3], rows.v.shape[3])), q.new_empty((0, q.shape[2], q.shape[1]))
    results = []
    for part, keys, values in rows.batches():
        slopes = alibi_slopes[part] if alibi_slopes is not None and alibi_slopes.dim() == 2 else alibi_slopes
        results.append(_rows_op(*(x.detach().transpose(1, 2) for x in (q[part], keys, values)), slopes,
                                rows.lengths[part], pads[part], *numbers))
    out, lse = results[0] if len(results) == 1 else (torch.cat(parts) for parts in zip(*results))
    return out.transpose(1, 2), lse


def _on_gpu(q, k_cache, v_cache, k, v, cos, sin, cache_seqlens, cache_batch_idx, block_table, scale, causal,
            window_size, softcap, interleaved, slopes, k_descale, v_descale, stream):
    """out [batch, M, heads, dim] and lse [batch, heads, M]; lengths and tables are not looked at here."""
    if q.dim() != 4:
        raise Invalid(f"q has {q.dim()} dimensions, expected 4: [batch, length, heads, dim]")
    if block_table is not None and cache_batch_idx is not None:
        raise Invalid("got both block_table and cache_batch_idx, expected one of them")
    if block_table is not None and cache_seqlens is None:
        raise Invalid("got a block_table but no cache_seqlens, expected the length of each sequence")
    if any(is_differentiated(x) for x in (q, k_cache, v_cache, k, v)):
        raise Invalid("a tensor needs a gradient, which flash_attn_with_kvcache does not record: call it under "
                      "torch.no_grad(), or use flash_attn_func")
    _check_slopes(slopes, q.shape[0], q.shape[2], q)
    left, right = _window(window_size, causal)
    if k is not None or v is not None:
        _check_new(q, k, v, k_cache, v_cache, cache_seqlens)
        _check_scores(q, k_cache, v_cache, scale, softcap)
    if (cos is not None or sin is not None) and k is None:
        raise Invalid("got rotary_cos but no k and v, expected new keys to turn")

    def turned(q, k, lengths):
        if cos is None and sin is None:
            return q, k
        _check_rotary(cos, sin, q, 0)
        M, begin, last = q.shape[1], lengths.long()[:, None].clamp(min=0), cos.shape[0] - 1
        after = lambda count: (begin + torch.arange(count, device=q.device)).clamp(max=last)  # noqa: E731
        follows = left >= 0 or right >= 0
        return (_rotated(q, cos, sin, after(M) if follows else after(1).expand(-1, M), interleaved),
                _rotated(k, cos, sin, after(k.shape[1]), interleaved))

    return with_gpu_cache(q, k_cache, v_cache, k, v, turned, cache_seqlens, cache_batch_idx, block_table, slopes,
                          (scale, float(softcap), left, right), k_descale, v_descale, stream)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor] = None,
                            v: Optional[Tensor] = None, rotary_cos: Optional[Tensor] = None,
                            rotary_sin: Optional[Tensor] = None, cache_seqlens: Union[int, Tensor, None] = None,
                            cache_batch_idx: Optional[Tensor] = None, cache_leftpad: Optional[Tensor] = None,
                            block_table: Optional[Tensor] = None, softmax_scale: Optional[float] = None,
                            causal: bool = False, window_size: Window = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Optional[Tensor] = None,
                            num_splits: int = 0, return_softmax_lse: bool = False,
                            k_descale: Optional[Tensor] = None,
                            v_descale: Optional[Tensor] = None) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Appends k and v to the cache, in place, and attends to all of it: the step of a decoder.

    q [batch, M, heads, dim]; k_cache and v_cache [rows, capacity, kv_heads, dim], or pages [pages, page_size, kv_heads,
    dim] with a block_table [batch, pages per sequence].

    k, v             [batch, new, kv_heads, dim], written at cache_seqlens
    rotary_cos, rotary_sin   [positions, rotary_dim / 2]: k turns at its place in the cache, cache_seqlens,
                     cache_seqlens + 1, ..., whatever cache_leftpad is; q too if causal or with a window, else all of q
                     at cache_seqlens. Pairs (2i, 2i + 1), or halves if not rotary_interleaved
    cache_seqlens    tokens in the cache before this call: an int or [batch]; by default the capacity
    cache_batch_idx  [batch]: the cache row of each sequence. Nothing is copied; one engine call per sequence
    cache_leftpad    [batch]: tokens at the start of a row that do not count
    causal           the last query of each sequence stands at its last token
    block_table      the pages in use are copied together for the call
    num_splits       accepted; the engine splits long caches by itself, the same way for every batch

    On a GPU the pages are read where they lie (page_size a multiple of 16), lengths and block_table are read by the
    kernels, and nothing waits: a captured graph sees what they hold when it runs. So a length beyond the capacity is
    cut to it, a page that does not exist counts as zeros and is not written, and a rotary position past the last one is
    the last. k_cache and v_cache may be int8 or float8_e4m3fn, with k_descale and v_descale float32 [pages, page_size,
    kv_heads] (a scale for each row: new rows get theirs), [pages, kv_heads] or [kv_heads]. No cache_leftpad.

    Returns out, with return_softmax_lse (out, lse [batch, heads, M]). There is no gradient: tensors that need one are
    refused unless under torch.no_grad(). If an argument is wrong the cache is not changed.

    >>> out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)
    """
    rotary_interleaved = flag(rotary_interleaved, "rotary_interleaved")
    return_softmax_lse = flag(return_softmax_lse, "return_softmax_lse")
    if isinstance(q, torch.Tensor) and q.is_cuda:
        if cache_leftpad is not None:
            raise Invalid("cache_leftpad on a GPU is not supported yet")
        if q.device.index != torch.cuda.current_device():
            raise Invalid(f"q is on {q.device}, expected the current device, cuda:{torch.cuda.current_device()}: call it "
                          "within torch.cuda.device(q.device)")
        out, lse = _on_gpu(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
                           block_table, softmax_scale, causal, window_size, softcap, rotary_interleaved, alibi_slopes,
                           k_descale, v_descale, torch.cuda.current_stream(q.device).cuda_stream)
        return (out, lse) if return_softmax_lse else out
    if k_descale is not None or v_descale is not None:
        raise Invalid("got k_descale or v_descale for a cache on the CPU, expected none: PagedKvCache has int8 there")
    _check_shapes(4, q, k_cache, v_cache)
    B, H = q.shape[0], q.shape[2]
    if block_table is not None and cache_leftpad is not None:
        raise Invalid("got both block_table and cache_leftpad, expected one of them")
    if block_table is not None and cache_seqlens is None:
        raise Invalid("got a block_table but no cache_seqlens, expected the length of each sequence")
    _check_slopes(alibi_slopes, B, H, q)
    left, right = _window(window_size, causal)
    starts = _per_sequence(cache_seqlens, "cache_seqlens", B, k_cache.shape[1])
    pads = _per_sequence(cache_leftpad, "cache_leftpad", B, 0)
    if any(not 0 <= pad <= start for pad, start in zip(pads, starts)):
        raise Invalid(f"cache_seqlens is {starts} and cache_leftpad {pads}, expected 0 <= leftpad <= seqlen")
    new = 0
    if k is not None or v is not None:
        _check_new(q, k, v, k_cache, v_cache, cache_seqlens)
        new = k.shape[1]
    if any(is_differentiated(x) for x in (q, k_cache, v_cache, k, v)):
        raise Invalid("a tensor needs a gradient, which flash_attn_with_kvcache does not record: call it under "
                      "torch.no_grad(), or use flash_attn_func")
    lengths = [start + new for start in starts]
    rows = _Rows(k_cache, v_cache, B, lengths, cache_batch_idx, block_table)
    _check_scores(q, k_cache, v_cache, softmax_scale, softcap)
    if rotary_cos is not None or rotary_sin is not None:
        if k is None:
            raise Invalid("got rotary_cos but no k and v, expected new keys to turn")
        begin = torch.tensor(starts, dtype=torch.int64, device="cpu")
        follows = left >= 0 or right >= 0
        q, k = _turned(q, k, rotary_cos, rotary_sin, begin, follows, rotary_interleaved)
    if new:
        rows.append(starts, k, v)
    out, lse = _attend_rows(q, rows, pads, alibi_slopes, softmax_scale, float(softcap), left, right)
    return (out, lse) if return_softmax_lse else out
