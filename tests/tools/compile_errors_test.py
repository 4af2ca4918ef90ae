#!/usr/bin/env python3
"""Mistakes against the C++ headers that must not compile, and what the compiler says about them.

usage: compile_errors_test.py COMPILER
"""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = "c++"
PROGRAM = """#include "attend/mask.hpp"
#include "attend/tensor.hpp"
using namespace attend;
int main() {{
  float data[32] = {{}};
  (void)data;
  {}
}}
"""


def compiled(statement):
    """Whether it compiles, and what the compiler says."""
    run = subprocess.run([COMPILER, "-std=c++20", f"-I{ROOT / 'include'}", "-fsyntax-only", "-x", "c++", "-"],
                         input=PROGRAM.format(statement), text=True, capture_output=True, timeout=120, check=False)
    return run.returncode == 0, run.stderr


class CompileErrors(unittest.TestCase):
    def refused(self, wrong, right, text):
        self.assertEqual(compiled(right), (True, ""))
        ok, said = compiled(wrong)
        self.assertFalse(ok, f"{wrong} compiles")
        self.assertIn(text, said)

    def test_a_window_of_one_side(self):
        self.refused("(void)window(1);", "(void)window(1, 0);", "window needs both sides: window(left, 0)")

    def test_shapes_and_strides_of_fewer_than_four(self):
        self.refused("Tensor x(DType::f32, {4, 8});", "Tensor x(DType::f32, {1, 1, 4, 8});", "Shape")
        self.refused("View x{DType::f32, data, {4, 8}};", "View x{DType::f32, data, {1, 1, 4, 8}};", "Shape")
        self.refused("View x{DType::f32, data, {1, 1, 4, 8}, {8, 1}};",
                     "View x{DType::f32, data, {1, 1, 4, 8}, {32, 32, 8, 1}};", "Strides")
        self.refused("Shape x = Strides();", "Shape x = Shape();", "Strides")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        COMPILER = sys.argv.pop(1)
    unittest.main()
