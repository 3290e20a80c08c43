"""Where the sense of a word travels: effects of one part of the network at one position, layer by token."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.channels import tips, token_axis
from probe.charts.palette import LINE, effect_scale, finish
from probe.stats.numbers import percent

PARTS = {"resid_pre": "residual stream", "attn_out": "attention", "mlp_out": "MLP"}


def position_maps(positions: pd.DataFrame, word: str) -> list[tuple[str, Any]]:
    """Layer x position grids of a word, each with its name: the whole stream, what attention and what the MLP write.

    `positions` is the study's frame, whole, so that the scale is the same for every word.
    """
    rows = positions[(positions["word"] == word) & positions["component"].isin(PARTS)]
    limit = position_limit(positions)
    return [(title, _map(rows[rows["component"] == name], title, limit)) for name, title in PARTS.items()]


def in_order(positions: pd.DataFrame) -> list[str]:
    """The names of the positions of a word, from the first before the word to the word."""
    return [str(pos) for pos in positions.sort_values("behind", na_position="last")["pos"].drop_duplicates()]


def position_limit(positions: pd.DataFrame) -> float:
    """The largest absolute effect of the frame in per cent, rounded up to ten: both ends of the diverging scale."""
    return max(-(-round(100 * float(positions["effect"].abs().max())) // 10) / 10, 0.1)


def _map(rows: pd.DataFrame, title: str, limit: float) -> Any:
    order = in_order(rows)
    layers = sorted(rows["layer"].unique().tolist(), reverse=True)
    x = alt.X("pos:N", title="position", sort=order, axis=token_axis(labelAngle=-45))
    y = alt.Y("layer:O", title="layer", sort=layers)
    base = alt.Chart(rows.astype({"layer": int, "pairs": int}).drop(columns=["behind", "head"]))
    base = base.encode(x=x, y=y, tooltip=_TIPS)
    colour = alt.Color("effect:Q", scale=effect_scale(limit), legend=None)
    cells = base.mark_rect(stroke=LINE, strokeWidth=1).encode(color=colour)
    [best] = rows.loc[[rows["effect"].abs().idxmax()]].to_dict("records")
    said = (
        f"Effect of swapping the {title} at one position, {len(layers)} layers by {len(order)} positions: the largest "
        f"is {percent(float(best['effect']))} of the sense gap, in layer {best['layer']} at {best['pos']}."
    )
    step = 30 if len(layers) <= 6 else 22 if len(layers) <= 24 else 14
    return finish(cells.properties(width="container", height=step * len(layers)), said)


_TIPS = tips(
    "pos:N | position",
    "layer:O | layer",
    "effect:Q | effect | .1%",
    "denoise:Q | B given A's | .1%",
    "noise:Q | A given B's | .1%",
    "pairs:Q | pairs of sentences",
)
