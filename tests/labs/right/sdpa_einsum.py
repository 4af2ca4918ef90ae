import numpy as np


def scaled_dot_product_attention(q, k, v, mask=None):
    scores = np.einsum("bhmd,bhnd->bhmn", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + np.where(mask, 0.0, -np.inf)
    top = np.nan_to_num(np.max(scores, axis=-1, keepdims=True), neginf=0.0)
    e = np.exp(scores - top)
    total = np.sum(e, axis=-1, keepdims=True)
    weights = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    return np.einsum("bhmn,bhne->bhme", weights, v).astype(np.float32)
