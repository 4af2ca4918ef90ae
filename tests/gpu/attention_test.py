"""attend on CUDA tensors against PyTorch's arithmetic in float64: forward, gradients, same bits, training.

usage: attention_test.py [--plain] [--cover]
--plain: the kernels for cards other than Hopper's, whatever this one is; --cover: a few small calls of every kernel, for
compute-sanitizer
"""

import math
import os
import sys

if "--plain" in sys.argv:
    os.environ["ATTEND_CUDA_KERNELS"] = "plain"

import torch
import torch.nn.functional as F

import attend
import attend.flash_attn
import attend.torch

failures = []
count = 0
plain = os.environ.get("ATTEND_CUDA_KERNELS") == "plain" or torch.cuda.get_device_capability() != (9, 0)


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


def check(name, ok, detail=""):
    global count
    count += 1
    if not ok:
        failures.append(name)
        print(f"FAILED {name} {detail}", flush=True)


def visible(M, N, causal=None, window=None, prefix=None, padding=None, segments=None, dense=None, **_):
    """[1|B, 1|H, M, N] booleans: the definition."""
    i, j = torch.arange(M, device="cuda")[:, None], torch.arange(N, device="cuda")[None]
    seen, first, last = torch.ones(1, 1, M, N, dtype=torch.bool, device="cuda"), i, i + N - M
    if segments is not None:
        cu = torch.tensor(segments, device="cuda")
        document = (torch.searchsorted(cu, i[:, 0], right=True) - 1).clamp(max=len(cu) - 2)
        seen = seen & (j >= cu[document][:, None]) & (j < cu[document + 1][:, None]) & (i < cu[-1])
        last = first  # as many keys as queries in each
    if causal is not None:
        seen = seen & (j <= (last if causal == "last_key" else first))
    if window is not None:
        seen = seen & (j >= last - window[0]) & (j <= last + window[1])
    if prefix is not None:
        seen = seen & ((j < prefix) | (j <= last))
    if padding is not None:
        seen = seen & (j < torch.tensor(padding, device="cuda").view(-1, 1, 1, 1))
    return seen if dense is None else seen & dense


def mask_of(causal=None, window=None, prefix=None, padding=None, segments=None, **_):
    mask = attend.no_mask()
    if causal is not None:
        mask = mask & attend.causal(align=causal)
    if window is not None:
        mask = mask & attend.window(*window)
    if prefix is not None:
        mask = mask & attend.prefix([prefix])
    if padding is not None:
        mask = mask & attend.padding(padding)
    if segments is not None:
        mask = mask & attend.segments(segments)
    return mask


def weights_of(q, k, softcap=0.0, bias=None, slopes=None, sinks=None, scale=None, **rules):
    """The weights and the lse, in float64."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    M, N = s.shape[-2:]
    if slopes is not None:
        distance = torch.arange(M, device="cuda")[:, None] + N - M - torch.arange(N, device="cuda")
        s = s - slopes.view(1, -1, 1, 1) * distance.abs()
    s = s.masked_fill(~visible(M, N, **rules), -math.inf)
    row = s if sinks is None else torch.cat([s, sinks.view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    lse = torch.logsumexp(row, -1)
    return torch.exp(s - lse.masked_fill(lse == -math.inf, 0)[..., None]), lse


def truth(q, k, v, **options):
    """out, lse and the sums of weight * |v|, in float64."""
    weights, lse = weights_of(q, k, **options)
    v = v.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return weights @ v, lse, weights @ v.abs()


def near(name, got, expected, spread, dtype):
    """Weights are rounded to the dtype before they meet the values, results once more."""
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    bound = unit * (expected.abs() + spread) + 1e-5
    worst = ((got.double() - expected).abs() / bound).max().item()
    check(name, worst <= 1 and bool(torch.isfinite(got).all()), f"{worst:.2f} of the bound")


def options_of(options):
    """Those of attend.attention, and all in float64."""
    scores = {x: options[x] for x in ("softcap", "bias", "sinks", "scale") if x in options}
    if "slopes" in options:
        scores["alibi_slopes"] = options["slopes"]
    wide = {x: y.double() if isinstance(y, torch.Tensor) and y.is_floating_point() else y for x, y in options.items()}
    return scores, wide


def statistics_of(w, tokens, sink_tokens=1, sinks_apart=False, local_width=8, recent_width=64, align="last_key"):
    """The definition: {name: [B, H, M]}."""
    M, N = w.shape[-2:]
    p, j = torch.arange(M, device="cuda")[:, None] + (N - M if align == "last_key" else 0), torch.arange(N, device="cuda")
    mass, away = w.sum(-1), p - j
    mean = (w * away).sum(-1) / mass.clamp(min=1e-300)
    counted = w * (j >= sink_tokens) if sinks_apart else w
    at = lambda chosen: (counted * chosen).sum(-1)  # noqa: E731
    rows = {"mass": mass, "entropy": -torch.xlogy(w, w).sum(-1), "distance_mean": mean,
            "distance_variance": (w * (away - mean[..., None])**2).sum(-1) / mass.clamp(min=1e-300),
            "sink_tokens": w[..., :sink_tokens].sum(-1), "self": at(away == 0), "previous": at(away == 1),
            "local": at(away.abs() <= local_width), "recent": at(away.abs() <= recent_width), "maximum": w.amax(-1)}
    if tokens is not None:
        own = tokens[:, p[:, 0].clamp(0, N - 1)][:, None, :, None]
        known = (p >= 0) & (p < N)
        behind = torch.cat([torch.full_like(tokens[:, :1], -1), tokens[:, :-1]], 1)
        rows["duplicate"] = at((tokens[:, None, None] == own) & (away != 0) & known)
        rows["induction"] = at((behind[:, None, None] == own) & known)
    return rows


def statistics_case(name, B, H, Hk, M, N, D, dtype=torch.bfloat16, sharp=1.0, vocabulary=0, asked=None, **options):
    """Of weights as they meet the values: rounded. Entropy and maximum are of those before."""
    q, k, v = (draw(B, h, n, D, dtype=dtype) for h, n in ((H, M), (Hk, N), (Hk, N)))
    q, asked = (q * sharp).to(dtype), dict(asked or {})
    tokens = torch.randint(vocabulary, (B, N), device="cuda") if vocabulary else None
    scores, wide = options_of(options)
    out, rows = attend.attention(q, k, v, mask=mask_of(**options), return_statistics={**asked, "tokens": tokens}, **scores)
    expected, _, spread = truth(q.double(), k.double(), v.double(), **wide)
    near(f"{name}: out", out, expected, spread, dtype)
    w = weights_of(q.double(), k.double(), **wide)[0]
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    truths = statistics_of(w, tokens, **asked)
    deviation = truths["distance_variance"].sqrt()
    bounds = {"entropy": 2e-5 * (1 + truths["entropy"]), "maximum": 2e-5 * truths["maximum"], "mass": 2e-5,
              "distance_mean": 2e-3 + 2 * unit * deviation + 2e-5 * truths["distance_mean"].abs(),
              "distance_variance": 2e-2 + 8 * unit * (deviation**2 + deviation)}
    for what, right in truths.items():
        worst = ((getattr(rows, what).double() - right).abs() / (bounds.get(what, 1.3 * unit * right) + 3e-6)).max().item()
        check(f"{name}: {what}", worst <= 1, f"{worst:.2f} of the bound")
    seen, largest = truths["mass"] > 0, truths["maximum"]
    found = w.gather(-1, rows.argmax.clamp(min=0)[..., None])[..., 0]
    check(f"{name}: argmax", torch.equal(rows.argmax == -1, ~seen) and bool((found >= largest * (1 - 2.2 * unit)).all()))


def statistics_cases():
    for D in (64, 128, 256):
        statistics_case(f"D{D} statistics", 2, 4, 4, 333, 777, D)
        statistics_case(f"D{D} causal statistics", 2, 4, 2, 700, 700, D, vocabulary=50, causal="last_key")
        statistics_case(f"D{D} f16 statistics", 1, 2, 2, 300, 500, D, dtype=torch.float16, vocabulary=8, causal="last_key")
        statistics_case(f"D{D} sharp statistics", 1, 1, 1, 130, 20000, D, sharp=6.0)
        statistics_case(f"D{D} statistics, M > N", 1, 2, 2, 500, 200, D, vocabulary=5, causal="last_key")
        statistics_case(f"D{D} statistics, sinks apart", 1, 2, 2, 500, 500, D, vocabulary=3, causal="last_key",
                        asked={"sink_tokens": 4, "sinks_apart": True, "local_width": 0, "recent_width": 300})
        statistics_case(f"D{D} statistics, wide", 1, 2, 2, 300, 900, D, vocabulary=4,
                        asked={"sink_tokens": 200, "local_width": 2**40, "recent_width": 0, "align": "first_key"})
        statistics_case(f"D{D} window statistics", 1, 2, 2, 700, 700, D, vocabulary=9, window=(100, 20))
        statistics_case(f"D{D} padding statistics", 3, 2, 2, 200, 400, D, vocabulary=9, padding=[400, 0, 130])
        statistics_case(f"D{D} documents statistics", 1, 2, 2, 700, 700, D, vocabulary=9, segments=[0, 100, 103, 700],
                        causal="last_key")
        statistics_case(f"D{D} sinks statistics", 1, 4, 4, 200, 300, D, sinks=torch.randn(4, device="cuda") * 3)
        statistics_case(f"D{D} soft cap statistics", 1, 2, 2, 300, 500, D, softcap=3.0, scale=0.5)
        statistics_case(f"D{D} ALiBi statistics", 1, 4, 4, 300, 300, D, slopes=torch.rand(4, device="cuda"), causal="last_key")
        statistics_case(f"D{D} packed heads statistics", 2, 12, 2, 40, 300, D, vocabulary=7, causal="last_key")
        statistics_case(f"D{D} one query statistics", 2, 8, 2, 1, 5000, D, vocabulary=50)
        statistics_case(f"D{D} few queries statistics", 2, 8, 2, 3, 3000, D, vocabulary=7, causal="last_key",
                        sinks=torch.randn(8, device="cuda"))
        statistics_case(f"D{D} few queries padding statistics", 2, 8, 2, 2, 3000, D, padding=[3000, 700])
    q, k, v = draw(1, 2, 300, 64), draw(1, 2, 500, 64), draw(1, 2, 500, 64)
    shown = torch.rand(5, 10) < 0.5
    dense = shown.repeat_interleave(60, 0).repeat_interleave(50, 1).to("cuda")
    _, rows = attend.attention(q, k, v, mask=attend.blocks(shown.numpy(), 60, 50), return_statistics=True)
    w = weights_of(q.double(), k.double(), dense=dense)[0]
    check("statistics with holes", torch.allclose(rows.entropy.double(), statistics_of(w, None)["entropy"], atol=1e-4)
          and torch.allclose(rows.recent.double(), statistics_of(w, None)["recent"], rtol=6e-3, atol=1e-5))


def forward_case(name, B, H, Hk, M, N, D, E=None, dtype=torch.bfloat16, **options):
    q, k, v = draw(B, H, M, D, dtype=dtype), draw(B, Hk, N, D, dtype=dtype), draw(B, Hk, N, E or D, dtype=dtype)
    scores, wide = options_of(options)
    out, lse = attend.attention(q, k, v, mask=mask_of(**options), return_lse=True, **scores)
    expected, expected_lse, spread = truth(q.double(), k.double(), v.double(), **wide)
    near(name, out, expected, spread, dtype)
    finite = torch.isfinite(expected_lse)
    check(f"{name}: lse", torch.equal(finite, torch.isfinite(lse))
          and bool(((lse.double() - expected_lse)[finite].abs() <= 1e-3).all()))


def gradient_case(name, B, H, Hk, M, N, D, dtype=torch.bfloat16, **options):
    """Through autograd, where attend.torch has the option, else attention_backward."""
    q, k, v = (draw(B, h, n, D, dtype=dtype) for h, n in ((H, M), (Hk, N), (Hk, N)))
    dout = draw(B, H, M, D, dtype=dtype)
    scores = {x: options[x] for x in ("softcap", "bias", "sinks", "scale") if x in options}
    if "slopes" in options:
        scores["alibi_slopes"] = options["slopes"]
    out, lse = attend.attention(q, k, v, mask=mask_of(**options), return_lse=True, **scores)
    got = attend.attention_backward(dout, q, k, v, out, lse, mask=mask_of(**options), **scores)
    inputs = [x.double().requires_grad_() for x in (q, k, v)]
    wide = dict(options)
    for extra in ("bias", "sinks"):
        if extra in options:
            wide[extra] = options[extra].double().requires_grad_()
            inputs.append(wide[extra])
    if "slopes" in options:
        wide["slopes"] = options["slopes"].double()
    expected = torch.autograd.grad(truth(*inputs[:3], **wide)[0], inputs, dout.double())
    given = [got.dq, got.dk, got.dv] + [x for x in (got.dbias, got.dsinks) if x is not None]
    for what, a, b in zip(("dq", "dk", "dv", "the first extra", "the second extra"), given, expected):
        error = ((a.double().flatten() - b.nan_to_num().flatten()).norm() / b.nan_to_num().norm()).item()
        bound = 1e-2 if dtype == torch.bfloat16 else 2e-3
        if a is got.dsinks:  # a sum over all queries of what was rounded with `out`, in which terms cancel
            bound *= 5
        check(f"{name}: {what}", error < bound, f"relative error {error:.1e}")


def forward_cases():
    for D in (64, 128, 256):
        forward_case(f"D{D} full", 2, 4, 4, 333, 777, D)
        forward_case(f"D{D} f16 causal", 1, 4, 2, 300, 500, D, dtype=torch.float16, causal="last_key")
        forward_case(f"D{D} causal M > N", 1, 2, 2, 500, 200, D, causal="last_key")
        forward_case(f"D{D} first key", 1, 2, 2, 300, 500, D, causal="first_key")
        forward_case(f"D{D} window", 1, 2, 2, 700, 700, D, window=(100, 20))
        forward_case(f"D{D} prefix", 1, 2, 2, 400, 400, D, prefix=133)
        forward_case(f"D{D} padding", 3, 2, 2, 200, 400, D, padding=[400, 0, 130])
        forward_case(f"D{D} documents", 1, 2, 2, 700, 700, D, segments=[0, 100, 103, 103, 650], causal="last_key")
        forward_case(f"D{D} many documents", 1, 2, 2, 3000, 3000, D, segments=list(range(0, 3001, 3)))
        forward_case(f"D{D} packed heads", 2, 12, 2, 40, 300, D, causal="last_key")
        for N in (129, 700, 2048, 5000, 20000):  # one, some and all parts of the keys, and longer ones
            forward_case(f"D{D} one query, {N} keys", 2, 8, 2, 1, N, D)
        forward_case(f"D{D} one query f16", 3, 16, 2, 1, 3000, D, dtype=torch.float16)
        forward_case(f"D{D} one query, padding", 4, 8, 2, 1, 3000, D, padding=[3000, 0, 1, 2222])
        forward_case(f"D{D} one query, window and sinks", 2, 8, 2, 1, 3000, D, window=(300, 0),
                     sinks=torch.randn(8, device="cuda"))
        forward_case(f"D{D} two queries", 2, 8, 2, 2, 5000, D, causal="last_key")
        forward_case(f"D{D} eight queries", 2, 3, 3, 8, 900, D, causal="first_key")
        forward_case(f"D{D} many sequences", 40, 8, 4, 1, 1500, D)
        forward_case(f"D{D} a head for each multiprocessor", 33, 8, 4, 1, 1500, D)  # of an H200: none needs joining
        forward_case(f"D{D} few queries", 2, 8, 2, 5, 3000, D, causal="last_key")
        forward_case(f"D{D} few queries, soft cap", 2, 8, 2, 3, 2000, D, softcap=3.0, sinks=torch.randn(8, device="cuda"))
        forward_case(f"D{D} ALiBi", 1, 4, 4, 300, 300, D, slopes=torch.rand(4, device="cuda"), causal="last_key")
        forward_case(f"D{D} soft cap", 1, 2, 2, 300, 500, D, softcap=3.0, scale=0.5)
        forward_case(f"D{D} bias", 2, 2, 2, 200, 300, D, bias=torch.randn(1, 2, 200, 300, device="cuda"))
        forward_case(f"D{D} sinks", 1, 4, 4, 200, 300, D, sinks=torch.randn(4, device="cuda"), causal="first_key")
    for D, E in ((8, 8), (32, 32), (80, 80), (96, 96), (192, 128), (128, 64), (64, 256)):
        forward_case(f"D{D} E{E}", 2, 4, 2, 300, 400, D, E, causal="last_key")
        forward_case(f"D{D} E{E} one query", 2, 8, 4, 1, 1500, D, E)


def quarters(*shape, dtype):
    """Numbers whose products are exact in any order."""
    return (torch.randint(-4, 5, shape, device="cuda") / 4).to(dtype)


def held_weights(q, k, bias, scale, sinks=None):
    """The weights and the lse in float64, over scores as float32 holds them."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = ((q.double() @ k.double().transpose(-1, -2) * torch.tensor(scale).double()).float() + bias).double()
    row = s if sinks is None else torch.cat([s, sinks.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    top = row.amax(-1, keepdim=True).nan_to_num(neginf=0)
    total = torch.exp(row - top).sum(-1, keepdim=True)
    sink = 0 if sinks is None else torch.exp(row[..., -1:] - top) / total
    return torch.exp(s - top) / total.clamp(min=1e-300), (top + torch.log(total))[..., 0], sink


def masked_bias(H, M, N, mask, on):
    """`mask` on all keys of most rows, on some keys, or on those that are visited first."""
    i, j = torch.arange(M, device="cuda")[:, None], torch.arange(N, device="cuda")
    where = {None: (i < 0) & (j < 0), "whole rows": (i % 3 != 1) & (j >= 0), "some keys": (i + j) % 3 == 0,
             "the last keys": (i >= 0) & (j >= N // 3)}[on]
    return torch.zeros(1, H, M, N, device="cuda").masked_fill(where, mask)


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


def score_cases():
    """Scores that are small beside the cap, and rows that stand behind whole tiles: both have ways of their own."""
    for D in (64, 128, 256):
        for dtype in (torch.bfloat16, torch.float16):
            what = dict(dtype=dtype, slopes=torch.rand(2, device="cuda") * 0.1)
            forward_case(f"D{D} {dtype} soft cap, small scores", 1, 2, 2, 300, 500, D, dtype=dtype, softcap=30.0)
            forward_case(f"D{D} {dtype} long ALiBi", 1, 2, 2, 700, 900, D, causal="last_key", **what)
            forward_case(f"D{D} {dtype} ALiBi and soft cap", 1, 2, 2, 400, 400, D, softcap=20.0, window=(200, 90), **what)
            forward_case(f"D{D} {dtype} ALiBi, soft cap and bias", 1, 2, 2, 400, 400, D, softcap=20.0,
                         bias=torch.randn(1, 2, 400, 400, device="cuda"), **what)


def gradient_cases():
    for D in (32, 64, 96, 128, 192, 256):
        gradient_case(f"D{D} full gradients", 2, 2, 2, 333, 500, D)
        gradient_case(f"D{D} causal gradients", 1, 4, 2, 500, 500, D, causal="last_key")
        gradient_case(f"D{D} f16 gradients", 1, 2, 2, 200, 300, D, dtype=torch.float16, causal="last_key")
        gradient_case(f"D{D} window gradients", 1, 2, 2, 600, 600, D, window=(100, 0))
        gradient_case(f"D{D} documents gradients", 1, 2, 2, 500, 500, D, segments=[0, 100, 420], causal="last_key")
        gradient_case(f"D{D} ALiBi gradients", 1, 2, 2, 300, 300, D, slopes=torch.rand(2, device="cuda"), causal="last_key")
        gradient_case(f"D{D} soft cap gradients", 1, 2, 2, 200, 300, D, softcap=3.0, scale=0.5)
        gradient_case(f"D{D} bias gradients", 1, 2, 2, 200, 300, D, bias=torch.randn(1, 2, 200, 300, device="cuda"))
        gradient_case(f"D{D} sinks gradients", 1, 2, 2, 200, 300, D, sinks=torch.randn(2, device="cuda"))
        gradient_case(f"D{D} one key block", 1, 2, 1, 3, 40, D)
        gradient_case(f"D{D} unseen keys gradients", 1, 2, 2, 100, 900, D, causal="first_key")
    holes()


def holes():
    """What is hidden inside intervals: forward and gradients."""
    for D in (64, 128, 256):
        q, k, v, dout = draw(1, 4, 300, D), draw(1, 2, 500, D), draw(1, 2, 500, D), draw(1, 4, 300, D)
        shown = torch.rand(5, 10) < 0.5
        shown[:, 0] = True
        dense = shown.repeat_interleave(60, 0).repeat_interleave(50, 1).to("cuda")
        mask = attend.blocks(shown.numpy(), 60, 50)
        for what, extra in (("", {}), (" with a soft cap", {"softcap": 3.0})):
            out, lse = attend.attention(q, k, v, mask=mask, return_lse=True, **extra)
            got = attend.attention_backward(dout, q, k, v, out, lse, mask=mask, **extra)[:3]
            inputs = [x.double().requires_grad_() for x in (q, k, v)]
            expected, _, spread = truth(*inputs, dense=dense, **extra)
            near(f"D{D} blocks{what}", out, expected.detach(), spread.detach(), q.dtype)
            for name, a, b in zip(("dq", "dk", "dv"), got, torch.autograd.grad(expected, inputs, dout.double())):
                error = ((a.double() - b).norm() / b.norm()).item()
                check(f"D{D} blocks{what}: {name}", error < 1e-2, f"relative error {error:.1e}")


def drop_in_cases():
    q, k, v = draw(2, 8, 200, 64), draw(2, 2, 300, 64), draw(2, 2, 300, 64)
    dense = torch.rand(2, 8, 200, 300, device="cuda") < 0.5
    expected, _, spread = truth(q.double(), k.double(), v.double(), dense=dense)
    near("a boolean mask", attend.torch.scaled_dot_product_attention(q, k, v, dense, enable_gqa=True), expected, spread,
         q.dtype)
    expected, _, spread = truth(q.double(), k.double(), v.double(), causal="last_key")
    near("flash_attn_func", attend.flash_attn.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)),
                                                              causal=True).transpose(1, 2), expected, spread, q.dtype)
    # Dropout keeps the same weights as on the CPU.
    on_cpu = attend.attention(q.cpu().float(), k.cpu().float(), v.cpu().float(), dropout=0.3, seed=5)
    on_gpu = attend.attention(q, k, v, dropout=0.3, seed=5)
    check("dropout", ((on_gpu.cpu().float() - on_cpu).norm() / on_cpu.norm()).item() < 5e-3)
    without_statistics = [("statistics by the plain kernels", lambda: attend.attention(q, k, v, return_statistics=True))]
    for what, call in (without_statistics if plain else []) + [("memory of two devices", lambda: attend.attention(q, k.cpu(), v)),
                       ("float32", lambda: attend.attention(q.float(), k.float(), v.float())),
                       ("weights", lambda: attend.attention(q, k, v, return_weights=True)),
                       ("statistics with dropout", lambda: attend.attention(q, k, v, dropout=0.5, return_statistics=True)),
                       ("a union of masks", lambda: attend.attention(q, k, v, mask=attend.window(3, 0) | attend.prefix([2])))]:
        try:
            call()
            check(f"{what} is refused", False)
        except ValueError:
            check(f"{what} is refused", True)


def same_bits(D, repeats):
    q, k, v, dout = (draw(2, 4, 1000, D) for _ in range(4))
    mask = attend.causal()

    def run(q, k, v, dout):
        out, lse = attend.attention(q, k, v, mask=mask, return_lse=True)
        return (out, lse, *attend.attention_backward(dout, q, k, v, out, lse, mask=mask)[:3])

    first = run(q, k, v, dout)
    differ = sum(not all(torch.equal(a, b) for a, b in zip(first, run(q, k, v, dout))) for _ in range(repeats))
    check(f"D{D}: {repeats} repeats", differ == 0, f"{differ} differ")
    alone = run(*(x[1:].clone() for x in (q, k, v, dout)))
    check(f"D{D}: the same bits alone as in a batch", all(torch.equal(a[0], b[1]) for a, b in zip(alone, first)))


def same_bits_of_one_query(D, repeats):
    """Whatever is around it: other sequences, other heads."""
    q, k, v = draw(5, 8, 1, D), draw(5, 2, 3000, D), draw(5, 2, 3000, D)
    first = attend.attention(q, k, v)
    differ = sum(not torch.equal(first, attend.attention(q, k, v)) for _ in range(repeats))
    check(f"D{D} one query: {repeats} repeats", differ == 0, f"{differ} differ")
    alone = attend.attention(q[3:4, 4:].clone(), k[3:4, 1:].clone(), v[3:4, 1:].clone())
    check(f"D{D} one query: the same bits alone as in a batch", torch.equal(alone[0], first[3, 4:]))
    other = q.clone()
    other[:, ::4] *= -30
    kept = torch.arange(8, device="cuda") % 4 != 0
    check(f"D{D} one query: the same bits beside another head", torch.equal(attend.attention(other, k, v)[:, kept], first[:, kept]))


def same_bits_of_statistics(D, repeats):
    for M, N in ((700, 700), (2, 3000)):
        q, k, v = draw(3, 4, M, D), draw(3, 2, N, D), draw(3, 2, N, D)
        run = lambda *qkv: attend.attention(*qkv, mask=attend.causal(), return_statistics=True)[1]  # noqa: E731
        first = run(q, k, v)
        differ = sum(not all(map(torch.equal, first, run(q, k, v))) for _ in range(repeats))
        check(f"D{D} {M} queries' statistics: {repeats} repeats", differ == 0, f"{differ} differ")
        alone = run(q[1:2].clone(), k[1:2].clone(), v[1:2].clone())
        check(f"D{D} {M} queries' statistics: the same bits alone", all(torch.equal(a[0], b[1]) for a, b in zip(alone, first)))


class Block(torch.nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.norm, self.norm2 = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        B, L, width = x.shape
        q, k, v = (y.view(B, L, -1, self.dim).transpose(1, 2) for y in self.qkv(self.norm(x)).split(
            [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim], -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, L, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def losses(steps=20):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 512), *(Block(512, 8, 2) for _ in range(8)),
                                torch.nn.Linear(512, 256)).to("cuda", torch.bfloat16)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    result = []
    for _ in range(steps):
        tokens = torch.randint(256, (4, 513), device="cuda") // 8 * 8  # something to learn
        loss = F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        result.append(loss.item())
    return result


def training():
    theirs = losses()
    with attend.torch.patched():
        ours = losses()
    print("losses of PyTorch", " ".join(f"{x:.3f}" for x in theirs[::4]), " of attend", " ".join(f"{x:.3f}" for x in ours[::4]))
    check("20 steps of training", all(abs(a - b) < 0.02 * a for a, b in zip(theirs, ours)) and ours[-1] < ours[0])


def cover():
    forward_case("full", 1, 2, 2, 200, 200, 128)
    forward_case("D64 causal", 1, 4, 2, 130, 330, 64, causal="last_key")
    forward_case("D256 window", 1, 1, 1, 150, 150, 256, window=(40, 0))
    forward_case("few queries", 1, 8, 2, 3, 1100, 128)
    for D in (64, 128, 256):
        forward_case(f"D{D} one query", 1, 8, 2, 1, 1100, D, window=(800, 0))
    forward_case("soft cap", 1, 1, 1, 130, 140, 64, softcap=3.0)
    for D, dtype in ((64, torch.bfloat16), (128, torch.float16)):
        large_case(f"D{D} large scores", 40, 150, D, dtype, -1e9, "whole rows")
        large_case(f"D{D} large scores, few queries", 3, 1100, D, dtype, -1e9, "whole rows", H=8, Hk=2)
    if not plain:
        for D in (64, 128, 256):
            statistics_case(f"D{D} statistics", 1, 2, 1, 200, 300, D, vocabulary=5, causal="last_key")
        statistics_case("few queries statistics", 1, 8, 2, 3, 1100, 128, vocabulary=5)
        statistics_case("soft cap statistics", 1, 1, 1, 130, 140, 128, softcap=3.0)
    gradient_case("gradients", 1, 2, 1, 130, 130, 128, causal="last_key")
    gradient_case("gradients of terms", 1, 1, 1, 100, 150, 64, softcap=3.0)
    gradient_case("D64 gradients", 1, 1, 1, 150, 130, 64)
    gradient_case("D256 gradients", 1, 1, 1, 100, 150, 256)
    if plain:
        for D in (64, 128, 256):
            forward_case(f"D{D} terms", 1, 2, 1, 130, 140, D, softcap=3.0, slopes=torch.rand(2, device="cuda"), causal="last_key")
            gradient_case(f"D{D} gradients of terms", 1, 2, 1, 100, 150, D, softcap=3.0,
                          bias=torch.randn(1, 2, 100, 150, device="cuda"))


if __name__ == "__main__":
    torch.manual_seed(1)
    if "--cover" in sys.argv:
        cover()
    else:
        forward_cases()
        if not plain:
            statistics_cases()
        gradient_cases()
        drop_in_cases()
        for D, repeats in ((128, 1000), (64, 200), (256, 200)):
            same_bits(D, repeats)
            same_bits_of_one_query(D, repeats)
            if not plain:
                same_bits_of_statistics(D, repeats // 10)
        training()
        score_cases()
        large_cases()
        soft_caps()
    kernels = "plain" if plain else "Hopper's"
    print(f"{count} checks on {torch.cuda.get_device_name()}, {kernels} kernels, {len(failures)} failed")
    sys.exit(bool(failures))
