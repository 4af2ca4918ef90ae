"""attend.TransformerBlock on NumPy arrays, against the same block written down in NumPy."""

import math

import numpy as np
import pytest

import attend
import numpy_reference as reference
from numpy_cases import bfloat16, needs_bfloat16

NUMPY = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": bfloat16}
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 1e-1}
DTYPES = ["f32", "f64", "f16", pytest.param("bf16", marks=needs_bfloat16)]


def make(kind, dtype="f64", **options):
    block = attend.TransformerBlock(16, 4, kv_heads=2, feed_forward=kind, hidden=24, dtype=dtype, **options)
    block.initialise(1)
    x = np.random.default_rng(2).integers(-32, 32, (2, 37, 16)) / 16
    return block, x.astype(NUMPY[dtype])


def plain(block, kind, x, **options):
    p = {name: np.asarray(value, np.float64) for name, value in block.parameters.items()}
    x = np.asarray(x, np.float64)
    norm = lambda t, w: t / np.sqrt((t * t).mean(-1, keepdims=True) + 1e-6) * w  # noqa: E731
    y = x + reference.layer(p, norm(x, p["norm1"]), None, heads=4, kv_heads=2, rope_style=None, rope_theta=10000.0,
                            norm_eps=1e-6, **options)[0]
    n = norm(y, p["norm2"])
    up = n @ p["up"].T
    if kind == "swiglu":
        gate = n @ p["gate"].T
        hidden = gate / (1 + np.exp(-gate)) * up
    elif kind == "gelu":
        hidden = up * (1 + np.vectorize(math.erf)(up / math.sqrt(2))) / 2
    else:
        hidden = np.maximum(up, 0)
    return y + hidden @ p["down"].T


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["swiglu", "gelu", "relu"])
def test_forward(kind, dtype):
    block, x = make(kind, dtype)
    z = block(x, attend.causal())
    assert z.dtype == NUMPY[dtype] and z.shape == x.shape
    wanted = plain(block, kind, x, visible=np.tril(np.ones((37, 37), bool)))
    np.testing.assert_allclose(np.asarray(z, np.float64), wanted, rtol=0, atol=TOLERANCE[dtype] * np.abs(wanted).max())
    for size in (1, 10, 37, 50):
        assert np.array_equal(block(x, attend.causal(), block=size), z)


@pytest.mark.parametrize("kind", ["swiglu", "gelu", "relu"])
def test_backward(kind):
    block, x = make(kind)
    g = np.random.default_rng(3)
    dout = g.normal(size=x.shape)
    gradients = block.backward(dout, x, attend.causal(), block=10)
    assert gradients.parameters.keys() == block.parameters.keys()
    assert gradients.dbias is None and gradients.dsinks is None
    step = g.normal(size=x.shape) * 1e-6
    slope = ((block(x + step, attend.causal()) - block(x - step, attend.causal())) * dout).sum() / 2
    np.testing.assert_allclose((gradients.dx * step).sum(), slope, rtol=1e-6)
    for name, value in block.parameters.items():
        kept, step = value.copy(), g.normal(size=value.shape) * 1e-6
        value[...] = kept + step
        above = block(x, attend.causal())
        value[...] = kept - step
        slope = ((above - block(x, attend.causal())) * dout).sum() / 2
        value[...] = kept
        np.testing.assert_allclose((gradients.parameters[name] * step).sum(), slope, rtol=1e-5, atol=1e-12)


def test_blocks_in_float32():
    block, x = make("swiglu", "f32")
    dout = np.ones_like(x)
    bias, sinks = np.ones((37, 37), np.float32), np.ones(4, np.float32)
    whole = block.backward(dout, x, attend.causal(), bias=bias, sinks=sinks)
    cut = block.backward(dout, x, attend.causal(), block=10, bias=bias, sinks=sinks)
    assert cut.dbias.shape == bias.shape and cut.dsinks.shape == sinks.shape
    for a, b in [(whole.dx, cut.dx), (whole.dbias, cut.dbias), (whole.dsinks, cut.dsinks),
                 *((whole.parameters[n], cut.parameters[n]) for n in whole.parameters)]:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(a).max())


def test_bad_arguments():
    with pytest.raises(ValueError, match='feed_forward is "tanh"'):
        attend.TransformerBlock(16, 4, feed_forward="tanh")
    block, x = make("relu", "f32")
    with pytest.raises(ValueError, match="block is -3, expected 0"):
        block(x, block=-3)
    with pytest.raises(ValueError, match="dropout is asked for with blocks of queries"):
        block(x, dropout=0.1, block=5)
    with pytest.raises(ValueError, match="x has 2 dimensions"):
        block(x[0])


def test_docstring_examples():
    """The examples run; where a result is shown, it is the result."""
    import doctest

    from test_numpy_package import run_examples

    names = {"np": np, "attend": attend}
    tests = [t for t in doctest.DocTestFinder().find(attend._transformer_block, extraglobs=names) if t.examples]
    assert len(tests) == 6
    for test in tests:
        assert not run_examples(test), run_examples(test)
