# The README's two commands are `make demo` and `make test`. Each makes its environment, builds,
# installs and does its job on a fresh clone; stamps in the environment make a repeat quick.

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON_CANDIDATES ?= python3.11 /usr/bin/python3.11 python3.12 python3.13 python3.10 python3 /usr/bin/python3
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
CPP_FILES := $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h)
NATIVE_SOURCES := $(wildcard CMakeLists.txt csrc/* csrc/*/*)
# A new package (not a new module) is seen by the editable install only after another one.
PACKAGES := $(wildcard src/unpad/__init__.py src/unpad/*/__init__.py)
EXTRAS ?= train,tf,dev
# One worker a core, so one thread a worker; tests of threads ask for more themselves.
PYTEST_PARALLEL ?= --numprocesses auto --dist worksteal
PYTEST_ARGS ?=
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_PARALLEL)

# With a C++ compiler on PATH a native build that fails is an error; without one it's a fallback.
CXX_FOUND := $(firstword $(foreach c,$(CXX) c++ g++ clang++,$(shell command -v $(c) 2>/dev/null)))
export UNPAD_REQUIRE_NATIVE ?= $(if $(CXX_FOUND),1,0)

.PHONY: help env build test test-quick test-golden golden demo lint format bench bench-peers docs clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(VENV)/.stamp-requirements  ## make .venv with every pinned requirement

build: $(VENV)/.stamp-build  ## build the native engine and install unpad, editable

# A python that answers may still be a shim that fails elsewhere, or lack venv: so run each one.
$(VENV)/.stamp-venv:
	@for python in $(PYTHON_CANDIDATES); do \
	  if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' \
	      >/dev/null 2>&1 && $$python -m venv --clear $(VENV); then \
	    echo "environment $(VENV) from $$($$python -c 'import sys; print(sys.executable)')"; \
	    touch $@; exit 0; fi; done; \
	echo "no Python >= 3.10 with venv found among: $(PYTHON_CANDIDATES)." >&2; \
	echo "Install one, or name it: make PYTHON_CANDIDATES=/path/to/python3.11" >&2; exit 1

$(VENV)/.stamp-requirements: $(VENV)/.stamp-venv pyproject.toml constraints.txt tools/requirements.py
	$(BIN)/python tools/requirements.py $(EXTRAS) > $(VENV)/requirements.txt
	$(INSTALL) --requirement $(VENV)/requirements.txt
	@touch $@

$(VENV)/.stamp-build: $(VENV)/.stamp-requirements pyproject.toml $(NATIVE_SOURCES) $(PACKAGES)
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'from importlib.util import find_spec as find; print("unpad is installed", \
	  "with its native engine" if find("unpad._native") else "WITHOUT its native engine: no compiler")'
	@touch $@

test: build  ## every test, on every core
	$(PYTEST) --durations=15 $(PYTEST_ARGS)

test-quick: build  ## without the slow ones
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-golden: build  ## TensorFlow's recorded numbers; UNPAD_GOLDEN=DIR tries other cases of that format
	$(PYTEST) tests/tf1 tests/ctc tests/importers -k "golden" $(PYTEST_ARGS)

golden: build  ## run the porting page's TensorFlow programs in TensorFlow (installs it aside)
	$(BIN)/python tools/golden.py

demo: build $(VENV)/.stamp-sktime  ## train a classifier on real sequences of unequal length
	$(BIN)/python examples/japanese_vowels.py

# The wheel ships the data; its dependencies are no part of the demo.
$(VENV)/.stamp-sktime: $(VENV)/.stamp-requirements
	$(INSTALL) --no-deps sktime
	@touch $@

lint: build  ## ruff, pyright (strict on the package), clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(if $(CPP_FILES),$(BIN)/clang-format --dry-run --Werror $(CPP_FILES))

format: build  ## let ruff and clang-format rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(CPP_FILES),$(BIN)/clang-format -i $(CPP_FILES))

# One question a file; the peers' own need environments that `make bench-peers` makes.
BENCHMARKS := train_ragged train_lengths train_sizes train_custom_cell user_cells batch_one \
  precision streaming sequence_length overheads input_forms memory_flat memory_lean ctc \
  large_vocabulary likeliest_word where_time_goes
PEER_BENCHMARKS := train_peers forward_peers

bench: build  ## the benchmarks against torch (long); writes their results and docs/performance.md
	$(foreach name,$(BENCHMARKS),$(BIN)/python benchmarks/$(name).py && ) true
	$(BIN)/python benchmarks/report.py

bench-peers: build  ## against TensorFlow, JAX and ONNX Runtime, each in an environment of its own
	$(BIN)/python benchmarks/peers/install.py
	$(foreach name,$(PEER_BENCHMARKS),$(BIN)/python benchmarks/$(name).py && ) true
	$(BIN)/python benchmarks/report.py

docs: build  ## write docs/api.md and docs/performance.md anew, from the package and the results
	$(BIN)/python tools/api.py
	$(BIN)/python benchmarks/report.py

clean:  ## remove the environments, builds and caches
	rm -rf $(VENV) .venv-peers build dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
