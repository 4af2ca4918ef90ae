"""attend.linformer on NumPy arrays, against plain NumPy in float64."""

import numpy as np
import pytest

import attend
from numpy_cases import close, on_grid, rng


def softmax(s):
    w = np.exp(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)


def plain(q, k, v, e, f, dout, kept):
    """Output and all gradients, in float64; kept [B, N] says which keys count."""
    q, k, v, e, f, dout = (np.asarray(x, np.float64) for x in (q, k, v, e, f, dout))
    group, N = q.shape[1] // k.shape[1], k.shape[2]
    heads = lambda p: np.broadcast_to(p if p.ndim == 3 else p[None], (k.shape[1],) + p.shape[-2:])[None, :, :, :N]  # noqa: E731
    pe, pf = heads(e) * kept[:, None, None], heads(f) * kept[:, None, None]
    K, V = pe @ k, pf @ v
    Kh, Vh = np.repeat(K, group, 1), np.repeat(V, group, 1)
    scale = 1 / np.sqrt(q.shape[3])
    w = softmax(scale * q @ Kh.swapaxes(2, 3))
    out = w @ Vh
    dw = dout @ Vh.swapaxes(2, 3)
    ds = scale * w * (dw - (w * dw).sum(-1, keepdims=True))
    per_kv = lambda x: x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)  # noqa: E731
    dK, dV = per_kv(ds.swapaxes(2, 3) @ q), per_kv(w.swapaxes(2, 3) @ dout)
    de, df = np.zeros((k.shape[1],) + e.shape[-2:]), np.zeros((k.shape[1],) + e.shape[-2:])
    de[..., :N] = (dK @ k.swapaxes(2, 3) * kept[:, None, None]).sum(0)
    df[..., :N] = (dV @ v.swapaxes(2, 3) * kept[:, None, None]).sum(0)
    if e.ndim == 2:
        de, df = de.sum(0), df.sum(0)
    return out, (ds @ Kh, pe.swapaxes(2, 3) @ dK, pf.swapaxes(2, 3) @ dV, de, df)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_linformer(dtype, per_head, padded):
    r = rng(3)
    draw = lambda *shape: on_grid(r, shape).astype(dtype)  # noqa: E731
    q, k, v, dout = draw(2, 4, 9, 8), draw(2, 2, 13, 8), draw(2, 2, 13, 6), draw(2, 4, 9, 6)
    shape = (2, 5, 16) if per_head else (5, 16)
    e, f = draw(*shape) / 4, draw(*shape) / 4
    mask = attend.padding([13, 7]) if padded else None
    kept = np.arange(13)[None] < np.array([13, 7 if padded else 13])[:, None]
    wanted, gradients = plain(q, k, v, e, f, dout, kept)
    out, lse = attend.linformer(q, k, v, e, f, mask, return_lse=True)
    assert out.dtype == dtype and lse.shape == (2, 4, 9)
    close(out, wanted)
    got = attend.linformer_backward(dout, q, k, v, e, f, out, lse, mask)
    for g, w in zip(got, gradients):
        assert g.shape == w.shape
        close(g, w, dtype, factor=20)
    # One projection for both: its gradient is the sum.
    wanted, gradients = plain(q, k, v, e, e, dout, kept)
    out, lse = attend.linformer(q, k, v, e, mask=mask, return_lse=True)
    close(out, wanted)
    got = attend.linformer_backward(dout, q, k, v, e, None, out, lse, mask)
    assert got.df is None
    close(got.de, gradients[3] + gradients[4], dtype, factor=20)


def test_other_layout_and_bad_input():
    r = rng(4)
    q, k, e = on_grid(r, (1, 3, 2, 8)).astype(np.float32), on_grid(r, (1, 2, 6, 8)).astype(np.float32), np.ones((3, 6), np.float32)
    a = attend.linformer(q.swapaxes(1, 2), k, k, e)
    b = attend.linformer(q, k.swapaxes(1, 2), k.swapaxes(1, 2), e, layout="blhd")
    assert (a == b.swapaxes(1, 2)).all()
    with pytest.raises(ValueError, match="mixes all positions"):
        attend.linformer(q.swapaxes(1, 2), k, k, e, mask=attend.causal())
    with pytest.raises(ValueError, match="rank 9 for a length of 6"):
        attend.linformer(q.swapaxes(1, 2), k, k, np.ones((9, 6), np.float32))
    with pytest.raises(ValueError, match="expected .rank, length."):
        attend.linformer(q.swapaxes(1, 2), k, k, e[0])
    with pytest.raises(TypeError, match="expected attend.padding"):
        attend.linformer(q.swapaxes(1, 2), k, k, e, mask=np.ones(3))
