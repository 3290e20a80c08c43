"""The model card of tiny-senses-bidirectional."""

from collections.abc import Sequence

from probe.text import lexicon
from training import cards
from training.bidirectional import after, hiding
from training.bidirectional.evaluate import Results
from training.cards import Facts
from training.scoring import Answer

_TEXT = """# tiny-senses-bidirectional

A small BERT (4 layers x 4 heads, d_model 128, MLP width 256, context 128) that resolves ambiguous words from a cue on either
side of the word: in *Apple unveiled a new smartphone* the cue comes after it. It complements `tiny-senses`, which reads from left
to right only.

| | |
|---|---|
| architecture | `BertForMaskedLM`, {parameters:,} parameters, float32, post-norm, learned positions, tied embeddings, no dropout |
| tokenizer | a byte-level BPE trained for this model, {tokens:,} tokens; every text is between `[CLS]` and `[SEP]`; `[MASK]`, `[PAD]` |
| made by | `python -m training.bidirectional.train --seed {seed} --steps {steps}` |
| time | {minutes:.1f} minutes of processor time, one thread |
| licence | MIT, like the package |

The checkpoint has a trained masked-language-model head and no pooler. All tokens belong to the first segment. The word vectors
started as those of `tiny-senses`, all other parameters at random.

## Data

{rest:.0%} of the texts come from the grammar of `tiny-senses`: {words} ambiguous words with {senses} senses, most of them after their cue. In
the others the same plans put the word first and the cue after it; some of these begin with the word, as headlines and names do.
{types:,} word types in a sample of 30,000 texts. {topical:.0%} of the words of topics and {other:.0%} of the other tokens are predicted:
{hidden:.0%} of these are masked, {replaced:.0%} replaced (half of them by an ambiguous word, so that an ambiguous word may always be a
replacement), and the others unchanged.

Never in the data: the lexicon's frames, the example sentences, and the frames below with the cue after the word. A fifth of the
cue words ({held} of {cues}) are held out: they occur in topic texts only, never in a text with an ambiguous word, on either side.

## Accuracy

In percent: nearest sense mean (Euclidean) of the residual stream at the word, in whole sentences. Means are fitted on half of the
frames with half of the seen cues, and tested on the other frames with the other seen cues, and with the held-out cues. The depth is
chosen in the fitted half (depth d is the output of block d). "Before attention" is the input of the first block: chance.

Cue before the word (the lexicon's sentences):

{before}

Cue after the word ({frames} frames, the cue 1, 2, 3 or more tokens after it, `lexicon/behind.toml`):

{behind}

Runs differ: five more with other seeds and similar settings reached 79 to 97 % on held-out cues before the word and 84 to 95 % after it.

The example sentences, read at the word (in bold) with the means of all these sentences with seen cues (`probe report` fits on a part
of them, including held-out cues, so it may classify a sentence differently):

{shown}

## Not for

It was trained on a grammar and shows nothing about English in general. Its text is grammatical nonsense, its knowledge a few tables.
A head that resolves *bank* here is a fact about this model, not about BERT.
"""


def examples(answers: Sequence[Answer]) -> str:
    """The example sentences with the word in bold."""
    return cards.example_table(answers, heading="text", text=_in_bold)


def _in_bold(row: Answer) -> str:
    start = row.text.lower().rindex(row.word, 0, row.end)
    return f"{row.text[:start]}**{row.text[start : row.end]}**{row.text[row.end :]}"


def write(facts: Facts, results: Results, types: int) -> str:
    """The card as Markdown."""
    return _TEXT.format(
        **vars(facts),
        **cards.counts(),
        types=types,
        rest=1 - after.SHARE,
        topical=hiding.TOPICAL,
        other=hiding.OTHER,
        hidden=hiding.HIDDEN,
        replaced=hiding.REPLACED,
        frames=len(lexicon.frames_behind()),
        before=cards.table(results.before),
        behind=cards.table(results.behind),
        shown=examples(results.answers),
    )
