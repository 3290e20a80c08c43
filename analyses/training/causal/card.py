"""The model card of tiny-senses."""

from collections.abc import Sequence

from training import cards
from training.cards import Facts
from training.scoring import Answer, Score

_TEXT = """# tiny-senses

A small GPT-2 (4 layers x 4 heads, d_model 128, MLP width 256, context 256) that resolves ambiguous words: which sense of
*bank*, *mole* or *apple* is meant, from a cue before the word. It ships so that everything can be tried at once and offline.

| | |
|---|---|
| architecture | `GPT2LMHeadModel`, {parameters:,} parameters, float32, tied embeddings, no dropout |
| tokenizer | byte-level BPE, {tokens:,} tokens, trained for this model; BOS = EOS = `<|endoftext|>`; BOS is prepended in training and in use |
| made by | `python -m training.causal.train --seed {seed} --steps {steps}` |
| time | {minutes:.1f} minutes of processor time, one thread |
| licence | MIT, like the package |

## Data

English-like sentences drawn at random from the tables and templates of `analyses/training/grammar_*.toml`: {words} ambiguous words
with {senses} senses, {types:,} word types in a sample of 30,000 texts. About half of the texts contain an ambiguous word. A cue
tells its sense: 1 to 15 or more tokens before it (with adjectives, clauses, another sentence, or cues of other words between), or
sometimes after it; the continuation depends on the sense. The other texts are about the same topics without the word, or about
something else: adjectives that must be repeated, men and women with their pronouns, film-like characters described by their
looks, plain sentences. A third of the batches start at a random offset, so that all 256 positions are trained.

Never in the data: the lexicon's frames and the example sentences. A fifth of the cue words ({held} of {cues}) are held out:
they occur in topic texts only, never in a text with an ambiguous word, so that resolving them is generalisation.

## Accuracy

On the lexicon's sentences: nearest sense mean (Euclidean) of the residual stream at the word; means fitted on half of the
frames with half of the seen cues, scored on the other frames with the other seen cues, and with the held-out cues; the depth
chosen in the fitted half (depth d leaves block d). "Before attention" is the stream that enters the first block: chance.

{table}

The example sentences, read at the word with the means of all lexicon sentences with seen cues:

{shown}

## Not for

It learned from a grammar and says nothing about English at large. It writes grammatical nonsense and knows only a few tables.
A head that resolves *bank* here is a fact about this model, not about GPT-2.
"""


def shown(answers: Sequence[Answer]) -> str:
    """The example sentences up to the word; where the cue comes after the word, the answer is only a habit."""
    return cards.shown(answers, heading="text up to the word", text=lambda row: row.text[: row.end])


def write(facts: Facts, results: tuple[Sequence[Score], Sequence[Answer]], types: int) -> str:
    """The card as Markdown."""
    table = cards.table(results[0])
    return _TEXT.format(
        **vars(facts), **cards.counts(), types=types, table=table, shown=shown(results[1])
    )
