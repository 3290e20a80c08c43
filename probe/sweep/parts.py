"""Which part of a corpus each sentence belongs to, decided without holding the corpus: by the hash of its cue word and frame.

What `probe.splits` does with all sentences of a word in memory is done here from two readings of the files. The first keeps, for
each word, the smallest hashes of its frames and of its cue words (or of its sentences, sense by sense, where cues are not
given); the second compares. The rules are the same: a word whose rows give a split keeps it (train is fit, all others are
measured); no frame and no cue word stands in both parts, and a sentence whose frame and cue fall apart is in neither. A third of
the groups, at most GROUPS, is fitted on. What differs: the groups are taken by hash and not in a shuffled order, so that neither
the order of the rows nor how many there are matters; there is no select part, because a sweep takes no leading heads; cue words
that share a pair are not kept together, because donors are drawn and not paired.

The smallest hashes of distinct names are a uniform sample of them: Bar-Yossef et al. 2002.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from probe.sentences import Sentence
from probe.splits import FIT, GIVEN, GIVEN_PARTS, REPORT

GROUPS = 512
SHARE = 3
CROSSING = "its frame is on one side of the split and its cue on the other"


def hash_of(*names: object) -> int:
    """A number of 64 bits that depends on the names, and on nothing else."""
    digest = hashlib.blake2b(digest_size=8)
    for name in names:
        raw = str(name).encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return int.from_bytes(digest.digest(), "big")


@dataclass
class Smallest:
    """The smallest distinct hashes seen, at most `most` of them."""

    most: int = GROUPS * SHARE
    heap: list[int] = field(default_factory=list)
    known: set[int] = field(default_factory=set)

    def add(self, value: int) -> None:
        if value in self.known or (len(self.heap) == self.most and value >= -self.heap[0]):
            return
        self.known.add(value)
        heapq.heappush(self.heap, -value)
        if len(self.heap) > self.most:
            self.known.discard(-heapq.heappop(self.heap))

    def limit(self) -> int | None:
        """The largest hash that is fitted on: a third of the groups, at most GROUPS. None where there are not two to part."""
        if len(self.heap) < 2:
            return None
        return sorted(self.known)[min(-(-len(self.heap) // SHARE), GROUPS) - 1]


@dataclass(frozen=True)
class Rule:
    """How the sentences of one word are parted: as given, or by the hashes up to which a frame, a cue, a sentence is fitted on."""

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


@dataclass
class Seen:
    """What the first reading keeps of a word: sentences by sense, whether a split is given, and the smallest hashes."""

    senses: Counter[str] = field(default_factory=Counter)
    given: bool = False
    frames: Smallest | None = field(default_factory=Smallest)
    cues: Smallest | None = field(default_factory=Smallest)
    sentences: dict[str, Smallest] = field(default_factory=dict)

    def add(self, sentence: Sentence, seed: int) -> None:
        self.senses[sentence.sense] += 1
        self.given = self.given or (sentence.split or "") in GIVEN_PARTS
        frame, cue, own = _groups(sentence, seed)
        self.frames = _added(self.frames, frame)
        self.cues = _added(self.cues, cue)
        self.sentences.setdefault(sentence.sense, Smallest()).add(own)

    def rule(self) -> Rule:
        frame, cue = (None if kept is None else kept.limit() for kept in (self.frames, self.cues))
        return Rule(self.given, frame, cue, {sense: kept.limit() for sense, kept in self.sentences.items()})


def _added(kept: Smallest | None, value: int | None) -> Smallest | None:
    """The hashes with one more; None as soon as one sentence of the word has no such group."""
    if kept is None or value is None:
        return None
    kept.add(value)
    return kept


def _groups(sentence: Sentence, seed: int) -> tuple[int | None, int | None, int]:
    cue = None if sentence.cue_start is None else sentence.text[sentence.cue_start : sentence.cue_end].casefold()
    return (
        None if sentence.frame is None else hash_of(seed, "frame", sentence.word, sentence.frame),
        None if cue is None else hash_of(seed, "cue", sentence.word, cue),
        hash_of(seed, "sentence", sentence.word, sentence.pair or sentence.text),
    )


def part_of(sentence: Sentence, rule: Rule, seed: int) -> tuple[str | None, str | None]:
    """Fit or report, or None with the reason why the sentence is in neither."""
    if rule.given:
        part = GIVEN_PARTS.get(sentence.split or "")
        reason = f"its split is {sentence.split!r}, expected one of {', '.join(GIVEN_PARTS)}"
        return (None, reason) if part is None else (FIT if part == FIT else REPORT, None)
    frame, cue, own = _groups(sentence, seed)
    sides = [(group, limit) for group, limit in ((frame, rule.frame), (cue, rule.cue)) if limit is not None]
    votes = {_up_to(group, limit) for group, limit in sides} or {_up_to(own, rule.sentence[sentence.sense])}
    return (None, CROSSING) if len(votes) > 1 else (FIT if votes.pop() else REPORT, None)


def _up_to(group: int | None, limit: int | None) -> bool:
    return group is not None and limit is not None and group <= limit
