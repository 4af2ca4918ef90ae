"""What the tests on a GPU share: attention in float64 by PyTorch's arithmetic, the bounds, and how a test runs.

Options of every test: --plain: the kernels for cards other than Hopper's, whatever this one is; --cover: a few small calls
of every kernel, for compute-sanitizer
"""

import math
import os
import sys

if "--plain" in sys.argv:
    os.environ["ATTEND_CUDA_KERNELS"] = "plain"

import torch

import attend

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


def forward_case(name, B, H, Hk, M, N, D, E=None, dtype=torch.bfloat16, **options):
    q, k, v = draw(B, H, M, D, dtype=dtype), draw(B, Hk, N, D, dtype=dtype), draw(B, Hk, N, E or D, dtype=dtype)
    scores, wide = options_of(options)
    out, lse = attend.attention(q, k, v, mask=mask_of(**options), return_lse=True, **scores)
    expected, expected_lse, spread = truth(q.double(), k.double(), v.double(), **wide)
    near(name, out, expected, spread, dtype)
    finite = torch.isfinite(expected_lse)
    check(f"{name}: lse", torch.equal(finite, torch.isfinite(lse))
          and bool(((lse.double() - expected_lse)[finite].abs() <= 1e-3).all()))


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


def finish():
    kernels = "plain" if plain else "Hopper's"
    print(f"{count} checks on {torch.cuda.get_device_name()}, {kernels} kernels, {len(failures)} failed")
    sys.exit(bool(failures))


def run(tests, cover):
    torch.manual_seed(1)
    cover() if "--cover" in sys.argv else tests()
    finish()
