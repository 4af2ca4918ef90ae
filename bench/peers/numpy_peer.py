"""NumPy: attention as a lesson writes it, softmax(q k^T / sqrt(d)) v with all scores in memory."""

from __future__ import annotations

import numpy as np

from cases import offsets, padded, unpadded, visible
from peer import Call, Peer, Unsupported

SCORE_LIMIT = 1 << 30


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class NumPy(Peer):
    name = "NumPy"

    def __init__(self, threads):
        super().__init__(threads)
        self.version = np.__version__

    def variants(self, case, data):
        if case.dtype != "f32":
            raise Unsupported("NumPy has no bfloat16 matrix product")
        if case.score_bytes > SCORE_LIMIT:
            raise Unsupported(f"all scores together are {case.score_bytes / 2**30:.1f} GiB, the limit here is 1 GiB")
        if case.mask == "packed":
            return self._packed(case, data)
        # A group of query heads beside its one key head: the products broadcast.
        G, scale = case.group, np.float32(1 / np.sqrt(case.D))
        fold = lambda x: x.reshape(case.B, case.Hk, G, case.M, case.D)  # noqa: E731
        unfold = lambda x: x.reshape(case.B, case.H, case.M, case.D)  # noqa: E731
        q, k, v = fold(data.q), data.k[:, :, None], data.v[:, :, None]
        hidden = None if case.mask == "full" else ~visible(case)

        def weights():
            s = q @ k.swapaxes(-1, -2) * scale
            if hidden is not None:
                s[..., hidden] = -np.inf
            return softmax(s)

        def forward():
            return Call(lambda: weights() @ v, lambda out: (unfold(out),))

        def backward():
            p, dout = weights(), fold(data.dout)
            out = p @ v

            def run():
                dv = (p.swapaxes(-1, -2) @ dout).sum(axis=2)
                dp = dout @ v.swapaxes(-1, -2)
                ds = p * (dp - (dout * out).sum(axis=-1, keepdims=True)) * scale
                return ds @ k, (ds.swapaxes(-1, -2) @ q).sum(axis=2), dv

            return Call(run, lambda grads: (unfold(grads[0]), grads[1], grads[2]))

        return {"all scores in memory": forward if case.direction == "forward" else backward}

    def _packed(self, case, data):
        if case.direction == "backward":
            raise Unsupported("the lesson has no backward over packed documents")
        scale = np.float32(1 / np.sqrt(case.D))

        def one(q, k, v, hidden):
            s = q @ k.swapaxes(-1, -2) * scale
            s[..., hidden] = -np.inf
            return softmax(s) @ v

        def loop():
            starts = offsets(case)
            parts = [tuple(x[:, :, a:b] for x in (data.q, data.k, data.v)) for a, b in zip(starts, starts[1:])]
            hidden = [np.triu(np.ones((n, n), bool), 1) for n in case.lengths]
            return Call(lambda: [one(*part, h) for part, h in zip(parts, hidden)],
                        lambda outs: (np.concatenate(outs, axis=2),))

        def batch():
            q, k, v = (padded(case, x) for x in (data.q, data.k, data.v))
            hidden = np.triu(np.ones((q.shape[2], q.shape[2]), bool), 1)
            return Call(lambda: one(q, k, v, hidden), lambda out: (unpadded(case, out),))

        return {"one document at a time": loop, "padded batch": batch}
