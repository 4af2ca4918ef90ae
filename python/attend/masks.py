"""Masks are small values that say which keys a query may see; ``&``, ``|`` and ``~`` compose them."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from . import _core
from ._whole import whole, wholes

UNLIMITED = -1
_LAST_KEY, _FIRST_KEY = _core.Diagonal.last_key(), _core.Diagonal.first_key()


class Mask:
    """Which keys a query may see. Made by the functions of this module; ``a & b`` allows what both allow,
    ``a | b`` what one of them does, ``~a`` what a does not.

    >>> import attend
    >>> mask = attend.window(1023, 0) & attend.padding([700, 1000])
    """

    __slots__ = ("_core", "_made", "_alone")

    def __init__(self, core: _core.Mask, name: str, parts: tuple) -> None:
        self._core = core
        self._made = name, parts  # for pickle and copies; it also keeps alive what the engine reads in place
        self._alone = None  # the options of a call that has no others: made by the first one

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(self._core & other._core, "both", (self, other))

    def __or__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(_core.either(self._core, other._core), "either", (self, other))

    def __invert__(self) -> Mask:
        return Mask(_core.hidden(self._core), "hidden", (self,))

    def __reduce__(self) -> Any:
        return _remade, self._made


def rule(name: str, *parts: Any) -> Mask:
    """The mask that the engine's function of that name makes of plain numbers."""
    return Mask(getattr(_core, name)(*parts), name, parts)


def _remade(name, parts):
    if name == "both":
        return parts[0] & parts[1]
    if name == "either":
        return parts[0] | parts[1]
    if name == "hidden":
        return ~parts[0]
    return dense(*parts) if name == "dense" else rule(name, *parts)


def _ints(values, name):
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} is {array.dtype}, expected whole numbers")
    if array.ndim > 1:
        raise ValueError(f"{name} has {array.ndim} dimensions, expected one number or a list of them")
    return [int(x) for x in array.reshape(-1)]


def diagonal(align: str = "last_key", offsets: Any = None) -> _core.Diagonal:
    """Where queries stand among the keys: "last_key" (the last query at the last key), "first_key" (query i at key i),
    or the position of query 0 outright, one offset per sequence or one for all."""
    if offsets is not None:
        return _core.Diagonal.at(_ints(offsets, "offsets"))
    if align == "last_key":
        return _LAST_KEY
    if align == "first_key":
        return _FIRST_KEY
    raise ValueError(f'align is {align!r}, expected "last_key" or "first_key"')


def no_mask() -> Mask:
    """Every query sees every key.

    >>> attend.attention(q, k, v, mask=attend.no_mask())     # the same as no mask at all
    """
    return rule("no_mask")


def causal(align: str = "last_key", offsets: Any = None) -> Mask:
    """A query sees its own key and those before it.

    With more keys than queries the alignment matters: "last_key" is right for a KV cache (FlashAttention's way),
    "first_key" is what PyTorch's ``is_causal`` means.

    >>> attend.attention(q, k, v, mask=attend.causal())
    """
    return rule("causal", diagonal(align, offsets))


def window(left: int, right: Optional[int] = None, align: str = "last_key", offsets: Any = None) -> Mask:
    """Keys from ``left`` before a query's own to ``right`` after it, inclusive; -1 lifts a side. Both are required.

    >>> attend.window(1023, 0)     # causal: the last 1,024 keys
    """
    if right is None:
        raise TypeError(f"window needs both sides: window({left}, 0) for a causal window, window({left}, -1) to see all "
                        "keys after the query")
    return rule("window", whole(left, "left"), whole(right, "right"), diagonal(align, offsets))


def padding(lengths: Any) -> Mask:
    """Keys from ``lengths[b]`` on are padding: one length per sequence, or one for all.

    >>> attend.padding([7, 5, 9])
    """
    return rule("padding", _ints(lengths, "lengths"))


def left_padding(counts: Any) -> Mask:
    """The first ``counts[b]`` keys are padding.

    >>> attend.left_padding([0, 2, 5])
    """
    return rule("left_padding", _ints(counts, "counts"))


def prefix(lengths: Any, align: str = "last_key", offsets: Any = None) -> Mask:
    """Causal, but the first ``lengths[b]`` keys are visible to every query (prefix-LM).

    >>> attend.prefix(128)
    """
    return rule("prefix", _ints(lengths, "lengths"), diagonal(align, offsets))


def segments(cumulative_queries: Any, cumulative_keys: Any = None) -> Mask:
    """Packed documents by cumulative lengths, starting at 0; queries see their own document only. Causal and window
    rules beside it count within each document.

    >>> attend.segments([0, 5, 12]) & attend.causal()
    """
    queries = _ints(cumulative_queries, "cumulative_queries")
    keys = queries if cumulative_keys is None else _ints(cumulative_keys, "cumulative_keys")
    return rule("segments", queries, keys)


def blocks(bits: Any, block_queries: int, block_keys: int) -> Mask:
    """Block-sparse: ``bits`` [rows, cols] or [heads, rows, cols], true where a block is visible.

    >>> attend.blocks(np.tril(np.ones((4, 4), bool)), 64, 64)
    """
    array = np.asarray(bits)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3:
        raise ValueError(f"bits has {array.ndim} dimensions, expected [rows, cols] or [heads, rows, cols]")
    heads, rows, cols = array.shape
    packed = np.ascontiguousarray(array != 0, dtype=np.uint8)
    return rule("blocks", *wholes(block_queries=block_queries, block_keys=block_keys), heads, rows, cols,
                packed.tobytes())


def dense(visible: Any) -> Mask:
    """A boolean array that broadcasts to [batch, heads, queries, keys], true where a key is visible.

    >>> attend.dense(np.ones((1, 1, 5, 7), bool))
    """
    array = visible if isinstance(visible, np.ndarray) else np.asarray(visible)
    if array.dtype != np.bool_:
        raise TypeError(f"dense mask dtype is {array.dtype}, expected bool (an additive mask is a bias)")
    if array.ndim > 4:
        raise ValueError(f"dense mask has {array.ndim} dimensions, expected at most 4")
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return Mask(_core.dense(array.__array_interface__["data"][0], array.shape, array.strides), "dense", (array,))
