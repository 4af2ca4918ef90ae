"""Sparse attention patterns by the names of their papers, and the rules they are made of. Each is a mask like any other:
it composes with ``&``, ``|`` and ``~``, and costs what it shows."""

from __future__ import annotations

from typing import Any, Optional

from ._whole import whole, wholes
from .masks import Mask, _ints, diagonal, rule


def chunks(size: int, back: int = 0, align: str = "last_key", offsets: Any = None) -> Mask:
    """Local chunks: a query sees the chunk of ``size`` keys it stands in, and ``back`` chunks before.

    >>> attend.causal() & attend.chunks(8192)
    """
    return rule("chunks", whole(size, "size"), whole(back, "back"), diagonal(align, offsets))


def dilated(step: int, align: str = "last_key", offsets: Any = None) -> Mask:
    """Every ``step``-th key, counted from the query's own in both directions.

    >>> attend.window(64, 64) & attend.dilated(4)
    """
    return rule("dilated", whole(step, "step"), diagonal(align, offsets))


def columns(period: int, first: int, count: int = 1) -> Mask:
    """``count`` keys from ``first`` on, in every ``period`` keys.

    >>> attend.columns(128, 124, 4)
    """
    return rule("columns", whole(period, "period"), whole(first, "first"), whole(count, "count"))


def tokens(positions: Any) -> Mask:
    """Keys at these positions, and no others.

    >>> attend.causal() & (attend.window(1023, 0) | attend.tokens([0, 1, 2, 3]))
    """
    return rule("tokens", _ints(positions, "positions"))


def global_tokens(positions: Any, align: str = "last_key", offsets: Any = None) -> Mask:
    """Tokens that see all and are seen by all.

    >>> attend.window(256, 256) | attend.global_tokens([0])
    """
    return rule("global_tokens", _ints(positions, "positions"), diagonal(align, offsets))


def strided(stride: int, align: str = "last_key", offsets: Any = None) -> Mask:
    """Sparse Transformer, strided: the ``stride`` keys before a query's own, its own, and every ``stride``-th before.
    Causal.

    >>> attend.attention(q, k, v, mask=attend.strided(64))
    """
    return rule("strided", whole(stride, "stride"), diagonal(align, offsets))


def fixed(block: int, columns: int = 1, align: str = "last_key", offsets: Any = None) -> Mask:
    """Sparse Transformer, fixed: the query's own block so far, and the last ``columns`` keys of every block before.
    Causal.

    >>> attend.attention(q, k, v, mask=attend.fixed(64, 8))
    """
    return rule("fixed", whole(block, "block"), whole(columns, "columns"), diagonal(align, offsets))


def longformer(window: int, dilation: int = 1, global_positions: Any = (), align: str = "last_key",
               offsets: Any = None) -> Mask:
    """Longformer: ``window`` keys on each side, ``dilation`` apart, and tokens that see all and are seen by all.

    >>> attend.attention(q, k, v, mask=attend.longformer(256, global_positions=[0]))
    """
    return rule("longformer", *wholes(window=window, dilation=dilation), _ints(global_positions, "global_positions"),
                diagonal(align, offsets))


def streaming(sinks: int, window: int, align: str = "last_key", offsets: Any = None) -> Mask:
    """StreamingLLM: the first ``sinks`` keys, and the last ``window`` up to a query's own. Causal.

    >>> attend.attention(q, k, v, mask=attend.streaming(4, 1024))
    """
    return rule("streaming", whole(sinks, "sinks"), whole(window, "window"), diagonal(align, offsets))


def bigbird(queries: int, keys: Optional[int] = None, *, block: int = 64, window_blocks: int = 3,
            global_blocks: int = 1, random_blocks: int = 3, heads: int = 1, seed: int = 0, causal: bool = False) -> Mask:
    """BigBird in blocks: a window of blocks, the first ``global_blocks`` (seen by all and seeing all), and random ones,
    which are a function of the seed, the head and the block.

    >>> attend.attention(q, k, v, mask=attend.bigbird(4096))
    """
    keys = queries if keys is None else keys
    return rule("bigbird", *wholes(queries=queries, keys=keys, block=block, window_blocks=window_blocks,
                                   global_blocks=global_blocks, random_blocks=random_blocks, heads=heads, seed=seed),
                bool(causal))


def block_permutation(queries: int, keys: Optional[int] = None, *, blocks: Optional[int] = None, heads: int = 1,
                      seed: int = 0, permutations: Any = None) -> Mask:
    """BlockBERT: block y of queries sees block ``permutation[y]`` of keys; one permutation for all heads or one for
    each, given or random by the seed.

    >>> attend.block_permutation(4096, permutations=[[1, 2, 3, 0]])
    >>> attend.block_permutation(4096, blocks=8, heads=8, seed=1)
    """
    keys = queries if keys is None else keys
    if (blocks is None) == (permutations is None):
        raise ValueError("block_permutation: expected either blocks or permutations")
    if permutations is None:
        return rule("random_permutation", *wholes(queries=queries, keys=keys, blocks=blocks, heads=heads, seed=seed))
    rows = [_ints(row, "permutations") for row in permutations]
    return rule("block_permutation", whole(queries, "queries"), whole(keys, "keys"), rows)
