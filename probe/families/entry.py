"""What the table says of a family, as records: an attention's place among hooks and raw names, and what a family has in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class Repair:
    """A hook that lies (`raw`, within its block; empty where there is none) and, in words, what the trace holds instead."""

    raw: str
    instead: str


@dataclass(frozen=True)
class Attention:
    """One attention per layer: its `name` in an encoder-decoder, its place among the hooks, and its mask.

    `hooks` maps quantities of a Trace to hooks within the block; `lies` maps quantities to hooks that are something else.
    `layers` is the beginning of the raw names of a layer, `parts` the raw name and shape of each weight behind it.
    """

    name: Literal["", "encoder", "decoder", "cross"]
    blocks: str
    hooks: Mapping[str, str]
    layers: str
    parts: Mapping[str, tuple[str, str]]
    causal: bool = False
    lies: Mapping[str, Repair] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """What is common to every model of one architecture; `headless` names the classes that have no language-model head.

    `single` says what the architecture's own code computes in float32 whatever the model's type: the variance of its norms,
    all of its norms, or its norms and its softmax. `outside` and `head` are the weights of no layer, by raw name and shape;
    `unembed` is among them only when it is not the transposed `embed`. `ignored` may be there: no formula reads it.
    """

    name: str
    kind: Kind
    architectures: tuple[str, ...]
    headless: tuple[str, ...] = ()
    prefix: str = ""
    norm: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    norm_first: bool = True
    positions: Literal["learned", "sinusoidal", "rotary", "relative bias"] = "learned"
    scaled: bool = True
    single: Literal["", "variance", "norm", "norm and softmax"] = ""
    parallel: bool = False
    attentions: tuple[Attention, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    head: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    embed: str = ""
    unembed: str = "lm_head"
    ignored: tuple[str, ...] = ()
