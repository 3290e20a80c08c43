"""The steps of a block compared with a forward from the formulas, for every family with one stack."""

import numpy as np
import plain_forward
import pytest
import torch
from families import SINGLE, each_family, family_model
from hooked_runs import BOUND, ROUNDED

from probe.experiments import head_parts
from probe.model import blocks, variants
from probe.model.attention import repeat_kv
from probe.model.load import read_weights
from probe.model.variants import TargetText
from probe.patching import edges, positions
from probe.patching import heads as swaps

# Rotation of neighbours, experts, windows on both sides.
OTHER_RULES = ("gptj", "mixtral", "modernbert")


def typed(*kinds):
    """Every family in both dtypes."""
    return [
        pytest.param((*kind.values, dtype), marks=kind.marks)
        for kind in each_family(*kinds, also=OTHER_RULES)
        for dtype in BOUND
    ]


@pytest.fixture(params=typed(*SINGLE), ids=str)
def weights(request):
    return read_weights(family_model(*request.param))


def random_ids(weights, rows, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(weights.config.d_vocab, (rows, length), generator=generator)


def assert_near(actual, exact, family=None):
    """Equal to the plain forward in double precision, relative to the scale of the tensor."""
    assert actual.shape == exact.shape
    error = (actual.double() - exact).abs().max() / exact.abs().max()
    assert error <= max(BOUND[actual.dtype], ROUNDED if family and family.in_float32 else 0)


def as_in_scores(weights, block, name, tensor):
    """Queries or keys of whole texts as scores use them: normed, and rotated in rotary models."""
    group_size = (
        weights.config.n_heads // weights.config.n_kv_heads if name == "k" else 1
    )  # keys are repeated
    tensor, heads = tensor[..., ::group_size, :, :], tensor.shape[-3]
    norm = getattr(block.to(tensor.dtype, "cpu"), f"norm_{name}")
    return repeat_kv(plain_forward.placed(block, tensor, norm, weights.config), heads)


def test_every_step_is_that_of_the_plain_forward(weights):
    ids, family = random_ids(weights, 3, 7), weights.config.family
    terms, pos = blocks.position_terms(weights, 7), torch.arange(7)[None]
    for block, step in zip(
        weights.blocks, plain_forward.run(weights, ids, torch.float64), strict=True
    ):
        inputs = {name: value.to(weights.dtype) for name, value in step.items()}
        projected = blocks.project(weights, block, inputs["resid_pre"], terms, pos)
        q, k, v, _ = projected
        heads = weights.config.n_heads
        assert_near(q, as_in_scores(weights, block, "q", step["q"]), family)
        assert_near(repeat_kv(k, heads), as_in_scores(weights, block, "k", step["k"]), family)
        assert_near(repeat_kv(v, heads), step["v"], family)
        assert_near(blocks.attend(weights, block, projected, terms), step["z"], family)
        z = inputs["z"].transpose(1, 2)
        assert_near(
            blocks.after_attention(weights, block, inputs["resid_pre"], z),
            step["resid_mid"],
            family,
        )
        after = blocks.run_mlp(weights, block, inputs["resid_pre"], inputs["resid_mid"])
        assert_near(after, step["resid_post"], family)


def test_the_pattern_at_a_position_is_that_of_the_plain_forward(weights):
    ids, at = random_ids(weights, 3, 6), torch.tensor([2, 5, 0])
    terms, row = blocks.position_terms(weights, 6), torch.arange(3)
    plain = plain_forward.run(weights, ids, torch.float64)
    run = variants.run_texts(weights, ids.tolist(), 2, terms)
    for step, exact in zip(run, plain, strict=True):
        q, k, *_ = (part[:, 0] for part in step.projected[:3])
        pattern = blocks.pattern_at(weights, step.block, q[row, :, at], k, at, terms)
        assert_near(pattern, exact["pattern"][row, :, at], weights.config.family)


def test_every_tensor_is_made_where_the_weights_are(weights):
    """This runs without an accelerator: a tensor made without a device would be on the meta
    device, and fail.
    """
    if weights.blocks[0].experts is not None:
        pytest.skip("the library's module is not ours")
    depth, heads, _, d_head = weights.shape
    a, b = (
        [TargetText(tuple(ids), 4) for ids in random_ids(weights, 3, 5, seed=seed).tolist()]
        for seed in (0, 1)
    )
    donor_z, directions = torch.zeros(3, depth, heads, d_head), torch.ones(2, weights.shape[2])
    sets, cues = torch.zeros(4, depth, heads, dtype=torch.bool), ([[1]] * 3, [[2]] * 3)
    by_row = torch.ones(3, depth, weights.shape[2])
    for run in (
        lambda: swaps.swap_heads(weights, a, donor_z, directions),
        lambda: swaps.swap_pairs(weights, a, b, directions, depth=depth),
        lambda: swaps.swap_sets(weights, a, donor_z, sets, directions),
        lambda: swaps.swap_sets(weights, a, donor_z, sets, by_row),
        lambda: torch.stack(
            [*head_parts.head_part_z(weights, a, b, {"cue_only": cues}, mixed=True).values()]
        ),
    ):
        with torch.device("meta"):
            result = run()
        assert torch.equal(result, run()) and result.device.type == "cpu"


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_tensors_of_traces_and_edges_are_made_where_the_weights_are(kind):
    causal = read_weights(family_model(kind, torch.float64))
    a, b = ([TargetText((5, 9, cue, 7, 8), 4)] for cue in (30, 31))
    directions = torch.ones(1, causal.shape[2], dtype=torch.float64)
    depth = len(causal.blocks)

    def run():
        traced = positions.trace_positions(causal, a, b, directions, depth=depth)
        by_edge = edges.edges(causal, a, b, directions, depth=depth)
        return [traced.heads, by_edge.total]

    with torch.device("meta"):
        results = run()
    for part, expected in zip(results, run(), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_products_are_not_rounded_to_fewer_bits():
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
