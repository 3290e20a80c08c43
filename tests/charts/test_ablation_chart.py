"""The chart of ablated heads: its lines and bands agree with the table and share one scale."""

import numpy as np
import pandas as pd
import pytest
from inside import EVALUATION_COLUMNS as COLUMNS
from inside import EVALUATION_KINDS as KINDS

from probe import charts
from probe.charts.ablation import BAG, INTACT

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

DEPTHS = 3


def table():
    """Rows of the mean over words, and of one word, which is not drawn, at every depth and at the
    chosen depth."""
    rng = np.random.default_rng(0)
    keys = [
        {"word": word, "kind": kind, "depth": depth, "label": f"depth {depth}"}
        for word in ("bank", None)
        for kind in KINDS
        for depth in (*range(DEPTHS), None)
    ]
    rows = pd.DataFrame([dict.fromkeys(COLUMNS, 0.0) | key for key in keys])
    rows = rows.assign(accuracy=0.8 + rng.random(len(rows)) / 10, fall=rng.random(len(rows)) / 4)
    rows["accuracy_without"] = rows["accuracy"] - rows["fall"]
    rows = rows.assign(fall_low=rows["fall"] - 0.05, fall_high=rows["fall"] + 0.05)
    rows = rows.assign(random_sets=20, random_fall=0.01, random_least=-0.02, random_most=0.04)
    return rows.astype({"depth": "Int64"})


def test_lines_and_bands_show_the_means_by_depth():
    frame = table()
    spec = charts.accuracy_without(frame, ["L4H1", "L5H1"], bag=0.66).to_dict()
    drawn = pd.DataFrame([row for rows in spec["datasets"].values() for row in rows])
    mean = frame[frame["word"].isna()].dropna(subset="depth")
    for kind in KINDS:
        rows = mean[mean["kind"] == kind]
        here = drawn[drawn["kind"] == kind].drop_duplicates(["what", "depth"])
        lines = here.pivot(index="depth", columns="what")
        assert len(lines) == DEPTHS
        whole, without = (rows[name].to_numpy() for name in ("accuracy", "accuracy_without"))
        for label, *expected in (
            (INTACT, whole, np.nan, np.nan),
            (BAG, 0.66, np.nan, np.nan),
            ("without L4H1, L5H1", without, without - 0.05, without + 0.05),
            ("random sets (20)", whole - 0.01, whole - 0.04, whole + 0.02),
        ):
            for name, values in zip(("value", "low", "high"), expected, strict=True):
                actual = lines[name, label].to_numpy(dtype=float)
                wanted = np.broadcast_to(values, DEPTHS)
                assert np.allclose(actual, wanted, equal_nan=True), (kind, label, name)


def test_the_panels_have_titles_a_description_and_a_common_scale_without_a_browser(tmp_path):
    chart = charts.accuracy_without(table(), [f"L{n}H0" for n in range(6)], bag=0.66)
    assert charts.save(chart, tmp_path / "picture.svg").stat().st_size > 5_000
    spec = chart.to_dict()
    assert len(spec["hconcat"]) == 3 and "95" not in spec["description"]
    assert "L0H0, L1H0" in spec["description"] and "random sets" in spec["description"]
    encoded = [layer["encoding"] for panel in spec["hconcat"] for layer in panel["layer"]]
    scales = [channels["y"]["scale"]["domain"] for channels in encoded]
    assert all(scale == scales[0] for scale in scales) and scales[0][0] < 0.66
    assert all(channels["x"]["title"] and channels["y"]["title"] for channels in encoded)
    assert any("without 6 heads" in channels["color"]["scale"]["domain"] for channels in encoded)
