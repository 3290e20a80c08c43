"""What one sentence's decomposition shows, in words: which tokens supply the sense, and through
which heads.

Shares are contributions over the sentence's own sense coordinate, so those of a sentence sum to 1.
The cue and the MLPs are always named, however small.
"""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from probe.charts.writes import is_clear, source_of
from probe.stats.limits import WORTH_NAMING
from probe.stats.numbers import decimal, listed, percent

SENTENCE = ["word", "sense", "sentence", "sense_a", "sense_b"]
MOST = 0.8  # of what came from a token: the heads that are named carry at least this much
NAMED_HEADS = 3
NAMED_TOKENS = 2
Source = dict[Hashable, Any]  # a row of `by_source`


def by_source(decomposition: pd.DataFrame) -> pd.DataFrame:
    """Contribution and share of every source of a sentence: tokens over all heads, embeddings,
    MLPs, biases.

    `contribution` in fractions of the gap, `share` of the sentence's `total` (they sum to 1),
    `through`: the heads that carry most of what came from a token, as text.
    """
    rows = decomposition.assign(source=source_of(decomposition))
    groups = rows.groupby([*SENTENCE, "source"], sort=False)
    sums = groups.agg(
        pos=("pos", "first"),
        role=("role", "first"),
        contribution=("contribution", "sum"),
        total=("total", "first"),
    )
    through = [listed(carriers(terms)) for _, terms in groups]
    return sums.assign(share=sums["contribution"] / sums["total"], through=through).reset_index()


def carriers(terms: pd.DataFrame) -> list[str]:
    """The heads, largest first, that carry at least MOST of a source's contribution.

    `other heads` stands last where NAMED_HEADS of them are not enough.
    """
    heads = terms[terms["head"].notna()]
    whole = heads["contribution"].sum()
    if whole == 0:
        return []
    shares = heads.set_index("component")["contribution"] / whole
    shares = shares.sort_values(ascending=False, kind="stable")
    needed = int((shares.cumsum() >= MOST).argmax()) + 1
    leading = [str(name) for name in shares.index[: min(needed, NAMED_HEADS)]]
    return leading if needed <= NAMED_HEADS else [*leading, "other heads"]


def sources_in_words(decomposition: pd.DataFrame) -> dict[tuple[str, int], str]:
    """What supplies the sense in each sentence, in words, by word and sentence number."""
    groups = by_source(decomposition).groupby(["word", "sentence"], sort=False)
    sentences = [rows.to_dict("records") for _, rows in groups]
    return {
        (sources[0]["word"], sources[0]["sentence"]): _sentence(sources) for sources in sentences
    }


def _sentence(sources: list[Source]) -> str:
    first = sources[0]
    word = first["word"]
    if not is_clear(first):
        return (
            f"Here “{word}” stands at {decimal(first['total'])}, from −0.50 for "
            f"{first['sense_b']} to 0.50 for {first['sense_a']}: not clearly {first['sense']}, so "
            "no part of it is called a share of that sense."
        )
    tokens = [source for source in sources if pd.notna(source["pos"])]
    lead = max(tokens, key=lambda source: source["share"])
    whose = f"of the sense of “{word}” here ({first['sense']})"
    if lead["share"] < WORTH_NAMING:
        cues = [token for token in tokens if token["role"] == "cue"]
        return (
            f"No token directly supplies as much as {percent(WORTH_NAMING)} {whose}; "
            f"{_rest(sources, cues)}."
        )
    return (
        f"{_name(lead, tokens)} directly supplies {percent(lead['share'])} {whose}, through "
        f"{lead['through']}; {_rest(sources, _worth_naming(tokens, lead), lead)}."
    )


def _worth_naming(tokens: list[Source], lead: Source) -> list[Source]:
    """The other tokens that are named, in reading order: the cue, and the NAMED_TOKENS largest
    WORTH_NAMING."""
    others = [token for token in tokens if token is not lead]
    cues = [token for token in others if token["role"] == "cue"]
    large = [token for token in others if token["role"] != "cue"]
    large = [token for token in large if abs(token["share"]) >= WORTH_NAMING]
    large.sort(key=lambda token: -abs(token["share"]))
    chosen = {id(token) for token in [*cues, *large[:NAMED_TOKENS]]}
    return [token for token in others if id(token) in chosen]


def _rest(sources: list[Source], named: list[Source], lead: Source | None = None) -> str:
    """“the” 11 %, MLPs 12 %, everything else 16 %: with the leading token's, the shares of a
    sentence sum to 100 %."""
    tokens = [source for source in sources if pd.notna(source["pos"])]
    mlps = [source for source in sources if source["source"] == "MLPs"]
    mentioned = [*named, *mlps] if lead is None else [*named, *mlps, lead]
    remainder = 1.0 - sum(source["share"] for source in mentioned)
    parts = [f"{_name(source, tokens)} {percent(source['share'])}" for source in named]
    parts += [f"{source['source']} {percent(source['share'])}" for source in mlps]
    return ", ".join([*parts, f"everything else {percent(remainder)}"])


def _name(token: Source, tokens: list[Source]) -> str:
    """“river”; “bank” itself for the word; “the” (3) where the sentence has several."""
    piece = _piece(token)
    if token["role"] == "word":
        return f"“{piece}” itself"
    several = sum(_piece(other) == piece for other in tokens) > 1
    return f"“{piece}” ({token['pos']})" if several else f"“{piece}”"


def _piece(token: Source) -> str:
    """The text of a token, whose label is its position and it: river of 1·river."""
    return str(token["source"]).split("·", 1)[1]
