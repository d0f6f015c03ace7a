#!/usr/bin/env python3
"""Writes the result tables of README.md and docs/ from the files in bench/results.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Without arguments every such block
is written anew; with --check nothing is written and a stale block is an error.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/experiments.md")
BLOCK = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


class Results:
    """The rows of one machine."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.rows: dict[tuple[str, ...], Row] = {}
        self.host = folder.with_name("amd-epyc")  # a quieter host processor than the GPU machine's
        for path in sorted(folder.glob("*.json")):
            if path.name == "goals.json":
                continue
            for row in json.loads(path.read_text())["rows"]:
                key = (row["suite"], row["case"], row["pass"], row["impl"],
                       f'{row["storage"]}/{row["math"]}')
                self.rows[key] = row
        self.goals: list[Row] = json.loads((folder / "goals.json").read_text())

    def ms(self, suite: str, case: str, pass_: str, impl: str, mode: str) -> float | None:
        """Median time of a row, if it was measured."""
        row = self.rows.get((suite, case, pass_, impl, mode))
        return row["median_ms"] if row and row["median_ms"] else None

    def best(self, suite: str, case: str, pass_: str, impls: tuple[str, ...],
             mode: str) -> float | None:
        """The smallest time among rows."""
        times = [self.ms(suite, case, pass_, impl, mode) for impl in impls]
        return min((time for time in times if time), default=None)


def show(time: float | None) -> str:
    """A time in milliseconds with three digits."""
    return "–" if time is None else f"{time:.3g}" if time < 100 else f"{time:.0f}"


def ratio(peer: float | None, ours: float | None) -> str:
    """How many times faster ours is."""
    if not peer or not ours:
        return "–"
    times = peer / ours
    return f"{times:.3g}x" if times < 1000 else f"{times:.0f}x"


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    body = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in body) + "\n"


def experiment1(results: Results) -> str:
    """Dense and automatic times of the 11-layer network, beside PyTorch's best layout."""
    torch = ("pytorch.cudnn", "pytorch.cudnn.nhwc")
    dense = ("cuda.dense", "cuda.dense.nhwc")
    lines = []
    for mode in ("f32/fp32", "f32/tf32"):
        for batch in (1, 256):
            for pass_, name in (("forward", "forward"), ("forward_backward", "forward + backward")):
                cells = [f"{mode[4:]}, batch {batch}, {name}"]
                case = f"b{batch}_"
                cells.append(show(results.best("experiment1", case + "zero", pass_, torch, mode)))
                cells.append(show(results.best("experiment1", case + "kaiming", pass_, torch, mode)))
                cells.append(show(results.best("experiment1", case + "kaiming", pass_, dense, mode)))
                for kind in ("scattered90", "zero"):
                    cells.append(show(results.ms("experiment1", case + kind, pass_, "cuda.auto", mode)))
                cells.append(ratio(results.best("experiment1", case + "zero", pass_, torch, mode),
                                   results.ms("experiment1", case + "zero", pass_, "cuda.auto", mode)))
                lines.append(cells)
    return table(["ms, graph replay", "PyTorch, zero weights", "PyTorch, random", "zerone dense",
                  "zerone, 90 % zeros", "zerone, all zero", "all zero: speed-up"], lines)


def spelled(results: Results, suite: str, spellings: tuple[tuple[str, str, str, str], ...],
            passes: tuple[str, str], second: str) -> str:
    """PyTorch beside ours for (name, our case, peer case, peer row), in each precision."""
    lines = []
    for mode in ("f32/fp32", "f32/tf32", "bf16/bf16"):
        for name, ours, peer, impl in spellings:
            cells = [f"{mode.split('/')[1]}, {name}"]
            for pass_ in passes:
                theirs = results.ms(suite, peer, pass_, impl, mode)
                own = results.ms(suite, ours, pass_, "cuda.auto", mode)
                cells += [show(theirs), show(own), ratio(theirs, own)]
            lines.append(cells)
    return table(["ms", "PyTorch forward", "zerone forward", "speed-up", f"PyTorch {second}",
                  f"zerone {second}", "speed-up"], lines)


def experiment2(results: Results) -> str:
    """The 128 -> 128 layer in every spelling."""
    spellings = (("conv 1x1, NCHW", "conv_nchw", "conv_nchw", "pytorch.cudnn"),
                 ("conv 1x1, NHWC", "conv_nhwc", "conv_nhwc", "pytorch.cudnn"),
                 ("linear, data laid out", "linear_laidout", "linear_laidout", "pytorch.linear"),
                 ("linear on NCHW data", "linear_permuted", "rearrange_linear", "pytorch.linear"),
                 ("linear on [B,T,C,H,W]", "linear_permuted_btchw", "rearrange_linear_btchw",
                  "pytorch.linear"))
    return spelled(results, "experiment2", spellings, ("forward", "forward_backward"), "fwd + bwd")


def mlp(results: Results) -> str:
    """The three-layer network on the same data."""
    spellings = (("conv 1x1, NCHW", "mlp_conv", "mlp_conv", "pytorch.cudnn"),
                 ("linear on NCHW data", "mlp_linear_permuted", "mlp_linear", "pytorch.linear"),
                 ("linear, data laid out", "mlp_linear_laidout", "mlp_linear_laidout",
                  "pytorch.linear"))
    return spelled(results, "mlp", spellings, ("forward", "train"), "step")


def cpu(results: Results) -> str:
    """Experiment 1 on a host processor."""
    results = Results(results.host)
    lines = []
    cases = sorted({key[1] for key in results.rows
                    if key[0] == "experiment1" and re.search(r"_t\d+$", key[1])},
                   key=lambda case: (int(case.rsplit("_t", 1)[1]), int(case[1:].split("_")[0]), case))
    for case in cases:
        for pass_ in ("forward", "forward_backward"):
            times = [results.ms("experiment1", case, pass_, impl, "f32/fp32")
                     for impl in ("pytorch.cpu", "cpu.onednn", "cpu.eigen", "cpu.zero_skip", "cpu.auto")]
            if times[0] and times[-1]:
                lines.append([f"{case}, {pass_}", *map(show, times), ratio(times[0], times[-1])])
    return table(["ms", "PyTorch", "oneDNN row", "Eigen row", "zero-skip row", "automatic",
                  "speed-up"], lines)


def breakeven(results: Results) -> str:
    """Dense against skipping, by density, for the suite zero_skip."""
    lines = []
    shapes = ("stack_b1", "stack_b32", "stack_b256", "resnet28")
    for shape in shapes:
        for zeros in ("0", "0.5", "0.75", "0.9", "0.95", "0.99"):
            case = f"{shape}.scattered_{zeros}"
            times = [results.ms("zero_skip", case, "forward", impl, mode)
                     for impl, mode in (("cuda.cudnn", "f32/fp32"), ("cuda.cudnn", "f32/tf32"),
                                        ("cuda.zero_skip", "f32/fp32"), ("cuda.auto", "f32/fp32"))]
            if any(times):
                lines.append([f"{shape}, {float(zeros):.0%} zeros", *map(show, times)])
    return table(["ms, forward", "cuDNN fp32", "cuDNN tf32", "zero-skip fp32", "automatic fp32"], lines)


def goals(results: Results) -> str:
    """The goals with what was measured."""
    lines = [[goal["id"], goal["goal"],
              "not measured" if goal["measured"] is None else f'{goal["measured"]:.3g} {goal["unit"]}',
              "yes" if goal["met"] else "no"] for goal in results.goals]
    return table(["id", "goal", "measured (worst case)", "met"], lines)


TABLES = {"experiment1": experiment1, "experiment2": experiment2, "mlp": mlp, "cpu": cpu,
          "breakeven": breakeven, "goals": goals}


def main() -> int:
    """Rewrites or checks the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a table is stale")
    parser.add_argument("--results", type=pathlib.Path,
                        default=ROOT / "bench" / "results" / "nvidia-h200")
    options = parser.parse_args()
    results = Results(options.results)
    stale = 0
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        fresh = BLOCK.sub(
            lambda match: f"{match[1]}{TABLES[match['name']](results)}{match[3]}", text)
        if fresh == text:
            continue
        stale += 1
        if options.check:
            print(f"{page}: its tables are not those of {options.results}", file=sys.stderr)
        else:
            path.write_text(fresh)
            print(f"{page}: tables written")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
