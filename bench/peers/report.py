"""The table for the terminal, and the JSON with its machine card."""

from __future__ import annotations

import datetime
import json
import math
import os
import pathlib
import platform
import subprocess
import sys

from measure import Candidate, quartiles, ratios


def _cpu_flags():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


def _commit(root):
    done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"], text=True, capture_output=True)
    return done.stdout.strip() if done.returncode == 0 else None


def machine_card(root, threads, peers, missing):
    """Where and with what the figures were made."""
    import attend

    cpu = attend.cpu_info()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([pathlib.Path(sys.executable).name, *sys.argv]),
        "commit": _commit(root),
        "cpu": {"model": cpu["model"], "cpus": cpu["cpus"], "usable": affinity, "features": cpu["features"],
                "amx": sorted(flag for flag in _cpu_flags() if flag.startswith("amx"))},
        "threads": threads,
        "os": platform.platform(),
        "python": platform.python_version(),
        "versions": {peer.name: peer.version for peer in peers},
        "settings": {peer.name: peer.settings() for peer in peers if peer.settings()},
        "missing": missing,
    }


def row(case, found):
    """One case as data: attend's time, each rival's time and ratio. `found` is {peer name: Candidate | Rejected}."""
    ours = found["attend"]
    seconds = quartiles(list(ours.times.values()))
    result = {"name": case.name, "shape": case.shape, "dtype": case.dtype, "direction": case.direction,
              "flops": case.flops, "attend": _times(ours)}
    result["attend"]["flops_per_second"] = case.flops / seconds[0]
    if case.decode:
        result["attend"]["bytes_per_second"] = case.cache_bytes / seconds[0]
    result["peers"] = {}
    for name, other in found.items():
        if name == "attend":
            continue
        if not isinstance(other, Candidate):
            result["peers"][name] = {"status": other.status, "reason": other.reason}
            continue
        ratio = dict(zip(("median", "low", "high"), quartiles(ratios(ours, other))))
        result["peers"][name] = {"status": "ok", "variant": other.variant, "error": other.error,
                                 "ratio": ratio, **_times(other), "tried": other.tried}
    return result


def _times(candidate):
    values = list(candidate.times.values())
    return {"seconds": dict(zip(("median", "low", "high"), quartiles(values))), "rounds": len(values)}


def duration(seconds):
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    return ""


def ratio_text(peer):
    if peer["status"] != "ok":
        return {"unsupported": "-", "wrong": "WRONG", "failed": "failed", "skipped": "not run"}[peer["status"]]
    r = peer["ratio"]
    return f"{r['median']:.2f} ({r['low']:.2f}-{r['high']:.2f})"


def rate_text(result):
    ours = result["attend"]
    if "bytes_per_second" in ours:
        return f"{ours['bytes_per_second'] / 1e9:.1f} GB/s"
    return f"{ours['flops_per_second'] / 1e9:.0f} GFLOP/s"


def share_text(result, ceilings):
    """attend's rate as a share of what the machine could do at most in this run."""
    ours = result["attend"]
    decode = "bytes_per_second" in ours
    ceiling = ceilings.get("read" if decode else "bf16" if result["dtype"] == "bf16" else "FMA", {})
    if "median" not in ceiling:
        return "?"
    return f"{100 * ours['bytes_per_second' if decode else 'flops_per_second'] / ceiling['median']:.0f} %"


def table(results, names, ceilings):
    """Aligned columns: attend's time, rate and share of the ceiling, and every rival's time as a multiple of its."""
    lines = [["case", "attend", "rate", "of ceiling", *names]]
    for result in results:
        lines.append([result["name"], duration(result["attend"]["seconds"]["median"]), rate_text(result),
                      share_text(result, ceilings),
                      *(ratio_text(result["peers"][name]) for name in names)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    align = [str.ljust] + [str.rjust] * (len(widths) - 1)
    text = ["  ".join(f(cell, width) for f, cell, width in zip(align, line, widths)).rstrip() for line in lines]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def reasons(results, names):
    """Each reason for an empty cell once, with the rows it holds for, and which way of each rival was the fastest."""
    lines = []
    for name in names:
        why, chosen = {}, {}
        for result in results:
            peer = result["peers"][name]
            if peer["status"] == "ok":
                chosen.setdefault(peer["variant"], []).append(result["name"])
            else:
                why.setdefault((peer["status"], peer["reason"]), []).append(result["name"])
        for (status, reason), rows in why.items():
            lines.append(f"{name}, {status} in {_rows(rows)}: {reason}")
        if len(chosen) > 1:
            lines.append(f"{name}, fastest: " + "; ".join(f"{way}: {_rows(rows)}" for way, rows in chosen.items()))
    return lines


def _rows(rows):
    return f"{len(rows)} rows" if len(rows) > 2 else " and ".join(rows)


def summary(results, names):
    """The geometric mean of the ratios with each rival, and its best row."""
    lines = []
    for name in names:
        found = [(r["peers"][name]["ratio"]["median"], r["name"]) for r in results
                 if r["peers"][name]["status"] == "ok"]
        if not found:
            continue
        mean = math.exp(sum(math.log(x) for x, _ in found) / len(found))
        least, where = min(found)
        ahead = sum(x > 1 for x, _ in found)
        lines.append(f"{name}: attend is {mean:.2f} times as fast (geometric mean of {len(found)} rows), ahead in "
                     f"{ahead}; least: {least:.2f} ({where})")
    return lines


def ceiling_lines(ceilings):
    units = {"matmul f32": "torch matmul f32", "matmul bf16": "torch matmul bf16", "FMA": "multiply-add in registers",
             "bf16": "bf16 products in registers", "read": "read bandwidth"}
    lines = []
    for name, label in units.items():
        value = ceilings.get(name, {"missing": "not measured"})
        if "missing" in value:
            lines.append(f"{label}: not measured ({value['missing']})")
            continue
        unit = "GB/s" if name == "read" else "GFLOP/s"
        low, middle, high = (value[key] / 1e9 for key in ("low", "median", "high"))
        lines.append(f"{label}: {middle:.1f} {unit} ({low:.1f}-{high:.1f})")
    return lines


def write_json(path, card, ceilings, results):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": card, "ceilings": ceilings, "rows": results}, indent=1) + "\n")
