"""Before anything is swapped: which sentence gives to which, where heads are read, and whether the
gap is there."""

from dataclasses import dataclass, replace

import torch
from scipy.stats import false_discovery_control

from probe.experiments import design, swaps
from probe.experiments.design import Pairs, Readings, make_pairs
from probe.experiments.observe import Observation, SenseAxes
from probe.experiments.options import Options
from probe.model.records import TargetStates
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import CrossFit

# Of the separation at the read-out layer: a share of a smaller gap would be mostly noise.
HALF_APART = 0.5


@dataclass(frozen=True)
class Gates:
    """What has to hold before an effect means anything, for two senses of a word.

    gap: p of the gap between them at some depth, corrected over depths and pairs of senses.
    largest_t: the largest statistic of that test over depths.
    next_token: p of the gap in the logits of the next token; 1 for a model that predicts none.
    continuation: p that the lexicon's continuations of the right sense have the larger logits; NaN
        where it has none.
    nuisance: p that something without meaning tells the senses apart: where the word or its cue
        stands, how far apart they are, or how long the text is.
    untrained: p of the gap in a model of the same shape with random weights; NaN where it was not
        asked.
    """

    gap: float
    largest_t: float
    next_token: float
    continuation: float
    nuisance: float
    untrained: float


@dataclass(frozen=True, eq=False)
class Prepared:
    """Two senses that are ready to be swapped: their axes, the pairs, and where heads are read."""

    sense: SenseAxes
    pairs: Pairs
    gap: Array
    gates: Gates
    reading: Readings


def prepare_pairs(
    seen: Observation, untrained: TargetStates | None, options: Options
) -> tuple[Prepared, ...]:
    """Pairs, gates and readings of every two senses of a word.

    untrained: the states of its sentences in a model of random weights, None to leave it out.
    """
    drafts = [_draft(seen, sense, untrained, options) for sense in seen.pairs]
    # Adjusted over the pairs of senses of a word: one of many would pass by chance.
    adjusted = false_discovery_control([each.gates.gap for each in drafts])
    return tuple(
        replace(each, gates=replace(each.gates, gap=float(p)))
        for each, p in zip(drafts, adjusted, strict=True)
    )


def _draft(
    seen: Observation,
    sense: SenseAxes,
    untrained: TargetStates | None,
    options: Options,
) -> Prepared:
    pairs = _pairs(seen, sense.split, options)
    gap = swaps.gaps(sense.axes, seen.stages.vectors, pairs)
    layers = seen.states.resid.shape[1] - 1
    separation = sense.separation
    far_enough = separation.g[1:] >= HALF_APART * separation.g[seen.depth]
    first = 1 + int(far_enough.argmax()) if far_enough.any() else seen.depth
    return Prepared(
        sense=sense,
        pairs=pairs,
        gap=gap,
        gates=_gates(seen, sense, pairs, gap, untrained, options),
        reading=design.readings(
            layers,
            seen.depth,
            first,
            predicts=seen.stages.root is not None,
            continues=bool(seen.stages.toward),
        ),
    )


def _pairs(seen: Observation, split: CrossFit, options: Options) -> Pairs:
    return make_pairs(
        seen.material.sentences,
        seen.material.distances,
        split,
        most=options.pairs,
        seed=options.seed,
        unfitted_donors=options.unfitted_donors,
    )


def _gates(
    seen: Observation,
    sense: SenseAxes,
    pairs: Pairs,
    gap: Array,
    untrained: TargetStates | None,
    options: Options,
) -> Gates:
    rows = list(sense.split.rows)
    layers = seen.states.resid.shape[1] - 1
    vectors = seen.stages.vectors

    def test(resid: torch.Tensor) -> resampling.Gap:
        return resampling.gap_test(resid.double().numpy(), sense.split, seed=options.seed)

    of_gap = test(vectors[rows, 1 : 1 + layers])
    next_token = 1.0
    if seen.stages.root is not None:
        final = vectors[rows, layers + 1 : layers + 2].double()
        next_token = test(final @ seen.stages.root).p
    continuation = float("nan")
    if seen.stages.toward:
        tested = resampling.flip_signs(gap[:, -1:], pairs.units, seed=options.seed)
        continuation = float(tested.p[0])
    return Gates(
        gap=of_gap.p,
        largest_t=float(of_gap.t.max()),
        next_token=next_token,
        continuation=continuation,
        nuisance=sense.nuisance_p,
        untrained=(
            float("nan") if untrained is None else untrained_p(untrained, sense, seed=options.seed)
        ),
    )


def untrained_p(untrained: TargetStates, pair: SenseAxes, *, seed: int) -> float:
    """p of the gap between two senses in a model of random weights."""
    resid = untrained.resid[list(pair.split.rows), 1:].double().numpy()
    return resampling.gap_test(resid, pair.split, seed=seed).p


def tested_pairs(split: CrossFit) -> list[tuple[int, int]]:
    """The pairs of a split whose members are both held out."""
    return [pair for pair in split.pairs if all(split.cells[position] >= 0 for position in pair)]
