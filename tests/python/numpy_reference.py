"""The operations of attend written down plainly in NumPy and float64: what the tests compare with."""

import math

import numpy as np


def scores_of(q, k, scale=None, softcap=0.0, bias=None, slopes=None, position=None):
    """[B, H, M, N] scores and what backward needs of the soft cap (its derivative)."""
    D, group = q.shape[3], q.shape[1] // k.shape[1]
    s = (1 / math.sqrt(D) if scale is None else scale) * (q @ np.repeat(k, group, axis=1).swapaxes(2, 3))
    slope_of_cap = np.ones_like(s)
    if softcap:
        t = np.tanh(s / softcap)
        s, slope_of_cap = softcap * t, 1 - t * t
    if bias is not None:
        s = s + bias
    if slopes is not None:
        M, N = s.shape[2:]
        p = np.arange(M)[:, None] + (N - M if position is None else position)
        slopes = np.asarray(slopes, np.float64)
        slopes = slopes[None] if slopes.ndim == 1 else slopes
        s = s - slopes[:, :, None, None] * np.abs(p - np.arange(N)[None, :])
    return s, slope_of_cap


def attention(q, k, v, visible=None, sinks=None, **options):
    """Output, log-sum-exp and weights; rows that see nothing give zeros, -inf and zeros."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s, _ = scores_of(q, k, **options)
    if visible is not None:
        s = np.where(visible, s, -np.inf)
    logits = s
    if sinks is not None:
        column = np.broadcast_to(np.asarray(sinks, np.float64)[None, :, None, None], s.shape[:3] + (1,))
        logits = np.concatenate([s, column], axis=3)
    with np.errstate(invalid="ignore", divide="ignore"):
        top = np.max(logits, axis=3, keepdims=True, initial=-np.inf)
        lse = np.where(top == -np.inf, -np.inf, top + np.log(np.sum(np.exp(logits - top), axis=3, keepdims=True)))
        weights = np.where(s == -np.inf, 0.0, np.exp(s - lse))
    out = weights @ np.repeat(v, q.shape[1] // v.shape[1], axis=1)
    return out, lse[..., 0], weights


def attention_backward(dout, q, k, v, visible=None, sinks=None, kept=None, **options):
    """dq, dk, dv, the gradient of every score [B, H, M, N], dsinks; `kept` is dropout's factor of each weight."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q, k, v, dout))
    B, H, M, D = q.shape
    Hk, group = k.shape[1], H // k.shape[1]
    _, lse, weights = attention(q, k, v, visible, sinks, **options)
    _, slope_of_cap = scores_of(q, k, **options)
    kept = np.ones_like(weights) if kept is None else kept
    dweights = (dout @ np.repeat(v, group, axis=1).swapaxes(2, 3)) * kept
    mean = np.sum(weights * dweights, axis=3, keepdims=True)
    ds = weights * (dweights - mean)
    scale = options.get("scale")
    draw = ds * slope_of_cap * (1 / math.sqrt(D) if scale is None else scale)
    per_kv_head = lambda x: x.reshape(B, Hk, group, *x.shape[2:]).sum(2)  # noqa: E731
    dq = draw @ np.repeat(k, group, axis=1)
    dk = per_kv_head(draw.swapaxes(2, 3) @ q)
    dv = per_kv_head((weights * kept).swapaxes(2, 3) @ dout)
    dsinks = None
    if sinks is not None:
        with np.errstate(invalid="ignore"):
            sink_weight = np.exp(np.asarray(sinks, np.float64)[None, :, None] - lse)
        dsinks = -(sink_weight * mean[..., 0]).sum((0, 2))
    return dq, dk, dv, ds, dsinks


def reduced(gradient, shape):
    """A gradient of broadcast scores summed to the shape that was broadcast."""
    shape = (1,) * (4 - len(shape)) + tuple(shape)
    axes = tuple(d for d in range(4) if shape[d] == 1)
    return gradient.sum(axes, keepdims=True)


def rope(x, positions, theta=10000.0, rotary_dim=0, style="half_split", backward=False):
    x = np.asarray(x, np.float64)
    R = rotary_dim or x.shape[3]
    angle = np.asarray(positions, np.float64)[:, None] * theta ** (-2.0 * np.arange(R // 2) / R)
    c, s = np.cos(angle), np.sin(angle) * (-1 if backward else 1)
    y = x.copy()
    first, second = (slice(0, R // 2), slice(R // 2, R)) if style == "half_split" else (slice(0, R, 2), slice(1, R, 2))
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * c - b * s, a * s + b * c
    return y


def softmax(x):
    x = np.asarray(x, np.float64)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1.0, total)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer(parameters, x, context=None, *, heads, kv_heads, rope_style=None, rope_theta=10000.0, norm_eps=1e-6,
          visible=None, **options):
    """MultiHeadAttention; returns the output and the weights."""
    p = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    x = np.asarray(x, np.float64)
    source = x if context is None else np.asarray(context, np.float64)
    B, M, _ = x.shape
    N = source.shape[1]
    split = lambda y, n: y.reshape(B, y.shape[1], n, -1).swapaxes(1, 2)  # noqa: E731
    q = split(x @ p["wq"].T + p.get("bq", 0), heads)
    k = split(source @ p["wk"].T + p.get("bk", 0), kv_heads)
    down = source @ p["wv_down"].T if "wv_down" in p else source
    v = split(down @ p["wv"].T + p.get("bv", 0), kv_heads)
    if "q_norm" in p:
        q, k = rms_norm(q, p["q_norm"], norm_eps), rms_norm(k, p["k_norm"], norm_eps)
    if rope_style:
        q = rope(q, np.arange(M), rope_theta, style=rope_style)
        k = rope(k, np.arange(N), rope_theta, style=rope_style)
    out, _, weights = attention(q, k, v, visible, **options)
    return out.swapaxes(1, 2).reshape(B, M, -1) @ p["wo"].T + p.get("bo", 0), weights
