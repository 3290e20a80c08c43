"""Checks of the arguments of interventions, before anything runs: texts, donors, directions,
sets of heads, depths and counts.

`doing` names the intervention in an error message, e.g. "Cannot swap heads".
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probe.errors import InputError, whole_number
from probe.model.tokens import Tokens
from probe.model.variants import TargetText
from probe.model.weights import Weights
from probe.stats.numbers import counted

Rows = Sequence[TargetText | Tokens | Sequence[int]]
Texts = Sequence[TargetText]


def target_texts(weights: Weights, rows: Rows, doing: str) -> list[TargetText]:
    """Each text with the position at which it is read.

    In a causal model, token ids or tokens without a position are read at the last token, and no
    token after the position is run. A model that reads both ways also needs the text after the
    word, so it needs the position, too.

    Raises InputError for an empty list, for anything that is not a text, for a missing position,
    for ids that the model has no token for, for positions outside a text, and for texts longer than
    the context window.
    """
    items = _as_list(rows)
    if not items:
        raise InputError(
            f"{doing}: got texts {rows!r}, expected at least one. Give a list of the ids of each, "
            "as in [probe.tokenize(model, text).ids]."
        )
    if whole_number(items[0]) is not None:
        raise InputError(
            f"{doing}: got the ids of one text, expected a list of texts. Put it into brackets, as "
            "in [probe.tokenize(model, text).ids]."
        )
    texts = []
    for number, row in enumerate(items):
        in_text = f"{doing} in text {number}"
        text = row if isinstance(row, TargetText) else _read_at_its_end(weights, row, in_text)
        _require_tokens(weights, text, in_text)
        if weights.causal:
            text = TargetText(text.ids[: text.at + 1], text.at)
        texts.append(text)
    return texts


def _as_list(values: Any) -> list[Any]:
    """The items of a list, tuple, tensor or array; an empty list for anything else, also for a
    string.
    """
    values = values.tolist() if hasattr(values, "tolist") else values
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    return list(values) if is_list else []


def _read_at_its_end(weights: Weights, row: Any, doing: str) -> TargetText:
    ids = _as_list(row.ids if isinstance(row, Tokens) else row)
    if not ids:
        raise InputError(
            f"{doing}: got {row!r}, expected the ids of its tokens. Give "
            "probe.tokenize(model, text).ids."
        )
    if not weights.causal:
        raise InputError(
            f"{doing}: got {len(ids)} tokens without the position of the word, and this model "
            "reads both ways, so that a text does not end with it. Give "
            "TargetText(tokens.ids, tokens.positions_of(word)[-1]) of probe.model.variants."
        )
    return TargetText(tuple(ids), len(ids) - 1)


def _require_tokens(weights: Weights, text: TargetText, doing: str) -> None:
    """Raises InputError for ids, a position or a length that the model does not have."""
    config = weights.config
    for token in text.ids:
        if whole_number(token) is None or not 0 <= token < config.d_vocab:
            raise InputError(
                f"{doing}: got the id {token!r}, expected 0 to {config.d_vocab - 1}. Give the ids "
                "of probe.tokenize."
            )
    if not 0 <= text.at < len(text.ids):
        raise InputError(
            f"{doing}: got position {text.at} of {len(text.ids)} tokens. Give one from 0 to "
            f"{len(text.ids) - 1}."
        )
    if len(text.ids) > config.n_ctx:
        raise InputError(
            f"{doing}: got {len(text.ids)} tokens, expected at most {config.n_ctx}, the context "
            "window. Shorten the text."
        )


def require_equal_lengths(a: Texts, b: Texts, doing: str) -> None:
    """Raises InputError for texts without a partner, and for pairs of different length.

    In a causal model, the length up to the word counts.
    """
    if len(a) != len(b):
        raise InputError(
            f"{doing}: got {len(a)} texts and {len(b)}, expected equal numbers. Give each text a "
            "partner."
        )
    for number, (text_a, text_b) in enumerate(zip(a, b, strict=True)):
        if len(text_a.ids) != len(text_b.ids):
            raise InputError(
                f"{doing}: pair {number} has {len(text_a.ids)} and {len(text_b.ids)} tokens, "
                "expected equal numbers. Write its members equally long, omit the pair, or swap in "
                "each direction with swap_heads and the z of the other."
            )


def require_depth(weights: Weights, depth: int, doing: str) -> None:
    """Raises InputError unless the depth is the number of one of the model's blocks, counted
    from 1.
    """
    layers = len(weights.blocks)
    if whole_number(depth) is None or not 1 <= depth <= layers:
        raise InputError(
            f"{doing} up to depth {depth!r}: the model has {layers} blocks. Give a whole number "
            f"from 1 to {layers}."
        )


def _as_tensor(values: Any) -> Tensor:
    """A tensor as it is, on its device; an array or a list as a tensor; an empty tensor for
    anything else.
    """
    try:
        return values if isinstance(values, Tensor) else torch.tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return torch.empty(0)


def as_donors(weights: Weights, rows: Texts, donors: Any, doing: str) -> Tensor:
    """z of the donors. `row layer head d_head`

    Raises InputError for another shape, for another number of texts, and for NaN or infinite
    numbers.
    """
    donor_z = _as_tensor(donors)
    shape = tuple(donor_z.shape)
    if len(shape) == 4:
        require_depth(weights, shape[1], doing)
    expected_shape = (len(rows), *shape[1:2], *weights.shape[1:2], weights.config.d_head)
    if shape != expected_shape:
        raise InputError(
            f"{doing}: got donors of shape {list(shape)}, expected row layer head d_head, here "
            f"{list(expected_shape)}. Give target_states(...).z of the same number of texts of "
            "this model."
        )
    of_heads = donor_z[:, weights.has_heads[: shape[1]].to(donor_z.device)]
    if not torch.isfinite(of_heads).all():
        raise InputError(f"{doing}: the donors contain NaN or infinite numbers. Give z of a run.")
    return donor_z


def as_directions(
    weights: Weights,
    directions: Any,
    doing: str,
    *,
    row_axes: str = "",
    rows: int = 0,
    stages: int = 0,
) -> Tensor:
    """Directions as a tensor.

    directions: `direction d_model`, the same for all rows, or of the shape `row_axes`
    row_axes: the axes of directions that differ between rows: "pair direction d_model" or "row
        stage d_model"; the latter may also have several directions at each stage, before d_model
    rows: how many rows there are
    stages: how many stages there are at least

    Raises InputError for other shapes, for NaN or infinite numbers, and if all directions are 0.
    """
    tensor = _as_tensor(directions)
    axes = {"": (2,), "pair direction d_model": (2, 3), "row stage d_model": (2, 3, 4)}[row_axes]
    fits = tensor.ndim in axes and tensor.shape[-1] == weights.config.d_model
    if not fits or (tensor.ndim > 2 and len(tensor) != rows):
        alternative = (
            f", or {row_axes} for {counted(rows, row_axes.split()[0])}" if row_axes else ""
        )
        raise InputError(
            f"{doing}: got directions of shape {list(tensor.shape)}, expected direction d_model "
            f"({weights.config.d_model} numbers each){alternative}. Give one direction as "
            "direction[None]."
        )
    if tensor.ndim > 2 and tensor.shape[1] < stages:
        raise InputError(
            f"{doing}: got directions of {counted(tensor.shape[1], 'stage')} for each row, "
            f"expected {stages}, one after each block, or more, read after the final norm. Give "
            "this many, or one direction for all as direction[None]."
        )
    if not torch.isfinite(tensor).all() or not tensor.any():
        raise InputError(
            f"{doing}: the directions contain NaN or infinite numbers, or are all 0. "
            "Give a difference of two vectors that are not the same."
        )
    return tensor


def swap_inputs(
    weights: Weights,
    rows: Rows,
    donor_z: Any,
    directions: Any,
    doing: str,
    *,
    stages: int | None = None,
) -> tuple[list[TargetText], Tensor, Tensor]:
    """The texts, donors and directions of swaps, checked against each other.

    stages: how many stages directions that differ between rows have at least; by default one after
        each layer of the donors

    Raises InputError.
    """
    texts = target_texts(weights, rows, doing)
    donor_z = as_donors(weights, texts, donor_z, doing)
    directions = as_directions(
        weights,
        directions,
        doing,
        row_axes="row stage d_model",
        rows=len(texts),
        stages=donor_z.shape[1] if stages is None else stages,
    )
    return texts, donor_z, directions


def as_sets(head_sets: Any, donor_z: Tensor, doing: str) -> Tensor:
    """Sets of heads as a mask. `set layer head`

    Raises InputError for anything but a mask over the donors' layers and heads.
    """
    mask = _as_tensor(head_sets)
    shape = tuple(mask.shape) if mask.dtype == torch.bool else None
    layers, heads = donor_z.shape[1:3]
    if shape is None or len(shape) != 3 or shape[1:] != (layers, heads) or not shape[0]:
        got = f"a mask of shape {list(shape)}" if shape is not None else type(head_sets).__name__
        raise InputError(
            f"{doing}: got {got}, expected set layer head of True and False, here "
            f"[sets, {layers}, {heads}]. Give a mask such as torch.zeros(1, {layers}, {heads}, "
            "dtype=torch.bool)."
        )
    return mask


def as_offsets(positions: Any, name: str, doing: str) -> tuple[int, ...]:
    """Positions counted from the word, sorted, without repetitions.

    Raises InputError for an empty list and for anything that is not a whole number.
    """
    items = _as_list(positions)
    if not items or any(whole_number(position) is None for position in items):
        raise InputError(
            f"{doing}: got {name} {positions!r}, expected whole numbers counted from the word, "
            "0 the word and -1 the token before it. Give a list, as in [-1, 0]."
        )
    return tuple(sorted({int(position) for position in items}))


def require_share(value: Any, name: str, doing: str) -> None:
    """Raises InputError unless an option is a finite number of at least 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise InputError(
            f"{doing}: got {name} = {value!r}, expected a share of the gap, at least 0. Give one "
            "such as 0.01, or omit it."
        )
