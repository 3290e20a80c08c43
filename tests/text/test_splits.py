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
from inside import ALIGNED, CROSSED, DRAWN, ELSEWHERE, UNPAIRED, splits

import probe

quick = settings(max_examples=30, deadline=None, derandomize=True)
GRID = make_sentences(frames=6, distances=(1, 2))
BARE = ("frame", "pair", "cue_start", "cue_end")


def cross_fit(sentences, *, seed=0, **options):
    return splits.cross_fit(sentences, SENSES, seed=seed, **options)


def refused(sentences, message):
    with pytest.raises(probe.InputError, match=f"^{re.escape(message)}$"):
        cross_fit(sentences)


def assert_held_out(sentences, split, *, names):
    """Assert that every sentence is tested once, and that the training part shares neither its
    unit nor the attributes in `names`.
    """
    used = [sentences[row] for row in split.rows]
    assert sorted(n for holdout in split.holdouts for n in holdout.test) == [*range(len(used))]
    assert split.tested == [*range(len(used))]
    assert [row.sense == SENSES[0] for row in used] == list(split.is_a)
    groups = [split.units, *([getattr(row, name) for row in used] for name in names)]
    for holdout in split.holdouts:
        for values in groups:
            train, test = ({values[n] for n in part} for part in (holdout.train, holdout.test))
            assert not train & test
        senses = Counter(used[n].sense for n in holdout.train)
        assert set(senses) == set(SENSES) and min(senses.values()) >= splits.STUDY_LEAST.per_sense
    of_both_senses = {row for row, sentence in enumerate(sentences) if sentence.sense in SENSES}
    assert of_both_senses == {*split.rows} | {*split.left_out}
    assert not {*split.rows} & {*split.left_out}


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
    except probe.InputError as error:
        assert str(error).endswith("other cue words, or correct a misspelt sense.")
        return
    framed = split.design == "5 folds by cue word and frame"
    assert framed or (dropped and split.design == "5 folds by cue word")
    assert_held_out(sentences, split, names=("cue_word", "frame") if framed else ("cue_word",))
    assert set(split.left_out.values()) <= {UNPAIRED}  # because their partner was dropped


@pytest.mark.parametrize(("first", "second"), [(6, 6), (12, 6), (24, 4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_crossed_pairs_are_nested(first, second, seed):
    sentences = make_crossed(first, second)
    split = cross_fit(sentences, seed=seed)
    assert_held_out(sentences, split, names=("cue_word", "frame"))
    by_cue = partners(sentences, split)
    assert {len(partner_cues) for partner_cues in by_cue.values()} == {1}
    assert split.pair_design == ALIGNED and set(split.left_out.values()) == {CROSSED}
    # Nothing is lost that need not be.
    assert len(by_cue) == 2 * min(first, second) == 2 * len(set(split.units))
    assert len(split.pairs) == 6 * min(first, second) and split.exchanged == split.units
    assert by_cue != partners(sentences, cross_fit(sentences, seed=seed + 3))  # drawn with the seed
    assert split == cross_fit(sentences, seed=seed)


def test_nested_pairs_are_all_kept_and_of_uneven_ones_the_most_frequent():
    assert len(cross_fit(GRID).pairs) == len(GRID) / 2 and not cross_fit(GRID).left_out
    uneven = [
        row
        for row in make_crossed(6, 6)
        if row.pair.split("/")[1] == row.pair.split("/")[2] or row.frame == "frame 0"
    ]
    for seed in range(5):
        kept = partners(uneven, cross_fit(uneven, seed=seed))
        assert all(a[-1] == b[-1] for a, [b] in kept.items())


@pytest.mark.parametrize(
    ("missing", "design", "names"),
    [
        (("frame",), "cue word", ("pair", "cue_word")),
        (BARE[2:], "pair and frame", ("pair", "frame")),
        (("frame", *BARE[2:]), "pair", ("pair",)),
    ],
)
def test_the_marked_attributes_are_held_out(missing, design, names):
    sentences = without(GRID, *missing)
    split = cross_fit(sentences, seed=3)
    assert split.design == f"5 folds by {design}" and not split.left_out
    assert_held_out(sentences, split, names=names)


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
    for sense in SENSES:
        sizes = [
            sum(sentences[row].sense == sense for row in holdout.test) for holdout in split.holdouts
        ]
        assert max(sizes) - min(sizes) <= 3


@pytest.mark.parametrize(("first", "second"), [(15, 15), (24, 8), (9, 31)])
def test_unpaired_sentences_are_all_used_whatever_the_seed(first, second):
    """Each sentence has a different cue word. All are used, and the number of units does not depend
    on the draw.
    """
    grid = without(make_sentences(frames=1, distances=(1,), cues=40), "pair", "frame")
    sides = [[row for row in grid if row.sense == sense] for sense in SENSES]
    sentences = [*sides[0][:first], *sides[1][:second]]
    for seed in range(7):
        split = cross_fit(sentences, seed=seed)
        assert_held_out(sentences, split, names=("cue_word",))
        assert not split.left_out and len(split.rows) == first + second
        assert len(set(split.units)) == len(split.pairs) == min(first, second)
        assert list(split.exchanged) == [row.cue_word for row in sentences]


@pytest.mark.parametrize("cues", [3, 4, 6])
def test_whether_there_are_enough_does_not_depend_on_the_seed(cues):
    unpaired = without(make_crossed(cues, 6), "pair", "frame")
    for sentences in (make_crossed(cues, cues), make_crossed(cues, cues, frames=1), unpaired):
        enough = set()
        for seed in range(9):
            try:
                enough.add(bool(cross_fit(sentences, seed=seed)))
            except probe.InputError:
                enough.add(False)
        assert len(enough) == 1 and (cues > 3 or enough == {False})


def test_sentences_with_the_word_elsewhere_are_left_out_if_positions_must_match():
    sentences = without(GRID, "pair")
    modulus = dict(zip(SENSES, (7, 5), strict=True))
    positions = [row % modulus[sentence.sense] for row, sentence in enumerate(sentences)]
    split = cross_fit(sentences, positions=positions)

    def counted(rows, sense):
        return Counter(positions[row] for row in rows if sentences[row].sense == sense)

    everywhere = [counted(range(len(sentences)), sense) for sense in SENSES]
    used = [counted(split.rows, sense) for sense in SENSES]
    assert used[0] == used[1] == everywhere[0] & everywhere[1]
    assert set(split.left_out.values()) == {ELSEWHERE}
    assert_held_out(sentences, split, names=("cue_word",))
    # Aligned pairs have equal positions.
    assert cross_fit(GRID, positions=positions) == cross_fit(GRID)


def test_a_file_with_few_pairs_counts_as_unpaired():
    unpaired, paired = (
        cross_fit([*GRID[: 2 * count], *without(GRID[2 * count :], "pair")]) for count in (40, 60)
    )
    assert unpaired.pair_design == DRAWN and not unpaired.left_out
    assert paired.pair_design == ALIGNED and set(paired.left_out.values()) == {UNPAIRED}


# --- the column `split` ---------------------------------------------------------------------------


def parted(*names, rows=GRID):
    """The sentences of a grid, with these parts in turn for its pairs."""
    return [replace(row, split=names[number // 2 % len(names)]) for number, row in enumerate(rows)]


def test_the_split_of_the_file_is_respected():
    sentences = parted("train", "test", "fit", "report", "dev", None)
    split = cross_fit(sentences)
    [holdout] = split.holdouts
    for names, positions in ((("train", "fit"), holdout.train), (("test", "report"), holdout.test)):
        expected = [row for row, sentence in enumerate(sentences) if sentence.split in names]
        assert sorted(split.rows[position] for position in positions) == expected
    assert split.design == "the split given in the file" and split.tested == list(holdout.test)
    assert split.holdouts == cross_fit(sentences, seed=99).holdouts != cross_fit(GRID).holdouts
    for names in (("train", "train"), ("fit", None)):  # a single part is ignored
        assert cross_fit(parted(*names)).holdouts == cross_fit(GRID).holdouts


def test_pairs_are_drawn_within_the_parts_of_the_files_split():
    parts = ("fit", "report", "report", "fit", "report")
    bare = [replace(row, pair=None, split=parts[number % 5]) for number, row in enumerate(GRID)]
    split = cross_fit(bare)
    assert split.pair_design == DRAWN
    in_tests = [{*pair} <= {*split.holdouts[0].test} for pair in split.pairs]
    in_training = [{*pair} <= {*split.holdouts[0].train} for pair in split.pairs]
    assert all(a != b for a, b in zip(in_tests, in_training, strict=True))
    assert len(split.tested_pairs) == sum(in_tests) > 0


COLUMN = "Cannot hold out the sentences of 'lock' by the column split: "
HALF = len(GRID) // 2


def halved(first):
    """Sentences of which all of the first sense are in one part."""
    second = iter(("train", "test") * len(GRID))
    return [replace(row, split=first if row.sense == "door" else next(second)) for row in GRID]


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (halved("train"), f"{COLUMN}got no sentence of 'door' for testing, expected some of each sense in both parts. Give 'door' rows of both parts, or omit the column."),
        (halved("test"), f"{COLUMN}got no sentence of 'door' for fitting, expected some of each sense in both parts. Give 'door' rows of both parts, or omit the column."),
        ([replace(row, split=("fit", "report", "report", "fit")[n % 4]) for n, row in enumerate(GRID)],
         f"{COLUMN}no pair of sentences of both senses is for testing. Give both sentences of a pair the same part, or omit the column."),
        (parted("fit", "reprot"), f"{COLUMN}got 'fit' ({HALF}), 'reprot' ({HALF}), expected 'fit' for fitting and 'report' for testing. Correct 'reprot', or omit the column."),
        ([replace(row, pair="1") for row in GRID], f"Cannot pair the sentences of 'lock': pair '1' has {HALF} sentences of 'door', expected one of each sense. Give every pair of sentences a name that no other pair has, or omit the column."),
        (without([*(row for row in GRID if row.sense == "door"), GRID[1], GRID[3]], *BARE),
         f"Cannot hold out the sentences of 'lock': got {HALF} sentences of 'door' and 2 sentences of 'canal' in 2 groups that share no cue word or pair, expected at least 8 of each sense in at least 4 such groups, because tested and fitted sentences must share none. Add sentences with other cue words, or correct a misspelt sense."),
    ],
    ids=str.split("untested unfitted separated misspelt pair few"),
)  # fmt: skip
def test_sentences_that_cannot_be_held_out_are_refused_with_what_to_do(sentences, message):
    refused(sentences, message)


def test_connected_cue_words_are_one_unit():
    chain = [("one", "x"), ("two", "y"), ("two", "x"), ("x", "z")]
    assert list(splits.components(chain).values()) == [0, 0, 0, 0]
    apart = [("one", "x"), ("two", "y"), ("one", "z")]
    assert list(splits.components(apart).values()) == [0, 1, 0]
