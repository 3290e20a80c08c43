"""Tokenizers in other files than tokenizer.json: accepted, in a folder and with an object, if
transformers can build a fast one from them; refused if it finds no vocabulary in them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from families import family_tokenizer, make_family, model_class
from seeds import mostly_campaign
from test_load import refusal
from transformers import AutoTokenizer
from vocabularies import MARKS, ROBERTA, T5, pieces, tekken, with_files, word_list

import probe

TEXT = "The mole dug under the muddy bank."
LLAMA = ROBERTA | {"byte_fallback": True}
BERT = json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}).encode()
OWN_LLAMA = json.dumps({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}).encode()


def merges() -> dict[str, bytes]:
    """A RoBERTa's byte-level pairs, as in GPT-2."""
    tokenizer_model = json.loads(family_tokenizer("roberta").backend_tokenizer.to_str())["model"]
    lines = [" ".join(pair) for pair in tokenizer_model["merges"]]
    return {
        "vocab.json": json.dumps(tokenizer_model["vocab"]).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *lines]).encode(),
    }


# The first ones differ in their files or in how they are read.
DIFFERENT = 5
FILES: dict[str, Mapping[str, bytes]] = {
    "bert": {"vocab.txt": word_list(), "tokenizer_config.json": BERT},
    "roberta": merges(),
    "t5": {"spiece.model": pieces(**T5)},
    "xlm-roberta": {"sentencepiece.bpe.model": pieces(**ROBERTA)},
    "llama": {
        "tokenizer.model": pieces(kind="bpe", size=390, **LLAMA),
        "tokenizer_config.json": OWN_LLAMA,
    },
    "gemma": {"tokenizer.model": pieces(kind="bpe", size=390, add_dummy_prefix=False, **LLAMA)},
    "mixtral": {"tekken.json": tekken()},
    "blenderbot": merges(),
    "pegasus": {"spiece.model": pieces(**T5)},
    "phi3": {"tokenizer.model": pieces(kind="bpe", size=390, **LLAMA)},
}


@pytest.mark.parametrize("kind", mostly_campaign(FILES, here=DIFFERENT))
def test_a_tokenizer_in_older_files_is_loaded_and_splits_text_as_transformers_does(kind, tmp_path):
    folder = with_files(make_family(tmp_path / kind, kind), FILES[kind])
    model = probe.load(folder)
    tokens = probe.tokenize(model, TEXT)
    expected = AutoTokenizer.from_pretrained(folder)(
        TEXT, split_special_tokens=True, add_special_tokens=model.config.adds_special_tokens
    )["input_ids"]
    assert list(tokens.ids[-len(expected) :]) == expected
    assert len(tokens) - len(expected) == int(model.config.prepend_bos)
    for word in ("mole", "muddy", "bank"):
        spans = [tokens.spans[pos] for pos in tokens.positions_of(word)]
        assert "".join(TEXT[start:end] for start, end in spans).strip() == word
    source = model_class(kind).from_pretrained(folder)
    assert probe.tokenize(probe.load(source), TEXT) == tokens


def test_the_words_of_a_word_list_are_tokens_and_other_words_are_unknown(tmp_path: Path) -> None:
    folder = with_files(make_family(tmp_path / "bert", "bert"), FILES["bert"])
    model = probe.load(folder)
    vocabulary = word_list().decode().split("\n")
    tokens = probe.tokenize(model, "The 鼹 banks")
    names = [vocabulary[number] for number in tokens.ids]
    assert names == ["[CLS]", "the", "[UNK]", "bank", "##s", "[SEP]"]
    words = [tokens.text[start:end] for start, end in tokens.spans[1:-1]]
    assert words == ["The", "鼹", "bank", "s"]
    assert probe.certify(model, [TEXT]).require().ok


@pytest.mark.parametrize(
    ("kind", "files", "reader"),
    [
        ("gpt2", {"vocab.txt": word_list()}, "GPT2Tokenizer"),
        ("bert", merges(), "BertTokenizer"),
        ("bert", {"vocab.txt": "\n".join(MARKS).encode()}, "BertTokenizer"),
        ("t5", {"sentencepiece.bpe.model": pieces(**ROBERTA)}, "T5Tokenizer"),
    ],
)
def test_files_in_which_transformers_finds_no_vocabulary_are_refused(kind, files, reader, tmp_path):
    """It would create a tokenizer of special tokens and read every word as unknown."""
    folder = with_files(make_family(tmp_path / kind, kind), files)
    assert refusal(folder) == (
        f"Cannot load {folder}: transformers reads its tokenizer as a {reader}, which finds no "
        "vocabulary there. Copy tokenizer.json of this model into the folder, or what it is made "
        "from (vocab.txt, vocab.json and merges.txt, or a SentencePiece model)."
    )
    (folder / "spiece.model").write_bytes(b"no SentencePiece model")
    if kind == "t5":
        assert f"Cannot load {folder}: its tokenizer cannot be read (" in refusal(folder)
