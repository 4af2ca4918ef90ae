"""`attend lab` and `attend quiz` from outside: both languages, figures, JSON, bad arguments, progress. Usage: program_test.py PROGRAM"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""


def run(*arguments, text=None, **variables):
    env = {k: v for k, v in os.environ.items() if k not in ("ATTEND_ISA", "ATTEND_THREADS")}
    env.update(variables)
    return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, env=env, timeout=300)


class LabTest(unittest.TestCase):
    def test_the_list_names_every_lab_in_both_languages(self):
        for options, word in (([], "18 labs"), (["--zh"], "18 个实验")):
            listed = run("lab", *options)
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertIn(word, listed.stdout)
            self.assertIn("before-attention", listed.stdout)
        self.assertEqual(len(json.loads(run("lab", "--json").stdout)), 18)

    def test_a_lab_prints_its_conclusions_and_writes_its_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            for options, word in (([], "Conclusions"), (["--zh"], "结论")):
                one = run("lab", "by-hand", "--dim", "8", "--words=the dog saw the dog", "--out", folder, *options)
                self.assertEqual(one.returncode, 0, one.stderr)
                self.assertIn(word, one.stdout)
                self.assertIn("[5, 8]", one.stdout)
                self.assertNotIn("✗", one.stdout)
            for name in ("scores", "scaled", "masked", "weights", "output"):
                png = (pathlib.Path(folder) / f"by-hand-{name}.png").read_bytes()
                svg = (pathlib.Path(folder) / f"by-hand-{name}.svg").read_text()
                self.assertEqual(png[:4], b"\x89PNG")
                self.assertIn("<svg", svg)

    def test_a_report_as_json(self):
        report = json.loads(run("lab", "order", "--json", "--length", "9").stdout)
        self.assertEqual(report["name"], "order")
        self.assertTrue(all(c["holds"] and c["text"]["en"] and c["text"]["zh"] for c in report["conclusions"]))
        self.assertEqual(next(p["value"] for p in report["parameters"] if p["name"] == "length"), "9")
        about = json.loads(run("lab", "order", "--json", "--about").stdout)
        self.assertNotIn("numbers", about)

    def test_a_run_that_contradicts_a_sentence_says_so(self):
        # One step of training teaches nothing: the sentence about training gives way.
        one = run("lab", "context", "--steps", "1")
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertIn("✗ does not hold on this run", one.stdout)
        self.assertIn("✗ 这次运行不成立", run("lab", "context", "--steps", "1", "--zh").stdout)

    def test_bad_arguments_are_named(self):
        for arguments, word in (
            (["rop"], "did you mean 'rope'"),
            (["rope", "--dimm", "4"], "did you mean 'dim'"),
            (["rope", "--dim", "many"], "expected a whole number"),
            (["rope", "--dim", "7"], "7"),
            (["rope", "--dim"], "needs a value"),
            (["rope", "extra"], "extra"),
            (["by-hand", "--words", ""], "expected 1 to 24"),
            (["gpt3", "--model", "nowhere"], "nowhere"),
            (["heads", "--width", "33"], "multiple"),
            (["check"], "attend lab check FILE"),
        ):
            bad = run("lab", *arguments)
            self.assertEqual(bad.returncode, 2, (arguments, bad.stdout, bad.stderr))
            self.assertIn(word, bad.stderr)
            chinese = run("lab", "--zh", *arguments)
            self.assertEqual(chinese.returncode, 2, (arguments, chinese.stdout, chinese.stderr))
            self.assertRegex(chinese.stderr, "[一-鿿]")


class CourseTest(unittest.TestCase):
    """What docs/guide/course*.md promise: the counts, the minutes, and the lab for each mistake that lessons make."""

    GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guide"
    MISTAKES = ["masks", "order", "scale", "gqa", "softmax", "shapes", "gqa", "gpt3", "values", "heads", "context"]

    def test_both_pages_name_labs_that_exist_with_their_minutes(self):
        minutes = {lab["name"]: lab["minutes"] for lab in json.loads(run("lab", "--json").stdout)}
        for page in ("course.md", "course.zh.md"):
            text = (self.GUIDE / page).read_text()
            named = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\d+) \|", text, re.MULTILINE))
            self.assertEqual({name: minutes[name] for name in named}, {n: int(m) for n, m in named.items()}, page)
            self.assertEqual(set(minutes) - set(named), {"before-attention"}, page)

    def test_each_mistake_of_lessons_has_its_lab(self):
        labs = {lab["name"] for lab in json.loads(run("lab", "--json").stdout)}
        for page in ("course.md", "course.zh.md"):
            rows = [line for line in (self.GUIDE / page).read_text().splitlines() if line.startswith("| ") and "`attend lab" in line]
            named = [name for row in rows for name in re.findall(r"`attend lab ([a-z0-9-]+)", row)]
            self.assertEqual(named, self.MISTAKES, page)
            self.assertLessEqual(set(named), labs)

    def test_the_counts_are_those_of_the_program(self):
        questions = json.loads(run("quiz", "--json").stdout)["questions"]
        for page, words in (("course.md", f"{len(questions)} questions"), ("course.zh.md", f"共 {len(questions)} 题")):
            self.assertIn(words, (self.GUIDE / page).read_text())
        self.assertEqual(2 * sum(q["computed"] for q in questions), len(questions))  # "half of the answers"


class QuizTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def quiz(self, *arguments, text=None):
        return run("quiz", *arguments, text=text, XDG_STATE_HOME=self.folder.name)

    def test_one_answer_is_graded_and_kept(self):
        self.assertEqual(self.quiz("sd-512", "--answer", "22.6").returncode, 0)
        wrong = self.quiz("sd-512", "--answer", "512", "--zh")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("attend lab scale", wrong.stdout)
        self.assertEqual(self.quiz("sd-512", "--answer", "x").returncode, 2)
        self.assertEqual(self.quiz("nothing").returncode, 2)
        kept = json.loads((pathlib.Path(self.folder.name) / "attend" / "quiz.json").read_text())
        self.assertEqual(kept["questions"]["sd-512"], {"right": 1, "wrong": 1, "last_right": False})
        self.assertIn("0 of 88", self.quiz("--progress").stdout)

    def test_a_round_ends_with_the_input(self):
        for options in ([], ["--zh"]):
            ended = self.quiz("-n", "3", *options, text="b\nzzz\n")
            self.assertEqual(ended.returncode, 0, ended.stderr)
        questions = json.loads(self.quiz("--json").stdout)["questions"]
        self.assertGreaterEqual(len(questions), 60)

    def test_a_broken_progress_is_told(self):
        path = pathlib.Path(self.folder.name) / "attend" / "quiz.json"
        path.parent.mkdir()
        path.write_text("no progress")
        bad = self.quiz("sd-512", "--answer", "22.6")
        self.assertEqual(bad.returncode, 1)
        self.assertIn("quiz.json", bad.stderr)
        self.assertEqual(path.read_text(), "no progress")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
