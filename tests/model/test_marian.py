"""A published Marian, with two SentencePiece models and a vocabulary: its ids equal those of
transformers' tokenizer, and its offsets select the right characters.
"""

import random
import unicodedata
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianMTModel, MarianTokenizer
from vocabularies import LANGUAGE, SOURCE, TARGET, make_marian

import probe
from probe.errors import InputError
from probe.model.model import Model
from probe.model.tokens import positions_of_span, target_tokens, token_id, tokenize
from probe.text.spans import find_word

SENTENCE = "The mole dug under the muddy bank."
GERMAN = "Das alte Ufer des Flusses"
TEXTS = (
    *SOURCE,
    *TARGET,
    "Naïve cafés: œuvre, Ångström, e\u0301tude",
    "ΕΛΛΗΝΙΚΆ και ελληνικά",
    "Привет, мир! Ё",
    "你好，世界。東京タワー ｱｲｳ",
    "مرحبا بالعالم שלום",
    "नमस्ते दुनिया",
    "한국어 조합 \u1100\u1161",
    "ﬁne ½ Ⅷ ﷺ ™",
    "🦫 and 👩‍👩‍👧 and 𝒳",
    "  two  spaces\tand\na line ",
    "zero\u200bwidth\u00adhyphen\ufeff",
    f"{LANGUAGE} The mole",
    f"{LANGUAGE}The mole",
    f"The {LANGUAGE} mole",
    ">> no code",
    "</s> x <pad>y<unk>",
    "a",
)
SCRIPTS = "abcdeMTB ,.ßéñœ αβγΔ жщЁ 你好鼹 كتب שלום नमस् 한국 🦫👍 ½ﬁ \u0301\u200b\t</s><pad>"


def random_texts(count: int) -> list[str]:
    generator = random.Random(0)
    candidates = [
        "".join(generator.choices(SCRIPTS, k=generator.randint(1, 30))) for _ in range(2 * count)
    ]
    return [text for text in candidates if text.strip()][:count]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_marian(tmp_path_factory.mktemp("marian") / "opus-eng-deu")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return probe.load(folder)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return MarianTokenizer.from_pretrained(folder)


def cut(text: str, span: tuple[int, int]) -> str:
    return text[span[0] : span[1]]


@pytest.mark.parametrize("split", [True, False])
def test_ids_are_those_of_transformers_in_every_script(
    model: Model, plain: Any, folder: Path, split: bool
) -> None:
    """Read as a source and as a target, with special tokens of the text as plain characters and
    as tokens.
    """
    model = model if split else probe.load(folder, split_special_tokens=False)
    texts = [*TEXTS, *random_texts(300)]
    pad = plain.pad_token_id
    unknown = 0
    for text in texts:
        source = plain(text, split_special_tokens=split)["input_ids"]
        target = plain(text_target=text, split_special_tokens=split)["input_ids"]

        # A </s> at the end of the text and the added one are a single token.
        if split or not text.endswith("</s>"):
            assert list(tokenize(model, text).ids) == source
            assert list(target_tokens(model, text).ids) == [pad, *target[:-1]]
        unknown += plain.unk_token_id in source
    assert unknown > 50  # some tokens are not in the vocabulary


def test_offsets_cover_every_visible_character_in_order(model: Model) -> None:
    for text in [*TEXTS, *random_texts(300)]:
        tokens = tokenize(model, text)
        spans = [span for span in tokens.spans if span[0] < span[1]]
        assert tokens.spans[-1] == (0, 0) and tokens.pieces[-1] == "</s>"
        assert spans == sorted(spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        covered = {index for start, end in spans for index in range(start, end)}
        left_out = {text[index] for index in range(len(text))} - {text[index] for index in covered}
        assert all(
            character.isspace() or unicodedata.category(character) in ("Cf", "Cc", "Mn")
            for character in left_out
        )


def test_offsets_select_the_characters_of_a_token(model: Model) -> None:
    """In texts that SentencePiece does not rewrite, a token equals its characters."""
    distinct = set()
    for text in [*TEXTS, *random_texts(300)]:
        text = " ".join(unicodedata.normalize("NFKC", text).split())
        if any(unicodedata.category(character) in ("Cf", "Cc", "Cn") for character in text):
            continue
        pieces = model.tokenizer.spm_source.encode(text, out_type=str)
        tokens = tokenize(model, text)
        if text.startswith(">>") and "<<" in text:
            continue
        for piece, span in zip(pieces, tokens.spans, strict=False):
            assert cut(text, span) == piece.replace("▁", " ").strip() or not piece.strip("▁")
            distinct.add(piece)
        assert len(pieces) == len(tokens) - 1
    assert len(distinct) > 100


@pytest.mark.parametrize(
    ("text", "word", "last"),
    [
        (SENTENCE, "muddy", "muddy"),
        ("The 鼹鼠, the mole", "鼹鼠", "鼹鼠"),
        (f"{LANGUAGE} The mole dug", "The", "The"),
        ("A 🦫 swam", "swam", "swam"),
        ("The naïve mole", "naïve", "naïve"),
        ("The ﬁne mole", "ﬁne", "ﬁne"),
    ],
)
def test_a_word_is_found_at_its_tokens(model: Model, text: str, word: str, last: str) -> None:
    tokens = tokenize(model, text)
    positions = positions_of_span(tokens, *find_word(text, word))
    assert "".join(cut(text, tokens.spans[pos]) for pos in positions).strip() == last


def test_a_word_with_an_unknown_letter_is_refused(model: Model) -> None:
    tokens = tokenize(model, "The naïve mole")
    with pytest.raises(InputError, match="the model's vocabulary does not hold 'ï'. Choose"):
        tokens.positions_of("naïve")
    assert target_tokens(model, "Der ☃ Maulwurf").unknown  # of the decoder's input as well


def test_a_word_after_a_special_token_of_the_text_is_found_there(folder: Path) -> None:
    model = probe.load(folder, split_special_tokens=False)
    tokens = tokenize(model, "The mole </s> dug <pad> under the muddy bank")
    for word in ("mole", "</s>", "dug", "<pad>", "under", "bank"):
        characters = [cut(tokens.text, tokens.spans[pos]) for pos in tokens.positions_of(word)]
        assert "".join(characters).strip() == word


def test_a_language_code_is_one_token_only_at_the_start(model: Model, plain: Any) -> None:
    code = plain.convert_tokens_to_ids(LANGUAGE)
    tokens = tokenize(model, f"{LANGUAGE}The mole")
    assert tokens.ids[0] == code and tokens.pieces[0] == LANGUAGE and not tokens.bos
    assert tokens.spans[0] == (0, len(LANGUAGE))
    assert code not in tokenize(model, f"The {LANGUAGE} mole").ids


def test_a_token_without_characters_is_labelled_by_its_name(model: Model) -> None:
    tokens = tokenize(model, "鼹x")
    assert tokens.pieces[0] == "▁" and tokens.spans[0] == (0, 0) and not tokens.bos
    assert tokens.labels[0] == "0·▁"


def test_a_target_is_read_with_the_target_tokenizer(model: Model, plain: Any) -> None:
    target_ids = plain(text_target=GERMAN)["input_ids"][:-1]
    assert target_ids != plain(GERMAN)["input_ids"][:-1]
    pair = probe.trace(model, SENTENCE, GERMAN)
    assert list(pair.target.ids[1:]) == target_ids
    assert pair.source.ids == tokenize(model, SENTENCE).ids
    assert pair.cross.pattern.shape[-2:] == (len(pair.target), len(pair.source))
    vocabulary = map(plain.spm_target.id_to_piece, range(plain.spm_target.get_piece_size()))
    word = next(piece for piece in vocabulary if piece.startswith("▁") and len(piece) > 3)
    text = word.replace("▁", " ")
    assert len(plain(text)["input_ids"]) > 2
    assert token_id(model, text) == plain.convert_tokens_to_ids(word)


def test_a_folder_and_an_object_are_certified_and_give_transformers_logits(
    model: Model, folder: Path, plain: Any
) -> None:
    source = MarianMTModel.from_pretrained(folder)
    from_object = probe.load(source)
    assert from_object.config == model.config
    for loaded in (model, from_object, probe.load(source, tokenizer=plain)):
        assert loaded.tokenizer.get_vocab() == plain.get_vocab()
        assert probe.certify(loaded, [SENTENCE]).require().ok
    tokens = tokenize(model, SENTENCE)
    target = target_tokens(model, GERMAN)
    with torch.no_grad():
        expected = source(
            input_ids=torch.tensor([tokens.ids]), decoder_input_ids=torch.tensor([target.ids])
        ).logits[0]
    logits = probe.trace(model, SENTENCE, GERMAN).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_a_walk_through_a_published_marian_shows_both_texts(model: Model) -> None:
    walked = probe.walk(model, SENTENCE, target="Das alte", at="Ufer")
    assert walked.certificate.ok and walked.frames["agreement"]["error"].max() < 1e-5
    for side, tokens in (
        ("source", tokenize(model, SENTENCE)),
        ("target", target_tokens(model, "Das alte")),
    ):
        rows = walked.frames["tokens"].query("text == @side")
        assert rows["piece"].tolist() == list(tokens.pieces), side
