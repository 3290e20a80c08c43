"""Charts: correct numbers in the specification, comparable scales, titles, units and
descriptions. Those of a study have the names of its tables."""

import inspect
import subprocess
import sys
from functools import cache, partial
from itertools import cycle

import altair as alt
import numpy as np
import pandas as pd
import pytest
from example_survey import make_survey
from inside import ORDER, StudyTables, SurveyTables, palette, table_names
from seeds import mostly_campaign
from stored_study import stored_study

import probe
from probe import InputError, charts
from probe.charts.of_study import StudyCharts

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

STUDY = stored_study()
FRAMES = STUDY.frames
HEADS, CURVES, SETS = FRAMES["word_heads"], FRAMES["curves"], FRAMES["random_sets"]
BANK = HEADS.query("word == 'bank'")
TOP = ["L0H0", "L3H2"]
PAIR = ("river", "money")
MAKE = {
    "depth profile": partial(charts.depth_profile, FRAMES["depth"], "bank", PAIR, read_at=2),
    "depth profiles": partial(charts.depth_profiles, FRAMES["depth"], "mole"),
    "head map": partial(charts.head_map, HEADS, "bank"),
    "head maps": partial(charts.head_maps, HEADS),
    "separation": partial(charts.separation_and_effect, HEADS, "bank"),
    "shares": partial(charts.share_bars, FRAMES["shares"], "mole"),
    "sets": partial(charts.set_curves, CURVES, SETS, "bank"),
    "controls": partial(charts.control_strips, FRAMES["separation_controls"], "mole", marked=TOP),
    "distances": partial(charts.distance_lines, FRAMES["distances"], "mole", TOP),
    "head_parts": partial(charts.head_part_bars, FRAMES["head_parts"], HEADS, "mole", TOP),
    "nouns": partial(charts.noun_gaps, FRAMES["controls"], "bank", read_at=2),
}


@cache
def specification(name):
    return MAKE[name]().to_dict()


def parts(spec):
    """Every view of a specification that has an encoding."""
    yield from ([spec] if "encoding" in spec else [])
    for name in ("layer", "hconcat", "vconcat", "concat"):
        for view in spec.get(name, []):
            yield from parts(view)


def rows_of(spec, *columns):
    """The rows of the first dataset that has all these columns."""
    for rows in spec["datasets"].values():
        if all(column in rows[0] for column in columns):
            return rows
    raise AssertionError(f"no dataset has {columns}")


def scale_of(spec, channel):
    """The first scale of the channel in any view."""
    views = (view["encoding"].get(channel, {}) for view in parts(spec))
    return next(encoded["scale"] for encoded in views if "scale" in encoded)


# --- every chart ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKE)
def test_every_chart_has_a_description_and_titled_axes(name):
    spec = specification(name)
    assert len(spec["description"]) > 20
    numbers = spec["config"]["locale"]["number"]
    assert (numbers["percent"], numbers["minus"]) == ("\u202f%", "−")  # as in the text
    for channel in ("x", "y"):
        encoded = [view["encoding"][channel] for view in parts(spec) if channel in view["encoding"]]
        inherits = [
            each for each in encoded if "value" in each or each.get("field") in {"label", "at"}
        ]
        assert any(each.get("title") for each in encoded) or inherits == encoded, channel


@pytest.mark.parametrize(
    ("name", "ending"),
    mostly_campaign(zip(MAKE, cycle(("png", "svg")), strict=False), here=2),
)
def test_every_chart_saves_the_same_bytes_twice(name, ending, tmp_path):
    first, second = (
        charts.save(MAKE[name](), tmp_path / f"{n}.{ending}").read_bytes() for n in range(2)
    )
    assert first == second and len(first) > 2000
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<svg")


def test_saving_to_an_unwritable_path_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^Cannot write .*. Choose another folder"):
        charts.save(MAKE["head map"](), tmp_path / "file" / "map.png")
    with pytest.raises(ValueError, match=r"its name ends in '\.gif', expected \.png or \.svg\."):
        charts.save(MAKE["head map"](), tmp_path / "map.gif")


def test_charts_and_the_words_for_writes_import_neither_torch_nor_a_model():
    heavy = "{'torch', 'transformers', 'transformer_lens'} & set(sys.modules)"
    code = f"import sys, probe.charts.writes; from probe.charts import *; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_theme_replaces_colours_but_never_data():
    data = {"d": [{"text": palette.INK}]}
    spec = {"config": {"labelColor": palette.INK}, "datasets": data, "mark": palette.SENSES[1]}
    themed = charts.themed(spec)
    assert themed == {
        "config": {"labelColor": "var(--ink)"},
        "datasets": data,
        "mark": "var(--s1)",
    }


@pytest.mark.parametrize(
    ("hues", "paper", "least"),
    [(palette.SENSES, "#ffffff", 3), (palette.SENSES_DARK, "#1b2027", 4.5)],
)
def test_the_hues_of_senses_stand_out_from_the_page(hues, paper, least):
    """The contrast of the WCAG: 3 for pictures, 4.5 for text."""

    def luminance(colour):
        channels = np.array([*bytes.fromhex(colour[1:])]) / 255
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return linear @ [0.2126, 0.7152, 0.0722] + 0.05

    for hue in hues:
        darker, lighter = sorted([luminance(hue), luminance(paper)])
        assert lighter / darker >= least


def test_numbers_that_json_lacks_are_left_empty_in_the_data_of_a_chart():
    rows = pd.DataFrame({"p": [0.5, np.nan, -np.inf], "name": ["a", None, "c"]})
    assert palette.records(rows) == [
        {"p": 0.5, "name": "a"},
        {"p": None, "name": None},
        {"p": None, "name": "c"},
    ]


# --- the charts and tables of a study by name -----------------------------------------------------

NAMES = [name for name, _ in inspect.getmembers(StudyCharts, inspect.isfunction) if name[0] != "_"]


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_of_a_result_has_the_name_of_its_table(name):
    result, kind = STUDY, StudyTables
    if name.startswith("survey"):
        result, kind = make_survey(), SurveyTables
    assert name in table_names(kind)
    words = () if kind is SurveyTables else ("mole",)
    if len(result.frames[name]):
        chart = getattr(result.charts, name)(*words)
        kind_of_chart = inspect.signature(getattr(StudyCharts, name)).return_annotation
        assert isinstance(chart, kind_of_chart) and "description" in chart.to_dict()


@pytest.mark.parametrize("name", ["word_heads", "separation_controls"])
def test_a_chart_of_a_model_with_10240_heads_is_drawn(name):
    rows = palette.of_word(FRAMES[name], "bank")
    row = rows.iloc[[0]].drop(columns=["layer", "head"])
    cells = pd.MultiIndex.from_product([range(128), range(80)], names=["layer", "head"])
    many = cells.to_frame(index=False).merge(row, how="cross")
    frames = {key: frame for key, frame in FRAMES.items() if key != "positions"}
    with alt.data_transformers.enable("default"):  # with altair's own limit
        spec = getattr(StudyCharts(frames | {name: many}), name)("bank").to_dict()
    drawn = {(row.get("layer"), row.get("head")) for of in spec["datasets"].values() for row in of}
    assert drawn >= {*cells}


def test_a_chart_without_rows_and_a_table_that_does_not_exist_are_refused():
    with pytest.raises(InputError, match="^Cannot draw depth of 'bat': the table has rows of bank"):
        STUDY.charts.depth("bat")
    with pytest.raises(InputError, match="^Cannot draw survey_heads: this result has no rows in"):
        STUDY.charts.survey_heads()
    for name in ("wrods", "survey_heads"):
        with pytest.raises(AttributeError, match=f"^this study has no '{name}'; its frames are "):
            getattr(STUDY, name)
    # `certificate` is the record, whose rows are in the table of that name.
    assert {*FRAMES, *make_survey().frames} - {"certificate"} == table_names(StudyTables)
    assert STUDY.heads is FRAMES["heads"]


def test_help_shows_the_types_of_a_functions_arguments():
    for function in (probe.patch, probe.study, probe.load, probe.evaluate, probe.trace):
        first = str(inspect.signature(function)).partition(",")[0]
        assert first in ("(model: ModelSource", "(source: ModelSource")


# --- the map of heads -----------------------------------------------------------------------------


def test_the_map_draws_every_head_and_marks_clear_intervals_and_verdicts():
    spec = specification("head map")
    rows = rows_of(spec, "layer", "head", "net", "clear", "verdict")
    assert [row["net"] for row in rows] == pytest.approx(BANK["net"].tolist())
    clear = (BANK["net_low"] > 0) | (BANK["net_high"] < 0)
    assert [row["clear"] for row in rows] == clear.tolist() and 0 < clear.sum() < len(BANK)
    assert [row["verdict"] for row in rows] == BANK["verdict"].tolist()
    marks = next(view for view in parts(spec) if "shape" in view["encoding"])
    kinds = ["resolver", "mover", "position-explained"]  # the others have no mark
    assert marks["encoding"]["shape"]["scale"]["domain"] == kinds
    shapes = marks["encoding"]["shape"]["scale"]["range"]
    assert shapes == [charts.MARKS[name] for name in kinds]
    assert "Resolvers: L0H0, L3H2." in spec["description"]
    none = charts.head_map(HEADS.assign(verdict="none"), "bank").to_dict()
    assert "Resolvers: none." in none["description"]
    assert not any("shape" in view["encoding"] for view in parts(none))
    tiny = HEADS.assign(net=0.001, net_low=0.0005, net_high=0.002)
    marks = {row["mark"] for row in rows_of(charts.head_map(tiny, "bank").to_dict(), "mark")}
    assert marks == {"•"}  # it rounds to zero


def test_every_verdict_has_one_distinct_shape_for_all_words():
    assert list(charts.MARKS) == list(ORDER) and len({*charts.MARKS.values()}) == len(ORDER)
    scales = [
        scale_of(charts.separation_and_effect(HEADS, word).to_dict(), "shape")
        for word in ("bank", "mole")
    ]
    assert scales[0] == scales[1] and set(scales[0]["domain"]) == set(HEADS["verdict"])


def test_scales_are_symmetric_blank_at_zero_and_the_same_for_every_word():
    for read_at in (None, {"bank": 2, "mole": 1}):
        specs = [
            charts.head_map(HEADS, word, read_at=read_at).to_dict() for word in ("bank", "mole")
        ]
        panels = [spec.get("vconcat", [spec]) for spec in specs]
        scales = [[scale_of(panel, "color") for panel in of_word] for of_word in panels]
        assert scales[0] == scales[1] and len(scales[0]) == (1 if read_at is None else 2)
        for scale in scales[0]:
            assert scale["domain"][0] == -scale["domain"][-1]
            assert scale["range"][1].endswith(", 0)") and scale["range"][2].endswith(", 0)")
    for make, channel in (
        (partial(charts.set_curves, CURVES, SETS), "y"),
        (partial(charts.control_strips, FRAMES["separation_controls"]), "x"),
        (lambda word: charts.distance_lines(FRAMES["distances"], word, TOP), "y"),
    ):
        first, second = (scale_of(make(word).to_dict(), channel) for word in ("bank", "mole"))
        assert first == second


def test_layers_read_after_the_last_are_a_second_panel():
    spec = charts.head_map(HEADS, "bank", read_at={"bank": 3, "mole": 3}).to_dict()
    assert [scale_of(panel, "y")["domain"] for panel in spec["vconcat"]] == [[0, 1, 2], [3]]
    assert "vconcat" not in charts.head_map(HEADS, "bank", read_at={"bank": 4}).to_dict()


def test_the_scale_ends_at_the_largest_effect_with_a_verdict():
    nets = [0.31, 0.52, 0.74]
    rows = pd.DataFrame({"word": "bank", "layer": range(3), "net": nets, "verdict": "mover"})
    assert charts.effect_limit(rows) == pytest.approx(0.8)
    two = pd.DataFrame(
        {"word": "spring", "layer": 0, "net": [0.55, 0.21], "verdict": ["none", "mover"]}
    )
    assert charts.effect_limit(two) == pytest.approx(0.3)
    mlps = pd.DataFrame({"word": ["spring"], "layer": [0], "net": [0.44]})
    assert charts.effect_limit(two, mlps) == pytest.approx(0.5)
    survey = rows.rename(columns={"net": "effect"}).assign(read_depth=1, p=0.01, effect_low=0.1)
    assert charts.survey_limit(survey) == pytest.approx(0.8)
    unsure = survey.assign(p=[0.97, 0.01, 0.97], effect_low=[-0.1, 0.1, -0.1])
    assert charts.survey_limit(unsure) == pytest.approx(0.6)


def test_mixers_and_mlps_are_columns_beside_the_heads_on_their_scale():
    rows = [("bank", "a", "b", 1, 0.2), ("bank", "a", "c", 1, 0.4), ("bank", "a", "b", 3, -0.1)]
    frame = pd.DataFrame(rows, columns=["word", "sense_a", "sense_b", "layer", "net"])
    mixers = charts.mixers_at_word(frame)
    assert mixers["net"].tolist() == pytest.approx([0.3, -0.1])
    assert mixers["head"].tolist() == [charts.MIXER] * 2 and mixers["layer"].tolist() == [1, 3]
    assert mixers["name"].iloc[0] == "mixer of layer 1, in the place of attention"
    with_heads = HEADS[~HEADS["layer"].isin([1, 3])]
    spec = charts.head_map(with_heads, "bank", mixers).to_dict()
    assert {1, 3} <= set(scale_of(spec, "y")["domain"])
    traces = FRAMES["positions"].assign(same_sense=0.1)
    mlps = charts.mlps_at_word(traces)
    at_word = traces.query("component == 'mlp_out' and pos == 'word'")
    assert mlps["net"].tolist() == pytest.approx((at_word["effect"] - 0.1).tolist())
    assert charts.mlps_at_word(traces.assign(same_sense=np.nan)).empty  # a net effect needs a donor
    large = mlps.assign(net=-1.87)
    for spec in (
        charts.head_map(HEADS, "bank", large).to_dict(),
        charts.head_maps(HEADS, large).to_dict(),
    ):
        assert scale_of(spec, "color")["domain"][-1] == pytest.approx(1.9)
        assert scale_of(spec, "x")["domain"] == [0, 1, 2, 3, "MLP"]
    rows = [row for rows in spec["datasets"].values() for row in rows if row.get("head") == "MLP"]
    assert {row["net"] for row in rows} == {-1.87}
    empty = charts.head_maps(HEADS[:0]).to_dict()
    assert "no map is drawn" in rows_of(empty, "note")[0]["note"]


def test_layers_without_a_rank_have_a_note_instead_of_an_effect_of_zero():
    swept = HEADS.assign(rank=HEADS["rank"].mask(HEADS["layer"] >= 3))
    spec = charts.head_map(swept, "bank").to_dict()
    assert "no effect possible" in rows_of(spec, "note")[0]["note"]
    assert "of 12 heads" in spec["description"] and scale_of(spec, "y")["domain"] == [0, 1, 2, 3]
    for picture in (spec, charts.separation_and_effect(swept, "bank").to_dict()):
        assert {row["layer"] for row in rows_of(picture, "auroc", "net")} == {0, 1, 2}


@pytest.mark.parametrize(
    ("layers", "heads", "cell"), [(4, 4, 36), (12, 12, 25), (30, 9, 14), (16, 32, 12)]
)
def test_cells_are_square_and_fit_the_map(layers, heads, cell):
    cells = pd.MultiIndex.from_product([range(layers), range(heads)], names=["layer", "head"])
    row = BANK.iloc[[0]].drop(columns=["layer", "head"])
    spec = charts.head_map(cells.to_frame(index=False).merge(row, how="cross"), "bank").to_dict()
    assert spec["width"] == spec["height"] == {"step": cell}
    axes = [(view["encoding"].get("y") or {}).get("axis") for view in parts(spec)]
    every_fifth = any("% 5" in (axis or {}).get("labelExpr", "") for axis in axes)
    numbers = any(view["encoding"].get("text", {}).get("field") == "mark" for view in parts(spec))
    assert every_fifth == (cell < 20) and numbers == (heads < 20 and layers < 30)


def framed(spec):
    """The cells that have a frame: they do more for the word."""
    views = [view for view in parts(spec) if view["mark"].get("strokeWidth") == 2.5]
    rows = [row for view in views for row in spec["datasets"][view["data"]["name"]]]
    return [(row["layer"], row["head"]) for row in rows]


def test_only_cells_that_do_more_for_the_word_and_resolvers_of_a_pair_have_a_frame():
    spec = charts.head_map(HEADS, "bank").to_dict()
    assert framed(spec) == [(0, 0), (3, 2)]
    assert spec["description"].endswith("more for it than for unambiguous nouns: L0H0, L3H2.")
    none = charts.head_map(HEADS.assign(comparison="same", verdict="mover"), "bank").to_dict()
    assert framed(none) == [] and none["description"].endswith("unambiguous nouns: none.")
    # Its mean is undecided.
    undecided = charts.head_map(HEADS.assign(comparison="undecided"), "bank").to_dict()
    assert framed(undecided) == [(0, 0), (3, 2)]
    assert set(HEADS["comparison"]) <= set(charts.BESIDE_NOUNS)
    mlps = FRAMES["mlps"]
    more = np.where(mlps["layer"] == 1, "more", "undecided")
    cells = charts.mlps_beside_nouns(mlps.assign(comparison=more, more=0.1))
    mine = mlps.query("word == 'mole' and layer == 1")
    cell = cells.query("word == 'mole' and layer == 1").iloc[0]
    assert cell["net"] == pytest.approx(mine["net"].mean()) and cell["comparison"] == "more"
    with_mlps = charts.head_map(HEADS.assign(comparison="", verdict="mover"), "mole", cells)
    assert framed(with_mlps.to_dict()) == [(1, "MLP")]


# --- depth, shares, points ------------------------------------------------------------------------


def test_a_sense_keeps_its_hue_in_every_pair():
    senses = charts.senses_of(FRAMES["words"].query("word == 'mole'"))
    assert senses == ["animal", "unit", "skin", "spy"]
    for pair in (("animal", "spy"), ("skin", "spy")):
        scale = scale_of(charts.depth_profile(FRAMES["depth"], "mole", pair).to_dict(), "color")
        assert scale["domain"] == list(pair)
        assert scale["range"] == [charts.sense_colour(senses, sense) for sense in pair]
    assert len({charts.sense_colour(senses, sense) for sense in senses}) == 4


def test_the_depth_profile_has_every_depth_of_the_pair_and_describes_its_start():
    spec = specification("depth profile")
    rows = rows_of(spec, "depth", "sense", "coordinate", "low", "high")
    mine = FRAMES["depth"].query("word == 'bank'")
    expected = mine.set_index(["depth", "sense"])["coordinate"].to_dict()
    assert {(row["depth"], row["sense"]): row["coordinate"] for row in rows} == expected
    assert "exactly 0 apart at the token embedding" in spec["description"]
    moved = FRAMES["depth"]["coordinate"] + 0.1 * (FRAMES["depth"]["sense"] == "river")
    shifted = charts.depth_profile(FRAMES["depth"].assign(coordinate=moved), "bank", PAIR)
    assert "exactly 0" not in shifted.to_dict()["description"]


def test_grouped_shares_keep_the_sum_of_every_pair_and_name_the_top_heads():
    grouped = charts.share_groups(FRAMES["shares"], "mole")
    sums = grouped.groupby(["sense_a", "sense_b"])["share"].sum()
    assert len(sums) == 6 and np.allclose(sums, 1, atol=1e-4)
    assert grouped.drop_duplicates("label")["mean"].sum() == pytest.approx(1, abs=1e-4)
    labels = {"token embedding", "position embedding", "MLP 0", "attention biases"}
    assert labels <= set(grouped["label"])
    grouped = charts.share_groups(FRAMES["shares"], "bank").set_index("label")["share"]
    own = FRAMES["shares"].query("word == 'bank'").set_index("component")["share"]
    heads = [label for label in grouped.index if label.startswith("L")]
    minor = [name for name in own.index if name.startswith("L") and name not in heads]
    assert heads[0] == "L0H0" and len(heads) == 6
    assert grouped["other heads"] == pytest.approx(own[minor].sum())


def test_names_of_points_do_not_overlap():
    rows = rows_of(charts.separation_and_effect(HEADS, "mole").to_dict(), "height", "name")
    heights = sorted(row["height"] for row in rows)
    reach = HEADS["net_high"].max() - HEADS["net_low"].min()
    assert len(heights) > 1 and min(np.diff(heights)) >= 0.05 * reach


# --- the evidence ---------------------------------------------------------------------------------


def test_curves_show_both_shares_with_intervals_every_random_set_and_the_smallest_set():
    spec = specification("sets")
    mine = CURVES.query("word == 'bank'")
    rows = pd.DataFrame(rows_of(spec, "added", "what", "value", "low", "high")).set_index("what")
    for label, name in (("leading heads", "faithfulness"), ("lost without them", "necessity")):
        for column in ("value", "low", "high"):
            expected = mine[name if column == "value" else f"{name}_{column}"].tolist()
            assert rows.loc[label, column].tolist() == pytest.approx(expected), (label, column)
    [chance] = [
        data for data in spec["datasets"].values() if {row.get("what") for row in data} == {"random sets"}
    ]  # fmt: skip
    expected = SETS.query("word == 'bank'")["faithfulness"].tolist()
    assert [row["value"] for row in chance] == pytest.approx(expected)
    [ring] = rows_of(spec, "note")
    smallest = mine.query("size == smallest").iloc[0]
    assert ring["size"] == smallest["size"]
    assert ring["value"] == pytest.approx(smallest["faithfulness"])
    assert ring["note"].startswith("1 head: ") and rows_of(spec, "at") == [{"at": 0.9}]
    never = charts.set_curves(CURVES.assign(smallest=None), SETS, "bank").to_dict()
    assert "No set of leading heads" in never["description"]
    wide = CURVES.assign(faithfulness_low=CURVES["faithfulness_low"] - 0.5)
    domain = scale_of(charts.set_curves(wide, SETS, "bank").to_dict(), "y")["domain"]
    assert domain[0] < wide["faithfulness_low"].min()


def test_controls_show_every_head_in_every_condition_and_name_the_resolvers():
    table = FRAMES["separation_controls"]
    spec = specification("controls")
    rows = max(spec["datasets"].values(), key=len)
    assert len(rows) == 16 * table["condition"].nunique()
    assert {row["name"] for row in rows if row["stands_out"]} == set(TOP)
    permuted = table["word"].eq("mole") & table["condition"].eq("labels permuted")
    low = [0.0] * 5 + [0.15] * 6 + [0.4] * 5  # the band is that of a typical head
    banded = table.assign(low=table["low"].where(~permuted), high=0.58)
    banded.loc[permuted, "low"] = low
    spec = charts.control_strips(banded, "mole").to_dict()
    bands = [rows for rows in spec["datasets"].values() if rows[0].get("low") is not None]
    assert [[(row["low"], row["high"]) for row in rows] for rows in bands] == [[(0.15, 0.58)]]
    assert scale_of(spec, "x")["domain"][0] < 0.15
    permuted_only = charts.control_strips(table[table["condition"] != "later token"], "mole")
    description = permuted_only.to_dict()["description"]
    assert "later token" not in description and "labels permuted" in description


def test_effects_by_distance_are_means_over_the_pairs_of_senses():
    rows = rows_of(specification("distances"), "distance", "net")
    mine = FRAMES["distances"].query(
        "word == 'mole' and layer == 0 and head == 0 and distance == 1"
    )
    effects = [row["net"] for row in rows if row["name"] == "L0H0" and row["distance"] == 1]
    assert len(mine) == 6 and effects == [pytest.approx(mine["net"].mean())]
    assert {row["name"] for row in rows} == set(TOP)


def test_bars_compare_parts_of_a_head_with_the_whole_and_omit_parts_that_were_not_swapped():
    rows = [row for row in rows_of(specification("head_parts"), "what") if row["name"] == "L0H0"]
    mine = FRAMES["head_parts"].query("word == 'mole' and layer == 0 and head == 0")
    expected = mine.mean(numeric_only=True)
    whole = HEADS.query("word == 'mole' and layer == 0 and head == 0")["swap"].item()
    assert {row["part"]: row["value"] for row in rows}["swap"] == pytest.approx(whole)
    for row in rows:
        if row["part"] != "swap":
            ends = (row["low"], row["value"], row["high"])
            names = (f"{row['part']}_low", row["part"], f"{row['part']}_high")
            assert ends == pytest.approx(tuple(expected[[*names]])), row["part"]
    kinds = ("pattern_only", "values_only", "cue_only", "other_only")
    unpaired = FRAMES["head_parts"].assign(**dict.fromkeys(kinds, np.nan))
    spec = charts.head_part_bars(unpaired, HEADS, "mole", TOP).to_dict()
    assert {row["part"] for row in rows_of(spec, "what", "value")} == {"swap", "ablation"}


# --- nouns in the word's place --------------------------------------------------------------------

CONTROLS = FRAMES["controls"]


def distance_of_nouns(controls, word="bank"):
    rows = charts.noun_distances(controls, word, read_at=2)
    return rows.query("what != @word and depth == 2").iloc[0]


def test_distances_are_roots_of_squared_gaps_in_units_of_the_words_gap():
    rows = charts.noun_distances(CONTROLS, "bank", read_at=2).set_index(["what", "depth"])
    word = CONTROLS.query("word == 'bank' and noun == 'bank'").set_index("depth")["gap"]
    own = rows.loc["bank", "distance"]
    assert own.tolist() == pytest.approx(np.sqrt(word / word[2]).tolist())
    nouns = CONTROLS.query("word == 'bank' and noun != 'bank' and depth == 2")
    share = nouns["general_share"]
    found = distance_of_nouns(CONTROLS)
    expected = np.sqrt([share.mean(), share.min(), share.max()]).tolist()
    assert found[["distance", "low", "high"]].tolist() == pytest.approx(expected, rel=1e-4)
    # A squared gap below zero is a distance below zero.
    noun = CONTROLS["noun"].eq(nouns["noun"].iloc[0]) & CONTROLS["word"].eq("bank")
    word_gap = CONTROLS.query("word == 'bank' and noun == 'bank' and depth == 2")["gap"].item()
    below = CONTROLS.assign(
        gap=CONTROLS["gap"].mask(noun, -0.09 * word_gap),
        general_share=CONTROLS["general_share"].mask(noun, -0.09),
    )
    assert distance_of_nouns(below)["low"] == pytest.approx(-0.3, abs=0.01)
    farthest = nouns.loc[share.idxmax(), "noun"]
    assert (found["furthest"], found["nouns"]) == (farthest, 63)
    # A noun with another article has fewer sentences; the unit is the word's gap in these.
    half = CONTROLS["gap"].where(CONTROLS["noun"] != "bank", 0.5 * CONTROLS["gap"])
    assert distance_of_nouns(CONTROLS.assign(gap=half))["distance"] == found["distance"]


def test_the_chart_of_nouns_marks_the_read_out_layer_and_describes_how_far_they_go():
    spec = specification("nouns")
    found = distance_of_nouns(CONTROLS)
    assert spec["description"] == (
        "Nouns in the place of bank: at its read-out layer its meanings are 1 apart, those of 63 "
        f"unambiguous nouns in its place {found['distance']:.2f} in the mean, from "
        f"{found['low']:.2f} to {found['high']:.2f} ({found['furthest']})."
    )
    assert rows_of(spec, "note") == [{"depth": 2, "note": "read-out"}]
    titles = [view["encoding"]["y"].get("title") for view in parts(spec) if "y" in view["encoding"]]
    linear = "type" not in scale_of(spec, "y")
    title = "distance" if linear else "distance, √ scale"
    assert [title, "(1 = bank at the read-out)"] in titles
