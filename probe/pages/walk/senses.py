"""What the lexicon knows of a word that is followed: its senses, as an axis to choose a head by, and its late cues.

The axis is fitted on a few of the lexicon's sentences, at the read-out depth that a study would choose. It says where
to look first, with no test behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model import ledger
from probe.model.model import Model
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.pages.walk.scene import Place, Seen
from probe.stats.axes import choose_depth, fit_axis, nearest_sense, separation_by_depth
from probe.study.material import prepare_usable
from probe.text import lexicon
from probe.text.sentences import Sentence, forms_of

PER_SENSE = 16  # sentences that an axis is fitted on, one batch for all senses


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
    known = [word for *_, word in ambiguous(here.word)]
    material, _ = prepare_usable(model, known[0], _few(known[0], seen, here)) if known else (None, {})
    if material is None or len(set(material.labels)) < 2:
        return None
    states, trace = target_states(model, material.tokens, material.targets), seen.stream
    groups = [sentence.cue_word or sentence.text for sentence in material.sentences]
    depth = choose_depth(separation_by_depth(states.resid, material.labels, groups, seed=0))
    vector, at_depth = trace.resid_post[depth - 1, here.at][None], states.resid[:, depth]
    (sense,) = nearest_sense(at_depth, material.labels, vector)
    rest = [row for row, label in enumerate(material.labels) if label != sense]
    (other,) = nearest_sense(at_depth[rest], [material.labels[row] for row in rest], vector)
    both = [[row for row, label in enumerate(material.labels) if label == name] for name in (sense, other)]
    axis = fit_axis(at_depth[both[0]], at_depth[both[1]], (sense, other), depth)
    average = ledger.average(read_weights(model), states, *both, depth=depth)
    moved = torch.zeros(seen.weights.shape[:2], dtype=torch.float64)
    for entry in ledger.ledger(trace, depth, at=here.at, axis=axis, average=average):
        if entry.layer is not None and entry.head is not None and entry.pos is not None and sources[entry.pos]:
            moved[entry.layer, entry.head] += entry.contribution or 0.0
    return Toward(sense, other, len(material), moved)


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
