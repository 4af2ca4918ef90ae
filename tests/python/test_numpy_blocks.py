"""The building blocks of a model on NumPy arrays, against plain NumPy in float64."""

import math

import numpy as np
import pytest

import attend
from numpy_cases import DTYPES, close, on_grid, rng

ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)(x),
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
}


def slope(f, x):
    return (f(x + 1e-6) - f(x - 1e-6)) / 2e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(9,), (4, 9), (2, 3, 33), (2, 1, 3, 200), (0, 5)])
def test_norms(dtype, shape):
    x, dy = on_grid(rng(), shape).astype(dtype), on_grid(rng(1), shape).astype(dtype)
    weight, bias = on_grid(rng(2), shape[-1:]).astype(dtype), on_grid(rng(3), shape[-1:]).astype(dtype)
    wide, w = x.astype(np.float64), weight.astype(np.float64)
    rms = attend.rms_norm(x, weight, 1e-3)
    assert rms.dtype == dtype and rms.shape == x.shape
    close(rms, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3) * w)
    centred = wide - wide.mean(-1, keepdims=True)
    z = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    close(attend.layer_norm(x, weight, bias, 1e-3), z * w + bias.astype(np.float64))
    close(attend.layer_norm(x, weight, eps=1e-3), z * w)
    dx, dweight, dbias = attend.layer_norm_backward(dy, x, weight, 1e-3)
    rows = tuple(range(x.ndim - 1))
    close(dweight, (dy * z).sum(rows))
    close(dbias, dy.astype(np.float64).sum(rows))
    assert dx.shape == x.shape and dx.dtype == dtype
    assert attend.rms_norm_backward(dy, x, weight).dweight.shape == weight.shape


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activation(kind, dtype):
    x, up, dy = (on_grid(rng(n), (2, 3, 40)).astype(dtype) for n in range(3))
    wide, f = x.astype(np.float64) + (0.01 if kind == "relu" else 0), ACTIVATIONS[kind]  # not where relu bends
    x = wide.astype(dtype)
    wide = x.astype(np.float64)
    y = attend.activation(kind, x)
    assert y.dtype == dtype
    close(y, f(wide))
    close(attend.activation(kind, x, up), f(wide) * up)
    factor = 1e4 if dtype == np.float64 else 1  # the slope is a difference, good for some eight digits
    close(attend.activation_backward(kind, dy, x), dy * slope(f, wide), factor=factor)
    dx, dup = attend.activation_backward(kind, dy, x, up)
    close(dx, dy.astype(np.float64) * up * slope(f, wide), factor=factor)
    close(dup, dy * f(wide))


def test_add_and_dropout():
    x, y = on_grid(rng(), (3, 40)).astype(np.float32), on_grid(rng(1), (3, 40)).astype(np.float16)
    assert (attend.add(x, y) == x + y).all() and attend.add(x, y).dtype == np.float32
    kept = attend.dropout(np.ones((100, 100), np.float32), 0.25, seed=3)
    assert set(np.unique(kept)) == {0.0, np.float32(1 / 0.75)}
    assert abs((kept == 0).mean() - 0.25) < 0.02
    assert (attend.dropout(x, 0.5, 7) == attend.dropout(x, 0.5, 7)).all()
    assert (attend.dropout(x, 0.5, 7) != attend.dropout(x, 0.5, 8)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype):
    table, tokens = on_grid(rng(), (11, 7)).astype(dtype), rng(1).integers(0, 10, (2, 5))
    y = attend.embedding(table, tokens)
    assert (y == table[tokens]).all() and y.dtype == dtype
    dy = on_grid(rng(2), (2, 5, 7)).astype(dtype)
    expected = np.zeros((11, 7))
    np.add.at(expected, tokens.reshape(-1), dy.reshape(-1, 7).astype(np.float64))
    close(attend.embedding_backward(dy, tokens, 11), expected)
    assert attend.embedding(table, np.zeros((0, 3), np.int32)).shape == (0, 3, 7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(dtype):
    hidden, weight = on_grid(rng(), (2, 6, 16)).astype(dtype), on_grid(rng(1), (50, 16)).astype(dtype)
    targets = rng(2).integers(0, 50, (2, 6))
    targets[1, 2] = -100
    logits = hidden.astype(np.float64) @ weight.astype(np.float64).T
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    counted = targets != -100
    chosen = np.where(counted, targets, 0)[..., None]
    expected = np.where(counted, -np.log(np.take_along_axis(p, chosen, -1)[..., 0]), 0)
    loss = attend.cross_entropy(hidden, weight, targets)
    assert loss.shape == targets.shape and loss.dtype == (np.float64 if dtype == np.float64 else np.float32)
    close(loss, expected, factor=4)
    dloss = on_grid(rng(3), (2, 6)).astype(loss.dtype)
    dlogits = p.copy()
    np.put_along_axis(dlogits, chosen, np.take_along_axis(p, chosen, -1) - 1, -1)
    dlogits *= np.where(counted, dloss, 0)[..., None]
    dhidden, dweight, again = attend.cross_entropy_backward(dloss, hidden, weight, targets)
    assert (again == loss).all() and dhidden.dtype == dtype and dweight.shape == weight.shape
    close(dhidden, dlogits @ weight.astype(np.float64), factor=4)
    close(dweight, np.einsum("blv,blw->vw", dlogits, hidden.astype(np.float64)), factor=4)
    assert (dhidden[1, 2] == 0).all()


def test_rope_table():
    x = on_grid(rng(), (2, 3, 7, 16)).astype(np.float32)
    table = attend.RopeTable(16, 20, theta=1e6, first_position=5, style="interleaved")
    assert table.length == 20 and table.rotary_dim == 16
    options = dict(theta=1e6, style="interleaved")
    assert (attend.rope(x, table=table) == attend.rope(x, first_position=5, **options)).all()
    assert (attend.rope_backward(x, table=table, first_position=13)
            == attend.rope_backward(x, first_position=18, **options)).all()
    with pytest.raises(ValueError, match="7 rows from 14 on"):
        attend.rope(x, table=table, first_position=14)
    with pytest.raises(ValueError, match="beside a table"):
        attend.rope(x, [1] * 7, table=table)


def test_bad_blocks():
    x, weight = np.ones((2, 3, 4), np.float32), np.ones(4, np.float32)
    for call, error, text in [
            (lambda: attend.rms_norm(x, np.ones(3, np.float32)), ValueError, "weight shape"),
            (lambda: attend.rms_norm(x, x), ValueError, "weight has 3 dimensions"),
            (lambda: attend.layer_norm(x, weight, eps=-1), ValueError, "eps"),
            (lambda: attend.activation("tanh", x), ValueError, 'kind is "tanh"'),
            (lambda: attend.activation("silu", x, x[:1]), ValueError, "up shape"),
            (lambda: attend.add(x, x[:1]), ValueError, "y shape"),
            (lambda: attend.dropout(x, 1.0, 1), ValueError, "probability"),
            (lambda: attend.embedding(x, [0]), ValueError, "table has 3 dimensions"),
            (lambda: attend.embedding(x[0], [3]), ValueError, "token 0 is 3"),
            (lambda: attend.embedding(x[0], [0.5]), TypeError, "tokens is float64"),
            (lambda: attend.embedding_backward(x, [0], 4), ValueError, "dy has shape"),
            (lambda: attend.cross_entropy(x, x[0], [0]), ValueError, "targets has shape"),
            (lambda: attend.cross_entropy(x, x[0], np.full((2, 3), 9)), ValueError, "target 0 is 9"),
            (lambda: attend.cross_entropy_backward(weight, x, x[0], np.zeros((2, 3), int)), ValueError, "dloss")]:
        with pytest.raises(error, match=text):
            call()
