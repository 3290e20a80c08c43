"""The model card of tiny-translator."""

from collections.abc import Sequence

from training.cards import Facts
from training.translator import hiding
from training.translator.evaluate import Results, Score, overall, questions
from training.translator.parallel import AMBIGUOUS, plans, topics
from training.withheld import held_out

_TEXT = """# tiny-translator

A small BART (encoder and decoder of 2 layers x 4 heads each, d_model 128, MLP width 256, context 64) that translates English sentences
of a grammar into French. The French of an ambiguous word depends on its sense: *bank* is *rive* or *banque*, *mole* is *taupe*, *mole*
or *grain de beauté*, *apple* is *pomme* or *Apple*. It ships with the package to study attention between two languages.

| | |
|---|---|
| architecture | `BartForConditionalGeneration`, {parameters:,} parameters, float32, post-norm, learned positions, tied embeddings |
| tokenizer | one byte-level BPE for both languages, {tokens:,} tokens; every text ends with `[EOS]`, the decoder starts with `[BOS]` |
| made by | `python -m training.translator.train --seed {seed} --steps {steps}` |
| time | {minutes:.1f} minutes of processor time, one thread |
| licence | MIT, like the package |

## Data

Pairs of sentences drawn at random from the tables of `analyses/training/translator/*.toml`: {plans} plans with the same slots in both
languages, {senses} senses with {cues} cue words, articles, adjectives before and after the noun, participles and pronouns that agree.
{ambiguous:.0%} of the pairs have an ambiguous word, with its cue before or after it. In {hiding:.0%} of the others {hidden:.0%} of the English
tokens are masked, and the French is predicted all the same: translation alone gives no reason to learn which words belong together.

Never in the data: the frames below, the lexicon's frames and the example sentences. {held} of the {cues} cue words are held out:
they only occur in pairs without an ambiguous word.

## Accuracy

In percent, on {questions:,} sentences from {frames} other frames, with greedy decoding. A word is correct if the translation has the
French of its sense and of no other sense.

{table}

Correct tokens at their position: {tokens_right:.1f} %. Correct whole sentences: {sentences_right:.1f} %.

The example sentences of introductions to attention, without any change; many of their words are not in the grammar:

{shown}

## Not for

It knows about two hundred nouns and no other English or French. The sentences are grammatical nonsense. The sense of *mole* as a spy
(also *taupe*) is not in the data.
"""


def table(scores: Sequence[Score]) -> str:
    """The shares of correctly translated words, in percent."""
    lines = ["| word | sense | French | seen cues | held-out cues |", "|---|---|---|---|---|"]
    for score in scores:
        shares = f"{100 * score.on_seen:.1f} | {100 * score.held_out:.1f}"
        lines.append(f"| {score.word} | {score.sense} | {score.french} | {shares} |")
    on_seen, on_held_out = overall(scores)
    lines.append(f"| **all** | | | **{100 * on_seen:.1f}** | **{100 * on_held_out:.1f}** |")
    return "\n".join(lines)


def examples(rows: Sequence[tuple[str, str]]) -> str:
    """Sentences and their translations by the model, as a Markdown table."""
    return "\n".join(
        ["| English | French |", "|---|---|", *(f"| {en} | {fr} |" for en, fr in rows)]
    )


def write(facts: Facts, results: Results) -> str:
    """The card as Markdown."""
    frames = [plan for rows in plans("frames.toml").values() for plan in rows]
    return _TEXT.format(
        **vars(facts),
        plans=sum(map(len, plans("templates.toml").values())),
        senses=len(topics()),
        cues=sum(len(topic.cues) for topic in topics()),
        held=sum(len(held_out(topic.name, topic.sense)) for topic in topics()),
        ambiguous=AMBIGUOUS,
        hiding=hiding.HIDING,
        hidden=hiding.HIDDEN,
        questions=len(questions()),
        frames=len(frames),
        table=table(results.senses),
        tokens_right=100 * results.tokens,
        sentences_right=100 * results.sentences,
        shown=examples(results.examples),
    )
