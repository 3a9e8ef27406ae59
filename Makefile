# `make demo` and `make test` need only Python 3.11 or newer, make and pip: everything else lands in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow attack test-browser lint format docs bench clean

demo: .venv/ready
	$(BIN)/lca sweep demo --out runs/demo

test: .venv/installed
	$(BIN)/python -m pytest -m "not slow and not attack" -n 2 --dist worksteal

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

# what the files of strangers can do, at length, with counts
attack: .venv/installed
	$(BIN)/python -m pytest tests/hostile

# Debian's Chromium, if there is none; `make test` skips these tests without it
test-browser: .venv/installed
	command -v chromium >/dev/null || { sudo=$$(test $$(id -u) = 0 || echo sudo); \
	$$sudo apt-get update && $$sudo apt-get install --yes --no-install-recommends chromium; }
	$(BIN)/python -m pytest -m browser

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# the site, in site/
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: .venv/installed
	$(BIN)/python benchmarks/run.py $(ARGS)

# everything that make made; results in runs/ stay
clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	touch $@

.venv/installed: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.venv/docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@
