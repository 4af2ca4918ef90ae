"""The shapes that are measured, and the numbers that go in."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table: a shape, a mask, a number format and a direction."""

    shape: str  # what the shape is called
    B: int
    H: int
    Hk: int
    M: int
    N: int
    D: int
    mask: str  # "full", "causal", "window" (causal too) or "packed" (documents, causal within each)
    dtype: str = "f32"
    direction: str = "forward"
    window: int = 0  # keys that a query sees, its own among them
    lengths: tuple[int, ...] = ()  # of the packed documents

    @property
    def name(self):
        return f"{self.shape} {self.dtype} {self.direction}"

    @property
    def decode(self):
        return self.M == 1

    @property
    def group(self):
        return self.H // self.Hk

    @property
    def score_bytes(self):
        """Of all scores in f32: what an implementation that is not flash keeps in memory."""
        if self.mask == "packed":
            return len(self.lengths) * self.H * max(self.lengths) ** 2 * 4
        return self.B * self.H * self.M * self.N * 4

    @property
    def scores(self):
        """Pairs of query and key that count; half of them when causal, as is the custom."""
        if self.mask == "packed":
            return self.H * sum(n * n for n in self.lengths) / 2
        if self.mask == "window":
            w = min(self.window, self.N)
            return self.B * self.H * (w * (w + 1) // 2 + (self.N - w) * w)
        return self.B * self.H * self.M * self.N / (2 if self.mask == "causal" else 1)

    @property
    def flops(self):
        """4 per score and dim forward, 2.5 times that backward."""
        return 4 * self.scores * self.D * (2.5 if self.direction == "backward" else 1)

    @property
    def cache_bytes(self):
        """Of K and V, which a decoding step has to read."""
        return 2 * self.B * self.Hk * self.N * self.D * (4 if self.dtype == "f32" else 2)


def _document_lengths(count, mean, seed):
    """`count` lengths between an eighth of the mean and nearly twice the mean, `mean` on average exactly."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(mean // 8, 2 * mean - mean // 8, count)
    while lengths.sum() != count * mean:
        step = 1 if lengths.sum() < count * mean else -1
        at = rng.integers(count)
        if mean // 8 <= lengths[at] + step < 2 * mean:
            lengths[at] += step
    return tuple(int(n) for n in lengths)


def _square(B, H, Hk, L, D, mask, note="", **more):
    mark = f"window {more['window']}" if mask == "window" else mask
    return Case(f"{note}B{B} H{H}/{Hk} L{L} D{D} {mark}", B, H, Hk, L, L, D, mask, **more)


def _decode(H, Hk, L, D):
    return Case(f"decode H{H}/{Hk} L{L} D{D}", 1, H, Hk, 1, L, D, "full")


def _packed(count=64, mean=256):
    total = count * mean
    return Case(f"{count} documents, mean L{mean}, H8/8 D64", 1, 8, 8, total, total, 64, "packed",
                lengths=_document_lengths(count, mean, seed=7))


def _minimind():
    shapes = []
    for name, Hk, D in (("MiniMind2", 2, 64), ("MiniMind-3", 4, 96)):
        shapes += [_square(1, 8, Hk, L, D, "causal", note=f"{name} ") for L in (340, 768, 2048)]
    return shapes


def _both_ways(shapes):
    for shape in shapes:
        for dtype in ("f32", "bf16"):
            for direction in ("forward",) if shape.decode else ("forward", "backward"):
                yield dataclasses.replace(shape, dtype=dtype, direction=direction)


def all_cases():
    """Every row of the full run, the long ones last."""
    return list(_both_ways([
        _square(1, 8, 8, 1024, 64, "full"),
        _square(1, 8, 8, 1024, 64, "causal"),
        _square(8, 8, 8, 128, 64, "causal"),
        _decode(8, 2, 4096, 64),
        _decode(32, 8, 16384, 128),
        *_minimind(),
        _packed(),
        _square(1, 8, 8, 4096, 64, "causal"),
        _square(1, 8, 2, 4096, 64, "causal"),
        _square(1, 16, 16, 2048, 128, "full"),
        _square(1, 32, 8, 4096, 128, "causal"),
        _square(1, 8, 8, 16384, 64, "window", window=1024),
        _square(1, 8, 8, 16384, 64, "causal"),
    ]))


def quick_cases():
    """A few minutes' choice: every kind of row, none of the long ones; the window at a quarter of the length."""
    def only(shapes, dtypes=("f32",), directions=("forward", "backward")):
        return [c for c in _both_ways(shapes) if c.dtype in dtypes and c.direction in directions]

    minimind = _minimind()
    return [
        *only([_square(1, 8, 8, 1024, 64, "causal")], ("f32", "bf16")),
        *only([_square(1, 8, 8, 1024, 64, "full")], directions=("forward",)),
        *only([_square(8, 8, 8, 128, 64, "causal")]),
        *only([_decode(8, 2, 4096, 64)], ("f32", "bf16")),
        *only([minimind[0], minimind[4]]),
        *only([_square(1, 8, 8, 4096, 64, "window", window=1024)], directions=("forward",)),
        *only([_decode(32, 8, 16384, 128)]),
        *only([_packed()], directions=("forward",)),
        *only([_square(1, 8, 2, 4096, 64, "causal")], directions=("forward",)),
    ]


def round_to_bf16(x):
    """float32 values that bfloat16 holds exactly, nearest even."""
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


class Data:
    """q, k, v and the gradient of the output, [batch, heads, length, dim] in float32; bf16 cases hold bf16 values."""

    def __init__(self, case):
        rng = np.random.default_rng(1234)

        def normal(*shape):
            x = rng.standard_normal(shape, dtype=np.float32)
            return round_to_bf16(x) if case.dtype == "bf16" else x

        self.q = normal(case.B, case.H, case.M, case.D)
        self.k = normal(case.B, case.Hk, case.N, case.D)
        self.v = normal(case.B, case.Hk, case.N, case.D)
        self.dout = normal(case.B, case.H, case.M, case.D) if case.direction == "backward" else None


def offsets(case):
    """Where each packed document begins, and where the last one ends."""
    return [0, *np.cumsum(case.lengths).tolist()]


def padded(case, x):
    """[1, heads, tokens, dim] of packed documents as [documents, heads, longest, dim], zeros behind each."""
    starts, longest = offsets(case), max(case.lengths)
    result = np.zeros((len(case.lengths), x.shape[1], longest, x.shape[3]), x.dtype)
    for i, n in enumerate(case.lengths):
        result[i, :, :n] = x[0, :, starts[i] : starts[i] + n]
    return result


def unpadded(case, x):
    """The inverse of padded()."""
    return np.concatenate([x[i, :, :n] for i, n in enumerate(case.lengths)], axis=1)[None]


def visible(case):
    """A boolean [queries, keys] of a causal or windowed square case."""
    i, j = np.arange(case.M, dtype=np.int32)[:, None], np.arange(case.N, dtype=np.int32)[None]
    seen = j <= i
    return seen & (i - j < case.window) if case.mask == "window" else seen
