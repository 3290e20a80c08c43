"""The measurements on one word: fit on one part of its sentences, order heads on another, measure on the third.

Split the sentences, choose the read-out depth L* by cross-validation on the fit part, freeze the sense axes there, and
measure on the report part only the exact swap of every head at the word. The separation of every head's write is held
out both ways, its direction fitted on one of the two parts and scored on the other. Before anything is swapped the gap
itself must be there (`permutation.gap_p` below `verdicts.GATE`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.stats import false_discovery_control

from probe.model import ledger
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.tokens import Placed, Tokens
from probe.model.trace import target_states
from probe.model.weights import Weights, read_weights
from probe.patching import effects
from probe.patching.effects import Effects, Pairs
from probe.patching.routes import Routes, measure_routes
from probe.patching.sets import Curves, measure_alone, measure_curves
from probe.stats import axes, permutation, resampling
from probe.stats.axes import Axis
from probe.stats.resampling import Array
from probe.stats.separation import Separation, Tests, corrected_tests, measure_separation, sense_sample
from probe.stats.verdicts import GATE
from probe.study.material import Material
from probe.text import splits
from probe.text.sentences import Sentence
from probe.text.splits import FIT, PARTS, REPORT, SELECT, Split

CURVE_PAIRS = 12


@dataclass(frozen=True)
class StudyOptions:
    """What a user may decide about a study: the seed of every random choice, how many pairs, how many permutations."""

    seed: int = 0
    max_pairs: int = 48
    permutations: int = 1000


@dataclass(frozen=True, eq=False)
class PairResult:
    """Everything measured for one pair of senses: `gap: pair`, the rest `layer head`.

    `effects` and what follows it are None where the gap is not there: a ratio over it would be noise over noise, so
    nothing is swapped or ranked.
    """

    axis: Axis
    pairs: Pairs
    gap: Array
    gate_p: float
    separation: Separation
    effects: Effects | None = None
    alone: Array | None = None
    routes: Routes | None = None
    tests: Tests | None = None

    @property
    def senses(self) -> tuple[str, str]:
        return self.axis.sense_a, self.axis.sense_b


@dataclass(frozen=True, eq=False)
class WordResult:
    """One word: material and split, the states of the rows used, the read-out depth, a result per pair of senses."""

    material: Material
    split: Split
    states: TargetStates
    rows: tuple[int, ...]
    depth: int
    by_depth: Array
    causal: bool
    pairs: tuple[PairResult, ...] = ()
    curves: Curves | None = None

    @cached_property
    def sentences(self) -> list[Sentence]:
        """The sentences of `states`, row by row."""
        return [self.material.sentences[row] for row in self.rows]

    @cached_property
    def tokens(self) -> list[Tokens]:
        """Their tokens, row by row."""
        return [self.material.tokens[row] for row in self.rows]

    @cached_property
    def placed(self) -> list[Placed]:
        """Their token ids and where their word is read, row by row.

        Without what comes after the word if the model cannot see it.
        """
        placed = [self.material.placed[row] for row in self.rows]
        return [Placed(ids[: at + 1], at) for ids, at in placed] if self.causal else placed

    @property
    def resid(self) -> torch.Tensor:
        """The read-out. `row d_model`"""
        return self.states.resid[:, self.depth]

    def part(self, name: str, sense: str | None = None) -> list[int]:
        """Positions in `states` of the rows of a part, of one sense where given."""
        parts, labels = self.split.parts, self.material.labels
        return [n for n, row in enumerate(self.rows) if parts[row] == name and sense in (None, labels[row])]

    def rows_of(self, part: str, pair: tuple[str, str]) -> list[int]:
        """The rows of a part that have one of two senses, the first sense first."""
        return [row for sense in pair for row in self.part(part, sense)]


def study_word(model: Model, material: Material, options: StudyOptions) -> WordResult:
    """Fit on the fit part, order heads on the select part, measure on the report part; see the module's docstring."""
    word, weights = observe_word(model, material, options), read_weights(model)
    passed = [pair for pair in word.pairs if pair.gate_p < GATE]
    swapped = _swapped(weights, word, passed, options)
    pairs = tuple(swapped.get(pair.senses, pair) for pair in word.pairs)
    curves = _curves(weights, word, list(swapped.values()), options) if swapped else None
    return replace(word, pairs=pairs, curves=curves)


def observe_word(model: Model, material: Material, options: StudyOptions) -> WordResult:
    """The study of a word without any swap: states, read-out and axes; gate and separation of every pair of senses."""
    split = splits.split(material.sentences, seed=options.seed)
    rows = sorted(row for part in PARTS for row in split.rows(part))
    states = target_states(model, [material.tokens[row] for row in rows], [material.targets[row] for row in rows])
    unread = states.z[..., :0]  # queries, keys and values, 0.1 GB of GPT-2 small that nothing in a study reads
    states = replace(states, q=unread, k=unread, v=unread)
    depth, by_depth = _choose_depth(material, split, rows, states, options.seed)
    word = WordResult(material, split, states, tuple(rows), depth, by_depth, model.config.causal)
    return replace(word, pairs=tuple(_corrected_gate(_gated(read_weights(model), word, options))))


def _choose_depth(
    material: Material, split: Split, rows: Sequence[int], states: TargetStates, seed: int
) -> tuple[int, Array]:
    """L*, chosen on the fit part alone (`axes.choose_depth`), and the AUROC of every depth."""
    fit = [index for index, row in enumerate(rows) if split.parts[row] == FIT]
    groups = splits.cue_units([material.sentences[rows[index]] for index in fit])
    labels = [material.labels[rows[index]] for index in fit]
    return axes.choose_depth(states.resid[fit], labels, groups, seed=seed)


def _gated(weights: Weights, word: WordResult, options: StudyOptions) -> list[PairResult]:
    """Axis, gate and held-out separation of every pair of senses."""
    writes = ledger.write_coordinates(word.states.z, weights)
    results = []
    for pair in axes.sense_pairs([sentence.sense for sentence in word.sentences]):
        fit_a, fit_b = (word.resid[word.part(FIT, sense)] for sense in pair)
        axis = axes.fit_axis(fit_a, fit_b, pair, word.depth)
        chosen = effects.make_pairs(word.sentences, word.part(REPORT), pair, most=options.max_pairs, seed=options.seed)
        gate = permutation.gap_p(_sample(word, FIT, pair), _sample(word, REPORT, pair), seed=options.seed)
        separation = measure_separation(
            writes,
            word.sentences,
            (word.rows_of(FIT, pair), word.rows_of(REPORT, pair)),
            permutations=options.permutations,
            seed=options.seed,
        )
        results.append(PairResult(axis, chosen, effects.gaps(axis, word.resid, chosen), gate, separation))
    return results


def _corrected_gate(pairs: list[PairResult]) -> list[PairResult]:
    """The gate's p of every pair of senses, adjusted for how many pairs the word has (Benjamini-Hochberg).

    Otherwise one of many pairs of senses would pass by chance, and its heads would be ranked.
    """
    adjusted = false_discovery_control([pair.gate_p for pair in pairs])
    return [replace(pair, gate_p=float(p)) for pair, p in zip(pairs, adjusted, strict=True)]


def _sample(word: WordResult, part: str, pair: tuple[str, str]) -> permutation.Sample:
    rows = word.rows_of(part, pair)
    return sense_sample(word.resid[rows], [word.sentences[row] for row in rows])


def _swapped(
    weights: Weights, word: WordResult, passed: Sequence[PairResult], options: StudyOptions
) -> dict[tuple[str, str], PairResult]:
    """Effects, routes and corrected tests of the pairs of senses whose gap is there; one family of tests per word."""
    studies = [(pair.axis, pair.pairs) for pair in passed]
    measured = effects.measure(weights, word.placed, word.states, studies)
    mean_z = word.states.z[word.part(FIT)].mean(0)
    routes = [
        measure_routes(weights, word.placed, mean_z, pair.gap, study)
        for pair, study in zip(passed, studies, strict=True)
    ]
    if not passed:
        return {}
    alone = [measure_alone(weights, word.placed, word.states.z, study) for study in studies]
    family = corrected_tests(
        [pair.separation for pair in passed],
        [(effect.net, by_pair) for effect, by_pair in zip(measured, alone, strict=True)],
        [pair.pairs.cues for pair in passed],
        permutations=options.permutations,
        seed=options.seed,
    )
    return {
        pair.senses: replace(pair, effects=effect, alone=by_pair.mean(0), routes=route, tests=tests)
        for pair, effect, by_pair, route, tests in zip(passed, measured, alone, routes, family, strict=True)
    }


def _curves(weights: Weights, word: WordResult, passed: Sequence[PairResult], options: StudyOptions) -> Curves:
    """Faithfulness on report pairs, heads ordered by their effect on the select part (on fit where it is small)."""
    most = max(2, CURVE_PAIRS // len(passed))

    def chosen(part: str, most: int) -> list[tuple[Axis, Pairs]]:
        rows = [_enough(word, part, pair) for pair in passed]
        return [
            (pair.axis, effects.make_pairs(word.sentences, mine, pair.senses, most=most, seed=options.seed))
            for pair, mine in zip(passed, rows, strict=True)
        ]

    ranking = effects.measure(weights, word.placed, word.states, chosen(SELECT, options.max_pairs))
    mean = np.mean([effect.net.mean(0) for effect in ranking], axis=0)[: word.depth]
    layers, heads = np.unravel_index(resampling.order(mean.ravel()), mean.shape)
    order = list(zip(layers.tolist(), heads.tolist(), strict=True))
    return measure_curves(weights, word.placed, word.states.z, chosen(REPORT, most), order, seed=options.seed)


def _enough(word: WordResult, part: str, pair: PairResult) -> list[int]:
    """The rows of a part, or of fit where the part holds fewer than two sentences of a sense."""
    small = min(len(word.part(part, sense)) for sense in pair.senses) < 2
    return word.part(FIT if small else part)
