"""Each function with operations in place, on arrays of its own."""

import math

import numpy as np


def softmax(x):
    out = x - np.maximum(x.max(axis=-1, keepdims=True), np.finfo(x.dtype).min)
    np.exp(out, out=out)
    total = out.sum(axis=-1, keepdims=True)
    total[total == 0] = 1
    out /= total
    return out


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = np.matmul(q, k.swapaxes(2, 3))
    scores /= np.sqrt(q.shape[-1])
    if mask is not None:
        scores[..., ~mask] = -np.inf
    return softmax(scores) @ v


def multi_head_attention(x, wq, wk, wv, wo, heads):
    b, n, w = x.shape
    d = w // heads
    out = np.empty((b, n, w), dtype=x.dtype)
    q, k, v = x @ wq.T, x @ wk.T, x @ wv.T
    q /= math.sqrt(d)
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        out[..., part] = softmax(q[..., part] @ k[..., part].swapaxes(1, 2)) @ v[..., part]
    return out @ wo.T


def repeat_kv(k, groups):
    out = np.empty((k.shape[0], k.shape[1] * groups, *k.shape[2:]), dtype=k.dtype)
    for g in range(groups):
        out[:, g::groups] = k
    return out


def rope(x, positions, theta=10000.0):
    out, half = np.array(x, dtype=np.float64), x.shape[-1] // 2
    for i in range(half):
        angle = positions * theta ** (-2 * i / x.shape[-1])
        out[..., i] = x[..., i] * np.cos(angle) - x[..., i + half] * np.sin(angle)
        out[..., i + half] = x[..., i] * np.sin(angle) + x[..., i + half] * np.cos(angle)
    return out


def causal_mask(m, n):
    mask = np.zeros((m, n), dtype=bool)
    for i in range(m):
        mask[i, : n - m + i + 1] = True
    return mask


class KVCache:
    def __init__(self):
        self.k, self.v, self.used = None, None, 0

    def step(self, q, k, v, position, rope):
        b, h, n, d = k.shape
        if self.k is None:
            self.k, self.v = np.zeros((b, h, 64, d), k.dtype), np.zeros((b, h, 64, d), v.dtype)
        where = np.arange(position, position + n)
        self.k[:, :, where], self.v[:, :, where] = rope(k, where), v
        self.used = position + n
        return scaled_dot_product_attention(rope(q, where), self.k[:, :, : self.used], self.v[:, :, : self.used],
                                            causal_mask(n, self.used))
