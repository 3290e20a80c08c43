"""Exact swaps at the word, for every family with one stack, against one whole hooked forward per swapped head."""

from itertools import cycle, permutations

import pytest
import torch
from checkpoints import make_checkpoint
from families import SINGLE, family_model
from handmade import random_model, tokens_of

from probe.model import forward
from probe.model import trace as hooked
from probe.model.load import load
from probe.model.tokens import Placed
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.patching import effects, engine
from probe.patching import swaps as patching

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
ROUNDED = 1e-6  # where a family's own code rounds to float32 on the way, no two orders of sums agree better
ODD = "random GPT-2"  # of an odd shape and three layers
KINDS = (*SINGLE, ODD)
TARGETS = (6, 0, 3, 6, 11)
AFTER = 4  # tokens that follow the target: a causal swap runs without them


def made(kind, dtype=torch.float64):
    return random_model(dtype) if kind == ODD else family_model(kind, dtype)


def bound(model):
    return max(BOUND[model.dtype], ROUNDED if model.config.family.single else 0)


def random_rows(model, seed=0):
    """Random texts of several lengths without special tokens; the word is AFTER tokens before the end."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [target + 1 + AFTER for target in TARGETS]
    ids = [torch.randint(5, model.config.d_vocab, (size,), generator=generator).tolist() for size in sizes]
    return [Placed(tuple(row), target) for row, target in zip(ids, TARGETS, strict=True)]


def random_z(model, depth, seed=1):
    c, generator = model.config, torch.Generator().manual_seed(seed)
    return torch.randn(len(TARGETS), depth, c.n_heads, c.d_head, generator=generator, dtype=model.dtype)


def every_direction(model):
    return torch.eye(model.config.d_model, dtype=model.dtype)


def run_plainly(model, text, depth, swaps):
    """The read-out of a whole hooked forward in which z of the given heads at the word is replaced. `-> d_model`

    Behind the last block (depth None) that is the logits before a family's soft cap of them, `d_vocab`.
    """
    (attention,), seen = model.config.family.attentions, {}

    def edit(layer):
        def change(z, hook):
            z = z.clone()
            for (place, head), value in swaps.items():
                if place == layer:
                    z[0, text.at, head] = value
            return z

        return change

    def read(resid, hook):
        seen["resid"] = resid[0, text.at].clone()

    def where(layer, quantity):
        return f"{attention.blocks}.{layer}.{attention.hooks[quantity]}"

    edits = [(where(layer, "z"), edit(layer)) for layer in {layer for layer, _ in swaps}]
    reading = [] if depth is None else [(where(depth - 1, "resid_post"), read)]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=[*edits, *reading]):
        logits = hooked.run(model, [text.ids])
    return uncapped(logits[0, text.at], model.config.logit_cap) if depth is None else seen["resid"]


def uncapped(logits, cap):
    """The logits x of which a family gives cap * tanh(x / cap); the logits themselves where it has no cap (0)."""
    return cap * torch.atanh(logits / cap) if cap else logits


def own_directions(model, stages, seed=3):
    """A direction for every text and stage."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(TARGETS), stages, model.config.d_model, generator=generator, dtype=model.dtype)


@pytest.mark.parametrize(
    ("kind", "depth", "dtype"),
    [
        (kind, depth + (kind == ODD), dtype)
        for kind, dtypes in zip(KINDS, cycle(permutations(BOUND)), strict=False)
        for depth, dtype in zip((1, 2), dtypes, strict=True)
    ],
)
def test_every_swap_equals_a_whole_forward(kind, depth, dtype):
    model = made(kind, dtype)
    texts, donors, heads = random_rows(model), random_z(model, depth), model.config.n_heads
    moved = patching.swap_heads(read_weights(model), texts, donors, every_direction(model))
    assert moved.shape == (len(texts), depth, heads, model.config.d_model)
    for number, text in enumerate(texts):
        base = run_plainly(model, text, depth, {})
        for layer in range(depth):
            for head in range(heads):
                plain = run_plainly(model, text, depth, {(layer, head): donors[number, layer, head]}) - base
                error = (moved[number, layer, head] - plain).abs().max() / base.abs().max()
                assert error <= bound(model), (number, layer, head)
                assert plain.abs().max() > 0.01


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_is_what_a_run_up_to_it_reads(kind, dtype):
    """Along directions of each text's own; nothing is moved before the swapped head's own layer."""
    model = made(kind, dtype)
    weights, texts, depth = read_weights(model), random_rows(model), model.config.n_layers
    donors, directions = random_z(model, depth), own_directions(model, depth)
    by_stage = patching.swap_heads(weights, texts, donors, directions)
    assert by_stage.shape == (len(texts), depth, model.config.n_heads, depth)
    for stage in range(depth):
        alone = patching.swap_heads(weights, texts, donors[:, : stage + 1], every_direction(model))
        expected = torch.einsum("rlhd,rd->rlh", alone, directions[:, stage])
        error = (by_stage[:, : stage + 1, :, stage] - expected).abs().max() / expected.abs().max()
        assert error <= 10 * bound(model), stage
        assert (by_stage[:, stage + 1 :, :, stage] == 0).all() and expected.abs().min() > 0
    kept = torch.rand(6, *donors.shape[1:3], generator=torch.Generator().manual_seed(0)) < 0.5
    sets = patching.swap_sets(weights, texts, donors, kept, directions)
    for stage in range(depth):
        alone = patching.swap_sets(weights, texts, donors[:, : stage + 1], kept[:, : stage + 1], every_direction(model))
        expected = torch.einsum("rsd,rd->rs", alone, directions[:, stage])
        assert (sets[..., stage] - expected).abs().max() <= 10 * bound(model) * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_stage_behind_the_final_norm_is_the_change_of_the_hooked_logits(kind):
    model = made(kind)
    weights, texts, depth = read_weights(model), random_rows(model), model.config.n_layers
    if not effects.predicts(weights):
        pytest.skip("it does not say what comes next")
    donors, directions = random_z(model, depth), own_directions(model, depth + 1)
    asked = torch.randn(len(texts), model.config.d_vocab, generator=torch.Generator().manual_seed(4), dtype=model.dtype)
    directions[:, -1] = asked @ forward.unembedding(weights, model.dtype)
    found = patching.swap_heads(weights, texts, donors, directions)
    assert found.shape[-1] == depth + 1
    torch.testing.assert_close(
        found[..., :-1], patching.swap_heads(weights, texts, donors, directions[:, :-1]), rtol=0, atol=1e-12
    )
    for number, text in enumerate(texts):
        base = run_plainly(model, text, None, {})
        for layer, head in [(layer, head) for layer in range(depth) for head in range(model.config.n_heads)]:
            moved = run_plainly(model, text, None, {(layer, head): donors[number, layer, head]}) - base
            scale = float(base.abs().max() * asked[number].abs().sum())
            assert found[number, layer, head, -1].item() == pytest.approx(
                (moved @ asked[number]).item(), abs=bound(model) * scale
            )


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_reads_what_comes_after_the_word_and_a_decoder_does_not(kind):
    model = made(kind)
    whole, donors = random_rows(model), random_z(model, model.config.n_layers)
    short = [text.ids[: text.at + 1] for text in whole]
    weights, directions = read_weights(model), every_direction(model)[:2]
    found = [patching.swap_heads(weights, texts, donors, directions) for texts in (whole, short)]
    assert torch.equal(*found) == model.config.causal


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("kind", KINDS)
def test_a_donor_that_is_the_sentence_itself_changes_nothing(kind, dtype):
    model = made(kind, dtype)
    weights, texts, depth = read_weights(model), random_rows(model), model.config.n_layers
    own = patching.target_z(weights, texts, depth)
    moved = patching.swap_heads(weights, texts, own, every_direction(model))
    scale = max(run_plainly(model, text, depth, {}).abs().max() for text in texts)
    assert moved.abs().max() / scale < 10 * torch.finfo(dtype).eps  # a sum in another order, nothing more


@pytest.mark.parametrize("kind", KINDS)
def test_the_engines_z_is_the_hooked_z(kind):
    model = made(kind)
    texts = random_rows(model)
    hooked_z = target_states(model, [tokens_of(text.ids) for text in texts], TARGETS).z
    own = patching.target_z(read_weights(model), texts, model.config.n_layers)
    atol = ROUNDED * float(hooked_z.abs().max()) if model.config.family.single else 1e-12
    torch.testing.assert_close(own, hooked_z, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_their_rows_in_the_order_given(kind, monkeypatch):
    model = made(kind)
    weights, texts, donors = read_weights(model), random_rows(model), random_z(model, model.config.n_layers)
    directions, close = (
        every_direction(model)[:3],
        {"rtol": 0, "atol": ROUNDED if model.config.family.single else 1e-12},
    )
    together = patching.swap_heads(weights, texts, donors, directions)
    for number, text in enumerate(texts):
        alone = patching.swap_heads(weights, [text], donors[[number]], directions)
        torch.testing.assert_close(together[number], alone[0], **close)
    monkeypatch.setattr(patching, "NUMBERS", 1)
    one_by_one = patching.swap_heads(weights, texts, donors, directions)
    torch.testing.assert_close(together, one_by_one, **close)


@pytest.mark.parametrize("kind", KINDS)
def test_effects_are_linear_in_the_direction(kind):
    model = made(kind)
    weights, texts, donors = read_weights(model), random_rows(model), random_z(model, 2)
    every = every_direction(model)
    given = torch.stack([every[0], every[1], torch.full_like(every[0], 2.0)])
    first, second, both = patching.swap_heads(weights, texts, donors, given).unbind(-1)
    whole = patching.swap_heads(weights, texts, donors, every)
    torch.testing.assert_close(both, 2 * whole.sum(-1), rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.stack([first, second], -1), whole[..., :2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_swap_at_the_last_block_before_the_read_out_is_its_write_and_what_the_mlp_makes_of_it(kind):
    model = made(kind)
    weights, texts, donors = read_weights(model), random_rows(model), random_z(model, 1)
    moved = patching.swap_heads(weights, texts, donors, every_direction(model))
    block, config = weights.blocks[0], model.config
    for number, text in enumerate(texts):
        resid = forward.embed(weights, torch.tensor(text.ids))
        step = forward.attend(weights, block, resid)

        def after(z, resid=resid):
            resid_mid = forward.leave(block, resid, z, config)["resid_mid"]
            return forward.mlp(block, resid_mid, resid, config)["resid_post"]

        for head in range(config.n_heads):
            changed = step["z"].clone()
            changed[head, text.at] = donors[number, 0, head]
            unchanged = after(step["z"])[text.at]
            expected = after(changed)[text.at] - unchanged
            atol = ROUNDED * float(unchanged.abs().max()) if config.family.single else 1e-12
            torch.testing.assert_close(moved[number, 0, head], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_swapping_everything_is_the_donors_run_where_nothing_else_is_read(kind):
    """Same word, same position, every head of every layer from the donor: what is left to differ?"""
    model = made(kind)
    depth = model.config.n_layers
    recipient, donor = random_rows(model)[0], random_rows(model, seed=9)[0]
    donor = Placed((*donor.ids[: donor.at], recipient.ids[donor.at], *donor.ids[donor.at + 1 :]), donor.at)
    z = patching.target_z(read_weights(model), [donor], depth)[0]
    swaps = {(layer, head): z[layer, head] for layer in range(depth) for head in range(model.config.n_heads)}
    swapped = run_plainly(model, recipient, depth, swaps)
    whole = run_plainly(model, donor, depth, {})
    atol = ROUNDED * float(whole.abs().max()) if model.config.family.single else 1e-12
    torch.testing.assert_close(swapped, whole, rtol=0, atol=atol)
    assert not torch.allclose(swapped, run_plainly(model, recipient, depth, {}), atol=0.1)


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
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_swapped_both_ways_are_two_swaps(kind, dtype, monkeypatch):
    model = made(kind, dtype)
    weights, a, b = read_weights(model), random_rows(model), random_rows(model, seed=2)
    directions, depth = every_direction(model)[:5], max(2, model.config.n_layers - 1)
    z = [patching.target_z(weights, rows, depth) for rows in (a, b)]
    both = patching.swap_pairs(weights, a, b, directions, depth=depth)
    assert both.shape == (len(a), 2, depth, model.config.n_heads, 5)
    for side, (rows, donors) in enumerate(((a, z[1]), (b, z[0]))):
        alone = patching.swap_heads(weights, rows, donors, directions)
        assert (both[:, side] - alone).abs().max() <= bound(model) * alone.abs().max()
    monkeypatch.setattr(patching, "NUMBERS", 1)
    one_by_one = patching.swap_pairs(weights, a, b, directions, depth=depth)
    assert (both - one_by_one).abs().max() <= bound(model) * both.abs().max()


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
