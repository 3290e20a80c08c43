"""The recorded quantities: everything about one text (`Trace`), the target positions of many
texts (`TargetStates`), or one position of one text.

A record checks its shapes. ΔE is never stored completely: for one head at one position it is z W_O,
by source token A[t, j] V[j] W_O. Both are computed on demand from the hooked z, pattern and V.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from probe.display import Displayed
from probe.errors import InputError, UnsupportedModel, whole_number
from probe.model import attention, blocks, forward
from probe.model.tokens import Tokens, position
from probe.model.weights import Block, Weights

if TYPE_CHECKING:
    from transformer_lens import ActivationCache

    from probe.model.load import ModelSource


def as_array(tensor: Tensor) -> Any:
    """A tensor as a numpy array of the same dtype; bfloat16 becomes float32, because numpy does
    not support it.
    """
    supported = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return supported.detach().cpu().numpy()


@dataclass(frozen=True, eq=False)
class AttentionTrace:
    """Every tensor of one attention at every layer, and ΔE of single heads. query_pos counts
    `tokens`.

    q, z: `layer head query_pos d_head`
    k, v: `layer head key_pos d_head`
    scores, pattern: `layer head query_pos key_pos`, scores scaled and masked
    x, resid_pre, attn_out, resid_mid: `layer query_pos d_model`

    q and k are as projected, before the norm and the rotation that some families apply to them. In
    the layers of a hybrid without attention, quantities of heads are 0, and `attn_out` is the
    mixer's write.

    A pickle contains these tensors and W_O of every head. ΔE and pictures work from it as before.
    Methods that need the other weights (`to_cache`, a logit lens) require the text to be traced
    again.
    """

    kind: ClassVar[str] = "trace"
    tokens: Tokens
    model_name: str
    stack: Weights
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

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"stack": self.stack.writing()}

    def __copy__(self) -> Self:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self.stack)] = self.stack  # a copy in memory shares the weights
        return replace(self, **copy.deepcopy(vars(self), memo))

    def delta_e(self, layer: int, head: int, at: int | str) -> Tensor:
        """ΔE of one head at position `at`, or at a word's last token, without b_O: z W_O.

        `-> d_model`

        Raises InputError for a layer, head or position that does not exist.
        """
        at = self._position_of(layer, head, at)
        return attention.write(self.z[layer, head, at], self._w_o(layer, head))

    def delta_e_by_source(self, layer: int, head: int, at: int | str) -> Tensor:
        """ΔE by source token: A[at, j] V[j] W_O; for gated heads g[at] * A[at, j] V[j] W_O.

        `-> key_pos d_model`

        The sum over key_pos is `delta_e`.
        """
        at = self._position_of(layer, head, at)
        w_o = self._w_o(layer, head)
        v = _gated_values(self.stack.blocks[layer], head, self.v[layer, head], self.x[layer, at])
        # Some families keep the pattern in float32.
        pattern_row = self.pattern[layer, head, at].to(v.dtype)
        return attention.write_by_source(pattern_row, v, w_o)

    def _w_o(self, layer: int, head: int) -> Tensor:
        """W_O of a head, `d_head d_model`. Raises InputError for a layer without attention."""
        block = self.stack.blocks[layer]
        if block.mixer is None:
            return block.w_o[head].cpu()
        with_heads = [
            number
            for number, block_of_layer in enumerate(self.stack.blocks)
            if block_of_layer.mixer is None
        ]
        raise InputError(
            f"Cannot take ΔE from a {self.kind}: layer {layer} of {self.model_name} has no "
            f"attention, and no heads. Choose one of the layers with heads "
            f"({', '.join(map(str, with_heads))}), or read attn_out, the layer's write."
        )

    def to_cache(self, model: "ModelSource | None" = None) -> "ActivationCache":
        """TransformerLens' ActivationCache of this attention, with its names and shapes and a
        batch of one: every tensor that a hook of the bridge holds.

        model: the traced model, for methods of the cache that need weights

        Quantities that were recomputed, because their hook holds another one, are not included. For
        a decoder the cache also contains what its methods read, computed by the formulas:
        embeddings, the divisors of the norms, normed writes, the activations of plain MLPs.
        `trace.to_cache()["z", 3]` is `1 query_pos head d_head`. Raises InputError for a model with
        other weights.
        """
        # Imported here, because it takes seconds and is not needed elsewhere.
        from transformer_lens import ActivationCache

        self._require_weights(f"Cannot make a cache of a {self.kind} through {self.model_name}")
        tensors = {name: tensor[None] for name, tensor in self._cached().items()}
        bridge: Any = None if model is None else self._bridge_of(model)
        return ActivationCache(tensors, bridge)

    def _require_weights(self, doing: str) -> None:
        """Raises InputError, with the name of the action, for a trace from a pickle."""
        if not self.stack.raw:
            raise InputError(
                f"{doing}: it comes from a pickle, which holds W_O and no other weights. Trace the "
                "text again, with probe.trace(model, text)."
            )

    def _bridge_of(self, source: "ModelSource") -> object:
        """The bridge of the traced model. Raises InputError for another model."""
        # Imported here, because it imports hooks, which import this module.
        from probe.model.load import load

        model = load(source)
        for name, traced in self.stack.raw.items():
            weight = model.weights.get(name)
            if weight is None or not torch.equal(weight.to(traced), traced):
                raise InputError(
                    f"Cannot make a cache of a {self.kind} through {self.model_name}: the weights "
                    f"of {model.name} differ ({name}). Give the model that was traced, or none."
                )
        return model.bridge

    def _cached(self) -> dict[str, Tensor]:
        """The tensors that hooks of the bridge hold, by name, without a batch axis."""
        by_name: dict[str, Tensor] = {}
        attention = self.stack.attention
        group = self.stack.config.n_heads // self.stack.config.n_kv_heads
        config = self.stack.config
        for name in attention.hooks:
            replacement = attention.unreliable_hooks.get(name)
            if replacement is not None and replacement.hook == attention.hooks[name]:
                continue  # it is only a part of the hook's tensor
            layers = getattr(self, name)
            if name in ("k", "v"):
                layers = layers[:, ::group]  # repeated for the heads that share them
            if name in ("q", "k", "v", "z"):
                layers = layers.transpose(1, 2)  # layer pos head d_head
            for layer, tensor in enumerate(layers):
                hook = attention.hook_in(name, has_heads=config.has_heads(layer))
                if hook:
                    scale = config.hook_scale(name, layer)
                    unscaled = tensor if scale == 1 else tensor / scale
                    by_name[f"{attention.blocks}.{layer}.{hook}"] = unscaled
        return by_name

    def _position_of(self, layer: int, head: int, at: int | str) -> int:
        """The position `at`; for a word, its last token. Raises InputError for a layer, head or
        position that does not exist.
        """
        pos = position(self.tokens, at)
        layers, heads, *_ = self.stack.shape
        n = len(self.tokens)
        bounds = (("layer", layer, 0, layers), ("head", head, 0, heads), ("at", pos, -n, n))
        for name, number, lowest, size in bounds:
            if whole_number(number) is None or not lowest <= number < size:
                raise InputError(
                    f"Cannot take ΔE from a {self.kind}: {name} is {number!r}, expected {lowest} "
                    f"to {size - 1}. Choose one of these."
                )
        return pos

    def _require_shapes(self, record: str, keys: int, **shapes: tuple[int, ...]) -> None:
        """ValueError where a tensor is not of its shape with so many keys; `more` are shapes of
        further tensors."""
        layers, heads, d_model, d_head = self.stack.shape
        n = len(self.tokens)
        expected: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "z"), (layers, heads, n, d_head))
        expected |= dict.fromkeys(("k", "v"), (layers, heads, keys, d_head))
        expected |= dict.fromkeys(("scores", "pattern"), (layers, heads, n, keys))
        of_stream = ("x", "resid_pre", "attn_out", "resid_mid")
        expected |= dict.fromkeys(of_stream, (layers, n, d_model)) | shapes
        for name, shape in expected.items():
            got = tuple(getattr(self, name).shape)
            if got != shape:
                raise ValueError(f"{record}: {name} has shape {got}, expected {shape}")


@dataclass(frozen=True, eq=False)
class Trace(Displayed, AttentionTrace):
    """One text through one model: every tensor of attention at every layer, on the CPU, without
    a batch axis.

    The fields of `AttentionTrace`, with the same number of keys and queries, and:

    mlp_out, resid_post: `layer pos d_model`
    head_output: the logits, `pos d_vocab`; None without a language-model head
    """

    mlp_out: Tensor
    resid_post: Tensor
    head_output: Tensor | None

    @property
    def weights(self) -> Weights:
        """Every weight of a model with one stack.

        Raises UnsupportedModel for a side of an encoder-decoder, and InputError for a trace from a
        pickle.
        """
        if not self.stack.attention.name:
            self._require_weights(f"Cannot read all weights of {self.model_name} from a trace")
            return self.stack
        raise UnsupportedModel(
            f"Cannot read all weights of {self.model_name} from a trace: it is one side of an "
            "encoder-decoder, whose stream is not a sum of this side alone. Use delta_e and "
            "delta_e_by_source, or take a GPT-2 or a BERT."
        )

    @property
    def logits(self) -> Tensor:
        """The logits, `pos d_vocab`. Raises UnsupportedModel for a model without a
        language-model head.
        """
        if self.head_output is None:
            raise UnsupportedModel(
                f"Cannot read the logits of {self.model_name}: its checkpoint has no "
                "language-model head for these blocks, so they would be random. Load a checkpoint "
                "with one, or read resid_post."
            )
        return self.head_output

    def __post_init__(self) -> None:
        n = len(self.tokens)
        stream = (len(self.stack.blocks), n, self.stack.shape[2])
        self._require_shapes(f"trace of {n} tokens", n, mlp_out=stream, resid_post=stream)

    def _cached(self) -> dict[str, Tensor]:
        by_name = super()._cached()
        if self.stack.attention.name:  # no method of the cache reads two stacks
            return by_name
        config = self.stack.config
        if config.causal:  # for an encoder, TransformerLens would read the head as a final norm
            by_name |= self._embeddings() | self._norm_scales()
        for layer, (block, *streams) in enumerate(self._streams()):
            if config.family.norm_after_write:  # the bridge's name means the write after its norm
                for name, weight in (("attn", block.norm_out), ("mlp", block.norm_mlp_out)):
                    write = getattr(self, f"{name}_out")[layer].to(self.stack.device)
                    added = blocks.norm(write, weight, None, config)
                    by_name[f"blocks.{layer}.hook_{name}_out"] = added
            if block.experts is None:
                read = streams[0 if config.family.parallel_attn_mlp else 1].to(self.stack.device)
                by_name[f"blocks.{layer}.mlp.hook_post"] = blocks.activate(self.stack, block, read)
        return {name: tensor.detach().cpu() for name, tensor in by_name.items()}

    def _streams(self) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """The weights of every layer, its resid_pre and its resid_mid."""
        return zip(self.stack.blocks, self.resid_pre, self.resid_mid, strict=True)

    def _embeddings(self) -> dict[str, Tensor]:
        """The embeddings that are added before the first block, by the bridge's names; if a norm
        follows, the stream after it.

        `pos d_model`
        """
        if self.stack.config.family.embedding_norm:
            return {"hook_embed": self.resid_pre[0]}
        ids = torch.tensor(self.tokens.ids, device=self.stack.device)
        positions = torch.arange(len(ids), device=self.stack.device)
        parts = forward.embedding_parts(self.stack, ids, positions)
        names = {"hook_embed": "token embedding", "hook_pos_embed": "position embedding"}
        return {hook: parts[name] for hook, name in names.items() if name in parts}

    def _norm_scales(self) -> dict[str, Tensor]:
        """The divisors of the stream's norms, by the bridge's names, at least in float32.

        `pos 1`
        """
        config = self.stack.config
        read: dict[str, Tensor] = {}
        for layer, (block, resid_pre, resid_mid) in enumerate(self._streams()):
            if blocks.norms_input(block, config):
                read[f"blocks.{layer}.ln1"] = resid_pre
            if config.family.norm_first and "norm_mlp" in self.stack.attention.parts:
                is_parallel = config.family.parallel_attn_mlp
                read[f"blocks.{layer}.ln2"] = resid_pre if is_parallel else resid_mid
        if config.family.final_norm:
            read["ln_final"] = self.resid_post[-1]
        scales = {}
        for name, stream in read.items():
            wide = stream.to(torch.promote_types(stream.dtype, torch.float32))
            scales[f"{name}.hook_scale"] = blocks.norm_scale(wide, config)[:, None]
        return scales

    def to_circuitsvis(self, layer: int) -> dict[str, Any]:
        """The arguments of CircuitsVis's attention_heads for a layer, with `attention: head
        query_pos key_pos`.

        Call circuitsvis.attention.attention_heads(**trace.to_circuitsvis(layer=3)). Raises
        InputError for a layer that does not exist.
        """
        layers = len(self.pattern)
        if not 0 <= layer < layers:
            raise InputError(
                f"Cannot pass a trace to CircuitsVis: layer is {layer}, expected 0 to "
                f"{layers - 1}. Choose one of these."
            )
        pattern = self.pattern[layer]
        return {
            "attention": pattern,
            "tokens": list(self.tokens.pieces),
            "attention_head_names": [f"L{layer}H{head}" for head in range(len(pattern))],
            "mask_upper_tri": bool((pattern.triu(1) == 0).all()),
        }

    def to_bertviz(self) -> dict[str, Any]:
        """The arguments of BertViz's head_view and model_view, a tensor for each layer: `1 head
        query_pos key_pos`.
        """
        return {
            "attention": list(self.pattern[:, None]),
            "tokens": list(self.tokens.pieces),
            "prettify_tokens": False,
        }

    def __repr__(self) -> str:
        layers, heads, *_ = self.stack.shape
        size = f"{layers} layers x {heads} heads"
        return f"<Trace of {len(self.tokens)} tokens through {self.model_name}: {size}>"


@dataclass(frozen=True, eq=False)
class TargetStates:
    """The target positions of many texts, on the CPU, in the given order.

    ids, target: `sentence`
    token_embedding, position_embedding: `sentence d_model`
    resid: `sentence depth d_model`; depth 0 enters the first block, depth d leaves block d - 1
    mlp_out: `sentence layer d_model`
    q, k, v, z: `sentence layer head d_head`
    pattern: `sentence layer head key_pos`, the target's row, zero after the target
    attn_out: `sentence layer d_model`, the write of attention or of the mixer; only of a hybrid,
        otherwise None
    before: `sentence d_model`, the stream after the last block at an earlier position; None if no
        earlier position was given
    later_z: `sentence layer head d_head`, z at a later position; None if no later position was
        given
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
    attn_out: Tensor | None = None
    before: Tensor | None = None
    later_z: Tensor | None = None

    def __post_init__(self) -> None:
        n = len(self.ids)
        for field in fields(self):
            tensor = getattr(self, field.name)
            if tensor is not None and len(tensor) != n:
                raise ValueError(f"states of {n} sentences: {field.name} has {len(tensor)} rows")
        depths = self.resid.shape[1]
        layers = self.mlp_out.shape[1]
        if depths != layers + 1:
            raise ValueError(f"states: {depths} depths for {layers} layers, expected one more")

    def attention_to(self, cues: Sequence[range | None]) -> dict[str, Tensor]:
        """The attention that each head gives from the target to its cue, to the neighbouring
        tokens, and to itself.

        cues: token positions; None for a sentence without a cue

        Returns cue, previous, next, itself: `sentence layer head` each; NaN if there is no such
        token, and 0 for later tokens in a causal model. Raises InputError for another number of
        cues than of texts.
        """
        if len(cues) != len(self):
            raise InputError(
                f"Cannot read the attention to cues: got {len(cues)} cues for {len(self)} texts, "
                "expected one for each, or None. Give as many."
            )
        layer_by_head = self.pattern.shape[1:3]
        to_cue = []
        for pattern_row, cue in zip(self.pattern, cues, strict=True):
            if cue is None:
                to_cue.append(torch.full(layer_by_head, torch.nan))
            else:
                to_cue.append(pattern_row[..., cue.start : cue.stop].sum(-1))
        # An empty token at either end, so that the first and the last token have neighbours.
        padded = functional.pad(self.pattern, (1, 1))
        row = torch.arange(len(self))
        previous = padded[row, ..., self.target]
        previous[self.target == 0] = torch.nan
        return {
            "cue": torch.stack(to_cue),
            "previous": previous,
            "next": padded[row, ..., self.target + 2],
            "itself": padded[row, ..., self.target + 1],
        }

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        layers, heads = self.z.shape[1:3]
        return f"<TargetStates of {len(self)} sentences: {layers} layers x {heads} heads>"


def _gated_values(block: Block, head: int, v: Tensor, x: Tensor) -> Tensor:
    """The values that a head reads at every position, times its gate at the query.

    `key_pos d_head, d_model -> key_pos d_head`
    """
    if block.w_head_gate is None:
        return v
    return attention.gated(v[None], x[None].to(v), block.w_head_gate[head, None].to(v))[0]


@dataclass(frozen=True, eq=False)
class TargetTrace:
    """One position `at` of one text.

    states: a single row
    v: `layer head pos d_head`, up to that position
    """

    tokens: Tokens
    weights: Weights
    at: int
    states: TargetStates
    v: Tensor

    def delta_e(self, layer: int, head: int) -> Tensor:
        """ΔE of one head at the position, without b_O: z W_O. `-> d_model`"""
        return attention.write(
            self.states.z[0, layer, head], self.weights.blocks[layer].w_o[head].cpu()
        )

    def delta_e_by_source(self, layer: int, head: int) -> Tensor:
        """ΔE of one head by source token: A[at, j] V[j] W_O. `-> key_pos d_model`

        The sum over key_pos is `delta_e`.
        """
        block = self.weights.blocks[layer]
        resid_pre = self.states.resid[0, layer].to(self.weights.device)
        x = blocks.attention_input(block, resid_pre, self.weights.config)
        v = _gated_values(block, head, self.v[layer, head], x)
        pattern_row = self.states.pattern[0, layer, head].to(v.dtype)
        return attention.write_by_source(pattern_row, v, block.w_o[head].cpu())


@dataclass(frozen=True, eq=False)
class CrossTrace(AttentionTrace):
    """Cross-attention of every decoder layer: queries from the target, keys and values from the
    encoder, no mask.

    The fields of `AttentionTrace`, with the decoder's stream, and:

    memory: `layer key_pos d_model`, the encoder's output

    query_pos counts `tokens`, the decoder's input; key_pos counts `source`.
    """

    kind: ClassVar[str] = "cross-attention trace"
    source: Tokens
    memory: Tensor

    def __post_init__(self) -> None:
        keys = len(self.source)
        self._require_shapes(
            self.kind, keys, memory=(len(self.stack.blocks), keys, self.stack.shape[2])
        )

    def __repr__(self) -> str:
        layers, heads, *_ = self.stack.shape
        size = f"{len(self.tokens)} x {len(self.source)} tokens"
        return f"<CrossTrace of {size} through {self.model_name}: {layers} layers x {heads} heads>"


@dataclass(frozen=True, eq=False)
class PairTrace:
    """A source and a target text through an encoder-decoder; `encoder` and `decoder` are traces
    of self-attention.

    target: the decoder's input: the model's start token, then the target text without its last
        special token
    cross: comes between the decoder's resid_mid and its MLP, so the decoder's resid_post is
        cross.resid_mid plus the MLP
    logits: `query_pos d_vocab`
    """

    source: Tokens
    target: Tokens
    encoder: Trace
    decoder: Trace
    cross: CrossTrace

    @property
    def logits(self) -> Tensor:
        return self.decoder.logits

    def to_cache(self, model: "ModelSource | None" = None) -> "ActivationCache":
        """TransformerLens' ActivationCache of all three attentions, as in `Trace.to_cache`."""
        cache = self.encoder.to_cache(model)
        for side in (self.decoder, self.cross):
            cache.cache_dict |= side.to_cache().cache_dict
        return cache

    def to_bertviz(self) -> dict[str, Any]:
        """The arguments of BertViz's head_view and model_view for all three attentions and both
        texts.
        """
        sides = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}
        return {
            **{f"{name}_attention": list(side.pattern[:, None]) for name, side in sides.items()},
            "encoder_tokens": list(self.source.pieces),
            "decoder_tokens": list(self.target.pieces),
            "prettify_tokens": False,
        }

    def __repr__(self) -> str:
        size = f"{len(self.source)} source and {len(self.target)} target tokens"
        return f"<PairTrace of {size} through {self.cross.model_name}>"
