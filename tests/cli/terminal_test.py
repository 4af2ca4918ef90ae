"""What reaches a terminal of hostile names, vocabularies, texts and programs: nothing that commands it."""

import json
import os
import pathlib
import pty
import shutil
import subprocess
import threading
import unittest

import model_test

TITLE = "\x1b]0;hacked\x07"  # sets a terminal's title
SHOWN = "\\u001b]0;hacked\\u0007"


def level(text):
    """ASCII as a byte-level vocabulary spells it: controls and the space are moved up by 256."""
    return "".join(chr(ord(c) + 256) if ord(c) <= 32 else c for c in text)


class TerminalTest(model_test.GoldenModel):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.folder.name)
        self.env |= {"NO_COLOR": "1", "LC_ALL": "C.UTF-8", "HOME": self.folder.name}

    def hostile_vocabulary(self):
        """All tokens but a, b and c are escapes."""
        path = self.model / "tokenizer.json"
        made = json.loads(path.read_text())
        made["model"]["vocab"] = {text if text in "abc" else level(f"{TITLE}{n}"): n
                                  for text, n in made["model"]["vocab"].items()}
        path.write_text(json.dumps(made))
        self.config(eos_token_id=None)

    def config(self, **changes):
        path = self.model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def on_terminal(self, *arguments, typed="", term="xterm", code=0):
        """All that the program writes to a terminal, standard error included."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([model_test.PROGRAM, *map(str, arguments)], cwd=self.root, stdin=subprocess.PIPE,
                                   env=self.env | {"TERM": term}, stdout=follower, stderr=follower)
        os.close(follower)
        shown = []

        def read():
            try:
                while piece := os.read(leader, 65536):
                    shown.append(piece)
            except OSError:  # the program has ended
                pass

        reader = threading.Thread(target=read)
        reader.start()
        process.stdin.write(typed.encode())
        process.stdin.close()
        self.assertEqual(process.wait(120), code, shown)
        reader.join(60)
        os.close(leader)
        return b"".join(shown).decode()

    def assert_harmless(self, shown, *words):
        for bad in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e"):
            self.assertNotIn(bad, shown)
        for word in words:
            self.assertIn(word, shown)

    def test_what_a_model_writes(self):
        self.hostile_vocabulary()
        run = ("generate", "model", "abc", "-n", "8", "-q")
        self.assert_harmless(self.on_terminal(*run), SHOWN)
        self.assert_harmless(self.on_terminal(*run, "--logprobs", "2"), "hacked")
        (self.root / "p.txt").write_text("abc\n")
        answers = self.on_terminal("generate", "model", "--prompts", "p.txt", "-n", "8", "-q")
        self.assert_harmless(answers)
        self.assertIn("\x1b]0;hacked\x07", json.loads(answers)["text"])
        # A file has the bytes as they are.
        self.assertIn(TITLE, self.ok(*run).stdout)

    def test_what_a_model_writes_in_chat(self):
        self.hostile_vocabulary()
        for term in ("xterm", "dumb", ""):
            with self.subTest(term=term):
                shown = self.on_terminal("chat", "model", "--template", "chatml", "-n", "8", "-q", typed="abc\n", term=term)
                self.assert_harmless(shown.replace("\r\n", "").replace("\n", ""), "hacked")
                self.assertIn("u001b", shown)
        piped = self.ok("chat", "model", "--template", "chatml", "-n", "8", "-q", input="abc\n").stdout
        self.assertIn(TITLE, piped)

    def test_a_prompt_that_is_echoed(self):
        shown = self.on_terminal("generate", "model", f"a{TITLE}\u202e\u009b2Jb", "-n", "1", "-q", "--echo")
        self.assert_harmless(shown, f"a{SHOWN}\\u202e\\u009b2Jb")

    def test_texts_that_are_compared(self):
        bert = self.root / "bert"
        shutil.copytree(model_test.GOLDEN / "bert", bert)
        size = json.loads((bert / "config.json").read_text())["vocab_size"]
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
        (bert / "vocab.txt").write_text("\n".join([*words, *(f"w{n}" for n in range(size - len(words)))]))
        shown = self.on_terminal("embed", "bert", "-q", "-s", f"a{TITLE}", "b")
        self.assert_harmless(shown, f"a{SHOWN}")

    def test_names_of_files(self):
        name = f"{TITLE}m\u202e\u009b2J"
        os.rename(self.model, self.root / name)
        shown_name = f"{SHOWN}m\\u202e\\u009b2J"
        for run in (lambda *a: self.on_terminal(*a), lambda *a: self.ok(*a).stdout):
            self.assert_harmless(run("info", name), shown_name)
        self.assert_harmless(self.on_terminal("convert", name, f"{name}.gguf"), f"{shown_name}.gguf")
        self.assert_harmless(self.on_terminal("look", name, "abc", "-q"), shown_name)
        missing = f"{TITLE}missing"
        for command in (("info", missing), ("generate", missing, "a"), ("eval", name, missing), ("prepare", missing, "-o", "d"),
                        ("rm", missing), ("pull", missing), (missing,), ("info", "--" + missing), ("compare", missing, missing),
                        ("train", "resume", missing), ("merge", name, missing, "x"), ("look", name, "--text-file", missing)):
            code = self.attend(*command).returncode
            self.assertNotEqual(code, 0, command)
            self.assert_harmless(self.on_terminal(*command, code=code), "\\u001b]0;")

    def test_names_in_the_store(self):
        store = pathlib.Path(self.env["ATTEND_HOME"], "models", f"{TITLE}x")
        store.mkdir(parents=True)
        (store / "attend.json").write_text("{}")
        self.assert_harmless(self.on_terminal("models"), f"{SHOWN}x")

    def test_samples_in_training(self):
        text = "".join(f"{TITLE} once upon a time {n}\n<|endoftext|>\n" for n in range(40))
        (self.root / "t.txt").write_text(text)
        shown = self.on_terminal(
            "train", "pretrain", "t.txt", "-o", f"run{TITLE}", "--vocabulary", "300", "--hidden", "16", "--layers", "1", "--heads",
            "2", "--kv-heads", "1", "--feed-forward", "24", "--context", "64", "--length", "16", "--batch", "2", "--steps", "4",
            "--held-out", "0.1", "--sample-tokens", "4", "--compute", "f32")
        self.assert_harmless(shown, f"       {SHOWN}", f"run{SHOWN}/model is the model")
        piped = self.ok("train", "resume", f"run{TITLE}").stdout
        self.assert_harmless(piped, f"run{SHOWN}/model is the model")

    def test_what_a_learners_program_prints(self):
        (self.root / "answer.py").write_text(f"raise ValueError({TITLE + 'x'!r})\n")
        code = self.attend("lab", "check", "answer.py").returncode
        self.assert_harmless(self.on_terminal("lab", "check", "answer.py", code=code))


if __name__ == "__main__":
    model_test.PROGRAM = os.path.abspath(os.sys.argv.pop(1))
    unittest.main()
