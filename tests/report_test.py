#!/usr/bin/env python3
"""Unit tests of examples/report, on the samples in tests/report (invented round figures)."""

from __future__ import annotations

import contextlib
import copy
import html.parser
import importlib.util
import io
import json
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS.parent / "examples" / "report"))
import figures  # noqa: E402
import report  # noqa: E402
import results  # noqa: E402
import sections  # noqa: E402

EXPERIMENTS = ("zero_weights", "conv1x1_vs_linear", "fashion_mnist")
SAMPLES = [TESTS / "report" / f"{name}.json" for name in EXPERIMENTS]
CAN_DRAW = all(importlib.util.find_spec(name) for name in ("matplotlib", "jinja2"))
Json = dict[str, Any]


class Case(unittest.TestCase):
    """With a folder of its own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def sample(self, name: str) -> Json:
        """A sample's contents, to be changed."""
        return json.loads((TESTS / "report" / f"{name}.json").read_text(encoding="utf-8"))

    def file(self, content: Json | str | bytes, name: str = "run.json") -> Path:
        """A file of that content."""
        path = self.folder / name
        text = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def section(self, content: Json) -> sections.Section:
        """Made of a file of that content."""
        run = results.read(self.file(content))
        return report.section_of(run, [run])

    def program(self, *arguments: object) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of the program."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = report.main([str(argument) for argument in arguments])
        return status, out.getvalue(), err.getvalue()


class Reading(Case):
    def test_samples_are_read(self) -> None:
        for path, name in zip(SAMPLES, EXPERIMENTS):
            run = results.read(path)
            self.assertEqual(run.experiment, name)
            self.assertTrue(run.rows)

    def test_a_file_that_cannot_be_used_is_a_clear_error(self) -> None:
        def changed(change: Callable[[Json], object], name: str = "zero_weights") -> Json:
            document = self.sample(name)
            change(document)
            return document

        cases: list[tuple[Json | str | bytes, str]] = [
            ("", "is not JSON: line 1, column 1"),
            ('{"header": {', "is not JSON: line 1, column 13"),
            (b"\xff\xfe{}", "is not JSON: not UTF-8"),
            ("[1, 2]", "expected an object, found [1, 2]"),
            ("{}", "header: expected an object, found null"),
            (changed(lambda d: d["header"].pop("experiment")), "header.experiment: is missing"),
            (changed(lambda d: d["header"].update(experiment="x")),
             'header.experiment: "x" is not known; known are zero_weights'),
            (changed(lambda d: d.pop("rows")), "rows: expected a list, found null"),
            (changed(lambda d: d["rows"].insert(1, 7)), "rows[1]: expected an object, found 7"),
            (changed(lambda d: d["rows"][3].pop("min_ms")), "rows[3].min_ms: is missing"),
            (changed(lambda d: d["rows"][0].update(median_ms=None)),
             "rows[0].median_ms: expected a number above 0, found null"),
            (changed(lambda d: d["rows"][0].update(median_ms=0)), "expected a number above 0"),
            (changed(lambda d: d["rows"][0].update(median_ms=float("nan"))), "found NaN"),
            (changed(lambda d: d["rows"][0].update(median_ms=True)), "found true"),
            (changed(lambda d: d["rows"][0].update(path=1)), "rows[0].path: expected a text"),
            (changed(lambda d: d["rows"][0].update(bytes="many")), "rows[0].bytes: expected a num"),
            (changed(lambda d: d["header"]["ceilings"]["cpu"].pop("copy")),
             "header.ceilings.cpu.copy: expected an object"),
            (changed(lambda d: d["rows"][1].update(epochs=None), "fashion_mnist"),
             "rows[1].epochs: expected a list"),
            (changed(lambda d: d["rows"][0]["epochs"][2].update(seconds=-1), "fashion_mnist"),
             "rows[0].epochs[2].seconds: expected a number above 0, found -1"),
            (changed(lambda d: d["prune"][1]["dense"].pop("min_ms"), "fashion_mnist"),
             "prune[1].dense.min_ms: is missing"),
        ]
        for content, message in cases:
            with self.subTest(message=message):
                path = self.file(content)
                status, out, err = self.program(path, "--out", self.folder / "page")
                self.assertEqual((status, out), (1, ""))
                self.assertTrue(err.startswith(f"report: {path}: "), err)
                self.assertIn(message, err)
                self.assertFalse((self.folder / "page").exists())

    def test_a_missing_file_is_named(self) -> None:
        status, _, err = self.program(self.folder / "none.json")
        self.assertEqual(status, 1)
        self.assertIn("none.json: cannot be read: No such file", err)


class Sections(Case):
    def test_zero_weights(self) -> None:
        section = self.section(self.sample("zero_weights"))
        self.assertEqual([value for value, _ in section.highlights], ["20.0×", "20.0×"])
        self.assertIn("GPU graph", section.highlights[1][1])
        text = dict(section.answers)
        gpu = text["GPU, Sample GPU, graph replay."].replace("\N{NO-BREAK SPACE}", " ")
        self.assertIn("takes 0.100 ms with random weights and 0.100 ms with all weights zero: "
                      "zeros alone make it no faster.", gpu)
        self.assertIn("zerone takes 0.00500 ms with all weights zero, 20.0× faster", gpu)
        self.assertIn("skipping pays from 90 % on.", gpu)
        self.assertIn("the largest error is 2.0e-06", text["Checked first."])
        self.assertEqual(section.warnings, [])
        speed_up = next(f for f in section.figures() if f.name == "density-cpu")
        assert isinstance(speed_up, figures.Lines)
        self.assertEqual(list(speed_up.x_labels), ["10 %", "0 %"])
        self.assertEqual([round(v or 0, 6) for v in speed_up.series[0].values], [2, 20])

    def test_published_figures_stand_beside_ours(self) -> None:
        section = self.section(self.sample("zero_weights"))
        part = next(p for p in section.parts if p.title.startswith("Published"))
        self.assertEqual(part.tables[0].rows[0], ["CPU, forward", "45.0", "42.0", "1.07×", "8.00",
                                                  "8.00", "1.00×", "8.00", "0.400", "20.0×"])

    def test_work_and_limits(self) -> None:
        section = self.section(self.sample("zero_weights"))
        part = next(p for p in section.parts
                    if p.title == "Bytes moved and the machine's limits: CPU, Sample CPU")
        rows = {row[0]: [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row[1:]]
                for row in part.tables[0].rows}
        # 6 MB and 0.6 GFLOP in 8 ms; copy 10 GB/s, matrix product 100 GFLOP/s: at least 6 ms.
        self.assertEqual(rows["dense, uniform [0, 1)"], ["6.00", "0.600", "100", "0.750", "7.5 %",
                                                         "75.0", "75 %", "75 %"])
        # A tenth of the multiplies in 4 ms.
        self.assertEqual(rows["zerone, 90 % zeros"], ["6.00", "0.0600", "10.0", "1.50", "15 %",
                                                      "15.0", "15 %", "15 %"])
        self.assertNotIn("zerone, all zero", rows)

    def test_conv1x1_vs_linear(self) -> None:
        section = self.section(self.sample("conv1x1_vs_linear"))
        values = [value.replace("\N{NO-BREAK SPACE}", " ") for value, _ in section.highlights]
        self.assertEqual(values, ["150 %", "100 %", "150 %", "100 %"])
        self.assertIn("The copy is the cost, not the layer.", dict(section.answers)[
            "GPU, Sample GPU, fp32."])
        moved = next(f for f in section.figures() if f.name == "bytes-cpu-forward")
        assert isinstance(moved, figures.Bars)
        # Copies are read and written.
        self.assertEqual([list(s.values) for s in moved.series], [[1, 1, 1], [0, 1, 0]])

    def test_fashion_mnist(self) -> None:
        section = self.section(self.sample("fashion_mnist"))
        text = " ".join(answer for _, answer in section.answers).replace("\N{NO-BREAK SPACE}", " ")
        self.assertIn("After 3 epochs 89.00 % of the test images are recognized; an epoch takes "
                      "10.0 s (median).", text)
        self.assertIn("An epoch of zerone is 1.50× faster than PyTorch's.", text)
        parts = {part.title: part for part in section.parts}
        self.assertIn("Pruning", parts)
        self.assertEqual(parts["The network's layers"].tables[0].rows[0],
                         ["0", "conv 1->8 3x3", "[128, 8, 28, 28]", "80",
                          "conv2d.forward/cpu.onednn"])
        self.assertIn("PyTorch 2.11.0", dict(parts["What the rows mean"].terms)["PyTorch"])

    def test_optional_parts_may_be_missing(self) -> None:
        optional = ("bytes", "flops", "zero_share", "multiplies_skipped", "ran", "max_error",
                    "tolerance", "trials", "mean_ms", "copied_bytes", "percent_of_conv1x1", "shape",
                    "storage")
        for name in EXPERIMENTS:
            document = self.sample(name)
            document["header"] = {"experiment": name}
            for key in ("published", "prune", "summary"):
                document.pop(key, None)
            for row in document["rows"]:
                for field in optional:
                    row.pop(field, None)
            section = self.section(document)
            self.assertTrue(section.title)
            self.assertFalse([f for f in section.figures() if isinstance(f, figures.Roofline)])
            self.assertFalse([p for p in section.parts
                              if p.title.startswith(("Pruning", "Published"))])
            terms = dict(section.parts[-1].terms)
            self.assertEqual(terms["commit"], "not recorded")
            if name != "fashion_mnist":
                self.assertIn("written by an earlier version",
                              " ".join(text for part in section.parts for text in part.text))

    def test_warnings(self) -> None:
        document = self.sample("zero_weights")
        document["header"]["complete"] = False
        document["header"]["commit"] += "-dirty"
        for row in document["rows"]:
            row["min_ms"] = row["median_ms"] / 2
        document["rows"][0]["max_error"] = 1
        warnings = " ".join(self.section(document).warnings)
        for text in ("was interrupted", "in 36 of 36 rows", "differed from the commit",
                     "than allowed: 1 row."):
            self.assertIn(text, warnings)

    def test_no_rows(self) -> None:
        for name in EXPERIMENTS:
            document = self.sample(name)
            document["rows"] = []
            document.pop("prune", None)
            self.assertIn("The file holds no measured row.", self.section(document).warnings)

    def test_runs_are_never_mixed(self) -> None:
        first = self.sample("zero_weights")
        second = copy.deepcopy(first)
        for row in second["rows"]:
            row["median_ms"] *= 2 if row["path"] == "dense" else 1
        runs = [results.read(self.file(d, f"{i}.json")) for i, d in enumerate((first, second))]
        made = [report.section_of(run, runs) for run in runs]
        self.assertEqual([section.id for section in made], ["zero-weights-1", "zero-weights-2"])
        self.assertEqual([section.highlights[0][0] for section in made], ["20.0×", "40.0×"])

    def test_numbers(self) -> None:
        expected = {0: "0", 0.00194: "0.00194", 0.0902: "0.0902", 0.9996: "1.00", 1.334: "1.33",
                    9.999: "10.0", 22.72: "22.7", 99.96: "100", 1314.6: "1315"}
        self.assertEqual({value: figures.digits(value) for value in expected}, expected)
        self.assertEqual([sections.times(v) for v in (None, 0.9996, 5.594, 46.24, 1315.2)],
                         ["–", "1.00×", "5.59×", "46.2×", "1315×"])
        self.assertEqual([sections.percent(v).replace("\N{NO-BREAK SPACE}", " ")
                          for v in (0, 0.012, 0.0996, 0.64, 1.5)],
                         ["0 %", "1.2 %", "10 %", "64 %", "150 %"])


class Missing(Case):
    def test_without_the_packages_a_message_says_so(self) -> None:
        for module, package in (("jinja2", "python3-jinja2"), ("matplotlib", "python3-matplotlib")):
            if module == "matplotlib" and not importlib.util.find_spec("jinja2"):
                continue  # whose absence is told first
            with mock.patch.dict(sys.modules, {module: None}):
                sys.modules.pop("plots", None)
                status, out, err = self.program(SAMPLES[0], "--out", self.folder / "page")
            self.assertEqual((status, out), (3, ""))
            self.assertIn(package, err)
            self.assertIn("install_dependencies.sh --report", err)


class Outline(html.parser.HTMLParser):
    """Checks that elements nest, and collects attributes."""

    EMPTY = {"meta", "br", "link", "img", "input"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.faults: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")


@unittest.skipUnless(CAN_DRAW, "matplotlib or Jinja2 is not installed")
class Page(Case):
    made: tempfile.TemporaryDirectory[str]
    page: str
    outline: Outline

    @classmethod
    def setUpClass(cls) -> None:
        cls.made = tempfile.TemporaryDirectory()
        with contextlib.redirect_stdout(io.StringIO()):
            assert report.main([*map(str, SAMPLES), "--out", cls.made.name]) == 0
        cls.page = (Path(cls.made.name) / "index.html").read_text(encoding="utf-8")
        cls.outline = Outline(cls.page)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.made.cleanup()

    def test_elements_nest_and_ids_are_unique(self) -> None:
        self.assertEqual((self.outline.faults, self.outline.open), ([], []))
        ids = [a["id"] for _, a in self.outline.elements if "id" in a]
        self.assertEqual(len(ids), len(set(ids)))
        for used in re.findall(r'(?:xlink:href="|url\(|href=")#([^")]+)', self.page):
            self.assertIn(used, ids)

    def test_nothing_is_fetched(self) -> None:
        text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", self.page)
        self.assertNotRegex(text, r"https?:|//\w|@import|<script|<link|<img")

    def test_plots_can_be_read_by_all(self) -> None:
        svgs = [a for tag, a in self.outline.elements if tag == "svg"]
        self.assertGreater(len(svgs), 20)
        for attributes in svgs:
            self.assertEqual(attributes["role"], "img")
            self.assertGreater(len(attributes["aria-label"] or ""), 40)
        headers = [a for tag, a in self.outline.elements if tag == "th"]
        self.assertTrue(headers and all("scope" in a for a in headers))

    def test_colors_follow_the_page(self) -> None:
        inside = " ".join(re.findall(r"<svg.*?</svg>", self.page, re.DOTALL))
        self.assertEqual(set(re.findall(r"#[0-9a-f]{6}\b", inside)), set())
        self.assertIn("var(--s0)", inside)
        self.assertIn("prefers-color-scheme: dark", self.page)

    def test_contrast(self) -> None:
        import plots

        def luminance(color: str) -> float:
            parts = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        for palette in (plots.LIGHT, plots.DARK):
            ground = luminance(palette["surface"])
            for role, color in palette.items():
                if role in ("surface", "grid"):
                    continue
                low, high = sorted((luminance(color), ground))
                self.assertGreaterEqual((high + 0.05) / (low + 0.05), 4.5, (role, color))

    def test_files_lie_beside_the_page(self) -> None:
        folder = Path(self.made.name) / "plots"
        svgs = sorted(path.stem for path in folder.glob("*.svg"))
        self.assertEqual(svgs, sorted(path.stem for path in folder.glob("*.png")))
        self.assertEqual(len(svgs), self.page.count("<svg"))
        for path in folder.glob("*.svg"):
            root = xml.etree.ElementTree.parse(path).getroot()
            self.assertTrue(root.tag.endswith("svg"))
        for path in folder.glob("*.png"):
            self.assertEqual(path.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_figures_of_the_file_are_on_the_page(self) -> None:
        for text in ("20.0×", "Sample GPU", "0123456789abcdef0123456789abcdef01234567",
                     "g++ 12.2.0", "zero_weights --json zero_weights.json", "sample figures"):
            self.assertIn(text, self.page)

    def test_it_repeats(self) -> None:
        status, out, _ = self.program(SAMPLES[2], "--out", self.folder / "a")
        self.program(SAMPLES[2], "--out", self.folder / "b")
        self.assertEqual((status, out), (0, f"report: {self.folder / 'a' / 'index.html'}\n"))
        self.assertEqual((self.folder / "a" / "index.html").read_text(encoding="utf-8"),
                         (self.folder / "b" / "index.html").read_text(encoding="utf-8"))

    def test_texts_are_escaped(self) -> None:
        document = self.sample("fashion_mnist")
        document["rows"][0]["library"] = '<b a="1">&'
        self.program(self.file(document), "--out", self.folder / "page")
        text = (self.folder / "page" / "index.html").read_text(encoding="utf-8")
        self.assertNotIn("<b a=", text)
        self.assertEqual(Outline(text).faults, [])


if __name__ == "__main__":
    unittest.main()
