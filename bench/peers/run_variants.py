"""Every variant beside straightforward PyTorch code for the same formula; see docs/guide/variants.md.

usage: python bench/peers/run_variants.py [--only NAME] [--length L] [--growth] [--threads N] [--json PATH]

A module of variants/ has MAKES, a case of a name at a length, and LAWS. Where the formula is mostly products of matrices
its WORK says how many multiply-adds they are, forward + backward, each twice: nobody can be faster than the machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LAWS = {"L": lambda n: n, "L log L": lambda n: n * math.log2(n), "L^1.5": lambda n: n**1.5, "L^2": lambda n: n * n}
SLACK = 0.2  # how far a time may grow past its law
BUSY = 0.03  # share of the CPUs that others may take before the run is called unfit


def arguments():
    parser = argparse.ArgumentParser(description="Forward + backward of every variant beside straightforward PyTorch code "
                                                 "for the same formula: same numbers, same threads, interleaved.")
    parser.add_argument("--only", default="", metavar="NAME", help="only variants whose name contains this")
    parser.add_argument("--length", type=int, default=4096, metavar="L", help="of the comparison (default 4096)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of interleaved runs (default 5)")
    parser.add_argument("--growth", action="store_true", help="instead: attend alone, from 4k to 64k, against the law "
                                                              "by which its time should grow (quadratic ones only "
                                                              "with --only)")
    parser.add_argument("--longest", type=int, default=65536, metavar="L", help="of --growth (default 65536)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="for everybody (default: all usable CPUs)")
    parser.add_argument("--attend-bench", type=pathlib.Path, default=HERE.parents[1] / "build/bin/attend_bench",
                        metavar="PATH", help="the program that measures the machine's ceiling")
    parser.add_argument("--json", type=pathlib.Path, metavar="PATH", help="write all figures here")
    return parser.parse_args()


def variants(wanted):
    """(name, law, work, make) of every variant in bench/peers/variants/."""
    found = []
    for path in sorted((HERE / "variants").glob("*.py")):
        if path.stem.startswith("_"):
            continue
        module = importlib.import_module(f"variants.{path.stem}")
        work = getattr(module, "WORK", {})
        found += [(name, module.LAWS[name], work.get(name), make) for name, make in module.MAKES.items()
                  if wanted.lower() in name.lower()]
    return found


def seconds_of(call):
    gc.collect()
    time.sleep(0.01)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(name, make, length, rounds):
    """Right first, then interleaved."""
    case = make(length)
    worst = case.check()
    ours, theirs = [], []
    for number in range(rounds):
        pair = [(case.attend_step, ours), (case.torch_step, theirs)]
        for call, times in pair if number % 2 == 0 else pair[::-1]:
            times.append(seconds_of(call))
    ratio = statistics.median(b / a for a, b in zip(ours, theirs))
    return {"name": name, "length": length, "attend": statistics.median(ours), "torch": statistics.median(theirs),
            "ratio": ratio, "difference": None if worst is None else float(worst)}


def peak_growth(call):
    """Bytes of memory that the call took at most beyond what was held before; None where the system does not tell."""
    def held(field):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = held("VmRSS")
        call()
        return max(0, held("VmHWM") - before)
    except (OSError, StopIteration):
        return None


def grow(name, law, make, longest, rounds):
    """attend alone at 4k, 8k, ...: each length in every round, so that noise meets them all."""
    lengths = [n for n in (4096, 8192, 16384, 32768, 65536) if n <= longest]
    times, memory = {n: [] for n in lengths}, {}
    cases = {n: make(n) for n in lengths}
    for n in lengths:
        memory[n] = peak_growth(cases[n].attend_step)
    for _ in range(rounds):
        for n in lengths:
            times[n].append(seconds_of(cases[n].attend_step))
    middle = {n: statistics.median(x) for n, x in times.items()}
    excess = middle[lengths[-1]] / middle[lengths[0]] / (LAWS[law](lengths[-1]) / LAWS[law](lengths[0])) - 1
    return {"name": name, "law": law, "seconds": middle, "memory": memory, "excess": excess}


def show_most(results, peak):
    """Where products of matrices are most of the work: how long they take at the machine's peak, and so the largest ratio
    there can be."""
    bound = [r for r in results if "work" in r]
    if not bound:
        return
    if "median" not in peak:
        print(f"No ceiling: {peak['missing']}.")
        return
    print(f"\n{'products at ' + format(peak['median'] / 1e9, '.0f') + ' GFLOP/s, f32':40} {'GFLOP':>10} {'least':>10} "
          f"{'attend':>8}  {'largest ratio'}")
    for r in bound:
        least = r["work"] / peak["median"]
        print(f"{r['name']:40} {r['work'] / 1e9:>10.1f} {1e3 * least:>7.1f} ms {100 * least / r['attend']:>7.0f}%  "
              f"{r['torch'] / least:.1f}x")


def keep_memory():
    """Starts anew with an allocator that keeps what was freed, for both sides: else results of 128 MiB are fresh pages
    in every call, and at long lengths the time is that of the kernel clearing them."""
    if os.environ.get("MALLOC_MMAP_MAX_") != "0":
        os.environ.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40), MALLOC_TOP_PAD_=str(64 << 20))
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main():
    options = arguments()
    keep_memory()
    threads = options.threads or len(os.sched_getaffinity(0))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATTEND_THREADS"):
        os.environ[name] = str(threads)
    sys.path.insert(0, str(HERE))
    import torch
    from measure import Ceilings, OtherProcesses

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    others, ceilings, results = OtherProcesses(), Ceilings(threads, options.attend_bench), []
    chosen = variants(options.only)
    if not chosen:
        sys.exit(f"No variant's name contains {options.only!r}.")
    if options.growth and not options.only:  # quadratic ones take long, and are no news
        chosen = [x for x in chosen if x[1] != "L^2"]
    if options.growth:
        print(f"{'variant':40} {'law':8} " + " ".join(f"{n // 1024:>4}k ms" for n in (4096, 8192, 16384, 32768, 65536))
              + "   past the law  memory 4k -> longest")
    else:
        print(f"{'forward + backward, L' + str(options.length):40} {'attend':>10} {'PyTorch':>10} {'ratio':>8}  difference")
    for name, law, work, make in chosen:
        try:
            if options.growth:
                result = grow(name, law, make, options.longest, options.rounds)
                memory = [f"{x / 2**20:.0f} MiB" if x is not None else "?" for x in result["memory"].values()]
                mark = " " if result["excess"] <= SLACK else "!"
                print(f"{name:40} {law:8} " + " ".join(f"{1e3 * x:>8.1f}" for x in result["seconds"].values())
                      + f"   {100 * result['excess']:>+6.1f} % {mark}     {memory[0]} -> {memory[-1]}", flush=True)
            else:
                ceilings.measure()
                result = compare(name, make, options.length, options.rounds)
                shown = "" if result["difference"] is None else f"{result['difference']:.1e}"
                if work:
                    result["work"] = work(options.length)
                print(f"{name:40} {1e3 * result['attend']:>7.1f} ms {1e3 * result['torch']:>7.0f} ms "
                      f"{result['ratio']:>7.1f}x  {shown}", flush=True)
        except Exception as error:  # one that fails must not hide the others
            result = {"name": name, "failed": f"{type(error).__name__}: {error}"}
            print(f"{name:40} FAILED: {result['failed']}", flush=True)
        results.append(result)
        gc.collect()
    if not options.growth:
        show_most(results, ceilings.summary()["FMA"])
    share = others.share()
    if share is not None and share > BUSY:
        print(f"BUSY MACHINE: others took {100 * share:.0f} % of the CPUs meanwhile; these figures are not fit to publish.")
    if options.json:
        options.json.write_text(json.dumps({"threads": threads, "busy": share, "results": results}, indent=1))
    sys.exit(1 if any("failed" in r for r in results) else 0)


if __name__ == "__main__":
    main()
