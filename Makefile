# Everything a contributor or CI runs. `make demo` and `make test` set up by themselves on a fresh clone: the demo
# installs what glmplan needs to answer, everything else also what develops it.

PYTHON ?= python3
JOBS ?= auto
VENV := .venv
RUN := $(VENV)/bin/python
# stamps: what a plain user gets, and what the tests, the lint and the documents need beside it
READY := $(VENV)/.ready-core
# measured kernel tables, read as data: its own dependencies (JAX and more) are not needed
KERNEL_TABLES := aisimulate==0.13.0.dev202610270000000085
READY_DEV := $(VENV)/.ready-dev
READY_SITE := $(VENV)/.ready-site
PEERS := .peers
# tests that run a second time with the engine as pure Python
PURE_TOO := tests/simulation/engine tests/simulation/test_simulate.py tests/simulation/test_closed_loop.py glmplan/simulation
# options of tools/mutate.py in `make check`: none breaks all formulas; CI has a time limit
MUTATE ?=
# options of the fuzzers, such as a limit on their time
FUZZ ?=
NPM := npm install --silent --no-fund --no-audit --prefix $(PEERS)
# what reads the page as a screen reader does; without npm the tests of the page that need it are skipped
AXE = test -e $(PEERS)/node_modules/axe-core || ! command -v npm >/dev/null || \
	timeout 120 $(NPM) axe-core >/dev/null 2>&1 </dev/null || true
# one thread for linear algebra: the test workers and the benchmark already use the cores
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
# files are UTF-8 whatever the language of the shell
export PYTHONUTF8 := 1
# modules are compiled once, as everywhere: without, each of the commands that are started compiles 180 of them again
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup compile demo test lint check audit lowest mutate branches fuzz rules bounds agreement peers docs site wheel pythons bench soak sheets-demo validate-demo validate-vllm clean

help:  ## List what there is.
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 16

setup: $(READY_DEV) compile  ## Make .venv and install glmplan in it with everything for development.

compile: $(READY_DEV)  ## Compile the engine of the simulator where there is a C compiler (two minutes after a change of it).
	@$(RUN) hatch_build.py

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "glmplan needs Python 3.11 or newer; say: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (about a minute the first time)" >&2
	@$(RUN) -m pip install --quiet --editable .
	@touch $@

$(READY_DEV): $(READY)
	@echo "adding the tools for development to $(VENV) (a few minutes the first time)" >&2
	@$(RUN) -m pip install --quiet --editable '.[all,dev]'
	@$(RUN) -m pip install --quiet --no-deps $(KERNEL_TABLES)
	@touch $@

$(READY_SITE): $(READY)
	@$(RUN) -m pip install --quiet --editable '.[docs]'
	@touch $@

demo: $(READY)  ## Plan GLM-5.1 NVFP4 on six RTX PRO 6000 Workstation cards.
	@$(VENV)/bin/glmplan fit glm-5.1-nvfp4 --on 6xrtx-pro-6000-ws

test: $(READY_DEV) compile  ## Run all tests and doctests; those of the engine also as pure Python where it is compiled.
	@$(AXE)
	$(RUN) -m pytest -n $(JOBS) --dist worksteal
	test ! -d glmplan/_compiled || GLMPLAN_PURE=1 $(RUN) -m pytest -n $(JOBS) --dist worksteal $(PURE_TOO)

lint: $(READY_DEV)  ## Lint, types, generated pages fresh, measured memory beside computed.
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m mypy tools
	$(RUN) tools/docs.py --check
	$(RUN) tools/check_memory.py

check: lint compile  ## The same, and mutations of formulas, known vulnerabilities.
	$(RUN) tools/mutate.py $(MUTATE)
	@$(RUN) tools/audit.py

audit: $(READY_DEV)  ## Look installed packages up in the list of known vulnerabilities; fails if one has any.
	@$(RUN) tools/audit.py --fail

lowest:  ## Run the main commands with the lowest version of every dependency, in .venv-lowest.
	@$(PYTHON) tools/lowest.py

branches: $(READY_DEV)  ## List branches of formulas that no reviewed value takes.
	@$(RUN) tools/mutate.py --branches

mutate: $(READY_DEV)  ## Break one formula at a time and see whether the tests near it notice.
	@$(RUN) tools/mutate.py

fuzz: $(READY_DEV)  ## Give 10,000 broken files to the readers and 2,000 wrong values to commands: refused at once, in words.
	@$(RUN) tools/fuzz.py $(FUZZ)
	@$(RUN) tools/fuzz_commands.py $(FUZZ)

rules: $(READY_DEV)  ## Draw 10,000 plans at random; none that fits may break a rule of its engine.
	GLMPLAN_PLANS=10000 $(RUN) -m pytest -n $(JOBS) tests/planner/test_no_plan_breaks_a_rule.py

agreement: $(READY_DEV)  ## Compare the forms of 500 plans, a hundred answers of safe and size, and twelve kinds of traffic, with brute force (half an hour).
	GLMPLAN_PLANS=500 $(RUN) -m pytest tests/planner/test_every_form_agrees.py
	@$(RUN) tests/planner/test_brute_force.py 100

bounds: $(READY_DEV)  ## Draw 1,000 plans at random; none may break a bound of physics.
	GLMPLAN_PLANS=1000 $(RUN) -m pytest tests/planner/test_physical_bounds.py

docs: $(READY_DEV) $(READY_SITE)  ## Write the generated pages again, then build the documentation site.
	$(RUN) tools/docs.py
	$(RUN) tools/build_site.py

site: $(READY_SITE)  ## Build the documentation site into build/site; fails on a broken link.
	$(RUN) tools/build_site.py

wheel: $(READY_DEV)  ## Build sdist and wheel, install the wheel in a clean environment and plan with it.
	$(RUN) tools/check_install.py

pythons: $(READY_DEV)  ## The same with every supported Python that is installed.
	$(RUN) tools/check_install.py --pythons

bench: $(READY_DEV) compile $(PEERS)/.ready  ## Time from shell to answer, predictions per second, simulated requests per second beside peers.
	@$(RUN) tools/bench.py

soak: $(READY_DEV)  ## Ask the service 100,000 mixed questions: all answered rightly, memory flat.
	@$(RUN) tools/soak.py

peers: $(READY_DEV) $(PEERS)/aisimulate/.ready  ## Predict the measured runs with AISimulate too and write docs/peers.md (half an hour).
	@$(RUN) tools/peers.py $(PEERS)/aisimulate/bin/python

# 1.5 GB with its dependencies
$(PEERS)/aisimulate/.ready: Makefile
	@$(PYTHON) -m venv $(PEERS)/aisimulate
	@$(PEERS)/aisimulate/bin/python -m pip install --quiet $(KERNEL_TABLES)
	@touch $@

# the peer that installs from a public package; without npm the bench says so and goes on
$(PEERS)/.ready:
	@mkdir -p $(PEERS)
	-@$(NPM) @doublewordai/inference-lab >&2
	@touch $@

sheets-demo: $(READY_DEV)  ## Write plan.xlsx for the demo case, and beside it two larger machines.
	@$(VENV)/bin/glmplan sheet new plan.xlsx --overwrite --model glm-5.1-nvfp4 --on 6xrtx-pro-6000-ws \
		--options 8xh200-sxm,8xb200-sxm --users 4

validate-demo: $(READY_DEV)  ## Measure llama.cpp servers made here and predict them from two steps of each ladder.
	@$(RUN) tools/validate_demo.py

validate-vllm: $(READY_DEV)  ## The same with real vLLM on the CPU: downloads about 1 GB into .venv-vllm the first time.
	@$(RUN) tools/validate_vllm.py --venv .venv-vllm

clean:  ## Remove the environment and every cache.
	rm -rf $(VENV) .venv-lowest glmplan/_compiled build .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
