"""attend: exact attention on the CPU, forward and backward.

>>> import numpy as np, attend
>>> q, k, v = (np.random.randn(1, 8, 1024, 64).astype(np.float32) for _ in range(3))
>>> out = attend.attention(q, k, v, mask=attend.causal())
"""

from . import inner
from ._adaptive_span import AdaptiveSpanGradients, adaptive_span, adaptive_span_backward, adaptive_span_penalty
from ._additive_attention import (
    AdditiveGradients, AlignmentGradients, additive_attention, additive_attention_backward, aligned_attention,
    aligned_attention_backward,
)
from ._attention import AttentionGradients, attention, attention_backward
from ._blocks import (
    CrossEntropyGradients, GatedGradients, LayerNormGradients, RmsNormGradients, activation, activation_backward, add,
    cross_entropy, cross_entropy_backward, dropout, embedding, embedding_backward, layer_norm, layer_norm_backward,
    rms_norm, rms_norm_backward,
)
from ._core import OutOfPages, cpu_info, kernel_name, set_threads, threads, version
from ._errors import InvalidArgument
from ._latent_attention import LatentAttention, LatentGradients
from ._layer import LayerGradients, MultiHeadAttention
from ._lens import Cell, Histogram, Observation, PooledMap, RowStatistics, TopKeys, observe
from ._linear_attention import (
    LinearAttentionGradients, linear_attention, linear_attention_backward, linear_attention_step,
)
from ._linformer import LinformerGradients, linformer, linformer_backward
from ._observers import Tile, attention_row_sums, visit_weights
from ._operations import RopeTable, rope, rope_backward, softmax, softmax_backward
from ._paged_kv_cache import PagedKvCache, paged_attention
from ._positions import (
    RopeScaling, add_positions, add_positions_backward, alibi_slopes, rope_frequencies, sinusoidal, t5_bias, t5_bias_backward,
    t5_bucket,
)
from ._reformer import (
    ReformerGradients, reformer, reformer_backward, reformer_factors, reformer_hashes, reformer_recall,
    reformer_rotations,
)
from ._transformer_block import BlockGradients, TransformerBlock
from ._weight import Weight, project, weight_bytes
from .masks import Mask, blocks, causal, dense, left_padding, no_mask, padding, prefix, segments, window
from .patterns import (bigbird, block_permutation, chunks, columns, dilated, fixed, global_tokens, longformer, streaming,
                       strided, tokens)

__version__ = version()

__all__ = [
    "AdaptiveSpanGradients", "AdditiveGradients", "AlignmentGradients", "AttentionGradients", "BlockGradients",
    "Cell", "CrossEntropyGradients", "GatedGradients", "Histogram", "InvalidArgument", "LatentAttention",
    "LatentGradients", "LayerGradients", "LayerNormGradients", "LinearAttentionGradients", "LinformerGradients",
    "Mask", "MultiHeadAttention", "Observation", "OutOfPages", "PagedKvCache", "PooledMap", "ReformerGradients",
    "RmsNormGradients", "RopeScaling", "RopeTable", "RowStatistics", "Tile", "TopKeys", "TransformerBlock",
    "Weight", "activation", "activation_backward", "adaptive_span", "adaptive_span_backward",
    "adaptive_span_penalty", "add", "add_positions", "add_positions_backward", "additive_attention",
    "additive_attention_backward", "alibi_slopes", "aligned_attention", "aligned_attention_backward", "attention",
    "attention_backward", "attention_row_sums", "bigbird", "block_permutation", "blocks", "causal", "chunks",
    "columns", "cpu_info", "cross_entropy", "cross_entropy_backward", "dense", "dilated", "dropout", "embedding",
    "embedding_backward", "fixed", "global_tokens", "inner", "kernel_name", "layer_norm", "layer_norm_backward",
    "left_padding", "linear_attention", "linear_attention_backward", "linear_attention_step", "linformer",
    "linformer_backward", "longformer", "no_mask", "observe", "padding", "paged_attention", "prefix", "project",
    "reformer", "reformer_backward", "reformer_factors", "reformer_hashes", "reformer_recall", "reformer_rotations",
    "rms_norm", "rms_norm_backward", "rope", "rope_backward", "rope_frequencies", "segments", "set_threads", "sinusoidal",
    "softmax", "softmax_backward", "streaming", "strided", "t5_bias", "t5_bias_backward", "t5_bucket", "threads",
    "tokens", "version", "visit_weights", "weight_bytes", "window",
]


def __getattr__(name):
    """attend.look, attend.llm, attend.torch, attend.flash_attn and attend.hf are imported when first asked for; the last
    three need PyTorch."""
    if name == "look":
        from .llm import look

        return look
    if name in ("llm", "torch", "flash_attn", "hf"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'attend' has no attribute {name!r}")
