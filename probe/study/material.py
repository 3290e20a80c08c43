"""The sentences of one word made ready: tokenised, word and cue placed in tokens, rid of what cannot be asked.

What a causal model cannot know is refused rather than ranked: a sentence whose cue follows the word, and sentences of
different senses that are identical up to the word, are left out with the reason. Nothing is left out silently.

A study refuses a sentence that the model cannot read or whose marked characters are another word, with its file and
row. An evaluation and a sweep, which take sentences by the ten thousand, leave it out with the reason; a text is never
cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from probe.errors import InputError
from probe.model.model import Model
from probe.model.tokens import Placed, Tokens, find_word, in_order, is_one_token, positions_of_span, tokenize
from probe.model.trace import target_states
from probe.text import lexicon, splits
from probe.text.sentences import Corpus, LeftOut, Sentence
from probe.text.splits import CrossFit, Plan

LATE = "the cue comes after the word, where a causal model cannot have read it yet"
SAME = "identical to a sentence of another sense up to the word, so a causal model cannot tell them apart there"
NOT_THE_WORD = "the marked characters do not contain the word"
FAR = 4  # tokens from cue to word: what is further away is one class, or there would be few pairs of each
ON_NO_TOKEN = "its word or its cue is on no token of the model"


@dataclass(frozen=True)
class Material:
    """The usable sentences of one word, tokenised: the target is the last token of the word, the cue may be unknown."""

    word: str
    sentences: tuple[Sentence, ...]
    tokens: tuple[Tokens, ...]
    words: tuple[range, ...]
    cues: tuple[range | None, ...]
    left_out: tuple[LeftOut, ...]

    @cached_property
    def targets(self) -> tuple[int, ...]:
        return tuple(positions[-1] for positions in self.words)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(sentence.sense for sentence in self.sentences)

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """The token ids of every sentence and where its word is read."""
        return tuple(Placed(cut.ids, at) for cut, at in zip(self.tokens, self.targets, strict=True))

    @cached_property
    def distances(self) -> tuple[int | None, ...]:
        """Tokens from the cue to the word, 1 where they are neighbours, FAR for that many and more; on either side.

        Counted where the cue is marked; else as the file says.
        """
        return tuple(
            sentence.distance if cue is None else min(max(word.start - cue[-1], cue.start - word[-1]), FAR)
            for sentence, word, cue in zip(self.sentences, self.words, self.cues, strict=True)
        )

    def __len__(self) -> int:
        return len(self.sentences)

    def keep(self, rows: Sequence[int], left_out: Sequence[LeftOut] = ()) -> "Material":
        """The same word with only these rows, and the reasons of the others added."""
        columns = [(self.sentences[row], self.tokens[row], self.words[row], self.cues[row]) for row in rows]
        return _columns(self.word, columns, [*self.left_out, *left_out])


Columns = tuple[Sentence, Tokens, range, range | None]


def prepare(model: Model, corpus: Corpus, word: str) -> Material:
    """Tokenise the sentences of one word and leave out, with the reason, what a causal model cannot be asked about."""
    material = _columns(word, [(sentence, *place(model, sentence)) for sentence in corpus.sentences], corpus.left_out)
    material = _without_late_cues(material) if model.config.causal else material
    _require_two_senses(material)
    return material


def prepare_usable(model: Model, word: str, sentences: Sequence[Sentence]) -> tuple[Material, dict[int, str]]:
    """The sentences of one word that the model can be asked about, and why each of the others cannot, by row."""
    rows: list[Columns] = []
    reasons = {}
    for row, sentence in enumerate(sentences):
        try:
            rows.append((sentence, *place(model, sentence)))
        except InputError:
            reasons[row] = _why_not(model, sentence)
    return _columns(word, rows), reasons


def _columns(word: str, rows: Sequence[Columns], left_out: Sequence[LeftOut] = ()) -> Material:
    sentences, tokens, words, cues = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Material(word, sentences, tokens, words, cues, tuple(left_out))


def _why_not(model: Model, sentence: Sentence) -> str:
    """Why `place` refuses a sentence, without its text."""
    if not sentence.marks_the_word:
        return NOT_THE_WORD
    try:
        tokenize(model, sentence.text)
    except InputError:  # a Sentence has a readable text that is not empty, so only its length can be refused
        return f"it has more tokens than the context window of {model.config.n_ctx}"
    return ON_NO_TOKEN


def place(model: Model, sentence: Sentence) -> tuple[Tokens, range, range | None]:
    """The sentence in tokens, with the positions of its word and of its cue.

    What is wrong is said with its file and row.
    """
    try:
        tokens = tokenize(model, sentence.text)
        _require_word_in_span(sentence)
        word = positions_of_span(tokens, sentence.start, sentence.end)
        if sentence.cue_start is None or sentence.cue_end is None:
            return tokens, word, None
        return tokens, word, positions_of_span(tokens, sentence.cue_start, sentence.cue_end)
    except InputError as error:
        if sentence.where is None:
            raise
        said = str(error)
        raise InputError(f"In {sentence.where}: {said[0].lower()}{said[1:]}") from error


def _without_late_cues(material: Material) -> Material:
    senses_of: dict[tuple[int, ...], set[str]] = {}
    beginnings = [ids[: at + 1] for ids, at in material.placed]
    for beginning, sense in zip(beginnings, material.labels, strict=True):
        senses_of.setdefault(beginning, set()).add(sense)
    rows, left_out = [], []
    for row, (sentence, beginning) in enumerate(zip(material.sentences, beginnings, strict=True)):
        if sentence.cue_after:
            left_out.append(LeftOut(sentence.text, LATE))
        elif len(senses_of[beginning]) > 1:
            left_out.append(LeftOut(sentence.text, SAME))
        else:
            rows.append(row)
    return material.keep(rows, left_out)


def _require_word_in_span(sentence: Sentence) -> None:
    if sentence.marks_the_word:
        return
    covered = sentence.text[sentence.start : sentence.end]
    find_word(sentence.text, sentence.word)
    raise InputError(
        f"Reading the sentence {sentence.text!r}: characters {sentence.start} to {sentence.end} are {covered!r}, "
        f"expected them to cover {sentence.word!r}; correct start and end."
    )


def _require_two_senses(material: Material) -> None:
    senses = list(dict.fromkeys(material.labels))
    if len(senses) < 2:
        reasons = [row.reason for row in material.left_out]
        lost = f" ({len(reasons)} sentences were left out: {reasons[-1]})" if reasons else ""
        other = ""
        if {LATE, SAME} & set(reasons):
            other = ", with the cue before the word, or take a model that reads both ways, as tiny-senses-bidirectional"
        only = f"only {senses[0]!r}" if senses else "no usable sentence"
        raise InputError(
            f"Comparing the senses of {material.word!r}: got {only}{lost}, expected sentences of at least two senses; "
            f"give sentences of another sense{other}."
        )


def unused(material: Material, splits: Sequence[CrossFit]) -> list[LeftOut]:
    """The sentences of a word that no pair of senses uses, with the reason; first those that `prepare` left out."""
    used = {row for split in splits for row in split.rows}
    reasons = {row: reason for split in splits for row, reason in split.left_out.items() if row not in used}
    return [*material.left_out, *(LeftOut(material.sentences[row].text, reason) for row, reason in reasons.items())]


def continuations(model: Model, word: str, senses: Iterable[str]) -> dict[str, list[int]] | None:
    """Token ids of the lexicon's continuations of each sense, those that are one token of the model.

    None where the lexicon does not have the word, or has no such continuation of one of its senses.
    """
    known = lexicon.entry(word).senses if word in lexicon.words() else ()
    given = {sense.name: [text for text in sense.continuations if is_one_token(model, text)] for sense in known}
    if not all(given.get(sense) for sense in senses):
        return None
    return {
        sense: [model.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in given[sense]]
        for sense in dict.fromkeys(senses)
    }


CHUNK = 256  # sentences whose states are held at once: of each only the residual stream is kept
LOAD = 1024  # sentences of several words that are read together, so that words with few fill the batches


class Task(NamedTuple):
    """One word to be tested: the sentences used, and how they are held out."""

    material: Material
    plan: Plan


def prepare_task(model: Model, corpus: Corpus, *, seed: int) -> list[Task]:
    """A task per word; a word of which nothing can be tested has no holdouts and every row in `left_out`."""
    by_word: dict[str, list[Sentence]] = {}
    for sentence in corpus.sentences:
        by_word.setdefault(sentence.word, []).append(sentence)
    return [_task(model, word, sentences, seed) for word, sentences in by_word.items()]


def _task(model: Model, word: str, sentences: Sequence[Sentence], seed: int) -> Task:
    material, reasons = prepare_usable(model, word, sentences)
    plan = splits.plan(material.sentences, seed=seed)
    left_out = [LeftOut(sentences[row].text, reason) for row, reason in reasons.items()]
    left_out += [LeftOut(material.sentences[row].text, reason) for row, reason in plan.left_out.items()]
    return Task(material.keep(plan.rows, left_out), plan)


def read(model: Model, tasks: Sequence[Task]) -> Iterator[tuple[Task, Tensor]]:
    """Residual streams at the word of every task's sentences, `sentence depth d_model`.

    Words are read together until there are LOAD sentences, which fills the batches where each has few; the next load is
    read when this one is used up.
    """
    load: list[Task] = []
    for index, task in enumerate(tasks):
        load.append(task)
        if sum(len(waiting.material) for waiting in load) >= LOAD or index == len(tasks) - 1:
            yield from zip(load, _resid(model, load).split([len(waiting.material) for waiting in load]), strict=True)
            load = []


def _resid(model: Model, load: Sequence[Task]) -> Tensor:
    """The residual stream at the targets, read in chunks of like length of which nothing else is kept."""
    tokens = [cut for task in load for cut in task.material.tokens]
    targets = [target for task in load for target in task.material.targets]
    order = sorted(range(len(targets)), key=targets.__getitem__)
    chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
    states = (target_states(model, [tokens[row] for row in rows], [targets[row] for row in rows]) for rows in chunks)
    return torch.cat([chunk.resid for chunk in states])[in_order(chunks)]
