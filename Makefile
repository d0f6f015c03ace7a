# Thin front of the CMake presets; `make help` lists the targets.
#   PRESET=cpu|cuda   what to build: cuda by default only where there are a GPU and nvcc
#   JOBS=n            parallel compilers (default: all processors)
#   INSTALL=0         install nothing
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
PRESET ?= $(if $(and $(GPU),$(NVCC)),cuda,cpu)
JOBS ?= $(shell nproc)
INSTALL ?= 1
BUILD := build/$(PRESET)

export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CMAKE_CUDA_COMPILER_LAUNCHER ?= $(shell command -v ccache)
ifneq ($(NVCC),)
export CUDACXX ?= $(NVCC)
endif

install = $(if $(filter 0,$(INSTALL)),:,scripts/install_dependencies.sh $(1))
for_preset = $(if $(filter cuda,$(PRESET)),--cuda)
configure = cmake --preset $(PRESET) $(1) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
# The Python that has the report's packages; the distribution's, where another one comes first.
report_python = $(firstword $(foreach python,python3 /usr/bin/python3,$(shell \
  $(python) -c 'import matplotlib, jinja2' 2>/dev/null && echo $(python))) python3)
results = $(wildcard out/zero_weights.json out/conv1x1_vs_linear.json out/fashion_mnist.json)
build = cmake --build --preset $(PRESET) -j $(JOBS)

.PHONY: help experiments report test cuda bench gate format check consumers packages docs install clean
.DEFAULT_GOAL := help

help:  ## lists the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 14
	echo "preset here: $(PRESET)"

experiments:  ## installs what is missing, builds, runs both experiments; JSON and report in out/
	@$(call install,$(for_preset))
	mkdir -p $(BUILD) out
	$(call configure,-DZERONE_EXAMPLES=ON)
	$(build) --target zero_weights conv1x1_vs_linear
	$(BUILD)/examples/zero_weights --json out/zero_weights.json
	$(BUILD)/examples/conv1x1_vs_linear --json out/conv1x1_vs_linear.json
	echo "written: out/zero_weights.json out/conv1x1_vs_linear.json"
	$(MAKE) report

report:  ## makes out/report/index.html of the experiments' JSON files in out/
	@$(call install,--report) || echo "report: its packages could not be installed"
	[[ -n "$(results)" ]] || { echo "report: no results in out/; make experiments first" >&2; exit 1; }
	$(report_python) examples/report/report.py $(results) --out out/report || (($$? == 3))

test:  ## installs what is missing, builds and runs every test that this machine can run
	@$(call install,$(for_preset))
	mkdir -p $(BUILD)
	$(call configure,-DZERONE_TESTS=ON -DZERONE_EXAMPLES=ON)
	$(build)
	ctest --preset $(PRESET)

cuda:  ## builds library, tests, experiments and benchmarks with CUDA; needs nvcc, no GPU
	@$(MAKE) PRESET=cuda build-all

.PHONY: build-all
build-all:
	@$(call install,$(for_preset))
	mkdir -p $(BUILD)
	$(call configure,-DZERONE_TESTS=ON -DZERONE_EXAMPLES=ON -DZERONE_BENCH=ON)
	$(build)

bench:  ## builds and runs the benchmarks (and PyTorch's, where it is installed); out/bench
	@$(call install,$(for_preset))
	mkdir -p $(BUILD)
	$(call configure,-DZERONE_BENCH=ON)
	$(build)
	scripts/run_bench.sh $(BUILD) out/bench

gate:  ## everything for one CUDA host, in under 12 minutes; out/gate
	@scripts/gpu_gate.sh out/gate

consumers:  ## installs the build elsewhere and uses it from four separate projects
	@scripts/test_consumers.sh $(BUILD)

packages:  ## makes the Debian packages and tries them in a fresh root; as root; build/packages
	@$(call install,--dev)
	scripts/test_packages.sh

docs:  ## makes the reference of the public headers; build/docs/html
	@$(call install,--dev)
	scripts/make_docs.sh

format:  ## formats all own sources in place
	@$(call install,--dev)
	scripts/format.sh

check:  ## format, include arrows, scripts, Python tests
	@$(call install,--dev)
	scripts/format.sh --check
	python3 scripts/check_includes.py
	python3 scripts/check_includes_test.py
	python3 bench/compare_test.py
	python3 -m py_compile bench/peers_pytorch.py bench/peers_fashion_mnist.py tests/reference/make_golden.py
	shellcheck -x scripts/*.sh .ci/run

install:  ## installs what is missing
	@scripts/install_dependencies.sh --dev $(for_preset)

clean:  ## removes build trees and results
	@rm -rf build out
