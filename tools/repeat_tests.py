#!/usr/bin/env python3
"""Repeats the tests that draw from a clock, a secret or a schedule: those that tests/README.md lists.

usage: repeat_tests.py <build folder> [--short 300] [--long 20] [--only TEXT] [--list]

A test that takes less than 2 s runs --short times, another --long times; the last third while a process per CPU keeps the
machine busy. Tests are those of ctest, and files of the Python tests. --only: rows of the list that contain TEXT.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
SHORT_SECONDS = 2


def listed():
    """The first column of the table: patterns of ctest names, and paths of pytest files with an optional ::test."""
    return ROW.findall((ROOT / "tests/README.md").read_text())


def ctest(build, *arguments):
    return ["ctest", "--test-dir", str(build), "--no-tests=error", *arguments]


def names_of(build, pattern):
    """The tests of ctest that a pattern of the list names: `*` is any text."""
    expression = "^" + ".*".join(re.escape(part) for part in pattern.split("*")) + "$"
    shown = subprocess.run(ctest(build, "--show-only=json-v1", "-R", expression), capture_output=True, text=True)
    names = [test["name"] for test in json.loads(shown.stdout)["tests"]] if shown.returncode == 0 else []
    if not names:
        sys.exit(f"error: tests/README.md: {build} has no test {pattern}")
    return names


def command_of(build, name):
    """Runs a test once; what follows `.py` of a Python test is pytest's."""
    if not name.split("::")[0].endswith(".py"):
        return ctest(build, "-Q", "--output-on-failure", "-R", f"^{re.escape(name)}$")
    environment = "browser" if name.startswith("tests/explorer/") else "venv"
    return [str(build / environment / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", name]


def run(command):
    """The seconds a test took; None if it failed, with its output printed."""
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return time.monotonic() - started
    print(done.stdout[-8000:], flush=True)
    return None


@contextlib.contextmanager
def busy():
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def repeat(build, name, short, long):
    """How often a test ran, and how often it failed."""
    command = command_of(build, name)
    seconds = run(command)
    count = short if seconds is not None and seconds < SHORT_SECONDS else long
    failed = int(seconds is None)
    failed += sum(run(command) is None for _ in range(count - count // 3 - 1))
    with busy():
        failed += sum(run(command) is None for _ in range(count // 3))
    return count, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--short", type=int, default=300)
    parser.add_argument("--long", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    options = parser.parse_args()
    build, names = options.build.resolve(), []
    for row in listed():
        if options.only in row:
            names += [row] if row.split("::")[0].endswith(".py") else names_of(build, row)
    if options.list:
        print("\n".join(names))
        return 0
    bad = []
    for name in names:
        count, failed = repeat(build, name, options.short, options.long)
        print(f"{name}: {failed} of {count} failed", flush=True)
        bad += [name] if failed else []
    print(f"{len(names)} tests, {len(bad)} of them failed" + "".join(f"\n    {name}" for name in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
