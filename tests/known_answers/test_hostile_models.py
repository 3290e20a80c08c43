"""Adversarial models built by hand, to deceive the verdicts.

* A head copies the position of the cue.
* A head responds to how expected a word is.
* Two heads have equal writes, and neurons amplify one of them for the word only.
* A head moves any noun, and neurons resolve the word.
* Two heads have equal effects on the word and on nouns, one large and one small.
* A head copies the position of the cue to the word only, so that nouns do not move.

And two models that do resolve the word: one head writes at the word only; another writes at nouns,
too, a tenth as far, and supplies the whole of their gap as well.
"""

from dataclasses import replace
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
    resolver,
    write_vector,
)
from inside import MOVERS, Sentence, comparison_of_writes, every_head, passes_gate, prepare
from measured import studied, table_of
from planted import EVEN, HINT, Circuit, linear, model_of, tidy
from safetensors.torch import load_file
from seeds import mostly_campaign

from probe import load

SEEDS = (0, 1, 2)
by_seed = pytest.mark.parametrize("seed", mostly_campaign(SEEDS))
PAIRS = 36
A_LITTLE = (0.8, 0.8)  # nouns that take up about a tenth of what the word takes up
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


def record_of(model, sentences, seed=0):
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
    record = record_of(model_read_after_layer_1(CIRCUITS[kind], seed), SENTENCES, seed)
    table = every_head(record).set_index(["layer", "head"], drop=False)
    return table, table_of(record, "mlps")


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
    table, of_mlps = tables_of("amplified", seed)
    amplified = table.loc[FIRST]
    assert amplified["verdict"] == "mover" and amplified["comparison"] == "more"
    assert amplified["net"] > 1.5 * amplified["nouns"]
    assert comparison_of_writes(amplified) != "more"
    assert amplified["write_more_length"] == pytest.approx(0, abs=0.02)
    # The part that reads it and does more.
    assert of_mlps.set_index("layer").loc[1, "comparison"] == "more"
    decoy = table.loc[DECOY]
    assert decoy["verdict"] in MOVERS and decoy["comparison"] != "more"


@by_seed
def test_where_neurons_resolve_the_word_the_head_only_moves_it(seed):
    table, of_mlps = tables_of("neurons resolve", seed)
    assert table.loc[ONE, "verdict"] == "mover"
    assert table.loc[ONE, "comparison"] == "more"
    assert comparison_of_writes(table.loc[ONE]) != "more"
    assert table.loc[ONE, "nouns_share"] == pytest.approx(1, abs=0.1)
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
    record = record_of(model, sentences_with_a_distant_cue_in_one_sense(), seed)
    [senses] = record.senses
    assert senses.gap_p < 0.01 and senses.nuisance_p < 0.05
    assert every_head(record).set_index(["layer", "head"]).loc[ONE, "verdict"] == "confounded"


@by_seed
def test_a_head_that_copies_the_position_to_the_word_only_is_confounded_although_no_noun_moves(
    seed,
):
    """The word changes further than every noun, because the head does nothing at nouns."""
    position = {"place_cos": 1.0, "place_sin": 1.0}
    head = replace(resolver(*ONE), carries=((position, {"resolved": 3.0}),))
    model = model_of(Circuit((head,), ("",)), seed)
    record = record_of(model, sentences_with_a_distant_cue_in_one_sense(), seed)
    row = every_head(record).set_index(["layer", "head"]).loc[ONE]
    assert passes_gate(row) and row["comparison"] == "more"
    assert row["verdict"] == "confounded"


# --- a head that responds to how expected a word is -----------------------------------------------


@cache
def surprised_model(seed, least=0.6, most=0.95, *, predicted=True):
    """A model in which nouns have a key, the word most of it, and others less of it, in steps. A
    head gives each noun the sense of the cue, more of it the more of the key it has.

    least, most: how much of the key the other nouns have, as a fraction of the word
    predicted: whether the model predicts nouns with more of the key with a larger probability
    """
    asks = ({"decoy": 2.0}, {"is_cue": 6.0})
    with TemporaryDirectory() as name:
        head = Head(*ONE, (asks, TO_BOS), ((EVEN, {"resolved": 3.0}),))
        folder = make_handmade(Path(name) / "surprised", [head], seed=seed)
        tensors = load_file(folder / "model.safetensors")
        tokenizer = load(folder).tokenizer
        expected = dict(zip(NOUNS, np.linspace(least, most, len(NOUNS)), strict=True)) | {WORD: 1.0}
        wte = tensors["transformer.wte.weight"].clone()
        head_weight = tensors["lm_head.weight"].clone()
        for noun, degree in expected.items():
            token = tokenizer.convert_tokens_to_ids(noun)
            wte[token] += wte.new_tensor(write_vector({"decoy": degree}))
            # Every token has the anchor, so the logit is the same at every position.
            if predicted:
                head_weight[token] += wte.new_tensor(write_vector({"anchor": 4 * degree}))
        changes = {"transformer.wte.weight": wte, "lm_head.weight": head_weight}
        return load(change_tensors(folder, changes))


@by_seed
def test_a_head_that_responds_to_how_expected_a_word_is_does_not_resolve_it(seed):
    record = record_of(surprised_model(seed), SENTENCES, seed)
    [nouns] = record.of_pairs("nouns")
    assert (nouns.word_surprisal < nouns.noun_surprisal).all()  # the word is the most expected one
    row = every_head(record).set_index(["layer", "head"]).loc[ONE]
    # The word moves further than every noun, as far as one with its surprisal would.
    assert row["more"] > 0.5 and row["more_at_surprisal"] < 0.02
    assert row["verdict"] == "mover"


# --- heads that resolve the word ------------------------------------------------------------------


@by_seed
def test_a_head_that_writes_at_the_word_only_resolves_it(seed):
    model = model_of(Circuit((resolver(*ONE, takes=EVEN),), ("",)), seed)
    record = record_of(model, SENTENCES, seed)
    row = every_head(record).set_index(["layer", "head"]).loc[ONE]
    assert row["verdict"] == "resolver"
    assert row["more"] == pytest.approx(row["net"], abs=0.05)
    assert row["write_more"] == pytest.approx(row["direct"], abs=0.05)


@by_seed
def test_a_head_that_moves_nouns_a_tenth_as_far_resolves_the_word_with_an_equal_share(seed):
    """It supplies the whole gap at nouns as well, so only their unit hides how little they move."""
    record = record_of(surprised_model(seed, *A_LITTLE, predicted=False), SENTENCES, seed)
    row = every_head(record).set_index(["layer", "head"]).loc[ONE]
    assert 0.05 < row["nouns"] / row["net"] < 0.2
    assert row["nouns_share"] == pytest.approx(row["net"], abs=0.1)
    assert row["verdict"] == "resolver"
