"""Pairs, donors, and the effects of swaps as fractions of the sense gap, compared with whole
forward passes and with results by hand.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from families import family_model
from handmade import ODD, SENSES, make_sentences, random_model, tokens_of, without
from hooked_runs import edit_at, read_all, run_with_swaps
from inside import (
    ALIGNED,
    DRAWN,
    SURVEY_LEAST,
    HeldOutAxes,
    Pairs,
    TargetText,
    components,
    cross_fit,
    design,
    forward,
    predicts,
    read_weights,
    swap_columns,
    swap_every_head,
    swaps,
    target_states,
)
from inside import patched_heads as patching

GRID = make_sentences(frames=3, distances=(1, 2))
LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]


def make_pairs(sentences=GRID, *, limit=1000, seed=0, **options):
    split = cross_fit(sentences, SENSES, seed=seed)
    return design.make_pairs(
        sentences, [row.distance for row in sentences], split, limit=limit, seed=seed, **options
    )


# --- the donor of each sentence --------------------------------------------------------------------


def test_aligned_pairs_differ_in_the_cue_only_and_same_sense_donors_are_of_the_same_frame():
    pairs = make_pairs()
    assert len(pairs) == len(GRID) / 2 and pairs.design == ALIGNED
    for a, b, distance in zip(pairs.a, pairs.b, pairs.distances, strict=True):
        member_a = GRID[a]
        member_b = GRID[b]
        assert (member_a.sense, member_b.sense) == SENSES
        assert (member_a.pair, member_a.frame, member_a.distance) == (
            member_b.pair,
            member_b.frame,
            distance,
        )
        assert member_a.text.replace(member_a.cue_word, member_b.cue_word) == member_b.text
    for row, donor in zip((*pairs.a, *pairs.b), (*pairs.same_a, *pairs.same_b), strict=True):
        recipient = GRID[row]
        giver = GRID[donor]
        assert recipient.sense == giver.sense
        assert (recipient.frame, recipient.distance) == (giver.frame, giver.distance)
        assert row != donor and recipient.cue_word != giver.cue_word


def test_a_same_sense_donor_is_as_similar_to_the_recipient_as_possible():
    """Equal distance comes first, then equal frame; if neither is known, any other sentence."""
    distances_differ = [
        replace(sentence, distance=number // 2 + 1) for number, sentence in enumerate(GRID)
    ]
    in_frames = [
        replace(row, frame=f"frame {at // 40}", distance=at % 40 // 2 + 1)
        for at, row in enumerate(GRID)
    ]
    unknown = without(distances_differ, "frame")
    factors = ("frame", "distance")
    for sentences, equal, differ in (
        (distances_differ, *factors),
        (in_frames, *factors[::-1]),
        (unknown, "sense", "text"),
    ):
        pairs = make_pairs(sentences)
        for row, donor in zip((*pairs.a, *pairs.b), (*pairs.same_a, *pairs.same_b), strict=True):
            recipient = sentences[row]
            giver = sentences[donor]
            assert row != donor and recipient.sense == giver.sense
            assert getattr(recipient, equal) == getattr(giver, equal)
            assert getattr(recipient, differ) != getattr(giver, differ)
    assert any(
        GRID[row].frame != GRID[donor].frame
        for row, donor in zip(pairs.a, pairs.same_a, strict=True)
    )


def test_the_axis_was_not_fitted_on_the_same_sense_donor():
    """With two sentences of each sense, the donor is the recipient itself."""
    two_each = make_sentences(frames=1, distances=(1,), cues=2)
    for sentences in (two_each, make_sentences(frames=4, distances=(1, 2), cues=6)):
        split = cross_fit(sentences, SENSES, seed=0, least=SURVEY_LEAST)
        pairs = design.make_pairs(
            sentences, [1] * len(sentences), split, limit=8, seed=0, unfitted_donors=True
        )
        train = {
            split.rows[test]: {split.rows[row] for row in holdout.train}
            for holdout in split.holdouts
            for test in holdout.test
        }
        donors = [
            *zip(pairs.a, pairs.same_a, strict=True),
            *zip(pairs.b, pairs.same_b, strict=True),
        ]
        assert all(donor not in train[row] for row, donor in donors)
        assert {row == donor for row, donor in donors} == {sentences is two_each}


def test_pairs_are_all_held_out_or_all_used_for_fitting():
    with_split = [replace(row, split="train" if row.frame == "frame 1" else "test") for row in GRID]
    for learned in (False, True):
        pairs = make_pairs(with_split, learned=learned)
        rows = [
            row for row, sentence in enumerate(GRID) if (sentence.frame == "frame 1") == learned
        ]
        assert {*pairs.a, *pairs.b} == set(rows)
    # In folds, every sentence is held out.
    assert len(make_pairs(learned=True)) == 0


def test_a_limited_number_of_pairs_is_drawn_evenly_over_cue_words_with_the_seed():
    pairs = make_pairs(limit=25)
    assert len(set(pairs.a)) == len(pairs) == 25
    counts = [pairs.units.count(unit) for unit in set(pairs.units)]
    assert len(counts) == 10 and set(counts) == {2, 3}
    assert pairs == make_pairs(limit=25)
    assert pairs.a != make_pairs(limit=25, seed=1).a
    two_pairs = pairs.take([3, 1])
    assert (two_pairs.a, two_pairs.units, two_pairs.design) == (
        (pairs.a[3], pairs.a[1]),
        (pairs.units[3], pairs.units[1]),
        ALIGNED,
    )


def test_without_pairs_donors_are_drawn_across_senses():
    pairs = make_pairs(without(GRID, "pair"), limit=20)
    assert pairs.design == DRAWN
    assert len(pairs) == 20
    assert {GRID[row].sense for row in pairs.a} == {"door"} and {
        GRID[row].sense for row in pairs.b
    } == {"canal"}
    assert len({*pairs.a}) == len({*pairs.b}) == 20


def test_bootstrap_draws_resample_frames_and_cues_or_else_the_pairs():
    marked = make_pairs()
    assert set(marked.frames) == {"frame 0", "frame 1", "frame 2"}
    assert len(set(marked.units)) == 10
    unmarked = make_pairs(without(GRID, "frame", "cue_start", "cue_end"))
    assert len(set(unmarked.frames)) == len(set(unmarked.units)) == len(unmarked)
    # A pair without marks is drawn once, not once as a frame and again as a cue.
    assert (unmarked.bootstrap().sum(1) == len(unmarked)).all()
    weights = marked.bootstrap()
    in_first_frame = [at for at, name in enumerate(marked.frames) if name == marked.frames[0]]
    # Some draws contain no pair of the frame, because whole frames are resampled.
    assert (weights[:, in_first_frame] == 0).all(1).any()
    assert weights.shape[1] == len(marked)


# --- the effect of a swap --------------------------------------------------------------------------

A, B, SAME_A, SAME_B = (0, 1, 2), (3, 4, 5), (1, 2, 0), (4, 5, 3)
PAIRS = Pairs(A, B, SAME_A, SAME_B, ("f", "f", "g"), (0, 1, 2), (0, 1, 2), (1, 2, None), ALIGNED, 0)
LENGTHS = (5, 7, 5, 5, 7, 5)
STAGES = LAYERS + 2  # depths 0 to 3, and the stream after the final norm
PARTS = ("gap", "denoise", "noise", "same_sense")


@pytest.fixture(scope="module")
def setting():
    """Six random sentences in a random model, with random axes of three holdouts."""
    model = random_model(torch.float64)
    generator = torch.Generator().manual_seed(3)
    ids = [
        torch.randint(model.config.d_vocab, (length,), generator=generator).tolist()
        for length in LENGTHS
    ]
    states = target_states(model, [tokens_of(row) for row in ids], [len(row) - 1 for row in ids])
    u, midpoint = torch.randn(2, 3, STAGES, ODD["n_embd"], generator=generator, dtype=torch.float64)
    gap = torch.rand(3, STAGES, generator=generator, dtype=torch.float64) + 0.5
    u = u / u.norm(dim=-1, keepdim=True)
    return model, ids, states, HeldOutAxes(SENSES, u, midpoint, gap, np.array([0, 1, 2, 2, 0, 1]))


def measured(setting, depth, pairs=PAIRS, first=1):
    readout = design.readout(LAYERS, depth, first, predicts=True)
    return swapped(setting, pairs, readout)


def swapped(setting, pairs, readout):
    model, ids, states, axes = setting
    weights = read_weights(model)
    stages = torch.cat(
        [states.resid, forward.unembedding_input(weights, states.resid[:, -1])[:, None]], dim=1
    )
    gap = swaps.gaps(axes, stages, pairs)
    return swap_every_head(weights, ids, states, axes, pairs, gap=gap, readout=readout)


def coordinates(setting, recipient, donor):
    """M at every stage of whole forward passes: unchanged, and with each head's z replaced by the
    donor's. `row stage`
    """
    model, ids, states, axes = setting
    text = TargetText(tuple(ids[recipient]), len(ids[recipient]) - 1)
    edits = [{head: states.z[donor][head]} for head in np.ndindex(LAYERS, HEADS)]
    stream, _ = run_with_swaps(model, text, [{}, *edits])
    streams = [
        states.resid[recipient, :1],
        *stream,
        forward.final_norm(read_weights(model), stream[-1]),
    ]
    along = [axes.at(recipient, depth).coordinate(resid) for depth, resid in enumerate(streams)]
    return torch.stack([part.expand(1 + len(edits)) for part in along], dim=-1).numpy()


def shift_of(setting, recipient, donor):
    """How far the swap of each head moves M. `layer head stage`"""
    base, *rows = coordinates(setting, recipient, donor)
    return (np.array(rows) - base).reshape(LAYERS, HEADS, STAGES)


def test_every_layer_is_read_where_the_readings_say():
    readout = design.readout(5, 3, 2, predicts=True)
    assert (readout.at, readout.direct, readout.next_token) == ((3, 3, 3, 5, 5), (2, 2, 3, 4, 5), 6)
    assert design.readout(2, 2, 1, predicts=False).next_token is None
    assert not predicts(read_weights(family_model("bert")))
    assert predicts(read_weights(random_model()))


# Heads before the depth are read there, later heads at the last depth.
@pytest.mark.parametrize("depth", [2, 1])
def test_effects_equal_whole_forwards_at_every_stage(setting, depth):
    effect = measured(setting, depth)
    base = [coordinates(setting, row, row)[0] for row in range(len(LENGTHS))]
    gap = np.array([base[a] - base[b] for a, b in zip(A, B, strict=True)])  # pair stage
    net = np.zeros((LAYERS, HEADS, STAGES))
    at = [depth if layer < depth else LAYERS for layer in range(LAYERS)]
    for pair, (a, b) in enumerate(zip(A, B, strict=True)):
        denoise, noise = shift_of(setting, b, a), -shift_of(setting, a, b)
        same = (shift_of(setting, b, SAME_B[pair]) - shift_of(setting, a, SAME_A[pair])) / 2
        net += (denoise + noise) / 2 - same
        for measured_effects, stages in (
            (effect["word"], at),
            (effect["next_token"], [LAYERS + 1] * LAYERS),
        ):
            np.testing.assert_allclose(measured_effects["gap"][pair], gap[pair, stages], atol=1e-10)
            for name, values in zip(PARTS[1:], (denoise, noise, same), strict=True):
                expected = values[range(LAYERS), :, stages]
                np.testing.assert_allclose(measured_effects[name][pair], expected, atol=1e-10)
    np.testing.assert_allclose(
        effect["net_by_depth"], (net / gap.sum(0))[..., : 1 + LAYERS], atol=1e-9
    )
    assert all(
        (effect["net_by_depth"][layer, :, : layer + 1] == 0).all() for layer in range(LAYERS)
    )
    assert (np.abs(net[..., -1]) > 1e-6).all()


def test_recorded_shifts_in_units_of_the_residual_stream_are_means_over_pairs(setting):
    model, ids, states, axes = setting
    run = partial(patching.swap_heads, read_weights(model))
    raw = swaps.run_swaps(run, ids, states.z, axes, PAIRS)
    both_ways = (raw.b_with_a - raw.a_with_b) / 2 - (raw.same_b - raw.same_a) / 2
    readout = design.readout(LAYERS, 2, 1, predicts=True)
    recorded = swapped(setting, PAIRS, readout)
    by_depth = recorded["moved_by_depth"]  # layer head depth measure
    np.testing.assert_allclose(by_depth[..., 0], both_ways[..., : 1 + LAYERS].mean(0), atol=1e-10)
    assert (by_depth[..., 0, :] == 0).all()
    at = np.asarray(readout.at)
    for layer, depth in enumerate(at):
        of_layer = recorded["moved"][:, layer, :, 0]  # pair head
        np.testing.assert_allclose(of_layer, both_ways[:, layer, :, depth], atol=1e-10)


def test_the_length_of_a_change_is_that_of_the_opposite_donor_minus_that_of_the_same_sense(setting):
    """Directions of an orthonormal basis give the whole change, and so its length."""
    model, ids, states, _ = setting
    weights = read_weights(model)
    basis = torch.eye(states.resid.shape[-1], dtype=states.resid.dtype)
    depth = 2
    recipients = [*B, *A, *A, *B]
    donors = [*A, *B, *PAIRS.same_a, *PAIRS.same_b]
    changes = patching.swap_heads(
        weights, [ids[row] for row in recipients], states.z[donors, :depth], basis
    )
    b_with_a, a_with_b, same_a, same_b = changes.norm(dim=-1).numpy().reshape(4, len(A), depth, -1)
    expected = (b_with_a + a_with_b) / 2 - (same_a + same_b) / 2
    readout = design.readout(LAYERS, depth, 1, predicts=True)
    recorded = swapped(setting, PAIRS, readout)["moved"][:, :depth, :, 1]
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(recorded, expected, atol=1e-5)


@pytest.mark.parametrize("first", [1, 3])
def test_the_direct_effect_is_the_difference_of_the_writes_at_its_stage(setting, first):
    effect = measured(setting, 2, first=first)
    columns = swap_columns([effect], [PAIRS], np.ones(LAYERS, dtype=bool))
    model, _, states, axes = setting
    for layer in range(LAYERS):
        depth = max(layer + 1, first)
        writes_of = {
            (part.layer, part.head): part.vectors
            for part in components(read_weights(model), states, depth)
        }
        axes_of = [[axes.at(row, depth) for row in rows] for rows in (A, B)]
        resid_of = [[states.resid[row, depth] for row in rows] for rows in (A, B)]
        gap = [
            axis_a.coordinate(x) - axis_b.coordinate(y)
            for axis_a, axis_b, x, y in zip(*axes_of, *resid_of, strict=True)
        ]
        np.testing.assert_allclose(effect["direct_gap"][:, layer], gap, atol=1e-12)
        for head in range(HEADS):
            writes = writes_of[layer, head]
            in_pairs = zip(*axes_of, A, B, strict=True)
            expected = [
                axis_a.effect(writes[a]) - axis_b.effect(writes[b])
                for axis_a, axis_b, a, b in in_pairs
            ]
            np.testing.assert_allclose(effect["direct"][:, layer, head], expected, atol=1e-12)
            assert columns["direct"][layer, head] == pytest.approx(
                float(sum(expected) / sum(gap)), abs=1e-12
            )


@pytest.mark.parametrize("kind", ["lfm2"])
def test_mixers_of_a_hybrid_are_read_at_the_stage_of_their_layer_and_are_not_heads(kind):
    model = family_model(kind, torch.float64)
    layers = model.config.n_layers
    ids = [[5 + 11 * row, 7, 9 + row, 8] for row in range(6)]
    states = target_states(model, [tokens_of(row) for row in ids], [3] * 6)
    generator = torch.Generator().manual_seed(3)
    shape = (3, layers + 2, model.config.d_model)
    u, midpoint = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    gap = torch.ones(3, layers + 2, dtype=torch.float64)
    axes = HeldOutAxes(SENSES, u, midpoint, gap, np.array([0, 1, 2, 2, 0, 1]))
    readout = design.readout(layers, 2, 1, predicts=True)
    effects = swapped((model, ids, states, axes), PAIRS, readout)
    assert read_weights(model).has_heads.tolist() == [False, True, False]
    assert swaps.swap_effect(effects["mixers"]).shape == (2, 1)
    for name in PARTS[1:]:
        assert (effects["word"][name][:, [0, 2]] == 0).all()
        assert (effects["word"][name][:, 1] != 0).all()

    def mixer_shift(recipient, donor, layer, depth):
        """How far M moves in a whole hooked forward pass in which the mixer writes the donor's
        output.
        """
        edit = (layer, "attn_out", edit_at(3, states.attn_out[donor, layer]))
        run = read_all(model, ids[recipient], ["resid_post"], [edit])["resid_post"]
        axis = axes.at(recipient, depth)
        base = states.resid[recipient, depth]
        return float(axis.coordinate(run[depth - 1, 3]) - axis.coordinate(base))

    for number, (layer, depth) in enumerate(((0, 2), (2, 3))):
        for pair, (a, b) in enumerate(zip(A, B, strict=True)):
            denoise, noise = mixer_shift(b, a, layer, depth), -mixer_shift(a, b, layer, depth)
            same = (
                mixer_shift(b, SAME_B[pair], layer, depth)
                - mixer_shift(a, SAME_A[pair], layer, depth)
            ) / 2
            parts = [effects["mixers"][name] for name in PARTS[1:]]
            for array, expected in zip(parts, (denoise, noise, same), strict=True):
                assert array[pair, number, 0] == pytest.approx(expected, abs=1e-5)


def by_hand():
    """Effects of two pairs, one layer and two heads."""
    shape = (2, 1, 2)
    return {
        "gap": np.array([[1.0], [3.0]]),
        "denoise": np.array([1.0, 0, 2, 1]).reshape(shape),
        "noise": np.array([0.5, 0, 0.5, -1]).reshape(shape),
        "same_sense": np.array([0.2, 0, 0, 0.4]).reshape(shape),
    }


def test_effects_are_ratios_of_sums():
    effect = by_hand()
    # A mean of ratios would be .833 and .167.
    np.testing.assert_allclose(swaps.ratio(effect, "denoise"), [[3 / 4, 1 / 4]])
    np.testing.assert_allclose(swaps.ratio(effect, "noise"), [[1 / 4, -1 / 4]])
    np.testing.assert_allclose(swaps.swap_effect(effect), [[1 / 2, 0]])
    # The mean gap is 2.
    np.testing.assert_allclose(swaps.net_by_pair(effect), [[[0.55 / 2, 0]], [[1.25 / 2, -0.4 / 2]]])


def test_a_draw_with_every_pair_once_equals_the_effect():
    effect = by_hand()
    weights = np.array([[1.0, 1], [2, 0], [0, 1]])
    swap, net = swaps.drawn_effects(effect, weights).values()
    whole = swaps.swap_effect(effect)
    np.testing.assert_allclose(swap[0], whole)
    np.testing.assert_allclose(net[0], whole - swaps.ratio(effect, "same_sense"))
    np.testing.assert_allclose(net[0], swaps.net_by_pair(effect).mean(0))
    # The first pair alone: (1 + .5) / 2 over 1.
    np.testing.assert_allclose(swap[1], [[0.75, 0]])
    np.testing.assert_allclose(net[2], [[2.5 / 2 / 3, -0.4 / 3]])


def of_senses(*linked):
    """The pairs of sentences of two senses, each with two cue words of its own unit. Units are
    numbered in the order of their pairs.
    """
    rows_a, rows_b = zip(*linked, strict=True)
    units = tuple(range(len(linked)))
    count = len(linked)
    return Pairs(
        *(rows_a, rows_b, rows_a, rows_b), ("f",) * count, units, units, (1,) * count, ALIGNED, 3
    )


# The row of a sentence is the number of its cue word: 0 to 3 of the first sense, 10 to 13 of the
# second, 20 to 23 of the third.
ROWS = [f"cue {row}" for row in range(24)]


def test_a_cue_word_has_the_same_count_in_every_pair_of_senses():
    """The second pair of senses has the cue words of the first sense in another order, and one
    fewer.
    """
    apart = [of_senses((0, 10), (1, 11), (2, 12), (3, 13)), of_senses((2, 22), (0, 20), (3, 23))]
    groups = design.number_across_senses(apart, ROWS)
    weights = design.bootstrap(groups)
    np.testing.assert_array_equal(weights[:, [2, 0, 3]], weights[:, 4:])
    assert (weights[:, 0] != weights[:, 1]).any()
    assert design.count_units([pairs.word_units for pairs in groups]) == 4
    for pairs, numbered in zip(apart, groups, strict=True):
        # The draws of a pair of senses by itself do not depend on the numbers.
        np.testing.assert_array_equal(numbered.bootstrap(), pairs.bootstrap())
        assert numbered.units == pairs.units


def test_units_that_links_would_join_within_a_pair_of_senses_stay_apart():
    """Cue words 0 and 1 are linked by way of the third sense."""
    apart = [
        of_senses((0, 10), (1, 11)),
        of_senses((0, 20), (1, 21)),
        of_senses((10, 21), (11, 20)),
    ]
    groups = design.number_across_senses(apart, ROWS)
    word_units = [pairs.word_units for pairs in groups]
    assert len(set().union(*word_units)) == 6 and design.count_units(word_units) == 2
    draws, estimate = np.array([[1.0, 2], [3, 2]]), np.array([2.0, 1])
    wide = design.widen_draws(draws, estimate, word_units)
    np.testing.assert_allclose(wide - estimate, np.sqrt(3) * (draws - estimate))
    # With linked units, or one pair of senses, the draws are as they are.
    linked = design.number_across_senses(apart[:2], ROWS)
    for units in ([pairs.word_units for pairs in linked], word_units[:1]):
        np.testing.assert_allclose(design.widen_draws(draws, estimate, units), draws)
