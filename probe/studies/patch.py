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
from typing_extensions import TypeAliasType

from probe.errors import InputError, UnsupportedModel
from probe.model import forward
from probe.model.architectures import require_single
from probe.model.hooks import Hook
from probe.model.load import ModelSource, load
from probe.model.model import Model, require_head
from probe.model.tokens import Tokens, text_position, token_id, tokenize
from probe.model.trace import target_states
from probe.model.weights import Weights, weights_of
from probe.patching.heads import BATCH_NUMBERS
from probe.patching.inputs import require_depth
from probe.patching.pair import PairCache, TokenPair, cache_pair, positions_from_word
from probe.patching.positions import COMPONENTS, HEAD, Read, effects
from probe.stats.numbers import counted
from probe.stats.resampling import FEWEST_PAIRS, Array

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
TEXTS = (str, bytes)  # sequences, but not lists of texts


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


def patch(
    model: ModelSource,
    text: str | Sequence[str],
    at: int | str,
    *,
    against: str | Sequence[str],
    metric: Metric | list[Metric] = None,
    read: int | str | None = None,
    parts: str = "heads",
    depth: int | None = None,
) -> pd.DataFrame:
    """Return how far a metric moves when one part of a text's run is replaced by that of another
    text, for every head, in both directions.

    The columns are `layer head denoise noise swap gap`. `text` is at 1 of the gap, `against` at 0.
    The gap is between two texts: two texts in which the word means the same have one as well.
    denoise: the move toward `text` when `against` gets the part of `text`
    noise: the move toward `against` when `text` gets the part of `against`
    swap: the mean of the two
    gap: the difference of the metric between the two texts

    at: what is swapped: a word, which means the last token of its first occurrence in each text, or
        a position, counted from the end if it is negative
    read: where the metric is read, given in the same way; by default the same position
    metric: None for the coordinate between the two vectors there after `depth` blocks; a pair of
        next tokens such as `(" water", " loan")` for the difference of their logits; or a function
        of the logits. It is called with `logits: row d_vocab`, a row for every run, and returns one
        number for each row
    parts: "heads"; "mlp"; "stream", the input of each block; or "positions", the stream, attention
        output and MLP output at every position from the first difference on. "positions" needs
        texts of equal length. Its columns are `component layer pos` instead of `layer head`, with
        `pos` counted from the position that is read
    depth: how many blocks the coordinate is read after; by default all

    Lists of texts, or columns of a DataFrame, are pairs. The frame then has a row for each pair and
    head, with the number of the pair in `pair`, and `metric` may be a list with one for each pair.
    The fraction of the gap over all pairs is `swap.sum() / gap.sum()`, by head. Pairs that are the
    same up to the position where the metric is read are merged: the first has rows, and
    `frame.attrs["merged"]` counts the others.

    From FEWEST_PAIRS pairs on, the coordinate of a pair is read along the mean direction of the
    other pairs. With fewer pairs it is read along the pair's own direction, and every head that
    writes anything moves it. `frame.attrs["axis"]` is "others" or "own", `frame.attrs["gap"]` says
    in words what the gap is and `frame.attrs["measured"]` what was measured.
    `probe.stats.resampling.sign_flip_test` refuses so few pairs.

    Raises InputError for a word or position that does not exist, a next token that is several
    tokens, an invalid metric, a depth that the model does not have, texts that do not differ, and
    unequal lengths where positions must match; UnsupportedModel for logits of a model without a
    language-model head, and for an encoder-decoder.

    Example:
        >>> river, loan = "The river bank", "The mortgage bank"
        >>> heads = probe.patch("tiny-senses", river, against=loan, at="bank")
        >>> list(heads.columns)
        ['layer', 'head', 'denoise', 'noise', 'swap', 'gap']
        >>> len(heads), float(heads["gap"].iloc[0])  # 4 layers x 4 heads; the whole gap is 1
        (16, 1.0)
        >>> metric = (" and", " with")
        >>> by_logits = probe.patch("tiny-senses", river, against=loan, at="bank", metric=metric)
        >>> by_logits.shape
        (16, 6)
    """
    model = load(model)
    weights = weights_of(model)
    one_pair = isinstance(text, str) and isinstance(against, str)
    pairs = _pairs(model, _texts(text, against), at, read)
    depth = len(weights.blocks) if depth is None else depth
    require_depth(weights, depth, "Cannot patch")
    if parts not in tuple(PARTS):
        raise InputError(
            f"Cannot patch parts = {parts!r}: expected one of {', '.join(map(repr, PARTS))}. Give "
            "one of these."
        )
    metrics = _metrics(model, metric, len(pairs), depth)
    offsets: tuple[int, ...] | None = None
    if parts == "positions":
        offsets = positions_from_word(_aligned(pairs), None)
    else:
        _require_difference(weights, pairs, at)

    # Equal pairs are one observation: counted twice, they would make a test too sure.
    first_pairs = [number for number, pair in enumerate(pairs) if pairs.index(pair) == number]
    metrics = [metrics[number] for number in first_pairs]
    different = [pairs[number] for number in first_pairs]
    axis = "own"
    between = "between two texts, whether or not the word means the same in them"
    if depth and all(pair_metric is None for pair_metric in metrics):
        texts = [frozenset(pair) for pair in different]
        directions = ways_of_others(read_ends(weights, different, depth), texts)
        if directions is not None:
            axis = "others"
            between = "between two texts, along the mean difference of the other pairs"
            metrics = list(directions)
    frames: dict[int, pd.DataFrame] = {}
    request = Asked(depth, offsets, PARTS[parts])
    for index, gap, moves in measure(weights, different, metrics, request):
        number = first_pairs[index]
        frame = _frame(moves, gap, offsets)
        if parts == "heads":  # in a hybrid model some layers have no heads
            has_heads = weights.has_heads.cpu().numpy()
            frame = frame[has_heads[frame["layer"]]].reset_index(drop=True)
        frames[number] = frame
    merged = len(pairs) - len(different)
    about = {"model": model.name, "axis": axis, "gap": between, "merged": merged}
    about["measured"] = _measured(text, against, at, at if read is None else read, metric, parts)
    for frame in frames.values():
        frame.attrs |= about
    if one_pair:
        return frames[0]
    for number, frame in frames.items():
        frame.insert(0, "pair", number)
    return pd.concat([frames[number] for number in sorted(frames)], ignore_index=True)


def patch_hooks(
    model: ModelSource,
    text: str,
    at: int | str,
    *,
    against: str,
    heads: Sequence[tuple[int, int]],
) -> list[Hook]:
    """Return a swap as `fwd_hooks` of TransformerLens: at a word or position, some heads of
    `against` get the z that they have in `text`.

    at: as in `probe.patch`
    heads: (layer, head) of each

    The hooks work in a run of the token ids of `against` as `probe.tokenize` returns them:
    `bridge.run_with_hooks(ids, fwd_hooks=hooks)`.

    Raises InputError for a word, position, layer or head that does not exist.

    Example:
        >>> import torch
        >>> model = probe.load("tiny-senses")
        >>> river, loan = "The river bank", "The mortgage bank"
        >>> heads = [(0, 1), (2, 3)]
        >>> hooks = probe.patch_hooks(model, river, against=loan, at="bank", heads=heads)
        >>> [name for name, _ in hooks]
        ['blocks.0.attn.hook_z', 'blocks.2.attn.hook_z']
        >>> ids = torch.tensor([probe.tokenize(model, loan).ids])
        >>> model.bridge.run_with_hooks(ids, fwd_hooks=hooks).shape[:2]  # batch position
        torch.Size([1, 4])
    """
    model = load(model)
    require_single(model.config.architecture, "a swap in hooks")
    pairs = _heads(model, heads)
    for layer, head in pairs:
        require_head(model, layer, head, doing=f"Cannot hook L{layer}H{head}")
    donor = tokenize(model, text)
    recipient = tokenize(model, against)
    to = text_position(recipient, at)
    z = target_states(model, [donor], [text_position(donor, at)]).z[0].to(model.device)
    # One hook per layer swaps all of its heads.
    by_layer: dict[int, list[int]] = defaultdict(list)
    for layer, head in pairs:
        by_layer[layer].append(head)

    def swap(layer: int) -> Callable[..., Tensor]:
        def patch_z(recipient_z: Tensor, hook: object) -> Tensor:
            if recipient_z.shape[1] != len(recipient):
                raise InputError(
                    f"Cannot swap heads in a run of {recipient_z.shape[1]} tokens: the hooks were "
                    f"made for the {len(recipient)} tokens of {against!r}. Run these, or make "
                    "hooks for the other text."
                )
            patched = recipient_z.clone()
            patched[:, to, by_layer[layer]] = z[layer, by_layer[layer]].to(recipient_z.dtype)
            return patched

        return patch_z

    (attention,) = model.config.family.attentions
    return [
        (f"{attention.blocks}.{layer}.{attention.hooks['z']}", swap(layer))
        for layer in sorted(by_layer)
    ]


def _measured(
    text: str | Sequence[str],
    against: str | Sequence[str],
    at: int | str,
    read: int | str,
    metric: Metric | list[Metric],
    parts: str,
) -> str:
    """What the swaps measure, in a sentence."""
    swapped_at, read_at = (
        f"“{place}”" if isinstance(place, str) else f"token {place}" for place in (at, read)
    )
    what = "a metric of the logits"
    if metric is None:
        what = "the vector"
    elif isinstance(metric, tuple):
        what = f"the logit of “{metric[0]}” minus that of “{metric[1]}”"
    between = f"“{text}” and “{against}”"
    if not isinstance(text, str):
        between = f"the texts of {counted(len(text), 'pair')}"
    part = {"heads": "each head's output", "mlp": "each MLP's output"}.get(parts, "each part")
    where = "there" if at == read else f"at {swapped_at}"
    return f"How far {what} at {read_at} moves when {part} {where} is swapped between {between}."


# --- arguments ------------------------------------------------------------------------------------


def _texts(a: str | Sequence[str], b: str | Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of texts.

    Raises InputError for one text and a list, and for lists of unequal length.
    """
    if isinstance(a, str) and isinstance(b, str):
        return [(a, b)]
    a, b = (text.tolist() if hasattr(text, "tolist") else text for text in (a, b))
    lists = [text for text in (a, b) if isinstance(text, Sequence) and not isinstance(text, TEXTS)]
    if len(lists) < 2 or len(a) != len(b) or not len(a):
        sizes = [_how_many(text) for text in (a, b)]
        raise InputError(
            f"Cannot patch pairs of texts: got {sizes[0]} and {sizes[1]}, expected two texts, or "
            "two lists of the same length, at least 1. Give each text a partner."
        )
    return list(zip(a, b, strict=True))


def _how_many(text: object) -> str:
    if isinstance(text, str):
        return "one text"
    if isinstance(text, Sequence) and not isinstance(text, bytes):
        return counted(len(text), "text")
    return type(text).__name__


def _heads(model: Model, heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Layer and head of each. Raises InputError for anything but a list of at least one pair."""
    try:
        pairs = [(operator.index(layer), operator.index(head)) for layer, head in heads]
    except (TypeError, ValueError):
        pairs = []
    if not pairs:
        raise InputError(
            f"Cannot hook heads of {model.name}: got {heads!r}, expected a list of (layer, head). "
            "Give [(0, 1), (2, 3)], say."
        )
    return pairs


def _pairs(
    model: Model, texts: Sequence[tuple[str, str]], at: int | str, read: int | str | None
) -> list[tuple[Member, Member]]:
    """The members of every pair. In a causal model each ends at the position that is read, because
    later tokens change nothing there."""
    return [
        (
            _member(model, tokenize(model, text_a), at, read),
            _member(model, tokenize(model, text_b), at, read),
        )
        for text_a, text_b in texts
    ]


def _member(model: Model, tokens: Tokens, at: int | str, read: int | str | None) -> Member:
    swapped_at = text_position(tokens, at)
    read_at = swapped_at if read is None else text_position(tokens, read)
    if not model.config.causal:
        return Member(tokens.ids, swapped_at, read_at)
    if read_at < swapped_at:
        raise InputError(
            f"Cannot patch token {swapped_at} and read token {read_at} of {tokens.text!r}: "
            f"{model.name} reads left to right, so nothing moves there. Read at the token that is "
            "swapped, or after it."
        )
    return Member(tokens.ids[: read_at + 1], swapped_at, read_at)


def _aligned(pairs: Sequence[tuple[Member, Member]]) -> list[TokenPair]:
    """The pairs as token pairs. Raises InputError if the positions of a pair do not match."""
    aligned = []
    for number, (member, partner) in enumerate(pairs):
        if member.layout != partner.layout:
            raise InputError(
                f"Cannot patch every position of pair {number}: got {len(member.ids)} and "
                f"{len(partner.ids)} tokens, read at {member.read} and {partner.read}, expected "
                "equal numbers. Write texts of equal length, or patch "
                'parts="heads", "mlp" or "stream".'
            )
        aligned.append(TokenPair((member.ids, partner.ids), member.read))
    return aligned


def _require_difference(
    weights: Weights, pairs: Sequence[tuple[Member, Member]], at: int | str
) -> None:
    """Raises InputError for a pair whose texts are the same up to the token that is swapped, or
    everywhere in a model that reads both ways."""
    for number, pair in enumerate(pairs):
        read_ids = [
            member.ids[: member.at + 1] if weights.causal else member.ids for member in pair
        ]
        if read_ids[0] == read_ids[1] and pair[0].at == pair[1].at:
            where = " up to this token" if weights.causal else ""
            raise InputError(
                f"Cannot patch {at!r} in pair {number}: its texts are the same{where}, and no "
                "swap changes anything. Swap at a token after their first difference."
            )


def _metrics(model: Model, metric: Metric | list[Metric], pairs: int, depth: int) -> list[Any]:
    """The metric of every pair: None, the ids of two tokens, or a function."""
    by_pair = metric if isinstance(metric, list) else [metric] * pairs
    if len(by_pair) != pairs:
        raise InputError(
            f"Cannot patch {pairs} pairs of texts with {len(by_pair)} metrics: expected one for "
            "all pairs, or one for each pair. Give as many metrics as pairs."
        )
    if any(pair_metric is not None for pair_metric in by_pair):
        _require_logits(model, depth)
    metrics: list[Any] = []
    for pair_metric in by_pair:
        if pair_metric is None or callable(pair_metric):
            metrics.append(pair_metric)
        elif isinstance(pair_metric, tuple) and len(pair_metric) == 2:
            first, second = (token_id(model, token) for token in pair_metric)
            if first == second:
                raise InputError(
                    f"Cannot patch with the metric {pair_metric!r}: its two tokens are the same, "
                    "and the difference of their logits is always 0. Give two different tokens."
                )
            metrics.append((first, second))
        else:
            raise InputError(
                f"Cannot patch with the metric {pair_metric!r}: expected None, a pair of next "
                'tokens such as (" water", " loan"), or a function of the logits. Give one of '
                "these."
            )
    return metrics


def _require_logits(model: Model, depth: int) -> None:
    if not model.config.has_lm_head:
        raise UnsupportedModel(
            f"Cannot read the logits of {model.name}: its checkpoint has no language-model head. "
            "Load a checkpoint with one, or omit the metric to read the coordinate between the two "
            "texts."
        )
    if depth != model.config.n_layers:
        raise InputError(
            f"Cannot read the logits of {model.name} after {depth} blocks: they are computed after "
            f"the last of {model.config.n_layers}. Omit the depth, or the metric."
        )


# --- swaps ----------------------------------------------------------------------------------------


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


def _frame(moves: dict[str, Tensor], gap: float, offsets: Sequence[int] | None) -> pd.DataFrame:
    """A row for every layer and head, or position.

    moves: of the metric, by part; `recipient layer variant pos`, the recipients `text`, `against`
    """
    frames = []
    for part, values in moves.items():
        into_a, into_b = values.double().numpy()
        layer, variant, pos = (index.ravel() for index in np.indices(into_a.shape))
        columns: dict[str, object] = {"layer": layer}
        if part == HEAD:
            columns["head"] = variant
        if offsets is not None:
            columns = {"component": part, "layer": layer, "pos": np.array(offsets)[pos]}
        # denoise = M(against with the part of text) - M(against)
        # noise   = M(text) - M(text with the part of against)
        denoise: Array = into_b.ravel()
        noise: Array = -into_a.ravel()
        swaps = {"denoise": denoise, "noise": noise, "swap": (denoise + noise) / 2, "gap": gap}
        frames.append(pd.DataFrame(columns | swaps))
    return pd.concat(frames, ignore_index=True)
