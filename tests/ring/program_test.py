#!/usr/bin/env python3
"""Runs attend_ring under mpirun: it agrees with one process, and it ends on all ranks when one of them fails.

usage: program_test.py <mpirun> <attend_ring>
"""

import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest

MPIRUN, PROGRAM = sys.argv[1], sys.argv[2]
SMALL = ["--length", "240", "--heads", "4", "--kv-heads", "2", "--dim", "16", "--repeat", "1"]
WATCHDOG = 120  # seconds after which a run that hangs is killed


def command(ranks, *arguments):
    return [MPIRUN, "-n", str(ranks), PROGRAM, *arguments]


def run(ranks, *arguments):
    return subprocess.run(command(ranks, *arguments), capture_output=True, text=True, timeout=300, check=False)


def having(mark):
    """Processes that have `mark` among their arguments."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            pass  # it ended meanwhile
    return found


def left_over(mark):
    """Those that do not end, either: a process that mpirun has killed may outlive it for a moment."""
    until = time.monotonic() + WATCHDOG
    while (found := having(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


class Failure:
    """A run of four ranks in which one fails: its output, and whether it ended by itself."""

    def __init__(self, *arguments, timeout):
        mark = f"{timeout}{os.getpid():09d}"  # tells this run's processes from others'
        process = subprocess.Popen(
            command(4, "--length", "4096", "--heads", "2", "--causal", "--repeat", "1000", "--timeout", mark, *arguments),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        watchdog = threading.Timer(WATCHDOG, process.kill)
        watchdog.start()
        self.output = process.communicate()[0]
        self.code = process.returncode
        self.ended = watchdog.is_alive()
        watchdog.cancel()
        self.left = left_over(mark)


class Program(unittest.TestCase):
    def test_help_needs_no_mpirun(self):
        shown = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, timeout=60, check=True)
        self.assertIn("mpirun -n 4 attend_ring", shown.stdout)

    def test_agrees_with_one_process(self):
        for ranks in (1, 2, 3, 4):
            for extra in ([], ["--causal", "--zigzag"], ["--causal", "--layer"], ["--dtype", "bf16", "--window", "20"],
                          ["--causal", "--zigzag", "--layer", "--dtype", "f16"]):
                with self.subTest(ranks=ranks, arguments=extra):
                    result = run(ranks, *SMALL, "--check", *extra)
                    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                    self.assertIn("hidden", result.stdout)
                    self.assertIn("agrees", result.stdout)
                    self.assertNotIn("DIFFERS", result.stdout)

    def test_refuses_lengths_that_do_not_divide(self):
        for ranks, length, split, text in ((3, "100", [], "a multiple of 3"), (2, "102", ["--zigzag"], "a multiple of 4")):
            result = run(ranks, "--length", length, *split)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(text, result.stderr)

    def test_refuses_unknown_options(self):
        result = run(2, "--lenght", "100")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--help", result.stderr)

    def check_end(self, failure):
        self.assertNotEqual(failure.code, 0, failure.output)
        self.assertIn("fails now, as asked", failure.output)
        self.assertTrue(failure.ended, failure.output)
        self.assertEqual(failure.left, [], failure.output)

    def test_a_killed_rank_ends_the_run(self):
        failure = Failure("--kill-rank", "2", timeout="600.")  # beyond the watchdog: the death itself ends the run
        self.check_end(failure)
        self.assertRegex(failure.output, "rank 2 .*signal 9|rank 2.*[Kk]illed|heard nothing from rank 2")

    def test_an_exception_in_one_rank_ends_the_run(self):
        failure = Failure("--throw-rank", "1", timeout="600.")
        self.check_end(failure)
        self.assertIn("rank 1 of 4: ring_attention: thrown because --throw-rank asked for it", failure.output)

    def test_a_silent_rank_ends_the_run(self):
        failure = Failure("--stop-rank", "3", timeout="6.")  # no rank that runs is silent so long on a loaded machine
        self.check_end(failure)
        self.assertRegex(failure.output, r"heard nothing from rank 3 for \d+\.\d s while waiting for .*step \d of 4")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
