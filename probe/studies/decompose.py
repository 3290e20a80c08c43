"""Direct logit attribution: the part of a logit that each component adds.

This module checks the arguments and returns the frame. The terms are computed in
`probe.experiments.logits`.
"""

import pandas as pd

from probe.errors import InputError
from probe.experiments.logits import STACK, require_sum, terms, terms_of_pair
from probe.model.decomposition import largest_error
from probe.model.load import ModelSource, load
from probe.model.tokens import text_position, token_id
from probe.model.trace import trace

INTEGERS = ("layer", "head", "pos")
COLUMNS = ("component", "layer", "head", "pos", "token", "logit")


def decompose(
    model: ModelSource,
    text: str,
    *,
    at: int | str,
    tokens: str | int | tuple[str | int, str | int],
    target: str | None = None,
) -> pd.DataFrame:
    """Return what every component adds to the logit of a next token, or to the difference of two
    logits, with each head split by the token that it reads.

    The columns are `component layer head pos token logit`. The sum of `logit` over all rows is the
    logit. Everything after a component is held fixed, including the scale of the final norm. b_V is
    part of a head's write.

    at: a word, which means the last token of its first occurrence, or a position, counted from the
        end if it is negative
    tokens: a token as it appears inside a sentence, such as " water", or two tokens, for the logit
        of the first minus that of the second. An id may replace a token
    target: the target text so far, for an encoder-decoder. `at` is then a token of the target, and
        a column `stack` separates cross-attention ("cross") from the decoder's self-attention
        ("decoder")

    Raises InputError for a word, position or token that does not exist, and a target that is
    missing or cannot be used; UnsupportedModel for a model without a language-model head;
    CrossCheckError if the terms miss the hooked logits by more than 1e-4 of the largest, or in
    bfloat16 by more than the rounding of all blocks.

    Example:
        >>> tokens = (" and", " with")
        >>> terms = probe.decompose("tiny-senses", "The old bank", at="bank", tokens=tokens)
        >>> list(terms.columns)
        ['component', 'layer', 'head', 'pos', 'token', 'logit']
        >>> by_head = terms.groupby(["layer", "head"])["logit"].sum()
        >>> len(by_head)  # 4 layers x 4 heads
        16
    """
    model = load(model)
    read_tokens = tokens if isinstance(tokens, tuple) else (tokens,)
    if len(read_tokens) not in (1, 2):
        raise InputError(
            f"Cannot decompose a logit of {len(read_tokens)} tokens: expected one token, or two "
            'for the difference of their logits. Give (" water", " loan"), say.'
        )
    ids = [token_id(model, token) for token in read_tokens]
    if len(set(ids)) < len(ids):
        raise InputError(
            f"Cannot decompose the difference of the logits of {read_tokens!r}: the two tokens are "
            "the same, and the difference is always 0. Give two different tokens."
        )
    columns: tuple[str, ...] = COLUMNS
    if model.config.start_token is not None and target is None:
        raise InputError(
            f"Cannot decompose a logit of {model.name}: it is an encoder-decoder and needs a "
            "target. Give target=, the text so far, and a position or word of it as at=."
        )
    if target is None:
        whole = trace(model, text)
        pos = text_position(whole.tokens, at)
        rows = terms(whole, pos, ids)
    else:
        pair = trace(model, text, target)
        whole = pair.decoder
        pos = text_position(pair.target, at)
        rows = terms_of_pair(model, pair, pos, ids)
        columns = (STACK, *COLUMNS)
    frame = pd.DataFrame(rows)[list(columns)].astype(dict.fromkeys(INTEGERS, "Int64"))
    blocks = model.config.n_layers + model.config.n_decoder_layers
    expected = largest_error(model.dtype, blocks)
    require_sum(whole, pos, ids, frame["logit"].tolist(), expected)
    return frame
