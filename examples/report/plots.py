"""Draws figures.py's panels with matplotlib: as SVG whose colors are CSS variables, so that one
drawing serves light and dark pages, and as PNG in the light colors."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import blended_transform_factory

from figures import Bars, Dots, Figure, Lines, Roofline, digits

# Contrast with the surface: text above 4.5, marks above 3. Series also differ by shape and dash.
LIGHT = {"surface": "#ffffff", "ink": "#1c2128", "muted": "#59636e", "grid": "#dde2e7",
         "s0": "#0a5fb4", "s1": "#b8480f", "s2": "#2a7a43", "s3": "#8449a5", "s4": "#7d6200",
         "s5": "#5b6470"}
DARK = {"surface": "#171b21", "ink": "#e8ecf1", "muted": "#a3adb8", "grid": "#333b45",
        "s0": "#6db3ff", "s1": "#ffa06e", "s2": "#74d292", "s3": "#d6a3f2", "s4": "#e2c457",
        "s5": "#aeb7c2"}
# Colors no drawing would use, one a role: they become var(--role) in the SVG.
ROLES = {role: f"#01fe{number:02x}" for number, role in enumerate(LIGHT)}

MARKERS = "soD^vP"
FILLED = (True, False, True, False, True, False)
DASHES = ("-", (0, (4, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.6)), "-", (0, (4, 2)))
WIDTH = 4.7  # inches; the page shows a panel at about 1.2 times that

matplotlib.rcParams.update({
    "font.family": "sans-serif", "font.size": 10, "axes.labelsize": 10, "xtick.labelsize": 10,
    "ytick.labelsize": 10, "legend.fontsize": 10, "legend.frameon": False,
    "legend.handlelength": 1.8, "legend.columnspacing": 1.4, "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.1, "svg.fonttype": "none", "axes.linewidth": 0.8,
    "axes.unicode_minus": True, "xtick.major.size": 3, "ytick.major.size": 3})

Palette = dict[str, str]


def marks(series_style: int, palette: Palette) -> dict[str, Any]:
    """Keyword arguments of a series' marker."""
    color = palette[f"s{series_style}"]
    return {"marker": MARKERS[series_style], "markersize": 6.5, "color": color,
            "markeredgecolor": color, "markeredgewidth": 1.5,
            "markerfacecolor": color if FILLED[series_style] else "none"}


def present(values: list[float | None]) -> list[float]:
    """Those that are there."""
    return [value for value in values if value is not None]


def log_axis(axis: matplotlib.axis.Axis, low: float, high: float) -> None:
    """Ticks at round numbers, in plain digits, few enough for a narrow panel."""
    steps: tuple[float, ...] = (1, 2, 5) if high / low < 60 else (1,)
    if high / low < 12:
        steps = (1, 1.5, 2, 3, 4, 5, 6, 8) if high / low < 4 else (1, 2, 3, 5)
    axis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def widen(low: float, high: float, factor: float = 1.25) -> tuple[float, float]:
    """Limits of a logarithmic axis: some air, and no less than a factor of two in all."""
    low, high = low / factor, high * factor
    while high / low < 2:
        low, high = low / 1.1, high * 1.1
    return low, high


def dress(axes: Axes, palette: Palette, grid: str) -> None:
    """Colors of the frame; grid lines along one axis or both."""
    axes.set_facecolor(palette["surface"])
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(palette["muted"])
    axes.tick_params(colors=palette["muted"], labelcolor=palette["ink"])
    axes.xaxis.label.set_color(palette["muted"])
    axes.yaxis.label.set_color(palette["muted"])
    axes.grid(True, axis=grid, color=palette["grid"], linewidth=0.8)
    axes.set_axisbelow(True)


def legend(axes: Axes, palette: Palette, count: int) -> None:
    """Above the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) < 2:
        return
    widest = max(len(label) for label in labels)
    columns = max(1, min(count, 62 // (widest + 6)))
    # From the panel's left edge, just above the axes.
    place = blended_transform_factory(axes.figure.transFigure, axes.transAxes)
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.01), ncol=columns,
                bbox_transform=place, labelcolor=palette["ink"])


def draw_dots(figure: Dots, axes: Axes, palette: Palette) -> None:
    lines = len(figure.categories)
    everything: list[float] = [figure.reference] if figure.reference else []
    for series in figure.series:
        everything += present([*series.values, *series.low, *series.high])
    offset = 0.11 if len(figure.series) > 1 else 0.0
    for number, series in enumerate(figure.series):
        shift = (number - (len(figure.series) - 1) / 2) * 2 * offset
        for at, value in enumerate(series.values):
            if value is None:
                continue
            low = series.low[at] if series.low else None
            high = series.high[at] if series.high else None
            axes.plot([value if low is None else low, value if high is None else high],
                      [at + shift] * 2, color=palette[f"s{series.style}"], linewidth=1.6,
                      solid_capstyle="butt")
        axes.plot(series.values, [at + shift for at in range(lines)], linestyle="none",
                  label=series.label, **marks(series.style, palette))
    if figure.reference:
        axes.axvline(figure.reference, color=palette["muted"], linewidth=1, linestyle=(0, (3, 3)),
                     zorder=0.5)
    limits = widen(min(everything), max(everything))
    axes.set_xscale("log")
    axes.set_xlim(limits)
    log_axis(axes.xaxis, *limits)
    axes.set_ylim(lines - 0.45, -0.55)
    axes.set_yticks(range(lines), figure.categories)
    axes.set_xlabel(figure.axis)
    dress(axes, palette, "x")
    axes.tick_params(axis="y", length=0)
    for at, text in enumerate(figure.right):
        axes.text(1.02, at, text, transform=axes.get_yaxis_transform(), va="center",
                  color=palette["ink"])
    if figure.right:
        axes.text(1.02, -0.62, figure.right_title, transform=axes.get_yaxis_transform(),
                  va="bottom", color=palette["muted"])
    legend(axes, palette, 2 if figure.right else 3)


def draw_lines(figure: Lines, axes: Axes, palette: Palette) -> None:
    everything: list[float] = [figure.reference] if figure.reference is not None else []
    x = list(range(len(figure.x))) if figure.x_labels else list(figure.x)
    for series in figure.series:
        everything += present(list(series.values))
        axes.plot(x, [float("nan") if value is None else value for value in series.values],
                  label=series.label, linewidth=1.6, linestyle=DASHES[series.style],
                  **marks(series.style, palette))
    if figure.reference is not None:
        axes.axhline(figure.reference, color=palette["muted"], linewidth=1, linestyle=(0, (3, 3)))
    if figure.log:
        limits = widen(min(everything), max(everything), 1.4)
        axes.set_yscale("log")
        axes.set_ylim(limits)
        log_axis(axes.yaxis, *limits)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if figure.x_labels:
        axes.set_xticks(x, figure.x_labels)
        axes.margins(x=0.06)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel(figure.x_axis)
    axes.set_ylabel(figure.axis)
    dress(axes, palette, "y")
    legend(axes, palette, 2)


def draw_bars(figure: Bars, axes: Axes, palette: Palette) -> None:
    start = [0.0] * len(figure.categories)
    matplotlib.rcParams["hatch.linewidth"] = 1.2
    for number, series in enumerate(figure.series):
        values = [value or 0.0 for value in series.values]
        axes.barh(range(len(values)), values, 0.58, left=start, label=series.label,
                  facecolor=palette["surface"] if number else palette[f"s{series.style}"],
                  edgecolor=palette[f"s{series.style}"], hatch="////" if number else "",
                  linewidth=[1.2 if value else 0 for value in values])
        start = [at + value for at, value in zip(start, values)]
    for at, value in enumerate(start):
        axes.text(value + max(start) * 0.015, at, digits(value), va="center",
                  color=palette["ink"])
    axes.set_xlim(0, max(start) * 1.16)
    axes.set_ylim(len(start) - 0.45, -0.55)
    axes.set_yticks(range(len(start)), figure.categories)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel(figure.axis)
    dress(axes, palette, "x")
    axes.tick_params(axis="y", length=0)
    legend(axes, palette, 2)


def draw_roofline(figure: Roofline, axes: Axes, palette: Palette) -> None:
    ridge = figure.rate / figure.bandwidth  # FLOP a byte where the roofs meet
    points = [point for cloud in figure.clouds for point in cloud.points]
    left, right = widen(min([ridge / 4, *(x for x, _, _ in points)]),
                        max([ridge, *(x for x, _, _ in points)]), 2.2)
    low, high = widen(min([figure.rate / 10, *(y for _, y, _ in points)]),
                      max([figure.rate, *(y for _, y, _ in points)]), 2)
    axes.plot([left, ridge, right], [left * figure.bandwidth, figure.rate, figure.rate],
              color=palette["ink"], linewidth=1.6, label="limits")
    for cloud in figure.clouds:
        axes.plot([x for x, _, _ in cloud.points], [y for _, y, _ in cloud.points],
                  linestyle="none", label=cloud.label, zorder=2.2 if FILLED[cloud.style] else 2.4,
                  **marks(cloud.style, palette) | {"markersize": 6 if FILLED[cloud.style] else 9})
        tagged = sorted((point for point in cloud.points if point[2]), key=lambda point: point[1])
        for number, (x, y, tag) in enumerate(tagged):  # neighbors' texts below and above
            axes.annotate(tag, (x, y), (6, number % 2 * 4 - 2), textcoords="offset points",
                          va="bottom" if number % 2 else "top", fontsize=9, color=palette["muted"])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    log_axis(axes.xaxis, left, right)
    log_axis(axes.yaxis, low, high)
    axes.set_xlabel("FLOP a byte")
    axes.set_ylabel(figure.axis)
    dress(axes, palette, "both")
    legend(axes, palette, 3)


DRAW: dict[type[Figure], Any] = {Dots: draw_dots, Lines: draw_lines, Bars: draw_bars,
                                 Roofline: draw_roofline}


def height(figure: Figure) -> float:
    """Inches."""
    if isinstance(figure, (Dots, Bars)):
        return 0.95 + 0.36 * len(figure.categories)
    return 3.3 if isinstance(figure, Lines) else 3.5


def draw(figure: Figure, palette: Palette, titled: bool) -> Canvas:
    """The panel; a file of its own carries its title, the page writes it in HTML."""
    canvas = Canvas(figsize=(WIDTH, height(figure) + (0.3 if titled else 0)),
                    layout="constrained", facecolor=palette["surface"])
    axes = canvas.add_subplot()
    DRAW[type(figure)](figure, axes, palette)
    if titled:
        canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=11, color=palette["ink"])
    return canvas


def tidy(svg: str, figure: Figure) -> str:
    """matplotlib's SVG without a fixed size, prologue, unused ids and metadata; colors and font as
    CSS variables; with a text for those who cannot see it."""
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<style type="text/css">.*?</style>', "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", svg)
    for role, color in ROLES.items():
        svg = svg.replace(color, f"var(--{role})")
    svg = re.sub(r"(font: [^;\"]*?\d+px) [^;\"]*", r"\1 var(--font)", svg)
    alt = (figure.alt().replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;"))
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'{view[0]} role="img" aria-label="{alt}">')
    return head + svg[svg.index(">") + 1:].strip()


def variables(palette: Palette) -> str:
    """CSS declarations."""
    return "".join(f"--{role}:{color};" for role, color in palette.items())


def standalone(svg: str) -> str:
    """With colors of its own, light or dark as the viewer is."""
    style = (f"<style>svg{{--font:system-ui,sans-serif;{variables(LIGHT)}}}"
             f"@media(prefers-color-scheme:dark){{svg{{{variables(DARK)}}}}}"
             "*{stroke-linejoin:round;stroke-linecap:butt}</style>")
    at = svg.index(">") + 1
    return '<?xml version="1.0" encoding="utf-8"?>\n' + svg[:at] + style + svg[at:] + "\n"


def as_svg(figure: Figure, titled: bool, salt: str) -> str:
    """The panel as SVG text; `salt` keeps ids of several drawings on one page apart."""
    matplotlib.rcParams["svg.hashsalt"] = salt
    buffer = io.StringIO()
    draw(figure, ROLES, titled).savefig(buffer, format="svg", metadata={"Date": None})
    return tidy(buffer.getvalue(), figure)


def write(figure: Figure, path: Path) -> str:
    """Writes path.svg and path.png; the SVG for the page."""
    path.with_suffix(".svg").write_text(standalone(as_svg(figure, True, path.name)),
                                        encoding="utf-8")
    draw(figure, LIGHT, True).savefig(path.with_suffix(".png"), dpi=200)
    return as_svg(figure, False, path.name)
