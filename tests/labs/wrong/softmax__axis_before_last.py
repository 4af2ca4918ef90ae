import numpy as np


def softmax(x):
    top = x.max(axis=-2, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(x - top)
    total = e.sum(axis=-2, keepdims=True)
    return e / np.where(total == 0, 1, total)
