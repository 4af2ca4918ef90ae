"""`attend chat` on a terminal: line editing, history, wide characters, words kept whole at the edge."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import model_test


class Screen:
    """What a terminal shows of the sequences that the program uses; lines do not wrap by themselves."""

    def __init__(self, text):
        self.lines, self.row, self.column, self.widest = [[]], 0, 0, 0
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|[^\x1b]", text):
            self.take(part)

    def take(self, part):
        line = self.lines[self.row]
        if part == "\n":
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.lines):
                self.lines.append([])
        elif part == "\r":
            self.column = 0
        elif part == "\b":
            self.column -= 1
        elif part.startswith("\x1b") and part.endswith("D"):
            self.column -= int(part[2:-1])
        elif part.startswith("\x1b") and part.endswith("K"):
            del line[self.column :]
        elif not part.startswith("\x1b"):
            line += " " * (self.column + 1 - len(line))
            line[self.column] = part
            self.column += 1
            self.widest = max(self.widest, self.column)

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.lines)


class ChatTest(model_test.GoldenModel):
    def start(self, *arguments, columns=80, **changes):
        self.leader, follower = pty.openpty()
        self.addCleanup(os.close, self.leader)
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        env = {**self.env, "TERM": "xterm", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "HOME": self.folder.name, **changes}
        self.process = subprocess.Popen([model_test.PROGRAM, "chat", "model", "--template", "chatml", *arguments],
                                        cwd=self.folder.name, env=env, stdin=follower, stdout=follower,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(follower)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.shown = ""
        self.read_until("lists commands")
        self.read_until("> ")

    def read_until(self, words, seconds=60):
        """What was shown since the last call, up to these words."""
        end = time.monotonic() + seconds
        while words not in self.shown:
            self.assertLess(time.monotonic(), end, f"waiting for {words!r}, got {self.shown[-500:]!r}")
            if select.select([self.leader], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.leader, 65536).decode(errors="replace")
                except OSError:
                    self.fail(f"it ended before {words!r}: {self.shown[-500:]!r}")
        at = self.shown.index(words) + len(words)
        text, self.shown = self.shown[:at], self.shown[at:]
        return text

    def type(self, text):
        os.write(self.leader, text.encode() if isinstance(text, str) else text)

    def quit(self):
        self.type("/quit\n")
        self.assertEqual(self.process.wait(60), 0)

    def edited(self):
        linked = subprocess.run(["ldd", model_test.PROGRAM], text=True, capture_output=True, timeout=60).stdout
        if "libedit" not in linked:
            self.skipTest("built without libedit")

    def test_unknown_commands_are_named(self):
        self.start()
        self.type("/statz\n")
        self.assertIn("there is no command \"/statz\"; did you mean '/stats'?", self.read_until("/quit"))
        self.quit()

    def test_characters_are_erased_whole(self):
        """One backspace a character, be it of three or four bytes and two columns wide; with and without editing."""
        for terminal in ("xterm", "dumb"):
            with self.subTest(terminal=terminal):
                self.start(TERM=terminal)
                self.type("/q\u4f60\u597d\U0001F600")
                time.sleep(0.3)
                self.type(b"\x7f\x7f\x7fuit\n")
                self.assertEqual(self.process.wait(60), 0)

    def test_lines_come_back_and_can_be_edited(self):
        self.edited()
        self.start("-n", "3")
        self.type("/xstats\n")
        self.read_until("> ", 60)
        self.type(b"\x1b[A")  # up: the line before
        self.type(b"\x01\x1b[C\x1b[3~\n")  # to its beginning, one to the right, delete the x
        self.assertIn("in the cache", self.read_until("each"))
        self.quit()

    def test_words_stay_whole_at_the_edge(self):
        self.write(eos=None, end_text="<|nothing|>")
        tokens = json.loads((self.model / "tokenizer.json").read_text())
        vocabulary = tokens["model"]["vocab"]  # digits begin words: the answer has some of any length
        tokens["model"]["vocab"] = {"\u0120" + text if text.isdigit() else text: n for text, n in vocabulary.items()}
        (self.model / "tokenizer.json").write_text(json.dumps(tokens))
        arguments = ("-n", "80", "--seed", "4", "-t", "1.5", "-q")
        plain = self.ok("chat", "model", "--template", "chatml", *arguments, input="hello\n").stdout.rstrip("\n")
        self.assertIn(" ", plain)
        columns = 24
        self.start(*arguments, columns=columns)
        self.type("hello\n")
        shown = self.read_until("(cut after 80 tokens").removesuffix("(cut after 80 tokens")
        screen = Screen(shown.rpartition("hello\r\n")[2])
        self.assertLess(screen.widest, columns)
        self.assertGreater(len(screen.lines), 4)
        words = plain.split()
        self.assertEqual("".join(screen.text().split()), "".join(words))
        lines = screen.text().split("\n")
        for word in words:  # in a line, unless none can hold it
            self.assertTrue(len(word) >= columns or any(word in line.split() for line in lines), (word, lines))
        self.quit()

    def test_reset_keeps_what_the_model_was_told(self):
        """After /reset the same message is the same prompt as at the beginning; after /system it is another."""
        lines = "abc\n/stats\n/reset\nabc\n/stats\n/system\nabc\n/stats\n/system be brief\nabc\n/reset\nabc\n/stats\n"
        out = self.ok("chat", "model", "-n", "1", "-q", "--template", "chatml", "--system", "a long system message",
                      input=lines).stdout
        prompts = [int(n) for n in re.findall(r"prompt (\d+) token", out)]
        first, after_reset, without, twice = (b - a for a, b in zip([0, *prompts], prompts))
        self.assertEqual(after_reset, first)
        self.assertLess(without, first)
        self.assertEqual(twice % 2, 0)  # /reset keeps what /system said, too
        self.assertGreater(twice // 2, without)
        self.assertLess(twice // 2, first)
