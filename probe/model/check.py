"""The certificate: the hooked model against the same numbers computed from the raw weights,
quantity by quantity.

One side is TransformerLens's hooks on the running model. The other is `probe.model.forward` in
float64, from the checkpoint's tensors. Each layer starts from the stream that the hooks saw enter
it, and that is held against the layer before, the first against the embedding of the token ids:
every number of the stream follows from the ids through rows that all have to hold. Errors are
relative to the scale (largest absolute value) of the tensor they are in: at most 1e-5 for a float32
model, 1e-12 for a float64 one. A hook that holds something else is replaced, and its row says so.
The logits are held against plain Hugging Face as well.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import CrossCheckError
from probe.model import forward
from probe.model.architectures.family import Attention, Family
from probe.model.bridge import plain_model
from probe.model.hooks import HookedRun, read
from probe.model.load import ModelSource, load
from probe.model.model import Config, Model
from probe.model.tokens import target_tokens, tokenize
from probe.model.weights import Block, Weights

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DEFAULT_TEXTS = ("Make a deposit at the bank", "A fluffy blue creature roamed the verdant forest")
MASKED = -1e30
ROUNDED = 1e-6  # a softmax in float32: a few times its rounding of 1.2e-7
FLOAT32_SOFTMAX = "the model's own softmax is in float32"
FLOAT32_SCORES = "recomputed from q.k in float32, as the model's own"
PLAIN_ROUNDED = "Hugging Face and the hooked model do not round to float32 in the same place"
EXACT = torch.float64


@dataclass(frozen=True)
class Row:
    """One comparison: `error` = largest |hooked - scratch| / `scale`, over all texts; `layer` None
    is the whole model.

    `stack` tells the attentions of an encoder-decoder apart; `note` says which hook was replaced
    and how, or why the tolerance is a wider one.
    """

    layer: int | None
    quantity: str
    formula: str
    error: float
    scale: float
    tolerance: float
    stack: str = ""
    note: str = ""

    @property
    def where(self) -> str:
        """The place in words: "layer 3", "cross layer 0", "the whole model"."""
        return (
            "the whole model" if self.layer is None else f"{self.stack} layer {self.layer}".strip()
        )

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN, too

    @property
    def badness(self) -> float:
        """The error, infinite where it is NaN."""
        return math.inf if math.isnan(self.error) else self.error


@dataclass(frozen=True)
class Certificate:
    """All rows of a check, in the order of the computation."""

    model_name: str
    dtype: str
    texts: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def worst(self) -> Row:
        """The row nearest to, or furthest beyond, its tolerance."""
        return max(self.rows, key=lambda row: row.badness)

    def require(self) -> "Certificate":
        """Itself when every row holds; otherwise raises CrossCheckError naming the first row that
        fell short."""
        for row in self.rows:
            if not row.ok:
                raise CrossCheckError(
                    f"Checking {self.model_name} against the from-scratch math: {row.quantity} of {row.where} is off "
                    f"by {row.error:.1e} of its scale, expected at most {row.tolerance:.0e}; nothing is reported from "
                    "numbers that disagree: run `probe check` on this model to see every row."
                )
        return self


def certify(model: ModelSource, texts: Sequence[str] = DEFAULT_TEXTS) -> Certificate:
    """The hooked model against the from-scratch forward; the worst error per layer and quantity of
    all texts counts.

    An encoder-decoder reads each text as source and as target. Raises InputError for a text the
    model cannot take. Does not raise for a failing row: see `Certificate.require`.

    Example:
        >>> certificate = probe.certify("tiny-senses")
        >>> certificate.ok, certificate.worst.tolerance
        (True, 1e-05)
    """
    return _certificate(load(model), texts, [(text, text) for text in texts])


def certify_pair(model: Model, source: str, target: str) -> Certificate:
    """The same of an encoder-decoder that reads these two texts. Raises InputError where it cannot."""
    return _certificate(model, (source, target), [(source, target)])


def _certificate(
    model: Model, texts: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> Certificate:
    plain = plain_model(model) if model.config.has_head else None
    with torch.inference_mode():
        runs = [list(_rows(model, source, target, plain)) for source, target in pairs]
    rows = tuple(max(same, key=lambda row: row.badness) for same in zip(*runs, strict=True))
    return Certificate(model.name, str(model.dtype).removeprefix("torch."), tuple(texts), rows)


def _row(
    stack: Weights,
    layer: int | None,
    named: tuple[str, str],
    seen: Tensor,
    expected: Tensor,
    *,
    note: str = "",
    tolerance: float | None = None,
) -> Row:
    """One comparison; `named` are the quantity and its formula, `tolerance` a wider one than the
    type's."""
    error, scale = _difference(seen, expected)
    name = "" if layer is None else stack.attention.name
    return Row(layer, *named, error, scale, tolerance or TOLERANCE[stack.dtype], name, note)


def _difference(seen: Tensor, expected: Tensor) -> tuple[float, float]:
    """The largest error relative to the scale, and the scale; entries that both sides mask are left
    out of both."""
    seen, expected = seen.double(), expected.double()
    masked = expected < MASKED
    if not torch.equal(seen < MASKED, masked):
        return math.inf, 1.0
    seen, expected = seen.masked_fill(masked, 0), expected.masked_fill(masked, 0)
    scale = expected.abs().max().item()
    gap = (seen - expected).abs().max().item()
    return (gap / scale if scale else (math.inf if gap else 0.0)), scale


def _rows(model: Model, text: str, answer: str, plain: torch.nn.Module | None) -> Iterator[Row]:
    """Every row of one text (and its target), in the order of the computation. Works on the CPU in
    float64."""
    config, family = model.config, model.config.family
    ids = tokenize(model, text).ids
    target = target_tokens(model, answer).ids if config.start_token is not None else None
    reading = read(model, ids, target)
    stacks = {name: stack.on("cpu") for name, stack in reading.stacks.items()}
    given = {"": ids, "encoder": ids, "decoder": target or ()}
    for name, stack in stacks.items():
        entering = (
            _between(stacks, reading) if name == "cross" else _stream(stack, reading, given[name])
        )
        bias = forward.position_bias(stack, reading.tensors[name]["q"].shape[-2])
        for layer, block in enumerate(stack.blocks):
            bare = block.to(EXACT, "cpu")
            yield from entering[layer]
            yield from _attention_rows(model, reading, stack, layer, block=bare, bias=bias)
            if bare.w_out is not None:
                yield from _mlp_rows(reading, stack, layer, bare)
    side = stacks["decoder" if family.kind == "encoder-decoder" else ""]
    if config.has_head:
        last = reading.tensors[side.attention.name]["resid_post"][-1].to(EXACT)
        named = ("logits", "unembedding of the last stream")
        yield _row(side, None, named, reading.logits, forward.unembed(side, last))
    if plain is not None:
        named, logits = (
            ("logits, Hugging Face", "hooked against the plain model"),
            _plain_logits(plain, ids, target),
        )
        note, tolerance = (
            (PLAIN_ROUNDED, ROUNDED) if family.plain_rounds and model.dtype == EXACT else ("", None)
        )
        yield _row(side, None, named, reading.logits, logits, note=note, tolerance=tolerance)


def _plain_logits(
    plain: torch.nn.Module, ids: Sequence[int], target: Sequence[int] | None
) -> Tensor:
    device = next(plain.parameters()).device
    asked = {"input_ids": torch.tensor([list(ids)], device=device)}
    if target is not None:
        asked["decoder_input_ids"] = torch.tensor([list(target)], device=device)
    return plain(**asked).logits[0].cpu()


def _stream(stack: Weights, reading: HookedRun, ids: Sequence[int]) -> list[list[Row]]:
    """What enters each layer: the embedding, then what left the layer before."""
    seen = reading.tensors[stack.attention.name]
    first = forward.embed(stack, torch.tensor(ids), EXACT)
    rows = [[_row(stack, 0, ("resid_pre", "embedding of the tokens"), seen["resid_pre"][0], first)]]
    named = ("resid_pre", "resid_post of the layer before")
    for layer, (here, before) in enumerate(
        zip(seen["resid_pre"][1:], seen["resid_post"], strict=False), 1
    ):
        rows.append([_row(stack, layer, named, here, before)])
    return rows


def _between(stacks: Mapping[str, Weights], reading: HookedRun) -> list[list[Row]]:
    """What enters each cross-attention: the decoder's stream behind its self-attention, and the
    encoder's output."""
    seen, decoder = reading.tensors["cross"], reading.tensors["decoder"]["resid_mid"]
    left = forward.final_norm(
        stacks["encoder"], reading.tensors["encoder"]["resid_post"][-1].to(EXACT)
    )
    stream, memory = ("resid_pre", "the decoder's resid_mid"), ("memory", "what left the encoder")

    def rows(layer: int, before: Tensor) -> list[Row]:
        entering = _row(stacks["cross"], layer, stream, seen["resid_pre"][layer], before)
        return [entering, _row(stacks["cross"], layer, memory, seen["memory"][layer], left)]

    return [rows(layer, before) for layer, before in enumerate(decoder)]


def _attention_rows(
    model: Model,
    reading: HookedRun,
    stack: Weights,
    layer: int,
    *,
    block: Block,
    bias: Tensor | None,
) -> Iterator[Row]:
    attention, single = stack.attention, stack.config.family.in_float32
    seen = {name: tensor[layer] for name, tensor in reading.tensors[attention.name].items()}
    seen["delta_e"] = _own_writes(model, seen["z"], attention, layer)
    rounded = "softmax" in single and model.dtype == EXACT
    memory, pattern = (
        seen["memory"].to(EXACT) if "memory" in seen else None,
        seen["pattern"] if rounded else None,
    )
    steps = forward.attend(
        stack, block, seen["resid_pre"].to(EXACT), bias=bias, memory=memory, pattern=pattern
    )
    for name, formula in formulas_of(attention, stack.config).items():
        wider = ROUNDED if rounded and (name == "pattern" or name in single) else None
        note = (
            f"replaced: {attention.unreliable_hooks[name].instead}"
            if name in attention.unreliable_hooks
            else ""
        )
        note = (FLOAT32_SOFTMAX if name == "pattern" else FLOAT32_SCORES) if wider else note
        yield _row(
            stack, layer, (name, formula), seen[name], steps[name], note=note, tolerance=wider
        )


def _mlp_rows(reading: HookedRun, stack: Weights, layer: int, block: Block) -> Iterator[Row]:
    name, unreliable_hooks, family = (
        stack.attention.name,
        stack.attention.unreliable_hooks,
        stack.config.family,
    )
    seen, middle = (
        reading.tensors[name],
        reading.tensors["cross" if name == "decoder" else name]["resid_mid"][layer],
    )
    steps = forward.mlp(block, middle.to(EXACT), seen["resid_pre"][layer].to(EXACT), stack.config)
    formula = {"mlp_out": "MLP", "resid_post": _summed("E′", "MLP", family)}
    for quantity, tensor in steps.items():
        note = (
            f"replaced: {unreliable_hooks[quantity].instead}"
            if quantity in unreliable_hooks
            else ""
        )
        yield _row(
            stack, layer, (quantity, formula[quantity]), seen[quantity][layer], tensor, note=note
        )


def _own_writes(model: Model, z: Tensor, attention: Attention, layer: int) -> Tensor:
    """ΔE of every head by the running model's own output projection, given one head at a time. `->
    head pos d_model`

    With the raw W_O on both sides, heads in the wrong order would agree with themselves.
    """
    held = z.to(model.device)
    alone = torch.eye(len(z), dtype=z.dtype, device=held.device)[:, None, :, None] * held.transpose(
        0, 1
    )
    part = getattr(
        getattr(model.bridge, attention.blocks)[layer], attention.hooks["q"].partition(".")[0]
    ).o
    return (part(alone.flatten(2)) - part(torch.zeros_like(alone).flatten(2))).cpu()


def formulas_of(attention: Attention, config: Config) -> dict[str, str]:
    """The formula behind each quantity of an attention, in the order of the computation."""
    family = config.family
    read = "x" if attention.name != "cross" else "memory"
    parts = {role: attention.parts.get(role) or attention.parts["qkv"] for role in "qkvo"}
    biased = {
        role: f" + b_{role.upper()}" if "+" in shape else "" for role, (_, shape) in parts.items()
    }
    matched = f"Q Kᵀ / √{config.query_scalar:g}" if config.query_scalar else "Q Kᵀ / √d_head"
    matched = matched if family.scaled else "Q Kᵀ"
    matched = "rotated " + matched if family.positions == "rotary" else matched
    matched = "normed, " + matched if "norm_q" in attention.parts else matched
    matched = f"capped({matched})" if config.attn_logit_softcapping else matched
    matched += (
        " + bias" if family.positions == "relative bias" and attention.name != "cross" else ""
    )
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
        "resid_mid": _summed("E", f"Σ ΔE{biased['o']}", family),
    }


def _summed(stream: str, written: str, family: Family) -> str:
    """What a block adds to the stream, with the norms on the way, as a formula."""
    added = (
        f"{stream} + {family.norm}({written})"
        if family.norm_after_write
        else f"{stream} + {written}"
    )
    return f"{family.norm}({added})" if family.norm_after_sum else added
