"""What callers give to interventions, checked before anything runs: texts, donors, directions, sets
of heads, depths and counts.

`doing` names the intervention in the sentence of an error, such as "Swapping heads".
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probe.errors import InputError, whole_number
from probe.model.tokens import TargetText, Tokens
from probe.model.weights import Weights
from probe.stats.numbers import counted

Rows = Sequence[TargetText | Tokens | Sequence[int]]
Texts = Sequence[TargetText]


def target_texts(weights: Weights, rows: Rows, doing: str) -> list[TargetText]:
    """Each text and where it is read: in a causal model ids alone, and tokens, at the last one, and
    nothing behind the word is run. A model that reads both ways needs the text behind the word as
    well, so there a position is given with it.

    Raises InputError for no texts, for what is neither, for texts without a position where one is
    needed, for ids that the model has no token for, positions that a text does not have, and texts
    beyond the context window.
    """
    given = _as_list(rows)
    if not given:
        raise InputError(
            f"{doing}: got texts {rows!r}, expected at least one; give a list of the ids of each, "
            "as in [probe.tokenize(model, text).ids]."
        )
    if whole_number(given[0]) is not None:
        raise InputError(
            f"{doing}: got the ids of one text, expected a list of texts; put it into brackets, as "
            "in [probe.tokenize(model, text).ids]."
        )
    texts = []
    for number, row in enumerate(given):
        in_text = f"{doing} in text {number}"
        text = row if isinstance(row, TargetText) else _read_at_its_end(weights, row, in_text)
        _require_tokens(weights, text, in_text)
        if weights.causal:
            text = TargetText(text.ids[: text.at + 1], text.at)
        texts.append(text)
    return texts


def _as_list(values: Any) -> list[Any]:
    """What a list, a tuple, a tensor or an array holds; nothing for all else, a text among it."""
    values = values.tolist() if hasattr(values, "tolist") else values
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    return list(values) if is_list else []


def _read_at_its_end(weights: Weights, row: Any, doing: str) -> TargetText:
    ids = _as_list(row.ids if isinstance(row, Tokens) else row)
    if not ids:
        raise InputError(
            f"{doing}: got {row!r}, expected the ids of its tokens; give "
            "probe.tokenize(model, text).ids."
        )
    if not weights.causal:
        raise InputError(
            f"{doing}: got {len(ids)} tokens without the position of the word, and this model "
            "reads both ways, so that a text does not end with it; give "
            "probe.TargetText(tokens.ids, tokens.positions_of(word)[-1])."
        )
    return TargetText(tuple(ids), len(ids) - 1)


def _require_tokens(weights: Weights, text: TargetText, doing: str) -> None:
    """Raises InputError for ids, a position and a length that the model does not have."""
    config = weights.config
    for token in text.ids:
        if whole_number(token) is None or not 0 <= token < config.d_vocab:
            raise InputError(
                f"{doing}: got the id {token!r}, expected 0 to {config.d_vocab - 1}; give the ids "
                "of probe.tokenize."
            )
    if not 0 <= text.at < len(text.ids):
        raise InputError(
            f"{doing}: got position {text.at} of {len(text.ids)} tokens; give one from 0 to "
            f"{len(text.ids) - 1}."
        )
    if len(text.ids) > config.n_ctx:
        raise InputError(
            f"{doing}: got {len(text.ids)} tokens, expected at most {config.n_ctx}, the context "
            "window; shorten the text."
        )


def require_equal_lengths(a: Texts, b: Texts, doing: str) -> None:
    """Raises InputError where texts have no partner, and where the members of a pair are not
    equally long, up to the word in a causal model."""
    if len(a) != len(b):
        raise InputError(
            f"{doing}: got {len(a)} texts and {len(b)}, expected as many of both; give each text "
            "its partner."
        )
    for number, (one, other) in enumerate(zip(a, b, strict=True)):
        if len(one.ids) != len(other.ids):
            raise InputError(
                f"{doing}: pair {number} has {len(one.ids)} and {len(other.ids)} tokens, expected "
                "as many in both; write its members equally long, leave the pair out, or swap each "
                "way with swap_heads and the z of the other."
            )


def require_depth(weights: Weights, depth: int, doing: str) -> None:
    """Raises InputError for a depth that is not behind one of the model's blocks."""
    layers = len(weights.blocks)
    if whole_number(depth) is None or not 1 <= depth <= layers:
        raise InputError(
            f"{doing} up to depth {depth!r}: the model has {layers} blocks; give a whole number "
            f"from 1 to {layers}."
        )


def _as_tensor(values: Any) -> Tensor:
    """A tensor as it is, wherever new ones are made; of an array or a list one of its numbers, and
    an empty one for all else."""
    try:
        return values if isinstance(values, Tensor) else torch.tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return torch.empty(0)


def as_donors(weights: Weights, rows: Texts, donors: Any, doing: str) -> Tensor:
    """z of the donors, `row layer head d_head`. Raises InputError for z of other shapes than the
    model's, of another number of texts, and for numbers that are none."""
    donor_z = _as_tensor(donors)
    shape = tuple(donor_z.shape)
    if len(shape) == 4:
        require_depth(weights, shape[1], doing)
    wanted = (len(rows), *shape[1:2], *weights.shape[1:2], weights.config.d_head)
    if shape != wanted:
        raise InputError(
            f"{doing}: got donors of shape {list(shape)}, expected row layer head d_head, here "
            f"{list(wanted)}; give target_states(...).z of as many texts of this model."
        )
    of_heads = donor_z[:, weights.has_heads[: shape[1]].to(donor_z.device)]
    if not torch.isfinite(of_heads).all():
        raise InputError(
            f"{doing}: the donors hold numbers that are none (NaN or infinite); give z of a run."
        )
    return donor_z


def as_directions(
    weights: Weights,
    directions: Any,
    doing: str,
    *,
    own: str = "",
    rows: int = 0,
    stages: int = 0,
) -> Tensor:
    """Directions as a tensor: `direction d_model` for all rows or, where each of so many `rows` may
    have its own, of the shape `own`: "pair direction d_model", or "row stage d_model" with so many
    `stages` at least, and perhaps several directions at each.

    Raises InputError for other shapes, for numbers that are none, and where every direction is 0,
    along which nothing moves.
    """
    given = _as_tensor(directions)
    axes = {"": (2,), "pair direction d_model": (2, 3), "row stage d_model": (2, 3, 4)}[own]
    fits = given.ndim in axes and given.shape[-1] == weights.config.d_model
    if not fits or (given.ndim > 2 and len(given) != rows):
        each = f", or {own} for {counted(rows, own.split()[0])}" if own else ""
        raise InputError(
            f"{doing}: got directions of shape {list(given.shape)}, expected direction d_model "
            f"({weights.config.d_model} numbers each){each}; give one direction as "
            "direction[None]."
        )
    if given.ndim > 2 and given.shape[1] < stages:
        raise InputError(
            f"{doing}: got directions of {counted(given.shape[1], 'stage')} for each row, expected "
            f"{stages}, one behind every block, or more, read behind the final norm; give as many, "
            "or one direction for all as direction[None]."
        )
    if not torch.isfinite(given).all() or not given.any():
        raise InputError(
            f"{doing}: the directions hold numbers that are none (NaN or infinite), or are all 0; "
            "give a difference of two vectors that are not the same."
        )
    return given


def as_sets(head_sets: Any, donor_z: Tensor, doing: str) -> Tensor:
    """Sets of heads as a mask, `set layer head`. Raises InputError for what is no mask of the
    donors' layers and heads."""
    given = _as_tensor(head_sets)
    shape = tuple(given.shape) if given.dtype == torch.bool else None
    wanted = tuple(donor_z.shape[1:3])
    if shape is None or len(shape) != 3 or shape[1:] != wanted or not shape[0]:
        got = f"a mask of shape {list(shape)}" if shape is not None else type(head_sets).__name__
        raise InputError(
            f"{doing}: got {got}, expected set layer head of True and False, here "
            f"[sets, {wanted[0]}, {wanted[1]}]; give torch.zeros(1, {wanted[0]}, {wanted[1]}, "
            "dtype=torch.bool), say."
        )
    return given


def as_offsets(positions: Any, name: str, doing: str) -> tuple[int, ...]:
    """Positions counted from the word, in order, each once. Raises InputError for none, and for
    what is no whole number."""
    given = _as_list(positions)
    if not given or any(whole_number(position) is None for position in given):
        raise InputError(
            f"{doing}: got {name} {positions!r}, expected whole numbers counted from the word, "
            "0 the word and -1 the token before it; give a list, as in [-1, 0]."
        )
    return tuple(sorted({int(position) for position in given}))


def require_share(value: Any, name: str, doing: str) -> None:
    """Raises InputError for an option that is no finite number from 0 on."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise InputError(
            f"{doing}: got {name} = {value!r}, expected a share of the gap from 0 on; give one, as "
            "0.01, or leave it out."
        )
