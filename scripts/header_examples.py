#!/usr/bin/env python3
"""Makes a test of the examples in the public headers and of C++ in pages: every @code block, and
every ```cpp block of a .md file, becomes a function that gets a Context and runs on every device
("```cpp gpu": on GPUs only).

    scripts/header_examples.py FILE... > header_examples_test.cpp

A header with operations (functions that give a Var) or layers and without an example is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

INTRO = """// Made by scripts/header_examples.py.
#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/contexts.h"

#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"

namespace zerone {
namespace {
"""


def examples(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line number of its first line, lines) of each block."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        opening = line.strip()
        if opening not in ("/// @code", "```cpp", "```cpp gpu"):
            continue
        closing = "/// @endcode" if opening == "/// @code" else "```"
        end = next(at for at in range(start + 1, len(lines)) if lines[at].strip() == closing)
        code = [re.sub(r"^\s*/// ?", "", line) for line in lines[start + 1:end]]
        if opening.endswith("gpu"):
            code[0] = "if (!context.device().is_cuda()) return; " + code[0]
        yield start + 2, code


def main(files: list[str]) -> int:
    """Writes the test."""
    test = [INTRO]
    for file in files:
        text = Path(file).read_text("utf-8")
        name = "_".join(re.findall(r"\w+", "/".join(Path(file).with_suffix("").parts[-2:])))
        found = list(examples(text))
        if not found and re.search(r"(?m)^(Var \w+\(|class \w+ final : public Module)", text):
            print(f"{file}: no example (/// @code)", file=sys.stderr)
            return 1
        for number, (line, code) in enumerate(found, 1):
            test += [f"TEST(HeaderExamples, {name}_{number}) {{",
                     "  test::on_every_device([]([[maybe_unused]] const Context& context) {",
                     f'#line {line} "{file}"', *code, "  });", "}", ""]
    test += ["}  // namespace", "}  // namespace zerone"]
    print("\n".join(test))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
