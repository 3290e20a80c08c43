"""Heads that a user names, one by one or in a table of effects, to be taken out."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from typing_extensions import TypeAliasType

from probe.errors import InputError
from probe.experiments.ablation import HeadsOut, with_random_sets
from probe.patching.sets import HeadIndex, Mask, mask_of

# The column of a file that its heads are ordered by, the first that it has: a report's pages go by
# `net`, too.
EFFECTS = ("effect", "net", "swap")
NAME = re.compile(r"L(\d{1,6})H(\d{1,6})")
EXAMPLE = "L4H1,L4H2"
# What heads to take out can be given as: names, a file or a table with the columns layer and head.
HeadsSource = TypeAliasType(
    "HeadsSource", str | os.PathLike[str] | pd.DataFrame | Iterable[str | HeadIndex]
)


def heads_out(
    given: HeadsSource, top: int | None, *, model: str, shape: tuple[int, int], seed: int
) -> HeadsOut:
    """The heads that are `given`, or the `top` of a file or table by their effect, and RANDOM_SETS
    sets of other heads (all there are, where these are fewer). `shape`: layers and heads of the
    model.

    Raises InputError for what names no heads, for heads that the model does not have, and where a
    layer has too few others for a random set.
    """
    if isinstance(given, pd.DataFrame):
        heads = _heads_of_table(given, top, "a table made in Python")
    elif path := _file(given):
        heads = _heads_of_table(_read_table(path), top, path.name)
    else:
        heads = _named(given, top)
    heads = list(dict.fromkeys(heads))
    _require_in_model(heads, model, shape)
    _require_others(mask_of(heads, shape))
    return with_random_sets(heads, shape, seed=seed)


def _name(head: HeadIndex) -> str:
    return f"L{head[0]}H{head[1]}"


def _file(given: object) -> Path | None:
    """The path that is meant, None where heads are named."""
    if isinstance(given, str) and not given.lower().endswith((".csv", ".parquet")):
        return None
    return Path(given) if isinstance(given, str | os.PathLike) else None


def _named(given: Any, top: int | None) -> list[HeadIndex]:
    """Heads that are named one by one: "L4H1,L4H2", or a sequence of such names or of (layer,
    head)."""
    if isinstance(given, str):
        parts = given.split(",")
    else:
        parts = list(given) if isinstance(given, Iterable) else [given]
    heads = [_head(part) for part in parts]
    if None in heads or not heads:
        wrong = parts[heads.index(None)] if heads else ""
        raise InputError(
            f"Taking out heads: {wrong!r} names none, expected names such as {EXAMPLE}, or a CSV "
            "or Parquet file with the columns layer and head; correct the list."
        )
    found = [head for head in heads if head is not None]
    if top is not None:
        raise InputError(
            f"Taking out the first {top} heads: got the list {','.join(map(_name, found))}, "
            "expected a file whose heads have an effect; leave top out or give such a file."
        )
    return found


def _head(part: Any) -> HeadIndex | None:
    """One head from its name or from (layer, head), None for anything else."""
    if isinstance(part, str):
        return head_index(part) if NAME.fullmatch(part.strip().upper()) else None
    try:
        layer, head = part
        return int(layer), int(head)
    except (TypeError, ValueError):
        return None


def head_index(name: str) -> HeadIndex:
    """(4, 1) of "L4H1"."""
    layer, head = name.strip().upper().removeprefix("L").split("H")
    return int(layer), int(head)


def _read_table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(
            f"Reading heads from {path}: there is no such file; give the path of a CSV or Parquet "
            f"file with the columns layer and head, or a list such as {EXAMPLE}."
        )
    try:
        return pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Reading heads from {path}: it cannot be read as a table ({reason}); write it again "
            "or give another."
        ) from error


def _heads_of_table(table: pd.DataFrame, top: int | None, source: str) -> list[HeadIndex]:
    """The heads of a table in its order; with `top`, those with the largest effect, averaged where
    a head has several rows."""
    doing = f"Reading heads from {source}:"
    if missing := [column for column in ("layer", "head") if column not in table]:
        raise InputError(
            f"{doing} the column {missing[0]} is missing, got {', '.join(map(str, table))}, "
            f"expected layer and head; add it or give a list such as {EXAMPLE}."
        )
    # A row without a head is of an MLP, of an attention as a whole, or of an embedding.
    rows = table.dropna(subset=["layer", "head"])
    numbers = rows[["layer", "head"]].apply(pd.to_numeric, errors="coerce")
    wrong = (numbers.isna() | (numbers % 1 != 0) | (numbers < 0)).any(axis=1)
    if wrong.any() or rows.empty:
        got = "no row with both"
        if wrong.any():
            first = rows.loc[wrong, ["layer", "head"]].iloc[0]
            got = " and ".join(map(str, first.tolist()))
        raise InputError(
            f"{doing} got {got} for layer and head, expected whole numbers from 0; correct the "
            "file."
        )
    numbers = numbers.astype(int)
    if top is not None:
        numbers = _first_by_effect(numbers, rows, top, doing)
    return [(int(layer), int(head)) for layer, head in numbers.to_numpy()]


def _first_by_effect(
    numbers: pd.DataFrame, rows: pd.DataFrame, top: int, doing: str
) -> pd.DataFrame:
    """The `top` heads with the largest mean effect; of equals the lower layer, then the lower
    head."""
    column = next((name for name in EFFECTS if name in rows), None)
    if column is None:
        raise InputError(
            f"{doing} none of the columns {', '.join(map(str, rows))} says how large the effect of "
            f"a head is, expected {', '.join(EFFECTS[:-1])} or {EFFECTS[-1]}; add it or leave top "
            "out."
        )
    effects = numbers.assign(effect=pd.to_numeric(rows[column], errors="coerce"))
    ordered = effects.groupby(["layer", "head"])["effect"].mean().dropna()
    if not 1 <= top <= len(ordered):
        raise InputError(
            f"{doing} got top = {top}, expected 1 to {len(ordered)}, the number of heads with an "
            "effect; take as many as there are."
        )
    return ordered.sort_values(ascending=False, kind="stable").head(top).index.to_frame()


def _require_in_model(heads: Sequence[HeadIndex], model: str, shape: tuple[int, int]) -> None:
    layers, count = shape
    for head in heads:
        if not (0 <= head[0] < layers and 0 <= head[1] < count):
            raise InputError(
                f"Taking out {_name(head)}: {model} has no such head, expected layers 0 to "
                f"{layers - 1} and heads 0 to {count - 1}; name heads of this model."
            )


def _require_others(mask: Mask) -> None:
    """Raises InputError where a layer has fewer heads outside the set than in it."""
    for layer, heads in enumerate(mask):
        taken = int(heads.sum())
        left = len(heads) - taken
        if taken > left:
            raise InputError(
                f"Drawing random sets beside the heads taken out: layer {layer} has {len(heads)} "
                f"heads, of which {taken} are taken out and {left} left, expected at least as many "
                "left as taken out; take out fewer heads of this layer."
            )
