"""A cue scan: every word as the cue, where it moves the word and how much a head attends to it."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, SENSES, finish, head_names, tips
from probe.stats.numbers import counted

HEIGHT = 380  # pixels
# Widths, in pixels, for which names are placed: all of them fit into the first, the names of the
# second also where a page is as narrow as a phone.
WIDE = 700
NARROW_WIDTH = 290
LETTER = 6.2  # pixels of a letter of a name
NAME_HEIGHT = 13
NAMED = 64  # extreme cues that a place is looked for
DOT = 7  # area of a cue, in square pixels
FOUND = 70  # of one that is searched for
SHOWN = 12  # letters of the name of a sense below the picture
DECIMALS = 3  # of the numbers in the page
FEWEST_LETTERS = 2  # of a search
MARGIN = 0.04  # of the range of an axis


class _Box(NamedTuple):
    x_low: float
    x_high: float
    top: float
    bottom: float

    def meets(self, box: "_Box") -> bool:
        across = self.x_low < box.x_high and box.x_low < self.x_high
        return across and self.top < box.bottom and box.top < self.bottom


def dots(cues: pd.DataFrame) -> pd.DataFrame:
    """A row for each cue with the attention of each head in a column of its name; a word with a
    capital letter only where the vocabulary does not hold it without.

    cues: the frame `cues`.
    """
    attention = cues.assign(name=head_names(cues)).pivot(
        index="cue", columns="name", values="attention"
    )
    each = cues[["cue", "seen", "coordinate", "coordinate_sd"]].drop_duplicates("cue")
    wide = each.merge(attention, left_on="cue", right_index=True)
    lower = wide["cue"].str.lower()
    return wide[(wide["cue"] == lower) | ~lower.isin(set(wide["cue"]))].reset_index(drop=True)


def cue_scatter(
    cues: pd.DataFrame,
    senses: Sequence[str],
    *,
    hues: Sequence[str] = SENSES[:2],
    names: int = NAMED,
    without_cue: float,
    not_found: str = "not among the cues",
) -> alt.LayerChart:
    """Every cue: how far it moves the word, in percent of the gap, against the attention of a head.

    cues: the frame `cues` of a scan with at least one head.
    senses: the two, the first is on the right.
    hues: their colours.
    names: the number of extreme cues whose names are written where there is space.
    without_cue: the coordinate of the word without a cue, from where its effects are counted.
    not_found: said of a word that the search does not find.
    """
    rows = dots(cues)
    heads = list(dict.fromkeys(head_names(cues)))
    rows["coordinate"] -= without_cue
    across = range_with_margin([*rows["coordinate"], 0.0])
    first, second = (sense if len(sense) <= SHOWN else f"{sense[: SHOWN - 1]}…" for sense in senses)
    up = (0.0, float(rows[heads].to_numpy().max()) * (1 + MARGIN))
    selection = alt.param(
        name="head",
        value=heads[0],
        bind=alt.binding_select(options=heads, name="attention of "),
    )
    search = alt.param(
        name="search", value="", bind=alt.binding(input="search", name="find a word ")
    )
    x = alt.X(
        "coordinate:Q",
        title=f"← {second} · effect of the cue, % of the gap · {first} →",
        axis=alt.Axis(format=".0%", tickCount=5, grid=False),
        scale=alt.Scale(domain=across, nice=False),
    )
    y = alt.Y(
        "attention:Q",
        title="attention of the head to the cue",
        axis=alt.Axis(format=".0%", tickCount=3),
        scale=alt.Scale(domain=up, nice=False),
    )
    looks = alt.Scale(domain=list(senses), range=list(hues))
    colour = alt.Color("side:N", scale=looks, legend=None)
    tooltip = tips(
        "cue:N",
        "coordinate:Q | effect | .0%",
        "coordinate_sd:Q | SD over frames | .1%",
        "attention:Q | attention to it | .1%",
        "seen:N | in the fitted sentences",
    )
    # A text, because altair takes a second for every thousand rows that it is given as objects.
    # Without names, because names in every row would double the size of the page.
    columns = ["cue", "seen", "coordinate", "coordinate_sd"]
    text = rows.astype({"seen": int})[[*columns, *heads]].to_json(
        orient="values", force_ascii=False, double_precision=DECIMALS
    )
    inline = alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))
    of_head = f"datum[{len(columns)} + indexof({json.dumps(heads)}, head)]"
    fields = {name: f"datum[{number}]" for number, name in enumerate(columns)}
    fields["seen"] += " > 0"
    first_sense, second_sense = map(json.dumps, senses)
    every_cue = alt.Chart(inline).transform_calculate(**fields, attention=of_head)
    base = every_cue.transform_calculate(
        side=f"datum.coordinate > 0 ? {first_sense} : {second_sense}"
    ).encode(x=x, y=y, color=colour, tooltip=tooltip)
    all_dots = base.transform_filter("!datum.seen").mark_point(filled=True, size=DOT, opacity=0.45)
    fitted_dots = base.transform_filter("datum.seen").mark_point(
        filled=False, size=3 * DOT, opacity=0.8, strokeWidth=1
    )
    is_found = (
        f"length(search) >= {FEWEST_LETTERS} && indexof(lower(datum.cue), lower(trim(search))) == 0"
    )
    found_dots = base.transform_filter(is_found)
    rings = found_dots.mark_point(filled=True, size=FOUND, opacity=1, stroke=INK, strokeWidth=1.5)
    found_names = found_dots.mark_text(
        align="left", dx=8, dy=-8, fontSize=12, fontWeight="bold"
    ).encode(text=alt.Text("cue:N"), color=alt.value(INK))
    placed = [names_apart(rows, head, across, up, names=names) for head in heads]
    labels = (
        alt.Chart(pd.concat(placed))
        .transform_filter(f"datum.name == head && (datum.narrow || width >= {WIDE - 80})")
        .mark_text(fontSize=11, align="center", dy=-7)
        .encode(x=x, y=y, text=alt.Text("cue:N"), color=alt.value(INK))
        .transform_filter("length(search) < 2")
    )
    at_middle = alt.Chart(pd.DataFrame({"at": [0.0], "name": ["without a cue"]})).encode(
        x=alt.X("at:Q")
    )
    middle = at_middle.mark_rule(color=MUTED, strokeDash=[4, 3])
    middle_label = at_middle.mark_text(baseline="bottom", fontSize=11, color=MUTED).encode(
        text=alt.Text("name:N"), y=alt.value(-3)
    )
    # Written where the search finds none of the cues.
    nothing_found = (
        every_cue.transform_calculate(is_found=f"({is_found}) ? 1 : 0")
        .transform_aggregate(found="max(is_found)")
        .transform_filter(f"length(search) >= {FEWEST_LETTERS} && datum.found == 0")
        .transform_calculate(message=f"'“' + trim(search) + '” is {not_found}'")
        .mark_text(align="left", baseline="top", fontSize=13, fontWeight="bold", color=INK)
        .encode(text=alt.Text("message:N"), x=alt.value(4), y=alt.value(20))
    )
    ends = rows[~rows["seen"]].sort_values("coordinate")
    description = (
        f"Every word as the cue: {counted(len(rows), 'word')} on a line from {senses[1]} to "
        f"{senses[0]}, up the attention that {heads[0]} pays to them. Furthest toward "
        f"{senses[0]}: {', '.join(ends['cue'].tail(5)[::-1])}; toward {senses[1]}: "
        f"{', '.join(ends['cue'].head(5))}. The upright line, at 0, is the word without a cue."
    )
    picture = alt.layer(
        *(middle, middle_label, all_dots, fitted_dots, labels, rings, found_names, nothing_found)
    ).add_params(selection, search)
    return finish(picture, description, height=HEIGHT)


def range_with_margin(values: Sequence[float]) -> tuple[float, float]:
    margin = MARGIN * (max(values) - min(values))
    return min(values) - margin, max(values) + margin


def names_apart(
    rows: pd.DataFrame,
    head: str,
    across: tuple[float, float],
    up: tuple[float, float],
    *,
    names: int,
) -> pd.DataFrame:
    """The cues that are named for a head, so that no two names meet: those furthest from the middle
    of both axes first. `narrow`: a name that fits into a narrow picture, too."""
    unseen = rows[~rows["seen"]]
    along = (unseen["coordinate"] - unseen["coordinate"].mean()) / unseen["coordinate"].std()
    above = (unseen[head] - unseen[head].mean()) / unseen[head].std()
    strength = along.abs() + above.clip(lower=0)
    # Both sides in turn, so that each has names.
    order = strength.groupby(along > 0).rank(ascending=False, method="first").sort_values().index
    candidates = unseen.loc[order].head(names)
    labels: list[dict[str, Any]] = []
    boxes: dict[int, list[_Box]] = {WIDE: [], NARROW_WIDTH: []}
    for cue, x, y in zip(
        candidates["cue"], candidates["coordinate"], candidates[head], strict=True
    ):
        free = {width: _free_box(cue, x, y, across, up, width, boxes[width]) for width in boxes}
        if free[WIDE]:
            row = {"cue": cue, "name": head, "coordinate": x, "attention": y}
            labels.append(row | {"narrow": free[NARROW_WIDTH]})
    return pd.DataFrame(labels, columns=["cue", "name", "coordinate", "attention", "narrow"])


def _free_box(
    cue: str,
    x: float,
    y: float,
    across: tuple[float, float],
    up: tuple[float, float],
    width: int,
    boxes: list[_Box],
) -> bool:
    """Whether a name fits above its dot in a picture of this width. If so, its box is taken."""
    centre = (x - across[0]) / (across[1] - across[0]) * width
    bottom = (1 - (y - up[0]) / (up[1] - up[0])) * HEIGHT
    half = LETTER * len(cue) / 2
    box = _Box(centre - half, centre + half, bottom - NAME_HEIGHT, bottom)
    inside = box.x_low >= 0 and box.x_high <= width and box.top >= -NAME_HEIGHT
    if not inside or any(box.meets(taken_box) for taken_box in boxes):
        return False
    boxes.append(box)
    return True
