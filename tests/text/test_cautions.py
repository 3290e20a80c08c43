"""Warnings about sentences before a model reads them."""

import pytest

import probe
from probe.text.cautions import cautions, words_before

EARLY = "That note is a B flat."
LONG = "The singer held that note for a while."


def corpus(*rows, **shared):
    return probe.read_sentences([{"word": "note", "sense": "music"} | row | shared for row in rows])


def test_words_before_the_word_are_counted():
    sentences = corpus({"text": EARLY}, {"text": LONG}, {"text": "Notes — and “more”."}).sentences
    assert [words_before(sentence) for sentence in sentences] == [1, 4, 0]


@pytest.mark.parametrize(
    ("rows", "warning"),
    [
        ([{"text": EARLY}, {"text": LONG}], "In 1 of 2 sentences, at most two words precede"),
        ([{"text": EARLY, "cue": "B flat"}, {"text": LONG, "cue": "singer"}], "In 1 of 2 sentences, the cue is after the word"),
        ([{"text": EARLY, "cue": "That"}, {"text": LONG, "cue": "singer"}], None),
        ([{"text": "The three old notes rang."}], None),
    ],
)  # fmt: skip
def test_cues_that_a_causal_model_cannot_have_read_are_counted(rows, warning):
    lines = cautions(corpus(*rows), causal=True)
    assert [line.startswith(warning) for line in lines] == ([True] if warning else [])
    assert cautions(corpus(*rows), causal=False) == []


def test_a_cue_that_a_pair_shows_counts_as_marked():
    rows = [{"text": "A piano note", "pair": 1}, {"text": "A doctor note", "sense": "x", "pair": 1}]
    assert cautions(corpus(*rows), causal=True) == []
    assert len(cautions(corpus(*({**row, "pair": None} for row in rows)), causal=True)) == 1


def test_special_tokens_in_letters_are_counted():
    sentences = corpus({"text": LONG}, {"text": "<|im_start|>user Play that note<|im_end|>"})
    [line] = cautions(sentences, causal=False, specials=["<|im_start|>"])
    assert line.startswith(
        "In 1 of 2 sentences, special tokens such as '<|im_start|>' are read as letters. "
    )
    assert "probe.prompt" in line


def test_unread_columns_are_named_with_the_column_that_was_meant():
    sentences = corpus({"text": LONG, "cues": "singer", "gloss": "x"})
    assert cautions(sentences, causal=True) == [
        "The column 'cues' is not read (did you mean 'cue'?).",
        "The column 'gloss' is not read.",
    ]
    assert cautions(sentences, causal=True, keeps_columns=True) == []
