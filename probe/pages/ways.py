"""The section "From the cue to the word" as plain values: maps by position, whole ways as sentences, the leading edges.

Made from the frames `positions`, `paths` and `ways` alone. A way is a sentence only as far as it was measured: what
goes over it, and whether every one of its edges passed its test.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.pages import graph
from probe.pages.rows import Frames, Section, head_name, names_of, resolvers, words_of
from probe.stats.numbers import counted, decimal, listed, measured, ordinal, p_value, percent
from probe.stats.verdicts import LEVEL
from probe.text.splits import ALIGNED

ROWS = 20  # edges of the table on the page
TOLD = 3  # ways that are told one by one
Row = Mapping[Any, Any]


def section(frames: Frames) -> Section:
    """What there is to show of every ranked word, or why there is nothing, and the end of the scale of the maps."""
    ranked = frames["words"].loc[frames["words"]["ranked"], "word"].unique()
    limit = percent(charts.position_limit(frames["positions"])) if len(frames["positions"]) else ""
    return {"limit": limit, "words": [_of_word(frames, word) for word in words_of(frames) if word in ranked]}


def _of_word(frames: Frames, word: str) -> Section:
    positions, edges = (of_word(frames[name], word) for name in ("positions", "paths"))
    if positions.empty:
        nothing: Section = {"said": [], "charts": [], "edges": [], "circuit": None}
        return {"word": word, "missing": why_not(frames, word), **nothing}
    first = positions.iloc[0]
    return {
        "word": word,
        "missing": "",
        "senses": (first["sense_a"], first["sense_b"]),
        "pairs": int(positions["pairs"].max()),
        "circuit": charts.circuit(edges, positions, word),
        "charts": charts.position_maps(frames["positions"], word),
        "said": sentences(frames, word),
        "edges": [_edge(row, word) for row in edges.head(ROWS).to_dict("records")],
        "all": len(edges),
        "graph": graph.file_name(frames, word),
    }


def why_not(frames: Frames, word: str) -> str:
    """Why nothing was followed, in one sentence."""
    pairs = of_word(frames["words"], word)
    if not pairs["causal"].all():
        return "This model reads both ways, so what is brought to a word has no one direction along the tokens."
    if not (pairs["pair_design"] == ALIGNED).all():
        return "The sentences are not aligned in pairs, so no position of one stands for a position of the other."
    return (
        "No two sentences of a pair have the same number of tokens up to the word with the cue near enough to it, so "
        "no position of one stands for a position of the other."
    )


def sentences(frames: Frames, word: str) -> list[str]:
    """The ways of a word, best first, and how much of the gap they carry together."""
    rows = of_word(frames["ways"], word)
    if of_word(frames["paths"], word).empty:
        return []
    if rows.empty:
        ends = names_of(resolvers(frames, word))
        what = f"Only the end of the way was found, {listed(ends)} at “{word}”" if ends else "No way was found"
        return [f"{what}: over no chain of edges from the cue to a head at the word goes 1 % of the gap."]
    told = [way_told(steps.to_dict("records"), word) for _, steps in rows.groupby("way")]
    more = len(told) - TOLD
    rest = [f"{counted(more, 'more way', words=True)} carry less each."] if more > 0 else []
    return [*told[:TOLD], *rest, _together(rows.iloc[0].to_dict(), len(told))]


def _together(first: Row, number: int) -> str:
    chance = f"the best of random sets of as many edges into the same layers carries {percent(first['random_high'])}"
    if number == 1:
        return f"{chance.capitalize()}."
    kept: str = (
        "" if pd.isna(first["size"]) else f", {counted(int(first['size']), 'edge')} of theirs {percent(first['kept'])}"
    )
    return f"All {number} ways together carry {percent(first['together'])} of the gap{kept}; {chance}."


def way_told(steps: Sequence[Row], word: str) -> str:
    """A way as a sentence: which head brings the sense from where to where, and what goes this way."""
    told: list[str] = []
    for number, step in enumerate(steps):
        before = steps[number - 1] if number else None
        told.append(_step(step, before, word))
    sure = "" if steps[0]["p"] < LEVEL else f" (not confirmed for every step, {p_value(steps[0]['p'])})"
    way = ", ".join(told)
    return f"{way[0].upper()}{way[1:]}: {percent(steps[0]['share'])} of the gap goes this way{sure}."


def _step(step: Row, before: Row | None, word: str) -> str:
    """One step; "from there" behind another one."""
    at, head, onward = place(step["receiver_pos"], word), receiver(step), before is not None
    start = place(step["sender_pos"], word)
    if step["channel"] == "query":
        return f"{'it' if onward else start} sets what {head} looks for from {at}"
    if step["channel"] == "key":
        return f"{'it' if onward else start} sets whether {head}, from {at}, looks there"
    if step["sender_pos"] == step["receiver_pos"]:
        return f"{head} rewrites {'it at' if onward else 'the vector of'} {at}"
    moved = before is not None and before["channel"] == "value" and before["sender_pos"] != before["receiver_pos"]
    verb = "" if moved else "brings the meaning "
    return f"{head} {verb}from there to {at}" if onward else f"{head} {verb}from {start} to {at.replace(start, 'it')}"


def receiver(step: Row) -> str:
    """The head, or the MLP, that a step leads to."""
    layer, head = step["receiver_layer"], step["receiver_head"]
    return f"the MLP of layer {layer}" if pd.isna(head) else head_name({"layer": layer, "head": head})


def place(name: str, word: str) -> str:
    """The name of a position in words: the cue, the second token behind the cue, the word in quotes."""
    if name in ("word", "cue"):
        return f"“{word}”" if name == "word" else "the cue"
    _, side, number = name.split()
    nth = "" if number == "1" else f"{ordinal(int(number))} "
    return f"the {nth}token {'behind' if side == '+' else 'before the end of'} the cue"


def _edge(row: Row, word: str) -> Section:
    """An edge as text for the table."""
    ends = [(row[f"{end}_layer"], row[f"{end}_head"], row[f"{end}_pos"]) for end in ("sender", "receiver")]
    sender, reader = (f"{charts.part_name(layer, head)} at {place(pos, word)}" for layer, head, pos in ends)
    total = measured(row["total"], row["low"], row["high"])
    p: str = "not tested" if pd.isna(row["p"]) else p_value(row["p"])
    composition: str = "" if pd.isna(row["composition"]) else decimal(row["composition"])
    numbers = {name: percent(row[name]) for name in ("fraction", "direct")} | {"composition": composition}
    return {"sender": sender, "receiver": reader, "channel": row["channel"], "total": total, "p": p} | numbers
