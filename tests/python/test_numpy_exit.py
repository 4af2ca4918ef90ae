"""Python ends while a daemon thread is in a call: quietly, and with its own exit code."""

import subprocess
import sys

import pytest

from llm_models import folder  # noqa: F401 (a fixture)

# Each runs again and again in a daemon thread; `busy` is set once it has run for the first time.
CALLS = {
    "attention": "attend.attention(x, x, x)",
    "attention in float64": "attend.attention(*(x[:, :1, :300].astype(np.float64),) * 3)",
    "a long call": "(busy.set(), attend.attention(*(np.broadcast_to(np.float32(0.5), (1, 2, 2**18, 64)),) * 3))",
    "a callback": "attend.visit_weights(x, x, lse, lambda tile, weights: time.sleep(0.001))",
    "a callback that takes its time": "attend.visit_weights(x, x, lse, lambda tile, weights: (busy.set(), time.sleep(0.3)))",
    "a cache": "attend.paged_attention(x, cache, [0])",
    "a map": "attend.observe(x, x).map(progress=lambda *_: True)",
    "a model": "model.generate(['once upon', 'a'], max_tokens=60)",
    "a stream": "''.join(model.stream('once upon', max_tokens=60))",
    "logits": "model.logits('once upon')",
    "a tokenizer": "model.tokenizer.encode('once upon a time ' * 2000)",
    "opening a model": "llm.Model(folder)",
}

SCRIPT = """
import sys, threading, time
import numpy as np, attend
from attend import llm

folder = sys.argv[1]
x = np.random.default_rng(0).standard_normal((1, 2, 700, 32)).astype(np.float32)
_, lse = attend.attention(x, x, x, return_lse=True)
model = llm.Model(folder)
cache = attend.PagedKvCache(16, 2, 32)
cache.append(cache.add(), x, x)
busy = threading.Event()

def work():
    while True:
        {call}
        busy.set()

for _ in range({threads}):
    threading.Thread(target=work, daemon=True).start()
assert busy.wait(60)
time.sleep({seconds})
{last}
"""


def run(folder, call, threads=1, seconds=0.05, last="sys.exit(7)"):
    script = SCRIPT.format(call=CALLS[call], threads=threads, seconds=seconds, last=last)
    return subprocess.run([sys.executable, "-c", script, str(folder)], text=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("call", CALLS)
def test_python_ends_with_its_own_exit_code(folder, call):
    for threads, seconds in ((1, 0.05), (3, 0.02)):
        done = run(folder, call, threads, seconds)
        assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_calls_at_exit_still_work(folder):
    """Handlers that run before and after the engine's own, and what is only freed at the end, may use it."""
    last = """
import atexit
stream = model.stream('once upon', max_tokens=60)
next(stream)
atexit.register(lambda: print("handler", attend.attention(x, x, x).shape))
print("end")
"""
    done = run(folder, "attention", last=last)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "end\nhandler (1, 2, 700, 32)\n"
    script = """
import atexit
def late():
    x = np.ones((1, 1, 8, 8), np.float32)
    print(attend.attention(x, x, x).shape)
atexit.register(late)  # runs last
import numpy as np, attend
"""
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1, 1, 8, 8)\n", "")


def test_a_forked_child_ends_too(folder):
    last = """
import os
child = os.fork()
if child == 0:
    attend.attention(x, x, x)
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
sys.exit(0)
"""
    done = run(folder, "attention", last=last)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_in_a_callback_still_comes_back(folder):
    """What was raised while the GIL was taken for a callback is what the caller gets."""
    script = """
import numpy as np, attend
x = np.ones((1, 1, 8, 8), np.float32)
_, lse = attend.attention(x, x, x, return_lse=True)
def fails(tile, weights):
    raise KeyError("mine")
for _ in range(3):
    try:
        attend.visit_weights(x, x, lse, fails)
    except KeyError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "'mine'\n" * 3, "")
