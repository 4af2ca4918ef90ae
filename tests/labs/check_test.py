"""`attend lab check` on files: every wrong one is diagnosed as itself, every right one is right, hostile ones are stopped.

Usage: check_test.py PROGRAM [name ...]. A wrong file is called EXERCISE__MISTAKE.py, or EXERCISE__ONE+OTHER.py.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
PROGRAM = ""


def check(path, *options):
    """The exit code and the report of one check."""
    run = subprocess.run([PROGRAM, "lab", "check", str(path), "--json", *options], capture_output=True, text=True, timeout=120)
    assert run.returncode in (0, 1), (path, run.returncode, run.stderr)
    return run.returncode, json.loads(run.stdout)


def check_all(paths, *options):
    """A report for each, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(zip(paths, pool.map(lambda path: check(path, *options), paths)))


def words(report):
    """All that it says, in English."""
    return " ".join([v["text"]["en"] for v in report["verdicts"]] + [report.get("failure", {}).get("en", "")])


class CheckTest(unittest.TestCase):
    def test_wrong_files_are_diagnosed_as_themselves(self):
        files = sorted(HERE.glob("wrong/*"))
        self.assertGreaterEqual(len(files), 60)
        for path, (code, report) in check_all(files):
            with self.subTest(path.name):
                self.assertEqual(code, 1)
                self.assertEqual(len(report["verdicts"]), 1, report)
                verdict = report["verdicts"][0]
                self.assertEqual(verdict["verdict"], "wrong", verdict)
                self.assertEqual(verdict["mistakes"], path.stem.split("__")[1].split("+"), verdict)
                self.assertTrue(verdict["text"]["zh"] and verdict["lab"], verdict)

    def test_right_files_are_right(self):
        files = sorted(HERE.glob("right/*"))
        self.assertGreaterEqual(len(files), 10)
        for path, (code, report) in check_all(files):
            with self.subTest(path.name):
                self.assertEqual(code, 0, report)
                self.assertTrue(report["all_right"] and report["verdicts"], report)

    def test_hostile_files_are_stopped_with_a_sentence(self):
        expected = {
            "loop.py": "seconds and was stopped",
            "loop_at_load.py": "seconds and was stopped",
            "memory.py": "memory",
            "memory.cpp": "memory",
            "exit.py": "left the program",
            "hard_exit.py": "left the program",
            "fork.py": "processes is not allowed",
            "fork_at_load.py": "processes is not allowed",
            "crash.cpp": "signal 6",
            "no_such_function.py": "none of the functions",
            "broken.py": "SyntaxError",
            "forged.py": "",
        }
        self.assertEqual(sorted(expected), sorted(p.name for p in HERE.glob("hostile/*")))
        for path, (code, report) in check_all([HERE / "hostile" / name for name in expected], "--seconds", "5"):
            with self.subTest(path.name):
                self.assertEqual(code, 1, report)
                self.assertIn(expected[path.name], words(report))

    def test_templates_are_unwritten_until_somebody_writes_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("sdpa.py", "all.py", "all.cpp", "rope.cpp"):
                for language in ([], ["--zh"]):
                    path = pathlib.Path(folder) / name
                    subprocess.run([PROGRAM, "lab", "new", str(path), *language], check=True, capture_output=True)
                    _, report = check(path)
                    self.assertEqual({v["verdict"] for v in report["verdicts"]}, {"unwritten"}, report)
                    self.assertEqual(len(report["verdicts"]), 7 if name.startswith("all") else 1)
                    again = subprocess.run([PROGRAM, "lab", "new", str(path)], capture_output=True, text=True)
                    self.assertEqual(again.returncode, 2)
                    self.assertIn("is there already", again.stderr)
                    path.unlink()

    def test_other_files_and_missing_ones_are_refused(self):
        for name, sentence in (("x.txt", "expected .py or .cpp"), ("nowhere.py", "no such file")):
            run = subprocess.run([PROGRAM, "lab", "check", name], capture_output=True, text=True)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(sentence, run.stderr)

    def test_a_python_without_numpy_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder) / "python3"
            fake.write_text("#!/bin/sh\necho fatal numpy > $4\n")  # what the driver says there
            fake.chmod(0o755)
            _, report = check(HERE / "right" / "softmax_plain.py", "--python", str(fake))
            self.assertIn("has no NumPy", words(report))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
