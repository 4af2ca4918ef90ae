"""`attend lab check` on files: every wrong one is diagnosed as itself, every right one is right, hostile ones are stopped.

Usage: check_test.py PROGRAM [name ...]. A wrong file is called EXERCISE__MISTAKE.py, or EXERCISE__ONE+OTHER.py.
"""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import venv

HERE = pathlib.Path(__file__).parent
PROGRAM = ""


def check(path, *options, before=(), **process):
    """The exit code and the report of one check. `before`: a command that runs it."""
    run = subprocess.run(
        [*before, PROGRAM, "lab", "check", str(path), "--json", *options], capture_output=True, text=True, timeout=120, **process
    )
    assert run.returncode in (0, 1), (path, run.returncode, run.stderr)
    return run.returncode, json.loads(run.stdout)


def refusing_namespaces():
    """A command that runs another where the kernel refuses more namespaces; none where it refuses that one, too."""
    refuse = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh"]
    return refuse if subprocess.run([*refuse, "true"], capture_output=True).returncode == 0 else []


def processes(word):
    """Those with this in their command line; /proc changes while it is read."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path] if word.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


def check_all(paths, *options):
    """A report for each, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(zip(paths, pool.map(lambda path: check(path, *options), paths)))


def words(report):
    """All that it says, in English."""
    return " ".join([v["text"]["en"] for v in report["verdicts"]] + [report.get("failure", {}).get("en", "")])


# NumPy 1.24 to 2.1 can promote as NumPy 2 does, which makes x / np.sqrt(d) float64; later ones do nothing else.
AS_NUMPY_2 = 'import numpy\ngetattr(numpy, "_set_promotion_state", lambda state: None)("weak")\n'


def as_numpy_2(folder, kind):
    """Copies of the Python files of right/ or wrong/ that promote as NumPy 2 does."""
    for path in HERE.glob(f"{kind}/*.py"):
        (pathlib.Path(folder) / path.name).write_text(AS_NUMPY_2 + path.read_text())
    return sorted(pathlib.Path(folder).glob("*"))


class CheckTest(unittest.TestCase):
    def test_wrong_files_are_diagnosed_as_themselves(self):
        self.each_is_its_mistake(sorted(HERE.glob("wrong/*")))

    def test_wrong_files_are_diagnosed_with_the_promotion_of_numpy_2(self):
        with tempfile.TemporaryDirectory() as folder:
            self.each_is_its_mistake(as_numpy_2(folder, "wrong"))

    def each_is_its_mistake(self, files):
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
        self.each_is_right(sorted(HERE.glob("right/*")))

    def test_right_files_are_right_with_the_promotion_of_numpy_2(self):
        with tempfile.TemporaryDirectory() as folder:
            self.each_is_right(as_numpy_2(folder, "right"))

    def each_is_right(self, files):
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
            "fork.py": "not allowed here",
            "fork_at_load.py": "not allowed here",
            "fifo.py": "not allowed here",
            "signal_parent.py": "not allowed here",
            "network.py": "not allowed here",
            "leave_group.py": "seconds and was stopped",
            "endless_answer.py": "more than 16 MiB",
            "escapes.py": "\\u001b]0;title\\u0007\\u202e",
            "device.cpp": "does not compile",
            "home.cpp": "does not compile",
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
                self.assertNotIn("root:", words(report))  # of /etc/passwd
                self.assertLess(len(words(report)), 6000)

    def test_sources_of_any_shape_are_scanned(self):
        right = (HERE / "right" / "several.cpp").read_text()
        for source in (
            "/*" + "x" * 900_000 + "*/" + right,
            " " * 200_000 + right + "\n" * 200_000,
            "//" + "y" * 900_000 + "\n" + right,
            right + "/* " * 200_000 + "*/",
            right + "// void softmax(" * 50_000,
        ):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "large.cpp"
                path.write_text(source)
                code, report = check(path)
                self.assertEqual(code, 0, report)

    def test_a_learner_sees_no_file_of_the_user(self):
        with tempfile.TemporaryDirectory() as folder:
            secret = pathlib.Path(folder) / "secret"
            secret.write_text("the secret of this test")
            path = pathlib.Path(folder) / "read.py"
            path.write_text(f"def softmax(x):\n    raise ValueError(open({str(secret)!r}).read())\n")
            _, report = check(path)
            hides = {"file-tree", "landlock"} & set(report["sandbox"])
            self.assertEqual("the secret" in words(report), not hides, report)

    def test_what_holds_is_reported(self):
        _, report = check(HERE / "right" / "softmax_plain.py")
        self.assertEqual(report["sandbox"][-1], "system-calls")
        shown = subprocess.run([PROGRAM, "lab", "check", str(HERE / "right" / "softmax_plain.py")], capture_output=True, text=True)
        self.assertIn("sandbox: " + ", ".join(report["sandbox"]), shown.stdout.replace("\n", " "))

    def test_it_works_where_namespaces_are_refused(self):
        refuse = refusing_namespaces()
        for path, expected in (("right/softmax_plain.py", 0), ("right/several.cpp", 0), ("hostile/fork.py", 1)):
            code, report = check(HERE / path, before=refuse)
            self.assertEqual(code, expected, report)
            self.assertNotIn("namespaces", report["sandbox"])

    def test_it_works_for_a_user_without_rights(self):
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        for path, expected in (("right/softmax_plain.py", 0), ("right/several.cpp", 0), ("hostile/signal_parent.py", 1)):
            with tempfile.TemporaryDirectory() as folder:
                os.chmod(folder, 0o777)
                source = pathlib.Path(folder) / pathlib.Path(path).name
                source.write_text((HERE / path).read_text())
                source.chmod(0o644)
                code, report = check(source, cwd=folder, env={**os.environ, "TMPDIR": folder, "HOME": folder}, **nobody)
                self.assertEqual(code, expected, report)

    def test_nothing_is_left_when_the_check_is_interrupted_or_killed(self):
        for before in ([], refusing_namespaces()):
            for how in (signal.SIGINT, signal.SIGKILL):
                with self.subTest(before=before, how=how), tempfile.TemporaryDirectory(prefix="loops") as folder:
                    path = pathlib.Path(folder) / f"{pathlib.Path(folder).name}.py"
                    path.write_text("def softmax(x):\n    while True:\n        pass\n")
                    one = subprocess.Popen([*before, PROGRAM, "lab", "check", str(path), "--seconds", "600"], stdout=subprocess.DEVNULL)
                    learner = f"learner/{path.name}"
                    while one.poll() is None and not processes(learner):
                        time.sleep(0.05)
                    one.send_signal(how)
                    self.assertEqual(one.wait(timeout=100), -how)
                    while processes(learner):  # of what was killed the sandbox ends a moment later
                        time.sleep(0.05)

    def test_a_file_that_is_no_source_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo, zero, large = (pathlib.Path(folder) / name for name in ("fifo.py", "zero.py", "large.py"))
            os.mkfifo(fifo)
            zero.symlink_to("/dev/zero")
            large.write_bytes(b"#" * ((1 << 20) + 1))
            for path, sentence in ((fifo, "expected a source file"), (zero, "expected a source file"), (large, "larger than 1 MiB")):
                run = subprocess.run([PROGRAM, "lab", "check", str(path)], capture_output=True, text=True, timeout=60)
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn(sentence, run.stderr)
            large.write_bytes(b"#" * (1 << 20))
            self.assertIn("none of the functions", words(check(large)[1]))

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
            venv.create(folder, symlinks=True)
            _, report = check(HERE / "right" / "softmax_plain.py", "--python", f"{folder}/bin/python3")
            self.assertIn("has no NumPy", words(report))

    def test_a_python_of_a_virtual_environment_serves(self):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, symlinks=True, system_site_packages=True)
            python = pathlib.Path(folder) / "bin" / "python3"
            has_numpy = subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0
            _, report = check(HERE / "right" / "softmax_plain.py", "--python", str(python))
            self.assertEqual(report["all_right"], has_numpy, report)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
