#!/usr/bin/env python3
"""Trains examples/fashion_mnist's network in PyTorch and writes rows for its --peer option.

Network, initial distribution, optimizer, schedule, batches and evaluation are the example's; random
numbers are PyTorch's own. Images are u8 on the device; batches are gathered and normalized there. A
GPU gets two rows: eager steps, and replays of a CUDA graph of the whole step. Memory format: the
faster of NCHW and channels_last, each tried for a few steps first. 16-bit types run under autocast
on f32 weights. cuDNN's benchmark mode is on, TF32 off unless --math tf32.

  bench/peers_fashion_mnist.py --device cpu --threads 2 --epochs 10 --out peers.json
  fashion_mnist --device cpu --threads 2 --epochs 10 --peer peers.json --json fashion_mnist.json
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import math
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE = 28
MEAN, STDDEV = 0.2860, 0.3530
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PACKAGE = "/usr/share/datasets/fashion-mnist"
Json = dict[str, Any]


def load_idx(path: Path, rank: int, limit: int) -> Tensor:
    """An IDX file of unsigned bytes, its first `limit` entries if that is not 0."""
    content = gzip.decompress(path.read_bytes())
    magic, *sizes = struct.unpack_from(f">{rank + 1}I", content)
    if magic != 0x800 + rank or len(content) != 4 * (rank + 1) + math.prod(sizes):
        raise SystemExit(f"{path}: is not an IDX file of rank {rank}")
    values = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 * (rank + 1))
    return values.reshape(sizes)[:limit or None]


def load(folder: Path, name: str, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Images u8 [n, 1, 28, 28] and labels i64 [n] on the device."""
    images = load_idx(folder / f"{name}-images-idx3-ubyte.gz", 3, options.limit)
    labels = load_idx(folder / f"{name}-labels-idx1-ubyte.gz", 1, options.limit)
    return images.unsqueeze(1).to(options.device), labels.long().to(options.device)


def build() -> nn.Sequential:
    """The example's network, with its initial values' distribution."""
    layers: list[nn.Module] = []
    for c_in, c_out in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out),
                   nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 7 * 7, 128), nn.ReLU(),
               nn.Dropout(0.25), nn.Linear(128, 10)]
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight)
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Training:
    """One network with its optimizer, trained eagerly or by replays of a graph."""

    def __init__(self, options: argparse.Namespace, memory: torch.memory_format,
                 graph: bool) -> None:
        torch.manual_seed(options.seed)
        self.options, self.memory = options, memory
        self.cuda = options.device == "cuda"
        self.net = build().to(options.device, memory_format=memory)
        # A graph reads the learning rate from the device.
        rate: float | Tensor = options.lr
        if graph:
            rate = torch.tensor(options.lr, device=options.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=rate, weight_decay=0.01,
                                           fused=True, capturable=graph)
        self.scaler = torch.amp.GradScaler(options.device, enabled=options.dtype == "f16")
        self.images = torch.zeros(options.batch, 1, SIDE, SIDE, dtype=torch.uint8,
                                  device=options.device)
        self.labels = torch.zeros(options.batch, dtype=torch.long, device=options.device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=options.device)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.graph: torch.cuda.CUDAGraph | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Scores in f32."""
        x = images.to(torch.float32).sub_(255 * MEAN).div_(255 * STDDEV)
        x = x.contiguous(memory_format=self.memory)
        with torch.autocast(self.options.device, TYPES[self.options.dtype],
                            enabled=self.options.dtype != "f32"):
            return self.net(x).float()

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Forward, backward and optimizer."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.forward(images), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.loss_sum += loss.detach()

    def warm_up(self, steps: int) -> None:
        """Loads and chooses what steps need."""
        for _ in range(steps):
            self.step(self.images, self.labels)
        self.wait()

    def capture(self) -> None:
        """Makes the whole step a graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.warm_up(3)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step(self.images, self.labels)

    def wait(self) -> None:
        """For the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def set_rate(self, step: int, steps: int) -> None:
        """Half a cosine from lr to 0."""
        rate = self.options.lr * (1 + math.cos(math.pi * step / steps)) / 2
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def epoch(self, number: int, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Json:
        """Trains once over the images and evaluates."""
        start = time.perf_counter()
        images, labels = train
        batch, count = self.options.batch, len(labels) // self.options.batch
        self.net.train()
        self.loss_sum.zero_()
        order = torch.randperm(len(labels), generator=self.generator).to(self.options.device)
        for i in range(count):
            chosen = order[i * batch:(i + 1) * batch]
            self.set_rate((number - 1) * count + i, self.options.epochs * count)
            if self.graph:
                torch.index_select(images, 0, chosen, out=self.images)
                torch.index_select(labels, 0, chosen, out=self.labels)
                self.graph.replay()
            else:
                self.step(images.index_select(0, chosen), labels.index_select(0, chosen))
        train_loss = self.loss_sum.item() / count  # waits
        seconds = time.perf_counter() - start
        test_loss, accuracy = self.evaluate(*test)
        return {"epoch": number, "train_loss": train_loss, "test_loss": test_loss,
                "test_accuracy": accuracy, "seconds": seconds,
                "seconds_with_evaluation": time.perf_counter() - start}

    def evaluate(self, images: Tensor, labels: Tensor) -> tuple[float, float]:
        """Mean loss and share of right answers."""
        self.net.eval()
        with torch.no_grad():
            scores = torch.cat([self.forward(part) for part in images.split(self.options.batch)])
            loss = F.cross_entropy(scores, labels).item()
            return loss, (scores.argmax(1) == labels).double().mean().item()


def seconds_of(step: Callable[[], None], wait: Callable[[], None], count: int) -> float:
    """The least of several calls."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    return min(times)


def faster_format(options: argparse.Namespace) -> torch.memory_format:
    """NCHW or channels_last, whichever takes steps in less time."""
    times = {}
    for memory in (torch.contiguous_format, torch.channels_last):
        trial = Training(options, memory, graph=False)
        trial.warm_up(5)
        times[memory] = seconds_of(lambda: trial.step(trial.images, trial.labels), trial.wait, 15)
    return min(times, key=lambda memory: times[memory])


def run(options: argparse.Namespace) -> Json:
    """All rows of a device."""
    torch.set_num_threads(options.threads or torch.get_num_threads())
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = options.math == "tf32"
    torch.backends.cudnn.allow_tf32 = options.math == "tf32"
    train, test = (load(options.data, name, options) for name in ("train", "t10k"))
    if len(train[1]) < options.batch:
        raise SystemExit(f"--batch {options.batch}: there are only {len(train[1])} images")
    memory = faster_format(options)
    rows = []
    for graph in (False, True) if options.device == "cuda" else (False,):
        training = Training(options, memory, graph)
        # Captured as it will be trained; what the warm-up changed is put back.
        state = {name: value.clone() for name, value in training.net.state_dict().items()}
        training.warm_up(3)
        if graph:
            training.capture()
        training.net.load_state_dict(state)
        for entry in training.optimizer.state.values():
            for value in entry.values():
                value.zero_()
        row: Json = {"library": "PyTorch, CUDA graph" if graph else "PyTorch",
                     "version": torch.__version__,
                     "device": "cuda:0" if options.device == "cuda" else "cpu",
                     "storage": options.dtype,
                     "math": options.math if options.dtype == "f32" else "native",
                     "mode": "graph" if graph else "eager", "threads": torch.get_num_threads(),
                     "memory_format": str(memory).removeprefix("torch."), "epochs": []}
        rows.append(row)
        for number in range(1, options.epochs + 1):
            row["epochs"].append(training.epoch(number, train, test))
            last = row["epochs"][-1]
            print(f'{row["library"]}: epoch {number}: train loss {last["train_loss"]:.4f}, test '
                  f'accuracy {100 * last["test_accuracy"]:.2f} %, {last["seconds"]:.3f} s',
                  file=sys.stderr, flush=True)
        row["best_accuracy"] = max(epoch["test_accuracy"] for epoch in row["epochs"])
        row["median_seconds"] = statistics.median(epoch["seconds"] for epoch in row["epochs"])
    # The settings that the example compares with its own.
    settings = {"--epochs": options.epochs, "--batch": options.batch, "--lr": options.lr,
                "--dtype": options.dtype, "--math": options.math, "--seed": options.seed,
                "--limit": options.limit, "--augment": False}
    header = {"experiment": "fashion_mnist", "settings": settings, "pytorch": torch.__version__,
              "threads": torch.get_num_threads(),
              "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    return {"header": header, "rows": rows}


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch's choice")
    parser.add_argument("--data", type=Path, default=Path(PACKAGE), metavar="DIR")
    parser.add_argument("--limit", type=int, default=0, metavar="N")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dtype", choices=tuple(TYPES), default="f32")
    parser.add_argument("--math", choices=("fp32", "tf32"), default="fp32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU")
    text = json.dumps(run(options), indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
