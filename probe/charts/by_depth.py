"""Something measured at every depth of the stream, a line per thing, in panels side by side."""

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, SENSES, WITH, finish
from probe.numerals import decimal

HUES = (WITH, MUTED, SENSES[1], SENSES[0], SENSES[2])
TICK_LABELS = "datum.value < 0 ? 'token' : datum.value < 1 ? ['', '+ position'] : datum.value - 1"
WIDTH, NARROW = 190, 150
Kind = Literal["linear", "rank"]


def lines_by_depth(rows: pd.DataFrame, kinds: Mapping[str, Kind], *, hues: Mapping[str, str] | None = None) -> Any:
    """A line per `what` in every panel, in the order of `kinds`. `rows`: `panel`, `depth`, `what`, `value`.

    Depth -1 is the bare token, 0 adds the position, d leaves block d - 1. Panels of ranks are logarithmic with rank 1 on top and
    share their scale. Panels with the same lines share one legend. `hues` gives a line its colour; the others take theirs in order of appearance.
    """
    parts = {name: rows[rows["panel"] == name] for name in kinds}
    ranks = pd.concat([parts[name]["value"] for name, kind in kinds.items() if kind == "rank"] or [pd.Series([1.0])])
    alike = len({tuple(part["what"].drop_duplicates()) for part in parts.values()}) == 1
    look = (dict(hues or {}), WIDTH if len(kinds) < 3 else NARROW, len(hues or HUES) if alike and len(kinds) > 1 else 1)
    charts = [_panel(parts[name], name, (kind, float(ranks.max())), look) for name, kind in kinds.items()]
    told = "; ".join(f"{name}: {_told(part)}" for name, part in parts.items())
    return finish(
        alt.hconcat(*charts, spacing=24).resolve_scale(color="shared" if alike else "independent"), f"{told}."
    )


def _panel(rows: pd.DataFrame, name: str, scaled: tuple[Kind, float], look: tuple[dict[str, str], int, int]) -> Any:
    (kind, lowest), (hues, width, columns) = scaled, look
    lines = rows["what"].drop_duplicates().tolist()
    free = iter(hue for hue in HUES if hue not in hues.values())
    colours = [hues.get(line) or next(free) for line in lines]
    key = alt.Legend(
        orient="bottom", title=None, symbolType="stroke", symbolStrokeWidth=3, columns=columns, labelLimit=220
    )
    hue = alt.Color("what:N", scale=alt.Scale(domain=lines, range=colours), legend=key)
    x = alt.X("depth:Q", title="after layer", axis=_axis(rows["depth"]), scale=alt.Scale(nice=False, padding=8))
    scale = alt.Scale(type="log", reverse=True, domain=[1, lowest], nice=False, padding=6)
    y = alt.Y("value:Q", title=None, scale=scale if kind == "rank" else alt.Scale(), axis=_heights(kind, lowest))
    tip = [alt.Tooltip("what:N"), alt.Tooltip("depth:Q"), alt.Tooltip("value:Q", format=".6g")]
    base = alt.Chart(rows).encode(x=x, y=y, color=hue)
    dots = base.mark_point(filled=True, size=36, opacity=1).encode(tooltip=tip)
    title = alt.TitleParams(name, fontSize=12, fontWeight="normal", color=INK)
    return alt.layer(base.mark_line(strokeWidth=2), dots).properties(width=width, height=170, title=title)


def _axis(depths: pd.Series) -> alt.Axis:
    first, last = int(depths.min()), int(depths.max())
    step = 1 if last <= 6 else 2 if last <= 16 else -(-last // 8)
    ticks = sorted({*range(first, 1), *range(last, 0, -step)})
    return alt.Axis(values=ticks, labelExpr=TICK_LABELS, grid=False, labelOverlap=False)


def _heights(kind: Kind, lowest: float) -> alt.Axis:
    if kind == "linear":
        return alt.Axis(tickCount=4)
    return alt.Axis(values=[10**power for power in range(6) if 10**power <= lowest], format="d")


def _told(rows: pd.DataFrame) -> str:
    """Where each line starts and ends."""
    ends = rows.sort_values("depth").groupby("what", sort=False)["value"].agg(["first", "last"])
    return ", ".join(f"{what} from {decimal(first)} to {decimal(last)}" for what, first, last in ends.itertuples())
