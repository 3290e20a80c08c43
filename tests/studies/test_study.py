"""The study from end to end: the promises of its frames, on the embedded models and on an untrained
one."""

import dataclasses
import html
from functools import cache

import numpy as np
import pandas as pd
import pytest
from embedded import embedded
from stored_study import stored_study

import probe
from probe.claims.heads import names_of
from probe.errors import InputError
from probe.experiments import heads
from probe.experiments.material import choose_words, spelled
from probe.model import load
from probe.results.columns import COLUMNS
from probe.studies import words as word_records
from probe.text.sentences import Corpus

pytestmark = pytest.mark.real_model

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
QUICK = {"permutations": 99, "max_pairs": 8}
DRAWN = ("heads", "nouns", "sets", "controls", "readings", "cue_sample")  # experiments that draw
BOTH_WAYS = "tiny-senses-bidirectional"
APPLE = "Apple unveiled a new smartphone model at their latest product launch event"


@cache
def sentences_of(word):
    """Sentences of two or three senses of a word in three of the nine frames."""
    sentences = [
        sentence for sentence in probe.lexicon.expand(word).sentences if sentence.sense != "spy"
    ]
    frames = list(dict.fromkeys(sentence.frame for sentence in sentences))[:3]
    return [sentence for sentence in sentences if sentence.frame in frames]


@pytest.fixture(scope="module")
def study():
    return probe.study(
        embedded(),
        sentences=[*sentences_of("bank"), *sentences_of("mole")],
        permutations=199,
        max_pairs=12,
        experiments=("nouns", "sets", "shares", "readings", "lessons"),
    )


@cache
def quick(seed, *experiments):
    """A study of bank with few permutations and pairs."""
    return probe.study(
        embedded(), sentences=sentences_of("bank"), seed=seed, experiments=experiments, **QUICK
    )


def test_the_heads_that_the_page_names_are_examined_in_detail(monkeypatch):
    """The third head is a resolver with a smaller effect than the other two."""
    table = heads.TABLES["word_heads"]

    def with_verdicts(record, data):
        rows = table.rows(record, data).assign(verdict="none")
        for (layer, head), verdict in (((0, 0), "mover"), ((3, 2), "mover"), ((3, 0), "resolver")):
            rows.loc[(rows["layer"] == layer) & (rows["head"] == head), "verdict"] = verdict
        return rows

    monkeypatch.setitem(heads.TABLES, "word_heads", table._replace(rows=with_verdicts))
    monkeypatch.setattr(word_records, "LEADERS", 1)
    study = quick.__wrapped__(0, "readings")
    assert names_of(study.readings) == ["L0H0", "L3H0"]


@pytest.fixture(scope="module")
def apple():
    """A study of a word that precedes its cue in one of the lesson's sentences."""
    return probe.study(embedded(), sentences=sentences_of("apple"), **QUICK | {"max_pairs": 4})


def corpus_of(word, **changes):
    """A third of a word's sentences, changed."""
    corpus = probe.lexicon.expand(word)
    rows = tuple(
        dataclasses.replace(sentence, **changes)
        for sentence in corpus.sentences[: len(corpus.sentences) // 3]
    )
    return Corpus(rows, (), "own.jsonl", corpus.sha256)


def test_the_heads_table_keeps_the_contracts_names_and_order(study):
    assert list(study.heads) == CONTRACT.split() and set(study.heads) <= set(COLUMNS)
    assert len(study.heads) == (1 + 3) * 16


def test_the_stored_study_has_the_columns_of_a_new_one(apple):
    """`make golden-update` stores it again."""
    stored, new = (
        {name: list(frame) for name, frame in study.frames.items()}
        for study in (stored_study(), apple)
    )
    assert stored == new


def test_every_pair_of_senses_has_a_gap_and_the_smallest_p_of_its_permutations(
    study,
):
    assert len(study.words) == 1 + 3
    assert study.words["ranked"].all() and (study.words["gap_low"] > 0).all()
    assert study.words["smallest_p"].tolist() == pytest.approx([1 / 200] * 4, abs=1e-4)
    assert quick(1, *DRAWN).words["smallest_p"].item() == pytest.approx(1 / 100)


def test_shares_sum_to_1_and_the_senses_start_from_the_same_vector(study):
    assert np.allclose(study.shares.groupby(PAIR)["share"].sum(), 1, atol=1e-4)
    assert (study.shares.query("component == 'token embedding'")["share"] == 0).all()
    token = study.depth.query("depth == -1")
    assert (token[["coordinate", "low", "high"]] == 0).all(axis=None)
    assert (token["auroc"] == 0.5).all()


def test_the_coordinate_at_the_read_out_is_half_a_gap_on_either_side(study):
    at = study.depth.merge(study.words[[*PAIR, "depth"]]).set_index("sense")
    for _, of_pair in at.groupby(PAIR):
        (a,), (b,) = of_pair["sense_a"].unique(), of_pair["sense_b"].unique()
        assert of_pair.loc[a, "coordinate"] > 0.2 and of_pair.loc[b, "coordinate"] < -0.2


def test_effects_add_up_and_are_listed_at_the_depth_where_their_head_is_read(study):
    heads = study.heads
    assert np.allclose(heads["swap"], (heads["denoise"] + heads["noise"]) / 2, atol=1e-5)
    assert np.allclose(heads["added_after"], heads["swap"] - heads["direct"], atol=1e-5)
    assert (
        heads["attention_cue"].between(0, 1).all()
        and heads["attention_previous"].between(0, 1).all()
    )
    assert (study.by_depth["layer"] < study.by_depth["depth"]).all()
    read = heads.merge(study.by_depth, on=[*PAIR, "layer", "head"], suffixes=("", "_there"))
    read = read.query("depth == read_depth")
    assert len(read) == len(heads) and np.allclose(read["net"], read["net_there"], atol=1e-5)


def test_every_head_has_a_rank_and_is_read_after_its_layer(study):
    for (word, *_), of_pair in study.heads.groupby(PAIR):
        depth = study.words.query("word == @word")["depth"].iloc[0]
        assert sorted(of_pair["rank"]) == list(range(1, 17))
        assert (of_pair["read_depth"] == np.where(of_pair["layer"] < depth, depth, 4)).all()
    top_heads = study.word_heads.query("rank == 1")
    assert (top_heads["rank_low"] == 1).all() and (top_heads["net_low"] > 0).all()
    heads = study.word_heads
    assert (heads["direct_low"] <= heads["direct_high"]).all()
    assert heads["direct"].between(heads["direct_low"], heads["direct_high"]).mean() > 0.9


def test_the_top_heads_restore_the_sense_and_beat_every_random_set(study):
    for word in ("bank", "mole"):
        curve = study.curves[study.curves["word"] == word].set_index("size")
        size = int(curve["smallest"].iloc[0])
        assert size <= 4
        joined = ", ".join(curve["added"].dropna()).split(", ")
        assert len(joined) == len(set(joined)) == curve.index.max()
        assert curve.loc[size, "faithfulness"] >= 0.9 > curve.loc[size - 1, "faithfulness"]
        random = study.random_sets[
            (study.random_sets["word"] == word) & (study.random_sets["size"] == size)
        ]
        assert (
            len(random) > 20 and random["faithfulness"].max() < curve.loc[size, "faithfulness_low"]
        )
        for name in ("faithfulness", "necessity"):
            assert (curve[f"{name}_low"] <= curve[f"{name}_high"]).all()


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
    assert np.allclose(
        reading["attention"], trace.pattern[row["layer"], row["head"], target], atol=1e-5
    )
    assert (
        reading.loc[reading["pos"] > target, ["attention", "contribution"]]
        .abs()
        .to_numpy()
        .max(initial=0)
        == 0
    )


def test_later_words_change_nothing_at_the_word_and_a_cue_that_comes_first_is_read_right(study):
    late = study.showcase["cue_after"].astype(bool)
    assert len(study.showcase) >= 5 and (study.showcase["difference"] <= 1e-5).all()
    assert study.showcase.loc[late, "reads_as"].isna().all()
    assert (study.showcase.loc[~late, "reads_as"] == study.showcase.loc[~late, "sense"]).all()


def test_a_seed_reproduces_a_study_and_another_seed_keeps_the_read_out_layer(study):
    again = quick.__wrapped__(1, *DRAWN)  # computed again
    for name, frame in quick(1, *DRAWN).frames.items():
        pd.testing.assert_frame_equal(frame, again.frames[name])
    different = quick(2, "heads")
    assert not again.heads["swap"].equals(different.heads["swap"])
    for new_study in (again, different):
        assert (
            set(new_study.words["depth"]) == set(study.words["depth"])
            and new_study.words["ranked"].all()
        )


@pytest.mark.campaign
def test_an_untrained_model_has_no_gap_and_nothing_is_ranked():
    study = probe.study(
        load.untrained(embedded(), seed=0), "seal", experiments=("heads", "readings"), **QUICK
    )
    assert not study.words["ranked"].any()
    assert study.heads[["swap", "direct", "rank"]].isna().all(axis=None)
    assert study.word_heads.empty and study.readings.empty


def test_sentences_without_frames_pairs_or_cues_are_studied_with_drawn_donors():
    bare = corpus_of("bank", frame=None, pair=None, cue_start=None, cue_end=None, distance=None)
    study = probe.study(embedded(), sentences=bare, permutations=199, experiments=("heads",))
    assert study.words["pair_design"].item() == "donors drawn at random"
    assert study.words["split_design"].item() == "5 folds by sentence"
    assert study.heads["attention_cue"].isna().all()
    assert study.words["ranked"].item()


@pytest.mark.campaign
def test_user_sentences_may_be_a_path_or_a_table(tmp_path):
    rows = [
        {"sense": sentence.sense, "text": sentence.text}
        for sentence in probe.lexicon.expand("bank").sentences[::5]
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", sep=";", index=False)
    first, second = [
        probe.study(embedded(), "bank", sentences=corpus, **QUICK)
        for corpus in (tmp_path / "mine.csv", rows)
    ]
    assert first.options["sentences"] == "mine.csv" and len(first.sentences) == len(rows)
    for name in ("words", "heads"):
        pd.testing.assert_frame_equal(first.frames[name], second.frames[name])


def test_a_study_shows_itself_and_names_its_frames(study):
    assert repr(study) == f"<Study of bank, mole in tiny-senses: {len(study.frames)} tables>"
    assert {"words", "heads", "depth", "frames", "options"} <= set(dir(study))
    page = study._repr_html_()
    assert "bank" in page and "tiny-senses" in page
    with pytest.raises(
        AttributeError, match="this study has no 'nothing'; its frames are words, depth"
    ):
        _ = study.nothing


def test_letter_case_is_ignored_unless_the_same_spelling_exists():
    spellings = ("bank", "Apple", "apple")
    assert [spelled(word, spellings) for word in ("BANK", "apple", "Apple")] == [
        *spellings[:1],
        "apple",
        "Apple",
    ]
    assert choose_words(["BANK", "bank", "Mole"], None) == ("bank", "mole")
    with pytest.raises(InputError, match=r"'APPLE'\. Did you mean 'Apple' or 'apple'\?"):
        spelled("APPLE", spellings)
    with pytest.raises(InputError, match=r"'moles'\. Did you mean 'mole'\?"):
        choose_words("moles", None)


def test_invalid_studies_are_refused_before_the_work():
    def refused(word, *, error=InputError, **options):
        with pytest.raises(error) as caught:
            probe.study(
                embedded(),
                word,
                progress=lambda *stage: pytest.fail("the work had begun"),
                **options,
            )
        return str(caught.value)

    unknown = "Cannot find sentences with 'wug'. The known words are apple, bank, bark,"
    assert refused("wug").startswith(unknown)
    step = (
        "Give one of these, or give sentences with the word (sentences=, on the command line "
        "--sentences)."
    )
    assert refused("wug").endswith(step)
    message = (
        "Cannot study words: got permutations = 5, expected a whole number from 99 on, so that p can "
        "reach .01. Omit it"
    )
    assert refused("bank", permutations=5).startswith(message)
    assert refused("bank", permutations="x").startswith(message.replace("= 5", "= 'x'"))
    for option, default in ({"seed": -1}, 0), ({"max_pairs": 0}, 24), ({"max_pairs": "x"}, 24):
        ((name, number),) = option.items()
        least = int(name == "max_pairs")
        assert refused("bank", **option) == (
            f"Cannot study words: got {name} = {number!r}, expected a whole number from {least} on. "
            f"Omit it for {default}."
        )
    for words in ([], (), 5, [None]):
        assert refused(words) == (
            f"Cannot choose words: got {words!r}, not a word or a list of words. Give ['bank'], for "
            "example, or omit it for bank, mole, apple."
        )


def of_apple(frame):
    [row] = frame[frame["text"] == APPLE].to_dict("records")
    return row


def test_later_words_change_the_sense_only_in_a_model_that_reads_both_ways(apple):
    row = of_apple(apple.showcase)
    assert pd.isna(row["reads_as"]) and row["difference"] <= 1e-5
    encoder = probe.study(embedded(BOTH_WAYS), "apple", experiments="lessons", **QUICK)
    row = of_apple(encoder.showcase)
    assert row["reads_as"] == row["sense"] == "company" and row["difference"] > 0.2
    toward = 1 if row["sense_a"] == "company" else -1
    assert toward * row["coordinate"] > 0.2


def test_the_page_names_the_command_for_a_model_that_reads_both_ways(apple, tmp_path):
    page = probe.write(apple, tmp_path).read_text(encoding="utf-8")
    start = page.index("Not readable at the word: the cue comes after it")
    late = html.unescape(page[start:].partition("<h4>")[0])
    assert "<dt>tiny-senses, left to right: change of its heads' writes" in late
    assert f"<code>probe report apple --model {BOTH_WAYS}</code>" in late
