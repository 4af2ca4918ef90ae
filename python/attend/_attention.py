"""attention and its gradient over anybody's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _core
from ._arrays import describe, empty
from ._row_statistics import rows_of, statistics_options
from ._whole import flag
from .masks import Mask, diagonal, no_mask

_LAYOUTS = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3)}


class AttentionGradients(NamedTuple):
    """What attention_backward returns; dbias (of bias or of distance_bias) and dsinks are None without them.

    >>> out, lse = attend.attention(q, k, v, return_lse=True)
    >>> dq = attend.attention_backward(dout, q, k, v, out, lse).dq
    """

    dq: Any
    dk: Any
    dv: Any
    dbias: Any
    dsinks: Any


def _order(layout):
    if layout not in _LAYOUTS:
        raise ValueError(f'layout is {layout!r}, expected "bhld" or "blhd"')
    return _LAYOUTS[layout]


def _four(array, name):
    if len(array.shape) != 4:
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected 4: batch, heads, length and dim")
    return array


_LSE = (0, 1, 2)  # where batch, heads and queries stand among the engine's four dimensions


def _lse_view(array):
    """The engine's view of [batch, heads, queries]."""
    if len(array.shape) != 3:
        raise ValueError(f"lse has {len(array.shape)} dimensions, expected 3: batch, heads and queries")
    return array.view_at(_LSE)


def _new_results(queries, value_dim, order, want_lse):
    """Room for what attention from `queries` gives: out and its view; lse and its view, None unless it is wanted."""
    want_lse = flag(want_lse, "return_lse")
    rows = tuple(queries.shape[axis] for axis in order[:3])
    shape = [*rows, value_dim]
    out, out_array = empty(queries.kind, queries.dtype, [shape[axis] for axis in order])
    lse, lse_array = empty(queries.kind, _wide(queries.dtype), rows) if want_lse else (None, None)
    return out, out_array.view(order), lse, _lse_view(lse_array) if want_lse else None


_ALL_VISIBLE = no_mask()
_OFF, _NO_SEED = 0.0, 0  # defaults, told by identity: a caller's own object may be anything that turns into a number


def _checked_mask(mask):
    if mask is None:
        return _ALL_VISIBLE
    if not isinstance(mask, Mask):
        raise TypeError(f"mask is a {type(mask).__name__}, expected a mask such as attend.causal(), or "
                        "attend.dense(array) for a boolean array")
    return mask


def score_options(mask=None, scale=None, bias=None, softcap=_OFF, alibi_slopes=None, alibi_align="last_key", sinks=None,
                  dropout=_OFF, seed=_NO_SEED, distance_bias=None):
    """The score options of a call, kept alive together: forward and backward must be given the same. A mask that is
    given alone keeps them for the next call."""
    mask = _checked_mask(mask)
    alone = (scale is None and bias is None and softcap is _OFF and alibi_slopes is None and alibi_align == "last_key"
             and sinks is None and dropout is _OFF and seed is _NO_SEED and distance_bias is None)
    if alone and mask._alone is not None:
        return mask._alone
    if type(bias).__name__ == "CausalBias":  # PyTorch's: a rule whose memory was never written
        raise TypeError('bias is a CausalBias, expected an array: the mask attend.causal() says the same, aligned to '
                        'the last key, attend.causal("first_key") to the first')
    options = _core.ScoreOptions(mask._core, mask._made, scale, bias, softcap, alibi_slopes, diagonal(alibi_align),
                                 sinks, dropout, seed, distance_bias)
    if alone:
        mask._alone = options
    return options


def _wide(dtype):
    return "f64" if dtype == "f64" else "f32"


def _inputs(layout, **arrays):
    order = _order(layout)
    described = {name: _four(describe(x, name), name) for name, x in arrays.items()}
    return order, described


def attention(q: Any, k: Any, v: Any, mask: Optional[Mask] = None, *, scale: Optional[float] = None, bias: Any = None,
              softcap: float = _OFF, alibi_slopes: Any = None, alibi_align: str = "last_key", sinks: Any = None,
              dropout: float = _OFF, seed: int = _NO_SEED, distance_bias: Any = None, layout: str = "bhld",
              return_lse: bool = False, return_weights: bool = False, return_statistics: Any = False) -> Any:
    """softmax(scale * q.k + ...) . v, exactly, in memory linear in the length.

    q is [batch, heads, queries, dim] (layout "bhld") or [batch, queries, heads, dim] ("blhd"); k and v may have fewer
    heads (GQA, MQA) and v another dim. float32, float16, bfloat16 or float64; NumPy, PyTorch (CPU), JAX (CPU), or
    anything with DLPack. No input is copied; the result is of q's library.

    mask           attend.causal(), window(left, right), padding(lengths), ... composed with &
    scale          1/sqrt(dim) by default; 1.0 turns it off
    bias           added to the scores; broadcasts over batch, heads, queries and keys
    distance_bias  instead of bias, [queries + keys - 1] or [heads, queries + keys - 1]: element queries - 1 + j - i is
                   added to the score of query i and key j (attend.t5_bias makes one)
    softcap        s becomes softcap * tanh(s / softcap)
    alibi_slopes   [heads] or [batch, heads]
    sinks          [heads]: one more logit per row that takes weight and gives no value
    dropout, seed  of the weights; the same seed drops the same weights, whatever the threads
    return_lse, return_weights   also the log-sum-exp [batch, heads, queries] and the weights [batch, heads, queries,
                                 keys] (before dropout), in float32
    return_statistics   also a RowStatistics, what each row of weights is like, gathered in the same sweep: True, or the
                        options of Observation.statistics as a dict, such as {"tokens": ids}

    >>> out = attend.attention(q, k, v, mask=attend.window(1023, 0))
    """
    options = score_options(mask, scale, bias, softcap, alibi_slopes, alibi_align, sinks, dropout, seed, distance_bias)
    wanted = None
    if return_statistics is not False:
        wanted = statistics_options(**({} if return_statistics is True else return_statistics))[1]
    out, lse, weights, rows = _core.array_attention(q, k, v, options, _order(layout), return_lse, return_weights,
                                                    wanted)
    if not return_lse and not return_weights and wanted is None:
        return out
    return ((out,) + ((lse,) if return_lse else ()) + ((weights,) if return_weights else ())
            + (() if wanted is None else (rows_of(rows),)))


def attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, mask: Optional[Mask] = None, *,
                       scale: Optional[float] = None, bias: Any = None, softcap: float = _OFF, alibi_slopes: Any = None,
                       alibi_align: str = "last_key", sinks: Any = None, dropout: float = _OFF, seed: int = _NO_SEED,
                       distance_bias: Any = None, layout: str = "bhld") -> AttentionGradients:
    """The gradients of q, k and v (and of bias and sinks), from what attention(..., return_lse=True) gave.

    Give it the options that attention was given.

    >>> out, lse = attend.attention(q, k, v, mask, return_lse=True)
    >>> dq, dk, dv, dbias, dsinks = attend.attention_backward(dout, q, k, v, out, lse, mask)
    """
    options = score_options(mask, scale, bias, softcap, alibi_slopes, alibi_align, sinks, dropout, seed, distance_bias)
    return AttentionGradients._make(
        _core.array_attention_backward(dout, q, k, v, out, lse, options, _order(layout)))
