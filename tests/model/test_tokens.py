"""Characters to tokens and back: spans that cover the text, words that are found, texts that are
refused.
"""

import itertools
import logging
import re
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoints import END, SENTENCES, make_checkpoint
from families import family_model
from handmade import resolver_model
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import (
    BATCH_TOKENS,
    Tokens,
    batch_by_length,
    find_word,
    in_order,
    is_one_token,
    position,
    positions_of_span,
    visible_token,
)
from transformers import AutoTokenizer

from probe import InputError, load, patch, prompt, tokenize, trace

GPT2_TOKENIZER = Path(__file__).parents[3] / "shared" / "data" / "gpt2-tokenizer"
AWKWARD = (
    "🏦",
    "👩‍🚀",
    "שלום",
    "مرحبا",
    "cafe\u0301",
    "नमस्ते",
    "ﬁ",
    "ß",
    "</script>",
    '"',
    "a\u0300\u0301",
)
WORDS = st.one_of(
    st.sampled_from((*AWKWARD, "0x1F", "bank", "mole", "the", "antidisestablishmentarianism")),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6).filter(str.strip),
)
quick = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_inner": 12, "n_positions": 512}
    return load(make_checkpoint(tmp_path_factory.mktemp("tokens") / "wide", **sizes))


@pytest.fixture(scope="module")
def readers(model):
    """The small byte-level model, and the same with GPT-2's tokenizer if it is available."""
    if not GPT2_TOKENIZER.is_dir():
        return lambda: (model,)
    tokenizer = AutoTokenizer.from_pretrained(GPT2_TOKENIZER)
    config = replace(model.config, d_vocab=len(tokenizer))
    both = model, replace(model, tokenizer=tokenizer, config=config)
    return lambda: both


@pytest.mark.parametrize("bos", [True, False])
def test_tokens_are_the_tokenizers_own(model, bos):
    variant = replace(model, config=replace(model.config, prepend_bos=bos))
    text = SENTENCES[0]
    tokens = tokenize(variant, text)
    assert tokens.ids[bos:] == tuple(model.tokenizer.encode(text, add_special_tokens=False))
    assert tokens.bos is bos
    assert "".join(tokens.pieces[bos:]) == text
    if bos:
        assert (tokens.ids[0], tokens.pieces[0], tokens.spans[0]) == (
            model.tokenizer.bos_token_id,
            END,
            (0, 0),
        )


def test_spans_leave_out_the_leading_space_and_labels_are_unique(model):
    text = "The mole  dug\nunder bank  bank."
    tokens = tokenize(model, text)
    for (start, end), piece in zip(tokens.spans[1:], tokens.pieces[1:], strict=True):
        assert text[start:end] == (piece.lstrip() or piece)
    assert len(set(tokens.labels)) == len(tokens) and tokens.labels[0] == f"0·{END}"
    assert tokens.labels[-2] == f"{len(tokens) - 2}·bank"
    # a token of white space is still visible
    assert any(label.endswith("·' '") for label in tokens.labels)


def test_tokens_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="2 ids, 1 pieces and 2 spans"):
        Tokens("a b", (1, 2), ("a",), ((0, 1), (2, 3)), False)


@quick
@given(
    words=st.lists(WORDS, min_size=1, max_size=6),
    gap=st.sampled_from((" ", "  ", "\n", "\t ")),
    data=st.data(),
)
def test_every_word_is_covered_by_its_tokens_and_by_no_others(readers, words, gap, data):
    text = gap.join(words)
    nth = data.draw(st.integers(0, len(words) - 1))
    start = sum(len(word) + len(gap) for word in words[:nth])
    end = start + len(words[nth])
    for model in readers():
        tokens = tokenize(model, text)
        positions = positions_of_span(tokens, start, end)
        spans = [tokens.spans[pos] for pos in positions]
        assert all(low < end and high > start for low, high in spans)
        covered = {index for low, high in spans for index in range(low, high)}
        assert {index for index in range(start, end) if not text[index].isspace()} <= covered
        outside = [span for pos, span in enumerate(tokens.spans) if pos not in positions]
        assert all(high <= start or low >= end for low, high in outside)
        assert not tokens.bos or positions[0] > 0


@pytest.mark.parametrize(
    ("pieces", "unknown", "word", "reason"),
    [
        (("川", "銀行の", "岸"), (), "銀行", "its last token also contains の"),
        (("川銀", "行の岸"), (), "銀行", "its last token also contains の岸"),
        (("ไป", "ธนาคารแล้ว"), (), "ธนาคาร", "its last token also contains แล้ว"),
        (("an", " it's"), (), "it", "its last token also contains 's"),
        (("the", " Käfer"), (1,), "Käfer", "the model's vocabulary does not hold 'Käfer'"),
        (("the", " K", "ä", "fer"), (2,), "Käfer", "the model's vocabulary does not hold 'ä'"),
        (("a", " 🏦"), (1,), "🏦", "the model's vocabulary does not hold '🏦'"),
    ],
)
def test_a_word_that_its_tokens_do_not_hold_by_itself_is_refused(pieces, unknown, word, reason):
    tokens = of_pieces(pieces, unknown)
    with pytest.raises(InputError) as error:
        tokens.positions_of(word)
    assert str(error.value) == (
        f"Cannot read {word!r} in {tokens.text!r}: {reason}. Choose another word or text, or a "
        "model that reads the word as tokens of its own."
    )


def of_pieces(pieces, unknown=()):
    """Tokens of which each piece is one."""
    ends = list(itertools.accumulate(map(len, pieces)))
    spans = tuple((end - len(piece.strip()), end) for piece, end in zip(pieces, ends, strict=True))
    return Tokens("".join(pieces), (5,) * len(pieces), pieces, spans, False, unknown)


@pytest.mark.parametrize(
    ("pieces", "word", "positions"),
    [
        (("川銀", "行", "の岸"), "銀行", range(2)),  # earlier letters are context
        (("the", " bank,"), "bank", range(1, 2)),
        (("an", " ice cream."), "ice cream", range(1, 2)),
        (("a", " cafe\u0301"), "café", range(1, 2)),
    ],
)
def test_a_token_may_hold_earlier_letters_and_punctuation(pieces, word, positions):
    assert of_pieces(pieces).positions_of(word) == positions


def test_swaps_at_a_word_with_unknown_or_dropped_letters_are_refused():
    dropped = Tokens("a Käfer", (1, 2, 3), ("a", "K", "fer"), ((0, 1), (2, 3), (4, 7)), False)
    with pytest.raises(InputError, match="the model's vocabulary does not hold 'ä'. Choose"):
        dropped.positions_of("Käfer")
    model, _ = resolver_model(0)
    assert tokenize(model, "the Käfer 🏦").unknown == (2, 3)
    for word in ("Käfer", "🏦"):
        with pytest.raises(InputError, match=f"vocabulary does not hold '{word}'"):
            patch(model, f"the {word}", against=f"grey {word}", at=word)
    # Typed in a prompt, the unknown token itself is meant.
    unknown = model.tokenizer.unk_token
    text = prompt(model, f"the {unknown}")
    assert tokenize(model, text).unknown == ()
    assert len(patch(model, text, against=prompt(model, f"grey {unknown}"), at=-1)) > 0


def test_a_word_of_several_tokens_is_read_at_its_last(model):
    text = "The antidisestablishment bank"
    tokens = tokenize(model, text)
    positions = positions_of_span(tokens, *find_word(text, "antidisestablishment"))
    assert len(positions) > 1
    assert "".join(tokens.pieces[pos] for pos in positions).strip() == "antidisestablishment"
    assert tokens.spans[positions[-1]][1] == text.index(" bank")
    assert is_one_token(model, " bank") and not is_one_token(model, " antidisestablishment")


@pytest.mark.parametrize(
    ("text", "word", "occurrence", "expected"),
    [
        ("Embankments and a bank", "bank", 1, (18, 22)),  # a whole word before a part of one
        ("Bankers and Banks", "bank", 1, (12, 17)),  # an inflected form if there is no other
        ("他在银行工作", "银行", 1, (2, 4)),
        ("BANK, bank; Bank", "bank", 3, (12, 16)),
        ("the bank's owner", "bank", 1, (4, 8)),
        ("cafe\u0301 cafe", "cafe", 1, (6, 10)),  # the first e has a combining accent
        ("שלום על הבנק bank", "bank", 1, (13, 17)),
        ("🏦bank🏦 bank", "bank", 2, (7, 11)),
        ("İstanbul bank İstanbul", "İstanbul", 2, (14, 22)),  # İ folds to two letters
        ("Straße und STRASSE", "STRASSE", 1, (11, 18)),
        ("ice cream bank", "ice cream", 1, (0, 9)),
    ],
)
def test_the_nth_occurrence_of_a_word(text, word, occurrence, expected):
    assert find_word(text, word, occurrence) == expected


@quick
@given(words=st.lists(st.sampled_from(("bank", "the", "river", "banks", *AWKWARD)), max_size=9))
def test_occurrences_come_in_order(words):
    text, starts = " ".join([*words, "bank"]), []
    for number, word in enumerate([*words, "bank"]):
        if word == "bank":
            starts.append(len(" ".join([*words, "bank"][: number + 1])) - 4)
    found = [find_word(text, "bank", nth + 1) for nth in range(len(starts))]
    assert found == [(start, start + 4) for start in starts]


READ, FIND = "Cannot read the text: ", "Cannot find "
NO_TEXT = (
    "got {}, expected one text as str. Give one at a time, and a chat as probe.prompt(model, mes"
)
HALF = (
    "got half of a surrogate pair at character 4, expected whole characters. Decode the text as UTF"
)
OUTSIDE = (
    "characters {} to {} in 'The bank': expected a span inside its 8 characters. Correct start a"
)
BLANK = "characters 3 to 4 in {!r}: got only white space, expected a word. Correct start and end."
INSIDE = "'an' in 'The man': it occurs only inside another word. Give a word of the text."


@pytest.mark.parametrize(
    ("text", "span", "message"),
    [
        *((text, (0, 1), f"{READ}it is empty. Give a sentence") for text in ("", "\n\t\u3000")),
        *(
            (text, (0, 1), READ + NO_TEXT.format(kind))
            for text, kind in ((["a"], "list"), (7, "int"))
        ),
        ("the \ud83c bank", (0, 1), READ + HALF),
        *(("The bank", span, FIND + OUTSIDE.format(*span)) for span in ((-1, 3), (3, 3), (0, 99))),
        # one token covers it, or none
        *((text, (3, 4), FIND + BLANK.format(text)) for text in ("The bank", "The  bank")),
    ],
)
def test_a_text_or_span_that_cannot_be_read_is_refused(model, text, span, message):
    with pytest.raises(InputError) as error:
        positions_of_span(tokenize(model, text), *span)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ((3,), "Cannot find 3 in 'The man': got int, expected a word. Gi"),
        (("an",), f"{FIND}{INSIDE}"),
        (("mole",), "it occurs nowhere. Give a word"),
        *((("man", n), f"got occurrence {n}, expected 1 to 1 (how") for n in (0, -1, 2, 1.0)),
    ],
)
def test_a_word_that_is_not_there_is_refused(model, word, message):
    with pytest.raises(InputError) as error:
        tokenize(model, "The man").positions_of(*word)
    assert message in str(error.value)


def test_a_position_may_be_a_word(model):
    tokens = tokenize(model, "the bank by the river bank")
    assert position(tokens, -1) == -1
    assert position(tokens, "bank") == tokens.positions_of("bank")[-1]
    assert position(tokens, " bank") == position(tokens, "bank")  # the form of many models' tokens
    assert tokens.positions_of("bank", 2) == positions_of_span(tokens, 22, 26)


def test_a_text_beyond_the_window_is_refused_whole_and_quietly(model, monkeypatch, caplog):
    """GPT-2's tokenizer also knows the window, and would add a warning to the message."""
    monkeypatch.setattr(model.tokenizer, "model_max_length", model.config.n_ctx)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    caplog.set_level(logging.WARNING, "transformers")
    assert len(tokenize(model, "(" * 511)) == model.config.n_ctx
    with pytest.raises(InputError) as error:
        tokenize(model, "(" * 512)  # BOS counts
    assert str(error.value) == (
        f"Cannot read the text '{'(' * 59}…': got 513 tokens, expected at most 512, the context "
        "window of wide. Shorten the text or split it."
    )
    assert caplog.messages == []

    # The tokenizer itself warns.
    model.tokenizer("(" * 600)
    assert caplog.messages


@quick
@given(
    lengths=st.lists(st.one_of(st.integers(1, 4), st.integers(1, 2000)), max_size=60),
    most_rows=st.integers(1, 2000),
)
def test_batches_hold_every_row_once_and_only_equal_lengths_and_the_order_can_be_restored(
    lengths, most_rows
):
    batches = batch_by_length(lengths, most_rows=most_rows)
    laid = [row for batch in batches for row in batch]
    assert sorted(laid) == list(range(len(lengths))) == [laid[index] for index in in_order(batches)]
    for batch in batches:
        assert len({lengths[row] for row in batch}) == 1
        assert len(batch) <= most_rows
        assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= BATCH_TOKENS


def test_a_special_token_typed_in_a_text_is_plain_text(model):
    spelled = model.tokenizer.bos_token
    tokens = tokenize(model, f"the {spelled} bank")
    assert tokens.ids.count(model.tokenizer.bos_token_id) == 1
    assert "".join(tokens.pieces[1:]) == f"the {spelled} bank"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Ġbank", " bank", " bank"),
        ("Ċ", "\n", "⏎"),
        ("ĠĠ", "  ", "␣␣"),
        ("âĢ", "\ufffd", r"\xe2\x80"),  # two of the three bytes of a quotation mark
        ("bÃ", "b\ufffd", r"b\xc3"),
        ("<0xE2>", "\ufffd", r"\xe2"),
        ("\u200b", "\u200b", r"\u200b"),
        ("Âł", "\xa0", r"\xa0"),
        ("<unused7>", "", "<unused7>"),
        ("é", "é", "é"),
    ],
)
def test_an_invisible_token_is_shown_by_its_name_or_its_bytes(name, text, expected):
    answers = {"decode": lambda ids: text, "convert_ids_to_tokens": lambda token: name}
    assert visible_token(SimpleNamespace(tokenizer=SimpleNamespace(**answers)), 0) == expected


def test_special_tokens_in_a_text_are_tokens_on_request_and_in_a_prompt(model):
    text = f"{END}the river{END} bank"
    with_special = load(model, split_special_tokens=False)
    tokens = tokenize(with_special, text)
    # A text that begins with the added token gets no second one.
    assert tokens.ids == tuple(model.tokenizer(text)["input_ids"])
    assert tokens.pieces.count(END) == 2 and tokens.bos and tokens.spans[0] == (0, 0)
    inside = tokens.pieces.index(END, 1)
    assert text[slice(*tokens.spans[inside])] == END
    assert tokens.positions_of("bank") == range(inside + 1, len(tokens))
    assert tokenize(with_special, "the river").ids == tokenize(model, "the river").ids
    assert tokenize(model, text).pieces.count(END) == 1  # its beginning
    assert tokenize(model, prompt(model, text)).ids == tokens.ids


def test_a_chat_is_written_by_the_models_template(tiny, monkeypatch):
    template = (
        f"{{% for m in messages %}}{END}{{{{ m.role }}}} {{{{ m.content }}}}{{% endfor %}}{END}"
    )
    with pytest.raises(InputError, match="^Cannot write a chat for .*: its tokenizer has no chat"):
        prompt(tiny, "the bank", template=True)
    monkeypatch.setattr(tiny.tokenizer, "chat_template", template)
    chat = prompt(tiny, "the bank", template=True)
    assert chat == f"{END}user the bank{END}"
    assert prompt(tiny, [{"role": "user", "content": "the bank"}]) == chat
    ids = tokenize(tiny, chat).ids
    assert ids[-1] == ids[0] == tiny.tokenizer.convert_tokens_to_ids(END)
    assert trace(tiny, chat).tokens.ids == ids
    with pytest.raises(InputError, match="its template refuses the messages"):
        prompt(tiny, ["the bank"])


def test_special_tokens_in_letters_cause_a_warning_that_names_prompt(model):
    chat = f"{END}user\nthe river bank{END}"
    message = (
        f"^.* reads '{re.escape(END)}' as letters, not as its special token.* give probe.prompt"
    )
    with pytest.warns(UserWarning, match=message):
        tokenize(model, chat)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenize(model, prompt(model, chat))
        tokenize(load(model, split_special_tokens=False), chat)
        tokenize(model, "the <river> bank [2] <|im_start|>")  # not a token of this model
    with pytest.warns(UserWarning, match="give probe.prompt"):
        patch(model, chat, against=f"{END}user\nthe money bank{END}", at="bank")


def test_heads_can_be_swapped_at_a_masked_token():
    model = load(family_model("bert", torch.float32))
    a, b = prompt(model, "The muddy [MASK]"), prompt(model, "The old [MASK]")
    from_prompts = patch(model, a, against=b, at="[MASK]", metric=(17, 30))
    model = load(model, split_special_tokens=False)
    tokens = tokenize(model, "The muddy [MASK] by the river[SEP]")
    at = tokens.pieces.index("[MASK]")
    assert tokens.ids[at] == model.tokenizer.convert_tokens_to_ids("[MASK]")
    assert tokens.pieces.count("[SEP]") == 1 and not any(tokens.spans[-1])
    effects = patch(
        model, "The muddy [MASK]", against="The old [MASK]", at="[MASK]", metric=(17, 30)
    )
    assert effects["swap"].notna().all() and effects.equals(from_prompts)


def test_a_token_that_only_the_tokenizer_has_is_refused(tmp_path):
    model = load(make_checkpoint(tmp_path / "small"))
    last = model.config.d_vocab - 1
    model.tokenizer.add_tokens([f"<added{number}>" for number in range(last + 2)])
    in_model, beyond = model.tokenizer.convert_ids_to_tokens([last, last + 1])
    assert tokenize(model, f"the bank {in_model}").ids[-1] == last
    with pytest.raises(InputError) as error:
        tokenize(model, f"the bank {beyond}")
    assert str(error.value) == (
        f"Cannot read the text 'the bank {beyond}': {beyond!r} is token {last + 1}, and {model.name} has only 0 "
        f"to {last}. The token was added to the tokenizer alone. Resize the model's embeddings "
        "(resize_token_embeddings) and load it again."
    )
