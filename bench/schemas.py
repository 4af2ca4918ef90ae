"""How long another client of `attend serve` waits between two tokens while an answer is held to an expensive JSON schema.

usage: schemas.py [MODEL] [--rounds N] [--tokens N] [--choices 1,4,16]

One client streams an answer without a schema, and the longest gap between two of its tokens is measured, first by itself, then
with a second client that asks for 1, 4 and 16 choices: without a schema (the baseline: more choices make a step longer), with
an enum of 9,700 texts next to 2,000 alternatives that are any string, and with 240 patterns that tell every two texts apart.
Medians over the rounds, and the server's memory after each.
"""

import argparse
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
ATTEND = pathlib.Path(os.environ.get("ATTEND_BUILD", ROOT / "build")) / "bin/attend"


def enum_and_strings():
    texts = [str(i * 7919 % 99991) for i in range(9700)]
    return {"anyOf": [{"enum": texts}] + [{"type": "string"}] * 2000}


def telling_texts_apart():
    return {"anyOf": [{"type": "string", "pattern": f"^.{{{i}}}{c}"} for c in "aeno" for i in range(60)]}


SCHEMAS = {"no schema": None, "enum and strings": enum_and_strings(), "240 patterns": telling_texts_apart()}


def body(schema, choices, tokens, stream):
    ask = {"messages": [{"role": "user", "content": "Write a long text."}], "max_tokens": tokens, "n": choices, "temperature": 1,
           "seed": 7, "stream": stream}
    if schema is not None:
        ask["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return json.dumps(ask)


def post(port, text):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/chat/completions", text, {"Content-Type": "application/json"})
    return connection.getresponse()


def stream_gaps(port, tokens):
    """Between the pieces of one streamed answer, in ms, as they arrive."""
    text = body(None, 1, tokens, True)
    with socket.create_connection(("127.0.0.1", port), timeout=600) as client:
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
                       f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        times = []
        while data := client.recv(1 << 16):
            times += [time.monotonic()] * (b"data: {" in data)
    return [(b - a) * 1000 for a, b in zip(times, times[1:])]


def longest_gap(port, tokens):
    """Of streamed answers of so many pieces together."""
    gaps = []
    while len(gaps) < tokens:
        gaps += stream_gaps(port, tokens)
    return max(gaps)


def with_another(port, schema, choices, tokens):
    """The gap while the other client asks again and again."""
    done, asking = threading.Event(), threading.Event()

    def ask():
        while not done.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request("POST", "/v1/chat/completions", body(schema, choices, 24, False), {"Content-Type": "application/json"})
            asking.set()
            response = connection.getresponse()
            if response.status != 200:
                raise SystemExit(f"{response.status}: {response.read()[:300]}")
            response.read()

    other = threading.Thread(target=ask)
    other.start()
    try:
        asking.wait()
        return longest_gap(port, tokens)
    finally:
        done.set()
        other.join()


def memory(process):
    """Resident, in MiB."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--choices", default="1,4,16")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [ATTEND, "serve", *([options.model] if options.model else []), "--port", port, "--log", "none"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                post(port, body(None, 1, 4, False)).read()
                break
            except OSError:
                time.sleep(0.1)
        gaps = [longest_gap(port, options.tokens) for _ in range(options.rounds)]
        for choices in map(int, options.choices.split(",")):  # what every run needs is allocated before it is measured
            with_another(port, None, choices, options.tokens)
        before = memory(process)
        print(f"no schema: longest gap {statistics.median(gaps):.1f} ms, memory {before:.0f} MiB")
        for choices in map(int, options.choices.split(",")):
            baseline = 0.0
            for name, schema in SCHEMAS.items():
                gap = statistics.median(with_another(port, schema, choices, options.tokens) for _ in range(options.rounds))
                baseline = gap if schema is None else baseline
                print(f"n = {choices:2}  {name:18} longest gap {gap:8.1f} ms ({gap - baseline:+.1f})   memory {memory(process) - before:+.0f} MiB", flush=True)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
