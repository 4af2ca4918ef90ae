"""softmax and rope, with their gradients."""

from __future__ import annotations

from typing import Any

from . import _core
from ._arrays import describe, empty, finish
from ._whole import whole


def _up_to_four(x, name):
    array = describe(x, name)
    rank = len(array.shape)
    if not 1 <= rank <= 4:
        raise ValueError(f"{name} has {rank} dimensions, expected 1 to 4")
    array.shape = (1,) * (4 - rank) + array.shape
    array.strides = (0,) * (4 - rank) + array.strides
    return array, rank


def _like(array, rank):
    result, result_array = empty(array.kind, array.dtype, array.shape)
    return result.reshape(array.shape[4 - rank:]), result_array


def softmax(x: Any) -> Any:
    """softmax over the last dimension. A row of -inf gives zeros, not NaN.

    >>> attend.softmax(np.array([[0.0, 0.0], [-np.inf, 1.0]], np.float32))
    array([[0.5, 0.5],
           [0. , 1. ]], dtype=float32)
    """
    array, rank = _up_to_four(x, "x")
    result, result_array = _like(array, rank)
    _core.softmax(array.view(), result_array.view())
    return finish(array.kind, result)


def softmax_backward(dy: Any, y: Any) -> Any:
    """The gradient of softmax's input from that of its output ``y``.

    >>> dx = attend.softmax_backward(dy, attend.softmax(x))
    """
    dy_array, rank = _up_to_four(dy, "dy")
    y_array, _ = _up_to_four(y, "y")
    result, result_array = _like(y_array, rank)
    _core.softmax_backward(dy_array.view(), y_array.view(), result_array.view())
    return finish(y_array.kind, result)


def _style(style):
    if style not in ("half_split", "interleaved"):
        raise ValueError(f'style is {style!r}, expected "half_split" or "interleaved"')
    return style == "interleaved"


def _positions(positions, length):
    from .masks import _ints

    listed = [] if positions is None else _ints(positions, "positions")
    if positions is not None and not listed and length != 0:
        raise ValueError(f"positions is empty, expected {length} of them (length)")
    return listed


class RopeTable(_core.RopeTable):
    """The cosines and sines of ``length`` positions for rows of ``dim`` numbers, made once for all layers and heads.

    >>> table = attend.RopeTable(q.shape[3], 4096, theta=1e6)
    >>> q, k = attend.rope(q, table=table), attend.rope(k, table=table)
    >>> q = attend.rope(q, table=table, first_position=17)      # rows 17 and on of the table
    """

    def __init__(self, dim: int, length: int, positions: Any = None, *, first_position: int = 0, theta: float = 10000.0,
                 rotary_dim: int = 0, style: str = "half_split", scaling: Any = None) -> None:
        dim, length = whole(dim, "dim"), whole(length, "length")
        super().__init__(dim, length, _style(style), float(theta), whole(rotary_dim, "rotary_dim"),
                         _positions(positions, length), whole(first_position, "first_position"), scaling)


def _rope(x, positions, first_position, theta, rotary_dim, style, layout, scaling, table, backward):
    from ._attention import _four, _order

    order = _order(layout)
    array = _four(describe(x, "x"), "x")
    interleaved = _style(style)
    result, result_array = empty(array.kind, array.dtype, array.shape)
    views = array.view(order), result_array.view(order), backward
    first = whole(first_position, "first_position")
    if table is None:
        _core.rope(*views, interleaved, float(theta), whole(rotary_dim, "rotary_dim"),
                   _positions(positions, array.shape[order[2]]), first, scaling)
    elif positions is not None or scaling is not None:
        raise ValueError("got positions or a scaling beside a table, expected none: the table has them")
    else:
        _core.rope_by_table(*views, table, first)
    return finish(array.kind, result)


def rope(x: Any, positions: Any = None, *, first_position: int = 0, theta: float = 10000.0, rotary_dim: int = 0,
         style: str = "half_split", layout: str = "bhld", scaling: Any = None, table: Any = None) -> Any:
    """Rotary position embedding of x [batch, heads, length, dim].

    style "half_split" pairs (i, i + R/2) as Llama and Qwen do, "interleaved" pairs (2i, 2i + 1) as GPT-J does. The
    first ``rotary_dim`` elements turn (0: all); ``scaling`` is an attend.RopeScaling. A ``table``, attend.RopeTable,
    says all of that but the layout; x then begins at its row ``first_position``.

    >>> q = attend.rope(q, theta=1e6)
    """
    return _rope(x, positions, first_position, theta, rotary_dim, style, layout, scaling, table, False)


def rope_backward(dy: Any, positions: Any = None, *, first_position: int = 0, theta: float = 10000.0,
                  rotary_dim: int = 0, style: str = "half_split", layout: str = "bhld", scaling: Any = None,
                  table: Any = None) -> Any:
    """The gradient of rope's input: the turn backwards.

    >>> dq = attend.rope_backward(dq, theta=1e6)
    """
    return _rope(dy, positions, first_position, theta, rotary_dim, style, layout, scaling, table, True)
