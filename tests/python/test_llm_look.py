"""attend.look on the golden models: what it gives is what the model computes, and switches change it as they say."""

import base64
import html
import json
import re
import struct

import numpy as np
import pytest
from llm_models import write_decoder

import attend
from attend import llm
from attend.llm import _look_page

TEXT = "abcdefgabcdefg hij abc"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return llm.Model(write_decoder(tmp_path_factory.mktemp("look") / "model"))


def test_a_run_is_the_models_own(model):
    seen = attend.look(model, TEXT, losses=True)
    assert "".join(seen.tokens) == TEXT and len(seen) == len(TEXT)
    logits = model.logits(TEXT)
    p = np.exp(logits[-1] - logits[-1].max())
    p /= p.sum()
    best = seen.next_tokens(count=3)
    assert [t.token for t in best] == list(np.argsort(-p)[:3])
    np.testing.assert_allclose([t.probability for t in best], np.sort(p)[::-1][:3], rtol=1e-5)
    assert abs(np.nanmean(seen.losses) - model.perplexity(TEXT).loss) < 1e-5


def test_weights_are_those_of_the_queries_and_keys(model):
    seen = attend.look(model, TEXT)
    layer, head = 1, 3
    q, k = seen.q(layer)[head], seen.k(layer)[head // (seen.heads // seen.kv_heads)]
    scores = q @ k.T / np.sqrt(q.shape[-1])
    scores[np.triu_indices(len(seen), 1)] = -np.inf
    expected = np.exp(scores - scores.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    weights = seen.weights(layer, head)
    np.testing.assert_allclose(weights, expected, atol=2e-6)
    np.testing.assert_allclose(seen.row(layer, head, -1), expected[-1], atol=2e-6)
    np.testing.assert_allclose(seen.column(layer, head, 2), expected[:, 2], atol=2e-6)
    np.testing.assert_allclose(seen.zoom(layer, head, slice(3, 7), slice(0, 5)), expected[3:7, :5], atol=2e-6)
    np.testing.assert_allclose(seen.statistic("maximum")[layer, head], expected.max(1), atol=2e-6)
    assert seen.top(layer, head, 9, 1)[0][0] == expected[9].argmax()
    np.testing.assert_allclose(seen.map(layer, head, cells=2).sum(), len(seen), rtol=1e-5)
    cell = seen.cell(layer, head, 9, 4)
    assert abs(cell["weight"] - expected[9, 4]) < 2e-6
    np.testing.assert_allclose(cell["weighted"], expected[9, 4] * seen.v(layer)[1, 4], atol=1e-5)


def test_what_cpp_has_python_has(model):
    """logits, received, lse, value_lengths, users and the probe, against the weights and the model's own logits."""
    seen = attend.look(model, TEXT)
    np.testing.assert_allclose(seen.logits(), model.logits(TEXT)[-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(seen.logits(-len(seen)), seen.logits(0))
    assert seen.logits(3).argmax() == seen.next_tokens(3, 1)[0].token
    for layer, head in ((0, 0), (1, 3)):
        weights = seen.weights(layer, head)
        np.testing.assert_allclose(seen.received(layer, head), weights.sum(0), rtol=1e-5, atol=1e-6)
        cell = seen.cell(layer, head, 9, 4)
        assert seen.lse(layer).shape == (seen.heads, len(seen))
        assert seen.lse(layer)[head, 9] == pytest.approx(cell["lse"], abs=1e-5)
        assert [n for n, _ in seen.users(layer, head, 2, 3)] == list(np.argsort(-weights[:, 2], kind="stable")[:3])
        kv = head // (seen.heads // seen.kv_heads)
        np.testing.assert_allclose(seen.value_lengths(layer, kv), np.linalg.norm(seen.v(layer)[kv], axis=1), rtol=1e-5)
    probe = seen.probe
    assert probe.induction.shape == probe.duplicate.shape == (seen.layers, seen.heads) and probe.tokens > 0
    by_type = {(t.layer, t.head): s.score for t in seen.types for s in t.scores if s.kind == "induction"}
    assert all(probe.induction[place] == score for place, score in by_type.items())
    for wrong in (lambda: seen.received(2, 0), lambda: seen.lse(2), lambda: seen.value_lengths(0, 2)):
        with pytest.raises(attend.InvalidArgument, match="expected"):
            wrong()
    with pytest.raises(attend.InvalidArgument, match="position is"):
        seen.logits(len(seen))


def test_changes(model):
    plain = attend.look(model, TEXT, losses=True)
    knocked = attend.look(model, TEXT, knock="zero@0.1", losses=True)
    changes = knocked.changes(plain, 4)
    assert len(changes.heads) == plain.layers * plain.heads and len(changes.predictions) == len(changes.tokens) == 4
    best = changes.heads[0]
    moved = np.abs(knocked.weights(best.layer, best.head) - plain.weights(best.layer, best.head)).sum(1) / 2
    assert best.layer == 1 and best.change == pytest.approx(moved.mean(), abs=1e-7) and best.query == moved.argmax()
    first = changes.predictions[0]
    assert first.before == plain.next_tokens(first.position, 1)[0] and first.after == knocked.next_tokens(first.position, 1)[0]
    one = changes.tokens[0]
    assert one.position == np.nanargmax(np.abs(knocked.losses - plain.losses))
    assert (one.loss_before, one.loss_after) == (plain.losses[one.position], knocked.losses[one.position])
    assert not any(attend.look(model, "abc").changes(plain))
    with pytest.raises(TypeError, match="expected a Look"):
        knocked.changes(3)


def test_top_tokens_of_ties_and_of_few(model):
    """Of equal weights the lower position comes first, and what is not seen is not listed."""
    seen = attend.look(model, "a" * 30, positions="off")  # of one token: every visible key has the same weight
    for query in (0, 3, 9, -1):
        place = query % len(seen)
        top = seen.top(0, 1, query, 5)
        assert [n for n, _ in top] == list(range(min(5, place + 1)))
        assert [w for _, w in top] == pytest.approx([1 / (place + 1)] * len(top))
    assert seen.top(0, 1, 2, 0) == [] and len(seen.top(0, 1, -1, 1000)) == len(seen)
    plain = attend.look(model, TEXT)
    row = plain.row(1, 2, 7)
    assert [n for n, _ in plain.top(1, 2, 7, 8)] == sorted(range(8), key=lambda n: (-row[n], n))
    assert len(plain.map(0, 0, cells=1)) == 1 and plain.map(0, 0, cells=1)[0, 0] == pytest.approx(len(plain), rel=1e-5)
    assert plain.map(0, 0, cells=1, peak=True)[0, 0] == pytest.approx(plain.weights(0, 0).max(), rel=1e-5)


def test_places_at_the_ends(model):
    seen = attend.look(model, TEXT)
    T, weights = len(seen), seen.weights(0, 3)
    for place in (0, 1, T - 1, -1, -T):
        assert np.array_equal(seen.row(0, 3, place), weights[place]) and np.array_equal(seen.column(0, 3, place), weights[:, place])
    for place in (T, -T - 1):
        for call in (seen.row, seen.column, lambda layer, head, at: seen.next_tokens(at)):
            with pytest.raises(attend.InvalidArgument, match=f"is {place}, expected {-T} to {T - 1}"):
                call(0, 3, place)
    assert seen.zoom(0, 3, slice(5, 2), slice(None)).shape == (0, T)
    assert np.array_equal(seen.zoom(0, 3, slice(-2, None), slice(3, 99)), weights[-2:, 3:])


def test_kinds_of_heads_follow_the_run(model):
    """After a token more or fewer they are those of that run, not of the one before."""
    def kinds(seen):
        return [(t.layer, t.head, t.kind, t.runner_up, t.scores) for t in seen.types]

    seen = attend.look(model, TEXT)
    first = kinds(seen)
    assert kinds(seen) == first and seen.types is seen.types
    for _ in range(6):
        seen.next()
    longer = kinds(seen)
    assert longer == kinds(attend.look(model, seen.token_ids)) != first
    seen.back(2)
    assert kinds(seen) == kinds(attend.look(model, seen.token_ids))
    seen.back(99)  # never those that it began with
    assert len(seen) == len(TEXT) and kinds(seen) == first


def test_switches(model):
    plain = attend.look(model, TEXT, losses=True)
    window = attend.look(model, TEXT, mask="window:3", losses=True)
    assert np.count_nonzero(window.weights(0, 0)[10]) == 3
    change = window.against(plain)
    assert change.kl > 0 and change.loss_before != change.loss_after
    assert plain.against(plain).kl == 0
    knocked = attend.look(model, TEXT, knock=["zero@0.1", "mean@1"], temperature=2, losses=True)
    assert knocked.switches == "knock=zero@0.1,knock=mean@1,temperature=2"
    with pytest.raises(TypeError, match="expected one of"):
        attend.look(model, TEXT, knok="zero@1")
    with pytest.raises(attend.InvalidArgument, match="the model has 2 layers"):
        attend.look(model, TEXT, knock="zero@7")


def test_types(model):
    seen = attend.look(model, TEXT)
    assert len(seen.types) == seen.layers * seen.heads
    for one in seen.types:
        assert one.rows + one.left_out == len(seen) - 2
        assert one.kind.kind != one.runner_up.kind
        assert set(one.on_texts) <= {"prose", "exposition", "code", "Chinese"}
        assert one.stability == list(one.on_texts.values()).count(one.kind.kind) / len(one.on_texts)
    again = attend.look(model, "zyxwvu", mask="window:2")
    assert [one.on_texts for one in again.types] == [one.on_texts for one in seen.types]


def embedded(page):
    """What the page's script reads, with the numbers of each frame."""
    data = json.loads(re.search(r'<script type="application/json" id="attend-data">(.*?)</script>', page, re.DOTALL).group(1))
    for name, text in data["frames"].items():
        raw = base64.b64decode(text)
        assert raw[:4] == b"AEX1"
        size = struct.unpack_from("<I", raw, 4)[0]
        head = json.loads(raw[8:8 + size])
        kind = {"f32": np.float32, "u8": np.uint8}[head["dtype"]]
        data["frames"][name] = np.frombuffer(raw, kind, int(np.prod(head["shape"])), 8 + size).reshape(head["shape"])
    return data


def test_a_notebook_shows_the_explorer_with_the_same_numbers(model):
    seen = attend.look(model, TEXT)
    frame = seen._repr_html_()
    assert frame.startswith("<iframe") and "http://" not in frame.replace("http://www.w3.org/2000/svg", "") and "https://" not in frame
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame).group(1))
    data = embedded(page)
    for layer in range(seen.layers):
        assert np.array_equal(data["frames"][f"q.{layer}"], seen.q(layer)) and np.array_equal(data["frames"][f"v.{layer}"], seen.v(layer))
        for head in range(seen.heads):
            weights = data["frames"][f"map.{layer}.{head}"][0]
            assert np.array_equal(np.isnan(weights), np.triu(np.ones_like(weights), 1) > 0)
            assert np.array_equal(np.nan_to_num(weights), seen.weights(layer, head))
    assert [t["text"] for t in data["run"]["tokens"]] == seen.tokens
    assert [n["token"] for n in data["run"]["next"]] == [n.token for n in seen.next_tokens(-1, 12)]
    # Every module that one imports is there, and none of the labs'.
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', page, re.DOTALL).group(1))["imports"]
    code = {name: base64.b64decode(text.split(",")[1]).decode() for name, text in imports.items()}
    assert {other for text in code.values() for other in re.findall(r'"(attend/[\w.]+)"', text)} | {"attend/main.js"} == set(imports)
    switched = attend.look(model, TEXT, mask="window:3")
    weights = embedded(switched.html())["frames"]["map.0.0"][0]
    assert (~np.isnan(weights)).sum(1).max() == 3
    assert "mask=window:3" in embedded(switched.html())["about"]["model"]["name"]


def test_a_run_too_long_for_the_page_is_shown_as_pictures(model, monkeypatch):
    seen = attend.look(model, TEXT)
    with pytest.raises(attend.InvalidArgument, match="look at a shorter text"):
        _look_page.document(seen, 1000)
    whole = _look_page.document
    monkeypatch.setattr(_look_page, "document", lambda look: whole(look, 1000))
    page = seen._repr_html_()
    assert page.count("data:image/png;base64,") == seen.layers * seen.heads
    assert "next token" in page and "<script" not in page


def test_goes_on_and_back(model):
    seen = attend.look(model, TEXT)
    expected = model.generate(TEXT, max_tokens=3).tokens
    steps = [seen.next() for _ in range(3)]
    assert [s.token for s in steps] == list(expected)
    assert len(seen) == len(TEXT) + 3 and steps[2].cache_bytes > steps[1].cache_bytes
    seen.back(3)
    assert len(seen) == len(TEXT)


def test_memory_is_limited(model):
    with pytest.raises(RuntimeError, match=r"more than the limit of .* \(layers\), raise memory_limit"):
        attend.look(model, TEXT, memory_limit=1000)
    part = attend.look(model, TEXT, layers=[1])
    with pytest.raises(attend.InvalidArgument, match="not kept"):
        part.weights(0, 0)
    assert part.weights(1, 0).shape == (len(TEXT), len(TEXT))
