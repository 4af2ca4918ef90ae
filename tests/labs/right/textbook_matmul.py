"""Each function as books write it: @ and np.sqrt(d), whose result NumPy 2 makes float64."""

import numpy as np


def softmax(x, axis=-1):
    top = np.max(x, axis=axis, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = np.sum(e, axis=axis, keepdims=True)
    return e / np.where(total == 0, 1, total)


def scaled_dot_product_attention(q, k, v, mask=None):
    d_k = q.shape[-1]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d_k)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


def multi_head_attention(x, wq, wk, wv, wo, heads):
    b, n, w = x.shape
    q, k, v = ((x @ m.T).reshape(b, n, heads, w // heads).transpose(0, 2, 1, 3) for m in (wq, wk, wv))
    scores = np.matmul(q, k.transpose(0, 1, 3, 2)) / np.sqrt(w // heads)
    return np.matmul(softmax(scores), v).transpose(0, 2, 1, 3).reshape(b, n, w) @ wo.T


def repeat_kv(k, groups):
    b, h, n, d = k.shape
    return np.broadcast_to(k[:, :, None], (b, h, groups, n, d)).reshape(b, h * groups, n, d)


def rope(x, positions, theta=10000.0):
    half = x.shape[-1] // 2
    angles = np.outer(positions, 1.0 / theta ** (np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    cos, sin = np.concatenate([np.cos(angles)] * 2, -1), np.concatenate([np.sin(angles)] * 2, -1)
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def causal_mask(m, n):
    return np.tril(np.ones((m, n), dtype=bool), k=n - m)


class KVCache:
    def __init__(self):
        self.k = self.v = None

    def step(self, q, k, v, position, rope):
        places = position + np.arange(q.shape[2])
        q, k = rope(q, places), rope(k, places)
        if self.k is not None:
            k, v = np.concatenate((self.k, k), 2), np.concatenate((self.v, v), 2)
        self.k, self.v = k, v
        return scaled_dot_product_attention(q, k, v, causal_mask(q.shape[2], k.shape[2]))
