"""tiny-translator as it ships: the French of its grammar, the exclusions of its training text, and
its accuracy."""

import re
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from shipping import require_two_steps_make
from training.translator import card, train
from training.translator.evaluate import (
    Question,
    Results,
    evaluate,
    is_right,
    overall,
    questions,
    translate,
)
from training.translator.french import Noun, agree, contract, describe, determine
from training.translator.hiding import HIDDEN, HIDING, hide
from training.translator.parallel import Pair, fill, frame_windows, ordinary, plans, topics, units
from training.translator.train import batches, step_loss
from training.withheld import allowed, echoes, held_out
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from probe.model.find import EMBEDDED_FOLDER
from probe.text import lexicon

pytestmark = pytest.mark.real_model

FOLDER = EMBEDDED_FOLDER / "tiny-translator"
FRENCH = ("rive", "banque", "taupe", "mole", "grain de beauté", "pomme", "Apple")
ENGLISH = ("bank", "mole", "apple")


@cache
def sample() -> tuple[Pair, ...]:
    return tuple(units(12_000, seed=31))


@cache
def shipped() -> tuple[BartForConditionalGeneration, PreTrainedTokenizerFast]:
    return AutoModelForSeq2SeqLM.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(
        FOLDER
    )


@cache
def results() -> Results:
    return evaluate(*shipped())


def holds(text: str, words: str) -> bool:
    return re.search(rf"\b{words}\b", text, re.IGNORECASE) is not None


def adjective(name: str) -> list[str]:
    return next(row[1:] for row in (*ordinary()["before"], *ordinary()["after"]) if row[0] == name)


def determiner(name: str) -> list[str]:
    return next(row[1:] for row in ordinary()["determiners"] if row[0] == name)


@pytest.mark.parametrize(
    ("det", "before", "noun", "after", "french"),
    [
        ("the", None, Noun("bank", "rive", "f"), None, "la rive"),
        ("the", "old", Noun("bank", "banque", "f"), "red", "la vieille banque rouge"),
        ("this", None, Noun("pond", "étang", "m"), None, "cet étang"),
        ("this", "old", Noun("pond", "étang", "m"), None, "ce vieil étang"),
        ("this", "old", Noun("lake", "lac", "m"), "white", "ce vieux lac blanc"),
        ("a", "beautiful", Noun("tree", "arbre", "m"), "grey", "un bel arbre gris"),
        ("a", "beautiful", Noun("island", "île", "f"), "grey", "une belle île grise"),
        ("my", None, Noun("shoulder", "épaule", "f"), None, "mon épaule"),
        ("my", "big", Noun("shoulder", "épaule", "f"), None, "ma grande épaule"),
        ("my", None, Noun("mole", "taupe", "f"), "black", "ma taupe noire"),
        ("her", None, Noun("mole", "grain de beauté", "m"), "black", "son grain de beauté noir"),
        ("the", None, Noun("hydrogen", "hydrogène", "m"), None, "l'hydrogène"),
        ("the", "new", Noun("hydrogen", "hydrogène", "m"), None, "le nouvel hydrogène"),
        ("the", None, Noun("hedgehog", "hérisson", "m"), None, "le hérisson"),
        ("her", None, Noun("hedge", "haie", "f"), None, "sa haie"),
        ("another", "new", Noun("heron", "héron", "m"), None, "un autre nouveau héron"),
        ("another", None, Noun("apple", "pomme", "f"), "round", "une autre pomme ronde"),
        ("our", "first", Noun("school", "école", "f"), None, "notre première école"),
    ],
)
def test_noun_phrases_agree(
    det: str, before: str | None, noun: Noun, after: str | None, french: str
) -> None:
    phrase = describe(
        noun, adjective(before) if before else None, adjective(after) if after else None
    )
    assert determine(determiner(det), noun.gender, phrase) == french


@pytest.mark.parametrize(
    ("text", "french"),
    [
        ("près de le lac", "près du lac"),
        ("près de la rive", "près de la rive"),
        ("loin de l'étang", "loin de l'étang"),
        ("de le hérisson à le médecin", "du hérisson au médecin"),
        ("de un arbre", "d'un arbre"),
        ("de Apple", "d'Apple"),
        (
            "parce que elle a dit que il a vu que la table",
            "parce qu'elle a dit qu'il a vu que la table",
        ),
        ("de héron", "de héron"),
        ("de hydrogène", "d'hydrogène"),
        ("le mot que Emma a lu", "le mot qu'Emma a lu"),
    ],
)
def test_prepositions_contract_and_small_words_elide(text: str, french: str) -> None:
    assert contract(text) == french


NEAR = ("{the:W} was {small:W} near {the:C}", "{the:W} était {small:W} près de {the:C}")
WHERE = ("where is {a:C}? {it:C} is {white:C}", "où est {a:C} ? {it:C} est {white:C}")
WHICH = ("is it {bare:C} or is it {bare:W}", "est-ce {bare:C} ou est-ce {bare:W} ?")


@pytest.mark.parametrize(
    ("plan", "word", "cue", "en", "fr"),
    [
        (NEAR, Noun("mole", "grain de beauté", "m"), Noun("doctor", "médecin", "m", "he"),
         "The mole was small near the doctor.", "Le grain de beauté était petit près du médecin."),
        (NEAR, Noun("mole", "taupe", "f"), Noun("hedgehog", "hérisson", "m"),
         "The mole was small near the hedgehog.", "La taupe était petite près du hérisson."),
        (WHERE, Noun("bank", "rive", "f"), Noun("orange", "orange", "f"),
         "Where is an orange? It is white.", "Où est une orange ? Elle est blanche."),
        (WHICH, Noun("apple", "Apple", "f"), Noun("phone", "téléphone", "m"),
         "Is it phone or is it apple?", "Est-ce téléphone ou est-ce Apple ?"),
    ],
)  # fmt: skip
def test_plans_are_filled_in_the_same_way_in_both_languages(
    plan: tuple[str, str], word: Noun, cue: Noun, en: str, fr: str
) -> None:
    pair = fill(plan, {"W": word, "C": cue}, (), Random(0))
    assert (pair.en, pair.fr) == (en, fr)


def test_predicates_agree() -> None:
    (skin,) = (topic for topic in topics() if topic.sense == "skin")
    (animal,) = (topic for topic in topics() if topic.sense == "animal")
    forms = ["était bénin", "était bénigne"]
    assert [agree(forms, noun.gender) for noun in (skin.word, animal.word)] == forms
    for topic in topics():
        assert all(len(row) in (2, 3) for row in topic.does)
        for seed in range(12):
            pair = fill(
                ("{the:W} {does:W}", "{the:W} {does:W}"),
                {"W": topic.word},
                topic.does,
                Random(seed),
            )
            feminine = {row[2] for row in topic.does if len(row) == 3 and row[2] != row[1]}
            assert any(pair.fr[:-1].endswith(form) for form in feminine) <= (
                topic.word.gender == "f"
            )


@pytest.mark.campaign
def test_the_french_of_all_texts_is_elided_and_contracted() -> None:
    french = "\n".join(pair.fr for pair in sample())
    assert not re.findall(r"\b(?:de|à) les?\b|\bd'(?:le|la|les)\b", french)
    aspirated = "h(?:aie|éron|érisson)"
    assert not re.findall(
        rf"(?<!-)\b(?:le|la|de|que|ce|ma|sa) (?!{aspirated})[aeéiouyhêîœ]\w*", french
    )
    assert not re.findall(
        rf"\b(?:l'|d'|qu'|cet |vieil |bel |nouvel )(?:{aspirated}|[bcdfgjklmnpqrstvwxz])\w*", french
    )
    assert not re.findall(r"[{}]|  | ,|^\W", french)


def test_senses_and_cues_are_taken_from_the_lexicon() -> None:
    assert {topic.name for topic in topics()} == set(ENGLISH)
    for topic in topics():
        (sense,) = (item for item in lexicon.entry(topic.name).senses if item.name == topic.sense)
        assert tuple(cue.en for cue in topic.cues) == sense.cues
        assert (
            len(topic.cues) - len(topic.seen_cues)
            == len(held_out(topic.name, topic.sense))
            in (2, 3)
        )
    nouns = [noun for topic in topics() for noun in (*topic.cues, *topic.kin)]
    nouns += [Noun(*row) for row in ordinary()["nouns"]]
    assert len({noun.en for noun in nouns}) == len({noun.fr for noun in nouns}) == len(nouns)


def test_every_text_has_one_translation() -> None:
    translations: dict[str, set[str]] = {}
    for pair in sample():
        if not any(holds(pair.en, word) for word in ENGLISH):
            translations.setdefault(pair.en, set()).add(pair.fr)
    assert [en for en, fr in translations.items() if len(fr) > 1] == []


def test_no_cue_is_named_twice_in_a_text() -> None:
    nouns = [noun.en for topic in topics() for noun in (*topic.cues, *topic.kin)]
    counted = [
        (pair.en, re.findall(rf"\b(?:{'|'.join(nouns)})\b", pair.en.lower())) for pair in sample()
    ]
    assert [en for en, cues in counted if len(cues) > len(set(cues))] == []


def test_held_out_cues_never_meet_an_ambiguous_word_in_either_language() -> None:
    held_out_cues = [cue for topic in topics() for cue in topic.cues if cue not in topic.seen_cues]
    english, french = (
        f"(?:{'|'.join(getattr(cue, side) for cue in held_out_cues)})" for side in ("en", "fr")
    )
    met = [
        pair
        for pair in sample()
        if any(holds(pair.en, word) for word in ENGLISH) and holds(pair.en, english)
    ]
    met += [
        pair
        for pair in sample()
        if any(holds(pair.fr, word) for word in FRENCH) and holds(pair.fr, french)
    ]
    assert met == []
    plain = [pair for pair in sample() if pair.hidable]
    assert not [pair for pair in plain if any(holds(pair.fr, word) for word in FRENCH)]
    assert all(sum(holds(pair.en, cue.en) for pair in plain) >= 20 for cue in held_out_cues)


def test_no_text_resembles_a_frame() -> None:
    assert [
        pair for pair in sample() if not allowed(pair.en) or echoes(pair.en, frame_windows())
    ] == []
    assert not {pair.en for pair in sample()} & {question.text.en for question in questions()}
    long_enough = [
        question
        for question in questions()
        if len(re.findall(r"[a-z]+", question.text.en.lower())) >= 7
    ]
    assert len(long_enough) > 1000 and all(
        echoes(question.text.en, frame_windows()) for question in long_enough
    )


def test_the_words_of_the_frames_occur_in_training() -> None:
    for side in ("en", "fr"):
        met = {
            word for pair in sample() for word in re.findall(r"\w+", getattr(pair, side).lower())
        }
        frame_words = {
            word
            for question in questions()
            for word in re.findall(r"\w+", getattr(question.text, side).lower())
        }
        assert sorted(frame_words - met) == []


def test_cues_occur_on_both_sides_of_the_word_in_training_and_in_the_frames() -> None:
    for texts in (sample(), [question.text for question in questions()]):
        n_before = n_after = 0
        for pair in texts:
            at = re.search(r"\b(?:bank|mole|apple)\b", pair.en, re.IGNORECASE)
            if at:
                cues = {
                    cue.en
                    for topic in topics()
                    if topic.name == at[0].lower()
                    for cue in topic.cues
                }
                n_before += bool(cues & set(re.findall(r"\w+", pair.en[: at.start()])))
                n_after += bool(cues & set(re.findall(r"\w+", pair.en[at.end() :])))
        assert min(n_before, n_after) > 0.25 * (n_before + n_after)


def test_right_and_wrong_translations_are_distinguished() -> None:
    (question,) = (
        q
        for q in questions()
        if q.sense == "skin" and q.cue == "cheek" and q.text.en.startswith("My sister")
    )
    assert question.text.fr == "Ma sœur a peint le grain de beauté et mon frère a peint la joue."
    assert is_right(question.text.fr, question)
    assert not is_right("Ma sœur a peint la taupe et mon frère a peint la joue.", question)
    assert not is_right("Ma sœur a peint la mole et le grain de beauté.", question)
    assert not is_right("Ma sœur a peint la joue.", question)
    fruit = Question(Pair("apple", "pomme"), "apple", "fruit", "pear", False, "pomme", ("Apple",))
    assert (
        is_right("Pomme.", fruit) and not is_right("pommes", fruit) and not is_right("apple", fruit)
    )


def test_every_word_of_the_grammar_is_one_token_and_offsets_fit() -> None:
    tokenizer = shipped()[1]
    for question in questions()[::7]:
        for text in (question.text.en, question.text.fr):
            encoded = tokenizer(text, return_offsets_mapping=True)
            words = [text[a:b].strip() for a, b in encoded.offset_mapping[:-1]]
            assert words == re.findall(r"\w+|[^\w\s]", text)
            assert encoded.tokens()[-1] == "[EOS]"
            assert tokenizer.decode(encoded.input_ids, skip_special_tokens=True) == text


@pytest.mark.campaign
def test_words_are_translated_by_their_sense() -> None:
    familiar, unfamiliar = overall(results().senses)
    assert familiar >= 0.98 and unfamiliar >= 0.97
    assert [score for score in results().senses if min(score.on_seen, score.held_out) < 0.9] == []
    assert results().tokens >= 0.95 and results().sentences >= 0.9
    assert (
        sum(score.n_seen + score.n_held_out for score in results().senses)
        == len(questions())
        > 1000
    )


@pytest.mark.campaign
def test_the_card_reports_the_measured_accuracy() -> None:
    text = (FOLDER / "card.md").read_text("utf-8")
    assert f"{shipped()[0].num_parameters():,} parameters" in text
    assert card.table(results().senses) in text and card.examples(results().examples) in text
    assert f"Correct tokens at their position: {100 * results().tokens:.1f} %." in text
    assert f"Correct whole sentences: {100 * results().sentences:.1f} %." in text


def test_translation_equals_greedy_generation_by_transformers() -> None:
    model, tokenizer = shipped()
    texts = [question.text.en for question in questions()[::200]]
    for text, ids in zip(texts, translate(model, tokenizer, texts), strict=True):
        source = tokenizer(text, return_tensors="pt")
        out = model.generate(
            source.input_ids,
            attention_mask=source.attention_mask,
            num_beams=1,
            do_sample=False,
            max_new_tokens=48,
        )
        assert out[0].tolist() == [tokenizer.bos_token_id, *ids, tokenizer.eos_token_id]


@pytest.mark.campaign
def test_masking_leaves_the_end_mark_and_sentences_with_an_ambiguous_word_unchanged() -> None:
    tokenizer = shipped()[1]
    ids = list(range(10, 30)) + [tokenizer.eos_token_id]
    rows = [hide(ids, tokenizer, Random(seed)) for seed in range(500)]
    assert all(row[-1] == tokenizer.eos_token_id and len(row) == len(ids) for row in rows)
    touched = [row for row in rows if tokenizer.mask_token_id in row]
    assert len(touched) / len(rows) == pytest.approx(HIDING, abs=0.07)
    hidden = sum(row.count(tokenizer.mask_token_id) for row in touched)
    assert hidden / len(touched) / 20 == pytest.approx(HIDDEN, abs=0.03)
    batches_of_rows = batches(tokenizer, seed=5)
    for source, target in (row for _ in range(20) for row in next(batches_of_rows)):
        if tokenizer.mask_token_id in source:
            assert not any(holds(tokenizer.decode(target), word) for word in FRENCH)


def test_padding_changes_no_loss() -> None:
    model, tokenizer = shipped()
    rows = [
        (tokenizer(en).input_ids, tokenizer(fr).input_ids)
        for en, fr in (("We sang.", "Nous avons chanté."),)
    ]
    long = [
        (tokenizer(q.text.en).input_ids, tokenizer(q.text.fr).input_ids) for q in questions()[:1]
    ]
    with torch.no_grad():
        short_loss, long_loss, both = (
            step_loss(model, batch).item() for batch in (rows, long, rows + long)
        )
    counts = len(rows[0][1]), len(long[0][1])
    assert both == pytest.approx(
        (short_loss * counts[0] + long_loss * counts[1]) / sum(counts), abs=1e-5
    )


def test_every_frame_has_both_slots_in_both_languages() -> None:
    for rows in plans("frames.toml").values():
        for plan in rows:
            assert all({"C", "W"} <= set(re.findall(r":(\w)\}", text)) for text in plan)


@pytest.mark.campaign
def test_two_training_steps_write_a_folder_that_loads(tmp_path: Path) -> None:
    require_two_steps_make(FOLDER, train, AutoModelForSeq2SeqLM, tmp_path / "made", results())
