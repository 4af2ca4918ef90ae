import math

import numpy as np


def softmax(x):
    rows = x.reshape(-1, x.shape[-1])
    out = np.zeros_like(rows)
    for r, row in enumerate(rows):
        top = max(row)
        if top == -math.inf:
            continue
        e = [math.exp(v - top) for v in row]
        out[r] = [v / sum(e) for v in e]
    return out.reshape(x.shape)
