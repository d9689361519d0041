PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/.ready

# The theme's notice about its successor would otherwise stand in every log.
export NO_MKDOCS_2_WARNING := 1

.PHONY: setup demo test test-slow check bench docs docs-serve

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,net,report,r,fda,dev]'
	touch $@

demo: setup
	$(BIN)/colonnade demo

test: setup
	$(BIN)/pytest -n $(WORKERS) -m "not slow and not gpu" --doctest-modules src tests

test-slow: setup
	$(BIN)/pytest -n $(WORKERS) -m "slow and not gpu" --timeout 1800 tests

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet

bench: setup
	$(BIN)/python -m benchmarks --all

docs: setup
	$(BIN)/mkdocs build --strict

docs-serve: setup
	$(BIN)/mkdocs serve
