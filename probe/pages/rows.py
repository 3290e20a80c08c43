"""What of a study's frames a page speaks of: its words, heads by rank, resolvers, the smallest set
that is enough.

Frames in, rows and names out; the sentences about them are made in `probe.pages.answers` and
`probe.pages.remarks`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.evidence.columns import LEADERS
from probe.stats.numbers import counted, listed, measured

WORTH_SHOWING = (
    0.01  # of the gap: a head with a clear effect from here on has its sentences on the page
)
Frames = Mapping[str, pd.DataFrame]
Row = dict[Hashable, Any]
Section = dict[str, Any]


def words_of(frames: Frames) -> list[str]:
    """The words of the study in its order."""
    return [str(word) for word in frames["words"]["word"].unique()]


def senses_of(pair: Mapping[Any, Any]) -> tuple[str, str]:
    return str(pair["sense_a"]), str(pair["sense_b"])


def sense_marks(frames: Frames, word: str) -> dict[str, str]:
    """Each sense of a word with the name of its hue in the style sheet."""
    return {
        sense: f"s{place % 6}"
        for place, sense in enumerate(charts.senses_of(of_word(frames["words"], word)))
    }


def head_name(head: Mapping[Any, Any]) -> str:
    return f"L{head['layer']}H{head['head']}"


def names_of(heads: Iterable[Mapping[Any, Any]] | pd.DataFrame) -> list[str]:
    """The names of heads, each once."""
    rows = heads.to_dict("records") if isinstance(heads, pd.DataFrame) else heads
    return list(dict.fromkeys(map(head_name, rows)))


def heads_of(frames: Frames, word: str) -> pd.DataFrame:
    """The heads of a word by rank."""
    return of_word(frames["word_heads"], word).sort_values("rank", kind="stable")


def with_interval(row: Mapping[Any, Any], name: str) -> str:
    """A share of the gap in percent with the interval that stands beside it: 41 % [35, 47]."""
    return measured(row[name], row[f"{name}_low"], row[f"{name}_high"])


def leaders(frames: Frames, word: str) -> list[Row]:
    """The first heads of a word."""
    return heads_of(frames, word).head(LEADERS).to_dict("records")


def resolvers(frames: Frames, word: str) -> list[Row]:
    """The heads shown to resolve a word in at least one of its pairs of senses, by rank."""
    rows = heads_of(frames, word)
    return rows[rows["verdict"] == "resolver"].to_dict("records")


def in_groups(heads: Sequence[Row]) -> list[list[Row]]:
    """Heads by rank, those with overlapping rank intervals together: only between groups is there
    an order."""
    groups: list[list[Row]] = []
    for head in heads:
        if groups and head["rank_low"] <= max(other["rank_high"] for other in groups[-1]):
            groups[-1].append(head)
        else:
            groups.append([head])
    return groups


def in_no_order(heads: Sequence[Row]) -> list[str]:
    """The names of heads that are not to be put in an order, a text per group."""
    return [listed(names_of(group)) for group in in_groups(heads) if len(group) > 1]


def with_sentences(frames: Frames, word: str) -> pd.DataFrame:
    """The heads of a word whose sentences stand on the page, by rank: of those that were read, the
    resolvers and the heads whose effect is clear; the largest where there is none.
    """
    read = of_word(frames["readings"], word)[["layer", "head"]].drop_duplicates()
    heads = read.merge(of_word(frames["word_heads"], word), on=["layer", "head"]).sort_values(
        "rank"
    )
    clear = (heads["net_low"] > 0) & (heads["net"] >= WORTH_SHOWING)
    named = heads[clear | (heads["verdict"] == "resolver")]
    return named if len(named) else heads.head(1)


def with_tests(word_heads: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """Heads of words with their smallest corrected p over the word's pairs of senses (corrected
    over all of them)."""
    smallest = heads.groupby(["word", "layer", "head"], as_index=False)[["p_auroc", "p_swap"]].min()
    return word_heads.merge(smallest, on=["word", "layer", "head"], how="left")


@dataclass(frozen=True)
class SmallestSet:
    """The fewest leading heads with F of at least 0.9: names, F, F as text with its interval,
    number of all heads."""

    names: list[str]
    faithfulness: float
    kept: str
    every: int


def smallest_set(frames: Frames, word: str) -> SmallestSet | None:
    """The smallest set of a word, or None where no set of leading heads is enough."""
    rows = of_word(frames["curves"], word).sort_values("size")
    smallest = next(iter(rows[rows["size"] == rows["smallest"]].to_dict("records")), None)
    if smallest is None:
        return None
    joined = rows.loc[rows["size"].between(1, smallest["size"]), "added"]
    names = [name for added in joined for name in added.split(", ")]
    kept = with_interval(smallest, "faithfulness")
    return SmallestSet(names, float(smallest["faithfulness"]), kept, int(rows["size"].max()))


def best_random(frames: Frames, word: str, size: int) -> tuple[int, float, str] | None:
    """Of the random sets with `size` heads, or the next more that were drawn: their size, the best
    F, and in words."""
    sets = of_word(frames["random_sets"], word)
    drawn = sets[sets["size"] == sets.loc[sets["size"] >= size, "size"].min()]["faithfulness"]
    if drawn.empty:
        return None
    size = int(sets.loc[drawn.index[0], "size"])
    return (
        size,
        float(drawn.max()),
        f"the best of {counted(len(drawn), 'random set')} of {counted(size, 'head')}",
    )
