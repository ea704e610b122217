# What people and CI call. Portable make; paths are relative, so the clone may lie anywhere.

# The Python that makes .venv; empty: the first of python3.13, 3.12, 3.11, python3 that is new enough.
PYTHON ?=
# How long `make soak` runs: each of its tests gets an equal share.
MINUTES ?= 10
# How many processes `make test` spreads the tests over. Each has servers, and a Spark, of its own.
WORKERS ?= 2
# What `make bench` measures: WHAT="kafka postgres"; `python -m bench --help` lists them.
WHAT ?= peers
# For `make demo` and `make bench`: ARGS="--rate 5000", ARGS="--engines evertide,flink".
ARGS ?=

VENV = .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: help setup check test bench bench-full demo screenshots soak docs reference audit lock clean
.NOTPARALLEL:

help: ## Say what can be made
	@echo "make TARGET [PYTHON=python3.x] [MINUTES=10] [WORKERS=2] [WHAT=peers] [ARGS=...]"
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

check: setup ## Check format, lint, types, the order of imports, and what we depend on
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/audit.py

audit: setup ## Look up advisories, licences and pins of what we depend on
	$(BIN)/python tools/audit.py

test: setup ## Run the tests
	@sh tools/preflight.sh java
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

bench: setup ## Measure WHAT: beside Flink, Pathway, Spark and DuckDB, in ten minutes, into bench/report
	@sh tools/preflight.sh java
	$(BIN)/python -m bench $(WHAT) $(ARGS)

bench-full: setup ## Measure everything, with histories of up to 100 million events; takes hours
	@sh tools/preflight.sh java
	$(BIN)/python -m bench --full $(ARGS)

demo: setup ## Run a live demo: an auction house and its views; end it with Ctrl-C
	@sh tools/preflight.sh java
	$(BIN)/evertide demo $(ARGS)

screenshots: setup ## Take the pictures of docs/console.md, of the demo; needs node
	@sh tools/preflight.sh java
	$(BIN)/python -m tools.screenshots $(ARGS)

soak: setup ## Run the soak tests for MINUTES in all; a failure prints its seed
	@sh tools/preflight.sh java
	EVERTIDE_SOAK_MINUTES="$(MINUTES)" $(BIN)/python -m pytest -m soak tests

docs: setup ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

reference: setup ## Write the generated tables of docs/errors.md and docs/sql.md anew
	@sh tools/preflight.sh java
	$(BIN)/python -m tests.docs.reference --write

lock: ## Resolve pyproject.toml into requirements.lock anew (needs uv)
	@command -v uv >/dev/null || { echo "evertide: uv is needed to resolve and was not found; install it with 'pipx install uv' or 'brew install uv'." >&2; exit 1; }
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --all-extras --group dev pyproject.toml -o requirements.lock

clean: ## Remove .venv, caches and whatever else was made here; never a storage
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	rm -rf spark-warehouse metastore_db derby.log .coverage site bench/report
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
