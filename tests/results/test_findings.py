"""The findings for a word: their values for an invented study, and the claims that they leave out."""

from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest
from example_study import SENSES, make_study

from probe.experiments.run import LEADERS
from probe.results.findings import (
    findings,
    rank_groups,
    rows_by_word,
)

STUDY = make_study()
FRAMES = STUDY.frames
BANK, MOLE, APPLE = STUDY.findings.values()


def test_a_study_builds_the_records_of_its_words_once_and_they_are_frozen():
    assert list(STUDY.findings) == list(SENSES)
    assert [word.index for word in (BANK, MOLE, APPLE)] == [0, 1, 2]
    assert STUDY.findings is STUDY.findings
    with pytest.raises(FrozenInstanceError):
        BANK.word = "mole"  # type: ignore[misc]


def test_every_row_of_a_frame_belongs_to_one_word():
    by_word = rows_by_word(FRAMES)
    for name, frame in FRAMES.items():
        if "word" in frame:
            assert sum(len(rows[name]) for rows in by_word.values()) == frame["word"].notna().sum()


def test_only_heads_with_the_verdict_resolver_are_resolvers():
    for word in (BANK, MOLE, APPLE):
        assert {head.verdict for head in word.resolvers} <= {"resolver"}
        rows = FRAMES["word_heads"].query("word == @word.word and verdict == 'resolver'")
        assert len(word.resolvers) == len(rows)
    assert [head.name for head in BANK.resolvers] == ["L0H2"]
    assert [head.name for head in MOLE.resolvers] == ["L0H1", "L0H2"]
    ranks = [head.rank for head in MOLE.heads]
    assert ranks == sorted(ranks) and MOLE.top_heads == MOLE.named[:LEADERS]


def test_a_word_without_a_gap_is_not_ranked_and_names_no_head():
    assert not APPLE.ranked and BANK.ranked
    assert (APPLE.heads, APPLE.top_heads, APPLE.resolvers, APPLE.named) == ((), (), (), ())
    assert (APPLE.tests, APPLE.other_heads) == (None, None)
    assert APPLE.confounders == ()


def test_confounders_are_listed_only_for_ranked_pairs():
    words = FRAMES["words"].assign(untrained_p=0.009, nuisance_p=0.049, ambiguity_p=0.3)
    confounded = findings(FRAMES | {"words": words})
    assert confounded["bank"].confounders == ("untrained", "nuisance")
    assert not confounded["apple"].confounders
    words = FRAMES["words"].assign(untrained_p=0.01, nuisance_p=0.05)
    assert findings(FRAMES | {"words": words})["bank"].confounders == ()


def test_ranks_that_overlap_make_a_group():
    ranks = ((1, 1, 2), (2, 2, 3), (4, 4, 4))
    heads = [
        replace(head, rank=rank, rank_low=low, rank_high=high)
        for head, (rank, low, high) in zip(BANK.heads, ranks, strict=False)
    ]
    assert rank_groups(heads) == (tuple(head.name for head in heads[:2]), (heads[2].name,))


def test_the_record_holds_no_sentences():
    """The record has names and numbers only: each text occurs in the frames or is a name."""
    texts = [text for word in (BANK, MOLE, APPLE) for text in texts_of(word)]
    frames = {value for frame in FRAMES.values() for column in frame for value in frame[column]}
    assert [text for text in texts if text not in frames and len(text.split()) > 2] == []


def texts_of(value):
    """Every text in a record, except in its frames."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for part in fields(value):
            if part.name != "rows":
                yield from texts_of(getattr(value, part.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        yield from texts_of((*value, *value.values()))
