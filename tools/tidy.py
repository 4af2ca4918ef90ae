#!/usr/bin/env python3
"""Runs clang-tidy over what a build folder compiles of src/, llm/ and apps/. A file that passed is not looked at again until
it, something it includes, its flags or .clang-tidy change.

usage: tidy.py <build folder> <clang-tidy> <jobs>
"""

import concurrent.futures
import hashlib
import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "llm", "apps")


def key_of(command, fixed):
    """A hash of all that the verdict depends on: the text with its includes and comments (NOLINT is one), and the flags."""
    arguments = [word for word in shlex.split(command["command"])]
    compiler = next(n for n, word in enumerate(arguments) if "clang" in word or word.endswith("++"))  # behind ccache
    arguments = arguments[compiler:]
    if "-o" in arguments:
        at = arguments.index("-o")
        del arguments[at:at + 2]
    text = subprocess.run([*arguments, "-E", "-C"], cwd=command["directory"], capture_output=True, check=True).stdout
    return hashlib.sha256(fixed + "\0".join(arguments).encode() + b"\0" + text).hexdigest()


def look_at(command, build, tidy, fixed):
    """What clang-tidy says of a file; empty when it has nothing to say."""
    stamp = build / "tidy" / key_of(command, fixed)
    if stamp.exists():
        return ""
    run = subprocess.run([tidy, "-p", build, "--quiet", command["file"]], capture_output=True, text=True)
    if run.returncode == 0:
        stamp.touch()
        return ""
    return run.stdout or run.stderr


def main():
    build, tidy, jobs = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3])
    (build / "tidy").mkdir(exist_ok=True)
    commands = {
        command["file"]: command
        for command in json.loads((build / "compile_commands.json").read_text())
        if pathlib.Path(command["file"]).relative_to(ROOT).parts[0] in FOLDERS
    }
    fixed = (ROOT / ".clang-tidy").read_bytes() + subprocess.run([tidy, "--version"], capture_output=True).stdout
    found = set()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        verdicts = [pool.submit(look_at, command, build, tidy, fixed) for command in commands.values()]
        for done, verdict in enumerate(concurrent.futures.as_completed(verdicts), 1):
            for line in verdict.result().splitlines():
                if line not in found:  # a header's finding is told once, not by every file that includes it
                    found.add(line)
                    print(line)
            if done % 25 == 0:
                print(f"    {done} of {len(commands)} files", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
