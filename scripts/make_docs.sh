#!/usr/bin/env bash
# Makes the reference of the public headers: build/docs/html. Every class, function and type of them
# has to be documented, and each warning of Doxygen is an error; data members, constructors and
# comparisons may go without where the text on their class says enough.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^project(zerone VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
mkdir -p build/docs
{ cat docs/Doxyfile; echo "PROJECT_NUMBER = $version"; } | doxygen - 2>build/docs/warnings.txt
if grep -vE '\(variable\) of |Member operator==|Member (\w+)\(.* of (class|struct) (.*::)?\1 is not documented' \
  build/docs/warnings.txt; then
  echo "make_docs: the above has to be documented, or corrected" >&2
  exit 1
fi
echo "docs: build/docs/html/index.html"
