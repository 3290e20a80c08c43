"""A causal model reads texts that are the same up to the word as one sentence: many endings after a
few beginnings are not a large sample."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from embedded import embedded
from inside import (
    GATE,
    REPEATED,
    Sentence,
    as_corpus,
    prepare,
    prepare_counted,
    prepare_tasks,
    untrained,
)
from seeds import mostly_campaign

import probe
from probe import InputError

RIVER = ("river", "muddy", "flooded", "mossy", "rocky", "grassy")
MONEY = ("savings", "central", "national", "private", "merchant", "mortgage")
ENDINGS = ("was old", "stood there", "looked good", "was closed", "had changed", "was gone")
WORD = "bank"


def many_endings(seed=None, word=WORD):
    """Each beginning with every ending: 36 sentences per sense, and six different vectors. With a
    seed, beginnings are assigned to senses at random."""
    cues = [*RIVER, *MONEY]
    if seed is not None:
        cues = np.random.default_rng(seed).permutation(cues).tolist()
    rows = []
    for (number, cue), ending in product(enumerate(cues), ENDINGS):
        text = f"The {cue} {word} {ending}"
        start = text.index(word)
        sense = "river" if number < len(RIVER) else "money"
        rows.append(Sentence(word, sense, text, start, start + len(word)))
    return rows


def reasons(left_out):
    return Counter(item.reason for item in left_out)


def test_one_sentence_of_each_beginning_is_used_and_the_others_are_counted(tiny):
    rows = many_endings()
    material = prepare(tiny, WORD, rows)
    assert len(material) == 12
    assert [row.text for row in material.sentences] == [row.text for row in rows[:: len(ENDINGS)]]
    assert reasons(material.left_out) == {REPEATED: 60}
    counted = prepare_counted(tiny, WORD, rows)
    assert len(counted) == 12 and reasons(counted.left_out) == {REPEATED: 60}


def test_a_model_that_reads_both_ways_sees_every_ending():
    both_ways = embedded("tiny-senses-bidirectional")
    assert len(prepare(both_ways, WORD, many_endings())) == 72


def test_an_evaluation_tests_each_beginning_once(tiny):
    evaluation = probe.evaluate(tiny, sentences=many_endings())
    assert evaluation.words["tested"].tolist() == [12]
    assert (evaluation.left_out["reason"] == REPEATED).sum() == 60


def test_an_evaluation_leaves_out_the_sentences_that_a_report_leaves_out(tiny):
    """A beginning with two senses would be learned with the label of the other one."""
    rows = [
        *many_endings()[:: len(ENDINGS)],
        Sentence(WORD, "money", "The river bank was sold", 10, 14),
    ]
    [task] = prepare_tasks(tiny, as_corpus(rows), seed=0)
    report = prepare(tiny, WORD, rows)
    assert task.material.sentences == report.sentences
    assert set(report.left_out) <= set(task.material.left_out)
    texts = {item.text for item in report.sentences}
    assert not {"The river bank was old", "The river bank was sold"} & texts


@pytest.mark.parametrize("seed", mostly_campaign(range(28)))
def test_random_weights_have_no_gap_after_a_few_beginnings(tiny, seed):
    """Each gate has p < .01 by chance in one of a hundred runs."""
    model = untrained(tiny, seed=seed)
    try:
        study = probe.study(
            model, WORD, sentences=many_endings(seed), permutations=99, experiments=("heads",)
        )
    except InputError:
        return  # too few sentences for a holdout
    assert (study.words["gap_p"] >= GATE).all() and not study.words["ranked"].any()


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.campaign if n > 0 else ()) for n in range(12)]
)
def test_a_survey_ranks_nothing_on_random_weights(tiny, seed):
    model = untrained(tiny, seed=seed)
    words = ("bank", "mole", "apple", "bark", "crane", "seal", "spring", "match")
    rows = [
        row for number, word in enumerate(words) for row in many_endings(100 * seed + number, word)
    ]
    survey = probe.survey(model, sentences=rows, controls=())
    assert not survey.frames["survey_model"]["ranked"].any()
