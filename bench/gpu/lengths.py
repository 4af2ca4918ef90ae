"""Attention at training lengths: kernel time of forward and backward, attend next to cuDNN and FlashAttention-2; for packed
documents next to FlexAttention.

usage: lengths.py [--rounds 10] [--kernels] [words that a row's name must hold: D128 causal L1024 backward ...]

16,384 tokens a call, hidden size 2,048, bf16. All functions are CUDA graphs, interleaved in one process; a figure is the
median of the rounds in microseconds. --kernels: also the time of each of attend's kernels in the backward pass.
"""

import argparse
import random
from statistics import median

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attend
import attend.torch

TOKENS, HIDDEN = 16384, 2048
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FA2": SDPBackend.FLASH_ATTENTION}


def graphed(make):
    """The function that `make()` returns, as a graph; what it prepares runs on the same stream, as autograd asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function = make()
        for _ in range(2):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = function()

    def replay(kept=(function, result)):
        graph.replay()

    return replay


def interleaved(functions, rounds, inner=5):
    for function in functions.values():
        function(), function()
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(inner):
                function()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / inner * 1e3)
    return {name: median(t) for name, t in times.items()}


def calls(q, k, v, **options):
    """{name: function} of attend and of each backend."""
    def of_backend(backend):
        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, **options)

        return call

    return {"attend": lambda: attend.torch.scaled_dot_product_attention(q, k, v, **options),
            **{name: of_backend(backend) for name, backend in BACKENDS.items()}}


def gradient(call, inputs, dout):
    out = call()
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)


def show(name, times):
    ours = times["attend"]
    print(f"{name:30s} " + "  ".join(f"{peer} {t:7.1f} us" + ("" if peer == "attend" else f" ({t / ours:.2f} x)")
                                     for peer, t in times.items()), flush=True)


def show_kernels(function):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            function()
        torch.cuda.synchronize()
    for event in profile.key_averages():
        print(f"    {event.key[:60]:60s} {event.count / 10:4.1f} x {event.device_time_total / event.count:7.1f} us")


def row(D, causal, L, kv_heads, options):
    B, H = TOKENS // L, HIDDEN // D
    name = f"D{D} {'causal' if causal else 'full'} L{L}" + (" GQA" if kv_heads != H else "")
    draw = lambda heads: torch.randn(B, heads, L, D, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    inputs = [draw(heads).requires_grad_() for heads in (H, kv_heads, kv_heads)]
    scores = {"is_causal": causal, "enable_gqa": kv_heads != H}
    asked = lambda what: all(word in f"{name} {what}".split() for word in options.words)  # noqa: E731
    if asked("forward"):
        plain = [x.detach() for x in inputs]
        show(f"{name} forward", interleaved({peer: graphed(lambda call=call: call) for peer, call in calls(*plain, **scores).items()},
                                            options.rounds))
    if asked("backward"):
        dout = draw(H)
        functions = {peer: graphed(lambda call=call: gradient(call, inputs, dout))
                     for peer, call in calls(*inputs, **scores).items()}
        show(f"{name} backward", interleaved(functions, options.rounds))
        if options.kernels:
            show_kernels(functions["attend"]), show_kernels(functions["cuDNN"])


def documents(D, options):
    """Packed documents of 512 tokens on average, causal; their ends are the host's, as a graph asks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    name, H = f"D{D} causal documents", HIDDEN // D
    if not all(word in f"{name} forward backward".split() for word in options.words):
        return
    random.seed(3)
    cu = [0]
    while cu[-1] < TOKENS:
        cu.append(min(TOKENS, cu[-1] + random.randint(64, 960)))
    document = torch.repeat_interleave(torch.arange(len(cu) - 1), torch.tensor(cu).diff()).to("cuda")
    rule = lambda b, h, q, k: (document[q] == document[k]) & (q >= k)  # noqa: E731
    blocks, flex = create_block_mask(rule, None, None, TOKENS, TOKENS, device="cuda"), torch.compile(flex_attention)
    mask = attend.segments(cu) & attend.causal()
    q, k, v, dout = (torch.randn(1, H, TOKENS, D, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    forward = {"attend": lambda: attend.attention(q, k, v, mask, return_lse=True),
               "Flex": lambda: flex(q, k, v, block_mask=blocks)}
    show(f"{name} forward", interleaved({peer: graphed(lambda call=call: call) for peer, call in forward.items()},
                                        options.rounds))
    out, lse = forward["attend"]()
    backward = {"attend": lambda: lambda: attend.attention_backward(dout, q, k, v, out, lse, mask),
                "Flex": lambda: gradient(lambda: flex(*inputs, block_mask=blocks), inputs, dout)}
    show(f"{name} backward", interleaved({peer: graphed(make) for peer, make in backward.items()}, options.rounds))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: kernel time, (baseline / attend)")
    for D in (64, 128, 256):
        for causal in (False, True):
            for L in (512, 1024, 2048, 4096, 8192, 16384):
                row(D, causal, L, HIDDEN // D, options)
    for L in (1024, 8192):
        row(128, True, L, HIDDEN // 128 // 8, options)
    for D in (64, 128):
        documents(D, options)


if __name__ == "__main__":
    main()
