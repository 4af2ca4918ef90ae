import numpy as np


def softmax(x):
    top = np.max(x, axis=-1, keepdims=True)
    shift = np.where(np.isfinite(top), top, np.float64(0))
    log_sum = np.logaddexp.reduce(x - shift, axis=-1, keepdims=True)
    return np.where(np.isneginf(top), 0, np.exp(x - shift - log_sum))
