"""The section of a run of fashion_mnist."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from figures import Dots, Figure, Lines, Series, digits
from results import Json, Run
from sections import (DENSE, NBSP, Part, Section, Table, ZERONE, compared, percent, ratio,
                      times)


class Training:
    """Sentences, plots and tables of one run of fashion_mnist."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows = [row for row in run.rows if row["epochs"]]
        several = len({row["device"] for row in self.rows}) > 1
        modes = len({(row.get("storage"), row.get("math")) for row in self.rows}) > 1
        self.labels = [", ".join(filter(None, [
            row["library"], ("CPU" if row["device"] == "cpu" else "GPU") if several else "",
            f'{row.get("storage", "")}/{row.get("math", "")}' if modes else ""]))
            for row in self.rows]

    @staticmethod
    def column(row: Json, name: str) -> list[float]:
        """One value an epoch."""
        return [epoch[name] for epoch in row["epochs"]]

    def seconds(self, row: Json) -> float:
        """Median of an epoch."""
        return statistics.median(self.column(row, "seconds"))

    def answers(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Highlights and sentences."""
        highlights, text = [], []
        for label, row in zip(self.labels, self.rows):
            last = row["epochs"][-1]
            count = len(row["epochs"])
            text.append((f"{label}.", f"After {count} epoch{'s' * (count != 1)} "
                         f'{last["test_accuracy"] * 100:.2f}{NBSP}% of the test images are '
                         f"recognized; an epoch takes {digits(self.seconds(row), 's')} (median)."))
            if row["library"] == "zerone":
                highlights.append((f'{last["test_accuracy"] * 100:.1f}{NBSP}%',
                                   f"test accuracy, {label}"))
        for label, row in zip(self.labels, self.rows):
            for other, peer in zip(self.labels, self.rows):
                same = all(row.get(k) == peer.get(k) for k in ("device", "storage", "math"))
                if row["library"] == "zerone" and peer["library"] != "zerone" and same:
                    gain = self.seconds(peer) / self.seconds(row)
                    text.append(("Beside each other.", f"An epoch of {label} is {compared(gain)}"
                                 f"{' as' if 0.95 <= gain <= 1.05 else ' than'} {other}'s."))
                    highlights.append((times(gain), f"{other}'s seconds an epoch / {label}'s"))
        return highlights, text

    def curve(self, name: str, title: str, axis: str, columns: Sequence[tuple[str, str]],
              scale: float = 1) -> list[Figure]:
        """A line a row and column, against epochs."""
        epochs = sorted({epoch["epoch"] for row in self.rows for epoch in row["epochs"]})
        series: list[Series] = []
        for label, row in zip(self.labels, self.rows):
            by_epoch = {epoch["epoch"]: epoch for epoch in row["epochs"]}
            for column, suffix in columns:
                series.append(Series(f"{label}{suffix}", len(series) % 6,
                                     [by_epoch[e][column] * scale if e in by_epoch else None
                                      for e in epochs]))
        return [Lines(name, title, axis, "epoch", epochs, series)] if series else []

    def training_part(self) -> Part:
        """Curves and tables."""
        part = Part("Training")
        part.figures += self.curve("loss", "Loss", "cross entropy",
                                   [("train_loss", ", train"), ("test_loss", ", test")])
        part.figures += self.curve("accuracy", "Test accuracy", "per cent", [("test_accuracy", "")],
                                   100)
        part.figures += self.curve("seconds", "Time of an epoch", "seconds", [("seconds", "")])
        body = []
        for label, row in zip(self.labels, self.rows):
            accuracy, seconds = self.column(row, "test_accuracy"), self.column(row, "seconds")
            body.append([label, row.get("mode", "–"), str(len(seconds)),
                         f"{100 * accuracy[-1]:.2f}", f"{100 * max(accuracy):.2f}",
                         digits(statistics.median(seconds)), digits(min(seconds)),
                         digits(sum(seconds))])
        part.tables.append(Table("Runs", ["run", "mode", "epochs", "last accuracy %",
                                          "best accuracy %", "s an epoch, median",
                                          "s an epoch, min", "s in all"], body))
        return part

    def epochs_part(self) -> Part:
        """Every number."""
        return Part("Every epoch", folded=True, tables=[Table(
            label, ["epoch", "train loss", "test loss", "test accuracy %", "seconds"],
            [[str(e["epoch"]), f'{e["train_loss"]:.4f}', f'{e["test_loss"]:.4f}',
              f'{100 * e["test_accuracy"]:.2f}', digits(e["seconds"])] for e in row["epochs"]])
            for label, row in zip(self.labels, self.rows)])

    def prune_part(self) -> Part:
        """What pruning costs in accuracy and gains in time."""
        levels = sorted(self.run.prune, key=lambda level: level["zero_share"])
        labels = [percent(level["zero_share"]) for level in levels]
        shares = [level["zero_share"] for level in levels]
        part = Part("Pruning", ["The trained network's smallest weights are set to zero, and it is "
                                "tested again."])
        axis = "weights that are zero (evenly spaced)"
        accuracy = [100 * level["test_accuracy"] for level in levels]
        part.figures.append(Lines("prune-accuracy", "Test accuracy after pruning", "per cent", axis,
                                  shares, [Series("accuracy", ZERONE, accuracy)], labels))
        paths = [p for p in ("dense", "zerone") if any(p in level for level in levels)]

        def time(level: Json, path: str, which: str) -> float | None:
            return (level.get(path) or {}).get(which)

        if paths:
            part.figures.append(Dots(
                "prune-time", "Forward pass after pruning", "milliseconds a pass",
                [f"{label} zeros" for label in labels],
                [Series(p, DENSE if p == "dense" else ZERONE,
                        [time(level, p, "median_ms") for level in levels],
                        [time(level, p, "min_ms") for level in levels]) for p in paths],
                [times(ratio(time(level, "dense", "median_ms"), time(level, "zerone", "median_ms")))
                 for level in levels] if len(paths) == 2 else [], "faster"))
        part.tables.append(Table(
            "By share of zeros", ["zeros", "test accuracy %"]
            + [f"{p} {what}, ms" for p in paths for what in ("median", "min")],
            [[label, f'{100 * level["test_accuracy"]:.2f}',
              *(digits(time(level, p, what)) for p in paths for what in ("median_ms", "min_ms"))]
             for label, level in zip(labels, levels)]))
        return part


def fill(run: Run, section: Section) -> None:
    """Fills the section."""
    page = Training(run)
    section.title = "Training on Fashion-MNIST"
    section.question = "Does a network learn on zerone as it does on PyTorch, and how fast?"
    section.highlights, section.answers = page.answers()
    section.parts = [page.training_part()]
    if run.prune:
        section.parts.append(page.prune_part())
    section.parts.append(page.epochs_part())
    header = run.header
    if run.summary:
        section.parts.append(Part("The network's layers", folded=True, tables=[Table(
            header.get("network", ""), ["name", "layer", "result", "parameters", "implementation"],
            [[layer["path"] or "(all)", layer["layer"], layer["output"],
              str(layer.get("parameters", "–")), ", ".join(layer.get("ran") or []) or "–"]
             for layer in run.summary], words=True)]))
    terms = [(name.replace("_", " "), str(header[name]))
             for name in ("network", "optimizer", "train_images", "test_images") if name in header]
    section.parts.append(Part("What the rows mean", terms=[
        *terms,
        ("train loss", "Mean cross entropy over the epoch's training images, while training."),
        ("test loss", "The same over the test images, after the epoch."),
        ("test accuracy", "Share of the test images whose largest score is the right class."),
        ("seconds", "Wall time of an epoch's training, the device waited for."),
        *((label, f'The same network, data and settings in PyTorch {row["version"]}, in a run of '
                  "its own.")
          for label, row in zip(page.labels, page.rows) if row.get("version"))]))
