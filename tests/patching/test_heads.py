"""Exact swaps at the word, of heads and of sets of heads, compared with hooked forwards, for
every family with one stack.
"""

import pytest
import torch
from hooked_runs import (
    BOUND,
    EACH,
    ROUNDED,
    TARGETS,
    bound,
    every_direction,
    made,
    random_rows,
    random_z,
    swapped,
    target_z,
    typed,
)

from probe.errors import InputError
from probe.experiments import swaps as effects
from probe.model import forward
from probe.model.load import read_weights
from probe.model.tokens import TargetText
from probe.patching import heads as patching


def setting(kind, dtype=torch.float64, *, depth=None):
    """A model and its weights, random texts, and donors for every head of the first blocks."""
    model = made(kind, dtype)
    donors = random_z(model, model.config.n_layers if depth is None else depth)
    return model, read_weights(model), random_rows(model), donors


def exact(model, scale=1.0):
    """The largest difference between two orders of the same sums."""
    return {"rtol": 0, "atol": ROUNDED * float(scale) if model.config.family.in_float32 else 1e-12}


def own_directions(model, stages, seed=3):
    """A direction for every text and stage."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        len(TARGETS), stages, model.config.d_model, generator=generator, dtype=model.dtype
    )


def some_sets(*shape):
    """The set of all heads, the empty set, and another one."""
    kept = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0)) < 0.5
    kept[0], kept[1] = True, False
    return kept


def places(donors):
    return [(layer, head) for layer in range(donors.shape[1]) for head in range(donors.shape[2])]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("kind", EACH)
def test_every_swap_equals_a_whole_forward(kind, dtype):
    model, weights, texts, donors = setting(kind, dtype)
    moved = patching.swap_heads(weights, texts, donors, every_direction(model))
    assert moved.shape == (*donors.shape[:3], model.config.d_model)
    for text, given, found in zip(texts, donors, moved, strict=True):
        base, *rows = swapped(
            model, text, [{}, *({place: given[place]} for place in places(donors))]
        )[0][-1]
        plain = torch.stack(rows) - base
        assert (found.flatten(0, 1) - plain).abs().max() <= bound(model) * base.abs().max()
        assert plain.abs().amax(-1).min() > 0.01


@pytest.mark.parametrize("kind", EACH)
def test_every_set_equals_a_whole_forward_with_many_heads_replaced(kind):
    model, weights, texts, donors = setting(kind)
    kept = some_sets(*donors.shape[1:3])
    moved = patching.swap_sets(weights, texts, donors, kept, every_direction(model))
    for text, given, found in zip(texts, donors, moved, strict=True):
        sets = [
            {place: given[place] for place in places(donors) if not mask[place]} for mask in kept
        ]
        base, *rows = swapped(model, text, [{}, *sets])[0][-1]
        assert (found - torch.stack(rows) + base).abs().max() <= bound(model) * base.abs().max()
    assert moved[:, 0].abs().max() < 1e-12 and moved[:, 1].abs().max() > 0.1


@pytest.mark.parametrize(("kind", "dtype"), typed())
def test_every_stage_is_what_a_run_up_to_it_reads(kind, dtype):
    """Each text has separate directions; nothing moves before the swapped head's layer."""
    model, weights, texts, donors = setting(kind, dtype)
    depth = model.config.n_layers
    kept, directions = some_sets(*donors.shape[1:3]), own_directions(model, depth)
    by_head = patching.swap_heads(weights, texts, donors, directions)
    by_set = patching.swap_sets(weights, texts, donors, kept, directions)
    for stage in range(depth):
        given, along = donors[:, : stage + 1], directions[:, stage]
        alone = patching.swap_heads(weights, texts, given, every_direction(model))
        sets = patching.swap_sets(
            weights, texts, given, kept[:, : stage + 1], every_direction(model)
        )
        for found, whole in ((by_head[:, : stage + 1], alone), (by_set, sets)):
            expected = torch.einsum("r...d,rd->r...", whole, along)
            assert (found[..., stage] - expected).abs().max() <= 10 * bound(
                model
            ) * expected.abs().max()
        assert (by_head[:, stage + 1 :, :, stage] == 0).all() and alone.abs().amax(-1).min() > 0


@pytest.mark.parametrize("kind", EACH)
def test_the_stage_behind_the_final_norm_is_the_change_of_the_hooked_logits(kind):
    model, weights, texts, donors = setting(kind)
    depth = model.config.n_layers
    if not effects.predicts(weights):
        pytest.skip("it does not say what comes next")
    directions = own_directions(model, depth + 1)
    asked = torch.randn(
        len(texts),
        model.config.d_vocab,
        generator=torch.Generator().manual_seed(4),
        dtype=model.dtype,
    )
    directions[:, -1] = asked @ forward.unembedding(weights, model.dtype)
    found = patching.swap_heads(weights, texts, donors, directions)
    before = patching.swap_heads(weights, texts, donors, directions[:, :-1])
    torch.testing.assert_close(found[..., :-1], before, rtol=0, atol=1e-12)
    for number, text in enumerate(texts):
        given = [{place: donors[number][place]} for place in places(donors)]
        base, *moved = swapped(model, text, [{}, *given])[1]
        expected = (torch.stack(moved) - base) @ asked[number]
        scale = base.abs().max() * asked[number].abs().sum()
        assert (found[number, ..., -1].flatten() - expected).abs().max() <= bound(model) * scale


@pytest.mark.parametrize("kind", EACH)
def test_batches_are_their_rows_in_the_order_given(kind, monkeypatch):
    model, weights, texts, donors = setting(kind)
    directions = every_direction(model)[:3]
    together = patching.swap_heads(weights, texts, donors, directions)
    for number, text in enumerate(texts):
        alone = patching.swap_heads(weights, [text], donors[[number]], directions)
        torch.testing.assert_close(together[number], alone[0], **exact(model))
    monkeypatch.setattr(patching, "BATCH_NUMBERS", 1)
    torch.testing.assert_close(
        patching.swap_heads(weights, texts, donors, directions), together, **exact(model)
    )


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "bert"])
def test_effects_are_linear_in_the_direction(kind):
    model, weights, texts, donors = setting(kind)
    every = every_direction(model)
    given = torch.stack([every[0], every[1], torch.full_like(every[0], 2.0)])
    whole = patching.swap_heads(weights, texts, donors, every)
    expected = torch.cat([whole[..., :2], 2 * whole.sum(-1, keepdim=True)], dim=-1)
    torch.testing.assert_close(
        patching.swap_heads(weights, texts, donors, given), expected, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("kind", EACH)
def test_a_swap_at_the_last_block_before_the_read_out_is_its_write_and_what_the_mlp_makes_of_it(
    kind,
):
    model, weights, texts, donors = setting(kind, depth=1)
    moved = patching.swap_heads(weights, texts, donors, every_direction(model))
    block, config = weights.blocks[0], model.config
    for number, text in enumerate(texts):
        resid = forward.embed(weights, torch.tensor(text.ids))
        bias = forward.position_bias(weights, len(text.ids))
        step = forward.attend(weights, block, resid, bias=bias)

        def after(z, resid=resid, at=text.at):
            resid_mid = forward.attention_output(block, resid, z, config)["resid_mid"]
            return forward.mlp(block, resid_mid, resid, config)["resid_post"][at]

        unchanged = after(step["z"])
        for head in range(config.n_heads):
            changed = step["z"].clone()
            changed[head, text.at] = donors[number, 0, head]
            close = exact(model, unchanged.abs().max())
            torch.testing.assert_close(moved[number, 0, head], after(changed) - unchanged, **close)


@pytest.mark.parametrize("kind", EACH)
def test_swapping_everything_is_the_donors_run_where_nothing_else_is_read(kind):
    """With the same word at the same position and every head of every layer from the donor,
    nothing can differ.
    """
    model, weights, [recipient, *_], _ = setting(kind)
    donor = random_rows(model, seed=9)[0]
    donor = TargetText(
        (*donor.ids[: donor.at], recipient.ids[donor.at], *donor.ids[donor.at + 1 :]), donor.at
    )
    z = target_z(model, [donor])
    nothing = torch.zeros(1, *z.shape[1:3], dtype=torch.bool)
    moved = patching.swap_sets(weights, [recipient], z, nothing, every_direction(model))[0, 0]
    own, whole = (swapped(model, text, [{}])[0][-1, 0] for text in (recipient, donor))
    assert (
        (own + moved - whole).abs().max()
        <= bound(model) * whole.abs().max()
        < 1e-3 * moved.abs().max()
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
        alone = patching.swap_heads(weights, rows, donors, directions)
        assert (both[:, side] - alone).abs().max() <= bound(model) * alone.abs().max()
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
    ("b", "depth", "said"),
    [
        ([[1, 2, 9], [1, 9, 4]], 2, UNEQUAL),
        ([[1, 2, 9]], 2, MISSING),
        ([[1, 2, 9], [1, 2, 9, 4]], 99, DEEP),
        ([[1, 2, 9], [1, 2, 9, 4]], 0, DEEP.replace("99", "0")),
    ],
)
def test_pairs_that_cannot_be_swapped_are_said(b, depth, said):
    weights, directions = read_weights(made("gpt2")), torch.ones(1, 28, dtype=torch.float64)
    with pytest.raises(InputError) as caught:
        patching.swap_pairs(weights, [[1, 2, 3], [1, 2, 3, 4]], b, directions, depth=depth)
    assert str(caught.value) == said


def test_donors_with_more_layers_than_the_model_are_said():
    model, weights, texts, donors = setting("gpt2")
    with pytest.raises(InputError) as caught:
        patching.swap_heads(weights, texts, donors.repeat(1, 2, 1, 1), every_direction(model))
    assert str(caught.value) == (
        "Cannot swap heads up to depth 4: the model has 2 blocks. Give a whole number from 1 to 2."
    )


def test_many_sets_are_run_in_parts(monkeypatch):
    model, weights, texts, donors = setting("bert", torch.float32)
    given = weights, texts, donors, some_sets(2, 4), every_direction(model)
    whole = patching.swap_sets(*given)
    monkeypatch.setattr(patching, "SETS_AT_ONCE", 2)
    torch.testing.assert_close(patching.swap_sets(*given), whole)


# --- routed MLPs ----------------------------------------------------------------------------------


def chosen_by_hugging_face(model, text, swaps):
    """The experts that the model's routers choose at the word in a whole hooked forward, as
    sets.

    `layer row`
    """
    routers = [
        module
        for name, module in model.bridge.original_model.named_modules()
        if type(module).__name__.endswith("TopKRouter")
    ]
    chosen = []

    def read(module, inputs, output):
        indices = output[-1].unflatten(0, (len(swaps), -1))[:, text.at]
        chosen.append([frozenset(row) for row in indices.tolist()])

    handles = [router.register_forward_hook(read) for router in routers]
    try:
        swapped(model, text, swaps)
    finally:
        for handle in handles:
            handle.remove()
    return chosen


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "gpt_oss"])
def test_a_swap_changes_the_route_where_the_routers_themselves_choose_others(kind):
    model, weights, texts, donors = setting(kind)
    donors = 3 * donors  # far enough to change some routes
    found = patching.rerouted(weights, texts, donors)
    seen = []
    for text, given, changed in zip(texts, donors, found, strict=True):
        swaps = [{}, *({place: given[place]} for place in places(donors))]
        by_layer = chosen_by_hugging_face(model, text, swaps)
        for mlp, (own, *rows) in enumerate(by_layer):
            assert [experts != own for experts in rows] == changed[..., mlp].flatten().tolist()
            seen += [experts != own for experts in rows]
    assert 0.05 < sum(seen) / len(seen) < 0.95
