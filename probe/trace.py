"""What a hooked model really computed: everything about one text (`Trace`), or only the target positions of many (`TargetStates`).

Read through TransformerLens's bridge in raw mode (Hugging Face's own numbers). ΔE is never stored whole: one head at one
position is z W_O, by source token A[t, j] V[j] W_O, both computed on demand from the hooked z, pattern and V.
Sentences are batched by equal length, so nothing is ever padded and no attention mask can be wrong.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from probe import attention
from probe.errors import InputError, UnsupportedModel
from probe.families.hooked import read
from probe.families.table import WHOLE, require_whole
from probe.families.tensors import Stack
from probe.handover import for_bertviz, for_circuitsvis
from probe.models import Model
from probe.replay import Weights, read_weights
from probe.tokens import Tokens, batch_by_length, tokenize

if TYPE_CHECKING:
    from transformers import Cache

    from probe.families.pairs import PairTrace

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
HEAD_VECTORS = ("q", "k", "v", "z")
STACKED = (*HEAD_VECTORS, "pattern", "mlp_out")
CHUNK = 64
Keep = Callable[[str, Tensor], None]


@dataclass(frozen=True, eq=False)
class Trace:
    """One text through one model: every tensor of attention at every layer, on the CPU, without a batch axis.

    `q k v z: layer head pos d_head` · `scores pattern: layer head query_pos key_pos` (scores scaled and masked) ·
    `x resid_pre resid_mid resid_post attn_out mlp_out: layer pos d_model` · `logits: pos d_vocab`.
    """

    tokens: Tokens
    model_name: str
    stack: Weights | Stack
    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    pattern: Tensor
    z: Tensor
    resid_pre: Tensor
    attn_out: Tensor
    resid_mid: Tensor
    mlp_out: Tensor
    resid_post: Tensor
    head_output: Tensor | None

    @property
    def weights(self) -> Weights:
        """Every weight of the model, for what looks beyond attention. Raises UnsupportedModel for families beside GPT-2."""
        if not isinstance(self.stack, Weights):
            raise UnsupportedModel(
                f"Reading all weights of {self.model_name} from a trace: this works for GPT-2 only so far, for other "
                "families trace and check do; take a GPT-2 or tiny-senses."
            )
        return self.stack

    @property
    def logits(self) -> Tensor:
        """`pos d_vocab`. Raises UnsupportedModel where there is no language-model head whose logits these could be."""
        if self.head_output is None:
            raise UnsupportedModel(
                f"Reading the logits of {self.model_name}: no language-model head of these blocks was in its checkpoint, so "
                "they would be random; load a checkpoint with one, or read resid_post."
            )
        return self.head_output

    def __post_init__(self) -> None:
        layers, heads, d_model, d_head = self.stack.shape
        n = len(self.tokens)
        expected = dict.fromkeys(HEAD_VECTORS, (layers, heads, n, d_head))
        expected |= dict.fromkeys(("scores", "pattern"), (layers, heads, n, n))
        for name in HOOKS:
            wanted, got = expected.get(name, (layers, n, d_model)), tuple(getattr(self, name).shape)
            if got != wanted:
                raise ValueError(f"trace of {n} tokens: {name} has shape {got}, expected {wanted}")

    def delta_e(self, layer: int, head: int, at: int) -> Tensor:
        """ΔE of one head at position `at`, without b_O: z W_O. `-> d_model` Raises InputError for a place that is not there."""
        self._require_place(layer=layer, head=head, at=at)
        return attention.write(self.z[layer, head, at], self.stack.blocks[layer].w_o[head].cpu())

    def delta_e_by_source(self, layer: int, head: int, at: int) -> Tensor:
        """The same ΔE taken apart by the token it came from: A[at, j] V[j] W_O; sums over key_pos to `delta_e`. `-> key_pos d_model`"""
        self._require_place(layer=layer, head=head, at=at)
        w_o = self.stack.blocks[layer].w_o[head].cpu()
        return attention.write_by_source(self.pattern[layer, head, at], self.v[layer, head], w_o)

    def to_circuitsvis(self, layer: int) -> dict[str, Any]:
        """The keyword arguments of CircuitsVis's attention_heads for one layer: see `probe.handover`."""
        return for_circuitsvis(self, layer)

    def to_bertviz(self) -> dict[str, Any]:
        """The keyword arguments of BertViz's head_view and model_view: see `probe.handover`."""
        return for_bertviz(self)

    def _require_place(self, **place: int) -> None:
        layers, heads, *_ = self.stack.shape
        for (name, number), size in zip(place.items(), (layers, heads, len(self.tokens)), strict=True):
            if not -size <= number < size:
                step = f"expected {-size} to {size - 1}" if name == "at" else f"expected 0 to {size - 1}"
                raise InputError(f"Taking ΔE out of a trace: {name} is {number}, {step}; choose one of these.")

    def __repr__(self) -> str:
        layers, heads, *_ = self.stack.shape
        return f"<Trace of {len(self.tokens)} tokens through {self.model_name}: {layers} layers x {heads} heads>"

    def _repr_html_(self) -> str:
        layers, heads, d_model, d_head = self.stack.shape
        hues = ("#e8f0fe", "#fef3e0", "#e6f4ea", "#fce8f3")
        chip = '<span style="background:{};color:#222;border-radius:4px;padding:2px 5px;margin:1px;display:inline-block">{}</span>'
        chips = "".join(chip.format(hues[pos % 4], escape(label)) for pos, label in enumerate(self.tokens.labels))
        shapes = {
            "q k v z": f"{layers} layer × {heads} head × {len(self.tokens)} pos × {d_head} d_head",
            "scores pattern": f"{layers} layer × {heads} head × {len(self.tokens)} query_pos × {len(self.tokens)} key_pos",
            "x resid_pre attn_out resid_mid mlp_out resid_post": f"{layers} layer × {len(self.tokens)} pos × {d_model} d_model",
        }
        rows = "".join(f"<tr><td><code>{names}</code></td><td>{shape}</td></tr>" for names, shape in shapes.items())
        return f"<div><p><b>Trace</b> of {len(self.tokens)} tokens through {escape(self.model_name)}</p><p>{chips}</p><table>{rows}</table></div>"


@dataclass(frozen=True, eq=False)
class TargetStates:
    """Many texts, only their target positions, on the CPU, in the order given.

    `token_embedding position_embedding: sentence d_model` · `resid: sentence depth d_model`, depth 0 entering the first
    block and depth d leaving block d - 1 · `mlp_out: sentence layer d_model` · `q k v z: sentence layer head d_head` ·
    `pattern: sentence layer head key_pos`, the target's row, zero beyond the target · `ids target: sentence`.
    """

    ids: Tensor
    target: Tensor
    token_embedding: Tensor
    position_embedding: Tensor
    resid: Tensor
    mlp_out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    z: Tensor
    pattern: Tensor

    def __post_init__(self) -> None:
        n = len(self.ids)
        for field in fields(self):
            if len(getattr(self, field.name)) != n:
                raise ValueError(f"states of {n} sentences: {field.name} has {len(getattr(self, field.name))} rows")
        if self.resid.shape[1] != self.mlp_out.shape[1] + 1:
            raise ValueError(
                f"states: {self.resid.shape[1]} depths for {self.mlp_out.shape[1]} layers, expected one more"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        layers, heads = self.z.shape[1:3]
        return f"<TargetStates of {len(self)} sentences: {layers} layers x {heads} heads>"


@dataclass(frozen=True, eq=False)
class TargetTrace:
    """One text kept to one position `at`: `states` of that one row, and `v: layer head pos d_head` of the positions up to it."""

    tokens: Tokens
    weights: Weights
    at: int
    states: TargetStates
    v: Tensor

    def delta_e(self, layer: int, head: int) -> Tensor:
        """ΔE of one head at the position, without b_O: z W_O. `-> d_model`"""
        return attention.write(self.states.z[0, layer, head], self.weights.blocks[layer].w_o[head].cpu())

    def delta_e_by_source(self, layer: int, head: int) -> Tensor:
        """The same ΔE taken apart by the token it came from: A[at, j] V[j] W_O; sums over key_pos to `delta_e`. `-> key_pos d_model`"""
        w_o = self.weights.blocks[layer].w_o[head].cpu()
        return attention.write_by_source(self.states.pattern[0, layer, head], self.v[layer, head], w_o)


@overload
def trace(model: Model, text: str) -> Trace: ...
@overload
def trace(model: Model, text: str, target: str) -> "PairTrace": ...
def trace(model: Model, text: str, target: str | None = None) -> "Trace | PairTrace":
    """Run `text` through the hooked model once and keep everything; an encoder-decoder also reads `target`.

    Raises InputError for an empty or over-long text, and where a target is missing or cannot be used.
    """
    if (target is None) == (model.config.start_token is not None):
        found = "it is an encoder-decoder; give trace(model, source, target)"
        found = found if target is None else "it has no decoder for a target; give one text only"
        raise InputError(f"Tracing a text through {model.name}: {found}.")
    if target is not None:
        from probe.families.pairs import trace_pair

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
        stack=reading.stacks[""],
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
    return TargetTrace(tokens, read_weights(model), at, _with_embeddings(model, read, [ids[at]], [at]), v.cpu())


def target_states(model: Model, sentences: Sequence[Tokens], targets: Sequence[int]) -> TargetStates:
    """Read many tokenised sentences, each at its own target position, in batches of equal length.

    Only tokens up to the target are run: in a causal model no later token can change what is read there.
    """
    require_whole(model.config.architecture, "the reading of target positions")
    states: dict[str, Tensor] = {}
    for batch in batch_by_length([target + 1 for target in targets]):
        rows = [sentences[index].ids[: targets[index] + 1] for index in batch]
        for name, part in _read_last(model, rows).items():
            size = max(targets) + 1 if name == "pattern" else part.shape[-1]
            whole = states.setdefault(name, part.new_zeros(len(sentences), *part.shape[1:-1], size))
            whole[batch, ..., : part.shape[-1]] = part
    last = [tokens.ids[target] for tokens, target in zip(sentences, targets, strict=True)]
    return _with_embeddings(model, states, last, targets)


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


def _with_embeddings(
    model: Model, read: Mapping[str, Tensor], ids: Sequence[int], targets: Sequence[int]
) -> TargetStates:
    weights = read_weights(model)
    last, target = torch.tensor(ids), torch.tensor(targets)
    return TargetStates(
        ids=last,
        target=target,
        token_embedding=weights.wte[last.to(model.device)].cpu(),
        position_embedding=weights.wpe[target.to(model.device)].cpu(),
        **{name: whole.cpu() for name, whole in read.items()},
    )


def _heads_first(name: str, tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2) if name in HEAD_VECTORS else tensor  # batch pos head d_head -> batch head pos d_head
