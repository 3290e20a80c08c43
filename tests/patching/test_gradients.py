"""Estimates of swaps by gradients: compared with the swaps of a small change and of a whole layer,
and with TransformerLens' attribution patching.
"""

import pytest
import timing
import torch
from families import each_family, family_model, make_family
from handmade import random_model, tokens_of
from inside import TargetText, forward, read_weights, swap_heads, swap_sets, target_states

import probe
from probe.patching.gradients import attribute_heads

LENGTH, AT = 7, 4
# The norms of Llama, Gemma and Mixtral round to float32, so that no difference of a small change is
# exact.
EXACT = each_family("gpt2", "gpt_neox", "bert")
FAMILIES = each_family("gpt2", "llama", "gemma2", "mixtral", "bert")


def random_texts(model, *, count=2, end=LENGTH):
    """Texts of random ids with the states at their word, and directions at every stage and after
    the final norm.
    """
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, model.config.d_vocab, (count, end), generator=generator).tolist()
    states = target_states(model, [tokens_of(row) for row in ids], [AT] * count)
    stages = model.config.n_layers + 1
    along = torch.randn(count, stages, model.config.d_model, generator=generator)
    return [TargetText(tuple(row), AT) for row in ids], states.z, along.to(model.dtype)


def at_stages(effects, stages):
    """The effects of each layer's heads at the layer's stage, from `... layer head stage`."""
    by_layer = [effects[:, layer, ..., read_out - 1] for layer, read_out in enumerate(stages)]
    return torch.stack(by_layer, dim=1)


@pytest.mark.parametrize("kind", EXACT)
def test_attribution_is_the_slope_of_the_swap(kind):
    assert_attribution_is_the_slope(family_model(kind, torch.float64))


def test_attribution_is_the_slope_of_the_swap_with_relu_in_a_gated_mlp(tmp_path):
    """The gradient of ReLU is computed from its output, which must not be overwritten."""
    folder = make_family(tmp_path / "relu", "modernbert", hidden_activation="relu")
    assert_attribution_is_the_slope(probe.load(folder, dtype=torch.float64))


def assert_attribution_is_the_slope(model):
    """The slope is half of the difference between the swaps of a small change and of its
    opposite, divided by the size of the change.
    """
    weights = read_weights(model)
    texts, z, along = random_texts(model)
    layers = model.config.n_layers
    stages = [1, *[layers + 1] * (layers - 1)]
    change = z.flip(0) - z
    small = 1e-4
    ahead, back = (swap_heads(weights, texts, z + sign * small * change, along) for sign in (1, -1))
    slope = at_stages((ahead - back) / (2 * small), stages)
    estimate = attribute_heads(weights, texts, z.flip(0), along, stages)
    torch.testing.assert_close(estimate, slope, rtol=0, atol=1e-6 * float(slope.abs().max()))
    assert slope.abs().min(-1).values.max() > 0


@pytest.mark.parametrize("kind", FAMILIES)
def test_integrated_gradients_of_a_layer_sum_to_its_swap(kind):
    model = family_model(kind, torch.float64)
    weights = read_weights(model)
    texts, z, along = random_texts(model)
    layers, heads = weights.shape[:2]
    stages = [1, *[layers + 1] * (layers - 1)]
    other_layers = ~torch.eye(layers, dtype=torch.bool)[..., None].expand(-1, -1, heads)
    effects = swap_sets(weights, texts, z.flip(0), other_layers, along)  # row set stage
    whole = at_stages(effects, stages)
    estimate = attribute_heads(weights, texts, z.flip(0), along, stages, steps=100).sum(-1)
    torch.testing.assert_close(estimate, whole, rtol=0, atol=1e-4 * float(whole.abs().max()))
    once = attribute_heads(weights, texts, z.flip(0), along, stages).sum(-1)
    assert (once - whole).abs().max() > 1e-2 * whole.abs().max()  # one gradient is not enough


def test_a_head_without_a_change_and_a_layer_after_its_stage_get_nothing():
    model = random_model()
    weights = read_weights(model)
    texts, z, along = random_texts(model)
    donor = z.clone()
    donor[:, 0, 1] += 1.0
    for steps in (0, 3):
        estimate = attribute_heads(weights, texts, donor, along, [2, 2, 2], steps=steps)
        clear = estimate.abs() > 1e-4 * estimate.abs().max()
        assert clear.nonzero()[:, 1:].unique(dim=0).tolist() == [[0, 1]]
        later = attribute_heads(weights, texts, z.flip(0), along, [2, 2, 2], steps=steps)
        assert bool(later[:, :2].all()) and not later[:, 2].any()


def test_attribution_equals_attribution_patching_of_transformer_lens():
    """The same pair and metric, a difference of two logits: equal to 1e-5 of the largest."""
    model = random_model()
    weights = read_weights(model)
    texts, z, _ = random_texts(model, end=AT + 1)
    first, second = 11, 23
    pair = [[text.ids] for text in texts]
    result, _ = timing.attribution_by_transformer_lens(model, pair, (first, second))
    theirs = torch.zeros(weights.shape[:2])
    for node, score in result.node_scores.items():
        if node.kind == "attn_head_out" and node.position == AT:
            theirs[node.layer, node.head] = score

    table = forward.unembedding(weights, torch.float32)
    layers = len(weights.blocks)
    along = torch.zeros(1, layers + 1, model.config.d_model)
    along[:, -1] = table[first] - table[second]
    ours = attribute_heads(weights, texts[1:], z[:1], along, [layers + 1] * layers)[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
    assert theirs.abs().min() > 0
