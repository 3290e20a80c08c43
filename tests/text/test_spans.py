"""The spans of a word in a text, in any script and any spelling, derived by hand; and spellings
that look the same are the same name, word and cue."""

import unicodedata

import pytest
from inside import WORD, cross_fit, find_word, fold, infer_cues, letters, plain, plan, spans_of

import probe

ACCENT = "\u0301"
SOFT_HYPHEN, NON_JOINER, JOINER = "\u00ad", "\u200c", "\u200d"
ZERO_WIDTH_SPACE, WORD_JOINER, MARK = "\u200b", "\u2060", "\ufeff"
HEART, AS_EMOJI = "\u2764", "\ufe0f"
KOREAN = unicodedata.normalize("NFD", "한국")


def read(word, text, **fields):
    """The sentence of a word in a text."""
    return probe.read_sentences([{"word": word, "sense": "1", "text": text} | fields]).sentences[0]


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
        ("하", KOREAN),  # decomposed
        ("가", "각국에서"),
        *(("bat", text) for text in ("A batch", "combat", "bat_man", "batting")),
    ],
)
def test_a_part_of_a_word_or_of_a_letter_is_no_word(word, text):
    assert spans_of(word, text) == []
    with pytest.raises(probe.InputError, match="occurs (only inside another word|nowhere). Give a"):
        find_word(text, word)


@pytest.mark.parametrize(
    ("word", "text", "form"),
    [
        ("bat", "Bats flew over it.", "Bats"),
        ("bat", "The BAT's wing", "BAT"),
        ("bat", "The bats’ wings", "bats"),
        ("match", "Two matches, no dispatches", "matches"),
        ("c.", "Write c. and not cs", "c."),
        ("कल", "वह कल आएगा", "कल"),
        ("café", f"The old cafe{ACCENT}s there", f"cafe{ACCENT}s"),
        (f"cafe{ACCENT}", "The old CAFÉ there", "CAFÉ"),
        ("Å", "The A\u030a there", "A\u030a"),
        ("Å", "The \u212b there", "\u212b"),  # the sign for ångström is the same letter
        ("bank", f"The ba{SOFT_HYPHEN}nk there", f"ba{SOFT_HYPHEN}nk"),
        ("bank", f"The bank{SOFT_HYPHEN} there", "bank"),
        ("한국", unicodedata.normalize("NFD", "그 한국 은"), KOREAN),
        ("ดี", "วันนี้ดีมาก", "ดี"),  # Thai has no spaces between words
        ("ธนาคาร", f"ไป{ZERO_WIDTH_SPACE}ธนาคาร{ZERO_WIDTH_SPACE}แล้ว", "ธนาคาร"),
        ("银行", "他在银行工作。", "银行"),
        ("が", "\u304b\u3099ある", "\u304b\u3099"),  # composed and decomposed Japanese
        (f"{MARK}banc{ZERO_WIDTH_SPACE}", f"un{ZERO_WIDTH_SPACE}banc", "banc"),
    ],
)
def test_a_word_is_found_in_any_spelling(word, text, form):
    assert read(word, text).form == form
    assert [text[start:end] for start, end in spans_of(word, text)] == [form]


@pytest.mark.parametrize(
    ("word", "text", "covered"),
    [
        ("bank", "The bank has a boat", "has "),
        ("bank", "The bank has a boat", "ank "),
        ("bank", "The bank has a boat", "ban"),
        ("ice cream", "The ice cream van", "ice"),
        ("mouse", "Three mice, say", "ice,"),
        ("कल", "उसने कला सीखी", "कल"),  # without its vowel sign
        ("\U0001f3fb", "The \U0001f3fb there", "\U0001f3fb"),  # a skin tone without its emoji
    ],
)
def test_a_given_span_of_anything_but_the_word_or_a_form_of_it_is_refused(word, text, covered):
    start = text.index(covered)
    with pytest.raises(probe.InputError) as error:
        read(word, text, start=start, end=start + len(covered))
    assert str(error.value).startswith(
        f"Cannot read a table made in Python, row 1: the word is at characters {start} to "
        f"{start + len(covered)}, which are {covered!r}, expected {word!r} or a form of it, in "
        f"whole letters ("
    )


@pytest.mark.parametrize(
    ("word", "text", "covered"),
    [
        ("mouse", "The mouse saw the mice", "mice"),
        ("be", "To be is to do", "is"),
        ("bank", "The riverbank", "bank"),
        ("Buch", "Viele Lehrbücher", "bücher"),
        ("בנק", "הבנק שלנו", "הבנק"),
        ("岸", "川銀行の川岸", "川岸"),
        ("☕", "A ☕\ufe0f now", "☕\ufe0f"),
    ],
)
def test_a_given_span_of_the_word_or_a_form_of_it_is_accepted(word, text, covered):
    start = text.rindex(covered)
    assert read(word, text, start=start, end=start + len(covered)).form == covered


def test_letters_cover_a_text_except_invisible_characters_and_keep_their_marks():
    text = f"cafe{ACCENT} ba{SOFT_HYPHEN}nk"
    covered = "".join(text[letter.start : letter.end] for letter in letters(text))
    assert covered == text.replace(SOFT_HYPHEN, "")
    for text in ("कला सीखी", "কলা খায়", "கலை கற்றான்", f"cafe{ACCENT} nai{SOFT_HYPHEN}ve"):
        assert WORD.findall(text) == text.split()


# --- spellings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        (f"cote{ACCENT}", "coté"),
        (f"{MARK}bank", "bank"),
        (f" {JOINER}ba{WORD_JOINER}nk{SOFT_HYPHEN}{ZERO_WIDTH_SPACE} {NON_JOINER}", "bank"),
        (HEART + AS_EMOJI, HEART),
        (KOREAN, "한국"),
        (f"می{NON_JOINER}رود", f"می{NON_JOINER}رود"),  # a joiner belongs to the Persian spelling
        ("\u0600٣", "\u0600٣"),  # the Arabic number sign is a format character that is visible
        ("Bank", "Bank"),
    ],
)
def test_a_name_is_stored_in_one_spelling(name, stored):
    assert plain(name) == stored


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("CO\u0302TÉ", f"c\u00f4te{ACCENT}"),
        (f"می{NON_JOINER}رود", "میرود"),
        (f"{HEART}{AS_EMOJI}", HEART),
        ("ΟΔΟΣ", "οδος"),  # capital sigma is a final sigma at the end
        ("\u1e9bank", "ṡank"),  # the long s with a dot above is an s with a dot above
    ],
)
def test_spellings_are_compared_without_case_and_characters_of_no_width(first, second):
    assert fold(first) == fold(second) == unicodedata.normalize("NFC", fold(first))


def rows(spell):
    """Twelve cue words, each with two sentences of its sense; `spell(row, name)` spells a name."""
    cues = [f"é{letter}" for letter in "abcdefghijkl"]
    texts = [(cue, end) for cue in cues for end in ("ici", "ailleurs")]
    return [
        {
            "word": spell(number, "thé"),
            "sense": spell(number, "côté" if cue < "ég" else "café"),
            "text": f"Un {(spelled_cue := spell(number, cue))} du thé {end}",
            "cue": spelled_cue,
            "frame": spell(number, f"été {number % 4}"),
        }
        for number, (cue, end) in enumerate(texts)
    ]


def mixed(number, name):
    forms = (name, unicodedata.normalize("NFD", name), f"{MARK}{name}{ZERO_WIDTH_SPACE}")
    return forms[number % 3]


def test_sentences_in_mixed_spellings_have_the_names_and_the_splits_of_one_spelling():
    expected = probe.read_sentences(rows(lambda number, name: name)).sentences
    sentences = probe.read_sentences(rows(mixed)).sentences
    for column in ("word", "sense", "frame", "cue_word"):
        values = [getattr(sentence, column) for sentence in sentences]
        assert values == [getattr(sentence, column) for sentence in expected]
    assert len({sentence.cue_word for sentence in sentences}) == 12
    assert cross_fit(sentences, ("côté", "café"), seed=0) == cross_fit(
        expected, ("côté", "café"), seed=0
    )
    assert plan(sentences, seed=0) == plan(expected, seed=0)


@pytest.mark.parametrize(
    ("texts", "cues"),
    [
        (("Le même fleuve du banc", unicodedata.normalize("NFD", "Le même argent du banc")), ["fleuve", "argent"]),
        (("वह नदी के पास banc", "वह पैसा के पास banc"), ["नदी", "पैसा"]),  # with its last vowel sign
    ],
)  # fmt: skip
def test_a_cue_is_inferred_from_a_pair_in_two_spellings(texts, cues):
    table = [
        {"word": "banc", "sense": str(number), "text": text, "pair": 1}
        for number, text in enumerate(texts)
    ]
    inferred = infer_cues(probe.read_sentences(table).sentences, both_sides=False)
    assert [sentence.cue for sentence in inferred] == cues
