"""The design of a study: which sentence gives to which, and where each head is read.

A pair is a sentence of sense A and one of sense B. Aligned pairs share frame, length and target
position, so only the cue differs; where a file gives none, donors are drawn from the other sense at
random and the page says so. Beside every opposite-sense donor stands a same-sense one (another cue,
the same distance from cue to word and, where there is one, the same frame): "any disturbance
matters" must be seen to be subtracted, and a donor at another distance would make a head that
copies the token before look as if it knew senses.

Every swap is read at every depth behind it. The one number of a table is read at L* for the heads
before it and at the last depth for those behind (`Readings`).

Sources: Heimersheim & Nanda 2024; Zhang & Nanda 2024.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.text.sentences import Sentence
from probe.text.splits import CrossFit

PER_PAIR = ("a", "b", "same_a", "same_b", "frames", "units", "distances")
UNKNOWN_FRAME = "row "  # begins the name of a frame of one sentence, where a file gives no frames


@dataclass(frozen=True)
class Pairs:
    """Row numbers of the paired sentences of two senses, `a` and `b`, and of their same-sense
    donors.

    `frames` and `units` (pairs of cue words) of each pair, over which is resampled · `distances`:
    tokens from cue to word of both members, None where they differ in it · `design`: aligned or
    drawn.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    same_a: tuple[int, ...]
    same_b: tuple[int, ...]
    frames: tuple[str, ...]
    units: tuple[int, ...]
    distances: tuple[int | None, ...]
    design: str
    seed: int

    def __len__(self) -> int:
        return len(self.a)

    def take(self, indices: Sequence[int]) -> "Pairs":
        """Some of the pairs."""
        columns = {}
        for name in PER_PAIR:
            column = getattr(self, name)
            columns[name] = tuple(column[index] for index in indices)
        return Pairs(**columns, design=self.design, seed=self.seed)

    def bootstrap(self) -> Array:
        """How often each pair counts in each draw, frames and cue words resampled. `-> draws
        pair`"""
        return bootstrap([self])


@dataclass(frozen=True, eq=False)
class Ranked:
    """Pairs of one pair of senses, and the `order` of heads, best first, that other sentences
    gave."""

    axes: HeldOutAxes
    pairs: Pairs
    order: tuple[HeadIndex, ...]


@dataclass(frozen=True)
class Readings:
    """At which stage the heads of each layer are read: `at`, their effect; `direct`, what they
    write themselves.

    Stage d is depth d · `next_token`: behind the last depth, the stream that the next token is
    predicted from, None for a model that predicts none · `continuation`: the same stream, read in
    the logits of known continuations, None without any.
    """

    at: tuple[int, ...]
    direct: tuple[int, ...]
    next_token: int | None
    continuation: int | None = None


def readings(
    layers: int, depth: int, first: int, *, predicts: bool, continues: bool = False
) -> Readings:
    """Heads before L* = `depth` are read there, those behind it at the last depth.

    What a head writes is read right behind its own layer, or at the `first` depth that tells the
    senses apart about half as well as the read-out does: where there is hardly a gap, a share of it
    is noise over noise.
    """
    return Readings(
        at=tuple(depth if layer < depth else layers for layer in range(layers)),
        direct=tuple(max(layer + 1, first) for layer in range(layers)),
        next_token=layers + 1 if predicts else None,
        continuation=layers + 2 if continues else None,
    )


def bootstrap(groups: Sequence[Pairs]) -> Array:
    """How often each pair of all groups counts in each draw; a frame or cue word counts alike
    wherever it stands.

    `-> draws pair`
    """
    frames: list[str | None] = []
    units: list[int] = []
    for pairs in groups:
        for frame in pairs.frames:
            frames.append(None if frame.startswith(UNKNOWN_FRAME) else frame)
        units.extend(pairs.units)
    factors = resampling.crossed_factors(frames, units)
    return resampling.bootstrap_weights(factors, seed=groups[0].seed)


def make_pairs(
    sentences: Sequence[Sentence],
    distances: Sequence[int | None],
    split: CrossFit,
    *,
    most: int,
    seed: int,
    learned: bool = False,
    unfitted_donors: bool = False,
) -> Pairs:
    """At most `most` of the split's pairs that are held out, as many of each unit as can be; their
    donors.

    `sentences` and `distances`, in tokens from cue to word, by row; rows of the result index them.
    `learned`: the pairs that are only fitted on instead, where a file gives the split.
    `unfitted_donors`: a same-sense donor is none of the sentences that the recipient's axis was
    fitted on, which would move along it by what is particular to them; where there is no other, it
    is the sentence itself, and nothing is subtracted.
    """
    rng = np.random.default_rng(seed)
    tested = set(split.tested)
    usable = [pair for pair in split.pairs if all((index in tested) != learned for index in pair)]
    drawn = spread([split.units[index] for index, _ in usable], most, rng)
    pairs = [usable[number] for number in sorted(drawn)]
    a = tuple(split.rows[index] for index, _ in pairs)
    b = tuple(split.rows[index] for _, index in pairs)
    # All sentences of sense A come first, and then those of sense B, in one stream of random
    # numbers.
    rows_of_a = [row for row, is_a in zip(split.rows, split.is_a, strict=True) if is_a]
    rows_of_b = [row for row, is_a in zip(split.rows, split.is_a, strict=True) if not is_a]
    fitted: dict[int, set[int]] = {}
    if unfitted_donors:
        fitted = _fitted_for(split)

    def donors(recipients: Sequence[int], members: Sequence[int]) -> tuple[int, ...]:
        given = []
        for row in recipients:
            others = [other for other in members if other not in fitted.get(row, ())]
            given.append(same_sense_donor(sentences, distances, row, others, rng))
        return tuple(given)

    same_a = donors(a, rows_of_a)
    same_b = donors(b, rows_of_b)
    common_distances = []
    for row, other in zip(a, b, strict=True):
        alike = distances[row] == distances[other]
        common_distances.append(distances[row] if alike else None)
    return Pairs(
        a=a,
        b=b,
        same_a=same_a,
        same_b=same_b,
        frames=tuple(
            sentences[row].frame or f"{UNKNOWN_FRAME}{number}" for number, row in enumerate(a)
        ),
        units=tuple(split.units[index] for index, _ in pairs),
        distances=tuple(common_distances),
        design=split.pair_design,
        seed=seed,
    )


def _fitted_for(split: CrossFit) -> dict[int, set[int]]:
    """By held-out row the rows that its axes are fitted on."""
    fitted: dict[int, set[int]] = {}
    for holdout in split.holdouts:
        train = {split.rows[position] for position in holdout.train}
        fitted |= {split.rows[position]: train for position in holdout.test}
    return fitted


def spread(units: Sequence[int], most: int, rng: np.random.Generator) -> list[int]:
    """Indices of at most `most` members, drawn so that every unit has as many as can be."""
    turns: dict[int, int] = {}
    queue: list[tuple[int, int]] = []
    for index in rng.permutation(len(units)).tolist():
        unit = units[index]
        turns[unit] = turns.get(unit, -1) + 1
        queue.append((turns[unit], index))
    # The first member of every unit, then the second of each: the sort is stable within a turn.
    in_turn = sorted(queue, key=lambda item: item[0])
    return [index for _, index in in_turn[:most]]


def same_sense_donor(
    sentences: Sequence[Sentence],
    distances: Sequence[int | None],
    row: int,
    members: Sequence[int],
    rng: np.random.Generator,
) -> int:
    """Another sentence of the same sense: of the same distance and frame if there is one, else of
    the same distance, of the same frame, any; with another cue word where it can be. The sentence
    itself where there is no other.
    """
    recipient = sentences[row]

    def likeness(other: int) -> tuple[bool, bool, bool]:
        donor = sentences[other]
        same_frame = recipient.frame is not None and donor.frame == recipient.frame
        return distances[other] == distances[row], same_frame, donor.cue_word != recipient.cue_word

    others = {other: likeness(other) for other in members if other != row}
    if not others:
        return row
    best = max(others.values())
    return int(rng.choice([other for other, alike in others.items() if alike == best]))
