#!/usr/bin/env python3
"""Every library whose headers the shipped sources include is in THIRD_PARTY_NOTICES, or is linked dynamically."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHIPPED = ("include", "src", "llm", "io", "draw", "labs", "apps", "python")
# The beginning of an include -> its name in the notices; None: linked dynamically, or a header without code.
LIBRARIES = {"CLI/": "CLI11", "boost/": "Boost", "fmt/": "{fmt}", "nlohmann/": "JSON for Modern C++",
             "nanobind/": "nanobind", "utf8proc.h": "utf8proc", "zlib.h": "zlib",
             "cairo": None, "pango/": None, "histedit.h": None, "mpi.h": None, "cuda": None, "vector_types.h": None}
# Headers of the C and C++ standard libraries, the system and the compiler.
SYSTEM = re.compile(r"[a-z_]+|(sys|linux|netinet|arpa)/\w+\.h|(arm_neon|cpuid|dlfcn|fcntl|immintrin|langinfo|malloc|netdb|"
                    r"poll|pthread|sched|signal|spawn|stddef|stdint|stdio|termios|time|unistd)\.h")
INCLUDE = re.compile(r"^\s*#\s*include <([^>]+)>", re.M)
NOTICES = (ROOT / "THIRD_PARTY_NOTICES").read_text()


def included():
    for folder in SHIPPED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp", ".h", ".inl", ".cu", ".cuh"):
                for name in INCLUDE.findall(path.read_text()):
                    yield path.relative_to(ROOT), name


class Notices(unittest.TestCase):
    def test_every_library_that_is_included_is_known(self):
        for path, name in included():
            if name.startswith("attend/") or SYSTEM.fullmatch(name):
                continue
            self.assertTrue(name.startswith(tuple(LIBRARIES)),
                            f"{path} includes <{name}>: add its library to LIBRARIES here and to THIRD_PARTY_NOTICES")

    def test_every_library_has_a_row_and_its_copyright(self):
        for name in (*filter(None, LIBRARIES.values()), "robin-map", "Unicode character data"):
            self.assertRegex(NOTICES, rf"(?m)^  {re.escape(name)} .*(MIT|BSD|BSL|Unicode|Zlib)", f"{name} has no row")
            self.assertRegex(NOTICES, rf"(?m)^{re.escape(name)}, http.*\n  Copyright", f"{name} has no copyright")

    def test_every_artifact_has_the_notices(self):
        for path, text in (("cmake/install.cmake", "THIRD_PARTY_NOTICES DESTINATION ${CMAKE_INSTALL_DOCDIR}"),
                           ("python/CMakeLists.txt", "THIRD_PARTY_NOTICES DESTINATION licenses COMPONENT python"),
                           ("cmake/debian/copyright", "THIRD_PARTY_NOTICES")):
            self.assertIn(text, (ROOT / path).read_text(), path)


if __name__ == "__main__":
    unittest.main()
