"""Linear attention beside straightforward PyTorch: full, causal, retention and the gated delta rule."""

import numpy as np
import torch
import torch.nn.functional as F

import attend

B, H, D = 1, 8, 64
KEYS = {"full": ("q", "k", "v"), "causal": ("q", "k", "v"), "retention": ("q", "k", "v"),
        "delta": ("q", "k", "v", "log_decay", "beta")}


def inputs(length, form):
    """float32 arrays [B, H, length, D]; the delta rule's keys and queries have length 1."""
    g = np.random.default_rng(length)
    x = {name: g.standard_normal((B, H, length, D), np.float32) for name in ("q", "k", "v", "dout")}
    if form == "delta":
        for name in ("q", "k"):
            x[name] /= np.linalg.norm(x[name], axis=-1, keepdims=True)
        x["log_decay"] = -0.05 * g.random((B, H, length), np.float32)
        x["beta"] = g.random((B, H, length), np.float32)
    if form == "retention":
        x["gamma"] = (1 - 2.0 ** (-5.0 - np.arange(H))).astype(np.float32)
    return x


# ---- PyTorch, as a person writes it ----


def phi(x):
    return F.elu(x) + 1


def torch_full(x):
    q, k = phi(x["q"]), phi(x["k"])
    state = torch.einsum("bhnd,bhne->bhde", k, x["v"])
    return torch.einsum("bhmd,bhde->bhme", q, state) / torch.einsum("bhmd,bhd->bhm", q, k.sum(2)).unsqueeze(-1)


def torch_causal_quadratic(x):
    weights = (phi(x["q"]) @ phi(x["k"]).transpose(-1, -2)).tril()
    return weights @ x["v"] / weights.sum(-1, keepdim=True)


def torch_causal_cumsum(x):
    """The states of all tokens at once: length * D * D numbers a head."""
    q, k = phi(x["q"]), phi(x["k"])
    states = torch.einsum("bhnd,bhne->bhnde", k, x["v"]).cumsum(2)
    return torch.einsum("bhnd,bhnde->bhne", q, states) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def torch_retention(x):
    """The parallel form of the paper: scores times powers of gamma."""
    steps = torch.arange(x["q"].shape[2])
    distance = steps[:, None] - steps[None, :]
    decay = torch.where(distance >= 0, x["gamma"][:, None, None] ** distance.clamp(min=0), 0.0)
    return (x["q"] @ x["k"].transpose(-1, -2) * decay) @ x["v"]


def torch_delta_loop(x):
    """The recurrence, a token at a time."""
    alpha = x["log_decay"].exp()
    state, out = torch.zeros(B, H, D, D), []
    for t in range(x["q"].shape[2]):
        k, v = x["k"][:, :, t], x["v"][:, :, t]
        state = state * alpha[:, :, t, None, None]
        read = torch.einsum("bhde,bhd->bhe", state, k)
        state = state + torch.einsum("bhd,bhe->bhde", k, x["beta"][:, :, t, None] * (v - read))
        out.append(torch.einsum("bhde,bhd->bhe", state, x["q"][:, :, t]))
    return torch.stack(out, 2)


def torch_delta_chunks(x, chunk=64):
    """The chunked form of the paper: the system of a chunk solved for all chunks at once, then the states in order."""
    q, k, v = (x[name].unflatten(2, (-1, chunk)) for name in ("q", "k", "v"))
    log, beta = (x[name].unflatten(2, (-1, chunk)) for name in ("log_decay", "beta"))
    sums = log.cumsum(-1)
    ratio = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
    system = torch.eye(chunk) + (beta[..., None] * (k @ k.transpose(-1, -2)) * ratio).tril(-1)
    solve = lambda y: torch.linalg.solve_triangular(system, y, upper=False, unitriangular=True)  # noqa: E731
    u, w = solve(beta[..., None] * v), solve((beta * sums.exp())[..., None] * k)
    scores, from_start = (q @ k.transpose(-1, -2)) * ratio, q * sums.exp()[..., None]
    to_end, total = k * (sums[..., -1:] - sums).exp()[..., None], sums[..., -1].exp()
    state, out = torch.zeros(B, H, D, D), []
    for c in range(q.shape[2]):
        written = u[:, :, c] - w[:, :, c] @ state
        out.append(from_start[:, :, c] @ state + scores[:, :, c] @ written)
        state = state * total[:, :, c, None, None] + to_end[:, :, c].transpose(-1, -2) @ written
    return torch.stack(out, 2).flatten(2, 3)


# ---- the cases ----


class Case:
    """Forward and backward of one form at one length, by both."""

    def __init__(self, form, length, peer, **options):
        self.form, self.peer, self.options = form, peer, options
        self.arrays = inputs(length, form)
        self.names = KEYS[form]
        if form == "retention":
            self.options["log_decay"] = np.log(self.arrays["gamma"].astype(np.float64)).astype(np.float32)
        self.tensors = {name: torch.from_numpy(x) for name, x in self.arrays.items()}

    def torch_step(self):
        x = dict(self.tensors)
        for name in self.names:
            x[name] = x[name].detach().requires_grad_()
        out = self.peer(x)
        return out.detach(), torch.autograd.grad(out, [x[name] for name in self.names], x["dout"])

    def attend_step(self):
        a = self.arrays
        options = dict(self.options)
        if self.form == "delta":
            options.update(log_decay=a["log_decay"], beta=a["beta"])
        out, state = attend.linear_attention(a["q"], a["k"], a["v"], return_state=True, **options)
        g = attend.linear_attention_backward(a["dout"], a["q"], a["k"], a["v"], final_state=state, **options)
        return out, [getattr(g, "d" + name) for name in self.names]

    def check(self):
        """The largest difference of the two, against the largest element of each result."""
        out, gradients = self.torch_step()
        ours, our_gradients = self.attend_step()
        worst = 0.0
        for theirs, mine in zip([out, *gradients], [ours, *our_gradients]):
            theirs = theirs.numpy()
            worst = max(worst, float(np.abs(theirs - mine).max() / np.abs(theirs).max()))
        assert worst < 1e-3, worst
        return worst


IDENTITY = {"feature_map": "identity", "normalise": False}
MAKES = {
    "linear attention, full": lambda n: Case("full", n, torch_full, causal=False),
    "linear attention, causal": lambda n: Case("causal", n, torch_causal_quadratic),
    "linear attention, causal, against cumsum": lambda n: Case("causal", n, torch_causal_cumsum),
    "retention": lambda n: Case("retention", n, torch_retention, **IDENTITY),
    "gated delta rule": lambda n: Case("delta", n, torch_delta_loop, **IDENTITY),
    "gated delta rule, against chunks": lambda n: Case("delta", n, torch_delta_chunks, **IDENTITY),
}
LAWS = {name: "L" for name in MAKES}
WORK = {"linear attention, full": lambda n: 2 * B * H * n * D * D * 6}
