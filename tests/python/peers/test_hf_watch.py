"""attend.hf.watch against the weights that "eager" returns, on models with random weights."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("attend._lens")

import attend.hf  # noqa: E402
from test_hf import CONFIGS  # noqa: E402


def both(name):
    attend.hf.register()
    torch.manual_seed(0)
    eager = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager").eval()
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("attend")
    return eager, ours


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gpt_oss", "gemma2"])
@torch.no_grad()
def test_weights_are_those_of_eager(name):
    eager, ours = both(name)
    tokens = torch.randint(3, 97, (1, 512))
    expected = eager(tokens, output_attentions=True).attentions
    plain = ours(tokens).logits
    with attend.hf.watch(ours) as watch:
        watched = ours(tokens).logits
    assert torch.equal(plain, watched)
    assert watch.layers == list(range(len(expected)))
    for layer, weights in enumerate(expected):
        for head in range(weights.shape[1]):
            got = watch.weights(layer, head)
            np.testing.assert_allclose(got, weights[0, head].numpy(), atol=1e-5)
    rows = watch.statistics(tokens=tokens)
    w = np.stack([weights.numpy() for weights in expected]).astype(np.float64)
    entropy = -(w * np.log(np.maximum(w, 1e-300))).sum(-1)
    np.testing.assert_allclose(rows.entropy, entropy, atol=1e-3)
    np.testing.assert_allclose(rows.maximum, w.max(-1), atol=1e-5)
    pooled = watch[0].map(head=1, rows=8, cols=8).mass
    np.testing.assert_allclose(pooled, w[0, 0, 1].reshape(8, 64, 8, 64).sum((1, 3)), atol=1e-3)


@torch.no_grad()
def test_only_what_is_asked_for_and_only_while_it_lasts():
    _, ours = both("llama")
    tokens = torch.randint(3, 97, (2, 16))
    with attend.hf.watch(ours, layers=[1]) as watch:
        ours(tokens)
        both("llama")[1](tokens)  # another model
    ours(tokens)
    assert len(watch) == 1 and watch.layers == [1]
    with pytest.raises(KeyError, match="not seen"):
        watch[0]


@torch.no_grad()
def test_while_generating():
    _, ours = both("llama")
    with attend.hf.watch(ours) as watch:
        ours.generate(torch.randint(3, 97, (1, 8)), max_new_tokens=3, min_new_tokens=3)
    assert [call.layer for call in watch.calls] == [0, 1] * 3
    assert [call.seen.queries for call in watch.calls[::2]] == [8, 1, 1]
    assert [call.seen.keys for call in watch.calls[::2]] == [8, 9, 10]
