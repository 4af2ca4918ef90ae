"""Small whole models, as values that mutations change: golden configs with weights whose every number is known."""

import copy
import functools
import json
import pathlib
import string
import struct

from formats import GGUF_F32, GGUF_I32, GGUF_STRING, GGUF_U32, Tensor, read_safetensors

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
POISON = struct.pack("<I", 0xDEADBEEF)  # stands beside tensors: a word of it in an output came from outside


class Model:
    """kind: folder, gguf or pth."""

    def __init__(self, kind, config, tensors, tokenizer, settings=None):
        self.kind, self.config, self.tensors, self.tokenizer = kind, config, tensors, tokenizer
        self.settings = settings  # of GGUF
        self.files = {}  # name -> bytes, written over what the rest gives

    def copy(self):
        other = copy.copy(self)
        other.config, other.tokenizer = copy.deepcopy(self.config), copy.deepcopy(self.tokenizer)
        other.settings = copy.deepcopy(self.settings)
        other.tensors = [t.copy() for t in self.tensors]
        other.files = dict(self.files)
        return other


def bpe_tokenizer(size):
    """One character a token."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    letters = (LETTERS + "\u0120")[:size - 1]
    end = {"id": len(letters), "content": "<|im_end|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": {letter: n for n, letter in enumerate(letters)}, "merges": []}}


def word_tokenizer(size):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + list(string.ascii_lowercase) + ["##" + letter for letter in string.ascii_lowercase]
    added = [{"id": n, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for n, word in enumerate(special)]
    ends = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing", "single": ends, "pair": ends,
                               "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                                                  "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": {word: n for n, word in enumerate(words[:size])}}}


def marked(tensors):
    """Numbers small enough to compute with, and each word in one tensor alone: none is zero, none is poison."""
    out = []
    for n, t in enumerate(tensors):
        words = len(t.data) // 4
        data = b"".join(struct.pack("<I", 0x3C000000 + (n << 14) + i) for i in range(words))
        out.append(Tensor(t.name, t.shape, data))
    return out


def golden(name, kind="folder"):
    config = json.loads((GOLDEN / "models" / name / "config.json").read_text())
    tensors = marked(read_safetensors((GOLDEN / "models" / name / "model.safetensors").read_bytes()))
    tokenizer = (word_tokenizer if name == "bert" else bpe_tokenizer)(config.get("vocab_size", 64))
    return Model(kind, config, tensors, tokenizer)


# GGUF's names of Hugging Face's tensors.
GGUF_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
              "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}


def gguf_name(name):
    """None for one that stands for a part of a GGUF tensor."""
    for here, there in (("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."), ("lm_head.", "output.")):
        if name.startswith(here):
            return there + name[len(here):]
    if not name.startswith("model.layers."):
        return None
    layer, rest = name[len("model.layers."):].split(".", 1)
    stem, suffix = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{suffix}" if stem in GGUF_NAMES else None


def gguf_llama(family="llama", source="llama"):
    model = golden(source)
    c = model.config
    tensors = [Tensor(gguf_name(t.name), t.shape, t.data) for t in model.tensors]
    if c.get("tie_word_embeddings"):
        tensors = [t for t in tensors if t.name != "output.weight"]
    vocabulary = model.tokenizer["model"]["vocab"]
    pieces = list(vocabulary) + ["<|im_end|>"]
    pieces += [f"[unused{n}]" for n in range(len(pieces), c["vocab_size"])]
    numbers = {"block_count": c["num_hidden_layers"], "embedding_length": c["hidden_size"],
               "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
               "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"],
               "context_length": c["max_position_embeddings"], "feed_forward_length": c["intermediate_size"],
               "rope.dimension_count": c["head_dim"]}
    settings = [("general.architecture", GGUF_STRING, family)]
    settings += [(f"{family}.{key}", GGUF_U32, value) for key, value in numbers.items()]
    settings += [(f"{family}.rope.freq_base", GGUF_F32, 10000.0),
                 (f"{family}.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-5),
                 ("tokenizer.ggml.model", GGUF_STRING, "gpt2"), ("tokenizer.ggml.pre", GGUF_STRING, "gpt-2"),
                 ("tokenizer.ggml.tokens", GGUF_STRING, pieces),
                 ("tokenizer.ggml.token_type", GGUF_I32, [1] * len(vocabulary) + [3] * (len(pieces) - len(vocabulary))),
                 ("tokenizer.ggml.merges", GGUF_STRING, []),
                 ("tokenizer.ggml.eos_token_id", GGUF_U32, len(vocabulary))]
    return Model("gguf", {}, tensors, model.tokenizer, settings)


@functools.cache
def seeds():
    """Names and models, to be copied before a change. Each works as it is: run.py sees to that first."""
    found = {name: golden(name) for name in ("llama", "qwen2", "qwen3", "qwen3_moe", "gpt2", "bert", "minimind2",
                                             "minimind1")
             if (GOLDEN / "models" / name / "model.safetensors").exists()}
    found["llama.gguf"] = gguf_llama()
    found["qwen3.gguf"] = gguf_llama("qwen3", "qwen3")
    found["llama.pth"] = golden("llama", "pth")
    found["minimind1.pth"] = golden("minimind1", "pth")
    return found
