"""Records of the quantities that a hooked model computed: everything about one text, the target
positions of many texts, or one position of a long text.

`probe.model.hooks` reads the numbers; the records are in `probe.model.records`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional

from probe.errors import InputError, whole_number
from probe.model import forward, hooks
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.records import CrossTrace, PairTrace, TargetStates, TargetTrace, Trace
from probe.model.tokens import (
    Tokens,
    batch_by_length,
    batch_of_like_length,
    in_order,
    position,
    target_tokens,
    tokenize,
)
from probe.model.weights import Weights, weights_of

# Tokens of a long text that are run together; only this many rows of a pattern exist at a time.
CHUNK = 64


@overload
def trace(model: ModelSource, text: str) -> Trace: ...
@overload
def trace(model: ModelSource, text: str, target: str) -> PairTrace: ...
def trace(model: ModelSource, text: str, target: str | None = None) -> Trace | PairTrace:
    """Every tensor of attention at every layer, from one run of `text` through the hooked model.

    target: only for an encoder-decoder: the text that its decoder reads

    Raises InputError for an empty or over-long text, and for a target that is missing or cannot be
    used.

    Example:
        >>> trace = probe.trace("tiny-senses", "The old tree by the bank")
        >>> trace.pattern.shape  # layer head query_pos key_pos
        torch.Size([4, 4, 7, 7])
        >>> trace.delta_e(layer=2, head=1, at="bank").shape  # d_model
        torch.Size([128])
    """
    model = load(model)
    _require_target(model, target)
    if target is None:
        return traces(model, [text])[0]
    return _trace_pair(model, tokenize(model, text), target_tokens(model, target))


def traces(model: Model, texts: Sequence[str]) -> list[Trace]:
    """The trace of every text through a model with one stack; texts with equal numbers of tokens
    are run together.
    """
    tokens = [tokenize(model, text) for text in texts]
    batches = batch_by_length([len(each) for each in tokens], most_rows=len(texts))
    runs = [
        run for batch in batches for run in hooks.read_alike(model, [tokens[n].ids for n in batch])
    ]
    return [
        Trace(
            of_text,
            model.name,
            runs[number].stacks[""],
            head_output=runs[number].logits if model.config.has_lm_head else None,
            **runs[number].tensors[""],
        )
        for of_text, number in zip(tokens, in_order(batches), strict=True)
    ]


def _require_target(model: Model, target: str | None) -> None:
    """Raises InputError for an encoder-decoder without a target text, and for another model with
    one.
    """
    reads_target = model.config.start_token is not None
    if reads_target and target is None:
        problem = "it is an encoder-decoder. Give trace(model, source, target)"
    elif not reads_target and target is not None:
        problem = (
            "it has no decoder for a target. Give one text only, and a word to the methods of its "
            "trace, as at="
        )
    else:
        return
    raise InputError(f"Cannot trace a text through {model.name}: {problem}.")


def _trace_pair(model: Model, source: Tokens, target: Tokens) -> PairTrace:
    """All three attentions of an encoder-decoder, from one run."""
    run = hooks.read(model, source.ids, target.ids)
    name = model.name
    stacks = run.stacks
    tensors = run.tensors
    encoder = Trace(source, name, stacks["encoder"], head_output=None, **tensors["encoder"])
    decoder = Trace(target, name, stacks["decoder"], head_output=run.logits, **tensors["decoder"])
    cross = CrossTrace(target, name, stacks["cross"], source=source, **tensors["cross"])
    return PairTrace(source, target, encoder, decoder, cross)


def trace_target(model: Model, tokens: Tokens, at: int | str) -> TargetTrace:
    """One position of one text, or the position of a word, and every head's values that it can
    attend to.

    The memory of a full trace grows with the square of the text's length. In a causal model, this
    record grows linearly: the text is run up to `at` in chunks, each against the keys and values of
    the chunks before it, which changes no number. Raises InputError for a position outside the
    text, and UnsupportedModel for an encoder-decoder.
    """
    weights = weights_of(model)
    pos = position(tokens, at)
    if not 0 <= pos < len(tokens):
        raise InputError(
            f"Cannot trace one position of a text of {len(tokens)} tokens: got position {pos}. "
            f"Choose one from 0 to {len(tokens) - 1}."
        )
    if weights.causal:
        states, v = _read_in_chunks(model, tokens.ids[: pos + 1])
    else:
        tensors = hooks.read(model, tokens.ids).tensors[""]
        states = at_position(tensors, pos)
        v = tensors["v"]
    states_there = with_embeddings(weights, states, [tokens.ids[pos]], [pos])
    return TargetTrace(tokens, weights, pos, states_there, v)


def _read_in_chunks(model: Model, ids: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
    """The quantities at the last of `ids`, and V of all of them, `layer head pos d_head`."""
    # Imported here, because transformers takes a second to import, and short texts need no cache.
    from transformers import DynamicCache

    config = model.config
    shape = (config.n_layers, config.n_heads, len(ids), config.d_head)
    v = torch.zeros(shape, dtype=model.dtype, device=model.device)  # 0 in layers without attention
    # For a hybrid, the cache must know which layers keep a state instead of keys and values.
    settings = model.bridge.original_model.config if config.mixers else None
    cache = DynamicCache(config=settings)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        values = v[:, :, start : start + len(chunk)]
        states = hooks.read_last(model, chunk, cache, values, start=start)
    return states, v.cpu()


def target_states(
    model: ModelSource,
    texts: Sequence[Tokens],
    at: Sequence[int],
    *,
    before: Sequence[int] | None = None,
    later: Sequence[int] | None = None,
) -> TargetStates:
    """The states of many tokenised sentences, each at its target position.

    before: a position of each sentence up to its target; the stream after the last block is read
        there in the same run
    later: a position of each sentence from its target on; z of every head is read there in the same
        run

    Texts of similar length are run together. In a causal model, only tokens up to the last position
    that is read are run, because later tokens cannot change its states; a model that reads both
    ways runs whole texts. Raises InputError for texts that are not tokenised and for positions
    outside a text, and UnsupportedModel for an encoder-decoder.

    Example:
        >>> from probe.model.trace import target_states
        >>> model = probe.load("tiny-senses")
        >>> texts = ["the old tree by the bank", "a loan from the bank"]
        >>> sentences = [probe.tokenize(model, text) for text in texts]
        >>> targets = [tokens.positions_of("bank")[-1] for tokens in sentences]
        >>> target_states(model, sentences, targets).resid.shape  # sentence depth d_model
        torch.Size([2, 5, 128])
    """
    model = load(model)
    weights = weights_of(model)
    _require_targets(texts, at)
    ends = at if later is None else later
    rows = [
        tokens.ids[: end + 1] if weights.causal else tokens.ids
        for tokens, end in zip(texts, ends, strict=True)
    ]
    width = max(map(len, rows))
    states: dict[str, list[Tensor]] = defaultdict(list)
    batches = batch_of_like_length([len(row) for row in rows])
    for batch in batches:
        tensors = hooks.read_at(
            model,
            [rows[row] for row in batch],
            [at[row] for row in batch],
            None if before is None else [before[row] for row in batch],
            None if later is None else [later[row] for row in batch],
        )
        padding = width - tensors["pattern"].shape[-1]
        tensors["pattern"] = functional.pad(tensors["pattern"], (0, padding))
        for name, tensor in tensors.items():
            states[name].append(tensor)
    order = in_order(batches)
    states_by_name = {name: torch.cat(parts)[order] for name, parts in states.items()}
    ids = [tokens.ids[pos] for tokens, pos in zip(texts, at, strict=True)]
    return with_embeddings(weights, states_by_name, ids, at)


def _require_targets(sentences: Sequence[Tokens], targets: Sequence[int]) -> None:
    """Raises InputError for an empty list, for texts that are not tokenised, and unless each
    text has one position.
    """
    if isinstance(sentences, Tokens):
        raise InputError(
            "Cannot read words: got one text, expected a list. Put text and position into "
            "brackets, as in target_states(model, [tokens], [3])."
        )
    text_tokens = [tokens for tokens in sentences if isinstance(tokens, Tokens)]
    if not text_tokens or len(text_tokens) != len(sentences) or len(targets) != len(sentences):
        raise InputError(
            f"Cannot read words: got {len(text_tokens)} tokenised texts of {len(sentences)} and "
            f"{len(targets)} positions, expected one position for each of at least one text. Give "
            "[probe.tokenize(model, text), ...] and the position of the word in each."
        )
    for number, (tokens, at) in enumerate(zip(sentences, targets, strict=True)):
        if whole_number(at) is None or not 0 <= at < len(tokens):
            raise InputError(
                f"Cannot read a word in text {number}: got position {at!r} of {len(tokens)} "
                f"tokens. Give one from 0 to {len(tokens) - 1}, as tokens.positions_of(word)[-1]."
            )


def at_position(tensors: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
    """The tensors of one whole text at position `at`, in the form of `TargetStates`."""
    names = (*hooks.HEAD_VECTORS, "pattern", "mlp_out", "attn_out")
    # Copies, so that a record does not hold the whole text.
    states = {name: tensors[name][None, ..., at, :].clone() for name in names}
    resid = torch.cat([tensors["resid_pre"][:, at], tensors["resid_post"][-1:, at]])
    return states | {"resid": resid[None]}


def with_embeddings(
    weights: Weights, tensors: Mapping[str, Tensor], ids: Sequence[int], targets: Sequence[int]
) -> TargetStates:
    """The states at the targets, with their embeddings; position vectors are 0 in a family
    without them.
    """
    target_ids = torch.tensor(ids)
    positions = torch.tensor(targets)
    parts = forward.embedding_parts(
        weights, target_ids.to(weights.device), positions.to(weights.device)
    )
    token = parts["token embedding"].cpu()
    # Rotary models and T5 add no vector for the position.
    pos_embedding = parts.get("position embedding", torch.zeros_like(token)).cpu()
    on_cpu = {name: tensor.cpu() for name, tensor in tensors.items()}
    return TargetStates(target_ids, positions, token, pos_embedding, **on_cpu)
