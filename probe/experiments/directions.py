"""What the matrices of a head can read and write: their leading singular directions, as tokens.

Directions are singular vectors of W_V W_O and of W_Q W_Kᵀ, without biases and without rotation,
which is the identity at distance 0. A direction is listed as the tokens whose vectors are furthest
along it, on either side. The vector of a token is its embedding, from layer 1 on after MLP 0,
because early heads read and write vectors that MLP 0 has changed. For a direction that a head
reads, it is also normed as the input of the head.

Source: Millidge & Black 2022 (singular vectors as tokens).
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from probe.model import blocks, forward
from probe.model.model import Model
from probe.model.tokens import whole_words
from probe.model.weights import Block, Weights, weights_of
from probe.patching.sets import HeadIndex
from probe.stats import resampling

DIRECTIONS = 3  # leading singular directions of each matrix
ENDS = 6  # tokens on each side of a direction
MOST_WORDS = 10_000  # of the vocabulary, which are the tokens of directions


class Direction(NamedTuple):
    """The leading singular directions of a matrix, the strongest first.

    shares: of its squared norm. `direction`
    reads, writes: `d_model direction`; of W_Q W_Kᵀ, the directions of the query and of the key
    """

    shares: Tensor
    reads: Tensor
    writes: Tensor


def leading_directions(first: Tensor, second: Tensor) -> Direction:
    """The DIRECTIONS leading singular directions of first @ second, in float64.

    `d_model d_head, d_head d_model`
    """
    # SVD of R_1 R_2ᵀ, which is d_head wide, with first = Q_1 R_1 and secondᵀ = Q_2 R_2.
    q_first, r_first = torch.linalg.qr(first.double().cpu())
    q_second, r_second = torch.linalg.qr(second.double().cpu().T)
    left, sizes, right = torch.linalg.svd(r_first @ r_second.T)
    reads = (q_first @ left)[:, :DIRECTIONS]
    writes = (q_second @ right.T)[:, :DIRECTIONS]
    # A pair of directions has no sign: the largest coordinate of the first is made positive.
    largest = reads.abs().argmax(0, keepdim=True)
    signs = reads.gather(0, largest).sign()
    shares = sizes.square() / sizes.square().sum()
    return Direction(shares[:DIRECTIONS], reads * signs, writes * signs)


def random_shares(d_model: int, d_head: int) -> Tensor:
    """The shares that the directions of a random matrix of a head's shape hold. `direction`"""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(d_model, d_head, generator=generator)
    second = torch.randn(d_head, d_model, generator=generator)
    return leading_directions(first, second).shares


def directions_of(weights: Weights, block: Block, head: int) -> dict[str, Direction]:
    """The leading directions of W_V W_O ("OV") and of W_Q W_Kᵀ ("QK") of a head, with the gains of
    the norms of queries, keys and writes.
    """
    config = weights.config
    shared = head // (config.n_heads // config.n_kv_heads)

    def with_gain(matrix: Tensor, number: int, gain: Tensor | None) -> Tensor:
        if gain is None:
            return matrix
        # A norm of all heads together has a gain for each.
        gain = blocks.gain_of(gain, config).unflatten(0, (-1, config.d_head))
        return matrix * gain[number if len(gain) > 1 else 0]

    w_q = with_gain(block.w_q[head], head, block.norm_q)
    w_k = with_gain(block.w_k[shared], shared, block.norm_k)
    w_o = block.w_o[head]
    if config.family.norm_after_write:
        w_o = w_o * blocks.gain_of(block.norm_out, config)
    return {
        "OV": leading_directions(block.w_v[shared], w_o),
        "QK": leading_directions(w_q, w_k.T),
    }


def streams_of_tokens(weights: Weights, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The stream of single tokens without their position, as it enters block 0 and block 1, if the
    heads of block 0 wrote nothing. `token d_model` each
    """
    block = weights.blocks[0]
    parts = forward.embedding_parts(weights, ids, torch.zeros_like(ids))
    parts.pop("position embedding", None)
    entering = forward.embedding_norm(weights, forward.sum_embeddings(parts))
    nothing = entering.new_zeros(len(ids), *block.w_o.shape[:2])
    resid_mid = blocks.after_attention(weights, block, entering, nothing)
    is_parallel = weights.config.family.parallel_attn_mlp
    hidden = blocks.activate(weights, block, entering if is_parallel else resid_mid)
    return entering, blocks.after_mlp(weights, block, resid_mid, hidden)


def vocabulary(model: Model) -> tuple[list[str], list[int]]:
    """The first MOST_WORDS whole words of the vocabulary that are one token inside a sentence, and
    their ids. Most vocabularies begin with the most frequent tokens.
    """
    words = whole_words(model)[: 2 * MOST_WORDS]
    cut = model.tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    one = [(word, ids[0]) for word, ids in zip(words, cut, strict=True) if len(ids) == 1]
    return [word for word, _ in one[:MOST_WORDS]], [token for _, token in one[:MOST_WORDS]]


def directions_as_tokens(model: Model, heads: Sequence[HeadIndex]) -> list[pd.DataFrame]:
    """The leading singular directions of some heads, each side of each end as ENDS tokens."""
    weights = weights_of(model)
    words, ids = vocabulary(model)
    if not heads or len(words) < 2 * ENDS:
        return []
    streams = streams_of_tokens(weights, torch.tensor(ids, device=weights.device))
    by_chance = random_shares(weights.config.d_model, weights.config.d_head).tolist()
    frames = []
    for layer, head in heads:
        block = weights.blocks[layer]
        stream = streams[min(layer, 1)]
        x = blocks.attention_input(block, stream, weights.config).double().cpu()
        # A head's output is added to the stream, so it is compared with the stream's direction.
        centred = stream.double().cpu()
        centred = normalize(centred - centred.mean(0), dim=-1)
        for matrix, found in directions_of(weights, block, head).items():
            is_qk = matrix == "QK"
            sides = {
                "query" if is_qk else "reads": x @ found.reads,
                "key" if is_qk else "writes": (x if is_qk else centred) @ found.writes,
            }
            for side, along in sides.items():
                for number, share in enumerate(found.shares.tolist()):
                    for end, sign in (("+", 1), ("-", -1)):
                        order = resampling.order(sign * along[:, number].numpy())[:ENDS]
                        key = {"layer": layer, "head": head, "matrix": matrix, "number": number}
                        key |= {"share": share, "share_random": by_chance[number]}
                        key |= {"side": side, "end": end}
                        tokens = [words[index] for index in order]
                        frames.append(pd.DataFrame({**key, "rank": range(ENDS), "token": tokens}))
    return frames
