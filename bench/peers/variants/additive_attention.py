"""Additive attention beside the straightforward PyTorch code: tanh of every sum of a query and a key, then a product."""

import numpy as np

import attend

# The plain form holds L x L x D values of tanh for a head: one head of 32 dimensions, queries in chunks.
HEADS, DIM, CHUNK = 1, 32, 256


class Case:
    def __init__(self, length, causal):
        import torch

        self.torch, self.causal, self.length = torch, causal, length
        g = np.random.default_rng(0)
        shapes = dict(a=(1, HEADS, length, DIM), b=(1, HEADS, length, DIM), w=(HEADS, DIM), v=(1, HEADS, length, DIM),
                      dout=(1, HEADS, length, DIM))
        self.inputs = {name: g.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        self.tensors = {name: torch.from_numpy(x).clone().requires_grad_(name != "dout")
                        for name, x in self.inputs.items()}

    def torch_step(self):
        """Output and gradients; each chunk of queries is done forward and backward, so that its tanh fits in memory."""
        torch, t = self.torch, self.tensors
        for x in t.values():
            x.grad = None
        out = torch.empty_like(t["dout"])
        for i in range(0, self.length, CHUNK):
            end = min(self.length, i + CHUNK)
            s = torch.tanh(t["a"][:, :, i:end, None] + t["b"][:, :, None]) @ t["w"][:, :, None]
            s = s.squeeze(-1)
            if self.causal:
                hidden = torch.ones(end - i, self.length, dtype=torch.bool).triu(i + 1)
                s = s.masked_fill(hidden, float("-inf"))
            y = torch.softmax(s, dim=-1) @ t["v"]
            y.backward(t["dout"][:, :, i:end])
            out[:, :, i:end] = y.detach()
        return [out.numpy()] + [t[name].grad.numpy() for name in ("a", "b", "w", "v")]

    def attend_step(self):
        x = self.inputs
        inputs = [x[name] for name in ("a", "b", "w", "v")]
        mask = attend.causal() if self.causal else None
        out, lse = attend.additive_attention(*inputs, mask, return_lse=True)
        return [out, *attend.additive_attention_backward(x["dout"], *inputs, out, lse, mask)]

    def check(self):
        worst = 0.0
        for ours, theirs in zip(self.attend_step(), self.torch_step()):
            difference = float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))
            assert difference < 1e-4, difference
            worst = max(worst, difference)
        return worst


MAKES = {
    "additive attention": lambda length: Case(length, causal=False),
    "additive attention, causal": lambda length: Case(length, causal=True),
}
LAWS = {"additive attention": "L^2", "additive attention, causal": "L^2"}
