"""Charts of the lesson and of analyses: lines, matrices, vectors, spectra, parameters, numbers;
smaller PNGs."""

import re
from io import BytesIO

import altair as alt
import drawing
import pandas as pd
import pytest
import vl_convert
from drawing import PARTS
from inside import repacked
from PIL import Image
from seeds import mostly_campaign
from test_charts import rows_of

from probe import charts

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

LINES = pd.DataFrame(
    [
        {"panel": panel, "x": x, "variant": variant, "value": x * slope + shift}
        for panel, shift in (("first", 1.0), ("second", 5.0))
        for variant, slope in (("divided", 1.0), ("not divided", 3.0))
        for x in range(1, 11)
    ]
)
PANELS = [
    drawing.Panel("first", "layer", "entropy"),
    drawing.Panel("second", "width", "share", log="xy"),
]
CELLS = pd.DataFrame(
    [
        {
            "panel": panel,
            "query": f"{q}·t",
            "key": f"{k}·t",
            "value": value if k <= q or panel != "masked" else None,
        }
        for panel, size in (("scores", 20.0), ("masked", 1.0))
        for q in range(3)
        for k in range(3)
        for value in [size * (q - k) / 2]
    ]
)
VECTORS = pd.DataFrame(
    [
        {"vector": name, "coordinate": i, "value": value * (i + 1)}
        for name, value in (("L0H0", 1.0), ("L0H1", -3.0), ("sum", -2.0))
        for i in range(40)
    ]
)
SPECTRA = pd.DataFrame(
    [
        {"map": f"L0H{h}", "place": p, "value": max(0.0, 4.0 + h - p)}
        for h in range(2)
        for p in range(1, 13)
    ]
)
PARAMETERS = pd.DataFrame(
    [
        ("gpt3", "MLP", 600),
        ("gpt3", "attention", 390),
        ("gpt3", "embeddings", 10),
        ("small", "attention", 1),
    ],
    columns=["model", "part", "parameters"],
)
MAKE = {
    "panels": lambda: drawing.line_panels(LINES, PANELS),
    "matrices": lambda: drawing.matrix_panels(CELLS, {"scores": "signed", "masked": "shares"}),
    "vectors": lambda: drawing.added_vectors(VECTORS, total="sum"),
    "spectra": lambda: drawing.spectra(SPECTRA, rank=5),
    "parameters": lambda: drawing.parameter_bars(PARAMETERS),
}


@pytest.mark.parametrize("name", mostly_campaign(MAKE, here=2))
def test_every_picture_has_a_description_and_is_reproducible(name, tmp_path):
    spec = MAKE[name]().to_dict()
    assert len(spec["description"]) > 30 and spec == MAKE[name]().to_dict()
    first, second = (charts.save(MAKE[name](), tmp_path / f"{n}.png").read_bytes() for n in (1, 2))
    assert first == second and 1000 < len(first) < 60_000


def test_every_panel_has_its_lines_titles_and_scales():
    spec = MAKE["panels"]().to_dict()
    assert [view["title"]["text"] for view in spec["hconcat"]] == ["first", "second"]
    for view, panel in zip(spec["hconcat"], PANELS, strict=True):
        encoded = view["layer"][0]["encoding"]
        assert (encoded["x"]["title"], encoded["y"]["title"]) == (panel.x, panel.y)
        assert encoded["y"]["scale"].get("type", "linear") == ("log" if panel.log else "linear")
        assert panel.log or encoded["y"]["scale"]["zero"]
        assert len(encoded["x"]["axis"]["values"]) <= 6 and encoded["x"]["axis"]["values"][-1] == 10
        marks = view["layer"][1]["encoding"]
        for look in (encoded["color"], encoded["strokeDash"], marks["shape"]):
            assert look["scale"]["domain"] == ["divided", "not divided"]
            assert len({str(value) for value in look["scale"]["range"]}) == 2
        rows = spec["datasets"][view["layer"][0].get("data", view.get("data"))["name"]]
        assert [row["value"] for row in rows] == LINES.loc[
            LINES["panel"] == panel.title, "value"
        ].tolist()
    assert "divided from 2 to 11, not divided from 4 to 31" in spec["description"]


def test_signed_matrices_are_symmetric_around_zero_and_shares_are_not_rescaled():
    spec = MAKE["matrices"]().to_dict()
    signed, shares = (view["layer"][0]["encoding"]["color"]["scale"] for view in spec["hconcat"])
    assert signed["domain"][0] == -signed["domain"][-1] == -20.0 and signed["range"][1].endswith(
        ", 0)"
    )
    assert shares["domain"] == [0, 1]


def test_masked_cells_are_empty_and_all_others_show_their_number():
    spec = MAKE["matrices"]().to_dict()
    tables = [spec["datasets"][view["data"]["name"]] for view in spec["hconcat"]]
    assert [row["text"] for row in tables[0]][:3] == ["0", "−10.0", "−20.0"]
    assert [row["text"] for row in tables[1]] == ["0", "", "", ".50", "0", "", "1.00", ".50", "0"]
    assert all((row["value"] is None) == (row["text"] == "") for row in tables[1])


def test_vectors_share_one_scale_with_their_sum_below_them():
    spec = MAKE["vectors"]().to_dict()
    rows = [[row for row in spec["datasets"][view["data"]["name"]]] for view in spec["vconcat"]]
    assert [{row["vector"] for row in part} for part in rows] == [{"L0H0", "L0H1"}, {"sum"}]
    assert all({row["coordinate"] for row in part} == set(range(32)) for part in rows)
    cells = [view["layer"][0]["encoding"] for view in spec["vconcat"]]
    scales = [encoding["color"]["scale"]["domain"] for encoding in cells]
    assert scales[0] == scales[1] == [-96.0, -1e-9, 1e-9, 96.0]
    assert "the first 32 of 40" in cells[1]["x"]["title"]
    by_hand = {True: "−", False: ""}  # the largest entry is 96: below a tenth of it, a sign
    assert all(row["sign"] == by_hand[row["value"] < -9.6] for part in rows for row in part)


def test_spectra_mark_the_rank_and_describe_the_values_after_it():
    spec = MAKE["spectra"]().to_dict()
    assert rows_of(spec, "place", "note") == [{"place": 5, "note": "d_head = 5: from here on zero"}]
    assert "2 maps: the largest 4, after number 5 at most 0" in spec["description"]


def test_parameter_shares_add_up_within_each_model_and_small_ones_have_no_number():
    rows = rows_of(MAKE["parameters"]().to_dict(), "model", "share", "text")
    gpt3 = {row["part"]: row for row in rows if row["model"] == "gpt3"}
    assert [gpt3[part]["share"] for part in PARTS[:3]] == pytest.approx([0.39, 0.6, 0.01])
    assert gpt3["embeddings"]["text"] == "" and gpt3["MLP"]["text"] == "MLP 60\u202f%"
    assert gpt3["MLP"]["middle"] == pytest.approx(0.39 + 0.3)


def test_grouped_bars_share_an_axis_and_keep_the_order():
    rows = pd.DataFrame(
        [
            ("first", "b", 0.9, 0.8, 1.0),
            ("first", "a", 0.1, 0.0, 0.2),
            ("second", "c", -0.1, -0.2, 0.0),
        ],
        columns=["group", "row", "value", "low", "high"],
    )
    spec = drawing.grouped_bars(rows, "share").to_dict()
    panels = spec["vconcat"]
    assert [panel["title"]["text"] for panel in panels] == ["first", "second"]
    domains = [panel["layer"][1]["encoding"]["x"]["scale"]["domain"] for panel in panels]
    assert domains == [[-0.2, 1.0], [-0.2, 1.0]]  # it ends where the data end
    assert panels[0]["layer"][1]["encoding"]["y"]["sort"] == ["b", "a"]
    assert [panel["layer"][1]["encoding"]["x"]["title"] for panel in panels] == [None, "share"]
    assert "first: b 90" in spec["description"] and "second: c −10" in spec["description"]


def test_pictures_in_a_notebook_need_no_network():
    before = alt.renderers.active
    try:
        charts.as_pictures(width=300)
        bundle = MAKE["spectra"]()._repr_mimebundle_(None, None)
    finally:
        alt.renderers.enable(before)
    assert set(bundle) == {"image/svg+xml", "text/plain"} and bundle["text/plain"].startswith(
        "Singular values of 2 maps"
    )
    assert "<script" not in bundle["image/svg+xml"] and bundle["image/svg+xml"].startswith("<svg")
    assert 300 < int(re.search(r'width="(\d+)"', bundle["image/svg+xml"])[1]) < 400


def pixels(png):
    return Image.open(BytesIO(png)).convert("RGB").tobytes()


@pytest.mark.parametrize(("name", "mode"), [("spectra", "P"), ("vectors", "RGB")])
def test_a_repacked_picture_has_the_same_pixels_and_is_smaller(name, mode):
    spec = MAKE[name]().to_dict() | {"background": "white"}
    original = vl_convert.vegalite_to_png(spec, scale=2 if mode == "RGB" else 1)
    smaller = repacked(original)
    before, after = Image.open(BytesIO(original)), Image.open(BytesIO(smaller))
    assert after.mode == mode and len(smaller) < len(original) / 2
    assert after.size == before.size and after.info.get("dpi") == before.info.get("dpi")
    assert pixels(smaller) == pixels(original)


def test_a_transparent_picture_is_unchanged_and_other_files_are_refused():
    clear = vl_convert.vegalite_to_png(MAKE["spectra"]().to_dict())
    assert repacked(clear) == clear
    with pytest.raises(
        ValueError, match="Cannot repack a PNG: got bytes that begin with b'GIF89a'"
    ):
        repacked(b"GIF89a")


BY_DEPTH = pd.DataFrame(
    [("angle", depth, "same", value) for depth, value in zip((-1, 0, 1), (0, 3, 5), strict=True)]
    + [("angle", depth, "other", value) for depth, value in ((-1, 0), (0, 9), (1, 20))]
    + [("rank", depth, "Mike", value) for depth, value in zip((0, 1), (300, 2), strict=True)],
    columns=["panel", "depth", "what", "value"],
)  # fmt: skip


def by_depth(**options):
    return drawing.lines_by_depth(
        BY_DEPTH, {"angle": "linear", "rank": "rank"}, **options
    ).to_dict()


def panel_data(panel):
    return panel["layer"][0].get("data") or panel["data"]


def test_every_panel_contains_its_rows_and_the_description_gives_both_ends_of_each_line():
    spec = by_depth()
    tables = [spec["datasets"][panel_data(panel)["name"]] for panel in spec["hconcat"]]
    assert [len(table) for table in tables] == [6, 2]
    assert {row["panel"] for row in tables[0]} == {"angle"} and {
        row["what"] for row in tables[1]
    } == {"Mike"}
    description = (
        "angle: same from 0.00 to 5.00, other from 0.00 to 20.00; rank: Mike from 300.00 to 2.00."
    )
    assert spec["description"] == description
    scales = [panel["layer"][0]["encoding"]["y"]["scale"] for panel in spec["hconcat"]]
    assert scales[1]["reverse"] and scales[1]["domain"] == [1, 300] and scales[1]["type"] == "log"
    assert "reverse" not in scales[0]


def test_a_line_has_the_requested_colour_and_panels_with_the_same_lines_share_one_legend():
    colour = by_depth(hues={"other": "#123456"})["hconcat"][0]["layer"][0]["encoding"]["color"][
        "scale"
    ]
    hues = dict(zip(colour["domain"], colour["range"], strict=True))
    assert hues["other"] == "#123456" and hues["same"] != "#123456"
    angles = BY_DEPTH[BY_DEPTH["panel"] == "angle"]
    alike = pd.concat([angles, angles.assign(panel="again")])
    shared = drawing.lines_by_depth(alike, {"angle": "linear", "again": "linear"}).to_dict()
    looks = ("color", "shape", "strokeDash")
    assert shared["resolve"]["scale"] == dict.fromkeys(looks, "shared")
    assert by_depth()["resolve"]["scale"] == dict.fromkeys(looks, "independent")


COMPARED = pd.DataFrame(
    {
        "row": ["L1H0", "L0H0"] * 2,
        "what": ["adjectives"] * 2 + ["nouns"] * 2,
        "value": [0.9, 0.4, 0.2, 0.5],
    }
)


def test_marks_spans_notes_and_axes_agree_with_the_rows():
    spec = drawing.compared(
        COMPARED, "attention", notes={"L1H0": "looks at adjectives", "L0H0": ""}
    ).to_dict()
    spans, marks, words = (spec["datasets"][layer["data"]["name"]] for layer in spec["layer"])
    assert [(row["row"], row["min"], row["max"]) for row in spans] == [
        ("L1H0", 0.2, 0.9),
        ("L0H0", 0.4, 0.5),
    ]
    assert len(marks) == 4
    assert {row["row"]: row["note"] for row in words} == {
        "L1H0": "looks at adjectives",
        "L0H0": "",
    }
    encoding = spec["layer"][1]["encoding"]
    assert encoding["y"]["sort"] == ["L1H0", "L0H0"]
    assert encoding["x"]["scale"]["domain"] == [0, 0.9]
    assert spec["description"] == (
        "2 lines under 2 conditions. With adjectives the largest value is that of L1H0: 90\u202f%. "
        "L1H0 (looks at "
        "adjectives)."
    )


@pytest.mark.parametrize(
    ("kind", "values", "domain"),
    [
        ("rank", [1, 30, 2000, 5], [1, 2000]),  # a logarithmic axis, which begins at one
        ("number", [0.9, 0.4, 0.2, 0.5], [0.2, 0.9]),
        ("share", [0.9, 0.4, 0.2, 0.5], [0, 0.9]),
    ],
)
def test_the_axis_of_a_kind_of_value_starts_where_it_should(kind, values, domain):
    spec = drawing.compared(COMPARED.assign(value=values), "value", kind=kind).to_dict()
    axis = spec["layer"][1]["encoding"]["x"]
    assert axis["scale"]["domain"] == domain
    assert axis["scale"].get("type") == ("log" if kind == "rank" else None)
    if kind == "rank":
        assert axis["axis"]["values"] == [1, 10, 100, 1000]
