"""A training run seen live: the curves and samples of its folder, and the heads of the steps that were kept."""

import json
import re
import subprocess

import numpy as np
import pytest
from conftest import PROGRAM, Explorer, Server
from test_musts import read_frames

SHAPE = ["--hidden", "32", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--feed-forward", "48",
         "--batch", "4", "--length", "64", "--held-out", "0.1", "--sample-tokens", "8", "--validate-tokens", "256"]


class Training(Server):
    """`attend train ... --watch`, as a server like any other."""

    def __init__(self, folder, steps):
        texts = folder / "texts.jsonl"
        subprocess.run([PROGRAM, "corpus", "stories", "-n", "200", "-o", texts], check=True, capture_output=True)
        self.run = folder / "run"
        self.begin([PROGRAM, "train", "pretrain", texts, "-o", self.run, "--watch", "--steps", str(steps), *SHAPE])


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    running = Training(tmp_path_factory.mktemp("training"), 120)
    yield running
    running.stop()


@pytest.fixture
def page(training, chromium):
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    yield Explorer(context, training.url)
    context.close()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_run_is_drawn_as_its_folder_has_it(training, page):
    page.open()
    page.until("!window.explorer.data.training.running")
    page.settle()
    written = lines(training.run / "metrics.jsonl")
    assert page.data("training.steps.map((s) => s.loss)") == [line["loss"] for line in written if line["kind"] == "step"]
    assert page.data("training.validations.map((s) => s.loss)") == [line["loss"] for line in written if line["kind"] == "validation"]
    assert page.data("training.samples") == lines(training.run / "watch" / "samples.jsonl")
    said = page.page.inner_text("#training")
    assert "step 120 of 120" in said and "the run has ended" in said
    assert lines(training.run / "watch" / "samples.jsonl")[-1]["text"].strip()[:8] in said
    drawn = page.page.get_attribute(".losses", "aria-label")
    assert f"step {written[-1]['step']} of 120" in drawn
    assert page.data("training.about.entropy") > 0
    assert page.errors == []


def test_the_slider_goes_back_through_the_kept_steps(training, page):
    page.open()
    page.until("!window.explorer.data.training.running")
    page.settle()
    kept = page.data("training.kept")
    assert kept[:5] == [0, 1, 2, 5, 10] and kept[-1] == 120
    assert page.data("run.trained") == 120, "the newest is followed"
    seen = {}
    for n, step in ((0, 0), (len(kept) - 1, 120)):
        page.page.locator(".steps").fill(str(n))
        page.settle()
        assert page.data("run.trained") == step
        assert f"heads of step {step}" in page.page.inner_text("#training")
        told = training.post("runs", {"text": page.state("text"), "step": step})
        assert page.data("run.next") == told["next"]
        layer, head = page.state("layer"), page.state("head")
        length = len(told["tokens"])
        [(_, wanted)] = read_frames(training.get(
            f"runs/{told['run']}/map?layer={layer}&head={head}&queries=0:{length}&keys=0:{length}&cells={length}x{length}"))
        assert np.array_equal(page.map(), wanted[0].astype(np.float64), equal_nan=True)
        seen[step] = page.map()
    assert not np.array_equal(seen[0], seen[120], equal_nan=True), "it has learnt something"


def test_a_link_holds_the_step_and_keys_move_it(training, page):
    page.open("step=5")
    assert page.data("run.trained") == 5
    page.page.focus(".steps")
    page.press("ArrowLeft")
    assert page.state("step") == 2
    page.open("step=7")
    assert "step 7 was not kept" in page.page.inner_text("#banner")
    assert page.data("run.trained") == page.data("training.kept").pop()


def test_following_again_shows_the_newest(training, page):
    page.open("step=5")
    page.page.click("#training .push[aria-pressed]")
    page.settle()
    assert page.state("step") is None and page.data("run.trained") == page.data("training.kept").pop()


def test_axe_finds_nothing(training, page):
    from axe_playwright_python.sync_playwright import Axe

    page.open()
    for theme in ("light", "dark"):
        page.evaluate("(theme) => window.explorer.set({theme})", theme)
        page.settle()
        found = Axe().run(page.page)
        assert found.violations_count == 0, found.generate_report()


def test_a_finished_run_opens_again(training, page, chromium):
    page.open()
    page.until("!window.explorer.data.training.running")
    again = Server.__new__(Server)
    again.begin([PROGRAM, "explore", training.run, "--no-open"])
    try:
        context = chromium.new_context(viewport={"width": 390, "height": 844}, locale="zh-CN", color_scheme="dark")
        other = Explorer(context, again.url).open("step=24")
        assert other.data("run.trained") == 24
        assert re.search(r"第 120 步，共 120 步", other.page.inner_text("#training"))
        assert other.errors == []
        context.close()
    finally:
        again.stop()
