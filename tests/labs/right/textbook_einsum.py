"""Each function by einsum, with d ** -0.5 and masks that are added."""

import numpy as np


def softmax(x):
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
    e = np.nan_to_num(e, nan=0.0)
    return np.divide(e, e.sum(-1, keepdims=True), out=np.zeros_like(e), where=e.sum(-1, keepdims=True) > 0)


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        bias = np.zeros(mask.shape)
        bias[~mask] = -np.inf
        scores = scores + bias
    return np.einsum("bhqk,bhkd->bhqd", softmax(scores), v)


def multi_head_attention(x, wq, wk, wv, wo, heads):
    b, n, w = x.shape
    split = lambda m: np.einsum("bni,hdi->bhnd", x, m.reshape(heads, w // heads, w))
    scores = np.einsum("bhqd,bhkd->bhqk", split(wq), split(wk)) / np.sqrt(w / heads)
    return np.einsum("bhqk,bhkd,ohd->bqo", softmax(scores), split(wv), wo.reshape(w, heads, w // heads))


def repeat_kv(k, groups):
    return np.einsum("bhnd,g->bhgnd", k, np.ones(groups)).reshape(k.shape[0], -1, *k.shape[2:])


def rope(x, positions, theta=10000.0):
    a, b = np.split(x, 2, axis=-1)
    pairs = a.shape[-1]
    angles = np.einsum("n,i->ni", positions, np.exp(-np.log(theta) * np.arange(pairs) / pairs))
    c, s = np.cos(angles), np.sin(angles)
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def causal_mask(m, n):
    return np.greater_equal.outer(np.arange(m) + (n - m), np.arange(n))


class KVCache:
    keys, values = None, None

    def step(self, q, k, v, position, rope):
        end = position + k.shape[2]
        k = rope(k, np.arange(position, end))
        self.keys = k if self.keys is None else np.append(self.keys, k, axis=2)
        self.values = v if self.values is None else np.append(self.values, v, axis=2)
        scores = np.einsum("bhqd,bhkd->bhqk", rope(q, np.arange(position, end)), self.keys) / np.sqrt(q.shape[-1])
        scores += np.where(np.arange(end) <= np.arange(position, end)[:, None], 0, -np.inf)
        return np.einsum("bhqk,bhkd->bhqd", softmax(scores), self.values)
