import numpy as np


def softmax(x):
    top = x.max(axis=-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(x - top)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return (weights @ v).astype(q.dtype)


def multi_head_attention(x, wq, wk, wv, wo, heads):
    batch, length, width = x.shape
    dim = width // heads

    def split(y):
        return y.reshape(batch, length, heads, dim).transpose(0, 2, 1, 3)

    q, k, v = split(x @ wq.T), split(x @ wk.T), split(x @ wv.T)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(dim, dtype=x.dtype)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    return out @ wo.T


def repeat_kv(k, groups):
    return np.repeat(k, groups, axis=1)


def rope(x, positions, theta=10000.0):
    d = x.shape[-1]
    speed = theta ** (-2.0 * np.arange(d // 2) / d)
    angle = positions[:, None] * speed
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * c - b * s, a * s + b * c], axis=-1).astype(x.dtype)


def causal_mask(m, n):
    return np.arange(n)[None, :] <= np.arange(m)[:, None] + n - m


class KVCache:
    def __init__(self):
        self.keys = self.values = None

    def step(self, q, k, v, position, rope):
        count = q.shape[2]
        places = np.arange(position, position + count)
        q, k = rope(q, places), rope(k, places)
        self.keys = k if self.keys is None else np.concatenate([self.keys, k], axis=2)
        self.values = v if self.values is None else np.concatenate([self.values, v], axis=2)
        scores = q @ self.keys.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
        seen = np.arange(self.keys.shape[2])[None, :] <= places[:, None]
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return (weights @ self.values).astype(q.dtype)
