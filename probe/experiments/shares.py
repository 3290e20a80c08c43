"""The direct share of every component in the difference between the senses, at the read-out layer.

The shares of two senses sum to 1.
"""

from collections.abc import Iterator
from dataclasses import fields

from probe.experiments.columns import KEYS, Columns, Table, as_elsewhere, key_of
from probe.experiments.plan import Size, Work
from probe.experiments.record import WordRecord
from probe.experiments.run import Run
from probe.model import decomposition
from probe.model.decomposition import Share

RECORDS = (Share,)


def _shares(record: WordRecord) -> Iterator[Columns]:
    """The rows of the table, a part for each pair of senses."""
    for pair, shares in record.with_result("shares"):
        columns = {name: [getattr(share, name) for share in shares] for name in FIELDS}
        yield key_of(record, pair) | columns


FIELDS = tuple(field.name for field in fields(Share))
TABLES = {
    "shares": Table(
        "which component writes the sense gap",
        as_elsewhere(*KEYS, *FIELDS),
        _shares,
        missing=("layer", "head"),
    )
}


def work(size: Size) -> Work:
    """No runs."""
    return Work()


def measure(run: Run) -> tuple[tuple[Share, ...], ...]:
    """The shares of each pair of senses, a share for each component."""
    states = run.observation.states
    depth = run.observation.depth
    by_pair = []
    for prepared, pair in run.each():
        a = pair.rows(pair.senses[0])
        b = pair.rows(pair.senses[1])
        # Held-out axes: a sentence's direction was fitted without its cue word and frame.
        # `row d_model`
        directions = prepared.sense.axes.directions([*a, *b])[:, depth]
        shares = decomposition.shares(run.weights, states, directions, depth, a, b)
        by_pair.append(tuple(shares))
    return tuple(by_pair)
