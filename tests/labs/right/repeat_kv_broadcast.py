import numpy as np


def repeat_kv(k, groups):
    batch, heads, length, dim = k.shape
    wide = np.broadcast_to(k[:, :, None], (batch, heads, groups, length, dim))
    return wide.reshape(batch, heads * groups, length, dim)
