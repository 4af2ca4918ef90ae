"""Labs, quiz and exercises in the browser: the same numbers, sentences and grades as at the terminal."""

import json
import subprocess

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import PROGRAM, ROOT


class LabsPage:
    def __init__(self, context, url):
        self.page, self.url, self.errors, self.requests = context.new_page(), url, [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, fragment=""):
        self.page.goto(f"{self.url}/labs.html#{fragment}")
        self.page.wait_for_selector("html[data-ready=true]", state="attached")
        return self

    def run(self, quick=True):
        self.page.set_checked("#quick", quick)
        self.page.click(".controls .primary")
        self.page.wait_for_selector(".conclusions", timeout=120000)
        return self

    def conclusions(self):
        return [(item.get_attribute("class"), item.locator("span").inner_text()) for item in self.page.locator(".conclusions li").all()]


@pytest.fixture
def labs(server, chromium):
    contexts = []

    def make(width=1440, height=900, locale="en-US", **options):
        contexts.append(chromium.new_context(viewport={"width": width, "height": height}, locale=locale, **options))
        return LabsPage(contexts[-1], server.url)

    yield make
    for context in contexts:
        context.close()


def at_the_terminal(*arguments):
    return json.loads(subprocess.run([PROGRAM, "lab", *arguments, "--json"], capture_output=True, text=True, check=False).stdout)


@pytest.mark.parametrize("locale, language", [("en-US", "en"), ("zh-CN", "zh")])
def test_a_lab_concludes_as_at_the_terminal(labs, locale, language):
    report = at_the_terminal("by-hand", "--dim", "8", "--words", "the dog saw the cat")
    page = labs(locale=locale).open("lab=by-hand&dim=8&words=the+dog+saw+the+cat")
    assert page.page.input_value("#parameter-dim") == "8"
    before = page.page.inner_text("#content")
    assert report["guess"][language] in before and report["lesson"][language] not in before, "lessons often hold the answer"
    page.run(quick=False)
    wanted = [("holds" if c["holds"] else "fails", c["text"][language]) for c in report["conclusions"]]
    assert page.conclusions() == wanted
    text = page.page.inner_text("#content")
    for key in ("title", "question", "lesson", "guess"):
        assert report[key][language] in text
    cells = [cell.inner_text() for cell in page.page.locator(".lab-table tbody > tr > *").all()]
    assert cells == [cell[language] for block in report["blocks"] if block["kind"] == "table" for row in block["rows"] for cell in row]
    assert page.page.locator("figure canvas").count() == sum(block["kind"] in ("map", "curves") for block in report["blocks"])
    assert page.errors == [] and all(url.startswith(page.url) for url in page.requests)


def test_every_lab_runs_and_is_drawn(labs):
    page = labs().open()
    names = page.page.evaluate("() => [...document.querySelectorAll('.course ol a')].map((a) => a.hash.slice(5))")
    assert names == [lab["name"] for lab in at_the_terminal()]
    for name in names:
        page.open(f"lab={name}").run()
        assert page.page.evaluate("""() => [...document.querySelectorAll('figure canvas')].every((c) => {
          const {data} = c.getContext('2d').getImageData(0, 0, c.width, c.height);
          return new Set(new Uint32Array(data.buffer)).size > 10;
        })"""), f"{name} has a figure that is empty"
        assert page.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), name
    assert page.errors == []


@pytest.mark.parametrize("locale, language", [("en-US", "en"), ("zh-CN", "zh")])
def test_the_course_has_every_lab_with_its_question(labs, locale, language):
    page = labs(locale=locale).open()
    page.page.wait_for_selector(".card a[href^='#quiz']:not([hidden])")
    said = page.page.inner_text("#content")
    for lab in at_the_terminal():
        assert lab["title"][language] in said and lab["question"][language] in said
        assert page.page.locator(f".card a[href='#quiz&lab={lab['name']}']").count() == 1
    assert page.page.locator(".card a[href^='#exercises=']").count() == 7
    assert page.errors == []


def test_a_run_can_be_stopped(labs):
    page = labs().open("lab=heads&steps=2000")
    page.page.click(".controls .primary")
    page.page.wait_for_selector(".controls progress:not([hidden])")
    page.page.click(".controls .primary")
    assert "stopped" in page.page.inner_text(".controls [role=status]")
    page.open("lab=by-hand").run()  # nobody waits for the one that was stopped
    assert page.conclusions() and page.errors == []


def test_a_value_out_of_range_is_not_run(labs):
    page = labs().open("lab=by-hand&dim=5000")
    page.page.click(".controls .primary")
    assert page.page.evaluate("() => !document.getElementById('parameter-dim').validity.valid")
    assert page.page.locator(".conclusions").count() == 0
    page.open("lab=no-such-lab")
    assert "no-such-lab" in page.page.inner_text("#content")


def test_the_quiz_is_graded_and_its_progress_kept(labs, server):
    page = labs().open("quiz&lab=scale")
    page.page.wait_for_selector(".question")
    with_answers = json.loads(page.page.evaluate("async () => (await fetch('/labs/v1/quiz')).text()"))["questions"]
    mine = [q for q in with_answers if q["lab"] == "scale"]
    for n, (right, question) in enumerate(zip((True, False), mine)):
        assert question["text"]["en"] in page.page.inner_text(".question")
        if question["kind"] == "choice":
            choice = question["right"] if right else (question["right"] + 1) % len(question["choices"])
            page.page.check(f"input[value='{chr(97 + choice)}']")
        else:
            page.page.fill("input[name=answer]", str(question["answer"] if right else question["answer"] + 1e6))
        page.page.click(".question [type=submit]")
        page.page.wait_for_selector(".answer.holds" if right else ".answer.fails")
        assert question["why"]["en"] in page.page.inner_text(".answer")
        assert page.page.get_attribute(".answer a", "href") == "#lab=scale"
        assert "1 of" in page.page.inner_text(".quiz [role=status]")
        page.page.keyboard.press("Enter")  # the next question has the focus
    kept = subprocess.run([PROGRAM, "quiz", "--json"], capture_output=True, text=True, check=True,
                          env={"XDG_STATE_HOME": server.home.name}).stdout
    tallies = {q["name"]: (q["right_so_far"], q["wrong_so_far"]) for q in json.loads(kept)["questions"]}
    assert tallies[mine[0]["name"]] == (1, 0) and tallies[mine[1]["name"]] == (0, 1)
    page.open("quiz&lab=scale")
    page.page.reload()
    page.page.wait_for_selector(".question")
    assert mine[1]["text"]["en"] in page.page.inner_text(".question"), "what was wrong comes first"


def test_an_exercise_is_diagnosed_for_who_has_the_key(labs, server):
    file = ROOT / "tests/labs/wrong/sdpa__no_scaling.py"
    wanted = json.loads(subprocess.run([PROGRAM, "lab", "check", file, "--json"], capture_output=True, text=True, check=False).stdout)
    page = labs().open("exercises=sdpa")
    assert "raise NotImplementedError" in page.page.input_value("#code")
    page.page.fill("#code", file.read_text())
    page.page.fill("#key", "abcd-abcd-abcd")
    page.page.click(".exercise [type=submit]")
    page.page.wait_for_function("() => document.querySelector('.exercise [role=status]').textContent.includes('key')")
    assert page.page.locator(".answer").count() == 0
    page.page.fill("#key", server.key)
    page.page.click(".exercise [type=submit]")
    page.page.wait_for_selector(".answer", timeout=60000)
    assert wanted["verdicts"][0]["text"]["en"] in page.page.inner_text(".answer")
    assert page.page.get_attribute(".answer", "data-verdict") == "wrong"
    page.page.fill("#code", (ROOT / "tests/labs/right/sdpa_plain.py").read_text())
    page.page.click(".exercise [type=submit]")
    page.page.wait_for_selector(".answer[data-verdict=right]", timeout=60000)
    assert page.errors == []


@pytest.mark.parametrize("width, height, scheme, locale", [(1440, 900, "light", "en-US"), (1024, 768, "dark", "zh-CN"), (390, 844, "light", "zh-CN")])
def test_axe_finds_nothing_and_nothing_overflows(labs, width, height, scheme, locale):
    page = labs(width, height, locale, color_scheme=scheme)
    for fragment, ready in (("", ".card"), ("lab=masks", ".controls"), ("quiz", ".question"), ("exercises=rope", "#code")):
        page.open(fragment)
        page.page.wait_for_selector(ready)
        if fragment.startswith("lab"):
            page.run()
        found = Axe().run(page.page)
        assert found.violations_count == 0, found.generate_report()
        assert page.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), fragment


def test_the_explorer_leads_there_and_back(labs, server):
    page = labs()
    page.page.goto(server.url)
    page.page.click("#tools a[href='labs.html']")
    page.page.wait_for_selector(".course ol a")
    page.page.click(".places a[href='./']")
    page.page.wait_for_selector("#pattern canvas")
