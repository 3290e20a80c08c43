"""Values of another type than an option takes: one message with the value, the expected type and
the next step."""

import re
from functools import partial

import pandas as pd
import pytest

import probe

A = "The river near the bank"
B = "The money near the bank"
SENTENCES = [{"sense": "river", "text": A}, {"sense": "money", "text": B}]
NOUNS = "Cannot choose unambiguous nouns: got controls = {}, not a list of nouns. Give "
SEED = "{}: got seed = {}, expected a whole number from 0 on. Omit it for 0."
OF_BANK = [row | {"word": "bank"} for row in SENTENCES]
A_TEXT = "Cannot read the text: got int, expected one text as str. Give one at a time"
# A call with a model, and the beginning of its error message.
CALLS = [
    (lambda m: probe.study(m, 5, sentences=OF_BANK), "Cannot choose words: got 5, not a word or a list of words. Give ['bank'], for"),
    (lambda m: probe.study(m, controls=[5]), NOUNS.format([5])),
    (lambda m: probe.survey(m, controls=5), NOUNS.format(5)),
    (lambda m: probe.study(m, seed="a"), SEED.format("Cannot study words", "'a'")),
    (lambda m: probe.survey(m, seed=-1), SEED.format("Cannot survey words", -1)),
    # No library counts so far.
    (lambda m: probe.study(m, seed=2**63), f"Cannot study words: got seed = {2**63}, expected a whole number from 0 to {2**63 - 1}. Omit"),
    (lambda m: probe.evaluate(m, sentences=SENTENCES, words="bank", seed=0.5), SEED.format("Cannot evaluate sentences", 0.5)),
    (lambda m: probe.cues(m, "bank", seed=-1), SEED.format("Cannot scan cues", -1)),
    (lambda m: probe.survey(m, out=5), "Cannot survey words: got out = 5, expected the folder for finished words. Give"),
    (lambda m: probe.survey(m, workers="dask"), "Cannot survey words: got workers = 'dask', expected a whole number from 1 on. Omit it for one"),
    (lambda m: probe.trace(m, A).delta_e(layer="a", head=0, at="bank"), "Cannot take ΔE from a trace: layer is 'a', expected 0 to 3. Choose one of these."),
    (lambda m: probe.walk(m, A, beside=5), A_TEXT),
    (lambda m: probe.walk(m, A, against=5), A_TEXT),
    (lambda m: probe.explore(m, 5), A_TEXT),
    (lambda m: probe.walk(m, A, at=5), "Cannot choose a word to follow: got 5, expected a word of the text. Give bank, say."),
    (lambda m: probe.walk(m, A, head=5), "Cannot follow a head: got head = 5, expected its layer and its number. Give (4, 1), say, or"),
    (lambda m: probe.walk(m, A, head=(1.5, 0)), "Cannot follow layer 1.5 of tiny-senses: it has 4 layers. Give a layer from 0 to 3."),
    (lambda m: probe.certify(m, []), "Cannot check tiny-senses against its weights: got texts = [], expected at least one text. Give"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_a_value_of_another_type_is_refused_in_one_line(tiny, call, message):
    with pytest.raises(probe.InputError, match=f"^{re.escape(message)}") as refused:
        call(tiny)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_single_text_and_a_single_noun_are_lists_of_one(tiny):
    assert probe.certify(tiny, A).rows == probe.certify(tiny, [A]).rows
    sentences = probe.lexicon.expand("bank").sentences[:96]
    quick = {"sentences": sentences, "permutations": 99, "max_pairs": 2, "experiments": ["nouns"]}
    single = probe.study(tiny, "bank", controls="fence", **quick)
    assert single.options["controls"] == ("fence",)


def test_the_word_may_be_the_third_argument(tiny):
    for call in (
        partial(probe.delta_e, tiny, A),
        partial(probe.patch, tiny, A, against=B),
        partial(probe.decompose, tiny, A, tokens=" and"),
    ):
        pd.testing.assert_frame_equal(call("bank"), call(at="bank"))
    [hook] = probe.patch_hooks(tiny, A, "bank", against=B, heads=[(0, 1)])
    assert hook[0] == "blocks.0.attn.hook_z"
    with pytest.raises(probe.InputError, match="Cannot find 'lake' in .*: it occurs nowhere"):
        probe.delta_e(tiny, A, "lake")


def test_a_word_as_the_target_of_a_model_without_decoder_is_pointed_to_at(tiny):
    with pytest.raises(probe.InputError, match="no decoder for a target. Give a word to follow as"):
        probe.walk(tiny, A, "bank")
    with pytest.raises(probe.InputError, match="methods of its trace, as at=.$"):
        probe.trace(tiny, A, "bank")
