"""attend.LatentAttention against the attention module of Transformers' DeepSeek-V3."""

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

import attend


def close(ours, theirs):
    """To what f32 leaves: the module computes its norms and its softmax in it, whatever the dtype."""
    assert (ours - theirs).abs().max() <= 2e-6 * theirs.abs().max()


NAMES = {"wkv_down": "kv_a_proj_with_mqa.weight", "kv_norm": "kv_a_layernorm.weight", "wkv_up": "kv_b_proj.weight",
         "wo": "o_proj.weight"}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
        "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}


@pytest.mark.parametrize("q_rank", [24, None])
@pytest.mark.parametrize("scaling", [None, YARN, {**YARN, "mscale": 0.707}], ids=["plain", "yarn", "yarn, mscale"])
def test_deepseek_v3(q_rank, scaling):
    torch.manual_seed(0)
    config = DeepseekV3Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=q_rank,
                              kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
                              max_position_embeddings=163840, rope_interleave=True,
                              rope_parameters={"rope_type": "default", "rope_theta": 1e4, **(scaling or {})})
    config._attn_implementation = "eager"
    module = DeepseekV3Attention(config, 0).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * (1 if parameter.ndim == 1 else 0.3))
    names = {**NAMES, **({"wq": "q_proj.weight"} if q_rank is None else
                         {"wq_down": "q_a_proj.weight", "q_norm": "q_a_layernorm.weight", "wq": "q_b_proj.weight"})}
    layer = attend.LatentAttention(
        64, 4, q_rank=q_rank or 0, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=12, dtype="f64",
        rope_scaling=None if scaling is None else attend.RopeScaling.from_config(scaling))
    state = module.state_dict()
    layer.load({name: state[theirs].numpy() for name, theirs in names.items()})
    assert layer.scale == pytest.approx(module.scaling, rel=1e-12)

    x = torch.randn(2, 20, 64, dtype=torch.float64, requires_grad=True)
    rotary = DeepseekV3RotaryEmbedding(config)
    # Its own angles are f32: the same frequencies in double stand in for them.
    turns, magnitude = attend.rope_frequencies(8, 1e4, None if scaling is None else attend.RopeScaling.from_config(scaling))
    torch.testing.assert_close(rotary.inv_freq.double(), torch.from_numpy(turns), rtol=2e-6, atol=0)
    assert rotary.attention_scaling == pytest.approx(magnitude, rel=1e-12)
    angle = torch.arange(20, dtype=torch.float64)[:, None] * torch.from_numpy(turns)
    angle = torch.cat([angle, angle], -1)[None]
    hidden = torch.full((20, 20), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    y, _ = module(x, (angle.cos() * magnitude, angle.sin() * magnitude), hidden)
    dout = torch.randn_like(y)
    y.backward(dout)

    got, saved = layer(x.detach(), attend.causal(), save=True)
    close(got, y.detach())
    dx, gradients = layer.backward(dout, saved)
    close(dx, x.grad)
    theirs = dict(module.named_parameters())
    for name, gradient in gradients.items():
        close(torch.from_numpy(gradient), theirs[names[name]].grad)
    cache = layer.cache(2, 20)
    layer.prefill(x.detach()[:, :15], cache)
    close(layer.step(x.detach()[:, 15:], cache), y.detach()[:, 15:])
