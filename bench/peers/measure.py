"""Timing: right first, then interleaved rounds, medians and quartiles; and the ceilings of the same run."""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import subprocess
import time

import numpy as np

from peer import Unsupported

PAUSE = 0.01  # seconds between two candidates, so that the threads of the last one have gone to sleep
# A setting that strays further is left out (ggml's f16 cache on long rows: it sums values in f16).
TOLERANCE = {("f32", "forward"): 1e-3, ("bf16", "forward"): 6e-2, ("f32", "backward"): 1e-3, ("bf16", "backward"): 5e-2}


def quartiles(values):
    """Median, lower and upper quartile; of one value, that value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def difference(case, got, expected):
    """The largest error. An output's row is measured by the row's own size (late causal rows are small averages), a
    gradient by the largest gradient (rows of it may be zero)."""
    worst = 0.0
    for x, y in zip(got, expected):
        if x.shape != y.shape:
            return math.inf
        error = np.abs(x - y)
        if case.direction == "forward":
            size = np.sqrt(np.mean(np.square(y), axis=-1, keepdims=True))
        else:
            size = np.abs(y).max()
        ratio = float(np.max(error / (size + 1e-20)))
        worst = max(worst, ratio if ratio == ratio else math.inf)
    return worst


class Candidate:
    """A peer's fastest right way to compute a case, with the times of its rounds."""

    def __init__(self, peer, variant, call, estimate, error, tried):
        self.peer, self.variant, self.call, self.estimate = peer, variant, call, estimate
        self.error, self.tried, self.times = error, tried, {}

    def sample(self, round_number, least):
        """Seconds per call of a series that lasts about `least` seconds."""
        time.sleep(PAUSE)
        calls = max(1, math.ceil(least / self.estimate))
        with self.call.context():
            if self.estimate < 0.1:
                self.call.run()  # wakes the threads
            start = time.perf_counter()
            for _ in range(calls):
                self.call.run()
            self.times[round_number] = (time.perf_counter() - start) / calls


class Rejected:
    """Why a peer has no time for a case: it can't do it, it failed, or its answer is wrong."""

    def __init__(self, status, reason):
        self.status, self.reason = status, reason


def _try(call):
    """The result of one call, and the shortest time of this one and, if it is short, a few more."""
    with call.context():
        start = time.perf_counter()
        result = call.run()
        best = time.perf_counter() - start
        repeats = 3 if best < 0.2 else 1 if best < 2 else 0
        for _ in range(repeats):
            start = time.perf_counter()
            call.run()
            best = min(best, time.perf_counter() - start)
    return result, best


def choose(peer, case, data, expected, longest=math.inf):
    """The fastest of the peer's ways among those that give the expected answer (None: nothing to compare with). One
    that takes more than `longest` seconds is not timed."""
    try:
        variants = peer.variants(case, data)
    except Unsupported as reason:
        return Rejected("unsupported", str(reason))
    best, tried, wrong = None, {}, []
    for name, build in variants.items():
        try:
            call = build()
            result, seconds = _try(call)
            arrays = call.read(result)
        except Exception as error:  # a rival's failure is a finding, whatever its kind
            tried[name] = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
                           if str(error).strip() else type(error).__name__}
            continue
        error = 0.0 if expected is None else difference(case, arrays, expected)
        tried[name] = {"seconds": seconds, "error": error}
        if error > TOLERANCE[case.dtype, case.direction]:
            wrong.append(f"{name}: error {error:.2g}")
        elif best is None or seconds < best[2]:
            best = name, call, seconds, error
        del call, result, arrays
        gc.collect()
    if best is None:
        if wrong:
            return Rejected("wrong", "; ".join(wrong))
        return Rejected("failed", "; ".join(f"{name}: {x['failed']}" for name, x in tried.items()))
    name, call, seconds, error = best
    if seconds > longest:
        return Rejected("skipped", f"a call takes over {longest:g} s, too long for a quick run")
    return Candidate(peer, name, call, seconds, error, tried)


def interleave(candidates, budget, least, rounds_between):
    """A/B/C/A/B/C: every candidate once per round, beginning with another one each time, so that noise of the
    machine meets them all. A slow rival sits out the later rounds; it never gets fewer than the least number."""
    fewest, most = rounds_between
    cost = lambda c: PAUSE + max(least, c.estimate) + (c.estimate if c.estimate < 0.1 else 0)  # noqa: E731
    share = budget / len(candidates)
    rounds = {c: min(most, max(fewest, int(share / cost(c)))) for c in candidates}
    rounds[candidates[0]] = max(rounds.values())  # attend, with which all are compared
    gc.collect()
    gc.disable()
    try:
        for number in range(max(rounds.values())):
            first = number % len(candidates)
            for candidate in candidates[first:] + candidates[:first]:
                if number < rounds[candidate]:
                    candidate.sample(number, least)
    finally:
        gc.enable()


def ratios(ours, theirs):
    """How many times as long as attend the other took, round by round."""
    return [seconds / ours.times[number] for number, seconds in theirs.times.items()]


class OtherProcesses:
    """How much of the CPUs went to others while we measured, from Linux's /proc/stat: figures made beside them are
    unfair, most of all to rivals whose threads wait for each other at barriers."""

    def __init__(self):
        self.start = self._now()

    @staticmethod
    def _now():
        try:
            with open("/proc/stat") as file:
                fields = [int(x) for x in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        tick, times = os.sysconf("SC_CLK_TCK"), os.times()
        busy = (sum(fields) - fields[3] - fields[4]) / tick
        return sum(fields) / tick, busy, sum(times[:4])

    def share(self):
        """Between 0 and 1, None where it can't be known."""
        now = self._now()
        if self.start is None or now is None or now[0] <= self.start[0]:
            return None
        everything, busy, ours = (b - a for a, b in zip(self.start, now))
        return min(1.0, max(0.0, (busy - ours) / everything))


class Ceilings:
    """What the machine could do at most, measured again and again between the cases."""

    def __init__(self, threads, bench_program):
        self.threads, self.program = threads, bench_program
        self.values, self.missing, self.matrices = {}, {}, {}
        try:
            import torch

            for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
                self.matrices[name] = [torch.randn(1024, 1024).to(dtype) for _ in range(2)]
        except ImportError:
            self.missing["matmul f32"] = self.missing["matmul bf16"] = "torch is missing"
        if not (bench_program and bench_program.exists()):
            self._without_program("the program attend_bench is not built")

    def measure(self):
        for name, (a, b) in self.matrices.items():
            time.sleep(PAUSE)
            a @ b
            start = time.perf_counter()
            for _ in range(2):
                a @ b
            self.values.setdefault(f"matmul {name}", []).append(2 * 2 * 1024**3 / (time.perf_counter() - start))
        if "FMA" not in self.missing:
            done = subprocess.run([self.program, "--ceilings", "--threads", str(self.threads)], text=True,
                                  capture_output=True, timeout=60)
            if done.returncode != 0:
                return self._without_program(f"attend_bench failed: {done.stderr.strip()[:200]}")
            for name, value in json.loads(done.stdout).items():
                self.values.setdefault(name, []).append(value)

    def _without_program(self, why):
        self.missing.update({name: why for name in ("FMA", "bf16", "read")})

    def summary(self):
        result = {name: dict(zip(("median", "low", "high"), quartiles(x)), count=len(x))
                  for name, x in self.values.items()}
        result.update({name: {"missing": why} for name, why in self.missing.items()})
        return result
