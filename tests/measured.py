"""A word of a test, measured as for a report: one call with only the experiments that the test
needs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from inside import (
    STUDY_DEFAULTS,
    Material,
    WordRecord,
    every_experiment,
    measure,
    of_experiment,
    of_table,
    split_senses,
)

from probe import Model
from probe.experiments.options import Options

HEADS = ("senses", "heads")  # which every verdict needs


def options_of(
    *,
    seed: int = 0,
    pairs: int = 24,
    permutations: int = 99,
    nouns: Sequence[str] | None = None,
    experiments: Collection[str] = HEADS,
) -> Options:
    """The options of a report with these experiments."""
    return replace(
        STUDY_DEFAULTS,
        seed=seed,
        pairs=pairs,
        permutations=permutations,
        nouns=None if nouns is None else tuple(nouns),
        experiments=frozenset((*HEADS, *experiments)),
    )


def studied(
    model: Model,
    material: Material,
    *,
    seed: int = 0,
    pairs: int = 24,
    permutations: int = 99,
    nouns: Sequence[str] | None = None,
    experiments: Collection[str] = HEADS,
    random_model: Model | None = None,
) -> WordRecord:
    """The record of a word."""
    options = options_of(
        seed=seed, pairs=pairs, permutations=permutations, nouns=nouns, experiments=experiments
    )
    splits = split_senses(material, seed=seed, causal=model.config.causal)
    return measure(model, material, splits, options, random_model=random_model)


def table_of(record: WordRecord, name: str) -> pd.DataFrame:
    """A table of a word; the others are not made."""
    [experiment] = [each for each, room in every_experiment().items() if name in room.TABLES]
    room = every_experiment()[experiment]
    result = of_table(room, record.measured[experiment], name)
    return of_experiment(room.TABLES[name], [(record, result)])


def assert_same(record: Any, expected: Any) -> None:
    """Fail unless two records are equal to the last digit; lists count as tuples."""
    if is_dataclass(record):
        assert type(record) is type(expected)
        for field in fields(record):
            assert_same(getattr(record, field.name), getattr(expected, field.name))
    elif isinstance(record, xr.Dataset):
        xr.testing.assert_identical(record, expected)
    elif isinstance(record, Mapping):
        assert list(record) == list(expected)
        for key in record:
            assert_same(record[key], expected[key])
    elif isinstance(record, tuple | list):
        assert len(record) == len(expected)
        for each, its in zip(record, expected, strict=True):
            assert_same(each, its)
    else:
        assert np.asarray(record).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(record, expected)
