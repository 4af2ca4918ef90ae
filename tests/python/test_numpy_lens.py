"""attend.observe: statistics, maps, top keys, zoom and cells against the weights that attention returns."""

import base64
import json
import re

import numpy as np
import pytest

import attend
from numpy_cases import qkv

OPTIONS = [dict(), dict(softcap=2.0), dict(sinks=np.zeros(4, np.float32)),
           dict(scale=0.2, bias=np.linspace(-1, 1, 90, dtype=np.float32).reshape(1, 1, 1, 90))]


def looked_at(options, dtype=np.float32):
    q, k, v = qkv(2, 4, 2, 50, 90, 16, 8, dtype=dtype)
    _, lse, weights = attend.attention(q, k, v, attend.causal(), return_lse=True, return_weights=True, **options)
    return q, k, v, lse, weights.astype(np.float64)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcap", "sinks", "bias"])
def test_statistics(options):
    q, k, v, lse, w = looked_at(options)
    tokens = np.arange(90) % 7
    rows = attend.observe(q, k, mask=attend.causal(), **options).statistics(tokens=tokens, local_width=3)
    p, j = np.arange(50)[:, None] + 40, np.arange(90)
    mass = w.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(w * np.log(w), -1)
    mean = (w * (p - j)).sum(-1) / mass
    expected = dict(
        mass=mass, entropy=entropy, distance_mean=mean,
        distance_variance=(w * (p - j - mean[..., None]) ** 2).sum(-1) / mass,
        sink_tokens=w[..., 0], self=(w * (p == j)).sum(-1), previous=(w * (p - 1 == j)).sum(-1),
        local=(w * (abs(p - j) <= 3)).sum(-1), recent=(w * (abs(p - j) <= 64)).sum(-1),
        duplicate=(w * ((p % 7 == j % 7) & (p != j))).sum(-1),
        induction=(w * ((p % 7 == (j - 1) % 7) & (j > 0))).sum(-1), maximum=w.max(-1))
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(rows, name), values, rtol=1e-4, atol=1e-5, err_msg=name)
    assert rows.argmax.dtype == np.int64
    assert (np.take_along_axis(w, rows.argmax[..., None], -1)[..., 0] >= w.max(-1) * (1 - 1e-5)).all()


def test_statistics_of_the_forward_sweep():
    q, k, v, lse, _ = looked_at({})
    asked = {"tokens": np.arange(90) % 7, "local_width": 3}
    out, rows = attend.attention(q, k, v, mask=attend.causal(), return_statistics=asked)
    np.testing.assert_array_equal(out, attend.attention(q, k, v, mask=attend.causal()))  # looking changes no bit
    expected = attend.observe(q, k, mask=attend.causal()).statistics(**asked)
    for name, values in zip(rows._fields, rows):
        np.testing.assert_allclose(values, getattr(expected, name), rtol=1e-5, atol=1e-6, err_msg=name)
    *_, plain = attend.attention(q, k, v, return_lse=True, return_statistics=True)
    assert not plain.duplicate.any()
    with pytest.raises(TypeError, match="width"):
        attend.attention(q, k, v, return_statistics={"width": 3})


def test_statistics_are_kept():
    q, k, _, _, _ = looked_at({})
    seen = attend.observe(q, k)
    assert seen.statistics() is seen.statistics()
    assert seen.statistics(local_width=1) is not seen.statistics(local_width=2)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcap", "sinks", "bias"])
@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_maps_and_zoom(options, layout):
    q, k, v, lse, w = looked_at(options)
    given = [x if layout == "bhld" else np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    for known in (None, lse):
        seen = attend.observe(*given, attend.causal(), layout=layout, lse=known, **options)
        np.testing.assert_allclose(seen.lse, lse, rtol=1e-5, atol=1e-5)
        pooled = seen.map(head=3, batch=1, rows=7, cols=11)
        assert pooled.finished and pooled.queries[-1] == 50 and pooled.keys[-1] == 90
        dense = w[1, 3]
        for r in range(7):
            for c in range(11):
                cell = dense[pooled.queries[r]:pooled.queries[r + 1], pooled.keys[c]:pooled.keys[c + 1]]
                assert abs(pooled.mass[r, c] - cell.sum()) <= 1e-4 * cell.sum() + 1e-7
                assert abs(pooled.peak[r, c] - cell.max()) <= 1e-4 * cell.max() + 1e-7
        np.testing.assert_allclose(seen.zoom(3, 1), dense, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(seen.zoom(3, 1, queries=7), dense[7:8], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(seen.zoom(3, 1, queries=slice(5, 9), keys=(30, 70)), dense[5:9, 30:70], rtol=1e-4,
                                   atol=1e-7)
        np.testing.assert_allclose(seen.received(3, 1), dense.sum(0), rtol=1e-4, atol=1e-7)
        top = seen.top_k(4, 3, 1)
        zoom = seen.zoom(3, 1)
        order = np.argsort(-zoom, axis=1, kind="stable")[:, :4]
        assert (top.keys == order).all()
        assert (top.weights == np.take_along_axis(zoom, order, 1)).all()
        counts, below = seen.histogram(3, 1)
        assert counts.sum() + below == (np.arange(90) <= np.arange(50)[:, None] + 40).sum()


def cells_of(dense, pooled, what):
    return np.array([[what(dense[a:b, c:d]) for c, d in zip(pooled.keys, pooled.keys[1:])]
                     for a, b in zip(pooled.queries, pooled.queries[1:])])


# An area as every form says it, and its bounds.
AREAS = [((5, 35), (30, 70), 5, 35, 30, 70), (slice(5, 35), range(30, 70), 5, 35, 30, 70), (slice(-45, -15), None, 5, 35, 0, 90),
         (7, (30, 70), 7, 8, 30, 70), (None, 33, 0, 50, 33, 34), (49, 89, 49, 50, 89, 90), (slice(None), slice(88, 500), 0, 50, 88, 90)]


@pytest.mark.parametrize("area", range(len(AREAS)))
def test_an_area(area):
    """Each function over a part of the weights is that of the part of the weights."""
    q, k, v, lse, w = looked_at({})
    queries, keys, a, b, c, d = AREAS[area]
    part = w[1, 2][a:b, c:d]
    seen = attend.observe(q, k, mask=attend.causal())
    given = dict(head=2, batch=1, queries=queries, keys=keys)
    for rows, cols in ((3, 4), (1, 1), (500, 500)):
        pooled = seen.map(rows=rows, cols=cols, **given)
        assert (pooled.queries[0], pooled.queries[-1], pooled.keys[0], pooled.keys[-1]) == (a, b, c, d)
        assert pooled.mass.shape == (min(rows, b - a), min(cols, d - c)) == (len(pooled.queries) - 1, len(pooled.keys) - 1)
        np.testing.assert_allclose(pooled.mass, cells_of(w[1, 2], pooled, np.sum), rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(pooled.peak, cells_of(w[1, 2], pooled, np.max), rtol=1e-4, atol=1e-7)
    zoom = seen.zoom(**given)
    np.testing.assert_allclose(zoom, part, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(seen.received(**given), part.sum(0), rtol=1e-4, atol=1e-7)
    top = seen.top_k(3, **given)
    order = np.argsort(-zoom, axis=1, kind="stable")[:, :3]
    weights = np.take_along_axis(zoom, order, 1)
    count = order.shape[1]
    assert (top.keys[:, :count] == np.where(weights > 0, order + c, -1)).all() and (top.keys[:, count:] == -1).all()
    assert (top.weights[:, :count] == weights).all() and not top.weights[:, count:].any()
    counts, below = seen.histogram(**given)
    assert counts.sum() + below == (np.arange(c, d) <= np.arange(a, b)[:, None] + 40).sum()


def test_bad_areas():
    seen = attend.observe(*looked_at({})[:2])
    for given, error in ((dict(queries=slice(0, 9, 2)), ValueError), (dict(keys=range(0, 9, 3)), ValueError),
                         (dict(keys=(1, 2, 3)), ValueError), (dict(queries=1.5), TypeError), (dict(keys=(0, 91)), ValueError),
                         (dict(queries=50), ValueError), (dict(queries=-51), ValueError), (dict(keys=(-91, 3)), ValueError)):
        for call in (seen.map, seen.zoom, seen.received):
            with pytest.raises(error):
                call(**given)
    for place in (dict(head=4), dict(head=-1), dict(batch=2)):
        with pytest.raises(ValueError):
            seen.zoom(**place)


def test_negative_positions_count_from_the_end():
    """As in Look.row, Look.column and Look.cell."""
    q, k, v, _, _ = looked_at({})
    seen = attend.observe(q, k, v)
    T, S = seen.queries, seen.keys
    for negative, positive in ((dict(queries=-1), dict(queries=T - 1)), (dict(keys=-S), dict(keys=0)),
                               (dict(queries=(-5, -2), keys=(3, -1)), dict(queries=(T - 5, T - 2), keys=(3, S - 1)))):
        for call in (seen.zoom, seen.received, lambda **area: seen.map(**area).mass, lambda **area: seen.top_k(1, **area).weights):
            np.testing.assert_array_equal(call(**negative), call(**positive))
    assert seen.cell(-1, -2).weight == seen.cell(T - 1, S - 2).weight
    assert seen.cell(-1, -2).weight == pytest.approx(seen.zoom(queries=-1, keys=-2)[0, 0], rel=1e-5)  # in double and f32
    for wrong in (lambda: seen.cell(T, 0), lambda: seen.cell(-T - 1, 0), lambda: seen.zoom(queries=-T - 1)):
        with pytest.raises(attend.InvalidArgument, match=f"expected -{T} to {T - 1}"):
            wrong()


def test_pyramids_of_an_area():
    q, k, _, _, w = looked_at({})
    levels = attend.observe(q, k, mask=attend.causal()).pyramid(3, 1, rows=8, cols=12, queries=(10, 42), keys=(20, 68))
    assert [level.mass.shape for level in levels] == [(8, 12), (4, 6), (2, 3)], "for as long as both are even"
    for level in levels:
        assert (level.queries[0], level.queries[-1], level.keys[0], level.keys[-1]) == (10, 42, 20, 68)
        np.testing.assert_allclose(level.mass, cells_of(w[1, 3], level, np.sum), rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(level.peak, cells_of(w[1, 3], level, np.max), rtol=1e-4, atol=1e-7)


def test_a_tall_cell_keeps_a_nan():
    """A weight that is NaN is seen in the mass of every cell that holds it, however tall."""
    q, k, _ = qkv(1, 1, 1, 600, 40, 16, 8, dtype=np.float32)
    for bad in (0, 299, 599):
        broken = q.copy()
        broken[0, 0, bad, 3] = np.nan
        pooled = attend.observe(broken, k).map(rows=1, cols=2)
        assert np.isnan(pooled.mass).all(), bad
        pooled = attend.observe(broken, k).map(rows=3, cols=1)
        assert np.isnan(pooled.mass[:, 0]).tolist() == [n == bad // 200 for n in range(3)]


def test_equal_weights():
    """64 equal keys: the lower one comes first, and a weight of 2^-6 is of the bin [2^-6, 2^-5)."""
    q, k = np.ones((1, 1, 2, 8), np.float32), np.ones((1, 1, 64, 8), np.float32)
    seen = attend.observe(q, k)
    assert seen.top_k(3).keys.tolist() == [[0, 1, 2]] * 2
    assert seen.top_k(3, keys=(10, 12)).keys.tolist() == [[10, 11, -1]] * 2
    assert seen.statistics().argmax.tolist() == [[[0, 0]]]
    counts, below = seen.histogram(bins=8)
    assert counts.tolist() == [0, 0, 0, 0, 0, 128, 0, 0] and below == 0
    counts, below = seen.histogram(bins=5)
    assert counts.tolist() == [0] * 5 and below == 128, "beyond the last bin"
    counts, below = attend.observe(q, k[:, :, :1]).histogram(bins=3)
    assert counts.tolist() == [2, 0, 0] and below == 0, "1 is of the first bin"


def test_statistics_of_other_options():
    """What is kept of one question is not given to another."""
    q, k, v, lse, w = looked_at({})
    seen = attend.observe(q, k, mask=attend.causal())
    tokens, others = np.arange(90) % 7, np.arange(90) % 5
    p, j = np.arange(50)[:, None] + 40, np.arange(90)
    for given in (tokens, others, tokens, np.stack([tokens, others])):
        rows = seen.statistics(tokens=given)
        for b in range(2):
            t = given[b] if given.ndim == 2 else given
            same = (t[p] == t[j]) & (p != j)
            np.testing.assert_allclose(rows.duplicate[b], (w[b] * same).sum(-1), rtol=1e-4, atol=1e-5)
    mine = tokens.copy()
    before = seen.statistics(tokens=mine).duplicate
    mine[:] = np.arange(90)
    assert not np.array_equal(seen.statistics(tokens=mine).duplicate, before), "the array was changed since"
    for width in (1, 3, 1):
        np.testing.assert_allclose(seen.statistics(local_width=width).local, (w * (abs(p - j) <= width)).sum(-1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(seen.statistics(recent_width=width).recent, (w * (abs(p - j) <= width)).sum(-1), rtol=1e-4,
                                   atol=1e-5)
        np.testing.assert_allclose(seen.statistics(sink_tokens=width).sink_tokens, w[..., :width].sum(-1), rtol=1e-4, atol=1e-5)
    i = np.arange(50)[:, None]
    first = seen.statistics(align="first_key")
    np.testing.assert_allclose(first.self, (w * (i == j)).sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen.statistics().self, (w * (p == j)).sum(-1), rtol=1e-4, atol=1e-5)
    apart = seen.statistics(sinks_apart=True, sink_tokens=2, recent_width=90)
    np.testing.assert_allclose(apart.recent, (w * (j >= 2) * (abs(p - j) <= 90)).sum(-1), rtol=1e-4, atol=1e-5)


def test_pyramid():
    q, k, _, _, w = looked_at({})
    levels = attend.observe(q, k, mask=attend.causal()).pyramid(rows=8, cols=8)
    assert [level.mass.shape for level in levels] == [(8, 8), (4, 4), (2, 2), (1, 1)]
    assert abs(levels[-1].mass[0, 0] - 50) < 1e-3
    assert abs(levels[-1].peak[0, 0] - w[0, 0].max()) < 1e-4
    assert levels[2].queries.tolist() == [0, 25, 50]


def test_cell():
    q, k, v, lse, w = looked_at(dict(softcap=2.0))
    seen = attend.observe(q, k, v, attend.causal(), softcap=2.0)
    cell = seen.cell(query=9, key=33, head=3, batch=1)
    np.testing.assert_allclose(cell.products, q[1, 3, 9].astype(np.float64) * k[1, 1, 33])
    assert cell.scaled == pytest.approx(cell.dot / 4)
    assert cell.capped == pytest.approx(2 * np.tanh(cell.scaled / 2))
    assert cell.weight == pytest.approx(w[1, 3, 9, 33], rel=1e-4)
    np.testing.assert_allclose(cell.weighted, cell.weight * v[1, 1, 33].astype(np.float64))
    assert cell.visible and cell.sink is None
    hidden = seen.cell(query=9, key=80)
    assert not hidden.visible and hidden.weight == 0
    assert attend.observe(q, k).cell(0, 0).weighted is None


def test_progress_and_one_at_a_time():
    q, k, _, _, _ = looked_at({})
    seen = attend.observe(q, k)
    rows, whole = [], seen.map(rows=50, cols=10)

    def progress(first, mass, peak):
        rows.extend(range(first, first + len(mass)))
        assert (mass == whole.mass[first:first + len(mass)]).all()
        with pytest.raises(RuntimeError, match="another call"):
            seen.map()
        return True

    assert seen.map(rows=50, cols=10, progress=progress).finished
    assert sorted(rows) == list(range(50))

    def fails(first, mass, peak):
        raise KeyError("from the user")

    with pytest.raises(KeyError, match="from the user"):
        seen.map(progress=fails)
    assert seen.map(rows=1, cols=1).mass[0, 0] == pytest.approx(50, rel=1e-4)


def test_double_and_half():
    for dtype in (np.float64, np.float16):
        q, k, v, lse, w = looked_at({}, dtype)
        seen = attend.observe(q, k, v, attend.causal())
        np.testing.assert_allclose(seen.zoom(2, 1), w[1, 2], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(seen.statistics().maximum, w.max(-1), rtol=1e-3)


def test_arrays_are_kept_alive():
    q, k, _, _, w = looked_at({})
    seen = attend.observe(q.copy(), k.copy(), mask=attend.causal())
    np.testing.assert_allclose(seen.zoom(), w[0, 0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "softcap", "sinks", "bias"])
def test_a_page_holds_the_weights(options):
    pytest.importorskip("attend.llm")
    q, k, v, lse, w = looked_at(options)
    seen = attend.observe(q, k, v, mask=attend.causal(), **options)
    [part] = json.loads(re.search(r'id="attend-data">(.*?)</script>', seen.html(batch=1), re.S).group(1))["parts"]
    assert len(part["run"]["tokens"]) == 50 and len(part["run"]["keys"]) == 90 and part["about"]["model"]["kv_heads"] == 2
    raw = base64.b64decode(part["frames"]["map.0.3"])
    shown = np.frombuffer(raw, np.float32, 50 * 90, 8 + int.from_bytes(raw[4:8], "little")).reshape(50, 90)
    np.testing.assert_allclose(np.nan_to_num(shown), w[1, 3], atol=1e-6)
    assert np.array_equal(np.isnan(shown), np.arange(90) > np.arange(50)[:, None] + 40), "exactly the future is masked"
    assert part["scores"][0]["more"] == ("lse.0" in part["frames"]) == bool(options)
    with pytest.raises(attend.InvalidArgument, match="3 tokens were given as tokens, expected 50"):
        seen.html(["a", "b", "c"])
    with pytest.raises(attend.InvalidArgument, match="batch is 2"):
        seen.html(batch=2)
    with pytest.raises(attend.InvalidArgument, match="values too"):
        attend.observe(q, k).html()


def test_bad_arguments():
    q, k, v, lse, _ = looked_at({})
    seen = attend.observe(q, k)
    for wrong in (lambda: attend.observe(q, k[..., :8]), lambda: attend.observe(q, k, lse=lse[:1]),
                  lambda: seen.map(head=4), lambda: seen.map(batch=2), lambda: seen.map(rows=0),
                  lambda: seen.zoom(queries=50), lambda: seen.zoom(keys=(80, 91)), lambda: seen.zoom(keys=(1, 2, 3)),
                  lambda: seen.zoom(keys=slice(0, 10, 2)), lambda: seen.cell(0, 90), lambda: seen.top_k(0),
                  lambda: seen.histogram(bins=0), lambda: seen.statistics(tokens=[1, 2]),
                  lambda: seen.statistics(local_width=-1), lambda: seen.statistics(align="middle")):
        with pytest.raises(ValueError):
            wrong()
    for wrong in (lambda: seen.map(head=0.5), lambda: seen.top_k("x"), lambda: attend.observe(q, k, mask=3),
                  lambda: attend.observe(q, k, mischief=1)):
        with pytest.raises(TypeError):
            wrong()
