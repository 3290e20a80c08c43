"""Where a model's parameters are: one bar per model, cut into parts, all bars of the same length."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import SENSES, WITH, finish
from probe.numerals import percent

PARTS = ("attention", "MLP", "embeddings", "biases and norms")
COLOURS = (WITH, "#6b7480", "#00805d", SENSES[5])  # dark enough for white numbers
WIDE_ENOUGH = 0.06


def parameter_bars(rows: pd.DataFrame) -> Any:
    """The share of each of PARTS in each model's parameters, with the share written in it. `rows`: `model`, `part`, `parameters`."""
    sums = rows.groupby("model", sort=False)["parameters"].transform("sum")
    shown = rows.assign(share=rows["parameters"] / sums, place=rows["part"].map(PARTS.index))
    shown = shown.sort_values(["model", "place"])
    end = shown.groupby("model")["share"].cumsum()
    shown = shown.assign(middle=end - shown["share"] / 2, text=[_text(share) for share in shown["share"]])
    models = rows["model"].drop_duplicates().tolist()
    y = alt.Y(
        "model:N", title=None, sort=models, axis=alt.Axis(ticks=False, domain=False, labelLimit=200, labelFontSize=12)
    )
    title = "share of all parameters"
    x = alt.X(
        "share:Q", title=title, stack="zero", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%", tickCount=5)
    )
    kinds = [part for part in PARTS if part in set(rows["part"])]
    key = alt.Legend(orient="top", title=None, symbolType="square", symbolStrokeWidth=0)
    scale = alt.Scale(domain=kinds, range=[COLOURS[PARTS.index(kind)] for kind in kinds])
    tip = [alt.Tooltip("model:N"), alt.Tooltip("part:N"), alt.Tooltip("parameters:Q", format=",")]
    bars = (
        alt.Chart(shown)
        .mark_bar(height=30)
        .encode(y=y, x=x, color=alt.Color("part:N", scale=scale, legend=key), order="place:Q", tooltip=tip)
    )
    numbers = (
        alt.Chart(shown)
        .mark_text(color="#ffffff", fontSize=12)
        .encode(y=y, x=alt.X("middle:Q", title=title), text="text:N")
    )
    told = "; ".join(_told(shown[shown["model"] == model], model) for model in models)
    return finish(alt.layer(bars, numbers).properties(width="container", height={"step": 48}), f"{told}.")


def _text(share: float) -> str:
    return percent(share) if share >= WIDE_ENOUGH else ""


def _told(rows: pd.DataFrame, model: str) -> str:
    return f"{model}: " + ", ".join(
        f"{part} {percent(share)}" for part, share in zip(rows["part"], rows["share"], strict=True)
    )
