"""The hooked side: one run of the bridge, every attention read by the table, hooks that hold something else replaced.

`check_hooks` asks a freshly loaded model three questions before anybody sees it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model import forward
from probe.model.architectures.family import Attention
from probe.model.config import refuse
from probe.model.model import Model
from probe.model.weights import Weights, layers_of, read_stacks

if TYPE_CHECKING:
    from transformers import Cache

HEAD_VECTORS = ("q", "k", "v", "z")  # by position and head in a hook, by head and position in a trace
SHARED = ("k", "v")
AT_ONE_PLACE = (*HEAD_VECTORS, "pattern", "mlp_out", "resid_pre", "resid_post")
Keep = Callable[[str, str, Tensor], None]  # the attention, the quantity, its tensor


@dataclass(frozen=True)
class HookedRun:
    """One run: the tensors of each attention by its name in the table, stacked over layers; its weights; the logits.

    `logits: pos d_vocab` are those of the head in the bridge, which is a random one when the checkpoint has none.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    stacks: Mapping[str, Weights]
    logits: Tensor


def read(model: Model, ids: Sequence[int], target: Sequence[int] | None = None) -> HookedRun:
    """Run `ids` (and `target` through the decoder, where there is one) and keep every tensor of every attention, on the
    CPU.
    """
    kept: dict[str, dict[str, list[Tensor]]] = {
        attention.name: {name: [] for name in attention.hooks} for attention in model.config.family.attentions
    }

    def keep(attention: str, name: str, tensor: Tensor) -> None:
        kept[attention][name].append(tensor[0].detach().cpu().clone())

    with _kept(model, keep):
        logits = run(model, [ids], None if target is None else [target])
    stacks = read_stacks(model.weights, model.config)
    tensors = {name: _whole(stack, kept[name]) for name, stack in stacks.items()}
    return HookedRun(tensors, stacks, logits[0].detach().cpu())


def run(
    model: Model, rows: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None, *, head: bool = True
) -> Tensor:
    """One forward of the bridge on texts filled up on the right, with masks made from their lengths. `-> row pos
    d_vocab`

    A mask made from ids would drop a padding token that is part of a text. Behind a text's end the numbers mean
    nothing. A decoder needs no mask: what is filled in comes after everything that is read; and with one, where layers
    look back only so far, what is filled in would see nothing at all and become NaN. Without `head`
    the unembedding is left out, which for many sentences is a good part of the work, and the last vectors come back:
    `row pos d_model`.
    """
    ids = filled(model, rows)
    ends = [ids.shape[1] if model.config.causal else len(row) for row in rows]
    lengths = torch.tensor(ends, device=model.device)
    mask = (torch.arange(ids.shape[1], device=model.device) < lengths[:, None]).long()
    if targets is not None:
        return model.bridge(ids, attention_mask=mask, decoder_input=filled(model, targets))
    if head:
        return model.bridge(ids, attention_mask=mask)
    return model.bridge.original_model.base_model(ids, attention_mask=mask, use_cache=False).last_hidden_state


def filled(model: Model, rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as one tensor, the shorter ones filled up on the right. `-> row pos`"""
    width, fill = max(map(len, rows)), model.tokenizer.pad_token_id or 0
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], device=model.device)


def read_at(model: Model, rows: Sequence[Sequence[int]], at: Sequence[int]) -> dict[str, Tensor]:
    """What `probe.model.records.TargetStates` holds of one position of each text, read in one run of a model with one
    stack.

    `resid: row depth d_model` · `mlp_out: row layer d_model` · `q k v z: row layer head d_head` · `pattern: row layer
    head key_pos`.
    """
    row, place = torch.arange(len(rows), device=model.device), torch.tensor(at, device=model.device)
    kept: dict[str, list[Tensor]] = {name: [] for name in AT_ONE_PLACE}

    def keep(attention: str, name: str, tensor: Tensor) -> None:
        kept[name].append((tensor[row, :, place] if name == "pattern" else tensor[row, place]).clone())

    with _kept(model, keep, AT_ONE_PLACE):
        run(model, rows, head=False)
    return _stacked(model, kept)


def read_last(model: Model, ids: Sequence[int], before: "Cache", values: Tensor) -> dict[str, Tensor]:
    """`read_at` of the last of some tokens of one text in a causal model, which follow those in the cache `before`.

    The keys and values of these tokens are added to the cache; V of all of them goes into `values: layer head pos
    d_head`.
    """
    kept: dict[str, list[Tensor]] = {name: [] for name in AT_ONE_PLACE}
    heads = model.config.n_heads

    def keep(attention: str, name: str, tensor: Tensor) -> None:
        if name == "v":
            values[len(kept["v"])] = formulas.share_heads(tensor[0].transpose(0, 1), heads)
        kept[name].append((tensor[:, :, -1] if name == "pattern" else tensor[:, -1]).clone())

    with _kept(model, keep, AT_ONE_PLACE):
        rows = torch.tensor([list(ids)], device=model.device)
        model.bridge.original_model.base_model(rows, past_key_values=before, use_cache=True)
    return _stacked(model, kept)


@contextmanager
def _kept(model: Model, keep: Keep, names: Collection[str] | None = None) -> Iterator[None]:
    """Inference in which `keep` is given every tensor, or those of these names, of every layer of every attention; the
    hooks are removed again whatever happens.
    """

    def seen(attention: str, name: str, tensor: Tensor, hook: object) -> None:
        keep(attention, name, tensor)

    hooks = [
        (f"{attention.blocks}.{layer}.{hook}", partial(seen, attention.name, name))
        for attention in model.config.family.attentions
        for layer in range(layers_of(attention, model.config))
        for name, hook in attention.hooks.items()
        if names is None or name in names
    ]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        yield


def _stacked(model: Model, kept: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Layers side by side, the stream in one piece, keys and values repeated for the heads that share them."""
    kept["resid"] = [*kept.pop("resid_pre"), kept.pop("resid_post")[-1]]
    states = {name: torch.stack(layers, dim=1).cpu() for name, layers in kept.items()}
    heads = model.config.n_heads
    shared = {name: formulas.share_heads(states[name].unsqueeze(-2), heads).squeeze(-2) for name in SHARED}
    return states | shared


def _whole(stack: Weights, kept: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """Stacked over layers, heads first, keys and values repeated for the heads that share them, repairs made."""
    tensors = {name: torch.stack(list(layers)) for name, layers in kept.items()}
    tensors |= {name: tensors[name].transpose(1, 2) for name in HEAD_VECTORS}
    heads = stack.config.n_heads
    tensors |= {name: formulas.share_heads(tensors[name], heads) for name in SHARED}
    if "scores" in stack.attention.lies:
        bias = forward.position_bias(stack, tensors["q"].shape[-2])
        bias = None if bias is None else bias.cpu()
        layers = zip(stack.blocks, tensors["q"], tensors["k"], strict=True)
        tensors["scores"] = torch.stack([forward.score(stack, block, q, k, bias) for block, q, k in layers])
    if "resid_mid" not in tensors:
        tensors["resid_mid"] = tensors["resid_pre"] + tensors["attn_out"]
    return tensors


def check_hooks(model: Model, ids: Sequence[int]) -> None:
    """Pattern rows sum to 1; a causal attention does not look ahead; an edit of one head's z reaches the logits.

    Asked of every attention on one short text. Raises ModelError naming the property that fails.
    """
    family = model.config.family
    target = [model.config.start_token or 0, *ids[:-1]] if family.kind == "encoder-decoder" else None
    reading = read(model, ids, target)
    for attention in family.attentions:
        pattern = reading.tensors[attention.name]["pattern"]
        sums = pattern.sum(-1)
        problems = {
            "the rows of its attention pattern do not sum to 1": not torch.allclose(
                sums, torch.ones_like(sums), rtol=0, atol=1e-5
            ),
            "a position looks ahead at a later token": attention.causal
            and (bool((pattern.triu(1) != 0).any()) or not _looks_back_only(model, ids, target, reading.logits)),
            "an edit of a head's z does not change its logits": not _edit_is_felt(
                model, attention, ids, target, reading
            ),
        }
        for problem, there in problems.items():
            if there:
                step = f"load an unmodified {family.name}"
                raise refuse(model.origin.location, f"its hooks fail the self-check: {problem}", step)


def _looks_back_only(model: Model, ids: Sequence[int], target: Sequence[int] | None, logits: Tensor) -> bool:
    """True when another last token changes nothing before it."""
    changed = [*(target or ids)]
    changed[-1] = (changed[-1] + 1) % model.config.d_vocab
    with torch.inference_mode():
        other = run(model, [changed]) if target is None else run(model, [ids], [changed])
    earlier, as_before = other[0, :-1].cpu(), logits[:-1]
    scale = float(as_before.abs().max()) if as_before.numel() else 1.0
    return bool(torch.allclose(earlier, as_before, rtol=0, atol=1e-5 * max(scale, 1e-30)))


def _edit_is_felt(
    model: Model, attention: Attention, ids: Sequence[int], target: Sequence[int] | None, reading: HookedRun
) -> bool:
    """True when moving the z of one head moves the logits; heads whose W_O writes nothing cannot tell."""
    blocks = reading.stacks[attention.name].blocks
    writers = [
        (layer, head) for layer, block in enumerate(blocks) for head, w in enumerate(block.w_o) if (w != 0).any()
    ]

    def edit(head: int, z: Tensor, hook: object) -> Tensor:
        moved = z.clone()
        push = torch.linspace(1.0, 2.0, z.shape[-1], dtype=z.dtype, device=z.device)
        moved[:, :, head] += push * (1 + z.abs().max())
        return moved

    targets = None if target is None else [target]
    for layer, head in reversed(writers):
        where = f"{attention.blocks}.{layer}.{attention.hooks['z']}"
        with torch.inference_mode(), model.bridge.hooks(fwd_hooks=[(where, partial(edit, head))]):
            if not torch.equal(run(model, [ids], targets)[0].cpu(), reading.logits):
                return True
    return not writers
