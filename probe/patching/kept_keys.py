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

from probe.model.fused import KeysValues
from probe.model.weights import Weights

KEPT_BYTES = 2**28  # of keys and values that one measurement keeps; others are run again

Row = tuple[int, ...]
# Runs some rows up to a depth, block by block: the keys and values, `row kv_head pos d_head`.
RunRows = Callable[[Sequence[Row], int], Iterable[KeysValues]]


class KeptKeys:
    """Keys and values of rows in one model, as many as fit into KEPT_BYTES.

    Example:
        >>> from probe.model.load import read_weights
        >>> from probe.patching.kept_keys import KeptKeys
        >>> len(KeptKeys(read_weights(probe.load("tiny-senses"))))  # rows
        0
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        # Of each row, the keys and values of the first blocks, `1 kv_head pos d_head`.
        self._blocks: dict[Row, list[KeysValues]] = {}
        self._bytes = 0  # of all of them

    def __len__(self) -> int:
        return len(self._blocks)

    def keys_values(self, rows: Sequence[Row], depth: int, run: RunRows) -> Iterable[KeysValues]:
        """The keys and values of some equally long rows, block by block.

        run: runs the rows that are not kept
        """
        missing = [row for row in dict.fromkeys(rows) if len(self._blocks.get(row, ())) < depth]
        blocks_to_add = sum(depth - len(self._blocks.get(row, ())) for row in missing)
        added = bytes_before(self.weights, len(rows[0]), blocks_to_add)
        if self._bytes + added > KEPT_BYTES:
            return run(rows, depth)
        if missing:
            blocks = [[*zip(k.split(1), v.split(1), strict=True)] for k, v in run(missing, depth)]
            for row, of_row in zip(missing, zip(*blocks, strict=True), strict=True):
                self._blocks[row] = [(k.clone(), v.clone()) for k, v in of_row]
            self._bytes += added
        return self._of_rows(rows, depth)

    def _of_rows(self, rows: Sequence[Row], depth: int) -> Iterator[KeysValues]:
        for layer in range(depth):
            keys, values = zip(*(self._blocks[row][layer] for row in rows), strict=True)
            yield torch.cat(keys), torch.cat(values)


_current: ContextVar[KeptKeys | None] = ContextVar("kept_keys", default=None)


@contextmanager
def keeping(cache: KeptKeys) -> Iterator[None]:
    """Inside, this thread runs the same tokens before a word only once in this model."""
    token = _current.set(cache)
    try:
        yield
    finally:
        _current.reset(token)


def keys_values(
    weights: Weights, rows: Sequence[Row], depth: int, run: RunRows
) -> Iterable[KeysValues]:
    """The keys and values of some equally long rows, block by block, from those that are kept if
    there are any.

    run: runs the other rows
    """
    cache = _current.get()
    # What is kept was computed without gradients.
    if cache is None or cache.weights is not weights or torch.is_grad_enabled():
        return run(rows, depth)
    return cache.keys_values(rows, depth, run)


def bytes_before(weights: Weights, positions: int, depth: int) -> int:
    """Bytes of the keys and values of some positions in the first blocks."""
    config = weights.config
    # A layer without attention keeps its mixer's input in the place of keys.
    numbers = max(2 * config.n_kv_heads * config.d_head, config.d_model if config.mixers else 0)
    return positions * depth * numbers * weights.dtype.itemsize
