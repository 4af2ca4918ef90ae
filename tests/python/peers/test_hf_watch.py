"""attend.hf.watch against the weights that "eager" returns, on models with random weights."""

import base64
import copy
import gc
import json
import re

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


GENERATING = {
    "dynamic": ("llama", {}),
    "static": ("llama", {"cache_implementation": "static"}),
    "sliding": ("mistral", {}),
    "sliding, static": ("mistral", {"cache_implementation": "static"}),
    "beams": ("llama", {"num_beams": 3}),
    "without a cache": ("llama", {"use_cache": False}),
    "sinks": ("gpt_oss", {}),
}
PROMPT, NEW = 48, 32


def generate(model, options, **more):
    return model.generate(torch.arange(2 * PROMPT).reshape(2, PROMPT) % 90 + 3, do_sample=False, max_new_tokens=NEW,
                          min_new_tokens=NEW, **options, **more)


@pytest.mark.parametrize("case", GENERATING)
@torch.no_grad()
def test_every_call_of_generate_keeps_its_weights(case):
    name, options = GENERATING[case]
    eager, ours = both(name)
    expected = generate(eager, options, return_dict_in_generate=True, output_attentions=True).attentions
    with attend.hf.watch(ours) as watch:
        generate(ours, options)
    assert len(watch) == len(expected) * ours.config.num_hidden_layers
    for call, weights in zip(watch.calls, (w for step in expected for w in step)):
        for batch in range(weights.shape[0]):
            got = np.stack([call.seen.zoom(head, batch) for head in range(weights.shape[1])])
            keys = min(got.shape[2], weights.shape[3])
            np.testing.assert_allclose(got[:, :, :keys], weights[batch, :, :, :keys].numpy(), atol=1e-5)


def storages():
    """The bytes of all tensors' memory, by address."""
    gc.collect()
    found = {}
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, torch.nn.Parameter):
            try:
                found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            except RuntimeError:  # what a compiler left has no memory
                pass
    return found


@pytest.mark.parametrize("case", GENERATING)
@torch.no_grad()
def test_memory_of_a_watched_generate_is_linear_in_the_tokens(case):
    """Queries, keys and values of each token are held once, of a static cache its empty places, too."""
    name, options = GENERATING[case]
    _, ours = both(name)
    before = storages()
    watch = attend.hf.watch(ours)
    with watch:
        generate(ours, options)
    held = sum(size for address, size in storages().items() if address not in before)
    config, length = ours.config, PROMPT + NEW
    rows = 2 * options.get("num_beams", 1) * config.num_hidden_layers * config.head_dim * 4
    queries = rows * config.num_attention_heads * (sum(range(PROMPT, length)) if case == "without a cache" else length)
    keys = 2 * rows * config.num_key_value_heads * length * (2 if "static" in case else 1)
    assert 0.5 * (queries + keys) < held < 1.15 * (queries + keys) + 8192
    assert len(watch.calls) == NEW * config.num_hidden_layers
    for call in watch.calls:  # looks take no memory that stays
        call.seen.lse
    held_after = sum(size for address, size in storages().items() if address not in before)
    assert held_after <= held * 1.2


@torch.no_grad()
def test_looks_at_a_layer_are_kept():
    _, ours = both("llama")
    with attend.hf.watch(ours) as watch:
        generate(ours, {})
    assert watch[0] is watch[0] is watch.calls[0].seen
    last = watch.calls[-1].seen
    assert last is watch.calls[-1].seen and last.keys == PROMPT + NEW - 1


@torch.no_grad()
def test_a_mask_that_all_layers_share_is_copied_once():
    _, ours = both("llama")
    mask = torch.zeros(1, 1, 64, 64).masked_fill(torch.ones(64, 64).triu(1) > 0, -torch.inf)
    with attend.hf.watch(ours) as watch:
        ours(torch.randint(3, 97, (1, 64)), attention_mask=mask, use_cache=False)
    first, second = (call.seen.options["bias"] for call in watch.calls)
    assert first is second and first is not mask and torch.equal(first, mask)


@torch.no_grad()
def test_a_compiled_model():
    _, ours = both("llama")
    tokens = torch.randint(3, 97, (2, 16))
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="eager")
    plain = compiled(tokens).logits
    with attend.hf.watch(ours) as watch:
        torch.testing.assert_close(compiled(tokens).logits, plain)
    with attend.hf.watch(ours) as expected:
        ours(tokens)
    assert watch.layers == expected.layers == [0, 1]
    for layer in watch.layers:
        np.testing.assert_allclose(watch.weights(layer, 1), expected.weights(layer, 1), atol=1e-6)


@torch.inference_mode()
def test_under_inference_mode():
    _, ours = both("llama")
    with attend.hf.watch(ours) as watch:
        generate(ours, {})
    with torch.inference_mode(False):
        assert watch.calls[-1].seen.zoom(0).shape == (1, PROMPT + NEW - 1)


def seq2seq(name):
    attend.hf.register()
    torch.manual_seed(0)
    if name == "t5":
        config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4)
        kind = transformers.T5ForConditionalGeneration
    else:
        config = transformers.BartConfig(vocab_size=97, d_model=32, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
                                         decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64)
        kind = transformers.BartForConditionalGeneration
    eager = kind._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    ours = kind._from_config(copy.deepcopy(config), attn_implementation="attend").eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def embedded(page):
    """The parts of a page, and a reader of their frames."""
    data = json.loads(re.search(r'id="attend-data">(.*?)</script>', page, re.S).group(1))

    def read(part, name):
        raw = base64.b64decode(part["frames"][name])
        size = int.from_bytes(raw[4:8], "little")
        head = json.loads(raw[8:8 + size])
        kind = {"f32": np.float32, "u8": np.uint8}[head["dtype"]]
        return np.frombuffer(raw, kind, int(np.prod(head["shape"])), 8 + size).reshape(head["shape"])

    return {part["name"]: part for part in data["parts"]}, read


@pytest.mark.parametrize("name", ["t5", "bart"])
@torch.no_grad()
def test_an_encoder_a_decoder_and_what_goes_between_them(name):
    eager, ours = seq2seq(name)
    source, target = torch.randint(3, 97, (1, 9)), torch.randint(3, 97, (1, 6))
    expected = eager(input_ids=source, decoder_input_ids=target, output_attentions=True)
    with attend.hf.watch(ours) as watch:
        ours(input_ids=source, decoder_input_ids=target)
    assert sorted(watch.parts()) == ["cross", "decoder", "encoder"]
    parts, read = embedded(watch.html([f"t{n}" for n in range(6)], [f"s{n}" for n in range(9)]))
    for part, attentions in (("encoder", expected.encoder_attentions), ("decoder", expected.decoder_attentions),
                             ("cross", expected.cross_attentions)):
        assert [token["text"][0] for token in parts[part]["run"]["tokens"]] == (["s"] * 9 if part == "encoder" else ["t"] * 6)
        for layer, weights in enumerate(attentions):
            for head in range(4):
                shown = read(parts[part], f"map.{layer}.{head}")[0]
                np.testing.assert_allclose(np.nan_to_num(shown), weights[0, head].numpy(), atol=1e-5)
        masked = np.isnan(read(parts[part], "map.0.0")[0])
        assert np.array_equal(masked, np.triu(np.ones((6, 6)), 1) > 0 if part == "decoder" else np.zeros(masked.shape, bool))
    assert [token["text"] for token in parts["cross"]["run"]["keys"]] == [f"s{n}" for n in range(9)]
    assert "keys" not in parts["decoder"]["run"]
    with pytest.raises(attend.InvalidArgument, match="5 tokens were given as tokens, expected 6"):
        watch.html(["a"] * 5, ["b"] * 9)


@torch.no_grad()
def test_a_page_of_a_decoder():
    _, ours = both("llama")
    with attend.hf.watch(ours) as watch:
        ours.generate(torch.randint(3, 97, (1, 8)), max_new_tokens=2, min_new_tokens=2)
    parts, read = embedded(watch.html())
    assert list(parts) == ["decoder"] and [t["text"] for t in parts["decoder"]["run"]["tokens"]] == [str(n) for n in range(8)]
    shown = read(parts["decoder"], "map.1.0")[0]
    np.testing.assert_array_equal(np.nan_to_num(shown), watch.weights(1, 0))
    assert read(parts["decoder"], "thumbs").shape[0] == 2
    with pytest.raises(attend.InvalidArgument, match="nothing was seen"):
        attend.hf.watch(ours).html()
