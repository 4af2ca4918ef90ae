"""Observers of attention's weights, which are never stored: sums over them in the same sweep, or a look at each tile."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from . import _core
from ._arrays import describe, empty, finish
from ._attention import _inputs, _lse_view, _new_results, score_options
from ._whole import whole
from .masks import Mask


class Tile(NamedTuple):
    """The place of a tile: element (r, c) belongs to query first_row + r and key first_col + c.

    >>> tile = attend.Tile(batch=0, head=0, first_row=0, first_col=64, rows=16, cols=64)
    """

    batch: int
    head: int
    first_row: int
    first_col: int
    rows: int
    cols: int


def _filled_by(values):
    """values(n, tile) as the engine calls it: what it returns, as floats of the tile's shape."""
    if not callable(values):
        raise TypeError(f"values is a {type(values).__name__}, expected a function of (n, tile)")

    def fill(n, *place):
        tile = Tile(*place)
        result = np.empty((tile.rows, tile.cols), np.float32)
        result[...] = values(n, tile)
        return result

    return fill


def _sums(count, rows):
    """Room for `count` sums of each row. JAX's arrays come last: the engine writes to NumPy's."""
    return empty("numpy", "f32", (*rows, whole(count, "count")))


def attention_row_sums(q: Any, k: Any, v: Any, values: Callable[[int, Tile], Any], count: int,
                       mask: Optional[Mask] = None, *, layout: str = "bhld", return_lse: bool = False,
                       **options: Any) -> Any:
    """attention(q, k, v), and each row's sums over keys of weight(i, j) * f_n(i, j) for n below ``count``.

    ``values(n, tile)`` gives f_n at the tile's places: an array of [tile.rows, tile.cols], or what broadcasts to it. It
    is called from several threads, one at a time. Returns (out, sums), sums a NumPy array of [batch, heads, queries,
    count]; with return_lse the log-sum-exp comes between them. Options are those of attention; not for float64.

    >>> def distance(n, tile):  # how far a query looks back, on average
    ...     rows, cols = np.arange(tile.rows)[:, None], np.arange(tile.cols)
    ...     return (tile.first_row + rows) - (tile.first_col + cols)
    >>> out, sums = attend.attention_row_sums(q, k, v, distance, 1, attend.causal())
    """
    held = score_options(mask, **options)
    order, a = _inputs(layout, q=q, k=k, v=v)
    kind = a["q"].kind
    out, out_view, lse, lse_view = _new_results(a["q"], a["v"].shape[order[3]], order, return_lse)
    sums, sums_array = _sums(count, [a["q"].shape[axis] for axis in order[:3]])
    _core.attention_row_sums(a["q"].view(order), a["k"].view(order), a["v"].view(order), out_view, held.core, lse_view,
                             sums_array.view(), _filled_by(values))
    return (finish(kind, out),) + ((finish(kind, lse),) if return_lse else ()) + (sums,)


def visit_weights(q: Any, k: Any, lse: Any, visitor: Callable[[Tile, np.ndarray], Any], mask: Optional[Mask] = None, *,
                  layout: str = "bhld", **options: Any) -> None:
    """Shows the weights (softmax before dropout) to ``visitor(tile, weights)``, tile by tile, without storing them.

    ``lse`` is what attention(..., return_lse=True) gave for the same options. Tiles in which the mask leaves nothing are
    passed over; the tiles of a query come in rising order of keys. The visitor is called from several threads, one at a
    time; the weights are a NumPy array of its own, [tile.rows, tile.cols] in float32. Not for float64.

    >>> out, lse = attend.attention(q, k, v, attend.causal(), return_lse=True)
    >>> largest = np.zeros(lse.shape)
    >>> def keep_largest(tile, weights):
    ...     rows = largest[tile.batch, tile.head, tile.first_row:tile.first_row + tile.rows]
    ...     np.maximum(rows, weights.max(axis=1), out=rows)
    >>> attend.visit_weights(q, k, lse, keep_largest, attend.causal())
    """
    if not callable(visitor):
        raise TypeError(f"visitor is a {type(visitor).__name__}, expected a function of (tile, weights)")
    held = score_options(mask, **options)
    order, a = _inputs(layout, q=q, k=k)
    lse_array = describe(lse, "lse")
    _core.visit_weights(a["q"].view(order), a["k"].view(order), _lse_view(lse_array),
                        lambda *place: visitor(Tile(*place[:4], *place[4].shape), place[4]), held.core)
