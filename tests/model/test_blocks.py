"""What the blocks that swaps run depend on: the device of the weights, and products that are not
rounded. Their numbers are those of the hooked model (`test_families.py`, `test_check.py`)."""

import numpy as np
import pytest
import torch
from families import SINGLE, each_family, family_model
from inside import TargetText, read_weights, swap_heads, swap_pairs, swap_sets, trace_positions

import probe


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_every_tensor_is_made_where_the_weights_are(kind: str) -> None:
    """This runs without an accelerator: a tensor made without a device would be on the meta
    device, and fail."""
    weights = read_weights(family_model(kind, torch.float64))
    depth, heads, d_model, d_head = weights.shape
    a, b = ([TargetText((5, 9, cue, 7, 8), 4)] for cue in (30, 31))
    donor = torch.zeros(1, depth, heads, d_head, dtype=torch.float64)
    directions = torch.ones(1, d_model, dtype=torch.float64)
    by_row = torch.ones(1, depth, d_model, dtype=torch.float64)
    sets = torch.zeros(4, depth, heads, dtype=torch.bool)
    for run in (
        lambda: swap_heads(weights, a, donor, directions),
        lambda: swap_pairs(weights, a, b, directions, depth=depth),
        lambda: swap_sets(weights, a, donor, sets, directions),
        lambda: swap_sets(weights, a, donor, sets, by_row),
        lambda: trace_positions(weights, a, b, directions, depth=depth).heads,
        lambda: probe.edges(weights, a, b, directions, depth=depth).total,
    ):
        with torch.device("meta"):
            result = run()
        np.testing.assert_array_equal(result, run())


def test_products_are_not_rounded_to_fewer_bits() -> None:
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
