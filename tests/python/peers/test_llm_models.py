"""attend.llm against Transformers: logits, greedy answers, batches and tokens of small random models, through Python."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config  # noqa: E402

from attend import llm  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from llm_models import letters_tokenizer  # noqa: E402

SHAPE = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=None)
CONFIGS = {"llama": LlamaConfig(**SHAPE), "qwen3": Qwen3Config(**SHAPE, head_dim=24)}
TEXTS = ["once upon a time", "b", "the quick brown fox jumps over the lazy dog"]


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request, tmp_path_factory):
    """Theirs, ours and their tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(1)
    theirs = AutoModelForCausalLM.from_config(CONFIGS[request.param], attn_implementation="eager").float().eval()
    with torch.no_grad():
        for p in theirs.parameters():
            if p.ndim > 1:
                p.normal_(std=1.5 / p.shape[-1] ** 0.5)
    theirs.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(letters_tokenizer("<|nothing|>")))
    return theirs, llm.Model(folder), PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def test_tokens(pair):
    _, ours, tokenizer = pair
    for text in TEXTS:
        assert ours.tokenizer.encode(text) == tokenizer.encode(text)
        assert ours.tokenizer.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text)) == text


def test_logits(pair):
    theirs, ours, tokenizer = pair
    for text, rows in zip(TEXTS, ours.logits(TEXTS)):
        with torch.no_grad():
            expected = theirs(torch.tensor([tokenizer.encode(text)])).logits[0].numpy()
        assert rows.shape == expected.shape and rows.dtype == np.float32
        assert np.abs(rows - expected).max() <= 1e-4 * np.abs(expected).max()


def test_greedy_answers_in_a_batch(pair):
    theirs, ours, tokenizer = pair
    answers = ours.generate(TEXTS, max_tokens=40)
    for text, answer in zip(TEXTS, answers):
        ids = torch.tensor([tokenizer.encode(text)])
        expected = theirs.generate(ids, do_sample=False, max_new_tokens=40, attention_mask=torch.ones_like(ids))
        assert answer.tokens == expected[0, ids.shape[1]:].tolist()
