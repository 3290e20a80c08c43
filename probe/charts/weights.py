"""One destination token: its weights with and without the division by sqrt(d_head), and what each source adds."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.live import live
from probe.charts.palette import AGAINST, INK, MUTED, WITH, finish, reference_line
from probe.numerals import decimal, percent

DIVIDED, UNDIVIDED = "divided by √d_head", "not divided"


def softmax_bars(row: pd.DataFrame) -> Any:
    """A token's attention weights, twice: softmax of the scores, and of the scores not divided by sqrt(d_head).

    `row` has `key`, `variant` and `weight`.
    """
    labels = row["key"].drop_duplicates().tolist()
    axis = alt.Axis(labelAngle=-45, labelLimit=90, labelOverlap=False, ticks=False)
    x = alt.X("key:N", title="key: the token looked at", sort=labels, axis=axis)
    y = alt.Y(
        "weight:Q", title="attention weight", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5, format=".0%")
    )
    order = [DIVIDED, UNDIVIDED]
    key = alt.Legend(orient="top", title=None, symbolStrokeWidth=0)
    hue = alt.Color("variant:N", scale=alt.Scale(domain=order, range=[WITH, MUTED]), legend=key)
    tip = [alt.Tooltip("key:N"), alt.Tooltip("variant:N"), alt.Tooltip("weight:Q", format=".6g")]
    bars = alt.Chart().mark_bar().encode(x=x, xOffset=alt.XOffset("variant:N", sort=order), y=y, color=hue, tooltip=tip)
    most = row.groupby("variant")["weight"].max()
    description = (
        f"Attention weights over {len(labels)} tokens: the largest is {percent(float(most[DIVIDED]))} with the division and "
        f"{percent(float(most[UNDIVIDED]))} without it."
    )
    picture = alt.layer(bars, data=live(row, "shares")).properties(width="container", height=200)
    return finish(picture, description)


def source_bars(values: pd.DataFrame) -> Any:
    """How much of a head's ΔE at one token comes from each source, along ΔE; the bars sum to 1. Beside it the weights.

    `values` has `label`, `weight` and `share`, sources in the order of the text.
    """
    labels = values["label"].tolist()
    axis = alt.Axis(ticks=False, domain=False, labelLimit=110, labelOverlap=False)
    y = alt.Y("label:N", title="source token", sort=labels, axis=axis)
    x = alt.X(
        "share:Q",
        title="share of ΔE (bars), weight (ticks)",
        axis=alt.Axis(tickCount=5, format=".0%"),
    )
    tip = [alt.Tooltip("label:N", title="source"), alt.Tooltip("share:Q", title="share of ΔE", format=".6g")]
    tip.append(alt.Tooltip("weight:Q", title="attention weight", format=".6g"))
    hue = alt.condition("datum.share >= 0", alt.value(WITH), alt.value(AGAINST))
    base = alt.Chart().encode(y=y, tooltip=tip)
    bars = base.mark_bar(height={"band": 0.6}).encode(x=x, color=hue)
    ticks = base.mark_tick(color=INK, thickness=2, height={"band": 0.85}).encode(x=alt.X("weight:Q"))
    zero = reference_line("x", 0.0)
    picture = alt.layer(bars, ticks, data=live(values, "values")) + zero
    step = 22 if len(labels) <= 20 else 15
    largest = max(values.to_dict("records"), key=lambda row: abs(row["share"]))
    description = (
        f"Shares of ΔE by source token: {largest['label']} supplies {percent(float(largest['share']))} of it with a weight of "
        f"{percent(float(largest['weight']))}."
    )
    return finish(picture.properties(width="container", height=step * len(labels)), description)


def logit_bars(values: pd.DataFrame, word: str) -> Any:
    """What a head adds to one word's logit from each source token; `values` has `label` and `logit`, sources in the order of the text."""
    labels = values["label"].tolist()
    axis = alt.Axis(ticks=False, domain=False, labelLimit=110, labelOverlap=False)
    y = alt.Y("label:N", title="source token", sort=labels, axis=axis)
    x = alt.X("logit:Q", title=f"added to the logit of “{word}”", axis=alt.Axis(tickCount=5))
    tip = [alt.Tooltip("label:N", title="source"), alt.Tooltip("logit:Q", title="added", format="+.6g")]
    hue = alt.condition("datum.logit >= 0", alt.value(WITH), alt.value(AGAINST))
    bars = alt.Chart().mark_bar(height={"band": 0.6}).encode(y=y, x=x, color=hue, tooltip=tip)
    picture = alt.layer(bars, data=live(values, "logits")) + reference_line("x", 0.0)
    step = 22 if len(labels) <= 20 else 15
    largest = max(values.to_dict("records"), key=lambda row: abs(row["logit"]))
    description = (
        f"What each source token adds to the logit of {word}: {largest['label']} {decimal(float(largest['logit']))}."
    )
    return finish(picture.properties(width="container", height=step * len(labels)), description)
