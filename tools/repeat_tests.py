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


def runs_of(build, name, count):
    """The commands that run a test so often: ctest repeats by itself, and pytest is called again."""
    if not name.split("::")[0].endswith(".py"):
        return [ctest(build, "-Q", "--output-on-failure", "-R", f"^{re.escape(name)}$", "--repeat", f"until-fail:{count}")]
    environments = {"tests/explorer/": "browser", "tests/python/peers/": "peers"}
    environment = next((value for folder, value in environments.items() if name.startswith(folder)), "venv")
    return count * [[str(build / environment / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", name]]


def passes(build, name, count):
    """Whether a test passes so often; the first failure ends it and is printed."""
    for command in runs_of(build, name, count):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print(done.stdout[-8000:], flush=True)
            return False
    return True


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
    """How often a test was to run, and whether it always passed."""
    started = time.monotonic()
    passed = passes(build, name, 1)
    count = short if time.monotonic() - started < SHORT_SECONDS else long
    passed = passed and passes(build, name, count - count // 3 - 1)
    if passed and count >= 3:
        with busy():
            passed = passes(build, name, count // 3)
    return count, passed


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
        count, passed = repeat(build, name, options.short, options.long)
        print(f"{name}: {f'passed {count} times' if passed else 'FAILED'}", flush=True)
        bad += [] if passed else [name]
    print(f"{len(names)} tests, {len(bad)} of them failed" + "".join(f"\n    {name}" for name in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
