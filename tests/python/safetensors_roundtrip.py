#!/usr/bin/env python3
"""Files go from Python's safetensors to zerone and back; networks give PyTorch's results.

    safetensors_roundtrip.py PEER [UNITTEST_ARGUMENT...]    PEER: the program safetensors_peer
    safetensors_roundtrip.py --available                    exits 0 if the packages are there

Needs numpy and safetensors; what needs torch is skipped where it is missing. Packages are also
looked for where scripts/install_dependencies.sh --dev puts them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / ".deps" / "python"))
import numpy as np  # noqa: E402
import safetensors  # noqa: E402
import safetensors.numpy  # noqa: E402

try:
    import safetensors.torch
    import torch
except ImportError:
    torch = None

PEER = ""
needs_torch = unittest.skipIf(torch is None, "torch is not installed")


def peer(*arguments: object) -> None:
    """Runs zerone's side."""
    subprocess.run([PEER, *map(str, arguments)], check=True)


def some_arrays() -> dict[str, np.ndarray]:
    """All types that NumPy shares with zerone, in several shapes, special values included."""
    random = np.random.default_rng(7)
    arrays = {"empty": np.zeros((2, 0, 3), np.float32), "quoted \"ä€\"": np.ones(1, np.float64)}
    for dtype in (np.float64, np.float32, np.float16, np.int64, np.uint8):
        for shape in ((), (1,), (3, 5), (2, 1, 3, 4), (1, 2, 1, 2, 1, 2, 1, 2)):
            drawn = random.normal(scale=20, size=shape)
            drawn = np.abs(drawn) if dtype == np.uint8 else drawn
            arrays[f"{np.dtype(dtype).name}.{len(shape)}"] = np.asarray(drawn, dtype=dtype)
    arrays["special"] = np.array([np.inf, -np.inf, np.nan, -0.0, 5e-324])
    return arrays


class Roundtrip(unittest.TestCase):
    """One test a direction."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_numpy_files(self) -> None:
        """zerone reads what NumPy wrote, and writes it again byte for byte."""
        arrays = some_arrays()
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        safetensors.numpy.save_file(arrays, theirs, metadata={"format": "np ä \"\n"})
        peer("copy", theirs, ours)
        loaded = safetensors.numpy.load_file(ours)
        self.assertEqual(loaded.keys(), arrays.keys())
        for name, array in arrays.items():
            self.assertEqual(loaded[name].dtype, array.dtype, name)
            self.assertEqual(loaded[name].shape, array.shape, name)
            self.assertEqual(loaded[name].tobytes(), array.tobytes(), name)
        self.assertEqual(ours.read_bytes(), theirs.read_bytes())
        with safetensors.safe_open(ours, framework="np") as file:
            self.assertEqual(file.metadata(), {"format": "np ä \"\n"})

    def test_model_of_every_type(self) -> None:
        """The reference parser accepts zerone's models."""
        for dtype in ("f64", "f32", "bf16", "f16"):
            with self.subTest(dtype):
                model = self.folder / dtype
                peer("init", model, dtype)
                tensors = dict(safetensors.deserialize(model.read_bytes()))
                shapes = {name: tensor["shape"] for name, tensor in tensors.items()}
                self.assertEqual(shapes, {
                    "0.weight": [8, 3, 3, 3], "0.bias": [8], "1.weight": [8], "1.bias": [8],
                    "1.running_mean": [8], "1.running_var": [8], "3.weight": [6, 4, 3, 3],
                    "5.weight": [4, 6, 1, 1], "5.bias": [4], "6.weight": [7, 5], "6.bias": [7]})
                self.assertEqual({tensor["dtype"] for tensor in tensors.values()}, {dtype.upper()})

    def test_files_that_do_not_fit(self) -> None:
        """A model of another type or shape is refused, with the reason."""
        model, x = self.folder / "model", self.folder / "x"
        peer("init", model, "f32")
        safetensors.numpy.save_file({"x": np.zeros((2, 3, 11, 11), np.float64)}, x)
        refused = subprocess.run([PEER, "forward", model, x, self.folder / "y"],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("'0.weight' is f32 [8, 3, 3, 3], not f64", refused.stderr)

    @needs_torch
    def test_torch_files(self) -> None:
        """bf16 as well, and tensors that lie in another order."""
        generator = torch.Generator().manual_seed(7)
        tensors = {str(dtype): torch.randn(2, 3, 4, generator=generator).to(dtype)
                   for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
        ours, theirs = self.folder / "ours", self.folder / "theirs"
        safetensors.torch.save_file(tensors, theirs)
        peer("copy", theirs, ours)
        self.assertEqual(ours.read_bytes(), theirs.read_bytes())
        for name, tensor in safetensors.torch.load_file(ours).items():
            self.assertTrue(torch.equal(tensor, tensors[name]), name)

    @needs_torch
    def test_torch_networks(self) -> None:
        """A state_dict in either direction gives equal outputs."""
        layers = torch.nn
        for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
            torch.manual_seed(7)
            model = layers.Sequential(
                layers.Conv2d(3, 8, 3, padding=1), layers.BatchNorm2d(8), layers.ReLU(),
                layers.Conv2d(8, 6, 3, stride=2, groups=2, bias=False), layers.ReLU(),
                layers.Conv2d(6, 4, 1), layers.Linear(5, 7)).to(dtype)
            x = torch.randn(2, 3, 11, 11, dtype=dtype)
            model(x)  # moves the running statistics
            model.eval()
            file, inputs, outputs = (self.folder / name for name in ("model", "x", "y"))
            safetensors.torch.save_file({"x": x}, inputs)
            for ours in (False, True):
                with self.subTest(dtype=dtype, ours=ours):
                    if ours:
                        peer("init", file, "f64" if dtype == torch.float64 else "f32")
                        model.load_state_dict(safetensors.torch.load_file(file))
                    else:
                        safetensors.torch.save_file(model.state_dict(), file)
                    peer("forward", file, inputs, outputs)
                    y = safetensors.torch.load_file(outputs)["y"]
                    torch.testing.assert_close(y, model(x).detach(), rtol=tolerance,
                                               atol=tolerance)


if __name__ == "__main__":
    if sys.argv[1:] == ["--available"]:
        sys.exit(0)
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PEER = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
