"""The lens on CUDA tensors: what attend.Observation asks of the engine. Results are tensors beside q; a call puts its work
on PyTorch's current stream and waits for nothing."""

from __future__ import annotations

from typing import Any, Sequence, Tuple

from . import _core
from ._errors import InvalidArgument

_SIDES = ("batch", "heads", "length", "dim")


def refuse(what: str) -> None:
    raise InvalidArgument(f"{what} of CUDA tensors is not supported yet: expected q and k on the CPU, "
                          "attend.observe(q.cpu(), k.cpu(), ...)")


class GpuLens:
    """As _core.Lens, over tensors that a GPU holds."""

    def __init__(self, q: Any, k: Any, options: Any, lse: Any, order: Sequence[int]):
        for name, x in (("q", q), ("k", k)):
            if len(x.shape) != 4:
                raise InvalidArgument(f"{name} has {len(x.shape)} dimensions, expected 4: {', '.join(_SIDES)}")
        self._q, self._k, self._options, self._lse, self._order = q, k, options, lse, tuple(order)
        self.shape = [*(q.shape[axis] for axis in self._order[:3]), k.shape[self._order[2]]]

    def _sums(self) -> Any:
        if self._lse is None:  # of all heads: one forward pass, whose output nobody needs
            self._lse = _core.array_attention(self._q, self._k, self._k, self._options, self._order, True, False)[1]
        return self._lse

    def lse(self) -> Any:
        return self._sums()[..., None]

    def statistics(self, options: Any) -> Any:
        return _core.array_attention(self._q, self._k, self._k, self._options, self._order, False, False, options)[3]

    def _map(self, head: Tuple[int, int], area: Sequence[int], rows: int, cols: int, want_peak: bool) -> Tuple[Any, Any]:
        if not want_peak and 0 in (area[1], area[3]):  # weights of nothing
            return self._sums().new_zeros((1, 1, rows, cols)), None
        return _core.array_map(self._q, self._k, self._sums(), self._options, self._order, head, area, rows, cols, want_peak)

    def map(self, head: Tuple[int, int], area: Sequence[int], rows: int, cols: int, progress: Any) -> Tuple[Any, Any, bool]:
        if progress is not None:
            refuse("map(progress=...)")
        return (*self._map(head, area, rows, cols, True), True)

    def received(self, head: Tuple[int, int], area: Sequence[int]) -> Any:
        return self._map(head, area, 1, area[3], False)[0]

    def zoom(self, head: Tuple[int, int], area: Sequence[int]) -> Any:
        return self._map(head, area, area[1], area[3], False)[0]

    def top_keys(self, *_: Any) -> None:
        refuse("top_k")

    def histogram(self, *_: Any) -> None:
        refuse("histogram")

    def cell(self, *_: Any) -> None:
        refuse("cell")
