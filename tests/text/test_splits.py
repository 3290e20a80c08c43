"""Holdouts: fitted and tested sentences share no frame and no cue word, every sentence is tested
once, pairs are nested, and every sentence left out has a reason.
"""

import re
from collections import Counter
from dataclasses import replace

import pytest
from handmade import SENSES, make_crossed, make_sentences, without
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import InputError
from probe.text import splits
from probe.text.sentences import Sentence
from probe.text.splits import ALIGNED, CROSSED, DRAWN, ELSEWHERE, UNPAIRED, cue_words

quick = settings(max_examples=30, deadline=None, derandomize=True)
GRID = make_sentences(frames=6, distances=(1, 2))
BARE = ("frame", "pair", "cue_start", "cue_end")


def cross_fit(sentences, *, seed=0, **options):
    return splits.cross_fit(sentences, SENSES, seed=seed, **options)


def assert_held_out(sentences, split, *, names):
    """Asserts that every sentence is tested once, and that the training part shares neither its
    unit nor the attributes in `names`.
    """
    used = [sentences[row] for row in split.rows]
    assert sorted(position for holdout in split.holdouts for position in holdout.test) == list(
        range(len(used))
    )
    assert split.tested == list(range(len(used)))
    assert [row.sense == SENSES[0] for row in used] == list(split.is_a)
    for holdout in split.holdouts:
        for values in ([getattr(row, name) for row in used] for name in names):
            assert not {values[position] for position in holdout.train} & {
                values[position] for position in holdout.test
            }
        assert not {split.units[position] for position in holdout.train} & {
            split.units[position] for position in holdout.test
        }
        senses = Counter(used[position].sense for position in holdout.train)
        assert set(senses) == set(SENSES) and min(senses.values()) >= splits.STUDY_LEAST.per_sense
    of_both_senses = {row for row, sentence in enumerate(sentences) if sentence.sense in SENSES}
    assert of_both_senses == set(split.rows) | set(split.left_out) and not set(split.rows) & set(
        split.left_out
    )


def partners(sentences, split):
    """The cue words of the other sense with which each cue word is paired."""
    by_cue = {}
    for ends in split.pairs:
        a, b = (sentences[split.rows[end]].cue_word for end in ends)
        assert split.units[ends[0]] == split.units[ends[1]]
        by_cue.setdefault(a, set()).add(b)
        by_cue.setdefault(b, set()).add(a)
    return by_cue


@quick
@given(seed=st.integers(0, 10_000), dropped=st.sets(st.integers(0, len(GRID) - 1), max_size=150))
def test_no_frame_or_cue_word_is_on_both_sides_and_every_sentence_used_is_tested_once(
    seed, dropped
):
    sentences = [sentence for row, sentence in enumerate(GRID) if row not in dropped]
    try:
        split = cross_fit(sentences, seed=seed)
    except InputError as error:
        assert str(error).endswith(
            "Add sentences with other cue words, or correct a misspelt sense."
        )
        return
    framed = split.design == "5 folds by cue word and frame"
    assert framed or split.design == "5 folds by cue word"
    assert_held_out(sentences, split, names=("cue_word", "frame") if framed else ("cue_word",))
    assert set(split.left_out.values()) <= {UNPAIRED}  # because their partner was dropped
    assert framed or dropped


@pytest.mark.parametrize(("first", "second"), [(6, 6), (12, 6), (24, 4)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_crossed_pairs_are_nested(first, second, seed):
    sentences = make_crossed(first, second)
    split = cross_fit(sentences, seed=seed)
    assert_held_out(sentences, split, names=("cue_word", "frame"))
    by_cue = partners(sentences, split)
    assert {len(partner_cues) for partner_cues in by_cue.values()} == {
        1
    } and split.pair_design == ALIGNED
    assert (
        len(by_cue) == 2 * min(first, second) == 2 * len(set(split.units))
    )  # nothing is lost that need not be
    assert len(split.pairs) == 6 * min(first, second) and split.exchanged == split.units
    assert set(split.left_out.values()) == {CROSSED}
    assert by_cue != partners(sentences, cross_fit(sentences, seed=seed + 3))  # drawn with the seed
    assert split == cross_fit(sentences, seed=seed)


def test_nested_pairs_are_all_kept_and_of_uneven_ones_the_most_frequent():
    assert len(cross_fit(GRID).pairs) == len(GRID) / 2 and not cross_fit(GRID).left_out
    grid = make_crossed(6, 6)
    uneven = [
        row
        for row in grid
        if row.pair.split("/")[1] == row.pair.split("/")[2] or row.frame == "frame 0"
    ]
    for seed in range(5):
        assert all(
            a[-1] == b[-1] for a, [b] in partners(uneven, cross_fit(uneven, seed=seed)).items()
        )


@pytest.mark.parametrize(
    ("missing", "design"),
    [(("frame",), "5 folds by cue word"), (BARE[2:], "5 folds by pair and frame")],
)
def test_the_marked_attributes_are_held_out(missing, design):
    sentences = without(GRID, *missing)
    split = cross_fit(sentences, seed=3)
    assert split.design == design and not split.left_out
    assert_held_out(sentences, split, names=("pair", "cue_word" if "frame" in missing else "frame"))


def test_without_frames_and_cue_words_pairs_stay_together():
    sentences = without(GRID, "frame", "cue_start", "cue_end")
    split = cross_fit(sentences, seed=3)
    assert split.design == "5 folds by pair" and len(set(split.units)) == len(split.pairs)
    assert_held_out(sentences, split, names=("pair",))


@quick
@given(counts=st.tuples(st.integers(14, 24), st.integers(14, 24)), seed=st.integers(0, 1000))
def test_without_marks_every_sentence_is_used_in_folds_of_similar_size(counts, seed):
    bare = without(GRID, *BARE)
    sentences = [sentence for number in range(2) for sentence in bare[number::2][: counts[number]]]
    split = cross_fit(sentences, seed=seed)
    assert split.design == "5 folds by sentence" and split.pair_design == DRAWN
    assert not split.left_out and len(split.rows) == sum(counts)
    assert_held_out(sentences, split, names=())
    assert len(split.pairs) == len(set(split.units)) == min(counts)
    for sense, count in zip(SENSES, counts, strict=True):
        sizes = [
            sum(sentences[row].sense == sense for row in holdout.test) for holdout in split.holdouts
        ]
        assert sum(sizes) == count and max(sizes) - min(sizes) <= 3


@pytest.mark.parametrize(("first", "second"), [(15, 15), (24, 8), (9, 31)])
def test_unpaired_sentences_are_all_used_whatever_the_seed(first, second):
    """Each sentence has a different cue word. All are used, and the number of units does not depend
    on the draw.
    """
    grid = without(make_sentences(frames=1, distances=(1,), cues=40), "pair", "frame")
    sides = [[row for row in grid if row.sense == sense] for sense in SENSES]
    sentences = [*sides[0][:first], *sides[1][:second]]
    for seed in range(21):
        split = cross_fit(sentences, seed=seed)
        assert_held_out(sentences, split, names=("cue_word",))
        assert not split.left_out and len(split.rows) == first + second
        assert len(set(split.units)) == len(split.pairs) == min(first, second)
        assert list(split.exchanged) == cue_words(sentences)


@pytest.mark.parametrize("cues", [3, 4, 5, 6])
def test_whether_there_are_enough_does_not_depend_on_the_seed(cues):
    unpaired = without(make_crossed(cues, 6), "pair", "frame")
    for sentences in (make_crossed(cues, cues), make_crossed(cues, cues, frames=1), unpaired):
        enough = set()
        for seed in range(21):
            try:
                enough.add(bool(cross_fit(sentences, seed=seed)))
            except InputError:
                enough.add(False)
        assert len(enough) == 1 and (cues > 3 or enough == {False})


def test_sentences_with_the_word_elsewhere_are_left_out_if_positions_must_match():
    sentences = without(GRID, "pair")
    positions = [
        row % 7 if sentence.sense == SENSES[0] else row % 5
        for row, sentence in enumerate(sentences)
    ]
    split = cross_fit(sentences, positions=positions)
    used, all_rows = (
        [
            Counter(positions[row] for row in rows if sentences[row].sense == sense)
            for sense in SENSES
        ]
        for rows in (split.rows, range(len(sentences)))
    )
    assert used[0] == used[1] == all_rows[0] & all_rows[1]
    assert split.left_out and set(split.left_out.values()) == {ELSEWHERE}
    assert_held_out(sentences, split, names=("cue_word",))
    assert cross_fit(GRID, positions=positions) == cross_fit(
        GRID
    )  # aligned pairs have equal positions


def test_a_file_with_few_pairs_counts_as_unpaired():
    mostly_unpaired, mostly_paired = (
        [*GRID[: 2 * count], *without(GRID[2 * count :], "pair")] for count in (40, 60)
    )
    assert (
        cross_fit(mostly_unpaired).pair_design == DRAWN and not cross_fit(mostly_unpaired).left_out
    )
    assert cross_fit(mostly_paired).pair_design == ALIGNED and set(
        cross_fit(mostly_paired).left_out.values()
    ) == {UNPAIRED}


def test_another_seed_gives_another_split():
    assert len({cross_fit(GRID, seed=seed).holdouts for seed in range(10)}) > 5


@pytest.mark.parametrize(
    ("split", "use"), [("train", "testing"), ("test", "fitting"), (None, "fitting")]
)
def test_a_split_that_leaves_a_sense_out_of_a_part_is_refused(split, use):
    rows = [
        Sentence("bank", "river", f"The river{number} had a bank", 0, 4, split=split)
        for number in range(20)
    ]
    rows += [
        Sentence(
            "bank",
            "money",
            f"The money{number} had a bank",
            0,
            4,
            split=("train", "test")[number % 2],
        )
        for number in range(20)
    ]
    message = (
        f"Cannot hold out the sentences of 'bank' by the column split: got no sentence of 'river' "
        f"for {use}, expected some of each sense in both parts. Give 'river' rows of both parts, "
        "or omit the column."
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        splits.cross_fit(rows, ("river", "money"), seed=0)


def test_a_split_that_separates_the_sentences_of_every_pair_is_refused():
    parts = ("fit", "report", "report", "fit")
    rows = [replace(row, split=parts[number % 4]) for number, row in enumerate(GRID)]
    message = (
        "Cannot hold out the sentences of 'lock' by the column split: no pair of sentences of both "
        "senses is for testing. Give both sentences of a pair the same part, or omit the column."
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        cross_fit(rows)


def test_the_split_of_the_file_is_respected():
    names = ("train", "test", "fit", "report", "dev", None)
    roles = {"train": "fit", "fit": "fit", "test": "report", "report": "report"}
    sentences = [replace(sentence, split=names[row // 2 % 6]) for row, sentence in enumerate(GRID)]
    split = cross_fit(sentences)
    [holdout] = split.holdouts
    for part, positions in (("fit", holdout.train), ("report", holdout.test)):
        expected = {
            row for row, sentence in enumerate(sentences) if roles.get(sentence.split) == part
        }
        assert {split.rows[position] for position in positions} == expected
    assert split.design == "the split given in the file" and split.tested == list(holdout.test)
    assert split.holdouts == cross_fit(sentences, seed=99).holdouts


def test_pairs_are_drawn_within_the_parts_of_the_files_split():
    parts = ("fit", "report", "report", "fit", "report")
    bare = [replace(row, pair=None, split=parts[number % 5]) for number, row in enumerate(GRID)]
    split = cross_fit(bare)
    assert split.pair_design == "donors drawn at random"
    in_tests = [{*pair} <= {*split.holdouts[0].test} for pair in split.pairs]
    in_training = [{*pair} <= {*split.holdouts[0].train} for pair in split.pairs]
    assert all(a != b for a, b in zip(in_tests, in_training, strict=True))
    assert len(split.tested_pairs) == sum(in_tests) > 0


def test_a_misspelt_part_is_reported_and_a_single_part_is_ignored():
    def parted(*names):
        return [replace(row, split=names[number // 2 % 2]) for number, row in enumerate(GRID)]

    half = len(GRID) // 2
    message = (
        f"Cannot hold out the sentences of 'lock' by the column split: got 'fit' ({half}), 'reprot' "
        f"({half}), expected 'fit' for fitting and 'report' for testing. Correct 'reprot', or omit "
        "the column."
    )
    for hold_out in (cross_fit, lambda rows: splits.plan(rows, seed=0)):
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            hold_out(parted("fit", "reprot"))
    assert cross_fit(parted("train", "train")).holdouts == cross_fit(GRID).holdouts
    assert cross_fit(parted("fit", None)).design == cross_fit(GRID).design


def test_connected_cue_words_are_one_unit():
    chain = [("one", "x"), ("two", "y"), ("two", "x"), ("x", "z")]
    assert list(splits.components(chain).values()) == [0, 0, 0, 0]
    assert list(splits.components([("one", "x"), ("two", "y"), ("one", "z")]).values()) == [
        0,
        1,
        0,
    ]


def test_too_few_sentences_are_refused_in_one_sentence():
    sentences = [sentence for sentence in GRID if sentence.sense == "door"] + [GRID[1], GRID[3]]
    with pytest.raises(InputError) as error:
        cross_fit(without(sentences, *BARE))
    assert str(error.value) == (
        f"Cannot hold out the sentences of 'lock': got {len(sentences) - 2} sentences of 'door' and 2 "
        "sentences of 'canal' in 2 groups that share no cue word or pair, expected at least "
        f"{2 * splits.STUDY_LEAST.per_sense} of each sense in at least {splits.STUDY_LEAST.units} "
        "such groups, because tested and fitted sentences must share none. Add sentences with "
        "other cue words, or correct a misspelt sense."
    )


def test_a_pair_with_two_sentences_of_a_sense_is_refused():
    rows = [replace(sentence, pair="1") for sentence in GRID]
    of_sense = sum(sentence.sense == SENSES[0] for sentence in rows)
    with pytest.raises(InputError) as error:
        cross_fit(rows)
    assert str(error.value) == (
        f"Cannot pair the sentences of 'lock': pair '1' has {of_sense} sentences of {SENSES[0]!r}, "
        "expected one of each sense. Give every pair of sentences a name that no other pair has, or "
        "omit the column."
    )
