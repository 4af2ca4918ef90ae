"""The chart of the benchmarks: nothing that it says is cut off at its edge."""

import pathlib
import sys
import unittest
import xml.dom.minidom

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"))
import chart  # noqa: E402

LETTER = 6.4  # pixels of a letter of 12 pixels in wide fonts; measured: 6.1 in DejaVu Sans


class ChartTest(unittest.TestCase):
    def drawing(self, **changes):
        ratio = {"status": "ok", "ratio": {"median": 1.5, "low": 1.4, "high": 1.7}}
        rows = [{"shape": "B1 H8/2 L512 D64 causal", "direction": direction, "dtype": dtype,
                 "peers": {chart.RIVAL: ratio}} for direction in ("forward", "backward") for dtype in ("f32", "bf16")]
        card = {"versions": {chart.RIVAL: "2.5.1"}, "threads": 128, "date": "2026-11-16T10:00:00",
                "cpu": {"model": "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz"}, **changes}
        return xml.dom.minidom.parseString(chart.draw(card, rows)).documentElement

    def test_every_line_fits(self):
        for changes in ({}, {"busy": True}, {"busy": True, "others_cpu_share": 0.41}):
            svg = self.drawing(**changes)
            width, height = float(svg.getAttribute("width")), float(svg.getAttribute("height"))
            for text in svg.getElementsByTagName("text"):
                x, y, said = float(text.getAttribute("x")), float(text.getAttribute("y")), text.firstChild.data
                classes = text.getAttribute("class").split()
                self.assertLess(y, height - 6, said)
                if "end" not in classes and "middle" not in classes and "title" not in classes:
                    self.assertLess(x + LETTER * len(said), width, said)

    def test_a_busy_machine_is_named(self):
        said = " ".join(t.firstChild.data for t in self.drawing(busy=True, others_cpu_share=0.41)
                        .getElementsByTagName("text"))
        self.assertIn("BUSY machine: others took 41 % of the CPUs; not fit to be published", said)
        self.assertNotIn("BUSY", " ".join(t.firstChild.data for t in self.drawing().getElementsByTagName("text")))
