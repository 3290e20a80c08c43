"""The sentences of one word made ready: tokenised, placed, and rid of what the model cannot be asked.

What a causal model cannot know is refused rather than ranked: a sentence whose cue follows the word, and sentences of
different senses that are identical up to the word, are left out with the reason. Nothing is left out silently.

The sentences of each word made ready to be tested: tokenised, placed, held out, and read at the word.

Unlike in a study no sentence is refused: what cannot be used is left out with the reason, and a sentence beyond the context
window is one of these, never cut. Of what the model computes only the residual stream at the word is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probe.errors import InputError
from probe.model.model import Model
from probe.model.tokens import Tokens, find_word, in_order, positions_of_span, tokenize
from probe.model.trace import target_states
from probe.text import splits
from probe.text.lexicon import Corpus, LeftOut, Sentence
from probe.text.splits import Plan

LATE = "the cue comes after the word, where a causal model cannot have read it yet"
SAME = "identical to a sentence of another sense up to the word, so a causal model cannot tell them apart there"


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

    def keep(self, rows: Sequence[int], left_out: Sequence[LeftOut]) -> "Material":
        """The same word with only these rows, and the reasons of the others added."""
        return Material(
            self.word,
            tuple(self.sentences[row] for row in rows),
            tuple(self.tokens[row] for row in rows),
            tuple(self.words[row] for row in rows),
            tuple(self.cues[row] for row in rows),
            self.left_out + tuple(left_out),
        )


def prepare(model: Model, corpus: Corpus, word: str) -> Material:
    """Tokenise the sentences of one word and leave out, with the reason, what a causal model cannot be asked about."""
    placed = [place(model, sentence) for sentence in corpus.sentences]
    tokens, words, cues = (tuple(part) for part in zip(*placed, strict=True)) if placed else ((), (), ())
    material = Material(word, corpus.sentences, tokens, words, cues, corpus.left_out)
    material = _without_late_cues(material) if model.config.causal else material
    _require_two_senses(material)
    return material


def place(model: Model, sentence: Sentence) -> tuple[Tokens, range, range | None]:
    """The sentence in tokens, with the positions of its word and of its cue; what is wrong is said with its file and row."""
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
    prefixes = [cut.ids[: target + 1] for cut, target in zip(material.tokens, material.targets, strict=True)]
    for prefix, sense in zip(prefixes, material.labels, strict=True):
        senses_of.setdefault(prefix, set()).add(sense)
    rows, left_out = [], []
    for row, (sentence, cue, target) in enumerate(
        zip(material.sentences, material.cues, material.targets, strict=True)
    ):
        reason = LATE if cue is not None and cue[0] > target else SAME if len(senses_of[prefixes[row]]) > 1 else None
        rows += [row] if reason is None else []
        left_out += [] if reason is None else [LeftOut(sentence.text, reason)]
    return material.keep(rows, left_out)


def _require_word_in_span(sentence: Sentence) -> None:
    covered = sentence.text[sentence.start : sentence.end]
    if sentence.word.casefold() in covered.casefold():
        return
    find_word(sentence.text, sentence.word)
    raise InputError(
        f"Reading the sentence {sentence.text!r}: characters {sentence.start} to {sentence.end} are {covered!r}, expected them to "
        f"cover {sentence.word!r}; correct start and end."
    )


def _require_two_senses(material: Material) -> None:
    found = list(dict.fromkeys(material.labels))
    if len(found) < 2:
        reasons = [row.reason for row in material.left_out]
        lost = f" ({len(reasons)} sentences were left out: {reasons[-1]})" if reasons else ""
        unseen = {LATE, SAME} & set(reasons)
        other = (
            ", with the cue before the word, or take a model that reads both ways, as tiny-senses-bidirectional"
            if unseen
            else ""
        )
        raise InputError(
            f"Comparing the senses of {material.word!r}: got {f'only {found[0]!r}' if found else 'no usable sentence'}{lost}, "
            f"expected sentences of at least two senses; give sentences of another sense{other}."
        )


CHUNK = 256
LOAD = 1024
NOT_THE_WORD = "the marked characters do not contain the word"


@dataclass(frozen=True)
class Task:
    """One word: the sentences used, tokenised, where to read them, how they are held out, and what was left out."""

    word: str
    sentences: tuple[Sentence, ...]
    tokens: tuple[Tokens, ...]
    targets: tuple[int, ...]
    plan: Plan
    left_out: tuple[LeftOut, ...]

    def __len__(self) -> int:
        return len(self.sentences)


def prepare_task(model: Model, corpus: Corpus, *, seed: int) -> list[Task]:
    """A task per word of the corpus; a word of which nothing can be tested has no holdouts and every row in `left_out`."""
    by_word: dict[str, list[Sentence]] = {}
    for sentence in corpus.sentences:
        by_word.setdefault(sentence.word, []).append(sentence)
    return [_task(model, word, sentences, seed) for word, sentences in by_word.items()]


def _task(model: Model, word: str, sentences: Sequence[Sentence], seed: int) -> Task:
    kept: list[tuple[Sentence, Tokens, int]] = []
    left_out = []
    for sentence in sentences:
        try:
            tokens = tokenize(model, sentence.text)
        except InputError:  # a Sentence has a readable text that is not empty, so only its length can be refused
            reason = f"it has more tokens than the context window of {model.config.n_ctx}"
            left_out.append(LeftOut(sentence.text, reason))
            continue
        if word.casefold() in sentence.text[sentence.start : sentence.end].casefold():
            kept.append((sentence, tokens, positions_of_span(tokens, sentence.start, sentence.end)[-1]))
        else:
            left_out.append(LeftOut(sentence.text, NOT_THE_WORD))
    plan = splits.plan([sentence for sentence, _, _ in kept], seed=seed)
    left_out += [LeftOut(kept[row][0].text, reason) for row, reason in plan.left_out.items()]
    used = [kept[row] for row in plan.rows]
    return Task(
        word,
        tuple(sentence for sentence, _, _ in used),
        tuple(tokens for _, tokens, _ in used),
        tuple(target for _, _, target in used),
        plan,
        tuple(left_out),
    )


def read(model: Model, tasks: Sequence[Task]) -> Iterator[tuple[Task, Tensor]]:
    """Each task with its residual streams, `sentence depth d_model`; words are read together until there are LOAD sentences.

    Reading words together fills the batches where each has few sentences; the next load is read when this one is used up.
    """
    load: list[Task] = []
    for index, task in enumerate(tasks):
        load.append(task)
        if sum(map(len, load)) >= LOAD or index == len(tasks) - 1:
            yield from zip(load, _resid(model, load).split([len(waiting) for waiting in load]), strict=True)
            load = []


def _resid(model: Model, load: Sequence[Task]) -> Tensor:
    """The residual stream at the targets, read in chunks of like length of which nothing else is kept."""
    tokens = [cut for task in load for cut in task.tokens]
    targets = [target for task in load for target in task.targets]
    order = sorted(range(len(targets)), key=targets.__getitem__)
    chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
    states = (target_states(model, [tokens[row] for row in rows], [targets[row] for row in rows]) for rows in chunks)
    return torch.cat([chunk.resid for chunk in states])[in_order(chunks)]
