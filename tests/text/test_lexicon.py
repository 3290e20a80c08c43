"""The lexicon and the natural sentences: aligned pairs that differ in the cue alone, frames without
a hint at the sense, one token for each word and cue, and spans."""

import itertools
import re
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import probe
from probe import lexicon
from probe import lexicon as module

DATA = Path(__file__).parents[3] / "shared" / "data"
GPT2 = DATA / "gpt2-tokenizer" / "tokenizer.json"
LESSON_WORDS = {
    "bank": {"river", "money"},
    "mole": {"animal", "unit", "skin", "spy"},
    "apple": {"fruit", "company"},
}
ENTRIES = [lexicon.entry(word) for word in lexicon.words()]
SHORT = {word: lexicon.expand(word, both_sides=True).sentences for word in lexicon.words()}
NATURAL = {
    word: lexicon.expand_natural(word, both_sides=True).sentences
    for word in lexicon.natural_words()
}
both_kinds = pytest.mark.parametrize("of_words", [SHORT, NATURAL], ids=["short", "natural"])


@pytest.fixture(scope="module")
def gpt2():
    if not GPT2.exists():
        pytest.skip(f"the tokenizer of GPT-2 is not at {GPT2}")
    return Tokenizer.from_file(str(GPT2))


def pairs_of(sentences):
    pairs = defaultdict(list)
    for row in sentences:
        pairs[row.pair].append(row)
    return pairs


def without_cue(row):
    return row.text[: row.cue_start] + row.text[row.cue_end :]


def frame_of(row):
    """The words of a sentence in lower case, without its word and cue."""
    first, second = sorted([(row.start, row.end), (row.cue_start, row.cue_end)])
    text = row.text[: first[0]] + row.text[first[1] : second[0]] + row.text[second[1] :]
    return re.findall(r"[a-z']+", text.lower())


# --- what every user of the sentences relies on ---------------------------------------------------


@both_kinds
def test_a_pair_has_every_sense_once_and_differs_in_the_cue_alone(of_words):
    for word, sentences in of_words.items():
        senses = list(dict.fromkeys(row.sense for row in sentences))
        assert len({row.text for row in sentences}) == len(sentences)
        for pair in pairs_of(sentences).values():
            assert [row.sense for row in pair] == senses
            assert len({without_cue(row) for row in pair}) == 1
            assert len({(row.frame, row.distance) for row in pair}) == 1
            for row in pair:
                assert row.word == row.form == word and "{" not in row.text
                assert re.fullmatch(r"[A-Za-z]+(-[a-z]+)*", row.cue)


@both_kinds
def test_a_cue_has_one_sense_and_no_frame_names_a_cue_or_the_word(of_words):
    for word, sentences in of_words.items():
        sense_of = {row.cue_word: row.sense for row in sentences}
        assert all(sense_of[row.cue_word] == row.sense for row in sentences)
        hints = {form for name in (word, *sense_of) for form in (name, f"{name}s")}
        for row in sentences:
            assert not hints & set(frame_of(row)), row.text
            if article := re.search(r"\b(an?) $", row.text[: row.cue_start], re.IGNORECASE):
                assert (article[1].lower() == "an") == (row.cue[0].lower() in "aeiou"), row.text


@both_kinds
def test_pairs_are_aligned_and_the_word_is_a_token_in_gpt2(of_words, gpt2):
    for word, sentences in of_words.items():
        token = gpt2.encode(f" {word}")
        assert len(token.ids) == 1
        for pair in pairs_of(sentences).values():
            encoded = [gpt2.encode(row.text) for row in pair]
            places = {
                (len(each.ids), [end for _, end in each.offsets].index(row.end))
                for each, row in zip(encoded, pair, strict=True)
            }
            assert len(places) == 1, pair[0].text
            assert all(each.ids.count(token.ids[0]) == 1 for each in encoded)


# --- the short frames -----------------------------------------------------------------------------


def test_there_are_nine_frames_at_four_distances_with_twelve_cues_for_each_sense():
    assert len(ENTRIES) == 16 and set(lexicon.words()) > set(LESSON_WORDS)
    for frame in (*module.frames_behind(), *(each for entry in ENTRIES for each in entry.frames)):
        slots = ["{word}", "{cue}"] if frame.behind else ["{cue}", "{word}"]
        for text in frame.versions.values():
            assert re.findall(r"\{\w*\}?|\}", text) == slots, text
    for entry in ENTRIES:
        assert len(entry.frames) == 9
        assert all(list(frame.versions) == [1, 2, 3, 4] for frame in entry.frames)
        assert all(len(sense.cues) == 12 for sense in entry.senses)
        assert len({cue for sense in entry.senses for cue in sense.cues}) == 12 * len(entry.senses)
        before = lexicon.expand(entry.word).sentences
        assert len(before) == 9 * 4 * 12 * len(entry.senses)
        assert not any(row.cue_after for row in before)
        after = SHORT[entry.word][len(before) :]
        assert before == SHORT[entry.word][: len(before)] and all(row.cue_after for row in after)
        assert not {row.frame for row in after} & {row.frame for row in before}
    for word, senses in LESSON_WORDS.items():
        assert {sense.name for sense in lexicon.entry(word).senses} == senses


def test_cues_and_continuations_are_tokens_and_the_distance_counts_tokens(gpt2):
    for entry in ENTRIES:
        for sense in entry.senses:
            assert not set(sense.cues) & {text.strip() for text in sense.continuations}
            for text in (*sense.continuations, *(f" {cue}" for cue in sense.cues)):
                assert len(gpt2.encode(text).ids) == 1, text
        for row in lexicon.expand(entry.word).sentences[::7]:
            ends = [end for _, end in gpt2.encode(row.text).offsets]
            steps = ends.index(row.end) - ends.index(row.cue_end)
            assert row.distance == steps or (row.distance == 4 and 4 <= steps <= 6), row


def test_sentences_with_a_longer_cue_are_left_out_and_counted():
    corpus = lexicon.expand("bank")
    shorter = module.keep_one_token_cues(corpus, lambda text: text != " river")
    assert len(shorter.left_out) == len(corpus.sentences) - len(shorter.sentences) == 9 * 4
    assert shorter.left_out[0].where == "bank/looks/1/0 (river)"
    assert {item.reason for item in shorter.left_out} == {
        "the cue 'river' is more than one token here"
    }
    again = module.keep_one_token_cues(shorter, lambda text: text != " loan")
    assert again.left_out[: 9 * 4] == shorter.left_out and len(again.left_out) == 2 * 9 * 4
    unmarked = probe.read_sentences([{"word": "bank", "sense": "1", "text": "The bank"}])
    assert module.keep_one_token_cues(unmarked, lambda text: False) == unmarked


def test_the_hash_follows_the_files_that_are_read():
    sums = [lexicon.expand("bank"), lexicon.expand("mole"), lexicon.expand("bank", both_sides=True)]
    sums = [*(corpus.sha256 for corpus in sums), module.sha256(["bank", "mole"])]
    assert len({*sums, module.sha256(["mole", "bank"])}) == 5
    assert module.sha256(["bank"]) == sums[0]


# The last value is whether the cue comes after the word, as judged by reading.
SHOWCASE = [
    ("Make a deposit at the bank", "bank", "bank", "money", False),
    ("The river bank", "bank", "bank", "river", False),
    ("American shrew mole", "mole", "mole", "animal", False),
    ("One mole of carbon dioxide", "mole", "mole", "unit", True),
    ("Take a biopsy of the mole", "mole", "mole", "skin", False),
    ("Apple unveiled a new smartphone model at their latest product launch event", "apple", "Apple", "company", True),
    ("Please buy an apple and an orange from the grocery store", "apple", "apple", "fruit", True),
    ("I enjoy eating apples", "apple", "apples", "fruit", False),
    ("I enjoy eating apples, and I also love using Apple products", "apple", "apples", "fruit", False),
    ("I enjoy eating apples, and I also love using Apple products", "apple", "Apple", "company", False),
]  # fmt: skip


def test_the_showcase_marks_the_form_of_the_word_and_its_sense():
    rows = lexicon.showcase()
    assert [(row.text, row.word, row.form, row.sense, row.cue_after) for row in rows] == SHOWCASE
    assert all(row.sense in LESSON_WORDS[row.word] and row.note.endswith(".") for row in rows)
    texts = {row.text.casefold() for sentences in SHORT.values() for row in sentences}
    assert not texts & {row.text.casefold() for row in rows}


# --- the natural sentences ------------------------------------------------------------------------


def test_natural_sentences_have_the_cue_near_and_far_and_a_kind():
    assert len(NATURAL) >= 32 and len({row.sense for row in NATURAL["mole"]}) == 3
    for word, sentences in NATURAL.items():
        before = lexicon.expand_natural(word).sentences
        assert {row.sense for row in before} == {row.sense for row in sentences}
        assert len(before) < len(sentences)
        frames = {row.frame: min(row.distance, 4) for row in before}
        near_and_far = [[*frames.values()].count(distance) for distance in (1, 2, 3, 4)]
        assert len(frames) >= 14 and min(near_and_far) >= 1, word
        assert all(1 <= row.distance <= 12 and not row.cue_after for row in before)
        kinds = {dict(row.more)["kind"] for row in sentences}
        assert len(kinds) == 1 and kinds <= {"homonym", "polyseme"}


def test_no_two_natural_frames_of_a_word_are_similar():
    for sentences in NATURAL.values():
        frames = {row.frame: frame_of(row) for row in sentences}
        for first, second in itertools.combinations(frames.values(), 2):
            assert SequenceMatcher(None, first, second).ratio() < 0.75, (first, second)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look_up", "word", "start"),
    [
        (lexicon.entry, "../lexicon/bank", "Cannot look up '../lexicon/bank' in the lexicon: it has only apple, bank,"),
        (lexicon.expand, "showcase", "Cannot look up 'showcase' in the lexicon: it has only apple,"),
        (lexicon.expand, ["bank"], "Cannot look up ['bank'] in the lexicon: it has only apple,"),
        (lexicon.expand_natural, "wug", "Cannot look up natural sentences with 'wug': only apple,"),
    ],
)  # fmt: skip
def test_an_unknown_word_is_refused_with_the_known_ones(look_up, word, start):
    with pytest.raises(probe.InputError, match=f"^{re.escape(start)}") as error:
        look_up(word)
    assert str(error.value).endswith("Give one of these, or a file with your sentences.")
