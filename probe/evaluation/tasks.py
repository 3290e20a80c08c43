"""The sentences of each word made ready to be tested: tokenised, placed, held out, and read at the word.

Unlike in a study no sentence is refused: what cannot be used is left out with the reason, and a sentence beyond the context
window is one of these, never cut. Of what the model computes only the residual stream at the word is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import InputError
from probe.evaluation import holdouts
from probe.evaluation.holdouts import Plan
from probe.lexicon import Corpus, LeftOut, Sentence
from probe.models import Model
from probe.tokens import Tokens, in_order, positions_of_span, tokenize
from probe.trace import target_states

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


def prepare(model: Model, corpus: Corpus, *, seed: int) -> list[Task]:
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
    plan = holdouts.plan([sentence for sentence, _, _ in kept], seed=seed)
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
