# Everything from a bare machine with Python 3.11 or newer; `make help` lists the targets.
# Each venv step leaves a stamp, so that a second call starts at once.

PYTHON ?= python3
VENV   ?= .venv
DATA   ?= ./meguri-data
INPUT  ?= examples/sqlite-docs.jsonl.zst
ARGS   ?=
WORKERS ?= auto
SECONDS ?= 180

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
UV     ?= $(or $(wildcard $(BIN)/uv),uv)
LOCK   := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
          --custom-compile-command "make lock" pyproject.toml requirements/build.in

.DEFAULT_GOAL := help
.PHONY: help run test test-chaos test-compose lint format lock schemas bench-run bench-seen bench-store bench-kafka clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

run: $(VENV)/.run ## run the pipeline over the example, into $(DATA)
	$(BIN)/meguri run $(INPUT) --data $(DATA) $(ARGS)

test: $(VENV)/.test ## run the tests; ARGS="-k name" selects, WORKERS=0 runs them in one process
	$(BIN)/python -m pytest --numprocesses $(WORKERS) $(ARGS)

test-compose: $(VENV)/.test ## bring the fleet up with Docker Compose, disturb it, and compare
	MEGURI_TEST_COMPOSE=1 $(BIN)/python -m pytest -s --numprocesses 0 tests/compose $(ARGS)

test-chaos: $(VENV)/.test ## strike a fleet on three brokers with seeded faults, and restart it in turn; SECONDS=180
	MEGURI_TEST_CHAOS_SECONDS=$(SECONDS) $(BIN)/python -m pytest --numprocesses 0 tests/kafka/test_chaos.py tests/kafka/test_rolling_restart.py $(ARGS)

lint: $(VENV)/.dev ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## put the sources into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## resolve the locks anew (needs uv)
	@command -v $(UV) >/dev/null || { echo "uv is missing: $(PYTHON) -m pip install uv" >&2; exit 1; }
	$(LOCK) --output-file requirements/run.lock $(ARGS)
	$(LOCK) --extra kafka --extra monitor --output-file requirements/fleet.lock $(ARGS)
	$(LOCK) --group pyproject.toml:test --output-file requirements/test.lock $(ARGS)
	$(LOCK) --group pyproject.toml:dev --output-file requirements/dev.lock $(ARGS)
	$(LOCK) --group pyproject.toml:bench --constraint requirements/dev.lock --output-file requirements/bench.lock $(ARGS)

schemas: $(VENV)/.run ## write docs/schemas from the typed events, and the partition rule's test vectors
	$(BIN)/python -m meguri_common.events.schemas docs/schemas
	$(BIN)/python -m meguri_common.sdk.vectors docs/fetchers.md

bench-run: $(VENV)/.test ## measure `meguri run`
	$(BIN)/python bench/run.py $(ARGS)

bench-seen: $(VENV)/.bench ## measure the seen-set and the filters beside others
	$(BIN)/python bench/seen.py $(ARGS)

bench-store: $(VENV)/.test ## measure the store: sizes, build, compaction, reads, stalls
	$(BIN)/python bench/store.py $(ARGS)

bench-kafka: $(VENV)/.test ## measure the fleet on Kafka; ARGS="--chaos 30m --seed 7" strikes it instead
	$(BIN)/python bench/kafka.py $(ARGS)

clean: ## remove the venv and what tools have left; data folders stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find libs meguri services tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "this Python can't make a venv with pip: install the package python3-venv (Debian, Ubuntu:" \
	         "apt-get install python3-venv), or name another one with PYTHON=/path/to/python3.x" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run $(VENV)/.test $(VENV)/.dev $(VENV)/.bench: $(VENV)/.%: requirements/%.lock pyproject.toml | $(BIN)/python
	$(PIP) install --require-hashes --requirement $<
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
