"""The training text of the embedded model: what it must contain, and what it must never contain."""

import re
from collections import Counter
from functools import cache
from itertools import chain
from random import Random

import pytest
from training import grammar
from training.templates import fill, finish, tables
from training.withheld import allowed, echoes, held_out, held_out_cues, lexicon_windows

from probe.text import lexicon

pytestmark = pytest.mark.campaign

SAMPLE = 20_000
PEOPLE = {"king", "queen", "prince"}


@cache
def sample() -> tuple[str, ...]:
    return (*grammar.units(SAMPLE, seed=11), *grammar.units(300, seed=12, long=True))


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def forms(word: str) -> set[str]:
    return {word, {"mouse": "mice", "match": "matches"}.get(word, word + "s")}


AMBIGUOUS = set().union(*(forms(word) for word in lexicon.words()))
SENSES = [(word, sense) for word in lexicon.words() for sense in lexicon.entry(word).senses]
CUES = {cue for _, sense in SENSES for cue in sense.cues}


def strings(table: object) -> list[str]:
    if isinstance(table, str):
        return [table]
    if isinstance(table, dict):
        return list(
            chain.from_iterable(strings(value) for key, value in table.items() if key != "kept_out")
        )
    return (
        list(chain.from_iterable(strings(value) for value in table))
        if isinstance(table, list)
        else []
    )


def test_every_slot_of_every_table_is_defined() -> None:
    topic = grammar.topics()[0]
    known = {*tables(), *topic.says, *"CDWX", "Ws", "xdoes", "xis", "xseemed", "short"}
    known |= set(tables()["character"][0])
    for text in strings(dict(tables())):
        for name, source in re.findall(r"\{(\w+)(?::(\w+))?\}", text):
            assert source in known if source else name in known or f"{{{name}:" in text, (
                name,
                text,
            )
    assert not [text for text in sample() if "{" in text or "}" in text]


def test_ordinary_words_tell_no_sense() -> None:
    """No table entry has an ambiguous word. No ordinary word is a cue, except for people with a she
    and a he."""
    for text in strings(dict(tables())):
        plain = set(words_of(re.sub(r"\{.*?\}", "", text)))
        assert not plain & AMBIGUOUS, text
        assert not plain & CUES - PEOPLE, text
    for topic in grammar.topics():
        said = [
            text
            for slot, texts in topic.says.items()
            if slot not in ("follow", "proper")
            for text in texts
        ]
        assert not [text for text in said if set(words_of(text)) & AMBIGUOUS]


def test_a_fifth_of_the_cues_is_held_out() -> None:
    held = held_out_cues()
    assert len(held) / len(CUES) == pytest.approx(0.2, abs=0.02)
    for word, sense in SENSES:
        own = held_out(word, sense.name)
        assert own == tuple(cue for cue in sense.cues if cue in held)
        assert 2 <= len(own) <= 3


def test_held_out_cues_never_meet_an_ambiguous_word() -> None:
    held = {form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es")}
    met = [
        text for text in sample() if AMBIGUOUS & set(words_of(text)) and held & set(words_of(text))
    ]
    assert met == []


def test_held_out_cues_are_as_common_in_topic_sentences_as_the_others() -> None:
    count = Counter(
        word for text in sample() if not AMBIGUOUS & set(words_of(text)) for word in words_of(text)
    )
    held = [count[cue] for cue in held_out_cues()]
    seen = [count[cue] for cue in CUES - held_out_cues()]
    assert min(held) >= 5
    assert sum(held) / len(held) > 0.7 * sum(seen) / len(seen)


def test_a_text_with_a_held_out_cue_beside_an_ambiguous_word_is_refused() -> None:
    held, seen = held_out("bank", "river")[0], "river"
    assert allowed(f"A {seen} bank was muddy.")
    assert not allowed(f"A {held} bank was muddy.")
    assert not allowed(f"A {held}'s moles were blind.")
    assert allowed(f"A {held} shore was muddy.")


def test_no_lexicon_sentence_is_produced() -> None:
    frames = {
        text.lower()
        for word in lexicon.words()
        for text in (row.text for row in lexicon.expand(word).sentences)
    }
    for text in sample():
        low = text.lower()
        assert low not in frames
        assert frames.isdisjoint(re.split(r"(?<=[.?!]) ", low))


def test_no_seven_words_in_a_row_of_a_frame_are_produced() -> None:
    windows = set()
    for word in lexicon.words():
        for row in lexicon.expand(word).sentences:
            words = words_of(row.text)
            runs = [tuple(words[i : i + 7]) for i in range(max(len(words) - 6, 1))]
            windows.update(run for run in runs if word in run)
    assert len(windows) > 10_000
    for text in sample():
        words = words_of(text)
        assert windows.isdisjoint(tuple(words[i : i + 7]) for i in range(len(words) - 6)), text


def test_every_lexicon_and_showcase_sentence_would_be_refused() -> None:
    rows = [row.text for word in lexicon.words() for row in lexicon.expand(word).sentences]
    assert [text for text in rows if not echoes(text, lexicon_windows())] == []
    assert [row.text for row in lexicon.showcase() if allowed(row.text)] == []
    assert not allowed("Yesterday the river bank was muddy.")


def test_the_sample_never_holds_a_showcase_text() -> None:
    shown = [row.text.lower() for row in lexicon.showcase()]
    assert [text for text in sample() if any(row in text.lower() for row in shown)] == []


def test_the_text_is_rich() -> None:
    count = Counter(word for text in sample() for word in words_of(text))
    assert len([word for word, n in count.items() if n >= 5]) >= 1_500
    assert len(lexicon.words()) >= 16
    for word in lexicon.words():
        assert all(count[form] >= 10 for form in forms(word))
    both = [
        text
        for text in sample()
        if len({w for w in lexicon.words() if forms(w) & set(words_of(text))}) >= 2
    ]
    none = [text for text in sample() if not AMBIGUOUS & set(words_of(text))]
    assert len(both) > 0.05 * SAMPLE
    assert 0.25 * SAMPLE < len(none) < 0.75 * SAMPLE


def test_cues_stand_at_every_distance_before_the_word_and_also_behind_it_or_nowhere() -> None:
    distances: Counter[int] = Counter()
    behind = nowhere = 0
    cues = {
        word: {cue for w, sense in SENSES if w == word for cue in sense.cues}
        for word in lexicon.words()
    }
    for text in sample():
        words = words_of(text)
        for at, word in enumerate(words):
            if word in cues:
                before = [at - i for i in range(at) if words[i] in cues[word]]
                distances.update(before[-1:])
                behind += not before and bool(cues[word] & set(words[at:]))
                nowhere += not before and not cues[word] & set(words[at:])
    assert all(distances[d] >= 10 for d in range(1, 16)), distances
    assert behind > 20 and nowhere > 20


def test_the_words_of_the_frames_are_met_in_ordinary_sentences() -> None:
    count = Counter(word for text in sample() for word in words_of(text))
    frames = [frame for word in lexicon.words() for frame in lexicon.entry(word).frames]
    texts = [re.sub(r"\{\w+\}", "", text) for frame in frames for text in frame.versions.values()]
    needed = {word for text in texts for word in words_of(text)}
    needed |= {word for row in lexicon.showcase() for word in words_of(row.text)}
    assert sorted(word for word in needed if not count[word]) == []


def test_every_cue_and_continuation_is_met() -> None:
    count = Counter(word for text in sample() for word in words_of(text))
    texts = [text for _, sense in SENSES for text in (*sense.cues, *sense.continuations)]
    assert [text for text in texts if not count[text.strip().lower()]] == []


def test_stories_give_reasons_to_look_back() -> None:
    rng = Random(5)
    stories = [grammar.story(rng) for _ in range(4_000)]
    alone = [text for text in stories if " told " not in text]
    asked = [
        re.match(r"An? (\w+) (\w+) (\w+) \w+ the .*The \3 was \1 and \2", text) for text in stories
    ]
    assert len([found for found in asked if found]) > 20
    assert not [
        text for text in alone if re.search(r"\bThe (king|actor|man)\b[^.]* (she|herself)\b", text)
    ]
    assert not [
        text
        for text in alone
        if re.search(r"\bThe (queen|actress|woman)\b[^.]* (he|himself)\b", text)
    ]
    named = [text for text in stories if "one-eyed" in text and "horns" in text]
    assert named and all("Mike" in text for text in named)


def test_finish_mends_articles_capitals_and_marks() -> None:
    rng = Random(0)
    assert finish("a apple and a one-eyed uncle. then a hour , a old unicorn.", rng) == (
        "An apple and a one-eyed uncle. Then an hour, an old unicorn."
    )
    assert finish("a unusual user. is a unicorn here", rng) == "An unusual user. Is a unicorn here?"


def test_fill_binds_and_repeats_a_choice() -> None:
    slots = {"look": ["red", "blue"], "n": ["{look} box"]}
    for seed in range(20):
        first, second, again = fill("{a:look} {b:look} {a}", slots, Random(seed)).split()
        assert {first, second} == {"red", "blue"} and again == first
