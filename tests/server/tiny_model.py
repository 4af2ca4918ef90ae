"""A model of a few thousand parameters with a vocabulary that JSON can be written with, and the server that serves it."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden/models"
# One character a token; \u0120 is the byte-level name of a space, \u010a of a line end.
CHARACTERS = 'abcdefghijklmnopqrstuvwxyz0123456789{}[]":,.-_<>/\\!?\'#=()|+;' + "\u0120\u010a"
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Sources that have each family's marks, and the two special tokens of its vocabulary: the last ends an answer.
FORMS = {
    "tagged": (TEMPLATE + "{# <tool_response> #}", ("<|im_start|>", "<|im_end|>")),
    "list": ("{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}" + TEMPLATE,
             ("<|im_start|>", "<|im_end|>")),
    "llama": ("{{ '<|start_header_id|>' }}{# Cutting Knowledge Date #}", ("<|python_tag|>", "<|eot_id|>")),
    "mistral": ("{{ '[AVAILABLE_TOOLS]' }}{{ '[INST]' }}", ("[TOOL_CALLS]", "</s>")),
    "none": ("{{ '<|user|>\n' }}{{ '<|assistant|>' }}", ("<unused>", "</s>")),  # zephyr has no place for tools
}


def tokenizer(special):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {letter: n for n, letter in enumerate(CHARACTERS)}
    assert len(vocabulary) == 62
    added = [
        {"id": 62 + n, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for n, text in enumerate(special)
    ]
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
            "decoder": byte_level, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}


def write_model(folder, context=1024, template=TEMPLATE, special=("<|im_start|>", "<|im_end|>")):
    folder = pathlib.Path(folder)
    shutil.copytree(GOLDEN / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"bos_token_id": None, "eos_token_id": 63, "max_position_embeddings": context}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(special)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": special[1]}))
    return folder


def write_quantised(program, model, path):
    """The model in a GGUF file whose matrices are quantised."""
    plain = pathlib.Path(path).with_suffix(".plain.gguf")
    subprocess.run([program, "convert", model, plain], check=True, capture_output=True, timeout=120)
    subprocess.run([program, "convert", plain, path, "--type", "q8_0"], check=True, capture_output=True, timeout=120)
    return path


def write_encoder(folder):
    """A model that embeds; one letter a token."""
    shutil.copytree(GOLDEN / "bert", folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    pathlib.Path(folder, "vocab.txt").write_text("".join(f"{word}\n" for word in words + [f"[unused{n}]" for n in range(96 - len(words))]))
    return folder


class Server:
    """The program, started and ready; stop() ends it."""

    def __init__(self, program, *arguments, env=None, cwd=None, command="serve"):
        self.process = subprocess.Popen([program, command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env={**os.environ, **(env or {})}, cwd=cwd)
        self.url = (self.process.stdout.readline().decode().split() or [""])[-1]
        if not self.url:
            raise RuntimeError("the server did not start: " + self.process.stderr.read().decode())
        self.port = int(self.url.rstrip("/").rsplit(":", 1)[1])
        self.errors = None

    def stop(self, how=signal.SIGTERM):
        """Its exit code; self.errors is what it said."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            _, errors = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
        self.errors = errors.decode()
        return self.process.returncode

    def memory(self, what="VmRSS"):
        """Bytes that it holds; VmHWM: has held at most."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(what + ":"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no " + what)

    def ask(self, method, path, body=None, headers=None, raw=None):
        """(status, headers, body as JSON where it is some)"""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            data = raw if raw is not None else None if body is None else json.dumps(body)
            sent = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            kind = response.headers.get("Content-Type", "")
            return response.status, response.headers, json.loads(text) if kind == "application/json" and text else text if kind == "application/octet-stream" else text.decode()

    def stream(self, path, body):
        """The data of each event, as JSON but for the last, which has to be [DONE]."""
        status, headers, text = self.ask("POST", path, {**body, "stream": True})
        assert status == 200 and headers["Content-Type"] == "text/event-stream", text
        events = [line[len("data: "):] for line in text.split("\n\n") if line]
        assert events[-1] == "[DONE]", events
        return [json.loads(event) for event in events[:-1]]
