"""Linformer against the paper's formula in PyTorch: einsum, softmax, autograd."""

import math

import numpy as np
import torch

import attend

H, D, RANK = 8, 64, 256


class Case:
    def __init__(self, length):
        rng = np.random.default_rng(1)
        self.q, self.k, self.v, self.dout = (rng.standard_normal((1, H, length, D), np.float32) for _ in range(4))
        self.e, self.f = (rng.standard_normal((RANK, length), np.float32) / math.sqrt(length) for _ in range(2))
        self.inputs = [torch.from_numpy(x).requires_grad_() for x in (self.q, self.k, self.v, self.e, self.f)]

    def torch_step(self):
        q, k, v, e, f = self.inputs
        for x in self.inputs:
            x.grad = None
        keys = torch.einsum("rn,bhnd->bhrd", e, k)
        values = torch.einsum("rn,bhnd->bhrd", f, v)
        scores = torch.einsum("bhmd,bhrd->bhmr", q, keys) / math.sqrt(D)
        out = torch.einsum("bhmr,bhrd->bhmd", scores.softmax(-1), values)
        out.backward(torch.from_numpy(self.dout))
        return [out.detach()] + [x.grad for x in self.inputs]

    def attend_step(self):
        arguments = self.q, self.k, self.v, self.e, self.f
        out, lse, projected = attend.linformer(*arguments, return_lse=True, return_projected=True)
        return [out, *attend.linformer_backward(self.dout, *arguments, out, lse, projected=projected)]

    def check(self):
        worst = 0.0
        for wanted, got in zip(self.torch_step(), self.attend_step()):
            wanted = wanted.numpy()
            difference = float(np.abs(wanted - got).max() / max(1.0, np.abs(wanted).max()))
            worst = max(worst, difference)
        assert worst < 1e-4, worst
        return worst


MAKES = {"Linformer, rank 256": Case}
LAWS = {"Linformer, rank 256": "L"}
# Two projections and two products of attention forward, twice as many backward, and the scores once more.
WORK = {"Linformer, rank 256": lambda n: 2 * H * RANK * D * n * (4 + 8 + 1)}
