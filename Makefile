# `make demo` and `make test` do everything on a machine that has Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
AXE_VERSION := 4.14.0

.PHONY: demo test lint format docs bench fuzz clean
N ?= 20000

demo: $(VENV)/.core
	$(BIN)/ulda demo --out demo-output

test: lint
	-@command -v npm >/dev/null && $(MAKE) --silent .cache/axe-core
	$(BIN)/python -m pytest -n 2 -m "not slow and not serial"
	$(BIN)/python -m pytest -m "serial and not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the parts of the documentation that come from the code
docs: $(VENV)/.dev
	$(BIN)/python -m scripts.update_config_table
	$(BIN)/python -m scripts.update_methods_table
	$(BIN)/python -m scripts.update_results
	$(BIN)/python -m scripts.update_api
	$(BIN)/python -m scripts.update_outputs

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.regularizer
	$(BIN)/python -m benchmarks.promises
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.evaluate_memory
	$(BIN)/python -m benchmarks.fault_injection
	$(BIN)/python -m benchmarks.tampering

# mutated files of all kinds; the result is in benchmarks/results/fuzz.json and SECURITY.md
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.campaign --cases $(N)

# for the accessibility of reports; its test skips where there is none
.cache/axe-core:
	mkdir -p .cache
	cd .cache && npm pack --silent axe-core@$(AXE_VERSION) >/dev/null
	cd .cache && tar -xzf axe-core-$(AXE_VERSION).tgz && mv package axe-core

clean:
	rm -rf $(VENV) .cache demo-output build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 is needed and was not found"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	touch $@ $(VENV)/.core
