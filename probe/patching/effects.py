"""From swaps to effects: which sentence gives to which, and what a head's swap amounts to in
fractions of the sense gap.

A pair is a sentence of sense A and one of sense B. Aligned pairs share frame, length and target
position, so only the cue differs; where a file gives none, donors are drawn from the other sense at
random and the page says so. Beside every opposite-sense swap stands a same-sense one (another cue,
the same distance from cue to word and, where there is one, the same frame): "any disturbance
matters" must be seen to be subtracted, and a donor at another distance would make a head that
copies the token before look as if it knew senses.

    R_dn = Σ [M(B with A's z) - M(B)] / Σ G      denoising, B made to look like A
    R_ns = Σ [M(A) - M(A with B's z)] / Σ G      noising
    E    = (R_dn + R_ns) / 2,  G = M(A) - M(B)   ratios of sums, never means of ratios

Every swap is read at every depth behind it, along the axes that were fitted without the sentence's
cue word and frame. The one number of a table is read at L* for the heads before it and at the last
depth for those behind (`Readings`).

Sources: Heimersheim & Nanda 2024; Zhang & Nanda 2024.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.model import forward
from probe.model.decomposition import head_contributions
from probe.model.records import TargetStates
from probe.model.weights import Weights
from probe.patching import swaps as patching
from probe.patching.swaps import Rows
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.text.sentences import Sentence
from probe.text.splits import CrossFit


@dataclass(frozen=True)
class Pairs:
    """Row numbers of the paired sentences of two senses, their same-sense donors, frames, units and
    distances.

    The distance from cue to word is that of both members, None where they differ in it.
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

    def take(self, places: Sequence[int]) -> "Pairs":
        """Some of the pairs."""
        columns = {name: tuple(getattr(self, name)[place] for place in places) for name in PER_PAIR}
        return Pairs(**columns, design=self.design, seed=self.seed)

    def bootstrap(self) -> Array:
        """How often each pair counts in each draw, frames and cue words resampled. `-> draws pair`"""
        return bootstrap([self])


PER_PAIR = ("a", "b", "same_a", "same_b", "frames", "units", "distances")


@dataclass(frozen=True)
class Readings:
    """At which stage the heads of each layer are read: `at`, their effect; `direct`, what they
    write themselves.

    Stage d is depth d; `said`, behind the last depth, the stream that the next token is predicted
    from, None for a model that predicts none; `continued` the same stream, read in the logits of
    known continuations, None without any.
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
    at = tuple(depth if layer < depth else layers for layer in range(layers))
    direct = tuple(max(layer + 1, first) for layer in range(layers))
    return Readings(at, direct, layers + 1 if predicts else None, layers + 2 if continues else None)


@dataclass(frozen=True, eq=False)
class Effects:
    """What swapping each head does, pair by pair, in fractions of the fitted sense gap. `pair layer
    head`, gaps `pair layer`.

    `denoise noise`: the numerators of R_dn and R_ns · `same_sense`: the same with a same-sense
    donor, both members averaged · `gap`: G of each pair where the heads of a layer are read.
    """

    gap: Array
    denoise: Array
    noise: Array
    same_sense: Array

    def ratio(self, name: str) -> Array:
        """Σ name / Σ G. `-> layer head`"""
        return np.asarray(getattr(self, name).sum(0) / self.gap.sum(0)[:, None])

    @property
    def swap(self) -> Array:
        """E = (R_dn + R_ns) / 2. `-> layer head`"""
        return (self.ratio("denoise") + self.ratio("noise")) / 2

    @property
    def net(self) -> Array:
        """What each pair shows beyond its same-sense donors, of the gap of all pairs. `-> pair
        layer head`"""
        return ((self.denoise + self.noise) / 2 - self.same_sense) / self.gap.mean(0)[:, None]

    def draws(self, weights: Array) -> dict[str, Array]:
        """E and E beyond the same-sense donor in every bootstrap draw. `draws pair -> swap, net:
        draws layer head`"""
        both = (self.denoise + self.noise) / 2, self.same_sense
        swap, same = (resampling.bootstrap_ratio(values, self.gap, weights) for values in both)
        return {"swap": swap, "net": swap - same}


@dataclass(frozen=True, eq=False)
class PairEffects:
    """All swaps of one pair of senses: `word`, where each head is read at the word; `said`, what is
    said next, or None; `continued`, the logits of known continuations, or None. `direct`:
    numerators of what each head itself writes, `pair layer head`, and their gaps `pair layer` ·
    `profile`: E of every head at every depth, `layer head depth`, 0 before its own layer.
    """

    word: Effects
    next_token: Effects | None
    continuation: Effects | None
    direct: Array
    direct_gap: Array
    profile: Array

    @property
    def written(self) -> Array:
        """D: what each head itself writes, as a fraction of the gap where it is read. `-> layer
        head`"""
        return np.asarray(self.direct.sum(0) / self.direct_gap.sum(0)[:, None])

    def draws(self, weights: Array) -> dict[str, Array]:
        """`Effects.draws`, with `direct`."""
        return self.word.draws(weights) | {
            "direct": resampling.bootstrap_ratio(self.direct, self.direct_gap, weights)
        }


def bootstrap(groups: Sequence[Pairs]) -> Array:
    """How often each pair of all groups counts in each draw; a frame or cue word counts alike
    wherever it stands.

    `-> draws pair`
    """
    frames, units = (
        [name for pairs in groups for name in getattr(pairs, kind)] for kind in ("frames", "units")
    )
    known = [None if name.startswith("row ") else name for name in frames]
    return resampling.bootstrap_weights(
        resampling.crossed_factors(known, units), seed=groups[0].seed
    )


def make_pairs(
    sentences: Sequence[Sentence],
    distances: Sequence[int | None],
    split: CrossFit,
    *,
    most: int,
    seed: int,
    learned: bool = False,
) -> Pairs:
    """At most `most` of the split's pairs that are held out, as many of each unit as can be; their
    donors.

    `sentences` and `distances`, in tokens from cue to word, by row; rows of the result index them.
    `learned`: the pairs that are only fitted on instead, where a file gives the split.
    """
    rng = np.random.default_rng(seed)
    tested = set(split.tested)
    usable = [pair for pair in split.pairs if all((place in tested) != learned for place in pair)]
    chosen = [
        usable[index]
        for index in sorted(spread([split.units[place] for place, _ in usable], most, rng))
    ]
    a, b = (tuple(split.rows[pair[side]] for pair in chosen) for side in (0, 1))
    members = [
        [row for row, of_a in zip(split.rows, split.is_a, strict=True) if of_a != side]
        for side in (0, 1)
    ]
    same_a, same_b = (
        tuple(same_sense_donor(sentences, distances, row, side, rng) for row in rows)
        for rows, side in zip((a, b), members, strict=True)
    )
    frames = tuple(sentences[row].frame or f"row {index}" for index, row in enumerate(a))
    units = tuple(split.units[place] for place, _ in chosen)
    both = [(distances[one], distances[other]) for one, other in zip(a, b, strict=True)]
    apart = tuple(one if one == other else None for one, other in both)
    return Pairs(a, b, same_a, same_b, frames, units, apart, split.pair_design, seed)


def spread(units: Sequence[int], most: int, rng: np.random.Generator) -> list[int]:
    """At most `most` places, drawn so that every unit has as many as can be."""
    turn: dict[int, int] = {}
    queue = []
    for place in rng.permutation(len(units)).tolist():
        turn[units[place]] = turn.get(units[place], -1) + 1
        queue.append((turn[units[place]], place))
    return [place for _, place in sorted(queue, key=lambda item: item[0])[:most]]


def same_sense_donor(
    sentences: Sequence[Sentence],
    distances: Sequence[int | None],
    row: int,
    members: Sequence[int],
    rng: np.random.Generator,
) -> int:
    """Another sentence of the same sense: of the same distance and frame if there is one, else of
    the same distance, of the same frame, any; with another cue word where it can be.
    """

    def alike(other: int) -> tuple[bool, bool, bool]:
        mine, theirs = sentences[row], sentences[other]
        same_frame = mine.frame is not None and theirs.frame == mine.frame
        return distances[other] == distances[row], same_frame, theirs.cue_word != mine.cue_word

    others = {other: alike(other) for other in members if other != row}
    best = max(others.values())
    return int(rng.choice([other for other, how in others.items() if how == best]))


def measure(
    weights: Weights,
    texts: Rows,
    states: TargetStates,
    axes: HeldOutAxes,
    pairs: Pairs,
    reading: Readings,
) -> PairEffects:
    """Every head's swap in every pair, both ways and with same-sense donors; `texts` row by row as
    in `states`."""
    a, b = list(pairs.a), list(pairs.b)
    given = [
        *zip((*b, *a, *a, *b), (*a, *b, *pairs.same_a, *pairs.same_b), strict=True)
    ]  # recipient and donor
    number = {swap: index for index, swap in enumerate(dict.fromkeys(given))}
    rows, donors = ([swap[side] for swap in number] for side in (0, 1))
    z, along = states.z[donors], axes.directions(rows)[:, 1:]
    moved = (
        patching.swap_heads(weights, [texts[row] for row in rows], z, along.to(z.dtype))
        .double()
        .numpy()
    )
    into_b, into_a, same_a, same_b = np.split(
        moved[[number[swap] for swap in given]], 4
    )  # pair layer head stage
    denoise, noise, same = into_b, -into_a, (same_b - same_a) / 2
    gap = gaps(axes, stages_of(weights, states, axes.u.shape[1] - states.resid.shape[1]), pairs)

    def at(chosen: Sequence[int]) -> Effects:
        stage = (np.asarray(chosen) - 1)[None, :, None, None]
        parts = (np.take_along_axis(part, stage, -1)[..., 0] for part in (denoise, noise, same))
        return Effects(gap[:, list(chosen)], *parts)

    behind = (reading.next_token, reading.continuation)
    said, continued = (None if stage is None else at([stage] * len(reading.at)) for stage in behind)
    depths = len(weights.blocks)
    net, whole = ((denoise + noise) / 2 - same)[..., :depths].sum(0), gap[:, 1 : 1 + depths].sum(0)
    profile = np.divide(net, whole, out=np.full_like(net, np.nan), where=whole != 0)
    along = axes.directions(a + b)[:, list(reading.direct)]
    written = head_contributions(weights, states, a + b, along, reading.direct)
    direct = (written[: len(a)] - written[len(a) :]).numpy()
    return PairEffects(
        at(reading.at), said, continued, direct, gap[:, list(reading.direct)], profile
    )


def stages_of(weights: Weights, states: TargetStates, behind: int) -> Tensor:
    """The residual stream at every depth, then that behind the final norm `behind` times. `-> row
    stage d_model`"""
    if not behind:
        return states.resid
    final = forward.finish(weights, states.resid[:, -1].to(weights.device)).cpu()
    return torch.cat([states.resid, final[:, None].expand(-1, behind, -1)], dim=1)


def predicts(weights: Weights) -> bool:
    """Whether the model says what comes next: it reads left to right and has an unembedding."""
    return weights.causal and weights.config.has_head


def gaps(axes: HeldOutAxes, stages: Tensor, pairs: Pairs) -> Array:
    """G = M(A) - M(B) of every pair at every stage. `row stage d_model -> pair stage`"""
    a, b = (axes.coordinates(stages[list(rows)], rows) for rows in (pairs.a, pairs.b))
    return np.asarray(a - b)


def rank_intervals(net: Array) -> tuple[Array, Array]:
    """95 % interval of each head's rank (1 = largest) over draws. `draws layer head -> (layer
    head), (layer head)`"""
    ranks = resampling.ranks(net.reshape(len(net), -1))
    low, high = np.quantile(ranks, [0.025, 0.975], axis=0, method="closest_observation")
    return low.reshape(net.shape[1:]), high.reshape(net.shape[1:])
