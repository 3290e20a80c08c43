"""Raw tensors by the table of architectures: their expected names and shapes, and the weights by
stack, layer and head.

`read_weights` returns the record on which everything from raw weights works: blocks, the
    certificate, the decomposition. Its tensors are views of the model's.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from probe.model.architectures import require_single
from probe.model.architectures.family import ROLES_OF_HEADS, Attention
from probe.model.model import Config, Model, refuse


@dataclass(frozen=True, eq=False)
class LibraryModule:
    """A part of a block that the module of the model's own library computes, as a function of what
    the formulas here give it.
    """

    module: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        """What the module writes at every position of whole texts, or at a single one. `... pos
        d_model`, unchanged
        """
        if not x.numel():  # no positions, which a module need not accept
            return x
        positions = x[None] if x.dim() == 1 else x
        write = self.module(positions.reshape(-1, *positions.shape[-2:]))
        if isinstance(write, tuple):  # and what a router chose
            write = write[0]
        return torch.as_tensor(write).reshape(x.shape)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> "LibraryModule":
        """The same module in another dtype and on another device."""
        weight = next(self.module.parameters())
        if (weight.dtype, weight.device) == (dtype, torch.device(device)):
            return self
        return LibraryModule(deepcopy(self.module).to(device, dtype))


# Of a layer, by "mixer" and "mlp".
Modules = Mapping[int, Mapping[str, nn.Module]]
NORMS = ("norm", "norm_q", "norm_k", "norm_out", "norm_mlp", "norm_mlp_out")


@dataclass(frozen=True, eq=False)
class Block:
    """The weights of one attention of one layer, and of the MLP after it; None for weights that
    the family does not have.

    w_q: `head d_model d_head`
    w_k, w_v: `kv_head d_model d_head`
    b_q, b_k, b_v: `head d_head`
    w_o: `head d_head d_model`
    norm, norm_mlp: `d_model`, in front, or after the sum
    norm_out, norm_mlp_out: `d_model`, after the write
    norm_q, norm_k: of the queries and keys of each head (`d_head`) or of all heads together
    w_in, w_gate, w_up: `d_model d_mlp`; a gated MLP has `w_gate` and `w_up` instead of `w_in`
    w_out: `d_mlp d_model`
    experts: the module of a routed MLP, instead of `w_out`
    local: whether the layer has the config's sliding window
    rotated: whether it has rotary positions
    score_divisor: of the products of queries and keys
    w_head_gate: `head d_model d_head`, the gate of z
    mixer: of a layer without attention, the module that replaces it; the layer's `w_q w_k w_v` have
        no heads, and `w_o: 1 d_model d_model` leaves the module's write as it is

    If a config scales writes, `w_o w_out` and their biases include the scale, so that ΔE is what a
    head adds to the stream.

    What a routed MLP writes counts as its activations, and its output matrix is 1.
    """

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    w_o: Tensor
    b_o: Tensor | None
    norm: Tensor | None = None
    norm_bias: Tensor | None = None
    norm_q: Tensor | None = None
    norm_k: Tensor | None = None
    norm_out: Tensor | None = None
    norm_mlp_out: Tensor | None = None
    norm_mlp: Tensor | None = None
    norm_mlp_bias: Tensor | None = None
    w_in: Tensor | None = None
    b_in: Tensor | None = None
    w_gate: Tensor | None = None
    w_up: Tensor | None = None
    w_out: Tensor | None = None
    b_out: Tensor | None = None
    experts: LibraryModule | None = None
    local: bool = False
    rotated: bool = True
    score_divisor: float = 1.0
    w_head_gate: Tensor | None = None
    mixer: LibraryModule | None = None

    @cached_property
    def fused(self) -> tuple[Tensor, Tensor | None]:
        """W_Q, W_K, W_V and W_gate of all heads concatenated, and biases.

        `d_model (head d_head)`, `(head d_head)`
        """
        weights = (self.w_q, self.w_k, self.w_v, self.w_head_gate)
        parts = [_side_by_side(part) for part in weights if part is not None]
        biases = [bias.flatten() for bias in (self.b_q, self.b_k, self.b_v) if bias is not None]
        with torch.inference_mode(False):  # autograd refuses what was made in that mode
            return torch.cat(parts, dim=1), torch.cat(biases) if biases else None

    @cached_property
    def queries(self) -> tuple[Tensor, Tensor | None]:
        """W_Q of all heads concatenated, and the bias. `d_model (head d_head)`, `(head d_head)`"""
        return _side_by_side(self.w_q), None if self.b_q is None else self.b_q.flatten()

    @property
    def has_mlp(self) -> bool:
        """Whether an MLP follows this attention."""
        return self.w_out is not None or self.experts is not None

    @property
    def w_hidden(self) -> Tensor:
        """The matrix that the activations of the MLP are multiplied by. `d_mlp d_model`"""
        return _identity(self.d_mlp, self.w_o) if self.w_out is None else self.w_out

    @property
    def d_mlp(self) -> int:
        """The number of activations of the MLP after this attention; 0 without an MLP."""
        if self.w_out is not None:
            return self.w_out.shape[0]
        return 0 if self.experts is None else self.w_o.shape[-1]

    def to(self, dtype: torch.dtype, device: str | torch.device) -> "Block":
        """The same weights in another dtype and on another device."""
        tensors: dict[str, Any] = {}
        for field in fields(self):
            weight = getattr(self, field.name)
            if isinstance(weight, Tensor):
                tensors[field.name] = weight.to(device, dtype)
            elif isinstance(weight, LibraryModule):
                tensors[field.name] = weight.to(dtype, device)
        return replace(self, **tensors)

    def writing(self) -> "Block":
        """The block with only the weights of ΔE: W_O, the gate of z and the norm of the gate's
        input, as copies on the CPU. All others are on the meta device.
        """
        copies: dict[str, Any] = {}
        for name in ("w_o", "w_head_gate", "norm", "norm_bias"):
            weight = getattr(self, name)
            # A copy, because a pickle of a view contains the whole viewed tensor.
            copies[name] = None if weight is None else weight.cpu().clone()
        empty = replace(self, experts=None, mixer=None).to(self.w_o.dtype, "meta")
        # A mixer still says that the layer has no heads.
        mixer = None if self.mixer is None else LibraryModule(nn.Identity())
        return replace(empty, mixer=mixer, **copies)


def _identity(size: int, like: Tensor) -> Tensor:
    """The matrix that changes nothing, in the dtype and on the device of other weights."""
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _side_by_side(part: Tensor) -> Tensor:
    return part.transpose(0, 1).flatten(1)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of one stack: its blocks, all raw tensors by name, its config, and its row of
    the table.
    """

    blocks: tuple[Block, ...]
    raw: Mapping[str, Tensor]
    config: Config
    attention: Attention

    def __repr__(self) -> str:
        layers, heads, d_model, _ = self.shape
        size = f"{layers} layers x {heads} heads, d_model {d_model}"
        return f"<Weights of {size}, {self.dtype} on {self.device}>"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of layers and heads, d_model and d_head."""
        config = self.config
        return len(self.blocks), config.n_heads, config.d_model, config.d_head

    @cached_property
    def has_heads(self) -> Tensor:
        """Which layers have attention; all, except in a hybrid. `layer`"""
        with_heads = [block.mixer is None for block in self.blocks]
        return torch.tensor(with_heads, device=self.device)

    @property
    def device(self) -> torch.device:
        return self.blocks[0].w_o.device

    @property
    def dtype(self) -> torch.dtype:
        return self.blocks[0].w_o.dtype

    @property
    def causal(self) -> bool:
        """Whether a position reads only itself and earlier positions."""
        return self.attention.causal

    def norm(self, name: str, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of the norm `name`, None if it does not exist. "{}" is replaced by the
        name of this stack.

        `d_model`
        """
        name = name.format(self.attention.name)
        weight = self.raw.get(f"{name}.weight")
        bias = self.raw.get(f"{name}.bias")
        return (
            None if weight is None else weight.to(dtype),
            None if bias is None else bias.to(dtype),
        )

    def writing(self) -> "Weights":
        """The weights reduced to `Block.writing` of every block, without raw tensors."""
        blocks = tuple(block.writing() for block in self.blocks)
        return replace(self, blocks=blocks, raw={})

    def on(self, device: str | torch.device) -> "Weights":
        """The same weights on another device."""
        blocks = tuple(block.to(self.dtype, device) for block in self.blocks)
        raw = {name: tensor.to(device) for name, tensor in self.raw.items()}
        return replace(self, blocks=blocks, raw=raw)


def stored_types(kinds: Iterable[str], names: Mapping[str, str]) -> str:
    """The names of the element types of some tensors, the most frequent first: "Q4_1, float32,
    Q8_0".
    """
    counts = Counter(kinds)
    by_count = sorted(counts, key=lambda kind: (-counts[kind], kind))
    return ", ".join(names.get(kind, kind) for kind in by_count)


def check_finite(values: torch.Tensor, name: str, *, where: object) -> None:
    """Raises ModelError if a weight contains NaN or infinity, because either would spread into
    every result.
    """
    # One pass, without a mask of the tensor's size; NaN takes precedence.
    extremes = torch.stack(torch.aminmax(values))
    if not bool(torch.isfinite(extremes).all()):
        kind = "NaN" if bool(torch.isnan(extremes).any()) else "an infinite number"
        raise refuse(where, f"{name} contains {kind}", "take an undamaged copy of the weights")


def weights_of(model: Model) -> Weights:
    """The weights of the single stack of a loaded model. Raises UnsupportedModel for an
    encoder-decoder, which has several.
    """
    require_single(model.config.architecture, "the reading of a word")
    (weights,) = read_stacks(model.weights, model.config, model.modules).values()
    return weights


def read_stacks(
    raw: Mapping[str, Tensor], config: Config, modules: Modules | None = None
) -> Mapping[str, Weights]:
    """The weights of every attention by its name in the table: "", or "encoder", "decoder" and
    "cross".

    modules: those of the library that run in a block, see `Model.modules`
    """
    stacks: dict[str, Weights] = {}
    for attention in config.family.attentions:
        layers = range(layers_of(attention, config))
        of_layers = [(modules or {}).get(layer, {}) for layer in layers]
        blocks = tuple(
            _block(raw, attention, layer, config, of_layer)
            for layer, of_layer in zip(layers, of_layers, strict=True)
        )
        stacks[attention.name] = Weights(blocks, raw, config, attention)
    return stacks


def layers_of(attention: Attention, config: Config) -> int:
    """The number of layers with this attention."""
    return config.n_decoder_layers if attention.name in ("decoder", "cross") else config.n_layers


def expected_shapes(
    config: Config, stored: Container[str] = ()
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name (without the family's prefix) and shape of every tensor that must exist, and of the
    optional ones in `stored`.

    They are yielded one by one, so that an absurd number of layers costs nothing.
    """
    words = _axis_words(config)
    for name, shape in _named_shapes(config, stored):
        axes, *marks = re.split(" (with bias|without .weight)$", shape)
        sizes = tuple(_length(axis, words) for axis in axes.split())
        yield (name if "without .weight" in marks else f"{name}.weight"), sizes
        if "with bias" in marks:
            yield f"{name}.bias", sizes[-1:] if config.family.transposed else sizes[:1]


def _named_shapes(config: Config, stored: Container[str]) -> Iterator[tuple[str, str]]:
    """`expected_shapes` as raw names without their endings, and shapes in words."""
    family = config.family
    yield from family.outer_shapes.items()
    for attention in family.attentions:
        absent: tuple[str, ...] = ()
        if {"in", "gate"} <= attention.parts.keys():
            # The row lists both forms of MLP (T5); the config states which one the model has.
            absent = ("in",) if config.gated_mlp else ("gate", "up")
        for layer in range(layers_of(attention, config)):
            lacking = absent if layer else (*absent, *attention.absent_in_layer_0)
            parts = dict(attention.parts)
            if attention.mixer is not None and not config.has_heads(layer):
                parts = {role: part for role, part in parts.items() if role not in ROLES_OF_HEADS}
                parts |= {f"mixer {role}": part for role, part in attention.mixer.parts.items()}
            for role, (name, shape) in parts.items():
                if role not in lacking:
                    shape += " with bias" if role in config.biased_roles else ""
                    yield attention.layer_prefix.format(layer) + name, shape
    if config.has_lm_head:
        yield from family.lm_head_shapes.items()
        if not config.tied:
            yield family.unembed, "d_vocab d_model"
    for name, shape in family.optional_weights.items():
        if name in stored:
            yield name, shape


def _axis_words(config: Config) -> dict[str, int]:
    """The words of axes, which `architectures.family` lists, with their lengths in this model."""
    mixer = config.mixer_sizes
    return {
        "d_model": config.d_model,
        "d_head": config.d_head,
        "d_mlp": config.d_mlp,
        "d_shared": config.d_shared,
        "d_vocab": config.d_vocab,
        "heads": config.n_heads,
        "kv_heads": config.n_kv_heads,
        "experts": config.n_experts,
        "positions": config.positions.rows,
        "token_types": config.n_token_types,
        "buckets": config.positions.buckets,
        "kernel": mixer.width,
        "mixer_heads": mixer.heads,
        "d_value": mixer.d_value,
        "channels": 2 * mixer.key_heads * mixer.d_key + mixer.heads * mixer.d_value,
    }


def _length(axis: str, words: Mapping[str, int]) -> int:
    """The length of an axis: a sum of products of words and whole numbers."""
    products = (product.split("*") for product in axis.split("+"))
    return sum(
        math.prod(words[factor] if factor in words else int(factor) for factor in factors)
        for factors in products
    )


def _block(
    weights: Mapping[str, Tensor],
    attention: Attention,
    layer: int,
    config: Config,
    modules: Mapping[str, nn.Module],
) -> Block:
    layer_name = attention.layer_prefix.format(layer)

    def raw(role: str, kind: str = "weight") -> Any:
        # In a parallel block of GPT-J, one norm serves attention and MLP.
        is_parallel = config.family.parallel_attn_mlp
        shares_norm = is_parallel and role == "norm_mlp" and role not in attention.parts
        name, _ = attention.parts.get("norm" if shares_norm else role, ("", ""))
        return weights.get(f"{layer_name}{name}.{kind}")

    def matrix(role: str) -> Any:  # the formulas use input x output
        stored = raw(role)
        return stored if stored is None or config.family.transposed else stored.T

    def scaled(stored: Any) -> Any:
        return stored if stored is None or config.write_scale == 1 else stored * config.write_scale

    gate_up = matrix("gate_up")
    if gate_up is None:
        gate = matrix("gate")
        up = matrix("up")
    else:
        gate, up = gate_up.chunk(2, dim=-1)
    if config.has_heads(layer):
        mixing = _projections(raw, matrix, config, attention.fused_qkv)
        mixing["w_o"] = matrix("o").unflatten(0, (config.n_heads, -1))
        mixing["b_o"] = raw("o", "bias")
    else:
        identity = _identity(config.d_model, weights[config.family.embed + ".weight"])
        mixing = {
            **dict.fromkeys(("w_q", "w_k", "w_v"), identity[:0, :0, None]),
            **dict.fromkeys(("b_q", "b_k", "b_v", "b_o")),
            "w_o": identity[None],
            "mixer": LibraryModule(modules.get("mixer", nn.Identity())),
        }
    return Block(
        **{role: raw(role) for role in NORMS},
        norm_bias=raw("norm", "bias"),
        norm_mlp_bias=raw("norm_mlp", "bias"),
        w_in=matrix("in"),
        b_in=raw("in", "bias"),
        w_gate=gate,
        w_up=up,
        w_out=scaled(matrix("out")),
        b_out=scaled(raw("out", "bias")),
        experts=LibraryModule(modules.get("mlp", nn.Identity())) if config.n_experts else None,
        local=bool(config.local) and config.local[layer],
        rotated=not (config.positions.unrotated and config.positions.unrotated[layer]),
        score_divisor=config.score_divisor(layer),
        **mixing | {role: scaled(mixing[role]) for role in ("w_o", "b_o")},
    )


def _projections(
    raw: Callable[..., Any], matrix: Callable[[str], Any], config: Config, fused: str
) -> dict[str, Any]:
    """Queries, keys and values, from one tensor or three.

    `-> head d_model d_head`, biases `head d_head`
    """
    if fused:
        matrices = _split(matrix("qkv"), config, fused)
        biases = _split(raw("qkv", "bias"), config, fused)
    else:
        matrices = _heads_apart([matrix(role) for role in "qkv"], config)
        biases = _heads_apart([raw(role, "bias") for role in "qkv"], config)
    projections: dict[str, Any] = {}
    for role, weight, bias in zip("qkv", matrices, biases, strict=True):
        projections[f"w_{role}"] = weight.transpose(0, 1)
        projections[f"b_{role}"] = bias
    if config.family.gated_attention:
        projections["w_q"], projections["w_head_gate"] = projections["w_q"].chunk(2, dim=-1)
    return projections


def _split(tensor: Tensor | None, config: Config, fused: str) -> Sequence[Any]:
    """Queries, keys and values of a tensor that contains all three, by role or by head; None
    without one. `... (head d_head), all three together -> ... head d_head`
    """
    if tensor is None:
        return (None, None, None)
    if fused == "by head":
        return tensor.unflatten(-1, (config.n_heads, 3, -1)).unbind(-2)
    widths = [heads * config.d_head for heads in (config.n_heads, *[config.n_kv_heads] * 2)]
    return _heads_apart(tensor.split(widths, dim=-1), config)


def _heads_apart(qkv: Sequence[Any], config: Config) -> list[Any]:
    """Queries, keys and values with a separate axis for heads. `... (head d_head) -> ... head
    d_head`
    """
    counts = (config.n_heads, config.n_kv_heads, config.n_kv_heads)
    return [
        None if part is None else part.unflatten(-1, (heads, -1))
        for part, heads in zip(qkv, counts, strict=True)
    ]
