"""reformer, its gradient, its hashes and its recall over anybody's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from . import _core
from ._arrays import describe, empty, finish
from ._attention import _four, _inputs, _lse_view, _new_results, _order
from ._whole import whole, wholes


class ReformerGradients(NamedTuple):
    """What reformer_backward returns; dq is that of q as query and as key.

    >>> dq, dv = attend.reformer_backward(dout, q, v, out, lse)
    """

    dq: Any
    dv: Any


def _options(rounds, chunk, buckets, causal, seed, scale):
    if buckets is None:
        buckets = []
    elif not hasattr(buckets, "__iter__"):
        buckets = [buckets]
    return _core.ReformerOptions(*wholes(rounds=rounds, chunk=chunk), [whole(f, "buckets") for f in buckets],
                                 bool(causal), whole(seed, "seed"), scale)


def reformer(q: Any, v: Any, *, rounds: int = 4, chunk: int = 64, buckets: Optional[Sequence[int]] = None,
             causal: bool = False, seed: int = 0, scale: Optional[float] = None, layout: str = "bhld",
             return_lse: bool = False) -> Any:
    """LSH attention with shared queries and keys (Kitaev et al. 2020), in time n log n.

    k is q, each row of length 1. Tokens are hashed ``rounds`` times, sorted by hash and cut into chunks; a token
    attends to those of its bucket in its own chunk and the one before (and, causal, before itself), to itself only if
    there is nobody else. buckets: an even number, or a list of even factors; by default about length / chunk. The same
    seed gives the same bits, whatever the threads.

    >>> out = attend.reformer(q, v, rounds=4, causal=True)
    """
    order, a = _inputs(layout, q=q, v=v)
    kind = a["q"].kind
    out, out_view, lse, lse_view = _new_results(a["q"], a["v"].shape[order[3]], order, return_lse)
    _core.reformer(a["q"].view(order), a["v"].view(order), out_view,
                   _options(rounds, chunk, buckets, causal, seed, scale), lse_view)
    return (finish(kind, out), finish(kind, lse)) if return_lse else finish(kind, out)


def reformer_backward(dout: Any, q: Any, v: Any, out: Any, lse: Any, *, rounds: int = 4, chunk: int = 64,
                      buckets: Optional[Sequence[int]] = None, causal: bool = False, seed: int = 0,
                      scale: Optional[float] = None, layout: str = "bhld") -> ReformerGradients:
    """The gradients of q and v, from what reformer(..., return_lse=True) gave. None flows through the hashes.

    Give it the options that reformer was given.

    >>> out, lse = attend.reformer(q, v, return_lse=True)
    >>> dq, dv = attend.reformer_backward(dout, q, v, out, lse)
    """
    order, a = _inputs(layout, dout=dout, q=q, v=v, out=out)
    lse_array = describe(lse, "lse")
    kind, dtype = a["q"].kind, a["q"].dtype
    dq, dq_array = empty(kind, dtype, a["q"].shape)
    dv, dv_array = empty(kind, dtype, a["v"].shape)
    _core.reformer_backward(a["dout"].view(order), a["q"].view(order), a["v"].view(order), a["out"].view(order),
                            _lse_view(lse_array), dq_array.view(order), dv_array.view(order),
                            _options(rounds, chunk, buckets, causal, seed, scale))
    return ReformerGradients(finish(kind, dq), finish(kind, dv))


def reformer_factors(length: int, *, chunk: int = 64) -> list:
    """The factors of the buckets that are chosen for a length.

    >>> attend.reformer_factors(65536)
    [32, 32]
    """
    return list(_core.reformer_factors(whole(length, "length"), _options(1, chunk, None, False, 0, None)))


def reformer_rotations(heads: int, length: int, dim: int, *, rounds: int = 4, chunk: int = 64,
                       buckets: Optional[Sequence[int]] = None, seed: int = 0) -> np.ndarray:
    """The random directions of every round and head, [rounds, heads, sum of factors / 2, dim], float32.

    >>> directions = attend.reformer_rotations(8, 4096, 64)
    """
    options = _options(rounds, chunk, buckets, False, seed, None)
    columns = sum(_core.reformer_factors(whole(length, "length"), options)) // 2
    rounds, heads, dim = wholes(rounds=rounds, heads=heads, dim=dim)
    rotations, array = empty("numpy", "f32", (rounds, heads, columns, dim))
    _core.reformer_rotations(whole(length, "length"), options, array.view())
    return rotations


def reformer_hashes(q: Any, *, rounds: int = 4, chunk: int = 64, buckets: Optional[Sequence[int]] = None,
                    seed: int = 0, layout: str = "bhld") -> np.ndarray:
    """The bucket of every token, [rounds, batch, heads, length], int32.

    >>> hashes = attend.reformer_hashes(q, rounds=4)
    """
    order = _order(layout)
    array = _four(describe(q, "q"), "q")
    hashes = np.empty((max(whole(rounds, "rounds"), 0),) + tuple(array.shape[axis] for axis in order[:3]), np.int32)
    _core.reformer_hashes(array.view(order), _options(rounds, chunk, buckets, False, seed, None), hashes.ctypes.data,
                          hashes.size)
    return hashes


def reformer_recall(q: Any, *, rounds: int = 4, chunk: int = 64, buckets: Optional[Sequence[int]] = None,
                    causal: bool = False, seed: int = 0, scale: Optional[float] = None, samples: int = 32,
                    layout: str = "bhld") -> float:
    """The share of exact attention's weight that lies on tokens the hashes found, over ``samples`` queries per head.

    >>> attend.reformer_recall(q, rounds=8)  # doctest: +SKIP
    0.93
    """
    array = _four(describe(q, "q"), "q")
    return _core.reformer_recall(array.view(_order(layout)), _options(rounds, chunk, buckets, causal, seed, scale),
                                 whole(samples, "samples"))
