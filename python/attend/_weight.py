"""Weights of projections in the formats of model files, quantised ones too, and projections with them."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from . import _core
from ._arrays import describe, empty, finish
from ._whole import whole


class Weight:
    """A matrix [out, in] laid out for the kernels, in the format of its file: numbers, or ggml's blocks of quantised ones.

    Made of an array of float32, float16 or bfloat16, or by Weight.from_bytes. The data is copied.

    >>> weight = attend.Weight(np.eye(3, 4, dtype=np.float32))
    >>> weight.row(1)
    array([0., 1., 0., 0.], dtype=float32)
    """

    formats = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")

    def __init__(self, values: Any) -> None:
        array = describe(values, "values")
        if len(array.shape) != 2:
            raise ValueError(f"values has {len(array.shape)} dimensions, expected 2: out and in")
        if array.dtype == "f64":
            raise TypeError("values is float64, expected float32, float16 or bfloat16")
        (out, in_), size = array.shape, 4 if array.dtype == "f32" else 2
        if array.strides != (in_, 1) and out * in_:
            values = values.contiguous() if array.kind == "torch" else np.ascontiguousarray(values)
            array = describe(values, "values")
        self._core = _core.Weight(array.dtype, out, in_, array.address, out * in_ * size)

    @classmethod
    def from_bytes(cls, format: str, shape: Sequence[int], data: Any) -> Weight:
        """A weight of ``shape`` (out, in) from bytes as they lie in a file: rows one after the other.

        >>> weight = attend.Weight.from_bytes("q8_0", (2, 32), bytes(2 * 34))
        """
        out, in_ = (whole(n, "shape") for n in shape)
        held = np.frombuffer(data, np.uint8)
        made = cls.__new__(cls)
        made._core = _core.Weight(format, out, in_, held.ctypes.data, held.nbytes)
        return made

    @property
    def format(self) -> str:
        """One of Weight.formats."""
        return self._core.format

    @property
    def shape(self) -> tuple:
        """(out, in)"""
        return self._core.shape

    @property
    def bytes(self) -> int:
        """Of memory held."""
        return self._core.bytes

    def row(self, r: int) -> np.ndarray:
        """Row ``r`` as float32, exactly as the format defines it: an embedding is such a row.

        >>> attend.Weight(np.eye(2, dtype=np.float32)).row(0)
        array([1., 0.], dtype=float32)
        """
        result, array = empty("numpy", "f32", (1, 1, 1, self.shape[1]))
        self._core.row(whole(r, "r"), array.view())
        return result.reshape(-1)


def weight_bytes(format: str, out: int, in_: int) -> int:
    """What a Weight of this shape would hold in memory, without making one.

    >>> attend.weight_bytes("q8_0", 64, 32)
    2176
    """
    return _core.weight_bytes(format, whole(out, "out"), whole(in_, "in_"))


def project(x: Any, weights: Sequence[Weight], biases: Optional[Sequence[Any]] = None) -> Any:
    """x @ weight.T + bias for several weights on the same x [rows, in], float32, in one pass over the threads.

    Returns a list of arrays [rows, out], one for each weight, or the array alone where ``weights`` is a single Weight
    (``biases`` then a single bias). A bias is [out] or None. Floats are multiplied as floats; against a quantised weight
    each run of 32 numbers of x is rounded to int8 with a scale of its own.

    >>> weight = attend.Weight(np.ones((3, 8), np.float32))
    >>> attend.project(np.ones((1, 8), np.float32), weight)
    array([[8., 8., 8.]], dtype=float32)
    """
    alone = isinstance(weights, Weight)
    if alone:
        weights, biases = [weights], [biases]
    weights = list(weights)
    biases = [None] * len(weights) if biases is None else list(biases)
    if len(biases) != len(weights):
        raise ValueError(f"there are {len(biases)} biases, expected {len(weights)}, one for each weight or None")
    for weight in weights:
        if not isinstance(weight, Weight):
            raise TypeError(f"a weight is a {type(weight).__name__}, expected an attend.Weight")
    array = describe(x, "x")
    if len(array.shape) != 2:
        raise ValueError(f"x has {len(array.shape)} dimensions, expected 2: rows and in")
    rows = array.shape[0]
    made = [empty(array.kind, "f32", (rows, weight.shape[0])) for weight in weights]
    described = [None if bias is None else describe(bias, "bias") for bias in biases]
    for bias in described:
        if bias is not None and len(bias.shape) != 1:
            raise ValueError(f"a bias has {len(bias.shape)} dimensions, expected 1")
    _core.project(_padded(array), [weight._core for weight in weights],
                  [None if bias is None else _padded(bias) for bias in described], [_padded(y) for _, y in made])
    results = [finish(array.kind, y) for y, _ in made]
    return results[0] if alone else results


def _padded(array):
    """[rows, n] or [n] as the engine's [1, 1, rows|1, n]."""
    return array.view_at((2, 3)[-len(array.shape):])
