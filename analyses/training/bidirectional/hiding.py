"""What tiny-senses-bidirectional is asked for in training.

Words that belong to a topic are asked for more often than others: which adjective stands before a noun cannot be known,
but which topic's noun it is can. Many of the words that are asked for are replaced by an ambiguous word. So an
ambiguous word may always be one that does not belong, and whether it does can only be told from the rest of the
sentence.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from probe.text import lexicon
from training.grammar import topics
from training.templates import tables
from training.withheld import held_out_cues

# Of the words of topics and of the other tokens, how many are asked for; of these, how many are hidden and how many
# replaced.
TOPICAL, OTHER = 0.35, 0.15
HIDDEN, REPLACED = 0.5, 0.4

# Tables of the grammar that are not words of its text: traits by character, and sentences kept out of it.
NO_TEXT = ("character", "kept_out")


@dataclass(frozen=True, eq=False)
class Lists:
    """Token ids: words of topics, the ambiguous words, the held-out cues, and all plain tokens that are neither of
    these two.
    """

    topical: Tensor
    ambiguous: Tensor
    held_out: Tensor
    plain: Tensor


def lists(tokenizer: PreTrainedTokenizerFast) -> Lists:
    """The lists of this vocabulary."""
    said = [
        (topic.word, *topic.cues, *chain.from_iterable(topic.says.values())) for topic in topics()
    ]
    common = _ids(
        tokenizer, chain.from_iterable(v for name, v in tables().items() if name not in NO_TEXT)
    )
    ambiguous = _ids(tokenizer, lexicon.words())
    held = _ids(
        tokenizer, (form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es"))
    )
    plain = set(range(len(tokenizer))) - set(tokenizer.all_special_ids) - ambiguous - held
    found = _ids(tokenizer, chain.from_iterable(said)) - common, ambiguous, held, plain
    return Lists(*(torch.tensor(sorted(ids)) for ids in found))


def _ids(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> set[int]:
    """The tokens of the words of these texts; a word of several tokens has none, and what stands in braces is no
    word.
    """
    words = {
        f" {word}" for text in texts for word in re.findall(r"[\w-]+", re.sub(r"{.*?}", " ", text))
    }
    rows = tokenizer(sorted(words), add_special_tokens=False).input_ids
    return {row[0] for row in rows if len(row) == 1}


def hide(
    ids: Tensor, tokenizer: PreTrainedTokenizerFast, known: Lists, dice: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The ids with most of the tokens that are asked for hidden or replaced, and which ones are asked for. `text pos`

    Special tokens, which have the first ids, are never asked for. No held-out cue is put in, nor an ambiguous word
    beside one.
    """
    share = torch.where(torch.isin(ids, known.topical), TOPICAL, OTHER)
    asked = (ids >= len(tokenizer.all_special_ids)) & (
        torch.rand(ids.shape, generator=dice) < share
    )
    draw = torch.rand(ids.shape, generator=dice)
    plain, word = (_drawn(pool, ids, dice) for pool in (known.plain, known.ambiguous))
    apart = torch.isin(ids, known.held_out).any(1, keepdim=True)
    other = torch.where(apart | (torch.rand(ids.shape, generator=dice) < 0.5), plain, word)
    hidden = ids.masked_fill(asked & (draw < HIDDEN), tokenizer.mask_token_id)
    return torch.where(asked & (draw >= HIDDEN) & (draw < HIDDEN + REPLACED), other, hidden), asked


def _drawn(pool: Tensor, like: Tensor, dice: torch.Generator) -> Tensor:
    return pool[torch.randint(len(pool), like.shape, generator=dice)]
