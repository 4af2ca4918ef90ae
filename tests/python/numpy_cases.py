"""What the NumPy tests share: dtypes, inputs and how close is close."""

import numpy as np
import pytest

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

needs_bfloat16 = pytest.mark.skipif(bfloat16 is None, reason="ml_dtypes is not installed")
DTYPES = [np.float32, np.float16, np.float64, pytest.param(bfloat16, marks=needs_bfloat16, id="bfloat16")]
TOLERANCE = {"float64": 1e-12, "float32": 5e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def rng(seed=0):
    return np.random.default_rng(seed)


def on_grid(generator, shape):
    """Values that every dtype holds exactly."""
    return generator.integers(-64, 64, shape) / 32.0


def qkv(B=2, H=4, Hk=2, M=5, N=7, D=8, E=6, seed=0, dtype=np.float64):
    g = rng(seed)
    return tuple(on_grid(g, shape).astype(dtype) for shape in ((B, H, M, D), (B, Hk, N, D), (B, Hk, N, E)))


def close(got, wanted, dtype=None, factor=1.0):
    name = np.dtype(dtype if dtype is not None else got.dtype).name
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    finite = wanted[np.isfinite(wanted)]
    scale = max(1.0, np.abs(finite).max(initial=0.0))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=factor * TOLERANCE[name] * scale)
