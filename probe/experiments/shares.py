"""Which component writes the difference of the senses? The direct share of every component at the
read-out layer; the shares of two senses sum to 1."""

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
    for pair, shares in record.found("shares"):
        columns = {name: [getattr(share, name) for share in shares] for name in FIELDS}
        yield key_of(record, pair) | columns


FIELDS = tuple(field.name for field in fields(Share))
TABLES = {
    "shares": Table(
        "who wrote the sense gap, component by component",
        as_elsewhere(*KEYS, *FIELDS),
        _shares,
        missing=("layer", "head"),
    )
}


def work(size: Size) -> Work:
    """Nothing is run."""
    return Work()


def measure(run: Run) -> tuple[tuple[Share, ...], ...]:
    """The shares of every two senses."""
    states = run.seen.states
    depth = run.seen.depth
    by_pair = []
    for prepared, pair in run.each():
        a = pair.rows(pair.senses[0])
        b = pair.rows(pair.senses[1])
        directions = prepared.sense.axes.directions([*a, *b])[:, depth]
        shares = decomposition.shares(run.weights, states, directions, depth, a, b)
        by_pair.append(tuple(shares))
    return tuple(by_pair)
