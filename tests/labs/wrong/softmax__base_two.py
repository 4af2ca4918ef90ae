import numpy as np


def softmax(x):
    top = x.max(axis=-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp2(x - top)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)
