"""Stored tables: recomputed, maybe on another processor, and equal up to float32; and extended."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

CLOSE = 1e-4
NOISE = 1e-6  # float32: smaller numbers count as zero
STEPS = 3


def require_same(recomputed: Path, reference: Path, *, permutations: int | None = None) -> None:
    """Require the same columns, texts, verdicts, whole numbers and ranks, and other numbers within
    CLOSE of their column's largest.

    p values, `p` and `p_...`, may differ by STEPS / (permutations + 1): few draws nearly reach the
    observed statistic. Raises AssertionError with the column and its rows.
    """
    table, expected = pd.read_csv(recomputed), pd.read_csv(reference)
    assert list(table.columns) == list(expected.columns) and len(table) == len(expected)
    for name in expected:
        off = _different(table[name], expected[name], permutations)
        assert not off.any(), (
            f"{name} differs:\n{pd.DataFrame({'recomputed': table[name], 'reference': expected[name]})[off]}"
        )


def _different(recomputed: pd.Series, reference: pd.Series, permutations: int | None) -> pd.Series:
    name, missing = str(reference.name), recomputed.isna() & reference.isna()
    if not (recomputed.dtype == reference.dtype == np.float64) or name.split("_")[0] == "rank":
        return (recomputed != reference) & ~missing
    if name.split("_")[0] == "p":
        assert permutations is not None, f"{name}: of how many permutations?"
        allowed = STEPS / (permutations + 1) + NOISE  # tables are written with six digits
    else:
        allowed = CLOSE * reference.abs().max() + NOISE
    return ~((recomputed - reference).abs() <= allowed) & ~missing


def write_totals(path: Path, rows: Sequence[dict[str, object]], *, order: Sequence[str]) -> None:
    """The table with these rows replaced, in the order of their first column, and their sum."""
    table = pd.DataFrame(rows).set_index(next(iter(rows[0])))
    if path.exists():
        before = pd.read_csv(path, index_col=0)
        table = pd.concat([table, before.drop([*table.index, "all"], errors="ignore")])
    table = table.loc[[name for name in order if name in table.index]]
    table.loc["all"] = table.sum()
    table.to_csv(path)
