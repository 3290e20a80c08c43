"""A run with heads changed and what is written after it, against whole hooked forwards, for every family."""

import pytest
import torch
from hooked_runs import EACH, KINDS, bound, drawn_pair, made, put, read_all

from probe.model import forward
from probe.model import trace as hooks
from probe.model.weights import read_weights
from probe.patching import swaps
from probe.patching.live import Change, keep, rerun, write_on

HEADS = ((0, 1), (1, 0), (1, 3))


def whole(model, pair, at):
    """Both members kept, with what three heads get from the other one at the word."""
    weights, layers = read_weights(model), model.config.n_layers
    own, other = (keep(weights, [text.ids], at, layers) for text in pair)
    heads = torch.zeros(layers, model.config.n_heads, dtype=torch.bool)
    for place in HEADS:
        heads[place] = True
    return own, Change(at, torch.stack([step.z[0, at] for step in other.steps]), heads)


@pytest.mark.parametrize("kind", KINDS)
def test_several_heads_changed_equal_a_whole_hooked_forward(kind):
    model = made(kind)
    pair = drawn_pair(model)
    at = pair[0].at
    own, change = whole(model, pair, at)
    donor = read_all(model, pair[1].ids, ["z"])["z"]
    edits = [(layer, "z", put((at, head), donor[layer, at, head])) for layer, head in HEADS]
    plain = read_all(model, pair[0].ids, ["resid_pre", "resid_post"], edits)
    run = rerun(own, change)
    start = at if read_weights(model).causal else 0
    scale = plain["resid_post"].abs().max()
    assert (run.final - plain["resid_post"][-1, start:]).abs().max() <= bound(model) * scale
    stream = torch.cat([plain["resid_pre"][:, at], plain["resid_post"][-1:, at]])
    assert (run.stream - stream).abs().max() <= bound(model) * scale
    assert (run.stream[-1] - own.final[0, at]).abs().max() > 100 * bound(model) * scale


@pytest.mark.parametrize("kind", KINDS)
def test_no_head_changed_is_the_unchanged_run(kind):
    model = made(kind)
    pair = drawn_pair(model)
    own, change = whole(model, pair, pair[0].at)
    run = rerun(own, change._replace(heads=torch.zeros_like(change.heads)))
    final = own.final[0, -len(run.final) :]
    assert (run.final - final).abs().max() <= bound(model) * final.abs().max()


def test_one_head_moves_the_word_as_the_engine_of_swaps_says():
    model = made("llama")
    pair, weights = drawn_pair(model), read_weights(model)
    at, every = pair[0].at, torch.eye(model.config.d_model, dtype=model.dtype)
    own, change = whole(model, pair, at)
    swapped = swaps.swap_heads(weights, pair[:1], change.z[None], every)[0]
    for place in HEADS:
        heads = torch.zeros_like(change.heads)
        heads[place] = True
        moved = rerun(own, change._replace(heads=heads)).stream[-1] - own.final[0, at]
        assert (moved - swapped[place]).abs().max() <= bound(model) * swapped.abs().max()


@pytest.mark.parametrize("kind", EACH)
def test_tokens_written_are_those_of_the_hooked_model(kind):
    model = made(kind)
    if not (model.config.causal and model.config.has_head):
        pytest.skip("it does not say what comes next")
    text, *_ = pair = drawn_pair(model)
    own, change = whole(model, pair, text.at)
    run = rerun(own, change._replace(heads=torch.zeros_like(change.heads)))
    written = list(write_on(read_weights(model), run, 5))
    ids = list(text.ids)
    for token in written:
        with torch.inference_mode():
            logits = hooks.run(model, [ids])[0, -1]
        assert logits[token] >= logits.max() - 1e-6 * logits.abs().max()
        ids.append(token)
    assert len(written) == 5
    assert list(write_on(read_weights(model), run, 5, end=written[2])) == written[: written.index(written[2])]


def test_a_changed_head_changes_what_is_written_behind_it():
    """The token after a change is that of a hooked forward with the same change."""
    model = made("gpt2")
    pair = drawn_pair(model)
    own, change = whole(model, pair, pair[0].at)
    change = change._replace(z=8 * change.z)
    edits = [(layer, "z", put((pair[0].at, head), change.z[layer, head])) for layer, head in HEADS]
    plain = read_all(model, pair[0].ids, ["resid_post"], edits)["resid_post"][-1]
    run = rerun(own, change)
    logits = forward.unembed(read_weights(model), plain[-1])
    (token,) = write_on(read_weights(model), run, 1)
    assert logits[token] >= logits.max() - 1e-6 * logits.abs().max()


def test_writing_ends_with_the_context_window():
    model = made("gpt2")
    weights = read_weights(model)
    ids = drawn_pair(model)[0].ids
    room = model.config.n_ctx - len(ids)
    own = keep(weights, [ids], len(ids) - 1, model.config.n_layers)
    nothing = torch.zeros(weights.shape[:2], dtype=torch.bool)
    run = rerun(own, Change(len(ids) - 1, torch.zeros(*weights.shape[:2], weights.shape[-1]), nothing))
    assert len(list(write_on(weights, run, room + 7))) == room
