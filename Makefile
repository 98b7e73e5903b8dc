# Every command sets up what it needs in .venv, from requirements.lock, and can be repeated.
PYTHON ?= $(or $(firstword $(foreach minor,11 12 13,$(shell command -v python3.$(minor)))),python3.11)
OLDEST := 4.1
VERSION ?= $(OLDEST)
SMOKE ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOG := $(VENV)/setup.log
SPARK_VENV := .venv-spark-$(VERSION)
SPARK_LOCK := requirements-spark.lock
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
PIP := python -m pip install --disable-pip-version-check --no-input
KERNEL_TESTS := tests/partitioners/test_laws.py tests/partitioners/test_oracles.py tests/kernels tests/ingest/test_accumulator.py
FAILED = { tail -n 20 $(LOG); echo "Set-up failed; the whole log is in $(LOG)"; exit 1; }

.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Skewless needs Python 3.11 or newer, and there is no $(PYTHON). Install it, or run: make PYTHON=/path/to/python"; exit 1; }
	@echo "Setting up $(VENV) (once, a few minutes)"
	@mkdir -p $(VENV)
	@echo "  1/3 virtual environment with $$($(PYTHON) --version)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) >$(LOG) 2>&1 || $(FAILED)
	@echo "  2/3 $$(grep -c == requirements.lock) packages of requirements.lock; pyspark alone is 450 MB"
	@$(BIN)/$(PIP) --requirement requirements.lock >$(LOG) 2>&1 || $(FAILED)
	@echo "  3/3 skewless itself"
	@$(BIN)/$(PIP) --no-deps --no-build-isolation --editable . >>$(LOG) 2>&1 || $(FAILED)
	@touch $@

java:
	@java=$$("$(JAVA)" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -n 1); \
	test "$${java:-0}" -ge 17 || { echo "Spark needs Java 17 or 21, but $(JAVA) is $${java:+version }$${java:-not there}. Install one, for instance with: apt install openjdk-17-jre-headless"; exit 1; }

demo: java $(READY) ## one skewed job three ways, with the work of every task; writes out/demo.html
	@mkdir -p out
	@$(BIN)/python -m examples.demo $(PICTURE) 2>out/demo.log || { tail -n 20 out/demo.log; echo "The demo failed; the whole log is in out/demo.log"; exit 1; }

stream: java $(READY) ## windows over a stream whose hot keys change, batch by batch
	@mkdir -p out
	@$(BIN)/python -m examples.drifting 2>out/stream.log || { tail -n 20 out/stream.log; echo "The stream failed; the whole log is in out/stream.log"; exit 1; }

rank: $(READY) ## rank all partitioners on the words of the Python standard library
	@$(BIN)/skewless simulate --stream words --workers 16

test: java $(READY) ## the checks and all tests, with compiled kernels and with plain Python ones
	@$(MAKE) --no-print-directory check
	@echo "Kernels as plain Python ..."
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 -m "not compiled" $(KERNEL_TESTS)
	@echo "Everything, compiled ..."
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

$(SPARK_VENV)/.ready: $(READY) $(SPARK_LOCK)
	@grep -qx 'pyspark==$(VERSION)\.[0-9]*' $(SPARK_LOCK) || { echo "There is no pyspark $(VERSION) in $(SPARK_LOCK): give VERSION as one of" $$(sed -nE 's/^pyspark==([0-9]+\.[0-9]+).*/\1/p' $(SPARK_LOCK)); exit 1; }
	@echo "Setting up $(SPARK_VENV) with pyspark $(VERSION); all other packages are those of $(VENV)"
	@test -x $(SPARK_VENV)/bin/pip || $(PYTHON) -m venv $(SPARK_VENV)
	@$(SPARK_VENV)/bin/$(PIP) --no-deps $$(grep -x 'pyspark==$(VERSION)\.[0-9]*' $(SPARK_LOCK)) >$(SPARK_VENV)/setup.log 2>&1 || { tail -n 20 $(SPARK_VENV)/setup.log; echo "Set-up failed; the whole log is in $(SPARK_VENV)/setup.log"; exit 1; }
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' >$$(echo $(SPARK_VENV)/lib/python*/site-packages)/others.pth
	@touch $@

test-spark: java $(SPARK_VENV)/.ready ## the Spark tests on another pyspark: VERSION=4.1 (SMOKE=1: only the short ones)
	@$(SPARK_VENV)/bin/python -c 'import pyspark; print("pyspark", pyspark.__version__)'
	@$(SPARK_VENV)/bin/python -m pytest -n 2 --dist loadgroup $(if $(SMOKE),-m smoke) tests/spark

check: $(READY) ## style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports

coverage: java $(READY) ## run all tests and report which lines of src they reach; writes out/coverage
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n 2 -m "not compiled" --cov --cov-report= $(KERNEL_TESTS)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup --cov --cov-append --cov-report=term:skip-covered --cov-report=html:out/coverage

lock: ## write both lock files again, with the newest versions that pyproject.toml allows
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	@echo "Resolving the newest versions (minutes); the log is in .venv-lock/setup.log"
	@.venv-lock/bin/$(PIP) --editable '.[all,dev]' >.venv-lock/setup.log 2>&1 || { tail -n 20 .venv-lock/setup.log; exit 1; }
	@{ echo "# Exact versions for development and CI. Written by: make lock"; .venv-lock/bin/python -m pip freeze --exclude-editable; } >requirements.lock
	@.venv-lock/bin/python -m pip index versions pyspark >.venv-lock/versions 2>>.venv-lock/setup.log || { tail -n 20 .venv-lock/setup.log; exit 1; }
	@{ echo "# The newest patch of every supported Spark, for make test-spark. Written by: make lock"; \
	sed -n 's/^Available versions: //p' .venv-lock/versions | tr -d ' ' | tr ',' '\n' | sort -su -t . -k 1,1n -k 2,2n | sed -n '/^$(OLDEST)\./,$$s/^/pyspark==/p'; } >$(SPARK_LOCK)
	@rm -rf .venv-lock
	@echo "Wrote $(SPARK_LOCK), and requirements.lock with $$(grep -c == requirements.lock) packages"

bench: java $(READY) ## speed and quality against peers in the same run (LONG=1: also 10^9 tuples over 10^4 workers)
	@$(BIN)/python -m benchmarks.accumulator
	@$(BIN)/python -m lab.milp
	@$(BIN)/python -m benchmarks.planning
	@$(BIN)/python -m benchmarks.receiver
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

kills: java $(READY) ## kill executors, streams, a receiver and tasks of the store, and fill disks; nothing may be lost or doubled (long)
	@$(BIN)/python -m tests.faults.spark_kills
	@$(BIN)/python -m tests.faults.stream_kills
	@$(BIN)/python -m tests.faults.state_kills
	@$(BIN)/python -m tests.faults.receiver_kills
	@$(BIN)/python -m tests.faults.store_kills
	@$(BIN)/python -m tests.faults.full_disk

reproduce: $(READY) ## compute Table II of the PKG paper again, and check its claims (minutes)
	@$(BIN)/python -m lab.pkg

pictures: $(READY) ## draw every partitioner under drift, and write docs/partitioners.md
	@$(BIN)/python -m lab.pictures

scaling: java $(READY) ## measure the gain by skew, workers and cost per row, and write docs/spark.md (15 minutes, on a quiet machine)
	@$(BIN)/python -m benchmarks.spark_scaling

docs: $(READY) ## write docs/partitioner-table.md from the registry
	@$(BIN)/python -m lab.partitioner_table

clean: ## remove what the other commands made
	@rm -rf $(VENV) .venv-* out spark-warehouse .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help java demo stream rank test test-spark check coverage lock bench kills reproduce pictures scaling docs clean
