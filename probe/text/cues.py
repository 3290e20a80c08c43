"""The cues that aligned pairs show: where no sentence of a word marks its cue, the few words in
which the two sentences of a pair differ, and nothing else that the model could have read."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import regex

from probe.text.sentences import Sentence

LONGEST_CUE = 3  # in words: sentences that differ in more do not differ in a cue
_WORD = regex.compile(r"\w(?:\S*\w)?")  # without the punctuation around it
Span = tuple[int, int]


def infer_cues(sentences: Sequence[Sentence], *, both_sides: bool) -> tuple[Sentence, ...]:
    """The sentences of one word, with the cues that its pairs show, `cue_inferred`; as they are
    where any of them marks its cue.

    The cue of a pair is one run of at most LONGEST_CUE words in each of its sentences. They differ
    in it and are alike in everything else before the word; with `both_sides`, in everything else.
    """
    if any(sentence.cue is not None for sentence in sentences):
        return tuple(sentences)
    rows_of_pair: defaultdict[str, list[int]] = defaultdict(list)
    for row, sentence in enumerate(sentences):
        if sentence.pair is not None:
            rows_of_pair[sentence.pair].append(row)
    marked = list(sentences)
    for rows in rows_of_pair.values():
        aligned = [sentences[row] for row in rows]
        if len({sentence.sense for sentence in aligned}) < len(aligned) or len(aligned) < 2:
            continue
        spans = _differing_spans(aligned, both_sides=both_sides)
        for row, (start, end) in zip(rows, spans, strict=False):
            marked[row] = replace(sentences[row], cue_start=start, cue_end=end, cue_inferred=True)
    return tuple(marked)


def _differing_spans(aligned: Sequence[Sentence], *, both_sides: bool) -> list[Span]:
    """The characters in which each sentence of a pair differs from the others; empty where they
    differ in more than one place, in too many words, or one of them has nothing there, and where
    what differs touches the word itself, as all of a text does whose writing has no spaces."""
    before = [(0, sentence.start) for sentence in aligned]
    after = [(sentence.end, len(sentence.text)) for sentence in aligned]
    sides = [before]
    if both_sides:
        sides = [side for side in (before, after) if len(_parts(aligned, side)) > 1]
    if len(sides) != 1:
        return []
    [side] = sides
    words = [_words(row.text, *ends) for row, ends in zip(aligned, side, strict=True)]
    runs = differing(words)
    if not all(0 < len(run) <= LONGEST_CUE for run in runs):
        return []
    spans = [(run[0][1], run[-1][1] + len(run[-1][0])) for run in runs]
    if any(
        span[1] == row.start or span[0] == row.end for row, span in zip(aligned, spans, strict=True)
    ):
        return []
    in_front = [(start, span[0]) for (start, _), span in zip(side, spans, strict=True)]
    behind = [(span[1], end) for (_, end), span in zip(side, spans, strict=True)]
    # Words are compared without the punctuation around them, which must be alike as well.
    alike = all(len(_parts(aligned, part)) == 1 for part in (in_front, behind))
    return spans if alike else []


def _parts(aligned: Sequence[Sentence], ends: Sequence[Span]) -> set[str]:
    """The different texts that stand between these characters of each sentence."""
    return {row.text[slice(*span)] for row, span in zip(aligned, ends, strict=True)}


def _words(text: str, start: int, end: int) -> list[tuple[str, int]]:
    """The words of a part of a text, each with the position of its first character."""
    return [(match.group(), match.start()) for match in _WORD.finditer(text, start, end)]


def differing(
    texts: Sequence[Sequence[tuple[str, int]]],
) -> list[Sequence[tuple[str, int]]]:
    """What is left of each text, as words with their positions, without the words that all of them
    begin with and end with."""
    shortest = min(map(len, texts))
    start = 0
    while start < shortest and len({words[start][0] for words in texts}) == 1:
        start += 1
    end = 0
    while end < shortest - start and len({words[-1 - end][0] for words in texts}) == 1:
        end += 1
    return [words[start : len(words) - end] for words in texts]
