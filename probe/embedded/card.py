"""The model card of tiny-senses: every figure in it is measured by the run that writes it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probe.embedded import grammar
from probe.embedded.evaluate import Answer, Score, overall
from probe.embedded.withheld import held_out_cues

_TEXT = """# tiny-senses

A small GPT-2 (4 layers x 4 heads, d_model 128, MLP width 256, context 256) that resolves ambiguous words: which sense of
*bank*, *mole* or *apple* is meant, from a cue before the word. It ships so that everything can be tried at once and offline.

| | |
|---|---|
| architecture | `GPT2LMHeadModel`, {parameters:,} parameters, float32, tied embeddings, no dropout |
| tokenizer | byte-level BPE of its own, {tokens:,} tokens; BOS = EOS = `<|endoftext|>`; BOS is prepended in training and in use |
| made by | `python -m probe.embedded.train --seed {seed} --steps {steps}` |
| time | {minutes:.1f} minutes of processor time, one thread |
| licence | MIT, like the package |

## Data

English-like sentences drawn at random from the tables and templates of `probe/embedded/grammar*.toml`: {words} ambiguous words
with {senses} senses, {types:,} word types in a sample of 30,000 texts. About half of the texts hold an ambiguous word; before it
(1 to 15 or more tokens, with adjectives, clauses, another sentence, or cues of other words between) or sometimes after it stands
something that tells the sense, and what follows depends on the sense. The other texts are about the same topics without the
word, or are about something else: adjectives that are asked for again, men and women with their pronouns, film-like characters
described by their looks, plain sentences. A third of the batches stand at a random offset, so that all 256 positions are trained.

Never in the data: the lexicon's frames and the example sentences. A fifth of the cue words ({held} of {cues}) are held out:
they occur in topic texts only, never in a text with an ambiguous word, so that resolving them is generalisation.

## Accuracy

On the lexicon's own sentences: nearest sense mean (Euclidean) of the residual stream at the word; means fitted on half of the
frames with half of the seen cues, scored on the other frames with the other seen cues, and with the held-out cues; the depth
chosen in the fitted half (depth d leaves block d). "Before attention" is the stream that enters the first block: chance.

{table}

The example sentences, read at the word with the means of all lexicon sentences with seen cues:

{shown}

## Not for

It learned from a grammar and says nothing about English at large. Its text is grammatical nonsense, its knowledge a few tables.
A head that resolves *bank* here is a fact about this model, not about GPT-2.
"""


@dataclass(frozen=True)
class Facts:
    """What a training run knows about itself; `minutes` of processor time."""

    seed: int
    steps: int
    minutes: float
    parameters: int
    tokens: int


def count_types(texts: Iterable[str]) -> int:
    """Different words, letter case aside."""
    return len({word for text in texts for word in re.findall(r"[a-z]+(?:['-][a-z]+)*", text.lower())})


def table(scores: Sequence[Score]) -> str:
    """The accuracies as a Markdown table, in per cent."""
    lines = ["| word | senses | seen cues | held-out cues | depth | before attention |", "|---|---|---|---|---|---|"]
    for score in scores:
        depth = ", ".join(map(str, sorted(set(score.depths))))
        row = f"{100 * score.seen:.1f} | {100 * score.held_out:.1f} | {depth} | {100 * score.embedding:.1f}"
        lines.append(f"| {score.word} | {score.senses} | {row} |")
    seen, held_out = overall(scores)
    lines.append(f"| **all** | | **{100 * seen:.1f}** | **{100 * held_out:.1f}** | | |")
    return "\n".join(lines)


def shown(answers: Sequence[Answer]) -> str:
    """The example sentences as a Markdown table; where the cue comes after the word, the answer is only a habit."""
    lines = ["| text up to the word | sense meant | nearest mean | cue before the word |", "|---|---|---|---|"]
    for row in answers:
        lines.append(f"| {row.text} | {row.sense} | {row.answer} | {'no' if row.cue_after else 'yes'} |")
    return "\n".join(lines)


def write(facts: Facts, results: tuple[Sequence[Score], Sequence[Answer]], types: int) -> str:
    """The card as Markdown."""
    topics = grammar.topics()
    cues = {cue for topic in topics for cue in topic.cues}
    counts = {"words": len({topic.word for topic in topics}), "senses": len(topics), "cues": len(cues)}
    held = len(held_out_cues())
    return _TEXT.format(
        **vars(facts), **counts, held=held, types=types, table=table(results[0]), shown=shown(results[1])
    )
