"""The attention layer."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from . import _core
from ._arrays import describe, empty, finish, numpy_dtype
from ._attention import score_options
from ._copied import Copied
from ._whole import flag, whole, wholes
from .masks import Mask


class LayerGradients(NamedTuple):
    """What MultiHeadAttention.backward returns: dcontext is None for self-attention, inner holds the gradients of the inner
    attention's own parameters.

    >>> y, saved = layer(x, save=True)
    >>> dwq = layer.backward(y, saved).parameters["wq"]
    """

    dx: Any
    dcontext: Any
    parameters: Dict[str, np.ndarray]
    inner: Dict[str, np.ndarray] = {}


def _named(array, dtype):
    """An engine array under its NumPy type."""
    if array is None:
        return None
    if dtype == "bf16":
        array = array.view(numpy_dtype("bf16"))
    return array


class MultiHeadAttention(Copied):
    """Projections, heads, positions and cache around attention.

    >>> layer = attend.MultiHeadAttention(512, heads=8, kv_heads=2, rope="half_split").initialise(0)
    >>> y = layer(x, mask=attend.causal())            # x [batch, length, 512]

    ``inner`` (from attend.inner) is computed between the projections instead of softmax attention; masks and score
    options are then its own.
    """

    def __init__(self, width: int, heads: int, *, kv_heads: int = 0, head_dim: int = 0, value_dim: int = 0,
                 context_width: int = 0, output_width: int = 0, value_rank: int = 0, qkv_bias: bool = False,
                 output_bias: bool = False, qk_norm: bool = False, norm_eps: float = 1e-6, rope: Optional[str] = None,
                 rope_theta: float = 10000.0, rope_scaling: Optional[_core.RopeScaling] = None,
                 inner: Optional[_core.InnerAttention] = None, dtype: str = "f32") -> None:
        self.dtype = dtype
        self.inner = inner
        self._config = dict(width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim,
                            context_width=context_width, output_width=output_width, value_rank=value_rank,
                            qkv_bias=qkv_bias, output_bias=output_bias, qk_norm=qk_norm, norm_eps=norm_eps, rope=rope,
                            rope_theta=rope_theta, rope_scaling=rope_scaling)
        self._core = self._new_core()

    def _new_core(self):
        c = self._config
        sizes = ("width", "heads", "kv_heads", "head_dim", "value_dim", "context_width", "output_width", "value_rank")
        return _core.MultiHeadAttention(
            self.dtype, *wholes(**{name: c[name] for name in sizes}), bool(c["qkv_bias"]), bool(c["output_bias"]),
            bool(c["qk_norm"]), float(c["norm_eps"]), c["rope"], float(c["rope_theta"]), c["rope_scaling"], self.inner)

    @classmethod
    def from_torch(cls, module: Any) -> MultiHeadAttention:
        """A layer with the weights of a ``torch.nn.MultiheadAttention``.

        >>> layer = attend.MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(64, 4, batch_first=True))
        """
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn are not supported: they add keys of their own")
        if module.kdim != module.vdim:
            raise ValueError(f"kdim is {module.kdim} and vdim {module.vdim}, expected them equal: K and V come from "
                             "one context")
        dtype = describe(module.out_proj.weight.detach(), "out_proj.weight").dtype
        layer = cls(module.embed_dim, module.num_heads, context_width=module.kdim,
                    qkv_bias=module.in_proj_bias is not None, output_bias=module.out_proj.bias is not None, dtype=dtype)
        if module._qkv_same_embed_dim:
            wq, wk, wv = module.in_proj_weight.detach().chunk(3)
        else:
            wq, wk, wv = (w.detach() for w in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight))
        values = {"wq": wq, "wk": wk, "wv": wv, "wo": module.out_proj.weight.detach()}
        if module.in_proj_bias is not None:
            values.update(zip(("bq", "bk", "bv"), module.in_proj_bias.detach().chunk(3)))
        if module.out_proj.bias is not None:
            values["bo"] = module.out_proj.bias.detach()
        layer.load({name: _torch_to_numpy(value, dtype) for name, value in values.items()})
        return layer

    @property
    def parameters(self) -> Dict[str, np.ndarray]:
        """The parameters by name, as NumPy arrays over the layer's own memory: write to them to change the layer.

        >>> layer.parameters["wq"] *= 0.5
        """
        return _by_name(self._core.parameters, self.dtype)

    def load(self, values: Mapping[str, Any]) -> None:
        """Copies arrays into the parameters of the same names; all must be there and fit.

        >>> layer.load({name: np.zeros_like(p) for name, p in layer.parameters.items()})
        """
        _load(self.parameters, values)

    def __call__(self, x: Any, context: Any = None, mask: Optional[Mask] = None, *, return_weights: bool = False,
                 save: bool = False, **options: Any) -> Any:
        """x [batch, length, width] -> [batch, length, output_width]; with a context, cross-attention.

        return_weights adds the weights [batch, heads, queries, keys]; save adds what backward needs. The score options
        of attend.attention (scale, bias, softcap, ...) may be given too.

        >>> y, weights = layer(x, mask=attend.causal(), return_weights=True)
        """
        x_array, x_view = _three(x, "x")
        context_array, context_view = (None, None) if context is None else _three(context, "context")
        held = score_options(mask, **options)
        B, M = x_array.shape[:2]
        N = (x_array if context_array is None else context_array).shape[1]
        out, out_array = empty(x_array.kind, self.dtype, (B, M, self._core.output_width))
        weights = weights_view = None
        if flag(return_weights, "return_weights"):
            wide = "f64" if self.dtype == "f64" else "f32"
            weights, weights_array = empty(x_array.kind, wide, (B, self._core.heads, M, N))
            weights_view = weights_array.view()
        saved = self._core.forward(x_view, context_view, held.core, _as_rows(out_array), weights_view, flag(save, "save"))
        result = (finish(x_array.kind, out),)
        if return_weights:
            result += (finish(x_array.kind, weights),)
        if save:
            result += ((saved, held),)  # the options' arrays live as long as what was saved
        return result if len(result) > 1 else result[0]

    def backward(self, dout: Any, saved: Tuple[Any, ...]) -> LayerGradients:
        """Gradients of the inputs and of all parameters, from what ``layer(x, save=True)`` saved.

        >>> y, saved = layer(x, save=True)
        >>> gradients = layer.backward(np.ones_like(y), saved)
        """
        dout_array, dout_view = _three(dout, "dout")
        gradients = self._core.backward(dout_view, saved[0])
        rows = lambda g: None if g is None else _named(g, self.dtype)[:, 0]  # noqa: E731
        return LayerGradients(
            _to_kind(dout_array.kind, rows(gradients.dx)), _to_kind(dout_array.kind, rows(gradients.dcontext)),
            _by_name(gradients.parameters, self.dtype),
            {} if self.inner is None else dict(zip(self.inner.parameters, gradients.inner)))

    def cache(self, batch: int, capacity: int) -> _core.KvCache:
        """An empty KV cache for ``step``, with length, capacity, bytes and truncate(length).

        >>> cache = layer.cache(batch=1, capacity=4096)
        """
        return self._core.cache(whole(batch, "batch"), whole(capacity, "capacity"))

    def step(self, x: Any, cache: _core.KvCache, mask: Optional[Mask] = None, **options: Any) -> Any:
        """The next tokens x [batch, tokens, width]: appends to the cache and attends to all of it. Causal by default;
        a mask must be aligned to the last key.

        >>> cache = layer.cache(batch=1, capacity=4096)
        >>> y = layer.step(x[:, :1], cache)
        """
        x_array, x_view = _three(x, "x")
        held = None if mask is None and not options else score_options(mask, **options)
        out, out_array = empty(x_array.kind, self.dtype, (*x_array.shape[:2], self._core.output_width))
        self._core.step(x_view, cache, None if held is None else held.core, _as_rows(out_array))
        return finish(x_array.kind, out)


def _load(parameters, values):
    missing, unknown = parameters.keys() - values.keys(), values.keys() - parameters.keys()
    if missing or unknown:
        raise ValueError(f"parameters missing: {sorted(missing)}, unknown: {sorted(unknown)}; expected "
                         f"{sorted(parameters)}")
    for name, target in parameters.items():
        if np.shape(values[name]) != target.shape:
            raise ValueError(f"{name} has shape {np.shape(values[name])}, expected {target.shape}")
    for name, target in parameters.items():
        target[...] = values[name]


def _three(x, name):
    """[batch, length, width] and its engine view [batch, 1, length, width]."""
    array = describe(x, name)
    if len(array.shape) != 3:
        raise ValueError(f"{name} has {len(array.shape)} dimensions, expected 3: batch, length and width")
    return array, _as_rows(array)


def _as_rows(array):
    return array.view_at((0, 2, 3))


def _squeeze(array):
    """[1, 1, out, in] as [out, in], [1, 1, 1, n] as [n]."""
    array = array[0, 0]
    return array[0] if array.shape[0] == 1 and array.ndim == 2 else array


def _by_name(arrays, dtype):
    """The engine's parameters or their gradients as NumPy has them."""
    return {name: _squeeze(_named(array, dtype)) for name, array in arrays.items()}


def _torch_to_numpy(tensor, dtype):
    if dtype == "bf16":
        import torch

        return tensor.view(torch.int16).numpy().view(numpy_dtype("bf16"))
    return tensor.numpy()


def _to_kind(kind, array):
    if kind == "torch" and array is not None:
        import torch

        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    return finish(kind, array)
