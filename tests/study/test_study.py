"""The study from end to end: what its frames promise, on the embedded model and on one that was never trained."""

import dataclasses
from functools import cache

import numpy as np
import pandas as pd
import pytest
from example_study import make_study

import probe
from probe.errors import InputError
from probe.model import load
from probe.study.columns import COLUMNS
from probe.study.material import prepare
from probe.study.study import _choose_words, _spelled
from probe.study.word import StudyOptions, observe_word
from probe.text.sentences import Corpus

pytestmark = pytest.mark.real_model

# The contract of the heads table.
CONTRACT = (
    *("word", "sense_a", "sense_b", "layer", "head", "auroc", "auroc_low", "auroc_high", "hedges_g"),
    *("direct", "denoise", "noise", "swap", "swap_low", "swap_high", "same_sense", "self_repair"),
    *("p_auroc", "q_auroc", "p_swap", "q_swap", "attention_cue", "attention_previous", "verdict"),
    *(
        "rank",
        "rank_low",
        "rank_high",
        "net",
        "net_low",
        "net_high",
        "said",
        "p_said",
        "continued",
        "p_continued",
        "read_depth",
    ),
)


@pytest.fixture(scope="module")
def model():
    return probe.load("tiny-senses")


@pytest.fixture(scope="module")
def study(model):
    return probe.study(model, ["bank", "mole"], seed=0)


@pytest.fixture(scope="module")
def untrained(model):
    return load.untrained(model, seed=0)


@pytest.fixture(scope="module")
def quick(model):
    """A study of bank with few permutations and pairs, once per seed."""
    return cache(lambda seed: probe.study(model, "bank", seed=seed, permutations=99, max_pairs=8))


def corpus_of(word, **changes):
    """A third of its sentences, changed."""
    given = probe.expand(word)
    rows = tuple(dataclasses.replace(sentence, **changes) for sentence in given.sentences[: len(given.sentences) // 3])
    return Corpus(rows, (), "own.jsonl", given.sha256)


def test_the_heads_table_keeps_the_contracts_names_and_order(study):
    assert [name for name in CONTRACT if name in study.heads] == list(study.heads)
    assert set(study.heads) <= set(COLUMNS)
    assert len(study.heads) == (1 + 6) * 16


def test_the_made_up_study_of_other_tests_has_the_columns_of_a_real_one(model):
    real = probe.study(model, "apple", permutations=99, max_pairs=8, beside=probe.load("tiny-senses-bidirectional"))
    made = make_study().frames
    assert {name: list(frame) for name, frame in made.items()} == {name: list(real.frames[name]) for name in made}
    assert set(made) == set(real.frames)


def test_too_few_permutations_are_refused(model):
    said = (
        "Studying words: got permutations = 5, expected at least 99, so that a p of .01 can be reached; leave it away"
    )
    with pytest.raises(InputError, match=said):
        probe.study(model, "bank", permutations=5)


def test_the_smallest_p_is_that_of_the_permutations_made(study, quick):
    assert study.words["smallest_p"].tolist() == pytest.approx([1 / 1001] * 7, abs=1e-4)
    assert quick(0).words["smallest_p"].item() == pytest.approx(1 / 100)


def test_every_pair_of_senses_is_there_and_has_a_gap(study):
    assert len(study.words) == 1 + 6
    assert study.words["ranked"].all()
    assert (study.words["gap_low"] > 0).all()


def test_shares_sum_to_1_and_the_token_embedding_has_none(study):
    sums = study.shares.groupby(["word", "sense_a", "sense_b"])["share"].sum()
    assert np.allclose(sums, 1, atol=1e-4)
    assert (study.shares.query("component == 'token embedding'")["share"] == 0).all()


def test_the_senses_start_as_one_and_the_same_vector(study):
    token = study.depth.query("depth == -1")
    assert (token[["coordinate", "low", "high"]] == 0).all(axis=None)
    assert (token["auroc"] == 0.5).all()


def test_the_coordinate_at_the_read_out_is_half_a_gap_on_either_side(study):
    for row in study.words.itertuples():
        of_pair = study.depth[
            (study.depth[["word", "sense_a", "sense_b"]] == [row.word, row.sense_a, row.sense_b]).all(axis=1)
        ]
        at = of_pair[of_pair["depth"] == row.depth].set_index("sense")["coordinate"]
        assert at[row.sense_a] > 0.2 and at[row.sense_b] < -0.2


def test_effects_add_up(study):
    heads = study.heads
    assert np.allclose(heads["swap"], (heads["denoise"] + heads["noise"]) / 2, atol=1e-5)
    assert np.allclose(heads["self_repair"], heads["swap"] - heads["direct"], atol=1e-5)
    assert heads["attention_cue"].between(0, 1).all() and heads["attention_previous"].between(0, 1).all()


def test_every_head_has_a_rank_and_is_read_behind_itself(study):
    for (word, *_), of_pair in study.heads.groupby(["word", "sense_a", "sense_b"]):
        depth = study.words.query("word == @word")["depth"].iloc[0]
        assert sorted(of_pair["rank"]) == list(range(1, 17))
        assert (of_pair["read_depth"] == np.where(of_pair["layer"] < depth, depth, 4)).all()
    leaders = study.word_heads.query("rank == 1")
    assert (leaders["rank_low"] == 1).all() and (leaders["net_low"] > 0).all()


def test_the_effect_of_a_head_is_the_one_at_the_depth_where_it_is_read(study):
    keys = ["word", "sense_a", "sense_b", "layer", "head"]
    assert (study.by_depth["layer"] < study.by_depth["depth"]).all()
    read = study.heads.merge(study.by_depth, on=keys, suffixes=("", "_there")).query("depth == read_depth")
    assert len(read) == len(study.heads) and np.allclose(read["net"], read["net_there"], atol=1e-5)


def test_the_leading_heads_restore_the_sense_and_beat_every_random_set(study):
    for word in ("bank", "mole"):
        curve = study.curves[study.curves["word"] == word].set_index("size")
        smallest = int(curve["smallest"].iloc[0])
        assert smallest <= 4
        joined = ", ".join(curve["added"].dropna()).split(", ")
        assert len(joined) == len(set(joined)) == curve.index.max()
        assert curve.loc[smallest, "faithfulness"] >= 0.9 > curve.loc[smallest - 1, "faithfulness"]
        random = study.random_sets[(study.random_sets["word"] == word) & (study.random_sets["size"] == smallest)]
        assert len(random) > 20 and random["faithfulness"].max() < curve.loc[smallest, "faithfulness_low"]
        for name in ("faithfulness", "necessity"):
            assert (curve[f"{name}_low"] <= curve[f"{name}_high"]).all()


def test_the_read_out_does_not_hang_on_the_seed(quick, study):
    for other in (quick(1), quick(2)):
        assert set(other.words["depth"]) == set(study.words["depth"])
        assert other.words["ranked"].all()


def test_the_interval_of_the_direct_effect_holds_it(study):
    heads = study.word_heads
    assert (heads["direct_low"] <= heads["direct_high"]).all()
    inside = heads["direct"].between(heads["direct_low"], heads["direct_high"])
    assert inside.mean() > 0.9


def test_used_and_left_out_add_up_to_what_was_given(study):
    for word in ("bank", "mole"):
        given = len(probe.expand(word).sentences)
        rows = study.sentences.query("word == @word")
        used = (rows["part"] != "neither").sum()
        assert used + (study.left_out["word"] == word).sum() == given


def test_every_sentence_is_held_out_once_from_its_own_cue_word_and_frame(model):
    material = prepare(model, probe.expand("bank"), "bank")
    split = observe_word(model, material, StudyOptions(0)).pairs[0].split
    assert sorted(place for fold in split.holdouts for place in fold.test) == list(range(len(split.rows)))

    def keys(places):
        used = [material.sentences[split.rows[place]] for place in places]
        return {row.cue_word for row in used} | {row.frame for row in used}

    assert all(not keys(fold.train) & keys(fold.test) for fold in split.holdouts)


def test_attention_and_contribution_of_a_reading_are_those_of_the_trace(model, study):
    row = study.readings.iloc[0]
    one = study.readings.query(
        "sentence == @row.sentence and word == @row.word and layer == @row.layer and head == @row['head']"
    )
    trace = probe.trace(model, row["text"])
    target = one.loc[one["role"] == "word", "pos"].max()
    assert np.allclose(one["attention"], trace.pattern[row["layer"], row["head"], target], atol=1e-5)
    assert one.loc[one["pos"] > target, ["attention", "contribution"]].abs().to_numpy().max(initial=0) == 0


def test_later_words_change_nothing_at_the_word(study):
    assert len(study.showcase) >= 5
    assert (study.showcase["difference"] <= 1e-5).all()
    assert study.showcase.loc[study.showcase["cue_after"], "reads_as"].isna().all()


def test_the_showcase_whose_cue_comes_first_is_read_right(study):
    first = study.showcase[~study.showcase["cue_after"].astype(bool)]
    assert (first["reads_as"] == first["sense"]).all()


def test_one_seed_gives_one_study_and_another_seed_another(quick, model):
    again = probe.study(model, "bank", seed=1, permutations=99, max_pairs=8)
    for name, frame in quick(1).frames.items():
        pd.testing.assert_frame_equal(frame, again.frames[name])
    assert not again.heads.equals(quick(2).heads)


def test_swapped_labels_flip_every_coordinate(model, study):
    given = probe.expand("bank")
    other = {"river": "money", "money": "river"}
    rows = tuple(dataclasses.replace(sentence, sense=other[sentence.sense]) for sentence in given.sentences)
    flipped = probe.study(model, "bank", corpus=Corpus(rows, (), "flipped", given.sha256))
    kept = study.depth.query("word == 'bank'").set_index(["depth", "sense"])["coordinate"]
    turned = flipped.depth.assign(sense=flipped.depth["sense"].map(other)).set_index(["depth", "sense"])["coordinate"]
    assert np.allclose(kept, turned.reindex(kept.index), atol=1e-5)
    sign = {True: 1, False: -1}[flipped.words["sense_a"][0] == "money"]
    assert sign == 1 or np.allclose(flipped.shares["share"], study.shares.query("word == 'bank'")["share"], atol=1e-4)


def test_an_untrained_model_has_no_gap_and_nothing_is_ranked(untrained):
    study = probe.study(untrained, "seal")
    assert not study.words["ranked"].any()
    assert study.heads[["swap", "direct", "rank"]].isna().all(axis=None)
    assert study.word_heads.empty and study.readings.empty


def test_sentences_without_frames_pairs_or_cues_are_studied_with_drawn_donors(model):
    bare = corpus_of("bank", frame=None, pair=None, cue_start=None, cue_end=None, distance=None)
    study = probe.study(model, corpus=bare, permutations=199)
    assert study.words["pair_design"].item() == "donors drawn at random"
    assert study.words["split_design"].item() == "5 folds by sentence"
    assert study.heads["attention_cue"].isna().all()
    assert study.words["ranked"].item()


def test_a_split_given_in_the_file_is_kept(model):
    rows = [
        dataclasses.replace(sentence, split="train" if index % 2 else "test")
        for index, sentence in enumerate(corpus_of("bank").sentences)
    ]
    study = probe.study(model, corpus=Corpus(tuple(rows), (), "own", "0"), permutations=99)
    assert study.words["split_design"].item() == "the split given in the file"
    parts = ["learned from" if row.split == "train" else "tested" for row in rows]
    assert (study.sentences["part"] == parts).all()


def test_sentences_of_ones_own_may_be_a_path_or_a_table(model, tmp_path):
    rows = [{"sense": sentence.sense, "text": sentence.text} for sentence in probe.expand("bank").sentences[::5]]
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", sep=";", index=False)
    quick = {"permutations": 99, "max_pairs": 4}
    first, other = [probe.study(model, "bank", corpus=corpus, **quick) for corpus in (tmp_path / "mine.csv", rows)]
    assert first.options["sentences"] == "mine.csv" and len(first.sentences) == len(rows)
    for name in ("words", "heads"):
        pd.testing.assert_frame_equal(first.frames[name], other.frames[name])
    corpus = probe.read_sentences(rows, word="bank")
    evaluated = [probe.evaluate(model, given).words for given in (corpus, list(corpus.sentences))]
    pd.testing.assert_frame_equal(*evaluated)


def test_a_study_shows_itself_and_names_its_frames(study):
    assert repr(study) == f"<Study of bank, mole in tiny-senses: {len(study.frames)} frames>"
    assert {"words", "heads", "depth", "frames", "options"} <= set(dir(study))
    assert study.beside.empty and "beside" not in study.options
    shown = study._repr_html_()
    assert "bank" in shown and "tiny-senses" in shown
    with pytest.raises(AttributeError, match="a study has no 'nothing'; its frames are words, heads"):
        _ = study.nothing


def test_a_word_in_other_letters_is_the_known_one_and_the_same_spelling_comes_first():
    known = ("bank", "Apple", "apple")
    assert _spelled("BANK", known, own=True) == "bank"
    assert _spelled("apple", known, own=True) == "apple" and _spelled("Apple", known, own=True) == "Apple"
    assert _choose_words(["BANK", "bank", "Mole"], None) == ("bank", "mole")
    with pytest.raises(probe.InputError, match=r"'APPLE': there are none \(did you mean 'Apple' or 'apple'\?\)"):
        _spelled("APPLE", known, own=True)
    with pytest.raises(probe.InputError, match=r"'moles': there are none \(did you mean 'mole'\?\)"):
        _choose_words("moles", None)


def test_an_unknown_word_names_the_known_ones(model):
    with pytest.raises(
        probe.InputError, match="Looking for sentences with 'wug': there are none; known words are apple, bank"
    ):
        probe.study(model, "wug")
