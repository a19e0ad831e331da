# make demo   the whole job on embedded data, in a fresh .venv
# make test   lint, types, layers and all tests, in the same .venv
# make bench  speed, as ratios measured within one run
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test check bench clean

demo: .venv/base
	$(BIN)/dissensus demo --out runs/demo

test: check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

bench: .venv/dev
	$(BIN)/python -m benchmarks

check: .venv/dev
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(PIP) install --upgrade pip

.venv/base: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing (torch is large; this takes a few minutes the first time)"
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.venv/dev: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing (torch is large; this takes a few minutes the first time)"
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@ .venv/base

clean:
	rm -rf .venv runs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
