"""Lines by depth: what is drawn is what was given, ranks have 1 on top, and the description tells both ends."""

import pandas as pd

from probe import charts

ROWS = pd.DataFrame(
    [("angle", depth, "same", value) for depth, value in zip((-1, 0, 1), (0, 3, 5), strict=True)]
    + [("angle", depth, "other", value) for depth, value in zip((-1, 0, 1), (0, 9, 20), strict=True)]
    + [("rank", depth, "Mike", value) for depth, value in zip((0, 1), (300, 2), strict=True)],
    columns=["panel", "depth", "what", "value"],
)  # fmt: skip


def spec(**options):
    return charts.lines_by_depth(ROWS, {"angle": "linear", "rank": "rank"}, **options).to_dict()


def drawn(panel):
    return panel["layer"][0].get("data") or panel["data"]


def test_every_panel_holds_its_own_rows_and_the_description_tells_both_ends_of_each_line():
    found = spec()
    tables = [found["datasets"][drawn(panel)["name"]] for panel in found["hconcat"]]
    assert [len(table) for table in tables] == [6, 2]
    assert {row["panel"] for row in tables[0]} == {"angle"} and {row["what"] for row in tables[1]} == {"Mike"}
    told = "angle: same from 0.00 to 5.00, other from 0.00 to 20.00; rank: Mike from 300.00 to 2.00."
    assert found["description"] == told
    scales = [panel["layer"][0]["encoding"]["y"]["scale"] for panel in found["hconcat"]]
    assert scales[1]["reverse"] and scales[1]["domain"] == [1, 300] and scales[1]["type"] == "log"
    assert "reverse" not in scales[0]


def test_a_line_keeps_the_colour_it_was_given_and_panels_with_the_same_lines_share_one_legend():
    colour = spec(hues={"other": "#123456"})["hconcat"][0]["layer"][0]["encoding"]["color"]["scale"]
    given = dict(zip(colour["domain"], colour["range"], strict=True))
    assert given["other"] == "#123456" and given["same"] != "#123456"
    alike = pd.concat([ROWS[ROWS["panel"] == "angle"], ROWS[ROWS["panel"] == "angle"].assign(panel="again")])
    shared = charts.lines_by_depth(alike, {"angle": "linear", "again": "linear"}).to_dict()
    assert shared["resolve"]["scale"]["color"] == "shared" and spec()["resolve"]["scale"]["color"] == "independent"
