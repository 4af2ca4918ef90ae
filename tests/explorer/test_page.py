"""The page as a whole: bad input, a lost server, accessibility, languages, and that it keeps to itself."""

import os
import sys
import urllib.parse

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import PROGRAM, ROOT, TEXT, Explorer, Server


def test_both_languages_have_the_same_texts(explorer):
    page = explorer().open()
    en, zh = page.evaluate("async () => { await import('/texts_labs.js'); const {languages} = await import('/texts.js'); return [languages.en, languages.zh]; }")
    assert list(en) == list(zh)
    holes = lambda text: sorted(part.split("}")[0] for part in text.split("{")[1:])
    assert [key for key in en if holes(en[key]) != holes(zh[key])] == []


def test_texts_are_used(explorer):
    page = explorer().open()
    keys = page.evaluate("async () => { await import('/texts_labs.js'); return Object.keys((await import('/texts.js')).languages.en); }")
    code = "".join(path.read_text() for path in (ROOT / "apps/explorer").glob("*.js") if not path.name.startswith("texts"))
    code += "".join((ROOT / "apps/explorer" / name).read_text() for name in ("index.html", "labs.html"))
    made = ("type_", "rule_", "sort_", "view_", "colour_", "range_", "measure_", "plane_", "sink_", "tab_", "key_", "mask_", "problem_", "part_")
    also = {f"training_{name}" for name in ("rate", "gradient", "speed", "unigram", "trigram", "entropy")}
    assert [key for key in keys if f'"{key}"' not in code and not key.startswith(made) and key not in also] == []


# What does not fit: text wider than its box, and panels that lie over each other.
MISFITS = """() => {
  const seen = (node) => node.checkVisibility({visibilityProperty: true}) && node.getBoundingClientRect().width > 2, out = [];
  const ruler = document.createElement("canvas").getContext("2d");
  for (const node of document.querySelectorAll("button, label, h1, h2, h3, summary, .badge, .about, .line, .next-row .p, .next-row .was"))
    if (seen(node) && node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline" && !node.closest(".spoken"))
      out.push(`clipped: ${node.outerHTML.slice(0, 90)}`);
  for (const node of document.querySelectorAll("input[placeholder], select")) {
    if (!seen(node)) continue;
    const style = getComputedStyle(node), text = node.placeholder ?? node.selectedOptions[0]?.textContent ?? "";
    ruler.font = style.font;
    const room = node.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - (node.placeholder ? 0 : 14);
    if (ruler.measureText(text).width > room + 1) out.push(`clipped: ${text} in ${node.id}`);
  }
  const panels = [...document.querySelectorAll(".panel, .prompt, #strip, #switches, .tabs, .top")].filter(seen);
  for (const [n, a] of panels.entries())
    for (const b of panels.slice(n + 1)) {
      const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
      if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1 && !a.contains(b))
        out.push(`overlap: ${a.id || a.className} ${b.id || b.className}`);
    }
  for (const canvas of document.querySelectorAll(".panel canvas"))
    if (seen(canvas) && canvas.getBoundingClientRect().bottom > canvas.closest(".panel").getBoundingClientRect().bottom + 1 && !canvas.closest(".grid-scroll"))
      out.push(`outside: ${canvas.className}`);
  if (document.documentElement.scrollWidth > innerWidth) out.push("the page is wider than the screen");
  return out;
}"""


@pytest.mark.parametrize("width,height,scheme,locale", [
    (2560, 1440, "light", "zh-CN"), (1440, 900, "light", "en-US"), (1440, 900, "dark", "zh-CN"), (1024, 768, "dark", "en-US"),
    (1024, 768, "light", "zh-CN"), (768, 1024, "light", "en-US"), (390, 844, "dark", "zh-CN"), (360, 740, "light", "en-US")])
def test_axe_finds_nothing_and_everything_fits(explorer, width, height, scheme, locale):
    page = explorer(width, height, color_scheme=scheme, locale=locale, bypass_csp=True).open("switches=knock%3Dzero%400.0")
    found = Axe().run(page.page).response["violations"]
    assert [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found] == []
    for tab in ("pattern", "grid", "cell", "next") if width < 760 else ("pattern",):
        page.evaluate("(tab) => window.explorer.set({tab})", tab)
        page.settle()
        assert (tab, page.evaluate(MISFITS)) == (tab, [])
    if width < 760:
        page.page.click(".fold")
        assert page.page.locator("#knock").is_visible() and page.evaluate(MISFITS) == []
    assert page.errors == []


def test_no_request_leaves_the_origin(explorer, server):
    page = explorer().open()
    page.type(TEXT)
    page.press("s", ".", "v")
    page.download("HTML")
    assert [url for url in page.requests if not url.startswith((server.url, "blob:" + server.url))] == []


@pytest.mark.parametrize("text", ["", "   \n\t  "])
def test_nothing_to_read(explorer, text):
    page = explorer().open()
    page.type(text)
    assert "There is no text" in page.page.inner_text("#banner")
    page.type("Hello there")
    assert page.page.locator("#banner").is_hidden()
    assert page.data("run.tokens.length") >= 2


@pytest.mark.parametrize("text", ["שלום עולם, מה שלומך היום?", "مرحبا بالعالم", "🙂🙃 👩‍👩‍👧‍👦 family 🇫🇷", "a\u0000b\u001bc", "<script>alert(1)</script> & \"quotes\"",
                                  "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \ufffd", "从前有一只小猫，它喜欢鱼。"])
def test_any_text_is_read(explorer, text):
    page = explorer().open()
    page.type(text)
    assert "".join(token["text"] for token in page.data("run.tokens")) != ""
    assert page.data("map.rows") == page.data("run.tokens.length")
    assert page.page.locator("script:not([type=module]):not([src])").count() == 0
    assert page.errors == []


def test_ten_megabytes_pasted(explorer):
    page = explorer().open()
    page.paste("many words " * 950000)
    page.until("window.explorer.data.problem?.kind === 'too_large' || window.explorer.data.problem?.kind === 'too_long'", 120)
    page.until("window.explorer.data.run?.tokens.length > 100", 240)
    assert "kept" in page.page.inner_text("#banner")
    page.type("Hello there")
    assert page.data("run.tokens.length") < 10


def test_a_lost_server_comes_back(chromium):
    if os.environ.get("ATTEND_EXPLORE_URL"):
        pytest.skip("the server is not ours to end")
    server = Server()
    context = chromium.new_context()
    try:
        page = Explorer(context, server.url).open()
        server.stop()
        page.page.fill("#text", "Is anybody there?")
        page.until("window.explorer.data.lost && document.querySelector('#banner').innerText.includes('does not answer')")
        server.start()
        page.until("!window.explorer.data.lost && window.explorer.data.run?.tokens.length > 2", 60)
        page.settle()
        assert page.data("map.rows") == page.data("run.tokens.length")
    finally:
        context.close()
        server.stop()


@pytest.mark.parametrize("fragment,said,text", [
    ("v=9&text=" + urllib.parse.quote(TEXT) + "&layer=1&head=0", "another version", TEXT),
    ("v=1&text=" + urllib.parse.quote(TEXT) + "&layer=x&nonsense=%", "damaged", TEXT),
    ("v=1&packed=!!!notbase64&head=0", "damaged", None),
    ("v=1&layer=999999&head=77&query=123456&window=5,2,9,1&text=Hello%20there", "damaged", "Hello there"),
    ("model=another-model&text=Hello%20there", "another-model", "Hello there"),
])
def test_a_bad_link_opens_as_far_as_it_goes(explorer, fragment, said, text):
    page = explorer().open(fragment)
    assert said in page.page.inner_text("#banner")
    if text:
        assert page.state("text") == text
    assert page.data("map.rows") > 0 and page.errors == []


def test_a_long_text_is_packed_into_the_link(explorer):
    text = "A sentence that comes again, number %d. "
    text = "".join(text % n for n in range(80))
    page = explorer().open()
    page.type(text)
    page.page.wait_for_timeout(500)
    address = page.evaluate("() => location.hash")
    assert len(address) < len(text) and "packed=" in address
    assert explorer().open(address[1:]).state("text") == text


def test_language_and_theme_switch(explorer):
    page = explorer(color_scheme="light").open()
    page.page.click("#tools button >> nth=0")
    page.settle()
    assert page.evaluate("() => document.documentElement.lang") == "zh-Hans"
    assert "层" in page.page.inner_text("#grid h2")
    page.page.click("#tools button >> nth=1")
    page.settle()
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_the_phone_has_one_column_with_tabs(explorer):
    page = explorer(390, 844, has_touch=True).open()
    for name, panel in (("Heads", "#grid"), ("Cell", "#inspector"), ("Next", "#next"), ("Pattern", "#pattern")):
        page.page.click(f"#tabs button:has-text('{name}')")
        page.settle()
        assert [p for p in ("#grid", "#inspector", "#next", "#pattern") if page.page.locator(p).is_visible()] == [panel]


def test_a_model_that_embeds(chromium, tmp_path):
    sys.path.append(str(ROOT / "tests/server"))
    from tiny_model import write_encoder

    server = Server.__new__(Server)
    server.begin([PROGRAM, "explore", write_encoder(tmp_path / "encoder"), "--no-open"])
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    try:
        page = Explorer(context, server.url).open()
        page.type("a b c a b c")
        assert not np.isnan(page.map()).any(), "it sees both ways"
        assert page.page.input_value("#mask") == "full"
        assert [p for p in ("#next", "#timeline") if page.page.locator(p).is_visible()] == []
        page.press("m")
        assert page.state("switches") == ["mask=causal"]
        assert np.isnan(page.map()).any()
        page.press("m", "x", ".", " ")
        assert page.data("problem") is None and page.errors == []
    finally:
        context.close()
        server.stop()


def test_32k_tokens_are_explored(chromium):
    """It works; how long it takes, and what the page's own thread does meanwhile: bench/explorer.py."""
    server = None if os.environ.get("ATTEND_EXPLORE_URL") else Server("--context", "32768", "--memory", "4096")
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = Explorer(context, server.url if server else os.environ["ATTEND_EXPLORE_URL"]).open()
        words = (ROOT / "README.md").read_text().split()
        page.paste(" ".join((words * 60)[:28000]))
        # 40 seconds of processor time: all weights of 36 heads are computed, each some 5e8.
        page.until("window.explorer.data.run?.tokens.length > 1500 && window.explorer.data.map && !window.explorer.data.map.exact", 1200)
        page.until("window.explorer.data.map.done === window.explorer.data.map.rows", 600)
        assert "32 768" in page.page.inner_text("#banner"), "that the text was cut is said"
        page.evaluate("() => document.activeElement.blur()")  # the keys are commands again
        page.press("+", "+", "ArrowLeft", "+", "+")
        page.page.mouse.move(700, 500)
        for _ in range(4):
            page.page.mouse.wheel(0, -300)
            page.page.wait_for_timeout(60)
        page.settle()
        for _ in range(12):
            if max(page.evaluate("() => { const [a, b, c, d] = window.explorer.state.window; return [b - a, d - c]; }")) <= 1024:
                break
            page.press("+")
        assert page.data("map.exact") is True, "zoomed in, single weights are shown"
        assert page.errors == []
    finally:
        context.close()
        if server:
            server.stop()


def test_a_quantised_model_says_that_rows_are_rounded(chromium):
    for arguments, words in (((), "rows rounded to int8"), (("--compute", "f32"), "compute f32")):
        server = Server(*arguments)
        try:
            context = chromium.new_context(locale="en-US")
            page = Explorer(context, server.url).open()
            assert words in page.page.inner_text("#model")
            assert ("--compute f32" in (page.page.locator("#model span").get_attribute("title") or "")) if not arguments else True
            context.close()
        finally:
            server.stop()
