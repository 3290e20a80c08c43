"""Composition scores compared with the full products of matrices, and on models with known
readers.
"""

import numpy as np
import pytest
import torch
from families import SINGLE, each_family, family_model
from handmade import HEADS
from inside import CHANNELS, EDGE_DTYPE, composition, edges_of, read_weights
from planted import path_model
from seeds import mostly_campaign


def scores_of(weights):
    """The scores of every pair of heads.

    `-> channel sender_layer sender_head receiver_layer receiver_head`
    """
    layers, heads = weights.shape[:2]
    sizes = 3, layers, heads, layers, heads
    edges = np.zeros(sizes, EDGE_DTYPE)
    channel, *indices = np.indices(sizes)
    edges["channel"] = np.array(CHANNELS)[channel]
    names = ("sender_layer", "sender_head", "receiver_layer", "receiver_head")
    for name, index in zip(names, indices, strict=True):
        edges[name] = index
    return torch.from_numpy(composition(weights, edges.ravel()).reshape(sizes))


def norm(matrix):
    return float(torch.linalg.matrix_norm(matrix))


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_scores_are_those_of_the_whole_products(kind):
    weights = read_weights(family_model(kind))
    early, late = (block.to(torch.float64, "cpu") for block in weights.blocks)
    heads, shared = weights.config.n_heads, weights.config.n_heads // weights.config.n_kv_heads
    scores = scores_of(weights)
    assert scores.shape == (3, 2, heads, 2, heads)
    for sender in range(heads):
        ov = early.w_v[sender // shared] @ early.w_o[sender]
        for receiver in range(heads):
            qk = late.w_q[receiver] @ late.w_k[receiver // shared].T
            reads = (qk, qk.T, late.w_v[receiver // shared] @ late.w_o[receiver])
            expected = [norm(ov @ part) / norm(ov) / norm(part) for part in reads]
            assert scores[:, 0, sender, 1, receiver].tolist() == pytest.approx(expected, rel=1e-10)


def test_only_a_later_block_can_read():
    scores = scores_of(read_weights(family_model("gpt2")))
    assert (
        scores[:, 0, :, 1].isfinite().all()
        and scores[:, 0, :, 0].isnan().all()
        and scores[:, 1].isnan().all()
    )


@pytest.mark.parametrize("seed", mostly_campaign([0, 1, 2]))
@pytest.mark.parametrize("kind", ["two_steps", "by_query", "by_key"])
def test_heads_that_were_planted_to_read_each_other_fit_best(kind, seed):
    model, planted = path_model(kind, seed)
    sender, _, receiver, _, channel = [*planted.edges][-1]
    scores = scores_of(read_weights(model))[
        CHANNELS.index(channel), sender[0], :, receiver[0], receiver[1]
    ]
    assert scores.shape == (HEADS,) and int(scores.argmax()) == sender[1]
    assert scores.max() > 3 * scores.sort().values[-2]


def test_an_edge_between_heads_has_the_score_of_its_channel():
    weights = read_weights(family_model("gpt2"))
    edges = edges_of(weights, 2, (0,), (0,), mlps=True)
    scores, edge_scores = scores_of(weights), composition(weights, edges)
    for edge, score in zip(edges, edge_scores, strict=True):
        if -1 in (edge["sender_head"], edge["receiver_head"]):
            assert np.isnan(score)
        else:
            sender, receiver = (
                (edge[f"{end}_layer"], edge[f"{end}_head"]) for end in ("sender", "receiver")
            )
            assert score == scores[(CHANNELS.index(edge["channel"]), *sender, *receiver)]
    assert np.isfinite(edge_scores).sum() == 3 * HEADS**2
    assert len(composition(weights, edges[:0])) == 0
