"""Lies told about a model: each takes a random generator and a Model, changes it, and says what it did."""

import json
import math
import struct
import zipfile

import formats
from formats import Tensor
from seeds import POISON

HOSTILE_NUMBERS = [0, -1, 1, 2, 3, 5, 7, 63, 64, 65, 127, 4095, 4096, 4097, 65536, 2**20, 2**24, 2**30, 2**31 - 1, 2**31,
                   2**32, 2**53 + 1, 2**62, 2**63 - 1]
HOSTILE_VALUES = HOSTILE_NUMBERS + [-2**31, -2**63, 2**63, 2**64, 10**30, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, math.nan,
                                    math.inf, None, True, False, "", "x", "12", "\x1b[31m\x1b]0;x\x07", "a" * 100_000,
                                    "\u202e", [], {}, [[]], [1, 2, 3], {"a": 1}, list(range(300))]


def pick(random, values):
    return values[random.randrange(len(values))]


def places(value, path=()):
    """Every place in a JSON value, as a path of keys."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, path + (key,))


def change_json(random, root):
    """One place gets a hostile value, goes away, stands twice under another name, or changes with another."""
    found = [path for path in places(root) if path]
    if not found:
        return "nothing"
    path = pick(random, found)
    parent = root
    for key in path[:-1]:
        parent = parent[key]
    key, way = path[-1], random.randrange(8)
    if way == 0:
        del parent[key]
        return f"{path} removed"
    if way == 1 and isinstance(parent, dict):
        parent[pick(random, ["x", "\x1b[2J", "a" * 5000, str(key).upper()])] = parent.pop(key)
        return f"{path} renamed"
    if way == 2 and isinstance(parent[key], int):
        parent[key] = parent[key] + pick(random, [-1, 1, 2, -parent[key] * 2])
        return f"{path} is {parent[key]}"
    if way == 3:
        other = pick(random, found)
        value = root
        for step in other:
            value = value[step]
        parent[key] = json.loads(json.dumps(value))
        return f"{path} as {other}"
    parent[key] = pick(random, HOSTILE_VALUES)
    return f"{path} is {str(parent[key])[:60]!r}"


def change_text(random, raw):
    """Bytes of a file that was text or a header: cut, doubled, overwritten."""
    raw = bytearray(raw)
    at = random.randrange(len(raw)) if raw else 0
    way = random.randrange(8)
    if way == 0:
        del raw[at:]
        return bytes(raw), f"cut at {at}"
    if way == 1:
        raw[at:at + 1] = b"\0"
        return bytes(raw), f"zero byte at {at}"
    if way == 2:
        raw[at:at] = raw[at:at + random.randrange(1, 40)]
        return bytes(raw), f"a piece twice at {at}"
    if way == 3:
        depth = pick(random, [60, 70, 5000, 100_000])
        return b"[" * depth + raw + b"]" * depth, f"{depth} brackets around"
    if way == 4:
        return bytes(raw) + pick(random, [b" ", b"x", b"\0", b"{}", bytes(100)]), "something behind it"
    if raw:
        raw[at] ^= 1 << random.randrange(8)
    return bytes(raw), f"a bit at {at}"


# Of the config.

OPTIONAL_FIELDS = {"mlp_only_layers": [[0], [0, 1], [5, -1], list(range(1000)), "x", [0.5]],
                   "layer_types": [["sliding_attention"] * 2, ["full_attention"], [None, None], "x"],
                   "sliding_window": [1, 3, 2**40, None], "num_experts": [0, 1, 4, 4096, 10**9],
                   "num_local_experts": [2], "num_experts_per_tok": [0, 1, 5], "moe_intermediate_size": [1, 12, 2**21],
                   "partial_rotary_factor": [0, 0.25, 0.3, 1, 2, -1], "head_dim": [0, 1, 3, 7, 8, 4096, 5000],
                   "rope_scaling": [{"rope_type": "yarn", "factor": 4.0}, {"rope_type": "llama3", "factor": 0},
                                    {"type": "linear", "factor": 1e300}, {"rope_type": "yarn", "factor": 1e6,
                                                                          "beta_fast": 0}, [], "x"],
                   "tie_word_embeddings": [True, False, 1], "decoder_sparse_step": [0, 1, 2, 10**9],
                   "n_shared_experts": [True, 1, 64, 10**6], "position_embedding_type": ["none", "learned", "x"],
                   "quantization_config": [{"bits": 4}], "dim": [32, 0], "n_layers": [2]}


def config_value(random, model):
    return "config " + change_json(random, model.config)


def config_field(random, model):
    name = pick(random, list(OPTIONAL_FIELDS))
    model.config[name] = pick(random, OPTIONAL_FIELDS[name])
    return f"config {name} is {str(model.config[name])[:60]}"


def config_number(random, model):
    names = [name for name, value in model.config.items() if isinstance(value, int)]
    name = pick(random, names)
    model.config[name] = pick(random, HOSTILE_NUMBERS)
    return f"config {name} is {model.config[name]}"


def config_text(random, model):
    raw, what = change_text(random, json.dumps(model.config).encode())
    model.files["config.json"] = raw
    return "config.json " + what


def config_of_millions(random, model):
    count = pick(random, [1000, 400_000])
    model.config["mlp_only_layers"] = [random.randrange(100) for _ in range(count)]
    model.config.setdefault("num_experts", 4)
    model.config.setdefault("num_experts_per_tok", 1)
    return f"config mlp_only_layers of {count}"


# Of the tokenizer.

def tokenizer_value(random, model):
    return "tokenizer " + change_json(random, model.tokenizer)


def tokenizer_text(random, model):
    raw, what = change_text(random, json.dumps(model.tokenizer).encode())
    model.files["tokenizer.json"] = raw
    return "tokenizer.json " + what


def tokenizer_gone(random, model):
    model.files["tokenizer.json"] = None
    return "no tokenizer.json"


# Of the tensors, for every kind of file.

def tensor_shape(random, model):
    """Another shape for the same bytes, or for fewer of them, with poison in the place of the rest."""
    t = pick(random, model.tensors)
    before, words = list(t.shape), len(t.data) // 4
    way = random.randrange(6)
    if way == 0 and len(t.shape) == 2:
        t.shape.reverse()
    elif way == 1:
        t.shape = [words]
    elif way == 2:
        t.shape = [1] * random.randrange(1, 5) + t.shape
    elif way == 3:
        t.shape, t.data = [0] + t.shape[1:], b""
    elif way == 4 and t.shape[0] > 1:
        kept = random.randrange(1, t.shape[0])
        row = len(t.data) // t.shape[0]
        rest = len(t.data) - kept * row
        t.shape[0], t.data = kept, t.data[:kept * row]
        add_poison(model, t, rest)
    else:
        wanted = pick(random, [w for w in (1, 2, 3, words // 2, words + 1, 2 * words) if w > 0])
        t.data = (t.data + POISON * wanted)[:4 * wanted]
        t.shape = [wanted] if len(t.shape) == 1 else [1, wanted]
    return f"{t.name} {before} as {t.shape}"


def add_poison(model, after, size):
    at = model.tensors.index(after) + 1
    model.tensors.insert(at, Tensor(f"unused.{at}", [size // 4], POISON * (size // 4)))


def tensor_dtype(random, model):
    t = pick(random, model.tensors)
    t.dtype = pick(random, ["F16", "BF16", "I64", "F64", "U8", "BOOL", "Q4_0", "Q8_0", "Q4_K", "x", "\x1b[1m", ""])
    if t.dtype in ("F16", "BF16") and random.random() < 0.7:
        t.data = t.data[:len(t.data) // 2]
    return f"{t.name} as {t.dtype!r}"


def tensor_missing(random, model):
    t = model.tensors.pop(random.randrange(len(model.tensors)))
    return f"no {t.name}"


def tensor_extra(random, model):
    source = pick(random, model.tensors)
    name = pick(random, [source.name, source.name + "x", source.name.rsplit(".", 1)[0] + ".bias", "rope_freqs.weight",
                         "\x1b[31mred\x1b[0m", "a" * 70_000, "", "lm_head.weight", "model.layers.7.mlp.up_proj.weight",
                         source.name.replace("attn_q.", "attn_qkv.")])
    shape = pick(random, [[4], [0], [1, 4], [2, 2], [0, 5], [1, 1, 4], []])
    words = math.prod(shape)
    model.tensors.insert(random.randrange(len(model.tensors) + 1), Tensor(name, shape, POISON * words))
    return f"more: {name[:60]!r} {shape}"


def tensor_renamed(random, model):
    t = pick(random, model.tensors)
    before = t.name
    other = pick(random, model.tensors).name
    t.name = pick(random, [other, before + ".x", before.replace("0", "1"), "\x9b31m", "\xff", "x" * 3000])
    return f"{before} is called {t.name[:60]!r}"


def tensors_swapped(random, model):
    a, b = pick(random, model.tensors), pick(random, model.tensors)
    a.shape, b.shape, a.data, b.data = b.shape, a.shape, b.data, a.data
    return f"{a.name} and {b.name} exchanged"


def tensor_numbers(random, model):
    t = pick(random, model.tensors)
    value = pick(random, [math.nan, math.inf, -math.inf, 0.0, 3e38, 1e-45])
    t.data = struct.pack("<f", value) * (len(t.data) // 4)
    return f"{t.name} full of {value}"


def many_tensors(random, model):
    count = pick(random, [2000, 20_000])
    model.tensors += [Tensor(f"t{n}", [0], b"") for n in range(count)]
    return f"{count} empty tensors more"


# Of safetensors' header and bytes.

def weights_header(random, model):
    header, data = formats.safetensors_parts(model.tensors)
    what = change_json(random, header)
    model.files["model.safetensors"] = formats.safetensors(header, data)
    return "header " + what


def weights_length(random, model):
    header, data = formats.safetensors_parts(model.tensors)
    length = pick(random, [0, 1, 7, 8, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 100_000_001])
    model.files["model.safetensors"] = formats.safetensors(header, data, length)
    return f"header length {length}"


def weights_text(random, model):
    header, data = formats.safetensors_parts(model.tensors)
    raw, what = change_text(random, json.dumps(header).encode())
    model.files["model.safetensors"] = formats.safetensors(raw, data)
    return "header " + what


def weights_cut(random, model):
    raw = formats.safetensors(*formats.safetensors_parts(model.tensors))
    at = random.randrange(len(raw))
    model.files["model.safetensors"] = raw[:at]
    return f"weights cut at {at} of {len(raw)}"


def weights_bits(random, model):
    raw = bytearray(formats.safetensors(*formats.safetensors_parts(model.tensors)))
    count = random.randrange(1, 20)
    for _ in range(count):
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    model.files["model.safetensors"] = bytes(raw)
    return f"{count} bits of the weights"


def weights_index(random, model):
    where = pick(random, ["../model.safetensors", "/etc/passwd", "", "none.safetensors", "model.safetensors", 5, None])
    index = {"weight_map": {t.name: where for t in model.tensors}}
    what = change_json(random, index) if random.random() < 0.5 else ""
    model.files["model.safetensors.index.json"] = json.dumps(index).encode()
    return f"index to {where!r} {what}"


# Of GGUF.

def gguf_field(random, model):
    """One number of the header is another."""
    out = formats.gguf(model.settings, model.tensors)
    at, form, what = pick(random, out.fields)
    if form == "f":
        value = pick(random, [math.nan, math.inf, -1.0, 0.0, 1e-45, 3e38])
    elif form == "i":
        value = pick(random, HOSTILE_NUMBERS) % 2**32 - 2**31
    else:
        value = pick(random, HOSTILE_NUMBERS) % (1 << 8 * struct.calcsize("<" + form))
    struct.pack_into("<" + form, out.raw, at, value)
    model.files["model.gguf"] = bytes(out.raw)
    return f"{what} is {value}"


def gguf_setting(random, model):
    n = random.randrange(len(model.settings))
    key, kind, value = model.settings[n]
    way = random.randrange(4)
    if way == 0:
        model.settings.pop(n)
        return f"no {key}"
    if way == 1:
        model.settings.append((key, kind, value))
        return f"{key} twice"
    if way == 2 and isinstance(value, list):
        model.settings[n] = (key, kind, pick(random, [[], value[:-1], value * 3, value[:1] * 5000]))
        return f"{key} of another length"
    if kind == formats.GGUF_STRING:
        model.settings[n] = (key, kind, pick(random, ["", "x", "llama", "bert", "gpt2", "\x1b[31m", "a" * 100_000]))
    elif not isinstance(value, list):
        model.settings[n] = (key, kind, pick(random, [0, 1, 2, 3, 7, 64, 4096, 10**6, 2**31 - 1]))
    return f"{key} is {str(model.settings[n][2])[:60]!r}"


def gguf_more(random, model):
    family = model.settings[0][2]
    key, kind, value = pick(random, [
        ("general.alignment", formats.GGUF_U32, 0), ("general.alignment", formats.GGUF_U32, 3),
        ("general.alignment", formats.GGUF_U32, 2**31), (family + ".expert_count", formats.GGUF_U32, 8),
        (family + ".rope.scaling.type", formats.GGUF_STRING, "yarn"), (family + ".rope.scaling.type", formats.GGUF_STRING, ""),
        (family + ".attention.sliding_window", formats.GGUF_U32, 1), ("x" * 70_000, formats.GGUF_U32, 1),
        ("tokenizer.chat_template", formats.GGUF_STRING, "{% for m in messages %}" * 100),
        ("tokenizer.ggml.bos_token_id", formats.GGUF_U32, 2**31), ("\x1b[31m", formats.GGUF_STRING, "\x1b[2J")])
    model.settings.append((key, kind, value))
    return f"{key[:60]!r} is {str(value)[:40]!r}"


def gguf_cut(random, model):
    raw = formats.gguf(model.settings, model.tensors).raw
    at = random.randrange(len(raw))
    model.files["model.gguf"] = bytes(raw[:at])
    return f"cut at {at} of {len(raw)}"


def gguf_bits(random, model):
    raw = formats.gguf(model.settings, model.tensors).raw
    count = random.randrange(1, 20)
    for _ in range(count):
        raw[random.randrange(min(len(raw), 4000))] ^= 1 << random.randrange(8)
    model.files["model.gguf"] = bytes(raw)
    return f"{count} bits of its header"


# Of .pth.

def pth_pickle(random, model):
    pickled = bytearray(formats.pth_pickle(model.tensors))
    count = random.randrange(1, 6)
    for _ in range(count):
        pickled[random.randrange(len(pickled))] = random.randrange(256)
    model.files["model.pth"] = formats.pth(bytes(pickled), model.tensors)
    return f"{count} bytes of its pickle"


def pth_shape(random, model):
    """A shape or stride of the pickle that its storage does not have."""
    lie = [t.copy() for t in model.tensors]
    t = pick(random, lie)
    t.shape = pick(random, [[d * 2 for d in t.shape], [2**31, 2**31], [2**62, 2], [0], [-1], t.shape + [1], t.shape[:1],
                            [2**63 - 1], t.shape[::-1]])
    model.files["model.pth"] = formats.pth(formats.pth_pickle(lie), model.tensors)
    return f"pickle says {t.name} {t.shape}"


def pth_storage(random, model):
    kept = formats.pth_pickle(model.tensors)
    t = pick(random, model.tensors)
    t.data = pick(random, [b"", t.data[:-1], t.data[:-4], t.data * 2])
    model.files["model.pth"] = formats.pth(kept, model.tensors)
    return f"storage of {t.name} has {len(t.data)} bytes"


def pth_bits(random, model):
    raw = bytearray(formats.pth(formats.pth_pickle(model.tensors), model.tensors))
    count = random.randrange(1, 20)
    for _ in range(count):
        # The directory stands at the end.
        raw[-1 - random.randrange(min(len(raw), 3000))] ^= 1 << random.randrange(8)
    model.files["model.pth"] = bytes(raw)
    return f"{count} bits of its directory"


def pth_cut(random, model):
    raw = formats.pth(formats.pth_pickle(model.tensors), model.tensors)
    at = random.randrange(len(raw))
    model.files["model.pth"] = raw[:at]
    return f"cut at {at} of {len(raw)}"


def pth_bomb(random, model):
    body = pick(random, [b"N", b"]", b"}", b"K\x01", b"(", b"2", b")", b"\x94"])
    pickled = b"\x80\x02" + b"]" + body * pick(random, [10_000, 4_000_000]) + b"."
    model.files["model.pth"] = formats.pth(pickled, model.tensors, zipfile.ZIP_DEFLATED)
    return f"a pickle of {len(pickled)} bytes, packed"


TENSORS = [tensor_shape, tensor_shape, tensor_shape, tensor_dtype, tensor_missing, tensor_extra, tensor_extra,
           tensor_renamed, tensors_swapped, tensor_numbers, many_tensors]
CONFIG = [config_value, config_value, config_value, config_field, config_field, config_number, config_number, config_text,
          config_of_millions]
TOKENIZER = [tokenizer_value, tokenizer_value, tokenizer_value, tokenizer_text, tokenizer_gone]
MUTATIONS = {
    "folder": TENSORS + CONFIG + TOKENIZER + [weights_header, weights_header, weights_header, weights_length, weights_text,
                                              weights_cut, weights_bits, weights_index],
    "gguf": TENSORS + [gguf_field] * 8 + [gguf_setting] * 5 + [gguf_more, gguf_more, gguf_cut, gguf_bits],
    "pth": TENSORS + CONFIG[:4] + TOKENIZER[:1] + [pth_pickle, pth_pickle, pth_pickle, pth_shape, pth_shape, pth_storage,
                                                   pth_bits, pth_bits, pth_cut, pth_bomb],
}


def mutate(random, model):
    """One lie, sometimes two or three together. Gives what they were."""
    said = []
    for _ in range(pick(random, [1, 1, 1, 2, 3])):
        said.append(pick(random, MUTATIONS[model.kind])(random, model))
    return "; ".join(said)


def write(model, folder):
    """The model's files in a new folder; gives the path that a command is given."""
    folder.mkdir(parents=True)
    files = {}
    if model.kind == "gguf":
        files["model.gguf"] = lambda: bytes(formats.gguf(model.settings, model.tensors).raw)
    else:
        files["config.json"] = lambda: json.dumps(model.config).encode()
        files["tokenizer.json"] = lambda: json.dumps(model.tokenizer).encode()
    if model.kind == "pth":
        files["model.pth"] = lambda: formats.pth(formats.pth_pickle(model.tensors), model.tensors)
    if model.kind == "folder":
        files["model.safetensors"] = lambda: formats.safetensors(*formats.safetensors_parts(model.tensors))
    for name, make in files.items():
        if name not in model.files:
            (folder / name).write_bytes(make())
    for name, raw in model.files.items():
        if raw is not None:
            (folder / name).write_bytes(raw)
    return folder if model.kind == "folder" else folder / f"model.{model.kind}"
