"""A training step on attend and on PyTorch, interleaved in one run: tokens per second, beside what the machine could do.

usage: training.py [--shape NAME] [--rounds N] [--threads N] [--only TEXT] [--cpu] [--memory] [--json FILE]

The model, the batch (8 rows of 512 tokens), clipping and AdamW are the same. PyTorch runs eager and compiled, in f32 and
with bf16 autocast, with SDPA and its fused AdamW. With --memory: each in a process of its own, and its peak.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ATTEND_BUILD", ROOT / "build"))
ROWS, LENGTH = 8, 512


@dataclasses.dataclass
class Shape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    width: int
    eps: float = 1e-5
    qk_norm: bool = False


SHAPES = {"minimind2-small": Shape(6400, 512, 8, 8, 2, 64, 1408),
          "storyteller": Shape(2048, 192, 6, 6, 3, 32, 640, 1e-6, True)}  # the model inside the program


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotated(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.shape, self.queries, self.keys = s, s.heads * s.dim, s.kv_heads * s.dim
        self.norm1, self.norm2 = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
        self.q_norm, self.k_norm = (Norm(s.dim, s.eps) if s.qk_norm else nn.Identity() for _ in range(2))
        self.qkv = nn.Linear(s.hidden, self.queries + 2 * self.keys, bias=False)
        self.o = nn.Linear(self.queries, s.hidden, bias=False)
        self.wide = nn.Linear(s.hidden, 2 * s.width, bias=False)
        self.down = nn.Linear(s.width, s.hidden, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).split([self.queries, self.keys, self.keys], dim=-1)
        q, k, v = (y.view(ROWS, LENGTH, -1, self.shape.dim).transpose(1, 2) for y in (q, k, v))
        q, k = rotated(self.q_norm(q), cos, sin).type_as(v), rotated(self.k_norm(k), cos, sin).type_as(v)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(ROWS, LENGTH, -1))
        gate, up = self.wide(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        angles = torch.outer(torch.arange(LENGTH), 1e6 ** (-torch.arange(0, shape.dim, 2) / shape.dim)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.view(-1))


def batch(vocabulary):
    state, token, tokens, targets = 1, 1, [], []
    for _ in range(ROWS * LENGTH):
        tokens.append(token)
        state = (state * 1664525 + 1013904223) % 2**32
        token = (state >> 8) % vocabulary
        targets.append(token)
    return torch.tensor(tokens).view(ROWS, LENGTH), torch.tensor(targets).view(ROWS, LENGTH)


class Torch:
    def __init__(self, shape, half, compiled):
        torch.manual_seed(1)
        self.name = f"PyTorch {'compiled' if compiled else 'eager'}, {'bf16 autocast' if half else 'f32'}"
        self.half, self.model = half, Model(shape)
        self.call = torch.compile(self.model) if compiled else self.model
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.batch = batch(shape.vocabulary)

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
    def __init__(self, shape, threads, dtype):
        self.name, self.dtype = f"attend, {dtype}", dtype
        command = [BUILD / "bin/attend_bench", "--serve-train", "--shape", shape, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

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

    def peak(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def timed(candidate, cpu):
    """Seconds of a step, of the clock or of the CPU."""
    before = candidate.cpu()
    seconds = candidate.seconds()
    return candidate.cpu() - before if cpu else seconds


def ceilings(threads):
    """Operations per second of the machine's multiply-adds, in f32 and in bf16."""
    command = [BUILD / "bin/attend_bench", "--ceilings", "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peer_names():
    return [(half, compiled) for half in (False, True) for compiled in (False, True)]


def print_memory(options):
    """The peak of five steps, of each in a process of its own."""
    for dtype in ("f32", "bf16"):
        candidate = Attend(options.shape, options.threads, dtype)
        for _ in range(5):
            candidate.seconds()
        print(f"{candidate.name:<34} {candidate.peak():7.0f} MiB", flush=True)
        candidate.end()
    for half, compiled in peer_names():
        command = [sys.executable, __file__, "--shape", options.shape, "--threads", str(options.threads), "--peak-of", f"{half:d}{compiled:d}"]
        subprocess.run(command, check=True)


def print_peak(options):
    """Of this process: before it has a model, and after five steps."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    candidate = Torch(SHAPES[options.shape], options.peak_of[0] == "1", options.peak_of[1] == "1")
    for _ in range(5):
        candidate.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{candidate.name:<34} {peak:7.0f} MiB, {before:.0f} of it before there was a model", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="minimind2-small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="candidates whose name holds this, beside attend")
    parser.add_argument("--cpu", action="store_true", help="CPU time: on a machine with others, and with one thread")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak_of:
        return print_peak(options)
    if options.memory:
        return print_memory(options)
    ours = [Attend(options.shape, options.threads, dtype) for dtype in ("f32", "bf16")]
    peers = [Torch(SHAPES[options.shape], *kind) for kind in peer_names()]
    candidates = ours + [peer for peer in peers if options.only in peer.name]
    for candidate in candidates:  # the first step compiles and warms up; a random model's loss is near ln(vocabulary)
        print(f"{candidate.name}: first loss {candidate.first_loss():.4f}", flush=True)
        candidate.seconds()
    times = {candidate.name: [] for candidate in candidates}
    measured = []
    for _ in range(options.rounds):
        measured.append(ceilings(options.threads))
        for candidate in candidates:
            times[candidate.name].append(timed(candidate, options.cpu))
    rates = {name: ROWS * LENGTH / statistics.median(each) for name, each in times.items()}
    operations = ours[0].ask("operations") / (ROWS * LENGTH)  # of a token
    for candidate in ours:
        candidate.end()
    print(f"{options.shape}, {options.threads} threads, {ROWS} rows of {LENGTH} tokens, {operations / 1e6:.0f} million operations a token")
    for name, rate in rates.items():
        spread = f"{ROWS * LENGTH / max(times[name]):.0f}-{ROWS * LENGTH / min(times[name]):.0f}"
        print(f"{name:<34} {rate:7.0f} tokens/s ({spread})")
    for dtype, ceiling, of, among in (("f32", "FMA", "the faster f32 of PyTorch", "f32"), ("bf16", "bf16", "the fastest of PyTorch", "")):
        peer = max((rate for name, rate in rates.items() if "PyTorch" in name and among in name), default=None)
        peak = statistics.median(m[ceiling] for m in measured)
        rate = rates[f"attend, {dtype}"]
        beside = f", {rate / peer:.2f} x {of}, of {peak / operations / peer:.2f} that there can be" if peer else ""
        print(f"attend, {dtype}: {100 * rate * operations / peak:.0f} % of the multiply-add ceiling{beside}")
    if options.json:
        options.json.write_text(json.dumps({"tokens per second": rates, "seconds": times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
