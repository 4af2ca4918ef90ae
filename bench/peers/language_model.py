"""A language model on attend and on llama.cpp, interleaved in one run: rates, greedy answers, perplexity.

usage: language_model.py MODEL.gguf [--rounds N] [--threads N] [--text FILE] [--json FILE]
"""

import argparse
import ctypes
import importlib.metadata
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ATTEND_BUILD", ROOT / "build"))
PROMPTS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue in two sentences.",
    "List three uses of copper.",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What does a compiler do?",
    "Name the planets of the solar system.",
]


class Attend:
    def __init__(self, model, threads, cache):
        command = [BUILD / "bin/attend_bench", "--model", model, "--threads", str(threads), "--cache", cache]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("attend_bench ended; its words are above")
        return json.loads(line)

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.answer()

    def prefill(self, count):
        return self.ask("prefill", count)["seconds"]

    def decode(self, before, count):
        return self.ask("decode", before, count)["seconds"]

    def greedy(self, prompt, count):
        return self.ask("greedy", count, *prompt)["tokens"]

    def loss(self, tokens):
        return self.ask("loss", *tokens)["loss"]

    def logits(self, tokens):
        return self.ask("logits", *tokens)["logits"]


class LlamaCpp:
    def __init__(self, model, threads, flash, context):
        import llama_cpp

        self.flash = flash
        self.llama = llama_cpp.Llama(
            str(model), n_ctx=context, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
            flash_attn=flash, logits_all=False, verbose=False,
        )
        self.vocabulary = self.llama.n_vocab()

    def name(self):
        return "llama.cpp, flash attention " + ("on" if self.flash else "off")

    def fresh(self):
        self.llama.reset()
        self.llama._ctx.kv_cache_clear()

    def tokens(self, count):
        return [(i * 7919 + 13) % self.vocabulary for i in range(count)]

    def prefill(self, count):
        self.fresh()
        start = time.perf_counter()
        self.llama.eval(self.tokens(count))
        return time.perf_counter() - start

    def decode(self, before, count):
        self.fresh()
        tokens = self.tokens(before + count)
        self.llama.eval(tokens[:before])
        start = time.perf_counter()
        for token in tokens[before:]:
            self.llama.eval([token])
        return time.perf_counter() - start

    def logits(self, tokens):
        self.fresh()
        self.llama.eval(tokens)
        return self.last_logits()

    def last_logits(self):
        import numpy

        pointer = self.llama._ctx.get_logits_ith(-1)
        array = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * self.vocabulary)).contents
        return numpy.frombuffer(array, dtype=numpy.float32).copy()

    def greedy(self, prompt, count):
        self.fresh()
        self.llama.eval(prompt)
        made = []
        for _ in range(count):
            made.append(int(self.last_logits().argmax()))
            self.llama.eval(made[-1:])
        return made

    def encode_chat(self, text):
        chat = (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        )
        return self.llama.tokenize(chat.encode(), add_bos=False, special=True)


class LlamaLoss:
    """Sum of -log p over all tokens of a window but the first, from llama.cpp's logits of every position."""

    def __init__(self, model, threads, window):
        import llama_cpp

        self.llama = llama_cpp.Llama(
            str(model), n_ctx=window, n_batch=window, n_threads=threads, n_threads_batch=threads,
            flash_attn=False, logits_all=True, verbose=False,
        )

    def __call__(self, tokens):
        import numpy

        self.llama.reset()
        self.llama._ctx.kv_cache_clear()
        self.llama.eval(tokens)
        scores = numpy.asarray(self.llama.scores[: len(tokens) - 1], dtype=numpy.float32)
        most = scores.max(axis=1)
        total = most + numpy.log(numpy.exp(scores - most[:, None]).sum(axis=1, dtype=numpy.float64))
        return float((total - scores[numpy.arange(len(tokens) - 1), tokens[1:]]).sum())


def stored_format(model):
    """The tensor types of a file and their sizes, as `attend info` prints them."""
    lines = subprocess.run([BUILD / "bin/attend", "info", model], check=True, capture_output=True, text=True).stdout.splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("stored"))


def compare_rates(attend, peers, rounds):
    rows = [("prefill of 1,024 tokens", 1024, lambda p: p.prefill(1024)),
            ("decode after 128", 32, lambda p: p.decode(128, 32)),
            ("decode after 4,096", 32, lambda p: p.decode(4096, 32))]
    results = []
    for label, tokens, run in rows:
        times = {p: [] for p in [attend, *peers]}
        for number in range(rounds + 1):
            for p in times:
                seconds = run(p)
                if number > 0:  # the first warms up
                    times[p].append(seconds)
        best = min(peers, key=lambda p: statistics.median(times[p]))
        rates = {p: tokens / statistics.median(times[p]) for p in (attend, best)}
        spread = [tokens / t for t in (max(times[attend]), min(times[attend]))]
        print(f"{label:<26}{rates[attend]:9.1f} tokens/s ({spread[0]:.1f}-{spread[1]:.1f})   {rates[best]:9.1f} ({best.name()})",
              flush=True)
        results.append({"row": label, "attend": rates[attend], "llama.cpp": rates[best], "flags": best.name()})
    return results


def compare_answers(attend, exact, peer, count):
    """Where two answers part: a tie when the two tokens are closer than three standard deviations of what quantisation
    does to the difference of two logits, measured on llama.cpp's own against the same weights in f32."""
    import numpy

    same = 0
    for text in PROMPTS:
        prompt = peer.encode_chat(text)
        a, b = attend.greedy(prompt, count), peer.greedy(prompt, count)
        at = next((i for i in range(count) if a[i] != b[i]), None)
        if at is None:
            same += 1
            print(f"  same {count} tokens   {text}")
            continue
        before = prompt + a[:at]
        ours, theirs, true = (numpy.asarray(p.logits(before), dtype=numpy.float64) for p in (attend, peer, exact))
        gap = max(ours[a[at]] - ours[b[at]], theirs[b[at]] - theirs[a[at]])
        off = [float((x - true).std()) for x in (ours, theirs)]
        verdict = "a tie" if gap <= 3 * math.sqrt(2) * off[1] else "NOT a tie"
        print(f"  token {at}: the two are apart by {gap:.3f}; a logit is off from f32 by {off[0]:.3f} (attend), "
              f"{off[1]:.3f} (llama.cpp): {verdict}   {text}")
        same += verdict == "a tie"
    print(f"{same} of {len(PROMPTS)} answers are the same or part at a tie", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64, help="of each greedy answer")
    parser.add_argument("--text", type=pathlib.Path, default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--skip-rates", action="store_true")
    arguments = parser.parse_args()
    attend = Attend(arguments.model, arguments.threads, "f16")
    plain = LlamaCpp(arguments.model, arguments.threads, False, 4608)
    result = {}
    if not arguments.skip_rates:
        flash = LlamaCpp(arguments.model, arguments.threads, True, 4608)
        print(f"{arguments.model.name} ({stored_format(arguments.model)}), {arguments.threads} threads; baseline: llama-cpp-python "
              f"{importlib.metadata.version('llama-cpp-python')}")
        print(f"tokens/s, median of {arguments.rounds} rounds: attend, then llama.cpp's better setting")
        print("No ratio: the baseline is not llama-bench at its best flags.")
        result["rates"] = compare_rates(attend, [plain, flash], arguments.rounds)
    print("greedy answers of", arguments.tokens, "tokens")
    with tempfile.TemporaryDirectory() as folder:
        exact_folder = pathlib.Path(folder) / "f32"
        subprocess.run([BUILD / "bin/attend", "convert", arguments.model, exact_folder, "--type", "f32"], check=True,
                       stdout=subprocess.DEVNULL)
        exact = Attend(exact_folder, arguments.threads, "f32")
    result["answers"] = compare_answers(attend, exact, plain, arguments.tokens)
    text = arguments.text.read_bytes()
    tokens = plain.llama.tokenize(text, add_bos=False, special=False)
    window, ours, theirs, count = 512, 0.0, 0.0, 0
    llama_loss = LlamaLoss(arguments.model, arguments.threads, window)
    for first in range(0, len(tokens) - 1, window):
        part = tokens[first : first + window]
        if len(part) < 2:
            break
        ours += attend.loss(part)
        theirs += llama_loss(part)
        count += len(part) - 1
    a, b = math.exp(ours / count), math.exp(theirs / count)
    print(f"perplexity of {arguments.text} ({count} tokens, windows of {window}): attend {a:.4f}, llama.cpp {b:.4f}, "
          f"apart by {100 * (a / b - 1):+.3f} %")
    result["perplexity"] = {"attend": a, "llama.cpp": b}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
