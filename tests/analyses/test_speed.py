"""The benchmark: its arithmetic by hand, the same results from all compared works, one quick run of
everything."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timing
import torch

from probe.model.load import read_weights
from probe.model.tokens import tokenize
from probe.model.trace import target_states
from probe.patching import heads as swaps
from probe.patching.edges import edges
from probe.patching.gradients import attribute_heads
from probe.studies.patch import patch

SCRIPT = Path(__file__).parents[2] / "analyses" / "speed.py"


@pytest.fixture(scope="module")
def model():
    return timing.shaped("tiny")


def test_works_take_turns_after_a_warm_up():
    called = []
    timings = timing.interleave(
        {"a": lambda: called.append("a"), "b": lambda: called.append("b")}, runs=3
    )
    assert called == ["a", "b"] * 4
    assert timings[["work", "run"]].to_numpy().tolist() == [
        ["a", 0],
        ["b", 0],
        ["a", 1],
        ["b", 1],
        ["a", 2],
        ["b", 2],
    ]
    assert (timings["seconds"] > 0).all()


def test_a_ratio_is_the_median_of_the_ratios_of_the_turns():
    timings = pd.DataFrame(
        {"work": ["a", "b"] * 3, "run": [0, 0, 1, 1, 2, 2], "seconds": [2.0, 1, 9, 3, 8, 2]}
    )
    comparison = timing.compare(timings, "a", "b", times=10)
    assert [comparison[name] for name in ("ratio", "ratio_low", "ratio_high")] == pytest.approx(
        [0.3, 0.2, 0.4]
    )
    assert (comparison["seconds"], comparison["against_seconds"]) == (8, 20)


def test_the_exponent_of_a_power_is_that_power():
    sizes = [8, 64, 512]
    assert timing.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)


def test_the_quadratic_part_of_a_sum_is_found():
    sizes = np.array([8, 32, 128, 512, 1024])
    share, tenth = timing.square_part(sizes, 5 + 2 * sizes + 0.01 * sizes**2)
    assert share == pytest.approx(0.01 * 1024**2 / (5 + 2 * 1024 + 0.01 * 1024**2))
    assert 0.01 * tenth**2 == pytest.approx(0.1 * (5 + 2 * tenth + 0.01 * tenth**2))
    assert timing.square_part(sizes, 5 + 2 * sizes) == (0, float("inf"))


@pytest.mark.campaign
def test_the_loop_over_edges_agrees_with_the_totals_of_the_edges(model):
    weights = read_weights(model)
    a, b = timing.aligned_pairs(model, 1, 12)
    direction = torch.nn.functional.normalize(
        torch.randn(128, generator=torch.Generator().manual_seed(2)), dim=0
    )
    tested = edges(
        weights, a, b, direction[None], depth=weights.shape[0], receivers=[0], mlps=False, reach=0.0
    )
    heads = np.flatnonzero(tested.edges["sender_head"] >= 0)[::9]
    assert {"query", "key", "value"} == set(tested.edges[heads]["channel"])
    looped = timing.loop_over_edges(model, (a[0], b[0]), direction, tested.edges[heads])
    totals = tested.total[0][:, heads, 0]
    torch.testing.assert_close(looped, totals, rtol=0, atol=0.02 * float(totals.abs().max()))
    assert totals.abs().max() > 1e-5


@pytest.mark.campaign
def test_memory_that_is_allocated_for_a_moment_is_counted():
    megabytes, seconds = timing.extra_memory(lambda: torch.ones(2**25).sum())
    assert seconds > 0
    assert np.isnan(megabytes) or 110 < megabytes < 200  # 128 MiB


@pytest.mark.campaign
def test_the_loop_over_heads_agrees_with_the_swaps(model):
    weights, (a, b) = read_weights(model), timing.aligned_pairs(model, 3, 9)
    direction = torch.nn.functional.normalize(
        torch.randn(128, generator=torch.Generator().manual_seed(1)), dim=0
    )
    heads = [(0, 0), (1, 3), (3, 2)]
    plain = timing.loop_over_heads(model, (a, b), direction, heads)
    effects = swaps.swap_pairs(weights, a, b, direction[None], depth=4)[..., 0]
    fast = torch.stack([effects[:, :, layer, head] for layer, head in heads], -1)
    assert plain.shape == (3, 2, 3) and plain.abs().max() > 1e-3
    torch.testing.assert_close(plain, fast, rtol=0, atol=1e-5)


def test_the_loop_over_heads_by_a_metric_agrees_with_patch(model):
    a, b = timing.drawn_texts(model, 3, 9)
    rows = [[tokenize(model, text).ids for text in texts] for texts in (a, b)]
    for first, second in zip(*rows, strict=True):
        assert len(first) == len(second) == 9
        assert [pos for pos in range(9) if first[pos] != second[pos]] == [3]

    def surprise(logits):
        return logits.log_softmax(-1)[:, 5]

    heads = [(0, 0), (1, 3), (3, 2)]
    looped = timing.loop_over_heads(model, rows, surprise, heads)
    frame = patch(model, a, against=b, at=-1, metric=surprise).set_index(["layer", "head"])
    for number, head in enumerate(heads):
        rows_of_head = frame.loc[[head]].sort_values("pair")
        assert rows_of_head["denoise"].tolist() == pytest.approx(
            looped[:, 1, number].tolist(), abs=1e-5
        )
        assert rows_of_head["noise"].tolist() == pytest.approx(
            (-looped[:, 0, number]).tolist(), abs=1e-5
        )
    assert looped.abs().max() > 1e-4


def test_the_bare_forward_computes_the_same_states(model):
    tokens = timing.random_tokens(model, 5, 7)
    bare = timing.bare_forward(timing.plain_model(model), [row.ids for row in tokens], batch=2)
    weights = read_weights(model)
    resid = target_states(model, tokens, [6] * 5).resid[:, -1]
    gain, bias = weights.raw["ln_f.weight"], weights.raw["ln_f.bias"]
    normed = torch.nn.functional.layer_norm(resid, (128,), gain, bias, weights.config.epsilon)
    torch.testing.assert_close(bare, normed, rtol=0, atol=1e-4)


def test_aligned_pairs_differ_in_the_cue_alone(model):
    a, b = timing.aligned_pairs(model, 4, 12)
    assert len(a) == len(b) == 4
    for first, second in zip(a, b, strict=True):
        assert [pos for pos in range(12) if first[pos] != second[pos]] == [6]


def test_the_sets_of_a_curve_are_nested_and_then_matched_per_layer():
    masks = timing.curve_sets(3, 4)
    nested, random_sets = masks[:12], masks[12:]
    assert nested.flatten(1).sum(1).tolist() == list(range(1, 13))
    assert (nested[1:] >= nested[:-1]).all()
    assert len(random_sets) > 100
    per_layer = {tuple(mask.sum(1).tolist()) for mask in random_sets}
    assert per_layer <= {tuple(mask.sum(1).tolist()) for mask in nested}


@pytest.mark.campaign
def test_the_quick_benchmark_has_right_results_and_a_page(tmp_path):
    command, into = (
        [sys.executable, str(SCRIPT), "--quick"],
        os.environ | {"PROBE_OUT": str(tmp_path)},
    )
    process = subprocess.run(
        command, capture_output=True, text=True, env=into, cwd=tmp_path, check=False
    )
    assert process.returncode == 0, process.stderr
    targets = pd.read_csv(tmp_path / "targets.csv").set_index("work")
    assert targets.loc["largest difference of the two, of the residual's unit", "ratio"] < 1e-5
    assert len(targets) == 19 and targets["ratio"].notna().all()
    assert set(pd.read_csv(tmp_path / "scaling.csv")["axis"]) == {"sentences", "pairs", "tokens"}
    page = (tmp_path / "speed.html").read_text(encoding="utf-8")
    assert all(name in page for name in targets.index[:3]) and page.count('class="chart"') == 3
    assert "default-src &#39;none&#39;" in page


def test_attribution_patching_by_autograd_equals_the_estimate_that_is_timed(model):
    """Read after the final norm, at Hugging Face's last hidden state."""
    weights = read_weights(model)
    layers, heads, d_model, _ = weights.shape
    pairs = timing.aligned_pairs(model, 2, 12)
    direction = torch.randn(d_model, generator=torch.Generator().manual_seed(0))
    plain = timing.plain_model(model)
    estimate = timing.attribution_by_autograd(plain, pairs, direction, heads)

    rows = [*pairs[0], *pairs[1]]
    z = target_states(model, [timing.tokens_of(row) for row in rows], [11] * 4).z
    along = torch.zeros(4, layers + 1, d_model)
    along[:, -1] = direction
    donors = z.roll(2, 0)
    exact = attribute_heads(weights, rows, donors, along, [layers + 1] * layers)
    exact = exact.unflatten(0, (2, -1)).transpose(0, 1)
    torch.testing.assert_close(estimate, exact, rtol=0, atol=1e-5 * float(exact.abs().max()))

    exact = swaps.swap_pairs(weights, *pairs, direction[None], depth=layers)[..., 0]
    estimated = timing.both_ways_by_gradients(model, pairs, direction, steps=20)
    assert (estimated - exact).abs().max() < 0.05 * exact.abs().max()
