"""Keys and values of running sequences in pages of 64 tokens, kept the way the kernels read them."""

from __future__ import annotations

from typing import Any, Callable, Optional

from . import _core
from ._arrays import finish
from ._attention import _inputs, _new_results, score_options
from ._observers import Tile, _filled_by, _sums
from ._whole import whole, wholes
from .masks import Mask, _ints


class PagedKvCache:
    """A pool of pages and the sequences that hold them; sequences that fork share pages.

    pages      how many, of PagedKvCache.page_tokens tokens each, for all sequences together
    value_dim  key_dim by default
    dtype      of q, k and v: "f32", "bf16" or "f16"
    int8       keys and values as int8 with a scale for each token, head and side: half the memory of bf16, each number
               off by at most 1/254 of the largest in its row

    An append that does not fit raises attend.OutOfPages and changes nothing. Calls that change the cache must come
    alone: one that meets another at work raises RuntimeError.

    >>> cache = attend.PagedKvCache(pages=16, kv_heads=2, key_dim=8)
    >>> sequence = cache.add()
    >>> cache.append(sequence, k, v)
    >>> out = attend.paged_attention(q, cache, [sequence], attend.causal())
    """

    page_tokens = 64
    split_tokens = 512  # forgetting a multiple of so many tokens at the front keeps every bit

    def __init__(self, pages: int, kv_heads: int, key_dim: int, value_dim: Optional[int] = None, *, dtype: str = "f32",
                 int8: bool = False) -> None:
        value_dim = key_dim if value_dim is None else value_dim
        self.dtype, self.int8 = dtype, bool(int8)
        self.pages, self.kv_heads, self.key_dim, self.value_dim = wholes(
            pages=pages, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim)
        self._core = _core.PagedKvCache(dtype, self.kv_heads, self.key_dim, self.value_dim, self.pages, self.int8)

    @property
    def bytes(self) -> int:
        """Of all pages."""
        return self._core.bytes

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all heads."""
        return self._core.bytes_per_token

    @property
    def free_pages(self) -> int:
        return self._core.free_pages

    def add(self) -> int:
        """A new, empty sequence; its number.

        >>> sequence = attend.PagedKvCache(pages=1, kv_heads=1, key_dim=8).add()
        """
        return self._core.add()

    def fork(self, sequence: int, length: int) -> int:
        """A new sequence that begins with the first ``length`` tokens of another; its number. Whole pages are shared, a
        part of one is copied.

        >>> cache = attend.PagedKvCache(pages=1, kv_heads=1, key_dim=8)
        >>> again = cache.fork(cache.add(), 0)
        """
        return self._core.fork(whole(sequence, "sequence"), whole(length, "length"))

    def remove(self, sequence: int) -> None:
        """Forgets a sequence; pages that no other holds are free again."""
        self._core.remove(whole(sequence, "sequence"))

    def length(self, sequence: int) -> int:
        """The number of its tokens."""
        return self._core.length(whole(sequence, "sequence"))

    def append(self, sequence: int, k: Any, v: Any, *, layout: str = "bhld") -> None:
        """Adds tokens: k [1, kv_heads, tokens, key_dim], v [1, kv_heads, tokens, value_dim]."""
        order, a = _inputs(layout, k=k, v=v)
        self._core.append(whole(sequence, "sequence"), a["k"].view(order), a["v"].view(order))

    def replace(self, sequence: int, at: int, k: Any, v: Any, *, layout: str = "bhld") -> None:
        """Writes other keys and values over those of tokens [at, at + tokens)."""
        order, a = _inputs(layout, k=k, v=v)
        self._core.replace(whole(sequence, "sequence"), whole(at, "at"), a["k"].view(order), a["v"].view(order))

    def pages_to_append(self, sequence: int, count: int) -> int:
        """How many pages an append of ``count`` tokens would take."""
        return self._core.pages_to_append(whole(sequence, "sequence"), whole(count, "count"))

    def truncate(self, sequence: int, length: int) -> None:
        """Forgets the tokens from ``length`` on."""
        self._core.truncate(whole(sequence, "sequence"), whole(length, "length"))

    def forget(self, sequence: int, first: int, count: int) -> None:
        """Forgets the whole pages that hold tokens [first, first + count); those behind move up."""
        self._core.forget(whole(sequence, "sequence"), whole(first, "first"), whole(count, "count"))


def paged_attention(q: Any, cache: PagedKvCache, sequences: Any, mask: Optional[Mask] = None, *,
                    values: Optional[Callable[[int, Tile], Any]] = None, count: int = 0, layout: str = "bhld",
                    return_lse: bool = False, **options: Any) -> Any:
    """Attention over cached keys: q [batch, heads, queries, dim], batch b reading sequences[b].

    Keys past a sequence's end are hidden, and diagonals count from its own end. Results have the bits of attention over
    the same keys (not with int8). Options are those of attention. With ``values`` and ``count`` the sums of
    attention_row_sums come last.

    >>> cache = attend.PagedKvCache(pages=16, kv_heads=2, key_dim=8)
    >>> sequence = cache.add()
    >>> cache.append(sequence, k, v)
    >>> out, lse = attend.paged_attention(q, cache, [sequence], attend.causal(), return_lse=True)
    """
    if not isinstance(cache, PagedKvCache):
        raise TypeError(f"cache is a {type(cache).__name__}, expected an attend.PagedKvCache")
    held = score_options(mask, **options)
    order, a = _inputs(layout, q=q)
    kind = a["q"].kind
    out, out_view, lse, lse_view = _new_results(a["q"], cache.value_dim, order, return_lse)
    rows = [a["q"].shape[axis] for axis in order[:3]]
    sums, sums_array = (None, None) if values is None else _sums(count, rows)
    cache._core.attention(a["q"].view(order), _ints(sequences, "sequences"), out_view, held.core, lse_view,
                          None if values is None else sums_array.view(), None if values is None else _filled_by(values))
    result = (finish(kind, out),) + ((finish(kind, lse),) if return_lse else ()) + (() if values is None else (sums,))
    return result if len(result) > 1 else result[0]
