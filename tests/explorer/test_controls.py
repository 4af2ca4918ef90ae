"""Buttons, texts and panels: contrast while hovered, target sizes, what a damaged link reports, what fits without scrolling."""

import pytest


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
