"""The models against Transformers': the same logits for small random models of every family, alone, side by side and in
pieces, and the same 64 greedy tokens. MiniMind's own generations are compared with a reference in plain PyTorch.

ATTEND_BUILD names the build folder (default: build)."""

import copy
import json
import os
import struct
import subprocess
from pathlib import Path

import minimind_reference
import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    AutoModel, AutoModelForCausalLM, BertConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config,
    Qwen3MoeConfig)

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("ATTEND_BUILD", ROOT / "build")) / "bin" / "attend_model_rows"
BOUND = 1e-4  # of the largest logit

SHAPE = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)
EXPERTS = dict(SHAPE, head_dim=24, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)


def rope(kind, **fields):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=fields.pop("rope_theta", 10000.0), **fields))


CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "llama_all_heads": LlamaConfig(**dict(SHAPE, num_key_value_heads=4)),
    "llama_one_kv_head": LlamaConfig(**dict(SHAPE, num_key_value_heads=1, num_attention_heads=8)),
    "llama_biases": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama_tied": LlamaConfig(**SHAPE, tie_word_embeddings=True, rms_norm_eps=1e-3),
    "llama3": LlamaConfig(**SHAPE, **rope("llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                          high_freq_factor=4.0, original_max_position_embeddings=64)),
    "yarn": LlamaConfig(**SHAPE, **rope("yarn", factor=16.0, original_max_position_embeddings=64)),
    "yarn_fields": LlamaConfig(**SHAPE, **rope("yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=8.0,
                                               beta_slow=2.0, attention_factor=0.7, truncate=False)),
    "linear": LlamaConfig(**SHAPE, **rope("linear", factor=4.0)),
    "mistral": MistralConfig(**SHAPE, sliding_window=8),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2_window": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": Qwen3Config(**SHAPE, head_dim=24),
    "qwen3_moe": Qwen3MoeConfig(**EXPERTS, norm_topk_prob=True),
    "qwen3_moe_raw": Qwen3MoeConfig(**EXPERTS, norm_topk_prob=False),
    "qwen3_moe_dense": Qwen3MoeConfig(**EXPERTS, norm_topk_prob=True, mlp_only_layers=[1]),
    "gpt2": GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=256),
    "bert": BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
                       max_position_embeddings=256),
}
DECODERS = [name for name in CONFIGS if name != "bert"]


def random_model(config):
    kind = AutoModel if config.model_type == "bert" else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").float().eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                p.normal_(std=1.5 / p.shape[-1] ** 0.5)
            else:
                p.normal_(mean=1.0 if "norm" in name.lower() or "ln_" in name else 0.0, std=0.2)
    return model


def rounded(model, dtype):
    """A copy in this dtype; the model's own weights are rounded to it and stay floats, as its angles do."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(dtype).float())
    return copy.deepcopy(model).to(dtype)


@pytest.fixture(scope="module", autouse=True)
def built():
    assert PROGRAM.exists(), f"{PROGRAM} is not there: ninja -C build attend_model_rows"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The model of this name and the folder it is saved in; made once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = random_model(CONFIGS[name])
            model.save_pretrained(folder)
            made[name] = model, folder
        return made[name]

    return get


def sequence(length, seed=5, vocabulary=128):
    return np.random.RandomState(seed).randint(0, vocabulary, length).tolist()


def program(path, mode, sequences, *options, dtype=np.float32):
    text = "".join(" ".join(map(str, s)) + "\n" for s in sequences)
    done = subprocess.run([PROGRAM, path, mode, *map(str, options)], input=text.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, dtype)


def our_rows(path, sequences, mode="logits", *options):
    """One array of rows for each sequence."""
    numbers = program(path, mode, sequences, *options)
    rows = numbers.reshape(sum(map(len, sequences)), -1)
    return np.split(rows, np.cumsum([len(s) for s in sequences])[:-1])


def their_rows(model, ids):
    with torch.no_grad():
        out = model(torch.tensor([ids]))
    return (out.logits if hasattr(out, "logits") else out.last_hidden_state)[0].numpy()


def assert_close(ours, theirs, bound=BOUND):
    assert ours.shape == theirs.shape
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert error <= bound, f"off by {error:.2e} of the largest"


# --- Transformers ---

@pytest.mark.parametrize("name", CONFIGS)
def test_one_sequence(saved, name):
    model, folder = saved(name)
    mode = "hidden" if name == "bert" else "logits"
    for length in (1, 40, 150):
        ids = sequence(length)
        assert_close(our_rows(folder, [ids], mode)[0], their_rows(model, ids))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_of_different_lengths(saved, name):
    model, folder = saved(name)
    sequences = [sequence(length, length) for length in (40, 3, 17, 90, 1, 64)]
    longest = max(map(len, sequences))
    ids, mask = np.zeros((2, len(sequences), longest), np.int64)
    for n, s in enumerate(sequences):  # decoders are padded on the left, BERT on the right
        place = slice(0, len(s)) if name == "bert" else slice(longest - len(s), longest)
        ids[n, place], mask[n, place] = s, 1
    inputs = dict(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
    if name != "bert":
        inputs["position_ids"] = torch.tensor(np.maximum(mask.cumsum(1) - 1, 0))
    with torch.no_grad():
        out = model(**inputs)
    rows = (out.last_hidden_state if name == "bert" else out.logits).numpy()
    ours = our_rows(folder, sequences, *(("hidden",) if name == "bert" else ("logits", 11)))
    for n, got in enumerate(ours):
        assert_close(got, rows[n][mask[n] == 1])


@pytest.mark.parametrize("name", DECODERS)
def test_pieces_have_the_same_bits(saved, name):
    _, folder = saved(name)
    sequences = [sequence(150), sequence(70, 8)]
    whole = program(folder, "logits", sequences, 512)
    for chunk in (1, 7, 64):
        assert np.array_equal(program(folder, "logits", sequences, chunk), whole), chunk


@pytest.mark.parametrize("name", DECODERS)
def test_64_greedy_tokens(saved, name):
    model, folder = saved(name)
    for seed, length in ((1, 20), (2, 1), (3, 70)):
        ids = sequence(length, seed)
        theirs = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, length, dtype=torch.long), max_new_tokens=64,
                                do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
        ours = program(folder, "greedy", [ids], 64, dtype=np.int32)
        assert ours.tolist() == theirs[0, length:].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3_moe", "gpt2", "bert"])
def test_half_weights(tmp_path, name, dtype):
    model = random_model(CONFIGS[name])
    rounded(model, dtype).save_pretrained(tmp_path)
    ids = sequence(40)
    mode = "hidden" if name == "bert" else "logits"
    assert_close(our_rows(tmp_path, [ids], mode)[0], their_rows(model, ids))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gpt2"])
def test_shards(tmp_path, saved, name):
    model, folder = saved(name)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = sequence(40)
    assert np.array_equal(program(tmp_path, "logits", [ids]), program(folder, "logits", [ids]))


def test_pytorch_bins(tmp_path, saved):
    """Weights as torch.save writes them, in one file and in several."""
    from safetensors.torch import load_file
    for name in ("llama", "llama_tied", "qwen3_moe", "gpt2", "bert"):
        _, folder = saved(name)
        tensors = load_file(folder / "model.safetensors")
        mode = "hidden" if name == "bert" else "logits"
        ids = sequence(40)
        theirs = program(folder, mode, [ids])
        for parts in (1, 3):
            to = tmp_path / f"{name}-{parts}"
            to.mkdir()
            (to / "config.json").write_text((folder / "config.json").read_text())
            files = [f"pytorch_model-{n}.bin" for n in range(parts)] if parts > 1 else ["pytorch_model.bin"]
            for n, file in enumerate(files):
                torch.save(dict(list(tensors.items())[n::parts]), to / file)
            if parts > 1:
                where = {key: files[n % parts] for n, key in enumerate(tensors)}
                (to / "pytorch_model.bin.index.json").write_text(json.dumps(dict(metadata={}, weight_map=where)))
            assert np.array_equal(program(to, mode, [ids]), theirs), (name, parts)


def test_a_head_that_differs_is_not_tied(tmp_path, saved):
    model, folder = saved("llama")
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, **dict(fields, tie_word_embeddings=True))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = sequence(40)
    assert_close(our_rows(tmp_path, [ids])[0], their_rows(theirs, ids))


def test_half_caches_are_close(saved):
    model, folder = saved("llama")
    ids = sequence(100)
    for dtype, bound in (("f16", 5e-3), ("bf16", 4e-2)):
        assert_close(our_rows(folder, [ids], "logits", 16, dtype)[0], their_rows(model, ids), bound)


@pytest.mark.parametrize("mode", ["cls", "mean", "max"])
def test_pooling_of_sentence_transformers(tmp_path, saved, mode):
    model, _ = saved("bert")
    model.save_pretrained(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{name}": name.startswith(mode) for name in ("cls_token", "mean_tokens", "max_tokens")}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(dict(word_embedding_dimension=64, **flags)))
    ids = sequence(30)
    rows = their_rows(model, ids)
    theirs = dict(cls=rows[0], mean=rows.mean(0), max=rows.max(0))[mode]
    assert_close(program(tmp_path, "embed", [ids]), theirs / np.linalg.norm(theirs))


def test_embeddings(saved):
    model, folder = saved("bert")
    sequences = [sequence(30), sequence(5, 6)]
    ours = program(folder, "embed", sequences).reshape(2, -1)
    for got, ids in zip(ours, sequences):
        mean = their_rows(model, ids).mean(0)
        assert_close(got, mean / np.linalg.norm(mean))


# --- MiniMind ---

def write_config(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields))


MINIMIND2 = dict(vocab_size=160, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                 max_position_embeddings=32768, tie_word_embeddings=True)
MINIMIND3 = dict(MINIMIND2, num_key_value_heads=4, head_dim=8)


def minimind_fields(shape, **more):
    """As MiniMind's own configuration class writes them."""
    fields = {key: value for key, value in shape.items() if key != "tie_word_embeddings"}
    return dict(fields, architectures=["MiniMindForCausalLM"], model_type="minimind", hidden_act="silu", dropout=0.0,
                flash_attn=True, bos_token_id=1, eos_token_id=2, rope_theta=1000000.0, **more)


def minimind2():
    model = random_model(LlamaConfig(**MINIMIND2, intermediate_size=192, rms_norm_eps=1e-5, rope_theta=1e6))
    return model, minimind_fields(MINIMIND2, intermediate_size=None, use_moe=False, rms_norm_eps=1e-5,
                                  num_experts_per_tok=2, n_routed_experts=4, n_shared_experts=1, scoring_func="softmax",
                                  aux_loss_alpha=0.1, seq_aux=True, norm_topk_prob=True)


def minimind3():
    model = random_model(Qwen3Config(**MINIMIND3, intermediate_size=256, rms_norm_eps=1e-6, rope_theta=1e6))
    return model, minimind_fields(MINIMIND3, intermediate_size=256, use_moe=False, rms_norm_eps=1e-6, rope_scaling=None,
                                  inference_rope_scaling=False, num_experts=4, num_experts_per_tok=1,
                                  moe_intermediate_size=256, norm_topk_prob=True, router_aux_loss_coef=5e-4)


def minimind3_moe():
    model = random_model(Qwen3MoeConfig(**MINIMIND3, intermediate_size=256, moe_intermediate_size=32, num_experts=4,
                                        num_experts_per_tok=1, norm_topk_prob=True, rms_norm_eps=1e-6, rope_theta=1e6))
    return model, minimind_fields(MINIMIND3, intermediate_size=256, use_moe=True, rms_norm_eps=1e-6, num_experts=4,
                                  num_experts_per_tok=1, moe_intermediate_size=32, norm_topk_prob=True)


@pytest.mark.parametrize("make", [minimind2, minimind3, minimind3_moe])
def test_minimind(tmp_path, make):
    model, fields = make()
    model.save_pretrained(tmp_path)
    write_config(tmp_path, **fields)
    ids = sequence(60, vocabulary=160)
    assert_close(our_rows(tmp_path, [ids])[0], their_rows(model, ids))


@pytest.mark.parametrize("fields", [
    {"inference_rope_scaling": True},
    {"inference_rope_scaling": True, "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 2048, "attention_factor": 1.0,
        "type": "yarn"}}])
def test_minimind_yarn(tmp_path, fields):
    shape = dict(MINIMIND3, head_dim=96)
    model = random_model(Qwen3Config(**shape, intermediate_size=64, rms_norm_eps=1e-6, **rope(
        "yarn", rope_theta=1e6, factor=16.0, original_max_position_embeddings=2048, attention_factor=1.0)))
    model.save_pretrained(tmp_path)
    write_config(tmp_path, **minimind_fields(shape, intermediate_size=64, use_moe=False, rms_norm_eps=1e-6, **fields))
    ids = sequence(200, vocabulary=160)
    assert_close(our_rows(tmp_path, [ids])[0], their_rows(model, ids))


REFERENCES = {  # the first names or the later ones, heads, theta, experts
    "first": (True, (16, 8), 1e4, {}),
    "first_moe": (True, (16, 8), 1e4, dict(experts=4, shared=1)),
    "spring": (True, (8, 2), 1e6, {}),  # February to April 2025
    "spring_moe": (True, (8, 2), 1e6, dict(experts=4, shared=1)),
    "second": (False, (8, 2), 1e6, {}),
    "second_moe": (False, (8, 2), 1e6, dict(experts=4, shared=1)),
    "second_moe_two_shared": (False, (8, 2), 1e6, dict(experts=5, shared=2)),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("with_config", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_minimind_pth(tmp_path, name, half, with_config):
    first, (heads, kv_heads), theta, experts = REFERENCES[name]
    shape = dict(layers=2, heads=heads, kv_heads=kv_heads)
    weights = minimind_reference.random_weights(first, 160, 64, width=192, **shape, **experts)
    if half:
        weights = {key: value.half() for key, value in weights.items()}
    # Tied, and written twice.
    head = "output.weight" if first else "lm_head.weight"
    stored = dict(weights, **{head: weights[minimind_reference.Names(first).embedding + ".weight"]})
    if first:
        stored["layers.0.attention.mask"] = torch.zeros(1, 1, 4, 4)  # a buffer that older versions saved
    torch.save(stored, tmp_path / "full_sft_64.pth")
    moe = dict(use_moe=bool(experts), num_experts_per_tok=2, n_routed_experts=experts.get("experts", 4),
               n_shared_experts=experts.get("shared", 1), scoring_func="softmax", norm_topk_prob=True)
    if with_config and first:
        write_config(tmp_path, model_type="minimind", dim=64, n_layers=2, n_heads=heads, n_kv_heads=kv_heads, vocab_size=160,
                     hidden_dim=None, multiple_of=64, norm_eps=1e-5, max_seq_len=512, dropout=0.0, flash_attn=True, **moe,
                     **(dict(rope_theta=theta) if theta != 1e4 else {}))
    elif with_config:
        write_config(tmp_path, **minimind_fields(MINIMIND2, rms_norm_eps=1e-5, **moe))
    ids = sequence(50, vocabulary=160)
    theirs = minimind_reference.logits({key: value.float() for key, value in weights.items()}, ids, first, theta=theta, **shape,
                                       **experts, **(dict(used=2) if experts else {}))
    assert_close(our_rows(tmp_path / "full_sft_64.pth", [ids])[0], theirs.numpy())


@pytest.mark.parametrize("first", [False, True])
def test_minimind_pth_with_a_head_of_its_own(tmp_path, first):
    shape = dict(layers=2, heads=8, kv_heads=2)
    weights = minimind_reference.random_weights(first, 6400, 64, width=192, **shape)
    head = torch.randn(6400, 64, generator=torch.Generator().manual_seed(4))
    torch.save(dict(weights, **{"output.weight" if first else "lm_head.weight": head}), tmp_path / "full_sft_64.pth")
    ids = sequence(30, vocabulary=6400)
    theirs = minimind_reference.logits(weights, ids, first, theta=1e6, head=head, **shape)
    assert_close(our_rows(tmp_path / "full_sft_64.pth", [ids])[0], theirs.numpy())


AUTUMN = dict(beta_fast=4, beta_slow=1, factor=4, original_max_position_embeddings=2048, type="yarn")


@pytest.mark.parametrize("longest, original", [(32768, 2048), (2048, 2048), (512, 2048), (32768, 64)])
def test_minimind_yarn_of_autumn_2025(tmp_path, longest, original):
    shape = dict(layers=2, heads=8, kv_heads=2)
    weights = minimind_reference.random_weights(False, 160, 128, width=384, **shape)
    torch.save(weights, tmp_path / "full_sft_128.pth")
    write_config(tmp_path, **minimind_fields(
        dict(MINIMIND2, hidden_size=128, max_position_embeddings=longest), rms_norm_eps=1e-5, use_moe=False,
        inference_rope_scaling=True, rope_scaling=dict(AUTUMN, original_max_position_embeddings=original)))
    ids = sequence(300, vocabulary=160)
    scale = minimind_reference.autumn_scale(16, 1e6, 4, original, 4, 1) if longest > original else 1
    theirs = minimind_reference.logits(weights, ids, False, theta=1e6, scale=scale, **shape)
    assert_close(our_rows(tmp_path / "full_sft_128.pth", [ids])[0], theirs.numpy())


@pytest.mark.parametrize("longest", [512, 2048])
def test_minimind_yarn_within_the_original_length(tmp_path, longest):
    model, fields = minimind3()
    model.save_pretrained(tmp_path)
    scaling = dict(beta_fast=32, beta_slow=1, factor=16, original_max_position_embeddings=2048, attention_factor=1.0, type="yarn")
    write_config(tmp_path, **dict(fields, max_position_embeddings=longest, inference_rope_scaling=True, rope_scaling=scaling))
    ids = sequence(100, vocabulary=160)
    assert_close(our_rows(tmp_path, [ids])[0], their_rows(model, ids))


@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen3", "gpt2"])
def test_a_pth_of_another_family_is_refused(tmp_path, saved, name):
    model, _ = saved(name)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    done = subprocess.run([PROGRAM, tmp_path / "model.pth", "logits"], input=b"1 2 3\n", capture_output=True)
    assert done.returncode == 1 and "config.json beside" in done.stderr.decode()


@pytest.mark.parametrize("half", [False, True])
def test_minimind3_pth(tmp_path, half):
    model, _ = minimind3()
    stored = rounded(model, torch.float16) if half else model
    torch.save(stored.state_dict(), tmp_path / "pretrain_64.pth")
    ids = sequence(50, vocabulary=160)
    assert_close(our_rows(tmp_path / "pretrain_64.pth", [ids])[0], their_rows(model, ids))


@pytest.mark.parametrize("broken", ["model.layers.0.self_attn.q_norm.weight", "model.embed_tokens.weight",
                                    "model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight"])
def test_a_pth_of_other_shapes_is_refused(tmp_path, broken):
    model, _ = minimind3()
    torch.save(dict(model.state_dict(), **{broken: torch.tensor(1.0)}), tmp_path / "pretrain_64.pth")
    done = subprocess.run([PROGRAM, tmp_path / "pretrain_64.pth", "logits"], input=b"1 2 3\n", capture_output=True)
    assert done.returncode == 1 and broken in done.stderr.decode()


# --- GGUF ---

def write_gguf(path, fields, tensors):
    """F32 tensors and settings of three kinds, after the format's description."""
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    for key, value in fields.items():
        kind, packed = ((8, text(value)) if isinstance(value, str) else (6, struct.pack("<f", value))
                        if isinstance(value, float) else (4, struct.pack("<I", value)))
        out += text(key) + struct.pack("<I", kind) + packed
    data = b""
    for name, tensor in tensors.items():
        out += text(name) + struct.pack(f"<I{tensor.ndim}QIQ", tensor.ndim, *tensor.shape[::-1], 0, len(data))
        data += np.ascontiguousarray(tensor, "<f4").tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)


def renamed(state, names):
    out = {}
    for key, value in state.items():
        for old, new in names:
            key = key.replace(old, new)
        out[key] = value.detach().numpy()
    return out


LLAMA_NAMES = [("model.layers.", "blk."), ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"),
               ("lm_head", "output"), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
               ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
               ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
               ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")]
GPT2_NAMES = [("transformer.", ""), ("h.", "blk."), ("wte", "token_embd"), ("wpe", "position_embd"), ("ln_f", "output_norm"),
              ("ln_1", "attn_norm"), ("ln_2", "ffn_norm"), ("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"),
              ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")]
BERT_NAMES = [("encoder.layer.", "blk."), ("embeddings.word_embeddings", "token_embd"),
              ("embeddings.position_embeddings", "position_embd"), ("embeddings.token_type_embeddings", "token_types"),
              ("embeddings.LayerNorm", "token_embd_norm"), ("attention.self.query", "attn_q"),
              ("attention.self.key", "attn_k"), ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
              ("attention.output.LayerNorm", "attn_output_norm"), ("intermediate.dense", "ffn_up"),
              ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm")]


def sizes(family, config, **more):
    fields = {"block_count": config.num_hidden_layers, "embedding_length": config.hidden_size,
              "attention.head_count": config.num_attention_heads, "context_length": config.max_position_embeddings, **more}
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in fields.items()}}


def decoder_fields(family, config, **more):
    return sizes(family, config, **{
        "attention.head_count_kv": config.num_key_value_heads, "feed_forward_length": config.intermediate_size,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]), **more})


def with_pairs_together(tensors, config):
    """q and k as llama.cpp's converter orders them: the two numbers that turn together lie side by side."""
    for name, tensor in tensors.items():
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:
            rows = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            tensors[name] = rows.swapaxes(1, 2).reshape(tensor.shape)
    return tensors


@pytest.mark.parametrize("name", ["llama", "llama_tied", "llama_all_heads"])
def test_gguf_llama(tmp_path, saved, name):
    model, _ = saved(name)
    tensors = with_pairs_together(renamed(model.state_dict(), LLAMA_NAMES), model.config)
    if model.config.tie_word_embeddings:
        tensors.pop("output.weight", None)
    write_gguf(tmp_path / "m.gguf", decoder_fields("llama", model.config), tensors)
    ids = sequence(60)
    assert_close(our_rows(tmp_path / "m.gguf", [ids])[0], their_rows(model, ids))


def test_gguf_llama3_divisors(tmp_path, saved):
    model, _ = saved("llama3")
    tensors = with_pairs_together(renamed(model.state_dict(), LLAMA_NAMES), model.config)
    p = model.config.rope_parameters
    wave = 2 * np.pi * p["rope_theta"] ** (np.arange(0, 16, 2) / 16)
    turns = p["original_max_position_embeddings"] / wave
    smooth = np.clip((turns - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"]), 0, 1)
    tensors["rope_freqs.weight"] = (1 / ((1 - smooth) / p["factor"] + smooth)).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", decoder_fields("llama", model.config), tensors)
    ids = sequence(150)
    assert_close(our_rows(tmp_path / "m.gguf", [ids])[0], their_rows(model, ids))


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_gguf_qwen(tmp_path, saved, name):
    model, _ = saved(name)
    more = {"attention.key_length": 24, "attention.value_length": 24} if name == "qwen3" else {}
    write_gguf(tmp_path / "m.gguf", decoder_fields(name, model.config, **more), renamed(model.state_dict(), LLAMA_NAMES))
    ids = sequence(60)
    assert_close(our_rows(tmp_path / "m.gguf", [ids])[0], their_rows(model, ids))


def test_gguf_qwen3_moe(tmp_path, saved):
    from safetensors.numpy import load_file
    model, folder = saved("qwen3_moe")
    tensors = {}
    for key, value in load_file(folder / "model.safetensors").items():
        for old, new in [("mlp.gate.", "ffn_gate_inp.")] + LLAMA_NAMES:
            key = key.replace(old, new)
        tensors[key] = value
    for n in range(2):
        for part in ("gate", "up", "down"):
            tensors[f"blk.{n}.ffn_{part}_exps.weight"] = np.stack(
                [tensors.pop(f"blk.{n}.mlp.experts.{e}.{part}_proj.weight") for e in range(4)])
    fields = decoder_fields("qwen3moe", model.config, **{
        "attention.key_length": 24, "attention.value_length": 24, "expert_count": 4, "expert_used_count": 2,
        "expert_feed_forward_length": 32})
    write_gguf(tmp_path / "m.gguf", fields, tensors)
    ids = sequence(60)
    assert_close(our_rows(tmp_path / "m.gguf", [ids])[0], their_rows(model, ids))


def test_gguf_gpt2(tmp_path, saved):
    model, _ = saved("gpt2")
    tensors = renamed(model.state_dict(), GPT2_NAMES)
    tensors = {key: value.T if any(part in key for part in ("attn_qkv.w", "attn_output.w", "ffn_up.w", "ffn_down.w")) else value
               for key, value in tensors.items() if not key.startswith("lm_head")}
    write_gguf(tmp_path / "m.gguf", sizes("gpt2", model.config, **{
        "feed_forward_length": 256, "attention.layer_norm_epsilon": model.config.layer_norm_epsilon}), tensors)
    ids = sequence(60)
    assert_close(our_rows(tmp_path / "m.gguf", [ids])[0], their_rows(model, ids))


def test_gguf_bert(tmp_path, saved):
    model, _ = saved("bert")
    tensors = {key: value for key, value in renamed(model.state_dict(), BERT_NAMES).items()
               if "pooler" not in key and "_ids" not in key}
    write_gguf(tmp_path / "m.gguf", sizes("bert", model.config, **{
        "feed_forward_length": 96, "attention.layer_norm_epsilon": model.config.layer_norm_eps}), tensors)
    ids = sequence(60)
    assert_close(our_rows(tmp_path / "m.gguf", [ids], "hidden")[0], their_rows(model, ids))
