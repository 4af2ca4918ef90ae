"""Keys and values of the calls of one layer, each row stored once: what a step of generate() repeats is found again."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Piece(NamedTuple):
    """Neighbouring keys of a call: positions begin to end of the log."""

    begin: int
    end: int
    sequences: Optional[Tuple[int, ...]]  #: the log's sequence for each of the call's; None: the same


def _bits(x: Tensor) -> Tensor:
    """The tensor's bits as integers: NaN equals itself."""
    return x.view(_INTEGERS[x.element_size()])


def _length(pieces: Sequence[Piece]) -> int:
    return sum(piece.end - piece.begin for piece in pieces)


def _cut(pieces: Sequence[Piece], begin: int, end: int) -> List[Piece]:
    """The pieces of positions begin to end."""
    result, at = [], 0
    for piece in pieces:
        size = piece.end - piece.begin
        first, last = max(begin - at, 0), min(end - at, size)
        if first < last:
            result.append(piece._replace(begin=piece.begin + first, end=piece.begin + last))
        at += size
    return result


def _joined(pieces: Sequence[Piece]) -> List[Piece]:
    """The same positions in as few pieces as possible."""
    result: List[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if last and last.end == piece.begin and last.sequences == piece.sequences:
            result[-1] = last._replace(end=piece.end)
        else:
            result.append(piece)
    return result


def _runs(changed: Tensor) -> List[Tuple[bool, int, int]]:
    """(value, begin, end) of equal neighbours."""
    if not len(changed):
        return []
    ends = [*(changed.diff().nonzero()[:, 0] + 1).tolist(), len(changed)]
    begins = [0, *ends[:-1]]
    return [(bool(changed[a]), a, b) for a, b in zip(begins, ends)]


class KeyLog:
    """Keys and values [batch, heads, positions, dim] of successive calls that attend with the same cache.

    A call stores the positions that differ from the call before it, at most one for each of its queries: those a cache
    appended, or wrote in place. A sliding window that moved on and sequences that a beam search reordered count as
    equal. A call that shares nothing is stored whole. Stored positions never change.
    """

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self._k, self._v = k[:, :, :0].clone(), v[:, :, :0].clone()  # room for more positions than are in use
        self._used = 0
        self._last: List[Piece] = []

    def accepts(self, k: Tensor, v: Tensor) -> bool:
        """Whether keys and values are of the log's shape, dtype and device."""
        return all(a.shape[:2] == b.shape[:2] and a.shape[3] == b.shape[3] and a.dtype == b.dtype and a.device == b.device
                   for a, b in ((k, self._k), (v, self._v)))

    def add(self, k: Tensor, v: Tensor, queries: int) -> Tuple[Piece, ...]:
        """Stores a call's keys and values; gives the pieces to ask for them with."""
        pieces = self._shared(k, v, queries)
        if pieces is None:
            pieces = [self._append(k, v, 0, k.shape[2])]
        self._last = _joined(pieces)
        return tuple(self._last)

    def read(self, pieces: Sequence[Piece]) -> Tuple[Tensor, Tensor]:
        """The keys and values of a call, views of the log where they are one piece of it."""
        return self._read(self._k, pieces), self._read(self._v, pieces)

    @staticmethod
    def _read(log: Tensor, pieces: Sequence[Piece]) -> Tensor:
        parts = [log[:, :, p.begin:p.end] if p.sequences is None else log[list(p.sequences), :, p.begin:p.end] for p in pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def _shared(self, k: Tensor, v: Tensor, queries: int) -> Optional[List[Piece]]:
        length, before = k.shape[2], _length(self._last)
        # Kept in their positions; or moved down by a sliding window.
        for skipped in dict.fromkeys((0, before + queries - length)):
            if not 0 <= skipped < before:
                continue
            kept = _cut(self._last, skipped, min(before, skipped + length))
            changed = self._changed(k, v, kept, queries)
            if changed is None:
                kept, changed = self._reordered(k, v, kept, queries)
            if changed is not None:
                return self._with_changes(k, v, kept, changed)
        return None

    def _changed(self, k: Tensor, v: Tensor, kept: Sequence[Piece], queries: int) -> Optional[Tensor]:
        """Which of the kept positions differ in k and v; None where storing those and the rest of k takes more positions
        than there are queries."""
        budget = queries - (k.shape[2] - _length(kept))
        parts, at = [], 0
        for piece in kept:
            size = piece.end - piece.begin
            differs = torch.zeros(size, dtype=torch.bool, device=k.device)
            for x, log in ((k, self._k), (v, self._v)):
                given, stored = _bits(x[:, :, at:at + size]), _bits(self._read(log, [piece]))
                if not torch.equal(given, stored):
                    differs |= (given != stored).any(3).any(1).any(0)
            budget -= int(differs.sum())
            if budget < 0:
                return None
            parts.append(differs)
            at += size
        return torch.cat(parts) if parts and budget >= 0 else None

    def _reordered(self, k: Tensor, v: Tensor, kept: Sequence[Piece], queries: int) -> Tuple[List[Piece], Optional[Tensor]]:
        """The kept pieces in the order of sequences in which a beam search left them."""
        count, order = k.shape[0], []
        for b in range(count if count > 1 else 0):
            for source in (b, *(s for s in range(count) if s != b)):
                one = [p._replace(sequences=((p.sequences or range(count))[source],)) for p in kept]
                if self._changed(k[b:b + 1], v[b:b + 1], one, queries) is not None:
                    order.append(source)
                    break
            else:
                return [], None
        if not order:
            return [], None
        moved = [p._replace(sequences=tuple((p.sequences or range(count))[s] for s in order)) for p in kept]
        return moved, self._changed(k, v, moved, queries)

    def _with_changes(self, k: Tensor, v: Tensor, kept: Sequence[Piece], changed: Tensor) -> List[Piece]:
        pieces: List[Piece] = []
        for differs, begin, end in _runs(changed):
            pieces += [self._append(k, v, begin, end)] if differs else _cut(kept, begin, end)
        if len(changed) < k.shape[2]:
            pieces.append(self._append(k, v, len(changed), k.shape[2]))
        return pieces

    def _append(self, k: Tensor, v: Tensor, begin: int, end: int) -> Piece:
        first, self._used = self._used, self._used + end - begin
        self._k, self._v = (self._with_room(x) for x in (self._k, self._v))
        self._k[:, :, first:self._used], self._v[:, :, first:self._used] = k[:, :, begin:end], v[:, :, begin:end]
        return Piece(first, self._used, None)

    def _with_room(self, log: Tensor) -> Tensor:
        if self._used <= log.shape[2]:
            return log
        larger = log.new_empty((*log.shape[:2], max(self._used, log.shape[2] + log.shape[2] // 8), log.shape[3]))
        larger[:, :, :log.shape[2]] = log
        return larger
