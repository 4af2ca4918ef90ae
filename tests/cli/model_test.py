"""The commands that run language models from outside, on a golden model of a few thousand parameters."""

import json
import os
import pathlib
import pty
import re
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


class GoldenModel(unittest.TestCase):
    """A folder with the model, and the program run in it."""

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


class ModelTest(GoldenModel):
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

    def test_converts_gguf_to_gguf(self):
        self.ok("convert", "model", "model.gguf")
        answer = self.ok("generate", "model.gguf", "abc", "-n", "20", "-q").stdout
        self.ok("convert", "model.gguf", "f32.gguf", "--type", "f32")
        self.assertEqual(self.ok("generate", "f32.gguf", "abc", "-n", "20", "-q").stdout, answer)
        for type_name in ("f16", "bf16", "q8_0"):
            self.ok("convert", "f32.gguf", f"{type_name}.gguf", "--type", type_name)
            self.ok("generate", f"{type_name}.gguf", "abc", "-n", "20", "-q")
            self.ok("convert", f"{type_name}.gguf", "back.gguf", "--type", "f32", "--force")
        result = self.attend("convert", "model.gguf", "other.gguf")
        self.assertEqual(result.returncode, 1)
        self.assertIn("is GGUF already; ask for a type", result.stderr)
        self.ok("convert", "storyteller", "s.gguf", "--type", "f16")
        self.assertRegex(self.ok("info", "s.gguf").stdout, "f16|F16")

    def quantised(self):
        """q8.gguf, and f32.gguf with the same numbers in f32."""
        self.ok("convert", "model", "plain.gguf")
        self.ok("convert", "plain.gguf", "q8.gguf", "--type", "q8_0")
        self.ok("convert", "q8.gguf", "f32.gguf", "--type", "f32")
        pathlib.Path(self.folder.name, "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 20)

    def test_compute_f32_gives_the_results_of_the_converted_file(self):
        self.quantised()
        for before, after in ((("generate",), ("abcabc", "-n", "8", "--logprobs", "3")), (("eval",), ("text.txt",)),
                              (("look",), ("abcabc", "--json"))):
            def result(model, *more):
                out = self.ok(*before, model, *after, "-q", *more).stdout
                if before == ("look",):
                    out = json.loads(out)
                    self.assertEqual((out.pop("model"), out.pop("compute"), out.pop("rounds_rows")),
                                     (model, (more or ("", "file"))[1], model == "q8.gguf" and "f32" not in more))
                return out
            expected = result("f32.gguf")
            self.assertEqual(result("q8.gguf", "--compute", "f32"), expected, before)
            self.assertNotEqual(result("q8.gguf"), expected, before)
            self.assertEqual(result("q8.gguf", "--compute", "file"), result("q8.gguf"), before)

    def test_compute_reaches_every_command_and_its_memory(self):
        self.quantised()
        # ffn_down has 12 columns and is F16 in q8.gguf: it stays so, since it is multiplied in f32 either way.
        for command, more in ((("info",), {}), (("generate", "abc", "-n", "1"), {}), (("eval", "text.txt"), {}),
                              (("chat", "--template", "chatml", "-n", "1"), {"input": "abc\n"})):
            for compute, expected in ((), "33 KiB"), (("--compute", "file"), "33 KiB"), (("--compute", "f32"), "116 KiB"):
                result = self.ok(command[0], "q8.gguf", *command[1:], *compute, **more)
                weights = re.search(r"weights ([\d.]+ \w+)", result.stdout + result.stderr).group(1)
                self.assertEqual(weights, expected, command)
        text = self.ok("look", "q8.gguf", "abc", "-q").stdout
        self.assertIn("rows are rounded to int8 before each product", text)
        self.assertIn("--compute f32", text)
        text = self.ok("look", "q8.gguf", "abc", "-q", "--compute", "f32").stdout
        self.assertIn("compute f32: the quantised weights were dequantised on loading", text)
        self.assertNotIn("rounded", text)
        self.assertNotIn("compute", self.ok("look", "f32.gguf", "abc", "-q").stdout)
        self.assertIn("--compute is 'f32', and gpt-3 is a known shape", self.attend("info", "gpt-3", "--compute", "f32").stderr)
        served = self.attend("chat", "--server", "http://127.0.0.1:1", "--compute", "f32")
        self.assertEqual((served.returncode, "start 'attend serve' with --compute" in served.stderr), (2, True), served.stderr)

    def test_compute_is_file_or_f32(self):
        for command in (("generate", "model", "a"), ("chat", "model"), ("look", "model", "a"), ("eval", "model", "x"),
                        ("embed", "model", "a"), ("serve", "model"), ("explore", "model"), ("info", "model")):
            result = self.attend(*command, "--compute", "f16")
            self.assertEqual(result.returncode, 2, command)
            for words in ("--compute", "f16", "file", "f32"):
                self.assertIn(words, result.stderr, command)

    def test_a_pth_is_read_back(self):
        folder = pathlib.Path(self.folder.name, "out")
        folder.mkdir()
        said = self.ok("convert", "model", "out/m.pth").stdout
        self.assertIn("next to it, to read it with: config.json, tokenizer.json", said)
        answers = {self.ok("generate", path, "abc", "-n", "20", "-q").stdout for path in ("model", "out/m.pth")}
        self.assertEqual(len(answers), 1)
        (folder / "tokenizer.json").write_text("{}")
        self.assertIn("config.json and the tokenizer are not written", self.ok("convert", "model", "out/n.pth").stdout)

    def test_chats(self):
        lines = "hello\n/stats\n/nonsense\n/reset\nagain\n/quit\n"
        result = self.ok("chat", "model", "-n", "8", "-q", "--template", "chatml", input=lines)
        self.assertRegex(result.stdout, r"prompt \d+ tokens")
        self.assertIn("(a new conversation)", result.stdout)
        self.assertIn("/stats", result.stdout)  # what is not known is answered with what is

    def test_chat_samples_as_the_models_files_say(self):
        def chat(*options, **recommended):
            (self.model / "generation_config.json").write_text(json.dumps({"eos_token_id": 63, **recommended}))
            return self.ok("chat", "model", "-n", "200", "-q", "--template", "chatml", "--seed", "4", *options, input="hello\n").stdout

        plain = chat()
        self.assertEqual(chat("-t", "0.7", "--top-p", "0.9", "--min-p", "0.05", "--repetition-penalty", "1.05"), plain)
        warm = chat(temperature=1.4, top_p=0.99, min_p=0.01, top_k=40, repetition_penalty=1.3)
        self.assertNotEqual(warm, plain)
        self.assertEqual(chat("-t", "1.4", "--top-p", "0.99", "--min-p", "0.01", "--top-k", "40", "--repetition-penalty", "1.3"), warm)
        self.assertEqual(chat("-t", "0.7", temperature=1.4), plain)  # what is given wins, even if it is the default
        self.assertEqual(chat(do_sample=False), chat("-t", "0", temperature=1.4))
        self.assertEqual(chat("-t", "0"), chat("-t", "0", "--repetition-penalty", "1"))
        (self.model / "generation_config.json").write_text('{"temperature": -1}')
        refused = self.attend("chat", "model", "--template", "chatml", input="hello\n")
        self.assertEqual(refused.returncode, 1)
        self.assertIn('generation_config.json: "temperature" is -1, expected 0 to 100', refused.stderr)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        self.write(eos=None, end_text="<|nothing|>")
        master, slave = pty.openpty()
        process = subprocess.Popen([PROGRAM, "chat", "model", "-n", "100000", "--stream", "64", "--template", "chatml"],
                                   cwd=self.folder.name, env=self.env, stdin=slave, stdout=slave, stderr=slave,
                                   start_new_session=True)
        os.close(slave)
        self.addCleanup(process.kill)

        def read_until(pattern, seconds=30):
            text, end = "", time.monotonic() + seconds
            while not re.search(pattern, text):
                self.assertLess(time.monotonic(), end, text[-500:])
                if select.select([master], [], [], 0.1)[0]:
                    text += os.read(master, 65536).decode(errors="replace")
            return text

        read_until("/help lists commands")
        os.write(master, b"hello\n")
        read_until("(?s).{200}")  # the answer has begun
        process.send_signal(signal.SIGINT)
        read_until(r"\s\.\.\.")
        os.write(master, b"/stats\n")
        self.assertIn("in the cache", read_until("each"))
        os.write(master, b"/quit\n")
        self.assertEqual(process.wait(30), 0)
        os.close(master)

    def test_numbers_are_numbers(self):
        """Of every option: nothing is no 0, too much is not clipped, and 010 is not 8."""
        whole = ("", " ", "x", "1x", "+1", "010", "0x10", "1.5", "nan", "99999999999999999999999")
        real = ("", " ", "x", "0.5x", "nan", "inf", "1e999", "-1e999", "0,5")
        options = {"--seed": (*whole, "-1", "18446744073709551616"), "--top-k": (*whole, "-1"), "--tokens": (*whole, "0"),
                   "--context": (*whole, "-1"), "--stream": whole, "--threads": (*whole, "1025"),
                   "--top-p": (*real, "-0.1", "1.1"), "--min-p": (*real, "2"), "--temperature": (*real, "-1", "101"),
                   "--repetition-penalty": (*real, "0"), "--presence-penalty": (*real, "101")}
        for command in (("generate", "model", "abc"), ("chat", "model", "--template", "chatml")):
            for option, values in options.items():
                for value in values:
                    # CLI11 takes "--seed=" for an option whose value comes next.
                    given = [f"{option}={value}"] if value else [option, ""]
                    result = self.attend(*command, *given, input="")
                    self.assertEqual((result.returncode, result.stdout), (2, ""), (command, given))
                    self.assertIn(f"got '{value}', expected a", result.stderr, (command, given))
        for command, option in ((("eval", "model", "x.txt"), "--window"), (("info", "model"), "--context"),
                                (("generate", "model", "abc"), "--logprobs"), (("embed", "model"), "--threads")):
            for value in whole:
                result = self.attend(*command, option, value)
                self.assertEqual(result.returncode, 2, (command, value))
                self.assertIn(f"got '{value}', expected a whole number", result.stderr)
        # Seeds of 64 bits are all different.
        texts = {self.ok("generate", "model", "abc", "-n", "30", "-t", "1", "-q", "--seed", seed).stdout
                 for seed in ("0", "9223372036854775808", "18446744073709551614", "18446744073709551615")}
        self.assertEqual(len(texts), 4)

    def test_text_must_be_utf8(self):
        text = pathlib.Path(self.folder.name, "text.txt")
        text.write_bytes(b"the quick brown \xff fox " * 20)
        result = self.attend("eval", "model", text)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("text.txt:1: byte 16 is 0xff, expected text in UTF-8; it looks like ISO-8859-1; convert it: "
                      f"iconv -f ISO-8859-1 -t UTF-8 {text} > {text.with_name('text.utf8.txt')}", result.stderr)
        result = subprocess.run([PROGRAM, "generate", "model", "-"], cwd=self.folder.name, env=self.env,
                                input=b"ab\xc3", capture_output=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout), (1, b""))
        self.assertIn(b"standard input:1: byte 2 is 0xc3, expected text in UTF-8", result.stderr)
        result = subprocess.run([PROGRAM, "generate", "model", b"ab\xc4\xe3\xba\xc3"], cwd=self.folder.name, env=self.env,
                                capture_output=True, timeout=60)
        self.assertEqual((result.returncode, result.stdout), (2, b""))
        self.assertIn(b"the prompt:1: byte 2 is 0xc4, expected text in UTF-8; it looks like GB18030", result.stderr)

    def test_a_mark_and_crlf_change_nothing(self):
        """The same answer, and the same perplexity, of a text as Windows writes it."""
        plain, marked = "abc def\nghi jkl\n" * 9, ("abc def\r\nghi jkl\r\n" * 9).encode("utf-8-sig")
        pathlib.Path(self.folder.name, "plain.txt").write_text(plain)
        pathlib.Path(self.folder.name, "marked.txt").write_bytes(marked)
        self.assertEqual(self.ok("eval", "model", "plain.txt", "-q").stdout, self.ok("eval", "model", "marked.txt", "-q").stdout)
        run = [PROGRAM, "generate", "model", "-", "-n", "5", "-q"]
        answers = [subprocess.run(run, cwd=self.folder.name, env=self.env, input=text, capture_output=True, timeout=60).stdout
                   for text in (plain.encode(), marked)]
        self.assertEqual(*answers)
        answers = [self.ok("generate", "model", "--prompts", name, "-n", "3", "-q").stdout for name in ("plain.txt", "marked.txt")]
        self.assertEqual(*answers)

    def test_warns_of_a_context_beyond_the_models(self):
        self.assertNotIn("warning", self.ok("generate", "model", "abc", "-n", "2").stderr)
        self.assertIn("warning: --context is 100000, and the model was made for",
                      self.ok("generate", "model", "abc", "-n", "2", "--context", "100000").stderr)
        self.assertEqual(self.ok("generate", "model", "abc", "-n", "2", "--context", "100000", "-q").stderr, "")

    def test_the_demo_shows_words_and_marks_a_cut_answer(self):
        """With the golden model in the place of the one that the demo asks."""
        store = pathlib.Path(self.env["ATTEND_HOME"], "models", "smollm2")
        shutil.copytree(self.model, store)
        (store / "tokenizer_config.json").write_text(json.dumps({"chat_template": "<|im_start|>system\\n<|im_end|>"}))
        (store / "attend.json").write_text(json.dumps({"package": "x", "version": "1", "files": [
            {"path": "config.json", "bytes": 1, "sha256": ""}, {"path": "tokenizer.json", "bytes": 1, "sha256": ""}]}))
        small = ("demo", "--length", "64", "--heads", "2", "--kv-heads", "1", "--dim", "16")
        out = self.ok(*small).stdout
        self.assertRegex(out, r"(?s)  answer    .*\.\.\. \(cut after 40\s+tokens\)")
        map_of_model = out[out.index("looks most at other tokens"):]
        words = re.findall(r"(?m)^ *(\S+) [.:\-=+*#%@]+$", map_of_model)
        self.assertIn("".join("What_does_a_compiler_do"), "".join(words))  # a letter a token here, _ for a space
        self.assertRegex(map_of_model, r"(?m)^ +\S*What_does_a_compiler_do\S*$")  # downward, so all in one line
        self.assertIn("attend-demo-model.png", out)
        self.assertEqual(pathlib.Path(self.folder.name, "attend-demo-model.png").read_bytes()[:4], b"\x89PNG")

    # A file of prompts.

    def write_prompts(self, text, name="prompts.txt"):
        path = pathlib.Path(self.folder.name, name)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def test_answers_a_file_of_prompts_as_one_by_one(self):
        prompts = [f"once upon {n} " + "abc " * (n % 5) for n in range(23)]
        options = ("-n", "20", "-t", "1", "--seed", "9")
        alone = [self.ok("generate", "model", prompt, *options, "-q").stdout[:-1] for prompt in prompts]
        path = self.write_prompts("\n".join(prompts[:3]) + "\n\n  \r\n" + "\r\n".join(prompts[3:]))
        for batch in ("1", "4", "100"):
            result = self.ok("generate", "model", "--prompts", path, *options, "--batch", batch)
            answers = [json.loads(line) for line in result.stdout.splitlines()]
            self.assertEqual([a["text"] for a in answers], alone)
            self.assertEqual([a["prompt"] for a in answers], prompts)
            self.assertEqual([a["line"] for a in answers], [1, 2, 3, *range(6, 26)])
            self.assertTrue(all(a["finish"] in ("length", "stop token") for a in answers))
            # One token a letter; the token that ends an answer is not a separate one.
            self.assertEqual([a["tokens"] for a in answers], [len(a["text"]) for a in answers])
            self.assertTrue(all(a["tokens"] == 20 for a in answers if a["finish"] == "length"))
            self.assertIn("stop token", [a["finish"] for a in answers])
            self.assertEqual([a["prompt_tokens"] for a in answers], [len(prompt) for prompt in prompts])
            self.assertRegex(result.stderr, rf"23 prompts answered, {min(int(batch), 23)} at a time: \d+ tokens, ")
        from_input = self.ok("generate", "model", "--prompts", "-", *options, "-q", input="\n".join(prompts))
        self.assertEqual([json.loads(line)["text"] for line in from_input.stdout.splitlines()], alone)
        self.assertEqual(from_input.stderr, "")

    def test_prompts_may_be_json_lines(self):
        path = self.write_prompts('"one\\ntwo"\n{"prompt": "three", "id": 7}\n', "prompts.jsonl")
        answers = [json.loads(line) for line in
                   self.ok("generate", "model", "--prompts", path, "-n", "3", "-q").stdout.splitlines()]
        self.assertEqual([a["prompt"] for a in answers], ["one\ntwo", "three"])
        chat = self.ok("generate", "model", "--prompts", path, "-n", "3", "-q", "--template", "chatml", "--system", "x")
        self.assertGreater(json.loads(chat.stdout.splitlines()[0])["prompt_tokens"], answers[0]["prompt_tokens"])

    def test_a_bad_prompt_is_named_by_file_and_line(self):
        for name, text, words in (
            ("p.txt", b"abc\n\xff\n", "p.txt:2: byte 4 is 0xff, expected text in UTF-8"),
            ("p.txt", "abc\n\n" + "a" * 600 + "\n", "p.txt:3: the prompt has 600 tokens, and the context is"),
            ("p.txt", "abc\n\u4f60\n", "p.txt:2: the prompt has no tokens"),
            ("p.txt", "\n \n", "p.txt: there are no prompts in it"),
            ("p.jsonl", '"abc"\n{"text": 1}\n', 'p.jsonl:2: expected a string, or an object with a string "prompt"'),
            ("p.jsonl", '"abc"\n{"prompt": 1}\n', "p.jsonl:2: expected a string"),
            ("p.jsonl", '"abc"\n"abc\n', "p.jsonl:2: "),
        ):
            result = self.attend("generate", "model", "--prompts", self.write_prompts(text, name).name)
            self.assertEqual((result.returncode, result.stdout), (1, ""), (text, result.stderr))
            self.assertIn(words, result.stderr)
            self.assertNotIn("memory:", result.stderr)  # before anything is loaded
        self.assertEqual(self.attend("generate", "model", "--prompts", "missing.txt").returncode, 1)
        for arguments in (("abc", "--prompts", "p.txt"), ("--prompts", "p.txt", "--echo"), ("abc", "--batch", "2"),
                          ("--prompts", "p.txt", "--batch", "0"), ("--prompts", "p.txt", "--logprobs", "2")):
            self.assertEqual(self.attend("generate", "model", *arguments).returncode, 2, arguments)

    def test_wrong_use_says_what_to_do(self):
        for arguments, words in (
            (("generate", "nosuch", "x"), "attend pull"),
            (("generate", "model", ""), "the prompt is empty"),
            (("generate", "model", "abc", "-t", "-1"), "temperature"),
            (("chat", "model"), "--template"),
            (("chat", "model", "--template", "nosuch"), "chatml"),
            (("chat", "model", "--template", "chatml", "--thinking", "on"), "thinking cannot be turned on"),
            (("generate", "model", "abc", "--thinking", "on"), "expected --chat"),
            (("chat", "model", "--template", "chatlm"), "did you mean 'chatml'?"),
            (("generate", "model"), "the prompt is empty"),
            (("generate", "model", "abc", "--tokn", "3"), "did you mean '--tokens'?"),
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
