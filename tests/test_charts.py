"""Charts: the right numbers in the specification, scales that can be compared, titles, units and descriptions."""

import subprocess
import sys

import numpy as np
import pytest
from example_study import READ_AT, make_study

from probe import charts
from probe.charts import palette
from probe.errors import InputError

FRAMES = make_study().frames
HEADS = FRAMES["word_heads"]
CHARTS = {
    "depth profile": charts.depth_profile(FRAMES["depth"], "bank", ("river", "money"), read_at=3),
    "depth profiles": charts.depth_profiles(FRAMES["depth"], "mole"),
    "head map": charts.head_map(HEADS, "bank"),
    "head maps": charts.head_maps(HEADS),
    "separation": charts.separation_and_effect(HEADS, "bank"),
    "shares": charts.share_bars(FRAMES["shares"], "mole"),
    "contributions": charts.contributions(FRAMES["readings"], "bank", sentence=0, layer=0, head=2),
}


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


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_has_a_description_and_titled_axes(name):
    spec = CHARTS[name].to_dict()
    assert len(spec["description"]) > 20
    for view in parts(spec):
        for channel in ("x", "y"):
            encoded = view["encoding"].get(channel, {})
            inherits = "value" in encoded or encoded.get("field") in {"label", "at"}
            shared = [other["encoding"][channel] for other in parts(spec) if channel in other["encoding"]]
            assert inherits or encoded.get("title") or any(other.get("title") for other in shared), (name, channel)


@pytest.mark.parametrize("name", CHARTS)
def test_the_same_frame_gives_the_same_specification(name):
    again = {
        "depth profile": lambda: charts.depth_profile(FRAMES["depth"], "bank", ("river", "money"), read_at=3),
        "depth profiles": lambda: charts.depth_profiles(FRAMES["depth"], "mole"),
        "head map": lambda: charts.head_map(HEADS, "bank"),
        "head maps": lambda: charts.head_maps(HEADS),
        "separation": lambda: charts.separation_and_effect(HEADS, "bank"),
        "shares": lambda: charts.share_bars(FRAMES["shares"], "mole"),
        "contributions": lambda: charts.contributions(FRAMES["readings"], "bank", sentence=0, layer=0, head=2),
    }
    assert again[name]().to_dict() == CHARTS[name].to_dict()


def colour_scale(spec):
    return next(
        view["encoding"]["color"]["scale"] for view in parts(spec) if "scale" in view["encoding"].get("color", {})
    )


def test_the_map_is_symmetric_blank_at_zero_and_the_same_for_every_word():
    scales = [colour_scale(charts.head_map(HEADS, word).to_dict()) for word in ("bank", "mole")]
    assert scales[0] == scales[1]
    domain, colours = scales[0]["domain"], scales[0]["range"]
    assert domain[0] == -domain[-1] and domain[-1] >= HEADS["net"].abs().max()
    assert colours[1].endswith(", 0)") and colours[2].endswith(", 0)")


def test_the_map_draws_every_head_up_to_the_read_out_and_marks_those_whose_interval_excludes_zero():
    rows = rows_of(CHARTS["head map"].to_dict(), "layer", "head", "net", "clear")
    mine = HEADS[(HEADS["word"] == "bank") & (HEADS["layer"] < READ_AT)]
    assert [row["net"] for row in rows] == pytest.approx(mine["net"].tolist())
    clear = (mine["net_low"] > 0) | (mine["net_high"] < 0)
    assert [row["clear"] for row in rows] == clear.tolist()
    assert 0 < clear.sum() < len(mine)


def test_layers_after_the_read_out_are_said_to_have_no_effect_not_drawn_as_zero():
    spec = CHARTS["head map"].to_dict()
    assert "no effect possible" in rows_of(spec, "said")[0]["said"]
    layers = next(view["encoding"]["y"]["scale"]["domain"] for view in parts(spec) if "scale" in view["encoding"]["y"])
    assert layers == [0, 1, 2, 3]
    assert {row["layer"] for row in rows_of(spec, "net")} == {0, 1, 2}
    points = rows_of(CHARTS["separation"].to_dict(), "auroc", "net")
    assert {row["layer"] for row in points} == {0, 1, 2}


def test_heads_are_reached_word_by_word():
    kept = charts.reached(HEADS.assign(swap=HEADS["swap"].where((HEADS["word"] == "bank") | (HEADS["layer"] < 1), 0.0)))
    assert kept.groupby("word")["layer"].max().to_dict() == {"bank": 2, "mole": 0}


def test_a_clear_effect_that_rounds_to_nothing_is_a_dot():
    tiny = HEADS.assign(net=0.001, net_low=0.0005, net_high=0.002)
    marks = {row["mark"] for row in rows_of(charts.head_map(tiny, "bank").to_dict(), "mark")}
    assert marks == {"•"}


def test_maps_of_no_word_say_so():
    spec = charts.head_maps(HEADS[:0]).to_dict()
    assert "nothing to map" in rows_of(spec, "said")[0]["said"]


def test_a_sense_keeps_its_hue_in_every_pair():
    senses = charts.senses_of(FRAMES["words"][FRAMES["words"]["word"] == "mole"])
    assert senses == ["animal", "unit", "skin", "spy"]
    for pair in (("animal", "spy"), ("skin", "spy")):
        scale = colour_scale(charts.depth_profile(FRAMES["depth"], "mole", pair).to_dict())
        assert scale["domain"] == list(pair)
        assert scale["range"] == [charts.sense_colour(senses, sense) for sense in pair]
    assert len({charts.sense_colour(senses, sense) for sense in senses}) == 4


def test_the_depth_profile_has_every_depth_of_the_pair_and_says_where_it_starts():
    spec = CHARTS["depth profile"].to_dict()
    rows = rows_of(spec, "depth", "sense", "coordinate", "low", "high")
    assert {(row["depth"], row["sense"]) for row in rows} == {(d, s) for d in range(-1, 5) for s in ("river", "money")}
    assert "exactly 0 apart at the token embedding" in spec["description"]
    shifted = FRAMES["depth"].assign(coordinate=lambda frame: frame["coordinate"] + 0.1 * (frame["sense"] == "river"))
    assert "exactly 0" not in charts.depth_profile(shifted, "bank", ("river", "money")).to_dict()["description"]


def test_gathered_shares_keep_the_sum_of_every_pair():
    gathered = charts.share_groups(FRAMES["shares"], "mole")
    sums = gathered.groupby(["sense_a", "sense_b"])["share"].sum()
    assert len(sums) == 6
    assert np.allclose(sums, 1)
    means = gathered.drop_duplicates("label")
    assert means["mean"].sum() == pytest.approx(1)
    assert {"token embedding", "position embedding", "other heads", "MLP 0", "attention biases"} <= set(means["label"])


def test_the_leading_heads_are_shown_by_name_and_the_rest_together():
    gathered = charts.share_groups(FRAMES["shares"], "bank")
    mine = FRAMES["shares"][FRAMES["shares"]["word"] == "bank"].set_index("component")["share"]
    heads = [label for label in gathered["label"] if label.startswith("L")]
    assert heads[0] == "L0H2" and len(heads) == 6
    rest = gathered.set_index("label")["share"]["other heads"]
    others = [name for name in mine.index if name.startswith("L") and name not in heads]
    assert rest == pytest.approx(mine[others].sum())


def test_names_of_points_do_not_collide():
    rows = rows_of(charts.separation_and_effect(HEADS, "mole").to_dict(), "height", "name")
    heights = sorted(row["height"] for row in rows)
    reach = HEADS["net_high"].max() - HEADS["net_low"].min()
    assert len(heights) > 1 and min(np.diff(heights)) >= 0.05 * reach


def test_contributions_stand_in_the_order_of_the_tokens():
    spec = CHARTS["contributions"].to_dict()
    order = next(view["encoding"]["x"]["sort"] for view in parts(spec) if "sort" in view["encoding"].get("x", {}))
    assert [int(label.split("·")[0]) for label in order] == list(range(10))


def test_theming_replaces_colours_but_never_data():
    spec = {
        "config": {"labelColor": palette.INK},
        "datasets": {"d": [{"text": palette.INK}]},
        "layer": [{"mark": palette.LINE}],
    }
    themed = charts.themed(spec)
    assert themed["config"]["labelColor"] == "var(--ink)" and themed["layer"] == [{"mark": "var(--line)"}]
    assert themed["datasets"] == spec["datasets"]


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_every_chart_saves_the_same_bytes_twice(name, ending, tmp_path):
    first, second = (charts.save(CHARTS[name], tmp_path / f"{number}.{ending}").read_bytes() for number in (1, 2))
    assert first == second and len(first) > 2000
    assert first.startswith(b"\x89PNG" if ending == "png" else b"<svg")


def test_saving_where_nothing_can_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^Cannot write .*; choose a folder that can be written"):
        charts.save(CHARTS["head map"], tmp_path / "file" / "map.png")
    with pytest.raises(ValueError, match=r"\.png or \.svg, not as '\.gif'"):
        charts.save(CHARTS["head map"], tmp_path / "map.gif")


def test_charts_need_neither_torch_nor_a_model():
    code = "import sys, probe.charts; sys.exit(bool({'torch', 'transformers', 'transformer_lens'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
