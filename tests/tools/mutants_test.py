"""What tools/mutants.py makes of a project of one C++ function, one Python function and their tests.

Usage: mutants_test.py COMPILER
"""

import fcntl
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/mutants.py"
COMPILER = ""

CONFIG = """
folder = "build"
configure = "cp rules.ninja build/build.ninja"
build = "ninja -C build"
slack_seconds = 60
memory_gib = 4

[[module]]
path = "code/twice.py"
targets = []
tests = ["python3 tests/twice_test.py"]

[[module]]
path = "code/"
targets = ["limit_test"]
tests = ["{build}/limit_test {suites}", "{build}/limit_test all"]
"""

LIMIT = """// Limits a number.
int limited(int value, int most) {
  // A comment with value < most is not code.
  if (value > most) return most;
  while (value < 0) ++value;
  return value;
}
"""

# Its first command looks at small numbers, its second at large ones too; neither at the limit plus one.
LIMIT_TEST = """#include "code/limit.hpp"
#define TEST(suite, name) static bool suite##name()
TEST(Small, Numbers) { return limited(2, 5) == 2 && limited(-2, 5) == 0; }
int main(int, char** words) {
  const bool all = words[1][0] == 'a';
  return Small_Numbers() && (!all || limited(9, 5) == 5) ? 0 : 1;
}
"""

RULES = """rule compile
  command = {compiler} -std=c++20 -O1 -I.. -o $out $in
build limit_test: compile ../code/limit.cpp ../code/other.cpp ../tests/limit_test.cpp
"""


class MutantsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.files = {
            "tools/mutants.toml": CONFIG,
            "rules.ninja": RULES.format(compiler=COMPILER),
            ".gitignore": "/build*/\n",
            "code/limit.hpp": "int limited(int value, int most);\n",
            "code/limit.cpp": '#include "code/limit.hpp"\n' + LIMIT,
            "code/other.cpp": "int other() {\n  return 1;\n}\n",
            "tests/other_test.cpp": "TEST(Other, Numbers) {}\n",
            "code/twice.py": "def twice(values):\n    if values and len(values) > 1:\n        values = values[:1]\n"
                             "    return 2 * values[0]\n",
            "tests/limit_test.cpp": LIMIT_TEST.replace("suite##name", "suite##_##name"),
            "tests/twice_test.py": "import sys\nsys.path.insert(0, 'code')\nfrom twice import twice\nassert twice([3]) == 6\n",
        }
        for name, text in self.files.items():
            self.write(name, text)
        for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
            subprocess.run(["git", *command], cwd=self.root, check=True)

    def write(self, name, text):
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text)

    def run_tool(self, *arguments, expected):
        run = subprocess.run([sys.executable, TOOL, "--root", self.root, *arguments], capture_output=True, text=True)
        self.assertEqual(run.returncode, expected, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def run_list(self, text, expected=0, *more):
        self.write("list", text)
        return self.run_tool("--list", self.root / "list", *more, expected=expected)

    def log(self):
        return [json.loads(line) for line in (self.root / "build-mutants/log.jsonl").read_text().splitlines()]

    def printed(self, *arguments):
        """The new lines of the mutants that would be run."""
        text = self.run_tool("--print", *arguments, expected=0)
        return {line[6:].strip() for line in text.splitlines() if line.startswith("    + ")}

    def test_every_verdict(self):
        self.run_list("# Four mutants, and a comment.\ncode/limit.cpp\n"
                      "- return value;\n+ return value + 1;\n\n"      # the first command notices
                      "- return value;\n+ return value + 0;\n\n"      # the same machine code
                      "- return value;\n+ return nothing;\n\n"
                      "- if (value > most) return most;\n+ if (value > most + 1) return most;\n\n"  # 6 is not limited to 5
                      "- if (value > most) return most;\n", expected=1)
        self.assertEqual([entry["verdict"] for entry in self.log()],
                         ["killed", "equivalent", "does not compile", "survived", "killed"])
        self.assertEqual([entry["by"] for entry in self.log()],
                         ["build/limit_test Small.*:*/Small.*", "", "", "", "build/limit_test all"])

    def test_a_loop_without_end_and_memory_without_end_are_noticed(self):
        self.write("tools/mutants.toml", CONFIG.replace("slack_seconds = 60", "slack_seconds = 0.2"))
        self.run_list("code/limit.cpp\n- while (value < 0) ++value;\n+ while (value < 0) value = -1;\n"
                      "\n- while (value < 0) ++value;\n+ while (value < 0) *new char[1 << 30] = 'a';\n")
        self.assertEqual([entry["verdict"] for entry in self.log()], ["killed", "killed"])

    def test_no_mutant_is_left_in_the_programs(self):
        """The tests of the second file first run without a mutant, after one of the first file was built."""
        self.run_list("code/limit.cpp\n- return value;\n+ return value + 1;\n\ncode/other.cpp\n- return 1;\n+ return 2;\n", 1)
        self.assertEqual([entry["verdict"] for entry in self.log()], ["killed", "survived"])

    def test_what_the_log_knows_is_not_run_again(self):
        entry = "code/limit.cpp\n- if (value > most) return most;\n+ if (value > most + 1) return most;\n"
        self.assertIn("survived: code/limit.cpp:5", self.run_list(entry, 1))
        self.write("code/limit.cpp", "\n" + self.files["code/limit.cpp"])  # another line number, the same mutant
        self.assertIn("survived: code/limit.cpp:6", self.run_list(entry, 1))
        self.assertEqual(len(self.log()), 1)
        self.write("tests/limit_test.cpp", self.files["tests/limit_test.cpp"].replace("limited(9, 5)", "limited(6, 5)"))
        self.run_list(entry, 0, "--again")
        self.assertEqual([entry["verdict"] for entry in self.log()], ["survived", "killed"])

    def test_without_time_nothing_runs(self):
        self.assertIn("0 killed, 0 survived, 0 equivalent, 0 does not compile, 1 not run",
                      self.run_list("code/limit.cpp\n- return value;\n", 0, "--minutes", "-1"))

    def test_the_working_tree_stays_as_it_is(self):
        self.run_list("code/limit.cpp\n- return value;\n+ return value + 1;\n")
        for name, text in self.files.items():
            self.assertEqual((self.root / name).read_text(), text)
            self.assertEqual((self.root / "build-mutants/tree" / name).read_text(), text)

    def test_tests_that_fail_without_a_mutant_are_an_error(self):
        self.write("tests/twice_test.py", "assert False\n")
        self.assertIn("error: without a mutant this fails: python3 tests/twice_test.py",
                      self.run_tool("code/twice.py", expected=1))

    def test_python(self):
        self.run_tool("code/twice.py", expected=1)
        verdicts = {entry["new"][0].strip(): entry["verdict"] for entry in self.log()}
        self.assertEqual(verdicts["return 2 * values[1]"], "killed")
        self.assertEqual(verdicts["if values and len(values) >= 1:"], "survived")  # [:1] keeps the one
        self.assertEqual(verdicts["if False:"], "survived")

    def test_mutants_of_changed_lines(self):
        self.write("code/limit.cpp", self.files["code/limit.cpp"].replace("value > most", "value >= most"))
        self.assertEqual(self.printed("--base", "HEAD"),
                         {"if (value > most) return most;", "if (false && (value >= most)) return most;"})

    def test_mutants_of_lines(self):
        self.assertEqual(self.printed("code/limit.cpp:6"),
                         {"while (value <= 0) ++value;", "while (value < 1) ++value;"})
        self.assertEqual(self.printed("code/limit.cpp:1-4", "code/limit.cpp:6"), self.printed("code/limit.cpp:6"))

    def test_a_smaller_count_is_a_part_of_a_larger_one(self):
        three, every = self.printed("code/limit.cpp", "--count", "3"), self.printed("code/limit.cpp")
        self.assertEqual(len(three), 3)
        self.assertLess(three, every)

    def test_kinds(self):
        for line, expected in {
            "  cache.clear();": {";"},
            "  length_ = other.length_;": {";"},
            "  std::stable_sort(a.begin(), a.end());": {"std::sort(a.begin(), a.end());", ";"},
            "  return std::min(low, high - 1);": {"return std::max(low, high - 1);", "return std::min(low, high + 1);",
                                                  "return std::min(low, high);", "return std::min(low, high - 2);"},
            '  fail("a < b", "1 and 2");': {";"},
            "  const Span first(all, length);": {"const Span first(length, all);"},
            "  if (!done && x) total += row.back();": {
                "if (done && x) total += row.back();", "if (!done || x) total += row.back();",
                "if (!done && x) total = row.back();", "if (!done && x) total -= row.back();",
                "if (!done && x) total += row.front();", "if (false && (!done && x)) total += row.back();"},
            "  return -y;": {"return y;"},
        }.items():
            self.write("code/limit.cpp", "void f() {\n" + line + "\n}\n")
            self.assertEqual(self.printed("code/limit.cpp:2"), expected, line)

    def test_two_at_once_are_refused(self):
        (self.root / "build-mutants").mkdir()
        with open(self.root / "build-mutants/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("another mutants.py is at work", self.run_tool("code/limit.cpp", expected=1))

    def test_a_list_that_fits_nowhere_or_twice_is_an_error(self):
        self.assertIn('"return nothing;" is in 0 places of code/limit.cpp', self.run_list("code/limit.cpp\n- return nothing;\n", 1))
        self.write("code/limit.cpp", self.files["code/limit.cpp"] + LIMIT.replace("limited", "again"))
        self.assertIn('"return value;" is in 2 places of code/limit.cpp', self.run_list("code/limit.cpp\n- return value;\n", 1))
        self.assertIn("there is no file", self.run_tool("code/nothing.cpp", expected=1))
        self.assertIn("has no file", self.run_list("- return value;\n", 1))


if __name__ == "__main__":
    COMPILER = sys.argv.pop(1)
    unittest.main()
