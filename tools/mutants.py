#!/usr/bin/env python3
"""Plants bugs (mutants) in a copy of the tree, one at a time, and reports those that no test notices.

usage: mutants.py [options] --base COMMIT                the lines that differ from a commit
       mutants.py [options] FILE[:FIRST[-LAST]]...       all lines of files, or some
       mutants.py [options] --list FILE                  mutants that a person wrote (see below)

tools/mutants.toml says what is built and which tests run for a file. The copy, its build folder and the log are in
build-mutants/; the working tree is not touched. A mutant that the log has a verdict of is not run again.

A list names a file, then lines of it (their text without indentation, never their number) and what replaces them:
    src/ops/rope_frequencies.cpp
    - high = std::min(high, R - 1);
    + high = std::min(high, R);
An empty line ends a mutant, more of the same file may follow. Lines that begin with # are comments.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib

KILLED, SURVIVED, EQUIVALENT, NOT_BUILT = "killed", "survived", "equivalent", "does not compile"
SUFFIXES = {".cpp", ".hpp", ".inl", ".c", ".h", ".py", ".js"}
# Each of a pair is replaced by the other: operators between two spaces, functions, words.
OPERATORS = [("<", "<="), (">", ">="), ("==", "!="), ("===", "!=="), ("&&", "||"), ("and", "or"), ("+", "-"), ("+=", "-=")]
FUNCTIONS = [("min", "max"), ("floor", "ceil"), ("front", "back"), ("lower_bound", "upper_bound"), ("find", "rfind"),
             ("any_of", "all_of"), ("any", "all")]
WORDS = [("true", "false"), ("True", "False"), ("continue", "break")]


RULES = [(f"{a} to {b}", pattern.format(re.escape(a)), b)
         for pairs, pattern in ((OPERATORS, r"(?<=\S ){}(?= \S)"), (FUNCTIONS, r"\b{}(?=\()"), (WORDS, r"\b{}\b"),
                                ([("first", "second")], r"(?<=\.){}\b"))
         for pair in pairs for a, b in (pair, pair[::-1])]
RULES += [
    ("sum to last", r"(?<=\S )\+=(?= \S)", "="),
    ("sort not stable", r"\bstable_sort(?=\()", "sort"),
    ("off by one", r" [+-] 1\b(?![.\w])", ""),
    ("sign", r"(?:(?<=[(\[])|(?<=[=,?:] )|(?<=return ))-(?=[\w(])", ""),
    ("condition negated", r"(?:(?<=[( ])!(?=[\w(])|\bnot )", ""),
    ("arguments swapped", r"(?<=[( ])([\w.]+), ([\w.]+)(?=[,)])", r"\2, \1"),
    ("constant", r"(?<![\w.'])\d+(?![\w.'])", lambda match: str(int(match.group()) + 1)),
]
NO_CODE = re.compile(r"\s*(#|using\b|namespace\b|template\b|static_assert\b|import\b|from\b|$)")
CALL_OR_ASSIGNMENT = re.compile(r"(\+\+|--)?[\w.:\[\]>()*-]+(\+\+|--)?( [-+*/|&^%]?= .*|\(.*\))?;?$")
NOT_REMOVED = re.compile(r"(return|throw|else|case|default|break|public|private|protected|pass|raise)\b|.*:$")


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int  # of the first line that is replaced, from 0; not part of the key
    old: tuple
    new: tuple
    kind: str
    nth: int = 0  # of the places in the file that have this text

    def key(self):
        parts = (self.file, *self.old, "->", *self.new, str(self.nth))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def __str__(self):
        lines = [f"\n    - {line.strip()}" for line in self.old] + [f"\n    + {line.strip()}" for line in self.new]
        return f"{self.file}:{self.line + 1}: {self.kind}" + "".join(lines)


# --- making mutants -----------------------------------------------------------------------------------------------------


def code_of(line, python):
    """The line with blanks in place of comments and what is in quotes."""
    quoted = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|`[^`]*`'
    comment = r"#.*" if python else r"//.*|/\*.*?\*/"
    return re.sub(f"({quoted})|{comment}", lambda match: " " * len(match.group()), line)


def closing(text, at):
    """Where the parenthesis that opens at `at` closes; None if on another line."""
    depth = 0
    for n in range(at, len(text)):
        depth += (text[n] == "(") - (text[n] == ")")
        if depth == 0:
            return n
    return None


def variants_of(line, before, python):
    """What a line may be replaced with, as (kind, text). `before`: the code of the line of code before."""
    code = code_of(line, python)
    if NO_CODE.match(code):
        return
    for kind, pattern, to in RULES:
        for match in re.finditer(pattern, code):
            replaced = match.expand(to) if isinstance(to, str) else to(match)
            if replaced != match.group():
                yield kind, line[:match.start()] + replaced + line[match.end():]
    condition = re.search(r"\bif (.*):$" if python else r"\bif \(", code)
    if condition and python:
        yield "condition never true", line[:condition.start(1)] + "False" + line[condition.end(1):]
    elif condition and (end := closing(code, condition.end() - 1)):
        start = condition.end()
        yield "condition never true", line[:start] + "false && (" + line[start:end] + ")" + line[end:]
    statement = code.strip()
    starts = python or not before or before[-1] in ";{}:"
    whole = statement.endswith(";") or (python and statement.count("(") == statement.count(")"))
    if starts and whole and CALL_OR_ASSIGNMENT.match(statement) and not NOT_REMOVED.match(statement):
        yield "statement removed", line[:-len(line.lstrip())] + ("pass" if python else ";")


def mutants_of(root, file, wanted):
    """All mutants of a file's lines; wanted: their numbers from 0, None for all."""
    lines = (root / file).read_text().split("\n")
    python, inside, before, seen = file.endswith(".py"), False, "", {}
    for n, line in enumerate(lines):
        skipped = inside
        if python and line.count('"""') % 2:
            inside, skipped = not inside, True
        elif not python and (("/*" in line and "*/" not in line) or (inside and "*/" in line)):
            inside, skipped = not inside, True
        if skipped or line.lstrip().startswith('"""'):
            continue
        nth = seen[line] = seen.get(line, -1) + 1
        if wanted is None or n in wanted:
            for new, kind in {new: kind for kind, new in variants_of(line, before, python)}.items():
                yield Mutant(file, n, (line,), (new,), kind, nth)
        before = code_of(line, python).strip() or before


def read_list(root, path):
    """The mutants of a list. An entry that is not in the tree in exactly one place is an error."""
    file, old, new, found = None, [], [], []

    def finish():
        if not old and not new:
            return
        if file is None or not old:
            sys.exit(f'error: {path}: "{(new or old)[0]}" has no file or no "- " line before it')
        lines = (root / file).read_text().split("\n")
        texts = [line.strip() for line in lines]
        places = [n for n in range(len(texts)) if texts[n:n + len(old)] == old]
        if len(places) != 1:
            sys.exit(f'error: {path}: "{old[0]}" is in {len(places)} places of {file}, expected 1: add a line to it')
        here = tuple(lines[places[0]:places[0] + len(old)])
        indent = here[0][:len(here[0]) - len(here[0].lstrip())]
        found.append(Mutant(file, places[0], here, tuple(indent + line for line in new), "from the list"))
        old.clear(), new.clear()

    for line in [*pathlib.Path(path).read_text().split("\n"), ""]:
        if line.startswith("- "):
            if new:
                finish()
            old.append(line[2:].strip())
        elif line.startswith("+"):
            new.append(line[2:])
        elif not line.startswith("#"):
            finish()
            file = line.strip() or file
    return found


def changed_lines(root, base):
    """The lines of each file that differ from a commit, numbered from 0."""
    diff = subprocess.run(["git", "diff", "-U0", "--no-renames", base, "--"], cwd=root, capture_output=True, text=True)
    if diff.returncode:
        sys.exit(f"error: git diff {base}: {diff.stderr.strip()}")
    lines, file = {}, None
    for line in diff.stdout.splitlines():
        if line.startswith("+++ "):
            file = line[6:] if line.startswith("+++ b/") else None
        elif file and (hunk := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line)):
            first, count = int(hunk[1]) - 1, int(hunk[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + count))
    return lines


def requested_lines(root, words):
    lines = {}
    for word in words:
        file, _, span = word.partition(":")
        first, _, last = span.partition("-")
        if not (root / file).is_file():
            sys.exit(f"error: there is no file {root / file}")
        lines[file] = set(range(int(first) - 1, int(last or first))) if span else None
    return lines


# --- running them -------------------------------------------------------------------------------------------------------


class Project:
    """The copy of the tree in which mutants are planted."""

    def __init__(self, root, quick):
        self.root, self.place, self.tree, self.quick = root, root / "build-mutants", root / "build-mutants/tree", quick
        self.place.mkdir(exist_ok=True)
        self.lock = open(self.place / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"error: another mutants.py is at work in {self.place}")
        self.config = tomllib.loads((root / "tools/mutants.toml").read_text())
        self.build_folder = self.tree / self.config["folder"]
        self.programs = {}  # hashes of the targets without a mutant
        self.environment = {**os.environ, "CCACHE_BASEDIR": str(self.tree), "CCACHE_NOHASHDIR": "1"}

    def copy(self):
        """Brings the copy to the state of the working tree; only files that differ are written."""
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=self.root, capture_output=True,
                                text=True, check=True).stdout
        files = {name for name in listed.split("\0") if name and (self.root / name).is_file()}
        manifest = self.place / "files"
        for name in set(manifest.read_text().split("\n") if manifest.exists() else []) - files:
            (self.tree / name).unlink(missing_ok=True)
        for name in files:
            source, copy = self.root / name, self.tree / name
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)
        manifest.write_text("\n".join(sorted(files)))
        state = hashlib.sha256(b"".join(hashlib.sha256((self.tree / name).read_bytes()).digest() for name in sorted(files)))
        # What each command took on this tree without a mutant, in seconds.
        self.passed = self.place / f"passed-{state.hexdigest()[:16]}.json"
        self.seconds = json.loads(self.passed.read_text()) if self.passed.exists() else {}
        if not (self.build_folder / "build.ninja").exists():
            self.build_folder.mkdir(parents=True, exist_ok=True)
            self.must_pass(self.config["configure"])

    def module_of(self, file):
        return next((module for module in self.config["module"] if file.startswith(module["path"])), None)

    def suites_of(self, file):
        """The suites of the C++ tests that are about the file: by their name or by a header that both include."""
        stem, text = pathlib.Path(file).stem, (self.root / file).read_text()
        word = stem.split("_")[0]
        for same in (lambda name: stem in name or stem.startswith(name), lambda name: word in name.split("_")):
            headers = [name for name in re.findall(r'#include "([^"]+)"', text) if same(pathlib.Path(name).stem)]
            suites = set()
            for test in self.root.glob("tests/**/*_test.cpp"):
                code = test.read_text()
                if same(test.stem.removesuffix("_test")) or any(f'#include "{header}"' in code for header in headers):
                    suites.update(re.findall(r"^TEST(?:_[FP])?\((\w+)", code, re.MULTILINE))
            if suites:
                break
        return ":".join(f"{suite}.*:*/{suite}.*" for suite in sorted(suites))

    def commands_of(self, file):
        suites, commands = self.suites_of(file), self.module_of(file)["tests"]
        chosen = [command for command in commands if suites or "{suites}" not in command]
        for command in chosen[:1] if self.quick else chosen:
            yield command.format(suites=suites, build=self.config["folder"])

    def run(self, command, seconds=None):
        """The exit status and the output; a status of None where the time was over."""
        def limits():
            if seconds is not None:
                resource.setrlimit(resource.RLIMIT_AS, (self.config["memory_gib"] << 30,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        with open(self.place / "output", "w+b") as output:
            process = subprocess.Popen(shlex.split(command), cwd=self.tree, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, env=self.environment, preexec_fn=limits,
                                       start_new_session=True)
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:  # also what the command started, and after Ctrl-C
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def must_pass(self, command):
        status, output = self.run(command)
        if status != 0:
            sys.exit(f"{output[-4000:]}\nerror: without a mutant this fails: {command}")

    def hashes(self, targets):
        return [hashlib.sha256((self.build_folder / target).read_bytes()).hexdigest() for target in targets]

    def prepare(self, file):
        """Builds and runs what mutants of this file are compared with, unless that is done: all must pass."""
        module = self.module_of(file)
        commands = [command for command in self.commands_of(file) if command not in self.seconds]
        if module["targets"] and (commands or module["path"] not in self.programs):
            self.must_pass(" ".join([self.config["build"], *module["targets"]]))  # what is there may be a mutant's
            self.programs[module["path"]] = self.hashes(module["targets"])
        for command in commands:
            print(f"    without a mutant: {command}", flush=True)
            started = time.monotonic()
            self.must_pass(command)
            self.seconds[command] = time.monotonic() - started
            self.passed.write_text(json.dumps(self.seconds))

    def verdict_on(self, mutant):
        """What came of a mutant, and the command that noticed it. Needs prepare()."""
        module, path = self.module_of(mutant.file), self.tree / mutant.file
        lines = (original := path.read_text()).split("\n")
        lines[mutant.line:mutant.line + len(mutant.old)] = mutant.new
        try:
            path.write_text("\n".join(lines))
            if module["targets"]:
                if self.run(" ".join([self.config["build"], *module["targets"]]))[0] != 0:
                    return NOT_BUILT, ""
                if self.hashes(module["targets"]) == self.programs[module["path"]]:
                    return EQUIVALENT, ""
            for command in self.commands_of(mutant.file):
                if self.run(command, 5 * self.seconds[command] + self.config["slack_seconds"])[0] != 0:
                    return KILLED, command
            return SURVIVED, ""
        finally:
            path.write_text(original)


def read_log(path):
    """The verdict on each mutant by its key: a line of JSON per mutant that was tried, the last one of a mutant counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("}")]  # else the run was killed while it wrote
    return {entry["key"]: entry["verdict"] for entry in entries}


def run_all(project, mutants, minutes, again):
    """Runs what the log does not know yet, while there is time, and reports all."""
    path, end = project.place / "log.jsonl", time.monotonic() + minutes * 60
    known = read_log(path)
    todo = [mutant for mutant in mutants if known.get(mutant.key()) in ((None, SURVIVED) if again else (None,))]
    for n, mutant in enumerate(todo):
        if time.monotonic() > end:
            break
        project.prepare(mutant.file)
        verdict, by = project.verdict_on(mutant)
        known[mutant.key()] = verdict
        entry = {"key": mutant.key(), "verdict": verdict, "by": by, **dataclasses.asdict(mutant), "line": mutant.line + 1}
        with open(path, "a") as log:
            log.write(json.dumps(entry) + "\n")
        print(f"[{n + 1}/{len(todo)}] {verdict}: {mutant}", flush=True)
    verdicts = [known.get(mutant.key()) for mutant in mutants]
    counts = (f"{verdicts.count(verdict)} {verdict}" for verdict in (KILLED, SURVIVED, EQUIVALENT, NOT_BUILT))
    print(f"\n{', '.join(counts)}, {verdicts.count(None)} not run")
    for mutant in sorted(mutants, key=lambda mutant: (mutant.file, mutant.line)):
        if known.get(mutant.key()) == SURVIVED:
            print(f"survived: {mutant}")
    return 1 if SURVIVED in verdicts else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", metavar="FILE[:FIRST[-LAST]]")
    parser.add_argument("--base", metavar="COMMIT", help="mutate the lines that differ from this commit")
    parser.add_argument("--list", metavar="FILE", help="plant the mutants of this list")
    parser.add_argument("--minutes", type=float, default=60, help="start no mutant after this time (default 60)")
    parser.add_argument("--count", type=int, help="at most so many mutants, drawn from all by the hash of their text")
    parser.add_argument("--quick", action="store_true", help="only the first test command; then --again without it")
    parser.add_argument("--again", action="store_true", help="run those again that survived, after tests were added")
    parser.add_argument("--print", action="store_true", help="print the mutants and run none")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1], help="the tree")
    options = parser.parse_args()
    if [bool(options.files), options.base is not None, options.list is not None].count(True) != 1:
        parser.error("expected one of: files, --base COMMIT, --list FILE")
    root = options.root.resolve()
    project = Project(root, options.quick)
    if options.list:
        mutants = read_list(root, options.list)
    else:
        lines = changed_lines(root, options.base) if options.base else requested_lines(root, options.files)
        mutants = [mutant for file, span in lines.items() if pathlib.Path(file).suffix in SUFFIXES
                   for mutant in mutants_of(root, file, span)]
        mutants.sort(key=Mutant.key)  # a shuffle that stays the same: a longer run contains a shorter one
    mutants = [mutant for mutant in mutants if project.module_of(mutant.file)][:options.count]
    if not mutants:
        sys.exit("error: no line to mutate, expected code in a module of tools/mutants.toml")
    if options.print:
        print("\n".join(map(str, mutants)))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what runs is killed, the copy restored
    project.copy()
    return run_all(project, mutants, options.minutes, options.again)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit("stopped; the next run goes on from here")
