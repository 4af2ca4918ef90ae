"""A transformer block beside the straightforward PyTorch code: linear layers, softmax(q k) v, SwiGLU, autograd."""

import numpy as np

import attend

WIDTH, HEADS, HIDDEN, BLOCK = 512, 8, 1376, 512


class Case:
    def __init__(self, length):
        import torch

        self.torch, self.length = torch, length
        self.block = attend.TransformerBlock(WIDTH, HEADS, hidden=HIDDEN).initialise(0)
        g = np.random.default_rng(0)
        self.x, self.dout = (g.standard_normal((1, length, WIDTH), np.float32) for _ in range(2))
        self.names = list(self.block.parameters)
        self.weights = {n: torch.from_numpy(w.copy()).requires_grad_() for n, w in self.block.parameters.items()}
        self.tx, self.tdout = torch.from_numpy(self.x).clone().requires_grad_(), torch.from_numpy(self.dout)
        self.hidden_keys = torch.ones(length, length, dtype=torch.bool).triu(1)

    def torch_step(self):
        torch, w, x = self.torch, self.weights, self.tx
        for t in (x, *w.values()):
            t.grad = None

        def norm(t, weight):
            return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

        def heads(t):
            return t.view(1, self.length, HEADS, -1).transpose(1, 2)

        n = norm(x, w["norm1"])
        q, k, v = (heads(n @ w[name].T) for name in ("wq", "wk", "wv"))
        s = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        p = torch.softmax(s.masked_fill(self.hidden_keys, float("-inf")), dim=-1)
        y = x + (p @ v).transpose(1, 2).reshape(1, self.length, WIDTH) @ w["wo"].T
        n = norm(y, w["norm2"])
        z = y + (torch.nn.functional.silu(n @ w["gate"].T) * (n @ w["up"].T)) @ w["down"].T
        z.backward(self.tdout)
        return [z.detach().numpy(), x.grad.numpy(), *(w[name].grad.numpy() for name in self.names)]

    def attend_step(self):
        mask = attend.causal()
        z = self.block(self.x, mask, block=BLOCK)
        g = self.block.backward(self.dout, self.x, mask, block=BLOCK)
        return [z, g.dx, *(g.parameters[name] for name in self.names)]

    def check(self):
        worst = 0.0
        for ours, theirs in zip(self.attend_step(), self.torch_step()):
            difference = float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))
            assert difference < 1e-4, difference
            worst = max(worst, difference)
        return worst


MAKES = {"transformer block, blockwise": Case}
LAWS = {"transformer block, blockwise": "L^2"}
# Of a block that keeps its activations: three products for every weight, seven of attention over half of the pairs.
WORK = {"transformer block, blockwise": lambda n: 2 * (n * n / 2 * WIDTH * 7 + 3 * n * WIDTH * (4 * WIDTH + 3 * HIDDEN))}
