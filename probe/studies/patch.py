"""Swaps in texts that are given as they are: what a caller may ask for, and the frame of what came
out (`probe.experiments.patch`).
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from probe.errors import InputError, UnsupportedModel
from probe.experiments.patch import (
    PARTS,
    Asked,
    Member,
    Metric,
    measure,
    read_ends,
    ways_of_others,
)
from probe.model.hooks import Hook
from probe.model.load import ModelSource, load, read_weights
from probe.model.model import Model
from probe.model.tokens import Tokens, text_position, token_id, tokenize
from probe.model.trace import target_states
from probe.model.weights import Weights
from probe.patching.inputs import require_depth
from probe.patching.pair import TokenPair, positions_from_word
from probe.patching.positions import HEAD
from probe.renamed import renamed
from probe.stats.numbers import counted
from probe.stats.resampling import Array

TEXTS = (str, bytes)  # sequences that are no lists


@renamed(places={2: "against"}, a="text", b="against")
def patch(
    model: ModelSource,
    text: str | Sequence[str],
    *,
    against: str | Sequence[str],
    at: int | str,
    metric: Metric | list[Metric] = None,
    read: int | str | None = None,
    parts: str = "heads",
    depth: int | None = None,
) -> pd.DataFrame:
    """How far the metric moves when one part of a text's run at a position is the other text's, for
    every head, both ways: columns `layer head denoise noise swap gap`.

    `text` is at 1 of the gap and `against` at 0.

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
    gap over all pairs is `swap.sum() / gap.sum()`, by head. Pairs that are the same up to where the
    metric is read are one: the first has rows, and `frame.attrs["merged"]` counts the others.

    The coordinate of FEWEST_PAIRS pairs and more is read along the way of the other pairs, that of
    fewer along each pair's own way, on which every head that writes anything moves it:
    `frame.attrs["axis"]` says which ("others" or "own"), and `probe.sign_flip_test` refuses so few
    pairs. Raises InputError for a word or
    position that is not there, a token that is several, a metric of another shape, a depth that the
    model does not have, texts that do not differ, and unequal lengths where positions must match;
    UnsupportedModel for logits of a model without a language-model head, and for an
    encoder-decoder.

    Example:
        >>> river, loan = "The river bank", "The mortgage bank"
        >>> heads = probe.patch("tiny-senses", river, against=loan, at="bank")
        >>> list(heads.columns)
        ['layer', 'head', 'denoise', 'noise', 'swap', 'gap']
        >>> len(heads), float(heads["gap"].iloc[0])  # 4 layers x 4 heads; all the way is 1
        (16, 1.0)
        >>> metric = (" and", " with")
        >>> by_logits = probe.patch("tiny-senses", river, against=loan, at="bank", metric=metric)
        >>> by_logits.shape
        (16, 6)
    """
    model = load(model)
    weights = read_weights(model)
    one_pair = isinstance(text, str) and isinstance(against, str)
    pairs = _pairs(model, _texts(text, against), at, read)
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

    kept = _first_of_each(pairs)
    metrics = [metrics[number] for number in kept]
    different = [pairs[number] for number in kept]
    axis = "own"
    if depth and all(one is None for one in metrics):
        texts = [frozenset(pair) for pair in different]
        ways = ways_of_others(read_ends(weights, different, depth), texts)
        if ways is not None:
            axis = "others"
            metrics = list(ways)
    frames: dict[int, pd.DataFrame] = {}
    asked = Asked(depth, offsets, PARTS[parts])
    for index, gap, moved in measure(weights, different, metrics, asked):
        number = kept[index]
        frame = _frame(moved, gap, offsets)
        if parts == "heads":  # in a hybrid some layers have none
            has_heads = weights.has_heads.cpu().numpy()
            frame = frame[has_heads[frame["layer"]]].reset_index(drop=True)
        frames[number] = frame
    for frame in frames.values():
        frame.attrs |= {"model": model.said, "axis": axis, "merged": len(pairs) - len(kept)}
    if one_pair:
        return frames[0]
    for number, frame in frames.items():
        frame.insert(0, "pair", number)
    return pd.concat([frames[number] for number in sorted(frames)], ignore_index=True)


@renamed(places={2: "against"}, a="text", b="against")
def patch_hooks(
    model: ModelSource,
    text: str,
    *,
    against: str,
    at: int | str,
    heads: Sequence[tuple[int, int]],
) -> list[Hook]:
    """A swap as `fwd_hooks` of TransformerLens: some heads of `against` get the z that they have in
    `text` at a word, or a position.

    `heads`: (layer, head) of each. The hooks hold for a run of the token ids of `against` as
    `probe.tokenize` gives them: `bridge.run_with_hooks(ids, fwd_hooks=hooks)`. Raises InputError
    for a word, position, layer or head that is not there.

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
    donor = tokenize(model, text)
    recipient = tokenize(model, against)
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
                    f"the {len(recipient)} of {against!r}; run these, or make hooks for the other "
                    "text."
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


def _first_of_each(pairs: Sequence[tuple[Member, Member]]) -> list[int]:
    """The numbers of the pairs that are not the same as an earlier one."""
    first: dict[tuple[Member, Member], int] = {}
    for number, pair in enumerate(pairs):
        first.setdefault(pair, number)
    return list(first.values())


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
