"""Records as files: every result is read back unchanged, and has the same bytes."""

from functools import cache

import pytest
from embedded import embedded
from handmade import WORD, make_sentences
from inside import (
    every_experiment,
    measure,
    prepare,
    read_record,
    split_senses,
    untrained,
    write_record,
)
from measured import assert_same, options_of
from planted import planted_model

import probe

PAIRS = 4
# A sentence that is left out, because its cue follows the word.
LATE = make_sentences(frames=1, distances=(1,), cues=2, cue_after=True)[0]
SENTENCES = [*make_sentences(cues=12), LATE]


def measured(model, material):
    """The record of a word after all experiments."""
    splits = split_senses(material, seed=0, causal=True)
    options = options_of(pairs=PAIRS, experiments=every_experiment())
    return measure(model, material, splits, options, random_model=untrained(model, seed=0))


@cache
def records():
    """Two records: a word of the lexicon, which has sentences in the lesson; and a word in a planted
    model with a backup head.
    """
    tiny = embedded()
    planted, _ = planted_model("backup", 0)
    return (
        measured(tiny, prepare(tiny, "bank", probe.lexicon.expand("bank").sentences[:24])),
        measured(planted, prepare(planted, WORD, SENTENCES)),
    )


def test_every_experiment_has_a_result_in_the_first_record():
    assert set(records()[0].measured) == set(every_experiment())


@pytest.mark.parametrize("number", range(2))
def test_a_record_is_read_back_unchanged(tmp_path, number):
    record = records()[number]
    assert_same(read_record(write_record(tmp_path / "record", record)), record)


@pytest.mark.parametrize("number", range(2))
def test_the_same_record_has_the_same_bytes(tmp_path, number):
    record = records()[number]
    first = write_record(tmp_path / "first", record)
    second = write_record(tmp_path / "second", read_record(first))
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.campaign
def test_the_same_measurement_has_the_same_bytes(tmp_path):
    planted, _ = planted_model("backup", 0)
    material = prepare(planted, WORD, SENTENCES)
    first = write_record(tmp_path / "first", records()[1])
    second = write_record(tmp_path / "second", measured(planted, material))
    assert second.read_bytes() == first.read_bytes()
