"""Each function in double throughout; results are returned as they are."""

import numpy as np


def softmax(x):
    x = np.asarray(x, dtype=np.float64)
    top = x.max(-1, keepdims=True)
    lse = top + np.log(np.exp(x - top).sum(-1, keepdims=True))
    return np.where(np.isneginf(top), 0.0, np.exp(x - lse))


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v.astype(np.float64)


def multi_head_attention(x, wq, wk, wv, wo, heads):
    x = np.float64(x)
    out = np.zeros_like(x)
    for q, k, v, o in zip(*(np.split(np.float64(w), heads) for w in (wq, wk, wv)), np.split(np.float64(wo), heads, axis=1)):
        scores = (x @ q.T) @ (x @ k.T).swapaxes(1, 2) / np.sqrt(len(q))
        out += softmax(scores) @ (x @ v.T) @ o.T
    return out


def repeat_kv(k, groups):
    return np.stack([k[:, h // groups] for h in range(k.shape[1] * groups)], axis=1).astype(np.float64)


def rope(x, positions, theta=10000.0):
    a, b = np.split(np.float64(x), 2, axis=-1)
    turn = np.exp(1j * np.outer(positions, float(theta) ** (-np.arange(a.shape[-1]) / a.shape[-1])))
    z = (a + 1j * b) * turn
    return np.concatenate([z.real, z.imag], axis=-1)


def causal_mask(m, n):
    return ~np.triu(np.ones((m, n), dtype=bool), n - m + 1)


class KVCache:
    def __init__(self):
        self.past = []

    def step(self, q, k, v, position, rope):
        places = np.arange(q.shape[2]) + position
        self.past.append((rope(k, places).astype(np.float64), v.astype(np.float64)))
        k, v = (np.concatenate(parts, axis=2) for parts in zip(*self.past))
        return scaled_dot_product_attention(rope(q, places), k, v, causal_mask(q.shape[2], k.shape[2]))
