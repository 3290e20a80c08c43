"""Cues inferred from aligned pairs, for words whose sentences mark no cue.

The cue is the only difference between the two sentences of a pair, a few words, in all that the
model can have read.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import regex

from probe.text.sentences import Sentence
from probe.text.spans import plain

LONGEST_CUE = 3  # words: a longer difference is not a cue
_WORD = regex.compile(r"\w(?:\S*\w)?")  # without the punctuation around it
Span = tuple[int, int]


def infer_cues(sentences: Sequence[Sentence], *, both_sides: bool) -> tuple[Sentence, ...]:
    """The sentences of one word, with the cues inferred from its pairs (`cue_inferred`).

    both_sides: whether the model reads both ways, so that the cue may come after the word

    Returns the sentences unchanged if any of them marks its cue. The cue is one run of at most
    LONGEST_CUE words in each sentence of a pair. The sentences must be equal in everything else
    before the word; with `both_sides`, in everything else.
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
    """The characters in which each sentence of a pair differs from the others.

    Empty if they differ in more than one run of words or in too many words, or if a sentence has no
    word there. Also empty if the difference touches the word, as it does in scripts without spaces.
    """
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
    before_cue = [(start, span[0]) for (start, _), span in zip(side, spans, strict=True)]
    after_cue = [(span[1], end) for (_, end), span in zip(side, spans, strict=True)]
    # Words were compared without the punctuation around them, which must be equal as well.
    alike = all(len(_parts(aligned, part)) == 1 for part in (before_cue, after_cue))
    return spans if alike else []


def _parts(aligned: Sequence[Sentence], ends: Sequence[Span]) -> set[str]:
    """The distinct texts between these characters of each sentence."""
    return {plain(row.text[slice(*span)]) for row, span in zip(aligned, ends, strict=True)}


def _words(text: str, start: int, end: int) -> list[tuple[str, int]]:
    """The words of a part of a text, each with the position of its first character."""
    return [(match.group(), match.start()) for match in _WORD.finditer(text, start, end)]


def differing(
    texts: Sequence[Sequence[tuple[str, int]]],
) -> list[Sequence[tuple[str, int]]]:
    """The middle part of each text: without the words with which all texts begin and end.

    texts: words with their positions
    """
    shortest = min(map(len, texts))
    start = 0
    while start < shortest and len({plain(words[start][0]) for words in texts}) == 1:
        start += 1
    end = 0
    while end < shortest - start and len({plain(words[-1 - end][0]) for words in texts}) == 1:
        end += 1
    return [words[start : len(words) - end] for words in texts]
