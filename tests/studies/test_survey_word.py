"""One word of a survey, compared with plain code, hand-built models and identities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import change_tensors
from handmade import (
    CUES,
    NOUNS,
    SENSES,
    TO_BOS,
    TO_CUE,
    WORD,
    Head,
    make_handmade,
    make_sentences,
    resolver,
    resolver_encoder,
    resolver_model,
    write_vector,
)
from inside import (
    ALONE,
    LATE,
    MOST_PAIRS,
    NOT_APART,
    ONE_SENSE,
    REPEATED,
    SAMPLED,
    SURVEY,
    count_left_out,
    heads_in,
    measure_sets,
    measure_word,
    not_swapped,
    numbers_of,
    read_record,
    survey_word,
    write_record,
)
from measured import assert_same
from plain_survey import plain_word
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import probe
from probe import InputError
from probe.experiments.carried_sets import CARRIED_RANDOM, CARRIED_SIZES

WITHOUT_NOUNS = replace(SURVEY, nouns=())
FOUR = make_sentences(frames=1, distances=(1,), cues=2)  # two sentences per sense, as in RAW-C
MANY = make_sentences(frames=4, distances=(1, 2), cues=6)
PAIRS = len(MANY) // 2
BEYOND_THE_LIMIT = {not_swapped(PAIRS, MOST_PAIRS): PAIRS - MOST_PAIRS}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A model with one resolver and one head that reads the token before it, here and in Hugging
    Face's code."""
    folder = make_handmade(tmp_path_factory.mktemp("models") / "two", [resolver(0, 1)], seed=3)
    return probe.load(folder), AutoModelForCausalLM.from_pretrained(folder).eval()


def pairs_of(model, sentences, noun=None):
    """The token ids up to the word, or a noun in its place, of senses A and B of every pair."""
    by_pair = {}
    for sentence in sentences:
        text = sentence.text[: sentence.start] + (noun or WORD)
        ids = probe.tokenize(model, text).ids
        by_pair.setdefault(sentence.pair, {})[sentence.sense] = ids
    return [tuple(pair[sense] for sense in SENSES) for pair in by_pair.values()]


def test_a_word_with_two_sentences_per_sense_equals_plain_code(built):
    model, plain = built
    record = measure_word(model, FOUR, WITHOUT_NOUNS)
    numbers = numbers_of(record)
    _, layers, heads, depths = numbers.net.shape
    all_heads = [(layer, head) for layer in range(layers) for head in range(heads)]
    gap, net, _ = plain_word(plain, pairs_of(model, FOUR), model.config.d_head, all_heads)
    scale = np.abs(gap).max()
    np.testing.assert_allclose(numbers.gap, gap.mean(0), atol=1e-5 * scale)
    for layer, head in all_heads:
        mean = net[layer, head].mean(0)
        np.testing.assert_allclose(numbers.net[0, layer, head], mean, atol=1e-5 * scale)
    assert np.abs(numbers.net[0, 0, 1]).max() > 0.5 * scale  # the planted head moves the word
    assert (numbers.net[:, 1, :, :2] == 0).all()
    [senses] = record.senses
    assert senses.sizes["sentence_pair"] == 2
    assert record.measured["senses"]["sentences"].sizes["row"] == 4
    assert depths == layers + 1 and set(numbers.separation[1:]) == {1.0}


def test_nouns_that_replace_the_word_equal_plain_code(built):
    model, plain = built
    record = measure_word(model, FOUR)
    [nouns] = record.of_pairs("nouns")
    # Each of the two pairs is assigned one of the three nouns.
    names_of = nouns.noun.values.tolist()
    assert len(names_of) == 3 and set(names_of) <= set(NOUNS)
    assert len(set(nouns.noun_of.values)) == nouns.sizes["swap"] == 2
    assert not count_left_out(record)
    head = (0, 1)
    names = list(dict.fromkeys(row.pair for row in FOUR))
    shifts = []
    both = zip(nouns.pair_of.values, nouns.noun_of.values, strict=True)
    for swap, (number, noun) in enumerate(both):
        with_noun = pairs_of(model, FOUR, names_of[noun])
        gap, net, _ = plain_word(plain, with_noun, model.config.d_head, [head])
        pair = names.index(FOUR[record.senses[0].a.values[number]].pair)
        # Along the axis of the noun itself in the other pair.
        np.testing.assert_allclose(nouns.pair_gap[swap], gap[pair], atol=1e-5)
        shifts.append(net[head][pair])
        in_swap = nouns.moved[swap, heads_in(nouns).index(head), 0]
        assert in_swap.item() == pytest.approx(shifts[-1][-1], abs=1e-5)
    of_nouns = numbers_of(record).noun_net[0, *head]
    np.testing.assert_allclose(of_nouns, np.mean(shifts, axis=0), atol=1e-5)


def test_the_resolver_moves_the_gap_and_no_other_head_does():
    for make in (resolver_model, resolver_encoder):
        model, resolver_head = make(4)
        record = measure_word(model, MANY, WITHOUT_NOUNS)
        numbers = numbers_of(record)
        share = numbers.net[0, ..., -1] / numbers.gap[-1]
        assert share[resolver_head] == pytest.approx(1, abs=0.05)
        share[resolver_head] = 0
        [senses] = record.senses
        assert np.abs(share).max() < 0.05 and senses.sizes["sentence_pair"] == MOST_PAIRS
        assert count_left_out(record) == BEYOND_THE_LIMIT
        design = record.measured["senses"]["words"].split_design.item()
        assert design == "5 folds by cue word and frame"


@pytest.mark.campaign
@pytest.mark.parametrize("runs", [12, 40])
def test_numbers_are_unbiased_if_the_senses_are_shuffled(runs):
    """Without a sense, gap and net are 0 on average, because axes are fitted on other sentences."""
    model, _ = resolver_model(4)
    rng = np.random.default_rng(0)
    gap, net = [], []
    for seed in range(runs):
        cues = rng.permutation([CUES[sense][n] for sense in SENSES for n in range(6)])[:4]
        rows = []
        for number, cue in enumerate(cues):
            sense, pair = SENSES[number % 2], f"pair {number // 2}"
            text = f"they saw the {cue} {WORD} again"
            start, cue_start = text.index(f" {WORD} ") + 1, text.index(cue)
            row = {"word": WORD, "sense": sense, "text": text, "pair": pair, "start": start}
            row |= {"end": start + len(WORD), "cue_start": cue_start}
            rows.append(row | {"cue_end": cue_start + len(cue)})
        sentences = probe.read_sentences(rows).sentences
        numbers = numbers_of(measure_word(model, sentences, replace(WITHOUT_NOUNS, seed=seed)))
        gap.append(numbers.gap[-1])
        net.append(numbers.net[0, ..., -1])
    for values in (np.array(gap), np.array(net)[:, 0, 0], np.array(net).sum((1, 2))):
        assert abs(values.mean()) < 3 * values.std() / np.sqrt(len(values)) + 1e-9


def test_unusable_sentences_are_counted_with_their_reason():
    model, _ = resolver_model(4)

    def reason_of(sentences):
        record = measure_word(model, sentences)
        assert not record.measured
        return record.reason, count_left_out(record)

    late = make_sentences(frames=1, distances=(1,), cues=2, cue_after=True)
    assert reason_of(late) == (LATE, {LATE: 4})
    one_sense = [sentence for sentence in FOUR if sentence.sense == SENSES[0]]
    assert reason_of(one_sense) == (ONE_SENSE, {ONE_SENSE: 2})
    assert reason_of(FOUR[:3]) == (NOT_APART, {ALONE: 1, NOT_APART: 2})
    same_cue = [
        replace(row, pair=f"{row.pair} {number}") for number, row in enumerate(2 * FOUR[:2])
    ]
    assert reason_of(same_cue) == (NOT_APART, {REPEATED: 2, ALONE: 2})
    record = measure_word(model, [*MANY, late[0]])
    assert count_left_out(record) == {LATE: 1} | BEYOND_THE_LIMIT


def test_many_sentences_are_sampled_by_hash_with_both_members_of_a_pair(monkeypatch):
    monkeypatch.setattr(survey_word, "MOST_SENTENCES", 10)
    model, _ = resolver_model(4)
    sample = survey_word.sample_of(MANY)
    assert len(sample) == 20 and len({row.pair for row in sample}) == 10
    assert sample == survey_word.sample_of(sample) and set(sample) < set(MANY)
    assert set(survey_word.sample_of(MANY[::-1])) == set(sample)
    record = measure_word(model, MANY, WITHOUT_NOUNS)
    assert record.measured["senses"]["sentences"].sizes["row"] == 20
    assert count_left_out(record)[SAMPLED] == len(MANY) - 20


def test_the_pairs_of_three_senses_are_pooled():
    """Every two of the senses are measured without the third, and their pairs are pooled."""
    model, _ = resolver_model(4)
    third = [
        replace(row, sense="third", pair=f"{row.pair} third", cue_start=row.cue_start)
        for row in make_sentences(frames=4, distances=(1,), cues=6, seed=1)
        if row.sense == SENSES[0]
    ]
    record = measure_word(model, [*MANY, *third], WITHOUT_NOUNS)
    assert [each.sizes["sentence_pair"] for each in record.senses] == [MOST_PAIRS // 3] * 3
    gaps = np.concatenate([each.raw_gaps[:, : record.layers + 1] for each in record.senses])
    np.testing.assert_allclose(numbers_of(record).gap, gaps.mean(0), atol=1e-12)


def test_columns_of_the_file_that_are_the_same_for_the_word_are_kept():
    rows = [
        {"word": WORD, "sense": row.sense, "text": row.text, "kind": "homonym", "number": number}
        | {"relatedness": "1.5", "start": row.start, "end": row.end}
        for number, row in enumerate(FOUR)
    ]
    sentences = probe.read_sentences(rows).sentences
    assert sentences[1].more == (("kind", "homonym"), ("number", 1), ("relatedness", 1.5))
    assert probe.read_sentences(list(sentences)).sentences[1].more == sentences[1].more
    record = measure_word(resolver_model(4)[0], sentences, WITHOUT_NOUNS)
    assert (record.kind, record.columns) == ("homonym", {"relatedness": 1.5})
    assert dict(probe.lexicon.expand_natural("bank").sentences[0].more) == {"kind": "homonym"}


def test_a_truncated_record_is_refused(tmp_path):
    record = measure_word(resolver_model(4)[0], FOUR)
    first = write_record(tmp_path / "000001.word", record)
    second = write_record(tmp_path / "000000.word", replace(record, word="other"))
    assert write_record(tmp_path / "again", record).read_bytes() == first.read_bytes()
    read = [read_record(second), read_record(first)]
    assert [each.word for each in read] == ["other", WORD]
    assert_same(read[1], record)
    content = second.read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], b""):
        second.write_bytes(damaged)
        with pytest.raises(InputError) as error:
            read_record(second)
        assert str(error.value).endswith("). Run the same command again to create it.")


def test_the_set_of_the_planted_head_has_the_effect_of_all_heads():
    model, planted_head = resolver_model(4)
    layers, heads = model.config.n_layers, model.config.n_heads
    other_heads = [(layer, head) for layer in range(layers) for head in range(heads)]
    other_heads.remove(planted_head)
    sets = measure_sets(model, MANY, [planted_head, *other_heads], depth=layers)
    assert sets["size"].values.tolist() == [*CARRIED_SIZES]
    assert sets.random.shape == (4, CARRIED_RANDOM)
    np.testing.assert_allclose(sets.others / sets.whole, 1, atol=0.05)
    np.testing.assert_allclose(sets.own / sets.whole, 1, atol=0.05)
    assert (sets.random[0] / sets.whole < 0.05).all()  # another head of the same layer
    last = measure_sets(model, FOUR, [*other_heads, planted_head], depth=layers)
    np.testing.assert_allclose(last.others / last.whole, 0, atol=0.1)
    np.testing.assert_allclose(last.own / last.whole, 1, atol=0.1)


# --- heads for some of the words ------------------------------------------------------------------

A, B, C = (0, 1), (1, 0), (1, 3)


@pytest.fixture(scope="module")
def two_kinds_of_words(tmp_path_factory):
    """A model in which head A moves every second one of sixteen words, head B the other words and
    head C all of them, each by half of the total, and the survey of the words."""
    words = NOUNS[:16]
    ask_even, ask_odd = {"is_target": 8.0}, {"marker": 8.0}
    find = TO_CUE[1]
    gives = (({"sense": 1.0}, {"resolved": 3.0}),)
    heads = [
        Head(*A, ((ask_even, find), TO_BOS), gives),
        Head(*B, ((ask_odd, find), TO_BOS), gives),
        Head(*C, ((ask_even | ask_odd, find), TO_BOS), gives),
    ]
    folder = make_handmade(tmp_path_factory.mktemp("models") / "kinds", heads, seed=4)
    embedding = load_file(folder / "model.safetensors")["transformer.wte.weight"].clone()
    ids = probe.load(folder).tokenizer.convert_tokens_to_ids(list(words))
    for number, row in enumerate(ids):
        feature = ("is_target", "marker")[number % 2]
        embedding[row] += torch.tensor(write_vector({feature: 1.0}), dtype=embedding.dtype)
    change_tensors(folder, {"transformer.wte.weight": embedding})
    sentences = []
    for number, word in enumerate(words):
        for turn, row in enumerate(FOUR):
            # Words have different cues: with the same cues for all, words would not be a sample.
            cue = CUES[row.sense][2 * number + turn // 2]
            before = row.text[: row.start].replace(row.cue, cue)
            start = len(before)
            spans = {"start": start, "end": start + len(word)}
            spans |= {"cue_start": before.index(cue), "cue_end": before.index(cue) + len(cue)}
            text = before + word + row.text[row.end :]
            sentences.append(replace(row, word=word, text=text, **spans))
    return probe.survey(folder, sentences=sentences, controls=())


def test_heads_for_half_of_the_words_differ_between_words_and_one_for_all_does_not(
    two_kinds_of_words,
):
    depth = two_kinds_of_words.depth
    for number, record in enumerate(two_kinds_of_words.records()):
        numbers = numbers_of(record)
        of_gap = numbers.net[0, ..., depth] / numbers.gap[depth]
        active, inactive = ((A, B), (B, A))[number % 2]
        assert of_gap[active] == pytest.approx(0.5, abs=0.05)
        assert of_gap[C] == pytest.approx(0.5, abs=0.05)
        assert of_gap[inactive] == pytest.approx(0, abs=0.02)
    heads = two_kinds_of_words.frames["survey_heads"].set_index(["layer", "head"])
    assert heads.loc[[A, B], "between_words"].between(0.2, 0.3).all()  # 0 and 1/2 of the gap
    assert heads.loc[C, "between_words"] < 0.03
    assert heads.loc[C, "effect"] == pytest.approx(0.5, abs=0.03)
    assert heads.loc[[A, B], "effect"].tolist() == pytest.approx([0.25, 0.25], abs=0.03)
    other_heads = heads.drop([A, B, C])
    assert other_heads["effect"].abs().max() < 0.02
    # C is found without each word.
    carry_over = two_kinds_of_words.frames["survey_carry_over"].set_index("k")
    assert carry_over.loc[1, "others"] == pytest.approx(0.5, abs=0.05)
    assert carry_over.loc[1, "random_high"] < 0.4 and carry_over.loc[1, "own"] >= 0.45
