"""Compares published models on attend with Transformers and llama.cpp, on their real weights, and prints the table of
docs/guide/models.md.

usage: real_weights.py [NAME...] [--json FILE]      NAME: pulled models; default: all of the catalogue that are pulled

Generators: 64 greedy tokens after each of three prompts, in f32 on the weights as the package `gguf` dequantises them, equal
to Transformers'; perplexity of a fixed text on the weights as they are, compared with llama.cpp's, and the first greedy
token that differs from llama.cpp's with the gap of the two logits there. Encoders: 50 cosines against Transformers'.

ATTEND_BUILD names the build folder (default: build), ATTEND_LLAMA_PYTHON a Python that has llama-cpp-python (default: this
one), ATTEND_HOME the store of models."""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("ATTEND_BUILD", ROOT / "build"))
LLAMA_PYTHON = os.environ.get("ATTEND_LLAMA_PYTHON", sys.executable)
GENERATORS = ["smollm2", "qwen2.5-coder"]
ENCODERS = ["minilm", "m3e-small"]
GREEDY, WINDOW = 64, 512
MAX_PERPLEXITY_GAP, MAX_COSINE_GAP = 0.005, 1e-4

# The text that ./dev bench --model reads too; every Debian has it.
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3").read_text()[:8000]
TEXT_SHA256 = "53fb3646f6fc12b31092681410bfe48757b28e4956a209fa7cb29b2ca6798336"
PROMPTS = {
    "smollm2": ["The capital of France is", "Once upon a time, there was a", "def fibonacci(n):\n"],
    "qwen2.5-coder": ["def quicksort(items):\n", "The three laws of motion say that", "从前，有一个聪明的孩子，他"],
}
SENTENCES = {
    "minilm": ["A cat sits on the mat.", "A kitten is sleeping on the carpet.", "Please fill in the tax form.",
               "The train leaves at nine in the morning.", "Our flight was delayed by an hour.", "How do I reset my password?",
               "I cannot log in to my account.", "The soup needs more salt.", "She plays the violin in an orchestra.",
               "Rain is expected in the north tomorrow.", "The stock market fell on Monday."],
    "m3e-small": ["一只猫坐在垫子上。", "小猫在地毯上睡觉。", "请填写税务表格。", "火车早上九点出发。", "我们的航班晚点了一个小时。",
                  "如何重置我的密码？", "我无法登录我的账户。", "汤里需要再加点盐。", "她在乐团里拉小提琴。", "预计明天北部有雨。",
                  "周一股市下跌。"],
}
PAIRS = list(itertools.combinations(range(11), 2))[:50]

LLAMA = """
import ctypes, json, sys
import numpy as np
import llama_cpp
job = json.load(sys.stdin)
model = llama_cpp.Llama(job["file"], n_ctx=job["window"], n_batch=job["window"], n_ubatch=job["window"], logits_all=True,
                        verbose=False, type_k=0, type_v=0)
def rows(tokens):
    model.reset()
    model._ctx.kv_cache_clear()
    model.eval(tokens)
    return np.asarray(model.scores[: len(tokens)], dtype=np.float64)
tokens = model.tokenize(job["text"].encode(), add_bos=False, special=False)
loss = count = 0
for at in range(0, len(tokens), job["window"]):
    part = tokens[at : at + job["window"]]
    if len(part) < 2:
        continue
    scores = rows(part)[:-1]
    top = scores.max(1)
    loss += float((top + np.log(np.exp(scores - top[:, None]).sum(1)) - scores[np.arange(len(part) - 1), part[1:]]).sum())
    count += len(part) - 1
answers = []
for prompt in job["prompts"]:
    rows(prompt)
    made = []
    for _ in range(job["greedy"]):
        made.append(int(np.asarray(model.scores[model.n_tokens - 1]).argmax()))
        model.eval(made[-1:])
    answers.append(made)
print(json.dumps({"perplexity": float(np.exp(loss / count)), "tokens": tokens, "answers": answers,
                  "version": llama_cpp.__version__}))
"""


def attend(*arguments, **options):
    done = subprocess.run([BUILD / "bin/attend", *map(str, arguments)], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"attend {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def model_rows(model, mode, sequences, *options, dtype=np.float32):
    text = "".join(" ".join(map(str, s)) + "\n" for s in sequences)
    done = subprocess.run([BUILD / "bin/attend_model_rows", model, mode, *map(str, options)], input=text.encode(),
                          capture_output=True, check=True)
    return np.frombuffer(done.stdout, dtype)


def pulled(name):
    """The files of a pulled model with their SHA-256, from the store's list."""
    found = re.search(r"(?m)^file *(.*)$", attend("info", name))
    path = pathlib.Path(found[1])
    folder = path if path.is_dir() else path.parent
    manifest = json.loads((folder / "attend.json").read_text())
    return path, {file["path"]: file["sha256"] for file in manifest["files"]}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def perplexity(model, text_file):
    return float(re.search(r"perplexity +([\d.]+)", attend("eval", model, text_file, "--window", WINDOW, "-q"))[1])


def of_llama(path, prompts):
    job = {"file": str(path), "window": WINDOW, "text": TEXT, "prompts": prompts, "greedy": GREEDY}
    done = subprocess.run([LLAMA_PYTHON, "-c", LLAMA], input=json.dumps(job), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"llama.cpp: {done.stderr}")
    return json.loads(done.stdout)


def transformers_answers(path, prompts):
    """Greedy tokens of Transformers on the weights that the package `gguf` dequantises to f32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts:
        made = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                              max_new_tokens=GREEDY, do_sample=False, eos_token_id=None, pad_token_id=0,
                              repetition_penalty=1.0)
        answers.append(made[0, len(prompt):].tolist())
    return answers


def first_difference(path, prompt, ours, theirs):
    """Where two answers part, and how far apart attend's logits of the two tokens are there. None: nowhere."""
    at = next((n for n in range(GREEDY) if ours[n] != theirs[n]), None)
    if at is None:
        return None
    context = prompt + ours[:at]
    rows = model_rows(path, "logits", [context]).reshape(len(context), -1)
    return {"token": at, "gap": float(rows[-1][ours[at]] - rows[-1][theirs[at]])}


def check_generator(name):
    from transformers import AutoTokenizer

    path, sums = pulled(name)
    with tempfile.TemporaryDirectory() as folder:
        text_file, exact = pathlib.Path(folder) / "text", pathlib.Path(folder) / "f32"
        text_file.write_text(TEXT)
        attend("convert", path, exact, "--type", "f32")
        tokenizer = AutoTokenizer.from_pretrained(exact)
        prompts = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in PROMPTS[name]]
        ours = model_rows(exact, "greedy", prompts, GREEDY, dtype=np.int32).reshape(len(prompts), GREEDY).tolist()
        result = {"perplexity": perplexity(path, text_file), "perplexity_f32": perplexity(exact, text_file)}
    theirs = transformers_answers(path, prompts)
    llama = of_llama(path, prompts)
    quantised = model_rows(path, "greedy", prompts, GREEDY, dtype=np.int32).reshape(len(prompts), GREEDY).tolist()
    return {"file": path.name, "sha256": sha256(path), "sha256_stored": sums[path.name], **result,
            "greedy_equal": [a == b for a, b in zip(ours, theirs)], "llama_perplexity": llama["perplexity"],
            "llama_version": llama["version"], "text_tokens": len(llama["tokens"]),
            "differences": [first_difference(path, p, a, b) for p, a, b in zip(prompts, quantised, llama["answers"])]}


def check_encoder(name):
    import torch
    from transformers import AutoModel, AutoTokenizer

    path, sums = pulled(name)
    weights = next(file for file in sums if file.endswith((".safetensors", "pytorch_model.bin")))
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    theirs = []
    for sentence in SENTENCES[name]:
        with torch.no_grad():
            theirs.append(model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0].mean(0).numpy())
    theirs = np.array([row / np.linalg.norm(row) for row in theirs], np.float64)
    lines = attend("embed", name, "-q", *SENTENCES[name]).splitlines()
    ours = np.array([json.loads(line) for line in lines], np.float64)
    off = max(abs(float(ours[a] @ ours[b] - theirs[a] @ theirs[b])) for a, b in PAIRS)
    return {"file": weights, "sha256": sha256(path / weights), "sha256_stored": sums[weights], "cosines": len(PAIRS),
            "largest_difference": off}


def check(name):
    return check_generator(name) if name in GENERATORS else check_encoder(name)


def faults(result):
    """What is not as the table promises; empty if all is."""
    wrong = []
    if result["sha256"] != result["sha256_stored"]:
        wrong.append("the file is not the one that was pulled")
    if "cosines" in result:
        if result["largest_difference"] > MAX_COSINE_GAP:
            wrong.append(f"a cosine is off by {result['largest_difference']:.1e}")
        return wrong
    if not all(result["greedy_equal"]):
        wrong.append("greedy tokens in f32 differ from Transformers'")
    if abs(result["perplexity"] / result["llama_perplexity"] - 1) > MAX_PERPLEXITY_GAP:
        wrong.append(f"perplexity {result['perplexity']:.4f}, llama.cpp {result['llama_perplexity']:.4f}")
    return wrong


def row(name, result):
    """The line of the table in docs/guide/models.md."""
    head = f"| {name} | `{result['file']}` | `{result['sha256'][:16]}…` |"
    if "cosines" in result:
        return f"{head} {result['cosines']} cosines, largest difference {result['largest_difference']:.0e} | | |"
    parted = [d for d in result["differences"] if d is not None]
    where = "; ".join(f"token {d['token'] + 1}, gap {d['gap']:.3f}" for d in parted) or "none"
    equal = sum(result["greedy_equal"])
    return (f"{head} {equal} of {len(result['greedy_equal'])} × {GREEDY} greedy tokens equal | {result['perplexity']:.3f} / "
            f"{result['llama_perplexity']:.3f} ({100 * (result['perplexity'] / result['llama_perplexity'] - 1):+.2f} %) | {where} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    names = arguments.names or [name for name in GENERATORS + ENCODERS if name in attend("completion", "models").split()]
    results = {name: check(name) for name in names}
    for name, result in results.items():
        print(row(name, result))
        for fault in faults(result):
            print(f"  WRONG: {fault}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return any(faults(result) for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
