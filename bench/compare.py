#!/usr/bin/env python3
"""Merges one benchmark run into result files, prints ratios, and judges the goals.

Input files are Google Benchmark JSON of our binaries (a benchmark's name is
"<suite>/<case>/<pass>/<impl>/<storage>/<math>", its counters median_ms, min_ms, bytes, flops,
max_error and any others) and JSON of bench/peers_pytorch.py. Output: one <suite>.json a suite and
goals.json in bench/results/<machine>.

Names: a case on the CPU ends in _t<threads>; an impl ends in .nhwc where the case does not tell the
layout, in .eager where host time is measured; cuda.auto and cpu.auto are what zerone picks.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
HEADER_KEYS = ("machine", "driver", "cuda", "cudnn", "compiler", "commit", "date")
MORE_HEADER_KEYS = ("cpu", "torch", "threads")
KEY_FIELDS = ("suite", "case", "pass", "impl", "storage", "math")
COUNTERS = ("median_ms", "min_ms", "bytes", "flops", "max_error")
BENCHMARK_FIELDS = {  # what Google Benchmark itself writes beside the counters
    "name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions",
    "repetition_index", "threads", "iterations", "real_time", "cpu_time", "time_unit", "label",
    "error_occurred", "error_message", "skipped", "skip_message", "aggregate_name",
    "aggregate_unit", "bytes_per_second", "items_per_second"}
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}

Json = dict[str, Any]
Key = tuple[str, ...]

# ------------------------------------------------------------------------------------------ goals

F32: tuple[str, str] = ("f32", "fp32")
TF32: tuple[str, str] = ("f32", "tf32")
BF16: tuple[str, str] = ("bf16", "bf16")
CUDNN = ("pytorch.cudnn",)
DENSE_GPU = ("cuda.dense", "cuda.dense.nhwc", "pytorch.cudnn.nhwc")
DENSE_CPU = ("cpu.eigen*", "cpu.onednn*", "pytorch.cpu.nhwc")


@dataclasses.dataclass(frozen=True)
class Goal:
    """One goal: every combination of case, pass and mode must satisfy it; the worst one is told.

    measure: ratio = ours / peer, at most the limit; speedup = peer / ours, at least the limit;
    counter = our row's counter, at most the limit. Ours and the peer are the fastest rows (by
    median) that match; every pattern of `peers` must have a row, those of `rivals` may be missing.
    A case pattern with * stands for every such case that `peers` were measured on.
    """

    id: str
    goal: str
    measure: str
    limit: float
    suite: str
    cases: tuple[str, ...]
    passes: tuple[str, ...]
    ours: tuple[str, ...]
    peers: tuple[str, ...] = ()
    modes: tuple[tuple[str, str], ...] = (F32,)
    rivals: tuple[str, ...] = ()
    rival_modes: tuple[tuple[str, str], ...] = ()  # modes of peers and rivals beside our own
    below: bool = False  # the limit itself does not count
    counter: str = ""

    @property
    def unit(self) -> str:
        """Unit of the measured figure."""
        return {"ratio": "x (ours / peer)", "speedup": "x faster",
                "counter": "us" if "_us_" in self.counter else "count"}[self.measure]


BOTH = ("forward", "forward_backward")
GOALS = (
    Goal("F1.forward", "batch 1, fp32, eager forward: at most 0.5x PyTorch eager's wall time",
         "ratio", 0.5, "overhead", ("experiment1_b1",), ("forward",), ("cuda.auto.eager",),
         ("pytorch.cudnn.eager",)),
    Goal("F1.forward_backward",
         "batch 1, fp32, eager forward + backward: at most 0.35x PyTorch eager's wall time",
         "ratio", 0.35, "overhead", ("experiment1_b1",), ("forward_backward",),
         ("cuda.auto.eager",), ("pytorch.cudnn.eager",)),
    Goal("F1.host", "host time at most 4 us per operation of the network", "counter", 4.0, "overhead",
         ("experiment1_b1",), BOTH, ("cuda.auto.eager",), counter="host_us_per_op"),
    Goal("F1.memory", "steady state asks the driver for no memory", "counter", 0.0, "overhead",
         ("experiment1_b1",), BOTH, ("cuda.auto.eager",), counter="driver_allocations"),
    Goal("F2.nchw", "dense conv2d rows, NCHW: at most 1.05x PyTorch's cuDNN, graph replay",
         "ratio", 1.05, "experiment1", ("b1_kaiming", "b32_kaiming", "b256_kaiming"), BOTH,
         ("cuda.dense",), CUDNN, (F32, TF32, BF16)),
    Goal("F2.nhwc", "dense conv2d rows, NHWC: at most 1.05x PyTorch's cuDNN, graph replay",
         "ratio", 1.05, "experiment1", ("b1_kaiming", "b32_kaiming", "b256_kaiming"), BOTH,
         ("cuda.dense.nhwc",), ("pytorch.cudnn.nhwc",), (F32, TF32, BF16)),
    Goal("F3.linear", "linear on laid-out data: at most 1.05x PyTorch's Linear", "ratio", 1.05,
         "experiment2", ("linear_laidout",), BOTH, ("cuda.auto",), ("pytorch.linear",),
         (F32, TF32, BF16)),
    Goal("F3.pointwise", "pointwise on NCHW: at most 1.05x PyTorch's conv2d 1x1", "ratio", 1.05,
         "experiment2", ("conv_nchw",), BOTH, ("cuda.auto",), CUDNN, (F32, TF32, BF16)),
    Goal("F4.cuda", "all-zero weights, graph replay, automatic: at least 3x the best dense row",
         "speedup", 3.0, "experiment1", ("b1_zero", "b256_zero"), ("forward", "backward_data"),
         ("cuda.auto",), CUDNN, (F32,), DENSE_GPU, (TF32,)),
    Goal("F4.cpu", "all-zero weights, automatic, CPU: at least 3x the best dense row",
         "speedup", 3.0, "experiment1", ("b1_zero_t*", "b256_zero_t*"),
         ("forward", "backward_data"), ("cpu.auto",), ("pytorch.cpu",), (F32,), DENSE_CPU),
    Goal("F5", "CPU dense conv2d: at most 1.3x PyTorch's CPU time at equal threads", "ratio", 1.3,
         "experiment1", ("b1_kaiming_t*",), BOTH, ("cpu.auto", "cpu.eigen", "cpu.onednn"),
         ("pytorch.cpu",)),
    Goal("F6.cuda", "zeros scattered at 90 %, batch 256, forward: faster than cuDNN fp32", "ratio",
         1.0, "experiment1", ("b256_scattered90",), ("forward",), ("cuda.auto", "cuda.zero_skip"),
         CUDNN, (F32,), DENSE_GPU, below=True),
    Goal("F6.cpu", "zeros scattered at 90 %, batch 256, forward, CPU: 1.5x the best dense row",
         "speedup", 1.5, "experiment1", ("b256_scattered90_t*",), ("forward",),
         ("cpu.auto", "cpu.zero_skip"), ("pytorch.cpu",), (F32,), DENSE_CPU),
)


# ---------------------------------------------------------------------------------------- reading


def key_of(row: Json) -> Key:
    """What names a row."""
    return tuple(str(row[field]) for field in KEY_FIELDS)


def number(value: Any) -> float | None:
    """A finite number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def measured(row: Json) -> bool:
    """Whether a row carries a time."""
    return bool(row["median_ms"]) and row["median_ms"] > 0


def benchmark_row(entry: Json) -> Json:
    """A row from one entry of Google Benchmark's output."""
    parts = str(entry.get("run_name") or entry["name"]).split("/")
    if len(parts) < len(KEY_FIELDS) or not all(parts[:len(KEY_FIELDS)]):
        raise ValueError(f'benchmark name "{entry["name"]}" is not {"/".join(KEY_FIELDS)}')
    row: Json = dict(zip(KEY_FIELDS, parts))
    failed = entry.get("error_occurred") or entry.get("skipped")
    row |= {counter: None if failed else number(entry.get(counter)) for counter in COUNTERS}
    if failed:
        row["error"] = str(entry.get("error_message") or entry.get("skip_message") or "skipped")
    elif row["median_ms"] is None and "median_ms" not in entry:
        time = number(entry.get("real_time"))
        row["median_ms"] = time and time * MILLISECONDS[entry.get("time_unit", "ns")]
    extra = {name: value for name, value in entry.items()
             if name not in BENCHMARK_FIELDS | set(COUNTERS) and number(value) is not None}
    if extra and not failed:
        row["extra"] = extra
    return row


def merge_repetitions(rows: Sequence[Json]) -> Json:
    """One row from the repetitions of a benchmark: median of medians, least minimum."""
    good = [row for row in rows if measured(row)]
    if not good:
        return rows[0]
    merged = dict(good[0])
    merged["median_ms"] = statistics.median(row["median_ms"] for row in good)
    minima = [row["min_ms"] for row in good if row["min_ms"] is not None]
    merged["min_ms"] = min(minima) if minima else None
    errors = [row["max_error"] for row in good if row["max_error"] is not None]
    merged["max_error"] = max(errors) if errors else None
    return merged


def read_file(path: Path) -> tuple[Json, list[Json]]:
    """Header and rows of one input file of either kind."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if "benchmarks" in content:
        grouped: dict[Key, list[Json]] = {}
        for entry in content["benchmarks"]:
            if entry.get("run_type") != "aggregate":
                row = benchmark_row(entry)
                grouped.setdefault(key_of(row), []).append(row)
        context = content.get("context", {})
        header = {name: context[name] for name in HEADER_KEYS + MORE_HEADER_KEYS
                  if context.get(name)}
        header["command"] = context.get("command") or context.get("executable") or str(path)
        return header, [merge_repetitions(rows) for rows in grouped.values()]
    if "rows" not in content:
        raise ValueError(f"{path}: neither Google Benchmark JSON nor peer rows")
    rows = []
    for given in content["rows"]:
        row = {field: str(given[field]) for field in KEY_FIELDS}
        row |= {counter: number(given.get(counter)) for counter in COUNTERS}
        row |= {name: given[name] for name in ("error", "extra") if given.get(name)}
        rows.append(row)
    return content.get("header", {}), rows


def read_files(paths: Sequence[Path]) -> tuple[Json, list[Json]]:
    """Joins the files of one run; a row that two files hold is an error."""
    header: Json = {}
    rows: dict[Key, Json] = {}
    commands: dict[str, set[str]] = {}
    files = [(path, *read_file(path)) for path in paths]
    # The GPU's name, not the processor's, names a machine that has both.
    files.sort(key=lambda file: file[1].get("device") == "cpu")
    for path, given, file_rows in files:
        for name in HEADER_KEYS + MORE_HEADER_KEYS:
            value, known = given.get(name), header.get(name)
            if name in ("driver", "commit") and value and known and value != known:
                raise ValueError(f"{path}: {name} {value}, other files {known}: not one run")
            if value and not known:
                header[name] = value
        for row in file_rows:
            if key_of(row) in rows:
                raise ValueError(f'{path}: row {"/".join(key_of(row))} was in an earlier file')
            rows[key_of(row)] = row
            commands.setdefault(row["suite"], set()).add(str(given.get("command", path)))
    header["commands"] = {suite: sorted(names) for suite, names in sorted(commands.items())}
    return header, list(rows.values())


# -------------------------------------------------------------------------------------- fractions


def on_cpu(row: Json) -> bool:
    """Whether a row was measured on the processor."""
    return row["impl"].split(".")[0] == "cpu" or row["impl"].startswith("pytorch.cpu")


def threads_of(row: Json) -> str:
    """The _t<threads> suffix of a CPU row's case."""
    found = re.search(r"_t\d+$", row["case"])
    return found[0] if found else ""


def rate(row: Json, amount: str) -> float | None:
    """Bytes or FLOPs a second."""
    value = row.get(amount)
    return value / (row["median_ms"] * 1e-3) if value and measured(row) else None


def ceiling(rows: Iterable[Json], row: Json, amount: str) -> float | None:
    """The run's best copy bandwidth or matrix rate for the row's device, threads and mode."""
    math_mode = {"strict": "fp32"}.get(row["math"], row["math"])
    best = None
    for other in rows:
        if other["suite"] != "ceilings" or on_cpu(other) != on_cpu(row):
            continue
        if on_cpu(row) and threads_of(other) != threads_of(row):
            continue
        copies = other["pass"] == "copy"
        if copies != (amount == "bytes") or (not copies and other["math"] != math_mode):
            continue
        found = rate(other, amount)
        best = found if best is None or (found or 0) > best else best
    return best


def add_fractions(rows: Sequence[Json]) -> None:
    """Sets each row's fractions of the run's own ceilings; None where either is unknown."""
    tops = [row for row in rows if row["suite"] == "ceilings"]
    for row in rows:
        for name, amount in (("fraction_of_copy_bandwidth", "bytes"),
                             ("fraction_of_matrix_rate", "flops")):
            reached, top = rate(row, amount), ceiling(tops, row, amount)
            row[name] = round(reached / top, 4) if reached and top else None


# --------------------------------------------------------------------------------------- judgement


def matches(row: Json, patterns: Sequence[str]) -> bool:
    """Whether a row's impl is one of the patterns."""
    return any(fnmatch.fnmatchcase(row["impl"], pattern) for pattern in patterns)


def fastest(rows: Iterable[Json]) -> Json | None:
    """The row with the smallest median, or nothing."""
    good = [row for row in rows if measured(row)]
    return min(good, key=lambda row: row["median_ms"]) if good else None


def name_of(row: Json) -> str:
    """A row's name as in the inputs."""
    return "/".join(key_of(row))


def expand(goal: Goal, rows: Sequence[Json]) -> list[str]:
    """The goal's cases; a pattern becomes those that the peers were measured on."""
    cases: list[str] = []
    for case in goal.cases:
        if "*" not in case:
            cases.append(case)
            continue
        found = {row["case"] for row in rows if row["suite"] == goal.suite and measured(row)
                 and fnmatch.fnmatchcase(row["case"], case) and matches(row, goal.peers)}
        cases.extend(sorted(found) or [case])
    return cases


def compare_one(goal: Goal, cell: Sequence[Json], mode: tuple[str, str], name: str) -> Json:
    """Measures a goal on the rows of one case and pass."""
    def of_modes(modes: Sequence[tuple[str, str]]) -> list[Json]:
        return [row for row in cell if (row["storage"], row["math"]) in modes]

    result: Json = {"of": f"{name}/{'/'.join(mode)}", "value": None}
    missing = []
    ours = fastest(row for row in of_modes([mode]) if matches(row, goal.ours))
    if ours is None:
        missing.append(" or ".join(goal.ours))
    else:
        result["ours"], result["ours_ms"] = name_of(ours), ours["median_ms"]
    if goal.measure == "counter":
        value = number(ours.get("extra", {}).get(goal.counter)) if ours else None
        if ours and value is None:
            missing.append(f"counter {goal.counter}")
        result["value"] = value
    else:
        for pattern in goal.peers:
            if fastest(row for row in of_modes([mode]) if matches(row, [pattern])) is None:
                missing.append(pattern)
        peer = fastest(row for row in of_modes([mode, *goal.rival_modes])
                       if matches(row, goal.peers + goal.rivals))
        if peer is not None:
            result["peer"], result["peer_ms"] = name_of(peer), peer["median_ms"]
        if ours is not None and peer is not None:
            quotient = ours["median_ms"] / peer["median_ms"]
            result["value"] = 1 / quotient if goal.measure == "speedup" else quotient
    if missing:
        result |= {"value": None, "missing": missing}
    return result


def judge(goal: Goal, rows: Sequence[Json], commands: dict[str, list[str]], own: str) -> Json:
    """One entry of goals.json; a missing row means not measured, and not met."""
    results = []
    for case in expand(goal, rows):
        for pass_ in goal.passes:
            cell = [row for row in rows if row["suite"] == goal.suite and row["case"] == case
                    and row["pass"] == pass_]
            results += [compare_one(goal, cell, mode, f"{goal.suite}/{case}/{pass_}")
                        for mode in goal.modes]
    values = [result["value"] for result in results if result["value"] is not None]
    worst = (min if goal.measure == "speedup" else max)(values) if values else None
    missing = [f"{result['of']}: {', '.join(result['missing'])}" for result in results
               if "missing" in result]
    met = False
    if results and not missing and worst is not None:
        reached = worst >= goal.limit if goal.measure == "speedup" else worst <= goal.limit
        met = reached and not (goal.below and worst == goal.limit)
    entry: Json = {"id": goal.id, "goal": goal.goal, "limit": goal.limit, "measured": worst,
                   "unit": goal.unit, "met": met,
                   "command": " && ".join([*commands.get(goal.suite, []), own]), "rows": results}
    if missing:
        entry["not_measured"] = missing
    return entry


# ----------------------------------------------------------------------------------------- report


def reference_peer(row: Json, rows: Sequence[Json]) -> Json | None:
    """The PyTorch row that a row is set against: same case, pass and mode; its best layout."""
    eager = row["impl"].endswith(".eager")
    cases = [row["case"]]
    if row["suite"] == "zero_skip":  # a dense library's time does not depend on the pattern
        shape = row["case"].split(".")[0]
        cases.append(f"{shape}.scattered_0{threads_of(row)}")
    for case in cases:
        found = fastest(
            other for other in rows
            if other["impl"].startswith("pytorch.") and other["case"] == case
            and other["suite"] == row["suite"] and other["pass"] == row["pass"]
            and other["storage"] == row["storage"] and other["math"] == row["math"]
            and on_cpu(other) == on_cpu(row) and other["impl"].endswith(".eager") == eager)
        if found:
            return found
    return None


def percent(value: float | None) -> str:
    """A fraction for the tables."""
    return "-" if value is None else f"{100 * value:.1f}%"


def ratio_table(suite: str, rows: Sequence[Json]) -> str:
    """Readable table of one suite; ratio is the time over PyTorch's."""
    lines = [f"== {suite} (ratio = time / PyTorch's best row of the same case, pass and mode)"]
    width = max(len(f"{row['case']} {row['pass']}") for row in rows)
    for row in rows:
        head = f"{row['case']} {row['pass']}".ljust(width)
        mode = f"{row['storage']}/{row['math']}"
        if not measured(row):
            lines.append(f"{head}  {row['impl']:28} {mode:10} not measured"
                         + (f": {row['error']}" if "error" in row else ""))
            continue
        peer = reference_peer(row, rows)
        ratio = f"{row['median_ms'] / peer['median_ms']:7.3f}x" if peer else "       -"
        lines.append(f"{head}  {row['impl']:28} {mode:10} {row['median_ms']:10.4f} ms  {ratio}  "
                     f"copy {percent(row['fraction_of_copy_bandwidth']):>6}  "
                     f"matrix {percent(row['fraction_of_matrix_rate']):>6}")
    return "\n".join(lines)


def goal_table(goals: Sequence[Json]) -> str:
    """Readable table of the goals."""
    lines = ["== goals"]
    for goal in goals:
        state = "met" if goal["met"] else "NOT MET"
        value = "-" if goal["measured"] is None else f"{goal['measured']:.3f}"
        if goal.get("not_measured"):
            state = f"NOT MEASURED ({len(goal['not_measured'])} of {len(goal['rows'])})"
        lines.append(f"{goal['id']:20} {value:>9} {goal['unit']:16} limit {goal['limit']:<5} "
                     f"{state:26} {goal['goal']}")
    return "\n".join(lines)


def slug(text: str) -> str:
    """A folder name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unknown"


def git_commit() -> str:
    """The commit of this checkout, or nothing."""
    try:
        done = subprocess.run(["git", "-C", str(BENCH), "rev-parse", "HEAD"], capture_output=True,
                              text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def write(path: Path, content: Any) -> None:
    """Writes JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command-line options."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSON files of one run")
    parser.add_argument("--results", type=Path, default=BENCH / "results", help="output folder")
    parser.add_argument("--machine", help="folder below it (default: from the machine's name)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help=f"header entry that no file holds: {', '.join(HEADER_KEYS)}")
    parser.add_argument("--command", help="command line that repeats the run, for goals.json")
    parser.add_argument("--require-met", action="store_true",
                        help="exit 1 unless all goals are met")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Merges, prints and judges."""
    options = parse(arguments)
    try:
        header, rows = read_files(options.files)
        for item in options.set:
            name, separator, value = item.partition("=")
            if not separator or name not in HEADER_KEYS:
                raise ValueError(f"--set {item}: want KEY=VALUE, KEY of {', '.join(HEADER_KEYS)}")
            header[name] = value
    except (OSError, ValueError, KeyError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    header["commit"] = header.get("commit") or git_commit()
    header = {name: header.get(name, "") for name in HEADER_KEYS} | header
    commands = header.pop("commands")
    rows.sort(key=key_of)
    add_fractions(rows)
    folder = options.results / (options.machine or slug(str(header["machine"])))
    for suite in sorted({row["suite"] for row in rows}):
        of_suite = [row for row in rows if row["suite"] == suite]
        write(folder / f"{suite}.json",
              {"header": header | {"commands": commands[suite]}, "rows": of_suite})
        print(ratio_table(suite, of_suite), end="\n\n")
    own = " ".join(["python3 bench/compare.py", *map(str, options.files)])
    if options.command:
        commands, own = {}, options.command
    goals = [judge(goal, rows, commands, own) for goal in GOALS]
    write(folder / "goals.json", goals)
    print(goal_table(goals))
    print(f"{sum(goal['met'] for goal in goals)} of {len(goals)} met; written to {folder}")
    return 1 if options.require_met and not all(goal["met"] for goal in goals) else 0


if __name__ == "__main__":
    sys.exit(main())
