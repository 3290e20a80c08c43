"""The surprisal of a word in its sentences, and of nouns in its position.

    surprisal = -log p(word | everything before it), in nats

An ambiguous word is often the expected word. A head that responds to expected words would do more
for it than for nouns that nobody expects.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from probe.experiments.material import Material
from probe.model import forward
from probe.model.weights import Weights
from probe.stats.resampling import Array

ROWS = 64  # sentences whose logits are in memory at once


def surprisals(
    weights: Weights,
    before: Tensor,
    material: Material,
    rows: Sequence[int],
    ids: Mapping[str, Sequence[int]],
) -> dict[str, Array]:
    """The surprisal of some words in the position of the word, in nats, by word. `row` each

    before: the residual stream after the last block, at the token before the word. `row d_model`
    rows: the rows of the sentences
    ids: the token of each word

    NaN for other rows, and for sentences that begin with the word.
    """
    # The first token of a text has no token before it that could predict it.
    rows_read = [row for row in rows if material.words[row].start > 0]
    nats_of = {name: np.full(len(material), np.nan) for name in ids}
    token_ids = torch.tensor([token for (token,) in ids.values()], dtype=torch.long)
    for start in range(0, len(rows_read), ROWS):
        here = rows_read[start : start + ROWS]
        logits = forward.unembed(weights, before[here].to(weights.device)).double().cpu()
        # -log softmax(logits)[token] = logsumexp(logits) - logits[token]
        nats = (logits.logsumexp(-1, keepdim=True) - logits[:, token_ids]).numpy()  # row word
        for column, name in enumerate(ids):
            nats_of[name][here] = nats[:, column]
    return nats_of
