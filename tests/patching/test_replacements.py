"""Every replacement in a run equals a whole hooked forward with the same replacement: of heads,
sets, mixers, MLPs, tokens and single positions, in text generated from a patched run, and for every
family with one stack.

The forwards are those of the hooked model (`hooked_runs`), which the certificate compares with the
checkpoint and with Hugging Face.
"""

from collections import Counter
from functools import partial

import pytest
import torch
from families import EACH_HYBRID, family_model
from handmade import tokens_of
from hooked_runs import (
    EACH,
    LAYOUTS,
    QUANTITIES,
    bound,
    drawn_pair,
    edit_at,
    every_direction,
    moved_by_places,
    random_rows,
    random_z,
    read_all,
    read_rows,
    run_with_swaps,
    target_z,
)
from inside import (
    TargetText,
    blocks,
    forward,
    hooks,
    mlps,
    positions,
    read_weights,
    swap_heads,
    swap_pairs,
    swap_sets,
    target_states,
    tokens,
    trace_positions,
    variants,
)
from inside import patched_heads as heads

from probe.patching import pair

ALL = [*EACH, "gpt2 in float32", *EACH_HYBRID]
SINGLE_HEADS = ((0, 1), (1, 0), (1, 3))


@pytest.fixture(params=ALL)
def kind(request) -> str:
    return request.param


@pytest.fixture
def model(kind):
    family, _, single = kind.partition(" in ")
    return family_model(family, torch.float32 if single else torch.float64)


def random_tensor(*shape, dtype=torch.float64, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def setting(model):
    """The weights, random texts, and z of a donor for every head of each text."""
    return read_weights(model), random_rows(model), random_z(model, model.config.n_layers)


def layers_of(model, *, heads=True):
    """The layers with heads, or without."""
    layers = range(model.config.n_layers)
    return [layer for layer in layers if model.config.has_heads(layer) == heads]


def heads_of(model):
    return [(layer, head) for layer in layers_of(model) for head in range(model.config.n_heads)]


def assert_near(actual, exact, scale, model):
    """Equal within ten roundings of a run, relative to a tensor."""
    assert (actual - exact).abs().max() <= 10 * bound(model) * scale.abs().max()


# --- at the word ----------------------------------------------------------------------------------


def test_every_swap_of_a_head_equals_a_whole_forward_at_every_stage(model):
    """Each text has separate directions at each stage, the last of them after the final norm, where
    an effect is a difference of logits."""
    weights, texts, donors = setting(model)
    depth, predicts = model.config.n_layers, model.config.causal and model.config.has_lm_head
    along = random_tensor(len(texts), depth + predicts, weights.shape[2], dtype=model.dtype)
    words = random_tensor(len(texts), model.config.d_vocab, dtype=model.dtype, seed=4)
    if predicts:
        along[:, -1] = words @ forward.unembedding(weights, model.dtype)
    whole = swap_heads(weights, texts, donors, every_direction(model))
    by_stage = swap_heads(weights, texts, donors, along)
    for number, text in enumerate(texts):
        swaps = [{}, *({head: donors[number][head]} for head in heads_of(model))]
        streams, logits = run_with_swaps(model, text, swaps)
        moved = streams[:, 1:] - streams[:, :1]  # layer swap d_model
        with_heads = whole[number, layers_of(model)].flatten(0, 1)
        assert_near(with_heads, moved[-1], streams[-1, 0], model)
        assert moved[-1].abs().amax(-1).min() > 0.01
        stages = by_stage[number, layers_of(model)].flatten(0, 1)
        expected = torch.einsum("lsd,ld->sl", moved, along[number, :depth])
        assert_near(stages[:, :depth], expected, expected, model)
        if predicts:
            expected = (logits[1:] - logits[0]) @ words[number]
            assert_near(stages[:, -1], expected, logits[0].abs().max() * words[number], model)
    for layer in range(depth):  # nothing moves before the head's layer
        assert (by_stage[:, layer, :, :layer] == 0).all()
    assert (whole[:, layers_of(model, heads=False)] == 0).all()


def test_every_set_equals_a_whole_forward_with_many_heads_replaced(model):
    weights, texts, donors = setting(model)
    masks = random_tensor(4, *donors.shape[1:3]) < 0  # the heads that are kept
    masks[0], masks[1] = True, False
    changes = swap_sets(weights, texts, donors, masks, every_direction(model))
    for text, donor, change in zip(texts, donors, changes, strict=True):
        sets = [{head: donor[head] for head in heads_of(model) if not mask[head]} for mask in masks]
        base, *rows = run_with_swaps(model, text, [{}, *sets])[0][-1]
        assert_near(change, torch.stack(rows) - base, base, model)
    assert changes[:, 0].abs().max() < 1e-6 and changes[:, 1].abs().max() > 0.1
    without = layers_of(model, heads=False)  # which do not count
    masks[:, without] = ~masks[:, without]
    again = swap_sets(weights, texts, donors, masks, every_direction(model))
    assert torch.equal(changes, again)


def test_every_swap_of_an_mlp_and_of_a_mixer_equals_a_whole_forward_at_every_stage(model):
    weights, texts, _ = setting(model)
    depth, d_model = model.config.n_layers, weights.shape[2]
    along = random_tensor(len(texts), depth, d_model, dtype=model.dtype)
    hidden = random_tensor(len(texts), depth, weights.blocks[0].d_mlp, dtype=model.dtype, seed=5)
    writes = random_tensor(len(texts), depth, d_model, dtype=model.dtype, seed=6)
    of_mlps = mlps.swap_mlps(weights, texts, hidden, along)
    without = layers_of(model, heads=False)
    of_mixers = mlps.swap_mixers(weights, texts, writes, along) if without else None
    for number, text in enumerate(texts):
        edits = []
        for layer, block in enumerate(weights.blocks):
            write = hidden[number, layer] @ block.w_hidden
            write = write if block.b_out is None else write + block.b_out
            edits.append((layer, "mlp_out", edit_at(text.at, write, layer)))
        for row, layer in enumerate(without, start=depth):
            edits.append((layer, "attn_out", edit_at(text.at, writes[number, layer], row)))
        rows = [text.ids] * (depth + len(without) + 1)  # the last is unchanged
        streams = read_rows(model, rows, ["resid_post"], edits)["resid_post"][:, :, text.at]
        plain = torch.einsum("lrd,ld->rl", streams[:, :-1] - streams[:, -1:], along[number])
        assert_near(of_mlps[number], plain[:depth], streams, model)
        assert plain.abs().max() > 0.01
        if without:
            assert_near(of_mixers[number], plain[depth:], streams, model)


def test_replacing_the_word_equals_a_run_of_the_changed_text(model):
    weights, texts, _ = setting(model)
    alternatives = [[7], [90], [201]]
    replacements = tokens.replace_tokens(weights, texts, alternatives)
    for number, (token,) in enumerate(alternatives):
        changed = [(*text.ids[: text.at], token, *text.ids[text.at + 1 :]) for text in texts]
        at = [text.at for text in texts]
        states = target_states(model, [tokens_of(ids) for ids in changed], at)
        assert_near(replacements.resid[:, number], states.resid, states.resid, model)
        z = replacements.z[number :: len(alternatives)]
        assert_near(z, states.z, states.z, model)


# --- at any position ------------------------------------------------------------------------------


def test_every_cell_of_a_trace_over_positions_equals_a_whole_forward(kind, model):
    """A change before the word reaches it through attention, and through the state of mixers."""
    layout = LAYOUTS[len(kind) % len(LAYOUTS)]
    texts, at, depth = drawn_pair(model, layout), layout[1], model.config.n_layers
    directions = every_direction(model)
    result = trace_positions(model, texts[:1], texts[1:], directions, depth=depth)
    assert result.positions == tuple(range(layout[2] - at, 1))
    runs = [read_all(model, text.ids, QUANTITIES) for text in texts]
    ends = torch.stack([run["resid_post"][-1, at] for run in runs])
    assert_near(result.gap[0], ends[0] - ends[1], ends, model)
    cells = [(at + offset,) for offset in result.positions]
    of_heads = [(pos, head) for head in range(model.config.n_heads) for (pos,) in cells]
    for side, (text, recipient, donor) in enumerate(zip(texts, runs, reversed(runs), strict=True)):
        plain = partial(moved_by_places, model, text.ids, recipient, donor, at)
        for layer in range(depth):
            for number, name in enumerate(positions.COMPONENTS):
                of_cells = result.stream[0, side, number, layer]
                assert_near(of_cells, plain(layer, name, cells), ends, model)
            by_head = result.heads[0, side, layer].flatten(0, 1)
            if model.config.has_heads(layer):
                assert_near(by_head, plain(layer, "z", of_heads), ends, model)
            else:
                assert by_head.isnan().all()
    assert result.stream.abs().amax((0, 1, 3, 4, 5)).min() > 0.01
    rows = [row for row in result.rows() if row["component"] == "head"]
    assert {row["layer"] for row in rows} == {*layers_of(model)}


def test_rows_of_a_trace_distinguish_denoising_from_noising():
    model = family_model("gpt2", torch.float64)
    a, b = zip(*(drawn_pair(model, seed=seed) for seed in range(2)), strict=True)
    options = {"depth": 2, "directions": every_direction(model)[:3]}
    result = trace_positions(model, a, b, **options)
    assert trace_positions(model, a, b, **options, heads=False).heads is None
    rows = result.rows(direction=1)
    assert len(rows) == 2 * 2 * 5 * (3 + model.config.n_heads)
    cell = {"pair": 1, "component": "mlp_out", "layer": 0, "pos": -2}
    row = next(row for row in rows if cell.items() <= row.items())
    assert row["head"] is None and row["gap"] == pytest.approx(float(result.gap[1, 1]))
    assert row["denoise"] == float(result.stream[1, 1, 2, 0, 2, 1])
    assert row["noise"] == -float(result.stream[1, 0, 2, 0, 2, 1])
    cell = {"pair": 0, "head": 3, "layer": 1, "pos": -4}
    row = next(row for row in rows if cell.items() <= row.items())
    assert row["component"] == "head" and row["denoise"] == float(result.heads[0, 1, 1, 3, 0, 1])


# --- pairs and batches ----------------------------------------------------------------------------


def test_pairs_swapped_both_ways_are_two_swaps_and_traces_at_the_word(model):
    """Also along directions of each pair; a text that is its own donor moves nothing."""
    weights, depth = read_weights(model), model.config.n_layers
    a, b = zip(*(drawn_pair(model, seed=seed) for seed in range(3)), strict=True)
    directions = every_direction(model)[:4]
    by_pair = directions * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    both = swap_pairs(weights, a, b, directions, depth=depth)
    z = [target_z(model, rows) for rows in (a, b)]
    for side, (rows, donors) in enumerate(((a, z[1]), (b, z[0]))):
        single = swap_heads(weights, rows, donors, directions)
        assert_near(both[:, side], single, single, model)
    traced, scaled = (
        trace_positions(weights, a, b, along, depth=depth, positions=[0])
        for along in (directions, by_pair)
    )
    at_word = traced.heads[..., 0, :]
    assert_near(at_word.nan_to_num(), both, both, model)
    times = torch.tensor([1.0, 2.0, 3.0])
    for name in ("gap", "stream"):
        whole, along = getattr(traced, name), getattr(scaled, name)
        expected = whole * times.view(3, *[1] * (whole.ndim - 1))
        assert_near(along, expected, expected, model)
    same = trace_positions(weights, a, a, directions, depth=depth, positions=[-1, 0])
    assert_near(same.stream, torch.zeros(()), traced.stream, model)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "bert", "lfm2"])
def test_batches_are_their_rows_in_the_order_given(model, monkeypatch):
    weights, texts, donors = setting(model)
    directions = every_direction(model)[:3]
    masks = random_tensor(5, *donors.shape[1:3]) < 0
    sets = weights, texts, donors, masks, directions
    together, by_set = swap_heads(*sets[:3], directions), swap_sets(*sets)
    for number, text in enumerate(texts):
        single = swap_heads(weights, [text], donors[[number]], directions)
        assert_near(together[number], single[0], together, model)
    monkeypatch.setattr(heads, "BATCH_NUMBERS", 1)
    monkeypatch.setattr(heads, "SETS_AT_ONCE", 2)
    assert_near(swap_heads(*sets[:3], directions), together, together, model)
    assert_near(swap_sets(*sets), by_set, by_set, model)


@pytest.fixture
def run_before(monkeypatch):
    """The number of texts in each run before the word."""
    run_past, counts = variants.run_past, []

    def counting(weights, rows, *options):
        counts.append(len(rows))
        return run_past(weights, rows, *options)

    monkeypatch.setattr(variants, "run_past", counting)
    return counts


@pytest.mark.parametrize("kind", ["gpt2", "lfm2"])
def test_nouns_in_one_sentence_share_the_text_before_them_and_have_separate_donors(
    model, run_before, monkeypatch
):
    """Two of the four sentences have equal length. A batch never separates the nouns of a
    sentence."""
    weights, sentences, _ = setting(model)
    texts = [
        TargetText((*text.ids[: text.at], noun), text.at)
        for text in sentences
        if text.at
        for noun in (7, 90, 201)
    ]
    donors = random_tensor(len(texts), len(weights.blocks), *weights.shape[1::2])
    variants_of_one = 1 + len(heads_of(model))
    monkeypatch.setattr(heads, "BATCH_NUMBERS", 7 * variants_of_one * weights.blocks[0].d_mlp)
    # In another order: texts of the same sentence are still run together.
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(2)).tolist()
    shuffled = [texts[number] for number in order]
    effects = swap_heads(weights, shuffled, donors[order], every_direction(model))
    assert run_before == [1, 2, 1]
    for effect, number in zip(effects, order, strict=True):
        swaps = [{}, *({head: donors[number][head]} for head in heads_of(model))]
        base, *rows = run_with_swaps(model, texts[number], swaps)[0][-1]
        moved = effect[layers_of(model)].flatten(0, 1)
        assert_near(moved, torch.stack(rows) - base, base, model)
    del run_before[:]  # sentences with unequal numbers of nouns
    ids = [(5, 6, 7, 8), (5, 6, 7, 9), (5, 6, 4, 9)]
    together = swap_heads(weights, ids, donors[:3], every_direction(model))
    assert run_before == [3]
    single = swap_heads(weights, ids[2:], donors[2:3], every_direction(model))
    assert_near(together[2], single[0], single, model)


def test_sets_that_differ_in_later_blocks_only_are_one_variant_until_then():
    """Two blocks of two units. Before the first block there is only the unchanged run. In the
    first block a and b are one variant, and c is still the unchanged run."""
    a, b, c = [[1, 0], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [1, 0]]
    first, second = variants.branches(torch.tensor([a, b, c], dtype=torch.bool))
    assert first.parent.tolist() == [0, 0]
    assert first.edited.tolist() == [[False, False], [True, False]]
    assert first.variant_of.tolist() == [1, 1, 0]
    # The unchanged run, c, and the two branches of the first block's second variant.
    assert second.parent.tolist() == [0, 0, 1, 1]
    assert second.edited.tolist() == [[False, False], [True, False], [False, False], [False, True]]
    assert second.variant_of.tolist() == [2, 3, 1]


def test_a_run_stops_at_the_quantity_that_is_read_from_its_last_block(monkeypatch):
    """The reader takes queries, keys and values; or the stream at the word along a direction; or
    the stream itself."""
    weights = read_weights(family_model("gpt2"))
    steps, counts = ("project", "attend_variants", "activate", "after_mlp"), Counter()
    for name in steps:
        step = getattr(blocks, name)

        def counted(*arguments, name=name, step=step):
            counts[name] += 1
            return step(*arguments)

        monkeypatch.setattr(blocks, name, counted)

    def run(ask):
        counts.clear()
        ask()
        return [counts[name] for name in steps]

    before = [2, 1, 1, 1]
    terms = blocks.position_terms(weights, 3)
    assert run(lambda: list(variants.run_past(weights, [[5, 6, 7]], 2, terms))) == before
    z, direction = torch.ones(1, 2, *weights.shape[1::2]), torch.ones(1, weights.shape[2])
    assert run(lambda: swap_heads(weights, [[5, 6, 7]], z, direction)) == [4, 3, 3, 2]
    text = TargetText((5, 6, 7), 2)
    assert run(lambda: tokens.replace_tokens(weights, [text], [[8]])) == [4, 3, 3, 3]


# --- generated text -------------------------------------------------------------------------------


def patched(model, size=1):
    """A text with its cache, z of every head from another text's word, and no replaced head."""
    weights, texts, depth = read_weights(model), drawn_pair(model), model.config.n_layers
    recipient = pair.cache_pair(weights, [texts[0].ids], texts[0].at, depth)
    z = size * target_z(model, [texts[1]])[0]
    no_heads = torch.zeros(weights.shape[:2], dtype=torch.bool)
    return texts[0], recipient, pair.HeadPatch(recipient.at, z, no_heads)


def with_heads(model, change):
    replaced = [head for head in SINGLE_HEADS if model.config.has_heads(head[0])]
    chosen = change.heads.clone()
    for head in replaced:
        chosen[head] = True
    edits = [
        (layer, "z", edit_at((change.at, head), change.z[layer, head])) for layer, head in replaced
    ]
    return change._replace(heads=chosen), edits


def is_largest(logits, token):
    return logits[token] >= logits.max() - 1e-6 * logits.abs().max()


def test_a_run_with_replaced_heads_and_its_generated_text_are_those_of_the_hooked_model(model):
    text, recipient, no_change = patched(model)
    change, edits = with_heads(model, no_change)
    start = recipient.at if model.config.causal else 0
    plain = read_all(model, text.ids, ["resid_pre", "resid_post"], edits)
    run, scale = pair.run_with_patch(recipient, change), plain["resid_post"]
    assert_near(run.final, scale[-1, start:], scale, model)
    stream = torch.cat([plain["resid_pre"][:, text.at], scale[-1:, text.at]])
    assert_near(run.stream, stream, scale, model)
    assert (run.stream[-1] - recipient.final[0, text.at]).abs().max() > 1e-3
    unchanged = pair.run_with_patch(recipient, no_change)
    assert_near(unchanged.final, recipient.final[0, -len(unchanged.final) :], scale, model)
    if not (model.config.causal and model.config.has_lm_head):
        return
    generated, ids = list(pair.generate(recipient.weights, unchanged, 4)), list(text.ids)
    for token in generated:
        with torch.inference_mode():
            assert is_largest(hooks.run(model, [ids])[0, -1], token)
        ids.append(token)
    stopped = list(pair.generate(recipient.weights, unchanged, 4, end=generated[2]))
    assert stopped == generated[: generated.index(generated[2])]
    first = next(iter(pair.generate(recipient.weights, run, 1)))
    assert is_largest(forward.unembed(recipient.weights, scale[-1, -1]), first)


def test_generated_text_ends_with_the_context_window():
    model = family_model("gpt2", torch.float64)
    _, recipient, no_change = patched(model, size=8)
    change, _ = with_heads(model, no_change)
    run, remaining = pair.run_with_patch(recipient, change), model.config.n_ctx - recipient.n
    assert len(list(pair.generate(recipient.weights, run, remaining + 7))) == remaining
