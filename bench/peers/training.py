"""A training step of MiniMind2-small on attend and on PyTorch, interleaved in one run: tokens per second.

usage: training.py [--rounds N] [--threads N] [--only TEXT] [--cpu] [--json FILE]

The model, the batch (8 rows of 512 tokens), clipping and AdamW are the same. PyTorch runs eager and compiled, in f32 and
with bf16 autocast, with SDPA and its fused AdamW.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ATTEND_BUILD", ROOT / "build"))
VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, WIDTH = 6400, 512, 8, 8, 2, 64, 1408
ROWS, LENGTH = 8, 512


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return F.rms_norm(x, (HIDDEN,), self.weight, 1e-5)


def rotated(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.o = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.wide = nn.Linear(HIDDEN, 2 * WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=-1)
        q, k, v = (y.view(ROWS, LENGTH, -1, DIM).transpose(1, 2) for y in (q, k, v))
        q, k = rotated(q, cos, sin).type_as(v), rotated(k, cos, sin).type_as(v)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(ROWS, LENGTH, -1))
        gate, up = self.wide(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        angles = torch.outer(torch.arange(LENGTH), 1e6 ** (-torch.arange(0, DIM, 2) / DIM)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))


def batch():
    state, token, tokens, targets = 1, 1, [], []
    for _ in range(ROWS * LENGTH):
        tokens.append(token)
        state = (state * 1664525 + 1013904223) % 2**32
        token = (state >> 8) % VOCABULARY
        targets.append(token)
    return torch.tensor(tokens).view(ROWS, LENGTH), torch.tensor(targets).view(ROWS, LENGTH)


class Torch:
    def __init__(self, half, compiled):
        torch.manual_seed(1)
        self.name = f"PyTorch {'compiled' if compiled else 'eager'}, {'bf16 autocast' if half else 'f32'}"
        self.half, self.model = half, Model()
        self.call = torch.compile(self.model) if compiled else self.model
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.batch = batch()

    def step(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = self.call(*self.batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.item()

    def first_loss(self):
        return self.step()

    def seconds(self):
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start

    def cpu(self):
        return time.process_time()


class Attend:
    def __init__(self, dtype, process):
        self.name, self.dtype, self.process = f"attend, {dtype}", dtype, process

    def ask(self, what):
        print(self.dtype, what, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("attend_bench ended; its words are above")
        return float(line)

    def first_loss(self):
        return self.ask("loss")

    def seconds(self):
        return self.ask(1)

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(candidate, cpu):
    """Seconds of a step, of the clock or of the CPU."""
    before = candidate.cpu()
    seconds = candidate.seconds()
    return candidate.cpu() - before if cpu else seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="candidates whose name holds this, beside attend")
    parser.add_argument("--cpu", action="store_true", help="CPU time: on a machine with others, and with one thread")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    command = [BUILD / "bin/attend_bench", "--serve-train", "--threads", str(options.threads)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    candidates = [Attend("f32", process), Attend("bf16", process)]
    for half in (False, True):
        for compiled in (False, True):
            candidate = Torch(half, compiled)
            if options.only in candidate.name:
                candidates.append(candidate)
    for candidate in candidates:  # the first step compiles and warms up; a random model's loss is near ln 6400 = 8.76
        print(f"{candidate.name}: first loss {candidate.first_loss():.4f}", flush=True)
        candidate.seconds()
    times = {candidate.name: [] for candidate in candidates}
    for _ in range(options.rounds):
        for candidate in candidates:
            times[candidate.name].append(timed(candidate, options.cpu))
    process.stdin.close()
    process.wait()
    rates = {name: ROWS * LENGTH / statistics.median(each) for name, each in times.items()}
    peer_f32 = max((rate for name, rate in rates.items() if "PyTorch" in name and "f32" in name), default=None)
    peer = max((rate for name, rate in rates.items() if "PyTorch" in name), default=None)
    for name, rate in rates.items():
        spread = f"{ROWS * LENGTH / max(times[name]):.0f}-{ROWS * LENGTH / min(times[name]):.0f}"
        ratio = ""
        if name == "attend, f32" and peer_f32:
            ratio = f"  {rate / peer_f32:.2f} x the faster f32 of PyTorch"
        if name == "attend, bf16" and peer:
            ratio = f"  {rate / peer:.2f} x the fastest of PyTorch"
        print(f"{name:<34} {rate:7.0f} tokens/s ({spread}){ratio}")
    if options.json:
        options.json.write_text(json.dumps({"tokens per second": rates, "seconds": times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
