"""SIGKILL at any moment of `attend train`: the checkpoint and the model are whole, and the run goes on to the same bits.

Usage: kill_training.py BUILD_DIR [--count N]

The run saves at every step. Half of the N kills come by the clock, half at a system call, each rename first. After each
the checkpoint that is there can be read, and no step that it held is lost; the run that goes on to its end has the bits
of one that nobody killed."""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import traced

STEPS = 8
SETTINGS = ["--hidden", "64", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--length", "32", "--batch", "2",
            "--held-out", "0.1", "--validate-tokens", "64", "--sample-tokens", "0", "--steps", str(STEPS),
            "--validate-every", "2", "--save-every", "1", "--dropout", "0.1", "--compute", "f32"]
FILES = {".lock", "checkpoint.safetensors", "config.json", "loss.png", "loss.svg", "metrics.jsonl", "model", "run.json"}


class Failure(Exception):
    pass


def read_safetensors(path):
    """Metadata and tensors' bytes; Failure where the file is not whole."""
    data = path.read_bytes()
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        metadata = header.pop("__metadata__", {})
        end = max(entry["data_offsets"][1] for entry in header.values())
    except (ValueError, KeyError) as error:
        raise Failure(f"{path.name} cannot be read: {error}") from None
    if 8 + size + end != len(data):
        raise Failure(f"{path.name} has {len(data)} bytes, expected {8 + size + end}")
    return metadata, data[8 + size:]


class Training:
    def __init__(self, program, folder):
        self.program, self.folder, self.random = str(program.resolve()), folder, random.Random("attend")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), "ATTEND_HOME": str(folder / "home"),
                    "ATTEND_THREADS": "2", "ASAN_OPTIONS": "detect_leaks=0"}
        self.attend("corpus", "stories", "-n", "20", "-o", folder / "s.jsonl")
        self.attend("prepare", folder / "s.jsonl", "-o", folder / "data", "--vocabulary", "300")
        begin = time.monotonic()
        self.attend(*self.command(folder / "whole"))
        self.seconds = time.monotonic() - begin
        self.whole = self.bits(folder / "whole")
        try:
            _, self.calls, self.renames = traced.run(self.arguments(self.command(folder / "traced")), self.env)
        except OSError as error:
            print(f"by the clock alone, since this machine lets nobody be traced: {error}")
            self.calls = self.renames = 0

    def command(self, run):
        resumed = (run / "run.json").exists()
        return ["train", "resume", run] if resumed else ["train", "pretrain", self.folder / "data", "-o", run, *SETTINGS]

    def arguments(self, command):
        return [self.program, *map(str, command)]

    def attend(self, *command):
        done = subprocess.run(self.arguments(command), env=self.env, text=True, capture_output=True, timeout=300)
        if done.returncode != 0:
            raise Failure(f"{command[0]} {command[1]} failed: {done.stderr}")

    def bits(self, run):
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return (read_safetensors(run / "checkpoint.safetensors")[1],
                {f.name: f.read_bytes() for f in sorted((run / "model").iterdir())},
                [(line["kind"], line["step"], line["loss"]) for line in lines])

    def saved(self, run):
        """The step of the checkpoint; 0: there is none. Failure where something is not whole."""
        if (run / "model").exists():
            read_safetensors(run / "model" / "model.safetensors")
            for name in ("config.json", "tokenizer.json"):
                json.loads((run / "model" / name).read_text())
        for name in ("config.json", "run.json"):
            if (run / name).exists():
                json.loads((run / name).read_text())
        if not (run / "checkpoint.safetensors").exists():
            return 0
        return json.loads(read_safetensors(run / "checkpoint.safetensors")[0]["state"])["step"]

    def kill(self, run, n):
        """Gives whether it ended before."""
        command = self.command(run)
        if n % 2 == 0 or self.calls == 0:
            process = subprocess.Popen(self.arguments(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, env=self.env)
            time.sleep(self.random.random() * self.seconds)
            process.send_signal(signal.SIGKILL)
            ended = process.wait() == 0
            # One in five ends before it is killed, however busy the machine is.
            self.seconds *= 0.9 if ended else 1.025
            return ended
        if n // 2 < self.renames:
            at = 1 + n // 2 % self.renames
            return traced.run(self.arguments(command), self.env, lambda _, seen: seen >= at)[0] == 0
        at = self.random.randrange(self.calls)
        return traced.run(self.arguments(command), self.env, lambda seen, _: seen >= at)[0] == 0

    def finish(self, run):
        self.attend(*self.command(run))
        if self.bits(run) != self.whole:
            raise Failure("the run that was killed ended with other bits than the one that was not")
        left = set(os.listdir(run)) - FILES
        if left:
            raise Failure(f"after a run that ended, there is {sorted(left)}")

    def run(self, count):
        run, before, runs, seen = self.folder / "run", 0, 1, set()
        for n in range(count):
            ended = self.kill(run, n)
            step = self.saved(run)
            seen.add(step)
            if step < before:
                raise Failure(f"kill {n}: step {before} was saved, and now it is step {step}")
            left = [name for name in os.listdir(run) if name.startswith(".attend")] if run.exists() else []
            if len(left) > 2:
                raise Failure(f"kill {n}: what was left piles up: {left}")
            before = step
            if ended or step == STEPS:
                self.finish(run)
                shutil.rmtree(run)
                before, runs = 0, runs + 1
        self.finish(run)
        print(f"{count} kills in {runs} runs, with checkpoints of the steps {sorted(seen)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=50)
    a = parser.parse_args()
    program = a.build if a.build.is_file() else a.build / "bin" / "attend"
    # In memory: a kill loses nothing that was written, and a disk would be waited for at each of thousands of files.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        try:
            Training(program, pathlib.Path(scratch)).run(a.count)
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
