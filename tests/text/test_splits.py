"""Splits that leak nothing: no frame and no cue word in two parts, no pair torn, every reason given."""

from dataclasses import replace

import pytest
from handmade import make_sentences, without
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import InputError
from probe.text import splits
from probe.text.splits import MIN_PER_SENSE

quick = settings(max_examples=60, deadline=None, derandomize=True)
GRID = make_sentences(frames=6, distances=(1, 2))


def cue_of(sentence):
    return sentence.text[sentence.cue_start : sentence.cue_end]


def groups_by_part(sentences, split, name):
    """The values of something in fit and in report."""
    return [{name(sentences[row]) for row in split.rows(part)} for part in ("fit", "report")]


@quick
@given(seed=st.integers(0, 10_000), dropped=st.sets(st.integers(0, len(GRID) - 1), max_size=150))
def test_no_frame_cue_or_pair_is_in_both_parts(seed, dropped):
    sentences = [sentence for row, sentence in enumerate(GRID) if row not in dropped]
    try:
        split = splits.split(sentences, seed=seed)
    except InputError as error:
        assert "give about a dozen or more of every sense" in str(error)
        return
    for name in (lambda sentence: sentence.frame, cue_of, lambda sentence: sentence.pair):
        fit, report = groups_by_part(sentences, split, name)
        assert fit and report
        assert not fit & report
    side_of = {}
    for sentence, part in zip(sentences, split.parts, strict=True):
        assert side_of.setdefault(sentence.pair, part) == part  # a pair is not torn, not even out of the study
    assert split.design == "by frame and cue word"


@quick
@given(seed=st.integers(0, 10_000), order=st.permutations(range(40)))
def test_a_split_depends_on_the_seed_and_not_on_the_order_of_rows(seed, order):
    sentences = GRID[:40] + GRID[120:160]
    split = splits.split(sentences, seed=seed)
    assert split == splits.split(sentences, seed=seed)
    shuffled = splits.split([*(sentences[row] for row in order), *sentences[40:]], seed=seed)
    assert shuffled.parts[:40] == tuple(split.parts[row] for row in order)


def test_another_seed_is_another_split():
    assert len({splits.split(GRID, seed=seed).parts for seed in range(10)}) > 5


def test_half_of_the_groups_report_a_third_fits_a_sixth_selects():
    split = splits.split(GRID, seed=1)
    for name in (cue_of, lambda sentence: sentence.frame):
        sizes = [len({name(GRID[row]) for row in split.rows(part)}) for part in splits.PARTS]
        whole = len({name(sentence) for sentence in GRID})
        for size, share in zip(sizes, (1 / 3, 1 / 6, 1 / 2), strict=True):
            assert abs(size - whole * share) <= 2  # cues are dealt in linked pairs


@pytest.mark.parametrize(
    ("missing", "design", "kept_apart"),
    [
        (("cue_start", "cue_end"), "by frame", [lambda sentence: sentence.frame]),
        (("frame",), "by cue word", [cue_of]),
    ],
)
def test_what_is_known_is_kept_apart(missing, design, kept_apart):
    sentences = without(GRID, *missing)
    split = splits.split(sentences, seed=3)
    assert split.design == design
    assert None not in split.parts
    for name in (*kept_apart, lambda sentence: sentence.pair):
        fit, report = groups_by_part(sentences, split, name)
        assert fit and report and not fit & report


def test_without_frames_and_cues_pairs_stay_together():
    sentences = without(GRID, "frame", "cue_start", "cue_end")
    split = splits.split(sentences, seed=3)
    fit, report = groups_by_part(sentences, split, lambda sentence: sentence.pair)
    assert not fit & report
    assert split.design == "by sentence (no frames or cue spans were given)"


@quick
@given(counts=st.tuples(st.integers(14, 24), st.integers(14, 24)), seed=st.integers(0, 1000))
def test_without_anything_each_sense_is_dealt_out(counts, seed):
    bare = without(GRID, "frame", "pair", "cue_start", "cue_end")
    sentences = [sentence for number in range(2) for sentence in bare[number::2][: counts[number]]]
    split = splits.split(sentences, seed=seed)
    for sense, count in zip(("door", "canal"), counts, strict=True):
        parts = [part for sentence, part in zip(sentences, split.parts, strict=True) if sentence.sense == sense]
        for part, share in zip(splits.PARTS, (1 / 3, 1 / 6, 1 / 2), strict=True):
            assert abs(parts.count(part) - count * share) <= 2
        assert len(parts) == count


def test_the_split_of_the_file_is_respected():
    names = ("train", "test", "fit", "report", "dev", None)
    meant = {"train": "fit", "fit": "fit", "test": "report", "report": "report"}
    sentences = [replace(sentence, split=names[row // 2 % 6]) for row, sentence in enumerate(GRID)]
    split = splits.split(sentences, seed=0)
    assert split.parts == tuple(meant.get(sentence.split) for sentence in sentences)
    assert split.design == "the split given in the file"
    assert split == splits.split(sentences, seed=99)


def test_cue_words_linked_by_a_chain_of_pairs_are_one_group():
    door, canal = (sentence for sentence in GRID[:2])
    chain = []
    for pair, (a, b) in enumerate([("one", "x"), ("two", "y"), ("two", "x"), ("three", "z")]):
        for like, cue in ((door, a), (canal, b)):
            text = f"the {cue} lock"
            spans = {"start": len(text) - 4, "end": len(text), "cue_start": 4, "cue_end": 4 + len(cue)}
            chain.append(replace(like, text=text, pair=str(pair), **spans))
    groups = splits.linked_cues(chain)
    assert len(set(groups[:6])) == 1  # one-x, two-y, two-x
    assert len(set(groups[6:])) == 1
    assert groups[0] != groups[6]
    assert splits.linked_cues(without(chain, "pair")) == ["one", "x", "two", "y", "two", "x", "three", "z"]


def test_too_few_sentences_are_said_in_one_sentence():
    few = [sentence for sentence in GRID if sentence.sense == "door"] + [GRID[1], GRID[3]]
    with pytest.raises(InputError) as error:
        splits.split(without(few, "frame", "pair", "cue_start", "cue_end"), seed=0)
    assert str(error.value) == (
        "Splitting the sentences of 'lock' by sentence (no frames or cue spans were given): the fit part got 1 "
        "of sense "
        f"'canal', expected at least {MIN_PER_SENSE}, of 2 of 'canal', {len(few) - 2} of 'door' in all; give "
        "about a dozen or more of "
        "every sense."
    )


@quick
@given(seed=st.integers(0, 10_000), dropped=st.sets(st.integers(0, len(GRID) - 1), max_size=150))
def test_the_rule_of_a_corpus_that_is_not_held_keeps_frames_and_cue_words_apart_too(seed, dropped):
    sentences = [sentence for row, sentence in enumerate(GRID) if row not in dropped]
    seen = splits.Seen()
    for sentence in sentences:
        seen.add(sentence, seed)
    rule = seen.rule()
    ends = [rule.part_of(sentence, seed) for sentence in sentences]
    assert {reason for part, reason in ends if part is None} <= {splits.CROSSING}
    for name in (lambda sentence: sentence.frame, cue_of):
        groups = {
            part: {name(sentence) for sentence, (where, _) in zip(sentences, ends, strict=True) if where == part}
            for part in ("fit", "report")
        }
        assert not groups["fit"] & groups["report"]
    assert rule.design == "by frame and cue word, by their hash"


def test_the_smallest_hashes_are_kept_with_what_was_hashed_whatever_the_order():
    values = [9, 2, 7, 2, 5, 1, 8]
    for order in (values, values[::-1]):
        kept = splits.Smallest(3)
        for value in order:
            kept.add(value, f"item {value}")
        assert kept.items == ["item 1", "item 2", "item 5"]
        assert kept.limit() == 1  # a third of three groups
    assert splits.Smallest(3).limit() is None
