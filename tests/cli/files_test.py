"""What becomes of files: models that do not fit their config, targets that are there, files cut short, exit codes."""

import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hostile"))

import formats
import kill
import mutate
import seeds

PROGRAM = ""


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.01)


class FilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "ATTEND_HOME": str(self.root / "store")}
        self.model = mutate.write(seeds.golden("llama"), self.root / "model")

    def attend(self, *arguments, **more):
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.root, env=self.env, text=True,
                              capture_output=True, timeout=120, **more)

    def assert_failed(self, result, *words, code=1):
        self.assertEqual(result.returncode, code, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def names(self):
        return sorted(os.listdir(self.root))

    # Models that do not fit their config.

    def test_every_command_refuses_the_same_tensor(self):
        model = seeds.golden("llama")
        next(t for t in model.tensors if t.name.endswith("0.self_attn.k_proj.weight")).shape = [8, 64]
        mutate.write(model, self.root / "bad")
        for command in (["info", "bad"], ["generate", "bad", "abc"], ["convert", "bad", "x.gguf"],
                        ["convert", "bad", "x"], ["eval", "bad", "bad/config.json"]):
            self.assert_failed(self.attend(*command), '"model.layers.0.self_attn.k_proj.weight" is [8, 64]',
                               "expected [16, 32]")
        self.assertEqual(self.names(), ["bad", "model"])

    def test_names_from_files_are_printed_without_escapes(self):
        model = seeds.golden("llama")
        model.tensors.append(formats.Tensor("\x1b[31mred\u202e", [1], b"abcd"))
        mutate.write(model, self.root / "red")
        listed = self.attend("info", "red", "--tensors")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn("\\u001b[31mred\\u202e", listed.stdout)
        self.assertNotIn("\x1b", listed.stdout + listed.stderr)

    def test_a_long_field_is_cut_in_the_message(self):
        model = seeds.golden("llama")
        model.config["model_type"] = "x" * 100_000
        mutate.write(model, self.root / "long")
        result = self.attend("info", "long")
        self.assert_failed(result, '"model_type" is "xxx', "expected one of llama")
        self.assertLess(len(result.stderr), 1500)

    def test_a_list_of_millions_of_layers_is_read_at_once(self):
        model = seeds.golden("qwen3_moe")
        model.config["mlp_only_layers"] = [10**9] * 50_000
        mutate.write(model, self.root / "many")
        self.assertEqual(self.attend("info", "many").returncode, 0)
        model.config["mlp_only_layers"] = [0] * 1_000_000
        mutate.write(model, self.root / "more")
        self.assert_failed(self.attend("info", "more"), "bytes, expected at most")

    # Exit codes: 2 for wrong use alone.

    def test_bad_files_are_no_wrong_use(self):
        nan = seeds.golden("llama")
        head = next(t for t in nan.tensors if t.name == "lm_head.weight")
        head.data = struct.pack("<f", float("nan")) * (len(head.data) // 4)
        mutate.write(nan, self.root / "nan")
        self.assert_failed(self.attend("generate", "nan", "abc", "-q"), "nan: ", "weights are broken")
        beyond = seeds.golden("llama")
        beyond.tokenizer["model"]["vocab"]["a"] = 1000
        mutate.write(beyond, self.root / "beyond")
        self.assert_failed(self.attend("generate", "beyond", "abc", "-q"), "token 1000", "64 tokens")
        self.assert_failed(self.attend("eval", "beyond", "beyond/config.json", "-q"), "a token is 1000")
        self.assert_failed(self.attend("generate", "model", "abc", "-t", "-1"), "temperature", code=2)
        self.env["ATTEND_ISA"] = "abacus"
        self.assert_failed(self.attend("generate", "model", "abc"), "ATTEND_ISA", code=2)

    # Targets of convert.

    def test_a_target_that_is_there_is_replaced_only_by_force(self):
        other = seeds.golden("llama")
        for t in other.tensors:
            t.data = struct.pack("<f", 0.5) * (len(t.data) // 4)
        mutate.write(other, self.root / "other")
        for target in ("out.gguf", "out"):
            self.assertEqual(self.attend("convert", "model", target).returncode, 0)
            first = kill.tree(self.root / target)
            self.assert_failed(self.attend("convert", "other", target), target, "--force")
            self.assertEqual(kill.tree(self.root / target), first)
            self.assertEqual(self.attend("convert", "other", target, "--force").returncode, 0)
            self.assertNotEqual(kill.tree(self.root / target), first)
        self.assertEqual(self.names(), ["model", "other", "out", "out.gguf"])
        # A model may take its own place.
        self.assertEqual(self.attend("convert", "out", "out", "--force", "--type", "f16").returncode, 0)
        self.assertEqual(self.attend("info", "out").returncode, 0)

    def test_force_removes_nothing_but_models(self):
        home = self.root / "home"
        (home / "letters").mkdir(parents=True)
        (home / "config.json").write_text("{}")
        (self.root / "texts").mkdir()
        (self.root / "texts" / "book").write_text("once")
        (self.root / "link").symlink_to("model")
        (self.root / "file").write_text("text")
        before = {name: kill.tree(self.root / name) for name in self.names()}
        for target in ("home", "texts", "link", "file", ".", ".."):
            self.assert_failed(self.attend("convert", "model", target, "--force"), target)
        self.assertEqual({name: kill.tree(self.root / name) for name in self.names()}, before)

    def test_capitals_make_a_file_too(self):
        for name in ("A.GGUF", "b.Gguf"):
            self.assertEqual(self.attend("convert", "model", name).returncode, 0)
            self.assertEqual((self.root / name).read_bytes()[:4], b"GGUF")
            self.assertEqual(self.attend("generate", name, "abc", "-n", "2", "-q").returncode, 0)

    def test_refused_or_out_of_space_leaves_nothing(self):
        (self.root / "model" / "tokenizer.json").write_text("{")
        self.assert_failed(self.attend("convert", "model", "out.gguf"), "tokenizer.json")
        self.assertEqual(self.names(), ["model"])
        kill.large_model(self.root / "large", 0.5)
        for target in ("out.gguf", "out"):
            command = f"ulimit -f 256; trap '' XFSZ; exec '{PROGRAM}' convert large {target}"
            result = subprocess.run(["bash", "-c", command], cwd=self.root, env=self.env, text=True, capture_output=True,
                                    timeout=120)
            self.assert_failed(result, "File too large")
            self.assertEqual(self.names(), ["large", "model"])

    def test_stopped_leaves_nothing(self):
        kill.large_model(self.root / "large", 0.5)
        for target in ("out.gguf", "out"):
            for number in (signal.SIGINT, signal.SIGTERM):
                process = subprocess.Popen([PROGRAM, "convert", "large", target], cwd=self.root, env=self.env,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                wait_for(lambda: process.poll() is not None or any(n.startswith(".attend-tmp") for n in self.names()))
                process.send_signal(number)
                _, errors = process.communicate(timeout=60)
                if process.returncode == 0:  # it was faster
                    path = self.root / target
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                else:
                    self.assertEqual(process.returncode, -number, errors)
                    self.assertIn(b"stopped; nothing was changed", errors)
                self.assertEqual(self.names(), ["large", "model"])

    # A file that becomes shorter while it is read.

    def test_a_file_cut_short_while_it_is_read_is_named(self):
        for path in (self.root / "model" / "model.safetensors", self.root / "model.gguf"):
            if path.suffix == ".gguf":
                large = kill.large_model(self.root / "large", 0.5)
                self.assertEqual(self.attend("convert", large, path).returncode, 0)
            model = path if path.suffix == ".gguf" else self.root / "model"
            process = subprocess.Popen([PROGRAM, "generate", model, "-"], cwd=self.root, env=self.env,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            # It waits for its prompt with the file mapped and not yet read.
            wait_for(lambda: path.name in pathlib.Path(f"/proc/{process.pid}/maps").read_text())
            os.truncate(path, 0)
            _, errors = process.communicate(b"abc", timeout=60)
            self.assertEqual(process.returncode, 1, errors)
            self.assertIn(str(path).encode(), errors)
            self.assertIn(b"became shorter while it was read", errors)
