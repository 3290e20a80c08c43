"""The public entry to direct logit attribution (`probe.experiments.logits`)."""

import pandas as pd

from probe.errors import InputError
from probe.experiments.logits import STACK, require_sum, terms, terms_of_pair
from probe.model.decomposition import (
    largest_error,
)
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
    """What every component adds to the logit of a next token, or to the difference of two, a head's
    by the token that it was taken from: columns `component layer head pos token logit`, whose sum
    over all rows is the logit.

    `at`: a word, at its last token where it first stands, or a position, counted from the end where
    it is negative · `tokens`: one as it stands inside a sentence, such as " water", or two, for the
    logit of the first less that of the second; ids are taken, too. Everything behind a component is
    held as it was, the scale of the final norm among it; b_V is inside a head's write.

    An encoder-decoder also reads `target`, and `at` counts in that; a column `stack` tells heads
    that take from the source ("cross") from those of the decoder's own attention ("decoder").

    Raises InputError for a word, position or token that is not there, for a target that is missing
    or cannot be used, and for a model whose hooks stay on; UnsupportedModel for one without a
    language-model head; CrossCheckError where the terms miss the hooked logits by more than 1e-4 of
    the largest, in bfloat16 by more than the roundings of all blocks.

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
    if model.origin.hooks:
        raise InputError(
            f"Decomposing a logit of {model.name}: it is {model.origin.hooked}, and what hooks "
            "write is no component of it; load it without hooks, or swap with probe.patch."
        )
    asked = tokens if isinstance(tokens, tuple) else (tokens,)
    if len(asked) not in (1, 2):
        raise InputError(
            f"Decomposing a logit of {len(asked)} tokens: expected one token, or two for the "
            'difference of their logits; give (" water", " loan"), say.'
        )
    ids = [token_id(model, token) for token in asked]
    if len(set(ids)) < len(ids):
        raise InputError(
            f"Decomposing the difference of the logits of {asked!r}: the two tokens are the same, "
            "and the difference of a logit from itself is always 0; give two different tokens."
        )
    columns: tuple[str, ...] = COLUMNS
    if model.config.start_token is not None and target is None:
        raise InputError(
            f"Decomposing a logit of {model.name}: it is an encoder-decoder and writes a target; "
            "give target=, the text so far, and a position or word of that as at=."
        )
    if target is None:
        whole = trace(model, text)
        pos = text_position(whole.tokens, at)
        found = terms(whole, pos, ids)
    else:
        pair = trace(model, text, target)
        whole = pair.decoder
        pos = text_position(pair.target, at)
        found = terms_of_pair(model, pair, pos, ids)
        columns = (STACK, *COLUMNS)
    frame = pd.DataFrame(found)[list(columns)].astype(dict.fromkeys(INTEGERS, "Int64"))
    blocks = model.config.n_layers + model.config.n_decoder_layers
    expected = largest_error(model.dtype, blocks)
    require_sum(whole, pos, ids, float(frame["logit"].sum()), expected)
    return frame
