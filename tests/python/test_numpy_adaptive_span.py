"""attend.adaptive_span on NumPy arrays, against plain NumPy in float64."""

import numpy as np
import pytest

import attend
from numpy_cases import close, on_grid, rng


def plain(q, k, v, span, dout, ramp, max_span, symmetric):
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q, k, v, dout))
    group, M, N = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    kh, vh = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = 1 / np.sqrt(q.shape[3])
    back = (np.arange(M)[:, None] + N - M) - np.arange(N)[None]
    x = np.abs(back) if symmetric else back
    z = np.clip(np.asarray(span, np.float64), 0, max_span)[:, None, None]
    m = np.clip((ramp + z - x) / ramp, 0, 1) * (x >= 0)
    s = scale * q @ kh.swapaxes(2, 3)
    w = m * np.exp(s - s.max(-1, keepdims=True))
    w /= w.sum(-1, keepdims=True)
    dw = dout @ vh.swapaxes(2, 3)
    ds = w * (dw - (w * dw).sum(-1, keepdims=True))
    on_ramp = (m > 0) & (m < 1)
    slope = np.where(on_ramp, 1 / np.where(on_ramp, ramp + z - x, 1), 0)
    per_kv = lambda y: y.reshape(y.shape[0], -1, group, *y.shape[2:]).sum(2)  # noqa: E731
    dk, dv = per_kv(scale * ds.swapaxes(2, 3) @ q), per_kv(w.swapaxes(2, 3) @ dout)
    return w @ vh, (scale * ds @ kh, dk, dv, (ds * slope).sum((0, 2, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("symmetric", [False, True])
def test_adaptive_span(dtype, symmetric):
    r = rng(3)
    draw = lambda *shape: on_grid(r, shape).astype(dtype)  # noqa: E731
    q, k, v, dout = draw(2, 4, 19, 8), draw(2, 2, 23, 8), draw(2, 2, 23, 6), draw(2, 4, 19, 6)
    span = np.array([0.5, 3.25, 7.5, 11.75], np.float32)
    options = dict(ramp=4.0, max_span=10.0, symmetric=symmetric)
    wanted, gradients = plain(q, k, v, span, dout, **options)
    out, lse = attend.adaptive_span(q, k, v, span, return_lse=True, **options)
    assert out.dtype == dtype and lse.shape == (2, 4, 19)
    close(out, wanted)
    got = attend.adaptive_span_backward(dout, q, k, v, span, out, lse, **options)
    for g, w in zip(got[:3], gradients):
        close(g, w, factor=20)
    close(got.dspan[:3].astype(dtype), gradients[3][:3], factor=20)
    assert got.dspan[3] in (0, got.dspan[3]) and (got.dspan[3] == 0) == (gradients[3][3] < 0)


def test_penalty_and_bad_input():
    span = np.array([-1, 4, 20], np.float32)
    penalty, dspan = attend.adaptive_span_penalty(span, 0.3, max_span=10)
    assert abs(penalty - 0.1 * 14) < 1e-12
    assert np.allclose(dspan, [0, 0.1, 0.1])
    q = np.ones((1, 3, 4, 8), np.float32)
    with pytest.raises(ValueError, match="ramp is 0"):
        attend.adaptive_span(q, q, q, span, ramp=0)
    with pytest.raises(ValueError, match="span has 2 dimensions"):
        attend.adaptive_span(q, q, q, span[None])
    with pytest.raises(ValueError, match="span shape"):
        attend.adaptive_span(q, q, q, span[:2])
    with pytest.raises(ValueError, match="expected padding alone"):
        attend.adaptive_span(q, q, q, span, mask=attend.causal())
