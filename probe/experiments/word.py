"""The measurements on one word: every sentence is read once, along axes that were fitted without
its cue word and frame.

For each pair of senses the sentences are held out in folds of cue words and frames
(`splits.cross_fit`), and sense axes are fitted at every depth. Before anything is swapped the gap
itself must be there, at some depth (`resampling.gap_test`, p below `limits.GATE`). Then every
head is swapped at the word, exactly, and read at every depth behind it and in the logits of the
next token. The read-out L* of a word is the first depth that separates its senses as well as any
(`axes.choose_depth`); it is chosen from held-out separations, never from an effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from scipy.stats import false_discovery_control

from probe.errors import InputError
from probe.experiments import design
from probe.experiments import swaps as effects
from probe.experiments.design import Pairs, Ranked, Readings
from probe.experiments.head_parts import HeadParts, measure_head_parts
from probe.experiments.material import Material, SensePairSplits, continuations, split_senses
from probe.experiments.noun_parts import WordInPlace, compare_parts
from probe.experiments.nouns import (
    Candidates,
    NounComparison,
    ambiguity_gate,
    candidates,
    compare_gaps,
)
from probe.experiments.sets import Curves, joint_swaps, measure_curves
from probe.experiments.swaps import Effects, PairEffects
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
from probe.stats.limits import GATE, LARGE, LEVEL, SMALLEST
from probe.stats.resampling import Array, Gap
from probe.stats.separation import Separation, Tests, corrected_tests, measure_separation
from probe.text.splits import DRAWN, CrossFit, cross_fit

CURVE_PAIRS = 12  # of sentences, that the sets of a word's curve are run on
# Of the separation at the read-out: a share of a smaller gap would be mostly noise.
HALF_APART = 0.5
JOINT_PAIRS = 8  # of sentences, in which two heads are swapped together
JOINT_HEADS = 2  # heads whose effect is lost again, for which a stand-in is looked for
# The conditions of the controls.
MEASURED = "as measured"
PERMUTED = "labels permuted"
LATER = "later token"
UNTRAINED = "untrained model"
BAND = (0.05, 0.5, 0.95)  # quantiles of the permutations


@dataclass(frozen=True)
class StudyOptions:
    """What a user may decide about a study: the seed of every random choice, how many pairs, how
    many permutations; `controls`: the one-meaning nouns to compare with, those that ship for None,
    none for ()."""

    seed: int = 0
    max_pairs: int = 24
    permutations: int = 1000
    controls: tuple[str, ...] | None = None


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

    `gap: pair stage` · `gate_p`: of the gap, corrected over depths and pairs of senses ·
    `next_token_p`: of the gap in the logits of the next token, 1 for a model that predicts nothing
    · `continuation_p`: that after the word the lexicon's continuations of its sense have the larger
    logits, NaN without any · `nuisance_p`: that the position of the word or the length of the text
    differs between the senses · `by_depth: depth`, held-out AUROC · `axis`: fitted on all
    sentences, for others than these. `measured` and what follows are None where the gap is not
    there: a ratio over it would be noise over noise, so nothing is swapped or ranked.
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
    nouns: NounComparison | None = None

    @property
    def senses(self) -> tuple[str, str]:
        return self.axes.senses

    @property
    def effects(self) -> Effects | None:
        """The effects on the sense coordinate."""
        return None if self.measured is None else self.measured.word

    def rows(self, sense: str | None = None, *, tested: bool = True) -> list[int]:
        """The sentences that are held out once, of `sense` or of both; all that are used without
        `tested`."""
        split = self.split
        positions = split.tested if tested else range(len(split.rows))
        if sense is not None:
            is_a = sense == self.senses[0]
            positions = [position for position in positions if split.is_a[position] == is_a]
        return [split.rows[position] for position in positions]


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
    def texts(self) -> list[TargetText]:
        """The token ids of every sentence and where its word is read, row by row.

        Without what comes after the word if the model cannot see it.
        """
        if not self.causal:
            return list(self.material.texts)
        return [TargetText(ids[: at + 1], at) for ids, at in self.material.texts]

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
    if options.controls != ():
        swapped = _with_nouns(model, weights, word, swapped, options)
    pairs = tuple(swapped.get(pair.senses, pair) for pair in word.pairs)
    curves = _curves(weights, word, list(swapped.values()), options)
    return replace(word, pairs=pairs, curves=curves)


@dataclass(frozen=True)
class Gates:
    """What is known of two senses of a word before anything is swapped: p of the gap, of the gap in
    random weights, of position and length, and of the comparison with one-meaning nouns, NaN where
    it is not made; `not_compared`: why not, "" where it is, or where nouns were not asked for."""

    word: str
    senses: tuple[str, str]
    gap_p: float
    untrained_p: float
    nuisance_p: float
    ambiguity_p: float = float("nan")
    not_compared: str = ""


def measure_gates(
    model: Model,
    random_model: Model,
    material: Material,
    options: StudyOptions,
    splits: SensePairSplits,
) -> list[Gates]:
    """The gates of every pair of senses of a word, as a study has them, without any swap."""
    # Permutations are for the separations of heads, which are not asked for.
    word = observe_word(model, material, replace(options, permutations=1), splits)
    untrained = target_states(random_model, material.tokens, material.targets)
    untrained_p = _untrained_gates(untrained, word, options)
    passed = [pair for pair in word.pairs if pair.gate_p < GATE]
    nouns: dict[tuple[str, str], NounComparison] = {}
    if passed and options.controls != ():
        among = candidates(model, material, options.controls)
        compared = gaps_of_nouns(read_weights(model), word, passed, among, options)
        nouns = {pair.senses: gaps for pair, gaps in zip(passed, compared, strict=True)}
    gates = []
    for pair in word.pairs:
        comparison = nouns.get(pair.senses)
        gates.append(
            Gates(
                word=material.word,
                senses=pair.senses,
                gap_p=pair.gate_p,
                untrained_p=untrained_p[pair.senses],
                nuisance_p=pair.nuisance_p,
                ambiguity_p=comparison.p if comparison else float("nan"),
                not_compared=comparison.reason if comparison else "",
            )
        )
    return gates


def observe_word(
    model: Model,
    material: Material,
    options: StudyOptions,
    splits: SensePairSplits | None = None,
) -> WordResult:
    """The study of a word without any swap: states, read-out and axes; gate and separation of every
    pair of senses."""
    splits = splits or split_senses(material, seed=options.seed)
    weights = read_weights(model)
    states = _states(model, material)
    stages = _stages(model, material, states)
    observed = _observe(material, states, stages, splits, options.seed, causal=model.config.causal)
    depth = axes.choose_depth([each.separation for each in observed])
    word = WordResult(material, states, depth, model.config.causal)
    writes = decomposition.write_coordinates(states.z, weights)
    results = [_test_pair(word, stages, writes, each, options) for each in observed]
    # Over how many pairs of senses the word has, too: otherwise one of many would pass by chance,
    # and be ranked.
    adjusted = false_discovery_control([pair.gate_p for pair in results])
    pairs = [replace(pair, gate_p=float(p)) for pair, p in zip(results, adjusted, strict=True)]
    return replace(word, pairs=tuple(pairs))


def read_word(model: Model, material: Material, *, seed: int) -> WordResult:
    """The states of a word and the depth at which a study reads it, without any test of a pair of
    senses. Raises InputError where the sentences of two senses cannot be held out.
    """
    splits = split_senses(material, seed=seed)
    states = _states(model, material)
    stages = _Stages(states.resid)
    observed = _observe(material, states, stages, splits, seed, causal=model.config.causal)
    depth = axes.choose_depth([each.separation for each in observed])
    return WordResult(material, states, depth, model.config.causal)


def _states(model: Model, material: Material) -> TargetStates:
    states = target_states(model, material.tokens, material.targets)
    # Nothing in a study reads queries, keys and values: 0.1 GB of GPT-2 small.
    unread = states.z[..., :0]
    return replace(states, q=unread, k=unread, v=unread)


@dataclass(frozen=True, eq=False)
class _Stages:
    """The vectors that sense axes are fitted on, `row stage d_model`, and how those behind the last
    depth are read.

    `root: d_model d_model`, the metric of the next token's logits, None for a model that predicts
    none · `toward: d_model`, by pair of senses: the mean logits of the first sense's continuations
    less those of the second's; empty where the lexicon has none.
    """

    vectors: torch.Tensor
    root: torch.Tensor | None = None
    toward: Mapping[tuple[str, str], torch.Tensor] = field(default_factory=dict)


def _stages(model: Model, material: Material, states: TargetStates) -> _Stages:
    weights = read_weights(model)
    if not effects.predicts(weights):
        return _Stages(effects.stages_of(weights, states, 0))
    unembedding = forward.unembedding(weights, weights.dtype)
    root = axes.next_token_root(unembedding)
    token_ids = continuations(model, material.word, material.labels)
    if token_ids is None:
        return _Stages(effects.stages_of(weights, states, 1), root)
    logits = {sense: unembedding[ids].double().mean(0).cpu() for sense, ids in token_ids.items()}
    toward = {(a, b): logits[a] - logits[b] for a, b in axes.sense_pairs(material.labels)}
    return _Stages(effects.stages_of(weights, states, 2), root, toward)


@dataclass(frozen=True, eq=False)
class _Observed:
    """One pair of senses before its tests: how it is held out, its axes, how far it is apart."""

    split: CrossFit
    nuisance_p: float
    axes: HeldOutAxes
    separation: DepthSeparation


def _observe(
    material: Material,
    states: TargetStates,
    stages: _Stages,
    splits: SensePairSplits,
    seed: int,
    *,
    causal: bool,
) -> list[_Observed]:
    """Every pair of senses, held out: its axes at every stage, and how far it is apart."""
    observed = []
    for senses, split in splits.items():
        split, nuisance_p = _hold_out(material, senses, split, seed, causal=causal)
        toward = stages.toward.get(senses)
        held_out = axes.hold_out(stages.vectors, split, senses, stages.root, toward)
        separation = axes.separation_by_holdout(held_out, states.resid, split)
        observed.append(_Observed(split, nuisance_p, held_out, separation))
    return observed


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
    """p that the senses differ in the position of the word or, for a model that sees beyond it, in
    the length of the text."""
    numbers = []
    for row in split.rows:
        position = material.targets[row]
        numbers.append([position] if causal else [position, len(material.tokens[row])])
    values = np.array(numbers, dtype=float)
    return resampling.difference_p(values, split.is_a, split.exchanged, seed=seed)


def _test_pair(
    word: WordResult,
    stages: _Stages,
    writes: torch.Tensor,
    observed: _Observed,
    options: StudyOptions,
) -> PairResult:
    """Pairs, gate and held-out separation of one pair of senses. `writes: layer head row d_head`"""
    split = observed.split
    rows = list(split.rows)
    layers = word.states.resid.shape[1] - 1
    pairs = _pairs(word, split, options)
    gap = effects.gaps(observed.axes, stages.vectors, pairs)

    def test(vectors: torch.Tensor) -> Gap:
        return resampling.gap_test(vectors.double().numpy(), split, seed=options.seed)

    gate = test(stages.vectors[rows, 1 : 1 + layers])
    next_token_p = 1.0
    if stages.root is not None:
        final = stages.vectors[rows, layers + 1 : layers + 2].double()
        next_token_p = test(final @ stages.root).p
    continuation_p = float("nan")
    if stages.toward:
        tested = resampling.sign_flip_test(gap[:, -1:], pairs.units, seed=options.seed)
        continuation_p = float(tested.p[0])

    separation = observed.separation
    far_enough = separation.g[1:] >= HALF_APART * separation.g[word.depth]
    first = 1 + int(far_enough.argmax()) if far_enough.any() else word.depth
    senses = observed.axes.senses
    rows_a = [row for row in rows if word.material.labels[row] == senses[0]]
    rows_b = [row for row in rows if word.material.labels[row] == senses[1]]
    return PairResult(
        split=split,
        axes=observed.axes,
        axis=axes.fit_axis(word.resid[rows_a], word.resid[rows_b], senses, word.depth),
        pairs=pairs,
        gap=gap,
        gate=gate,
        gate_p=gate.p,
        next_token_p=next_token_p,
        continuation_p=continuation_p,
        nuisance_p=observed.nuisance_p,
        by_depth=separation.auroc,
        separation=measure_separation(
            writes[:, :, rows], split, permutations=options.permutations, seed=options.seed
        ),
        reading=design.readings(
            layers,
            word.depth,
            first,
            predicts=stages.root is not None,
            continues=bool(stages.toward),
        ),
    )


def _pairs(
    word: WordResult, split: CrossFit, options: StudyOptions, *, learned: bool = False
) -> Pairs:
    return design.make_pairs(
        word.material.sentences,
        word.material.distances,
        split,
        most=options.max_pairs,
        seed=options.seed,
        learned=learned,
    )


def _swapped(
    weights: Weights, word: WordResult, passed: Sequence[PairResult], options: StudyOptions
) -> dict[tuple[str, str], PairResult]:
    """Effects, parts of heads and corrected tests of the pairs of senses whose gap is there; one
    family of tests per word."""
    swaps = [
        effects.measure(weights, word.texts, word.states, pair.axes, pair.pairs, pair.reading)
        for pair in passed
    ]
    family = corrected_tests(
        [pair.separation for pair in passed],
        [measured.word.net for measured in swaps],
        [measured.next_token.net for measured in swaps if measured.next_token is not None],
        [measured.continuation.net for measured in swaps if measured.continuation is not None],
        [pair.pairs.units for pair in passed],
        permutations=options.permutations,
        seed=options.seed,
        has_heads=weights.has_heads.cpu().numpy(),
    )
    results = {}
    for pair, measured, tests in zip(passed, swaps, family, strict=True):
        results[pair.senses] = replace(
            pair,
            measured=measured,
            tests=tests,
            head_parts=_head_parts(weights, word, pair, measured),
            stand_ins=_stand_ins(weights, word, pair, measured, options),
        )
    return results


def _head_parts(
    weights: Weights, word: WordResult, pair: PairResult, measured: PairEffects
) -> HeadParts | None:
    """The parts of the leading heads' effects; None where hooks stay on, which no part computed
    from weights would have."""
    if weights.hooked is not None:
        return None
    return measure_head_parts(
        weights,
        word.texts,
        word.states.z,
        word.material.cues,
        measured.word,
        axes=pair.axes,
        pairs=pair.pairs,
        reading=pair.reading,
    )


def _with_nouns(
    model: Model,
    weights: Weights,
    word: WordResult,
    swapped: Mapping[tuple[str, str], PairResult],
    options: StudyOptions,
) -> dict[tuple[str, str], PairResult]:
    """The pairs of senses with the comparison with one-meaning nouns in the word's place."""
    among = candidates(model, word.material, options.controls)
    gaps_of_pairs = gaps_of_nouns(weights, word, list(swapped.values()), among, options)
    heads = _worth_comparing([pair.effects.net for pair in swapped.values() if pair.effects])
    compared = {}
    for (senses, pair), gaps in zip(swapped.items(), gaps_of_pairs, strict=True):
        if pair.effects is not None:
            start = WordInPlace(
                word.texts, pair.split, pair.axes, pair.pairs, pair.reading, pair.effects.net
            )
            gaps = compare_parts(weights, start, among, gaps, heads)
        compared[senses] = replace(pair, nouns=gaps)
    return compared


def gaps_of_nouns(
    weights: Weights,
    word: WordResult,
    pairs: Sequence[PairResult],
    among: Candidates,
    options: StudyOptions,
) -> list[NounComparison]:
    """The gaps of one-meaning nouns for every pair of senses, with the word's ambiguity gate."""
    gaps = [
        compare_gaps(
            weights, word.texts, among, pair.split, pair.axes, word.depth, seed=options.seed
        )
        for pair in pairs
    ]
    return ambiguity_gate(gaps)


def _worth_comparing(nets: Sequence[Array]) -> list[HeadIndex]:
    """The heads that move the word by at least SMALLEST for any pair of senses. `pair layer head`
    each"""
    largest = np.max([np.abs(net.mean(0)) for net in nets], axis=0)
    layers, heads = np.nonzero(largest >= SMALLEST)
    return list(zip(layers.tolist(), heads.tolist(), strict=True))


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
    layers, heads = last.shape
    from_direct = measured.profile[..., min(pair.reading.direct) - 1 :]
    lost = np.maximum(measured.written, from_direct.max(-1)) - last
    rng = np.random.default_rng(options.seed)
    pairs = pair.pairs.take(design.spread(pair.pairs.units, JOINT_PAIRS, rng))
    gap = pair.gap[:, len(weights.blocks)].mean()
    stand_ins = []
    for index in resampling.order(lost.ravel())[:JOINT_HEADS]:
        first = divmod(int(index), heads)
        later = [
            (layer, head)
            for layer in range(first[0] + 1, layers)
            if measured.has_heads[layer]
            for head in range(heads)
        ]
        if not later or lost[first] < max(LARGE, abs(last[first])):
            continue
        moved = joint_swaps(
            weights, word.texts, word.states.z, pair.axes, pairs, first=first, others=later
        )
        of_gap = moved / gap
        alone = np.array([last[other] for other in later])
        extra = of_gap[:, 1:] - of_gap[:, :1] - alone  # beyond what either does by itself
        tested = resampling.sign_flip_test(extra, pairs.units, seed=options.seed)
        for other, effect, p in zip(later, extra.mean(0), tested.p, strict=True):
            if p < LEVEL and effect >= SMALLEST:
                stand_ins.append(StandIn(first, other, float(effect), float(p)))
    return tuple(stand_ins)


def _curves(
    weights: Weights, word: WordResult, passed: Sequence[PairResult], options: StudyOptions
) -> Curves:
    """Faithfulness on pairs whose order of heads comes from the pairs that their holdout learns
    from."""
    most = max(2, CURVE_PAIRS // len(passed))
    rng = np.random.default_rng(options.seed)
    groups: list[Ranked] = []
    for pair in passed:
        ranking, net = _ranking(weights, word, pair, options)
        measured_on = design.spread(pair.pairs.units, most, rng)
        for number, holdout in enumerate(pair.split.holdouts):
            tested = [
                index for index in measured_on if pair.axes.cell[pair.pairs.a[index]] == number
            ]
            if not tested:
                continue
            train = {pair.split.rows[position] for position in holdout.train}
            learned = [
                index
                for index, (a, b) in enumerate(zip(ranking.a, ranking.b, strict=True))
                if a in train and b in train
            ]
            order = _order(weights, net[learned or slice(None)].mean(0), word.depth)
            groups.append(Ranked(pair.axes, pair.pairs.take(tested), order))
    nets = [pair.effects.net.mean(0) for pair in passed if pair.effects is not None]
    order = _order(weights, np.mean(nets, axis=0), word.depth)
    return measure_curves(
        weights, word.texts, word.states.z, groups, order, word.depth, seed=options.seed
    )


def _ranking(
    weights: Weights, word: WordResult, pair: PairResult, options: StudyOptions
) -> tuple[Pairs, Array]:
    """The pairs that heads are ordered on, and their net effects `pair layer head`.

    Those that are swapped anyway where there are folds; where the file gives its own split, pairs
    of the part that is fitted on.
    """
    assert pair.effects is not None
    if len(pair.split.holdouts) > 1:
        return pair.pairs, pair.effects.net
    learned = _pairs(word, pair.split, options, learned=True)
    if len(learned) == 0:
        return pair.pairs, pair.effects.net
    # Read along the axis that they were fitted on.
    fitted = replace(pair.axes, cell=np.zeros_like(pair.axes.cell))
    measured = effects.measure(weights, word.texts, word.states, fitted, learned, pair.reading)
    return learned, measured.word.net


def _order(weights: Weights, net: Array, depth: int) -> tuple[HeadIndex, ...]:
    """Heads below the read-out, the largest effect first. `layer head`"""
    layers, heads = np.unravel_index(resampling.order(net[:depth].ravel()), net[:depth].shape)
    has_heads = weights.has_heads.tolist()
    return tuple(
        (layer, head)
        for layer, head in zip(layers.tolist(), heads.tolist(), strict=True)
        if has_heads[layer]
    )


@dataclass(frozen=True, eq=False)
class Controls:
    """Held-out AUROC of every head where there is nothing to find, to hold every ranking against.
    `layer head` each

        labels permuted   the senses reassigned to cue words, many times: the band of chance, below
                          one half where held-out folds of a balanced set lean away from the
                          fitted ones
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
    tokens = [word.material.tokens[row] for row in rows]
    next_positions = [word.material.targets[row] + 1 for row in rows]
    if all(after < len(text) for after, text in zip(next_positions, tokens, strict=True)):
        later = target_states(model, tokens, next_positions)
        auroc[LATER] = separation(model, later, range(len(rows)))
    untrained = target_states(random_model, word.material.tokens, word.material.targets)
    auroc[UNTRAINED] = separation(random_model, untrained, rows)
    untrained_p = _untrained_gates(untrained, word, options)
    return Controls(word, pair, auroc, np.quantile(null, BAND, axis=0), untrained_p)


def _untrained_gates(
    untrained: TargetStates, word: WordResult, options: StudyOptions
) -> dict[tuple[str, str], float]:
    """The gate's p in random weights, by pair of senses."""
    p = {}
    for pair in word.pairs:
        resid = untrained.resid[list(pair.split.rows), 1:].double().numpy()
        p[pair.senses] = resampling.gap_test(resid, pair.split, seed=options.seed).p
    return p


def clearest(pairs: Sequence[PairResult]) -> PairResult:
    """The pair of senses whose gap is surest."""
    return min(pairs, key=lambda pair: (pair.gate_p, -float(pair.gate.t.max())))
