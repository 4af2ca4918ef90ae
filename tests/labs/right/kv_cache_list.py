import numpy as np


class KVCache:
    """Token by token, in lists."""

    def __init__(self):
        self.tokens = []

    def step(self, q, k, v, position, rope):
        out = []
        for t in range(q.shape[2]):
            place = np.array([position + t])
            self.tokens.append((rope(k[:, :, t : t + 1], place), v[:, :, t : t + 1]))
            keys = np.concatenate([one for one, _ in self.tokens], axis=2)
            values = np.concatenate([one for _, one in self.tokens], axis=2)
            scores = rope(q[:, :, t : t + 1], place) @ keys.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out.append(weights / weights.sum(-1, keepdims=True) @ values)
        return np.concatenate(out, axis=2).astype(np.float32)
