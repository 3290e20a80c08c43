"""The headline and the facts of a word: every fixed sentence and every label, from frames."""

import numpy as np
import page_text
import pandas as pd
import pytest
from test_sentences import (
    BY_MODEL,
    BY_PLACE,
    FRAMES,
    MANY,
    NOT_NAMED,
    ODD,
    OF_BANK,
    OF_TWO,
    TOO_FEW_NOUNS,
    TWO,
    UNREAD,
    USUAL,
    N,
    compared_in_pairs,
    frames_of,
    gate,
    head,
    mlps_more,
    mlps_of,
)

WITH_READERS = "more for the word, with the parts that read them"
RESOLVERS, PLACE, MATERIAL = "resolvers", "among unambiguous nouns", "tested on"
APART, KEPT, CUE = "meanings also separated", "gap kept", "read from"
GAP = "gap between the meanings"  # the only fact of a word without one
FIVE_CUE_WORDS = {"ranked": False, "cue_words": 5, "smallest_gap_p": 2 / 2**5}
FACTS = [
    (GAP, "not significant, so no head is ranked", frames_of(ranked=False)),
    (
        GAP,
        "with 5 pairs of cue words p cannot be below .062 (limit .01)",
        frames_of(**FIVE_CUE_WORDS),
    ),
    (RESOLVERS, "L0H2 and L1H0", OF_TWO),
    (RESOLVERS, "none", frames_of(head("L0H2", verdict="mover"))),
    (
        RESOLVERS,
        "none: noun47, noun46, noun45 and 7 others move farther",
        frames_of(head("L0H2", verdict="mover"), ambiguity_p=11 / 49),
    ),
    (
        WITH_READERS,
        "L0H0 (with MLP 1)",
        frames_of(
            head("L0H0", verdict="mover", comparison="more", p_more_write=0.2),
            frames={"mlps": mlps_more(1)["mlps"]},
        ),
    ),
    ("significant heads", "2 of ", OF_TWO),
    (PLACE, "first of 49, moves 2.0 times as far", USUAL),
    (PLACE, "first of 49, moves farther", frames_of(general_share=-0.01)),
    (PLACE, "first of 49, moves more than 20 times as far", frames_of(general_share=1 / 400)),
    (PLACE, "second of 49; noun47 moves farther", gate(1)),
    (PLACE, "third of 49; noun47 and noun46 move farther", gate(2)),
    (
        PLACE,
        "first of 49, moves 2.0 times as far; first of the 21 with a similar surprisal",
        frames_of(nouns_near=20, ambiguity_p_near=0.048),
    ),
    (
        PLACE,
        "not compared: no nouns were asked for; by default it is compared with the nouns that ship",
        frames_of(**NOT_NAMED),
    ),
    (PLACE, ": 3, and 19 are needed; name more nouns with --controls", frames_of(**TOO_FEW_NOUNS)),
    (
        PLACE,
        "24 are needed; add pairs of sentences in which bank is a noun in just this form",
        frames_of(**TOO_FEW_NOUNS | {"not_compared": "12 paired sentences, and 24 are needed"}),
    ),
    ("farther than any head", f"MLP 1: 90{N}%", mlps_of(0.4, 0.9)),
    ("MLPs that do more for the word", "layers 2 and 4", mlps_more(2, 4)),
    ("MLPs that do more for the word", "layer 4", mlps_more(4)),
    (KEPT, f"95{N}% by 2 heads (best random set: 30{N}%)", OF_TWO),
    (CUE, "an earlier word, e.g. river and money", USUAL),
    (CUE, "another word, e.g. river and money", frames_of(causal=False)),
    (CUE, "an earlier word, not the marked cue, e.g.", frames_of(sources=(0.4, 0.5), frames=ODD)),
    (
        "no order among",
        "L0H2 and L1H0",
        frames_of(head("L0H2", (1, 1, 2)), head("L1H0", (2, 1, 2))),
    ),
    (
        APART,
        f"{BY_MODEL}; use pairs of sentences that differ only in the cue",
        frames_of(UNREAD, untrained_p=0.009, ambiguity_p=0.3),
    ),
    (
        APART,
        f"{BY_MODEL}; unambiguous nouns in the same sentences move less",
        frames_of(untrained_p=0.009),
    ),
    # Nouns do not rule out that a head writes a position at the ambiguous word only.
    (
        APART,
        f"{BY_PLACE}; use pairs of sentences that differ only in the cue",
        frames_of(nuisance_p=0.04),
    ),
    ("read after", "layer 2; heads of later layers at the end", USUAL),
    (MATERIAL, "held-out pairs of sentences", USUAL),
    (MATERIAL, "; exploratory", frames_of(exploratory=True)),
]


FACTS_OF_PAGE = page_text.ENVIRONMENT.get_template("facts.txt.j2").module.FACTS[True]


@pytest.mark.parametrize(("label", "value", "frames"), FACTS)
def test_a_fact_has_its_numbers(label, value, frames):
    assert value in page_text.facts(frames, "bank")[label]


def test_every_label_has_an_example():
    of_pairs = "resolvers of single pairs"  # the last test below
    assert {label for label, *_ in FACTS} == {GAP, *FACTS_OF_PAGE} - {of_pairs}


def test_a_fact_that_does_not_apply_has_no_row():
    rows = page_text.facts(frames_of(ranked=False), "bank")
    assert list(rows) == [GAP]
    assert APART not in page_text.facts(USUAL, "bank")


def test_a_fact_counts_the_pairs_of_meanings_it_holds_for():
    assert "in 2 of 5 pairs of meanings" in page_text.facts(compared_in_pairs(2), "mole")[PLACE]
    pairs = np.arange(4, 4 + len(FRAMES["words"]))
    frames = FRAMES | {"words": FRAMES["words"].assign(pairs=pairs, cue_words=pairs - 1)}
    assert page_text.facts(frames, "mole")[MATERIAL] == (
        "5 to 9 held-out pairs of sentences, 4 to 8 pairs of cue words for each pair of meanings"
    )


def test_the_nouns_that_move_farther_are_ranked_as_by_the_gate():
    """The gate sums squared gaps over the pairs of meanings. In the pair with the widest gap noun0
    moves farthest; in the mean of the shares it does not: (0.7 + 4 x 0.05) / 5 is below 0.64."""
    controls = FRAMES["controls"].copy()
    wide = controls["word"].eq("mole") & controls["sense_a"].eq("animal")
    wide &= controls["sense_b"].eq("unit")
    controls.loc[wide & controls["noun"].eq("noun0"), "gap"] *= 0.7 / 0.05
    controls.loc[wide, "gap"] *= 100
    frames = gate(1) | {"controls": controls}
    assert "noun0 moves farther" in page_text.facts(frames, "mole")[PLACE]


@pytest.mark.parametrize("nets", [(0.2, 0.3), (0.2, 0.3, 0.2, 0.9)])
def test_an_mlp_is_a_fact_only_above_every_head_and_up_to_the_read_out_layer(nets):
    """The first head has an effect of 0.3, and bank is read after layer 2."""
    assert "farther than any head" not in page_text.facts(mlps_of(*nets), "bank")


def test_a_resolver_has_the_number_of_pairs_of_meanings_that_it_resolves():
    for resolves, fact in ((2, "L0H1 (2 of 6 pairs)"), (0, "L0H1 (on average over 6 pairs)")):
        frames = frames_of(head("L0H1", word="mole", resolves=resolves, of=6))
        assert fact in page_text.facts(frames, "mole")[RESOLVERS]


def of_both(bank, mole, **words):
    rows = [each | {"word": "bank"} for each in bank] + [each | {"word": "mole"} for each in mole]
    return frames_of(frames={"word_heads": pd.DataFrame(rows)}, **words)


HEADLINES = [
    (
        "These sentences do not separate the meanings of bank and mole in this model.",
        of_both(TWO, TWO, ranked=False),
    ),
    (
        "These sentences have too few cue words to test whether the meanings of bank and mole differ.",
        of_both(TWO, TWO, **FIVE_CUE_WORDS),
    ),
    ("No single head has a significant effect on bank and mole.", of_both([UNREAD], [UNREAD])),
    ("L0H2 and L1H0 move bank and mole most.", of_both(TWO, TWO)),
    ("L0H2 moves bank and mole most.", of_both(TWO[:1], TWO[:1])),
    ("The top heads differ from word to word.", of_both(TWO, MANY)),
    (
        "Resolvers: bank L0H2 and L1H0; mole L0H2.",
        of_both(TWO, [TWO[0], TWO[1] | {"verdict": "mover"}]),
    ),
    (
        "Resolvers: bank L0H2 and L1H0; mole none.",
        of_both(TWO, [head("L0H2", verdict="mover")]),
    ),
    (
        "No head does more for an ambiguous word than for unambiguous nouns.",
        of_both(*[[head("L0H2", verdict="mover")]] * 2),
    ),
    ("No word was compared with unambiguous nouns.", of_both(TWO, TWO, **NOT_NAMED)),
    (
        "Exploratory, because there are few sentences.",
        of_both(TWO, TWO, exploratory=np.where(OF_BANK, True, False)),
    ),
]


@pytest.mark.parametrize(("sentence", "frames"), HEADLINES)
def test_the_headline_consists_of_fixed_sentences(sentence, frames):
    assert sentence in page_text.headline(frames, ["bank", "mole"])


def test_the_question_names_the_words():
    question = page_text.macro("facts.txt.j2", "question")
    assert question(FRAMES) == "Which heads resolve bank, mole and apple?"


def test_a_head_that_resolves_single_pairs_is_named_with_them():
    """It is a mover of the word: the mean over its pairs of meanings does not pass."""
    of_mole = head("L0H1", word="mole", verdict="mover", resolves=1, of=6)
    of_pair = head("L0H1", word="mole", sense_a="animal", sense_b="unit")
    frames = frames_of(of_mole, frames={"heads": pd.DataFrame([of_pair])})
    named = page_text.facts(frames, "mole")["resolvers of single pairs"]
    assert named == "L0H1 for animal / unit"
