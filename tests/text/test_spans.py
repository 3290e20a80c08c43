"""The spans of a word in a text, in any script, derived by hand."""

import unicodedata

import pytest

from probe.errors import InputError
from probe.text.cues import infer_cues
from probe.text.sentences import Sentence
from probe.text.spans import WORD, find_word, letters, spans_of

ACCENT = "\u0301"
SOFT_HYPHEN = "\u00ad"
NON_JOINER = "\u200c"
ZERO_WIDTH_SPACE = "\u200b"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("कल", "उसने कला सीखी"),  # Devanagari: a vowel sign follows
        ("কল", "সে কলা খায়"),  # Bengali: a vowel sign follows
        ("கல", "அவன் கலை கற்றான்"),  # Tamil: a vowel sign follows
        ("ספר", "סִפְרִיָּה ספרה"),  # Hebrew: points inside the word, another letter after it
        ("cafe", f"a cafe{ACCENT} nearby"),
        ("ba", f"the ba{SOFT_HYPHEN}nk"),
        ("می", f"او می{NON_JOINER}رود"),  # Persian: an invisible character inside the word
        ("하", unicodedata.normalize("NFD", "한국")),  # decomposed Korean
        ("가", "각국에서"),
    ],
)
def test_a_letter_with_its_marks_is_never_cut(word, text):
    assert spans_of(word, text) == []
    with pytest.raises(InputError, match="occurs (only inside another word|nowhere). Give a word"):
        find_word(text, word)


@pytest.mark.parametrize(
    ("word", "text", "form"),
    [
        ("कल", "वह कल आएगा", "कल"),
        ("café", f"The old cafe{ACCENT}s there", f"cafe{ACCENT}s"),
        (f"cafe{ACCENT}", "The old CAFÉ there", "CAFÉ"),
        ("Å", "The A\u030a there", "A\u030a"),
        ("Å", "The \u212b there", "\u212b"),  # the sign for ångström is the same letter
        ("bank", f"The ba{SOFT_HYPHEN}nk there", f"ba{SOFT_HYPHEN}nk"),
        ("bank", f"The bank{SOFT_HYPHEN} there", "bank"),
        ("한국", unicodedata.normalize("NFD", "그 한국 은"), unicodedata.normalize("NFD", "한국")),
        ("ดี", "วันนี้ดีมาก", "ดี"),  # Thai has no spaces between words
        ("ธนาคาร", f"ไป{ZERO_WIDTH_SPACE}ธนาคาร{ZERO_WIDTH_SPACE}แล้ว", "ธนาคาร"),
        ("银行", "他在银行工作。", "银行"),
        ("が", "\u304b\u3099ある", "\u304b\u3099"),  # composed and decomposed Japanese
    ],
)
def test_spellings_of_the_same_word_are_equal(word, text, form):
    [(start, end)] = spans_of(word, text)
    assert text[start:end] == form
    assert find_word(text, word) == (start, end)


def test_letters_cover_a_text_except_invisible_characters():
    text = f"cafe{ACCENT} ba{SOFT_HYPHEN}nk"
    covered = "".join(text[letter.start : letter.end] for letter in letters(text))
    assert covered == text.replace(SOFT_HYPHEN, "")


@pytest.mark.parametrize(
    "text", ["कला सीखी", "কলা খায়", "கலை கற்றான்", f"cafe{ACCENT} nai{SOFT_HYPHEN}ve"]
)
def test_words_are_not_cut_at_their_marks(text):
    assert WORD.findall(text) == text.split()


def test_an_inferred_cue_ends_after_its_last_vowel_sign():
    texts = ("वह नदी के पास बैंक", "वह पैसा के पास बैंक")
    rows = [
        Sentence("बैंक", sense, text, text.index("बैंक"), len(text), pair="1")
        for sense, text in zip(("river", "money"), texts, strict=True)
    ]
    assert [row.cue for row in infer_cues(rows, both_sides=False)] == ["नदी", "पैसा"]
