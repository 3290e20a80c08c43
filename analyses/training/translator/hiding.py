"""The masking of English sentences in the training of tiny-translator; `parallel` gives the reason."""

from random import Random

from transformers import PreTrainedTokenizerFast

# The share of the sentences without an ambiguous word that have masked tokens, and the share of their masked tokens.
HIDING, HIDDEN = 0.6, 0.25


def hide(ids: list[int], tokenizer: PreTrainedTokenizerFast, dice: Random) -> list[int]:
    """The ids of a sentence, with a share of the sentences partly masked. The end token is never masked."""
    if dice.random() >= HIDING:
        return ids
    return [tokenizer.mask_token_id if dice.random() < HIDDEN else i for i in ids[:-1]] + ids[-1:]
