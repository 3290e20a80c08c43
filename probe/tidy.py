"""The shape that all tables share: keys in front, one row per head, floats rounded far below their uncertainty."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from probe.columns import KEYS
from probe.experiment import PairResult, WordResult
from probe.statistics import Array

DIGITS = 6


def rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with floats at DIGITS significant digits."""
    return frame.apply(lambda column: _significant(column) if column.dtype.kind == "f" else column)


def _significant(column: pd.Series) -> pd.Series:
    values = column.to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
        scale = 10.0 ** (DIGITS - 1 - np.nan_to_num(magnitude, posinf=0, neginf=0))
    return pd.Series(np.round(values * scale) / scale, index=column.index)


def sense_pairs_of(results: Sequence[WordResult]) -> Iterable[tuple[WordResult, PairResult]]:
    return ((result, pair) for result in results for pair in result.pairs)


def key_of(result: WordResult, pair: PairResult) -> dict[str, object]:
    return dict(zip(KEYS, (result.material.word, *pair.senses), strict=True))


def with_key(frame: pd.DataFrame, key: dict[str, object]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame({name: [value] * len(frame) for name, value in key.items()}), frame], axis=1)


def by_head(arrays: dict[str, Array]) -> pd.DataFrame:
    layers, heads = next(iter(arrays.values())).shape
    layer, head = np.divmod(np.arange(layers * heads), heads)
    return pd.DataFrame({"layer": layer, "head": head} | {name: values.ravel() for name, values in arrays.items()})


def stacked(parts: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(columns))
