"""Direct logit attribution: what every component writes into the logit of a next token, or into the
difference of two, by itself.

The logit is a sum over all that was ever written: embeddings, every head by the token that it took
its part from, attention biases, MLPs, and the biases of the norm and the head behind them
(`probe.model.decomposition`). Nothing responds, and the scale of the final norm is held at what it
was: what changes when a component does, only a swap shows (`probe.patch`).

Sources: Elhage et al. 2021 (direct paths); Wang et al. 2022 (direct logit attribution).
"""

import pandas as pd

from probe.errors import CrossCheckError, InputError
from probe.model.architectures import require_single
from probe.model.decomposition import (
    LARGEST_ERROR,
    SINK,
    components_by_source,
    logit_direction,
)
from probe.model.load import ModelSource, load
from probe.model.records import Trace
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
) -> pd.DataFrame:
    """What every component adds to the logit of a next token, or to the difference of two, a head's
    by the token that it was taken from: columns `component layer head pos token logit`, whose sum
    over all rows is the logit.

    `at`: a word, at its last token where it first stands, or a position, counted from the end where
    it is negative · `tokens`: one as it stands inside a sentence, such as " water", or two, for the
    logit of the first less that of the second; ids are taken, too. Everything behind a component is
    held as it was, the scale of the final norm among it; b_V is inside a head's write. Raises
    InputError for a word, position or token that is not there, UnsupportedModel for an
    encoder-decoder and for a model without a language-model head, CrossCheckError where the terms
    miss the hooked logits.

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
    require_single(model.config.architecture, "the decomposition of a logit")
    asked = tokens if isinstance(tokens, tuple) else (tokens,)
    if len(asked) not in (1, 2):
        raise InputError(
            f"Decomposing a logit of {len(asked)} tokens: expected one token, or two for the "
            'difference of their logits; give (" water", " loan"), say.'
        )
    ids = [token_id(model, token) for token in asked]
    whole = trace(model, text)
    pos = text_position(whole.tokens, at)
    towards = logit_direction(whole, pos, ids)
    rows: list[tuple[object, ...]] = []
    for part in components_by_source(whole, len(whole.pattern), at=pos):
        adds = (part.vectors.double() @ towards.direction).tolist()
        for source, logit in enumerate(adds):
            token: str | None = None
            source_pos: int | None = None
            if part.head is not None and source < len(whole.tokens):
                token, source_pos = whole.tokens.labels[source], source
            elif part.head is not None:
                token = SINK  # behind the tokens; it writes nothing
            rows.append((part.component, part.layer, part.head, source_pos, token, logit))
    for name, logit in towards.constants.items():
        rows.append((name, None, None, None, None, logit))
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(INTEGERS, "Int64"))
    _require_sum(whole, pos, ids, float(frame["logit"].sum()))
    return frame


def _require_sum(whole: Trace, pos: int, ids: list[int], total: float) -> None:
    """Raises CrossCheckError where the terms miss the hooked logits by more than rounding."""
    logits = whole.logits[pos].double()
    hooked = logits[ids[0]] - (logits[ids[1]] if len(ids) == 2 else 0.0)
    error = float((total - hooked).abs() / logits.abs().max())
    if not error <= LARGEST_ERROR:
        raise CrossCheckError(
            f"Adding up a logit of {whole.model_name} at position {pos}: the terms miss it by "
            f"{error:.1e} of the largest, expected at most {LARGEST_ERROR:.0e}; run `probe check` "
            "to see which quantity disagrees."
        )
