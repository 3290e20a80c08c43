"""What a hooked model really computed: everything about one text, only the target positions of
many, or one position of a long text.

One run of TransformerLens's bridge in raw mode (Hugging Face's own numbers), every attention read
by the table, hooks that hold something else replaced; given as the records of
`probe.model.records`. `check_hooks` asks a freshly loaded model three questions before anybody sees
it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor
from torch.nn import functional

from probe.errors import InputError
from probe.model import attention as formulas
from probe.model import forward
from probe.model.architectures.family import Attention
from probe.model.model import Model, refuse
from probe.model.records import CrossTrace, PairTrace, TargetStates, TargetTrace, Trace
from probe.model.tokens import (
    Tokens,
    batch_of_like_length,
    in_order,
    position,
    target_tokens,
    tokenize,
)
from probe.model.weights import Weights, layers_of, read_stacks, read_weights

if TYPE_CHECKING:
    from transformers import Cache

CHUNK = (
    64  # tokens of a long text that are run together: of a pattern only so many rows are ever held
)
HEAD_VECTORS = (
    "q",
    "k",
    "v",
    "z",
)  # by position and head in a hook, by head and position in a trace
SHARED = ("k", "v")
AT_ONE_PLACE = (*HEAD_VECTORS, "pattern", "mlp_out", "resid_pre", "resid_post")


@dataclass(frozen=True)
class HookedRun:
    """One run: the tensors of each attention by its name in the table, stacked over layers; its
    weights; the logits.

    `logits: pos d_vocab` are those of the head in the bridge, which is a random one when the
    checkpoint has none.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    stacks: Mapping[str, Weights]
    logits: Tensor


def read(model: Model, ids: Sequence[int], target: Sequence[int] | None = None) -> HookedRun:
    """One run of `ids` (and of `target` through a decoder): every tensor of every attention, on the
    CPU."""
    with _kept(model, lambda name, tensor: tensor[0].cpu()) as kept:
        logits = run(model, [ids], None if target is None else [target])
    stacks = read_stacks(model.weights, model.config)
    tensors = {name: _whole(stack, kept[name]) for name, stack in stacks.items()}
    return HookedRun(tensors, stacks, logits[0].detach().cpu())


def run(
    model: Model,
    rows: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]] | None = None,
    *,
    head: bool = True,
) -> Tensor:
    """One forward of the bridge on texts filled up on the right, masked by their lengths. `-> row
    pos d_vocab`

    A mask made from ids would drop a padding token that is part of a text. Behind a text's end the
    numbers mean nothing. A decoder needs no mask: what is filled in comes after everything that is
    read; and with one, where layers look back only so far, what is filled in would see nothing at
    all and become NaN. Without `head` the unembedding, a good part of the work for many sentences,
    is left out, and the last vectors come back: `row pos d_model`.
    """
    ids = filled(model, rows)
    ends = [ids.shape[1] if model.config.causal else len(row) for row in rows]
    lengths = torch.tensor(ends, device=model.device)
    mask = (torch.arange(ids.shape[1], device=model.device) < lengths[:, None]).long()
    if targets is not None:
        return model.bridge(ids, attention_mask=mask, decoder_input=filled(model, targets))
    if head:
        return model.bridge(ids, attention_mask=mask)
    return model.bridge.original_model.base_model(
        ids, attention_mask=mask, use_cache=False
    ).last_hidden_state


def filled(model: Model, rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as one tensor, the shorter ones filled up on the right. `-> row pos`"""
    width, fill = max(map(len, rows)), model.tokenizer.pad_token_id or 0
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], device=model.device)


def read_at(model: Model, rows: Sequence[Sequence[int]], at: Sequence[int]) -> dict[str, Tensor]:
    """What `TargetStates` holds of one position of each text, read in one run of a model with one
    stack.

    `resid: row depth d_model` · `mlp_out: row layer d_model` · `q k v z: row layer head d_head` ·
    `pattern: row layer head key_pos`.
    """
    row, place = torch.arange(len(rows), device=model.device), torch.tensor(at, device=model.device)

    def select(name: str, tensor: Tensor) -> Tensor:
        return tensor[row, :, place] if name == "pattern" else tensor[row, place]

    with _kept(model, select, AT_ONE_PLACE) as kept:
        run(model, rows, head=False)
    return _stacked(model, kept[""])


def read_last(
    model: Model, ids: Sequence[int], before: "Cache", values: Tensor
) -> dict[str, Tensor]:
    """`read_at` of the last of some tokens of one text in a causal model, which follow those in the
    cache `before`.

    The keys and values of these tokens are added to the cache; V of all of them goes into `values:
    layer head pos d_head`.
    """
    layers = iter(values)

    def select(name: str, tensor: Tensor) -> Tensor:
        if name == "v":
            next(layers)[:] = formulas.repeat_kv(tensor[0].transpose(0, 1), model.config.n_heads)
        return tensor[:, :, -1] if name == "pattern" else tensor[:, -1]

    with _kept(model, select, AT_ONE_PLACE) as kept:
        rows = torch.tensor([list(ids)], device=model.device)
        model.bridge.original_model.base_model(rows, past_key_values=before, use_cache=True)
    return _stacked(model, kept[""])


@contextmanager
def _kept(
    model: Model, select: Callable[[str, Tensor], Tensor], names: Collection[str] | None = None
) -> Iterator[dict[str, dict[str, list[Tensor]]]]:
    """Inference that keeps what `select` takes of every tensor, or of those of these names, of
    every layer: by attention and name. The hooks are removed again whatever happens.
    """
    kept: dict[str, dict[str, list[Tensor]]] = {}
    hooks = []

    def keep(attention: str, name: str, tensor: Tensor, hook: object) -> None:
        kept[attention][name].append(select(name, tensor).clone())

    for attention in model.config.family.attentions:
        kept[attention.name] = {
            name: [] for name in attention.hooks if names is None or name in names
        }
        for name in kept[attention.name]:
            for layer in range(layers_of(attention, model.config)):
                where = f"{attention.blocks}.{layer}.{attention.hooks[name]}"
                hooks.append((where, partial(keep, attention.name, name)))
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        yield kept


def _stacked(model: Model, kept: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Layers side by side, the stream in one piece, keys and values repeated for the heads that
    share them."""
    kept["resid"] = [*kept.pop("resid_pre"), kept.pop("resid_post")[-1]]
    states = {name: torch.stack(layers, dim=1).cpu() for name, layers in kept.items()}
    for name in SHARED:
        states[name] = formulas.repeat_kv(states[name].unsqueeze(-2), model.config.n_heads).squeeze(
            -2
        )
    return states


def _whole(stack: Weights, kept: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """Stacked over layers, heads first, keys and values repeated for the heads that share them,
    unreliable hooks replaced."""
    tensors = {name: torch.stack(list(layers)) for name, layers in kept.items()}
    tensors |= {name: tensors[name].transpose(1, 2) for name in HEAD_VECTORS}
    tensors |= {name: formulas.repeat_kv(tensors[name], stack.config.n_heads) for name in SHARED}
    if "scores" in stack.attention.unreliable_hooks:
        bias = forward.position_bias(stack, tensors["q"].shape[-2])
        layers = zip(stack.blocks, tensors["q"], tensors["k"], strict=True)
        tensors["scores"] = torch.stack(
            [forward.score(stack, block, q, k, bias) for block, q, k in layers]
        )
    if "resid_mid" not in tensors:
        tensors["resid_mid"] = tensors["resid_pre"] + tensors["attn_out"]
    return tensors


def check_hooks(model: Model, ids: Sequence[int]) -> None:
    """Pattern rows sum to 1; a causal attention does not look ahead; an edit of one head's z
    reaches the logits.

    Asked of every attention on one short text. Raises ModelError naming the property that fails.
    """
    family = model.config.family
    target = (
        [model.config.start_token or 0, *ids[:-1]] if family.kind == "encoder-decoder" else None
    )
    reading = read(model, ids, target)
    for attention in family.attentions:
        pattern, problem = reading.tensors[attention.name]["pattern"], ""
        sums, ahead = pattern.sum(-1), bool((pattern.triu(1) != 0).any())
        if not torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-5):
            problem = "the rows of its attention pattern do not sum to 1"
        elif attention.causal and (
            ahead or not _looks_back_only(model, ids, target, reading.logits)
        ):
            problem = "a position looks ahead at a later token"
        elif not _edit_is_felt(model, attention, ids, target, reading):
            problem = "an edit of a head's z does not change its logits"
        if problem:
            step = f"load an unmodified {family.name}"
            raise refuse(model.origin.location, f"its hooks fail the self-check: {problem}", step)


def _looks_back_only(
    model: Model, ids: Sequence[int], target: Sequence[int] | None, logits: Tensor
) -> bool:
    """True when another last token changes nothing before it."""
    changed = [*(target or ids)]
    changed[-1] = (changed[-1] + 1) % model.config.d_vocab
    with torch.inference_mode():
        other = run(model, [changed]) if target is None else run(model, [ids], [changed])
    earlier, as_before = other[0, :-1].cpu(), logits[:-1]
    scale = float(as_before.abs().max()) if as_before.numel() else 1.0
    return bool(torch.allclose(earlier, as_before, rtol=0, atol=1e-5 * max(scale, 1e-30)))


def _edit_is_felt(
    model: Model,
    attention: Attention,
    ids: Sequence[int],
    target: Sequence[int] | None,
    reading: HookedRun,
) -> bool:
    """True when moving the z of one head moves the logits; heads whose W_O writes nothing cannot
    tell."""
    blocks = reading.stacks[attention.name].blocks
    writers = [
        (layer, head)
        for layer, one in enumerate(blocks)
        for head, w in enumerate(one.w_o)
        if (w != 0).any()
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


@overload
def trace(model: Model, text: str) -> Trace: ...
@overload
def trace(model: Model, text: str, target: str) -> PairTrace: ...
def trace(model: Model, text: str, target: str | None = None) -> Trace | PairTrace:
    """Run `text` through the hooked model once and keep everything; an encoder-decoder also reads
    `target`.

    Raises InputError for an empty or over-long text, and where a target is missing or cannot be
    used.
    """
    if (target is None) == (model.config.start_token is not None):
        problem = "it has no decoder for a target; give one text only"
        problem = (
            "it is an encoder-decoder; give trace(model, source, target)"
            if target is None
            else problem
        )
        raise InputError(f"Tracing a text through {model.name}: {problem}.")
    tokens = tokenize(model, text)
    given = None if target is None else target_tokens(model, target)
    reading = read(model, tokens.ids, None if given is None else given.ids)

    def side(name: str, read: Tokens, logits: Tensor | None = None) -> Trace:
        return Trace(
            read, model.name, reading.stacks[name], head_output=logits, **reading.tensors[name]
        )

    if given is None:
        return side("", tokens, reading.logits if model.config.has_head else None)
    stack, tensors = reading.stacks["cross"], reading.tensors["cross"]
    cross = CrossTrace(given, model.name, stack, source=tokens, **tensors)
    return PairTrace(
        tokens, given, side("encoder", tokens), side("decoder", given, reading.logits), cross
    )


def trace_target(model: Model, tokens: Tokens, at: int | str) -> TargetTrace:
    """One text kept to what is read at position `at`, or at a word, and every head's values that it
    may look at.

    What a full trace of a long text holds grows with the square of its length; in a causal model
    this grows with its length: the text is run up to `at` in chunks, each against the keys and
    values of those before it, which changes no number. Raises InputError for a position that the
    text does not have, UnsupportedModel for an encoder-decoder.
    """
    weights, at = read_weights(model), position(tokens, at)
    if not 0 <= at < len(tokens):
        step = f"choose one from 0 to {len(tokens) - 1}"
        raise InputError(
            f"Tracing one position of a text of {len(tokens)} tokens: got position {at}; {step}."
        )
    if not weights.causal:
        reading = read(model, tokens.ids).tensors[""]
        states = at_position(reading, at)
        return TargetTrace(
            tokens,
            weights,
            at,
            with_embeddings(weights, states, [tokens.ids[at]], [at]),
            reading["v"],
        )
    from transformers import DynamicCache

    config, ids, before = model.config, tokens.ids[: at + 1], DynamicCache()
    shape = (config.n_layers, config.n_heads, len(ids), config.d_head)
    v = torch.empty(shape, dtype=model.dtype, device=model.device)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        states = read_last(model, chunk, before, v[:, :, start : start + len(chunk)])
    return TargetTrace(
        tokens, weights, at, with_embeddings(weights, states, [ids[at]], [at]), v.cpu()
    )


def target_states(
    model: Model, sentences: Sequence[Tokens], targets: Sequence[int]
) -> TargetStates:
    """Read many tokenised sentences, each at its own target position, texts of about one length
    together.

    Only tokens up to the target are run in a causal model, where no later token can change what is
    read there; whole texts in one that reads both ways. Raises UnsupportedModel for an
    encoder-decoder.
    """
    weights = read_weights(model)
    placed = list(zip(sentences, targets, strict=True))
    rows = [tokens.ids[: at + 1] if weights.causal else tokens.ids for tokens, at in placed]
    width, states = max(map(len, rows)), defaultdict(list)
    batches = batch_of_like_length([len(row) for row in rows])
    for batch in batches:
        found = read_at(model, [rows[row] for row in batch], [targets[row] for row in batch])
        found["pattern"] = functional.pad(found["pattern"], (0, width - found["pattern"].shape[-1]))
        for name, part in found.items():
            states[name].append(part)
    order = in_order(batches)
    together = {name: torch.cat(parts)[order] for name, parts in states.items()}
    return with_embeddings(weights, together, [tokens.ids[at] for tokens, at in placed], targets)


def at_position(tensors: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
    """The tensors of one whole text at position `at`, as `TargetStates` holds those of a single
    text."""
    states = {
        name: tensors[name][None, ..., at, :] for name in (*HEAD_VECTORS, "pattern", "mlp_out")
    }
    return states | {
        "resid": torch.cat([tensors["resid_pre"][:, at], tensors["resid_post"][-1:, at]])[None]
    }


def with_embeddings(
    weights: Weights, read: Mapping[str, Tensor], ids: Sequence[int], targets: Sequence[int]
) -> TargetStates:
    """What was read at the targets, with their embeddings; position vectors are 0 where a family
    has none."""
    last, target = torch.tensor(ids), torch.tensor(targets)
    parts = forward.embedding_parts(weights, last.to(weights.device), target.to(weights.device))
    token = parts["token embedding"].cpu()
    place = parts.get("position embedding", torch.zeros_like(token)).cpu()
    return TargetStates(
        last, target, token, place, **{name: whole.cpu() for name, whole in read.items()}
    )
