"""Makes the pictures of the explorer for the docs: screenshots, and a tour as an animated WebP (with Pillow).

usage: make_pictures.py URL of a running `attend explore smollm2`, URL of `attend explore RUN` of a watched training run, page of
examples/python/cross_attention.py, folder
"""

import io
import pathlib
import shutil
import sys
import urllib.parse

from conftest import Explorer
from PIL import Image
from playwright.sync_api import sync_playwright

SIZE = {"width": 1440, "height": 900}
STORY = "text=" + urllib.parse.quote("Once upon a time, there was a kind girl named Mia. She had a red ball. One day, she went to the park. Mia lost the red")


def picture(page):
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def save_small(image, path):
    image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)


class Tour:
    def __init__(self):
        self.frames = []

    def show(self, page, milliseconds):
        image = picture(page).resize((960, 600), Image.Resampling.LANCZOS)
        assert not self.frames or image.tobytes() != self.frames[-1][0].tobytes(), "a frame that shows nothing new"
        self.frames.append((image, milliseconds))

    def save(self, path):
        first, *rest = [frame for frame, _ in self.frames]
        first.save(path, save_all=True, append_images=rest, duration=[time for _, time in self.frames], loop=0, quality=72, method=4)
        print(len(self.frames), "frames,", sum(time for _, time in self.frames) / 1000, "s")


def through_the_explorer(tour, page):
    page.open()
    tour.show(page.page, 3000)
    for key, time in (("ArrowLeft", 700), ("ArrowLeft", 900), ("ArrowRight", 300), ("ArrowRight", 700)):
        page.press(key)
        tour.show(page.page, time)
    page.evaluate("() => window.explorer.set({layer: 17, head: 5, key: null})")
    page.settle()
    tour.show(page.page, 2200)
    page.press("s")
    tour.show(page.page, 3000)
    page.press("s", "x")
    tour.show(page.page, 2200)
    # What a later head then does otherwise: the one that changes most.
    page.evaluate("() => window.explorer.set({layer: 23, head: 0, compare: 'before', key: null})")
    page.until("window.explorer.data.other && window.explorer.data.map.planes.weight.some("
               "(w, n) => Math.abs(w - window.explorer.data.other.planes.weight[n]) > 0.1)")
    page.settle()
    tour.show(page.page, 2500)
    page.evaluate("() => window.explorer.set({compare: '', switches: [], layer: 17, head: 5, key: null})")
    page.settle()
    for view in ("dots", "lines"):
        page.page.click(f"[data-view={view}]")
        page.settle()
        tour.show(page.page, 1600)
    page.page.click("[data-view=auto]")
    for _ in range(3):
        page.press(".")
        tour.show(page.page, 800)
    page.press(",", ",")
    tour.show(page.page, 1000)


def through_a_training_run(tour, page):
    page.open(STORY)
    for step in [s for s in page.data("training.kept") if s in (0, 10, 40, 80, 160)] + [None]:
        page.evaluate("(step) => window.explorer.set({step})", step)
        page.settle()
        tour.show(page.page, 900 if step is not None else 1600)


def through_a_lab(tour, page, url):
    page.goto(f"{url}/labs.html#lab=by-hand")
    page.wait_for_selector(".controls")
    tour.show(page, 1200)
    page.click(".controls .primary")
    page.wait_for_selector(".conclusions")
    page.evaluate("() => document.querySelector('.results').scrollIntoView()")
    tour.show(page, 1800)


def main():
    url, run = sys.argv[1].rstrip("/"), sys.argv[2].rstrip("/")
    cross, folder = pathlib.Path(sys.argv[3]).resolve(), pathlib.Path(sys.argv[4])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def explorer(where, locale="en-US", scheme="light"):
            return Explorer(browser.new_context(viewport=SIZE, locale=locale, color_scheme=scheme), where)

        save_small(picture(explorer(url).open().page), folder / "explorer.png")
        dots = explorer(url, "zh-CN", "dark").open("switches=scale%3Doff&view=dots&layer=17&head=5")
        save_small(picture(dots.page), folder / "explorer-dark.png")
        save_small(picture(explorer(run).open(STORY).page), folder / "explorer-training.png")
        both = explorer("").open("part=2", cross.as_uri())
        save_small(picture(both.page), folder / "explorer-cross.png")
        tour = Tour()
        through_the_explorer(tour, explorer(url))
        through_a_training_run(tour, explorer(run))
        through_a_lab(tour, explorer(url).page, url)
        tour.save(folder / "explorer-tour.webp")
        browser.close()


main()
