#!/usr/bin/env python3
"""Runs the program fashion_mnist on small IDX files made here, with patterns that can be learned.

  fashion_mnist_test.py PROGRAM [unittest options]
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = ""
SIDE = 28
Json = dict[str, Any]
PIXELS, LABELS = "{}-images-idx3-ubyte.gz", "{}-labels-idx1-ubyte.gz"


def idx(sizes: tuple[int, ...], values: bytes, magic: int | None = None) -> bytes:
    """An IDX file of unsigned bytes."""
    header = 0x800 + len(sizes) if magic is None else magic
    return struct.pack(f">{len(sizes) + 1}I", header, *sizes) + values


def pattern(label: int, noise: random.Random) -> bytes:
    """A bright bar whose place tells the label, on a noisy ground."""
    rows = range(2 * label + 3, 2 * label + 6)
    return bytes(200 if y in rows and 4 <= x < 24 else noise.randrange(60)
                 for y in range(SIDE) for x in range(SIDE))


class Case(unittest.TestCase):
    """With a folder of its own that holds 300 and 100 images."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        noise = random.Random(7)
        for name, count in (("train", 300), ("t10k", 100)):
            labels = bytes(noise.randrange(10) for _ in range(count))
            self.put(PIXELS.format(name), idx((count, SIDE, SIDE),
                                              b"".join(pattern(k, noise) for k in labels)))
            self.put(LABELS.format(name), idx((count,), labels))

    def put(self, name: str, content: bytes) -> None:
        """Writes a gzip file."""
        (self.folder / name).write_bytes(gzip.compress(content, 1))

    def command(self, *arguments: object) -> list[str]:
        """A quick run on these files, unless told otherwise."""
        given = [str(argument) for argument in arguments]
        usual = {"--data": self.folder, "--batch": 32, "--threads": 2, "--epochs": 1}
        for option, value in usual.items():
            if option not in given:
                given += [option, str(value)]
        return [PROGRAM, *given] if "--tune" in given else [PROGRAM, "--no-tune", *given]

    def program(self, *arguments: object) -> tuple[int, str, str]:
        """Exit status, stdout and stderr."""
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=600,
                              check=False)
        return done.returncode, done.stdout, done.stderr

    def running(self, *arguments: object) -> subprocess.Popen[str]:
        """The program at work."""
        return subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)

    def results(self, *arguments: object, status: int = 0) -> Json:
        """What a run writes."""
        path = self.folder / "out.json"
        code, out, err = self.program("--json", path, *arguments)
        self.assertEqual(code, status, out + err)
        return json.loads(path.read_text(encoding="utf-8"))

    def refused(self, status: int, *expected: str, options: tuple[object, ...] = ()) -> None:
        """The run ends so, and stderr says why."""
        code, out, err = self.program(*options)
        self.assertEqual(code, status, out + err)
        for text in expected:
            self.assertIn(text, err)


def numbers(document: Json) -> list[list[float]]:
    """All that a run found out, without times."""
    return [[epoch[name] for name in ("epoch", "train_loss", "test_loss", "test_accuracy")]
            for epoch in document["rows"][0]["epochs"]]


def epochs_of(process: subprocess.Popen[str]) -> Iterator[int]:
    """Numbers of the epochs, as their lines appear."""
    assert process.stdout
    for line in process.stdout:
        if found := re.match(r" +(\d+)( +[\d.]+){3} % ", line):
            yield int(found[1])


def parts(path: Path) -> tuple[Json, bytes]:
    """Header and data of a safetensors file."""
    content = path.read_bytes()
    end = 8 + struct.unpack_from("<Q", content)[0]
    return json.loads(content[8:end]), content[end:]


class Running(Case):
    def test_it_learns_and_writes_what_the_report_reads(self) -> None:
        document = self.results("--epochs", "8")
        header, row = document["header"], document["rows"][0]
        self.assertEqual(header["experiment"], "fashion_mnist")
        self.assertTrue(header["complete"])
        self.assertEqual((header["train_images"], header["test_images"]), (300, 100))
        self.assertEqual(row["library"], "zerone")
        self.assertEqual([epoch["epoch"] for epoch in row["epochs"]], list(range(1, 9)))
        self.assertLess(row["epochs"][-1]["train_loss"], 0.2 * row["epochs"][0]["train_loss"])
        self.assertGreater(row["best_accuracy"], 0.9)
        for epoch in row["epochs"]:
            self.assertGreater(epoch["seconds"], 0)
            self.assertGreater(epoch["seconds_with_evaluation"], epoch["seconds"])
        self.assertEqual(sum(layer["parameters"] for layer in document["summary"]),
                         32 * 9 + 64 * 32 * 9 + 2 * 96 + 3136 * 128 + 128 + 1290)
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "report"))
        import results  # pylint: disable=import-outside-toplevel
        self.assertEqual(results.read(self.folder / "out.json").experiment, "fashion_mnist")

    def test_seeds_decide_the_numbers(self) -> None:
        first = numbers(self.results("--epochs", "2"))
        self.assertEqual(numbers(self.results("--epochs", "2")), first)
        self.assertNotEqual(numbers(self.results("--epochs", "2", "--seed", "2")), first)
        self.assertNotEqual(numbers(self.results("--epochs", "2", "--augment")), first)

    def test_limit_takes_the_first_images(self) -> None:
        header = self.results("--limit", "70")["header"]
        self.assertEqual((header["train_images"], header["test_images"]), (70, 70))

    def test_plain_files_do_as_well(self) -> None:
        name = self.folder / PIXELS.format("t10k")
        name.write_bytes(gzip.decompress(name.read_bytes()))
        self.results()

    def test_help_and_profile(self) -> None:
        code, out, _ = self.program("--help")
        self.assertEqual(code, 0)
        for option in ("--device", "--epochs", "--batch", "--lr", "--dtype", "--math", "--threads",
                       "--seed", "--json", "--checkpoint", "--resume", "--data", "--limit",
                       "--profile", "--augment", "--peer", "dataset-fashion-mnist"):
            self.assertIn(option, out)
        code, out, err = self.program("--profile")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("profiled steps", out)


class Continuing(Case):
    def copied_on_the_way(self, state: Path, copy: Path, *options: object) -> int:
        """A whole run, its checkpoint copied after some epochs: their number."""
        with self.running("--checkpoint", state, *options) as process:
            for epoch in epochs_of(process):
                if epoch == 3:
                    for ending in ("", ".plans"):
                        if Path(f"{state}{ending}").exists():
                            shutil.copy(f"{state}{ending}", f"{copy}{ending}")
        self.assertEqual(process.returncode, 0)
        return len(json.loads(parts(copy)[0]["__metadata__"]["epochs"]))

    def test_a_resumed_run_equals_one_that_was_not_interrupted(self) -> None:
        for i, more in enumerate(((), ("--augment", "--seed", "9", "--tune"))):
            whole, state = self.folder / f"whole{i}", self.folder / f"state{i}"
            options = ("--epochs", "12", *more)
            done = next(count for _ in range(10)  # the copy may be made late
                        if (count := self.copied_on_the_way(whole, state, *options)) < 12)
            self.assertGreaterEqual(done, 2)
            self.assertEqual(Path(f"{state}.plans").exists(), "--tune" in more)
            found = numbers(self.results("--checkpoint", state, "--resume", state, *options))
            (header, data), (expected_header, expected_data) = parts(state), parts(whole)
            del header["__metadata__"]["epochs"]  # has times
            epochs = json.loads(expected_header["__metadata__"].pop("epochs"))
            self.assertEqual(found, numbers({"rows": [{"epochs": epochs}]}))
            self.assertEqual(header, expected_header)
            self.assertEqual(data, expected_data)

    def test_a_finished_run_has_nothing_left_to_do(self) -> None:
        state = self.folder / "state"
        expected = self.results("--epochs", "2", "--checkpoint", state)
        self.assertEqual(numbers(self.results("--epochs", "2", "--resume", state)),
                         numbers(expected))

    def test_settings_and_files_that_do_not_fit(self) -> None:
        state = self.folder / "state"
        self.results("--checkpoint", state)
        for options, expected in ((("--seed", "2"), "--seed 2: "), (("--lr", "0.5"), "--lr 0.5: "),
                                  (("--augment",), "--augment true: "),
                                  (("--batch", "16"), "--batch 16: ")):
            self.refused(2, expected, options=("--resume", state, *options))
        state.write_bytes(state.read_bytes()[:-3])
        self.refused(1, str(state), options=("--resume", state))
        header = b'{"__metadata__":{"settings":"{}"}}'
        state.write_bytes(struct.pack("<Q", len(header)) + header)
        self.refused(1, "was not written by this program", options=("--resume", state))
        self.refused(1, str(self.folder / "none"), options=("--resume", self.folder / "none"))

    def test_ctrl_c_keeps_whole_epochs(self) -> None:
        path = self.folder / "out.json"
        with self.running("--epochs", "1000", "--json", path) as process:
            for epoch in epochs_of(process):
                if epoch == 1:
                    process.send_signal(signal.SIGINT)
        self.assertEqual(process.returncode, 130)
        document = json.loads(path.read_text(encoding="utf-8"))
        self.assertFalse(document["header"]["complete"])
        self.assertGreaterEqual(len(document["rows"][0]["epochs"]), 1)


class Comparing(Case):
    def peer(self, **changes: object) -> Path:
        """A file as bench/peers_fashion_mnist.py writes it."""
        settings = {"--epochs": 1, "--batch": 32, "--lr": 0.002, "--dtype": "f32", "--math": "fp32",
                    "--seed": 1, "--limit": 0, "--augment": False}
        row = {"library": "PyTorch", "device": "cpu", "threads": 2, "epochs": [
            {"epoch": 1, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5, "seconds": 2.0}]}
        path = self.folder / "peer.json"
        path.write_text(json.dumps({"header": {"settings": settings | changes}, "rows": [row]}),
                        encoding="utf-8")
        return path

    def test_rows_of_a_peer_are_merged(self) -> None:
        ours, theirs = self.results("--device", "cpu", "--peer", self.peer())["rows"]
        self.assertEqual(theirs["library"], "PyTorch")
        self.assertAlmostEqual(theirs["ours_over_peer"], ours["median_seconds"] / 2)

    def test_peers_of_other_work_are_refused(self) -> None:
        self.refused(2, "--seed 1: ", options=("--device", "cpu", "--peer",
                                               self.peer(**{"--seed": 2})))
        path = self.peer()
        self.refused(2, "no row for cpu, 1 CPU thread",
                     options=("--device", "cpu", "--threads", "1", "--peer", path))
        path.write_text("{", encoding="utf-8")
        self.refused(1, f"--peer {path}", options=("--peer", path))
        path.unlink()
        self.refused(1, f"--peer {path}", options=("--peer", path))


class Malformed(Case):
    def test_files(self) -> None:
        images, labels = bytes(3 * SIDE * SIDE), bytes(3)
        good = idx((3, SIDE, SIDE), images)
        name, label_name = PIXELS.format("train"), LABELS.format("train")
        for content, expected in (
                (b"", "is no IDX file"), (b"\0\0\x08", "is no IDX file"),
                (b"\x01" + good[1:], "is no IDX file"),
                (idx((3, SIDE, SIDE), images, 0xd03), "0x0d"),
                (idx((3,), labels), "has rank 1, expected 3"), (good[:9], "header is cut short"),
                (good[:-1], "ends before the 2352 bytes"), (good + b"x", "more than the 2352 bytes"),
                (idx((2**32 - 1, SIDE, SIDE), images), "ends before"),
                (idx((2**32 - 1,) * 3, images), "overflow"),
                (idx((3, 14, 56), images), "images of 14x56, expected 28x28"),
                (idx((0, SIDE, SIDE), b""), "holds no images"),
                (idx((4, SIDE, SIDE), images + bytes(SIDE * SIDE)), "300 labels, but")):
            with self.subTest(expected=expected):
                self.put(name, content)
                self.refused(1, name, expected)
        whole = gzip.compress(good, 1)
        for content, expected in ((whole[:-12], "cut short"), (whole[:-4] + b"abcd", "incorrect"),
                                  (whole[:10] + b"\xff" * 9 + whole[19:], "invalid")):
            with self.subTest(expected=expected):
                (self.folder / name).write_bytes(content)
                self.refused(1, name, expected)
        self.put(name, good)
        self.put(label_name, idx((3,), b"\0\x0a\0"))
        self.refused(1, label_name, "label 1 is 10")

    def test_a_missing_file_names_the_package(self) -> None:
        (self.folder / LABELS.format("t10k")).unlink()
        self.refused(1, LABELS.format("t10k"), "dataset-fashion-mnist")
        self.refused(1, "dataset-fashion-mnist", options=("--data", self.folder / "nowhere"))

    def test_options(self) -> None:
        for options, expected in (
                (("--epochs", "0"), "--epochs"), (("--batch", "1"), "--batch"),
                (("--batch", "301"), "only 300 training images"), (("--lr", "0"), "--lr"),
                (("--device", "tpu"), "--device"), (("--dtype", "f64"), "--dtype"),
                (("--math", "fast"), "--math"), (("--limit", "-1"), "--limit"),
                (("--frobnicate",), "--frobnicate"),
                (("--device", "cpu", "--dtype", "bf16"), "--dtype bf16")):
            with self.subTest(options=options):
                self.refused(2, expected, options=options)
        self.refused(1, "--json", options=("--json", self.folder / "no" / "file"))

    def test_a_loss_that_is_not_finite_ends_the_run(self) -> None:
        self.refused(1, "the loss is", "--lr", options=("--lr", "1000", "--epochs", "20"))


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(__doc__)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
