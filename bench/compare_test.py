#!/usr/bin/env python3
"""Unit tests of compare.py."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import compare  # noqa: E402


def row(suite: str, case: str, pass_: str, impl: str, median: float | None, math_mode: str = "fp32",
        storage: str = "f32", **more: Any) -> dict[str, Any]:
    """A peer row."""
    return {"suite": suite, "case": case, "pass": pass_, "impl": impl, "storage": storage,
            "math": math_mode, "median_ms": median, "min_ms": median, "bytes": 1e6, "flops": 1e9,
            "max_error": None} | more


def benchmark(name: str, **counters: Any) -> dict[str, Any]:
    """An entry of Google Benchmark's output."""
    name += "/iterations:1/manual_time"
    return {"name": name, "run_name": name, "run_type": "iteration", "repetitions": 1,
            "repetition_index": 0, "threads": 1, "iterations": 1, "real_time": 2.0, "cpu_time": 3.0,
            "time_unit": "ms"} | counters


def goal(name: str) -> compare.Goal:
    """A goal of the table by its id."""
    return next(entry for entry in compare.GOALS if entry.id == name)


def judge(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Judges one goal of the table."""
    return compare.judge(goal(name), rows, {}, "compare")


class Reading(unittest.TestCase):
    """Input files."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name: str, content: Any) -> Path:
        """Writes an input file."""
        path = self.folder / name
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    def test_benchmark_row(self) -> None:
        entry = benchmark("conv2d/k3/forward/cuda.cudnn/f32/tf32", median_ms=0.5, min_ms=0.4,
                          bytes=8.0, flops=16.0, max_error=1e-7, host_us_per_op=3.0)
        found = compare.benchmark_row(entry)
        self.assertEqual(compare.key_of(found),
                         ("conv2d", "k3", "forward", "cuda.cudnn", "f32", "tf32"))
        self.assertEqual([found[counter] for counter in compare.COUNTERS],
                         [0.5, 0.4, 8.0, 16.0, 1e-7])
        self.assertEqual(found["extra"], {"host_us_per_op": 3.0})

    def test_time_without_counter_is_real_time(self) -> None:
        found = compare.benchmark_row(benchmark("a/b/c/d/e/f", real_time=5.0, time_unit="us"))
        self.assertAlmostEqual(found["median_ms"], 0.005)

    def test_nan_counter_is_not_measured(self) -> None:
        found = compare.benchmark_row(benchmark("a/b/c/d/e/f", median_ms=math.nan))
        self.assertFalse(compare.measured(found))

    def test_failed_benchmark_is_not_measured(self) -> None:
        found = compare.benchmark_row(benchmark("a/b/c/d/e/f", error_occurred=True,
                                                error_message="no memory", median_ms=1.0))
        self.assertFalse(compare.measured(found))
        self.assertEqual(found["error"], "no memory")

    def test_bad_name(self) -> None:
        with self.assertRaisesRegex(ValueError, "BM_Old"):
            compare.benchmark_row(benchmark("BM_Old"))

    def test_repetitions_and_aggregates(self) -> None:
        name = "a/b/c/d/e/f"
        entries = [benchmark(name, median_ms=time, min_ms=time) for time in (3.0, 1.0, 2.0)]
        entries.append(benchmark(name, median_ms=99.0) | {"run_type": "aggregate"})
        _, rows = compare.read_file(self.file("a.json", {"context": {}, "benchmarks": entries}))
        self.assertEqual(len(rows), 1)
        self.assertEqual((rows[0]["median_ms"], rows[0]["min_ms"]), (2.0, 1.0))

    def test_same_row_in_two_files(self) -> None:
        content = {"header": {}, "rows": [row("mlp", "a", "forward", "cuda.auto", 1.0)]}
        paths = [self.file("a.json", content), self.file("b.json", content)]
        with self.assertRaisesRegex(ValueError, "mlp/a/forward/cuda.auto"):
            compare.read_files(paths)

    def test_files_of_two_runs(self) -> None:
        paths = [self.file(f"{name}.json", {"header": {"commit": name}, "rows": []})
                 for name in ("a", "b")]
        with self.assertRaisesRegex(ValueError, "not one run"):
            compare.read_files(paths)

    def test_gpu_names_the_machine(self) -> None:
        paths = [self.file("a.json", {"header": {"machine": "EPYC", "device": "cpu"}, "rows": []}),
                 self.file("b.json", {"header": {"machine": "H200", "device": "cuda"}, "rows": []})]
        self.assertEqual(compare.read_files(paths)[0]["machine"], "H200")

    def test_unknown_file(self) -> None:
        with self.assertRaisesRegex(ValueError, "neither"):
            compare.read_file(self.file("a.json", {"what": 1}))

    def test_main_writes_everything(self) -> None:
        entries = [benchmark("overhead/experiment1_b1/forward/cuda.auto.eager/f32/fp32",
                             median_ms=0.1, min_ms=0.1, bytes=1e6, flops=1e9, max_error=0.0,
                             host_us_per_op=3.5, driver_allocations=0.0)]
        ours = self.file("ours.json", {"context": {"compiler": "g++ 12", "driver": "1"},
                                       "benchmarks": entries})
        peers = self.file("peers.json", {
            "header": {"machine": "NVIDIA H200", "device": "cuda", "driver": "1", "date": "today"},
            "rows": [row("overhead", "experiment1_b1", "forward", "pytorch.cudnn.eager", 0.4),
                     row("ceilings", "copy_1GiB", "copy", "pytorch.copy", 0.001)]})
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            code = compare.main([str(ours), str(peers), "--results", str(self.folder / "out"),
                                 "--set", "cudnn=9"])
        self.assertEqual(code, 0)
        folder = self.folder / "out" / "nvidia-h200"
        result = json.loads((folder / "overhead.json").read_text(encoding="utf-8"))
        for name in compare.HEADER_KEYS:
            self.assertIn(name, result["header"])
        self.assertEqual(result["header"]["compiler"], "g++ 12")
        self.assertEqual(result["header"]["cudnn"], "9")
        wanted = set(compare.KEY_FIELDS + compare.COUNTERS)
        wanted |= {"fraction_of_copy_bandwidth", "fraction_of_matrix_rate"}
        for found in result["rows"]:
            self.assertLessEqual(wanted, set(found))
        goals = json.loads((folder / "goals.json").read_text(encoding="utf-8"))
        self.assertEqual([entry["id"] for entry in goals], [entry.id for entry in compare.GOALS])
        for entry in goals:
            self.assertLessEqual({"id", "goal", "measured", "unit", "met", "command", "rows"},
                                 set(entry))
        states = {entry["id"]: entry["met"] for entry in goals}
        self.assertTrue(states["F1.forward"])
        self.assertEqual(sum(states.values()), 1)  # the others lack rows
        self.assertIn("0.250x", shown.getvalue())
        self.assertIn("NOT MEASURED", shown.getvalue())

    def test_main_reports_bad_input(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            self.assertEqual(compare.main([str(self.folder / "absent.json")]), 2)
            path = self.file("a.json", {"header": {}, "rows": []})
            self.assertEqual(compare.main([str(path), "--set", "color=red"]), 2)
        self.assertIn("color", shown.getvalue())


class Fractions(unittest.TestCase):
    """Fractions of the run's own ceilings."""

    def test_fractions(self) -> None:
        rows = [row("ceilings", "copy_4GiB", "copy", "pytorch.copy", 1.0, bytes=4e9, flops=0),
                row("ceilings", "copy_1GiB", "copy", "pytorch.copy", 1.0, bytes=3e9, flops=0),
                row("ceilings", "matmul_8192", "forward", "pytorch.matmul", 1.0, flops=5e10),
                row("ceilings", "matmul_8192", "forward", "pytorch.matmul", 1.0, "tf32",
                    flops=4e11),
                row("conv2d", "a", "forward", "cuda.cudnn", 2.0, "tf32", bytes=4e9, flops=4e11),
                row("conv2d", "a", "forward", "cuda.strict", 2.0, "strict", bytes=4e9, flops=5e10),
                row("conv2d", "a", "forward", "cuda.cudnn", 2.0, "bf16", "bf16"),
                row("conv2d", "a_t2", "forward", "cpu.eigen", 2.0),
                row("conv2d", "b", "forward", "cuda.cudnn", None)]
        compare.add_fractions(rows)
        found = [(entry["fraction_of_copy_bandwidth"], entry["fraction_of_matrix_rate"])
                 for entry in rows[4:]]
        self.assertEqual(found[0], (0.5, 0.5))
        self.assertEqual(found[1], (0.5, 0.5))  # strict against fp32's rate
        self.assertIsNone(found[2][1])  # no bf16 ceiling in the run
        self.assertEqual(found[3], (None, None))  # a CPU row never against a GPU's ceiling
        self.assertEqual(found[4], (None, None))

    def test_cpu_ceilings_of_equal_threads(self) -> None:
        rows = [row("ceilings", "copy_256MiB_t1", "copy", "pytorch.cpu", 1.0, bytes=2e6, flops=0),
                row("ceilings", "copy_256MiB_t2", "copy", "pytorch.cpu", 1.0, bytes=4e6, flops=0),
                row("mlp", "a_t1", "forward", "cpu.eigen", 1.0, bytes=1e6)]
        compare.add_fractions(rows)
        self.assertEqual(rows[2]["fraction_of_copy_bandwidth"], 0.5)


class Goals(unittest.TestCase):
    """Goals, above all what must not count as met."""

    def pair(self, ours: float | None, peer: float | None) -> list[dict[str, Any]]:
        """Rows of F1.forward."""
        rows = []
        if ours is not None:
            rows.append(row("overhead", "experiment1_b1", "forward", "cuda.auto.eager", ours))
        if peer is not None:
            rows.append(row("overhead", "experiment1_b1", "forward", "pytorch.cudnn.eager", peer))
        return rows

    def test_met_at_the_limit(self) -> None:
        entry = judge("F1.forward", self.pair(1.0, 2.0))
        self.assertTrue(entry["met"])
        self.assertEqual(entry["measured"], 0.5)
        self.assertNotIn("not_measured", entry)

    def test_not_met(self) -> None:
        self.assertFalse(judge("F1.forward", self.pair(1.1, 2.0))["met"])

    def test_missing_rows_are_never_met(self) -> None:
        for rows in (self.pair(1.0, None), self.pair(None, 2.0), []):
            entry = judge("F1.forward", rows)
            self.assertIs(entry["met"], False)
            self.assertIsNone(entry["measured"])
            self.assertTrue(entry["not_measured"])

    def test_failed_peer_is_missing(self) -> None:
        rows = self.pair(1.0, 2.0)
        for bad in (None, 0.0):
            rows[1]["median_ms"] = bad
            entry = judge("F1.forward", rows)
            self.assertFalse(entry["met"])
            self.assertIn("pytorch.cudnn.eager", entry["not_measured"][0])

    def test_every_goal_without_rows(self) -> None:
        for entry in compare.GOALS:
            found = compare.judge(entry, [], {}, "compare")
            self.assertFalse(found["met"], entry.id)
            self.assertTrue(found["not_measured"], entry.id)

    def test_other_mode_does_not_count(self) -> None:
        rows = self.pair(1.0, 2.0)
        rows[1]["math"] = "tf32"
        self.assertFalse(judge("F1.forward", rows)["met"])

    def test_counter(self) -> None:
        def rows(forward: Any, both: Any) -> list[dict[str, Any]]:
            return [row("overhead", "experiment1_b1", pass_, "cuda.auto.eager", 1.0, extra=extra)
                    for pass_, extra in (("forward", forward), ("forward_backward", both))]
        entry = judge("F1.host", rows({"host_us_per_op": 2.0}, {"host_us_per_op": 4.0}))
        self.assertTrue(entry["met"])
        self.assertEqual((entry["measured"], entry["unit"]), (4.0, "us"))
        self.assertFalse(judge("F1.host", rows({"host_us_per_op": 2.0}, {}))["met"])
        self.assertTrue(judge("F1.memory", rows({"driver_allocations": 0},
                                                {"driver_allocations": 0}))["met"])
        self.assertFalse(judge("F1.memory", rows({"driver_allocations": 0},
                                                 {"driver_allocations": 1}))["met"])

    def full_f2(self) -> list[dict[str, Any]]:
        """All rows of F2.nchw at ratio 1."""
        return [row("experiment1", f"b{batch}_kaiming", pass_, impl, 1.0, mode[1], mode[0])
                for batch in (1, 32, 256) for pass_ in compare.BOTH
                for impl in ("cuda.dense", "pytorch.cudnn")
                for mode in (compare.F32, compare.TF32, compare.BF16)]

    def test_worst_of_many(self) -> None:
        rows = self.full_f2()
        self.assertTrue(judge("F2.nchw", rows)["met"])
        rows[0]["median_ms"] = 1.06
        entry = judge("F2.nchw", rows)
        self.assertFalse(entry["met"])
        self.assertAlmostEqual(entry["measured"], 1.06)
        self.assertEqual(len(entry["rows"]), 18)

    def test_one_missing_of_many(self) -> None:
        for index in range(len(self.full_f2())):
            rows = self.full_f2()
            del rows[index]
            entry = judge("F2.nchw", rows)
            self.assertFalse(entry["met"])
            self.assertEqual(len(entry["not_measured"]), 1)
            self.assertEqual(entry["measured"], 1.0)  # worst of what was measured, still not met

    def zero_rows(self, tf32: float) -> list[dict[str, Any]]:
        """Rows of F4.cuda: ours 1 ms, fp32 peers 4 ms, a tf32 peer."""
        rows = []
        for case in ("b1_zero", "b256_zero"):
            for pass_ in ("forward", "backward_data"):
                rows += [row("experiment1", case, pass_, "cuda.auto", 1.0),
                         row("experiment1", case, pass_, "pytorch.cudnn", 4.0),
                         row("experiment1", case, pass_, "pytorch.cudnn.eager", 0.1),
                         row("experiment1", case, pass_, "cuda.dense.nhwc", tf32, "tf32")]
        return rows

    def test_best_dense_row_of_any_layout_and_mode(self) -> None:
        entry = judge("F4.cuda", self.zero_rows(3.0))
        self.assertTrue(entry["met"])
        self.assertAlmostEqual(entry["measured"], 3.0)
        self.assertFalse(judge("F4.cuda", self.zero_rows(2.9))["met"])

    def test_rivals_do_not_replace_a_required_peer(self) -> None:
        rows = [entry for entry in self.zero_rows(3.0) if entry["impl"] != "pytorch.cudnn"]
        entry = judge("F4.cuda", rows)
        self.assertFalse(entry["met"])
        self.assertIsNone(entry["measured"])

    def test_thread_counts_come_from_the_peers(self) -> None:
        def rows(ours: dict[int, float]) -> list[dict[str, Any]]:
            found = [row("experiment1", f"b1_kaiming_t{threads}", pass_, "pytorch.cpu", 1.0)
                     for threads in (1, 16) for pass_ in compare.BOTH]
            return found + [row("experiment1", f"b1_kaiming_t{threads}", pass_, "cpu.eigen", time)
                            for threads, time in ours.items() for pass_ in compare.BOTH]
        entry = judge("F5", rows({1: 1.1, 16: 1.3}))
        self.assertTrue(entry["met"])
        self.assertEqual(len(entry["rows"]), 4)
        self.assertFalse(judge("F5", rows({1: 1.1}))["met"])
        self.assertFalse(judge("F5", rows({1: 1.1, 16: 1.4}))["met"])

    def test_faster_means_below(self) -> None:
        def rows(ours: float) -> list[dict[str, Any]]:
            return [row("experiment1", "b256_scattered90", "forward", impl, time)
                    for impl, time in (("cuda.zero_skip", ours), ("pytorch.cudnn", 1.0))]
        self.assertFalse(judge("F6.cuda", rows(1.0))["met"])
        self.assertTrue(judge("F6.cuda", rows(0.99))["met"])

    def test_command_names_the_inputs(self) -> None:
        entry = compare.judge(goal("F5"), [], {"experiment1": ["bench a", "peers b"]}, "compare c")
        self.assertEqual(entry["command"], "bench a && peers b && compare c")

    def test_require_met(self) -> None:
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
            path = Path(name) / "a.json"
            path.write_text(json.dumps({"header": {}, "rows": self.pair(1.0, 2.0)}),
                            encoding="utf-8")
            self.assertEqual(compare.main([str(path), "--results", name, "--require-met"]), 1)


class Tables(unittest.TestCase):
    """Printed tables."""

    def test_zero_skip_falls_back_to_the_dense_pattern(self) -> None:
        rows = [row("zero_skip", "k5.scattered_0.9", "forward", "cuda.zero_skip", 1.0),
                row("zero_skip", "k5.scattered_0", "forward", "pytorch.cudnn", 4.0)]
        compare.add_fractions(rows)
        self.assertIn("0.250x", compare.ratio_table("zero_skip", rows))

    def test_failed_row_is_shown(self) -> None:
        rows = [row("conv2d", "a", "forward", "cuda.cudnn", None, error="no plan")]
        compare.add_fractions(rows)
        self.assertIn("not measured: no plan", compare.ratio_table("conv2d", rows))

    def test_eager_against_eager(self) -> None:
        rows = [row("overhead", "a", "forward", "cuda.auto.eager", 1.0),
                row("overhead", "a", "forward", "pytorch.cudnn", 0.5),
                row("overhead", "a", "forward", "pytorch.cudnn.eager", 2.0)]
        found = compare.reference_peer(rows[0], rows)
        assert found is not None
        self.assertEqual(found["median_ms"], 2.0)


if __name__ == "__main__":
    unittest.main()
