"""The program `attend` from outside: exit codes, help, colours, the picture, bad input. Usage: cli_test.py PROGRAM"""

import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom
import zlib

import chart_test
import embedded_test
import files_test
import look_test
import model_test
import pull_parts_test
import pull_test
import shell_test
import terminal_test
import train_test
from chart_test import ChartTest  # noqa: F401
from chat_test import ChatTest  # noqa: F401
from embedded_test import EmbeddedModel  # noqa: F401
from files_test import FilesTest  # noqa: F401
from look_test import LookTest  # noqa: F401
from model_test import ModelTest  # noqa: F401
from pull_parts_test import PullPartsTest  # noqa: F401
from pull_test import PullTest  # noqa: F401 (unittest.main finds it here)
from shell_test import ShellTest  # noqa: F401
from terminal_test import TerminalTest  # noqa: F401
from train_test import TrainTest  # noqa: F401

PROGRAM = ""
SMALL = ["demo", "--length", "300", "--heads", "4", "--kv-heads", "2", "--dim", "32"]
ESCAPE = "\x1b"


def environment(**changes):
    env = {k: v for k, v in os.environ.items() if k not in ("ATTEND_ISA", "ATTEND_THREADS", "NO_COLOR", "COLORTERM")}
    env.update(TERM="xterm-256color", ATTEND_HOME="/nonexistent")  # no models: the demo must not depend on the user's
    env.update(changes)
    return env


def decode_png(data):
    """Width, height and rows of RGB bytes; every checksum is verified."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "signature"
    at, header, pixels, types = 8, None, b"", []
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        (crc,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert crc == zlib.crc32(kind + body), kind
        types.append(kind)
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        if kind == b"IDAT":
            pixels += body
        at += 12 + size
    assert types[0] == b"IHDR" and types[-1] == b"IEND", types
    width, height = header[:2]
    assert header[2:] == (8, 2, 0, 0, 0), header
    raw = zlib.decompress(pixels)
    stride = 3 * width + 1
    assert len(raw) == stride * height
    rows, above = [], bytes(3 * width)
    for y in range(height):
        above = unfiltered(raw[y * stride], raw[y * stride + 1 : (y + 1) * stride], above)
        rows.append(above)
    return width, height, rows


def unfiltered(kind, row, above):
    """A row of RGB bytes before its filter, one of the five of PNG."""
    if kind == 0:
        return row
    row = bytearray(row)
    for x, value in enumerate(row):
        left, up, corner = (row[x - 3], above[x], above[x - 3]) if x >= 3 else (0, above[x], 0)
        if kind == 4:
            guess = left + up - corner
            guess = min((left, up, corner), key=lambda near: abs(guess - near))
        else:
            guess = (left, up, (left + up) // 2)[kind - 1]
        row[x] = (value + guess) & 255
    return bytes(row)


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return pathlib.Path(self.folder.name, name)

    def read(self, name):
        return self.path(name).read_bytes()

    def run_attend(self, *arguments, **changes):
        return subprocess.run([PROGRAM, *arguments], cwd=self.folder.name, env=environment(**changes), text=True,
                              capture_output=True, timeout=300)

    def run_on_terminal(self, *arguments, **changes):
        """Standard output is a terminal; gives what was shown on it."""
        try:
            leader, follower = pty.openpty()
        except OSError as error:
            self.skipTest(f"this machine has no terminals to give: {error}")
        with subprocess.Popen([PROGRAM, *arguments], cwd=self.folder.name, env=environment(**changes),
                              stdin=subprocess.DEVNULL, stdout=follower, stderr=subprocess.PIPE) as process:
            os.close(follower)
            shown = b""
            while True:
                try:
                    piece = os.read(leader, 65536)
                except OSError:  # the program is gone
                    break
                if not piece:
                    break
                shown += piece
            os.close(leader)
            self.assertEqual(process.wait(), 0)
        return shown.decode()

    # Help and version.

    def test_alone_it_prints_help(self):
        alone = self.run_attend()
        self.assertEqual((alone.returncode, alone.stderr), (0, ""))
        self.assertEqual(alone.stdout, self.run_attend("--help").stdout)
        for word in ("demo", "cpu", "ATTEND_ISA", "NO_COLOR", "Exit codes"):
            self.assertIn(word, alone.stdout)

    def test_every_command_explains_itself(self):
        for command, words in {"demo": ["--kv-heads", "--dtype", "f32, bf16 or f16", "Examples:", "Exit codes"],
                               "variants": ["--only", "--png", "Examples:"],
                               "cpu": ["Examples:", "ATTEND_ISA=avx2 attend cpu"],
                               "pull": ["--check", "--wheel", "SHA-256", "Examples:", "Exit codes"],
                               "models": ["Examples:", "ATTEND_HOME"], "rm": ["Examples:"]}.items():
            result = self.run_attend(command, "--help")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            for word in words:
                self.assertIn(word, result.stdout)

    def test_version(self):
        result = self.run_attend("--version")
        self.assertEqual(result.returncode, 0)
        said = re.fullmatch(r"attend (\d+\.\d+\.\d+)(?: \(([0-9a-f]{12})\))?\n", result.stdout)
        self.assertIsNotNone(said, result.stdout)
        root = pathlib.Path(__file__).resolve().parents[2]
        git = ["git", "-C", root]
        if shutil.which("git") and (root / ".git").exists():  # a copy inside another repository has no commit
            commit = subprocess.run([*git, "cat-file", "-e", f"{said.group(2)}^{{commit}}"], capture_output=True)
            self.assertEqual(commit.returncode, 0, f"{result.stdout} names no commit of this repository")

    # attend cpu.

    def test_cpu_names_the_kernel_and_who_chose_it(self):
        result = self.run_attend("cpu")
        self.assertEqual(result.returncode, 0, result.stderr)
        kernels = re.search(r"^kernels +(.+?) \(", result.stdout, re.M).group(1).split(", ")
        self.assertEqual(kernels[-1], "scalar")
        self.assertRegex(result.stdout, rf"(?m)^chosen +{kernels[0]} \(the best that runs here\)$")
        for kernel in kernels:
            chosen = self.run_attend("cpu", ATTEND_ISA=kernel)
            self.assertRegex(chosen.stdout, rf"(?m)^chosen +{kernel} \(set by ATTEND_ISA={kernel}\)$")
        self.assertRegex(self.run_attend("cpu", ATTEND_THREADS="3").stdout, r"(?m)^threads +3 \(set by ATTEND_THREADS\)$")

    def test_a_wrong_thread_count_is_an_error(self):
        for text in ("abc", "0", "-1", "1025", "2x", "99999999999999999999"):
            result = self.run_attend("cpu", ATTEND_THREADS=text)
            self.assertEqual(result.returncode, 2)
            self.assertIn("ATTEND_THREADS", result.stderr)
            self.assertIn(text, result.stderr)

    def test_an_unknown_kernel_is_an_error(self):
        for command in (["cpu"], SMALL):
            result = self.run_attend(*command, ATTEND_ISA="avx9000")
            self.assertEqual(result.returncode, 2)
            self.assertIn("ATTEND_ISA", result.stderr)
            self.assertIn("avx9000", result.stderr)
            self.assertIn("scalar", result.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    # attend demo.

    def test_demo_computes_checks_and_draws(self):
        result = self.run_attend(*SMALL)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("4 heads, 2 for keys and values, 300 tokens, dim 32, f32, causal", result.stdout)
        self.assertRegex(result.stdout, r"check +passed: \d+ rows")
        for label in ("time", "GFLOP/s", "memory", "kernel", "keys", "attend-demo.png"):
            self.assertIn(label, result.stdout)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["attend-demo-model.png", "attend-demo.png"])

    def test_demo_of_every_dtype_kernel_and_window(self):
        kernels = re.search(r"^kernels +(.+?) \(", self.run_attend("cpu").stdout, re.M).group(1).split(", ")
        for kernel in kernels:
            for dtype in ("f32", "bf16", "f16"):
                for window in ("0", "1", "37"):
                    result = self.run_attend(*SMALL, "--no-png", "--dtype", dtype, "--window", window, "--threads", "2",
                                             ATTEND_ISA=kernel)
                    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                    self.assertIn(f"{kernel}, 2 threads", result.stdout)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_demo_of_odd_sizes(self):
        for length, heads, kv_heads, dim in ((1, 1, 1, 1), (2, 3, 1, 2), (5, 2, 2, 3), (65, 6, 3, 59), (513, 1, 1, 8)):
            result = self.run_attend("demo", "--length", str(length), "--heads", str(heads), "--kv-heads", str(kv_heads),
                                     "--dim", str(dim))
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            decode_png(self.read("attend-demo.png"))

    def test_the_map_in_plain_characters_is_causal(self):
        lines = self.run_attend(*SMALL, "--no-png").stdout.splitlines()
        first = next(i for i, line in enumerate(lines) if line.strip() == "keys") + 2
        # 300 tokens: cells of 5, so 60 cells along a side, two of them a line.
        rows = [line[9:] for line in lines[first : first + 30]]
        for number, row in enumerate(rows):
            self.assertEqual(len(row), 2 * number + 2, row)
            self.assertRegex(row, r"^[.:\-=+*#%@]+$")
        self.assertEqual(rows[0][0], "@")  # the first queries can look at nothing else

    def picture(self, *arguments):
        """Of SMALL: pixel(query, key), the colour in the middle of a cell."""
        self.assertEqual(self.run_attend(*SMALL, "--png", "picture.png", *arguments).returncode, 0)
        width, height, rows = decode_png(self.read("picture.png"))
        # The first cell is the first that has the brightest colour, under half of the frame's line. 300 tokens are 300
        # cells of 4 pixels.
        bright = bytes((253, 231, 37))
        top = next(y for y, row in enumerate(rows) if bright in row) - 1
        left = next(x for x in range(width) if rows[top + 1][3 * x : 3 * x + 3] == bright) - 1

        def pixel(query, key):
            x, y = left + 4 * key + 2, top + 4 * query + 2
            return tuple(rows[y][3 * x : 3 * x + 3])

        return pixel

    def test_the_picture(self):
        masked, brightest = (238, 240, 243), (253, 231, 37)
        pixel = self.picture("--head", "1")
        self.assertEqual(pixel(0, 0), brightest)  # query 0 gives all to key 0
        for token in range(299):
            self.assertEqual(pixel(token, token + 1), masked, token)
            # This head looks for neighbours: the diagonal is bright, what lies far away is not.
            self.assertGreater(pixel(token, token)[1], 90, token)
            if token > 100:
                self.assertLess(pixel(token, token - 100)[1], 60, token)
        pixel = self.picture("--window", "50")
        for token in range(50, 300):
            self.assertEqual(pixel(token, token - 50), masked, token)
            self.assertNotEqual(pixel(token, token - 49), masked, token)
        pixel = self.picture("--head", "3")
        for token in range(2, 300):  # this one looks for the first token
            self.assertGreater(pixel(token, 0)[1], pixel(token, token // 2)[1], token)

    def test_the_picture_does_not_depend_on_threads_and_depends_on_the_seed(self):
        pictures = {}
        for name, more in {"one": ["--threads", "1"], "three": ["--threads", "3"], "seed": ["--seed", "2"],
                           "head": ["--head", "1"], "window": ["--window", "50"]}.items():
            self.assertEqual(self.run_attend(*SMALL, "--png", name, *more).returncode, 0)
            pictures[name] = self.read(name)
        self.assertEqual(pictures["one"], pictures["three"])
        self.assertEqual(len(set(pictures.values())), 4)

    # Colours.

    def test_no_escape_codes_in_a_pipe(self):
        self.assertNotIn(ESCAPE, self.run_attend(*SMALL, COLORTERM="truecolor").stdout)

    def test_colours_on_a_terminal_unless_told_otherwise(self):
        self.assertIn("\x1b[38;2;253;231;37m", self.run_on_terminal(*SMALL, COLORTERM="truecolor"))
        palette = self.run_on_terminal(*SMALL)
        self.assertIn("\x1b[38;5;", palette)
        self.assertNotIn("\x1b[38;2;", palette)
        self.assertIn("\u2580", palette)
        for arguments, changes in ((["--no-color"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})):
            shown = self.run_on_terminal(*SMALL, *arguments, COLORTERM="truecolor", **changes)
            self.assertNotIn(ESCAPE, shown)
            self.assertTrue(shown.isascii())
        self.assertIn(ESCAPE, self.run_on_terminal(*SMALL, NO_COLOR=""))  # empty counts as not set

    # attend variants.

    def test_variants_are_measured_and_drawn(self):
        result = self.run_attend("variants", "--from", "128", "--to", "512", "--heads", "2", "--dim", "32", "--svg",
                                 "charts.svg", "--png", "charts.png")
        self.assertEqual(result.returncode, 0, result.stderr)
        table = re.findall(r"(?m)^(\S.*?) {2,}[\d.]+ (?:us|ms|s) ", result.stdout)
        self.assertEqual(table[0], "exact attention")
        self.assertEqual(len(table), len(set(table)))
        busy = "BUSY MACHINE: others took " in result.stdout
        grows = re.escape("seemed to grow (busy machine)") if busy else "grows"
        for name in table:  # a sentence for each
            self.assertRegex(result.stdout, rf"(?m)^{re.escape(name)}\n    Time {grows} as L\^")
        self.assertEqual(self.read("charts.png")[:8], b"\x89PNG\r\n\x1a\n")
        drawing = xml.dom.minidom.parseString(self.read("charts.svg"))
        shown = {"".join(x.data for x in text.childNodes) for text in drawing.getElementsByTagName("text")}
        self.assertLessEqual(set(table), shown)
        # The text is made up: nothing is said of quality, and nothing is advised from it.
        for text in (result.stdout, *shown, self.run_attend("variants", "--help").stdout):
            self.assertNotRegex(text, r"(?i)\berror\b|\buse it\b|\bleave it\b|stand-in")
        self.assertEqual(any(text.startswith("BUSY MACHINE") for text in shown), busy)

    def test_variants_on_a_busy_machine_are_no_fact(self):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
        try:
            result = self.run_attend("variants", "--from", "512", "--to", "2048", "--heads", "2", "--dim", "32",
                                     "--only", "window", "--svg", "charts.svg")
        finally:
            for process in others:
                process.kill()
                process.wait()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^BUSY MACHINE: others took \d+ % of the CPUs meanwhile")
        self.assertIn("Time seemed to grow (busy machine) as L^", result.stdout)
        self.assertNotIn("Time grows", result.stdout)
        self.assertIn(b"BUSY MACHINE", self.read("charts.svg"))

    def test_variants_of_a_name(self):
        result = self.run_attend("variants", "--from", "128", "--to", "128", "--only", "window")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("exact attention", result.stdout)
        unknown = self.run_attend("variants", "--only", "bogus")
        self.assertEqual((unknown.returncode, unknown.stdout), (2, ""))
        self.assertIn('no variant\'s name contains "bogus"', unknown.stderr)
        backwards = self.run_attend("variants", "--from", "4096", "--to", "1024")
        self.assertEqual((backwards.returncode, backwards.stdout), (2, ""))
        self.assertIn("--to is 1024, expected at least --from, 4096", backwards.stderr)

    # Bad input: exit code 2, nothing on standard output, no file, and a text that says what was got and expected.

    def test_bad_input(self):
        cases = [
            (["--length", "-5"], ["--length", "'-5'", "whole number from 1"]),
            (["--length", "0"], ["--length", "'0'"]),
            (["--length", "abc"], ["'abc'"]),
            (["--length", "1e3"], ["'1e3'"]),
            (["--length", "99999999999999999999999"], ["'99999999999999999999999'"]),
            (["--length", "1099511627776"], ["need", "free", "smaller"]),
            (["--heads", "65536", "--kv-heads", "65536", "--dim", "65536", "--length", "1099511627776"], ["need"]),
            (["--heads", "8", "--kv-heads", "3"], ["--kv-heads is 3", "divisor", "8"]),
            (["--heads", "2", "--kv-heads", "4"], ["--kv-heads is 4"]),
            (["--dim", "0"], ["--dim"]),
            (["--dim", "70000"], ["--dim", "65536"]),
            (["--window", "-1"], ["--window"]),
            (["--threads", "-1"], ["--threads"]),
            (["--threads", "100000"], ["--threads"]),
            (["--seed", "-1"], ["--seed"]),
            (["--seed", ""], ["--seed", "got ''"]),
            (["--dim", "010"], ["--dim", "got '010'"]),
            (["--head", "8"], ["--head is 8", "0 to 7"]),
            (["--dtype", "f64"], ["'f64'", "f32, bf16 or f16"]),
            (["--dtype"], ["--dtype"]),
            (["--png", "missing/picture.png"], ["missing", "No such file or directory", "--png"]),
            (["--png", "."], ["folder"]),
            (["--png", ""], ["name of a file"]),
            (["--bogus"], ["--bogus"]),
            (["extra"], ["extra"]),
        ]
        for arguments, words in cases:
            result = self.run_attend("demo", *arguments)
            with self.subTest(arguments=arguments):
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertTrue(result.stderr.startswith("attend demo: "), result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)
        for arguments in (["bogus"], ["--bogus"], ["cpu", "extra"], ["demo", "cpu"]):
            result = self.run_attend(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn("--help", result.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_a_mistyped_command_is_understood(self):
        for typed, meant in (("generat", "generate"), ("moedls", "models"), ("Demo", "demo"), ("vairants", "variants")):
            result = self.run_attend(typed, "x")
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(f"there is no command '{typed}'; did you mean '{meant}'?", result.stderr)
        far = self.run_attend("xylophone")
        self.assertIn("there is no command 'xylophone'", far.stderr)
        self.assertNotIn("did you mean", far.stderr)
        self.assertIn("did you mean '--length'?", self.run_attend("demo", "--lenght", "5").stderr)
        named = self.run_attend("generate", "--prompt", "Once")
        self.assertIn("'prompt' stands without its name: attend generate [model] [prompt]", named.stderr)

    def test_an_old_picture_survives_a_failed_one(self):
        self.path("attend-demo.png").write_bytes(b"old")
        limit = f"ulimit -f 1; trap '' XFSZ; exec '{PROGRAM}' {' '.join(SMALL)}"
        result = subprocess.run(["bash", "-c", limit], cwd=self.folder.name, env=environment(), text=True,
                                capture_output=True, timeout=300)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("attend demo: cannot write attend-demo.png", result.stderr)
        self.assertEqual(self.read("attend-demo.png"), b"old")
        self.assertEqual(os.listdir(self.folder.name), ["attend-demo.png"])

    def test_output_that_cannot_be_written_is_no_success(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "cpu"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("No space left on device", result.stderr)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    for module in (chart_test, embedded_test, files_test, look_test, model_test, pull_parts_test, pull_test, shell_test, terminal_test,
                   train_test):
        module.PROGRAM = PROGRAM
    unittest.main()
