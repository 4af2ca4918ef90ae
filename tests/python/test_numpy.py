"""attend.attention, rope and softmax on NumPy arrays, against plain NumPy in float64 and against golden files."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

import attend
import numpy_reference as reference
from numpy_cases import DTYPES, close, on_grid, qkv, rng

sys.path.insert(0, str(Path(__file__).parent / "golden"))
import make_golden as golden  # noqa: E402

# ---- Masks: each factory, and what it means in a loop over (b, h, i, j) ----

B, H, M, N = 3, 4, 6, 9
BITS = rng(5).random((H, 2, 3)) > 0.4
DENSE = rng(6).random((B, 1, M, N)) > 0.3
last = lambda i: i + N - M  # noqa: E731
MASKS = {
    "none": (None, lambda b, h, i, j: True),
    "no_mask": (lambda: attend.no_mask(), lambda b, h, i, j: True),
    "causal": (lambda: attend.causal(), lambda b, h, i, j: j <= last(i)),
    "causal_first_key": (lambda: attend.causal("first_key"), lambda b, h, i, j: j <= i),
    "causal_offsets": (lambda: attend.causal(offsets=[0, 3, -2]), lambda b, h, i, j: j <= i + (0, 3, -2)[b]),
    "window": (lambda: attend.window(2, 1), lambda b, h, i, j: last(i) - 2 <= j <= last(i) + 1),
    "window_left": (lambda: attend.window(2, -1), lambda b, h, i, j: last(i) - 2 <= j),
    "window_right": (lambda: attend.window(-1, 0, "first_key"), lambda b, h, i, j: j <= i),
    "window_offset": (lambda: attend.window(1, 0, offsets=2), lambda b, h, i, j: i + 1 <= j <= i + 2),
    "padding": (lambda: attend.padding([9, 4, 0]), lambda b, h, i, j: j < (9, 4, 0)[b]),
    "padding_for_all": (lambda: attend.padding(5), lambda b, h, i, j: j < 5),
    "left_padding": (lambda: attend.left_padding(np.array([0, 2, 9])), lambda b, h, i, j: j >= (0, 2, 9)[b]),
    "prefix": (lambda: attend.prefix([0, 4, 8]), lambda b, h, i, j: j < (0, 4, 8)[b] or j <= last(i)),
    "segments": (lambda: attend.segments([0, 2, 5, 6], [0, 4, 4, 9]),
                 lambda b, h, i, j: (i < 2 and j < 4) or (i == 5 and j >= 4)),
    "segments_causal": (lambda: attend.segments([0, 2, 6], [0, 2, 6]) & attend.causal(),
                        lambda b, h, i, j: (i < 2) == (j < 2) and j <= i and j < 6),
    "blocks": (lambda: attend.blocks(BITS, 4, 3), lambda b, h, i, j: BITS[h, i // 4, j // 3]),
    "blocks_for_all": (lambda: attend.blocks(BITS[0].astype(int), 4, 3), lambda b, h, i, j: BITS[0, i // 4, j // 3]),
    "dense": (lambda: attend.dense(DENSE), lambda b, h, i, j: DENSE[b, 0, i, j]),
    "dense_rows": (lambda: attend.dense(DENSE[0, 0]), lambda b, h, i, j: DENSE[0, 0, i, j]),
    "dense_strided": (lambda: attend.dense(DENSE[::-1, :, :, ::-1]),
                      lambda b, h, i, j: DENSE[B - 1 - b, 0, i, N - 1 - j]),
    "prefix_first_key": (lambda: attend.prefix(2, "first_key"), lambda b, h, i, j: j < 2 or j <= i),
    "prefix_offsets": (lambda: attend.prefix([1, 0, 3], offsets=[0, 2, 1]),
                       lambda b, h, i, j: j < (1, 0, 3)[b] or j <= i + (0, 2, 1)[b]),
    "window_offsets": (lambda: attend.window(0, 1, offsets=[0, 1, 3]),
                       lambda b, h, i, j: i + (0, 1, 3)[b] <= j <= i + (0, 1, 3)[b] + 1),
    "window_both_unlimited": (lambda: attend.window(-1, -1) & attend.padding(8), lambda b, h, i, j: j < 8),
    "either": (lambda: attend.window(0, 0) | attend.padding([2, 0, 1]), lambda b, h, i, j: j == last(i) or j < (2, 0, 1)[b]),
    "hidden": (lambda: ~attend.causal(), lambda b, h, i, j: j > last(i)),
    "except": (lambda: attend.causal() & ~attend.window(1, 0), lambda b, h, i, j: j < last(i) - 1),
    "hidden_twice": (lambda: ~~attend.padding([9, 4, 1]), lambda b, h, i, j: j < (9, 4, 1)[b]),
    "segments_one_list": (lambda: attend.segments([0, 2, 6]), lambda b, h, i, j: j < 6 and (i < 2) == (j < 2)),
    "dense_heads": (lambda: attend.dense(np.array([True, False, True, True]).reshape(H, 1, 1)), lambda b, h, i, j: h != 1),
    "composed": (lambda: attend.causal() & attend.window(3, -1) & attend.padding([9, 7, 5]) & attend.dense(DENSE),
                 lambda b, h, i, j: last(i) - 3 <= j <= last(i) and j < (9, 7, 5)[b] and DENSE[b, 0, i, j]),
}


def visible(rule, shape=(B, H, M, N)):
    return np.array([bool(rule(*index)) for index in np.ndindex(*shape)]).reshape(shape)


def test_a_mask_keeps_nothing_of_the_options_of_a_call():
    """One mask in calls with and without other options, in turn: each is as with a separate mask."""
    q, k, v = qkv(2, 4, 2, 5, 9, 8, 8, dtype=np.float32)
    mask = attend.causal()
    slopes, bias = np.array([0.5, 1, 2, 4], np.float32), np.linspace(-1, 1, 9, dtype=np.float32).reshape(1, 1, 1, 9)
    options = [{}, dict(scale=0.1), {}, dict(softcap=0.5), dict(bias=bias), {}, dict(alibi_slopes=slopes),
               dict(alibi_slopes=slopes, alibi_align="first_key"), dict(sinks=np.ones(4, np.float32)), {},
               dict(dropout=0.5, seed=3), dict(dropout=0.5, seed=4), {}, dict(distance_bias=np.arange(13, dtype=np.float32)), {}]
    results = []
    for given in options:
        out, lse = attend.attention(q, k, v, mask, return_lse=True, **given)
        want, want_lse = attend.attention(q, k, v, attend.causal(), return_lse=True, **given)
        assert out.tobytes() == want.tobytes() and lse.tobytes() == want_lse.tobytes(), given
        got = attend.attention_backward(np.ones_like(out), q, k, v, out, lse, mask, **given)
        right = attend.attention_backward(np.ones_like(out), q, k, v, out, lse, attend.causal(), **given)
        assert all(a is b is None or a.tobytes() == b.tobytes() for a, b in zip(got, right)), given
        results.append(out.tobytes())
    plain = [result for result, given in zip(results, options) if not given]
    others = [result for result, given in zip(results, options) if given]
    assert len(set(plain)) == 1 and len(set(others)) == len(others) and plain[0] not in others


def test_what_is_asked_for_comes_in_order():
    q, k, v = qkv(2, 4, 2, 5, 9, 8, 6, dtype=np.float32)
    out, lse, weights, rows = attend.attention(q, k, v, return_lse=True, return_weights=True, return_statistics=True)
    assert (out.shape, lse.shape, weights.shape) == ((2, 4, 5, 6), (2, 4, 5), (2, 4, 5, 9))
    assert attend.attention(q, k, v, return_weights=True)[1].tobytes() == weights.tobytes()
    assert attend.attention(q, k, v, return_statistics=True)[1].maximum.tobytes() == rows.maximum.tobytes()
    assert attend.attention(q, k, v, return_lse=True)[1].tobytes() == lse.tobytes()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights @ v.repeat(2, axis=1), out, rtol=1e-4, atol=1e-6)
    gradients = attend.attention_backward(out, q, k, v, out, lse)
    assert [g is None for g in gradients] == [False, False, False, True, True]
    assert [g.shape for g in gradients[:3]] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_masks(name, dtype):
    make, rule = MASKS[name]
    q, k, v = qkv(B, H, 2, M, N, 8, 6, dtype=dtype)
    mask = None if make is None else make()
    seen = visible(rule)
    assert name in ("none", "no_mask") or 0 < seen.sum() < seen.size
    out, lse, weights = attend.attention(q, k, v, mask, return_lse=True, return_weights=True)
    wanted = reference.attention(q, k, v, seen)
    for got, want in zip((out, lse, weights), wanted):
        assert isinstance(got, np.ndarray) and got.dtype == dtype
        close(got, want)
    assert ((weights > 0) == seen).all()
    assert (out[~seen.any(-1)] == 0).all() and (lse[~seen.any(-1)] == -np.inf).all()

    dout = on_grid(rng(1), out.shape).astype(dtype)
    gradients = attend.attention_backward(dout, q, k, v, out, lse, mask)
    wanted = reference.attention_backward(dout, q, k, v, seen)
    for got, want in zip(gradients[:3], wanted):
        assert got.dtype == dtype
        close(got, want, factor=4)
    assert gradients.dbias is None and gradients.dsinks is None


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "no scale": {"scale": 1.0},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": (B, H, M, N)},
    "bias of heads": {"bias": (1, H, 1, N)},
    "bias of a matrix": {"bias": (M, N)},
    "bias of keys": {"bias": (N,)},
    "alibi": {"alibi_slopes": (H,)},
    "alibi by batch": {"alibi_slopes": (B, H)},
    "alibi first key": {"alibi_slopes": (H,), "alibi_align": "first_key"},
    "sinks": {"sinks": (H,)},
    "all": {"scale": 0.4, "softcap": 2.0, "bias": (B, 1, M, N), "alibi_slopes": (H,), "sinks": (H,)},
}


def make_options(name, dtype):
    """The options for the engine, with arrays, and the same for the reference."""
    g, given = rng(8), {}
    for key, value in OPTIONS[name].items():
        given[key] = on_grid(g, value).astype(dtype) if isinstance(value, tuple) else value
    expected = {key: given[key] for key in ("scale", "softcap", "bias", "sinks") if key in given}
    if "alibi_slopes" in given:
        given["alibi_slopes"] = np.abs(given["alibi_slopes"])
        expected["slopes"] = given["alibi_slopes"]
        expected["position"] = 0 if given.get("alibi_align") == "first_key" else N - M
    return given, expected


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_score_options(name, dtype):
    q, k, v = qkv(B, H, 2, M, N, 8, 6, dtype=dtype)
    given, expected = make_options(name, dtype)
    seen = visible(MASKS["causal"][1])
    out, lse, weights = attend.attention(q, k, v, attend.causal(), return_lse=True, return_weights=True, **given)
    want_out, want_lse, want_weights = reference.attention(q, k, v, seen, **expected)
    wide = np.float64 if dtype is np.float64 else np.float32
    assert out.dtype == dtype and lse.dtype == wide and weights.dtype == wide
    close(out, want_out)
    close(lse, want_lse)
    close(weights, want_weights)

    dout = on_grid(rng(1), out.shape).astype(dtype)
    got = attend.attention_backward(dout, q, k, v, out, lse, attend.causal(), **given)
    dq, dk, dv, ds, dsinks = reference.attention_backward(dout, q, k, v, seen, **expected)
    for a, b in zip(got[:3], (dq, dk, dv)):
        assert a.dtype == dtype
        close(a, b, factor=4)
    if "bias" in given:
        close(got.dbias.reshape((1,) * (4 - given["bias"].ndim) + given["bias"].shape),
              reference.reduced(ds, given["bias"].shape), dtype, factor=4)
    if "sinks" in given:
        assert got.dsinks.shape == (H,)
        close(got.dsinks, dsinks, dtype, factor=4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 130), (17, 33), (70, 70), (5, 0), (0, 5)])
@pytest.mark.parametrize("dims", [(1, 1), (31, 40), (64, 64)])
def test_shapes(dtype, heads, lengths, dims):
    q, k, v = qkv(2, *heads, *lengths, *dims, dtype=dtype)
    out, lse = attend.attention(q, k, v, attend.causal(), return_lse=True)
    M, N = lengths
    seen = np.arange(N)[None, :] <= np.arange(M)[:, None] + N - M
    want_out, want_lse, _ = reference.attention(q, k, v, seen)
    close(out, want_out)
    close(lse, want_lse, factor=2)
    dout = on_grid(rng(1), out.shape).astype(dtype)
    got = attend.attention_backward(dout, q, k, v, out, lse, attend.causal())
    for a, b in zip(got[:3], reference.attention_backward(dout, q, k, v, seen)):
        close(a, b, factor=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout(dtype):
    """"blhd" is the same numbers seen another way: the same bits."""
    q, k, v = qkv(dtype=dtype)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    wanted = attend.attention(q, k, v, attend.causal(), return_lse=True, return_weights=True)
    got = attend.attention(*turned, attend.causal(), layout="blhd", return_lse=True, return_weights=True)
    assert (got[0].swapaxes(1, 2) == wanted[0]).all() and got[0].shape == (2, 5, 4, 6)
    assert (got[1] == wanted[1]).all() and (got[2] == wanted[2]).all()
    dout = on_grid(rng(1), wanted[0].shape).astype(dtype)
    a = attend.attention_backward(dout, q, k, v, wanted[0], wanted[1], attend.causal())
    b = attend.attention_backward(dout.swapaxes(1, 2), *turned, got[0], got[1], attend.causal(), layout="blhd")
    for x, y in zip(a[:3], b[:3]):
        assert (x == y.swapaxes(1, 2)).all()


def test_dropout():
    q, k, v = qkv(B, H, 2, M, N, 8, 6, dtype=np.float64)
    identity = np.broadcast_to(np.eye(N), (B, 2, N, N))
    _, _, weights = reference.attention(q, k, v)
    dropped = attend.attention(q, k, identity, dropout=0.4, seed=7)
    kept = dropped / weights
    assert (np.isclose(kept, 0, atol=1e-9) | np.isclose(kept, 1 / 0.6, atol=1e-9)).all()
    assert 0.5 < (kept > 0.1).mean() < 0.7
    assert (attend.attention(q, k, identity, dropout=0.4, seed=7) == dropped).all()
    assert (attend.attention(q, k, identity, dropout=0.4, seed=8) != dropped).any()
    out, lse, returned = attend.attention(q, k, v, dropout=0.4, seed=7, return_lse=True, return_weights=True)
    close(out, (weights * kept) @ np.repeat(v, 2, axis=1))
    close(returned, weights)  # before dropout
    dout = on_grid(rng(1), out.shape)
    got = attend.attention_backward(dout, q, k, v, out, lse, dropout=0.4, seed=7)
    for a, b in zip(got[:3], reference.attention_backward(dout, q, k, v, kept=kept)):
        close(a, b, factor=4)


@pytest.mark.parametrize("name", OPTIONS)
def test_backward_by_differences(name):
    """Central differences of the engine's own forward in float64, for every input that has a gradient."""
    q, k, v = (x * 0.5 for x in qkv(B, H, 2, M, N, 4, 3))
    given, _ = make_options(name, np.float64)
    mask = attend.causal() & attend.padding([9, 7, 8])
    inputs = {"q": q, "k": k, "v": v, **{key: given[key] for key in ("bias", "sinks") if key in given}}
    rest = {key: value for key, value in given.items() if key not in inputs}
    dout = on_grid(rng(1), (B, H, M, 3))

    def loss(**arrays):
        return float((attend.attention(mask=mask, **arrays, **rest) * dout).sum())

    out, lse = attend.attention(mask=mask, return_lse=True, **inputs, **rest)
    got = attend.attention_backward(dout, q, k, v, out, lse, mask, **given)
    g = rng(2)
    for key, array in inputs.items():
        gradient = np.asarray(getattr(got, "d" + key)).reshape(array.shape)
        for _ in range(6):
            direction, eps = g.standard_normal(array.shape), 1e-6
            up, down = (loss(**{**inputs, key: array + sign * eps * direction}) for sign in (1, -1))
            assert (gradient * direction).sum() == pytest.approx((up - down) / (2 * eps), abs=1e-5, rel=1e-5)


# ---- Golden files ----

GOLDEN_MASKS = {"full": lambda: None, "causal": attend.causal, "padding": lambda: attend.padding(golden.LENGTHS),
                "window": lambda: attend.window(golden.WINDOW, 0)}


@pytest.mark.parametrize("name", golden.CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_golden(name, dtype):
    rule, options, arrays = golden.case_inputs(name)
    arrays = {key: value.astype(dtype) for key, value in arrays.items()}
    mask = GOLDEN_MASKS[rule]()
    options.update((key, arrays[key]) for key in ("sinks", "bias", "alibi_slopes") if key in arrays)
    q, k, v = (arrays[key] for key in "qkv")
    wanted = np.load(golden.FOLDER / f"{name}.npz")
    out, lse, weights = attend.attention(q, k, v, mask, return_lse=True, return_weights=True, **options)
    got = attend.attention_backward(arrays["dout"], q, k, v, out, lse, mask, **options)
    close(out, wanted["out"])
    close(lse, wanted["lse"], dtype)
    close(weights, wanted["weights"], dtype)
    assert {"out", "lse", "weights", "dq", "dk", "dv"} <= set(wanted)
    assert ("dbias" in wanted) == ("bias" in arrays) and ("dsinks" in wanted) == ("sinks" in arrays)
    for key in set(wanted) - {"out", "lse", "weights"}:
        close(np.asarray(getattr(got, key)).reshape(wanted[key].shape), wanted[key], dtype, factor=4)


# ---- Extremes ----


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_scores_and_bad_numbers(dtype):
    q, k, v = qkv(dtype=dtype)
    close(attend.attention(q * 300, k * 100, v), reference.attention(q * 300, k * 100, v)[0])
    # What a mask hides never reaches the result, whatever it is.
    clean = attend.attention(q, k, v, attend.padding(5), return_lse=True)
    k[:, :, 5:], v[:, :, 5:] = np.nan, np.inf
    for a, b in zip(clean, attend.attention(q, k, v, attend.padding(5), return_lse=True)):
        assert (a == b).all()
    # A bad query stays in its row.
    q[0, 1, 2, 3] = np.nan
    out = attend.attention(q, k, v, attend.padding(5))
    bad = np.zeros(out.shape[:3], bool)
    bad[0, 1, 2] = True
    assert np.isnan(out[bad]).all() and (out[~bad] == clean[0][~bad]).all()


@pytest.mark.parametrize("shape", [(0, 4, 2, 5, 7, 8, 6), (2, 4, 2, 0, 7, 8, 6), (2, 4, 2, 5, 0, 8, 6),
                                   (0, 4, 2, 0, 0, 8, 6)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_size_zero(shape, dtype):
    q, k, v = qkv(*shape, dtype=dtype)
    out, lse, weights = attend.attention(q, k, v, attend.causal(), return_lse=True, return_weights=True)
    B, H, Hk, M, N, D, E = shape
    assert out.shape == (B, H, M, E) and lse.shape == (B, H, M) and weights.shape == (B, H, M, N)
    assert (out == 0).all() and (lse == -np.inf).all()
    got = attend.attention_backward(np.ones_like(out), q, k, v, out, lse, attend.causal())
    for gradient, of in zip(got[:3], (q, k, v)):
        assert gradient.shape == of.shape and (gradient == 0).all()


# ---- rope and softmax ----


@pytest.mark.parametrize("style", ["half_split", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope(style, dtype):
    x = on_grid(rng(), (2, 3, 7, 16)).astype(dtype)
    cases = [({}, np.arange(7)), ({"first_position": 11}, np.arange(11, 18)), ({"theta": 1e6}, np.arange(7)),
             ({"positions": [5, 0, 3, 3, 100, 7, 1], "rotary_dim": 8}, [5, 0, 3, 3, 100, 7, 1])]
    for options, positions in cases:
        expected = {key: options[key] for key in ("theta", "rotary_dim") if key in options}
        y = attend.rope(x, style=style, **options)
        close(y, reference.rope(x, positions, style=style, **expected))
        close(attend.rope_backward(x, style=style, **options),
              reference.rope(x, positions, style=style, backward=True, **expected))
        turned = attend.rope(x.swapaxes(1, 2), style=style, layout="blhd", **options)
        assert (turned.swapaxes(1, 2) == y).all() and y.dtype == dtype
    assert (attend.rope(x, style=style, rotary_dim=8)[..., 8:] == x[..., 8:]).all()


def test_bad_rope():
    x = np.ones((1, 2, 3, 4), np.float32)
    for arguments, error, text in [
            (dict(x=x[0]), ValueError, "x has 3 dimensions"), (dict(x=x, style="x"), ValueError, "style is 'x'"),
            (dict(x=x[..., :3]), ValueError, None), (dict(x=x, rotary_dim=3), ValueError, None),
            (dict(x=x, rotary_dim=6), ValueError, None), (dict(x=x, rotary_dim=-2), ValueError, None),
            (dict(x=x, positions=[1, 2]), ValueError, "positions"),
            (dict(x=x, positions=[]), (TypeError, ValueError), "positions"),
            (dict(x=x, positions=[0.5] * 3), TypeError, "positions is float64"),
            (dict(x=x, theta=-1.0), ValueError, "theta"), (dict(x=x, theta=math.nan), ValueError, "theta"),
            (dict(x=x.astype(int)), TypeError, "x dtype is int64"), (dict(x=x, layout="x"), ValueError, "layout")]:
        with pytest.raises(error, match=text):
            attend.rope(**arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(9,), (4, 9), (2, 3, 33), (2, 1, 3, 200), (0, 5), (3, 1)])
def test_softmax(dtype, shape):
    x = (on_grid(rng(), shape) * 4).astype(dtype)
    if x.size > 20:
        x.reshape(-1)[3] = -np.inf
    if x.ndim > 1 and len(x):
        x[-1] = -np.inf
    y = attend.softmax(x)
    assert y.dtype == dtype
    close(y, reference.softmax(x))
    dy = on_grid(rng(1), shape).astype(dtype)
    p = np.asarray(y, np.float64)
    wanted = p * (dy - (p * dy.astype(np.float64)).sum(-1, keepdims=True))
    got = attend.softmax_backward(dy, y)
    assert got.shape == shape
    close(got, wanted)
    assert (attend.softmax(x[..., ::-1])[..., ::-1].shape == shape)


def test_bad_softmax():
    for x, error in [(np.ones(()), ValueError), (np.ones((1,) * 5), ValueError), (np.ones(3, int), TypeError),
                     ([1.0], TypeError), (None, TypeError), (np.ones(3, ">f4"), TypeError)]:
        with pytest.raises(error):
            attend.softmax(x)
    with pytest.raises(ValueError):
        attend.softmax_backward(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError):
        attend.softmax_backward(np.ones((2, 3)), np.ones((2, 3), np.float32))
