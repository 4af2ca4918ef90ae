#!/usr/bin/env python3
"""Checks that the shared libraries export what the headers declare with ATTEND_API, and nothing else.

Besides, libattend exports to libattend_ring what src/ declares with ATTEND_FOR_RING.

usage: check_exports.py <root of the repository> <shared library>...
"""

import pathlib
import re
import subprocess
import sys

INIT = re.compile(r"^ATTEND_INIT\((\w+)\)", re.M)  # declares NAME_init_sized
OURS = re.compile(r"\battend(::|_)")


def declared(folder, mark):
    """The names of the functions and of the classes that the headers below a folder mark."""
    functions, classes = set(), set()
    for header in sorted(folder.rglob("*.h*")):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header.read_text(), flags=re.S)
        text = re.sub(r"#define([^\n\\]|\\.)*", "", text, flags=re.S)
        classes |= set(re.findall(rf"\b(?:class|struct)\s+{mark}\s+(\w+)", text))
        text = re.sub(rf"\b(class|struct)\s+{mark}\b", "", text)
        functions |= set(re.findall(rf"\b{mark}\s+[^;{{}}()]*?(operator[^\s(\w]+|\w+)\s*\(", text))
        if mark == "ATTEND_API":
            functions |= {name + "_init_sized" for name in INIT.findall(text)}
    return functions, classes


def exported(library):
    lines = subprocess.run(["nm", "--dynamic", "--defined-only", "--demangle", library], check=True, text=True,
                           capture_output=True).stdout.splitlines()
    return [line.split(" ", 2)[2] for line in lines]


def scope_of(symbol):
    """The parts of a symbol's name: attend::Tensor::data() const -> [Tensor, data]; attend_softmax -> [attend_softmax]."""
    name = re.sub(r"^(vtable|typeinfo|typeinfo name|guard variable|VTT|non-virtual thunk) (for|to) ", "", symbol)
    name = re.sub(r"\[abi:\w+\]", "", name)
    name = re.split(r"(?<!operator)\(", name)[0].split(" ")[-1]
    while "<" in name and "operator<" not in name:
        shorter = re.sub(r"<[^<>]*>", "", name)
        if shorter == name:
            break
        name = shorter
    return [part for part in name.split("::") if part not in ("attend", "llm", "abi")]


def main():
    root, libraries = pathlib.Path(sys.argv[1]), sys.argv[2:]
    functions, classes = declared(root / "include", "ATTEND_API")
    for_ring = declared(root / "src", "ATTEND_FOR_RING")
    functions |= for_ring[0]
    classes |= for_ring[1]
    errors, seen = [], set()
    for library in libraries:
        for symbol in exported(library):
            parts = scope_of(symbol)
            known = OURS.search(symbol) and parts and (parts[0] in classes or (len(parts) == 1 and parts[0] in functions)
                                                       or parts[-1] in functions)
            if not known:
                errors.append(f"{pathlib.Path(library).name}: exports '{symbol}', which no header declares with ATTEND_API")
            seen.update(parts)
    for name in sorted(functions - seen):  # a class may be inline throughout, and have no symbol
        errors.append(f"'{name}' is declared with ATTEND_API, and none of the libraries exports it")
    for error in errors:
        print(error)
    print(f"{len(functions)} functions and {len(classes)} classes declared, {len(errors)} errors")
    return 1 if errors or not functions else 0


if __name__ == "__main__":
    sys.exit(main())
