#!/usr/bin/env python3
"""Times PyTorch on the cases of the benchmarks and writes rows that compare.py merges.

GPU rows are CUDA-graph replays timed by events (impl pytorch.*), or eager wall time up to a device
sync (impl *.eager). CPU rows are wall time; their cases end in _t<threads>. Gradients are taken by
autograd from a given dense output gradient, and of the inputs that the pass names only:
  forward            no graph recorded
  forward_backward   forward and gradients (experiment1: all weights; experiment2: x, w, b)
  train              forward, mean-square loss, gradients of all weights and biases
  backward_data      gradient of x alone, the forward not timed
  backward_weight    gradients of w (and b), the forward not timed
  backward           both of these
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import json
import math as mathematics
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = Path(__file__).resolve().parent / "shapes"
SUITES = ("ceilings", "experiment1", "experiment2", "mlp", "conv2d", "pointwise", "zero_skip",
          "overhead")
Step = Callable[[], object]
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where and how a run measures."""

    device: torch.device
    threads: tuple[int, ...]
    quick: bool
    full: bool
    budget_s: float  # of timed work a row

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def maths(self) -> tuple[str, ...]:
        """Arithmetic modes that are measured."""
        return ("fp32", "tf32", "bf16") if self.cuda else ("fp32",)


@dataclasses.dataclass(frozen=True)
class Case:
    """One row to measure; `make` builds the timed step."""

    suite: str
    case: str
    pass_: str
    impl: str
    math: str
    bytes: float
    flops: float
    make: Callable[[], Step]
    eager: bool = False

    @property
    def storage(self) -> str:
        """Element type of the tensors."""
        return storage_of(self.math)


def storage_of(math: str) -> str:
    """Storage that a mode is measured with: 16-bit modes multiply 16-bit storage."""
    return {"bf16": "bf16", "fp16": "f16"}.get(math, "f32")


def dtype_of(math: str) -> torch.dtype:
    """PyTorch's name of storage_of(math)."""
    return {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[storage_of(math)]


def element_size(math: str) -> int:
    """Bytes of one element."""
    return 4 if storage_of(math) == "f32" else 2


# ---------------------------------------------------------------------------------------- timing


def set_math(math: str) -> None:
    """Allows TF32 in convolutions and matrix products, or forbids it in both."""
    torch.backends.cuda.matmul.allow_tf32 = math == "tf32"
    torch.backends.cudnn.allow_tf32 = math == "tf32"


def time_graph(step: Step, stream: torch.cuda.Stream, setting: Setting) -> list[float]:
    """Milliseconds of each replay of the step's CUDA graph."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = step()  # noqa: F841 (outputs live as long as the graph)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.replay()
        probe = event_times(graph.replay, 3)
        count = repeats(statistics.median(probe) * 1e-3, setting.budget_s, 7, 200)
        times = event_times(graph.replay, count)
    torch.cuda.synchronize()
    del graph, kept
    return times


def event_times(step: Step, count: int) -> list[float]:
    """Milliseconds between events around each of `count` calls on the current stream."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
              for _ in range(count)]
    torch.cuda._sleep(1_000_000 + 40_000 * count)  # over 20 us a call: the queue fills meanwhile
    for start, end in events:
        start.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def time_wall(step: Step, setting: Setting) -> list[float]:
    """Milliseconds of wall time of each call, a device sync included."""
    def once() -> float:
        start = time.perf_counter()
        step()
        if setting.cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    once()
    if once() * 1e-3 > setting.budget_s:
        return [once() for _ in range(3)]
    for _ in range(10 if setting.cuda else 1):
        once()
    estimate = min(once() for _ in range(3))
    budget = setting.budget_s * (4 if setting.cuda else 1)  # host times vary more than events
    return [once() for _ in range(repeats(estimate * 1e-3, budget, 5, 500))]


def repeats(seconds: float, budget: float, least: int, most: int) -> int:
    """How many calls fit the budget."""
    return max(least, min(most, int(budget / max(seconds, 1e-7))))


def measure(case: Case, setting: Setting) -> Json:
    """Builds and times one case; a failure becomes a row without times."""
    row: Json = {"suite": case.suite, "case": case.case, "pass": case.pass_, "impl": case.impl,
                 "storage": case.storage, "math": case.math, "median_ms": None, "min_ms": None,
                 "bytes": case.bytes, "flops": case.flops, "max_error": None}
    set_math(case.math)
    try:
        torch.manual_seed(1)
        if case.eager or not setting.cuda:
            times = time_wall(case.make(), setting)
        else:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # a recorded forward must lie on the captured stream
                step = case.make()
            times = time_graph(step, stream, setting)
        row |= {"median_ms": statistics.median(times), "min_ms": min(times)}
    except (RuntimeError, NotImplementedError) as error:
        row["error"] = str(error).splitlines()[0]
    return row


# ------------------------------------------------------------------------------- passes and costs


def pass_step(forward: Callable[[], Tensor], leaves: Sequence[Tensor], backward_only: bool) -> Step:
    """The timed step: forward alone, forward and gradients of `leaves`, or those alone."""
    if not leaves:
        def infer() -> Tensor:
            with torch.no_grad():
                return forward()
        return infer
    for leaf in leaves:
        leaf.requires_grad_()
    if backward_only:
        recorded = forward()
        given = torch.randn_like(recorded.detach())
        return lambda: torch.autograd.grad(recorded, leaves, given, retain_graph=True)
    with torch.no_grad():
        gradient = torch.randn_like(forward())
    return lambda: torch.autograd.grad(forward(), leaves, gradient)


def contraction_cost(x: int, w: int, y: int, macs: int, pass_: str,
                     math: str) -> tuple[float, float]:
    """Bytes and FLOPs of a pass: each operand read once, each result written once."""
    data, weight = x + w + y, x + w + y
    total = {"forward": data, "backward_data": data, "backward_weight": weight,
             "backward": data + weight, "forward_backward": 2 * data + weight}[pass_]
    times = {"forward": 1, "backward_data": 1, "backward_weight": 1, "backward": 2,
             "forward_backward": 3}[pass_]
    return float(total * element_size(math)), 2.0 * macs * times


def wanted(pass_: str, x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The tensors whose gradients a pass takes."""
    return {"forward": [], "backward_data": [x], "backward_weight": list(parameters),
            "backward": [x, *parameters], "forward_backward": [x, *parameters]}[pass_]


def threaded(setting: Setting) -> Iterator[tuple[str, str]]:
    """(case suffix, impl prefix) of every thread count; one of them on a GPU."""
    if setting.cuda:
        yield "", "pytorch.cudnn"
        return
    for threads in setting.threads:
        torch.set_num_threads(threads)
        yield f"_t{threads}", "pytorch.cpu"


def linear_impl(setting: Setting) -> str:
    """Name of PyTorch's matrix product rows."""
    return "pytorch.linear" if setting.cuda else "pytorch.cpu"


# ---------------------------------------------------------------------------------------- ceilings


def ceilings(setting: Setting) -> Iterator[Case]:
    """Copy bandwidth and matrix rates of the machine."""
    for suffix, _ in threaded(setting):
        impl = "pytorch.copy" if setting.cuda else "pytorch.cpu"
        sizes = {"4GiB": 1 << 32, "1GiB": 1 << 30} if setting.cuda else {"256MiB": 1 << 28}
        for name, size in sizes.items():
            def copy(size: int = size) -> Step:
                source = torch.ones(size // 4, device=setting.device)
                target = torch.empty_like(source)
                return lambda: target.copy_(source)
            yield Case("ceilings", f"copy_{name}{suffix}", "copy", impl, "fp32", 2.0 * size, 0.0,
                       copy)
        side = 8192 if setting.cuda else 1024 if setting.quick else 2048
        for math in setting.maths + (("fp16",) if setting.cuda else ()):
            def product(math: str = math, side: int = side) -> Step:
                a, b = (torch.randn(side, side, device=setting.device, dtype=dtype_of(math))
                        for _ in range(2))
                return lambda: a @ b
            yield Case("ceilings", f"matmul_{side}{suffix}", "forward",
                       "pytorch.matmul" if setting.cuda else "pytorch.cpu", math,
                       3.0 * side * side * element_size(math), 2.0 * side**3, product)


# -------------------------------------------------------------------------------------- experiment1


def network_weights(kind: str, setting: Setting, math: str, layout: str) -> list[Tensor]:
    """Eleven 3x3 weights: Kaiming normal, all zero, or Kaiming with 90 % scattered zeros."""
    weights = []
    for c_in in [3] + [64] * 10:
        weight = torch.randn(64, c_in, 3, 3, device=setting.device) * (2 / (c_in * 9)) ** 0.5
        if kind == "zero":
            weight.zero_()
        elif kind == "scattered90":
            weight *= torch.rand_like(weight) >= 0.9
        weight = weight.to(dtype_of(math))
        weights.append(weight.to(memory_format=memory_format(layout)))
    return weights


def memory_format(layout: str) -> torch.memory_format:
    """PyTorch's name of a layout."""
    return torch.channels_last if layout == "nhwc" else torch.contiguous_format


def network(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Conv, then ten times (conv, ReLU)."""
    x = F.conv2d(x, weights[0], padding=1)
    for weight in weights[1:]:
        x = F.relu(F.conv2d(x, weight, padding=1))
    return x


def network_step(batch: int, math: str, layout: str, kind: str, pass_: str,
                 setting: Setting) -> Step:
    """The timed step of experiment 1's network."""
    x = torch.randn(batch, 3, 32, 32, device=setting.device).to(dtype_of(math))
    x = x.contiguous(memory_format=memory_format(layout))
    weights = network_weights(kind, setting, math, layout)
    leaves = {"forward": [], "forward_backward": weights, "backward_data": [x]}[pass_]
    return pass_step(lambda: network(x, weights), leaves, pass_ == "backward_data")


def network_cost(batch: int, math: str, pass_: str) -> tuple[float, float]:
    """Bytes and FLOPs of experiment 1's network, ReLU fused, layer by layer."""
    total_bytes, total_flops = 0.0, 0.0
    for layer, c_in in enumerate([3] + [64] * 10):
        passes = {"forward": ["forward"], "backward_data": ["backward_data"],
                  "forward_backward": ["forward", "backward_weight", "backward_data"]}[pass_]
        if layer == 0 and pass_ == "forward_backward":
            passes = passes[:2]  # nobody asks for the input's gradient
        x, w, y = batch * c_in * 1024, 64 * c_in * 9, batch * 64 * 1024
        for name in passes:
            cost = contraction_cost(x, w, y, y * c_in * 9, name, math)
            total_bytes += cost[0]
            total_flops += cost[1]
    return total_bytes, total_flops


def network_case(suite: str, name: str, pass_: str, impl: str, math: str, batch: int, kind: str,
                 layout: str, setting: Setting, eager: bool = False) -> Case:
    """One row of experiment 1's network."""
    def make() -> Step:
        return network_step(batch, math, layout, kind, pass_, setting)
    return Case(suite, name, pass_, impl, math, *network_cost(batch, math, pass_), make, eager)


def experiment1(setting: Setting) -> Iterator[Case]:
    """The eleven-layer network of zero and other weights."""
    batches: tuple[int, ...] = (1, 32, 256)
    if not setting.cuda:
        batches = (1,) if setting.quick else (1, 256)
    kinds = ("kaiming", "zero", "scattered90")
    for suffix, prefix in threaded(setting):
        for batch in batches:
            if not setting.cuda and batch == 256 and torch.get_num_threads() < max(setting.threads):
                continue
            for math in setting.maths:
                for layout in ("nchw", "nhwc"):
                    impl = prefix + (".nhwc" if layout == "nhwc" else "")
                    for kind in kinds:
                        for pass_ in ("forward", "backward_data", "forward_backward"):
                            extra = pass_ == "backward_data"
                            if extra and (kind == "scattered90" or batch == 32 or math == "bf16"):
                                continue
                            if setting.quick and kind == "scattered90" and batch != 256:
                                continue
                            if not setting.cuda and batch == 256 and layout == "nhwc":
                                continue
                            yield network_case("experiment1", f"b{batch}_{kind}{suffix}", pass_,
                                               impl, math, batch, kind, layout, setting)
    if setting.cuda:
        for math in setting.maths:
            for kind in kinds[:2]:
                for pass_ in ("forward", "forward_backward"):
                    yield network_case("experiment1", f"b1_{kind}", pass_, "pytorch.cudnn.eager",
                                       math, 1, kind, "nchw", setting, eager=True)


def overhead(setting: Setting) -> Iterator[Case]:
    """Eager wall time of the network at batch 1."""
    for suffix, prefix in threaded(setting):
        for pass_ in ("forward", "forward_backward"):
            yield network_case("overhead", f"experiment1_b1{suffix}", pass_, f"{prefix}.eager",
                               "fp32", 1, "kaiming", "nchw", setting, eager=True)


# ------------------------------------------------------------------------------ experiment2 and mlp


def experiment2_step(case: str, math: str, pass_: str, n: int, setting: Setting) -> Step:
    """The timed step of one 128 -> 128 layer on [n, 128, 64, 64]."""
    dtype = dtype_of(math)
    shape: tuple[int, ...] = {
        "linear_laidout": (n * 4096, 128), "conv_btchw": (n // 10, 10, 128, 64, 64),
        "rearrange_linear_btchw": (n // 10, 10, 128, 64, 64)}.get(case, (n, 128, 64, 64))
    if case == "conv_nhwc":
        x = torch.rand(n, 64, 64, 128, device=setting.device, dtype=dtype).permute(0, 3, 1, 2)
    else:
        x = torch.rand(shape, device=setting.device, dtype=dtype)
    w = torch.randn(128, 128, device=setting.device, dtype=dtype) / 128**0.5
    b = torch.randn(128, device=setting.device, dtype=dtype)
    kernel = w[:, :, None, None].contiguous()
    if case == "conv_nhwc":
        kernel = kernel.contiguous(memory_format=torch.channels_last)
    forward, weight = {
        "conv_nchw": (lambda: F.conv2d(x, kernel, b), kernel),
        "conv_nhwc": (lambda: F.conv2d(x, kernel, b), kernel),
        "conv_btchw": (lambda: F.conv2d(x.flatten(0, 1), kernel, b), kernel),
        "linear_laidout": (lambda: F.linear(x, w, b), w),
        "rearrange_linear": (lambda: F.linear(x.permute(0, 3, 2, 1).reshape(-1, 128), w, b), w),
        "rearrange_linear_btchw": (
            lambda: F.linear(x.permute(0, 1, 3, 4, 2).reshape(-1, 128), w, b), w),
        "bmm_nchw": (lambda: torch.baddbmm(b[:, None], w.expand(n, 128, 128), x.flatten(2)), w),
    }[case]
    return pass_step(forward, wanted(pass_, x, (weight, b)), pass_ == "backward")


def images(setting: Setting) -> tuple[int, str]:
    """Experiment 2's batch and the case suffix that tells of a smaller one."""
    if setting.cuda:
        return 500, ""
    return (10, "_n10") if setting.quick else (50, "_n50")


def experiment2(setting: Setting) -> Iterator[Case]:
    """Conv 1x1 against linear."""
    n, small = images(setting)
    impls = {"conv_nchw": "", "conv_nhwc": "", "conv_btchw": "", "bmm_nchw": "pytorch.bmm"}
    for suffix, prefix in threaded(setting):
        for math in setting.maths:
            for case in ("conv_nchw", "conv_nhwc", "linear_laidout", "rearrange_linear",
                         "conv_btchw", "rearrange_linear_btchw", "bmm_nchw"):
                for pass_ in ("forward", "backward", "forward_backward"):
                    impl = impls.get(case, linear_impl(setting)) or prefix
                    impl = impl if setting.cuda else prefix
                    numel = n * 4096 * 128
                    cost = contraction_cost(numel, 128 * 129, numel, numel * 128, pass_, math)

                    def make(case: str = case, math: str = math, pass_: str = pass_) -> Step:
                        return experiment2_step(case, math, pass_, n, setting)
                    yield Case("experiment2", f"{case}{small}{suffix}", pass_, impl, math, *cost,
                               make)


def mlp_step(case: str, math: str, pass_: str, rows: int, n: int, setting: Setting) -> Step:
    """The timed step of three 128-wide layers with ReLU between them."""
    dtype = dtype_of(math)
    laid_out = case in ("mlp_linear_laidout", "mlp_rows")
    x = torch.rand((rows, 128) if laid_out else (n, 128, 64, 64), device=setting.device,
                   dtype=dtype)
    weights = [torch.randn(128, 128, device=setting.device, dtype=dtype) / 8 for _ in range(3)]
    biases = [torch.randn(128, device=setting.device, dtype=dtype) for _ in range(3)]
    if case == "mlp_conv":
        weights = [weight[:, :, None, None].contiguous() for weight in weights]

    def forward() -> Tensor:
        y = x.permute(0, 3, 2, 1).reshape(-1, 128) if case == "mlp_linear" else x
        for i, (weight, bias) in enumerate(zip(weights, biases)):
            y = F.conv2d(y, weight, bias) if case == "mlp_conv" else F.linear(y, weight, bias)
            y = F.relu(y) if i < 2 else y
        return y

    if pass_ == "forward":
        return pass_step(forward, [], False)
    leaves = [*weights, *biases]
    for leaf in leaves:
        leaf.requires_grad_()
    with torch.no_grad():
        target = torch.rand_like(forward())
    return lambda: torch.autograd.grad(F.mse_loss(forward(), target), leaves)


def mlp_cost(rows: int, pass_: str, math: str) -> tuple[float, float]:
    """Bytes of a fused network (train: x and target read, x read again), FLOPs of all layers."""
    parameters = 3 * 128 * 129
    if pass_ == "forward":
        return (2.0 * rows * 128 + parameters) * element_size(math), 6.0 * rows * 128 * 128
    # gradients of three weights and of two hidden layers beside the forward
    return (3.0 * rows * 128 + 2 * parameters) * element_size(math), 16.0 * rows * 128 * 128


def mlp(setting: Setting) -> Iterator[Case]:
    """The three-layer MLP, large and launch-bound."""
    n, small = images(setting)
    for suffix, prefix in threaded(setting):
        for math in setting.maths:
            for case in ("mlp_conv", "mlp_linear", "mlp_linear_laidout"):
                impl = prefix if case == "mlp_conv" else linear_impl(setting)
                for pass_ in ("forward", "train"):
                    def make(case: str = case, math: str = math, pass_: str = pass_) -> Step:
                        return mlp_step(case, math, pass_, n * 4096, n, setting)
                    yield Case("mlp", f"{case}{small}{suffix}", pass_, impl, math,
                               *mlp_cost(n * 4096, pass_, math), make)
        for rows in (1, 16, 256, 4096):
            for eager in (False, True) if setting.cuda else (True,):
                def make_rows(rows: int = rows) -> Step:
                    return mlp_step("mlp_rows", "fp32", "forward", rows, 0, setting)
                yield Case("mlp", f"mlp_rows_{rows}{suffix}", "forward",
                           linear_impl(setting) + (".eager" if eager else ""), "fp32",
                           *mlp_cost(rows, "forward", "fp32"), make_rows, eager)


# ------------------------------------------------------------------------- suites from shape files


def shape_lines(name: str, setting: Setting) -> list[list[str]]:
    """Fields of each line of a shape file; the --full file where there is one."""
    full = SHAPES / f"{name}_full.txt"
    path = full if setting.full and full.exists() else SHAPES / f"{name}.txt"
    lines = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line]


@dataclasses.dataclass(frozen=True)
class Conv:
    """A conv2d problem of a shape file."""

    n: int
    c_in: int
    c_out: int
    h: int
    w: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, bottom, left, right
    dilation: tuple[int, int]
    groups: int
    layout: str

    def cost(self, pass_: str, math: str) -> tuple[float, float]:
        """Bytes and FLOPs of a pass; padding counts as multiplied."""
        size = [(extent + before + after - dilation * (kernel - 1) - 1) // stride + 1
                for extent, before, after, dilation, kernel, stride in
                zip((self.h, self.w), self.pads[::2], self.pads[1::2], self.dilation, self.kernel,
                    self.stride)]
        per_output = self.c_in // self.groups * self.kernel[0] * self.kernel[1]
        y = self.n * self.c_out * size[0] * size[1]
        return contraction_cost(self.n * self.c_in * self.h * self.w, self.c_out * per_output, y,
                                y * per_output, pass_, math)

    def step(self, pass_: str, math: str, kind: str, setting: Setting) -> Step:
        """The timed step on Kaiming or zero weights."""
        form = memory_format(self.layout)
        x = torch.randn(self.n, self.c_in, self.h, self.w, device=setting.device)
        x = x.to(dtype_of(math)).contiguous(memory_format=form)
        w = torch.randn(self.c_out, self.c_in // self.groups, *self.kernel, device=setting.device)
        w *= 0 if kind == "zero" else (2 / mathematics.prod(w.shape[1:])) ** 0.5
        w = w.to(dtype_of(math)).contiguous(memory_format=form)
        top, bottom, left, right = self.pads
        symmetric = top == bottom and left == right

        def forward() -> Tensor:
            padded = x if symmetric else F.pad(x, (left, right, top, bottom))
            return F.conv2d(padded, w, None, self.stride, (top, left) if symmetric else 0,
                            self.dilation, self.groups)
        return pass_step(forward, wanted(pass_, x, (w,)), pass_.startswith("backward"))


def conv2d(setting: Setting) -> Iterator[Case]:
    """Dense convolutions of bench/shapes/conv2d.txt."""
    for suffix, prefix in threaded(setting):
        for name, *fields in shape_lines("conv2d", setting):
            v = [int(field) for field in fields[:15]]
            if not setting.cuda and (v[0] > 8 or setting.quick and v[0] > 1):
                continue
            conv = Conv(v[0], v[1], v[2], v[3], v[4], (v[5], v[6]), (v[7], v[8]),
                        (v[9], v[10], v[11], v[12]), (v[13], v[14]), int(fields[15]), fields[16])
            for math in setting.maths:
                for pass_ in ("forward", "backward_data", "backward_weight"):
                    def make(conv: Conv = conv, math: str = math, pass_: str = pass_) -> Step:
                        return conv.step(pass_, math, "kaiming", setting)
                    yield Case("conv2d", f"{name}{suffix}", pass_, prefix, math,
                               *conv.cost(pass_, math), make)


def zero_skip(setting: Setting) -> Iterator[Case]:
    """Dense rows, on Kaiming and on zero weights, of bench/shapes/zero_skip.txt."""
    for suffix, prefix in threaded(setting):
        for kind_of_line, name, *fields in shape_lines("zero_skip", setting):
            if kind_of_line != "shape":
                continue
            v = [int(field) for field in fields]
            if not setting.cuda and (v[0] > 8 or setting.quick and v[0] > 1):
                continue
            conv = Conv(v[0], v[1], v[2], v[3], v[4], (v[5], v[6]), (v[7], v[7]), (v[8],) * 4,
                        (v[9], v[9]), v[10], "nchw")
            for math in ("fp32", "tf32") if setting.cuda else ("fp32",):
                for pattern, kind in (("scattered_0", "kaiming"), ("all_1", "zero")):
                    for pass_ in ("forward", "backward_data", "forward_backward"):
                        def make(conv: Conv = conv, math: str = math, pass_: str = pass_,
                                 kind: str = kind) -> Step:
                            return conv.step(pass_, math, kind, setting)
                        yield Case("zero_skip", f"{name}.{pattern}{suffix}", pass_, prefix, math,
                                   *conv.cost(pass_, math), make)


def pointwise_view(n: int, c: int, h: int, w: int, layout: str, math: str,
                   setting: Setting) -> Tensor:
    """x of a pointwise problem, in the axes that PyTorch's layer wants."""
    def fresh(*shape: int) -> Tensor:
        return torch.randn(*shape, device=setting.device, dtype=dtype_of(math))

    if layout == "rows":
        return fresh(n, c)
    if layout == "nchw":
        return fresh(n, c, h, w)
    if layout == "nhwc":
        return fresh(n, h, w, c)
    if layout == "nhwc_view_of_nchw":
        return fresh(n, c, h, w).permute(0, 2, 3, 1)
    if layout == "nchw_stride2_view":
        return fresh(n, c, h, 2 * w)[..., ::2]
    found = re.fullmatch(r"btchw_t(\d+)", layout)
    if found:
        return fresh(n * int(found[1]), c, h, w)
    found = re.fullmatch(r"nchw_channels_(\d+)_to_(\d+)_of_(\d+)", layout)
    if found:
        return fresh(n, int(found[3]), h, w)[:, int(found[1]):int(found[2])]
    found = re.fullmatch(r"nchw_interior_of_(\d+)x(\d+)", layout)
    if found:
        top, left = (int(found[1]) - h) // 2, (int(found[2]) - w) // 2
        return fresh(n, c, int(found[1]), int(found[2]))[:, :, top:top + h, left:left + w]
    found = re.fullmatch(r"nchw_offset_(\d+)_element", layout)
    if found:
        return fresh(int(found[1]) + n * c * h * w)[int(found[1]):].view(n, c, h, w)
    raise ValueError(f"unknown pointwise layout {layout}")


def pointwise_step(sizes: Sequence[int], layout: str, impl: str, math: str, pass_: str,
                   setting: Setting) -> Step:
    """The timed step of a pointwise problem, as a 1x1 convolution or as linear."""
    n, c_in, c_out, h, w = sizes
    x = pointwise_view(n, c_in, h, w, layout, math, setting)
    weight = torch.randn(c_out, c_in, device=setting.device, dtype=dtype_of(math)) / c_in**0.5
    bias = torch.randn(c_out, device=setting.device, dtype=dtype_of(math))
    if impl == "linear":
        return pass_step(lambda: F.linear(x, weight, bias), wanted(pass_, x, (weight, bias)),
                         pass_.startswith("backward"))
    kernel = weight[:, :, None, None].contiguous()
    if layout == "nhwc":
        x = x.permute(0, 3, 1, 2)
        kernel = kernel.contiguous(memory_format=torch.channels_last)
    return pass_step(lambda: F.conv2d(x, kernel, bias), wanted(pass_, x, (kernel, bias)),
                     pass_.startswith("backward"))


def pointwise(setting: Setting) -> Iterator[Case]:
    """1x1 convolutions and linear layers of bench/shapes/pointwise.txt."""
    for suffix, prefix in threaded(setting):
        for name, *fields in shape_lines("pointwise", setting):
            sizes, layout = [int(field) for field in fields[:5]], fields[5]
            n, c_in, c_out, h, w = sizes
            series = re.fullmatch(r"btchw_t(\d+)", layout)
            pixels = n * h * w * (int(series[1]) if series else 1)
            if not setting.cuda and pixels * max(c_in, c_out) > (1e6 if setting.quick else 2e7):
                continue
            impls = {"rows": ["linear"], "nhwc_view_of_nchw": ["linear"],
                     "nhwc": ["conv", "linear"]}.get(layout, ["conv"])
            for math in ("fp32", "tf32") if setting.cuda else ("fp32",):
                for pass_ in ("forward", "backward_data", "backward_weight", "backward"):
                    cost = contraction_cost(pixels * c_in, c_out * (c_in + 1), pixels * c_out,
                                            pixels * c_in * c_out, pass_, math)
                    for impl in impls:
                        def make(sizes: Sequence[int] = sizes, layout: str = layout,
                                 impl: str = impl, math: str = math, pass_: str = pass_) -> Step:
                            return pointwise_step(sizes, layout, impl, math, pass_, setting)
                        shown = prefix if impl == "conv" else linear_impl(setting)
                        if not setting.cuda and impl == "linear" and len(impls) > 1:
                            shown = f"{prefix}.linear"
                        yield Case("pointwise", f"{name}{suffix}", pass_, shown, math, *cost, make)


MAKERS: dict[str, Callable[[Setting], Iterator[Case]]] = {
    "ceilings": ceilings, "experiment1": experiment1, "experiment2": experiment2, "mlp": mlp,
    "conv2d": conv2d, "pointwise": pointwise, "zero_skip": zero_skip, "overhead": overhead}


# ------------------------------------------------------------------------------------------ report


def output_of(*command: str) -> str:
    """First line that a command prints, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def cpu_name() -> str:
    """The processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1].strip() if found else platform.machine()


def header(setting: Setting, seconds: dict[str, float]) -> Json:
    """What the rows were measured on and with."""
    cudnn = torch.backends.cudnn.version() if setting.cuda else None
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "machine": torch.cuda.get_device_name(setting.device) if setting.cuda else cpu_name(),
        "cpu": cpu_name(),
        "device": setting.device.type,
        "threads": list(setting.threads),
        "driver": output_of(*query) if setting.cuda else "",
        "cuda": torch.version.cuda if setting.cuda else "",
        "cudnn": str(cudnn) if cudnn else "",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": os.environ.get("ZERONE_COMMIT") or
                  output_of("git", "-C", str(SHAPES), "rev-parse", "HEAD"),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python3", "bench/peers_pytorch.py", *sys.argv[1:]]),
        "cache": "warm",
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command-line options."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeatable; default all")
    parser.add_argument("--threads", default="",
                        help="CPU thread counts, as in 1,2,16 (default: PyTorch's own)")
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats")
    parser.add_argument("--full", action="store_true", help="the *_full.txt shape files")
    parser.add_argument("--budget-ms", type=float, default=0.0,
                        help="timed work a row (default 40; CPU 400; a fifth with --quick)")
    parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the chosen suites and writes the rows."""
    options = parse(arguments)
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        print("peers_pytorch: no usable GPU", file=sys.stderr)
        return 2
    try:
        threads = tuple(int(part) for part in options.threads.split(",") if part)
    except ValueError:
        print(f"peers_pytorch: --threads {options.threads}: want numbers, as in 1,2,16",
              file=sys.stderr)
        return 2
    budget = options.budget_ms or (40 if name == "cuda" else 400) / (5 if options.quick else 1)
    setting = Setting(torch.device(name), threads or (torch.get_num_threads(),), options.quick,
                      options.full, budget * 1e-3)
    torch.backends.cudnn.benchmark = True
    gc.freeze()  # every graph capture collects garbage: let it look at new objects only
    rows: list[Json] = []
    seconds: dict[str, float] = {}
    for suite in options.suite or SUITES:
        start = time.perf_counter()
        for case in MAKERS[suite](setting):
            row = measure(case, setting)
            rows.append(row)
            if "error" in row:
                print(f"{suite}/{case.case}/{case.pass_}/{case.impl}/{case.math}: {row['error']}",
                      file=sys.stderr)
            if setting.cuda and case.bytes > 1e8:
                torch.cuda.empty_cache()
        seconds[suite] = time.perf_counter() - start
        print(f"{suite}: {sum(row['suite'] == suite for row in rows)} rows, "
              f"{seconds[suite]:.1f} s", file=sys.stderr, flush=True)
    text = json.dumps({"header": header(setting, seconds), "rows": rows}, indent=1) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    measured = sum(row["median_ms"] is not None for row in rows)
    print(f"{measured} of {len(rows)} rows measured", file=sys.stderr)
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
