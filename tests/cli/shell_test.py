"""Completions and the manual page say all that --help says, in the shells themselves where they are installed.

Usage: shell_test.py PROGRAM
"""

import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from fcntl import ioctl

PROGRAM = ""


def attend(*arguments, **changes):
    result = subprocess.run([PROGRAM, *arguments], env={**os.environ, **changes}, text=True, capture_output=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def options_of(*command):
    """The options that --help lists: {"-n", "--tokens", ...}."""
    text = attend(*command, "--help").split("\nOptions:\n")[1].split("\n\n")[0]
    names = set()
    for line in re.findall(r"(?m)^  (-\S+)", text):
        names.update(line.split(","))
    return names


def commands():
    text = attend("--help").split("\nSubcommands:\n")[1].split("\n\n")[0]
    return re.findall(r"(?m)^  (\w+)[, ]", text)


class ShellTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bin").mkdir()
        (self.root / "bin/attend").symlink_to(PROGRAM)
        (self.root / "a file.gguf").touch()
        for shell, name in (("bash", "attend"), ("zsh", "_attend"), ("fish", "attend.fish")):
            (self.root / name).write_text(attend("completion", shell))
        self.env = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "HOME": str(self.root), "TERM": "xterm",
                    "ATTEND_HOME": str(self.root / "store"), "LANG": "C.UTF-8"}

    def run_shell(self, *command):
        result = subprocess.run(command, cwd=self.root, env=self.env, text=True, capture_output=True, timeout=120)
        self.assertEqual((result.returncode, result.stderr), (0, ""), command)
        return result.stdout

    def everything(self):
        """(what is typed, what must be offered) for the program and each command."""
        yield "attend ", set(commands())
        yield "attend --", {name for name in options_of() if name.startswith("--")}
        for command in commands():
            yield f"attend {command} -", options_of(command)

    def test_the_commands_that_make_them_are_hidden_but_known(self):
        self.assertFalse({"man", "completion"} & set(commands()))
        wrong = subprocess.run([PROGRAM, "completion", "csh"], text=True, capture_output=True)
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        for word in ("csh", "bash", "zsh", "fish"):
            self.assertIn(word, wrong.stderr)

    def test_help_is_understood_by_this_test(self):
        self.assertLessEqual({"demo", "pull", "generate", "convert", "variants"}, set(commands()))
        self.assertLessEqual({"-h", "--help", "-n", "--tokens", "--top-p", "--echo"}, options_of("generate"))
        self.assertEqual(options_of(), {"-h", "--help", "--version"})

    def test_the_manual_page_has_every_command_and_option(self):
        page = attend("man")
        self.assertTrue(page.isascii())
        parts = dict(re.findall(r"(?ms)^\.SS (\w+)\n(.*?)(?=^\.S[SH])", page))
        self.assertEqual(list(parts), commands())
        for command, part in parts.items():
            for name in options_of(command):
                self.assertIn(f"\\fB{name}\\fR".replace("-", "\\-"), part, command)
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "ENVIRONMENT", "EXIT CODES"):
            self.assertIn(f"\n.SH {section}\n", page)
        # Nothing of the help texts is taken for a command of roff.
        self.assertEqual(set(re.findall(r"(?m)^[.'](\S+)", page)),
                         {"\\\"", "TH", "SH", "SS", "PP", "TP", "B", "nf", "fi", "RS", "RE"})

    @unittest.skipUnless(shutil.which("man"), "there is no man")
    def test_man_shows_the_page_without_a_warning(self):
        (self.root / "attend.1").write_text(attend("man"))
        shown = self.run_shell("man", "--warnings", "-l", str(self.root / "attend.1"))
        for word in ("--repetition-penalty", "attend generate model.gguf - -q < prompt.txt > answer.txt", "ATTEND_ISA"):
            self.assertIn(word, shown)

    def bash(self, typed):
        words = typed.split(" ")
        script = (f"source ./attend; COMP_WORDS=({' '.join(repr(w) for w in words)}); COMP_CWORD={len(words) - 1}; _attend; "
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        return set(self.run_shell("bash", "--norc", "-uc", script).split("\n")) - {""}

    def test_bash(self):
        for typed, offered in self.everything():
            self.assertLessEqual(offered, self.bash(typed), typed)
        self.assertEqual(self.bash("attend ge"), {"generate"})
        self.assertEqual(self.bash("attend generate m --cach"), {"--cache"})
        self.assertEqual(self.bash("attend generate m --cache "), {"auto", "f32", "f16", "bf16", "int8"})
        self.assertEqual(self.bash("attend generate m --cache = f"), {"f32", "f16"})
        self.assertEqual(self.bash("attend generate m --cache ="), {"auto", "f32", "f16", "bf16", "int8"})
        self.assertEqual(self.bash("attend generate m --tokens "), set())
        self.assertEqual(self.bash("attend demo --png a"), {"a file.gguf", "attend", "attend.fish"})
        self.assertEqual(self.bash("attend info a"), {"a file.gguf", "attend", "attend.fish"})
        self.assertEqual(self.bash("attend bogus --"), set())

    def test_models_that_are_here_are_offered(self):
        for name in ("smollm2", "minilm"):
            (self.root / "store/models" / name).mkdir(parents=True)
        self.assertEqual(attend("completion", "models", ATTEND_HOME=self.env["ATTEND_HOME"]), "minilm\nsmollm2\nstoryteller\n")
        for command in ("chat", "generate", "info", "rm"):
            self.assertEqual(self.bash(f"attend {command} smo"), {"smollm2"})

    @unittest.skipUnless(shutil.which("fish"), "there is no fish")
    def test_fish(self):
        def fish(typed):
            lines = self.run_shell("fish", "--no-config", "-c", f"source attend.fish; complete -C '{typed}'").split("\n")
            return {line.split("\t")[0] for line in lines} - {""}

        for typed, offered in self.everything():
            self.assertLessEqual(offered, fish(typed), typed)
        self.assertEqual(fish("attend ge"), {"generate"})
        self.assertEqual(fish("attend generate m --cache "), {"auto", "f32", "f16", "bf16", "int8"})
        self.assertLessEqual({"a file.gguf"}, fish("attend demo --png a "[:-1]))
        self.assertLessEqual({"a file.gguf"}, fish("attend info a"))

    @unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
    def test_zsh(self):
        for typed, offered in self.everything():
            self.zsh_offers(typed, [rf"(?m)(^|\s){re.escape(name)}(\s|$)" for name in sorted(offered)])
        self.zsh_offers("attend generate m --cache ", [r"auto\s+bf16\s+f16\s+f32\s+int8"])
        self.zsh_offers("attend info a\\ ", [r"a\\ file.gguf"])

    def zsh_offers(self, typed, wanted):
        """What zsh shows after Tab matches each of the patterns, within a minute."""
        leader, follower = pty.openpty()
        ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 300, 200, 0, 0))
        process = subprocess.Popen(["zsh", "-f", "-i"], cwd=self.root, env=self.env, stdin=follower, stdout=follower,
                                   stderr=follower, start_new_session=True)
        os.close(follower)
        try:
            os.write(leader, f"PS1=; fpath=({self.root} $fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=9999; "
                             "setopt auto_list no_list_ambiguous; echo rea''dy\r".encode())
            self.read_all(leader, ["ready\r"], typed)
            os.write(leader, typed.encode() + b"\t")
            self.read_all(leader, wanted, typed)
        finally:
            process.kill()
            process.wait()
            os.close(leader)

    def read_all(self, leader, wanted, typed):
        shown, end = "", time.monotonic() + 60
        while missing := [pattern for pattern in wanted if not re.search(pattern, shown)]:
            if not select.select([leader], [], [], max(0, end - time.monotonic()))[0]:
                self.fail(f"after {typed!r} and Tab zsh showed no {missing}, but:\n{shown}")
            shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown + os.read(leader, 65536).decode(errors="replace"))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
