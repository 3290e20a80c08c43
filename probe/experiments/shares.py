"""Which component writes the difference of the senses? The direct share of every component at the
read-out layer; the shares of two senses sum to 1."""

from probe.experiments.plan import Size, Work
from probe.experiments.run import Run
from probe.model import decomposition
from probe.model.decomposition import Share

RECORDS = (Share,)


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
