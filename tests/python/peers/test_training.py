"""Training against PyTorch and Transformers: the same losses from the same data and weights, and what was trained loads
there and says the same.

ATTEND_BUILD names the build folder (default: build)."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import packing_reference
import pytest
import torch

transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3Config  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("ATTEND_BUILD", ROOT / "build")) / "bin" / "attend"
STEPS, LENGTH, BATCH, RATE, LAST, WARM_UP, CLIP, DECAY = 10, 64, 4, 2e-3, 0.1, 0.2, 1.0, 0.1
VOCABULARY = 400

TINY = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=512, bos_token_id=1, eos_token_id=2)
MEDIUM = dict(TINY, hidden_size=128, intermediate_size=256, num_hidden_layers=4, head_dim=32)
CONFIGS = {
    "llama_tiny": LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama_medium": LlamaConfig(**MEDIUM, tie_word_embeddings=False),
    "qwen3_tiny": Qwen3Config(**TINY, tie_word_embeddings=True),
    "qwen3_medium": Qwen3Config(**MEDIUM, tie_word_embeddings=True),
}


@pytest.fixture(scope="module", autouse=True)
def built():
    assert PROGRAM.exists(), f"{PROGRAM} is not there: ninja -C build bin/attend"


def attend(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prepared stories and chats, by one tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    for name, form in (("text", "text"), ("chat", "chat")):
        attend("corpus", "stories", "-n", "60", "--format", form, "-o", folder / f"{name}.jsonl")
    attend("prepare", folder / "text.jsonl", "-o", folder / "text", "--vocabulary", VOCABULARY)
    attend("prepare", folder / "chat.jsonl", "-o", folder / "chat", "--tokenizer", folder / "text")
    return folder


def start_model(name, data, folder):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager").float()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.05) if p.ndim > 1 else p.normal_(mean=1.0, std=0.1)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(data / "text" / file, folder)
    return model


def rate_of(step):
    warm_up = round(WARM_UP * STEPS)
    if step <= warm_up:
        return RATE * step / warm_up
    done = (step - warm_up) / (STEPS - warm_up)
    return RATE * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * done)))


def their_losses(model, folder, autocast=False, length=LENGTH):
    """Ten steps of AdamW in PyTorch: matrices decay, norms do not; documents do not attend across."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    norms = [p for p in model.parameters() if p.ndim == 1]
    optimiser = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)
    source, losses = packing_reference.rows(folder, length, 1), []
    for step in range(1, STEPS + 1):
        tokens, targets, segments, places = (torch.tensor(np.stack(part)) for part in
                                             zip(*(next(source) for _ in range(BATCH))))
        seen = (segments[:, :, None] == segments[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(tokens, attention_mask=mask, position_ids=places).logits
        loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), targets.reshape(-1))
        optimiser.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters())).item()
        for p in model.parameters():
            p.grad *= min(1.0, CLIP / norm)
        for group in optimiser.param_groups:
            group["lr"] = rate_of(step)
        optimiser.step()
        losses.append(loss.item())
    return losses


def our_run(start, folder, run, stage="pretrain", *options, length=LENGTH):
    attend("train", stage, folder, "--start", start, "-o", run, "--steps", STEPS, "--length", length, "--batch", BATCH,
           "--rate", RATE, "--last-rate", LAST, "--warm-up", WARM_UP, "--clip", CLIP, "--decay", DECAY, "--held-out", 0,
           "--sample-tokens", 0, *options)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]


@pytest.mark.parametrize("name", CONFIGS)
def test_ten_steps_have_the_same_losses(name, data, tmp_path):
    model = start_model(name, data, tmp_path / "start")
    ours = our_run(tmp_path / "start", data / "text", tmp_path / "run", "pretrain", "--compute", "f32")
    theirs = their_losses(model, data / "text")
    assert theirs[0] - theirs[-1] > 0.1, "nothing is learnt, so nothing is shown"
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    # And the weights that came out.
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model", dtype=torch.float32).state_dict()
    for key, value in model.state_dict().items():
        assert (trained[key] - value).abs().max() < 2e-4, key


@pytest.mark.parametrize("name", CONFIGS)
def test_ten_steps_in_bf16(name, data, tmp_path):
    model = start_model(name, data, tmp_path / "start")
    ours = our_run(tmp_path / "start", data / "text", tmp_path / "run", "pretrain", "--compute", "bf16")
    np.testing.assert_allclose(ours, their_losses(model, data / "text", autocast=True), rtol=0, atol=5e-2)


def test_fine_tuning_counts_the_answers_alone(data, tmp_path):
    model = start_model("qwen3_tiny", data, tmp_path / "start")
    long = 512  # an answer may stand behind a whole story
    ours = our_run(tmp_path / "start", data / "chat", tmp_path / "run", "sft", "--compute", "f32", length=long)
    np.testing.assert_allclose(ours, their_losses(model, data / "chat", length=long), rtol=0, atol=1e-5)
    # What is learnt of a chat is what stands behind <|im_start|>assistant\n, to the end of <|im_end|>\n.
    tokenizer = AutoTokenizer.from_pretrained(data / "text")
    for line, stored in zip((data / "chat.jsonl").read_text().splitlines(), packing_reference.documents(data / "chat")):
        learnt = tokenizer.decode([t for t in stored if t >= 0])
        assert learnt == "".join(m["content"] + "<|im_end|>\n" for m in json.loads(line)["conversations"]
                                 if m["role"] == "assistant")
        ids = tokenizer.apply_chat_template(json.loads(line)["conversations"], tokenize=True, return_dict=False)
        assert list(ids) == [t if t >= 0 else ~t for t in stored]


def test_texts_are_cut_as_transformers_cuts_them(data):
    tokenizer = AutoTokenizer.from_pretrained(data / "text")
    assert tokenizer.eos_token == "<|im_end|>" and len(tokenizer) == VOCABULARY
    for line, stored in zip((data / "text.jsonl").read_text().splitlines(), packing_reference.documents(data / "text")):
        text = json.loads(line)["text"]
        assert tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] == list(stored)
        assert tokenizer.decode(stored[:-1]) == text


def test_the_learnt_merges_are_those_of_tokenizers(data):
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, min_frequency=2, show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    texts = [json.loads(line)["text"] for line in (data / "text.jsonl").read_text().splitlines()]
    theirs.train_from_iterator(texts, trainer)
    expected = json.loads(theirs.to_str())["model"]
    ours = json.loads((data / "text" / "tokenizer.json").read_text())["model"]

    def pairs(merges):
        return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in merges]

    assert pairs(ours["merges"]) == pairs(expected["merges"])
    assert ours["vocab"] == expected["vocab"]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A model from nothing that has learnt enough to be sure of its next token."""
    run = tmp_path_factory.mktemp("trained") / "run"
    attend("train", "pretrain", data / "text", "-o", run, "--hidden", 64, "--layers", 2, "--heads", 4, "--kv-heads", 2,
           "--length", 64, "--batch", 8, "--steps", 150, "--rate", 5e-3, "--sample-tokens", 0, "--validate-every", 75)
    return run


PROMPTS = ["Once upon a time", "Lily", "One day,", "从前，"]


def test_the_exported_folder_says_the_same_in_transformers(trained, tmp_path):
    attend("export", trained, tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(model).__name__ == "Qwen3ForCausalLM"
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            out = model.generate(**ids, max_new_tokens=48, do_sample=False)[0][ids["input_ids"].shape[1]:]
        out = [t for t in out.tolist() if t != tokenizer.eos_token_id]
        ours = attend("generate", tmp_path / "hf", prompt, "-n", 48, "-t", 0, "-q").rstrip("\n")
        assert ours == tokenizer.decode(out).rstrip("\n"), prompt


def test_the_pth_is_minimind3s_state_dict(trained, tmp_path):
    attend("export", trained, tmp_path / "m.pth")
    state = torch.load(tmp_path / "m.pth", weights_only=True)
    config = json.loads((trained / "model" / "config.json").read_text())
    hidden, heads, kv, dim, width = (config[k] for k in (
        "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"))
    shapes = {"model.embed_tokens.weight": (VOCABULARY, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (VOCABULARY, hidden)}
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        shapes |= {layer + name + ".weight": shape for name, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,), "self_attn.q_proj": (heads * dim, hidden),
            "self_attn.k_proj": (kv * dim, hidden), "self_attn.v_proj": (kv * dim, hidden),
            "self_attn.o_proj": (hidden, heads * dim), "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden), "mlp.down_proj": (hidden, width)}.items()}
    assert {name: tuple(t.shape) for name, t in state.items()} == shapes
    model = AutoModelForCausalLM.from_pretrained(trained / "model", dtype=torch.float32)
    for name, t in model.state_dict().items():
        assert torch.equal(state[name].float(), t), name
    model.load_state_dict(state, strict=True)
    attend("export", trained, tmp_path / "half.pth", "--type", "f16")
    half = torch.load(tmp_path / "half.pth", weights_only=True)
    assert half["model.layers.0.mlp.up_proj.weight"].dtype == torch.float16


def test_adapters_load_in_peft(data, tmp_path):
    peft = pytest.importorskip("peft")
    start_model("qwen3_tiny", data, tmp_path / "start")
    our_run(tmp_path / "start", data / "chat", tmp_path / "run", "lora", "--lora-rank", 4)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "start", dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model", dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "adapter")
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, rtol=0, atol=1e-4)
