import numpy as np


def multi_head_attention(x, wq, wk, wv, wo, heads):
    dim = x.shape[-1] // heads
    out = np.zeros_like(x)
    for h in range(heads):
        part = slice(h * dim, (h + 1) * dim)
        q, k, v = x @ wq[part].T, x @ wk[part].T, x @ wv[part].T
        s = np.matmul(q, np.transpose(k, (0, 2, 1))) / dim**0.5
        w = np.exp(s - s.max(-1, keepdims=True))
        w /= w.sum(-1, keepdims=True)
        out += (w @ v @ wo[:, part].T).astype(x.dtype)
    return out
