PYTHON ?= python3
# One more than the cores of the machine that CI has: tests wait for sockets, for processes and for one another.
WORKERS ?= 3
BIN := .venv/bin
READY := .venv/.ready

# The theme's notice about its successor would otherwise stand in every log.
export NO_MKDOCS_2_WARNING := 1
# Tests start hundreds of processes, each of which would otherwise compile the library again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup psi-fast demo test test-slow mutants check bench gate docs docs-serve

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,net,phone,paillier,report,shap,r,fda,ray,dask,mlflow,tensorboard,dev]'
	touch $@

# An environment of its own for the engine rr22, whose library wants other versions than we do. It needs Python 3.11.
psi-fast: .venv-psi-fast/.ready
	@echo "export COLONNADE_PSI_FAST=$(CURDIR)/.venv-psi-fast/bin/python"

.venv-psi-fast/.ready:
	test -x .venv-psi-fast/bin/python || $(PYTHON) -m venv .venv-psi-fast
	.venv-psi-fast/bin/python -m pip install --quiet --no-deps spu==0.9.5
	touch $@

demo: setup
	$(BIN)/colonnade demo

# The first screen of the demonstration's report, as a browser shows it.
docs/images/report.png: demo
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,800 \
		--screenshot=$@ $$(ls -d runs/demo-????????)/report.html

# Each worker begins with tests that stand together, so that what they share is made once, and takes over from others.
SHARING := -n $(WORKERS) --dist worksteal

test: setup
	$(BIN)/pytest $(SHARING) -m "not slow and not gpu" --doctest-modules src tests

test-slow: setup
	$(BIN)/pytest $(SHARING) -m "slow and not gpu" --timeout 1800 tests
	$(MAKE) gate

# Wide enough for a busy machine: what ends with 1 here has become several times slower.
gate: setup
	$(BIN)/python -m benchmarks codec channel import_time encrypted functional --gate 3

# One fault at a time in a copy of the source, which the tests named beside the fault must notice.
mutants: setup
	$(BIN)/python tests/mutants -n $(WORKERS)

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
