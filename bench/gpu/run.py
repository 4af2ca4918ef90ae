"""attend on a GPU beside cuDNN and FlashAttention-2 (through PyTorch) and FlexAttention: in turns, in one process.

usage: run.py [rows]    rows: words that a row's name must hold: forward, backward, statistics, maps, decode, cache, masks, D128 ...
With the word `plain` the kernels are those for cards other than Hopper's, whatever this one is, and the peer is
FlashAttention-2, whose instructions are the same (mma.sync).

Every rate is the median (the best) of ten rounds; all but backward are replays of captured graphs, so that nobody's launches
count. Useful products alone are counted: a mask's hidden scores are nobody's work. `dense` is attend with no mask.
"""

import os
import random
import sys
import time
from statistics import median

if "plain" in sys.argv:
    os.environ["ATTEND_CUDA_KERNELS"] = "plain"

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attend
import attend.torch
from attend.flash_attn import flash_attn_with_kvcache

wanted = sys.argv[1:]
peak = reading = 0.0
plain = "plain" in wanted or torch.cuda.get_device_capability() != (9, 0)
PEERS = {"FA2": SDPBackend.FLASH_ATTENTION}
if not plain:
    PEERS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, **PEERS}


def turns(functions, rounds=10, inner=3):
    """{name: milliseconds of each round}, one after another in every round, with a pause for the card to cool."""
    for function in functions.values():
        function(), function()
    torch.cuda.synchronize()
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(inner):
                function()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / inner)
            time.sleep(0.02)
    return times


def graphed(function):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()

    def replay(kept=function):  # the graph reads the function's tensors, and does not keep them
        graph.replay()

    return replay


def title(name):
    return f"plain {name}" if plain else name


def asked(name):
    return all(word in title(name) for word in wanted)


def show(name, functions, work, unit="TFLOP/s", scale=1e-9, other_work=None):
    """other_work: {peer: work} of those whose work is another."""
    works = {**dict.fromkeys(functions, work), **(other_work or {})}
    times = turns(functions)
    rate = {peer: (works[peer] / median(t) * scale, works[peer] / min(t) * scale) for peer, t in times.items()}
    ours = rate["attend"][0]
    text = "  ".join(f"{peer} {middle:.4g} ({best:.4g})" for peer, (middle, best) in rate.items())
    ratios = ", ".join(f"{ours / middle:.2f} x {peer}" for peer, (middle, _) in rate.items() if peer != "attend")
    share = f", {ours / peak:.0%} of the peak" if unit == "TFLOP/s" else ""
    print(f"{title(name):32s} {text} {unit}: {ratios}{share}", flush=True)


def sdpa(backend, *tensors, **options):
    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*tensors, **options)

    return call


def draw(*shape, grad=False):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


SHAPES = [("D128 full 8k", 2, 16, 8192, 128, False), ("D128 causal 16k", 1, 16, 16384, 128, True),
          ("D256 full 8k", 2, 8, 8192, 256, False), ("D256 causal 16k", 1, 8, 16384, 256, True),
          ("D64 full 16k", 1, 32, 16384, 64, False), ("D64 causal 16k", 1, 32, 16384, 64, True),
          ("D128 causal 2k", 8, 16, 2048, 128, True), ("D128 causal 1k", 16, 16, 1024, 128, True),
          ("D128 causal 512", 32, 16, 512, 128, True)]


def forward_and_backward():
    for shape, B, H, L, D, causal in SHAPES:
        work = 4 * B * H * L * L * D * (0.5 if causal else 1)
        mask = attend.causal() if causal else None
        if asked(f"forward {shape}"):
            q, k, v = (draw(B, H, L, D) for _ in range(3))
            show(f"forward {shape}",
                 {**{name: graphed(sdpa(backend, q, k, v, is_causal=causal)) for name, backend in PEERS.items()},
                  "attend": graphed(lambda: attend.attention(q, k, v, mask, return_lse=True))}, work)
        if asked(f"backward {shape}"):
            q, k, v = (draw(B, H, L, D, grad=True) for _ in range(3))
            dout, plain = draw(B, H, L, D), [x.detach() for x in (q, k, v)]
            peers = {}
            for name, backend in PEERS.items():
                out = sdpa(backend, q, k, v, is_causal=causal)()
                peers[name] = lambda out=out: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
            out, lse = attend.attention(*plain, mask, return_lse=True)
            peers["attend"] = lambda: attend.attention_backward(dout, *plain, out, lse, mask)
            show(f"backward {shape}", peers, 2.5 * work)


def statistics():
    """What the statistics of rows cost on top of the forward pass."""
    for shape, B, H, L, D, causal in SHAPES:
        if not asked(f"statistics {shape}"):
            continue
        q, k, v = (draw(B, H, L, D) for _ in range(3))
        mask = attend.causal() if causal else None
        call = lambda **wanted: graphed(lambda: attend.attention(q, k, v, mask, return_lse=True, **wanted))  # noqa: E731
        times = turns({"forward": call(), "with": call(return_statistics=True)})
        forward, with_them = median(times["forward"]), median(times["with"])
        print(f"{f'statistics {shape}':32s} forward {forward:.3f} ms, with them {with_them:.3f} ms: "
              f"{with_them / forward - 1:+.1%}", flush=True)


def maps():
    """A pooled map of one head beside the forward pass of that head, which gives the LSE."""
    for D, L in ((64, 131072), (128, 131072), (256, 131072), (128, 16384)):
        name = f"maps D{D} causal L{L}"
        if not asked(name):
            continue
        q, k, v = (draw(1, 1, L, D) for _ in range(3))
        lse = attend.attention(q, k, v, attend.causal(), return_lse=True)[1]
        seen = attend.observe(q, k, mask=attend.causal(), lse=lse)
        times = turns({"forward": graphed(lambda: attend.attention(q, k, v, attend.causal(), return_lse=True)),
                       "512 x 512": graphed(lambda: seen.map(rows=512, cols=512)),
                       "500 x 500": graphed(lambda: seen.map(rows=500, cols=500)),
                       "received": graphed(lambda: seen.received())})
        forward = median(times["forward"])
        print(f"{title(name):32s} " + "  ".join(f"{what} {median(t):.3f} ms ({median(t) / forward:.2f})"
                                                for what, t in times.items()), flush=True)


def decode():
    for B, L in ((1, 8192), (1, 131072), (64, 8192), (16, 65536)):
        name = f"decode B{B} L{L}"
        if asked(name):
            q, k, v = draw(B, 32, 1, 128), draw(B, 8, L, 128), draw(B, 8, L, 128)
            peer, backend = next(iter(PEERS.items()))
            show(name, {peer: graphed(sdpa(backend, q, k, v, enable_gqa=True)),
                        "attend": graphed(lambda: attend.attention(q, k, v))}, B * 8 * L * 128 * 2 * 2, "TB/s")


def paged(B, L, page, stored):
    """A cache of B sequences of L tokens in pages of any order, and a step over it: the function, the bytes it reads."""
    pages = B * L // page
    table = torch.randperm(pages, device="cuda", dtype=torch.int32).view(B, -1)
    caches, scales = [draw(pages, page, 8, 128) for _ in range(2)], [None, None]
    if stored is not None:
        scales = [torch.full((pages, 8, page), 0.02, device="cuda").transpose(1, 2) for _ in range(2)]
        caches = [(x * 30).clamp(-127, 127).to(stored) for x in caches]
    lengths = torch.full((B,), L, dtype=torch.int32, device="cuda")
    q, number = draw(B, 1, 32, 128), 2 if stored is None else 1
    call = lambda: flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, block_table=table,  # noqa: E731
                                           k_descale=scales[0], v_descale=scales[1], causal=True)
    return graphed(call), B * 8 * L * 2 * (128 * number + (4 if stored is not None else 0))


def caches():
    """Plain decoding beside the same over pages, in bf16, int8 and fp8; cuDNN reads contiguous bf16."""
    for B, L in ((1, 8192), (1, 131072), (64, 8192), (16, 65536)):
        name = f"decode cache B{B} L{L}"
        if not asked(name):
            continue
        q, k, v = draw(B, 32, 1, 128), draw(B, 8, L, 128), draw(B, 8, L, 128)
        contiguous = B * 8 * L * 128 * 2 * 2
        rows = {"cuDNN": (graphed(sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, enable_gqa=True)), contiguous),
                "attend": (graphed(lambda: attend.attention(q, k, v)), contiguous),
                "pages of 16": paged(B, L, 16, None), "pages of 64": paged(B, L, 64, None),
                "int8": paged(B, L, 64, torch.int8), "fp8": paged(B, L, 64, torch.float8_e4m3fn)}
        times = {peer: median(t) for peer, t in turns({peer: call for peer, (call, _) in rows.items()}).items()}
        print(f"{name:32s} " + "  ".join(
            f"{peer} {1e3 * times[peer]:.1f} us, {work / times[peer] * 1e-9:.2f} TB/s ({work / times[peer] * 1e-9 / reading:.0%})"
            for peer, (_, work) in rows.items()) + " of reading", flush=True)


def masks():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)
    random.seed(3)
    cu = [0]
    while cu[-1] < 16384:
        cu.append(min(16384, cu[-1] + random.randint(256, 4096)))
    document = torch.repeat_interleave(torch.arange(len(cu) - 1), torch.tensor(cu).diff()).to("cuda")
    slopes = torch.exp2(-0.5 * torch.arange(1, 17, device="cuda"))
    causal = lambda b, h, q, k: q >= k  # noqa: E731
    at = torch.arange(8192, device="cuda")
    # Boolean tensors: documents, and a tenth of all scores hidden by chance, which leaves no tile whole.
    tensors = {"documents": (document[:8192, None] == document[:8192]) & (at[:, None] >= at),
               "holes": (torch.rand(8192, 8192, device="cuda") < 0.9) & (at[:, None] >= at)}
    rows = [("window 1024 8k", 2, 8192, attend.window(1024, 0), {}, lambda b, h, q, k: (q >= k) & (q - k <= 1024), None),
            ("window 1024 32k", 1, 32768, attend.window(1024, 0), {}, lambda b, h, q, k: (q >= k) & (q - k <= 1024), None),
            ("documents 16k", 1, 16384, attend.segments(cu) & attend.causal(), {},
             lambda b, h, q, k: (document[q] == document[k]) & (q >= k), None),
            ("prefix 2k of 8k", 2, 8192, attend.prefix([2048]), {}, lambda b, h, q, k: (q >= k) | (k < 2048), None),
            ("ALiBi causal 8k", 2, 8192, attend.causal(), {"alibi_slopes": slopes}, causal,
             lambda s, b, h, q, k: s + (k - q) * slopes[h]),
            ("soft cap causal 8k", 2, 8192, attend.causal(), {"softcap": 30.0}, causal,
             lambda s, b, h, q, k: 30.0 * torch.tanh(s / 30.0))]
    read = lambda tensor: lambda b, h, q, k: tensor[q, k]  # noqa: E731
    rows += [(f"boolean {name} 8k", 2, 8192, tensor, {}, read(tensor), None) for name, tensor in tensors.items()]
    for what, B, L, mask, scores, rule, change in rows:
        if not asked(f"masks {what}") and not asked(f"masks backward {what}"):
            continue
        torch.compiler.reset()  # every row is compiled twice, and after eight of a function PyTorch gives up
        q, k, v = (draw(B, 16, L, 128, grad=True) for _ in range(3))
        dout, plain = draw(B, 16, L, 128), [x.detach() for x in (q, k, v)]
        at = torch.arange(L, device="cuda")
        pairs = sum(rule(0, 0, at[i:i + 1024, None], at[None]).sum().item() for i in range(0, L, 1024))
        work = 4 * B * 16 * pairs * 128
        blocks = create_block_mask(rule, None, None, L, L, device="cuda")
        theirs = lambda *x: flex(*x, score_mod=change, block_mask=blocks)  # noqa: E731
        ours = lambda *x: attend.attention(*x, mask, return_lse=True, **scores)  # noqa: E731
        if isinstance(mask, torch.Tensor):
            ours = lambda *x: attend.torch.scaled_dot_product_attention(*x, mask)  # noqa: E731
        if asked(f"masks {what}"):
            show(f"masks {what}", {"Flex": graphed(lambda: theirs(*plain)), "dense": graphed(lambda: attend.attention(*plain)),
                                   "attend": graphed(lambda: ours(*plain))}, work, other_work={"dense": 4 * B * 16 * L * L * 128})
        if asked(f"masks backward {what}"):
            peers = {"Flex": theirs(q, k, v)}
            if isinstance(mask, torch.Tensor):
                peers["attend"] = ours(q, k, v)
            calls = {name: lambda out=out: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True) for name, out in peers.items()}
            if not isinstance(mask, torch.Tensor):
                out, lse = ours(*plain)
                calls["attend"] = lambda: attend.attention_backward(dout, *plain, out, lse, mask, **scores)
            show(f"masks backward {what}", calls, 2.5 * work)


if __name__ == "__main__":
    a, b = draw(8192, 8192), draw(8192, 8192)
    peak = 2 * 8192**3 / median(turns({"product": lambda: a @ b})["product"]) * 1e-9
    x = torch.zeros(1 << 31, dtype=torch.uint8, device="cuda")
    copy = 2 * x.numel() / 2 / median(turns({"copy": lambda: x[: 1 << 30].copy_(x[1 << 30:])})["copy"]) * 1e-9
    reading = x.numel() / median(turns({"sum": lambda: x.view(torch.float32).sum()})["sum"]) * 1e-9
    print(f"{torch.cuda.get_device_name()}: products {peak:.0f} TFLOP/s, copies {copy:.2f} TB/s, reading {reading:.2f} TB/s")
    del a, b, x
    forward_and_backward()
    if not plain:
        statistics()
    maps()
    decode()
    if not plain:
        caches()
    if not wanted or "masks" in wanted:
        masks()
