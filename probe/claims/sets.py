"""Sets of heads: how much of the gap a few of them keep."""

import pandas as pd

OVER = 1.05  # fraction of the gap: a set that keeps more than all heads do, beyond noise


def smallest_set(curves: pd.DataFrame) -> "pd.Series | None":
    """The row of the smallest set of top heads that keeps enough of the gap, with the `names` of
    its heads. None if no set does.

    curves: the rows of one word in this table
    """
    if curves.empty:
        return None
    rows = curves.sort_values("size")
    enough = rows[rows["size"] == rows["smallest"]]
    if enough.empty:
        return None
    first = enough.iloc[0]
    additions = rows.loc[rows["size"].between(1, first["size"]), "added"]
    return pd.Series({**first, "names": tuple(", ".join(additions).split(", "))})


def random_sets_like(random_sets: pd.DataFrame, size: int) -> pd.DataFrame:
    """The random sets of `size` heads, or of the next larger size; none if all are smaller.

    random_sets: the rows of one word in this table
    """
    large_enough = random_sets[random_sets["size"] >= size]
    return large_enough[large_enough["size"] == large_enough["size"].min()]


def peak(curves: pd.DataFrame) -> "pd.Series | None":
    """The row of the number of top heads that keep the most, if they keep more of the gap than all
    heads do, beyond noise. None otherwise.

    curves: the rows of one word in this table
    """
    if not curves["faithfulness"].max() > OVER:
        return None
    return curves.sort_values("faithfulness", kind="stable").iloc[-1]
