"""Frames in, altair charts out: one function per question, each readable alone, with titles, units and a description.

Values are computed in the frame, never in the chart. Every function takes the study's whole frame and the name of a word, so
that scales are the same for every word. Look and colours are decided in `probe.palette`.
"""

from typing import Any

import altair as alt
import pandas as pd

from probe.numerals import NARROW, percent
from probe.palette import INK, LINE, MUTED, WITH, effect_scale, finish, sense_colour, senses_of

MANY_HEADS = 16
TOP_SHARES = 6
NAMED = 6
EFFECT_TITLE = "net swap effect (share of gap)"


def effect_limit(word_heads: pd.DataFrame) -> float:
    """The largest absolute net effect of the frame, rounded up to a tenth: where the diverging scale ends on both sides."""
    largest = float(word_heads["net"].abs().max()) if len(word_heads) else 0.0
    return max(-(-largest // 0.1) / 10, 0.1)


def named(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The frame with each head's `name` (L0H2) and whether its interval excludes zero (`clear`)."""
    names = [f"L{layer}H{head}" for layer, head in zip(word_heads["layer"], word_heads["head"], strict=True)]
    clear = (word_heads["net_low"] > 0) | (word_heads["net_high"] < 0)
    return word_heads.assign(name=names, clear=clear)


def depth_profile(depth: pd.DataFrame, word: str, pair: tuple[str, str], *, read_at: int | None = None) -> Any:
    """How two senses part with depth: mean coordinate and the middle 80 % of the sentences, from the bare token on.

    `read_at`, the read-out depth of the word, is drawn as a line.
    """
    description = (
        f"Depth profile of {word}: the mean sense coordinates of {pair[0]} and {pair[1]} are exactly 0 apart at the token embedding "
        f"and {_apart(depth, word, pair):.2f} of the gap apart after the last layer."
    )
    return finish(_depth(depth, word, pair, read_at).properties(width="container", height=170), description)


def depth_profiles(depth: pd.DataFrame, word: str, *, columns: int = 3) -> Any:
    """The depth profiles of all pairs of senses of a word, side by side."""
    pairs = depth.loc[depth["word"] == word, ["sense_a", "sense_b"]].drop_duplicates()
    charts = [_depth(depth, word, (a, b), None).properties(width=220, height=150) for a, b in pairs.to_numpy().tolist()]
    description = (
        f"Depth profiles of the {len(charts)} pairs of senses of {word}, each exactly 0 at the token embedding."
    )
    return finish(alt.concat(*charts, columns=columns).resolve_scale(color="independent"), description)


def _apart(depth: pd.DataFrame, word: str, pair: tuple[str, str]) -> float:
    rows = _of_pair(depth, word, pair)
    last = rows[rows["depth"] == rows["depth"].max()].set_index("sense")["coordinate"]
    return float(last[pair[0]] - last[pair[1]])


def _of_pair(frame: pd.DataFrame, word: str, pair: tuple[str, str]) -> pd.DataFrame:
    return frame[(frame["word"] == word) & (frame["sense_a"] == pair[0]) & (frame["sense_b"] == pair[1])]


def _depth(depth: pd.DataFrame, word: str, pair: tuple[str, str], read_at: int | None) -> alt.LayerChart:
    rows = _of_pair(depth, word, pair)
    senses = senses_of(depth[depth["word"] == word])
    x = alt.X("depth:Q", title="after layer", axis=_depth_axis(int(rows["depth"].max())), scale=alt.Scale(nice=False))
    hue = alt.Color(
        "sense:N",
        title=None,
        scale=alt.Scale(domain=list(pair), range=[sense_colour(senses, sense) for sense in pair]),
        legend=alt.Legend(orient="top", symbolType="circle", symbolOpacity=1, offset=4),
    )
    base = alt.Chart(rows).encode(x=x, color=hue)
    of_word = depth[depth["word"] == word]
    reach = alt.Scale(domain=[float(of_word["low"].min()), float(of_word["high"].max())])
    y = alt.Y("low:Q", title="sense coordinate (1 = gap)", axis=alt.Axis(tickCount=5), scale=reach)
    band = base.mark_area(opacity=0.22).encode(y, alt.Y2("high"))
    line = base.mark_line(strokeWidth=2).encode(y="coordinate:Q")
    dots = base.mark_point(filled=True, size=28, opacity=1).encode(y="coordinate:Q", tooltip=_DEPTH_TOOLTIP)
    layers = [_line("y", 0.0), band, line, dots]
    return alt.layer(*([] if read_at is None else [_line("x", read_at, dash=False)]), *layers)


def _line(channel: str, at: float, *, dash: bool = True) -> alt.Chart:
    """A reference line across the picture."""
    mark = alt.Chart(pd.DataFrame({"at": [at]})).mark_rule(color=MUTED, strokeDash=[2, 3] if dash else [1, 0])
    return mark.encode(**{channel: alt.X("at:Q") if channel == "x" else alt.Y("at:Q")})


_DEPTH_TOOLTIP = [
    alt.Tooltip("sense:N"),
    alt.Tooltip("label:N", title="depth"),
    alt.Tooltip("coordinate:Q", title="mean coordinate", format=".3f"),
    alt.Tooltip("low:Q", title="10 % of sentences below", format=".3f"),
    alt.Tooltip("high:Q", title="10 % of sentences above", format=".3f"),
    alt.Tooltip("auroc:Q", title="AUROC at this depth", format=".3f"),
]


def _depth_axis(last: int) -> alt.Axis:
    """Depth -1 is the token, 0 adds the position, d is after layer d - 1; labels are thinned where there are many layers."""
    step = 1 if last <= 6 else 2 if last <= 16 else -(-last // 8)
    values = [-1, 0, *range(last, 0, -step)]
    first = "datum.value < 0 ? 'token' : datum.value < 1 ? ['', '+ position'] : datum.value - 1"
    return alt.Axis(values=sorted(values), labelExpr=first, grid=False, labelFlush=False, labelOverlap=False)


def head_map(word_heads: pd.DataFrame, word: str, *, legend: bool = True) -> Any:
    """Layer x head grid of a word's net swap effects; a number (percent) stands where the 95 % interval excludes zero."""
    rows = named(word_heads[word_heads["word"] == word])
    best = rows.nlargest(1, "net").to_dict("records")[0]
    description = (
        f"Map of {word}: net swap effects of {len(rows)} heads by layer and head. The largest is {percent(best['net'])} of the sense "
        f"gap, by {best['name']}; the intervals of {int(rows['clear'].sum())} heads exclude zero."
    )
    return finish(_map(word_heads, word, legend).properties(width="container", height=_map_height(rows)), description)


def head_maps(word_heads: pd.DataFrame) -> Any:
    """The maps of all words side by side, on one scale."""
    charts = []
    for place, word in enumerate(word_heads["word"].unique()):
        rows = word_heads[word_heads["word"] == word]
        bare = _map(word_heads, word, legend=not place).properties(width=260, height=_map_height(rows), title=word)
        charts.append(bare)
    description = f"Maps of {', '.join(word_heads['word'].unique())}: net swap effects of every head by layer and head."
    return finish(alt.hconcat(*charts), description)


def _map(word_heads: pd.DataFrame, word: str, legend: bool) -> alt.LayerChart:
    limit = effect_limit(word_heads)
    rows = named(word_heads[word_heads["word"] == word])
    rows = rows.assign(mark=[percent(net).split(NARROW)[0] for net in rows["net"]])
    x = alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    key = alt.Legend(
        title="net swap effect (share of the sense gap)", format=".0%", orient="bottom", gradientLength=220
    )
    colour = alt.Color("net:Q", scale=effect_scale(limit), legend=key if legend else None)
    base = alt.Chart(rows).encode(x=x, y=alt.Y("layer:O", title="layer"), tooltip=_HEAD_TOOLTIP)
    cells = base.mark_rect(stroke=LINE, strokeWidth=1).encode(color=colour)
    strong = alt.condition(abs(alt.datum.net) > 0.55 * limit, alt.value("#ffffff"), alt.value(INK))
    clear = base.transform_filter(alt.datum.clear)
    if rows["head"].nunique() > MANY_HEADS:
        return alt.layer(cells, clear.mark_circle(size=16, opacity=1).encode(color=strong))
    return alt.layer(cells, clear.mark_text(fontSize=11).encode(text="mark:N", color=strong))


def _map_height(rows: pd.DataFrame) -> int:
    layers = rows["layer"].nunique()
    return layers * (30 if layers <= 6 else 22 if layers <= 24 else 14)


_HEAD_TOOLTIP = [
    alt.Tooltip("name:N", title="head"),
    alt.Tooltip("net:Q", title="net swap effect", format=".1%"),
    alt.Tooltip("net_low:Q", title="95 % from", format=".1%"),
    alt.Tooltip("net_high:Q", title="95 % to", format=".1%"),
    alt.Tooltip("swap:Q", title="swap", format=".1%"),
    alt.Tooltip("same_sense:Q", title="same-sense swap", format=".1%"),
    alt.Tooltip("direct:Q", title="its own write", format=".1%"),
    alt.Tooltip("auroc:Q", title="held-out AUROC", format=".2f"),
    alt.Tooltip("attention_cue:Q", title="attention to the cue", format=".0%"),
    alt.Tooltip("attention_previous:Q", title="attention to the previous token", format=".0%"),
]


def separation_and_effect(word_heads: pd.DataFrame, word: str) -> Any:
    """Every head of a word: how well its write tells the senses apart, against what swapping it does; the clearest are named."""
    rows = named(word_heads[word_heads["word"] == word])
    x = alt.X(
        "auroc:Q",
        title="held-out AUROC of the head's write (0.5 = chance)",
        scale=alt.Scale(domain=_auroc_domain(word_heads), nice=False),
    )
    y = alt.Y(
        "net:Q", title="net swap effect (share of gap)", axis=alt.Axis(format=".0%"), scale=_effect_axis(word_heads)
    )
    base = alt.Chart(rows).encode(x=x)
    bars = base.mark_rule(color=MUTED, opacity=0.5).encode(alt.Y("net_low:Q", title=EFFECT_TITLE), alt.Y2("net_high"))
    shade = alt.condition(alt.datum.clear, alt.value(WITH), alt.value(MUTED))
    dots = base.mark_circle(size=46, opacity=0.9).encode(y=y, color=shade, tooltip=_HEAD_TOOLTIP)
    labelled = alt.Chart(rows[rows["clear"]].nlargest(NAMED, "net")).encode(x="auroc:Q", y="net:Q", text="name:N")
    names = labelled.mark_text(align="right", dx=-8, fontSize=11, color=INK)
    inert = int(((rows["auroc"] > 0.75) & ~rows["clear"]).sum())
    description = (
        f"Separation against effect of {word}: {len(rows)} heads. {inert} of them separate the senses with an AUROC above 0.75 while "
        "the interval of their effect includes zero."
    )
    picture = alt.layer(_line("y", 0.0), _line("x", 0.5), bars, dots, names)
    return finish(picture.properties(width="container", height=250), description)


def _auroc_domain(word_heads: pd.DataFrame) -> list[float]:
    return [min(0.4, float(word_heads["auroc"].min()) - 0.05), 1.02]


def _effect_axis(word_heads: pd.DataFrame) -> alt.Scale:
    low, high = float(word_heads[["net", "net_low"]].min().min()), float(word_heads[["net", "net_high"]].max().max())
    room = 0.06 * (high - low)
    return alt.Scale(domain=[min(low, 0.0) - room, max(high, 0.0) + room], nice=False)


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
    order = [*embeddings, *heads, "other heads", *mlps, "other MLPs", "attention biases"]
    rest = {"head": "other heads", "MLP": "other MLPs", "bias": "attention biases"}
    labels = {name: name if name in order else rest[kinds[name]] for name in mean.index}
    rows = rows.assign(label=rows["component"].map(labels), kind=rows["component"].map(kinds))
    gathered = rows.groupby(["sense_a", "sense_b", "label", "kind"], sort=False, as_index=False)["share"].sum()
    gathered["mean"] = gathered.groupby("label")["share"].transform("mean")
    place = {label: number for number, label in enumerate(order)}
    return gathered.assign(place=gathered["label"].map(place)).sort_values("place", kind="stable", ignore_index=True)


def _kind(component: str) -> str:
    first = component.split(" ")[0]
    return {"attention": "bias", "MLP": "MLP", "token": "embedding", "position": "embedding"}.get(first, "head")


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
    x_axis = alt.Axis(format=".0%", tickCount=5)
    x = alt.X("mean:Q", title="share of the sense gap at the read-out", axis=x_axis)
    hue = alt.Color(
        "kind:N",
        title=None,
        legend=None,
        scale=alt.Scale(domain=["head", "MLP", "embedding", "bias"], range=[WITH, "#7f8b99", MUTED, MUTED]),
    )
    tip = [alt.Tooltip("label:N", title="component"), alt.Tooltip("mean:Q", title="share", format=".2%")]
    bars = alt.Chart(means).mark_bar(height={"band": 0.62}).encode(y=y, x=x, color=hue, tooltip=tip)
    parts = [bars]
    if pairs["pair"].nunique() > 1:
        tip = [alt.Tooltip("pair:N"), tip[0], alt.Tooltip("share:Q", format=".2%")]
        ticks = alt.Chart(pairs).mark_tick(color=INK, thickness=1, height={"band": 0.62}, opacity=0.7)
        parts.append(ticks.encode(y=y, x=alt.X("share:Q"), tooltip=tip))
    texts = means.assign(text=[percent(mean) for mean in means["mean"]], edge=_edges(rows))
    numbers = alt.Chart(texts).mark_text(align="left", dx=5, fontSize=11, color=INK)
    parts.append(numbers.encode(y=y, x=alt.X("edge:Q"), text="text:N"))
    head_sum = float(means.loc[means["kind"] == "head", "mean"].sum())
    description = (
        f"Direct shares of {word}: heads wrote {head_sum:.0%} of the sense gap at the read-out, MLPs "
        f"{float(means.loc[means['kind'] == 'MLP', 'mean'].sum()):.0%}, the token embedding "
        f"{float(means.loc[means['label'] == 'token embedding', 'mean'].sum()):.0%}."
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
    description = f"ΔE of L{layer}H{head} by source token; the largest part, {largest['contribution']:+.2f} of the gap, comes from {largest['label']}."
    return finish(alt.layer(bars, _line("y", 0.0)).properties(width="container", height=170), description)
