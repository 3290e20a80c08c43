"""What a walk follows: the word and its tokens, the same word in a second sentence, and the head.

The head is the one that moves the word furthest toward the second sentence's vector, or toward its
sense by what it reads from other content words; otherwise the one with the largest ΔE from other
content words, as a fraction of the word's vector. It says where to look first; it is not a finding
about the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probe.errors import InputError, whole_number
from probe.model.model import Model
from probe.model.tokens import Tokens, tokenize, word_positions
from probe.text import lexicon
from probe.text.spans import WORD, find_word, fold, spans_of
from probe.walks.scene import SAME_VECTOR, WordInText

# Second sentences for a word without a shipped sentence: one with little before the word, and one
# with a quotation mark for words at the beginning of a text.
NEUTRAL_FRAMES = ("They had told us nothing about the {}", 'They had told us: "{}')
FUNCTION_WORDS = frozenset(
    WORD.findall(
        """a an the this that these those and or but nor if than as of in on at by to from with
        without for into onto over under near after before about between through is was were are am
        be been being do does did has have had having can could will would shall should may might
        must not no it its he him his she her hers they them their theirs we us our you your i me
        my who whom which what there here so very too also"""
    )
)

RequestedHead = tuple[int | None, int | None]  # layer and head; None to have it chosen


@dataclass(frozen=True)
class HeadChoice:
    """The layer and head to follow.

    reason: why, a key of `probe.walks.sentences.REASONS`
    size: the value by which it is first of `n_heads` heads
    """

    layer: int
    head: int
    reason: str
    size: float = 0.0
    n_heads: int = 1


class ChosenWord(NamedTuple):
    """The word to follow.

    guessed: whether it is only the last word, neither requested nor in the lexicon
    shared: whether it was chosen because another text has it, too
    others: the other content words that could have been chosen, in reading order; empty if the word
        was requested
    """

    word: str
    guessed: bool = False
    shared: bool = False
    others: tuple[str, ...] = ()


def choose_head(
    requested: RequestedHead, effects: Tensor | None, reason: str, from_content: Tensor
) -> HeadChoice:
    """The requested head; otherwise, of the requested layer or of all, the head with the largest
    effect; if no effect is positive, the head with the largest ΔE from other content words.

    effects: `layer head`, how far each head moves the word, for the given reason; None if unknown
    from_content: `layer head`, the length of its ΔE from other content words, as a fraction of the
        word's vector
    """
    layer, head = requested
    if layer is not None and head is not None:
        return HeadChoice(layer, head, "requested")
    layers = list(range(len(from_content))) if layer is None else [layer]
    n_heads = from_content.shape[1]
    for values, why in ((effects, reason), (from_content, "content")):
        if values is None:
            continue
        # argmax counts through all heads of the layers: index · n_heads + head.
        index, head = divmod(int(values[layers].argmax()), n_heads)
        size = float(values[layers[index], head])
        if size > SAME_VECTOR:
            return HeadChoice(layers[index], head, why, size, n_heads * len(layers))
    return HeadChoice(layers[0], 0, "nothing", n_heads=n_heads * len(layers))


def check_head(model: Model, requested: object) -> None:
    """Raises InputError for anything but (layer, head), a layer or head that the model (its
    decoder, if it has one) does not have, and a head without its layer.
    """
    if not isinstance(requested, Sequence) or len(requested) != 2:
        raise InputError(
            f"Cannot follow a head: got head = {requested!r}, expected its layer and its number. "
            "Give (4, 1), say, or (4, None) for one of layer 4."
        )
    layer, head = requested
    n_layers = model.config.n_decoder_layers or model.config.n_layers
    n_heads = model.config.n_heads
    if layer is not None and (whole_number(layer) is None or not 0 <= layer < n_layers):
        raise InputError(
            f"Cannot follow layer {layer!r} of {model.name}: it has {n_layers} layers. Give a "
            f"layer from 0 to {n_layers - 1}."
        )
    if head is not None and (whole_number(head) is None or not 0 <= head < n_heads):
        raise InputError(
            f"Cannot follow head {head!r} of {model.name}: it has {n_heads} heads per layer. Give "
            f"a head from 0 to {n_heads - 1}."
        )
    if head is not None and layer is None:
        raise InputError(
            f"Cannot follow head {head}: got a head without its layer, expected both. Give the "
            f"layer from 0 to {n_layers - 1} too."
        )


def lexicon_words_in(text: str) -> list[tuple[int, int, str]]:
    """Start, end and entry of the text's words that are in the lexicon, in any form, in reading
    order.
    """
    entries = dict.fromkeys((*lexicon.words(), *lexicon.natural_words()))
    return sorted((*span, entry) for entry in entries for span in spans_of(entry, text))


def lexicon_entry(text: str) -> str | None:
    """The lexicon's entry of a word in any of its forms; None without an entry."""
    matches = lexicon_words_in(text)
    return matches[0][-1] if matches else None


def require_word(word: str | None, whose: str, example: str) -> None:
    """Raises InputError for a word that is empty or not a text."""
    if word is not None and not (isinstance(word, str) and word.strip()):
        got = "an empty one" if isinstance(word, str) else repr(word)
        raise InputError(
            f"Cannot choose a word to follow: got {got}, expected a word of the {whose}. Give "
            f"{example}, say."
        )


def choose_word(text: str, word: str | None, *, also_in: str | None = None) -> ChosenWord:
    """The word of a text to follow: the requested word, otherwise the last word that is in the
    lexicon, otherwise the last word.

    also_in: another text; a word that is chosen by default must occur in both

    Raises InputError for a text without a word, and if no content word occurs in both texts.
    """
    require_word(word, "text", "bank")
    if word is not None:
        return ChosenWord(word)
    words = WORD.findall(text)
    if not words:
        raise InputError(
            f"Cannot choose a word of {text!r}: got no letters or digits. Give a text with a word "
            "in it."
        )
    lexicon_words = [text[start:end] for start, end, _ in lexicon_words_in(text)]
    if also_in is not None:
        in_both = [each for each in words + lexicon_words if count_word(each, also_in)]
        words = [each for each in words if each in in_both and fold(each) not in FUNCTION_WORDS]
        lexicon_words = [each for each in lexicon_words if each in in_both]
        if not words + lexicon_words:
            quotations = ", ".join(f"“{each}”" for each in dict.fromkeys(map(fold, in_both)))
            common = f"only {quotations}" if in_both else "no word"
            raise InputError(
                f"Cannot compare a word of {text!r} and {also_in!r}: the two sentences share "
                f"{common}, expected an ambiguous word. Write both with the same one, or name the "
                "word to compare."
            )
    # Words of the lexicon are at the end of this list, so they have priority.
    chosen = (words + lexicon_words)[-1]
    skipped = {fold(chosen), *FUNCTION_WORDS}
    others = tuple(each for each in dict.fromkeys(words) if fold(each) not in skipped)
    return ChosenWord(chosen, not lexicon_words, also_in is not None, others)


def word_in_text(model: Model, text: str, word: str | None) -> WordInText:
    """The first occurrence of `word` in `text` (`probe.model.tokens.find_word`); by default of
    the word of `choose_word`.

    Raises InputError if the word does not occur.
    """
    tokens = tokenize(model, text)
    start, end = find_word(text, choose_word(text, word).word)
    return WordInText(tokens, text[start:end], word_positions(tokens, start, end))


def count_word(word: str, text: str) -> int:
    """How often a word occurs in a text, as a whole word in any case."""
    return len(spans_of(word, text, endings=("",)))


def second_word(model: Model, word: WordInText, text: str | None) -> WordInText:
    """The same word in a second sentence: in `text`, or in a shipped sentence, with the same
    tokens if possible, and at most half of its readable context in common.

    Raises InputError if the word does not occur in `text`.
    """
    if text is not None:
        return word_in_text(model, text, word.text)
    # Shipped sentences come first. The neutral frames accept any word, so one is always left.
    texts = [row.text for row in lexicon.showcase() if row.text != word.tokens.text]
    texts += [frame.format(word.text) for frame in NEUTRAL_FRAMES]
    candidates = [
        word_in_text(model, candidate, word.text)
        for candidate in texts
        if count_word(word.text, candidate) and _fits(model, candidate)
    ]
    here = word.context_ids(causal=model.config.causal)
    for candidate in candidates:
        context = candidate.context_ids(causal=model.config.causal)
        is_other = context != here and 2 * len(context & here) <= len(context)
        if candidate.ids == word.ids and is_other:
            return candidate
    return candidates[-1]


def _fits(model: Model, text: str) -> bool:
    """Whether the text with its special tokens fits the context window."""
    encoded = model.tokenizer(text, add_special_tokens=model.config.adds_special_tokens)
    return len(encoded["input_ids"]) < model.config.n_ctx


def content_words(tokens: Tokens) -> Tensor:
    """Which tokens are part of a content word, i.e. not of an English function word, punctuation
    or a special token.

    `pos`
    """
    words = [
        match.span()
        for match in WORD.finditer(tokens.text)
        if fold(match.group()) not in FUNCTION_WORDS
    ]
    overlaps = [
        any(token_start < end and token_end > start for start, end in words)
        for token_start, token_end in tokens.spans
    ]
    return torch.tensor(overlaps, dtype=torch.bool)


def is_unreadable(word: WordInText, *, causal: bool) -> bool:
    """Whether a model that reads left to right can resolve no sense at the word: no content word
    comes before it, or its cue comes after it.
    """
    if not causal:
        return False
    nothing_before = not content_words(word.tokens)[: word.positions[0]].any()
    return late_cue(word) is not None or bool(nothing_before)


def late_cue(word: WordInText) -> str | None:
    """The cue of the word's sense in a shipped sentence, if it comes after the word; otherwise
    None.
    """
    # Only shipped sentences have a marked cue.
    rows: list[Any] = [*lexicon.showcase()]
    for entry in {entry for *_, entry in lexicon_words_in(word.text)}:
        if entry in lexicon.words():
            rows += lexicon.expand(entry, both_sides=True).sentences
        if entry in lexicon.natural_words():
            rows += lexicon.expand_natural(entry, both_sides=True).sentences
    return {row.text: row.cue for row in rows if row.cue_after}.get(word.tokens.text)
