import numpy as np


class KVCache:
    def __init__(self):
        self.keys = self.values = None

    def step(self, q, k, v, position, rope):
        count = q.shape[2]
        places = np.arange(position, position + count)
        q = rope(q, places)
        self.keys = k if self.keys is None else np.concatenate([self.keys, k], axis=2)
        self.keys = rope(self.keys, np.arange(self.keys.shape[2]))
        self.values = v if self.values is None else np.concatenate([self.values, v], axis=2)
        scores = q @ self.keys.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
        seen = np.arange(self.keys.shape[2])[None, :] <= places[:, None]
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return (weights @ self.values).astype(q.dtype)
