"""One part of the donor's run at one layer and position, compared with a whole hooked forward
for each cell, for every family.
"""

from functools import partial

import pytest
import torch
from hooked_runs import (
    EACH,
    KINDS,
    LAYOUTS,
    QUANTITIES,
    bound,
    drawn_pair,
    every_direction,
    model_of_kind,
    moved_by_places,
    read_all,
    typed,
)

from probe.errors import InputError
from probe.model.load import read_weights
from probe.patching import heads as swaps
from probe.patching import positions


def assert_near(model, actual, plain, scale):
    assert (actual - plain).abs().max() / scale <= bound(model)


@pytest.mark.parametrize(("kind", "dtype"), typed())
def test_every_cell_equals_a_whole_forward(kind, dtype):
    model = model_of_kind(kind, dtype)
    layout = LAYOUTS[KINDS.index(kind) % len(LAYOUTS)]
    pair, at, depth = drawn_pair(model, layout), layout[1], model.config.n_layers
    result = positions.trace_positions(
        read_weights(model), pair[:1], pair[1:], every_direction(model), depth=depth
    )
    assert result.positions == tuple(range(layout[2] - at, 1))
    runs = [read_all(model, text.ids, QUANTITIES) for text in pair]
    scale = max(run["resid_post"][-1, at].abs().max() for run in runs)
    assert_near(
        model, result.gap[0], runs[0]["resid_post"][-1, at] - runs[1]["resid_post"][-1, at], scale
    )
    cells = [(at + offset,) for offset in result.positions]
    of_heads = [(head, *cell) for head in range(model.config.n_heads) for cell in cells]
    for side, (text, recipient, donor) in enumerate(zip(pair, runs, reversed(runs), strict=True)):
        plain = partial(moved_by_places, model, text.ids, recipient, donor, at)
        for layer in range(depth):
            for number, name in enumerate(positions.COMPONENTS):
                assert_near(
                    model, result.stream[0, side, number, layer], plain(layer, name, cells), scale
                )
            expected = plain(layer, "z", [(pos, head) for head, pos in of_heads])
            assert_near(model, result.heads[0, side, layer].flatten(0, 1), expected, scale)
    assert (
        result.stream.abs().amax((0, 1, 3, 4, 5)).min() > 0.01 and result.heads.abs().max() > 0.01
    )


@pytest.mark.parametrize("kind", EACH)
def test_heads_swapped_at_the_word_equal_those_of_swap_pairs(kind):
    model = model_of_kind(kind)
    weights, depth = read_weights(model), model.config.n_layers
    a, b = zip(*(drawn_pair(model, seed=seed) for seed in range(3)), strict=True)
    directions = torch.randn(
        4, model.config.d_model, dtype=model.dtype, generator=torch.Generator().manual_seed(3)
    )
    result = positions.trace_positions(weights, a, b, directions, depth=depth, positions=[0])
    assert result.stream.shape == (3, 2, 3, depth, 1, 4) and result.positions == (0,)
    effects = swaps.swap_pairs(weights, a, b, directions, depth=depth)
    assert (result.heads[..., 0, :] - effects).abs().max() <= bound(model) * effects.abs().max()
    by_pair = directions * torch.tensor([1.0, 2.0, 3.0])[:, None, None]  # separate for each pair
    scaled = positions.trace_positions(weights, a, b, by_pair, depth=depth, positions=[0])
    identical = positions.trace_positions(weights, a, a, directions, depth=depth, positions=[-1, 0])
    for name in ("gap", "stream", "heads"):
        whole = getattr(result, name)
        times = torch.tensor([1.0, 2.0, 3.0]).view(3, *[1] * (whole.ndim - 1))
        assert (getattr(scaled, name) - times * whole).abs().max() <= bound(
            model
        ) * 3 * whole.abs().max()
        assert getattr(identical, name).abs().max() <= bound(model) * whole.abs().max()


def test_rows_distinguish_denoising_from_noising():
    model = model_of_kind("gpt2")
    a, b = zip(*(drawn_pair(model, seed=seed) for seed in range(2)), strict=True)
    directions = torch.eye(model.config.d_model, dtype=model.dtype)[:3]
    result = positions.trace_positions(read_weights(model), a, b, directions, depth=2)
    assert (
        positions.trace_positions(read_weights(model), a, b, directions, depth=2, heads=False).heads
        is None
    )
    rows = result.rows(direction=1)
    assert len(rows) == 2 * 2 * 5 * (3 + model.config.n_heads)
    cell = {"pair": 1, "component": "mlp_out", "layer": 0, "pos": -2}
    row = next(row for row in rows if cell.items() <= row.items())
    assert row["head"] is None and row["gap"] == pytest.approx(float(result.gap[1, 1]))
    assert row["denoise"] == float(result.stream[1, 1, 2, 0, 2, 1])
    assert row["noise"] == -float(result.stream[1, 0, 2, 0, 2, 1])
    row = next(
        row for row in rows if {"pair": 0, "head": 3, "layer": 1, "pos": -4}.items() <= row.items()
    )
    assert row["component"] == "head" and row["denoise"] == float(result.heads[0, 1, 1, 3, 0, 1])


UNEQUAL = (
    "Cannot trace pairs: pair 0 has 4 and 3 tokens, expected equal numbers. Write its members equally "
    "long, omit the pair, or swap in each direction with swap_heads and the z of the other."
)
ALIKE = (
    "Cannot trace pairs from the first token in which they differ to the word: got members that are "
    "the same up to the word, expected a cue before it. Read at a later position or give positions."
)
TOO_FAR = (
    "Cannot trace positions -4 to 0 from the word: pair 0 has 3 tokens before the word and 0 after it "
    "that are read. Trace pairs with another layout separately."
)


@pytest.mark.parametrize(
    ("second", "depth", "offsets", "message"),
    [
        (
            [1, 2, 9, 4],
            3,
            None,
            "Cannot trace pairs up to depth 3: the model has 2 blocks. Give a whole number from 1 to 2.",
        ),
        ([1, 9, 4], 2, None, UNEQUAL),
        ([1, 2, 3, 4], 2, None, ALIKE),
        ([1, 2, 9, 4], 2, [-4, 0], TOO_FAR),
    ],
)
def test_pairs_that_cannot_be_traced_are_refused(second, depth, offsets, message):
    weights, directions = read_weights(model_of_kind("gpt2")), torch.ones(1, 28)
    with pytest.raises(InputError) as caught:
        positions.trace_positions(
            weights, [[1, 2, 3, 4]], [second], directions, depth=depth, positions=offsets
        )
    assert str(caught.value) == message
