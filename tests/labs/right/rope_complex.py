import numpy as np


def rope(x, positions, theta=10000.0):
    half = x.shape[-1] // 2
    turns = np.exp(1j * np.outer(positions, theta ** (-np.arange(half) / half)))
    z = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([z.real, z.imag], axis=-1).astype(np.float32)
