"""A published Marian, with two SentencePiece models and a vocabulary: its ids equal those of
transformers' tokenizer, and its offsets select the right characters."""

import random
import unicodedata
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import target_tokens, token_id
from transformers import MarianMTModel, MarianTokenizer
from vocabularies import LANGUAGE, SOURCE, TARGET, make_marian

import probe

SENTENCE = "The mole dug under the muddy bank."
GERMAN = "Das alte Ufer des Flusses"
TEXTS = (
    *SOURCE,
    *TARGET,
    "Naïve cafés: œuvre, Ångström, e\u0301tude",
    "你好，世界。東京タワー ｱｲｳ",
    "مرحبا بالعالم שלום नमस्ते 한국어 조합 \u1100\u1161",
    "ﬁne ½ Ⅷ ﷺ ™ 🦫 and 👩‍👩‍👧 and 𝒳",
    "  two  spaces\tand\na line ",
    "zero\u200bwidth\u00adhyphen\ufeff",
    f"{LANGUAGE} The mole",
    f"{LANGUAGE}The mole",
    f"The {LANGUAGE} mole",
    ">> no code",
    "</s> x <pad>y<unk>",
)
SCRIPTS = "abcdeMTB ,.ßéñœ αβγΔ жщЁ 你好鼹 كتب שלום नमस् 한국 🦫👍 ½ﬁ \u0301\u200b\t</s><pad>"


def random_texts(count: int) -> list[str]:
    generator = random.Random(0)
    lengths = [generator.randint(1, 30) for _ in range(2 * count)]
    candidates = ["".join(generator.choices(SCRIPTS, k=length)) for length in lengths]
    return [text for text in candidates if text.strip()][:count]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_marian(tmp_path_factory.mktemp("marian") / "opus-eng-deu")


@pytest.fixture(scope="module")
def model(folder: Path) -> probe.Model:
    return probe.load(folder)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return MarianTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("split", [True, False])
def test_ids_are_those_of_transformers_in_every_script(model, plain, folder, split: bool) -> None:
    """Read as a source and as a target, with special tokens of the text as plain characters and
    as tokens."""
    model = model if split else probe.load(folder, split_special_tokens=False)
    unknown = 0
    for text in [*TEXTS, *random_texts(150)]:
        source = plain(text, split_special_tokens=split)["input_ids"]
        target = plain(text_target=text, split_special_tokens=split)["input_ids"]
        # A </s> at the end of the text and the added one are a single token.
        if split or not text.endswith("</s>"):
            assert list(probe.tokenize(model, text).ids) == source
            assert list(target_tokens(model, text).ids) == [plain.pad_token_id, *target[:-1]]
        unknown += plain.unk_token_id in source
    assert unknown > 25  # some tokens are not in the vocabulary


def test_offsets_cover_every_visible_character_in_order(model) -> None:
    for text in [*TEXTS, *random_texts(100)]:
        tokens = probe.tokenize(model, text)
        spans = [span for span in tokens.spans if span[0] < span[1]]
        assert tokens.spans[-1] == (0, 0) and tokens.pieces[-1] == "</s>"
        assert spans == sorted(spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        covered = {text[index] for start, end in spans for index in range(start, end)}
        assert all(
            character.isspace() or unicodedata.category(character) in ("Cf", "Cc", "Mn")
            for character in {*text} - covered
        )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (SENTENCE, "muddy"),
        ("The 鼹鼠, the mole", "鼹鼠"),
        (f"{LANGUAGE} The mole dug", "The"),
        ("A 🦫 swam", "swam"),
        ("The naïve mole", "naïve"),
        ("The ﬁne mole", "ﬁne"),
    ],
)
def test_a_word_is_found_at_its_tokens(folder, text: str, word: str) -> None:
    tokens = probe.tokenize(probe.load(folder, split_special_tokens=False), text)
    start = text.index(word)
    spans = [span for span in tokens.spans if span[0] < start + len(word) and span[1] > start]
    assert "".join(text[slice(*span)] for span in spans).strip() == word
    if not tokens.unknown:
        assert [tokens.spans[pos] for pos in tokens.positions_of(word)] == spans


def test_a_word_with_an_unknown_letter_is_refused(model) -> None:
    tokens = probe.tokenize(model, "The naïve mole")
    with pytest.raises(probe.InputError, match="the model's vocabulary does not hold 'ï'. Choose"):
        tokens.positions_of("naïve")
    assert target_tokens(model, "Der ☃ Maulwurf").unknown  # of the decoder's input as well


def test_a_language_code_is_one_token_only_at_the_start(model, plain) -> None:
    code = plain.convert_tokens_to_ids(LANGUAGE)
    tokens = probe.tokenize(model, f"{LANGUAGE}The mole")
    assert tokens.ids[0] == code and tokens.pieces[0] == LANGUAGE and not tokens.bos
    assert tokens.spans[0] == (0, len(LANGUAGE))
    assert code not in probe.tokenize(model, f"The {LANGUAGE} mole").ids
    tokens = probe.tokenize(model, "鼹x")  # whose first token has no characters
    assert tokens.spans[0] == (0, 0) and tokens.labels[0] == "0·▁"


def test_a_target_is_read_with_the_target_tokenizer(model, plain) -> None:
    target_ids = plain(text_target=GERMAN)["input_ids"][:-1]
    assert target_ids != plain(GERMAN)["input_ids"][:-1]
    pair = probe.trace(model, SENTENCE, GERMAN)
    assert list(pair.target.ids[1:]) == target_ids
    assert pair.source.ids == probe.tokenize(model, SENTENCE).ids
    vocabulary = map(plain.spm_target.id_to_piece, range(plain.spm_target.get_piece_size()))
    word = next(piece for piece in vocabulary if piece.startswith("▁") and len(piece) > 3)
    assert token_id(model, word.replace("▁", " ")) == plain.convert_tokens_to_ids(word)


def test_a_folder_and_an_object_are_certified_and_give_transformers_logits(model, folder, plain):
    source = MarianMTModel.from_pretrained(folder)
    for loaded in (model, probe.load(source), probe.load(source, tokenizer=plain)):
        assert loaded.config == model.config
        assert loaded.tokenizer.get_vocab() == plain.get_vocab()
        assert probe.certify(loaded, [SENTENCE]).require().ok
    pair = probe.trace(model, SENTENCE, GERMAN)
    ids, target = (torch.tensor([tokens.ids]) for tokens in (pair.source, pair.target))
    with torch.no_grad():
        expected = source(input_ids=ids, decoder_input_ids=target).logits[0]
    torch.testing.assert_close(pair.logits, expected, rtol=0, atol=1e-4)
    walked = probe.walk(model, SENTENCE, target="Das alte", at="Ufer")
    assert walked.certificate.ok and walked.frames["agreement"]["error"].max() < 1e-5
    texts = {"source": pair.source, "target": target_tokens(model, "Das alte")}
    for side, tokens in texts.items():
        rows = walked.frames["tokens"].query("text == @side")
        assert rows["piece"].tolist() == list(tokens.pieces), side
