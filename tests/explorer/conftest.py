"""A running `attend explore` and a real Chromium for the browser tests of the explorer (./dev test --browser)."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("ATTEND_PROGRAM", str(ROOT / "build/bin/attend"))
MODEL = os.environ.get("ATTEND_EXPLORE_MODEL", "storyteller")  # the one inside, whatever was pulled
FILES = ROOT / "apps/explorer" if os.environ.get("ATTEND_EXPLORE_FILES") else None  # those on disk, not those in the program
TEXT = "The cat sat on the mat. The dog sat on the mat. The cat sat on the"


class Server:
    """`attend explore` on a port of its own; it can be ended and started again at the same one."""

    def __init__(self, *arguments):
        self.arguments, self.port = arguments, 0
        self.start()

    def start(self):
        self.begin([PROGRAM, "explore", *([MODEL] if MODEL else []), "--no-open", "--port", str(self.port), *self.arguments])

    def begin(self, command):
        command = [str(word) for word in command]
        self.home = tempfile.TemporaryDirectory()  # the quiz keeps its progress there
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env={**os.environ, "XDG_STATE_HOME": self.home.name})
        said = ""
        for line in self.process.stdout:
            said += line
            found = re.search(r"http://[\w.\[\]:]+:(\d+)", line)
            if found:
                self.url, self.port = found.group(0), int(found.group(1))
                if "explore" in command:
                    self.key = (self.process.stdout.readline() + self.process.stdout.readline()).split()[-1]
                return
        raise RuntimeError(f"{' '.join(command)} gave no address:\n{said}")

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=20)

    def post(self, path, body):
        request = urllib.request.Request(f"{self.url}/explore/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}/explore/v1/{path}", timeout=120) as answer:
            return answer.read()


@pytest.fixture(scope="session")
def server():
    if os.environ.get("ATTEND_EXPLORE_URL"):  # one that runs already, while the page is being worked on
        running = Server.__new__(Server)
        running.url = os.environ["ATTEND_EXPLORE_URL"]
        yield running
        return
    running = Server()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chromium():
    found = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
    assert found, "no Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def from_disk(route):
    file = FILES / (urllib.parse.urlparse(route.request.url).path.lstrip("/") or "index.html")
    if not file.is_file():
        return route.continue_()
    kind = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}.get(file.suffix, "image/svg+xml")
    return route.fulfill(body=file.read_bytes(), content_type=f"{kind}; charset=utf-8")


class Explorer:
    """One page of the explorer, and words for what the tests do with it."""

    def __init__(self, context, url):
        self.context, self.url, self.requests, self.errors = context, url, [], []
        if FILES and url:
            context.route(f"{url}/**", from_disk)
        self.page = context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)

    def open(self, fragment="", url=None):
        self.page.goto(f"{url or self.url + '/'}{'#' + fragment if fragment else ''}")
        self.page.wait_for_selector("html[data-ready=true]", state="attached", timeout=60000)
        self.settle()
        return self

    def evaluate(self, expression, argument=None):
        return self.page.evaluate(expression, argument)

    def state(self, name):
        return self.evaluate(f"() => window.explorer.state.{name}")

    def data(self, path):
        return self.evaluate(f"() => window.explorer.data.{path}")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(f"() => Boolean({expression})"):
                return
            self.page.wait_for_timeout(30)
        raise AssertionError(f"after {seconds} s still not: {expression}")

    def settle(self):
        """Until nothing is being loaded and what was loaded is what the state asks for."""
        quiet = "window.explorer.data.busy === 0"
        for _ in range(4):
            self.page.wait_for_timeout(60)
            self.until(quiet)

    def type(self, text):
        self.page.fill("#text", text)
        self.page.evaluate("() => document.activeElement.blur()")  # the keys that follow are commands again
        self.page.wait_for_timeout(250)
        self.settle()

    def paste(self, text):
        self.evaluate("""(text) => {
          const area = document.getElementById("text"), clipboardData = new DataTransfer();
          area.select();
          clipboardData.setData("text/plain", text);
          area.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
        }""", text)

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.settle()

    def map(self):
        """The chosen head's weights as the page has them: [queries, keys], NaN where masked."""
        import numpy as np

        rows, columns, values = self.evaluate("""() => {
          const {map} = window.explorer.data;
          return [map.rows, map.columns, Array.from(map.planes.weight, (x) => Number.isNaN(x) ? null : x)];
        }""")
        return np.array([np.nan if x is None else x for x in values], np.float64).reshape(rows, columns)

    def download(self, item):
        self.page.click("#tools .menu-box > button")
        with self.page.expect_download(timeout=120000) as waiting:
            self.page.click(f".menu button:has-text('{item}')")
        return waiting.value


@pytest.fixture
def explorer(server, chromium):
    contexts = []

    def make(width=1440, height=900, locale="en-US", **options):
        context = chromium.new_context(viewport={"width": width, "height": height}, locale=locale, accept_downloads=True, **options)
        contexts.append(context)
        return Explorer(context, server.url)

    yield make
    for context in contexts:
        context.close()
