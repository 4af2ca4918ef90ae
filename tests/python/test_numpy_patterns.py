"""Unions and patterns against plain NumPy: the mask written out, the softmax written out."""

import numpy as np
import pytest

import attend

L, D = 96, 16
I, J = np.arange(L)[:, None], np.arange(L)[None, :]
NEAR = np.abs(I - J)
LISTED = np.isin(np.arange(L), (0, 40))

PATTERNS = {
    "chunks": (lambda: attend.chunks(10, 1), (J // 10 <= I // 10) & (J // 10 >= I // 10 - 1)),
    "dilated": (lambda: attend.dilated(3), (I - J) % 3 == 0),
    "columns": (lambda: attend.columns(8, 5, 2), (J % 8 >= 5) & (J % 8 < 7)),
    "tokens": (lambda: attend.tokens([40, 0]), LISTED[None, :] & (I >= 0)),
    "global_tokens": (lambda: attend.global_tokens([0, 40]), LISTED[None, :] | LISTED[:, None]),
    "strided": (lambda: attend.strided(7), (J <= I) & ((NEAR <= 7) | ((I - J) % 7 == 0))),
    "fixed": (lambda: attend.fixed(9, 2), (J <= I) & ((I // 9 == J // 9) | (J % 9 >= 7))),
    "longformer": (lambda: attend.longformer(5, global_positions=[0, 40]),
                   (NEAR <= 5) | LISTED[None, :] | LISTED[:, None]),
    "longformer dilated": (lambda: attend.longformer(5, 2, [0, 40]),
                           ((NEAR <= 10) & (NEAR % 2 == 0)) | LISTED[None, :] | LISTED[:, None]),
    "streaming": (lambda: attend.streaming(4, 20), (J <= I) & ((J < 4) | (I - J < 20))),
    "permutation": (lambda: attend.block_permutation(L, permutations=[[2, 0, 1]]),
                    np.array([2, 0, 1])[I // 32] == J // 32),
    "or": (lambda: attend.window(2, 0) | attend.tokens([1]), ((J <= I) & (NEAR <= 2)) | (J == 1)),
    "not": (lambda: ~attend.causal() & attend.window(9, 9), (J > I) & (NEAR <= 9)),
}


def plain(q, k, v, visible):
    scores = np.where(visible, q @ k.swapaxes(-1, -2) / np.sqrt(D), -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1) @ v


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name):
    make, visible = PATTERNS[name]
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 2, L, D)) for _ in range(3))
    expected = plain(q, k, v, visible)
    got = attend.attention(*(x.astype(np.float32) for x in (q, k, v)), mask=make())
    np.testing.assert_allclose(got, expected, atol=2e-5)
    np.testing.assert_allclose(attend.attention(q, k, v, mask=make()), expected, atol=1e-12)


def test_bigbird():
    q = np.random.default_rng(5).standard_normal((1, 2, L, D))
    options = dict(block=8, random_blocks=2, heads=2, seed=4)
    eye = np.broadcast_to(np.eye(L), (1, 2, L, L))
    weights = attend.attention(q, q, eye, mask=attend.bigbird(L, **options))  # the values are the weights
    blocks = (weights > 0).reshape(2, L // 8, 8, L // 8, 8).any(axis=(2, 4))
    y, x = np.indices((L // 8, L // 8))
    must = (abs(y - x) <= 1) | (y == 0) | (x == 0)
    assert (blocks | ~must).all()
    assert ((blocks & ~must).sum(-1)[:, 1:] == 2).all()
    assert (blocks[0] != blocks[1]).any()
    again = attend.attention(q, q, eye, mask=attend.bigbird(L, **options))
    np.testing.assert_array_equal(weights, again)


def test_random_permutation():
    q = np.ones((1, 1, L, D))
    eye = np.broadcast_to(np.eye(L), (1, 1, L, L))
    weights = attend.attention(q, q, eye, mask=attend.block_permutation(L, blocks=6, seed=1))
    blocks = (weights > 0).reshape(6, 16, 6, 16).all(axis=(1, 3))
    assert (blocks.sum(0) == 1).all() and (blocks.sum(1) == 1).all()


@pytest.mark.parametrize("make, words", [
    (lambda: attend.dilated(0), "dilated: step is 0"),
    (lambda: attend.longformer(0, 4), "skips every key but a query's own"),
    (lambda: attend.bigbird(640, window_blocks=2), "expected an odd number"),
    (lambda: attend.block_permutation(8), "either blocks or permutations"),
    (lambda: attend.block_permutation(8, permutations=[[0, 0]]), "expected each of 0 to 1 once"),
    (lambda: attend.tokens([-1]), r"positions\[0\] is -1"),
])
def test_nonsense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_positions_beyond_the_keys():
    q = np.ones((1, 1, 4, 4), np.float32)
    with pytest.raises(ValueError, match="expected 0 to 3"):
        attend.attention(q, q, q, mask=attend.global_tokens([4]))


def test_or_wants_a_mask():
    with pytest.raises(TypeError):
        attend.causal() | 3
