"""Adaptive span against plain PyTorch: all scores, the soft mask multiplied into the softmax, rows normalised again."""

import math

import numpy as np
import torch

import attend

H, D, RAMP = 8, 64, 32.0
SPANS = np.array([32, 64, 100, 128, 200, 256, 400, 512], np.float32) + 0.5  # in tokens, whatever the length


class Case:
    def __init__(self, length):
        rng = np.random.default_rng(1)
        self.q, self.k, self.v, self.dout = (rng.standard_normal((1, H, length, D), np.float32) for _ in range(4))
        self.span = SPANS.copy()
        self.inputs = [torch.from_numpy(x).requires_grad_() for x in (self.q, self.k, self.v, self.span)]

    def torch_step(self):
        q, k, v, span = self.inputs
        for x in self.inputs:
            x.grad = None
        length = q.shape[2]
        x = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        scores = (q @ k.transpose(2, 3) / math.sqrt(D)).masked_fill(x < 0, -math.inf)
        mask = ((RAMP + span[:, None, None] - x) / RAMP).clamp(0, 1)
        weights = scores.softmax(-1) * mask
        weights = weights / weights.sum(-1, keepdim=True)
        out = weights @ v
        out.backward(torch.from_numpy(self.dout))
        return [out.detach()] + [x.grad for x in self.inputs]

    def attend_step(self):
        out, lse = attend.adaptive_span(self.q, self.k, self.v, self.span, ramp=RAMP, return_lse=True)
        return [out, *attend.adaptive_span_backward(self.dout, self.q, self.k, self.v, self.span, out, lse, ramp=RAMP)]

    def check(self):
        worst = 0.0
        for wanted, got in zip(self.torch_step(), self.attend_step()):
            wanted = wanted.numpy()
            difference = float(np.abs(wanted - got).max() / max(1.0, np.abs(wanted).max()))
            worst = max(worst, difference)
        assert worst < 1e-3, worst
        return worst


MAKES = {"adaptive span, 32 to 512 tokens": Case}
LAWS = {"adaptive span, 32 to 512 tokens": "L"}
