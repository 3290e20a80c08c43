"""Text to tokens with character spans, and words back to token positions.

Tokenisation uses the Hugging Face fast tokenizer, never TransformerLens's `to_tokens`, which
truncates long texts silently. A published Marian has no fast tokenizer; `probe.model.marian`
provides its offsets. Two decisions affect everything downstream. The beginning-of-sequence token is
prepended exactly if the model's `config.prepend_bos` is set (position 0, with an empty span). A
word of several tokens is read at its last token. In most families, the tokenizer adds special
tokens ([CLS] and [SEP], say), each with an empty span.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple
from warnings import warn

from probe.errors import InputError, whole_number
from probe.model import marian
from probe.model.load import ModelSource, as_model
from probe.model.model import Model
from probe.text.spans import WORD, find_word, letters, shorten

# Tokens in one batch. More take memory and save little time on a CPU.
BATCH_TOKENS = 1024
SPECIAL_MARK = re.compile(r"[<\[]")  # begins the names of special tokens: <|im_start|>, [MASK]
REPLACEMENT = "\ufffd"  # a decoder's character for bytes that are not a complete character
VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥"}
# Byte-level vocabularies write printable bytes of Latin-1 unchanged, and the others from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
UNPRINTABLE = [byte for byte in range(0x100) if byte not in PRINTABLE]
# How a vocabulary marks tokens that begin a word: byte-level BPE, SentencePiece.
WORD_MARKS = ("Ġ", "▁")
CONTINUATION = "##"  # WordPiece's mark of tokens that continue a word
SHORTEST_WORD = 3  # letters of a whole-word token. Shorter tokens are mostly abbreviations.
BYTE_OF = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF |= {chr(0x100 + index): byte for index, byte in enumerate(UNPRINTABLE)}


class UnreadableWord(InputError):
    """The model's tokens do not hold a word, or not by itself; `reason` is the reason alone."""

    reason: str = ""


@dataclass(frozen=True)
class Tokens:
    """A text as tokens: an id, the token's text, a span (without leading space) and a label for
    each position.

    unknown: the positions of the unknown token, which is the same for everything that the
        vocabulary does not hold
    """

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    bos: bool
    unknown: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.pieces) == len(self.spans):
            sizes = f"{len(self.ids)} ids, {len(self.pieces)} pieces and {len(self.spans)} spans"
            raise ValueError(f"tokens: {sizes}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> tuple[str, ...]:
        """Unique, readable names of the positions: `3·bank`."""
        return tuple(
            f"{pos}·{piece.strip() or repr(piece)}" for pos, piece in enumerate(self.pieces)
        )

    def positions_of(self, word: str, occurrence: int = 1) -> range:
        """The token positions of the n-th occurrence of `word`. The word is read at the last
        one.

        Raises InputError if there are fewer occurrences, and UnreadableWord if the tokens do not
        hold the word by itself.
        """
        return word_positions(self, *find_word(self.text, word, occurrence))


class Prompt(str):
    """A text in which special tokens are tokens, returned by `probe.prompt`."""


def prompt(
    model: ModelSource, text: str | Sequence[Mapping[str, Any]], *, template: bool = False
) -> Prompt:
    """A text in which special tokens such as `[MASK]` or `<|im_start|>` are tokens, for any
    function that takes a text. In a plain text they are letters.

    text: a text, or the messages of a chat, each a dict with role and content. The model's chat
        template formats messages up to the beginning of the answer.
    template: whether to format a text with the chat template, as the only message of a user

    Raises InputError for messages that the template refuses, and for a model without a template.

    Example:
        >>> asked = probe.prompt("tiny-senses", "the river bank<|endoftext|>")
        >>> probe.tokenize("tiny-senses", asked).pieces[-1]
        '<|endoftext|>'
    """
    if isinstance(text, str) and not template:
        require_text(text)
        return Prompt(text)
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else [*text]
    model = as_model(model)
    if not getattr(model.tokenizer, "chat_template", None):
        raise InputError(
            f"Cannot write a chat for {model.name}: its tokenizer has no chat template. Give a "
            "plain text, or load an instruction-tuned model such as smollm2."
        )
    try:
        chat = model.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # a template may raise any exception
        raise InputError(
            f"Cannot write a chat for {model.name}: its template refuses the messages "
            f"({shorten(str(error))}). Give a list of dicts with role and content."
        ) from error
    return Prompt(chat)


def tokenize(model: ModelSource, text: str) -> Tokens:
    """The model's tokens of `text`, with BOS prepended if the model uses it.

    For an encoder-decoder, these are the encoder's tokens. Nothing is ever truncated.

    Raises InputError for an empty text, for a text longer than the context window, and for tokens
    that the tokenizer has but the model does not. Warns if the text writes a special token in
    letters, as a formatted chat does that is not a `probe.prompt`.

    Example:
        >>> probe.tokenize("tiny-senses", "a loan from the bank").pieces
        ('<|endoftext|>', 'a', ' loan', ' from', ' the', ' bank')
    """
    model = as_model(model)
    tokens = tokens_of(model, text)
    if name := special_in_letters(model, text):
        warn(
            f"{model.name} reads {name!r} as letters, not as its special token. For special tokens "
            "in a text, such as those of a formatted chat, give probe.prompt(model, text).",
            stacklevel=2,
        )
    return tokens


def special_in_letters(model: Model, text: str) -> str | None:
    """A special token of the tokenizer that a text has as letters; None without any."""
    if not model.config.split_special_tokens or isinstance(text, Prompt):
        return None
    if not SPECIAL_MARK.search(text):  # the names of most tokenizers' tokens take a millisecond
        return None
    added = model.tokenizer.added_tokens_decoder.values()
    names = [*model.tokenizer.all_special_tokens, *(str(each) for each in added if each.special)]
    return max((name for name in names if name in text), key=len, default=None)


def tokens_of(model: Model, text: str, *, target: bool = False) -> Tokens:
    """The tokens of a text, as `tokenize` returns them, without a warning.

    target: whether the decoder reads the text
    """
    require_text(text)
    config = model.config
    tokenizer = model.tokenizer
    split = config.split_special_tokens and not isinstance(text, Prompt)
    encoded = _encode(
        model,
        text,
        special=config.adds_special_tokens,
        split=split,
        target=target,
    )
    entries = []
    if config.prepend_bos:
        entries.append(_Entry(tokenizer.bos_token_id, tokenizer.bos_token, (0, 0), is_added=True))
    names = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    for token, name, is_special, (start, end) in zip(
        encoded["input_ids"],
        names,
        encoded["special_tokens_mask"],
        encoded["offset_mapping"],
        strict=True,
    ):
        is_added = bool(is_special) and config.adds_special_tokens
        piece = name if is_added else text[start:end] or name
        entries.append(
            _Entry(token, piece, _without_leading_space(text, start, end), is_added=is_added)
        )
    if not split:
        entries = _without_repeats(entries)
    if len(entries) > config.n_ctx:
        raise InputError(
            f"Cannot read the text {shorten(text)!r}: got {len(entries)} tokens, expected at most "
            f"{config.n_ctx}, the context window of {model.name}. Shorten the text or split it."
        )
    too_high = next((entry for entry in entries if entry.id >= config.d_vocab), None)
    if too_high is not None:
        raise InputError(
            f"Cannot read the text {shorten(text)!r}: {too_high.piece!r} is token {too_high.id}, "
            f"and {model.name} has only 0 to {config.d_vocab - 1}. The token was added to the "
            "tokenizer alone. Resize the model's embeddings (resize_token_embeddings) and load it "
            "again."
        )
    return Tokens(
        text,
        tuple(entry.id for entry in entries),
        tuple(entry.piece for entry in entries),
        tuple(entry.span for entry in entries),
        bos=bool(entries) and entries[0].is_added,
        unknown=tuple(
            pos
            for pos, entry in enumerate(entries)
            # Byte-level tokenizers give another token this role, which may be typed in a prompt.
            if entry.id == tokenizer.unk_token_id and entry.piece.strip() != tokenizer.unk_token
        ),
    )


def _encode(
    model: Model, text: str, *, special: bool, split: bool, target: bool
) -> Mapping[str, Sequence[Any]]:
    """A tokenizer's ids, offsets and mask of special tokens for a text; the decoder reads the
    text if it is a `target`. A Marian has separate rules.
    """
    if not model.tokenizer.is_fast:
        return marian.encode(model.tokenizer, text, special=special, split=split, target=target)
    return model.tokenizer(
        text,
        add_special_tokens=special,
        split_special_tokens=split,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,  # otherwise it warns about the length, in addition to our error
    )


class _Entry(NamedTuple):
    """A token of a text; `is_added` if the text itself does not contain it."""

    id: int
    piece: str
    span: tuple[int, int]
    is_added: bool


def _without_repeats(entries: Sequence[_Entry]) -> list[_Entry]:
    """The tokens without a token that the text writes next to the same added token, as a chat
    template does with BOS.
    """
    padded = [None, *entries, None]
    # The ids of the added tokens directly before and after each entry.
    added_ids = [
        {entry.id for entry in neighbours if entry and entry.is_added}
        for neighbours in zip(padded, padded[2:])
    ]
    return [
        entry
        for entry, ids in zip(entries, added_ids, strict=True)
        if entry.is_added or entry.id not in ids
    ]


def require_text(text: object) -> None:
    """Raises InputError for anything but a text with a word in it that can be encoded as UTF-8."""
    if not isinstance(text, str):
        raise InputError(
            f"Cannot read the text: got {type(text).__name__}, expected one text as str. Give one "
            "at a time, and a chat as probe.prompt(model, messages) writes it."
        )
    if not text.strip():
        raise InputError(
            "Cannot read the text: it is empty. Give a sentence with at least one word."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # a lone surrogate, which no UTF-8 tokenizer can read
        raise InputError(
            f"Cannot read the text: got half of a surrogate pair at character {error.start}, "
            "expected whole characters. Decode the text as UTF-8 first."
        ) from error


def visible_token(model: Model, token: int) -> str:
    """A token of the vocabulary as visible text, with codes for invisible characters, and bytes
    that do not form a character.

    A line break is ⏎, a token of spaces alone ␣; a space before letters stays.
    """
    text = model.tokenizer.decode([token])
    name = model.tokenizer.convert_ids_to_tokens(token)
    if not text:
        return str(name)
    if REPLACEMENT in text:
        text = _bytes_of(str(name)) or text
    if not text.strip(" "):
        return "␣" * len(text)
    return "".join(map(_visible_character, text))


def _bytes_of(name: str) -> str | None:
    """The bytes of a token that is a part of a character; None if its name does not contain
    them.
    """
    by_fallback = re.fullmatch(r"<0x([0-9A-F]{2})>", name)
    if by_fallback:
        return f"\\x{by_fallback[1].lower()}"
    if set(name) <= set(BYTE_OF):
        # What is whole among them stays text.
        return bytes(BYTE_OF[character] for character in name).decode(errors="backslashreplace")
    return None


def _visible_character(character: str) -> str:
    if character in VISIBLE or character == " ":
        return VISIBLE.get(character, character)
    shows_nothing = unicodedata.category(character)[0] in "CZ"
    return character.encode("unicode_escape").decode() if shows_nothing else character


def target_tokens(model: Model, target: str) -> Tokens:
    """The decoder's input for predicting `target`: the start token first, and without the last
    special token.
    """
    start = model.config.start_token
    if start is None:
        raise InputError(
            f"Cannot trace a target text through {model.name}: it has no decoder. Give one text "
            "only."
        )
    whole = tokens_of(model, target, target=True)
    ends_in_special = whole.spans[-1] == (0, 0)
    length = len(whole) - ends_in_special
    return Tokens(
        target,
        (start, *whole.ids[:length]),
        (model.tokenizer.convert_ids_to_tokens(start) or "", *whole.pieces[:length]),
        ((0, 0), *whole.spans[:length]),
        bos=True,
        unknown=tuple(1 + pos for pos in whole.unknown),
    )


def positions_of_span(tokens: Tokens, start: int, end: int) -> range:
    """The token positions that cover the characters [start, end). The word is read at the last
    one.

    Raises InputError if the span is empty, outside the text, or only white space.
    """
    doing = f"Cannot find characters {start} to {end} in {shorten(tokens.text)!r}:"
    if not 0 <= start < end <= len(tokens.text):
        expected = f"a span inside its {len(tokens.text)} characters"
        raise InputError(f"{doing} expected {expected}. Correct start and end.")
    touched = [pos for pos, (low, high) in enumerate(tokens.spans) if low < end and high > start]
    if not touched or not tokens.text[start:end].strip():
        raise InputError(f"{doing} got only white space, expected a word. Correct start and end.")
    return range(touched[0], touched[-1] + 1)


def word_positions(tokens: Tokens, start: int, end: int) -> range:
    """The token positions of the word at the characters [start, end), which is read at the last
    one.

    Raises UnreadableWord if the vocabulary does not hold a piece of the word, or if the last token
    also contains later letters, and what `positions_of_span` raises.
    """
    positions = positions_of_span(tokens, start, end)
    require_known(tokens, positions, start, end)
    later = tokens.text[end : tokens.spans[positions[-1]][1]].strip()
    if WORD.search(later):
        raise _unreadable(tokens, start, end, f"its last token also contains {later}")
    return positions


def require_known(tokens: Tokens, positions: range, start: int, end: int) -> None:
    """Raises UnreadableWord if the vocabulary does not hold a piece of a word.

    positions: the tokens that cover the characters [start, end) of the word
    """
    spans = [tokens.spans[pos] for pos in positions if pos not in tokens.unknown]
    for letter in letters(tokens.text[start:end]):
        first, last = start + letter.start, start + letter.end
        if letter.folded.strip() and not any(low < last and high > first for low, high in spans):
            pieces = [tokens.pieces[pos].strip() for pos in positions if pos in tokens.unknown]
            piece = pieces[0] if pieces else tokens.text[first:last]
            raise _unreadable(tokens, start, end, f"the model's vocabulary does not hold {piece!r}")


def _unreadable(tokens: Tokens, start: int, end: int, reason: str) -> UnreadableWord:
    error = UnreadableWord(
        f"Cannot read {tokens.text[start:end]!r} in {shorten(tokens.text)!r}: {reason}. Choose "
        "another word or text, or a model that reads the word as tokens of its own."
    )
    error.reason = reason
    return error


def position(tokens: Tokens, at: int | str) -> int:
    """A position unchanged; for a word, the position at which its first occurrence is read.

    Raises InputError if the word does not occur.
    """
    if isinstance(at, str):
        return tokens.positions_of(at)[-1]
    number = whole_number(at)
    if number is None:
        raise InputError(
            f"Cannot find {shorten(repr(at))} in {shorten(tokens.text)!r}: expected one word, or "
            "one position as a whole number. Give one, the same for every text."
        )
    return number


def text_position(tokens: Tokens, at: int | str) -> int:
    """A position counted from the start; for a word, the last token of its first occurrence.

    Raises InputError if it does not occur.
    """
    at = position(tokens, at)
    n = len(tokens)
    if not -n <= at < n:
        raise InputError(
            f"Cannot find token {at} of {tokens.text!r}: it has {n} tokens. Give a word, or a "
            f"position from {-n} to {n - 1}."
        )
    return at % n


def is_one_token(model: Model, piece: str) -> bool:
    """Whether `piece` (with its leading space, as inside a sentence) is a single token of the
    model.
    """
    return len(model.tokenizer(piece, add_special_tokens=False)["input_ids"]) == 1


def whole_words(model: Model) -> list[str]:
    """The words that are one token of the model, in the order of their ids.

    They have letters only, at least SHORTEST_WORD of them. Beginnings of longer words are included.
    """
    starts, _ = _starts_and_continuations(model)
    words = dict.fromkeys(text.strip() for text in _texts_of(model, starts))
    return [word for word in words if word.isalpha() and len(word) >= SHORTEST_WORD]


def word_continuations(model: Model) -> list[int]:
    """The tokens that continue a word: they begin with a letter, without the mark of a new word."""
    _, continuations = _starts_and_continuations(model)
    texts = [text.removeprefix(CONTINUATION) for text in _texts_of(model, continuations)]
    return [token for token, text in zip(continuations, texts, strict=True) if text[:1].isalpha()]


def _starts_and_continuations(model: Model) -> tuple[list[int], list[int]]:
    """The tokens that begin a word, and all other tokens, by the marks of the vocabulary."""
    tokenizer = model.tokenizer
    count = min(len(tokenizer), model.config.d_vocab)
    names = [name or "" for name in tokenizer.convert_ids_to_tokens(range(count))]
    is_start = [name.startswith(WORD_MARKS) for name in names]
    if not any(is_start):  # a vocabulary that marks continuations, or has no marks
        is_start = [not name.startswith(CONTINUATION) for name in names]
    continuations = [token for token, starts in enumerate(is_start) if not starts]
    return [token for token, starts in enumerate(is_start) if starts], continuations


def _texts_of(model: Model, tokens: Sequence[int]) -> list[str]:
    if not tokens:  # for which batch_decode returns an empty text
        return []
    texts: list[str] = model.tokenizer.batch_decode([[token] for token in tokens])
    return texts


def ids_after(model: Model, before: str, words: Sequence[str]) -> list[tuple[int, ...] | None]:
    """The token ids of each word after a text and a space.

    None for a word with an unknown token, or that changes the tokens of the text.
    """
    if not words:  # for which a tokenizer raises IndexError
        return []
    tokenizer = model.tokenizer
    [start] = tokenizer([before], add_special_tokens=False)["input_ids"]
    rows = tokenizer([f"{before} {word}" for word in words], add_special_tokens=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    ids_of_words: list[tuple[int, ...] | None] = []
    for row in rows:
        ids = tuple(row[len(start) :])
        is_known = row[: len(start)] == start and ids and unknown not in ids
        ids_of_words.append(ids if is_known else None)
    return ids_of_words


def token_id(model: Model, token: str | int) -> int:
    """The id of a next token, from its text as inside a sentence, or from its id.

    Raises InputError unless it is exactly one token of the model.
    """
    if isinstance(token, str):
        # The decoder of an encoder-decoder predicts tokens of the target's language.
        is_target = model.config.start_token is not None
        ids = _encode(model, token, special=False, split=False, target=is_target)["input_ids"]
        pieces = model.tokenizer.convert_ids_to_tokens(ids)
        if len(ids) != 1 or ids[0] == model.tokenizer.unk_token_id:
            raise InputError(
                f"Cannot read the logit of {token!r}: {model.name} cuts it into {len(ids)} tokens "
                f"({', '.join(map(repr, pieces))}), expected one that it knows. Give a single "
                'token as it appears inside a sentence, such as " water", or its id.'
            )
        return int(ids[0])
    number = whole_number(token)
    if number is None:
        raise InputError(
            f"Cannot read the logit of a token: got {token!r}, expected a token as it appears "
            'inside a sentence, or its id. Give " water" or an id, or two of these as a tuple.'
        )
    if not 0 <= number < model.config.d_vocab:
        raise InputError(
            f"Cannot read the logit of token {token}: {model.name} has {model.config.d_vocab} "
            f"tokens. Give an id from 0 to {model.config.d_vocab - 1}."
        )
    return number


def batch_by_length(lengths: Sequence[int], *, most_rows: int) -> list[list[int]]:
    """Row numbers grouped by equal length, at most BATCH_TOKENS tokens and `most_rows` rows
    together, in a fixed order.

    Rows of equal length need no padding, and therefore no attention mask that could be wrong.
    """
    batches = []
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in groupby(by_length, lengths.__getitem__):
        members = list(group)
        size = max(1, min(most_rows, BATCH_TOKENS // length))
        batches += [members[start : start + size] for start in range(0, len(members), size)]
    return batches


def batch_of_like_length(lengths: Sequence[int]) -> list[list[int]]:
    """Row numbers from short to long, grouped so that a group has at most BATCH_TOKENS tokens
    when padded to its longest row.
    """
    batches: list[list[int]] = [[]]
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches[-1] and lengths[row] * (len(batches[-1]) + 1) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(row)
    return batches


def in_order(batches: Sequence[Sequence[int]]) -> list[int]:
    """The position of each row after its batches are concatenated; indexing with it restores the
    original order.
    """
    order = [row for batch in batches for row in batch]
    return sorted(range(len(order)), key=order.__getitem__)


def _without_leading_space(text: str, start: int, end: int) -> tuple[int, int]:
    lead = len(text[start:end]) - len(text[start:end].lstrip())
    return (start + lead, end) if lead < end - start else (start, end)
