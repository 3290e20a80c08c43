"""Pass one: what one word is measured along, fitted on its fit part, and the donors of its swaps.

The read-out depth, the sense axes and the heads' own directions are those of the study (`probe.senses`); donors are sentences
of the report part, never measured in their own swap. Everything is tensors, kept as safetensors: nothing is ever unpickled.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from probe import senses, splits
from probe.errors import InputError
from probe.experiment import AS_GOOD
from probe.material import place
from probe.models import Model
from probe.records import TargetStates
from probe.replay import Weights, read_weights
from probe.senses import Axis
from probe.sentences import Sentence
from probe.splits import FIT, MIN_PER_SENSE
from probe.statistics import TIE
from probe.sweep.deal import DONOR, Record, sentence_of
from probe.tokens import tokenize
from probe.trace import target_states


@dataclass(frozen=True, eq=False)
class WordAxes:
    """What a word is measured along; `pair` counts the unordered pairs of `senses`, which are in alphabetical order.

    `u: pair d_model`, unit length · `gap: pair` · `centre: pair stage`, <midpoint, u> for the token embedding (stage 0), then
    depths 0, 1, ... · `own: pair layer head d_head` and `own_centre: pair layer head`: a head's score z · own - own_centre is
    about +1/2 for the pair's first sense, -1/2 for the second · `donor_z: donor layer head d_head`, `donor_coordinate: donor
    pair`, `donor_sense: donor`, the number of the sense · `donors`: the draws of the donors · `by_depth: depth`, the AUROCs
    that `depth` was chosen by.
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


def sense_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Every unordered pair of senses, in alphabetical order."""
    return senses.sense_pairs(sorted(names))


@dataclass(frozen=True, eq=False)
class Placed:
    """Sentences that the model can be asked about, with their places among those given; `cues` are token positions."""

    rows: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]
    cues: tuple[range | None, ...]
    states: TargetStates

    def take(self, chosen: Sequence[int]) -> "Placed":
        """Only these of the sentences, in this order."""
        whole = self.states
        states = TargetStates(**{field.name: getattr(whole, field.name)[list(chosen)] for field in fields(whole)})
        rows, ids = tuple(self.rows[index] for index in chosen), tuple(self.ids[index] for index in chosen)
        return Placed(rows, ids, tuple(self.cues[index] for index in chosen), states)


def read_states(model: Model, sentences: Sequence[Sentence]) -> tuple[Placed | None, dict[int, str]]:
    """The states of the sentences that fit the model, and why each of the others does not."""
    found, reasons = {}, {}
    for row, sentence in enumerate(sentences):
        try:
            found[row] = place(model, sentence)
        except InputError:
            reasons[row] = _why_not(model, sentence)
    if not found:
        return None, reasons
    tokens, targets = [tokens for tokens, _, _ in found.values()], [word[-1] for _, word, _ in found.values()]
    states = target_states(model, tokens, targets)
    ids = tuple(cut.ids[: target + 1] for cut, target in zip(tokens, targets, strict=True))
    return Placed(tuple(found), ids, tuple(cue for _, _, cue in found.values()), states), reasons


def _why_not(model: Model, sentence: Sentence) -> str:
    try:
        tokenize(model, sentence.text)
    except InputError:  # of what can be wrong with a text only its length is left by now
        return f"longer than the {model.config.n_ctx} tokens that the model reads"
    return "its word or its cue is on no token of the model"


def fit_word(model: Model, records: Sequence[Record], usable: Sequence[str], *, seed: int) -> WordAxes | None:
    """The axes of one word from its fit sentences and donors; None where fewer than two senses are left that fit the model."""
    weights = read_weights(model)
    fit, donors = (
        _read(model, [r for r in records if r["part"] == part and r["sense"] in usable]) for part in (FIT, DONOR)
    )
    if fit is None or donors is None:
        return None
    left = sorted({sense for sense in usable if fit[1].count(sense) >= MIN_PER_SENSE and sense in donors[1]})
    if len(left) < 2:
        return None
    fit, donors = (_only(part, left) for part in (fit, donors))
    placed, labels, kept = fit
    depth, by_depth = _depth(placed.states, labels, [sentence_of(record) for record in kept], seed)
    axes = [_axis(placed.states.resid[:, depth], labels, pair, depth) for pair in sense_pairs(left)]
    own = [_own(weights, placed.states.z, labels, pair) for pair in sense_pairs(left)]
    given = donors[0].states
    return WordAxes(
        senses=tuple(left),
        depth=depth,
        donors=tuple(record["draw"] for record in donors[2]),
        u=torch.stack([axis.u for axis in axes]),
        gap=torch.tensor([axis.gap for axis in axes], dtype=torch.float64),
        centre=_centres(placed.states, labels, axes),
        own=torch.stack([direction for direction, _ in own]),
        own_centre=torch.stack([centre for _, centre in own]),
        donor_z=given.z.clone(),
        donor_coordinate=torch.stack([axis.coordinate(given.resid[:, depth]) for axis in axes], dim=1),
        donor_sense=torch.tensor([left.index(sense) for sense in donors[1]]),
        by_depth=torch.from_numpy(np.asarray(by_depth, dtype=np.float64)),
    )


Read = tuple[Placed, list[str], list[Record]]


def _read(model: Model, records: Sequence[Record]) -> Read | None:
    """The states of the records that the model can be asked about, with their senses."""
    placed, _ = read_states(model, [sentence_of(record) for record in records])
    if placed is None:
        return None
    kept = [records[row] for row in placed.rows]
    return placed, [record["sense"] for record in kept], kept


def _only(read: Read, names: Sequence[str]) -> Read:
    placed, labels, records = read
    rows = [row for row, label in enumerate(labels) if label in names]
    return placed.take(rows), [labels[row] for row in rows], [records[row] for row in rows]


def _depth(
    states: TargetStates, labels: Sequence[str], sentences: Sequence[Sentence], seed: int
) -> tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """The read-out depth, as the study chooses it: of those that separate about as well as the best, the last."""
    separation = senses.separation_by_depth(states.resid, labels, splits.cue_units(sentences), seed=seed)
    as_good = separation[1:] >= (AS_GOOD - TIE) * separation[1:].max()
    return int(np.flatnonzero(as_good)[-1]) + 1, separation


def _axis(resid: Tensor, labels: Sequence[str], pair: tuple[str, str], depth: int) -> Axis:
    a, b = (resid[[row for row, label in enumerate(labels) if label == sense]] for sense in pair)
    return senses.fit_axis(a, b, pair, depth)


def _centres(states: TargetStates, labels: Sequence[str], axes: Sequence[Axis]) -> Tensor:
    """<midpoint of the two senses, u> at every stage. `-> pair stage`"""
    stages = torch.stack([states.token_embedding, *states.resid.unbind(1)]).double()  # stage row d_model
    found = []
    for axis in axes:
        along = stages @ axis.u  # stage row
        means = [
            along[:, [row for row, label in enumerate(labels) if label == sense]].mean(1)
            for sense in (axis.sense_a, axis.sense_b)
        ]
        found.append((means[0] + means[1]) / 2)
    return torch.stack(found)


def _own(weights: Weights, z: Tensor, labels: Sequence[str], pair: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """Each head's own direction as coefficients of z, scaled so that the fit means score +1/2 and -1/2.

    The scores of `senses.own_direction_scores` are affine in the write, so its coefficients are read off at the origin and at
    the unit vectors.
    """
    rows = [[row for row, label in enumerate(labels) if label == sense] for sense in pair]
    a, b = (senses.write_coordinates(z[chosen], weights) for chosen in rows)  # layer head n d_head
    size = a.shape[-1]
    probes = torch.cat([a.new_zeros(1, size), torch.eye(size, dtype=a.dtype)]).expand(*a.shape[:2], -1, -1)
    scores = senses.own_direction_scores(a, b, probes)  # layer head 1 + d_head
    direction = scores[..., 1:] - scores[..., :1]
    w_o = torch.stack([block.w_o for block in weights.blocks]).cpu().double()
    r = torch.linalg.qr(w_o.transpose(-1, -2)).R
    along = (direction.unsqueeze(-2) @ r).squeeze(-2)  # layer head d_head: score = z · along + constant
    means = [(z[chosen].double().mean(0) * along).sum(-1) for chosen in rows]
    gap = means[0] - means[1]
    scale = torch.where(gap > 0, gap, torch.ones_like(gap))
    return along / scale[..., None], (means[0] + means[1]) / 2 / scale


def to_bytes(axes: WordAxes) -> bytes:
    """The axes as a safetensors file, the same bytes from the same axes (of several entries of text the order would vary)."""
    about = {"senses": axes.senses, "depth": axes.depth, "donors": axes.donors}
    return save({name: getattr(axes, name).contiguous() for name in TENSORS}, metadata={"about": json.dumps(about)})


def from_file(path: str) -> WordAxes:
    """The axes of a file made by `to_bytes`, whose checksum was compared before."""
    with safe_open(path, framework="pt") as opened:
        about = json.loads(opened.metadata()["about"])
        tensors = {name: opened.get_tensor(name) for name in TENSORS}
    return WordAxes(
        senses=tuple(about["senses"]),
        depth=about["depth"],
        donors=tuple(about["donors"]),
        **tensors,
    )
