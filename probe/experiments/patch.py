"""Swaps in texts that are given as they are: every head, MLP or vector of the stream of one text
put into the other, both ways, read by a metric of the caller's own.

    denoise   M(b with a's part) - M(b)    how far b moves to a
    noise     M(a) - M(a with b's part)    how far a moves to b
    swap      (denoise + noise) / 2
    gap       M(a) - M(b)                  how far there is to go

M is read at one position behind the swap, everything behind it live: the coordinate between the two
vectors there (b at 0, a at 1, so that the gap is 1 and a swap a fraction of the way), the
difference of the logits of two next tokens, or any function of the logits. Over several pairs the
fraction is a ratio of sums, Σ swap / Σ gap.

Every swap is performed (`probe.patching.positions`), none is approximated; in a model whose hooks
stay on, each by a whole forward of it (`probe.patching.hooked`). The two texts need not
be equally long where one position is swapped: what stands at the word of one is put at the word of
the other.

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, its metrics).
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError, UnsupportedModel
from probe.model import forward
from probe.model.hooks import Hook
from probe.model.load import ModelSource, load, read_weights
from probe.model.model import Model
from probe.model.tokens import TargetText, Tokens, text_position, token_id, tokenize
from probe.model.trace import target_states
from probe.model.weights import Weights
from probe.patching.heads import BATCH_NUMBERS
from probe.patching.hooked import Ends, read_parts, run_swapped
from probe.patching.inputs import require_depth
from probe.patching.pair import PairCache, TokenPair, cache_pair, positions_from_word
from probe.patching.positions import COMPONENTS, HEAD, Read, effects
from probe.stats.numbers import counted
from probe.stats.resampling import Array

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
Metric = tuple[str | int, str | int] | Callable[[Tensor], Tensor] | None
# M of many vectors at the position that is read. `variant d_model -> variant`
Reader = Callable[[Tensor], Tensor]
TEXTS = (str, bytes)  # sequences that are no lists


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


def patch(
    model: ModelSource,
    a: str | Sequence[str],
    b: str | Sequence[str],
    *,
    at: int | str,
    metric: Metric | list[Metric] = None,
    read: int | str | None = None,
    parts: str = "heads",
    depth: int | None = None,
) -> pd.DataFrame:
    """How far the metric moves when one part of a text's run at a position is the other text's, for
    every head, both ways: columns `layer head denoise noise swap gap`.

    `at`, what is swapped: a word, at its last token where it first stands in each text, or a
    position, counted from the end where it is negative · `read`, where the metric is read: the same
    position by default · `metric`: None for the coordinate between the two vectors there after
    `depth` blocks (all by default), a pair of next tokens such as `(" water", " loan")` for the
    difference of their logits, or a function of the logits: it is called with `logits: row
    d_vocab`, a row for every run, and returns a number for each, `row` · `parts`: "heads", "mlp",
    "stream" (what enters each block), or "positions" (stream, attention output and MLP output at
    every position from the first difference on, `component layer pos` in place of `layer head`, for
    texts of equal length; `pos` is counted from the position that is read).

    Lists of texts, or columns of a DataFrame, are pairs: the frame then has a row for each pair and
    head, with its number in `pair`, and a list of metrics is one for each pair. The fraction of the
    gap over all pairs is `swap.sum() / gap.sum()`, by head. Raises InputError for a word or
    position that is not there, a token that is several, a metric of another shape, a depth that the
    model does not have, texts that do not differ, and unequal lengths where positions must match;
    UnsupportedModel for logits of a model without a language-model head, and for an
    encoder-decoder.

    Example:
        >>> river, loan = "The river bank", "The mortgage bank"
        >>> heads = probe.patch("tiny-senses", river, loan, at="bank")
        >>> list(heads.columns)
        ['layer', 'head', 'denoise', 'noise', 'swap', 'gap']
        >>> len(heads), float(heads["gap"].iloc[0])  # 4 layers x 4 heads; all the way is 1
        (16, 1.0)
        >>> by_logits = probe.patch("tiny-senses", river, loan, at="bank", metric=(" and", " with"))
        >>> by_logits.shape
        (16, 6)
    """
    model = load(model)
    weights = read_weights(model)
    one_pair = isinstance(a, str) and isinstance(b, str)
    pairs = _pairs(model, _texts(a, b), at, read)
    depth = len(weights.blocks) if depth is None else depth
    require_depth(weights, depth, "Patching")
    if parts not in tuple(PARTS):
        raise InputError(
            f"Patching {parts!r}: expected one of {', '.join(map(repr, PARTS))}; give one of these."
        )
    metrics = _metrics(model, metric, len(pairs), depth)
    offsets: tuple[int, ...] | None = None
    if parts == "positions":
        offsets = positions_from_word(_aligned(pairs), None)
    else:
        _require_difference(weights, pairs, at)

    frames: dict[int, pd.DataFrame] = {}
    with torch.inference_mode():
        asked = Asked(depth, offsets, PARTS[parts])
        effects_of = _effects if weights.hooked is None else _effects_by_forwards
        for batch in _batches(weights, pairs, depth):
            together = [pairs[number] for number in batch]
            values, moved = effects_of(weights, together, [metrics[one] for one in batch], asked)
            gaps = (values[0] - values[1]).tolist()
            for index, number in enumerate(batch):
                of_pair = {part: tensor[:, index] for part, tensor in moved.items()}
                frame = _frame(of_pair, gaps[index], offsets)
                if parts == "heads":  # in a hybrid some layers have none
                    has_heads = weights.has_heads.cpu().numpy()
                    frame = frame[has_heads[frame["layer"]]].reset_index(drop=True)
                frames[number] = frame
    for frame in frames.values():
        frame.attrs["model"] = model.said
    if one_pair:
        return frames[0]
    for number, frame in frames.items():
        frame.insert(0, "pair", number)
    return pd.concat([frames[number] for number in range(len(pairs))], ignore_index=True)


def patch_hooks(
    model: ModelSource,
    a: str,
    b: str,
    *,
    at: int | str,
    heads: Sequence[tuple[int, int]],
) -> list[Hook]:
    """A swap as `fwd_hooks` of TransformerLens: some heads of `b` get the z that they have in `a`
    at a word, or a position.

    `heads`: (layer, head) of each. The hooks hold for a run of the token ids of `b` as
    `probe.tokenize` gives them: `bridge.run_with_hooks(ids, fwd_hooks=hooks)`. Raises InputError
    for a word, position, layer or head that is not there.

    Example:
        >>> import torch
        >>> model = probe.load("tiny-senses")
        >>> river, loan = "The river bank", "The mortgage bank"
        >>> hooks = probe.patch_hooks(model, river, loan, at="bank", heads=[(0, 1), (2, 3)])
        >>> [name for name, _ in hooks]
        ['blocks.0.attn.hook_z', 'blocks.2.attn.hook_z']
        >>> ids = torch.tensor([probe.tokenize(model, loan).ids])
        >>> model.bridge.run_with_hooks(ids, fwd_hooks=hooks).shape[:2]  # batch position
        torch.Size([1, 4])
    """
    model = load(model)
    weights = read_weights(model)
    n_layers, n_heads, *_ = weights.shape
    pairs = _heads(model, heads)
    for layer, head in pairs:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise InputError(
                f"Hooking L{layer}H{head} of {model.name}: it has {n_layers} layers of {n_heads} "
                "heads; give (layer, head) of one that is there."
            )
        if not model.config.has_heads(layer):
            raise InputError(
                f"Hooking L{layer}H{head} of {model.name}: its layer {layer} has no attention, and "
                "no heads; give (layer, head) of one that is there."
            )
    donor = tokenize(model, a)
    recipient = tokenize(model, b)
    to = text_position(recipient, at)
    z = target_states(model, [donor], [text_position(donor, at)]).z[0].to(model.device)
    by_layer: dict[int, list[int]] = defaultdict(list)
    for layer, head in pairs:
        by_layer[layer].append(head)

    def swap(layer: int) -> Callable[..., Tensor]:
        def patch_z(own: Tensor, hook: object) -> Tensor:
            if own.shape[1] != len(recipient):
                raise InputError(
                    f"Swapping heads in a run of {own.shape[1]} tokens: the hooks were made for "
                    f"the {len(recipient)} of {b!r}; run these, or make hooks for the other text."
                )
            patched = own.clone()
            patched[:, to, by_layer[layer]] = z[layer, by_layer[layer]].to(own.dtype)
            return patched

        return patch_z

    (attention,) = model.config.family.attentions
    return [
        (f"{attention.blocks}.{layer}.{attention.hooks['z']}", swap(layer))
        for layer in sorted(by_layer)
    ]


# --- texts and positions --------------------------------------------------------------------------


def _texts(a: str | Sequence[str], b: str | Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of texts. Raises InputError for a text beside a list, and lists of unequal
    length."""
    if isinstance(a, str) and isinstance(b, str):
        return [(a, b)]
    a, b = (text.tolist() if hasattr(text, "tolist") else text for text in (a, b))
    lists = [text for text in (a, b) if isinstance(text, Sequence) and not isinstance(text, TEXTS)]
    if len(lists) < 2 or len(a) != len(b) or not len(a):
        sizes = [_how_many(text) for text in (a, b)]
        raise InputError(
            f"Patching pairs of texts: got {sizes[0]} and {sizes[1]}, expected two texts, or two "
            "lists with as many of both, at least one; give each text its partner."
        )
    return list(zip(a, b, strict=True))


def _how_many(text: object) -> str:
    if isinstance(text, str):
        return "one text"
    if isinstance(text, Sequence) and not isinstance(text, bytes):
        return counted(len(text), "text")
    return type(text).__name__


def _heads(model: Model, heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Layer and head of each. Raises InputError for no head, and what is no list of such pairs."""
    try:
        pairs = [(operator.index(layer), operator.index(head)) for layer, head in heads]
    except (TypeError, ValueError):
        pairs = []
    if not pairs:
        raise InputError(
            f"Hooking heads of {model.name}: got {heads!r}, expected a list of pairs of numbers, "
            "(layer, head) of each; give [(0, 1), (2, 3)], say."
        )
    return pairs


def _pairs(
    model: Model, texts: Sequence[tuple[str, str]], at: int | str, read: int | str | None
) -> list[tuple[Member, Member]]:
    """The members of every pair, each cut behind what is read where the model reads left to
    right."""
    pairs = []
    for text_a, text_b in texts:
        one, other = (_member(model, tokenize(model, text), at, read) for text in (text_a, text_b))
        pairs.append((one, other))
    return pairs


def _member(model: Model, tokens: Tokens, at: int | str, read: int | str | None) -> Member:
    swapped = text_position(tokens, at)
    read_at = swapped if read is None else text_position(tokens, read)
    if not model.config.causal:
        return Member(tokens.ids, swapped, read_at)
    if read_at < swapped:
        raise InputError(
            f"Patching token {swapped} and reading token {read_at} of {tokens.text!r}: "
            f"{model.name} reads left to right, so nothing moves there; read at the token that is "
            "swapped or behind it."
        )
    return Member(tokens.ids[: read_at + 1], swapped, read_at)


def _aligned(pairs: Sequence[tuple[Member, Member]]) -> list[TokenPair]:
    """Pairs whose positions match one by one. Raises InputError for others."""
    aligned = []
    for number, (one, other) in enumerate(pairs):
        if one.layout != other.layout:
            raise InputError(
                f"Patching every position of pair {number}: got {len(one.ids)} and "
                f"{len(other.ids)} tokens, read at {one.read} and {other.read}, expected the same "
                'of both; write its texts equally long, or patch parts="heads", "mlp" or "stream".'
            )
        aligned.append(TokenPair((one.ids, other.ids), one.read))
    return aligned


def _require_difference(
    weights: Weights, pairs: Sequence[tuple[Member, Member]], at: int | str
) -> None:
    """Raises InputError where what is swapped is the same in both texts of a pair."""
    for number, pair in enumerate(pairs):
        seen = [member.ids[: member.at + 1] if weights.causal else member.ids for member in pair]
        if seen[0] == seen[1] and pair[0].at == pair[1].at:
            where = " up to what is swapped" if weights.causal else ""
            raise InputError(
                f"Patching {at!r} in pair {number}: its texts are the same{where}, so that no "
                "swap changes anything; swap at a token behind their first difference."
            )


# --- what is read ---------------------------------------------------------------------------------


def _metrics(model: Model, metric: Metric | list[Metric], pairs: int, depth: int) -> list[Any]:
    """The metric of every pair: None, the ids of two tokens, or a function."""
    given = metric if isinstance(metric, list) else [metric] * pairs
    if len(given) != pairs:
        raise InputError(
            f"Patching {pairs} pairs of texts: got {len(given)} metrics, expected one for all or "
            "one for each pair; give as many."
        )
    if any(one is not None for one in given):
        _require_logits(model, depth)
    metrics: list[Any] = []
    for one in given:
        if one is None or callable(one):
            metrics.append(one)
        elif isinstance(one, tuple) and len(one) == 2:
            first, second = (token_id(model, token) for token in one)
            if first == second:
                raise InputError(
                    f"Patching with the metric {one!r}: its two tokens are the same, and the "
                    "difference of a logit from itself is always 0; give two different tokens."
                )
            metrics.append((first, second))
        else:
            raise InputError(
                f"Patching with the metric {one!r}: expected None, a pair of next tokens such as "
                '(" water", " loan"), or a function of the logits; give one of these.'
            )
    return metrics


def _require_logits(model: Model, depth: int) -> None:
    if not model.config.has_head:
        raise UnsupportedModel(
            f"Reading the logits of {model.name}: no language-model head was in its checkpoint; "
            "load a checkpoint with one, or leave the metric out to read the coordinate between "
            "the two texts."
        )
    if depth != model.config.n_layers:
        raise InputError(
            f"Reading the logits of {model.name} after {depth} blocks: they are made behind the "
            f"last of {model.config.n_layers}; leave the depth out, or the metric."
        )


def _reader(weights: Weights, metric: Any, ends: Tensor) -> Reader:
    """M of one pair. `ends: 2 d_model`, the vectors of a and of b where the metric is read"""
    # The difference of two numbers that were rounded to bfloat16 would be mostly their rounding.
    wide = torch.promote_types(weights.dtype, torch.float32)
    read = _reader_of(weights, metric, ends.to(wide))
    return lambda vectors: read(vectors.to(wide))


def _reader_of(weights: Weights, metric: Any, ends: Tensor) -> Reader:
    """The same of vectors whose type is precise enough for differences."""
    if metric is None:
        return _coordinate(ends)
    if isinstance(metric, tuple):
        return lambda vectors: _logit_difference(weights, vectors, metric)
    return lambda vectors: torch.cat(
        [
            _numbers(metric, forward.unembed(weights, some))
            for some in vectors.split(max(2, LOGITS // weights.config.d_vocab))
        ]
    )


def _coordinate(ends: Tensor) -> Reader:
    """Where a vector stands on the way from b, at 0, to a, at 1: <x - b, a - b> / |a - b|²."""
    a, b = ends
    way = a - b
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


# --- runs -----------------------------------------------------------------------------------------


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


class Side(NamedTuple):
    """Runs that get parts of their partners': `offset`, where they get them, counted from where
    they are read."""

    cache: PairCache
    offset: int


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


class Asked(NamedTuple):
    """What is swapped: `parts` of the first `depth` layers, at `offsets` from where the metric is
    read, or, where they are None, at the position of each text."""

    depth: int
    offsets: tuple[int, ...] | None
    parts: tuple[str, ...]


def _effects(
    weights: Weights,
    pairs: Sequence[tuple[Member, Member]],
    metrics: Sequence[Any],
    asked: Asked,
) -> tuple[Tensor, dict[str, Tensor]]:
    """M of the unchanged runs of some pairs, `recipient pair`, and how far it moves with each part
    of the other run. `-> part: recipient pair layer variant pos`"""
    sides = _sides(weights, pairs, asked.depth)
    unchanged = torch.cat([side.cache.final[:, side.cache.at] for side in sides])
    by_pair = unchanged.unflatten(0, (2, -1)).transpose(0, 1)  # pair recipient d_model
    readers = [
        _reader(weights, metric, ends) for metric, ends in zip(metrics, by_pair, strict=True)
    ]
    values = torch.stack(
        [reader(ends) for reader, ends in zip(readers, by_pair, strict=True)], dim=1
    )
    # The rows of all sides, one after the other, are all recipients of a, then all of b.
    readers = readers * 2
    way = by_pair[:, 0] - by_pair[:, 1]
    directions = (way / way.square().sum(-1, keepdim=True)).repeat(2, 1)[:, None]
    # A direction needs no written vector, but rounds to bfloat16 where the weights do.
    linear = weights.dtype != torch.bfloat16 and all(metric is None for metric in metrics)
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
        runs = {
            part: [_variants(model, *members, part, asked) for members in (pair, pair[::-1])]
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


def _variants(model: Model, own: Member, donor: Member, part: str, asked: Asked) -> list[Ends]:
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
        runs.append(run_swapped(model, text, name, given, swapped, read=own.read))
    return runs


def _read_run(metric: Any, run: Ends, *, ends: Tensor, depth: int) -> Tensor:
    """M of every variant of a run. `-> variant`"""
    wide = torch.promote_types(ends.dtype, torch.float32)
    if metric is None:
        return _coordinate(ends.to(wide))(run.resid[:, depth].to(wide))
    logits = run.logits.to(wide)
    if isinstance(metric, tuple):
        first, second = metric
        return logits[:, first] - logits[:, second]
    return _numbers(metric, logits)


def _frame(moved: dict[str, Tensor], gap: float, offsets: Sequence[int] | None) -> pd.DataFrame:
    """A row for every layer and head, or position. `moved: part: recipient layer variant pos`"""
    frames = []
    for part, values in moved.items():
        into_a, into_b = values.double().numpy()
        layer, variant, pos = (index.ravel() for index in np.indices(into_a.shape))
        columns: dict[str, object] = {"layer": layer}
        if part == HEAD:
            columns["head"] = variant
        if offsets is not None:
            columns = {"component": part, "layer": layer, "pos": np.array(offsets)[pos]}
        denoise: Array = into_b.ravel()
        noise: Array = -into_a.ravel()  # towards b, where M is that of b
        swaps = {"denoise": denoise, "noise": noise, "swap": (denoise + noise) / 2, "gap": gap}
        frames.append(pd.DataFrame(columns | swaps))
    return pd.concat(frames, ignore_index=True)
