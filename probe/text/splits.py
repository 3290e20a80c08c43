"""Which sentences are fitted on, ranked on, tested and reported, so that nothing is known by its frame or its cue.

    fit      directions, read-out depth, scaling
    select   the order of heads, wherever a set of leading heads is taken
    report   effects, intervals, curves: nothing reported was fitted or ranked on the same sentence

Everywhere a split that the file gives is kept, frames and cue words go to one side as a whole, and a sentence whose
frame and cue fall apart is on neither. Three ways of dealing share these pieces and are three because they must keep
different things: `split` parts a study's sentences once, in shares, and no pair is torn; `plan` tests every sentence of
an evaluation once, in folds; `Rule` parts a corpus that is never held, by hashes, so that neither the order of its rows
nor their number matters.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.errors import InputError
from probe.provenance import hash_of
from probe.text.sentences import Sentence

FIT, SELECT, REPORT = PARTS = ("fit", "select", "report")
# Half of the groups report, because their cue words are what every test counts; a third is fitted on, a sixth selects.
TURNS = (REPORT, FIT, REPORT, SELECT, FIT, REPORT)
GIVEN_PARTS = {"fit": FIT, "train": FIT, "select": SELECT, "report": REPORT, "test": REPORT}
GIVEN = "the split given in the file"
MIN_PER_SENSE = 4  # three folds choose the read-out depth, and each needs a sentence of every sense on either side


@dataclass(frozen=True)
class Split:
    """Which part each sentence belongs to (None: in none, for it would link two), and how that was decided."""

    parts: tuple[str | None, ...]
    design: str

    def rows(self, part: str) -> list[int]:
        return [index for index, name in enumerate(self.parts) if name == part]


def split(sentences: Sequence[Sentence], *, seed: int) -> Split:
    """Part the sentences of one word into fit, select and report so that no frame and no cue word stands in two parts.

    Where the file gives a split it is kept (train is fit, test is report). Sentences whose frame falls into one part
    and whose cue into another are in none. Without frames and cues the split is by pair, or by sentence within each
    sense. Raises InputError when a sense keeps fewer than MIN_PER_SENSE sentences to fit on or to report on.
    """
    given = [GIVEN_PARTS.get(sentence.split or "") for sentence in sentences]
    if any(given):
        result = Split(tuple(given), GIVEN)
    else:
        rng = np.random.default_rng(seed)
        by_frame = _deal([sentence.frame for sentence in sentences], rng)
        by_cue = _deal(linked_cues(sentences), rng)
        if by_frame is None and by_cue is None:
            by_unit = _deal([sentence.pair or index for index, sentence in enumerate(sentences)], rng, sentences)
            result = Split(tuple(by_unit or ()), "by sentence (no frames or cue spans were given)")
        else:
            sides = [side for side in (by_frame, by_cue) if side is not None]
            parts = tuple(_agreed(votes) for votes in zip(*sides, strict=True))
            names = " and ".join(name for name, side in (("frame", by_frame), ("cue word", by_cue)) if side is not None)
            result = Split(parts, f"by {names}")
    _require_enough(sentences, result)
    return result


def _agreed(votes: Sequence[str | None]) -> str | None:
    """The part that a sentence's groups agree on, None where they fall apart."""
    return votes[0] if len(set(votes)) == 1 else None


def _deal(
    groups: Sequence[Hashable], rng: np.random.Generator, strata: Sequence[Sentence] | None = None
) -> list[str | None] | None:
    """Deal whole groups out to the parts in a shuffled order, as TURNS says.

    None where there are not two groups to part.
    """
    if any(group is None for group in groups):
        return None
    order = sorted(set(groups), key=str)
    if len(order) < 2:
        return None
    shuffled = [order[index] for index in rng.permutation(len(order))]
    if strata is not None:  # deal within each sense, so that every part holds all senses
        sense_of = {group: sentence.sense for group, sentence in zip(groups, strata, strict=True)}
        shuffled.sort(key=lambda group: sense_of[group])
    side = {group: TURNS[rank % len(TURNS)] for rank, group in enumerate(shuffled)}
    return [side[group] for group in groups]


def linked_cues(sentences: Sequence[Sentence]) -> list[Hashable]:
    """A group per cue word; cue words that share a pair are one group, so that no pair is torn apart.

    None: no cue given.
    """
    cues = [sentence.cue_word for sentence in sentences]
    if None in cues:
        return [None] * len(sentences)
    root = {cue: cue for cue in cues}

    def root_of(cue: str | None) -> str | None:
        while root[cue] != cue:
            cue = root[cue]
        return cue

    first_of_pair: dict[str, str | None] = {}
    for sentence, cue in zip(sentences, cues, strict=True):
        if sentence.pair is not None:
            kept, merged = sorted((root_of(cue), root_of(first_of_pair.setdefault(sentence.pair, cue))), key=str)
            root[merged] = kept
    return [root_of(cue) for cue in cues]


def cue_units(sentences: Sequence[Sentence]) -> list[Hashable]:
    """What may be turned round as a whole: the linked cue words, or each sentence by itself where no cues are known."""
    return [row if cue is None else cue for row, cue in enumerate(linked_cues(sentences))]


def cue_words(sentences: Sequence[Sentence]) -> list[Hashable]:
    """What may change its sense as a whole: each cue word, or each sentence by itself where no cues are known."""
    cues = [sentence.cue_word for sentence in sentences]
    return list(range(len(sentences))) if None in cues else [*cues]


def _require_enough(sentences: Sequence[Sentence], split: Split) -> None:
    named = sorted({sentence.sense for sentence in sentences})
    for sense in named:
        for part in (FIT, REPORT):
            count = sum(sentences[row].sense == sense for row in split.rows(part))
            if count < MIN_PER_SENSE:
                each = ", ".join(f"{sum(one.sense == name for one in sentences)} of {name!r}" for name in named)
                raise InputError(
                    f"Splitting the sentences of {sentences[0].word!r} {split.design}: the {part} part got "
                    f"{count} of sense "
                    f"{sense!r}, expected at least {MIN_PER_SENSE}, of {each} in all; give about a dozen or "
                    "more of every sense."
                )


FOLDS = 5  # crossed in frames and cues that is 25 cells, each learned on 16/25 of the sentences
SIDES = {FIT: "train", REPORT: "test"}
NO_PART = "its split is neither train nor test"
NOT_LEARNED = "its sense does not occur in the training part"
TOO_FEW = "its sense has too few sentences (or frames, or cue words) to be learned without those that are tested"
ONE_SENSE = "no second sense of the word is left to tell it from"
Groups = Sequence[Hashable]


@dataclass(frozen=True)
class Holdout:
    """Rows to learn from and rows to be tested on; no row is in both."""

    train: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.train or not self.test or set(self.train) & set(self.test):
            raise ValueError(
                f"holdout: {len(self.train)} rows to learn from and {len(self.test)} to test, some in both"
            )


@dataclass(frozen=True)
class Plan:
    """The sentences used (`rows`), how they are held out (positions in `rows`), and the reason of every row left out.

    Each training part has every sense that is tested against it, and at least two senses.
    """

    rows: tuple[int, ...]
    holdouts: tuple[Holdout, ...]
    design: str
    left_out: Mapping[int, str]


def plan(sentences: Sequence[Sentence], *, seed: int, folds: int = FOLDS) -> Plan:
    """Hold out the sentences of one word: train and test where both are given, else folds apart in frames and cues.

    What cannot be learned and tested apart is left out with the reason; a plan of a word with nothing left has no
    holdouts.
    """
    parts = [SIDES.get(GIVEN_PARTS.get(sentence.split or "", "")) for sentence in sentences]
    if {"train", "test"} <= set(parts):
        return _given(sentences, parts)
    return _crossed(sentences, seed, folds)


def _given(sentences: Sequence[Sentence], parts: Sequence[str | None]) -> Plan:
    learned = {sentence.sense for sentence, part in zip(sentences, parts, strict=True) if part == "train"}
    left_out = {}
    for row, (sentence, part) in enumerate(zip(sentences, parts, strict=True)):
        if part is None or sentence.sense not in learned:
            left_out[row] = NO_PART if part is None else NOT_LEARNED
    rows = [row for row in range(len(sentences)) if row not in left_out]
    sides = {name: tuple(place for place, row in enumerate(rows) if parts[row] == name) for name in ("train", "test")}
    design = "train and test as the file gives them"
    if len(learned) < 2 or not sides["test"]:
        return _nothing(len(sentences), left_out, design)
    return Plan(tuple(rows), (Holdout(sides["train"], sides["test"]),), design, left_out)


def _crossed(sentences: Sequence[Sentence], seed: int, folds: int) -> Plan:
    """Folds over what is kept, leaving out senses that some fold could not learn, until there are none."""
    left_out: dict[int, str] = {}
    while True:
        rows = [row for row in range(len(sentences)) if row not in left_out]
        labels = [sentences[row].sense for row in rows]
        factors = _factors([sentences[row] for row in rows])
        design = f"{folds} folds by {' and '.join(factors)}"
        if len(set(labels)) < 2:
            return _nothing(len(sentences), left_out, design)
        cells = _cells(list(factors.values()), labels, seed, folds)
        poor = {sense for train, _ in cells for sense in set(labels) - {labels[place] for place in train}}
        if not poor:
            return Plan(tuple(rows), tuple(Holdout(*cell) for cell in cells), design, left_out)
        left_out |= {row: TOO_FEW for row in rows if sentences[row].sense in poor}


def _nothing(count: int, left_out: Mapping[int, str], design: str) -> Plan:
    return Plan((), (), design, {row: left_out.get(row, ONE_SENSE) for row in range(count)})


def _factors(sentences: Sequence[Sentence]) -> dict[str, list[Hashable]]:
    """What must not be shared, by its name: a group per sentence for each factor that has two groups to keep apart."""
    frames = [sentence.frame or sentence.pair for sentence in sentences]
    cues = [sentence.cue_word for sentence in sentences]
    texts = [("text", sentence.text) for sentence in sentences]
    given: dict[str, list[Hashable]] = {}
    for name, values in (("frame", frames), ("cue word", cues)):
        groups = [text if value is None else (name, value) for value, text in zip(values, texts, strict=True)]
        if set(values) != {None} and len(set(groups)) > 1:
            given[name] = list(groups)
    return given or {"sentence": list(texts)}


def _cells(
    factors: Sequence[Groups], labels: Sequence[str], seed: int, folds: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(train, test) for every combination of the factors' folds that has sentences.

    Train differs from it in all factors.
    """
    rng = np.random.default_rng(seed)
    keys = list(zip(*(_fold_of(groups, labels, folds, rng) for groups in factors), strict=True))
    return [
        (
            tuple(row for row, key in enumerate(keys) if all(a != b for a, b in zip(key, tested, strict=True))),
            tuple(row for row, key in enumerate(keys) if key == tested),
        )
        for tested in sorted(set(keys))
    ]


def _fold_of(groups: Groups, labels: Sequence[str], folds: int, rng: np.random.Generator) -> list[int]:
    """A fold per row: whole groups, large ones first, each to the fold that has least of the group's senses so far."""
    order = sorted(set(groups), key=str)
    senses = sorted(set(labels))
    counts = np.zeros((len(order), len(senses)))
    place = {group: index for index, group in enumerate(order)}
    for group, label in zip(groups, labels, strict=True):
        counts[place[group], senses.index(label)] += 1
    shares = counts / counts.sum(0)  # a rare sense weighs as much as a frequent one
    shuffled = rng.permutation(len(order))
    tally = np.zeros((folds, len(senses)))
    fold = np.zeros(len(order), dtype=int)
    for index in shuffled[np.argsort(-counts.sum(1)[shuffled], kind="stable")]:
        fold[index] = np.lexsort((tally.sum(1), tally @ shares[index]))[0]
        tally[fold[index]] += shares[index]
    return [int(fold[place[group]]) for group in groups]


GROUPS = 512  # as many groups as a direction of any width here can be fitted on; what is more is better measured
SHARE = (
    3  # a third of the groups is fitted on, as in a study; a sweep takes no leading heads, so nothing is selected on
)
CROSSING = "its frame is on one side of the split and its cue on the other"


@dataclass
class Smallest:
    """The `most` smallest distinct hashes seen, with what was hashed where it is given.

    A uniform sample of all that was seen, whatever its order (Bar-Yossef et al. 2002).
    """

    most: int = GROUPS * SHARE
    heap: list[int] = field(default_factory=list)
    known: dict[int, Any] = field(default_factory=dict)

    def add(self, value: int, item: Any = None) -> None:
        if value in self.known or (len(self.heap) == self.most and value >= -self.heap[0]):
            return
        self.known[value] = item
        heapq.heappush(self.heap, -value)
        if len(self.heap) > self.most:
            del self.known[-heapq.heappop(self.heap)]

    @property
    def items(self) -> list[Any]:
        """What was given with the hashes, in their order."""
        return [self.known[value] for value in sorted(self.known)]

    def limit(self) -> int | None:
        """The largest hash that is fitted on, of a third of the groups, at most GROUPS; None where there are not
        two.
        """
        if len(self.known) < 2:
            return None
        return sorted(self.known)[min(-(-len(self.known) // SHARE), GROUPS) - 1]


@dataclass
class Seen:
    """What a first reading keeps of a word: sentences by sense, whether a split is given, and the smallest hashes."""

    senses: Counter[str] = field(default_factory=Counter)
    given: bool = False
    frames: Smallest | None = field(default_factory=Smallest)
    cues: Smallest | None = field(default_factory=Smallest)
    sentences: dict[str, Smallest] = field(default_factory=dict)

    def add(self, sentence: Sentence, seed: int) -> None:
        self.senses[sentence.sense] += 1
        self.given = self.given or (sentence.split or "") in GIVEN_PARTS
        frame, cue, own = _hashes(sentence, seed)
        self.frames = _added(self.frames, frame)
        self.cues = _added(self.cues, cue)
        self.sentences.setdefault(sentence.sense, Smallest()).add(own)

    def rule(self) -> "Rule":
        frame, cue = (None if kept is None else kept.limit() for kept in (self.frames, self.cues))
        return Rule(self.given, frame, cue, {sense: kept.limit() for sense, kept in self.sentences.items()})


@dataclass(frozen=True)
class Rule:
    """How the sentences of one word are parted: as given, or by the largest hash of a frame, cue, sentence to fit on.

    Cue words that share a pair are not kept together, because donors are drawn and not paired.
    """

    given: bool
    frame: int | None
    cue: int | None
    sentence: Mapping[str, int | None]

    @property
    def design(self) -> str:
        if self.given:
            return GIVEN
        names = [name for name, limit in (("frame", self.frame), ("cue word", self.cue)) if limit is not None]
        return f"by {' and '.join(names)}, by their hash" if names else "by sentence, by its hash"

    def part_of(self, sentence: Sentence, seed: int) -> tuple[str | None, str | None]:
        """Fit or report, or None with the reason why the sentence is in neither."""
        if self.given:
            part = GIVEN_PARTS.get(sentence.split or "")
            reason = f"its split is {sentence.split!r}, expected one of {', '.join(GIVEN_PARTS)}"
            return (None, reason) if part is None else (FIT if part == FIT else REPORT, None)
        frame, cue, own = _hashes(sentence, seed)
        sides = [_side(group, limit) for group, limit in ((frame, self.frame), (cue, self.cue)) if limit is not None]
        part = _agreed(sides or [_side(own, self.sentence[sentence.sense])])
        return part, None if part else CROSSING


def _added(kept: Smallest | None, value: int | None) -> Smallest | None:
    """The hashes with one more; None as soon as one sentence of the word has no such group."""
    if kept is None or value is None:
        return None
    kept.add(value)
    return kept


def _hashes(sentence: Sentence, seed: int) -> tuple[int | None, int | None, int]:
    """Of its frame, of its cue word, and of its pair or, where it has none, its text."""
    groups = (("frame", sentence.frame), ("cue", sentence.cue_word), ("sentence", sentence.pair or sentence.text))
    frame, cue, own = (None if name is None else hash_of(seed, kind, sentence.word, name) for kind, name in groups)
    assert own is not None
    return frame, cue, own


def _side(group: int | None, limit: int | None) -> str:
    return FIT if group is not None and limit is not None and group <= limit else REPORT
