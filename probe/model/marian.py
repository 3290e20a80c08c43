"""Tokens of a published Marian model, with the characters of each.

Its tokenizer consists of two SentencePiece models, one for each language, and one vocabulary for
both. transformers has no fast form of it, which would provide character offsets. Ids follow from
the vocabulary, not from the SentencePiece models, and a token that neither model knows may still be
in the vocabulary. So ids come from transformers' tokenizer, and offsets from its SentencePiece
models.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import MarianTokenizer

LANGUAGE = (">>", "<<")  # around the code of the target language, at the beginning of a source


def encode(
    tokenizer: "MarianTokenizer", text: str, *, special: bool, split: bool, target: bool
) -> dict[str, list[Any]]:
    """The output of a fast tokenizer for a text of the source language, or of the `target`'s:
    `input_ids`, `offset_mapping` and `special_tokens_mask`.

    special: whether to add the end-of-sentence token, with an empty span
    split: whether special tokens typed in the text are tokenised as plain characters

    A token without characters, such as the mark before a first word that is split, also has an
    empty span.
    """
    text_argument = {"text_target" if target else "text": text}
    ids = tokenizer(
        **text_argument, add_special_tokens=special, split_special_tokens=split, verbose=False
    )["input_ids"]
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
    """The characters of every token of a text; a language code at its beginning is one token."""
    begin, end = LANGUAGE
    code = 0
    if text.startswith(begin) and end in text:
        code = text.index(end) + len(end)
    offsets = pieces.encode(text[code:], return_type="offset_mapping")["offsets"]
    spans = [(code + first, code + last) for first, last in offsets]
    return [(0, code), *spans] if code else spans
