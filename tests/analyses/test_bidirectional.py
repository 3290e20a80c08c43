"""tiny-senses-bidirectional as it ships: its training text, loading, and its accuracy."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from shipping import require_two_steps_make
from training import training
from training.bidirectional import after, train
from training.bidirectional.card import examples
from training.bidirectional.evaluate import Results, evaluate, resid_at_word
from training.bidirectional.hiding import HIDDEN, OTHER, REPLACED, TOPICAL, hide, lists
from training.bidirectional.train import step_loss
from training.scoring import overall
from training.withheld import (
    allowed,
    echoes,
    held_out,
    held_out_cues,
    lexicon_windows,
    plural,
    windows,
)
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
)

from probe.model.find import EMBEDDED_FOLDER
from probe.text import lexicon

pytestmark = pytest.mark.real_model

FOLDER = EMBEDDED_FOLDER / "tiny-senses-bidirectional"
WORDS = ("apple", "bank", "mole")
FORMS = {form for word in lexicon.words() for form in (word, plural(word))}


@cache
def sample() -> tuple[str, ...]:
    return tuple(after.units(10_000, seed=21))


@cache
def shipped() -> tuple[BertForMaskedLM, PreTrainedTokenizerFast]:
    return AutoModelForMaskedLM.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(
        FOLDER
    )


@cache
def results() -> Results:
    return evaluate(*shipped(), WORDS)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


@pytest.mark.campaign
def test_held_out_cues_never_meet_an_ambiguous_word_on_either_side() -> None:
    held_out_forms = {form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es")}
    assert [
        text
        for text in sample()
        if FORMS & set(words_of(text)) and held_out_forms & set(words_of(text))
    ] == []


@pytest.mark.campaign
def test_no_text_resembles_a_frame() -> None:
    both = lexicon_windows() | after.frame_windows()
    assert [text for text in sample() if echoes(text, both) or not allowed(text)] == []
    rows = [row for word in WORDS for row in after.sentences(word)]
    assert all(echoes(row.text, after.frame_windows()) for row in rows)
    assert after.frame_windows() == windows(
        text for frame in lexicon.frames_behind() for text in frame.versions.values()
    )


def test_cues_after_the_word_are_as_frequent_as_cues_before_it() -> None:
    cues = {
        word: {cue for sense in lexicon.entry(word).senses for cue in sense.cues}
        for word in lexicon.words()
    }
    n_before = n_after = 0
    for text in sample():
        words = words_of(text)
        for at, word in enumerate(words):
            n_before += word in cues and bool(cues[word] & set(words[:at]))
            n_after += (
                word in cues
                and bool(cues[word] & set(words[at:]))
                and not cues[word] & set(words[:at])
            )
    assert n_after > 0.2 * len(sample())
    assert 0.5 < n_after / n_before < 2


def test_frames_put_the_cue_after_the_word_at_its_distance_and_give_no_hint_of_the_sense() -> None:
    for frame in lexicon.frames_behind():
        assert list(frame.versions) == [1, 2, 3, 4]
        for distance, text in frame.versions.items():
            between = re.fullmatch(r"[^{}]*\{word\}([^{}]*)\{cue\}[^{}]*", text)
            assert between, text
            steps = len(re.findall(r"\w+|[^\w\s]", between[1])) + 1
            assert steps == distance if distance < 4 else steps >= 4, text
    listed = {
        cue
        for word in lexicon.words()
        for sense in lexicon.entry(word).senses
        for cue in sense.cues
    }
    plain = {
        word
        for frame in lexicon.frames_behind()
        for text in frame.versions.values()
        for word in words_of(text)
    }
    assert not plain & listed
    met = Counter(word for text in sample() for word in words_of(text))
    assert sorted(word for word in plain - {"word", "cue"} if met[word] < 3) == []


def test_sentences_mark_word_and_cue_and_come_in_aligned_sets() -> None:
    for word in WORDS:
        rows = after.sentences(word)
        assert len(rows) == 8 * 4 * sum(len(sense.cues) for sense in lexicon.entry(word).senses)
        for row in rows:
            assert row.text[row.start : row.end] == word
            assert row.text[row.cue_start : row.cue_end] in {
                c for s in lexicon.entry(word).senses for c in s.cues
            }
            assert row.cue_start > row.end


def test_the_tokenizer_adds_special_tokens_and_returns_offsets() -> None:
    tokenizer = shipped()[1]
    text = "One mole of carbon dioxide"
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert encoded.tokens()[0] == "[CLS]" and encoded.tokens()[-1] == "[SEP]"
    assert [text[a:b] for a, b in encoded.offset_mapping[1:-1]] == [
        "One",
        " mole",
        " of",
        " carbon",
        " dioxide",
    ]
    assert tokenizer.decode(encoded.input_ids, skip_special_tokens=True) == text
    # The mask includes the space before it.
    hidden = [token.strip() for token in tokenizer("The old [MASK] was").tokens()]
    assert hidden == ["[CLS]", "The", "Ġold", "[MASK]", "Ġwas", "[SEP]"]
    padded = tokenizer(["Apple", text], padding=True)
    assert padded.attention_mask[0] == [1, 1, 1, 0, 0, 0, 0]


def test_words_cues_and_frame_words_are_single_tokens() -> None:
    tokenizer = shipped()[1]
    texts = [f" {form}" for form in FORMS]
    texts += [
        f" {cue}"
        for word in lexicon.words()
        for sense in lexicon.entry(word).senses
        for cue in sense.cues
    ]
    frames = [text for frame in lexicon.frames_behind() for text in frame.versions.values()]
    texts += [
        plain for text in frames for plain in re.findall(r" [a-z]+", re.sub(r"\{\w+\}", "", text))
    ]
    assert (
        sorted(
            {
                text
                for text in texts
                if len(tokenizer(text, add_special_tokens=False).input_ids) != 1
            }
        )
        == []
    )


@pytest.mark.campaign
def test_senses_are_distinguished_at_the_word_with_the_cue_on_either_side() -> None:
    """Three words, including mole with its four senses; all sixteen in the campaign below."""
    for scores in (results().before, results().behind):
        familiar, unfamiliar = overall(scores)
        assert familiar >= 0.95 and unfamiliar >= 0.87, scores
        assert all(score.n_seen >= 300 and score.n_held_out >= 100 for score in scores)


@pytest.mark.campaign
def test_accuracy_is_at_chance_before_the_first_attention_layer() -> None:
    for score in (*results().before, *results().behind):
        assert score.embedding == pytest.approx(1 / score.senses, abs=1e-9)


@pytest.mark.campaign
def test_sentences_whose_cue_follows_the_word_are_resolved_at_the_word() -> None:
    answers = {row.text: row for row in results().answers if row.cue_after}
    assert (
        answers["Apple unveiled a new smartphone model at their latest product launch event"].answer
        == "company"
    )
    assert answers["Please buy an apple and an orange from the grocery store"].answer == "fruit"
    assert answers["One mole of carbon dioxide"].answer == "unit"


def test_a_masked_word_is_predicted_from_its_topic_on_either_side() -> None:
    model, tokenizer = shipped()
    words = [tokenizer.convert_tokens_to_ids(f"Ġ{word}") for word in WORDS]
    topics = {"pear": "apple", "river": "bank", "loan": "bank", "cheek": "mole", "burrow": "mole"}
    for plan in ("We saw the {cue} near the [MASK].", "We saw the [MASK] near the {cue}."):
        for cue, word in topics.items():
            ids = tokenizer(plan.format(cue=cue), return_tensors="pt").input_ids
            with torch.no_grad():
                logits = model(ids).logits[0, ids[0].tolist().index(tokenizer.mask_token_id)]
            assert WORDS[int(logits[words].argmax())] == word, (plan, cue)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["before", "behind"])
def test_the_card_reports_the_measured_accuracy(kind: str) -> None:
    text = (FOLDER / "card.md").read_text("utf-8")
    assert f"{shipped()[0].num_parameters():,} parameters" in text
    titles = {"before": "Cue before the word", "behind": "Cue after the word"}
    part = text.partition(titles[kind])[2].partition("| **all** |")[0]
    rows = dict(re.findall(r"^\| (\w+) \| \d \| ([\d.]+ \| [\d.]+) \|", part, re.MULTILINE))
    assert rows.keys() == set(lexicon.words())
    for score in getattr(results(), kind):
        measured = (100 * score.on_seen, 100 * score.held_out)
        assert tuple(map(float, rows[score.word].split("|"))) == pytest.approx(measured, abs=0.6)
    assert all(line in text for line in examples(results().answers).splitlines())


@pytest.mark.campaign
def test_the_card_reports_the_measured_accuracy_for_every_word() -> None:
    all_results = evaluate(*shipped())
    text = (FOLDER / "card.md").read_text("utf-8")
    totals = [
        list(map(float, re.findall(r"\*\*([\d.]+)\*\*", line)))
        for line in text.splitlines()
        if "**all**" in line
    ]
    assert len(totals) == 2
    for row, scores in zip(totals, (all_results.before, all_results.behind), strict=True):
        assert row == pytest.approx([100 * share for share in overall(scores)], abs=0.3)
        assert row[0] >= 96 and row[1] >= 92
        weak = {s.word for s in scores if min(s.on_seen, s.held_out) < 0.85}
        assert weak <= {"mole", "bark"}  # mole has four senses; all others have two


def test_resid_at_word_is_the_stream_at_the_last_token_of_the_word() -> None:
    model, tokenizer = shipped()
    rows = [row for row in lexicon.showcase() if row.word in WORDS]
    streams = resid_at_word(model, tokenizer, rows)
    for row, resid in zip(rows, streams, strict=True):
        encoded = tokenizer(row.text, return_tensors="pt")
        at = encoded.char_to_token(row.end - 1)
        with torch.no_grad():
            states = model(**encoded, output_hidden_states=True).hidden_states
        assert torch.allclose(resid, torch.stack([state[0, at] for state in states]), atol=1e-5)


@pytest.mark.campaign
def test_masking_prefers_topical_words_and_leaves_other_tokens_unchanged() -> None:
    tokenizer = shipped()[1]
    vocabulary = lists(tokenizer)
    texts = list(after.units(4000, seed=77))
    ids = training.padded(tokenizer(texts).input_ids, tokenizer.pad_token_id)
    inputs, is_target = hide(ids, tokenizer, vocabulary, torch.Generator().manual_seed(0))
    plain = ids >= len(tokenizer.all_special_ids)
    assert not is_target[~plain].any() and torch.equal(inputs[~is_target], ids[~is_target])
    topical = torch.isin(ids, vocabulary.topical)
    assert is_target[topical].float().mean().item() == pytest.approx(TOPICAL, abs=0.02)
    assert is_target[plain & ~topical].float().mean().item() == pytest.approx(OTHER, abs=0.02)
    assert (inputs[is_target] == tokenizer.mask_token_id).float().mean().item() == pytest.approx(
        HIDDEN, abs=0.02
    )
    assert (inputs[is_target] != ids[is_target]).float().mean().item() == pytest.approx(
        HIDDEN + REPLACED, abs=0.03
    )
    assert 0.1 < topical[plain].float().mean() < 0.6


@pytest.mark.campaign
def test_masking_puts_no_ambiguous_word_next_to_a_held_out_cue() -> None:
    tokenizer = shipped()[1]
    vocabulary = lists(tokenizer)
    assert {f"Ġ{word}" for word in lexicon.words()} == set(
        tokenizer.convert_ids_to_tokens(vocabulary.ambiguous.tolist())
    )
    ids = training.padded(
        tokenizer(list(after.units(4000, seed=78))).input_ids, tokenizer.pad_token_id
    )
    inputs, _ = hide(ids, tokenizer, vocabulary, torch.Generator().manual_seed(0))
    added = inputs != ids
    assert not torch.isin(inputs[added], vocabulary.held_out).any()
    apart = torch.isin(ids, vocabulary.held_out).any(1)
    assert 0.03 < apart.float().mean() < 0.1
    assert not torch.isin(inputs[apart], vocabulary.ambiguous).any()
    assert torch.isin(inputs[added], vocabulary.ambiguous).sum() > 2000


def test_lists_contain_whole_words_and_no_parts_of_others() -> None:
    tokenizer = shipped()[1]
    vocabulary = lists(tokenizer)
    tokens = {
        name: set(tokenizer.convert_ids_to_tokens(getattr(vocabulary, name).tolist()))
        for name in vars(vocabulary)
    }
    forms = {f"Ġ{form}" for cue in held_out_cues() for form in (cue, f"{cue}s", f"{cue}es")}
    assert (
        tokens["held_out"] <= forms and {f"Ġ{cue}" for cue in held_out_cues()} <= tokens["held_out"]
    )
    assert all(word.startswith("Ġ") for word in tokens["topical"])
    assert {"Ġsmartphone", "Ġunveiled", "Ġbank", "Ġriver", "Ġlaunch"} <= tokens["topical"]
    assert not {"Ġthe", "Ġnew", "Ġin", "Ġst"} & tokens["topical"]


def test_padding_changes_no_loss() -> None:
    model, tokenizer = shipped()
    ids = tokenizer("The old ferry passed the muddy bank near the willow.").input_ids
    longer = tokenizer(
        "She asked about the loan, the mortgage, the deposit and then about the bank."
    ).input_ids
    vocabulary = lists(tokenizer)
    mask = torch.tensor([[1] * len(ids) + [0] * (len(longer) - len(ids))])
    filled = torch.tensor([ids + [tokenizer.pad_token_id] * (len(longer) - len(ids))])
    with torch.no_grad():
        unpadded, padded = (
            model(torch.tensor([ids])).logits,
            model(filled, attention_mask=mask).logits,
        )
        dice = (torch.Generator().manual_seed(1) for _ in range(2))
        losses = [
            step_loss(model, tokenizer, [ids, longer], vocabulary=vocabulary, dice=each)
            for each in dice
        ]
    assert torch.allclose(unpadded[0], padded[0, : len(ids)], atol=1e-4)
    assert torch.equal(*losses)


@pytest.mark.campaign
def test_two_training_steps_write_a_folder_that_loads(tmp_path: Path) -> None:
    require_two_steps_make(FOLDER, train, AutoModelForMaskedLM, tmp_path / "made", results())


def test_a_fifth_of_the_cues_of_a_sense_is_held_out() -> None:
    for word in WORDS:
        for sense in lexicon.entry(word).senses:
            assert 2 <= len(held_out(word, sense.name)) <= 3
