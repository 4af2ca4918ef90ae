"""Each must of the explorer, in a real browser: numbers, switches, generation, links, files, keys."""

import json
import math
import struct
import urllib.parse
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from conftest import TEXT


def read_frames(data):
    """Frames as apps/explorer/frames.js reads them: [(head, numbers)]."""
    frames, at = [], 0
    while at < len(data):
        assert data[at : at + 4] == b"AEX1"
        (size,) = struct.unpack_from("<I", data, at + 4)
        head = json.loads(data[at + 8 : at + 8 + size])
        kind = {"f32": np.float32, "u8": np.uint8}[head["dtype"]]
        count = math.prod(head["shape"])
        values = np.frombuffer(data, kind, count, at + 8 + size).reshape(head["shape"])
        frames.append((head, values))
        at += 8 + size + (values.nbytes + 3) // 4 * 4
    return frames


def engine_weights(server, run, layer, head, scale=None):
    """softmax(q kᵀ / √d) in double from the engine's own q and k."""
    tensors = {h["name"]: v.astype(np.float64) for h, v in read_frames(server.get(f"runs/{run}/tensors?layer={layer}"))}
    q, k = tensors["q"], tensors["k"]
    group = q.shape[0] // k.shape[0]
    scores = q[head] @ k[head // group].T * (scale or 1 / math.sqrt(q.shape[2]))
    scores[np.triu_indices(len(scores), 1)] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    # What rounding the largest score to float may do to a weight, and never less than 1e-6.
    bound = max(1e-6, 2.0**-23 * np.abs(scores[np.isfinite(scores)]).max())
    return weights / weights.sum(1, keepdims=True), bound


def mean_entropy(weights):
    safe = np.where(weights > 0, weights, 1)
    return float(-(weights * np.log(safe)).sum(1).mean())


def test_typed_text_gives_the_engines_weights(explorer, server):
    page = explorer().open()
    page.type(TEXT)
    layers, heads = page.data("about.model.layers"), page.data("about.model.heads")
    for layer, head in ((0, 0), (layers // 2, heads - 1), (layers - 1, heads // 2)):
        page.evaluate("([layer, head]) => window.explorer.set({layer, head})", [layer, head])
        page.settle()
        shown = page.map()
        wanted, bound = engine_weights(server, page.data("run.run"), layer, head)
        assert np.array_equal(np.isnan(shown), np.triu(np.ones_like(shown), 1) > 0), "exactly the future is masked"
        assert np.abs(np.nan_to_num(shown) - wanted).max() < bound
        assert abs(page.data("cell.weight") - wanted[page.data("cell.query"), page.data("cell.key")]) < 1e-6
    assert page.errors == []


def test_the_arithmetic_of_a_cell_adds_up(explorer):
    page = explorer().open()
    page.type(TEXT)
    cell = page.data("cell")
    dot = float(np.dot(cell["q"], cell["k"]))
    assert dot == pytest.approx(cell["dot"], rel=1e-6, abs=1e-6)
    assert dot * cell["scale"] == pytest.approx(cell["score"], rel=1e-6, abs=1e-6)
    assert math.exp(cell["score"] - cell["lse"]) == pytest.approx(cell["weight"], abs=1e-6)
    assert cell["row"]["sum"] == pytest.approx(1, abs=1e-5)
    assert cell["row"]["max_error"] < 1e-5
    said = page.page.inner_text("#inspector")
    for letter in ("q", "k", "v", "o"):
        assert page.page.locator(f".vector-row.{letter}").count() == 1
    assert "softmax" in said and "÷ √" in said


def test_scale_off_lowers_entropy_and_changes_the_next_token(explorer, server):
    page = explorer().open()
    page.type(TEXT)
    before = mean_entropy(np.nan_to_num(page.map()))
    page.press("s")
    assert page.page.locator(".chip[data-switch='scale=off']").count() == 1
    after = mean_entropy(np.nan_to_num(page.map()))
    assert after < before
    told = server.post("runs", {"text": TEXT, "switches": ["scale=off"]})
    assert [n["token"] for n in page.data("run.next")] == [n["token"] for n in told["next"]]
    assert page.data("run.kl") == pytest.approx(told["kl"], rel=1e-9)
    assert told["kl"] > 0
    layer, head = page.state("layer"), page.state("head")
    wanted, bound = engine_weights(server, page.data("run.run"), layer, head, scale=1.0)
    assert np.abs(np.nan_to_num(page.map()) - wanted).max() < bound
    page.page.click(".reset")
    page.settle()
    assert mean_entropy(np.nan_to_num(page.map())) == before


def test_knocking_a_head_out(explorer, server):
    page = explorer().open()
    page.type(TEXT)
    layer, head = page.state("layer"), page.state("head")
    page.press("x")
    one = f"knock=zero@{layer}.{head}"
    assert page.state("switches") == [one]
    told = server.post("runs", {"text": TEXT, "switches": [one]})
    assert page.data("run.next") == told["next"]
    assert "without" in page.page.inner_text("#switches")
    assert page.page.locator(".next .was").count() > 0, "before stands beside after"
    page.page.click(".chip-side")  # by mean instead
    page.settle()
    assert page.state("switches") == [one.replace("zero", "mean")]
    page.press("x")
    assert page.state("switches") == []


@pytest.mark.parametrize("switch", ["mask=full", "mask=window:4", "mask=sinks:1+4", "positions=off", "temperature=2", "shuffle=1"])
def test_every_switch_runs_the_model_again(explorer, server, switch):
    page = explorer().open("switches=" + urllib.parse.quote(switch) + "&text=" + urllib.parse.quote(TEXT))
    told = server.post("runs", {"text": TEXT, "switches": [switch]})
    assert page.data("run.next") == told["next"]
    assert page.page.locator(f".chip[data-switch='{switch}']").count() == 1
    weights = page.map()
    assert np.allclose(np.nansum(weights, 1), 1, atol=1e-5)
    if switch == "mask=window:4":
        assert (~np.isnan(weights)).sum(1).max() == 4
    if switch == "mask=full":
        assert not np.isnan(weights).any()


def test_step_and_back(explorer):
    page = explorer().open()
    page.type(TEXT)
    prompt = page.data("run.tokens.length")
    first = page.data("run.next")[0]["token"]
    page.press(".", ".", ".")
    assert page.data("run.tokens.length") == prompt + 3
    assert page.state("generated")[0] == first, "the likeliest token is taken"
    grown = page.map()
    tokens = page.state("generated")
    page.press(",", ",")
    assert page.state("shown") == prompt + 1
    assert np.array_equal(page.map(), grown[: prompt + 1, : prompt + 1], equal_nan=True), "going back shows the same numbers"
    page.press(".", ".")
    assert page.state("generated") == tokens and page.map().shape == grown.shape
    assert page.page.locator(".made-list .token").count() == 3
    assert "tokens ×" in page.page.inner_text(".cache-box")


def test_a_clicked_next_token_is_appended(explorer):
    page = explorer().open()
    page.type(TEXT)
    wanted = page.data("run.next")[2]["token"]
    page.page.click(f".next-row[data-token='{wanted}']")
    page.settle()
    assert page.state("generated") == [wanted]


def test_permalink_gives_the_exact_state(explorer):
    page = explorer().open()
    page.type(TEXT)
    page.press(".", ".")
    page.evaluate("""() => window.explorer.set({layer: 1, head: 1, view: "dots", transpose: true, colour: "log", sink: "renorm",
      range: "row", switches: ["temperature=1.5"], sort: "entropy", query: 6, key: 3, find: "cat"})""")
    page.settle()
    page.page.wait_for_timeout(400)
    state, weights, address = page.evaluate("() => ({...window.explorer.state})"), page.map(), page.evaluate("() => location.hash")
    other = explorer().open(address[1:])
    reopened = other.evaluate("() => ({...window.explorer.state})")
    for volatile in ("lang", "theme"):
        state.pop(volatile), reopened.pop(volatile)
    assert reopened == state
    assert np.array_equal(other.map(), weights, equal_nan=True)


def test_exports_hold_the_same_numbers(explorer, tmp_path):
    page = explorer().open()
    page.type(TEXT)
    weights, place = page.map(), (page.state("layer"), page.state("head"))
    files = {}
    for kind in ("PNG", "SVG", "JSON", "HTML"):
        file = page.download(kind)
        files[kind] = tmp_path / file.suggested_filename
        file.save_as(files[kind])
    assert files["PNG"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and files["PNG"].stat().st_size > 10000
    drawing = ElementTree.parse(files["SVG"]).getroot()
    assert drawing.tag.endswith("svg") and len(list(drawing.iter())) > 50
    numbers = json.loads(files["JSON"].read_text())
    told = np.array([[np.nan if x is None else x for x in row] for row in numbers["weight"]])
    assert np.array_equal(told, weights, equal_nan=True)
    assert [numbers["state"]["layer"], numbers["state"]["head"]] == list(place)
    alone = explorer()
    alone.open(url=files["HTML"].as_uri())
    assert np.array_equal(alone.map(), weights, equal_nan=True)
    assert abs(alone.data("cell.weight") - page.data("cell.weight")) < 1e-6
    assert alone.page.locator("#switches").is_hidden(), "what needs the model is not offered"
    assert [url for url in alone.requests if url.startswith("http")] == []
    assert alone.errors == []


def test_views_sorting_filter_and_difference(explorer):
    page = explorer().open()
    page.type(TEXT)
    for view in ("heat", "dots", "lines"):
        page.page.click(f"[data-view={view}]")
        page.settle()
        assert page.state("view") == view
    page.page.select_option("#sort", "entropy")
    page.page.select_option("#filter", index=1)
    page.settle()
    assert page.state("sort") == "entropy" and page.state("filter") != ""
    page.press("x", "d")
    assert page.state("compare") == "before"
    page.until("window.explorer.data.other")
    page.settle()
    assert "Orange" in page.page.inner_text("#pattern .line")
    assert page.errors == []


def test_find(explorer):
    page = explorer().open()
    page.type(TEXT)
    page.press("/")
    page.page.keyboard.type("dog")
    page.settle()
    page.page.keyboard.press("Enter")
    page.settle()
    tokens = page.data("run.tokens")
    assert tokens[page.state("query")]["text"].strip().startswith("dog"[:1])
    assert page.page.locator(".token.found").count() >= 1


def test_keyboard_only(explorer):
    page = explorer().open()
    page.page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    seen = set()
    for _ in range(60):
        page.page.keyboard.press("Tab")
        seen.add(page.evaluate("() => document.activeElement.closest('[id]')?.id ?? ''"))
    assert {"tools", "text", "mask", "temperature", "knock", "sort", "filter"} <= seen
    page.page.evaluate("() => document.activeElement.blur()")
    page.press("Escape")
    layer, head, query = page.state("layer"), page.state("head"), page.state("query")
    page.press("ArrowUp" if layer else "ArrowDown")
    assert page.state("layer") != layer
    page.press("]")
    assert page.state("head") == (head + 1) % page.data("about.model.heads")
    page.press("ArrowLeft")
    assert page.state("query") == query - 1
    page.press("t")
    assert page.state("transpose") is True
    page.press("m")
    assert page.state("switches") == ["mask=full"]
    page.press("v")
    assert page.state("view") == "heat"
    page.press("?")
    assert page.page.locator("dialog[open]").count() == 1
    page.press("Escape")
    assert page.page.locator("dialog").count() == 0
    assert page.page.inner_text("#spoken") != "", "a screen reader hears the choice"
