import numpy as np


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()
