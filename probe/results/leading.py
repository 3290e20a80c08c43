"""Which heads and MLPs of a word a page may single out.

Only heads with a verdict lead a list, a card or a scale. A head without one has no significant
effect, however large its mean: one odd sentence is enough for a large mean with a wide interval.
"""

import pandas as pd

MOVERS = ("resolver", "mover")  # the verdicts of heads that move the word
UNMARKED = ("separates", "none")  # the verdicts of heads without an effect, which no mark has


def with_verdict(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The rows of heads with a mark."""
    return word_heads[~word_heads["verdict"].isin(UNMARKED)]


def leading(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that move a word toward the other meaning: the movers by rank, then the others with
    a verdict.

    word_heads: the rows of one word
    """
    toward = with_verdict(word_heads)
    toward = toward[toward["net"] > 0].sort_values("rank", kind="stable")
    is_mover = toward["verdict"].isin(MOVERS)
    return pd.concat([toward[is_mover], toward[~is_mover]])


def named(word_heads: pd.DataFrame, top: int) -> pd.DataFrame:
    """The heads that a page names and examines in detail: the first leading ones, and every other
    resolver.

    word_heads: the rows of one word
    top: how many leading heads
    """
    heads = leading(word_heads)
    further = heads[top:]
    return pd.concat([heads[:top], further[further["verdict"] == "resolver"]])


def mlps_more(mlps: pd.DataFrame) -> tuple[int, ...]:
    """The layers whose MLP does more for a word than for unambiguous nouns.

    mlps: the rows of one word

    The mean over the pairs of senses must be above 0, and one pair must pass the rule of
    `verdicts.comparison`, with its p corrected over the pairs.
    """
    layers = []
    for layer in sorted(mlps["layer"].unique().tolist()):
        rows = mlps[mlps["layer"] == layer]
        if (rows["comparison"] == "more").any() and rows["more"].mean() > 0:
            layers.append(layer)
    return tuple(layers)
