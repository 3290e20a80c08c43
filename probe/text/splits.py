"""Which sentences are fitted on and which are tested: never sentences that share a frame or a cue
word.

Whatever is fitted (an axis, a direction, an order of heads) is fitted on other sentences than those
it is tested on, without any of their frames and cue words; a split that the file gives is kept.
`cross_fit` does this for two senses of a study: every sentence is tested once. `plan` does it for
all senses of a word of an evaluation, where nothing is paired.
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
# Names of parts in files, and the part that is meant.
GIVEN_PARTS = {"fit": FIT, "train": FIT, "select": FIT, "report": REPORT, "test": REPORT}
GIVEN = "the split given in the file"
FOLDS = 5  # crossed in frames and cues that is 25 cells, each learned on 16/25 of the sentences
# Designs of pairs.
ALIGNED = "aligned pairs"
DRAWN = "donors drawn at random"
# Reasons why a sentence is left out of a study.
CROSSED = "its cue word is paired with several of the other sense, of which one was drawn"
ELSEWHERE = "no sentence of the other sense has the word at the same place"
UNPAIRED = "no sentence of the other sense is paired with it"
# Reasons why one is left out of an evaluation.
NO_PART = "its split is neither train nor test"
NOT_LEARNED = "its sense does not occur in the training part"
TOO_FEW = (
    "its sense has too few sentences (or frames, or cue words) to be learned without those that "
    "are tested"
)
ONE_SENSE = "no second sense of the word is left to tell it from"


class Least(NamedTuple):
    """The fewest sentences of a sense to fit on, groups of cue words to keep apart, and aligned
    pairs from which on pairs are not drawn."""

    per_sense: int
    units: int
    pairs: int


# One sentence fewer and a single odd one is a third of a mean; four groups leave three to fit on.
STUDY_LEAST = Least(per_sense=4, units=4, pairs=4)
# Where words are the sample: with two sentences a sense the axis is the difference of the others.
SURVEY_LEAST = Least(per_sense=1, units=2, pairs=1)


def cue_words(sentences: Sequence[Sentence]) -> list[Hashable]:
    """What changes its sense as a whole: each cue word; where none is known the pair, or the
    sentence by itself."""
    return [
        sentence.cue_word or (row if sentence.pair is None else ("pair", sentence.pair))
        for row, sentence in enumerate(sentences)
    ]


@dataclass(frozen=True)
class Holdout:
    """Rows to learn from and rows to be tested on; no row is in both."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.train or not self.test or set(self.train) & set(self.test):
            raise ValueError(
                f"holdout: {len(self.train)} rows to learn from and {len(self.test)} to test, "
                "some in both"
            )


@dataclass(frozen=True)
class CrossFit:
    """How the sentences of two senses are held out, and which of them are pairs.

    `rows`: the sentences used, and of each of them `is_a`, `units`: the cue words of both senses
    that are held out and resampled as a whole, `exchanged`: what changes its sense as a whole,
    units where they hold pairs and cue words where they do not, and `frames` (None where not given)
    · `holdouts` and `pairs` (sense A, sense B): positions in `rows` · `left_out`: the reason of
    every other sentence of the two senses, by its row.
    """

    rows: tuple[int, ...]
    is_a: tuple[bool, ...]
    units: tuple[int, ...]
    exchanged: tuple[Hashable, ...]
    holdouts: tuple[Holdout, ...]
    frames: tuple[str | None, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    pair_design: str = DRAWN
    design: str = ""
    left_out: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def cells(self) -> NDArray[np.intp]:
        """The number of the holdout in which each of `rows` is tested; -1 where it is only learned
        from."""
        cells = np.full(len(self.rows), -1)
        for number, holdout in enumerate(self.holdouts):
            cells[list(holdout.test)] = number
        return cells

    @property
    def tested(self) -> list[int]:
        """Positions in `rows` of the sentences that are held out once; the others are only learned
        from."""
        tested: list[int] = np.flatnonzero(self.cells >= 0).tolist()
        return tested


def restrict(split: CrossFit, positions: Sequence[int]) -> CrossFit:
    """The split with some of its sentences alone, `positions` in its rows: what is held out with
    what stays as it was. Holdouts that learn from one sense only, or test nothing, are left out.
    """
    new = {position: number for number, position in enumerate(positions)}
    holdouts = []
    for holdout in split.holdouts:
        train = tuple(new[position] for position in holdout.train if position in new)
        test = tuple(new[position] for position in holdout.test if position in new)
        if test and len({split.is_a[positions[number]] for number in train}) == 2:
            holdouts.append(Holdout(train, test))
    pairs = tuple((new[a], new[b]) for a, b in split.pairs if a in new and b in new)

    def kept(column: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(column[position] for position in positions) if column else ()

    return replace(
        split,
        rows=kept(split.rows),
        is_a=kept(split.is_a),
        units=kept(split.units),
        exchanged=kept(split.exchanged),
        frames=kept(split.frames),
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
    """Hold out every sentence of two senses once, its cue words and its frame together with it.

    Pairs are nested: a cue word has partners of one cue word of the other sense only, drawn with
    the seed where a file crosses them; otherwise all cue words would hang together, and no part of
    them could be held out or count as a unit of its own. Where a file pairs less than half of its
    sentences, cue words of the two senses are put into units, and sentences into pairs, at random;
    with `positions`, only sentences are used that have one of the other sense with the word at the
    same place. Raises InputError for fewer units or sentences to fit on than `least`, whatever the
    seed.
    """
    part = _given_parts(sentences)
    usable = [row for row in range(len(sentences)) if part is None or part[row]]
    of_sense: Side = [[row for row in usable if sentences[row].sense == sense] for sense in senses]
    if part is not None:
        _require_both_parts(sentences, senses, part)
    rng = np.random.default_rng(seed)
    aligned = _aligned(sentences, of_sense)
    paired = len(aligned) >= least.pairs and 2 * len(aligned) >= min(map(len, of_sense))
    if paired:
        unit_of, pairs = _nested(sentences, aligned, rng)
    else:
        if positions is not None:
            of_sense = _matched(of_sense, positions, rng)
        unit_of, pairs = _drawn(sentences, of_sense, rng)
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
    return CrossFit(
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


def _reasons(
    sentences: Sequence[Sentence],
    unused: Sequence[int],
    usable: Sequence[int],
    aligned: Sequence[tuple[int, int]] | None,
) -> dict[int, str]:
    """Why each of the unused rows is left out; `aligned`: the rows in pairs, None where pairs are
    drawn at random."""
    in_pairs = {row for pair in aligned or () for row in pair}
    reasons = {}
    for row in unused:
        if aligned is None:
            reasons[row] = ELSEWHERE
        else:
            reasons[row] = CROSSED if row in in_pairs else UNPAIRED
    for row in set(unused) - set(usable):
        parts = ", ".join(GIVEN_PARTS)
        reasons[row] = f"its split is {sentences[row].split!r}, expected one of {parts}"
    return reasons


Side = Sequence[Sequence[int]]  # rows of sense A, rows of sense B
Groups = Sequence[Hashable]
Link = tuple[Hashable, Hashable]


def _given_parts(sentences: Sequence[Sentence]) -> list[str | None] | None:
    """The part that the file's split puts each sentence in, None where it names none; None without
    both parts. Raises InputError where a name that is no part's stands in the place of one."""
    parts = [GIVEN_PARTS.get(sentence.split or "") for sentence in sentences]
    if {FIT, REPORT} <= set(parts):
        return parts
    names = Counter(sentence.split for sentence in sentences if sentence.split)
    unknown = [name for name in names if name not in GIVEN_PARTS]
    if unknown:
        got = ", ".join(f"{name!r} ({count})" for name, count in names.items())
        raise InputError(
            f"Holding out the sentences of {sentences[0].word!r} as their split says: got {got}, "
            f"expected {FIT!r} to learn from and {REPORT!r} to be tested; correct {unknown[0]!r}, "
            "or leave the column split out."
        )
    return None


def _given_holdout(parts: Sequence[str | None]) -> Holdout:
    """The given parts as one holdout."""
    train = tuple(row for row, part in enumerate(parts) if part == FIT)
    test = tuple(row for row, part in enumerate(parts) if part == REPORT)
    return Holdout(train, test)


def _aligned(sentences: Sequence[Sentence], of_sense: Side) -> list[tuple[int, int]]:
    """The rows that share a `pair`, sense A first. Raises InputError for a pair with two sentences
    of one sense, of which none is the other's partner."""
    for rows in of_sense:
        names = [sentences[row].pair for row in rows if sentences[row].pair is not None]
        for name, count in Counter(names).most_common(1):
            if count > 1:
                first = sentences[rows[0]]
                raise InputError(
                    f"Pairing the sentences of {first.word!r}: pair {name!r} has {count} sentences "
                    f"of {first.sense!r}, expected one of each sense; give every two sentences "
                    "that belong together a pair of their own, or leave the column away."
                )
    partner = {sentences[row].pair: row for row in of_sense[1] if sentences[row].pair is not None}
    return [
        (row, partner[sentences[row].pair]) for row in of_sense[0] if sentences[row].pair in partner
    ]


def _nested(
    sentences: Sequence[Sentence], aligned: Sequence[tuple[int, int]], rng: np.random.Generator
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """The largest part of the pairs in which every cue word has one partner: units of their rows,
    and the pairs."""
    words = cue_words(sentences)
    links = [(words[a], words[b]) for a, b in aligned]
    first = sorted({a for a, _ in links}, key=str)
    second = sorted({b for _, b in links}, key=str)
    counts = Counter(links)
    number_of_pairs = np.array([[counts[a, b] for b in second] for a in first])
    # Less than one pair each, so that the seed decides between equals only.
    weight = number_of_pairs + rng.random((len(first), len(second))) / 2
    chosen = zip(*linear_sum_assignment(weight, maximize=True), strict=True)
    partners = [(first[a], second[b]) for a, b in chosen if counts[first[a], second[b]]]
    unit_of_link = _joined(partners)
    pairs = [pair for pair, link in zip(aligned, links, strict=True) if link in unit_of_link]
    unit_of = {}
    for a, b in pairs:
        unit = unit_of_link[words[a], words[b]]
        unit_of[a] = unit
        unit_of[b] = unit
    return unit_of, pairs


def _matched(of_sense: Side, positions: Sequence[int], rng: np.random.Generator) -> Side:
    """As many rows of either sense at every position of the word."""
    counts = [Counter(positions[row] for row in rows) for rows in of_sense]
    matched = []
    for rows in of_sense:
        wanted = counts[0] & counts[1]
        chosen = []
        for row in rng.permutation(rows).tolist():
            if wanted[positions[row]] > 0:
                wanted[positions[row]] -= 1
                chosen.append(row)
        matched.append(sorted(chosen))
    return matched


def _drawn(
    sentences: Sequence[Sentence], of_sense: Side, rng: np.random.Generator
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Cue words of the two senses put together at random, and within each such unit their
    sentences."""
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
    unit_of_word = {word: unit for link, unit in _joined(links).items() for word in link}
    unit_of = {row: unit_of_word[words[row]] for rows in of_sense for row in rows}
    members: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for side, rows in enumerate(of_sense):
        for row in rng.permutation(rows).tolist():
            members[unit_of[row], side].append(row)
    pairs: list[tuple[int, int]] = []
    for unit in sorted(set(unit_of.values())):
        pairs += zip(members[unit, 0], members[unit, 1], strict=False)
    return unit_of, pairs


def _joined(links: Sequence[Link]) -> dict[Link, int]:
    """A number for each link, the same for links that hang together: a cue word may stand in both
    senses."""
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
    """The file's own split, or folds apart in units and frames; in units alone where frames leave
    too little."""
    if parts := _given_parts(sentences):
        return (_given_holdout(parts),), GIVEN
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
    """Two factors as one, where together they fall into many groups that share nothing: then
    nothing needs to be crossed, and what is held out is as balanced as the groups are."""
    if len(factors) < 2:
        return list(factors)
    links: list[Link] = [(("first", a), ("second", b)) for a, b in zip(*factors, strict=True)]
    joined = _joined(links)
    together = [joined[link] for link in links]
    return list(factors) if len(set(together)) < 2 * folds else [together]


def _unit_name(sentences: Sequence[Sentence]) -> str:
    """What is kept apart, by its name in the design of a split."""
    if sentences and all(sentence.cue_word is not None for sentence in sentences):
        return "cue word"
    return "pair" if any(sentence.pair for sentence in sentences) else "sentence"


def _fewest(labels: Sequence[str], rows: Sequence[int]) -> int:
    """How many of the rows the rarer sense has."""
    return min(sum(labels[row] == sense for row in rows) for sense in set(labels))


def _require_both_parts(
    sentences: Sequence[Sentence], senses: tuple[str, str], part: Sequence[str | None]
) -> None:
    """Raises InputError for a sense that the file's split leaves out of one of its parts."""
    for sense in senses:
        its = {part[row] for row, sentence in enumerate(sentences) if sentence.sense == sense}
        for name in (FIT, REPORT):
            if name not in its:
                does = "is fitted on" if name == FIT else "is tested"
                raise InputError(
                    f"Holding out the sentences of {sentences[0].word!r} as their split says: got "
                    f"no sentence of {sense!r} in the part that {does}, expected some of each "
                    f"sense in both; give {sense!r} rows of both parts, or leave the column split "
                    "out."
                )


def _require_enough(
    sentences: Sequence[Sentence],
    units: Sequence[int],
    holdouts: Sequence[Holdout],
    senses: tuple[str, str],
    least: Least,
) -> None:
    """Raises InputError for too few groups of cue words, or too few sentences of a sense to fit
    on."""
    labels = [sentence.sense for sentence in sentences]
    enough = holdouts and _fewest(labels, holdouts[0].train) >= least.per_sense
    if enough and len(set(units)) >= least.units and len(set(labels)) == 2:
        return
    each = {sense: labels.count(sense) for sense in senses}
    counts = " and ".join(f"{n} sentence{'s' * (n != 1)} of {sense!r}" for sense, n in each.items())
    word = sentences[0].word if sentences else ""
    groups = len(set(units))
    raise InputError(
        f"Holding out the sentences of {word!r}: got {counts} in {groups} "
        f"group{'s' * (groups != 1)} that share no cue word or pair, expected "
        f"{2 * least.per_sense} or more of each sense in {least.units} or more such groups, for "
        "what is held out shares none with what is learned from; add sentences with other cue "
        "words, or correct a sense that is misspelt."
    )


def in_pairs(sentences: Sequence[Sentence]) -> list[int]:
    """The rows of one word's sentences that share their `pair` with one of another sense."""
    senses_of: dict[Hashable, set[str]] = defaultdict(set)
    for sentence in sentences:
        if sentence.pair is not None:
            senses_of[sentence.pair].add(sentence.sense)
    return [row for row, one in enumerate(sentences) if len(senses_of.get(one.pair, ())) > 1]


def unmarked_pairs(sentences: Sequence[Sentence]) -> int:
    """How many sentences of one word differ from one of another sense in a single word, while no
    pair that holds two sentences and no frame says so."""
    senses_of: dict[Hashable, set[str]] = defaultdict(set)
    paired = set(in_pairs(sentences))
    without_one_word = []
    for row, sentence in enumerate(sentences):
        is_marked = row in paired or sentence.frame
        words = () if is_marked else tuple(sentence.text.split())
        rest = [(at, words[:at], words[at + 1 :]) for at in range(len(words))]
        for key in rest:
            senses_of[key].add(sentence.sense)
        without_one_word.append(rest)
    return sum(any(len(senses_of[key]) > 1 for key in rest) for rest in without_one_word)


@dataclass(frozen=True)
class Plan:
    """The sentences used (`rows`), how they are held out (positions in `rows`), and the reason of
    every row left out.

    Each training part has every sense that is tested against it, and at least two senses.
    """

    rows: tuple[int, ...]
    holdouts: tuple[Holdout, ...]
    design: str
    left_out: Mapping[int, str]


def plan(
    sentences: Sequence[Sentence],
    *,
    seed: int,
    folds: int = FOLDS,
    alike: Sequence[Hashable] | None = None,
) -> Plan:
    """Hold out the sentences of one word: train and test where both are given, else folds apart in
    frames and cues.

    alike: what sentences that are one to the model have in common; by default their text.
    What cannot be learned and tested apart is left out with the reason; a plan of a word with
    nothing left has no holdouts.
    """
    parts = _given_parts(sentences)
    if parts is not None:
        return _given(sentences, parts)
    texts = [sentence.text for sentence in sentences] if alike is None else alike
    return _crossed(sentences, texts, seed, folds)


def _given(sentences: Sequence[Sentence], parts: Sequence[str | None]) -> Plan:
    learned = {
        sentence.sense for sentence, part in zip(sentences, parts, strict=True) if part == FIT
    }
    left_out = {}
    for row, (sentence, part) in enumerate(zip(sentences, parts, strict=True)):
        if part is None:
            left_out[row] = NO_PART
        elif sentence.sense not in learned:
            left_out[row] = NOT_LEARNED
    rows = [row for row in range(len(sentences)) if row not in left_out]
    used = [parts[row] for row in rows]
    design = "train and test as the file gives them"
    if len(learned) < 2 or REPORT not in used:
        return _nothing(len(sentences), left_out, design)
    return Plan(tuple(rows), (_given_holdout(used),), design, left_out)


def _crossed(
    sentences: Sequence[Sentence], texts: Sequence[Hashable], seed: int, folds: int
) -> Plan:
    """Folds over what is kept, leaving out senses that some fold could not learn, until there are
    none."""
    left_out: dict[int, str] = {}
    # Leaving out a sense takes sentences away, which may leave another sense with too few.
    while True:
        rows = [row for row in range(len(sentences)) if row not in left_out]
        labels = [sentences[row].sense for row in rows]
        factors = _factors([sentences[row] for row in rows], [texts[row] for row in rows])
        design = f"{folds} folds by {' and '.join(factors)}"
        if len(set(labels)) < 2:
            return _nothing(len(sentences), left_out, design)
        cells = _cells(_crossed_or_joined(list(factors.values()), folds), labels, seed, folds)
        not_learned = set()
        for train, _ in cells:
            not_learned |= set(labels) - {labels[index] for index in train}
        if not not_learned:
            return Plan(tuple(rows), tuple(Holdout(*cell) for cell in cells), design, left_out)
        left_out |= {row: TOO_FEW for row in rows if sentences[row].sense in not_learned}


def _nothing(count: int, left_out: Mapping[int, str], design: str) -> Plan:
    return Plan((), (), design, {row: left_out.get(row, ONE_SENSE) for row in range(count)})


def _factors(sentences: Sequence[Sentence], alike: Sequence[Hashable]) -> dict[str, list[Hashable]]:
    """What must not be shared, by its name: a group per sentence for each factor that has two
    groups to keep apart."""
    frames = [sentence.frame or sentence.pair for sentence in sentences]
    cues = [sentence.cue_word for sentence in sentences]
    texts = [("text", text) for text in alike]
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
    """(train, test) for every combination of the factors' folds that has sentences; train differs
    in all factors."""
    rng = np.random.default_rng(seed)
    # The fold of every row, in every factor.
    keys = list(zip(*(_fold_of(groups, labels, folds, rng) for groups in factors), strict=True))
    cells = []
    for tested in sorted(set(keys)):
        train = tuple(
            row
            for row, key in enumerate(keys)
            if all(a != b for a, b in zip(key, tested, strict=True))
        )
        test = tuple(row for row, key in enumerate(keys) if key == tested)
        cells.append((train, test))
    return cells


def _fold_of(
    groups: Groups, labels: Sequence[str], folds: int, rng: np.random.Generator
) -> list[int]:
    """A fold per row: whole groups, large ones first, each to the fold that has least of the
    group's senses so far."""
    order = sorted(set(groups), key=str)
    senses = sorted(set(labels))
    counts = np.zeros((len(order), len(senses)))
    index_of = {group: index for index, group in enumerate(order)}
    for group, label in zip(groups, labels, strict=True):
        counts[index_of[group], senses.index(label)] += 1
    shares = counts / counts.sum(0)  # a rare sense weighs as much as a frequent one
    shuffled = rng.permutation(len(order))
    tally = np.zeros((folds, len(senses)))
    fold = np.zeros(len(order), dtype=int)
    for index in shuffled[np.argsort(-counts.sum(1)[shuffled], kind="stable")]:
        fold[index] = np.lexsort((tally.sum(1), tally @ shares[index]))[0]
        tally[fold[index]] += shares[index]
    return [int(fold[index_of[group]]) for group in groups]
