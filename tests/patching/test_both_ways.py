"""Experiments with a known answer on encoders built by hand, with the cue on either side of the
word.

3 exactly one head resolves, and it is found · 4 a decoy that copies the cue where nothing reads it.
Every run tries the first seed, the campaign all of them.
"""

from dataclasses import replace

import numpy as np
import pytest
from handmade import (
    HEADS,
    LAYERS,
    corpus_of,
    make_handmade_encoder,
    make_sentences,
    resolver,
    resolver_encoder,
)
from seeds import mostly_campaign

import probe

SEEDS = mostly_campaign((0, 1, 2))
PERMUTATIONS = 199
GRID = {"frames": 4, "distances": (1, 2), "cues": 20}
SENTENCES = [  # frames with the cue after the word differ from the ones with the cue before it
    replace(row, frame=f"{row.frame} {side}", pair=f"{row.pair} {side}")
    for side in ("before", "after")
    for row in make_sentences(**GRID, cue_after=side == "after", seed=int(side == "after"))
]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_planted_head_is_first_and_the_only_resolver(seed):
    model, head = resolver_encoder(seed)
    options = {"seed": seed, "max_pairs": 48, "permutations": PERMUTATIONS}
    options["experiments"] = ("nouns", "shares")
    study = probe.study(model, sentences=corpus_of(SENTENCES), **options)
    assert (
        study.words["ranked"].all()
        and study.left_out["reason"].str.contains("cue comes after").sum() == 0
    )
    heads = study.heads.set_index(["layer", "head"])
    assert len(heads) == LAYERS * HEADS
    for name in ("direct", "swap", "denoise", "noise"):
        assert heads[name].idxmax() == head, name
        assert heads.loc[head, name] == pytest.approx(1, abs=0.02), name
        assert heads.drop(index=head)[name].abs().max() < 0.02, name
    assert heads.loc[head, "auroc"] == 1 == heads["auroc"].max()
    assert heads.index[heads["verdict"] == "resolver"].tolist() == [head]
    for name in ("p_auroc", "p_swap"):
        assert heads.loc[head, name] == 1 / (PERMUTATIONS + 1), name
    used = study.sentences[study.sentences["part"] == "tested"]
    assert (used["cue_start"] > used["start"]).any() and (used["cue_start"] < used["start"]).any()
    assert heads.loc[head, "attention_cue"] > 0.99
    assert study.shares["share"].sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decoy_separates_and_does_nothing(seed, tmp_path):
    resolver_head, decoy_head = (
        divmod(int(at), HEADS) for at in np.random.default_rng(seed).permutation(LAYERS * HEADS)[:2]
    )
    even = {"sense": 0.5, "accent": 0.5}
    heads = [
        resolver(*resolver_head, takes=even),
        resolver(*decoy_head, takes=even, gives="decoy", size=0.03),
    ]
    model = probe.load(make_handmade_encoder(tmp_path / "decoy", heads, seed=seed))
    study = probe.study(
        model,
        sentences=corpus_of(SENTENCES),
        seed=seed,
        permutations=PERMUTATIONS,
        experiments=("nouns",),
    )
    table = study.heads.set_index(["layer", "head"])
    assert (
        table.loc[resolver_head, "verdict"] == "resolver"
        and table.loc[decoy_head, "verdict"] == "separates"
    )
    assert table.loc[decoy_head, "auroc"] == 1 == table.loc[resolver_head, "auroc"]
    for name in ("direct", "swap", "denoise", "noise"):
        assert abs(table.loc[decoy_head, name]) < 0.02, name
        assert table.loc[resolver_head, name] == pytest.approx(1, abs=0.02), name
