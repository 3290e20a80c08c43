"""Raw tensors by the table: which must be there and of which shape, and the same arranged per attention, layer and head."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from probe.model.architectures import FAMILIES, Attention
from probe.model.config import Config


@dataclass(frozen=True)
class Block:
    """The weights of one attention of one layer, and of the MLP behind it where there is one; None where the family has none.

    `w_q: head d_model d_head`, `w_k w_v: kv_head d_model d_head`, `b_q b_k b_v: head d_head`, `w_o: head d_head d_model`,
    `w_in w_gate w_up: d_model d_mlp`, `w_out: d_mlp d_model`; `w_gate` and `w_up` in a gated MLP in place of `w_in`.
    """

    norm: Tensor
    norm_bias: Tensor | None
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    w_o: Tensor
    b_o: Tensor | None
    norm_mlp: Tensor | None = None
    norm_mlp_bias: Tensor | None = None
    w_in: Tensor | None = None
    b_in: Tensor | None = None
    w_gate: Tensor | None = None
    w_up: Tensor | None = None
    w_out: Tensor | None = None
    b_out: Tensor | None = None

    @property
    def d_mlp(self) -> int:
        """The width of the MLP behind this attention, 0 where there is none."""
        return 0 if self.w_out is None else self.w_out.shape[0]

    def to(self, dtype: torch.dtype, device: str) -> "Block":
        held: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: tensor if tensor is None else tensor.to(device, dtype) for name, tensor in held.items()
        }
        return Block(**moved)


@dataclass(frozen=True)
class Stack:
    """All layers of one attention (`probe.model.architectures.Attention`) of a model."""

    blocks: tuple[Block, ...]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """How many layers, heads, d_model, d_head."""
        heads, d_model, d_head = self.blocks[0].w_q.shape
        return len(self.blocks), heads, d_model, d_head


def layers_of(attention: Attention, config: Config) -> int:
    """How many layers this attention has."""
    return config.n_decoder_layers if attention.name in ("decoder", "cross") else config.n_layers


def family_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name (without the family's prefix) and shape of every tensor that must be there, lazily, layer by layer."""
    family = FAMILIES[config.architecture]
    for name, shape in family.outside.items():
        yield from _sized(name, shape, config)
    for attention in family.attentions:
        for layer in range(layers_of(attention, config)):
            for role, (name, shape) in attention.parts.items():
                if not _left_out(role, attention, config):
                    yield from _sized(attention.layers.format(layer) + name, shape, config)
    if config.has_head:
        for name, shape in family.head.items():
            yield from _sized(name, shape, config)
        if not config.tied:
            yield from _sized(family.unembed, "v d", config)


def optional_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of tensors that are read where a file holds them."""
    for name, shape in FAMILIES[config.architecture].optional.items():
        yield from _sized(name, shape, config)


def _left_out(role: str, attention: Attention, config: Config) -> bool:
    """Where the table gives both forms of MLP, the config says which one the model has."""
    both = {"in", "gate"} <= set(attention.parts)
    return both and role in (("in",) if config.gated else ("gate", "up"))


def _sized(name: str, shape: str, config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    *words, last = shape.split()
    words += [] if last in "+=" else [last]
    sizes = tuple(_size(word, config) for word in words)
    yield (name if last == "=" else name + ".weight"), sizes
    if last == "+":
        yield name + ".bias", sizes[:1]


def _size(word: str, config: Config) -> int:
    heads, places = config.n_heads * config.d_head, config.positions
    return {
        "1": 1,
        "d": config.d_model,
        "h": heads,
        "3h": 3 * heads,
        "g": config.n_kv_heads * config.d_head,
        "m": config.d_mlp,
        "v": config.d_vocab,
        "p": places.rows,
        "t": config.n_token_types,
        "b": places.buckets,
        "n": config.n_heads,
    }[word]


def read_stacks(weights: Mapping[str, Tensor], config: Config) -> Mapping[str, Stack]:
    """Every attention's weights by its name in the table, as views of the raw tensors."""
    return {
        attention.name: Stack(
            tuple(
                _block(weights, attention, layer, heads=(config.n_heads, config.n_kv_heads))
                for layer in range(layers_of(attention, config))
            )
        )
        for attention in FAMILIES[config.architecture].attentions
    }


def _block(weights: Mapping[str, Tensor], attention: Attention, layer: int, *, heads: tuple[int, int]) -> Block:
    def raw(role: str, kind: str = "weight") -> Any:
        name = attention.parts[role][0] if role in attention.parts else ""
        return weights.get(f"{attention.layers.format(layer)}{name}.{kind}")

    def turned(role: str) -> Any:  # files hold out x in, formulas in x out
        return raw(role) if raw(role) is None else raw(role).T

    projections = _fused(raw, heads[0]) if "qkv" in attention.parts else _apart(raw, heads)
    return Block(
        norm=raw("norm"),
        norm_bias=raw("norm", "bias"),
        w_o=turned("o").unflatten(0, (heads[0], -1)),
        b_o=raw("o", "bias"),
        norm_mlp=raw("norm_mlp"),
        norm_mlp_bias=raw("norm_mlp", "bias"),
        w_in=turned("in"),
        b_in=raw("in", "bias"),
        w_gate=turned("gate"),
        w_up=turned("up"),
        w_out=turned("out"),
        b_out=raw("out", "bias"),
        **projections,
    )


def _apart(raw: Callable[..., Any], heads: tuple[int, int]) -> dict[str, Any]:
    """Queries, keys and values each in a tensor of its own: (head d_head) d_model -> head d_model d_head."""
    found: dict[str, Any] = {}
    for role, number in zip("qkv", (heads[0], heads[1], heads[1]), strict=True):
        bias = raw(role, "bias")
        found[f"w_{role}"] = raw(role).unflatten(0, (number, -1)).transpose(-1, -2)
        found[f"b_{role}"] = None if bias is None else bias.unflatten(0, (number, -1))
    return found


def _fused(raw: Callable[..., Any], heads: int) -> dict[str, Any]:
    """GPT-NeoX keeps the three of a head together: (head 3 d_head) d_model -> three of head d_model d_head."""
    weight, bias = raw("qkv").unflatten(0, (heads, 3, -1)), raw("qkv", "bias").unflatten(0, (heads, 3, -1))
    parts = {f"w_{role}": weight[:, number].transpose(-1, -2) for number, role in enumerate("qkv")}
    return parts | {f"b_{role}": bias[:, number] for number, role in enumerate("qkv")}
