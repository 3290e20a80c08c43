"""The campaign that studies unambiguous nouns as if they were ambiguous: its sentences, its bounds,
and its stored table."""

from pathlib import Path

import pandas as pd
import pytest
from campaign.one_meaning_nouns import MOST, NO_HEADS, TABLE, in_its_place, summary, wrong
from inside import passes_gate

import probe

STORED = Path(__file__).parents[2] / "reports" / TABLE


def test_a_noun_replaces_the_word_if_its_article_agrees():
    texts = ("The river had a bank of clay.", "The muddy bank lay by the river.", "The river Bank.")
    rows = [{"word": "bank", "sense": "river", "text": text, "cue": "river"} for text in texts]
    sentences = probe.read_sentences(rows).sentences
    with_a = [row.text for row in in_its_place(sentences, "ladder")]
    assert with_a == ["The river had a ladder of clay.", "The muddy ladder lay by the river."]
    [row] = in_its_place(sentences, "umbrella")
    assert (row.text, row.cue) == ("The muddy umbrella lay by the river.", "river")
    assert row.word == row.form == "umbrella"


def table_of(resolvers, *, rank=1, word="bank", model="m"):
    """A table of one word and 50 nouns; the word has this rank among them, and `resolvers` of the
    nouns have a head that resolves."""
    row = {"model": model, "word": word, "sense_a": "river", "sense_b": "money"} | NO_HEADS
    rows = [row | {"noun": word, "nouns_compared": 50, "ambiguity_p": rank / 51, "resolver": 3}]
    for number in range(50):
        result = {"ambiguity_p": 1 / 50, "resolver": 1} if number < resolvers else {}
        rows.append(
            row | {"noun": f"noun{number}", "nouns_compared": 49, "ambiguity_p": 0.3} | result
        )
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("frame", "problems"),
    [
        (table_of(1), []),  # two in a hundred
        (table_of(2), ["m: a resolver in 2 of 50 studies"]),
        (table_of(0, rank=2), ["m: bank does not pass the gate, rank 2"]),
        (table_of(0, rank=2, word="apple", model="smollm2"), []),
        (table_of(0, word="apple", model="smollm2"), ["smollm2: apple passes the gate, rank 1"]),
    ],
)
def test_too_many_resolvers_and_a_word_that_does_not_pass_are_reported(frame, problems):
    assert wrong(frame) == problems
    # Studies are counted once for all pairs of senses.
    counts = summary(pd.concat([frame, frame.assign(sense_b="row", ambiguity_p=1.0, resolver=0)]))
    assert counts["studies"].tolist() == [50]


@pytest.mark.skipif(not STORED.exists(), reason="not made yet: run make campaign")
def test_the_stored_table_is_within_its_bounds():
    rows = pd.read_csv(STORED)
    assert wrong(rows) == []
    by_model = summary(rows).groupby(level="model")[["studies", "resolver"]].sum()
    assert (by_model["resolver"] <= MOST * by_model["studies"]).all()
    assert all(passes_gate(row) or not row["resolver"] for row in rows.to_dict("records"))
