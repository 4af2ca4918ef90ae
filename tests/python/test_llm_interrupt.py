"""Ctrl-C in the middle of an answer, and what was left: the model is ready for the next call."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import llm_models
from attend import llm

# Each would take minutes or for ever.
CALLS = {
    "generate": "endless.generate('once upon', max_tokens=10**9)",
    "a batch": "endless.generate(['once upon', 'a'], max_tokens=10**9)",
    "stream": "sum(1 for _ in endless.stream('once upon', max_tokens=10**9))",
    "logits": "endless.logits(np.zeros(2**17, np.int32))",
}
SCRIPT = """
import signal, sys, threading
import numpy as np
from attend import llm
signal.signal(signal.SIGINT, signal.default_int_handler)
folder = sys.argv[1]
endless = llm.Model(folder, keep_last=64)
before = endless.generate("once upon", max_tokens=9)
{first}
try:
    print("ready", flush=True)
    {call}
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
{then}
print(endless.generate("once upon", max_tokens=9) == before, flush=True)
"""


def run(folder, call, first="", then=""):
    """What it says after Ctrl-C in the middle of the call."""
    script = SCRIPT.replace("{call}", call).replace("{first}", first).replace("{then}", then)
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script, folder], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, "ATTEND_THREADS": "1"})
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(0.5)  # into the call; before it would do too
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return out.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that never ends an answer by itself."""
    tokens = llm_models.letters_tokenizer("<|nothing|>")
    return llm_models.write_decoder(tmp_path_factory.mktemp("llm") / "endless", tokenizer=tokens, eos=None)


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c(folder, name):
    assert run(folder, CALLS[name]) == ["interrupted", "True"]


def test_answers_of_other_threads_go_on(folder):
    first = """
model = llm.Model(folder, context=100000)
expected = model.generate("a river", max_tokens=2000)
said = []
thread = threading.Thread(target=lambda: said.extend(model.generate("a river", max_tokens=2000) for _ in range(3)))
thread.start()
"""
    then = "thread.join(); print(said == [expected] * 3, flush=True)"
    assert run(folder, "model.generate('once upon', max_tokens=90000)", first, then) == ["interrupted", "True", "True"]


def test_a_step_that_was_stopped_leaves_nothing(tmp_path):
    """With steps of some tenths of a second Ctrl-C comes in the middle of one."""
    wide = llm_models.write_decoder(tmp_path / "wide", tokenizer=llm_models.letters_tokenizer("<|nothing|>"), eos=None)
    llm_models.widen(wide, hidden=512, layers=6)
    first = """
model, fresh = llm.Model(folder, context=8192), llm.Model(folder, context=8192)
ids = np.arange(8000) % 61
"""
    then = """
for prompt in (ids[:1100], ids[:600]):
    print(model.generate(prompt, max_tokens=3).tokens == fresh.generate(prompt, max_tokens=3).tokens, flush=True)
"""
    assert run(wide, "model.generate(ids, max_tokens=3)", first, then) == ["interrupted", "True", "True", "True"]


def test_leaving_a_loop_makes_room(folder):
    """An endless answer fills the cache: the next one would wait for ever."""
    script = ("import sys; from attend import llm; model = llm.Model(sys.argv[1], keep_last=32)\n"
              "for _ in model.stream('once upon', max_tokens=10**9): break\n"
              "print(model.generate('a', max_tokens=5).finish)")
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, timeout=120)
    assert done.stdout == "length\n", done.stderr


def test_a_signal_handler_may_not_ask_the_model_it_interrupts(folder):
    """It is refused, another model answers it, and the call goes on."""
    model, other, said = llm.Model(folder), llm.Model(folder), []
    tokens = np.zeros(12000, np.int32)  # some tenths of a second
    expected = model.logits(tokens, last=True)

    def handler(*_):
        assert other.generate("a", max_tokens=2) == "H4"
        try:
            said.append(str(model.generate("a", max_tokens=2)))
        except RuntimeError as error:
            said.append(str(error))

    refused = "model: a signal handler asked the model in the middle of a call on it; ask after the call"
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        for _ in range(100):  # a quick machine may be done before it is asked
            assert np.array_equal(model.logits(tokens, last=True), expected)
            if refused in said:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert refused in said and set(said) <= {"H4", refused}
