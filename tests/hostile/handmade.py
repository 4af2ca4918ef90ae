"""Files made by hand, one for each thing that once went wrong or could."""

import functools
import json
import struct

import formats
import seeds
from formats import Tensor
from seeds import POISON


def tensor(model, end):
    return next(t for t in model.tensors if t.name.endswith(end))


def cut_rows(model, end, rows):
    """Fewer rows than the config says, and poison where the rest was."""
    t = tensor(model, end)
    row = len(t.data) // t.shape[0]
    rest = len(t.data) - rows * row
    t.shape[0], t.data = rows, t.data[:rows * row]
    model.tensors.insert(model.tensors.index(t) + 1, Tensor("unused." + end, [rest // 4], POISON * (rest // 4)))


def no_rows(model, end):
    t = tensor(model, end)
    t.shape, t.data = [0] + t.shape[1:], b""


def make(number):
    """(name, model) of the case of this number; None: there are not so many."""
    found = cases()
    if number >= len(found):
        return None
    name, seed, change = found[number]
    model = seeds.seeds()[seed].copy()
    change(model)
    return name, model


@functools.cache
def cases():
    """(name, name of the seed, what changes it)"""
    def case(name, seed, change):
        made.append((name, seed, change))

    made = []
    for end in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "embed_tokens.weight", "up_proj.weight",
                "input_layernorm.weight"):
        for rows in (1, 3, 7):
            case(f"{end} of {rows} rows", "llama", lambda m, e=end, r=rows: cut_rows(m, e, r))
        case(f"{end} without rows", "llama", lambda m, e=end: no_rows(m, e))
    for end in ("attn_q.weight", "attn_k.weight", "token_embd.weight", "ffn_down.weight"):
        case(f"gguf: {end} of 3 rows", "llama.gguf", lambda m, e=end: cut_rows(m, e, 3))
        case(f"gguf: {end} without rows", "llama.gguf", lambda m, e=end: no_rows(m, e))
    for name, value in (("num_attention_heads", 8), ("num_key_value_heads", 4), ("head_dim", 4), ("head_dim", 16),
                        ("hidden_size", 16), ("intermediate_size", 6), ("num_hidden_layers", 1),
                        ("num_hidden_layers", 3), ("vocab_size", 32), ("vocab_size", 2**24),
                        ("max_position_embeddings", 2**30), ("num_hidden_layers", 4096)):
        case(f"{name} is {value}", "llama", lambda m, n=name, v=value: m.config.update({n: v}))
        case(f"pth: {name} is {value}", "llama.pth", lambda m, n=name, v=value: m.config.update({n: v}))
    case("biases of no tensor", "llama", lambda m: m.tensors.extend(
        Tensor(f"model.{part}.bias", [0, 5], b"") for part in ("embed_tokens", "norm", "layers.0.self_attn.q_proj")))
    case("bias of a normalised query", "qwen3", lambda m: m.tensors.append(
        Tensor("model.layers.0.self_attn.q_norm.bias", [0, 3], b"")))
    case("queries, keys and values twice", "llama.gguf", lambda m: m.tensors.append(
        Tensor("blk.0.attn_qkv.weight", [64, 32], POISON * 64 * 32)))
    case("queries, keys and values in one", "llama.gguf", lambda m: (no_rows(m, "blk.0.attn_q.weight"), m.tensors.append(
        Tensor("blk.0.attn_qkv.weight", [64, 32], struct.pack("<f", 0.5) * 64 * 32))))
    case("rope_freqs of nothing", "llama.gguf", lambda m: m.tensors.append(Tensor("rope_freqs.weight", [0], b"")))
    case("rope_freqs of zeros", "llama.gguf", lambda m: m.tensors.append(Tensor("rope_freqs.weight", [4], bytes(16))))
    case("experts with biases", "qwen3_moe", lambda m: m.tensors.append(
        Tensor("model.layers.0.mlp.experts.0.up_proj.bias", [m.config["moe_intermediate_size"]],
               POISON * m.config["moe_intermediate_size"])))
    case("a list of 400,000 layers", "qwen3_moe", lambda m: m.config.update({"mlp_only_layers": [1] * 400_000}))
    case("a list of 400,000 layers that are not there", "qwen3_moe",
         lambda m: m.config.update({"mlp_only_layers": list(range(10**6, 10**6 + 100_000))}))
    case("a family of 100 KB", "llama", lambda m: m.config.update({"model_type": "x" * 100_000}))
    case("a family of escapes", "llama", lambda m: m.config.update({"model_type": "\x1b[31m\x07\x9b2J\u202e"}))
    case("an architecture of escapes", "llama.gguf",
         lambda m: m.settings.__setitem__(0, ("general.architecture", formats.GGUF_STRING, "\x1b[31m" * 20_000)))
    case("a name of escapes", "llama", lambda m: m.tensors.append(Tensor("\x1b]0;title\x07\x9b2J", [1], POISON)))
    case("a name of broken UTF-8", "llama.gguf", lambda m: m.tensors.append(Tensor(b"\xff\xfe\x1b", [1], POISON)))
    case("a name of 60,000 letters", "llama.gguf", lambda m: m.tensors.append(Tensor("n" * 60_000, [1], POISON)))
    for seed in ("llama", "llama.gguf", "llama.pth"):
        for count in (30_000, 100_000):
            if seed != "llama.pth" or count == 30_000:
                case(f"{seed}: {count} tensors", seed, lambda m, c=count: m.tensors.extend(
                    Tensor(f"t{n}", [0], b"") for n in range(c)))
    case("a gelu in a Llama", "llama", lambda m: m.config.update({"hidden_act": "gelu"}))
    case("tokens beyond the model", "llama", lambda m: m.tokenizer["model"]["vocab"].update({"a": 100, "b": 2**31 - 1}))
    case("weights of NaN", "llama", lambda m: setattr(tensor(m, "lm_head.weight"), "data",
                                                      b"\0\0\xc0\x7f" * (len(tensor(m, "lm_head.weight").data) // 4)))
    case("config.json of a megabyte", "llama", lambda m: m.files.__setitem__(
        "config.json", json.dumps(m.config)[:-1].encode() + b', "x": [' + b"1," * 700_000 + b"1]}"))
    case("config.json is empty", "llama", lambda m: m.files.__setitem__("config.json", b""))
    case("weights are empty", "llama", lambda m: m.files.__setitem__("model.safetensors", b""))
    case("a GGUF of nothing", "llama.gguf", lambda m: m.files.__setitem__("model.gguf", b"GGUF"))
    case("a .pth of nothing", "llama.pth", lambda m: m.files.__setitem__("model.pth", b"PK"))
    return made
