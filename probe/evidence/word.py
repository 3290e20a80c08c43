"""The measurements on one word: every sentence is read once, along axes that were fitted without
its cue word and frame.

For each pair of senses the sentences are held out in folds of cue words and frames
(`splits.cross_fit`), and sense axes are fitted at every depth. Before anything is swapped the gap
itself must be there, at some depth (`resampling.gap_test`, p below `verdicts.GATE`). Then every
head is swapped at the word, exactly, and read at every depth behind it and in what the model says
next. The read-out L* of a word is the first depth that separates its senses as well as any
(`axes.choose_depth`); it is chosen from held-out separations, never from an effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.stats import false_discovery_control

from probe.errors import InputError
from probe.evidence import design, effects
from probe.evidence.curves import Curves, joint_swaps, measure_curves
from probe.evidence.design import Pairs, Ranked, Readings
from probe.evidence.effects import Effects, PairEffects
from probe.evidence.head_parts import HeadParts, measure_head_parts
from probe.evidence.material import Material, SensePairSplits, continuations, split_senses
from probe.model import decomposition, forward
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.tokens import TargetText
from probe.model.trace import target_states
from probe.model.weights import Weights
from probe.patching.sets import HeadIndex
from probe.stats import axes, resampling
from probe.stats.axes import Axis, DepthSeparation, HeldOutAxes
from probe.stats.resampling import Array, Gap
from probe.stats.separation import Separation, Tests, corrected_tests, measure_separation
from probe.stats.verdicts import GATE, LARGE, LEVEL, SMALLEST
from probe.text.splits import DRAWN, CrossFit, cross_fit

CURVE_PAIRS = 12
HALF_APART = (
    0.5  # of the separation at the read-out: a share of a smaller gap would be mostly noise
)
JOINT_PAIRS = 8
JOINT_HEADS = 2  # heads whose effect is lost again, for which a stand-in is looked for


@dataclass(frozen=True)
class StudyOptions:
    """What a user may decide about a study: the seed of every random choice, how many pairs, how
    many permutations."""

    seed: int = 0
    max_pairs: int = 24
    permutations: int = 1000


@dataclass(frozen=True)
class StandIn:
    """A head that makes up for another: swapped together with `first` it moves the word further,
    `extra` of the gap."""

    first: HeadIndex
    head: HeadIndex
    extra: float
    p: float


@dataclass(frozen=True, eq=False)
class PairResult:
    """Everything measured for one pair of senses.

    `gap: pair stage` · `gate_p`: of the gap, corrected over depths and pairs of senses · `next_token_p`:
    of the gap in what is said next, 1 for a model that predicts nothing · `continuation_p`: that after
    the word the lexicon's continuations of its sense have the larger logits, NaN without any ·
    `nuisance_p`: that the word's place or the text's length differs between the senses · `by_depth:
    depth`, held-out AUROC · `axis`: fitted on all sentences, for others than these. `measured` and
    what follows are None where the gap is not there: a ratio over it would be noise over noise, so
    nothing is swapped or ranked.
    """

    split: CrossFit
    axes: HeldOutAxes
    axis: Axis
    pairs: Pairs
    gap: Array
    gate: Gap
    gate_p: float
    next_token_p: float
    continuation_p: float
    nuisance_p: float
    by_depth: Array
    separation: Separation
    reading: Readings
    measured: PairEffects | None = None
    head_parts: HeadParts | None = None
    tests: Tests | None = None
    stand_ins: tuple[StandIn, ...] = ()

    @property
    def senses(self) -> tuple[str, str]:
        return self.axes.senses

    @property
    def effects(self) -> Effects | None:
        """The effects on the sense coordinate."""
        return None if self.measured is None else self.measured.word

    def rows(self, sense: str | None = None, *, tested: bool = True) -> list[int]:
        """The sentences that are held out once, of one sense where given; all that are used without
        `tested`."""
        places = self.split.tested if tested else range(len(self.split.rows))
        return [
            self.split.rows[n]
            for n in places
            if sense is None or self.split.is_a[n] == (sense == self.senses[0])
        ]


@dataclass(frozen=True, eq=False)
class WordResult:
    """One word: its sentences, their states row by row, the read-out depth, a result per pair of
    senses."""

    material: Material
    states: TargetStates
    depth: int
    causal: bool
    pairs: tuple[PairResult, ...] = ()
    curves: Curves | None = None

    @cached_property
    def placed(self) -> list[TargetText]:
        """The token ids of every sentence and where its word is read, row by row.

        Without what comes after the word if the model cannot see it.
        """
        placed = self.material.placed
        return (
            [TargetText(ids[: at + 1], at) for ids, at in placed] if self.causal else list(placed)
        )

    @property
    def resid(self) -> torch.Tensor:
        """The read-out. `row d_model`"""
        return self.states.resid[:, self.depth]


def study_word(
    model: Model,
    material: Material,
    options: StudyOptions,
    splits: SensePairSplits | None = None,
) -> WordResult:
    """Everything that is measured on one word; see the module's docstring.

    `splits`: how the sentences of every pair of senses are held out, where that is known already.
    """
    word = observe_word(model, material, options, splits)
    passed = [pair for pair in word.pairs if pair.gate_p < GATE]
    if not passed:
        return word
    weights = read_weights(model)
    swapped = _swapped(weights, word, passed, options)
    pairs = tuple(swapped.get(pair.senses, pair) for pair in word.pairs)
    curves = _curves(weights, word, list(swapped.values()), options)
    return replace(word, pairs=pairs, curves=curves)


def observe_word(
    model: Model,
    material: Material,
    options: StudyOptions,
    splits: SensePairSplits | None = None,
) -> WordResult:
    """The study of a word without any swap: states, read-out and axes; gate and separation of every
    pair of senses."""
    splits = splits or split_senses(material, seed=options.seed)
    weights, pairs = read_weights(model), axes.sense_pairs(material.labels)
    parted = {
        pair: _hold_out(material, pair, splits[pair], options.seed, causal=model.config.causal)
        for pair in pairs
    }
    states = target_states(model, material.tokens, material.targets)
    unread = states.z[
        ..., :0
    ]  # queries, keys and values, 0.1 GB of GPT-2 small that nothing in a study reads
    states = replace(states, q=unread, k=unread, v=unread)
    unembed = forward.unembedding(weights, weights.dtype) if effects.predicts(weights) else None
    root = None if unembed is None else axes.next_token_root(unembed)
    following = None if unembed is None else continuations(model, material.word, material.labels)
    stages = effects.stages_of(weights, states, (root is not None) + (following is not None))
    toward: dict[
        tuple[str, str], torch.Tensor
    ] = {}  # of the first sense's continuations less that of the second's
    if unembed is not None and following is not None:
        logit = {sense: unembed[ids].double().mean(0).cpu() for sense, ids in following.items()}
        toward = {(a, b): logit[a] - logit[b] for a, b in pairs}
    held_out = {
        pair: axes.hold_out(stages, split, pair, root, toward.get(pair))
        for pair, (split, _) in parted.items()
    }
    separations = {
        pair: axes.separation_by_holdout(held_out[pair], states.resid, split)
        for pair, (split, _) in parted.items()
    }
    depth = axes.choose_depth(list(separations.values()))
    writes = decomposition.write_coordinates(states.z, weights)
    word = WordResult(material, states, depth, model.config.causal)
    results = [
        _observed(
            word, stages, root, writes, held_out[pair], *parted[pair], separations[pair], options
        )
        for pair in pairs
    ]
    # Over how many pairs of senses the word has, too: otherwise one of many would pass by chance,
    # and be ranked.
    adjusted = false_discovery_control([pair.gate_p for pair in results])
    return replace(
        word,
        pairs=tuple(
            replace(pair, gate_p=float(p)) for pair, p in zip(results, adjusted, strict=True)
        ),
    )


def _hold_out(
    material: Material, senses: tuple[str, str], split: CrossFit, seed: int, *, causal: bool
) -> tuple[CrossFit, float]:
    """The sentences of two senses in folds; and p that the position of the word, or the length of
    the text, tells them apart.

    Where it does and sentences are not paired, only sentences are used that have one of the other
    sense with the word at the same position, if they are at least half.
    """
    nuisance = _nuisance_p(material, split, seed, causal=causal)
    if nuisance >= LEVEL or split.pair_design != DRAWN:
        return split, nuisance
    try:
        alike = cross_fit(material.sentences, senses, seed=seed, positions=material.targets)
    except InputError:
        return split, nuisance
    if len(alike.rows) < min(material.labels.count(sense) for sense in senses):
        return split, nuisance
    return alike, _nuisance_p(material, alike, seed, causal=causal)


def _nuisance_p(material: Material, split: CrossFit, seed: int, *, causal: bool) -> float:
    """p that the senses differ in the word's place or, for a model that sees beyond the word, in
    the text's length."""
    known = [
        [material.targets[row]] + ([] if causal else [len(material.tokens[row])])
        for row in split.rows
    ]
    return resampling.difference_p(
        np.array(known, dtype=float), split.is_a, split.exchanged, seed=seed
    )


def _observed(
    word: WordResult,
    stages: torch.Tensor,
    root: torch.Tensor | None,
    writes: torch.Tensor,
    held_out: HeldOutAxes,
    split: CrossFit,
    nuisance_p: float,
    separation: DepthSeparation,
    options: StudyOptions,
) -> PairResult:
    """Pairs, gate and held-out separation of one pair of senses."""
    rows, layers = list(split.rows), word.states.resid.shape[1] - 1
    pairs = _pairs(word, split, options)

    def test(vectors: torch.Tensor) -> Gap:
        return resampling.gap_test(vectors.double().numpy(), split, seed=options.seed)

    gate, gap = test(stages[rows, 1 : 1 + layers]), effects.gaps(held_out, stages, pairs)
    continues = stages.shape[1] > layers + 2
    continued = (
        resampling.sign_flip_test(gap[:, -1:], pairs.units, seed=options.seed)
        if continues
        else None
    )
    apart = np.flatnonzero(separation.g[1:] >= HALF_APART * separation.g[word.depth])
    first = 1 + int(apart[0]) if len(apart) else word.depth
    a, b = (
        word.resid[[row for row in rows if word.material.labels[row] == sense]]
        for sense in held_out.senses
    )
    return PairResult(
        split=split,
        axes=held_out,
        axis=axes.fit_axis(a, b, held_out.senses, word.depth),
        pairs=pairs,
        gap=gap,
        gate=gate,
        gate_p=gate.p,
        next_token_p=1.0
        if root is None
        else test(stages[rows, layers + 1 : layers + 2].double() @ root).p,
        continuation_p=float("nan") if continued is None else float(continued.p[0]),
        nuisance_p=nuisance_p,
        by_depth=separation.auroc,
        separation=measure_separation(
            writes[:, :, rows], split, permutations=options.permutations, seed=options.seed
        ),
        reading=design.readings(
            layers, word.depth, first, predicts=root is not None, continues=continues
        ),
    )


def _pairs(
    word: WordResult, split: CrossFit, options: StudyOptions, *, learned: bool = False
) -> Pairs:
    given = (word.material.sentences, word.material.distances, split)
    return design.make_pairs(*given, most=options.max_pairs, seed=options.seed, learned=learned)


def _swapped(
    weights: Weights, word: WordResult, passed: Sequence[PairResult], options: StudyOptions
) -> dict[tuple[str, str], PairResult]:
    """Effects, routes and corrected tests of the pairs of senses whose gap is there; one family of
    tests per word."""
    swaps = [
        effects.measure(weights, word.placed, word.states, one.axes, one.pairs, one.reading)
        for one in passed
    ]
    family = corrected_tests(
        [pair.separation for pair in passed],
        [one.word.net for one in swaps],
        [one.next_token.net for one in swaps if one.next_token is not None],
        [one.continuation.net for one in swaps if one.continuation is not None],
        [pair.pairs.units for pair in passed],
        permutations=options.permutations,
        seed=options.seed,
    )
    results = {}
    for pair, measured, tests in zip(passed, swaps, family, strict=True):
        along = (pair.axes, pair.pairs, pair.reading)
        head_parts = measure_head_parts(
            weights, word.placed, word.states.z, word.material.cues, measured.word, along
        )
        stand_ins = _stand_ins(weights, word, pair, measured, options)
        results[pair.senses] = replace(
            pair, measured=measured, head_parts=head_parts, tests=tests, stand_ins=stand_ins
        )
    return results


def _stand_ins(
    weights: Weights,
    word: WordResult,
    pair: PairResult,
    measured: PairEffects,
    options: StudyOptions,
) -> tuple[StandIn, ...]:
    """The later heads that make up for heads whose effect is lost again by the last depth.

    A head stands in for another one where swapping both moves the last depth further than swapping
    the first alone, in more pairs than chance allows, corrected over all later heads.
    """
    last = measured.profile[..., -1]
    lost = (
        np.maximum(measured.written, measured.profile[..., min(pair.reading.direct) - 1 :].max(-1))
        - last
    )
    stand_ins = []
    few = pair.pairs.take(
        design.spread(pair.pairs.units, JOINT_PAIRS, np.random.default_rng(options.seed))
    )
    gap = pair.gap[:, len(weights.blocks)].mean()
    for place in resampling.order(lost.ravel())[:JOINT_HEADS]:
        layer, head = divmod(int(place), last.shape[1])
        later = [
            (above, other)
            for above in range(layer + 1, last.shape[0])
            for other in range(last.shape[1])
        ]
        if lost[layer, head] < LARGE or lost[layer, head] < abs(last[layer, head]) or not later:
            continue
        moved = (
            joint_swaps(
                weights,
                word.placed,
                word.states.z,
                pair.axes,
                few,
                first=(layer, head),
                others=later,
            )
            / gap
        )
        alone = np.array([last[other] for other in later])
        extra = moved[:, 1:] - moved[:, :1] - alone  # beyond what either does by itself
        tested = resampling.sign_flip_test(extra, few.units, seed=options.seed)
        stand_ins += [
            StandIn((layer, head), other, float(more), float(p))
            for other, more, p in zip(later, extra.mean(0), tested.p, strict=True)
            if p < LEVEL and more >= SMALLEST
        ]
    return tuple(stand_ins)


def _curves(
    weights: Weights, word: WordResult, passed: Sequence[PairResult], options: StudyOptions
) -> Curves:
    """Faithfulness on pairs whose order of heads comes from the pairs that their holdout learns
    from."""
    most, rng = max(2, CURVE_PAIRS // len(passed)), np.random.default_rng(options.seed)
    groups: list[Ranked] = []
    for pair in passed:
        learned, net = _ranking(weights, word, pair, options)
        few = design.spread(pair.pairs.units, most, rng)
        for number, holdout in enumerate(pair.split.holdouts):
            mine = [place for place in few if pair.axes.cell[pair.pairs.a[place]] == number]
            train = {pair.split.rows[place] for place in holdout.train}
            known = [
                place
                for place, (a, b) in enumerate(zip(learned.a, learned.b, strict=True))
                if {a, b} <= train
            ]
            if mine:
                order = _order(net[known or slice(None)].mean(0), word.depth)
                groups.append(Ranked(pair.axes, pair.pairs.take(mine), order))
    shown = _order(
        np.mean([pair.effects.net.mean(0) for pair in passed if pair.effects], axis=0), word.depth
    )
    return measure_curves(
        weights, word.placed, word.states.z, groups, shown, word.depth, seed=options.seed
    )


def _ranking(
    weights: Weights, word: WordResult, pair: PairResult, options: StudyOptions
) -> tuple[Pairs, Array]:
    """The pairs that heads are ordered on, and their net effects: those swapped anyway, or of a
    given fit part."""
    assert pair.effects is not None
    if len(pair.split.holdouts) > 1:
        return pair.pairs, pair.effects.net
    learned = _pairs(word, pair.split, options, learned=True)
    inside = replace(
        pair.axes, cell=np.zeros_like(pair.axes.cell)
    )  # read along the axis that they were fitted on
    if not len(learned):
        return pair.pairs, pair.effects.net
    measured = effects.measure(weights, word.placed, word.states, inside, learned, pair.reading)
    return learned, measured.word.net


def _order(net: Array, depth: int) -> tuple[HeadIndex, ...]:
    """Heads below the read-out, the largest effect first. `layer head`"""
    layers, heads = np.unravel_index(resampling.order(net[:depth].ravel()), net[:depth].shape)
    return tuple(zip(layers.tolist(), heads.tolist(), strict=True))


MEASURED, PERMUTED, LATER, UNTRAINED = (
    "as measured",
    "labels permuted",
    "later token",
    "untrained model",
)
BAND = (0.05, 0.5, 0.95)  # quantiles of the permutations


@dataclass(frozen=True, eq=False)
class Controls:
    """Held-out AUROC of every head where there is nothing to find, to hold every ranking against.
    `layer head` each

        labels permuted   the senses reassigned to cue words, many times: the band of chance, below
                          one half where
                          held-out folds of a balanced set lean away from the fitted ones
        later token       the token after the word, if every text has one: a head that carries the
                          topic separates it
        untrained model   random weights of the same shape: what the architecture and the sentences
                          do by themselves

    Of the clearest pair of senses · `band: quantile layer head`, of the permutations at BAND ·
    `untrained_p`: the gate's p in random weights, by pair of senses: a gap that they show is not of
    meaning. Source: Hewitt & Liang 2019.
    """

    word: WordResult
    pair: PairResult
    auroc: dict[str, Array]
    band: Array
    untrained_p: dict[tuple[str, str], float]


def measure_controls(
    model: Model, random_model: Model, word: WordResult, options: StudyOptions
) -> Controls:
    """The controls of a word: separations for its clearest pair of senses, the untrained gate for
    every one."""
    pair = clearest(word.pairs)
    rows = list(pair.split.rows)

    def separation(reader: Model, states: TargetStates, chosen: Sequence[int]) -> Array:
        writes = decomposition.write_coordinates(states.z[list(chosen)], read_weights(reader))
        return measure_separation(writes, pair.split, permutations=1, seed=options.seed).auroc

    null = pair.separation.null[1:]
    auroc = {MEASURED: pair.separation.auroc, PERMUTED: null.mean(0)}
    tokens, after = zip(
        *((word.material.tokens[row], word.material.targets[row] + 1) for row in rows), strict=True
    )
    if all(position < len(text) for position, text in zip(after, tokens, strict=True)):
        auroc[LATER] = separation(model, target_states(model, tokens, after), range(len(rows)))
    untrained = target_states(random_model, word.material.tokens, word.material.targets)
    auroc[UNTRAINED] = separation(random_model, untrained, rows)
    untrained_p = {
        each.senses: resampling.gap_test(
            untrained.resid[list(each.split.rows), 1:].double().numpy(),
            each.split,
            seed=options.seed,
        ).p
        for each in word.pairs
    }
    return Controls(word, pair, auroc, np.quantile(null, BAND, axis=0), untrained_p)


def clearest(pairs: Sequence[PairResult]) -> PairResult:
    """The pair of senses whose gap is surest."""
    return min(pairs, key=lambda pair: (pair.gate_p, -float(pair.gate.t.max())))
