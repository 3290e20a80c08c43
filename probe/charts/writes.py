"""Parts of a whole: direct shares of the sense gap by component, one sentence's ledger, vectors
that add up.

The ledger of a sentence says who put how much of the sense into the word's vector, token by token,
in a picture and in words. A share there is a contribution over the sentence's own sense coordinate
(`total`, counted from the midpoint between the senses), so the shares of a sentence sum to 1. It is
direct: what was written, with everything downstream as it was, not what would happen without it
(see `probe.model.decomposition`). The cue and the MLPs are always named, however small; where the
word does not clearly stand on the side of the sense that is meant, a share would be a ratio over
nothing and none is given.
"""

from collections.abc import Hashable
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
    share_axis,
    tips,
    token_axis,
)
from probe.stats.numbers import decimal, listed, percent, scientific
from probe.stats.verdicts import WORTH_NAMING

TOP_SHARES = 6  # heads, and MLPs, with a bar of their own
KINDS = {"attention": "attention bias", "norm": "norm bias", "MLP": "MLP"} | dict.fromkeys(
    ("token", "position"), "embedding"
)
BIASES = {"attention bias": "attention biases", "norm bias": "norm biases"}
COLOURS = {"head": WITH, "MLP": "#7f8b99", "embedding": MUTED} | dict.fromkeys(BIASES, MUTED)
LEADERS = (WITH, "#a488de", "#cbb8ef")
OTHER_HEADS, NO_HEAD = "#8d96a1", "#5f7f86"
MOST_TOKENS = 24
SUM = "all together"
MEAN = 0.5  # where the mean of a sense stands
LAST = [
    "other tokens",
    "token embedding",
    "position embedding",
    "token type embedding",
    "MLPs",
    *BIASES.values(),
    SUM,
]


def share_groups(shares: pd.DataFrame, word: str) -> pd.DataFrame:
    """Direct shares of a word gathered for drawing: embeddings, leading heads, other heads, MLPs,
    biases.

    One row per pair of senses and `label`, in drawing order (`place`), with its `kind`, `share`,
    and `mean` over the pairs; each pair keeps its sum.
    """
    rows = of_word(shares, word)
    mean = rows.groupby("component", sort=False)["share"].mean()
    kinds = {name: KINDS.get(name.split(" ")[0], "head") for name in mean.index}
    heads, mlps = (
        _leading(mean[[kinds[name] == kind for name in mean.index]]) for kind in ("head", "MLP")
    )
    heads.sort(key=lambda name: -mean[name])
    embeddings = [name for name in mean.index if kinds[name] == "embedding"]
    order = [*embeddings, *heads, "other heads", *mlps, "other MLPs", *BIASES.values()]
    rest = {"head": "other heads", "MLP": "other MLPs"} | BIASES
    labels = {name: name if name in order else rest[kinds[name]] for name in mean.index}
    rows = rows.assign(label=rows["component"].map(labels), kind=rows["component"].map(kinds))
    gathered = rows.groupby(["sense_a", "sense_b", "label", "kind"], sort=False, as_index=False)[
        "share"
    ].sum()
    means = gathered.groupby("label")["share"].transform("mean")
    gathered = gathered.assign(mean=means, place=gathered["label"].map(order.index))
    return gathered.sort_values("place", kind="stable", ignore_index=True)


def _leading(mean: pd.Series) -> list[str]:
    """The components with the largest absolute shares, in the order of the frame."""
    largest = set(mean.abs().nlargest(TOP_SHARES).index)
    return [str(name) for name in mean.index if name in largest]


def share_bars(shares: pd.DataFrame, word: str) -> Any:
    """Who wrote the sense gap: direct shares by component, summing to 1; small ticks are the single
    pairs of senses."""
    rows = share_groups(shares, word)
    means = rows.drop_duplicates("label")
    pairs = rows.assign(pair=rows["sense_a"] + " / " + rows["sense_b"])
    y = alt.Y("label:N", title=None, sort=means["label"].tolist(), axis=bare_axis(labelLimit=140))
    edges = [
        max(0.0, *group["share"], *group["mean"]) for _, group in rows.groupby("place", sort=True)
    ]
    room = alt.Scale(
        domain=[min(0.0, float(rows["share"].min())), 1.2 * max(*edges, 0.01)], nice=False
    )
    x = alt.X(
        "mean:Q", title="share of the sense gap at the read-out", axis=share_axis(), scale=room
    )
    colour = by_value(alt.Color, "kind:N", list(COLOURS), list(COLOURS.values()))
    name = "label:N | component"
    bars = alt.Chart(means).mark_bar(height={"band": 0.62})
    parts = [bars.encode(y=y, x=x, color=colour, tooltip=tips(name, "mean:Q | share | .2%"))]
    if pairs["pair"].nunique() > 1:
        ticks = alt.Chart(pairs).mark_tick(
            color=INK, thickness=1, height={"band": 0.62}, opacity=0.7
        )
        parts.append(
            ticks.encode(y=y, x=alt.X("share:Q"), tooltip=tips("pair:N", name, "share:Q | | .2%"))
        )
    texts = means.assign(text=[percent(mean) for mean in means["mean"]], edge=edges)
    parts.append(numbers_at(texts, "edge", y=y))
    parts_of = (
        means["kind"] == "head",
        means["kind"] == "MLP",
        means["label"] == "token embedding",
    )
    by_heads, by_mlps, embedded = (
        percent(float(means.loc[part, "mean"].sum())) for part in parts_of
    )
    description = (
        f"Direct shares of {word}: heads wrote {by_heads} of the sense gap at the read-out, MLPs {by_mlps}, the token "
        f"embedding {embedded}."
    )
    return finish(alt.layer(*parts), description, height=20 * len(means))


def ledger_bars(ledger: pd.DataFrame, word: str, *, sentence: int) -> pd.DataFrame:
    """The bars of one sentence's ledger, a row per `bar` and `writer`, with the bar's `net` and its
    `share` of the sum.

    `toward` and `net` are positive toward the sense that is meant, in fractions of the gap. Tokens
    stand in reading order, the smallest beyond MOST_TOKENS gathered; then embeddings, MLPs, biases
    and the sum. Writers are the leading heads, the other heads, and what is no head.
    """
    rows = _toward(ledger[(ledger["word"] == word) & (ledger["sentence"] == sentence)])
    is_head, size = rows["head"].notna(), rows["toward"].abs()
    leaders = size[is_head].groupby(rows["component"]).sum().nlargest(len(LEADERS)).index.tolist()
    tokens = rows.groupby("token", sort=False)["toward"].sum()
    shown = [label for label in tokens.index if label in tokens.abs().nlargest(MOST_TOKENS).index]
    bar = source_of(rows).where(rows["token"].isin(shown) | ~is_head, "other tokens")
    writer = (
        rows["component"]
        .where(rows["component"].isin(leaders), "other heads")
        .where(is_head, "no head")
    )
    made = (
        rows.assign(bar=bar, writer=writer)
        .groupby(["bar", "writer"], as_index=False)
        .agg(toward=("toward", "sum"))
    )
    total = float(rows["total"].iloc[0] * rows["sign"].iloc[0])
    made = pd.concat(
        [made, pd.DataFrame([{"bar": SUM, "writer": SUM, "toward": total}])], ignore_index=True
    )
    net = made.groupby("bar")["toward"].transform("sum")
    part = made["writer"].map([*leaders, "other heads", "no head", SUM].index)
    made = made.assign(
        net=net, share=net / total, part=part, place=made["bar"].map([*shown, *LAST].index)
    )
    return made.sort_values(["place", "part"], ignore_index=True)


def _toward(ledger: pd.DataFrame) -> pd.DataFrame:
    sign = (ledger["sense"] == ledger["sense_a"]) * 2 - 1
    return ledger.assign(sign=sign, toward=ledger["contribution"] * sign)


def cue_ledger(ledger: pd.DataFrame, word: str, *, sentence: int) -> Any:
    """One sentence's ledger on the sense axis: a bar per source token, in parts by head, then the
    rest and the sum.

    `ledger` is the study's frame. Right is toward the sense that is meant. Numbers are shares of
    the sum where the word stands clearly on the side of its sense, and fractions of the gap where
    it does not.
    """
    rows = ledger[(ledger["word"] == word) & (ledger["sentence"] == sentence)]
    first = rows.iloc[0].to_dict()
    bars = ledger_bars(ledger, word, sentence=sentence)
    y = alt.Y(
        "bar:N", title="source", sort=bars["bar"].unique().tolist(), axis=token_axis(labelLimit=160)
    )
    other = first["sense_b"] if first["sense"] == first["sense_a"] else first["sense_a"]
    axis_title = [
        f"contribution toward {first['sense']},",
        f"away from {other} (fraction of the gap)",
    ]
    scale = alt.Scale(domain=_domain(ledger), nice=False)
    x = alt.X("toward:Q", title=axis_title, axis=alt.Axis(tickCount=6), scale=scale)
    tip = tips(
        "bar:N | source",
        "writer:N | written by",
        "toward:Q | this part (fraction of the gap) | +.3f",
        "net:Q | whole bar (fraction of the gap) | +.3f",
    )
    mark = alt.Chart(bars).mark_bar(height={"band": 0.66})
    parts = mark.encode(y=y, x=x, color=_hue(bars), order=alt.Order("part:Q"), tooltip=tip)
    edges = bars.assign(edge=bars["toward"].clip(lower=0)).groupby(
        "bar", sort=False, as_index=False
    )
    texts = edges.agg({"edge": "sum", "net": "first", "share": "first"})
    shown = map(percent, texts["share"]) if clear(first) else map(decimal, texts["net"])
    picture = alt.layer(
        parts, reference_line("x", 0.0), numbers_at(texts.assign(text=list(shown)), "edge", y=y)
    )
    (told,) = ledger_in_words(rows).values()
    description = (
        f"Where the sense comes from, by source token: {told} The terms add up to the vector that the model has there, "
        f"within {scientific(float(first['closing']))} of its size."
    )
    return finish(picture, description, height=20 * bars["bar"].nunique())


def _domain(ledger: pd.DataFrame) -> list[float]:
    """The range of the bars of all sentences, so that every picture of a page has the same axis."""
    rows = _toward(ledger)
    bars = [rows["word"], rows["sentence"], source_of(rows)]
    low, high = (
        side.groupby(bars).sum()
        for side in (rows["toward"].clip(upper=0), rows["toward"].clip(lower=0))
    )
    whole = rows["total"] * rows["sign"]
    least, most = float(min(low.min(), whole.min(), 0.0)), float(max(high.max(), whole.max(), MEAN))
    return [least - 0.08 * (most - least), most + 0.08 * (most - least)]


def _hue(bars: pd.DataFrame) -> alt.Color:
    """The leading heads in shades of one hue, the rest in greys, the sum in ink; the legend lists
    who wrote."""
    fixed = {"other heads": OTHER_HEADS, "no head": NO_HEAD, SUM: INK}
    leaders = [name for name in bars.sort_values("part")["writer"].unique() if name not in fixed]
    colours = dict(zip(leaders, LEADERS, strict=False)) | fixed
    key = alt.Legend(orient="top", values=[*leaders, "other heads", "no head"], offset=4, columns=3)
    return by_value(alt.Color, "writer:N", list(colours), list(colours.values()), key, "written by")


SENTENCE = ["word", "sense", "sentence", "sense_a", "sense_b"]
GATHERED = {"MLP": "MLPs", "attention": "attention biases", "norm": "norm biases"}
CLEAR = 0.1  # of the gap; the mean of a sense is at 0.5
MOST = 0.8  # of what came from a token: the heads that are named carry at least this much
NAMED_HEADS = 3
NAMED_TOKENS = 2
Share = dict[Hashable, Any]  # a row of `by_source`


def by_source(ledger: pd.DataFrame) -> pd.DataFrame:
    """Contribution and share of every source of a sentence: tokens over all heads, embeddings,
    MLPs, biases.

    `contribution` in fractions of the gap, `share` of the sentence's `total` (they sum to 1),
    `through`: the heads that carry most of what came from a token, as text.
    """
    groups = ledger.assign(source=source_of(ledger)).groupby([*SENTENCE, "source"], sort=False)
    sums = groups.agg(
        pos=("pos", "first"),
        role=("role", "first"),
        contribution=("contribution", "sum"),
        total=("total", "first"),
    )
    through = [listed(carriers(rows)) for _, rows in groups]
    return sums.assign(share=sums["contribution"] / sums["total"], through=through).reset_index()


def source_of(ledger: pd.DataFrame) -> pd.Series:
    """The source that each row counts to: its token's label, the embedding, `MLPs`, or the biases
    of a kind."""
    components = ledger["component"]
    return ledger["token"].fillna(components.str.split(" ").str[0].map(GATHERED).fillna(components))


def carriers(rows: pd.DataFrame) -> list[str]:
    """The heads, largest first, that carry at least MOST of a source's contribution.

    `other heads` stands last where NAMED_HEADS of them are not enough.
    """
    heads = rows[rows["head"].notna()]
    whole = heads["contribution"].sum()
    if whole == 0:
        return []
    shares = (heads.set_index("component")["contribution"] / whole).sort_values(
        ascending=False, kind="stable"
    )
    needed = int((shares.cumsum() >= MOST).argmax()) + 1
    named = [str(name) for name in shares.index[: min(needed, NAMED_HEADS)]]
    return named if needed <= NAMED_HEADS else [*named, "other heads"]


def clear(source: Share) -> bool:
    """Whether the word stands on the side of the sense that is meant, by at least CLEAR of the gap."""
    return bool(source["total"] * (1 if source["sense"] == source["sense_a"] else -1) >= CLEAR)


def ledger_in_words(ledger: pd.DataFrame) -> dict[tuple[str, int], str]:
    """What each sentence of the ledger shows, in words, by word and sentence number."""
    groups = by_source(ledger).groupby(["word", "sentence"], sort=False)
    sentences = [rows.to_dict("records") for _, rows in groups]
    return {(sources[0]["word"], sources[0]["sentence"]): _tell(sources) for sources in sentences}


def _tell(sources: list[Share]) -> str:
    first = sources[0]
    if not clear(first):
        return (
            f"Here “{first['word']}” stands at {decimal(first['total'])}, from −0.50 for {first['sense_b']} "
            f"to 0.50 for {first['sense_a']}: not clearly {first['sense']}, so no part of it is called a share of that "
            "sense."
        )
    tokens = [source for source in sources if pd.notna(source["pos"])]
    lead = max(tokens, key=lambda source: source["share"])
    whose = f"of the sense of “{first['word']}” here ({first['sense']})"
    if lead["share"] < WORTH_NAMING:
        said = f"No token directly supplies as much as {percent(WORTH_NAMING)} {whose}"
        return (
            f"{said}; {_rest(sources, [source for source in tokens if source['role'] == 'cue'])}."
        )
    said = f"{_name(lead, tokens)} directly supplies {percent(lead['share'])} {whose}, through {lead['through']}"
    return f"{said}; {_rest(sources, _named(tokens, lead), lead)}."


def _named(tokens: list[Share], lead: Share) -> list[Share]:
    """The other tokens that are named, in reading order: the cue, and the NAMED_TOKENS largest
    WORTH_NAMING."""
    others = [token for token in tokens if token is not lead]
    large = [
        token for token in others if token["role"] != "cue" and abs(token["share"]) >= WORTH_NAMING
    ]
    large = sorted(large, key=lambda token: -abs(token["share"]))[:NAMED_TOKENS]
    return [
        token for token in others if token["role"] == "cue" or any(token is one for one in large)
    ]


def _rest(sources: list[Share], named: list[Share], lead: Share | None = None) -> str:
    """“the” 11 %, MLPs 12 %, everything else 16 %: with the leading token's, the shares of a
    sentence sum to 100 %."""
    tokens = [source for source in sources if pd.notna(source["pos"])]
    mlps = [source for source in sources if source["source"] == "MLPs"]
    left = 1.0 - sum(source["share"] for source in (*named, *mlps, *([lead] if lead else [])))
    parts = [f"{_name(source, tokens)} {percent(source['share'])}" for source in named]
    parts += [f"{source['source']} {percent(source['share'])}" for source in mlps]
    return ", ".join([*parts, f"everything else {percent(left)}"])


def _name(token: Share, tokens: list[Share]) -> str:
    """“river”; “bank” itself for the word; “the” (3) where the sentence has several."""
    piece = str(token["source"]).split("·", 1)[1]
    if token["role"] == "word":
        return f"“{piece}” itself"
    several = sum(str(other["source"]).split("·", 1)[1] == piece for other in tokens) > 1
    return f"“{piece}” ({token['pos']})" if several else f"“{piece}”"
