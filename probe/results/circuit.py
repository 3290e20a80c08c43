"""From the cue to the word: where the sense travels, over which edges, and which whole paths carry
it.

Measured for the clearest pair of senses of every word whose gap is there, on aligned pairs, in
causal models; read at L*, along the axis that was fitted without the pair. The members of a pair
have the same number of tokens, so pairs are measured layout by layout (how far before the word the
members begin to differ, and where the cue ends) and then put together with the cue and the word
aligned: a position is called "cue", "cue + 1" for the first token behind it, and so on, and "word".
Of a cue of several tokens "cue" is the last, "cue - 1" the one before.

`positions` and `edges` are measured on at most PAIRS pairs, spread over pairs of cue words. Paths
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

The first BESIDE_NOUNS edges are run once more with one-meaning nouns in the word's place, on all
pairs of the layouts, each with one of the nouns that heads are compared on
(`probe.experiments.noun_parts`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.experiments import design
from probe.experiments.noun_parts import PARTS, compare_pairwise, joined_parts
from probe.experiments.nouns import NounInPlace
from probe.experiments.word import PairResult, StudyOptions, WordResult, clearest
from probe.inference.verdicts import comparisons
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import as_array
from probe.model.weights import Weights
from probe.patching import positions
from probe.patching.edges import EDGE_DTYPE, REACH, SAMPLE, EdgeArray, Edges, total_effects
from probe.patching.edges import edges as every_edge
from probe.patching.paths import DIGITS, LEAST, Paths, composition
from probe.patching.paths import paths as chain_paths
from probe.results.columns import KEYS, key_of, leading_heads, rounded, stacked, with_key
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import ALIGNED

PAIRS = 8  # on which positions and edges are measured; as many others for paths
MOST_TOTALS = 500  # edges of a layout whose total effect is run
MOST_EDGES = 1_000_000  # of a layout: as many are held in memory at once for every pair
LEAST_ROWS = 200  # of the table of edges, tested or not
MOST_ROWS = 1000  # edges that are tested: p is of the largest of them all, so more would cost power
BESIDE_NOUNS = 40  # edges of the table that are compared with one-meaning nouns
RANDOM_SETS = 100  # of edges, beside the circuit of each layout
WORD = "word"
CUE = "cue"
PART_OF_RUN = ("component", "layer", "head", "pos", "behind")
POSITION_COLUMNS = (*KEYS, *PART_OF_RUN, "denoise", "noise", "effect", "same_sense", "pairs")
EDGE_FIELDS = tuple(EDGE_DTYPE.names or ())
EDGE_COLUMNS = (
    *KEYS,
    *EDGE_FIELDS,
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
    *PARTS,
    "comparison",
)
PATH_COLUMNS = (
    *KEYS,
    "path",
    "step",
    *EDGE_FIELDS,
    "share",
    "p",
    "together",
    "size",
    "kept",
    "random",
    "random_high",
    "pairs",
)
COLUMNS = {"positions": POSITION_COLUMNS, "edges": EDGE_COLUMNS, "paths": PATH_COLUMNS}
WHOLE = ("layer", "head", "behind", "path", "step", "size", "pairs")  # columns of whole numbers
ENDS = tuple(name for name in EDGE_FIELDS if name.endswith(("layer", "head")))
Step = tuple[Any, ...]  # of a path: the fields of an edge, its positions named


class Layout(NamedTuple):
    """Where the members of a pair begin to differ, and where their cue ends, both counted from the
    word."""

    first: int
    cue: int


@dataclass(frozen=True, eq=False)
class Group:
    """Pairs of one layout, as indices among the pairs of their senses: `traced`, on which positions
    and edges are measured, and `held_out` ones to measure paths on."""

    layout: Layout
    traced: tuple[int, ...]
    held_out: tuple[int, ...]

    def name(self, pos: int) -> str:
        """What a position, counted from the word, is called."""
        if pos == 0:
            return WORD
        behind = pos - self.layout.cue
        if behind == 0:
            return CUE
        sign = "+" if behind > 0 else "-"
        return f"{CUE} {sign} {abs(behind)}"


class GroupEdges(NamedTuple):
    """The edges of the pairs of one layout."""

    group: Group
    measured: Edges


class GroupPaths(NamedTuple):
    """The paths that were chained from the edges of one layout."""

    group: Group
    edges: Edges
    measured: Paths


def frames(
    model: Model, results: Sequence[WordResult], word_heads: pd.DataFrame, options: StudyOptions
) -> dict[str, pd.DataFrame]:
    """`positions`, `edges` and `paths` of every word; empty where a model reads both ways, no pairs
    are aligned, or hooks stay on, and of a hybrid `positions` alone."""
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    weights = read_weights(model)
    for result in results:
        leaders = leading_heads(word_heads, result.material.word)
        for name, frame in _of_word(weights, result, leaders, options).items():
            parts[name].append(frame)
    return {
        name: rounded(whole(stacked(parts[name], columns)[list(columns)]))
        for name, columns in COLUMNS.items()
    }


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of whole numbers, no layer and no head as missing."""
    frame = frame.astype({column: "Int64" for column in (*WHOLE, *ENDS) if column in frame})
    ends = {column: frame[column].mask(frame[column] < 0) for column in ENDS if column in frame}
    return frame.assign(**ends)


def _of_word(
    weights: Weights, result: WordResult, leaders: Sequence[tuple[int, int]], options: StudyOptions
) -> dict[str, pd.DataFrame]:
    """The three frames of a word; none where nothing can be followed."""
    passed = [pair for pair in result.pairs if pair.effects is not None]
    if not (passed and result.causal) or weights.hooked is not None:
        return {}
    pair = clearest(passed)
    groups = layouts(weights, result, pair, options.seed) if pair.pairs.design == ALIGNED else []
    if not groups:
        return {}
    runs = PairRuns(weights, result, pair)
    moved = [row for group in groups for row in _named(group, runs.traced(group))]
    if not weights.config.attends_plainly:  # what else carries, and gates, have no edges
        return {"positions": with_key(_by_position(moved), key_of(result, pair))}
    measure = partial(every_edge, most=MOST_TOTALS, seed=options.seed)
    by_group = [
        GroupEdges(group, runs.run(measure, *runs.members(group.traced))) for group in groups
    ]
    for layer, head in leaders:
        if layer < result.depth:  # heads behind the read-out have not been swapped
            for group, measured in by_group:
                moved += _named(group, _rows_of_head(measured, layer, head))
    table = _by_pair(by_group)
    edges = _edges(by_group, table, runs, options.seed)
    first = table["number"].loc[edges.index[:BESIDE_NOUNS]]
    edges = edges.join(_beside_nouns(by_group, runs, first))
    edges = edges.fillna({"comparison": ""})
    fits = composition(weights, edges.index.to_frame())
    chain = partial(chain_paths, seed=options.seed, draws=RANDOM_SETS)
    chained = []
    for group, measured in by_group:
        paths = runs.run(chain, *runs.members(group.held_out), measured)
        chained.append(GroupPaths(group, measured, paths))
    of_word = {
        "positions": _by_position(moved),
        "edges": edges.reset_index().assign(composition=fits),
        "paths": _paths(runs, chained, edges),
    }
    return {name: with_key(frame, key_of(result, pair)) for name, frame in of_word.items()}


# --- the pairs ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PairRuns:
    """How the pairs of two senses are run: their texts, and the axes along which they are read at
    L*."""

    weights: Weights
    word: WordResult
    pair: PairResult

    def members(self, pairs: Sequence[int]) -> tuple[list[int], list[int]]:
        """The rows of both members of some pairs."""
        a = [self.pair.pairs.a[index] for index in pairs]
        b = [self.pair.pairs.b[index] for index in pairs]
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
        texts_a = [self.word.texts[row] for row in a]
        texts_b = [self.word.texts[row] for row in b]
        along: Tensor = self.pair.axes.directions(a)[:, [self.word.depth]]  # pair direction d_model
        return measure(
            self.weights, texts_a, texts_b, along, *more, depth=self.word.depth, **options
        )

    def beside_noun(
        self, noun: NounInPlace, pairs: Sequence[int], edges: EdgeArray
    ) -> tuple[Array, Array]:
        """The total effects of edges for the word, in fractions of the fitted gap, and with a noun
        in its place, in the noun's own gap. `-> pair edge`, twice"""
        a, b = self.members(pairs)
        depth = self.word.depth
        texts = noun.texts(self.word.texts)
        of_word = self.run(partial(total_effects, edges=edges), a, b)
        of_noun = total_effects(
            self.weights,
            [texts[row] for row in a],
            [texts[row] for row in b],
            noun.axes.directions(a)[:, [depth]],
            edges,
            depth=depth,
        )
        return _toward(of_word).numpy(), _toward(of_noun).numpy() * noun.scale[depth]

    def gap(self, pairs: Sequence[int]) -> Array:
        """The gap of some pairs at L*."""
        return np.asarray(self.pair.gap[list(pairs), self.word.depth])

    def units(self, pairs: Sequence[int]) -> list[int]:
        """Their pairs of cue words."""
        return [self.pair.pairs.units[index] for index in pairs]

    @cached_property
    def donors(self) -> dict[int, int]:
        """A donor of the same sense and of the same layout, for every row that has one."""
        texts = self.word.texts
        material = self.word.material
        rng = np.random.default_rng(self.pair.pairs.seed)
        donors: dict[int, int] = {}
        rows_by_sense = (self.pair.pairs.a, self.pair.pairs.b)
        for sense, rows in zip(self.pair.senses, rows_by_sense, strict=True):
            members = self.pair.rows(sense, tested=False)
            for row in dict.fromkeys(rows):
                own = texts[row]
                alike = [
                    other
                    for other in members
                    if texts[other].ids != own.ids
                    and (len(texts[other].ids), texts[other].at) == (len(own.ids), own.at)
                ]
                if alike:
                    donors[row] = design.same_sense_donor(
                        material.sentences, material.distances, row, alike, rng
                    )
        return donors

    def same_sense(
        self, pairs: Sequence[int], measure: Callable[[Sequence[int], Sequence[int]], Tensor]
    ) -> dict[int, Array]:
        """What same-sense donors do, as far as the other sense would move the word, for every pair
        whose members both have one.

        `measure(rows, donors)`: how far rows move, `-> row recipient ... direction`, the recipient
        itself first.
        """
        with_donors = []
        for index in pairs:
            if self.pair.pairs.a[index] in self.donors and self.pair.pairs.b[index] in self.donors:
                with_donors.append(index)
        if not with_donors:
            return {}
        moved = []
        for rows in self.members(with_donors):
            by_row = measure(rows, [self.donors[row] for row in rows])
            moved.append(by_row[:, 0, ..., 0].double().numpy())
        a, b = moved
        return dict(zip(with_donors, (b - a) / 2, strict=True))

    def traced(self, group: Group) -> Iterator[dict[str, Any]]:
        """The rows of a trace of the group's pairs, with what same-sense donors do in each cell."""
        offsets = range(group.layout.first, 1)
        trace = partial(
            self.run, partial(positions.trace_positions, positions=offsets, heads=False)
        )
        same = self.same_sense(group.traced, lambda rows, donors: trace(rows, donors).stream)
        for row in trace(*self.members(group.traced)).rows():
            index = group.traced[row["pair"]]
            if index in same:
                component = positions.COMPONENTS.index(row["component"])
                cell = (component, row["layer"], row["pos"] - offsets[0])
                row = row | {"same_sense": same[index][cell], "same_gap": row["gap"]}
            yield row


def layouts(weights: Weights, result: WordResult, pair: PairResult, seed: int) -> list[Group]:
    """The pairs that are measured, in groups of one layout; at most PAIRS are traced, and as many
    held out."""
    layout_of: dict[int, Layout] = {}
    for index, rows in enumerate(zip(pair.pairs.a, pair.pairs.b, strict=True)):
        layout = _layout(result, *rows)
        if layout is not None:
            count = count_edges(result.depth, weights.shape[1], 1 - layout.first)
            if count <= MOST_EDGES:
                layout_of[index] = layout
    usable = list(layout_of)
    units = [pair.pairs.units[index] for index in usable]
    drawn = design.spread(units, len(usable), np.random.default_rng(seed))
    indices = [usable[number] for number in drawn]
    first = indices[:PAIRS]
    rest = indices[PAIRS:]
    groups = []
    for layout in sorted({layout_of[index] for index in first}):
        traced = [index for index in first if layout_of[index] == layout]
        others = [index for index in rest if layout_of[index] == layout]
        held_out = others[: len(traced)] or traced
        groups.append(Group(layout, tuple(traced), tuple(held_out)))
    return groups


def _layout(result: WordResult, a: int, b: int) -> Layout | None:
    """The layout of a pair; None where its members do not differ before the word, and where they
    are not equally long up to it.
    """
    one = result.texts[a]
    other = result.texts[b]
    if (len(one.ids), one.at) != (len(other.ids), other.at):
        return None
    both = enumerate(zip(one.ids, other.ids, strict=True))
    differing = [pos - one.at for pos, (token, its) in both if token != its]
    if not differing or differing[-1] >= 0:
        return None
    cue_ends = set()
    for row in (a, b):
        cue = result.material.cues[row]
        if cue is not None:
            cue_ends.add(cue[-1] - one.at)
    # Where no cue is marked, or the two end apart, the last token that differs is taken for it.
    cue_end = max(cue_ends) if len(cue_ends) == 1 and max(cue_ends) < 0 else differing[-1]
    return Layout(differing[0], cue_end)


def count_edges(depth: int, heads: int, count: int) -> int:
    """How many edges there are among `count` positions: a query, a key or a value of every head, an
    input of every MLP, from every sender before it.
    """
    total = 0
    for layer in range(depth):
        senders = 1 + layer * (heads + 1)
        # A query at every position; a key and a value at every pair of positions in order.
        into_heads = senders * heads * count * (count + 2)
        into_mlp = (senders + heads) * count
        total += into_heads + into_mlp
    return total


def most_runs(layers: int, heads: int, positions: int, edges: int) -> int:
    """Partial forwards that one word takes at most: traces, and totals of the edges that could
    reach enough, each with the other sense and with two donors of the same; totals of a sample;
    swaps of every head and MLP.
    """
    parts = positions * layers * (3 * 3 + heads + 1)
    return 2 * PAIRS * (parts + min(edges, MOST_TOTALS + SAMPLE) + 2 * min(edges, MOST_TOTALS))


# --- positions ------------------------------------------------------------------------------------


def _named(group: Group, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows with their positions named."""
    for row in rows:
        pos = int(row["pos"])
        behind = pos - group.layout.cue if pos else None
        yield {**row, "pos": group.name(pos), "behind": behind}


def _rows_of_head(edges: Edges, layer: int, head: int) -> list[dict[str, Any]]:
    """The swaps of one head's z at every position, as rows of a trace."""
    offsets = np.unique(edges.edges["receiver_pos"]).tolist()
    moved = edges.swapped[:, :, layer, head].double().numpy()  # pair recipient pos
    gap = edges.gap[:, 0].tolist()
    rows = []
    for pair in range(len(moved)):
        for number, pos in enumerate(offsets):
            rows.append(
                {
                    "component": positions.HEAD,
                    "layer": layer,
                    "head": head,
                    "pos": pos,
                    "gap": gap[pair],
                    "noise": -float(moved[pair, 0, number]),
                    "denoise": float(moved[pair, 1, number]),
                }
            )
    return rows


def _by_position(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Ratios of sums over the pairs that have the position."""
    measured = ["denoise", "noise", "gap", "same_sense", "same_gap"]
    frame = pd.DataFrame(rows, columns=[*PART_OF_RUN, *measured])
    grouped = frame.groupby([*PART_OF_RUN], sort=False, dropna=False)
    sums = grouped[measured].sum(min_count=1).join(grouped.size().rename("pairs"))
    denoise = sums["denoise"] / sums["gap"]
    noise = sums["noise"] / sums["gap"]
    shares = sums.assign(
        denoise=denoise,
        noise=noise,
        same_sense=sums["same_sense"] / sums["same_gap"],
        effect=(denoise + noise) / 2,
    )
    return shares.reset_index().drop(columns=["gap", "same_gap"])


# --- edges ----------------------------------------------------------------------------------------


def _names(group: Group, edges: Edges, numbers: Sequence[int]) -> pd.MultiIndex:
    """Edges with their positions named."""
    columns = {name: edges.edges[name][[*numbers]].tolist() for name in EDGE_FIELDS}
    for name in ("sender_pos", "receiver_pos"):
        columns[name] = [group.name(pos) for pos in columns[name]]
    return pd.MultiIndex.from_arrays(list(columns.values()), names=EDGE_FIELDS)


def _edges(
    by_group: Sequence[GroupEdges],
    table: Mapping[str, pd.DataFrame],
    runs: PairRuns,
    seed: int,
) -> pd.DataFrame:
    """The edges that do most, over all layouts, with intervals and tests; see the module's
    docstring. `table`: `_by_pair`"""
    pairs = [index for group, _ in by_group for index in group.traced]
    gap = runs.gap(pairs)
    moved = table["total"][pairs].fillna(0.0)
    size = moved.abs().sum(axis=1) / gap.sum()
    tested = min(int((size >= REACH).sum()), MOST_ROWS)
    listed = moved.index[resampling.order(size.to_numpy())[: max(tested, LEAST_ROWS)]]
    effect = moved.loc[listed].to_numpy().T  # pair edge
    units = runs.units(pairs)
    total = effect.sum(0) / gap.sum()
    weights = resampling.bootstrap_weights([units], seed=seed)
    draws = resampling.bootstrap_ratio(effect, gap, weights)
    low, high = resampling.interval(draws, total, units=len(set(units)))
    family = listed[:tested]
    columns = {
        "fraction": table["fraction"].loc[listed].mean(axis=1),
        "direct": table["direct"].loc[listed].fillna(0.0).sum(axis=1) / gap.sum(),
        "total": total,
        "low": low,
        "high": high,
        **_tests(by_group, runs, table["number"].loc[family], moved.loc[family], seed),
        "pairs": table["total"].loc[listed].notna().sum(axis=1),
    }
    return pd.DataFrame(columns, index=listed).iloc[resampling.order(np.abs(total))]


def _by_pair(by_group: Sequence[GroupEdges]) -> dict[str, pd.DataFrame]:
    """Fraction, direct and total of the edges that were run, and their number in their layout: one
    row an edge, one column a pair, missing where a layout does not have the edge."""
    parts: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for group, edges in by_group:
        were_run = np.flatnonzero(~edges.total[0, 0, :, 0].isnan().numpy()).tolist()
        index = _names(group, edges, were_run)
        values_by_name = {
            "fraction": edges.fraction.mean(1),
            "direct": _toward(edges.direct),
            "total": _toward(edges.total),
            "number": torch.arange(len(edges.edges)).expand(len(group.traced), -1),
        }
        for name, values in values_by_name.items():
            columns = list(group.traced)
            frame = pd.DataFrame(as_array(values)[:, were_run].T, index=index, columns=columns)
            parts[name].append(frame)
    return {name: pd.concat(frames, axis=1, sort=True) for name, frames in parts.items()}


def _tests(
    by_group: Sequence[GroupEdges],
    runs: PairRuns,
    numbers: pd.DataFrame,
    moved: pd.DataFrame,
    seed: int,
) -> dict[str, pd.Series]:
    """What same-sense donors do over the edges of the family, and p and q of what the other sense
    does beyond it."""
    same = pd.DataFrame(np.nan, index=moved.index, columns=moved.columns)
    for group, edges in by_group:
        of_layout = numbers[group.traced[0]].dropna().astype(int)
        if len(of_layout):
            array = edges.edges[of_layout.to_numpy()]
            measure = partial(runs.run, partial(total_effects, edges=array))
            for index, values in runs.same_sense(group.traced, measure).items():
                series = pd.Series(values, of_layout.index)
                same[index] = series.reindex(same.index, fill_value=0.0)
    compared = []
    for group, _ in by_group:
        compared += [index for index in group.traced if same[index].notna().all()]
    if not compared or moved.empty:
        return dict.fromkeys(("same_sense", "p", "q"), pd.Series(np.nan, index=moved.index))
    gap = runs.gap(compared)
    net = (moved[compared] - same[compared]).to_numpy().T / gap.mean()  # pair edge
    both_signs = np.stack([net, -net], axis=-1)
    tests = resampling.sign_flip_test(both_signs, runs.units(compared), seed=seed)
    columns = {
        "same_sense": same[compared].sum(axis=1) / gap.sum(),
        "p": tests.p.min(-1),
        "q": tests.q.min(-1),
    }
    return {name: pd.Series(values, moved.index) for name, values in columns.items()}


def _beside_nouns(
    by_group: Sequence[GroupEdges], runs: PairRuns, numbers: pd.DataFrame
) -> pd.DataFrame:
    """The general and the specific part of some edges' totals, over all pairs of the layouts;
    missing where no nouns stood in the word's place. `numbers`: of these edges in each layout, as
    in `_by_pair`"""
    listed = numbers.index
    nothing = pd.DataFrame(dict.fromkeys(PARTS, np.nan) | {"comparison": ""}, index=listed)
    compared = runs.pair.nouns
    if compared is None:
        return nothing
    chosen: list[int] = []
    noun_of: list[str] = []
    of_word: list[Array] = []
    of_noun: list[Array] = []
    for group, edges in by_group:
        here = numbers[group.traced[0]].notna().to_numpy()
        array = edges.edges[numbers.loc[here, group.traced[0]].to_numpy(int)]
        for noun in compared.in_place:
            pairs = sorted({*group.traced, *group.held_out} & {*noun.pairs})
            if pairs:
                word, its = np.zeros((2, len(pairs), len(listed)))  # 0 in a layout without the edge
                word[:, here], its[:, here] = runs.beside_noun(noun, pairs, array)
                chosen += pairs
                noun_of += [noun.noun] * len(pairs)
                of_word += [*word]
                of_noun += [*its]
    if len(set(runs.units(chosen))) < 2:
        return nothing
    in_its_gap = np.stack(of_word) / runs.gap(chosen).mean()
    pairs_compared = runs.pair.pairs.take(chosen)
    parts = compare_pairwise(in_its_gap, np.stack(of_noun), pairs_compared, noun_of)
    frame = pd.DataFrame(joined_parts([parts]) | {"net": parts.net}, index=listed)
    return frame.assign(comparison=comparisons(frame)).drop(columns="net")


def _toward(moved: Tensor) -> Tensor:
    """How far the read-out moves toward the donor, both ways averaged. `pair recipient edge
    direction -> pair edge`"""
    noise, denoise = moved[..., 0].double().unbind(1)
    return (denoise - noise) / 2


# --- paths ----------------------------------------------------------------------------------------


def _paths(runs: PairRuns, chained: Sequence[GroupPaths], edges: pd.DataFrame) -> pd.DataFrame:
    """One row a step of every path, best path first; shares are of the gap of all pairs that paths
    are measured on."""
    gap = np.array([runs.gap(group.held_out).sum() for group, _, _ in chained])
    weight = gap / gap.sum()  # of each layout
    shares: dict[tuple[Step, ...], float] = defaultdict(float)
    pairs: dict[tuple[Step, ...], int] = defaultdict(int)
    for (group, found, measured), part in zip(chained, weight, strict=True):
        for numbers, share in zip(measured.paths, measured.shares, strict=True):
            steps = tuple(_names(group, found, numbers).tolist())
            shares[steps] += float(part * share)
            pairs[steps] += len(group.held_out)
    large = [path for path in shares if abs(shares[path]) >= LEAST]
    leading = sorted(large, key=lambda path: (-round(abs(shares[path]), DIGITS), str(path)))
    of_all = _together(chained, weight)
    p_of_edge = edges["p"].fillna(1.0).to_dict()
    rows = []
    for number, path in enumerate(leading):
        of_path = {
            "share": shares[path],
            "p": max(p_of_edge.get(step, 1.0) for step in path),  # of its least sure step
            "pairs": pairs[path],
        }
        for turn, step in enumerate(path):
            fields = dict(zip(EDGE_FIELDS, step, strict=True))
            rows.append({"path": number, "step": turn, **fields, **of_path, **of_all})
    return pd.DataFrame(rows, columns=[name for name in PATH_COLUMNS if name not in KEYS])


def _together(chained: Sequence[GroupPaths], weight: Array) -> dict[str, float | int | None]:
    """What goes over all paths at once, over the circuit, and over random sets of as many edges,
    the layouts weighted by their gaps."""
    circuit: set[Step] = set()
    for group, found, measured in chained:
        circuit |= set(_names(group, found, measured.circuit or ()).tolist())
    has_circuit = all(measured.circuit for *_, measured in chained)
    # A layout in which no sets were drawn counts as one in which nothing goes over them.
    random = weight @ [np.resize(measured.random_shares, RANDOM_SETS) for *_, measured in chained]
    return {
        "together": float(weight @ [measured.together for *_, measured in chained]),
        "size": len(circuit) if has_circuit else None,
        "kept": float(weight @ [measured.circuit_share for *_, measured in chained]),
        "random": float(random.mean()),
        "random_high": float(random.max()),
    }
