"""From the cue to the word: where the sense travels, over which edges, and which whole ways carry it.

Measured for the clearest pair of senses of every word whose gap is there, on aligned pairs, in causal models; read at
L*, along the axis that was fitted without the pair. The members of a pair have the same number of tokens, so pairs are
measured layout by layout (how far before the word the members begin to differ, and where the cue ends) and then put
together with the cue and the word aligned: a position is called "cue", "cue + 1" for the first token behind it, and so
on, and "word". Of a cue of several tokens "cue" is the last, "cue - 1" the one before.

`positions` and `paths` are measured on at most PAIRS pairs, spread over pairs of cue words. Ways are chained from what
these show and measured on other pairs of the same layouts, where there are any. Pairs whose cue is so far from the
word that there would be more than MOST_EDGES edges are not taken.

Edges are tested that move the word by at least REACH of the gap in the mean of absolute values over pairs, at most
MOST_ROWS. A flip of signs does not change which these are, so that the tests hold: p is of max-T over them, both signs,
whole pairs of cue words flipped. The table has these, and where they are fewer than LEAST_ROWS the next largest without
a test. An edge that a pair does not have, or that could not reach REACH in its layout and was not run, counts 0 there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from probe.errors import UnsupportedModel
from probe.model.model import Model
from probe.model.weights import Weights, read_weights
from probe.patching import effects, paths, positions
from probe.patching import ways as whole_ways
from probe.patching.edges import EDGE
from probe.patching.paths import REACH, SAMPLE, Paths
from probe.patching.ways import DIGITS, LEAST, Ways
from probe.stats import permutation, resampling
from probe.study.columns import KEYS, key_of, rounded, stacked, with_key
from probe.study.controls import clearest
from probe.study.word import PairResult, StudyOptions, WordResult
from probe.text.splits import ALIGNED

PAIRS, LEADERS = 8, 3
MOST_TOTALS, MOST_EDGES = 500, 1_000_000
LEAST_ROWS, MOST_ROWS = 200, 1000
RANDOM_SETS = 100
WORD = "word"
POSITIONS = (*KEYS, "component", "layer", "head", "pos", "behind", "denoise", "noise", "effect", "pairs")
EDGES = tuple(EDGE.names or ())
PATHS = (*KEYS, *EDGES, "fraction", "direct", "total", "low", "high", "p", "q", "pairs")
WAYS = (*(*KEYS, "way", "step", *EDGES, "share", "p", "together", "size", "kept", "random", "random_high", "pairs"),)
COLUMNS = {"positions": POSITIONS, "paths": PATHS, "ways": WAYS}
Layout = tuple[int, int]  # where the members begin to differ, and where the cue ends, counted from the word


@dataclass(frozen=True, eq=False)
class Group:
    """Pairs of one layout, as places among the pairs of their senses: `shown`, and `other` ones to measure ways on."""

    layout: Layout
    shown: tuple[int, ...]
    other: tuple[int, ...]

    def name(self, pos: int) -> str:
        """What a position, counted from the word, is called."""
        behind = pos - self.layout[1]
        return WORD if pos == 0 else "cue" if behind == 0 else f"cue {'+' if behind > 0 else '-'} {abs(behind)}"


def frames(
    model: Model, results: Sequence[WordResult], word_heads: pd.DataFrame, options: StudyOptions
) -> dict[str, pd.DataFrame]:
    """`positions`, `paths` and `ways` of every word; empty where a model reads both ways, where sentences are not
    aligned, and, but for `positions`, where the model norms what heads write.
    """
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    for result in results:
        leaders = word_heads[word_heads["word"] == result.material.word].sort_values("rank").head(LEADERS)
        for name, frame in _of_word(read_weights(model), result, leaders, options).items():
            parts[name].append(frame)
    return {
        name: rounded(whole(stacked(parts[name], columns)[list(columns)], name)) for name, columns in COLUMNS.items()
    }


def whole(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Columns of whole numbers, no layer and no head as missing."""
    frame = frame.astype(_WHOLE[name])
    return frame.assign(**{column: frame[column].mask(frame[column] < 0) for column in _PLACES if column in frame})


_PLACES = dict.fromkeys((name for name in EDGES if name.endswith(("layer", "head"))), "Int64")
_WHOLE = {
    "positions": dict.fromkeys(("layer", "head", "behind", "pairs"), "Int64"),
    "paths": _PLACES | {"pairs": "Int64"},
    "ways": _PLACES | dict.fromkeys(("way", "step", "size", "pairs"), "Int64"),
}


def _of_word(
    weights: Weights, result: WordResult, leaders: pd.DataFrame, options: StudyOptions
) -> dict[str, pd.DataFrame]:
    passed = [pair for pair in result.pairs if pair.effects is not None]
    if not (passed and result.causal):
        return {}
    pair = clearest(passed)
    groups = layouts(weights, result, pair, options.seed) if pair.pairs.design == ALIGNED else []
    if not groups:
        return {}
    key, word = key_of(result, pair), _Read(weights, result, pair)
    traced = [(group, word.run(positions.trace_positions, group.shown, heads=False)) for group in groups]
    moved = [row for group, trace in traced for row in _named(group, trace.rows())]
    try:
        found = [(group, word.run(paths.paths, group.shown, most=MOST_TOTALS, seed=options.seed)) for group in groups]
    except UnsupportedModel:
        return {"positions": with_key(_by_position(moved), key)}
    for layer, head in leaders[["layer", "head"]].astype(int).itertuples(index=False):
        if layer < result.depth:
            moved += [row for group, one in found for row in _named(group, _rows_of_head(one, layer, head))]
    edges = _edges(found, pair, result.depth, options.seed)
    chained = [
        (group, word.run(whole_ways.ways, group.other, one, seed=options.seed, draws=RANDOM_SETS))
        for group, one in found
    ]
    made = {"positions": _by_position(moved), "paths": edges.reset_index(), "ways": _ways(word, found, chained, edges)}
    return {name: with_key(frame, key) for name, frame in made.items()}


@dataclass(frozen=True, eq=False)
class _Read:
    """How some pairs of a word are run: their texts, and the axes along which they are read at L*."""

    weights: Weights
    word: WordResult
    pair: PairResult

    def run(self, measure: Callable[..., Any], places: Sequence[int], *more: Any, **options: Any) -> Any:
        a, b = ([rows[place] for place in places] for rows in (self.pair.pairs.a, self.pair.pairs.b))
        texts = [[self.word.placed[row] for row in rows] for rows in (a, b)]
        along: Tensor = self.pair.axes.directions(a)[:, [self.word.depth]]  # pair direction d_model
        return measure(self.weights, *texts, along, *more, depth=self.word.depth, **options)

    def gap(self, places: Sequence[int]) -> float:
        return float(self.pair.gap[list(places), self.word.depth].sum())


def layouts(weights: Weights, result: WordResult, pair: PairResult, seed: int) -> list[Group]:
    """The pairs that are measured, in groups of one layout; at most PAIRS are shown, and as many others."""
    at = {
        place: layout
        for place, rows in enumerate(zip(pair.pairs.a, pair.pairs.b, strict=True))
        if (layout := _layout(result, *rows))
        and count_edges(result.depth, weights.shape[1], 1 - layout[0]) <= MOST_EDGES
    }
    few, rng = list(at), np.random.default_rng(seed)
    drawn = effects.spread([pair.pairs.units[place] for place in few], len(few), rng)
    shown: dict[Layout, list[int]] = defaultdict(list)
    rest: dict[Layout, list[int]] = defaultdict(list)
    for number, place in enumerate(few[turn] for turn in drawn):
        (shown if number < PAIRS else rest)[at[place]].append(place)
    return [
        Group(layout, tuple(mine), tuple(rest[layout][: len(mine)] or mine)) for layout, mine in sorted(shown.items())
    ]


def _layout(result: WordResult, a: int, b: int) -> Layout | None:
    """Where a pair's members begin to differ before the word, and where the cue ends; None where they do not, or where
    they are not equally long up to the word.
    """
    one, other = (result.placed[row] for row in (a, b))
    apart = [pos - one.at for pos, ids in enumerate(zip(one.ids, other.ids, strict=False)) if ids[0] != ids[1]]
    if (len(one.ids), one.at) != (len(other.ids), other.at) or not apart or apart[-1] >= 0:
        return None
    cues = {cue[-1] - one.at for cue in (result.material.cues[row] for row in (a, b)) if cue is not None}
    return apart[0], max(cues) if len(cues) == 1 and max(cues) < 0 else apart[-1]


def count_edges(depth: int, heads: int, count: int) -> int:
    """How many edges there are among `count` positions: a query, a key or a value of every head, an input of every MLP,
    from every sender before it.
    """
    before = [1 + layer * (heads + 1) for layer in range(depth)]
    return sum(senders * heads * count * (count + 2) + (senders + heads) * count for senders in before)


def most_runs(layers: int, heads: int, positions: int, edges: int) -> int:
    """Partial forwards that one word takes at most: traces, swaps of every head and MLP, and totals of edges."""
    parts = positions * layers * (3 + heads + 3)
    return 2 * PAIRS * (parts + min(edges, MOST_TOTALS + SAMPLE))


# --- positions -------------------------------------------------------------------------------------------------------


def _named(group: Group, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        pos = int(row["pos"])
        yield {**row, "pos": group.name(pos), "behind": pos - group.layout[1] if pos else None}


def _rows_of_head(found: Paths, layer: int, head: int) -> list[dict[str, Any]]:
    """The swaps of one head's z at every position, as rows of a trace."""
    places = np.unique(found.edges["receiver_pos"]).tolist()
    moved, gap = found.swapped[:, :, layer, head].double().numpy() * [[[-1], [1]]], found.gap[:, 0].tolist()
    return [
        {"component": "head", "layer": layer, "head": head, "pos": pos, "gap": gap[pair]}
        | {"noise": float(moved[pair, 0, number]), "denoise": float(moved[pair, 1, number])}
        for pair in range(len(moved))
        for number, pos in enumerate(places)
    ]


def _by_position(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Ratios of sums over the pairs that have the position."""
    keys = ["component", "layer", "head", "pos", "behind"]
    grouped = pd.DataFrame(rows).groupby(keys, sort=False, dropna=False)
    sums = grouped[["denoise", "noise", "gap"]].sum().join(grouped.size().rename("pairs"))
    shares = {name: sums[name] / sums["gap"] for name in ("denoise", "noise")}
    made = sums.assign(**shares, effect=(shares["denoise"] + shares["noise"]) / 2)
    return made.reset_index().drop(columns="gap")


# --- edges -----------------------------------------------------------------------------------------------------------


def _names(group: Group, found: Paths, numbers: Sequence[int]) -> pd.MultiIndex:
    """Edges with their positions named; no layer and no head as missing."""
    columns = {name: found.edges[name][[*numbers]].tolist() for name in EDGES}
    for name in ("sender_pos", "receiver_pos"):
        columns[name] = [group.name(pos) for pos in columns[name]]
    return pd.MultiIndex.from_arrays(list(columns.values()), names=EDGES)


def _edges(found: Sequence[tuple[Group, Paths]], pair: PairResult, depth: int, seed: int) -> pd.DataFrame:
    """The edges that do most, over all layouts, with intervals and tests; see the module's docstring."""
    shown = [place for group, _ in found for place in group.shown]
    parts: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for group, one in found:
        run = np.flatnonzero(~one.total[0, 0, :, 0].isnan().numpy()).tolist()
        numbers = {"fraction": one.fraction.mean(1), "direct": _toward(one.direct), "total": _toward(one.total)}
        for name, values in numbers.items():
            frame = pd.DataFrame(values.numpy()[:, run].T, index=_names(group, one, run), columns=list(group.shown))
            parts[name].append(frame)
    table = {name: pd.concat(frames, axis=1, sort=True) for name, frames in parts.items()}
    gap = pair.gap[shown, depth]
    moved = table["total"][shown].fillna(0.0)
    size = moved.abs().sum(axis=1) / gap.sum()
    family = min(int((size >= REACH).sum()), MOST_ROWS)
    kept = moved.index[resampling.order(size.to_numpy())[: max(family, LEAST_ROWS)]]
    effect, units = moved.loc[kept].to_numpy().T, [pair.pairs.units[place] for place in shown]  # pair edge
    total = effect.sum(0) / gap.sum()
    draws = resampling.bootstrap_ratio(effect, gap, resampling.bootstrap_weights([units], seed=seed))
    low, high = resampling.interval(draws, total, units=len(set(units)))
    both = np.stack([effect, -effect], axis=-1)[:, :family] / gap.mean()
    tested = permutation.sign_flip_test(both, units, seed=seed) if family else None
    untested = np.full(len(kept) - family, np.nan)
    columns = {
        "fraction": table["fraction"].loc[kept].mean(axis=1),
        "direct": table["direct"].loc[kept].fillna(0.0).sum(axis=1) / gap.sum(),
        "total": total,
        "low": low,
        "high": high,
        "p": np.append(tested.p.min(-1) if tested else (), untested),
        "q": np.append(tested.q.min(-1) if tested else (), untested),
        "pairs": table["total"].loc[kept].notna().sum(axis=1),
    }
    made = pd.DataFrame(columns, index=kept)
    return made.iloc[resampling.order(np.abs(total))]


def _toward(moved: Tensor) -> Tensor:
    """How far the read-out moves toward the donor, both ways averaged. `pair recipient edge direction -> pair edge`"""
    noise, denoise = moved[..., 0].double().unbind(1)
    return (denoise - noise) / 2


# --- ways ------------------------------------------------------------------------------------------------------------

Step = tuple[Any, ...]


def _ways(
    read: _Read, found: Sequence[tuple[Group, Paths]], chained: Sequence[tuple[Group, Ways]], edges: pd.DataFrame
) -> pd.DataFrame:
    """One row a step of every way, best way first; shares are of the gap of all pairs that ways are measured on."""
    weight = np.array([read.gap(group.other) for group, _ in chained])
    weight = weight / weight.sum()
    shares: dict[tuple[Step, ...], float] = defaultdict(float)
    pairs: dict[tuple[Step, ...], int] = defaultdict(int)
    least: set[Step] = set()
    for (group, one), (_, result), part in zip(found, chained, weight, strict=True):
        for way, share in zip(result.ways, result.shares, strict=True):
            steps = tuple(_names(group, one, way).tolist())
            shares[steps] += float(part * share)
            pairs[steps] += len(group.other)
        least |= set(_names(group, one, result.smallest or ()).tolist())
    random = weight @ [np.resize(result.random, RANDOM_SETS) for _, result in chained]  # all 0 where none were drawn
    about = {
        "together": float(weight @ [result.together for _, result in chained]),
        "size": len(least) if all(result.smallest for _, result in chained) else None,
        "kept": float(weight @ [result.kept for _, result in chained]),
        "random": float(random.mean()),
        "random_high": float(random.max()),
    }
    good = sorted(
        (way for way in shares if abs(shares[way]) >= LEAST),
        key=lambda way: (-round(abs(shares[way]), DIGITS), str(way)),
    )
    p = edges["p"].fillna(1.0).to_dict()
    rows = [
        {"way": number, "step": turn, **dict(zip(EDGES, step, strict=True)), "share": shares[way]}
        | {"p": max(p.get(step, 1.0) for step in way), "pairs": pairs[way]}
        | about
        for number, way in enumerate(good)
        for turn, step in enumerate(way)
    ]
    return pd.DataFrame(rows, columns=[name for name in WAYS if name not in KEYS])
