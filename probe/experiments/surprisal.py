"""How expected a word is where it stands, and how expected nouns are in its place.

    surprisal = -log p(word | everything before it), in nats

An ambiguous word is often the expected one, and a head that responds to what is expected would do
more for it than for nouns that nobody expects.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from probe.experiments.material import Material
from probe.model import forward
from probe.model.weights import Weights
from probe.stats.resampling import Array

ROWS = 64  # sentences whose logits are held at once


def surprisals(
    weights: Weights,
    before: Tensor,
    material: Material,
    rows: Sequence[int],
    ids: Mapping[str, Sequence[int]],
) -> dict[str, Array]:
    """The surprisal of some words in the place of the word, in nats, by word.

    before: the stream after the last block in front of the word. `row d_model`
    rows: the sentences. ids: the token of each word.
    Missing (NaN) in other sentences, and in those that begin with the word. `row` each
    """
    known = [row for row in rows if material.words[row].start > 0]
    found = {name: np.full(len(material), np.nan) for name in ids}
    chosen = torch.tensor([token for (token,) in ids.values()], dtype=torch.long)
    for start in range(0, len(known), ROWS):
        here = known[start : start + ROWS]
        logits = forward.unembed(weights, before[here].to(weights.device)).double().cpu()
        nats = (logits.logsumexp(-1, keepdim=True) - logits[:, chosen]).numpy()  # row word
        for column, name in enumerate(ids):
            found[name][here] = nats[:, column]
    return found
