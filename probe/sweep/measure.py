"""Both passes over a corpus: what a word is measured along, then the tables of one block of rows.

Pass one fits on the word's fit part. The read-out depth, the sense axes and the heads' own
directions are those of the study (`probe.stats.axes`); donors are sentences of the report part,
never measured in their own swap. Everything is tensors, kept as safetensors: nothing is ever
unpickled.

Pass two is a pure function of the model, the rows and the axes of their words. Everything is said
from the sentence's own sense towards `other`, the sense of its donor, drawn with the sentence's own
random number: coordinates are about +1/2 at the mean of its own sense and -1/2 at that of the
other, `axis` is what a head wrote towards its own sense, and `swap` how far the word moves towards
the other when the head's output is the donor's. All three are fractions of the gap between the two
senses on the fit part. The mean of `swap` over the sentences of both senses, divided by that of the
sentences' `gap`, is the swap effect E; with `same_sense` subtracted, the net effect.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from probe.evidence.material import Material, prepare_usable
from probe.model import decomposition
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.weights import Weights
from probe.patching import heads as patching
from probe.stats.axes import Axis, choose_depth, fit_axis, sense_pairs, separation_by_depth
from probe.stats.separation import own_direction_scores
from probe.sweep.deal import DONOR, Record, sentence_of
from probe.text import splits
from probe.text.splits import FIT, REPORT, STUDY

SPARE = "in the fit part, beyond the sentences that are fitted on"
FITTED = "fitted"
TOO_FEW = "has too few sentences to fit on, or none to give"
NO_SENSES = "no two senses of its word have enough sentences that the model can read"
DIGITS = 9
NOTHING = pd.DataFrame(
    columns=["sentence"]
)  # the table of a block in which no sentence is measured
MEASURED = ("attention_cue", "attention_previous", "norm", "axis", "own", "swap", "same_sense")
HEAD_SCHEMA = pyarrow.schema(
    [
        ("sentence", pyarrow.int64()),
        *((name, pyarrow.string()) for name in ("word", "sense", "other")),
        *((name, pyarrow.int16()) for name in ("layer", "head")),
        *((name, pyarrow.float32()) for name in MEASURED),
    ]
)


@dataclass(frozen=True, eq=False)
class WordAxes:
    """What a word is measured along; `pair` counts the unordered pairs of `senses`, which are in
    alphabetical order.

    `u: pair d_model`, unit length · `gap: pair` · `centre: pair stage`, <midpoint, u> for the token
    embedding (stage 0), then depths 0, 1, ... · `own: pair layer head d_head` and `own_centre: pair
    layer head`: a head's score z · own - own_centre is about +1/2 for the pair's first sense, -1/2
    for the second · `donor_z: donor layer head d_head`, `donor_coordinate: donor pair`,
    `donor_sense: donor`, the number of the sense · `donors`: the draws of the donors · `by_depth:
    depth`, the AUROCs that `depth` was chosen by.
    """

    senses: tuple[str, ...]
    depth: int
    donors: tuple[str, ...]
    u: Tensor
    gap: Tensor
    centre: Tensor
    own: Tensor
    own_centre: Tensor
    donor_z: Tensor
    donor_coordinate: Tensor
    donor_sense: Tensor
    by_depth: Tensor

    @property
    def directions(self) -> Tensor:
        """u / gap: changes along them are in fractions of the gap. `pair d_model`"""
        return self.u / self.gap[:, None]


TENSORS = tuple(field.name for field in fields(WordAxes) if field.type is Tensor)


@dataclass(frozen=True, eq=False)
class Reading:
    """Records of one word that the model can be asked about, with their states, row by row."""

    records: tuple[Record, ...]
    material: Material
    states: TargetStates

    def keep(self, rows: Sequence[int]) -> "Reading":
        """Only these of the records, in this order."""
        records = tuple(self.records[row] for row in rows)
        return Reading(records, self.material.keep(rows), _take(self.states, rows))


def _take(states: TargetStates, rows: Sequence[int]) -> TargetStates:
    return TargetStates(
        **{field.name: getattr(states, field.name)[list(rows)] for field in fields(states)}
    )


def read_words(
    model: Model, records: Sequence[Record]
) -> tuple[dict[str, Reading], dict[int, str]]:
    """The records of every word that the model can read, and, by its number, why each of the others
    is not read."""
    by_word: dict[str, list[Record]] = {}
    for record in records:
        by_word.setdefault(record["word"], []).append(record)
    placed: list[tuple[tuple[Record, ...], Material]] = []
    reasons: dict[int, str] = {}
    for word, mine in by_word.items():
        material, refused = prepare_usable(model, word, [sentence_of(record) for record in mine])
        reasons |= {mine[row]["sentence"]: reason for row, reason in refused.items()}
        if len(material):
            placed.append(
                (tuple(record for row, record in enumerate(mine) if row not in refused), material)
            )
    if not placed:
        return {}, reasons
    tokens, targets = (
        [one for _, part in placed for one in getattr(part, name)] for name in ("tokens", "targets")
    )
    states, end, readings = target_states(model, tokens, targets), 0, dict[str, Reading]()
    for kept, material in placed:
        start, end = end, end + len(material)
        readings[material.word] = Reading(kept, material, _take(states, range(start, end)))
    return readings, reasons


def fit_word(
    model: Model, records: Sequence[Record], usable: Sequence[str], *, seed: int
) -> WordAxes | None:
    """The axes of one word from its fit sentences and donors; None of fewer than two senses that
    fit the model."""
    weights, parts = read_weights(model), list[Reading]()
    for part in (FIT, DONOR):
        readings, _ = read_words(
            model, [r for r in records if r["part"] == part and r["sense"] in usable]
        )
        parts += readings.values()
    if len(parts) < 2:
        return None
    labels, given = (part.material.labels for part in parts)
    left = sorted(
        {sense for sense in usable if labels.count(sense) >= STUDY.per_sense and sense in given}
    )
    if len(left) < 2:
        return None
    fit, donors = (
        part.keep([row for row, sense in enumerate(part.material.labels) if sense in left])
        for part in parts
    )
    states, labels, pairs = fit.states, fit.material.labels, sense_pairs(left)
    separations = separation_by_depth(
        states.resid, labels, splits.cue_words(fit.material.sentences), seed=seed
    )
    depth = choose_depth(separations)
    rows = [_rows_of(labels, pair) for pair in pairs]
    axes = [
        fit_axis(states.resid[a, depth], states.resid[b, depth], pair, depth)
        for (a, b), pair in zip(rows, pairs, strict=True)
    ]
    own, own_centre = zip(*(_own(weights, states.z[a], states.z[b]) for a, b in rows), strict=True)
    return WordAxes(
        senses=tuple(left),
        depth=depth,
        donors=tuple(record["draw"] for record in donors.records),
        u=torch.stack([axis.u for axis in axes]),
        gap=torch.tensor([axis.gap for axis in axes], dtype=torch.float64),
        centre=_centres(states, rows, axes),
        own=torch.stack(own),
        own_centre=torch.stack(own_centre),
        donor_z=donors.states.z.clone(),
        donor_coordinate=torch.stack(
            [axis.coordinate(donors.states.resid[:, depth]) for axis in axes], dim=1
        ),
        donor_sense=torch.tensor([left.index(sense) for sense in donors.material.labels]),
        by_depth=torch.from_numpy(np.mean([one.auroc for one in separations], axis=0)),
    )


def _rows_of(labels: Sequence[str], pair: tuple[str, str]) -> list[list[int]]:
    """The rows of each of two senses."""
    return [[row for row, label in enumerate(labels) if label == sense] for sense in pair]


def _centres(states: TargetStates, rows: Sequence[list[list[int]]], axes: Sequence[Axis]) -> Tensor:
    """<midpoint of the two senses, u> at every stage. `-> pair stage`"""
    stages = torch.stack(
        [states.token_embedding, *states.resid.unbind(1)]
    ).double()  # stage row d_model
    along = [stages @ axis.u for axis in axes]  # stage row each
    return torch.stack(
        [
            (one[:, a].mean(1) + one[:, b].mean(1)) / 2
            for one, (a, b) in zip(along, rows, strict=True)
        ]
    )


def _own(weights: Weights, z_a: Tensor, z_b: Tensor) -> tuple[Tensor, Tensor]:
    """Each head's own direction as coefficients of z, scaled so that the fit means score +1/2 and
    -1/2.

    The scores of `own_direction_scores` are affine in the write, so its coefficients are read off
    at the origin and at the unit vectors.
    """
    a, b = (decomposition.write_coordinates(z, weights) for z in (z_a, z_b))  # layer head n d_head
    size = a.shape[-1]
    probes = torch.cat([a.new_zeros(1, size), torch.eye(size, dtype=a.dtype)]).expand(
        *a.shape[:2], -1, -1
    )
    scores = own_direction_scores(a, b, probes)  # layer head 1 + d_head
    direction = scores[..., 1:] - scores[..., :1]
    # layer head d_head: score = z · along + constant
    along = (direction.unsqueeze(-2) @ decomposition.write_basis(weights)).squeeze(-2)
    mean_a, mean_b = ((z.double().mean(0) * along).sum(-1) for z in (z_a, z_b))
    scale = torch.where(mean_a > mean_b, mean_a - mean_b, 1.0)
    return along / scale[..., None], (mean_a + mean_b) / 2 / scale


def to_bytes(axes: WordAxes) -> bytes:
    """The axes as a safetensors file, the same bytes from the same axes."""
    about = {"senses": axes.senses, "depth": axes.depth, "donors": axes.donors}
    return save(
        {name: getattr(axes, name).contiguous() for name in TENSORS},
        metadata={"about": json.dumps(about)},
    )


def from_file(path: str) -> WordAxes:
    """The axes of a file made by `to_bytes`, whose checksum was compared before."""
    with safe_open(path, framework="pt") as opened:
        about = json.loads(opened.metadata()["about"])
        tensors = {name: opened.get_tensor(name) for name in TENSORS}
    return WordAxes(tuple(about["senses"]), about["depth"], tuple(about["donors"]), **tensors)


# --- pass two -------------------------------------------------------------------------------------


def measure(
    model: Model,
    records: Sequence[Record],
    axes: Mapping[str, WordAxes | None],
    fitted: Mapping[tuple[str, str], str],
) -> tuple[pyarrow.Table, pyarrow.Table]:
    """The tables of a block: one row per sentence, and one per measured sentence and head.

    `fitted`: by word and sense, the largest draw that was fitted on.
    """
    weights = read_weights(model)
    outcome = {record["sentence"]: _before(record, axes, fitted) for record in records}
    readings, reasons = read_words(
        model, [record for record in records if outcome[record["sentence"]][0] == REPORT]
    )
    outcome |= {number: (None, reason) for number, reason in reasons.items()}
    read = [
        (reading, along) for word, reading in readings.items() if (along := axes[word]) is not None
    ]
    made = [_measure_word(weights, *one) for one in read] or [(NOTHING, NOTHING)]
    sentences, heads = (pd.concat(frames) for frames in zip(*made, strict=True))
    rows = pd.DataFrame(
        [
            {name: record[name] for name in ("sentence", "where", "word", "sense")}
            for record in records
        ]
    )
    rows["cue"] = [sentence_of(record).cue_word for record in records]
    rows["part"], rows["reason"] = zip(
        *(outcome[number] for number in rows["sentence"]), strict=True
    )
    rows = rows.merge(
        sentences.drop(columns=["word", "sense"], errors="ignore"), how="left", on="sentence"
    )
    return _table(rows, sentence_schema(weights)), _table(heads, HEAD_SCHEMA)


def _table(frame: pd.DataFrame, schema: pyarrow.Schema) -> pyarrow.Table:
    """The frame's columns of the schema, each empty where the frame has none."""
    frame = frame.reindex(columns=schema.names)
    return pyarrow.Table.from_pandas(
        frame, schema=schema, preserve_index=False
    ).replace_schema_metadata()


def _before(
    record: Record, axes: Mapping[str, WordAxes | None], fitted: Mapping[tuple[str, str], str]
) -> tuple[str | None, str | None]:
    """What becomes of a row as far as it is known before the model has seen it: its part, or the
    reason for none."""
    if record["part"] is None:
        return None, record["reason"]
    along = axes.get(record["word"])
    if along is None:
        return None, NO_SENSES
    if record["sense"] not in along.senses:
        return None, f"its sense {record['sense']!r} {TOO_FEW}"
    if record["part"] == FIT:
        kept = record["draw"] <= fitted[(record["word"], record["sense"])]
        return (FITTED, None) if kept else (FIT, SPARE)
    return REPORT, None


def _measure_word(
    weights: Weights, reading: Reading, axes: WordAxes
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of one word by sentence, and by sentence, layer and head."""
    records, states = reading.records, reading.states
    drawn = [_draw(record, axes) for record in records]
    pair, sign = (torch.tensor([one[name] for one in drawn]) for name in ("pair", "sign"))
    stages = torch.stack(
        [states.token_embedding, *states.resid.unbind(1)], dim=1
    )  # row stage d_model
    along = torch.einsum("rsd,rd->rs", stages.double(), axes.u[pair])
    exact = sign[:, None] * (along - axes.centre[pair]) / axes.gap[pair][:, None]
    coordinate = exact.round(
        decimals=DIGITS
    )  # below what float32 holds, so that the same vectors are exactly 0 apart
    donors, same = ([one[name] for one in drawn] for name in ("donor", "same"))
    theirs = sign * axes.donor_coordinate[donors, pair]
    keys = pd.DataFrame(
        [{name: record[name] for name in ("sentence", "word", "sense")} for record in records]
    )
    keys["other"] = [one["other"] for one in drawn]
    by_sentence = pd.DataFrame(coordinate.numpy(), columns=_coordinates(weights))
    by_sentence = keys.assign(
        depth=axes.depth, gap=(coordinate[:, axes.depth + 1] - theirs).numpy()
    ).join(by_sentence)
    swaps = _swapped(weights, reading, axes, [*donors, *same]).chunk(2)
    rows = torch.arange(len(records))
    moved = (-sign[:, None, None] * swap[rows, :, :, pair] for swap in swaps)
    measured = _observed(weights, reading, axes, pair, sign) | dict(
        zip(("swap", "same_sense"), moved, strict=True)
    )
    layers, heads, *_ = weights.shape
    by_head = keys.loc[keys.index.repeat(layers * heads)].reset_index(drop=True)
    layer, head = np.divmod(np.arange(len(by_head)) % (layers * heads), heads)
    columns = {name: values.numpy().ravel() for name, values in measured.items()}
    return by_sentence, by_head.assign(layer=layer, head=head, **columns)


def _draw(record: Record, axes: WordAxes) -> dict[str, Any]:
    """The other sense, a donor of it and one of the sentence's own sense, by the sentence's own
    random number; `pair` with `sign`, +1 where its sense is the first of the pair, -1 where it is
    the second.
    """
    own = axes.senses.index(record["sense"])
    others = [number for number in range(len(axes.senses)) if number != own]
    draw, which = divmod(int(record["draw"], 16), len(others))
    other = others[which]
    donors, mates = (
        np.flatnonzero(axes.donor_sense.numpy() == number).tolist() for number in (other, own)
    )
    draw, place = divmod(draw, len(donors))
    mine = [donor for donor in mates if axes.donors[donor] != record["draw"]]
    same = (
        mine[draw % len(mine)] if mine else mates[0]
    )  # the only one of its sense gives to itself: 0
    first, second = (axes.senses[number] for number in sorted((own, other)))
    pair, sign = sense_pairs(axes.senses).index((first, second)), 1 if own < other else -1
    return {
        "other": axes.senses[other],
        "pair": pair,
        "sign": sign,
        "donor": donors[place],
        "same": same,
    }


def _swapped(weights: Weights, reading: Reading, axes: WordAxes, donors: Sequence[int]) -> Tensor:
    """How far each head's swap moves the read-out along every axis; 0 above it. `turn x row layer
    head pair`

    `donors`: one per row, turn after turn; the turns go together, because what stands before the
    word is then run once.
    """
    rows = reading.material.texts * (len(donors) // len(reading.records))
    moved = patching.swap_heads(weights, rows, axes.donor_z[donors, : axes.depth], axes.directions)
    above = moved.new_zeros(len(moved), len(weights.blocks) - axes.depth, *moved.shape[2:])
    return torch.cat([moved, above], dim=1).double()


def _observed(
    weights: Weights, reading: Reading, axes: WordAxes, pair: Tensor, sign: Tensor
) -> dict[str, Tensor]:
    """What each head looks at and writes. `row layer head` each"""
    z, w_o = (
        reading.states.z.double(),
        torch.stack([block.w_o for block in weights.blocks]).cpu().double(),
    )
    toward = torch.einsum("lhed,pd->plhe", w_o, axes.directions)  # pair layer head d_head
    turned = sign[:, None, None]
    looks = reading.states.attention_to(reading.material.cues)
    return {
        "attention_cue": looks["cue"],
        "attention_previous": looks["previous"],
        "norm": decomposition.write_coordinates(reading.states.z, weights)
        .norm(dim=-1)
        .permute(2, 0, 1),
        "axis": turned * (z * toward[pair]).sum(-1),
        "own": turned * ((z * axes.own[pair]).sum(-1) - axes.own_centre[pair]),
    }


def _coordinates(weights: Weights) -> list[str]:
    """The columns of coordinates: the token embedding's, then those of every depth."""
    return [
        "coordinate_token",
        *(f"coordinate_{depth}" for depth in range(len(weights.blocks) + 1)),
    ]


def sentence_schema(weights: Weights) -> pyarrow.Schema:
    """The columns of the table of sentences."""
    text = [
        (name, pyarrow.string())
        for name in ("where", "word", "sense", "cue", "part", "reason", "other")
    ]
    numbers = [(name, pyarrow.float32()) for name in ("gap", *_coordinates(weights))]
    return pyarrow.schema(
        [("sentence", pyarrow.int64()), *text, ("depth", pyarrow.int16()), *numbers]
    )
