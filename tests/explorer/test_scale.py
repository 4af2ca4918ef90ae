"""What is painted: every weight at its place and, first token included, on one scale that the legend states."""

import numpy as np
import pytest
from conftest import TEXT

# The calls of the painter for the plot that is shown, with where its cells are.
PAINTED = """async (view) => {
  const {plotNow} = await import('/plot.js'), {paint} = await import('/paint.js'), {viridis, css, theme} = await import('/colours.js');
  const calls = [], own = {width: 900, height: 800, measure: (text) => 6 * text.length};
  const painter = new Proxy(own, {get: (of, name) => of[name] ?? ((...given) => calls.push([name, ...given]))});
  const plot = plotNow(), g = paint(painter, plot, view, {r: -1, c: -1});
  const at = (r, c) => (g.at ? g.at(r, c) : null), places = [];
  for (let r = 0; r < plot.rows; ++r) for (let c = 0; c < plot.columns; ++c) places.push([r, c, ...at(r, c)]);
  return {calls, places, cell: g.cell, first: g.first, gutter: Array.from({length: plot.rows}, (_, r) => g.gutterAt(r)), gutterSize: g.gutterSize,
          rows: plot.rows, columns: plot.columns, most: plot.what.most, panel: theme('panel'),
          colours: Array.from({length: 256}, (_, n) => css(viridis, n / 255))};
}"""


def show(explorer, **state):
    page = explorer().open()
    page.type(TEXT)
    page.evaluate("(state) => window.explorer.set(state)", {"layer": 0, "head": 1, **state})
    page.settle()
    return page, np.nan_to_num(page.map())


def named(painted, name):
    return [call[1:] for call in painted["calls"] if call[0] == name]


@pytest.mark.parametrize("sink", ["show", "split", "hide", "renorm"])
@pytest.mark.parametrize("sheared", [False, True])
def test_every_line_leads_from_the_query_to_its_key(explorer, sink, sheared):
    page, weights = show(explorer, sink=sink, sheared=sheared, view="lines")
    painted = page.evaluate(PAINTED, "lines")
    drawn = set()
    rows = len(weights)
    heights = np.array([call[2] for call in named(painted, "text")][2 : 2 + rows])  # after the titles: the queries' names
    for x0, y0, x1, y1, *_ in named(painted, "curve"):
        r, c = (int(np.abs(heights - y).argmin()) for y in (y0, y1))
        drawn.add((r, r - c if sheared else c))
    first = 0 if sink in ("show", "split") else 1
    scale = 1 - weights[:, :1] if sink == "renorm" else np.ones((len(weights), 1))
    shown = np.divide(weights, scale, out=np.zeros_like(weights), where=scale > 1e-9)
    wanted = {(i, j) for i in range(len(weights)) for j in range(first, i + 1) if shown[i, j] > 0.004}
    assert drawn == wanted, "each weight once, at its key or its distance"


@pytest.mark.parametrize("view", ["heat", "dots"])
@pytest.mark.parametrize("sink", ["show", "split", "hide", "renorm"])
@pytest.mark.parametrize("transpose", [False, True])
def test_by_distance_nothing_that_is_seen_looks_masked(explorer, view, sink, transpose):
    page, weights = show(explorer, sink=sink, sheared=True, transpose=transpose, view=view)
    painted = page.evaluate(PAINTED, view)
    covered = [(x, y, x + w, y + h) for x, y, w, h, *_ in named(painted, "rect")]
    inside = lambda x, y: any(a <= x <= c and b <= y <= d for a, b, c, d in covered)
    half = painted["cell"] / 2
    for r, c, x, y in painted["places"]:
        assert inside(x + half, y + half) == (c <= r), (r, c, "hatched where nothing is masked, or the reverse")


@pytest.mark.parametrize("view", ["heat", "dots"])
@pytest.mark.parametrize("sink", ["show", "split", "hide"])
def test_one_scale_for_all_weights(explorer, view, sink):
    page, weights = show(explorer, sink=sink, view=view, colour="sqrt")
    painted = page.evaluate(PAINTED, view)
    first, half, gutter = painted["first"], painted["cell"] / 2, painted["gutter"]
    at = {(round(x), round(y)): (r, c) for r, c, x, y in painted["places"] if c >= first}
    if sink == "split":
        at |= {(round(x), round(y)): (r, 0) for r, (x, y) in enumerate(gutter)}
    largest = weights[:, 1 if sink == "hide" else 0:].max()
    assert painted["most"] == pytest.approx(largest)
    seen = set()
    for call in named(painted, "rect" if view == "heat" else "circle"):
        place = (round(call[0]), round(call[1])) if view == "heat" else None
        if view == "dots":
            place = min(at, key=lambda p: abs(p[0] + half - call[0]) + abs(p[1] + half - call[1]))
            if abs(place[0] + half - call[0]) + abs(place[1] + half - call[1]) > 2:
                continue  # of the legend
        if place not in at:
            continue
        r, c = at[place]
        seen.add((r, c))
        share = weights[r, c] / largest
        if view == "heat":
            assert abs(painted["colours"].index(call[4]) - 255 * np.sqrt(share)) < 2, (r, c)
        else:
            assert call[2] == pytest.approx(np.sqrt(share) * (half - 1), abs=1e-3), (r, c)
    wanted = {(i, j) for i in range(len(weights)) for j in range(1 if sink == "hide" else 0, i + 1)}
    if view == "dots":
        wanted = {(i, j) for i, j in wanted if np.sqrt(weights[i, j] / largest) * (half - 1) > 0.31}
        assert wanted <= seen
    else:
        assert seen == wanted
    said = " ".join(call[0] for call in named(painted, "text") if isinstance(call[0], str))
    assert "up to the largest shown" in said, "the scale is stated"
    if view == "dots":
        assert "a full cell: " in said
        full = float(said.split("a full cell: ")[1].split("%")[0])
        assert full == pytest.approx(100 * largest, abs=0.51)


@pytest.mark.parametrize("scale, said", [("row", "up to the row's largest"), ("head", "up to the largest shown"), ("global", "up to 1")])
def test_the_legend_states_the_scale(explorer, scale, said):
    page, weights = show(explorer, range=scale)
    for view in ("heat", "dots"):
        painted = page.evaluate(PAINTED, view)
        assert any(said in str(call[0]) for call in named(painted, "text"))
    assert painted["most"] == pytest.approx(1 if scale == "global" else weights.max())
