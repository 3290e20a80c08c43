"""Properties of the natural sentences, read from their files: matched cues, all distances, and
plain English.
"""

import itertools
import re
import tomllib
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from tokenizers import Tokenizer

from probe.errors import InputError
from probe.text.lexicon import expand_natural

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "probe" / "text" / "lexicon" / "natural").glob("*.toml"))
DATA = ROOT / ".." / "shared" / "data"
GPT2 = DATA / "gpt2-tokenizer" / "tokenizer.json"
SIDES = ("before", "behind")
# The words with many sentences. The others have fewer, and only cues of a single token.
LONG = {"apple", "bank", "bat", "crane", "mole", "organ", "plant", "seal"}

# Words of the sentences that are neither in the corpora nor single tokens of GPT-2. Each was looked
# up.
REVIEWED = """
    angler aviary biopsy birthmark boatman bowler carbonate conservationist cupboard earthworms electrician flute
    fonder herbalist hymn isotopes machinist melanoma motionless muffins oar pathologist pimple protons rashes regatta
    spleen surfer swears titration warts welders
"""
AMERICAN = (
    "aluminum center color colors favorite gray harbor meter neighbor plow recognize theater tumor"
)

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
each_long_file = pytest.mark.parametrize(
    "path", [p for p in FILES if p.stem in LONG], ids=lambda path: path.stem
)
each_short_file = pytest.mark.parametrize(
    "path", [p for p in FILES if p.stem not in LONG], ids=lambda path: path.stem
)


@cache
def read(path):
    return tomllib.loads(path.read_text("utf-8"))


def rows(path):
    """The cues of each row by the first of them, which is their name in the frames."""
    return {row[0]: row for row in read(path)["cues"]}


def frames(path, side):
    return ((frame["text"], frame["cues"]) for frame in read(path)[side])


def aligned(path, side):
    """Each frame with each of its rows: one sentence per sense, which differ in the cue only."""
    for text, names in frames(path, side):
        filled = text.replace("{word}", read(path)["word"])
        for name in names:
            yield text, [filled.replace("{cue}", cue) for cue in rows(path)[name]]


def word_positions(text):
    """The numbers of the cue and of the word among the words of a frame, and the number of words."""
    words = text.split()
    [cue], [word] = (
        [at for at, part in enumerate(words) if slot in part] for slot in ("{cue}", "{word}")
    )
    return cue, word, len(words)


def plain(text):
    return re.findall(
        r"[a-z]+(?:-[a-z]+)*", text.replace("{cue}", " ").replace("{word}", " ").lower()
    )


@pytest.fixture(scope="module")
def gpt2():
    if not GPT2.exists():
        pytest.skip(f"the tokenizer of GPT-2 is not at {GPT2}")
    return Tokenizer.from_file(str(GPT2))


@pytest.fixture(scope="module")
def vocabulary(gpt2):
    corpora = [*DATA.glob("coarsewsd20/*/*.data.txt"), *DATA.glob("homonyms/*.jsonl")]
    if not corpora:
        pytest.skip(f"no corpora at {DATA}")
    corpus_words = {
        word for file in corpora for word in re.findall(r"[a-z]+", file.read_text("utf-8").lower())
    }
    return corpus_words | {token[1:].lower() for token in gpt2.get_vocab() if token.startswith("Ġ")}


def test_there_are_many_words_and_the_long_ones_among_them():
    assert {path.stem for path in FILES} >= LONG and len(FILES) >= 32
    assert all(read(path)["word"] == path.stem for path in FILES)
    assert len(read(next(path for path in FILES if path.stem == "mole"))["senses"]) == 3


@each_file
def test_a_word_is_a_homonym_or_a_polyseme_and_its_file_says_why(path):
    assert read(path)["kind"] in {"homonym", "polyseme"}
    assert re.search(r'^kind = "[a-z]+"  # \S.*\.$', path.read_text("utf-8"), re.MULTILINE)


@each_file
def test_every_file_has_enough_cues_and_frames(path):
    assert len(rows(path)) >= 8
    assert len(list(frames(path, "before"))) >= 14 and len(list(frames(path, "behind"))) >= 4
    assert all(
        len(set(names)) == len(names) >= 2 for side in SIDES for _, names in frames(path, side)
    )


@each_long_file
def test_long_files_have_more_sentences_cues_and_frames(path):
    for side, sentences, cues, kinds in (("before", 60, 24, 30), ("behind", 20, 10, 10)):
        # Every sense has equally many, because the senses share the frames row by row.
        assert len(list(aligned(path, side))) >= sentences
        assert len({name for _, names in frames(path, side) for name in names}) >= cues
        assert len(list(frames(path, side))) >= kinds


@each_file
def test_every_cue_comes_at_least_twice_before_the_word(path):
    uses = Counter(name for _, names in frames(path, "before") for name in names)
    assert set(uses) == set(rows(path)) and min(uses.values()) >= 2
    assert path.stem not in LONG or max(uses.values()) <= 3


@each_file
def test_a_cue_has_one_sense_and_one_partner_in_each_other_sense(path):
    assert all(len(row) == len(read(path)["senses"]) for row in read(path)["cues"])
    cues = [cue for row in read(path)["cues"] for cue in row]
    assert len({cue.lower() for cue in cues}) == len(cues) and not {read(path)["word"]} & set(cues)
    assert all(re.fullmatch(r"[A-Za-z]+(-[a-z]+)*", cue) for cue in cues)
    partners = defaultdict(set)
    for side in SIDES:
        for text, sentences in aligned(path, side):
            position = word_positions(text)[0]
            here = [
                re.sub(r"^\W+|('s)?\W*$", "", sentence.split()[position]) for sentence in sentences
            ]
            for (i, cue), (j, partner) in itertools.permutations(enumerate(here), 2):
                partners[cue, i, j].add(partner)
    assert all(len(group) == 1 for group in partners.values())
    assert {cue for cue, _, _ in partners} == set(cues)


@each_file
def test_at_least_two_frames_have_the_cue_at_every_distance_near_and_far(path):
    distances = [
        word - cue for cue, word, _ in (word_positions(text) for text, _ in frames(path, "before"))
    ]
    assert set(distances) <= set(range(1, 13))
    near_and_far = Counter(min(distance, 4) for distance in distances)
    assert set(near_and_far) == {1, 2, 3, 4} and min(near_and_far.values()) >= 2
    assert all(
        0 < cue - word <= 12
        for cue, word, _ in map(word_positions, (text for text, _ in frames(path, "behind")))
    )


@each_long_file
def test_the_cue_is_one_to_twelve_words_before_the_word_and_mostly_not_next_to_it(path):
    before = [word_positions(text) for text, names in frames(path, "before") for _ in names]
    distances = Counter(word - cue for cue, word, _ in before)
    assert set(distances) == set(range(1, 13)) and min(distances.values()) >= 4
    assert (
        distances[1] + distances[2] <= len(before) / 4
        and max(distances.values()) <= len(before) / 4
    )
    assert median(distances.elements()) >= 5


@each_file
def test_a_sentence_has_6_to_25_words_and_often_continues_after_the_word(path):
    texts = [text for side in SIDES for text, _ in frames(path, side)]
    assert all(6 <= word_positions(text)[2] <= 25 for text in texts)
    ends = [text.endswith(("{word}.", "{word}?", "{word}!")) for text, _ in frames(path, "before")]
    assert sum(ends) <= len(ends) / 2


@each_file
def test_frames_name_no_cue_and_agree_with_both(path):
    cues = {
        form
        for row in read(path)["cues"]
        for cue in row
        for form in (cue.lower(), f"{cue.lower()}s")
    }
    forbidden = set(read(path)["senses"]) | {read(path)["word"]}
    for text, names in itertools.chain.from_iterable(frames(path, side) for side in SIDES):
        assert text.count("{cue}") == text.count("{word}") == 1
        assert not (cues | forbidden) & set(plain(text)), text
        if article := re.search(r"\b(an?) \{cue\}", text, re.IGNORECASE):
            vowels = {cue[0].lower() in "aeiou" for name in names for cue in rows(path)[name]}
            assert vowels == {article[1].lower() == "an"}, text


def test_no_sentence_is_repeated_and_no_two_frames_are_similar():
    sentences = [
        s for path in FILES for side in SIDES for _, group in aligned(path, side) for s in group
    ]
    assert len(set(sentences)) == len(sentences)
    for path in FILES:
        texts = [text for side in SIDES for text, _ in frames(path, side)]
        for first, second in itertools.combinations(texts, 2):
            assert SequenceMatcher(None, first.split(), second.split()).ratio() < 0.7, (
                first,
                second,
            )


def test_sentences_are_punctuated_and_spelled_as_in_britain(vocabulary):
    used_words = set()
    for path in FILES:
        for text, sentences in itertools.chain.from_iterable(aligned(path, side) for side in SIDES):
            for sentence in sentences:
                assert re.fullmatch(r"[A-Z][A-Za-z' -]*(?:[,;] ?[A-Za-z' -]+)*[.?!]", sentence), (
                    sentence
                )
                assert "  " not in sentence and " ," not in sentence
                # The s of a cue's possessive is not a word.
                used_words |= set(plain(sentence.replace("'s", "")))
    assert not used_words & set(AMERICAN.split())
    assert used_words - vocabulary - set(REVIEWED.split()) == set()
    assert set(REVIEWED.split()) <= used_words - vocabulary


@each_file
def test_aligned_sentences_have_equal_token_counts_and_the_word_as_one_token(path, gpt2):
    word = read(path)["word"]
    assert len(gpt2.encode(f" {word}").ids) == 1
    for side in SIDES:
        for text, sentences in aligned(path, side):
            encoded = [gpt2.encode(sentence).tokens for sentence in sentences]
            assert len({len(tokens) for tokens in encoded}) == 1, text
            assert (
                len({tokens.index(f"Ġ{word}") for tokens in encoded if f"Ġ{word}" in tokens}) == 1
            ), text
            assert all(tokens.count(f"Ġ{word}") == 1 for tokens in encoded), text


@each_short_file
def test_cues_of_a_short_file_are_one_lower_case_token(path, gpt2):
    cues = [cue for row in read(path)["cues"] for cue in row]
    assert [cue for cue in cues if cue != cue.lower() or len(gpt2.encode(f" {cue}").ids) > 1] == []


@pytest.mark.parametrize("word", [file.stem for file in FILES])
def test_the_sentences_are_the_frames_of_the_files_with_cue_and_word_filled_in(word):
    corpus = expand_natural(word, both_sides=True)
    file = read(FILES[0].parent / f"{word}.toml")
    filled = sum(len(frame["cues"]) for side in ("before", "behind") for frame in file[side])
    assert len(corpus.sentences) == filled * len(file["senses"])
    pairs = {}
    for sentence in corpus.sentences:
        assert "{" not in sentence.text and sentence.text[sentence.start : sentence.end] == word
        pairs.setdefault(sentence.pair, []).append(sentence)
    for members in pairs.values():
        assert [member.sense for member in members] == file["senses"]
        assert (
            len(
                {
                    member.text[: member.cue_start] + member.text[member.cue_end :]
                    for member in members
                }
            )
            == 1
        )
    before = expand_natural(word).sentences
    assert all(
        sentence.cue_end <= sentence.start and 1 <= sentence.distance <= 12 for sentence in before
    )
    assert len(before) < len(corpus.sentences)


def test_a_word_without_natural_sentences_is_refused():
    with pytest.raises(InputError) as caught:
        expand_natural("wug")
    assert str(caught.value) == (
        "Cannot look up natural sentences with 'wug': only "
        f"{', '.join(path.stem for path in FILES)} have some. Give one of these, or a file with your sentences."
    )
