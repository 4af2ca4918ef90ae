"""attend: exact attention on the CPU, forward and backward.

>>> import numpy as np, attend
>>> q, k, v = (np.random.randn(1, 8, 1024, 64).astype(np.float32) for _ in range(3))
>>> out = attend.attention(q, k, v, mask=attend.causal())
"""

from ._attention import AttentionGradients, attention, attention_backward
from ._core import cpu_info, kernel_name, set_threads, threads, version
from ._layer import LayerGradients, MultiHeadAttention
from ._operations import rope, rope_backward, softmax, softmax_backward
from .masks import Mask, blocks, causal, dense, left_padding, no_mask, padding, prefix, segments, window
from .patterns import (bigbird, block_permutation, chunks, columns, dilated, fixed, global_tokens, longformer, streaming,
                       strided, tokens)

__version__ = version()

__all__ = [
    "AttentionGradients", "LayerGradients", "Mask", "MultiHeadAttention", "attention", "attention_backward", "blocks",
    "causal", "cpu_info", "dense", "kernel_name", "left_padding", "no_mask", "padding", "prefix", "rope",
    "rope_backward", "segments", "set_threads", "softmax", "softmax_backward", "threads", "version", "window",
    "bigbird", "block_permutation", "chunks", "columns", "dilated", "fixed", "global_tokens", "longformer",
    "streaming", "strided", "tokens",
]


def __getattr__(name):
    """attend.torch, attend.flash_attn and attend.hf are imported when first asked for: they need PyTorch."""
    if name in ("torch", "flash_attn", "hf"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'attend' has no attribute {name!r}")
