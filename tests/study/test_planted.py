"""Experiments with a known answer on circuits planted by hand, at places drawn with the seed, with LayerNorm.

4 a decoy separates perfectly and nothing depends on it · 5 two heads combined: additive, either is enough, both are
needed · 6 a head and its backup · 10 a head that looks one back · 11 the published heads of GPT-2, where its weights
are at hand. Of every circuit and seed: the verdicts of the planted heads are right and no other head is called a
resolver.
"""

from functools import cache

import numpy as np
import pytest
from handmade import HEADS, LAYERS, WORD, corpus_of, make_sentences
from planted import KINDS, planted_model

from probe.model.weights import read_weights
from probe.patching import sets as head_sets
from probe.study.head_tables import evidence
from probe.study.material import prepare
from probe.study.word import StudyOptions, study_word

SEEDS = (0, 1, 2, 3)
CASES = [(kind, seed) for kind in KINDS for seed in SEEDS]
GRID = make_sentences(cues=18)
ADJACENT = make_sentences(cues=18, distances=(1, 1, 1, 2))  # a model that reads the token before only must have a gap


@cache
def measured(kind, seed):
    model, _ = planted_model(kind, seed)
    sentences = ADJACENT if kind == "one_back" else GRID
    return study_word(model, prepare(model, corpus_of(sentences), WORD), StudyOptions(seed, 1000, 199))


@cache
def heads_of(kind, seed):
    """The evidence frame by place, and the rows of the planted heads in the order of the circuit."""
    frame = evidence([measured(kind, seed)]).set_index(["layer", "head"], drop=False)
    return frame, frame.loc[list(planted_model(kind, seed)[1].places)]


def planted(kind):
    return pytest.mark.parametrize(("kind", "seed"), [case for case in CASES if case[0] == kind])


def test_the_places_are_spread():
    places = [place for kind, seed in CASES for place in planted_model(kind, seed)[1].places]
    assert set(places) == {(layer, head) for layer in range(LAYERS) for head in range(HEADS)}


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_the_verdicts_are_right_and_no_other_head_is_a_resolver(kind, seed):
    frame, mine = heads_of(kind, seed)
    circuit = planted_model(kind, seed)[1]
    assert measured(kind, seed).pairs[0].gate_p < 0.01
    assert tuple(mine["verdict"]) == circuit.verdicts
    assert set(frame.drop(index=list(circuit.places))["verdict"]) <= {"none", "carrier"}


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_no_other_head_does_anything(kind, seed):
    frame, _ = heads_of(kind, seed)
    others = frame.drop(index=list(planted_model(kind, seed)[1].places))
    assert others[["direct", "denoise", "noise", "alone"]].abs().max().max() < 0.05


# --- 4: decoys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "seed"), [case for case in CASES if "decoy" in case[0]])
def test_a_decoy_separates_perfectly_and_does_nothing(kind, seed):
    resolver, decoy = heads_of(kind, seed)[1].to_dict("records")
    assert decoy["auroc"] == 1 == resolver["auroc"]
    assert decoy["p_auroc"] < 0.05
    for name in ("direct", "denoise", "noise", "alone"):
        assert abs(decoy[name]) < 0.02, name
        assert resolver[name] == pytest.approx(1, abs=0.02), name


# --- 5: two heads combined -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "expected"), [("additive", (0.5, 0.5)), ("either", (1, 0)), ("both", (0, 1))])
@pytest.mark.parametrize("seed", SEEDS)
def test_two_heads_combined_show_how_in_denoising_and_noising(kind, expected, seed):
    _, mine = heads_of(kind, seed)
    for name, value in zip(("denoise", "noise"), expected, strict=True):
        assert mine[name].tolist() == pytest.approx([value, value], abs=0.05), name
    assert mine["swap"].tolist() == pytest.approx([0.5, 0.5], abs=0.05)


# --- 6: backup -------------------------------------------------------------------------------------------------------


@planted("backup")
def test_a_backed_up_head_writes_everything_and_its_swap_does_nothing(kind, seed):
    first, second = heads_of(kind, seed)[1].to_dict("records")
    assert first["direct"] == pytest.approx(1, abs=0.02)
    assert second["direct"] == pytest.approx(0, abs=0.02)
    for head in (first, second):
        assert abs(head["denoise"]) < 0.1
        assert abs(head["noise"]) < 0.1
        assert head["alone"] == pytest.approx(1, abs=0.1)


@planted("backup")
def test_the_head_and_its_backup_together_are_everything(kind, seed):
    """F of all heads but both is 0, of all but either is 1, and of both alone is 1."""
    result, places = measured(kind, seed), planted_model(kind, seed)[1].places
    [pair] = result.pairs
    shape = (result.depth, HEADS)
    sets = [~head_sets.mask_of(places, shape), *(~head_sets.mask_of([place], shape) for place in places)]
    sets.append(head_sets.mask_of(places, shape))
    weights, z = read_weights(planted_model(kind, seed)[0]), result.states.z[:, : result.depth]
    found = head_sets.faithfulness(weights, result.placed, z, [(pair.axis, pair.pairs)], np.array(sets))
    assert found.tolist() == pytest.approx([0, 1, 1, 1], abs=0.1)


# --- 10: one back ----------------------------------------------------------------------------------------------------


@planted("one_back")
def test_a_head_that_looks_one_back_is_everything_next_to_the_cue_and_nothing_beyond(kind, seed):
    [head] = heads_of(kind, seed)[1].to_dict("records")
    assert head["attention_previous"] > 0.95
    assert head["swap"] == pytest.approx(1, abs=0.02)
    assert head["net_near"] == pytest.approx(1, abs=0.05)
    assert head["net_far"] == pytest.approx(0, abs=0.02)


@planted("one_back")
def test_beyond_the_next_token_there_is_no_gap(kind, seed):
    [pair] = measured(kind, seed).pairs
    far = np.array(pair.pairs.distances) > 1
    assert far.any() and not far.all()
    assert np.abs(pair.gap[far]).max() < 0.1 < pair.gap[~far].min()
