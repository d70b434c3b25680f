# Every target sets up what it needs: a virtual environment in .venv, reused while it is current.
#   make test                                  the whole suite
#   make test ARGS="-k water_filling"          part of it
#   make distclean test PYTHON=python3.12      all over again, with another interpreter

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready
HINT = Gavel needs Python 3.11 or newer: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12
# what there is of our packages; later ones are checked from the day they appear
TYPED := $(wildcard planner policies protos scheduler worker_agent gavel traces benchmarks examples docs)

.DEFAULT_GOAL := help
.PHONY: help setup demo plans day test parts lint format cover protos bench bench-record bench-compare results docs-plots site clean distclean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##/\1 /p' $(MAKEFILE_LIST) | awk '{name=$$1; $$1=""; printf "  make %-14s%s\n", name, $$0}'

setup: $(STAMP)  ## make .venv and install the project in it, if not done yet

# Anything that changes what ought to be installed makes the stamp stale; pip then only adds what differs.
$(STAMP): setup.cfg pyproject.toml constraints.txt
	@$(PY) -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    command -v $(PYTHON) >/dev/null || { echo "error: there is no '$(PYTHON)' here; $(HINT)" >&2; exit 1; }; \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	        echo "error: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); $(HINT)" >&2; exit 1; }; \
	    echo "setup: making $(VENV) with $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv --clear $(VENV) || { \
	        echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; }
	@echo "setup: installing Gavel and its development tools (a minute or two the first time)"
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[server,web,plots,frames,dev,train,hooks,docs]'
	@touch $@
	@echo "setup: done"

demo: $(STAMP)  ## a real scheduler and four agents on this machine train ten small models
	@$(PY) -m examples.live_demo $(ARGS)

plans: $(STAMP)  ## a model too large for one GPU trains by one plan after the other, while GPUs come and go
	@$(PY) -m examples.plans_demo $(ARGS)

day: $(STAMP)  ## a simulated day of a mixed cluster under three policies: a table, and pictures in out/
	@$(PY) -m examples.day_demo $(ARGS)

test: $(STAMP)  ## the whole test suite; ARGS goes to pytest
	@$(PY) -m pytest -n auto $(ARGS)

parts: $(STAMP)  ## install what some tests start: Prometheus, Alertmanager, Chromium (Debian packages), Playwright
	@$(PY) -m tests.support.parts

lint: $(STAMP)  ## ruff, mypy, the import contract and the habits in tests/test_tidy.py
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy $(TYPED)
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) -m pytest -q tests/test_tidy.py

format: $(STAMP)  ## let ruff sort imports, mend what it safely can, and lay out the code
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

cover: $(STAMP)  ## the suite with line coverage; fails below 95 % of policies
	@$(PY) -m pytest -n auto --cov --cov-report= $(ARGS)
	@$(PY) -m coverage report
	@$(PY) -m coverage report --include='policies/*' --fail-under=95 > /dev/null || { \
	    echo "error: less than 95 % of policies/ is covered" >&2; exit 1; }

protos: $(STAMP)  ## compile protos/gavel/v1/*.proto again (the stubs are part of the repository)
	@$(PY) -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. protos/gavel/v1/*.proto

bench: $(STAMP)  ## how long each policy takes, by number of jobs
	@$(PY) -m benchmarks.policies $(ARGS)

bench-record: $(STAMP)  ## measure the main operations and append them to benchmarks/history.csv (3 minutes)
	@$(PY) -m benchmarks.record $(ARGS)

bench-compare: $(STAMP)  ## measure them and compare with the last record; fails when one got dearer
	@$(PY) -m benchmarks.record --compare $(ARGS)

results: $(STAMP)  ## the published simulations again, beside ours: docs/results.md (an hour on two cores), and docs/plans.md
	@$(PY) -m benchmarks.results $(ARGS)
	@$(PY) -m benchmarks.mixed_gangs
	@$(PY) -m benchmarks.plans

docs-plots: $(STAMP)  ## draw the plots of docs/policies.md and of the README again
	@$(PY) -m docs.plots
	@$(PY) -m docs.plots_of_runs

site: $(STAMP)  ## build the documentation site in out/site, strictly: any broken link or orphan page fails
	@$(PY) -m sphinx -W --keep-going -q -b html docs out/site
	@echo "site: out/site/index.html"

clean:  ## remove caches, build outputs and out/; .venv stays
	@rm -rf build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage* htmlcov
	@find . -name $(VENV) -prune -o -name __pycache__ -type d -print | xargs rm -rf

distclean: clean  ## clean, and .venv too
	@rm -rf $(VENV)
