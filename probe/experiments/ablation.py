"""Accuracy with heads taken out at the word: what heads that were found on prepared sentences are
worth on sentences that nobody prepared.

A head is taken out at the word only, in three ways: its z there becomes its mean over the training
part ("mean", a mean ablation), that of a random sentence of the training part ("swap", a resample
ablation), or that of a random sentence of the same sense ("same_sense"). The second takes away what
the head knows and puts in what is wrong; the third only disturbs it. Everything after it responds.
The same happens on the same sentences, with the same donors, for random sets of other heads, as
many in every layer: what any heads of these layers would cost.

The centroids are those of the intact model and are not fitted again without the heads. What is
asked is whether the word still says its sense where everything that reads its vector, the later
layers of the trained model first of all, looks for it; every swap of this package is read along
axes of unchanged runs for the same reason. Centroids that are fitted again would ask whether any
trace of the context is left that a new reader could learn, such as a copy that nothing reads: a
head whose effect nothing makes up for would then seem to do nothing. So with the heads' mean
accuracy falls to what the other heads bring to the word, as a bag of words at best, and to the most
frequent sense at worst; with a random sentence's z it can fall further, because the donor's sense
comes with it. It follows that each tested sentence is run once for each set, however many folds
learn from it.

Sources: Wang et al. 2022 (mean ablation over a reference distribution); Chan et al. 2022 (resample
ablation).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.experiments.centroids import (
    SMALLEST_NORM,
    TIE_DECIMALS,
    Centroids,
    Senses,
    cosines,
    fit_centroids,
)
from probe.experiments.material import Material
from probe.model.tokens import TargetText
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import target_texts
from probe.patching.sets import HeadIndex, Mask, mask_of, other_sets
from probe.text.splits import Holdout

# Random sets beside the heads that are taken out: with 20 no p comes below 1/21.
RANDOM_SETS = 20
MORE_RANDOM_SETS = 99
FEW_SENTENCES = 1000  # up to so many are tested without MORE_RANDOM_SETS, too
KINDS = ("mean", "swap", "same_sense")
SENTENCES = 64  # that are run together: the directions of each are as large as its stream


@dataclass(frozen=True, eq=False)
class HeadsOut:
    """Heads to take out, and the random sets beside them. `masks: 1 + random layer head`, True
    where a head is taken out, the set that was asked for first."""

    heads: tuple[HeadIndex, ...]
    masks: Mask

    @property
    def layers(self) -> list[int]:
        """The layers that a head is taken out of, the same for every set."""
        layers: list[int] = np.flatnonzero(self.masks[0].any(1)).tolist()
        return layers

    @property
    def names(self) -> list[str]:
        return [f"L{layer}H{head}" for layer, head in self.heads]


def with_random_sets(
    heads: Sequence[HeadIndex], shape: tuple[int, int], *, number: int = RANDOM_SETS, seed: int
) -> HeadsOut:
    """Heads to take out, and so many sets of other heads, or all there are.

    shape: layers and heads of the model.
    """
    mask = mask_of(heads, shape)
    others = other_sets(mask, number, np.random.default_rng(seed))
    return HeadsOut(tuple(heads), np.concatenate([mask[None], others]))


class WordStates(NamedTuple):
    """What was read at a word in unchanged runs: the stream, `resid: sentence depth d_model`, and z
    of the layers that heads are taken out of, `z: sentence layer head d_head`."""

    resid: Tensor
    z: Tensor


def predict_without(
    weights: Weights,
    material: Material,
    states: WordStates,
    labels: Senses,
    holdouts: Sequence[Holdout],
    out: HeadsOut,
    *,
    seed: int,
) -> Senses:
    """The nearest intact centroid of every tested sentence with each set of heads taken out. `->
    kind 1 + random sentence depth`; sentences that are not tested have 0.
    """
    rng = np.random.default_rng(seed)
    learned = [learn(states, labels, holdout, rng) for holdout in holdouts]
    from_holdout = {row: one for one in learned for row in one.donors}
    texts = target_texts(weights, material.texts, "Taking heads out")
    # Sentences of one length are run together, and what they share is run once.
    order = sorted(from_holdout, key=lambda row: (len(texts[row].ids), row))
    predicted = np.zeros((len(KINDS), len(out.masks), *states.resid.shape[:2]), dtype=np.int64)
    for start in range(0, len(order), SENTENCES):
        here = order[start : start + SENTENCES]
        training = [from_holdout[row] for row in here]
        places = list(zip(training, here, strict=True))
        z = torch.stack(
            [
                torch.stack([one.mean_z for one in training]),
                states.z[[one.donors[row] for one, row in places]],
                states.z[[one.same_sense[row] for one, row in places]],
            ]
        )
        centroids = [one.centroids for one in training]
        nearest = _nearest(
            weights, [texts[row] for row in here], states.resid[here], z, centroids, out
        )
        senses = np.stack([one.senses for one in centroids])  # sentence sense
        sentence = np.arange(len(here))[:, None]
        predicted[:, :, here] = senses[sentence, nearest]
    return predicted


class Learned(NamedTuple):
    """What is taken from the training part of a holdout: the centroids, `mean_z: layer head
    d_head`, and for each sentence that is tested one at random, `donors`, and one of its sense,
    `same_sense`."""

    centroids: Centroids
    mean_z: Tensor
    donors: dict[int, int]
    same_sense: dict[int, int]


def learn(
    states: WordStates, labels: Senses, holdout: Holdout, rng: np.random.Generator
) -> Learned:
    """The training part of a holdout, with donors drawn for the sentences that are tested."""
    train = list(holdout.train)
    drawn = rng.choice(train, len(holdout.test)).tolist()
    donors = dict(zip(holdout.test, drawn, strict=True))
    of_sense = {sense: [row for row in train if labels[row] == sense] for sense in set(labels)}
    same_sense = {row: int(rng.choice(of_sense[labels[row]])) for row in holdout.test}
    centroids = fit_centroids(states.resid, labels, holdout)
    return Learned(centroids, states.z[train].mean(0), donors, same_sense)


def _nearest(
    weights: Weights,
    texts: Sequence[TargetText],
    resid: Tensor,
    z: Tensor,
    centroids: Sequence[Centroids],
    out: HeadsOut,
) -> NDArray[np.intp]:
    """Which of its centroids each sentence is nearest to when each set of heads has another z at
    the word. `z: kind sentence layer head d_head` -> `kind set sentence depth`

    All kinds and sets are variants of one run. Only what tells a centroid from the first one is
    read, so that equal centroids stay a tie however the sums are rounded.
    """
    # The unchanged run, as `predict` has it; behind the first block, what changes.
    cosine = np.concatenate(
        [cosines(row[None], own) for row, own in zip(resid, centroids, strict=True)]
    )
    apart = torch.stack([own.unit[1:, 1:] - own.unit[1:, :1] for own in centroids])
    # A change of the projection as a change of the cosine, but for the length of the vector.
    apart = apart / resid[:, 1:].double().norm(dim=-1).clamp_min(SMALLEST_NORM)[..., None, None]
    donor_z = z.new_zeros(len(KINDS) * len(texts), *out.masks.shape[1:], z.shape[-1])
    donor_z[:, out.layers] = z.flatten(0, 1)
    moved = swap_sets(
        weights,
        [*texts] * len(KINDS),
        donor_z,
        torch.from_numpy(~out.masks),
        apart.to(resid.dtype).repeat(len(KINDS), 1, 1, 1),  # row stage sense d_model
    )
    by_kind = moved.double().unflatten(0, (len(KINDS), -1)).numpy()  # kind sentence set depth sense
    ahead = (cosine - cosine[..., :1])[None, :, None]
    ahead = np.broadcast_to(ahead, (*by_kind.shape[:3], *ahead.shape[3:])).copy()
    ahead[..., 1:, 1:] += by_kind
    nearest: NDArray[np.intp] = np.round(ahead, TIE_DECIMALS).argmax(-1).swapaxes(1, 2)
    return nearest
