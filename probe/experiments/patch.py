"""Swaps in texts that are given as they are: every head, MLP or vector of the stream of one text
put into the other, both ways, read by a metric of the caller's own.

    denoise   M(b with a's part) - M(b)    how far b moves to a
    noise     M(a) - M(a with b's part)    how far a moves to b
    swap      (denoise + noise) / 2
    gap       M(a) - M(b)                  how far there is to go

M is read at one position after the swap, everything after it live: a coordinate along the way from
b to a, the difference of the logits of two next tokens, or any function of the logits. Over several
pairs the fraction is a ratio of sums, Σ swap / Σ gap.

The way of one pair runs through that very pair, so every part that writes anything moves it. Of
FEWEST_PAIRS pairs and more, each is therefore read along the mean way of the others, which share no
text with it; b is then at 0, and a somewhere near 1. Of fewer, b is at 0 and a at 1.

Every swap is performed (`probe.patching.positions`), none is approximated; in a model whose hooks
stay on, each by a whole forward of it (`probe.patching.hooked`). The two texts need not
be equally long where one position is swapped: what stands at the word of one is put at the word of
the other.

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
from probe.model.model import Model
from probe.model.tokens import TargetText
from probe.model.weights import Weights
from probe.patching.heads import BATCH_NUMBERS
from probe.patching.hooked import Ends, read_parts, run_swapped
from probe.patching.pair import PairCache, cache_pair
from probe.patching.positions import COMPONENTS, HEAD, Read, effects
from probe.stats.resampling import FEWEST_PAIRS

# What can be swapped, by the name that a caller gives, and what of a layer that is.
PARTS = {
    "heads": (HEAD,),
    "mlp": ("mlp_out",),
    "stream": ("resid_pre",),
    "positions": COMPONENTS,
}
# Tokens of one side whose runs are kept at once, every step of every layer.
CACHED_TOKENS = 256
# Logits that are made at once: 64 MB in float32.
LOGITS = 2**24
# A difference of the logits of two next tokens, or `logits: row d_vocab -> row`; None is the
# coordinate between the two vectors.
Metric = TypeAliasType("Metric", tuple[str | int, str | int] | Callable[[Tensor], Tensor] | None)
# M of many vectors at the position that is read. `variant d_model -> variant`
Reader = Callable[[Tensor], Tensor]


class Member(NamedTuple):
    """A text as it is run: its token ids, the position that is swapped, the position that is
    read."""

    ids: tuple[int, ...]
    at: int
    read: int

    @property
    def layout(self) -> tuple[int, int, int]:
        """How many tokens, and the two positions: members that agree in it can be run together."""
        return len(self.ids), self.at, self.read


class Asked(NamedTuple):
    """What is swapped: `parts` of the first `depth` layers, at `offsets` from where the metric is
    read, or, where they are None, at the position of each text."""

    depth: int
    offsets: tuple[int, ...] | None
    parts: tuple[str, ...]


def measure(
    weights: Weights,
    pairs: Sequence[tuple[Member, Member]],
    metrics: Sequence[Any],
    asked: Asked,
) -> Iterator[tuple[int, float, dict[str, Tensor]]]:
    """Of every pair its number, the gap of its metric, and how far the metric moves with each part.

    metrics: of every pair: None for the way between its own two vectors, another way `d_model`, the
        ids of two tokens, or a function.
    Shapes: `part: recipient layer variant pos`
    """
    effects_of = _effects if weights.hooked is None else _effects_by_forwards
    with torch.inference_mode():
        for batch in _batches(weights, pairs, asked.depth):
            together = [pairs[number] for number in batch]
            values, moved = effects_of(weights, together, [metrics[one] for one in batch], asked)
            gaps = (values[0] - values[1]).tolist()
            for index, number in enumerate(batch):
                of_pair = {part: tensor[:, index] for part, tensor in moved.items()}
                yield number, gaps[index], of_pair


def _reader(weights: Weights, metric: Any, ends: Tensor) -> Reader:
    """M of one pair. `ends: 2 d_model`, the vectors of a and of b where the metric is read"""
    # The difference of two numbers that were rounded to bfloat16 would be mostly their rounding.
    wide = torch.promote_types(weights.dtype, torch.float32)
    read = _reader_of(weights, metric, ends.to(wide))
    return lambda vectors: read(vectors.to(wide))


def _reader_of(weights: Weights, metric: Any, ends: Tensor) -> Reader:
    """The same of vectors whose type is precise enough for differences."""
    if metric is None:
        return _coordinate(ends, ends[0] - ends[1])
    if isinstance(metric, Tensor):
        return _coordinate(ends, metric.to(ends))
    if isinstance(metric, tuple):
        return lambda vectors: _logit_difference(weights, vectors, metric)
    return lambda vectors: torch.cat(
        [
            _numbers(metric, forward.unembed(weights, some))
            for some in vectors.split(max(2, LOGITS // weights.config.d_vocab))
        ]
    )


class Side(NamedTuple):
    """Runs that get parts of their partners': `offset`, where they get them, counted from where
    they are read."""

    cache: PairCache
    offset: int


def read_ends(weights: Weights, pairs: Sequence[tuple[Member, Member]], depth: int) -> Tensor:
    """The vectors of both texts of every pair where the metric is read. `-> pair 2 d_model`"""
    ends: dict[int, Tensor] = {}
    with torch.inference_mode():
        for batch in _batches(weights, pairs, depth):
            together = [pairs[number] for number in batch]
            if weights.hooked is None:
                found = _unchanged(_sides(weights, together, depth))
            else:
                found = torch.stack(
                    [_hooked_ends(weights.hooked, pair, depth) for pair in together]
                )
            ends |= dict(zip(batch, found, strict=True))
    return torch.stack([ends[number] for number in range(len(pairs))])


def _unchanged(sides: Sequence[Side]) -> Tensor:
    """The vectors of both texts of some pairs in their unchanged runs. `-> pair 2 d_model`"""
    rows = torch.cat([side.cache.final[:, side.cache.at] for side in sides])
    return rows.unflatten(0, (2, -1)).transpose(0, 1)


def _hooked_ends(model: Model, pair: tuple[Member, Member], depth: int) -> Tensor:
    """The same of a pair in a model whose hooks stay on. `-> 2 d_model`"""
    return torch.stack(
        [
            read_parts(model, member.ids, member.read, ["resid_post"])["resid_post"][depth - 1]
            for member in pair
        ]
    )


def ways_of_others(ends: Tensor, texts: Sequence[frozenset[Any]]) -> list[Tensor] | None:
    """For each pair the mean way from b to a of the pairs that share no text with it.

    ends: the vectors of a and of b where the metric is read. `pair 2 d_model`
    texts: what each pair is made of.
    None where some pair has fewer than FEWEST_PAIRS - 1 such pairs.
    """
    way = (ends[:, 0] - ends[:, 1]).double()
    ways = []
    for own in texts:
        others = [number for number, texts_of in enumerate(texts) if not own & texts_of]
        if len(others) < FEWEST_PAIRS - 1:
            return None
        ways.append(way[others].mean(0))
    return ways


def _coordinate(ends: Tensor, way: Tensor) -> Reader:
    """Where a vector stands on a way from b, which is at 0: <x - b, way> / |way|²."""
    b = ends[1]
    if not way.any():
        raise InputError(
            "Patching along the way between two texts: got the same vector of both where it is "
            "read, expected two; read at another position, or give a metric."
        )
    return lambda vectors: (vectors - b) @ way / way.square().sum()


def _logit_difference(weights: Weights, vectors: Tensor, tokens: tuple[int, int]) -> Tensor:
    first, second = forward.unembed(weights, vectors, tokens).unbind(-1)
    return first - second


def _numbers(metric: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """What the metric makes of `logits: row d_vocab`. Raises InputError for anything but a number a
    row."""
    numbers = metric(logits)
    rows = len(logits)
    made = f"a {type(numbers).__name__}"
    if isinstance(numbers, Tensor):
        made = f"a tensor of shape {tuple(numbers.shape)}"
    if not isinstance(numbers, Tensor) or tuple(numbers.shape) != (rows,):
        raise InputError(
            f"Patching with a metric of one's own: of logits of shape {tuple(logits.shape)} it "
            f"made {made}, expected a tensor with a number for each row, ({rows},); let it work "
            "along the last axis, as in lambda logits: logits[..., 5] - logits[..., 7]."
        )
    kind = str(numbers.dtype).removeprefix("torch.")
    if numbers.dtype == torch.bool or numbers.is_complex():
        problem = f"it made {kind} numbers, expected real ones"
    elif not bool(numbers.isfinite().all()):
        problem = "it made NaN or an infinite number, expected finite ones"
    else:
        return numbers.to(logits.dtype)
    raise InputError(
        f"Patching with a metric of one's own: {problem}, whose difference says how far a swap "
        "moves it; give a logit, a log-probability or a difference of some."
    )


def _batches(
    weights: Weights, pairs: Sequence[tuple[Member, Member]], depth: int
) -> Iterator[list[int]]:
    """Numbers of pairs that are run together: of one layout, and as many as stay near the
    processor."""
    by_layout: dict[tuple[tuple[int, int, int], ...], list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        by_layout[tuple(member.layout for member in pair)].append(number)
    for layouts, numbers in by_layout.items():
        longest = max(length for length, _, _ in layouts)
        live = longest
        if weights.causal:
            live = max(read + 1 - at for _, at, read in layouts)
        variants = depth * weights.shape[1]
        by_width = BATCH_NUMBERS // (2 * variants * live * weights.blocks[0].d_mlp)
        size = max(1, min(by_width, CACHED_TOKENS // longest))
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]


def _sides(weights: Weights, pairs: Sequence[tuple[Member, Member]], depth: int) -> list[Side]:
    """The runs of the texts a and those of b, each the donors of the others: together where all are
    of one layout, or else apart."""
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
    asked: Asked,
) -> tuple[Tensor, dict[str, Tensor]]:
    """M of the unchanged runs of some pairs, `recipient pair`, and how far it moves with each part
    of the other run. `-> part: recipient pair layer variant pos`"""
    sides = _sides(weights, pairs, asked.depth)
    by_pair = _unchanged(sides)  # pair recipient d_model
    unchanged = by_pair.transpose(0, 1).flatten(0, 1)
    readers = [
        _reader(weights, metric, ends) for metric, ends in zip(metrics, by_pair, strict=True)
    ]
    values = torch.stack(
        [reader(ends) for reader, ends in zip(readers, by_pair, strict=True)], dim=1
    )
    # The rows of all sides, one after the other, are all recipients of a, then all of b.
    readers = readers * 2
    way = torch.stack(
        [
            metric.to(ends) if isinstance(metric, Tensor) else ends[0] - ends[1]
            for metric, ends in zip(metrics, by_pair, strict=True)
        ]
    )
    directions = (way / way.square().sum(-1, keepdim=True)).repeat(2, 1)[:, None]
    # A direction needs no written vector, but rounds to bfloat16 where the weights do.
    linear = weights.dtype != torch.bfloat16 and all(
        metric is None or isinstance(metric, Tensor) for metric in metrics
    )
    moved = []
    first = 0
    for side in sides:
        rows = slice(first, first + len(side.cache.final))
        first = rows.stop
        read: Read = directions[rows]
        if not linear:
            read = partial(_read_changes, readers[rows], unchanged[rows])
        moved.append(effects(side.cache, asked.offsets or [side.offset], read, asked.parts))
    together = {
        part: torch.cat([by_part[part] for by_part in moved])[..., 0].unflatten(0, (2, -1)).cpu()
        for part in asked.parts
    }
    return values.cpu(), together


def _read_changes(readers: Sequence[Reader], unchanged: Tensor, changes: Tensor) -> Tensor:
    """How far the metric of each row moves. `row d_model, row variant d_model -> row variant 1`"""
    by_row = []
    for reader, own, change in zip(readers, unchanged, changes, strict=True):
        # The unchanged run beside the others, so that no change is exactly 0.
        numbers = reader(torch.cat([own[None], own + change]))
        by_row.append(numbers[1:] - numbers[0])
    return torch.stack(by_row)[..., None]


def _effects_by_forwards(
    weights: Weights,
    pairs: Sequence[tuple[Member, Member]],
    metrics: Sequence[Any],
    asked: Asked,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same in a model whose hooks stay on, which also make part of its logits."""
    model = weights.hooked
    assert model is not None
    values = []
    moved: dict[str, list[Tensor]] = {part: [] for part in asked.parts}
    for pair, metric in zip(pairs, metrics, strict=True):
        needs_logits = not (metric is None or isinstance(metric, Tensor))
        runs = {
            part: [
                _variants(model, *members, part, asked, logits=needs_logits)
                for members in (pair, pair[::-1])
            ]
            for part in asked.parts
        }
        # The first of all variants is the unchanged run.
        unchanged = [side[0] for side in runs[asked.parts[0]]]
        ends = torch.stack([run.resid[0, asked.depth] for run in unchanged])
        read = partial(_read_run, metric, ends=ends, depth=asked.depth)
        values.append(torch.stack([read(run)[0] for run in unchanged]))
        for part, sides in runs.items():
            numbers = torch.stack([torch.stack([*map(read, side)], -1) for side in sides])
            changes = numbers[:, 1:] - numbers[:, :1]  # recipient variant pos
            moved[part].append(changes.unflatten(1, (asked.depth, -1)))
    together = {part: torch.stack(tensors, dim=1).cpu() for part, tensors in moved.items()}
    return torch.stack(values, dim=1).cpu(), together


def _variants(
    model: Model, own: Member, donor: Member, part: str, asked: Asked, *, logits: bool
) -> list[Ends]:
    """Runs of one text: unchanged, then with a part of the donor's run in one layer, or one head,
    after the other; for each position that is asked for."""
    offsets = asked.offsets or (own.at - own.read,)
    shift = 0 if asked.offsets else donor.at - own.at
    name = "z" if part == HEAD else part
    runs = []
    for pos in [own.read + offset for offset in offsets]:
        given = read_parts(model, donor.ids, pos + shift, [name])[name][: asked.depth]
        one_each = given.shape[: 2 if part == HEAD else 1]  # layer, or layer head
        count = one_each.numel()
        swapped = torch.eye(count, dtype=torch.bool).unflatten(1, one_each)
        swapped = torch.cat([torch.zeros_like(swapped[:1]), swapped])
        text = TargetText(own.ids, pos)
        runs.append(run_swapped(model, text, name, given, swapped, read=own.read, logits=logits))
    return runs


def _read_run(metric: Any, run: Ends, *, ends: Tensor, depth: int) -> Tensor:
    """M of every variant of a run. `-> variant`"""
    wide = torch.promote_types(ends.dtype, torch.float32)
    if metric is None or isinstance(metric, Tensor):
        way = ends[0] - ends[1] if metric is None else metric
        return _coordinate(ends.to(wide), way.to(ends).to(wide))(run.resid[:, depth].to(wide))
    assert run.logits is not None
    logits = run.logits.to(wide)
    if isinstance(metric, tuple):
        first, second = metric
        return logits[:, first] - logits[:, second]
    return _numbers(metric, logits)
