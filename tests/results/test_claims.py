"""The rules that limit what a report says."""

import numpy as np
import pandas as pd
import pytest
from example_study import make_study

from probe.claims.cues import (
    attention_to_sink,
    clearest_of_senses,
    clearest_sentence,
    credited_part,
    example_cues,
    reason_to_attend,
)
from probe.claims.heads import (
    bound_of_others,
    common_leaders,
    compared_heads,
    first_and_marked,
    leading,
    named,
    names_of,
    opposing,
    remark,
    with_smallest_p,
    with_their_readers,
    without_continuation,
    without_order,
)
from probe.claims.senses import (
    compared,
    confounders,
    farther_nouns,
    has_same_token,
    has_too_few_cue_words,
    leading_mlp,
    mlps_more,
    nuisances,
    place_among_nouns,
    ranked,
    senses_of,
    times_as_far,
)
from probe.claims.sentences import (
    number_in_pairs,
    number_of_unmarked_pairs,
    number_without_partner,
    read_otherwise,
)
from probe.claims.sets import peak, random_sets_like, smallest_set
from probe.claims.survey import (
    is_ambiguity,
    movers_over_words,
    number_of_movers_by_attention,
    top_over_words,
)
from probe.pages.html import worst_first
from probe.results.tables import rows_by_word
from probe.text.splits import unmarked_pairs

WHY = {"p_contrast": 0.001, "p_query": 0.01, "p_key": 0.01}
WHY |= {"part_query": "L0H1", "part_key": "MLP 0"}


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
    assert reason_to_attend(pd.Series(WHY | change)) == reason


def test_only_rows_of_senses_with_a_significant_gap_are_ranked():
    words = pd.DataFrame({"word": "mole", "sense_a": "animal", "sense_b": ["spy", "unit"]})
    rows = words.assign(share=[0.1, 0.2])
    kept = ranked(rows, words.assign(ranked=[False, True]))
    assert kept["share"].tolist() == [0.2]


@pytest.mark.parametrize(
    ("part", "cue_only", "other_only"),
    [
        ("cue_only", [0.3, 0.1], [0.3, 0.1]),
        ("other_only", [0.2, 0.1], [0.3, 0.1]),
        (None, [0.2, 0.5], [0.2, 0.5]),  # the second head does not move the word
        (None, [np.nan, 0.5], [np.nan, 0.5]),  # it is not known for the first head
    ],
)
def test_words_are_credited_with_at_least_half_of_the_effect_of_a_mover(part, cue_only, other_only):
    movers = pd.DataFrame({"layer": [1], "head": [2], "swap": [0.6]})
    parts = pd.DataFrame(
        {"layer": 1, "head": [2, 3], "cue_only": cue_only, "other_only": other_only}
    )
    assert credited_part(parts, movers) == part


def test_a_smallest_set_names_every_head_if_sizes_grow_in_steps():
    shares = [0.0, 0.5, 0.95, 1.0]
    curves = pd.DataFrame(
        {"word": "bank", "size": [0, 1, 3, 6], "smallest": 3, "faithfulness": shares}
    )
    curves = curves.assign(faithfulness_low=shares, faithfulness_high=shares)
    curves = curves.assign(necessity=shares, necessity_low=shares, necessity_high=shares)
    curves["added"] = [None, "L0H0", "L0H1, L1H0", "L1H1, L2H0, L2H1"]
    assert smallest_set(curves).names == ("L0H0", "L0H1", "L1H0")


def test_without_a_set_that_keeps_enough_there_is_no_smallest_set():
    curves = make_study().frames["curves"].query("word == 'bank'")
    assert smallest_set(curves)["size"] == 2
    assert smallest_set(curves.assign(smallest=None)) is None
    assert smallest_set(curves[:0]) is None


def test_random_sets_have_the_size_of_a_set_or_the_next():
    sets = pd.DataFrame({"size": [1, 3, 3, 9], "faithfulness": [0.1, 0.4, 0.3, 0.9]})
    assert random_sets_like(sets, 2)["faithfulness"].tolist() == [0.4, 0.3]
    assert random_sets_like(sets, 3)["size"].tolist() == [3, 3]
    assert random_sets_like(sets, 10).empty


@pytest.mark.parametrize(
    ("faithfulness", "size"), [([0, 1.05, 1], None), ([0, 1.2, 1.3, 1], 2), ([], None)]
)
def test_a_peak_is_above_what_all_heads_keep(faithfulness, size):
    curves = pd.DataFrame({"size": range(len(faithfulness)), "faithfulness": faithfulness})
    found = peak(curves)
    assert (found if size is None else found["size"]) == size


BY_RANK = [
    # verdict, net, by rank. The first has the largest mean and a wide interval.
    ("none", 0.55),
    ("suggestive", 0.4),
    ("mover", 0.3),
    ("separates", 0.2),
    ("resolver", 0.1),
    ("unread", 0.09),
    ("resolver", 0.05),
    ("opposes", -0.1),
]
HEADS = pd.DataFrame(
    [
        {"layer": layer, "head": 0, "verdict": verdict, "net": net, "rank": layer + 1}
        for layer, (verdict, net) in enumerate(BY_RANK)
    ]
)


def test_movers_lead_then_other_verdicts_and_never_a_head_without_one():
    assert names_of(leading(HEADS)) == ["L2H0", "L4H0", "L6H0", "L1H0", "L5H0"]


def test_every_resolver_is_named_besides_the_top_heads():
    assert names_of(named(HEADS, 1)) == ["L2H0", "L4H0", "L6H0"]
    assert names_of(named(HEADS, 4)) == ["L2H0", "L4H0", "L6H0", "L1H0"]


def test_without_a_verdict_no_head_is_named():
    assert names_of(named(HEADS.assign(verdict="none"), 3)) == []


def test_an_mlp_does_more_by_the_rule_of_its_table():
    """In one pair of senses, and on average."""
    row = {
        "word": "bank",
        "more": 0.2,
        "comparison": "more",
        "sense_a": "river",
        "sense_b": "money",
    }
    unsure = {"layer": 1, "comparison": "undecided"}
    assert mlps_more(pd.DataFrame([row | {"layer": 0}, row | unsure])) == [0]
    reversed_ = row | {"layer": 0, "sense_b": "slope", "more": -0.3, "comparison": "undecided"}
    assert mlps_more(pd.DataFrame([row | {"layer": 0}, reversed_])) == []


# --- the heads of a word --------------------------------------------------------------------------

STUDY = make_study().frames


def table(**columns):
    return pd.DataFrame(columns)


def heads_of(verdicts, **columns):
    """Heads of layer 0 with these verdicts, ranked in this order."""
    numbers = range(len(verdicts))
    frame = table(word="bank", layer=0, head=numbers, verdict=verdicts)
    return frame.assign(rank=[number + 1 for number in numbers], net=0.3).assign(**columns)


def test_every_row_of_a_frame_belongs_to_one_word():
    by_word = rows_by_word(STUDY)
    for name, frame in STUDY.items():
        if "word" in frame:
            assert sum(len(rows[name]) for rows in by_word.values()) == frame["word"].notna().sum()


def test_leaders_are_common_if_all_words_have_the_same_in_any_order():
    bank = heads_of(["mover", "mover", "mover"])
    mole = bank.assign(word="mole", rank=[2, 1, 3])
    heads = pd.concat([bank, mole])
    assert common_leaders(heads, 2) == ["L0H0", "L0H1"]
    assert common_leaders(heads, 1) == []


def test_a_table_of_some_heads_has_the_first_and_the_marked_ones():
    heads = heads_of(["none", "none", "none", "backup", "separates"])
    assert names_of(first_and_marked(heads, 2)) == ["L0H0", "L0H1", "L0H3"]


def test_movers_are_compared_with_nouns_and_without_movers_the_leading_heads():
    heads = heads_of(["mover", "unread", "mover"], comparison=["", "more", "same"])
    assert names_of(compared_heads(heads, 2)) == ["L0H2"]
    heads = heads_of(["none", "unread", "unread"], comparison="same")
    assert names_of(compared_heads(heads, 1)) == ["L0H1"]


def test_opposing_heads_are_worth_naming_from_an_effect_on():
    heads = heads_of(["opposes", "opposes", "none", "opposes"], net=[-0.15, -0.2, -0.3, -0.06])
    assert names_of(opposing(heads)) == ["L0H1", "L0H0"]


@pytest.mark.parametrize(
    ("comparison", "write", "kept"), [("more", 0.2, 0), ("more", 0.0, 1), ("same", 0.0, 0)]
)
def test_readers_make_the_difference_if_the_write_is_no_larger(comparison, write, kept):
    numbers = {f"write_{name}": write for name in ("nouns", "more", "more_low", "more_high")}
    numbers |= {"write_more_word_axis": write, "write_more_length": write, "p_more_write": 0.01}
    heads = heads_of(["mover"], comparison=comparison, direct=0.3, **numbers)
    assert len(with_their_readers(heads)) == kept


@pytest.mark.parametrize(
    ("verdicts", "bound"),
    [
        (["mover", "none", "unread"], 8),
        (["mover", "none", "mover"], 5),
        (["mover", "mover", "mover"], None),
    ],
)
def test_the_bound_of_the_other_heads_is_the_end_of_an_interval(verdicts, bound):
    ends = {"net_low": [0.3, -0.05, -0.08], "net_high": [0.5, 0.04, 0.01]}
    assert bound_of_others(heads_of(verdicts, **ends)) == bound
    tiny = heads_of(["none"], net_low=-0.0001, net_high=0.0)
    assert bound_of_others(tiny) == 1


def test_heads_with_overlapping_ranks_of_one_panel_have_no_order():
    heads = heads_of(["mover"] * 5, rank_low=[1, 2, 3, 5, 5], rank_high=[2, 3, 4, 5, 6])
    assert without_order(heads, 2) == [["L0H0", "L0H1", "L0H2"], ["L0H3", "L0H4"]]
    later = heads.assign(layer=[0, 0, 2, 2, 0])
    assert without_order(later, 2) == [["L0H0", "L0H1"]]


def test_a_head_of_several_pairs_of_senses_has_its_smallest_corrected_p():
    heads = table(layer=0, head=[0, 0, 1], p_swap=[0.5, 0.04, 0.3], p_auroc=[0.1, 0.2, np.nan])
    tested = with_smallest_p(heads_of(["mover", "none"], rank=[2, 1]), heads)
    assert tested["head"].tolist() == [1, 0] and tested["p_swap"].tolist() == [0.3, 0.04]
    assert np.isnan(tested["p_auroc"][0])


def test_movers_without_an_effect_on_prepared_words_are_named():
    heads = heads_of(["mover"] * 4 + ["none"])
    heads = heads.assign(
        p_continuation=[0.01, 0.3, 0.01, np.nan, 0.3], continuation=[0.2, 0.2, 0.001, 0.2, 0.2]
    )
    assert without_continuation(heads, heads) == ["L0H1", "L0H2"]


def test_a_head_has_a_remark_if_effect_and_write_or_attention_disagree():
    usual = {"net": 0.3, "net_low": 0.2, "direct": 0.3, "attention_cue": 0.6}
    cases = {"little": {"direct": 0.14}, "much": {"direct": 0.46}}
    cases |= {"elsewhere": {"attention_cue": 0.1}, "": {}}
    for name, change in cases.items():
        assert remark(pd.Series(usual | change)) == name
    assert remark(pd.Series(usual | {"direct": 0.14, "net_low": -0.1})) == ""


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
    roles = {"role": ["context", "cue", "word"], "pos": range(3)}
    rows = table(attention=attention, contribution=contribution, **roles)
    assert attention_to_sink(rows) == expected
    assert attention_to_sink(rows.assign(role=["cue", "context", "word"])) is None


READINGS = table(
    sentence=[4, 4, 5, 5, 6, 6],
    sense=["money"] * 4 + ["river"] * 2,
    sense_a="river",
    role=["cue", "context"] * 3,
    attention=[0.2, 0.7, 0.5, 0.1, 0.3, 0.3],
    contribution=[-0.4, 0.9, -0.1, -0.9, 0.3, 0.9],
)


def test_a_card_has_the_sentence_of_each_sense_with_the_most_attention_to_the_cue():
    assert clearest_of_senses(READINGS, ["river", "money"]) == [6, 5]
    assert clearest_of_senses(READINGS[:0], ["river", "money"]) == []


def test_the_clearest_sentence_has_the_largest_contribution_of_its_cue_toward_its_sense():
    assert clearest_sentence(READINGS) == 4
    assert clearest_sentence(READINGS.assign(role="context")) == 6


# --- the senses of a word -------------------------------------------------------------------------


def pairs_of(**columns):
    """Three pairs of senses of mole, of which the last has no gap."""
    pairs = table(word="mole", sense_a=["animal", "animal", "unit"], sense_b=["unit", "spy", "spy"])
    pairs = pairs.assign(ranked=[True, True, False], depth=2, ambiguity_p=1 / 4, nouns_compared=3)
    return pairs.assign(untrained_p=0.5, nuisance_p=0.5).assign(**columns)


def test_senses_are_in_the_order_of_their_pairs():
    assert senses_of(pairs_of()) == ["animal", "unit", "spy"]


@pytest.mark.parametrize(
    ("smallest", "few"), [([0.02, 0.01, 0.3], True), ([0.02, 0.009, 1], False)]
)
def test_cue_words_are_too_few_if_no_gap_of_any_pair_could_be_significant(smallest, few):
    assert has_too_few_cue_words(table(smallest_gap_p=smallest)) == few


def test_nuisances_of_ranked_pairs_confound_unless_the_word_passes_the_gate():
    both = pairs_of(untrained_p=0.009, nuisance_p=0.049)
    assert nuisances(both) == ["untrained", "nuisance"]
    assert confounders(both) == ["nuisance"]  # 1 / 4: first of three nouns
    assert confounders(both.assign(ambiguity_p=0.5)) == ["untrained", "nuisance"]
    assert confounders(both.assign(ambiguity_p=np.nan)) == ["untrained", "nuisance"]
    assert nuisances(both.assign(ranked=False)) == []
    assert nuisances(pairs_of(untrained_p=0.01, nuisance_p=0.05)) == []


def test_nouns_move_farther_by_the_gaps_summed_over_pairs_of_senses_at_the_read_out_layer():
    words = pairs_of(ambiguity_p=[np.nan, 3 / 4, 3 / 4])
    assert len(compared(words)) == 1
    assert place_among_nouns(compared(words).iloc[0]) == 3
    controls = table(
        noun=["fence", "spoon", "lamp", "mole", "fence", "spoon", "lamp"],
        depth=[2, 2, 2, 2, 2, 2, 9],
        gap=[0.1, 0.5, 0.3, 0.9, 0.6, 0.1, 9.0],
    )
    assert farther_nouns(controls, words) == ["fence", "spoon"]
    assert farther_nouns(controls, words.assign(ambiguity_p=1 / 4)) == []
    assert farther_nouns(controls, words.assign(ambiguity_p=np.nan)) == []


@pytest.mark.parametrize(("share", "times"), [(0.25, 2.0), (0.0, None), (-0.1, None)])
def test_a_word_changes_as_many_times_as_far_as_its_nouns(share, times):
    assert times_as_far(share) == times
    assert times_as_far(np.nan) is None


@pytest.mark.parametrize(
    ("nets", "layer"), [((0.2, 0.4, 0.1), 1), ((0.2, 0.3, 0.1), None), ((0.2, 0.3, 0.9), None)]
)
def test_an_mlp_leads_only_above_every_head_and_up_to_the_read_out_layer(nets, layer):
    heads = table(layer=[0, 0, 2], verdict=["mover", "none", "mover"], net=[0.3, 0.7, 0.8])
    largest = leading_mlp(table(layer=range(3), net=nets), heads, 2)
    assert (None if largest is None else largest["layer"]) == layer
    assert leading_mlp(table(layer=[2], net=[0.9]), heads, 2) is None


def test_a_word_is_one_token_if_its_embedding_is_the_same_for_all_senses():
    depth = table(sense_a="river", sense_b="money", depth=[-1, -1, 0, 0], coordinate=[0, 0, 1, 2])
    assert has_same_token(depth)
    assert not has_same_token(depth.assign(coordinate=[0, 0.1, 1, 2]))


# --- the sentences of a word ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "lone"),
    [
        (["1", "1", "2", "2"], 0),
        (["1", "1", "2", None], 1),
        (["1", "2", "3", "4"], 4),
        ([None] * 4, 0),
    ],
)
def test_sentences_in_pairs_and_those_without_a_partner_of_another_sense_are_counted(pairs, lone):
    rows = table(pair=pairs, sense=["river", "money"] * 2)
    named_pairs = sum(pair is not None for pair in pairs)
    assert number_without_partner(rows) == lone
    assert number_in_pairs(rows) == named_pairs - lone
    assert number_without_partner(rows.assign(sense="river")) == named_pairs


def test_sentences_that_differ_in_a_word_without_a_pair_are_counted():
    rows = table(
        text=["the river bank", "the money bank", "a very old bank"],
        sense=["river", "money", "money"],
        pair=None,
        frame=None,
    )
    assert number_of_unmarked_pairs(rows) == unmarked_pairs(list(rows.itertuples())) == 2
    assert number_of_unmarked_pairs(rows.assign(pair=["1", "1", np.nan])) == 0


def test_the_cues_of_an_example_are_those_of_the_first_pair_or_the_words_that_differ():
    texts = ["Odd river bank", "The river bank", "Any money bank."]
    rows = table(text=texts, part=["neither", "tested", "tested"], pair="1")
    rows = rows.assign(sense=["river", "river", "money"], cue_start=4, cue_end=9)
    senses = ("river", "money")
    assert example_cues(rows, senses, marked=True) == ("river", "money")
    assert example_cues(rows, senses, marked=False) == ("The", "Any")
    assert example_cues(rows.assign(cue_start=pd.NA), senses, marked=True) is None


def test_misread_sentences_are_listed_with_the_clearest_first():
    rows = table(right=[True, False, False, False], coordinate=[0.9, -0.1, 0.3, -0.5])
    assert read_otherwise(rows)["coordinate"].tolist() == [-0.5, 0.3, -0.1]


def test_the_largest_error_of_a_certificate_comes_first():
    rows = worst_first(table(error=[1e-7, 3e-6, 2e-6], quantity=["q", "k", "v"]))
    assert rows["quantity"].tolist() == ["k", "v", "q"]


# --- many words -----------------------------------------------------------------------------------


def over_words(p, effect, low, **columns):
    """Heads of layer 0 over many words, ranked in this order."""
    heads = table(layer=0, head=range(len(p)), p=p, effect=effect, effect_low=low)
    return heads.assign(rank=[number + 1 for number in range(len(p))], **columns)


def test_movers_of_words_lead_and_without_them_suggestive_heads_and_never_another():
    heads = over_words([0.97, 0.3, 0.01, 0.01], [0.55, 0.1, 0.05, 0.01], [-0.11, 0.02, 0.01, 0.005])
    assert names_of(movers_over_words(heads)) == ["L0H2"]
    assert names_of(top_over_words(heads)) == ["L0H2"]
    assert names_of(top_over_words(heads[:2])) == ["L0H1"]
    assert top_over_words(heads[:1]).empty


def test_movers_are_counted_among_as_many_heads_that_attend_to_the_cue_most():
    columns = {"attention_cue": [0.9, 0.5, 0.8, 0.1]}
    heads = over_words([0.01, 0.01, 0.9, 0.9], 0.2, 0.1, **columns)
    assert number_of_movers_by_attention(heads) == 1
    assert number_of_movers_by_attention(heads.assign(attention_cue=np.nan)) is None
    assert number_of_movers_by_attention(heads.assign(p=0.9)) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [({}, True), ({"ranked": False}, False), ({"ambiguity_p": 0.05}, False)]
    + [({"general_share": 1.0}, False), ({"ambiguity_p": np.nan}, False)],
)
def test_words_change_by_ambiguity_if_they_change_further_than_nouns(changed, expected):
    numbers = {"ranked": True, "ambiguity_p": 0.01, "general_share": 0.3} | changed
    assert is_ambiguity(pd.Series(numbers)) is expected
