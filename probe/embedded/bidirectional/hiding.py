"""What tiny-senses-bidirectional is asked for in training.

Words that belong to a topic are asked for more often than others: which adjective stands before a noun cannot be known, but
which topic's noun it is can. A word that is replaced often gives way to one of another topic, so that a word in its place has
to be told from one that does not fit the rest of the sentence.
"""

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from probe.embedded.grammar import topics
from probe.embedded.templates import tables

# Of the words of topics and of the other tokens, how many are asked for; of these, how many are hidden and how many replaced.
TOPICAL, OTHER = 0.5, 0.15
HIDDEN, REPLACED = 0.65, 0.25


def topical(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """The ids of the tokens that are said of some topic and stand in no list of ordinary words."""
    said = [(topic.word, *topic.cues, *chain.from_iterable(topic.says.values())) for topic in topics()]
    ordinary = _pieces(tokenizer, chain.from_iterable(v for v in tables().values() if isinstance(v[0], str)))
    return torch.tensor(sorted(_pieces(tokenizer, chain.from_iterable(said)) - ordinary))


def _pieces(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> set[int]:
    rows = tokenizer([f" {text}" for text in texts], add_special_tokens=False).input_ids
    return set(chain.from_iterable(rows))


def hide(
    ids: Tensor, tokenizer: PreTrainedTokenizerFast, words: Tensor, dice: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The ids with most of the tokens that are asked for hidden or replaced, and which ones are asked for. `text pos`

    `words` are the ids of the words of topics. Special tokens, which have the first ids, are never asked for.
    """
    special = len(tokenizer.all_special_ids)
    share = torch.where(torch.isin(ids, words), TOPICAL, OTHER)
    asked = (ids >= special) & (torch.rand(ids.shape, generator=dice) < share)
    draw = torch.rand(ids.shape, generator=dice)
    anything = torch.randint(special, len(tokenizer), ids.shape, generator=dice)
    word = words[torch.randint(len(words), ids.shape, generator=dice)]
    other = torch.where(torch.rand(ids.shape, generator=dice) < 0.5, word, anything)
    hidden = ids.masked_fill(asked & (draw < HIDDEN), tokenizer.mask_token_id)
    return torch.where(asked & (draw >= HIDDEN) & (draw < HIDDEN + REPLACED), other, hidden), asked
