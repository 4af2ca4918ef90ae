"""Training from outside: stories, tokens, every stage, what a run leaves, and what ends one."""

import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

PROGRAM = ""
TINY = ["--hidden", "16", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--head-dim", "8", "--feed-forward", "24",
        "--batch", "4", "--held-out", "0.1", "--sample-tokens", "4", "--validate-tokens", "128", "--validate-every", "4"]
SHORT = [*TINY, "--length", "32"]
RUN = {"checkpoint.safetensors", "config.json", "data", "loss.png", "loss.svg", "metrics.jsonl", "model", "run.json",
       ".lock"}


class TrainTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.env = {k: v for k, v in os.environ.items() if k not in ("ATTEND_ISA", "ATTEND_THREADS")}
        self.env |= {"ATTEND_HOME": str(self.folder / "store"), "TERM": "dumb"}

    def attend(self, *arguments, **more):
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder, env=self.env, text=True,
                              capture_output=True, timeout=120, **more)

    def ok(self, *arguments, **more):
        result = self.attend(*arguments, **more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def refused(self, code, words, *arguments):
        result = self.attend(*arguments)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertIn(words, result.stderr)
        self.assertLess(len(result.stderr.splitlines()), 4, result.stderr)

    def write(self, name, text):
        (self.folder / name).write_text(text)
        return name

    def stories(self, count=24, name="s.jsonl", **more):
        options = [part for key, value in more.items() for part in (f"--{key}", value)]
        self.ok("corpus", "stories", "-n", count, "-o", name, *options)
        return name

    def metrics(self, run, kind="step"):
        lines = (self.folder / run / "metrics.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]

    def names(self, folder="."):
        return set(os.listdir(self.folder / folder))

    def bits(self, run):
        """What two runs to the same end have the same: weights, optimiser, the model's files, losses."""
        data = (self.folder / run / "checkpoint.safetensors").read_bytes()
        tensors = data[8 + int.from_bytes(data[:8], "little"):]
        model = {f.name: f.read_bytes() for f in sorted((self.folder / run / "model").iterdir())}
        return tensors, model, [(m["step"], m["loss"]) for m in self.metrics(run)]

    def test_from_nothing_to_a_model_in_every_format(self):
        self.stories()
        said = self.ok("train", "pretrain", "s.jsonl", "-o", "run", *SHORT, "--steps", "8", "--vocabulary", "300")
        for words in ("model    ", "parameters: 2 layers of 16", "memory   ", "activations", "steps    8", "unigram",
                      "entropy of the texts", "validation loss", "run/model is the model"):
            self.assertIn(words, said)
        self.assertEqual(self.names("run"), RUN)
        self.assertEqual([m["step"] for m in self.metrics("run")], list(range(1, 9)))
        config = json.loads((self.folder / "run/config.json").read_text())
        self.assertEqual((config["hidden"], config["steps"], config["beta2"]), (16, 8, 0.95))
        # The echoed settings make the same run again.
        self.ok("train", "pretrain", "run/data", "-o", "again", "--config", "run/config.json")
        self.assertEqual(self.bits("again")[2], self.bits("run")[2])
        text = self.ok("generate", "run/model", "Once", "-n", "12", "-q")
        self.assertEqual(self.ok("generate", "run", "Once", "-n", "12", "-q"), text, "a run stands for its model")
        for out in ("m.gguf", "hf", "m.pth"):
            self.ok("export", "run", out)
        for model in ("m.gguf", "hf", "m.pth"):
            self.assertEqual(self.ok("generate", model, "Once", "-n", "12", "-q"), text, model)
        self.assertIn("8,7", self.ok("info", "run"))

    def test_the_held_out_share_is_one_of_tokens(self):
        """One file below and above 1 MiB, and many documents: what --held-out asks for, and a line that says it."""
        lines = [f"{n} cats sat on mat {n * n % 997} and {n % 13} dogs ran to hill {n % 7}.\n" for n in range(30000)]
        self.write("small.txt", "".join(lines[:3000]))
        self.write("large.txt", "".join(lines))
        self.assertGreater((self.folder / "large.txt").stat().st_size, 1 << 20)
        self.stories(300)
        at = SHORT.index("--held-out")
        short = SHORT[:at] + SHORT[at + 2:]
        for name, parts in (("small.txt", "the end of 1 document"), ("large.txt", "the end of 1 document"),
                            ("s.jsonl", r"\d+ documents?( and the end of 1 document)?")):
            with self.subTest(name):
                said = self.ok("train", "pretrain", name, "-o", f"run {name}", *short, "--held-out", "0.02", "--steps", "1",
                               "--vocabulary", "300")
                line = re.search(rf"(?m)^held out ([\d,]+) of ([\d,]+) tokens \((\d\.\d\d) %\): {parts}$", said)
                self.assertIsNotNone(line, said)
                held_out, tokens = (int(number.replace(",", "")) for number in line.groups()[:2])
                self.assertAlmostEqual(held_out / tokens, 0.02, delta=0.002)
                self.assertAlmostEqual(float(line[3]), 100 * held_out / tokens, delta=0.0051)
                self.assertIn("validation loss", said)
        said = self.ok("train", "pretrain", "small.txt", "-o", "none", *short, "--held-out", "0", "--steps", "1",
                       "--vocabulary", "300")
        self.assertRegex(said, r"(?m)^held out none of [\d,]+ tokens: there is no validation$")
        self.assertNotIn("validation loss", said)

    def test_what_has_no_effect_is_said(self):
        self.stories()
        self.ok("prepare", "s.jsonl", "-o", "data", "--vocabulary", "300")
        new = ["train", "pretrain", "data", *SHORT, "--steps", "1"]
        self.refused(2, "--vocabulary has no effect: the tokenizer is that of the prepared data, data", *new, "-o", "x",
                     "--vocabulary", "400")
        self.ok(*new, "-o", "run")
        self.refused(2, "--vocabulary has no effect: the tokenizer is that of --start, run", "train", "pretrain", "s.jsonl",
                     "--start", "run", "-o", "x", "--vocabulary", "300")
        self.refused(2, "--vocabulary has no effect: the tokenizer is that of --teacher, run", "train", "distil", "s.jsonl",
                     "--teacher", "run", "-o", "x", "--vocabulary", "300")
        for option in (["--steps", "9"], ["--out", "x"], ["--force"], ["--start", "run"], ["--vocabulary", "300"]):
            self.refused(2, f"{option[0]} does not go with resume", "train", "resume", "run", *option)
        self.refused(2, "--steps is a setting of a run", "train", "tokenizer", "s.jsonl", "-o", "x", "--steps", "9")
        self.refused(2, "did you mean '--rate'?", *new, "-o", "x", "--learning-rate", "1e-3")
        self.assertNotIn("x", self.names())
        further = ["train", "pretrain", "data", "--start", "run", "--steps", "1", "--length", "32"]
        self.assertIn("note     ignored: hidden, layers; the model that training starts from keeps its shape",
                      self.ok(*further, "-o", "other", "--hidden", "32", "--layers", "3"))
        self.assertNotIn("ignored", self.ok(*further, "-o", "same", "--hidden", "16", "--config", "run/config.json"))

    def test_compare_shows_the_shape_of_the_model(self):
        self.stories()
        self.ok("prepare", "s.jsonl", "-o", "data", "--vocabulary", "300")
        shape = ["--hidden", "32", "--layers", "1", "--heads", "2", "--kv-heads", "2", "--window", "20", "--qk-norm", "false"]
        self.ok("train", "pretrain", "data", "-o", "run", *shape, "--steps", "1", "--length", "32")
        self.ok("train", "pretrain", "data", "-o", "further", "--start", "run", "--steps", "2", "--length", "32")
        config = json.loads((self.folder / "further/config.json").read_text())
        self.assertEqual([config[name] for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "window", "qk_norm")],
                         [32, 1, 2, 2, 16, 20, False])
        rows = {line.split()[0] for line in self.ok("compare", "run", "further").splitlines()}
        self.assertIn("steps", rows)
        for name in config:
            if name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "feed_forward", "context", "window", "qk_norm"):
                self.assertNotIn(name, rows)
        # A run of before, whose settings hold the defaults of a shape.
        (self.folder / "further/config.json").write_text(json.dumps(config | {"hidden": 256, "layers": 6, "head_dim": 0}))
        rows = {line.split()[0] for line in self.ok("compare", "run", "further").splitlines()}
        self.assertFalse(rows & {"hidden", "layers", "head_dim"})
        self.ok("train", "resume", "run")

    def test_a_run_is_replaced_by_force(self):
        self.stories()
        job = ["train", "pretrain", "s.jsonl", *SHORT, "--vocabulary", "300", "--seed", "3"]
        self.ok(*job, "-o", "new", "--steps", "4")
        self.ok(*job, "-o", "run", "--steps", "2", "--dropout", "0.2")
        (self.folder / "run/letter").write_text("mine")
        self.ok(*job, "-o", "run", "--steps", "4", "--force")
        self.assertEqual(self.bits("run"), self.bits("new"))
        self.assertEqual(self.names("run"), RUN | {"letter"})
        self.refused(2, "run/model is in the run that is to be replaced", "train", "pretrain", "s.jsonl", "--start",
                     "run/model", "-o", "run", "--force", *SHORT)
        (self.folder / "other").mkdir()
        (self.folder / "other/checkpoint.safetensors").write_text("of something else")
        self.refused(1, "other: holds no run.json", *job, "-o", "other", "--steps", "1", "--force")
        self.assertEqual((self.folder / "other/checkpoint.safetensors").read_text(), "of something else")

    def test_stories_need_not_be_brought(self):
        said = self.ok("train", "pretrain", "stories", "-o", "run", *SHORT, "--steps", "2", "--vocabulary", "300")
        self.assertIn("60,000 documents", said)
        config = json.loads((self.folder / "run/config.json").read_text())
        self.assertEqual((config["heads"], config["rate"], config["batch"]), (2, 0.002, 4))
        (self.folder / "stories").write_text("A text of this name is meant before them. " * 60)
        said = self.ok("train", "pretrain", "stories", "-o", "own", *TINY, "--length", "16", "--steps", "1",
                       "--vocabulary", "300")
        self.assertNotIn("60,000 documents", said)

    def test_a_run_is_moved_and_goes_on(self):
        self.stories()
        self.ok("train", "pretrain", "s.jsonl", "-o", "run", *SHORT, "--steps", "4", "--vocabulary", "300")
        place = json.loads((self.folder / "run/run.json").read_text())
        self.assertEqual((place["data"], place["start"]), ("data", ""))
        (self.folder / "run").rename(self.folder / "moved")
        self.ok("train", "resume", "moved")  # at its end already: it is read whole, and nothing is missing
        self.stories(12, "p.jsonl", format="pairs")
        said = self.ok("train", "dpo", "p.jsonl", "--start", "moved", "-o", "liked", *SHORT, "--steps", "1")
        self.assertRegex(said, r"note     \d+ of 12 pairs are longer than length, \d+ tokens")
        self.assertEqual(json.loads((self.folder / "liked/run.json").read_text())["start"], "../moved/model")

    def test_every_stage_and_what_comes_of_it(self):
        self.stories()
        self.stories(12, "c.jsonl", format="chat")
        self.stories(12, "p.jsonl", format="pairs")
        self.ok("train", "pretrain", "s.jsonl", "-o", "run", *SHORT, "--steps", "2", "--vocabulary", "300")
        for stage, lines in (("sft", "c.jsonl"), ("lora", "c.jsonl"), ("dpo", "p.jsonl")):
            self.ok("train", stage, lines, "--start", "run/model", "-o", stage, *SHORT, "--steps", "2")
        self.ok("train", "distil", "s.jsonl", "--teacher", "run/model", "-o", "distil", *SHORT, "--steps", "2",
                "--start", "run/model")
        self.assertAlmostEqual(self.metrics("dpo")[0]["loss"], 0.693147, places=5)
        self.assertIn("margin", self.metrics("dpo")[0])
        self.assertEqual(self.names("lora/adapter"), {"adapter_model.safetensors", "adapter_config.json"})
        self.ok("merge", "run/model", "lora", "merged")
        self.assertEqual((self.folder / "merged/model.safetensors").read_bytes(),
                         (self.folder / "lora/model/model.safetensors").read_bytes())
        self.refused(2, "is there already", "merge", "run/model", "lora", "merged")
        table = self.ok("compare", "run", "sft", "lora", "dpo", "-o", "picture")
        for words in ("pretrain", "best validation loss", "tokens/s", "KV bytes a token", "rate"):
            self.assertIn(words, table)
        self.assertLessEqual({"picture.png", "picture.svg"}, self.names())
        self.ok("train", "tokenizer", "s.jsonl", "-o", "words", "--vocabulary", "300")
        self.ok("prepare", "s.jsonl", "-o", "prepared", "--tokenizer", "words")

    def test_ctrl_c_saves_and_resume_gives_the_same_bits(self):
        self.stories()
        self.ok("prepare", "s.jsonl", "-o", "data", "--vocabulary", "300")
        job = ["train", "pretrain", "data", *SHORT, "--steps", "40", "--dropout", "0.1",
               "--rows-at-once", "2"]
        self.ok(*job, "-o", "whole")
        process = subprocess.Popen([PROGRAM, *job, "-o", "stopped"], cwd=self.folder, env=self.env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        metrics = self.folder / "stopped/metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 3):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        if process.returncode != 0:  # it may have ended before
            self.assertEqual(process.returncode, -signal.SIGINT, err)
            self.assertRegex(err, r"stopped; \d+ steps are saved; go on with: attend train resume stopped\n")
            self.env["ATTEND_THREADS"] = "1"
            self.assertIn("going on behind", self.ok("train", "resume", "stopped"))
        self.assertEqual(self.bits("stopped"), self.bits("whole"))

    def test_a_watched_run_has_the_same_bits_and_tells_of_itself(self):
        self.stories()
        self.ok("prepare", "s.jsonl", "-o", "data", "--vocabulary", "300")
        job = ["train", "pretrain", "data", *SHORT, "--steps", "20"]
        self.ok(*job, "-o", "plain")
        process = subprocess.Popen([PROGRAM, *job, "-o", "run", "--watch"], cwd=self.folder, env=self.env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        url = ""
        for line in process.stdout:
            url = line.split()[1] if line.startswith("watch    http") else url
            if "stays open" in line:
                break
        asked = urllib.request.urlopen(url + "explore/v1/training?metrics=0&samples=0", timeout=30)
        told = json.load(asked)
        self.assertFalse(told["running"])
        self.assertEqual(told["kept"], [0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20])
        written = (self.folder / "run/metrics.jsonl").read_text()
        self.assertEqual(told["metrics"]["lines"], [json.loads(line) for line in written.splitlines()])
        self.assertEqual(told["metrics"]["next"], len(written))
        self.assertEqual(told["about"]["steps"], 20)
        self.assertTrue(told["samples"]["lines"][0]["text"])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + err)  # the run was over: nothing was cut short
        self.assertEqual(self.names("run"), (RUN - {"data"}) | {"watch"})
        self.assertEqual(self.bits("run"), self.bits("plain"))
        last = self.folder / "run/watch/20/model.safetensors"
        self.assertEqual(last.stat().st_size, (self.folder / "run/model/model.safetensors").stat().st_size)

    def test_bad_input_has_its_own_sentence(self):
        self.stories()
        self.ok("prepare", "s.jsonl", "-o", "data", "--vocabulary", "300")
        self.write("empty.jsonl", "")
        self.write("one.jsonl", '{"text": "one line"}\n')
        self.write("broken.jsonl", '{"text": "fine"}\n{"text": \n')
        self.write("settings.json", '{"ratte": 1}')
        train = ["train", "pretrain", "-o", "run", *TINY]
        for code, words, *arguments in (
                (1, "there is no text", "prepare", "empty.jsonl", "-o", "x"),
                (1, "broken.jsonl:2: ", "prepare", "broken.jsonl", "-o", "x"),
                (1, "there is no such file", "prepare", "missing.jsonl", "-o", "x"),
                (1, "is there already", "prepare", "s.jsonl", "-o", "data"),
                (1, "there is no text", *train, "empty.jsonl"),
                (2, "less than one row", *train, "one.jsonl", "--length", "32"),
                (2, "length is 5000, expected at most context, 2048", *train, "data", "--length", "5000"),
                (2, "\"rate\" is 7", *train, "data", "--rate", "7"),
                (2, "kv_heads is 3", "train", "pretrain", "data", "-o", "run", "--kv-heads", "3"),
                (2, "expected a number", *train, "data", "--rate", "fast"),
                (2, "did you mean '--length'?", *train, "data", "--lenght", "7"),
                (1, "did you mean 'rate'?", *train, "data", "--config", "settings.json"),
                (2, "no shape is called", *train, "data", "--shape", "huge"),
                (2, "sft needs chat", "train", "sft", "data", "-o", "run", *SHORT),
                (2, "nothing to learn from", "train", "pretrain", "-o", "run"),
                (2, "--out is missing", "train", "pretrain", "data"),
                (1, "holds no run.json", "train", "resume", "data"),
                (1, "holds no run.json", "compare", "data")):
            with self.subTest(words=words):
                self.refused(code, words, *arguments)
        self.assertRegex(self.ok("prepare", "broken.jsonl", "-o", "y", "--skip-broken"),
                         r"^read 2 records: 1 text, 1 skipped\nskipped 1: .+ \(first: broken.jsonl:2\)\n")
        self.assertNotIn("x", self.names())
        # The same folder serves once the input is mended: nothing of the other text is used.
        self.ok(*train, "s.jsonl", "--length", "32", "--steps", "1", "--vocabulary", "300")
        self.assertEqual(json.loads((self.folder / "run/data/data.json").read_text())["documents"], 24)

    def test_rows_that_cannot_be_used_are_counted_or_named(self):
        rows = [{"instruction": "Say a", "output": "a"}, {"instruction": "Say b", "output": 5}, {"text": "a text"}] * 40
        self.write("rows.json", json.dumps(rows))
        job = ("train", "pretrain", "rows.json", "-o", "run", "--vocabulary", "300", "--steps", "1", *SHORT)
        self.refused(1, 'rows.json:1: item 2: "output" is a whole number, expected a text or messages', *job)
        counts = ("read 120 records: 40 Alpaca, 40 text, 40 skipped\n"
                  'skipped 40: "output" is a whole number, expected a text or messages (first: rows.json:1: item 2)\n')
        self.assertIn(counts, self.ok(*job, "--skip-broken"))
        self.assertEqual(json.loads((self.folder / "run/data/data.json").read_text())["skipped"], 40)
        self.assertIn(counts, self.ok("train", "tokenizer", "rows.json", "-o", "words", "--vocabulary", "300", "--skip-broken"))
        self.write("rows.csv", "title,body\n" + "t,some words\n" * 40)
        self.refused(1, "rows.csv:2: has the fields \"title\", \"body\", expected one of: ", "prepare", "rows.csv", "-o", "x")
        self.assertIn("read 40 records: 40 text\n", self.ok("prepare", "rows.csv", "-o", "csv", "--column", "body", "--vocabulary", "300"))
        for option in (("--skip-broken",), ("--column", "body")):
            self.refused(2, "csv is prepared data: --skip-broken and --column", "train", "pretrain", "csv", "-o", "r", *SHORT, *option)
            self.refused(2, f"{option[0]} does not go with resume", "train", "resume", "run", *option)

    def test_help_and_errors_name_every_format(self):
        text = self.ok("prepare", "--help")
        for word in (".json", ".jsonl", ".csv", ".gz", ".zst", "Parquet", "attend.llm.prepare", '"messages"', '"tools"',
                     '"conversations"', '"instruction"', '"completion"', '"chosen"', '"rejected"', '"text"', '"weight": 0'):
            self.assertIn(word, text)
        (self.folder / "a.parquet").write_bytes(b"PAR1\x15")
        self.refused(1, "a.parquet: is Parquet, which is read through Python: attend.llm.prepare", "prepare", "a.parquet", "-o", "x")
        (self.folder / "only").mkdir()
        (self.folder / "only/a.parquet").write_bytes(b"PAR1\x15")
        self.refused(1, "only: holds no file that is read: .txt, .md, .json", "prepare", "only", "-o", "x")
        self.write("page.txt", "<!doctype html><p>not found")
        self.refused(1, "page.txt: is HTML, expected text", "prepare", "page.txt", "-o", "x")

    def test_text_of_other_encodings_is_refused_with_the_command_that_converts_it(self):
        """The command that the error prints makes a text that gives the same tokens as one written in UTF-8."""
        chinese = "从前有一座山，山里有一座庙。\n庙里有一个老和尚。\n"
        western = "Un café, s'il vous plaît.\nÀ bientôt, Zoë!\n" * 3
        for encoding, text in (("gb18030", chinese), ("utf-16", chinese), ("utf-16-le", chinese), ("utf-16-be", western),
                               ("latin-1", western), ("cp1252", western + "“5 €”\n"), ("utf-32", chinese)):
            with self.subTest(encoding=encoding):
                name = f"the text's {encoding}.txt"
                (self.folder / name).write_bytes(text.encode(encoding))
                result = self.attend("prepare", name, "-o", "bad", "--vocabulary", "300")
                self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
                self.assertRegex(result.stderr, rf"{name}:1: byte \d+ is 0x[0-9a-f]{{2}}, expected text in UTF-8; it looks like ")
                self.assertFalse((self.folder / "bad").exists())
                command = result.stderr[result.stderr.index("iconv -f"):]
                subprocess.run(["sh", "-c", command], cwd=self.folder, check=True, timeout=60)
                self.ok("prepare", f"the text's {encoding}.utf8.txt", "-o", encoding, "--vocabulary", "300")
                self.write("right.txt", text)
                self.ok("prepare", "right.txt", "-o", f"{encoding} right", "--vocabulary", "300")
                for file in ("tokens.bin", "documents.bin", "tokenizer.json"):
                    self.assertEqual((self.folder / encoding / file).read_bytes(),
                                     (self.folder / f"{encoding} right" / file).read_bytes())
        for command in (("train", "tokenizer", "bad.txt", "-o", "t"), ("train", "pretrain", "bad.txt", "-o", "r", *SHORT),
                        ("prepare", "bad.jsonl", "-o", "d")):
            (self.folder / "bad.txt").write_bytes(bytes(range(256)))
            (self.folder / "bad.jsonl").write_bytes('{"text": "词"}\n'.encode("gb18030"))
            self.refused(1, "expected text in UTF-8; it ", *command)

    def test_a_text_of_windows_gives_the_same_tokens(self):
        text = "one two three\nfour five\n<|endoftext|>\nsix\n" * 5
        self.write("unix.txt", text)
        (self.folder / "windows.txt").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
        for name in ("unix", "windows"):
            self.ok("prepare", f"{name}.txt", "-o", name, "--vocabulary", "300")
        for file in ("tokens.bin", "documents.bin", "tokenizer.json", "data.json"):
            self.assertEqual((self.folder / "unix" / file).read_bytes(), (self.folder / "windows" / file).read_bytes(), file)

    def test_a_pipe_in_the_place_of_metrics_holds_nobody_up(self):
        self.stories()
        self.ok("train", "pretrain", "s.jsonl", "-o", "run", "--vocabulary", "300", "--steps", "4", *SHORT)
        (self.folder / "run/metrics.jsonl").unlink()
        os.mkfifo(self.folder / "run/metrics.jsonl")
        self.refused(1, "metrics.jsonl: it is not a regular file", "train", "resume", "run")
        self.refused(1, "metrics.jsonl: it is not a regular file", "compare", "run", "run")

    def test_weights_that_are_no_numbers_are_not_exported(self):
        self.stories()
        self.ok("train", "pretrain", "s.jsonl", "-o", "run", "--vocabulary", "300", "--steps", "4", *SHORT)
        path = self.folder / "run/model/model.safetensors"
        data = path.read_bytes()
        path.write_bytes(data[:-4] + b"\0\0\xc0\x7f")  # the last number of the last tensor is NaN
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        last = max((t["data_offsets"][1], name) for name, t in header.items() if name != "__metadata__")[1]
        for target in ("x.gguf", "x", "x.pth"):
            result = self.attend("convert", "run", target)
            self.assertEqual((result.returncode, result.stdout), (1, ""), target)
            self.assertIn("holds NaN, expected finite values", result.stderr)
            if target != "x.gguf":  # which has other names
                self.assertIn(f'the tensor "{last}"', result.stderr)
            self.assertNotIn(target, self.names())

    def test_a_second_run_in_the_same_folder_is_refused(self):
        self.stories()
        job = ["train", "pretrain", "s.jsonl", *SHORT, "--vocabulary", "300", "-o", "run"]
        self.ok(*job, "--steps", "2")
        before = self.bits("run")
        self.refused(2, "holds a run already: 'attend train resume run' goes on with it", *job, "--steps", "2")
        config = self.folder / "run/config.json"
        settings = config.read_text()
        config.write_text(settings.replace('"steps": 2', '"steps": 4'))
        self.refused(1, "belongs to a run with other settings", "train", "resume", "run")
        config.write_text(settings)
        # While one is at work.
        lock = os.open(self.folder / "run/.lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.refused(1, "another training run is at work in run", "train", "resume", "run")
        os.close(lock)
        self.assertIn("2 steps", self.ok("train", "resume", "run"))
        self.assertEqual(self.bits("run"), before)

    def test_a_full_disk_loses_nothing(self):
        self.stories()
        self.ok("prepare", "s.jsonl", "-o", "data", "--vocabulary", "300")
        job = ["train", "pretrain", "data", *SHORT, "--steps", "6", "--save-every", "2"]
        self.ok(*job, "-o", "whole")
        for kilobytes in (1, 20, 60, 90):
            with self.subTest(kilobytes=kilobytes):
                run = f"run{kilobytes}"
                limit = f"ulimit -f {kilobytes}; trap '' XFSZ; exec \"$@\""
                result = subprocess.run(["bash", "-c", limit, "-", PROGRAM, *job, "-o", run], cwd=self.folder,
                                        env=self.env, text=True, capture_output=True, timeout=120)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn("File too large", result.stderr)
                self.assertFalse([n for n in self.names(run) if n.startswith(".attend")], "nothing half-written stays")
                resumed = ["train", "resume", run] if (self.folder / run / "run.json").exists() else [*job, "-o", run]
                self.ok(*resumed)
                self.assertEqual(self.bits(run), self.bits("whole"))
