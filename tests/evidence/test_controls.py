"""One-meaning nouns in the word's place: a general and a specific head are told apart, the gap has
no bias, and the states are those of a run of the changed text alone."""

import numpy as np
import pytest
import torch
from families import family_model
from handmade import NOUNS, TO_BOS, WORD, Head, corpus_of, make_sentences, resolver
from planted import EVEN, Circuit, model_of

from probe.evidence import controls
from probe.evidence.controls import candidates
from probe.evidence.material import prepare
from probe.evidence.word import StudyOptions, study_word
from probe.model.load import read_weights
from probe.model.tokens import TargetText
from probe.patching.heads import swap_heads
from probe.patching.mlps import swap_mlps
from probe.patching.tokens import replace_tokens
from probe.stats.axes import squared_gap
from probe.text import lexicon
from probe.text.splits import cross_fit, restrict

SENTENCES = make_sentences(cues=12, frames=6, distances=(1, 2))
OPTIONS = StudyOptions(0, 36, 199)
SPECIFIC, GENERAL = (1, 1), (1, 2)


def to_any(layer: int, head: int, size: float) -> Head:
    """A head that gives the sense of the cue to whatever stands behind it, the word or any noun."""
    return Head(
        layer, head, (({"anchor": 2.0}, {"is_cue": 6.0}), TO_BOS), ((EVEN, {"resolved": size}),)
    )


HEADS = {
    "specific": (resolver(*SPECIFIC, takes=EVEN),),
    "general": (to_any(*GENERAL, 3.0),),
    "both": (resolver(*SPECIFIC, takes=EVEN, size=1.5), to_any(*GENERAL, 1.5)),
}


def compared_with_nouns(kind: str, seed: int):
    model = model_of(Circuit(HEADS[kind], ("",) * len(HEADS[kind])), seed)
    material = prepare(model, corpus_of(SENTENCES), WORD)
    [pair] = study_word(model, material, OPTIONS).pairs
    return pair


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", HEADS)
def test_what_is_done_for_any_noun_is_told_from_what_is_done_for_the_word_alone(kind, seed):
    pair = compared_with_nouns(kind, seed)
    nouns = pair.nouns
    net = pair.effects.net.mean(0)
    share = {"specific": 0.0, "general": 1.0, "both": 0.25}[kind]  # squared: half the gap
    assert nouns.general_share == pytest.approx(share, abs=0.1)
    assert (nouns.p <= 0.05) == (kind != "general")
    if kind != "general":
        specific = nouns.heads.specific[SPECIFIC]
        assert specific == pytest.approx(net[SPECIFIC], abs=0.05)
        assert nouns.heads.p[SPECIFIC] < 0.05
    if kind == "general":
        assert nouns.heads.specific[GENERAL] == pytest.approx(0, abs=0.05)
        assert nouns.heads.general[GENERAL] == pytest.approx(1, abs=0.05)
    if kind == "both":
        assert nouns.heads.general[GENERAL] == pytest.approx(1, abs=0.1)
        assert nouns.heads.specific[GENERAL] == pytest.approx(net[GENERAL] - 1, abs=0.1)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gptj", "gemma2", "bert"])
def test_states_with_other_tokens_are_those_of_the_changed_text_alone(family):
    model = family_model(family, torch.float64)
    weights = read_weights(model)
    texts = [TargetText(tuple(range(5, 5 + size)), at) for size, at in ((7, 6), (9, 5), (7, 4))]
    replacements = [(41,), (42,), (43,)]
    states = replace_tokens(weights, texts, replacements)
    for row, text in enumerate(texts):
        for variant, ids in enumerate(replacements):
            changed = TargetText((*text.ids[: text.at], *ids, *text.ids[text.at + 1 :]), text.at)
            [alone] = replace_tokens(weights, [changed], [ids]).resid
            torch.testing.assert_close(states.resid[row, variant], alone[0], atol=1e-10, rtol=1e-10)
    own = replace_tokens(weights, texts[:1], [texts[0].ids[texts[0].at :][:1]])
    direction = torch.eye(own.resid.shape[-1], dtype=torch.float64)
    stages = direction[:1].expand(len(weights.blocks), -1)[None]
    # Swapping in its own activations changes nothing; another text's changes something.
    assert swap_mlps(weights, texts[:1], own.hidden[:, 0], stages).abs().max() < 1e-12
    assert swap_heads(weights, texts[:1], own.z[:, 0], stages).abs().max() < 1e-12
    other = states.hidden[:1, 0]
    assert swap_mlps(weights, texts[:1], other, stages)[:, :, -1].abs().max() > 1e-6


def test_an_mlp_is_swapped_as_if_its_write_were_replaced():
    """In a family that adds writes plainly, behind its own block the stream moves by the difference
    of the two writes."""
    weights = read_weights(family_model("gpt2", torch.float64))
    texts = [TargetText(tuple(range(5, 12)), 6)]
    states = replace_tokens(weights, texts, [(11,), (42,)])
    direction = torch.randn(
        states.resid.shape[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    stages = direction.expand(1, len(weights.blocks), -1)
    moved = swap_mlps(weights, texts, states.hidden[:, 1], stages)
    for layer, block in enumerate(weights.blocks):
        change = (states.hidden[0, 1, layer] - states.hidden[0, 0, layer]) @ block.w_out
        assert float(moved[0, layer, layer]) == pytest.approx(float(change @ direction), abs=1e-10)
        assert (moved[0, layer, :layer] == 0).all()


def test_the_squared_gap_is_0_in_the_mean_where_nothing_differs_and_the_squared_gap_where_it_does():
    rng = np.random.default_rng(0)
    split = cross_fit(SENTENCES, ("door", "canal"), seed=0)
    of_a = torch.tensor(split.is_a, dtype=torch.float64)[:, None, None]
    values = []
    for _ in range(200):
        noise = torch.from_numpy(rng.normal(size=(len(split.rows), 1, 8)))
        values.append([squared_gap(noise, split)[0], squared_gap(noise + of_a * 0.5, split)[0]])
    nothing, there = np.mean(values, axis=0)
    error = np.std(values, axis=0) / np.sqrt(len(values))
    assert abs(nothing) < 4 * error[0] and abs(there - 8 * 0.25) < 4 * error[1]


def test_a_part_of_a_split_keeps_what_is_held_out_with_what():
    split = cross_fit(SENTENCES, ("door", "canal"), seed=0)
    kept = [n for n in range(len(split.rows)) if n % 4 < 2]
    some = restrict(split, kept)
    assert some.rows == tuple(split.rows[n] for n in kept)
    together = some.cells[:, None] == some.cells
    assert (together == (split.cells[kept][:, None] == split.cells[kept])).all()
    assert {(some.rows[a], some.rows[b]) for a, b in some.pairs} <= {
        (split.rows[a], split.rows[b]) for a, b in split.pairs
    }
    for holdout in some.holdouts:
        tested = {some.units[n] for n in holdout.test}
        assert not tested & {some.units[n] for n in holdout.train}


def test_the_nouns_that_ship_have_both_articles_and_an_article_each():
    nouns = lexicon.one_meaning_nouns()
    assert len(nouns) == len(set(nouns)) >= 60
    articles = [lexicon.article_of(noun) for noun in nouns]
    assert min(articles.count("a"), articles.count("an")) >= 30
    assert lexicon.article_of("window") == "a" and lexicon.article_of("eraser") == "an"


def test_sentences_and_nouns_that_cannot_be_compared_are_left_out_with_the_reason():
    model = model_of(Circuit(HEADS["specific"], ("",)), 0)
    material = prepare(model, corpus_of(SENTENCES), WORD)
    among = candidates(model, material, (*NOUNS[:2], WORD, "door1", "no such noun"))
    assert tuple(among.nouns) == NOUNS[:2]
    assert among.left_out == {
        WORD: "it is the word itself",
        "door1": "it stands in the word's sentences already",
        "no such noun": "the model's vocabulary does not hold it",
    }
    assert len(among.rows) + len(among.reasons) == len(material)
    assert set(among.reasons.values()) <= {controls.NO_NOUN}
