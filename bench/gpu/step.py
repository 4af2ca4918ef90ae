"""A training step of a GPT with attend's attention and with PyTorch's: eager, compiled, and compiled for CUDA graphs.

usage: step.py [--heads 16] [--modes eager,default,reduce-overhead] [--sizes 8x1024,2x8192,1x32768] [--rounds 10]

8 layers, hidden size 1,024, bf16, AdamW. The baseline is the faster of PyTorch's cuDNN and FlashAttention backends; all
variants are interleaved in one process. Each row: median milliseconds of a step, and the ratio of the baseline to attend.
"""

import argparse
import time
import types
from statistics import median

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attend.torch

HIDDEN, LAYERS, VOCABULARY = 1024, 8, 32768


class Block(torch.nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)
        self.qkv, self.out = torch.nn.Linear(HIDDEN, 3 * HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = torch.nn.Linear(HIDDEN, 4 * HIDDEN), torch.nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block(heads) for _ in range(LAYERS))
        self.norm, self.head = torch.nn.LayerNorm(HIDDEN), torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


VARIANTS = {"cuDNN": lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION),
            "FlashAttention": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION), "attend": attend.torch.patched}


def of_variant(variant):
    """GPT with a code object for each variant: the compiler would reuse one variant's graph for the others."""
    code = GPT.forward.__code__.replace(co_name=f"forward_{variant}")
    return type(f"GPT_{variant}", (GPT,), {"forward": types.FunctionType(code, globals())})


def make_step(variant, mode, heads, tokens):
    torch.manual_seed(0)
    model = of_variant(variant)(heads).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = model if mode == "eager" else torch.compile(model, mode=None if mode == "default" else mode, fullgraph=True)

    def step():
        with VARIANTS[variant]():
            loss = forward(tokens)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def measure(steps, rounds):
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            step(), step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / 2 * 1e3)
            time.sleep(0.02)
    return {name: median(t) for name, t in times.items()}


def row(size, mode, options):
    batch, length = map(int, size.split("x"))
    tokens = torch.randint(VOCABULARY, (batch, length), device="cuda")
    torch.compiler.reset()
    steps = {variant: make_step(variant, mode, options.heads, tokens) for variant in VARIANTS}
    losses = {variant: [step().item() for _ in range(3)] for variant, step in steps.items()}
    result = measure(steps, options.rounds)
    baseline = min((name for name in result if name != "attend"), key=result.get)
    print(f"step {size:8s} {mode:16s} " + "  ".join(f"{name} {t:.2f} ms" for name, t in result.items()) +
          f"  attend / {baseline}: {result[baseline] / result['attend']:.3f} x;  losses "
          + " ".join(f"{values[-1]:.4f}" for values in losses.values()), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--modes", default="eager,default,reduce-overhead")
    parser.add_argument("--sizes", default="8x1024,2x8192,1x32768")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: {LAYERS} layers, hidden {HIDDEN}, "
          f"{options.heads} heads, attend / baseline > 1: attend is faster")
    for size in options.sizes.split(","):
        for mode in options.modes.split(","):
            row(size, mode, options)


if __name__ == "__main__":
    main()
