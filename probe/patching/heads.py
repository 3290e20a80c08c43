"""Intervention: give one head's output at the word another sentence's value, and see how far the
word's vector moves.

Every one of the layers x heads swaps is performed, none is approximated. A swap at a position can
only touch `live` trailing positions of a text: one where the mask is causal and the text is cut at
the word, all of them where the model reads both ways. So a swap is a variant of a run
(`probe.patching.variants`): `live` vectors a layer, run against the keys and values of the
unchanged positions before them, which are computed once. A reader, such as `moved_along`, is a
function over the steps of the run.

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and
noising).
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from probe.model import forward, fused
from probe.model.fused import PositionTables
from probe.model.load import ModelSource, read_weights
from probe.model.tokens import TargetText, batch_by_length, in_order
from probe.model.weights import Weights
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
from probe.patching.variants import (
    Branch,
    Donor,
    Edits,
    Step,
    Z,
    branches,
    rows_alike,
    run_at_word,
)
from probe.renamed import renamed

# Numbers in the widest tensor of a batch: 16 MB in float32, so that it stays near the processor.
BATCH_NUMBERS = 2**22
# Sets of heads run at once where a variant is a whole text.
SETS_AT_ONCE = 256
# What is done, as errors name it.
HEADS = "Swapping heads"
PAIRS = "Swapping pairs"

# Runs a batch of texts, given with their row numbers.
BatchRun = Callable[[Texts, list[int], PositionTables], Sequence[Tensor]]
# `swap_sets` of arguments that were checked.
SetRunner = Callable[[Weights, Texts, Tensor, Tensor, Tensor], Tensor]


@renamed(weights="model", rows="texts")
def swap_heads(
    model: ModelSource | Weights, texts: Rows, donor_z: Tensor, directions: Tensor
) -> Tensor:
    """How far the read-out moves along each direction when one head's z at the target is the
    donor's, for every head.

    `texts`: the token ids of each text up to and including the word, or `probe.TargetText(ids,
    at)`, of which a causal model runs as much; a model that reads both ways needs the latter ·
    `donor_z: row layer head d_head`, whose layer axis says how many blocks there are before the
    read-out · `directions: direction d_model` -> `row layer head direction`: the change of <resid,
    direction>, 0 when the donor is the sentence itself. With directions of each row's own, `row
    stage d_model`, `-> row layer head stage` (see `swap_sets`). Raises InputError for donors with
    more layers than the model has.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> donor_z = states.z.flip(0)  # each sentence gets the other's
        >>> probe.swap_heads(model, rows, donor_z, direction).shape  # row layer head direction
        torch.Size([2, 4, 4, 1])
    """
    weights = read_weights(model)
    rows, donor_z, directions = _checked(weights, texts, donor_z, directions)
    head_sets = _all_but_one(weights, donor_z.shape[1])
    moved = runner_of(weights)(weights, rows, donor_z, head_sets, directions)
    return moved.unflatten(1, donor_z.shape[1:3])


@renamed(weights="model", a="texts", b="against")
def swap_pairs(
    model: ModelSource | Weights, texts: Rows, against: Rows, directions: Tensor, *, depth: int
) -> Tensor:
    """`swap_heads` of pairs of equal length in both directions, each the other's donor, in the runs
    that swaps need anyway. `directions: direction d_model`, the same for all pairs `-> pair
    recipient layer head direction`: recipient 0 is the text of `texts`
    with z of its partner in `against`, 1 the other way round.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> moved = probe.swap_pairs(model, rows[:1], rows[1:], direction, depth=4)
        >>> moved.shape  # pair recipient layer head direction
        torch.Size([1, 2, 4, 4, 1])
    """
    weights = read_weights(model)
    require_depth(weights, depth, PAIRS)
    own = target_texts(weights, texts, PAIRS)
    others = target_texts(weights, against, PAIRS)
    require_equal_lengths(own, others, PAIRS)
    directions = as_directions(weights, directions, PAIRS)
    tree = _tree_of(weights, _all_but_one(weights, depth))
    along = _by_stage(directions).to(weights.device, weights.dtype)

    def swap(batch: Texts, members: list[int], tables: PositionTables) -> list[Tensor]:
        def donor(layer: int, own: Tensor) -> Tensor:
            return own.roll(len(members), 0)[:, None]

        both = [*batch, *(others[pair] for pair in members)]
        steps = run_at_word(weights, both, depth, tables, edits=Edits(Z, tree, donor))
        moved = moved_along(steps, along)[:, :, 0]  # (recipient pair) set direction
        return [moved.unflatten(0, (2, -1)).transpose(0, 1)]

    [moved] = in_batches(own, weights, 2 * len(tree[-1].parent), swap)
    return moved.unflatten(2, (depth, -1))


@renamed(weights="model", rows="texts")
def swap_sets(
    model: ModelSource | Weights,
    texts: Rows,
    donor_z: Tensor,
    head_sets: Tensor,
    directions: Tensor,
) -> Tensor:
    """Where the read-out moves when every head outside a set has the donor's z at the target, for
    many sets of heads.

    Heads inside a set, and all MLPs, are live: they respond to what changed below them. `texts`,
    `donor_z` and `directions` as in `swap_heads` · `head_sets: set layer head`, True inside the set
    -> `row set direction`: <resid - unchanged resid, direction>. Directions of each row's own, `row
    stage d_model`, are read behind every block and, where there is one more, behind the final norm:
    `-> row set stage`. With several at each stage, `row stage direction d_model`, `-> row set stage
    direction`. In a model whose hooks stay on each set is a whole forward of each text.

    Example:
        >>> import torch
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> none_kept = torch.zeros(1, 4, 4, dtype=torch.bool)  # set layer head
        >>> moved = probe.swap_sets(model, rows, states.z.flip(0), none_kept, direction)
        >>> moved.shape  # row set direction
        torch.Size([2, 1, 1])
    """
    weights = read_weights(model)
    rows, donor_z, directions = _checked(weights, texts, donor_z, directions)
    head_sets = as_sets(head_sets, donor_z, "Swapping sets of heads")
    return runner_of(weights)(weights, rows, donor_z, head_sets, directions)


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


def runner_of(weights: Weights) -> SetRunner:
    """The function that swaps sets of heads in a model: in variants of a run, or, if hooks of its
    owner stay on, in a whole forward for each set."""
    return _swap_sets if weights.hooked is None else hooked.swap_sets


def _swap_sets(
    weights: Weights, texts: Texts, donor_z: Tensor, head_sets: Tensor, directions: Tensor
) -> Tensor:
    """`swap_sets` in variants of a run."""
    at_once = len(head_sets) if weights.causal else SETS_AT_ONCE
    parts = []
    for some in head_sets.split(at_once):
        tree = _tree_of(weights, some)
        along = _by_stage(directions)
        part = moved_by_edits(weights, texts, site=Z, tree=tree, donors=donor_z, directions=along)
        parts.append(part)
    moved = torch.cat(parts, dim=1)  # row set stage direction
    if directions.ndim == 2:
        return moved[:, :, 0]
    return moved[..., 0] if directions.ndim == 3 else moved


def rerouted(weights: Weights, rows: Rows, donor_z: Tensor) -> Tensor:
    """Where a swap of one head's z at the target changes the experts that a routed MLP chooses
    there, for every head and every MLP.

    `rows` as `texts` and `donor_z` as in `swap_heads`, of all layers `-> row layer head mlp`: True
    where the set of chosen experts of the MLP of layer `mlp` is not the recipient's own, which in
    front of the swap it always is.
    """
    texts = target_texts(weights, rows, HEADS)
    depth = donor_z.shape[1]
    tree = _tree_of(weights, _all_but_one(weights, depth))

    def compare(batch: Texts, members: list[int], tables: PositionTables) -> list[Tensor]:
        edits = Edits(Z, tree, donor_of(weights, donor_z[members]))
        return [_rerouted(run_at_word(weights, batch, depth, tables, edits=edits))]

    [differs] = in_batches(texts, weights, len(tree[-1].parent), compare)
    return differs.unflatten(1, donor_z.shape[1:3])


# --- what is edited -------------------------------------------------------------------------------


def _all_but_one(weights: Weights, depth: int) -> Tensor:
    """A set for every head below the read-out, of all the others. `-> (layer head) layer head`"""
    count = depth * weights.shape[1]
    return ~torch.eye(count, dtype=torch.bool, device=weights.device).unflatten(1, (depth, -1))


def _tree_of(weights: Weights, head_sets: Tensor) -> list[Branch]:
    """The variants in which all heads outside a set are swapped, for each set. `set layer head`"""
    # A layer without heads has nothing to swap.
    has_heads = weights.has_heads[: head_sets.shape[1], None]
    return branches(~head_sets.to(weights.device) & has_heads)


def donor_of(weights: Weights, donors: Tensor) -> Donor:
    """The donor that gives each text of a batch a value for each layer. `batch layer ...`"""
    values = donors.to(weights.device, weights.dtype)
    return lambda layer, own: values[:, layer, None]


def moved_by_edits(
    weights: Weights,
    texts: Texts,
    *,
    site: str,
    tree: Sequence[Branch],
    donors: Tensor,
    directions: Tensor,
) -> Tensor:
    """How far each set of edits moves the stream at the word. `-> row set stage direction`

    site: what is edited, Z, ATTN_OUT or HIDDEN of `probe.patching.variants`
    tree: the sets of edits, from `branches`
    donors: the values that are put in, `row layer ...`
    directions: as for `moved_along`, `row stage direction d_model`, one row if all texts have the
        same
    """

    def swap(batch: Texts, members: list[int], tables: PositionTables) -> list[Tensor]:
        edits = Edits(site, tree, donor_of(weights, donors[members]))
        steps = run_at_word(weights, batch, len(tree), tables, edits=edits)
        along = directions if len(directions) == 1 else directions[members]
        return [moved_along(steps, along.to(weights.device, weights.dtype))]

    [moved] = in_batches(texts, weights, len(tree[-1].parent), swap)
    return moved


# --- what is read ---------------------------------------------------------------------------------


def _by_stage(directions: Tensor) -> Tensor:
    """Directions in the form that `moved_along` takes. `row stage direction d_model`

    Those common to all texts, `direction d_model`, are read after the last block; each text can
    have its own, `row stage d_model` or `row stage direction d_model`.
    """
    if directions.ndim == 2:
        return directions[None, None]
    return directions[:, :, None] if directions.ndim == 3 else directions


def moved_along(steps: Iterable[Step], directions: Tensor) -> Tensor:
    """How far each set of edits moves the stream at the word. `-> batch set stage direction`

    directions: `batch stage direction d_model`, a batch of 1 if all texts have the same. With n
        stages the last n blocks are read. Stages beyond the number of blocks are read after the
        final norm.
    """
    stages = directions.unbind(1)
    moved: list[Tensor] = []
    for step in steps:
        first = max(0, step.run.depth - len(stages))
        if step.layer >= first:
            along = stages[step.layer - first]
            is_end = len(moved) == len(stages) - 1
            moved.append(_moved_after(step, along, is_end=is_end))
    if after_norm := stages[step.run.depth :]:
        final = forward.unembedding_input(step.run.weights, step.reading(step.resid_post))
        moved += [_moved(final, along)[:, step.branch.variant_of] for along in after_norm]
    return torch.stack(moved, dim=2)


def _moved_after(step: Step, along: Tensor, *, is_end: bool) -> Tensor:
    """How far each set moves the stream after a block. `batch direction d_model -> batch set
    direction`

    If nothing later is read and the family adds writes without a norm, the MLP is not written:
    <change of resid_post, u> = <change of resid_mid, u> + <change of hidden, W_out u>.
    """
    if is_end and step.run.weights.config.family.adds_plainly:
        written = _moved(step.reading(step.hidden), along @ step.block.w_hidden.mT)
        moved = _moved(step.reading(step.resid_mid), along) + written
    else:
        moved = _moved(step.reading(step.resid_post), along)
    return moved[:, step.branch.variant_of]


def _moved(x: Tensor, along: Tensor) -> Tensor:
    """How far each variant is from the unchanged run along directions. `batch variant d, batch
    direction d -> batch variant direction`"""
    return (x - x[:, :1]) @ along.mT


def _rerouted(steps: Iterable[Step]) -> Tensor:
    """Where an MLP chooses other experts at the word than in the unchanged run. `-> batch set
    mlp`"""
    differs = []
    for step in steps:
        mlp_input = step.reading(step.mlp_input)
        chosen = fused.chosen_experts(step.run.weights, step.block, mlp_input)
        is_other = (chosen != chosen[:, :1]).any(-1)  # batch variant
        differs.append(is_other[:, step.branch.variant_of])
    return torch.stack(differs, dim=2)


# --- batches --------------------------------------------------------------------------------------


def in_batches(
    texts: Texts, weights: Weights, variants: int, run: BatchRun, *, width: int = 1
) -> list[Tensor]:
    """Apply `run` to batches of equally long texts and put each of its results back in the order of
    `texts`, on the CPU.

    Batches are small enough for the widest tensor, the MLP's activations, to stay near the
    processor. Rows that begin alike are in one batch, because a shared beginning is run once, and
    rows that differ only in the last token are not split, because they share keys and values.

    width: how many positions of a variant are run in a causal model
    """
    order = sorted(range(len(texts)), key=lambda row: texts[row].ids)
    lengths = [len(texts[row].ids) for row in order]
    longest = max(lengths, default=1)
    live = width if weights.causal else longest
    most_rows = BATCH_NUMBERS // (variants * weights.blocks[0].d_mlp * live)
    alike = rows_alike([texts[row].ids[:-1] for row in order])
    most_rows = max(1, most_rows if most_rows < alike else most_rows - most_rows % alike)
    batches = [
        [order[index] for index in batch] for batch in batch_by_length(lengths, most_rows=most_rows)
    ]
    with torch.inference_mode():
        tables = fused.position_tables(weights, longest)
        results = []
        for batch in batches:
            found = run([texts[row] for row in batch], batch, tables)
            results.append([part.cpu() for part in found])
        together = [torch.cat(parts)[in_order(batches)] for parts in zip(*results, strict=True)]
    # Outside inference mode, so that the caller gets ordinary tensors.
    return [part.clone() for part in together]
