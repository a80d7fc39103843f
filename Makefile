# `make book` and `make test` work in a fresh clone on a machine that has only Python >= 3.11, git and a compiler.
# They create .venv and fetch the front end themselves; later runs only do what has changed.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
TARGETS := .venv-targets
FRONT := pdtlib/book/front
LAB ?= 02
PORT ?= 8000
JOBS ?= 2

# One thread per process: the labs and the tests start several processes on a few cores.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help environment book pdf epub test test-targets test-slurm matrix mutants layouts dryruns bench bench-own bench-short serve lab check format notebooks browser clean

help:
	@echo "make book        the site, in _build/html (every notebook is executed)"
	@echo "make pdf, make epub  the text with its figures, beside the site (make book first)"
	@echo "make test        the site, then every test and every check"
	@echo "make test-targets  DeepSpeed, torchtitan and megatron-core read what pdt exports (part of make test)"
	@echo "make test-slurm  labs/cluster's batch files on a Slurm of one node (needs slurm-wlm and munge installed)"
	@echo "make matrix      every model, layout and ZeRO stage against one process, on up to 8 processes"
	@echo "make mutants     the engine without each of its messages and divisions: a test must fail"
	@echo "make layouts     one job in seven layouts on 8 processes: the same loss curve"
	@echo "make dryruns     ranks of the article's layouts, up to 1,024 GPUs, on fake tensors, beside the plan"
	@echo "make bench       pdtlib beside its peers, schedules, overlap; under 40 minutes, nothing else running"
	@echo "make bench-own   what pdt, a run's meters and the built pages cost; under 10 minutes, nothing else running"
	@echo "make bench-short the most telling rows beside one peer each, under 5 minutes"
	@echo "make serve       the site on http://127.0.0.1:$(PORT)/ (PORT=...)"
	@echo "make lab LAB=02  one lab on this machine"
	@echo "make check       lint, format, types, floors, spelling, notebooks' form"
	@echo "make format      put the code and the notebooks into their normal form"
	@echo "make notebooks   execute the notebooks and store their outputs"
	@echo "make clean       remove what the above have made, except .venv"

environment: $(VENV)/.installed $(FRONT)/node_modules/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "This book needs Python 3.11 or newer; none was found. Install one, or name it:" \
	  "make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "This book needs Python 3.11 or newer;" \
	  "$(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,book,test]'
	@touch $@

$(FRONT)/node_modules/.installed: $(FRONT)/package.json $(FRONT)/package-lock.json | $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --prefix $(FRONT) --no-audit --no-fund --loglevel=error
	@touch $@

book: environment
	$(BIN)/jupyter-book build . --warningiserror --keep-going
	@echo "The site: _build/html/index.html (make serve shows it on a port)."

pdf epub: environment
	-@$(BIN)/python -m pdtlib.book.browser --install
	@$(BIN)/python -m pdtlib.book.paper $@

test: book
	-@$(BIN)/python -m pdtlib.book.browser --install
	@$(BIN)/python -m pdtlib.book.suites --jobs $(JOBS)

# The targets stand over .venv, which stays as it is: its packages are found through a .pth file.
test-targets: $(TARGETS)/.installed
	@$(TARGETS)/bin/python -m pytest -q -p no:cacheprovider -W ignore --durations=15 --durations-min=5 tests/targets

# Not part of make test: the packages are the system's. Nothing of the system's own configuration is touched.
test-slurm: environment
	@$(BIN)/python -m pytest -q -p no:cacheprovider --durations=5 tests/slurm

$(TARGETS)/.installed: tests/targets/requirements.txt $(VENV)/.installed
	@rm -rf $(TARGETS)
	@$(BIN)/python -m venv --without-pip $(TARGETS)
	@site=$$($(TARGETS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$site/book.pth" && \
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$$site" \
	  -r tests/targets/requirements.txt
	@touch $@

matrix: environment
	@$(BIN)/python tests/engine/matrix.py --minutes 60 --out benchmarks/results/matrix.json

mutants: environment
	@$(BIN)/python tests/engine/mutants.py

dryruns: environment
	@$(BIN)/python benchmarks/dryruns.py --out benchmarks/results/dryruns.json

layouts: environment
	@$(BIN)/python benchmarks/layouts.py --out benchmarks/results/layouts.json

bench: environment $(TARGETS)/.installed
	@$(BIN)/python benchmarks/peers.py --minutes 31
	@$(BIN)/python benchmarks/schedules.py --steps 2
	@$(BIN)/python benchmarks/overlap.py

bench-own: environment
	@$(BIN)/python benchmarks/meters.py
	@$(BIN)/python benchmarks/product.py

bench-short: environment
	@$(BIN)/python benchmarks/peers.py --short --minutes 4.5

serve: book
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

lab: environment
	@$(BIN)/python -m pdtlib.book $(LAB)

check: environment
	@$(BIN)/python -m pdtlib.book.suites check

format: environment
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/python -m pdtlib.book.normalise
	$(BIN)/python -m pdtlib.book.address

notebooks: environment
	$(BIN)/python -m pdtlib.book.normalise --execute

clean:
	rm -rf _build .jupyter_cache $(FRONT)/node_modules $(FRONT)/dist
