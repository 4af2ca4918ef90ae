"""The commands that run language models from outside, on a golden model of a few thousand parameters."""

import json
import os
import pathlib
import pty
import select
import shutil
import signal
import string
import subprocess
import tempfile
import time
import unittest

PROGRAM = ""
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden/models"

# One character a token, and a token that ends an answer: the 64 of the golden model.
LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits


def tokenizer(end_text):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {letter: n for n, letter in enumerate(LETTERS)}
    vocabulary["\u0120"] = len(vocabulary)  # a space
    end = {"id": 63, "content": end_text, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    return {"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": byte_level,
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}


class ModelTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = pathlib.Path(self.folder.name, "model")
        shutil.copytree(GOLDEN / "llama", self.model)
        self.write(eos=63, end_text="<|im_end|>")
        self.env = {k: v for k, v in os.environ.items() if k not in ("ATTEND_ISA", "ATTEND_THREADS")}
        self.env["ATTEND_HOME"] = str(pathlib.Path(self.folder.name, "store"))

    def write(self, eos, end_text):
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps(config | {"bos_token_id": None, "eos_token_id": eos}))
        (self.model / "tokenizer.json").write_text(json.dumps(tokenizer(end_text)))

    def attend(self, *arguments, **more):
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder.name, env=self.env, text=True,
                              capture_output=True, timeout=120, **more)

    def ok(self, *arguments, **more):
        result = self.attend(*arguments, **more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_info_counts_what_is_there(self):
        text = self.ok("info", "model", "--tensors").stdout
        for words in ("family        llama", "parameters", "memory", "model.layers.0.self_attn.q_proj.weight"):
            self.assertIn(words, text)
        gpt3 = self.ok("info", "gpt-3").stdout
        for count in ("617,558,016", "14,495,514,624", "57,982,058,496"):
            self.assertIn(count, gpt3)

    def test_generates_the_same_text_for_the_same_seed(self):
        run = ("generate", "model", "once upon", "-n", "30", "-t", "1", "--seed", "5", "-q")
        first = self.ok(*run).stdout
        self.assertGreater(len(first), 10)
        self.assertEqual(self.ok(*run, "--threads", "1").stdout, first)
        self.assertNotEqual(self.ok(*run[:-2], "6", "-q").stdout, first)
        self.assertEqual(self.ok("generate", "model", "-", *run[3:], input="once upon").stdout, first)
        echoed = self.ok(*run, "--echo").stdout
        self.assertEqual(echoed, "once upon" + first)

    def test_says_what_memory_it_takes_before_and_after(self):
        result = self.ok("generate", "model", "abc", "-n", "5")
        self.assertRegex(result.stderr, r"memory: .*weights .*keys and values .*work ")
        self.assertRegex(result.stderr, r"answer 5 tokens.*ended by length; memory used ")

    def test_stops_where_it_is_told(self):
        text = self.ok("generate", "model", "abc", "-n", "40", "-q").stdout.rstrip("\n")
        stop = text[5:8]
        self.assertEqual(self.ok("generate", "model", "abc", "-n", "40", "-q", "--stop", stop).stdout,
                         text[: text.index(stop)] + "\n")

    def test_every_token_that_generation_config_lists_ends_an_answer(self):
        self.write(eos=None, end_text="<|nothing|>")
        text = self.ok("generate", "model", "abc", "-n", "40", "-q").stdout.rstrip("\n")
        last = text[10]
        ids = [62, LETTERS.index(last) if last in LETTERS else len(LETTERS)]
        (self.model / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        ended = self.ok("generate", "model", "abc", "-n", "40", "-q").stdout.rstrip("\n")
        cut = min(text.index(c) for c in (last, " ") if c in text)
        self.assertEqual(ended, text[:cut])

    def test_tensors_that_nothing_uses_are_named(self):
        weights = self.model / "model.safetensors"
        data = weights.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8:8 + size]), data[8 + size:]
        header["value_head.weight"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(body), len(body) + 4]}
        text = json.dumps(header).encode()
        weights.write_bytes(len(text).to_bytes(8, "little") + text + body + bytes(4))
        for command in (("info", "model"), ("generate", "model", "abc", "-n", "2"), ("convert", "model", "m.gguf")):
            self.assertIn('nothing uses 1 tensor: "value_head.weight"', self.ok(*command).stderr, command)
        self.assertEqual(self.ok("generate", "model", "abc", "-n", "2", "-q").stderr, "")

    def test_texts_are_cut_where_sentence_bert_config_says(self):
        folder = pathlib.Path(self.folder.name, "bert")
        shutil.copytree(GOLDEN / "bert", folder)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase]
        (folder / "vocab.txt").write_text("\n".join(words + [f"[unused{n}]" for n in range(96 - len(words))]) + "\n")
        (folder / "1_Pooling").mkdir()
        vectors = {}
        for mode in ("cls", "mean", "max"):
            (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": mode}))
            vectors[mode] = self.ok("embed", "bert", "a b c").stdout
        self.assertEqual(len(set(vectors.values())), 3)
        whole = self.ok("embed", "bert", "a b c d e f")
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
        cut = self.ok("embed", "bert", "a b c d e f")
        self.assertNotEqual(cut.stdout, whole.stdout)
        self.assertEqual(cut.stdout, vectors["max"])
        self.assertIn("1 text longer than 5 tokens", cut.stderr)

    def test_streams_without_end(self):
        self.write(eos=None, end_text="<|nothing|>")
        result = self.ok("generate", "model", "abc", "-n", "700", "--stream", "64")
        self.assertIn("answer 700 tokens", result.stderr)
        result = self.ok("generate", "model", "abc", "-n", "700")
        self.assertIn("ended by context", result.stderr)

    def test_logprobs_show_the_likeliest(self):
        lines = self.ok("generate", "model", "abc", "-n", "2", "--logprobs", "3", "-q").stdout.splitlines()
        self.assertEqual(len([line for line in lines if line]), 2 * 4)

    def test_evaluates_a_text(self):
        text = pathlib.Path(self.folder.name, "text.txt")
        text.write_text("the quick brown fox jumps over the lazy dog " * 20)
        out = self.ok("eval", "model", text, "--window", "64").stdout
        self.assertRegex(out, r"perplexity  \d+\.\d+ \+- ")
        self.assertRegex(out, r"loss        \d+\.\d+ nats a token, \d+\.\d+ bits a byte")

    def test_converts_there_and_back(self):
        self.ok("convert", "model", "model.gguf")
        self.ok("convert", "model.gguf", "again")
        answers = {self.ok("generate", path, "abc", "-n", "20", "-q", "--cache", "f32").stdout
                   for path in ("model", "model.gguf", "again")}
        self.assertEqual(len(answers), 1)
        self.assertEqual(self.attend("convert", "model", "again").returncode, 1)

    def test_chats(self):
        lines = "hello\n/stats\n/nonsense\n/reset\nagain\n/quit\n"
        result = self.ok("chat", "model", "-n", "8", "-q", "--template", "chatml", input=lines)
        self.assertRegex(result.stdout, r"prompt \d+ tokens")
        self.assertIn("(a new conversation)", result.stdout)
        self.assertIn("/stats", result.stdout)  # what is not known is answered with what is

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        self.write(eos=None, end_text="<|nothing|>")
        master, slave = pty.openpty()
        process = subprocess.Popen([PROGRAM, "chat", "model", "-n", "100000", "--stream", "64", "--template", "chatml"],
                                   cwd=self.folder.name, env=self.env, stdin=slave, stdout=slave, stderr=slave,
                                   start_new_session=True)
        os.close(slave)
        self.addCleanup(process.kill)

        def read_until(words, seconds=30):
            text, end = "", time.monotonic() + seconds
            while words not in text:
                self.assertLess(time.monotonic(), end, text[-500:])
                if select.select([master], [], [], 0.1)[0]:
                    text += os.read(master, 65536).decode(errors="replace")
            return text

        read_until("/help lists commands")
        os.write(master, b"hello\n")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        read_until(" ...")
        os.write(master, b"/stats\n")
        self.assertIn("in the cache", read_until("each"))
        os.write(master, b"/quit\n")
        self.assertEqual(process.wait(30), 0)
        os.close(master)

    def test_wrong_use_says_what_to_do(self):
        for arguments, words in (
            (("generate", "nosuch", "x"), "attend pull"),
            (("generate", "model", ""), "the prompt is empty"),
            (("generate", "model", "abc", "-t", "-1"), "temperature"),
            (("chat", "model"), "--template"),
            (("chat", "model", "--template", "nosuch"), "chatml"),
            (("chat", "model", "--template", "chatml", "--thinking", "on"), "thinking cannot be turned on"),
            (("generate", "model", "abc", "--thinking", "on"), "expected --chat"),
            (("embed", "model", "abc"), "attend pull minilm"),
            (("generate", "model", "a" * 500), "the context is"),
        ):
            result = self.attend(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(words, result.stderr, arguments)
        (self.model / "config.json").write_text('{"model_type": "llama", "vocab_size": -5}')
        result = self.attend("info", "model")
        self.assertEqual(result.returncode, 1)
        self.assertIn('"vocab_size" is -5', result.stderr)
