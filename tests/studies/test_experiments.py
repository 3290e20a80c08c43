"""The experiments of a report, and the records of an interrupted report: the answer comes first,
and finished experiments are not repeated."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from measured import assert_same

import probe
from probe.errors import InputError
from probe.experiments.store import read_record
from probe.experiments.table import choose, every_experiment
from probe.pages.folder import MANIFEST, REPORT, manifest_of
from probe.stats.numbers import decimal
from probe.studies.study import studies, study_inputs
from probe.studies.words import WORDS

ROOT = Path(__file__).parents[2]
QUICK = {"permutations": 99, "max_pairs": 4}
SENTENCES = probe.lexicon.expand("bank").sentences[:96]
ALL = tuple(every_experiment())
ANSWERS = [name for name in ALL if every_experiment()[name].ANSWERS]
# The sections of a page that show a single experiment.
SECTIONS = {
    "edges": "circuit",
    "together": "sets",
    "supplies": "readings",
    "cannot": "lessons",
}


@pytest.mark.parametrize(
    ("only", "without", "expected"),
    [
        (None, (), {*ALL}),
        ("heads, nouns", (), {"senses", "heads", "nouns"}),
        (["circuit"], (), {"senses", "heads", "nouns", "circuit"}),
        ("controls", (), {"senses", "heads", "controls"}),
        (None, "circuit", {*ALL} - {"circuit"}),
        (None, "nouns", {*ALL} - {"nouns", "noun_mlps", "circuit"}),
        ("circuit,sets", ["nouns"], {"senses", "heads", "sets"}),
        ([], (), {"senses", "heads"}),
    ],
)
def test_the_choice_adds_what_an_experiment_needs_and_drops_what_needs_an_omitted_one(
    only, without, expected
):
    assert choose(only, without) == expected


@pytest.mark.parametrize("names", ["heads,circit", ["circit"], "circit"])
def test_an_unknown_experiment_is_refused_with_a_list_of_all(names):
    for options in ({"only": names}, {"without": names}):
        with pytest.raises(InputError) as error:
            choose(**options)
        assert str(error.value) == (
            f"Cannot choose experiments: 'circit' is unknown. Give some of {', '.join(ALL)}, separated "
            "by commas."
        )


def test_the_experiment_that_every_verdict_needs_cannot_be_omitted():
    with pytest.raises(
        InputError, match=r"Cannot omit the experiment heads: .*Omit some of nouns, "
    ):
        choose(without="sets,heads")


def test_experiments_come_after_what_they_need_and_the_answer_comes_first():
    for number, name in enumerate(ALL):
        assert {*every_experiment()[name].NEEDS} <= {*ALL[:number]}
    assert [*ALL[: len(ANSWERS)]] == ANSWERS
    assert {"heads", "nouns"} <= {*ANSWERS}


def test_the_documentation_lists_every_experiment_in_order_with_what_it_needs():
    page = (ROOT / "reports" / "docs" / "pages" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+\?\s*\| (.*?) ?\|$", page, re.MULTILINE)
    assert [(name, tuple(re.findall(r"`(\w+)`", needs))) for name, needs in rows] == [
        (name, experiment.NEEDS) for name, experiment in every_experiment().items()
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def whole(tiny):
    """A study that runs to its end."""
    return probe.study(tiny, "bank", sentences=SENTENCES, **QUICK)


@pytest.fixture(scope="module")
def answer(tiny, folder):
    """The study and its page at the time of the answer; nothing else is measured."""
    inputs = study_inputs(tiny, "bank", SENTENCES, **QUICK)
    study = next(studies(inputs, out=folder, answer_first=True))
    probe.write(study, folder, command="probe report bank")
    return study


@pytest.mark.slow
def test_the_answer_has_the_same_heads_and_nouns_as_the_whole_and_nothing_else(answer, whole):
    assert answer.unfinished == ALL[len(ANSWERS) :] and whole.unfinished == ()
    assert {"curves", "shares", "edges", "showcase"}.isdisjoint(answer.frames)
    for name in ("words", "word_heads", "controls"):
        assert (
            answer.frames[name]
            .drop(columns=["verdict"], errors="ignore")
            .equals(whole.frames[name].drop(columns=["verdict"], errors="ignore"))
        )


@pytest.mark.slow
def test_the_first_page_says_that_the_rest_is_measured_and_what_finishes_it(answer, folder):
    page = (folder / REPORT).read_text(encoding="utf-8")
    [note] = re.findall(r'<p class="note" id="unfinished">(.*?)</p>', page)
    assert "<code>probe report bank</code>" in note and "finished work is not repeated" in note
    assert sections_of(page).isdisjoint(SECTIONS)
    assert probe.read(folder).unfinished == answer.unfinished
    assert not list(folder.glob("curves.*"))


@pytest.mark.slow
def test_a_stopped_study_resumes_and_has_the_same_numbers(tiny, answer, whole, folder, monkeypatch):
    [file] = (folder / WORDS).glob("*.word")
    assert [*read_record(file).measured] == ANSWERS
    run = counted(monkeypatch)
    finished = probe.study(tiny, "bank", sentences=SENTENCES, out=folder, **QUICK)
    assert run == [*ALL[len(ANSWERS) :]]
    assert list(finished.frames) == list(whole.frames)
    for name, frame in whole.frames.items():
        assert frame.equals(finished.frames[name]), name
    assert [*read_record(file).measured] == [*ALL]

    probe.write(finished, folder, command="probe report bank")
    page = (folder / REPORT).read_text(encoding="utf-8")
    assert "unfinished" not in page and sections_of(page) >= {*SECTIONS}
    assert "unfinished" not in manifest_of(folder)

    tree = probe.read(folder).data["bank"]
    xr.testing.assert_identical(tree, finished.data["bank"])
    tree.to_netcdf(folder / "bank.nc", engine="h5netcdf")
    with xr.open_datatree(folder / "bank.nc", engine="h5netcdf") as opened:
        net = opened["heads/0"].net
        assert net.dims == ("layer", "head") and net.attrs["unit"] == "fraction of the sense gap"
        np.testing.assert_allclose(net.values.ravel(), finished.heads["net"], rtol=1e-5)


@pytest.mark.slow
def test_a_finished_study_is_not_answered_first_and_a_part_of_it_is_not_measured(
    tiny, answer, folder, monkeypatch
):
    probe.study(tiny, "bank", sentences=SENTENCES, out=folder, **QUICK)
    run = counted(monkeypatch)
    inputs = study_inputs(tiny, "bank", SENTENCES, experiments=["sets"], **QUICK)
    [part] = studies(inputs, out=folder, answer_first=True)
    assert not run
    assert part.options["experiments"] == ["senses", "heads", "sets"]
    assert "curves" in part.frames and "controls" not in part.frames and "edges" not in part.frames
    assert part.charts.heads().to_dict()["description"].startswith("Map of bank")  # without MLPs
    probe.write(part, folder / "part")
    page = (folder / "part" / REPORT).read_text(encoding="utf-8")
    assert sections_of(page) & {*SECTIONS} == {"together"}
    assert "Is it ambiguity?" not in page


@pytest.mark.campaign
def test_the_record_of_a_word_does_not_depend_on_the_order_of_its_experiments(tiny, answer, folder):
    second_folder = folder / "second"
    for experiments in ("circuit", "lessons,shares", None):
        probe.study(
            tiny, "bank", sentences=SENTENCES, experiments=experiments, out=second_folder, **QUICK
        )
    probe.study(tiny, "bank", sentences=SENTENCES, out=folder, **QUICK)
    first, second = (
        read_record(next((parent / WORDS).glob("*.word"))) for parent in (folder, second_folder)
    )
    assert_same(first.measured, second.measured)


@pytest.mark.campaign
def test_an_interrupt_after_the_answer_leaves_its_page_and_the_same_command_finishes_it(
    run, tmp_path, monkeypatch
):
    rows = [
        {"word": "bank", "sense": row.sense, "text": row.text, "start": row.start, "end": row.end}
        | {"pair": str(row.pair), "cue": row.cue}
        for row in SENTENCES
    ]
    sentences = tmp_path / "bank.jsonl"
    sentences.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = ("report", "--sentences", sentences, "--out", tmp_path / "out", "--permutations", 99)
    command += ("--only", "heads,shares")

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(every_experiment()["shares"], "measure", interrupted)
        code, _, err = run(*command)
    assert code == 130 and "interrupted" in err
    page = (tmp_path / "out" / REPORT).read_text(encoding="utf-8")
    assert 'id="unfinished"' in page and "shares" not in sections_of(page)
    assert "--only heads,shares" in json.loads((tmp_path / "out" / MANIFEST).read_text())["command"]

    code, _, err = run(*command)
    assert code == 0, err
    page = (tmp_path / "out" / REPORT).read_text(encoding="utf-8")
    assert 'id="unfinished"' not in page and "shares" in sections_of(page)


def sections_of(page):
    """The ids of the sections of a page."""
    return {*re.findall(r'<section id="([a-z]+)"', page)}


def counted(monkeypatch):
    """The names of the experiments that run from now on, in order."""
    run = []
    for name, experiment in every_experiment().items():

        def measure(inputs, name=name, measured=experiment.measure):
            run.append(name)
            return measured(inputs)

        monkeypatch.setattr(experiment, "measure", measure)
    return run


NEW = """
import sys
import probe
import probe.experiments

probe.experiments.__path__.append(sys.argv[1])
study = probe.study("tiny-senses", "bank", permutations=99, max_pairs=4, experiments=["lengths"])
print(probe.write(study, sys.argv[1] + "/out"))
"""


def test_two_new_files_are_an_experiment_with_table_columns_and_section(tmp_path):
    chapter = (ROOT / "reports" / "docs" / "pages" / "contributing.md").read_text(encoding="utf-8")
    code = chapter.partition("### An experiment")[2]
    module, template = re.findall(r"```(?:python|jinja)\n(.*?)```", code, re.DOTALL)[:2]
    (tmp_path / "lengths.py").write_text(module)
    (tmp_path / "lengths.html.j2").write_text(template)
    # In a process of its own: experiments are found once.
    command = [sys.executable, "-c", NEW, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    out = tmp_path / "out"
    rows = pd.read_csv(out / "lengths.csv")
    assert list(rows) == ["word", "depth", "length"] and len(rows) == 5
    assert "mean length of the word's vector" in set(pd.read_csv(out / "columns.csv")["meaning"])
    page = (out / REPORT).read_text(encoding="utf-8")
    assert "How long the vector is" in page
    assert f"<bdi>bank</bdi> is {decimal(rows['length'].iloc[-1])} long at the end" in page
