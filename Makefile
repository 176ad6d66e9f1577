# Every target makes `.venv` by itself. PYTHON chooses the interpreter; it must be Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STARTED := .venv/.started
READY := .venv/.ready
CORE := .venv-core
CORE_READY := $(CORE)/.ready
DOCS := .venv-docs
DOCS_READY := $(DOCS)/.ready
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_READY := $(FRAMEWORKS)/.ready
RELEASE := .venv-release
RELEASE_READY := $(RELEASE)/.ready
RESULTS := build/results
CODE := setup.py tff_mf aggregators experiments tests benchmarks docs/swap.py docs/pipeline.py docs/search.py docs/least_squares.py docs/pictures.py \
  docs/notebooks.py docs/site
SOURCES := $(shell find tff_mf aggregators experiments -name '*.py')
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Containers often switch bytecode off, and then every process compiles all of TensorFlow's Python: six seconds each.
export PYTHONDONTWRITEBYTECODE =
# What was typed, also where `test` calls make itself.
export ASKED ?= $(MAKECMDGOALS)

# What the tff_mf layer is installed from: a copy, so that what setuptools leaves behind is neither used again nor in the tree.
# Without bytecode, which the tests that run at the same time are writing.
DISTRIBUTED := setup.py pyproject.toml requirements.txt README.md LICENSE
DISTRIBUTED += tff_mf aggregators experiments
INSTALL := install --quiet --disable-pip-version-check --no-compile
PIP := -m pip $(INSTALL)
# What is not on the longest path of `test`, the main tests.
BEHIND := nice -n 19
# To install a pip into an environment takes three seconds: that of .venv installs into others too.
PIP_INTO := $(BEHIND) $(BIN)/python -m pip --python
TWO := -n 2 --dist loadfile

.PHONY: help venv environments demo test test-core test-flower test-frameworks test-main test-interpreters lint faults fuzz check-long docs release format clean

help:
	@echo "make demo        train with correlated and with independent noise, and compare (about a minute on 2 cores after installation)"
	@echo "make test        run what CI runs: format, lint, types, tests in three environments"
	@echo "                 test-main, test-core, test-flower, test-frameworks: the tests of one environment"
	@echo "make check-long  run all of that without CI's sampling, which strikes runs at each write, and fuzz (two hours)"
	@echo "make faults      strike a run at each of its writes, fsyncs and renames (an hour)"
	@echo "make fuzz        hundreds of thousands of damaged and forged files for all readers (half an hour)"
	@echo "make docs        build the documentation site, build/site/index.html, and check its links and its independence"
	@echo "make release     build dist/: source distribution, wheel and bill of materials (CycloneDX)"
	@echo "make format      format and mend what ruff can mend"
	@echo "make clean       delete the environments and what was built"

venv: $(READY)

# Of both environments, so that a Python that is none is named once.
$(STARTED): requirements.txt setup.py
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "tff-mf needs Python 3.11, and '$(PYTHON)' is not: run 'make PYTHON=/path/to/python3.11 $(ASKED)'." >&2; exit 2; }
	"$(PYTHON)" -m venv --clear .venv
	@touch $@

# Python compiles what it imports; pip would compile all of it, which is half of the work of an installation. Imported
# here, since two processes of the tests that import the same at a time both compile it.
$(READY): $(STARTED) pyproject.toml
	$(BIN)/python $(PIP) --no-deps -r requirements.txt
	$(BIN)/python $(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/python -c "import tensorflow_federated" 2>/dev/null
	@touch $@

# The tff_mf layer as a user without TensorFlow has it: a wheel, plain pip, the newest release of everything it needs.
$(CORE_READY): setup.py pyproject.toml requirements.txt $(SOURCES) | $(STARTED)
	rm -rf $(CORE) build/core
	mkdir -p build/core
	tar --exclude=__pycache__ -c $(DISTRIBUTED) | tar -x -C build/core
	"$(PYTHON)" -m venv --without-pip $(CORE)
	$(PIP_INTO) $(CORE)/bin/python $(INSTALL) "./build/core[test]"
	@touch $@

$(DOCS_READY): requirements-docs.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null || \
	  { echo "make docs needs Python 3.11 or newer, and '$(PYTHON)' is not: run 'make PYTHON=/path/to/python3.11 docs'." >&2; exit 2; }
	"$(PYTHON)" -m venv --clear $(DOCS)
	$(DOCS)/bin/python $(PIP) --no-deps -r requirements-docs.txt
	@touch $@

# Strict: a broken link, a public name without a docstring and a page outside of the navigation are errors.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	$(DOCS)/bin/python docs/site/check.py build/site

$(RELEASE_READY): Makefile
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null || \
	  { echo "make release needs Python 3.11 or newer, and '$(PYTHON)' is not: run 'make PYTHON=/path/to/python3.11 release'." >&2; exit 2; }
	"$(PYTHON)" -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python $(PIP) build==1.6.1 cyclonedx-bom==7.5.0 setuptools==84.2.1 setuptools-scm==9.2.2 twine==7.0.0
	@touch $@

# Drops the addresses of an index, which are not where a user gets the packages, and adds the version.
define BILL
import json, sys
bill = json.load(sys.stdin, object_hook=lambda part: {key: part[key] for key in part if key != "externalReferences"})
bill["metadata"]["component"]["version"] = sys.argv[1]
json.dump(bill, sys.stdout, indent=1)
endef
export BILL

# Two builds of a commit give the same wheel, to the byte. No pylock.toml: each of its files needs the address of an index.
release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: $(RELEASE_READY)
	rm -rf dist
	$(RELEASE)/bin/python -m build --no-isolation
	$(RELEASE)/bin/twine check --strict dist/*
	$(RELEASE)/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml requirements.txt | \
	  $(RELEASE)/bin/python -c "$$BILL" "$$(basename dist/*.tar.gz .tar.gz | cut -d- -f2)" > dist/tff_mf.cdx.json

# Flower, whose protobuf is too new for TensorFlow, JAX and PyTorch. With dependencies, which differ between builds of
# PyTorch.
$(FRAMEWORKS_READY): requirements-frameworks.txt setup.py pyproject.toml | $(STARTED)
	"$(PYTHON)" -m venv --clear --without-pip $(FRAMEWORKS)
	$(PIP_INTO) $(FRAMEWORKS)/bin/python $(INSTALL) -r requirements-frameworks.txt
	$(PIP_INTO) $(FRAMEWORKS)/bin/python $(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# What the tests need beside .venv.
environments: $(CORE_READY) $(FRAMEWORKS_READY)

demo: $(READY)
	$(BIN)/tff-mf demo --out runs/demo

# The matrices of the tests are small: threads of BLAS would wait for each other longer than they work.
TESTED := test test-core test-flower test-frameworks test-main faults fuzz check-long
$(TESTED): export OPENBLAS_NUM_THREADS = 1
$(TESTED): export OMP_NUM_THREADS = 1
# What tests download or make stays in the checkout.
$(TESTED): export TFF_MF_CACHE = $(CURDIR)/.cache/tff-mf

# All at once, so that no core waits while TensorFlow is installed, nor for the last file of a few tests. What takes
# longest is first.
test:
	$(MAKE) -j3 --keep-going --output-sync test-main test-core test-flower test-frameworks lint

test-main: $(READY)
	$(BIN)/pytest $(TWO) $(LONG) --junitxml=$(RESULTS)/tests.xml

# Behind the other tests, where both run: they fill the cores while those wait, and take nothing from them, which last
# longest.
test-core: $(CORE_READY)
	cd tests && $(BEHIND) ../$(CORE)/bin/pytest -c ../pyproject.toml --rootdir=.. $(TWO) $(LONG) --junitxml=../$(RESULTS)/core.xml tff_mf

test-flower: $(FRAMEWORKS_READY)
	cd tests && nice ../$(FRAMEWORKS)/bin/pytest -c ../pyproject.toml --rootdir=.. $(LONG) --junitxml=../$(RESULTS)/flower.xml flower

test-frameworks: $(FRAMEWORKS_READY)
	cd tests && $(BEHIND) ../$(FRAMEWORKS)/bin/pytest -c ../pyproject.toml --rootdir=.. $(LONG) -k "jax or torch or optax" \
	  --junitxml=../$(RESULTS)/frameworks.xml tff_mf/test_noise_laws.py tff_mf/test_frameworks.py tff_mf/test_optax.py \
	  tff_mf/test_torch.py tff_mf/test_precision.py tff_mf/test_doctests.py tff_mf/test_conformance_of_optimizers.py

# The tff_mf layer on the other versions of Python that are installed here.
test-interpreters: $(READY)
	$(BIN)/python tests/installation.py

faults: $(READY)
	$(BIN)/pytest --long tests/faults

fuzz: $(READY)
	TFF_MF_FUZZ=100 $(BIN)/pytest tests/test_readers.py

lint: $(READY)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/pyrefly check

check-long:
	$(MAKE) LONG=--long lint test-core test-flower test-frameworks test-main test-interpreters
	$(MAKE) fuzz

format: $(READY)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:
	rm -rf .venv $(CORE) $(DOCS) $(FRAMEWORKS) $(RELEASE) build dist .pytest_cache .ruff_cache .hypothesis
