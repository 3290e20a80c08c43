"""From the cue to the word: where the sense travels, over which edges, and which whole ways carry
it.

Measured for the clearest pair of senses of every word whose gap is there, on aligned pairs, in
causal models; read at L*, along the axis that was fitted without the pair. The members of a pair
have the same number of tokens, so pairs are measured layout by layout (how far before the word the
members begin to differ, and where the cue ends) and then put together with the cue and the word
aligned: a position is called "cue", "cue + 1" for the first token behind it, and so on, and "word".
Of a cue of several tokens "cue" is the last, "cue - 1" the one before.

`positions` and `paths` are measured on at most PAIRS pairs, spread over pairs of cue words. Paths
are chained from what these show and measured on other pairs of the same layouts, where there are
any. Pairs whose cue is so far from the word that there would be more than MOST_EDGES edges are not
taken.

Edges are tested that move the word by at least REACH of the gap in the mean of absolute values over
pairs, at most MOST_ROWS. A flip of signs does not change which these are, so that the tests hold: p
is of max-T over them, both signs, whole pairs of cue words flipped. The table has these, and where
they are fewer than LEAST_ROWS the next largest without a test. An edge that a pair does not have,
or that could not reach REACH in its layout and was not run, counts 0 there.

Beside every swap, of a part and of an edge, stands one with a donor of the same sense and the same
layout, another cue word and the same frame where there is one; what is tested is the effect beyond
it, over the pairs whose members both have such a donor: an edge that carries something else that
must fit is no edge of the sense.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.evidence import design
from probe.evidence.columns import KEYS, key_of, leading_heads, rounded, stacked, with_key
from probe.evidence.word import PairResult, StudyOptions, WordResult, clearest
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.weights import Weights
from probe.patching import positions
from probe.patching.edges import EDGE_DTYPE, REACH, SAMPLE, Edges, total_effects
from probe.patching.edges import edges as every_edge
from probe.patching.paths import DIGITS, LEAST, Paths, composition
from probe.patching.paths import paths as chain_paths
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import ALIGNED

PAIRS = 8
MOST_TOTALS, MOST_EDGES = 500, 1_000_000
LEAST_ROWS, MOST_ROWS = 200, 1000
RANDOM_SETS = 100
WORD = "word"
PLACED = ("component", "layer", "head", "pos", "behind")
POSITIONS = (*KEYS, *PLACED, "denoise", "noise", "effect", "same_sense", "pairs")
EDGES = tuple(EDGE_DTYPE.names or ())
PATHS = (
    *KEYS,
    *EDGES,
    "fraction",
    "direct",
    "total",
    "low",
    "high",
    "same_sense",
    "p",
    "q",
    "pairs",
    "composition",
)
WAYS = (
    *(
        *KEYS,
        "path",
        "step",
        *EDGES,
        "share",
        "p",
        "together",
        "size",
        "kept",
        "random",
        "random_high",
        "pairs",
    ),
)
WHOLE = ("layer", "head", "behind", "path", "step", "size", "pairs")
ENDS = tuple(name for name in EDGES if name.endswith(("layer", "head")))
COLUMNS = {"positions": POSITIONS, "edges": PATHS, "paths": WAYS}
Layout = tuple[
    int, int
]  # where the members begin to differ, and where the cue ends, counted from the word


@dataclass(frozen=True, eq=False)
class Group:
    """Pairs of one layout, as places among the pairs of their senses: `shown`, and `other` ones to
    measure ways on."""

    layout: Layout
    shown: tuple[int, ...]
    other: tuple[int, ...]

    def name(self, pos: int) -> str:
        """What a position, counted from the word, is called."""
        behind = pos - self.layout[1]
        return (
            WORD
            if pos == 0
            else "cue"
            if behind == 0
            else f"cue {'+' if behind > 0 else '-'} {abs(behind)}"
        )


def frames(
    model: Model, results: Sequence[WordResult], word_heads: pd.DataFrame, options: StudyOptions
) -> dict[str, pd.DataFrame]:
    """`positions`, `paths` and `ways` of every word; empty where a model reads both ways or no
    pairs are aligned."""
    words = [
        _of_word(
            read_weights(model), result, leading_heads(word_heads, result.material.word), options
        )
        for result in results
    ]
    parts = {name: [word[name] for word in words if word] for name in COLUMNS}
    return {
        name: rounded(whole(stacked(parts[name], columns)[list(columns)]))
        for name, columns in COLUMNS.items()
    }


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of whole numbers, no layer and no head as missing."""
    frame = frame.astype({column: "Int64" for column in (*WHOLE, *ENDS) if column in frame})
    return frame.assign(
        **{column: frame[column].mask(frame[column] < 0) for column in ENDS if column in frame}
    )


def _of_word(
    weights: Weights, result: WordResult, leaders: Sequence[tuple[int, int]], options: StudyOptions
) -> dict[str, pd.DataFrame]:
    passed = [pair for pair in result.pairs if pair.effects is not None]
    if not (passed and result.causal):
        return {}
    pair = clearest(passed)
    groups = layouts(weights, result, pair, options.seed) if pair.pairs.design == ALIGNED else []
    if not groups:
        return {}
    word = _PairRuns(weights, result, pair)
    moved = [row for group in groups for row in _named(group, word.traced(group))]
    measure = partial(every_edge, most=MOST_TOTALS, seed=options.seed)
    measured = [(group, word.run(measure, *word.members(group.shown))) for group in groups]
    for layer, head in leaders:
        if layer < result.depth:
            moved += [
                row
                for group, one in measured
                for row in _named(group, _rows_of_head(one, layer, head))
            ]
    edges = _edges(measured, word, options.seed)
    chain = partial(chain_paths, seed=options.seed, draws=RANDOM_SETS)
    chained = [(group, word.run(chain, *word.members(group.other), one)) for group, one in measured]
    made = {
        "positions": _by_position(moved),
        "edges": edges.reset_index().assign(
            composition=composition(weights, edges.index.to_frame())
        ),
        "paths": _ways(word, measured, chained, edges),
    }
    return {name: with_key(frame, key_of(result, pair)) for name, frame in made.items()}


@dataclass(frozen=True, eq=False)
class _PairRuns:
    """How the pairs of two senses are run: their texts, and the axes along which they are read at
    L*."""

    weights: Weights
    word: WordResult
    pair: PairResult

    def members(self, places: Sequence[int]) -> tuple[list[int], list[int]]:
        """The rows of both members of some pairs."""
        a, b = (
            [rows[place] for place in places] for rows in (self.pair.pairs.a, self.pair.pairs.b)
        )
        return a, b

    def run(
        self,
        measure: Callable[..., Any],
        a: Sequence[int],
        b: Sequence[int],
        *more: Any,
        **options: Any,
    ) -> Any:
        """A measurement of `probe.patching` on rows side by side, read along the axes that were
        fitted without `a`."""
        texts = [[self.word.texts[row] for row in rows] for rows in (a, b)]
        along: Tensor = self.pair.axes.directions(a)[:, [self.word.depth]]  # pair direction d_model
        return measure(self.weights, *texts, along, *more, depth=self.word.depth, **options)

    def gap(self, places: Sequence[int]) -> Array:
        return np.asarray(self.pair.gap[list(places), self.word.depth])

    def units(self, places: Sequence[int]) -> list[int]:
        return [self.pair.pairs.units[place] for place in places]

    @cached_property
    def donors(self) -> dict[int, int]:
        """A donor of the same sense and of the same layout, for every row of a pair that has one."""
        given, placed = (
            (self.word.material.sentences, self.word.material.distances),
            self.word.texts,
        )
        rng, chosen = np.random.default_rng(self.pair.pairs.seed), dict[int, int]()
        for sense, rows in zip(
            self.pair.senses, (self.pair.pairs.a, self.pair.pairs.b), strict=True
        ):
            for row in dict.fromkeys(rows):
                shape = len(placed[row].ids), placed[row].at
                members = [
                    n
                    for n in self.pair.rows(sense, tested=False)
                    if placed[n].ids != placed[row].ids
                ]
                if like := [n for n in members if (len(placed[n].ids), placed[n].at) == shape]:
                    chosen[row] = design.same_sense_donor(*given, row, like, rng)
        return chosen

    def beside(
        self, places: Sequence[int], measure: Callable[[Sequence[int], Sequence[int]], Tensor]
    ) -> dict[int, Array]:
        """What same-sense donors do, as far as the other sense would move the word, for every pair
        whose members both have one.

        `measure(rows, donors)`: how far rows move, `-> row recipient ... direction`, the recipient
        itself first.
        """
        known = [
            place for place in places if all(row[0] in self.donors for row in self.members([place]))
        ]
        if not known:
            return {}
        sides = (measure(rows, [self.donors[row] for row in rows]) for rows in self.members(known))
        a, b = (moved[:, 0, ..., 0].double().numpy() for moved in sides)
        return dict(zip(known, (b - a) / 2, strict=True))

    def traced(self, group: Group) -> Iterator[dict[str, Any]]:
        """The rows of a trace of the group's pairs, with what same-sense donors do at each place."""
        offsets = range(group.layout[0], 1)
        trace = partial(
            self.run, partial(positions.trace_positions, positions=offsets, heads=False)
        )
        same = self.beside(group.shown, lambda rows, donors: trace(rows, donors).stream)
        for row in trace(*self.members(group.shown)).rows():
            place = (
                positions.COMPONENTS.index(row["component"]),
                row["layer"],
                row["pos"] - offsets[0],
            )
            pair = same.get(group.shown[row["pair"]])
            yield row | (
                {} if pair is None else {"same_sense": pair[place], "same_gap": row["gap"]}
            )


def layouts(weights: Weights, result: WordResult, pair: PairResult, seed: int) -> list[Group]:
    """The pairs that are measured, in groups of one layout; at most PAIRS are shown, and as many
    others."""
    at = {
        place: layout
        for place, rows in enumerate(zip(pair.pairs.a, pair.pairs.b, strict=True))
        if (layout := _layout(result, *rows))
        and count_edges(result.depth, weights.shape[1], 1 - layout[0]) <= MOST_EDGES
    }
    few = list(at)
    drawn = design.spread(
        [pair.pairs.units[place] for place in few], len(few), np.random.default_rng(seed)
    )
    places = [few[turn] for turn in drawn]
    groups = []
    for layout in sorted({at[place] for place in places[:PAIRS]}):
        shown, rest = (
            [n for n in some if at[n] == layout] for some in (places[:PAIRS], places[PAIRS:])
        )
        groups.append(Group(layout, tuple(shown), tuple(rest[: len(shown)] or shown)))
    return groups


def _layout(result: WordResult, a: int, b: int) -> Layout | None:
    """Where a pair's members begin to differ before the word, and where the cue ends; None where
    they do not, or where they are not equally long up to the word.
    """
    one, other = (result.texts[row] for row in (a, b))
    apart = [
        pos - one.at
        for pos, ids in enumerate(zip(one.ids, other.ids, strict=False))
        if ids[0] != ids[1]
    ]
    if (len(one.ids), one.at) != (len(other.ids), other.at) or not apart or apart[-1] >= 0:
        return None
    cues = {
        cue[-1] - one.at for cue in (result.material.cues[row] for row in (a, b)) if cue is not None
    }
    return apart[0], max(cues) if len(cues) == 1 and max(cues) < 0 else apart[-1]


def count_edges(depth: int, heads: int, count: int) -> int:
    """How many edges there are among `count` positions: a query, a key or a value of every head, an
    input of every MLP, from every sender before it.
    """
    before = [1 + layer * (heads + 1) for layer in range(depth)]
    return sum(
        senders * heads * count * (count + 2) + (senders + heads) * count for senders in before
    )


def most_runs(layers: int, heads: int, positions: int, edges: int) -> int:
    """Partial forwards that one word takes at most: traces, and totals of the edges that could
    reach enough, each with the other sense and with two donors of the same; totals of a sample;
    swaps of every head and MLP.
    """
    parts = positions * layers * (3 * 3 + heads + 1)
    return 2 * PAIRS * (parts + min(edges, MOST_TOTALS + SAMPLE) + 2 * min(edges, MOST_TOTALS))


def _named(group: Group, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        pos = int(row["pos"])
        yield {**row, "pos": group.name(pos), "behind": pos - group.layout[1] if pos else None}


def _rows_of_head(one: Edges, layer: int, head: int) -> list[dict[str, Any]]:
    """The swaps of one head's z at every position, as rows of a trace."""
    places = np.unique(one.edges["receiver_pos"]).tolist()
    moved, gap = (
        one.swapped[:, :, layer, head].double().numpy() * [[[-1], [1]]],
        one.gap[:, 0].tolist(),
    )
    return [
        {"component": "head", "layer": layer, "head": head, "pos": pos, "gap": gap[pair]}
        | {"noise": float(moved[pair, 0, number]), "denoise": float(moved[pair, 1, number])}
        for pair in range(len(moved))
        for number, pos in enumerate(places)
    ]


def _by_position(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Ratios of sums over the pairs that have the position."""
    measured = ["denoise", "noise", "gap", "same_sense", "same_gap"]
    grouped = pd.DataFrame(rows, columns=[*PLACED, *measured]).groupby(
        [*PLACED], sort=False, dropna=False
    )
    sums = grouped[measured].sum(min_count=1).join(grouped.size().rename("pairs"))
    shares = {name: sums[name] / sums["gap"] for name in ("denoise", "noise")}
    shares["same_sense"] = sums["same_sense"] / sums["same_gap"]
    made = sums.assign(**shares, effect=(shares["denoise"] + shares["noise"]) / 2)
    return made.reset_index().drop(columns=["gap", "same_gap"])


def _names(group: Group, one: Edges, numbers: Sequence[int]) -> pd.MultiIndex:
    """Edges with their positions named."""
    columns = {name: one.edges[name][[*numbers]].tolist() for name in EDGES}
    columns |= {
        name: [group.name(pos) for pos in columns[name]] for name in ("sender_pos", "receiver_pos")
    }
    return pd.MultiIndex.from_arrays(list(columns.values()), names=EDGES)


def _edges(measured: Sequence[tuple[Group, Edges]], read: _PairRuns, seed: int) -> pd.DataFrame:
    """The edges that do most, over all layouts, with intervals and tests; see the module's
    docstring."""
    shown = [place for group, _ in measured for place in group.shown]
    parts: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for group, one in measured:
        run = np.flatnonzero(~one.total[0, 0, :, 0].isnan().numpy()).tolist()
        numbers = {
            "fraction": one.fraction.mean(1),
            "direct": _toward(one.direct),
            "total": _toward(one.total),
        }
        numbers["number"] = torch.arange(len(one.edges)).expand(len(group.shown), -1)
        for name, values in numbers.items():
            frame = pd.DataFrame(
                values.numpy()[:, run].T, index=_names(group, one, run), columns=list(group.shown)
            )
            parts[name].append(frame)
    table = {name: pd.concat(frames, axis=1, sort=True) for name, frames in parts.items()}
    gap = read.gap(shown)
    moved = table["total"][shown].fillna(0.0)
    size = moved.abs().sum(axis=1) / gap.sum()
    family = min(int((size >= REACH).sum()), MOST_ROWS)
    kept = moved.index[resampling.order(size.to_numpy())[: max(family, LEAST_ROWS)]]
    effect, units = moved.loc[kept].to_numpy().T, read.units(shown)  # pair edge
    total = effect.sum(0) / gap.sum()
    draws = resampling.bootstrap_ratio(
        effect, gap, resampling.bootstrap_weights([units], seed=seed)
    )
    low, high = resampling.interval(draws, total, units=len(set(units)))
    columns = {
        "fraction": table["fraction"].loc[kept].mean(axis=1),
        "direct": table["direct"].loc[kept].fillna(0.0).sum(axis=1) / gap.sum(),
        "total": total,
        "low": low,
        "high": high,
        **_tests(
            measured, read, table["number"].loc[kept[:family]], moved.loc[kept[:family]], seed
        ),
        "pairs": table["total"].loc[kept].notna().sum(axis=1),
    }
    made = pd.DataFrame(columns, index=kept)
    return made.iloc[resampling.order(np.abs(total))]


def _tests(
    measured: Sequence[tuple[Group, Edges]],
    read: _PairRuns,
    numbers: pd.DataFrame,
    moved: pd.DataFrame,
    seed: int,
) -> dict[str, pd.Series]:
    """What same-sense donors do over the edges of the family, and p and q of what the other sense
    does beyond it."""
    same = pd.DataFrame(np.nan, index=moved.index, columns=moved.columns)
    for group, one in measured:
        here = numbers[group.shown[0]].dropna().astype(int)
        measure = partial(read.run, partial(total_effects, edges=one.edges[here.to_numpy()]))
        for place, values in read.beside(group.shown, measure).items() if len(here) else ():
            same[place] = pd.Series(values, here.index).reindex(same.index, fill_value=0.0)
    known = [place for group, _ in measured for place in group.shown if same[place].notna().all()]
    nothing = pd.Series(np.nan, index=moved.index)
    if not known or moved.empty:
        return dict.fromkeys(("same_sense", "p", "q"), nothing)
    gap = read.gap(known)
    net = (moved[known] - same[known]).to_numpy().T / gap.mean()  # pair edge
    tested = resampling.sign_flip_test(np.stack([net, -net], axis=-1), read.units(known), seed=seed)
    columns = {
        "same_sense": same[known].sum(axis=1) / gap.sum(),
        "p": tested.p.min(-1),
        "q": tested.q.min(-1),
    }
    return {name: pd.Series(values, moved.index) for name, values in columns.items()}


def _toward(moved: Tensor) -> Tensor:
    """How far the read-out moves toward the donor, both ways averaged. `pair recipient edge
    direction -> pair edge`"""
    noise, denoise = moved[..., 0].double().unbind(1)
    return (denoise - noise) / 2


Step = tuple[Any, ...]


def _ways(
    read: _PairRuns,
    measured: Sequence[tuple[Group, Edges]],
    chained: Sequence[tuple[Group, Paths]],
    edges: pd.DataFrame,
) -> pd.DataFrame:
    """One row a step of every way, best way first; shares are of the gap of all pairs that ways are
    measured on."""
    weight = np.array([read.gap(group.other).sum() for group, _ in chained])
    weight = weight / weight.sum()
    shares: dict[tuple[Step, ...], float] = defaultdict(float)
    pairs: dict[tuple[Step, ...], int] = defaultdict(int)
    least: set[Step] = set()
    for (group, one), (_, result), part in zip(measured, chained, weight, strict=True):
        for way, share in zip(result.paths, result.shares, strict=True):
            steps = tuple(_names(group, one, way).tolist())
            shares[steps] += float(part * share)
            pairs[steps] += len(group.other)
        least |= set(_names(group, one, result.circuit or ()).tolist())
    random = weight @ [
        np.resize(result.random_shares, RANDOM_SETS) for _, result in chained
    ]  # all 0 where none were drawn
    about = {
        "together": float(weight @ [result.together for _, result in chained]),
        "size": len(least) if all(result.circuit for _, result in chained) else None,
        "kept": float(weight @ [result.circuit_share for _, result in chained]),
        "random": float(random.mean()),
        "random_high": float(random.max()),
    }
    enough = (way for way in shares if abs(shares[way]) >= LEAST)
    good = sorted(enough, key=lambda way: (-round(abs(shares[way]), DIGITS), str(way)))
    p = edges["p"].fillna(1.0).to_dict()
    rows = [
        {"path": number, "step": turn, **dict(zip(EDGES, step, strict=True)), "share": shares[way]}
        | {"p": max(p.get(step, 1.0) for step in way), "pairs": pairs[way]}
        | about
        for number, way in enumerate(good)
        for turn, step in enumerate(way)
    ]
    return pd.DataFrame(rows, columns=[name for name in WAYS if name not in KEYS])
