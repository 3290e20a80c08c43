"""Swaps of heads: one head's output at the word takes another sentence's value, and the word's
vector moves.

Every layers x heads swap is performed; none is approximated. A swap can only change the `live` last
positions of a text: one position if the mask is causal and the text is cut at the word, and all of
them if the model reads both ways. So a swap is a variant of a run (`probe.model.variants`):
`live` vectors in each layer, run against the keys and values of the unchanged positions before
them, which are computed once. A reader, such as `moved_along`, is a function of the steps of the
run.

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and
    noising).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from probe.model import blocks, forward
from probe.model.blocks import PositionTerms
from probe.model.kept_keys import KeptKeys, keeping, kept_here
from probe.model.load import ModelSource, read_weights
from probe.model.tokens import batch_by_length
from probe.model.variants import (
    Branch,
    DonorValue,
    Edits,
    Step,
    Z,
    branches,
    rows_alike,
    run_at_word,
)
from probe.model.weights import Weights
from probe.patching.inputs import (
    Rows,
    Texts,
    as_directions,
    as_sets,
    require_depth,
    require_equal_lengths,
    swap_inputs,
    target_texts,
)
from probe.side_by_side import in_order

# Numbers in the widest tensor of a batch: 16 MB in float32, small enough for the processor's cache.
BATCH_NUMBERS = 2**22
# Sets of heads that are run at once if a variant is a whole text.
SETS_AT_ONCE = 256
# The interventions as error messages name them.
HEADS = "Cannot swap heads"
PAIRS = "Cannot swap pairs"

# Runs a batch of texts, given with their row numbers.
BatchRun = Callable[[Texts, list[int], PositionTerms], Sequence[Tensor]]


def swap_heads(
    model: ModelSource | Weights,
    texts: Rows,
    donor_z: Tensor,
    directions: Tensor,
    *,
    length: bool = False,
) -> Tensor:
    """How far the read-out moves along each direction if one head's z at the word is the
    donor's, for every head.

    `row layer head direction`

    texts: the token ids of each text up to and including the word, or `TargetText(ids, at)`;
        a model that reads both ways needs the latter
    donor_z: `row layer head d_head`; the number of layers is the number of blocks before the
        read-out
    directions: `direction d_model`; or `row stage d_model`, separate for each row (see
        `swap_sets`), then the result is `row layer head stage`
    length: return the length of the change as well (see `swap_sets`)

    The result is the change of <resid, direction>; it is 0 if the donor is the sentence itself.
    Raises InputError for donors with more layers than the model has.

    Example:
        >>> from probe.patching.heads import swap_heads
        >>> from probe.model.trace import target_states
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> donor_z = states.z.flip(0)  # each sentence gets the other's
        >>> swap_heads(model, rows, donor_z, direction).shape  # row layer head direction
        torch.Size([2, 4, 4, 1])
    """
    weights = read_weights(model)
    rows, donor_z, directions = swap_inputs(weights, texts, donor_z, directions, HEADS)
    head_sets = _all_but_one(weights, donor_z.shape[1])
    shifts = _swap_sets(weights, rows, donor_z, head_sets, directions, length=length)
    return shifts.unflatten(1, donor_z.shape[1:3])


def swap_pairs(
    model: ModelSource | Weights, texts: Rows, against: Rows, directions: Tensor, *, depth: int
) -> Tensor:
    """`swap_heads` of pairs of equal length in both directions, each text the donor of the
    other.

    `pair recipient layer head direction`

    directions: `direction d_model`, the same for all pairs

    Recipient 0 is the text of `texts` with z of its partner in `against`, and recipient 1 is the
    partner with z of the text. The donors come from the unchanged runs that the swaps need anyway.

    Example:
        >>> from probe.patching.heads import swap_pairs
        >>> from probe.model.trace import target_states
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> moved = swap_pairs(model, rows[:1], rows[1:], direction, depth=4)
        >>> moved.shape  # pair recipient layer head direction
        torch.Size([1, 2, 4, 4, 1])
    """
    weights = read_weights(model)
    require_depth(weights, depth, PAIRS)
    texts_a = target_texts(weights, texts, PAIRS)
    texts_b = target_texts(weights, against, PAIRS)
    require_equal_lengths(texts_a, texts_b, PAIRS)
    directions = as_directions(weights, directions, PAIRS)
    tree = _tree_of(weights, _all_but_one(weights, depth))
    along = _by_stage(directions).to(weights.device, weights.dtype)

    def swap(batch: Texts, members: list[int], terms: PositionTerms) -> list[Tensor]:
        def donor(layer: int, unchanged: Tensor) -> Tensor:
            return unchanged.roll(len(members), 0)[:, None]

        members_a_and_b = [*batch, *(texts_b[pair] for pair in members)]
        steps = run_at_word(weights, members_a_and_b, depth, terms, edits=Edits(Z, tree, donor))
        shifts = moved_along(steps, along)[:, :, 0]  # (recipient pair) set direction
        return [shifts.unflatten(0, (2, -1)).transpose(0, 1)]

    [shifts] = in_batches(texts_a, weights, 2 * len(tree[-1].parent), swap)
    return shifts.unflatten(2, (depth, -1))


def swap_sets(
    model: ModelSource | Weights,
    texts: Rows,
    donor_z: Tensor,
    head_sets: Tensor,
    directions: Tensor,
    *,
    length: bool = False,
) -> Tensor:
    """Where the read-out moves if every head outside a set has the donor's z at the word, for
    many sets.

    `row set direction`

    texts, donor_z, directions: as in `swap_heads`
    head_sets: `set layer head`, True in the set
    length: append |resid - unchanged resid| to the last axis, which is then `direction` even if
        each stage has one direction

    Heads in a set, and all MLPs, are live: they respond to changes below them. The result is <resid
    - unchanged resid, direction>.

    Directions that differ between rows, `row stage d_model`, are read after each block; one more
    stage is read after the final norm: `-> row set stage`. With several directions at each stage,
    `row stage direction d_model`, the result is `row set stage direction`.

    Example:
        >>> from probe.patching.heads import swap_sets
        >>> from probe.model.trace import target_states
        >>> import torch
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> no_head = torch.zeros(1, 4, 4, dtype=torch.bool)  # set layer head
        >>> moved = swap_sets(model, rows, states.z.flip(0), no_head, direction)
        >>> moved.shape  # row set direction
        torch.Size([2, 1, 1])
    """
    weights = read_weights(model)
    rows, donor_z, directions = swap_inputs(weights, texts, donor_z, directions, HEADS)
    head_sets = as_sets(head_sets, donor_z, "Cannot swap sets of heads")
    return _swap_sets(weights, rows, donor_z, head_sets, directions, length=length)


def _swap_sets(
    weights: Weights,
    texts: Texts,
    donor_z: Tensor,
    head_sets: Tensor,
    directions: Tensor,
    *,
    length: bool,
) -> Tensor:
    """`swap_sets` with arguments that have been checked."""
    at_once = len(head_sets) if weights.causal else SETS_AT_ONCE
    parts = []
    for batch in head_sets.split(at_once):
        tree = _tree_of(weights, batch)
        part = moved_by_edits(
            weights,
            texts,
            site=Z,
            tree=tree,
            donors=donor_z,
            directions=_by_stage(directions),
            length=length,
        )
        parts.append(part)
    shifts = torch.cat(parts, dim=1)  # row set stage direction
    if directions.ndim == 2:
        return shifts[:, :, 0]
    return shifts[..., 0] if directions.ndim == 3 and not length else shifts


# --- edits ----------------------------------------------------------------------------------------


def _all_but_one(weights: Weights, depth: int) -> Tensor:
    """For every head before the read-out, the set of all other heads.

    `-> (layer head) layer head`
    """
    count = depth * weights.shape[1]
    return ~torch.eye(count, dtype=torch.bool, device=weights.device).unflatten(1, (depth, -1))


def _tree_of(weights: Weights, head_sets: Tensor) -> list[Branch]:
    """The variants in which all heads outside a head set are swapped, for each head set.

    head_sets: `set layer head`, True in the set
    """
    # An edit set is the complement of a head set. A layer without heads has nothing to swap.
    has_heads = weights.has_heads[: head_sets.shape[1], None]
    return branches(~head_sets.to(weights.device) & has_heads)


def donor_of(weights: Weights, donors: Tensor) -> DonorValue:
    """The donor that puts a value for each layer into each text of a batch. `batch layer ...`"""
    values = donors.to(weights.device, weights.dtype)
    return lambda layer, recipient: values[:, layer, None]


def moved_by_edits(
    weights: Weights,
    texts: Texts,
    *,
    site: str,
    tree: Sequence[Branch],
    donors: Tensor,
    directions: Tensor,
    length: bool = False,
) -> Tensor:
    """How far each edit set moves the stream at the word. `-> row edit_set stage direction`

    site: what is edited: Z, ATTN_OUT or HIDDEN of `probe.model.variants`
    tree: the edit sets, from `branches`
    donors: the values that are put in, `row layer ...`
    directions: as for `moved_along`, `row stage direction d_model`, one row if all texts have the
        same
    length: as for `moved_along`
    """

    def swap(batch: Texts, members: list[int], terms: PositionTerms) -> list[Tensor]:
        edits = Edits(site, tree, donor_of(weights, donors[members]))
        steps = run_at_word(weights, batch, len(tree), terms, edits=edits)
        along = directions if len(directions) == 1 else directions[members]
        return [moved_along(steps, along.to(weights.device, weights.dtype), length=length)]

    [shifts] = in_batches(texts, weights, len(tree[-1].parent), swap)
    return shifts


# --- read-outs ------------------------------------------------------------------------------------


def _by_stage(directions: Tensor) -> Tensor:
    """Directions in the form that `moved_along` takes. `row stage direction d_model`

    Directions common to all texts, `direction d_model`, are read after the last block. Directions
    can also differ between texts: `row stage d_model` or `row stage direction d_model`.
    """
    if directions.ndim == 2:
        return directions[None, None]
    return directions[:, :, None] if directions.ndim == 3 else directions


def moved_along(steps: Iterable[Step], directions: Tensor, *, length: bool = False) -> Tensor:
    """How far each edit set moves the stream at the word. `-> batch edit_set stage direction`

    directions: `batch stage direction d_model`, a batch of 1 if all texts have the same. With n
        stages the last n blocks are read. Stages beyond the number of blocks are read after the
        final norm.
    length: append the length of the change to the directions
    """
    stages = directions.unbind(1)
    shifts: list[Tensor] = []
    for step in steps:
        first = max(0, step.run.depth - len(stages))
        if step.layer >= first:
            along = stages[step.layer - first]
            is_end = len(shifts) == len(stages) - 1
            shifts.append(_moved_after(step, along, is_end=is_end, length=length))
    if after_norm := stages[step.run.depth :]:
        final = forward.unembedding_input(step.run.weights, step.at_read_position(step.resid_post))
        moved = [_shift_along(final, along, length=length) for along in after_norm]
        shifts += [shift[:, step.branch.variant_of] for shift in moved]
    return torch.stack(shifts, dim=2)


def _moved_after(step: Step, along: Tensor, *, is_end: bool, length: bool) -> Tensor:
    """How far each edit set moves the stream after a block.

    `batch direction d_model -> batch edit_set direction`

    If nothing later is read, no length is asked for, and the family adds writes without a norm, the
    MLP's write is not computed:

        <change of resid_post, u> = <change of resid_mid, u> + <change of hidden, W_out u>
    """
    if is_end and not length and step.run.weights.config.family.adds_plainly:
        by_mlp = _shift_along(step.at_read_position(step.hidden), along @ step.block.w_hidden.mT)
        shift = _shift_along(step.at_read_position(step.resid_mid), along) + by_mlp
    else:
        shift = _shift_along(step.at_read_position(step.resid_post), along, length=length)
    return shift[:, step.branch.variant_of]


def _shift_along(x: Tensor, along: Tensor, *, length: bool = False) -> Tensor:
    """How far each variant is from the unchanged run along directions; with `length`, then the
    whole distance.

    `batch variant d, batch direction d -> batch variant direction`
    """
    change = x - x[:, :1]
    shift = change @ along.mT
    return torch.cat([shift, change.norm(dim=-1, keepdim=True)], dim=-1) if length else shift


# --- batches --------------------------------------------------------------------------------------


def in_batches(
    texts: Texts, weights: Weights, variants: int, run: BatchRun, *, width: int = 1
) -> list[Tensor]:
    """The results of `run` on batches of equally long texts, in the order of `texts`, on the
    CPU.

    variants: how many variants each text has
    width: how many positions of a variant are run in a causal model

    A batch is small enough for its widest tensor, the MLP's activations, to stay in the processor's
    cache. Rows that begin alike are in one batch, because a shared beginning is run once. Rows that
    differ only in the last token are not split, because they share keys and values.
    """
    order = sorted(range(len(texts)), key=lambda row: texts[row].ids)
    lengths = [len(texts[row].ids) for row in order]
    longest = max(lengths, default=1)
    live_count = width if weights.causal else longest
    most_rows = BATCH_NUMBERS // (variants * weights.blocks[0].d_mlp * live_count)
    alike = rows_alike([texts[row].ids[:-1] for row in order])
    # Whole groups of rows that are alike, if at least one group fits.
    most_rows = max(1, most_rows if most_rows < alike else most_rows - most_rows % alike)
    batches = [
        [order[index] for index in batch] for batch in batch_by_length(lengths, most_rows=most_rows)
    ]
    kept = kept_here()
    # Each batch finds what was kept before all of them, whichever is faster.
    before = None if kept is None else kept.copy()
    with torch.inference_mode():
        terms = blocks.position_terms(weights, longest)

        def run_batch(batch: list[int]) -> tuple[Sequence[Tensor], KeptKeys | None]:
            own = None if before is None else before.copy()
            with keeping(own):
                return run([texts[row] for row in batch], batch, terms), own

        calls = [partial(run_batch, batch) for batch in batches]
        results: list[Tensor] = []
        for batch, (parts, own) in zip(batches, in_order(calls, weights.device), strict=True):
            if not results:
                with torch.inference_mode(False):  # so that the caller gets ordinary tensors
                    results = [
                        torch.empty(len(texts), *part.shape[1:], dtype=part.dtype, device="cpu")
                        for part in parts
                    ]
            for whole, part in zip(results, parts, strict=True):
                whole[batch] = part.cpu()
            if kept is not None and own is not None:
                kept.add(own)
    return results
