"""Compiled circuits: programs compiled by Tracr give Tracr's results, and their circuits are
found completely.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from campaign.tracr_circuits import auroc, by_direct_path, by_probe, outputs, pairs_of
from compiled import EMBEDDING, MLP, compiled

import probe
from probe.model import forward

RECORD = Path(__file__).parents[2] / "reports" / "tracr.csv"
WHY = "Tracr is not installed: python -m pip install '.[tracr]'"
needs_tracr = pytest.mark.skipif(find_spec("tracr") is None, reason=WHY)
TOKENS = (EMBEDDING, MLP)
CIRCUITS = {
    "two before": {(TOKENS, (0, 0), "value"), ((0, 0), (1, 0), "value")},
    # Tokens are compared, then the first result is copied, then both are combined.
    "ends in ab": {
        (TOKENS, (0, MLP), "input"),
        ((0, MLP), (1, 0), "value"),
        ((0, MLP), (1, MLP), "input"),
        ((1, 0), (1, MLP), "input"),
    },
    "behind the same": {((0, 0), (1, 0), "key"), (TOKENS, (0, 0), "value")}
    | {(TOKENS, (1, 0), channel) for channel in ("query", "value")},
}


@pytest.fixture(params=CIRCUITS)
def name(request):
    return request.param


@needs_tracr
@pytest.mark.slow
def test_a_compiled_program_runs_as_tracr_runs_it_on_every_input_and_the_circuit_is_the_programs(
    name,
):
    program = compiled(name)
    assert len(program.inputs) == 3**5
    results = outputs(program)[:, 1:]  # Tracr's begin token has no meaning
    np.testing.assert_allclose(results, program.next_token[:, 1:], rtol=0, atol=1e-5)
    weights = probe.read_weights(program.model)
    *_, last = forward.run(weights, torch.from_numpy(program.inputs), torch.float32)
    logits = forward.unembed(weights, last["resid_post"])[..., list(program.outputs)]
    np.testing.assert_allclose(logits[:, 1:], program.next_token[:, 1:], rtol=0, atol=1e-5)
    assert len({int(row) for row in program.next_token[:, -1].argmax(-1)}) > 1
    assert program.edges == CIRCUITS[name]
    assert program.heads == {part for edge in program.edges for part in edge[:2] if part[1] != MLP}
    assert program.steps == len(program.heads)


@needs_tracr
@pytest.mark.slow
def test_heads_outside_the_program_are_active_and_not_read(name):
    program = compiled(name)
    pairs = pairs_of(program, 4)
    ids = torch.from_numpy(program.inputs[[row for pair in pairs for row in pair]])
    z = torch.stack(
        [step["z"] for step in forward.run(probe.read_weights(program.model), ids, torch.float32)]
    )
    changes = (z[:, ::2] - z[:, 1::2]).abs().amax((1, 3, 4))  # layer head
    heads, edges = by_probe(program, pairs)
    for head in set(heads) - program.heads:
        assert changes[head] > 0.01 and heads[head] < 1e-6
    assert len(set(heads) - program.heads) >= 3 * program.model.config.n_layers
    assert max(edges[edge] for edge in set(edges) - program.edges) < 1e-6


@needs_tracr
@pytest.mark.slow
def test_swaps_and_paths_find_every_head_and_every_edge_and_agree_with_direct_path_patching(name):
    program = compiled(name)
    pairs = pairs_of(program, 6)
    heads, edges = by_probe(program, pairs)
    assert auroc(heads, program.heads, heads) == auroc(edges, program.edges, edges) == 1
    for edge, effect in by_direct_path(program, pairs).items():
        assert effect <= 1e-6 or edge in program.edges
        assert (
            effect >= edges[edge] - 1e-5
        )  # all positions at once; an edge has only one sender position


def test_a_ranking_of_a_single_class_has_no_area_and_ties_count_half():
    scores = {"a": 0.2, "b": 0.2 + 1e-8, "c": 0.1}
    assert auroc(scores, frozenset("a"), scores) == 0.75
    assert (
        auroc(scores, frozenset("ab"), scores) == 1 and auroc(scores, frozenset("c"), scores) == 0
    )
    assert (
        auroc(scores, frozenset(), scores) is None
        and auroc(scores, frozenset("abc"), scores) is None
    )


def test_sixteen_programs_are_on_record_and_found_completely():
    records = pd.read_csv(RECORD)
    assert (
        len(records) == 16 and records["program"].is_unique and {1, 2, 3} == set(records["steps"])
    )
    assert (records["steps"] == 2).sum() >= 3 and (records["steps"] == 3).sum() >= 2
    assert (
        (records["error"] < 1e-5).all()
        and (records["inputs"] >= 3**5).all()
        and (records["pairs"] == 24).all()
    )
    for kind in ("heads", "edges"):
        assert (records[f"{kind}_probe"] == 1).all() and (records[f"{kind}_attribution"] <= 1).all()
    between = records[records["between_known"] > 0]
    assert len(between) >= 5 and (between["between_probe"] == 1).all()
    assert records.loc[records["between_known"] == 0, "between_probe"].isna().all()
