"""The small models of tests/golden as folders that attend.llm opens, and the program where it was built."""

import json
import os
import pathlib
import shutil
import string
import subprocess
import sys

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = TESTS / "golden/models"
PROGRAM = pathlib.Path(os.environ.get("ATTEND_BUILD", TESTS.parent / "build")) / "bin/attend"
sys.path.insert(0, str(TESTS / "cli"))
from attend import llm  # noqa: E402
from model_test import tokenizer as letters_tokenizer  # noqa: E402

CHATML = "{{ '<|im_start|>' + message['role'] + '\\n' }}<|im_end|>"


def write_decoder(folder, name="llama", chat=False, tokenizer=None, eos=63):
    """One letter a token, and token 63 ends an answer."""
    shutil.copytree(GOLDEN / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": None, "eos_token_id": eos}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer or letters_tokenizer("<|im_end|>")))
    if chat:
        (folder / "chat_template.jinja").write_text(CHATML)
    return folder


def write_encoder(folder):
    """A model that embeds; one letter a token."""
    shutil.copytree(GOLDEN / "bert", folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
    words += [f"[unused{n}]" for n in range(96 - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def widen(folder, hidden, layers):
    """Gives a Llama more numbers, all random: millions, where a test needs calls that take their time."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers, "head_dim": hidden // 4}
    (folder / "config.json").write_text(json.dumps(config))
    kv = hidden // 2
    shapes = {"model.embed_tokens": (64, hidden), "model.norm": (hidden,), "lm_head": (64, hidden)}
    for n in range(layers):
        parts = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                 "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (4 * hidden, hidden),
                 "mlp.up_proj": (4 * hidden, hidden), "mlp.down_proj": (hidden, 4 * hidden),
                 "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"model.layers.{n}.{part}": shape for part, shape in parts.items()}
    rng, header, data = np.random.default_rng(0), {}, []
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32) / np.sqrt(hidden) if len(shape) == 2 else np.ones(shape, np.float32)
        start = sum(map(len, data))
        data.append(values.astype(np.float32).tobytes())
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [start, start + len(data[-1])]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def half_characters_tokenizer():
    """Every token is one byte of a character of two: most characters are cut in two by tokens."""
    tokens = letters_tokenizer("<|im_end|>")
    # Byte-level BPE writes these bytes, beginnings and ends, as the characters of the same numbers.
    names = [chr(byte) for byte in (*range(0xC2, 0xE0), *range(0xA1, 0xAD), *range(0xAE, 0xC0))]
    tokens["model"]["vocab"] = {name: n for n, name in enumerate(names + list("abc"))}
    return tokens


def program(*arguments, **more):
    """What the program prints; a wheel is tested where there is none."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} was not built: ninja -C build bin/attend")
    done = subprocess.run([PROGRAM, *map(str, arguments)], text=True, capture_output=True, timeout=120, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_decoder(tmp_path_factory.mktemp("llm") / "model", chat=True)


@pytest.fixture(scope="module")
def model(folder):
    return llm.Model(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return llm.Model(write_encoder(tmp_path_factory.mktemp("llm") / "bert"))
