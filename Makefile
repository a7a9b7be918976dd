# run · test · test-slow · test-gpu · lint · bench: each sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
VENV   := .venv
STAMP  := $(VENV)/.installed
CORES  ?= all
BIN    := $(CURDIR)/$(VENV)/bin
export PATH := $(BIN):$(PATH)
# The repository's own pins alone decide what is installed.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# As in the Snakefile, for tests: threads that spin keep the other test process from its core.
export GOMP_SPINCOUNT ?= 300

.PHONY: run test test-slow test-gpu lint bench clean-env
.DEFAULT_GOAL := run

$(STAMP): $(wildcard envs/*.txt) pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gc25d needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $$(grep -h '^torch==' envs/core.txt)
	$(BIN)/pip install --quiet $(addprefix -r ,$(filter-out envs/constraints.txt,$(wildcard envs/*.txt)))
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

run: $(STAMP)
	$(BIN)/snakemake sft_v10 --cores $(CORES)

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

bench: $(STAMP)
	$(BIN)/python -m bench.data.dataset
	$(BIN)/python -m bench.data.index

test-gpu: $(STAMP)
	$(BIN)/pytest -m gpu -n 4

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint

clean-env:
	rm -rf $(VENV)
