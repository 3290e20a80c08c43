"""Tokenizers in the files of older models: a word list, SentencePiece models, Mistral's, and the
two models and the vocabulary of a Marian."""

import base64
import io
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from checkpoints import SENTENCES
from families import make_family
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# In several scripts, and in German for the other language of a Marian.
SOURCE = (
    *SENTENCES,
    "Ένας τυφλοπόντικας έσκαψε.",
    "Крот рыл нору под берегом реки.",
    "鼹鼠在河岸下挖洞。",
)
TARGET = (
    "Der Maulwurf grub unter dem schlammigen Ufer des Flusses.",
    "Die Bank gab ihm einen größeren Kredit als früher.",
    "Das alte Ufer war naß, und der Baum fiel in den Garten.",
    "Am Ufer hier, am Ufer dort, an jedem Ufer ein Ufer.",  # often enough to be one token
)
LANGUAGE = ">>deu<<"
# The ids of special tokens in a T5's model and in a Llama's or an XLM-RoBERTa's.
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
ROBERTA = {"unk_id": 0, "bos_id": 1, "eos_id": 2}


@cache
def pieces(
    texts: tuple[str, ...] = SENTENCES, kind: str = "unigram", size: int = 300, **numbers: Any
) -> bytes:
    """A SentencePiece model of these texts; `numbers` are its options, such as the ids of its
    special tokens."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([*texts] * 4),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **numbers,
    )
    return model.getvalue()


def word_list(texts: Iterable[str] = SENTENCES) -> bytes:
    """BERT's: special tokens, words, letters and continuations of words."""
    words = sorted({word.strip(".,").lower() for text in texts for word in text.split()})
    continuations = [f"##{letter}" for letter in LETTERS]
    return "\n".join([*MARKS, *words, *LETTERS, *continuations, ".", ","]).encode()


def tekken() -> bytes:
    """Mistral's: bytes and two merges of them, after three special tokens."""
    tokens = [bytes([number]) for number in range(256)] + [b"ba", b"bank"]
    special = ("<unk>", "<s>", "</s>")
    content = {
        "config": {
            "pattern": r"\w+|\s+|[^\w\s]+",
            "default_vocab_size": len(tokens) + len(special),
            "default_num_special_tokens": len(special),
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode()}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token, "is_control": True}
            for rank, token in enumerate(special)
        ],
    }
    return json.dumps(content).encode()


def with_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A model's folder with these tokenizer files instead of its tokenizer.json."""
    for file in folder.glob("tokenizer*"):
        file.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def make_marian(folder: Path) -> Path:
    """A random Marian as published: two SentencePiece models, a joint vocabulary with one token
    that neither has, and the code of a language."""
    source, target = pieces(SOURCE, size=400), pieces(TARGET, size=200)
    vocabulary = {"</s>": 0, "<unk>": 1}
    for model in (source, target):
        processor = SentencePieceProcessor(model_proto=model)
        for number in range(processor.get_piece_size()):
            vocabulary.setdefault(processor.id_to_piece(number), len(vocabulary))
    for token in ("🦫", LANGUAGE, "<pad>"):
        vocabulary[token] = len(vocabulary)
    pad = vocabulary["<pad>"]
    sizes = {"vocab_size": len(vocabulary), "max_position_embeddings": 90}
    make_family(
        folder, "marian", **sizes, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0
    )
    stated = {"source_lang": "eng", "target_lang": "deu", "tokenizer_class": "MarianTokenizer"}
    return with_files(
        folder,
        {
            "source.spm": source,
            "target.spm": target,
            "vocab.json": json.dumps(vocabulary, ensure_ascii=False).encode(),
            "tokenizer_config.json": json.dumps(stated).encode(),
        },
    )
