"""attn_implementation="attend" against "eager", on small models with random weights."""

import copy
import io
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import attend.hf  # noqa: E402
from attend import masks  # noqa: E402

VOCABULARY = 97
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GQA = dict(SIZES, num_key_value_heads=2, head_dim=8)

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GQA),
    "qwen3": lambda: transformers.Qwen3Config(**GQA),
    "mistral": lambda: transformers.MistralConfig(**GQA, sliding_window=5),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                                            initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **GQA, sliding_window=5, num_local_experts=2, num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=["sliding_attention", "full_attention"]),
    "gemma2": lambda: transformers.Gemma2Config(
        **GQA, sliding_window=5, query_pre_attn_scalar=8, attn_logit_softcapping=2.0, final_logit_softcapping=30.0,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"]),
}
DECODERS = list(CONFIGS)
CONFIGS["bert"] = lambda: transformers.BertConfig(**SIZES, max_position_embeddings=64)
CONFIGS["modernbert"] = lambda: transformers.ModernBertConfig(
    **SIZES, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2)
ENCODERS = ["bert", "modernbert"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers attend, and counts its calls: a model that quietly runs something else proves nothing."""
    calls = []

    def counted(*args, **kwargs):
        calls.append(1)
        return attend.hf.attention_forward(*args, **kwargs)

    attend.hf.register()
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "attend", counted)
    torch.manual_seed(0)
    return calls


@pytest.fixture
def no_arrays(monkeypatch):
    """Forbids masks from becoming arrays."""
    def forbidden(*args, **kwargs):
        raise AssertionError("a mask was made an array although its rule is known")

    monkeypatch.setattr(masks, "dense", forbidden)
    monkeypatch.setattr(attend.hf.RuleMask, "tensor", forbidden)


def pair(name, **changes):
    """The same model with "eager" and with "attend"."""
    config = CONFIGS[name]() if isinstance(name, str) else name
    for key, value in changes.items():
        setattr(config, key, value)
    kind = transformers.AutoModelForMaskedLM if config.model_type in ENCODERS else transformers.AutoModelForCausalLM
    eager = kind.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    for parameter_name, parameter in eager.named_parameters():
        if parameter_name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    other = kind.from_config(copy.deepcopy(config), attn_implementation="attend").eval()
    other.load_state_dict(eager.state_dict())
    assert (eager.config._attn_implementation, other.config._attn_implementation) == ("eager", "attend")
    return eager, other


def tokens(batch=2, length=13):
    return torch.randint(3, VOCABULARY, (batch, length))


def padded(side, batch=3, length=13):
    visible = torch.ones(batch, length, dtype=torch.long)
    for b in range(1, batch):
        n = 3 * b
        if side == "left":
            visible[b, :n] = 0
        elif side == "right":
            visible[b, -n:] = 0
        else:
            visible[b, 4:4 + n] = 0
    return visible


def close(got, wanted, rows=None):
    if rows is not None:
        got, wanted = got[rows], wanted[rows]
    scale = max(1.0, wanted.abs().max().item())
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-5 * scale)


def same(eager, other, calls, ids, visible=None, **inputs):
    """Logits and every weight agree, in the rows of real tokens; in those of padding eager's are arbitrary."""
    with torch.no_grad():
        wanted = eager(ids, attention_mask=visible, output_attentions=True, **inputs)
        assert not calls
        got = other(ids, attention_mask=visible, output_attentions=True, **inputs)
        plain = other(ids, attention_mask=visible, **inputs)
    layers = other.config.num_hidden_layers
    assert len(calls) == 2 * layers
    assert len(got.attentions) == len(wanted.attentions) == layers
    assert plain.attentions is None
    real = None if visible is None or visible.ndim != 2 else visible.bool()
    close(got.logits, wanted.logits, real)
    for a, b in zip(got.attentions, wanted.attentions):
        assert a.shape == b.shape and a.dtype == b.dtype
        close(a.transpose(1, 2), b.transpose(1, 2), real)
        assert b.max() > 0.9 or b.std() > 0.05  # uniform weights would agree whatever the scores
    assert torch.isfinite(got.logits).all()
    torch.testing.assert_close(plain.logits, got.logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_logits_and_weights(name, registered, no_arrays):
    same(*pair(name), registered, tokens())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_padded_batch(name, side, registered, no_arrays):
    same(*pair(name), registered, tokens(3), padded(side))


@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_padding_with_holes(name, registered):
    same(*pair(name), registered, tokens(3), padded("middle"))


def test_bidirectional_llama(registered, no_arrays):
    same(*pair("llama", is_causal=False), registered, tokens(3), padded("left"))
    registered.clear()
    same(*pair("llama", is_causal=False), registered, tokens(3))


def test_packed_documents(registered, no_arrays):
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5, 6]])
    for name in ("llama", "mistral"):
        registered.clear()
        same(*pair(name), registered, tokens(1), position_ids=positions, use_cache=False)


def test_packed_documents_need_positions_that_rise_by_one():
    utils = transformers.masking_utils
    documents = torch.tensor([[0, 0, 0, 1, 1]])

    def rule(positions, within=utils.causal_mask_function):
        remapped = utils.remap_positions_for_packed_sequence(within, torch.tensor([positions]))
        return attend.hf._rule(utils.and_masks(utils.packed_sequence_mask_function(documents), remapped), 5, 5, 0, 0)

    assert rule([0, 1, 2, 0, 1]) is not None
    assert rule([0, 1, 2, 3, 4]) is not None
    assert rule([0, 2, 1, 0, 1]) is None  # key 2 comes before key 1
    assert rule([0, 1, 2, 0, 1], utils.packed_sequence_mask_function(documents)) is None


def test_packed_documents_of_a_batch(registered):
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    same(*pair("llama"), registered, tokens(2), position_ids=positions, use_cache=False)


def test_masks_of_the_users_own(registered):
    eager, other = pair("llama")
    ids = tokens(2)
    visible = torch.rand(2, 1, 13, 13) > 0.4
    visible |= torch.eye(13, dtype=torch.bool)
    additive = torch.where(visible, torch.randn(2, 1, 13, 13), torch.finfo(torch.float32).min)
    same(eager, other, registered, ids, additive)
    with torch.no_grad():
        wanted = eager(ids, attention_mask=torch.where(visible, 0.0, torch.finfo(torch.float32).min)).logits
        close(other(ids, attention_mask=visible).logits, wanted)


def test_encoder_decoder_with_position_bias(registered):
    """T5: a learned bias, cross-attention, no scaling; with the gradient of the bias."""
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                                   dropout_rate=0.0, decoder_start_token_id=0, initializer_factor=1.0)
    eager = transformers.T5ForConditionalGeneration._from_config(copy.deepcopy(config), attn_implementation="eager")
    other = transformers.T5ForConditionalGeneration._from_config(copy.deepcopy(config), attn_implementation="attend")
    other.load_state_dict(eager.state_dict())
    ids, labels, visible = tokens(3), tokens(3, 7), padded("right")
    results = [m(ids, attention_mask=visible, labels=labels, output_attentions=True) for m in (eager, other)]
    assert len(registered) == 6
    close(results[1].logits, results[0].logits)
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        for a, b in zip(results[1][kind], results[0][kind]):
            real = visible.bool() if kind == "encoder_attentions" else None
            close(a.transpose(1, 2), b.transpose(1, 2), real)
    for result in results:
        result.loss.backward()
    compare_gradients(eager, other)
    assert other.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad.abs().max() > 0


# ---- Caches ----


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "gemma2"])
def test_chunks_through_a_cache(name, cache, registered, no_arrays):
    """A prompt in pieces of several tokens gives what the whole prompt gives without a cache."""
    eager, other = pair(name)
    ids, visible = tokens(3, 17), padded("left", 3, 17)
    with torch.no_grad():
        wanted = eager(ids, attention_mask=visible, use_cache=False).logits
    make = {"dynamic": lambda m: transformers.DynamicCache(config=m.config),
            "static": lambda m: transformers.StaticCache(config=m.config, max_cache_len=24)}[cache]
    past = make(other)
    at = 0
    for step in (7, 4, 1, 1, 4):
        with torch.no_grad():
            piece = other(ids[:, at:at + step], attention_mask=visible[:, :at + step], past_key_values=past,
                          position_ids=torch.arange(at, at + step)[None].expand(3, -1))
        # without explicit positions eager's whole pass counts from 0 as well
        close(piece.logits, wanted[:, at:at + step], visible[:, at:at + step].bool())
        at += step
    assert registered


def generate(model, ids, visible, **options):
    with torch.no_grad():
        return model.generate(ids, attention_mask=visible, do_sample=False, min_new_tokens=64, max_new_tokens=64,
                              **options)


def eight_layers():
    return transformers.LlamaConfig(**{**GQA, "num_hidden_layers": 8, "initializer_range": 0.15})


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_64_greedy_tokens(cache, registered, no_arrays):
    eager, other = pair(eight_layers())
    ids, visible = tokens(2, 9), padded("left", 2, 9)
    wanted = generate(eager, ids, visible)
    assert not registered
    got = generate(other, ids, visible, cache_implementation=cache)
    assert len(registered) == 8 * 64
    assert wanted.shape == (2, 9 + 64)
    assert len(set(wanted[0, 9:].tolist())) > 8  # a model stuck on one token would agree too easily
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["mistral", "gpt_oss", "gemma2", "gpt2", "qwen3"])
def test_greedy_tokens_of_other_models(name, registered, no_arrays):
    eager, other = pair(name)
    ids, visible = tokens(2, 9), padded("left", 2, 9)
    wanted = generate(eager, ids, visible)
    assert torch.equal(generate(other, ids, visible), wanted)
    assert len(registered) == 2 * 64
    assert len(set(wanted[0, 9:].tolist())) > 4


def test_beams_and_weights_while_generating():
    eager, other = pair("llama")
    ids = tokens(2, 6)
    results = [m.generate(ids, num_beams=3, do_sample=False, max_new_tokens=8, min_new_tokens=8,
                          return_dict_in_generate=True, output_attentions=True) for m in (eager, other)]
    assert torch.equal(results[0].sequences, results[1].sequences)
    assert len(results[1].attentions) == len(results[0].attentions) == 8
    for a, b in zip(results[1].attentions, results[0].attentions):
        for x, y in zip(a, b):
            close(x, y)


# ---- Training ----


def compare_gradients(eager, other):
    for (name, a), (_, b) in zip(other.named_parameters(), eager.named_parameters()):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            scale = max(b.grad.abs().max().item(), 1e-3)
            torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-4 * scale, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_gradients(name, side, registered, no_arrays):
    models = pair(name)
    ids = tokens(3)
    visible = None if side is None else padded(side)
    labels = ids if visible is None else torch.where(visible.bool(), ids, -100)
    if side == "left":  # a row that predicts from padding has arbitrary logits with eager
        labels = labels.clone()
        for b in range(3):
            labels[b, int((1 - visible[b]).sum())] = -100
    for model in models:
        model(ids, attention_mask=visible, labels=labels).loss.backward()
    compare_gradients(*models)
    assert registered
    moved = [p.grad.abs().max() for n, p in models[1].named_parameters() if any(x in n for x in ("k_proj", "c_attn",
             "sinks", "self.key", "Wqkv")) and "bias" not in n]
    assert moved and all(g > 0 for g in moved)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2"])
def test_gradients_through_the_weights(name):
    """A loss on the weights that output_attentions gives trains the model, as with eager."""
    models = pair(name)
    ids, target = tokens(2), torch.rand(2, 4, 13, 13)
    for model in models:
        result = model(ids, output_attentions=True, labels=ids)
        (sum(((w - target) ** 2).sum() for w in result.attentions) + result.loss).backward()
    compare_gradients(*models)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "bert"])
def test_gradients_of_the_weights(name, dtype):
    """What the loss gains by each weight, as methods of explanation ask for."""
    results = []
    for model in pair(name):
        model, ids = model.to(dtype), torch.arange(3, 16)[None]
        result = model(ids, output_attentions=True)
        for weights in result.attentions:
            weights.retain_grad()
        result.logits.float().square().mean().backward()
        results.append((model, [weights.grad.float() for weights in result.attentions]))
    (eager, wanted), (other, got) = results
    for a, b in zip(got, wanted):
        assert b.abs().max() > 0
        scale = 1e-1 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(a, b, rtol=0, atol=scale * b.abs().max().item())
    if dtype == torch.float32:
        compare_gradients(eager, other)


def test_gradients_of_the_weights_with_dropout():
    """The output is linear in the weights: so their gradients see what dropout kept."""
    module = torch.nn.Module().train()
    q, k, v = (torch.randn(1, 2, 6, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out, weights = attend.hf.attention_forward(module, q, k, v, None, dropout=0.4, output_attentions=True)
    dout = torch.randn_like(out)
    dweights, dv = torch.autograd.grad(out, (weights, v), dout)
    torch.testing.assert_close((dweights * weights).sum(), (dout * out).sum())
    torch.testing.assert_close((dv * v).sum(), (dout * out).sum())
    assert (dweights == 0).any()


def test_gradient_checkpointing(registered):
    _, model = pair("llama", attention_dropout=0.3)
    ids = tokens()
    gradients = []
    for checkpointing in (False, True):
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(5)
        model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert len(registered) == 2 + 4
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_dropout():
    eager, model = pair("llama", attention_dropout=0.5)
    ids = tokens()
    model.train()

    def run(seed):
        torch.manual_seed(seed)
        with torch.no_grad():
            return model(ids, output_attentions=True)

    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first.logits, again.logits)
    assert not torch.allclose(first.logits, other.logits, atol=1e-3)
    with torch.no_grad():
        wanted = eager(ids, output_attentions=True)
    close(first.attentions[0], wanted.attentions[0])  # before dropout
    close(model.eval()(ids).logits, wanted.logits)


def test_dropout_in_the_mean():
    """Over many seeds the output of the first attention is that without dropout."""
    module = torch.nn.Module()
    module.is_causal = True
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    wanted, _ = attend.hf.attention_forward(module.eval(), q, k, v, None, dropout=0.4)
    module.train()
    runs = torch.stack([attend.hf.attention_forward(module, q, k, v, None, dropout=0.4)[0] for _ in range(4000)])
    assert runs.std(0).max() > 0.3
    assert ((runs.mean(0) - wanted).abs() < 5 * runs.std(0) / 4000**0.5 + 1e-6).all()


def test_gradcheck_with_everything():
    """Double precision, all options at once, both outputs; dropout draws the same for the same torch seed."""
    module = torch.nn.Module()
    q = torch.randn(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 2, 7, 6, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 2, 7, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(1, 4, 1, 7, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    visible = attend.hf.attention_mask(2, 5, 7, q_offset=2, attention_mask=torch.ones(2, 7, dtype=torch.bool))

    def run(*inputs):
        torch.manual_seed(3)
        return attend.hf.attention_forward(module, *inputs[:3], visible, dropout=0.3, scaling=0.5, softcap=1.5,
                                           position_bias=inputs[3], s_aux=inputs[4], output_attentions=True)

    assert torch.autograd.gradcheck(run, (q, k, v, bias, sinks))


# ---- Types, compilation, the mask as a tensor, errors ----


def test_bfloat16():
    eager, other = (m.to(torch.bfloat16) for m in pair("llama", initializer_range=0.05))
    ids = tokens()
    with torch.no_grad():
        wanted, got = (m(ids, output_attentions=True) for m in (eager, other))
    assert got.logits.dtype == torch.bfloat16 and got.attentions[0].dtype == torch.bfloat16
    torch.testing.assert_close(got.logits, wanted.logits, rtol=0, atol=0.05 * wanted.logits.abs().max().item())


def test_autocast():
    eager, other = pair("llama", initializer_range=0.05)
    ids = tokens()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, got = eager(ids).logits, other(ids).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=0.05 * wanted.abs().max().item())


def test_compiled():
    eager, other = pair("mistral")
    ids = tokens()
    compiled = torch.compile(other, backend="eager")
    with torch.no_grad():
        for visible in (None, padded("left", 2)):
            wanted, got = eager(ids, attention_mask=visible), compiled(ids, attention_mask=visible)
            close(got.logits, wanted.logits, None if visible is None else visible.bool())


@pytest.mark.parametrize("function", ["causal", "window", "both sides"])
def test_mask_read_as_a_tensor(function):
    from transformers import masking_utils as hf

    rule = {"causal": hf.causal_mask_function, "window": hf.sliding_window_causal_mask_function(4),
            "both sides": hf.sliding_window_bidirectional_mask_function(2)}[function]
    arguments = dict(batch_size=3, q_length=5, kv_length=9, q_offset=6, kv_offset=2, mask_function=rule,
                     attention_mask=padded("left", 3, 11).bool())
    mask = attend.hf.attention_mask(**arguments)
    assert isinstance(mask, attend.hf.RuleMask) and mask.shape == (3, 1, 5, 9) and mask.dtype == torch.float32
    wanted = hf.eager_mask(**arguments)
    visible = (wanted == 0).expand(3, 2, 5, 9)
    module = torch.nn.Module().eval()
    q, k, v = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 9, 4), torch.randn(3, 2, 9, 4)
    by_rule = attend.hf.attention_forward(module, q, k, v, mask, output_attentions=True)[1]
    assert mask.rule is not None
    assert torch.equal(by_rule > 0, visible)
    assert torch.equal(mask + 0, wanted) and mask.rule is None
    by_array = attend.hf.attention_forward(module, q, k, v, mask, output_attentions=True)[1]
    rows = visible.any(-1)
    torch.testing.assert_close(by_array[rows], by_rule[rows])


CONVERSIONS = {
    "numpy": lambda m: torch.from_numpy(m.numpy()),
    "asarray": lambda m: torch.from_numpy(np.asarray(m)),
    "dlpack": torch.from_dlpack,
    "dlpack to NumPy": lambda m: torch.from_numpy(np.from_dlpack(m).copy()),
    "tolist": lambda m: torch.tensor(m.tolist()),
    "clone": lambda m: m.clone(),
    "detach": lambda m: m.detach(),
    "tensor": torch.tensor,
    "double": lambda m: m.double().float(),
    "shared": lambda m: m.share_memory_(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "saved": lambda m: saved(m),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def saved(mask):
    file = io.BytesIO()
    torch.save({"mask": mask}, file)
    file.seek(0)
    return torch.load(file)["mask"]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("how", CONVERSIONS)
def test_mask_that_is_copied_or_converted(how, written):
    mask = attend.hf.attention_mask(3, 5, 5, attention_mask=padded("left", 3, 5).bool())
    wanted = transformers.masking_utils.eager_mask(3, 5, 5, attention_mask=padded("left", 3, 5).bool())
    if written:
        mask[:, :, 1] = wanted[:, :, 1] = -1.0
    other = CONVERSIONS[how](mask)
    if how in ("copy", "deepcopy"):
        assert type(other) is attend.hf.RuleMask and other.rule is mask.rule
    else:
        assert type(other) is torch.Tensor
    if how in ("copy", "deepcopy", "pickle", "saved"):
        assert (mask.rule is None) == written  # it is as it was
        other[:, :, 0] = 7.0  # memory of its own
    else:
        assert torch.equal(other, wanted)
    assert torch.equal(mask + 0, wanted)


def test_copies_within_one_object_stay_one():
    mask = attend.hf.attention_mask(1, 4, 4)
    first, second = copy.deepcopy([mask, mask])
    assert first is second and first is not mask


def test_mask_of_an_unknown_function():
    from transformers import masking_utils as hf

    function = hf.chunked_causal_mask_function(3, torch.tensor([0, 1]))
    mask = attend.hf.attention_mask(2, 7, 7, mask_function=function)
    module = torch.nn.Module().eval()
    q, k, v = (torch.randn(2, 2, 7, 4) for _ in range(3))
    weights = attend.hf.attention_forward(module, q, k, v, mask, output_attentions=True)[1]
    assert torch.equal(weights > 0, (hf.eager_mask(2, 7, 7, mask_function=function) == 0).expand(2, 2, 7, 7))


def test_mask_that_is_written_to():
    mask = attend.hf.attention_mask(1, 4, 4)
    mask[:, :, :, 0] = -torch.inf
    module = torch.nn.Module().eval()
    q, k, v = (torch.randn(1, 1, 4, 4) for _ in range(3))
    weights = attend.hf.attention_forward(module, q, k, v, mask, output_attentions=True)[1]
    assert (weights[0, 0, 1:, 0] == 0).all() and weights[0, 0, 3, 1] > 0


SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
OF_THEIR_OWN = {
    "bloom": lambda: transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4),
    "mpt": lambda: transformers.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4),
    "xglm": lambda: transformers.XGLMConfig(vocab_size=VOCABULARY, d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
    "mpnet": lambda: transformers.MPNetConfig(**SMALL),
    "deberta_v2": lambda: transformers.DebertaV2Config(**SMALL),
}


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_model_with_attention_of_its_own(name, registered):
    """It computes what it computes with "eager", with the mask that it knows; a warning says so."""
    config = OF_THEIR_OWN[name]()
    kind = transformers.AutoModelForMaskedLM if name in ("mpnet", "deberta_v2") else transformers.AutoModelForCausalLM
    eager = kind.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    with pytest.warns(UserWarning, match='computes its attention itself: attn_implementation="attend" has no effect') as warned:
        other = kind.from_config(copy.deepcopy(config), attn_implementation="attend").eval()
    assert len(warned) == 1
    other.load_state_dict(eager.state_dict())
    ids, visible = tokens(3), padded("left")
    with torch.no_grad():
        wanted, got = (m(ids, attention_mask=visible).logits for m in (eager, other))
    assert torch.equal(got, wanted) and not registered


@pytest.mark.parametrize("name", [*CONFIGS, "t5"])
@pytest.mark.filterwarnings("error")
def test_no_warning_where_attend_is_called(name):
    if name == "t5":
        config = transformers.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
        transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="attend")
    else:
        pair(name)[0].set_attn_implementation("attend")


class Custom(transformers.PreTrainedModel):
    """As a user writes one: nothing of it is Transformers' own."""

    config_class = transformers.LlamaConfig

    def __init__(self, config, attention):
        super().__init__(config)
        self.layer = attention()
        self.post_init()


class OwnAttention(torch.nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


def by_the_table(config):
    return transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[config._attn_implementation]


class TableAttention(torch.nn.Module):
    def forward(self, x, config):
        return by_the_table(config)(self, x, x, x, None)


def test_models_of_users_are_looked_at_the_same_way(recwarn):
    config = lambda: transformers.LlamaConfig(**GQA, attn_implementation="attend")  # noqa: E731
    Custom(config(), torch.nn.Identity)  # no attention at all
    Custom(config(), TableAttention)
    assert not recwarn
    with pytest.warns(UserWarning, match="Custom computes its attention itself"):
        Custom(config(), OwnAttention)


CHOOSING = {
    "falcon": lambda: transformers.FalconConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    "gptj": lambda: transformers.GPTJConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "gpt_neo": lambda: transformers.GPTNeoConfig(vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4,
                                                 attention_types=[[["global", "local"], 1]]),
}


@pytest.mark.parametrize("name", CHOOSING)
def test_model_that_chooses_from_its_own_classes(name):
    with pytest.raises(ValueError, match=f'attn_implementation is "attend", expected one of "eager".*: the model {name} has'):
        transformers.AutoModelForCausalLM.from_config(CHOOSING[name](), attn_implementation="attend")
    model = transformers.AutoModelForCausalLM.from_config(CHOOSING[name](), attn_implementation="eager").eval()
    with torch.no_grad():
        assert model(tokens()).logits.isfinite().all()


@pytest.mark.parametrize("mask", ["rule", "boolean", "additive", "none"])
def test_position_bias_beside_a_mask(mask):
    module = torch.nn.Module().eval()
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    bias, visible = torch.randn(1, 3, 5, 5), torch.ones(5, 5, dtype=torch.bool).tril()
    given = {"rule": attend.hf.attention_mask(2, 5, 5), "boolean": visible.expand(2, 1, 5, 5), "none": None,
             "additive": torch.where(visible, torch.randn(5, 5), -torch.inf)[None, None]}[mask]
    scores = q @ k.mT / 2 + bias + (given if mask == "additive" else torch.where(visible, 0.0, -torch.inf))
    out, weights = attend.hf.attention_forward(module, q, k, v, given, position_bias=bias, output_attentions=True)
    torch.testing.assert_close(weights, scores.softmax(-1))
    torch.testing.assert_close(out, (scores.softmax(-1) @ v).transpose(1, 2))


def test_no_mask_at_all():
    """Without a mask the module decides: causal from the first key on, except for a lone query."""
    module = torch.nn.Module().eval()
    q, k, v = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4)

    def seen(q, **options):
        weights = attend.hf.attention_forward(module, q, k, v, None, output_attentions=True, **options)[1]
        return (weights[0, 0] > 0).int().sum(-1).tolist()

    assert seen(q) == [1, 2, 3, 4, 5]
    assert seen(q, sliding_window=3) == [1, 2, 3, 3, 3]
    assert seen(q, is_causal=False) == [8] * 5
    assert seen(q[:, :, :1]) == [8]
    module.is_causal = False
    assert seen(q) == [8] * 5


def test_errors():
    module = torch.nn.Module().eval()
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match="paged cache"):
        attend.hf.attention_forward(module, q, q, q, None, cache=object())
    with pytest.raises(ValueError, match="k dim is 3, expected 4"):
        attend.hf.attention_forward(module, q, q[..., :3], q, None)
    with pytest.raises(ValueError, match="mask"):
        attend.hf.attention_forward(module, q, q, q, torch.ones(1, 1, 5, 6, dtype=torch.bool))
    with pytest.raises(TypeError, match="is_causal is 'no', expected True or False"):
        attend.hf.attention_forward(module, q, q, q, None, is_causal="no")
    with pytest.raises(ValueError, match="CPU"):
        attend.hf.attention_forward(module, *(x.to("meta") for x in (q, q, q)), None)
