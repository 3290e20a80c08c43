"""Intervention: give one head's output at the word another sentence's value, and see how far the
word's vector moves.

Every one of the layers x heads swaps is performed, none is approximated. A swap at a position can
only touch `live` trailing positions of a text: one where the mask is causal and the text is cut at
the word, all of them where the model reads both ways. So a variant of a run is `live` vectors a
layer, run against the keys and values of the unchanged positions before them, which are computed
once. Cross-attention's keys and values are constants of the same kind.

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and
noising).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probe.model import forward, fused
from probe.model.fused import KeysValues, PositionTables
from probe.model.tokens import TargetText, batch_by_length, in_order
from probe.model.weights import Block, Weights
from probe.patching import hooked
from probe.patching.inputs import (
    Rows,
    Texts,
    as_directions,
    as_donors,
    as_sets,
    require_depth,
    require_equal_lengths,
    target_texts,
)

# Numbers in the widest tensor of a batch: 16 MB in float32, so that it stays near the processor.
BATCH_NUMBERS = 2**22
# Sets of heads run at once where a variant is a whole text.
SETS_AT_ONCE = 256
# What is done, as errors name it.
HEADS = "Swapping heads"
PAIRS = "Swapping pairs"

Donor = Callable[[int, Tensor], Tensor]
# Runs a batch of texts, given with their row numbers.
BatchRun = Callable[[Texts, list[int], PositionTables], Tensor]


class Branch(NamedTuple):
    """How variants branch in one block: `parent: variant`, the variant of the block before;
    `swapped: variant head`."""

    parent: Tensor
    swapped: Tensor


def branches(head_sets: Tensor) -> tuple[list[Branch], Tensor]:
    """How variants branch in each block, and which variant at the end each set is. `set layer head
    -> a branch a layer, set`. Variant 0 is always the unchanged run; sets that differ only in later
    blocks are one variant so far.
    """
    unchanged = head_sets.new_zeros(1, *head_sets.shape[1:])
    swapped = torch.cat([unchanged, ~head_sets])
    variant_of = torch.zeros(len(swapped), dtype=torch.long, device=head_sets.device)
    tree = []
    for heads in swapped.unbind(1):
        # Sorted by parent and heads, so that the variant without any swap comes first.
        parent_and_heads = torch.cat([variant_of[:, None], heads.long()], dim=1)
        distinct, variant_of = torch.unique(parent_and_heads, dim=0, return_inverse=True)
        tree.append(Branch(distinct[:, 0], distinct[:, 1:].bool()))
    return tree, variant_of[1:]


def _tree(weights: Weights, head_sets: Tensor) -> tuple[list[Branch], Tensor]:
    """`branches` of sets of heads; what is of no head, in a layer without attention, is swapped in
    none."""
    of_no_head = ~weights.has_heads[: head_sets.shape[1], None]
    return branches(head_sets.to(weights.device) | of_no_head)


def swap_heads(weights: Weights, rows: Rows, donor_z: Tensor, directions: Tensor) -> Tensor:
    """How far the read-out moves along each direction when one head's z at the target is the
    donor's, for every head.

    `rows`: the token ids of each text up to and including the word, or `probe.TargetText(ids, at)`,
    of which a causal model runs as much; a model that reads both ways needs the latter · `donor_z:
    row layer head d_head`, whose layer axis says how many blocks stand before the read-out ·
    `directions: direction d_model` -> `row layer head direction`: the change of <resid, direction>,
    0 when the donor is the sentence itself. With directions of each row's own, `row stage d_model`,
    `-> row layer head stage` (see `swap_sets`). Raises InputError for donors with more layers than
    the model has.

    Example:
        >>> weights = probe.read_weights("tiny-senses")
        >>> texts = [probe.tokenize("tiny-senses", f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states("tiny-senses", texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> donor_z = states.z.flip(0)  # each sentence gets the other's
        >>> probe.swap_heads(weights, rows, donor_z, direction).shape  # row layer head direction
        torch.Size([2, 4, 4, 1])
    """
    texts, donor_z, directions = _checked(weights, rows, donor_z, directions)
    head_sets = _all_but_one(weights, donor_z.shape[1])
    moved = _swap_sets(weights, texts, donor_z, head_sets, directions)
    return moved.unflatten(1, donor_z.shape[1:3])


def swap_pairs(weights: Weights, a: Rows, b: Rows, directions: Tensor, *, depth: int) -> Tensor:
    """`swap_heads` of pairs of equal length in both directions, each the other's donor, in the runs
    that swaps need anyway. `directions: direction d_model`, the same for all pairs `-> pair
    recipient layer head direction`: recipient 0 is `a` with z of `b`, 1 the other way round.

    Example:
        >>> weights = probe.read_weights("tiny-senses")
        >>> texts = [probe.tokenize("tiny-senses", f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states("tiny-senses", texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> moved = probe.swap_pairs(weights, rows[:1], rows[1:], direction, depth=4)
        >>> moved.shape  # pair recipient layer head direction
        torch.Size([1, 2, 4, 4, 1])
    """
    require_depth(weights, depth, PAIRS)
    own = target_texts(weights, a, PAIRS)
    others = target_texts(weights, b, PAIRS)
    require_equal_lengths(own, others, PAIRS)
    directions = as_directions(weights, directions, PAIRS)
    tree, variant_of = _tree(weights, _all_but_one(weights, depth))

    def swap(texts: Texts, members: list[int], tables: PositionTables) -> Tensor:
        both = [*texts, *(others[pair] for pair in members)]

        def donor(layer: int, own: Tensor) -> Tensor:
            return own.roll(len(members), 0)

        moved = _swap_batch(weights, both, tree, donor, directions, tables)
        by_head = moved[:, variant_of].unflatten(1, (depth, -1))
        return by_head.unflatten(0, (2, -1)).transpose(0, 1)

    return in_batches(own, weights, 2 * len(tree[-1].parent), swap)


def swap_sets(
    weights: Weights, rows: Rows, donor_z: Tensor, head_sets: Tensor, directions: Tensor
) -> Tensor:
    """Where the read-out moves when every head outside a set has the donor's z at the target, for
    many sets of heads.

    Heads inside a set, and all MLPs, are live: they respond to what changed below them. `rows`,
    `donor_z` and `directions` as in `swap_heads` · `head_sets: set layer head`, True inside the set
    -> `row set direction`: <resid - unchanged resid, direction>. Directions of each row's own, `row
    stage d_model`, are read behind every block and, where there is one more, behind the final norm:
    `-> row set stage`. With several at each stage, `row stage direction d_model`, `-> row set stage
    direction`. In a model whose hooks stay on each set is a whole forward of each text.

    Example:
        >>> import torch
        >>> weights = probe.read_weights("tiny-senses")
        >>> texts = [probe.tokenize("tiny-senses", f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states("tiny-senses", texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> none_kept = torch.zeros(1, 4, 4, dtype=torch.bool)  # set layer head
        >>> moved = probe.swap_sets(weights, rows, states.z.flip(0), none_kept, direction)
        >>> moved.shape  # row set direction
        torch.Size([2, 1, 1])
    """
    texts, donor_z, directions = _checked(weights, rows, donor_z, directions)
    head_sets = as_sets(head_sets, donor_z, "Swapping sets of heads")
    return _swap_sets(weights, texts, donor_z, head_sets, directions)


def _checked(
    weights: Weights, rows: Rows, donor_z: Tensor, directions: Tensor
) -> tuple[list[TargetText], Tensor, Tensor]:
    """The texts, donors and directions of swaps, which fit each other. Raises InputError."""
    texts = target_texts(weights, rows, HEADS)
    donor_z = as_donors(weights, texts, donor_z, HEADS)
    directions = as_directions(
        weights,
        directions,
        HEADS,
        own="row stage d_model",
        rows=len(texts),
        stages=donor_z.shape[1],
    )
    return texts, donor_z, directions


def _swap_sets(
    weights: Weights, texts: Texts, donor_z: Tensor, head_sets: Tensor, directions: Tensor
) -> Tensor:
    """`swap_sets` of what was checked."""
    if weights.hooked is not None:
        return hooked.swap_sets(weights.hooked, texts, donor_z, head_sets, directions)
    if not weights.causal and len(head_sets) > SETS_AT_ONCE:
        parts = [
            _swap_sets(weights, texts, donor_z, some, directions)
            for some in head_sets.split(SETS_AT_ONCE)
        ]
        return torch.cat(parts, dim=1)
    tree, variant_of = _tree(weights, head_sets)

    def swap(batch: Texts, members: list[int], tables: PositionTables) -> Tensor:
        donors = donor_z[members].to(weights.device, weights.dtype)

        def donor(layer: int, own: Tensor) -> Tensor:
            return donors[:, layer]

        along = directions[members] if directions.ndim >= 3 else directions
        return _swap_batch(weights, batch, tree, donor, along, tables)[:, variant_of]

    return in_batches(texts, weights, len(tree[-1].parent), swap)


def rerouted(weights: Weights, rows: Rows, donor_z: Tensor) -> Tensor:
    """Where a swap of one head's z at the target changes the experts that a routed MLP chooses
    there, for every head and every MLP.

    `rows` and `donor_z` as in `swap_heads`, of all layers `-> row layer head mlp`: True where the
    set of chosen experts of the MLP of layer `mlp` is not the recipient's own, which in front of
    the swap it always is.
    """
    tree, variant_of = _tree(weights, _all_but_one(weights, donor_z.shape[1]))

    def compare(texts: Texts, members: list[int], tables: PositionTables) -> Tensor:
        donors = donor_z[members].to(weights.device, weights.dtype)

        def donor(layer: int, own: Tensor) -> Tensor:
            return donors[:, layer]

        chosen = _swap_batch(weights, texts, tree, donor, None, tables)
        differs = (chosen != chosen[:, :1]).any(-1)  # batch variant mlp
        return differs[:, variant_of].unflatten(1, donor_z.shape[1:3])

    texts = target_texts(weights, rows, HEADS)
    return in_batches(texts, weights, len(tree[-1].parent), compare)


# --- batches --------------------------------------------------------------------------------------


def _all_but_one(weights: Weights, depth: int) -> Tensor:
    """A set for every head below the read-out, of all the others. `-> (layer head) layer head`"""
    count = depth * weights.shape[1]
    return ~torch.eye(count, dtype=torch.bool, device=weights.device).unflatten(1, (depth, -1))


def _swap_batch(
    weights: Weights,
    texts: Texts,
    tree: list[Branch],
    donor: Donor,
    directions: Tensor | None,
    tables: PositionTables,
) -> Tensor:
    """How far every variant's read-out is from the unchanged one's, `-> batch variant direction`;
    without directions the experts that its MLPs choose, `batch variant layer expert`."""
    ids = torch.tensor([text.ids for text in texts], device=weights.device)
    untouched = ids.shape[1] - 1 if weights.causal else 0  # positions that no swap can touch
    pos = torch.arange(untouched, ids.shape[1], device=weights.device)
    embedded = forward.sum_embeddings(forward.embedding_parts(weights, ids[:, untouched:], pos))
    entering = forward.embedding_norm(weights, embedded)
    before: Iterable[KeysValues | None] = [None] * len(tree)
    if weights.causal:
        unchanged = fused.run(weights, [text.ids[:untouched] for text in texts], len(tree), tables)
        before = ((k, v) for _, k, v in unchanged)
    return run_variants(
        weights,
        entering.unsqueeze(1),
        before,
        tree,
        donor,
        at=torch.tensor([text.at - untouched for text in texts], device=weights.device),
        tables=tables,
        directions=None if directions is None else directions.to(weights.device, weights.dtype),
        experts=directions is None,
    )


def in_batches(texts: Texts, weights: Weights, variants: int, run: BatchRun) -> Tensor:
    """Apply `run` to batches of equally long texts and put the results back in the order of
    `texts`, on the CPU.

    Batches are small enough for the widest tensor, the MLP's activations, to stay near the
    processor, and hold rows that begin alike together, because a shared beginning is run once.
    """
    order = sorted(range(len(texts)), key=lambda row: texts[row].ids)
    lengths = [len(texts[row].ids) for row in order]
    longest = max(lengths, default=1)
    live = 1 if weights.causal else longest
    most_rows = max(1, BATCH_NUMBERS // (variants * weights.blocks[0].d_mlp * live))
    batches = [
        [order[index] for index in batch] for batch in batch_by_length(lengths, most_rows=most_rows)
    ]
    with torch.inference_mode():
        tables = fused.position_tables(weights, longest)
        moved = [run([texts[row] for row in batch], batch, tables) for batch in batches]
        together = torch.cat(moved)[in_order(batches)].cpu()
    # Outside inference mode, so that the caller gets an ordinary tensor.
    return together.clone()


# --- variants of a run ----------------------------------------------------------------------------


def run_variants(
    weights: Weights,
    resid: Tensor,
    before: Iterable[KeysValues | None],
    tree: Sequence[Branch],
    donor: Donor,
    *,
    at: Tensor,
    tables: PositionTables,
    cross: tuple[Weights, Sequence[KeysValues]] | None = None,
    directions: Tensor | None = None,
    experts: bool = False,
) -> Tensor:
    """The last vectors of every variant at `at`: how far they are from the unchanged one's along
    `directions`, or whole without these. `-> batch variant direction`, `batch variant stage` or
    `batch variant d_model`; with `experts` which ones each routed MLP chooses at `at`, `batch
    variant layer expert`

    `resid: batch 1 live d_model`, what enters the first block at the live positions · `before`:
    block by block the keys and values of the positions before them, `batch kv_head pos d_head`,
    None where there are none · `at: batch`, the live position that is swapped and read ·
    `donor(layer, z of the unchanged run)`: z of the donors, `batch head d_head` both · `cross`:
    cross-attention and what it reads; the swapped heads are then its own · `directions: direction
    d_model` are read behind the last block; `batch stage d_model` and `batch stage direction
    d_model` are each text's own (see `swap_sets`).
    """
    row = torch.arange(len(resid), device=weights.device)
    last = len(tree) - 1
    stages = directions.unbind(1) if directions is not None and directions.ndim >= 3 else ()
    # The last MLP need not be written where only its projection on common directions is asked for.
    last_unwritten = directions is not None and not stages and weights.config.family.adds_plainly
    moved_by_stage: list[Tensor] = []
    chosen_by_layer: list[Tensor] = []
    parallel = weights.config.family.parallel
    for layer, (branch, known) in enumerate(zip(tree, before, strict=True)):
        block = weights.blocks[layer]
        z = fused.attend_live(weights, block, resid, known, tables)
        if cross is not None:
            writing, memory = cross
            writer = writing.blocks[layer]
            middle = fused.write(weights, block, resid, z)
            z = fused.read_memory(writing, writer, middle, memory[layer])
            entering = middle[:, branch.parent]
            resid = resid[:, branch.parent]
        else:
            writing = weights
            writer = block
            if layer == last and resid.shape[2] > 1:
                # Behind the last swap only the position that is read is wanted.
                z = z[row, :, at].unsqueeze(2)
                resid = resid[row, :, at].unsqueeze(2)
                at = torch.zeros_like(at)
            resid = resid[:, branch.parent]
            entering = resid
        swapped_z = _swap(z, branch, donor, layer, at, row)
        resid_mid = fused.write(writing, writer, entering, swapped_z)
        if layer == last and last_unwritten:
            assert directions is not None
            return _read_out(weights, block, resid[row, :, at], resid_mid[row, :, at], directions)
        if experts:
            # What was chosen before is that of the variants that come of them.
            chosen_by_layer = [chosen[:, branch.parent] for chosen in chosen_by_layer]
            mlp_input = (resid if parallel else resid_mid)[row, :, at]
            chosen_by_layer.append(fused.chosen_experts(weights, block, mlp_input))
        resid = fused.finish(weights, block, resid, resid_mid)
        if stages:
            # What was read before is that of the variants that come of them.
            moved_by_stage = [moved[:, branch.parent] for moved in moved_by_stage]
            moved_by_stage.append(_moved(resid[row, :, at], stages[layer]))
    if experts:
        return torch.stack(chosen_by_layer, dim=2)
    final = resid[row, :, at]
    if stages:
        if behind := stages[len(tree) :]:
            read = forward.unembedding_input(weights, final)
            moved_by_stage += [_moved(read, along) for along in behind]
        return torch.stack(moved_by_stage, dim=2)
    return final if directions is None else (final - final[:, :1]) @ directions.T


def _moved(resid: Tensor, along: Tensor) -> Tensor:
    """How far variants are from the unchanged one along a direction, or along several. `batch
    variant d_model, batch ... d_model -> batch variant ...`"""
    return torch.einsum("bvd,b...d->bv...", resid - resid[:, :1], along)


def _swap(z: Tensor, branch: Branch, donor: Donor, layer: int, at: Tensor, row: Tensor) -> Tensor:
    """z of the variants of a block, the donor's at `at` where a head is swapped. `batch variant
    live head d_head`"""
    if not branch.swapped.any():  # none is, or the layer has no heads
        return z[:, branch.parent]
    single_position = z.shape[2] == 1
    own = z[:, :, 0] if single_position else z[row, :, at]  # batch variant head d_head
    donor_z = donor(layer, own[:, 0]).unsqueeze(1)
    swapped = torch.where(branch.swapped[..., None], donor_z, own[:, branch.parent])
    if single_position:
        return swapped.unsqueeze(2)
    z = z[:, branch.parent]
    z[row, :, at] = swapped
    return z


def _read_out(
    weights: Weights, block: Block, resid: Tensor, resid_mid: Tensor, directions: Tensor
) -> Tensor:
    """How far variants move behind the last MLP, whose activations are projected on the directions
    unwritten."""
    hidden = fused.activate(weights, block, resid if weights.config.family.parallel else resid_mid)
    stream_moved = resid_mid - resid_mid[:, :1]
    hidden_moved = hidden - hidden[:, :1]
    return stream_moved @ directions.T + hidden_moved @ (block.w_hidden @ directions.T)
