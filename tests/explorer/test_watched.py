"""Cross-attention, and attention of any model: attend.observe(...).html() with the package that ./dev test has built."""

import json
import subprocess

import numpy as np
import pytest
from conftest import Explorer
from test_notebook import PYTHON

MAKE = """
import json, sys
import numpy as np
import attend
rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 6, 8), (1, 2, 9, 8), (1, 2, 9, 8)))
seen = attend.observe(q, k, v, mask=attend.padding([8]), softcap=4.0 if sys.argv[2] == "capped" else 0.0)
page = seen.html("This is a small black dog".split(), "Das ist ein kleiner Hund und er ist schwarz".split(), name="two texts")
open(sys.argv[1], "w").write(page)
print(json.dumps([seen.zoom(head).tolist() for head in range(4)]))
"""


@pytest.fixture(params=["plain", "capped"])
def watched(request, tmp_path):
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import attend.llm"], check=False).returncode != 0:
        pytest.skip("the Python package is not built: ./dev test")
    file = tmp_path / "cross.html"
    made = subprocess.run([PYTHON, "-c", MAKE, file, request.param], check=True, capture_output=True, text=True)
    return file, np.array(json.loads(made.stdout)), request.param


def test_one_text_looks_at_another(watched, chromium):
    file, weights, kind = watched
    context = chromium.new_context(viewport={"width": 1300, "height": 900}, locale="en-US", offline=True)
    page = Explorer(context, "").open(url=file.as_uri())
    for head in range(4):
        page.evaluate("(head) => window.explorer.set({head})", head)
        page.settle()
        shown = page.map()
        assert shown.shape == (6, 9) and np.isnan(shown[:, 8]).all(), "the padding is masked, not zero"
        assert np.array_equal(np.nan_to_num(shown).astype(np.float32), weights[head].astype(np.float32))
        cell = page.data("cell")
        assert np.exp(cell["score"] - cell["lse"]) == pytest.approx(cell["weight"], abs=1e-6)
        if kind == "plain":
            assert cell["row"]["max_error"] < 1e-6, "the arithmetic again, from q and k"
    asks, asked = page.page.locator(".asks .token"), page.page.locator(".asked .token")
    assert (asks.count(), asked.count()) == (6, 9)
    asks.nth(2).click()
    asked.nth(4).click()
    page.settle()
    assert (page.state("query"), page.state("key")) == (2, 4)
    assert "“a” gives" in page.page.inner_text("#inspector") and "to “Hund”" in page.page.inner_text("#inspector")
    assert page.page.locator("[data-line=score]").count() == (kind == "capped"), "a soft-cap is a line of its own"
    asked.nth(4).press("ArrowRight")
    page.settle()
    assert page.state("key") == 5
    for view in ("dots", "lines"):
        page.page.click(f"[data-view={view}]")
        page.settle()
    assert page.page.locator("#timeline").is_hidden() and page.page.locator("#next").is_hidden()
    assert page.errors == []
    context.close()
