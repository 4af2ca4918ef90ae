"""Documents and benchmarks state no ratio to llama.cpp, because its Python server and bindings are not its best settings.

Usage: claims_test.py
"""

import contextlib
import importlib.metadata
import io
import pathlib
import re
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
import language_model  # noqa: E402
import serve  # noqa: E402

RATIO = re.compile(r"\d\s?(x|×|times)([^\w ]|$| (as|faster|the|\|))")
LLAMA = re.compile(r"llama(\.cpp|_cpp|-bench|-server)")


def documents():
    """Every Markdown file and chart of the repository, outside build folders."""
    folders = [ROOT, *(ROOT / name for name in ("docs", "bench", "examples", "python", "tests"))]
    for folder in folders:
        for kind in ("*.md", "*.svg"):
            yield from folder.glob(kind) if folder == ROOT else folder.rglob(kind)


def statements(text):
    """[(what it is about, text)] of paragraphs and list items; of a table each row, which is about its header and caption too."""
    before = ""
    for paragraph in re.split(r"\n\n|\n- ", text):
        if paragraph.startswith("|"):
            header, *rows = paragraph.splitlines()
            yield from ((f"{before}\n{header}\n{row}", f"{header}\n{row}") for row in rows)
        else:
            yield paragraph, paragraph
        before = paragraph


class Model:
    """Takes a fixed time for every call."""

    def __init__(self, seconds):
        self.seconds = seconds

    def prefill(self, count):
        return self.seconds

    def decode(self, before, count):
        return self.seconds

    def name(self):
        return "llama.cpp, flash attention on"


class Claims(unittest.TestCase):
    def test_no_ratio_to_llama_cpp_in_documents(self):
        found, read = [], 0
        for path in documents():
            read += 1
            for about, text in statements(path.read_text()):
                if LLAMA.search(about) and (RATIO.search(text) or re.search(r"\|\s*ratio\s*\|", text)):
                    found.append(f"{path.relative_to(ROOT)}: {text[:200]}")
        self.assertGreater(read, 30)
        self.assertEqual(found, [])

    def test_model_benchmark_prints_both_rates_and_no_ratio(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            rows = language_model.compare_rates(Model(0.5), [Model(2.0), Model(1.0)], 3)
        self.assertEqual([row["attend"] / row["llama.cpp"] for row in rows], [2.0] * 3)
        self.assertIn("2048.0 tokens/s", out.getvalue())
        self.assertIn("1024.0 (llama.cpp", out.getvalue())
        self.assertNotRegex(out.getvalue(), RATIO)
        self.assertTrue(all("ratio" not in row for row in rows))

    def test_server_benchmark_names_the_baseline_and_prints_no_ratio(self):
        line = {"tokens_per_second": 10.0, "first_token_ms_p50": 1.0, "between_tokens_ms_p50": 1.0, "between_tokens_ms_p95": 1.0, "failed": 0}
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch.object(serve, "start", lambda *_: (mock.Mock(), "url")), \
                mock.patch.object(serve, "measure", lambda *_: line), mock.patch.object(sys, "argv", ["serve.py", "m.gguf", "--threads", "2"]), \
                mock.patch.object(importlib.metadata, "version", lambda _: "0.3.36"):
            serve.main()
        self.assertIn("m.gguf, 2 threads; baseline: llama_cpp.server of llama-cpp-python 0.3.36", out.getvalue())
        self.assertIn("16 clients  llama.cpp", out.getvalue())
        self.assertNotRegex(out.getvalue(), RATIO)


if __name__ == "__main__":
    unittest.main()
