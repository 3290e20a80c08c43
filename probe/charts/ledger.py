"""The cue ledger of one sentence: who put how much of the sense into the word's vector, token by token."""

from typing import Any

import altair as alt
import pandas as pd

from probe import suppliers
from probe.charts.palette import INK, WITH, finish, reference_line
from probe.numerals import decimal, percent, scientific

LEADERS = (WITH, "#a488de", "#cbb8ef")
OTHER_HEADS, NO_HEAD = "#8d96a1", "#5f7f86"
MOST_TOKENS = 24
SUM = "all together"
MEAN = 0.5  # where the mean of a sense stands
LAST = ["other tokens", "token embedding", "position embedding", "token type embedding", "MLPs"]
LAST += ["attention biases", "norm biases", SUM]


def ledger_bars(ledger: pd.DataFrame, word: str, *, sentence: int) -> pd.DataFrame:
    """The bars of one sentence in drawing order, a row per `bar` and `writer`, with the bar's `net` and its `share` of the sum.

    `toward` and `net` are positive toward the sense that is meant, in fractions of the gap. Tokens stand in reading order, the
    smallest beyond MOST_TOKENS gathered; then embeddings, MLPs, biases and the sum. Writers are the leading heads, the other
    heads, and what is no head.
    """
    rows = _toward(ledger[(ledger["word"] == word) & (ledger["sentence"] == sentence)])
    is_head, size = rows["head"].notna(), rows["toward"].abs()
    leaders = size[is_head].groupby(rows["component"]).sum().nlargest(len(LEADERS)).index.tolist()
    tokens = rows.groupby("token", sort=False)["toward"].sum()
    shown = [label for label in tokens.index if label in tokens.abs().nlargest(MOST_TOKENS).index]
    bar = suppliers.source(rows).where(rows["token"].isin(shown) | ~is_head, "other tokens")
    writer = rows["component"].where(rows["component"].isin(leaders), "other heads").where(is_head, "no head")
    made = rows.assign(bar=bar, writer=writer).groupby(["bar", "writer"], as_index=False).agg(toward=("toward", "sum"))
    total = float(rows["total"].iloc[0] * rows["sign"].iloc[0])
    made = pd.concat([made, pd.DataFrame([{"bar": SUM, "writer": SUM, "toward": total}])], ignore_index=True)
    net = made.groupby("bar")["toward"].transform("sum")
    part = made["writer"].map([*leaders, "other heads", "no head", SUM].index)
    made = made.assign(net=net, share=net / total, part=part, place=made["bar"].map([*shown, *LAST].index))
    return made.sort_values(["place", "part"], ignore_index=True)


def _toward(ledger: pd.DataFrame) -> pd.DataFrame:
    sign = (ledger["sense"] == ledger["sense_a"]) * 2 - 1
    return ledger.assign(sign=sign, toward=ledger["contribution"] * sign)


def cue_ledger(ledger: pd.DataFrame, word: str, *, sentence: int) -> Any:
    """One sentence's ledger on the sense axis: a bar per source token, in parts by head, then what is no head, and the sum.

    `ledger` is the study's frame. Right is toward the sense that is meant. Numbers are shares of the sum where the word stands clearly on the side of its sense, and
    fractions of the gap where it does not.
    """
    rows = ledger[(ledger["word"] == word) & (ledger["sentence"] == sentence)]
    first = rows.iloc[0].to_dict()
    bars = ledger_bars(ledger, word, sentence=sentence)
    y_axis = alt.Axis(labelLimit=160, ticks=False, domain=False, labelOverlap=False)
    y = alt.Y("bar:N", title="source", sort=bars["bar"].unique().tolist(), axis=y_axis)
    other = first["sense_b"] if first["sense"] == first["sense_a"] else first["sense_a"]
    axis_title = [f"contribution toward {first['sense']},", f"away from {other} (fraction of the gap)"]
    scale = alt.Scale(domain=_domain(ledger), nice=False)
    x = alt.X("toward:Q", title=axis_title, axis=alt.Axis(tickCount=6), scale=scale)
    tip = [alt.Tooltip("bar:N", title="source"), alt.Tooltip("writer:N", title="written by")]
    tip += [alt.Tooltip("toward:Q", title="this part (fraction of the gap)", format="+.3f")]
    tip += [alt.Tooltip("net:Q", title="whole bar (fraction of the gap)", format="+.3f")]
    mark = alt.Chart(bars).mark_bar(height={"band": 0.66})
    parts = mark.encode(y=y, x=x, color=_hue(bars), order=alt.Order("part:Q"), tooltip=tip)
    texts = alt.Chart(_texts(bars, suppliers.clear(first))).mark_text(align="left", dx=5, fontSize=11, color=INK)
    numbers = texts.encode(y=y, x=alt.X("edge:Q"), text="text:N")
    picture = alt.layer(parts, reference_line("x", 0.0), numbers)
    return finish(picture.properties(width="container", height=20 * bars["bar"].nunique()), _description(rows))


def _domain(ledger: pd.DataFrame) -> list[float]:
    """From the longest bar to the left to the longest to the right of all sentences: one axis for every picture of a page."""
    rows = _toward(ledger)
    source = suppliers.source(rows)
    sides = [rows["toward"].clip(upper=0), rows["toward"].clip(lower=0)]
    low, high = (side.groupby([rows["word"], rows["sentence"], source]).sum() for side in sides)
    whole = rows["total"] * rows["sign"]
    ends = min(low.min(), whole.min(), 0.0), max(high.max(), whole.max(), MEAN)
    room = 0.08 * (ends[1] - ends[0])
    return [float(ends[0]) - room, float(ends[1]) + room]


def _hue(bars: pd.DataFrame) -> alt.Color:
    """The leading heads in shades of one hue, the rest in greys, the sum in ink; the legend lists who wrote."""
    fixed = {"other heads": OTHER_HEADS, "no head": NO_HEAD, SUM: INK}
    leaders = [name for name in bars.sort_values("part")["writer"].unique() if name not in fixed]
    colours = dict(zip(leaders, LEADERS, strict=False)) | fixed
    key = alt.Legend(orient="top", values=[*leaders, "other heads", "no head"], offset=4, columns=3)
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("writer:N", title="written by", scale=scale, legend=key)


def _texts(bars: pd.DataFrame, shares: bool) -> pd.DataFrame:
    """The number of each bar, right of its parts and of zero."""
    edges = bars.assign(edge=bars["toward"].clip(lower=0)).groupby("bar", sort=False)
    rows = edges.agg(edge=("edge", "sum"), net=("net", "first"), share=("share", "first")).reset_index()
    return rows.assign(
        text=[percent(share) for share in rows["share"]] if shares else [decimal(n) for n in rows["net"]]
    )


def _description(rows: pd.DataFrame) -> str:
    (told,) = suppliers.told(rows).values()
    return (
        f"Where the sense comes from, by source token: {told} The terms add up to the vector that the model has there, within "
        f"{scientific(float(rows['closing'].iloc[0]))} of its size."
    )
