import numpy as np


def causal_mask(m, n):
    return np.triu(np.ones((m, n), dtype=bool), k=n - m)
