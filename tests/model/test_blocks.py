"""The steps of a block compared with a forward from the formulas, for every family with one stack."""

import numpy as np
import plain_forward
import pytest
import torch
from families import SINGLE, each_family, family_model
from hooked_runs import BOUND, ROUNDED

from probe.experiments import head_parts
from probe.model import blocks, variants
from probe.model.architectures import FAMILIES
from probe.model.attention import repeat_kv
from probe.model.load import read_weights
from probe.model.variants import TargetText
from probe.model.weights import read_stacks
from probe.patching import edges, positions
from probe.patching import heads as swaps

# Rotation of neighbours, experts, windows on both sides.
OTHER_RULES = ("gptj", "mixtral", "modernbert")
CAUSAL = [kind for kind in SINGLE if FAMILIES[kind].kind == "decoder"]


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


@pytest.fixture(params=typed(*CAUSAL), ids=str)
def causal(request):
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


@pytest.mark.parametrize("length", [0, 9])
def test_queries_keys_and_values_are_those_of_the_plain_forward(weights, length):
    if not length and not weights.causal:
        pytest.skip("whole texts are run, and none is empty")
    ids = random_ids(weights, 4, length)
    # Two rows begin with the same tokens, and two are equal.
    ids[1, : length // 2] = ids[0, : length // 2]
    ids[3] = ids[2]
    depth, heads, _, d_head = weights.shape
    terms = blocks.position_terms(weights, length)
    run = variants.run_texts(weights, ids.tolist(), depth, terms)
    projections = [[part[:, 0] for part in step.projected[:3]] for step in run]
    assert len(projections) == depth
    if not length:
        groups = weights.config.n_kv_heads
        empty = [(n, 0, d_head) for n in (heads, groups, groups)]
        assert all([part.shape[1:] for part in step] == empty for step in projections)
        return
    steps = plain_forward.run(weights, ids, torch.float64)
    for block, parts, step in zip(weights.blocks, projections, steps, strict=True):
        for name, part in zip("qkv", parts, strict=True):
            exact = step[name] if name == "v" else as_in_scores(weights, block, name, step[name])
            assert_near(repeat_kv(part, heads), exact, weights.config.family)


def test_the_last_position_against_the_unchanged_ones_is_the_plain_forward(causal):
    ids = random_ids(causal, 3, 6)
    last = random_ids(causal, 3, 4, seed=1)  # other last tokens, and the true one
    last[:, 0] = ids[:, -1]
    terms = blocks.position_terms(causal, 6)
    past = variants.run_past(causal, ids[:, :-1].tolist(), len(causal.blocks), terms)
    whole = [torch.cat([ids[:, :-1], last[:, [number]]], dim=1) for number in range(4)]
    plain = [list(plain_forward.run(causal, rows, torch.float64)) for rows in whole]
    for layer, (block, (k, v)) in enumerate(zip(causal.blocks, past, strict=True)):
        resid = torch.stack([steps[layer]["resid_pre"][:, -1:] for steps in plain], dim=1).to(
            causal.dtype
        )
        projected = blocks.project(causal, block, resid, terms, torch.full((1, 1, 1), 5))
        z = blocks.attend_variants(causal, block, projected, (k, v), terms)
        exact = torch.stack([steps[layer]["z"][:, :, -1] for steps in plain], dim=1)
        assert_near(z[:, :, 0], exact, causal.config.family)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(
    "kind", each_family(*CAUSAL, "t5")
)  # T5's decoder biases scores by distance
def test_several_last_positions_against_the_unchanged_ones_are_the_whole_text(kind, dtype):
    model = family_model(kind, dtype)
    weights = (
        read_stacks(model.weights, model.config)["decoder"] if kind == "t5" else read_weights(model)
    )
    generator = torch.Generator().manual_seed(0)
    resid = torch.randn(2, 5, 6, weights.shape[2], generator=generator, dtype=weights.dtype)
    resid[:, :, :3] = resid[:, :1, :3]  # variants differ only after position 2
    block, terms = weights.blocks[1], blocks.position_terms(weights, 6)
    _, k, v, _ = blocks.project(weights, block, resid[:, 0, :3], terms, torch.arange(3)[None])
    projected = blocks.project(
        weights, block, resid[:, :, 3:], terms, torch.arange(3, 6)[None, None]
    )
    z = blocks.attend_variants(weights, block, projected, (k, v), terms)
    exact, bias = block.to(torch.float64, "cpu"), blocks.position_bias(weights, 6)
    whole = plain_forward.attend(weights, exact, resid.double(), bias=bias)["z"].transpose(2, 3)
    assert_near(z, whole[:, :, 3:], weights.config.family)


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
