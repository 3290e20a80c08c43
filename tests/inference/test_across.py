"""The tables of a survey, from records of words with planted effects.

Experiment 24: head A moves half of the words, head B the other half, head C all words.
Experiment 25: some words have no gap. tests/stats/test_across_words.py tests the sign flips.
"""

import weakref
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from example_survey import sets_of
from inside import across, summarise
from made_words import HEADS, LAYERS, effects_of, gap_of, made_word, net_of, unmeasured

from probe import InputError

DRAWS = 499
A, B, C, AFTER = "L0H1", "L1H2", "L1H3", "L2H0"


def summary_of(words, **options):
    return summarise(lambda: iter(words), seed=0, **{"draws": DRAWS} | options)


def heads_by_name(summary):
    heads = summary.frames["survey_heads"]
    names = [f"L{row.layer}H{row.head}" for row in heads.itertuples()]
    return heads.assign(name=names).set_index("name")


def words_of_two_kinds(count=24, *, noise=0.0, **more):
    """Head A moves every second word, B the other words, C all. Each word has two random gaps."""
    words = []
    for number in range(count):
        odd = number % 2
        effects = effects_of(**{A: 1.0 - odd, B: float(odd), C: 0.5, AFTER: 0.2})
        kind = ("homonym", "polyseme")[odd]
        gap = 0.8 + 0.4 * (number / count)
        words.append(made_word(number, effects, gap=gap, kind=kind, noise=noise, **more))
    return words


# --- experiment 24: heads that move different words -----------------------------------------------


def test_heads_that_move_half_of_the_words_differ_between_words_and_one_that_moves_all_does_not():
    heads = heads_by_name(summary_of(words_of_two_kinds()))
    assert heads.loc[[A, B], "between_words"].min() > 0.5
    assert heads.loc[C, "between_words"] == 0
    assert heads.loc[[A, B, C], "words_positive"].tolist() == [12, 12, 24]
    assert (heads["words_clear"] == 24).all()
    assert heads.loc[C, "effect"] == 0.5
    assert heads.loc[[A, B], "effect"].tolist() == pytest.approx([0.5, 0.5], abs=0.05)


def test_attention_to_the_cue_is_the_mean_over_words_whose_cues_are_known():
    attention = (effects_of(**{A: 0.2, B: 0.8}), effects_of(**{A: 0.4, B: 0.6}), None)
    words = [
        made_word(number, effects_of(**{A: 0.5}), attention=known)
        for number, known in enumerate(attention)
    ]
    heads = heads_by_name(summary_of(words))
    assert heads.loc[[A, B, C], "attention_cue"].tolist() == pytest.approx([0.3, 0.7, 0.0])
    assert heads_by_name(summary_of(words_of_two_kinds()))["attention_cue"].isna().all()


def test_without_one_word_the_remaining_words_find_the_head_that_moves_all():
    """A and B move half of the words each. C moves all words, a little further than their mean."""
    words = words_of_two_kinds()
    for word in words:
        net_of(word)[1, 3] *= 1.3  # C: .65 of every word, A and B .5 of all
    orders = summary_of(words).left_out_orders
    assert set(orders) == {word.word for word in words}
    assert all(order[0] == (1, 3) for order in orders.values())
    # Without the word itself, the head of its kind ranks below the head of the other kind.
    assert orders["word000"][1] == (1, 2) and orders["word001"][1] == (0, 1)
    assert all(layer < 2 for order in orders.values() for layer, _ in order)
    assert all(len(set(order)) == across.TOP_HEADS for order in orders.values())


# --- experiment 25: words without a gap -----------------------------------------------------------


def test_words_without_a_gap_do_not_change_the_effect_and_are_counted():
    words = words_of_two_kinds(40, noise=0.02)
    rng = np.random.default_rng(1)
    gapless = [
        made_word(100 + number, effects_of(), gap=0.03 * rng.normal(), noise=0.02)
        for number in range(30)
    ]
    before = heads_by_name(summary_of(words))
    summary = summary_of([*words, *gapless])
    after = heads_by_name(summary)
    assert (after["effect"] - before["effect"]).abs().max() < 0.02
    inside = (after["effect"] > before["effect_low"]) & (after["effect"] < before["effect_high"])
    assert inside.loc[[A, B, C]].all()
    assert (after.loc[[A, B, C], "p"] < 0.01).all() and after.loc["L0H0", "p"] > 0.05
    assert (after["words_clear"] == 40).all()
    [model] = summary.frames["survey_model"].to_dict("records")
    below = sum(gap_of(word)[-1] <= 0 for word in gapless)
    assert model["words"] == 70 and model["words_without_gap"] == below > 5
    assert model["words_clear"] == 40
    assert not set(summary.left_out_orders) & {word.word for word in gapless}


def test_words_that_have_no_gap_at_all_are_not_ranked():
    rng = np.random.default_rng(2)
    words = [
        made_word(number, effects_of(**{C: 5.0}), gap=rng.normal(), noise=0.1)
        for number in range(30)
    ]
    summary = summary_of(words)
    heads = summary.frames["survey_heads"]
    [model] = summary.frames["survey_model"].to_dict("records")
    assert model["gap_p"] > 0.01 and not model["ranked"]
    assert heads["effect"].isna().all() and heads["rank"].isna().all()
    assert summary.left_out_orders == {}
    assert len(heads) == LAYERS * HEADS


# --- effects on words and on nouns -----------------------------------------------------------------


def words_with_nouns(count=30, *, noise=0.03):
    """C has equal effects on words and nouns. A affects ambiguous words only, B nouns more."""
    effects = effects_of(**{A: 0.3, B: 0.1, C: 0.4})
    nouns = effects_of(**{B: 0.3, C: 0.4})
    return [made_word(n, effects, nouns=nouns, noise=noise) for n in range(count)]


def test_effects_on_any_noun_are_separated_from_effects_on_words():
    summary = summary_of(words_with_nouns())
    heads = heads_by_name(summary)
    assert heads.loc[[A, B, C], "comparison"].tolist() == ["more", "less", "same"]
    assert heads.loc[[A, B, C], "nouns"].tolist() == pytest.approx([0, 0.3, 0.4], abs=0.04)
    assert heads.loc[[A, B, C], "more"].tolist() == pytest.approx([0.3, -0.2, 0], abs=0.04)
    row = heads.loc[A]
    assert row["more_low"] < row["more"] < row["more_high"]
    assert row["p_more"] < 0.05 < heads.loc[C, "p_more"]
    [model] = summary.frames["survey_model"].to_dict("records")
    assert model["words_compared"] == 30
    assert model["general_share"] == 0.25  # gaps of a half, squared
    assert model["ambiguity_p"] == 1 / (1 + DRAWS)
    # Only words with nouns are compared.
    without_nouns = [made_word(50 + n, effects_of(**{A: 1.0}), noise=0.03) for n in range(20)]
    both = summary_of([*words_with_nouns(20), *without_nouns])
    row = heads_by_name(both).loc[A]
    assert row["effect"] == pytest.approx(0.65, abs=0.03)
    assert row["more"] == pytest.approx(0.3, abs=0.04)
    table = both.frames["survey_words"].set_index("word")
    assert table.loc["word050", "nouns"] == "" and np.isnan(table.loc["word050", "general_gap"])
    assert table.loc["word000", ["nouns", "general_gap"]].tolist() == ["fence", 0.5]
    alone = heads_by_name(summary_of(without_nouns))
    assert alone[["nouns", "more", "p_more"]].isna().all(axis=None)
    assert (alone["comparison"] == "").all()


# --- read-out depths, and the contents of the tables ------------------------------------------------


def test_heads_after_the_read_out_layer_are_read_at_the_last_depth():
    words = words_of_two_kinds()
    for word in words:
        net_of(word)[2, 0, -1] = 0.7 * gap_of(word)[-1]
        net_of(word)[2, 0, 2] = 9.0  # must not be used, because layer 2 writes after depth 2
        net_of(word)[1, 3, -1] = 9.0
    summary = summary_of(words)
    heads = heads_by_name(summary)
    assert summary.depth == 2
    assert heads.loc[AFTER, "effect"] == pytest.approx(0.7)
    assert heads.loc[[AFTER, C], "read_depth"].tolist() == [3, 2]
    assert heads.loc[C, "effect"] == 0.5


@pytest.mark.parametrize("order", ["reversed", "twice"])
def test_neither_the_order_of_the_words_nor_a_second_run_changes_the_tables(order):
    words = words_with_nouns(40, noise=0.1)
    again = words[::-1] if order == "reversed" else words
    first, second = summary_of(words), summary_of(again)
    for name, frame in first.frames.items():
        pd.testing.assert_frame_equal(frame, second.frames[name], check_exact=order == "twice")
    assert first.left_out_orders == second.left_out_orders


def test_records_are_read_one_at_a_time():
    alive = set()

    def records():
        for number in range(12):
            word = made_word(number, effects_of(**{C: 0.5}), nouns=effects_of(), noise=0.01)
            alive.add(number)
            weakref.finalize(word, alive.discard, number)
            yield word
            assert len(alive) <= 2

    summarise(records, seed=0, draws=49)


def test_the_table_of_words_has_a_row_for_every_word_and_the_columns_of_its_file():
    words = [
        replace(word, columns={"relatedness": str(3 - gap_of(word)[-1]), "source": "made"})
        for word in words_of_two_kinds(12)
    ]
    summary = summary_of([*words[:5], unmeasured(99), *words[5:]])
    table = summary.frames["survey_words"]
    assert table["word"].tolist() == sorted(table["word"]) and len(table) == 13
    last = table.iloc[-1]
    assert (last["reason"], last["left_out"], last["pairs"]) == (
        "all cues come after the word",
        4,
        0,
    )
    assert np.isnan(last["gap"]) and not last["clear"]
    assert table["relatedness"].dtype.kind == "f"
    [number] = summary.frames["survey_numbers"].to_dict("records")
    assert number["column"] == "relatedness" and number["words"] == 12
    assert number["rho"] == -1
    [model] = summary.frames["survey_model"].to_dict("records")
    assert (model["words"], model["words_left_out"]) == (12, 1)


def test_every_head_for_every_word_gives_the_effect_over_words():
    words = [*words_with_nouns(40), unmeasured(99)]
    summary = summary_of(words)
    rows = across.word_heads(lambda: iter(words), summary.depth)
    assert list(rows.columns) == list(across.WORD_HEADS)
    assert len(rows) == 40 * LAYERS * HEADS
    sums = rows.groupby(["layer", "head"])[["net", "gap"]].sum()
    heads = summary.frames["survey_heads"].set_index(["layer", "head"])
    np.testing.assert_allclose(sums["net"] / sums["gap"], heads["effect"], atol=1e-5)
    first = rows.iloc[1]
    assert first["effect"] == pytest.approx(first["net"] / first["gap"], rel=1e-5)


@pytest.mark.parametrize(("words", "counts"), [([], "0 of its 0"), ([1], "1 of its 2")])
def test_a_survey_of_fewer_than_two_words_is_refused(words, counts):
    records = [made_word(number, effects_of()) for number in words]
    records += [unmeasured(9)] * len(words)
    because = " (all cues come after the word)" if words else ""
    with pytest.raises(InputError) as raised:
        summary_of(records)
    assert str(raised.value) == (
        f"Cannot summarise the survey: {counts} words were measured{because}. Words are its sample, "
        "so it needs at least 2. Add words with two sentences of each of two senses, or study a "
        "single word with `probe report`."
    )


# --- sets of heads, tested on the word that was left out ------------------------------------------


def measured_sets(word, whole=2.0):
    random = whole * np.linspace(0, 0.2, 21)[None] * np.array([[1.0], [2.0]])
    return sets_of(
        word, (1, 2), whole, whole * np.array([0.4, 0.7]), whole * np.array([0.5, 0.8]), random
    )


def test_the_table_of_sets_compares_a_left_out_word_with_its_own_and_random_sets():
    measured = [measured_sets(f"word{n}", whole) for n, whole in enumerate((2.0, 1.0, 3.0))]
    frames = across.sets_frames(measured, seed=0, draws=DRAWS)
    sets = frames["survey_sets"]
    assert list(sets.columns) == list(across.SETS) and len(sets) == 6
    assert sets[["own", "others", "random_mean"]].to_numpy()[:2] == pytest.approx(
        np.array([[0.5, 0.4, 0.1], [0.8, 0.7, 0.2]])
    )
    assert sets["random_low"].iloc[0] == pytest.approx(0.005)
    over = frames["survey_carry_over"]
    assert over["others"].tolist() == pytest.approx([0.4, 0.7])
    assert over["words"].tolist() == [3, 3]
    assert over["others_low"].tolist() == pytest.approx([0.4, 0.7])  # because all words are equal
    others = ("size", [0.9, 0.9])  # a ratio of sums
    two = [
        measured_sets("a", 1.0).assign(others=others),
        measured_sets("b", 9.0).assign(others=others),
    ]
    over = across.sets_frames(two, seed=0)["survey_carry_over"]
    assert over["others"].tolist() == pytest.approx([0.18, 0.18])
    assert across.sets_frames([], seed=0)["survey_carry_over"].empty
