"""What was trained here, written as GGUF and run by llama.cpp: the same greedy text, English and Chinese.

ATTEND_LLAMA_PYTHON names a Python that has llama-cpp-python (pip builds it from source); without one the tests are skipped.
ATTEND_BUILD names the build folder (default: build)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("ATTEND_BUILD", ROOT / "build")) / "bin" / "attend"
PYTHON = os.environ.get("ATTEND_LLAMA_PYTHON", sys.executable)
PROMPTS = ["Once upon a time", "从前，有一个", "Tom was a brave boy.", "Lily had 3 apples. She found 4 more. Now Lily"]

SCRIPT = """
import json, sys
from llama_cpp import Llama
answers = []
for prompt in json.loads(sys.argv[2]):
    # A cache of f32: its f16 decides where two tokens are 1e-4 apart, as in models of a few steps.
    model = Llama(sys.argv[1], n_ctx=512, verbose=False, n_threads=1, type_k=0, type_v=0)
    tokens = model.tokenize(prompt.encode(), add_bos=False)
    made = model.create_completion(tokens, max_tokens=int(sys.argv[3]), temperature=0, repeat_penalty=1.0)
    answers.append([tokens, made["choices"][0]["text"]])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module", autouse=True)
def both():
    if subprocess.run([PYTHON, "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        pytest.skip("there is no llama-cpp-python: ATTEND_LLAMA_PYTHON can name a Python that has it")
    assert PROGRAM.exists(), f"{PROGRAM} is not there: ninja -C build bin/attend"


def attend(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_llama(path, tokens, prompts=PROMPTS):
    done = subprocess.run([PYTHON, "-c", SCRIPT, str(path), json.dumps(prompts), str(tokens)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_embedded_model_says_the_same(tmp_path):
    attend("export", "storyteller", tmp_path / "folder", "--type", "f32")
    attend("export", tmp_path / "folder", tmp_path / "s.gguf", "--type", "f32")
    for prompt, (_, text) in zip(PROMPTS, of_llama(tmp_path / "s.gguf", 60)):
        assert attend("generate", tmp_path / "s.gguf", prompt, "-n", 60, "-q").rstrip("\n") == text.rstrip("\n"), prompt


def test_the_quantised_file_loads_and_begins_alike(tmp_path):
    """llama.cpp rounds activations to eight bits there, so that close calls may differ later."""
    attend("export", "storyteller", tmp_path / "s.gguf")
    answers = of_llama(tmp_path / "s.gguf", 4)
    ours = [attend("generate", tmp_path / "s.gguf", prompt, "-n", 4, "-q").rstrip("\n") for prompt in PROMPTS]
    assert sum(a == b.rstrip("\n") for a, (_, b) in zip(ours, answers)) >= len(PROMPTS) - 1


def test_a_model_trained_here_says_the_same(tmp_path):
    # English alone: where an answer ends inside a character, llama-cpp-python does not stop.
    attend("corpus", "stories", "-n", 200, "-o", tmp_path / "s.jsonl", "--language", "en")
    attend("train", "pretrain", tmp_path / "s.jsonl", "-o", tmp_path / "run", "--hidden", 32, "--layers", 2, "--heads", 4,
           "--kv-heads", 2, "--head-dim", 16, "--steps", 60, "--rate", 0.01, "--batch", 4, "--length", 64, "--vocabulary", 400,
           "--compute", "f32")
    attend("export", tmp_path / "run", tmp_path / "m.gguf", "--type", "f32")
    english = [prompt for prompt in PROMPTS if prompt.isascii()]
    for prompt, (_, text) in zip(english, of_llama(tmp_path / "m.gguf", 30, english)):
        assert attend("generate", tmp_path / "m.gguf", prompt, "-n", 30, "-q").rstrip("\n") == text.rstrip("\n"), prompt
