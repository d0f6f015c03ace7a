#!/usr/bin/env python3
"""Checks the shape of the source tree; prints one line a fault and exits 1 if there is any.

  * arrows: a folder includes only the folders that it may (ARROWS below);
  * public headers (zerone.h and whatever it reaches) name no header of CUDA, cuDNN, cuBLAS, Eigen,
    Highway, oneDNN, fmt or nlohmann_json;
  * CUDA syntax stands in .cu and .cuh only;
  * macros start with ZERONE_;
  * headers start their guard with #pragma once; includes of our own are spelled <zerone/...>;
  * no absolute paths;
  * CMakeLists.txt and CHANGELOG.md name the same version;
  * the first C++ block of README.md stands in examples/readme_example.cpp, which compiles.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Folder -> the parts of zerone that its files may include. "public" is zerone.h and what it
# reaches, "types" the headers that lie directly in kernels/.
ARROWS: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels",),
    "core": ("core", "kernels"),
    "autograd": ("autograd", "core", "types"),
    "ops": ("ops", "autograd", "core", "kernels"),
    "examples": ("public",),
    "tests": ("public", "ops", "autograd", "core", "kernels"),
    "bench": ("public", "ops", "autograd", "core", "kernels"),
}
PARTS = ("kernels", "core", "autograd", "ops")
SUFFIXES = (".h", ".cpp", ".cu", ".cuh")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)")
FOREIGN = re.compile(r"^(cuda|cudnn|cublas|nvtx|driver_types|vector_types|Eigen/|unsupported/Eigen"
                     r"|hwy/|oneapi/|dnnl|fmt/|nlohmann/|omp\.h)")
CUDA_SYNTAX = re.compile(r"__global__|__device__|__host__|__shared__|__constant__|<<<")
# Sources may set what another library reads; headers may not.
LIBRARY_SETTING = re.compile(r"^(HWY_|EIGEN_|NV_CUDNN_FRONTEND_|Eigen$)")
# The one header that serves both compilers hides the keywords behind a macro.
KEYWORD_MACRO = re.compile(r"^\s*#\s*define\s+ZERONE_HOST_DEVICE\b")
ABSOLUTE_PATH = re.compile(r"[\"'(\s=](/(?:home|root|work|tmp|usr|opt|mnt|Users)/[\w./+-]*)")


def strip_comments(text: str) -> str:
    """Blanks comments, keeping line numbers; string literals are left as they are."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return pattern.sub(blank, text)


def includes_of(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, bracket, spelling) of each include."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := INCLUDE.match(line):
            yield number, found[1], found[2]


class Tree:
    """The sources below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts: dict[str, str] = {}
        for folder in ARROWS:
            for path in sorted((root / folder).rglob("*")):
                if path.suffix in SUFFIXES and path.is_file():
                    self.texts[path.relative_to(root).as_posix()] = path.read_text("utf-8")
        for name, source in (("zerone.h", "zerone.h"), ("version.h", "version.h.in")):
            if (root / source).is_file():
                self.texts[name] = (root / source).read_text("utf-8")
        self.code = {name: strip_comments(text) for name, text in self.texts.items()}
        self.public = self.reach("zerone.h")

    def reach(self, start: str) -> set[str]:
        """Own headers that `start` includes, directly or not, and itself."""
        seen: set[str] = set()
        todo = [start]
        while todo:
            name = todo.pop()
            if name in seen or name not in self.code:
                continue
            seen.add(name)
            todo += [spelling.removeprefix("zerone/")
                     for _, _, spelling in includes_of(self.code[name])
                     if spelling.startswith("zerone/")]
        return seen

    def allowed(self, folder: str, target: str) -> bool:
        """Whether files of `folder` may include <zerone/`target`>."""
        if target == "version.h":
            return True
        parts = target.split("/")
        for arrow in ARROWS[folder]:
            if arrow == "public" and target in self.public:
                return True
            if arrow == "types" and parts[0] == "kernels" and len(parts) == 2:
                return True
            if arrow == parts[0] and len(parts) > 1:
                return True
        return False

    def faults(self) -> Iterator[str]:
        """One line a fault."""
        for name in self.code:
            yield from self.include_faults(name)
            yield from self.text_faults(name)
        yield from self.version_faults()
        yield from self.readme_faults()

    def include_faults(self, name: str) -> Iterator[str]:
        """Arrows, spelling and foreign headers in public ones."""
        folder = name.split("/")[0]
        for line, bracket, spelling in includes_of(self.code[name]):
            if spelling.startswith("zerone/"):
                target = spelling.removeprefix("zerone/")
                if bracket == '"':
                    yield f"{name}:{line}: write <{spelling}>"
                if target not in self.texts:
                    yield f"{name}:{line}: <{spelling}> does not exist"
                elif folder in ARROWS and not self.allowed(folder, target):
                    yield (f"{name}:{line}: {folder} must not include <{spelling}>"
                           f" (only {', '.join(ARROWS[folder])})")
            elif folder in PARTS and (bracket == '"' or spelling.split("/")[0] in PARTS):
                yield f"{name}:{line}: spell our own headers <zerone/...>, not {spelling}"
            elif name in self.public and FOREIGN.match(spelling):
                yield f"{name}:{line}: a public header must not include <{spelling}>"

    def text_faults(self, name: str) -> Iterator[str]:
        """CUDA syntax, macros, guards, paths."""
        cuda = name.endswith((".cu", ".cuh"))
        header = name.endswith((".h", ".cuh"))
        if header and "#pragma once" not in self.code[name]:
            yield f"{name}:1: no #pragma once"
        for number, line in enumerate(self.code[name].splitlines(), 1):
            if not cuda and not KEYWORD_MACRO.match(line) and CUDA_SYNTAX.search(line):
                yield f"{name}:{number}: CUDA syntax belongs into a .cu or .cuh file"
            if found := DEFINE.match(line):
                macro = found[1]
                if not macro.startswith("ZERONE_") and (header or not LIBRARY_SETTING.match(macro)):
                    yield f"{name}:{number}: macro {macro} must start with ZERONE_"
        for number, line in enumerate(self.texts[name].splitlines(), 1):
            if found := ABSOLUTE_PATH.search(line):
                yield f"{name}:{number}: absolute path {found[1]}"

    def version_faults(self) -> Iterator[str]:
        """The version is written in two places."""
        def find(file: str, pattern: str) -> str | None:
            path = self.root / file
            found = re.search(pattern, path.read_text("utf-8")) if path.is_file() else None
            return found[1] if found else None

        version = find("CMakeLists.txt", r"project\(zerone VERSION ([\d.]+)")
        if version is None:
            return
        if find("CHANGELOG.md", rf"(?m)^## ({re.escape(version)})\b") is None:
            yield f"CHANGELOG.md:1: no heading for {version}"

    def readme_faults(self) -> Iterator[str]:
        """The code that the README shows is code that compiles; blank lines and indents aside."""
        path = self.root / "README.md"
        block = re.search(r"(?ms)^```(?:cpp|c\+\+)\n(.*?)^```", path.read_text("utf-8")
                          if path.is_file() else "")
        if block is None:
            return

        def lines(text: str) -> str:
            return "\n".join(filter(None, map(str.strip, text.splitlines())))

        if lines(block[1]) not in lines(self.texts.get("examples/readme_example.cpp", "")):
            yield "README.md:1: its first C++ block does not stand in examples/readme_example.cpp"


def main(arguments: list[str] | None = None) -> int:
    """Checks the tree that this script belongs to, or another."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    tree = Tree(parser.parse_args(arguments).root)
    if "zerone.h" not in tree.code:
        print("check_includes: no zerone.h below the root", file=sys.stderr)
        return 2
    faults = sorted(tree.faults())
    for fault in faults:
        print(fault)
    print(f"{len(tree.code)} files, {len(tree.public)} public headers, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
