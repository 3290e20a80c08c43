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
    slots = {*tables(), *topic.says, *"CDWX", "Ws", "xdoes", "xis", "xseemed", "short"}
    slots |= set(tables()["character"][0])
    for text in strings(dict(tables())):
        for name, source in re.findall(r"\{(\w+)(?::(\w+))?\}", text):
            assert source in slots if source else name in slots or f"{{{name}:" in text, (
                name,
                text,
            )
    assert not [text for text in sample() if "{" in text or "}" in text]


def test_ordinary_words_reveal_no_sense() -> None:
    """No table entry has an ambiguous word. No ordinary word is a cue, except for people with
    a masculine and a feminine form."""
    for text in strings(dict(tables())):
        plain = set(words_of(re.sub(r"\{.*?\}", "", text)))
        assert not plain & AMBIGUOUS, text
        assert not plain & CUES - PEOPLE, text
    for topic in grammar.topics():
        ordinary = [
            text
            for slot, texts in topic.says.items()
            if slot not in ("follow", "proper")
            for text in texts
        ]
        assert not [text for text in ordinary if set(words_of(text)) & AMBIGUOUS]


def test_a_fifth_of_the_cues_is_held_out() -> None:
    held_out_set = held_out_cues()
    assert len(held_out_set) / len(CUES) == pytest.approx(0.2, abs=0.02)
    for word, sense in SENSES:
        of_sense = held_out(word, sense.name)
        assert of_sense == tuple(cue for cue in sense.cues if cue in held_out_set)
        assert 2 <= len(of_sense) <= 3


def test_held_out_cues_never_meet_an_ambiguous_word() -> None:
    held_out_forms = {form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es")}
    met = [
        text
        for text in sample()
        if AMBIGUOUS & set(words_of(text)) and held_out_forms & set(words_of(text))
    ]
    assert met == []


def test_held_out_cues_are_as_common_in_topic_sentences_as_the_others() -> None:
    count = Counter(
        word for text in sample() if not AMBIGUOUS & set(words_of(text)) for word in words_of(text)
    )
    held_out_counts = [count[cue] for cue in held_out_cues()]
    seen_counts = [count[cue] for cue in CUES - held_out_cues()]
    assert min(held_out_counts) >= 5
    assert sum(held_out_counts) / len(held_out_counts) > 0.7 * sum(seen_counts) / len(seen_counts)


def test_a_text_with_a_held_out_cue_next_to_an_ambiguous_word_is_refused() -> None:
    unfamiliar, familiar = held_out("bank", "river")[0], "river"
    assert allowed(f"A {familiar} bank was muddy.")
    assert not allowed(f"A {unfamiliar} bank was muddy.")
    assert not allowed(f"A {unfamiliar}'s moles were blind.")
    assert allowed(f"A {unfamiliar} shore was muddy.")


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


def test_every_lexicon_and_showcase_sentence_is_refused() -> None:
    rows = [row.text for word in lexicon.words() for row in lexicon.expand(word).sentences]
    assert [text for text in rows if not echoes(text, lexicon_windows())] == []
    assert [row.text for row in lexicon.showcase() if allowed(row.text)] == []
    assert not allowed("Yesterday the river bank was muddy.")


def test_the_sample_contains_no_showcase_text() -> None:
    showcase = [row.text.lower() for row in lexicon.showcase()]
    assert [text for text in sample() if any(row in text.lower() for row in showcase)] == []


def test_the_text_has_many_words_and_many_contexts() -> None:
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


def test_cues_occur_at_every_distance_before_the_word_after_it_or_not_at_all() -> None:
    distances: Counter[int] = Counter()
    n_after = n_without = 0
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
                n_after += not before and bool(cues[word] & set(words[at:]))
                n_without += not before and not cues[word] & set(words[at:])
    assert all(distances[d] >= 10 for d in range(1, 16)), distances
    assert n_after > 20 and n_without > 20


def test_the_words_of_the_frames_occur_in_ordinary_sentences() -> None:
    count = Counter(word for text in sample() for word in words_of(text))
    frames = [frame for word in lexicon.words() for frame in lexicon.entry(word).frames]
    texts = [re.sub(r"\{\w+\}", "", text) for frame in frames for text in frame.versions.values()]
    frame_words = {word for text in texts for word in words_of(text)}
    frame_words |= {word for row in lexicon.showcase() for word in words_of(row.text)}
    assert sorted(word for word in frame_words if not count[word]) == []


def test_every_cue_and_continuation_occurs() -> None:
    count = Counter(word for text in sample() for word in words_of(text))
    texts = [text for _, sense in SENSES for text in (*sense.cues, *sense.continuations)]
    assert [text for text in texts if not count[text.strip().lower()]] == []


def test_stories_give_reasons_to_look_back() -> None:
    rng = Random(5)
    stories = [grammar.story(rng) for _ in range(4_000)]
    plain_stories = [text for text in stories if " told " not in text]
    matches = [
        re.match(r"An? (\w+) (\w+) (\w+) \w+ the .*The \3 was \1 and \2", text) for text in stories
    ]
    assert len([match for match in matches if match]) > 20
    assert not [
        text
        for text in plain_stories
        if re.search(r"\bThe (king|actor|man)\b[^.]* (she|herself)\b", text)
    ]
    assert not [
        text
        for text in plain_stories
        if re.search(r"\bThe (queen|actress|woman)\b[^.]* (he|himself)\b", text)
    ]
    cyclops_stories = [text for text in stories if "one-eyed" in text and "horns" in text]
    assert cyclops_stories and all("Mike" in text for text in cyclops_stories)


def test_finish_corrects_articles_capitals_and_punctuation() -> None:
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
