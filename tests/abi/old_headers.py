#!/usr/bin/env python3
"""Writes C headers as an older version would have had them: every struct that opens with its size lacks its last field.

usage: old_headers.py <folder of the headers> <folder to write to>
The headers go to include/attend/ there; beside it goes structs.h, which lists those structs for the programs of this folder.
"""

import pathlib
import re
import sys

HEADERS = ("attend.h", "attend_cuda.h", "attend_variants.h")
STRUCT = re.compile(r"(typedef struct attend_(\w+) \{)(\n  size_t struct_size;.*?)(\n\} attend_\2;)", re.DOTALL)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def without_last_field(body):
    """"int64_t a, b;" loses b; a declaration of one field goes whole."""
    declarations = [text.strip() for text in COMMENT.sub("", body).split(";") if text.strip()]
    # A pointer to a function has commas of its own.
    names = declarations[-1].rpartition(",")[0] if "(" not in declarations[-1] else ""
    declarations[-1:] = [names] if names else []
    return "".join(f"\n  {text};" for text in declarations)


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    (target / "include/attend").mkdir(parents=True, exist_ok=True)
    listed = []
    for name in HEADERS:
        text = (source / name).read_text()
        listed += [match[2] for match in STRUCT.finditer(text)]
        old = STRUCT.sub(lambda match: match[1] + without_last_field(match[3]) + match[4], text)
        if text.count("size_t struct_size;") != len(STRUCT.findall(text)):
            sys.exit(f"{name}: a struct with a struct_size was not recognised, expected it as the first field")
        (target / "include/attend" / name).write_text(old)
    lines = "".join(f" \\\n  X({name})" for name in listed)
    (target / "structs.h").write_text(f"/* Written by old_headers.py. */\n#define ATTEND_STRUCTS(X){lines}\n")


main()
