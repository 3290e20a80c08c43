"""Cues inferred from the differences between aligned sentences."""

import pytest
from inside import infer_cues

import probe


def pair(*texts, name="1", **more):
    """Sentences with bank, each of a different sense, in one pair."""
    rows = [
        {"word": "bank", "sense": sense, "text": text, "start": text.index("bank"), "pair": name}
        for sense, text in zip(("river", "money", "blood"), texts, strict=False)
    ]
    return probe.read_sentences([row | {"end": row["start"] + 4} | more for row in rows]).sentences


def cues(sentences, *, both_sides=False):
    return [sentence.cue for sentence in infer_cues(sentences, both_sides=both_sides)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("By the river, a bank", "By the cash, a bank"), ["river", "cash"]),
        (("The old river bank", "The safe bank"), ["old river", "safe"]),
        (("river bank", "money bank", "blood bank"), ["river", "money", "blood"]),
        # A model that reads left to right has not read the text after the word.
        (("A river bank was steep", "A loan bank was closed"), ["river", "loan"]),
        # Differences in two places with too many words between them, without a word in one of the
        # sentences, of more than three words, or none at all.
        (("His boat by the bank", "Her loan at the bank"), ["His boat by", "Her loan at"]),
        (("His old boat by a bank", "Her old loan at a bank"), [None, None]),
        (("The steep bank", "The bank"), [None, None]),
        (("Now, the river bank", "Now the money bank"), [None, None]),
        (("It is a big old muddy bank", "It is an oddly small new bank"), [None, None]),
        (("The bank was steep", "The bank was closed"), [None, None]),
        # A script without spaces does not show where words begin.
        (("川のbank", "金のbank"), [None, None]),
    ],
)
def test_the_differing_words_of_a_pair_are_its_cues(texts, expected):
    assert cues(pair(*texts)) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("The bank was steep", "The bank was closed"), ["steep", "closed"]),
        (("The river bank", "The money bank"), ["river", "money"]),
        (("A river bank was steep", "A loan bank was closed"), [None, None]),
        (("bankの川", "bankの金"), [None, None]),
    ],
)
def test_for_a_model_that_reads_both_ways_only_the_cues_may_differ(texts, expected):
    assert cues(pair(*texts), both_sides=True) == expected


def test_inferred_cues_are_marked_as_inferred():
    first, second = infer_cues(pair("The river bank", "The money bank"), both_sides=False)
    assert first.cue_inferred and second.cue_inferred


def test_marked_cues_stay_and_sentences_without_a_partner_have_none():
    marked = pair("The river bank", "The money bank", cue_start=0, cue_end=3)
    unmarked = pair("A wet bank", "A rich bank", name="2")
    assert cues([*marked, *unmarked]) == ["The", "The", None, None]
    assert cues([*pair("The river bank"), *pair("The money bank", name="2")]) == [None, None]
    same_sense = [pair("The river bank")[0], pair("The money bank")[0]]
    assert cues(same_sense) == [None, None]
