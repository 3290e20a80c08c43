"""The embedded model as it ships: its files, loading, and its accuracy."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shipping import require_two_steps_make
from training import cards, grammar, wordpieces
from training.causal import train
from training.causal.evaluate import evaluate, resid_at_end
from training.causal.train import N_CTX, step_loss
from training.scoring import Answer, Score, best_depth, overall, points
from training.templates import tables
from training.withheld import plural
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from probe.model.find import EMBEDDED_FOLDER
from probe.text import lexicon

pytestmark = pytest.mark.real_model

FOLDER = EMBEDDED_FOLDER / "tiny-senses"


@cache
def shipped() -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(
        FOLDER
    )


@cache
def results() -> tuple[tuple[Score, ...], tuple[Answer, ...]]:
    return evaluate(*shipped())


def next_token(text: str) -> dict[str, float]:
    """The probability of every next token by its text."""
    model, tokenizer = shipped()
    with torch.no_grad():
        logits = model(torch.tensor([[tokenizer.bos_token_id, *tokenizer(text).input_ids]])).logits[
            0, -1
        ]
    return dict(
        zip(
            tokenizer.convert_ids_to_tokens(range(len(tokenizer))),
            logits.softmax(-1).tolist(),
            strict=True,
        )
    )


def test_words_cues_continuations_and_frame_words_are_single_tokens() -> None:
    tokenizer = shipped()[1]
    texts = [f" {form}" for word in lexicon.words() for form in (word, plural(word))]
    for word in lexicon.words():
        for sense in lexicon.entry(word).senses:
            texts += [*(f" {cue}" for cue in sense.cues), *sense.continuations]
        for frame in lexicon.entry(word).frames:
            for text in frame.versions.values():
                texts += [
                    f" {plain}"
                    for plain in re.findall(r"(?<= )[A-Za-z]+", re.sub(r"\{\w+\}", "", text))
                ]
    texts += [
        " Apple",
        *(
            f" {word}"
            for row in lexicon.showcase()
            for word in row.text.split()[1:]
            if word.isalpha()
        ),
    ]
    assert sorted({text for text in texts if len(tokenizer(text).input_ids) != 1}) == []


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    tokenizer = shipped()[1]
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_begin_end_and_unknown_are_one_token() -> None:
    model, tokenizer = shipped()
    assert tokenizer.bos_token == tokenizer.eos_token == tokenizer.unk_token == "<|endoftext|>"
    assert tokenizer.bos_token_id == model.config.bos_token_id == model.config.eos_token_id


def test_offsets_are_gpt2s() -> None:
    """As with GPT-2's tokenizer, a token's span includes its leading space, and the spans tile the
    text."""
    text = "The river bank, où 'apples' grow"
    encoded = shipped()[1](text, return_offsets_mapping=True)
    spans = [span for span in encoded.offset_mapping]
    assert [text[a:b] for a, b in spans[:4]] == ["The", " river", " bank", ","]
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    assert all(start <= before for (_, before), (start, _) in pairwise(spans))


@pytest.mark.campaign
def test_senses_are_distinguished_at_the_word() -> None:
    scores, _ = results()
    familiar, held_out = overall(scores)
    assert familiar >= 0.98 and held_out >= 0.93
    assert {
        score.word: (score.on_seen, score.held_out)
        for score in scores
        if min(score.on_seen, score.held_out) < 0.9
    } == {}
    assert all(score.n_seen >= 300 and score.n_held_out >= 100 for score in scores)


@pytest.mark.campaign
def test_accuracy_is_at_chance_before_the_first_attention_layer() -> None:
    for score in results()[0]:
        assert score.embedding == pytest.approx(1 / score.senses, abs=1e-9)


@pytest.mark.campaign
def test_showcase_sentences_with_the_cue_first_are_classified_correctly() -> None:
    answers = [row for row in results()[1] if not row.cue_after]
    assert len(answers) >= 6
    assert [row for row in answers if row.answer != row.sense] == []


@pytest.mark.campaign
def test_the_card_reports_the_measured_accuracy() -> None:
    text = (FOLDER / "card.md").read_text("utf-8")
    parameters = sum(p.numel() for p in shipped()[0].parameters())
    assert f"{parameters:,} parameters" in text
    for table in (text, cards.table(results()[0])):
        rows = dict(re.findall(r"^\| (\w+) \| \d \| ([\d.]+ \| [\d.]+) \|", table, re.MULTILINE))
        assert rows.keys() == set(lexicon.words())
        for score in results()[0]:
            measured = (100 * score.on_seen, 100 * score.held_out)
            assert tuple(map(float, rows[score.word].split("|"))) == pytest.approx(
                measured, abs=0.6
            )
    for row in results()[1]:
        assert f"| {row.text[: row.end]} | {row.sense} | {row.answer} |" in text


@pytest.mark.campaign
def test_every_position_is_trained_and_the_first_are_the_best() -> None:
    model, tokenizer = shipped()
    end = tokenizer.bos_token_id
    rows = [[end, *ids, end] for ids in tokenizer(list(grammar.units(200, seed=77))).input_ids]
    longest = max(map(len, rows))
    with torch.no_grad():
        start, *later = (step_loss(model, rows, at).item() for at in (0, 60, 120, N_CTX - longest))
    assert max(later) < start + 0.1
    assert start < min(later) + 0.02


def test_adjectives_are_repeated() -> None:
    """When a noun is described again, its adjectives are more likely than other adjectives
    that the text could have."""
    rng, slots, ratios = Random(1), tables(), []
    for _ in range(40):
        first, second, third, another = rng.sample(sorted(set(slots["look"])), 4)
        noun, land = rng.choice(slots["being"]), rng.choice(slots["land"])
        mine = next_token(f"The {first} {second} {noun} crossed the misty {land}. The {noun} was")
        theirs = next_token(
            f"The {third} {another} {noun} crossed the misty {land}. The {noun} was"
        )
        before, otherwise = (
            sum(probabilities[f"Ġ{look}"] for look in (first, second))
            for probabilities in (mine, theirs)
        )
        ratios.append(before / otherwise)
    assert sum(ratio > 1 for ratio in ratios) >= 36, ratios
    assert sorted(ratios)[len(ratios) // 2] > 4


def test_pronouns_agree_with_masculine_and_feminine_nouns() -> None:
    for he, she in (
        ("king", "queen"),
        ("man", "woman"),
        ("actor", "actress"),
        ("uncle", "aunt"),
        ("monk", "nun"),
    ):
        masculine, feminine = (next_token(f"The {noun} cried because") for noun in (he, she))
        assert (
            masculine["Ġhe"] > 4 * masculine["Ġshe"] and feminine["Ġshe"] > 4 * feminine["Ġhe"]
        ), (he, she)


def test_a_description_predicts_the_name() -> None:
    for who in tables()["character"]:
        (first, second, *_), (first_part, second_part, *_), it = (
            who["trait"],
            who["has"],
            who["it"].capitalize(),
        )
        text = f"The {first}, {second} creature has {first_part} and {second_part}. {it} is the {who['kind']}"
        probabilities = next_token(text)
        names = [f"Ġ{character['name']}" for character in tables()["character"]]
        assert max(names, key=lambda name: probabilities.get(name, 0.0)) == f"Ġ{who['name']}", text


def test_points_share_ties_and_find_the_nearest_mean() -> None:
    resid = torch.tensor([[[1.0], [-1.0]], [[1.0], [1.0]], [[1.0], [-0.9]], [[1.0], [0.9]]])
    labels = torch.tensor([0, 1, 0, 1])
    fitted = torch.tensor([True, True, False, False])
    gained, margin = points(resid, labels, fitted, ~fitted)
    assert gained[:, 0].tolist() == [0.5, 0.5] and gained[:, 1].tolist() == [1.0, 1.0]
    assert margin[:, 0].abs().max() < 1e-6 and margin[:, 1].tolist() == pytest.approx(
        [0.9, 0.9], abs=0.06
    )
    relabelled = points(resid, 1 - labels, fitted, ~fitted)[0]
    assert torch.equal(relabelled, gained)
    wrong = points(resid[[0, 1, 3, 2]], labels, fitted, ~fitted)[0]
    assert wrong[:, 1].tolist() == [0.0, 0.0]


def test_best_depth_is_where_the_fitted_half_separates() -> None:
    labels = torch.tensor([0, 1] * 4)
    frames = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    resid = torch.zeros(8, 3, 2)
    resid[:, 1, 0] = torch.tensor([-1.0, 1.0] * 4)
    resid[:, 2, 0] = 0.1 * frames
    assert best_depth(resid, labels, frames, torch.ones(8, dtype=torch.bool)) == 1


def test_resid_at_end_is_the_stream_at_the_last_token() -> None:
    model, tokenizer = shipped()
    text = "The old ferry passed the bank"
    streams = resid_at_end(model, tokenizer, ["The bank", text])
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text).input_ids]])
    embedding = model.transformer.wte(ids[0, -1]) + model.transformer.wpe.weight[ids.shape[1] - 1]
    assert torch.equal(streams[1, 0], embedding)
    with torch.no_grad():
        states = model.transformer(ids, output_hidden_states=True).hidden_states
    assert torch.allclose(streams[1, 3], states[3][0, -1], atol=1e-5)
    assert torch.allclose(model.transformer.ln_f(streams[1, 4]), states[4][0, -1], atol=1e-5)


def test_the_vocabulary_has_the_requested_size_and_encodes_any_text() -> None:
    texts = ["Some words return.", "Some words do not return."]
    tokenizer = wordpieces.build(texts, size=2_000)
    assert len(tokenizer) <= 2_000
    assert len(tokenizer(" bank").input_ids) == 1
    assert tokenizer.decode(tokenizer("zyx Ω").input_ids) == "zyx Ω"


@pytest.mark.campaign
def test_two_training_steps_write_a_folder_that_loads(tmp_path: Path) -> None:
    require_two_steps_make(FOLDER, train, AutoModelForCausalLM, tmp_path / "made", results())


def test_types_are_counted_without_case_and_hyphens() -> None:
    assert cards.count_types(["A b-c d's", "a D's"]) == 3
