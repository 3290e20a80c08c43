"""Pass one: what one word is measured along, fitted on its fit part, and the donors of its swaps.

The read-out depth, the sense axes and the heads' own directions are those of the study (`probe.stats.axes`); donors are
sentences of the report part, never measured in their own swap. Everything is tensors, kept as safetensors: nothing is
ever unpickled.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from probe.model import ledger
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.weights import Weights, read_weights
from probe.stats.axes import Axis, choose_depth, fit_axis, sense_pairs, separation_by_depth
from probe.stats.separation import own_direction_scores
from probe.study.material import Material, prepare_usable
from probe.sweep.deal import DONOR, Record, sentence_of
from probe.text import splits
from probe.text.splits import FIT, MIN_PER_SENSE


@dataclass(frozen=True, eq=False)
class WordAxes:
    """What a word is measured along; `pair` counts the unordered pairs of `senses`, which are in alphabetical order.

    `u: pair d_model`, unit length · `gap: pair` · `centre: pair stage`, <midpoint, u> for the token embedding (stage
    0), then depths 0, 1, ... · `own: pair layer head d_head` and `own_centre: pair layer head`: a head's score z · own
    - own_centre is about +1/2 for the pair's first sense, -1/2 for the second · `donor_z: donor layer head d_head`,
    `donor_coordinate: donor pair`, `donor_sense: donor`, the number of the sense · `donors`: the draws of the donors ·
    `by_depth: depth`, the AUROCs that `depth` was chosen by.
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

    def __post_init__(self) -> None:
        pairs, donors = len(sense_pairs(self.senses)), len(self.donors)
        for name, first in (("u", pairs), ("own", pairs), ("gap", pairs), ("donor_z", donors), ("donor_sense", donors)):
            if len(getattr(self, name)) != first:
                raise ValueError(f"axes of {pairs} pairs: {name} has {len(getattr(self, name))} rows, expected {first}")

    def pair_of(self, sense: str, other: str) -> tuple[int, int]:
        """The number of the pair, and +1 where `sense` is its first sense, -1 where it is the second."""
        first, second = sorted((sense, other))
        return sense_pairs(self.senses).index((first, second)), 1 if sense == first else -1

    @property
    def directions(self) -> Tensor:
        """u / gap: changes along them are in fractions of the gap. `pair d_model`"""
        return self.u / self.gap[:, None]


TENSORS = ("u", "gap", "centre", "own", "own_centre", "donor_z", "donor_coordinate", "donor_sense", "by_depth")


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
    return TargetStates(**{field.name: getattr(states, field.name)[list(rows)] for field in fields(states)})


def read_words(model: Model, records: Sequence[Record]) -> tuple[dict[str, Reading], dict[int, str]]:
    """The records of every word that the model can read, and, by its number, why each of the others is not read."""
    by_word: dict[str, list[Record]] = {}
    for record in records:
        by_word.setdefault(record["word"], []).append(record)
    placed: dict[str, tuple[tuple[Record, ...], Material]] = {}
    reasons: dict[int, str] = {}
    for word, mine in by_word.items():
        material, refused = prepare_usable(model, word, [sentence_of(record) for record in mine])
        reasons |= {mine[row]["sentence"]: reason for row, reason in refused.items()}
        if len(material):
            placed[word] = tuple(record for row, record in enumerate(mine) if row not in refused), material
    if not placed:
        return {}, reasons
    materials = [material for _, material in placed.values()]
    tokens, targets = ([one for part in materials for one in getattr(part, name)] for name in ("tokens", "targets"))
    states, ends = target_states(model, tokens, targets), np.cumsum([len(material) for material in materials]).tolist()
    parts = [_take(states, range(end - len(material), end)) for material, end in zip(materials, ends, strict=True)]
    return {word: Reading(*placed[word], part) for word, part in zip(placed, parts, strict=True)}, reasons


def fit_word(model: Model, records: Sequence[Record], usable: Sequence[str], *, seed: int) -> WordAxes | None:
    """The axes of one word from its fit sentences and donors.

    None where fewer than two senses are left that fit the model.
    """
    weights = read_weights(model)
    fit, donors = (
        _read(model, [r for r in records if r["part"] == part and r["sense"] in usable]) for part in (FIT, DONOR)
    )
    if fit is None or donors is None:
        return None
    labels, given = fit.material.labels, donors.material.labels
    left = sorted({sense for sense in usable if labels.count(sense) >= MIN_PER_SENSE and sense in given})
    if len(left) < 2:
        return None
    fit, donors = (
        part.keep([row for row, sense in enumerate(part.material.labels) if sense in left]) for part in (fit, donors)
    )
    states, labels = fit.states, fit.material.labels
    separations = separation_by_depth(states.resid, labels, splits.cue_words(fit.material.sentences), seed=seed)
    depth = choose_depth(separations)
    axes = [_axis(states.resid[:, depth], labels, pair, depth) for pair in sense_pairs(left)]
    own = [_own(weights, states.z, labels, pair) for pair in sense_pairs(left)]
    return WordAxes(
        senses=tuple(left),
        depth=depth,
        donors=tuple(record["draw"] for record in donors.records),
        u=torch.stack([axis.u for axis in axes]),
        gap=torch.tensor([axis.gap for axis in axes], dtype=torch.float64),
        centre=_centres(states, labels, axes),
        own=torch.stack([direction for direction, _ in own]),
        own_centre=torch.stack([centre for _, centre in own]),
        donor_z=donors.states.z.clone(),
        donor_coordinate=torch.stack([axis.coordinate(donors.states.resid[:, depth]) for axis in axes], dim=1),
        donor_sense=torch.tensor([left.index(sense) for sense in donors.material.labels]),
        by_depth=torch.from_numpy(np.mean([one.auroc for one in separations], axis=0)),
    )


def _read(model: Model, records: Sequence[Record]) -> Reading | None:
    """The records of one word, None where the model can read none of them."""
    return next(iter(read_words(model, records)[0].values()), None)


def _rows_of(labels: Sequence[str], pair: tuple[str, str]) -> list[list[int]]:
    """The rows of each of two senses."""
    return [[row for row, label in enumerate(labels) if label == sense] for sense in pair]


def _axis(resid: Tensor, labels: Sequence[str], pair: tuple[str, str], depth: int) -> Axis:
    a, b = (resid[rows] for rows in _rows_of(labels, pair))
    return fit_axis(a, b, pair, depth)


def _centres(states: TargetStates, labels: Sequence[str], axes: Sequence[Axis]) -> Tensor:
    """<midpoint of the two senses, u> at every stage. `-> pair stage`"""
    stages = torch.stack([states.token_embedding, *states.resid.unbind(1)]).double()  # stage row d_model
    midpoints = []
    for axis in axes:
        along = stages @ axis.u  # stage row
        mean_a, mean_b = (along[:, rows].mean(1) for rows in _rows_of(labels, (axis.sense_a, axis.sense_b)))
        midpoints.append((mean_a + mean_b) / 2)
    return torch.stack(midpoints)


def _own(weights: Weights, z: Tensor, labels: Sequence[str], pair: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """Each head's own direction as coefficients of z, scaled so that the fit means score +1/2 and -1/2.

    The scores of `own_direction_scores` are affine in the write, so its coefficients are read off at the origin
    and at the unit vectors.
    """
    rows = _rows_of(labels, pair)
    a, b = (ledger.write_coordinates(z[chosen], weights) for chosen in rows)  # layer head n d_head
    size = a.shape[-1]
    probes = torch.cat([a.new_zeros(1, size), torch.eye(size, dtype=a.dtype)]).expand(*a.shape[:2], -1, -1)
    scores = own_direction_scores(a, b, probes)  # layer head 1 + d_head
    direction = scores[..., 1:] - scores[..., :1]
    # layer head d_head: score = z · along + constant
    along = (direction.unsqueeze(-2) @ ledger.write_basis(weights)).squeeze(-2)
    means = [(z[chosen].double().mean(0) * along).sum(-1) for chosen in rows]
    gap = means[0] - means[1]
    scale = torch.where(gap > 0, gap, torch.ones_like(gap))
    return along / scale[..., None], (means[0] + means[1]) / 2 / scale


def to_bytes(axes: WordAxes) -> bytes:
    """The axes as a safetensors file, the same bytes from the same axes."""
    about = {"senses": axes.senses, "depth": axes.depth, "donors": axes.donors}
    return save({name: getattr(axes, name).contiguous() for name in TENSORS}, metadata={"about": json.dumps(about)})


def from_file(path: str) -> WordAxes:
    """The axes of a file made by `to_bytes`, whose checksum was compared before."""
    with safe_open(path, framework="pt") as opened:
        about = json.loads(opened.metadata()["about"])
        tensors = {name: opened.get_tensor(name) for name in TENSORS}
    return WordAxes(tuple(about["senses"]), about["depth"], tuple(about["donors"]), **tensors)
