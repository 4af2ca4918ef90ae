import numpy as np


def causal_mask(m, n):
    return np.tril(np.ones((m, n), dtype=bool), k=n - m)
