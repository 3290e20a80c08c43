"""Colours and type of every chart and page; a chart as a file, as a notebook's picture, with data
that a page replaces.

Decisions that bind every picture: effects are drawn on one diverging scale (violet with, ochre
against), symmetric around zero, and zero is blank; a sense keeps its hue, in order of first
appearance, everywhere. Both hold on white and on near-black. Text and lines use INK, MUTED and LINE
only; these and the hues of senses a page may replace by its theme's (`themed`).

Channels are given as altair's objects: for a bare string it goes through its whole schema.

PNG files are packed again: the renderer packs its pictures quickly and loosely, with a transparency
that they do not use.
"""

import base64
import re
from collections.abc import Callable, Sequence
from html import escape
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import numpy as np
import pandas as pd
import vl_convert
from PIL import Image, UnidentifiedImageError

from probe.provenance import write_atomically
from probe.stats.numbers import NARROW

Chart = TypeVar("Chart")  # any kind of altair chart

INK = "#1c2430"
MUTED = "#5a6472"
LINE = "#cfd5dc"
WITH = "#7a50c8"  # effects toward what is expected
AGAINST = "#b8741a"
# At least 3:1 on white, and the same hues at least 4.5:1 on near-black.
SENSES = ("#0072b2", "#d55e00", "#009e73", "#c8609b", "#3f95d0", "#b58900")
SENSES_DARK = ("#3f9bdf", "#ee7f33", "#20b98c", "#dd7cb2", "#9bd2f2", "#cfa226")
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)"}
THEMED |= {hue: f"var(--s{number})" for number, hue in enumerate(SENSES)}
NUMBERS = alt.NumberLocale(
    currency=["", ""], decimal=".", grouping=[3], minus="−", percent=f"{NARROW}%", thousands=NARROW
)
DATA = ("data", "datasets")
# Of shares: white at 0, violet at 1
WEIGHTS = alt.Scale(domain=[0, 1], range=["#ffffff", WITH], interpolate="rgb")
PNG_SCALE = 2  # pixels of a PNG for one of the drawing, for dense screens
MOST_INDEXED = 256  # colours that an indexed PNG can have
DASHES = [2, 3]
NUMBER_WIDTH = 48  # pixels of a number such as −100.0 % and the space before it
TEXT = {"align": "left", "fontSize": 11, "color": INK}


def senses_of(rows: pd.DataFrame) -> list[str]:
    """The senses of a word in the order that fixes their hues: as they first appear in its
    pairs."""
    return list(dict.fromkeys(rows[["sense_a", "sense_b"]].to_numpy().ravel().tolist()))


def sense_colour(senses: Sequence[str], sense: str) -> str:
    """The hue of a sense among the senses of its word."""
    return SENSES[list(senses).index(sense) % len(SENSES)]


def effect_scale(limit: float, *, signed: bool = True) -> alt.Scale:
    """The diverging scale of effects: symmetric, transparent at zero, so that zero is blank on any
    background. Only its upper half for numbers without a sign."""
    # The hue jumps at zero, where both are transparent; in between only the opacity changes.
    stops = [_rgba(AGAINST, 1), _rgba(AGAINST, 0), _rgba(WITH, 0), _rgba(WITH, 1)]
    domain = [-limit, -1e-9, 1e-9, limit]
    half = 0 if signed else 2
    return alt.Scale(
        type="linear",
        domain=domain[half:],
        range=stops[half:],
        interpolate="rgb",
        clamp=True,
    )


def _rgba(colour: str, opacity: int) -> str:
    """A colour written #rrggbb with an opacity, as CSS."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def layer_height(layers: int) -> int:
    """The height in pixels of a picture with a row for each of so many layers."""
    if layers <= 6:
        return 30 * layers
    return layers * (22 if layers <= 24 else 14)


def finish(chart: Chart, description: str, *, height: Any = None) -> Chart:
    """The chart with its description (read aloud in place of the picture), the look that all charts
    share, and its rows as they are written.

    With `height`, in pixels or in pixels a step, it is as wide as its container.
    """
    titles = {"titleColor": MUTED, "titleFontWeight": "normal", "titleFontSize": 11}
    lines = {"domainColor": LINE, "tickColor": LINE, "gridColor": LINE, "gridOpacity": 0.6}
    # Altair's methods `properties` and `configure` would each copy all layers with their parts.
    whole: Any = chart
    if height is not None:
        whole.width = "container"
        whole.height = height
    whole.description = description
    whole.background = "transparent"
    whole.config = alt.Config(
        font=FONT,
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(labelColor=MUTED, labelFontSize=11, **titles, **lines),
        legend=alt.LegendConfig(labelColor=INK, labelFontSize=12, titleLimit=400, **titles),
        locale=alt.Locale(number=NUMBERS),
        title=alt.TitleConfig(color=INK, fontSize=13, anchor="start"),
    )
    _write_rows(chart)
    return chart


def _write_rows(chart: Any) -> None:
    """Replace the tables of a chart and its parts by their rows, which altair takes as they are: of
    a table it refuses more than 5,000 rows, and a large model has more heads."""
    if isinstance(chart.data, pd.DataFrame):
        chart.data = alt.InlineData(values=records(chart.data))
    for parts in ("layer", "hconcat", "vconcat", "concat"):
        for part in getattr(chart, parts, ()):
            _write_rows(part)


def themed(spec: dict[str, Any]) -> dict[str, Any]:
    """A chart's specification with INK, MUTED, LINE and SENSES as the page's CSS variables; its
    data are left as they are."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: part if key in DATA else walk(part) for key, part in value.items()}
        if isinstance(value, list):
            return [walk(part) for part in value]
        return THEMED.get(value, value) if isinstance(value, str) else value

    return dict(walk(spec))


def save(chart: Any, path: str | PathLike[str], *, width: int = 420) -> Path:
    """Write a chart as a PNG or SVG on white, without a browser or a network; the same bytes with
    the same versions.

    `width` in pixels is for charts that otherwise fill their container. Raises InputError for a
    file that cannot be written and ValueError for another ending.
    """
    ending = Path(path).suffix
    if ending not in (".png", ".svg"):
        raise ValueError(
            f"Cannot save a chart as {str(path)!r}: its name ends in {ending!r}, expected .png or "
            ".svg. Give one of these."
        )
    draw: Callable[[dict[str, Any], int], str | bytes] = _png if ending == ".png" else _svg
    return write_atomically(path, draw(chart.to_dict(), width))


def as_pictures(*, width: int = 420) -> None:
    """From now on a notebook shows altair's charts as SVG pictures: no network and no script, and
    so nothing on hover.

    `width` in pixels is for charts that otherwise fill their container.
    `altair.renderers.enable("default")` takes it back.
    """

    def picture(spec: dict[str, Any], **options: Any) -> dict[str, str]:
        return {
            "image/svg+xml": _svg(spec, width),
            "text/plain": spec.get("description", "a chart"),
        }

    alt.renderers.register("picture", picture)
    alt.renderers.enable("picture")


def image(chart: Any, *, width: int = 420) -> str:
    """A chart as an HTML image that embeds its PNG: no network and no script; its description is
    read aloud.

    An image, because notebooks that do not trust a file drop drawings from its HTML and keep
    images.
    """
    spec = chart.to_dict()
    png = _png(spec, width)
    size = Image.open(BytesIO(png)).size
    wide = size[0] // PNG_SCALE
    high = size[1] // PNG_SCALE
    description = escape(spec["description"])
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<img alt="{description}" width="{wide}" height="{high}" src="{source}">'


def _on_white(spec: dict[str, Any], width: int) -> dict[str, Any]:
    size = {"width": width} if spec.get("width") == "container" else {}
    return spec | {"background": "white"} | size


def _png(spec: dict[str, Any], width: int) -> bytes:
    return repacked(vl_convert.vegalite_to_png(_on_white(spec, width), scale=PNG_SCALE))


def svg(chart: Any, *, width: int = 420) -> str:
    """A chart as SVG on white, as `save` writes it."""
    return _svg(chart.to_dict(), width)


def _svg(spec: dict[str, Any], width: int) -> str:
    """Vega numbers gradients through the life of a process; here they count from 0 in every
    picture."""
    svg = vl_convert.vegalite_to_svg(_on_white(spec, width))
    gradients = dict.fromkeys(re.findall(r"gradient_\d+", svg))
    names = {name: f"gradient_{number}" for number, name in enumerate(gradients)}
    return re.sub(r"gradient_\d+", lambda match: names[match[0]], svg)


def repacked(png: bytes) -> bytes:
    """The same picture in about a quarter of the bytes: as indexed colours where 256 are enough,
    otherwise as RGB.

    A picture that is not opaque is returned unchanged. Raises ValueError for bytes of another
    format.
    """
    try:
        picture = Image.open(BytesIO(png), formats=["PNG"]).convert("RGBA")
    except UnidentifiedImageError:
        raise ValueError(
            f"Cannot repack a PNG: got bytes that begin with {png[:8]!r}, expected those of a PNG. "
            "Save the picture as PNG first."
        ) from None
    if picture.getchannel("A").getextrema() != (255, 255):
        return png
    packed = BytesIO()
    density = {"dpi": picture.info["dpi"]} if "dpi" in picture.info else {}
    _fewest_bytes(picture.convert("RGB")).save(packed, "PNG", optimize=True, **density)
    return packed.getvalue()


def _fewest_bytes(picture: Image.Image) -> Image.Image:
    """The picture with indexed colours where MOST_INDEXED are enough, without any change of them.

    Not by Pillow's quantizing, which chooses colours that may be near ones.
    """
    if picture.getcolors(MOST_INDEXED) is None:
        return picture
    # A colour as one number, because numbers are sorted faster than rows of three.
    codes = np.asarray(picture) @ np.array([1 << 16, 1 << 8, 1])
    colours, index = np.unique(codes, return_inverse=True)
    indexed = Image.fromarray(index.reshape(codes.shape).astype(np.uint8))
    indexed.putpalette(b"".join(int(colour).to_bytes(3) for colour in colours))
    return indexed


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table for JSON; None where a value is missing or not finite."""
    values = rows.to_numpy(dtype=object, copy=True)
    values[pd.isna(values)] = None
    values[(values == np.inf) | (values == -np.inf)] = None
    names = [*rows]
    return [dict(zip(names, row, strict=True)) for row in values.tolist()]


def tips(*lines: str) -> list[alt.Tooltip]:
    """Tooltip lines, each written "field:type", "field:type | title" or "field:type | title |
    format"."""
    return [_tip(line) for line in lines]


def _tip(line: str) -> alt.Tooltip:
    parts = [part.strip() for part in line.split("|")]
    options = dict(zip(("shorthand", "title", "format"), parts, strict=False))
    return alt.Tooltip(**{name: text for name, text in options.items() if text})


def by_value(
    channel: type,
    field: str,
    values: Sequence[Any],
    looks: Sequence[Any],
    legend: Any = None,
    title: Any = None,
) -> Any:
    """A colour, shape, size or dash channel in which each of `values` has its look."""
    return channel(
        field, title=title, scale=alt.Scale(domain=list(values), range=list(looks)), legend=legend
    )


def either(channel: type, test: str, yes: Any, no: Any) -> Any:
    """A channel of fixed values: `yes` where the test holds of `datum`, `no` elsewhere."""
    return channel(no, condition={"test": test, "value": yes})


def bare_axis(**options: Any) -> alt.Axis:
    """An axis of names: labels only, without ticks or line."""
    return alt.Axis(ticks=False, domain=False, **options)


def token_axis(**options: Any) -> alt.Axis:
    """An axis of tokens: every one of them is written, long ones are cut."""
    return bare_axis(labelOverlap=False, **options)


def share_axis(count: int = 5, **options: Any) -> alt.Axis:
    """An axis of shares, in percent."""
    return alt.Axis(format=".0%", tickCount=count, **options)


def rank_axis(last: float) -> alt.Axis:
    """A logarithmic axis of ranks from 1 to the last."""
    return alt.Axis(values=[10**power for power in range(6) if 10**power <= last], format="d")


def by_depth(depths: pd.Series, *, entering: bool = False, padding: Any = 8, **axis: Any) -> alt.X:
    """Depth along: -1 is the token embedding, 0 what enters the first block, d is after layer d -
    1; deep models label some layers. `entering`: d is what enters layer d, the last depth what
    leaves the last layer.
    """
    first = int(depths.min())
    last = int(depths.max())
    if entering:
        title = "entering layer"
        labels = f"datum.value < 0 ? 'token' : datum.value < {last} ? datum.value : 'end'"
    else:
        title = "after layer"
        labels = (
            "datum.value < 0 ? 'token' : datum.value < 1 ? ['', '+ position'] : datum.value - 1"
        )
    if last <= 6:
        step = 1
    elif last <= 16:
        step = 2
    else:
        step = -(-last // 8)  # deep models: about eight labels
    # In deep models the names of the first two depths would overlap.
    starts = [first] if entering and last > 16 else range(first, 1)
    ticks = sorted({*starts, *range(last, 0, -step)})
    ruler = alt.Axis(values=ticks, labelExpr=labels, grid=False, labelOverlap=False, **axis)
    return alt.X("depth:Q", title=title, axis=ruler, scale=alt.Scale(nice=False, padding=padding))


def line_legend(**options: Any) -> alt.Legend:
    """A legend without a title that shows strokes."""
    return alt.Legend(**{"title": None, "symbolType": "stroke", "symbolStrokeWidth": 3} | options)


def heading(text: str) -> alt.TitleParams:
    """The title of one picture of several."""
    return alt.TitleParams(text, fontSize=12, fontWeight="normal", color=INK)


def reference_line(channel: str, at: float, *, dash: bool = True) -> alt.Chart:
    """A line across the picture at a value of `channel` (x or y)."""
    mark = alt.Chart(pd.DataFrame({"at": [at]})).mark_rule(
        color=MUTED, strokeDash=DASHES if dash else [1, 0]
    )
    return mark.encode(**{channel: alt.X("at:Q") if channel == "x" else alt.Y("at:Q")})


def lines_with_dots(
    base: alt.Chart, size: int, *, line: dict[str, Any] | None = None, **dot: Any
) -> list[alt.Chart]:
    """A line and a dot of `size` at each of its values; `line` and `dot` are further channels of
    the two."""
    dots = base.mark_point(filled=True, size=size, opacity=1)
    return [base.mark_line(strokeWidth=2).encode(**(line or {})), dots.encode(**dot)]


def numbers_at(
    rows: pd.DataFrame, edge: str, *, dx: int = 5, color: str = INK, **channels: Any
) -> alt.Chart:
    """The column `text` of the rows, written to the right of the value `edge`."""
    marks = alt.Chart(rows).mark_text(**TEXT | {"dx": dx, "color": color})
    return marks.encode(x=alt.X(f"{edge}:Q"), text=alt.Text("text:N"), **channels)


def room_for_numbers(domain: Sequence[float]) -> alt.Scale:
    """The scale of bars with numbers to their right (`numbers_at`): NUMBER_WIDTH pixels stay free
    there, however narrow the picture."""
    right = alt.ExprRef(f"max(1, width - {NUMBER_WIDTH})")
    return alt.Scale(domain=list(domain), range=[0, right], nice=False)


def of_word(frame: pd.DataFrame, word: str) -> pd.DataFrame:
    """The rows of one word."""
    return frame[frame["word"] == word]


def head_names(rows: pd.DataFrame) -> list[str]:
    """The name of each row's head: L0H2."""
    return [part_name(layer, head) for layer, head in zip(rows["layer"], rows["head"], strict=True)]


def part_name(layer: Any, head: Any) -> str:
    """A part of the network: L0H2, the MLP of layer 0 where there is no head, the embedding
    where no layer."""
    if pd.isna(layer):
        return "embedding"
    return f"MLP of layer {layer}" if pd.isna(head) else f"L{layer}H{head}"


def ends_of_lines(
    rows: pd.DataFrame, x: str, line: str, number_text: Callable[[float], str]
) -> str:
    """In words: from which value to which each line goes, in the order of `x`."""
    ends = rows.sort_values(x).groupby(line, sort=False)["value"].agg(["first", "last"])
    return ", ".join(
        f"{name} from {number_text(first)} to {number_text(last)}"
        for name, first, last in ends.itertuples()
    )
