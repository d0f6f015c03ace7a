"""What a plot shows, without how it is drawn: plots.py draws these, sections.py makes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

Values = Sequence["float | None"]


def digits(value: float | None, unit: str = "") -> str:
    """Three significant digits, never an exponent: "0.0035", "1.40", "1315"; a dash for nothing."""
    if value is None:
        return "–"
    rounded = float(f"{value:.3g}")
    if rounded == 0 or abs(rounded) >= 100:
        text = f"{value:.0f}"
    else:
        text = f"{value:.{2 - math.floor(math.log10(abs(rounded)))}f}"
    return text + ("\N{NO-BREAK SPACE}" + unit if unit else "")


@dataclasses.dataclass
class Series:
    """One kind of mark, with a value for each category; `style` fixes color, shape and dash."""

    label: str
    style: int
    values: Values
    low: Values = ()  # a line is drawn from here to the value
    high: Values = ()  # and on to here


@dataclasses.dataclass
class Figure:
    """A panel. `name` is unique within its section and part of the file's name."""

    name: str
    title: str
    axis: str
    svg: str = dataclasses.field(default="", kw_only=True)  # filled by plots.write

    def alt(self) -> str:
        """What the panel shows, for those who cannot see it."""
        raise NotImplementedError


def spoken(categories: Sequence[str], values: Values) -> str:
    """ "all zero 0.0035, 99 % zeros 0.12" """
    return ", ".join(f"{category} {digits(value)}"
                     for category, value in zip(categories, values) if value is not None)


@dataclasses.dataclass
class Dots(Figure):
    """Categories from top to bottom, a dot for each series; a logarithmic axis."""

    categories: Sequence[str]
    series: Sequence[Series]
    right: Sequence[str] = ()  # a text at the end of each line
    right_title: str = ""
    reference: float | None = None  # a vertical line

    def alt(self) -> str:
        return f"{self.title}; {self.axis}. " + "; ".join(
            f"{s.label}: {spoken(self.categories, s.values)}" for s in self.series) + "."


@dataclasses.dataclass
class Lines(Figure):
    """A value against categories or numbers from left to right."""

    x_axis: str
    x: Sequence[float]
    series: Sequence[Series]
    x_labels: Sequence[str] = ()  # then x is evenly spaced
    log: bool = False
    reference: float | None = None  # a horizontal line

    def alt(self) -> str:
        labels = self.x_labels or [f"{x:g}" for x in self.x]
        return f"{self.title}; {self.axis} against {self.x_axis}. " + "; ".join(
            f"{s.label}: {spoken(labels, s.values)}" for s in self.series) + "."


@dataclasses.dataclass
class Bars(Figure):
    """Stacked bars from left to right, one a category."""

    categories: Sequence[str]
    series: Sequence[Series]

    def alt(self) -> str:
        return f"{self.title}; {self.axis}. " + "; ".join(
            f"{s.label}: {spoken(self.categories, s.values)}" for s in self.series) + "."


@dataclasses.dataclass
class Cloud:
    """Marks of one kind: x, y and a text beside each."""

    label: str
    style: int
    points: Sequence[tuple[float, float, str]]


@dataclasses.dataclass
class Roofline(Figure):
    """Rates against FLOP a byte, under the machine's limits."""

    bandwidth: float  # bytes/s, in the axis' prefix: GB/s where the axis is GFLOP/s
    rate: float  # FLOP/s, in the same prefix
    clouds: Sequence[Cloud]

    def alt(self) -> str:
        clouds = (f"{cloud.label}: " + ", ".join(f"{tag} {digits(y)}" for _, y, tag in cloud.points)
                  for cloud in self.clouds)
        return f"{self.title}; {self.axis} against FLOP a byte. " + "; ".join(clouds) + "."
