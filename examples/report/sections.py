"""What a section of the page is made of, and what all experiments say in the same way: machine,
warnings, agreement with the reference, work and limits.

Everything is made of one file's figures alone. A figure that a file does not have takes what is
built on it out of the page, or a line says what is missing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

from figures import Cloud, Figure, Roofline, digits
from results import Json, Run

NBSP = "\N{NO-BREAK SPACE}"
ZERONE, DENSE = 0, 1  # styles of the series


@dataclasses.dataclass
class Table:
    """Cells of text; the first column names the row."""

    caption: str
    columns: Sequence[str]
    rows: list[list[str]]
    groups: Sequence[tuple[str, int]] = ()  # a line above the column names: text, columns it spans
    note: str = ""
    words: bool = False  # cells hold texts and are aligned to the left


@dataclasses.dataclass
class Part:
    """A heading with sentences, plots and tables under it."""

    title: str
    text: list[str] = dataclasses.field(default_factory=list)
    figures: list[Figure] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)
    terms: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    folded: bool = False  # shown when asked for
    folded_tables: bool = False  # only these are


@dataclasses.dataclass
class Section:
    """One run."""

    id: str
    title: str = ""
    question: str = ""
    subtitle: str = ""
    highlights: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # value, what it is
    answers: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # what of, in words
    warnings: list[str] = dataclasses.field(default_factory=list)
    parts: list[Part] = dataclasses.field(default_factory=list)

    def figures(self) -> Iterable[Figure]:
        """All panels."""
        return (figure for part in self.parts for figure in part.figures)


# ----------------------------------------------------------------------------------------- common


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Of two times, if both are there."""
    return numerator / denominator if numerator and denominator else None


def times(value: float | None) -> str:
    """ "0.98×", "5.59×", "46.2×" """
    return "–" if value is None else (f"{value:.2f}" if value < 9.995 else digits(value)) + "×"


def percent(value: float | None) -> str:
    """A share: "64 %", "1.2 %", "0 %"."""
    if value is None:
        return "–"
    return f"{100 * value:.{0 if value == 0 or value >= 0.0995 else 1}f}{NBSP}%"


def ms(value: float | None) -> str:
    """A time in a sentence."""
    return digits(value, "ms")


def scaled(value: float, unit: str) -> str:
    """ "4.08 TB/s" """
    size, prefix = (1e12, "T") if value >= 1e12 else (1e9, "G")
    return digits(value / size, prefix + unit)


def slug(text: str) -> str:
    """Fit for a file's name and an id."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def compared(faster: float) -> str:
    """What a ratio of times means: "5.6× faster", "the same (1.01×)", "1.2× slower"."""
    if 0.95 <= faster <= 1.05:
        return f"as fast ({times(faster)})"
    return f"{times(faster)} faster" if faster > 1 else f"{times(1 / faster)} slower"


def plain_pass(name: str) -> str:
    """ "forward + backward" """
    return re.sub(r"\s*\+\s*", " + ", name)


def short_pass(name: str) -> str:
    """For legends: "fwd + bwd"."""
    return "fwd + bwd" if "+" in name else name


def capital(text: str) -> str:
    """With its first letter raised."""
    return text[:1].upper() + text[1:]


def unique(values: Iterable[str]) -> list[str]:
    """In the order of their first appearance."""
    return list(dict.fromkeys(values))


def device_title(header: Json, device: str) -> str:
    """ "GPU, NVIDIA H200" """
    name = next((d["name"] for d in header.get("devices", []) if d["device"] == device), "")
    kind = "CPU" if device == "cpu" else "GPU"
    return f"{kind}, {name}" if name else kind


def machine_part(run: Run) -> Part:
    """Who measured."""
    header = run.header
    terms = [("processor", ", ".join(filter(None, [
        header.get("cpu", ""), f'{header["threads"]} thread{"s" * (header["threads"] != 1)}'
        if "threads" in header else ""])))]
    for device in header.get("devices", []):
        name = "" if device["device"] == "cpu" else device["name"] + "; "
        terms.append((device["device"], name + device.get("libraries", "")))
    mode = header.get("math")
    if isinstance(mode, dict):
        mode = "; ".join(f'{device}: {", ".join(names)}' for device, names in mode.items())
    shapes = "; ".join(f"{device}: {shape}" for device, shape in header.get("shapes", {}).items())
    for device, tops in header.get("ceilings", {}).items():
        matrix = ", ".join(f'{scaled(top["flops_per_second"], "FLOP/s")} ({name})'
                           for name, top in tops.get("matrix", {}).items())
        copy = scaled(tops["copy"]["bytes_per_second"], "B/s")
        terms.append((f"limits of {device}", f"copy {copy}; matrix product {matrix}"))
    terms += [("zerone", header.get("zerone", "")), ("commit", header.get("commit", "")),
              ("compiler", header.get("compiler", "")), ("storage", header.get("storage", "")),
              ("arithmetic", mode or ""), ("shapes", shapes), ("input", header.get("input", "")),
              ("seed", str(header.get("seed", ""))), ("date", header.get("date", "")),
              ("command", header.get("command", "")), ("file", run.path.name)]
    return Part("Machine and versions", terms=[(name, text or "not recorded")
                                               for name, text in terms
                                               if text or name in ("commit", "compiler")])


def warnings_of(run: Run, rows: Sequence[Json]) -> list[str]:
    """What a reader must know before any figure."""
    found = []
    if run.header.get("complete") is False:
        found.append("The run was interrupted: only what was measured by then is shown.")
    if not run.rows:
        found.append("The file holds no measured row.")
    noisy = sum(row["median_ms"] > 1.5 * row["min_ms"] for row in rows)
    if noisy * 4 > len(rows):
        found.append(f"The machine was busy: in {noisy} of {len(rows)} rows the median is more "
                     "than 1.5 times the minimum. Compare minima, or run again when it is idle.")
    if str(run.header.get("commit", "")).endswith("-dirty"):
        found.append("The sources differed from the commit that is named.")
    off = [row for row in rows if row.get("tolerance") and row.get("max_error") is not None
           and row["max_error"] > row["tolerance"]]
    if off:
        found.append("Further from the reference than allowed: "
                     f"{len(off)} row{'s' * (len(off) != 1)}.")
    return found


def agreement(rows: Sequence[Json]) -> list[tuple[str, str]]:
    """How well results agreed with the reference, in a sentence."""
    checked = [row for row in rows if row.get("tolerance") and row.get("max_error") is not None]
    if not checked:
        return []
    worst = max(checked, key=lambda row: row["max_error"] / row["tolerance"])
    return [("Checked first.",
             "Before any time was taken, results and gradients were compared with a reference in "
             f'double precision: the largest error is {worst["max_error"]:.1e} of the largest '
             f'value, {worst["tolerance"]:.1e} is allowed.')]


@dataclasses.dataclass
class Work:
    """What a row had to do, and how near to the machine's limits it came."""

    bytes: float
    flops: float  # those that were done
    seconds: float
    bandwidth: float | None  # bytes/s
    rate: float | None  # FLOP/s

    @property
    def floor(self) -> float | None:
        """Seconds below which this machine cannot do it, by its copy and matrix rates."""
        if not self.bandwidth or not self.rate:
            return None
        return max(self.bytes / self.bandwidth, self.flops / self.rate)

    def cells(self) -> list[str]:
        """The columns WORK_COLUMNS."""
        bandwidth, rate = self.bytes / self.seconds, self.flops / self.seconds
        return [digits(self.bytes / 1e6), digits(self.flops / 1e9), digits(self.flops / self.bytes),
                digits(bandwidth / 1e9), percent(ratio(bandwidth, self.bandwidth)),
                digits(rate / 1e9), percent(ratio(rate, self.rate)),
                percent(self.floor / self.seconds if self.floor else None)]


WORK_COLUMNS = ["MB", "GFLOP", "FLOP/byte", "GB/s", "of copy", "GFLOP/s", "of matrix", "of limit"]
WORK_NOTE = (
    "MB: operands read once and results written once, layout copies read and written in addition. "
    "GFLOP: two for each multiply-add that was done. Of copy, of matrix: share of the copy "
    "bandwidth and of the matrix product's rate measured in the same run. Of limit: the least time "
    "that either allows, divided by the median. More than 100 % is possible: data that stay in a "
    "cache move faster than a large copy, and some algorithms multiply less than the definition.")


def work(run: Run, row: Json, math_mode: str) -> Work | None:
    """Of a row, if the file says what it had to do."""
    if not row.get("bytes") or row.get("flops") is None:
        return None
    done = row["flops"] * (1 - (row.get("multiplies_skipped") or 0))
    if done <= 0:
        return None  # only zeros are written: no limit applies
    tops = run.header.get("ceilings", {}).get(row["device"], {})
    matrix = tops.get("matrix", {}).get(math_mode, {})
    return Work(row["bytes"] + 2 * (row.get("copied_bytes") or 0), done, row["median_ms"] / 1e3,
                tops.get("copy", {}).get("bytes_per_second"), matrix.get("flops_per_second"))


def roofline(name: str, title: str, clouds: Sequence[tuple[str, int, list[tuple[str, Work]]]]
             ) -> list[Figure]:
    """A panel, if there are limits and points."""
    top = next((w for _, _, points in clouds for _, w in points if w.floor), None)
    if not top or not top.bandwidth or not top.rate:
        return []
    unit, prefix = (1e12, "T") if top.rate >= 1e12 else (1e9, "G")
    made = [Cloud(label, style, [(w.flops / w.bytes, w.flops / w.seconds / unit, tag)
                                 for tag, w in points])
            for label, style, points in clouds if points]
    limits = f'{scaled(top.bandwidth, "B/s")}, {scaled(top.rate, "FLOP/s")}'
    return [Roofline(name, f"{title}; limits {limits}", f"{prefix}FLOP/s", top.bandwidth / unit,
                     top.rate / unit, made)]


def no_limits(run: Run) -> list[str]:
    """Says that the file lacks what the part is about."""
    if run.header.get("ceilings") and any(row.get("bytes") for row in run.rows):
        return []
    return ["The file does not say what the rows had to do or what the machine's limits are: it "
            "was written by an earlier version of the program."]


def choices(rows: Sequence[tuple[str, Json]]) -> Part:
    """Which implementations ran, each distinct list once."""
    merged: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for label, row in rows:
        lines = tuple((ran.get("op", ""), f'{ran.get("count", 1)}× {ran.get("problem", "")}',
                       ran.get("implementation", ""), ran.get("why", "") or "–")
                      for ran in row.get("ran") or [])
        if lines:
            merged.setdefault(lines, []).append(label)
    return Part("Which implementations ran", folded=True, tables=[
        Table("; ".join(labels),
              ["operation", "problem", "implementation", "why not the rows before"],
              [list(line) for line in lines], words=True)
        for lines, labels in merged.items()])


def by_device(run: Run, devices: Sequence[str],
              parts: Sequence[Callable[[str], Part]]) -> list[Part]:
    """The parts of each device; titles name it where there are several."""
    made = []
    for device in devices:
        for make_part in parts:
            part = make_part(device)
            part.title += f": {device_title(run.header, device)}" if len(devices) > 1 else ""
            made.append(part)
    return made


def finish(run: Run, section: Section) -> None:
    """Adds what every section has."""
    header, mode = run.header, run.header.get("math")
    facts = [device_title(header, device["device"]) for device in header.get("devices", [])]
    facts += [f'batch {header["batch"]}'] if "batch" in header else []
    facts += [f'{header["storage"]} storage'] if "storage" in header else []
    facts += [f"{mode} arithmetic"] if isinstance(mode, str) else []
    facts += [header["date"].replace("T", " ").replace("Z", " UTC")] if header.get("date") else []
    section.subtitle = " · ".join(facts)
    timed = [row for row in run.rows if "median_ms" in row]
    section.warnings = warnings_of(run, timed)
    section.answers += agreement(timed)
    section.parts.append(machine_part(run))
