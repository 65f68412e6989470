# Every target sets up what it needs in .venv and may be repeated at any time.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
CHROMIUMS := chromium chromium-browser google-chrome
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help env demo test test-browser lab bench sweep picture clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

env: $(READY) ## install everything into .venv (minutes the first time, nothing to do afterwards)

demo: env ## predict and run the strategies on 4 real processes: out/report.html, out/summary.csv
	$(BIN)/pdlab compare --ranks 4 --microbatches 8 --mode paced --out out

test: env ## lint, types, tests and all notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pdlab
	$(BIN)/python -m pytest -q
	$(if $(NOTEBOOKS),$(BIN)/python -m pytest -q --nbmake --nbmake-timeout=90 $(NOTEBOOKS))

test-browser: env ## open the tour in a Chromium, use it, and write screenshots to out/screens
	@for name in $(CHROMIUMS); do command -v $$name >/dev/null && exit 0; done; \
	  echo "pdlab: no Chromium found: install one (on Debian and Ubuntu: apt install chromium)" >&2; exit 1
	@$(BIN)/python -c 'import playwright' 2>/dev/null || \
	  $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -q tests/browser

lab: env ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

bench: env ## print the ratios and errors that this machine reaches
	$(BIN)/python benchmarks/run.py

sweep: env ## run all pipeline schedules on 3584 shapes, where the tests run a sample (minutes)
	$(BIN)/python benchmarks/sweep.py

picture: env ## redraw the pictures that the README shows
	for what in schedules bubbles versions convergence layout tradeoff; do $(BIN)/pdlab picture $$what --out docs/$$what.png || exit 1; done

clean: ## remove results, builds and caches, but keep .venv
	rm -rf out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# A .venv that lacks pip (an install cut short) or has an old Python is made anew. torch goes first and alone: of its many
# builds, the pinned one must be chosen before another package asks for any.
$(READY): pyproject.toml constraints.txt
	@$(BIN)/python -c 'import pip; $(NEW_ENOUGH)' 2>/dev/null || { \
	  fail() { echo "pdlab: $$1" >&2; exit 1; }; \
	  command -v $(PYTHON) >/dev/null || fail "$(PYTHON) not found: install Python 3.11 or newer, or name it: make env PYTHON=/path/to/python"; \
	  $(PYTHON) -c '$(NEW_ENOUGH)' || fail "$(PYTHON) is $$($(PYTHON) -V 2>&1), 3.11 or newer is needed: make env PYTHON=python3.11"; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || fail "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"; \
	  $(PYTHON) -m venv --clear .venv; }
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
