"""The design of a study: which sentence is the donor of which, and where each head is read.

A pair is a sentence of sense A and a sentence of sense B. Aligned pairs share frame, length and
target position, so only the cue differs. If a file has no such pairs, donors are drawn at random
from the other sense, and the page reports that. Every opposite-sense donor comes with a same-sense
donor (another cue, the same distance from cue to word and, if there is one, the same frame). Its
effect is subtracted, because any disturbance may move the word. A donor at another distance would
make a head that copies the previous token look as if it resolved senses.

Every swap is read at every depth after it. The single number of a table is read at L* for the heads
before L*, and at the last depth for later heads (`Readout`).

Sources: Heimersheim & Nanda 2024; Zhang & Nanda 2024.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.experiments.columns import or_missing
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.sentences import Sentence
from probe.text.splits import CrossFit, Link, components

if TYPE_CHECKING:
    import xarray as xr

Units = Sequence[int]  # the unit of each pair of sentences
# The fields of `Pairs` with an entry for each pair.
PER_PAIR = ("a", "b", "same_a", "same_b", "frames", "units", "word_units", "distances")
# Begins the name of a frame with a single sentence, if a file gives no frames.
UNKNOWN_FRAME = "row "


@dataclass(frozen=True)
class Pairs:
    """The paired sentences of two senses, and their same-sense donors.

    a, b: the row of each pair's sentence of sense A, and of sense B
    same_a, same_b: the row of the same-sense donor of each
    frames: the frame of each pair
    units: the pair of cue words of each pair; frames and units are resampled
    word_units: the same, numbered across all pairs of senses of the word (`number_across_senses`)
    distances: tokens from cue to word, of both members; None if they differ
    design: aligned or drawn
    seed: the seed of all draws
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    same_a: tuple[int, ...]
    same_b: tuple[int, ...]
    frames: tuple[str, ...]
    units: tuple[int, ...]
    word_units: tuple[int, ...]
    distances: tuple[int | None, ...]
    design: str
    seed: int

    def __len__(self) -> int:
        return len(self.a)

    def take(self, indices: Sequence[int]) -> "Pairs":
        """The pairs with these indices."""
        columns = {}
        for name in PER_PAIR:
            column = getattr(self, name)
            columns[name] = tuple(column[index] for index in indices)
        return Pairs(**columns, design=self.design, seed=self.seed)

    def bootstrap(self) -> Array:
        """How often each pair counts in each draw if frames and cue words are resampled.
        `-> draws pair`
        """
        return bootstrap([self])


@dataclass(frozen=True)
class Readout:
    """The stage at which the heads of each layer are read. Stage d is depth d.

    at: the stage of their effect, by layer
    direct: the stage of their write, by layer
    next_token: the stage after the last depth, the stream from which the next token is predicted;
        None for a model that predicts no tokens
    continuation: the same stream, read in the logits of known continuations; None without
        continuations
    """

    at: tuple[int, ...]
    direct: tuple[int, ...]
    next_token: int | None
    continuation: int | None = None


def pair_variables(pairs: Pairs) -> dict[str, tuple[str, Any]]:
    """Pairs as the variables of a dataset. `sentence_pair` each"""
    columns = {name.removesuffix("s"): ("sentence_pair", getattr(pairs, name)) for name in PER_PAIR}
    columns["distance"] = ("sentence_pair", or_missing(pairs.distances))
    return {**columns, "pair_design": ("", pairs.design), "seed": ("", pairs.seed)}


def pairs_of(data: "xr.Dataset") -> Pairs:
    """The pairs whose variables a dataset holds."""
    columns = {name: data[name.removesuffix("s")].values.tolist() for name in PER_PAIR}
    columns["distances"] = [
        None if np.isnan(distance) else int(distance) for distance in columns["distances"]
    ]
    rows = {name: tuple(column) for name, column in columns.items()}
    return Pairs(**rows, design=data.pair_design.item(), seed=data.seed.item())


def readout(
    layers: int, depth: int, first: int, *, predicts: bool, continues: bool = False
) -> Readout:
    """The stages at which heads are read: at L* for heads before L*, and at the last depth for
    later heads.

    layers: of the model
    depth: the read-out layer L*
    first: the first depth that separates the senses about half as well as L*
    predicts, continues: whether the model predicts tokens, and whether it has known continuations

    The write of a head is read directly after its layer, but not before `first`: where there is
    hardly a gap, a fraction of the gap is noise divided by noise.
    """
    return Readout(
        at=tuple(depth if layer < depth else layers for layer in range(layers)),
        direct=tuple(max(layer + 1, first) for layer in range(layers)),
        next_token=layers + 1 if predicts else None,
        continuation=layers + 2 if continues else None,
    )


def bootstrap(groups: Sequence[Pairs]) -> Array:
    """How often each pair of all groups counts in each draw. `-> draws pair`

    A frame has the same count in every group, and so has a unit of the word.
    """
    return resampling.bootstrap_weights(crossed_factors(groups), seed=groups[0].seed)


def bootstrap_each(groups: Sequence[Pairs]) -> list[Array]:
    """The columns of `bootstrap` for each group. `-> draws pair` each

    A draw without any pair of a group takes its data as they are.
    """
    return resampling.split_weights(bootstrap(groups), [len(pairs) for pairs in groups])


def crossed_factors(groups: Sequence[Pairs]) -> list[list[Hashable]]:
    """The factors of the bootstrap, with the label of every pair of all groups: the frame and the
    unit, or only the unit if no frames are given.
    """
    frames: list[str | None] = []
    units: list[int] = []
    for pairs in groups:
        for frame in pairs.frames:
            # A made-up frame becomes None, so that a file without frames resamples cue words only.
            frames.append(None if frame.startswith(UNKNOWN_FRAME) else frame)
        units.extend(pairs.word_units)
    return resampling.crossed_factors(frames, units)


def number_across_senses(groups: Sequence[Pairs], cue_words: Sequence[Hashable]) -> list[Pairs]:
    """The pairs of every pair of senses of a word, with `word_units` numbered across them.

    Units that are linked by cue words have the same number: the pairs of senses river - money and
    river - slope share the cue words of river.

    groups: the pairs of each pair of senses
    cue_words: of each row

    If links would join two units of one pair of senses, e.g. because pairs were drawn at random, no
    units are joined, and no number is shared (`widen_draws`).
    """
    of_units: list[list[Hashable]] = [
        [("unit", number, unit) for unit in pairs.units] for number, pairs in enumerate(groups)
    ]
    links: list[Link] = []
    for pairs, units in zip(groups, of_units, strict=True):
        for a, b, unit in zip(pairs.a, pairs.b, units, strict=True):
            links += [(unit, ("cue word", cue_words[a])), (unit, ("cue word", cue_words[b]))]
    component_of = {unit: component for (unit, _), component in components(links).items()}
    for units in of_units:
        if len({component_of[unit] for unit in units}) < len(set(units)):
            component_of = {unit: number for number, unit in enumerate(component_of)}
            break
    return [
        replace(pairs, word_units=tuple(component_of[unit] for unit in units))
        for pairs, units in zip(groups, of_units, strict=True)
    ]


def widen_draws(draws: Array, estimate: Array, word_units: Sequence[Units]) -> Array:
    """Bootstrap draws of a mean over the pairs of senses of a word, wider if it is not known which
    of their units depend on each other.

    Shape: draws ..., ... -> draws ...

    draws: of the mean
    estimate: the mean
    word_units: of each pair of senses

    If pairs of senses share no number, their draws were independent although they share cue words.
    The spread around the estimate is then multiplied by the square root of their number, an upper
    bound: it becomes that of a single pair of senses.
    """
    factor = 1.0 if share_units(word_units) else np.sqrt(len(word_units))
    return np.asarray(estimate + factor * (draws - estimate))


def count_units(word_units: Sequence[Units]) -> int:
    """The number of units in a mean over pairs of senses; each counts once.

    If no number is shared, the number in the pair of senses that has the fewest (`widen_draws`).
    """
    if share_units(word_units):
        return len(set().union(*word_units))
    return min(len(set(units)) for units in word_units)


def interval_over_senses(
    draws: Array, estimate: Array, word_units: Sequence[Units]
) -> tuple[Array, Array]:
    """The 95 % interval of a mean over the pairs of senses of a word.

    Shape: draws ..., ... -> (...), (...)

    The arguments are as in `widen_draws`.
    """
    wide = widen_draws(draws, estimate, word_units)
    return resampling.interval(wide, estimate, units=count_units(word_units))


def share_units(word_units: Sequence[Units]) -> bool:
    """Whether units are numbered across the pairs of senses of a word (`number_across_senses`)."""
    return len(set().union(*word_units)) < sum(len(set(units)) for units in word_units)


def make_pairs(
    sentences: Sequence[Sentence],
    distances: Sequence[int | None],
    split: CrossFit,
    *,
    limit: int,
    seed: int,
    learned: bool = False,
    unfitted_donors: bool = False,
) -> Pairs:
    """At most `limit` of the held-out pairs of a split, with their same-sense donors.

    The pairs are spread evenly over the units.

    sentences: by row; rows of the result index them
    distances: tokens from cue to word, by row
    learned: take the pairs that are used for fitting only, if a file gives the split
    unfitted_donors: a same-sense donor is never a sentence on which the recipient's axis was
        fitted, because the axis partly follows the peculiarities of these sentences; without
        another sentence, the donor is the recipient itself, and nothing is subtracted
    """
    rng = np.random.default_rng(seed)
    tested = set(split.tested)
    usable = [pair for pair in split.pairs if all((index in tested) != learned for index in pair)]
    numbers = spread([split.units[index] for index, _ in usable], limit, rng)
    pairs = [usable[number] for number in sorted(numbers)]
    a = tuple(split.rows[index] for index, _ in pairs)
    b = tuple(split.rows[index] for _, index in pairs)
    # One stream of random numbers draws the donors of all A sentences and then of all B sentences.
    rows_of_a = [row for row, is_a in zip(split.rows, split.is_a, strict=True) if is_a]
    rows_of_b = [row for row, is_a in zip(split.rows, split.is_a, strict=True) if not is_a]
    fitted: dict[int, set[int]] = {}
    if unfitted_donors:
        fitted = _fitted_for(split)

    def donors(recipients: Sequence[int], members: Sequence[int]) -> tuple[int, ...]:
        chosen_donors = []
        for row in recipients:
            candidates = [member for member in members if member not in fitted.get(row, ())]
            chosen_donors.append(same_sense_donor(sentences, distances, row, candidates, rng))
        return tuple(chosen_donors)

    same_a = donors(a, rows_of_a)
    same_b = donors(b, rows_of_b)
    units = tuple(split.units[index] for index, _ in pairs)
    common_distances = []
    for row_a, row_b in zip(a, b, strict=True):
        alike = distances[row_a] == distances[row_b]
        common_distances.append(distances[row_a] if alike else None)
    return Pairs(
        a=a,
        b=b,
        same_a=same_a,
        same_b=same_b,
        frames=tuple(
            sentences[row].frame or f"{UNKNOWN_FRAME}{number}" for number, row in enumerate(a)
        ),
        units=units,
        word_units=units,
        distances=tuple(common_distances),
        design=split.pair_design,
        seed=seed,
    )


def _fitted_for(split: CrossFit) -> dict[int, set[int]]:
    """The rows on which the axes of each held-out row are fitted."""
    fitted: dict[int, set[int]] = {}
    for holdout in split.holdouts:
        train = {split.rows[position] for position in holdout.train}
        fitted |= {split.rows[position]: train for position in holdout.test}
    return fitted


def spread(units: Sequence[int], limit: int, rng: np.random.Generator) -> list[int]:
    """The indices of at most `limit` members, drawn so that every unit has an equal number if
    possible.
    """
    last_turn: dict[int, int] = {}
    queue: list[tuple[int, int]] = []
    for index in rng.permutation(len(units)).tolist():
        unit = units[index]
        last_turn[unit] = last_turn.get(unit, -1) + 1
        queue.append((last_turn[unit], index))
    # The first member of every unit, then the second of each: the sort is stable within a turn.
    in_turn = sorted(queue, key=lambda item: item[0])
    return [index for _, index in in_turn[:limit]]


def same_sense_donor(
    sentences: Sequence[Sentence],
    distances: Sequence[int | None],
    row: int,
    members: Sequence[int],
    rng: np.random.Generator,
) -> int:
    """The row of another sentence of the same sense, as similar to the recipient as possible.

    In order of preference: the same distance and frame, the same distance, the same frame, any;
    among equals, with another cue word. Without another sentence, the recipient itself.

    row: the recipient
    members: the rows to choose from
    """
    recipient = sentences[row]
    cue_word = recipient.cue_word

    def likeness(member: int) -> tuple[bool, bool, bool]:
        donor = sentences[member]
        # Tuples compare from left to right, so distance counts before frame, and frame before cue
        # word.
        same_frame = recipient.frame is not None and donor.frame == recipient.frame
        return distances[member] == distances[row], same_frame, donor.cue_word != cue_word

    likeness_of = {member: likeness(member) for member in members if member != row}
    if not likeness_of:
        return row
    best = max(likeness_of.values())
    return int(rng.choice([member for member, alike in likeness_of.items() if alike == best]))
