"""What do the top heads read in single sentences?

Example sentences of the study, token by token, and the word's vector there as a sum of components.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from torch import Tensor

from probe.experiments.columns import Column, Columns, Table, as_elsewhere, from_parts
from probe.experiments.material import Material
from probe.experiments.observe import Observation, clearest
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord
from probe.experiments.run import Run
from probe.model import decomposition
from probe.model.decomposition import DecompositionEntry
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.trace import trace
from probe.patching.sets import HeadIndex
from probe.stats.resampling import Array

ORDER = 80
NEEDS = ()
ANSWERS = False
SECONDS = 2.0
PER_SENSE = 2  # example sentences of each sense


@dataclass(frozen=True, eq=False)
class HeadReading:
    """What one head reads from every token of a sentence at its word.

    sentence: the row of the sentence
    senses: the two senses of the axis
    layer, head: the head
    pieces: the tokens as text
    labels: the tokens with their positions
    attention: `key_pos`, from the word to the token, 0 to 1
    contribution: `key_pos`, what the head writes from the token along the sense axis right after
        its layer, in fractions of the gap
    role: `key_pos`, of the token: word, cue or context
    """

    sentence: int
    senses: tuple[str, str]
    layer: int
    head: int
    pieces: tuple[str, ...]
    labels: tuple[str, ...]
    attention: Array
    contribution: Array
    role: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Decomposed:
    """The word's vector in a sentence as a sum of components, along the sense axis.

    sentence: the row of the sentence
    senses: the two senses of the axis
    terms: every component; heads have one term for each source token. A contribution is the
        component's write minus its mean write halfway between the two senses, so the contributions
        sum to `total`.
    roles: of each term's source token; None for a term without one
    total: the coordinate of the word, in fractions of the gap
    closing: the length of the difference between the vector and the sum of its terms, relative to
        the vector's length
    """

    sentence: int
    senses: tuple[str, str]
    terms: tuple[DecompositionEntry, ...]
    roles: tuple[str | None, ...]
    total: float
    closing: float


@dataclass(frozen=True, eq=False)
class Examples:
    """Example sentences of a word: what the top heads read there, and the word's vector as a
    sum."""

    readings: tuple[HeadReading, ...]
    decomposed: tuple[Decomposed, ...]


RECORDS = (Examples, HeadReading, Decomposed, DecompositionEntry)

# The columns that identify a sentence of a word and the senses of its axis.
SENTENCE = ("word", "sense", "sentence", "sense_a", "sense_b")


def _key(record: WordRecord, sentence: int, senses: tuple[str, str]) -> Columns:
    """The values of SENTENCE."""
    values = (record.word, record.labels[sentence], sentence, *senses)
    return dict(zip(SENTENCE, values, strict=True))


def _readings(record: WordRecord) -> Iterator[Columns]:
    for reading in record.measured.get("readings", NO_EXAMPLES).readings:
        yield {
            **_key(record, reading.sentence, reading.senses),
            "text": record.sentences[reading.sentence].text,
            "layer": reading.layer,
            "head": reading.head,
            "pos": range(len(reading.pieces)),
            "piece": reading.pieces,
            "label": reading.labels,
            "attention": reading.attention,
            "contribution": reading.contribution,
            "role": reading.role,
        }


def _decomposition(record: WordRecord) -> Iterator[Columns]:
    for sentence in record.measured.get("readings", NO_EXAMPLES).decomposed:
        yield {
            **_key(record, sentence.sentence, sentence.senses),
            **{name: [getattr(term, name) for term in sentence.terms] for name in TERM},
            "role": sentence.roles,
            "total": sentence.total,
            "closing": sentence.closing,
        }


NO_EXAMPLES = Examples((), ())
TERM = tuple(field.name for field in fields(DecompositionEntry))
TABLES = {
    "readings": Table(
        "what the top heads read and write on example sentences, token by token",
        {
            **as_elsewhere("word", "sense", "sentence", "text", "sense_a", "sense_b"),
            **as_elsewhere("layer", "head", "pos", "piece"),
            "label": Column("position and token"),
            **as_elsewhere("attention", "contribution", "role"),
        },
        from_parts(_readings),
    ),
    "decomposition": Table(
        "the word's vector on example sentences as a sum, term by term",
        as_elsewhere(*SENTENCE, *TERM[:5], "role", *TERM[5:], "total", "closing"),
        from_parts(_decomposition),
        missing=("layer", "head", "pos"),
    ),
}


def measure(run: Run) -> Examples:
    """What the top heads read in the example sentences, and the word's vector as a sum if the
    heads of its two senses were swapped.
    """
    observation = run.observation
    readings = []
    terms = []
    averages: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
    swapped_senses = {each.prepared.sense.senses for each in run.swapped_pairs}
    for row in _example_rows(observation, run.prepared):
        traced = trace(run.model, observation.material.sentences[row].text)
        pair = _pair_of(run.prepared, observation.material.labels[row])
        readings += [_reading(observation, row, pair, traced, head) for head in run.top_heads]
        if pair.sense.senses not in swapped_senses:
            continue
        # Rows that are held out together share their axis and everything fitted with it.
        held_out = (*pair.sense.senses, int(pair.sense.axes.cell[row]))
        if held_out not in averages:
            averages[held_out] = _average(run.model, observation, pair, row)
        terms.append(_decomposed(observation, row, pair, traced, averages[held_out]))
    return Examples(tuple(readings), tuple(terms))


def _example_rows(observation: Observation, prepared: Sequence[Prepared]) -> list[int]:
    """The rows of the example sentences: PER_SENSE of each sense, with different distances from the
    cue to the word if there are any.
    """
    examples = []
    for sense in dict.fromkeys(observation.material.labels):
        pair = _pair_of(prepared, sense)
        split = pair.sense.split
        is_a = sense == pair.sense.senses[0]
        of_sense = [
            split.rows[position] for position in split.tested if split.is_a[position] == is_a
        ]
        order = np.random.default_rng(pair.pairs.seed).permutation(len(of_sense))
        shuffled = [of_sense[index] for index in order]
        # The first sentence of every distance comes before any second one.
        first_of_distance: dict[int | None, int] = {}
        for row in shuffled:
            first_of_distance.setdefault(observation.material.distances[row], row)
        preferred = dict.fromkeys([*first_of_distance.values(), *shuffled])
        examples += sorted(list(preferred)[:PER_SENSE])
    return examples


def _pair_of(prepared: Sequence[Prepared], sense: str) -> Prepared:
    """The pair of senses with the clearest gap among the pairs that include this sense."""
    holding = [each for each in prepared if sense in each.sense.senses]
    p = [each.gates.gap for each in holding]
    return holding[clearest(p, [each.gates.largest_t for each in holding])]


def _reading(
    observation: Observation, row: int, pair: Prepared, traced: Trace, head: HeadIndex
) -> HeadReading:
    """What one head reads from every token of a sentence at its word."""
    target = observation.material.targets[row]
    layer, number = head
    # A head's write is read right after its layer, before any later layer changes it.
    axis = pair.sense.axes.at(row, pair.reading.direct[layer])
    return HeadReading(
        sentence=row,
        senses=pair.sense.senses,
        layer=layer,
        head=number,
        pieces=traced.tokens.pieces,
        labels=traced.tokens.labels,
        attention=traced.pattern[layer, number, target].double().numpy(),
        contribution=axis.effect(traced.delta_e_by_source(layer, number, target)).numpy(),
        role=tuple(_role(observation.material, row, pos) for pos in range(len(traced.tokens))),
    )


def _role(material: Material, row: int, pos: int) -> str:
    if pos in material.words[row]:
        return "word"
    return "cue" if pos in (material.cues[row] or ()) else "context"


def _average(
    model: Model, observation: Observation, pair: Prepared, row: int
) -> Mapping[str, Tensor]:
    """The mean write of every component halfway between the two senses, over the sentences that
    the axis of this row was fitted on.
    """
    split = pair.sense.split
    train = split.holdouts[int(pair.sense.axes.cell[row])].train
    rows_a = [split.rows[position] for position in train if split.is_a[position]]
    rows_b = [split.rows[position] for position in train if not split.is_a[position]]
    weights = read_weights(model)
    return decomposition.average(
        weights, observation.states, rows_a, rows_b, depth=observation.depth
    )


def _decomposed(
    observation: Observation, row: int, pair: Prepared, traced: Trace, average: Mapping[str, Tensor]
) -> Decomposed:
    """The word's vector in a sentence as a sum, along the axis that was fitted without the
    sentence.
    """
    axis = pair.sense.axes.at(row, observation.depth)
    target = observation.material.targets[row]
    terms = decomposition.decompose_resid(traced, axis.depth, at=target, axis=axis, average=average)
    return Decomposed(
        sentence=row,
        senses=pair.sense.senses,
        terms=tuple(terms),
        roles=tuple(
            None if term.pos is None else _role(observation.material, row, term.pos)
            for term in terms
        ),
        total=axis.coordinate(traced.resid_post[axis.depth - 1, target]).item(),
        closing=decomposition.closing_error(traced, axis.depth, at=target),
    )
