"""Writes the golden files: attention and its gradients by plain Python loops over doubles, exactly summed.

    python make_golden.py

It shares nothing with the engine or with the other tests, apart from the formulas.
"""

import math
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent

# name: (seed, [B, H, Hk, M, N, D, E], rule, options)
CASES = {
    "full": (1, (2, 2, 2, 5, 7, 6, 6), "full", {}),
    "causal_gqa": (2, (1, 4, 2, 9, 9, 8, 8), "causal", {}),
    "decode": (3, (2, 4, 1, 1, 70, 16, 16), "causal", {}),
    "window_softcap": (4, (1, 2, 1, 12, 12, 5, 3), "window", {"softcap": 1.25, "scale": 0.75}),
    "padding_sinks": (5, (3, 2, 2, 4, 6, 4, 4), "padding", {"sinks": True}),
    "bias_alibi": (6, (1, 3, 3, 6, 8, 4, 7), "causal", {"bias": True, "alibi": True}),
}
LENGTHS, WINDOW = (6, 3, 0), 3


def inputs(seed, name, shape):
    """Numbers in [-2, 2) on a grid of 1/32, so that every dtype holds them exactly; the same everywhere, forever."""
    count = math.prod(shape)
    values = []
    for i in range(count):
        x = (i * 0x9E3779B97F4A7C15 + seed * 0xBF58476D1CE4E5B9 + sum(map(ord, name)) * 0x94D049BB133111EB) % 2**64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        values.append(((x >> 40) % 128 - 64) / 32)
    return np.array(values, np.float64).reshape(shape)


def case_inputs(name):
    seed, (B, H, Hk, M, N, D, E), rule, options = CASES[name]
    arrays = {
        "q": inputs(seed, "q", (B, H, M, D)), "k": inputs(seed, "k", (B, Hk, N, D)),
        "v": inputs(seed, "v", (B, Hk, N, E)), "dout": inputs(seed, "dout", (B, H, M, E)),
    }
    if options.get("sinks"):
        arrays["sinks"] = inputs(seed, "sinks", (H,))
    if options.get("bias"):
        arrays["bias"] = inputs(seed, "bias", (1, H, 1, N))
    if options.get("alibi"):
        arrays["alibi_slopes"] = np.array([2.0 ** -(h + 1) for h in range(H)])
    return rule, {key: options[key] for key in ("softcap", "scale") if key in options}, arrays


def is_visible(rule, b, i, j, M, N):
    p = i + N - M
    if rule == "causal":
        return j <= p
    if rule == "window":
        return p - WINDOW <= j <= p
    if rule == "padding":
        return j < LENGTHS[b]
    return True


def compute(name):
    rule, options, a = case_inputs(name)
    q, k, v, dout = a["q"], a["k"], a["v"], a["dout"]
    (B, H, M, D), (_, Hk, N, E) = q.shape, v.shape
    scale, cap = options.get("scale", 1 / math.sqrt(D)), options.get("softcap", 0.0)
    result = {key: np.zeros(shape) for key, shape in {
        "out": (B, H, M, E), "lse": (B, H, M), "weights": (B, H, M, N), "dq": q.shape, "dk": k.shape, "dv": v.shape,
        "dbias": (1, H, 1, N), "dsinks": (H,)}.items()}
    for b in range(B):
        for h in range(H):
            g = h // (H // Hk)
            for i in range(M):
                row(result, a, rule, b, h, g, i, scale, cap)
    if "bias" not in a:
        del result["dbias"]
    if "sinks" not in a:
        del result["dsinks"]
    return result


def row(result, a, rule, b, h, g, i, scale, cap):
    """One row, forward and backward; adds to the gradients."""
    q, k, v, dout = a["q"][b, h, i], a["k"][b, g], a["v"][b, g], a["dout"][b, h, i]
    M, N = a["q"].shape[2], k.shape[0]
    keys = [j for j in range(N) if is_visible(rule, b, i, j, M, N)]
    score, slope = {}, {}
    for j in keys:
        s = scale * math.fsum(x * y for x, y in zip(q, k[j]))
        slope[j] = 1.0
        if cap:
            t = math.tanh(s / cap)
            s, slope[j] = cap * t, 1 - t * t
        if "bias" in a:
            s += a["bias"][0, h, 0, j]
        if "alibi_slopes" in a:
            s -= a["alibi_slopes"][h] * abs(i + N - M - j)
        score[j] = s
    logits = list(score.values()) + ([a["sinks"][h]] if "sinks" in a else [])
    if not logits:
        result["lse"][b, h, i] = -math.inf
        return
    top = max(logits)
    lse = top + math.log(math.fsum(math.exp(s - top) for s in logits))
    result["lse"][b, h, i] = lse
    p = {j: math.exp(score[j] - lse) for j in keys}
    for j in keys:
        result["weights"][b, h, i, j] = p[j]
    for e in range(v.shape[1]):
        result["out"][b, h, i, e] = math.fsum(p[j] * v[j, e] for j in keys)
    dp = {j: math.fsum(x * y for x, y in zip(dout, v[j])) for j in keys}
    mean = math.fsum(p[j] * dp[j] for j in keys)
    for j in keys:
        ds = p[j] * (dp[j] - mean)
        result["dbias"][0, h, 0, j] += ds
        result["dv"][b, g, j] += p[j] * dout
        result["dq"][b, h, i] += scale * ds * slope[j] * k[j]
        result["dk"][b, g, j] += scale * ds * slope[j] * q
    if "sinks" in a:
        result["dsinks"][h] -= math.exp(a["sinks"][h] - lse) * mean


if __name__ == "__main__":
    for name in CASES:
        np.savez(FOLDER / f"{name}.npz", **compute(name))
