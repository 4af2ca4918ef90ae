"""A block of a transformer: attention and a feed-forward network, whole or some queries at a time."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional

import numpy as np

from . import _core
from ._arrays import empty, finish
from ._attention import score_options
from ._copied import Copied
from ._layer import MultiHeadAttention, _as_rows, _by_name, _named, _three, _to_kind
from ._whole import whole
from .masks import Mask


class BlockGradients(NamedTuple):
    """What TransformerBlock.backward returns; dbias and dsinks are None without a bias or sinks.

    >>> block = attend.TransformerBlock(512, heads=8).initialise(0)
    >>> dup = block.backward(np.ones((1, 4, 512), np.float32), np.ones((1, 4, 512), np.float32)).parameters["up"]
    """

    dx: Any
    parameters: Dict[str, np.ndarray]
    dbias: Any
    dsinks: Any


class TransformerBlock(Copied):
    """y = x + attention(rms_norm(x)); z = y + feed_forward(rms_norm(y)).

    feed_forward is "swiglu", "gelu" or "relu", with ``hidden`` features inside (0: 4 * width). The other options are
    those of MultiHeadAttention. With block=n, queries are worked on n at a time: activations need memory for n tokens,
    not for the length, and the result is the same to the bit.

    >>> block = attend.TransformerBlock(512, heads=8, kv_heads=2, rope="half_split").initialise(0)
    >>> z = block(np.ones((1, 100, 512), np.float32), attend.causal(), block=32)
    """

    def __init__(self, width: int, heads: int, *, feed_forward: str = "swiglu", hidden: int = 0,
                 norm_eps: float = 1e-6, dtype: str = "f32", **attention: Any) -> None:
        self.dtype = dtype
        self._attention = dict(width=width, heads=heads, norm_eps=norm_eps, dtype=dtype, **attention)
        self._config = str(feed_forward), whole(hidden, "hidden"), float(norm_eps)
        self._core = self._new_core()

    def _new_core(self):
        return _core.TransformerBlock(MultiHeadAttention(**self._attention)._core, *self._config)

    @property
    def parameters(self) -> Dict[str, np.ndarray]:
        """The parameters by name, as NumPy arrays over the block's own memory: write to them to change the block.

        >>> attend.TransformerBlock(64, heads=4).parameters["up"].shape
        (256, 64)
        """
        return _by_name(self._core.parameters, self.dtype)

    def load(self, values: Mapping[str, Any]) -> None:
        """Copies arrays into the parameters of the same names; all must be there and fit.

        >>> block = attend.TransformerBlock(64, heads=4)
        >>> block.load({name: np.zeros_like(p) for name, p in block.parameters.items()})
        """
        MultiHeadAttention.load(self, values)

    def __call__(self, x: Any, mask: Optional[Mask] = None, *, block: int = 0, **options: Any) -> Any:
        """x [batch, length, width] -> [batch, length, width]. The score options of attend.attention may be given too.

        >>> z = attend.TransformerBlock(64, heads=4)(np.ones((1, 5, 64), np.float32), block=2)
        """
        x_array, x_view = _three(x, "x")
        held = score_options(mask, **options)
        out, out_array = empty(x_array.kind, self.dtype, x_array.shape)
        self._core.forward(x_view, held.core, whole(block, "block"), _as_rows(out_array))
        return finish(x_array.kind, out)

    def backward(self, dout: Any, x: Any, mask: Optional[Mask] = None, *, block: int = 0,
                 **options: Any) -> BlockGradients:
        """Gradients of x and of all parameters. Nothing is kept from forward: activations are made again from x.

        >>> x = np.ones((1, 5, 64), np.float32)
        >>> dx = attend.TransformerBlock(64, heads=4).backward(x, x, attend.causal(), block=2).dx
        """
        dout_array, dout_view = _three(dout, "dout")
        x_view, held = _three(x, "x")[1], score_options(mask, **options)
        gradients = self._core.backward(dout_view, x_view, held.core, whole(block, "block"))
        dbias = None if held.bias_shape is None else gradients.dbias.reshape(held.bias_shape)
        dsinks = gradients.dsinks.reshape(-1) if held.has_sinks else None
        kind = dout_array.kind
        return BlockGradients(
            _to_kind(kind, _named(gradients.dx, self.dtype)[:, 0]),
            _by_name(gradients.parameters, self.dtype),
            _to_kind(kind, dbias), _to_kind(kind, dsinks))
