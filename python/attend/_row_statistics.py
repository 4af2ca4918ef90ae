"""What each row of attention weights is like: the columns, and how they are asked for."""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

import numpy as np

from . import _core
from ._whole import whole
from .masks import _ints, diagonal


class RowStatistics(NamedTuple):
    """What each row of weights is like: arrays of [batch, heads, queries].

    p(i) is the key at which query i stands; weights are those before dropout. A row that sees nothing has zeros, and -1
    for its argmax.

    >>> rows = attend.observe(q, k, mask=attend.causal()).statistics(tokens=tokens)
    >>> rows.entropy.shape == q.shape[:3]
    True
    """

    mass: Any  # the sum of the weights: 1, less what a learned sink takes
    entropy: Any  # -sum of w ln w, in nats
    distance_mean: Any  # of p(i) - j
    distance_variance: Any
    sink_tokens: Any  # the weight on the first keys
    self: Any  # on the key j = p(i)
    previous: Any  # on j = p(i) - 1
    local: Any  # within local_width of p(i)
    recent: Any  # within recent_width
    duplicate: Any  # on the query's own token elsewhere
    induction: Any  # on what stood behind the query's token
    maximum: Any
    argmax: Any  # whole numbers


def statistics_options(*, tokens: Any = None, sink_tokens: int = 1, sinks_apart: bool = False, local_width: int = 8,
                       recent_width: int = 64, align: str = "last_key") -> Tuple[Any, Any]:
    """What was asked for, as something that can be compared, and for the engine."""
    if getattr(tokens, "is_cuda", False):
        tokens = tokens.cpu()
    numbers = [] if tokens is None else _ints(np.asarray(tokens).reshape(-1), "tokens")
    asked = (whole(sink_tokens, "sink_tokens"), bool(sinks_apart), whole(local_width, "local_width"),
             whole(recent_width, "recent_width"), align, tuple(numbers))
    return asked, _core.RowStatisticsOptions(*asked[:4], diagonal(align), numbers)


def rows_of(array: Any) -> RowStatistics:
    """The columns of [batch, heads, queries, columns], of anybody's arrays."""
    columns = [array[..., n] for n in range(array.shape[-1])]
    columns[-1] = columns[-1].astype(np.int64) if hasattr(columns[-1], "astype") else columns[-1].long()
    return RowStatistics(*columns)
