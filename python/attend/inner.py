"""What a MultiHeadAttention may compute between its projections instead of softmax attention.

>>> layer = attend.MultiHeadAttention(512, heads=8, inner=attend.inner.linear_attention()).initialise(0)

Each object has a name and parameters: NumPy arrays over its own memory, whose gradients layer.backward gives as ``inner``.
"""

from __future__ import annotations

import copyreg
import functools
from typing import Any, Optional, Sequence

from . import _adaptive_span, _core, _linear_attention, _linformer, _reformer
from ._whole import whole, wholes
from .masks import Mask

__all__ = ["adaptive_span", "additive_attention", "linear_attention", "linformer", "reformer"]


def _remembered(make):
    """The maker of an inner attention that can be pickled and copied: it remembers what it was made from."""

    @functools.wraps(make)
    def wrapper(*args, **options):
        inner = make(*args, **options)
        inner._made = make.__name__, args, options
        return inner

    return wrapper


def _remade(made, parameters):
    name, args, options = made
    inner = globals()[name](*args, **options)
    for key, array in inner.parameters.items():
        array[...] = parameters[key]
    return inner


copyreg.pickle(_core.InnerAttention, lambda inner: (
    _remade, (inner._made, {name: array.copy() for name, array in inner.parameters.items()})))


@_remembered
def linear_attention(*, feature_map: str = "elu+1", causal: bool = True, normalise: bool = True, scale: float = 1.0,
                     eps: float = 0.0, log_decay: Any = None) -> _core.InnerAttention:
    """attend.linear_attention; log_decay is [heads].

    >>> inner = attend.inner.linear_attention(feature_map="relu", eps=1e-6)
    """
    return _core.linear_attention_inner(
        _linear_attention._Options(feature_map, causal, normalise, scale, eps, log_decay, None, None, None).core)


@_remembered
def linformer(length: int, rank: int, *, kv_heads: int = 1, shared: bool = False, seed: int = 0,
              dtype: str = "f32") -> _core.InnerAttention:
    """attend.linformer, for sequences up to ``length``, with the parameters e and, unless shared, f.

    >>> inner = attend.inner.linformer(length=4096, rank=256)
    """
    return _core.linformer_inner(dtype, *wholes(length=length, rank=rank, kv_heads=kv_heads), bool(shared),
                                 whole(seed, "seed"))


@_remembered
def reformer(*, rounds: int = 4, chunk: int = 64, buckets: Optional[Sequence[int]] = None, causal: bool = False,
             seed: int = 0, scale: Optional[float] = None) -> _core.InnerAttention:
    """attend.reformer: the layer's queries serve as keys too, and what it projects as keys is not used.

    >>> inner = attend.inner.reformer(causal=True)
    """
    return _core.reformer_inner(_reformer._options(rounds, chunk, buckets, causal, seed, scale))


@_remembered
def adaptive_span(heads: int, *, initial_span: float = 0.0, ramp: float = 32.0, max_span: float = 1024.0,
                  symmetric: bool = False, scale: Optional[float] = None) -> _core.InnerAttention:
    """attend.adaptive_span, with the parameter span, [1, heads, 1, 1].

    >>> inner = attend.inner.adaptive_span(heads=8, initial_span=64)
    """
    return _core.adaptive_span_inner(
        whole(heads, "heads"), float(initial_span),
        _adaptive_span._options(None, ramp, max_span, symmetric, "last_key", scale))


@_remembered
def additive_attention(heads: int, head_dim: int, *, mask: Optional[Mask] = None, scale: float = 1.0,
                       dtype: str = "f32") -> _core.InnerAttention:
    """attend.additive_attention, with the parameter w, [1, heads, 1, head_dim].

    >>> inner = attend.inner.additive_attention(8, 64, mask=attend.causal())
    """
    return _core.additive_attention_inner(dtype, *wholes(heads=heads, head_dim=head_dim), _linformer._mask(mask),
                                          float(scale))
