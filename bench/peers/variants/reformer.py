"""Reformer's attention against plain PyTorch: hash, sort, gather, attention over chunks, merge; all vectorised."""

import math

import numpy as np
import torch

import attend

H, D, CHUNK, ROUNDS = 8, 64, 64, 4


class Case:
    causal = True

    def __init__(self, length):
        rng = np.random.default_rng(1)
        self.q, self.v, self.dout = (rng.standard_normal((1, H, length, D), np.float32) for _ in range(3))
        self.factors = attend.reformer_factors(length, chunk=CHUNK)
        self.rotations = torch.from_numpy(attend.reformer_rotations(H, length, D, rounds=ROUNDS, chunk=CHUNK))
        self.inputs = [torch.from_numpy(x).requires_grad_() for x in (self.q, self.v)]
        self.given = None  # hashes to use instead of one's own: two largest products may be equal but for rounding

    @torch.no_grad()
    def hashes(self, q):
        if self.given is not None:
            return self.given
        y = torch.einsum("bhld,rhcd->rbhlc", q, self.rotations)
        result, first, unit = 0, 0, 1
        for factor in self.factors:
            part = y[..., first:first + factor // 2]
            result = result + unit * torch.cat([part, -part], -1).argmax(-1)
            first, unit = first + factor // 2, unit * factor
        return result  # [rounds, B, H, L]

    def attention(self, q, v):
        B, _, L, E = v.shape
        hashes = self.hashes(q)
        position = torch.arange(L)
        order = (hashes * L + position).argsort(-1)
        rank = order.argsort(-1)
        k = torch.nn.functional.normalize(q, dim=-1)
        take = lambda x: x.expand(ROUNDS, *x.shape).gather(3, order[..., None].expand(*order.shape, x.shape[-1]))  # noqa: E731
        chunks = lambda x: x.unflatten(3, (L // CHUNK, CHUNK))  # noqa: E731
        nothing = lambda x: torch.full_like(x[:, :, :, :1], -1)  # noqa: E731
        back = lambda x, first: torch.cat([torch.cat([first(x), x[:, :, :, :-1]], 3), x], 4)  # noqa: E731
        bucket, place = chunks(hashes.gather(3, order)), chunks(order)
        sq, sk, sv = chunks(take(q)), back(chunks(take(k)), nothing), back(chunks(take(v)), nothing)
        bucket_k, place_k = back(bucket, nothing), back(place, nothing)
        scores = sq @ sk.transpose(-1, -2) / math.sqrt(D)
        seen = bucket[..., :, None] == bucket_k[..., None, :]
        seen &= place[..., :, None] > place_k[..., None, :] if self.causal else place[..., :, None] != place_k[..., None, :]
        scores = scores.masked_fill(~seen, -1e30)
        lse = scores.logsumexp(-1, keepdim=True)
        out = (scores - lse).exp() @ sv
        home = lambda x: x.flatten(3, 4).gather(3, rank[..., None].expand(*rank.shape, x.shape[-1]))  # noqa: E731
        out, lse = home(out), home(lse)
        met = (lse > -1e29).any(0)
        total = torch.where(met, (out * (lse - lse.logsumexp(0)).exp()).sum(0), v)
        return total

    def torch_step(self):
        q, v = self.inputs
        for x in self.inputs:
            x.grad = None
        out = self.attention(q, v)
        out.backward(torch.from_numpy(self.dout))
        return [out.detach()] + [x.grad for x in self.inputs]

    def attend_step(self):
        options = dict(rounds=ROUNDS, chunk=CHUNK, causal=self.causal)
        out, lse = attend.reformer(self.q, self.v, return_lse=True, **options)
        return [out, *attend.reformer_backward(self.dout, self.q, self.v, out, lse, **options)]

    def check(self):
        own = self.hashes(self.inputs[0]).numpy()
        given = attend.reformer_hashes(self.q, rounds=ROUNDS, chunk=CHUNK)
        assert (own != given).mean() < 1e-4
        self.given = torch.from_numpy(given).long()
        worst = 0.0
        for wanted, got in zip(self.torch_step(), self.attend_step()):
            wanted = wanted.numpy()
            difference = float(np.abs(wanted - got).max() / max(1.0, np.abs(wanted).max()))
            worst = max(worst, difference)
        self.given = None
        assert worst < 1e-3, worst
        return worst


class FullCase(Case):
    causal = False


MAKES = {"Reformer, causal, 4 rounds": Case, "Reformer, 4 rounds": FullCase}
LAWS = {"Reformer, causal, 4 rounds": "L log L", "Reformer, 4 rounds": "L log L"}
