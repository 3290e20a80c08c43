"""Replacing one part of a query or a key, compared with a full attention on changed streams; no
effect if the donor is the token itself.
"""

import plain_forward
import pytest
import torch
from families import each_family, family_model
from handmade import random_model
from inside import attention as formulas
from inside import blocks, qk, read_weights

import probe
from probe.patching.score_parts import replace_parts

TEXT = "The mole dug under the river bank after the flood"
OTHER = "Some people like the river bank and some do not"
LAYER, HEAD = 1, 3
# Caps and windows; norms of queries and keys; norms of writes; grouped heads.
KINDS = ("gpt2", "gemma2", "bert", "qwen3", "olmo2")
EACH = each_family(*KINDS, also=KINDS)


def reading_positions(whole):
    """The position from which the head reads, and the positions that it reads."""
    return (whole.tokens.positions_of(word)[-1] for word in ("bank", "river"))


def whole_attention(whole, queries, keys):
    """Scores before the cap and pattern of the head, with queries and keys from two streams.
    `query_pos key_pos` each
    """
    weights = whole.stack
    block = weights.blocks[LAYER]
    config = weights.config
    bias = blocks.position_bias(weights, len(whole.tokens))
    q = plain_forward.attend(weights, block, queries, bias=bias)["q"]
    k = plain_forward.attend(weights, block, keys, bias=bias)["k"]
    scores = plain_forward.score(weights, block, q, k, bias)
    q, k = plain_forward.queries_and_keys(block, q, k, config)
    before = q[HEAD] @ k[HEAD].T / block.score_divisor
    return before, formulas.softmax(scores)[HEAD]


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("side", ["query", "key"])
def test_a_replaced_part_does_what_a_whole_attention_computes(kind, side):
    model = family_model(kind, torch.float64)
    whole, donor_trace = probe.trace(model, TEXT), probe.trace(model, OTHER)
    at, source = reading_positions(whole)
    weights = {source: 1.0, 2: -0.5, 3: -0.5}
    pos = at if side == "query" else source
    parts = qk.stream_parts(whole, LAYER, [pos], "part")
    donor_parts = qk.stream_parts(donor_trace, LAYER, [4, 5], "part")
    options = {"side": side, "at": at, "weights": weights}
    replaced = replace_parts(whole, LAYER, HEAD, parts, donor_parts, **options)
    assert replaced.labels == parts.labels == donor_parts.labels
    stream = whole.resid_pre[LAYER]
    close = 3e-6 if model.config.family.in_float32 else 1e-10

    def contrast(before):
        return before[at, source] - before[at, [2, 3]].mean()

    before, pattern = whole_attention(whole, stream, stream)
    for number in range(0, len(parts.labels), 3):
        lost = []
        for vector in donor_parts.vectors[number]:
            changed = stream.clone()
            changed[pos] += vector - parts.vectors[number, 0]
            sides = (changed, stream) if side == "query" else (stream, changed)
            before_there, pattern_there = whole_attention(whole, *sides)
            if side == "key":  # the contrast is with unchanged keys
                before_there[:, [2, 3]] = before[:, [2, 3]]
            of_pattern = (pattern - pattern_there)[at, source]
            lost.append((contrast(before) - contrast(before_there), of_pattern))
        score, of_pattern = torch.tensor(lost).mean(0).tolist()
        assert float(replaced.score[number]) == pytest.approx(score, abs=close)
        assert float(replaced.attention[number]) == pytest.approx(of_pattern, abs=close)
    assert replaced.score.abs().max() > 1e-3 and replaced.attention.abs().max() > 1e-4


@pytest.mark.parametrize("side", ["query", "key"])
def test_a_token_that_is_its_own_donor_loses_nothing(side):
    whole = probe.trace(random_model(torch.float64), TEXT)
    at, source = reading_positions(whole)
    itself = qk.stream_parts(whole, 2, [at if side == "query" else source], "part")
    options = {"side": side, "at": at, "weights": {source: 1.0}}
    replaced = replace_parts(whole, 2, HEAD, itself, itself, **options)
    for lost in replaced[1:]:
        assert float(lost.abs().max()) <= 1e-12


@pytest.mark.parametrize("side", ["query", "key"])
def test_the_attribution_freezes_the_scale_of_the_norm(side):
    """LayerNorm by hand: centred, divided by the unchanged scale, and times the gain."""
    model = random_model(torch.float64)
    whole = probe.trace(model, TEXT)
    block = read_weights(model).blocks[2]
    at, source = reading_positions(whole)
    pos = at if side == "query" else source
    recipient = qk.stream_parts(whole, 2, [pos], "part")
    donor = qk.stream_parts(whole, 2, [1, 2, 3], "part")
    options = {"side": side, "at": at, "weights": {source: 1.0, 1: -1.0}}
    replaced = replace_parts(whole, 2, HEAD, recipient, donor, **options)
    lost = recipient.vectors[:, 0] - donor.vectors.mean(1)
    variance = whole.resid_pre[2, pos].var(unbiased=False)
    normed = (lost - lost.mean(-1, keepdim=True)) / (variance + model.config.epsilon).sqrt()
    normed = normed * block.norm
    if side == "query":
        key_difference = whole.k[2, HEAD, source] - whole.k[2, HEAD, 1]
        expected = normed @ block.w_q[HEAD] @ key_difference
    else:
        expected = normed @ block.w_k[HEAD] @ whole.q[2, HEAD, at]
    torch.testing.assert_close(replaced.attributed, expected / 7**0.5, rtol=0, atol=1e-12)
    # The two differ only in the norm's response to the change.
    assert (replaced.score - replaced.attributed).abs().max() > 1e-3
