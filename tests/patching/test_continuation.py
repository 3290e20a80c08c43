"""A run with patched heads, and the text generated from it, compared with whole hooked forwards,
for every family.
"""

import pytest
import torch
from hooked_runs import EACH, bound, drawn_pair, every_direction, made, put, read_all

from probe.model import forward, hooks
from probe.model.load import read_weights
from probe.patching import heads as swaps
from probe.patching.pair import HeadPatch, cache_pair, generate, run_with_patch

HEADS = ((0, 1), (1, 0), (1, 3))


def whole(kind):
    """A model, a pair, its first member cached, z of three heads from the other member's word,
    and an empty patch.
    """
    model = made(kind)
    pair, weights = drawn_pair(model), read_weights(model)
    own, other = (cache_pair(weights, [text.ids], text.at, len(weights.blocks)) for text in pair)
    heads = torch.zeros(weights.shape[:2], dtype=torch.bool)
    nothing = HeadPatch(
        own.at, torch.stack([step.z[0, own.at] for step in other.layers]), heads.clone()
    )
    heads[[layer for layer, _ in HEADS], [head for _, head in HEADS]] = True
    return model, pair, own, nothing._replace(heads=heads), nothing


@pytest.mark.parametrize("kind", EACH)
def test_several_heads_changed_equal_a_whole_hooked_forward_and_none_the_unchanged_run(kind):
    model, pair, own, change, nothing = whole(kind)
    at, start = own.at, own.at if own.weights.causal else 0
    edits = [(layer, "z", put((at, head), change.z[layer, head])) for layer, head in HEADS]
    plain = read_all(model, pair[0].ids, ["resid_pre", "resid_post"], edits)
    run, close = run_with_patch(own, change), bound(model) * plain["resid_post"].abs().max()
    assert (run.final - plain["resid_post"][-1, start:]).abs().max() <= close
    stream = torch.cat([plain["resid_pre"][:, at], plain["resid_post"][-1:, at]])
    assert (run.stream - stream).abs().max() <= close
    assert (run.stream[-1] - own.final[0, at]).abs().max() > 100 * close
    final = run_with_patch(own, nothing).final
    assert (final - own.final[0, -len(final) :]).abs().max() <= close


def test_one_head_moves_the_word_as_the_engine_of_swaps_says():
    model, pair, own, change, nothing = whole("llama")
    found = swaps.swap_heads(own.weights, pair[:1], change.z[None], every_direction(model))[0]
    for place in HEADS:
        heads = nothing.heads.clone()
        heads[place] = True
        moved = run_with_patch(own, change._replace(heads=heads)).stream[-1] - own.final[0, own.at]
        assert (moved - found[place]).abs().max() <= bound(model) * found.abs().max()


def is_largest(logits, token):
    return logits[token] >= logits.max() - 1e-6 * logits.abs().max()


@pytest.mark.parametrize("kind", EACH)
def test_tokens_written_are_those_of_the_hooked_model(kind):
    model, (text, _), own, _, nothing = whole(kind)
    if not (model.config.causal and model.config.has_head):
        pytest.skip("it does not say what comes next")
    run = run_with_patch(own, nothing)
    written, ids = list(generate(own.weights, run, 5)), list(text.ids)
    assert len(written) == 5
    for token in written:
        with torch.inference_mode():
            assert is_largest(hooks.run(model, [ids])[0, -1], token)
        ids.append(token)
    assert (
        list(generate(own.weights, run, 5, end=written[2])) == written[: written.index(written[2])]
    )


def test_a_changed_head_changes_what_is_written_behind_it_up_to_the_end_of_the_context_window():
    """The token after a patch is that of a hooked forward with the same patch."""
    model, pair, own, change, _ = whole("gpt2")
    change = change._replace(z=8 * change.z)
    edits = [(layer, "z", put((own.at, head), change.z[layer, head])) for layer, head in HEADS]
    plain = read_all(model, pair[0].ids, ["resid_post"], edits)["resid_post"][-1]
    room = model.config.n_ctx - own.n
    token, *others = generate(own.weights, run_with_patch(own, change), room + 7)
    assert is_largest(forward.unembed(own.weights, plain[-1]), token) and len(others) == room - 1
