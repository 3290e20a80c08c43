"""What a vector of the residual stream reads as: the next token if the model stopped there, and the tokens it lies
near.

Depth 0 enters the first block, depth d leaves block d - 1. Before the last depth the logit lens is a reading, not a
thing that the model does.

Source: nostalgebraist 2020 (the logit lens).
"""

from collections.abc import Collection

import torch
from torch import Tensor
from torch.nn.functional import normalize

from probe.model import attention, forward
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import position


def residual_stream(trace: Trace, at: int | str) -> Tensor:
    """The vector at position `at`, or at a word, at every depth. `-> depth d_model`, layers + 1 of them"""
    at = position(trace.tokens, at)
    return torch.cat([trace.resid_pre[:, at], trace.resid_post[-1:, at]])


def logit_lens(trace: Trace, at: int | str) -> Tensor:
    """Probability of every next token, read from each depth as if it were the last: softmax(LN_f(E) W_Uᵀ).

    `-> depth d_vocab`
    """
    stream = residual_stream(trace, at).to(trace.weights.device)
    trace.logits  # noqa: B018 (raises where there is no language-model head)
    return attention.softmax(forward.unembed(trace.weights, stream)).cpu()


def nearest_tokens(
    model: Model, vector: Tensor, *, count: int = 5, without: Collection[int] = ()
) -> tuple[tuple[int, float], ...]:
    """The ids of the tokens whose embeddings are nearest to `vector` by cosine, with the cosines, nearest first.

    `d_model -> count (id, cosine)`. `without` are ids left out, such as the word that one started from.
    """
    table = model.weights[model.config.family.embed + ".weight"]
    cosines = normalize(table, dim=-1) @ normalize(vector.to(table), dim=-1)
    cosines[list(without)] = -torch.inf
    top = cosines.topk(count)
    return tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
