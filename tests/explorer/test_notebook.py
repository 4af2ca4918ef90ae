"""attend.look in a notebook: the explorer in a frame, without a server; with the package that ./dev test has built."""

import json
import subprocess

import numpy as np
import pytest
from conftest import ROOT, TEXT, Explorer

PYTHON = ROOT / "build/venv/bin/python"
MAKE = """
import json, sys
import attend
from attend import llm
seen = attend.look(llm.Model("storyteller"), sys.argv[1])
open(sys.argv[2], "w").write("<!doctype html><meta charset=utf-8><title>notebook</title>" + seen._repr_html_())
print(json.dumps({"weights": [seen.weights(l, h).tolist() for l in (0, 5) for h in (0, 5)], "next": seen.next_tokens(-1, 3)[0].token}))
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import attend.llm"], check=False).returncode != 0:
        pytest.skip("the Python package is not built: ./dev test")
    file = tmp_path_factory.mktemp("notebook") / "cell.html"
    said = subprocess.run([PYTHON, "-c", MAKE, TEXT, file], check=True, capture_output=True, text=True).stdout
    return file, json.loads(said)


def test_the_frame_shows_every_head_and_computes_its_cells(notebook, chromium):
    file, told = notebook
    context = chromium.new_context(viewport={"width": 1300, "height": 900}, locale="en-US", offline=True)
    outer = Explorer(context, "")
    outer.page.goto(f"file://{file}")
    inner = outer.page.frame_locator("iframe")
    inner.locator("#pattern canvas").wait_for()
    outer.page.wait_for_timeout(500)
    [frame] = [f for f in outer.page.frames if f != outer.page.main_frame]
    for n, (layer, head) in enumerate(((0, 0), (0, 5), (5, 0), (5, 5))):
        frame.evaluate("([layer, head]) => window.explorer.set({layer, head})", [layer, head])
        outer.page.wait_for_timeout(300)
        rows, values, cell = frame.evaluate("""() => { const {map, cell} = window.explorer.data;
          return [map.rows, Array.from(map.planes.weight, (x) => Number.isNaN(x) ? 0 : x), cell]; }""")
        assert np.array_equal(np.array(values, np.float32).reshape(rows, rows), np.array(told["weights"][n], np.float32))
        assert abs(cell["weight"] - told["weights"][n][cell["query"]][cell["key"]]) < 1e-6
        assert cell["row"]["max_error"] < 1e-5, "the arithmetic again, from q and k"
    assert frame.evaluate("() => window.explorer.data.run.next[0].token") == told["next"]
    assert "a saved view" in inner.locator("#model").inner_text()
    assert outer.errors == []
    assert all(url.startswith(("file:", "data:", "about:")) for url in outer.requests)
    context.close()
