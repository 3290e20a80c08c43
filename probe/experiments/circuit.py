"""From the cue to the word: where the sense travels, over which edges, and which whole paths carry
it.

Measured for the clearest pair of senses of a word whose gap is there, on aligned pairs, in causal
models; read at L*, along the axis that was fitted without the pair. The members of a pair
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
(`probe.experiments.nouns`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probe.experiments import design
from probe.experiments.nouns import PlacedNoun, noun_runs
from probe.experiments.observe import Observation, clearest
from probe.experiments.plan import Size, Work
from probe.experiments.prepare import Prepared
from probe.experiments.run import Run
from probe.model.records import as_array
from probe.model.weights import Weights
from probe.patching import positions
from probe.patching.edges import EDGE_DTYPE, REACH, SAMPLE, EdgeArray, Edges, total_effects
from probe.patching.edges import edges as every_edge
from probe.patching.paths import Paths, composition
from probe.patching.paths import paths as chain_paths
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import ALIGNED

PAIRS = 8  # on which positions and edges are measured; as many others for paths
MOST_TOTALS = 500  # edges of a layout whose total effect is run
MOST_EDGES = 1_000_000  # of a layout: as many are held in memory at once for every pair
LEAST_ROWS = 200  # of the table of edges, tested or not
MOST_ROWS = 1000  # edges that are tested: p is of the largest of them all, so more would cost power
BESIDE_NOUNS = 40  # edges of the table that are compared with unambiguous nouns
RANDOM_SETS = 100  # of edges, next to the circuit of each layout
WORD = "word"
CUE = "cue"
EDGE_FIELDS = tuple(EDGE_DTYPE.names or ())
# The same with the names of positions.
EDGE_WITH_NAMES = np.dtype(
    [(name, "U16" if name.endswith("_pos") else EDGE_DTYPE[name]) for name in EDGE_FIELDS]
)
EdgeKey = tuple[Any, ...]  # the fields of an edge, its positions named


@dataclass(frozen=True, eq=False)
class Positions:
    """Swaps of one part of a run at one layer and position: a row for every pair.

    component, layer, head, pos: which part, and where; head is None for what is no head.
    behind: positions after the cue, None at the word.
    denoise, noise, gap: numerators and denominator of the effect. `row`
    same_sense, same_gap: the same with a donor of the same sense; NaN without one. `row`
    """

    component: tuple[str, ...]
    layer: tuple[int, ...]
    head: tuple[int | None, ...]
    pos: tuple[str, ...]
    behind: tuple[int | None, ...]
    denoise: Array
    noise: Array
    gap: Array
    same_sense: Array
    same_gap: Array


@dataclass(frozen=True, eq=False)
class EdgeSwaps:
    """The edges that do most, the largest total effect first.

    keys: the fields of each edge.
    fraction, direct, total: of each pair, NaN where it does not have the edge or it was not run.
        `edge pair`
    same_sense: the total with a donor of the same sense; NaN where the pair has none. `edge pair`
    family: whether the edge is tested. `edge`
    composition: of the weights of its two heads. `edge`
    gap, units: of each pair.
    nouns, noun_pairs: the noun and the pair of each swap with a noun in the word's place.
    of_word, of_noun: the total effects of the first BESIDE_NOUNS edges in these pairs, for the word
        and for the noun; the latter in units of the residual stream. `swap edge`
    """

    keys: tuple[EdgeKey, ...]
    fraction: Array
    direct: Array
    total: Array
    same_sense: Array
    family: NDArray[np.bool_]
    composition: Array
    gap: Array
    units: tuple[int, ...]
    nouns: tuple[str, ...]
    noun_pairs: tuple[int, ...]
    of_word: Array
    of_noun: Array


@dataclass(frozen=True, eq=False)
class PathShares:
    """Chains of edges from the cue to the word, over all layouts.

    paths: the edges of each. share: of the gap that goes over it alone. pairs: it was measured on.
    together: over all at once. circuit: edges that are enough, None where not even all are.
    kept: over the circuit. random: over as many edges, drawn at random. `set`
    """

    paths: tuple[tuple[EdgeKey, ...], ...]
    share: Array
    pairs: tuple[int, ...]
    together: float
    circuit: tuple[EdgeKey, ...] | None
    kept: float
    random: Array


@dataclass(frozen=True, eq=False)
class Circuit:
    """From the cue to the word, for the clearest two senses.

    edges, paths: None in a hybrid, where what else carries and gates has no edges.
    """

    senses: tuple[str, str]
    positions: Positions
    edges: EdgeSwaps | None
    paths: PathShares | None


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


RECORDS = (Circuit, Positions, EdgeSwaps, PathShares)


def measure(run: Run) -> Circuit | None:
    """The circuit of the clearest two senses that were swapped; None where nothing was."""
    if not run.swapped:
        return None
    gates = [run.pairs[each.number].gates for each in run.swapped]
    first = run.swapped[clearest([each.gap for each in gates], [each.largest_t for each in gates])]
    return measure_circuit(
        run.weights,
        run.seen,
        first.prepared,
        [each.placed for each in noun_runs(run, first.number)],
        run.leaders,
        seed=run.options.seed,
    )


def work(size: Size) -> Work:
    """Traces, and totals of the edges that could reach enough, each with the other sense and with
    a donor of the same; totals of a sample; swaps of every head and MLP."""
    if not size.causal:
        return Work()
    edges = edges_of(size)
    totals = min(edges, MOST_TOTALS + SAMPLE) + min(edges, MOST_TOTALS)
    swaps = _traces(size.positions, size.layers, size.heads) + 2 * PAIRS * totals
    # A word is usually read halfway up, and few edges could reach enough.
    usual = _traces(size.usual_positions, max(1, size.layers // 2), size.heads)
    return Work(swaps=swaps, unlikely=swaps - usual)


def _traces(positions: int, layers: int, heads: int) -> int:
    return 2 * PAIRS * positions * layers * (2 * 3 + heads + 1)


def edges_of(size: Size) -> int:
    """How many edges are held at once for every pair; none in an encoder, which is not traced."""
    if not size.causal:
        return 0
    return min(count_edges(size.layers, size.heads, size.positions), MOST_EDGES)


def measure_circuit(
    weights: Weights,
    seen: Observation,
    pair: Prepared,
    nouns: Sequence[PlacedNoun],
    leaders: Sequence[HeadIndex],
    *,
    seed: int,
) -> Circuit | None:
    """Trace two senses of a word whose heads were swapped.

    nouns: that stood in the word's place. leaders: heads that are also swapped at every position.
    Returns None where a model reads both ways or no pairs are aligned.
    """
    if not seen.causal:
        return None
    runs = PairRuns(weights, seen, pair, nouns)
    aligned = runs.pair.pairs.design == ALIGNED
    groups = layouts(weights, runs, seed) if aligned else []
    if not groups:
        return None
    senses = pair.sense.senses
    moved = [row for group in groups for row in _named(group, runs.traced(group))]
    if not weights.config.attends_plainly:
        return Circuit(senses, _positions(moved), None, None)
    every = partial(every_edge, most=MOST_TOTALS, seed=seed)
    by_group = [GroupEdges(group, runs.run(every, *runs.members(group.traced))) for group in groups]
    for layer, head in leaders:
        if layer < runs.depth:  # heads after the read-out layer have not been swapped
            for group, found in by_group:
                moved += _named(group, _rows_of_head(found, layer, head))
    edges = _edges(by_group, runs)
    chain = partial(chain_paths, seed=seed, draws=RANDOM_SETS)
    chained = [
        GroupPaths(group, found, runs.run(chain, *runs.members(group.held_out), found))
        for group, found in by_group
    ]
    return Circuit(senses, _positions(moved), edges, _paths(runs, chained))


# --- the pairs ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PairRuns:
    """How the pairs of two senses are run: their texts, and the axes along which they are read at
    L*."""

    weights: Weights
    seen: Observation
    pair: Prepared
    nouns: Sequence[PlacedNoun]

    @property
    def depth(self) -> int:
        """Where the word is read."""
        return self.seen.depth

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
        texts_a = [self.seen.texts[row] for row in a]
        texts_b = [self.seen.texts[row] for row in b]
        # pair direction d_model
        along: Tensor = self.pair.sense.axes.directions(a)[:, [self.depth]]
        return measure(self.weights, texts_a, texts_b, along, *more, depth=self.depth, **options)

    def of_word(self, pairs: Sequence[int], edges: EdgeArray) -> Array:
        """The total effects of edges for the word. `-> pair edge`"""
        measure = partial(total_effects, edges=edges)
        return np.asarray(_toward(self.run(measure, *self.members(pairs))))

    def of_noun(self, noun: PlacedNoun, pairs: Sequence[int], edges: EdgeArray) -> Array:
        """The same with a noun in the word's place, in units of the residual stream. `-> pair
        edge`"""
        a, b = self.members(pairs)
        texts = noun.texts(self.seen.texts)
        moved = total_effects(
            self.weights,
            [texts[row] for row in a],
            [texts[row] for row in b],
            noun.axes.directions(a)[:, [self.depth]],
            edges,
            depth=self.depth,
        )
        return np.asarray(_toward(moved))

    def gap(self, pairs: Sequence[int]) -> Array:
        """The gap of some pairs at L*."""
        return np.asarray(self.pair.gap[list(pairs), self.depth])

    def units(self, pairs: Sequence[int]) -> list[int]:
        """Their pairs of cue words."""
        return [self.pair.pairs.units[index] for index in pairs]

    @cached_property
    def donors(self) -> dict[int, int]:
        """A donor of the same sense and of the same layout, for every row that has one."""
        texts = self.seen.texts
        material = self.seen.material
        rng = np.random.default_rng(self.pair.pairs.seed)
        donors: dict[int, int] = {}
        rows_by_sense = (self.pair.pairs.a, self.pair.pairs.b)
        split = self.pair.sense.split
        for is_a, rows in zip((True, False), rows_by_sense, strict=True):
            members = [
                row for row, of_a in zip(split.rows, split.is_a, strict=True) if of_a == is_a
            ]
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

        `measure(rows, donors)`: how far rows move, `-> row recipient ... direction`, of which there
        is one recipient.
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
        measure = partial(positions.trace_positions, positions=offsets, heads=False)
        trace = partial(self.run, measure)
        one_way = partial(self.run, partial(measure, both_ways=False))
        same = self.same_sense(group.traced, lambda rows, donors: one_way(rows, donors).stream)
        for row in trace(*self.members(group.traced)).rows():
            index = group.traced[row["pair"]]
            if index in same:
                component = positions.COMPONENTS.index(row["component"])
                cell = (component, row["layer"], row["pos"] - offsets[0])
                row = row | {"same_sense": same[index][cell], "same_gap": row["gap"]}
            yield row


def layouts(weights: Weights, runs: PairRuns, seed: int) -> list[Group]:
    """The pairs that are measured, in groups of one layout; at most PAIRS are traced, and as many
    held out."""
    pairs = runs.pair.pairs
    layout_of: dict[int, Layout] = {}
    for index, rows in enumerate(zip(pairs.a, pairs.b, strict=True)):
        layout = _layout(runs.seen, *rows)
        if layout is not None:
            count = count_edges(runs.depth, weights.shape[1], 1 - layout.first)
            if count <= MOST_EDGES:
                layout_of[index] = layout
    usable = list(layout_of)
    units = [pairs.units[index] for index in usable]
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


def _layout(seen: Observation, a: int, b: int) -> Layout | None:
    """The layout of a pair; None where its members do not differ before the word, and where they
    are not equally long up to it.
    """
    one = seen.texts[a]
    other = seen.texts[b]
    if (len(one.ids), one.at) != (len(other.ids), other.at):
        return None
    both = enumerate(zip(one.ids, other.ids, strict=True))
    differing = [pos - one.at for pos, (token, its) in both if token != its]
    if not differing or differing[-1] >= 0:
        return None
    cue_ends = set()
    for row in (a, b):
        cue = seen.material.cues[row]
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


def _positions(rows: Sequence[Mapping[str, Any]]) -> Positions:
    """The rows by their fields."""
    names = ("component", "layer", "head", "pos", "behind")
    fields: dict[str, Any] = {name: tuple(row[name] for row in rows) for name in names}
    for name in ("denoise", "noise", "gap", "same_sense", "same_gap"):
        fields[name] = np.array([row.get(name, np.nan) for row in rows], dtype=float)
    return Positions(**fields)


# --- edges ----------------------------------------------------------------------------------------


def _keys(group: Group, edges: Edges, numbers: Sequence[int]) -> list[EdgeKey]:
    """The fields of some edges, with their positions named."""
    columns = {name: edges.edges[name][[*numbers]].tolist() for name in EDGE_FIELDS}
    for name in ("sender_pos", "receiver_pos"):
        columns[name] = [group.name(pos) for pos in columns[name]]
    return list(zip(*columns.values(), strict=True))


@dataclass(frozen=True, eq=False)
class _ByPair:
    """The edges of all layouts that were run, a column for each pair.

    keys: sorted, so that the order does not depend on the layouts.
    number: of the edge in each layout, -1 where the layout does not have it. `edge group`
    """

    keys: list[EdgeKey]
    pairs: list[int]
    fraction: Array
    direct: Array
    total: Array
    number: NDArray[np.intp]


def _by_pair(by_group: Sequence[GroupEdges]) -> _ByPair:
    """Fraction, direct and total of the edges that were run in some layout."""
    were_run = [
        np.flatnonzero(~edges.total[0, 0, :, 0].isnan().numpy()).tolist() for _, edges in by_group
    ]
    keys_of_group = [
        _keys(group, edges, numbers)
        for (group, edges), numbers in zip(by_group, were_run, strict=True)
    ]
    keys = sorted({key for of_group in keys_of_group for key in of_group})
    place = {key: number for number, key in enumerate(keys)}
    pairs = [index for group, _ in by_group for index in group.traced]
    values = {name: np.full((len(keys), len(pairs)), np.nan) for name in ("f", "d", "t")}
    number = np.full((len(keys), len(by_group)), -1)
    first = 0
    for column, (group, edges) in enumerate(by_group):
        rows = [place[key] for key in keys_of_group[column]]
        numbers = were_run[column]
        number[rows, column] = numbers
        columns = slice(first, first + len(group.traced))
        first += len(group.traced)
        values["f"][rows, columns] = as_array(edges.fraction.mean(1))[:, numbers].T
        values["d"][rows, columns] = _toward(edges.direct).numpy()[:, numbers].T
        values["t"][rows, columns] = _toward(edges.total).numpy()[:, numbers].T
    return _ByPair(keys, pairs, values["f"], values["d"], values["t"], number)


def _edges(by_group: Sequence[GroupEdges], runs: PairRuns) -> EdgeSwaps:
    """The edges that do most, over all layouts; see the module's docstring."""
    table = _by_pair(by_group)
    gap = runs.gap(table.pairs)
    moved = np.nan_to_num(table.total)  # edge pair
    size = np.abs(moved).sum(1) / gap.sum()
    tested = min(int((size >= REACH).sum()), MOST_ROWS)
    listed = resampling.order(size)[: max(tested, LEAST_ROWS)]
    total = moved[listed].sum(1) / gap.sum()
    by_total = resampling.order(np.abs(total))
    rows = listed[by_total]
    family = by_total < tested
    keys = [table.keys[row] for row in rows]
    nouns, noun_pairs, of_word, of_noun = _beside_nouns(
        by_group, runs, table.number[rows[:BESIDE_NOUNS]]
    )
    as_edges = np.array([key for key in keys], dtype=EDGE_WITH_NAMES)
    return EdgeSwaps(
        keys=tuple(keys),
        fraction=table.fraction[rows],
        direct=table.direct[rows],
        total=table.total[rows],
        same_sense=_same_sense(by_group, runs, table, rows, family),
        family=family,
        composition=composition(runs.weights, as_edges),
        gap=gap,
        units=tuple(runs.units(table.pairs)),
        nouns=nouns,
        noun_pairs=noun_pairs,
        of_word=of_word,
        of_noun=of_noun,
    )


def _same_sense(
    by_group: Sequence[GroupEdges],
    runs: PairRuns,
    table: _ByPair,
    rows: NDArray[np.intp],
    family: NDArray[np.bool_],
) -> Array:
    """What same-sense donors do over the edges of the family: 0 where a layout does not have the
    edge, NaN for the pairs without such donors, and outside the family. `-> edge pair`"""
    same = np.full((len(rows), len(table.pairs)), np.nan)
    for column, (group, edges) in enumerate(by_group):
        numbers = table.number[rows, column]
        here = np.flatnonzero(family & (numbers >= 0))
        if not len(here):
            continue
        some = edges.edges[numbers[here]]
        measure = partial(runs.run, partial(total_effects, edges=some, both_ways=False))
        for index, values in runs.same_sense(group.traced, measure).items():
            pair = table.pairs.index(index)
            same[family, pair] = 0.0
            same[here, pair] = values
    return same


def _beside_nouns(
    by_group: Sequence[GroupEdges], runs: PairRuns, number: NDArray[np.intp]
) -> tuple[tuple[str, ...], tuple[int, ...], Array, Array]:
    """The totals of some edges for the word and for nouns in its place, over all pairs of the
    layouts: the noun and the pair of every swap, and `swap edge`, twice.

    number: of these edges in each layout. `edge group`
    """
    nouns: list[str] = []
    chosen: list[int] = []
    of_word: list[Array] = []
    of_noun: list[Array] = []
    for column, (group, edges) in enumerate(by_group):
        here = number[:, column] >= 0
        if not here.any():
            continue
        array = edges.edges[number[here, column]]
        of_group = {*group.traced, *group.held_out}
        compared = sorted(of_group & {pair for noun in runs.nouns for pair in noun.pairs})
        if not compared:
            continue
        # What an edge does for the word is the same next to every noun, so it is run once.
        by_pair = np.zeros((len(compared), len(number)))  # 0 in a layout without the edge
        by_pair[:, here] = runs.of_word(compared, array)
        word = dict(zip(compared, by_pair, strict=True))
        for noun in runs.nouns:
            pairs = sorted(of_group & {*noun.pairs})
            if not pairs:
                continue
            its = np.zeros((len(pairs), len(number)))
            its[:, here] = runs.of_noun(noun, pairs, array)
            chosen += pairs
            nouns += [noun.noun] * len(pairs)
            of_word += [word[pair] for pair in pairs]
            of_noun += [*its]
    blank = np.empty((0, len(number)))
    if not chosen:
        return (), (), blank, blank
    return tuple(nouns), tuple(chosen), np.stack(of_word), np.stack(of_noun)


def _toward(moved: Tensor) -> Tensor:
    """How far the read-out moves toward the donor, both ways averaged. `pair recipient edge
    direction -> pair edge`"""
    noise, denoise = moved[..., 0].double().unbind(1)
    return (denoise - noise) / 2


# --- paths ----------------------------------------------------------------------------------------


def _paths(runs: PairRuns, chained: Sequence[GroupPaths]) -> PathShares:
    """Paths and circuit over all layouts, which are weighted by the gap of the pairs that paths are
    measured on."""
    gap = np.array([runs.gap(group.held_out).sum() for group, _, _ in chained])
    weight = gap / gap.sum()  # of each layout
    shares: dict[tuple[EdgeKey, ...], float] = {}
    pairs: dict[tuple[EdgeKey, ...], int] = {}
    circuit: set[EdgeKey] = set()
    for (group, found, measured), part in zip(chained, weight, strict=True):
        circuit |= set(_keys(group, found, measured.circuit or ()))
        for numbers, share in zip(measured.paths, measured.shares, strict=True):
            steps = tuple(_keys(group, found, numbers))
            shares[steps] = shares.get(steps, 0.0) + float(part * share)
            pairs[steps] = pairs.get(steps, 0) + len(group.held_out)
    has_circuit = all(measured.circuit for *_, measured in chained)
    # A layout in which no sets were drawn counts as one in which nothing goes over them.
    random = weight @ [np.resize(measured.random_shares, RANDOM_SETS) for *_, measured in chained]
    return PathShares(
        paths=tuple(shares),
        share=np.array(list(shares.values())),
        pairs=tuple(pairs.values()),
        together=float(weight @ [measured.together for *_, measured in chained]),
        circuit=tuple(sorted(circuit)) if has_circuit else None,
        kept=float(weight @ [measured.circuit_share for *_, measured in chained]),
        random=random,
    )
