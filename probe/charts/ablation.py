"""Accuracy by depth with heads taken out, compared with random sets of the same layers."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from probe.charts.palette import (
    AGAINST,
    INK,
    MUTED,
    WITH,
    by_depth,
    by_value,
    finish,
    heading,
    line_legend,
    lines_with_dots,
    share_axis,
    tips,
)
from probe.stats.numbers import listed, percent

INTACT = "every head in place"
BAG = "bag of words"
PANELS = {
    "mean": "their mean instead",
    "swap": "a random sentence's z instead",
    "same_sense": "one of the same sense instead",
}
TIPS = tips(
    "what:N",
    "label:N | depth",
    "value:Q | accuracy | .1%",
    "low:Q | from | .1%",
    "high:Q | to | .1%",
)
HEADS_NAMED = 4  # in a legend


def accuracy_without(
    without: pd.DataFrame, heads: Sequence[str], *, bag: float
) -> alt.HConcatChart:
    """Mean accuracy over the words by depth: with every head in place, without `heads` (band: 95 %
    interval of the fall), without random sets (band: from the best to the worst); a panel for each
    way of taking them out.

    `without` is that frame of an evaluation, `bag` the accuracy of its bag of words, the dashed
    line.
    """
    means = without[without["word"].isna() & without["depth"].notna()]
    label = f"without {', '.join(heads)}"
    if len(heads) > HEADS_NAMED:
        label = f"without {len(heads)} heads"
    random = f"random sets ({means['random_sets'].iloc[0]})"
    kinds = [INTACT, label, random, BAG]
    rows = _lines(means, kinds, bag)
    lowest = float(np.nanmin(rows[["value", "low"]].to_numpy(dtype=float)))
    scale = alt.Scale(domain=[lowest, 1.0], nice=True, zero=False)
    key = line_legend(orient="bottom", columns=2, labelLimit=300, symbolOpacity=1)
    colour = by_value(alt.Color, "what:N", kinds, (INK, WITH, MUTED, AGAINST), key)
    dash = by_value(alt.StrokeDash, "what:N", kinds, ([1, 0], [6, 2], [2, 2], [4, 3]), key)
    panels = []
    for kind, title in PANELS.items():
        here = rows[rows["kind"] == kind]
        x = by_depth(here["depth"])
        y = alt.Y("value:Q", title="sentences whose sense is found", axis=share_axis(), scale=scale)
        base = alt.Chart(here).encode(x=x, y=y, color=colour)
        band = alt.Chart(here.dropna()).mark_area(opacity=0.2)
        low = alt.Y("low:Q", title="sentences whose sense is found", scale=scale)
        band = band.encode(x=x, y=low, y2=alt.Y2("high:Q"), color=colour)
        lines = lines_with_dots(base, 18, line={"strokeDash": dash}, tooltip=TIPS)
        picture = alt.layer(band, *lines)
        panels.append(picture.properties(title=heading(title), width=270, height=210))
    last = means[means["kind"] == "mean"].iloc[-1]
    description = (
        f"Accuracy by depth without {listed(list(heads))} at the word: with their mean instead it "
        f"is {percent(last['accuracy_without'])} at the last depth, {percent(last['accuracy'])} "
        f"with every head in place; random sets of as many other heads a layer fall by "
        f"{percent(last['random_most'])} at most."
    )
    return finish(alt.hconcat(*panels), description)


def _lines(means: pd.DataFrame, kinds: Sequence[str], bag: float) -> pd.DataFrame:
    """The four lines one below the other, what is drawn over the others last: `kind depth label
    what value low high`."""
    accuracy = means["accuracy"]
    missing = np.full(len(means), np.nan)
    intact, without_heads, random, bag_of_words = kinds
    values: dict[str, tuple[Any, Any, Any]] = {
        bag_of_words: (bag, missing, missing),
        random: (
            accuracy - means["random_fall"],
            accuracy - means["random_most"],
            accuracy - means["random_least"],
        ),
        intact: (accuracy, missing, missing),
        without_heads: (
            means["accuracy_without"],
            accuracy - means["fall_high"],
            accuracy - means["fall_low"],
        ),
    }
    columns = means[["kind", "depth", "label"]].astype({"depth": int})
    parts = [
        columns.assign(what=kind, value=value, low=low, high=high)
        for kind, (value, low, high) in values.items()
    ]
    return pd.concat(parts, ignore_index=True)
