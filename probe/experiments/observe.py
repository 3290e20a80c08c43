"""A word before any change: its states, its sense axes, and its read-out layer.

Axes are fitted at every depth, on sentences that share neither cue word nor frame with the
sentences to which they are applied. The read-out layer L* of a word is the first depth that
separates its senses as well as the best depth (`probe.stats.axes.choose_depth`). It is chosen from
held-out separations, never from an effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from probe.errors import InputError
from probe.experiments.material import Material, SensePairSplits, continuations
from probe.model import forward
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.model.weights import Weights, weights_of
from probe.stats import axes, resampling
from probe.stats.axes import Axis, DepthSeparation, HeldOutAxes
from probe.stats.limits import LEVEL
from probe.stats.resampling import Array
from probe.text.splits import DRAWN, CrossFit, cross_fit


@dataclass(frozen=True, eq=False)
class SenseAxes:
    """Two senses of a word: how their sentences are held out, and the axes between them.

    senses: the names of the two senses, in the order of their first sentences
    split: the sentences that are fitted on and the sentences that are tested
    axes: the sense axes, by holdout, at every stage
    separation: the held-out separation at every depth
    """

    senses: tuple[str, str]
    split: CrossFit
    axes: HeldOutAxes
    separation: DepthSeparation


@dataclass(frozen=True, eq=False)
class Observation:
    """The unchanged runs of a word's sentences, row by row as in `material`.

    states: the states at the word
    stages: the vectors on which axes are fitted
    pairs: all pairs of senses
    depth: the read-out layer L*
    causal: whether the model reads left to right only
    """

    material: Material
    states: TargetStates
    stages: "Stages"
    pairs: tuple[SenseAxes, ...]
    depth: int
    causal: bool

    @cached_property
    def texts(self) -> list[TargetText]:
        """The token ids of every sentence and the position of its word; in a causal model, without
        the tokens after the word.
        """
        if not self.causal:
            return list(self.material.texts)
        # Later tokens cannot change the word, and runs without them cost less.
        return [TargetText(ids[: at + 1], at) for ids, at in self.material.texts]

    @property
    def resid(self) -> torch.Tensor:
        """The residual stream at the read-out layer. `row d_model`"""
        return self.states.resid[:, self.depth]

    def axis_for_others(self, pair: SenseAxes, depth: int | None = None) -> Axis:
        """The axis fitted on all sentences of two senses, for sentences outside the study.

        depth: where it is fitted; the read-out layer by default
        """
        depth = self.depth if depth is None else depth
        resid = self.states.resid[:, depth]
        rows = pair.split.rows
        of_a = [row for row, is_a in zip(rows, pair.split.is_a, strict=True) if is_a]
        of_b = [row for row, is_a in zip(rows, pair.split.is_a, strict=True) if not is_a]
        return axes.fit_axis(resid[of_a], resid[of_b], pair.senses, depth)


@dataclass(frozen=True, eq=False)
class Stages:
    """The vectors on which sense axes are fitted: the residual stream at every depth, and after the
    final norm, where the next token is read.

    vectors: `row stage d_model`; stage d is depth d
    root: the root of the metric of the next token's logits, `d_model d_model`; None for a model
        that predicts no tokens
    toward: by pair of senses, the mean logits of the first sense's continuations minus the mean
        logits of the second's, `d_model`; empty if the lexicon has no continuations
    """

    vectors: torch.Tensor
    root: torch.Tensor | None = None
    toward: Mapping[tuple[str, str], torch.Tensor] = field(default_factory=dict)


def observe(
    model: Model,
    material: Material,
    splits: SensePairSplits | None = None,
    *,
    seed: int,
    next_token: bool = True,
    later_token: bool = False,
) -> Observation:
    """A word after one run of each of its sentences, with its sense axes.

    splits: how the sentences of each pair of senses are held out, if this is already decided
    next_token: whether axes are also fitted on the model's prediction after the word
    later_token: whether z is also read at the token after the word

    Raises InputError if the sentences of two senses cannot be held out.
    """
    causal = model.config.causal
    if splits is None:
        splits = split_senses(material, seed=seed, causal=causal)
    states = read_states(model, material, later_token=later_token)
    stages = _stages(model, material, states) if next_token else Stages(states.resid)
    pairs = tuple(_sense_axes(states, stages, senses, split) for senses, split in splits.items())
    depth = axes.choose_depth([pair.separation for pair in pairs])
    return Observation(material, states, stages, pairs, depth, causal)


def read_states(model: Model, material: Material, *, later_token: bool) -> TargetStates:
    """The states at the word of every sentence, and the residual stream before the word, from which
    the word can be predicted.

    later_token: whether z is also read at the token after the word, or at the word where a sentence
        ends with it

    Queries, keys and values are dropped: they would take 0.1 GB for GPT-2 small, and no experiment
    reads them.
    """
    before = None
    if predicts(weights_of(model)):
        # A text that begins with the word is read at position 0; its surprisal is not used.
        before = [max(0, word.start - 1) for word in material.words]
    later = None
    if later_token:
        later = [
            min(target + 1, len(text) - 1)
            for text, target in zip(material.tokens, material.targets, strict=True)
        ]
    states = target_states(model, material.tokens, material.targets, before=before, later=later)
    # Empty, but with the axes of sentences, layers and heads.
    unread = states.z[..., :0]
    return replace(states, q=unread, k=unread, v=unread)


def _stages(model: Model, material: Material, states: TargetStates) -> Stages:
    """The vectors on which axes are fitted, with one stage for the next token and one for
    continuations, if the model and the lexicon have them.
    """
    weights = weights_of(model)
    if not predicts(weights):
        return Stages(states.resid)
    unembedding = forward.unembedding(weights, weights.dtype)
    root = axes.next_token_root(unembedding)
    token_ids = continuations(model, material.word, material.labels)
    if token_ids is None:
        return Stages(_with_next_token(weights, states, 1), root)
    # The W_U of a token is the direction of its logit. The mean over the continuations of one sense
    # minus the mean over the other sense is the direction of the mean logit difference.
    logits = {sense: unembedding[ids].double().mean(0).cpu() for sense, ids in token_ids.items()}
    toward = {(a, b): logits[a] - logits[b] for a, b in axes.sense_pairs(material.labels)}
    return Stages(_with_next_token(weights, states, 2), root, toward)


def predicts(weights: Weights) -> bool:
    """Whether the model predicts the next token: it reads left to right and has an unembedding."""
    return weights.causal and weights.config.has_lm_head


def _with_next_token(weights: Weights, states: TargetStates, copies: int) -> torch.Tensor:
    """The residual stream at every depth, then copies of the stream after the final norm, one for
    each axis along which it is read.

    Shape: -> row stage d_model
    """
    final = forward.unembedding_input(weights, states.resid[:, -1].to(weights.device)).cpu()
    return torch.cat([states.resid, final[:, None].expand(-1, copies, -1)], dim=1)


def _sense_axes(
    states: TargetStates, stages: Stages, senses: tuple[str, str], split: CrossFit
) -> SenseAxes:
    """The held-out axes of two senses, and how well they separate the senses."""
    held_out = axes.hold_out(stages.vectors, split, senses, stages.root, stages.toward.get(senses))
    return SenseAxes(
        senses=senses,
        split=split,
        axes=held_out,
        separation=axes.separation_by_holdout(held_out, states.resid, split),
    )


def split_senses(material: Material, *, seed: int, causal: bool) -> SensePairSplits:
    """How the sentences of each pair of senses of a word are held out.

    If a property without meaning separates two senses (`nuisances`) and their sentences are not
    paired, a sentence is used only if the other sense has a sentence with the word at the same
    position, provided that at least half of the sentences remain.
    """
    return {
        senses: _split(material, senses, seed, causal=causal)
        for senses in axes.sense_pairs(material.labels)
    }


def _split(material: Material, senses: tuple[str, str], seed: int, *, causal: bool) -> CrossFit:
    """How the sentences of two senses are held out; see `split_senses`."""
    split = cross_fit(material.sentences, senses, seed=seed)
    if split.pair_design != DRAWN or nuisance_p(material, split, seed=seed, causal=causal) >= LEVEL:
        return split
    try:
        alike = cross_fit(material.sentences, senses, seed=seed, positions=material.targets)
    except InputError:
        return split
    # min(n_a, n_b) is half of the sentences if the senses are balanced.
    half = min(material.labels.count(sense) for sense in senses)
    return split if len(alike.rows) < half else alike


def nuisance_p(material: Material, split: CrossFit, *, seed: int, causal: bool) -> float:
    """p that the senses differ in one of the nuisances."""
    values = nuisances(material, split.rows, causal=causal)
    return resampling.difference_p(values, split.is_a, split.exchanged, seed=seed)


def nuisances(material: Material, rows: Sequence[int], *, causal: bool) -> Array:
    """Numbers of some sentences that have no meaning and must not separate two senses. `row number`

    They are the position of the word; the length of the text, if the model reads what follows the
    word; and, if every sentence marks its cue, the position of the cue and its distance from the
    word.
    """
    numbers = [[material.targets[row] for row in rows]]
    if not causal:
        numbers.append([len(material.tokens[row]) for row in rows])
    cues = [material.cues[row] for row in rows]
    marked = [cue for cue in cues if cue is not None]
    if len(marked) == len(cues):
        numbers.append([cue[-1] for cue in marked])
        numbers.append(
            [material.words[row].start - cue[-1] for row, cue in zip(rows, marked, strict=True)]
        )
    return np.array(numbers, dtype=float).T


def clearest(gates: Sequence[Mapping[str, float]]) -> int:
    """The number of the pair of senses with the surest gap. The statistic of the test decides
    between equal p.

    gates: of each pair (`probe.experiments.prepare.GATES`)
    """
    return min(range(len(gates)), key=lambda n: (gates[n]["gap_p"], -gates[n]["largest_t"]))
