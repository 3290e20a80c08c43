"""Why heads attend to the cue: the means over sentences of what the public functions say of each,
and nothing where there is no cue."""

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

SENTENCES = make_sentences(cues=16)


def record_of(model, sentences):
    material = prepare(model, WORD, sentences)
    splits = split_senses(material, seed=0, causal=True)
    return measure(model, material, splits, options_of(pairs=16, experiments=("qk",)))


@cache
def planted():
    """A model in which one head resolves, that head's place, and what was measured of it."""
    model, place = resolver_model(0)
    record = record_of(model, SENTENCES)
    [found] = [one for one in record.measured["qk"] if (one.layer, one.head) == place]
    return model, record, found


def sentences_of(record, found):
    """Those in which a head was taken apart: both of MOST_PAIRS pairs, each with its own cue."""
    assert found.pairs == qk.MOST_PAIRS and len(found.cues) == 2 * qk.MOST_PAIRS
    assert len(set(found.cues)) == len(found.cues)
    by_cue = {}
    for row in record.pairs[0].rows():
        by_cue.setdefault(record.sentences[row].cue_word, []).append(row)
    return by_cue


def one_sentence(model, found, record, number=3):
    """A sentence that could be this one: its cue is, and its contrast is the recorded one."""
    for row in sentences_of(record, found)[found.cues[number]]:
        sentence = record.sentences[row]
        place = {
            "layer": found.layer,
            "head": found.head,
            "at": record.positions[row],
            "source": sentence.cue,
        }
        parts = probe.qk_attribution(model, sentence.text, **place, contrast="mean")
        if np.isclose(parts["score"].sum(), found.contrast[number], rtol=1e-4):
            return sentence, place, parts
    raise AssertionError("no sentence with this cue has the recorded contrast")


def test_a_sentence_has_the_numbers_of_the_public_functions():
    model, record, found = planted()
    sentence, place, parts = one_sentence(model, found, record)
    of_pair = parts.set_index(["part_query", "part_key"])["score"]
    assert of_pair[found.largest] == pytest.approx(found.largest_score[3], rel=1e-4)
    effects = probe.qk_interventions(model, sentence.text, **place)
    for side, replaced in found.replaced.items():
        of_side = effects[effects["side"] == side]
        assert tuple(of_side["part"]) == replaced.parts
        for name in ("attributed", "score", "attention"):
            values = getattr(replaced, name)[3]
            np.testing.assert_allclose(values, of_side[name], rtol=1e-4, atol=1e-6)


def test_the_mean_at_the_other_tokens_is_subtracted_for_every_leading_head():
    """The planted head scores other tokens at about 0, where a wrong sign would not show."""
    model, record, planted_head = planted()
    heads = [one for one in record.measured["qk"] if one is not planted_head]
    assert len(heads) == 2
    for found in heads:
        *_, parts = one_sentence(model, found, record)
        of_pair = parts.set_index(["part_query", "part_key"])["score"]
        assert of_pair[found.largest] == pytest.approx(found.largest_score[3], rel=1e-4)


def test_pairs_of_parts_sum_to_the_contrast_and_writes_to_what_the_head_takes_from_the_cue():
    *_, found = planted()
    assert found.scores.sum() == pytest.approx(found.contrast.mean(), rel=1e-9)
    assert found.writes.sum() == pytest.approx(0.5, abs=0.05)  # a half of the gap, toward its sense
    assert not any(part.startswith("L") for part in (*found.query_parts, *found.key_parts))


def test_the_tables_say_what_was_measured_and_are_empty_where_nothing_was():
    _, record, found = planted()
    tables = of_experiments([record])
    row = tables["why_it_attends"].query("layer == @found.layer and head == @found.head").iloc[0]
    assert row["contrast"] == pytest.approx(found.contrast.mean())
    assert row["share_low"] <= row["share"] <= row["share_high"]
    scores = tables["qk_attribution"].groupby(["layer", "head"])["score"].sum()
    assert scores[found.layer, found.head] == pytest.approx(row["contrast"])
    replaced = tables["qk_interventions"]
    assert replaced["p"].between(1 / 1001, 1).all()
    assert all(len(tables[name]) == 0 for name in tables if name not in qk.TABLES)


def test_without_a_marked_cue_nothing_is_taken_apart():
    model, _ = resolver_model(0)
    record = record_of(model, without(SENTENCES[:48], "pair", "cue_start", "cue_end"))
    assert record.measured["qk"] == ()
    assert of_experiments([record])["qk_attribution"].empty


def test_all_heads_of_a_layer_are_one_part_with_their_bias():
    labels = [(one, "MLP 0") for one in ("L1H0", "attention bias 1", "L10H0", "MLP 1")]
    queries, keys, values = qk._by_layer(labels, np.array([1.0, 2.0, 4.0, 8.0]))
    table = pd.DataFrame(values, queries, keys)["MLP 0"].to_dict()
    assert table == {"heads 1": 3.0, "heads 10": 4.0, "MLP 1": 8.0}
