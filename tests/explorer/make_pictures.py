"""Makes the pictures of the explorer for the docs: two screenshots, and a tour as an animated WebP (with Pillow).

usage: make_pictures.py URL of a running `attend explore smollm2`, folder for the pictures
"""

import io
import pathlib
import shutil
import sys

from conftest import Explorer
from PIL import Image
from playwright.sync_api import sync_playwright


def picture(page):
    return Image.open(io.BytesIO(page.page.screenshot())).convert("RGB")


def save_small(image, path):
    image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)


def tour(page, path):
    frames = []

    def show(milliseconds):
        frames.append((picture(page).resize((960, 600), Image.Resampling.LANCZOS), milliseconds))

    page.open()
    show(3000)
    for key, time in (("ArrowLeft", 700), ("ArrowLeft", 700), ("ArrowLeft", 900), ("ArrowRight", 300), ("ArrowRight", 300), ("ArrowRight", 700)):
        page.press(key)
        show(time)
    page.evaluate("() => window.explorer.set({layer: 17, head: 5, key: null})")
    page.settle()
    show(2200)
    page.press("s")
    show(3200)
    page.press("s", "x")
    show(2500)
    page.evaluate("() => window.explorer.set({layer: 20, head: 5, compare: 'before'})")  # what a later head then does otherwise
    page.settle()
    show(2200)
    page.evaluate("() => window.explorer.set({compare: '', switches: [], layer: 17, head: 5, key: null})")
    page.settle()
    page.page.click("[data-view=lines]")
    page.settle()
    show(2200)
    page.page.click("[data-view=auto]")
    for _ in range(5):
        page.press(".")
        show(800)
    page.press(",", ",")
    show(1200)
    first, *rest = [frame for frame, _ in frames]
    first.save(path, save_all=True, append_images=rest, duration=[time for _, time in frames], loop=0, quality=72, method=4)


def main():
    url, folder = sys.argv[1].rstrip("/"), pathlib.Path(sys.argv[2])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        size = {"width": 1440, "height": 900}
        page = Explorer(browser.new_context(viewport=size, locale="en-US", color_scheme="light"), url)
        save_small(picture(page.open()), folder / "explorer.png")
        page = Explorer(browser.new_context(viewport=size, locale="zh-CN", color_scheme="dark"), url)
        save_small(picture(page.open("switches=scale%3Doff&view=dots&layer=17&head=5")), folder / "explorer-dark.png")
        tour(Explorer(browser.new_context(viewport=size, locale="en-US", color_scheme="light"), url), folder / "explorer-tour.webp")
        browser.close()


main()
