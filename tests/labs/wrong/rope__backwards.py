import numpy as np


def rope(x, positions, theta=10000.0):
    d = x.shape[-1]
    speed = theta ** (-2.0 * np.arange(d // 2) / d)
    angle = positions[:, None] * speed
    c, s = np.cos(angle), np.sin(angle)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * c + b * s, b * c - a * s], axis=-1).astype(x.dtype)
