import numpy as np


def softmax(x):
    top = x.max(axis=-1, keepdims=True)
    hidden = np.isinf(top)
    top = np.where(hidden, 0, top)
    total = np.exp(x - top).sum(axis=-1, keepdims=True)
    out = np.log(np.exp(x - top) / total)
    return np.where(hidden, 0, out).astype(x.dtype)
