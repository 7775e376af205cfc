# Everything a person or CI does here. `make` alone lists the targets; each installs what it needs first.

PYTHON_BIN := .venv/bin
OLDEST_BIN := .venv-oldest/bin

# make run: ports of the functions, of the instance's HTTP and gRPC, and the store's folder. ONCE=1 ends after the answers.
PORT ?= 8080
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
STORE ?= .store
# The key that signs what is published; instances trust its public half, $(SIGNING_KEY).pub.
SIGNING_KEY ?= $(STORE).keys/publisher.pem
ONCE ?=
# make publish: the file that declares the model, and its version (a number by default).
MODEL ?=
VERSION ?=
# make test: in how many processes (0: in this one), each with files of its own, in the order that tests/conftest.py gives
# them; two a core, since many tests wait for other processes. And more for pytest.
PROCESSES ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
ARGS ?=
SIDE_BY_SIDE = -n $(PROCESSES) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

CODE := functions warmpool cache examples benchmarks infra tests
PRESENT = $(foreach folder,$(CODE),$(if $(wildcard $(folder)/*.py $(folder)/*/*.py),$(folder)))

# Deploying (docs/guides/deploy.md): where to, whether to print the commands alone (DRY_RUN=1), whether to do what cannot be
# undone (CONFIRM=yes), the images' tag (the commit) and VARIANT (cpu, cuda), what they are built on (BASE) and the folder of
# the functions (FUNCTIONS), and more for `python -m infra.deploy`.
SETTINGS ?= infra/settings.env
DRY_RUN ?=
CONFIRM ?=
TAG ?=
VARIANT ?=
BASE ?=
FUNCTIONS ?=

# make up: the folder of the stack on this machine. Its ports, and MODELS, are variables of `python -m infra.stack up --help`.
STACK ?= .stack
LOCAL = @exec $(PYTHON_BIN)/python -m infra.stack

# The tests of all that calls jax or jaxlib, and one publish and one instance; the others would say the same twice.
TOUCHES_JAX := $(addprefix tests/cache/test_,executable.py fingerprint.py jax_cache.py key.py) \
  $(addprefix tests/warmpool/publishing/test_,export.py params.py program.py worker.py) \
  tests/warmpool/publishing/test_publish.py::test_a_stored_executable_answers_as_plain_jax_does \
  $(addprefix tests/warmpool/test_,symbolic.py lane.py compiles.py)

# Bytecode is what makes a cold start short, here as in an image, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE
# A caller's own environment must not leak into ours.
unexport PYTHONPATH
unexport PYTHONHOME
# And what one target was given is nothing to the makes that tests of it start.
unexport ARGS
unexport PROCESSES
unexport MAKEFLAGS

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: up down logs stack-status
.PHONY: infra-check infra-init infra-plan infra-up infra-down image push precompile deploy rollback status
.PHONY: help install run publish test test-oldest check static bench gameday fmt lint types imports lock clean

help: ## list the targets
	@echo "usage: make TARGET [NAME=value ...]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  run and publish take PORT, HTTP_PORT, GRPC_PORT, STORE, SIGNING_KEY, ONCE=1, MODEL, VERSION; install takes PYTHON."
	@echo "  deploying takes SETTINGS, DRY_RUN=1, CONFIRM=yes, TAG, VARIANT, BASE, FUNCTIONS, ARGS; see docs/guides/deploy.md."

install: .venv/.installed ## make the virtual environment in .venv, from requirements.lock
	$(if $(filter install,$(MAKECMDGOALS)),@echo "install: .venv is up to date")

%/.installed: pyproject.toml requirements-tools.lock .ci/install.py .ci/find_python.sh
	@python=$$(sh .ci/find_python.sh) && "$$python" .ci/install.py $* $(filter requirements%,$(filter-out requirements-tools.lock,$^))
.venv/.installed: requirements.lock
.venv-oldest/.installed: requirements-oldest.lock

run: install ## publish the examples, start an instance and the functions, send real requests (ONCE=1: then exit)
	@exec $(PYTHON_BIN)/python -m examples.run --port $(PORT) --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) \
	  --store $(STORE) $(if $(filter-out 0,$(ONCE)),--once)

up: install ## bring the whole stack up on this machine: functions, two instances, a bucket, traces, metrics (ARGS=--foreground)
	$(LOCAL) up --folder $(STACK) $(ARGS)

down: install ## take it down; its artifacts stay (ARGS=--destroy removes them, too: asks, or CONFIRM=yes)
	$(LOCAL) down --folder $(STACK) $(ARGS)

logs: install ## show what its processes say, in one view (ARGS="instance-1 functions": only these)
	$(LOCAL) logs --folder $(STACK) $(ARGS)

stack-status: install ## tell how it is (ARGS=--json)
	$(LOCAL) status --folder $(STACK) $(ARGS)

publish: install ## publish one model: make publish MODEL=examples/embed/model.py [STORE=...] [VERSION=...]
	@test -n "$(MODEL)" || { echo "say which: make publish MODEL=examples/embed/model.py" >&2; exit 2; }
	@test -f $(SIGNING_KEY) || $(PYTHON_BIN)/warmpool cache keygen $(SIGNING_KEY)
	@exec $(PYTHON_BIN)/warmpool publish $(MODEL) --store $(STORE) --signing-key $(SIGNING_KEY) \
	  $(if $(VERSION),--version $(VERSION))

test: install ## run the tests (ARGS="-k name -x" goes to pytest; PROCESSES=0 for one process)
	@exec $(PYTHON_BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

test-oldest: .venv-oldest/.installed ## run the tests that touch jax on the oldest jax that is supported
	@exec $(OLDEST_BIN)/python -m pytest $(SIDE_BY_SIDE) -o cache_dir=.venv-oldest/.pytest_cache \
	  -m "not slow" $(TOUCHES_JAX) $(ARGS)

# These need no environment of ours: any Python 3.12 does.
DEPLOY_PYTHON = $(if $(wildcard $(PYTHON_BIN)/python),$(PYTHON_BIN)/python,$$(sh .ci/find_python.sh))
DEPLOY = @exec $(DEPLOY_PYTHON) -m infra.deploy $@ --settings '$(SETTINGS)' $(if $(filter-out 0,$(DRY_RUN)),--dry-run) \
  $(if $(CONFIRM),--confirm '$(CONFIRM)') $(if $(TAG),--tag '$(TAG)') $(if $(VARIANT),--variant '$(VARIANT)') \
  $(if $(BASE),--base '$(BASE)') $(if $(FUNCTIONS),--functions '$(FUNCTIONS)') $(ARGS)

infra-check: ## check what is written for Terraform: format, validity, tests on a mocked provider, known weaknesses
	@python=$$(sh .ci/find_python.sh) && PYTHON="$$python" exec sh infra/terraform/check.sh

infra-init: ## deploying: fetch Terraform's providers and open its state (DRY_RUN=1 prints the commands of any of these)
	$(DEPLOY)

infra-plan: ## deploying: show what infra-up would change
	$(DEPLOY)

infra-up: ## deploying: make the cloud what infra/terraform says (asks, or CONFIRM=yes)
	$(DEPLOY)

infra-down: ## deploying: destroy the environment (asks, or CONFIRM=yes)
	$(DEPLOY)

image: ## deploying: build the images of this commit
	$(DEPLOY)

push: ## deploying: push them to the registry
	$(DEPLOY)

precompile: ## deploying: compile in the cloud what the store lacks for this commit's image
	$(DEPLOY)

deploy: ## deploying: precompile, new revision, ready check, canary, promotion; or back to the old revision
	$(DEPLOY)

rollback: ## deploying: all requests to the revisions that had them before, of the functions and of the pool
	$(DEPLOY)

status: ## deploying: which revisions of pool and functions have which share of the requests (ARGS=--json)
	$(DEPLOY)

# Where there is no terraform, what is written for it is left out, which the last line says; but never in CI.
INFRA_CHECK := $(if $(WARMPOOL_CI),infra-check,$(shell command -v terraform >/dev/null && echo infra-check))

check: static test test-oldest ## all that CI runs: lint, format, types, import contracts, Terraform, tests

static: lint types imports $(INFRA_CHECK) ## all of that but the tests
	$(if $(INFRA_CHECK),,@echo "static: infra/terraform was NOT checked: terraform is not on the PATH" >&2)

bench: install ## run the benchmarks and print their tables
	@exec $(PYTHON_BIN)/python -m benchmarks $(ARGS)

gameday: install ## bring faults upon an instance under load for some minutes, and report (ARGS="--seconds 60 --seed 7")
	@exec $(PYTHON_BIN)/python -m benchmarks.gameday $(ARGS)

fmt: install ## format the code and repair what ruff can
	@$(PYTHON_BIN)/ruff format $(PRESENT) .ci
	@$(PYTHON_BIN)/ruff check --fix $(PRESENT) .ci

lint: install ## check style, and that the code is formatted
	@$(PYTHON_BIN)/ruff check $(PRESENT) .ci
	@$(PYTHON_BIN)/ruff format --check $(PRESENT) .ci

types: install ## check types
	@$(PYTHON_BIN)/mypy $(PRESENT) .ci/*.py

imports: install ## check who imports whom
	@$(PYTHON_BIN)/lint-imports --no-logo

lock: ## refresh the lock files from pyproject.toml (FUNCTIONS=folder: that of its functions alone, from its requirements.in)
	@python=$$(sh .ci/find_python.sh) && "$$python" .ci/lock.py $(if $(FUNCTIONS),'$(FUNCTIONS)')

clean: ## remove environments, caches and built packages; stores stay
	rm -rf .venv .venv-oldest .venv-tools .venv-infra .venv*.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist .tools
	find $(PRESENT) .ci -name __pycache__ -type d -prune -exec rm -rf {} +
