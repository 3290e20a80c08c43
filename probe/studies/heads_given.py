"""The heads to ablate that a user names, one by one or in a table of effects."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from typing_extensions import TypeAliasType

from probe.errors import InputError
from probe.model.model import Model, require_head
from probe.patching.sets import HeadIndex

# Columns that order the heads of a file: the first one that it has is used. A report's pages are
# ordered by `net`, too.
EFFECTS = ("effect", "net", "swap")
NAME = re.compile(r"L(\d{1,6})H(\d{1,6})")
EXAMPLE = "L4H1,L4H2"
# The forms in which heads can be given: names, a file or a table with the columns layer and head.
HeadsSource = TypeAliasType(
    "HeadsSource", str | os.PathLike[str] | pd.DataFrame | Iterable[str | HeadIndex]
)


def heads_of(source: HeadsSource, top: int | None, model: Model) -> list[HeadIndex]:
    """The heads to ablate, each once.

    source: names, a file or a table
    top: use only this many heads of a file or table, those with the largest effect

    Raises InputError for a source without heads, heads that the model does not have, and a layer
    with too few other heads for a random set.
    """
    if isinstance(source, pd.DataFrame):
        heads = _heads_of_table(source, top, "a table made in Python")
    elif path := _file(source):
        heads = _heads_of_table(_read_table(path), top, path.name)
    else:
        heads = _heads_of_names(source, top)
    heads = list(dict.fromkeys(heads))  # a table has several rows per head
    _require_in_model(heads, model)
    return heads


def name_of_head(head: HeadIndex) -> str:
    """ "L4H1" for (4, 1)."""
    return f"L{head[0]}H{head[1]}"


def _file(source: object) -> Path | None:
    """The path of a file; None for names of heads."""
    if isinstance(source, str) and not source.lower().endswith((".csv", ".parquet")):
        return None
    return Path(source) if isinstance(source, str | os.PathLike) else None


def _heads_of_names(source: Any, top: int | None) -> list[HeadIndex]:
    """The heads of "L4H1,L4H2", or of a sequence of such names or of (layer, head)."""
    if isinstance(source, str):
        parts = source.split(",")
    else:
        parts = list(source) if isinstance(source, Iterable) else [source]
    read_heads = [_head(part) for part in parts]
    if None in read_heads or not read_heads:
        wrong = parts[read_heads.index(None)] if read_heads else ""
        raise InputError(
            f"Cannot ablate heads: {wrong!r} is not a head, expected names such as {EXAMPLE}, or "
            "a CSV or Parquet file with the columns layer and head. Correct the list."
        )
    heads = [head for head in read_heads if head is not None]
    if top is not None:
        names = ",".join(map(name_of_head, heads))
        raise InputError(
            f"Cannot ablate the top {top} heads: got the list {names}, and no effects. Omit top, "
            "or give a file with the effect of each head."
        )
    return heads


def _head(part: Any) -> HeadIndex | None:
    """One head from its name or from (layer, head); None for anything else."""
    if isinstance(part, str):
        return head_index(part) if NAME.fullmatch(part.strip().upper()) else None
    try:
        layer, head = part
        return int(layer), int(head)
    except (TypeError, ValueError):
        return None


def head_index(name: str) -> HeadIndex:
    """(layer, head) from a name: (4, 1) from "L4H1"."""
    layer, head = name.strip().upper().removeprefix("L").split("H")
    return int(layer), int(head)


def _read_table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(
            f"Cannot read heads from {path}: there is no such file. Give the path of a CSV or "
            f"Parquet file with the columns layer and head, or a list such as {EXAMPLE}."
        )
    try:
        return pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Cannot read heads from {path}: it is not a readable table ({reason}). Write it "
            "again, or give another file."
        ) from error


def _heads_of_table(table: pd.DataFrame, top: int | None, source: str) -> list[HeadIndex]:
    """The heads of a table in its order.

    top: the heads with the largest effect instead; the effects of several rows are averaged.
    """
    doing = f"Cannot read heads from {source}:"
    if missing := [column for column in ("layer", "head") if column not in table]:
        raise InputError(
            f"{doing} the column {missing[0]} is missing, got {', '.join(map(str, table))}, "
            f"expected layer and head. Add it, or give a list such as {EXAMPLE}."
        )
    # A row without a head is about an MLP, a whole attention layer, or an embedding.
    rows = table.dropna(subset=["layer", "head"])
    numbers = rows[["layer", "head"]].apply(pd.to_numeric, errors="coerce")
    # Text became NaN; a head of 1.5 or -1 does not exist either.
    wrong = (numbers.isna() | (numbers % 1 != 0) | (numbers < 0)).any(axis=1)
    if wrong.any() or rows.empty:
        got = "no row with both"
        if wrong.any():
            first = rows.loc[wrong, ["layer", "head"]].iloc[0]
            got = " and ".join(map(str, first.tolist()))
        raise InputError(
            f"{doing} got {got} for layer and head, expected whole numbers from 0. Correct the "
            "file."
        )
    numbers = numbers.astype(int)
    if top is not None:
        numbers = _first_by_effect(numbers, rows, top, doing)
    return [(int(layer), int(head)) for layer, head in numbers.to_numpy()]


def _first_by_effect(
    numbers: pd.DataFrame, rows: pd.DataFrame, top: int, doing: str
) -> pd.DataFrame:
    """The `top` heads with the largest mean effect; ties go to the lower layer, then the lower
    head."""
    column = next((name for name in EFFECTS if name in rows), None)
    if column is None:
        raise InputError(
            f"{doing} none of the columns {', '.join(map(str, rows))} is the effect of a head, "
            f"expected {', '.join(EFFECTS[:-1])} or {EFFECTS[-1]}. Add one of these, or omit top."
        )
    effects = numbers.assign(effect=pd.to_numeric(rows[column], errors="coerce"))
    # Sorted by layer and head, which a stable sort keeps among equal effects.
    ordered = effects.groupby(["layer", "head"])["effect"].mean().dropna()
    if not 1 <= top <= len(ordered):
        raise InputError(
            f"{doing} got top = {top}, expected 1 to {len(ordered)}, the number of heads with an "
            "effect. Choose a number in this range."
        )
    return ordered.sort_values(ascending=False, kind="stable").head(top).index.to_frame()


def _require_in_model(heads: Sequence[HeadIndex], model: Model) -> None:
    """Raises InputError for a head that the model does not have, and for a layer with fewer heads
    outside the set than in it: a random set has none of the set's heads."""
    for layer, head in heads:
        require_head(model, layer, head, doing=f"Cannot ablate {name_of_head((layer, head))}")
    number = model.config.n_heads
    for layer, ablated in Counter(layer for layer, _ in heads).items():
        remaining = number - ablated
        if ablated > remaining:
            raise InputError(
                f"Cannot draw random sets of other heads: of the {number} heads of layer {layer}, "
                f"{ablated} are ablated and {remaining} remain, expected at least as many "
                "remaining as ablated. Ablate fewer heads of this layer."
            )
