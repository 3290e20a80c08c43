"""Accuracy with heads taken out at the word: how much heads that were found on constructed
sentences matter on natural sentences.

A head is taken out at the word only, in one of three ways. Its z there is replaced by

    mean         its mean over the training part (mean ablation)
    swap         its z in a random sentence of the training part (resample ablation)
    same_sense   its z in a random sentence of the same sense

"swap" removes the head's information and adds that of a random sentence. "same_sense" only disturbs
the head. Everything after the head responds. The same ablations, on the same sentences and with the
same donors, are run for random sets of other heads, with the same number of heads in every layer:
they show the cost of removing any heads of these layers.

The centroids are fitted on the intact model and are not fitted again without the heads. The
question is whether the word's vector still has its sense where its readers expect it, above all the
later layers of the trained model. For the same reason, every swap of this package is read along
axes of unchanged runs. Centroids that were fitted again would answer another question: whether a
new reader could learn any trace of the context, such as a copy that nothing reads. A head that no
other head makes up for would then seem to do nothing.

With the mean of z, accuracy therefore falls to what the other heads bring to the word: at best that
of a bag of words, at worst that of the most frequent sense. With the z of a random sentence it can
fall further, because the donor's sense comes with it. Each tested sentence is run once for each
set, whatever the number of folds that learn from it.

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
from probe.model.variants import TargetText
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import target_texts
from probe.patching.sets import HeadIndex, Mask, mask_of, other_sets
from probe.text.splits import Holdout

# Random sets that the ablated heads are compared with: with 20 sets, the smallest p is 1/21.
RANDOM_SETS = 20
MORE_RANDOM_SETS = 99
FEW_SENTENCES = 1000  # tested sentences up to which MORE_RANDOM_SETS are run
KINDS = ("mean", "swap", "same_sense")
SENTENCES = 64  # sentences that are run together: each has directions as large as its stream


@dataclass(frozen=True, eq=False)
class HeadsOut:
    """Heads to take out, and the random sets that they are compared with.

    heads: the heads
    masks: `1 + random layer head`, True for a head that is taken out; the first set is `heads`
    """

    heads: tuple[HeadIndex, ...]
    masks: Mask

    @property
    def layers(self) -> list[int]:
        """The layers from which heads are taken out, equal for every set."""
        layers: list[int] = np.flatnonzero(self.masks[0].any(1)).tolist()
        return layers

    @property
    def names(self) -> list[str]:
        return [f"L{layer}H{head}" for layer, head in self.heads]


def with_random_sets(
    heads: Sequence[HeadIndex], shape: tuple[int, int], *, number: int = RANDOM_SETS, seed: int
) -> HeadsOut:
    """Heads to take out, with random sets of other heads that have the same number in every layer.

    shape: the numbers of layers and heads of the model
    number: the number of random sets; fewer if there are not so many
    """
    mask = mask_of(heads, shape)
    random_masks = other_sets(mask, number, np.random.default_rng(seed))
    return HeadsOut(tuple(heads), np.concatenate([mask[None], random_masks]))


class WordStates(NamedTuple):
    """The states at the word in unchanged runs.

    resid: `sentence depth d_model`, the residual stream
    z: `sentence layer head d_head`, of the layers from which heads are taken out
    """

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
    """The sense whose intact centroid is nearest to every tested sentence, with each set of heads
    taken out.

    `-> kind 1 + random sentence depth`; 0 for sentences that are not tested

    states: of all sentences in unchanged runs
    labels: the number of each sentence's sense
    out: the sets of heads
    seed: of the donors
    """
    rng = np.random.default_rng(seed)
    learned = [learn(states, labels, holdout, rng) for holdout in holdouts]
    learned_for = {row: training for training in learned for row in training.donors}
    texts = target_texts(weights, material.texts, "Cannot take heads out")
    # Sentences of equal length are run together, and tokens that they share are run once.
    order = sorted(learned_for, key=lambda row: (len(texts[row].ids), row))
    predicted = np.zeros((len(KINDS), len(out.masks), *states.resid.shape[:2]), dtype=np.int64)
    for start in range(0, len(order), SENTENCES):
        here = order[start : start + SENTENCES]
        # The new z of every kind, in the order of KINDS. `kind sentence layer head d_head`
        z = torch.stack(
            [
                torch.stack([learned_for[row].mean_z for row in here]),
                states.z[[learned_for[row].donors[row] for row in here]],
                states.z[[learned_for[row].same_sense[row] for row in here]],
            ]
        )
        centroids = [learned_for[row].centroids for row in here]
        nearest = _nearest(
            weights, [texts[row] for row in here], states.resid[here], z, centroids, out
        )
        senses = np.stack([each.senses for each in centroids])  # sentence sense
        sentence = np.arange(len(here))[:, None]
        predicted[:, :, here] = senses[sentence, nearest]
    return predicted


class Learned(NamedTuple):
    """The centroids and donors from the training part of a holdout.

    centroids: of the senses
    mean_z: `layer head d_head`
    donors: by tested sentence, a random training sentence
    same_sense: by tested sentence, a random training sentence of its sense
    """

    centroids: Centroids
    mean_z: Tensor
    donors: dict[int, int]
    same_sense: dict[int, int]


def learn(
    states: WordStates, labels: Senses, holdout: Holdout, rng: np.random.Generator
) -> Learned:
    """The centroids and donors of a holdout.

    states: of all sentences in unchanged runs
    labels: the number of each sentence's sense
    rng: draws the donors
    """
    train = list(holdout.train)
    random_rows = rng.choice(train, len(holdout.test)).tolist()
    donors = dict(zip(holdout.test, random_rows, strict=True))
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
    """The number of the centroid that is nearest to each sentence if each set of heads has another
    z at the word.

    `-> kind set sentence depth`

    resid: `sentence depth d_model`, of unchanged runs
    z: `kind sentence layer head d_head`, the other z
    centroids: of each sentence

    All kinds and sets are variants of one run. Only differences from the first centroid are read,
    so that equal centroids remain a tie, however the sums are rounded.
    """
    # The cosines of the unchanged run, as in `predict`. Heads change them after the first block.
    cosine = np.concatenate(
        [cosines(row[None], of_row) for row, of_row in zip(resid, centroids, strict=True)]
    )
    differences = torch.stack([of_row.unit[1:, 1:] - of_row.unit[1:, :1] for of_row in centroids])
    # cos(x', c) - cos(x', c_0) ∝ <x, c - c_0> / |x| + <x' - x, c - c_0> / |x|
    # x' is the changed vector. Its length is a factor for all centroids, so it changes no order.
    lengths = resid[:, 1:].double().norm(dim=-1).clamp_min(SMALLEST_NORM)
    directions = differences / lengths[..., None, None]
    donor_z = z.new_zeros(len(KINDS) * len(texts), *out.masks.shape[1:], z.shape[-1])
    donor_z[:, out.layers] = z.flatten(0, 1)
    changes = swap_sets(
        weights,
        [*texts] * len(KINDS),
        donor_z,
        torch.from_numpy(~out.masks),
        directions.to(resid.dtype).repeat(len(KINDS), 1, 1, 1),  # row stage sense d_model
    )
    # `kind sentence set depth sense`
    by_kind = changes.double().unflatten(0, (len(KINDS), -1)).numpy()
    # How far each centroid is ahead of the first one: unchanged at depth 0 and for the first.
    ahead = (cosine - cosine[..., :1])[None, :, None]
    ahead = np.broadcast_to(ahead, (*by_kind.shape[:3], *ahead.shape[3:])).copy()
    ahead[..., 1:, 1:] += by_kind
    nearest: NDArray[np.intp] = np.round(ahead, TIE_DECIMALS).argmax(-1).swapaxes(1, 2)
    return nearest
