"""QK attribution over sentences: its numbers equal the numbers of the public functions in each
sentence, and it is empty without a marked cue.
"""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from handmade import WORD, make_sentences, resolver_model, without
from inside import measure, of_experiments, prepare, resampling, split_senses
from measured import options_of

import probe
from probe.experiments import qk

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
    [attribution] = [each for each in record.measured["qk"].values() if head_of(each) == resolver]
    return model, record, attribution


@cache
def tables():
    """The tables of the record."""
    return of_experiments([planted()[1]])


def head_of(attribution):
    return attribution.layer.item(), attribution["head"].item()


def largest_of(attribution):
    return attribution.largest_query.item(), attribution.largest_key.item()


def sentences_of(attribution):
    """The rows of the sentences, by cue word: both members of MOST_PAIRS pairs, all with different
    cues.
    """
    assert attribution.pairs == qk.MOST_PAIRS and len(attribution.cue) == 2 * qk.MOST_PAIRS
    assert len(np.unique(attribution.cue)) == len(attribution.cue)
    by_cue = {}
    for row in tables()["predictions"]["sentence"]:
        by_cue.setdefault(SENTENCES[row].cue_word, []).append(row)
    return by_cue


def one_sentence(model, attribution, number=3):
    """A sentence with the cue and the contrast that are recorded under a number."""
    layer, head = head_of(attribution)
    for row in sentences_of(attribution)[attribution.cue[number].item()]:
        sentence = SENTENCES[row]
        view = {
            "layer": layer,
            "head": head,
            "at": tables()["sentences"]["position"][row],
            "source": sentence.cue,
        }
        parts = probe.qk_attribution(model, sentence.text, **view, contrast="mean")
        if np.isclose(parts["score"].sum(), attribution.contrast[number], rtol=1e-4):
            return sentence, view, parts
    raise AssertionError("no sentence with this cue has the recorded contrast")


def test_the_numbers_of_a_sentence_equal_the_numbers_of_the_public_functions():
    model, _, attribution = planted()
    sentence, view, parts = one_sentence(model, attribution)
    of_pair = parts.set_index(["part_query", "part_key"])["score"]
    largest = attribution.largest[3].item()
    assert of_pair[largest_of(attribution)] == pytest.approx(largest, rel=1e-4)
    effects = probe.qk_interventions(model, sentence.text, **view)
    for side in qk.SIDES:
        replaced = attribution.isel(sentence=3, replacement=attribution.side.values == side)
        of_side = effects[effects["side"] == side]
        assert list(of_side["part"]) == replaced.part.values.tolist()
        for name, column in qk.LOSSES.items():
            np.testing.assert_allclose(replaced[name], of_side[column], rtol=1e-4, atol=1e-6)


def test_the_mean_at_the_other_tokens_is_subtracted_for_every_top_head():
    """The planted head's scores at other tokens are about 0 and would hide a wrong sign."""
    model, record, planted_head = planted()
    heads = [each for each in record.measured["qk"].values() if each is not planted_head]
    assert len(heads) == 2
    for attribution in heads:
        *_, parts = one_sentence(model, attribution)
        of_pair = parts.set_index(["part_query", "part_key"])["score"]
        largest = attribution.largest[3].item()
        assert of_pair[largest_of(attribution)] == pytest.approx(largest, rel=1e-4)


def test_pairs_of_parts_sum_to_the_contrast_and_writes_sum_to_the_write_from_the_cue():
    *_, attribution = planted()
    contrast = attribution.contrast.mean().item()
    assert attribution.score.sum().item() == pytest.approx(contrast, rel=1e-9)
    # Half of the gap, toward the sentence's sense.
    assert attribution.write.sum().item() == pytest.approx(0.5, abs=0.05)
    parts = np.concatenate([attribution.part_query, attribution.part_key])
    assert not np.strings.startswith(parts, "L").any()


def test_the_tables_of_the_experiment_list_its_numbers():
    *_, attribution = planted()
    layer, head = head_of(attribution)
    row = tables()["why_it_attends"].query("layer == @layer and head == @head").iloc[0]
    assert row["contrast"] == pytest.approx(attribution.contrast.mean().item())
    assert row["share_low"] <= row["share"] <= row["share_high"]
    scores = tables()["qk_attribution"].groupby(["layer", "head"])["score"].sum()
    assert scores[layer, head] == pytest.approx(row["contrast"])
    replaced = tables()["qk_interventions"]
    assert replaced["p"].between(1 / 1001, 1).all()


def test_the_largest_pair_is_chosen_with_other_cue_words_than_those_that_report_its_share():
    *_, attribution = planted()
    _, others = resampling.folds(attribution.cue.values, 2, seed=attribution.seed.item())[0]
    rows = np.flatnonzero(attribution.reported)
    assert rows.tolist() == others and len(others) == qk.MOST_PAIRS
    share = attribution.largest[rows].sum() / attribution.contrast[rows].sum()
    table = tables()["why_it_attends"].set_index(["layer", "head"])
    assert table["share"][head_of(attribution)] == pytest.approx(share.item())


def test_nouns_in_the_words_place_cost_the_contrast_of_a_head_that_reads_the_word():
    """The planted head's query reads the word itself, so a noun has no contrast, and its part costs
    all of it. It scores the cue above all other tokens in every sentence."""
    *_, attribution = planted()
    assert attribution.contrast.min() > 1
    assert np.abs(attribution.noun_contrast).max() < 1e-3
    of_part = (attribution.side == qk.BY_NOUNS) & (attribution.part == attribution.largest_query)
    [part] = np.flatnonzero(of_part)
    np.testing.assert_allclose(attribution.lost[:, part], attribution.contrast, rtol=0.02)
    assert qk.p_of_losses(attribution)[part] < 0.05
    assert attribution.cue_first.all()


def test_without_a_marked_cue_there_are_no_attributions():
    model, _ = resolver_model(0)
    record = record_of(model, without(SENTENCES[:48], "pair", "cue_start", "cue_end"))
    assert record.measured["qk"] == {}
    assert of_experiments([record])["qk_attribution"].empty


def test_the_contrast_has_its_largest_parts_and_the_remainder_and_sums_to_one():
    names = [f"part {number}" for number in range(9)]
    shares = np.full((9, 9), 0.01)
    shares[8, 2] += 0.69
    shares[2, 8] -= 0.5
    scores = [(a, b, 3 * shares[m, n]) for m, a in enumerate(names) for n, b in enumerate(names)]
    scores = pd.DataFrame(scores, columns=["part_query", "part_key", "score"])
    writes = pd.DataFrame({"part_key": names, "write": [0.1] * 8 + [0.2]})
    parts = qk.parts_of_contrast(scores, writes, contrast=3.0)
    assert parts.shape == (qk.MOST_PARTS + 2, qk.MOST_PARTS + 1)
    assert parts.columns[-1] == parts.index[-2] == qk.OTHERS and parts.index[-1] == qk.WRITTEN
    assert {"part 2", "part 8"} <= {*parts.columns} & {*parts.index}
    of_contrast = parts.drop(index=qk.WRITTEN)
    assert of_contrast.to_numpy().sum() == pytest.approx(1)
    assert of_contrast.min().min() == of_contrast.loc["part 2", "part 8"] == pytest.approx(-0.49)
    assert parts.loc[qk.WRITTEN, qk.OTHERS] == pytest.approx(0.3)


def test_all_heads_of_a_layer_are_one_part_with_their_bias():
    labels = [(part, "MLP 0") for part in ("L1H0", "attention bias 1", "L10H0", "MLP 1")]
    queries, keys, values = qk.summed_by_layer(labels, np.array([1.0, 2.0, 4.0, 8.0]))
    table = pd.DataFrame(values, queries, keys)["MLP 0"].to_dict()
    assert table == {"heads 1": 3.0, "heads 10": 4.0, "MLP 1": 8.0}


def test_the_last_digit_of_parts_that_lose_nothing_does_not_change_the_agreement():
    lost = np.array([[0.5, 0.25, 0.0, 0.0], [0.1, 0.3, 0.0, 0.0]])

    def agreement(last_digits):
        columns = {"attributed": lost + [0, 0.1, 0.2, 0.3], "lost": lost + last_digits}
        data = {name: (("sentence", "part"), values) for name, values in columns.items()}
        sides = ("part", ["query", "key", "query", "key"])
        return qk.agreement(xr.Dataset(data | {"side": sides}))

    assert agreement([0, 0, 1e-17, 0]) == agreement([0, 0, 0, 1e-17]) == agreement([0, 0, 0, 0])
    assert agreement([0, 0, 0, 0.3]) != agreement([0, 0, 0, 0])
