#!/usr/bin/env python3
"""Finds code that stands in two places: six equal consecutive lines.

Comments, docstrings, blank lines, #include, import and using lines, namespaces and lone brackets do not count, and spaces are
all alike. What is left of a file is a list of lines; no six of them in a row may stand anywhere else. Stubs (.pyi) are left
out: they hold declarations alone.

usage: check_duplicates.py [root of the repository] [--lines N]
"""

import argparse
import collections
import pathlib
import re
import sys

FOLDERS = ("src", "llm", "io", "draw", "labs", "apps", "python")
SUFFIXES = {".h", ".hpp", ".inl", ".c", ".cpp", ".cu", ".cuh", ".js", ".py"}
C_COMMENT = re.compile(r"//.*|/\*.*?\*/")
DOCSTRING = re.compile(r'^ *""".*?"""', re.MULTILINE | re.DOTALL)
NOT_COUNTED = re.compile(r"#|using |namespace |import |from |[\[\](){};,]*(else)?[\[\](){};,:]*$")


def code_lines(path):
    """[(number, text)] of the lines that count."""
    python = path.suffix == ".py"
    text = path.read_text()
    if python:
        text = DOCSTRING.sub(lambda docstring: "\n" * docstring[0].count("\n"), text)
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|  )#.*", "", line) if python else C_COMMENT.sub("", line)
        if line.strip() and not NOT_COUNTED.match(line.strip()):
            lines.append((number, "".join(line.split())))
    return lines


def duplicates(files, size):
    """[(length, [(file, first line, last line), ...])]: runs of equal lines, as long as they go, longest first."""
    places = collections.defaultdict(list)  # `size` lines -> where they stand
    for name, lines in files.items():
        for at in range(len(lines) - size + 1):
            places[tuple(text for _, text in lines[at:at + size])].append((name, at))
    found, inside = [], set()
    for name, lines in files.items():
        for at in range(len(lines) - size + 1):
            for other, there in places[tuple(text for _, text in lines[at:at + size])]:
                if (other, there) <= (name, at) or (name, at, other, there) in inside:
                    continue
                length = size
                while (at + length < len(lines) and there + length < len(files[other])
                       and lines[at + length][1] == files[other][there + length][1]
                       and (name != other or at + length < there)):
                    length += 1
                if name == other and at + length > there:
                    continue  # overlaps itself: equal lines one after the other
                for step in range(length - size + 1):
                    inside.add((name, at + step, other, there + step))
                found.append((length, [(file, files[file][first][0], files[file][first + length - 1][0])
                                       for file, first in ((name, at), (other, there))]))
    return sorted(found, key=lambda run: -run[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=".")
    parser.add_argument("--lines", type=int, default=6)
    arguments = parser.parse_args()
    root = pathlib.Path(arguments.root)
    files = {
        str(path.relative_to(root)): code_lines(path)
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in SUFFIXES
    }
    found = duplicates(files, arguments.lines)
    for length, (one, two) in found:
        print(f"{one[0]}:{one[1]}: these {length} lines also stand at {two[0]}:{two[1]}")
    print(f"{len(files)} files, {len(found)} runs of {arguments.lines} or more lines that stand twice")
    if not files:
        print(f"no sources under {root}: nothing was checked")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
