"""Measures attend serve and llama_cpp.server (of llama-cpp-python) on the same file, interleaved in one run.

usage: serve.py MODEL.gguf [--rounds N] [--concurrency 1,4,8,16] [--tokens N] [--requests N] [--threads N] [--json FILE]

`attend bench serve` is the client of both: time to first token, inter-token latency, tokens per second. No ratio is printed:
llama_cpp.server serves one request at a time, so it is not a baseline for concurrent chats (llama-server with parallel slots is).
It runs with --interrupt_requests false, so that a new request does not cancel the one in progress.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTEND = pathlib.Path(os.environ.get("ATTEND_BUILD", ROOT / "build")) / "bin/attend"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(url, process, seconds=120):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"{url}: the server ended with {process.returncode}")
        try:
            urllib.request.urlopen(url + "/v1/models", timeout=1).read()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{url}: no answer within {seconds} s")


def start(name, model, threads):
    port = free_port()
    if name == "attend":
        command = [ATTEND, "serve", model, "--port", port, "--threads", threads, "--log", "none"]
    else:
        command = [sys.executable, "-m", "llama_cpp.server", "--model", model, "--port", port, "--n_threads", threads, "--n_threads_batch", threads,
                   "--n_ctx", 8192, "--interrupt_requests", "false", "--verbose", "false"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    wait_for(url, process)
    return process, url


def measure(url, clients, options):
    result = subprocess.run([ATTEND, "bench", "serve", "--server", url, "-c", str(clients), "--requests", str(options.requests), "-n",
                             str(options.tokens), "--json"], capture_output=True, text=True)
    if result.returncode != 0:
        print(result.stderr.strip(), file=sys.stderr)
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", default="1,4,8,16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(f"{pathlib.Path(options.model).name}, {options.threads} threads; baseline: llama_cpp.server of llama-cpp-python "
          f"{importlib.metadata.version('llama-cpp-python')}, one request at a time; no ratio", flush=True)
    servers = {name: start(name, options.model, options.threads) for name in ("attend", "llama.cpp")}
    results = []
    try:
        for name, (_, url) in servers.items():
            measure(url, 1, argparse.Namespace(requests=1, tokens=8))  # the first answer pays for what is made once
        for clients in map(int, options.concurrency.split(",")):
            rows = {name: [] for name in servers}
            for _ in range(options.rounds):
                for name, (_, url) in servers.items():
                    rows[name].append(measure(url, clients, options))
            for name, measured in rows.items():
                line = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
                results.append({"server": name, **line})
                print(f"{clients:3} clients  {name:10} {line['tokens_per_second']:8.1f} tokens/s   first token {line['first_token_ms_p50']:8.1f} ms"
                      f"   between tokens {line['between_tokens_ms_p50']:7.1f} ms (p95 {line['between_tokens_ms_p95']:.1f})   failed {line['failed']:.0f}",
                      flush=True)
    finally:
        for process, _ in servers.values():
            process.terminate()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
