"""Who wrote the sense gap: direct shares by component, and one head's write by source token.

The cue ledger of one sentence: who put how much of the sense into the word's vector, token by token.

Parts of a whole as bars with their intervals, in groups on one axis: what carries how much of an effect.

Vectors drawn as rows of coloured cells that add up, and the singular values of the maps that made them.
"""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import AGAINST, INK, LINE, MUTED, WITH, effect_scale, finish, reference_line, sense_colour
from probe.stats.numbers import decimal, percent, scientific
from probe.study import suppliers

TOP_SHARES = 6
KINDS = {
    "attention": "attention bias",
    "norm": "norm bias",
    "MLP": "MLP",
    "token": "embedding",
    "position": "embedding",
}
BIASES = {"attention bias": "attention biases", "norm bias": "norm biases"}
COLOURS = {"head": WITH, "MLP": "#7f8b99", "embedding": MUTED} | dict.fromkeys(BIASES, MUTED)


def share_groups(shares: pd.DataFrame, word: str) -> pd.DataFrame:
    """Shares of a word gathered for drawing: embeddings, leading heads, other heads, MLPs, biases; each pair keeps its sum.

    One row per pair of senses and `label`, in drawing order (`place`), with its `kind`, `share`, and `mean` over the pairs.
    """
    rows = shares[shares["word"] == word]
    mean = rows.groupby("component", sort=False)["share"].mean()
    kinds = {name: _kind(name) for name in mean.index}
    heads, mlps = (_leading(mean[[kinds[name] == kind for name in mean.index]]) for kind in ("head", "MLP"))
    heads.sort(key=lambda name: -mean[name])
    embeddings = [name for name in mean.index if kinds[name] == "embedding"]
    order = [*embeddings, *heads, "other heads", *mlps, "other MLPs", *BIASES.values()]
    rest = {"head": "other heads", "MLP": "other MLPs"} | BIASES
    labels = {name: name if name in order else rest[kinds[name]] for name in mean.index}
    rows = rows.assign(label=rows["component"].map(labels), kind=rows["component"].map(kinds))
    gathered = rows.groupby(["sense_a", "sense_b", "label", "kind"], sort=False, as_index=False)["share"].sum()
    gathered["mean"] = gathered.groupby("label")["share"].transform("mean")
    place = {label: number for number, label in enumerate(order)}
    return gathered.assign(place=gathered["label"].map(place)).sort_values("place", kind="stable", ignore_index=True)


def _kind(component: str) -> str:
    first = component.split(" ")[0]
    return KINDS.get(first, "head")


def _leading(mean: pd.Series) -> list[str]:
    """The components with the largest absolute shares, in the order of the frame."""
    largest = set(mean.abs().sort_values(ascending=False, kind="stable").index[:TOP_SHARES])
    return [str(name) for name in mean.index if name in largest]


def share_bars(shares: pd.DataFrame, word: str) -> Any:
    """Who wrote the sense gap: direct shares by component, summing to 1; small ticks are the single pairs of senses."""
    rows = share_groups(shares, word)
    means = rows.drop_duplicates("label")
    pairs = rows.assign(pair=rows["sense_a"] + " / " + rows["sense_b"])
    y = alt.Y(
        "label:N", title=None, sort=means["label"].tolist(), axis=alt.Axis(labelLimit=140, ticks=False, domain=False)
    )
    edges = _edges(rows)
    room = alt.Scale(domain=[min(0.0, float(rows["share"].min())), 1.2 * max(*edges, 0.01)], nice=False)
    axis = alt.Axis(format=".0%", tickCount=5)
    x = alt.X("mean:Q", title="share of the sense gap at the read-out", axis=axis, scale=room)
    hue = alt.Color(
        "kind:N",
        title=None,
        legend=None,
        scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
    )
    tip = [alt.Tooltip("label:N", title="component"), alt.Tooltip("mean:Q", title="share", format=".2%")]
    bars = alt.Chart(means).mark_bar(height={"band": 0.62}).encode(y=y, x=x, color=hue, tooltip=tip)
    parts = [bars]
    if pairs["pair"].nunique() > 1:
        tip = [alt.Tooltip("pair:N"), tip[0], alt.Tooltip("share:Q", format=".2%")]
        ticks = alt.Chart(pairs).mark_tick(color=INK, thickness=1, height={"band": 0.62}, opacity=0.7)
        parts.append(ticks.encode(y=y, x=alt.X("share:Q"), tooltip=tip))
    texts = means.assign(text=[percent(mean) for mean in means["mean"]], edge=edges)
    numbers = alt.Chart(texts).mark_text(align="left", dx=5, fontSize=11, color=INK)
    parts.append(numbers.encode(y=y, x=alt.X("edge:Q"), text="text:N"))
    head_sum = float(means.loc[means["kind"] == "head", "mean"].sum())
    description = (
        f"Direct shares of {word}: heads wrote {percent(head_sum)} of the sense gap at the read-out, MLPs "
        f"{percent(float(means.loc[means['kind'] == 'MLP', 'mean'].sum()))}, the token embedding "
        f"{percent(float(means.loc[means['label'] == 'token embedding', 'mean'].sum()))}."
    )
    return finish(alt.layer(*parts).properties(width="container", height=20 * len(means)), description)


def _edges(rows: pd.DataFrame) -> list[float]:
    """Where the number of each label may stand: right of its bar, of its ticks and of zero."""
    return [max(0.0, *group["share"], *group["mean"]) for _, group in rows.groupby("place", sort=True)]


def contributions(readings: pd.DataFrame, word: str, *, sentence: int, layer: int, head: int) -> Any:
    """One sentence as one head reads it: ΔE by source token on the sense axis, tokens in their order.

    `readings` is the study's frame; positive moves the word toward `sense_a` of the row.
    """
    of_word = readings[readings["word"] == word]
    here = (of_word["sentence"] == sentence) & (of_word["layer"] == layer) & (of_word["head"] == head)
    rows = of_word[here]
    a, b = rows[["sense_a", "sense_b"]].iloc[0]
    rows = rows.assign(toward=[a if value > 0 else b for value in rows["contribution"]])
    senses = list(dict.fromkeys(of_word["sense"]))
    scale = alt.Scale(domain=[a, b], range=[sense_colour(senses, a), sense_colour(senses, b)])
    x = alt.X("label:N", title="token", sort=rows["label"].tolist(), axis=alt.Axis(labelAngle=-40, labelOverlap=False))
    y = alt.Y("contribution:Q", title="ΔE by source token (fraction of gap)")
    tip = [alt.Tooltip("label:N", title="token"), alt.Tooltip("attention:Q", format=".2f")]
    tip.append(alt.Tooltip("contribution:Q", format="+.3f"))
    hue = alt.Color("toward:N", title="toward", scale=scale, legend=alt.Legend(orient="top"))
    bars = alt.Chart(rows).mark_bar().encode(x=x, y=y, color=hue, tooltip=tip)
    largest = max(rows.to_dict("records"), key=lambda row: abs(row["contribution"]))
    part = percent(largest["contribution"])
    description = (
        f"ΔE of L{layer}H{head} by source token; the largest part, {part} of the gap, comes from {largest['label']}."
    )
    return finish(alt.layer(bars, reference_line("y", 0.0)).properties(width="container", height=170), description)


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


ROOM = 0.12  # of the axis, for the number behind the longest bar


def grouped_bars(rows: pd.DataFrame, title: str) -> Any:
    """A bar per `row` with its interval and its number, a panel per `group`, in the order given; one axis for all.

    `rows`: `group`, `row`, `value`, `low`, `high`, all shares. Violet where positive, ochre where negative.
    """
    groups = rows["group"].drop_duplicates().tolist()
    most, least = (float(found) for found in (rows["high"].max(), min(0.0, rows["low"].min())))
    scale = alt.Scale(domain=[least, most + ROOM * (most - least)], nice=False)
    panels = [
        _panel(rows[rows["group"] == name], name, scale, title if name == groups[-1] else None) for name in groups
    ]
    leaders = [(name, rows[rows["group"] == name].nlargest(1, "value").iloc[0]) for name in groups]
    told = "; ".join(f"{name}: {row['row']} {percent(float(row['value']))}" for name, row in leaders)
    return finish(alt.vconcat(*panels, spacing=14), f"Largest in each group, as {title}. {told}.")


def _panel(rows: pd.DataFrame, name: str, scale: alt.Scale, title: str | None) -> Any:
    order = rows["row"].tolist()
    labels = alt.Axis(ticks=False, domain=False, grid=False, labelColor=INK, labelLimit=150, minExtent=90)
    y = alt.Y("row:N", title=None, sort=order, axis=labels)
    axis = alt.Axis(format=".0%", tickCount=5, labels=title is not None, ticks=title is not None)
    x = alt.X("value:Q", title=title, scale=scale, axis=axis)
    tip = [alt.Tooltip("row:N", title="what"), alt.Tooltip("value:Q", format=".2%")]
    tip += [alt.Tooltip(f"{end}:Q", format=".2%") for end in ("low", "high")]
    hue = alt.condition("datum.value >= 0", alt.value(WITH), alt.value(AGAINST))
    base = alt.Chart(rows.assign(text=[percent(value) for value in rows["value"]])).encode(y=y)
    bars = base.mark_bar(height={"band": 0.6}, opacity=0.55).encode(x=x, color=hue, tooltip=tip)
    spans = base.mark_rule(color=INK, strokeWidth=1.5).encode(x=alt.X("low:Q"), x2="high:Q")
    numbers = base.mark_text(align="left", dx=6, fontSize=11, color=MUTED).encode(x=alt.X("high:Q"), text="text:N")
    heading = alt.TitleParams(name, fontSize=12, fontWeight="normal", color=INK)
    picture = alt.layer(reference_line("x", 0.0, dash=False), bars, spans, numbers)
    return picture.properties(width=360, height={"step": 20}, title=heading)


def added_vectors(rows: pd.DataFrame, *, total: str, coordinates: int = 32) -> Any:
    """A row of cells per vector, the first `coordinates` of each on one scale; the row named `total` stands apart below.

    `rows`: `vector`, `coordinate`, `value`.
    """
    names = rows["vector"].drop_duplicates().tolist()
    shown = rows[rows["coordinate"] < coordinates]
    shown = shown.assign(part=["sum" if name == total else "parts" for name in shown["vector"]])
    limit = float(shown["value"].abs().max())
    axis = alt.Axis(ticks=False, domain=False, grid=False, labelLimit=150)
    key = alt.Legend(title="value", orient="right", gradientLength=90, values=[-limit, 0, limit], format=".2~g")
    hue = alt.Color("value:Q", scale=effect_scale(limit), legend=key)
    tip = [alt.Tooltip("vector:N"), alt.Tooltip("coordinate:Q"), alt.Tooltip("value:Q", format=".6g")]
    numbers = alt.Axis(values=list(range(0, coordinates, 8)), labelAngle=0, grid=False)

    def strip(part: str, last: bool) -> Any:
        mine = shown[shown["part"] == part]
        x = alt.X("coordinate:O", title=_x_title(rows, coordinates) if last else None, axis=numbers if last else None)
        order = [name for name in names if name in set(mine["vector"])]
        y = alt.Y("vector:N", title=None, sort=order, axis=axis)
        cells = alt.Chart(mine).mark_rect(stroke=LINE, strokeWidth=0.4).encode(x=x, y=y, color=hue, tooltip=tip)
        return cells.properties(width=13 * coordinates, height=18 * len(order))

    picture = alt.vconcat(strip("parts", False), strip("sum", True), spacing=8)
    biggest = rows.groupby("vector", sort=False)["value"].apply(lambda values: float((values**2).sum() ** 0.5))
    told = ", ".join(f"{name} {length:.3g}" for name, length in biggest.items())
    return finish(picture, f"Vectors as rows of cells, the last being the sum of the others; their lengths: {told}.")


def _x_title(rows: pd.DataFrame, coordinates: int) -> str:
    every = rows["coordinate"].nunique()
    return f"coordinate (the first {coordinates} of {every})" if every > coordinates else "coordinate"


def spectra(rows: pd.DataFrame, *, rank: int) -> Any:
    """Singular values of several square maps, largest first, a line each; a rule stands at `rank`.

    `rows`: `map`, `place` (from 1), `value`.
    """
    last = int(rows["place"].max())
    x = alt.X("place:Q", title="singular value, largest first", scale=alt.Scale(domain=[1, last], nice=False))
    y = alt.Y("value:Q", title="size", axis=alt.Axis(tickCount=4))
    tip = [alt.Tooltip("map:N"), alt.Tooltip("place:Q"), alt.Tooltip("value:Q", format=".4g")]
    lines = (
        alt.Chart(rows)
        .mark_line(strokeWidth=1.6, color=WITH, opacity=0.8)
        .encode(x=x, y=y, detail="map:N", tooltip=tip)
    )
    said = pd.DataFrame([{"place": rank, "said": f"d_head = {rank}: from here on zero"}])
    rule = (
        alt.Chart(said)
        .mark_rule(color=MUTED, strokeDash=[2, 3])
        .encode(x=alt.X("place:Q", title="singular value, largest first"))
    )
    text = (
        alt.Chart(said)
        .mark_text(align="left", dx=6, dy=8, color=INK)
        .encode(x="place:Q", y=alt.value(0), text="said:N")
    )
    beyond = float(rows.loc[rows["place"] > rank, "value"].max()) if last > rank else 0.0
    picture = alt.layer(lines, rule, text).properties(width="container", height=170)
    maps, largest = rows["map"].nunique(), float(rows["value"].max())
    return finish(
        picture, f"Singular values of {maps} maps: the largest {largest:.3g}, beyond place {rank} at most {beyond:.1g}."
    )
