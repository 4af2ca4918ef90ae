"""One choice in all views, each way of drawing it, and what can be done to it with a pointer."""

import re

import numpy as np
import pytest
from conftest import TEXT, Explorer, Server
from test_musts import engine_weights, read_frames


def drawn(page):
    """What the large pattern draws: rows, columns, its cells, and the first token's column where that stands apart."""
    rows, columns, cells, gutter = page.evaluate("""async () => {
      const {plotNow} = await import('/plot.js'), plot = plotNow(), list = (all) => all && Array.from(all, (x) => Number.isNaN(x) ? null : x);
      return [plot.rows, plot.columns, list(plot.cells), list(plot.gutter)];
    }""")
    array = lambda values: np.array([np.nan if x is None else x for x in values], np.float64)
    return array(cells).reshape(rows, columns), gutter and array(gutter)


def test_a_head_is_previewed_chosen_soloed_and_knocked_out(explorer):
    page = explorer().open()
    box = page.page.locator("#grid .heads").bounding_box()
    at = (box["x"] + 24 + 0.4 * (box["width"] - 24), box["y"] + 12)
    page.page.mouse.move(*at)
    layer, head = map(int, re.match(r"(\d+)·(\d+)", page.page.inner_text("#grid .told")).groups())
    before = page.state("layer"), page.state("head")
    assert (layer, head) != before, "what is hovered is told, not chosen"
    page.page.mouse.click(*at)
    page.settle()
    assert (page.state("layer"), page.state("head")) == (layer, head)
    assert page.page.inner_text("#pattern h2") == f"Layer {layer}, head {head}"
    assert page.data("cell.layer") == layer and page.data("map.head") == head
    page.page.mouse.dblclick(*at)
    page.settle()
    assert page.state("switches") == [f"only=layer@{layer}.{head}"]
    page.page.click(".reset")
    page.page.keyboard.down("Shift")
    page.page.mouse.click(*at)
    page.page.keyboard.up("Shift")
    page.settle()
    assert page.state("switches") == [f"knock=zero@{layer}.{head}"]


def test_a_cell_is_previewed_and_chosen_in_every_view(explorer):
    page = explorer().open()
    page.type(TEXT)
    chosen = page.state("query"), page.state("key")
    box = page.page.locator("#pattern .big").bounding_box()
    found = None
    for step in range(40):  # down the middle, until a cell is under the pointer
        at = (box["x"] + box["width"] * 0.47, box["y"] + 60 + step * 12)
        page.page.mouse.move(*at)
        page.page.wait_for_timeout(30)
        found = page.data("hover")
        if found and (found["query"], found["key"]) != chosen and found["key"] <= found["query"]:
            break
    assert found
    page.settle()
    assert (page.data("cell.query"), page.data("cell.key")) == (found["query"], found["key"]), "hovering shows its arithmetic"
    assert (page.state("query"), page.state("key")) == chosen, "and chooses nothing"
    page.page.mouse.click(*at)
    page.settle()
    assert (page.state("query"), page.state("key")) == (found["query"], found["key"])
    assert page.page.get_attribute(f"#query-{found['query']}", "aria-selected") == "true", "the strip has it too"
    for other in (7, 9):
        page.page.click(f"#query-{other}")
        page.settle()
        assert page.state("query") == page.data("cell.query") == other
        row = np.nan_to_num(page.map()[other])
        assert page.state("key") == 1 + int(row[1:].argmax()), "the key that it looks at most"
    page.press("Escape")
    assert page.state("query") == page.data("run.tokens.length") - 1


def test_the_first_token_shown_split_off_or_left_out(explorer):
    page = explorer().open()
    page.type(TEXT)
    whole = np.nan_to_num(page.map())
    for sink in ("show", "split", "hide", "renorm"):
        page.evaluate("(sink) => window.explorer.set({sink})", sink)
        page.settle()
        cells, gutter = drawn(page)
        if sink == "show":
            assert gutter is None and np.array_equal(np.nan_to_num(cells), whole)
            continue
        assert np.array_equal(gutter, whole[:, 0]) if sink == "split" else gutter is None
        rest = np.nan_to_num(cells)[:, 1:]
        wanted = whole[:, 1:] / (1 - whole[:, :1] if sink == "renorm" else 1)
        rows = whole[:, 0] < 0.999
        assert np.abs(rest - wanted)[rows].max() < 1e-5
    told = page.page.inner_text("[data-receipt=sink]")
    assert abs(float(told.split()[0]) - 100 * whole[1:, 0].mean()) <= 0.5, "its mass is printed"


def test_weight_times_value_and_distance(explorer, server):
    page = explorer().open()
    page.type(TEXT)
    weights, head = page.map(), page.state("head")
    page.evaluate("() => window.explorer.set({measure: 'value', sink: 'show'})")
    page.until("window.explorer.data.values")
    page.settle()
    tensors = {h["name"]: v for h, v in read_frames(server.get(f"runs/{page.data('run.run')}/tensors?layer={page.state('layer')}"))}
    norms = np.linalg.norm(tensors["v"][head // (len(tensors["q"]) // len(tensors["v"]))], axis=1)
    assert np.nanmax(np.abs(drawn(page)[0] - weights * norms)) < 1e-5
    page.evaluate("() => window.explorer.set({measure: 'weight', sheared: true})")
    page.settle()
    cells = drawn(page)[0]
    for i in range(len(weights)):
        assert np.array_equal(cells[i, : i + 1], weights[i, i::-1]), "column d is d tokens back"
    assert "how far back" in page.page.inner_text("#pattern .line")


def test_views_are_for_texts_of_their_size(explorer):
    page = explorer().open()
    page.type(TEXT)
    for view, words in (("heat", "brighter"), ("dots", "larger a dot"), ("lines", "thicker a line")):
        page.page.click(f"[data-view={view}]")
        page.settle()
        assert words in page.page.inner_text("#pattern .line")
    page.type(" ".join(["red"] * 90))
    assert "at most 64" in page.page.inner_text("#pattern .line"), "lines are refused, and why is said"


def test_heads_that_share_keys_and_values(explorer):
    page = explorer().open()
    page.type(TEXT)
    model = page.data("about.model")
    group = model["heads"] // model["kv_heads"]
    assert group > 1, "the model inside groups its heads"
    painted = page.evaluate("""() => { const c = document.querySelector('.brackets');
      return !c.hidden && c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((x) => x > 0); }""")
    assert painted
    keys = []
    for head in range(group + 1):
        page.evaluate("(head) => window.explorer.set({layer: 1, head, query: 9, key: 4})", head)
        page.settle()
        keys.append(page.data("cell.k"))
    assert keys[0] == keys[group - 1] != keys[group]
    assert f"query heads {group}–{2 * group - 1} share this k and v (KV head 1)" in page.page.inner_text("#inspector")


def test_q_and_k_before_their_rotation(explorer):
    page = explorer().open()
    page.type(TEXT)
    page.evaluate("() => window.explorer.set({query: 9, key: 9})")
    page.settle()
    cell = page.data("cell")
    assert np.linalg.norm(cell["q_before"]) == pytest.approx(np.linalg.norm(cell["q"]), rel=1e-5), "a rotation keeps lengths"
    assert np.dot(cell["q_before"], cell["k_before"]) == pytest.approx(cell["dot"], rel=1e-4, abs=1e-4), "the same place: the same angle"
    page.evaluate("() => window.explorer.set({query: 9, key: 4})")
    page.settle()
    cell = page.data("cell")
    page.page.click(".rotation button >> nth=1")
    page.settle()
    said = page.page.inner_text("[data-line=before]").replace("−", "-")
    assert float(said.split()[-1]) == pytest.approx(np.dot(cell["q_before"], cell["k_before"]), rel=1e-3)
    assert "5 tokens apart" in page.page.inner_text("[data-line=dot]")


def test_a_token_is_hidden_as_padding_is(explorer, server):
    page = explorer().open()
    page.type(TEXT)
    page.evaluate("() => window.explorer.set({key: 5})")
    page.settle()
    page.press("h")
    assert page.state("switches") == ["padding=5-6"]
    assert np.isnan(page.map()[:, 5]).all() and np.allclose(np.nansum(page.map(), 1)[6:], 1, atol=1e-5)
    assert page.data("run.next") == server.post("runs", {"text": TEXT, "switches": ["padding=5-6"]})["next"]
    assert "without “mat”" in page.page.inner_text(".chips") or "without" in page.page.inner_text(".chips")
    page.press("h")
    assert page.state("switches") == []


def test_play_and_pause(explorer):
    page = explorer().open()
    page.type(TEXT)
    prompt = page.data("run.tokens.length")
    page.page.keyboard.press(" ")
    page.until(f"window.explorer.data.run.tokens.length >= {prompt + 2}")
    page.page.keyboard.press(" ")
    page.until("!window.explorer.data.playing")
    page.settle()
    made = page.data("run.tokens.length")
    page.page.wait_for_timeout(900)
    assert page.data("run.tokens.length") == made
    assert page.data("steps.length") == made - prompt


def test_pooled_cells_and_the_zoom_are_exact(chromium):
    server = Server("--context", "4096")
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    try:
        page = Explorer(context, server.url).open()
        page.paste(" ".join(f"The {name} sat on the {place}." for name in "cat dog girl boy bird".split() for place in "mat box bed sand hill".split() for _ in range(9)))
        page.until("window.explorer.data.run?.tokens.length > 1024 && window.explorer.data.map && !window.explorer.data.map.exact"
                   " && window.explorer.data.map.done === window.explorer.data.map.rows", 240)
        page.settle()
        weights, bound = engine_weights(server, page.data("run.run"), page.state("layer"), page.state("head"))
        rows, columns, mass, peak = page.evaluate("""() => { const {map} = window.explorer.data, list = (p) => Array.from(p, (x) => Number.isNaN(x) ? 0 : x);
          return [map.rows, map.columns, list(map.planes.mass), list(map.planes.peak)]; }""")
        step = page.data("map.rowStep")
        edges = [np.minimum(np.round(np.arange(rows + 1) * step), len(weights)).astype(int), np.arange(columns + 1) * len(weights) // columns]
        some = [(r, c) for r in range(0, rows, 37) for c in range(0, columns, 29) if edges[1][c] <= edges[0][r]]
        for r, c in some:
            part = weights[edges[0][r]:edges[0][r + 1], edges[1][c]:edges[1][c + 1]]
            assert abs(peak[r * columns + c] - part.max()) < bound
            assert abs(mass[r * columns + c] - part.sum() / len(part)) < bound * part.shape[1]
        page.evaluate("() => window.explorer.set({window: [700, 764, 100, 180]})")
        page.until("window.explorer.data.map.exact")
        page.settle()
        assert np.abs(np.nan_to_num(page.map()) - weights[700:764, 100:180]).max() < bound
        assert page.errors == []
    finally:
        context.close()
        server.stop()
