"""Parts of a whole: direct shares of the sense gap by component, and the decomposition of one
sentence's vector along the sense axis.

The decomposition of a sentence shows who wrote how much of the sense into the word's vector, token
by token. A share is a contribution divided by the sentence's sense coordinate (`total`, counted
from the midpoint between the senses), so the shares of a sentence sum to 1. It is direct: what was
written, with everything downstream unchanged, not what would happen without it (see
`probe.model.decomposition`). Where the word is not clearly on the side of the sense that is meant,
a share would be a ratio to almost 0, so shares are not given.
"""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import (
    INK,
    MUTED,
    WITH,
    bare_axis,
    by_value,
    finish,
    numbers_at,
    of_word,
    reference_line,
    room_for_numbers,
    share_axis,
    tips,
    token_axis,
)
from probe.stats.numbers import decimal, percent, scientific

TOP_SHARES = 6  # heads, and MLPs, with a separate bar
KINDS = {
    "attention": "attention bias",
    "norm": "norm bias",
    "MLP": "MLP",
    "mixer": "mixer",
    "token": "embedding",
    "position": "embedding",
}
BIASES = {"attention bias": "attention biases", "norm bias": "norm biases"}
COLOURS = {
    "head": WITH,
    "MLP": "#7f8b99",
    "mixer": "#5f7f86",
    "embedding": MUTED,
    "attention bias": MUTED,
    "norm bias": MUTED,
}
# The hues of the heads that wrote most, largest first, and of the others: of different lightness
LEADERS = (WITH, "#a488de", "#d9cbf5")
OTHER_HEADS = "#48515c"
NO_HEAD = "#5f7f86"
MOST_TOKENS = 24  # bars for single tokens; more would not fit into a page
SUM = "all together"
MEAN = 0.5  # the coordinate of the mean of a sense, in fractions of the gap
CLEAR = 0.1  # of the gap, from the midpoint to the side of the sense that is meant
LAST = [
    "other tokens",
    "token embedding",
    "position embedding",
    "token type embedding",
    "mixers",
    "MLPs",
    "attention biases",
    "norm biases",
    SUM,
]
GATHERED = {
    "MLP": "MLPs",
    "mixer": "mixers",
    "attention": "attention biases",
    "norm": "norm biases",
}


def share_groups(shares: pd.DataFrame, word: str) -> pd.DataFrame:
    """Direct shares of a word gathered for drawing: embeddings, leading heads, other heads, the
    mixers of a hybrid, MLPs, biases.

    One row per pair of senses and `label`, in drawing order (`position`), with its `kind`, `share`,
    and `mean` over the pairs; each pair keeps its sum.
    """
    rows = of_word(shares, word)
    mean = rows.groupby("component", sort=False)["share"].mean()
    kinds = {name: KINDS.get(name.split(" ")[0], "head") for name in mean.index}
    heads = _largest(mean, kinds, "head")
    heads.sort(key=lambda name: -mean[name])
    mlps = _largest(mean, kinds, "MLP")
    mixers = _largest(mean, kinds, "mixer")
    embeddings = [name for name in mean.index if kinds[name] == "embedding"]
    order = [*embeddings, *heads, "other heads", *mixers, "other mixers", *mlps, "other MLPs"]
    order += BIASES.values()
    remainders = {"head": "other heads", "mixer": "other mixers", "MLP": "other MLPs"} | BIASES
    labels = {name: name if name in order else remainders[kinds[name]] for name in mean.index}
    rows = rows.assign(label=rows["component"].map(labels), kind=rows["component"].map(kinds))
    keys = ["sense_a", "sense_b", "label", "kind"]
    gathered = rows.groupby(keys, sort=False, as_index=False)["share"].sum()
    gathered = gathered.assign(
        mean=gathered.groupby("label")["share"].transform("mean"),
        position=gathered["label"].map(order.index),
    )
    return gathered.sort_values("position", kind="stable", ignore_index=True)


def _largest(mean: pd.Series, kinds: Mapping[str, str], kind: str) -> list[str]:
    """The TOP_SHARES components of a kind with the largest absolute shares, in the frame's
    order."""
    of_kind = mean[[kinds[name] == kind for name in mean.index]]
    largest = set(of_kind.abs().nlargest(TOP_SHARES).index)
    return [str(name) for name in of_kind.index if name in largest]


def share_bars(shares: pd.DataFrame, word: str) -> alt.LayerChart:
    """Who wrote the sense gap: direct shares by component, summing to 1; small ticks are the single
    pairs of senses."""
    rows = share_groups(shares, word)
    means = rows.drop_duplicates("label")
    pairs = rows.assign(pair=rows["sense_a"] + " / " + rows["sense_b"])
    y = alt.Y("label:N", title=None, sort=means["label"].tolist(), axis=bare_axis(labelLimit=140))
    # A number is to the right of its bar and of every tick on it.
    edges = [
        max(0.0, *group["share"], *group["mean"])
        for _, group in rows.groupby("position", sort=True)
    ]
    domain = [min(0.0, float(rows["share"].min())), max(*edges, 0.01)]
    x = alt.X(
        "mean:Q",
        title="share of the sense gap at the read-out",
        axis=share_axis(),
        scale=room_for_numbers(domain),
    )
    colour = by_value(alt.Color, "kind:N", list(COLOURS), list(COLOURS.values()))
    name = "label:N | component"
    bars = alt.Chart(means).mark_bar(height={"band": 0.62})
    layers = [bars.encode(y=y, x=x, color=colour, tooltip=tips(name, "mean:Q | share | .2%"))]
    if pairs["pair"].nunique() > 1:
        ticks = alt.Chart(pairs).mark_tick(
            color=INK, thickness=1, height={"band": 0.62}, opacity=0.7
        )
        tip = tips("pair:N", name, "share:Q | | .2%")
        layers.append(ticks.encode(y=y, x=alt.X("share:Q"), tooltip=tip))
    texts = means.assign(text=[percent(mean) for mean in means["mean"]], edge=edges)
    layers.append(numbers_at(texts, "edge", y=y))
    return finish(alt.layer(*layers), _share_description(means, word), height=20 * len(means))


def _share_description(means: pd.DataFrame, word: str) -> str:
    heads = _share_text(means, means["kind"] == "head")
    mlps = _share_text(means, means["kind"] == "MLP")
    embedding = _share_text(means, means["label"] == "token embedding")
    return (
        f"Direct shares of {word}: heads wrote {heads} of the sense gap at the read-out, "
        f"MLPs {mlps}, the token embedding {embedding}."
    )


def _share_text(means: pd.DataFrame, part: pd.Series) -> str:
    return percent(float(means.loc[part, "mean"].sum()))


def decomposition_table(decomposition: pd.DataFrame, word: str, *, sentence: int) -> pd.DataFrame:
    """The bars of one sentence's decomposition, a row per `bar` and `writer`, with the bar's `net`
    and its `share` of the sum.

    `toward` and `net` are positive toward the sense that is meant, in fractions of the gap. Tokens
    are in reading order, the smallest beyond MOST_TOKENS gathered; then embeddings, MLPs, biases
    and the sum. Writers are the top heads, the other heads, and parts that are not heads.
    """
    rows = _toward(of_sentence(decomposition, word, sentence))
    is_head = rows["head"].notna()
    size = rows["toward"].abs()
    top_heads = size[is_head].groupby(rows["component"]).sum().nlargest(len(LEADERS)).index.tolist()
    tokens = rows.groupby("token", sort=False)["toward"].sum()
    largest = tokens.abs().nlargest(MOST_TOKENS).index
    single = [label for label in tokens.index if label in largest]
    by_head = rows["component"].where(rows["component"].isin(top_heads), "other heads")
    parts = rows.assign(
        bar=source_of(rows).where(rows["token"].isin(single) | ~is_head, "other tokens"),
        writer=by_head.where(is_head, "no head"),
    )
    sums = parts.groupby(["bar", "writer"], as_index=False).agg(toward=("toward", "sum"))
    total = float(rows["total"].iloc[0] * rows["sign"].iloc[0])
    whole = pd.DataFrame([{"bar": SUM, "writer": SUM, "toward": total}])
    bars = pd.concat([sums, whole], ignore_index=True)
    net = bars.groupby("bar")["toward"].transform("sum")
    bars = bars.assign(
        net=net,
        share=net / total,
        part=bars["writer"].map([*top_heads, "other heads", "no head", SUM].index),
        position=bars["bar"].map([*single, *LAST].index),
    )
    return bars.sort_values(["position", "part"], ignore_index=True)


def of_sentence(decomposition: pd.DataFrame, word: str, sentence: int) -> pd.DataFrame:
    """The rows of one sentence of a word."""
    return decomposition[(decomposition["word"] == word) & (decomposition["sentence"] == sentence)]


def source_of(decomposition: pd.DataFrame) -> pd.Series:
    """The source that each row counts to: its token's label, the embedding, `MLPs`, or the biases
    of a kind."""
    components = decomposition["component"]
    gathered = components.str.split(" ").str[0].map(GATHERED).fillna(components)
    return decomposition["token"].fillna(gathered)


def is_clear(row: Mapping[Any, Any]) -> bool:
    """Whether the word is on the side of the sense that is meant, by at least CLEAR of the gap.

    `row` is any row of the sentence's decomposition: reads `sense sense_a total`.
    """
    sign = 1 if row["sense"] == row["sense_a"] else -1
    return bool(row["total"] * sign >= CLEAR)


def _toward(decomposition: pd.DataFrame) -> pd.DataFrame:
    """Contributions `toward` the sense that is meant: those along the axis with its `sign`."""
    sign = (decomposition["sense"] == decomposition["sense_a"]) * 2 - 1
    return decomposition.assign(sign=sign, toward=decomposition["contribution"] * sign)


def decomposition_bars(decomposition: pd.DataFrame, word: str, *, sentence: int) -> alt.LayerChart:
    """One sentence's decomposition on the sense axis: a bar per source token, in parts by head,
    then the rest and the sum.

    `decomposition` is the study's frame. Right is toward the sense that is meant. Bars are shares
    of the sum where the word is clearly on the side of its sense, and fractions of the gap where it
    is not.
    """
    rows = of_sentence(decomposition, word, sentence)
    first = rows.iloc[0].to_dict()
    bars = decomposition_table(decomposition, word, sentence=sentence)
    order = bars["bar"].unique().tolist()
    y = alt.Y("bar:N", title="source", sort=order, axis=token_axis(labelLimit=160))
    other_sense = first["sense_b"] if first["sense"] == first["sense_a"] else first["sense_a"]
    are_shares = is_clear(first)
    unit = "share of the sum" if are_shares else "fraction of the gap"
    title = [f"contribution toward {first['sense']},", f"away from {other_sense} ({unit})"]
    bars["drawn"] = bars["toward"] / (abs(first["total"]) if are_shares else 1)
    axis = share_axis(6) if are_shares else alt.Axis(tickCount=6)
    scale = room_for_numbers(_domain(decomposition, shares=are_shares))
    x = alt.X("drawn:Q", title=title, axis=axis, scale=scale)
    tip = tips(
        "bar:N | source",
        "writer:N | written by",
        "toward:Q | this part (fraction of the gap) | +.3f",
        "net:Q | whole bar (fraction of the gap) | +.3f",
    )
    mark = alt.Chart(bars).mark_bar(height={"band": 0.66})
    parts = mark.encode(
        y=y, x=x, color=_writer_colour(bars), order=alt.Order("part:Q"), tooltip=tip
    )
    numbers = numbers_at(_bar_texts(bars, shares=are_shares), "edge", y=y)
    picture = alt.layer(parts, reference_line("x", 0.0), numbers)
    closing = scientific(float(first["closing"]))
    description = (
        f"Where the sense comes from, by source token: {_largest_bar(bars)} The terms "
        f"add up to the vector that the model has there, within {closing} of its size."
    )
    return finish(picture, description, height=20 * len(order))


def _bar_texts(bars: pd.DataFrame, *, shares: bool) -> pd.DataFrame:
    """The number of each bar and the `edge` to whose right it is written."""
    positive = bars.assign(edge=bars["drawn"].clip(lower=0))
    rows = positive.groupby("bar", sort=False, as_index=False).agg(
        edge=("edge", "sum"), net=("net", "first"), share=("share", "first")
    )
    if shares:
        return rows.assign(text=[percent(share) for share in rows["share"]])
    return rows.assign(text=[decimal(net) for net in rows["net"]])


def _largest_bar(bars: pd.DataFrame) -> str:
    single = bars[bars["bar"] != SUM]
    largest = single.iloc[single["net"].abs().argmax()]
    return f"the largest contribution is that of {largest['bar']}, {decimal(largest['net'])}."


def _domain(decomposition: pd.DataFrame, *, shares: bool) -> list[float]:
    """The range of the bars of all sentences in this unit, so that all of their pictures have the
    same axis."""
    rows = _toward(decomposition)
    whole = rows["total"] * rows["sign"]
    rows = rows[(whole >= CLEAR) == shares]
    drawn = rows["toward"] / (rows["total"].abs() if shares else 1.0)
    bar = [rows["word"], rows["sentence"], source_of(rows)]
    low = drawn.clip(upper=0).groupby(bar).sum()
    high = drawn.clip(lower=0).groupby(bar).sum()
    if shares:
        return [min(float(low.min()), 0.0), max(float(high.max()), 1.0)]
    whole = whole[rows.index]
    return [float(min(low.min(), whole.min(), 0.0)), float(max(high.max(), whole.max(), MEAN))]


def _writer_colour(bars: pd.DataFrame) -> alt.Color:
    """The leading heads in shades of one hue, the rest in greys, the sum in ink; the legend lists
    who wrote."""
    fixed = {"other heads": OTHER_HEADS, "no head": NO_HEAD, SUM: INK}
    top_writers = [
        name for name in bars.sort_values("part")["writer"].unique() if name not in fixed
    ]
    colours = dict(zip(top_writers, LEADERS, strict=False)) | fixed
    key = alt.Legend(
        orient="top", values=[*top_writers, "other heads", "no head"], offset=4, columns=3
    )
    return by_value(alt.Color, "writer:N", list(colours), list(colours.values()), key, "written by")
