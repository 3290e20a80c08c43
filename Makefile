# `make report` and `make test` each do everything from a fresh checkout; both are quick when nothing has changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
WORKERS ?= 2

.PHONY: report test check gallery campaign clean

report: $(READY)
	$(BIN)/probe report --out reports

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -q

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything in reports/ with the embedded model: the report, a walk, each analysis with its picture and table, and the README's list.
gallery: $(READY) analyses/investigation.ipynb
	$(BIN)/probe report --out reports
	$(BIN)/probe walk "A fluffy blue creature roamed the verdant forest" --word creature --out reports/walk
	$(BIN)/python reports/gallery.py

# The findings under three sets of instructions, one and two threads: alike? A quarter of an hour, more on a busy machine.
campaign: $(READY)
	$(BIN)/python tests/campaign/any_processor.py --out reports

# The notebook is its script, cell by cell, without outputs.
analyses/%.ipynb: analyses/%.py $(READY)
	$(BIN)/jupytext --quiet --to notebook --update --output $@ $<
	touch $@

# The stamp is written last, so an interrupted install is done again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "probe needs Python 3.11 or newer: make PYTHON=python3.12")'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
