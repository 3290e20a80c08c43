"""The engine of swaps: the forward of `probe.model.forward` in fused operations, for every family of the table.

A swap at a position can only touch `live` trailing positions of a text: one where the mask is causal and the text is
cut at the word, all of them where the model reads both ways. So a variant of a run is `live` vectors a layer, carried
against the keys and values of the unchanged positions before them, which are computed once. Cross-attention's keys and
values are constants of the same kind.

Queries, keys and values of a block come out of one product; norms, activations and attention are torch's own;
beginnings that several texts share are run once, rotations and relative biases are computed once a run. What it must
equal is `forward`, step by step: to 1e-5 of the scale in float32, 1e-10 in float64 (1e-6 where a family's own code
rounds to float32 on the way).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import forward
from probe.model.attention import halves
from probe.model.model import Config
from probe.model.weights import Block, Weights
from probe.patching.patterns import KeysValues, Places, attend, attend_last, scale_of

Donor = Callable[[int, Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


class Branch(NamedTuple):
    """How variants branch in one block: `parent: variant`, the variant of the block before; `swapped: variant head`."""

    parent: Tensor
    swapped: Tensor


def branches(kept: Tensor) -> tuple[list[Branch], Tensor]:
    """How variants branch in each block, and which variant at the end each set is. Variant 0 is always the unchanged
    run.

    Sets that differ only in later blocks are one variant so far. `set layer head -> a branch a layer, set`
    """
    swapped = torch.cat([kept.new_zeros(1, *kept.shape[1:]), ~kept])
    tree, variant_of = [], torch.zeros(len(swapped), dtype=torch.long, device=kept.device)
    for heads in swapped.unbind(1):
        paths = torch.cat([variant_of[:, None], heads.long()], dim=1)  # sorted, so that no swap comes first
        distinct, variant_of = torch.unique(paths, dim=0, return_inverse=True)
        tree.append(Branch(distinct[:, 0], distinct[:, 1:].bool()))
    return tree, variant_of[1:]


def run(weights: Weights, rows: Sequence[Sequence[int]], depth: int, places: Places) -> Iterator[tuple[Tensor, ...]]:
    """Queries, keys and values of an unchanged run of equally long rows of token ids, block by block, for `depth`
    blocks.

    In a causal model what stands at a position depends on the tokens up to it alone, so a beginning that several rows
    share is computed once. `-> batch head pos d_head, twice batch kv_head pos d_head`
    """
    causal, device = weights.causal, weights.device
    ids = torch.tensor(rows, dtype=torch.long, device=device)
    if causal:
        once, where = (torch.tensor(part, dtype=torch.long, device=device) for part in _beginnings(rows))
    else:
        once = torch.arange(ids.numel(), device=device)
        where = once.view(ids.shape)
    resid = forward.embed(weights, ids).flatten(0, 1)[once, None]  # beginning 1 d_model
    pos = once % max(ids.shape[1], 1)
    for layer, block in enumerate(weights.blocks[:depth]):
        parts = project(weights, block, resid, places, pos[:, None])
        q, k, v = (part[where, :, 0].transpose(1, 2) for part in parts)
        yield q, k, v
        if layer + 1 < depth:
            z = attend(weights, block, q, k, v, places)
            z = z.transpose(1, 2).flatten(0, 1)[once].unsqueeze(1)  # beginning 1 head d_head
            resid = finish(weights, block, resid, write(weights, block, resid, z))


def _beginnings(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Where each different beginning `row[: pos + 1]` first ends in the flattened rows, and which one ends at each
    place.
    """
    number: dict[tuple[int, int], int] = {}
    once: list[int] = []
    where: list[list[int]] = [[] for _ in rows]
    for place, row in enumerate(rows):
        last = -1
        for pos, token in enumerate(row):
            longer = number.setdefault((last, token), len(number))
            if longer == len(once):
                once.append(place * len(row) + pos)
            where[place].append(last := longer)
    return once, where


def carry(
    weights: Weights,
    carried: Tensor,
    before: Iterable[KeysValues | None],
    tree: Sequence[Branch],
    donor: Donor,
    *,
    at: Tensor,
    places: Places,
    cross: tuple[Weights, Sequence[KeysValues]] | None = None,
    directions: Tensor | None = None,
) -> Tensor:
    """The last vectors of every variant at `at`: how far they are from the unchanged one's along `directions`, or whole
    without these.

    `directions: direction d_model` are read behind the last block; `batch stage d_model` are each text's own and are
    read behind every block and, where there is one more, behind the final norm.

    `carried: batch 1 live d_model`, what enters the first block at the live positions · `before`: block by block the
    keys and values of the positions before them, `batch kv_head pos d_head`, None where there are none · `at: batch`,
    the live position that is swapped and read · `donor(layer, z of the unchanged run)`: z of the donors, `batch head
    d_head` both · `cross`: cross-attention and what it reads; the swapped heads are then its own. `-> batch variant
    direction`, `batch variant stage` or `batch variant d_model`
    """
    row = torch.arange(len(carried), device=weights.device)
    last = len(tree) - 1
    stages = directions.unbind(1) if directions is not None and directions.ndim == 3 else ()
    read: list[Tensor] = []
    for layer, (branch, known) in enumerate(zip(tree, before, strict=True)):
        block, reading = weights.blocks[layer], None
        z = attend_live(weights, block, carried, known, places)
        if cross is not None:
            stack, memory = cross
            reading = stack.blocks[layer]
            middle = write(weights, block, carried, z)
            z = _read_memory(stack, reading, middle, memory[layer])
            resid_mid = write(stack, reading, middle[:, branch.parent], _swap(z, branch, donor, layer, at, row))
        elif layer == last and carried.shape[2] > 1:  # behind the last swap only the position that is read is wanted
            z, carried = z[row, :, at].unsqueeze(2), carried[row, :, at].unsqueeze(2)
            at = torch.zeros_like(at)
        carried = carried[:, branch.parent]
        if reading is None:
            resid_mid = write(weights, block, carried, _swap(z, branch, donor, layer, at, row))
        if layer == last and directions is not None and not stages and weights.config.family.adds_plainly:
            return _read_out(weights, block, carried[row, :, at], resid_mid[row, :, at], directions)
        carried = finish(weights, block, carried, resid_mid)
        if stages:
            read.append(_moved(carried[row, :, at], stages[layer]))
    final = carried[row, :, at]
    if stages:
        behind = [_moved(forward.finish(weights, final), along) for along in stages[len(tree) :]]
        return torch.stack([*_at_the_end(read, tree), *behind], dim=-1)
    return final if directions is None else (final - final[:, :1]) @ directions.T


def _moved(resid: Tensor, along: Tensor) -> Tensor:
    """How far every variant is from the unchanged one along its text's direction.

    `batch variant d_model, batch d_model -> batch variant`
    """
    return torch.einsum("bvd,bd->bv", resid - resid[:, :1], along)


def _at_the_end(read: Sequence[Tensor], tree: Sequence[Branch]) -> list[Tensor]:
    """What was read of the variants behind each block, by the variants that they have become behind the last one."""
    became = torch.arange(len(tree[-1].parent), device=read[-1].device)
    values = []
    for moved, branch in zip(reversed(read), reversed(tree), strict=True):
        values.append(moved[:, became])
        became = branch.parent[became]
    return values[::-1]


def _swap(z: Tensor, branch: Branch, donor: Donor, layer: int, at: Tensor, row: Tensor) -> Tensor:
    """z of the variants of a block, the donor's at `at` where a head is swapped. `batch variant live head d_head`"""
    alone = z.shape[2] == 1
    own = z[:, :, 0] if alone else z[row, :, at]  # batch variant head d_head
    here = torch.where(branch.swapped[..., None], donor(layer, own[:, 0]).unsqueeze(1), own[:, branch.parent])
    if alone:
        return here.unsqueeze(2)
    z = z[:, branch.parent]
    z[row, :, at] = here
    return z


def _read_out(weights: Weights, block: Block, resid: Tensor, resid_mid: Tensor, directions: Tensor) -> Tensor:
    """What the last MLP writes is wanted along the directions only: it is projected before it is written, differences
    are taken before.
    """
    hidden = activate(weights, block, resid if weights.config.family.parallel else resid_mid)
    resid_mid, hidden = (part - part[:, :1] for part in (resid_mid, hidden))
    assert block.w_out is not None
    return resid_mid @ directions.T + hidden @ (block.w_out @ directions.T)


def project(
    weights: Weights, block: Block, resid: Tensor, places: Places, pos: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of every head, rotated for their positions. `... pos d_model -> ... head pos d_head`,
    kv_head for two

    `pos` broadcasts over the leading axes of resid.
    """
    config, places = weights.config, places.of(block)
    x = _norm(resid, block.norm, block.norm_bias, config) if config.family.norm_first else resid
    heads = _linear(x, *block.fused).unflatten(-1, (-1, config.d_head)).transpose(-2, -3)  # ... head pos d_head
    q, k, v = heads.split((config.n_heads, config.n_kv_heads, config.n_kv_heads), dim=-3)
    q, k = (forward.norm_heads(*part, config, _norm) for part in ((q, block.norm_q), (k, block.norm_k)))
    if places.cos is None or pos is None:
        return q, k, v
    return _rotate(config, q, places, pos), _rotate(config, k, places, pos), v


def _rotate(config: Config, x: Tensor, places: Places, pos: Tensor) -> Tensor:
    """Rotary positions with the run's own cosines and sines. `... head pos d_head`, `... pos`"""
    assert places.cos is not None and places.sin is not None
    x = halves(x, places.cos.shape[-1]) if config.family.paired else x
    cos, sin = places.cos[pos].unsqueeze(-3), places.sin[pos].unsqueeze(-3)
    turned, left = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, left], dim=-1) if left.shape[-1] else turned


def attend_live(weights: Weights, block: Block, carried: Tensor, known: KeysValues | None, places: Places) -> Tensor:
    """z of the live positions of every variant; each reads what stands before them and, as the mask allows, its own
    live positions.

    `batch variant live d_model, twice batch kv_head key_pos d_head -> batch variant live head d_head`
    """
    size = 0 if known is None else known[0].shape[-2]
    pos = torch.arange(size, size + carried.shape[2], device=carried.device)[None, None]
    return attend_among(weights, block, project(weights, block, carried, places, pos), known, places)


def attend_among(
    weights: Weights, block: Block, own: Sequence[Tensor], known: KeysValues | None, places: Places
) -> Tensor:
    """The same from queries, keys and values of the live positions.

    `own: batch variant head live d_head`, kv_head for two `-> batch variant live head d_head`
    """
    if known is not None and own[0].shape[-2] == 1:
        q, k, v = (part.squeeze(-2).transpose(1, 2) for part in own)
        return attend_last(weights, block, (q, k, v), known, places).transpose(1, 2).unsqueeze(2)
    q, k, v = own
    if known is not None:
        before = (part[:, None].expand(-1, q.shape[1], -1, -1, -1) for part in known)
        k, v = (torch.cat(parts, dim=-2) for parts in zip(before, (k, v), strict=True))
    return attend(weights, block, q, k, v, places).transpose(2, 3)


def _read_memory(weights: Weights, block: Block, resid: Tensor, memory: KeysValues) -> Tensor:
    """z of cross-attention, whose keys and values are constants.

    `batch variant live d_model -> batch variant live head d_head`
    """
    config = weights.config
    x = _norm(resid, block.norm, block.norm_bias, config) if config.family.norm_first else resid
    q = _linear(x.flatten(1, 2), *block.queries).unflatten(-1, (config.n_heads, -1)).transpose(1, 2)
    z = functional.scaled_dot_product_attention(q, *memory, scale=scale_of(weights))
    return z.transpose(1, 2).unflatten(1, resid.shape[1:3])


class Writer(NamedTuple):
    """What attention or the MLP of a block writes with: `weight: input d_model`, `bias: d_model`; `norm_written`, the
    gain of the norm behind what is written, `norm` and `norm_bias` of that behind the sum, as far as the family has
    them.
    """

    weight: Tensor
    bias: Tensor | None
    norm_written: Tensor | None
    norm: Tensor | None
    norm_bias: Tensor | None

    def written(self, x: Tensor) -> Tensor:
        """x W + b, before any norm. `... input -> ... d_model`"""
        return _linear(x, self.weight, self.bias)


def attention_of(block: Block) -> Writer:
    """What all heads of a block write with; its input is their z side by side."""
    return Writer(block.w_o.flatten(0, 1), block.b_o, block.norm_out, block.norm, block.norm_bias)


def mlp_of(block: Block) -> Writer:
    """What the MLP of a block writes with; its input are its activations."""
    assert block.w_out is not None
    return Writer(block.w_out, block.b_out, block.norm_mlp_out, block.norm_mlp, block.norm_mlp_bias)


def add(config: Config, writer: Writer, resid: Tensor, written: Tensor) -> Tensor:
    """The stream behind a write: the sum, through the norms where the family has them behind. Shape unchanged."""
    if config.family.norm_written:
        return resid + _norm(written, writer.norm_written, None, config)
    return _norm(resid + written, writer.norm, writer.norm_bias, config) if config.family.norm_last else resid + written


def write(weights: Weights, block: Block, resid: Tensor, z: Tensor) -> Tensor:
    """E′: E + Concat(z) W_O + b_O, through the norms where the family has them behind.

    `... pos d_model, ... pos head d_head`
    """
    return _write(
        weights.config, attention_of(block), resid.clone(memory_format=torch.contiguous_format), z.flatten(-2)
    )


def activate(weights: Weights, block: Block, seen: Tensor) -> Tensor:
    """The MLP's activations from what it reads of the stream. `... d_model -> ... d_mlp`"""
    config, activation = weights.config, ACTIVATIONS[weights.config.activation]
    x = _norm(seen, block.norm_mlp, block.norm_mlp_bias, config) if config.family.norm_first else seen
    if block.w_gate is not None and block.w_up is not None:
        return activation(_linear(x, block.w_gate, None)).mul_(_linear(x, block.w_up, None))
    assert block.w_in is not None
    return activation(_linear(x, block.w_in, block.b_in))


def finish(weights: Weights, block: Block, resid: Tensor, resid_mid: Tensor) -> Tensor:
    """The block's end, E′ + MLP, in the place of E′; through the norms where the family has them behind.

    `... pos d_model`
    """
    family = weights.config.family
    hidden = activate(weights, block, resid if family.parallel else resid_mid)
    return write_mlp(weights, block, resid_mid, hidden)


def write_mlp(weights: Weights, block: Block, resid_mid: Tensor, hidden: Tensor) -> Tensor:
    """The same from the MLP's activations. `... pos d_model, ... pos d_mlp -> ... pos d_model`"""
    return _write(weights.config, mlp_of(block), resid_mid, hidden)


def _write(config: Config, writer: Writer, resid: Tensor, x: Tensor) -> Tensor:
    """The stream behind a write, where nothing is normed in the place of `resid`, which must be contiguous."""
    if not config.family.adds_plainly:
        return add(config, writer, resid, writer.written(x))
    total = resid if writer.bias is None else resid.add_(writer.bias)
    total.view(-1, total.shape[-1]).addmm_(x.flatten(0, -2), writer.weight)
    return total


def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, config: Config) -> Tensor:
    if config.family.norm == "LayerNorm":
        return functional.layer_norm(x, x.shape[-1:], weight, bias, config.epsilon)
    if config.family.single and x.dtype == torch.float64:
        return forward.norm(x, weight, bias, config)  # rounded to float32 on the way, as the family's own code does
    return functional.rms_norm(x, x.shape[-1:], forward.gain_of(weight, config), config.epsilon)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.flatten(0, -2)
    product = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return product.unflatten(0, x.shape[:-1])
