#!/usr/bin/env python3
"""Checks from the #include lines that each module uses only what it may (the table in ARCHITECTURE.md).

usage: check_layers.py [root of the repository]
"""

import pathlib
import re
import sys

# module -> the modules it may include besides itself. A module is a folder of src/, or a folder at the root.
MAY_USE = {
    "include": set(),
    "base": {"include"},
    "core": {"include", "base"},
    "reference": {"include", "base"},
    "cpu": {"include", "base", "core"},
    "ops": {"include", "base", "core", "reference", "cpu"},
    "nn": {"include", "base", "core", "reference", "ops"},
    "variants": {"include", "base", "core", "reference", "cpu", "ops"},
    "lens": {"include", "base", "core", "reference", "ops"},
    "cuda": {"include", "base", "core", "ops"},
    "no_cuda": {"include"},
    "abi": {"include", "base"},
    "ring": {"include", "base", "ops", "abi"},
    "io": {"include", "base"},
    "draw": {"include", "base"},
    "llm": {"include", "base", "io"},
    "labs": {"include", "base", "io", "draw", "llm"},
    "apps": {"include", "io", "draw", "llm", "labs"},
    "python": {"include"},
    "examples": {"include"},
    "tests": {"include", "base", "core", "reference", "cpu", "ops", "variants", "lens", "cuda", "abi", "io", "draw",
              "llm", "labs", "apps"},
    "bench": {"include", "base", "core", "reference", "cpu", "ops", "io", "draw", "llm", "tests"},
}
# These see the kernel table (src/cpu/*.hpp), not the kernels.
ONLY_KERNEL_TABLE = {"ops", "variants"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
INTRINSICS = re.compile(r"\b_mm\d*_\w+\s*\(|\b__m(128|256|512)|[<\"]\w*(intrin|neon)\.h[>\"]")
MAY_USE_INTRINSICS = {"base", "cpu"}
SUFFIXES = {".h", ".hpp", ".inl", ".c", ".cpp", ".cu", ".cuh"}
# C headers that attend.h, being C, has to use.
C_STANDARD = {"stddef.h", "stdint.h"}


def module_of(path):
    """path is relative to the root: src/ops/rope.cpp -> ops, apps/cli/main.cpp -> apps."""
    return path.parts[1] if path.parts[0] == "src" else path.parts[0]


def resolve(root, path, name):
    """The file a quoted include means, relative to the root, or None."""
    for folder in (path.parent, pathlib.Path("src"), pathlib.Path("include"), pathlib.Path("tests"), pathlib.Path(".")):
        found = (root / folder / name).resolve()
        if found.is_file() and found.is_relative_to(root):
            return found.relative_to(root)
    return None


def broken_rule(root, path, angle, name):
    """What is wrong with `path` including `name`, or None."""
    module = module_of(path)
    if angle:
        if name.startswith("attend/"):
            return f'<{name}>: write "{name}"'
        if module == "include" and ("." in name or "/" in name) and name not in C_STANDARD:
            return f"<{name}>: public headers may include std and attend/ alone"
        return None
    target = resolve(root, path, name)
    if target is None:
        return f'"{name}": no such file in the repository'
    other = module_of(target)
    if other not in MAY_USE[module] | {module}:
        return f'"{name}": {module} may use {", ".join(sorted(MAY_USE[module])) or "std"}, not {other}'
    if module == "include" and not name.startswith("attend/"):
        return f'"{name}": public headers include each other as attend/...'
    if module in ONLY_KERNEL_TABLE and other == "cpu" and target.parent != pathlib.Path("src/cpu"):
        return f'"{name}": {module} may use the kernel table (src/cpu/*.hpp), not the kernels'
    return None


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = [
        path.relative_to(root)
        for top in ("include", "src", "io", "draw", "llm", "labs", "apps", "python", "examples", "tests", "bench")
        for path in sorted((root / top).rglob("*"))
        if path.suffix in SUFFIXES
    ]
    errors = []
    for path in files:
        if module_of(path) not in MAY_USE:
            errors.append(f"{path}:1: the module {module_of(path)} is not in the table")
            continue
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            include = INCLUDE.match(line)
            if include:
                error = broken_rule(root, path, include[1] == "<", include[2])
                if error:
                    errors.append(f"{path}:{number}: {error}")
            if path.parts[0] == "src" and module_of(path) not in MAY_USE_INTRINSICS and INTRINSICS.search(line):
                errors.append(f"{path}:{number}: {module_of(path)} may not contain intrinsics")
    for error in errors:
        print(error)
    if not files:
        print(f"no sources under {root}: nothing was checked")
    print(f"{len(files)} files, {len(errors)} broken rules")
    return 1 if errors or not files else 0


if __name__ == "__main__":
    sys.exit(main())
