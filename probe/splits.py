"""Which sentences directions are fitted on, which heads are ranked on, and which results are reported on.

    fit      directions, read-out depth, scaling
    select   the order of heads, wherever a set of leading heads is taken
    report   effects, intervals, curves: nothing reported was fitted or ranked on the same sentence

The parts share neither frames nor cue words. Half of the groups are dealt to report, because its cue words are what every test
counts, a third to fit and a sixth to select.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from probe.errors import InputError
from probe.sentences import Sentence

FIT, SELECT, REPORT = PARTS = ("fit", "select", "report")
TURNS = (REPORT, FIT, REPORT, SELECT, FIT, REPORT)
GIVEN_PARTS = {"fit": FIT, "train": FIT, "select": SELECT, "report": REPORT, "test": REPORT}
GIVEN = "the split given in the file"
MIN_PER_SENSE = 4


@dataclass(frozen=True)
class Split:
    """Which part each sentence belongs to (None: it would link two parts, so it is in none), and how that was decided."""

    parts: tuple[str | None, ...]
    design: str

    def rows(self, part: str) -> list[int]:
        return [index for index, name in enumerate(self.parts) if name == part]


def split(sentences: Sequence[Sentence], *, seed: int) -> Split:
    """Part the sentences of one word into fit, select and report so that no frame and no cue word stands in two parts.

    Where the file gives a split it is kept (train is fit, test is report). Sentences whose frame falls into one part and
    whose cue into another are in none. Without frames and cues the split is by pair, or by sentence within each sense.
    Raises InputError when a sense keeps fewer than MIN_PER_SENSE sentences to fit on or to report on.
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
            parts = tuple(votes[0] if len(set(votes)) == 1 else None for votes in zip(*sides, strict=True))
            names = " and ".join(name for name, side in (("frame", by_frame), ("cue word", by_cue)) if side is not None)
            result = Split(parts, f"by {names}")
    _require_enough(sentences, result)
    return result


def _deal(
    groups: Sequence[Hashable], rng: np.random.Generator, strata: Sequence[Sentence] | None = None
) -> list[str | None] | None:
    """Deal whole groups out to the parts in a shuffled order, as TURNS says; None where there are not two groups to part."""
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
    """A group per cue word; cue words that share a pair are one group, so that no pair is torn apart. None: no cue given."""
    if any(sentence.cue_start is None for sentence in sentences):
        return [None] * len(sentences)
    cues = [_cue(sentence) for sentence in sentences]
    root = {cue: cue for cue in cues}

    def find(cue: str) -> str:
        while root[cue] != cue:
            cue = root[cue]
        return cue

    first_of_pair: dict[str, str] = {}
    for sentence, cue in zip(sentences, cues, strict=True):
        if sentence.pair is not None:
            ends = sorted((find(cue), find(first_of_pair.setdefault(sentence.pair, cue))))
            root[ends[1]] = ends[0]
    return [find(cue) for cue in cues]


def cue_units(sentences: Sequence[Sentence]) -> list[Hashable]:
    """What may be turned round as a whole: the linked cue words, or each sentence by itself where no cues are known."""
    return [row if cue is None else cue for row, cue in enumerate(linked_cues(sentences))]


def cue_words(sentences: Sequence[Sentence]) -> list[Hashable]:
    """What may change its sense as a whole: each cue word, or each sentence by itself where no cues are known."""
    if any(sentence.cue_start is None for sentence in sentences):
        return list(range(len(sentences)))
    return [_cue(sentence) for sentence in sentences]


def _cue(sentence: Sentence) -> str:
    return sentence.text[sentence.cue_start : sentence.cue_end].casefold()


def _require_enough(sentences: Sequence[Sentence], split: Split) -> None:
    named = sorted({sentence.sense for sentence in sentences})
    for sense in named:
        for part in (FIT, REPORT):
            count = sum(sentences[row].sense == sense for row in split.rows(part))
            if count < MIN_PER_SENSE:
                each = ", ".join(f"{sum(one.sense == name for one in sentences)} of {name!r}" for name in named)
                raise InputError(
                    f"Splitting the sentences of {sentences[0].word!r} {split.design}: the {part} part got {count} of sense "
                    f"{sense!r}, expected at least {MIN_PER_SENSE}, of {each} in all; give about a dozen or more of every sense."
                )
