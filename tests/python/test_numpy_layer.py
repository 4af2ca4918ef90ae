"""attend.MultiHeadAttention on NumPy arrays, against the same layer written down in NumPy."""

import threading

import numpy as np
import pytest

import attend
import numpy_reference as reference
from numpy_cases import bfloat16, needs_bfloat16

NUMPY = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": bfloat16}
TOLERANCE = {"f64": 1e-12, "f32": 5e-6, "f16": 6e-3, "bf16": 5e-2}
DTYPES = ["f32", "f64", "f16", pytest.param("bf16", marks=needs_bfloat16)]

CONFIGS = {
    "plain": dict(width=16, heads=4),
    "gqa": dict(width=16, heads=4, kv_heads=2),
    "biases": dict(width=16, heads=2, qkv_bias=True, output_bias=True),
    "norms": dict(width=16, heads=4, kv_heads=1, qk_norm=True, norm_eps=1e-3),
    "rope": dict(width=16, heads=2, rope="half_split", rope_theta=100.0),
    "rope pairs": dict(width=16, heads=2, rope="interleaved"),
    "sizes": dict(width=10, heads=3, head_dim=4, value_dim=5, output_width=7),
    "factored values": dict(width=16, heads=4, kv_heads=2, value_rank=3),
    "all": dict(width=12, heads=4, kv_heads=2, head_dim=6, value_dim=3, output_width=5, value_rank=4, qkv_bias=True,
                output_bias=True, qk_norm=True, rope="half_split"),
    "cross": dict(width=16, heads=4, kv_heads=2, context_width=9, qkv_bias=True),
}


def make(name, dtype="f64", seed=3):
    config = CONFIGS[name]
    layer = attend.MultiHeadAttention(**config, dtype=dtype).initialise(seed)
    g = np.random.default_rng(seed)
    for key, array in layer.parameters.items():  # biases start as zeros and norms as ones: make them count
        if key[0] == "b" or key.endswith("norm"):
            array[...] = (g.integers(-16, 16, array.shape) / 16).astype(array.dtype)
    x = (g.integers(-32, 32, (2, 7, config["width"])) / 16).astype(NUMPY[dtype])
    context = None
    if "context_width" in config:
        context = (g.integers(-32, 32, (2, 5, config["context_width"])) / 16).astype(NUMPY[dtype])
    return layer, x, context


def expected(layer, name, x, context=None, parameters=None, **options):
    config = CONFIGS[name]
    return reference.layer(
        layer.parameters if parameters is None else parameters, x, context, heads=config["heads"],
        kv_heads=config.get("kv_heads", config["heads"]), rope_style=config.get("rope"),
        rope_theta=config.get("rope_theta", 10000.0), norm_eps=config.get("norm_eps", 1e-6), **options)


def close(got, wanted, dtype, factor=1.0):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    scale = max(1.0, np.abs(wanted).max(initial=0.0))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=factor * TOLERANCE[dtype] * scale)


CAUSAL = np.tril(np.ones((7, 7), bool))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward(name, dtype):
    layer, x, context = make(name, dtype)
    mask, visible = (attend.causal(), CAUSAL) if context is None else (attend.padding([5, 3]), None)
    if context is not None:
        visible = np.arange(5)[None, None, None, :] < np.array([5, 3])[:, None, None, None]
    y, weights = layer(x, context, mask, return_weights=True)
    want_y, want_weights = expected(layer, name, x, context, visible=visible)
    assert y.dtype == NUMPY[dtype] and weights.dtype == (np.float64 if dtype == "f64" else np.float32)
    close(y, want_y, dtype)
    close(weights, want_weights, dtype)
    assert (layer(x, context, mask) == y).all()
    assert layer.parameter_count == sum(p.size for p in layer.parameters.values())


def test_score_options():
    layer, x, _ = make("gqa")
    bias, sinks = np.linspace(-1, 1, 49).reshape(7, 7), np.array([0.5, -1.0, 2.0, 0.0])
    y = layer(x, mask=attend.causal(), scale=0.7, softcap=2.0, bias=bias, sinks=sinks)
    close(y, expected(layer, "gqa", x, visible=CAUSAL, scale=0.7, softcap=2.0, bias=bias, sinks=sinks)[0], "f64")
    with pytest.raises(TypeError, match="sliding"):
        layer(x, sliding=3)


@pytest.mark.parametrize("name", CONFIGS)
def test_backward_by_differences(name):
    """The gradients of the inputs and of every parameter, by central differences of the NumPy layer."""
    layer, x, context = make(name)
    visible, mask = (CAUSAL, attend.causal()) if context is None else (None, None)
    y, saved = layer(x, context, mask, save=True)
    g = np.random.default_rng(1)
    dout = g.standard_normal(y.shape)
    gradients = layer.backward(dout, saved)
    parameters = {key: value.copy() for key, value in layer.parameters.items()}

    def loss(x=x, context=context, **changed):
        return (expected(layer, name, x, context, {**parameters, **changed}, visible=visible)[0] * dout).sum()

    def check(gradient, array, key):
        assert gradient.shape == array.shape
        for _ in range(3):
            direction, eps = g.standard_normal(array.shape), 1e-6
            slope = (loss(**{key: array + eps * direction}) - loss(**{key: array - eps * direction})) / (2 * eps)
            assert (gradient * direction).sum() == pytest.approx(slope, abs=1e-6, rel=1e-6), key

    check(gradients.dx, x, "x")
    if context is None:
        assert gradients.dcontext is None
    else:
        check(gradients.dcontext, context, "context")
    assert gradients.parameters.keys() == parameters.keys()
    for key, array in parameters.items():
        check(gradients.parameters[key], array, key)


@pytest.mark.parametrize("name", ["plain", "gqa", "norms", "rope", "rope pairs", "factored values", "all"])
def test_step_by_step(name):
    """In f32 the steps give the bits of the whole."""
    layer, x, _ = make(name, "f32")
    whole = layer(x, mask=attend.causal())
    cache = layer.cache(batch=2, capacity=9)
    assert cache.length == 0 and cache.capacity == 9 and cache.bytes > 0
    parts = [layer.step(x[:, a:b], cache) for a, b in ((0, 3), (3, 4), (4, 7))]
    assert cache.length == 7
    assert (np.concatenate(parts, axis=1) == whole).all()
    cache.truncate(4)
    assert cache.length == 4 and (layer.step(x[:, 4:], cache) == whole[:, 4:]).all()
    cache.truncate(0)
    windowed = layer.step(x, cache, attend.window(2, 0))
    close(windowed, expected(layer, name, x, visible=CAUSAL & ~np.tril(np.ones((7, 7), bool), -3))[0], "f32")


def test_parameters_are_the_layers_own_memory():
    layer, x, _ = make("plain", "f32")
    before = layer(x)
    layer.parameters["wo"][...] *= 2
    assert (layer(x) == 2 * before).all()
    kept = layer.parameters["wq"]
    value = kept.copy()
    del layer  # the array keeps the layer alive
    junk = [np.zeros_like(value) for _ in range(100)]
    assert (kept == value).all() and junk


def test_load():
    layer, x, _ = make("biases", "f32")
    other = attend.MultiHeadAttention(**CONFIGS["biases"])
    assert (other(x) == 0).all()
    other.load(layer.parameters)
    assert (other(x) == layer(x)).all()
    values = {key: value.copy() for key, value in layer.parameters.items()}
    for bad, text in [({**values, "wq": values["wq"][:3]}, "wq has shape"), ({**values, "w2": values["wq"]}, "w2"),
                      ({key: v for key, v in values.items() if key != "bo"}, "missing: \\['bo'\\]")]:
        bad = {key: value * 0 for key, value in bad.items()}
        with pytest.raises(ValueError, match=text):
            other.load(bad)
    assert (other(x) == layer(x)).all()  # a load that fails changes nothing


def test_initialise():
    layer = attend.MultiHeadAttention(64, 4)
    assert layer.initialise(5) is layer
    first = {key: value.copy() for key, value in layer.parameters.items()}
    again = attend.MultiHeadAttention(64, 4).initialise(5).parameters
    other = attend.MultiHeadAttention(64, 4).initialise(6).parameters
    for key, value in first.items():
        assert (again[key] == value).all() and (other[key] != value).any()
        assert np.abs(value).max() <= 1 / 8 and value.std() > 0.05


def test_any_memory():
    layer, x, _ = make("gqa", "f32")
    wanted = layer(x)
    for turned in (np.asfortranarray(x), x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1]):
        assert (layer(turned) == wanted).all()
    x.flags.writeable = False
    assert (layer(x) == wanted).all()
    memory = np.zeros(x.nbytes + 1, np.uint8)
    moved = memory[1:].view(np.float32).reshape(x.shape)
    moved[...] = x
    assert (layer(moved) == wanted).all()
    assert layer(x[:, :0]).shape == (2, 0, 16) and layer(x[:0]).shape == (0, 7, 16)


BAD_CONFIGS = [dict(width=0, heads=1), dict(width=16, heads=0), dict(width=16, heads=3), dict(width=-16, heads=4),
               dict(width=16, heads=4, kv_heads=3), dict(width=16, heads=4, head_dim=-1),
               dict(width=12, heads=4, rope="half_split"), dict(width=16, heads=4, rope="spiral"),
               dict(width=2**40, heads=2**10), dict(width=16, heads=4, rope="half_split", rope_theta=-1.0),
               dict(width=16, heads=4, qk_norm=True, norm_eps=float("nan")), dict(width=16, heads=4, value_rank=-1)]


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=str)
def test_bad_configs(config):
    with pytest.raises((ValueError, MemoryError)):
        attend.MultiHeadAttention(**config)


def test_bad_arguments():
    layer, x, _ = make("gqa", "f32")
    y, saved = layer(x, save=True)
    cache = layer.cache(2, 9)
    cases = [
        (lambda: attend.MultiHeadAttention(16, 4, dtype="f8"), TypeError, "dtype is f8"),
        (lambda: attend.MultiHeadAttention("wide", 4), TypeError, "width is 'wide', expected a whole number"),
        (lambda: layer(x[0]), ValueError, "x has 2 dimensions, expected 3"),
        (lambda: layer(x[..., :8]), ValueError, "8"),
        (lambda: layer(x.astype(np.float64)), ValueError, "f64"),
        (lambda: layer(x.astype(int)), TypeError, "x dtype is int64"),
        (lambda: layer(x.tolist()), TypeError, "x is a list"),
        (lambda: layer(x, x[:1]), ValueError, "batch"),
        (lambda: layer(x, mask="causal"), TypeError, "mask is a str"),
        (lambda: layer(x, mask=attend.padding([1, 2, 3])), ValueError, "padding"),
        (lambda: layer.backward(y[:, :3], saved), ValueError, "dout"),
        (lambda: layer.backward(y[0], saved), ValueError, "dout has 2 dimensions"),
        (lambda: layer.backward(y, (None, None)), TypeError, None),
        (lambda: layer.step(x, None), TypeError, None),
        (lambda: layer.step(x[:1], cache), ValueError, "cache keys shape"),
        (lambda: layer.step(np.concatenate([x, x], 1), cache), ValueError, "a cache of 9"),
        (lambda: layer.step(x, attend.MultiHeadAttention(16, 4).cache(2, 9)), ValueError, "cache"),
        (lambda: layer.cache(-1, 9), ValueError, None),
        (lambda: layer.cache(2**40, 2**40), (ValueError, MemoryError), None),
        (lambda: cache.truncate(99), ValueError, None),
        (lambda: cache.truncate(-1), ValueError, None),
        (lambda: layer.initialise(-1), (TypeError, ValueError), None),
        (lambda: layer.load({}), ValueError, "missing"),
    ]
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()
    assert cache.length == 0
    assert (layer(x) == y).all()


def test_options_outlive_the_call():
    """What was saved keeps the mask's and the bias's arrays alive until backward."""
    layer, x, _ = make("gqa")
    bits, bias = CAUSAL.copy(), np.linspace(-1, 1, 49).reshape(7, 7)
    y, saved = layer(x, mask=attend.dense(bits), bias=bias, save=True)
    wanted = layer.backward(y, saved).dx
    _, saved = layer(x, mask=attend.dense(bits.copy()), bias=bias.copy(), save=True)
    junk = [np.zeros((7, 7), kind) for kind in (bool, float) for _ in range(500)]
    assert (layer.backward(y, saved).dx == wanted).all() and junk


def test_many_python_threads():
    layer, x, _ = make("all", "f32")
    wanted, failures = layer(x, mask=attend.causal()), []

    def run():
        for _ in range(50):
            cache = layer.cache(2, 7)
            steps = np.concatenate([layer.step(x[:, :4], cache), layer.step(x[:, 4:], cache)], axis=1)
            if not ((layer(x, mask=attend.causal()) == wanted).all() and (steps == wanted).all()):
                failures.append(1)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
