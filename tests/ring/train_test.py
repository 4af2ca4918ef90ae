#!/usr/bin/env python3
"""Trains under mpirun: the bits of one process for any number of ranks, through kills, stops and resumes.

usage: train_test.py <mpirun> <attend>
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

MPIRUN, PROGRAM = sys.argv[1], sys.argv[2]
SHAPE = ["--hidden", "32", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--context", "512"]
RUN = ["--length", "32", "--batch", "8", "--steps", "8", "--validate-every", "4", "--save-every", "3", "--sample-tokens", "0",
       "--warm-up", "0.2", "--held-out", "0.1", "--validate-tokens", "700"]


def replaced(arguments, option, value):
    at = arguments.index(option) + 1
    return [*arguments[:at], value, *arguments[at + 1:]]


LONG_RUN = [*SHAPE, *replaced(RUN, "--steps", "500"), "--rows-at-once", "2"]
ENDLESS_RUN = replaced(LONG_RUN, "--steps", "1000000")  # it is over when the test ends it


def attend(*arguments, ranks=0):
    start = [MPIRUN, "-n", str(ranks)] if ranks else []
    return subprocess.run([*start, PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)


def curve(run):
    """Every number of metrics.jsonl but the clock's: the steps', then the validations'."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return sorted(lines, key=lambda line: (line["kind"], line["step"]))


def losses(run):
    return [line["loss"] for line in curve(run)]


def steps_done(run):
    try:
        return (run / "metrics.jsonl").read_text().count('"kind": "step"')
    except OSError:
        return 0


def ranks_of(run):
    """The processes of a run by their rank."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            arguments = (path / "cmdline").read_bytes().split(b"\0")
            if arguments[0] != PROGRAM.encode() or str(run).encode() not in arguments:
                continue
            environment = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        for variable in environment:
            if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[int(variable.split(b"=")[1])] = int(path.name)
    return found


def left_of(run):
    """The ranks that do not end: one that mpirun has killed may outlive it for a moment."""
    until = time.monotonic() + 60
    while (left := ranks_of(run)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kept = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.kept.name)
        cls.data = {}
        for kind in ("text", "chat", "pairs"):
            text, folder = cls.folder / f"{kind}.jsonl", cls.folder / f"{kind}-data"
            cls.made(attend("corpus", "stories", "-n", 60, "--format", kind, "-o", text))
            known = ["--tokenizer", cls.data["text"]] if cls.data else ["--vocabulary", 300]
            cls.made(attend("prepare", text, "-o", folder, *known))
            cls.data[kind] = folder
        cls.start = cls.folder / "start"
        cls.made(attend("train", "pretrain", cls.data["text"], "-o", cls.start, *SHAPE, *RUN))

    @classmethod
    def tearDownClass(cls):
        cls.kept.cleanup()

    @classmethod
    def made(cls, result):
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        return result

    def train(self, name, ranks, stage, kind, *arguments):
        run = self.folder / name
        # Pairs differ in their last words, and what a chat teaches stands behind a story.
        settings = RUN if kind == "text" else replaced(RUN, "--length", "512")
        result = self.made(attend("train", stage, self.data[kind], "-o", run, *settings, *arguments, ranks=ranks))
        self.assertEqual(result.stdout.count("8 steps"), 1, result.stdout)  # rank 0 alone speaks
        return run

    def same_run(self, run, other):
        self.assertEqual(curve(run), curve(other))
        for file in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
            if (other / file).exists():
                self.assertEqual((run / file).read_bytes(), (other / file).read_bytes(), file)

    def test_any_number_of_ranks_gives_the_bits_of_one_process(self):
        cut = [*SHAPE, "--rows-at-once", "2"]  # four parts: three ranks are not busy in the second round
        one = self.train("bits-1", 0, "pretrain", "text", *cut)
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                self.same_run(self.train(f"bits-of-{ranks}", ranks, "pretrain", "text", *cut), one)

    def test_every_stage(self):
        further = ["--start", self.start / "model", "--rate", "1e-3", "--rows-at-once", "2"]
        stages = {
            "sft": ("chat", further),
            "lora": ("chat", [*further, "--lora-rank", "4"]),
            "dpo": ("pairs", further),
            "distil": ("text", [*SHAPE, "--teacher", self.start / "model", "--rows-at-once", "2"]),
            "pretrain": ("text", [*SHAPE, "--rows-at-once", "2", "--experts", "4", "--tied-embeddings", "false",
                                  "--dropout", "0.1", "--recompute", "true"]),
        }
        for stage, (kind, arguments) in stages.items():
            with self.subTest(stage=stage):
                one = self.train(f"{stage}-1", 0, stage, kind, *arguments)
                self.assertTrue(all(line.get("gradient", 1) > 0 for line in curve(one)))
                self.same_run(self.train(f"{stage}-2", 2, stage, kind, *arguments), one)

    def test_a_batch_in_one_part_differs_by_rounding_alone(self):
        whole = self.train("whole", 0, "pretrain", "text", *SHAPE, "--compute", "f32")
        for ranks in (2, 4):
            run = self.train(f"shared-by-{ranks}", ranks, "pretrain", "text", *SHAPE, "--compute", "f32")
            # How it was cut stays with the run.
            self.assertEqual(json.loads((run / "config.json").read_text())["rows_at_once"], 8 // ranks)
            for ours, theirs in zip(losses(run), losses(whole), strict=True):
                self.assertLess(abs(ours - theirs), 1e-5)

    def test_rows_spread_over_the_ring(self):
        for extra in ([], ["--positions", "alibi", "--window", "20"]):
            # A length that some documents fill and some do not.
            spread = [*SHAPE, *extra, "--compute", "f32", "--ring", "true", "--batch", "2", "--steps", "3", "--length", "64",
                      "--validate-every", "3", "--validate-tokens", "256", "--sample-tokens", "0", "--held-out", "0.1"]
            runs = {}
            for ranks in (0, 2, 4):
                runs[ranks] = self.folder / f"spread-{len(extra)}-{ranks}"
                self.made(attend("train", "pretrain", self.data["text"], "-o", runs[ranks], *spread, ranks=ranks))
            for ranks in (2, 4):
                with self.subTest(ranks=ranks, extra=extra):
                    for ours, theirs in zip(curve(runs[ranks]), curve(runs[0]), strict=True):
                        self.assertEqual(ours["tokens"], theirs["tokens"])
                        self.assertLess(abs(ours["loss"] - theirs["loss"]), 1e-5)
                        if "gradient" in ours:
                            self.assertLess(abs(ours["gradient"] / theirs["gradient"] - 1), 1e-4)

    def test_texts_are_prepared_once(self):
        run = self.folder / "from-texts"
        result = self.made(attend("train", "pretrain", self.folder / "text.jsonl", "-o", run, "--vocabulary", "300", *SHAPE, *RUN,
                                  ranks=2))
        self.assertEqual(result.stdout.count("data     60 documents"), 1, result.stdout)

    def begin(self, *arguments, ranks):
        start = [MPIRUN, "-n", str(ranks)] if ranks else []
        process = subprocess.Popen([*start, PROGRAM, "train", *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        return process

    def begin_long(self, name, ranks, settings):
        """A run that has done five steps."""
        run = self.folder / name
        process = self.begin("pretrain", self.data["text"], "-o", run, *settings, ranks=ranks)
        self.wait_for_steps(run, process, 5)
        return run, process

    def wait_for_steps(self, run, process, steps):
        while steps_done(run) < steps and process.poll() is None:
            time.sleep(0.01)
        self.assertIsNone(process.poll(), "the run ended before it was to")

    def test_a_killed_rank_ends_the_run_and_others_go_on(self):
        whole = self.folder / "unhurt"
        self.made(attend("train", "pretrain", self.data["text"], "-o", whole, *LONG_RUN))
        for victim in (0, 2):
            with self.subTest(victim=victim):
                run, process = self.begin_long(f"killed-{victim}", 4, LONG_RUN)
                os.kill(ranks_of(run)[victim], signal.SIGKILL)
                output = process.communicate()[0]
                self.assertNotEqual(process.returncode, 0)
                self.assertEqual(left_of(run), {})
                self.assertRegex(output, rf"rank {victim} of 4 died; the run stopped behind step \d+; its checkpoint is that of "
                                         rf"step \d+, go on with: attend train resume {run}")
                self.assertEqual(output.count(" died"), 1, output)

                process = self.begin("resume", run, ranks=2)
                self.wait_for_steps(run, process, steps_done(run) + 3)
                process.send_signal(signal.SIGUSR1)
                self.assertIn("steps are saved; go on with", process.communicate()[0])
                self.made(attend("train", "resume", run))
                self.same_run(run, whole)

    def test_a_signal_that_mpirun_hands_on_saves_at_one_step(self):
        run, process = self.begin_long("stopped", 2, ENDLESS_RUN)
        process.send_signal(signal.SIGUSR1)
        output = process.communicate()[0]
        said = re.search(r"stopped; (\d+) steps are saved; go on with: attend train resume", output)
        self.assertIsNotNone(said, output)
        self.assertEqual(int(said[1]), steps_done(run))
        self.assertEqual(left_of(run), {})

    def test_mpirun_interrupted_leaves_a_whole_checkpoint(self):
        # It gives its processes a second, and then kills them: whether that is enough for a step is the machine's.
        run, process = self.begin_long("interrupted", 2, ENDLESS_RUN)
        process.send_signal(signal.SIGINT)
        process.communicate()
        self.assertEqual(left_of(run), {})
        process = self.begin("resume", run, ranks=2)
        self.wait_for_steps(run, process, steps_done(run) + 1)
        process.send_signal(signal.SIGUSR1)
        self.assertIn("steps are saved; go on with", process.communicate()[0])

    def test_one_rank_that_is_stopped_stops_all(self):
        run, process = self.begin_long("one-stopped", 2, ENDLESS_RUN)
        os.kill(ranks_of(run)[1], signal.SIGINT)
        output = process.communicate()[0]
        self.assertRegex(output, r"stopped; \d+ steps are saved; go on with")

    def test_refusals_are_said_once(self):
        def refused(ranks, text, *arguments):
            result = attend("train", *arguments, ranks=ranks)
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual(result.stderr.count(text), 1, result.stderr)

        x = self.folder / "refused"
        base = ["pretrain", self.data["text"], "-o", x, *SHAPE, *RUN]
        refused(3, "batch is 8, expected a multiple of the 3 processes, or rows_at_once to be given", *base)
        refused(4, "a batch of 8 rows, 4 at once, has parts for 2 processes, and there are 4", *base, "--rows-at-once", "4")
        refused(2, "there is no such file or folder", "pretrain", self.folder / "missing", "-o", x, *SHAPE, *RUN)
        refused(2, "holds no run.json", "resume", self.folder / "missing")
        refused(2, "length is 34, expected a multiple of 4, two pieces of a row for each of the processes", "pretrain",
                self.data["text"], "-o", x, *SHAPE, "--ring", "true", "--length", "34")
        refused(2, "dpo does not go with ring", "dpo", self.data["pairs"], "-o", x, "--start", self.start / "model", "--ring", "true")
        broken = self.folder / "broken"
        shutil.copytree(self.start / "model", broken)
        with open(broken / "model.safetensors", "r+b") as weights:
            weights.seek(-4, os.SEEK_END)
            weights.write(b"\0\0\xc0\x7f")  # a NaN
        refused(2, "step 1: the loss is no number", "sft", self.data["chat"], "--start", broken, "-o", x, *RUN)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
