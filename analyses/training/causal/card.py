"""The model card of tiny-senses."""

from collections.abc import Sequence

from training import cards
from training.cards import Facts
from training.scoring import Answer, Score

_TEXT = """# tiny-senses

A small GPT-2 (4 layers x 4 heads, d_model 128, MLP width 256, context 256) that resolves ambiguous words, such as *bank*, *mole*
and *apple*, from a cue before the word. It ships with the package so that everything can be tried offline.

| | |
|---|---|
| architecture | `GPT2LMHeadModel`, {parameters:,} parameters, float32, tied embeddings, no dropout |
| tokenizer | a byte-level BPE trained for this model, {tokens:,} tokens; BOS = EOS = `<|endoftext|>`; BOS is prepended in training and in use |
| made by | `python -m training.causal.train --seed {seed} --steps {steps}` |
| time | {minutes:.1f} minutes of processor time, one thread |
| licence | MIT, like the package |

## Data

English-like sentences drawn at random from the tables and templates of `analyses/training/grammar_*.toml`: {words} ambiguous words
with {senses} senses, {types:,} word types in a sample of 30,000 texts. About half of the texts have an ambiguous word. A cue comes 1
to 15 or more tokens before it (with adjectives, clauses, another sentence, or cues of other words between), or sometimes after it,
and the continuation depends on the sense. The other texts are about the same topics without the word, or about something else:
repeated adjectives, men and women with their pronouns, film-like characters described by their looks, plain sentences. A third of
the batches start at a random position, so that all 256 positions are trained.

Never in the data: the lexicon's frames and the example sentences. A fifth of the cue words ({held} of {cues}) are held out:
they occur in topic texts only, never in a text with an ambiguous word, so that a word can only be resolved from them by generalisation.

## Accuracy

In percent, on the lexicon's sentences: nearest sense mean (Euclidean) of the residual stream at the word. Means are fitted on half
of the frames with half of the seen cues, and tested on the other frames with the other seen cues, and with the held-out cues. The
depth is chosen in the fitted half (depth d is the output of block d). "Before attention" is the input of the first block: chance.

{table}

The example sentences, read at the word with the means of all lexicon sentences with seen cues:

{shown}

## Not for

It was trained on a grammar and shows nothing about English in general. Its text is grammatical nonsense, its knowledge a few tables.
A head that resolves *bank* here is a fact about this model, not about GPT-2.
"""


def examples(answers: Sequence[Answer]) -> str:
    """The example sentences up to the word. If the cue comes after the word, the answer is only the model's default."""
    return cards.example_table(
        answers, heading="text up to the word", text=lambda row: row.text[: row.end]
    )


def write(facts: Facts, results: tuple[Sequence[Score], Sequence[Answer]], types: int) -> str:
    """The card as Markdown."""
    table = cards.table(results[0])
    return _TEXT.format(
        **vars(facts), **cards.counts(), types=types, table=table, shown=examples(results[1])
    )
