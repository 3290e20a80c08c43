"""What a hooked model really computed: everything about one text, only the target positions of many, or one position of a long text.

Read through TransformerLens's bridge in raw mode (Hugging Face's own numbers), as the records of `probe.model.records`. Sentences are
batched by equal length, so nothing is ever padded and no attention mask can be wrong.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor
from torch.nn import functional

from probe.errors import InputError
from probe.model.architectures import WHOLE, require_whole
from probe.model.general import General, embeddings, read_general
from probe.model.hooks import read, read_at
from probe.model.load import Model
from probe.model.pairs import PairTrace, trace_pair
from probe.model.records import HEAD_VECTORS, TargetStates, TargetTrace, Trace
from probe.model.replay import Weights, read_weights
from probe.model.tokens import Tokens, batch_by_length, batch_of_like_length, in_order, tokenize

if TYPE_CHECKING:
    from transformers import Cache
HOOKS = {
    "resid_pre": "hook_resid_pre",
    "x": "ln1.hook_out",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "scores": "attn.hook_attn_scores",
    "pattern": "attn.hook_pattern",
    "z": "attn.hook_z",
    "attn_out": "hook_attn_out",
    "resid_mid": "hook_resid_mid",
    "mlp_out": "hook_mlp_out",
    "resid_post": "hook_resid_post",
}
STACKED = (*HEAD_VECTORS, "pattern", "mlp_out")
CHUNK = 64
Keep = Callable[[str, Tensor], None]


@overload
def trace(model: Model, text: str) -> Trace: ...
@overload
def trace(model: Model, text: str, target: str) -> PairTrace: ...
def trace(model: Model, text: str, target: str | None = None) -> Trace | PairTrace:
    """Run `text` through the hooked model once and keep everything; an encoder-decoder also reads `target`.

    Raises InputError for an empty or over-long text, and where a target is missing or cannot be used.
    """
    if (target is None) == (model.config.start_token is not None):
        found = "it is an encoder-decoder; give trace(model, source, target)"
        found = found if target is None else "it has no decoder for a target; give one text only"
        raise InputError(f"Tracing a text through {model.name}: {found}.")
    if target is not None:
        return trace_pair(model, text, target)
    if model.config.architecture != WHOLE:
        return _trace_family(model, text)
    tokens = tokenize(model, text)
    kept: dict[str, list[Tensor]] = {name: [] for name in HOOKS}

    def keep(name: str, tensor: Tensor) -> None:
        kept[name].append(_heads_first(name, tensor)[0].detach().cpu().clone())

    logits = run_hooked(model, [tokens.ids], keep, names=tuple(HOOKS))
    return Trace(
        tokens=tokens,
        model_name=model.name,
        stack=read_weights(model),
        head_output=logits[0].detach().cpu(),
        **{name: torch.stack(layers) for name, layers in kept.items()},
    )


def _trace_family(model: Model, text: str) -> Trace:
    """The same record for an encoder or a decoder of another family, with its lying hooks replaced."""
    tokens = tokenize(model, text)
    reading = read(model, tokens.ids)
    return Trace(
        tokens=tokens,
        model_name=model.name,
        stack=read_general(model),
        head_output=reading.logits if model.config.has_head else None,
        **reading.tensors[""],
    )


def trace_target(model: Model, tokens: Tokens, at: int) -> TargetTrace:
    """Run one text up to position `at` and keep what is read there, and every head's values of all positions up to it.

    What a full trace of a long text holds grows with the square of its length; this grows with its length: the text is run in
    chunks, each against the keys and values of those before it, which in a causal model changes no number.
    Raises InputError for a position that the text does not have.
    """
    require_whole(model.config.architecture, "the trace of one position")
    if not 0 <= at < len(tokens):
        step = f"choose one from 0 to {len(tokens) - 1}"
        raise InputError(f"Tracing one position of a text of {len(tokens)} tokens: got position {at}; {step}.")
    from transformers import DynamicCache

    config, ids, before = model.config, tokens.ids[: at + 1], DynamicCache()
    shape = (config.n_layers, config.n_heads, len(ids), config.d_head)
    v = torch.empty(shape, dtype=model.dtype, device=model.device)
    for start in range(0, len(ids), CHUNK):  # the square of a pattern is never held, only CHUNK of its rows
        chunk = ids[start : start + CHUNK]
        read = _read_last(model, [chunk], before, v[:, :, start : start + len(chunk)])
    return TargetTrace(
        tokens, read_weights(model), at, with_embeddings(read_weights(model), read, [ids[at]], [at]), v.cpu()
    )


def target_states(model: Model, sentences: Sequence[Tokens], targets: Sequence[int]) -> TargetStates:
    """Read many tokenised sentences, each at its own target position, in batches of equal length.

    Only tokens up to the target are run in a causal model, where no later token can change what is read there; whole texts in one
    that reads both ways. Raises UnsupportedModel for an encoder-decoder.
    """
    if model.config.architecture != WHOLE:
        return _family_states(model, sentences, targets)
    states: dict[str, Tensor] = {}
    for batch in batch_by_length([target + 1 for target in targets]):
        rows = [sentences[index].ids[: targets[index] + 1] for index in batch]
        for name, part in _read_last(model, rows).items():
            size = max(targets) + 1 if name == "pattern" else part.shape[-1]
            whole = states.setdefault(name, part.new_zeros(len(sentences), *part.shape[1:-1], size))
            whole[batch, ..., : part.shape[-1]] = part
    last = [tokens.ids[target] for tokens, target in zip(sentences, targets, strict=True)]
    return with_embeddings(read_weights(model), states, last, targets)


def _family_states(model: Model, sentences: Sequence[Tokens], targets: Sequence[int]) -> TargetStates:
    """The same for other families, texts of about one length together, filled up behind their end."""
    weights = read_general(model)
    rows = [
        tokens.ids[: target + 1] if weights.attention.causal else tokens.ids
        for tokens, target in zip(sentences, targets, strict=True)
    ]
    width, states = max(map(len, rows)), defaultdict(list)
    batches = batch_of_like_length([len(row) for row in rows])
    for batch in batches:
        read = read_at(model, [rows[row] for row in batch], [targets[row] for row in batch])
        read["pattern"] = functional.pad(read["pattern"], (0, width - read["pattern"].shape[-1]))
        for name, part in read.items():
            states[name].append(part)
    order = in_order(batches)
    together = {name: torch.cat(found)[order] for name, found in states.items()}
    last = [tokens.ids[at] for tokens, at in zip(sentences, targets, strict=True)]
    return with_embeddings(weights, together, last, targets)


def run_hooked(
    model: Model,
    rows: Sequence[Sequence[int]],
    keep: Keep,
    *,
    names: Sequence[str],
    logits: bool = True,
    before: "Cache | None" = None,
) -> Tensor:
    """Run equally long id rows through the bridge; `keep(name, tensor)` sees the named hooks of every layer, in order.

    Returns the logits, `batch pos d_vocab`, or without `logits` what the unembedding would read, `batch pos d_model`: for many
    sentences the unembedding is a good part of the work. `before`, without `logits`, holds the keys and values of what stands before
    the rows, and those of the rows are added to it. The hooks are removed again whatever happens.
    """

    def hook(name: str, tensor: Tensor, hook: object) -> None:
        keep(name, tensor)

    layers = range(model.config.n_layers)
    hooks = [(f"blocks.{layer}.{HOOKS[name]}", partial(hook, name)) for layer in layers for name in names]
    ids = torch.tensor(rows, device=model.device)
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        if logits:
            return model.bridge(ids)
        base = model.bridge.original_model.base_model
        return base(ids, past_key_values=before, use_cache=before is not None).last_hidden_state


def _read_last(
    model: Model, rows: list[tuple[int, ...]], before: "Cache | None" = None, values: Tensor | None = None
) -> dict[str, Tensor]:
    """The states of the last position of equally long rows; V of all positions of the first goes into `values`, where given."""
    kept: dict[str, list[Tensor]] = defaultdict(list)

    def keep(name: str, tensor: Tensor) -> None:
        whole = _heads_first(name, tensor)
        if name == "v" and values is not None:
            values[len(kept[name])] = whole[0]
        kept[name].append(whole.select(-2, -1).clone())

    run_hooked(model, rows, keep, names=(*STACKED, "resid_pre", "resid_post"), logits=False, before=before)
    kept["resid"] = [*kept.pop("resid_pre"), kept.pop("resid_post")[-1]]
    return {name: torch.stack(parts, dim=1) for name, parts in kept.items()}


def with_embeddings(
    weights: Weights | General, read: Mapping[str, Tensor], ids: Sequence[int], targets: Sequence[int]
) -> TargetStates:
    """What was read at the targets, with the embeddings of the tokens there; no position vectors where a family has none."""
    last, target = torch.tensor(ids), torch.tensor(targets)
    found = embeddings(weights, last, target)
    token = found["token embedding"]
    return TargetStates(
        ids=last,
        target=target,
        token_embedding=token,
        position_embedding=found.get("position embedding", torch.zeros_like(token)),
        **{name: whole.cpu() for name, whole in read.items()},
    )


def _heads_first(name: str, tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2) if name in HEAD_VECTORS else tensor  # batch pos head d_head -> batch head pos d_head
