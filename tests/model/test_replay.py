"""The whole forward from raw weights against Hugging Face's GPT-2."""

import pytest
import torch
from checkpoints import SENTENCES
from handmade import ODD, make_random, random_model
from transformers import AutoTokenizer, GPT2LMHeadModel

from probe.model import forward
from probe.model.tokens import tokenize
from probe.model.weights import read_weights

EXACT = {"rtol": 0, "atol": 1e-12}
STEPS = ("resid_pre", "x", "q", "k", "v", "scores", "pattern", "z", "delta_e", "attn_out", "resid_mid", "mlp_out")


@pytest.fixture(scope="module")
def double():
    return random_model(torch.float64)


@pytest.fixture(scope="module")
def weights(double):
    return read_weights(double)


def ids_of(model, text=SENTENCES[0]):
    return torch.tensor(tokenize(model, text).ids)


def steps_of(weights, ids, dtype=torch.float64):
    return list(forward.run(weights, ids, dtype))


@pytest.mark.parametrize("tied", [True, False])
def test_everything_equals_hugging_face(tmp_path, tied):
    folder = make_random(tmp_path / "odd", tied=tied)
    plain = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    model = random_model(torch.float64, tied=tied)
    encoded = AutoTokenizer.from_pretrained(folder)(model.tokenizer.bos_token + SENTENCES[0])["input_ids"]
    assert tokenize(model, SENTENCES[0]).ids == tuple(encoded)
    with torch.no_grad():
        theirs = plain(torch.tensor([encoded]), output_hidden_states=True, output_attentions=True)
    weights = read_weights(model)
    ours = steps_of(weights, torch.tensor(encoded))
    for layer, step in enumerate(ours):
        torch.testing.assert_close(step["resid_pre"], theirs.hidden_states[layer][0], **EXACT)
        torch.testing.assert_close(step["pattern"], theirs.attentions[layer][0], **EXACT)
    logits = forward.unembed(weights, ours[-1]["resid_post"])
    torch.testing.assert_close(logits, theirs.logits[0], **EXACT)
    assert model.tokenizer.decode(logits.argmax(-1)) == model.tokenizer.decode(theirs.logits[0].argmax(-1))


def test_the_untied_unembedding_is_another_matrix():
    tied, untied = (read_weights(random_model(torch.float64, tied=tied)) for tied in (True, False))
    assert tied.unembed is tied.wte
    assert not torch.equal(untied.unembed, untied.wte)


def test_weights_are_views_of_the_models_own(double, weights):
    raw = {tensor.untyped_storage().data_ptr() for tensor in double.weights.values()}
    block = weights.blocks[1]
    assert {tensor.untyped_storage().data_ptr() for tensor in (weights.wte, block.w_q, block.w_o, block.b_v)} <= raw
    assert weights.shape == (ODD["n_layer"], ODD["n_head"], ODD["n_embd"], ODD["n_embd"] // ODD["n_head"])


def test_parts_sum_to_the_whole(weights, double):
    steps = steps_of(weights, ids_of(double))
    for layer, (step, block) in enumerate(zip(steps, weights.blocks, strict=True)):
        torch.testing.assert_close(forward.merge_heads(block, step["z"]), step["delta_e"].sum(0) + block.b_o, **EXACT)
        torch.testing.assert_close(step["resid_mid"], step["resid_pre"] + step["attn_out"], **EXACT)
        torch.testing.assert_close(step["resid_post"], step["resid_mid"] + step["mlp_out"], **EXACT)
        following = steps[layer + 1]["resid_pre"] if layer + 1 < len(steps) else step["resid_post"]
        assert torch.equal(following, step["resid_post"])


def test_a_batch_is_its_rows(weights, double):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(double.config.d_vocab, (5, 9), generator=generator)
    together = steps_of(weights, ids)
    for row in range(len(ids)):
        for batched, single in zip(together, steps_of(weights, ids[row]), strict=True):
            for name in STEPS:
                torch.testing.assert_close(batched[name][row], single[name], **EXACT)


def test_a_later_token_changes_nothing_before_it(weights, double):
    ids = ids_of(double)
    changed = ids.clone()
    changed[-1] = (ids[-1] + 1) % double.config.d_vocab
    for before, after in zip(steps_of(weights, ids), steps_of(weights, changed), strict=True):
        assert torch.equal(before["resid_post"][:-1], after["resid_post"][:-1])
        assert not torch.equal(before["resid_post"][-1], after["resid_post"][-1])


def test_half_the_precision_is_half_the_digits(weights, double):
    ids = ids_of(double)
    for exact, rough in zip(steps_of(weights, ids), steps_of(weights, ids, torch.float32), strict=True):
        assert rough["resid_post"].dtype == torch.float32
        error = (exact["resid_post"] - rough["resid_post"]).abs().max() / exact["resid_post"].abs().max()
        assert 0 < error < 1e-5
