# Every target makes its own environment first; nothing outside .venv is touched.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test breaks nightly style lint bench bench-peers docs dist matrix clean

help:
	@echo "make demo    train a population of small networks, measure, analyse and report it"
	@echo "make test    formatting and lint, types, tests and doctests: what a change must pass"
	@echo "make breaks  plant wrong lines one at a time, and see that tests catch each of them"
	@echo "make nightly the tests that are left to it, 5,000 random networks against dense truths, then"
	@echo "             every quick preset once, to its report; fetches data. OFFSET=n repeats the"
	@echo "             networks of another night"
	@echo "make lint    formatting, lint and types only"
	@echo "make bench   time the measures against a plain forward and backward pass"
	@echo "make bench-peers   the same questions to other libraries, in an environment of its own;"
	@echo "             DEVICE=cuda for a GPU"
	@echo "make docs    build the documentation into site/; open site/index.html"
	@echo "make dist    build both distributions into dist/, and check them"
	@echo "make matrix  the core tests with the oldest and the newest versions, for every Python there is"
	@echo "make clean   remove the environment, caches and outputs"
	@echo "The first target you run sets up $(VENV), which takes a few minutes."

demo: $(READY)
	$(VENV)/bin/spiritlevel demo

# One thread a worker: two workers with two threads each are slower on two cores than one alone.
# Three workers: some tests wait for a browser or for other processes.
# Bytecode is kept: many tests start a new interpreter.
test: export OMP_NUM_THREADS := 1
test: export PYTHONDONTWRITEBYTECODE :=
# The types are checked meanwhile, since that keeps one core busy for a minute, and told at the end.
test: style
	@types=$$(mktemp); $(VENV)/bin/mypy >$$types 2>&1 & checking=$$!; \
	$(VENV)/bin/python -m pytest -n 3 --dist worksteal; tested=$$?; \
	wait $$checking; checked=$$?; cat $$types; rm -f $$types; exit $$((tested || checked))

breaks: $(READY)
	$(VENV)/bin/python tests/planted_breaks.py

nightly: export OMP_NUM_THREADS := 1
nightly: $(READY)
	$(VENV)/bin/python -m pytest -m nightly -n 2 --dist worksteal $(if $(OFFSET),--fuzz-offset=$(OFFSET))
	$(VENV)/bin/python experiments/nightly.py
	$(foreach use,quantization pruning checkpoints,$(VENV)/bin/python experiments/uses/$(use).py \
		--networks digits --seeds 0 --out build/nightly/uses --results build/nightly/uses &&) true
	$(foreach use,fine_tuning grokking,$(VENV)/bin/python experiments/uses/$(use).py \
		--quick --seeds 0 --results build/nightly/uses &&) true
	$(VENV)/bin/python experiments/uses/learning_rates.py --seeds 0 --results build/nightly/uses

style: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

lint: style
	$(VENV)/bin/mypy

bench: $(READY)
	$(VENV)/bin/python benchmarks/run.py

# Other libraries want other versions of what we use, so they get an environment of their own.
PEERS := .venv-peers
bench-peers: $(PEERS)/.ready
	$(PEERS)/bin/python benchmarks/peers/run.py --device $(or $(DEVICE),cpu)
	$(PEERS)/bin/python benchmarks/peers/table.py

$(PEERS)/.ready: pyproject.toml lab/pyproject.toml constraints.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --disable-pip-version-check -c constraints.txt \
		-e '.[dev]' -e ./lab -r benchmarks/peers/requirements.txt
	@touch $@

# --strict: a link that leads nowhere, or a page that nothing leads to, is an error.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)
	$(VENV)/bin/mkdocs build --strict

# The tools that build and check get an environment of their own: they are no part of the package.
TOOLS := .venv-tools
dist: $(TOOLS)/.ready
	rm -rf dist
	$(TOOLS)/bin/python -m build --outdir dist .
	$(TOOLS)/bin/python -m build --outdir dist lab
	$(TOOLS)/bin/twine check --strict dist/*
	$(TOOLS)/bin/check-wheel-contents dist/*.whl

$(TOOLS)/.ready:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --disable-pip-version-check build twine check-wheel-contents
	@touch $@

# A version that the package index does not have is skipped, and said so.
matrix: dist
	$(PYTHON) tests/version_matrix.py dist

clean:
	rm -rf $(VENV) $(PEERS) $(TOOLS) .venv-matrix build dist lab/dist site spiritlevel-demo .pytest_cache .mypy_cache .ruff_cache
	find src lab tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp is written last, so an interrupted installation is resumed and not taken for a whole one.
$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "No '$(PYTHON)' found. spiritlevel needs Python 3.10 or newer:" \
			"install it, or say which one with 'make PYTHON=/path/to/python ...'." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "spiritlevel needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
			"Say which one to use with 'make PYTHON=python3.11 ...'." >&2; exit 1; }
	@echo "Setting up $(VENV): PyTorch and the development tools. Most of it is the download of" \
		"PyTorch; expect two to five minutes the first time, and nothing after that."
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' -e ./lab
	@touch $@
	@echo "$(VENV) is ready."
