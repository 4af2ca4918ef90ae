import numpy as np


def rope(x, positions, theta=10000.0):
    d = x.shape[-1]
    angle = positions[:, None] * theta ** (-2.0 * np.arange(d // 2) / d)
    c, s = np.cos(angle), np.sin(angle)
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
    out[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
    return out
