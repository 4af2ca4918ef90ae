"""Multi-head latent attention, expanded, as the module of Transformers computes it: against plain PyTorch."""

import numpy as np
import torch

import attend

WIDTH, HEADS, RANK, NOPE, ROPE, VALUE = 1024, 8, 256, 64, 32, 64
NAMES = ("wq", "wkv_down", "kv_norm", "wkv_up", "wo")


def _norm(x, weight):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _turn(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class Case:
    def __init__(self, length):
        g = np.random.default_rng(1)
        self.layer = attend.LatentAttention(WIDTH, HEADS, kv_rank=RANK, nope_dim=NOPE, rope_dim=ROPE,
                                            value_dim=VALUE).initialise(1)
        self.x = g.standard_normal((1, length, WIDTH), np.float32)
        self.dout = g.standard_normal((1, length, WIDTH), np.float32)
        self.weights = [torch.from_numpy(self.layer.parameters[name].copy()).requires_grad_() for name in NAMES]
        angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, ROPE, 2) / ROPE)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.hidden = torch.full((length, length), -torch.inf).triu(1)

    def torch_step(self):
        wq, wkv_down, kv_norm, wkv_up, wo = self.weights
        x = torch.from_numpy(self.x).requires_grad_()
        L = x.shape[1]
        q = (x @ wq.T).view(1, L, HEADS, NOPE + ROPE).transpose(1, 2)
        q_nope, q_rope = q.split([NOPE, ROPE], -1)
        latent, k_rope = (x @ wkv_down.T).split([RANK, ROPE], -1)
        up = (_norm(latent, kv_norm) @ wkv_up.T).view(1, L, HEADS, NOPE + VALUE).transpose(1, 2)
        k_nope, v = up.split([NOPE, VALUE], -1)
        k_rope = _turn(k_rope[:, None], self.cos, self.sin).expand(-1, HEADS, -1, -1)
        query = torch.cat([q_nope, _turn(q_rope, self.cos, self.sin)], -1)
        key = torch.cat([k_nope, k_rope], -1)
        scores = query @ key.transpose(-1, -2) * self.layer.scale + self.hidden
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(1, L, HEADS * VALUE) @ wo.T
        gradients = torch.autograd.grad(y, [x, *self.weights], torch.from_numpy(self.dout))
        return [y.detach().numpy()] + [g.numpy() for g in gradients]

    def attend_step(self):
        y, saved = self.layer(self.x, attend.causal(), save=True)
        dx, gradients = self.layer.backward(self.dout, saved)
        return [y, dx] + [gradients[name] for name in NAMES]

    def check(self):
        worst = 0.0
        for ours, theirs in zip(self.attend_step(), self.torch_step()):
            worst = max(worst, float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
        assert worst < 1e-4, worst
        return worst


MAKES = {"latent attention (MLA), causal": Case}
LAWS = {"latent attention (MLA), causal": "L^2"}
# Five products of attention backward (the scores once more), half of the pairs; every projection has three products.
PROJECTIONS = WIDTH * (HEADS * (NOPE + ROPE) + RANK + ROPE + HEADS * VALUE) + RANK * HEADS * (NOPE + VALUE)
WORK = {"latent attention (MLA), causal": lambda n: 2 * (n * n / 2 * HEADS * (4 * (NOPE + ROPE) + 3 * VALUE)
                                                        + 3 * n * PROJECTIONS)}
