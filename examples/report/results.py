"""Reads and checks the JSON files of the experiment programs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class ResultError(Exception):
    """A file that cannot be used; the text names the file, the place in it and what is wrong."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of one JSON file."""

    path: Path
    header: Json
    rows: list[Json]
    published: Json  # empty if the file has none
    prune: list[Json]  # fashion_mnist only, as the next; may be empty
    summary: list[Json]  # the network's layers

    @property
    def experiment(self) -> str:
        """Name of the program that wrote it."""
        return self.header["experiment"]


# Fields that a row must have, by experiment; all others are optional, and what needs them is left
# out of the page. "+": a number above 0; "#": any finite number; "s": a text.
TIMED = {"device": "s", "path": "s", "pass": "s", "median_ms": "+", "min_ms": "+"}
ROW_FIELDS: dict[str, dict[str, str]] = {
    "zero_weights": TIMED | {"weights": "s", "mode": "s"},
    "conv1x1_vs_linear": TIMED | {"model": "s", "math": "s"},
    "fashion_mnist": {"library": "s", "device": "s"},
}
EPOCH_FIELDS = {"epoch": "+", "train_loss": "#", "test_loss": "#", "test_accuracy": "#",
                "seconds": "+"}
LAYER_FIELDS = {"path": "s", "layer": "s", "output": "s"}
PRUNE_FIELDS = {"zero_share": "#", "test_accuracy": "#"}
# Optional numbers that are computed with wherever they are: absent, or numbers.
OPTIONAL_NUMBERS = ("bytes", "flops", "copied_bytes", "zero_share", "multiplies_skipped", "trials")


def is_number(value: Any) -> bool:
    """A finite number that is not a bool."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value))


class Reader:
    """Checks one file; `fail` names the place."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, place: str, message: str) -> ResultError:
        """An error to raise."""
        return ResultError(f"{self.path}: {place + ': ' if place else ''}{message}")

    def typed(self, value: Any, kind: type, place: str) -> Any:
        """`value`, if it is an object or a list as wanted."""
        if not isinstance(value, kind):
            name = "an object" if kind is dict else "a list"
            raise self.fail(place, f"expected {name}, found {json.dumps(value)[:40]}")
        return value

    def fields(self, row: Any, wanted: dict[str, str], place: str) -> Json:
        """`row`, if it has the fields."""
        self.typed(row, dict, place)
        for name, kind in wanted.items():
            value, where = row.get(name), f"{place}.{name}"
            if name not in row:
                raise self.fail(where, "is missing")
            if kind == "s" and not isinstance(value, str):
                raise self.fail(where, f"expected a text, found {json.dumps(value)[:40]}")
            if kind != "s" and not (is_number(value) and (kind == "#" or value > 0)):
                expected = "a number" if kind == "#" else "a number above 0"
                raise self.fail(where, f"expected {expected}, found {json.dumps(value)[:40]}")
        for name in OPTIONAL_NUMBERS:
            if row.get(name) is not None and not (is_number(row[name]) and row[name] >= 0):
                raise self.fail(f"{place}.{name}",
                                f"expected a number, found {json.dumps(row[name])[:40]}")
        return row

    def ceilings(self, header: Json) -> None:
        """The machine's limits may be absent; if they are there, they are numbers."""
        for device, tops in self.typed(header.get("ceilings", {}), dict, "header.ceilings").items():
            place = f"header.ceilings.{device}"
            self.typed(tops, dict, place)
            self.fields(tops.get("copy"), {"bytes_per_second": "+"}, f"{place}.copy")
            for math_mode, top in self.typed(tops.get("matrix", {}), dict, place).items():
                self.fields(top, {"flops_per_second": "+"}, f"{place}.matrix.{math_mode}")

    def run(self) -> Run:
        """The whole file."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
        except OSError as error:
            raise self.fail("", f"cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise self.fail("", "is not JSON: not UTF-8 text") from error
        except json.JSONDecodeError as error:
            raise self.fail("", f"is not JSON: line {error.lineno}, column {error.colno}: "
                                f"{error.msg}") from error
        self.typed(document, dict, "")
        header = self.fields(document.get("header"), {"experiment": "s"}, "header")
        experiment = header["experiment"]
        if experiment not in ROW_FIELDS:
            raise self.fail("header.experiment", f'"{experiment}" is not known; known are '
                                                 + ", ".join(ROW_FIELDS))
        for device in self.typed(header.get("devices", []), list, "header.devices"):
            self.fields(device, {"device": "s", "name": "s"}, "header.devices")
        self.ceilings(header)
        rows = self.typed(document.get("rows"), list, "rows")
        for i, row in enumerate(rows):
            self.fields(row, ROW_FIELDS[experiment], f"rows[{i}]")
            if experiment == "fashion_mnist":
                place = f"rows[{i}].epochs"
                for k, epoch in enumerate(self.typed(row.get("epochs"), list, place)):
                    self.fields(epoch, EPOCH_FIELDS, f"{place}[{k}]")
        prune = self.typed(document.get("prune", []), list, "prune")
        for i, level in enumerate(prune):
            self.fields(level, PRUNE_FIELDS, f"prune[{i}]")
            for path in ("dense", "zerone"):
                if path in level:
                    self.fields(level[path], {"median_ms": "+", "min_ms": "+"},
                                f"prune[{i}].{path}")
        summary = self.typed(document.get("summary") or [], list, "summary")
        for i, layer in enumerate(summary):
            self.fields(layer, LAYER_FIELDS, f"summary[{i}]")
        published = self.typed(document.get("published", {}), dict, "published")
        return Run(self.path, header, rows, published, prune, summary)


def read(path: Path) -> Run:
    """One file, checked. Raises ResultError."""
    return Reader(path).run()
