"""One run of TransformerLens's bridge, read through its hooks: every attention of a text, or one
position of many texts.

The bridge is in raw mode (Hugging Face's numbers). The table of architectures states which hook
holds which quantity; hooks that hold another one are replaced. `check_hooks` tests three properties
of each newly loaded model. `probe.model.trace` turns the results into records.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model import blocks
from probe.model.architectures.family import QUANTITIES_OF_HEADS, Attention
from probe.model.model import ONE_THREAD, Config, Model, refuse
from probe.model.weights import Weights, layers_of, read_stacks

if TYPE_CHECKING:
    from transformers import Cache

# Vectors with axes position, head in a hook, and head, position in a trace.
HEAD_VECTORS = ("q", "k", "v", "z")
SHARED = ("k", "v")
# How close to 1 the rows of a pattern sum: in bfloat16 each entry is rounded to 2^-8.
SUMS_WITHIN = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 2**-8}
# The part of a tensor that is recorded; called with the tensor's name.
Select = Callable[[str, Tensor], Tensor]
# A hook point of the bridge, and the function that returns its new tensor.
Hook = tuple[str, Callable[..., Tensor | None]]
AT_ONE_POSITION = (*HEAD_VECTORS, "pattern", "mlp_out", "resid_pre", "resid_post")


@dataclass(frozen=True)
class HookedRun:
    """The tensors and logits of one run of a model through TransformerLens' bridge.

    tensors: for the self-attention of each stack and the cross-attention, its tensors by their
        names in the certificate ("q", "pattern", ...), stacked over layers
    stacks: the weights of each stack
    logits: `pos d_vocab`; from a random head if the checkpoint has no language-model head
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    stacks: Mapping[str, Weights]
    logits: Tensor


def read(model: Model, ids: Sequence[int], target: Sequence[int] | None = None) -> HookedRun:
    """Every tensor of every attention, on the CPU, in one run of `ids` (and of `target` through
    a decoder).
    """
    [whole] = read_alike(model, [ids], None if target is None else [target])
    return whole


def read_alike(
    model: Model, rows: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None
) -> list[HookedRun]:
    """`read` of texts with equal numbers of tokens, in one run."""
    recorded, logits = record_texts(model, rows, targets)
    stacks = read_stacks(model.weights, model.config, model.modules)
    runs = []
    for row in range(len(rows)):
        tensors = {}
        for name, stack in stacks.items():
            of_row = {key: [part[row] for part in parts] for key, parts in recorded[name].items()}
            tensors[name] = _stack_text(stack, of_row)
        runs.append(HookedRun(tensors, stacks, logits[row]))
    return runs


def record_texts(
    model: Model, rows: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None
) -> tuple[dict[str, dict[str, list[Tensor]]], Tensor]:
    """The hooks' tensors of some texts, by attention and name, one for each layer, and their logits
    `row pos d_vocab`; on the CPU.
    """
    with recording(model, lambda name, tensor: tensor.cpu()) as recorded:
        logits = run(model, rows, targets)
    return recorded, logits.detach().cpu()


def run(
    model: Model,
    rows: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]] | None = None,
    *,
    head: bool = True,
) -> Tensor:
    """Logits of one forward of the bridge on texts padded on the right. `-> row pos d_vocab`

    head: whether to run the unembedding, which takes much of the time for many sentences; without
        it, the result is the last vectors, `row pos d_model`

    Numbers after a text's end are meaningless.
    """
    ids = pad_rows(model, rows)
    # The mask follows from lengths: a mask from ids would drop a padding token that is part of a
    # text. A causal model needs no mask, because padding comes after everything that is read. With
    # a mask, in layers with a sliding window, a padded position would see nothing and become NaN.
    lengths = [ids.shape[1] if model.config.causal else len(row) for row in rows]
    ends = torch.tensor(lengths, device=model.device)
    mask = (torch.arange(ids.shape[1], device=model.device) < ends[:, None]).long()
    with ONE_THREAD:
        if targets is not None:
            return model.bridge(ids, attention_mask=mask, decoder_input=pad_rows(model, targets))
        if head:
            return model.bridge(ids, attention_mask=mask)
        base = model.bridge.original_model.base_model
        # Without a cache, TransformerLens multiplies OLMo's float32 patterns with bfloat16 values,
        # and fails.
        use_cache = model.dtype is torch.bfloat16
        return base(ids, attention_mask=mask, use_cache=use_cache).last_hidden_state


def _run_cached(model: Model, ids: Sequence[int], cache: "Cache", *, start: int) -> None:
    """One forward of tokens that follow the `start` ones in `cache`, to which their keys and values
    are added.
    """
    tokens = torch.tensor([[*ids]], device=model.device)
    positions = {}
    if model.config.positions.kind == "rotary":  # Bamba's own count begins anew at every call
        positions["position_ids"] = torch.arange(start, start + len(ids), device=model.device)[None]
    base = model.bridge.original_model.base_model
    base(tokens, past_key_values=cache, use_cache=True, **positions)


def pad_rows(model: Model, rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as one tensor, padded on the right. `-> row pos`"""
    width = max(map(len, rows))
    pad = model.tokenizer.pad_token_id or 0
    padded = [[*row, *[pad] * (width - len(row))] for row in rows]
    return torch.tensor(padded, device=model.device)


def read_at(
    model: Model,
    rows: Sequence[Sequence[int]],
    at: Sequence[int],
    before: Sequence[int] | None = None,
    later: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """The quantities of `TargetStates` at one position of each text, from one run of a model
    with one stack.

    resid: `row depth d_model`
    mlp_out: `row layer d_model`
    q, k, v, z: `row layer head d_head`
    pattern: `row layer head key_pos`
    attn_out: `row layer d_model`, only of a hybrid
    before: `row d_model`, the stream after the last block at the positions `before`, if given
    later_z: `row layer head d_head`, z at the positions `later`, if given
    """
    row = torch.arange(len(rows), device=model.device)
    pos = torch.tensor(at, device=model.device)
    elsewhere = {}
    later_z = []

    def select(name: str, tensor: Tensor) -> Tensor:
        if name == "resid_post" and before is not None:
            elsewhere["before"] = tensor[row, before].cpu()  # the last block's remains
        if name == "z" and later is not None:
            later_z.append(tensor[row, later].clone())
        # A pattern is `row head query_pos key_pos`, everything else `row pos ...`.
        return tensor[row, :, pos] if name == "pattern" else tensor[row, pos]

    with recording(model, select, _at_one_position(model)) as recorded:
        run(model, rows, head=False)
    if later is not None:
        elsewhere["later_z"] = torch.stack(_every_layer(model.config, "z", later_z), dim=1).cpu()
    return _stack_layers(model, recorded[""]) | elsewhere


def read_last(
    model: Model, ids: Sequence[int], cache: "Cache", values: Tensor, *, start: int
) -> dict[str, Tensor]:
    """`read_at` of the last of some tokens of one text in a causal model. They follow the
    `start` tokens in `cache`.

    values: `layer head pos d_head`, to which V of all these tokens is written

    Their keys and values are added to the cache.
    """
    with_heads = [layer for layer in range(len(values)) if model.config.has_heads(layer)]
    layers = iter([values[layer] for layer in with_heads])

    def select(name: str, tensor: Tensor) -> Tensor:
        if name == "v":
            heads_first = tensor[0].transpose(0, 1)
            next(layers)[:] = formulas.repeat_kv(heads_first, model.config.n_heads)
        return tensor[:, :, -1] if name == "pattern" else tensor[:, -1]

    with recording(model, select, _at_one_position(model)) as recorded:
        _run_cached(model, ids, cache, start=start)
    return _stack_layers(model, recorded[""])


def _at_one_position(model: Model) -> tuple[str, ...]:
    """The quantities at one position; a hybrid also has its mixers' writes."""
    return (*AT_ONE_POSITION, "attn_out") if model.config.mixers else AT_ONE_POSITION


@contextmanager
def hooked(model: Model, hooks: Sequence[Hook]) -> Iterator[None]:
    """Inference with functions on hook points of the bridge, one thread at a time. The hooks are
    always removed again.
    """
    with ONE_THREAD, torch.inference_mode(), model.bridge.hooks(fwd_hooks=[*hooks]):
        yield


@contextmanager
def recording(
    model: Model,
    select: Select,
    names: Collection[str] | None = None,
    edits: Sequence[Hook] = (),
) -> Iterator[dict[str, dict[str, list[Tensor]]]]:
    """Inference that records `select` of every tensor of every layer, by attention and name.

    names: the quantities to record; all by default
    edits: functions that run first
    """
    recorded: dict[str, dict[str, list[Tensor]]] = {}
    hooks = [*edits]

    gated = model.config.family.gated_attention

    def record(attention: str, name: str, scale: float, tensor: Tensor, hook: object) -> None:
        if name == "q" and gated:  # every other row gates z
            tensor = tensor[..., ::2, :]
        if scale != 1:
            tensor = tensor * scale
        recorded[attention][name].append(select(name, tensor).clone())

    for attention in model.config.family.attentions:
        selection = [name for name in attention.hooks if names is None or name in names]
        recorded[attention.name] = {name: [] for name in selection}
        for layer in range(layers_of(attention, model.config)):
            has_heads = model.config.has_heads(layer)
            for name in selection:
                hook = attention.hook_in(name, has_heads=has_heads)
                if hook:
                    point = f"{attention.blocks}.{layer}.{hook}"
                    scale = model.config.hook_scale(name, layer)
                    hooks.append((point, partial(record, attention.name, name, scale)))
    with hooked(model, hooks):
        yield recorded


def _stack_layers(model: Model, recorded: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """The recorded tensors stacked over layers, the stream as one tensor, keys and values
    repeated for the heads that share them.
    """
    recorded["resid"] = [*recorded.pop("resid_pre"), recorded.pop("resid_post")[-1]]
    states = {
        name: torch.stack(_every_layer(model.config, name, layers), dim=1).cpu()
        for name, layers in recorded.items()
    }
    for name in SHARED:
        one_position = states[name].unsqueeze(-2)
        states[name] = formulas.repeat_kv(one_position, model.config.n_heads).squeeze(-2)
    return states


def _every_layer(config: Config, name: str, recorded: Sequence[Tensor]) -> list[Tensor]:
    """A quantity of every layer; quantities of heads are 0 in layers without heads."""
    if name not in QUANTITIES_OF_HEADS or not config.mixers:
        return list(recorded)
    of_attention = iter(recorded)
    zeros = torch.zeros_like(recorded[0])
    return [zeros if mixes else next(of_attention) for mixes in config.mixers]


def _stack_text(stack: Weights, recorded: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """The recorded tensors stacked over layers, heads first, keys and values repeated for the
    heads that share them, unreliable hooks replaced.
    """
    config = stack.config
    tensors = {
        name: torch.stack(_every_layer(config, name, layers)) for name, layers in recorded.items()
    }
    for name in HEAD_VECTORS:
        tensors[name] = tensors[name].transpose(1, 2)
    for name in SHARED:
        tensors[name] = formulas.repeat_kv(tensors[name], stack.config.n_heads)
    if "scores" in stack.attention.unreliable_hooks:
        terms = blocks.position_terms(stack, tensors["k"].shape[-2])
        layers = zip(stack.blocks, tensors["q"], tensors["k"], strict=True)
        scores = [
            blocks.score(stack, block, q.to(stack.device), k.to(stack.device), terms)
            for block, q, k in layers
        ]
        tensors["scores"] = torch.stack(scores).cpu()
    if "resid_mid" not in tensors:
        tensors["resid_mid"] = tensors["resid_pre"] + tensors["attn_out"]
    return tensors


def check_hooks(model: Model, ids: Sequence[int]) -> None:
    """Tests three properties of every attention on one short text. Raises ModelError with the
    name of the property that fails.

    Pattern rows sum to 1; a causal attention does not look ahead; an
    edit of one head's z changes the logits.
    """
    family = model.config.family
    target = None
    if family.kind == "encoder-decoder":
        target = [model.config.start_token or 0, *ids[:-1]]
    whole = read(model, ids, target)
    for attention in family.attentions:
        if problem := _problem_of(model, attention, ids, target, whole):
            problem = f"its hooks fail the self-check: {problem}"
            raise refuse(model.origin.location, problem, f"load an unmodified {family.name}")


def _problem_of(
    model: Model,
    attention: Attention,
    ids: Sequence[int],
    target: Sequence[int] | None,
    whole: HookedRun,
) -> str:
    """The property that this attention lacks; empty if it has all three."""
    pattern = whole.tensors[attention.name]["pattern"]
    sums = pattern.double().sum(-1)
    for layer, block in enumerate(whole.stacks[attention.name].blocks):
        if block.mixer is not None:  # there is no pattern
            sums[layer] = 1
    within = SUMS_WITHIN[pattern.dtype]
    if not torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=within):
        return "the rows of its attention pattern do not sum to 1"
    if attention.causal:
        ahead = bool((pattern.triu(1) != 0).any())
        if ahead or not _looks_back_only(model, ids, target, whole.logits):
            return "a position looks ahead at a later token"
    if not _edit_is_felt(model, attention, ids, target, whole):
        return "an edit of a head's z does not change its logits"
    return ""


def _looks_back_only(
    model: Model, ids: Sequence[int], target: Sequence[int] | None, logits: Tensor
) -> bool:
    """Whether another last token changes nothing before it."""
    changed = [*(target or ids)]
    changed[-1] = (changed[-1] + 1) % model.config.d_vocab
    with torch.inference_mode():
        result = run(model, [changed]) if target is None else run(model, [ids], [changed])
    earlier = result[0, :-1].cpu()
    as_before = logits[:-1]
    scale = float(as_before.abs().max()) if as_before.numel() else 1.0
    return bool(torch.allclose(earlier, as_before, rtol=0, atol=1e-5 * max(scale, 1e-30)))


def _edit_is_felt(
    model: Model,
    attention: Attention,
    ids: Sequence[int],
    target: Sequence[int] | None,
    whole: HookedRun,
) -> bool:
    """Whether a change of some head's z changes the logits; True if no head's W_O writes
    anything.
    """
    writers = [
        (layer, head)
        for layer, block in enumerate(whole.stacks[attention.name].blocks)
        for head, w_o in enumerate(block.w_o)
        if block.mixer is None and (w_o != 0).any()
    ]

    def edit(head: int, z: Tensor, hook: object) -> Tensor:
        edited = z.clone()
        # All coordinates differ, because W_O might map a constant to zero.
        push = torch.linspace(1.0, 2.0, z.shape[-1], dtype=z.dtype, device=z.device)
        edited[:, :, head] += push * (1 + z.abs().max())
        return edited

    targets = None if target is None else [target]
    for layer, head in reversed(writers):
        point = f"{attention.blocks}.{layer}.{attention.hooks['z']}"
        with hooked(model, [(point, partial(edit, head))]):
            if not torch.equal(run(model, [ids], targets)[0].cpu(), whole.logits):
                return True
    return not writers
