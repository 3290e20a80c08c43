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
side of the word: in *Apple unveiled a new smartphone* the cue comes after it. It is the companion of `tiny-senses`, which reads
from left to right only.

| | |
|---|---|
| architecture | `BertForMaskedLM`, {parameters:,} parameters, float32, post-norm, learned positions, tied embeddings, no dropout |
| tokenizer | byte-level BPE, {tokens:,} tokens, trained for this model; every text is between `[CLS]` and `[SEP]`; `[MASK]`, `[PAD]` |
| made by | `python -m training.bidirectional.train --seed {seed} --steps {steps}` |
| time | {minutes:.1f} minutes of processor time, one thread |
| licence | MIT, like the package |

The checkpoint includes the trained masked-language-model head; it has no pooler, and the segment is always the first. The word
vectors were initialised from `tiny-senses`, everything else at random.

## Data

{rest:.0%} of the texts are from `tiny-senses`: {words} ambiguous words with {senses} senses, mostly with the cue before the word. In the
others the same plans put the word first and the cue after it; some of these begin with the word, as headlines and names do. {types:,} word types in a sample of 30,000 texts. {topical:.0%} of
the words of topics and {other:.0%} of the other tokens are prediction targets: {hidden:.0%} of these are hidden by the mask, {replaced:.0%} replaced (half
of them by an ambiguous word, so that any ambiguous word may be out of place), the others unchanged.

Never in the data: the lexicon's frames, the example sentences, and the frames below with the cue after the word. A fifth of the
cue words ({held} of {cues}) are held out: they occur in topic texts only, never in a text with an ambiguous word, on either side.

## Accuracy

Nearest sense mean (Euclidean) of the residual stream at the word, after reading the whole sentence; means fitted on half of the
frames with half of the seen cues, scored on the other frames with the other seen cues, and with the held-out cues; the depth
chosen in the fitted half (depth d leaves block d). "Before attention" is the stream that enters the first block: chance.

Cue before the word (the lexicon's sentences):

{before}

Cue after the word ({frames} frames, the cue 1, 2, 3 or more tokens after the word, `lexicon/behind.toml`):

{behind}

Runs differ: five more with other seeds and similar settings reached 79 to 97 % on held-out cues before the word and 84 to 95 % after it.

The example sentences, read at the word (in bold) with the means of all these sentences with seen cues (`probe report` fits on a part
of them, including held-out cues, so it may assign one differently):

{shown}

## Not for

It learned from a grammar and says nothing about English at large. It writes grammatical nonsense and knows only a few tables.
A head that resolves *bank* here is a fact about this model, not about BERT.
"""


def shown(answers: Sequence[Answer]) -> str:
    """The example sentences with the word in bold."""
    return cards.shown(answers, heading="text", text=_in_bold)


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
        shown=shown(results.answers),
    )
