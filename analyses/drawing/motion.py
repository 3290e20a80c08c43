"""A word's vector on its way through the layers, in two sentences, as an animation: one SVG without a script.

Without animation, or if the reader prefers less motion, it shows the last frame, which contains everything.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd

from probe.stats.numbers import percent

WIDTH, HEIGHT = 358, 600  # pixels: as wide as a phone
STILL = 4.0  # seconds of the last frame before the first round
SECONDS, TIMES = 16.0, 3  # of one round, and the number of rounds before the last frame stays
START, PER_LAYER = 1.5, 0.6  # seconds before the dots start, and from one layer to the next
# Seconds at which the head's output is swapped, the word moves, and the bars grow.
SWAP, BACK, NEXT = 5.6, 6.8, 9.0
LEFT, RIGHT, TOP, ROW = 68.0, 336.0, 112.0, 28.0  # of the area with the dots
BARS, LONGEST, FIRST_BAR, PAIR = 76.0, 200.0, 424.0, 40.0  # of the paired bars
LONGEST_START = 2  # words of a sentence before the cue
TEMPLATE = Path(__file__).parent / "motion.svg.j2"


class Point(NamedTuple):
    """A point in the picture, in pixels."""

    x: float
    y: float


class Stop(NamedTuple):
    """The look of an element (CSS) at a time, in seconds."""

    at: float
    look: str


def word_in_motion(rows: pd.DataFrame, note: str, continued: str) -> str:
    """The SVG.

    rows: `measured cue text head depth token value`. With `measured` "coordinate": the word's coordinate after `depth`
        layers, positive toward the first cue, for both cues, and for the first cue with the output of `head` swapped.
        With "next": the probability of `token` as the next one, in the same three runs. Depths and tokens appear in the
        order of the rows
    note: the line at the bottom
    continued: what follows the word before these tokens
    """
    cues = rows["cue"].drop_duplicates().tolist()
    head = str(rows["head"].dropna().iloc[0])
    coordinates = rows[rows["measured"] == "coordinate"]
    paths = _paths(coordinates)
    layer = int(head[1:].partition("H")[0])  # its output is in the vector after this layer
    first_path, second_path, swapped_path = (
        paths[cues[0], False],
        paths[cues[1], False],
        paths[cues[0], True],
    )
    animations = {
        "one": _travel(first_path, [START + PER_LAYER * depth for depth in range(len(first_path))]),
        "other": _travel(
            second_path, [START + PER_LAYER * depth for depth in range(len(second_path))]
        ),
        "swapped": [
            Stop(BACK - 0.3, "opacity:0"),
            *_travel(
                swapped_path[layer:],
                [BACK + PER_LAYER * step for step in range(len(swapped_path) - layer)],
            ),
        ],
        "carried": [
            Stop(0, f"opacity:0;{_move(second_path[layer + 1])}"),
            Stop(SWAP - 0.4, f"opacity:0;{_move(second_path[layer + 1])}"),
            Stop(SWAP, f"opacity:1;{_move(second_path[layer + 1])}"),
            Stop(BACK, f"opacity:1;{_move(first_path[layer + 1])}"),
        ],
        "grow": [Stop(NEXT, "transform:scaleX(0)"), Stop(NEXT + 1, "transform:scaleX(1)")],
        "effect": _appear(BACK + PER_LAYER * (len(first_path) - 1 - layer)),
        "next": _appear(NEXT - 0.5),
        "after": _appear(NEXT + 1),
        **{
            f"row{depth}": _appear(START + PER_LAYER * depth) for depth in range(1, len(first_path))
        },
        **{
            f"back{depth}": _appear(BACK + PER_LAYER * (depth - layer))
            for depth in range(layer + 1, len(first_path))
        },
    }
    ends = [path[-1] for path in (first_path, second_path, swapped_path)]
    effect = (ends[2].x - ends[0].x) / (ends[1].x - ends[0].x)
    bars = list(_bars(rows[rows["measured"] == "next"], cues))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["px"] = lambda number: f"{number:.1f}".removesuffix(".0")
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        width=WIDTH,
        height=HEIGHT,
        still=STILL,
        seconds=SECONDS,
        times=TIMES,
        keyframes={name: _keyframes(stops) for name, stops in animations.items()},
        cues=cues,
        sentences=[_split(rows, cue) for cue in cues],
        head=head,
        layer=layer,
        paths={"one": first_path, "other": second_path, "swapped": swapped_path},
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bars=bars,
        bar_left=BARS,
        moved=percent(effect),
        note=note,
        continued=continued.strip(),
    )


def _paths(rows: pd.DataFrame) -> dict[tuple[str, bool], list[Point]]:
    """The point of the word after each number of layers, by cue and by whether a head was swapped.

    The first cue's side is on the left, and the data fill the whole width.
    """
    largest = rows["value"].max()
    scale = (RIGHT - LEFT) / (largest - rows["value"].min())
    return {
        (str(cue), bool(is_swapped)): [
            Point(LEFT + scale * (largest - value), TOP + ROW * depth)
            for depth, value in zip(part["depth"], part["value"], strict=True)
        ]
        for (cue, is_swapped), part in rows.groupby(["cue", rows["head"].notna()], sort=False)
    }


def _split(rows: pd.DataFrame, cue: str) -> tuple[str, str, str]:
    """The sentence of a cue: the last words before the cue, the text between it and the last word, and the last word."""
    text = str(rows.loc[rows["cue"] == cue, "text"].iloc[0])
    start, _, after = text.partition(cue)
    words = start.split()
    before = start if len(words) <= LONGEST_START else f"… {' '.join(words[-LONGEST_START:])} "
    between, space, word = after.rpartition(" ")
    return before, between + space, word


def _bars(rows: pd.DataFrame, cues: Sequence[str]) -> Iterator[Mapping[str, object]]:
    """The paired bars of each token: its probability without and with the swap, and in the other sentence."""
    scale = LONGEST / rows["value"].max()
    for number, (token, part) in enumerate(rows.groupby("token", sort=False)):
        is_swapped = part["head"].notna()
        is_first = part["cue"] == cues[0]
        values = {
            "before": part.loc[is_first & ~is_swapped, "value"].item(),
            "after": part.loc[is_first & is_swapped, "value"].item(),
            "other": part.loc[~is_first, "value"].item(),
        }
        yield {
            "token": token,
            "y": FIRST_BAR + PAIR * number,
            "widths": {name: scale * value for name, value in values.items()},
            "texts": {name: percent(value, 2) for name, value in values.items()},
        }


def _move(point: Point) -> str:
    return f"transform:translate({point.x:.1f}px,{point.y:.1f}px)"


def _travel(path: Sequence[Point], times: Sequence[float]) -> list[Stop]:
    """The stops of an element that is at each point of the path at its time, and visible from the first on."""
    stops = [Stop(times[0] - 0.1, f"opacity:1;{_move(path[0])}")]
    return stops + [
        Stop(time, f"opacity:1;{_move(point)}") for point, time in zip(path, times, strict=True)
    ]


def _appear(at: float) -> list[Stop]:
    """The stops of an element that appears at a time."""
    return [Stop(0, "opacity:0"), Stop(at - 0.3, "opacity:0"), Stop(at, "opacity:1")]


def _keyframes(stops: Sequence[Stop]) -> str:
    """CSS keyframes; the first look holds from the beginning, the last one until the end."""
    whole = [Stop(0, stops[0].look), *stops, Stop(SECONDS, stops[-1].look)]
    return "".join(f"{100 * stop.at / SECONDS:.2f}%{{{stop.look}}}" for stop in whole)
