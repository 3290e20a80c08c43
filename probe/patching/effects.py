"""From swaps to effects: which sentence gives to which, and what a head's swap amounts to in fractions of the sense
gap.

A pair is a sentence of sense A and one of sense B. Aligned pairs share frame, length and target position, so only the
cue differs; where a file gives none, donors are drawn from the other sense at random and the page says so. Beside every
opposite-sense swap stands a same-sense one (another cue, same frame): "any disturbance matters" must be seen to be
subtracted.

    R_dn = Σ [M(B with A's z) - M(B)] / Σ G      denoising, B made to look like A
    R_ns = Σ [M(A) - M(A with B's z)] / Σ G      noising
    E    = (R_dn + R_ns) / 2,  G = M(A) - M(B)   ratios of sums, never means of ratios

Sources: Heimersheim & Nanda 2024; Zhang & Nanda 2024.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.model.ledger import head_contributions
from probe.model.records import TargetStates
from probe.model.weights import Weights
from probe.patching import swaps as patching
from probe.patching.swaps import Rows
from probe.stats import resampling
from probe.stats.axes import Axis
from probe.stats.resampling import Array
from probe.text.lexicon import Sentence
from probe.text.splits import cue_units

ALIGNED = "aligned pairs"
DRAWN = "donors drawn at random"
MIN_PAIRS = 4


@dataclass(frozen=True)
class Pairs:
    """Row numbers of the paired sentences of one pair of senses, their same-sense donors, frames and cues."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    same_a: tuple[int, ...]
    same_b: tuple[int, ...]
    frames: tuple[str, ...]
    cues: tuple[str, ...]
    distances: tuple[int | None, ...]
    design: str
    seed: int

    def __len__(self) -> int:
        return len(self.a)

    def bootstrap(self) -> Array:
        """How often each pair counts in each draw, frames and cue words resampled. `-> draws pair`"""
        return bootstrap([self])


@dataclass(frozen=True, eq=False)
class Effects:
    """What swapping each head does, pair by pair, in fractions of the fitted sense gap. `pair layer head`, gaps `pair`.

    `denoise noise`: the numerators of R_dn and R_ns · `same_sense`: the same with a same-sense donor, both members
    averaged · `direct`: what the head itself writes along the axis, everything downstream frozen · `gap`: G of each
    pair.
    """

    gap: Array
    denoise: Array
    noise: Array
    same_sense: Array
    direct: Array

    def ratio(self, name: str) -> Array:
        """Σ name / Σ G. `-> layer head`"""
        return np.asarray(getattr(self, name).sum(0) / self.gap.sum())

    @property
    def swap(self) -> Array:
        """E = (R_dn + R_ns) / 2. `-> layer head`"""
        return (self.ratio("denoise") + self.ratio("noise")) / 2

    @property
    def net(self) -> Array:
        """What each pair shows beyond its same-sense donors, in fractions of the gap of all pairs.

        `-> pair layer head`
        """
        return ((self.denoise + self.noise) / 2 - self.same_sense) / self.gap.mean()

    def draws(self, weights: Array) -> dict[str, Array]:
        """E, E beyond the same-sense donor and D in every bootstrap draw.

        `draws pair -> swap, net, direct: draws layer head`
        """
        swap, same, direct = (
            resampling.bootstrap_ratio(values, self.gap, weights)
            for values in ((self.denoise + self.noise) / 2, self.same_sense, self.direct)
        )
        return {"swap": swap, "net": swap - same, "direct": direct}


def bootstrap(groups: Sequence[Pairs]) -> Array:
    """How often each pair of all groups counts in each draw; a frame or cue word counts alike wherever it stands.

    `-> draws pair`
    """
    frames, cues = ([name for pairs in groups for name in getattr(pairs, kind)] for kind in ("frames", "cues"))
    crossed = (frames, cues) if frames != cues else (frames,)
    return resampling.bootstrap_weights(crossed, seed=groups[0].seed)


def make_pairs(
    sentences: Sequence[Sentence], rows: Sequence[int], senses: tuple[str, str], *, most: int, seed: int
) -> Pairs:
    """Pair the given rows of the two senses: by their `pair` where it is given often enough, otherwise at random.

    At most `most` pairs are kept, drawn with the seed. `rows` index `sentences`; so do the rows of the result.
    """
    rng = np.random.default_rng(seed)
    of_sense = [[row for row in rows if sentences[row].sense == sense] for sense in senses]
    partner = {sentences[row].pair: row for row in of_sense[1] if sentences[row].pair is not None}
    found = [(row, partner[sentences[row].pair]) for row in of_sense[0] if sentences[row].pair in partner]
    design = ALIGNED if len(found) >= MIN_PAIRS else DRAWN
    if design == DRAWN:
        count = min(most, *map(len, of_sense))
        found = list(zip(*(rng.permutation(members)[:count].tolist() for members in of_sense), strict=True))
    chosen = sorted(rng.permutation(len(found))[:most].tolist())
    kept = [found[index] for index in chosen]
    a, b = zip(*kept, strict=True)
    same = [
        [_same_sense_donor(sentences, row, members, rng) for row in side]
        for side, members in ((a, of_sense[0]), (b, of_sense[1]))
    ]
    frames = tuple(sentences[row].frame or f"row {index}" for index, row in enumerate(a))
    cues = tuple(f"row {cue}" if isinstance(cue, int) else str(cue) for cue in cue_units([sentences[row] for row in a]))
    distances = tuple(sentences[row].distance for row in a)
    return Pairs(a, b, tuple(same[0]), tuple(same[1]), frames, cues, distances, design, seed)


def _same_sense_donor(sentences: Sequence[Sentence], row: int, members: Sequence[int], rng: np.random.Generator) -> int:
    """Another sentence of the same sense: of the same frame and distance if there is one, else of the same frame, else
    any.
    """
    mine = sentences[row]
    others = [other for other in members if other != row]
    same_frame = [other for other in others if mine.frame is not None and sentences[other].frame == mine.frame]
    closest = [other for other in same_frame if sentences[other].distance == mine.distance]
    return int(rng.choice(closest or same_frame or others))


def measure(
    weights: Weights, texts: Rows, states: TargetStates, studies: Sequence[tuple[Axis, Pairs]]
) -> list[Effects]:
    """Swap every head in every pair, both ways and with same-sense donors, for all sense pairs of a word at once.

    `texts`: row by row what `states` was read from. A swap that two sense pairs share is run once.
    """
    if not studies:
        return []
    depth = studies[0][0].depth
    swaps = list(dict.fromkeys(swap for _, pairs in studies for swap in _swaps(pairs)))
    directions = torch.stack([axis.u / axis.gap for axis, _ in studies])
    recipients = [texts[recipient] for recipient, _ in swaps]
    moved = patching.swap_heads(weights, recipients, states.z[[donor for _, donor in swaps], :depth], directions)
    number = {swap: index for index, swap in enumerate(swaps)}
    results = []
    for which, (axis, pairs) in enumerate(studies):
        change = moved[..., which].double().numpy()

        def effect(recipients: Sequence[int], donors: Sequence[int], change: Array = change) -> Array:
            return change[[number[swap] for swap in zip(recipients, donors, strict=True)]]

        same = (effect(pairs.b, pairs.same_b) - effect(pairs.a, pairs.same_a)) / 2
        along = head_contributions(weights, states, axis).numpy()
        results.append(
            Effects(
                gap=gaps(axis, states.resid[:, depth], pairs),
                denoise=_all_layers(effect(pairs.b, pairs.a), weights),
                noise=_all_layers(-effect(pairs.a, pairs.b), weights),
                same_sense=_all_layers(same, weights),
                direct=_all_layers(along[list(pairs.a)] - along[list(pairs.b)], weights),
            )
        )
    return results


def gaps(axis: Axis, resid: Tensor, pairs: Pairs) -> Array:
    """G = M(A) - M(B) of every pair. `row d_model -> pair`"""
    coordinate = axis.coordinate(resid).numpy()
    return np.asarray(coordinate[list(pairs.a)] - coordinate[list(pairs.b)])


def _swaps(pairs: Pairs) -> list[tuple[int, int]]:
    """(recipient, donor) of every swap that one pair of senses needs."""
    both = [*zip(pairs.b, pairs.a, strict=True), *zip(pairs.a, pairs.b, strict=True)]
    return both + [*zip(pairs.a, pairs.same_a, strict=True), *zip(pairs.b, pairs.same_b, strict=True)]


def _all_layers(values: Array, weights: Weights) -> Array:
    """Heads above the read-out write after it, so their effect on it is zero by construction. `pair layer head`"""
    missing = len(weights.blocks) - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing), (0, 0)))


def rank_intervals(net: Array) -> tuple[Array, Array]:
    """95 % interval of each head's rank (1 = largest) over bootstrap draws.

    `draws layer head -> (layer head), (layer head)`
    """
    ranks = resampling.ranks(net.reshape(len(net), -1))
    low, high = np.quantile(ranks, [0.025, 0.975], axis=0, method="closest_observation")
    return low.reshape(net.shape[1:]), high.reshape(net.shape[1:])
