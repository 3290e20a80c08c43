"""Decisions before any swap: the pairs of sentences, the layers at which heads are read, and
whether there is a gap to explain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from scipy.stats import false_discovery_control

from probe.experiments import design, swaps
from probe.experiments.design import Pairs, Readout, make_pairs, number_across_senses
from probe.experiments.observe import Observation, SenseAxes, nuisance_p
from probe.experiments.options import Options
from probe.model.records import TargetStates
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import CrossFit, cue_words

# The conditions for an effect to have a meaning, for two senses of a word:
#     gap_p           p of the gap between the senses at some depth, corrected over depths and pairs
#                     of senses
#     largest_t       the largest statistic of that test over depths
#     next_token_p    p of the gap in the logits of the next token; 1 for a model that predicts no
#                     tokens
#     continuation_p  p that the lexicon's continuations of the right sense have the larger logits;
#                     NaN without continuations
#     nuisance_p      p that a property without meaning separates the senses: the position of the
#                     word or of its cue, the distance between them, or the length of the text
#     untrained_p     p of the gap in a model of the same shape with random weights; NaN without
#                     such a model
GATES = ("gap_p", "largest_t", "next_token_p", "continuation_p", "nuisance_p", "untrained_p")
# Fraction of the separation at the read-out layer. A share of a smaller gap would be mostly noise.
HALF_APART = 0.5


@dataclass(frozen=True, eq=False)
class Prepared:
    """Two senses that are ready for swaps.

    sense: the senses with their axes
    pairs: the sentences to swap, with their donors
    gap: M(A) - M(B) of each pair. `pair stage`
    gates: the conditions for an effect to have a meaning, by name (`GATES`)
    reading: the stage at which the heads of each layer are read
    """

    sense: SenseAxes
    pairs: Pairs
    gap: Array
    gates: Mapping[str, float]
    readout: Readout


def prepare_pairs(
    observation: Observation, untrained: TargetStates | None, options: Options
) -> tuple[Prepared, ...]:
    """Pairs, gates and readings of all pairs of senses of a word.

    observation: the unchanged runs of the word
    untrained: the states of its sentences in a model of random weights, or None
    """
    drafts = [_draft(observation, sense, untrained, options) for sense in observation.pairs]
    pairs = number_across_senses(
        [each.pairs for each in drafts], cue_words(observation.material.sentences)
    )
    # Corrected over the pairs of senses of a word, because one of many would pass by chance.
    adjusted = false_discovery_control([each.gates["gap_p"] for each in drafts])
    return tuple(
        replace(each, pairs=numbered, gates={**each.gates, "gap_p": float(p)})
        for each, numbered, p in zip(drafts, pairs, adjusted, strict=True)
    )


def _draft(
    observation: Observation,
    sense: SenseAxes,
    untrained: TargetStates | None,
    options: Options,
) -> Prepared:
    """Two senses before p of the gap is corrected over the pairs of senses."""
    pairs = _pairs(observation, sense.split, options)
    gap = swaps.gaps(sense.axes, observation.stages.vectors, pairs)
    layers = observation.states.resid.shape[1] - 1
    separation = sense.separation
    # Heads' writes are read no earlier than at the first depth d with g(d) >= HALF_APART g(L*),
    # where g is Hedges' g. Depth 0 is skipped, because no head has written there.
    far_enough = separation.g[1:] >= HALF_APART * separation.g[observation.depth]
    first = 1 + int(far_enough.argmax()) if far_enough.any() else observation.depth
    return Prepared(
        sense=sense,
        pairs=pairs,
        gap=gap,
        gates=_gates(observation, sense, pairs, gap, untrained, options),
        readout=design.readout(
            layers,
            observation.depth,
            first,
            predicts=observation.stages.root is not None,
            continues=bool(observation.stages.toward),
        ),
    )


def _pairs(observation: Observation, split: CrossFit, options: Options) -> Pairs:
    """At most `options.pairs` pairs of a split, with their donors."""
    return make_pairs(
        observation.material.sentences,
        observation.material.distances,
        split,
        limit=options.pairs,
        seed=options.seed,
        unfitted_donors=options.unfitted_donors,
    )


def _gates(
    observation: Observation,
    sense: SenseAxes,
    pairs: Pairs,
    gap: Array,
    untrained: TargetStates | None,
    options: Options,
) -> dict[str, float]:
    """The gates of two senses, where `gap_p` is not yet corrected over the pairs of senses.

    gap: `pair stage`
    """
    rows = list(sense.split.rows)
    layers = observation.states.resid.shape[1] - 1
    vectors = observation.stages.vectors

    def test(resid: torch.Tensor) -> resampling.Gap:
        return resampling.gap_test(resid.double().numpy(), sense.split, seed=options.seed)

    # Depths 1 to the last: depth 0 is the embedding of the word, the same in both senses.
    of_gap = test(vectors[rows, 1 : 1 + layers])
    next_token = 1.0
    if observation.stages.root is not None:
        # resid @ R, where R is the root of the metric: distances become distances between logits.
        final = vectors[rows, layers + 1 : layers + 2].double()
        next_token = test(final @ observation.stages.root).p
    continuation = float("nan")
    if observation.stages.toward:
        # The last stage: M is the logit difference of the continuations of the two senses.
        tested = resampling.flip_signs(gap[:, -1:], pairs.units, seed=options.seed)
        continuation = float(tested.p[0])
    nuisance = nuisance_p(
        observation.material, sense.split, seed=options.seed, causal=observation.causal
    )
    of_untrained = float("nan")
    if untrained is not None:
        of_untrained = untrained_p(untrained, sense, seed=options.seed)
    values = (of_gap.p, float(of_gap.t.max()), next_token, continuation, nuisance, of_untrained)
    return dict(zip(GATES, values, strict=True))


def untrained_p(untrained: TargetStates, pair: SenseAxes, *, seed: int) -> float:
    """p of the gap between two senses in a model of random weights.

    untrained: the states of all sentences of the word in that model
    """
    resid = untrained.resid[list(pair.split.rows), 1:].double().numpy()
    return resampling.gap_test(resid, pair.split, seed=seed).p
