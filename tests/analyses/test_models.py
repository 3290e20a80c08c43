"""The models that ship: their files, what their training text must never contain, their accuracy,
and the French of the translator's grammar."""

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from random import Random
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
import transformers
from inside import EMBEDDED_FOLDER
from safetensors.torch import load_file
from shipping import require_complete, require_two_steps_make
from training import grammar, training
from training.bidirectional import after, card
from training.bidirectional import evaluate as of_bidirectional
from training.bidirectional import train as bidirectional
from training.bidirectional.hiding import hide, lists
from training.causal import evaluate as of_causal
from training.causal import train as causal
from training.scoring import best_depth, overall, points
from training.translator import card as translator_card
from training.translator import evaluate as of_translator
from training.translator import parallel
from training.translator import train as translator
from training.translator.evaluate import Question, is_right, questions
from training.translator.french import Noun, contract, describe, determine
from training.withheld import allowed, echoes, held_out, held_out_cues, lexicon_windows, plural
from transformers import AutoTokenizer

from probe import lexicon

ATTENTION, NORM = 4 * (128 * 128 + 128), 2 * 128
BLOCK = ATTENTION + 2 * 128 * 256 + 256 + 128 + 2 * NORM
FORMS = {form for word in lexicon.words() for form in (word, plural(word))}
TRANSLATED = ("bank", "mole", "apple")
FRENCH = ("rive", "banque", "taupe", "mole", "grain de beauté", "pomme", "Apple")


class Shipped(NamedTuple):
    """A model that ships.

    parameters: their number, by hand, for a vocabulary of that size
    units: its training text, of which two seeds share fewer than `alike` texts in 200
    """

    name: str
    auto_name: str
    architecture: str
    parameters: Callable[[int], int]
    train: ModuleType
    units: Callable
    alike: int

    @property
    def folder(self):
        return EMBEDDED_FOLDER / self.name

    @property
    def auto(self):
        return getattr(transformers, self.auto_name)

    @property
    def card(self):
        return (self.folder / "card.md").read_text("utf-8")


CAUSAL = Shipped(
    *("tiny-senses", "AutoModelForCausalLM", "GPT2LMHeadModel"),
    lambda vocabulary: (vocabulary + 256) * 128 + 4 * BLOCK + NORM,
    *(causal, grammar.units, 10),
)
# Tokens, positions and segments with a norm; blocks; a transform with a norm, and a bias for each
# token.
BIDIRECTIONAL = Shipped(
    *("tiny-senses-bidirectional", "AutoModelForMaskedLM", "BertForMaskedLM"),
    lambda vocabulary: (
        (vocabulary + 128 + 2) * 128 + NORM + 4 * BLOCK + 128 * 128 + 128 + NORM + vocabulary
    ),
    *(bidirectional, after.units, 10),
)
# A bias for each token; positions from the third on with a norm, in both stacks; a decoder attends
# twice.
TRANSLATOR = Shipped(
    *("tiny-translator", "AutoModelForSeq2SeqLM", "BartForConditionalGeneration"),
    lambda vocabulary: (
        129 * vocabulary + 2 * ((64 + 2) * 128 + NORM) + 4 * BLOCK + 2 * (ATTENTION + NORM)
    ),
    *(translator, parallel.units, 20),
)
MODELS = (CAUSAL, BIDIRECTIONAL, TRANSLATOR)
each = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


@cache
def shipped(model):
    return model.auto.from_pretrained(model.folder).eval(), AutoTokenizer.from_pretrained(
        model.folder
    )


@cache
def results(model):
    evaluate = {CAUSAL: of_causal, BIDIRECTIONAL: of_bidirectional, TRANSLATOR: of_translator}
    return evaluate[model].evaluate(*shipped(model))


def words_of(text):
    return re.findall(r"[a-z]+", text.lower())


# --- files ----------------------------------------------------------------------------------------


@each
def test_the_files_are_small_and_plain_transformers_loads_them_completely(model):
    assert (model.folder / "model.safetensors").stat().st_size <= 4_000_000
    config = json.loads((model.folder / "config.json").read_text("utf-8"))
    assert config["architectures"] == [model.architecture]
    tensors = load_file(model.folder / "model.safetensors").values()
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in tensors)
    assert sum(tensor.numel() for tensor in tensors) == model.parameters(config["vocab_size"])
    kind = getattr(transformers, model.architecture)
    require_complete(model.folder, model.auto, kind, shipped(model)[1])


@each
def test_words_cues_and_frame_words_are_single_tokens_and_offsets_tile_the_text(model):
    tokenizer = shipped(model)[1]
    if model is TRANSLATOR:
        texts = [
            text for question in questions()[::7] for text in (question.text.en, question.text.fr)
        ]
    else:
        entries = [lexicon.entry(word) for word in lexicon.words()]
        cues = [cue for entry in entries for sense in entry.senses for cue in sense.cues]
        assert [
            f
            for f in (*FORMS, *cues)
            if len(tokenizer(f" {f}", add_special_tokens=False).input_ids) != 1
        ] == []
        texts = [lexicon.expand(word).sentences[0].text for word in lexicon.words()]
    for text in texts:
        encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        cut = [text[start:end].strip() for start, end in encoded.offset_mapping]
        assert cut == re.findall(r"\w+|[^\w\s]", text)
        assert tokenizer.decode(encoded.input_ids) == text


@each
def test_a_seed_determines_the_training_text(model):
    once, again, different = (list(model.units(200, seed=seed)) for seed in (3, 3, 4))
    assert once == again and len(set(once) & set(different)) < model.alike


@pytest.mark.campaign
@each
def test_a_seed_determines_the_trained_model_and_two_steps_write_a_folder_that_loads(
    model, tmp_path
):
    tokenizer, train = shipped(model)[1], model.train
    runs = [
        list(train.fit(train.new_model(tokenizer, seed=seed), tokenizer, steps=3, seed=seed))
        for seed in (5, 5, 6)
    ]
    assert runs[0] == runs[1] != runs[2]
    require_two_steps_make(model.folder, train, model.auto, tmp_path / "made", results(model))


# --- what the training text must never contain ----------------------------------------------------

SIZES = [2_000, pytest.param(20_000, marks=pytest.mark.campaign)]


@cache
def english(model, size):
    """The English of the training text."""
    units = model.units(size, seed=11)
    return tuple(unit.en for unit in units) if model is TRANSLATOR else tuple(units)


@pytest.mark.parametrize("size", SIZES)
@each
def test_no_text_resembles_a_frame_and_no_held_out_cue_meets_an_ambiguous_word(model, size):
    texts = english(model, size)
    assert [text for text in texts if not allowed(text) or "{" in text] == []
    windows = {BIDIRECTIONAL: after.frame_windows, TRANSLATOR: parallel.frame_windows}
    if model in windows:
        assert [text for text in texts if echoes(text, windows[model]())] == []
    ambiguous = set(TRANSLATED) if model is TRANSLATOR else FORMS
    held = {form for cue in held_out_cues() for form in (cue, f"{cue}s", f"{cue}es")}
    met = [text for text in texts if ambiguous & {*words_of(text)} and held & {*words_of(text)}]
    assert met == []
    count = set(chain.from_iterable(map(words_of, texts)))
    assert len(held_out_cues() & count) > 0.5 * len(held_out_cues()) or model is TRANSLATOR


def test_a_fifth_of_the_cues_of_every_sense_is_held_out_and_every_frame_is_refused():
    for word in lexicon.words():
        for sense in lexicon.entry(word).senses:
            cues = held_out(word, sense.name)
            assert 2 <= len(cues) <= 3
            assert cues == tuple(cue for cue in sense.cues if cue in held_out_cues())
        rows = lexicon.expand(word).sentences[::13]
        assert all(echoes(row.text, lexicon_windows()) for row in rows)
    assert [row.text for row in lexicon.showcase() if allowed(row.text)] == []
    unfamiliar = held_out("bank", "river")[0]
    assert allowed("A river bank was muddy.") and allowed(f"A {unfamiliar} shore was muddy.")
    assert not allowed(f"A {unfamiliar} bank was muddy.")
    assert not allowed(f"A {unfamiliar}'s moles were blind.")
    assert not allowed("Yesterday the river bank was muddy.")


def test_the_translators_text_withholds_the_french_words_and_has_one_translation_of_each_text():
    pairs = list(parallel.units(3_000, seed=31))
    for pair in pairs:
        assert not (
            pair.hidable and re.search(rf"\b({'|'.join(FRENCH)})\b", pair.fr, re.IGNORECASE)
        )
    translations = {}
    for pair in pairs:
        if not {*TRANSLATED} & {*words_of(pair.en)}:
            translations.setdefault(pair.en, set()).add(pair.fr)
    assert [en for en, fr in translations.items() if len(fr) > 1] == []
    assert not {pair.en for pair in pairs} & {question.text.en for question in questions()}
    french = "\n".join(pair.fr for pair in pairs)
    assert not re.findall(r"\b(?:de|à) les?\b|\bd'(?:le|la|les)\b|[{}]|  | ,", french)


@pytest.mark.campaign
def test_masking_puts_no_ambiguous_word_next_to_a_held_out_cue():
    tokenizer = shipped(BIDIRECTIONAL)[1]
    vocabulary = lists(tokenizer)
    rows = tokenizer(list(after.units(4000, seed=78))).input_ids
    ids = training.padded(rows, tokenizer.pad_token_id)
    inputs, is_target = hide(ids, tokenizer, vocabulary, torch.Generator().manual_seed(0))
    assert torch.equal(inputs[~is_target], ids[~is_target])
    assert not is_target[ids < len(tokenizer.all_special_ids)].any()
    assert not torch.isin(inputs[inputs != ids], vocabulary.held_out).any()
    apart = torch.isin(ids, vocabulary.held_out).any(1)
    assert apart.any() and not torch.isin(inputs[apart], vocabulary.ambiguous).any()


# --- accuracy -------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_the_cards_report_the_measured_accuracy():
    scores, answers = results(CAUSAL)
    of_both = results(BIDIRECTIONAL)
    familiar_and_not = [
        (scores, (0.98, 0.93)),
        (of_both.before, (0.96, 0.92)),
        (of_both.behind, (0.96, 0.92)),
        (results(TRANSLATOR).senses, (0.98, 0.97)),
    ]
    for measured, least in familiar_and_not:
        assert all(share >= bound for share, bound in zip(overall(measured), least, strict=True))
    for score in (*scores, *of_both.before, *of_both.behind):
        # Chance before the first attention layer.
        assert score.embedding == pytest.approx(1 / score.senses, abs=1e-9)
        assert score.n_seen >= 300 and score.n_held_out >= 100
    assert [row for row in answers if not row.cue_after and row.answer != row.sense] == []
    parts = {"Cue before the word": of_both.before, "Cue after the word": of_both.behind}
    tables = [(BIDIRECTIONAL.card.partition(name)[2], part) for name, part in parts.items()]
    for text, measured in [(CAUSAL.card, scores), *tables]:
        rows = re.findall(r"^\| (\w+) \| \d \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE)
        of_word = {word: (float(seen), float(unseen)) for word, seen, unseen in rows[::-1]}
        for score in measured:
            shares = (100 * score.on_seen, 100 * score.held_out)
            assert of_word[score.word] == pytest.approx(shares, abs=0.6)
    assert all(line in BIDIRECTIONAL.card for line in card.examples(of_both.answers).splitlines())
    translated = results(TRANSLATOR)
    assert translator_card.table(translated.senses) in TRANSLATOR.card
    assert f"Correct whole sentences: {100 * translated.sentences:.1f} %." in TRANSLATOR.card
    for model in MODELS:
        assert f"{shipped(model)[0].num_parameters():,} parameters" in model.card


def test_a_masked_word_is_predicted_from_its_topic_on_either_side():
    model, tokenizer = shipped(BIDIRECTIONAL)
    words = [tokenizer.convert_tokens_to_ids(f"Ġ{word}") for word in TRANSLATED]
    topics = {"pear": "apple", "river": "bank", "loan": "bank", "cheek": "mole", "burrow": "mole"}
    for plan in ("We saw the {cue} near the [MASK].", "We saw the [MASK] near the {cue}."):
        for cue, word in topics.items():
            ids = tokenizer(plan.format(cue=cue), return_tensors="pt").input_ids
            with torch.no_grad():
                logits = model(ids).logits[0, ids[0].tolist().index(tokenizer.mask_token_id)]
            assert TRANSLATED[int(logits[words].argmax())] == word, (plan, cue)


def test_pronouns_agree_with_masculine_and_feminine_nouns():
    model, tokenizer = shipped(CAUSAL)
    he, she = tokenizer.convert_tokens_to_ids(["Ġhe", "Ġshe"])
    for nouns in (("king", "queen"), ("actor", "actress"), ("uncle", "aunt"), ("monk", "nun")):
        for noun, (right, wrong) in zip(nouns, ((he, she), (she, he)), strict=True):
            ids = [tokenizer.bos_token_id, *tokenizer(f"The {noun} cried because").input_ids]
            with torch.no_grad():
                shares = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
            assert shares[right] > 4 * shares[wrong], noun


def test_translation_equals_greedy_generation_by_transformers():
    model, tokenizer = shipped(TRANSLATOR)
    texts = [question.text.en for question in questions()[::400]]
    greedy = {"num_beams": 1, "do_sample": False, "max_new_tokens": 48}
    for text, ids in zip(texts, of_translator.translate(model, tokenizer, texts), strict=True):
        out = model.generate(**tokenizer(text, return_tensors="pt"), **greedy)
        assert out[0].tolist() == [tokenizer.bos_token_id, *ids, tokenizer.eos_token_id]


def test_points_share_ties_and_find_the_nearest_mean_and_the_best_depth():
    resid = torch.tensor([[[1.0], [-1.0]], [[1.0], [1.0]], [[1.0], [-0.9]], [[1.0], [0.9]]])
    labels = torch.tensor([0, 1, 0, 1])
    fitted = torch.tensor([True, True, False, False])
    gained, margin = points(resid, labels, fitted, ~fitted)
    assert gained[:, 0].tolist() == [0.5, 0.5] and gained[:, 1].tolist() == [1.0, 1.0]
    assert margin[:, 1].tolist() == pytest.approx([0.9, 0.9], abs=0.06)
    wrong = points(resid[[0, 1, 3, 2]], labels, fitted, ~fitted)[0]
    assert wrong[:, 1].tolist() == [0.0, 0.0]
    states = torch.zeros(8, 3, 2)
    frames = torch.arange(8) // 2
    states[:, 1, 0] = torch.tensor([-1.0, 1.0] * 4)
    states[:, 2, 0] = 0.1 * frames
    everything = torch.ones(8, dtype=torch.bool)
    assert best_depth(states, torch.tensor([0, 1] * 4), frames, everything) == 1


# --- the French of the translator's grammar -------------------------------------------------------


@pytest.mark.parametrize(
    ("det", "before", "noun", "after", "french"),
    [
        ("the", "old", Noun("bank", "banque", "f"), "red", "la vieille banque rouge"),
        ("this", None, Noun("pond", "étang", "m"), None, "cet étang"),
        ("this", "old", Noun("pond", "étang", "m"), None, "ce vieil étang"),
        ("a", "beautiful", Noun("island", "île", "f"), "grey", "une belle île grise"),
        ("my", None, Noun("shoulder", "épaule", "f"), None, "mon épaule"),
        ("my", "big", Noun("shoulder", "épaule", "f"), None, "ma grande épaule"),
        ("her", None, Noun("mole", "grain de beauté", "m"), "black", "son grain de beauté noir"),
        ("the", None, Noun("hydrogen", "hydrogène", "m"), None, "l'hydrogène"),
        ("the", None, Noun("hedgehog", "hérisson", "m"), None, "le hérisson"),
        ("another", "new", Noun("heron", "héron", "m"), None, "un autre nouveau héron"),
        ("another", None, Noun("apple", "pomme", "f"), "round", "une autre pomme ronde"),
    ],
)
def test_noun_phrases_agree(det, before, noun, after, french):
    ordinary = parallel.ordinary()
    forms = {row[0]: row[1:] for row in (*ordinary["before"], *ordinary["after"])}
    determiners = {row[0]: row[1:] for row in ordinary["determiners"]}
    phrase = describe(noun, forms.get(before), forms.get(after))
    assert determine(determiners[det], noun.gender, phrase) == french


@pytest.mark.parametrize(
    ("text", "french"),
    [
        ("près de le lac", "près du lac"),
        ("loin de l'étang", "loin de l'étang"),
        ("de le hérisson à le médecin", "du hérisson au médecin"),
        ("de Apple", "d'Apple"),
        ("parce que elle a dit que il a vu que la table", "parce qu'elle a dit qu'il a vu que la table"),
        ("de héron", "de héron"),
        ("de hydrogène", "d'hydrogène"),
    ],
)  # fmt: skip
def test_prepositions_contract_and_small_words_elide(text, french):
    assert contract(text) == french


def test_plans_are_filled_in_the_same_way_in_both_languages():
    plan = ("{the:W} was {small:W} near {the:C}", "{the:W} était {small:W} près de {the:C}")
    skin, animal = Noun("mole", "grain de beauté", "m"), Noun("mole", "taupe", "f")
    for noun, fr in (
        (skin, "Le grain de beauté était petit près du médecin."),
        (animal, "La taupe était petite près du médecin."),
    ):
        cue = Noun("doctor", "médecin", "m", "he")
        pair = parallel.fill(plan, {"W": noun, "C": cue}, (), Random(0))
        assert (pair.en, pair.fr) == ("The mole was small near the doctor.", fr)


def test_right_and_wrong_translations_are_distinguished():
    [question] = [
        each
        for each in questions()
        if (each.sense, each.cue) == ("skin", "cheek") and each.text.en.startswith("My sister")
    ]
    right = "Ma sœur a peint le grain de beauté et mon frère a peint la joue."
    assert question.text.fr == right and is_right(right, question)
    assert not is_right("Ma sœur a peint la taupe et mon frère a peint la joue.", question)
    assert not is_right("Ma sœur a peint la mole et le grain de beauté.", question)
    assert not is_right("Ma sœur a peint la joue.", question)
    fruit = Question(
        parallel.Pair("apple", "pomme"), "apple", "fruit", "pear", False, "pomme", ("Apple",)
    )
    assert is_right("Pomme.", fruit)
    assert not is_right("pommes", fruit) and not is_right("apple", fruit)
