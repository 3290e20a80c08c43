"""Keys and values of the tokens before the word, kept while several measurements of one word run.

In a causal model, everything before the word is the same in all swaps of a text, and with other
nouns in the word's place. A measurement of a word swaps heads, MLPs, nouns and sets of heads in the
same texts, so inside `keeping` each text is run up to the word only once.

    row              the token ids before the word of one text
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from probe.model.blocks import Past
from probe.model.weights import Weights

KEPT_BYTES = 2**28  # of keys and values that one measurement keeps; others are run again

Row = tuple[int, ...]
# Runs some rows up to a depth: what later positions read of them, block by block.
RunRows = Callable[[Sequence[Row], int], Iterable[Past]]


class KeptKeys:
    """Keys and values of rows in one model, as many as fit into KEPT_BYTES.

    Example:
        >>> from probe.model.kept_keys import KeptKeys
        >>> from probe.model.load import read_weights
        >>> len(KeptKeys(read_weights(probe.load("tiny-senses"))))  # rows
        0
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        # What later positions read of each row, in the first blocks; a row axis of 1.
        self._blocks: dict[Row, list[Past]] = {}
        self._bytes = 0  # of all of them

    def __len__(self) -> int:
        return len(self._blocks)

    def copy(self) -> "KeptKeys":
        """The same keys and values, to which others can be added without adding them here."""
        copy = KeptKeys(self.weights)
        copy._blocks = dict(self._blocks)
        copy._bytes = self._bytes
        return copy

    def add(self, other: "KeptKeys") -> None:
        """Keep the keys and values of another one, too, until KEPT_BYTES are reached."""
        for row, blocks in other._blocks.items():
            missing = len(blocks) - len(self._blocks.get(row, ()))
            if missing > 0:
                added = bytes_before(self.weights, len(row), missing)
                if self._bytes + added <= KEPT_BYTES:
                    self._blocks[row] = blocks
                    self._bytes += added

    def past(self, rows: Sequence[Row], depth: int, run: RunRows) -> Iterable[Past]:
        """What later positions read of some equally long rows, block by block.

        run: runs the rows that are not kept
        """
        missing = [row for row in dict.fromkeys(rows) if len(self._blocks.get(row, ())) < depth]
        blocks_to_add = sum(depth - len(self._blocks.get(row, ())) for row in missing)
        added = bytes_before(self.weights, len(rows[0]), blocks_to_add)
        if self._bytes + added > KEPT_BYTES:
            return run(rows, depth)
        if missing:
            blocks = [*run(missing, depth)]
            for index, row in enumerate(missing):
                self._blocks[row] = [
                    tuple(part[index : index + 1].clone() for part in past) for past in blocks
                ]
            self._bytes += added
        return self._of_rows(rows, depth)

    def _of_rows(self, rows: Sequence[Row], depth: int) -> Iterator[Past]:
        for layer in range(depth):
            parts = zip(*(self._blocks[row][layer] for row in rows), strict=True)
            yield tuple(torch.cat(part) for part in parts)


_current: ContextVar[KeptKeys | None] = ContextVar("kept_keys", default=None)


def kept_here() -> KeptKeys | None:
    """What this thread keeps; None outside `keeping`."""
    return _current.get()


@contextmanager
def keeping(cache: KeptKeys | None) -> Iterator[None]:
    """Inside, this thread runs the same tokens before a word only once in this model."""
    token = _current.set(cache)
    try:
        yield
    finally:
        _current.reset(token)


def past_of_rows(weights: Weights, rows: Sequence[Row], depth: int, run: RunRows) -> Iterable[Past]:
    """What later positions read of some equally long rows, block by block; kept values are used
    again.

    run: runs the other rows
    """
    cache = kept_here()
    # What is kept was computed without gradients.
    if cache is None or cache.weights is not weights or torch.is_grad_enabled():
        return run(rows, depth)
    return cache.past(rows, depth, run)


def bytes_before(weights: Weights, positions: int, depth: int) -> int:
    """Bytes of the keys and values of some positions in the first blocks."""
    config = weights.config
    # In a layer without attention, the mixer's input is kept instead.
    numbers = max(2 * config.n_kv_heads * config.d_head, config.d_model if config.mixers else 0)
    return positions * depth * numbers * weights.dtype.itemsize
