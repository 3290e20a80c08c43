"""Exact swaps at the word, of heads and of sets of heads, compared with hooked forwards, for
every family with one stack.
"""

import plain_forward
import pytest
import torch
from hooked_runs import (
    BOUND,
    EACH,
    ROUNDED,
    TARGETS,
    bound,
    every_direction,
    model_of_kind,
    random_rows,
    random_z,
    run_with_swaps,
    target_z,
    typed,
)

from probe.errors import InputError
from probe.experiments.observe import predicts
from probe.model import blocks, forward
from probe.model.load import read_weights
from probe.model.variants import TargetText
from probe.patching import heads as patching


def setting(kind, dtype=torch.float64, *, depth=None):
    """A model and its weights, random texts, and donors for every head of the first blocks."""
    model = model_of_kind(kind, dtype)
    donors = random_z(model, model.config.n_layers if depth is None else depth)
    return model, read_weights(model), random_rows(model), donors


def exact(model, scale=1.0):
    """The largest difference between two orders of the same sums."""
    return {"rtol": 0, "atol": ROUNDED * float(scale) if model.config.family.in_float32 else 1e-12}


def directions_by_text(model, stages, seed=3):
    """A direction for every text and stage."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        len(TARGETS), stages, model.config.d_model, generator=generator, dtype=model.dtype
    )


def some_sets(*shape):
    """The set of all heads, the empty set, and another one."""
    masks = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0)) < 0.5
    masks[0], masks[1] = True, False
    return masks


def every_head(donors):
    return [(layer, head) for layer in range(donors.shape[1]) for head in range(donors.shape[2])]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("kind", EACH)
def test_every_swap_equals_a_whole_forward(kind, dtype):
    model, weights, texts, donors = setting(kind, dtype)
    changes = patching.swap_heads(weights, texts, donors, every_direction(model))
    assert changes.shape == (*donors.shape[:3], model.config.d_model)
    for text, donor, change in zip(texts, donors, changes, strict=True):
        base, *rows = run_with_swaps(
            model, text, [{}, *({head: donor[head]} for head in every_head(donors))]
        )[0][-1]
        plain = torch.stack(rows) - base
        assert (change.flatten(0, 1) - plain).abs().max() <= bound(model) * base.abs().max()
        assert plain.abs().amax(-1).min() > 0.01


@pytest.mark.parametrize("kind", EACH)
def test_every_set_equals_a_whole_forward_with_many_heads_replaced(kind):
    model, weights, texts, donors = setting(kind)
    masks = some_sets(*donors.shape[1:3])
    changes = patching.swap_sets(weights, texts, donors, masks, every_direction(model))
    for text, donor, change in zip(texts, donors, changes, strict=True):
        sets = [
            {head: donor[head] for head in every_head(donors) if not mask[head]} for mask in masks
        ]
        base, *rows = run_with_swaps(model, text, [{}, *sets])[0][-1]
        assert (change - torch.stack(rows) + base).abs().max() <= bound(model) * base.abs().max()
    assert changes[:, 0].abs().max() < 1e-12 and changes[:, 1].abs().max() > 0.1


@pytest.mark.parametrize(("kind", "dtype"), typed())
def test_every_stage_is_what_a_run_up_to_it_reads(kind, dtype):
    """Each text has separate directions; nothing moves before the swapped head's layer."""
    model, weights, texts, donors = setting(kind, dtype)
    depth = model.config.n_layers
    masks, directions = some_sets(*donors.shape[1:3]), directions_by_text(model, depth)
    by_head = patching.swap_heads(weights, texts, donors, directions)
    by_set = patching.swap_sets(weights, texts, donors, masks, directions)
    for layer in range(depth):
        early_donors, along = donors[:, : layer + 1], directions[:, layer]
        stream_by_head = patching.swap_heads(weights, texts, early_donors, every_direction(model))
        stream_by_set = patching.swap_sets(
            weights, texts, early_donors, masks[:, : layer + 1], every_direction(model)
        )
        for projected, whole in (
            (by_head[:, : layer + 1], stream_by_head),
            (by_set, stream_by_set),
        ):
            expected = torch.einsum("r...d,rd->r...", whole, along)
            assert (projected[..., layer] - expected).abs().max() <= 10 * bound(
                model
            ) * expected.abs().max()
        assert (by_head[:, layer + 1 :, :, layer] == 0).all() and stream_by_head.abs().amax(
            -1
        ).min() > 0


@pytest.mark.parametrize("kind", EACH)
def test_the_stage_after_the_final_norm_is_the_change_of_the_hooked_logits(kind):
    model, weights, texts, donors = setting(kind)
    depth = model.config.n_layers
    if not predicts(weights):
        pytest.skip("it does not predict the next token")
    directions = directions_by_text(model, depth + 1)
    logit_weights = torch.randn(
        len(texts),
        model.config.d_vocab,
        generator=torch.Generator().manual_seed(4),
        dtype=model.dtype,
    )
    directions[:, -1] = logit_weights @ forward.unembedding(weights, model.dtype)
    changes = patching.swap_heads(weights, texts, donors, directions)
    before = patching.swap_heads(weights, texts, donors, directions[:, :-1])
    torch.testing.assert_close(changes[..., :-1], before, rtol=0, atol=1e-12)
    for number, text in enumerate(texts):
        swaps = [{head: donors[number][head]} for head in every_head(donors)]
        base, *logits = run_with_swaps(model, text, [{}, *swaps])[1]
        expected = (torch.stack(logits) - base) @ logit_weights[number]
        scale = base.abs().max() * logit_weights[number].abs().sum()
        assert (changes[number, ..., -1].flatten() - expected).abs().max() <= bound(model) * scale


@pytest.mark.parametrize("kind", EACH)
def test_batches_are_their_rows_in_the_order_given(kind, monkeypatch):
    model, weights, texts, donors = setting(kind)
    directions = every_direction(model)[:3]
    together = patching.swap_heads(weights, texts, donors, directions)
    for number, text in enumerate(texts):
        single = patching.swap_heads(weights, [text], donors[[number]], directions)
        torch.testing.assert_close(together[number], single[0], **exact(model))
    monkeypatch.setattr(patching, "BATCH_NUMBERS", 1)
    torch.testing.assert_close(
        patching.swap_heads(weights, texts, donors, directions), together, **exact(model)
    )


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "bert"])
def test_effects_are_linear_in_the_direction(kind):
    model, weights, texts, donors = setting(kind)
    directions = every_direction(model)
    combinations = torch.stack([directions[0], directions[1], torch.full_like(directions[0], 2.0)])
    whole = patching.swap_heads(weights, texts, donors, directions)
    expected = torch.cat([whole[..., :2], 2 * whole.sum(-1, keepdim=True)], dim=-1)
    torch.testing.assert_close(
        patching.swap_heads(weights, texts, donors, combinations), expected, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("kind", EACH)
def test_a_swap_in_the_last_block_before_the_read_out_is_its_write_and_the_response_of_the_mlp(
    kind,
):
    model, weights, texts, donors = setting(kind, depth=1)
    changes = patching.swap_heads(weights, texts, donors, every_direction(model))
    block, config = weights.blocks[0], model.config
    for number, text in enumerate(texts):
        resid = forward.embed(weights, torch.tensor(text.ids))
        bias = blocks.position_bias(weights, len(text.ids))
        step = plain_forward.attend(weights, block, resid, bias=bias)

        def after(z, resid=resid, at=text.at):
            attn_out = blocks.merge_heads(block, z.transpose(0, 1))
            resid_mid = plain_forward.added(weights, block, resid, attn_out)
            return plain_forward.mlp(weights, block, resid_mid, resid)["resid_post"][at]

        unchanged = after(step["z"])
        for head in range(config.n_heads):
            changed = step["z"].clone()
            changed[head, text.at] = donors[number, 0, head]
            close = exact(model, unchanged.abs().max())
            torch.testing.assert_close(
                changes[number, 0, head], after(changed) - unchanged, **close
            )


@pytest.mark.parametrize("kind", EACH)
def test_swapping_every_head_gives_the_donors_run_if_nothing_else_is_read(kind):
    """With the same word at the same position and every head of every layer from the donor,
    nothing can differ.
    """
    model, weights, [recipient, *_], _ = setting(kind)
    donor = random_rows(model, seed=9)[0]
    donor = TargetText(
        (*donor.ids[: donor.at], recipient.ids[donor.at], *donor.ids[donor.at + 1 :]), donor.at
    )
    z = target_z(model, [donor])
    empty_set = torch.zeros(1, *z.shape[1:3], dtype=torch.bool)
    change = patching.swap_sets(weights, [recipient], z, empty_set, every_direction(model))[0, 0]
    base, whole = (run_with_swaps(model, text, [{}])[0][-1, 0] for text in (recipient, donor))
    assert (
        (base + change - whole).abs().max()
        <= bound(model) * whole.abs().max()
        < 1e-3 * change.abs().max()
    )


@pytest.mark.parametrize(("kind", "dtype"), typed())
def test_pairs_swapped_both_ways_are_two_swaps(kind, dtype, monkeypatch):
    model, weights, a, _ = setting(kind, dtype)
    b = random_rows(model, seed=2)
    directions, depth = every_direction(model)[:5], max(2, model.config.n_layers - 1)
    z = [target_z(model, rows)[:, :depth] for rows in (a, b)]
    both = patching.swap_pairs(weights, a, b, directions, depth=depth)
    assert both.shape == (len(a), 2, depth, model.config.n_heads, 5)
    for side, (rows, donors) in enumerate(((a, z[1]), (b, z[0]))):
        single = patching.swap_heads(weights, rows, donors, directions)
        assert (both[:, side] - single).abs().max() <= bound(model) * single.abs().max()
    monkeypatch.setattr(patching, "BATCH_NUMBERS", 1)
    one_by_one = patching.swap_pairs(weights, a, b, directions, depth=depth)
    assert (both - one_by_one).abs().max() <= bound(model) * both.abs().max()


UNEQUAL = (
    "Cannot swap pairs: pair 1 has 4 and 3 tokens, expected equal numbers. Write its members "
    "equally long, omit the pair, or swap in each direction with swap_heads and the z of the other."
)
MISSING = "Cannot swap pairs: got 2 texts and 1, expected equal numbers. Give each text a partner."
DEEP = "Cannot swap pairs up to depth 99: the model has 2 blocks. Give a whole number from 1 to 2."


@pytest.mark.parametrize(
    ("b", "depth", "message"),
    [
        ([[1, 2, 9], [1, 9, 4]], 2, UNEQUAL),
        ([[1, 2, 9]], 2, MISSING),
        ([[1, 2, 9], [1, 2, 9, 4]], 99, DEEP),
        ([[1, 2, 9], [1, 2, 9, 4]], 0, DEEP.replace("99", "0")),
    ],
)
def test_pairs_that_cannot_be_swapped_are_refused(b, depth, message):
    weights, directions = (
        read_weights(model_of_kind("gpt2")),
        torch.ones(1, 28, dtype=torch.float64),
    )
    with pytest.raises(InputError) as caught:
        patching.swap_pairs(weights, [[1, 2, 3], [1, 2, 3, 4]], b, directions, depth=depth)
    assert str(caught.value) == message


def test_donors_with_more_layers_than_the_model_are_refused():
    model, weights, texts, donors = setting("gpt2")
    with pytest.raises(InputError) as caught:
        patching.swap_heads(weights, texts, donors.repeat(1, 2, 1, 1), every_direction(model))
    assert str(caught.value) == (
        "Cannot swap heads up to depth 4: the model has 2 blocks. Give a whole number from 1 to 2."
    )


def test_many_sets_are_run_in_parts(monkeypatch):
    model, weights, texts, donors = setting("bert", torch.float32)
    inputs = weights, texts, donors, some_sets(2, 4), every_direction(model)
    whole = patching.swap_sets(*inputs)
    monkeypatch.setattr(patching, "SETS_AT_ONCE", 2)
    torch.testing.assert_close(patching.swap_sets(*inputs), whole)


# --- routed MLPs ----------------------------------------------------------------------------------


def experts_by_hugging_face(model, text, swaps):
    """The experts that the model's routers choose at the word in a whole hooked forward, as
    sets.

    `layer row`
    """
    routers = [
        module
        for name, module in model.bridge.original_model.named_modules()
        if type(module).__name__.endswith("TopKRouter")
    ]
    choices = []

    def read(module, inputs, output):
        indices = output[-1].unflatten(0, (len(swaps), -1))[:, text.at]
        choices.append([frozenset(row) for row in indices.tolist()])

    handles = [router.register_forward_hook(read) for router in routers]
    try:
        run_with_swaps(model, text, swaps)
    finally:
        for handle in handles:
            handle.remove()
    return choices
