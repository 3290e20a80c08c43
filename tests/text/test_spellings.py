"""Spellings that look the same are the same name, word and cue."""

import unicodedata

import pytest

from probe.experiments.material import spelled
from probe.text.cues import infer_cues
from probe.text.sentences import read_sentences
from probe.text.spans import fold, plain, spans_of
from probe.text.splits import cross_fit, cue_words, plan

COMPOSED = "cot\u00e9"
DECOMPOSED = "cote\u0301"
SOFT_HYPHEN, NON_JOINER, JOINER = "\u00ad", "\u200c", "\u200d"
ZERO_WIDTH_SPACE, WORD_JOINER, MARK = "\u200b", "\u2060", "\ufeff"
HEART, AS_EMOJI = "\u2764", "\ufe0f"


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        (DECOMPOSED, COMPOSED),
        (f"{MARK}bank", "bank"),
        (f"ba{SOFT_HYPHEN}nk{ZERO_WIDTH_SPACE}", "bank"),
        (f" {JOINER}ba{WORD_JOINER}nk {NON_JOINER}", "bank"),
        (HEART + AS_EMOJI, HEART),
        (unicodedata.normalize("NFD", "한국"), "한국"),
        (f"می{NON_JOINER}رود", f"می{NON_JOINER}رود"),  # a joiner belongs to the Persian spelling
        ("\u0600٣", "\u0600٣"),  # the Arabic number sign is a format character that is visible
        ("Bank", "Bank"),
    ],
)
def test_a_name_is_stored_in_one_spelling(name, stored):
    assert plain(name) == stored


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("CO\u0302T\u00c9", "c\u00f4te\u0301"),
        (f"می{NON_JOINER}رود", "میرود"),
        (f"{HEART}{AS_EMOJI}", HEART),
        ("ΟΔΟΣ", "οδός".replace("ό", "ο")),  # capital sigma is a final sigma at the end
        ("\u1e9bank", "ṡank"),  # the long s with a dot above is an s with a dot above
    ],
)
def test_spellings_are_compared_without_case_and_characters_of_no_width(one, other):
    assert fold(one) == fold(other) == unicodedata.normalize("NFC", fold(one))


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
            "split": spell(number, "train" if number % 3 else "test"),
        }
        for number, (cue, end) in enumerate(texts)
    ]


def mixed(number, name):
    forms = (name, unicodedata.normalize("NFD", name), f"{MARK}{name}{ZERO_WIDTH_SPACE}")
    return forms[number % 3]


def test_sentences_in_mixed_spellings_are_the_sentences_in_one_spelling():
    expected = read_sentences(rows(lambda number, name: name)).sentences
    corpus = read_sentences(rows(mixed))
    assert list(corpus.by_word()) == ["thé"]
    for column in ("sense", "frame", "split", "cue_word"):
        values = [getattr(sentence, column) for sentence in corpus.sentences]
        assert values == [getattr(sentence, column) for sentence in expected]
    assert len(set(cue_words(corpus.sentences))) == 12
    assert read_sentences(rows(mixed), word=unicodedata.normalize("NFD", "thé")) == corpus


def test_parts_of_a_split_share_no_cue_in_another_spelling():
    sentences = read_sentences([row | {"split": None} for row in rows(mixed)]).sentences
    for split in (cross_fit(sentences, ("côté", "café"), seed=0), plan(sentences, seed=0)):
        assert len(split.holdouts) > 1
        cues = [unicodedata.normalize("NFC", sentences[row].cue) for row in split.rows]
        cues = [cue.strip(MARK + ZERO_WIDTH_SPACE) for cue in cues]
        for holdout in split.holdouts:
            train, test = ({cues[row] for row in part} for part in (holdout.train, holdout.test))
            assert not train & test


def test_a_word_is_found_and_named_in_any_spelling():
    text = f"Le {DECOMPOSED} et le ba{ZERO_WIDTH_SPACE}nc"
    assert spans_of(f"{MARK}{COMPOSED}{ZERO_WIDTH_SPACE}", text) == [(3, 8)]
    assert spans_of("banc", text) == [(15, 20)]
    # The zero-width space still separates words.
    assert spans_of("banc", f"un{ZERO_WIDTH_SPACE}banc") == [(3, 7)]
    assert spelled(f"{DECOMPOSED}{ZERO_WIDTH_SPACE}", (COMPOSED, "banc")) == COMPOSED
    assert spelled("BANC\ufeff", (COMPOSED, "banc")) == "banc"


def test_a_cue_is_inferred_from_a_pair_in_two_spellings():
    texts = ("Le même fleuve du banc", unicodedata.normalize("NFD", "Le même argent du banc"))
    table = [
        {"word": "banc", "sense": str(number), "text": text, "pair": 1}
        for number, text in enumerate(texts)
    ]
    marked = infer_cues(read_sentences(table).sentences, both_sides=False)
    assert [sentence.cue for sentence in marked] == ["fleuve", "argent"]
