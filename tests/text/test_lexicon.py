"""Properties of the lexicon: aligned pairs, frames without hints at the sense, and spans."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from probe.errors import InputError
from probe.text import lexicon
from probe.text.sentences import Sentence

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "gpt2-tokenizer" / "tokenizer.json"
LESSON_WORDS = {
    "bank": {"river", "money"},
    "mole": {"animal", "unit", "skin", "spy"},
    "apple": {"fruit", "company"},
}
OTHER_WORDS = {"seal", "spring", "crane", "bat", "pitcher", "bark", "organ", "trunk", "match"}
ENTRIES = [lexicon.entry(word) for word in lexicon.words()]
ALL_CUES = {cue for entry in ENTRIES for sense in entry.senses for cue in sense.cues}
SENTENCES = [sentence for entry in ENTRIES for sentence in lexicon.expand(entry.word).sentences]


@pytest.fixture(scope="module")
def gpt2():
    if not GPT2.exists():
        pytest.skip(f"the tokenizer of GPT-2 is not at {GPT2}")
    return Tokenizer.from_file(str(GPT2))


def frame_words(text):
    return re.findall(r"[a-z']+", text.replace("{cue}", "").replace("{word}", "").lower())


def versions():
    frames = [(entry.word, frame) for entry in ENTRIES for frame in entry.frames]
    return [
        (word, frame.name, *version) for word, frame in frames for version in frame.versions.items()
    ]


def test_the_words_and_senses_asked_for_are_there():
    assert set(lexicon.words()) >= OTHER_WORDS | set(LESSON_WORDS)
    assert len(lexicon.words()) == 16
    for word, senses in LESSON_WORDS.items():
        assert {sense.name for sense in lexicon.entry(word).senses} == senses


@pytest.mark.parametrize("entry", ENTRIES, ids=lexicon.words())
def test_a_word_has_cues_frames_and_continuations_enough(entry):
    assert len(entry.frames) == len({frame.name for frame in entry.frames}) == 9
    assert all(list(frame.versions) == [1, 2, 3, 4] for frame in entry.frames)
    for sense in entry.senses:
        assert len(set(sense.cues)) == 12
        assert len(set(sense.continuations)) >= 4
        assert all(re.fullmatch(r" [a-z]+", continuation) for continuation in sense.continuations)
        assert all(re.fullmatch(r"[a-z]+", cue) for cue in sense.cues)
    owner = {}
    for sense in entry.senses:
        for text in (*sense.cues, *(continuation.strip() for continuation in sense.continuations)):
            assert owner.setdefault(text, sense.name) == sense.name  # no cue belongs to two senses
            assert text not in lexicon.words()
        assert not set(sense.cues) & {continuation.strip() for continuation in sense.continuations}


def test_some_cues_are_shared_by_two_words():
    users = defaultdict(set)
    for entry in ENTRIES:
        for sense in entry.senses:
            for cue in sense.cues:
                users[cue].add(entry.word)
    assert {"bark", "palm", "trunk"} <= users["tree"]
    assert sum(len(words) > 1 for words in users.values()) >= 20


def test_frames_are_short_sentences_of_a_small_vocabulary_that_do_not_show_the_sense():
    for word, name, distance, text in versions():
        continuations = {
            continuation.strip()
            for sense in lexicon.entry(word).senses
            for continuation in sense.continuations
        }
        forms = {
            form for lexicon_word in lexicon.words() for form in (lexicon_word, f"{lexicon_word}s")
        }
        assert not set(frame_words(text)) & (forms | ALL_CUES | continuations), (
            word,
            name,
            distance,
        )
        assert 6 <= len(text.split()) <= 16, (word, name, distance)
        assert re.fullmatch(r"[A-Z].*[.?]", text), (word, name, distance)
        assert not re.search(r"\ban? \{", text), (
            word,
            name,
            distance,
        )  # no article that depends on the cue
    assert len({(word, text) for word, _, _, text in versions()}) == 16 * 9 * 4
    assert len({form for *_, text in versions() for form in frame_words(text)}) <= 350


def test_every_span_covers_the_word_and_a_cue_of_its_sense():
    cues = {(entry.word, sense.name): sense.cues for entry in ENTRIES for sense in entry.senses}
    for sentence in SENTENCES:
        assert sentence.text[sentence.start : sentence.end] == sentence.word
        assert (
            sentence.cue_start is not None
            and sentence.cue_end is not None
            and sentence.cue_end < sentence.start
        )
        assert (
            sentence.text[sentence.cue_start : sentence.cue_end]
            in cues[sentence.word, sentence.sense]
        )
    for entry in ENTRIES:  # at least 60 sentences of every sense, and none twice
        sentences = lexicon.expand(entry.word).sentences
        assert (
            len({sentence.text for sentence in sentences})
            == len(sentences)
            == 9 * 4 * 12 * len(entry.senses)
        )
        for sense in entry.senses:
            assert sum(sentence.sense == sense.name for sentence in sentences) >= 60


def test_a_pair_has_every_sense_once_and_differs_in_the_cue_alone():
    for entry in ENTRIES:
        members = defaultdict(list)
        for sentence in lexicon.expand(entry.word).sentences:
            members[sentence.pair].append(sentence)
        for name, pair in members.items():
            assert [member.sense for member in pair] == [sense.name for sense in entry.senses]
            word, frame, distance, number = str(name).split("/")
            assert {(member.word, member.frame, str(member.distance)) for member in pair} == {
                (word, frame, distance)
            }
            without_cue = {
                member.text[: member.cue_start] + member.text[member.cue_end :] for member in pair
            }
            assert len(without_cue) == 1
            cues = [member.text[member.cue_start : member.cue_end] for member in pair]
            assert cues == [sense.cues[int(number)] for sense in entry.senses]


def test_words_cues_and_continuations_are_single_tokens_of_gpt2(gpt2):
    for entry in ENTRIES:
        cues = [f" {cue}" for sense in entry.senses for cue in sense.cues]
        for text in (
            f" {entry.word}",
            *cues,
            *(text for sense in entry.senses for text in sense.continuations),
        ):
            assert len(gpt2.encode(text).ids) == 1, text


def test_tokens_from_cue_to_word_are_the_distance_and_pairs_are_aligned(gpt2):
    shapes = defaultdict(set)
    for sentence, encoded in zip(
        SENTENCES, gpt2.encode_batch([item.text for item in SENTENCES]), strict=True
    ):
        ends = [end for _, end in encoded.offsets]
        target, cue = ends.index(sentence.end), ends.index(sentence.cue_end)
        assert sentence.distance == target - cue or (
            sentence.distance == 4 and 4 <= target - cue <= 6
        ), sentence
        # One token each between cue and word: a word, or a comma.
        between = sentence.text[sentence.cue_end : sentence.start]
        assert len(re.findall(r"[A-Za-z]+|,", between)) == target - cue - 1, sentence
        shapes[sentence.pair].add((len(ends), target))
    assert all(len(shape) == 1 for shape in shapes.values())


def test_the_position_of_the_word_varies_between_frames(gpt2):
    lengths = defaultdict(set)
    for word, _, _, text in versions():
        start = text.partition(" {word}")[0].replace("{cue}", lexicon.entry(word).senses[0].cues[0])
        lengths[word].add(len(gpt2.encode(start).ids))
    assert min(map(len, lengths.values())) >= 6 and len(lengths) == 16


def test_importing_the_lexicon_finds_the_module_and_loads_neither_torch_nor_pandas():
    code = (
        "import sys, probe.text.lexicon as it; print(it.__file__, {'torch', 'pandas'} & "
        "set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.endswith("/lexicon.py set()\n")


def test_an_unknown_word_is_refused_in_one_sentence():
    with pytest.raises(InputError) as error:
        lexicon.entry("../lexicon/bank")
    assert str(error.value) == (
        "Cannot look up '../lexicon/bank' in the lexicon: it has only apple, "
        "bank, bark, bat, crane, "
        "match, mole, mouse, nail, organ, palm, pitcher, ruler, seal, spring, trunk. Give one of "
        "these, or a file with "
        "your sentences."
    )
    with pytest.raises(InputError, match="Cannot look up 'showcase' in the lexicon: it has only"):
        lexicon.expand("showcase")


@pytest.mark.parametrize("look_up", [lexicon.entry, lexicon.expand, lexicon.expand_natural])
def test_a_list_is_refused_as_a_word(look_up):
    with pytest.raises(InputError, match=r"Cannot look up .*\['bank'\].* only "):
        look_up(["bank"])


@pytest.mark.parametrize(
    ("text", "behind", "first", "second"),
    [
        ("The {word} {cue} is far.", False, "{cue}", "{word}"),
        ("the {cue} and the {word}", True, "{word}", "{cue}"),
    ],
)
def test_a_frame_has_cue_and_word_once_and_in_order(text, behind, first, second):
    with pytest.raises(InputError) as error:
        lexicon.Frame("walk", {1: text}, behind=behind)
    expected = f"got '{text}', expected {first} once and then {second} once"
    assert (
        str(error.value)
        == f"Cannot read frame 'walk' at distance 1: {expected}. Correct the frame."
    )


UNPAIRED = [([("river",)], "[1] cues, 1"), ([("river", "mud"), ("loan",)], "[2, 1] cues, 3")]
UNPAIRED += [([("river",), ("river",)], "[1, 1] cues, 1")]


@pytest.mark.parametrize(("cues", "got"), UNPAIRED)
def test_an_entry_that_cannot_be_paired_is_refused(cues, got):
    senses = tuple(lexicon.Sense(str(index), "", words, ()) for index, words in enumerate(cues))
    with pytest.raises(InputError) as error:
        lexicon.Entry("bank", senses, ())
    assert str(error.value) == (
        f"Cannot read the lexicon's word 'bank': got senses with {got} of them different, expected two "
        "or more senses with "
        "equal numbers of cues and none in common. Correct its file."
    )


def test_sentences_with_a_longer_cue_are_left_out_and_counted():
    corpus = lexicon.expand("bank")
    tokenized = set()

    def is_one_token(text):
        tokenized.add(text)
        return text != " river"

    shorter = lexicon.keep_one_token_cues(corpus, is_one_token)
    assert tokenized == {f" {cue}" for sense in lexicon.entry("bank").senses for cue in sense.cues}
    assert len(shorter.left_out) == 9 * 4
    assert len(shorter.sentences) == len(corpus.sentences) - 9 * 4
    assert {item.reason for item in shorter.left_out} == {
        "the cue 'river' is more than one token here"
    }
    assert shorter.left_out[0].where == "bank/looks/1/0 (river)"
    assert (shorter.source, shorter.sha256) == (corpus.source, corpus.sha256)
    again = lexicon.keep_one_token_cues(shorter, lambda text: text != " loan")
    assert again.left_out[: 9 * 4] == shorter.left_out and len(again.left_out) == 2 * 9 * 4


def test_sentences_without_a_known_cue_are_kept():
    sentence = Sentence("bank", "river", "The bank was steep.", 4, 8)
    corpus = lexicon.Corpus((sentence,), (), "mine.jsonl", "0")
    assert lexicon.keep_one_token_cues(corpus, lambda text: False) == corpus


def test_the_hash_of_the_lexicon_follows_its_files():
    assert (
        lexicon.sha256(["bank"]) == lexicon.expand("bank").sha256 != lexicon.expand("mole").sha256
    )
    assert lexicon.sha256(["bank", "mole"]) != lexicon.sha256(["mole", "bank"])


# The last value is whether the cue comes after the word, as judged by reading.
SHOWCASE = [
    ("Make a deposit at the bank", "bank", "bank", "money", False),
    ("The river bank", "bank", "bank", "river", False),
    ("American shrew mole", "mole", "mole", "animal", False),
    ("One mole of carbon dioxide", "mole", "mole", "unit", True),
    ("Take a biopsy of the mole", "mole", "mole", "skin", False),
    (
        "Apple unveiled a new smartphone model at their latest product launch event",
        "apple",
        "Apple",
        "company",
        True,
    ),
    ("Please buy an apple and an orange from the grocery store", "apple", "apple", "fruit", True),
    ("I enjoy eating apples", "apple", "apples", "fruit", False),
    (
        "I enjoy eating apples, and I also love using Apple products",
        "apple",
        "apples",
        "fruit",
        False,
    ),
    (
        "I enjoy eating apples, and I also love using Apple products",
        "apple",
        "Apple",
        "company",
        False,
    ),
]


def test_the_showcase_marks_the_form_of_the_word_and_the_order_of_word_and_cue():
    sentences = lexicon.showcase()
    assert [
        (row.text, row.word, row.text[row.start : row.end], row.sense, row.cue_after)
        for row in sentences
    ] == SHOWCASE
    for row in sentences:
        assert row.cue == row.text[row.cue_start : row.cue_end]
        assert row.cue_after == (row.text.index(str(row.cue)) > row.start)
        assert row.sense in {sense.name for sense in lexicon.entry(row.word).senses}
        assert row.note.endswith(".")


def test_no_showcase_sentence_occurs_in_the_lexicon():
    assert not {row.text.casefold() for row in lexicon.showcase()} & {
        item.text.casefold() for item in SENTENCES
    }


def test_sentences_on_both_sides_have_the_cue_before_and_then_after_the_word():
    before, both = lexicon.expand("bank"), lexicon.expand("bank", both_sides=True)
    after = both.sentences[len(before.sentences) :]
    assert both.sentences[: len(before.sentences)] == before.sentences
    assert both.sha256 != before.sha256 == lexicon.sha256(["bank"])
    assert both.sha256 == lexicon.sha256(["bank"], both_sides=True)
    frames, cues = (
        lexicon.frames_behind(),
        sum(len(sense.cues) for sense in lexicon.entry("bank").senses),
    )
    assert len(after) == sum(len(frame.versions) for frame in frames) * cues
    assert not {row.frame for row in after} & {row.frame for row in before.sentences}
    assert not {row.pair for row in after} & {row.pair for row in before.sentences}
    for row in after:
        assert row.text[row.start : row.end] == "bank" and row.cue_start > row.end
        [sense] = [sense for sense in lexicon.entry("bank").senses if sense.name == row.sense]
        assert row.text[row.cue_start : row.cue_end] in sense.cues
        [frame] = [frame for frame in frames if frame.name == row.frame]
        plan = frame.versions[row.distance]
        assert row.text == plan.replace("{word}", "bank").replace(
            "{cue}", row.text[row.cue_start : row.cue_end]
        )
