"""The paged KV cache: the bits of attention over the same keys, pages that are counted, calls that must come alone."""

import threading

import numpy as np
import pytest

import attend
from numpy_cases import bfloat16, needs_bfloat16, on_grid, qkv, rng


def cache_of(k, v, pages=32, **options):
    """A cache with one sequence of these tokens."""
    cache = attend.PagedKvCache(pages, k.shape[1], k.shape[3], v.shape[3], **options)
    sequence = cache.add()
    cache.append(sequence, k, v)
    return cache, sequence


def name_of(dtype):
    return {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[np.dtype(dtype).name]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, pytest.param(bfloat16, marks=needs_bfloat16, id="bfloat16")])
def test_same_bits_as_attention(dtype):
    q, k, v = qkv(1, 4, 2, 5, 150, 16, 24, dtype=dtype)
    cache, sequence = cache_of(k, v, dtype=name_of(dtype))
    assert cache.length(sequence) == 150
    for options in ({}, dict(softcap=2.0), dict(sinks=np.ones(4, dtype)), dict(scale=0.3)):
        out, lse = attend.paged_attention(q, cache, [sequence], attend.causal(), return_lse=True, **options)
        want, want_lse = attend.attention(q, k, v, attend.causal(), return_lse=True, **options)
        assert out.dtype == want.dtype and out.tobytes() == want.tobytes() and lse.tobytes() == want_lse.tobytes()


def test_layouts_and_pieces():
    q, k, v = qkv(1, 4, 2, 5, 150, 16, 16, dtype=np.float32)
    cache = attend.PagedKvCache(8, 2, 16)
    sequence = cache.add()
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    for at in range(0, 150, 37):
        cache.append(sequence, turned[1][:, at:at + 37], turned[2][:, at:at + 37], layout="blhd")
    cache.replace(sequence, 60, turned[1][:, 5:15], turned[2][:, 5:15], layout="blhd")
    k[:, :, 60:70], v[:, :, 60:70] = k[:, :, 5:15].copy(), v[:, :, 5:15].copy()
    out = attend.paged_attention(turned[0], cache, sequence, layout="blhd")
    assert out.transpose(0, 2, 1, 3).tobytes() == attend.attention(q, k, v).tobytes()


def test_sequences_fork_and_forget():
    q, k, v = qkv(2, 2, 2, 1, 200, 8, 8, dtype=np.float32)
    cache, a = cache_of(k[:1], v[:1], pages=8)
    assert cache.free_pages == 4 and cache.pages_to_append(a, 56) == 0 and cache.pages_to_append(a, 57) == 1
    b = cache.fork(a, 130)
    assert (cache.length(a), cache.length(b), cache.free_pages) == (200, 130, 3)
    cache.append(b, k[1:, :, :20], v[1:, :, :20])
    cache.replace(a, 64, k[1:, :, :10], v[1:, :, :10])
    out = attend.paged_attention(q, cache, [a, b])
    k_a, v_a = k[:1].copy(), v[:1].copy()
    k_a[:, :, 64:74], v_a[:, :, 64:74] = k[1:, :, :10], v[1:, :, :10]
    k_b, v_b = (np.concatenate((x[:1, :, :130], x[1:, :, :20]), axis=2) for x in (k, v))
    assert out[:1].tobytes() == attend.attention(q[:1], k_a, v_a).tobytes()
    assert out[1:].tobytes() == attend.attention(q[1:], k_b, v_b).tobytes()

    cache.truncate(b, 64)
    cache.forget(a, 0, 128)
    assert (cache.length(a), cache.length(b)) == (72, 64)
    np.testing.assert_allclose(attend.paged_attention(q[:1], cache, [a]),
                               attend.attention(q[:1], k_a[:, :, 128:], v_a[:, :, 128:]), rtol=1e-5, atol=1e-6)
    cache.remove(a)
    cache.remove(b)
    assert cache.free_pages == cache.pages == 8 and cache.bytes == 8 * 64 * cache.bytes_per_token


def test_pages_are_counted_at_their_edges():
    _, k, v = qkv(1, 2, 2, 1, 200, 8, 8, dtype=np.float32)
    cache = attend.PagedKvCache(6, 2, 8)
    a = cache.add()
    for length in (0, 1, 63, 64, 65, 128):
        cache.truncate(a, 0)
        cache.append(a, k[:, :, :length], v[:, :, :length])
        assert 6 - cache.free_pages == -(-length // 64), length
        for count in (0, 1, 63, 64, 65, 128):
            assert cache.pages_to_append(a, count) == -(-(length + count) // 64) - -(-length // 64), (length, count)
    assert cache.length(a) == 128 and cache.free_pages == 4
    whole, part = cache.fork(a, 128), cache.fork(a, 65)
    assert cache.free_pages == 3, "whole pages are shared, a part of one is copied"
    cache.truncate(a, 64)
    assert cache.free_pages == 3, "the other sequence still holds that page"
    cache.remove(whole)
    assert cache.free_pages == 4
    cache.remove(a)
    assert cache.free_pages == 4 and cache.length(part) == 65
    cache.truncate(part, 64)
    assert cache.free_pages == 5
    cache.remove(part)
    assert cache.free_pages == 6
    with pytest.raises(ValueError, match="there is no sequence"):
        cache.length(part)


def test_what_a_fork_changes_is_its_own():
    q, k, v = qkv(1, 2, 2, 1, 300, 8, 8, dtype=np.float32)
    cache, a = cache_of(k[:, :, :100], v[:, :, :100], pages=12)
    b = cache.fork(a, 100)
    cache.append(a, k[:, :, 100:130], v[:, :, 100:130])
    cache.append(b, k[:, :, 200:230], v[:, :, 200:230])
    cache.replace(b, 3, k[:, :, 290:291], v[:, :, 290:291])  # in a page that both hold

    def expect(sequence, *parts):
        keys, values = (np.concatenate([x[:, :, first:last] for first, last in parts], axis=2) for x in (k, v))
        assert attend.paged_attention(q, cache, [sequence]).tobytes() == attend.attention(q, keys, values).tobytes()

    expect(a, (0, 130))
    expect(b, (0, 3), (290, 291), (4, 100), (200, 230))
    # Overwriting across the edge of a page, and up to the last token.
    cache.replace(a, 60, k[:, :, 230:240], v[:, :, 230:240])
    cache.replace(a, 120, k[:, :, 240:250], v[:, :, 240:250])
    expect(a, (0, 60), (230, 240), (70, 120), (240, 250))
    expect(b, (0, 3), (290, 291), (4, 100), (200, 230))
    with pytest.raises(ValueError):
        cache.replace(a, 121, k[:, :, 240:250], v[:, :, 240:250])
    # Whole pages in the middle: the later ones move up.
    cache.append(b, k[:, :, 130:260], v[:, :, 130:260])
    assert cache.length(b) == 260
    cache.forget(b, 64, 64)
    assert cache.length(b) == 196
    np.testing.assert_allclose(
        attend.paged_attention(q, cache, [b]),
        attend.attention(q, *(np.concatenate([x[:, :, :3], x[:, :, 290:291], x[:, :, 4:64], x[:, :, 228:230], x[:, :, 130:260]], axis=2)
                              for x in (k, v))), rtol=1e-5, atol=1e-6)


def test_int8_is_close():
    q, k, v = qkv(1, 2, 2, 3, 100, 32, 32, dtype=np.float32)
    exact, _ = cache_of(k, v)
    cache, sequence = cache_of(k, v, int8=True)
    assert cache.bytes < exact.bytes / 2
    out, want = attend.paged_attention(q, cache, [sequence]), attend.attention(q, k, v)
    assert out.tobytes() != want.tobytes()
    assert np.abs(out - want).max() < 0.05 * np.abs(v).max()


def test_out_of_pages_changes_nothing():
    _, k, v = qkv(1, 2, 2, 1, 200, 8, 8, dtype=np.float32)
    cache, sequence = cache_of(k, v, pages=4)
    with pytest.raises(attend.OutOfPages, match="needs 3 pages of 64 tokens, 0 of 4 are free"):
        cache.append(sequence, k, v)
    with pytest.raises(attend.OutOfPages):
        cache.fork(sequence, 100)
    assert issubclass(attend.OutOfPages, RuntimeError)
    assert cache.length(sequence) == 200 and cache.free_pages == 0


def test_row_sums():
    """With f = 1 a row's sum is the sum of its weights, with f = column it is where the query looks."""
    q, k, v = qkv(1, 4, 2, 5, 150, 16, 16, dtype=np.float32)
    cache, sequence = cache_of(k, v)

    def values(n, tile):
        return np.arange(tile.first_col, tile.first_col + tile.cols) if n else 1.0

    out, sums = attend.paged_attention(q, cache, [sequence], attend.causal(), values=values, count=2)
    want, want_sums = attend.attention_row_sums(q, k, v, values, 2, attend.causal())
    assert out.tobytes() == want.tobytes() and sums.tobytes() == want_sums.tobytes()
    np.testing.assert_allclose(sums[..., 0], 1, rtol=1e-5)


def test_bad_arguments():
    q, k, v = qkv(1, 4, 2, 5, 70, 16, 16, dtype=np.float32)
    cache, sequence = cache_of(k, v)
    for arguments, text in (((0, 2, 16), "pages is 0"), ((2**40, 2, 16), "pages is"), ((4, -1, 16), "kv_heads is -1"),
                            ((4, 2, 2**62), "page")):
        with pytest.raises(ValueError, match=text):
            attend.PagedKvCache(*arguments)
    for dtype, error in (("f64", ValueError), ("f8", TypeError)):
        with pytest.raises(error, match=dtype):
            attend.PagedKvCache(4, 2, 16, dtype=dtype)
    with pytest.raises(TypeError):
        attend.PagedKvCache(4.5, 2, 16)
    with pytest.raises(TypeError):
        cache.fork(sequence, 1.5)
    with pytest.raises(ValueError, match="there is no sequence 9"):
        cache.length(9)
    with pytest.raises(ValueError, match="count is -1"):
        cache.pages_to_append(sequence, -1)
    with pytest.raises(ValueError, match="k dtype is f16, expected f32"):
        cache.append(sequence, k.astype(np.float16), v)
    with pytest.raises(ValueError, match="v shape"):
        cache.append(sequence, k, v[:, :, :3])
    with pytest.raises(ValueError, match="k has 3 dimensions, expected 4"):
        cache.append(sequence, k[0], v)
    with pytest.raises(ValueError, match="sequences has 2 numbers, expected 1"):
        attend.paged_attention(q, cache, [sequence, sequence])
    with pytest.raises(TypeError, match="sequences is float64, expected whole numbers"):
        attend.paged_attention(q, cache, [0.5])
    with pytest.raises(TypeError, match="cache is a ndarray"):
        attend.paged_attention(q, k, [0])
    assert cache.length(sequence) == 70


def test_calls_that_change_it_come_alone():
    """From inside a call over the cache, and from another thread while one is under way."""
    q, k, v = qkv(1, 4, 2, 5, 70, 16, 16, dtype=np.float32)
    cache, sequence = cache_of(k, v)

    def change(n, tile):
        cache.append(sequence, k, v)
        return 0.0

    with pytest.raises(RuntimeError, match="another call is at work on this cache"):
        attend.paged_attention(q, cache, [sequence], values=change, count=1)
    assert cache.length(sequence) == 70
    cache.append(sequence, k, v)  # and afterwards it may change

    inside, go, seen = threading.Event(), threading.Event(), []

    def wait(n, tile):
        inside.set()
        go.wait(30)
        return 1.0

    thread = threading.Thread(target=lambda: seen.append(
        attend.paged_attention(q, cache, [sequence], values=wait, count=1)))
    thread.start()
    assert inside.wait(30)
    try:
        with pytest.raises(RuntimeError, match="must come alone"):
            cache.truncate(sequence, 0)
        assert cache.length(sequence) == 140  # to look is allowed
        out = attend.paged_attention(q, cache, [sequence])
    finally:
        go.set()
        thread.join()
    assert seen[0][0].tobytes() == out.tobytes()


def test_many_sequences_of_any_length():
    g = rng(3)
    cache = attend.PagedKvCache(64, 2, 8)
    lengths = [0, 1, 63, 64, 65, 300]
    tokens = [[on_grid(g, (1, 2, n, 8)).astype(np.float32) for _ in "kv"] for n in lengths]
    sequences = []
    for k, v in tokens:
        sequences.append(cache.add())
        cache.append(sequences[-1], k, v)
    q = on_grid(g, (len(lengths), 4, 2, 8)).astype(np.float32)
    out = attend.paged_attention(q, cache, np.array(sequences), attend.causal())
    for b, (k, v) in enumerate(tokens):
        assert out[b:b + 1].tobytes() == attend.attention(q[b:b + 1], k, v, attend.causal()).tobytes(), lengths[b]
