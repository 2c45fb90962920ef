# Two commands matter: `make run` (see it work) and `make test` (know that it works).
# Needs Python 3.11 or newer with venv; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp

.DEFAULT_GOAL := help
.PHONY: help run test lint models doctests format bench results notebooks clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /  make \1|/p' Makefile | column -t -s '|'

# One stamp file per kind of install, so that a second call does nothing.
$(STAMP)-venv:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("polykv needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip setuptools
	@touch $@

$(STAMP)-run: $(STAMP)-venv setup.cfg pyproject.toml
	@echo "installing polykv into $(VENV)"
	$(BIN)/python -m pip install -qq -e .
	@touch $@

$(STAMP)-dev: $(STAMP)-venv setup.cfg pyproject.toml
	@echo "installing polykv and the development tools into $(VENV)"
	$(BIN)/python -m pip install -qq -e '.[dev]'
	@touch $@ $(STAMP)-run

run: $(STAMP)-run  ## three agents answer three questions about one document
	$(BIN)/polykv pull smollm2
	$(BIN)/polykv ask --kv q8_0/turbo3

# Two processes share the tests, most of which keep one core busy; what keeps one core busy before them is done side by
# side too. (The tables that the equivalence suite prints need one: `pytest tests/test_equivalence.py`.)
test: $(STAMP)-dev  ## everything: lint, types, doctests, tests
	$(MAKE) -j2 lint models doctests
	$(BIN)/python -m pytest tests -n 2 --dist worksteal

lint: $(STAMP)-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests that need gemma3 skip with the reason when it cannot be brought here; nothing else may be missing.
models: $(STAMP)-run  ## fetch the models that tests use
	$(BIN)/polykv pull smollm2
	-$(BIN)/polykv pull gemma3

doctests: $(STAMP)-dev  ## the examples in docstrings
	$(BIN)/python -m pytest --doctest-modules polykv

format: $(STAMP)-dev  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)-dev  ## speed on this CPU, against llama.cpp when llama-cpp-python is installed
	$(BIN)/polykv pull smollm2
	$(BIN)/python benchmarks/cpu.py

results: $(STAMP)-run  ## the tables of docs/RESULTS.md that are not measured yet (hours)
	$(BIN)/polykv pull smollm2
	$(BIN)/polykv pull gemma3
	$(BIN)/python benchmarks/results.py

notebooks: $(STAMP)-dev  ## run all notebooks in place
	$(BIN)/polykv pull smollm2
	$(BIN)/jupyter-execute --inplace notebooks/*.ipynb

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
