"""Direct logit attribution: its terms sum to the hooked logits in every family, and follow the
formulas.
"""

import pandas as pd
import pytest
import torch
from families import (
    FAMILIES,
    PAIRED,
    SINGLE,
    each_family,
    family_model,
    make_family,
)
from handmade import random_model
from hooked_runs import bound
from inside import decompose as logits
from inside import first_token, read_weights

import probe
from probe import CrossCheckError, InputError, UnsupportedModel, decomposition, load

TEXT = "The mole dug under the river bank after the flood"
PAIR = (17, 30)


def hooked(whole, at, tokens):
    """The logit, or difference of logits, that the terms must sum to, and all logits of its
    position.
    """
    pos = whole.tokens.positions_of(at)[-1] if isinstance(at, str) else at
    of_pos = whole.logits[pos].double()
    return float(of_pos[tokens[0]] - (of_pos[tokens[1]] if len(tokens) == 2 else 0)), of_pos


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_the_terms_sum_to_the_hooked_logits(kind):
    model = family_model(kind, torch.float64)
    whole = probe.trace(model, TEXT)
    for at in ("bank", -1, 0):
        for tokens in (PAIR, PAIR[:1]):
            expected, of_pos = hooked(whole, at, tokens)
            terms = probe.decompose(
                model, TEXT, at=at, tokens=tokens if len(tokens) == 2 else tokens[0]
            )
            # An absolute bound of 1e-10. Families that round to float32 inside are bounded relative
            # to the largest logit.
            scale = float(of_pos.abs().max()) if FAMILIES[kind].in_float32 else 1.0
            assert abs(float(terms["logit"].sum()) - expected) <= bound(model) * scale
            assert terms["logit"].abs().max() > 1e-3


@pytest.mark.parametrize("kind", each_family(*PAIRED))
def test_the_terms_of_an_encoder_decoder_sum_to_the_hooked_logits(kind):
    model = family_model(kind, torch.float64)
    target = "The apple bank soon"
    pair = probe.trace(model, TEXT, target)
    for at in ("bank", 0):
        pos = pair.target.positions_of(at)[-1] if isinstance(at, str) else at
        of_pos = pair.logits[pos].double()
        difference = of_pos[PAIR[0]] - of_pos[PAIR[1]]
        for tokens, expected in ((PAIR, difference), (PAIR[0], of_pos[PAIR[0]])):
            terms = probe.decompose(model, TEXT, target=target, at=at, tokens=tokens)
            scale = float(of_pos.abs().max()) if FAMILIES[kind].in_float32 else 1.0
            assert abs(float(terms["logit"].sum() - expected)) <= bound(model) * scale
    of_heads = terms.dropna(subset="head").groupby(["stack", "layer", "head"])
    shape = (model.config.n_decoder_layers, model.config.n_heads)
    assert len(of_heads) == 2 * shape[0] * shape[1]
    assert (of_heads.size()["cross"] == len(pair.source)).all()
    assert (of_heads.size()["decoder"] == pos + 1).all()
    by_cross = of_heads["logit"].sum()["cross"]
    assert by_cross.abs().max() > 1e-3


def test_the_terms_of_cross_attention_equal_direct_logits():
    model = family_model("t5", torch.float64)
    pair = probe.trace(model, TEXT, "The apple bank")
    words = ("river", "flood")
    ids = tuple(first_token(model, pair.target.text, word) for word in words)
    adds = probe.cross.direct_logits(model, pair, words[0], against=words[1])
    terms = probe.decompose(model, TEXT, target="The apple bank", at=-1, tokens=ids)
    crossing = terms[(terms["stack"] == "cross") & terms["head"].notna()]
    of_terms = torch.tensor(crossing["logit"].to_numpy()).view(adds[:, :, -1].shape)
    torch.testing.assert_close(of_terms, adds[:, :, -1], rtol=0, atol=1e-9)


def test_a_term_is_the_write_along_a_direction_computed_by_hand():
    """GPT-2 in float64: (W_U[a] - W_U[b]) ln_f.weight, centred, divided by the held scale."""
    model = random_model(torch.float64)
    weights = read_weights(model)
    whole = probe.trace(model, TEXT)
    at = whole.tokens.positions_of("bank")[-1]
    table = weights.raw["wte.weight"]
    gained = (table[PAIR[0]] - table[PAIR[1]]) * weights.raw["ln_f.weight"]
    scale = (whole.resid_post[-1, at].var(unbiased=False) + model.config.epsilon).sqrt()
    direction = (gained - gained.mean()) / scale
    followed = decomposition.logit_direction(whole, "bank", PAIR)
    torch.testing.assert_close(followed.direction, direction, rtol=0, atol=1e-12)
    terms = probe.decompose(model, TEXT, at="bank", tokens=PAIR)
    for layer, head in ((0, 3), (2, 1)):
        rows = terms[(terms["layer"] == layer) & (terms["head"] == head)]
        assert rows["pos"].tolist() == [*range(at + 1)]
        assert rows["token"].tolist() == list(whole.tokens.labels[: at + 1])
        by_source = whole.delta_e_by_source(layer, head, at)[: at + 1] @ direction
        assert rows["logit"].tolist() == pytest.approx(by_source.tolist(), abs=1e-12)
    by_name = terms[terms["head"].isna()].set_index("component")["logit"]
    assert by_name["MLP 1"] == pytest.approx(float(whole.mlp_out[1, at] @ direction), abs=1e-12)
    bias = float((table[PAIR[0]] - table[PAIR[1]]) @ weights.raw["ln_f.bias"])
    assert by_name["final norm bias"] == pytest.approx(bias, abs=1e-12)
    embedding = float(table[whole.tokens.ids[at]] @ direction)
    assert by_name["token embedding"] == pytest.approx(embedding, abs=1e-12)
    assert list(terms.columns) == ["component", "layer", "head", "pos", "token", "logit"]


def test_the_biases_after_the_stream_have_names():
    components = {}
    for kind in ("gpt2", "bert", "llama"):
        terms = probe.decompose(family_model(kind), TEXT, at="bank", tokens=PAIR)
        components[kind] = terms.loc[terms["layer"].isna(), "component"].tolist()
    assert components["gpt2"] == ["token embedding", "position embedding", "final norm bias"]
    assert components["llama"] == ["token embedding"]
    assert components["bert"][-3:] == [
        "unembedding bias",
        "norm bias of the head",
        "bias of the head",
    ]


def test_the_direction_includes_the_scale_of_a_soft_cap():
    """Gemma's cap is held as a scale, capped / uncapped, for each logit."""
    model = family_model("gemma2", torch.float64)
    whole = probe.trace(model, TEXT)
    limit = model.config.final_logit_softcapping
    uncapped = limit * torch.atanh(whole.logits[-1] / limit)
    for token in PAIR:
        capped = decomposition.logit_direction(whole, -1, [token])
        logit = float(whole.resid_post[-1, -1] @ capped.direction) + sum(capped.constants.values())
        assert logit == pytest.approx(float(whole.logits[-1, token]), abs=1e-5)
        assert abs(logit - float(uncapped[token])) > 1e-4


def test_a_token_may_be_a_word_and_a_single_token_gives_its_logit():
    model = random_model()
    ids = tuple(model.tokenizer(word)["input_ids"][0] for word in (" bank", " river"))
    by_name = probe.decompose(model, TEXT, at="bank", tokens=(" bank", " river"))
    pd.testing.assert_frame_equal(by_name, probe.decompose(model, TEXT, at="bank", tokens=ids))
    first, second = (
        probe.decompose(model, TEXT, at="bank", tokens=token)["logit"] for token in ids
    )
    difference = (first - second).tolist()
    assert by_name["logit"].tolist() == pytest.approx(difference, abs=1e-9)


@pytest.mark.parametrize("tokens", [[], [-1], [10**6], [" bank"], [5, 7, 9]])
def test_invalid_token_ids_are_refused(tokens):
    trace = probe.trace(random_model(), TEXT)
    with pytest.raises(InputError) as caught:
        probe.decomposition.logit_direction(trace, "bank", tokens)
    start = (
        f"Cannot follow logits back: got the tokens {tokens!r}, expected one id or two, from 0 to "
    )
    assert str(caught.value).startswith(start)


def test_a_logit_that_cannot_be_decomposed_is_refused(tmp_path, monkeypatch):
    model = random_model()
    with pytest.raises(InputError) as caught:
        probe.decompose(model, TEXT, at="bank", tokens=(1, 2, 3))
    assert str(caught.value) == (
        "Cannot decompose a logit of 3 tokens: expected one token, or two for the difference of their "
        'logits. Give (" water", " loan"), say.'
    )
    with pytest.raises(InputError) as caught:
        probe.decompose(model, TEXT, at="bank", tokens=(5, 5))
    assert str(caught.value) == (
        "Cannot decompose the difference of the logits of (5, 5): the two tokens are the same, and "
        "the difference is always 0. Give two different tokens."
    )
    with pytest.raises(InputError, match=r"^Cannot find None in 'The mole .*expected one word, or"):
        probe.decompose(model, TEXT, at=None, tokens=PAIR)
    with pytest.raises(InputError, match=r"^Cannot find token 99 of 'The mole"):
        probe.decompose(model, TEXT, at=99, tokens=PAIR)
    headless = load(make_family(tmp_path / "bert", "bert", architecture="BertModel"))
    with pytest.raises(
        UnsupportedModel, match="^Cannot read the logits of .*no language-model head"
    ):
        probe.decompose(headless, TEXT, at="bank", tokens=PAIR)
    translator = family_model("t5")
    with pytest.raises(InputError) as missing:
        probe.decompose(translator, TEXT, at="bank", tokens=PAIR)
    assert str(missing.value) == (
        f"Cannot decompose a logit of {translator.name}: it is an encoder-decoder and needs a target. "
        "Give target=, the text so far, and a position or word of it as at=."
    )
    with pytest.raises(InputError, match="it has no decoder for a target. Give one text only"):
        probe.decompose(model, TEXT, at="bank", tokens=PAIR, target=TEXT)
    whole = logits.logit_direction

    def shifted(*arguments):
        logit = whole(*arguments)
        return decomposition.LogitDirection(logit.direction, {**logit.constants, "lost": 1.0})

    monkeypatch.setattr(logits, "logit_direction", shifted)
    with pytest.raises(CrossCheckError) as missed:
        probe.decompose(model, TEXT, at="bank", tokens=PAIR)
    pos = probe.trace(model, TEXT).tokens.positions_of("bank")[-1]
    message = str(missed.value)
    assert message.startswith(
        f"Cannot sum a logit of {model.name} at position {pos}: the terms miss"
    )
    assert message.endswith("Run `probe check` to see which quantity disagrees.")
