"""Shortcuts on models in which they are known to fail: attention that carries nothing, a write that
is erased, and neurons that are saturated where the gradient is taken."""

from functools import cache

import numpy as np
import pytest
import shortcuts
from handmade import TO_BOS, TO_CUE, WORD, Head, corpus_of, make_sentences, resolver
from planted import EVEN, HINT, KINDS, Circuit, circuit_of, model_of, step

import probe

SENTENCES = make_sentences(cues=12)
PAIRS = 12


def looker(rng):
    """A resolver, and a head with the same attention to the cue that carries a feature of every
    cue."""
    circuit = circuit_of("small_decoy", 0)
    first, second = circuit.head_indices
    looks = Head(*second, (TO_CUE, TO_BOS), (({"is_cue": 1.0}, {"second": 3.0}),))
    return Circuit((resolver(*first, takes=EVEN), looks), ("resolver", "none"))


def saturated(rng):
    """A head with a small write for the sense, and neurons that amplify it: only the side of a step
    matters, not the distance from it."""
    first, _ = circuit_of("small_decoy", 0).head_indices
    hint = resolver(*first, takes=EVEN, gives="second", size=HINT)
    units = step(first[0], {"second": 1.0}, 0.0, {"resolved": 6.0})
    return Circuit((hint,), ("resolver",), units)


def of_heads(model, word, corpus, **options):
    """The mean over pairs of every head, by layer and head."""
    frame = shortcuts.shortcuts(model, word, corpus, **options)
    return frame.groupby(["layer", "head"])[["swap", *shortcuts.METHODS]].mean()


BUILT = KINDS | {"looker": looker, "saturated": saturated}


@cache
def scores_of(kind):
    """The frame of a planted circuit by layer and head, and its planted heads in order."""
    circuit = BUILT[kind](np.random.default_rng(0))
    frame = of_heads(model_of(circuit, 0), WORD, corpus_of(SENTENCES), pairs=PAIRS)
    return frame, frame.loc[list(circuit.head_indices)]


def test_attention_does_not_show_that_a_head_carries_nothing():
    frame, planted = scores_of("looker")
    for name in ("attention", "rollout", "value_attention"):
        assert set(frame[name].nlargest(2).index) == set(planted.index)
    for name in ("swap", "direct", "attribution", "integrated_5", "integrated_20"):
        assert planted[name].iloc[0] > 0.9 and abs(planted[name].iloc[1]) < 0.05
    assert planted["auroc"].iloc[0] > 0.99


def test_the_classifier_and_the_direct_effect_miss_that_neurons_erase_a_write():
    """The swap and its gradient do not miss it."""
    _, planted = scores_of("erased_decoy")
    assert (planted["auroc"] > 0.99).all()
    for name in ("swap", "attribution", "integrated_20"):
        assert planted[name].iloc[0] > 0.9 and abs(planted[name].iloc[1]) < 0.15


def test_where_neurons_are_saturated_the_gradient_is_0_and_the_swap_has_the_whole_effect():
    _, planted = scores_of("saturated")
    [head] = planted.itertuples()
    assert head.swap > 0.9
    assert abs(head.attribution) < 0.05
    assert abs(head.integrated_20 - head.swap) < 0.1


def test_the_swap_agrees_with_the_swap_of_a_study(tiny):
    """Same sentences, same pairs: the mean of both directions, as a fraction of the gap."""
    sentences = probe.lexicon.expand("bank").sentences[:192]
    study = probe.study(
        tiny, "bank", sentences=sentences, max_pairs=8, permutations=99, experiments=("heads",)
    )
    frame = of_heads(tiny, "bank", corpus_of(sentences), pairs=8)
    heads = study.heads.set_index(["layer", "head"])
    assert frame["swap"].corr(heads["swap"], "spearman") > 0.9


def test_a_word_with_one_sense_is_refused():
    one_sense = [row for row in SENTENCES if row.sense == SENTENCES[0].sense]
    with pytest.raises(probe.InputError, match="Cannot compare shortcuts"):
        of_heads(model_of(circuit_of("additive", 0), 0), WORD, corpus_of(one_sense))
