"""GPT-2, BERT and MiniMind's first generation trained by attend: the losses are those of Transformers on the same batch,
before the first step and behind it, and Transformers loads what was trained.

ATTEND_BUILD names the build folder (default: build)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import minimind_reference
import numpy as np
import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers")
from transformers import (AutoModel, BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel,  # noqa: E402
                          LlamaForCausalLM)

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("ATTEND_BUILD", ROOT / "build")) / "bin" / "attend"
sys.path.insert(0, str(ROOT / "tests" / "python"))
from llm_models import letters_tokenizer  # noqa: E402

SEED, IGNORED = 7, -100
TEXT = "the quick brown fox jumps over the lazy dog and the hen that sat by the red barn saw it all"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(TEXT.split()), *"abcdefgh"]


@pytest.fixture(scope="module", autouse=True)
def built():
    assert PROGRAM.exists(), f"{PROGRAM} is not there: ninja -C build bin/attend"


def attend(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def randomised(model):
    """Values of some size everywhere, biases and norms too."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.1) if p.ndim > 1 else p.add_(0.1 * torch.randn_like(p))
    return model.float().eval()


def prepared(folder, tokenizer):
    """One text as data, and its tokens."""
    (folder / "text.txt").write_text(TEXT)
    attend("prepare", folder / "text.txt", "-o", folder / "data", "--tokenizer", tokenizer)
    return np.fromfile(folder / "data" / "tokens.bin", dtype=np.int32).tolist()


def trained(folder, start, steps, length):
    """A run whose every batch is the text; gives the losses before each step."""
    run = folder / f"run{steps}"
    attend("train", "pretrain", folder / "data", "--start", start, "-o", run, "--steps", steps, "--length", length, "--batch",
           1, "--compute", "f32", "--rate", 1e-3, "--warm-up", 0, "--last-rate", 1, "--held-out", 0, "--seed", SEED,
           "--sample-tokens", 0)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


def loaded(kind, folder):
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], report
    return model.float().eval()


def loss_of(logits, targets):
    return F.cross_entropy(logits.double(), torch.tensor(targets), ignore_index=IGNORED).item()


def next_token_loss(model, tokens):
    with torch.no_grad():
        return loss_of(model(torch.tensor([tokens[:-1]])).logits[0], tokens[1:])


def test_gpt2(tmp_path):
    start = tmp_path / "gpt2"
    model = randomised(GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                                                  bos_token_id=None, eos_token_id=None)))
    model.save_pretrained(start)
    (start / "tokenizer.json").write_text(json.dumps(letters_tokenizer("<|im_end|>")))
    tokens = prepared(tmp_path, start)
    before, after = trained(tmp_path, start, 2, len(tokens) - 1)
    assert abs(before - next_token_loss(model, tokens)) <= 1e-5
    trained(tmp_path, start, 1, len(tokens) - 1)
    again = loaded(GPT2LMHeadModel, tmp_path / "run1" / "model")
    assert abs(after - next_token_loss(again, tokens)) <= 1e-5
    assert after < before


def uniform(key, index):
    """Philox4x32-10, as attend draws from it."""
    x, k = [index & 0xFFFFFFFF, index >> 32, 0, 0xFFFFFFFF], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return (x[0] >> 8) * 2.0**-24


def hidden(tokens, step):
    """What attend shows of a text in a step, and the targets."""
    key = ((SEED + step * 0x9E3779B97F4A7C15) & (2**64 - 1)) ^ 0x4D41534B5EED
    shown, targets = list(tokens), [IGNORED] * len(tokens)
    for t, token in enumerate(tokens):
        if token < 5 or uniform(key, 3 * t) >= 0.15:
            continue
        targets[t] = token
        what = uniform(key, 3 * t + 1)
        if what < 0.8:
            shown[t] = 4
        elif what < 0.9:
            shown[t] = 5 + int(uniform(key, 3 * t + 2) * (len(WORDS) - 5))
    assert any(target != IGNORED for target in targets), "no token was hidden: choose another seed"
    return shown, targets


def masked_loss(model, tokens, step):
    shown, targets = hidden(tokens, step)
    with torch.no_grad():
        if isinstance(model, BertForMaskedLM):
            logits = model(torch.tensor([shown])).logits[0]
        else:  # a head that is the embedding
            logits = model(torch.tensor([shown])).last_hidden_state[0] @ model.embeddings.word_embeddings.weight.T
    return loss_of(logits, targets)


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertModel])
def test_bert(tmp_path, kind):
    start = tmp_path / "bert"
    config = BertConfig(vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=48, max_position_embeddings=64)
    model = randomised(kind(config) if kind is BertForMaskedLM else kind(config, add_pooling_layer=False))
    model.save_pretrained(start)
    (start / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokens = prepared(tmp_path, start)
    assert tokens[0] == 2 and tokens[-1] == 3 and 1 not in tokens
    before, after = trained(tmp_path, start, 2, len(tokens))
    assert abs(before - masked_loss(model, tokens, 1)) <= 1e-5
    trained(tmp_path, start, 1, len(tokens))
    written = tmp_path / "run1" / "model"
    if kind is BertForMaskedLM:
        again = loaded(BertForMaskedLM, written)
    else:
        again = AutoModel.from_pretrained(written, add_pooling_layer=False).float().eval()
        theirs, ours = model.state_dict(), again.state_dict()
        assert theirs.keys() == ours.keys()
    assert abs(after - masked_loss(again, tokens, 2)) <= 1e-5


def test_minimind_v1(tmp_path):
    """Weights alone, whose pairs lie side by side: they become a Llama."""
    shape = dict(layers=2, heads=16, kv_heads=8)
    weights = minimind_reference.random_weights(True, 64, 64, width=192, **shape)
    weights["tok_embeddings.weight"] *= 0.3  # losses of some units
    start = tmp_path / "first" / "pretrain_64.pth"
    start.parent.mkdir()
    torch.save(weights, start)
    (start.parent / "tokenizer.json").write_text(json.dumps(letters_tokenizer("<|im_end|>")))
    tokens = prepared(tmp_path, start)
    before, after = trained(tmp_path, start, 2, len(tokens) - 1)
    theirs = minimind_reference.logits(weights, torch.tensor(tokens[:-1]), True, theta=1e4, **shape)
    assert abs(before - loss_of(theirs, tokens[1:])) <= 1e-5
    trained(tmp_path, start, 1, len(tokens) - 1)
    assert abs(after - next_token_loss(loaded(LlamaForCausalLM, tmp_path / "run1" / "model"), tokens)) <= 1e-5
