"""The first sentence of a card: no more than the verdicts, no names and numbers of heads."""

import re

import pandas as pd
import pytest
from example_study import make_study

from probe.pages.answers import ALIGNED, plain
from probe.patching import effects
from probe.stats.numbers import ordinal

FRAMES = make_study().frames
FROM = "In this model the word “bank” gets its meaning from an earlier word, such as “river” or “money”"
BANK = f"{FROM}, in part by way of "


def frames_of(*heads: tuple[int, int], kept: int = 2, **words: object) -> dict[str, pd.DataFrame]:
    """The study's frames in which these heads of bank, and no other, resolve, and the first `kept` heads are enough."""
    rows = FRAMES["word_heads"].query("word == 'bank'")
    resolves = [place in heads for place in zip(rows["layer"], rows["head"], strict=True)]
    rows = rows.assign(verdict=["resolver" if one else "none" for one in resolves])
    curves = FRAMES["curves"].query("word == 'bank'").assign(smallest=kept)
    return FRAMES | {"word_heads": rows, "curves": curves, "words": FRAMES["words"].assign(**words)}


def test_an_earlier_word_and_the_heads_of_the_verdicts():
    assert plain(frames_of((0, 2)), "bank") == BANK + "one attention head in the first of its 4 layers."
    assert plain(frames_of((0, 2), (1, 0)), "bank") == (
        "In this model the word “bank” gets its meaning from an earlier word, such as “river” or “money”, "
        "by way of two attention heads in the first and second of its 4 layers."
    )
    every = plain(frames_of((0, 0), (1, 0), (2, 0), (2, 1)), "bank")
    assert every == BANK + "four attention heads in the first, second and third of its 4 layers."


def test_only_what_is_enough_is_the_whole_way():
    assert "in part" not in plain(frames_of((0, 2), kept=1), "bank")
    assert "in part" in plain(frames_of((0, 2), kept=2), "bank")
    assert "in part" in plain(frames_of((0, 2), kept=99), "bank")


@pytest.mark.parametrize(
    "change",
    [
        {"words": FRAMES["words"].assign(pair_design="donors drawn at random")},
        {"sentences": FRAMES["sentences"].assign(cue_start=pd.NA)},
    ],
)
def test_no_earlier_word_is_named_where_sentences_differ_in_more_or_no_cue_is_known(change):
    said = plain(frames_of((0, 2)) | change, "bank")
    assert said.startswith(
        "In this model the word “bank” gets its meaning from the words before it, in part by way of one"
    )


def test_a_word_that_is_not_the_same_token_is_not_said_to_get_its_meaning_from_others():
    rows = FRAMES["depth"]
    other = rows.assign(coordinate=rows["coordinate"] + 0.1 * ((rows["depth"] == -1) & (rows["sense"] == "river")))
    assert "changes its meaning with the sentence, in part by way of" in plain(
        frames_of((0, 2)) | {"depth": other}, "bank"
    )


def test_no_head_and_no_gap():
    assert plain(frames_of(), "bank") == (
        "In this model the vector of “bank” changes with its meaning, but no single attention head was shown to bring "
        "that about."
    )
    assert plain(FRAMES, "apple") == (
        "These sentences do not show that the vector of “apple” in this model tells its meanings apart."
    )


def test_few_sentences_are_said_and_so_are_pairs_that_were_not_shown():
    assert plain(frames_of((0, 2), exploratory=True), "bank").startswith(
        "As far as a few sentences can tell, in this model the word"
    )
    assert plain(FRAMES, "mole").endswith("(shown for 5 of its 6 pairs of meanings).")
    assert "pairs" not in plain(FRAMES, "bank")


def test_no_sentence_names_a_head_or_gives_a_reason():
    for word in ("bank", "mole", "apple"):
        assert not re.search(r"L\d+H\d+|%|because|resolv", plain(FRAMES, word))


def test_the_design_is_named_as_the_study_names_it():
    assert effects.ALIGNED == ALIGNED


def test_ordinals():
    places = (1, 2, 12, 13, 21, 22, 23, 24, 111, 112, 113)
    expected = ["first", "second", "twelfth", "13th", "21st", "22nd", "23rd", "24th", "111th", "112th", "113th"]
    assert [ordinal(place) for place in places] == expected
