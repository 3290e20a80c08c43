"""A run with patched heads, and the text generated from it, compared with whole hooked forwards,
for every family.
"""

import pytest
import torch
from hooked_runs import EACH, bound, drawn_pair, edit_at, every_direction, model_of_kind, read_all

from probe.model import forward, hooks
from probe.model.load import read_weights
from probe.patching import heads as swaps
from probe.patching.pair import HeadPatch, cache_pair, generate, run_with_patch

HEADS = ((0, 1), (1, 0), (1, 3))


def whole(kind):
    """A model, a pair, its first member cached, z of three heads from the other member's word,
    and an empty patch.
    """
    model = model_of_kind(kind)
    pair, weights = drawn_pair(model), read_weights(model)
    recipient, donor = (
        cache_pair(weights, [text.ids], text.at, len(weights.blocks)) for text in pair
    )
    heads = torch.zeros(weights.shape[:2], dtype=torch.bool)
    no_patch = HeadPatch(
        recipient.at, torch.stack([step.z[0, recipient.at] for step in donor.layers]), heads.clone()
    )
    heads[[layer for layer, _ in HEADS], [head for _, head in HEADS]] = True
    return model, pair, recipient, no_patch._replace(heads=heads), no_patch


@pytest.mark.parametrize("kind", EACH)
def test_several_heads_changed_equal_a_whole_hooked_forward_and_none_the_unchanged_run(kind):
    model, pair, recipient, change, no_patch = whole(kind)
    at, start = recipient.at, recipient.at if recipient.weights.causal else 0
    edits = [(layer, "z", edit_at((at, head), change.z[layer, head])) for layer, head in HEADS]
    plain = read_all(model, pair[0].ids, ["resid_pre", "resid_post"], edits)
    run, close = run_with_patch(recipient, change), bound(model) * plain["resid_post"].abs().max()
    assert (run.final - plain["resid_post"][-1, start:]).abs().max() <= close
    stream = torch.cat([plain["resid_pre"][:, at], plain["resid_post"][-1:, at]])
    assert (run.stream - stream).abs().max() <= close
    assert (run.stream[-1] - recipient.final[0, at]).abs().max() > 100 * close
    final = run_with_patch(recipient, no_patch).final
    assert (final - recipient.final[0, -len(final) :]).abs().max() <= close


def test_one_head_moves_the_word_as_in_swap_heads():
    model, pair, recipient, change, no_patch = whole("llama")
    effects = swaps.swap_heads(recipient.weights, pair[:1], change.z[None], every_direction(model))[
        0
    ]
    for head in HEADS:
        heads = no_patch.heads.clone()
        heads[head] = True
        effect = (
            run_with_patch(recipient, change._replace(heads=heads)).stream[-1]
            - recipient.final[0, recipient.at]
        )
        assert (effect - effects[head]).abs().max() <= bound(model) * effects.abs().max()


def is_largest(logits, token):
    return logits[token] >= logits.max() - 1e-6 * logits.abs().max()


@pytest.mark.parametrize("kind", EACH)
def test_generated_tokens_are_those_of_the_hooked_model(kind):
    model, (text, _), recipient, _, no_patch = whole(kind)
    if not (model.config.causal and model.config.has_lm_head):
        pytest.skip("it does not predict the next token")
    run = run_with_patch(recipient, no_patch)
    tokens, ids = list(generate(recipient.weights, run, 5)), list(text.ids)
    assert len(tokens) == 5
    for token in tokens:
        with torch.inference_mode():
            assert is_largest(hooks.run(model, [ids])[0, -1], token)
        ids.append(token)
    assert (
        list(generate(recipient.weights, run, 5, end=tokens[2]))
        == tokens[: tokens.index(tokens[2])]
    )


def test_a_changed_head_changes_the_generated_text_up_to_the_end_of_the_context_window():
    """The token after a patch is that of a hooked forward with the same patch."""
    model, pair, recipient, change, _ = whole("gpt2")
    change = change._replace(z=8 * change.z)
    edits = [
        (layer, "z", edit_at((recipient.at, head), change.z[layer, head])) for layer, head in HEADS
    ]
    plain = read_all(model, pair[0].ids, ["resid_post"], edits)["resid_post"][-1]
    remaining = model.config.n_ctx - recipient.n
    token, *later = generate(recipient.weights, run_with_patch(recipient, change), remaining + 7)
    assert (
        is_largest(forward.unembed(recipient.weights, plain[-1]), token)
        and len(later) == remaining - 1
    )
