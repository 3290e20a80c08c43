"""The tokens that tiny-senses-bidirectional has to predict in training.

Words of a topic are predicted more often than others: the adjective before a noun cannot be known, but the topic of the
noun can. Many of the predicted words are replaced by an ambiguous word. An ambiguous word may therefore always be a
replacement, and only the rest of the sentence shows whether it is.
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

# The shares of words of topics and of other tokens that are predicted, and the shares of these that are masked and
# replaced.
TOPICAL, OTHER = 0.35, 0.15
HIDDEN, REPLACED = 0.5, 0.4

# Tables of the grammar that are not words of its text: traits by character, and excluded sentences.
NO_TEXT = ("character", "kept_out")


@dataclass(frozen=True, eq=False)
class Lists:
    """Token ids.

    topical: words of topics
    ambiguous: the ambiguous words
    held_out: the held-out cues
    plain: all plain tokens except ambiguous words and held-out cues
    """

    topical: Tensor
    ambiguous: Tensor
    held_out: Tensor
    plain: Tensor


def lists(tokenizer: PreTrainedTokenizerFast) -> Lists:
    """The lists of this vocabulary."""
    topic_texts = [
        (topic.word, *topic.cues, *chain.from_iterable(topic.says.values())) for topic in topics()
    ]
    common = _ids(
        tokenizer, chain.from_iterable(v for name, v in tables().items() if name not in NO_TEXT)
    )
    ambiguous = _ids(tokenizer, lexicon.words())
    held_out = _ids(
        tokenizer, (form for cue in held_out_cues() for form in (cue, cue + "s", cue + "es"))
    )
    plain = set(range(len(tokenizer))) - set(tokenizer.all_special_ids) - ambiguous - held_out
    topical = _ids(tokenizer, chain.from_iterable(topic_texts)) - common
    by_list = topical, ambiguous, held_out, plain
    return Lists(*(torch.tensor(sorted(ids)) for ids in by_list))


def _ids(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> set[int]:
    """The tokens of the words of these texts that are one token each. Text in braces is ignored."""
    words = {
        f" {word}" for text in texts for word in re.findall(r"[\w-]+", re.sub(r"{.*?}", " ", text))
    }
    rows = tokenizer(sorted(words), add_special_tokens=False).input_ids
    return {row[0] for row in rows if len(row) == 1}


def hide(
    ids: Tensor, tokenizer: PreTrainedTokenizerFast, vocabulary: Lists, dice: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The ids with most of the predicted tokens masked or replaced, and whether each token is predicted. `text pos`

    Special tokens, which have the first ids, are never predicted. A held-out cue is never a replacement, and an
    ambiguous word is never a replacement in a text with a held-out cue.
    """
    share = torch.where(torch.isin(ids, vocabulary.topical), TOPICAL, OTHER)
    predicted = (ids >= len(tokenizer.all_special_ids)) & (
        torch.rand(ids.shape, generator=dice) < share
    )
    draw = torch.rand(ids.shape, generator=dice)
    plain, word = (_draw(pool, ids, dice) for pool in (vocabulary.plain, vocabulary.ambiguous))
    has_held_out = torch.isin(ids, vocabulary.held_out).any(1, keepdim=True)
    is_plain = has_held_out | (torch.rand(ids.shape, generator=dice) < 0.5)
    replacement = torch.where(is_plain, plain, word)
    masked = ids.masked_fill(predicted & (draw < HIDDEN), tokenizer.mask_token_id)
    is_replaced = predicted & (draw >= HIDDEN) & (draw < HIDDEN + REPLACED)
    return torch.where(is_replaced, replacement, masked), predicted


def _draw(pool: Tensor, like: Tensor, dice: torch.Generator) -> Tensor:
    return pool[torch.randint(len(pool), like.shape, generator=dice)]
