"""Makes the golden models beside it, with `torch`, `transformers` and `safetensors`: small random models of each family and
the rows that Transformers (or, for MiniMind's own, a reference in PyTorch) computes for one sequence of 24 tokens.

A folder holds config.json, expected.bin (rows of f32) and model.safetensors; where the weights are those of another folder,
the file `weights` names it."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModel, AutoModelForCausalLM, BertConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config,
    Qwen3MoeConfig)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python" / "peers"))
import minimind_reference  # noqa: E402


def tokens(vocabulary):
    return [(37 * i + 11) % vocabulary for i in range(24)]


def randomise(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(std=1.5 / p.shape[-1] ** 0.5)
            else:
                p.normal_(mean=1.0 if "norm" in name.lower() or "ln_" in name else 0.0, std=0.2)


def write(name, config_json, rows, state=None, weights=None):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json, indent=1) + "\n")
    rows.detach().numpy().astype("<f4").tofile(folder / "expected.bin")
    if weights:
        (folder / "weights").write_text(weights + "\n")
    else:
        save_file({key: value.detach().clone().contiguous() for key, value in state.items()}, folder / "model.safetensors")
    print(name, sum(f.stat().st_size for f in folder.iterdir()))


def transformers_model(name, config, weights=None, config_json=None):
    """Saves a model of this config; its weights are random, or those of another model."""
    kind = AutoModel if config.model_type == "bert" else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").float().eval()
    if weights is None:
        randomise(model)
    else:
        own = weights[1].state_dict()
        if config.tie_word_embeddings:
            own["lm_head.weight"] = own["model.embed_tokens.weight"]
        model.load_state_dict(own)
    with torch.no_grad():
        out = model(torch.tensor([tokens(config.vocab_size)]))
    model.save_pretrained(HERE / "saving")
    written = json.loads((HERE / "saving" / "config.json").read_text())
    written.pop("transformers_version")
    from safetensors.torch import load_file
    state = {key: value for key, value in load_file(HERE / "saving" / "model.safetensors").items() if "pooler" not in key}
    shutil.rmtree(HERE / "saving")
    rows = (out.last_hidden_state if config.model_type == "bert" else out.logits)[0]
    write(name, config_json or written, rows, state, weights[0] if weights else None)
    return name, model


def main():
    eps = 0.01  # far above the usual, so that a wrong one shows
    base = dict(vocab_size=64, hidden_size=32, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128)
    llama = transformers_model("llama", LlamaConfig(**base, tie_word_embeddings=False))
    transformers_model("llama3", LlamaConfig(**base, tie_word_embeddings=False, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)), llama)
    transformers_model("yarn", LlamaConfig(**base, tie_word_embeddings=False, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=16.0, original_max_position_embeddings=8, beta_fast=4.0, beta_slow=1.0)),
        llama)
    transformers_model("linear", LlamaConfig(**base, tie_word_embeddings=False, rope_parameters=dict(
        rope_type="linear", rope_theta=10000.0, factor=4.0)), llama)
    transformers_model("mistral", MistralConfig(**base, tie_word_embeddings=False, sliding_window=5), llama)
    minimind = {key: value for key, value in base.items() if key != "intermediate_size"}
    transformers_model("minimind2", LlamaConfig(**base, tie_word_embeddings=False, rms_norm_eps=1e-5, rope_theta=1e6), llama,
                       dict(minimind, model_type="minimind", use_moe=False, flash_attn=True, rope_theta=1e6))
    small = dict(vocab_size=96, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=128, tie_word_embeddings=True)
    transformers_model("llama_bias", LlamaConfig(**small, intermediate_size=20, attention_bias=True, mlp_bias=True,
                                                 rms_norm_eps=eps))
    transformers_model("qwen2", Qwen2Config(**small, intermediate_size=20))
    qwen3 = transformers_model("qwen3", Qwen3Config(**small, intermediate_size=20, head_dim=8, rms_norm_eps=eps))
    minimind = {key: value for key, value in small.items() if key != "tie_word_embeddings"}
    transformers_model("minimind3", Qwen3Config(**small, intermediate_size=20, head_dim=8, rope_theta=1e6, rms_norm_eps=1e-6),
                       qwen3, dict(minimind, model_type="minimind", head_dim=8, intermediate_size=20, use_moe=False,
                                   rms_norm_eps=1e-6, rope_theta=1e6, num_experts=4, num_experts_per_tok=1))
    small, minimind = dict(small, vocab_size=64), dict(minimind, vocab_size=64)
    moe = dict(small, intermediate_size=12, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=4)
    experts = transformers_model("qwen3_moe", Qwen3MoeConfig(**moe, norm_topk_prob=True))
    transformers_model("qwen3_moe_raw", Qwen3MoeConfig(**moe, norm_topk_prob=False), experts)
    transformers_model("qwen3_moe_dense", Qwen3MoeConfig(**moe, norm_topk_prob=True, mlp_only_layers=[0]))
    transformers_model("minimind3_moe", Qwen3MoeConfig(
        **dict(moe, num_experts_per_tok=1), norm_topk_prob=True, rope_theta=1e6, rms_norm_eps=1e-6), experts,
        dict(minimind, model_type="minimind", head_dim=8, intermediate_size=12, use_moe=True, rms_norm_eps=1e-6,
             rope_theta=1e6, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=4, norm_topk_prob=True))
    transformers_model("gpt2", GPT2Config(vocab_size=96, n_embd=24, n_layer=2, n_head=4, n_positions=64, n_inner=20,
                                          layer_norm_epsilon=eps))
    transformers_model("bert", BertConfig(vocab_size=96, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                          intermediate_size=20, max_position_embeddings=64, layer_norm_eps=eps))

    shape = dict(layers=2, heads=4, kv_heads=2)
    for name, first, theta, extra in (("minimind1", True, 1e4, {}), ("minimind1_moe", True, 1e4, dict(experts=4, shared=1)),
                                      ("minimind2_moe", False, 1e6, dict(experts=4, shared=2))):
        width = 4 if extra else 20
        w = minimind_reference.random_weights(first, 64, 24, width=width, **shape, **extra)
        used = dict(used=2) if extra else {}
        rows = minimind_reference.logits(w, tokens(64), first, theta=theta, **shape, **extra, **used, eps=eps)
        moe = dict(use_moe=bool(extra), num_experts_per_tok=2, n_routed_experts=4, scoring_func="softmax",
                   norm_topk_prob=True, n_shared_experts=extra.get("shared", 1))
        fields = (dict(dim=24, n_layers=2, n_heads=4, n_kv_heads=2, norm_eps=eps, max_seq_len=128, vocab_size=64)
                  if first else dict(minimind, model_type="minimind", rms_norm_eps=eps, rope_theta=1e6))
        write(name, dict(fields, **moe), rows, w)


main()
