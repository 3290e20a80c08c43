"""Other tokens in the place of a word: what the word's position then holds at every depth.

A one-meaning noun in the word's place is one more variant of the last position: a causal model has
run everything before the word already, so a variant costs its own tokens and nothing else. A model
that reads both ways runs the whole text, since a new token changes what every other position reads.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probe.model import forward, fused
from probe.model.fused import PositionTables
from probe.model.tokens import TargetText, batch_by_length, in_order
from probe.model.weights import Weights

NUMBERS = 2**22  # of the widest tensor of a batch, as for swaps: it stays near the processor


class ReplacedStates(NamedTuple):
    """The states at the word with other tokens in its place, on the CPU.

    `resid: row variant depth d_model`, depth 0 entering the first block · `z: row variant layer
    head d_head` · `hidden: row variant layer d_mlp`, the activations of the MLPs.
    """

    resid: Tensor
    z: Tensor
    hidden: Tensor


def replace_tokens(
    weights: Weights,
    texts: Sequence[TargetText],
    replacements: Sequence[Sequence[int]],
    *,
    parts: Sequence[str] = ReplacedStates._fields,
) -> ReplacedStates:
    """States at the word of every text with each of some other tokens in the word's place.

    `texts`: each with the position `at` of the word's last token · `replacements`: a list of token
    ids for every variant, all of them as many as the word has tokens, which stand at the positions
    up to and including `at` · `parts`: what is kept, the others are empty, for memory. Each row of
    the result is what a run of the changed text alone gives.
    """
    tokens = torch.tensor(replacements, dtype=torch.long, device=weights.device)  # variant token
    rows = [TargetText(text.ids[: text.at + 1], text.at) for text in texts]
    rows = rows if weights.causal else list(texts)
    order = sorted(range(len(rows)), key=lambda row: rows[row].ids)
    lengths = [len(rows[row].ids) for row in order]
    live = tokens.shape[1] if weights.causal else max(lengths)
    most = max(1, NUMBERS // (len(tokens) * weights.blocks[0].d_mlp * live))
    batches = [
        [order[index] for index in batch] for batch in batch_by_length(lengths, most_rows=most)
    ]
    with torch.inference_mode():
        tables = fused.position_tables(weights, max(lengths))
        states = [
            _run(weights, [rows[row] for row in batch], tokens, tables, parts) for batch in batches
        ]
        whole = [torch.cat(part)[in_order(batches)] for part in zip(*states, strict=True)]
    return ReplacedStates(*(part.clone() for part in whole))


def _run(
    weights: Weights,
    texts: Sequence[TargetText],
    tokens: Tensor,
    tables: PositionTables,
    parts: Sequence[str],
) -> ReplacedStates:
    """`replace_tokens` of equally long texts."""
    ids = torch.tensor([text.ids for text in texts], device=weights.device)
    at = torch.tensor([text.at for text in texts], device=weights.device)
    variants, width = tokens.shape
    unchanged = ids.shape[1] - width if weights.causal else 0  # positions before the word
    row = torch.arange(len(ids), device=weights.device)
    here = at - unchanged
    live = ids[:, None, unchanged:].repeat(1, variants, 1)  # row variant live
    for offset in range(width):
        live[row, :, here - width + 1 + offset] = tokens[:, offset]
    pos = torch.arange(unchanged, ids.shape[1], device=weights.device)
    embeddings = forward.embedding_parts(weights, live.flatten(0, 1), pos)
    entering = forward.embedding_norm(weights, forward.sum_embeddings(embeddings))
    carried = entering.unflatten(0, live.shape[:2])  # row variant live d_model
    before = fused.run(
        weights, [text.ids[:unchanged] for text in texts], len(weights.blocks), tables
    )
    parallel = weights.config.family.parallel
    states: dict[str, list[Tensor]] = {"resid": [carried[row, :, here]], "z": [], "hidden": []}
    for block in weights.blocks:
        known = None
        if weights.causal:
            _, k, v = next(before)
            known = k, v
        z = fused.attend_live(weights, block, carried, known, tables)
        resid_mid = fused.write(weights, block, carried, z)
        hidden = fused.activate(weights, block, carried if parallel else resid_mid)
        if "z" in parts:
            heads = (len(ids), variants, *weights.shape[1::2])
            # 0 where the layer has no heads
            of_heads = z[row, :, here] if block.mixer is None else z.new_zeros(heads)
            states["z"].append(of_heads)
        if "hidden" in parts:
            states["hidden"].append(hidden[row, :, here])
        carried = fused.write_mlp(weights, block, resid_mid, hidden)
        states["resid"].append(carried[row, :, here])
    nothing = carried.new_empty(len(ids), variants, 0)
    stacked = {
        name: torch.stack(part, dim=2).cpu() if part else nothing for name, part in states.items()
    }
    return ReplacedStates(**stacked)
