"""attend.LatentAttention on NumPy arrays, against the same layer written down in NumPy."""

import doctest

import numpy as np
import pytest

import attend
from numpy_cases import bfloat16, needs_bfloat16
from test_numpy_package import run_examples

CONFIGS = {
    "compressed": dict(width=20, heads=3, q_rank=9, kv_rank=12, nope_dim=6, rope_dim=4, value_dim=5),
    "plain query": dict(width=16, heads=2, kv_rank=16, nope_dim=4, rope_dim=2, value_dim=6, norm_eps=1e-3),
    "yarn": dict(width=16, heads=4, q_rank=8, kv_rank=8, nope_dim=4, rope_dim=6, value_dim=4, rope="half_split",
                 rope_scaling=attend.RopeScaling("yarn", factor=8, original_length=16, mscale=0.7, mscale_all_dim=1)),
}


def make(name, dtype="f64"):
    layer = attend.LatentAttention(**CONFIGS[name], dtype=dtype).initialise(2)
    g = np.random.default_rng(3)
    for key in layer.parameters:
        if key.endswith("norm"):
            layer.parameters[key][...] = g.standard_normal(layer.parameters[key].shape)
    return layer, g.standard_normal((2, 9, CONFIGS[name]["width"]))


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def turn(x, config):
    turns, magnitude = attend.rope_frequencies(config["rope_dim"], 1e4, config.get("rope_scaling"))
    angle = np.arange(x.shape[-2])[:, None] * turns
    half = config["rope_dim"] // 2
    a, b = (x[..., :half], x[..., half:]) if config.get("rope") == "half_split" else (x[..., 0::2], x[..., 1::2])
    z = (a + 1j * b) * np.exp(1j * angle) * magnitude
    if config.get("rope") == "half_split":
        return np.concatenate([z.real, z.imag], -1)
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def expected(name, layer, x):
    c, p = CONFIGS[name], {key: np.asarray(value, np.float64) for key, value in layer.parameters.items()}
    B, L, H, n, v = *x.shape[:2], c["heads"], c["nope_dim"], c["value_dim"]
    eps = c.get("norm_eps", 1e-6)
    split = lambda y: y.reshape(B, L, H, -1).transpose(0, 2, 1, 3)  # noqa: E731
    q = split((norm(x @ p["wq_down"].T, p["q_norm"], eps) if "q_rank" in c else x) @ p["wq"].T)
    q = np.concatenate([q[..., :n], turn(q[..., n:], c)], -1)
    down = x @ p["wkv_down"].T
    latent = norm(down[..., :c["kv_rank"]], p["kv_norm"], eps)
    shared = turn(down[..., c["kv_rank"]:], c)[:, None]
    up = split(latent @ p["wkv_up"].T)
    k = np.concatenate([up[..., :n], np.broadcast_to(shared, (B, H, L, c["rope_dim"]))], -1)
    s = layer.scale * q @ k.transpose(0, 1, 3, 2)
    s[..., np.triu(np.ones((L, L), bool), 1)] = -np.inf
    w = np.exp(s - s.max(-1, keepdims=True))
    out = w / w.sum(-1, keepdims=True) @ up[..., n:]
    return out.transpose(0, 2, 1, 3).reshape(B, L, H * v) @ p["wo"].T


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype, tolerance", [("f64", 1e-12), ("f32", 1e-5), ("f16", 2e-2),
                                              pytest.param("bf16", 0.2, marks=needs_bfloat16)])
def test_forward_prefill_and_step(name, dtype, tolerance):
    layer, x = make(name, dtype)
    x = x.astype({"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": bfloat16}[dtype])
    want = expected(name, layer, x.astype(np.float64))
    close = lambda y, part: np.testing.assert_allclose(  # noqa: E731
        np.asarray(y, np.float64), want[:, part], atol=tolerance * (np.abs(want).max() + 0.1))
    close(layer(x, attend.causal()), slice(None))
    cache = layer.cache(2, 9)
    close(layer.prefill(x[:, :5], cache), slice(0, 5))
    close(layer.step(x[:, 5:6], cache), slice(5, 6))
    close(layer.step(x[:, 6:8], cache), slice(6, 8))
    close(layer.prefill(x[:, 8:], cache), slice(8, 9))
    assert cache.length == 9 and cache.bytes == 2 * 9 * layer.bytes_per_token == 2 * 9 * cache.bytes_per_token


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_by_differences(name):
    layer, x = make(name)
    y, saved = layer(x, attend.causal(), save=True)
    dout = np.random.default_rng(4).standard_normal(y.shape)
    dx, gradients = layer.backward(dout, saved)
    loss = lambda: (layer(x, attend.causal()) * dout).sum()  # noqa: E731
    assert gradients.keys() == layer.parameters.keys()
    for array, gradient in [(x, dx)] + [(layer.parameters[key], gradients[key]) for key in gradients]:
        for at in np.random.default_rng(5).integers(0, array.size, 4):
            kept = array.flat[at]
            array.flat[at] = kept + 1e-6
            above = loss()
            array.flat[at] = kept - 1e-6
            below = loss()
            array.flat[at] = kept
            np.testing.assert_allclose(gradient.flat[at], (above - below) / 2e-6, rtol=1e-4, atol=1e-6)


def test_what_is_refused():
    with pytest.raises(ValueError, match="kv_rank is 9, expected at most 8"):
        attend.LatentAttention(8, 1, kv_rank=9, nope_dim=2, rope_dim=2, value_dim=2)
    layer, x = make("yarn")
    with pytest.raises(ValueError, match="expected at most 2"):
        layer.step(x, layer.cache(2, 2))
    with pytest.raises(ValueError, match="unknown: \\['w'\\]"):
        layer.load({"w": x})


def test_docstring_examples():
    layer = attend.LatentAttention(1024, 8, q_rank=384, kv_rank=256, nope_dim=64, rope_dim=32,
                                   value_dim=64).initialise(0)
    x = np.ones((1, 5, 1024), np.float32)
    names = {"np": np, "attend": attend, "layer": layer, "x": x, "prompt": x, "tokens": 5, "cache": layer.cache(1, 64)}
    tests = doctest.DocTestFinder(exclude_empty=True).find(attend._latent_attention, extraglobs=names)
    for test in tests:
        test.globs["layer"], test.globs["cache"] = layer, layer.cache(1, 64)
        assert not run_examples(test)
    assert sum(len(test.examples) for test in tests) > 8
