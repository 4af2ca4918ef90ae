import numpy as np


def multi_head_attention(x, wq, wk, wv, wo, heads):
    batch, length, width = x.shape
    dim = width // heads

    def split(y):
        return y.reshape(batch, length, dim, heads).transpose(0, 3, 1, 2)

    q, k, v = split(x @ wq.T), split(x @ wk.T), split(x @ wv.T)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(dim, dtype=x.dtype)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    out = (weights @ v).transpose(0, 2, 3, 1).reshape(batch, length, width)
    return out @ wo.T
