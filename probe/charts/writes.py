"""Who wrote the sense gap: direct shares by component, and one head's write by source token."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, WITH, finish, reference_line, sense_colour
from probe.numerals import percent

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
