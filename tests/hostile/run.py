"""Mutated model files through the program: no signal, no hang, little memory, nothing written from outside a tensor.

Usage: run.py BUILD_DIR [--count N] [--seed S] [--first K] [--jobs J] [--keep FOLDER]

File number K is the same on every machine; the first ones are made by hand. A program built with sanitizers is held to their reports instead of to the
memory it takes."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import formats
import handmade
import mutate
import seeds

CPU_SECONDS = 5  # of a release build; time on the clock says more about the machine's other work
MOST_BYTES = 64 << 20
LONGEST_MESSAGE = 4000

# What may be called wrong use although a file was at fault: the command is not for this kind of model, or the prompt
# that was asked for does not fit its context.
MISUSE = ("does not generate text", "was made to continue text", "the prompt is empty", "the context is",
          "the cache holds")


# What starts the program: a small process, since the peak of a child begins with the memory of its parent. A machine
# with much else to do is slow, so time is counted in CPU seconds; what only waits is ended by the alarm.
STARTER = """
import json, os, resource, signal, sys
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        for fd, (name, flags) in enumerate((("/dev/null", os.O_RDONLY), (job["out"], os.O_WRONLY), (job["err"], os.O_WRONLY))):
            os.dup2(os.open(name, flags), fd)
        resource.setrlimit(resource.RLIMIT_CPU, (job["cpu"], job["cpu"] + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(120)
        os.execve(job["argv"][0], job["argv"], job["env"])
    _, status, usage = os.wait4(child, 0)
    print(status, usage.ru_maxrss, flush=True)
"""


class Failure(Exception):
    pass


class Runner:
    def __init__(self, program, jobs):
        self.program = str(program.resolve())
        self.sanitized = b"__asan_init" in program.read_bytes()
        self.peak = 0
        self.starters = queue.SimpleQueue()
        for _ in range(jobs):
            self.starters.put(subprocess.Popen([sys.executable, "-S", "-c", STARTER], stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE))
        self.env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "ATTEND_HOME": "/nonexistent",
                    "ATTEND_THREADS": "2", "ASAN_OPTIONS": "detect_leaks=0:hard_rss_limit_mb=2048:handle_sigbus=0",
                    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}

    def run(self, arguments, size):
        """Gives (exit code, stdout, stderr) of a run that kept the rules; Failure otherwise."""
        seconds = CPU_SECONDS * (6 if self.sanitized else 1)
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            job = {"argv": [self.program, *arguments], "env": self.env, "out": out.name, "err": err.name, "cpu": seconds}
            starter = self.starters.get()
            try:
                starter.stdin.write(json.dumps(job).encode() + b"\n")
                starter.stdin.flush()
                status, peak = map(int, starter.stdout.readline().split())
            finally:
                self.starters.put(starter)
            out, err = out.read(), err.read()
        code = os.waitstatus_to_exitcode(status)
        self.check(arguments, code, out, err, peak * 1024, size)
        return code, out.decode(), err.decode()

    def close(self):
        while not self.starters.empty():
            starter = self.starters.get()
            starter.communicate()

    def check(self, arguments, code, out, err, peak, size):
        what = " ".join(arguments[:1]) + ": "
        if code < 0:
            name = signal.Signals(-code).name
            raise Failure(what + ("took too long" if name in ("SIGXCPU", "SIGKILL", "SIGALRM") else name) + f"\n{err[-3000:]!r}")
        for report in (b"AddressSanitizer", b"runtime error:", b"MemorySanitizer"):
            if report in err:
                raise Failure(what + err.decode(errors="replace")[-6000:])
        if code not in (0, 1, 2):
            raise Failure(what + f"exit code {code}\n{err[-3000:]!r}")
        if code == 2 and not any(words.encode() in err for words in MISUSE):
            raise Failure(what + f"exit code 2, as if misused: {err[-500:]!r}")
        if code != 0 and b"\nattend " not in b"\n" + err:  # a warning may come first
            raise Failure(what + f"failed without a word: {err[-500:]!r}")
        shown = err + out if arguments[0] == "info" else err
        if len(err) > LONGEST_MESSAGE:
            raise Failure(what + f"a message of {len(err)} bytes: {err[:200]!r}")
        try:
            text = shown.decode()
        except UnicodeDecodeError:
            raise Failure(what + f"broken text: {shown[-500:]!r}") from None
        if any((c < " " and c != "\n") or "\x7f" <= c < "\xa0" for c in text):
            raise Failure(what + f"terminal escapes: {shown[-500:]!r}")
        self.peak = max(self.peak, peak - size)
        if not self.sanitized and peak > MOST_BYTES + size:
            raise Failure(what + f"took {peak >> 20} MiB for a file of {size} bytes")


def check_numbers(model, path):
    """Every word of an f32 output is a word of the tensor it comes from: none from beside it, from a free page or from
    another tensor."""
    raw = path.read_bytes()
    written = formats.read_gguf(raw) if path.suffix == ".gguf" else formats.read_safetensors(raw)
    words = {}
    for t in model.tensors:
        if isinstance(t.name, str):
            words[t.name] = {t.data[i:i + 4] for i in range(0, len(t.data), 4)}
    # By the name that the other format has for it.
    there = {seeds.gguf_name(name): name for name in words} | {seeds.gguf_name(t.name): t.name for t in written}
    everywhere = set().union(*(some for name, some in words.items() if not name.startswith("unused")))
    for t in written:
        if t.dtype != "F32" or t.name == "rope_freqs.weight":
            continue
        names = (t.name, there.get(t.name), seeds.gguf_name(t.name))
        allowed = next((words[name] for name in names if name in words), everywhere)
        for i in range(0, len(t.data), 4):
            if t.data[i:i + 4] not in allowed:
                raise Failure(f"{path.name}: {t.name} holds {t.data[i:i + 4].hex()} at {i // 4}, which no tensor had")


def only_known_bytes(model):
    """Whether the tensors in memory are those in the file, so that outputs can be compared."""
    return not any(name.startswith("model.") for name in model.files) and all(
        t.dtype == "F32" for t in model.tensors) and len({t.name for t in model.tensors}) == len(model.tensors)


def try_one(runner, model, folder):
    """Runs all commands on the model; gives the exit codes."""
    path = mutate.write(model, folder / "in")
    size = sum(f.stat().st_size for f in (folder / "in").iterdir())
    codes = {}
    codes["info"], _, _ = runner.run(["info", str(path), "--tensors"], size)
    codes["generate"], _, _ = runner.run(["generate", str(path), "abc", "-n", "3", "-q"], size)
    codes["embed"], _, _ = runner.run(["embed", str(path), "abc", "-q"], size)
    for target in ("out.gguf", "out"):
        out = folder / "to" / target
        out.parent.mkdir(exist_ok=True)
        code, _, _ = runner.run(["convert", str(path), str(out)], size)
        codes["convert " + target] = code
        left = sorted(os.listdir(out.parent))
        if left != ([target] if code == 0 else []):
            raise Failure(f"convert: exit code {code}, and it left {left}")
        if code == 0:
            weights = out if target == "out.gguf" else out / "model.safetensors"
            if only_known_bytes(model):
                check_numbers(model, weights)
            # What was written is a model again.
            again, _, err = runner.run(["info", str(out)], size)
            if again != 0:
                raise Failure(f"convert: wrote what info refuses: {err[-500:]}")
        shutil.rmtree(out.parent)
    if codes["info"] != 0 and any(code == 0 for code in codes.values()):
        raise Failure(f"info refuses what another command takes: {codes}")
    return codes


def numbered(n, seed):
    """File number n: (what was done to it, the model)."""
    if (made := handmade.make(n)) is not None:
        return made
    source = random.Random(f"{seed}/{n}")
    found = seeds.seeds()
    name = list(found)[n % len(found)]
    model = found[name].copy()
    return f"{name}: {mutate.mutate(source, model)}", model


def check_seeds(runner, folder):
    """The seeds themselves work: a suite of files that are all refused at the door would show nothing."""
    for name, model in seeds.seeds().items():
        codes = try_one(runner, model, folder / name)
        wanted = {"info": 0, "embed" if name == "bert" else "generate": 0}
        if name.endswith(".gguf"):
            wanted["convert out"] = 0
        elif name not in ("bert", "gpt2"):
            wanted |= {"convert out": 0, "convert out.gguf": 0}
        for command, code in wanted.items():
            if codes[command] != code:
                raise Failure(f"the seed {name} does not work: {codes}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="attend")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--keep", type=pathlib.Path, help="keep the files that failed there")
    a = parser.parse_args()
    program = a.build if a.build.is_file() else a.build / "bin" / "attend"
    runner = Runner(program, a.jobs)
    failures, codes = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        check_seeds(runner, scratch)

        def one(n):
            what, model = numbered(n, a.seed)
            folder = scratch / f"n{n}"
            try:
                return n, what, try_one(runner, model, folder), None
            except Failure as failure:
                if a.keep:
                    shutil.copytree(folder / "in", a.keep / str(n), dirs_exist_ok=True)
                return n, what, {}, str(failure)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            for n, what, got, failure in pool.map(one, range(a.first, a.first + a.count)):
                for command, code in got.items():
                    codes[command, code] = codes.get((command, code), 0) + 1
                if failure:
                    failures.append(n)
                    print(f"FAILED {n}: {what[:300]}\n  {failure}\n", flush=True)
    runner.close()
    for (command, code), times in sorted(codes.items()):
        print(f"{command:<18} exit {code}: {times}")
    print(f"{a.count} files, {len(failures)} failed{': ' + str(failures) if failures else ''}"
          + ("" if runner.sanitized else f"; most memory beyond the file {runner.peak >> 20} MiB"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
