import numpy as np


def softmax(z):
    z = z - np.nan_to_num(z.max(axis=-1, keepdims=True), neginf=0.0)
    e = np.e ** z
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 1.0 / e.sum(axis=-1, keepdims=True)
    return e * np.where(np.isinf(scale), np.float64(0.0), scale)
