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
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import forward
from probe.model.attention import rotary_angles
from probe.model.config import Config
from probe.model.weights import Block, Weights

Donor = Callable[[int, Tensor], Tensor]
KeysValues = tuple[Tensor, Tensor]
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


@dataclass(frozen=True, eq=False)
class Places:
    """What depends on positions alone, for one run: cosines and sines `pos dims` of rotary positions, bias `head
    query_pos key_pos`.
    """

    cos: Tensor | None
    sin: Tensor | None
    bias: Tensor | None


def places_of(weights: Weights, n: int) -> Places:
    """The constants of texts of up to `n` tokens."""
    bias = forward.position_bias(weights, n)
    if weights.config.positions.kind != "rotary":
        return Places(None, None, None if bias is None else bias.to(weights.dtype))
    frequencies = forward.rotary(weights.config.positions).to(weights.device)
    angles = rotary_angles(torch.arange(n, device=weights.device), frequencies)
    return Places(angles.cos().to(weights.dtype), angles.sin().to(weights.dtype), None)


def branches(kept: Tensor) -> tuple[list[Branch], Tensor]:
    """How variants branch in each block, and which variant at the end each set is. Variant 0 is always the unchanged
    run.

    Sets that differ only in later blocks are one variant so far. `set layer head -> a branch a layer, set`
    """
    swapped = torch.cat([kept.new_zeros(1, *kept.shape[1:]), ~kept])
    tree, variant_of = [], torch.zeros(len(swapped), dtype=torch.long, device=kept.device)
    for mask in swapped.unbind(1):
        paths = torch.cat([variant_of[:, None], mask.long()], dim=1)  # sorted, so that no swap comes first
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
            z = attend(weights, q, k, v, places)
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

    `carried: batch 1 live d_model`, what enters the first block at the live positions · `before`: block by block the
    keys and values of the positions before them, `batch kv_head pos d_head`, None where there are none · `at: batch`,
    the live position that is swapped and read · `donor(layer, z of the unchanged run)`: z of the donors, `batch head
    d_head` both · `cross`: cross-attention and what it reads; the swapped heads are then its own. `-> batch variant
    direction`, or `batch variant d_model`
    """
    row = torch.arange(len(carried), device=weights.device)
    last = len(tree) - 1
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
        if layer == last and directions is not None and weights.config.family.norm_first:
            return _read_out(weights, block, carried[row, :, at], resid_mid[row, :, at], directions)
        carried = finish(weights, block, carried, resid_mid)
    final = carried[row, :, at]
    return final if directions is None else (final - final[:, :1]) @ directions.T


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
    config = weights.config
    x = _norm(resid, block.norm, block.norm_bias, config) if config.family.norm_first else resid
    heads = _linear(x, *block.fused).unflatten(-1, (-1, config.d_head)).transpose(-2, -3)  # ... head pos d_head
    q, k, v = heads.split((config.n_heads, config.n_kv_heads, config.n_kv_heads), dim=-3)
    if places.cos is None or pos is None:
        return q, k, v
    return _rotate(q, places, pos), _rotate(k, places, pos), v


def _rotate(x: Tensor, places: Places, pos: Tensor) -> Tensor:
    """Rotary positions with the run's own cosines and sines. `... head pos d_head`, `... pos`"""
    assert places.cos is not None and places.sin is not None
    cos, sin = places.cos[pos].unsqueeze(-3), places.sin[pos].unsqueeze(-3)
    turned, left = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, left], dim=-1) if left.shape[-1] else turned


def attend(weights: Weights, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    """z of every position of whole texts. `... head pos d_head, twice ... kv_head pos d_head -> ... head pos d_head`"""
    n, leading = q.shape[-2], q.shape[:-3]
    bias = None if places.bias is None else places.bias[:, :n, :n]
    q, k, v = (part.flatten(0, -4) for part in (q, k, v))
    z = functional.scaled_dot_product_attention(
        q, k, v, bias, is_causal=weights.causal, scale=_scale(weights), enable_gqa=q.shape[-3] != k.shape[-3]
    )
    return z.unflatten(0, leading)


def attend_live(weights: Weights, block: Block, carried: Tensor, known: KeysValues | None, places: Places) -> Tensor:
    """z of the live positions of every variant; each reads what stands before them and, as the mask allows, its own
    live positions.

    `batch variant live d_model, twice batch kv_head key_pos d_head -> batch variant live head d_head`
    """
    if known is None:
        pos = torch.arange(carried.shape[2], device=carried.device)
        q, k, v = project(weights, block, carried, places, pos[None, None])
        return attend(weights, q, k, v, places).transpose(2, 3)
    size = known[0].shape[-2]
    pos = torch.full((1, 1), size, device=carried.device)
    own = project(weights, block, carried.squeeze(2), places, pos)
    bias = None if places.bias is None else places.bias[:, size, : size + 1]
    return _attend_last(weights, own, known, bias).transpose(1, 2).unsqueeze(2)


def _attend_last(
    weights: Weights, own: tuple[Tensor, Tensor, Tensor], known: KeysValues, bias: Tensor | None
) -> Tensor:
    """z of many variants of the one position behind the known ones.

    `own: batch head variant d_head -> batch head variant d_head`
    """
    groups = known[0].shape[1]
    q, k, v = (part.unflatten(1, (groups, -1)) for part in own)  # batch kv_head head variant d_head
    keys, values = known
    q = q * _scale(weights)
    to_itself = (q * k).sum(-1, keepdim=True)
    scores = torch.cat([_grouped(q, keys.transpose(-1, -2)), to_itself], dim=-1)
    if bias is not None:
        scores += bias.unflatten(0, (groups, -1)).unsqueeze(-2)
    pattern = scores.softmax(-1)
    z = torch.addcmul(_grouped(pattern[..., :-1], values), pattern[..., -1:], v)
    return z.flatten(1, 2)


def _grouped(x: Tensor, shared: Tensor) -> Tensor:
    """The product of every head's rows with the matrix that its group shares.

    `batch kv_head head row a, batch kv_head a b`
    """
    return (x.flatten(2, 3) @ shared).unflatten(2, x.shape[2:4])


def _read_memory(weights: Weights, block: Block, resid: Tensor, memory: KeysValues) -> Tensor:
    """z of cross-attention, whose keys and values are constants.

    `batch variant live d_model -> batch variant live head d_head`
    """
    config = weights.config
    x = _norm(resid, block.norm, block.norm_bias, config) if config.family.norm_first else resid
    q = _linear(x.flatten(1, 2), *block.queries).unflatten(-1, (config.n_heads, -1)).transpose(1, 2)
    z = functional.scaled_dot_product_attention(q, *memory, scale=_scale(weights))
    return z.transpose(1, 2).unflatten(1, resid.shape[1:3])


def pattern_at(weights: Weights, q: Tensor, k: Tensor, at: Tensor, places: Places) -> Tensor:
    """The pattern row of the query at `at`. `batch head d_head, batch kv_head key_pos d_head -> batch head key_pos`"""
    q = q.unflatten(1, (k.shape[1], -1)) * _scale(weights)
    scores = (q @ k.transpose(-1, -2)).flatten(1, 2)
    if places.bias is not None:
        scores = scores + places.bias[:, at, : k.shape[-2]].transpose(0, 1)
    if weights.causal:
        ahead = torch.arange(k.shape[-2], device=k.device) > at[:, None]
        scores = scores.masked_fill(ahead[:, None], -torch.inf)
    return scores.softmax(-1)


def write(weights: Weights, block: Block, resid: Tensor, z: Tensor) -> Tensor:
    """E′:

    E + Concat(z) W_O + b_O, through the norm where the family has it behind. `... pos d_model, ... pos head d_head`
    """
    total = resid + block.b_o if block.b_o is not None else resid.clone(memory_format=torch.contiguous_format)
    resid_mid = _added(total.contiguous(), z.flatten(-2), block.w_o.flatten(0, 1))
    if weights.config.family.norm_first:
        return resid_mid
    return _norm(resid_mid, block.norm, block.norm_bias, weights.config)


def activate(weights: Weights, block: Block, seen: Tensor) -> Tensor:
    """The MLP's activations from what it reads of the stream. `... d_model -> ... d_mlp`"""
    config, activation = weights.config, ACTIVATIONS[weights.config.activation]
    x = _norm(seen, block.norm_mlp, block.norm_mlp_bias, config) if config.family.norm_first else seen
    if block.w_gate is not None and block.w_up is not None:
        return activation(_linear(x, block.w_gate, None)).mul_(_linear(x, block.w_up, None))
    assert block.w_in is not None
    return activation(_linear(x, block.w_in, block.b_in))


def finish(weights: Weights, block: Block, resid: Tensor, resid_mid: Tensor) -> Tensor:
    """The block's end, E′ + MLP, in the place of E′; through the norm where the family has it behind.

    `... pos d_model`
    """
    family = weights.config.family
    hidden = activate(weights, block, resid if family.parallel else resid_mid)
    assert block.w_out is not None
    total = resid_mid if block.b_out is None else resid_mid.add_(block.b_out)
    resid_post = _added(total, hidden, block.w_out)
    return resid_post if family.norm_first else _norm(resid_post, block.norm_mlp, block.norm_mlp_bias, weights.config)


def _scale(weights: Weights) -> float:
    return weights.config.d_head**-0.5 if weights.config.family.scaled else 1.0


def _norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, config: Config) -> Tensor:
    if config.family.single and x.dtype == torch.float64 and gain is not None:
        return forward.norm(x, gain, bias, config)  # rounded to float32 on the way, as the family's own code does
    if config.family.norm == "LayerNorm":
        return functional.layer_norm(x, x.shape[-1:], gain, bias, config.epsilon)
    return functional.rms_norm(x, x.shape[-1:], gain, config.epsilon)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.flatten(0, -2)
    product = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return product.unflatten(0, x.shape[:-1])


def _added(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """total + x W, in the place of total, which must be contiguous."""
    total.view(-1, total.shape[-1]).addmm_(x.flatten(0, -2), weight)
    return total
