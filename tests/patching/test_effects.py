"""Pairs and donors, and the effects of swaps as fractions of the sense gap: against whole forwards and against hand
sums.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import ODD, make_sentences, random_model, tokens_of, without

from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.patching import effects
from probe.patching.effects import ALIGNED, DRAWN, Effects, Pairs
from probe.stats import axes as senses

GRID = make_sentences(frames=3, distances=(1, 2))
SENSES = ("door", "canal")
ROWS = range(len(GRID))
LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]


def make_pairs(sentences=GRID, rows=ROWS, *, most=1000, seed=0):
    return effects.make_pairs(sentences, rows, SENSES, most=most, seed=seed)


# --- which sentence gives to which -----------------------------------------------------------------------------------


def test_aligned_pairs_differ_in_the_cue_only():
    pairs = make_pairs()
    assert len(pairs) == len(GRID) / 2
    assert pairs.design == ALIGNED
    for a, b in zip(pairs.a, pairs.b, strict=True):
        one, other = GRID[a], GRID[b]
        assert (one.sense, other.sense) == SENSES
        assert (one.pair, one.frame, one.distance) == (other.pair, other.frame, other.distance)
        cues = [sentence.text[sentence.cue_start : sentence.cue_end] for sentence in (one, other)]
        assert one.text.replace(cues[0], cues[1]) == other.text


def test_a_same_sense_donor_has_another_cue_and_the_same_frame_and_distance():
    pairs = make_pairs()
    for side, donors in ((pairs.a, pairs.same_a), (pairs.b, pairs.same_b)):
        for row, donor in zip(side, donors, strict=True):
            assert row != donor
            mine, its = GRID[row], GRID[donor]
            assert (mine.sense, mine.frame, mine.distance) == (its.sense, its.frame, its.distance)
            assert mine.text != its.text


def test_a_same_sense_donor_is_the_closest_there_is():
    """No other sentence is at the same distance: the same frame, then; where no frames are known, any other
    sentence.
    """
    alone = [replace(sentence, distance=number + 1) for number, sentence in enumerate(GRID)]
    pairs = make_pairs(alone)
    for row, donor in zip((*pairs.a, *pairs.b), (*pairs.same_a, *pairs.same_b), strict=True):
        assert row != donor
        assert (alone[row].sense, alone[row].frame) == (alone[donor].sense, alone[donor].frame)
    pairs = make_pairs(without(alone, "frame"))
    donors = list(zip(pairs.a, pairs.same_a, strict=True))
    assert all(row != donor and GRID[row].sense == GRID[donor].sense for row, donor in donors)
    assert any(GRID[row].frame != GRID[donor].frame for row, donor in donors)


def test_only_the_rows_given_are_used():
    rows = [row for row in ROWS if GRID[row].frame == "frame 1"]
    pairs = make_pairs(rows=rows)
    assert {*pairs.a, *pairs.b, *pairs.same_a, *pairs.same_b} <= set(rows)
    assert len(pairs) == len(rows) / 2


def test_at_most_so_many_pairs_drawn_with_the_seed():
    pairs = make_pairs(most=10)
    assert len(pairs) == 10
    assert len(set(pairs.a)) == 10
    assert pairs == make_pairs(most=10)
    assert pairs.a != make_pairs(most=10, seed=1).a


def test_without_pairs_donors_are_drawn_across_senses():
    pairs = make_pairs(without(GRID, "pair"), most=20)
    assert pairs.design == DRAWN
    assert len(pairs) == 20
    assert {GRID[row].sense for row in pairs.a} == {"door"} and {GRID[row].sense for row in pairs.b} == {"canal"}
    assert len({*pairs.a}) == len({*pairs.b}) == 20


def test_a_handful_of_aligned_pairs_is_too_few():
    few = [sentence if number < 6 else replace(sentence, pair=None) for number, sentence in enumerate(GRID)]
    assert make_pairs(few).design == DRAWN
    enough = [sentence if number < 8 else replace(sentence, pair=None) for number, sentence in enumerate(GRID)]
    assert make_pairs(enough).design == ALIGNED
    assert len(make_pairs(enough)) == 4


def test_draws_are_over_frames_and_cues_or_over_the_pairs_themselves():
    known = make_pairs()
    assert set(known.frames) == {"frame 0", "frame 1", "frame 2"}
    assert len(set(known.cues)) == 10
    unknown = make_pairs(without(GRID, "frame", "cue_start", "cue_end"))
    assert unknown.frames == unknown.cues
    assert len(set(unknown.frames)) == len(unknown)
    for pairs in (known, unknown):
        weights = pairs.bootstrap()
        assert weights.shape[1] == len(pairs)
        assert np.array_equal(weights, pairs.bootstrap())
    assert (unknown.bootstrap().sum(1) == len(unknown)).all()  # drawn once, not as frames and again as cues
    frames = {frame: [at for at, name in enumerate(known.frames) if name == frame] for frame in set(known.frames)}
    sums = np.stack([known.bootstrap()[:, rows].sum(1) for rows in frames.values()])
    assert (sums == 0).any() and (sums.max(0) > 2 * np.median(sums)).any()  # whole frames come and go


# --- what a swap amounts to ------------------------------------------------------------------------------------------

A, B, SAME_A, SAME_B = (0, 1, 2), (3, 4, 5), (1, 2, 0), (4, 5, 3)
PAIRS = Pairs(A, B, SAME_A, SAME_B, ("f", "f", "g"), ("x", "y", "z"), (1, 2, None), ALIGNED, 0)
LENGTHS = (5, 7, 5, 5, 7, 5)


@pytest.fixture(scope="module")
def setting():
    """Six random sentences on a random model, and an axis fitted on others: the parts of `measure` and whole
    forwards.
    """
    model = random_model(torch.float64)
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(model.config.d_vocab, (length,), generator=generator).tolist() for length in LENGTHS]
    states = target_states(model, [tokens_of(row) for row in ids], [len(row) - 1 for row in ids])
    d_model = ODD["n_embd"]
    others = torch.randn(2, 9, d_model, generator=generator, dtype=torch.float64)
    return model, ids, states, [senses.fit_axis(others[0] + 1, others[1], SENSES, depth) for depth in range(LAYERS + 1)]


def measured(setting, depth, *pairs):
    model, ids, states, axes = setting
    studies = [(axes[depth], chosen) for chosen in pairs or (PAIRS,)]
    return effects.measure(read_weights(model), ids, states, studies)


def coordinate_after(setting, depth, *, recipient, donor, head):
    """M of a whole forward of `recipient` in which z of one head at the last position is the donor's."""
    model, ids, states, axes = setting
    seen = {}

    def edit(z, hook):
        z = z.clone()
        z[0, -1, head[1]] = states.z[donor, head[0], head[1]]
        return z

    def read(resid, hook):
        seen["resid"] = resid[0, -1].clone()

    hooks = [(f"blocks.{head[0]}.attn.hook_z", edit), (f"blocks.{depth - 1}.hook_resid_post", read)]
    with torch.no_grad():
        model.bridge.run_with_hooks(torch.tensor([ids[recipient]]), fwd_hooks=hooks)
    return axes[depth].coordinate(seen["resid"]).item()


@pytest.mark.parametrize("depth", [LAYERS, 2])
def test_effects_equal_whole_forwards(setting, depth):
    [effect] = measured(setting, depth)
    states, axis = setting[2], setting[3][depth]
    base = axis.coordinate(states.resid[:, depth]).tolist()

    def moved(recipient, donor, head):
        return coordinate_after(setting, depth, recipient=recipient, donor=donor, head=head) - base[recipient]

    for pair, (a, b) in enumerate(zip(A, B, strict=True)):
        assert effect.gap[pair] == pytest.approx(base[a] - base[b], abs=1e-12)
        for head in [(layer, number) for layer in range(depth) for number in range(HEADS)]:
            place = (pair, *head)
            assert effect.denoise[place] == pytest.approx(moved(b, a, head), abs=1e-10)
            assert effect.noise[place] == pytest.approx(-moved(a, b, head), abs=1e-10)
            same = (moved(b, SAME_B[pair], head) - moved(a, SAME_A[pair], head)) / 2
            assert effect.same_sense[place] == pytest.approx(same, abs=1e-10)


def test_the_direct_effect_is_the_difference_of_the_writes(setting):
    [effect] = measured(setting, 2)
    model, _, states, axes = setting
    for layer, block in enumerate(read_weights(model).blocks[:2]):
        for head in range(HEADS):
            writes = axes[2].effect(states.z[:, layer, head] @ block.w_o[head])
            np.testing.assert_allclose(effect.direct[:, layer, head], writes[list(A)] - writes[list(B)], atol=1e-12)


def test_heads_at_or_above_the_read_out_have_no_effect(setting):
    [effect] = measured(setting, 1)
    for name in ("denoise", "noise", "same_sense", "direct"):
        values = getattr(effect, name)
        assert values.shape == (3, LAYERS, HEADS)
        assert (values[:, 1:] == 0).all()
        assert (values[:, 0] != 0).any()


def test_swapping_a_pair_with_itself_is_nothing(setting):
    itself = replace(PAIRS, b=A, same_a=A, same_b=A)
    [effect] = measured(setting, LAYERS, itself)
    for name in ("denoise", "noise", "same_sense", "direct", "gap"):
        assert np.abs(getattr(effect, name)).max() < 1e-12


def test_exchanged_senses_flip_every_signed_number_and_no_ratio(setting):
    [one] = measured(setting, LAYERS)
    [other] = measured(setting, LAYERS, replace(PAIRS, a=B, b=A, same_a=SAME_B, same_b=SAME_A))
    np.testing.assert_allclose(other.gap, -one.gap, atol=1e-12)
    np.testing.assert_allclose(other.direct, -one.direct, atol=1e-12)
    np.testing.assert_allclose(other.denoise, -one.noise, atol=1e-12)
    np.testing.assert_allclose(other.noise, -one.denoise, atol=1e-12)
    np.testing.assert_allclose(other.same_sense, -one.same_sense, atol=1e-12)
    np.testing.assert_allclose(other.swap, one.swap, atol=1e-10)


def test_several_pairs_of_senses_are_measured_as_each_alone(setting):
    second = replace(PAIRS, a=A[::-1], b=B, same_a=(2, 0, 1), same_b=SAME_B)
    together = measured(setting, LAYERS, PAIRS, second)
    for effect, pairs in zip(together, (PAIRS, second), strict=True):
        [alone] = measured(setting, LAYERS, pairs)
        for name in ("gap", "denoise", "noise", "same_sense", "direct"):
            np.testing.assert_allclose(getattr(effect, name), getattr(alone, name), atol=1e-12)


def by_hand():
    """Two pairs, one layer, two heads."""
    shape = (2, 1, 2)
    return Effects(
        gap=np.array([1.0, 3.0]),
        denoise=np.array([1.0, 0, 2, 1]).reshape(shape),
        noise=np.array([0.5, 0, 0.5, -1]).reshape(shape),
        same_sense=np.array([0.2, 0, 0, 0.4]).reshape(shape),
        direct=np.array([4.0, 0, 0, 2]).reshape(shape),
    )


def test_ratios_are_of_sums():
    effect = by_hand()
    np.testing.assert_allclose(effect.ratio("denoise"), [[3 / 4, 1 / 4]])  # a mean of ratios would be .833 and .167
    np.testing.assert_allclose(effect.ratio("noise"), [[1 / 4, -1 / 4]])
    np.testing.assert_allclose(effect.swap, [[1 / 2, 0]])
    np.testing.assert_allclose(effect.ratio("direct"), [[1, 1 / 2]])


def test_a_draw_of_everything_once_is_the_effect_itself():
    effect = by_hand()
    swap, net, direct = effect.draws(np.array([[1.0, 1], [2, 0], [0, 1]])).values()
    np.testing.assert_allclose(swap[0], effect.swap)
    np.testing.assert_allclose(net[0], effect.swap - effect.ratio("same_sense"))
    np.testing.assert_allclose(swap[1], [[0.75, 0]])  # the first pair alone: (1 + .5) / 2 over 1
    np.testing.assert_allclose(net[2], [[2.5 / 2 / 3, -0.4 / 3]])
    np.testing.assert_allclose(direct, [[[1, 1 / 2]], [[4, 0]], [[0, 2 / 3]]])


def test_a_cue_word_counts_alike_in_every_group():
    groups = [
        Pairs(*[tuple(range(len(cues)))] * 4, ("f",) * len(cues), cues, (1,) * len(cues), effects.ALIGNED, 3)
        for cues in (("x", "y", "z"), ("y", "x"))
    ]
    weights = effects.bootstrap(groups)
    assert weights.shape == (2000, 5)
    np.testing.assert_array_equal(weights[:, :2], weights[:, [4, 3]])
    assert (weights[:, 0] != weights[:, 1]).any()
    np.testing.assert_array_equal(groups[0].bootstrap(), effects.bootstrap(groups[:1]))


def test_rank_intervals_by_hand():
    draws = np.tile(np.array([3.0, 1, 2]), (1000, 1)).reshape(1000, 1, 3)
    draws[:100, 0] = [1.0, 3, 2]  # a tenth of the draws has the first two the other way round
    low, high = effects.rank_intervals(draws)
    assert (low.tolist(), high.tolist()) == ([[1, 1, 2]], [[3, 3, 2]])
    draws[10:100, 0] = [3.0, 1, 2]  # a hundredth has not
    low, high = effects.rank_intervals(draws)
    assert (low.tolist(), high.tolist()) == ([[1, 3, 2]], [[1, 3, 2]])
