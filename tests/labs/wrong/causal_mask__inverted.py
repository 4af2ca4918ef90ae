import numpy as np


def causal_mask(m, n):
    return np.arange(n)[None, :] > np.arange(m)[:, None] + n - m
