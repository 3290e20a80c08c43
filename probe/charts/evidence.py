"""How an effect comes about: sets of heads, the distance from the cue, the parts of a head that are
swapped."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from probe.charts.palette import (
    INK,
    MUTED,
    TEXT,
    WITH,
    bare_axis,
    by_value,
    finish,
    head_names,
    line_legend,
    lines_with_dots,
    numbers_at,
    of_word,
    reference_line,
    room_for_numbers,
    share_axis,
    tips,
)
from probe.stats.numbers import measured, percent

ENOUGH = 0.9  # of the sense gap: what a set must keep, as the study asks of its smallest set
FEW_HEADS = 24  # up to so many the axis is linear; beyond, the first heads would be one dot
NECESSITY = "#5f7f86"
RANDOM = "random sets"
GAP_SHARE = "share of the sense gap"
CURVES = {"faithfulness": "leading heads", "necessity": "lost without them"}
CURVE_TIPS = tips(
    "added:N | joined",
    "size:Q | heads",
    "what:N | what",
    "value:Q | share of the gap | .1%",
    "low:Q | 95 % from | .1%",
    "high:Q | to | .1%",
)
RANDOM_TIPS = CURVE_TIPS[1:4]
# The looks of a word's leading heads, in their order
HUES = (WITH, INK, "#9aa4b1")  # of different lightness
DASHES = ([1, 0], [6, 3], [2, 2])
SHAPES = ("circle", "diamond", "square")
HEAD_PARTS = {
    "swap": "the whole head",
    "pattern_only": "only where it looks",
    "values_only": "only what it carries",
    "cue_only": "only from the cue",
    "other_only": "only from other words",
    "ablation": "its mean instead",
}
ENDS = ("", "_low", "_high")  # the columns of an effect and of its interval end so
BAR = ("value", "low", "high")


def set_curves(curves: pd.DataFrame, random_sets: pd.DataFrame, word: str) -> alt.LayerChart:
    """Faithfulness and necessity of a word's leading heads by their number; ticks are random sets,
    the line is at 0.9.

    The smallest set that reaches it is ringed. Frames are the study's, whole, so that axes are the
    same for every word.
    """
    rows = of_word(curves, word)
    chance = of_word(random_sets, word).assign(what=RANDOM)
    chance = chance.rename(columns={"faithfulness": "value"})
    x = _size_axis(int(rows["size"].max()))
    scale = _curve_scale(curves, random_sets)
    y = alt.Y(
        "value:Q",
        title=GAP_SHARE,
        axis=alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 0.9, 1]),
        scale=scale,
    )
    kinds = [*CURVES.values(), RANDOM]
    key = line_legend(orient="top", symbolOpacity=1, offset=6, columns=2)
    colour = by_value(alt.Color, "what:N", kinds, (WITH, NECESSITY, MUTED), key)
    dash = by_value(alt.StrokeDash, "what:N", kinds, ([1, 0], [5, 3], [1, 0]), key)
    ticks = alt.Chart(chance).mark_tick(orient="horizontal", size=11, thickness=1.5, opacity=0.55)
    ticks = ticks.encode(x=x, y=y, color=colour, tooltip=RANDOM_TIPS)
    base = alt.Chart(_curve_rows(rows)).encode(x=x, y=y, color=colour)
    low = alt.Y("low:Q", title=GAP_SHARE, scale=scale)
    band = base.mark_area(opacity=0.15).encode(y=low, y2=alt.Y2("high:Q"))
    lines = lines_with_dots(base, 26, line={"strokeDash": dash}, tooltip=CURVE_TIPS)
    smallest_set = rows[rows["size"] == rows["smallest"]]
    ring = _ring(smallest_set, x, y, largest=int(rows["size"].max()))
    picture = alt.layer(reference_line("y", ENOUGH), band, ticks, *lines, *ring)
    description = (
        f"Sets of heads for {word}: {_smallest_set(smallest_set)}; {len(chance)} random sets from "
        "the same layers are drawn for comparison."
    )
    return finish(picture, description, height=230)


def _curve_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The two curves one after the other: `what value low high`."""
    curves = [
        rows.assign(value=rows[name], low=rows[f"{name}_low"], high=rows[f"{name}_high"], what=kind)
        for name, kind in CURVES.items()
    ]
    return pd.concat(curves, ignore_index=True)


def _size_axis(largest: int) -> alt.X:
    kind = "linear" if largest <= FEW_HEADS else "sqrt"
    scale = alt.Scale(type=kind, domain=[0, largest], nice=False)
    axis = alt.Axis(format="d", grid=False, values=_ticks(largest))
    return alt.X("size:Q", title="number of heads, leading first", scale=scale, axis=axis)


def _ticks(largest: int) -> list[int]:
    if largest <= 8:
        return list(range(largest + 1))
    if largest <= 16:
        return list(range(0, largest + 1, 2))
    if largest <= FEW_HEADS:
        return list(range(0, largest + 1, 4))
    round_sizes = [size for size in (1, 3, 10, 30, 100, 300, 1000) if size < 0.8 * largest]
    return [0, *round_sizes, largest]


def _curve_scale(curves: pd.DataFrame, random_sets: pd.DataFrame) -> alt.Scale:
    """From the lowest end of an interval to the highest, with space for the ring's label above."""
    ends = [curves[f"{name}_{end}"] for name in CURVES for end in ("low", "high")]
    values = pd.concat([*ends, random_sets["faithfulness"]]).astype(float)
    low = min(0.0, float(values.min())) - 0.04
    high = max(1.0, float(values.max())) + 0.14
    return alt.Scale(domain=[low, high], nice=False)


def _ring(smallest_set: pd.DataFrame, x: alt.X, y: alt.Y, *, largest: int) -> list[alt.Chart]:
    """A ring round the smallest set that reaches the line, with its size and share in words."""
    if smallest_set.empty:
        return []
    size = int(smallest_set["size"].iloc[0])
    value = float(smallest_set["faithfulness"].iloc[0])
    heads = "head" if size == 1 else "heads"
    note = f"{size} {heads}: {percent(value)}"
    base = alt.Chart(pd.DataFrame([{"size": size, "value": value, "note": note}]))
    ring = base.mark_point(size=120, color=INK, strokeWidth=1.5, opacity=1).encode(x=x, y=y)
    # The label is on the side that has space, above every line, band and tick.
    side = {"align": "right", "dx": 4} if size > 0.6 * largest else {"dx": -4}
    label = base.mark_text(**TEXT | side).encode(x=x, y=alt.YValue(8), text=alt.Text("note:N"))
    return [ring, label]


def _smallest_set(smallest_set: pd.DataFrame) -> str:
    enough = f"reach {percent(ENOUGH)} of the sense gap"
    if smallest_set.empty:
        return f"No set of leading heads {enough}"
    row = smallest_set.iloc[0]
    return f"The first {int(row['size'])} heads {enough}, keeping {percent(row['faithfulness'])}"


def leading(frame: pd.DataFrame, word: str, heads: Sequence[str]) -> pd.DataFrame:
    """Effects of a word's `heads`, named as L0H0, with `name`: means over the pairs of senses.

    The ends of intervals are means as well: the interval of a mean is at most as wide as the mean
    of the intervals.
    """
    rows = of_word(frame, word)
    rows = rows.assign(name=head_names(rows))
    rows = rows[rows["name"].isin(heads)]
    keys = ["name", "distance"] if "distance" in rows else ["name"]
    effects = ["net", *(f"{part}{end}" for part in HEAD_PARTS for end in ENDS)]
    effects = [name for name in effects if name in rows]
    return rows.groupby(keys, as_index=False)[effects].mean()


def distance_lines(distances: pd.DataFrame, word: str, heads: Sequence[str]) -> alt.LayerChart:
    """Net effect of the given heads by the distance from cue to word; one axis for every word of
    the frame."""
    rows = leading(distances, word, heads)
    names = [name for name in heads if name in set(rows["name"])]
    labels = alt.Axis(labelExpr="datum.value > 3 ? '4 or more' : datum.value", labelAngle=0)
    x = alt.X("distance:O", title="tokens from the cue to the word", axis=labels)
    mean = distances.groupby(["word", "layer", "head", "distance"])["net"].mean()
    low = min(0.0, float(mean.min()))
    high = max(0.0, float(mean.max()))
    margin = 0.06 * (high - low or 1.0)
    scale = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    percents = alt.Axis(format=".0%")
    y = alt.Y("net:Q", title="net swap effect (share of gap)", axis=percents, scale=scale)
    key = alt.Legend(orient="top", offset=4)
    colour = by_value(alt.Color, "name:N", names, HUES, key)
    dash = by_value(alt.StrokeDash, "name:N", names, DASHES, key)
    shape = by_value(alt.Shape, "name:N", names, SHAPES, key)
    tip = tips("name:N | head", "distance:O | distance", "net:Q | net swap effect | .1%")
    base = alt.Chart(rows).encode(x=x, y=y, color=colour)
    lines = lines_with_dots(base, 60, line={"strokeDash": dash}, shape=shape, tooltip=tip)
    near = rows[rows["distance"] == rows["distance"].min()]["net"].max()
    far = rows[rows["distance"] == rows["distance"].max()]["net"].max()
    description = (
        f"Effect by cue distance for {word}, heads {', '.join(names)}: the largest is "
        f"{percent(near)} of the gap at the shortest distance and {percent(far)} at the longest."
    )
    return finish(alt.layer(reference_line("y", 0.0), *lines), description, height=190)


def head_part_table(
    head_parts: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]
) -> pd.DataFrame:
    """The bars: `name`, `part`, `what` in words, `value low high` in fractions of the gap; none of
    a swap that was not run."""
    keys = ["word", "layer", "head"]
    swap = leading(word_heads[[*keys, *(f"swap{end}" for end in ENDS)]], word, heads)
    wide = leading(head_parts, word, heads).merge(swap, on="name")
    bars = []
    for part, kind in HEAD_PARTS.items():
        columns = {f"{part}{end}": name for end, name in zip(ENDS, BAR, strict=True)}
        of_part = wide[["name", *columns]].rename(columns=columns)
        bars.append(of_part.assign(part=part, what=kind))
    long = pd.concat(bars, ignore_index=True).dropna()
    return long.assign(text=[measured(*row) for row in long[list(BAR)].to_numpy()])


def head_part_bars(
    head_parts: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]
) -> alt.LayerChart:
    """Effect of swapping a whole head, its attention or its values alone, and of its mean instead;
    lines: 95 %."""
    rows = head_part_table(head_parts, word_heads, word, heads)
    names = [name for name in heads if name in set(rows["name"])]
    kinds = [kind for kind in HEAD_PARTS.values() if kind in set(rows["what"])]
    low = min(0.0, float(rows["low"].min()))
    high = max(0.0, float(rows["high"].max()))
    # To the right of the interval; the interval itself is drawn.
    texts = [percent(value) for value in rows["value"]]
    numbered = rows.assign(edge=rows["high"].clip(lower=0), text=texts)
    scale = room_for_numbers([low, high if high > low else 1.0])
    x = alt.X("value:Q", title=GAP_SHARE, axis=share_axis(), scale=scale)
    side_by_side = alt.YOffset("name:N", sort=names, scale=alt.Scale(domain=names))
    row = {
        "y": alt.Y("what:N", title="what is replaced", sort=kinds, axis=bare_axis(labelLimit=150)),
        "yOffset": side_by_side,
    }
    key = alt.Legend(orient="top", offset=4, symbolType="square")
    colour = by_value(alt.Color, "name:N", names, HUES, key)
    tip = tips(
        "name:N | head",
        "what:N",
        "value:Q | | .1%",
        "low:Q | 95 % interval from | .1%",
        "high:Q | to | .1%",
    )
    base = alt.Chart(rows)
    # Faint, because a line within a dark bar is not seen
    bars = base.mark_bar(height={"band": 0.8}, opacity=0.6)
    bars = bars.encode(x=x, color=colour, tooltip=tip, **row)
    intervals = base.mark_rule(color=INK, strokeWidth=1.5)
    intervals = intervals.encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), **row)
    numbers = numbers_at(numbered, "edge", dx=4, **row)
    first = rows[rows["name"] == names[0]]
    effects = [f"{kind} {text}" for kind, text in zip(first["what"], first["text"], strict=True)]
    description = (
        f"How the effect on {word} comes about. {names[0]}: {', '.join(effects)} of the sense gap."
    )
    picture = alt.layer(reference_line("x", 0.0), bars, intervals, numbers)
    return finish(picture, description, height=max(34, 15 * len(names) + 10) * len(kinds))
