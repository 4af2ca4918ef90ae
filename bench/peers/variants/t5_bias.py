"""Attention with T5's relative bias: the bias made dense from its table in PyTorch, by distance here."""

import math

import numpy as np
import torch

import attend

HEADS, DIM, BUCKETS, FURTHEST = 8, 64, 32, 128


def _buckets(distance):
    """Of T5, both ways."""
    half, exact = BUCKETS // 2, BUCKETS // 4
    away = distance.abs()
    grown = exact + (torch.log(away.float() / exact) / math.log(FURTHEST / exact) * (half - exact)).long()
    return (distance > 0).long() * half + torch.where(away < exact, away, grown.clamp(max=half - 1))


class Case:
    def __init__(self, length):
        g = np.random.default_rng(1)
        self.q, self.k, self.v, self.dout = (g.standard_normal((1, HEADS, length, DIM), np.float32) for _ in range(4))
        self.table = g.standard_normal((BUCKETS, HEADS), np.float32)

    def torch_step(self):
        q, k, v, table = (torch.from_numpy(x).requires_grad_() for x in (self.q, self.k, self.v, self.table))
        at = torch.arange(q.shape[2])
        bias = table[_buckets(at[None] - at[:, None])].permute(2, 0, 1)[None]
        out = (q @ k.transpose(-1, -2) / math.sqrt(DIM) + bias).softmax(-1) @ v
        return [out.detach().numpy()] + [g.numpy() for g in torch.autograd.grad(out, [q, k, v, table],
                                                                               torch.from_numpy(self.dout))]

    def attend_step(self):
        q, k, v, L = self.q, self.k, self.v, self.q.shape[2]
        bias = attend.t5_bias(self.table, L, L)
        out, lse = attend.attention(q, k, v, distance_bias=bias, return_lse=True)
        dq, dk, dv, dbias, _ = attend.attention_backward(self.dout, q, k, v, out, lse, distance_bias=bias)
        return [out, dq, dk, dv, attend.t5_bias_backward(dbias, L, L)]

    def check(self):
        worst = 0.0
        for ours, theirs in zip(self.attend_step(), self.torch_step()):
            worst = max(worst, float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
        assert worst < 1e-4, worst
        return worst


MAKES = {"T5's relative bias": Case}
LAWS = {"T5's relative bias": "L^2"}
WORK = {"T5's relative bias": lambda n: 2 * HEADS * DIM * n * n * (2 + 5)}  # backward makes the scores once more
