"""Weights in the formats of files, and projections with them, against the numbers that ggml's formats define."""

import numpy as np
import pytest

import attend
from numpy_cases import on_grid, rng


def q8_0(values):
    """[out, in] as ggml's q8_0: 32 numbers as an f16 scale and int8; the bytes, and the numbers they stand for."""
    blocks = values.reshape(values.shape[0], -1, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
    whole = np.round(blocks / np.where(scale == 0, 1, scale).astype(np.float32)).astype(np.int8)
    packed = np.concatenate((scale.view(np.int8), whole), axis=-1)
    return packed.tobytes(), (whole * scale.astype(np.float32)).reshape(values.shape)


def q4_0(values):
    """[out, in] as ggml's q4_0: an f16 scale, and 16 bytes whose low halves come first."""
    blocks = values.reshape(values.shape[0], -1, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True) / 7).astype(np.float16)
    whole = np.clip(np.round(blocks / scale.astype(np.float32)) + 8, 0, 15).astype(np.uint8)
    packed = np.concatenate((scale.view(np.uint8), whole[..., :16] | whole[..., 16:] << 4), axis=-1)
    return packed.tobytes(), ((whole.astype(np.float32) - 8) * scale.astype(np.float32)).reshape(values.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_floats(dtype):
    g = rng(1)
    values = on_grid(g, (70, 40)).astype(dtype)
    x, bias = (on_grid(g, shape).astype(np.float32) for shape in ((5, 40), (70,)))
    weight = attend.Weight(values)
    assert weight.shape == (70, 40) and weight.format == {4: "f32", 2: "f16"}[values.itemsize]
    assert weight.bytes == attend.weight_bytes(weight.format, 70, 40) >= values.nbytes
    assert (weight.row(69) == values[69]).all()
    want = x.astype(np.float64) @ values.astype(np.float64).T
    np.testing.assert_allclose(attend.project(x, weight), want, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(attend.project(x, weight, bias), want + bias, rtol=1e-5, atol=1e-4)


def test_any_memory():
    g = rng(2)
    values, x = (on_grid(g, shape).astype(np.float32) for shape in ((8, 64), (6, 64)))
    want = attend.project(x, attend.Weight(values))
    assert attend.project(x, attend.Weight(np.asfortranarray(values))).tobytes() == want.tobytes()
    spread = np.zeros((12, 128), np.float32)[::2, ::2]
    spread[...] = x
    assert attend.project(spread, attend.Weight(values)).tobytes() == want.tobytes()
    assert (attend.project(x[::-1], attend.Weight(values)) == want[::-1]).all()
    values[...] = 0  # it was copied
    assert attend.project(x[:0], attend.Weight(values)).shape == (0, 8)


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
def test_quantised(form):
    g = rng(3)
    data, meant = {"q8_0": q8_0, "q4_0": q4_0}[form](g.standard_normal((70, 96), np.float32))
    weight = attend.Weight.from_bytes(form, (70, 96), data)
    assert weight.format == form and weight.shape == (70, 96)
    np.testing.assert_allclose([weight.row(r) for r in range(70)], meant, rtol=1e-6, atol=1e-7)
    x = g.standard_normal((5, 96), np.float32)
    got, want = attend.project(x, weight), x.astype(np.float64) @ meant.astype(np.float64).T
    # Each run of 32 numbers of x is off by at most 1/254 of its largest.
    runs = np.repeat(np.abs(x.reshape(5, 3, 32)).max(-1), 32, axis=1)
    assert (np.abs(got - want) <= runs / 254 @ np.abs(meant).T + 1e-4).all()


def test_several_at_once():
    g = rng(4)
    x = on_grid(g, (3, 32)).astype(np.float32)
    floats = attend.Weight(on_grid(g, (5, 32)).astype(np.float32))
    rounded = attend.Weight.from_bytes("q8_0", (7, 32), q8_0(g.standard_normal((7, 32), np.float32))[0])
    bias = np.arange(7, dtype=np.float32)
    both = attend.project(x, [floats, rounded], [None, bias])
    assert both[0].tobytes() == attend.project(x, floats).tobytes()
    assert both[1].tobytes() == attend.project(x, rounded, bias).tobytes()
    assert attend.project(x, []) == []


def test_every_format():
    for form in attend.Weight.formats:
        numbers, size = attend._core.weight_block(form)
        weight = attend.Weight.from_bytes(form, (2, 256), bytes(2 * 256 // numbers * size))
        assert not weight.row(1).any() and weight.bytes == attend.weight_bytes(form, 2, 256)


def test_bad_arguments():
    eye = np.eye(4, dtype=np.float32)
    weight = attend.Weight(eye)
    with pytest.raises(ValueError, match="values has 3 dimensions"):
        attend.Weight(eye[None])
    with pytest.raises(TypeError, match="float64"):
        attend.Weight(np.eye(4))
    with pytest.raises(ValueError, match='format is "q9", expected one of f32, f16'):
        attend.Weight.from_bytes("q9", (1, 32), b"")
    with pytest.raises(ValueError, match="data bytes is 33, expected 34"):
        attend.Weight.from_bytes("q8_0", (1, 32), bytes(33))
    with pytest.raises(ValueError, match="in is 31, expected a multiple of 32"):
        attend.Weight.from_bytes("q8_0", (1, 31), bytes(34))
    for shape in ((-1, 32), (2**62, 2**62)):
        with pytest.raises(ValueError):
            attend.Weight.from_bytes("q8_0", shape, bytes(34))
    with pytest.raises(TypeError):
        attend.Weight.from_bytes("q8_0", (1, 32.0), bytes(34))
    for r in (-1, 4):
        with pytest.raises(ValueError, match=f"no row {r} of 4"):
            weight.row(r)
    with pytest.raises(ValueError, match="x dim is 3, expected 4"):
        attend.project(eye[:, :3], weight)
    with pytest.raises(ValueError, match="x dtype is f16, expected f32"):
        attend.project(eye.astype(np.float16), weight)
    with pytest.raises(ValueError, match="x has 1 dimensions, expected 2"):
        attend.project(eye[0], weight)
    with pytest.raises(ValueError, match="bias shape"):
        attend.project(eye, weight, np.ones(5, np.float32))
    with pytest.raises(ValueError, match="there are 1 biases, expected 2"):
        attend.project(eye, [weight, weight], [None])
    with pytest.raises(TypeError, match="a weight is a ndarray"):
        attend.project(eye, [eye])
