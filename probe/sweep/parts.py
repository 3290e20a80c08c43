"""Which sentences of a corpus that is never held as a whole are fitted on and which are measured: by hashes.

The first reading keeps the smallest hashes of frames, cue words and texts, which say where to cut; the second gives
each sentence its part. Neither the order of the rows nor their number matters. A sentence whose frame and cue word fall
on different sides is in neither part.
"""

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.provenance import hash_of
from probe.text.sentences import Sentence
from probe.text.splits import FIT, GIVEN, GIVEN_PARTS, REPORT

GROUPS = 512  # as many groups as a direction of any width here can be fitted on; what is more is better measured
SHARE = 3  # a third of the groups is fitted on; a sweep takes no leading heads, so nothing is selected on
GROUPED_BY = {"frame": "frame", "cue": "cue word"}
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
    """What a first reading keeps of a word: sentences by sense, whether a split is given, and the smallest hashes.

    `groups`: those of frames and of cue words, each as long as every sentence of the word has one · `sentences`: by
    sense, those of the pairs or texts.
    """

    senses: Counter[str] = field(default_factory=Counter)
    given: bool = False
    groups: dict[str, Smallest] = field(default_factory=lambda: {kind: Smallest() for kind in GROUPED_BY})
    sentences: dict[str, Smallest] = field(default_factory=dict)

    def add(self, sentence: Sentence, seed: int) -> None:
        self.senses[sentence.sense] += 1
        self.given = self.given or (sentence.split or "") in GIVEN_PARTS
        hashes = _hashes(sentence, seed)
        self.groups = {kind: kept for kind, kept in self.groups.items() if kind in hashes}
        for kind, kept in self.groups.items():
            kept.add(hashes[kind])
        self.sentences.setdefault(sentence.sense, Smallest()).add(hashes["sentence"])

    def rule(self) -> "Rule":
        limits = {kind: limit for kind, kept in self.groups.items() if (limit := kept.limit()) is not None}
        return Rule(self.given, limits, {sense: kept.limit() for sense, kept in self.sentences.items()})


@dataclass(frozen=True)
class Rule:
    """How the sentences of one word are parted: as given, or by the largest hash of a frame, cue, sentence to fit on.

    Cue words that share a pair are not kept together, because donors are drawn and not paired.
    """

    given: bool
    groups: Mapping[str, int]
    sentence: Mapping[str, int | None]

    @property
    def design(self) -> str:
        if self.given:
            return GIVEN
        names = " and ".join(GROUPED_BY[kind] for kind in self.groups)
        return f"by {names}, by their hash" if names else "by sentence, by its hash"

    def part_of(self, sentence: Sentence, seed: int) -> tuple[str | None, str | None]:
        """Fit or report, or None with the reason why the sentence is in neither."""
        if self.given:
            part = GIVEN_PARTS.get(sentence.split or "")
            reason = f"its split is {sentence.split!r}, expected one of {', '.join(GIVEN_PARTS)}"
            return (None, reason) if part is None else (part, None)
        hashes, own = _hashes(sentence, seed), self.sentence[sentence.sense]
        fitted = {hashes[kind] <= limit for kind, limit in self.groups.items()}
        fitted = fitted or {own is not None and hashes["sentence"] <= own}
        return (None, CROSSING) if len(fitted) > 1 else (FIT if fitted.pop() else REPORT, None)


def _hashes(sentence: Sentence, seed: int) -> dict[str, int]:
    """Of its frame and of its cue word, where it has them, and of its pair or, where it has none, its text."""
    names = {"frame": sentence.frame, "cue": sentence.cue_word, "sentence": sentence.pair or sentence.text}
    return {kind: hash_of(seed, kind, sentence.word, name) for kind, name in names.items() if name is not None}
