"""Intervention: give one head's output at the word another sentence's value, and see how far the word's vector moves.

Every one of the layers x heads swaps is performed, none is approximated. Where the mask is causal a swapped run differs
from the base run only at the target position (the sentence is cut at the word), so all variants are carried through the
later layers as single vectors; where a model reads both ways, as whole texts (`probe.patching.engine`).

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and noising).
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from probe.model import forward
from probe.model.tokens import Placed, batch_by_length, in_order
from probe.model.weights import Weights
from probe.patching import engine, patterns
from probe.patching.engine import Branch, Donor
from probe.patching.patterns import KeysValues, Places

NUMBERS = 2**22  # of the widest tensor of a batch: 16 MB in float32, so that it stays near the processor
SETS = 256  # at once, where a variant is a whole text
Rows = Sequence[Placed | Sequence[int]]
Texts = Sequence[Placed]


def target_z(weights: Weights, rows: Rows, depth: int) -> Tensor:
    """z of every head at the word of each row, from the same engine that swaps. `-> row layer head d_head`"""
    tree = engine.branches(_all_but_one(weights, depth)[:0])[0]
    nowhere = torch.zeros(0, weights.shape[2], device=weights.device)

    def read(texts: Texts, _: list[int], places: Places) -> Tensor:
        seen: list[Tensor] = []

        def keep(layer: int, own: Tensor) -> Tensor:
            seen.append(own)
            return own

        _carry(weights, texts, tree, keep, nowhere, places)
        return torch.stack(seen, dim=1)

    return _in_batches(rows, weights, 1, read)


def swap_heads(weights: Weights, rows: Rows, donor_z: Tensor, directions: Tensor) -> Tensor:
    """How far the read-out moves along each direction when one head's z at the target is the donor's, for every head.

    `rows`: token ids up to and including the target, or `Placed` texts, of which a causal model runs as much ·
    `donor_z: row layer head d_head`, whose layer axis says how many blocks stand before the read-out · `directions:
    direction d_model` -> `row layer head direction`: the change of <resid, direction>, 0 when the donor is the sentence
    itself. With directions of each row's own, `row stage d_model`, `-> row layer head stage` (see `swap_sets`).
    """
    kept = _all_but_one(weights, donor_z.shape[1])
    return swap_sets(weights, rows, donor_z, kept, directions).unflatten(1, donor_z.shape[1:3])


def swap_pairs(weights: Weights, a: Rows, b: Rows, directions: Tensor, *, depth: int) -> Tensor:
    """`swap_heads` of pairs of equal length in both directions, each the other's donor, in the runs that the swaps need
    anyway.

    `-> pair recipient layer head direction`: recipient 0 is `a` with z of `b`, recipient 1 the other way round.
    """
    tree, variant_of = engine.branches(_all_but_one(weights, depth))
    others = placed(weights, b)

    def swap(texts: Texts, members: list[int], places: Places) -> Tensor:
        both = [*texts, *(others[pair] for pair in members)]
        moved = _carry(weights, both, tree, lambda layer, own: own.roll(len(members), 0), directions, places)
        return moved[:, variant_of].unflatten(1, (depth, -1)).unflatten(0, (2, -1)).transpose(0, 1)

    return _in_batches(a, weights, 2 * len(tree[-1].parent), swap)


def swap_sets(weights: Weights, rows: Rows, donor_z: Tensor, kept: Tensor, directions: Tensor) -> Tensor:
    """Where the read-out moves when every head outside a set has the donor's z at the target, for many sets of heads.

    Heads inside a set, and all MLPs, are live: they respond to what changed below them. `rows`, `donor_z` and
    `directions` as in `swap_heads` · `kept: set layer head`, True inside the set -> `row set direction`: <resid -
    unchanged resid, direction>. Directions of each row's own, `row stage d_model`, are read behind every block and,
    where there is one more, behind the final norm: `-> row set stage`.
    """
    if not weights.causal and len(kept) > SETS:
        parts = [swap_sets(weights, rows, donor_z, some, directions) for some in kept.split(SETS)]
        return torch.cat(parts, dim=1)
    tree, variant_of = engine.branches(kept.to(weights.device))

    def swap(texts: Texts, members: list[int], places: Places) -> Tensor:
        donors = donor_z[members].to(weights.device, weights.dtype)
        along = directions[members] if directions.ndim == 3 else directions
        return _carry(weights, texts, tree, lambda layer, own: donors[:, layer], along, places)[:, variant_of]

    return _in_batches(rows, weights, len(tree[-1].parent), swap)


def placed(weights: Weights, rows: Rows) -> list[Placed]:
    """Each text and where it is read: at the last token where ids are given alone; a causal model runs nothing behind
    the word.
    """
    texts = [row if isinstance(row, Placed) else Placed(tuple(row), len(row) - 1) for row in rows]
    return [Placed(text.ids[: text.at + 1], text.at) for text in texts] if weights.causal else texts


def _all_but_one(weights: Weights, depth: int) -> Tensor:
    """A set for every head below the read-out, of all the others. `-> (layer head) layer head`"""
    count = depth * weights.shape[1]
    return ~torch.eye(count, dtype=torch.bool, device=weights.device).unflatten(1, (depth, -1))


def _carry(
    weights: Weights, texts: Texts, tree: list[Branch], donor: Donor, directions: Tensor, places: Places
) -> Tensor:
    """How far every variant's read-out is from the unchanged one's, along the directions.

    `-> batch variant direction`
    """
    ids = torch.tensor([text.ids for text in texts], device=weights.device)
    known = ids.shape[1] - 1 if weights.causal else 0  # positions that no swap can touch
    pos = torch.arange(known, ids.shape[1], device=weights.device)
    entering = forward.embedding_norm(weights, forward.sum_of(forward.embedding_parts(weights, ids[:, known:], pos)))
    before = _known(weights, [text.ids[:known] for text in texts], len(tree), places)
    return engine.carry(
        weights,
        entering.unsqueeze(1),
        before,
        tree,
        donor,
        at=torch.tensor([text.at - known for text in texts], device=weights.device),
        places=places,
        directions=directions.to(weights.device, weights.dtype),
    )


def _known(weights: Weights, rows: list[tuple[int, ...]], depth: int, places: Places) -> Iterator[KeysValues | None]:
    """Keys and values of the positions that no swap can touch, block by block; None where every position is live."""
    if not weights.causal:
        yield from [None] * depth
        return
    for _, k, v in engine.run(weights, rows, depth, places):
        yield k, v


def _in_batches(
    rows: Rows, weights: Weights, variants: int, run: Callable[[Texts, list[int], Places], Tensor]
) -> Tensor:
    """Apply `run` to batches of equally long texts and put the results back in the order given, on the CPU.

    Batches are small enough for the widest tensor, the MLP's activations, to stay near the processor, and hold rows
    that begin alike together, because a shared beginning is run once.
    """
    texts = placed(weights, rows)
    order = sorted(range(len(texts)), key=lambda row: texts[row].ids)
    lengths = [len(texts[row].ids) for row in order]
    longest = max(lengths, default=1)
    widest = variants * weights.blocks[0].d_mlp * (1 if weights.causal else longest)
    batches = [
        [order[place] for place in batch] for batch in batch_by_length(lengths, most_rows=max(1, NUMBERS // widest))
    ]
    with torch.inference_mode():
        places = patterns.places_of(weights, longest)
        moved = [run([texts[row] for row in batch], batch, places) for batch in batches]
        together = torch.cat(moved)[in_order(batches)].cpu()
    return together.clone()
