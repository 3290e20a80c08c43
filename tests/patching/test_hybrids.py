"""Swaps in models with layers without attention, compared with whole hooked forwards: of heads,
sets, mixers and MLPs, traces over positions, other tokens, and text generated from a patched
run.
"""

from functools import partial

import plain_forward
import pytest
import torch
from families import EACH_HYBRID, family_model
from handmade import tokens_of
from hooked_runs import (
    LAYOUTS,
    QUANTITIES,
    TARGETS,
    bound,
    drawn_pair,
    edit_at,
    every_direction,
    moved_by_places,
    random_rows,
    random_z,
    read_all,
    run_with_swaps,
)

from probe.model import blocks, forward, variants
from probe.model.load import read_weights
from probe.model.trace import target_states
from probe.patching import heads as patching
from probe.patching import mlps, pair, positions, tokens


@pytest.fixture(params=EACH_HYBRID)
def model(request):
    return family_model(request.param, torch.float64)


def with_heads(model):
    return [layer for layer in range(model.config.n_layers) if model.config.has_heads(layer)]


def without_heads(model):
    return [layer for layer in range(model.config.n_layers) if not model.config.has_heads(layer)]


def setting(model):
    return read_weights(model), random_rows(model), random_z(model, model.config.n_layers)


def test_every_swap_of_a_head_equals_a_whole_forward_and_other_layers_have_none(model):
    weights, texts, donors = setting(model)
    changes = patching.swap_heads(weights, texts, donors, every_direction(model))
    heads = [(layer, head) for layer in with_heads(model) for head in range(donors.shape[2])]
    for text, donor, change in zip(texts, donors, changes, strict=True):
        base, *rows = run_with_swaps(model, text, [{}, *({head: donor[head]} for head in heads)])[
            0
        ][-1]
        plain = torch.stack(rows) - base
        assert (change[with_heads(model)].flatten(0, 1) - plain).abs().max() <= bound(
            model
        ) * base.abs().max()
        assert plain.abs().amax(-1).min() > 0.01
        assert (change[without_heads(model)] == 0).all()


def test_sets_of_heads_equal_whole_forwards_and_layers_without_heads_do_not_count(model):
    weights, texts, donors = setting(model)
    masks = torch.rand(4, *donors.shape[1:3], generator=torch.Generator().manual_seed(0)) < 0.5
    masks[0] = False
    changes = patching.swap_sets(weights, texts, donors, masks, every_direction(model))
    for text, donor, change in zip(texts, donors, changes, strict=True):
        sets = [
            {
                (layer, head): donor[layer, head]
                for layer in with_heads(model)
                for head in range(donors.shape[2])
                if not mask[layer, head]
            }
            for mask in masks
        ]
        base, *rows = run_with_swaps(model, text, [{}, *sets])[0][-1]
        assert (change - torch.stack(rows) + base).abs().max() <= bound(model) * base.abs().max()
    changed = masks.clone()
    changed[:, without_heads(model)] = ~changed[:, without_heads(model)]
    again = patching.swap_sets(weights, texts, donors, changed, every_direction(model))
    assert torch.equal(changes, again)


def stages_of(model, seed=3):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(TARGETS), model.config.n_layers, model.config.d_model)
    return torch.randn(*shape, generator=generator, dtype=model.dtype)


def test_every_swap_of_a_mixer_equals_a_whole_forward_at_every_stage(model):
    weights, texts, _ = setting(model)
    donors = stages_of(model, seed=5)  # row layer d_model
    directions = stages_of(model)
    effects = mlps.swap_mixers(weights, texts, donors, directions)
    assert effects.shape == (len(texts), len(without_heads(model)), model.config.n_layers)
    for text, donor, along, by_layer in zip(texts, donors, directions, effects, strict=True):
        base = read_all(model, text.ids, ["resid_post"])["resid_post"][:, text.at]
        for layer, effect in zip(without_heads(model), by_layer, strict=True):
            edit = (layer, "attn_out", edit_at(text.at, donor[layer]))
            run = read_all(model, text.ids, ["resid_post"], [edit])["resid_post"][:, text.at]
            plain = ((run - base) * along).sum(-1)
            assert (effect - plain).abs().max() <= 10 * bound(model) * base.abs().max()
            assert plain[layer].abs() > 0.01 and (effect[:layer] == 0).all()


def test_every_swap_of_an_mlp_equals_a_whole_forward(model):
    weights, texts, _ = setting(model)
    generator = torch.Generator().manual_seed(5)
    shape = (len(texts), model.config.n_layers, weights.blocks[0].d_mlp)
    hidden = torch.randn(*shape, generator=generator, dtype=model.dtype)
    directions = stages_of(model)
    effects = mlps.swap_mlps(weights, texts, hidden, directions)
    for text, neurons, along, by_layer in zip(texts, hidden, directions, effects, strict=True):
        base = read_all(model, text.ids, ["resid_post"])["resid_post"][:, text.at]
        for layer, effect in enumerate(by_layer):
            write = neurons[layer] @ weights.blocks[layer].w_hidden
            edit = (layer, "mlp_out", edit_at(text.at, write))
            run = read_all(model, text.ids, ["resid_post"], [edit])["resid_post"][:, text.at]
            plain = ((run - base) * along).sum(-1)
            assert (effect - plain).abs().max() <= 10 * bound(model) * base.abs().max()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_cell_of_a_trace_over_positions_equals_a_whole_forward(model, layout):
    """A change before the word also reaches it through the state of the mixers."""
    texts, at, depth = drawn_pair(model, layout), layout[1], model.config.n_layers
    weights = read_weights(model)
    effects = positions.trace_positions(
        weights, texts[:1], texts[1:], every_direction(model), depth=depth
    )
    runs = [read_all(model, text.ids, QUANTITIES) for text in texts]
    scale = max(run["resid_post"][-1, at].abs().max() for run in runs)
    cells = [(at + offset,) for offset in effects.positions]
    of_heads = [(pos, head) for head in range(model.config.n_heads) for (pos,) in cells]
    for side, (text, recipient, donor) in enumerate(zip(texts, runs, reversed(runs), strict=True)):
        plain = partial(moved_by_places, model, text.ids, recipient, donor, at)
        for layer in range(depth):
            for number, name in enumerate(positions.COMPONENTS):
                error = effects.stream[0, side, number, layer] - plain(layer, name, cells)
                assert error.abs().max() / scale <= bound(model)
            by_head = effects.heads[0, side, layer].flatten(0, 1)
            if model.config.has_heads(layer):
                error = by_head - plain(layer, "z", of_heads)
                assert error.abs().max() / scale <= bound(model)
            else:
                assert by_head.isnan().all()
    of_heads = [row["layer"] for row in effects.rows() if row["component"] == "head"]
    assert set(of_heads) == set(with_heads(model))


def test_replacing_the_word_equals_a_run_of_the_changed_text(model):
    weights, texts, _ = setting(model)
    alternatives = [[7], [90], [201]]
    replacements = tokens.replace_tokens(weights, texts, alternatives)
    for number, (token,) in enumerate(alternatives):
        changed = [(*text.ids[: text.at], token) for text in texts]
        states = target_states(
            model, [tokens_of(ids) for ids in changed], [text.at for text in texts]
        )
        for name, part in (("resid", replacements.resid), ("z", replacements.z)):
            exact = getattr(states, name)
            assert (part[:, number] - exact).abs().max() <= bound(model) * exact.abs().max()


def test_text_generated_after_a_patch_is_that_of_the_hooked_model(model):
    weights = read_weights(model)
    text, donor = drawn_pair(model)
    cache = pair.cache_pair(weights, [text.ids, donor.ids], text.at, model.config.n_layers)
    layer = with_heads(model)[0]
    heads = torch.zeros(model.config.n_layers, model.config.n_heads, dtype=torch.bool)
    heads[layer, 1] = True
    z = random_z(model, model.config.n_layers)[0]
    patched = pair.run_with_patch(cache, pair.HeadPatch(text.at, z, heads))
    base, row = run_with_swaps(model, text, [{}, {(layer, 1): z[layer, 1]}])[0][:, :, None][
        ..., 0, :
    ].unbind(1)
    assert (patched.stream[1:] - row).abs().max() <= bound(model) * base.abs().max()
    output_ids = list(pair.generate(weights, patched, 4))
    ids = list(text.ids[: cache.n])
    for token in output_ids:
        edit = (layer, "z", edit_at((text.at, 1), z[layer, 1]))
        last = read_all(model, ids, ["resid_post"], [edit])["resid_post"][-1, -1]
        assert int(forward.unembed(weights, last).argmax()) == token
        ids.append(token)


def test_the_steps_of_a_block_are_those_of_the_plain_forward(model):
    weights = read_weights(model)
    ids = torch.randint(400, (3, 7), generator=torch.Generator().manual_seed(0))
    terms, pos = blocks.position_terms(weights, 7), torch.arange(7)[None, None]
    for block, step in zip(weights.blocks, plain_forward.run(weights, ids), strict=True):
        resid = step["resid_pre"][:, None]  # row variant pos d_model
        if block.mixer is None:
            projected = blocks.project(weights, block, resid, terms, pos)
            z = blocks.attend_variants(weights, block, projected, None, terms)[:, 0]
        else:
            x = blocks.attention_input(block, resid, weights.config)
            z = blocks.mix_variants(block, x, None)[:, 0]
        resid_mid = blocks.after_attention(weights, block, step["resid_pre"], z)
        scale = step["resid_mid"].abs().max()
        assert (resid_mid - step["resid_mid"]).abs().max() <= bound(model) * scale
    empty = list(
        variants.run_past(
            weights, [[], []], model.config.n_layers, blocks.position_terms(weights, 1)
        )
    )
    assert all(part.shape[-2] == 0 for parts in empty for part in parts)
