"""The section of a run of conv1x1_vs_linear."""

from __future__ import annotations

from collections.abc import Sequence

from figures import Bars, Dots, Series, digits
from results import Json, Run
from sections import (DENSE, Part, Section, Table, WORK_COLUMNS, WORK_NOTE, Work, ZERONE, by_device,
                      choices, device_title, no_limits, percent, roofline, short_pass, slug, unique,
                      work)

SPELLINGS = {
    "conv1x1_nchw": ("conv 1×1, NCHW", "A 1×1 convolution on [n, c, h, w], pixels contiguous."),
    "linear_relaid": ("linear + copy", "A linear layer as published: the images are first copied "
                                       "so that channels are contiguous, in every pass."),
    "linear_laid_out": ("linear, laid out", "The same on data whose copy was made before the clock "
                                            "started."),
    "linear_view": ("linear, view", "A linear layer on a permuted view of the images; nothing is "
                                    "copied."),
    "conv1x1_nhwc": ("conv 1×1, NHWC", "A 1×1 convolution on [n, c, h, w] whose channels are "
                                       "contiguous in memory."),
    "linear_btchw": ("linear, 5-D view", "A linear layer on a permuted view of a series of images, "
                                         "[b, t, c, h, w]."),
}
MATHS = {
    "strict": "f32, every product and sum in fp32 on plain units.",
    "fp32": "f32 with the error of fp32; tensor cores may be used where they keep it.",
    "tf32": "f32 rounded to 10 bits of mantissa before it is multiplied, summed in fp32.",
    "bf16": "f32 rounded to bf16 before it is multiplied, summed in fp32.",
    "fp16": "f32 rounded to fp16 before it is multiplied, summed in fp32.",
    "native": "16-bit storage multiplied as it is, summed in fp32.",
}
MODELS = {"layer": "One layer", "mlp": "Three-layer MLP"}
BASE = "conv1x1_nchw"


class Conv1x1:
    """Sentences, plots and tables of one run of conv1x1_vs_linear."""

    TIMES_NOTE = ("Copied: written only to change the layout. Of conv: median over rounds of the "
                  "time divided by that of conv 1×1 NCHW in the same round.")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: dict[tuple[str, str, str, str, str], Json] = {
            (r["device"], r["math"], r["model"], r["path"], r["pass"]): r for r in run.rows}
        self.devices = unique(r["device"] for r in run.rows)

    def maths(self, device: str) -> list[str]:
        """In the file's order."""
        return unique(r["math"] for r in self.run.rows if r["device"] == device)

    def keys(self, device: str, model: str, what: str) -> list[str]:
        """Paths or passes of a model."""
        return unique(r[what] for r in self.run.rows
                      if r["device"] == device and r["model"] == model)

    def row(self, *key: str) -> Json:
        """(device, math, model, path, pass); empty if it was not measured."""
        return self.rows.get(key, {})  # type: ignore[arg-type]

    def label(self, path: str) -> str:
        """For people."""
        return SPELLINGS.get(path, (path, ""))[0]

    def relative(self, device: str, mode: str, path: str) -> float | None:
        """Time of a layer's forward pass over that of conv 1x1 NCHW: median over the rounds."""
        shares = self.row(device, mode, "layer", path, "forward").get("percent_of_conv1x1") or {}
        return shares["median"] / 100 if shares.get("median") else None

    def answers(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Highlights and sentences."""
        highlights, text = [], []
        for device in self.devices:
            mode = "fp32" if "fp32" in self.maths(device) else self.maths(device)[0]
            relaid = self.relative(device, mode, "linear_relaid")
            view = self.relative(device, mode, "linear_view")
            copied = self.row(device, mode, "layer", "linear_relaid", "forward").get("copied_bytes")
            kind = "CPU" if device == "cpu" else "GPU"
            sentences = []
            if relaid:
                copy = f"; the copy alone writes {digits(copied / 1e6, 'MB')}" if copied else ""
                sentences.append(f"As published, with its copy, the linear layer's forward pass "
                                 f"takes {percent(relaid)} of the 1×1 convolution's time{copy}.")
                highlights.append((percent(relaid), f"of conv 1×1's time: linear with its copy, "
                                                    f"forward, {mode}, {kind}"))
            if view:
                sentences.append(f"On a view, without the copy, it takes {percent(view)}.")
                highlights.append((percent(view), f"of conv 1×1's time: linear on a view, forward, "
                                                  f"{mode}, {kind}"))
            if relaid and view and relaid > 1.05 * view:
                sentences.append("The copy is the cost, not the layer.")
            if sentences:
                text.append((f"{device_title(self.run.header, device)}, {mode}.",
                             " ".join(sentences)))
        return highlights, text

    def times_part(self, device: str) -> Part:
        """A panel a model and math mode, and its table."""
        part = Part("Time by path")
        for mode in self.maths(device):
            for model in MODELS:
                paths, passes = (self.keys(device, model, what) for what in ("path", "pass"))
                if not paths:
                    continue
                series = []
                for pass_, style in zip(passes, (ZERONE, DENSE)):
                    rows = [self.row(device, mode, model, path, pass_) for path in paths]
                    series.append(Series(pass_, style, [r.get("median_ms") for r in rows],
                                         [r.get("min_ms") for r in rows]))
                part.figures.append(Dots(
                    slug(f"time-{device}-{model}-{mode}"), f"{MODELS[model]}, {mode}",
                    "milliseconds a pass", [self.label(p) for p in paths], series))
                part.tables.append(self.times_table(device, model, mode, paths, passes))
        part.text.append("Marks are medians; the line to the left of a mark ends at the minimum. "
                         "The axis is logarithmic.")
        if part.tables:
            part.tables[-1].note = self.TIMES_NOTE
        part.folded_tables = len(part.tables) > 2
        return part

    def times_table(self, device: str, model: str, mode: str, paths: Sequence[str],
                    passes: Sequence[str]) -> Table:
        """Medians, minima, copies and ratios."""
        body = []
        for path in paths:
            cells = [self.label(path)]
            for pass_ in passes:
                row = self.row(device, mode, model, path, pass_)
                share = (row.get("percent_of_conv1x1") or {}).get("median")
                copied = row.get("copied_bytes")
                cells += [digits(row.get("median_ms")), digits(row.get("min_ms")),
                          digits(copied / 1e6 if copied is not None else None),
                          "–" if share is None else digits(share, "%")]
            body.append(cells)
        return Table(f"{MODELS[model]}, {mode}: milliseconds a pass",
                     ["path", *["median", "min", "copied MB", "of conv"] * len(passes)], body,
                     [("", 1), *((p, 4) for p in passes)])

    def work_part(self, device: str) -> Part:
        """Bytes by path, rooflines, and a table a math mode."""
        part = Part("Bytes moved and the machine's limits", no_limits(self.run))
        if part.text:
            return part
        first = self.maths(device)[0]
        paths, passes = (self.keys(device, "layer", what) for what in ("path", "pass"))
        for pass_ in passes:
            rows = [self.row(device, first, "layer", path, pass_) for path in paths]
            part.figures.append(Bars(
                slug(f"bytes-{device}-{pass_}"), f"Bytes moved, one layer, {pass_}", "MB a pass",
                [self.label(p) for p in paths],
                [Series("operands and results", ZERONE, [r.get("bytes", 0) / 1e6 for r in rows]),
                 Series("layout copy", DENSE, [2 * r.get("copied_bytes", 0) / 1e6 for r in rows])]))
        for mode in self.maths(device):
            body: list[list[str]] = []
            clouds: list[tuple[str, int, list[tuple[str, Work]]]] = []
            for model in MODELS:
                for pass_ in self.keys(device, model, "pass"):
                    points = []
                    for path in self.keys(device, model, "path"):
                        row = self.row(device, mode, model, path, pass_)
                        done = work(self.run, row, mode) if row else None
                        if done:
                            points.append(("", done))
                            body.append([f"{MODELS[model]}, {pass_}, {self.label(path)}",
                                         *done.cells()])
                    name = "layer" if model == "layer" else "MLP"
                    clouds.append((f"{name}, {short_pass(pass_)}", len(clouds), points))
            part.figures += roofline(slug(f"roofline-{device}-{mode}"), mode, clouds)
            part.tables.append(Table(mode, ["row", *WORK_COLUMNS], body))
        part.tables[-1].note = WORK_NOTE
        part.folded_tables = True
        part.text = ["A layout copy reads and writes every value once more. In the other panels "
                     "the slanted line is the copy bandwidth, the flat one the rate of a large "
                     "matrix product in that arithmetic, both measured in this run; marks of one "
                     "kind are the paths, and those further to the left copy."]
        return part

    def published_part(self) -> Part | None:
        """The published ratio beside ours."""
        published = self.run.published
        rows = {row["path"]: row for row in published.get("rows") or []}
        then = rows.get("linear_relaid", {})
        share = then.get("percent_of_conv1x1")
        if not share:
            return None
        labels = ["published"]
        low, middle, high = [share["min"]], [share["mean"]], [share["max"]]
        body = [["published", digits(rows.get(BASE, {}).get("ms")), digits(then.get("ms")),
                 *(f"{share[key]:.1f}" for key in ("min", "mean", "max"))]]
        for device in self.devices:
            for mode in self.maths(device):
                for path in ("linear_relaid", "linear_view"):
                    row = self.row(device, mode, "layer", path, "forward")
                    ours = row.get("percent_of_conv1x1")
                    if not ours:
                        continue
                    kind = "CPU" if device == "cpu" else "GPU"
                    labels.append(f"{kind} {mode}, {'copy' if path == 'linear_relaid' else 'view'}")
                    low.append(ours["min"])
                    middle.append(ours["mean"])
                    high.append(ours["max"])
                    conv = self.row(device, mode, "layer", BASE, "forward")
                    body.append([labels[-1], digits(conv.get("median_ms")),
                                 digits(row.get("median_ms")),
                                 *(f"{ours[key]:.1f}" for key in ("min", "mean", "max"))])
        figure = Dots("published", "Linear as a share of conv 1×1, forward",
                      "per cent, mean and range", labels,
                      [Series("mean; line: min to max", ZERONE, middle, low, high)], reference=100)
        return Part(
            "Published figures beside ours",
            [f'Published: {published.get("source", "")}, {published.get("shape", "")}. Other '
             "machines, so only each one's own ratio can be compared.",
             "100 % means that both layers take the same time. Copy: the images are re-laid in "
             "each pass, as published; view: nothing is copied."], [figure],
            [Table("Forward pass of one layer",
                   ["", "conv 1×1 NCHW, ms", "linear, ms", "min %", "mean %", "max %"], body,
                   note="Milliseconds: medians, as published for the first line. Per cent: linear "
                        "/ conv 1×1 NCHW, round by round.")])

    def explained(self) -> Part:
        """What each row is."""
        paths = unique(r["path"] for r in self.run.rows)
        maths = unique(r["math"] for r in self.run.rows)
        terms = [SPELLINGS.get(p, (p, "not described")) for p in paths]
        terms += [(m, MATHS.get(m, "not described")) for m in maths]
        terms += [("one layer", "128 → 128 channels with bias: 16,512 parameters either way."),
                  ("MLP", "Three such layers with ReLU between them; a training step is forward, "
                          "mean-square error, backward and the update."),
                  ("forward + backward", "Gradients of the input, the weight and the bias, by a "
                                         "real backward pass.")]
        return Part("What the rows mean", terms=terms)


def fill(run: Run, section: Section) -> None:
    """Fills the section."""
    page = Conv1x1(run)
    section.title = "1×1 convolution against linear"
    section.question = ("A 1×1 convolution and a linear layer over channels are the same thing. "
                        "What does each spelling cost?")
    section.highlights, section.answers = page.answers()
    published = page.published_part()
    section.parts = by_device(run, page.devices, [page.times_part, page.work_part])
    section.parts += [published] if published else []
    section.parts.append(page.explained())
    section.parts.append(choices([
        (f'{r["device"]}, {r["math"]}, {r["model"]}, {page.label(r["path"])}', r)
        for r in run.rows if r["pass"] != "forward"]))
