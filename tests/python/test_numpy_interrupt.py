"""Ctrl-C in the middle of a long call: KeyboardInterrupt, and the engine is ready for the next."""

import os
import signal
import subprocess
import sys
import time

import pytest

# Each would take minutes. Inputs are one number, repeated: they take no memory.
CALLS = {
    "attention": "attend.attention(like(1, 2, 2**18, 64), like(1, 2, 2**18, 64), like(1, 2, 2**18, 64))",
    "attention in float64": "attend.attention(*(like(1, 1, 2**15, 64, dtype=np.float64) for _ in range(3)))",
    "backward of few heads": "attend.attention_backward(*(like(1, 1, 2**18, 64) for _ in range(5)), like(1, 1, 2**18))",
    "backward of many heads": "attend.attention_backward(*(like(1, 128, 2**14, 64) for _ in range(5)),"
                              " like(1, 128, 2**14))",
    "a layer": "attend.MultiHeadAttention(64, heads=1).initialise(0)(like(1, 2**18, 64))",
    "a block": "attend.TransformerBlock(64, heads=1).initialise(0)(like(1, 2**18, 64), block=4096)",
    "additive attention": "attend.additive_attention(like(1, 1, 2**16, 64), like(1, 1, 2**16, 64), like(1, 64),"
                          " like(1, 1, 2**16, 64))",
    "reformer": "attend.reformer(like(1, 4, 2**18, 64), like(1, 4, 2**18, 64), rounds=256)",
}

SCRIPT = """
import signal, sys, time
import numpy as np, attend
signal.signal(signal.SIGINT, signal.default_int_handler)

def like(*shape, dtype=np.float32):
    return np.broadcast_to(np.asarray(0.5, dtype), shape)

x = np.random.default_rng(0).standard_normal((1, 2, 300, 32)).astype(np.float32)
before = attend.attention(x, x, x)
try:
    print("ready", flush=True)
    {call}
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(np.array_equal(attend.attention(x, x, x), before), flush=True)
"""


def run(script, threads, action):
    """Starts the script, acts once it says that it is ready, and returns what it says then."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, "ATTEND_THREADS": str(threads)})
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        action(process)
        out, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return out.split()


def interrupt(process):
    time.sleep(0.5)  # into the call; before it would do too
    process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c(name, threads):
    assert run(SCRIPT.replace("{call}", CALLS[name]), threads, interrupt) == ["interrupted", "True"]


def test_a_handler_that_raises_nothing_runs_during_the_call():
    script = """
import signal, time
import numpy as np, attend
ran = []
signal.signal(signal.SIGUSR1, lambda *_: ran.append(attend.attention(x[:, :, :9], x[:, :, :9], x[:, :, :9]).shape))
x = np.ones((1, 8, 3000, 64), np.float32)
out = None
print("ready", flush=True)
while out is None or not ran:
    out = attend.attention(x, x, x)
print(set(ran) == {(1, 8, 9, 64)}, np.allclose(out, 1), flush=True)
"""
    assert run(script, 2, lambda process: process.send_signal(signal.SIGUSR1)) == ["True", "True"]


def test_other_threads_are_not_interrupted():
    script = """
import signal, threading, time
import numpy as np, attend
signal.signal(signal.SIGINT, signal.default_int_handler)
x = np.ones((1, 8, 6000, 64), np.float32)
results = []
done = threading.Event()  # a join that was interrupted takes the thread for ended, in Python 3.11

def work():
    results.append(bool(np.allclose(attend.attention(x, x, x), 1)))
    done.set()

threading.Thread(target=work).start()
try:
    print("ready", flush=True)
    while True:  # the call may be quick: then the signal is yet to come
        time.sleep(0.01)
except KeyboardInterrupt:
    done.wait()
print(*results, flush=True)
"""
    assert run(script, 2, lambda process: process.send_signal(signal.SIGINT)) == ["True"]


def test_a_cache_stays_as_it_was():
    script = """
import signal
import numpy as np, attend
signal.signal(signal.SIGINT, signal.default_int_handler)
layer = attend.MultiHeadAttention(64, heads=1).initialise(0)
x = np.random.default_rng(0).standard_normal((1, 40, 64)).astype(np.float32)
cache = layer.cache(1, 2**18)
layer.step(x[:, :20], cache)
try:
    print("ready", flush=True)
    layer.step(np.broadcast_to(x[:, :1], (1, 2**17 + 2**16, 64)), cache)
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", cache.length, flush=True)
again = layer.cache(1, 64)
layer.step(x[:, :20], again)
print(np.array_equal(layer.step(x[:, 20:], cache), layer.step(x[:, 20:], again)), flush=True)
"""
    assert run(script, 2, interrupt) == ["interrupted", "20", "True"]
