# Headrace's commands. Each works from a bare clone: all it needs is Python 3.11 or later with pip (and, for the
# tests on real Kafka, JDK 17 and Maven). Everything is installed into .venv and nowhere else.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
# By file, so that the tests of one file share their broker. (Not loadgroup: under pytest 9.2, pytest-xdist 3.8 ignores
# groups in silence.)
PARALLEL := -n $(WORKERS) --dist loadfile

# One environment, two depths: `demo` is what a user needs, `dev` adds the checks and holds all of `demo`.
# A stamp is newer than what it was made from, so nothing is installed again until one of those changes.
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
INPUTS := pyproject.toml constraints.txt

.PHONY: help demo test check lint types layers guards unit bench format constraints clean

help: ## Say what there is
	@echo "make TARGET"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  %-14s%s\n' "$$name" "$$text"; done
	@echo
	@echo "  PYTHON=python3.12 make demo     another interpreter"
	@echo "  ARGS='-k ledger' make test      options for pytest, the benchmark or the demo"

demo: $(DEMO) ## Classify files of this machine with a real model, through Kafka
	@$(BIN)/python -m headrace demo $(ARGS)

test: $(DEV) ## Run every test, those on real Kafka included
	@echo "== tests (real Kafka is fetched on the first run)"
	@$(PYTEST) $(PARALLEL) $(ARGS)

check: lint types layers guards unit ## Format, lint, types, layers, guards, unit tests

lint: $(DEV) ## Formatting and lint only
	@echo "== format and lint"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(DEV) ## Types only
	@echo "== types"
	@$(BIN)/mypy

layers: $(DEV) ## Import layers only
	@echo "== layers"
	@$(BIN)/lint-imports

guards: $(DEV) ## Guards of the layout, the package and the sources only
	@echo "== guards"
	@$(PYTEST) -q tests/guards $(ARGS)

unit: $(DEV) ## Unit tests only
	@echo "== unit tests"
	@$(PYTEST) -q $(PARALLEL) tests/unit $(ARGS)

bench: $(DEV) ## Run one benchmark: make bench BENCH=hot_path
	@if [ -z "$(BENCH)" ] || [ ! -f "benchmarks/$(BENCH).py" ]; then \
		echo "make bench needs BENCH=name, one of:"; \
		find benchmarks -maxdepth 1 -name '[a-z]*.py' -printf '  %f\n' | sed 's/\.py$$//' | sort; \
		exit 2; \
	fi
	@$(BIN)/python -m benchmarks.$(BENCH) $(ARGS)

format: $(DEV) ## Rewrite the sources in the house format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

# Resolved from nothing in an environment of its own, so that what happens to be in .venv has no say.
constraints: ## Pin the newest allowed version of everything in constraints.txt
	@echo "== resolving in a fresh environment (a few minutes)"
	@work="$$(mktemp -d)"; trap 'rm -rf "$$work"' EXIT; \
	$(call make_venv,$$work/venv); \
	"$$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet '.[dev]'; \
	{ echo "# Exact versions of everything in the dev extra. Made by 'make constraints'; do not edit."; \
	  "$$work/venv/bin/python" -m pip --disable-pip-version-check freeze --exclude headrace; } >"$$work/constraints.txt"; \
	if grep -vE '^(#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+)$$' "$$work/constraints.txt"; then \
		echo "these are not plain 'name==version' pins: constraints.txt is left as it was" >&2; exit 1; \
	fi; \
	cp "$$work/constraints.txt" constraints.txt; \
	echo "constraints.txt: $$(grep -c == constraints.txt) packages"

clean: ## Remove everything made here: environment, caches, builds
	@rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean"

# Debian's python3 comes without ensurepip; where pip itself is there, it can install itself into the environment.
define make_venv
$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Headrace needs Python 3.11 or later, this is " + sys.version + ": set PYTHON")'; \
if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(1); \
else $(PYTHON) -m venv --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; fi
endef

$(BIN)/python:
	@echo "== making $(VENV) with $$($(PYTHON) --version)"
	@$(call make_venv,$(VENV))

$(DEMO): $(INPUTS) | $(BIN)/python
	@echo "== installing Headrace and its demo (about a minute)"
	@$(INSTALL) --editable '.[demo]'
	@touch $@

$(DEV): $(INPUTS) | $(BIN)/python
	@echo "== installing Headrace and its checks (about two minutes)"
	@$(INSTALL) --editable '.[dev]'
	@touch $(DEMO) $@
