# What people and CI call. Portable make; paths are relative, so the clone may lie anywhere.

# The Python that makes .venv; empty: the first of python3.13, 3.12, 3.11, python3 that is new enough.
PYTHON ?=
# How long `make soak` runs.
MINUTES ?= 10
# How many processes `make test` spreads the tests over. Each has servers, and a Spark, of its own.
WORKERS ?= 2
# For `make demo`: ARGS="--rate 5000".
ARGS ?=

VENV = .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: help setup check test bench bench-full demo soak lock clean
.NOTPARALLEL:

help: ## Say what can be made
	@echo "make TARGET [PYTHON=python3.x] [MINUTES=10] [WORKERS=2] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## Make .venv as requirements.lock says, if it is not so yet

# Made only if it is missing or its Python has gone. To change the Python: make clean setup PYTHON=...
$(BIN)/python:
	@sh tools/preflight.sh java
	python=$$(PYTHON="$(PYTHON)" sh tools/preflight.sh python) && { "$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; }

$(INSTALLED): $(BIN)/python requirements.lock pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(INSTALLED)

check: setup ## Check format, lint, types and the order of imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup ## Run the tests
	@sh tools/preflight.sh java
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

bench: setup ## Measure
	@sh tools/preflight.sh java
	$(BIN)/python -m bench

bench-full: setup ## Measure views with histories of 100 million events, too; takes hours
	@sh tools/preflight.sh java
	$(BIN)/python -m bench refresh --full

demo: setup ## Run a live demo: an auction house and its views; end it with Ctrl-C
	@sh tools/preflight.sh java
	$(BIN)/evertide demo $(ARGS)

soak: setup ## Run the soak test for MINUTES
	@sh tools/preflight.sh java
	EVERTIDE_SOAK_MINUTES="$(MINUTES)" $(BIN)/python -m pytest -m soak tests/soak tests/flow

lock: ## Resolve pyproject.toml into requirements.lock anew (needs uv)
	@command -v uv >/dev/null || { echo "evertide: uv is needed to resolve and was not found; install it with 'pipx install uv' or 'brew install uv'." >&2; exit 1; }
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --all-extras --group dev pyproject.toml -o requirements.lock

clean: ## Remove .venv, caches and whatever else was made here; never a storage
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	rm -rf spark-warehouse metastore_db derby.log .coverage
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
