"""Large scores and soft-caps of any size, forward and gradients: docs/numerics.md says what is promised.

usage: large_scores_test.py [--plain] [--cover]    definition.py says what they do
"""

import math

import torch
from definition import check, draw, forward_case, held_weights, masked_bias, near, plain, quarters, run

import attend


def large_case(name, M, N, D, dtype, mask=0.0, on=None, scale=0.125, with_sinks=False, H=2, Hk=1, numbers=quarters):
    """Large scores: docs/numerics.md. Every element is finite, and right over scores as they are held."""
    q, k, v = (numbers(1, h, n, D, dtype=dtype) for h, n in ((H, M), (Hk, N), (Hk, N)))
    bias, sinks = masked_bias(H, M, N, mask, on), torch.randn(H, device="cuda") if with_sinks else None
    options = {"scale": scale, **({} if on is None else {"bias": bias}), **({"sinks": sinks} if with_sinks else {})}
    out, lse = attend.attention(q, k, v, return_lse=True, **options)
    w, expected_lse, sink = held_weights(q, k, bias, scale, sinks)
    wide = v.double().repeat_interleave(H // Hk, 1)
    near(name, out, w @ wide, w @ wide.abs(), dtype)
    finite = torch.isfinite(expected_lse)
    rounding = D / 16 * 2.0**-23  # of a sum of D products, a step of 16 at a time, beside the sum of their sizes
    sizes = q.double().abs() @ k.double().abs().repeat_interleave(H // Hk, 1).transpose(-1, -2)
    held = 2.0**-22 * expected_lse.abs() + (0 if numbers is quarters else rounding * scale * sizes.amax(-1))
    off = (lse.double() - expected_lse)[finite].abs() / (1e-4 + held[finite])
    check(f"{name}: lse", torch.equal(finite, torch.isfinite(lse)) and bool((off <= 1).all()))
    dout = draw(1, H, M, D, dtype=dtype)
    got = attend.attention_backward(dout, q, k, v, out, lse, **options)
    delta = (dout.double() * out.double()).sum(-1, keepdim=True)  # of the rounded output, as backward reads it
    ds = w * (dout.double() @ wide.transpose(-1, -2) - delta)
    # Where one weight is nearly 1 the two cancel: what is left of them is their rounding.
    noise = 2 * rounding * w * (dout.double().abs() @ wide.abs().transpose(-1, -2))
    of_group = lambda x: x.view(1, Hk, H // Hk, N, D).sum(2)  # noqa: E731
    right = {"dv": (of_group(w.transpose(-1, -2) @ dout.double()), torch.zeros(()))}
    if 1e-3 <= scale <= 1e3:  # else beyond what f16 holds, or subnormal
        keys = k.double().repeat_interleave(H // Hk, 1)
        right["dq"] = scale * ds @ keys, scale * noise @ keys.abs()
        right["dk"] = (of_group(scale * x.transpose(-1, -2) @ y) for x, y in ((ds, q.double()), (noise, q.double().abs())))
    if on is not None:
        right["dbias"] = ds, noise
    if with_sinks:
        right["dsinks"] = -(sink * delta).sum((0, 2, 3)), torch.zeros(())
    for what, (b, own) in right.items():
        off = (getattr(got, what).double().flatten() - b.flatten()).norm().item()
        bound = (1e-2 if dtype == torch.bfloat16 else 2e-3) * (5 if what == "dsinks" else 1)
        allowed = bound * b.norm().item() + own.norm().item() + 1e-30
        check(f"{name}: {what}", off < allowed, f"off by {off:.1e}, allowed {allowed:.1e}")  # NaN is not below it


def large_cases():
    for D in (64, 128, 256):
        for dtype in (torch.bfloat16, torch.float16):
            for mask in (-1e4, -65504.0, -1e9, -1e30, torch.finfo(torch.float32).min, -math.inf):
                name = f"D{D} {dtype} {mask:.0e} on"
                large_case(f"{name} whole rows", 300, 500, D, dtype, mask, "whole rows")
                large_case(f"{name} some keys", 300, 500, D, dtype, mask, "some keys", with_sinks=True)
                large_case(f"{name} the last keys", 300, 500, D, dtype, mask, "the last keys", scale=20.0)
                large_case(f"{name} whole rows, few queries", 5, 2000, D, dtype, mask, "whole rows", H=8, Hk=2)
                large_case(f"{name} the last keys, one query", 1, 2000, D, dtype, mask, "the last keys", H=8, Hk=2)
            for scale in (1e-6, 100.0, 1e4, 1e9, 1e20):
                name = f"D{D} {dtype} scale {scale:.0e}"
                large_case(name, 300, 500, D, dtype, scale=scale)
                large_case(f"{name}, one query", 1, 2000, D, dtype, scale=scale, H=8, Hk=2)
                large_case(f"{name} and a mask", 300, 500, D, dtype, -1e9, "whole rows", scale=scale)
            # Products that are rounded: those of row_softmax and of the kernels must agree on the largest.
            large_case(f"D{D} {dtype} scale 1e9, any numbers", 300, 500, D, dtype, scale=1e9, numbers=draw)
        if not plain:  # with statistics, whose rows are the same
            q, k, v = (quarters(1, 2, n, D, dtype=torch.bfloat16) for n in (300, 500, 500))
            for on in ("whole rows", "the last keys"):
                for mask in (-1e9, torch.finfo(torch.float32).min):
                    bias = masked_bias(2, 300, 500, mask, on)
                    out, rows = attend.attention(q, k, v, bias=bias, scale=0.125, return_statistics=True)
                    w = held_weights(q, k, bias, 0.125)[0]
                    near(f"D{D} {mask:.0e} on {on}, statistics: out", out, w @ v.double(), w @ v.double().abs(), out.dtype)
                    off = (rows.entropy.double() + torch.xlogy(w, w).sum(-1)).abs().max().item()
                    check(f"D{D} {mask:.0e} on {on}: entropy", off < 1e-3, f"{off:.1e}")


def soft_caps():
    """Of any size, scores of zero among them; and a row's bits, whatever is beside it or hidden."""
    for D in (64, 128, 256):
        for cap in (1e-7, 1e-3, 1e3, 1e6, 1e12):
            forward_case(f"D{D} soft cap of {cap:.0e}", 1, 2, 2, 300, 500, D, softcap=cap)
            q, k, v = torch.zeros_like(draw(1, 2, 300, D)), draw(1, 2, 500, D), draw(1, 2, 500, D)
            out = attend.attention(q, k, v, softcap=cap)
            near(f"D{D} soft cap of {cap:.0e}, scores of zero", out, v.double().mean(2, True).expand(out.shape),
                 v.double().abs().mean(2, True), out.dtype)
        for M, N in ((300, 500), (3, 2000)):
            q, k, v = draw(1, 2, M, D), draw(1, 2, N, D), draw(1, 2, N, D)
            run = lambda q, k: attend.attention(q, k, v, mask=attend.causal(), softcap=20.0)  # noqa: E731
            first, other, hidden = run(q, k), q.clone(), k.clone()
            other[:, :, 1::2] *= 40
            check(f"D{D} soft cap: the same bits beside other rows, {M}", torch.equal(run(other, k)[:, :, ::2], first[:, :, ::2]))
            hidden[:, :, N - 1] *= 40  # which the last row alone sees
            check(f"D{D} soft cap: hidden keys show in no bit, {M}", torch.equal(run(q, hidden)[:, :, :-1], first[:, :, :-1]))


def tests():
    large_cases()
    soft_caps()


def cover():
    for D, dtype in ((64, torch.bfloat16), (128, torch.float16)):
        large_case(f"D{D} large scores", 40, 150, D, dtype, -1e9, "whole rows")
        large_case(f"D{D} large scores, few queries", 3, 1100, D, dtype, -1e9, "whole rows", H=8, Hk=2)


if __name__ == "__main__":
    run(tests, cover)
