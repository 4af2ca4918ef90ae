import numpy as np


def softmax(x):
    e = np.exp(x)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)
