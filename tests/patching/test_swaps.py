"""Exact swaps at the word against the plain way: one whole hooked forward per swapped head."""

import pytest
import torch
from checkpoints import make_checkpoint
from handmade import ODD, random_model, tokens_of

from probe.model import forward
from probe.model.load import load
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.patching import engine
from probe.patching import swaps as patching

LAYERS, HEADS, D_MODEL = ODD["n_layer"], ODD["n_head"], ODD["n_embd"]
BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
TARGETS = (6, 0, 3, 6, 11)
AFTER = 4  # tokens that follow the target in the plain runs and are unknown to the exact ones


def random_rows(model, seed=0):
    """Token ids of sentences of several lengths; the target is AFTER tokens before the end of each."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(model.config.d_vocab, (target + 1 + AFTER,), generator=generator).tolist() for target in TARGETS
    ]


def up_to_target(rows):
    return [row[: target + 1] for row, target in zip(rows, TARGETS, strict=True)]


def random_z(model, depth, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(TARGETS), depth, HEADS, D_MODEL // HEADS)
    return torch.randn(shape, generator=generator, dtype=model.dtype)


def run_plainly(model, row, target, depth, swaps):
    """The read-out of a whole hooked forward in which z of the given heads at the target is replaced. `-> d_model`"""
    seen = {}

    def edit(layer):
        def change(z, hook):
            z = z.clone()
            for head in range(HEADS):
                if (layer, head) in swaps:
                    z[0, target, head] = swaps[layer, head]
            return z

        return change

    def read(resid, hook):
        seen["resid"] = resid[0, target].clone()

    edits = [(f"blocks.{layer}.attn.hook_z", edit(layer)) for layer in {layer for layer, _ in swaps}]
    with torch.no_grad():
        model.bridge.run_with_hooks(
            torch.tensor([row]), fwd_hooks=[*edits, (f"blocks.{depth - 1}.hook_resid_post", read)]
        )
    return seen["resid"]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("depth", [LAYERS, LAYERS - 1, 1])
def test_every_swap_equals_a_whole_forward(dtype, depth):
    model = random_model(dtype)
    rows, donors = random_rows(model), random_z(model, depth)
    every_direction = torch.eye(D_MODEL, dtype=dtype)
    moved = patching.swap_heads(read_weights(model), up_to_target(rows), donors, every_direction)
    assert moved.shape == (len(rows), depth, HEADS, D_MODEL)
    for number, (row, target) in enumerate(zip(rows, TARGETS, strict=True)):
        base = run_plainly(model, row, target, depth, {})
        for layer in range(depth):
            for head in range(HEADS):
                plain = run_plainly(model, row, target, depth, {(layer, head): donors[number, layer, head]}) - base
                error = (moved[number, layer, head] - plain).abs().max() / base.abs().max()
                assert error <= BOUND[dtype], (number, layer, head)
                assert plain.abs().max() > 0.01


@pytest.mark.parametrize("dtype", BOUND)
def test_a_donor_that_is_the_sentence_itself_changes_nothing(dtype):
    model = random_model(dtype)
    weights, rows = read_weights(model), up_to_target(random_rows(model))
    own = patching.target_z(weights, rows, LAYERS)
    moved = patching.swap_heads(weights, rows, own, torch.eye(D_MODEL))
    scale = max(run_plainly(model, row, len(row) - 1, LAYERS, {}).abs().max() for row in rows)
    assert moved.abs().max() / scale < 10 * torch.finfo(dtype).eps  # a sum in another order, nothing more


def test_the_engines_z_is_the_hooked_z():
    model = random_model(torch.float64)
    rows = random_rows(model)
    hooked = target_states(model, [tokens_of(row) for row in rows], TARGETS).z
    own = patching.target_z(read_weights(model), up_to_target(rows), LAYERS)
    torch.testing.assert_close(own, hooked, rtol=0, atol=1e-12)


def test_batches_are_their_rows_in_the_order_given(monkeypatch):
    model = random_model(torch.float64)
    weights, rows, donors = read_weights(model), up_to_target(random_rows(model)), random_z(model, LAYERS)
    directions = torch.eye(D_MODEL)[:3]
    together = patching.swap_heads(weights, rows, donors, directions)
    for number, row in enumerate(rows):
        alone = patching.swap_heads(weights, [row], donors[[number]], directions)
        torch.testing.assert_close(together[number], alone[0], rtol=0, atol=1e-12)
    monkeypatch.setattr(patching, "NUMBERS", 1)
    one_by_one = patching.swap_heads(weights, rows, donors, directions)
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-12)


def test_effects_are_linear_in_the_direction():
    model = random_model(torch.float64)
    weights, rows, donors = read_weights(model), up_to_target(random_rows(model)), random_z(model, 2)
    first, second, both = patching.swap_heads(
        weights, rows, donors, torch.stack([torch.eye(D_MODEL)[0], torch.eye(D_MODEL)[1], torch.full((D_MODEL,), 2.0)])
    ).unbind(-1)
    whole = patching.swap_heads(weights, rows, donors, torch.eye(D_MODEL))
    torch.testing.assert_close(both, 2 * whole.sum(-1), rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.stack([first, second], -1), whole[..., :2], rtol=0, atol=1e-12)


def test_a_swap_at_the_last_block_before_the_read_out_is_its_write_and_what_the_mlp_makes_of_it():
    model = random_model(torch.float64)
    weights, rows, donors = read_weights(model), up_to_target(random_rows(model)), random_z(model, 1)
    moved = patching.swap_heads(weights, rows, donors, torch.eye(D_MODEL))
    block = weights.blocks[0]
    for number, row in enumerate(rows):
        resid = forward.embed(weights, torch.tensor(row))
        step = forward.attend(weights, block, resid)
        mid = (resid + forward.merge_heads(block, step["z"]))[-1]
        for head in range(HEADS):
            changed = mid + (donors[number, 0, head] - step["z"][head, -1]) @ block.w_o[head]
            after, before = (forward.mlp(block, part, part, weights.config)["resid_post"] for part in (changed, mid))
            torch.testing.assert_close(moved[number, 0, head], after - before, rtol=0, atol=1e-12)


def test_swapping_everything_is_the_donors_run():
    """Same word, same position, every head of every layer from the donor: what is left to differ?"""
    model = random_model(torch.float64)
    recipient, donor = random_rows(model)[0], random_rows(model, seed=9)[0]
    target = TARGETS[0]
    donor[target] = recipient[target]
    z = patching.target_z(read_weights(model), [donor[: target + 1]], LAYERS)[0]
    swaps = {(layer, head): z[layer, head] for layer in range(LAYERS) for head in range(HEADS)}
    swapped = run_plainly(model, recipient, target, LAYERS, swaps)
    torch.testing.assert_close(swapped, run_plainly(model, donor, target, LAYERS, {}), rtol=0, atol=1e-12)
    assert not torch.allclose(swapped, run_plainly(model, recipient, target, LAYERS, {}), atol=0.1)


def test_where_one_head_is_everything_its_swap_is_the_donors_run(tmp_path):
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 6, "n_inner": 10, "n_positions": 20}
    model = load(make_checkpoint(tmp_path / "one", **sizes), dtype=torch.float64)
    weights = read_weights(model)
    pairs = [([3, 50, 7, 9], [8, 1, 90, 9]), ([5, 9], [6, 9])]
    donors = patching.target_z(weights, [donor for _, donor in pairs], 1)
    moved = patching.swap_heads(weights, [recipient for recipient, _ in pairs], donors, torch.eye(6))
    for number, pair in enumerate(pairs):
        before, after = (
            list(forward.run(weights, torch.tensor(row), torch.float64))[-1]["resid_post"][-1] for row in pair
        )
        torch.testing.assert_close(moved[number, 0, 0], after - before, rtol=0, atol=1e-12)
        assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize("dtype", BOUND)
def test_pairs_swapped_both_ways_are_two_swaps(dtype, monkeypatch):
    model = random_model(dtype)
    weights, a, b = (
        read_weights(model),
        up_to_target(random_rows(model)),
        up_to_target(random_rows(model, seed=2)),
    )
    directions, depth = torch.eye(D_MODEL)[:5], LAYERS - 1
    z = [patching.target_z(weights, rows, depth) for rows in (a, b)]
    both = patching.swap_pairs(weights, a, b, directions, depth=depth)
    assert both.shape == (len(a), 2, depth, HEADS, 5)
    for side, (rows, donors) in enumerate(((a, z[1]), (b, z[0]))):
        alone = patching.swap_heads(weights, rows, donors, directions)
        assert (both[:, side] - alone).abs().max() <= BOUND[dtype] * alone.abs().max()
    monkeypatch.setattr(patching, "NUMBERS", 1)
    one_by_one = patching.swap_pairs(weights, a, b, directions, depth=depth)
    assert (both - one_by_one).abs().max() <= BOUND[dtype] * both.abs().max()


def test_sets_that_begin_alike_are_one_variant_as_far_as_they_do():
    kept = torch.ones(4, 3, 2, dtype=torch.bool)
    kept[1, 2, 0] = False  # parts from the unchanged run in the last block only
    kept[2, 0, 1] = kept[3, 0, 1] = False  # alike in the first two blocks
    kept[3, 2, 1] = False
    tree, variant_of = engine.branches(kept)
    assert [len(parent) for parent, _ in tree] == [2, 2, 4]
    assert variant_of[0] == 0 and len(set(variant_of.tolist())) == 4
    for which, mask in enumerate(kept):
        variant, swapped = int(variant_of[which]), []
        for parent, change in reversed(tree):
            swapped.insert(0, change[variant])
            variant = int(parent[variant])
        assert torch.equal(torch.stack(swapped), ~mask)
