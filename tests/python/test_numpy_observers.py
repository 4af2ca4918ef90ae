"""Observers: sums over the weights and the weights tile by tile, against the weights that attention returns."""

import threading

import numpy as np
import pytest

import attend
from numpy_cases import qkv

OPTIONS = [dict(), dict(softcap=2.0), dict(scale=0.2, bias=np.linspace(-1, 1, 90, dtype=np.float32).reshape(1, 1, 1, 90))]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcap", "bias"])
@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_row_sums(options, layout):
    q, k, v = qkv(2, 4, 2, 50, 90, 16, 8, dtype=np.float32)
    out, lse, weights = attend.attention(q, k, v, attend.causal(), return_lse=True, return_weights=True, **options)

    def values(n, tile):
        rows = np.arange(tile.first_row, tile.first_row + tile.rows)[:, None]
        cols = np.arange(tile.first_col, tile.first_col + tile.cols)
        return (rows - cols, np.ones_like(cols), cols == tile.batch + tile.head)[n]

    given = [x if layout == "bhld" else np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    got, got_lse, sums = attend.attention_row_sums(*given, values, 3, attend.causal(), layout=layout, return_lse=True,
                                                   **options)
    if layout == "blhd":
        got = got.transpose(0, 2, 1, 3)
    assert got.tobytes() == out.tobytes() and got_lse.tobytes() == lse.tobytes()
    distance = np.arange(50)[:, None] - np.arange(90)
    np.testing.assert_allclose(sums[..., 0], (weights.astype(np.float64) * distance).sum(-1), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(sums[..., 1], 1, rtol=1e-5)
    for b in range(2):
        for h in range(4):
            np.testing.assert_allclose(sums[b, h, :, 2], weights[b, h, :, b + h], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcap", "bias"])
def test_every_weight_is_visited(options):
    q, k, v = qkv(2, 4, 2, 50, 90, 16, 8, dtype=np.float32)
    for mask in (None, attend.causal(), attend.window(7, 0)):
        _, lse, weights = attend.attention(q, k, v, mask, return_lse=True, return_weights=True, **options)
        seen, tiles = np.zeros_like(weights), []

        def visit(tile, shown):
            assert shown.shape == (tile.rows, tile.cols) and shown.dtype == np.float32
            tiles.append(shown)
            seen[tile.batch, tile.head, tile.first_row:tile.first_row + tile.rows,
                 tile.first_col:tile.first_col + tile.cols] += shown

        assert attend.visit_weights(q, k, lse, visit, mask, **options) is None
        np.testing.assert_allclose(seen, weights, rtol=1e-4, atol=1e-6)
        # What a visitor keeps is its own.
        assert abs(sum(float(x.sum(dtype=np.float64)) for x in tiles) - weights.sum(dtype=np.float64)) < 1e-2


def test_exceptions_come_out():
    q, k, v = qkv(2, 4, 2, 50, 90, 16, 8, dtype=np.float32)
    _, lse = attend.attention(q, k, v, return_lse=True)

    class Mine(Exception):
        pass

    def fails(*_):
        raise Mine("mine")

    with pytest.raises(Mine, match="mine"):
        attend.visit_weights(q, k, lse, fails)
    with pytest.raises(Mine, match="mine"):
        attend.attention_row_sums(q, k, v, fails, 1)
    with pytest.raises(ValueError, match="broadcast"):
        attend.attention_row_sums(q, k, v, lambda n, tile: np.ones((tile.rows + 1, tile.cols)), 1)
    with pytest.raises((TypeError, ValueError)):
        attend.attention_row_sums(q, k, v, lambda n, tile: "no number", 1)
    assert (attend.attention(q, k, v, return_lse=True)[1] == lse).all()


def test_bad_arguments():
    q, k, v = qkv(1, 4, 2, 5, 9, 16, 8, dtype=np.float32)
    _, lse = attend.attention(q, k, v, return_lse=True)
    with pytest.raises(TypeError, match="visitor is a int"):
        attend.visit_weights(q, k, lse, 3)
    with pytest.raises(TypeError, match="values is a NoneType"):
        attend.attention_row_sums(q, k, v, None, 1)
    with pytest.raises(TypeError):
        attend.attention_row_sums(q, k, v, lambda n, tile: 1.0, 1.5)
    with pytest.raises(ValueError, match="lse has 4 dimensions"):
        attend.visit_weights(q, k, q, lambda *_: None)
    with pytest.raises(ValueError, match="lse shape"):
        attend.visit_weights(q, k, lse[:, :2], lambda *_: None)
    with pytest.raises(TypeError, match="unexpected keyword"):
        attend.visit_weights(q, k, lse, lambda *_: None, sofcap=1.0)
    wide = q.astype(np.float64)
    with pytest.raises(ValueError, match="f64"):
        attend.visit_weights(wide, wide, lse, lambda *_: None)
    with pytest.raises(ValueError, match="f64"):
        attend.attention_row_sums(wide, wide, wide, lambda n, tile: 1.0, 1)
    for count in (-1, 2**62):
        with pytest.raises((ValueError, MemoryError)):
            attend.attention_row_sums(q, k, v, lambda n, tile: 1.0, count)


def test_from_many_threads():
    """Functions in Python called from several callers at once, each with the bits of one alone."""
    q, k, v = qkv(2, 4, 2, 70, 90, 16, 8, dtype=np.float32)
    values = lambda n, tile: np.arange(tile.first_col, tile.first_col + tile.cols)  # noqa: E731
    want = attend.attention_row_sums(q, k, v, values, 1)[1]
    got = [None] * 4

    def run(n):
        got[n] = attend.attention_row_sums(q, k, v, values, 1)[1]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(x.tobytes() == want.tobytes() for x in got)


def test_calls_inside_a_visitor():
    q, k, v = qkv(1, 4, 2, 50, 90, 16, 8, dtype=np.float32)
    out, lse = attend.attention(q, k, v, return_lse=True)
    inner = []
    attend.visit_weights(q, k, lse, lambda tile, weights: inner.append(attend.attention(q, k, v).tobytes()))
    assert inner and all(x == out.tobytes() for x in inner)
