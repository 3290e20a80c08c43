"""The chart of ablated heads: its lines and bands agree with the table and share one scale."""

import numpy as np
import pandas as pd
import pytest

from probe import charts
from probe.charts.ablation import BAG, INTACT
from probe.studies.evaluation import COLUMNS, KINDS

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

DEPTHS = 3


def table():
    """Rows of the mean over words, and of one word, which is not drawn, at every depth and at the
    chosen depth."""
    rng = np.random.default_rng(0)
    rows = []
    for word in ("bank", None):
        for kind in KINDS:
            for depth in (*range(DEPTHS), None):
                row = dict.fromkeys(COLUMNS, 0.0)
                row |= {"word": word, "kind": kind, "depth": depth, "label": f"depth {depth}"}
                row |= {"accuracy": 0.8 + rng.random() / 10, "fall": rng.random() / 4}
                row["accuracy_without"] = row["accuracy"] - row["fall"]
                row |= {"fall_low": row["fall"] - 0.05, "fall_high": row["fall"] + 0.05}
                row |= {"random_sets": 20, "random_fall": 0.01}
                row |= {"random_least": -0.02, "random_most": 0.04}
                rows.append(row)
    return pd.DataFrame(rows).astype({"depth": "Int64"})


def test_lines_and_bands_show_the_means_by_depth():
    frame = table()
    spec = charts.accuracy_without(frame, ["L4H1", "L5H1"], bag=0.66).to_dict()
    chart_rows = [row for rows in spec["datasets"].values() for row in rows]
    mean = frame[frame["word"].isna()].dropna(subset="depth")
    for kind in KINDS:
        rows = mean[mean["kind"] == kind]
        here = pd.DataFrame([row for row in chart_rows if row["kind"] == kind])
        lines = here.drop_duplicates(["what", "depth"]).pivot(index="depth", columns="what")
        assert len(lines) == DEPTHS
        for label, value, low, high in (
            (INTACT, rows["accuracy"], np.nan, np.nan),
            (BAG, 0.66, np.nan, np.nan),
            (
                "without L4H1, L5H1",
                rows["accuracy_without"],
                rows["accuracy_without"] - 0.05,
                rows["accuracy_without"] + 0.05,
            ),
            (
                "without random sets (20)",
                rows["accuracy"] - 0.01,
                rows["accuracy"] - 0.04,
                rows["accuracy"] + 0.02,
            ),
        ):
            for name, expected in (("value", value), ("low", low), ("high", high)):
                expected = np.broadcast_to(np.asarray(expected, dtype=float), DEPTHS)
                actual = lines[name, label].to_numpy(dtype=float)
                assert np.allclose(actual, expected, equal_nan=True), (kind, label, name)


def test_the_panels_have_titles_a_description_and_a_common_scale():
    spec = charts.accuracy_without(table(), [f"L{n}H0" for n in range(6)], bag=0.66).to_dict()
    assert len(spec["hconcat"]) == 3 and "95" not in spec["description"]
    assert "L0H0, L1H0" in spec["description"] and "random sets" in spec["description"]
    layers = [layer for panel in spec["hconcat"] for layer in panel["layer"]]
    encoded = [layer["encoding"] for layer in layers]
    scales = [channels["y"]["scale"]["domain"] for channels in encoded]
    assert all(scale == scales[0] for scale in scales) and scales[0][0] < 0.66
    assert all(channels["x"]["title"] and channels["y"]["title"] for channels in encoded)
    labels = {name for channels in encoded for name in channels["color"]["scale"]["domain"]}
    assert "without 6 heads" in labels


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_it_is_drawn_without_a_browser(tmp_path, ending):
    path = tmp_path / f"picture.{ending}"
    charts.save(charts.accuracy_without(table(), ["L4H1"], bag=0.66), path)
    assert path.stat().st_size > 5_000
