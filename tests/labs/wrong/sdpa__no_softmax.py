import numpy as np


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    if mask is not None:
        scores = np.where(mask, scores, 0)
    return (scores @ v).astype(q.dtype)
