# make demo   the whole job on embedded data, in a fresh .venv
# make test   lint, types, layers and all tests, in the same .venv
# make docs   the documentation site, in site/, with examples executed and links checked
# make bench  speed, as ratios measured within one run
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test check docs bench clean

demo: .venv/base
	$(BIN)/dissensus demo --out runs/demo

test: check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

bench: .venv/dev
	$(BIN)/python -m benchmarks

docs: .venv/docs
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the site is in site/index.html; to search in it: $(BIN)/python -m http.server --directory site"

check: .venv/dev
	$(BIN)/ruff check src tests examples benchmarks website
	$(BIN)/ruff format --check src tests examples benchmarks website
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
	@touch $@ .venv/base .venv/docs

.venv/docs: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing (torch is large; this takes a few minutes the first time)"
	$(PIP) install --constraint constraints.txt --editable '.[docs]'
	@touch $@ .venv/base

clean:
	rm -rf .venv runs dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
