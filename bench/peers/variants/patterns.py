"""Sparse patterns: attention with the mask as a dense boolean matrix, made once, as a person would write it in PyTorch."""

from __future__ import annotations

import math

import numpy as np

B, H, D = 1, 8, 64
GLOBAL = tuple(range(16))


def rows(length):
    return np.arange(length)[:, None], np.arange(length)[None, :]


def listed(length):
    return np.isin(np.arange(length), GLOBAL)


def window(length):
    i, j = rows(length)
    return (j <= i) & (i - j < 512)


def streaming(length):
    i, j = rows(length)
    return (j <= i) & ((j < 4) | (i - j < 1024))


def longformer(length, dilation=1):
    i, j = rows(length)
    near = (abs(i - j) <= 256 * dilation) & ((i - j) % dilation == 0)
    return near | listed(length)[None, :] | listed(length)[:, None]


def strided(length):
    i, j = rows(length)
    stride = math.isqrt(length)
    return (j <= i) & ((i - j <= stride) | ((i - j) % stride == 0))


def fixed(length):
    i, j = rows(length)
    block = math.isqrt(length)
    return (j <= i) & ((i // block == j // block) | (j % block >= block - 8))


def of_blocks(length, mask, block):
    """A random layout of blocks is asked of the mask itself: the values are the weights."""
    import attend

    n = -(-length // block)
    eye = np.eye(n, dtype=np.float32).repeat(block, 0)[:length][None, None]
    q = np.ones((1, 1, length, 1), np.float32)
    seen = attend.attention(q, q, eye, mask=mask)[0, 0] > 0
    return seen.repeat(block, 1)[:, :length]


class Case:
    def __init__(self, length, mask, visible):
        """`visible` makes the dense matrix, which only PyTorch needs: long problems can do without."""
        rng = np.random.default_rng(0)
        self.length, self.mask, self.visible = length, mask, visible
        self.arrays = [rng.standard_normal((B, H, length, D), dtype=np.float32) for _ in range(4)]
        self.torch_inputs = None

    def torch_step(self):
        import torch

        if self.torch_inputs is None:
            q, k, v, dout = (torch.from_numpy(x.copy()) for x in self.arrays)
            hidden = torch.from_numpy(~self.visible())
            self.torch_inputs = q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dout, hidden
        q, k, v, dout, hidden = self.torch_inputs
        for x in (q, k, v):
            x.grad = None
        scores = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(hidden, float("-inf"))
        out = torch.softmax(scores, -1) @ v
        out.backward(dout)
        return [x.detach().numpy() for x in (out, q.grad, k.grad, v.grad)]

    def attend_step(self):
        import attend

        q, k, v, dout = self.arrays
        out, lse = attend.attention(q, k, v, mask=self.mask, return_lse=True)
        grads = attend.attention_backward(dout, q, k, v, out, lse, mask=self.mask)
        return [out, grads.dq, grads.dk, grads.dv]

    def check(self):
        worst = max(float(abs(a - b).max()) for a, b in zip(self.torch_step(), self.attend_step()))
        assert worst < 2e-4, worst
        return worst


def make_window(length):
    import attend

    return Case(length, attend.window(511, 0), lambda: window(length))


def make_streaming(length):
    import attend

    return Case(length, attend.streaming(4, 1024), lambda: streaming(length))


def make_longformer(length):
    import attend

    return Case(length, attend.longformer(256, global_positions=GLOBAL), lambda: longformer(length))


def make_dilated(length):
    import attend

    return Case(length, attend.longformer(256, 2, GLOBAL), lambda: longformer(length, 2))


def make_bigbird(length):
    import attend

    mask = attend.bigbird(length)
    return Case(length, mask, lambda: of_blocks(length, mask, 64))


def make_permutation(length):
    import attend

    mask = attend.block_permutation(length, blocks=8, seed=1)
    return Case(length, mask, lambda: of_blocks(length, mask, -(-length // 8)))


def make_strided(length):
    import attend

    return Case(length, attend.strided(math.isqrt(length)), lambda: strided(length))


def make_fixed(length):
    import attend

    return Case(length, attend.fixed(math.isqrt(length), 8), lambda: fixed(length))


MAKES = {
    "window of 512": make_window,
    "sinks and window (StreamingLLM)": make_streaming,
    "Longformer": make_longformer,
    "Longformer, dilated": make_dilated,
    "BigBird": make_bigbird,
    "block permutation (BlockBERT)": make_permutation,
    "strided (Sparse Transformer)": make_strided,
    "fixed (Sparse Transformer)": make_fixed,
}
LAWS = {
    "window of 512": "L",
    "sinks and window (StreamingLLM)": "L",
    "Longformer": "L",
    "Longformer, dilated": "L",
    "BigBird": "L",
    "block permutation (BlockBERT)": "L^2",
    "strided (Sparse Transformer)": "L^1.5",
    "fixed (Sparse Transformer)": "L^1.5",
}
