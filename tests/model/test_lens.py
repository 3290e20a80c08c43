"""What a vector reads as: the last depth is the model's own prediction, a token's own vector is nearest to itself."""

import pytest
import torch
from families import SINGLE, family_model

import probe
from probe.model.ledger import logit_lens, nearest_tokens, residual_stream

TEXT = "The river near the old bank"


@pytest.fixture(scope="module")
def trace(model):
    return probe.trace(model, TEXT)


def test_the_stream_enters_the_first_block_and_leaves_the_last(trace):
    stream = residual_stream(trace, 2)
    assert stream.shape == (len(trace.resid_pre) + 1, trace.resid_pre.shape[-1])
    token, position = (
        trace.weights.raw[f"{name}.weight"][row] for name, row in (("wte", trace.tokens.ids[2]), ("wpe", 2))
    )
    torch.testing.assert_close(stream[0], token + position)
    assert torch.equal(stream[-1], trace.resid_post[-1, 2])
    assert torch.equal(stream[1], trace.resid_post[0, 2])


@pytest.mark.parametrize("kind", SINGLE)
def test_at_the_last_depth_the_lens_is_what_the_model_predicts(kind):
    trace = probe.trace(family_model(kind, torch.float64), TEXT)
    for at in (0, -1):
        torch.testing.assert_close(logit_lens(trace, at)[-1], torch.softmax(trace.logits[at], -1), rtol=0, atol=1e-6)


def test_before_the_last_depth_it_is_the_final_norm_and_the_unembedding(trace):
    raw, vector = trace.weights.raw, residual_stream(trace, 3)[1]
    gain, bias, epsilon = raw["ln_f.weight"], raw["ln_f.bias"], trace.weights.config.epsilon
    normal = torch.nn.functional.layer_norm(vector, vector.shape, gain, bias, epsilon)
    expected = torch.softmax(raw["wte.weight"] @ normal, -1)
    torch.testing.assert_close(logit_lens(trace, 3)[1], expected, rtol=1e-4, atol=1e-6)


def test_a_token_is_nearest_to_itself_at_any_length(model):
    table = model.weights["wte.weight"]
    (first, cosine), *_ = nearest_tokens(model, 3 * table[7])
    assert first == 7 and cosine == pytest.approx(1)


def test_the_order_is_that_of_the_cosines_and_ids_can_be_left_out(model):
    table = model.weights["wte.weight"]
    cosines = torch.nn.functional.cosine_similarity(table, table[7][None])
    wanted = [int(i) for i in cosines.argsort(descending=True) if i not in (7, 3)][:4]
    assert [i for i, _ in nearest_tokens(model, table[7], count=4, without=(7, 3))] == wanted
    assert torch.equal(table, model.weights["wte.weight"])
