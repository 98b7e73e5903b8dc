# Everything installs itself into .venv; every command can be repeated.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Skewless needs Python 3.11: install it, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (a minute, once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

java:
	@command -v java >/dev/null || { echo "Spark needs Java 17: install it, for instance with apt install openjdk-17-jre-headless"; exit 1; }

demo: $(READY) java ## a skewed group-by on real Spark, plain and with Skewless, task by task
	@$(BIN)/python -m examples.words

stream: $(READY) java ## windows over a stream whose hot keys change, batch by batch
	@$(BIN)/python -m examples.drifting

rank: $(READY) ## rank all partitioners on the words of the Python standard library
	@$(BIN)/skewless simulate --stream words --workers 16

test: $(READY) java ## run the checks and all tests, compiled and not compiled
	@$(MAKE) --no-print-directory check
	@echo "Kernels as plain Python ..."
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 -m "not compiled" tests/test_laws.py tests/test_oracles.py tests/test_kernels.py tests/test_accumulator.py
	@echo "Everything, compiled ..."
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(READY) ## style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports

bench: $(READY) java ## speed and quality against peers in the same run (LONG=1: also 10^9 tuples over 10^4 workers)
	@$(BIN)/python -m benchmarks.accumulator
	@$(BIN)/python -m benchmarks.milp
	@$(BIN)/python -m benchmarks.planning
	@$(BIN)/python -m benchmarks.routing $(if $(LONG),--long)
	@$(BIN)/python -m benchmarks.spark_groups
	@$(BIN)/python -m benchmarks.spark_joins
	@$(BIN)/python -m benchmarks.spark_regret
	@$(BIN)/python -m benchmarks.spark_routing
	@$(BIN)/python -m benchmarks.spark_tasks
	@$(BIN)/python -m benchmarks.streams
	@$(BIN)/python -m benchmarks.store
	@$(BIN)/python -m benchmarks.state
	@$(BIN)/python -m benchmarks.dr

kills: $(READY) java ## kill 20 executors of batches, and streams 70 times; nothing may be lost or doubled (long)
	@$(BIN)/python -m benchmarks.spark_kills
	@$(BIN)/python -m benchmarks.stream_kills
	@$(BIN)/python -m benchmarks.state_kills

reproduce: $(READY) ## the papers' figures and tables (minutes)
	@$(BIN)/python -m lab.pkg

pictures: $(READY) ## draw every partitioner under drift, and write docs/partitioners.md again
	@$(BIN)/python -m lab.pictures

scaling: $(READY) java ## measure the gain by skew, workers and cost per row, and write docs/spark.md (15 minutes, on a quiet machine)
	@$(BIN)/python -m benchmarks.spark_scaling

docs: $(READY) ## write the generated parts of README.md again
	@$(BIN)/python -m benchmarks.readme

clean: ## remove what the other commands made
	@rm -rf $(VENV) out spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help java demo stream rank test check bench kills reproduce pictures scaling docs clean
