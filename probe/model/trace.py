"""What a hooked model really computed: everything about one text, only the target positions of many, or one position of
a long text.

Read through TransformerLens's bridge in raw mode (Hugging Face's own numbers), as the records of `probe.model.records`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional

from probe.errors import InputError
from probe.model import forward, hooks
from probe.model.model import Model
from probe.model.records import CrossTrace, PairTrace, TargetStates, TargetTrace, Trace
from probe.model.tokens import Tokens, batch_of_like_length, in_order, position, target_tokens, tokenize
from probe.model.weights import Weights, read_weights

CHUNK = 64  # tokens of a long text that are run together: of a pattern only so many rows are ever held


@overload
def trace(model: Model, text: str) -> Trace: ...
@overload
def trace(model: Model, text: str, target: str) -> PairTrace: ...
def trace(model: Model, text: str, target: str | None = None) -> Trace | PairTrace:
    """Run `text` through the hooked model once and keep everything; an encoder-decoder also reads `target`.

    Raises InputError for an empty or over-long text, and where a target is missing or cannot be used.
    """
    if (target is None) == (model.config.start_token is not None):
        problem = "it is an encoder-decoder; give trace(model, source, target)"
        problem = problem if target is None else "it has no decoder for a target; give one text only"
        raise InputError(f"Tracing a text through {model.name}: {problem}.")
    tokens = tokenize(model, text)
    given = None if target is None else target_tokens(model, target)
    reading = hooks.read(model, tokens.ids, None if given is None else given.ids)
    tensors, stacks, name = reading.tensors, reading.stacks, model.name
    if given is None:
        logits = reading.logits if model.config.has_head else None
        return Trace(tokens=tokens, model_name=name, stack=stacks[""], head_output=logits, **tensors[""])
    return PairTrace(
        source=tokens,
        target=given,
        encoder=Trace(tokens=tokens, model_name=name, stack=stacks["encoder"], head_output=None, **tensors["encoder"]),
        decoder=Trace(
            tokens=given, model_name=name, stack=stacks["decoder"], head_output=reading.logits, **tensors["decoder"]
        ),
        cross=CrossTrace(tokens=given, source=tokens, stack=stacks["cross"], model_name=name, **tensors["cross"]),
    )


def trace_target(model: Model, tokens: Tokens, at: int | str) -> TargetTrace:
    """Run one text and keep what is read at position `at`, or at a word, and every head's values of all positions that
    it may look at.

    What a full trace of a long text holds grows with the square of its length; in a causal model this grows with its
    length: the text is run up to `at` in chunks, each against the keys and values of those before it, which changes no
    number. Raises InputError for a position that the text does not have, UnsupportedModel for an encoder-decoder.
    """
    weights, at = read_weights(model), position(tokens, at)
    if not 0 <= at < len(tokens):
        step = f"choose one from 0 to {len(tokens) - 1}"
        raise InputError(f"Tracing one position of a text of {len(tokens)} tokens: got position {at}; {step}.")
    if not weights.causal:
        reading = hooks.read(model, tokens.ids).tensors[""]
        states = at_position(reading, at)
        return TargetTrace(tokens, weights, at, with_embeddings(weights, states, [tokens.ids[at]], [at]), reading["v"])
    from transformers import DynamicCache

    config, ids, before = model.config, tokens.ids[: at + 1], DynamicCache()
    shape = (config.n_layers, config.n_heads, len(ids), config.d_head)
    v = torch.empty(shape, dtype=model.dtype, device=model.device)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        states = hooks.read_last(model, chunk, before, v[:, :, start : start + len(chunk)])
    return TargetTrace(tokens, weights, at, with_embeddings(weights, states, [ids[at]], [at]), v.cpu())


def target_states(model: Model, sentences: Sequence[Tokens], targets: Sequence[int]) -> TargetStates:
    """Read many tokenised sentences, each at its own target position, texts of about one length together.

    Only tokens up to the target are run in a causal model, where no later token can change what is read there; whole
    texts in one that reads both ways. Raises UnsupportedModel for an encoder-decoder.
    """
    weights = read_weights(model)
    rows = [
        tokens.ids[: target + 1] if weights.causal else tokens.ids
        for tokens, target in zip(sentences, targets, strict=True)
    ]
    width, states = max(map(len, rows)), defaultdict(list)
    batches = batch_of_like_length([len(row) for row in rows])
    for batch in batches:
        read = hooks.read_at(model, [rows[row] for row in batch], [targets[row] for row in batch])
        read["pattern"] = functional.pad(read["pattern"], (0, width - read["pattern"].shape[-1]))
        for name, part in read.items():
            states[name].append(part)
    order = in_order(batches)
    together = {name: torch.cat(parts)[order] for name, parts in states.items()}
    last = [tokens.ids[at] for tokens, at in zip(sentences, targets, strict=True)]
    return with_embeddings(weights, together, last, targets)


def at_position(tensors: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
    """The tensors of one whole text at position `at`, as `TargetStates` holds those of a single text."""
    states = {name: tensors[name][None, ..., at, :] for name in (*hooks.HEAD_VECTORS, "pattern", "mlp_out")}
    return states | {"resid": torch.cat([tensors["resid_pre"][:, at], tensors["resid_post"][-1:, at]])[None]}


def with_embeddings(
    weights: Weights, read: Mapping[str, Tensor], ids: Sequence[int], targets: Sequence[int]
) -> TargetStates:
    """What was read at the targets, with the embeddings of the tokens there; no position vectors where a family has
    none.
    """
    last, target = torch.tensor(ids), torch.tensor(targets)
    parts = forward.embedding_parts(weights, last.to(weights.device), target.to(weights.device))
    token = parts["token embedding"].cpu()
    position = parts.get("position embedding")
    return TargetStates(
        ids=last,
        target=target,
        token_embedding=token,
        position_embedding=torch.zeros_like(token) if position is None else position.cpu(),
        **{name: whole.cpu() for name, whole in read.items()},
    )
