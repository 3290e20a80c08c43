"""From the cue to the word: where the sense travels, and over which edges.

Measured in causal models, on aligned pairs, for the two senses whose gap is clearest. The word is
read at L*, along the axis that was fitted without the pair.

The two members of a pair have the same number of tokens. Pairs are measured layout by layout: how
far before the word the members begin to differ, and where the cue ends. The layouts are then
combined, with the cue and the word aligned. Positions are named after the cue: "cue" is its last
token, "cue - 1" the token before that, "cue + 1" the first token after the cue, and so on, up to
"word".

`positions` and `edges` are measured on at most PAIRS pairs, spread over pairs of cue words. Pairs
whose cue is so far from the word that there would be more than MOST_EDGES edges are excluded.

Which edges are tested: edges that move the word by at least REACH of the gap (mean of absolute
values over pairs), at most MOST_ROWS of them. Flipping signs does not change this selection, so the
tests remain valid. p is of max-T over the tested edges, both signs, with whole pairs of cue words
flipped. The table lists the tested edges. If they are fewer than LEAST_ROWS, it adds the next
largest, untested. An edge counts as 0 for a pair that does not have it, and in a layout in which it
could not reach REACH and was not run.

Every swap of a part or an edge is compared with a swap from a same-sense donor: a sentence of the
same sense and layout, with another cue word and, if there is one, the same frame. The tests are of
the effect beyond that donor's, over the pairs whose members both have one. An edge that carries
something else that has to match is therefore not counted as an edge of the sense.

The first BESIDE_NOUNS edges are run again with unambiguous nouns in the word's position, on these
pairs and on as many others of the same layouts, if there are any. The nouns are those that heads
are compared with (`probe.experiments.nouns`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.experiments import design
from probe.experiments.beside_nouns import PartComparison, compare_with_nouns, joined_parts
from probe.experiments.columns import (
    KEYS,
    Column,
    Table,
    as_elsewhere,
    dataset,
    key_of,
    listed,
)
from probe.experiments.design import pairs_of
from probe.experiments.nouns import NounInPlace, noun_runs
from probe.experiments.observe import Observation, clearest
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord
from probe.experiments.run import LEADERS, WordRun
from probe.model.records import as_array
from probe.model.variants import TargetText
from probe.model.weights import Weights
from probe.patching import positions
from probe.patching.edges import (
    EDGE_DTYPE,
    REACH,
    EdgeArray,
    Edges,
    composition,
    total_effects,
)
from probe.patching.edges import edges as every_edge
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import ALIGNED
from probe.verdicts import PARTS, comparisons

if TYPE_CHECKING:
    import xarray as xr

ORDER = 50
NEEDS = ("nouns",)
ANSWERS = False
SECONDS = 35.0
HEADING = "travels"
TITLE = "From the cue to the word"
PAIRS = 8  # pairs that positions and edges are measured on
MOST_TOTALS = 500  # edges of a layout whose total effect is run
MOST_EDGES = 1_000_000  # edges of a layout, which are all held in memory, for every pair
LEAST_ROWS = 200  # rows of the table of edges, tested or not
MOST_ROWS = 1000  # tested edges: p is corrected for all of them, so more would cost power
BESIDE_NOUNS = 40  # edges of the table that are compared with unambiguous nouns
WORD = "word"
CUE = "cue"
EDGE_FIELDS = tuple(EDGE_DTYPE.names or ())
# The fields of an edge, with names of positions instead of numbers.
EDGE_WITH_NAMES = np.dtype(
    [(name, "U16" if name.endswith("_pos") else EDGE_DTYPE[name]) for name in EDGE_FIELDS]
)
EdgeKey = tuple[Any, ...]  # the fields of an edge, as in EDGE_WITH_NAMES


class Layout(NamedTuple):
    """The layout of a pair. Positions are counted from the word, which is 0.

    first: the first position at which the members differ
    cue: the last position of the cue
    """

    first: int
    cue: int


@dataclass(frozen=True, eq=False)
class Group:
    """Pairs of one layout, as indices among the pairs of their senses.

    traced: pairs that positions and edges are measured on
    compared: pairs in which edges are compared with unambiguous nouns, `traced` among them
    """

    layout: Layout
    traced: tuple[int, ...]
    compared: tuple[int, ...]

    def name(self, pos: int) -> str:
        """The name of a position that is counted from the word."""
        if pos == 0:
            return WORD
        after_cue = pos - self.layout.cue
        if after_cue == 0:
            return CUE
        sign = "+" if after_cue > 0 else "-"
        return f"{CUE} {sign} {abs(after_cue)}"


class GroupEdges(NamedTuple):
    """The edges of the pairs of one layout."""

    group: Group
    measured: Edges


PART_OF_RUN = ("component", "layer", "head", "pos", "behind")
ENDS = tuple(name for name in EDGE_FIELDS if name.endswith(("layer", "head")))
GAP = "fraction of the sense gap"


def by_position(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each part of a run and position.

    effect = (denoise + noise) / 2, each Σ effects / Σ gaps over the pairs with the position
    """
    grouped = data.to_dataframe().groupby([*PART_OF_RUN], sort=False, dropna=False)
    measured = ["denoise", "noise", "gap", "same_sense", "same_gap"]
    sums = grouped[measured].sum(min_count=1).join(grouped.size().rename("pairs"))
    denoise = sums["denoise"] / sums["gap"]
    noise = sums["noise"] / sums["gap"]
    shares = sums.assign(
        denoise=denoise,
        noise=noise,
        same_sense=sums["same_sense"] / sums["same_gap"],
        effect=(denoise + noise) / 2,
    )
    return shares.reset_index().assign(**key_of(record, data))


def by_edge(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each edge, the largest total first, with tests and intervals over cue words."""
    key = key_of(record, data)
    number = [key_of(record, each) for each in record.senses].index(key)
    heads = record.of_pairs("heads")[number]
    assert heads is not None  # edges are measured where heads were swapped
    permutations = heads.permutations.item()
    gap = data.gap.values
    moves = np.nan_to_num(data.total.values)  # edge sentence_pair
    total = moves.sum(1) / gap.sum()
    units = data.units.values.tolist()
    weights = resampling.bootstrap_weights([units], seed=data.seed.item())
    draws = resampling.bootstrap_ratio(moves.T, gap, weights)
    low, high = resampling.interval(draws, total, units=len(set(units)))
    frame = pd.DataFrame({name: data[name].values for name in EDGE_FIELDS})
    # A negative layer or head marks the embeddings or an MLP.
    frame = frame.assign(**{name: frame[name].where(frame[name] >= 0) for name in ENDS})
    frame = frame.assign(
        **key,
        fraction=np.nanmean(data.fraction.values, axis=1),
        direct=np.nan_to_num(data.direct.values).sum(1) / gap.sum(),
        total=total,
        low=low,
        high=high,
        **_tests(data, moves, permutations),
        pairs=(~np.isnan(data.total.values)).sum(1),
        composition=data.composition.values,
        **dict.fromkeys(PARTS, np.nan),
        comparison="",
    )
    nouns = record.of_pairs("nouns")[number]
    compared = None
    if nouns is not None:
        compared = _beside_nouns(data, record.senses[number], nouns, record.depth, permutations)
    if compared:
        parts = pd.DataFrame(dict(joined_parts([compared]))).assign(net=compared.net)
        first = frame.index[: len(parts)]
        frame.loc[first, [*PARTS]] = parts[[*PARTS]].to_numpy()
        frame.loc[first, "comparison"] = comparisons(parts)
    return frame


def _tests(data: "xr.Dataset", moves: Array, permutations: int) -> dict[str, Array]:
    """The effect of same-sense donors, and p and q of the net effect. `edge` each

    net = effect of the other sense's donor - effect of a same-sense donor

    moves: how far each edge moves the word. `edge sentence_pair`

    Only pairs with a same-sense donor count. NaN for edges that are not tested.
    """
    columns = {name: np.full(len(moves), np.nan) for name in ("same_sense", "p", "q")}
    family = data.family.values
    compared = ~np.isnan(data.same_sense.values[family]).any(0)
    if not family.any() or not compared.any():
        return columns
    gap = data.gap.values[compared]
    same = data.same_sense.values[family][:, compared]
    net = (moves[family][:, compared] - same).T / gap.mean()  # sentence_pair edge
    both_signs = np.stack([net, -net], axis=-1)  # the test is two-sided
    units = data.units.values[compared].tolist()
    tests = resampling.flip_signs(both_signs, units, seed=data.seed.item(), draws=permutations)
    columns["same_sense"][family] = same.sum(1) / gap.sum()
    columns["p"][family] = tests.p.min(-1)
    columns["q"][family] = tests.q.min(-1)
    return columns


def _beside_nouns(
    data: "xr.Dataset", senses: "xr.Dataset", nouns: "xr.Dataset", depth: int, permutations: int
) -> PartComparison | None:
    """How far the first edges move the word, and nouns in its place, along their own axes."""
    names = nouns.noun.values.tolist()
    numbers = data.noun_pair.values
    raw_gap = senses.raw_gaps.values
    gap = senses.gaps.values[numbers, depth].mean() if len(numbers) else 1.0
    of_word = data.of_word.values / gap * raw_gap[:, depth].mean()
    of_noun = data.of_noun.values
    return compare_with_nouns(
        pairs_of(senses),
        raw_gap,
        nouns,
        word=of_word[..., None],
        noun=of_noun[..., None],
        at=np.full(of_noun.shape[1], depth),
        pair_of=numbers,
        noun_of=np.array([names.index(noun) for noun in data.noun.values], dtype=np.intp),
        permutations=permutations,
    )


# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "effect": Column("mean of denoise and noise", "fraction of the sense gap"),
    "sender_layer": Column("block of the sender, counted from 0. Missing for the embeddings."),
    "sender_head": Column(
        "attention head of the sender. Missing for an MLP and for the embeddings."
    ),
    "sender_pos": Column(
        "position of the sender: cue, cue + 1 for the first token after it, and so on, or word"
    ),
    "receiver_layer": Column("block of the receiver, counted from 0"),
    "receiver_head": Column("attention head of the receiver. Missing for an MLP."),
    "receiver_pos": Column("position of the receiver, named like sender_pos"),
    "channel": Column(
        "the receiver's input: the query, key or value of a head, or the input of an MLP"
    ),
    "fraction": Column(
        "how much of the effect of swapping the receiver the edge alone causes. 1 is all of it.",
        "fraction of the receiver's swap",
    ),
    "composition": Column(
        "composition score of the two heads of an edge, from their weights alone and without any "
        "text: how much of the sender's output the receiver can read. Missing if an end is not a "
        "head.",
        "0 to 1",
    ),
}
TABLES = {
    "positions": Table(
        "effects of single positions: swaps of the residual stream, attention, MLP and top heads, "
        "by layer and position",
        {
            **as_elsewhere(*KEYS),
            "component": Column(
                "the component that was swapped at the position. resid_pre: the residual stream "
                "that enters the block. attn_out: the sum of its heads' outputs. mlp_out: its "
                "MLP's output. Or a head."
            ),
            **as_elsewhere("layer"),
            "head": Column(
                "attention head, one of the top heads. Missing for a component that is not a head."
            ),
            "pos": Column("cue, cue + 1 for the first token after it, and so on, or word"),
            "behind": Column(
                "number of tokens from the end of the cue to the position. Missing for the word.",
                "tokens",
            ),
            "denoise": Column(
                "how far the word moves toward A if B takes A's component at the position", GAP
            ),
            "noise": Column(
                "how far the word moves toward B if A takes B's component at the position", GAP
            ),
            **as_elsewhere("effect"),
            "same_sense": Column(
                "effect of same-sense donors at the position, toward the other sense. Missing "
                "without such donors.",
                GAP,
            ),
            "pairs": Column("pairs of sentences that have the position", "count"),
        },
        by_position,
        missing=("layer", "head", "behind", "pairs"),
    ),
    "edges": Table(
        "edges between senders and receivers from the cue to the word: effect, interval, p",
        {
            **as_elsewhere(*KEYS, *EDGE_FIELDS, "fraction"),
            "direct": Column(
                "effect of the edge on the word with everything after the receiver frozen: the "
                "receiver's direct write at the word",
                GAP,
            ),
            "total": Column(
                "effect of the edge on the word with everything after the receiver recomputed", GAP
            ),
            "low": Column(
                "lower end of the 95 % bootstrap interval of total, with resampled pairs of cue "
                "words",
                GAP,
            ),
            "high": Column(
                "upper end of the 95 % bootstrap interval of total, with resampled pairs of cue "
                "words",
                GAP,
            ),
            "same_sense": Column(
                "effect of the edge with same-sense donors, toward the other sense. Missing if the "
                "edge was not tested.",
                GAP,
            ),
            "p": Column(
                "max-T p that the edge moves the word in either direction beyond same-sense "
                "donors, corrected for every tested edge. Missing if the edge was not tested.",
                "0 to 1",
            ),
            "q": Column("false discovery rate of the edge's effect (Benjamini-Hochberg)", "0 to 1"),
            "pairs": Column(
                "pairs of sentences in which the edge was run. In the others its effect counts as "
                "0.",
                "count",
            ),
            **as_elsewhere("composition"),
            "nouns": Column(
                "total effect of the edge on unambiguous nouns in the word's place, along each "
                "noun's axis",
                "fraction of the word's gap",
            ),
            "more": Column(
                "total effect on the word minus that on nouns, paired by cue word, for the edges "
                "that were compared: the first 40. It is measured along each noun's axis only.",
                "fraction of the word's gap",
            ),
            **as_elsewhere(*(name for name in PARTS if name not in ("nouns", "more"))),
            **as_elsewhere("comparison"),
        },
        by_edge,
        missing=(*ENDS, "pairs"),
    ),
}
# What the datasets contain in addition to columns of the tables, or for each pair of sentences.
MORE = {
    "gap": Column("the gap of the pair of sentences at the read-out layer"),
    "same_gap": Column("the same; missing if the pair has no same-sense donors"),
    "fraction": Column(
        "how much of the effect of swapping the receiver the edge alone causes. Missing, like the "
        "effects, if the pair does not have the edge or it was not run."
    ),
    "direct": Column("the effect with everything after the receiver frozen"),
    "total": Column("the effect with everything after the receiver recomputed"),
    "same_sense": Column(
        "the effect with a same-sense donor. Missing if the pair has no such donors."
    ),
    "units": Column("the pair of cue words of the pair of sentences"),
    "family": Column("whether the edge is tested"),
    "noun": Column("the noun of the swap"),
    "noun_pair": Column("the number of the pair of sentences of the swap"),
    "of_word": Column("the total effect of the first edges in this pair, for the word"),
    "of_noun": Column("the same for the noun", "residual stream"),
    "seed": Column("of the bootstrap and of the flips of signs"),
}


def measure(run: WordRun) -> "dict[str, xr.Dataset] | None":
    """The circuit of the two senses whose gap is clearest, as in `measure_circuit`; None if no
    heads were swapped.
    """
    if not run.swapped_pairs:
        return None
    first = run.swapped_pairs[clearest([each.prepared.gates for each in run.swapped_pairs])]
    return measure_circuit(
        run.weights,
        run.observation,
        first.prepared,
        [each.in_place for each in noun_runs(run, first.number)],
        run.top_heads[:LEADERS],
        seed=run.options.seed,
    )


def measure_circuit(
    weights: Weights,
    observation: Observation,
    pair: Prepared,
    nouns: Sequence[NounInPlace],
    top_heads: Sequence[HeadIndex],
    *,
    seed: int,
) -> "dict[str, xr.Dataset] | None":
    """The circuit of two senses whose heads were swapped, by table: `row` for each part of a run,
    position and pair of sentences, and `edge sentence_pair swap first_edge`.

    None for a model that reads both ways, and if no pairs are aligned. A hybrid has no edges,
    because its mixers and gates have none.

    nouns: unambiguous nouns that were put in the word's position
    top_heads: heads that are also swapped at every position
    """
    if not observation.causal:
        return None
    runs = PairRuns(weights, observation, pair, nouns)
    aligned = runs.pair.pairs.design == ALIGNED
    groups = layouts(weights, runs, seed) if aligned else []
    if not groups:
        return None
    position_rows = [row for group in groups for row in _with_names(group, runs.traced(group))]
    if not weights.config.attends_plainly:
        return {"positions": _positions(position_rows, pair)}
    measure_edges = partial(every_edge, limit=MOST_TOTALS, seed=seed)
    by_group = [
        GroupEdges(group, runs.run(measure_edges, *runs.members(group.traced))) for group in groups
    ]
    for layer, head in top_heads:
        if layer < runs.depth:  # later heads were not swapped: they cannot move the word there
            for group, measured in by_group:
                position_rows += _with_names(group, _rows_of_head(measured, layer, head))
    return {
        "positions": _positions(position_rows, pair),
        "edges": _edges(by_group, runs, seed),
    }


# --- the pairs ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PairRuns:
    """The runs of the pairs of two senses, read at L* along the axes of their senses.

    observation: the texts, in unchanged runs
    pair: the two senses, their pairs and axes
    nouns: unambiguous nouns that were put in the word's position
    """

    weights: Weights
    observation: Observation
    pair: Prepared
    nouns: Sequence[NounInPlace]

    @property
    def depth(self) -> int:
        """The read-out layer L*, as the number of blocks before it."""
        return self.observation.depth

    def members(self, pairs: Sequence[int]) -> tuple[list[int], list[int]]:
        """The rows of both members of some pairs, the rows of sense A first."""
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
        """The result of a measurement of `probe.patching` on pairs of rows.

        measure: called with the weights, the texts of `a` and `b`, and the axes that were fitted
            without `a`
        a, b: the rows of the two members of each pair
        """
        texts_a = [self.observation.texts[row] for row in a]
        texts_b = [self.observation.texts[row] for row in b]
        # pair direction d_model
        along: Tensor = self.pair.sense.axes.directions(a)[:, [self.depth]]
        return measure(self.weights, texts_a, texts_b, along, *more, depth=self.depth, **options)

    def of_word(self, pairs: Sequence[int], edges: EdgeArray) -> Array:
        """The total effects of edges on the word, in fractions of the gap.

        `-> pair edge`
        """
        measure = partial(total_effects, edges=edges)
        return np.asarray(_toward(self.run(measure, *self.members(pairs))))

    def of_nouns(
        self, pairs_of: Sequence[tuple[NounInPlace, Sequence[int]]], edges: EdgeArray
    ) -> Array:
        """The total effects of edges on nouns in the word's position, each in some pairs, in units
        of the residual stream.

        `-> swap edge`, noun by noun
        """
        texts_a: list[TargetText] = []
        texts_b: list[TargetText] = []
        along: list[Tensor] = []
        for noun, pairs in pairs_of:
            a, b = self.members(pairs)
            texts_a += noun.texts([self.observation.texts[row] for row in a])
            texts_b += noun.texts([self.observation.texts[row] for row in b])
            along.append(noun.axes.directions(a)[:, [self.depth]])
        effects = total_effects(
            self.weights, texts_a, texts_b, torch.cat(along), edges, depth=self.depth
        )
        return np.asarray(_toward(effects))

    def gap(self, pairs: Sequence[int]) -> Array:
        """The gap of some pairs at L*. `-> pair`"""
        return np.asarray(self.pair.gap[list(pairs), self.depth])

    def units(self, pairs: Sequence[int]) -> list[int]:
        """The pair of cue words of each of some pairs."""
        return [self.pair.pairs.units[index] for index in pairs]

    @cached_property
    def donors(self) -> dict[int, int]:
        """The same-sense donor of every row that has one: same sense, same layout, other text."""
        texts = self.observation.texts
        material = self.observation.material
        rng = np.random.default_rng(self.pair.pairs.seed)
        donors: dict[int, int] = {}
        rows_by_sense = (self.pair.pairs.a, self.pair.pairs.b)
        split = self.pair.sense.split
        for is_a, rows in zip((True, False), rows_by_sense, strict=True):
            members = [
                row for row, of_a in zip(split.rows, split.is_a, strict=True) if of_a == is_a
            ]
            for row in dict.fromkeys(rows):
                text = texts[row]
                alike = [
                    member
                    for member in members
                    if texts[member].ids != text.ids
                    and (len(texts[member].ids), texts[member].at) == (len(text.ids), text.at)
                ]
                if alike:
                    donors[row] = design.same_sense_donor(
                        material.sentences, material.distances, row, alike, rng
                    )
        return donors

    def same_sense(
        self, pairs: Sequence[int], measure: Callable[[Sequence[int], Sequence[int]], Tensor]
    ) -> dict[int, Array]:
        """The effect of same-sense donors, for every pair whose members both have one.

        The effect is counted in the direction in which the other sense would move the word.

        measure: the effects of donors on rows, `rows, donors -> row recipient ... direction`, with
            a single recipient
        """
        with_donors = []
        for index in pairs:
            if self.pair.pairs.a[index] in self.donors and self.pair.pairs.b[index] in self.donors:
                with_donors.append(index)
        if not with_donors:
            return {}
        rows = [row for of_sense in self.members(with_donors) for row in of_sense]
        by_row = measure(rows, [self.donors[row] for row in rows])
        a, b = np.split(by_row[:, 0, ..., 0].double().numpy(), 2)
        # The other sense would move b up the axis and a down.
        return dict(zip(with_donors, (b - a) / 2, strict=True))

    def traced(self, group: Group) -> Iterator[dict[str, Any]]:
        """The rows of the causal trace of the group's pairs, with the effect of same-sense donors
        in each cell.
        """
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
    """The pairs that are measured, in groups of one layout.

    At most PAIRS are traced. As many others are compared with unambiguous nouns, if a layout has
    spare pairs.
    """
    pairs = runs.pair.pairs
    layout_of: dict[int, Layout] = {}
    for index, rows in enumerate(zip(pairs.a, pairs.b, strict=True)):
        layout = _layout(runs.observation, *rows)
        if layout is not None:
            count = count_edges(runs.depth, weights.shape[1], 1 - layout.first)
            if count <= MOST_EDGES:
                layout_of[index] = layout
    usable = list(layout_of)
    units = [pairs.units[index] for index in usable]
    order = design.spread(units, len(usable), np.random.default_rng(seed))
    indices = [usable[number] for number in order]
    first = indices[:PAIRS]
    remaining = indices[PAIRS:]
    groups = []
    for layout in sorted({layout_of[index] for index in first}):
        traced = [index for index in first if layout_of[index] == layout]
        spare = [index for index in remaining if layout_of[index] == layout]
        compared = traced + spare[: len(traced)]
        groups.append(Group(layout, tuple(traced), tuple(compared)))
    return groups


def _layout(observation: Observation, a: int, b: int) -> Layout | None:
    """The layout of a pair of rows.

    None if the members have different numbers of tokens or their word at different positions, if
    they do not differ, and if they differ at the word or after it.
    """
    text_a = observation.texts[a]
    text_b = observation.texts[b]
    if (len(text_a.ids), text_a.at) != (len(text_b.ids), text_b.at):
        return None
    token_pairs = enumerate(zip(text_a.ids, text_b.ids, strict=True))
    differing = [pos - text_a.at for pos, (token_a, token_b) in token_pairs if token_a != token_b]
    if not differing or differing[-1] >= 0:
        return None
    cue_ends = set()
    for row in (a, b):
        cue = observation.material.cues[row]
        if cue is not None:
            cue_ends.add(cue[-1] - text_a.at)
    # If no cue is marked, or the two cues do not end at the same position, the last token that
    # differs is taken as the end of the cue.
    cue_end = max(cue_ends) if len(cue_ends) == 1 and max(cue_ends) < 0 else differing[-1]
    return Layout(differing[0], cue_end)


def count_edges(depth: int, heads: int, count: int) -> int:
    """The number of edges among `count` positions.

    An edge leads from a sender to the query, key or value of a later head, or to the input of a
    later MLP. Senders are the embeddings and every earlier head and MLP.
    """
    total = 0
    for layer in range(depth):
        senders = 1 + layer * (heads + 1)
        # A query at each of the n positions; a key and a value at each of the n (n + 1) / 2 ordered
        # pairs of positions: n + n (n + 1) = n (n + 2).
        into_heads = senders * heads * count * (count + 2)
        into_mlp = (senders + heads) * count
        total += into_heads + into_mlp
    return total


# --- positions ------------------------------------------------------------------------------------


def _with_names(group: Group, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows with the names of their positions, and their distances from the cue."""
    for row in rows:
        pos = int(row["pos"])
        after_cue = pos - group.layout.cue if pos else None
        yield {**row, "pos": group.name(pos), "behind": after_cue}


def _rows_of_head(edges: Edges, layer: int, head: int) -> list[dict[str, Any]]:
    """The swaps of one head's z at every position, as rows of a causal trace."""
    offsets = np.unique(edges.edges["receiver_pos"]).tolist()
    effects = edges.receiver_shift[:, :, layer, head].double().numpy()  # pair recipient pos
    gap = edges.gap[:, 0].tolist()
    rows = []
    for pair in range(len(effects)):
        for number, pos in enumerate(offsets):
            rows.append(
                {
                    "component": positions.HEAD,
                    "layer": layer,
                    "head": head,
                    "pos": pos,
                    "gap": gap[pair],
                    # Recipient 0 is a, which moves down the axis; recipient 1 is b.
                    "noise": -float(effects[pair, 0, number]),
                    "denoise": float(effects[pair, 1, number]),
                }
            )
    return rows


def _positions(rows: Sequence[Mapping[str, Any]], pair: Prepared) -> "xr.Dataset":
    """The rows of all pairs of sentences. `row`"""
    measured = ["denoise", "noise", "gap", "same_sense", "same_gap"]
    frame = pd.DataFrame(rows).reindex(columns=[*PART_OF_RUN, *measured])
    frame = frame.astype({"head": float, "behind": float})
    sense_a, sense_b = pair.sense.senses
    data = listed(TABLES, frame, "row", MORE)
    return data.assign_coords(sense_a=sense_a, sense_b=sense_b)


# --- edges ----------------------------------------------------------------------------------------


def _keys(group: Group, edges: Edges, numbers: Sequence[int]) -> list[EdgeKey]:
    """The fields of some edges, with the names of their positions."""
    columns = {name: edges.edges[name][[*numbers]].tolist() for name in EDGE_FIELDS}
    for name in ("sender_pos", "receiver_pos"):
        columns[name] = [group.name(pos) for pos in columns[name]]
    return list(zip(*columns.values(), strict=True))


@dataclass(frozen=True, eq=False)
class _ByPair:
    """The edges that were run in some layout, with a column for each pair.

    keys: sorted, so that their order does not depend on the layouts
    pairs: the pair of each column
    fraction, direct, total: `edge pair`; NaN if the edge was not run in the pair's layout
    number: `edge group`, the number of the edge in each layout; -1 if it was not run there
    """

    keys: list[EdgeKey]
    pairs: list[int]
    fraction: Array
    direct: Array
    total: Array
    number: NDArray[np.intp]


def _by_pair(by_group: Sequence[GroupEdges]) -> _ByPair:
    """The edges that were run in some layout, with their effects."""
    were_run = [
        np.flatnonzero(~edges.total[0, 0, :, 0].isnan().numpy()).tolist() for _, edges in by_group
    ]
    keys_of_group = [
        _keys(group, edges, numbers)
        for (group, edges), numbers in zip(by_group, were_run, strict=True)
    ]
    keys = sorted({key for of_group in keys_of_group for key in of_group})
    row_of = {key: row for row, key in enumerate(keys)}
    pairs = [index for group, _ in by_group for index in group.traced]
    values = {name: np.full((len(keys), len(pairs)), np.nan) for name in ("f", "d", "t")}
    number = np.full((len(keys), len(by_group)), -1)
    first = 0
    for column, (group, edges) in enumerate(by_group):
        rows = [row_of[key] for key in keys_of_group[column]]
        numbers = were_run[column]
        number[rows, column] = numbers
        columns = slice(first, first + len(group.traced))
        first += len(group.traced)
        values["f"][rows, columns] = as_array(edges.fraction.mean(1))[:, numbers].T
        values["d"][rows, columns] = _toward(edges.direct).numpy()[:, numbers].T
        values["t"][rows, columns] = _toward(edges.total).numpy()[:, numbers].T
    return _ByPair(keys, pairs, values["f"], values["d"], values["t"], number)


def _edges(by_group: Sequence[GroupEdges], runs: PairRuns, seed: int) -> "xr.Dataset":
    """The edges with the largest effects, over all layouts. The module's docstring states which
    edges are listed and which are tested.
    """
    table = _by_pair(by_group)
    gap = runs.gap(table.pairs)
    # An edge that a pair does not have, or that was not run, does nothing there.
    totals = np.nan_to_num(table.total)  # edge pair
    # Edges are selected by Σ_pair |total| / Σ_pair gap, which no flip of signs changes.
    size = np.abs(totals).sum(1) / gap.sum()
    tested = min(int((size >= REACH).sum()), MOST_ROWS)
    listed = resampling.order(size)[: max(tested, LEAST_ROWS)]
    total = totals[listed].sum(1) / gap.sum()
    by_total = resampling.order(np.abs(total))
    rows = listed[by_total]
    family = by_total < tested
    keys = [table.keys[row] for row in rows]
    nouns, noun_pairs, of_word, of_noun = _next_to_nouns(
        by_group, runs, table.number[rows[:BESIDE_NOUNS]]
    )
    as_edges = np.array(keys, dtype=EDGE_WITH_NAMES)
    sense_a, sense_b = runs.pair.sense.senses
    by_pair = {
        "fraction": table.fraction[rows],
        "direct": table.direct[rows],
        "total": table.total[rows],
        "same_sense": _same_sense(by_group, runs, table, rows, family),
    }
    return dataset(
        TABLES,
        {
            **{name: ("edge sentence_pair", values) for name, values in by_pair.items()},
            "family": ("edge", family),
            "composition": ("edge", composition(runs.weights, as_edges)),
            "gap": ("sentence_pair", gap),
            "of_word": ("swap first_edge", of_word),
            "of_noun": ("swap first_edge", of_noun),
            "seed": ("", seed),
        },
        coordinates={
            **{name: ("edge", as_edges[name]) for name in EDGE_FIELDS},
            "units": ("sentence_pair", runs.units(table.pairs)),
            "noun": ("swap", np.array(nouns, dtype=str)),
            "noun_pair": ("swap", np.array(noun_pairs, dtype=np.intp)),
            "sense_a": ("", sense_a),
            "sense_b": ("", sense_b),
        },
        more=MORE | COLUMNS,
    )


def _same_sense(
    by_group: Sequence[GroupEdges],
    runs: PairRuns,
    table: _ByPair,
    rows: NDArray[np.intp],
    family: NDArray[np.bool_],
) -> Array:
    """The total effects of same-sense donors over the tested edges.

    `-> edge pair`

    0 if the pair's layout does not have the edge. NaN for pairs without same-sense donors, and for
    edges that are not tested.
    """
    same = np.full((len(rows), len(table.pairs)), np.nan)
    for column, (group, edges) in enumerate(by_group):
        numbers = table.number[rows, column]
        here = np.flatnonzero(family & (numbers >= 0))
        if not len(here):
            continue
        tested = edges.edges[numbers[here]]
        measure = partial(runs.run, partial(total_effects, edges=tested, both_ways=False))
        for index, values in runs.same_sense(group.traced, measure).items():
            pair = table.pairs.index(index)
            same[family, pair] = 0.0
            same[here, pair] = values
    return same


def _next_to_nouns(
    by_group: Sequence[GroupEdges], runs: PairRuns, number: NDArray[np.intp]
) -> tuple[tuple[str, ...], tuple[int, ...], Array, Array]:
    """The total effects of some edges on the word and on nouns in its position, over all pairs of
    the layouts.

    `-> nouns, pairs, swap edge, swap edge`: the noun and the pair of every swap, the effects on the
    word and those on the noun.

    number: `edge group`, the number of these edges in each layout
    """
    nouns: list[str] = []
    swapped_pairs: list[int] = []
    of_word: list[Array] = []
    of_noun: list[Array] = []
    for column, (group, edges) in enumerate(by_group):
        here = number[:, column] >= 0
        if not here.any():
            continue
        array = edges.edges[number[here, column]]
        of_group = {*group.compared}
        compared = sorted(of_group & {pair for noun in runs.nouns for pair in noun.pairs})
        if not compared:
            continue
        # The effect of an edge on the word does not depend on the noun, so it is run once.
        by_pair = np.zeros((len(compared), len(number)))  # 0 in a layout without the edge
        by_pair[:, here] = runs.of_word(compared, array)
        word = dict(zip(compared, by_pair, strict=True))
        pairs_of = [
            (noun, sorted(pairs)) for noun in runs.nouns if (pairs := of_group & {*noun.pairs})
        ]
        noun_pairs = [pair for _, pairs in pairs_of for pair in pairs]
        effects = np.zeros((len(noun_pairs), len(number)))
        effects[:, here] = runs.of_nouns(pairs_of, array)
        swapped_pairs += noun_pairs
        nouns += [noun.noun for noun, pairs in pairs_of for _ in pairs]
        of_word += [word[pair] for pair in noun_pairs]
        of_noun += [*effects]
    blank = np.empty((0, len(number)))
    if not swapped_pairs:
        return (), (), blank, blank
    return tuple(nouns), tuple(swapped_pairs), np.stack(of_word), np.stack(of_noun)


def _toward(effects: Tensor) -> Tensor:
    """How far the read-out moves toward the donor, the mean of both directions.

    `pair recipient edge direction -> pair edge`
    """
    # Recipient 0 is a, which moves down the axis toward its donor; recipient 1 is b.
    noise, denoise = effects[..., 0].double().unbind(1)
    return (denoise - noise) / 2
