#!/usr/bin/env python3
"""Checks what ./dev wheel made: the sdist holds the sources and nothing else, the wheel runs elsewhere.

usage: check_wheel.py SDIST WHEEL FOLDER...    no file of the wheel may name one of the folders
"""

import io
import pathlib
import re
import sys
import tarfile
import tempfile
import zipfile

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

# Files and folders at the sdist's root: what there may be, and of these what there must be.
MAY_HOLD = {"CMakeLists.txt", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "THIRD_PARTY_NOTICES", "pyproject.toml",
            "apps", "cmake", "include", "io", "llm", "python", "src"}
MUST_HOLD = MAY_HOLD - {"CHANGELOG.md", "CITATION.cff", "README.md"}
NOTICES = "attend/licenses/THIRD_PARTY_NOTICES"
LARGEST_SDIST = 5 << 20  # the model inside is most of it
# The only libraries that every Linux with glibc has.
MAY_NEED = re.compile(r"lib(c|m|gcc_s|pthread|dl|rt)\.so\.\d+|ld-linux[-\w]*\.so\.\d")


def check_sdist(path):
    with tarfile.open(path) as archive:
        names = [pathlib.PurePath(name) for name in archive.getnames()]
    roots = {name.parts[1] for name in names if len(name.parts) > 1}
    if roots - MAY_HOLD:
        yield f"{path.name} holds {sorted(roots - MAY_HOLD)}, expected nothing but {sorted(MAY_HOLD)}: see sdist.exclude"
    if MUST_HOLD - roots:
        yield f"{path.name} lacks {sorted(MUST_HOLD - roots)}: see sdist.exclude"
    others = [str(name) for name in names if name.parts[1:2] == ("apps",) and name.parts[2:3] not in ((), ("explorer",))]
    if others:
        yield f"{path.name} holds {others[0]}, expected of apps the explorer's page alone: see sdist.include"
    if path.stat().st_size > LARGEST_SDIST:
        yield f"{path.name} has {path.stat().st_size} bytes, expected at most {LARGEST_SDIST}"


def check_module(name, data):
    module = ELFFile(io.BytesIO(data))
    for tag in (tag for section in module.iter_sections() if isinstance(section, DynamicSection)
                for tag in section.iter_tags()):
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            yield f"{name} looks for libraries in a place of its own"
        if tag.entry.d_tag == "DT_NEEDED" and not MAY_NEED.fullmatch(tag.needed):
            yield f"{name} needs {tag.needed}, which not every system has"
    symbols = module.get_section_by_name(".dynsym").iter_symbols()
    shown = [s.name for s in symbols if s.entry.st_shndx != "SHN_UNDEF" and s.entry.st_info.bind != "STB_LOCAL"]
    if shown != ["PyInit__core"]:
        yield f"{name} shows {len(shown)} symbols as {shown[:3]}, expected PyInit__core alone: others would be linked to them"


def check_wheel(path, folders):
    if "manylinux" not in path.name:
        yield f"{path.name} is for this machine alone, expected a manylinux wheel"
    with zipfile.ZipFile(path) as archive:
        if NOTICES not in archive.namelist():
            yield f"{path.name} lacks {NOTICES}: the licences of what is linked in"
        for name in archive.namelist():
            data = archive.read(name)
            if not re.match(r"attend/|attend_engine-[\d.]+\.dist-info/", name):
                yield f"{path.name} holds {name}, expected the package alone"
            for folder in folders:
                if folder.encode() in data:
                    yield f"{name} names {folder}, a folder of the machine that built it"
            if ".so" in pathlib.PurePath(name).suffixes:
                yield from check_module(name, data)


def main(sdist, wheel, *folders):
    folders = [*folders, f"{tempfile.gettempdir()}/pip-"]  # where pip builds, with nanobind beside it
    problems = [*check_sdist(pathlib.Path(sdist)), *check_wheel(pathlib.Path(wheel), folders)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
