"""The fused forward against the plain one of `replay.run`, step by step, and what it may leave out."""

import pytest
import torch
from handmade import random_model

from probe.model import replay
from probe.patching import engine, routes, swaps

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}


@pytest.fixture(params=BOUND, ids=str)
def weights(request):
    return replay.read_weights(random_model(request.param))


def drawn_ids(weights, rows, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(weights.wte), (rows, length), generator=generator)


def assert_near(found, exact):
    """Equal to the plain forward in double precision, relative to the scale of the tensor."""
    assert found.shape == exact.shape
    error = (found.double() - exact).abs().max() / exact.abs().max()
    assert error <= BOUND[found.dtype]


def test_every_step_is_that_of_the_plain_forward(weights):
    ids = drawn_ids(weights, 3, 7)
    for block, step in zip(weights.blocks, replay.run(weights, ids, torch.float64), strict=True):
        given = {name: value.to(weights.wte) for name, value in step.items()}
        for name, found in zip("qkv", engine.project(block, given["resid_pre"], weights.epsilon), strict=True):
            assert_near(found, step[name])
        assert_near(engine.write(block, given["resid_pre"], given["z"]), step["resid_mid"])
        assert_near(engine.finish(block, given["resid_mid"].clone(), weights.epsilon), step["resid_post"])


@pytest.mark.parametrize("length", [0, 1, 9])
def test_queries_keys_and_values_are_those_of_the_plain_forward(weights, length):
    ids = drawn_ids(weights, 4, length)
    ids[1, : length // 2] = ids[0, : length // 2]  # rows that begin alike, and two that are the same
    ids[3] = ids[2]
    found = list(engine.run(weights, ids.tolist(), len(weights.blocks)))
    assert len(found) == len(weights.blocks)
    if not length:
        assert all(part.shape == (4, 4, 0, 7) for step in found for part in step)
        return
    for parts, step in zip(found, replay.run(weights, ids, torch.float64), strict=True):
        for name, part in zip("qkv", parts, strict=True):
            assert_near(part, step[name])


def test_a_beginning_that_rows_share_is_computed_once(weights, monkeypatch):
    rows = [[5, 6, 7, 8], [5, 6, 9, 8], [5, 6, 7, 8], [6, 6, 7, 8]]
    counted, project = [], engine.project
    monkeypatch.setattr(
        engine, "project", lambda block, resid, eps: counted.append(len(resid)) or project(block, resid, eps)
    )
    list(engine.run(weights, rows, 2))
    assert counted == [4 + 2 + 0 + 4] * 2


def test_the_last_position_against_the_unchanged_ones_is_the_plain_forward(weights):
    ids = drawn_ids(weights, 3, 6)
    variants = drawn_ids(weights, 3, 4, seed=1)  # other last tokens, and the true one
    variants[:, 0] = ids[:, -1]
    before = engine.run(weights, ids[:, :-1].tolist(), len(weights.blocks))
    whole = [torch.cat([ids[:, :-1], variants[:, [number]]], dim=1) for number in range(4)]
    plain = [list(replay.run(weights, rows, torch.float64)) for rows in whole]
    for layer, (block, (_, k, v)) in enumerate(zip(weights.blocks, before, strict=True)):
        resid = torch.stack([steps[layer]["resid_pre"][:, -1] for steps in plain], dim=1).to(weights.wte)
        found = engine.attend_last(block, resid, (k, v), weights.epsilon)
        assert_near(found, torch.stack([steps[layer]["z"][:, :, -1] for steps in plain], dim=2))


def test_every_tensor_is_made_where_the_weights_are(weights):
    """On a machine without an accelerator: whatever is made without naming a device would be made nowhere, and fail."""
    depth, heads, _, d_head = weights.shape
    a, b = (drawn_ids(weights, 3, 5, seed=seed).tolist() for seed in (0, 1))
    donor_z, directions = torch.zeros(3, depth, heads, d_head), torch.ones(2, weights.shape[2])
    kept = torch.zeros(4, depth, heads, dtype=torch.bool)
    for run in (
        lambda: swaps.swap_heads(weights, a, donor_z, directions),
        lambda: swaps.swap_pairs(weights, a, b, directions, depth=depth),
        lambda: swaps.swap_sets(weights, a, donor_z, kept, directions),
        lambda: swaps.target_z(weights, a, depth),
        lambda: routes.mixed_z(weights, a, b, depth),
    ):
        with torch.device("meta"):
            found = run()
        assert torch.equal(found, run()) and found.device.type == "cpu"


def test_products_are_not_rounded_to_fewer_bits():
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
