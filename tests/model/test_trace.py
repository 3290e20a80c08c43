"""Hooked tensors against Hugging Face and against each other: parts, prefixes, batches, and hooks that leave nothing behind."""

import sys
from dataclasses import fields, replace

import pytest
import torch
from checkpoints import SENTENCES, make_checkpoint
from handmade import ODD, random_model
from transformers import GPT2LMHeadModel

from probe.errors import InputError
from probe.model.load import load
from probe.model.tokens import tokenize
from probe.model.trace import HOOKS, run_hooked, target_states, trace, trace_target
from probe.model.weights import read_weights

EXACT = {"rtol": 0, "atol": 1e-12}
TEXT = SENTENCES[0]
LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]


@pytest.fixture(scope="module")
def model():
    return random_model(torch.float64)


@pytest.fixture(scope="module")
def whole(model):
    return trace(model, TEXT)


def test_attention_is_far_from_uniform(whole):
    """Otherwise a wrong query or key would hardly show anywhere below."""
    entropy = -(whole.pattern * whole.pattern.clamp_min(1e-300).log()).sum(-1)[..., 1:]
    uniform = torch.arange(2, len(whole.tokens) + 1, dtype=torch.float64).log()
    assert (entropy / uniform).mean() < 0.6


def test_a_trace_is_what_hugging_face_computes(tmp_path):
    folder = make_checkpoint(tmp_path / "plain", **ODD)
    model = load(folder)
    plain = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    seen = trace(model, TEXT)
    with torch.no_grad():
        theirs = plain(torch.tensor([seen.tokens.ids]), output_hidden_states=True, output_attentions=True)
    near = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(seen.logits, theirs.logits[0], **near)
    for layer in range(LAYERS):
        torch.testing.assert_close(seen.resid_pre[layer], theirs.hidden_states[layer][0], **near)
        torch.testing.assert_close(seen.pattern[layer], theirs.attentions[layer][0], **near)


def test_parts_sum_to_the_whole(model, whole):
    blocks = read_weights(model).blocks
    rows = whole.pattern.sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), **EXACT)
    for layer, block in enumerate(blocks):
        for at in (0, 4, len(whole.tokens) - 1):
            writes = [whole.delta_e(layer, head, at) for head in range(HEADS)]
            torch.testing.assert_close(sum(writes) + block.b_o, whole.attn_out[layer, at], **EXACT)
            for head, write in enumerate(writes):
                by_source = whole.delta_e_by_source(layer, head, at)
                torch.testing.assert_close(by_source.sum(0), write, **EXACT)
                assert (by_source[at + 1 :] == 0).all()
    torch.testing.assert_close(whole.resid_pre + whole.attn_out, whole.resid_mid, **EXACT)
    torch.testing.assert_close(whole.resid_mid + whole.mlp_out, whole.resid_post, **EXACT)
    assert torch.equal(whole.resid_post[:-1], whole.resid_pre[1:])


def test_a_later_token_changes_nothing_before_it(model, whole):
    longer = trace(model, TEXT + " The bank, the spy, the garden.")
    n = len(whole.tokens)
    assert longer.tokens.ids[:n] == whole.tokens.ids
    assert len(longer.tokens) > n
    for name in ("resid_post", "z", "q", "k", "v", "mlp_out"):
        torch.testing.assert_close(getattr(longer, name)[..., :n, :], getattr(whole, name), **EXACT)
    torch.testing.assert_close(longer.pattern[..., :n, :n], whole.pattern, **EXACT)
    assert (longer.pattern[..., :n, n:] == 0).all()


def test_a_single_precision_trace_is_on_the_cpu_without_gradients():
    seen = trace(random_model(torch.float32), TEXT)
    for name in (*HOOKS, "logits"):
        tensor = getattr(seen, name)
        assert (tensor.dtype, tensor.device.type, tensor.requires_grad) == (torch.float32, "cpu", False), name


def test_the_models_own_method_is_the_same(model, whole):
    assert torch.equal(model.trace(TEXT).z, whole.z)


@pytest.mark.parametrize("name", [*HOOKS])
def test_a_trace_of_a_wrong_shape_cannot_be_made(whole, name):
    with pytest.raises(ValueError, match=f"{name} has shape"):
        replace(whole, **{name: getattr(whole, name)[..., :-1]})


def test_markup_in_a_text_is_shown_and_not_run(model):
    shown = trace(model, "a </script><b onclick='x'>bank</b> & \"mole\"")._repr_html_()
    assert "</script>" not in shown
    assert "<b onclick" not in shown
    assert "&lt;" in shown and "&amp;" in shown


def test_too_long_a_text_is_refused_before_it_runs(model):
    with pytest.raises(InputError, match="expected at most 40"):
        trace(model, "bank " * 60)


SENTENCES_OF_MANY_LENGTHS = [
    ("The mole dug a tunnel under the river bank.", 3),
    ("A bank.", 1),
    ("She photographed the muddy bank, and he sold the apple stock.", 11),
    ("The mole dug a tunnel under the river bank.", 5),
    ("apple", 0),
    ("A red apple fell from the old tree.", 3),
]


def states_of(model, chosen=SENTENCES_OF_MANY_LENGTHS):
    sentences = [tokenize(model, text) for text, _ in chosen]
    return target_states(model, sentences, [target for _, target in chosen])


def test_target_states_are_the_traces_at_the_target_in_the_order_given(model):
    states = states_of(model)
    weights = read_weights(model)
    assert states.target.tolist() == [target for _, target in SENTENCES_OF_MANY_LENGTHS]
    for row, (text, target) in enumerate(SENTENCES_OF_MANY_LENGTHS):
        seen = trace(model, text)
        assert states.ids[row] == seen.tokens.ids[target]
        assert torch.equal(states.token_embedding[row], weights.wte[seen.tokens.ids[target]])
        assert torch.equal(states.position_embedding[row], weights.wpe[target])
        expected = torch.cat([seen.resid_pre[:, target], seen.resid_post[-1:, target]])
        torch.testing.assert_close(states.resid[row], expected, **EXACT)
        torch.testing.assert_close(states.mlp_out[row], seen.mlp_out[:, target], **EXACT)
        for name in ("q", "k", "v", "z"):
            torch.testing.assert_close(getattr(states, name)[row], getattr(seen, name)[:, :, target], **EXACT)
        torch.testing.assert_close(
            states.pattern[row, ..., : target + 1], seen.pattern[:, :, target, : target + 1], **EXACT
        )
        assert (states.pattern[row, ..., target + 1 :] == 0).all()


def test_a_sentence_alone_is_the_sentence_among_others(model):
    together = states_of(model)
    for row, one in enumerate(SENTENCES_OF_MANY_LENGTHS):
        alone = states_of(model, [one])
        torch.testing.assert_close(alone.resid[0], together.resid[row], **EXACT)
        torch.testing.assert_close(alone.z[0], together.z[row], **EXACT)


def test_the_residual_is_the_sum_of_what_was_written(model):
    states, weights = states_of(model), read_weights(model)
    running = states.token_embedding + states.position_embedding
    torch.testing.assert_close(states.resid[:, 0], running, **EXACT)
    for layer, block in enumerate(weights.blocks):
        writes = (states.z[:, layer].unsqueeze(-2) @ block.w_o).squeeze(-2).sum(1)
        running = running + writes + block.b_o + states.mlp_out[:, layer]
        torch.testing.assert_close(states.resid[:, layer + 1], running, **EXACT)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"layer": 9}, f"layer is 9, expected 0 to {LAYERS - 1}"),
        ({"head": HEADS}, f"head is {HEADS}, expected 0 to {HEADS - 1}"),
        ({"at": 99}, "at is 99, expected -{n} to {last}"),
    ],
)
def test_a_place_that_is_not_there_is_refused_in_one_sentence(whole, place, said):
    n = len(whole.tokens)
    expected = f"Taking ΔE out of a trace: {said.format(n=n, last=n - 1)}; choose one of these."
    for take in (whole.delta_e, whole.delta_e_by_source):
        with pytest.raises(InputError) as error:
            take(**({"layer": 0, "head": 0, "at": -1} | place))
        assert str(error.value) == expected
        take(layer=LAYERS - 1, head=HEADS - 1, at=-n)


def test_traces_and_states_show_themselves_in_one_line(model, whole):
    assert repr(whole) == f"<Trace of {len(whole.tokens)} tokens through {model.name}: {LAYERS} layers x {HEADS} heads>"
    states = states_of(model)
    assert repr(states) == f"<TargetStates of {len(states)} sentences: {LAYERS} layers x {HEADS} heads>"


def test_states_with_a_row_missing_cannot_be_made(model):
    states = states_of(model)
    for field in fields(states):
        if field.name != "ids":
            with pytest.raises(ValueError, match=f"{field.name} has 5 rows"):
                replace(states, **{field.name: getattr(states, field.name)[:-1]})
    with pytest.raises(ValueError, match="3 depths for 3 layers, expected one more"):
        replace(states, resid=states.resid[:, :-1])


def hooked_points(model):
    return [point.name for point in model.bridge.hook_dict.values() if point.has_hooks()]


def test_no_hook_is_left_behind(model):
    trace(model, TEXT)
    states_of(model)
    assert hooked_points(model) == []

    def fail(name, tensor):
        raise RuntimeError("while reading")

    with pytest.raises(RuntimeError, match="while reading"):
        run_hooked(model, [tokenize(model, TEXT).ids], fail, names=("z",))
    assert hooked_points(model) == []


@pytest.mark.parametrize("chunk", [3, 4, 64])
@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_trace_of_one_position_is_the_whole_trace_there(model, whole, at, chunk, monkeypatch):
    monkeypatch.setattr(sys.modules["probe.trace"], "CHUNK", chunk)
    kept = trace_target(model, whole.tokens, at)
    torch.testing.assert_close(kept.states.pattern[0], whole.pattern[:, :, at, : at + 1], **EXACT)
    torch.testing.assert_close(kept.v, whole.v[:, :, : at + 1], **EXACT)
    torch.testing.assert_close(kept.states.resid[0, :-1], whole.resid_pre[:, at], **EXACT)
    for layer in range(LAYERS):
        for head in range(HEADS):
            by_source = kept.delta_e_by_source(layer, head)
            torch.testing.assert_close(by_source, whole.delta_e_by_source(layer, head, at)[: at + 1], **EXACT)
            torch.testing.assert_close(by_source.sum(0), kept.delta_e(layer, head), **EXACT)
            assert by_source.abs().max() > 0.01


@pytest.mark.parametrize("at", [-1, 99])
def test_a_position_that_is_not_there_is_refused(model, whole, at):
    n = len(whole.tokens)
    said = f"Tracing one position of a text of {n} tokens: got position {at}; choose one from 0 to {n - 1}."
    with pytest.raises(InputError) as refused:
        trace_target(model, whole.tokens, at)
    assert str(refused.value) == said


def test_without_logits_the_same_hooks_see_the_same_tensors(model):
    ids = tokenize(model, TEXT).ids
    seen = {True: [], False: []}
    last = {
        wanted: run_hooked(
            model,
            [ids],
            lambda name, tensor, wanted=wanted: seen[wanted].append(tensor.clone()),
            names=tuple(HOOKS),
            logits=wanted,
        )
        for wanted in seen
    }
    assert len(seen[True]) == LAYERS * len(HOOKS)
    for with_logits, without in zip(*seen.values(), strict=True):
        torch.testing.assert_close(with_logits, without, **EXACT)
    unembedding = model.weights.get("lm_head.weight", model.weights["wte.weight"])
    torch.testing.assert_close(last[False] @ unembedding.T, last[True], **EXACT)
