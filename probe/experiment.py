"""The measurements on one word: fit on one part of its sentences, measure on the other.

Split the sentences, choose the read-out depth L* by cross-validation on the fit part, freeze the sense axes there, and
measure on the report part only: the held-out separation of every head's write and the exact swap of every head at the word.
Before anything is ranked the gap itself must be there (`statistics.gap_p`, p < .01).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from probe import effects, senses, statistics
from probe.effects import Effects, Pairs
from probe.material import Material
from probe.models import Model
from probe.replay import read_weights
from probe.senses import Axis
from probe.statistics import Array, Split
from probe.trace import TargetStates, target_states

GATE = 0.01


@dataclass(frozen=True, eq=False)
class PairResult:
    """Everything measured for one pair of senses: `gap: pair`, `auroc hedges_g: layer head`.

    `effects` is None where the gap is not there: a ratio over it would be noise over noise, so nothing is swapped or ranked.
    """

    axis: Axis
    pairs: Pairs
    gap: Array
    gate_p: float
    auroc: Array
    hedges_g: Array
    effects: Effects | None = None


@dataclass(frozen=True, eq=False)
class WordResult:
    """One word: its material and split, the states of the rows used, the read-out depth, a result per pair of senses."""

    material: Material
    split: Split
    states: TargetStates
    rows: tuple[int, ...]
    depth: int
    separation: Array
    pairs: tuple[PairResult, ...]

    def part(self, name: str, sense: str | None = None) -> list[int]:
        """Positions in `states` of the rows of a part, of one sense where given."""
        return [
            index
            for index, row in enumerate(self.rows)
            if self.split.parts[row] == name and sense in (None, self.material.labels[row])
        ]


def study_word(model: Model, material: Material, *, seed: int, max_pairs: int) -> WordResult:
    """Fit on the fit part, measure on the report part; see the module's docstring."""
    split = statistics.split(material.sentences, seed=seed)
    rows = sorted(split.rows("fit") + split.rows("report"))
    states = target_states(model, [material.tokens[row] for row in rows], [material.targets[row] for row in rows])
    depth, separation = _choose_depth(material, split, rows, states, seed)
    bare = WordResult(material, split, states, tuple(rows), depth, separation, ())
    return replace(bare, pairs=tuple(_study_pairs(model, bare, seed=seed, max_pairs=max_pairs)))


def _choose_depth(
    material: Material, split: Split, rows: Sequence[int], states: TargetStates, seed: int
) -> tuple[int, Array]:
    """L*: the depth after at least one block whose senses separate best in cross-validation on the fit part."""
    fit = [index for index, row in enumerate(rows) if split.parts[row] == "fit"]
    groups = statistics.cue_units([material.sentences[rows[index]] for index in fit])
    labels = [material.labels[rows[index]] for index in fit]
    separation = senses.separation_by_depth(states.resid[fit], labels, groups, seed=seed)
    return int(np.argmax(separation[1:])) + 1, separation


def _study_pairs(model: Model, word: WordResult, *, seed: int, max_pairs: int) -> list[PairResult]:
    """Axes, gate and held-out separation of every pair of senses; the heads are swapped only where the gap is there."""
    weights, states = read_weights(model), word.states
    resid, writes = states.resid[:, word.depth], senses.write_coordinates(states.z, weights)
    labels = [word.material.labels[row] for row in word.rows]
    sentences = [word.material.sentences[row] for row in word.rows]
    found = []
    for pair in senses.sense_pairs(labels):
        fit_a, fit_b = (resid[word.part("fit", sense)] for sense in pair)
        axis = senses.fit_axis(fit_a, fit_b, pair, word.depth)
        chosen = effects.make_pairs(sentences, word.part("report"), pair, most=max_pairs, seed=seed)
        a, b = (own_scores(word, writes, axis, sense) for sense in pair)
        separation = statistics.auroc(a, b), statistics.hedges_g(a, b)
        gate = _gap_p(word, axis, seed=seed)
        found.append(PairResult(axis, chosen, effects.gaps(axis, resid, chosen), gate, *separation))
    passed = [pair for pair in found if pair.gate_p < GATE]
    ids = [word.material.tokens[row].ids[: word.material.targets[row] + 1] for row in word.rows]
    measured = effects.measure(weights, ids, resid, states.z, [(pair.axis, pair.pairs) for pair in passed])
    swapped = {pair.axis: replace(pair, effects=effect) for pair, effect in zip(passed, measured, strict=True)}
    return [swapped.get(pair.axis, pair) for pair in found]


def _gap_p(word: WordResult, axis: Axis, *, seed: int) -> float:
    """The gate of one pair of senses, over the cue words (or the sentences where no cues are known)."""
    samples = []
    for part in statistics.PARTS:
        rows = word.part(part, axis.sense_a) + word.part(part, axis.sense_b)
        sentences = [word.material.sentences[word.rows[row]] for row in rows]
        resid = word.states.resid[rows, word.depth].double().numpy()
        is_a = [sentence.sense == axis.sense_a for sentence in sentences]
        samples.append(statistics.Sample(resid, is_a, statistics.cue_units(sentences)))
    return statistics.gap_p(samples[0], samples[1], seed=seed)


def own_scores(word: WordResult, writes: torch.Tensor, axis: Axis, sense: str) -> Array:
    """Report sentences of one sense scored along every head's own direction, fitted on fit. `-> sentence layer head`"""
    fit_a, fit_b = (writes[:, :, word.part("fit", name)] for name in (axis.sense_a, axis.sense_b))
    scores = senses.own_direction_scores(fit_a, fit_b, writes[:, :, word.part("report", sense)])
    return np.asarray(scores.permute(2, 0, 1).numpy())
