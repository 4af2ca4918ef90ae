"""RoPE's scalings, T5's buckets and ALiBi's slopes against Transformers."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

import attend

SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 6.0,
     "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
     "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
     "beta_fast": 32.0, "beta_slow": 1.0},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048, "attention_factor": 1.25},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s['rope_type']} {s['factor']}")
@pytest.mark.parametrize("dim, theta", [(64, 1e4), (128, 5e5), (32, 1e6)])
def test_rope_scaling(scaling, dim, theta):
    config = LlamaConfig(hidden_size=dim * 2, num_attention_heads=2, head_dim=dim, max_position_embeddings=131072,
                         rope_parameters={**scaling, "rope_theta": theta})
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    turns, magnitude = attend.rope_frequencies(dim, theta, attend.RopeScaling.from_config(scaling))
    np.testing.assert_allclose(turns, frequencies.double().numpy(), rtol=2e-6)
    assert magnitude == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets, furthest", [(32, 128), (8, 20), (64, 1000)])
def test_t5_buckets(bidirectional, buckets, furthest):
    distances = torch.arange(-3000, 3001)
    expected = T5Attention._relative_position_bucket(distances, bidirectional, buckets, furthest)
    got = [attend.t5_bucket(int(d), bidirectional=bidirectional, buckets=buckets, max_distance=furthest)
           for d in distances]
    assert got == expected.tolist()


def test_t5_attention():
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 4, 50, 16, generator=g, dtype=torch.float64) for _ in range(3))
    table = torch.randn(32, 4, generator=g, dtype=torch.float64, requires_grad=True)
    distances = torch.arange(50)[None] - torch.arange(50)[:, None]
    bias = table[T5Attention._relative_position_bucket(distances, True, 32, 128)].permute(2, 0, 1)[None]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    dout = torch.randn(out.shape, generator=g, dtype=torch.float64)
    out.backward(dout)
    by_distance = attend.t5_bias(table.detach(), 50, 50)
    got, lse = attend.attention(q, k, v, scale=1.0, distance_bias=by_distance, return_lse=True)
    torch.testing.assert_close(got, out.detach(), atol=1e-12, rtol=0)
    dbias = attend.attention_backward(dout, q, k, v, got, lse, scale=1.0, distance_bias=by_distance).dbias
    torch.testing.assert_close(attend.t5_bias_backward(dbias, 50, 50), table.grad, atol=1e-11, rtol=0)


@pytest.mark.parametrize("heads", [1, 4, 6, 12, 16, 20])
def test_alibi_slopes(heads):
    alibi = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)  # slope times position
    np.testing.assert_allclose(attend.alibi_slopes(heads), alibi[:, 0, 1].numpy(), rtol=1e-6)
