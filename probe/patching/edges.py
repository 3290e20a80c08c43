"""The edges of a network: what writes at which position, and which head or MLP reads it where, through which channel;
and, from the weights alone, how well the two heads of an edge fit together.

A sender is a head, an MLP or the embeddings, a receiver a head or an MLP; positions are counted from the word, 0 the
word and -1 the token before it.

Composition scores say what a later head could read of what an earlier one writes, on no text at all; what it does read
is a path (`probe.patching.paths`). With the sender's W_OV = W_V W_O and the receiver's W_QK = W_Q W_Kᵀ and W_OV
(vectors are rows, so that a write is x W_V W_O and a score x_query W_Q W_Kᵀ x_keyᵀ), in Frobenius norms:

    query  |W_OV W_QK|  / (|W_OV| |W_QK|)
    key    |W_OV W_QKᵀ| / (|W_OV| |W_QK|)
    value  |W_OV W_OV′| / (|W_OV| |W_OV′|)

Raw weights: no norm's gain is folded in, biases play no part, and rotary positions are left out (a query and a key at
the same place).

Source: Elhage et al. 2021 (composition scores).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.model.weights import Weights

CHANNELS = ("query", "key", "value", "input")  # the last is an MLP's
READ_BY = {"query": ("w_q", "w_k"), "key": ("w_k", "w_q"), "value": ("w_v", "w_o")}  # what reads, what is behind it
EMBEDDING, MLP = -1, -1  # the layer of the embeddings as a sender, and the head of what is no head
EDGE = np.dtype(
    [
        ("sender_layer", np.int16),
        ("sender_head", np.int16),
        ("sender_pos", np.int16),
        ("receiver_layer", np.int16),
        ("receiver_head", np.int16),
        ("receiver_pos", np.int16),
        ("channel", "U5"),
    ]
)
Edges = NDArray[np.void]
Node = tuple[int, int, int]  # layer, head and position of a sender or a receiver


def edges_of(weights: Weights, depth: int, senders: Sequence[int], receivers: Sequence[int], *, mlps: bool) -> Edges:
    """Every edge, block after block, a block's heads before its MLP. `-> edge`"""
    heads = weights.shape[1]
    every = [(EMBEDDING, MLP), *((layer, head) for layer in range(depth) for head in (*range(heads), MLP))]
    parts = []
    for layer in range(depth):
        for pos in senders:
            before = np.array(every[: count_before(weights, layer)], dtype=np.int16)
            for channel, receiver in ways_in(weights, pos, receivers):
                parts.append(_block(before, pos, layer, range(heads), receiver, channel))
        for pos in senders:
            if mlps and pos in receivers:
                before = np.array(every[: count_before(weights, layer, mlp=True)], dtype=np.int16)
                parts.append(_block(before, pos, layer, [MLP], pos, CHANNELS[-1]))
    return np.concatenate(parts)


def count_before(weights: Weights, layer: int, *, mlp: bool = False) -> int:
    """How many senders write before a block's heads read, or before its MLP does, in the order of `edges_of`."""
    heads = weights.shape[1]
    return 1 + layer * (heads + 1) + (heads if mlp and not weights.config.family.parallel else 0)


def _block(before: NDArray[np.int16], pos: int, layer: int, heads: Sequence[int], receiver: int, channel: str) -> Edges:
    """The edges from all senders at a position into some heads of a block at another. `-> (head sender)`"""
    block = np.empty((len(heads), len(before)), dtype=EDGE)
    block["sender_layer"], block["sender_head"], block["sender_pos"] = before[:, 0], before[:, 1], pos
    block["receiver_layer"], block["receiver_head"] = layer, np.array(heads)[:, None]
    block["receiver_pos"], block["channel"] = receiver, channel
    return block.ravel()


def ways_in(weights: Weights, pos: int, receivers: Sequence[int]) -> list[tuple[str, int]]:
    """Through which channel a write at `pos` gets into a head at which position: no earlier one in a causal model."""
    reading = [receiver for receiver in receivers if receiver >= pos or not weights.causal]
    query = [("query", pos)] if pos in receivers else []
    return query + [(channel, receiver) for channel in ("key", "value") for receiver in reading]


def numbers_of_senders(edges: Edges, heads: int) -> NDArray[np.int64]:
    """Where each edge's sender stands in the order of `edges_of`."""
    number = 1 + edges["sender_layer"].astype(np.int64) * (heads + 1) + edges["sender_head"] % (heads + 1)
    return np.where(edges["sender_layer"] == EMBEDDING, 0, number)


def sender_of(edge: np.void) -> Node:
    """Where an edge begins."""
    return int(edge["sender_layer"]), int(edge["sender_head"]), int(edge["sender_pos"])


def receiver_of(edge: np.void) -> Node:
    """Where it ends."""
    return int(edge["receiver_layer"]), int(edge["receiver_head"]), int(edge["receiver_pos"])


def composition(weights: Weights, edges: Any) -> NDArray[np.float64]:
    """The composition score of the two heads of every edge, in float64; NaN where an end is no head, or where the
    receiver's block is not later. `-> edge`

    `edges`: an array or a frame with the fields of EDGE. |A B| of the products is taken from Gram matrices, so that no
    matrix of d_model by d_model is made.
    """

    @cache
    def part(role: str, layer: int, head: int) -> tuple[Tensor, Tensor]:
        """A head's weight and its Gram matrix. `-> d_model d_head, d_head d_head`"""
        every = getattr(weights.blocks[layer], role)
        own = every[head * len(every) // weights.shape[1]].to("cpu", torch.float64)
        own = own.T if role == "w_o" else own
        return own, own.T @ own

    @cache
    def score(channel: str, sender: tuple[int, int], receiver: tuple[int, int]) -> float:
        (_, gram_v), (o, gram_o) = part("w_v", *sender), part("w_o", *sender)
        (reads, gram), (_, behind) = (part(role, *receiver) for role in READ_BY[channel])
        between = o.T @ reads
        product, ov, read = gram_v @ between @ behind * between, gram_v * gram_o, gram * behind
        return float((product.sum().clamp_min(0) / ov.sum() / read.sum()).sqrt())

    fields = (np.asarray(edges[name]).tolist() for name in EDGE.names or () if not name.endswith("pos"))
    return np.array(
        [
            score(channel, (layer, head), (later, reader)) if MLP not in (head, reader) and layer < later else np.nan
            for layer, head, later, reader, channel in zip(*fields, strict=True)
        ]
    )
