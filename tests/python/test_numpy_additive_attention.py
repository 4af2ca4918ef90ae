"""Additive attention and Luong's scores on NumPy arrays, against the formulas written down in NumPy."""

import numpy as np
import pytest

import attend
from numpy_cases import bfloat16, needs_bfloat16

NUMPY = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": bfloat16}
TOLERANCE = {"f64": 1e-12, "f32": 5e-6, "f16": 6e-3, "bf16": 5e-2}
DTYPES = ["f32", "f64", "f16", pytest.param("bf16", marks=needs_bfloat16)]
CAUSAL = np.tril(np.ones((70, 90), bool), 20)


def make(dtype="f64", B=2, H=4, Hk=2, M=70, N=90, D=9, E=5):
    g = np.random.default_rng(1)
    shapes = dict(a=(B, H, M, D), b=(B, Hk, N, D), w=(H, D), v=(B, Hk, N, E), dout=(B, H, M, E))
    return {name: (g.integers(-32, 32, shape) / 16).astype(NUMPY[dtype]) for name, shape in shapes.items()}


def plain(a, b, w, v, dout, visible, scale):
    """Output, log-sum-exp and the gradients, in float64."""
    a, b, w, v, dout = (np.asarray(x, np.float64) for x in (a, b, w, v, dout))
    group = a.shape[1] // b.shape[1]
    t = np.tanh(a[:, :, :, None] + np.repeat(b, group, 1)[:, :, None])
    s = np.where(visible, scale * (t * w[None, :, None, None]).sum(-1), -np.inf)
    lse = np.log(np.exp(s).sum(-1))
    p = np.exp(s - lse[..., None])
    values = np.repeat(v, group, 1)
    dp = dout @ values.swapaxes(2, 3)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    inside = ds[..., None] * w[None, :, None, None] * (1 - t * t)
    shared = lambda x: x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)  # noqa: E731
    return (p @ values, lse, inside.sum(3), shared(inside.sum(2)), (ds[..., None] * t).sum((0, 2, 3)),
            shared(p.swapaxes(2, 3) @ dout))


def close(got, wanted, dtype, factor=1.0):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    scale = max(1.0, np.abs(wanted).max(initial=0.0))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=factor * TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_additive(dtype, causal):
    x = make(dtype)
    mask = attend.causal() if causal else None
    wanted = plain(**x, visible=CAUSAL if causal else True, scale=0.5)
    inputs = [x[name] for name in "abwv"]
    out, lse = attend.additive_attention(*inputs, mask, scale=0.5, return_lse=True)
    assert out.dtype == NUMPY[dtype]
    gradients = attend.additive_attention_backward(x["dout"], *inputs, out, lse, mask, scale=0.5)
    close(out, wanted[0], dtype)
    close(lse, wanted[1], dtype)
    for got, want in zip(gradients, wanted[2:]):
        close(got, want, dtype, 4)
    assert np.array_equal(attend.additive_attention(*inputs, mask, scale=0.5), out)


def test_layout():
    x = make("f32")
    out = attend.additive_attention(x["a"], x["b"], x["w"], x["v"])
    turned = [np.ascontiguousarray(x[name].swapaxes(1, 2)) for name in "abv"]
    got = attend.additive_attention(turned[0], turned[1], x["w"], turned[2], layout="blhd")
    assert np.array_equal(got.swapaxes(1, 2), out)


SCORES = {"dot": dict(key_dim=6), "general": dict(key_dim=4, wq=(4, 6)),
          "general per head": dict(key_dim=4, wq=(4, 4, 6)),
          "concat": dict(key_dim=4, wq=(5, 6), wk=(5, 4), w=(4, 5)),
          "concat per head": dict(key_dim=4, wq=(4, 5, 6), wk=(2, 5, 4), w=(4, 5))}


@pytest.mark.parametrize("name", SCORES)
def test_alignments(name):
    g = np.random.default_rng(2)
    sizes = dict(SCORES[name])
    score, key_dim = name.split()[0], sizes.pop("key_dim")
    q, k, v = g.normal(size=(2, 4, 5, 6)), g.normal(size=(2, 2, 7, key_dim)), g.normal(size=(2, 2, 7, 3))
    weights = {key: g.normal(size=shape) for key, shape in sizes.items()}

    def outputs(q, k, v, wq=None, wk=None, w=None):
        keys, values = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
        if wq is not None:
            q = np.einsum("hod,bhld->bhlo", np.broadcast_to(wq, (4,) + wq.shape[-2:]), q)
        if wk is not None:
            wk = np.repeat(wk, 2, 0) if wk.ndim == 3 else np.broadcast_to(wk, (4,) + wk.shape)
            keys = np.einsum("hod,bhld->bhlo", wk, keys)
            s = (np.tanh(q[:, :, :, None] + keys[:, :, None]) * w[None, :, None, None]).sum(-1)
        else:
            s = q @ keys.swapaxes(2, 3)
        p = np.exp(s)
        return p @ values / p.sum(-1, keepdims=True)

    out, lse = attend.aligned_attention(q, k, v, score, **weights, return_lse=True)
    np.testing.assert_allclose(out, outputs(q, k, v, **weights), rtol=0, atol=1e-12)
    dout = g.normal(size=out.shape)
    got = attend.aligned_attention_backward(dout, q, k, v, out, lse, score, **weights)
    for key, value in dict(q=q, k=k, v=v, **weights).items():
        gradient = getattr(got, "d" + key)
        assert gradient.shape == value.shape
        step = g.normal(size=value.shape)
        inputs = dict(q=q, k=k, v=v, **weights)
        above, below = (outputs(**{**inputs, key: value + sign * 1e-6 * step}) for sign in (1, -1))
        np.testing.assert_allclose((gradient * step).sum(), ((above - below) * dout).sum() / 2e-6, rtol=1e-6, atol=1e-8)
    for key in ("wq", "wk", "w"):
        assert (getattr(got, "d" + key) is None) == (key not in weights)


def test_bad_arguments():
    x = make("f32")
    with pytest.raises(ValueError, match="w has 1 dimensions, expected 2: heads and dim"):
        attend.additive_attention(x["a"], x["b"], x["w"][0], x["v"])
    with pytest.raises(ValueError, match=r"w shape is \[1, 3, 1, 9\], expected \[1, 4, 1, 9\]"):
        attend.additive_attention(x["a"], x["b"], x["w"][:3], x["v"])
    with pytest.raises(TypeError, match="mask is a str"):
        attend.additive_attention(x["a"], x["b"], x["w"], x["v"], "causal")
    with pytest.raises(ValueError, match="score is 'cosine'"):
        attend.aligned_attention(x["a"], x["b"], x["v"], "cosine")
    with pytest.raises(ValueError, match="wq is missing, expected wq for 'general'"):
        attend.aligned_attention(x["a"], x["b"], x["v"], "general")
    with pytest.raises(ValueError, match="wq is given, expected no matrices for 'dot'"):
        attend.aligned_attention(x["a"], x["b"], x["v"], "dot", wq=x["w"])


def test_docstring_examples():
    """The examples run."""
    import doctest

    from test_numpy_package import run_examples

    x, g = make("f32"), np.random.default_rng(3)
    names = {"np": np, "attend": attend, **x, "q": x["a"], "k": x["b"]}
    names["wq"], names["wk"] = (g.normal(size=(9, 9)).astype(np.float32) for _ in range(2))
    tests = [t for t in doctest.DocTestFinder().find(attend._additive_attention, extraglobs=names) if t.examples]
    assert len(tests) == 6
    for test in tests:
        assert not run_examples(test), run_examples(test)
