import numpy as np


def softmax(x):
    top = x.max(axis=-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(x - top)
    return e
