"""Experiments with a known answer on encoders built by hand: the cue may stand on either side of the word.

3 exactly one head resolves, and it is found · 4 a decoy that copies the cue where nothing reads it · 8 permuted labels
and untrained weights show nothing. Every run tries the first seed, the campaign all of them and the permuted labels,
which `test_chance` tries of other writes.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from handmade import (
    HEADS,
    LAYERS,
    SENSES,
    WORD,
    corpus_of,
    make_handmade_encoder,
    make_sentences,
    resolver,
    resolver_encoder,
    without_intervals,
)
from scipy.stats import kstest
from seeds import likely, mostly_campaign

import probe
from probe.model import ledger
from probe.model.load import untrained
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.stats import resampling
from probe.stats.separation import measure_separation
from probe.study.material import prepare
from probe.study.word import StudyOptions, study_word
from probe.text.splits import cross_fit, cue_words

pytestmark = pytest.mark.slow

SEEDS = mostly_campaign((0, 1, 2))
PERMUTATIONS = 199
BOTH = (
    *make_sentences(frames=4, distances=(1, 2), cues=40),
    *make_sentences(frames=4, distances=(1, 2), cues=40, cue_after=True, seed=1),
)


def named(sentences):
    """Frames with the cue behind the word are not those with the cue before it."""
    half = len(sentences) // 2
    return [
        replace(row, frame=f"{row.frame} {side}", pair=f"{row.pair} {side}")
        for side, rows in (("before", sentences[:half]), ("behind", sentences[half:]))
        for row in rows
    ]


SENTENCES = named(BOTH)


@cache
def studied(seed):
    model, place = resolver_encoder(seed)
    options = {"seed": seed, "max_pairs": 48, "permutations": PERMUTATIONS}
    return probe.study(model, corpus=corpus_of(SENTENCES), **options), place


# --- 3: the planted head, and no other -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_planted_head_is_first_and_the_only_resolver(seed):
    found, place = studied(seed)
    assert found.words["ranked"].all() and found.left_out["reason"].str.contains("cue comes after").sum() == 0
    heads = found.heads.set_index(["layer", "head"])
    assert len(heads) == LAYERS * HEADS
    for name in ("direct", "swap", "denoise", "noise"):
        assert heads[name].idxmax() == place, name
        assert heads.loc[place, name] == pytest.approx(1, abs=0.02), name
        assert heads.drop(index=place)[name].abs().max() < 0.02, name
    assert heads.loc[place, "auroc"] == 1 == heads["auroc"].max()
    assert heads.index[heads["verdict"] == "resolver"].tolist() == [place]
    for name in ("p_auroc", "p_swap"):
        assert heads.loc[place, name] == 1 / (PERMUTATIONS + 1), name


@pytest.mark.parametrize("seed", SEEDS)
def test_cues_on_either_side_are_read_and_used(seed):
    found, place = studied(seed)
    used = found.sentences[found.sentences["part"] == "tested"]
    assert (used["cue_start"] > used["start"]).any() and (used["cue_start"] < used["start"]).any()
    assert found.heads.set_index(["layer", "head"]).loc[place, "attention_cue"] > 0.99


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_sum_to_one(seed):
    assert studied(seed)[0].shares["share"].sum() == pytest.approx(1, abs=1e-4)


# --- 4: the decoy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoy_separates_and_does_nothing(seed, tmp_path):
    one, two = (divmod(int(at), HEADS) for at in np.random.default_rng(seed).permutation(LAYERS * HEADS)[:2])
    even = {"sense": 0.5, "accent": 0.5}
    heads = [resolver(*one, takes=even), resolver(*two, takes=even, gives="decoy", size=0.03)]
    model = probe.load(make_handmade_encoder(tmp_path / "decoy", heads, seed=seed))
    found = probe.study(model, corpus=corpus_of(SENTENCES), seed=seed, permutations=PERMUTATIONS)
    table = found.heads.set_index(["layer", "head"])
    assert table.loc[one, "verdict"] == "resolver" and table.loc[two, "verdict"] == "carrier"
    assert table.loc[two, "auroc"] == 1 == table.loc[one, "auroc"]
    for name in ("direct", "swap", "denoise", "noise"):
        assert abs(table.loc[two, name]) < 0.02, name
        assert table.loc[one, name] == pytest.approx(1, abs=0.02), name


# --- 8: nothing is there ---------------------------------------------------------------------------------------------


@cache
def writes_of_an_encoder_without_the_head():
    """What every head writes at the word, `layer head row d_head`: cue words differ, and no head carries their
    sense.
    """
    with TemporaryDirectory() as folder:
        model = probe.load(make_handmade_encoder(Path(folder) / "none", [], seed=4))
    material = prepare(model, corpus_of(SENTENCES), WORD)
    states = target_states(model, material.tokens, material.targets)
    return ledger.write_coordinates(states.z, read_weights(model))


@pytest.fixture(scope="module", params=[pytest.param(200, marks=pytest.mark.campaign)])
def nulls(request):
    """Senses dealt to cue words at random, many times: AUROC of every head as dealt and under every relabelling."""
    writes, found = writes_of_an_encoder_without_the_head(), []
    cues = cue_words(SENTENCES)
    words = sorted(set(cues))
    for run in range(request.param):
        rng = np.random.default_rng(run)
        chosen = rng.permutation(words)[:36].tolist()
        sense = {word: SENSES[number % 2] for number, word in enumerate(chosen)}
        rows = [row for row, word in enumerate(cues) if word in sense]
        rows = sorted(rng.permutation(rows)[:180].tolist(), key=lambda row: sense[cues[row]])
        dealt = [replace(SENTENCES[row], sense=sense[cues[row]], pair=None) for row in rows]
        split = cross_fit(dealt, SENSES, seed=run)
        used = [rows[place] for place in split.rows]
        with pytest.MonkeyPatch.context() as patch:
            without_intervals(patch)
            given = writes[:, :, used], split
            found.append(measure_separation(*given, permutations=PERMUTATIONS, seed=run).null)
    return found


def test_p_of_every_head_is_uniform(nulls):
    """Every head by itself, at a level of .05 for all of them together."""
    spread = np.random.default_rng(0).uniform(-0.5, 0.5, len(nulls)) / (PERMUTATIONS + 1)
    flat = [null.reshape(1 + PERMUTATIONS, -1) for null in nulls]
    p = np.array([[resampling.max_t(each[0], each[1:]).p.item() for each in null.T[..., None]] for null in flat])
    assert min(kstest(column + spread, "uniform").pvalue for column in p.T) > 0.05 / p.shape[1]


def test_one_false_claim_among_all_heads_is_as_rare_as_the_level_says(nulls):
    smallest = np.array([resampling.max_t(null[0], null[1:]).p.min() for null in nulls])
    for level in (0.05, 0.2):
        fewest, most = likely(level, len(nulls))
        assert fewest <= (smallest < level).sum() <= most
    assert 0.02 <= np.mean(smallest < 0.05) <= 0.08


def test_held_out_separation_of_nothing_is_one_half(nulls):
    means = [null[0].mean() for null in nulls]
    assert np.mean(means) == pytest.approx(0.5, abs=2 * np.std(means) / np.sqrt(len(nulls)))


@pytest.mark.parametrize("seeds", mostly_campaign([range(2), range(6)]))
def test_an_untrained_encoder_is_not_ranked(seeds):
    passed = []
    for seed in seeds:
        model = untrained(resolver_encoder(0)[0], seed=seed)
        [pair] = study_word(model, prepare(model, corpus_of(SENTENCES), WORD), StudyOptions(seed, 8, 19)).pairs
        passed.append(pair.effects is not None)
        assert passed[-1] == (pair.gate_p < 0.01)
    assert sum(passed) <= 1


def test_the_word_itself_is_the_same_vector_before_attention():
    model, _ = resolver_encoder(0)
    material = prepare(model, corpus_of(SENTENCES), WORD)
    states = target_states(model, material.tokens, material.targets)
    assert torch.equal(states.token_embedding, states.token_embedding[:1].expand_as(states.token_embedding))
