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


def test_pytorch():
    torch = pytest.importorskip("torch")
    q, k, _, _, w = looked_at({})
    seen = attend.observe(torch.from_numpy(q), torch.from_numpy(k), mask=attend.causal())
    np.testing.assert_allclose(seen.zoom(1, 1), w[1, 1], rtol=1e-4, atol=1e-7)


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
