"""PyTorch's operators of attend on CUDA tensors: compiler, CUDA graphs, streams, memory, errors.

usage: operators_test.py [--plain] [--cover]    definition.py says what they do
"""

import torch
import torch.nn.functional as F
from definition import check, draw, run, truth

import attend.torch
from attend.flash_attn import flash_attn_varlen_func

CAUSAL = {"is_causal": True}


def relative_error(got, expected):
    return ((got.double() - expected).norm() / expected.norm()).item()


def near(name, got, expected):
    for what, a, b in zip(("out", "dq", "dk", "dv"), got, expected):
        error = relative_error(a, b)
        check(f"{name}: {what}", error < 1e-2, f"relative error {error:.1e}")


def expected_of(q, k, v, dout):
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = truth(*wide, causal="first_key")[0]
    return [out, *torch.autograd.grad(out, wide, dout.double())]


def results_of(function, q, k, v, dout):
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, dout)]


def ours(q, k, v):
    return attend.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True, **CAUSAL)


def theirs(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **CAUSAL)


def swapped_inside(q, k, v):
    with attend.torch.patched():
        return theirs(q, k, v)


def arguments(B=2, H=4, Hk=2, M=200, N=300, D=64):
    return draw(B, H, M, D), draw(B, Hk, N, D), draw(B, Hk, N, D), draw(B, H, M, D)


def layouts():
    """Strides that the copy engine reads in place, and those that take a copy."""
    q, k, v, dout = arguments()
    expected = expected_of(q, k, v, dout)
    for name, change in (("length-major", lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)),
                         ("dim-major", lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)),
                         ("odd rows", lambda x: F.pad(x, (0, 1))[..., :-1]),
                         ("odd address", lambda x: F.pad(x.flatten(), (1, 0))[1:].view(x.shape))):
        near(f"layout {name}", results_of(ours, *(change(x) for x in (q, k, v, dout))), expected)


def compiled():
    for mode in ("default", "reduce-overhead"):
        for name, function in (("attend.torch", ours), ("patched inside", swapped_inside), ("patched outside", theirs)):
            torch.compiler.reset()
            fast = torch.compile(lambda *x: function(*x) * 2, fullgraph=True, mode=mode)  # noqa: B023
            for repeat in range(4):  # CUDA graphs are recorded at the second call
                torch.compiler.cudagraph_mark_step_begin()
                q, k, v, dout = arguments()
                scope = attend.torch.patched() if name == "patched outside" else torch.enable_grad()
                with scope:
                    got = [x.clone() for x in results_of(fast, q, k, v, dout)]
                near(f"compiled {mode}, {name}, call {repeat}", got, [2 * x for x in expected_of(q, k, v, dout)])


def captured():
    q, k, v, dout = arguments()
    results_of(ours, q, k, v, dout)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    with torch.cuda.graph(graph):
        out = ours(*inputs)
        gradients = torch.autograd.grad(out, inputs, dout)
    for repeat in range(3):
        q, k, v, other = arguments()
        with torch.no_grad():
            for x, y in zip((*inputs, dout), (q, k, v, other)):
                x.copy_(y)
        graph.replay()
        near(f"captured graph, replay {repeat}", [out, *gradients], expected_of(q, k, v, other))


def streams():
    """On a side stream, after a kernel that is still running there: the call returns before that kernel is done."""
    side = torch.cuda.Stream()
    for M in (200, 2000):
        q, k, v, dout = arguments(M=M, N=M)
        results_of(ours, q, k, v, dout)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            slept = torch.cuda.Event()
            slept.record()
            shifted = [x * 0.5 for x in (q, k, v, dout)]
            got = results_of(ours, *shifted)
            check(f"M{M}: forward and backward do not synchronise", not slept.query())
        torch.cuda.synchronize()
        near(f"M{M}: side stream", got, expected_of(*shifted))


def memory():
    """All memory of a call is the caching allocator's."""
    results_of(ours, *arguments())
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    results = results_of(ours, *arguments(M=8192, N=8192, H=16, Hk=16, D=128))
    visible = torch.ones(1, 1, 4096, 4096, dtype=torch.bool, device="cuda").tril()
    q = draw(1, 4, 4096, 64).requires_grad_()
    attend.torch.scaled_dot_product_attention(q, q, q, visible).sum().backward()
    torch.cuda.synchronize()
    grown, held = free - torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved() - reserved
    check("memory outside PyTorch's allocator", grown == held, f"{grown} bytes taken, {held} of them PyTorch's")
    del results


def documents():
    """cu_seqlens on the GPU, as FlashAttention's callers have them."""
    cu = torch.tensor([0, 100, 103, 300], dtype=torch.int32, device="cuda")
    q, k, v, dout = (draw(300, 4, 64) for _ in range(4))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = flash_attn_varlen_func(*inputs, cu, cu, 197, 197, causal=True)
    got = [out.detach(), *torch.autograd.grad(out, inputs, dout)]
    expected = []
    for a, b in ((0, 100), (100, 103), (103, 300)):
        expected.append([x[0].transpose(0, 1) for x in expected_of(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v, dout)))])
    near("documents", got, [torch.cat(parts) for parts in zip(*expected)])


def empty():
    for B, H, M, N in ((0, 2, 4, 4), (2, 2, 0, 4), (2, 2, 4, 0)):
        q, k, v = (draw(B, H, n, 64).requires_grad_() for n in (M, N, N))
        out = attend.torch.scaled_dot_product_attention(q, k, v)
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        check(f"empty {B} {H} {M} {N}", out.shape == q.shape and not any(x.any() for x in (out, *gradients)))


def errors():
    for name, x in (("f32", torch.randn(1, 2, 8, 64, device="cuda")), ("dim 512", draw(1, 2, 8, 512))):
        for function in (ours, torch.compile(ours, backend="aot_eager")):
            try:
                function(x, x, x)
                check(f"error {name}", False, "none")
            except RuntimeError as error:
                check(f"error {name}", "expected" in str(error), str(error))
                check(f"error {name} in eager mode", function is not ours or isinstance(error, ValueError), repr(error))
    with attend.torch.patched():  # not attend's to compute: PyTorch's own serves
        x = torch.randn(1, 2, 8, 64, device="cuda")
        check("patched f32", relative_error(F.scaled_dot_product_attention(x, x, x), truth(x.double(), x.double(), x.double())[0]) < 1e-2)


def cover():
    layouts()


def tests():
    layouts()
    captured()
    streams()
    memory()
    documents()
    empty()
    errors()
    compiled()


if __name__ == "__main__":
    run(tests, cover)
