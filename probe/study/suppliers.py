"""Direct shares of a word's sense by source token, and through which heads, in one sentence: the ledger in words.

A share is a contribution over the sentence's own sense coordinate (`total`, counted from the midpoint between the
senses), so the shares of a sentence sum to 1. It is direct: what was written, with everything downstream as it was, not
what would happen without it (see `probe.model.ledger`). The cue and the MLPs are always named, however small; where the
word does not clearly stand on the side of the sense that is meant, a share would be a ratio over nothing and none is
given.
"""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from probe.stats.numbers import decimal, listed, percent

SENTENCE = ["word", "sense", "sentence", "sense_a", "sense_b"]
GATHERED = {"MLP": "MLPs", "attention": "attention biases", "norm": "norm biases"}
CLEAR = 0.1  # of the gap; the mean of a sense is at 0.5
WORTH_NAMING = 0.1  # of the coordinate: smaller shares are summed into "everything else"
MOST = 0.8  # of what came from a token: the heads that are named carry at least this much
NAMED_HEADS = 3
NAMED_TOKENS = 2
Source = dict[Hashable, Any]


def by_source(ledger: pd.DataFrame) -> pd.DataFrame:
    """Contribution and share of every source of a sentence: tokens over all heads, embeddings, MLPs, biases.

    `contribution` in fractions of the gap, `share` of the sentence's `total` (they sum to 1), `through`: the heads that
    carry most of what came from a token, as text.
    """
    groups = ledger.assign(source=source(ledger)).groupby([*SENTENCE, "source"], sort=False)
    sums = groups.agg(
        pos=("pos", "first"), role=("role", "first"), contribution=("contribution", "sum"), total=("total", "first")
    )
    through = [listed(carriers(rows)) for _, rows in groups]
    return sums.assign(share=sums["contribution"] / sums["total"], through=through).reset_index()


def source(ledger: pd.DataFrame) -> pd.Series:
    """The source that each row counts to: its token's label, the embedding, `MLPs`, or the biases of a kind."""
    components = ledger["component"]
    return ledger["token"].fillna(components.str.split(" ").str[0].map(GATHERED).fillna(components))


def carriers(rows: pd.DataFrame) -> list[str]:
    """The heads, largest first, that carry at least MOST of a source's contribution.

    `other heads` stands last where NAMED_HEADS of them are not enough.
    """
    heads = rows[rows["head"].notna()]
    whole = heads["contribution"].sum()
    if whole == 0:
        return []
    shares = (heads.set_index("component")["contribution"] / whole).sort_values(ascending=False, kind="stable")
    needed = int((shares.cumsum() >= MOST).argmax()) + 1
    named = [str(name) for name in shares.index[: min(needed, NAMED_HEADS)]]
    return named if needed <= NAMED_HEADS else [*named, "other heads"]


def clear(source: Source) -> bool:
    """Whether the word stands on the side of the sense that is meant, by at least CLEAR of the gap."""
    return bool(source["total"] * (1 if source["sense"] == source["sense_a"] else -1) >= CLEAR)


def told(ledger: pd.DataFrame) -> dict[tuple[str, int], str]:
    """What each sentence of the ledger shows, in words, by word and sentence number."""
    groups = by_source(ledger).groupby(["word", "sentence"], sort=False)
    sentences = [rows.to_dict("records") for _, rows in groups]
    return {(sources[0]["word"], sources[0]["sentence"]): _tell(sources) for sources in sentences}


def _tell(sources: list[Source]) -> str:
    first = sources[0]
    if not clear(first):
        return (
            f"Here “{first['word']}” stands at {decimal(first['total'])}, from −0.50 for {first['sense_b']} "
            f"to 0.50 for {first['sense_a']}: not clearly {first['sense']}, so no part of it is called a share of that "
            "sense."
        )
    tokens = [source for source in sources if pd.notna(source["pos"])]
    lead = max(tokens, key=lambda source: source["share"])
    whose = f"of the sense of “{first['word']}” here ({first['sense']})"
    if lead["share"] < WORTH_NAMING:
        said = f"No token directly supplies as much as {percent(WORTH_NAMING)} {whose}"
        return f"{said}; {_rest(sources, [source for source in tokens if source['role'] == 'cue'])}."
    said = f"{_name(lead, tokens)} directly supplies {percent(lead['share'])} {whose}, through {lead['through']}"
    return f"{said}; {_rest(sources, _named(tokens, lead), lead)}."


def _named(tokens: list[Source], lead: Source) -> list[Source]:
    """The other tokens that are named, in reading order: the cue, and the NAMED_TOKENS largest WORTH_NAMING."""
    others = [token for token in tokens if token is not lead]
    large = [token for token in others if token["role"] != "cue" and abs(token["share"]) >= WORTH_NAMING]
    large = sorted(large, key=lambda token: -abs(token["share"]))[:NAMED_TOKENS]
    return [token for token in others if token["role"] == "cue" or any(token is one for one in large)]


def _rest(sources: list[Source], named: list[Source], lead: Source | None = None) -> str:
    """“the” 11 %, MLPs 12 %, everything else 16 %: with the leading token's, the shares of a sentence sum to 100 %."""
    tokens = [source for source in sources if pd.notna(source["pos"])]
    mlps = [source for source in sources if source["source"] == "MLPs"]
    left = 1.0 - sum(source["share"] for source in (*named, *mlps, *([lead] if lead else [])))
    parts = [f"{_name(source, tokens)} {percent(source['share'])}" for source in named]
    parts += [f"{source['source']} {percent(source['share'])}" for source in mlps]
    return ", ".join([*parts, f"everything else {percent(left)}"])


def _name(token: Source, tokens: list[Source]) -> str:
    """“river”; “bank” itself for the word; “the” (3) where the sentence has several."""
    piece = str(token["source"]).split("·", 1)[1]
    if token["role"] == "word":
        return f"“{piece}” itself"
    several = sum(str(other["source"]).split("·", 1)[1] == piece for other in tokens) > 1
    return f"“{piece}” ({token['pos']})" if several else f"“{piece}”"
