"""Pass two: the tables of one block of rows, a pure function of the model, the rows and the axes of their words.

Everything is said from the sentence's own sense towards `other`, the sense of its donor, drawn with the sentence's own
random number: coordinates are about +1/2 at the mean of its own sense and -1/2 at that of the other, `axis` is what a
head wrote towards its own sense, and `swap` how far the word moves towards the other when the head's output is the
donor's. All three are fractions of the gap between the two senses on the fit part. The mean of `swap` over the
sentences of both senses, divided by that of the sentences' `gap`, is the swap effect E; with `same_sense` subtracted,
the net effect.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import torch
from torch import Tensor

from probe.model import ledger
from probe.model.model import Model
from probe.model.weights import Weights, read_weights
from probe.patching import swaps as patching
from probe.sweep.deal import Record, sentence_of
from probe.sweep.fit import Reading, WordAxes, read_words
from probe.text.splits import FIT, REPORT

SPARE = "in the fit part, beyond the sentences that are fitted on"
FITTED = "fitted"
NO_SENSES = "no two senses of its word have enough sentences that the model can read"
DIGITS = 9
Columns = dict[str, Any]


def measure(
    model: Model, records: Sequence[Record], axes: Mapping[str, WordAxes | None], fitted: Mapping[tuple[str, str], str]
) -> tuple[pyarrow.Table, pyarrow.Table]:
    """The tables of a block: one row per sentence, and one per measured sentence and head.

    `fitted`: by word and sense, the largest draw that was fitted on.
    """
    weights = read_weights(model)
    outcome = {record["sentence"]: _before(record, axes, fitted) for record in records}
    chosen = [record for record in records if outcome[record["sentence"]] == (REPORT, None)]
    readings, reasons = read_words(model, chosen)
    outcome |= {number: (None, reason) for number, reason in reasons.items()}
    sentences, heads = [], []
    for word, reading in readings.items():
        if (along := axes[word]) is not None:
            by_sentence, by_head = _measure_word(weights, reading, along)
            sentences.append(by_sentence)
            heads.append(by_head)
    return _sentence_table(records, outcome, sentences, weights), _head_table(heads, weights)


def _before(
    record: Record, axes: Mapping[str, WordAxes | None], fitted: Mapping[tuple[str, str], str]
) -> tuple[str | None, str | None]:
    """What becomes of a row as far as it is known before the model has seen it: its part, or the reason for none."""
    if record["part"] is None:
        return None, record["reason"]
    along = axes.get(record["word"])
    if along is None:
        return None, NO_SENSES
    if record["sense"] not in along.senses:
        return None, f"its sense {record['sense']!r} has too few sentences to fit on, or none to give"
    if record["part"] == FIT:
        kept = record["draw"] <= fitted[(record["word"], record["sense"])]
        return (FITTED, None) if kept else (FIT, SPARE)
    return REPORT, None


def _measure_word(weights: Weights, reading: Reading, axes: WordAxes) -> tuple[Columns, Columns]:
    """Columns by sentence, and by sentence, layer and head, of rows of one word."""
    records, states = reading.records, reading.states
    drawn = [_draw(record, axes) for record in records]
    pair, sign = (torch.tensor([one[name] for one in drawn]) for name in ("pair", "sign"))
    stages = torch.stack([states.token_embedding, *states.resid.unbind(1)], dim=1)  # row stage d_model
    along = torch.einsum("rsd,rd->rs", stages.double(), axes.u[pair])
    exact = sign[:, None] * (along - axes.centre[pair]) / axes.gap[pair][:, None]
    coordinate = exact.round(decimals=DIGITS)  # below what float32 holds, so that the same vectors are exactly 0 apart
    donors, same = ([one[name] for one in drawn] for name in ("donor", "same"))
    theirs = sign * axes.donor_coordinate[donors, pair]
    by_sentence = {
        "sentence": [record["sentence"] for record in records],
        "word": [record["word"] for record in records],
        "sense": [record["sense"] for record in records],
        "other": [one["other"] for one in drawn],
        "depth": [axes.depth] * len(records),
        "coordinate": coordinate,
        "gap": coordinate[:, axes.depth + 1] - theirs,
    }
    swaps = _swapped(weights, reading, axes, [*donors, *same]).chunk(2)
    rows = torch.arange(len(records))
    moved = [-sign[:, None, None] * swap[rows, :, :, pair] for swap in swaps]
    by_head = _observed(weights, reading, axes, pair, sign) | dict(zip(("swap", "same_sense"), moved, strict=True))
    return by_sentence, by_sentence | by_head


def _draw(record: Record, axes: WordAxes) -> dict[str, Any]:
    """The other sense, a donor of it and one of the sentence's own sense, by the sentence's own random number."""
    draw = int(record["draw"], 16)
    others = [number for number, sense in enumerate(axes.senses) if sense != record["sense"]]
    draw, which = divmod(draw, len(others))
    members = [np.flatnonzero(axes.donor_sense.numpy() == number) for number in range(len(axes.senses))]
    own = axes.senses.index(record["sense"])
    mine = [int(donor) for donor in members[own] if axes.donors[donor] != record["draw"]]
    draw, place = divmod(draw, len(members[others[which]]))
    other = axes.senses[others[which]]
    pair, sign = axes.pair_of(record["sense"], other)
    same = mine[draw % len(mine)] if mine else int(members[own][0])  # the only one of its sense gives to itself: 0
    return {"other": other, "pair": pair, "sign": sign, "donor": int(members[others[which]][place]), "same": same}


def _swapped(weights: Weights, reading: Reading, axes: WordAxes, donors: Sequence[int]) -> Tensor:
    """How far each head's swap moves the read-out along every axis; 0 above it. `turn x row layer head pair`

    `donors`: one per row, turn after turn; the turns go together, because what stands before the word is then run once.
    """
    rows = reading.material.placed * (len(donors) // len(reading.records))
    moved = patching.swap_heads(weights, rows, axes.donor_z[donors, : axes.depth], axes.directions)
    above = moved.new_zeros(len(moved), len(weights.blocks) - axes.depth, *moved.shape[2:])
    return torch.cat([moved, above], dim=1).double()


def _observed(weights: Weights, reading: Reading, axes: WordAxes, pair: Tensor, sign: Tensor) -> Columns:
    """What each head looks at and writes. `row layer head` each"""
    states = reading.states
    z, w_o = states.z.double(), torch.stack([block.w_o for block in weights.blocks]).cpu().double()
    toward = torch.einsum("lhed,pd->plhe", w_o, axes.directions)  # pair layer head d_head
    turned = sign[:, None, None]
    norm = ledger.write_coordinates(states.z, weights).norm(dim=-1).permute(2, 0, 1)
    looks = states.attention_to(reading.material.cues)
    return {
        "attention_cue": looks["cue"],
        "attention_previous": looks["previous"],
        "norm": norm,
        "axis": turned * (z * toward[pair]).sum(-1),
        "own": turned * ((z * axes.own[pair]).sum(-1) - axes.own_centre[pair]),
    }


def _sentence_table(
    records: Sequence[Record],
    outcome: Mapping[int, tuple[str | None, str | None]],
    measured: Sequence[Columns],
    weights: Weights,
) -> pyarrow.Table:
    """One row per row of the block, in its order: what became of it and, where it was measured, its coordinates."""
    stages = ["token", *(str(depth) for depth in range(len(weights.blocks) + 1))]
    place = {number: (columns, at) for columns in measured for at, number in enumerate(columns["sentence"])}
    rows = []
    for record in records:
        part, reason = outcome[record["sentence"]]
        row = {name: record[name] for name in ("sentence", "where", "word", "sense")}
        row |= {"cue": sentence_of(record).cue_word, "part": part, "reason": reason}
        if record["sentence"] in place:
            columns, at = place[record["sentence"]]
            row |= {"other": columns["other"][at], "depth": columns["depth"][at], "gap": columns["gap"][at].item()}
            row |= {f"coordinate_{stage}": columns["coordinate"][at, n].item() for n, stage in enumerate(stages)}
        rows.append(row)
    return pyarrow.Table.from_pylist(rows, schema=sentence_schema(stages))


def sentence_schema(stages: Sequence[str]) -> pyarrow.Schema:
    """The columns of the table of sentences; `stages`: token, then the depths."""
    text = ("where", "word", "sense", "cue", "part", "reason", "other")
    kinds = {"sentence": pyarrow.int64(), "depth": pyarrow.int16()} | dict.fromkeys(text, pyarrow.string())
    names = ("sentence", "where", "word", "sense", "cue", "part", "reason", "other", "depth", "gap")
    return pyarrow.schema(
        [(name, kinds.get(name, pyarrow.float32())) for name in (*names, *(f"coordinate_{stage}" for stage in stages))]
    )


NAMES = ("word", "sense", "other")
MEASURED = ("attention_cue", "attention_previous", "norm", "axis", "own", "swap", "same_sense")


def head_schema() -> pyarrow.Schema:
    """The columns of the table of sentences and heads."""
    keys = [("sentence", pyarrow.int64()), *((name, pyarrow.string()) for name in NAMES)]
    keys += [("layer", pyarrow.int16()), ("head", pyarrow.int16())]
    return pyarrow.schema([*keys, *((name, pyarrow.float32()) for name in MEASURED)])


def _head_table(measured: Sequence[Columns], weights: Weights) -> pyarrow.Table:
    """One row per measured sentence, layer and head, sentences in the order of the block's words."""
    layers, heads, *_ = weights.shape
    numbers = [number for columns in measured for number in columns["sentence"]]
    layer, head = np.divmod(np.arange(layers * heads), heads)
    table = {"sentence": np.repeat(np.array(numbers, dtype=np.int64), layers * heads)}
    for name in NAMES:
        texts = [text for columns in measured for text in columns[name]]
        table[name] = np.repeat(np.array(texts, dtype=object), layers * heads)
    table |= {"layer": np.tile(layer, len(numbers)), "head": np.tile(head, len(numbers))}
    for name in MEASURED:
        table[name] = np.concatenate([np.empty(0), *(columns[name].numpy().ravel() for columns in measured)])
    schema = head_schema()
    arrays = [pyarrow.array(table[field.name], field.type, from_pandas=True) for field in schema]
    return pyarrow.Table.from_arrays(arrays, schema=schema)
