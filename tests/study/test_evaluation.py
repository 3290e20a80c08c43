"""An evaluation: what is held out, what of a corpus is read, models whose answer is known, and the command."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from checkpoints import make_checkpoint
from handmade import LAYERS, corpus_of, make_sentences, resolver_model, without
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score
from test_nearest import row

import probe
from probe.model.tokens import tokenize
from probe.study import material
from probe.study.columns import COLUMNS, METHODS
from probe.text import splits
from probe.text.sentences import Sentence
from probe.text.splits import Holdout

DATA = Path(__file__).parents[2] / "../shared/data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="CoarseWSD-20 and the homonyms are not beside the repository")


# What is held out.


def test_train_and_test_are_kept_where_the_file_gives_them():
    parts = [("a", "train"), ("b", "train"), ("a", "test"), ("c", "test"), ("a", None), ("b", "dev"), ("b", "test")]
    plan = splits.plan([row(f"{n} bank", sense, split=part) for n, (sense, part) in enumerate(parts)], seed=0)
    assert plan.rows == (0, 1, 2, 6) and plan.holdouts == (Holdout((0, 1), (2, 3)),)
    assert plan.left_out == {3: splits.NOT_LEARNED, 4: splits.NO_PART, 5: splits.NO_PART}


def test_a_word_with_one_sense_in_training_is_left_out():
    parts = [("a", "train"), ("a", "test"), ("b", "test")]
    plan = splits.plan([row(f"{n} bank", sense, split=part) for n, (sense, part) in enumerate(parts)], seed=0)
    assert plan.holdouts == () and plan.left_out == {
        0: splits.ONE_SENSE,
        1: splits.ONE_SENSE,
        2: splits.NOT_LEARNED,
    }


def test_only_train_or_only_test_is_no_split():
    plan = splits.plan([row(f"{n} bank", "ab"[n % 2], split="train") for n in range(8)], seed=0)
    assert len(plan.holdouts) > 1 and plan.rows == tuple(range(8))


def test_a_sense_that_occurs_once_is_left_out_and_the_rest_is_tested():
    plan = splits.plan([row(f"{n} bank", sense) for n, sense in enumerate("aaabbbc")], seed=0)
    assert plan.left_out == {6: splits.TOO_FEW} and plan.rows == (0, 1, 2, 3, 4, 5)


def test_a_word_with_nothing_to_tell_apart_is_left_out_as_a_whole():
    plan = splits.plan([row(f"{n} bank", sense) for n, sense in enumerate("aaaab")], seed=0)
    assert plan.holdouts == ()
    assert Counter(plan.left_out.values()) == {splits.ONE_SENSE: 4, splits.TOO_FEW: 1}


def test_a_sense_with_one_cue_word_cannot_be_learned_apart_from_it():
    cues = [("a", "river"), ("a", "shore"), ("b", "loan"), ("b", "cash"), ("c", "plane"), ("c", "plane")]
    rows = [row(f"{n} {cue} bank", sense, cue=cue) for n, (sense, cue) in enumerate(cues)]
    plan = splits.plan(rows, seed=0)
    assert plan.left_out == {4: splits.TOO_FEW, 5: splits.TOO_FEW}
    assert "cue word" in plan.design and "sentence" not in plan.design


def test_a_frame_that_all_sentences_share_keeps_nothing_apart():
    rows = [row(f"{n} bank", "ab"[n % 2], frame="the only one") for n in range(8)]
    assert splits.plan(rows, seed=0) == splits.plan(without(rows, "frame"), seed=0)


@pytest.mark.parametrize("seed", range(4))
def test_sentences_without_frames_and_cues_are_dealt_out_sense_by_sense(seed):
    rows = [row(f"{n} bank", sense) for n, sense in enumerate("a" * 10 + "b" * 5)]
    plan = splits.plan(rows, seed=seed)
    tested = [Counter(rows[place].sense for place in holdout.test) for holdout in plan.holdouts]
    assert tested == [{"a": 2, "b": 1}] * 5
    assert all(len(holdout.train) == 12 for holdout in plan.holdouts)


def test_the_same_text_is_never_on_both_sides():
    text = "bank by bank"
    twice = [row(text, "a"), Sentence("bank", "a", text, 8, 12)]
    plan = splits.plan([*twice, *(row(f"{n} bank", "ab"[n % 2]) for n in range(6))], seed=0)
    assert all(len({0, 1} & set(holdout.test)) != 1 for holdout in plan.holdouts)


def test_the_seed_decides_the_folds_and_nothing_else_does():
    rows = [row(f"{n} bank", "ab"[n % 2]) for n in range(20)]
    assert splits.plan(rows, seed=1) == splits.plan(rows, seed=1) != splits.plan(rows, seed=2)


@given(st.lists(st.tuples(*(st.integers(0, most) for most in (2, 5, 5))), min_size=4, max_size=40), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_no_frame_and_no_cue_is_learned_and_tested_and_every_sense_is_learned(drawn, seed):
    rows = [
        row(f"{n} cue{cue} bank", f"sense{sense}", frame=f"frame{frame}", cue=f"cue{cue}")
        for n, (sense, frame, cue) in enumerate(drawn)
    ]
    assume(len({sentence.frame for sentence in rows}) > 1 and len({cue for _, _, cue in drawn}) > 1)
    plan = splits.plan(rows, seed=seed)
    assert set(plan.rows).isdisjoint(plan.left_out)
    assert sorted([*plan.rows, *plan.left_out]) == list(range(len(rows)))
    tested = [place for holdout in plan.holdouts for place in holdout.test]
    assert sorted(tested) == list(range(len(plan.rows)))
    for holdout in plan.holdouts:
        train, test = ([drawn[plan.rows[place]] for place in side] for side in (holdout.train, holdout.test))
        assert {sense for sense, _, _ in train} == {drawn[used][0] for used in plan.rows}
        assert {frame for _, frame, _ in train}.isdisjoint(frame for _, frame, _ in test)
        assert {cue for _, _, cue in train}.isdisjoint(cue for _, _, cue in test)


def test_most_frames_and_cues_stay_in():
    rows = make_sentences()
    plan = splits.plan(rows, seed=0)
    assert plan.left_out == {} and len(plan.holdouts) == 25
    assert all(len(holdout.train) > len(rows) / 2 for holdout in plan.holdouts)


@pytest.mark.parametrize("train, test", [((), (1,)), ((0,), ()), ((0, 1), (1,))])
def test_a_holdout_refuses_to_learn_what_it_tests(train, test):
    with pytest.raises(ValueError, match="holdout: "):
        Holdout(train, test)


# The words of a corpus, read.

TEXTS = {
    "a": (
        "the river bank",
        "a muddy bank by the water",
        "she saw the bank of the old river",
        "the flood rose over the bank",
    ),
    "b": (
        "the bank raised the interest",
        "a loan of the bank",
        "every bank in the town",
        "he sold the stock at the bank",
    ),
}
ROWS = [row(text, sense) for sense, texts in TEXTS.items() for text in texts]
MOLES = [
    row(f"{text} mole", sense, word="mole") for text, sense in (("a", "x"), ("the", "x"), ("one", "y"), ("no", "y"))
]


def test_what_cannot_be_used_is_left_out_with_the_reason(model):
    long = row("bank " + "river " * 60, "a")
    elsewhere = Sentence("bank", "a", "the river bank", 4, 9)
    alone = [row(f"the {n} seal", "one", word="seal") for n in range(3)]
    found = material.prepare_task(model, corpus_of([long, *ROWS, elsewhere, *alone]), seed=0)
    assert [(task.word, len(task), len(task.left_out)) for task in found] == [("bank", 8, 2), ("seal", 0, 3)]
    reasons = {item.where: item.reason for item in found[0].left_out}
    assert reasons[long.text] == "it has more tokens than the context window of 48"
    assert reasons[elsewhere.text] == material.NOT_THE_WORD
    assert {item.reason for item in found[1].left_out} == {splits.ONE_SENSE}


def test_what_is_read_is_the_residual_stream_at_the_word_in_the_order_given(model, monkeypatch):
    monkeypatch.setattr(material, "CHUNK", 3)
    monkeypatch.setattr(material, "LOAD", 5)
    zebras = [row(f"{n} zebra ran", "ab"[n % 2], word="zebra") for n in range(4)]
    assert len(tokenize(model, "zebra")) > 2  # more than BOS and one token
    found = list(material.read(model, material.prepare_task(model, corpus_of([*ROWS, *MOLES, *zebras]), seed=0)))
    assert [task.word for task, _ in found] == ["bank", "mole", "zebra"]
    for task, resid in found:
        for sentence, states in zip(task.sentences, resid, strict=True):
            whole = probe.trace(model, sentence.text)
            # The last token of the word is the last one that starts before its end.
            target = max(pos for pos, (start, _) in enumerate(whole.tokens.spans) if start < sentence.end)
            expected = torch.cat([whole.resid_pre[:1, target], whole.resid_post[:, target]])
            assert torch.allclose(states, expected, atol=1e-5)


# From end to end.


@pytest.fixture(scope="module")
def two_words(model):
    given = [replace(sentence, split="test" if n % 4 == 3 else "train") for n, sentence in enumerate(ROWS)]
    return probe.evaluate(model, corpus_of([*given, *MOLES]), seed=0)


def test_the_scores_are_those_of_an_independent_computation(model, two_words):
    vectors = []
    for sentence in ROWS:
        cut = tokenize(model, sentence.text[: sentence.end])
        hidden = model.bridge.original_model(torch.tensor([cut.ids]), output_hidden_states=True).hidden_states
        vectors.append([layer[0, -1].detach().numpy() for layer in hidden[:-1]])  # the last one is after the final norm
    vectors, sense, test = np.array(vectors), np.array([s.sense for s in ROWS]), np.arange(8) % 4 == 3
    for depth in range(2):
        means = [vectors[(sense == name) & ~test, depth].mean(0) for name in "ab"]
        cosine = [[v @ m / np.linalg.norm(v) / np.linalg.norm(m) for m in means] for v in vectors[test, depth]]
        said = np.array(list("ab"))[np.argmax(cosine, axis=1)]
        found = two_words.depths.query("word == 'bank' and depth == @depth").iloc[0]
        assert np.isclose(found["accuracy"], accuracy_score(sense[test], said))
        assert np.isclose(found["macro_f1"], f1_score(sense[test], said, average="macro"), atol=1e-5)


def test_the_frames_count_every_sentence(two_words):
    words = two_words.words.set_index("word")
    assert words.loc["bank", ["senses", "sentences", "tested", "left_out"]].tolist() == [2, 8, 2, 0]
    assert words.loc["mole", ["senses", "sentences", "tested", "left_out"]].tolist() == [2, 4, 4, 0]
    assert words.loc["bank", "frequent_accuracy"] == 0.5 and words.loc["bank", "depth"] in (1, 2)
    assert len(two_words.depths) == 2 * 3 and two_words.left_out.empty


def test_every_column_is_described(two_words):
    assert set().union(*two_words.frames.values()) <= set(COLUMNS)


def test_the_mean_is_over_the_words_and_has_every_method(two_words):
    mean, words, depths = two_words.mean, two_words.words, two_words.depths
    for score in ("accuracy", "macro_f1", "angle"):
        for depth, part in depths.groupby("depth"):
            assert np.isclose(mean.query("depth == @depth")[score].item(), part[score].mean(), atol=1e-5)
    without_depth = mean[mean["depth"].isna()].set_index("method")
    assert list(without_depth.index) == list(METHODS.values())
    assert np.isclose(without_depth.loc["bag of words", "macro_f1"], words["bag_macro_f1"].mean(), atol=1e-5)
    assert np.isclose(without_depth.loc["nearest sense centroid", "accuracy"], words["accuracy"].mean(), atol=1e-5)
    assert (mean["words"] == 2).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_senses_are_told_apart_after_the_layer_of_the_one_head_that_resolves(seed):
    model, (layer, _) = resolver_model(seed)
    found = probe.evaluate(model, corpus_of(make_sentences(frames=6, distances=(1, 2))), seed=seed)
    by_depth = found.depths["accuracy"]
    assert len(by_depth) == LAYERS + 1
    assert (by_depth[layer + 1 :] == 1).all() and (by_depth[: layer + 1] < 0.75).all()
    assert found.words["depth"].item() == layer + 1 and found.words["accuracy"].item() == 1
    # The cues of the folds tested were never seen, so bags know nothing.
    assert found.words[["bag_accuracy", "left_accuracy"]].max(axis=None) < 0.75


def test_nothing_is_known_at_the_word_when_the_cue_comes_after_it():
    # The sentences of a pair are the same up to the word, and so is their answer: one of the two is right.
    rows = without(make_sentences(frames=6, distances=(1, 2), cue_after=True), "cue_start", "cue_end", "pair")
    found = probe.evaluate(resolver_model(0)[0], corpus_of(rows), seed=0)
    assert (found.depths["accuracy"] == 0.5).all()
    words = found.words.iloc[0]
    assert words["left_accuracy"] == words["frequent_accuracy"] == words["accuracy"] == 0.5
    assert words["bag_accuracy"] == 1 and words["left_out"] == 0


def test_numbers_that_disagree_with_the_from_scratch_math_are_not_reported(model, monkeypatch):
    from probe.model import attention

    monkeypatch.setattr(attention, "softmax", lambda scores: (scores * 1.1).softmax(-1))
    with pytest.raises(probe.CrossCheckError, match="nothing is reported from numbers that disagree"):
        probe.evaluate(model, corpus_of(ROWS))


# The command.


@pytest.fixture
def run(run, monkeypatch, tmp_path, checkpoint):
    """Runs `probe evaluate ARGS` with the small random model in an empty folder; exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(vars(sentence)) for sentence in (*ROWS, *MOLES)))
    return partial(run, "evaluate", "--model", checkpoint)


def test_the_command_prints_every_word_and_the_mean_by_depth(run, tmp_path):
    given = tmp_path / "rows.jsonl"
    given.write_text(given.read_text() + "\n" + json.dumps(vars(row("the only seal", "one", word="seal"))))
    code, out, err = run("--sentences", given)
    assert code == 0 and err == ""
    lines = [line.split() for line in out.splitlines()]
    assert ["bank", "2", "8", "8", "0"] in [line[:5] for line in lines]
    assert ["mole", "2", "4", "4", "0"] in [line[:5] for line in lines]
    assert all(label in out for label in ("token + position", "after layer 0", "after layer 1", *METHODS.values()))
    assert "mean over 2 words" in out and f"1 left out: {splits.ONE_SENSE}" in out


def test_what_the_reader_left_out_is_counted_too_and_rare_reasons_together(run, tmp_path):
    given = tmp_path / "rows.jsonl"
    given.write_text("\n".join([given.read_text()] * 2))  # twelve repetitions, each of another line
    _, out, _ = run("--sentences", given, "--out", "out")
    assert out.count("1 left out: repeats the sentence, span and sense of line ") == 5
    assert "7 left out for 7 other reasons" in out
    assert len(pd.read_csv(tmp_path / "out" / "evaluation_left_out.csv")) == 12


def test_the_printed_numbers_are_percentages_of_the_frames(run, model):
    _, out, _ = run("--sentences", "rows.jsonl")
    found = probe.evaluate(model, probe.read_sentences("rows.jsonl")).words.iloc[0]
    line = next(line for line in out.splitlines() if line.startswith("bank"))
    assert f"{100 * found['accuracy']:.1f}" in line and f"{100 * found['macro_f1']:.1f}" in line
    assert f"{100 * found['bag_accuracy']:.1f} / {100 * found['bag_macro_f1']:.1f}" in line


def test_as_json_it_has_the_same_rows_and_no_invalid_number(run):
    code, out, _ = run("--sentences", "rows.jsonl", "--json", "--seed", 3)
    found = json.loads(out, parse_constant=pytest.fail)
    assert code == 0 and found["seed"] == 3
    assert [word["word"] for word in found["words"]] == ["bank", "mole"]
    assert len(found["depths"]) == 6 and len(found["mean"]) == 3 + 6 and found["left_out"] == []
    assert found["mean"][-1]["angle"] is None


def test_what_is_written_is_whole_described_and_the_same_every_time(run, tmp_path):
    for folder in ("one", "two"):
        assert run("--sentences", "rows.jsonl", "--out", tmp_path / folder)[0] == 0
    names = {
        f"evaluation_{frame}.{ending}"
        for frame in ("words", "depths", "mean", "left_out")
        for ending in ("csv", "parquet")
    }
    assert {file.name for file in (tmp_path / "one").iterdir()} == names | {"manifest.json"}
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)
    made = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert set(made["files"]) == names and made["sentences"] == "rows.jsonl"
    assert made["command"].split()[:4] == ["probe", "evaluate", "--sentences", "rows.jsonl"]
    assert str(tmp_path) not in (tmp_path / "one" / "manifest.json").read_text()
    read = pd.read_parquet(tmp_path / "one" / "evaluation_words.parquet")
    assert list(read["word"]) == ["bank", "mole"]


def refused(result, *parts):
    code, out, err = result
    assert code == 2 and out == ""
    assert err.startswith("probe: ") and err.count("\n") == 1 and err.rstrip().endswith("."), err
    assert all(part in err for part in parts), err


def test_sentences_with_nothing_to_tell_apart_are_refused_in_one_sentence(run, tmp_path):
    one = "\n".join(json.dumps(vars(sentence)) for sentence in ROWS[:4])
    (tmp_path / "one.jsonl").write_text(one)
    refused(
        run("--sentences", "one.jsonl", "--out", "out"),
        f"Evaluating the sentences of one.jsonl: none of 4 can be tested (4 left out: {splits.ONE_SENSE}), "
        "expected a word with two senses and at least two sentences of each; give more sentences.",
    )
    assert not (tmp_path / "out").exists()


def test_bad_arguments_are_refused_in_one_sentence(run, tmp_path):
    refused(run("--sentences", "nowhere.jsonl"), "nowhere.jsonl", "there is no such file")
    refused(run(), "--sentences")
    refused(run("--sentences", "rows.jsonl", "--out", tmp_path / "rows.jsonl" / "out"), "is a file", "--out")
    refused(run("--sentences", "rows.jsonl", "--seed", "-1"), "seed")


# Folders of words, and the data beside the repository.


def word_folder(place, *sentences):
    place.mkdir(parents=True)
    (place / "classes_map.txt").write_text('{"0": "x", "1": "y"}')
    for split in ("train", "test"):
        (place / f"{split}.data.txt").write_text("".join(f"{len(text.split()) - 1}\t{text}\n" for text, _ in sentences))
        (place / f"{split}.gold.txt").write_text("".join(f"{sense}\n" for _, sense in sentences))
    return place


def test_a_folder_of_word_folders_is_all_of_their_sentences(tmp_path):
    seal = word_folder(tmp_path / "words" / "seal", ("a seal", 0), ("the seal", 1))
    mole = word_folder(tmp_path / "words" / "mole", ("a mole", 0), ("the mole", 1))
    corpus = probe.read_sentences(tmp_path / "words")
    apart = [probe.read_sentences(place) for place in (mole, seal)]
    assert corpus.sentences == apart[0].sentences + apart[1].sentences
    assert [item.where for item in corpus.left_out][:2] == ["mole/test.data.txt line 1", "mole/test.data.txt line 2"]
    assert corpus.source == "words"
    (seal / "test.gold.txt").write_text("1\n1\n")
    assert probe.read_sentences(tmp_path / "words").sha256 != corpus.sha256


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return probe.load(make_checkpoint(tmp_path_factory.mktemp("models") / "wide", n_positions=300))


@needs_data
def test_a_word_of_coarsewsd_is_tested_on_its_own_test_part(wide):
    folder = DATA / "coarsewsd20" / "crane"
    corpus = probe.read_sentences(folder)
    found = probe.evaluate(wide, corpus)
    words = found.words.iloc[0]
    lines = [len((folder / f"{part}.data.txt").read_text().rstrip("\n").split("\n")) for part in ("train", "test")]
    assert words["sentences"] + len(found.left_out) == sum(lines)
    fits = [len(wide.tokenizer(sentence.text)["input_ids"]) < 300 for sentence in corpus.sentences]  # one for BOS
    assert words["sentences"] == sum(fits) and 0 < words["left_out"] == fits.count(False)
    tested = [fit for fit, sentence in zip(fits, corpus.sentences, strict=True) if sentence.split == "test"]
    assert words["tested"] == sum(tested)
    assert words["bag_accuracy"] > words["left_accuracy"] > words["frequent_accuracy"]


@needs_data
def test_every_word_of_coarsewsd_and_of_the_homonyms_can_be_tested(wide):
    folder = probe.read_sentences(DATA / "coarsewsd20")
    assert {sentence.word for sentence in folder.sentences} == {"apple", "bank", "crane", "mole", "seal"}
    homonyms = material.prepare_task(wide, probe.read_sentences(DATA / "homonyms" / "dev.jsonl"), seed=0)
    assert len(homonyms) == 50 and all(len(task.plan.holdouts) == 5 for task in homonyms)
    assert sum(map(len, homonyms)) == 996
