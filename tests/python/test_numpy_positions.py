"""Positions on NumPy arrays, against the same formulas written down in NumPy."""

import doctest

import numpy as np
import pytest

import attend
from test_numpy_package import run_examples

G = np.random.default_rng(5)


def test_sinusoidal_is_that_of_the_paper():
    p, i = np.arange(3, 20)[:, None], np.arange(5)[None]
    angle = p * 10000.0 ** (-2 * i / 10)
    expected = np.empty((17, 10))
    expected[:, 0::2], expected[:, 1::2] = np.sin(angle), np.cos(angle)
    np.testing.assert_allclose(attend.sinusoidal(17, 10, first_position=3), expected, atol=1e-7)
    np.testing.assert_allclose(attend.sinusoidal(17, 10, first_position=3, dtype="f64"), expected, atol=1e-14)


def test_learned_positions_and_their_gradient():
    x, table = G.standard_normal((2, 5, 4)), G.standard_normal((9, 4))
    np.testing.assert_allclose(attend.add_positions(x, table, first_position=2), x + table[2:7])
    expected = np.zeros((9, 4))
    expected[2:7] = x.sum(0)
    np.testing.assert_allclose(attend.add_positions_backward(x, 9, first_position=2), expected)
    with pytest.raises(ValueError, match="first_position is 5"):
        attend.add_positions(x, table, first_position=5)


def test_alibi_slopes():
    np.testing.assert_array_equal(attend.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    np.testing.assert_array_equal(attend.alibi_slopes(12)[8:], 2.0 ** -(np.arange(0, 4) + 0.5).astype(np.float32))


@pytest.mark.parametrize("scaling", [None, attend.RopeScaling("linear", factor=4),
                                     attend.RopeScaling("llama3", factor=8, original_length=64),
                                     attend.RopeScaling("yarn", factor=4, original_length=64)])
def test_rope_frequencies_by_what_rope_frequencies_says(scaling):
    angles, magnitude = attend.rope_frequencies(8, 100.0, scaling)
    x = G.standard_normal((1, 2, 6, 8))
    angle = (np.arange(6) + 50)[:, None] * angles
    z = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angle) * magnitude
    y = attend.rope(x, theta=100.0, first_position=50, scaling=scaling)
    np.testing.assert_allclose(y, np.concatenate([z.real, z.imag], -1), atol=1e-12)
    back = attend.rope_backward(y, theta=100.0, first_position=50, scaling=scaling)
    np.testing.assert_allclose(back, x * magnitude ** 2, atol=1e-12)


def test_scaling_from_a_config():
    config = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
              "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1, "rope_theta": 10000}
    angles, magnitude = attend.rope_frequencies(64, 1e4, attend.RopeScaling.from_config(config))
    assert magnitude == 1
    np.testing.assert_allclose(angles[[0, -1]], [1, 1e4 ** (-62 / 64) / 40])
    with pytest.raises(ValueError, match="expected both"):
        attend.RopeScaling.from_config({"rope_type": "yarn"})
    with pytest.raises(ValueError, match='kind is "ntk"'):
        attend.RopeScaling("ntk", factor=2)
    with pytest.raises(ValueError, match="original_length is 0"):
        attend.RopeScaling("yarn", factor=2)


def dense(values, M, N):
    return values[..., M - 1 + np.arange(N)[None] - np.arange(M)[:, None]]


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("M, N", [(7, 7), (3, 11), (11, 3)])
def test_distance_bias_is_the_dense_one(M, N, heads):
    q, k, v = G.standard_normal((2, 3, M, 4)), G.standard_normal((2, 3, N, 4)), G.standard_normal((2, 3, N, 5))
    values = G.standard_normal((heads, M + N - 1))
    given = values if heads > 1 else values[0]
    spread = dense(values, M, N)[None]
    out, lse = attend.attention(q, k, v, distance_bias=given, return_lse=True)
    np.testing.assert_allclose(out, attend.attention(q, k, v, bias=spread), atol=1e-13)
    dout = G.standard_normal(out.shape)
    full = attend.attention_backward(dout, q, k, v, out, lse, bias=spread)
    got = attend.attention_backward(dout, q, k, v, out, lse, distance_bias=given)
    expected = np.zeros(values.shape)
    for i in range(M):
        for j in range(N):
            expected[:, M - 1 + j - i] += full.dbias[0, :, i, j]
    assert got.dbias.shape == given.shape
    np.testing.assert_allclose(got.dbias.reshape(values.shape), expected, atol=1e-12)
    np.testing.assert_allclose(got.dq, full.dq, atol=1e-12)


def test_distance_bias_refuses_what_does_not_fit():
    q = np.zeros((1, 2, 4, 8), np.float32)
    with pytest.raises(ValueError, match=r"distance_bias shape is \[1, 1, 1, 6\], expected \[1, 1, 1, 7\]"):
        attend.attention(q, q, q, distance_bias=np.zeros(6, np.float32))
    with pytest.raises(ValueError, match="both given"):
        attend.attention(q, q, q, distance_bias=np.zeros(7, np.float32), bias=np.zeros((4, 4), np.float32))


@pytest.mark.parametrize("align", ["last_key", "first_key"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_and_its_gradient(align, bidirectional):
    M, N = 5, 9
    table = G.standard_normal((8, 2))
    options = dict(bidirectional=bidirectional, max_distance=6, align=align)
    bias = attend.t5_bias(table, M, N, **options)
    offset = N - M if align == "last_key" else 0
    expected = np.array([[table[attend.t5_bucket(j - i - offset, bidirectional=bidirectional, buckets=8,
                                                 max_distance=6)] for j in range(N)] for i in range(M)])
    np.testing.assert_array_equal(dense(bias, M, N), expected.transpose(2, 0, 1))
    dbias = G.standard_normal(bias.shape)
    dtable = attend.t5_bias_backward(dbias, M, N, buckets=8, **options)
    first = 1 - (N if align == "last_key" else M)
    want = np.zeros((8, 2))
    for x in range(M + N - 1):
        want[attend.t5_bucket(first + x, bidirectional=bidirectional, buckets=8, max_distance=6)] += dbias[:, x]
    np.testing.assert_allclose(dtable, want, atol=1e-14)


def test_docstring_examples():
    q = G.standard_normal((1, 4, 6, 8)).astype(np.float32)
    out, lse = attend.attention(q, q, q, return_lse=True)
    table = np.zeros((32, 4), np.float32)
    names = {"np": np, "attend": attend, "q": q, "k": q, "v": q, "dout": q, "out": out, "lse": lse, "table": table,
             "dy": np.ones((1, 6, 4), np.float32), "x": np.ones((1, 6, 4), np.float32),
             "bias": attend.t5_bias(table, 6, 6)}
    tests = doctest.DocTestFinder(exclude_empty=True).find(attend._positions, extraglobs=names)
    for test in tests:
        assert not run_examples(test)
    assert sum(len(test.examples) for test in tests) > 8


def test_every_name_of_a_config_is_its_own_number():
    """Each key of a Transformers config alone changes the frequencies as the parameter that it is does."""
    base = dict(rope_type="llama3", factor=8.0, original_max_position_embeddings=64)
    for key, name, value in (("low_freq_factor", "low_frequency", 1.5), ("high_freq_factor", "high_frequency", 6.0)):
        got = attend.rope_frequencies(64, scaling=attend.RopeScaling.from_config({**base, key: value}))
        want = attend.rope_frequencies(64, scaling=attend.RopeScaling("llama3", 8.0, 64, **{name: value}))
        plain = attend.rope_frequencies(64, scaling=attend.RopeScaling("llama3", 8.0, 64))
        assert np.array_equal(got[0], want[0]) and not np.array_equal(got[0], plain[0]), key
    base = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=4096)
    for key, value in (("beta_fast", 16.0), ("beta_slow", 2.0), ("attention_factor", 1.7)):
        got = attend.rope_frequencies(64, scaling=attend.RopeScaling.from_config({**base, key: value}))
        want = attend.rope_frequencies(64, scaling=attend.RopeScaling("yarn", 8.0, 4096, **{key: value}))
        plain = attend.rope_frequencies(64, scaling=attend.RopeScaling("yarn", 8.0, 4096))
        assert np.array_equal(got[0], want[0]) and got[1] == want[1], key
        assert not np.array_equal(got[0], plain[0]) or got[1] != plain[1], key


def test_t5_bias_by_its_definition():
    """Element queries - 1 + j - i is the table's row of the distance of key j from query i; by default the last query
    stands at the last key."""
    table = np.random.default_rng(4).standard_normal((32, 3)).astype(np.float32)
    for queries, keys in ((5, 9), (9, 5), (1, 1), (4, 4)):
        for align, shift in ((None, keys - queries), ("last_key", keys - queries), ("first_key", 0)):
            bias = attend.t5_bias(table, queries, keys, **({} if align is None else dict(align=align)))
            assert bias.shape == (3, queries + keys - 1)
            for i in range(queries):
                for j in range(keys):
                    row = table[attend.t5_bucket(j - i - shift)]
                    assert (bias[:, queries - 1 + j - i] == row).all(), (queries, keys, align, i, j)
    assert attend.t5_bias(table, 0, 0).shape == (3, 0) and attend.t5_bias(table, 1, 0).shape == (3, 0)
