"""The rules that limit what a report says, at their boundaries.

tests/pages/test_facts.py tests the rules whose result a fact of a page names.
"""

import numpy as np
import pandas as pd
import pytest
from inside import cue_claims as cues
from inside import head_claims as heads
from inside import names_of, rows_by_word, unmarked_pairs, worst_first
from inside import survey_claims as survey
from stored_study import stored_study

from probe.claims import senses, sentences, sets


def table(**columns):
    return pd.DataFrame(columns)


def heads_of(verdicts, **columns):
    """Heads of layer 0 with these verdicts, ranked in this order."""
    numbers = range(len(verdicts))
    frame = table(word="bank", layer=0, head=numbers, verdict=verdicts)
    return frame.assign(rank=[number + 1 for number in numbers], net=0.3).assign(**columns)


def test_every_row_of_a_table_belongs_to_one_word():
    frames = stored_study().frames
    of_words = rows_by_word(frames)
    for name, frame in frames.items():
        if "word" in frame:
            assert sum(len(rows[name]) for rows in of_words.values()) == len(frame)


# --- the heads of a word --------------------------------------------------------------------------

# By rank; the first has the largest mean and a wide interval.
VERDICTS = ["none", "suggestive", "mover", "separates", "resolver", "unread", "resolver", "opposes"]
BY_RANK = heads_of(VERDICTS, net=[0.55, 0.4, 0.3, 0.2, 0.1, 0.09, 0.05, -0.1])


def test_movers_lead_then_other_verdicts_and_every_resolver_is_named():
    assert names_of(heads.leading(BY_RANK)) == ["L0H2", "L0H4", "L0H6", "L0H1", "L0H5"]
    assert names_of(heads.named(BY_RANK, 1)) == ["L0H2", "L0H4", "L0H6"]
    assert names_of(heads.named(BY_RANK, 4)) == ["L0H2", "L0H4", "L0H6", "L0H1"]
    assert names_of(heads.named(BY_RANK.assign(verdict="none"), 3)) == []


def test_resolvers_are_common_if_every_word_has_the_same_and_there_are_any():
    bank = heads_of(["resolver"] * 2)
    both = pd.concat([bank, bank.assign(word="mole", rank=[2, 1])])
    assert heads.common_resolvers(both, ["bank", "mole"]) == ["L0H0", "L0H1"]
    assert heads.common_resolvers(bank, ["bank", "mole"]) == []
    assert heads.common_resolvers(bank[:0], []) == []


def test_leaders_are_common_if_all_words_have_the_same_in_any_order():
    bank = heads_of(["mover"] * 3)
    both = pd.concat([bank, bank.assign(word="mole", rank=[2, 1, 3])])
    assert heads.common_leaders(both, 2) == ["L0H0", "L0H1"]
    assert heads.common_leaders(both, 1) == []


def test_movers_are_compared_with_nouns_and_without_movers_the_leading_heads():
    rows = heads_of(["mover", "unread", "mover"], comparison=["", "more", "same"])
    assert names_of(heads.compared_heads(rows, 2)) == ["L0H2"]
    rows = heads_of(["none", "unread", "unread"], comparison="same")
    assert names_of(heads.compared_heads(rows, 1)) == ["L0H1"]


def test_opposing_heads_are_worth_naming_from_an_effect_on():
    rows = heads_of(["opposes", "opposes", "none", "opposes"], net=[-0.15, -0.2, -0.3, -0.06])
    assert names_of(heads.opposing(rows)) == ["L0H1", "L0H0"]


@pytest.mark.parametrize(
    ("comparison", "write", "kept"), [("more", 0.2, 0), ("more", 0.0, 1), ("same", 0.0, 0)]
)
def test_readers_make_the_difference_if_the_write_is_no_larger(comparison, write, kept):
    numbers = {f"write_{name}": write for name in ("nouns", "more", "more_low", "more_high")}
    numbers |= {"write_more_word_axis": write, "write_more_length": write, "p_more_write": 0.01}
    rows = heads_of(["mover"], comparison=comparison, direct=0.3, **numbers)
    assert len(heads.with_their_readers(rows)) == kept


@pytest.mark.parametrize(
    ("verdicts", "bound"),
    [(["mover", "none", "unread"], 8), (["mover", "none", "mover"], 5), (["mover"] * 3, None)],
)
def test_the_bound_of_the_other_heads_is_the_end_of_an_interval(verdicts, bound):
    ends = {"net_low": [0.3, -0.05, -0.08], "net_high": [0.5, 0.04, 0.01]}
    assert heads.bound_of_others(heads_of(verdicts, **ends)) == bound
    assert heads.bound_of_others(heads_of(["none"], net_low=-0.0001, net_high=0.0)) == 1


def test_heads_with_overlapping_ranks_of_one_panel_have_no_order():
    rows = heads_of(["mover"] * 5, rank_low=[1, 2, 3, 5, 5], rank_high=[2, 3, 4, 5, 6])
    assert heads.without_order(rows, 2) == [["L0H0", "L0H1", "L0H2"], ["L0H3", "L0H4"]]
    later = rows.assign(layer=[0, 0, 2, 2, 0])
    assert heads.without_order(later, 2) == [["L0H0", "L0H1"]]


def test_a_head_of_several_pairs_of_senses_has_its_smallest_corrected_p():
    of_pairs = table(layer=0, head=[0, 0, 1], p_swap=[0.5, 0.04, 0.3], p_auroc=[0.1, 0.2, np.nan])
    tested = heads.with_smallest_p(heads_of(["mover", "none"], rank=[2, 1]), of_pairs)
    assert tested["head"].tolist() == [1, 0] and tested["p_swap"].tolist() == [0.3, 0.04]
    assert np.isnan(tested["p_auroc"][0])


def test_movers_without_an_effect_on_prepared_words_are_named():
    rows = heads_of(["mover"] * 4 + ["none"], continuation=[0.2, 0.2, 0.001, 0.2, 0.2])
    rows = rows.assign(p_continuation=[0.01, 0.3, 0.01, np.nan, 0.3])
    assert heads.without_continuation(rows, rows) == ["L0H1", "L0H2"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("little", {"direct": 0.14}),
        ("much", {"direct": 0.46}),
        ("elsewhere", {"attention_cue": 0.1}),
        ("", {}),
        ("", {"direct": 0.14, "net_low": -0.1}),
    ],
)
def test_a_head_has_a_remark_if_effect_and_write_or_attention_disagree(name, change):
    usual = {"net": 0.3, "net_low": 0.2, "direct": 0.3, "attention_cue": 0.6}
    assert heads.remark(pd.Series(usual | change)) == name


# --- what heads take from the cue -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("pair", {}),
        ("both", {"part_query": "MLP 0"}),
        ("cue", {"part_query": "query bias", "p_query": np.nan}),
        ("none", {"p_contrast": 0.05}),
        ("apart", {"p_query": 0.05}),
        ("apart", {"p_query": np.nan}),
        ("apart", {"p_key": 0.05}),
        ("apart", {"p_key": np.nan}),
    ],
)
def test_a_reason_needs_the_agreement_of_attribution_and_replacements(reason, change):
    row = {"p_contrast": 0.001, "p_query": 0.01, "p_key": 0.01}
    row |= {"part_query": "L0H1", "part_key": "MLP 0"}
    assert cues.reason_to_attend(pd.Series(row | change)) == reason


@pytest.mark.parametrize(
    ("part", "cue_only", "other_only"),
    [
        ("cue_only", 0.3, 0.3),
        ("other_only", 0.2, 0.3),
        (None, 0.2, 0.2),
        (None, np.nan, np.nan),
    ],
)
def test_words_are_credited_with_at_least_half_of_the_effect_of_a_mover(part, cue_only, other_only):
    movers = table(layer=[1], head=2, swap=0.6)
    of_another = {"cue_only": [cue_only, 0.5], "other_only": [other_only, 0.5]}
    assert cues.credited_part(table(layer=1, head=[2, 3], **of_another), movers) == part


@pytest.mark.parametrize(
    ("attention", "contribution", "expected"),
    [
        ([0.6, 0.3, 0.1], [0.01, 0.2, 0.1], 0.6),
        ([0.2, 0.7, 0.1], [0.01, 0.2, 0.1], None),  # too little attention
        ([0.6, 0.3, 0.1], [0.3, 0.2, 0.1], None),  # half of all contributions
    ],
)
def test_a_sink_is_a_first_token_with_much_attention_and_a_small_contribution(
    attention, contribution, expected
):
    rows = table(role=["context", "cue", "word"], pos=range(3))
    rows = rows.assign(attention=attention, contribution=contribution)
    assert cues.attention_to_sink(rows) == expected
    assert cues.attention_to_sink(rows.assign(role=["cue", "context", "word"])) is None


def test_the_clearest_sentence_of_a_sense_has_most_attention_to_its_cue():
    readings = table(
        sentence=[4, 4, 5, 5, 6, 6],
        sense=["money"] * 4 + ["river"] * 2,
        sense_a="river",
        role=["cue", "context"] * 3,
        attention=[0.2, 0.7, 0.5, 0.1, 0.3, 0.3],
        contribution=[-0.4, 0.9, -0.1, -0.9, 0.3, 0.9],
    )
    assert cues.clearest_of_senses(readings, ["river", "money"]) == [6, 5]
    assert cues.clearest_of_senses(readings[:0], ["river", "money"]) == []


def test_the_cues_of_an_example_are_those_of_the_first_pair_or_the_words_that_differ():
    texts = ["Odd river bank", "The river bank", "Any money bank."]
    rows = table(text=texts, part=["neither", "tested", "tested"], pair="1")
    rows = rows.assign(sense=["river", "river", "money"], cue_start=4, cue_end=9)
    pair = ("river", "money")
    assert cues.example_cues(rows, pair, marked=True) == ("river", "money")
    assert cues.example_cues(rows, pair, marked=False) == ("The", "Any")
    assert cues.example_cues(rows.assign(cue_start=pd.NA), pair, marked=True) is None


# --- the senses of a word -------------------------------------------------------------------------


def pairs_of(**columns):
    """Three pairs of senses of mole, of which the last has no gap."""
    pairs = table(word="mole", sense_a=["animal", "animal", "unit"], sense_b=["unit", "spy", "spy"])
    pairs = pairs.assign(ranked=[True, True, False], depth=2, ambiguity_p=1 / 4, nouns_compared=3)
    return pairs.assign(untrained_p=0.5, nuisance_p=0.5).assign(**columns)


def test_senses_are_in_the_order_of_their_pairs_and_only_those_with_a_gap_are_ranked():
    words = pairs_of()
    assert senses.senses_of(words) == ["animal", "unit", "spy"]
    assert senses.ranked(words.assign(share=[0.1, 0.2, 0.3]), words)["share"].tolist() == [0.1, 0.2]


@pytest.mark.parametrize(("p", "few"), [([0.02, 0.01, 0.3], True), ([0.02, 0.009, 1], False)])
def test_cue_words_are_too_few_if_no_gap_of_any_pair_could_be_significant(p, few):
    assert senses.has_too_few_cue_words(table(smallest_gap_p=p)) == few


def test_nuisances_of_ranked_pairs_confound_unless_the_word_passes_the_gate():
    both = pairs_of(untrained_p=0.009, nuisance_p=0.049)
    assert senses.nuisances(both) == ["untrained", "nuisance"]
    assert senses.confounders(both) == ["nuisance"]  # 1 / 4: first of three nouns
    for p in (0.5, np.nan):
        assert senses.confounders(both.assign(ambiguity_p=p)) == ["untrained", "nuisance"]
    assert senses.nuisances(both.assign(ranked=False)) == []
    assert senses.nuisances(pairs_of(untrained_p=0.01, nuisance_p=0.05)) == []


def test_nouns_move_farther_by_the_gaps_summed_over_pairs_of_senses_at_the_read_out_layer():
    words = pairs_of(ambiguity_p=[np.nan, 3 / 4, 3 / 4])
    assert len(senses.compared(words)) == 1
    assert senses.place_among_nouns(senses.compared(words).iloc[0]) == 3
    nouns = ["fence", "spoon", "lamp", "mole", "fence", "spoon", "lamp"]
    controls = table(noun=nouns, depth=[*[2] * 6, 9], gap=[0.1, 0.5, 0.3, 0.9, 0.6, 0.1, 9.0])
    assert senses.farther_nouns(controls, words) == ["fence", "spoon"]
    for p in (1 / 4, np.nan):
        assert senses.farther_nouns(controls, words.assign(ambiguity_p=p)) == []


@pytest.mark.parametrize(("share", "times"), [(0.25, 2.0), (0.0, None), (-0.1, None)])
def test_a_word_changes_as_many_times_as_far_as_its_nouns(share, times):
    assert senses.times_as_far(share) == times and senses.times_as_far(np.nan) is None


@pytest.mark.parametrize(
    ("nets", "layer"), [((0.2, 0.4, 0.1), 1), ((0.2, 0.3, 0.1), None), ((0.2, 0.3, 0.9), None)]
)
def test_an_mlp_leads_only_above_every_head_and_up_to_the_read_out_layer(nets, layer):
    rows = table(layer=[0, 0, 2], verdict=["mover", "none", "mover"], net=[0.3, 0.7, 0.8])
    largest = senses.leading_mlp(table(layer=range(3), net=nets), rows, 2)
    assert (None if largest is None else largest["layer"]) == layer


def test_an_mlp_does_more_in_one_pair_of_senses_and_on_average():
    row = {"word": "bank", "sense_a": "river", "sense_b": "money", "layer": 0, "more": 0.2}
    row |= {"comparison": "more"}
    unsure = row | {"layer": 1, "comparison": "undecided"}
    assert senses.mlps_more(pd.DataFrame([row, unsure])) == [0]
    reversed_ = row | {"sense_b": "slope", "more": -0.3, "comparison": "undecided"}
    assert senses.mlps_more(pd.DataFrame([row, reversed_])) == []


def test_a_word_is_one_token_if_its_embedding_is_the_same_for_all_senses():
    depth = table(sense_a="river", sense_b="money", depth=[-1, -1, 0, 0], coordinate=[0, 0, 1, 2])
    assert senses.has_same_token(depth)
    assert not senses.has_same_token(depth.assign(coordinate=[0, 0.1, 1, 2]))


# --- sentences, sets, certificates ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "lone"), [("1122", 0), (["1", "1", "2", None], 1), ("1234", 4), ([None] * 4, 0)]
)
def test_sentences_in_pairs_and_those_without_a_partner_of_another_sense_are_counted(pairs, lone):
    rows = table(pair=[*pairs], sense=["river", "money"] * 2)
    named_pairs = sum(pair is not None for pair in pairs)
    assert sentences.number_without_partner(rows) == lone
    assert sentences.number_in_pairs(rows) == named_pairs - lone
    assert sentences.number_without_partner(rows.assign(sense="river")) == named_pairs


def test_sentences_that_differ_in_a_word_without_a_pair_are_counted():
    rows = table(text=["the river bank", "the money bank", "a very old bank"], pair=None)
    rows = rows.assign(sense=["river", "money", "money"], frame=None)
    count = sentences.number_of_unmarked_pairs
    assert count(rows) == unmarked_pairs(list(rows.itertuples())) == 2
    assert count(rows.assign(pair=["1", "1", np.nan])) == 0


def test_the_worst_comes_first():
    rows = table(right=[True, False, False, False], coordinate=[0.9, -0.1, 0.3, -0.5])
    assert sentences.read_otherwise(rows)["coordinate"].tolist() == [-0.5, 0.3, -0.1]
    rows = worst_first(table(error=[1e-7, 3e-6, 2e-6], quantity=["q", "k", "v"]))
    assert rows["quantity"].tolist() == ["k", "v", "q"]


def test_a_smallest_set_names_every_head_if_sizes_grow_in_steps():
    curves = stored_study("bank").frames["curves"].iloc[:4].assign(size=[0, 1, 3, 6], smallest=3)
    curves["added"] = [None, "L0H0", "L0H1, L1H0", "L1H1, L2H0, L2H1"]
    assert sets.smallest_set(curves).names == ("L0H0", "L0H1", "L1H0")
    assert sets.smallest_set(curves.assign(smallest=None)) is None
    assert sets.smallest_set(curves[:0]) is None


def test_random_sets_have_the_size_of_a_set_or_the_next():
    drawn = table(size=[1, 3, 3, 9], faithfulness=[0.1, 0.4, 0.3, 0.9])
    assert sets.random_sets_like(drawn, 2)["faithfulness"].tolist() == [0.4, 0.3]
    assert sets.random_sets_like(drawn, 3)["size"].tolist() == [3, 3]
    assert sets.random_sets_like(drawn, 10).empty


@pytest.mark.parametrize(
    ("faithfulness", "size"), [([0, 1.05, 1], None), ([0, 1.2, 1.3, 1], 2), ([], None)]
)
def test_a_peak_is_above_what_all_heads_keep(faithfulness, size):
    found = sets.peak(table(size=range(len(faithfulness)), faithfulness=faithfulness))
    assert (found if size is None else found["size"]) == size


# --- many words -----------------------------------------------------------------------------------


def over_words(p, effect, low, **columns):
    """Heads of layer 0 over many words, ranked in this order."""
    rows = table(layer=0, head=range(len(p)), p=p, effect=effect, effect_low=low)
    return rows.assign(rank=[number + 1 for number in range(len(p))], **columns)


def test_movers_of_words_lead_and_without_them_suggestive_heads_and_never_another():
    rows = over_words([0.97, 0.3, 0.01, 0.01], [0.55, 0.1, 0.05, 0.01], [-0.11, 0.02, 0.01, 0.005])
    assert names_of(survey.movers_over_words(rows)) == ["L0H2"]
    assert names_of(survey.top_over_words(rows)) == ["L0H2"]
    assert names_of(survey.top_over_words(rows[:2])) == ["L0H1"]
    assert survey.top_over_words(rows[:1]).empty


def test_movers_are_counted_among_as_many_heads_that_attend_to_the_cue_most():
    rows = over_words([0.01, 0.01, 0.9, 0.9], 0.2, 0.1, attention_cue=[0.9, 0.5, 0.8, 0.1])
    assert survey.number_of_movers_by_attention(rows) == 1
    assert survey.number_of_movers_by_attention(rows.assign(attention_cue=np.nan)) is None
    assert survey.number_of_movers_by_attention(rows.assign(p=0.9)) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"ranked": False}, False),
        ({"ambiguity_p": 0.05}, False),
        ({"general_share": 1.0}, False),
        ({"ambiguity_p": np.nan}, False),
    ],
)
def test_words_change_by_ambiguity_if_they_change_further_than_nouns(changed, expected):
    numbers = {"ranked": True, "ambiguity_p": 0.01, "general_share": 0.3} | changed
    assert survey.is_ambiguity(pd.Series(numbers)) is expected
