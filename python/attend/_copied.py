"""Pickle, copy and deepcopy of what holds its numbers in the engine's memory."""

from __future__ import annotations

from typing import Any, Dict, TypeVar

from ._whole import whole

_Layer = TypeVar("_Layer", bound="Copied")


class Copied:
    """A layer that is made anew from its config, with the same parameters: every copy has memory of its own.

    >>> layer = copy.deepcopy(attend.MultiHeadAttention(64, heads=4).initialise(0))
    """

    _core: Any

    @property
    def parameter_count(self) -> int:
        return self._core.parameter_count

    def initialise(self: _Layer, seed: int = 0) -> _Layer:
        """Weights uniform in +-1/sqrt(inputs), the same on every machine. Returns the layer.

        >>> layer = attend.MultiHeadAttention(64, heads=4).initialise(seed=1)
        """
        self._core.initialise(whole(seed, "seed"))
        return self

    def _new_core(self) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> Dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_core"}
        return {**state, "parameters": {name: array.copy() for name, array in self._core.parameters.items()}}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        parameters = state["parameters"]
        self.__dict__.update((name, value) for name, value in state.items() if name != "parameters")
        self._core = self._new_core()
        for name, array in self._core.parameters.items():
            array[...] = parameters[name]
