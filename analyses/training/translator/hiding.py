"""What of the English sentences is hidden from tiny-translator in training, and why: see `parallel`."""

from random import Random

from transformers import PreTrainedTokenizerFast

# Of the sentences that may have hidden tokens, how many do, and how many of their tokens.
HIDING, HIDDEN = 0.6, 0.25


def hide(ids: list[int], tokenizer: PreTrainedTokenizerFast, dice: Random) -> list[int]:
    """The ids of some sentences with some of them hidden by the mask; the end mark stays."""
    if dice.random() >= HIDING:
        return ids
    return [tokenizer.mask_token_id if dice.random() < HIDDEN else i for i in ids[:-1]] + ids[-1:]
