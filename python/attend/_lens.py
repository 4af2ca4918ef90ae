"""What attention looks at, on bare arrays and at any length: statistics, maps, top keys, exact zoom, single cells."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from . import _core
from ._arrays import describe
from ._attention import _four, _inputs, _lse_view, _order, score_options
from ._errors import InvalidArgument
from ._gpu_lens import GpuLens
from ._row_statistics import RowStatistics, rows_of, statistics_options
from ._whole import whole
from .masks import Mask

Range = Union[None, int, slice, Tuple[int, int], range]


class PooledMap(NamedTuple):
    """Sums and maxima of the weights in cells, [rows, cols]; where the cells begin, with the end behind them.

    >>> seen = attend.observe(q, k).map(rows=4, cols=8)
    >>> seen.mass.shape
    (4, 8)
    """

    mass: Any
    peak: Any
    queries: Any  # [rows + 1]
    keys: Any  # [cols + 1]
    finished: bool  # False: progress ended it


class TopKeys(NamedTuple):
    """The largest weights of each row, largest first, of equal ones the lower key first: [queries, count]. A row that
    has fewer ends with key -1 and weight 0."""

    keys: Any
    weights: Any


class Histogram(NamedTuple):
    """counts[n] weights lie in [2^-(n+1), 2^-n), and `below` visible ones are smaller."""

    counts: Any
    below: int


class Cell(NamedTuple):
    """The whole arithmetic of one weight, in double: dot = sum of products, scaled = scale * dot, capped (soft-cap),
    score = capped + bias - alibi, weight = exp(score - lse) where it is visible, weighted = weight * v (None without
    v)."""

    q: Any
    k: Any
    products: Any
    dot: float
    scale: float
    scaled: float
    softcap: float
    capped: float
    bias: float
    alibi_slope: float
    alibi_distance: float
    alibi: float
    score: float
    visible: bool
    lse: float
    sink: Optional[float]
    sink_weight: float
    weight: float
    v: Any
    weighted: Any


def _index(given: Any, length: int, name: str) -> int:
    """A position from 0; a negative one counts from the end."""
    at = whole(given, name)
    if not -length <= at < length:
        raise InvalidArgument(f"{name} is {at}, expected {-length} to {length - 1}")
    return at % length


def _bounds(given: Range, length: int, name: str) -> Tuple[int, int]:
    """(first, count) of a slice, a pair (begin, end), a range or a single position; None: all. Negative numbers count from
    the end."""
    if given is None:
        return 0, length
    if isinstance(given, (slice, range)):
        if given.step not in (None, 1):
            raise ValueError(f"{name} has a step of {given.step}, expected neighbours")
        begin, end, _ = slice(given.start, given.stop).indices(length)
    elif isinstance(given, tuple):
        if len(given) != 2:
            raise ValueError(f"{name} is {given!r}, expected (begin, end)")
        begin, end = (at + length if at < 0 else at for at in (whole(given[0], name), whole(given[1], name)))
    else:
        begin = _index(given, length, name)
        end = begin + 1
    return begin, max(0, end - begin)


def _larger(a: Any, b: Any) -> Any:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else a.maximum(b)


class Observation:
    """The weights of one call of attention, looked at without storing them: made by attend.observe.

    Nothing is computed before it is asked for. Results are NumPy arrays, of CUDA tensors tensors beside them. A head is
    numbered as q's heads are; queries and keys are None (all), a slice, a pair (begin, end) or a single position. Negative
    positions count from the end. One call at a time.
    """

    def __init__(self, q: Any, k: Any, v: Any, mask: Optional[Mask], lse: Any, layout: str, options: Dict[str, Any]):
        self._held = score_options(mask, **options)
        self.arrays, self.mask, self.layout, self.options = (q, k, v), mask, layout, options
        self._lens = GpuLens(q, k, self._held, lse, _order(layout)) if getattr(q, "is_cuda", False) else self._on_cpu(lse)
        self.batches, self.heads, self.queries, self.keys = self._lens.shape
        self._busy = threading.Lock()
        self._statistics: Dict[Any, RowStatistics] = {}

    def _on_cpu(self, lse: Any) -> Any:
        q, k, v = self.arrays
        order, arrays = _inputs(self.layout, q=q, k=k)
        values = None if v is None else _four(describe(v, "v"), "v")
        log_sums = None if lse is None else describe(lse, "lse")
        self._kept = (q, k, v, lse, arrays, values, log_sums)  # their memory is read later
        return _core.Lens(arrays["q"].view(order), arrays["k"].view(order), self._held.core,
                          None if log_sums is None else _lse_view(log_sums),
                          None if values is None else values.view(order))

    def __repr__(self) -> str:
        return (f"<attend.Observation of {self.batches} x {self.heads} heads, {self.queries} queries, {self.keys} keys>")

    def _call(self, name: str, *arguments: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("Observation: another call is at work on it; one at a time")
        try:
            return getattr(self._lens, name)(*arguments)
        finally:
            self._busy.release()

    def _area(self, queries: Range, keys: Range) -> Tuple[int, int, int, int]:
        return (*_bounds(queries, self.queries, "queries"), *_bounds(keys, self.keys, "keys"))

    def _place(self, head: Any, batch: Any) -> Tuple[int, int]:
        return whole(batch, "batch"), whole(head, "head")

    @property
    def lse(self) -> np.ndarray:
        """The log of the sum of exp of each row, [batch, heads, queries]."""
        return self._call("lse")[..., 0]

    def statistics(self, *, tokens: Any = None, sink_tokens: int = 1, sinks_apart: bool = False, local_width: int = 8,
                   recent_width: int = 64, align: str = "last_key") -> RowStatistics:
        """The statistics of every row, in one sweep; kept for the next time they are asked for.

        tokens       of the keys, [batch, keys] or [keys]: for duplicate and induction, which are 0 without
        sink_tokens  how many keys at the front count as sinks; with sinks_apart they count as nothing else
        align        where the queries stand among the keys: "last_key" or "first_key"

        >>> attend.observe(q, k, mask=attend.causal()).statistics().previous.max() <= 1.001
        True
        """
        asked, options = statistics_options(tokens=tokens, sink_tokens=sink_tokens, sinks_apart=sinks_apart,
                                            local_width=local_width, recent_width=recent_width, align=align)
        if asked not in self._statistics:
            self._statistics = {asked: rows_of(self._call("statistics", options))}
        return self._statistics[asked]

    def map(self, head: int = 0, batch: int = 0, *, rows: int = 512, cols: int = 512, queries: Range = None,
            keys: Range = None, progress: Optional[Callable[[int, Any, Any], Any]] = None) -> PooledMap:
        """Exact sums (mass) and maxima (peak) of the weights in rows x cols cells over the queries and keys.

        ``progress(first_row, mass, peak)`` is shown bands of finished cells as they come, from several threads, one at a
        time; when it returns something false the map ends unfinished.

        >>> whole = attend.observe(q, k, mask=attend.causal()).map(rows=8, cols=8)
        """
        area = self._area(queries, keys)
        band = progress and (lambda first, mass, peak: progress(first, mass[0, 0], peak[0, 0]))
        mass, peak, finished = self._call("map", self._place(head, batch), area, whole(rows, "rows"),
                                          whole(cols, "cols"), band)
        mass, peak = mass[0, 0], peak[0, 0]
        begins = [first + np.arange(cells + 1) * count // cells
                  for first, count, cells in zip(area[::2], area[1::2], mass.shape)]
        return PooledMap(mass, peak, *begins, finished)

    def pyramid(self, head: int = 0, batch: int = 0, **options: Any) -> List[PooledMap]:
        """A map and what becomes of it when rows and columns are halved for as long as both are even, finest first.

        >>> [level.mass.shape for level in attend.observe(q, k).pyramid(rows=4, cols=8)]
        [(4, 8), (2, 4), (1, 2)]
        """
        levels = [self.map(head, batch, **options)]
        while all(size % 2 == 0 for size in levels[-1].mass.shape):
            fine = levels[-1]
            four = [(x[0::2, 0::2], x[0::2, 1::2], x[1::2, 0::2], x[1::2, 1::2]) for x in (fine.mass, fine.peak)]
            levels.append(PooledMap((four[0][0] + four[0][1]) + (four[0][2] + four[0][3]),
                                    functools.reduce(_larger, four[1]), fine.queries[::2], fine.keys[::2], fine.finished))
        return levels

    def received(self, head: int = 0, batch: int = 0, *, queries: Range = None, keys: Range = None) -> np.ndarray:
        """The attention that each key receives: the sum of its column, [keys].

        >>> total = attend.observe(q, k).received().sum()  # the number of queries
        """
        return self._call("received", self._place(head, batch), self._area(queries, keys))[0, 0, 0]

    def top_k(self, count: int, head: int = 0, batch: int = 0, *, queries: Range = None, keys: Range = None) -> TopKeys:
        """The `count` largest weights of each query, exactly.

        >>> most = attend.observe(q, k).top_k(3).keys[:, 0]
        """
        count = whole(count, "count")
        found, weights = self._call("top_keys", self._place(head, batch), count, self._area(queries, keys))
        return TopKeys(found.reshape(-1, count), weights[0, 0])

    def histogram(self, head: int = 0, batch: int = 0, *, bins: int = 32, queries: Range = None,
                  keys: Range = None) -> Histogram:
        """How many weights are how large, by powers of two.

        >>> counts, below = attend.observe(q, k).histogram()
        """
        return Histogram(*self._call("histogram", self._place(head, batch), whole(bins, "bins"),
                                     self._area(queries, keys)))

    def zoom(self, head: int = 0, batch: int = 0, *, queries: Range = None, keys: Range = None) -> np.ndarray:
        """The weights themselves, [queries, keys], of a rectangle, a row (queries=7) or a column (keys=7).

        >>> corner = attend.observe(q, k).zoom(queries=slice(0, 4), keys=slice(0, 4))
        """
        return self._call("zoom", self._place(head, batch), self._area(queries, keys))[0, 0]

    def html(self, tokens: Any = None, source: Any = None, *, name: str = "attention", batch: int = 0) -> str:
        """The explorer's page around these weights, for any browser: every head, every cell with its arithmetic.

        tokens  texts of the queries' tokens; numbers without
        source  of the keys', where queries of one text look at another one (cross-attention)

        >>> page = attend.observe(q, k, v, mask=attend.causal()).html()
        """
        from ._observed_page import Part, document

        texts = [str(n) for n in range(self.queries)] if tokens is None else tokens
        if source is None and self.queries != self.keys:
            source = [str(n) for n in range(self.keys)]
        return document([Part("attention", [self], texts, source)], name, 0, batch)

    def cell(self, query: int, key: int, head: int = 0, batch: int = 0) -> Cell:
        """The whole arithmetic of one weight.

        >>> one = attend.observe(q, k, v).cell(query=3, key=2)
        >>> abs(one.dot - (one.q * one.k).sum()) < 1e-9
        True
        """
        parts = self._call("cell", self._place(head, batch), _index(query, self.queries, "query"),
                           _index(key, self.keys, "key"))
        for name in ("q", "k", "products", "v", "weighted"):
            parts[name] = np.array(parts[name]) if parts[name] else None
        return Cell(**parts)


def observe(q: Any, k: Any, v: Any = None, mask: Optional[Mask] = None, *, lse: Any = None, layout: str = "bhld",
            **options: Any) -> Observation:
    """Looks at softmax(scale * q.k + ...) without storing it: an Observation, which computes what it is asked for.

    q and k are those of attention, of this engine or any other (after RoPE, if there is one); v is needed for cells
    alone. ``lse`` is what attention(..., return_lse=True) gave for the same options, and saves a sweep. Options are those
    of attention; weights are those before dropout. The arrays must stay as they are for as long as one looks. Of CUDA
    tensors there are statistics, maps, pyramids, received and zoom.

    >>> seen = attend.observe(q, k, mask=attend.causal())
    >>> seen.statistics().entropy.shape == q.shape[:3]
    True
    >>> seen.map(head=1, rows=16, cols=16).mass.shape
    (16, 16)
    """
    return Observation(q, k, v, mask, lse, layout, options)
