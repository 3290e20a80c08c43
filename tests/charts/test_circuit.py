"""The chart of a circuit: edges are as wide as their effects, and no two parts overlap."""

import numpy as np
import pandas as pd
import pytest

from probe import charts
from probe.charts.circuit import LEAST_TOTAL, NARROWEST, WIDEST

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

CUE, BETWEEN, WORD = "cue", "cue + 1", "word"
EDGES = [
    ((None, None, CUE), (0, 1, BETWEEN), "value", 0.9, 0.01),
    ((0, 1, BETWEEN), (2, 0, WORD), "value", 0.5, 0.01),
    ((0, 1, BETWEEN), (2, 3, WORD), "key", -0.3, 0.2),
    ((2, 3, WORD), (2, None, WORD), "input", 0.005, None),
    ((None, None, CUE), (0, None, CUE), "input", LEAST_TOTAL, None),
    ((0, None, CUE), (2, 3, WORD), "value", 0.002, None),
]


def frames():
    names = [f"{end}_{part}" for end in ("sender", "receiver") for part in ("layer", "head", "pos")]
    rows = [
        dict(zip(names, (*sender, *receiver), strict=True))
        | {
            "word": "bank",
            "channel": channel,
            "total": total,
            "low": total - 0.1,
            "high": total + 0.1,
            "p": p,
        }
        for sender, receiver, channel, total, p in EDGES
    ]
    whole = {name: "Int64" for name in names if not name.endswith("pos")}
    positions = pd.DataFrame({"word": "bank", "pos": [WORD, BETWEEN, CUE], "behind": [None, 1, 0]})
    return pd.DataFrame(rows).astype(whole | {"p": float}), positions


def chart_tables():
    picture = charts.circuit(*frames(), "bank")
    spec = picture.to_dict()
    lines, parts = (spec["datasets"][spec["layer"][number]["data"]["name"]] for number in (0, 1))
    return spec, pd.DataFrame(lines), pd.DataFrame(parts).set_index("name")


def test_an_edge_is_as_wide_as_its_effect_and_leads_from_part_to_part():
    _, lines, parts = chart_tables()
    large = [edge for edge in EDGES if abs(edge[3]) >= LEAST_TOTAL]
    assert lines["edge"].nunique() == len(large)
    for (_, points), (*_, channel, total, p) in zip(lines.groupby("edge"), large, strict=True):
        assert points["width"].unique() == pytest.approx([max(NARROWEST, WIDEST * abs(total))])
        assert set(points["toward"]) == {"donor" if total > 0 else "own"}
        assert set(points["confirmed"]) == {"yes" if p is not None and p < 0.05 else "no"}
        for row, end in ((points.iloc[0], "from"), (points.iloc[-1], "to")):
            assert row[["x", "y"]].tolist() == pytest.approx(
                parts.loc[row[end], ["x", "y"]].tolist()
            )
        assert set(points["channel"]) == {channel}


def test_parts_are_at_their_layer_and_position_and_do_not_overlap():
    spec, _, parts = chart_tables()
    assert set(parts.index) == {
        "embedding at cue",
        "MLP of layer 0 at cue",
        "L0H1 at cue + 1",
        "L2H0 at word",
        "L2H3 at word",
    }
    assert parts.groupby("row")["y"].first().sort_values().index.tolist() == [
        "token",
        "0",
        "0 MLP",
        "2",
    ]
    middles = parts.groupby("pos")["middle"].unique()
    assert [len(middle) for middle in middles] == [1, 1, 1]
    assert middles[CUE][0] < middles[BETWEEN][0] < middles[WORD][0]
    apart = parts[["x", "y"]].to_numpy()
    distances = np.abs(apart[:, None] - apart).sum(-1)[~np.eye(len(apart), dtype=bool)]
    assert distances.min() >= 1 - 1e-6
    assert (
        "The widest: embedding at cue to L0H1 at cue + 1, as its value: 90" in spec["description"]
    )


def test_nothing_is_drawn_where_no_edge_moves_the_word():
    edges, positions = frames()
    assert charts.circuit(edges.assign(total=0.5 * LEAST_TOTAL), positions, "bank") is None
    assert charts.circuit(edges, positions, "mole") is None
