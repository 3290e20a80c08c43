"""QK attribution over sentences: its numbers equal the numbers of the public functions in each
sentence, and it is empty without a marked cue.
"""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from handmade import WORD, make_sentences, resolver_model, without
from measured import options_of

import probe
from probe.experiments import qk
from probe.experiments.material import prepare
from probe.experiments.measure import measure
from probe.experiments.observe import split_senses
from probe.results.frames import of_experiments
from probe.stats import resampling

SENTENCES = make_sentences(cues=16)


def record_of(model, sentences):
    material = prepare(model, WORD, sentences)
    splits = split_senses(material, seed=0, causal=True)
    return measure(model, material, splits, options_of(pairs=16, experiments=("qk",)))


@cache
def planted():
    """A model with one resolver, the record of its word, and the attribution of the resolver."""
    model, resolver = resolver_model(0)
    record = record_of(model, SENTENCES)
    [attribution] = [each for each in record.measured["qk"] if (each.layer, each.head) == resolver]
    return model, record, attribution


def sentences_of(record, attribution):
    """The rows of the sentences, by cue word: both members of MOST_PAIRS pairs, all with different
    cues.
    """
    assert attribution.pairs == qk.MOST_PAIRS and len(attribution.cues) == 2 * qk.MOST_PAIRS
    assert len(set(attribution.cues)) == len(attribution.cues)
    by_cue = {}
    for row in record.pairs[0].rows():
        by_cue.setdefault(record.sentences[row].cue_word, []).append(row)
    return by_cue


def one_sentence(model, attribution, record, number=3):
    """A sentence with the cue and the contrast that are recorded under a number."""
    for row in sentences_of(record, attribution)[attribution.cues[number]]:
        sentence = record.sentences[row]
        view = {
            "layer": attribution.layer,
            "head": attribution.head,
            "at": record.positions[row],
            "source": sentence.cue,
        }
        parts = probe.qk_attribution(model, sentence.text, **view, contrast="mean")
        if np.isclose(parts["score"].sum(), attribution.contrast[number], rtol=1e-4):
            return sentence, view, parts
    raise AssertionError("no sentence with this cue has the recorded contrast")


def test_the_numbers_of_a_sentence_equal_the_numbers_of_the_public_functions():
    model, record, attribution = planted()
    sentence, view, parts = one_sentence(model, attribution, record)
    of_pair = parts.set_index(["part_query", "part_key"])["score"]
    assert of_pair[attribution.largest] == pytest.approx(attribution.largest_score[3], rel=1e-4)
    effects = probe.qk_interventions(model, sentence.text, **view)
    for side in qk.SIDES:
        replaced = attribution.replaced[side]
        of_side = effects[effects["side"] == side]
        assert tuple(of_side["part"]) == replaced.parts
        for name in ("attributed", "score", "attention"):
            values = getattr(replaced, name)[3]
            np.testing.assert_allclose(values, of_side[name], rtol=1e-4, atol=1e-6)


def test_the_mean_at_the_other_tokens_is_subtracted_for_every_top_head():
    """The planted head's scores at other tokens are about 0 and would hide a wrong sign."""
    model, record, planted_head = planted()
    heads = [each for each in record.measured["qk"] if each is not planted_head]
    assert len(heads) == 2
    for attribution in heads:
        *_, parts = one_sentence(model, attribution, record)
        of_pair = parts.set_index(["part_query", "part_key"])["score"]
        assert of_pair[attribution.largest] == pytest.approx(attribution.largest_score[3], rel=1e-4)


def test_pairs_of_parts_sum_to_the_contrast_and_writes_sum_to_the_write_from_the_cue():
    *_, attribution = planted()
    assert attribution.scores.sum() == pytest.approx(attribution.contrast.mean(), rel=1e-9)
    # Half of the gap, toward the sentence's sense.
    assert attribution.writes.sum() == pytest.approx(0.5, abs=0.05)
    assert not any(
        part.startswith("L") for part in (*attribution.query_parts, *attribution.key_parts)
    )


def test_the_tables_of_the_experiment_list_its_numbers_and_other_tables_are_empty():
    _, record, attribution = planted()
    tables = of_experiments([record])
    row = (
        tables["why_it_attends"]
        .query("layer == @attribution.layer and head == @attribution.head")
        .iloc[0]
    )
    assert row["contrast"] == pytest.approx(attribution.contrast.mean())
    assert row["share_low"] <= row["share"] <= row["share_high"]
    scores = tables["qk_attribution"].groupby(["layer", "head"])["score"].sum()
    assert scores[attribution.layer, attribution.head] == pytest.approx(row["contrast"])
    replaced = tables["qk_interventions"]
    assert replaced["p"].between(1 / 1001, 1).all()
    assert all(len(tables[name]) == 0 for name in tables if name not in qk.TABLES)


def test_the_largest_pair_is_chosen_with_other_cue_words_than_those_that_report_its_share():
    *_, attribution = planted()
    _, others = resampling.folds(attribution.cues, 2, seed=attribution.seed)[0]
    assert attribution.reported == tuple(others) and len(others) == qk.MOST_PAIRS
    rows = list(attribution.reported)
    share = attribution.largest_score[rows].sum() / attribution.contrast[rows].sum()
    assert attribution.share[0] == pytest.approx(share)


def test_nouns_in_the_words_place_cost_the_contrast_of_a_head_that_reads_the_word():
    """The planted head's query reads the word itself, so a noun has no contrast, and its part costs
    all of it. It scores the cue above all other tokens in every sentence."""
    *_, attribution = planted()
    assert attribution.contrast.min() > 1
    assert np.abs(attribution.noun_contrast).max() < 1e-3
    replaced = attribution.replaced[qk.BY_NOUNS]
    part = replaced.parts.index(attribution.largest[0])
    np.testing.assert_allclose(replaced.score[:, part], attribution.contrast, rtol=0.02)
    assert attribution.p_replaced[qk.BY_NOUNS][part] < 0.05
    assert attribution.cue_first.all()


def test_without_a_marked_cue_there_are_no_attributions():
    model, _ = resolver_model(0)
    record = record_of(model, without(SENTENCES[:48], "pair", "cue_start", "cue_end"))
    assert record.measured["qk"] == ()
    assert of_experiments([record])["qk_attribution"].empty


def test_all_heads_of_a_layer_are_one_part_with_their_bias():
    labels = [(part, "MLP 0") for part in ("L1H0", "attention bias 1", "L10H0", "MLP 1")]
    queries, keys, values = qk._by_layer(labels, np.array([1.0, 2.0, 4.0, 8.0]))
    table = pd.DataFrame(values, queries, keys)["MLP 0"].to_dict()
    assert table == {"heads 1": 3.0, "heads 10": 4.0, "MLP 1": 8.0}
