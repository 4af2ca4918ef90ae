"""Buttons, texts and panels: contrast while hovered, target sizes, what a damaged link reports, what fits without scrolling."""

import pytest


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
