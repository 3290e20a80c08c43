"""Tokens of a Marian as it is published, with the characters that each stands for.

Its tokenizer is two SentencePiece models, one for each language, and one vocabulary for both.
transformers has no fast form of it, which would give character offsets: ids follow from the
vocabulary, not from the SentencePiece models, and a piece that neither model knows may still be in
the vocabulary. So ids are those of transformers' own tokenizer here, and offsets those of the same
SentencePiece models.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import MarianTokenizer

LANGUAGE = (">>", "<<")  # around the code of the target language, in front of a source


def encode(
    tokenizer: "MarianTokenizer", text: str, *, special: bool, split: bool, target: bool
) -> dict[str, list[Any]]:
    """What a fast tokenizer returns for a text of the source language, or of the `target`'s:
    `input_ids`, `offset_mapping` and `special_tokens_mask`.

    `special` puts the end of a sentence behind it, with an empty span; with `split` special tokens
    in the text are text. A piece without characters, such as the mark in front of a first word
    that is cut up, has an empty span, too.
    """
    given = {"text_target" if target else "text": text}
    ids = tokenizer(**given, add_special_tokens=special, split_special_tokens=split, verbose=False)[
        "input_ids"
    ]
    pieces = tokenizer.spm_target if target else tokenizer.spm_source
    spans = []
    start = 0
    for part in [text] if split else tokenizer.tokens_trie.split(text):
        if part in tokenizer.added_tokens_encoder:
            spans.append((start, start + len(part)))
        else:
            spans += [(start + first, start + end) for first, end in _spans(part, pieces)]
        start += len(part)
    mask = [0] * len(spans)
    if special:
        spans.append((0, 0))
        mask.append(1)
    return {"input_ids": ids, "offset_mapping": spans, "special_tokens_mask": mask}


def _spans(text: str, pieces: Any) -> list[tuple[int, int]]:
    """The characters of every piece of a text, the code of a language in front of it being one."""
    begin, end = LANGUAGE
    code = 0
    if text.startswith(begin) and end in text:
        code = text.index(end) + len(end)
    mapped = pieces.encode(text[code:], return_type="offset_mapping")["offsets"]
    spans = [(code + first, code + last) for first, last in mapped]
    return [(0, code), *spans] if code else spans
