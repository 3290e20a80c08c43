"""The axis between two meanings of a word, and how far each head moves the word along it.

The axis of a lexicon word is fitted on the sentences that a study uses, at the depth where the
study reads them. The axis of two sentences is the line between the word's vectors in them after the
last layer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import InputError
from probe.experiments.material import prepare_counted, sentences_of
from probe.experiments.observe import Observation, observe
from probe.model import decomposition
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.model.weights import weights_of
from probe.patching.heads import swap_heads
from probe.stats.axes import Axis, fit_axis, nearest_sense
from probe.text import lexicon
from probe.text.spans import WORD, find_word, fold
from probe.walks.choose import FUNCTION_WORDS, content_words, lexicon_entry
from probe.walks.scene import SAME_VECTOR, AttentionView, WordInText

LEXICON_SEED = 0  # decides how the lexicon's sentences are held out, as in a study
# Names of the ends of two sentences' axis where no word distinguishes the sentences.
SENTENCE_SENSES = ("this sentence", "that sentence")


@dataclass(frozen=True, eq=False)
class AxisAtDepth:
    """The axis between two meanings of a word at one depth, and the average contribution of each
    component.

    axis: sense_a is the meaning that the word is nearest to
    average: `d_model` for each component, halfway between the meanings
        (`probe.model.decomposition.average`)
    """

    axis: Axis
    average: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class SenseAxis:
    """The axes between two meanings of a word.

    read_out: at the read-out layer, for the heads before it
    last: after the last layer, for the heads after the read-out layer, as in a study
    z: `layer head d_head`, of every head at the word, halfway between the meanings
    n_sentences: the number of sentences on which it is fitted
    """

    read_out: AxisAtDepth
    last: AxisAtDepth
    z: Tensor
    n_sentences: int

    @property
    def axis(self) -> Axis:
        """The axis at the read-out layer."""
        return self.read_out.axis

    def of_layers(self, layers: Iterable[int]) -> AxisAtDepth:
        """The reading of heads of these layers: `read_out` if all of them are before the
        read-out layer, otherwise `last`.
        """
        return self.read_out if all(layer < self.axis.depth for layer in layers) else self.last


def sense_effects(
    model: Model, view: AttentionView, word: WordInText
) -> tuple[SenseAxis, Tensor] | None:
    """The axis of the word's senses, and how far each head's write from other content words moves
    the word toward its sense: Σ_j <A[t, j] (V[j] W_O - mean ΔE), u> / gap over these words j, as in
    a study's decomposition. `layer head`

    Heads after the read-out layer have 0. None if the lexicon does not have the word, or if the
    model can read too few of its sentences.
    """
    entry = lexicon_entry(word.text)
    observation = None if entry is None else lexicon_states(model, entry)
    if observation is None:
        return None
    sense_axis = lexicon_axis(model, observation, view, word)
    is_source = (view.other_words(word) & content_words(view.source))[word.at]
    effects = torch.zeros(view.weights.shape[:2], dtype=torch.float64)
    for term in decomposition.decompose_resid(
        view.stream,
        sense_axis.axis.depth,
        at=word.at,
        axis=sense_axis.axis,
        average=sense_axis.read_out.average,
    ):
        # The other terms belong to MLPs, embeddings and biases, and have no source token.
        if term.layer is None or term.head is None or term.pos is None:
            continue
        if is_source[term.pos]:
            effects[term.layer, term.head] += term.contribution or 0.0
    return sense_axis, effects


def lexicon_states(model: Model, entry: str) -> Observation | None:
    """The states of a lexicon word's sentences, as a study reads them, and its read-out layer;
    None if the model can read too few sentences.
    """
    corpus = sentences_of(entry, None, model)
    material = prepare_counted(model, entry, corpus.sentences)
    if len(set(material.labels)) < 2:
        return None
    try:
        return observe(model, material, seed=LEXICON_SEED, next_token=False)
    except InputError:
        # There are too few to hold some out.
        return None


def lexicon_axis(
    model: Model,
    observation: Observation,
    view: AttentionView,
    word: WordInText,
    second: Tensor | None = None,
) -> SenseAxis:
    """The axis of the word's senses in the lexicon at the study's read-out layer, from the sense
    that the word is nearest to.

    second: `depth d_model`, the word's stream in a second sentence

    The second sense is the nearest one in the second sentence if that differs, otherwise the next
    nearest. The walked sentence itself is never used for fitting.
    """
    depth = observation.depth
    rows = [
        row
        for row, sentence in enumerate(observation.material.sentences)
        if sentence.text != word.tokens.text
    ]
    labels = [observation.material.labels[row] for row in rows]
    at_depth = observation.resid[rows]
    vector = view.stream.resid_post[depth - 1, word.at][None]
    (sense,) = nearest_sense(at_depth, labels, vector)
    second_sense = sense
    if second is not None:
        (second_sense,) = nearest_sense(at_depth, labels, second[depth][None])
    # An axis needs two senses: the next nearest replaces the one that both sentences share.
    if second_sense == sense:
        is_other = [label != sense for label in labels]
        other_labels = [label for label in labels if label != sense]
        (second_sense,) = nearest_sense(at_depth[is_other], other_labels, vector)

    rows_by_sense = [
        [row for row, label in zip(rows, labels, strict=True) if label == name]
        for name in (sense, second_sense)
    ]
    return _axis_between(model, observation.states, rows_by_sense, (sense, second_sense), depth)


def sentence_axis(model: Model, word: WordInText, second: WordInText) -> SenseAxis:
    """The axis between the word's vectors in two sentences after the last layer: M is +1/2 in
    the first and -1/2 in the second.
    """
    states = target_states(model, [word.tokens, second.tokens], [word.at, second.at])
    n_layers = len(weights_of(model).blocks)
    names = cue_names(word, second, causal=model.config.causal)
    return _axis_between(model, states, [[0], [1]], names, n_layers)


def cue_names(word: WordInText, second: WordInText, *, causal: bool) -> tuple[str, str]:
    """The word that tells the meaning in each of two sentences, to name the ends of their axis;
    SENTENCE_SENSES if a sentence has none, or both have the same.
    """
    here = _cue(word, second.tokens.text, causal=causal)
    there = _cue(second, word.tokens.text, causal=causal)
    if here is None or there is None or fold(here) == fold(there):
        return SENTENCE_SENSES
    return here, there


def _cue(word: WordInText, other_text: str, *, causal: bool) -> str | None:
    """The content word that only this sentence has: a cue of the lexicon, otherwise the one that is
    nearest before the word, otherwise the first one after it; None without such a word.
    """
    text = word.tokens.text
    start, end = find_word(text, word.text)
    in_other = {fold(match.group()) for match in WORD.finditer(other_text)}
    candidates = [
        match
        for match in WORD.finditer(text)
        if fold(match.group()) not in in_other | FUNCTION_WORDS | {fold(word.text)}
    ]
    before = [match.group() for match in candidates if match.end() <= start]
    after = [match.group() for match in candidates if match.start() >= end and not causal]
    by_distance = [*reversed(before), *after]
    lexicon_cues = _lexicon_cues(word.text)
    # sorted is stable, so equal words keep the order of their distance.
    ranked = sorted(by_distance, key=lambda cue: fold(cue) not in lexicon_cues)
    return ranked[0] if ranked else None


def _lexicon_cues(text: str) -> set[str]:
    """The cues of a word of the lexicon, in lower case."""
    name = lexicon_entry(text)
    if name is None or name not in lexicon.words():
        return set()
    return {fold(cue) for sense in lexicon.entry(name).senses for cue in sense.cues}


def has_length(axis: Axis) -> bool:
    """Whether the ends of an axis are two different vectors; equal vectors differ by rounding at
    most.
    """
    # Relative to the vectors' length, because rounding errors grow with it.
    distance = float(axis.gap * axis.u.norm())  # u is 0 without a gap
    return distance > SAME_VECTOR * float(axis.midpoint.norm())


def _axis_between(
    model: Model,
    states: TargetStates,
    rows_by_sense: list[list[int]],
    names: tuple[str, str],
    depth: int,
) -> SenseAxis:
    first, second = rows_by_sense
    weights = weights_of(model)

    def reading(depth: int) -> AxisAtDepth:
        at_depth = states.resid[:, depth]
        return AxisAtDepth(
            axis=fit_axis(at_depth[first], at_depth[second], names, depth),
            average=decomposition.average(weights, states, first, second, depth=depth),
        )

    read_out = reading(depth)
    n_layers = len(weights.blocks)
    return SenseAxis(
        read_out=read_out,
        last=read_out if depth == n_layers else reading(n_layers),
        # The mean of the two means, so a sense with more sentences does not count more.
        z=(states.z[first].mean(0) + states.z[second].mean(0)) / 2,
        n_sentences=len(first) + len(second),
    )


def swap_effects(model: Model, word: WordInText, donor_z: Tensor, sense_axis: SenseAxis) -> Tensor:
    """How far each head moves the word from the axis's first meaning to its second, as a
    fraction of the gap, if it alone gets the donor's z at the word.

    `layer head`

    donor_z: `layer head d_head`

    Every swap is performed. Positive is toward the second meaning, the donor's, as in a study's
    swaps. As there, heads after the read-out layer are read after the last layer.
    """
    weights = weights_of(model)
    rows = [TargetText(word.tokens.ids, word.at)]
    n_layers = len(weights.blocks)
    axes = [sense_axis.of_layers([layer]).axis for layer in range(n_layers)]
    # Stage d - 1 is after block d - 1, where depth d is.
    directions = torch.zeros(1, n_layers, weights.shape[2], dtype=weights.dtype)
    for axis in axes:
        directions[0, axis.depth - 1] = (-axis.u / axis.gap).to(weights.dtype)
    shifts = swap_heads(weights, rows, donor_z[None], directions)[0]
    return torch.stack([shifts[layer, :, axis.depth - 1] for layer, axis in enumerate(axes)])


def swaps_between(model: Model, word: WordInText, second: WordInText) -> Tensor:
    """`swap_effects` of the second sentence's z, between the word's vectors of both sentences
    after the last layer.

    `layer head`

    0 if the two vectors are equal.
    """
    between = sentence_axis(model, word, second)
    if not has_length(between.axis):
        return torch.zeros(weights_of(model).shape[:2])
    donor = target_states(model, [second.tokens], [second.at])
    return swap_effects(model, word, donor.z[0], between)
