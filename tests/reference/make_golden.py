#!/usr/bin/env python3
"""Makes the golden files of this folder with PyTorch in fp64 (README.md describes the format)."""

from __future__ import annotations

import argparse
import dataclasses
import filecmp
import json
import math
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).resolve().parent
FORMAT = 1
SIZE_LIMIT = 8 << 20  # bytes, all golden files together
CONV_VALUES = 3200  # most values that one random conv2d case may store
Json = dict[str, Any]
Bounds = tuple[int, int, int]  # start, stop, step


class Pack:
    """One flat array that cases store their tensors in."""

    def __init__(self, file: str, dtype: Any = np.float64) -> None:
        self.file = file
        self.dtype = dtype
        self.parts: list[np.ndarray] = []
        self.size = 0

    def add(self, tensor: Tensor) -> Json:
        """Stores a tensor in row-major order and returns where."""
        flat = tensor.detach().contiguous().numpy().astype(self.dtype).reshape(-1)
        place = {"offset": self.size, "shape": list(tensor.shape)}
        self.parts.append(flat)
        self.size += flat.size
        return place

    def save(self, folder: Path) -> None:
        """Writes the array as .npy."""
        np.save(folder / self.file, np.concatenate(self.parts))


def write_group(folder: Path, name: str, cases: Sequence[Json], packs: Sequence[Pack],
                notes: str) -> None:
    """Writes <name>.json, one case a line, and its arrays."""
    header = {
        "format": FORMAT,
        "made_by": "tests/reference/make_golden.py",
        "arrays": {pack.file: np.dtype(pack.dtype).name for pack in packs},
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "notes": notes,
    }
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{{"header": {json.dumps(header)},\n"cases": [\n{lines}\n]}}\n'
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    for pack in packs:
        pack.save(folder)


class Data:
    """Seeded test values: small integers, or normals that fp32 represents exactly."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, shape: Sequence[int], integer: bool, bound: int = 4) -> Tensor:
        """Integers in [-bound, bound] or standard normals, as fp64."""
        shape = tuple(shape)
        if integer:
            values = torch.randint(-bound, bound + 1, shape, generator=self.generator)
            return values.double()
        return torch.randn(shape, generator=self.generator, dtype=torch.float32).double()


def check_integers(name: str, tensors: Sequence[Tensor]) -> None:
    """Fails unless every value is an integer that fp32 holds exactly."""
    for tensor in (given.detach() for given in tensors):
        exact = bool((tensor == tensor.round()).all())
        if not exact or (tensor.numel() and float(tensor.abs().max()) >= 2.0**24):
            raise AssertionError(f"{name}: not exact small integers")


# ---------------------------------------------------------------------------------------- conv2d


@dataclasses.dataclass(frozen=True)
class Conv:
    """One conv2d problem; fields as in tests/shapes/conv2d.txt."""

    n: int = 2
    c_in: int = 3
    c_out: int = 4
    h: int = 6
    w: int = 7
    kh: int = 3
    kw: int = 3
    stride_h: int = 1
    stride_w: int = 1
    pad_t: int = 0
    pad_b: int = 0
    pad_l: int = 0
    pad_r: int = 0
    dil_h: int = 1
    dil_w: int = 1
    groups: int = 1

    @property
    def h_out(self) -> int:
        """Output rows."""
        extent = self.dil_h * (self.kh - 1) + 1
        return (self.h + self.pad_t + self.pad_b - extent) // self.stride_h + 1

    @property
    def w_out(self) -> int:
        """Output columns."""
        extent = self.dil_w * (self.kw - 1) + 1
        return (self.w + self.pad_l + self.pad_r - extent) // self.stride_w + 1

    @property
    def legal(self) -> bool:
        """Whether the kernel fits the padded image and the groups divide the channels."""
        fits = (self.h + self.pad_t + self.pad_b >= self.dil_h * (self.kh - 1) + 1
                and self.w + self.pad_l + self.pad_r >= self.dil_w * (self.kw - 1) + 1)
        return fits and self.c_in % self.groups == 0 and self.c_out % self.groups == 0

    @property
    def values(self) -> int:
        """Values that the case stores."""
        x = self.n * self.c_in * self.h * self.w
        y = self.n * self.c_out * self.h_out * self.w_out
        w = self.c_out * self.c_in // self.groups * self.kh * self.kw
        return 2 * (x + y + w)


def pads(t: int, b: int, left: int, r: int) -> dict[str, int]:
    """Padding fields from four sides."""
    return {"pad_t": t, "pad_b": b, "pad_l": left, "pad_r": r}


def listed_convs() -> list[tuple[str, Conv]]:
    """The problems chosen by hand, each for one property."""
    cases: list[tuple[str, Conv]] = []

    def add(name: str, **fields: int) -> None:
        cases.append((name, Conv(**fields)))

    for k in range(1, 8):
        add(f"k{k}", kh=k, kw=k, h=k + 3, w=k + 4)
        add(f"k{k}_same", kh=k, kw=k, h=7, w=6, **pads(k // 2, (k - 1) // 2, k // 2, (k - 1) // 2))
    for kh, kw in [(1, 2), (1, 3), (3, 1), (1, 7), (7, 1), (2, 3), (3, 2), (2, 5), (5, 2), (4, 3),
                   (3, 5), (6, 1), (5, 7), (7, 4)]:
        add(f"k{kh}x{kw}", kh=kh, kw=kw, h=8, w=9, **pads(kh // 2, kh // 2, kw // 2, kw // 2))
    for sh, sw in [(2, 2), (3, 3), (1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)]:
        add(f"k3_s{sh}x{sw}", stride_h=sh, stride_w=sw, h=10, w=9, **pads(1, 1, 1, 1))
        add(f"k2_s{sh}x{sw}", kh=2, kw=2, stride_h=sh, stride_w=sw, h=7, w=8)
        add(f"k1_s{sh}x{sw}", kh=1, kw=1, stride_h=sh, stride_w=sw, h=7, w=8)
    for t, b, left, r in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 2, 0, 3),
                          (3, 0, 2, 1), (0, 2, 2, 0), (4, 4, 4, 4), (5, 1, 0, 6), (2, 2, 0, 0)]:
        add(f"pad_{t}{b}{left}{r}", **pads(t, b, left, r))
        add(f"pad_{t}{b}{left}{r}_s2", stride_h=2, stride_w=2, **pads(t, b, left, r))
    add("pad_over_kernel_k1", kh=1, kw=1, h=3, w=4, **pads(2, 2, 2, 2))
    add("pad_over_kernel_k2", kh=2, kw=2, h=3, w=3, **pads(3, 3, 3, 3))
    add("pad_over_image", h=2, w=2, **pads(4, 5, 5, 4))
    add("pad_over_kernel_s3", kh=2, kw=2, h=4, w=3, stride_h=3, stride_w=3, **pads(4, 4, 4, 4))
    for dh, dw in [(2, 2), (3, 3), (1, 2), (2, 1), (3, 1), (2, 3)]:
        add(f"d{dh}x{dw}", dil_h=dh, dil_w=dw, h=9, w=8, **pads(dh, dh, dw, dw))
        add(f"d{dh}x{dw}_s2", dil_h=dh, dil_w=dw, stride_h=2, stride_w=2, h=9, w=10)
    add("d2_k1", kh=1, kw=1, dil_h=2, dil_w=2)
    add("d2_k5x2", kh=5, kw=2, dil_h=2, dil_w=2, h=10, w=6)
    for groups, c_in, c_out in [(2, 4, 6), (3, 3, 9), (3, 9, 3), (4, 8, 4), (2, 2, 2), (5, 5, 10)]:
        add(f"g{groups}_c{c_in}_{c_out}", groups=groups, c_in=c_in, c_out=c_out,
            **pads(1, 1, 1, 1))
        add(f"g{groups}_c{c_in}_{c_out}_s2", groups=groups, c_in=c_in, c_out=c_out, stride_h=2,
            stride_w=2, kh=2)
    add("g4_k1", groups=4, c_in=8, c_out=12, kh=1, kw=1)
    add("g2_d2_s2", groups=2, c_in=4, c_out=4, dil_h=2, dil_w=2, stride_h=2, stride_w=2, h=9, w=9,
        **pads(2, 1, 0, 2))
    for c in (1, 4, 7, 8):
        add(f"depthwise_c{c}", groups=c, c_in=c, c_out=c, **pads(1, 1, 1, 1))
        add(f"depthwise_c{c}_s2", groups=c, c_in=c, c_out=c, stride_h=2, stride_w=2, h=7,
            **pads(1, 1, 1, 1))
    add("depthwise_times3", groups=4, c_in=4, c_out=12, kh=5, kw=5, **pads(2, 2, 2, 2))
    add("depthwise_k7", groups=6, c_in=6, c_out=6, kh=7, kw=7, h=9, w=9, **pads(3, 3, 3, 3))
    add("depthwise_k1", groups=5, c_in=5, c_out=5, kh=1, kw=1)
    for c_in, c_out in [(1, 1), (1, 9), (9, 1), (2, 8), (8, 2), (5, 7), (7, 5), (16, 8), (17, 3),
                        (3, 17), (11, 13)]:
        add(f"c{c_in}_{c_out}", c_in=c_in, c_out=c_out, h=5, w=4, **pads(1, 1, 1, 1))
        add(f"c{c_in}_{c_out}_k1", c_in=c_in, c_out=c_out, h=5, w=4, kh=1, kw=1)
    for h, w in [(1, 1), (1, 9), (9, 1), (2, 2), (13, 11)]:
        add(f"image_{h}x{w}", h=h, w=w, n=1, **pads(1, 1, 1, 1))
    add("whole_image_kernel", kh=6, kw=7)
    add("unread_edge", n=1, c_in=1, c_out=1, h=6, w=6, stride_h=2, stride_w=2)
    add("batch_0", n=0, h=3, w=3, c_out=3)
    add("batch_0_same", n=0, **pads(1, 1, 1, 1))
    add("batch_0_k1", n=0, kh=1, kw=1)
    add("batch_0_depthwise", n=0, c_in=4, groups=4, **pads(1, 1, 1, 1))
    add("batch_7", n=7, h=4, w=4, **pads(1, 1, 1, 1))
    return cases


def random_convs(count: int, seed: int) -> list[tuple[str, Conv]]:
    """Legal problems with every field drawn at random."""
    rng = random.Random(seed)
    cases: list[tuple[str, Conv]] = []
    while len(cases) < count:
        groups = rng.choice([1, 1, 1, 2, 3, 4])
        conv = Conv(
            n=rng.choice([1, 1, 2, 3]), c_in=groups * rng.randint(1, 5),
            c_out=groups * rng.randint(1, 5), h=rng.randint(1, 12), w=rng.randint(1, 12),
            kh=rng.randint(1, 7), kw=rng.randint(1, 7), stride_h=rng.randint(1, 3),
            stride_w=rng.randint(1, 3), pad_t=rng.randint(0, 4), pad_b=rng.randint(0, 4),
            pad_l=rng.randint(0, 4), pad_r=rng.randint(0, 4), dil_h=rng.choice([1, 1, 2, 3]),
            dil_w=rng.choice([1, 1, 2, 3]), groups=groups)
        if conv.legal and conv.values <= CONV_VALUES:
            cases.append((f"random_{len(cases)}", conv))
    return cases


def conv_case(name: str, conv: Conv, integer: bool, bias: bool, data: Data, pack: Pack) -> Json:
    """Runs one conv2d problem forward and backward."""
    x = data.draw((conv.n, conv.c_in, conv.h, conv.w), integer).requires_grad_()
    w = data.draw((conv.c_out, conv.c_in // conv.groups, conv.kh, conv.kw), integer)
    w.requires_grad_()
    b = data.draw((conv.c_out,), integer).requires_grad_() if bias else None
    padded = F.pad(x, (conv.pad_l, conv.pad_r, conv.pad_t, conv.pad_b))
    y = F.conv2d(padded, w, b, (conv.stride_h, conv.stride_w), 0, (conv.dil_h, conv.dil_w),
                 conv.groups)
    if tuple(y.shape) != (conv.n, conv.c_out, conv.h_out, conv.w_out):
        raise AssertionError(f"{name}: output shape {tuple(y.shape)}")
    gy = data.draw(y.shape, integer, 3)
    leaves = [x, w] + ([b] if b is not None else [])
    grads = torch.autograd.grad(y, leaves, gy)
    named = {"x": x, "w": w, "gy": gy, "y": y, "dx": grads[0], "dw": grads[1]}
    if b is not None:
        named |= {"b": b, "db": grads[2]}
    if integer:
        check_integers(name, list(named.values()))
    return {"name": name, "params": dataclasses.asdict(conv), "integer": integer,
            "tensors": {key: pack.add(value) for key, value in named.items()}}


def make_conv2d(folder: Path) -> None:
    """Writes conv2d.json and conv2d.npy."""
    pack = Pack("conv2d.npy")
    data = Data(1)
    cases = []
    for index, (name, conv) in enumerate(listed_convs() + random_convs(40, 2)):
        if not conv.legal:
            raise AssertionError(f"{name}: not a legal problem")
        cases.append(conv_case(name, conv, index % 2 == 0, index % 3 != 0, data, pack))
    write_group(folder, "conv2d", cases, [pack],
                "cross-correlation; x and y NCHW, w KCRS, all row-major; loss = sum(y * gy); "
                "b and db are absent where there is no bias")


# ------------------------------------------------------------------------------------- pointwise


@dataclasses.dataclass(frozen=True)
class View:
    """A view of a row-major base: slices, then reshape, then expand, then permutation."""

    base: tuple[int, ...]
    slices: tuple[Bounds, ...] = ()  # of each base axis
    reshape: tuple[int, ...] = ()
    expand: tuple[int, ...] = ()
    permutation: tuple[int, ...] = ()

    def apply(self, base: Tensor) -> Tensor:
        """The view of `base`; shares its memory."""
        view = base
        if self.slices:
            view = view[tuple(slice(*bounds) for bounds in self.slices)]
        if self.reshape:
            view = view.view(self.reshape)
        if self.expand:
            view = view.expand(self.expand)
        if self.permutation:
            view = view.permute(self.permutation)
        return view

    def describe(self, view: Tensor) -> Json:
        """The steps (null where absent) and the shape, strides and offset that they lead to."""
        def steps(value: tuple[Any, ...]) -> list[Any] | None:
            return json.loads(json.dumps(value)) if value else None
        return {"base": list(self.base), "slices": steps(self.slices),
                "reshape": steps(self.reshape), "expand": steps(self.expand),
                "permutation": steps(self.permutation), "shape": list(view.shape),
                "strides": list(view.stride()), "offset": view.storage_offset()}


def everything(base: Sequence[int], **axes: Bounds) -> tuple[Bounds, ...]:
    """Full slices of every axis, except those given as a<axis>=(start, stop, step)."""
    full = [(0, size, 1) for size in base]
    for axis, bounds in axes.items():
        full[int(axis[1:])] = bounds
    return tuple(full)


NCHW = (0, 2, 3, 1)  # b c h w -> b h w c
BTCHW = (0, 1, 3, 4, 2)


def plain_weight(c_out: int, c_in: int) -> View:
    """A contiguous weight [c_out, c_in]."""
    return View((c_out, c_in))


def listed_views() -> list[tuple[str, View, View]]:
    """Name, view of x with channels last, view of the weight [c_out, c_in]."""
    cases: list[tuple[str, View, View]] = []

    def add(name: str, x: View, c_in: int, c_out: int, w: View | None = None) -> None:
        cases.append((name, x, w or plain_weight(c_out, c_in)))

    for rows, c_in, c_out in [(1, 1, 1), (1, 8, 16), (7, 5, 3), (16, 8, 8), (33, 17, 9)]:
        add(f"rows_{rows}_{c_in}_{c_out}", View((rows, c_in)), c_in, c_out)
    add("vector", View((6,)), 6, 4)
    add("rank3", View((2, 3, 5)), 5, 7)
    add("rank5", View((2, 1, 3, 2, 4)), 4, 6)
    add("rows_permuted", View((3, 4, 6), permutation=(1, 0, 2)), 6, 5)
    add("rows_transposed", View((9, 8), permutation=(1, 0)), 9, 4)
    for n, c_in, h, w, c_out in [(2, 4, 3, 5, 6), (1, 8, 4, 4, 8), (3, 1, 5, 3, 9), (2, 9, 1, 7, 1),
                                 (2, 17, 3, 3, 5), (5, 3, 1, 1, 7)]:
        size = f"{n}_{c_in}_{h}_{w}_{c_out}"
        add(f"nchw_{size}", View((n, c_in, h, w), permutation=NCHW), c_in, c_out)
        add(f"nhwc_{size}", View((n, h, w, c_in)), c_in, c_out)
    add("nchw_to_nwhc", View((2, 5, 3, 4), permutation=(0, 3, 2, 1)), 5, 6)
    add("nchw_to_hwnc", View((2, 5, 3, 4), permutation=(2, 3, 0, 1)), 5, 6)
    for b, t, c, h, w, c_out in [(2, 3, 4, 3, 5, 6), (1, 4, 5, 2, 2, 3), (3, 1, 8, 2, 3, 8)]:
        size = f"{b}_{t}_{c}_{h}_{w}_{c_out}"
        add(f"btchw_{size}", View((b, t, c, h, w), permutation=BTCHW), c, c_out)
        add(f"btchw_to_bhwtc_{size}", View((b, t, c, h, w), permutation=(0, 3, 4, 1, 2)), c, c_out)
    base: tuple[int, ...]
    for start, stop, step in [(0, 4, 1), (3, 8, 1), (1, 8, 2), (4, 8, 1)]:
        c = len(range(start, stop, step))
        bounds = (start, stop, step)
        base = (2, 9, 3, 4)
        add(f"channels_{start}_{stop}_{step}_nchw", View(base, everything(base, a1=bounds),
                                                         permutation=NCHW), c, 5)
        base = (2, 3, 4, 9)
        add(f"channels_{start}_{stop}_{step}_nhwc", View(base, everything(base, a3=bounds)), c, 5)
    base = (5, 12)
    add("channels_of_rows", View(base, everything(base, a1=(3, 10, 1))), 7, 4)
    for c in (4, 5):
        base = (2, c, 6, 7)
        inner = everything(base, a2=(1, 5, 1), a3=(1, 6, 1))
        add(f"cropped_nchw_{c}", View(base, inner, permutation=NCHW), c, 6)
        corner = everything(base, a2=(2, 6, 1), a3=(3, 7, 1))
        add(f"corner_nchw_{c}", View(base, corner, permutation=NCHW), c, 6)
        base = (2, 6, 7, c)
        inner = everything(base, a1=(1, 5, 1), a2=(1, 6, 1))
        add(f"cropped_nhwc_{c}", View(base, inner), c, 6)
    for step in (2, 3):
        base = (2, 4, 3, 8)
        add(f"column_step{step}_nchw", View(base, everything(base, a3=(0, 8, step)),
                                            permutation=NCHW), 4, 5)
        add(f"column_step{step}_from1_nchw", View(base, everything(base, a3=(1, 8, step)),
                                                  permutation=NCHW), 4, 5)
        base = (2, 3, 8, 4)
        add(f"column_step{step}_nhwc", View(base, everything(base, a2=(0, 8, step))), 4, 5)
    base = (2, 4, 7, 3)
    add("row_step2_nchw", View(base, everything(base, a2=(0, 7, 2)), permutation=NCHW), 4, 5)
    base = (5, 4, 7, 6)
    halved = tuple((0, size, 2) for size in base)
    add("every_step2_nchw", View(base, halved, permutation=NCHW), 2, 5)
    for start in (1, 2, 3, 5):
        for c in (4, 7):
            numel = 2 * c * 3 * 5
            flat = ((start, start + numel, 1),)
            add(f"misaligned_{start}_nchw_{c}", View((start + numel,), flat, (2, c, 3, 5),
                                                     permutation=NCHW), c, 6)
        add(f"misaligned_{start}_nhwc", View((start + numel,), flat, (2, 3, 5, c)), c, 6)
    add("broadcast_h", View((2, 4, 1, 5), expand=(2, 4, 3, 5), permutation=NCHW), 4, 6)
    add("broadcast_w", View((2, 4, 3, 1), expand=(2, 4, 3, 5), permutation=NCHW), 4, 6)
    add("broadcast_hw", View((2, 4, 1, 1), expand=(2, 4, 3, 5), permutation=NCHW), 4, 6)
    add("broadcast_batch", View((1, 4, 3, 5), expand=(3, 4, 3, 5), permutation=NCHW), 4, 6)
    add("broadcast_channel", View((2, 1, 3, 5), expand=(2, 4, 3, 5), permutation=NCHW), 4, 6)
    add("broadcast_rows", View((1, 7), expand=(9, 7)), 7, 3)
    add("broadcast_all", View((1, 1), expand=(4, 6)), 6, 3)
    add("broadcast_time", View((2, 1, 4, 3, 2), expand=(2, 3, 4, 3, 2), permutation=BTCHW), 4, 5)
    for c_in, c_out in [(4, 6), (7, 3), (8, 8)]:
        transposed = View((c_in, c_out), permutation=(1, 0))
        add(f"weight_transposed_{c_in}_{c_out}_rows", View((5, c_in)), c_in, c_out, transposed)
        add(f"weight_transposed_{c_in}_{c_out}_nchw", View((2, c_in, 3, 4), permutation=NCHW), c_in,
            c_out, transposed)
    weight = (8, 4)
    add("weight_rows_2_5", View((2, 4, 3, 3), permutation=NCHW), 4, 3,
        View(weight, everything(weight, a0=(2, 5, 1))))
    add("weight_columns_1_3", View((2, 2, 3, 3), permutation=NCHW), 2, 8,
        View(weight, everything(weight, a1=(1, 3, 1))))
    add("weight_row_step2", View((2, 4, 3, 3), permutation=NCHW), 4, 4,
        View(weight, everything(weight, a0=(0, 8, 2))))
    add("weight_column_step2", View((5, 2)), 2, 8,
        View(weight, everything(weight, a1=(1, 4, 2))))
    add("weight_misaligned", View((2, 4, 3, 3), permutation=NCHW), 4, 5,
        View((21,), ((1, 21, 1),), (5, 4)))
    add("weight_broadcast", View((5, 4)), 4, 6, View((1, 4), expand=(6, 4)))
    base = (2, 5, 9, 6, 7)
    mixed = everything(base, a1=(1, 5, 2), a2=(2, 7, 1), a3=(1, 5, 1), a4=(0, 7, 3))
    add("btchw_cut_everywhere", View(base, mixed, permutation=BTCHW), 5, 4)
    add("batch_0_rows", View((0, 5)), 5, 4)
    add("batch_0_nchw", View((0, 5, 3, 4), permutation=NCHW), 5, 4)
    base = (3, 5, 3, 4)
    add("batch_0_sliced", View(base, everything(base, a0=(2, 2, 1)), permutation=NCHW), 5, 4)
    return cases


def view_case(name: str, x_view: View, w_view: View, integer: bool, bias: bool, data: Data,
              pack: Pack) -> Json:
    """Runs linear on one view; gradients are those of the bases."""
    x = data.draw(x_view.base, integer).requires_grad_()
    w = data.draw(w_view.base, integer).requires_grad_()
    x_seen, w_seen = x_view.apply(x), w_view.apply(w)
    b = data.draw((w_seen.shape[0],), integer).requires_grad_() if bias else None
    y = F.linear(x_seen, w_seen, b)
    gy = data.draw(y.shape, integer, 3)
    leaves = [x, w] + ([b] if b is not None else [])
    grads = torch.autograd.grad(y, leaves, gy)
    named = {"x": x, "w": w, "gy": gy, "y": y, "dx": grads[0], "dw": grads[1]}
    if b is not None:
        named |= {"b": b, "db": grads[2]}
    if integer:
        check_integers(name, list(named.values()))
    return {"name": name, "x_view": x_view.describe(x_seen), "w_view": w_view.describe(w_seen),
            "integer": integer,
            "tensors": {key: pack.add(value) for key, value in named.items()}}


def make_pointwise(folder: Path) -> None:
    """Writes pointwise.json and pointwise.npy."""
    pack = Pack("pointwise.npy")
    data = Data(3)
    cases = [view_case(name, x, w, index % 2 == 0, index % 3 != 0, data, pack)
             for index, (name, x, w) in enumerate(listed_views())]
    write_group(folder, "pointwise", cases, [pack],
                "y = x_view @ w_view^T + b over the last axis; x, w, dx, dw are the bases, "
                "row-major; y and gy are row-major in the view's axes; loss = sum(y * gy)")


# ----------------------------------------------------------------------------------- elementwise


def unary_cases(data: Data, pack: Pack) -> list[Json]:
    """Functions of one operand on numbers of every size, and on special values with gy = 1."""
    grid = torch.cat([data.draw((64,), False), 4 * data.draw((32,), False),
                      torch.arange(-24, 25) / 4.0, torch.tensor([30.0, 85.0, 1e-3, 1e-9, 0.0])])
    grid = torch.cat([grid, -grid]).float().double()
    special = torch.tensor([-math.inf, -100.0, -1.0, -0.0, 0.0, 1.0, 100.0, math.inf, math.nan],
                           dtype=torch.float64)
    gy = data.draw(grid.shape, False)
    ones = torch.ones_like(special)
    functions: list[tuple[str, Json, Callable[[Tensor], Tensor]]] = [
        ("exp", {}, torch.exp), ("log", {}, torch.log), ("sigmoid", {}, torch.sigmoid),
        ("tanh", {}, torch.tanh), ("silu", {}, F.silu), ("gelu_erf", {}, F.gelu),
        ("gelu_tanh", {}, lambda x: F.gelu(x, approximate="tanh"))]
    for slope in (0.01, 0.25, 0.0, -0.5):
        functions.append(("leaky_relu", {"slope": slope},
                          lambda x, slope=slope: F.leaky_relu(x, slope)))
    for low, high in ((-0.75, 1.25), (0.0, 6.0), (-1.0, -0.0), (1.0, 1.0), (-math.inf, 0.5)):
        functions.append(("clamp", {"low": str(low), "high": str(high)},
                          lambda x, low=low, high=high: torch.clamp(x, low, high)))
    shared = {"grid": (grid, gy, pack.add(grid), pack.add(gy)),
              "special": (special, ones, pack.add(special), pack.add(ones))}
    cases = []
    for name, params, function in functions:
        for values, (x, seed, x_place, gy_place) in shared.items():
            x = x.clone().requires_grad_()
            y = function(x)
            (dx,) = torch.autograd.grad(y, [x], seed)
            cases.append({"name": name, "values": values, "params": params,
                          "tensors": {"x": x_place, "gy": gy_place, "y": pack.add(y),
                                      "dx": pack.add(dx)}})
    return cases


def div_case(data: Data, pack: Pack) -> Json:
    """A quotient of two operands that are both broadcast."""
    a = data.draw((4, 1, 5), False).requires_grad_()
    b = data.draw((3, 1), False).requires_grad_()
    y = a / b
    gy = data.draw(y.shape, False)
    da, db = torch.autograd.grad(y, [a, b], gy)
    named = {"a": a, "b": b, "gy": gy, "y": y, "da": da, "db": db}
    return {"name": "div", "tensors": {key: pack.add(value) for key, value in named.items()}}


def make_elementwise(folder: Path) -> None:
    """Writes elementwise.json and elementwise.npy."""
    pack = Pack("elementwise.npy")
    data = Data(7)
    cases = [*unary_cases(data, pack), div_case(data, pack)]
    write_group(folder, "elementwise", cases, [pack],
                "y = name(x) with the parameters given (as text where one may be infinite); "
                "values: grid or special; x and gy are shared; loss = sum(y * gy)")


# -------------------------------------------------------------------------------------- networks

LEVELS = 257


def mix(stream: int, count: int) -> np.ndarray:
    """MurmurHash3's finaliser over stream * 0x9E3779B9 + index, in 32-bit arithmetic."""
    z = (np.arange(count, dtype=np.uint64) + np.uint64(stream * 0x9E3779B9)) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        z = ((z ^ (z >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return z ^ (z >> np.uint64(16))


def formula(stream: int, shape: Sequence[int], scale: float) -> Tensor:
    """Values k/128 * scale, k in -128..128: exact in every float type if scale is a power of 2."""
    count = int(np.prod(shape, dtype=np.int64))
    levels: np.ndarray = (mix(stream, count) % LEVELS).astype(np.int64) - LEVELS // 2
    values = levels.astype(np.float64) / 128.0 * scale
    return torch.from_numpy(values.reshape(tuple(shape)))


class Generated:
    """Formula-made tensors of one case and their description."""

    def __init__(self) -> None:
        self.described: dict[str, Json] = {}

    def make(self, name: str, stream: int, shape: Sequence[int], scale: float) -> Tensor:
        """Makes a tensor and notes its stream, shape, scale and first values."""
        tensor = formula(stream, shape, scale)
        self.described[name] = {"stream": stream, "shape": list(shape), "scale": scale,
                                "first": tensor.reshape(-1)[:4].tolist()}
        return tensor


class Margin:
    """The smallest |value| before a ReLU, relative to its layer's root mean square."""

    def __init__(self) -> None:
        self.smallest = float("inf")

    def relu(self, value: Tensor) -> Tensor:
        """ReLU that notes how near to zero its input came."""
        rms = float(value.detach().square().mean().sqrt())
        self.smallest = min(self.smallest, float(value.detach().abs().min()) / rms)
        return F.relu(value)


# The streams are chosen so that no value before a ReLU lies nearer to zero than 2e-5 of its
# layer's root mean square: fp32 arithmetic then takes the same side of every ReLU.


def experiment1(pack: Pack, pack32: Pack) -> Json:
    """Conv 3->64, then ten times (conv 64->64, ReLU), on [2, 3, 8, 8]."""
    made, margin = Generated(), Margin()
    x = made.make("x", 101, (2, 3, 8, 8), 1.0).requires_grad_()
    weights = [made.make("w0", 102, (64, 3, 3, 3), 0.5).requires_grad_()]
    for layer in range(1, 11):
        weight = made.make(f"w{layer}", 102 + layer, (64, 64, 3, 3), 0.125)
        weights.append(weight.requires_grad_())
    gy = made.make("gy", 113, (2, 64, 8, 8), 1.0)
    y = F.conv2d(x, weights[0], padding=1)
    for weight in weights[1:]:
        y = margin.relu(F.conv2d(y, weight, padding=1))
    loss = (y * gy).sum()
    dx, *dw = torch.autograd.grad(loss, [x, *weights])
    tensors = {"y": {"file": pack.file, **pack.add(y)}, "dx": {"file": pack.file, **pack.add(dx)}}
    for layer, grad in enumerate(dw):
        tensors[f"dw{layer}"] = {"file": pack32.file, **pack32.add(grad)}
    return {"name": "experiment1", "params": {"padding": 1, "stride": 1, "bias": False},
            "generated": made.described, "loss": loss.item(),
            "smallest_preactivation": margin.smallest, "tensors": tensors}


def experiment2(pack: Pack) -> list[Json]:
    """Three 128-wide layers, ReLU between them, as conv 1x1 and as linear on the permuted view."""
    made, margin = Generated(), Margin()
    x = made.make("x", 221, (2, 128, 5, 7), 1.0).requires_grad_()
    weights = [made.make(f"w{i}", 222 + i, (128, 128), 0.125).requires_grad_() for i in range(3)]
    biases = [made.make(f"b{i}", 225 + i, (128,), 0.125).requires_grad_() for i in range(3)]
    target = made.make("target", 228, (2, 128, 5, 7), 1.0)

    def network(layer: Callable[[Tensor, Tensor, Tensor], Tensor], value: Tensor) -> Tensor:
        for i in range(3):
            value = layer(value, weights[i], biases[i])
            value = margin.relu(value) if i < 2 else value
        return value

    leaves = [x, *weights, *biases]
    y_conv = network(lambda v, w, b: F.conv2d(v, w[:, :, None, None], b), x)
    loss_conv = F.mse_loss(y_conv, target)
    conv = torch.autograd.grad(loss_conv, leaves)
    y_linear = network(F.linear, x.permute(NCHW))
    loss_linear = F.mse_loss(y_linear, target.permute(NCHW))
    linear = torch.autograd.grad(loss_linear, leaves)
    for one, other in zip((y_conv, *conv), (y_linear.permute(0, 3, 1, 2), *linear)):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-15)

    names = ["dx", "dw0", "dw1", "dw2", "db0", "db1", "db2"]
    shared = {name: {"file": pack.file, **pack.add(grad)} for name, grad in zip(names, conv)}
    common = {"generated": made.described, "smallest_preactivation": margin.smallest}
    return [
        {"name": "experiment2_mlp_conv", **common, "loss": loss_conv.item(),
         "tensors": {"y": {"file": pack.file, **pack.add(y_conv)}, **shared}},
        {"name": "experiment2_mlp_linear", **common, "loss": loss_linear.item(),
         "tensors": {"y": {"file": pack.file, **pack.add(y_linear)}, **shared}},
    ]


def sgd_steps(pack: Pack) -> Json:
    """Ten steps on conv 3->8, ReLU, conv 8->8 whose weight is 90 % masked."""
    made, margin = Generated(), Margin()
    x = made.make("x", 1541, (4, 3, 6, 6), 1.0)
    target = made.make("target", 1542, (4, 8, 6, 6), 1.0)
    w0 = made.make("w0", 1543, (8, 3, 3, 3), 0.5)
    b0 = made.make("b0", 1544, (8,), 0.125)
    w1 = made.make("w1", 1545, (8, 8, 3, 3), 0.5)
    b1 = made.make("b1", 1546, (8,), 0.125)
    kept = (mix(1547, w1.numel()) % 10 == 0).astype(np.float64)
    mask = torch.from_numpy(kept.reshape(tuple(w1.shape)))
    w1 *= mask
    parameters = [p.requires_grad_() for p in (w0, b0, w1, b1)]
    hyper = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
    optimiser = torch.optim.SGD(parameters, foreach=False, **hyper)
    steps = []
    for _ in range(10):
        hidden = margin.relu(F.conv2d(x, w0, b0, padding=1))
        loss = F.mse_loss(F.conv2d(hidden, w1, b1, padding=1), target)
        optimiser.zero_grad()
        loss.backward()
        assert w1.grad is not None
        w1.grad *= mask
        optimiser.step()
        if bool((w1.detach()[mask == 0] != 0).any()):
            raise AssertionError("a masked weight left zero")
        total = sum(float(p.detach().sum()) for p in parameters)
        squares = sum(float(p.detach().square().sum()) for p in parameters)
        steps.append({"loss": loss.item(), "sum": total, "sum_of_squares": squares})
    finals = {"w0": w0, "b0": b0, "w1": w1, "b1": b1}
    tensors = {f"final_{key}": {"file": pack.file, **pack.add(value)}
               for key, value in finals.items()}
    tensors["mask"] = {"file": pack.file, **pack.add(mask)}
    return {"name": "sgd_ten_steps", "params": {"padding": 1, **hyper}, "generated": made.described,
            "mask": {"stream": 1547, "kept": int(mask.sum()),
                     "rule": "mix(1547, i) % 10 == 0 keeps"},
            "smallest_preactivation": margin.smallest, "steps": steps, "tensors": tensors}


def make_networks(folder: Path) -> None:
    """Writes networks.json, networks.npy and networks_f32.npy."""
    pack, pack32 = Pack("networks.npy"), Pack("networks_f32.npy", np.float32)
    cases = [experiment1(pack, pack32), *experiment2(pack), sgd_steps(pack)]
    write_group(folder, "networks", cases, [pack, pack32],
                "generated tensors follow the formula of README.md; experiment1: loss = "
                "sum(y * gy); experiment2: loss = mean((y - target)^2), dw of the conv spelling "
                "has the same values as [128, 128, 1, 1]; sgd: loss before the step, sums over "
                "all parameters after it")


# ------------------------------------------------------------------------------------------ pool


@dataclasses.dataclass(frozen=True)
class Pool:
    """One pooling problem; fields as in tests/shapes/pool.txt."""

    kind: str = "max"
    n: int = 2
    c: int = 2
    h: int = 6
    w: int = 7
    kh: int = 2
    kw: int = 2
    stride_h: int = 2
    stride_w: int = 2
    pad_t: int = 0
    pad_b: int = 0
    pad_l: int = 0
    pad_r: int = 0
    dil_h: int = 1
    dil_w: int = 1
    ceil: int = 0
    count: int = 1

    def run(self, x: Tensor) -> Tensor:
        """The pooling by torch.nn.functional."""
        kernel, stride = (self.kh, self.kw), (self.stride_h, self.stride_w)
        padding = (self.pad_t, self.pad_l)
        if self.kind == "adaptive":
            return F.adaptive_avg_pool2d(x, kernel)
        if (self.pad_t, self.pad_l) != (self.pad_b, self.pad_r):
            if self.ceil or not self.count:
                raise AssertionError("padding first makes sense without ceil and with count only")
            fill = -math.inf if self.kind == "max" else 0.0
            x, padding = F.pad(x, (self.pad_l, self.pad_r, self.pad_t, self.pad_b), value=fill), 0
        if self.kind == "max":
            return F.max_pool2d(x, kernel, stride, padding, (self.dil_h, self.dil_w),
                                bool(self.ceil))
        return F.avg_pool2d(x, kernel, stride, padding, bool(self.ceil), bool(self.count))


def listed_pools() -> list[tuple[str, Pool]]:
    """The pooling problems."""
    cases: list[tuple[str, Pool]] = []

    def add(name: str, **fields: Any) -> None:
        cases.append((name, Pool(**fields)))

    for kind in ("max", "avg"):
        add(f"{kind}_k2", kind=kind)
        add(f"{kind}_k2_even", kind=kind, h=4, w=16)
        for ceil in (0, 1):
            for size in range(1, 8):
                add(f"{kind}_k3_s2_{size}_ceil{ceil}", kind=kind, h=size, w=9 - size, kh=3, kw=3,
                    ceil=ceil, **pads(1, 1, 1, 1))
            add(f"{kind}_k3_s1_ceil{ceil}", kind=kind, kh=3, kw=3, stride_h=1, stride_w=1,
                ceil=ceil, **pads(1, 1, 1, 1))
            add(f"{kind}_k1_s3_ceil{ceil}", kind=kind, kh=1, kw=1, stride_h=3, stride_w=3,
                ceil=ceil)
            add(f"{kind}_gaps_ceil{ceil}", kind=kind, h=11, w=12, stride_h=4, stride_w=5, ceil=ceil)
            add(f"{kind}_k4x5_s3x2_ceil{ceil}", kind=kind, h=10, w=9, kh=4, kw=5, stride_h=3,
                stride_w=2, ceil=ceil, **pads(2, 2, 1, 1))
        add(f"{kind}_last_window_in_padding", kind=kind, h=4, w=5, stride_h=3, stride_w=3, ceil=1,
            **pads(1, 1, 1, 1))
        add(f"{kind}_beyond", kind=kind, h=3, w=3, kh=4, kw=4, ceil=1)
        add(f"{kind}_pad_1002", kind=kind, kh=2, kw=4, **pads(1, 0, 0, 2))
        add(f"{kind}_pad_0110", kind=kind, kh=3, kw=3, stride_h=1, **pads(0, 1, 1, 0))
        add(f"{kind}_batch_0", kind=kind, n=0)
    for ceil in (0, 1):
        add(f"uncounted_ceil{ceil}", kind="avg", h=7, w=8, kh=3, kw=4, ceil=ceil, count=0,
            **pads(1, 1, 2, 2))
        add(f"dilated_ceil{ceil}", h=11, w=10, kh=3, kw=2, dil_h=2, dil_w=3, ceil=ceil,
            **pads(1, 1, 1, 1))
    for h, w, out_h, out_w in [(6, 8, 3, 4), (7, 10, 3, 4), (5, 3, 5, 3), (3, 4, 7, 9), (9, 7, 1, 1),
                               (1, 1, 2, 3), (5, 6, 1, 4)]:
        add(f"adaptive_{h}x{w}_{out_h}x{out_w}", kind="adaptive", h=h, w=w, kh=out_h, kw=out_w)
    return cases


def pool_case(name: str, pool: Pool, data: Data, pack: Pack) -> Json:
    """Runs one pooling problem forward and backward; integers make equal maxima likely."""
    x = data.draw((pool.n, pool.c, pool.h, pool.w), pool.kind == "max").requires_grad_()
    y = pool.run(x)
    gy = data.draw(y.shape, pool.kind == "max")
    (dx,) = torch.autograd.grad(y, [x], gy)
    params = dataclasses.asdict(pool)
    kind = params.pop("kind")
    named = {"x": x, "gy": gy, "y": y, "dx": dx}
    return {"name": name, "kind": kind, "params": params,
            "tensors": {key: pack.add(value) for key, value in named.items()}}


def make_pool(folder: Path) -> None:
    """Writes pool.json and pool.npy."""
    pack = Pack("pool.npy")
    data = Data(5)
    cases = [pool_case(name, pool, data, pack) for name, pool in listed_pools()]
    write_group(folder, "pool", cases, [pack],
                "NCHW, all row-major; loss = sum(y * gy); maxima are of small integers; adaptive: "
                "kh and kw are the sizes of y, the other parameters mean nothing")


# ------------------------------------------------------------------------------------ batch norm


def batch_norm_case(name: str, shape: Sequence[int], training: bool, weight: bool, running: bool,
                    data: Data, pack: Pack) -> Json:
    """F.batch_norm and its gradients; the loss is sum(y * gy)."""
    x = (data.draw(shape, False) * 2 + 1).requires_grad_()
    named: dict[str, Tensor] = {"x": x}
    channels = (shape[1],)
    if weight:
        named["weight"] = data.draw(channels, False).requires_grad_()
        named["bias"] = data.draw(channels, False).requires_grad_()
    mean = var = None
    if running:
        mean, var = data.draw(channels, False), data.draw(channels, False).abs() + 0.5
        named |= {"running_mean": mean.clone(), "running_var": var.clone()}
    params = {"training": training, "momentum": 0.25, "eps": 1e-3}
    y = F.batch_norm(x, mean, var, named.get("weight"), named.get("bias"), **params)
    gy = data.draw(shape, False)
    leaves = [key for key in ("x", "weight", "bias") if key in named]
    grads = torch.autograd.grad(y, [named[key] for key in leaves], gy)
    named |= {"y": y, "gy": gy}
    named |= {f"d{key}": grad for key, grad in zip(leaves, grads)}
    if mean is not None and var is not None:
        named |= {"new_running_mean": mean, "new_running_var": var}
    return {"name": name, "params": params,
            "tensors": {key: pack.add(value) for key, value in named.items()}}


def make_batch_norm(folder: Path) -> None:
    """Writes batch_norm.json and batch_norm.npy."""
    pack, data = Pack("batch_norm.npy"), Data(5)
    shapes = {"rows": (9, 5), "series": (3, 4, 6), "images": (3, 5, 4, 6), "volume": (2, 3, 2, 3, 4)}
    cases = [batch_norm_case(f"{name}_{'training' if training else 'evaluation'}_{index}", shape,
                             training, index != 1, not training or index != 2, data, pack)
             for name, shape in shapes.items() for training in (True, False)
             for index in range(3 if training else 2)]
    write_group(folder, "batch_norm", cases, [pack],
                "F.batch_norm; new_running_* are the running statistics afterwards; "
                "loss = sum(y * gy)")


# --------------------------------------------------------------------------------------- softmax


def softmax_case(name: str, shape: Sequence[int], axis: int, data: Data, pack: Pack) -> Json:
    """softmax and log_softmax over one axis and their gradients."""
    x = (data.draw(shape, False) * 3).requires_grad_()
    gy = data.draw(shape, False)
    named: dict[str, Tensor] = {"x": x, "gy": gy}
    for key, function in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        y = function(x, axis)
        named |= {key: y, f"d{key}": torch.autograd.grad(y, x, gy)[0]}
    return {"name": name, "kind": "softmax", "params": {"axis": axis},
            "tensors": {key: pack.add(value) for key, value in named.items()}}


def cross_entropy_case(name: str, shape: Sequence[int], reduction: str, smoothing: float,
                       ignored: int, data: Data, pack: Pack) -> Json:
    """F.cross_entropy and its gradient; some labels are ignored."""
    x = (data.draw(shape, False) * 3).requires_grad_()
    labels = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=data.generator)
    labels.view(-1)[::4] = ignored
    loss = F.cross_entropy(x, labels, ignore_index=ignored, reduction=reduction,
                           label_smoothing=smoothing)
    gy = data.draw(loss.shape, False)
    named = {"x": x, "labels": labels.double(), "gy": gy, "loss": loss,
             "dx": torch.autograd.grad(loss, x, gy)[0]}
    return {"name": name, "kind": "cross_entropy",
            "params": {"reduction": reduction, "label_smoothing": smoothing,
                       "ignore_index": ignored},
            "tensors": {key: pack.add(value) for key, value in named.items()}}


def make_softmax(folder: Path) -> None:
    """Writes softmax.json and softmax.npy."""
    pack, data = Pack("softmax.npy"), Data(6)
    cases = [softmax_case(f"axis{axis}_of_{'x'.join(map(str, shape))}", shape, axis, data, pack)
             for shape in ((7,), (5, 11), (3, 4, 6), (2, 5, 3, 4)) for axis in range(len(shape))]
    for shape in ((9, 6), (4, 5, 7), (3, 4, 5, 2)):
        for reduction in ("mean", "sum", "none"):
            for smoothing, ignored in ((0.0, -100), (0.0, 2), (0.15, -100), (0.15, 1)):
                name = f"{'x'.join(map(str, shape))}_{reduction}_{smoothing}_{ignored}"
                cases.append(cross_entropy_case(name, shape, reduction, smoothing, ignored, data,
                                                pack))
    write_group(folder, "softmax", cases, [pack],
                "softmax, log_softmax: dsoftmax and dlog_softmax are the gradients of x under gy; "
                "cross_entropy: loss, and dx under gy; labels are integers stored as f64")


# ----------------------------------------------------------------------------------- concatenate

JOINS: list[tuple[str, int, list[tuple[int, ...]]]] = [  # name, axis, shapes
    ("one", 0, [(3, 2)]),
    ("channels", 1, [(2, 3, 4, 5), (2, 1, 4, 5), (2, 2, 4, 5)]),
    ("batch", 0, [(1, 2, 3), (4, 2, 3)]),
    ("last_from_the_end", -1, [(2, 3, 2), (2, 3, 5), (2, 3, 1), (2, 3, 2)]),
    ("empty_operand", 1, [(2, 3), (2, 0), (2, 2)]),
    ("many", 0, [(size, 2) for size in range(1, 13)]),
]


def make_concatenate(folder: Path) -> None:
    """Writes concatenate.json and concatenate.npy."""
    pack = Pack("concatenate.npy")
    data = Data(8)
    cases = []
    for name, axis, shapes in JOINS:
        inputs = [data.draw(shape, True).requires_grad_() for shape in shapes]
        y = torch.cat(inputs, axis)
        gy = data.draw(y.shape, True, 3)
        grads = torch.autograd.grad(y, inputs, gy)
        named = {"y": y, "gy": gy}
        named |= {f"x{i}": x for i, x in enumerate(inputs)}
        named |= {f"dx{i}": dx for i, dx in enumerate(grads)}
        cases.append({"name": name, "axis": axis,
                      "tensors": {key: pack.add(value) for key, value in named.items()}})
    write_group(folder, "concatenate", cases, [pack], "inputs x0, x1, ...; loss = sum(y * gy)")


# -------------------------------------------------------------------------------------- training


def optimizer_cases(data: Data, pack: Pack) -> list[Json]:
    """Fifteen steps on two parameters with given gradients, the second masked in part."""
    steps = 15
    sizes = {"a": (3, 7), "b": (5,)}
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    start = {key: data.draw(size, False) for key, size in sizes.items()}
    start["b"] *= mask
    grads = {key: data.draw((steps, *size), False) for key, size in sizes.items()}
    rates = [0.05 * 0.9**step for step in range(steps)]
    common = {f"start_{key}": pack.add(value) for key, value in start.items()}
    common |= {f"grads_{key}": pack.add(value) for key, value in grads.items()}
    common["mask_b"] = pack.add(mask)
    optimizers: list[tuple[str, type[torch.optim.Optimizer], Json]] = [
        ("sgd", torch.optim.SGD, {}),
        ("sgd", torch.optim.SGD, {"weight_decay": 0.1}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
        ("sgd", torch.optim.SGD, {"momentum": 0.75, "weight_decay": 0.1}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
        ("adam", torch.optim.Adam, {}),
        ("adam", torch.optim.Adam, {"weight_decay": 0.1}),
        ("adam", torch.optim.Adam, {"betas": [0.5, 0.9], "eps": 0.01}),
        ("adamw", torch.optim.AdamW, {}),
        ("adamw", torch.optim.AdamW, {"betas": [0.8, 0.99], "eps": 1e-4, "weight_decay": 0.25}),
    ]
    cases = []
    for name, kind, hyper in optimizers:
        for idle in ([], [0, 1, 6]):  # steps in which the second parameter has no gradient
            values = {key: value.clone().requires_grad_() for key, value in start.items()}
            optimizer = kind(list(values.values()), lr=rates[0], foreach=False, **hyper)
            trace: dict[str, list[Tensor]] = {key: [] for key in values}
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = rates[step]
                for key, value in values.items():
                    value.grad = grads[key][step].clone()
                values["b"].grad = None if step in idle else grads["b"][step] * mask
                optimizer.step()
                for key, value in values.items():
                    trace[key].append(value.detach().clone())
            if bool((values["b"].detach()[mask == 0] != 0).any()):
                raise AssertionError("a masked weight left zero")
            tensors = {f"trace_{key}": pack.add(torch.stack(value)) for key, value in trace.items()}
            cases.append({"name": name, "params": hyper, "idle": idle, "rates": rates,
                          "tensors": {**common, **tensors}})
    return cases


def schedule_cases() -> list[Json]:
    """Learning rates of 40 steps."""

    def rates(make: Callable[[torch.optim.Optimizer], Any]) -> list[float]:
        parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.3)
        schedule = make(optimizer)
        found = []
        for _ in range(40):
            found.append(float(schedule.get_last_lr()[0]))
            optimizer.step()
            schedule.step()
        return found

    lr = torch.optim.lr_scheduler

    def warm(optimizer: torch.optim.Optimizer) -> Any:
        parts = [lr.LinearLR(optimizer, start_factor=0.25, total_iters=6),
                 lr.CosineAnnealingLR(optimizer, 20, eta_min=0.01)]
        return lr.SequentialLR(optimizer, parts, milestones=[6])

    return [
        {"name": "step", "params": {"period": 7, "factor": 0.5},
         "rates": rates(lambda o: lr.StepLR(o, 7, gamma=0.5))},
        {"name": "cosine", "params": {"steps": 25, "minimum": 0.02, "warm_up": 0, "factor": 1.0},
         "rates": rates(lambda o: lr.CosineAnnealingLR(o, 25, eta_min=0.02))},
        {"name": "cosine", "params": {"steps": 20, "minimum": 0.01, "warm_up": 6, "factor": 0.25},
         "rates": rates(warm)},
    ]


def clip_cases(data: Data, pack: Pack) -> list[Json]:
    """Three gradients, their norm, and what is left of them."""
    given = [data.draw(size, False) for size in ((3, 7), (40,), ())]
    cases = []
    for limit in (1.5, 1000.0):
        values = [torch.zeros_like(g).requires_grad_() for g in given]
        tensors = {}
        for i, (value, grad) in enumerate(zip(values, given)):
            value.grad = grad.clone()
            tensors[f"grad{i}"] = pack.add(grad)
        total = torch.nn.utils.clip_grad_norm_(values, limit, foreach=False)
        for i, value in enumerate(values):
            assert value.grad is not None
            tensors[f"by_norm{i}"] = pack.add(value.grad)
            value.grad = given[i].clone()
        torch.nn.utils.clip_grad_value_(values, limit, foreach=False)
        for i, value in enumerate(values):
            assert value.grad is not None
            tensors[f"by_value{i}"] = pack.add(value.grad)
        cases.append({"name": "clip", "limit": limit, "norm": total.item(), "tensors": tensors})
    return cases


def loss_scaler_case(data: Data, pack: Pack) -> Json:
    """Twenty steps of SGD under a GradScaler, four of them with an infinite or NaN gradient."""
    parameter = data.draw((6,), False).float().requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    factors = data.draw((20, 6), False)
    for step, bad in ((2, math.inf), (3, math.nan), (10, -math.inf), (14, math.inf)):
        factors[step, 4] = bad
    tensors = {"start": pack.add(parameter.double()), "factors": pack.add(factors)}
    scales, trace = [], []
    for row in factors.float():
        optimizer.zero_grad()
        scaler.scale((parameter * row).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        trace.append(parameter.detach().double().clone())
    tensors["trace"] = pack.add(torch.stack(trace))
    return {"name": "loss_scaler", "params": {"scale": 1024.0, "interval": 3, "lr": 0.1,
                                              "momentum": 0.9}, "scales": scales,
            "tensors": tensors}


def make_training(folder: Path) -> None:
    """Writes training.json and training.npy."""
    pack = Pack("training.npy")
    data = Data(17)
    cases = [*optimizer_cases(data, pack), *schedule_cases(), *clip_cases(data, pack),
             loss_scaler_case(data, pack)]
    write_group(folder, "training", cases, [pack],
                "optimizers: values after each step, with the rate and the gradients of that step; "
                "b is masked and has no gradient in the idle steps; schedules start at 0.3; "
                "loss_scaler: loss = sum(parameter * factors[step]) in fp32, scales after it")


def make_all(folder: Path) -> None:
    """Makes every golden file in `folder`."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make_conv2d(folder)
    make_pointwise(folder)
    make_elementwise(folder)
    make_networks(folder)
    make_training(folder)
    make_pool(folder)
    make_batch_norm(folder)
    make_softmax(folder)
    make_concatenate(folder)


FILES = ("conv2d.json", "conv2d.npy", "pointwise.json", "pointwise.npy", "elementwise.json",
         "elementwise.npy", "networks.json",
         "networks.npy", "networks_f32.npy", "training.json", "training.npy",
         "pool.json", "pool.npy",
         "batch_norm.json", "batch_norm.npy", "softmax.json", "softmax.npy",
         "concatenate.json", "concatenate.npy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the files, or with --check compares a fresh set with the ones that are here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into")
    parser.add_argument("--check", action="store_true",
                        help="write nothing; fail unless a fresh set equals the files byte by byte")
    options = parser.parse_args(arguments)
    if options.check:
        with tempfile.TemporaryDirectory() as name:
            make_all(Path(name))
            changed = [file for file in FILES
                       if not filecmp.cmp(options.out / file, Path(name) / file, shallow=False)]
        print("changed: " + ", ".join(changed) if changed else f"{len(FILES)} files as made")
        return 1 if changed else 0
    make_all(options.out)
    total = 0
    for file in FILES:
        size = (options.out / file).stat().st_size
        total += size
        print(f"{file:18} {size:9,} bytes")
    if total > SIZE_LIMIT:
        raise AssertionError(f"{total} bytes, more than {SIZE_LIMIT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
