"""What ./dev test reports of failures, and that all it installs with pip has a fixed version.

It runs in a copy of the tree's scripts, with stubs for all that builds, tests and installs.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each writes down how it was called, and fails where its name is in $FAILS.
STUB = """#!/bin/bash
echo "$(basename "$0") $*" >>"$CALLS"
case "$(basename "$0") $*" in
  "python3 -m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/pip" ;;
  dpkg-query*) for package in "$@"; do printf 'installed=%s ' "$package"; done ;;
  *" tests/python "*) [[ " $FAILS " != *" pytest "* ]] || { echo "a Python test failed"; exit 1; } ;;
esac
[[ " $FAILS " != *" $(basename "$0") "* ]] || { echo "$(basename "$0") failed"; exit 1; }
"""


class DevTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "tree")
        self.stubs = pathlib.Path(folder.name, "stubs")
        self.calls = pathlib.Path(folder.name, "calls")
        self.stubs.mkdir()
        for part in ("dev", "tools/requirements.txt", "tests/python/peers/requirements.txt", "pyproject.toml", "CMakeLists.txt"):
            (self.root / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, self.root / part)
        for name in ("cmake", "ninja", "ctest", "python3", "apt-get", "dpkg-query", "sudo", "cpack"):
            (self.stubs / name).write_text(STUB)
            (self.stubs / name).chmod(0o755)

    def dev(self, *arguments, fails=""):
        self.calls.write_text("")
        env = {"PATH": f"{self.stubs}:/usr/bin:/bin", "HOME": str(self.root), "CALLS": str(self.calls), "FAILS": fails}
        done = subprocess.run([self.root / "dev", *arguments], env=env, text=True, capture_output=True, timeout=60)
        self.called = self.calls.read_text().splitlines()
        return done

    def ran_python_tests(self):
        return any("pytest" in call and " tests/python " in call for call in self.called)

    def test_all_pass(self):
        done = self.dev("test")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("All tests passed", done.stdout)
        self.assertTrue(any(call.startswith("ctest ") for call in self.called))
        self.assertTrue(self.ran_python_tests())

    def test_python_tests_run_although_a_cpp_test_fails(self):
        done = self.dev("test", fails="ctest")
        self.assertNotEqual(done.returncode, 0)
        self.assertTrue(self.ran_python_tests())
        self.assertIn("tests failed: C++\n", done.stderr)
        self.assertNotIn("passed", done.stdout)

    def test_failures_of_both_are_reported(self):
        done = self.dev("test", fails="ctest pytest")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("a Python test failed", done.stdout)
        self.assertIn("tests failed: C++ Python\n", done.stderr)
        done = self.dev("test", fails="pytest")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("tests failed: Python\n", done.stderr)
        self.assertNotIn("C++", done.stderr)
        for part in (("test", "--python"), ("test", "--python", "-k", "x")):
            self.assertNotEqual(self.dev(*part, fails="pytest").returncode, 0)
            self.assertEqual(self.dev(*part).returncode, 0)

    def test_chosen_cpp_tests_run_alone(self):
        done = self.dev("test", "-R", "softmax", fails="ctest")
        self.assertNotEqual(done.returncode, 0)
        self.assertFalse(self.ran_python_tests())
        self.assertEqual(self.dev("test", "-R", "softmax").returncode, 0)

    def test_all_that_pip_installs_has_a_fixed_version(self):
        for command in (("test",), ("test", "--python"), ("test", "--peers"), ("test", "--browser"), ("wheel",)):
            shutil.rmtree(self.root / "build", ignore_errors=True)
            self.dev(*command)
            installs = [call.split() for call in self.called if call.startswith("pip install") and "--no-deps" not in call]
            self.assertTrue(installs, command)
            for call in installs:
                packages = [word for word in call[2:] if not word.startswith("-")]
                self.assertTrue(packages)
                for package in packages:
                    self.assertRegex(package, r"^[\w.-]+(\[[\w,-]+\])?==[\w.]+$", command)

    def test_both_lists_agree(self):
        def versions(path):
            return dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / path).read_text()))
        ours, peers = versions("tools/requirements.txt"), versions("tests/python/peers/requirements.txt")
        for package in set(ours) & set(peers):
            self.assertEqual(ours[package], peers[package], package)

    def test_a_package_without_a_fixed_version_is_an_error(self):
        path = self.root / "tools/requirements.txt"
        path.write_text(re.sub(r"(?m)^pytest==.*\n", "", path.read_text()))
        text = (self.root / "dev").read_text().replace("pinned numpy nanobind scikit-build-core", "echo numpy")
        (self.root / "dev").write_text(text)
        done = self.dev("test", "--python")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("numpy has no fixed version", done.stderr)
        self.assertIn("fixes no version of pytest", done.stderr)


if __name__ == "__main__":
    os.environ.pop("CI", None)
    unittest.main()
