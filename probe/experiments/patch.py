"""Swaps between any two texts: every head, every MLP or the stream of one text's run is put into
the other's, in both directions, and a metric M is read.

    denoise   M(b with a's part) - M(b)    how far b moves toward a
    noise     M(a) - M(a with b's part)    how far a moves toward b
    swap      (denoise + noise) / 2
    gap       M(a) - M(b)                  the distance between the texts

M is read at one position, and everything after the swap is live. M is the coordinate on the
direction from b to a, the difference of the logits of two next tokens, or any function of the
logits. The fraction over several pairs is a ratio of sums, Σ swap / Σ gap.

The direction of a single pair is defined by that pair, so every part that writes anything moves the
coordinate. With FEWEST_PAIRS pairs or more, each pair is therefore read along the mean direction of
the other pairs, which share no text with it: b is then at 0, and a somewhere near 1. With fewer
pairs, b is at 0 and a at 1, also if the word means the same in both: a single pair has a gap
between its texts, and none between meanings.

Every swap is performed (`probe.patching.positions`); none is approximated. If one position is
swapped, the texts may have different lengths: the part at the word of one text is put at the word
of the other.

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, its metrics).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import TypeAliasType

from probe.errors import InputError
from probe.model import forward
from probe.model.weights import Weights
from probe.patching.heads import BATCH_NUMBERS
from probe.patching.pair import PairCache, cache_pair
from probe.patching.positions import COMPONENTS, HEAD, Read, effects
from probe.stats.resampling import FEWEST_PAIRS

# The parts that can be swapped, by the name of the option, with their names in a layer.
PARTS = {
    "heads": (HEAD,),
    "mlp": ("mlp_out",),
    "stream": ("resid_pre",),
    "positions": COMPONENTS,
}
# Tokens of the runs of one side that are cached together, with every step of every layer.
CACHED_TOKENS = 256
# Logits that are computed together: 64 MB in float32.
LOGITS = 2**24
# Two next tokens, for the difference of their logits; a function `logits: row d_vocab -> row`; or
# None, for the coordinate between the two vectors.
Metric = TypeAliasType("Metric", tuple[str | int, str | int] | Callable[[Tensor], Tensor] | None)
# M of the vectors at the position that is read. `variant d_model -> variant`
Reader = Callable[[Tensor], Tensor]


class Member(NamedTuple):
    """A text as it is run.

    ids: its token ids
    at: the position that is swapped
    read: the position at which the metric is read
    """

    ids: tuple[int, ...]
    at: int
    read: int

    @property
    def layout(self) -> tuple[int, int, int]:
        """The number of tokens and the two positions. Members with equal layouts can be run
        together.
        """
        return len(self.ids), self.at, self.read


class Asked(NamedTuple):
    """The swaps that are performed.

    depth: the number of first layers whose parts are swapped
    offsets: the positions that are swapped, counted from the position that is read; None for the
        position `at` of each text
    parts: the names of the parts in a layer
    """

    depth: int
    offsets: tuple[int, ...] | None
    parts: tuple[str, ...]


def measure(
    weights: Weights,
    pairs: Sequence[tuple[Member, Member]],
    metrics: Sequence[Any],
    swaps: Asked,
) -> Iterator[tuple[int, float, dict[str, Tensor]]]:
    """The number of each pair, the gap of its metric, and how far the metric moves with each part.

    The last are `recipient layer variant pos` for each part. Pairs are yielded batch by batch, not
    in their order.

    metrics: of each pair: None for the coordinate between its two vectors, a direction `d_model`
        for the coordinate on it, the ids of two tokens, or a function of the logits

    Raises InputError for two equal vectors if the coordinate between them is the metric, and for a
    metric that does not return one finite real number for each row.
    """
    with torch.inference_mode():
        for batch in _batches(weights, pairs, swaps.depth):
            together = [pairs[number] for number in batch]
            their_metrics = [metrics[number] for number in batch]
            values, moves = _effects(weights, together, their_metrics, swaps)
            gaps = (values[0] - values[1]).tolist()  # M(a) - M(b)
            for index, number in enumerate(batch):
                of_pair = {part: tensor[:, index] for part, tensor in moves.items()}
                yield number, gaps[index], of_pair


def _reader(weights: Weights, metric: Any, ends: Tensor) -> Reader:
    """The reader of M for one pair.

    ends: `2 d_model`, the vectors of a and b at the position that is read
    """
    # In bfloat16, the difference of two similar numbers would be mostly rounding error.
    wide = torch.promote_types(weights.dtype, torch.float32)
    read = _reader_of(weights, metric, ends.to(wide))
    return lambda vectors: read(vectors.to(wide))


def _reader_of(weights: Weights, metric: Any, ends: Tensor) -> Reader:
    """The reader of M for vectors in a type that is precise enough for differences."""
    if metric is None:
        return _coordinate(ends, ends[0] - ends[1])
    if isinstance(metric, Tensor):
        return _coordinate(ends, metric.to(ends))
    if isinstance(metric, tuple):
        return lambda vectors: _logit_difference(weights, vectors, metric)
    return lambda vectors: torch.cat(
        [
            _numbers(metric, forward.unembed(weights, rows))
            for rows in vectors.split(max(2, LOGITS // weights.config.d_vocab))
        ]
    )


class Side(NamedTuple):
    """Runs that receive parts of the other texts' runs.

    cache: the runs, with their donors
    offset: the position that receives, counted from the position that is read
    """

    cache: PairCache
    offset: int


def read_ends(weights: Weights, pairs: Sequence[tuple[Member, Member]], depth: int) -> Tensor:
    """The vectors of both texts of every pair at the position that is read, in unchanged runs.

    `-> pair 2 d_model`
    """
    ends: dict[int, Tensor] = {}
    with torch.inference_mode():
        for batch in _batches(weights, pairs, depth):
            together = [pairs[number] for number in batch]
            of_batch = _unchanged(_sides(weights, together, depth))
            ends |= dict(zip(batch, of_batch, strict=True))
    return torch.stack([ends[number] for number in range(len(pairs))])


def _unchanged(sides: Sequence[Side]) -> Tensor:
    """The vectors of both texts of some pairs at the position that is read. `-> pair 2 d_model`"""
    rows = torch.cat([side.cache.final[:, side.cache.at] for side in sides])
    return rows.unflatten(0, (2, -1)).transpose(0, 1)


def ways_of_others(ends: Tensor, texts: Sequence[frozenset[Any]]) -> list[Tensor] | None:
    """For each pair, the mean direction from b to a of the pairs that share no text with it.

    `-> d_model` each. None if some pair has fewer than FEWEST_PAIRS - 1 such pairs.

    ends: `pair 2 d_model`, the vectors of a and b at the position that is read
    texts: the texts of each pair
    """
    differences = (ends[:, 0] - ends[:, 1]).double()
    means = []
    for pair in texts:
        without_its_texts = [
            number for number, other_pair in enumerate(texts) if not pair & other_pair
        ]
        if len(without_its_texts) < FEWEST_PAIRS - 1:
            return None
        means.append(differences[without_its_texts].mean(0))
    return means


def _coordinate(ends: Tensor, direction: Tensor) -> Reader:
    """The reader of the coordinate on a direction, with b at 0."""
    b = ends[1]
    if not direction.any():
        raise InputError(
            "Cannot measure the coordinate between the two texts: they have the same vector at the "
            "position that is read. Read at another position, or give a metric."
        )
    # M(x) = <x - b, direction> / |direction|²
    return lambda vectors: (vectors - b) @ direction / direction.square().sum()


def _logit_difference(weights: Weights, vectors: Tensor, tokens: tuple[int, int]) -> Tensor:
    first, second = forward.unembed(weights, vectors, tokens).unbind(-1)
    return first - second


def _numbers(metric: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """The metric of every row.

    `row d_vocab -> row`

    Raises InputError if the metric returns anything but one finite real number for each row.
    """
    numbers = metric(logits)
    rows = len(logits)
    returned = f"a {type(numbers).__name__}"
    if isinstance(numbers, Tensor):
        returned = f"a tensor of shape {tuple(numbers.shape)}"
    if not isinstance(numbers, Tensor) or tuple(numbers.shape) != (rows,):
        raise InputError(
            f"Cannot use the metric: it returned {returned} for logits of shape "
            f"{tuple(logits.shape)}, expected a tensor with one number for each row, ({rows},). "
            "Compute it along the last axis, as in lambda logits: logits[..., 5] - logits[..., 7]."
        )
    kind = str(numbers.dtype).removeprefix("torch.")
    # A swap is measured by a difference of two numbers, so both must be real and finite.
    if numbers.dtype == torch.bool or numbers.is_complex():
        problem = f"{kind} numbers, expected real numbers"
    elif not bool(numbers.isfinite().all()):
        problem = "NaN or an infinite number, expected finite numbers"
    else:
        return numbers.to(logits.dtype)
    raise InputError(
        f"Cannot use the metric: it returned {problem}. Return a logit, a log-probability or a "
        "difference of these."
    )


def _batches(
    weights: Weights, pairs: Sequence[tuple[Member, Member]], depth: int
) -> Iterator[list[int]]:
    """The numbers of the pairs of each batch: pairs of equal layout, few enough that their numbers
    stay in the processor's cache.
    """
    by_layout: dict[tuple[tuple[int, int, int], ...], list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        by_layout[tuple(member.layout for member in pair)].append(number)
    for layouts, numbers in by_layout.items():
        longest = max(length for length, _, _ in layouts)
        # The positions that a swap changes: in a causal model only those from the swap on.
        changed = longest
        if weights.causal:
            changed = max(read + 1 - at for _, at, read in layouts)
        variants = depth * weights.shape[1]
        by_width = BATCH_NUMBERS // (2 * variants * changed * weights.blocks[0].d_mlp)
        size = max(1, min(by_width, CACHED_TOKENS // longest))
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]


def _sides(weights: Weights, pairs: Sequence[tuple[Member, Member]], depth: int) -> list[Side]:
    """The runs of the texts a and b, each with the other as its donor: one side if all have the
    same layout, otherwise one side for a and one for b.
    """
    first, second = pairs[0]  # all are of its layout
    a, b = ([member.ids for member in members] for members in zip(*pairs, strict=True))
    if first.layout == second.layout:
        both = cache_pair(weights, [*a, *b], first.read, depth)
        return [Side(both, first.at - first.read)]
    cache_a = cache_pair(weights, a, first.read, depth)
    cache_b = cache_pair(weights, b, second.read, depth)
    shift = second.at - first.at
    return [
        Side(replace(cache_a, donor=cache_b, shift=shift), first.at - first.read),
        Side(replace(cache_b, donor=cache_a, shift=-shift), second.at - second.read),
    ]


def _effects(
    weights: Weights,
    pairs: Sequence[tuple[Member, Member]],
    metrics: Sequence[Any],
    swaps: Asked,
) -> tuple[Tensor, dict[str, Tensor]]:
    """M of the unchanged runs of some pairs, and how far M moves with each part of the other run.

    `-> recipient pair, recipient pair layer variant pos` for each part
    """
    sides = _sides(weights, pairs, swaps.depth)
    by_pair = _unchanged(sides)  # pair recipient d_model
    unchanged = by_pair.transpose(0, 1).flatten(0, 1)
    readers = [
        _reader(weights, metric, ends) for metric, ends in zip(metrics, by_pair, strict=True)
    ]
    values = torch.stack(
        [reader(ends) for reader, ends in zip(readers, by_pair, strict=True)], dim=1
    )
    # The rows of all sides, one after another, are all recipients a, then all recipients b.
    readers = readers * 2
    differences = torch.stack(
        [
            metric.to(ends) if isinstance(metric, Tensor) else ends[0] - ends[1]
            for metric, ends in zip(metrics, by_pair, strict=True)
        ]
    )
    # <change, direction> is the change of the coordinate <x - b, d> / |d|², d the difference a - b
    squared_lengths = differences.square().sum(-1, keepdim=True)
    directions = (differences / squared_lengths).repeat(2, 1)[:, None]
    # A linear metric is read along a direction, without the vectors of the variants. With weights
    # in bfloat16 that would be rounded too much.
    linear = weights.dtype != torch.bfloat16 and all(
        metric is None or isinstance(metric, Tensor) for metric in metrics
    )
    by_side = []
    first = 0
    for side in sides:
        rows = slice(first, first + len(side.cache.final))
        first = rows.stop
        read: Read = directions[rows]
        if not linear:
            read = partial(_read_changes, readers[rows], unchanged[rows])
        by_side.append(effects(side.cache, swaps.offsets or [side.offset], read, swaps.parts))
    together = {
        part: torch.cat([by_part[part] for by_part in by_side])[..., 0].unflatten(0, (2, -1)).cpu()
        for part in swaps.parts
    }
    return values.cpu(), together


def _read_changes(readers: Sequence[Reader], unchanged: Tensor, changes: Tensor) -> Tensor:
    """How far the metric of each row moves.

    `row d_model, row variant d_model -> row variant 1`
    """
    by_row = []
    for reader, resid, change in zip(readers, unchanged, changes, strict=True):
        # The unchanged vector is read in the same batch, so that an unchanged variant moves by
        # exactly 0.
        numbers = reader(torch.cat([resid[None], resid + change]))
        by_row.append(numbers[1:] - numbers[0])
    return torch.stack(by_row)[..., None]
