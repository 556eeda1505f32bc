# `make demo` and `make test` set up what they need; see CONTRIBUTING.md.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Any pip requirement, or a wheel's path. Installed first and by itself: left to pip's choice, another
# package may bring a torch of several gigabytes.
TORCH ?= torch==2.13.0
# Exact versions of everything else; they are for Python 3.11. Empty: the newest that fit.
CONSTRAINTS ?= constraints.txt
# Processes that run tests.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
INSTALL := $(PIP) install $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
DIGITS := demo/digits

export PYTHONUNBUFFERED := 1

.PHONY: setup setup-run demo demo-train test lint types pytest format bench clean

setup: $(VENV)/.setup-test

setup-run: $(VENV)/.setup-run

$(VENV)/.setup-torch:
	$(PYTHON) -m venv $(VENV)
	@echo "Installing $(TORCH) into $(VENV)" >&2
	$(PIP) install "$(TORCH)"
	@touch $@

$(VENV)/.setup-run: $(VENV)/.setup-torch pyproject.toml $(CONSTRAINTS)
	@echo "Installing pteron into $(VENV)" >&2
	$(INSTALL) --editable ".[images,safetensors]"
	@touch $@

$(VENV)/.setup-test: $(VENV)/.setup-run
	@echo "Installing what the tests need into $(VENV)" >&2
	$(INSTALL) --editable ".[test]"
	@touch $@

demo: setup-run
	PATH="$(CURDIR)/$(BIN):$$PATH" bash demo/run.sh

# Trains and exports the demo's program again; the result is in the repository.
demo-train: setup
	$(BIN)/python demo/train_digits.py

test: lint types pytest

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

pytest: setup
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup
	PYTHONPATH=tests $(BIN)/python -m bench

clean:
	rm -rf .export_cache .mypy_cache .pytest_cache .ruff_cache build dist
