"""The building blocks of a model: norms, activations, sums, dropout, embedding, cross-entropy, with their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import _core
from ._arrays import describe, empty, finish
from ._operations import _like, _up_to_four
from ._whole import whole


def _vector(x, name):
    """A weight of a norm, [dim], as [1, 1, 1, dim]."""
    array, rank = _up_to_four(x, name)
    if rank != 1:
        raise ValueError(f"{name} has {rank} dimensions, expected 1")
    return array


def _matrix(x, name):
    array, rank = _up_to_four(x, name)
    if rank != 2:
        raise ValueError(f"{name} has {rank} dimensions, expected 2")
    return array


def _whole_array(values, name):
    """int64 in C order, and what the engine is told of it."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} is {array.dtype}, expected whole numbers")
    array = np.ascontiguousarray(array, dtype=np.int64)
    return array, _core.Integers(array.ctypes.data, array.size)


def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, rounded once.

    >>> y = attend.rms_norm(x, weight)
    """
    array, rank = _up_to_four(x, "x")
    result, result_array = _like(array, rank)
    _core.rms_norm(array.view(), _vector(weight, "weight").view(), result_array.view(), float(eps))
    return finish(array.kind, result)


class RmsNormGradients(NamedTuple):
    dx: Any
    dweight: Any


def rms_norm_backward(dy: Any, x: Any, weight: Any, eps: float = 1e-6) -> RmsNormGradients:
    """The gradients of x and weight.

    >>> dx, dweight = attend.rms_norm_backward(dy, x, weight)
    """
    dy_array, _ = _up_to_four(dy, "dy")
    array, rank = _up_to_four(x, "x")
    weights = _vector(weight, "weight")
    dx, dx_array = _like(array, rank)
    dweight, dweight_array = _like(weights, 1)
    _core.rms_norm_backward(dy_array.view(), array.view(), weights.view(), dx_array.view(), dweight_array.view(),
                            float(eps))
    return RmsNormGradients(finish(array.kind, dx), finish(array.kind, dweight))


def layer_norm(x: Any, weight: Any, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, rounded once.

    >>> y = attend.layer_norm(x, weight, bias)
    """
    array, rank = _up_to_four(x, "x")
    shift = None if bias is None else _vector(bias, "bias").view()
    result, result_array = _like(array, rank)
    _core.layer_norm(array.view(), _vector(weight, "weight").view(), shift, result_array.view(), float(eps))
    return finish(array.kind, result)


class LayerNormGradients(NamedTuple):
    dx: Any
    dweight: Any
    dbias: Any


def layer_norm_backward(dy: Any, x: Any, weight: Any, eps: float = 1e-5) -> LayerNormGradients:
    """The gradients of x, weight and bias.

    >>> dx, dweight, dbias = attend.layer_norm_backward(dy, x, weight)
    """
    dy_array, _ = _up_to_four(dy, "dy")
    array, rank = _up_to_four(x, "x")
    weights = _vector(weight, "weight")
    dx, dx_array = _like(array, rank)
    dweight, dweight_array = _like(weights, 1)
    dbias, dbias_array = _like(weights, 1)
    _core.layer_norm_backward(dy_array.view(), array.view(), weights.view(), dx_array.view(), dweight_array.view(),
                              dbias_array.view(), float(eps))
    return LayerNormGradients(*(finish(array.kind, made) for made in (dx, dweight, dbias)))


def activation(kind: str, x: Any, up: Any = None) -> Any:
    """act(x), or act(x) * up: kind "silu", "gelu" (by the error function), "gelu_tanh" or "relu".

    >>> hidden = attend.activation("silu", gate, up)     # SwiGLU
    """
    array, rank = _up_to_four(x, "x")
    factor = None if up is None else _up_to_four(up, "up")[0].view()
    result, result_array = _like(array, rank)
    _core.activation(kind, array.view(), factor, result_array.view())
    return finish(array.kind, result)


class GatedGradients(NamedTuple):
    dx: Any
    dup: Any


def activation_backward(kind: str, dy: Any, x: Any, up: Any = None) -> Union[Any, GatedGradients]:
    """The gradient of x; with an ``up``, those of both.

    >>> dgate, dup = attend.activation_backward("silu", dhidden, gate, up)
    """
    dy_array, _ = _up_to_four(dy, "dy")
    array, rank = _up_to_four(x, "x")
    dx, dx_array = _like(array, rank)
    if up is None:
        _core.activation_backward(kind, dy_array.view(), array.view(), None, dx_array.view(), None)
        return finish(array.kind, dx)
    dup, dup_array = _like(array, rank)
    _core.activation_backward(kind, dy_array.view(), array.view(), _up_to_four(up, "up")[0].view(), dx_array.view(),
                              dup_array.view())
    return GatedGradients(finish(array.kind, dx), finish(array.kind, dup))


def add(x: Any, y: Any) -> Any:
    """x + y in the dtype of x, made in float32 and rounded once: a residual connection.

    >>> x = attend.add(x, attention_out)
    """
    array, rank = _up_to_four(x, "x")
    other, _ = _up_to_four(y, "y")
    result, result_array = _like(array, rank)
    _core.add(array.view(), other.view(), result_array.view())
    return finish(array.kind, result)


def dropout(x: Any, probability: float, seed: int) -> Any:
    """x / (1 - probability) where an element is kept, 0 elsewhere. Which are kept is a function of the seed and of an
    element's number alone; the gradient is the same call on dy.

    >>> y = attend.dropout(x, 0.1, seed=step)
    """
    array, rank = _up_to_four(x, "x")
    result, result_array = _like(array, rank)
    _core.dropout(array.view(), result_array.view(), float(probability), whole(seed, "seed") % 2**64)
    return finish(array.kind, result)


def embedding(table: Any, tokens: Any) -> Any:
    """Rows of the table [rows, dim] by number: [..., dim] for tokens [...].

    >>> x = attend.embedding(table, tokens)
    """
    array = _matrix(table, "table")
    numbers, told = _whole_array(tokens, "tokens")
    dim = array.shape[3]
    result, result_array = empty(array.kind, array.dtype, (1, 1, numbers.size, dim))
    _core.embedding(array.view(), told, result_array.view())
    return finish(array.kind, result.reshape(tuple(numbers.shape) + (dim,)))


def embedding_backward(dy: Any, tokens: Any, rows: int) -> Any:
    """The gradient of a table of so many rows, from dy [..., dim] for tokens [...].

    >>> dtable = attend.embedding_backward(dx, tokens, len(table))
    """
    array = describe(dy, "dy")
    numbers, told = _whole_array(tokens, "tokens")
    if tuple(array.shape[:-1]) != tuple(numbers.shape):
        raise ValueError(f"dy has shape {tuple(array.shape)}, expected {tuple(numbers.shape)} (of tokens) and a dim")
    rank = len(array.shape)
    if rank > 4:
        raise ValueError(f"dy has {rank} dimensions, expected 1 to 4")
    array.shape, array.strides = (1,) * (4 - rank) + array.shape, (0,) * (4 - rank) + array.strides
    result, result_array = empty(array.kind, array.dtype, (1, 1, whole(rows, "rows"), array.shape[3]))
    _core.embedding_backward(array.view(), told, result_array.view())
    return finish(array.kind, result.reshape(result_array.shape[2:]))


def _loss_arrays(hidden, weight, targets):
    array, rank = _up_to_four(hidden, "hidden")
    weights = _matrix(weight, "weight")
    numbers, told = _whole_array(targets, "targets")
    rows = tuple(array.shape[4 - rank:-1])
    if tuple(numbers.shape) != rows:
        raise ValueError(f"targets has shape {tuple(numbers.shape)}, expected {rows}, one for each row of hidden")
    loss, loss_array = empty(array.kind, "f64" if array.dtype == "f64" else "f32", tuple(array.shape[:3]) + (1,))
    return array, rank, weights, numbers, told, loss.reshape(rows), loss_array


def cross_entropy(hidden: Any, weight: Any, targets: Any, *, ignore_index: int = -100) -> Any:
    """The loss of each row of ``hidden`` [..., width]: cross-entropy of its logits hidden @ weight.T, with weight
    [vocabulary, width] and targets [...]. The logits of all rows are never in memory at once.

    >>> loss = attend.cross_entropy(hidden, head, targets).mean()
    """
    array, _, weights, numbers, told, loss, loss_array = _loss_arrays(hidden, weight, targets)
    _core.cross_entropy(array.view(), weights.view(), told, loss_array.view(), whole(ignore_index, "ignore_index"))
    return finish(array.kind, loss)


class CrossEntropyGradients(NamedTuple):
    dhidden: Any
    dweight: Any
    loss: Any


def cross_entropy_backward(dloss: Any, hidden: Any, weight: Any, targets: Any, *,
                           ignore_index: int = -100) -> CrossEntropyGradients:
    """The gradients of sum(dloss * loss), and the losses, which cost nothing here: training needs this call alone.

    >>> dhidden, dweight, loss = attend.cross_entropy_backward(np.full(n, 1 / n, np.float32), hidden, head, targets)
    """
    array, rank, weights, numbers, told, loss, loss_array = _loss_arrays(hidden, weight, targets)
    factors = describe(dloss, "dloss")
    if tuple(factors.shape) != tuple(numbers.shape):
        raise ValueError(f"dloss has shape {tuple(factors.shape)}, expected {tuple(numbers.shape)}, as targets")
    lead = (1,) * (4 - rank)
    factors.shape, factors.strides = lead + tuple(factors.shape) + (1,), (0,) * (4 - rank) + tuple(factors.strides) + (0,)
    dhidden, dhidden_array = _like(array, rank)
    dweight, dweight_array = _like(weights, 2)
    _core.cross_entropy_backward(factors.view(), array.view(), weights.view(), told, dhidden_array.view(),
                                 dweight_array.view(), loss_array.view(), whole(ignore_index, "ignore_index"))
    return CrossEntropyGradients(*(finish(array.kind, made) for made in (dhidden, dweight, loss)))
