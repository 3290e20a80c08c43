"""An encoder-decoder on a source and a target text: its three attentions, cross-attention with its rectangular pattern."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probe.errors import InputError
from probe.model import hooks
from probe.model.handover import pair_for_bertviz
from probe.model.load import Model
from probe.model.records import HeadWrites, Trace
from probe.model.tokens import Tokens, tokenize
from probe.model.weights import Stack

HEAD_VECTORS = {"q": "target", "z": "target", "k": "source", "v": "source"}
STREAMS = ("x", "resid_pre", "attn_out", "resid_mid")


@dataclass(frozen=True, eq=False)
class CrossTrace(HeadWrites):
    """Cross-attention of every decoder layer: queries from the target, keys and values from the encoder's output, no mask.

    `q z: layer head query_pos d_head` · `k v: layer head key_pos d_head` · `scores pattern: layer head query_pos key_pos` ·
    `x resid_pre attn_out resid_mid: layer query_pos d_model`, the decoder's stream · `memory: layer key_pos d_model`.
    query_pos counts `tokens`, the decoder's input; key_pos counts `source`.
    """

    tokens: Tokens
    source: Tokens
    model_name: str
    stack: Stack
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
    memory: Tensor

    def __post_init__(self) -> None:
        layers, heads, d_model, d_head = self.stack.shape
        sizes = {"target": len(self.tokens), "source": len(self.source)}
        expected: dict[str, tuple[int, ...]] = {
            name: (layers, heads, sizes[side], d_head) for name, side in HEAD_VECTORS.items()
        }
        expected |= dict.fromkeys(("scores", "pattern"), (layers, heads, sizes["target"], sizes["source"]))
        expected |= dict.fromkeys(STREAMS, (layers, sizes["target"], d_model))
        expected["memory"] = (layers, sizes["source"], d_model)
        for name, wanted in expected.items():
            if tuple(getattr(self, name).shape) != wanted:
                got = tuple(getattr(self, name).shape)
                raise ValueError(f"cross-attention trace: {name} has shape {got}, expected {wanted}")

    def _require_place(self, **place: int) -> None:
        layers, heads, *_ = self.stack.shape
        for (name, number), size in zip(place.items(), (layers, heads, len(self.tokens)), strict=True):
            lowest = -size if name == "at" else 0
            if not lowest <= number < size:
                raise InputError(
                    f"Taking ΔE out of a cross-attention trace: {name} is {number}, expected {lowest} to {size - 1}; "
                    "choose one of these."
                )

    def __repr__(self) -> str:
        layers, heads, *_ = self.stack.shape
        size = f"{len(self.tokens)} x {len(self.source)} tokens"
        return f"<CrossTrace of {size} through {self.model_name}: {layers} layers x {heads} heads>"


@dataclass(frozen=True, eq=False)
class PairTrace:
    """A source and a target text through an encoder-decoder: `encoder` and `decoder` are traces of self-attention.

    The decoder reads `target`: the model's start token, then the target text without its last special token. Between its
    resid_mid and its MLP stands `cross`, so its resid_post is cross.resid_mid and the MLP. `logits: query_pos d_vocab`.
    """

    source: Tokens
    target: Tokens
    encoder: Trace
    decoder: Trace
    cross: CrossTrace

    @property
    def logits(self) -> Tensor:
        return self.decoder.logits

    def to_bertviz(self) -> dict[str, Any]:
        """The keyword arguments of BertViz's head_view and model_view for all three attentions: see `probe.model.handover`."""
        return pair_for_bertviz(self)

    def __repr__(self) -> str:
        size = f"{len(self.source)} source and {len(self.target)} target tokens"
        return f"<PairTrace of {size} through {self.cross.model_name}>"


def trace_pair(model: Model, source: str, target: str) -> PairTrace:
    """Run `source` through the encoder and `target` through the decoder once and keep everything.

    Raises InputError for an empty or over-long text.
    """
    read, given = tokenize(model, source), target_tokens(model, target)
    reading = hooks.read(model, read.ids, given.ids)
    parts, stacks = reading.tensors, reading.stacks
    name = model.name
    return PairTrace(
        source=read,
        target=given,
        encoder=Trace(tokens=read, model_name=name, stack=stacks["encoder"], head_output=None, **parts["encoder"]),
        decoder=Trace(
            tokens=given, model_name=name, stack=stacks["decoder"], head_output=reading.logits, **parts["decoder"]
        ),
        cross=CrossTrace(tokens=given, source=read, stack=stacks["cross"], model_name=name, **parts["cross"]),
    )


def target_tokens(model: Model, target: str) -> Tokens:
    """What the decoder reads when it has to predict `target`: the start token in front, the last special token left away."""
    whole, start = tokenize(model, target), model.config.start_token
    if start is None:
        raise InputError(f"Tracing a target text through {model.name}: it has no decoder; give one text only.")
    kept = len(whole) - (whole.spans[-1] == (0, 0))
    piece = model.tokenizer.convert_ids_to_tokens(start) or ""
    return Tokens(
        target, (start, *whole.ids[:kept]), (piece, *whole.pieces[:kept]), ((0, 0), *whole.spans[:kept]), True
    )
