"""The heads of a word: which of them may be named, in which order, and with which remark.

Only heads with a verdict lead a list, a card or a scale. A head without one has no significant
effect, however large its mean: one odd sentence is enough for a large mean with a wide interval.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from probe.claims import records
from probe.stats.limits import LEVEL, SMALLEST, WORTH_NAMING
from probe.verdicts import comparison_of_writes

MOVERS = ("resolver", "mover")  # the verdicts of heads that move the word
UNMARKED = ("separates", "none")  # the verdicts of heads without an effect, which no mark has
# Of the net effect: where the head's own write is less or more than this, the card says why.
WRITES_LITTLE = 0.5
WRITES_MUCH = 1.5
CLOSE = 0.2  # of a head's attention: it hardly attends to a cue with less


def name_of(head: Any) -> str:
    """The name of a head, such as L2H1 for head 1 of layer 2, from a row with layer and head."""
    return f"L{head.layer}H{head.head}"


def names_of(heads: pd.DataFrame) -> list[str]:
    """The distinct names of the heads in a table, in the order of their first rows."""
    return list(dict.fromkeys(map(name_of, heads.itertuples())))


def by_rank(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads in the order of their ranks."""
    return word_heads.sort_values("rank", kind="stable")


def movers(heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that move the word: those with the verdict mover or resolver."""
    return heads[heads["verdict"].isin(MOVERS)]


def with_verdict(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads with a mark."""
    return word_heads[~word_heads["verdict"].isin(UNMARKED)]


def leading(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that move a word toward the other meaning: the movers by rank, then the others with
    a verdict.
    """
    toward = with_verdict(word_heads)
    toward = by_rank(toward[toward["net"] > 0])
    is_mover = toward["verdict"].isin(MOVERS)
    return pd.concat([toward[is_mover], toward[~is_mover]])


def named(word_heads: pd.DataFrame, top: int) -> pd.DataFrame:
    """The heads that a page names and examines in detail: the first leading ones, and every other
    resolver.

    top: how many leading heads
    """
    heads = leading(word_heads)
    further = heads[top:]
    return pd.concat([heads[:top], further[further["verdict"] == "resolver"]])


def common_leaders(heads: pd.DataFrame, top: int) -> list[str]:
    """The names of the first heads of each word, if they are the same for all words; in the order
    of the first word. Empty if words differ.

    heads: the movers of all words
    top: how many heads of each word
    """
    of_words = [
        names_of(by_rank(of_word)[:top]) for _, of_word in heads.groupby("word", sort=False)
    ]
    return of_words[0] if all(set(names) == set(of_words[0]) for names in of_words) else []


def common_resolvers(resolvers: pd.DataFrame, words: Sequence[str]) -> list[str]:
    """The names of the resolvers, strongest first, if every word has the same ones; else empty.

    resolvers: rows of `word_heads` with this verdict
    words: the words that were compared with unambiguous nouns
    """
    if resolvers.empty or set(resolvers["word"]) != set(words):
        return []
    return common_leaders(resolvers, len(resolvers))


def compared_heads(word_heads: pd.DataFrame, top: int) -> pd.DataFrame:
    """The movers that were compared with unambiguous nouns, by rank; of a word without movers, of
    its first leading heads.
    """
    heads = by_rank(movers(word_heads))
    heads = leading(word_heads)[:top] if heads.empty else heads
    return heads[heads["comparison"] != ""]


def opposing(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that significantly move the word the wrong way by at least WORTH_NAMING, the
    largest effect first.
    """
    against = word_heads["verdict"].eq("opposes") & (word_heads["net"] <= -WORTH_NAMING)
    return by_rank(word_heads[against]).sort_values("net", kind="stable")


def with_their_readers(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that move the word further than unambiguous nouns without a larger write. Then
    their readers, i.e. later components, make the difference.
    """
    more = word_heads[word_heads["comparison"] == "more"]
    writes_more = [comparison_of_writes(row) == "more" for row in records(more)]
    return more[~np.array(writes_more, dtype=bool)]


def bound_of_others(word_heads: pd.DataFrame) -> int | None:
    """How far from 0 the 95 % intervals of the heads that are not movers reach, in whole percent of
    the gap. None if all heads are movers.
    """
    others = word_heads[~word_heads["verdict"].isin(MOVERS)]
    if others.empty:
        return None
    furthest = float(others[["net_low", "net_high"]].abs().max().max())
    # `round` before `ceil`, so that 8.000000001 % becomes 8 %.
    return max(math.ceil(round(100 * furthest, 6)), 1)


def without_order(word_heads: pd.DataFrame, read_depth: int) -> list[list[str]]:
    """The names of heads in groups without an order: their rank intervals overlap, and their
    effects are read after the same layer.

    read_depth: heads of later layers are read after the last layer
    """
    groups: list[list[Any]] = []
    for head in by_rank(word_heads).itertuples():
        # A head joins the group if it may rank before any of its members.
        if groups and any(head.rank_low <= member.rank_high for member in groups[-1]):
            groups[-1].append(head)
        else:
            groups.append([head])
    parts = [
        [name_of(head) for head in group if (head.layer < read_depth) == is_before]
        for group in groups
        for is_before in (True, False)
    ]
    return [part for part in parts if len(part) > 1]


def with_smallest_p(word_heads: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """The heads of a word by rank, with the smallest corrected p over its pairs of senses, as
    p_auroc and p_swap.

    heads: the rows of the word in this table
    """
    tests = heads.groupby(["layer", "head"], as_index=False)[["p_auroc", "p_swap"]].min()
    return by_rank(word_heads).merge(tests, on=["layer", "head"], how="left")


def without_continuation(heads: pd.DataFrame, word_heads: pd.DataFrame) -> list[str]:
    """The names of movers that do not significantly change which prepared next words are likely, in
    a pair of senses in which they move the word.

    heads, word_heads: the rows of the word in these tables
    """
    of_movers = heads.merge(movers(word_heads)[["layer", "head"]], on=["layer", "head"])
    tested = of_movers[of_movers["verdict"].isin(MOVERS)].dropna(subset="p_continuation")
    moves = (tested["p_continuation"] < LEVEL) & (tested["continuation"] >= SMALLEST)
    return names_of(tested[~moves])


def remark(head: Any) -> str:
    """Why a head's effect, write and attention to the cue differ, as a key of the sentence.

    "little" or "much": its write is less or more than its effect; "elsewhere": it hardly
    attends to the cue; empty where there is nothing to say, or no effect.

    head: a row of the table `word_heads`
    """
    if head.net < SMALLEST or head.net_low <= 0:
        return ""
    if head.direct < WRITES_LITTLE * head.net:
        return "little"
    if head.direct > WRITES_MUCH * head.net:
        return "much"
    return "elsewhere" if head.attention_cue < CLOSE else ""
