"""Splits of sentences into a fitted and a tested part, which share no frame and no cue word.

Everything that is fitted (an axis, a direction, an order of heads) is tested on other sentences,
with other frames and other cue words. A split in the file takes precedence. `cross_fit` splits the
sentences of two senses for a study and tests every sentence once. `plan` splits the sentences of
all senses of a word for an evaluation, without pairs.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from probe.errors import InputError
from probe.text.sentences import Sentence

FIT = "fit"
REPORT = "report"
# The part for each name in the column `split` of a file.
FILE_PARTS = {"fit": FIT, "train": FIT, "select": FIT, "report": REPORT, "test": REPORT}
FILE_SPLIT = "the split given in the file"
FOLDS = 5  # crossed in frames and cues: 25 cells, each fitted on 16/25 of the sentences
# Designs of pairs.
ALIGNED = "aligned pairs"
DRAWN = "donors drawn at random"
# Reasons why a sentence is left out of a study.
CROSSED = "its cue word is paired with several of the other sense, of which one was drawn"
ELSEWHERE = "no sentence of the other sense has the word at the same position"
UNPAIRED = "no sentence of the other sense is paired with it"
# Reasons why a sentence is left out of an evaluation.
NO_PART = "its split is neither train nor test"
NOT_LEARNED = "its sense does not occur in the training part"
TOO_FEW = (
    "its sense has too few sentences (or frames, or cue words) to be learned without the tested "
    "sentences"
)
ONE_SENSE = "the word has no other sense left"


class Least(NamedTuple):
    """The smallest sample sizes of a split."""

    per_sense: int  # sentences of each sense to fit on
    units: int  # groups of sentences that share no cue word or pair
    pairs: int  # aligned pairs; with fewer, pairs are drawn at random


# With one sentence fewer, a single odd one would be a third of a mean. Of four groups, three are
# left to fit on.
STUDY_LEAST = Least(per_sense=4, units=4, pairs=4)
# In a survey, words are the sample. With two sentences per sense, the axis is the difference of the
# two sentences that are not tested.
SURVEY_LEAST = Least(per_sense=1, units=2, pairs=1)


def cue_words(sentences: Sequence[Sentence]) -> list[Hashable]:
    """The unit of exchangeability of each sentence: its cue word. Without a marked cue, its pair;
    without a pair, the sentence.
    """
    return [
        sentence.cue_word or (row if sentence.pair is None else ("pair", sentence.pair))
        for row, sentence in enumerate(sentences)
    ]


@dataclass(frozen=True)
class Holdout:
    """Rows to fit on and rows to test. No row is in both."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.train or not self.test or set(self.train) & set(self.test):
            raise ValueError(
                f"holdout: got {len(self.train)} rows to fit on and {len(self.test)} to test, "
                "expected some of each and none in both"
            )


@dataclass(frozen=True)
class CrossFit:
    """The holdouts and the pairs of the sentences of two senses."""

    rows: tuple[int, ...]  # the sentences used
    is_a: tuple[bool, ...]  # whether each row has sense A
    units: tuple[int, ...]  # of each row: the group of cue words that is held out and resampled
    # The unit of exchangeability of each row: its unit if units contain pairs, else its cue word.
    exchanged: tuple[Hashable, ...]
    holdouts: tuple[Holdout, ...]  # positions in `rows`
    frames: tuple[str | None, ...] = ()  # of each row; None for a row without a frame
    pairs: tuple[tuple[int, int], ...] = ()  # positions in `rows`: sense A, sense B
    pair_design: str = DRAWN  # ALIGNED or DRAWN
    design: str = ""  # of the holdouts, in words
    left_out: Mapping[int, str] = field(default_factory=dict)  # the reason for every other row

    @cached_property
    def cells(self) -> NDArray[np.intp]:
        """The number of the holdout that tests each row. -1 for a row that is used for fitting
        only.
        """
        cells = np.full(len(self.rows), -1)
        for number, holdout in enumerate(self.holdouts):
            cells[list(holdout.test)] = number
        return cells

    @property
    def tested(self) -> list[int]:
        """Positions in `rows` of the sentences that are held out once."""
        tested: list[int] = np.flatnonzero(self.cells >= 0).tolist()
        return tested

    def tested_rows(self, is_a: bool) -> list[int]:
        """The sentences of one sense that are held out once."""
        return [self.rows[position] for position in self.tested if self.is_a[position] == is_a]

    @property
    def tested_pairs(self) -> list[tuple[int, int]]:
        """The pairs in which both sentences are held out once. Only these are measured."""
        return [pair for pair in self.pairs if all(self.cells[position] >= 0 for position in pair)]


def restrict(split: CrossFit, positions: Sequence[int]) -> CrossFit:
    """The split of some of its sentences.

    positions: the sentences to keep, as positions in `split.rows`

    Sentences that were held out together remain together. A holdout is dropped if it has only one
    sense to fit on, or no sentence to test.
    """
    new = {position: number for number, position in enumerate(positions)}
    holdouts = []
    for holdout in split.holdouts:
        train = tuple(new[position] for position in holdout.train if position in new)
        test = tuple(new[position] for position in holdout.test if position in new)
        if test and len({split.is_a[positions[number]] for number in train}) == 2:
            holdouts.append(Holdout(train, test))
    pairs = tuple((new[a], new[b]) for a, b in split.pairs if a in new and b in new)

    def select(column: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(column[position] for position in positions) if column else ()

    return replace(
        split,
        rows=select(split.rows),
        is_a=select(split.is_a),
        units=select(split.units),
        exchanged=select(split.exchanged),
        frames=select(split.frames),
        holdouts=tuple(holdouts),
        pairs=pairs,
    )


def cross_fit(
    sentences: Sequence[Sentence],
    senses: tuple[str, str],
    *,
    seed: int,
    positions: Sequence[int] | None = None,
    least: Least = STUDY_LEAST,
) -> CrossFit:
    """A split that holds out every sentence of two senses once, together with all sentences that
    share its cue word or its frame.

    positions: the position of the word in each sentence; if given, drawn pairs have the word at the
        same position
    least: the smallest sample sizes

    Pairs are nested: the partners of a cue word all have the same cue word of the other sense. If a
    file crosses them, one is drawn with the seed. Otherwise all cue words would be connected, and
    no group of them could be held out or count as a unit. If a file has aligned pairs for less than
    half of the rarer sense, cue words are combined into units and sentences into pairs at random.

    Raises InputError for fewer units or sentences to fit on than `least`, whatever the seed, and
    if the file's split leaves no pair of sentences to test.
    """
    parts = _file_parts(sentences)
    usable = [row for row in range(len(sentences)) if parts is None or parts[row]]
    of_sense: Side = [[row for row in usable if sentences[row].sense == sense] for sense in senses]
    if parts is not None:
        _require_both_parts(sentences, senses, parts)
    rng = np.random.default_rng(seed)
    aligned = _aligned(sentences, of_sense)
    paired = len(aligned) >= least.pairs and 2 * len(aligned) >= min(map(len, of_sense))
    if paired:
        unit_of, pairs = _nest_pairs(sentences, aligned, rng)
    else:
        if positions is not None:
            of_sense = _match_positions(of_sense, positions, rng)
        unit_of, pairs = _draw_pairs(sentences, of_sense, parts, rng)
    rows = sorted(unit_of)
    used = [sentences[row] for row in rows]
    units = [unit_of[row] for row in rows]
    holdouts, design = _held_out(used, units, seed, least)
    _require_enough(used, units, holdouts, senses, least)
    index_of = {row: index for index, row in enumerate(rows)}
    unused = [
        row
        for row, sentence in enumerate(sentences)
        if sentence.sense in senses and row not in index_of
    ]
    split = CrossFit(
        rows=tuple(rows),
        is_a=tuple(sentence.sense == senses[0] for sentence in used),
        units=tuple(units),
        exchanged=tuple(units if paired else cue_words(used)),
        holdouts=holdouts,
        frames=tuple(sentence.frame for sentence in used),
        pairs=tuple((index_of[a], index_of[b]) for a, b in pairs),
        pair_design=ALIGNED if paired else DRAWN,
        design=design,
        left_out=_reasons(sentences, unused, usable, aligned if paired else None),
    )
    _require_tested_pair(sentences[0].word, split)
    return split


def _reasons(
    sentences: Sequence[Sentence],
    unused: Sequence[int],
    usable: Sequence[int],
    aligned: Sequence[tuple[int, int]] | None,
) -> dict[int, str]:
    """Why each of the unused rows is left out.

    aligned: the rows of each pair; None if pairs are drawn at random
    """
    in_pairs = {row for pair in aligned or () for row in pair}
    reasons = {}
    for row in unused:
        if aligned is None:
            reasons[row] = ELSEWHERE
        else:
            reasons[row] = CROSSED if row in in_pairs else UNPAIRED
    for row in set(unused) - set(usable):
        names = ", ".join(FILE_PARTS)
        reasons[row] = f"its split is {sentences[row].split!r}, expected one of {names}"
    return reasons


Side = Sequence[Sequence[int]]  # rows of sense A, rows of sense B
Groups = Sequence[Hashable]
Link = tuple[Hashable, Hashable]


def _file_parts(sentences: Sequence[Sentence]) -> list[str | None] | None:
    """The part of each sentence in the file's split, None for a sentence without a part. None if
    the file does not have both parts.

    Raises InputError for an unknown name if a part is missing.
    """
    parts = [FILE_PARTS.get(sentence.split or "") for sentence in sentences]
    if {FIT, REPORT} <= set(parts):
        return parts
    names = Counter(sentence.split for sentence in sentences if sentence.split)
    unknown = [name for name in names if name not in FILE_PARTS]
    if unknown:
        got = ", ".join(f"{name!r} ({count})" for name, count in names.items())
        raise InputError(
            f"Cannot hold out the sentences of {sentences[0].word!r} by the column split: got "
            f"{got}, expected {FIT!r} for fitting and {REPORT!r} for testing. Correct "
            f"{unknown[0]!r}, or omit the column."
        )
    return None


def _file_holdout(parts: Sequence[str | None]) -> Holdout:
    """The parts of the file's split as one holdout."""
    train = tuple(row for row, part in enumerate(parts) if part == FIT)
    test = tuple(row for row, part in enumerate(parts) if part == REPORT)
    return Holdout(train, test)


def _aligned(sentences: Sequence[Sentence], of_sense: Side) -> list[tuple[int, int]]:
    """The rows of each aligned pair, sense A first.

    Raises InputError for a pair with two sentences of the same sense.
    """
    for rows in of_sense:
        names = [sentences[row].pair for row in rows if sentences[row].pair is not None]
        for name, count in Counter(names).most_common(1):
            if count > 1:
                first = sentences[rows[0]]
                raise InputError(
                    f"Cannot pair the sentences of {first.word!r}: pair {name!r} has {count} "
                    f"sentences of {first.sense!r}, expected one of each sense. Give every pair of "
                    "sentences a name that no other pair has, or omit the column."
                )
    partner = {sentences[row].pair: row for row in of_sense[1] if sentences[row].pair is not None}
    return [
        (row, partner[sentences[row].pair]) for row in of_sense[0] if sentences[row].pair in partner
    ]


def _nest_pairs(
    sentences: Sequence[Sentence], aligned: Sequence[tuple[int, int]], rng: np.random.Generator
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """The unit of each row and the pairs, for the largest set of pairs in which every cue word has
    one partner.
    """
    words = cue_words(sentences)
    links = [(words[a], words[b]) for a, b in aligned]
    first = sorted({a for a, _ in links}, key=str)
    second = sorted({b for _, b in links}, key=str)
    counts = Counter(links)
    number_of_pairs = np.array([[counts[a, b] for b in second] for a in first])
    # Random numbers below one pair, so that the seed decides between equal numbers of pairs only.
    weight = number_of_pairs + rng.random((len(first), len(second))) / 2
    assignment = zip(*linear_sum_assignment(weight, maximize=True), strict=True)
    partners = [(first[a], second[b]) for a, b in assignment if counts[first[a], second[b]]]
    unit_of_link = components(partners)
    pairs = [pair for pair, link in zip(aligned, links, strict=True) if link in unit_of_link]
    unit_of = {}
    for a, b in pairs:
        unit = unit_of_link[words[a], words[b]]
        unit_of[a] = unit
        unit_of[b] = unit
    return unit_of, pairs


def _match_positions(of_sense: Side, positions: Sequence[int], rng: np.random.Generator) -> Side:
    """A random selection of the rows with equal numbers of both senses at every position."""
    counts = [Counter(positions[row] for row in rows) for rows in of_sense]
    matched = []
    for rows in of_sense:
        remaining = counts[0] & counts[1]  # the smaller number at each position
        selection = []
        for row in rng.permutation(rows).tolist():
            if remaining[positions[row]] > 0:
                remaining[positions[row]] -= 1
                selection.append(row)
        matched.append(sorted(selection))
    return matched


def _draw_pairs(
    sentences: Sequence[Sentence],
    of_sense: Side,
    parts: Sequence[str | None] | None,
    rng: np.random.Generator,
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """The unit of each row and the pairs, both drawn at random.

    A unit combines cue words of both senses. Pairs are drawn within units, and within the parts of
    the file's split: a pair is tested only if both of its sentences are.
    """
    words = cue_words(sentences)
    shuffled = []
    for rows in of_sense:
        names = sorted({words[row] for row in rows}, key=str)
        shuffled.append([names[index] for index in rng.permutation(len(names))])
    fewest = min(map(len, shuffled))
    links = [
        (a, b)
        for index_a, a in enumerate(shuffled[0])
        for index_b, b in enumerate(shuffled[1])
        if index_a % fewest == index_b % fewest
    ]
    unit_of_word = {word: unit for link, unit in components(links).items() for word in link}
    unit_of = {row: unit_of_word[words[row]] for rows in of_sense for row in rows}
    members: defaultdict[tuple[int, str], tuple[list[int], list[int]]] = defaultdict(
        lambda: ([], [])
    )
    for side, rows in enumerate(of_sense):
        for row in rng.permutation(rows).tolist():
            part = "" if parts is None else parts[row] or ""
            members[unit_of[row], part][side].append(row)
    pairs: list[tuple[int, int]] = []
    for _, sides in sorted(members.items()):
        pairs += zip(*sides, strict=False)
    return unit_of, pairs


def components(links: Sequence[Link]) -> dict[Link, int]:
    """The number of each link's connected component.

    Links may be connected, because a cue word may occur in both senses.
    """
    names = dict.fromkeys(name for link in links for name in link)
    index_of = {name: index for index, name in enumerate(names)}
    ends = np.array([[index_of[name] for name in link] for link in links], dtype=int)
    starts, stops = ends.reshape(-1, 2).T
    graph = coo_array((np.ones(len(links)), (starts, stops)), shape=(len(names), len(names)))
    component = connected_components(graph, directed=False)[1]
    return {link: int(component[start]) for link, start in zip(links, starts, strict=True)}


def _held_out(
    sentences: Sequence[Sentence], units: Sequence[int], seed: int, least: Least
) -> tuple[tuple[Holdout, ...], str]:
    """The holdouts and their design: the file's split, else folds by unit and frame, else folds by
    unit if frames leave too few sentences to fit on.
    """
    if parts := _file_parts(sentences):
        return (_file_holdout(parts),), FILE_SPLIT
    labels = [sentence.sense for sentence in sentences]
    frames = [
        sentence.frame if sentence.frame is not None else row
        for row, sentence in enumerate(sentences)
    ]
    name = _unit_name(sentences)
    choices: list[tuple[list[Groups], str]] = []
    if any(sentence.frame is not None for sentence in sentences) and len(set(frames)) > 1:
        factors = _crossed_or_joined([units, frames], FOLDS)
        choices.append((factors, f"{FOLDS} folds by {name} and frame"))
    choices.append(([units], f"{FOLDS} folds by {name}"))
    for factors, design in choices:
        cells = _cells(factors, labels, seed, FOLDS)
        if all(_fewest(labels, train) >= least.per_sense for train, _ in cells):
            return tuple(Holdout(*cell) for cell in cells), design
    return (), choices[-1][1]


def _crossed_or_joined(factors: Sequence[Groups], folds: int) -> list[Groups]:
    """The factors, with two factors joined into one if they have many connected components.

    Then the folds need not be crossed, and they are as balanced as the components.
    """
    if len(factors) < 2:
        return list(factors)
    links: list[Link] = [(("first", a), ("second", b)) for a, b in zip(*factors, strict=True)]
    component_of = components(links)
    together = [component_of[link] for link in links]
    return list(factors) if len(set(together)) < 2 * folds else [together]


def _unit_name(sentences: Sequence[Sentence]) -> str:
    """The name of the units in the design of a split."""
    if sentences and all(sentence.cue_word is not None for sentence in sentences):
        return "cue word"
    return "pair" if any(sentence.pair for sentence in sentences) else "sentence"


def _fewest(labels: Sequence[str], rows: Sequence[int]) -> int:
    """The number of rows of the rarest sense."""
    return min(sum(labels[row] == sense for row in rows) for sense in set(labels))


def _require_both_parts(
    sentences: Sequence[Sentence], senses: tuple[str, str], parts: Sequence[str | None]
) -> None:
    """Raises InputError for a sense that is missing in a part of the file's split."""
    for sense in senses:
        of_sense = {parts[row] for row, sentence in enumerate(sentences) if sentence.sense == sense}
        for part in (FIT, REPORT):
            if part not in of_sense:
                use = "fitting" if part == FIT else "testing"
                raise InputError(
                    f"Cannot hold out the sentences of {sentences[0].word!r} by the column split: "
                    f"got no sentence of {sense!r} for {use}, expected some of each sense in both "
                    f"parts. Give {sense!r} rows of both parts, or omit the column."
                )


def _require_enough(
    sentences: Sequence[Sentence],
    units: Sequence[int],
    holdouts: Sequence[Holdout],
    senses: tuple[str, str],
    least: Least,
) -> None:
    """Raises InputError for too few units, or too few sentences of a sense to fit on."""
    labels = [sentence.sense for sentence in sentences]
    enough = holdouts and _fewest(labels, holdouts[0].train) >= least.per_sense
    if enough and len(set(units)) >= least.units and len(set(labels)) == 2:
        return
    each = {sense: labels.count(sense) for sense in senses}
    counts = " and ".join(f"{n} sentence{'s' * (n != 1)} of {sense!r}" for sense, n in each.items())
    word = sentences[0].word if sentences else ""
    groups = len(set(units))
    raise InputError(
        f"Cannot hold out the sentences of {word!r}: got {counts} in {groups} "
        f"group{'s' * (groups != 1)} that share no cue word or pair, expected at least "
        f"{2 * least.per_sense} of each sense in at least {least.units} such groups, because "
        "tested and fitted sentences must share none. Add sentences with other cue words, or "
        "correct a misspelt sense."
    )


def _require_tested_pair(word: str, split: CrossFit) -> None:
    """Raises InputError if a split in the file leaves no pair of sentences to test."""
    if not split.tested_pairs:
        raise InputError(
            f"Cannot hold out the sentences of {word!r} by the column split: no pair of sentences "
            "of both senses is for testing. Give both sentences of a pair the same part, or omit "
            "the column."
        )


def in_pairs(sentences: Sequence[Sentence]) -> list[int]:
    """The rows of one word's sentences whose `pair` also has a sentence of another sense."""
    senses_of: dict[Hashable, set[str]] = defaultdict(set)
    for sentence in sentences:
        if sentence.pair is not None:
            senses_of[sentence.pair].add(sentence.sense)
    return [
        row for row, sentence in enumerate(sentences) if len(senses_of.get(sentence.pair, ())) > 1
    ]


def unmarked_pairs(sentences: Sequence[Sentence]) -> int:
    """The number of one word's sentences that differ from a sentence of another sense in a single
    word, although neither a pair nor a frame connects them.
    """
    senses_of: dict[Hashable, set[str]] = defaultdict(set)
    paired = set(in_pairs(sentences))
    keys_of_rows = []
    for row, sentence in enumerate(sentences):
        is_marked = row in paired or sentence.frame
        words = () if is_marked else tuple(sentence.text.split())
        # The text without each word in turn. Texts that differ in one word share a key.
        keys = [(at, words[:at], words[at + 1 :]) for at in range(len(words))]
        for key in keys:
            senses_of[key].add(sentence.sense)
        keys_of_rows.append(keys)
    return sum(any(len(senses_of[key]) > 1 for key in keys) for keys in keys_of_rows)


@dataclass(frozen=True)
class Plan:
    """The split of one word's sentences for an evaluation.

    Each training part has every sense that is tested with it, and at least two senses.
    """

    rows: tuple[int, ...]  # the sentences used
    holdouts: tuple[Holdout, ...]  # positions in `rows`
    design: str  # in words
    left_out: Mapping[int, str]  # the reason for every other row


def plan(
    sentences: Sequence[Sentence],
    *,
    seed: int,
    folds: int = FOLDS,
) -> Plan:
    """A split of the sentences of one word: the file's train and test parts if it has both, else
    folds by frame and cue word.

    Sentences that cannot be separated into training and test parts are left out with the reason. A
    word with no sentences left has a plan without holdouts.
    """
    parts = _file_parts(sentences)
    if parts is not None:
        return _plan_of_file(sentences, parts)
    return _plan_folds(sentences, seed, folds)


def _plan_of_file(sentences: Sequence[Sentence], parts: Sequence[str | None]) -> Plan:
    """The plan of the file's split."""
    training_senses = {
        sentence.sense for sentence, part in zip(sentences, parts, strict=True) if part == FIT
    }
    left_out = {}
    for row, (sentence, part) in enumerate(zip(sentences, parts, strict=True)):
        if part is None:
            left_out[row] = NO_PART
        elif sentence.sense not in training_senses:
            left_out[row] = NOT_LEARNED
    rows = [row for row in range(len(sentences)) if row not in left_out]
    used = [parts[row] for row in rows]
    design = "train and test as the file gives them"
    if len(training_senses) < 2 or REPORT not in used:
        return _empty_plan(len(sentences), left_out, design)
    return Plan(tuple(rows), (_file_holdout(used),), design, left_out)


def _plan_folds(sentences: Sequence[Sentence], seed: int, folds: int) -> Plan:
    """The plan of folds by frame and cue word. Senses that are missing in a training part are left
    out.
    """
    left_out: dict[int, str] = {}
    # Repeated, because without the sentences of one sense another sense may have too few.
    while True:
        rows = [row for row in range(len(sentences)) if row not in left_out]
        labels = [sentences[row].sense for row in rows]
        factors = _factors([sentences[row] for row in rows])
        design = f"{folds} folds by {' and '.join(factors)}"
        if len(set(labels)) < 2:
            return _empty_plan(len(sentences), left_out, design)
        cells = _cells(_crossed_or_joined(list(factors.values()), folds), labels, seed, folds)
        absent = set()
        for train, _ in cells:
            absent |= set(labels) - {labels[index] for index in train}
        if not absent:
            return Plan(tuple(rows), tuple(Holdout(*cell) for cell in cells), design, left_out)
        left_out |= {row: TOO_FEW for row in rows if sentences[row].sense in absent}


def _empty_plan(count: int, left_out: Mapping[int, str], design: str) -> Plan:
    """The plan of a word with fewer than two senses left."""
    return Plan((), (), design, {row: left_out.get(row, ONE_SENSE) for row in range(count)})


def _factors(sentences: Sequence[Sentence]) -> dict[str, list[Hashable]]:
    """The factors that training and test parts must not share, by name: the group of each sentence.

    Only factors with at least two groups. Without any, each distinct sentence is a group.
    """
    frames = [sentence.frame or sentence.pair for sentence in sentences]
    cues = [sentence.cue_word for sentence in sentences]
    texts = [("text", sentence.text) for sentence in sentences]
    factors: dict[str, list[Hashable]] = {}
    for name, values in (("frame", frames), ("cue word", cues)):
        groups: list[Hashable] = [
            text if value is None else (name, value)
            for value, text in zip(values, texts, strict=True)
        ]
        if set(values) != {None} and len(set(groups)) > 1:
            factors[name] = groups
    return factors or {"sentence": list(texts)}


def _cells(
    factors: Sequence[Groups], labels: Sequence[str], seed: int, folds: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The training and test rows of every combination of the factors' folds that has sentences.

    A training row is in another fold than the test rows in every factor.
    """
    rng = np.random.default_rng(seed)
    # The fold of every row, in every factor.
    keys = list(zip(*(_fold_of(groups, labels, folds, rng) for groups in factors), strict=True))
    cells = []
    for cell in sorted(set(keys)):
        train = tuple(
            row
            for row, key in enumerate(keys)
            if all(a != b for a, b in zip(key, cell, strict=True))
        )
        test = tuple(row for row, key in enumerate(keys) if key == cell)
        cells.append((train, test))
    return cells


def _fold_of(
    groups: Groups, labels: Sequence[str], folds: int, rng: np.random.Generator
) -> list[int]:
    """The fold of each row. Rows of a group have the same fold.

    Groups are assigned in the order of their size, the largest first, each to the fold with the
    fewest sentences of the group's senses so far.
    """
    order = sorted(set(groups), key=str)
    senses = sorted(set(labels))
    counts = np.zeros((len(order), len(senses)))
    index_of = {group: index for index, group in enumerate(order)}
    for group, label in zip(groups, labels, strict=True):
        counts[index_of[group], senses.index(label)] += 1
    shares = counts / counts.sum(0)  # so that rare and frequent senses have equal weights
    shuffled = rng.permutation(len(order))
    tally = np.zeros((folds, len(senses)))
    fold = np.zeros(len(order), dtype=int)
    for index in shuffled[np.argsort(-counts.sum(1)[shuffled], kind="stable")]:
        fold[index] = np.lexsort((tally.sum(1), tally @ shares[index]))[0]
        tally[fold[index]] += shares[index]
    return [int(fold[index_of[group]]) for group in groups]
