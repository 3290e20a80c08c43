"""What the lexicon knows of a word that is followed: its senses, as an axis to choose a head by, and its late cues.

The axis is fitted on a few of the lexicon's sentences, at the read-out depth that a study would choose. It says where
to look first, with no test behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model import ledger
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.pages.walk.scene import Place, Seen
from probe.stats.axes import Axis, choose_depth, fit_axis, nearest_sense, separation_by_depth
from probe.study.material import prepare_usable
from probe.text import lexicon
from probe.text.sentences import Sentence, forms_of

PER_SENSE = 16  # sentences that an axis is fitted on, one batch for all senses


@dataclass(frozen=True, eq=False)
class SenseAxis:
    """The axis between two meanings of a word, and what each component adds halfway between them.

    `axis`: sense_a is the meaning that the word is nearest to · `average`: by component, `d_model` each
    (`probe.model.ledger.average`) · `z: layer head d_head`, of every head at the word, halfway · `fitted`: on how many
    sentences.
    """

    axis: Axis
    average: Mapping[str, Tensor]
    z: Tensor
    fitted: int


@dataclass(frozen=True, eq=False)
class Toward:
    """What each head writes towards the sense that the word is nearest to, from `other`, the next nearest.

    `moved: layer head`, in fractions of the gap between the two, of what is taken from chosen tokens: Σ_j <A[t, j]
    (V[j] W_O - mean ΔE), u> / gap, as in a study's ledger. `fitted`: on how many sentences of the lexicon.
    """

    sense: str
    other: str
    fitted: int
    moved: Tensor


def ambiguous(text: str) -> list[tuple[int, int, str]]:
    """Where words of the lexicon stand in the text, in any of the forms that are found, in reading order."""
    known = dict.fromkeys((*lexicon.words(), *lexicon.natural_words()))
    return sorted((*place, word) for word in known for place in forms_of(word, text))


def toward(model: Model, seen: Seen, here: Place, sources: Tensor) -> Toward | None:
    """How far each head moves the word towards its sense by what it takes from `sources: key_pos`.

    None where the lexicon does not have the word, or the model cannot read its sentences.
    """
    known = axis_of(model, seen, here)
    if known is None:
        return None
    moved = torch.zeros(seen.weights.shape[:2], dtype=torch.float64)
    for entry in ledger.ledger(seen.stream, known.axis.depth, at=here.at, axis=known.axis, average=known.average):
        if entry.layer is not None and entry.head is not None and entry.pos is not None and sources[entry.pos]:
            moved[entry.layer, entry.head] += entry.contribution or 0.0
    return Toward(known.axis.sense_a, known.axis.sense_b, known.fitted, moved)


def axis_of(model: Model, seen: Seen, here: Place, other: Tensor | None = None) -> SenseAxis | None:
    """The axis of the word's senses in the lexicon, from the sense that the word is nearest to, at the read-out depth.

    The second sense is that of the word's stream in another sentence, `other: depth d_model`, where it is given and
    another one; else the next nearest. None where the lexicon does not have the word, or the model cannot read its
    sentences.
    """
    words = [word for *_, word in ambiguous(here.word)]
    material, _ = prepare_usable(model, words[0], _few(words[0], seen, here)) if words else (None, {})
    if material is None or len(set(material.labels)) < 2:
        return None
    states, labels = target_states(model, material.tokens, material.targets), material.labels
    groups = [sentence.cue_word or sentence.text for sentence in material.sentences]
    depth = choose_depth(separation_by_depth(states.resid, labels, groups, seed=0))
    at_depth, vector = states.resid[:, depth], seen.stream.resid_post[depth - 1, here.at][None]
    (sense,) = nearest_sense(at_depth, labels, vector)
    (there,) = (sense,) if other is None else nearest_sense(at_depth, labels, other[depth][None])
    rest = [row for row, label in enumerate(labels) if label != sense]
    (second,) = nearest_sense(at_depth[rest], [labels[row] for row in rest], vector) if there == sense else (there,)
    both = [[row for row, label in enumerate(labels) if label == name] for name in (sense, second)]
    return _between(model, states, both, (sense, second), depth, fitted=len(material))


def axis_between(model: Model, here: Place, there: Place, names: tuple[str, str], depth: int) -> SenseAxis:
    """The axis from the word in one sentence to the word in another at a depth: M is +1/2 here and -1/2 there."""
    states = target_states(model, [here.tokens, there.tokens], [here.at, there.at])
    return _between(model, states, [[0], [1]], names, depth, fitted=2)


def _between(
    model: Model, states: TargetStates, both: list[list[int]], names: tuple[str, str], depth: int, *, fitted: int
) -> SenseAxis:
    at_depth = states.resid[:, depth]
    axis = fit_axis(at_depth[both[0]], at_depth[both[1]], names, depth)
    average = ledger.average(read_weights(model), states, *both, depth=depth)
    z = (states.z[both[0]].mean(0) + states.z[both[1]].mean(0)) / 2
    return SenseAxis(axis, average, z, fitted)


def _few(word: str, seen: Seen, here: Place) -> Sequence[Sentence]:
    """Up to PER_SENSE sentences of each sense, spread over the lexicon's frames and cues; never the one that is walked.

    Those of a study; natural ones of a word that has no others.
    """
    expand = lexicon.expand if word in lexicon.words() else lexicon.expand_natural
    known = [row for row in expand(word, both_sides=not seen.causal).sentences if row.text != here.tokens.text]
    by_sense = [[row for row in known if row.sense == sense] for sense in dict.fromkeys(row.sense for row in known)]
    return [row for rows in by_sense for row in rows[:: -(-len(rows) // PER_SENSE)]]


def late_cue(here: Place) -> str | None:
    """What tells the sense of the word in a sentence that ships, where it comes after the word; None elsewhere."""
    behind = [(row.text, row.cue) for row in lexicon.showcase() if row.cue_after]
    for word in {word for *_, word in ambiguous(here.word)}:
        shipped = [
            *(lexicon.expand(word, both_sides=True).sentences if word in lexicon.words() else ()),
            *(lexicon.expand_natural(word, both_sides=True).sentences if word in lexicon.natural_words() else ()),
        ]
        behind += [(row.text, row.cue) for row in shipped if row.cue_follows]
    return dict(behind).get(here.tokens.text)
