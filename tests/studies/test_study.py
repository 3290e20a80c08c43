"""The study from end to end, on an embedded model: the promises of its frames, the choice of
experiments, and a study that is interrupted after the answer and continued."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from embedded import embedded
from inside import (
    COLUMNS,
    REPORT,
    StudyOptions,
    decimal,
    every_experiment,
    manifest_of,
    read_record,
    studies,
    study_inputs,
)
from inside import choose_experiments as choose
from stored_study import rows_of, stored_study

import probe

ROOT = Path(__file__).parents[2]
# The contract of the heads table.
CONTRACT = """
    word sense_a sense_b layer head auroc auroc_low auroc_high hedges_g direct denoise noise swap
    swap_low swap_high same_sense added_after p_auroc q_auroc p_swap q_swap attention_cue
    attention_previous verdict rank rank_low rank_high net net_low net_high next_token p_next_token
    continuation p_continuation read_depth nouns more more_low more_high p_more more_word_axis
    more_length more_at_surprisal nouns_share comparison write_nouns write_more write_more_low
    write_more_high p_more_write write_more_word_axis write_more_length
"""
PAIR = ["word", "sense_a", "sense_b"]
BOTH_WAYS = "tiny-senses-bidirectional"
APPLE = "Apple unveiled a new smartphone model at their latest product launch event"
ALL = tuple(every_experiment())
ANSWERS = [name for name in ALL if every_experiment()[name].ANSWERS]
# The sections of a page that show a single experiment.
SECTIONS = {"edges", "together", "supplies", "cannot"}


LEFT_OUT = ("animal", "spy")  # of the four senses of mole


def sentences_of(word, frames=1):
    """Sentences of two senses of a word in some of the nine frames."""
    rows = [row for row in probe.lexicon.expand(word).sentences if row.sense not in LEFT_OUT]
    names = list(dict.fromkeys(row.frame for row in rows))[:frames]
    return [row for row in rows if row.frame in names]


SENTENCES = [*sentences_of("bank"), *sentences_of("mole")]
NUMBERS = {"permutations": 199, "max_pairs": 8}
OPTIONS = {"sentences": SENTENCES} | NUMBERS
QUICK = {"sentences": sentences_of("bank"), "permutations": 99, "max_pairs": 8}


REPORTED = []  # the stages of this study, and the share of the work that is done


@pytest.fixture(scope="module")
def study(tiny):
    """A study of two words that runs to its end."""
    return probe.study(tiny, progress=lambda *report: REPORTED.append(report), **OPTIONS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def answer(tiny, folder):
    """The study of one of the words and the page at the time of the answer; nothing else is
    measured."""
    inputs = study_inputs(tiny, "mole", SENTENCES, StudyOptions(**NUMBERS), None)
    study = next(studies(inputs, out=folder, answer_first=True))
    probe.write(study, folder, command="probe report")
    return study


def test_every_stage_of_every_word_is_reported_in_order(study):
    names, shares = zip(*REPORTED, strict=True)
    assert list(shares) == sorted(shares) and shares[0] <= 0.01 and shares[-1] < 1
    stages = 1 + len(ALL)  # the sentences are read, and then each experiment runs
    of_words = [name for name in names if name in ("bank", "mole")]
    assert of_words == ["bank"] * stages + ["mole"] * stages


# --- frames ---------------------------------------------------------------------------------------


def test_the_heads_table_keeps_the_contracts_names_and_order(study):
    assert list(study.heads) == CONTRACT.split() and set(study.heads) <= set(COLUMNS)
    assert len(study.heads) == 2 * 16 and len(study.words) == 2
    # `make golden-update` stores that study again.
    stored, new = (
        {name: list(frame) for name, frame in each.frames.items()}
        for each in (stored_study(), study)
    )
    assert stored == new


def test_every_pair_of_senses_has_a_gap_and_starts_from_the_same_vector(study):
    assert study.words["ranked"].all() and (study.words["gap_low"] > 0).all()
    assert study.words["smallest_p"].tolist() == pytest.approx([1 / 200] * 2, abs=1e-4)
    token = study.depth.query("depth == -1")
    assert (token[["coordinate", "low", "high"]] == 0).all(axis=None)
    assert (token["auroc"] == 0.5).all()
    assert np.allclose(study.shares.groupby(PAIR)["share"].sum(), 1, atol=1e-4)
    assert (study.shares.query("component == 'token embedding'")["share"] == 0).all()
    at = study.depth.merge(study.words[[*PAIR, "depth"]]).set_index("sense")
    for _, of_pair in at.groupby(PAIR):
        (a,), (b,) = of_pair["sense_a"].unique(), of_pair["sense_b"].unique()
        assert of_pair.loc[a, "coordinate"] > 0.2 and of_pair.loc[b, "coordinate"] < -0.2


def test_effects_add_up_and_are_listed_at_the_depth_where_their_head_is_read(study):
    heads = study.heads
    assert np.allclose(heads["swap"], (heads["denoise"] + heads["noise"]) / 2, atol=1e-5)
    assert np.allclose(heads["added_after"], heads["swap"] - heads["direct"], atol=1e-5)
    assert heads[["attention_cue", "attention_previous"]].stack().between(0, 1).all()
    read = heads.merge(study.by_depth, on=[*PAIR, "layer", "head"], suffixes=("", "_there"))
    read = read.query("depth == read_depth")
    assert len(read) == len(heads) and np.allclose(read["net"], read["net_there"], atol=1e-5)
    for (word, *_), of_pair in heads.groupby(PAIR):
        depth = study.words.query("word == @word")["depth"].iloc[0]
        assert sorted(of_pair["rank"]) == list(range(1, 17))
        assert (of_pair["read_depth"] == np.where(of_pair["layer"] < depth, depth, 4)).all()
    top_heads = study.word_heads.query("rank == 1")
    assert (top_heads["rank_low"] == 1).all() and (top_heads["net_low"] > 0).all()


def test_the_top_heads_restore_the_sense_and_beat_every_random_set(study):
    for word in ("bank", "mole"):
        curve = study.curves.query("word == @word").set_index("size")
        size = int(curve["smallest"].iloc[0])
        joined = ", ".join(curve["added"].dropna()).split(", ")
        assert size <= 4 and len(joined) == len(set(joined)) == curve.index.max()
        assert curve.loc[size, "faithfulness"] >= 0.9 > curve.loc[size - 1, "faithfulness"]
        random = study.random_sets.query("word == @word and size == @size")["faithfulness"]
        assert len(random) > 20 and random.max() < curve.loc[size, "faithfulness_low"]


def test_used_and_left_out_sentences_add_up_to_all_sentences(study):
    for word in ("bank", "mole"):
        rows = study.sentences.query("word == @word")
        used = (rows["part"] != "neither").sum()
        assert used + (study.left_out["word"] == word).sum() == len(sentences_of(word))


def test_attention_and_contribution_of_a_reading_equal_the_trace(study):
    row, keys = study.readings.iloc[0], ["sentence", "word", "layer", "head"]
    reading = study.readings.groupby(keys).get_group(tuple(row[keys]))
    trace = probe.trace(embedded(), row["text"])
    target = reading.loc[reading["role"] == "word", "pos"].max()
    pattern = trace.pattern[row["layer"], row["head"], target]
    assert np.allclose(reading["attention"], pattern, atol=1e-5)
    later = reading.loc[reading["pos"] > target, ["attention", "contribution"]]
    assert not later.to_numpy().any()


def test_later_words_change_the_sense_only_in_a_model_that_reads_both_ways(study):
    late = study.showcase["cue_after"].astype(bool)
    assert late.any() and (study.showcase["difference"] <= 1e-5).all()
    assert study.showcase.loc[late, "reads_as"].isna().all()
    assert (study.showcase.loc[~late, "reads_as"] == study.showcase.loc[~late, "sense"]).all()
    apple = QUICK | {"sentences": sentences_of("apple")}
    encoder = probe.study(embedded(BOTH_WAYS), "apple", experiments="lessons", **apple)
    [row] = encoder.showcase[encoder.showcase["text"] == APPLE].to_dict("records")
    assert row["reads_as"] == row["sense"] == "company" and row["difference"] > 0.2
    toward = 1 if row["sense_a"] == "company" else -1
    assert toward * row["coordinate"] > 0.2


def test_a_study_shows_itself_and_names_its_frames(study):
    assert repr(study) == f"<Study of bank, mole in tiny-senses: {len(study.frames)} tables>"
    assert {"words", "heads", "depth", "frames", "options"} <= set(dir(study))
    page = study._repr_html_()
    assert "bank" in page and "tiny-senses" in page
    with pytest.raises(AttributeError, match="this study has no 'nothing'; its frames are words,"):
        _ = study.nothing


def test_another_seed_draws_anew_and_keeps_the_read_out_layer(tiny, study):
    quick, again, other = (
        probe.study(tiny, seed=seed, experiments=("heads",), **QUICK) for seed in (0, 0, 2)
    )
    pd.testing.assert_frame_equal(quick.heads, again.heads)
    assert not quick.heads["swap"].equals(other.heads["swap"])
    assert set(other.words["depth"]) == set(study.words["depth"]) and other.words["ranked"].all()


@pytest.mark.campaign
def test_an_untrained_model_has_no_gap_and_nothing_is_ranked():
    from inside import loading as load

    random_model = load.untrained(embedded(), seed=0)
    quick = QUICK | {"sentences": None}
    study = probe.study(random_model, "seal", experiments=("heads", "readings"), **quick)
    assert not study.words["ranked"].any()
    assert study.heads[["swap", "direct", "rank"]].isna().all(axis=None)
    assert study.word_heads.empty and study.readings.empty


def test_sentences_without_frames_pairs_or_cues_are_studied_with_drawn_donors(tmp_path):
    """The same from a file and from a table."""
    rows = [{"sense": row.sense, "text": row.text} for row in sentences_of("bank")]
    file = tmp_path / "mine.csv"
    pd.DataFrame(rows).to_csv(file, sep=";", index=False)
    options = QUICK | {"experiments": ("heads",)}
    first, second = (
        probe.study(embedded(), "bank", **options | {"sentences": given}) for given in (file, rows)
    )
    assert first.options["sentences"] == "mine.csv" and len(first.sentences) == len(rows)
    assert first.words["pair_design"].item() == "donors drawn at random"
    assert first.words["split_design"].item() == "5 folds by sentence"
    assert first.heads["attention_cue"].isna().all() and first.words["ranked"].item()
    for name in ("words", "heads"):
        pd.testing.assert_frame_equal(first.frames[name], second.frames[name])


# --- experiments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only", "without", "expected"),
    [
        (None, (), {*ALL}),
        ("heads, nouns", (), {"senses", "heads", "nouns"}),
        (["circuit"], (), {"senses", "heads", "nouns", "circuit"}),
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
    with pytest.raises(
        probe.InputError, match="Cannot omit the experiment heads: .*Omit some of no"
    ):
        choose(without="sets,heads")


def test_experiments_come_after_what_they_need_and_the_answer_comes_first():
    for number, name in enumerate(ALL):
        assert {*every_experiment()[name].NEEDS} <= {*ALL[:number]}
    assert [*ALL[: len(ANSWERS)]] == ANSWERS and {"heads", "nouns"} <= {*ANSWERS}
    page = (ROOT / "reports" / "docs" / "pages" / "commands.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+\?\s*\| (.*?) ?\|$", page, re.MULTILINE)
    assert [(name, tuple(re.findall(r"`(\w+)`", needs))) for name, needs in rows] == [
        (name, experiment.NEEDS) for name, experiment in every_experiment().items()
    ]


NEW = """
import sys
import probe
import probe.experiments

probe.experiments.__path__.append(sys.argv[1])
rows = probe.lexicon.expand("bank").sentences[:48]
quick = {"permutations": 99, "max_pairs": 4, "experiments": ["lengths"]}
study = probe.study("tiny-senses", "bank", sentences=rows, **quick)
probe.write(study, sys.argv[1] + "/out", tables=True)
assert not [name for name in sys.modules if name.startswith("probe.walks")]
"""


def test_two_new_files_are_an_experiment_with_table_columns_and_section(tmp_path):
    """And the study loads nothing of the walk."""
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
    assert f"<bdi>bank</bdi> is {decimal(rows['length'].iloc[-1])} long at the end" in page


# --- an interrupted study -------------------------------------------------------------------------


def sections_of(page):
    """The ids of the sections of a page."""
    return {*re.findall(r'<section id="([a-z]+)"', page)}


def of_mole(study, name):
    """The rows of mole in a table."""
    return rows_of(study.frames[name], ["mole"]).reset_index(drop=True)


def counted(monkeypatch):
    """The names of the experiments that run from now on, in order."""
    run = []
    for name, experiment in every_experiment().items():

        def measure(inputs, name=name, measured=experiment.measure):
            run.append(name)
            return measured(inputs)

        monkeypatch.setattr(experiment, "measure", measure)
    return run


def test_the_first_page_has_the_answer_and_says_what_finishes_it(answer, study, folder):
    assert answer.unfinished == ALL[len(ANSWERS) :] and study.unfinished == ()
    assert {"curves", "shares", "edges", "showcase"}.isdisjoint(answer.frames)
    for name in ("words", "word_heads", "controls"):
        first, whole = (
            of_mole(study, name).drop(columns="verdict", errors="ignore")
            for study in (answer, study)
        )
        pd.testing.assert_frame_equal(first, whole)
    page = (folder / REPORT).read_text(encoding="utf-8")
    [note] = re.findall(r'<p class="note" id="unfinished">(.*?)</p>', page)
    assert "<code>probe report</code>" in note and "finished work is not repeated" in note
    assert sections_of(page).isdisjoint(SECTIONS) and not list(folder.glob("curves.*"))
    assert probe.read(folder).unfinished == answer.unfinished


def test_a_stopped_study_resumes_and_has_the_same_numbers(tiny, answer, study, folder, monkeypatch):
    [file] = folder.glob("*/*.word")
    assert [*read_record(file).measured] == ANSWERS
    run = counted(monkeypatch)
    finished = probe.study(tiny, "mole", out=folder, **OPTIONS)
    assert sorted(run) == sorted(ALL[len(ANSWERS) :])
    assert list(finished.frames) == list(study.frames)
    for name in {*study.frames} - {"certificate"}:  # which reads a text of every word
        both = (of_mole(each, name) for each in (finished, study))
        pd.testing.assert_frame_equal(*both, check_dtype=False)
    probe.write(finished, folder, command="probe report")
    page = (folder / REPORT).read_text(encoding="utf-8")
    assert "unfinished" not in page and sections_of(page) >= SECTIONS
    assert "unfinished" not in manifest_of(folder)
    assert "the cue comes after the word" in page
    assert f"An encoder can: <code>probe report mole --model {BOTH_WAYS}</code>" in page

    run.clear()
    inputs = study_inputs(tiny, "mole", SENTENCES, StudyOptions(**NUMBERS), ["sets"])
    [part] = studies(inputs, out=folder, answer_first=True)
    assert not run and part.options["experiments"] == ["senses", "heads", "sets"]
    assert "curves" in part.frames and {"controls", "edges"}.isdisjoint(part.frames)


def test_the_data_of_a_word_open_with_xarray_alone(study, tmp_path):
    study.data["bank"].to_netcdf(tmp_path / "bank.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "bank.nc", engine="h5netcdf") as opened:
        net = opened["heads/0"].net
        assert net.dims == ("layer", "head") and net.attrs["unit"] == "fraction of the sense gap"
        of_bank = study.heads.query("word == 'bank'")["net"]
        np.testing.assert_allclose(net.values.ravel(), of_bank, rtol=1e-5)


# --- refusals -------------------------------------------------------------------------------------

KNOWN = "Cannot find sentences with {!r}.{} The known words are apple, bank, bark,"
NUMBER = "Cannot study words: got {}, expected a whole number from {} on"
WORDS = "Cannot choose words: got {}, not a word or a list of words. Give ['bank'], for example, or omit it for bank, mole, apple."


@pytest.mark.parametrize(
    ("words", "options", "start"),
    [
        ("wug", {}, KNOWN.format("wug", "")),
        ("moles", {}, KNOWN.format("moles", " Did you mean 'mole'?")),
        ("bank", {"permutations": 5}, NUMBER.format("permutations = 5", 99) + ", so that p can reach .01. Omit it"),
        ("bank", {"permutations": "x"}, NUMBER.format("permutations = 'x'", 99)),
        ("bank", {"seed": -1}, NUMBER.format("seed = -1", 0) + ". Omit it for 0."),
        ("bank", {"max_pairs": 0}, NUMBER.format("max_pairs = 0", 1) + ". Omit it for 24."),
        ("bank", {"max_pairs": "x"}, NUMBER.format("max_pairs = 'x'", 1)),
        *((words, {}, WORDS.format(repr(words))) for words in ([], (), 5, [None])),
        ("bank", {"experiments": ["circit"]}, f"Cannot choose experiments: 'circit' is unknown. Give some of {', '.join(ALL)}, separated by commas."),
    ],
)  # fmt: skip
def test_invalid_studies_are_refused_before_the_work(words, options, start):
    with pytest.raises(probe.InputError, match=f"^{re.escape(start)}"):
        probe.study(embedded(), words, progress=lambda *stage: pytest.fail("work began"), **options)


def test_letter_case_is_ignored_unless_the_same_spelling_exists(tiny):
    rows = [
        {"word": word, "sense": sense, "text": f"{sense} {word}"}
        for word in ("Apple", "apple")
        for sense in ("fruit", "firm")
    ]
    with pytest.raises(probe.InputError, match=r"'APPLE'\. Did you mean 'Apple' or 'apple'\?"):
        probe.study(tiny, "APPLE", sentences=rows)
