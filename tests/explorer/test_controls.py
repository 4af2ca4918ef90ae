"""Buttons, texts and panels: contrast while hovered, target sizes, what a damaged link reports, what fits without scrolling."""

import urllib.parse

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import TEXT

CONTRAST = """(node) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number), light = ([r, g, b]) => [r, g, b]
    .map((x) => x / 255).map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)).reduce((sum, x, n) => sum + x * [0.2126, 0.7152, 0.0722][n], 0);
  let at = node;
  while (at && (parse(getComputedStyle(at).backgroundColor)[3] ?? 1) === 0) at = at.parentElement;
  const [a, b] = [parse(getComputedStyle(node).color), parse(getComputedStyle(at).backgroundColor)].map(light).sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pressed_buttons_keep_their_contrast_while_hovered(explorer, scheme):
    page = explorer(color_scheme=scheme).open("transpose=true&sheared=true&pin=0,0&switches=shuffle%3D1,only%3Dlayer%400.0")
    pressed = page.page.locator("[aria-pressed=true]:visible")
    assert pressed.count() >= 5
    for n in range(pressed.count()):
        pressed.nth(n).hover()
        page.page.wait_for_timeout(200)  # transitions
        assert pressed.nth(n).evaluate(CONTRAST) >= 4.5, pressed.nth(n).inner_text()


@pytest.mark.parametrize("width, height, locale", [(1440, 900, "en-US"), (1440, 900, "zh-CN"), (390, 844, "zh-CN")])
def test_no_target_is_too_small(explorer, width, height, locale):
    page = explorer(width, height, locale=locale, bypass_csp=True).open("switches=knock%3Dzero%400.0")
    for tab in ("pattern", "next", "cell") if width < 760 else ("pattern",):
        page.evaluate("(tab) => window.explorer.set({tab})", tab)
        page.settle()
        found = Axe().run(page.page, options={"runOnly": ["target-size"]}).response["violations"]
        assert [n["html"][:120] for v in found for n in v["nodes"]] == []
    page.evaluate("() => { window.explorer.set({tab: 'next'}) }")
    page.settle()
    heights = page.evaluate("() => [...document.querySelectorAll('.next-row')].map((row) => row.getBoundingClientRect().height)")
    assert len(heights) >= 5 and min(heights) >= 24


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("switches", ["", "scale=off"])
def test_the_output_of_a_cell_is_seen_without_scrolling(explorer, locale, switches):
    page = explorer(locale=locale).open(f"text={urllib.parse.quote(TEXT)}" + (f"&switches={urllib.parse.quote(switches)}" if switches else ""))
    assert page.data("cell.q_before"), "with RoPE there is one line more"
    seen = page.evaluate("""() => { const body = document.querySelector('.cell-body'), box = body.getBoundingClientRect();
      const out = document.querySelector('.vector-row.o .vector').getBoundingClientRect(), n = document.querySelectorAll('.next-row').length;
      return [body.scrollTop, out.bottom, box.bottom, innerHeight, n]; }""")
    assert seen[0] == 0 and seen[1] <= seen[2] <= seen[3], seen
    assert seen[4] >= 5


def test_texts_about_a_head_do_not_contradict_themselves(explorer):
    page = explorer().open()
    said = lambda **head: page.evaluate("async (head) => (await import('/grid.js')).aboutHead(head)",
                                        {"score": 0.8, "runner_up": "self", "runner_score": 0.1, "rows": 4, "left_out": 0, **head})
    assert "Next: itself, 0.1" in said(type="previous")
    assert "2 of 6 rows rest on the sink alone and do not count" in said(type="previous", left_out=2)
    for rows, left_out in ((4, 0), (2, 2), (0, 4)):  # it is measured on other tokens
        assert "do not count" not in said(type="induction", rows=rows, left_out=left_out)
        assert "random tokens" in said(type="induction", rows=rows, left_out=left_out)
    assert "Next:" not in said(type="induction", rows=0, left_out=4), "no rule has a score"
    resting = said(type="sink_resting", rows=0, left_out=4)
    assert "4 of 4 rows rest on the sink" in resting and "Next:" not in resting


@pytest.mark.parametrize("fragment, said", [
    ("v=1&model=another-model&layer=x&nonsense=1&text=Hello%20there", ["damaged", "layer", "nonsense", "another-model"]),
    ("v=9&model=another-model&view=nothing", ["another version", "view", "another-model"]),
    ("v=1&query=x", ["damaged", "query"]),
])
def test_a_damaged_link_reports_all_that_is_wrong(explorer, fragment, said):
    page = explorer().open(fragment)
    assert [word for word in said if word not in page.page.inner_text("#banner")] == []
    page.page.click("#banner button")
    page.settle()
    assert page.page.locator("#banner").is_hidden()
    page.evaluate("() => history.replaceState(null, '', '#')")
    page.evaluate("(fragment) => { location.hash = fragment; }", fragment)
    page.until("window.explorer.data.problem?.kind === 'link'")
    page.settle()
    assert [word for word in said if word not in page.page.inner_text("#banner")] == []
