"""Looking at a model's attention: attend.look beside Transformers eager with output_attentions, and BertViz, by length.

What a person has at the end is the same: every weight of one head of their choice, and each head's entropy; with BertViz, whose
input are eager's weights, its page (head_view) instead of the entropy. Each length
and engine runs in a process of its own, interleaved; time is CPU time and clock of the run, memory the most the process held
beyond what it held with the model loaded. An engine ends at the first length it cannot do within the memory limit.

usage: look.py [MODEL] [--lengths 512,2048,8192,32768] [--memory-limit BYTES] [--rounds N]
MODEL is a Hugging Face folder of the Llama family, which both read; without one a random model of SmolLM2-135M's shape is
made.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tokens_of(length, vocabulary):
    import numpy as np

    return np.random.default_rng(0).integers(3, vocabulary, length).tolist()


def run_attend(model, length):
    import attend
    from attend import llm

    opened = llm.Model(model, context=length)
    tokens = tokens_of(length, opened.info.vocabulary)
    before, start, cpu = peak(), time.perf_counter(), time.process_time()
    seen = attend.look(opened, tokens, memory_limit=2**62)
    entropy = seen.statistic("entropy")
    weights = seen.weights(5, 3) if length <= 8192 else seen.map(5, 3)
    return before, start, cpu, (entropy.mean(), weights.shape)


def eager(model, length):
    import torch
    import transformers

    opened = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    tokens = torch.tensor([tokens_of(length, opened.config.vocab_size)])
    measured = peak(), time.perf_counter(), time.process_time()
    with torch.no_grad():
        return *measured, opened(tokens, output_attentions=True, use_cache=False, logits_to_keep=1).attentions


def run_eager(model, length):
    import torch

    *measured, attentions = eager(model, length)
    entropy = [float(torch.special.entr(a).sum(-1).mean()) for a in attentions]
    return *measured, (sum(entropy) / len(entropy), tuple(attentions[5][0, 3].shape))


def run_bertviz(model, length):
    import bertviz

    *measured, attentions = eager(model, length)
    page = bertviz.head_view(attentions, [str(n) for n in range(length)], html_action="return").data
    return *measured, (float("nan"), len(page))


ENGINES = {"attend": run_attend, "eager": run_eager, "bertviz": run_bertviz}


def measure(engine, model, length):
    before, start, cpu, seen = ENGINES[engine](model, length)
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "bytes": peak() - before,
                      "entropy": float(seen[0])}))


def make_model(folder):
    """Random weights in the shape of SmolLM2-135M, with a context of 65,536."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=65536, rope_theta=1e5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = {letter: n for n, letter in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(pathlib.Path(folder, "tokenizer.json")))


def limited(limit):
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--lengths", default="512,2048,8192,32768")
    parser.add_argument("--memory-limit", type=int, default=16 << 30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure[0], given.model, int(given.measure[1]))
    with tempfile.TemporaryDirectory() as folder:
        if given.model is None:
            make_model(folder)
        model, ended = given.model or folder, {}
        print(f"{'tokens':>8}  {'engine':<8}{'CPU s':>9}{'clock s':>9}{'memory':>12}  mean entropy")
        for length in map(int, given.lengths.split(",")):
            found = {}
            for _ in range(given.rounds):
                for engine in ENGINES:
                    if engine in ended:
                        continue
                    result = subprocess.run([sys.executable, __file__, model, "--measure", engine, str(length)], text=True,
                                            capture_output=True, preexec_fn=limited(given.memory_limit))
                    if result.returncode != 0:
                        ended[engine] = (length, (result.stderr.strip().splitlines() or ["killed"])[-1])
                        continue
                    found.setdefault(engine, []).append(json.loads(result.stdout.splitlines()[-1]))
            for engine in ENGINES:
                if engine in ended and ended[engine][0] <= length:
                    print(f"{length:>8}  {engine:<8}  ends at {ended[engine][0]} tokens: {ended[engine][1][:80]}")
                elif engine in found:
                    best = min(found[engine], key=lambda r: r["cpu"])
                    print(f"{length:>8}  {engine:<8}{best['cpu']:9.2f}{best['seconds']:9.2f}"
                          f"{best['bytes'] / 2**20:9.0f} MiB  {best['entropy']:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
