"""attend beside its rivals: same numbers, same threads, interleaved; see docs/guide/benchmarks.md.

usage: python bench/peers/run.py [--quick] [--only NAME] [--threads N] [--json PATH] [--svg PATH]
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK_LIMIT = 130  # seconds after which a quick run starts no further case
CEILINGS_EVERY = 3  # cases
BUSY = 0.03  # share of the CPUs that others may take before the run is called unfit


def arguments():
    parser = argparse.ArgumentParser(description="Measures attend beside PyTorch, FlexAttention, ONNX Runtime, ggml "
                                                 "and NumPy: same numbers, same threads, interleaved.")
    parser.add_argument("--quick", action="store_true", help="a choice of the cases, in at most 3 minutes")
    parser.add_argument("--only", default="", metavar="NAME", help="only cases whose name contains this, e.g. 'L4096' "
                                                                   "or 'bf16 forward'")
    parser.add_argument("--peers", default="", metavar="NAMES", help="only rivals whose names contain one of these, "
                                                                     "separated by commas")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="for everybody (default: all usable CPUs)")
    parser.add_argument("--json", type=pathlib.Path, metavar="PATH", help="write all figures and the machine card here")
    parser.add_argument("--svg", type=pathlib.Path, metavar="PATH", help="draw the chart of ratios to PyTorch here")
    parser.add_argument("--attend-bench", type=pathlib.Path, default=ROOT / "build/bin/attend_bench", metavar="PATH",
                        help="the program that measures the machine's ceilings")
    parser.add_argument("--list", action="store_true", help="only print the names of the cases")
    options = parser.parse_args()
    if options.threads < 0:
        parser.error(f"--threads is {options.threads}, expected at least 1")
    return options


def set_environment(threads):
    """Before anything is imported: the pools of these libraries read it once."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ATTEND_THREADS"):
        os.environ[name] = str(threads)
    # OpenBLAS's threads would otherwise spin for tens of milliseconds into the next one's time.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    # torch.compile's compiler runs as our own child, so that its time is not taken for a neighbour's.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def load_peers(threads, wanted):
    """attend first; then all rivals that can be used, and why the others can't."""
    import ggml_peer
    import numpy_peer
    import onnx_peer
    import torch_peers
    from attend_peer import Attend

    peers, missing = [Attend(threads)], {}
    for kind in (torch_peers.SDPA, torch_peers.Flex, onnx_peer.OnnxRuntime, ggml_peer.Ggml, numpy_peer.NumPy):
        if wanted and not any(text.lower() in kind.name.lower() for text in wanted):
            continue
        try:
            peers.append(kind(threads))
        except Exception as error:  # an ImportError, a library that does not load, a function that is not there
            missing[kind.name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return peers, missing


def measure_case(case, peers, quick, skip):
    """{peer name: Candidate with its times, or why there is none}."""
    from cases import Data
    from measure import Candidate, Rejected, choose, interleave

    data = Data(case)
    found = {"attend": choose(peers[0], case, data, None)}
    ours = found["attend"]
    if not isinstance(ours, Candidate):
        raise RuntimeError(f"attend itself: {ours.reason}")
    expected = ours.call.read(ours.call.run())
    for peer in peers[1:]:
        print(f"{peer.name},", end=" ", flush=True)
        found[peer.name] = Rejected("skipped", skip[peer.name]) if peer.name in skip else \
            choose(peer, case, data, expected, longest=2.0 if quick else math.inf)
    print("rounds:", end=" ", flush=True)
    del expected
    candidates = [x for x in found.values() if isinstance(x, Candidate)]
    if quick:
        interleave(candidates, budget=2.0, least=0.01, rounds_between=(3, 9))
    else:
        interleave(candidates, budget=10.0, least=0.03, rounds_between=(5, 25))
    return found


def not_in_quick(case):
    """FlexAttention compiles for seconds per shape: a quick run has it where its block masks matter."""
    if case.mask in ("window", "packed") or case.name == "B1 H8/8 L1024 D64 causal f32 forward":
        return {}
    return {"FlexAttention": "compiling takes too long for a quick run"}


def draw_chart(path, program, card, ceilings, results):
    """attend_bench draws it from the figures; `attend_bench --ratios FIGURES --svg CHART` does so again at any time."""
    import report

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        figures = pathlib.Path(folder, "figures.json")
        report.write_json(figures, card, ceilings, results)
        if subprocess.run([program, "--ratios", figures, "--svg", path]).returncode != 0:
            raise SystemExit("error: attend_bench could not draw the chart; its words are above")


def main():
    options = arguments()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = options.threads or usable
    set_environment(threads)
    started = time.monotonic()

    import cases
    import report
    from measure import Ceilings, OtherProcesses

    chosen = [c for c in (cases.quick_cases() if options.quick else cases.all_cases()) if options.only in c.name]
    if options.list:
        print("\n".join(c.name for c in chosen))
        return 0
    if not chosen:
        print(f"error: no case has {options.only!r} in its name; --list prints them", file=sys.stderr)
        return 1
    peers, missing = load_peers(threads, [x for x in options.peers.split(",") if x])
    card = report.machine_card(ROOT, threads, peers, missing)
    versions = ", ".join(f"{peer.name} {peer.version}" for peer in peers)
    print(f"{card['cpu']['model']}, {threads} threads; {versions}", flush=True)
    for name, why in missing.items():
        print(f"missing: {name} ({why})", flush=True)

    others, ceilings, results, left_out = OtherProcesses(), Ceilings(threads, options.attend_bench), [], []
    ceilings.measure()
    for number, case in enumerate(chosen, 1):
        if options.quick and time.monotonic() - started > QUICK_LIMIT:
            left_out = [c.name for c in chosen[number - 1 :]]
            break
        print(f"[{number}/{len(chosen)}, {time.monotonic() - started:.0f} s] {case.name}: trying", end=" ", flush=True)
        result = report.row(case, measure_case(case, peers, options.quick, not_in_quick(case) if options.quick else {}))
        if number % CEILINGS_EVERY == 0 or number == len(chosen):
            ceilings.measure()
        results.append(result)
        print(report.duration(result["attend"]["seconds"]["median"]), flush=True)

    names = [peer.name for peer in peers[1:]]
    print(f"\nattend's time, and each rival's time as a multiple of it: median (quartiles) of the rounds; "
          f"above 1 attend is faster\n\n{report.table(results, names, ceilings.summary())}\n")
    for line in [*report.summary(results, names), "", "Ceilings of this run", *report.ceiling_lines(ceilings.summary()),
                 "", "Notes", *report.reasons(results, names)]:
        print(line)
    for name, why in missing.items():
        print(f"{name}: missing ({why})")
    if left_out:
        print(f"not run, out of time: {', '.join(left_out)}")
    card["others_cpu_share"] = others.share()
    card["busy"] = (card["others_cpu_share"] or 0) > BUSY
    if card["busy"]:
        print(f"BUSY MACHINE: others took {100 * card['others_cpu_share']:.0f} % of the CPUs during this run; its "
              "figures favour whoever waits least for other threads and are not fit to be published")
    card["left_out"], card["seconds"] = left_out, round(time.monotonic() - started, 1)
    if options.json:
        report.write_json(options.json, card, ceilings.summary(), results)
        print(f"figures: {options.json}")
    if options.svg:
        draw_chart(options.svg, options.attend_bench, card, ceilings.summary(), results)
        print(f"chart: {options.svg}")
    wrong = any(p["status"] == "wrong" for r in results for p in r["peers"].values())
    print(f"{time.monotonic() - started:.0f} s" + ("; a WRONG answer was found, see the notes" if wrong else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
