"""Host time of attend's PyTorch operators and of PyTorch's own attention: microseconds of a call before it returns.

usage: host.py

Shapes are small, so that the GPU is never the bottleneck: this measures Python, the dispatcher, autograd and the launches.
Each figure is the median (the best) of twenty batches of 50 calls, the functions interleaved, the GPU idle before each.
"""

import time
from statistics import median

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attend.torch
from attend._torch_ops import attention_op

CALLS, ROUNDS = 50, 20
NUMBERS = (None, 0.0, -1, 0, True, 0.0)  # scale, softcap, left, right, first_key, dropout


def measure(functions):
    for function in functions.values():
        for _ in range(CALLS):
            function()
    times = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                function()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    for name, t in times.items():
        print(f"{name:44s} {median(t):7.1f} ({min(t):.1f}) us", flush=True)


def with_gradients(call, inputs, dout):
    return lambda: torch.autograd.grad(call(*inputs), inputs, dout)


def main():
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, host time of a call")
    q, k, v = (torch.randn(1, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    dout = torch.randn_like(q)
    theirs = lambda *x: F.scaled_dot_product_attention(*x, is_causal=True)  # noqa: E731
    ours = lambda *x: attend.torch.scaled_dot_product_attention(*x, is_causal=True)  # noqa: E731
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention", SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(backend):
            measure({f"{name} forward": lambda: theirs(q, k, v), f"{name} forward, recorded": lambda: theirs(*inputs),
                     f"{name} forward + backward": with_gradients(theirs, inputs, dout)})
    measure({"attend forward": lambda: ours(q, k, v), "attend forward, recorded": lambda: ours(*inputs),
             "attend forward + backward": with_gradients(ours, inputs, dout),
             "attend, the operator only": lambda: attention_op(q, k, v, *[None] * 6, *NUMBERS)})
    with torch.inference_mode():
        measure({"attend forward, inference_mode": lambda: ours(q, k, v)})
    with attend.torch.patched():
        measure({"patched forward": lambda: theirs(q, k, v), "patched forward, recorded": lambda: theirs(*inputs),
                 "patched forward + backward": with_gradients(theirs, inputs, dout)})


if __name__ == "__main__":
    main()
