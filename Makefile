# Needs Python 3.11 or newer and make, nothing else: everything lands in .venv, webapp/node_modules and var.
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
STATIC := $(shell find webapp/*/static -type f)

.PHONY: setup run test lint bench faults
.DELETE_ON_ERROR:

setup: webapp/static_root/.stamp

# ARGS goes to the program: make run ARGS="--port 9000", make test ARGS="-k home"
run: setup
	@$(BIN)/python manage.py up $(ARGS)

# four at a time on two processors, for much of a test is waiting; each has servers of its own. What Python compiled is
# kept, even where the environment says otherwise: each of the four would compile every test again.
test: export PYTHONDONTWRITEBYTECODE =
test: setup
	$(BIN)/python -m pytest --numprocesses=4 --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run --skip-checks

# ten rounds of each fault; ARGS="--rounds 1 Valkey" picks some
faults: setup
	$(BIN)/python -m tests.faults $(ARGS)

bench: setup
	$(BIN)/python -m tools.bench $(ARGS)

.venv/.stamp: requirements.txt requirements/web.txt requirements/worker.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Moescope needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": name another, as in make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	@touch $@

# npm of the machine, or the one in .venv
webapp/node_modules/.stamp: webapp/package.json webapp/package-lock.json .venv/.stamp
	cd webapp && PATH="$$PATH:$(BIN)" npm ci
	@touch $@

webapp/static_root/.stamp: webapp/node_modules/.stamp webapp/ui/finders.py $(STATIC)
	$(BIN)/python manage.py collectstatic --clear --no-input --verbosity 0
	@touch $@
