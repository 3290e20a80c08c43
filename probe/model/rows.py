"""The comparison, quantity by quantity: what the hooks held against the same from the raw weights.

Each layer starts from the stream that the hooks saw enter it, and that is held against the layer before, the first against
the embedding: every number of the stream follows from the token ids through rows that all have to hold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probe.model import ends, forward
from probe.model.architectures import FAMILIES, Attention
from probe.model.config import Config
from probe.model.hooks import Reading
from probe.model.weights import Block

if TYPE_CHECKING:
    from probe.model.load import Model
ROUNDED = 1e-6  # a softmax in float32: a few times its rounding of 1.2e-7
FLOAT32_SOFTMAX = "the model's own softmax is in float32"
EXACT = torch.float64


@dataclass(frozen=True)
class Compared:
    """One quantity of one layer: what was seen, what was expected, and where only a wider `tolerance` is possible."""

    stack: str
    layer: int | None
    quantity: str
    formula: str
    seen: Tensor
    expected: Tensor
    note: str = ""
    tolerance: float | None = None


def compare(model: "Model", reading: Reading, ids: Sequence[int], target: Sequence[int] | None) -> Iterator[Compared]:
    """Every row of one text (and its target), in the order of the computation. Works on the CPU in float64."""
    weights = {name: tensor.cpu() for name, tensor in model.weights.items()}
    config, family = model.config, FAMILIES[model.config.architecture]
    given = {"": ids, "encoder": ids, "decoder": target or ()}
    for attention in family.attentions:
        if attention.name == "cross":
            entering = _between(weights, reading, config)
        else:
            entering = _stream(weights, reading, given[attention.name], config, attention)
        n = reading.tensors[attention.name]["q"].shape[-2]
        bias = forward.position_bias(weights, config, attention, n)
        for layer, block in enumerate(reading.stacks[attention.name].blocks):
            bare = block.to(EXACT, "cpu")
            yield from entering[layer]
            yield from _attention_rows(model, reading, attention, layer, block=bare, bias=bias)
            if bare.w_out is not None:
                yield from _mlp_rows(reading, attention, layer, bare, config)
    if config.has_head:
        side = "decoder" if family.kind == "encoder-decoder" else ""
        last = reading.tensors[side]["resid_post"][-1].to(EXACT)
        expected = ends.logits(weights, ends.finish(weights, last, config, side=side), config)
        yield Compared("", None, "logits", "unembedding of the last stream", reading.logits, expected)


def _stream(
    weights: Mapping[str, Tensor], reading: Reading, ids: Sequence[int], config: Config, attention: Attention
) -> list[list[Compared]]:
    """What enters each layer: the embedding, then what left the layer before."""
    name, seen = attention.name, reading.tensors[attention.name]
    first = ends.embed(weights, torch.tensor(ids), config, side=name, dtype=EXACT)
    rows = [Compared(name, 0, "resid_pre", "embedding of the tokens", seen["resid_pre"][0], first)]
    for layer in range(1, len(seen["resid_pre"])):
        here, before = seen["resid_pre"][layer], seen["resid_post"][layer - 1]
        rows.append(Compared(name, layer, "resid_pre", "resid_post of the layer before", here, before))
    return [[row] for row in rows]


def _between(weights: Mapping[str, Tensor], reading: Reading, config: Config) -> list[list[Compared]]:
    """What enters each cross-attention: the decoder's stream behind its self-attention, and the encoder's output."""
    seen, decoder = reading.tensors["cross"], reading.tensors["decoder"]["resid_mid"]
    left = ends.finish(weights, reading.tensors["encoder"]["resid_post"][-1].to(EXACT), config, side="encoder")
    return [
        [
            Compared("cross", layer, "resid_pre", "the decoder's resid_mid", seen["resid_pre"][layer], before),
            Compared("cross", layer, "memory", "what left the encoder", seen["memory"][layer], left),
        ]
        for layer, before in enumerate(decoder)
    ]


def _attention_rows(
    model: "Model", reading: Reading, attention: Attention, layer: int, *, block: Block, bias: Tensor | None
) -> Iterator[Compared]:
    config, single = model.config, FAMILIES[model.config.architecture].single == "norm and softmax"
    seen = {name: tensor[layer] for name, tensor in reading.tensors[attention.name].items()}
    seen["delta_e"] = _own_writes(model, seen["z"], attention, layer)
    rounded = single and model.dtype == EXACT
    steps = forward.attend(
        block,
        seen["resid_pre"].to(EXACT),
        config,
        attention,
        bias=None if bias is None else bias.to(EXACT),
        memory=seen["memory"].to(EXACT) if "memory" in seen else None,
        pattern=seen["pattern"] if rounded else None,
    )
    for name, formula in formulas_of(attention, config).items():
        wider = ROUNDED if rounded and name == "pattern" else None
        note = f"repaired: {attention.lies[name].instead}" if name in attention.lies else ""
        note = FLOAT32_SOFTMAX if wider else note
        yield Compared(attention.name, layer, name, formula, seen[name], steps[name], note, wider)


def _mlp_rows(reading: Reading, attention: Attention, layer: int, block: Block, config: Config) -> Iterator[Compared]:
    seen = reading.tensors[attention.name]
    middle = reading.tensors["cross" if attention.name == "decoder" else attention.name]["resid_mid"][layer]
    steps = forward.mlp(block, middle.to(EXACT), seen["resid_pre"][layer].to(EXACT), config)
    last = FAMILIES[config.architecture]
    formula = {"mlp_out": "MLP", "resid_post": "E′ + MLP" if last.norm_first else f"{last.norm}(E′ + MLP)"}
    for name, tensor in steps.items():
        yield Compared(attention.name, layer, name, formula[name], seen[name][layer], tensor)


def _own_writes(model: "Model", z: Tensor, attention: Attention, layer: int) -> Tensor:
    """ΔE of every head by the running model's own output projection, given one head at a time. `-> head pos d_model`

    With the raw W_O on both sides, heads in the wrong order would agree with themselves.
    """
    held = z.to(model.device)
    alone = torch.eye(len(z), dtype=z.dtype, device=held.device)[:, None, :, None] * held.transpose(0, 1)
    part = getattr(getattr(model.bridge, attention.blocks)[layer], attention.hooks["q"].partition(".")[0]).o
    with torch.inference_mode():
        return (part(alone.flatten(2)) - part(torch.zeros_like(alone).flatten(2))).cpu()


def formulas_of(attention: Attention, config: Config) -> dict[str, str]:
    """The formula behind each quantity of an attention, in the order of the computation."""
    family = FAMILIES[config.architecture]
    read = "x" if attention.name != "cross" else "memory"
    biased = {role: f" + b_{role.upper()}" if "+" in _shape(attention, role) else "" for role in "qkvo"}
    matched = "Q Kᵀ / √d_head" if family.scaled else "Q Kᵀ"
    matched = "rotated " + matched if family.positions == "rotary" else matched
    matched += " + bias" if family.positions == "relative bias" and attention.name != "cross" else ""
    written = "E + Σ ΔE" + biased["o"]
    return {
        "x": f"{family.norm}(E)" if family.norm_first else "E",
        "q": f"x W_Q{biased['q']}",
        "k": f"{read} W_K{biased['k']}",
        "v": f"{read} W_V{biased['v']}",
        "scores": matched + (", masked" if attention.causal else ""),
        "pattern": "softmax(scores)",
        "z": "A V",
        "delta_e": "z W_O, every head",
        "attn_out": f"Σ ΔE{biased['o']}",
        "resid_mid": written if family.norm_first else f"{family.norm}({written})",
    }


def _shape(attention: Attention, role: str) -> str:
    return attention.parts[role if role in attention.parts else "qkv"][1]
