"""Unambiguous nouns that replace the word: a head that moves any noun and one that moves the word only
are separated, the gap has no bias, and the states equal a separate run of the changed text."""

from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from families import family_model
from handmade import (
    NOUNS,
    TO_BOS,
    WORD,
    Head,
    corpus_of,
    make_handmade,
    make_handmade_encoder,
    make_sentences,
    resolver,
    tokens_of,
)
from inside import (
    ALIGNED,
    OTHER_TOKENS,
    PAST,
    STUDY_DEFAULTS,
    CrossFit,
    Holdout,
    TargetText,
    WordInPlace,
    as_corpus,
    at_rows,
    axes_until,
    candidates,
    cross_fit,
    design,
    gaps,
    hold_out,
    measure,
    observe,
    passes_gate,
    prepare,
    prepare_pairs,
    put_in_place,
    read_weights,
    replace_tokens,
    require_usable,
    restrict,
    run_swaps,
    share_out,
    split_senses,
    squared_gap,
    swap_heads,
    swap_mlps,
    target_states,
    usable_pairs,
)
from inside import NO_NOUN_FITS as NO_NOUN
from inside import nouns as nouns_in_place
from measured import options_of, table_of
from measured import studied as record_of
from planted import EVEN, Circuit, model_of, planted_model
from seeds import likely, mostly_campaign

import probe
from probe import InputError, lexicon

SENTENCES = make_sentences(cues=12, frames=6, distances=(1, 2))
GOLDEN = Path(__file__).parents[1] / "golden" / "sentences"
PAIRS = 36  # of sentences, in which heads are swapped
SPECIFIC, GENERAL = (1, 1), (1, 2)


def to_any(layer: int, head: int, size: float) -> Head:
    """A head that writes the sense of the cue to whatever follows it, the word or any noun."""
    return Head(
        layer, head, (({"anchor": 2.0}, {"is_cue": 6.0}), TO_BOS), ((EVEN, {"resolved": size}),)
    )


HEADS = {
    "specific": (resolver(*SPECIFIC, takes=EVEN),),
    "general": (to_any(*GENERAL, 3.0),),
    "both": (resolver(*SPECIFIC, takes=EVEN, size=1.5), to_any(*GENERAL, 1.5)),
}


def compare_with_nouns(model, sentences=SENTENCES):
    """The columns of heads that compare a word with nouns in its place (`layer head`, those of
    measures too), and the row of the table of words."""
    record = record_of(
        model,
        prepare(model, WORD, sentences),
        pairs=PAIRS,
        permutations=199,
        experiments=("heads", "nouns", "noun_mlps"),
    )
    [nouns], [mlps] = (record.of_pairs(name) for name in ("nouns", "noun_mlps"))
    # MLPs are swapped with a subset of the nouns with which heads are swapped in the same pair.
    swaps_of_heads, swaps_of_mlps = (
        {*zip(each.pair_of.values.tolist(), each.noun_of.values.tolist(), strict=True)}
        for each in (nouns, mlps)
    )
    assert swaps_of_mlps < swaps_of_heads
    heads = table_of(record, "heads").set_index(["layer", "head"])
    return heads, table_of(record, "words").iloc[0], nouns, mlps


MORE = ["more", "more_word_axis", "more_length"]


def compared_with_nouns(kind: str, seed: int):
    return compare_with_nouns(model_of(Circuit(HEADS[kind], ("",) * len(HEADS[kind])), seed))


@pytest.mark.parametrize("seed", mostly_campaign(range(20)))
@pytest.mark.parametrize("kind", HEADS)
def test_effects_on_any_noun_are_separated_from_effects_on_the_word(kind, seed):
    heads, row, *_ = compared_with_nouns(kind, seed)
    net = heads["net"]
    share = {"specific": 0.0, "general": 1.0, "both": 0.25}[kind]  # squared: half the gap
    assert row["general_share"] == pytest.approx(share, abs=0.1)
    if kind != "general":
        assert row["ambiguity_p"] <= 0.05
    if kind == "specific":
        # The head moves no noun, and no noun has a gap of which it could supply a share.
        assert net[SPECIFIC] == pytest.approx(1, abs=0.05)
        assert heads.loc[SPECIFIC, MORE].tolist() == pytest.approx([1] * 3, abs=0.05)
        assert heads.loc[SPECIFIC, "nouns"] == pytest.approx(0, abs=0.05)
        assert heads.loc[SPECIFIC, "p_more"] < 0.05
        assert np.isnan(heads.loc[SPECIFIC, "nouns_share"])
    if kind == "general":
        assert heads.loc[GENERAL, MORE].tolist() == pytest.approx([0] * 3, abs=0.05)
        assert heads.loc[GENERAL, "nouns"] == pytest.approx(1, abs=0.05)
        assert heads.loc[GENERAL, "nouns_share"] == pytest.approx(1, abs=0.05)
    if kind == "both":
        # Each head moves the word by half of its gap. A noun's gap is the other half, and the
        # general head supplies all of it: the same movement, and a larger share.
        assert heads.loc[SPECIFIC, MORE].tolist() == pytest.approx([net[SPECIFIC]] * 3, abs=0.05)
        assert heads.loc[SPECIFIC, "p_more"] < 0.05
        assert heads.loc[GENERAL, "more"] == pytest.approx(0, abs=0.05)
        assert heads.loc[GENERAL, "nouns"] == pytest.approx(net[GENERAL], abs=0.05)
        assert heads.loc[GENERAL, "nouns_share"] == pytest.approx(1, abs=0.1)


def two_nouns_in_place():
    """The model, the observation and the prepared pair of a word; its record with two nouns in its
    place, and their runs."""
    model = model_of(Circuit(HEADS["general"], ("",)), 0)
    material = prepare(model, WORD, SENTENCES)
    observation = observe(model, material, seed=0)
    [pair] = prepare_pairs(observation, None, options_of(pairs=PAIRS))
    word = WordInPlace(
        word=WORD,
        texts=observation.texts,
        states=observation.states,
        surprisal={},
        split=pair.sense.split,
        axes=pair.sense.axes,
        pairs=pair.pairs,
        heads=(GENERAL,),
        at=pair.readout.at,
        direct=pair.readout.direct,
        until=pair.readout.at,
    )
    among = candidates(model, material, NOUNS[:2])
    plan = replace(STUDY_DEFAULTS.noun_plan, per_pair=1)
    return model, observation, pair, *put_in_place(read_weights(model), word, among, plan, seed=0)


def test_states_computed_in_parts_equal_states_computed_at_once(monkeypatch):
    *_, at_once, runs = two_nouns_in_place()
    monkeypatch.setattr(nouns_in_place, "STATES_BYTES", 1)  # one noun and one sentence at a time
    *_, in_parts, runs_in_parts = two_nouns_in_place()
    for name in ("squared_gap", "pair_gap", "moved", "write"):
        np.testing.assert_allclose(in_parts[name], at_once[name], atol=1e-4, err_msg=name)
    for expected, actual in zip(runs, runs_in_parts, strict=True):
        assert expected.in_place.noun == actual.in_place.noun and expected.rows == actual.rows
        torch.testing.assert_close(actual.z, expected.z, atol=1e-5, rtol=0)
        torch.testing.assert_close(actual.hidden, expected.hidden, atol=1e-5, rtol=0)
        assert len({tuple(row) for row in expected.z.flatten(1).tolist()}) > 1  # rows differ


def test_a_noun_is_read_along_axes_that_are_fitted_on_that_noun():
    """The axes are fitted on runs of the whole texts with the noun in the word's place."""
    model, observation, pair, record, runs = two_nouns_in_place()
    material, split = observation.material, pair.sense.split
    nouns = [run.in_place for run in runs]
    assert {noun.noun for noun in nouns} == set(record.noun.values) == set(NOUNS[:2])
    for number, noun in enumerate(nouns):
        rows = [row for row in range(len(material)) if noun.axes.cell[row] >= 0]
        texts = [noun.texts(observation.texts)[row] for row in rows]
        states = target_states(
            model, [tokens_of(text.ids) for text in texts], [text.at for text in texts]
        )
        resid = at_rows(states.resid, rows, len(material))
        part = restrict(split, [n for n, row in enumerate(split.rows) if row in rows])
        noun_axes = hold_out(resid, part, pair.sense.axes.senses)
        torch.testing.assert_close(noun.axes.u, noun_axes.u, atol=1e-4, rtol=0)
        assert (noun.axes.fitted_gap == 1).all()
        of_noun = record.noun_of.values == number
        of_pairs = pair.pairs.take(record.pair_of.values[of_noun].tolist())
        expected = gaps(noun_axes.in_units(), resid, of_pairs)
        np.testing.assert_allclose(record.pair_gap.values[of_noun], expected, atol=1e-3)


@pytest.mark.campaign
def test_the_gate_passes_by_chance_alone_where_the_head_serves_any_noun():
    """The word is then one of 25 nouns, and is the furthest one in 25 times."""
    passed = [compared_with_nouns("general", seed)[1]["ambiguity_p"] <= 0.05 for seed in range(40)]
    _, limit = likely(1 / 25, len(passed))
    assert sum(passed) <= limit


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bert"])
@pytest.mark.parametrize("replacements", [[(41,), (42,)], [(41, 51), (42, 52)]], ids=["one", "two"])
def test_states_with_replaced_tokens_equal_a_run_of_the_changed_text(family, replacements):
    """A word of two tokens is replaced by two, and read at the last."""
    weights = read_weights(family_model(family, torch.float64))
    texts = [TargetText(tuple(range(5, 5 + size)), at) for size, at in ((7, 6), (9, 5), (7, 4))]
    states = replace_tokens(weights, texts, replacements)
    for row, text in enumerate(texts):
        for variant, ids in enumerate(replacements):
            first = text.at + 1 - len(ids)
            changed = TargetText((*text.ids[:first], *ids, *text.ids[text.at + 1 :]), text.at)
            [expected] = replace_tokens(weights, [changed], [ids[-1:]]).resid
            torch.testing.assert_close(
                states.resid[row, variant], expected[0], atol=1e-10, rtol=1e-10
            )
    where = torch.tensor([[False, True], [False, False], [True, True]])
    some = replace_tokens(weights, texts, replacements, where=where)
    for name in ("z", "hidden"):
        assert torch.equal(getattr(some, name), getattr(states, name)[where.flatten()])
    # Swapping in the text's own activations changes nothing; another text's activations do.
    original = replace_tokens(weights, texts[:1], [texts[0].ids[texts[0].at :][:1]])
    direction = torch.eye(original.resid.shape[-1], dtype=torch.float64)
    stages = direction[:1].expand(len(weights.blocks), -1)[None]
    assert swap_mlps(weights, texts[:1], original.hidden, stages).abs().max() < 1e-12
    assert swap_heads(weights, texts[:1], original.z, stages).abs().max() < 1e-12
    changed_hidden = states.hidden[:1]
    assert swap_mlps(weights, texts[:1], changed_hidden, stages)[:, :, -1].abs().max() > 1e-6


def test_an_mlp_is_swapped_as_if_its_write_were_replaced():
    """In a family that adds writes without a norm, the stream after the MLP's block moves by the
    difference of the two writes."""
    weights = read_weights(family_model("gpt2", torch.float64))
    texts = [TargetText(tuple(range(5, 12)), 6)]
    states = replace_tokens(weights, texts, [(11,), (42,)])
    direction = torch.randn(
        states.resid.shape[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    stages = direction.expand(1, len(weights.blocks), -1)
    shifts = swap_mlps(weights, texts, states.hidden[1:], stages)
    for layer, block in enumerate(weights.blocks):
        change = (states.hidden[1, layer] - states.hidden[0, layer]) @ block.w_hidden
        assert float(shifts[0, layer, layer]) == pytest.approx(float(change @ direction), abs=1e-10)
        assert (shifts[0, layer, :layer] == 0).all()


def test_the_effect_of_an_mlp_is_read_at_the_depth_of_its_layer(tiny):
    """A swap is run only up to that depth, and equals the swap in a run of all blocks."""
    material = prepare(tiny, "bank", lexicon.expand("bank").sentences[:96])
    experiments = ("heads", "nouns", "noun_mlps")
    of_bank = record_of(tiny, material, pairs=8, experiments=experiments)
    [mlps] = of_bank.of_pairs("noun_mlps")
    at = of_bank.senses[0].read_depth.values
    observation = observe(tiny, material, seed=0)
    [pair] = prepare_pairs(observation, None, options_of(pairs=8))
    weights = read_weights(tiny)
    texts = [material.texts[row] for row in range(len(material))]
    word = [tuple(text.ids[text.at : text.at + 1]) for text in texts]
    hidden = replace_tokens(weights, texts, word[:1], parts=("hidden",)).hidden
    axes = axes_until(pair.sense.axes.in_units(), len(weights.blocks))
    whole = run_swaps(partial(swap_mlps, weights), texts, hidden, axes, pair.pairs).net
    expected = whole[:, np.arange(len(at)), at]
    compared = ~np.isnan(mlps.of_word.values).any((1, 2))
    assert compared.any() and np.abs(expected).max() > 0.1
    np.testing.assert_allclose(mlps.of_word.values[compared][..., 0], expected[compared], atol=1e-4)


def test_the_squared_gap_is_0_in_the_mean_where_nothing_differs_and_the_squared_gap_where_it_does():
    rng = np.random.default_rng(0)
    split = cross_fit(SENTENCES, ("door", "canal"), seed=0)
    of_a = torch.tensor(split.is_a, dtype=torch.float64)[:, None, None]
    values = []
    for _ in range(200):
        noise = torch.from_numpy(rng.normal(size=(len(split.rows), 1, 8)))
        values.append([squared_gap(noise, split)[0], squared_gap(noise + of_a * 0.5, split)[0]])
    without_gap, with_gap = np.mean(values, axis=0)
    error = np.std(values, axis=0) / np.sqrt(len(values))
    assert abs(without_gap) < 4 * error[0] and abs(with_gap - 8 * 0.25) < 4 * error[1]


def test_restricting_a_split_keeps_the_groups_that_are_held_out_together():
    split = cross_fit(SENTENCES, ("door", "canal"), seed=0)
    numbers = [n for n in range(len(split.rows)) if n % 4 < 2]
    part = restrict(split, numbers)
    assert part.rows == tuple(split.rows[n] for n in numbers)
    together = part.cells[:, None] == part.cells
    assert (together == (split.cells[numbers][:, None] == split.cells[numbers])).all()
    assert {(part.rows[a], part.rows[b]) for a, b in part.pairs} <= {
        (split.rows[a], split.rows[b]) for a, b in split.pairs
    }
    for holdout in part.holdouts:
        tested = {part.units[n] for n in holdout.test}
        assert not tested & {part.units[n] for n in holdout.train}


def test_shipped_nouns_take_both_articles_and_past_forms_are_not_taken_for_nouns():
    nouns = lexicon.one_meaning_nouns()
    assert len(nouns) == len(set(nouns)) >= 60
    articles = [lexicon.article_of(noun) for noun in nouns]
    assert min(articles.count("a"), articles.count("an")) >= 30
    assert lexicon.article_of("window") == "a" and lexicon.article_of("eraser") == "an"
    past = [
        form for form in ("charged", "drafted", "seed", "speed", "shed") if PAST.fullmatch(form)
    ]
    assert past == ["charged", "drafted"]


def test_sentences_and_nouns_that_cannot_be_compared_are_left_out_with_the_reason(tiny):
    model = model_of(Circuit(HEADS["specific"], ("",)), 0)
    material = prepare(model, WORD, SENTENCES)
    longer = f"{NOUNS[0]} {NOUNS[1]}"
    among = candidates(model, material, (*NOUNS[:2], WORD, "door1", "no such noun", longer))
    assert tuple(among.nouns) == NOUNS[:2]
    assert among.left_out == {
        WORD: "it is the word itself",
        "door1": "it already occurs in the word's sentences",
        "no such noun": "the model's vocabulary does not hold it",
        longer: "it has 2 tokens and the word has 1",
    }
    assert len(among.rows) + len(among.reasons) == len(material)
    assert set(among.reasons.values()) <= {NO_NOUN}
    assert among.ids == tuple(model.tokenizer(WORD)["input_ids"])
    capitalized = [replace(row, word=WORD.capitalize()) for row in SENTENCES]  # "Bank", of "bank"
    of_capitalized = prepare(model, WORD.capitalize(), capitalized)
    assert candidates(model, of_capitalized, NOUNS[:2]).rows == among.rows
    # If the word is a noun in none of its sentences, the nouns cannot be judged.
    verbs = tuple(replace(row, text=row.text.upper()) for row in material.sentences)
    require_usable(model, [replace(material, sentences=verbs)], [WORD])
    material = prepare(tiny, "bank", lexicon.expand("bank").sentences[:48])
    among = candidates(tiny, material, ("mole", "fence"))
    assert tuple(among.nouns) == ("fence",)
    assert among.left_out == {"mole": "it has several meanings itself"}


QUICK = {"permutations": 99, "max_pairs": 16, "experiments": ("nouns",)}


def studied(kind="specific", sentences=SENTENCES, **options):
    model = model_of(Circuit(HEADS[kind], ("",) * len(HEADS[kind])), 0)
    return probe.study(model, sentences=corpus_of(sentences), **QUICK | options)


def at_specific(study):
    return study.heads.set_index(["layer", "head"]).loc[SPECIFIC]


@pytest.fixture(scope="module")
def with_shipped_nouns():
    return studied(experiments=("circuit", "noun_mlps"))


def test_nouns_that_cannot_replace_the_word_are_refused_before_the_work():
    model = model_of(Circuit(HEADS["specific"], ("",)), 0)
    nouns = ["two words", WORD, "wug", "door1"]
    with pytest.raises(InputError) as refused:
        probe.study(
            model,
            sentences=corpus_of(SENTENCES),
            controls=nouns,
            progress=lambda *stage: pytest.fail("the work had begun"),
        )
    assert str(refused.value) == (
        "Cannot compare with the unambiguous nouns two words, lock, wug, door1: none can replace "
        "'lock': two words (the model's vocabulary does not hold it), lock (it is the word "
        "itself), wug (the model's vocabulary does not hold it), door1 (it already occurs in the "
        "word's sentences). Give nouns with the same number of tokens as the word, or omit them "
        "for the shipped nouns."
    )


def test_a_few_user_nouns_are_measured_without_a_gate_and_unusable_nouns_are_listed():
    """One head has the same effect on the word as another head has on any noun: nouns have half of
    the gap, and the first head does not contribute to it."""
    study = studied("both", controls=[*NOUNS[:3], WORD, "wug"])
    row = study.words.iloc[0]
    assert row["nouns_compared"] == 3 and np.isnan(row["ambiguity_p"])
    assert row["general_share"] == pytest.approx(0.25, abs=0.1)
    assert row["not_compared"] == "nouns that can take its place: 3, and 19 are needed"
    assert set(study.controls["noun"]) == {WORD, *NOUNS[:3]}
    listed = study.left_out[study.left_out["word"] == WORD]
    assert listed[["where", "reason"]].to_numpy().tolist() == [
        [WORD, "it is the word itself"],
        ["wug", "the model's vocabulary does not hold it"],
    ]
    head = at_specific(study)
    assert head["verdict"] == "mover" and head["p_more"] < 0.05


def as_verbs(rows):
    """The same sentences with "to" before the word."""
    return [
        replace(
            row,
            text=row.text[: row.start] + "to " + row.text[row.start :],
            start=row.start + 3,
            end=row.end + 3,
        )
        for row in rows
    ]


def test_a_word_that_is_no_noun_or_has_no_nouns_is_studied_but_not_compared(with_shipped_nouns):
    """The same heads move the word, but no verdict is better than mover."""
    compared = with_shipped_nouns
    assert compared.left_out.empty and compared.words["not_compared"].item() == ""
    assert compared.words["sentences_not_compared"].item() == 0
    assert at_specific(compared)["verdict"] == "resolver"
    no_noun = "it is a noun in its dictionary form in 0 of the paired sentences, and 24 are needed"
    for study, sentences, reason in (
        (studied(sentences=as_verbs(SENTENCES)), len(SENTENCES), no_noun),
        (studied(controls=()), 0, "no nouns were asked for"),
    ):
        row, head = study.words.iloc[0], at_specific(study)
        assert row["ranked"] and row["nouns_compared"] == 0 and np.isnan(row["ambiguity_p"])
        assert (row["sentences_not_compared"], row["not_compared"]) == (sentences, reason)
        assert study.controls.empty
        assert head["verdict"] == "mover" and np.isnan(head["more"])
        assert head["net"] == pytest.approx(at_specific(compared)["net"], abs=0.02)
        assert set(study.heads["verdict"]) <= {"mover", "none", "separates"}


@pytest.mark.parametrize(
    ("kind", "verdict"),
    mostly_campaign([("function_word", "resolver"), ("any_function_word", "confounded")]),
)
def test_a_difference_in_an_untrained_model_is_no_nuisance_if_only_the_word_takes_it_up(
    kind, verdict
):
    """The function word goes with the sense, so a model with random weights also separates the
    senses. If every noun takes up the function word, the gate fails. If only the word does, the gate
    passes, and the head moves no noun."""
    model, circuit = planted_model(kind, 0)
    sentences = []
    for row in make_sentences(cues=12, distances=(2, 3)):
        front = f"{handmade.FUNCTION[row.sense]} "
        spans = {
            name: getattr(row, name) + len(front)
            for name in ("start", "end", "cue_start", "cue_end")
        }
        sentences.append(replace(row, text=front + row.text, **spans))
    study = probe.study(
        model, sentences=corpus_of(sentences), permutations=199, experiments=("nouns",)
    )
    row = study.words.iloc[0]
    head = study.heads.set_index(["layer", "head"]).loc[circuit.head_indices[0]]
    assert row["untrained_p"] < 0.01 and row["nouns_compared"] >= 19
    assert passes_gate(row) == (kind == "function_word")
    assert head["verdict"] == verdict
    of_word = 1.0 if kind == "function_word" else 0.0
    assert head["more"] == pytest.approx(of_word, abs=0.05)


def test_an_encoder_separates_effects_on_any_noun_from_effects_on_the_word(tmp_path):
    """In an encoder a noun changes what every position reads, so whole texts are run."""
    sides = [
        replace(row, frame=f"{row.frame} {after}", pair=f"{row.pair} {after}")
        for after in (False, True)
        for row in make_sentences(cues=12, frames=4, distances=(1, 2), cue_after=after, seed=after)
    ]
    model = probe.load(make_handmade_encoder(tmp_path / "both", HEADS["both"]))
    heads, row, *_ = compare_with_nouns(model, sides)
    assert row["ambiguity_p"] <= 0.05 and row["general_share"] == pytest.approx(0.25, abs=0.1)
    assert heads.loc[GENERAL, "nouns_share"] == pytest.approx(1, abs=0.1)
    assert heads.loc[GENERAL, "more"] == pytest.approx(0, abs=0.05)
    assert heads.loc[SPECIFIC, "nouns"] == pytest.approx(0, abs=0.05)
    assert heads.loc[SPECIFIC, "more"] > 0.3 and heads.loc[SPECIFIC, "p_more"] < 0.05


def test_a_model_of_one_layer_is_compared_likewise(tmp_path, monkeypatch):
    monkeypatch.setattr(handmade, "LAYERS", 1)
    heads = [resolver(0, 1, takes=EVEN, size=1.5), to_any(0, 2, 1.5)]  # half of the gap each
    made = probe.load(make_handmade(tmp_path / "one", heads))
    table, row, nouns, mlps = compare_with_nouns(made)
    assert nouns.noun_gap.shape == (len(NOUNS), 2) and row["ambiguity_p"] <= 0.05
    assert len(table) == handmade.HEADS
    assert table.loc[(0, 1), MORE].tolist() == pytest.approx([0.5] * 3, abs=0.05)
    assert mlps.net.shape == (1,)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_word_at_the_start_of_a_text_has_nothing_before_it(family):
    """This happens in a model without a begin token."""
    weights = read_weights(family_model(family, torch.float64))
    texts = [TargetText((5, 6, 7), 0), TargetText((6, 5, 8, 9), 1)]
    states = replace_tokens(weights, texts, [(41,), (42,)])
    [expected] = replace_tokens(weights, [TargetText((41, 6, 7), 0)], [(41,)]).resid
    torch.testing.assert_close(states.resid[0, 0], expected[0], atol=1e-10, rtol=1e-10)
    direction = torch.ones(1, len(weights.blocks), states.resid.shape[-1], dtype=torch.float64)
    original = replace_tokens(weights, texts[:1], [(5,)])
    assert swap_mlps(weights, texts[:1], original.hidden, direction).abs().max() < 1e-11


def test_a_text_with_the_word_in_other_tokens_is_not_compared():
    """In a byte-level tokenizer the space before a word belongs to its token."""
    model = family_model("gpt2")
    rows = [
        {"sense": "river", "text": "the (bank of the river"},
        {"sense": "river", "text": "the tree at the river bank"},
        {"sense": "money", "text": "a loan at the bank"},
    ]
    material = prepare(model, "bank", as_corpus(rows, "bank").sentences)
    assert [len(positions) for positions in material.words] == [2, 1, 1]
    among = candidates(model, material, ("garden", "wug", "tree"))
    assert among.reasons == {0: OTHER_TOKENS} and among.rows == (1, 2)
    assert among.ids == tuple(model.tokenizer(" bank", add_special_tokens=False)["input_ids"])
    garden = tuple(model.tokenizer(" garden", add_special_tokens=False)["input_ids"])
    assert len(garden) == 1 and among.nouns == {"garden": garden}
    tokens = len(model.tokenizer(" wug", add_special_tokens=False)["input_ids"])
    assert tokens > 1
    assert among.left_out == {
        "wug": f"it has {tokens} tokens and the word has 1",
        "tree": "it already occurs in the word's sentences",
    }


def test_edges_and_mlps_are_compared_with_nouns_that_have_no_gap(with_shipped_nouns):
    """The model changes only the word, so an edge does more for it by all that it does."""
    edges = with_shipped_nouns.edges
    first = edges.iloc[0]
    assert first["comparison"] == "more"
    assert first["more"] == pytest.approx(first["total"], abs=0.05)
    assert first["nouns"] == pytest.approx(0, abs=0.05) and np.isnan(first["nouns_share"])
    assert (with_shipped_nouns.mlps["comparison"] != "more").all()


@pytest.mark.campaign
def test_edges_into_a_general_head_are_separated_from_edges_into_a_specific_head():
    """Both heads move the word by half of its gap. The edge into the general head moves nouns by as
    much, which is their whole gap."""
    model = model_of(Circuit(HEADS["both"], ("",) * len(HEADS["both"])), 0)
    study = probe.study(
        model,
        WORD,
        sentences=corpus_of(SENTENCES),
        permutations=199,
        max_pairs=PAIRS,
        experiments=("circuit",),
    )
    edges = study.edges[study.edges["channel"] == "value"].set_index(
        ["receiver_layer", "receiver_head"]
    )
    specific = edges.loc[SPECIFIC].iloc[0]
    general = edges.loc[GENERAL].iloc[0]
    assert specific["total"] == pytest.approx(0.5, abs=0.02)
    assert specific["more"] == pytest.approx(0.5, abs=0.02)
    assert specific["comparison"] == "more"
    assert general["total"] == pytest.approx(0.5, abs=0.02)
    assert general["nouns"] == pytest.approx(0.5, abs=0.02)
    assert general["nouns_share"] == pytest.approx(1, abs=0.02)
    assert general["comparison"] not in ("more", "less")


def test_one_of_many_words_without_a_gap_has_no_gate_and_no_verdicts(tiny):
    """Its heads are swapped, and nouns take its place, because words are compared in raw units."""
    sentences = probe.read_sentences(GOLDEN / "no_gap.csv").sentences
    material = prepare(tiny, "window", sentences)
    options = replace(options_of(experiments=("nouns",)), one_of_many=True)
    record = measure(tiny, material, split_senses(material, seed=0, causal=True), options)
    [row] = table_of(record, "words").to_dict("records")
    [nouns] = record.of_pairs("nouns")
    assert nouns is not None and nouns.sizes["swap"] and not row["ranked"]
    assert row["not_compared"] == "the gap between the senses is not significant"
    assert set(table_of(record, "heads")["verdict"]) == {"none"}
    assert table_of(record, "word_heads").empty


# --- how pairs of sentences are shared out to nouns -----------------------------------------------

SEVEN = tuple(f"noun{number}" for number in range(7))


def drawn_case(seed):
    """Pairs with their cue words, and the pairs that each noun can use."""
    rng = np.random.default_rng(seed)
    units = rng.integers(0, 5, size=rng.integers(1, 20)).tolist()
    chance = rng.choice([0.2, 0.6, 1.0])
    usable = {noun: [pair for pair in range(len(units)) if rng.random() < chance] for noun in SEVEN}
    return units, usable, int(rng.integers(1, 8))


@pytest.mark.parametrize("seed", range(10))
def test_every_pair_goes_to_the_planned_number_of_nouns_or_to_all_that_fit(seed):
    units, usable, per_pair = drawn_case(seed)
    shared = share_out(units, usable, per_pair)
    assert set(shared) == set(usable)
    for pair in range(len(units)):
        fitting = {noun for noun in usable if pair in usable[noun]}
        receivers = [noun for noun in shared if pair in shared[noun]]
        assert len(receivers) == min(per_pair, len(fitting)) and set(receivers) <= fitting
    for pairs in shared.values():
        assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("per_pair", [1, 6])
@pytest.mark.parametrize("pairs", [5, 23])
def test_nouns_that_fit_everywhere_get_as_many_pairs_as_each_other(pairs, per_pair):
    units = [pair % 4 for pair in range(pairs)]
    shared = share_out(units, dict.fromkeys(SEVEN, range(pairs)), per_pair)
    counts = [len(of_noun) for of_noun in shared.values()]
    assert sum(counts) == pairs * per_pair and max(counts) - min(counts) <= 1


def test_the_pairs_of_a_cue_word_go_to_different_nouns():
    """Seven pairs of each of two cue words, in turn: every noun meets both."""
    shared = share_out([0, 1] * 7, dict.fromkeys(SEVEN, range(14)), per_pair=1)
    assert all({pair % 2 for pair in pairs} == {0, 1} for pairs in shared.values())


def test_without_swaps_no_noun_gets_a_pair():
    assert share_out([0, 1], {"fence": [0, 1]}, per_pair=0) == {"fence": ()}


# --- the pairs that a noun can use ----------------------------------------------------------------


def word_with(split, pairs):
    """A word of which only the split and the pairs are read."""
    unread = dict.fromkeys(field.name for field in fields(WordInPlace) if field.init)
    return WordInPlace(**unread | {"split": split, "pairs": pairs})


def test_all_pairs_of_some_sentences_are_used_where_each_is_held_out():
    sentences = make_sentences(frames=3, distances=(1,))
    split = cross_fit(sentences, handmade.SENSES, seed=0)
    pairs = design.make_pairs(
        sentences, [row.distance for row in sentences], split, limit=1000, seed=0
    )
    word = word_with(split, pairs)
    assert usable_pairs(word, range(len(sentences))) == list(range(len(pairs)))
    members = (pairs.a[3], pairs.b[3], pairs.same_a[3], pairs.same_b[3])
    remaining_rows = [row for row in range(len(sentences)) if row not in members]
    assert not set(usable_pairs(word, remaining_rows)) & {3}


def test_a_pair_that_is_only_fitted_on_is_not_used():
    """Rows 0, 1 and 2, 3 are pairs of one sense each, and held out from each other. Without row 3
    the second pair has only one sense, so there is no axis for the first pair."""
    split = CrossFit(
        rows=(0, 1, 2, 3),
        is_a=(True, False, True, False),
        units=(0, 0, 1, 1),
        exchanged=(0, 0, 1, 1),
        holdouts=(Holdout((2, 3), (0, 1)), Holdout((0, 1), (2, 3))),
        pairs=((0, 1), (2, 3)),
    )
    a, b = (0, 2), (1, 3)
    pairs = design.Pairs(a, b, a, b, ("f", "g"), (0, 1), (0, 1), (1, 1), ALIGNED, seed=0)
    word = word_with(split, pairs)
    assert usable_pairs(word, [0, 1, 2, 3]) == [0, 1]
    assert usable_pairs(word, [0, 1, 2]) == []
