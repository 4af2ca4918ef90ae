"""Multi-head latent attention (MLA)."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from . import _core
from ._arrays import empty, finish
from ._attention import score_options
from ._copied import Copied
from ._layer import _as_rows, _by_name, _load, _named, _three, _to_kind
from ._whole import flag, whole, wholes
from .masks import Mask


class LatentGradients(NamedTuple):
    """What LatentAttention.backward returns.

    >>> y, saved = layer(x, mask=attend.causal(), save=True)
    >>> dx, parameters = layer.backward(y, saved)
    """

    dx: Any
    parameters: Dict[str, np.ndarray]


class LatentAttention(Copied):
    """Keys and values of all heads from one short vector a token, which is all a cache keeps (DeepSeek-V2, V3).

    >>> layer = attend.LatentAttention(1024, heads=8, q_rank=384, kv_rank=256, nope_dim=64, rope_dim=32, value_dim=64)
    >>> y = layer.initialise(0)(x, mask=attend.causal())      # x [batch, length, 1024]
    >>> layer.bytes_per_token, layer.expanded_bytes_per_token
    (1152, 5120)

    Parameters lie as in DeepSeek's files: wq_down, q_norm (with a q_rank), wq, wkv_down, kv_norm, wkv_up, wo.
    """

    def __init__(self, width: int, heads: int, *, kv_rank: int, nope_dim: int, rope_dim: int, value_dim: int,
                 q_rank: int = 0, norm_eps: float = 1e-6, rope: str = "interleaved", rope_theta: float = 10000.0,
                 rope_scaling: Optional[_core.RopeScaling] = None, scale: Optional[float] = None,
                 dtype: str = "f32") -> None:
        self.dtype = dtype
        self._config = dict(width=width, heads=heads, kv_rank=kv_rank, nope_dim=nope_dim, rope_dim=rope_dim,
                            value_dim=value_dim, q_rank=q_rank, norm_eps=norm_eps, rope=rope, rope_theta=rope_theta,
                            rope_scaling=rope_scaling, scale=scale)
        self._core = self._new_core()

    def _new_core(self):
        c = self._config
        return _core.LatentAttention(
            self.dtype, *wholes(width=c["width"], heads=c["heads"], q_rank=c["q_rank"], kv_rank=c["kv_rank"],
                                nope_dim=c["nope_dim"], rope_dim=c["rope_dim"], value_dim=c["value_dim"]),
            float(c["norm_eps"]), c["rope"], float(c["rope_theta"]), c["rope_scaling"],
            None if c["scale"] is None else float(c["scale"]))

    @property
    def parameters(self) -> Dict[str, np.ndarray]:
        """The parameters by name, as NumPy arrays over the layer's own memory: write to them to change the layer.

        >>> layer.parameters["wkv_up"] *= 0.5
        """
        return _by_name(self._core.parameters, self.dtype)

    @property
    def scale(self) -> float:
        """Of the scores, with YaRN's factor.

        >>> layer.scale
        """
        return self._core.scale

    @property
    def bytes_per_token(self) -> int:
        """What a cache takes for a token.

        >>> cache_bytes = layer.bytes_per_token * tokens
        """
        return self._core.bytes_per_token

    @property
    def expanded_bytes_per_token(self) -> int:
        """What a cache of all heads' keys and values would take.

        >>> layer.expanded_bytes_per_token / layer.bytes_per_token
        """
        return self._core.expanded_bytes_per_token

    def load(self, values: Mapping[str, Any]) -> None:
        """Copies arrays into the parameters of the same names; all must be there and fit.

        >>> layer.load({name: np.zeros_like(p) for name, p in layer.parameters.items()})
        """
        _load(self.parameters, values)

    def __call__(self, x: Any, mask: Optional[Mask] = None, *, save: bool = False, **options: Any) -> Any:
        """x [batch, length, width] -> the same shape; save adds what backward needs.

        >>> y, saved = layer(x, mask=attend.causal(), save=True)
        """
        x_array, x_view = _three(x, "x")
        held = score_options(mask, **options)
        out, out_array = empty(x_array.kind, self.dtype, (*x_array.shape[:2], self._core.width))
        saved = self._core.forward(x_view, held.core, _as_rows(out_array), flag(save, "save"))
        result = finish(x_array.kind, out)
        return (result, (saved, held)) if save else result

    def backward(self, dout: Any, saved: Tuple[Any, ...]) -> LatentGradients:
        """Gradients of x and of all parameters, from what ``layer(x, save=True)`` saved.

        >>> y, saved = layer(x, save=True)
        >>> gradients = layer.backward(np.ones_like(y), saved)
        """
        dout_array, dout_view = _three(dout, "dout")
        gradients = self._core.backward(dout_view, saved[0])
        return LatentGradients(
            _to_kind(dout_array.kind, _named(gradients.dx, self.dtype)[:, 0]),
            _by_name(gradients.parameters, self.dtype))

    def cache(self, batch: int, capacity: int) -> _core.LatentCache:
        """An empty cache for prefill and step, with length, capacity, bytes, bytes_per_token and truncate(length).

        >>> cache = layer.cache(batch=1, capacity=4096)
        """
        return self._core.cache(whole(batch, "batch"), whole(capacity, "capacity"))

    def prefill(self, x: Any, cache: _core.LatentCache, mask: Optional[Mask] = None, **options: Any) -> Any:
        """The next tokens x [batch, tokens, width], many at once: keys and values of all heads are made from the cache.

        >>> y = layer.prefill(prompt, cache)
        """
        return self._append(x, cache, mask, options, True)

    def step(self, x: Any, cache: _core.LatentCache, mask: Optional[Mask] = None, **options: Any) -> Any:
        """The next tokens, few at once: attends to the cache itself. Causal by default, as prefill.

        >>> y = layer.step(x[:, :1], cache)
        """
        return self._append(x, cache, mask, options, False)

    def _append(self, x, cache, mask, options, expanded):
        x_array, x_view = _three(x, "x")
        held = None if mask is None and not options else score_options(mask, **options)
        out, out_array = empty(x_array.kind, self.dtype, (*x_array.shape[:2], self._core.width))
        self._core.append(x_view, cache, None if held is None else held.core, _as_rows(out_array), expanded)
        return finish(x_array.kind, out)
