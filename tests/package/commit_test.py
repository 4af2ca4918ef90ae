"""What cmake/commit.cmake and cmake/debian/version.cmake make of a repository, a shallow clone and a tarball.

Usage: commit_test.py CMAKE
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CMAKE = ""
ROOT = pathlib.Path(__file__).resolve().parents[2]


class CommitTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.tree = self.root / "tree"
        shutil.copytree(ROOT / "cmake", self.tree / "cmake")
        self.git("init", "-q", self.tree, at=self.root)
        self.git("add", ".")
        for _ in range(2):
            self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
        self.commit = self.git("rev-parse", "HEAD")[:12]

    def git(self, *arguments, at=None):
        env = {**os.environ, "GIT_COMMITTER_DATE": "2026-03-01T23:30:05-0200", "GIT_CONFIG_GLOBAL": "/dev/null"}
        done = subprocess.run(["git", *arguments], cwd=at or self.tree, env=env, text=True, capture_output=True, check=True)
        return done.stdout.strip()

    def written(self, source):
        output = self.root / "commit.cpp"
        subprocess.run([CMAKE, f"-DSOURCE={source}", f"-DOUTPUT={output}", "-P", source / "cmake/commit.cmake"], check=True)
        return re.search('return "(.*)";', output.read_text()).group(1)

    def package_version(self, source):
        script = self.root / "print.cmake"
        script.write_text('set(CPACK_PACKAGE_VERSION 0.1.0)\ninclude(${SOURCE}/cmake/debian/version.cmake)\n'
                          'message("${CPACK_DEBIAN_PACKAGE_VERSION}")\n')
        return subprocess.run([CMAKE, f"-DSOURCE={source}", "-P", script], text=True, capture_output=True,
                              check=True).stderr.strip()

    def test_a_clone_has_its_commit(self):
        self.assertEqual(self.written(self.tree), self.commit)
        self.assertEqual(self.package_version(self.tree), f"0.1.0~git20260302.013005.{self.commit}")

    def test_a_shallow_clone_has_its_commit(self):
        shallow = self.root / "shallow"
        self.git("clone", "-q", "--depth", "1", f"file://{self.tree}", shallow)
        self.assertEqual(self.written(shallow), self.commit)

    def test_a_tarball_has_none_even_inside_another_repository(self):
        inside = self.tree / "unpacked"
        inside.mkdir()
        shutil.copytree(ROOT / "cmake", inside / "cmake")
        self.assertEqual(self.written(inside), "")
        self.assertEqual(self.package_version(inside), "0.1.0")

    def test_the_release_is_its_version_alone(self):
        self.git("tag", "v0.1.00")
        self.assertIn("~git", self.package_version(self.tree))
        self.git("tag", "v0.1.0")
        self.assertEqual(self.package_version(self.tree), "0.1.0")
        self.git("tag", "another")
        self.assertEqual(self.package_version(self.tree), "0.1.0")

    def test_the_version_is_the_same_everywhere(self):
        version = re.search(r"project\(attend VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertIn(f"\nversion: {version}\n", (ROOT / "CITATION.cff").read_text())
        self.assertIn(f"\n## {version} ", (ROOT / "CHANGELOG.md").read_text())


if __name__ == "__main__":
    CMAKE = sys.argv.pop(1)
    unittest.main()
