import numpy as np


def causal_mask(m, n):
    seen = np.arange(n)[None, :] <= np.arange(m)[:, None] + n - m
    return np.where(seen, 0, -np.inf).astype(np.float32)
