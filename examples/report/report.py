#!/usr/bin/env python3
"""Makes one self-contained page, and its plots as SVG and PNG, of the experiments' JSON files.

  report.py out/zero_weights.json out/conv1x1_vs_linear.json --out out/report

Every figure on the page comes from the files. A file is one run on one machine and becomes one
section; nothing is computed across files. Exit status: 0; 1 for a file that cannot be used; 3 where
matplotlib or Jinja2 is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import results
import sections

HERE = Path(__file__).resolve().parent


def section_of(run: results.Run, runs: Sequence[results.Run]) -> sections.Section:
    """The section of one of the page's runs, filled by the module named as the experiment."""
    same = [other for other in runs if other.experiment == run.experiment]
    number = f"-{same.index(run) + 1}" if len(same) > 1 else ""
    section = sections.Section(sections.slug(run.experiment) + number)
    importlib.import_module(run.experiment).fill(run, section)
    sections.finish(run, section)
    return section


def write_report(runs: Sequence[results.Run], folder: Path) -> Path:
    """Writes folder/index.html and folder/plots/*.{svg,png}; the page's path."""
    import jinja2  # here, so that files are checked, and tests run, where these are not installed

    import plots

    (folder / "plots").mkdir(parents=True, exist_ok=True)
    made = [section_of(run, runs) for run in runs]
    for section in made:
        for figure in section.figures():
            figure.svg = plots.write(figure, folder / "plots" / f"{section.id}-{figure.name}")
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True,
                                     trim_blocks=True, lstrip_blocks=True,
                                     undefined=jinja2.StrictUndefined)
    page = environment.get_template("page.html").render(sections=made, light=plots.LIGHT,
                                                        dark=plots.DARK)
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json",
                        help="what an experiment program wrote with --json")
    parser.add_argument("--out", type=Path, default=Path("out/report"), metavar="FOLDER",
                        help="where the page goes (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        runs = [results.read(path) for path in options.files]
        page = write_report(runs, options.out)
    except results.ResultError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        package = f"python3-{error.name}"
        if error.name not in ("matplotlib", "jinja2"):
            raise
        print(f"report: not made, because {package} is not installed for {sys.executable}; "
              "scripts/install_dependencies.sh --report installs it", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"report: {error.filename}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"report: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
