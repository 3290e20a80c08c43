"""Charts: correct numbers in the specification, comparable scales, titles, units and
descriptions."""

import subprocess
import sys
from functools import cache
from itertools import cycle

import numpy as np
import pandas as pd
import pytest
from example_study import READ_AT, make_study
from seeds import mostly_campaign

from probe import charts
from probe.charts import palette
from probe.errors import InputError
from probe.verdicts import ORDER

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

FRAMES = make_study().frames
HEADS = FRAMES["word_heads"]
BANK, CURVES = (FRAMES[name].query("word == 'bank'") for name in ("word_heads", "curves"))
TOP_HEADS = ["L0H1", "L0H2"]
MAKE = {
    "depth profile": lambda: charts.depth_profile(
        FRAMES["depth"], "bank", ("river", "money"), read_at=3
    ),
    "depth profiles": lambda: charts.depth_profiles(FRAMES["depth"], "mole"),
    "head map": lambda: charts.head_map(HEADS, "bank"),
    "head maps": lambda: charts.head_maps(HEADS),
    "separation": lambda: charts.separation_and_effect(HEADS, "bank"),
    "shares": lambda: charts.share_bars(FRAMES["shares"], "mole"),
    "sets": lambda: charts.set_curves(FRAMES["curves"], FRAMES["random_sets"], "bank"),
    "controls": lambda: charts.control_strips(
        FRAMES["separation_controls"], "mole", marked=TOP_HEADS
    ),
    "distances": lambda: charts.distance_lines(FRAMES["distances"], "mole", TOP_HEADS),
    "head_parts": lambda: charts.head_part_bars(FRAMES["head_parts"], HEADS, "mole", TOP_HEADS),
}


@cache
def chart(name):
    return MAKE[name]()


@cache
def specification(name):
    return chart(name).to_dict()


def parts(spec):
    """Every view of a specification that has an encoding."""
    if isinstance(spec, dict):
        yield from ([spec] if "encoding" in spec else [])
        for name in ("layer", "hconcat", "concat"):
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


def test_mixers_are_a_separate_column_in_layers_without_heads():
    rows = [("bank", "a", "b", 1, 0.2), ("bank", "a", "c", 1, 0.4), ("bank", "a", "b", 3, -0.1)]
    frame = pd.DataFrame(rows, columns=["word", "sense_a", "sense_b", "layer", "net"])
    cells = charts.mixers_at_word(frame)
    assert cells["net"].tolist() == pytest.approx([0.3, -0.1])
    assert cells["head"].tolist() == [charts.MIXER] * 2 and cells["layer"].tolist() == [1, 3]
    assert cells["name"].tolist()[0] == "mixer of layer 1, in the place of attention"
    assert charts.mixers_at_word(frame[:0]).empty
    heads = FRAMES["word_heads"]
    with_heads = heads[~heads["layer"].isin([1, 3])]
    spec = charts.head_map(with_heads, "bank", cells).to_dict()
    domains = [
        layer["encoding"]["y"]["scale"]["domain"]
        for layer in spec["layer"]
        if "scale" in layer.get("encoding", {}).get("y", {})
    ]
    assert domains and all({1, 3} <= set(domain) for domain in domains)


def test_mlps_are_an_extra_column_of_the_map_on_the_scale_of_the_heads():
    traces = FRAMES["positions"].assign(same_sense=0.1)
    mlps = charts.mlps_at_word(traces)
    cells = traces.query("component == 'mlp_out' and pos == 'word'")
    assert mlps["net"].tolist() == pytest.approx((cells["effect"] - 0.1).tolist())
    large = mlps.assign(net=mlps["net"].where(mlps["layer"] != 1, -0.87))
    spec = charts.head_map(HEADS, "bank", large).to_dict()
    assert (
        scale_of(spec, "color")["domain"][-1]
        == pytest.approx(0.9)
        == charts.effect_limits(HEADS, large).before
    )
    datasets = spec["datasets"].values()
    [cells_with_mlps] = [rows for rows in datasets if any(row.get("head") == "MLP" for row in rows)]
    assert [
        (row["layer"], row["head"], row["net"]) for row in cells_with_mlps if row["head"] == "MLP"
    ] == [(row.layer, "MLP", row.net) for row in large[large["word"] == "bank"].itertuples()]
    columns = [
        view["encoding"]["x"]["scale"]["domain"]
        for view in parts(spec)
        if "scale" in view["encoding"]["x"]
    ]
    assert columns and all(column == [0, 1, 2, 3, "MLP"] for column in columns)
    assert (
        charts.head_map(HEADS, "bank", mlps[:0]).to_dict()
        == charts.head_map(HEADS, "bank").to_dict()
    )
    assert charts.mlps_at_word(FRAMES["positions"]).empty  # a net effect needs a same-sense donor


@pytest.mark.parametrize("name", MAKE)
def test_every_chart_has_a_description_and_titled_axes(name):
    spec = specification(name)
    assert len(spec["description"]) > 20
    numbers = spec["config"]["locale"]["number"]
    assert (numbers["percent"], numbers["minus"]) == ("\u202f%", "−")  # as in the text
    for view in parts(spec):
        for channel in ("x", "y"):
            encoded = view["encoding"].get(channel, {})
            inherits = "value" in encoded or encoded.get("field") in {"label", "at"}
            shared = [
                view["encoding"][channel] for view in parts(spec) if channel in view["encoding"]
            ]
            assert inherits or encoded.get("title") or any(view.get("title") for view in shared), (
                name,
                channel,
            )


def test_the_map_is_symmetric_blank_at_zero_and_the_same_for_every_word():
    scales = [
        scale_of(charts.head_map(HEADS, word).to_dict(), "color") for word in ("bank", "mole")
    ]
    assert scales[0] == scales[1]
    domain, colours = scales[0]["domain"], scales[0]["range"]
    assert domain[0] == -domain[-1] and domain[-1] >= HEADS["net"].abs().max()
    assert colours[1].endswith(", 0)") and colours[2].endswith(", 0)")


def test_the_map_draws_every_head_and_marks_intervals_that_exclude_zero():
    rows = rows_of(specification("head map"), "layer", "head", "net", "clear")
    assert [row["net"] for row in rows] == pytest.approx(BANK["net"].tolist())
    clear = (BANK["net_low"] > 0) | (BANK["net_high"] < 0)
    assert [row["clear"] for row in rows] == clear.tolist()
    assert 0 < clear.sum() < len(BANK)


def test_layers_without_a_rank_have_a_note_instead_of_an_effect_of_zero():
    swept = HEADS.assign(rank=HEADS["rank"].mask(HEADS["layer"] >= READ_AT))
    spec = charts.head_map(swept, "bank").to_dict()
    assert (
        "no effect possible" in rows_of(spec, "note")[0]["note"]
        and "of 12 heads" in spec["description"]
    )
    assert scale_of(spec, "y")["domain"] == [0, 1, 2, 3]
    for picture in (spec, charts.separation_and_effect(swept, "bank").to_dict()):
        assert {row["layer"] for row in rows_of(picture, "auroc", "net")} == {0, 1, 2}
    assert not any("note" in rows[0] for rows in specification("head map")["datasets"].values())


def test_a_clear_effect_that_rounds_to_zero_is_a_dot():
    tiny = HEADS.assign(net=0.001, net_low=0.0005, net_high=0.002)
    marks = {row["mark"] for row in rows_of(charts.head_map(tiny, "bank").to_dict(), "mark")}
    assert marks == {"•"}


def test_maps_side_by_side_have_a_column_of_mlps_on_the_same_scale():
    mlps = charts.mlps_beside_nouns(FRAMES["mlps"].assign(net=0.87))
    spec = charts.head_maps(HEADS, mlps).to_dict()
    assert scale_of(spec, "color")["domain"][-1] == pytest.approx(0.9)
    domains = [
        view["encoding"]["x"]["scale"]["domain"]
        for view in parts(spec)
        if "scale" in view["encoding"]["x"]
    ]
    assert domains and all(domain == [0, 1, 2, 3, "MLP"] for domain in domains)


def test_an_empty_table_gives_a_note_instead_of_maps():
    spec = charts.head_maps(HEADS[:0]).to_dict()
    assert "no map is drawn" in rows_of(spec, "note")[0]["note"]


def test_a_sense_keeps_its_hue_in_every_pair():
    senses = charts.senses_of(FRAMES["words"][FRAMES["words"]["word"] == "mole"])
    assert senses == ["animal", "unit", "skin", "spy"]
    for pair in (("animal", "spy"), ("skin", "spy")):
        scale = scale_of(charts.depth_profile(FRAMES["depth"], "mole", pair).to_dict(), "color")
        assert scale["domain"] == list(pair)
        assert scale["range"] == [charts.sense_colour(senses, sense) for sense in pair]
    assert len({charts.sense_colour(senses, sense) for sense in senses}) == 4


def test_the_depth_profile_has_every_depth_of_the_pair_and_describes_its_start():
    spec = specification("depth profile")
    rows = rows_of(spec, "depth", "sense", "coordinate", "low", "high")
    assert {(row["depth"], row["sense"]) for row in rows} == {
        (d, s) for d in range(-1, 5) for s in ("river", "money")
    }
    assert "exactly 0 apart at the token embedding" in spec["description"]
    shifted = FRAMES["depth"].assign(
        coordinate=lambda frame: frame["coordinate"] + 0.1 * (frame["sense"] == "river")
    )
    assert (
        "exactly 0"
        not in charts.depth_profile(shifted, "bank", ("river", "money")).to_dict()["description"]
    )


def test_grouped_shares_keep_the_sum_of_every_pair():
    grouped = charts.share_groups(FRAMES["shares"], "mole")
    sums = grouped.groupby(["sense_a", "sense_b"])["share"].sum()
    assert len(sums) == 6
    assert np.allclose(sums, 1)
    means = grouped.drop_duplicates("label")
    assert means["mean"].sum() == pytest.approx(1)
    assert {
        "token embedding",
        "position embedding",
        "other heads",
        "MLP 0",
        "attention biases",
    } <= set(means["label"])


def test_the_top_heads_have_their_names_and_the_other_heads_one_bar():
    grouped = charts.share_groups(FRAMES["shares"], "bank")
    mine = FRAMES["shares"][FRAMES["shares"]["word"] == "bank"].set_index("component")["share"]
    heads = [label for label in grouped["label"] if label.startswith("L")]
    assert heads[0] == "L0H2" and len(heads) == 6
    remainder = grouped.set_index("label")["share"]["other heads"]
    minor_heads = [name for name in mine.index if name.startswith("L") and name not in heads]
    assert remainder == pytest.approx(mine[minor_heads].sum())


def test_names_of_points_do_not_overlap():
    rows = rows_of(charts.separation_and_effect(HEADS, "mole").to_dict(), "height", "name")
    heights = sorted(row["height"] for row in rows)
    reach = HEADS["net_high"].max() - HEADS["net_low"].min()
    assert len(heights) > 1 and min(np.diff(heights)) >= 0.05 * reach


def test_the_map_marks_every_verdict_and_its_description_lists_the_resolvers():
    spec = specification("head map")
    assert [row["verdict"] for row in rows_of(spec, "net", "verdict")] == BANK["verdict"].tolist()
    marks = next(view for view in parts(spec) if "shape" in view["encoding"])
    assert {"separates", "none"} <= set(HEADS["verdict"])  # these have no mark
    kinds = ["resolver", "opposes"]
    assert marks["encoding"]["shape"]["scale"] == {
        "domain": kinds,
        "range": [charts.MARKS[name] for name in kinds],
    }
    assert {"field": "verdict", "oneOf": kinds} in [step["filter"] for step in marks["transform"]]
    assert "Resolvers: L0H2." in spec["description"]
    no_resolver = charts.head_map(HEADS.assign(verdict="none"), "bank").to_dict()
    assert "Resolvers: none." in no_resolver["description"]
    assert not any("shape" in view["encoding"] for view in parts(no_resolver))


def test_every_verdict_has_a_meaning_and_one_distinct_shape_for_all_words():
    assert list(charts.MARKS) == list(ORDER)
    assert len(set(charts.MARKS.values())) == len(ORDER)
    scales = [
        scale_of(charts.separation_and_effect(HEADS, word).to_dict(), "shape")
        for word in ("bank", "mole")
    ]
    assert scales[0] == scales[1]
    shapes = dict(zip(scales[0]["domain"], scales[0]["range"], strict=True))
    assert shapes == {name: charts.MARKS[name] for name in shapes} and set(shapes) == set(
        HEADS["verdict"]
    )


@pytest.mark.parametrize(
    ("layers", "heads", "cell"), [(4, 4, 36), (12, 12, 25), (30, 9, 14), (16, 32, 12)]
)
def test_cells_are_square_and_fit_the_map(layers, heads, cell):
    positions = [(layer, head) for layer in range(layers) for head in range(heads)]
    row = BANK.iloc[[0]].drop(columns=["layer", "head"])
    model = row.merge(pd.DataFrame(positions, columns=["layer", "head"]), how="cross")
    spec = charts.head_map(model, "bank").to_dict()
    assert spec["width"] == spec["height"] == {"step": cell}


def test_layers_read_after_the_last_are_a_second_panel_with_its_own_scale():
    last = HEADS["layer"].max()
    weak = HEADS.assign(net=HEADS["net"].where(HEADS["layer"] < last, 0.02))
    spec = charts.head_map(weak, "bank", read_at={"bank": last, "mole": last}).to_dict()
    layers = [scale_of(panel, "y")["domain"] for panel in spec["vconcat"]]
    assert layers == [list(range(last)), [last]]
    ends = [scale_of(panel, "color")["domain"][-1] for panel in spec["vconcat"]]
    assert ends == list(charts.effect_limits(weak, read_at={"bank": last, "mole": last}))
    assert ends[1] == 0.1 < ends[0]
    assert "vconcat" not in charts.head_map(weak, "bank", read_at={"bank": last + 1}).to_dict()


def test_the_scales_of_two_panels_are_the_same_for_every_word_whatever_its_read_out_layer():
    read_at = {"bank": 1, "mole": 2}
    specs = [charts.head_map(HEADS, word, read_at=read_at).to_dict() for word in read_at]
    scales = [[scale_of(panel, "color") for panel in spec["vconcat"]] for spec in specs]
    assert scales[0] == scales[1]


def test_the_layer_from_which_heads_are_read_at_the_end_is_on_the_second_scale():
    nets = [0.31, 0.52, 0.74]  # of layers 0 to 2, the last two of which are read at the end
    rows = pd.DataFrame({"word": "bank", "layer": range(3), "net": nets, "verdict": "mover"})
    assert charts.effect_limits(rows, read_at={"bank": 1}) == pytest.approx((0.4, 0.8))
    assert charts.effect_limits(rows, read_at={"bank": 2}) == pytest.approx((0.6, 0.8))
    assert charts.effect_limits(rows) == pytest.approx((0.8, 0.1))
    of_survey = rows.rename(columns={"net": "effect"}).assign(read_depth=1, p=0.01, effect_low=0.1)
    assert charts.survey_limits(of_survey) == pytest.approx((0.4, 0.8))


def test_a_head_without_a_verdict_does_not_set_the_scale():
    rows = pd.DataFrame(
        {"word": "spring", "layer": 0, "net": [0.55, 0.21], "verdict": ["none", "mover"]}
    )
    assert charts.effect_limits(rows) == pytest.approx((0.3, 0.1))
    mlps = pd.DataFrame({"word": ["spring"], "layer": [0], "net": [0.44]})
    assert charts.effect_limits(rows, mlps) == pytest.approx((0.5, 0.1))
    of_survey = pd.DataFrame(
        {"layer": 0, "effect": [0.55, 0.21], "effect_low": [-0.11, 0.1], "p": [0.97, 0.01]}
    )
    assert charts.survey_limits(of_survey.assign(read_depth=1)) == pytest.approx((0.3, 0.1))


def test_numbers_that_json_lacks_are_left_empty_in_the_data_of_a_chart():
    rows = pd.DataFrame({"p": [0.5, np.nan, np.inf, -np.inf], "name": ["a", None, "c", "d"]})
    assert palette.records(rows) == [
        {"p": 0.5, "name": "a"},
        {"p": None, "name": None},
        {"p": None, "name": "c"},
        {"p": None, "name": "d"},
    ]


def test_a_dense_map_has_a_number_at_every_fifth_layer_and_at_every_head():
    positions = [(layer, head) for layer in range(30) for head in range(9)]
    row = BANK.iloc[[0]].drop(columns=["layer", "head"])
    deep = row.merge(pd.DataFrame(positions, columns=["layer", "head"]), how="cross")
    labels = {
        channel: view["encoding"][channel]["axis"].get("labelExpr")
        for view in parts(charts.head_map(deep, "bank").to_dict())
        for channel in ("x", "y")
        if (view["encoding"].get(channel) or {}).get("axis")
    }
    assert labels["x"] is None and "% 5" in labels["y"]


def test_a_wide_model_has_marks_and_no_numbers():
    wide = pd.concat([BANK.assign(head=BANK["head"] + 4 * n) for n in range(5)])
    spec = charts.head_map(wide, "bank").to_dict()
    assert any("shape" in view["encoding"] for view in parts(spec))
    assert not any(view["encoding"].get("text", {}).get("field") == "mark" for view in parts(spec))


def test_curves_show_both_shares_of_every_size_with_intervals_and_every_random_set():
    spec = specification("sets")
    rows = pd.DataFrame(rows_of(spec, "added", "what", "value", "low", "high")).set_index("what")
    for label, name in (("leading heads", "faithfulness"), ("lost without them", "necessity")):
        for column in ("value", "low", "high"):
            expected = CURVES[name if column == "value" else f"{name}_{column}"]
            assert rows.loc[label, column].tolist() == pytest.approx(expected.tolist()), (
                label,
                column,
            )
    assert any(
        view["mark"]["type"] == "area" and view["encoding"]["y2"]["field"] == "high"
        for view in parts(spec)
    )
    random_rows = next(
        data
        for data in spec["datasets"].values()
        if {row.get("what") for row in data} == {"random sets"}
    )
    chance = FRAMES["random_sets"][FRAMES["random_sets"]["word"] == "bank"]
    assert [row["value"] for row in random_rows] == pytest.approx(chance["faithfulness"].tolist())


def test_the_smallest_set_has_a_ring_and_the_line_is_at_nine_tenths():
    spec = specification("sets")
    (ring,) = rows_of(spec, "note")
    mine = CURVES.query("size == smallest")
    assert (ring["size"], ring["value"]) == (
        mine["size"].item(),
        pytest.approx(mine["faithfulness"].item()),
    )
    assert ring["note"].startswith("2 heads: ") and rows_of(spec, "at") == [{"at": 0.9}]
    never = FRAMES["curves"].assign(smallest=None)
    assert (
        "No set of leading heads"
        in charts.set_curves(never, FRAMES["random_sets"], "bank").to_dict()["description"]
    )


def test_axes_of_evidence_are_the_same_for_every_word():
    for make, channel in (
        (lambda word: charts.set_curves(FRAMES["curves"], FRAMES["random_sets"], word), "y"),
        (lambda word: charts.control_strips(FRAMES["separation_controls"], word), "x"),
        (lambda word: charts.distance_lines(FRAMES["distances"], word, TOP_HEADS), "y"),
    ):
        assert scale_of(make("bank").to_dict(), channel) == scale_of(
            make("mole").to_dict(), channel
        )


def test_controls_show_every_head_in_every_condition_and_name_the_resolvers():
    rows = max(specification("controls")["datasets"].values(), key=len)
    assert len(rows) == 4 * 16 and {row["name"] for row in rows if row["stands_out"]} == set(
        TOP_HEADS
    )
    band = [
        rows
        for rows in specification("controls")["datasets"].values()
        if rows[0].get("low") is not None
    ]
    assert [[row["condition"] for row in rows] for rows in band] == [["labels permuted"]]
    assert (band[0][0]["low"], band[0][0]["high"]) == (0.4, 0.58)
    without = FRAMES["separation_controls"][
        FRAMES["separation_controls"]["condition"] != "later token"
    ]
    spec = charts.control_strips(without, "mole").to_dict()
    assert "later token" not in spec["description"] and "labels permuted" in spec["description"]


def test_the_band_of_permutations_is_a_typical_heads_and_lies_within_the_axis():
    frame = FRAMES["separation_controls"].copy()
    mine = (frame["word"] == "mole") & (frame["condition"] == "labels permuted")
    frame.loc[mine, "low"] = [0.0] * 5 + [0.15] * 6 + [0.4] * 5
    spec = charts.control_strips(frame, "mole").to_dict()
    [[band]] = [rows for rows in spec["datasets"].values() if rows[0].get("low") is not None]
    assert (band["low"], band["high"]) == (0.15, 0.58)
    assert scale_of(spec, "x")["domain"][0] < 0.15
    assert scale_of(charts.control_strips(frame, "bank").to_dict(), "x") == scale_of(spec, "x")


def test_effects_by_distance_are_means_over_the_pairs_of_senses():
    rows = rows_of(specification("distances"), "distance", "net")
    mine = FRAMES["distances"].query(
        "word == 'mole' and layer == 0 and head == 1 and distance == 2"
    )
    assert len(mine) == 5
    effects = [row["net"] for row in rows if row["name"] == "L0H1" and row["distance"] == 2]
    assert effects == [pytest.approx(mine["net"].mean())]
    assert {row["name"] for row in rows} == set(TOP_HEADS)


def test_bars_compare_parts_of_a_head_with_the_whole_and_omit_parts_that_were_not_swapped():
    rows = rows_of(specification("head_parts"), "what", "value")
    whole = HEADS.query("word == 'mole' and layer == 0 and head == 1")["swap"].item()
    first = {row["part"]: row["value"] for row in rows if row["name"] == "L0H1"}
    parts = {
        "swap": 1,
        "pattern_only": 0.1,
        "values_only": 0.9,
        "cue_only": 0.95,
        "other_only": 0.03,
        "ablation": 0.8,
    }
    assert first == {name: pytest.approx(share * whole) for name, share in parts.items()}
    ends = {row["part"]: (row["low"], row["high"]) for row in rows if row["name"] == "L0H1"}
    assert ends["cue_only"] == pytest.approx((0.95 * whole - 0.04, 0.95 * whole + 0.03))
    assert ends["swap"][0] < whole < ends["swap"][1]
    unpaired = FRAMES["head_parts"].assign(**dict.fromkeys(list(parts)[1:5], np.nan))
    spec = charts.head_part_bars(unpaired, HEADS, "mole", TOP_HEADS).to_dict()
    assert {row["part"] for row in rows_of(spec, "what", "value")} == {"swap", "ablation"}


def test_a_theme_replaces_colours_but_never_data():
    spec = {
        "config": {"labelColor": palette.INK},
        "datasets": {"d": [{"text": palette.INK}]},
        "layer": [{"mark": palette.LINE}],
    }
    themed = charts.themed(spec)
    assert themed["config"]["labelColor"] == "var(--ink)" and themed["layer"] == [
        {"mark": "var(--line)"}
    ]
    assert themed["datasets"] == spec["datasets"]


@pytest.mark.parametrize(
    ("name", "ending"), mostly_campaign(zip(MAKE, cycle(("png", "svg")), strict=False), here=2)
)
def test_every_chart_saves_the_same_bytes_twice(name, ending, tmp_path):
    again = chart(name), MAKE[name]()
    first, second = (
        charts.save(picture, tmp_path / f"{n}.{ending}").read_bytes()
        for n, picture in enumerate(again)
    )
    assert first == second and len(first) > 2000
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<svg")


def test_saving_to_an_unwritable_path_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^Cannot write .*. Choose another folder"):
        charts.save(chart("head map"), tmp_path / "file" / "map.png")
    with pytest.raises(ValueError, match=r"its name ends in '\.gif', expected \.png or \.svg\."):
        charts.save(chart("head map"), tmp_path / "map.gif")


def test_charts_and_the_words_for_writes_import_neither_torch_nor_a_model():
    heavy = "{'torch', 'transformers', 'transformer_lens'} & set(sys.modules)"
    code = f"import sys, probe.charts.writes; from probe.charts import *; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
