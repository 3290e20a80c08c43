"""Adversarial models built by hand, to deceive the verdicts.

* A head copies the position of the cue.
* A head responds to how expected a word is.
* Two heads have equal writes, and neurons amplify one of them for the word only.
* A head moves any noun, and neurons resolve the word.
* Two heads have equal effects on the word and on nouns, one large and one small.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from checkpoints import change_tensors
from handmade import (
    CUES,
    D_MLP,
    NOUNS,
    PLAIN,
    SENSES,
    TO_BOS,
    WORD,
    Head,
    Unit,
    make_handmade,
    make_sentences,
    write_vector,
)
from measured import studied
from planted import EVEN, HINT, Circuit, linear, model_of, tidy
from safetensors.torch import load_file
from seeds import mostly_campaign

from probe.experiments.material import prepare
from probe.model.load import load
from probe.results.findings import MOVERS
from probe.results.frames import heads, mlps
from probe.text.sentences import Sentence

SEEDS = (0, 1, 2)
by_seed = pytest.mark.parametrize("seed", mostly_campaign(SEEDS))
PAIRS = 36
SENTENCES = make_sentences(cues=12, frames=6, distances=(1, 2))
TO_ANY = ({"anchor": 2.0}, {"is_cue": 6.0})  # from any token to the cue before it
ONE, TWO = (1, 1), (1, 2)
FIRST, DECOY = (0, 1), (0, 2)  # before the neurons of layer 1


def to_any(head, takes, gives):
    """A head that copies a feature of the cue to any later token, the word or a noun."""
    return Head(*head, (TO_ANY, TO_BOS), ((takes, gives),))


def for_the_word(layer, asks, gives):
    """Neurons that are a linear map at the word and have no effect at any other token.

    gelu(x) is x for large x and 0 for small x. The word raises both neurons by a large amount, so
    that their difference is linear.
    """
    far = 40.0
    lift = {"is_target": far}
    up = Unit(layer, {**asks, **lift}, -far / 2, gives)
    down = Unit(layer, lift, -far / 2, {name: -value for name, value in gives.items()})
    return up, down


def evidence_of(model, sentences, seed=0):
    return studied(
        model,
        prepare(model, WORD, sentences),
        seed=seed,
        pairs=PAIRS,
        permutations=199,
        experiments=("heads", "nouns", "noun_mlps"),
    )


def model_read_after_layer_1(circuit, seed):
    """A model whose senses are separated best after layer 1, so that the word is read there."""
    here = [unit for unit in circuit.units if unit.layer == 1]
    units = (*circuit.units, *tidy(1)[: D_MLP - len(here)])
    with TemporaryDirectory() as folder:
        return load(make_handmade(Path(folder) / "model", circuit.heads, units=units, seed=seed))


@cache
def tables_of(kind, seed):
    """The tables of heads and of MLPs of a kind of model."""
    evidence = evidence_of(model_read_after_layer_1(CIRCUITS[kind], seed), SENTENCES, seed)
    table = heads([evidence]).set_index(["layer", "head"], drop=False)
    return table, mlps([evidence])


CIRCUITS = {
    "amplified": Circuit(
        (
            to_any(FIRST, {"sense": 1.0}, {"second": HINT}),
            to_any(DECOY, {"accent": 1.0}, {"decoy": HINT}),
        ),
        ("", ""),
        (
            *for_the_word(1, {"second": 10.0}, {"resolved": 2.0}),
            *linear(1, {"second": 10.0}, {"resolved": 1.0}),
            *linear(1, {"decoy": 10.0}, {"resolved": 1.0}),
        ),
    ),
    "neurons resolve": Circuit(
        (to_any(ONE, EVEN, {"second": 1.5}),),
        ("",),
        (
            *for_the_word(1, {"second": 1.0}, {"resolved": 3.0}),
            *linear(1, {"second": 1.0}, {"resolved": 1.0}),
        ),
    ),
    "much and little": Circuit(
        (to_any(ONE, EVEN, {"resolved": 3.0}), to_any(TWO, EVEN, {"resolved": 0.3})),
        ("", ""),
    ),
}


@by_seed
def test_a_head_that_neurons_amplify_does_more_together_with_the_parts_that_read_it(seed):
    table, _ = tables_of("amplified", seed)
    amplified = table.loc[FIRST]
    assert amplified["verdict"] == "resolver" and amplified["comparison"] == "more"
    assert amplified["own_write_more_low"] < 0.02 * amplified["own_write"]
    # Where little of the gap is the head's own, the word's much larger gap makes its share smaller.
    assert 0 < amplified["own_write"] < 1.1 * amplified["own_write_nouns"]
    assert amplified["moved_raw"] > 1.5 * amplified["moved_raw_nouns"]
    decoy = table.loc[DECOY]
    assert decoy["verdict"] in MOVERS and decoy["comparison"] != "more"


@by_seed
def test_where_neurons_resolve_the_word_the_head_only_moves_it(seed):
    table, of_mlps = tables_of("neurons resolve", seed)
    assert table.loc[ONE, "verdict"] == "mover"
    assert table.loc[ONE, "general"] == pytest.approx(1, abs=0.1)
    assert of_mlps.set_index("layer").loc[ONE[0], "comparison"] == "more"


@by_seed
def test_effects_that_are_equal_on_word_and_nouns_are_neither_more_nor_less(seed):
    table, _ = tables_of("much and little", seed)
    for head in (ONE, TWO):
        assert table.loc[head, "comparison"] not in ("more", "less")
        assert table.loc[head, "verdict"] != "resolver"


# --- a head that copies the position of the cue ---------------------------------------------------


def sentences_with_a_distant_cue_in_one_sense():
    """The word at one position. The cue of one sense directly precedes it, and the cue of the other
    sense is three tokens before it.
    """
    rng = np.random.default_rng(0)
    sentences = []
    for number in range(120):
        side = number % 2
        cue = CUES[SENSES[side]][number // 2 % 20]
        words = rng.choice(PLAIN, size=6).tolist()
        words.insert(6 - 2 * side - int(rng.integers(2)), cue)
        before = " ".join(words)
        text = f"{before} {WORD} {rng.choice(PLAIN)}"
        cue_start = f" {before} ".index(f" {cue} ")
        sentences.append(
            Sentence(
                word=WORD,
                sense=SENSES[side],
                text=text,
                start=len(before) + 1,
                end=len(before) + 1 + len(WORD),
                cue_start=cue_start,
                cue_end=cue_start + len(cue),
            )
        )
    return sentences


@by_seed
def test_a_head_that_copies_the_position_of_the_cue_is_confounded(seed):
    position = {"place_cos": 1.0, "place_sin": 1.0}
    model = model_of(Circuit((to_any(ONE, position, {"resolved": 3.0}),), ("",)), seed)
    evidence = evidence_of(model, sentences_with_a_distant_cue_in_one_sense(), seed)
    [pair] = evidence.record.pairs
    assert pair.gates.gap < 0.01 and pair.gates.nuisance < 0.05
    assert heads([evidence]).set_index(["layer", "head"]).loc[ONE, "verdict"] == "confounded"


# --- a head that responds to how expected a word is -----------------------------------------------


@cache
def surprised_model(seed):
    """A model in which the word is the most expected noun and other nouns are less expected, in
    steps. A head gives each noun the sense of the cue in proportion to how expected the noun is.
    """
    asks = ({"decoy": 2.0}, {"is_cue": 6.0})
    with TemporaryDirectory() as name:
        head = Head(*ONE, (asks, TO_BOS), ((EVEN, {"resolved": 3.0}),))
        folder = make_handmade(Path(name) / "surprised", [head], seed=seed)
        tensors = load_file(folder / "model.safetensors")
        tokenizer = load(folder).tokenizer
        expected = dict(zip(NOUNS, np.linspace(0.6, 0.95, len(NOUNS)), strict=True)) | {WORD: 1.0}
        wte = tensors["transformer.wte.weight"].clone()
        head_weight = tensors["lm_head.weight"].clone()
        for noun, degree in expected.items():
            token = tokenizer.convert_tokens_to_ids(noun)
            wte[token] += wte.new_tensor(write_vector({"decoy": degree}))
            # Every token has the anchor, so the logit is the same at every position.
            head_weight[token] += wte.new_tensor(write_vector({"anchor": 4 * degree}))
        changes = {"transformer.wte.weight": wte, "lm_head.weight": head_weight}
        return load(change_tensors(folder, changes))


@by_seed
def test_a_head_that_responds_to_how_expected_a_word_is_does_not_resolve_it(seed):
    evidence = evidence_of(surprised_model(seed), SENTENCES, seed)
    [pair] = evidence.pairs
    record = pair.nouns.record
    assert (record.word_surprisal < record.surprisal).all()  # the word is the most expected one
    assert heads([evidence]).set_index(["layer", "head"]).loc[ONE, "verdict"] == "mover"
