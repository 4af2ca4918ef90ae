"""The chart of the benchmarks: what it says, and that figures that are none are refused."""

import json
import pathlib
import subprocess
import tempfile
import unittest
import xml.dom.minidom

PROGRAM = None  # attend; attend_bench lies beside it where it is built
RIVAL = "PyTorch SDPA"


class ChartTest(unittest.TestCase):
    def setUp(self):
        self.bench = pathlib.Path(PROGRAM).with_name("attend_bench")
        if not self.bench.exists():
            self.skipTest("attend_bench is not built")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def draw(self, figures):
        (self.folder / "figures.json").write_text(json.dumps(figures))
        return subprocess.run([self.bench, "--ratios", "figures.json", "--svg", "chart.svg"], cwd=self.folder, text=True,
                              capture_output=True)

    def texts(self, status="ok", **changes):
        ratio = {"status": status, "ratio": {"median": 1.5, "low": 1.4, "high": 1.7}}
        rows = [{"shape": "B1 H8/2 L512 D64 causal", "direction": direction, "dtype": dtype, "peers": {RIVAL: ratio}}
                for direction in ("forward", "backward") for dtype in ("f32", "bf16")]
        card = {"versions": {RIVAL: "2.5.1+cpu"}, "threads": 128, "date": "2026-11-16T10:00:00",
                "cpu": {"model": "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz"}, **changes}
        result = self.draw({"machine": card, "rows": rows})
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        svg = xml.dom.minidom.parse(str(self.folder / "chart.svg")).documentElement
        return [t.firstChild.data for t in svg.getElementsByTagName("text")]

    def test_it_says_what_was_measured_in_light_and_dark(self):
        said = self.texts()
        for text in ("attend: how many times as fast as PyTorch 2.5.1", "forward", "backward", "float32", "bfloat16",
                     "B1 H8/2 L512 D64 causal", "1×", "2×"):
            self.assertIn(text, said)
        self.assertEqual(said.count("1.50"), 2 * 4)  # a theme each

    def test_a_busy_machine_is_named(self):
        said = " ".join(self.texts(busy=True, others_cpu_share=0.41))
        self.assertIn("BUSY machine: others took 41 % of the CPUs; not fit to be published", said)
        self.assertNotIn("BUSY", " ".join(self.texts()))

    def test_what_are_no_figures_is_refused(self):
        for figures in ({}, [], {"machine": {}}, {"machine": {"versions": {RIVAL: 3}}, "rows": []}):
            result = self.draw(figures)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, "^attend_bench: ")
        self.assertFalse((self.folder / "chart.svg").exists())
