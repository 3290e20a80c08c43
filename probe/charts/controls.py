"""What the same measurement gives where there is nothing to find: separation of every head under each control."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, WITH, finish, reference_line
from probe.stats.numbers import decimal

CHANCE = 0.5
ORDER = ("as measured", "labels permuted", "later token", "untrained model")


def control_strips(controls: pd.DataFrame, word: str, *, shown: list[str] | None = None) -> Any:
    """Held-out AUROC of every head, a strip per condition; the heads named in `shown` stand out. One axis for every word.

    `controls` is the study's frame; conditions that could not be measured have no strip.
    """
    rows = controls[controls["word"] == word]
    names = [f"L{layer}H{head}" for layer, head in zip(rows["layer"], rows["head"], strict=True)]
    rows = rows.assign(name=names, stands_out=[name in (shown or []) for name in names])
    conditions = [name for name in ORDER if name in set(rows["condition"])]
    scale = alt.Scale(domain=[min(0.3, float(controls["auroc"].min()) - 0.04), 1.03], nice=False, zero=False)
    axis = alt.Axis(values=[0.25, 0.5, 0.75, 1], format=".2f")
    x = alt.X("auroc:Q", title="held-out AUROC (0.5 = chance)", scale=scale, axis=axis)
    labels = alt.Axis(labelLimit=130, ticks=False, domain=False, grid=False)
    y = alt.Y("condition:N", title="condition", sort=conditions, axis=labels)
    tip = [alt.Tooltip("name:N", title="head"), alt.Tooltip("condition:N")]
    tip.append(alt.Tooltip("auroc:Q", title="AUROC", format=".2f"))
    base = alt.Chart(rows).encode(x=x, y=y, tooltip=tip)
    ticks = base.mark_tick(color=MUTED, thickness=1.5, size=16, opacity=0.6)
    leaders = base.transform_filter(alt.datum.stands_out)
    diamonds = leaders.mark_point(shape="diamond", filled=True, size=80, color=WITH, opacity=1)
    medians = rows.groupby("condition")["auroc"].median().reset_index()
    middle = alt.Chart(medians).mark_tick(color=INK, thickness=2.5, size=22).encode(x=x, y=y)
    picture = alt.layer(reference_line("x", CHANCE), ticks, middle, diamonds)
    height = 34 * len(conditions)
    return finish(picture.properties(width="container", height=height), _description(medians, conditions, word))


def _description(medians: pd.DataFrame, conditions: list[str], word: str) -> str:
    middle = medians.set_index("condition")["auroc"]
    told = ", ".join(f"{name} {decimal(float(middle[name]))}" for name in conditions)
    return f"Controls for {word}: median held-out AUROC over all heads by condition: {told}; 0.5 is chance."
