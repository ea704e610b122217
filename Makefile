# The commands of developers and of CI. Portable make; all paths are relative.

# The Python of .venv. If empty: the first of python3.13, 3.12, 3.11 and python3 that is new enough.
PYTHON ?=
# The duration of `make soak`, divided equally among its tests.
MINUTES ?= 10
# The number of processes that `make test` runs tests in. Each starts its own servers and its own Spark.
WORKERS ?= 2
# The benchmarks that `make bench` runs, as in WHAT="kafka postgres"; `python -m bench --help` lists them.
WHAT ?= peers
# Options of `make demo`, `make bench` and `make screenshots`, as in ARGS="--rate 5000".
ARGS ?=

VENV = .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
# Also what tests, checks, benchmarks and documentation need.
INSTALLED_DEV = $(VENV)/.installed-dev
PIP = $(BIN)/python -m pip --disable-pip-version-check
COMPILE = uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --all-extras pyproject.toml

.PHONY: help setup develop check test bench bench-full demo screenshots soak docs reference audit lock clean
.NOTPARALLEL:

help: ## List the targets
	@echo "make TARGET [PYTHON=python3.x] [MINUTES=10] [WORKERS=2] [WHAT=peers] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## Create .venv with what Evertide needs, if it is missing or out of date

develop: $(INSTALLED_DEV) ## Add the tools of the targets below to .venv; they do that themselves

# Created only if it is missing. To use another Python: make clean setup PYTHON=...
$(BIN)/python:
	@sh tools/preflight.sh java
	python=$$(PYTHON="$(PYTHON)" sh tools/preflight.sh python) && { "$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; }

$(INSTALLED): $(BIN)/python requirements.lock pyproject.toml
	@echo "installing $$(grep -c '==' requirements.lock) packages, about 700 MB to download: one to two minutes"
	@if [ -t 1 ]; then quiet=; else quiet=-q; fi; $(PIP) install $$quiet --require-hashes -r requirements.lock
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $(INSTALLED)

# Without dependencies, as these are in requirements.lock.
$(INSTALLED_DEV): $(INSTALLED) requirements-dev.lock
	@echo "installing $$(grep -c '==' requirements-dev.lock) packages for development, about 140 MB to download"
	@if [ -t 1 ]; then quiet=; else quiet=-q; fi; $(PIP) install $$quiet --no-deps --require-hashes -r requirements-dev.lock
	@touch $(INSTALLED_DEV)

check: develop ## Check format, lint, types, import contracts and dependencies
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/audit.py

audit: develop ## Check the advisories, licences and pins of all dependencies
	$(BIN)/python tools/audit.py

test: develop ## Run the tests
	@sh tools/preflight.sh java
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

bench: develop ## Run the benchmarks WHAT; by default a comparison with other engines, in ten minutes
	@sh tools/preflight.sh java
	$(BIN)/python -m bench $(WHAT) $(ARGS)

bench-full: develop ## Run all benchmarks, with histories of up to 100 million events; takes hours
	@sh tools/preflight.sh java
	$(BIN)/python -m bench --full $(ARGS)

demo: setup ## Run the demo, an auction house and its views, until Ctrl-C
	@sh tools/preflight.sh java
	$(BIN)/evertide demo $(ARGS)

screenshots: develop ## Take the screenshots of docs/console.md from the demo; needs node
	@sh tools/preflight.sh java
	$(BIN)/python -m tools.screenshots $(ARGS)

soak: develop ## Run the soak tests for MINUTES in total; a failure prints its seed
	@sh tools/preflight.sh java
	EVERTIDE_SOAK_MINUTES="$(MINUTES)" $(BIN)/python -m pytest -m soak tests

docs: develop ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html"

reference: develop ## Regenerate the tables of docs/errors.md and docs/sql.md
	@sh tools/preflight.sh java
	$(BIN)/python -m tests.docs.reference --write

lock: ## Pin the dependencies of pyproject.toml in requirements.lock and requirements-dev.lock; needs uv
	@command -v uv >/dev/null || { echo "evertide: uv is needed to pin dependencies, and was not found; install it with 'pipx install uv' or 'brew install uv'." >&2; exit 1; }
	$(COMPILE) --group build -o requirements.lock
	cat requirements.lock requirements-dev.lock > .all.lock
	$(COMPILE) --group build --group dev -c requirements.lock -o .all.lock
	awk 'FNR == NR { if (/^[A-Za-z0-9]/) known[$$0]; next } /^[A-Za-z0-9]/ { is_new = !($$0 in known) } is_new' requirements.lock .all.lock > requirements-dev.lock
	rm .all.lock

clean: ## Remove .venv, caches and build output; never a storage
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	rm -rf spark-warehouse metastore_db derby.log .coverage site bench/report
	find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
