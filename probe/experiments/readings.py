"""What do the top heads read in single sentences?

Example sentences of the study, token by token, and the word's vector there as a sum of components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from probe.experiments.columns import Column, Table, as_elsewhere, rows, tables_of
from probe.experiments.material import Material
from probe.experiments.observe import Observation, clearest
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord
from probe.experiments.run import WordRun
from probe.model import decomposition
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.trace import trace
from probe.model.weights import weights_of
from probe.patching.sets import HeadIndex

if TYPE_CHECKING:
    import xarray as xr

ORDER = 80
NEEDS = ()
ANSWERS = False
SECONDS = 1.0
HEADING = "travels"
TITLE = "Which words supply it"
PER_SENSE = 2  # example sentences of each sense


def of_sentences(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """The rows of a table, with the sense and the text of each sentence."""
    frame = rows(record, data)
    sentences = record.measured["senses"]["sentences"].isel(row=frame["sentence"].to_numpy())
    return frame.assign(sense=sentences.sense.values, text=sentences.text.values)


# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "pos": Column(
        "position of the token that a head read this from, counted from 0. Missing for a "
        "component that is not a head."
    ),
    "piece": Column("the characters of the token, with its leading space"),
    "contribution": Column(
        "the component's write along the sense axis, positive toward the first sense. In the "
        "table decomposition it is measured from the component's write halfway between the "
        "senses.",
        "fraction of the sense gap",
    ),
    "role": Column("role of the token: the cue, the word itself, or context"),
    "token": Column(
        "that position with its token. After the first block, the vector there holds more than "
        "the token."
    ),
    "norm": Column("length of the component's write", "residual stream"),
    "total": Column(
        "sense coordinate of this sentence at the read-out layer. It is the sum of the "
        "contributions.",
        "fraction of the sense gap",
    ),
    "closing": Column(
        "difference between the sum of the decomposition and the hooked residual stream, relative "
        "to the stream's size",
        "relative",
    ),
}
TABLES = {
    "readings": Table(
        "what the top heads read and write on example sentences, token by token",
        {
            **as_elsewhere("word", "sense", "sentence", "text", "sense_a", "sense_b"),
            **as_elsewhere("layer", "head", "pos", "piece"),
            "label": Column("position and token"),
            **as_elsewhere("attention", "contribution", "role"),
        },
        of_sentences,
    ),
    "decomposition": Table(
        "the word's vector on example sentences as a sum, term by term",
        {
            **as_elsewhere("word", "sense", "sentence", "sense_a", "sense_b"),
            **as_elsewhere("component", "layer", "head", "pos", "token", "role"),
            **as_elsewhere("norm", "contribution", "total", "closing"),
        },
        of_sentences,
        missing=("layer", "head", "pos"),
    ),
}


def measure(run: WordRun) -> "dict[str, xr.Dataset]":
    """What the top heads read in the example sentences, and the word's vector as a sum if the
    heads of its two senses were swapped, by table. `row` each
    """
    observation = run.observation
    readings: list[pd.DataFrame] = []
    sums: list[pd.DataFrame] = []
    averages: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
    swapped_senses = {each.prepared.sense.senses for each in run.swapped_pairs}
    for row in example_rows(observation, run.prepared):
        traced = trace(run.model, observation.material.sentences[row].text)
        pair = _pair_of(run.prepared, observation.material.labels[row])
        readings += [_reading(observation, row, pair, traced, head) for head in run.top_heads]
        if pair.sense.senses not in swapped_senses:
            continue
        # Rows that are held out together share their axis and everything fitted with it.
        held_out = (*pair.sense.senses, int(pair.sense.axes.cell[row]))
        if held_out not in averages:
            averages[held_out] = _average(run.model, observation, pair, row)
        sums.append(_decomposed(observation, row, pair, traced, averages[held_out]))
    return tables_of(TABLES, {"readings": readings, "decomposition": sums})


def example_rows(observation: Observation, prepared: Sequence[Prepared]) -> list[int]:
    """The rows of the example sentences: PER_SENSE of each sense, with different distances from the
    cue to the word if there are any.
    """
    examples = []
    for sense in dict.fromkeys(observation.material.labels):
        pair = _pair_of(prepared, sense)
        split = pair.sense.split
        is_a = sense == pair.sense.senses[0]
        of_sense = split.tested_rows(is_a)
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
    return holding[clearest([each.gates for each in holding])]


def _reading(
    observation: Observation, row: int, pair: Prepared, traced: Trace, head: HeadIndex
) -> pd.DataFrame:
    """What one head reads from every token of a sentence at its word.

    attention: from the word to the token
    contribution: what the head writes from the token along the sense axis right after its layer, in
        fractions of the gap
    """
    target = observation.material.targets[row]
    layer, number = head
    # A head's write is read right after its layer, before any later layer changes it.
    axis = pair.sense.axes.at(row, pair.readout.direct[layer])
    return pd.DataFrame(
        {
            **_key(row, pair),
            "layer": layer,
            "head": number,
            "pos": range(len(traced.tokens)),
            "piece": traced.tokens.pieces,
            "label": traced.tokens.labels,
            "attention": traced.pattern[layer, number, target].double().numpy(),
            "contribution": axis.effect(traced.delta_e_by_source(layer, number, target)).numpy(),
            "role": [_role(observation.material, row, pos) for pos in range(len(traced.tokens))],
        }
    )


def _key(row: int, pair: Prepared) -> dict[str, Any]:
    """A sentence and the two senses of its axis."""
    return {"sentence": row, "sense_a": pair.sense.senses[0], "sense_b": pair.sense.senses[1]}


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
    weights = weights_of(model)
    return decomposition.average(
        weights, observation.states, rows_a, rows_b, depth=observation.depth
    )


def _decomposed(
    observation: Observation, row: int, pair: Prepared, traced: Trace, average: Mapping[str, Tensor]
) -> pd.DataFrame:
    """The word's vector in a sentence as a sum, along the axis that was fitted without the
    sentence. Heads have one term for each source token.

    contribution: the term's write minus its mean write halfway between the two senses, so these sum
        to `total`
    total: the coordinate of the word, in fractions of the gap
    closing: the length of the difference between the vector and the sum of its terms, relative to
        the vector's length
    """
    axis = pair.sense.axes.at(row, observation.depth)
    target = observation.material.targets[row]
    terms = decomposition.decompose_resid(traced, axis.depth, at=target, axis=axis, average=average)
    roles = [
        "" if term.pos is None else _role(observation.material, row, term.pos) for term in terms
    ]
    frame = pd.DataFrame(map(asdict, terms)).astype(dict.fromkeys(("layer", "head", "pos"), float))
    return frame.assign(
        **_key(row, pair),
        role=roles,
        total=axis.coordinate(traced.resid_post[axis.depth - 1, target]).item(),
        closing=decomposition.closing_error(traced, axis.depth, at=target),
    )
