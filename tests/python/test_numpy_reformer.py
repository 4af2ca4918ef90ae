"""attend.reformer on NumPy arrays, against plain NumPy in float64 on the same hashes."""

import numpy as np
import pytest

import attend
from numpy_cases import close, on_grid, rng


def meetings(hashes, chunk, causal):
    """In how many rounds i meets j: [B, H, L, L] from [rounds, B, H, L]."""
    L = hashes.shape[-1]
    rank = np.argsort(np.argsort(hashes, axis=-1, kind="stable"), axis=-1, kind="stable") // chunk
    back = rank[..., :, None] - rank[..., None, :]
    same = hashes[..., :, None] == hashes[..., None, :]
    n = (same & ((back == 0) | (back == 1))).sum(0)
    n = n * (np.tri(L, L, -1) if causal else 1 - np.eye(L))
    return n + np.eye(L) * (n.sum(-1, keepdims=True) == 0)


def plain(q, v, dout, hashes, chunk, causal):
    q, v, dout = (np.asarray(x, np.float64) for x in (q, v, dout))
    group = q.shape[1] // v.shape[1]
    vh = np.repeat(v, group, 1)
    norm = np.linalg.norm(q, axis=-1, keepdims=True)
    k = q / norm
    scale = 1 / np.sqrt(q.shape[3])
    s = scale * q @ k.swapaxes(2, 3)
    w = meetings(hashes, chunk, causal) * np.exp(s - s.max(-1, keepdims=True))
    w /= w.sum(-1, keepdims=True)
    dw = dout @ vh.swapaxes(2, 3)
    ds = scale * w * (dw - (w * dw).sum(-1, keepdims=True))
    dk = ds.swapaxes(2, 3) @ q
    dv = w.swapaxes(2, 3) @ dout
    dq = ds @ k + (dk - k * (k * dk).sum(-1, keepdims=True)) / norm
    return w @ vh, dq, dv.reshape(v.shape[0], -1, group, *v.shape[2:]).sum(2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_reformer(dtype, causal):
    r = rng(3)
    draw = lambda *shape: on_grid(r, shape).astype(dtype)  # noqa: E731
    q, v, dout = draw(2, 4, 50, 8), draw(2, 2, 50, 6), draw(2, 4, 50, 6)
    options = dict(rounds=3, chunk=7, buckets=[4, 2], seed=5)
    hashes = attend.reformer_hashes(q, **options)
    assert hashes.shape == (3, 2, 4, 50) and hashes.min() >= 0 and hashes.max() <= 7
    out, lse = attend.reformer(q, v, causal=causal, return_lse=True, **options)
    wanted = plain(q, v, dout, hashes, 7, causal)
    assert out.dtype == dtype
    close(out, wanted[0])
    got = attend.reformer_backward(dout, q, v, out, lse, causal=causal, **options)
    for g, w in zip(got, wanted[1:]):
        close(g, w, factor=40)
    assert (attend.reformer(q, v, causal=causal, **options) == out).all()


def test_hashes_are_those_of_the_rotations():
    q = rng(1).standard_normal((2, 3, 40, 16)).astype(np.float32)
    rotations = attend.reformer_rotations(3, 40, 16, rounds=2, buckets=10, seed=9)
    assert rotations.shape == (2, 3, 5, 16)
    y = np.einsum("bhld,rhcd->rbhlc", q.astype(np.float64), rotations.astype(np.float64))
    wanted = np.concatenate([y, -y], -1).argmax(-1)
    assert (attend.reformer_hashes(q, rounds=2, buckets=[10], seed=9) == wanted).mean() > 0.999
    assert attend.reformer_factors(65536) == [32, 32]
    assert 0 < attend.reformer_recall(q, rounds=1, buckets=8) < attend.reformer_recall(q, rounds=16, buckets=8) <= 1


def test_bad_input():
    q = np.ones((1, 2, 8, 4), np.float32)
    with pytest.raises(ValueError, match="even number"):
        attend.reformer(q, q, buckets=5)
    with pytest.raises(ValueError, match="rounds is 0"):
        attend.reformer(q, q, rounds=0)
    with pytest.raises(ValueError, match="rounds is 0"):
        attend.reformer_hashes(q, rounds=0)
    with pytest.raises(ValueError, match="v length is 7"):
        attend.reformer(q, q[:, :, :7])
