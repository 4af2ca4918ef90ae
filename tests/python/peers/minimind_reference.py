"""MiniMind's first two generations in plain PyTorch, from their published description: Transformers has no class of them."""

import torch
import torch.nn.functional as F


class Names:
    """How the generations call the same weights."""

    def __init__(self, first):
        self.first = first
        self.embedding, self.norm = ("tok_embeddings", "norm") if first else ("model.embed_tokens", "model.norm")

    def layer(self, n):
        return f"layers.{n}." if self.first else f"model.layers.{n}."

    def attention(self, part):
        return f"attention.w{part}" if self.first else f"self_attn.{part}_proj"

    def norms(self):
        return ("attention_norm", "ffn_norm") if self.first else ("input_layernorm", "post_attention_layernorm")

    def feed_forward(self):
        return "feed_forward." if self.first else "mlp."

    def parts(self):
        return ("w1", "w3", "w2") if self.first else ("gate_proj", "up_proj", "down_proj")

    def shared(self, e):
        return "shared_experts." if self.first else f"shared_experts.{e}."


def random_weights(first, vocabulary, hidden, layers, heads, kv_heads, width, experts=0, shared=0, seed=3):
    """A state dict with random numbers."""
    names, dim, g = Names(first), hidden // heads, torch.Generator().manual_seed(seed)
    w = {}

    def matrix(name, out, inside):
        w[name + ".weight"] = torch.randn(out, inside, generator=g) * (1.5 / inside**0.5)

    def norm(name):
        w[name + ".weight"] = 1 + 0.2 * torch.randn(hidden, generator=g)

    def feed_forward(name):
        for part, (out, inside) in zip(names.parts(), ((width, hidden), (width, hidden), (hidden, width))):
            matrix(name + part, out, inside)

    matrix(names.embedding, vocabulary, hidden)
    norm(names.norm)
    for n in range(layers):
        p = names.layer(n)
        for part, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            matrix(p + names.attention(part), rows * dim, hidden)
        matrix(p + names.attention("o"), hidden, heads * dim)
        for name in names.norms():
            norm(p + name)
        if not experts:
            feed_forward(p + names.feed_forward())
            continue
        matrix(p + names.feed_forward() + "gate", experts, hidden)
        for e in range(experts):
            feed_forward(p + names.feed_forward() + f"experts.{e}.")
        for e in range(shared):
            feed_forward(p + names.feed_forward() + names.shared(e))
    return w


def autumn_scale(dim, theta, factor, original, fast, slow):
    """What each pair's turn is multiplied by in MiniMind's scaling of October and November 2025."""
    pair = torch.arange(dim // 2).double()
    wave = 2 * torch.pi * theta ** (2 * pair / dim)
    beta = slow + (fast - slow) * pair / max(dim // 2 - 1, 1)
    beyond = int((wave > original).int().argmax()) if bool((wave > original).any()) else dim // 2
    return torch.where(pair < beyond, (beta * factor - beta + 1) / (beta * factor), torch.tensor(1 / factor).double())


def logits(w, ids, first, layers, heads, kv_heads, theta, experts=0, used=0, shared=0, normalised=True, eps=1e-5, scale=1,
           head=None):
    """All rows' logits of one sequence of ids; `scale` of each pair's turn, a head of its own."""
    names = Names(first)
    x = w[names.embedding + ".weight"][ids]
    length, hidden = x.shape
    dim = hidden // heads
    turns = torch.arange(length)[:, None] * theta ** (-torch.arange(0, dim, 2).double() / dim) * scale
    cos, sin = turns.cos().float()[:, None], turns.sin().float()[:, None]
    hidden_from = torch.full((length, length), float("-inf")).triu(1)

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w[name + ".weight"]

    def rotated(x):  # [length, heads, dim]
        if first:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def feed_forward(x, name):
        gate, up, down = (w[name + part + ".weight"] for part in names.parts())
        return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def mixture(x, name):
        scores = (x @ w[name + "gate.weight"].T).softmax(-1)
        best, which = scores.topk(used, -1)
        if normalised:
            best = best / best.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for row in range(length):
            for weight, e in zip(best[row], which[row].tolist()):
                y[row] += weight * feed_forward(x[row], name + f"experts.{e}.")
        for e in range(shared):
            y = y + feed_forward(x, name + names.shared(e))
        return y

    for n in range(layers):
        p = names.layer(n)
        before, between = (p + name for name in names.norms())
        h = norm(x, before)
        q, k, v = ((h @ w[p + names.attention(c) + ".weight"].T).view(length, -1, dim) for c in "qkv")
        q, k = rotated(q), rotated(k)
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        weights = (torch.einsum("ihd,jhd->hij", q, k) / dim**0.5 + hidden_from).softmax(-1)
        mixed = torch.einsum("hij,jhd->ihd", weights, v).reshape(length, -1)
        x = x + mixed @ w[p + names.attention("o") + ".weight"].T
        h = norm(x, between)
        x = x + (mixture if experts else feed_forward)(h, p + names.feed_forward())
    return norm(x, names.norm) @ (w[names.embedding + ".weight"] if head is None else head).T
