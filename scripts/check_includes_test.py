#!/usr/bin/env python3
"""Each rule of check_includes.py finds the fault it is for, and a clean tree has none."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_includes  # noqa: E402

CLEAN = {
    "zerone.h": "#pragma once\n#include <zerone/ops/x.h>\n",
    "kernels/types.h": "#pragma once\n#include <cstdint>\n",
    "kernels/cuda/x.cu": "#include <zerone/kernels/types.h>\n__global__ void f() {}\n",
    "core/tensor.h": "#pragma once\n#include <zerone/kernels/types.h>\n",
    "autograd/tape.h": "#pragma once\n#include <zerone/core/tensor.h>\n",
    "ops/x.h": "#pragma once\n#include <zerone/autograd/tape.h>\n",
    "ops/x.cpp": "#include <fmt/format.h>\n#include <zerone/ops/x.h>\n",
    "examples/e.cpp": "#include <zerone/zerone.h>\n#include <zerone/core/tensor.h>\n",
}


class Rules(unittest.TestCase):
    """One test a rule."""

    def check(self, changes: dict[str, str]) -> tuple[int, str]:
        """Exit status and output for the clean tree with some files changed or added."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (CLEAN | changes).items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = check_includes.main([folder])
            return status, output.getvalue()

    def expect(self, changes: dict[str, str], text: str) -> None:
        """Exactly one fault, which holds `text`."""
        status, output = self.check(changes)
        self.assertEqual(status, 1, output)
        self.assertIn(text, output)
        self.assertIn(" 1 faults", output)

    def test_clean(self) -> None:
        status, output = self.check({})
        self.assertEqual(status, 0, output)

    def test_arrows(self) -> None:
        wrong = (("kernels/a.cpp", "core/tensor.h"), ("core/a.cpp", "autograd/tape.h"),
                 ("core/a.cpp", "ops/x.h"), ("autograd/a.cpp", "ops/x.h"),
                 ("core/a.cpp", "zerone.h"))
        for name, target in wrong:
            self.expect({name: f"#include <zerone/{target}>\n"}, f"must not include <zerone/{target}>")

    def test_autograd_sees_only_types_of_kernels(self) -> None:
        self.expect({"kernels/cpu/k.h": "#pragma once\n",
                     "autograd/a.cpp": "#include <zerone/kernels/cpu/k.h>\n"}, "must not include")

    def test_examples_see_public_headers_only(self) -> None:
        self.expect({"core/inside.h": "#pragma once\n",
                     "examples/a.cpp": "#include <zerone/core/inside.h>\n"}, "must not include")

    def test_public_headers_hide_libraries(self) -> None:
        for name in ("cuda_runtime_api.h", "cudnn.h", "cublasLt.h", "Eigen/Core", "hwy/highway.h"):
            self.expect({"core/tensor.h": f"#pragma once\n#include <{name}>\n"}, "public header")

    def test_cuda_syntax(self) -> None:
        self.expect({"core/a.cpp": "__global__ void f() {}\n"}, "CUDA syntax")
        self.expect({"core/a.cpp": "void g() { f<<<1, 2>>>(3); }\n"}, "CUDA syntax")
        self.assertEqual(self.check({"core/a.cpp": "// as __device__ code does\n"})[0], 0)

    def test_macros(self) -> None:
        self.expect({"core/a.cpp": "#define CHECK(x) x\n"}, "CHECK")
        self.expect({"core/a.h": "#pragma once\n#define EIGEN_X\n"}, "EIGEN_X")
        self.assertEqual(self.check({"core/a.cpp": "#define EIGEN_X\n"})[0], 0)

    def test_spelling(self) -> None:
        self.expect({"core/a.cpp": '#include "tensor.h"\n'}, "<zerone/...>")
        self.expect({"core/a.cpp": "#include <core/tensor.h>\n"}, "<zerone/...>")
        self.expect({"core/a.cpp": "#include <zerone/core/none.h>\n"}, "does not exist")

    def test_guard_and_paths(self) -> None:
        self.expect({"core/a.h": "int x;\n"}, "#pragma once")
        self.expect({"core/a.cpp": 'const char* x = "/home/me/x";\n'}, "absolute path")

    def test_readme(self) -> None:
        code = "int main() {\n  return 0;\n}\n"
        readme = f"# zerone\n```\nmake\n```\n```cpp\n{code}```\n"
        self.expect({"README.md": readme}, "readme_example.cpp")
        self.assertEqual(self.check({"README.md": readme, "examples/readme_example.cpp":
                                     "#include <cstdio>\n\n" + code})[0], 0)

    def test_versions(self) -> None:
        self.expect({"CMakeLists.txt": "project(zerone VERSION 1.2.3)\n",
                     "CHANGELOG.md": "## 1.2.2\n"}, "no heading for 1.2.3")


if __name__ == "__main__":
    unittest.main()
