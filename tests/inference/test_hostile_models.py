"""Models built by hand to be taken for more than they are: what a hostile reader would plant.

A head copies where the cue stands; a head responds to how expected a word is; two heads write
alike, and neurons amplify one of them for the word alone; a head moves any noun, and neurons
resolve the word; two heads do the same for the word and for nouns, one much and one little.
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
TO_ANY = ({"anchor": 2.0}, {"is_cue": 6.0})  # the cue, from whatever stands after it
ONE, TWO = (1, 1), (1, 2)
FIRST, BESIDE = (0, 1), (0, 2)  # before the neurons of layer 1


def to_any(place, takes, gives):
    """A head that gives something of the cue to whatever stands after it, the word or any noun."""
    return Head(*place, (TO_ANY, TO_BOS), ((takes, gives),))


def for_the_word(layer, asks, gives):
    """Neurons that are a linear map at the word, and do nothing at any other token.

    gelu(x) = x for large x and 0 for small x: the word lifts both by far, and their difference is
    what they ask for.
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


def made(circuit, seed):
    """A model in which the senses are clearest after layer 1, where the word is then read."""
    here = [unit for unit in circuit.units if unit.layer == 1]
    units = (*circuit.units, *tidy(1)[: D_MLP - len(here)])
    with TemporaryDirectory() as folder:
        return load(make_handmade(Path(folder) / "made", circuit.heads, units=units, seed=seed))


@cache
def found(kind, seed):
    """The table of heads and of MLPs of a model of a kind."""
    evidence = evidence_of(made(CIRCUITS[kind], seed), SENTENCES, seed)
    table = heads([evidence]).set_index(["layer", "head"], drop=False)
    return table, mlps([evidence])


CIRCUITS = {
    "amplified": Circuit(
        (
            to_any(FIRST, {"sense": 1.0}, {"second": HINT}),
            to_any(BESIDE, {"accent": 1.0}, {"decoy": HINT}),
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
    table, _ = found("amplified", seed)
    amplified = table.loc[FIRST]
    assert amplified["verdict"] == "resolver" and amplified["comparison"] == "more"
    assert amplified["own_write_more_low"] < 0.02 * amplified["own_write"]
    assert amplified["own_write"] == pytest.approx(amplified["own_write_nouns"], rel=0.1)
    assert amplified["moved_raw"] > 1.5 * amplified["moved_raw_nouns"]
    beside = table.loc[BESIDE]
    assert beside["verdict"] in MOVERS and beside["comparison"] != "more"


@by_seed
def test_where_neurons_resolve_the_word_the_head_only_moves_it(seed):
    table, of_mlps = found("neurons resolve", seed)
    assert table.loc[ONE, "verdict"] == "mover"
    assert table.loc[ONE, "general"] == pytest.approx(1, abs=0.1)
    assert of_mlps.set_index("layer").loc[ONE[0], "comparison"] == "more"


@by_seed
def test_effects_that_are_equal_on_word_and_nouns_are_neither_more_nor_less(seed):
    table, _ = found("much and little", seed)
    for place in (ONE, TWO):
        assert table.loc[place, "comparison"] not in ("more", "less")
        assert table.loc[place, "verdict"] != "resolver"


# --- a head that copies where the cue stands ------------------------------------------------------


def cue_stands_further_in_one_sense():
    """The word at one place; the cue of one sense right before it, that of the other three before."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(120):
        side = number % 2
        cue = CUES[SENSES[side]][number // 2 % 20]
        words = rng.choice(PLAIN, size=6).tolist()
        words.insert(6 - 2 * side - int(rng.integers(2)), cue)
        before = " ".join(words)
        text = f"{before} {WORD} {rng.choice(PLAIN)}"
        cue_start = f" {before} ".index(f" {cue} ")
        made.append(
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
    return made


@by_seed
def test_a_head_that_copies_where_the_cue_stands_is_confounded(seed):
    place = {"place_cos": 1.0, "place_sin": 1.0}
    model = model_of(Circuit((to_any(ONE, place, {"resolved": 3.0}),), ("",)), seed)
    evidence = evidence_of(model, cue_stands_further_in_one_sense(), seed)
    [pair] = evidence.record.pairs
    assert pair.gates.gap < 0.01 and pair.gates.nuisance < 0.05
    assert heads([evidence]).set_index(["layer", "head"]).loc[ONE, "verdict"] == "confounded"


# --- a head that responds to how expected a word is -----------------------------------------------


@cache
def surprised_model(seed):
    """A model in which the word is the most expected noun, the others are less so by degrees, and a
    head gives each of them the sense of the cue in this measure."""
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
            # Every token carries the anchor, so that this is the same logit everywhere.
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
