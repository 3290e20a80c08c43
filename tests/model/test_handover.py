"""A trace as CircuitsVis and BertViz take it: their documented shapes, and their own checks where they are installed."""

import pytest
import torch
from families import family_model
from handmade import random_model

from probe.errors import InputError
from probe.model.records import PairTrace, Trace
from probe.model.trace import trace

TEXT, TARGET = "The mole dug under the bank", "A red apple"


@pytest.fixture(scope="module")
def causal() -> Trace:
    return trace(random_model(), TEXT)


@pytest.fixture(scope="module")
def encoder() -> Trace:
    return trace(family_model("bert"), TEXT)


@pytest.fixture(scope="module")
def pair() -> PairTrace:
    return trace(family_model("bart"), TEXT, TARGET)


def test_circuitsvis_gets_one_layer_without_a_batch_axis(causal: Trace, encoder: Trace) -> None:
    given = causal.to_circuitsvis(1)
    n = len(causal.tokens)
    assert given["attention"].shape == (4, n, n)
    assert torch.equal(given["attention"], causal.pattern[1])
    assert given["tokens"] == list(causal.tokens.pieces)
    assert given["attention_head_names"] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert given["mask_upper_tri"] is True
    assert encoder.to_circuitsvis(0)["mask_upper_tri"] is False
    with pytest.raises(InputError) as error:
        causal.to_circuitsvis(3)
    assert str(error.value) == "Handing a trace to CircuitsVis: layer is 3, expected 0 to 2; choose one of these."


def test_bertviz_gets_every_layer_with_a_batch_of_one(encoder: Trace) -> None:
    given = encoder.to_bertviz()
    n = len(encoder.tokens)
    assert [layer.shape for layer in given["attention"]] == [(1, 4, n, n)] * 2
    assert torch.equal(given["attention"][1][0], encoder.pattern[1])
    assert given["tokens"][0] == "[CLS]" and len(given["tokens"]) == n


def test_bertviz_gets_the_three_attentions_of_a_pair(pair: PairTrace) -> None:
    given = pair.to_bertviz()
    n, m = len(pair.target), len(pair.source)
    assert given["encoder_attention"][0].shape == (1, 4, m, m)
    assert given["decoder_attention"][0].shape == (1, 4, n, n)
    assert given["cross_attention"][0].shape == (1, 4, n, m)
    assert (len(given["encoder_tokens"]), len(given["decoder_tokens"])) == (m, n)


def test_circuitsvis_itself_draws_it(causal: Trace) -> None:
    attention = pytest.importorskip("circuitsvis.attention", reason="circuitsvis is not installed")
    drawn = str(attention.attention_heads(**causal.to_circuitsvis(0)))
    assert "AttentionHeads" in drawn and "L0H3" in drawn


def test_bertviz_itself_draws_it(encoder: Trace, pair: PairTrace) -> None:
    bertviz = pytest.importorskip("bertviz", reason="bertviz is not installed")
    for given, piece in ((encoder.to_bertviz(), "[CLS]"), (pair.to_bertviz(), "</s>")):
        for view in (bertviz.head_view, bertviz.model_view):
            assert piece in view(**given, html_action="return").data
