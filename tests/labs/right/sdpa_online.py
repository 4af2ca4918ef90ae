import numpy as np


def scaled_dot_product_attention(q, k, v, mask=None):
    # One key after the other, as Flash attention does it with tiles.
    batch, heads, m, d = q.shape
    out = np.zeros((batch, heads, m, v.shape[-1]))
    total = np.zeros((batch, heads, m))
    top = np.full((batch, heads, m), -np.inf)
    for j in range(k.shape[2]):
        s = (q * k[:, :, j : j + 1]).sum(-1) / np.sqrt(d)
        if mask is not None:
            s = np.where(mask[:, j], s, -np.inf)
        new = np.maximum(top, s)
        safe = np.where(np.isinf(new), 0, new)
        old, now = np.exp(top - safe), np.exp(s - safe)
        out = out * old[..., None] + now[..., None] * v[:, :, j : j + 1]
        total = total * old + now
        top = new
    return (out / np.where(total == 0, 1, total)[..., None]).astype(q.dtype)
