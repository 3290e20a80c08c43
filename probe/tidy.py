"""Tidy frames: key columns first, one row per observation, floats rounded below their
uncertainty."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

DIGITS = 6  # significant digits of a float


def rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with floats rounded to DIGITS significant digits."""
    return frame.apply(lambda column: _significant(column) if column.dtype.kind == "f" else column)


def _significant(column: pd.Series) -> pd.Series:
    values = column.to_numpy(dtype=float)
    # round(value * 10^(DIGITS - 1 - m)) / 10^(DIGITS - 1 - m), m the exponent of the first digit
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
        scale = 10.0 ** (DIGITS - 1 - np.nan_to_num(magnitude, posinf=0, neginf=0))
    return pd.Series(np.round(values * scale) / scale, index=column.index)


def with_key(frame: pd.DataFrame, key: dict[str, object]) -> pd.DataFrame:
    """The frame with a first column of one value for each entry of `key`."""
    columns = pd.DataFrame({name: [value] * len(frame) for name, value in key.items()})
    return pd.concat([columns, frame], axis=1)


def by_head(arrays: dict[str, NDArray[np.float64]]) -> pd.DataFrame:
    """A row per layer and head, a column per array, `layer head`."""
    layers, heads = next(iter(arrays.values())).shape
    layer, head = np.divmod(np.arange(layers * heads), heads)
    return pd.DataFrame(
        {"layer": layer, "head": head} | {name: values.ravel() for name, values in arrays.items()}
    )


def stacked(parts: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """The concatenated frames; an empty frame with these columns without frames."""
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(columns))
