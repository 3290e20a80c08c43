"""Experiments with a known answer on circuits built by hand, with LayerNorm. The seed determines the
layers and numbers of the planted heads.

4       decoys: one separates perfectly without an effect, one moves half of the coordinate and is
        never read
5       two heads combined: additive, either is sufficient, both are necessary
6       a head and its backup
10, 18  a head that attends to the previous token
12      two steps
13      a later head removes part of a write
14      neurons erase a write
15      a function word
16      the word's position
17      five times as many sentences of one sense, with distant cues; three senses with a head for
        one pair of them

For every circuit and seed, the verdicts on the planted heads are right and no other head is a
resolver. Every run tests the first seed, the campaign all three.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import page_text
import pytest
import torch
from handmade import (
    CUES,
    FEATURES,
    FUNCTION,
    HEADS,
    LAYERS,
    PLAIN,
    SENSES,
    WORD,
    corpus_of,
    make_sentences,
    resolver_model,
    without,
)
from inside import (
    LEVEL,
    Readout,
    Sentence,
    every_head,
    forward,
    head_parts,
    observe,
    prepare,
    prepare_pairs,
    read_weights,
    swap_every_head,
    swaps,
    with_reasons,
)
from measured import options_of, studied, table_of
from planted import AXIS, KINDS, circuit_of, model_of, one_pair_only, planted_model
from seeds import mostly_campaign

import probe
from probe import lexicon

SEEDS = (0, 1, 2)
by_seed = pytest.mark.parametrize("seed", mostly_campaign(SEEDS))
# Tested in the campaign only, because a similar circuit is tested in every run.
CAMPAIGN = (
    *("small_decoy", "erased_decoy", "additive", "either", "erased", "weak_suppressor"),
    *("any_function_word", "matched", "one_back"),
)
PERMUTATIONS = 199
PAIRS = 60  # pairs of sentences in which heads are swapped
EACH_SENSE = 12  # cue words per sense


def with_function_words():
    """Each sentence with "this" or "that" in front, depending on its sense."""
    sentences = []
    for row in make_sentences(cues=EACH_SENSE, distances=(2, 3)):
        by = len(FUNCTION[row.sense]) + 1
        spans = {name: getattr(row, name) + by for name in ("start", "end", "cue_start", "cue_end")}
        sentences.append(replace(row, text=f"{FUNCTION[row.sense]} {row.text}", **spans))
    return tuple(sentences)


def longer_in_one_sense():
    """Sentences without cues or pairs. Sentences of the second sense have four more words before
    the word.
    """
    rng, by_text = np.random.default_rng(0), {}
    for number in range(120):
        before = " ".join(rng.choice(PLAIN, size=int(rng.integers(2, 5)) + 4 * (number % 2)))
        text = f"{before} {WORD} {' '.join(rng.choice(PLAIN, size=2))}"
        span = {"start": len(before) + 1, "end": len(before) + 1 + len(WORD)}
        by_text[text] = Sentence(word=WORD, sense=SENSES[number % 2], text=text, **span)
    return tuple(by_text.values())


GRID = make_sentences(cues=EACH_SENSE)
SENTENCES = {
    "both": make_sentences(cues=18),  # with fewer, the axis includes a little of a random head
    # With cues further away, a model that reads the previous token would have no gap.
    "one_back": make_sentences(cues=EACH_SENSE, distances=(1, 1, 1, 2)),
    "two_step": make_sentences(cues=EACH_SENSE, distances=(2, 3)),
    "function_word": with_function_words(),
    "any_function_word": with_function_words(),
    "own_place": longer_in_one_sense(),
}


def study_of(model, sentences, seed=0):
    return studied(
        model,
        prepare(model, WORD, sentences),
        seed=seed,
        pairs=PAIRS,
        permutations=PERMUTATIONS,
        experiments=("heads", "nouns", "head_parts", "backups"),
    )


@cache
def measured(kind, seed):
    return study_of(planted_model(kind, seed)[0], SENTENCES.get(kind, GRID), seed)


@cache
def heads_of(kind, seed):
    """The evidence frame by layer and head, and the rows of the planted heads in the order of the
    circuit.
    """
    frame = every_head(measured(kind, seed)).set_index(["layer", "head"], drop=False)
    return frame, frame.loc[list(planted_model(kind, seed)[1].head_indices)]


def case(kind, *values):
    """The parameters of a test with this kind of circuit."""
    return pytest.param(kind, *values, marks=[pytest.mark.campaign] * (kind in CAMPAIGN))


def planted(kind):
    def decorate(test):
        return pytest.mark.parametrize("kind", [case(kind)])(by_seed(test))

    return decorate


def test_the_planted_heads_cover_all_layers_and_numbers():
    heads = [
        planted_head
        for kind in KINDS
        for seed in SEEDS
        for planted_head in circuit_of(kind, seed).head_indices
    ]
    assert set(heads) == {(layer, head) for layer in range(LAYERS) for head in range(HEADS)}


def test_every_test_of_a_head_uses_the_number_of_permutations_of_the_study():
    frame, _ = heads_of("backup", 0)
    for name in ("p_auroc", "p_swap", "p_opposes", "p_next_token", "p_stands_in"):
        p = frame[name].dropna().to_numpy()
        assert len(p) and p.min() < 1, name
        np.testing.assert_allclose(p * (PERMUTATIONS + 1), (p * (PERMUTATIONS + 1)).round())


@pytest.mark.parametrize("kind", [case(kind) for kind in KINDS])
@by_seed
def test_the_verdicts_are_right_and_no_other_head_is_a_resolver_or_has_an_effect(kind, seed):
    frame, planted_heads = heads_of(kind, seed)
    circuit = planted_model(kind, seed)[1]
    other_heads = frame.drop(index=list(circuit.head_indices))
    [words] = table_of(measured(kind, seed), "words").to_dict("records")
    assert words["gap_p"] < 0.01
    if kind == "own_place" and words["ambiguity_p"] <= LEVEL:  # by chance, once in 25 seeds
        assert tuple(planted_heads["verdict"]) == ("mover",)
    else:
        assert tuple(planted_heads["verdict"]) == circuit.verdicts
    # In these models every head that reads positions or the function word separates the senses a
    # little.
    weak = {"unread"} if kind in ("own_place", "function_word", "any_function_word") else set()
    assert set(other_heads["verdict"]) <= {"none", "separates"} | weak
    if kind != "own_place":
        assert other_heads[["direct", "denoise", "noise"]].abs().max().max() < 0.05


@pytest.mark.parametrize("kind", [case("small_decoy"), case("erased_decoy")])
@by_seed
def test_a_decoy_separates_perfectly_and_has_no_effect(kind, seed):
    resolver, decoy = heads_of(kind, seed)[1].to_dict("records")
    assert decoy["auroc"] == 1 == resolver["auroc"]
    assert decoy["p_auroc"] < 0.05
    for name in ("direct", "denoise", "noise", "next_token"):
        assert abs(decoy[name]) < 0.02, name
        assert resolver[name] == pytest.approx(1, abs=0.02), name


@planted("decoy")
def test_a_decoy_with_an_equal_write_has_half_of_the_coordinate_and_no_effect_on_the_next_token(
    kind, seed
):
    last = measured(kind, seed).of_pairs("heads")[0].net_by_depth.values[..., -1]
    resolver, decoy = heads_of(kind, seed)[1].to_dict("records")
    for head in (resolver, decoy):
        assert last[head["layer"], head["head"]] == pytest.approx(
            0.5, abs=0.06
        )  # the second head reads a longer vector
    assert (resolver["next_token"], decoy["next_token"]) == pytest.approx((1, 0), abs=0.02)
    assert decoy["p_next_token"] > 0.05 > decoy["p_swap"]


def follow(monkeypatch, model, *, reverse=False):
    """A lexicon in which the continuations of each sense are the three plain words whose logits it
    raises most.
    """
    unembedding = forward.unembedding(read_weights(model), torch.float32)
    toward = {
        word: float(unembedding[model.tokenizer(f" {word}")["input_ids"][-1]] @ AXIS[0])
        for word in PLAIN
    }
    ordered = sorted(toward, key=toward.get, reverse=not reverse)
    named_words = zip(SENSES, (ordered[:3], ordered[-3:]), strict=True)
    senses = tuple(
        lexicon.Sense(name, "", (), tuple(f" {word}" for word in continuations))
        for name, continuations in named_words
    )
    monkeypatch.setattr(lexicon, "words", lambda: (WORD,))
    monkeypatch.setattr(lexicon, "entry", lambda word: lexicon.Entry(word, senses, ()))


@planted("decoy")
def test_continuations_separate_a_write_that_is_read_from_one_that_is_not(kind, seed, monkeypatch):
    """The third read-out: the decoy moves half of the coordinate, and the resolver moves all of the
    continuations.
    """
    model, circuit = planted_model(kind, seed)
    before = heads_of(kind, seed)[1].to_dict("records")
    follow(monkeypatch, model)
    result = study_of(model, GRID, seed)
    frame = every_head(result).set_index(["layer", "head"])
    resolver, decoy = frame.loc[list(circuit.head_indices)].to_dict("records")
    assert result.senses[0].continuation_p < 0.01
    assert (resolver["continuation"], decoy["continuation"]) == pytest.approx((1, 0), abs=0.02)
    assert resolver["p_continuation"] < 0.05 < decoy["p_continuation"]
    # The other read-outs are unchanged.
    for name in ("net", "next_token", "p_next_token", "verdict"):
        assert (resolver[name], decoy[name]) == (before[0][name], before[1][name]), name


@pytest.mark.campaign
def test_continuations_of_the_other_sense_give_no_gap_and_the_page_says_so(monkeypatch):
    model, _ = planted_model("decoy", 0)
    follow(monkeypatch, model, reverse=True)
    frames = frames_of(model, GRID, 0)
    assert frames["words"]["ranked"].all() and frames["words"]["continuation_p"].item() > 0.9
    assert frames["heads"]["p_continuation"].isna().all()
    row = "prepared next words that the model does not prefer after the word"
    assert page_text.facts(frames, WORD)[row] == "1 of 1 pairs of meanings"


def test_without_continuations_there_are_no_results_for_them():
    assert np.isnan(measured("decoy", 0).senses[0].continuation_p)
    assert heads_of("decoy", 0)[0]["p_continuation"].isna().all()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [case("additive", (0.5, 0.5)), case("either", (1, 0)), case("both", (0, 1))],
)
@by_seed
def test_denoising_and_noising_show_how_two_heads_combine(kind, expected, seed):
    """The word is read after both heads, because nothing is combined before the second."""
    model, circuit = planted_model(kind, seed)
    material = prepare(model, WORD, SENTENCES.get(kind, GRID))
    observation = observe(model, material, seed=seed)
    [pair] = prepare_pairs(observation, None, options_of(seed=seed, pairs=PAIRS))
    readings = Readout((LAYERS,) * LAYERS, (LAYERS,) * LAYERS, None)
    swapped = swap_every_head(
        read_weights(model),
        observation.texts,
        observation.states,
        pair.sense.axes,
        pair.pairs,
        gap=pair.gap,
        readout=readings,
    )
    word = swapped["word"]
    for head in circuit.head_indices:
        ratios = (swaps.ratio(word, "denoise")[head], swaps.ratio(word, "noise")[head])
        assert ratios == pytest.approx(expected, abs=0.06)


@planted("backup")
def test_a_head_with_a_backup_writes_the_gap_and_only_the_swap_of_both_moves_the_word(kind, seed):
    result, (first, second) = measured(kind, seed), heads_of(kind, seed)[1].to_dict("records")
    last = result.of_pairs("heads")[0].net_by_depth.values[..., -1]
    assert (first["direct"], second["direct"]) == pytest.approx((1, 0), abs=0.02)
    assert all(abs(last[head["layer"], head["head"]]) < 0.1 for head in (first, second))
    [backup] = heads_of(kind, seed)[0].dropna(subset="stands_in").to_dict("records")
    assert (backup["layer"], backup["head"]) == (second["layer"], second["head"])
    earlier = (backup["stands_in_layer"], backup["stands_in_head"])
    assert earlier == (first["layer"], first["head"])
    assert backup["stands_in"] == pytest.approx(1, abs=0.1)


@planted("erased")
def test_a_write_that_neurons_erase_has_no_effect_and_no_backup(kind, seed):
    head = heads_of(kind, seed)[1].to_dict("records")[1]
    assert head["direct"] > 0.4 and abs(head["net"]) < 0.02
    assert heads_of(kind, seed)[0]["stands_in"].isna().all()


@pytest.mark.parametrize(
    ("kind", "back"), [case("weak_suppressor", 1 / 3), case("strong_suppressor", 2 / 3)]
)
@by_seed
def test_a_suppressor_removes_its_part_of_the_write_of_the_first_head(kind, back, seed):
    """The final gap is (1 - back) times the first head's write. Both effects are fractions of it."""
    last = measured(kind, seed).of_pairs("heads")[0].net_by_depth.values[..., -1]
    first, second = (last[head] for head in planted_model(kind, seed)[1].head_indices)
    assert -second / first == pytest.approx(back, abs=0.05)
    assert first + second == pytest.approx(1, abs=0.05)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kind", "label", "fact"),
    [
        ("decoy", "read from", "an earlier word, e.g. door"),
        # It occurs in every sentence of its sense, so an untrained model separates the senses too.
        # But the head reads it for the word only, and unambiguous nouns do not change.
        ("function_word", "read from", "an earlier word, not the marked cue, e.g. "),
        ("any_function_word", "meanings also separated", "use pairs of sentences that differ"),
    ],
)
def test_the_page_lists_what_the_heads_read(kind, label, fact):
    sentences = corpus_of(SENTENCES.get(kind, GRID))
    frames = probe.study(
        planted_model(kind, 0)[0], sentences=sentences, permutations=PERMUTATIONS
    ).frames
    assert fact in page_text.facts(frames, WORD)[label]


def parts_of_head(record, head):
    """The row of a head in the table of the parts of heads."""
    rows = head_parts.with_intervals(record, record.measured["head_parts"])
    return rows.set_index(["layer", "head"]).loc[head]


@planted("function_word")
def test_the_function_word_is_credited_if_no_head_reads_the_marked_cue(kind, seed):
    shares = parts_of_head(measured(kind, seed), planted_model(kind, seed)[1].head_indices[0])
    assert (shares["cue_only"], shares["other_only"]) == pytest.approx((0, 1), abs=0.02)


@planted("two_step")
def test_a_head_that_reads_a_token_in_between_takes_nothing_from_the_cue(kind, seed):
    head = planted_model(kind, seed)[1].head_indices[1]
    assert abs(parts_of_head(measured(kind, seed), head)["cue_only"]) < 0.02
    assert heads_of(kind, seed)[0].loc[head, "attention_cue"] < 0.02


@planted("own_place")
def test_the_position_of_the_word_is_a_nuisance(kind, seed):
    [senses] = measured(kind, seed).senses
    assert senses.gap_p < 0.01 and senses.nuisance_p < 0.01


def test_matching_positions_removes_a_gap_that_comes_from_the_position():
    """Twice as many sentences, half of them with the word at any position. Matching positions leave
    no gap.
    """
    rng, by_text = np.random.default_rng(1), {row.text: row for row in longer_in_one_sense()}
    for number in range(240):
        before = " ".join(rng.choice(PLAIN, size=int(rng.integers(2, 9))))
        text = f"{before} {WORD} {' '.join(rng.choice(PLAIN, size=2))}"
        span = {"start": len(before) + 1, "end": len(before) + 1 + len(WORD)}
        by_text[text] = Sentence(word=WORD, sense=SENSES[number % 2], text=text, **span)
    record = study_of(planted_model("own_place", 0)[0], tuple(by_text.values()))
    [senses] = record.senses
    assert senses.nuisance_p > 0.05 and senses.gap_p > 0.01
    assert "no sentence of the other sense has the word at the same position" in {
        item.reason for item in record.left_out
    }


@planted("one_back")
def test_a_head_that_looks_one_back_carries_the_gap_next_to_the_cue_and_none_further_away(
    kind, seed
):
    [head] = heads_of(kind, seed)[1].to_dict("records")
    assert head["attention_previous"] > 0.95
    assert head["swap"] == pytest.approx(1, abs=0.02)
    assert head["net_near"] == pytest.approx(1, abs=0.05)
    assert head["net_far"] == pytest.approx(0, abs=0.02)
    [senses] = measured(kind, seed).senses
    far, gap = senses.distance.values > 1, senses.gaps.values[:, -2]
    assert far.any() and not far.all()
    assert np.abs(gap[far]).max() < 0.1 < gap[~far].min()


EACH = 13  # cue words of each of three senses
THIRD = "hair"


def frames_of(model, sentences, seed):
    corpus = corpus_of(sentences)
    return probe.study(
        model,
        sentences=corpus,
        seed=seed,
        max_pairs=60,
        permutations=PERMUTATIONS,
        experiments=("nouns", "sets"),
    ).frames


def name_of(head):
    return "L{}H{}".format(*head)


@pytest.mark.campaign
@by_seed
def test_one_sense_has_five_times_the_sentences_and_cues_are_far_away(seed):
    model, head = resolver_model(seed)
    rows = without(make_sentences(cues=30, frames=4, distances=(4, 5)), "pair")
    rare_cues = {f"canal{number}" for number in range(6)}
    frames = frames_of(
        model, [row for row in rows if row.sense == SENSES[0] or row.cue in rare_cues], seed
    )
    facts = page_text.facts(frames, WORD)
    assert facts["significant heads"].startswith("1 of ")
    assert facts["resolvers"] == name_of(head)
    assert frames["words"]["depth"].item() > head[0]
    [resolver] = frames["heads"].query("verdict == 'resolver'").to_dict("records")
    assert (resolver["layer"], resolver["head"]) == head and resolver["net"] == pytest.approx(
        1, abs=0.05
    )
    assert resolver["read_depth"] in (frames["words"]["depth"].item(), 3)


def of_three_senses(model):
    """Sentences of three senses: the cues with the smallest and the largest values of the first
    sense, and the cues of the second sense.
    """
    weights, number = read_weights(model), 2 * FEATURES.index("sense")
    embedding = weights.raw[f"{weights.config.family.embed}.weight"]
    ids = model.tokenizer.convert_tokens_to_ids(list(CUES[SENSES[0]]))
    order = [CUES[SENSES[0]][index] for index in np.argsort(embedding[ids, number].numpy())]
    senses = {cue: (SENSES[0], index) for index, cue in enumerate(order[:EACH])}
    senses |= {cue: (THIRD, index) for index, cue in enumerate(order[-EACH:])}
    senses |= {cue: (SENSES[1], index) for index, cue in enumerate(CUES[SENSES[1]][:EACH])}
    return [
        replace(
            row, sense=senses[row.cue][0], pair=f"{row.frame}/{row.distance}/{senses[row.cue][1]}"
        )
        for row in make_sentences(cues=len(order), frames=4, distances=(1, 2, 3))
        if row.cue in senses
    ]


@by_seed
def test_three_senses_and_a_head_for_one_pair_of_them(seed):
    circuit = one_pair_only(np.random.default_rng(seed))
    model = model_of(circuit, seed)
    frames = frames_of(
        model, of_three_senses(model), seed + 7
    )  # with seed 1, the untrained model has a gap by chance
    general, single = circuit.head_indices
    resolving = frames["heads"].query("verdict == 'resolver'")
    resolvers = {
        (row.layer, row.head, frozenset((row.sense_a, row.sense_b)))
        for row in resolving.itertuples()
    }
    both = {(*general, frozenset((SENSES[1], sense))) for sense in (SENSES[0], THIRD)}
    assert resolvers == both | {(*single, frozenset((SENSES[0], THIRD)))}
    facts = page_text.facts(frames, WORD)
    assert facts["significant heads"].startswith("2 of ")
    for pairs in (1, 2):
        assert facts["resolvers"].count(f"({pairs} of 3 pairs)") == 1
    assert all(name_of(head) in facts["resolvers"] for head in circuit.head_indices)
    assert (resolving["read_depth"] > resolving["layer"]).all()


@by_seed
@pytest.mark.parametrize(
    "distances", mostly_campaign([((1,),), ((1, 1, 1, 2),), ((1, 2, 3, 4, 5),)]), ids=str
)
def test_a_head_that_looks_one_back_is_not_a_resolver(seed, distances):
    """If all cues are adjacent to the word, the verdict is undecided. With cues one to five tokens
    away, the head hardly separates the senses and moves the word fully.
    """
    model, circuit = planted_model("one_back", seed)
    bare = without(make_sentences(cues=18, distances=distances), "frame", "pair", "distance")
    frames = frames_of(model, bare, seed)
    assert frames["words"]["ranked"].item() and "resolver" not in set(frames["heads"]["verdict"])
    reasons = with_reasons(frames["verdicts"], frames["heads"], frames["words"])
    verdict = reasons.set_index(["layer", "head"]).loc[circuit.head_indices[0]]
    assert verdict["verdict"] == "position-explained"
    assert ("cannot be told" in verdict["because"]) == (distances == (1,))
    assert page_text.facts(frames, WORD)["significant heads"].startswith("0 of ")
