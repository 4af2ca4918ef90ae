"""The times a person feels in the explorer, in a real Chromium: first paint, a switch, a hover, and texts of any length.

usage: explorer.py [--lengths 128,32768] [--model NAME]; with the packages of ./dev test --browser. What the page's own thread
does is told apart from what the engine computes: its longest task is what freezes a page.
"""

import argparse
import os
import pathlib
import shutil
import sys
import time

from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/explorer"))
WANTED = {"first paint": 1000, "a switch": 200, "another head": 200, "hover to arithmetic": 50, "another head, first tiles": 1000, "longest task of the page": 200}
LONG_TASKS = """window.longest = 0;
new PerformanceObserver((list) => { for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration); })
  .observe({type: "longtask", buffered: true});"""
CHANGE = """async () => { const {state, data, set} = window.explorer, before = data.map, start = performance.now();
  set(%s); while (data.map === before) await new Promise(requestAnimationFrame); return performance.now() - start; }"""
DRAWN = "window.explorer.data.map.done === window.explorer.data.map.rows && window.explorer.data.busy === 0"
HOVER = """async ([x, y]) => { const canvas = document.querySelector("canvas.big"), {data} = window.explorer, start = performance.now();
  canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: y, pointerType: "mouse", bubbles: true}));
  const seen = data.cell; while (data.cell === seen && performance.now() - start < 5000) await new Promise(requestAnimationFrame);
  return performance.now() - start; }"""


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def at_length(page, server, length):
    """Milliseconds of each, for a text of so many tokens."""
    words = (ROOT / "README.md").read_text().split()
    text = " ".join((words * (1 + length // len(words)))[:length])
    start, used = time.monotonic(), cpu_seconds(server.process.pid)
    page.evaluate("() => { window.longest = 0; window.explorer.data.map = null; }")
    page.evaluate("(text) => window.explorer.set({text, generated: [], shown: null, window: null})", text)
    page.until(f"window.explorer.data.map && JSON.parse(window.explorer.data.run.of)[1].length === {len(text)}", 900)
    out = {"first cells": (time.monotonic() - start) * 1000}
    page.until(DRAWN, 900)
    out["all drawn"] = (time.monotonic() - start) * 1000
    out["the engine's CPU time"] = (cpu_seconds(server.process.pid) - used) * 1000
    tokens = page.data("run.tokens.length")
    if tokens <= 1024:
        out["a switch"] = page.evaluate(CHANGE % "{switches: ['scale=off']}")
        page.settle()
        out["another head"] = page.evaluate(CHANGE % "{head: (state.head + 1) % data.about.model.heads}")
        page.settle()
        box = page.page.locator("canvas.big").bounding_box()
        out["hover to arithmetic"] = page.evaluate(HOVER, [box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6])
        page.evaluate("() => window.explorer.set({switches: []})")
    else:
        out["another head, first tiles"] = page.evaluate(CHANGE % "{head: (state.head + 1) % data.about.model.heads}")
        page.until(DRAWN, 900)
        page.press("+", "+", "ArrowLeft", "+", "+", "+", "+", "ArrowLeft")
        page.page.mouse.move(700, 500)
        for _ in range(4):
            page.page.mouse.wheel(0, -300)
            page.page.wait_for_timeout(60)
        page.evaluate("() => window.explorer.set({window: null})")
    page.until(DRAWN, 900)
    out["longest task of the page"] = page.evaluate("() => window.longest")
    return tokens, out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="90,7500", help="words of the texts; README.md's have about four tokens each")
    parser.add_argument("--model", default="storyteller", help="as attend explore takes it; the one inside, if none is named")
    arguments = parser.parse_args()
    os.environ["ATTEND_EXPLORE_MODEL"] = arguments.model
    from conftest import Explorer, Server

    lengths = [int(n) for n in arguments.lengths.split(",")]
    server = Server("--context", "131072", "--memory", "8192")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
            context.add_init_script(LONG_TASKS)
            page = Explorer(context, server.url).open()
            paint = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; wanted where it says so\n")
            print(f"{'first paint':28}{paint:10.0f} ms   (wanted: below {WANTED['first paint']})")
            for length in lengths:
                tokens, times = at_length(page, server, length)
                print(f"\n{tokens} tokens")
                for name, value in times.items():
                    wanted = f"   (wanted: below {WANTED[name]})" if name in WANTED else ""
                    print(f"{name:28}{value:10.0f} ms{wanted}")
            browser.close()
    finally:
        server.stop()


main()
