"""Held-out separation of every head as measured and under each control, where there is nothing to find."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.channels import bare_axis, head_names, reference_line, tips
from probe.charts.palette import INK, MUTED, WITH, finish
from probe.stats.numbers import decimal

CHANCE = 0.5
ORDER = ("as measured", "labels permuted", "later token", "untrained model")


def control_strips(controls: pd.DataFrame, word: str, *, shown: list[str] | None = None) -> Any:
    """Held-out AUROC of every head, a strip per condition; the heads named in `shown` are marked.

    With permuted labels a tick is a head's median and its band holds nine of ten permutations. `controls` is the
    study's frame: its axis is the same for every word, and a condition that could not be measured has no strip.
    """
    rows = controls[controls["word"] == word]
    rows = rows.assign(name=head_names(rows)).assign(stands_out=lambda made: made["name"].isin(shown or []))
    conditions = [name for name in ORDER if name in set(rows["condition"])]
    scale = alt.Scale(domain=[min(0.3, float(controls["auroc"].min()) - 0.04), 1.03], nice=False, zero=False)
    axis = alt.Axis(values=[0.25, 0.5, 0.75, 1], format=".2f")
    x = alt.X("auroc:Q", title="held-out AUROC (0.5 = chance)", scale=scale, axis=axis)
    y = alt.Y("condition:N", title="condition", sort=conditions, axis=bare_axis(labelLimit=130, grid=False))
    base = alt.Chart(rows).encode(x=x, y=y, tooltip=tips("name:N | head", "condition:N", "auroc:Q | AUROC | .2f"))
    ticks = base.mark_tick(color=MUTED, thickness=1.5, size=16, opacity=0.6)
    leaders = base.transform_filter(alt.datum.stands_out)
    diamonds = leaders.mark_point(shape="diamond", filled=True, size=80, color=WITH, opacity=1)
    medians = rows.groupby("condition")["auroc"].median()
    middle = alt.Chart(medians.reset_index()).mark_tick(color=INK, thickness=2.5, size=22).encode(x=x, y=y)
    band = alt.Chart(rows[rows["low"].notna()]).mark_bar(color=MUTED, opacity=0.12, height=22)
    band = band.encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y)
    picture = alt.layer(reference_line("x", CHANCE), band, ticks, middle, diamonds)
    told = ", ".join(f"{name} {decimal(float(medians[name]))}" for name in conditions)
    return finish(
        picture.properties(width="container", height=34 * len(conditions)),
        f"Controls for {word}: median held-out AUROC over all heads by condition: {told}; 0.5 is chance.",
    )
