"""The general engine: any family with one stack of blocks, from raw weights, every position of a text carried along.

`probe.patching.engine` carries a single position, because in a causal GPT-2 a change at the word touches nothing before it. Where later
tokens are read, too, a changed vector at the word changes every other vector from the next block on, so here whole texts are
carried: one per variant, from the block on in which it first differs. Exact like the other, and dearer: about one forward of the
upper half of the model per swap. It runs GPT-2 as well, where both engines must agree (tested: 1e-5 in float32).

Texts of unequal length go together only where nothing can be read from the filling: this engine is given equal ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model import ends, forward, replay
from probe.model.architectures import FAMILIES, WHOLE, Attention, require_single
from probe.model.config import Config
from probe.model.load import Model
from probe.model.replay import Weights
from probe.model.weights import Block, Stack, read_stacks

OF_GPT2 = Attention("", "blocks", {}, "", {}, causal=True)


@dataclass(frozen=True)
class General(Stack):
    """All weights of a model with one stack: its blocks, the raw tensors by name, and what the config and the table say."""

    raw: Mapping[str, Tensor]
    config: Config
    attention: Attention

    @property
    def device(self) -> torch.device:
        return self.blocks[0].w_o.device

    @property
    def dtype(self) -> torch.dtype:
        return self.blocks[0].w_o.dtype


def read_whole(model: Model) -> Weights | General:
    """The weights of `model` for a study: GPT-2's for the fast engine, others' for the general one.

    Raises UnsupportedModel for an encoder-decoder, which has no single stack to read a word in.
    """
    return replay.read_weights(model) if model.config.architecture == WHOLE else read_general(model)


def blocks_of(weights: Weights | General) -> Sequence[replay.Block | Block]:
    """The blocks of either, of which what they have in common is read: w_o, b_o, d_mlp."""
    return weights.blocks


def read_general(model: Model) -> General:
    """The weights of `model` for the general engine, GPT-2's too. Raises UnsupportedModel as `read_whole`."""
    config = model.config
    require_single(config.architecture, "the reading of a word")
    if config.architecture == WHOLE:
        blocks = tuple(_of_gpt2(block) for block in replay.read_weights(model).blocks)
        return General(blocks, model.weights, config, OF_GPT2)
    return General(
        read_stacks(model.weights, config)[""].blocks,
        model.weights,
        config,
        FAMILIES[config.architecture].attentions[0],
    )


def _of_gpt2(block: replay.Block) -> Block:
    names = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v", "w_o", "b_o", "w_in", "b_in", "w_out", "b_out")
    norms = {"norm": "ln1_gain", "norm_bias": "ln1_bias", "norm_mlp": "ln2_gain", "norm_mlp_bias": "ln2_bias"}
    return Block(
        **{name: getattr(block, name) for name in names} | {to: getattr(block, of) for to, of in norms.items()}
    )


def embed(weights: General, ids: Tensor) -> Tensor:
    """E before the first block. `batch pos -> batch pos d_model`"""
    return ends.embed(weights.raw, ids, weights.config, dtype=weights.dtype)


def embeddings(weights: Weights | General, ids: Tensor, places: Tensor) -> dict[str, Tensor]:
    """What is added before the first block, by name, of single tokens at their places, on the CPU. `row -> row d_model`, types `d_model`"""
    ids, places = ids.to(weights.device), places.to(weights.device)
    if isinstance(weights, Weights):
        found = {"token embedding": weights.wte[ids], "position embedding": weights.wpe[places]}
    else:
        found = ends.embedding_parts(weights.raw, ids, places, weights.config, dtype=weights.dtype)
    return {name: vectors.cpu() for name, vectors in found.items()}


def attend(weights: General, block: Block, resid: Tensor) -> dict[str, Tensor]:
    """q k v pattern z of one block from what enters it. `... pos d_model -> ... head pos d_head`, pattern `... query_pos key_pos`"""
    config = weights.config
    x = forward.enter(block, resid, config)
    q, k, v = forward.ask(block, x, x, config)
    bias = forward.position_bias(weights.raw, config, weights.attention, resid.shape[-2])
    pattern = forward.softmax(forward.score(q, k, config, weights.attention, bias), config)
    return {"q": q, "k": k, "v": v, "pattern": pattern, "z": formulas.mix(pattern, v)}


def finish(weights: General, block: Block, resid: Tensor, z: Tensor) -> Tensor:
    """What leaves the block when its heads carry z. `... pos d_model, ... head pos d_head -> ... pos d_model`"""
    config = weights.config
    attn_out = z.transpose(-3, -2).flatten(-2) @ block.w_o.flatten(0, 1)
    resid_mid = forward.add(block, resid, attn_out if block.b_o is None else attn_out + block.b_o, config)
    return forward.mlp(block, resid_mid, resid, config)["resid_post"]


def run(weights: General, ids: Tensor, depth: int) -> Sequence[dict[str, Tensor]]:
    """q k v pattern z of the first `depth` blocks of an unchanged run of equally long texts. `batch pos`, shapes as `attend`"""
    resid, found = embed(weights, ids), []
    for block in weights.blocks[:depth]:
        found.append(attend(weights, block, resid))
        resid = finish(weights, block, resid, found[-1]["z"])
    return found


def carry(
    weights: General,
    texts: tuple[Tensor, Tensor],
    tree: Sequence[tuple[Tensor, Tensor]],
    donor: Callable[[int, Tensor], Tensor],
    directions: Tensor,
) -> Tensor:
    """How far every variant's read-out at `at` is from the unchanged one's, along the directions. `-> batch variant direction`

    `texts`: equally long ids `batch pos` and where each is read, `at: batch`; tree and donor as in `probe.patching.swaps`, whose
    variants branch where z at `at` is replaced.
    """
    ids, at = texts
    row = torch.arange(len(ids), device=ids.device)
    carried = embed(weights, ids).unsqueeze(1)  # batch variant pos d_model
    for layer, (parent, swapped) in enumerate(tree):
        block = weights.blocks[layer]
        z = attend(weights, block, carried)["z"]  # batch variant head pos d_head
        own = z[row, :, :, at]  # batch variant head d_head
        here = torch.where(swapped[..., None], donor(layer, own[:, 0]).unsqueeze(1), own[:, parent])
        z = z[:, parent].clone()
        z[row, :, :, at] = here
        carried = finish(weights, block, carried[:, parent], z)
    read = carried[row, :, at]
    return (read - read[:, :1]) @ directions.T
