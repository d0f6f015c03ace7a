"""The section of a run of zero_weights."""

from __future__ import annotations

from figures import Dots, Lines, Series, digits
from results import Json, Run
from sections import (DENSE, Part, Section, Table, WORK_COLUMNS, WORK_NOTE, ZERONE, by_device,
                      capital, choices, compared, device_title, ms, no_limits, percent, plain_pass,
                      ratio, roofline, short_pass, slug, times, unique, work)

WEIGHTS = {
    "uniform": ("uniform [0, 1)", "Random weights, all positive, as in the published measurement; "
                                  "no zeros."),
    "kaiming": ("Kaiming normal", "Random weights as networks start with; no zeros."),
    "zeros50": ("50 % zeros", "Kaiming normal weights, half of them set to zero at random places."),
    "zeros90": ("90 % zeros", "As before, nine out of ten."),
    "zeros99": ("99 % zeros", "As before, ninety-nine out of a hundred."),
    "zero": ("all zero", "Every weight is zero, so every result is."),
}
PATHS = {
    "dense": "The fastest of the implementations that never look at the weights: oneDNN on the "
             "CPU, cuDNN or an own dense kernel on the GPU. Which ones ran is listed below.",
    "zerone": "What zerone chooses by itself: it looks at the weights and skips zeros where that "
              "is expected to pay.",
}
MODES = {
    "eager": "Each operation is launched by the program; wall time up to the device's end.",
    "graph": "The pass is recorded once as a CUDA graph and replayed; time on the device, without "
             "the host's.",
}


class ZeroWeights:
    """Sentences, plots and tables of one run of zero_weights."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: dict[tuple[str, str, str, str, str], Json] = {
            (r["device"], r["mode"], plain_pass(r["pass"]), r["path"], r["weights"]): r
            for r in run.rows}
        self.devices = unique(r["device"] for r in run.rows)
        self.weights = unique(r["weights"] for r in run.rows)
        self.random = next((w for w in ("uniform", "kaiming") if w in self.weights), "")

    def modes(self, device: str) -> list[str]:
        """The one without the host's time first."""
        found = unique(r["mode"] for r in self.run.rows if r["device"] == device)
        return sorted(found, reverse=True)

    def row(self, device: str, mode: str, pass_: str, path: str, weights: str) -> Json:
        """Empty if it was not measured."""
        return self.rows.get((device, mode, pass_, path, weights), {})

    def median(self, *key: str) -> float | None:
        """Of that row."""
        return self.row(*key).get("median_ms")

    def faster(self, device: str, mode: str, pass_: str, weights: str) -> float | None:
        """dense / zerone."""
        return ratio(self.median(device, mode, pass_, "dense", weights),
                     self.median(device, mode, pass_, "zerone", weights))

    def label(self, weights: str) -> str:
        """For people."""
        return WEIGHTS.get(weights, (weights, ""))[0]

    def where(self, device: str, mode: str) -> str:
        """ "GPU graph", "CPU" """
        return "CPU" if device == "cpu" else f"GPU {mode}"

    def answers(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Highlights and sentences."""
        highlights, text = [], []
        for device in self.devices:
            mode = self.modes(device)[0]
            name = device_title(self.run.header, device)
            name += ", graph replay" if mode == "graph" else ""
            here = (device, mode, "forward")
            on_random = self.median(*here, "dense", self.random)
            on_zero = self.median(*here, "dense", "zero")
            own = self.median(*here, "zerone", "zero")
            sentences = []
            if on_random and on_zero:
                gain = on_random / on_zero
                verdict = ("zeros alone make it no faster" if 0.95 <= gain <= 1.05 else
                           f"{compared(gain)} with zeros" + (", within what a busy machine makes "
                           "of equal work" if self.busy(here) else ""))
                sentences.append(f"The dense path's forward pass takes {ms(on_random)} with "
                                 f"random weights and {ms(on_zero)} with all weights zero: "
                                 f"{verdict}.")
            if on_zero and own:
                both = self.faster(device, mode, "forward + backward", "zero")
                more = f"; forward + backward, {compared(both)}" if both else ""
                sentences.append(f"zerone takes {ms(own)} with all weights zero, "
                                 f"{compared(on_zero / own)}{more}.")
                highlights.append((times(on_zero / own),
                                   f"dense time / zerone time, all weights zero, forward, "
                                   f"{self.where(device, mode)}"))
            paying = self.pays_from(device, mode)
            if paying:
                sentences.append(paying)
            if sentences:
                text.append((f"{name}.", " ".join(sentences)))
        return highlights, text

    def busy(self, here: tuple[str, str, str]) -> bool:
        """Whether the claim's rows scatter more than their difference."""
        rows = [self.row(*here, "dense", w) for w in (self.random, "zero")]
        return any(row and row["median_ms"] > 1.2 * row["min_ms"] for row in rows)

    def pays_from(self, device: str, mode: str) -> str:
        """The smallest measured share of zeros from which on zerone is faster."""
        known: list[tuple[float, float]] = []
        for w in self.weights:
            share = self.row(device, mode, "forward", "zerone", w).get("zero_share")
            gain = self.faster(device, mode, "forward", w)
            if share and gain:
                known.append((share, gain))
        first = None
        for share, gain in sorted(known, reverse=True):
            if gain < 1.05:
                break
            first = share
        if not known:
            return ""
        worst_share, worst = min(known, key=lambda pair: pair[1])
        text = "Forward, of the shares of zeros measured here, skipping pays "
        text += ("at none." if first is None else "only where all weights are zero." if first == 1
                 else f"from {percent(first)} on.")
        if worst < 0.95:
            text += (f" zerone's worst case is {compared(worst)} than dense, at "
                     f"{percent(worst_share)} zeros.")
        return text

    def times_part(self, device: str) -> Part:
        """Plots and a table a mode."""
        part = Part("Time")
        passes = unique(plain_pass(r["pass"]) for r in self.run.rows if r["device"] == device)
        labels = [self.label(w) for w in self.weights]
        for mode in self.modes(device):
            kind = "" if device == "cpu" else f", {'graph replay' if mode == 'graph' else mode}"
            for pass_ in passes:
                series = []
                for path, style in (("dense", DENSE), ("zerone", ZERONE)):
                    rows = [self.row(device, mode, pass_, path, w) for w in self.weights]
                    series.append(Series(path, style, [r.get("median_ms") for r in rows],
                                         [r.get("min_ms") for r in rows]))
                part.figures.append(Dots(
                    slug(f"time-{device}-{mode}-{pass_}"), capital(pass_) + kind,
                    "milliseconds a pass", labels, series,
                    [times(self.faster(device, mode, pass_, w)) for w in self.weights],
                    "faster"))
            body = []
            for w in self.weights:
                cells = [self.label(w)]
                for pass_ in passes:
                    dense, own = (self.row(device, mode, pass_, p, w) for p in ("dense", "zerone"))
                    skipped = own.get("multiplies_skipped")
                    cells += [digits(dense.get("median_ms")), digits(dense.get("min_ms")),
                              digits(own.get("median_ms")), digits(own.get("min_ms")),
                              times(self.faster(device, mode, pass_, w)), percent(skipped)]
                body.append(cells)
            part.tables.append(Table(
                f"Milliseconds a pass{kind}",
                ["weights", *["dense", "min", "zerone", "min", "faster", "skipped"] * len(passes)],
                body, [("", 1), *((p, 6) for p in passes)]))
        part.tables[-1].note = ("Dense, zerone: medians. Faster: dense / zerone. Skipped: share of "
                                "the multiplies that zerone did not do.")
        part.text.append("Marks are medians; the line to the left of a mark ends at the minimum. "
                         "The axis is logarithmic: equal distances are equal ratios.")
        return part

    def density_part(self, device: str) -> Part:
        """Speed-up against the share of zeros."""
        shares: dict[str, float] = {}
        for row in self.run.rows:
            share = row.get("zero_share")
            if row["device"] == device and share is not None and row["weights"] != "uniform":
                shares[row["weights"]] = share
        part = Part("Speed-up against density")
        if len(shares) < 2:
            part.text.append("The file does not say how many weights are zero.")
            return part
        order = sorted(shares, key=lambda w: shares[w])
        series: list[Series] = []
        for mode in self.modes(device):
            for pass_ in ("forward", "forward + backward"):
                values = [self.faster(device, mode, pass_, w) for w in order]
                if any(values):
                    label = short_pass(pass_) + ("" if device == "cpu" else f", {mode}")
                    series.append(Series(label, len(series), values))
        labels = [f"{100 * (1 - shares[w]):.0f} %" for w in order]
        part.figures.append(Lines(
            slug(f"density-{device}"), "Speed-up over dense", "dense time / zerone time",
            "weights that are not zero, rounded (evenly spaced)", [1 - shares[w] for w in order],
            series, labels, log=True, reference=1))
        part.text.append("Above the dashed line at 1, skipping zeros is faster than the dense "
                         "path on the same weights; below it, slower.")
        return part

    def work_part(self, device: str) -> Part:
        """Bytes, FLOPs and the roofline."""
        part = Part("Bytes moved and the machine's limits", no_limits(self.run))
        if part.text:
            return part
        math_mode = self.run.header.get("math", "")
        mode = self.modes(device)[0]
        for pass_ in unique(plain_pass(r["pass"]) for r in self.run.rows if r["device"] == device):
            clouds, body = [], []
            for path, style in (("dense", DENSE), ("zerone", ZERONE)):
                points = []
                for w in self.weights:
                    row = self.row(device, mode, pass_, path, w)
                    done = work(self.run, row, math_mode) if row else None
                    if done:
                        body.append([f"{path}, {self.label(w)}", *done.cells()])
                        # Without skipping, all rows have the same to do.
                        tag = self.label(w) if row.get("multiplies_skipped") else ""
                        points.append((tag, done))
                clouds.append((path, style, points))
            part.figures += roofline(slug(f"roofline-{device}-{pass_}"),
                                     capital(pass_), clouds)
            part.tables.append(Table(capital(pass_)
                                     + ("" if device == "cpu" else f", {mode}"),
                                     ["row", *WORK_COLUMNS], body))
        part.tables[-1].note = WORK_NOTE
        part.folded_tables = True
        part.text = ["The slanted line is the copy bandwidth, the flat one the rate of a large "
                     "matrix product, both measured in this run; a mark on a line is at the "
                     "machine's limit. Multiplies that were skipped do not count as work, so rows "
                     "with many zeros move to the left. Rows that skip every multiply only write "
                     "zeros and are left out."]
        return part

    def published_part(self) -> Part | None:
        """The published ratios beside ours."""
        rows = self.run.published.get("rows") or []
        if not rows or not self.random or "zero" not in self.weights:
            return None
        labels, body = [], []
        series: list[list[float | None]] = [[], [], []]
        for device in self.devices:
            for mode in self.modes(device):
                for row in rows:
                    if (row["device"] == "cpu") != (device == "cpu"):
                        continue
                    pass_ = plain_pass(row["pass"])
                    label = f"{self.where(device, mode)}, {short_pass(pass_)}"
                    pairs = [(row["random_ms"], row["zero_ms"])]
                    pairs += [(self.median(device, mode, pass_, path, self.random),
                               self.median(device, mode, pass_, path, "zero"))
                              for path in ("dense", "zerone")]
                    labels.append(label)
                    cells = [label]
                    for values, (on_random, on_zero) in zip(series, pairs):
                        values.append(ratio(on_random, on_zero))
                        cells += [digits(on_random), digits(on_zero), times(values[-1])]
                    body.append(cells)
        figure = Dots("published", "How much faster are zero weights?",
                      "time with random / with zero weights", labels,
                      [Series("published", 3, series[0]), Series("dense, here", DENSE, series[1]),
                       Series("zerone, here", ZERONE, series[2])], reference=1)
        source = self.run.published.get("source", "")
        return Part(
            "Published figures beside ours",
            [f"Published: {source}. Other machines, so only each one's own ratio can be compared. "
             'There the "backward" was never called, the GPU was not waited for, nothing was '
             "warmed up and the random case always ran first.",
             "A value of 1 means that zeros change nothing."], [figure],
            [Table("Milliseconds a pass, median",
                   ["", *["random", "zero", "ratio"] * 3], body,
                   [("", 1), ("published", 3), ("dense, here", 3), ("zerone, here", 3)],
                   f"Random: {self.label(self.random)}. Ratio: random / zero.")])

    def explained(self) -> Part:
        """What each row is."""
        terms = [(self.label(w), WEIGHTS.get(w, ("", "not described"))[1]) for w in self.weights]
        terms += list(PATHS.items())
        terms += [(mode, text) for mode, text in MODES.items()
                  if any(r["mode"] == mode for r in self.run.rows)]
        terms += [("forward", "The network's result for a batch of images."),
                  ("forward + backward", "And all weights' gradients, by a real backward pass.")]
        return Part("What the rows mean", [
            "Network: conv 3→64, then ten times (conv 64→64, ReLU); every conv 3×3, stride 1, "
            "padding 1, no bias."], terms=terms)


def fill(run: Run, section: Section) -> None:
    """Fills the section."""
    page = ZeroWeights(run)
    section.title = "Zero weights"
    section.question = "Does a convolution network run faster when its weights are zero?"
    section.highlights, section.answers = page.answers()
    published = page.published_part()
    section.parts = by_device(run, page.devices,
                              [page.times_part, page.density_part, page.work_part])
    section.parts += [published] if published else []
    section.parts.append(page.explained())
    section.parts.append(choices([
        (f'{page.where(r["device"], r["mode"])}, {r["path"]}, {page.label(r["weights"])}', r)
        for r in run.rows if "+" in r["pass"] and r["mode"] == "eager"]))
