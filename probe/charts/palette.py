"""Colours and type of every chart and page, and what turns an altair chart into a picture.

Decisions that bind every picture: effects are drawn on one diverging scale (violet with, ochre against), symmetric around zero,
and zero is blank; a sense keeps its hue, in order of first appearance, everywhere. Both hold on white and on near-black. Text
and lines use INK, MUTED and LINE only, which a page may replace by its theme's (`themed`).
"""

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from probe.charts.png import repacked
from probe.numerals import NARROW
from probe.provenance import write_atomically

INK, MUTED, LINE = "#1c2430", "#5a6472", "#cfd5dc"
WITH, AGAINST = "#7a50c8", "#b8741a"
SENSES = ("#0072b2", "#d55e00", "#009e73", "#c8609b", "#4a9fd8", "#b58900")
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)"}
NUMBERS = alt.NumberLocale(
    currency=["", ""], decimal=".", grouping=[3], minus="−", percent=f"{NARROW}%", thousands=NARROW
)
DATA = ("data", "datasets")


def senses_of(rows: pd.DataFrame) -> list[str]:
    """The senses of a word in the order that fixes their hues: `sense_a` and `sense_b` of its pairs, as they first appear."""
    return list(dict.fromkeys(rows[["sense_a", "sense_b"]].to_numpy().ravel().tolist()))


def sense_colour(senses: Sequence[str], sense: str) -> str:
    """The hue of a sense among the senses of its word."""
    return SENSES[list(senses).index(sense) % len(SENSES)]


def effect_scale(limit: float) -> alt.Scale:
    """The diverging scale of effects: symmetric, transparent at zero, so that zero is blank on any background."""
    against, along = (f"rgba({', '.join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5))}, " for c in (AGAINST, WITH))
    stops = [against + "1)", against + "0)", along + "0)", along + "1)"]
    return alt.Scale(type="linear", domain=[-limit, -1e-9, 1e-9, limit], range=stops, interpolate="rgb", clamp=True)


def finish(chart: Any, description: str) -> Any:
    """The chart with its description (read aloud in place of the picture) and the look that all charts share."""
    axis = {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "titleFontSize": 11,
        "labelFontSize": 11,
    }
    lines = {"domainColor": LINE, "tickColor": LINE, "gridColor": LINE, "gridOpacity": 0.6}
    legend = {
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "titleFontSize": 11,
        "labelFontSize": 12,
        "titleLimit": 400,
    }
    return chart.properties(description=description, background="transparent").configure(
        font=FONT,
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(**axis, **lines),
        legend=alt.LegendConfig(labelColor=INK, **legend),
        locale=alt.Locale(number=NUMBERS),
        title=alt.TitleConfig(color=INK, fontSize=13, anchor="start"),
    )


def reference_line(channel: str, at: float, *, dash: bool = True) -> alt.Chart:
    """A line across the picture at a value of `channel` (x or y)."""
    mark = alt.Chart(pd.DataFrame({"at": [at]})).mark_rule(color=MUTED, strokeDash=[2, 3] if dash else [1, 0])
    return mark.encode(**{channel: alt.X("at:Q") if channel == "x" else alt.Y("at:Q")})


def themed(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart's specification with INK, MUTED and LINE as the page's CSS variables; its data are left as they are."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: part if key in DATA else walk(part) for key, part in value.items()}
        if isinstance(value, list):
            return [walk(part) for part in value]
        return THEMED.get(value, value) if isinstance(value, str) else value

    return dict(walk(spec))


def save(chart: Any, path: str | PathLike[str], *, width: int = 420) -> Path:
    """Write a chart as a PNG or SVG on white, without a browser or a network; the same bytes with the same versions.

    `width` in pixels is for charts that otherwise fill their container. Raises InputError for a file that cannot be written and
    ValueError for another ending.
    """
    spec = _on_white(chart.to_dict(), width)
    ending = Path(path).suffix
    if ending == ".svg":
        return write_atomically(path, _svg(spec))
    if ending == ".png":
        return write_atomically(path, repacked(vl_convert.vegalite_to_png(spec, scale=2)))
    raise ValueError(f"a chart is saved as .png or .svg, not as {ending!r}")


def as_pictures(*, width: int = 420) -> None:
    """From now on a notebook shows altair's charts as SVG pictures: no network and no script, and so nothing on hover.

    `width` in pixels is for charts that otherwise fill their container. `altair.renderers.enable("default")` takes it back.
    """

    def picture(spec: dict[str, Any], **options: Any) -> dict[str, str]:
        return {"image/svg+xml": _svg(_on_white(spec, width)), "text/plain": spec.get("description", "a chart")}

    alt.renderers.register("picture", picture)
    alt.renderers.enable("picture")


def _on_white(spec: dict[str, Any], width: int) -> dict[str, Any]:
    return spec | {"background": "white"} | ({"width": width} if spec.get("width") == "container" else {})


def _svg(spec: dict[str, Any]) -> str:
    return _renumbered(vl_convert.vegalite_to_svg(spec))


def _renumbered(svg: str) -> str:
    """Vega numbers gradients through the life of a process; here they count from 0 in every picture."""
    names = {name: f"gradient_{place}" for place, name in enumerate(dict.fromkeys(re.findall(r"gradient_\d+", svg)))}
    return re.sub(r"gradient_\d+", lambda found: names[found[0]], svg)
