"""Values of another type than an option takes: one message with the value, the expected type and
the next step."""

import re
from functools import partial

import pandas as pd
import pytest
from embedded import embedded

import probe
from probe.errors import InputError

A = "The river near the bank"
B = "The money near the bank"
SENTENCES = [{"sense": "river", "text": A}, {"sense": "money", "text": B}]
FEW_FRAMES = ("looks", "drawer")
NOUNS = "Cannot choose unambiguous nouns: got controls = {}, not a list of nouns. Give "
SEED = "{}: got seed = {}, expected a whole number from 0 on. Omit it for 0."


@pytest.fixture(scope="module")
def model():
    return embedded()


def wrong_calls():
    """A call with a model, and the beginning of its error message."""
    yield "study words", lambda m: probe.study(m, 5), "Cannot choose words: got 5, not a word or"
    yield (
        "study words of sentences",
        lambda m: probe.study(m, 5, sentences=[row | {"word": "bank"} for row in SENTENCES]),
        "Cannot choose words: got 5, not a word or a list of words. Give ['bank'], for",
    )
    for controls in (5, [5]):
        yield (
            f"controls {controls}",
            lambda m, g=controls: probe.study(m, controls=g),
            NOUNS.format(controls),
        )
    yield "survey controls", lambda m: probe.survey(m, controls=5), NOUNS.format(5)
    yield "study seed", lambda m: probe.study(m, seed="a"), SEED.format("Cannot study words", "'a'")
    yield "survey seed", lambda m: probe.survey(m, seed=-1), SEED.format("Cannot survey words", -1)
    yield (
        "seed that no library counts up to",
        lambda m: probe.study(m, seed=2**63),
        f"Cannot study words: got seed = {2**63}, expected a whole number from 0 to {2**63 - 1}. Omit",
    )
    yield (
        "evaluate seed",
        lambda m: probe.evaluate(m, sentences=SENTENCES, words="bank", seed=0.5),
        SEED.format("Cannot evaluate sentences", 0.5),
    )
    yield "cues seed", lambda m: probe.cues(m, "bank", seed=-1), SEED.format("Cannot scan cues", -1)
    yield (
        "survey out",
        lambda m: probe.survey(m, out=5),
        "Cannot survey words: got out = 5, expected the folder for finished words. Give",
    )
    yield (
        "survey workers",
        lambda m: probe.survey(m, workers="dask"),
        "Cannot survey words: got workers = 'dask', expected a whole number from 1 on. Omit it for one",
    )
    yield (
        "layer of a head",
        lambda m: probe.trace(m, A).delta_e(layer="a", head=0, at="bank"),
        "Cannot take ΔE from a trace: layer is 'a', expected 0 to 3. Choose one of these.",
    )
    for name in ("beside", "against"):
        yield (
            f"walk {name}",
            lambda m, n=name: probe.walk(m, A, **{n: 5}),
            "Cannot read the text: got int, expected one text as str. Give one at a time",
        )
    yield (
        "walk word",
        lambda m: probe.walk(m, A, at=5),
        "Cannot choose a word to follow: got 5, expected a word of the text. Give bank, say.",
    )
    yield (
        "walk head",
        lambda m: probe.walk(m, A, head=5),
        "Cannot follow a head: got head = 5, expected its layer and its number. Give (4, 1), say, or",
    )
    yield (
        "walk layer",
        lambda m: probe.walk(m, A, head=(1.5, 0)),
        "Cannot follow layer 1.5 of tiny-senses: it has 4 layers. Give a layer from 0 to 3.",
    )
    yield (
        "certify nothing",
        lambda m: probe.certify(m, []),
        "Cannot check tiny-senses against its weights: got texts = [], expected at least one text. Give",
    )
    yield (
        "explore",
        lambda m: probe.explore(m, 5),
        "Cannot read the text: got int, expected one text as str. Give one at a time",
    )


@pytest.mark.parametrize(
    "call, message",
    [pytest.param(call, message, id=name) for name, call, message in wrong_calls()],
)
def test_a_value_of_another_type_is_refused_in_one_line(model, call, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}") as refused:
        call(model)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_single_text_and_a_single_noun_are_lists_of_one(model):
    assert probe.certify(model, A).rows == probe.certify(model, [A]).rows
    sentences = [row for row in probe.lexicon.expand("bank").sentences if row.frame in FEW_FRAMES]
    quick = {"sentences": sentences, "permutations": 99, "max_pairs": 2, "experiments": ["nouns"]}
    single, as_list = (
        probe.study(model, "bank", controls=controls, **quick) for controls in ("fence", ["fence"])
    )
    assert single.options == as_list.options and single.options["controls"] == ("fence",)


def test_the_word_may_be_the_third_argument(model):
    for call in (
        partial(probe.delta_e, model, A),
        partial(probe.patch, model, A, against=B),
        partial(probe.decompose, model, A, tokens=" and"),
    ):
        pd.testing.assert_frame_equal(call("bank"), call(at="bank"))
    [hook] = probe.patch_hooks(model, A, "bank", against=B, heads=[(0, 1)])
    assert hook[0] == "blocks.0.attn.hook_z"
    with pytest.raises(InputError, match="Cannot find 'lake' in .*: it occurs nowhere"):
        probe.delta_e(model, A, "lake")


def test_a_word_as_the_target_of_a_model_without_decoder_is_pointed_to_at(model):
    with pytest.raises(InputError, match="no decoder for a target. Give a word to follow as at=,"):
        probe.walk(model, A, "bank")
    with pytest.raises(InputError, match="methods of its trace, as at=.$"):
        probe.trace(model, A, "bank")
