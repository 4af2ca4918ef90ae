"""attend itself, called from Python like any rival."""

from __future__ import annotations

import numpy as np

from cases import offsets
from peer import Call, Peer


def _arrays(case, xs):
    """PyTorch tensors where it is there, as its rivals get; NumPy's otherwise."""
    try:
        import torch
    except ImportError:
        if case.dtype == "f32":
            return xs
        import ml_dtypes

        return [x.astype(ml_dtypes.bfloat16) for x in xs]
    return [torch.from_numpy(x).to(torch.float32 if case.dtype == "f32" else torch.bfloat16) for x in xs]


def _numpy(x):
    return x.astype(np.float32, copy=False) if isinstance(x, np.ndarray) else x.float().numpy()


class Attend(Peer):
    name = "attend"

    def __init__(self, threads):
        super().__init__(threads)
        import attend

        attend.set_threads(threads)
        self.attend, self.version = attend, attend.__version__

    def settings(self):
        return {"kernels": self.attend.kernel_name()}

    def _mask(self, case):
        attend = self.attend
        if case.mask == "full":
            return attend.no_mask()
        if case.mask == "window":
            return attend.window(case.window - 1, 0)
        if case.mask == "packed":
            return attend.segments(offsets(case)) & attend.causal()
        return attend.causal()

    def variants(self, case, data):
        attend, mask = self.attend, self._mask(case)

        def forward():
            q, k, v = _arrays(case, [data.q, data.k, data.v])
            return Call(lambda: attend.attention(q, k, v, mask), lambda out: (_numpy(out),))

        def backward():
            q, k, v, dout = _arrays(case, [data.q, data.k, data.v, data.dout])
            out, lse = attend.attention(q, k, v, mask, return_lse=True)
            return Call(lambda: attend.attention_backward(dout, q, k, v, out, lse, mask),
                        lambda grads: tuple(_numpy(x) for x in grads[:3]))

        return {"attention": forward} if case.direction == "forward" else {"attention_backward": backward}
