# Every target makes `.venv` by itself. PYTHON chooses the interpreter; it must be Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
FLOOR1 := .venv-floor1
FLOOR1_READY := $(FLOOR1)/.ready
RESULTS := build/results
CODE := setup.py tff_mf aggregators experiments tests benchmarks docs/swap.py docs/pipeline.py
SOURCES := $(shell find tff_mf aggregators experiments -name '*.py')
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help venv demo test test-floor1 faults faults-short fuzz check format clean

help:
	@echo "make demo    train with correlated and with independent noise, and compare (about 4 minutes on 2 cores after installation)"
	@echo "make test    run the tests"
	@echo "make check   run what CI runs: format, lint, types, tests"
	@echo "make faults  inject more than 500 faults, and print what came of them (half an hour); faults-short: a few"
	@echo "make fuzz    millions of damaged inputs for all readers, wrong values for all functions (half an hour)"
	@echo "make format  format and mend what ruff can mend"

venv: $(READY)

$(READY): requirements.txt setup.py
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "tff-mf needs Python 3.11, and '$(PYTHON)' is not: run 'make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'." >&2; exit 2; }
	"$(PYTHON)" -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Floor 1 as a user without TensorFlow has it: a wheel, plain pip, the newest release of everything it needs.
$(FLOOR1_READY): setup.py $(SOURCES) | $(READY)
	rm -rf $(FLOOR1) build/floor1
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w build/floor1 .
	"$(PYTHON)" -m venv $(FLOOR1)
	$(FLOOR1)/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls build/floor1/*.whl)[test]"
	@touch $@

demo: $(READY)
	$(BIN)/tff-mf demo --out runs/demo

# The matrices of the tests are small: threads of BLAS would wait for each other longer than they work.
test test-floor1 faults faults-short fuzz: export OPENBLAS_NUM_THREADS = 1
test test-floor1 faults faults-short fuzz: export OMP_NUM_THREADS = 1

test: $(READY) test-floor1
	$(BIN)/pytest -n 2 --dist loadfile -m "not alone" --junitxml=$(RESULTS)/tests.xml
	$(BIN)/pytest -m alone --junitxml=$(RESULTS)/alone.xml

test-floor1: $(FLOOR1_READY)
	cd tests && ../$(FLOOR1)/bin/pytest -c ../pyproject.toml --rootdir=.. -n 2 --junitxml=../$(RESULTS)/floor1.xml tff_mf

faults: $(READY)
	$(BIN)/python tests/faults --out build/faults.md

faults-short: $(READY)
	$(BIN)/python tests/faults --short --junit $(RESULTS)/faults.xml

fuzz: $(READY)
	$(BIN)/python tests/fuzz
	$(BIN)/python tests/fuzz/forged_runs.py
	TFF_MF_FUZZ=26 $(BIN)/pytest -s tests/fuzz/test_api.py
	@! $(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python tests/fuzz/guided.py all -runs=100000 -verbosity=0

check: $(READY)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/pyrefly check
	$(MAKE) test
	$(MAKE) faults-short

format: $(READY)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:
	rm -rf .venv $(FLOOR1) build .pytest_cache .ruff_cache .hypothesis
