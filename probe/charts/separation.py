"""To separate the senses is not to move the word: every head's separation against its effect, with its verdict."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.heads import HEAD_TOOLTIP, named, reached
from probe.charts.marks import verdict_colour, verdict_shape
from probe.charts.palette import INK, MUTED, finish, reference_line
from probe.verdicts import ORDER

NAMED = 6
EFFECT_TITLE = "net swap effect (share of gap)"


def separation_and_effect(word_heads: pd.DataFrame, word: str) -> Any:
    """The heads up to a word's read-out: how well each one's write tells the senses apart, against what swapping it does.

    Heads with an effect that stands out of the frame's range are named.
    """
    rows = named(reached(word_heads[word_heads["word"] == word]))
    x = alt.X(
        "auroc:Q",
        title="held-out AUROC of the head's write (0.5 = chance)",
        scale=alt.Scale(domain=_auroc_domain(word_heads), nice=False, zero=False),
        axis=alt.Axis(tickCount=6, format=".1f"),
    )
    y = alt.Y(
        "net:Q",
        title="net swap effect (share of gap)",
        axis=alt.Axis(format=".0%", tickCount=6),
        scale=_effect_axis(word_heads),
    )
    base = alt.Chart(rows).encode(x=x)
    bars = base.mark_rule(color=MUTED, opacity=0.5).encode(alt.Y("net_low:Q", title=EFFECT_TITLE), alt.Y2("net_high"))
    kinds = [name for name in ORDER if name in set(word_heads["verdict"])]
    look = {"shape": verdict_shape(kinds, legend=False), "color": verdict_colour(kinds), "tooltip": HEAD_TOOLTIP}
    dots = base.mark_point(filled=True, size=90, opacity=1, strokeWidth=0).encode(y=y, **look)
    room = 0.055 * _reach(word_heads)
    labels = _spread(rows[rows["clear"] & (rows["net"].abs() > room / 2)].nlargest(NAMED, "net"), room=room)
    names = alt.Chart(labels).mark_text(align="right", dx=-8, fontSize=11, color=INK)
    names = names.encode(x="auroc:Q", y="height:Q", text="name:N")
    inert = int(((rows["auroc"] > 0.75) & ~rows["clear"]).sum())
    description = (
        f"Separation against effect of {word}: {len(rows)} heads. {inert} of them separate the senses with an AUROC above 0.75 while "
        "the interval of their effect includes zero."
    )
    picture = alt.layer(reference_line("y", 0.0), reference_line("x", 0.5), bars, dots, names)
    return finish(picture.properties(width="container", height=250), description)


def _auroc_domain(word_heads: pd.DataFrame) -> list[float]:
    return [min(0.4, float(word_heads["auroc"].min()) - 0.05), 1.02]


def _effect_axis(word_heads: pd.DataFrame) -> alt.Scale:
    low, high = float(word_heads["net_low"].min()), float(word_heads["net_high"].max())
    room = 0.06 * _reach(word_heads)
    return alt.Scale(domain=[min(low, 0.0) - room, max(high, 0.0) + room], nice=False, zero=False)


def _reach(word_heads: pd.DataFrame) -> float:
    return float(word_heads["net_high"].max() - word_heads["net_low"].min())


def _spread(labels: pd.DataFrame, *, room: float) -> pd.DataFrame:
    """The rows, smallest effect first, with a `height` for each name: that of its point, or higher where names would collide."""
    rows, heights = labels.sort_values("net"), list[float]()
    for net in rows["net"]:
        heights.append(max(net, heights[-1] + room) if heights else net)
    return rows.assign(height=heights)
