"""Positions: RoPE's scaling, sinusoids, learned tables, ALiBi's slopes, T5's relative bias."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

import numpy as np

from . import _core
from ._arrays import describe, empty, finish
from ._operations import _like, _up_to_four
from ._whole import whole, wholes


class RopeScaling(_core.RopeScaling):
    """How RoPE is stretched beyond the length a model was trained with: kind "linear", "llama3" or "yarn".

    >>> scaling = attend.RopeScaling("yarn", factor=4, original_length=32768)
    >>> q = attend.rope(q, theta=1e6, scaling=scaling)

    llama3 takes low_frequency and high_frequency; yarn takes beta_fast, beta_slow, truncate, and attention_factor or
    mscale with mscale_all_dim.
    """

    def __init__(self, kind: str, factor: float, original_length: int = 0, *, low_frequency: float = 1.0,
                 high_frequency: float = 4.0, beta_fast: float = 32.0, beta_slow: float = 1.0, truncate: bool = True,
                 attention_factor: Optional[float] = None, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> None:
        self._values = (kind, float(factor), whole(original_length, "original_length"), float(low_frequency),
                        float(high_frequency), float(beta_fast), float(beta_slow), bool(truncate),
                        None if attention_factor is None else float(attention_factor), float(mscale),
                        float(mscale_all_dim))
        super().__init__(*self._values)

    def __reduce__(self) -> Any:
        return _rope_scaling, self._values

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> RopeScaling:
        """From the ``rope_scaling`` (or ``rope_parameters``) of a Hugging Face config.

        >>> attend.RopeScaling.from_config({"rope_type": "linear", "factor": 2.0})
        """
        names = {"factor": "factor", "original_max_position_embeddings": "original_length",
                 "low_freq_factor": "low_frequency", "high_freq_factor": "high_frequency", "beta_fast": "beta_fast",
                 "beta_slow": "beta_slow", "truncate": "truncate", "attention_factor": "attention_factor",
                 "mscale": "mscale", "mscale_all_dim": "mscale_all_dim"}
        kind = config.get("rope_type", config.get("type"))
        given = {names[key]: value for key, value in config.items() if key in names and value is not None}
        if not isinstance(kind, str) or "factor" not in given:
            raise ValueError(f"rope scaling has rope_type {kind!r} and factor {given.get('factor')!r}, expected both")
        return RopeScaling(kind, **given)


def _rope_scaling(kind, factor, original_length, *rest):
    names = ("low_frequency", "high_frequency", "beta_fast", "beta_slow", "truncate", "attention_factor", "mscale",
             "mscale_all_dim")
    return RopeScaling(kind, factor, original_length, **dict(zip(names, rest)))


def rope_frequencies(rotary_dim: int, theta: float = 10000.0, scaling: Any = None) -> Tuple[np.ndarray, float]:
    """The angle by which each pair rotates per position, [rotary_dim / 2] in float64, and what q and k are multiplied by.

    >>> angles, magnitude = attend.rope_frequencies(64, scaling=attend.RopeScaling("linear", factor=4))
    """
    angles, magnitude = _core.rope_frequencies(whole(rotary_dim, "rotary_dim"), float(theta), scaling)
    return np.array(angles), magnitude


def sinusoidal(length: int, dim: int, *, first_position: int = 0, theta: float = 10000.0,
               dtype: str = "f32") -> np.ndarray:
    """The positions of "Attention Is All You Need", [length, dim]: sines in the even places, cosines in the odd ones.

    >>> x = x + attend.sinusoidal(x.shape[1], x.shape[2])
    """
    length, dim = wholes(length=length, dim=dim)
    if length < 0 or dim < 0:
        raise ValueError(f"length is {length} and dim {dim}, expected both from 0 up")
    result, array = empty("numpy", dtype, (1, 1, length, dim))
    _core.sinusoidal(array.view(), float(theta), [], whole(first_position, "first_position"))
    return result[0, 0]


def add_positions(x: Any, table: Any, *, first_position: int = 0) -> Any:
    """x [..., length, dim] plus the rows of a learned table [positions, dim] from first_position on.

    >>> y = attend.add_positions(x, table)
    """
    array, rank = _up_to_four(x, "x")
    table_array, _ = _up_to_four(table, "table")
    result, result_array = _like(array, rank)
    _core.add_positions(array.view(), table_array.view(), result_array.view(), whole(first_position, "first_position"))
    return finish(array.kind, result)


def add_positions_backward(dy: Any, positions: int, *, first_position: int = 0) -> Any:
    """The gradient of the table [positions, dim], in float32 (float64 for float64); that of x is dy itself.

    >>> dtable = attend.add_positions_backward(dy, positions=len(table))
    """
    array, _ = _up_to_four(dy, "dy")
    result, result_array = empty(array.kind, "f64" if array.dtype == "f64" else "f32",
                                 (1, 1, whole(positions, "positions"), array.shape[3]))
    _core.add_positions_backward(array.view(), result_array.view(), whole(first_position, "first_position"))
    return finish(array.kind, result.reshape(result_array.shape[2:]))


def alibi_slopes(heads: int) -> np.ndarray:
    """The slopes of "Train Short, Test Long" for attention(alibi_slopes=...), also where heads is no power of two.

    >>> out = attend.attention(q, k, v, attend.causal(), alibi_slopes=attend.alibi_slopes(q.shape[1]))
    """
    return np.array(_core.alibi_slopes(whole(heads, "heads")), np.float32)


def t5_bucket(distance: int, *, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128) -> int:
    """The bucket of T5's relative bias that a distance, key minus query, falls into.

    >>> attend.t5_bucket(-9)
    8
    """
    return _core.t5_bucket(whole(distance, "distance"), bool(bidirectional),
                           *wholes(buckets=buckets, max_distance=max_distance))


def t5_bias(table: Any, queries: int, keys: int, *, bidirectional: bool = True, max_distance: int = 128,
            align: str = "last_key") -> Any:
    """T5's relative bias [heads, queries + keys - 1] from its table [buckets, heads], for attention(distance_bias=...).

    align "last_key" puts the last query at the last key (decoding, and equal lengths), "first_key" the first at the
    first.

    >>> out = attend.attention(q, k, v, distance_bias=attend.t5_bias(table, q.shape[2], k.shape[2]))
    """
    queries, keys = wholes(queries=queries, keys=keys)
    array, first = _t5(table, "table", queries, keys, align)
    buckets, heads = array.shape[2:]
    result, result_array = empty(array.kind, array.dtype, (1, heads, 1, max(0, queries + keys - 1)))
    _core.t5_bias(array.view(), result_array.view(), first, bool(bidirectional), buckets,
                  whole(max_distance, "max_distance"))
    return finish(array.kind, result.reshape(heads, -1))


def t5_bias_backward(dbias: Any, queries: int, keys: int, *, buckets: int = 32, bidirectional: bool = True,
                     max_distance: int = 128, align: str = "last_key") -> Any:
    """The gradient of T5's table [buckets, heads] from that of the bias by distance.

    >>> dbias = attend.attention_backward(dout, q, k, v, out, lse, distance_bias=bias).dbias
    >>> dtable = attend.t5_bias_backward(dbias, q.shape[2], k.shape[2])
    """
    queries, keys, buckets = wholes(queries=queries, keys=keys, buckets=buckets)
    array, first = _t5(dbias, "dbias", queries, keys, align)
    heads = array.shape[2]
    array.shape, array.strides = (1, heads, 1, array.shape[3]), (0, array.strides[2], 0, array.strides[3])
    result, result_array = empty(array.kind, array.dtype, (1, 1, buckets, heads))
    _core.t5_bias_backward(array.view(), result_array.view(), first, bool(bidirectional), buckets,
                           whole(max_distance, "max_distance"))
    return finish(array.kind, result.reshape(buckets, heads))


def _t5(x, name, queries, keys, align):
    array = describe(x, name)
    if len(array.shape) != 2:
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected 2")
    if align not in ("first_key", "last_key"):
        raise ValueError(f'align is {align!r}, expected "first_key" or "last_key"')
    array.shape, array.strides = (1, 1) + array.shape, (0, 0) + array.strides
    return array, 1 - (keys if align == "last_key" else queries)
