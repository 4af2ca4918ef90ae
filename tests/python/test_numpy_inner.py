"""A layer with another attention between its projections: the same as the projections around the function itself."""

import attend
import numpy as np
import pytest

WIDTH, HEADS, DIM, LENGTH = 48, 4, 12, 70


def heads_of(x):
    return np.ascontiguousarray(x.reshape(x.shape[0], x.shape[1], HEADS, -1).transpose(0, 2, 1, 3))


def span_parameter(inner):
    return inner.parameters["span"].reshape(-1)


CASES = {
    "linear attention": (lambda: attend.inner.linear_attention(eps=1e-6),
                         lambda inner, q, k, v: attend.linear_attention(q, k, v, eps=1e-6)),
    "retention": (lambda: attend.inner.linear_attention(feature_map="identity", normalise=False,
                                                        log_decay=np.log(np.float32([0.9, 0.95, 0.99, 1.0]))),
                  lambda inner, q, k, v: attend.linear_attention(
                      q, k, v, feature_map="identity", normalise=False,
                      log_decay=np.log(np.float32([0.9, 0.95, 0.99, 1.0])))),
    "linformer": (lambda: attend.inner.linformer(100, 16, seed=3),
                  lambda inner, q, k, v: attend.linformer(q, k, v, inner.parameters["e"][0, 0],
                                                          inner.parameters["f"][0, 0])),
    "reformer": (lambda: attend.inner.reformer(rounds=2, chunk=16, causal=True),
                 lambda inner, q, k, v: attend.reformer(q, v, rounds=2, chunk=16, causal=True)),
    "adaptive span": (lambda: attend.inner.adaptive_span(HEADS, initial_span=20),
                      lambda inner, q, k, v: attend.adaptive_span(q, k, v, span_parameter(inner))),
    "additive": (lambda: attend.inner.additive_attention(HEADS, DIM, mask=attend.causal()),
                 lambda inner, q, k, v: attend.additive_attention(q, k, inner.parameters["w"][0, :, 0], v,
                                                                  mask=attend.causal())),
}


@pytest.mark.parametrize("name", CASES)
def test_the_layer_is_the_function_between_projections(name):
    make, function = CASES[name]
    inner = make()
    layer = attend.MultiHeadAttention(WIDTH, HEADS, inner=inner).initialise(1)
    x = np.random.default_rng(0).standard_normal((2, LENGTH, WIDTH)).astype(np.float32)
    p = layer.parameters
    q, k, v = (heads_of(x @ p[w].T) for w in ("wq", "wk", "wv"))
    out = function(inner, q, k, v).transpose(0, 2, 1, 3).reshape(2, LENGTH, WIDTH)
    np.testing.assert_allclose(layer(x), out @ p["wo"].T, atol=2e-4)


@pytest.mark.parametrize("name", CASES)
def test_gradients_come_for_the_inner_parameters_too(name):
    inner = CASES[name][0]()
    layer = attend.MultiHeadAttention(WIDTH, HEADS, inner=inner).initialise(1)
    x = np.random.default_rng(0).standard_normal((1, LENGTH, WIDTH)).astype(np.float32)
    y, saved = layer(x, save=True)
    gradients = layer.backward(np.ones_like(y), saved)
    assert gradients.inner.keys() == inner.parameters.keys()
    for parameter, gradient in gradients.inner.items():
        assert gradient.shape == inner.parameters[parameter].shape
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0
    assert np.isfinite(gradients.dx).all() and np.abs(gradients.dx).max() > 0


def test_options_belong_to_the_inner_attention():
    layer = attend.MultiHeadAttention(WIDTH, HEADS, inner=attend.inner.linear_attention())
    with pytest.raises(ValueError, match="expected none: what it sees is said when it is made"):
        layer(np.zeros((1, 4, WIDTH), np.float32), mask=attend.causal())
