"""A loaded model as a record, with its sizes and switches; the one form of a refusal to load."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch

from probe.errors import InputError, ModelError, UnsupportedModel
from probe.model.architectures import FAMILIES
from probe.model.architectures.family import Family
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import MarianTokenizer, PreTrainedTokenizerFast

RESAVE = "save the model again with save_pretrained"
LISTED = "load one of those that `probe models` lists, such as tiny-senses"


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are changed for texts longer than those of training.

    `factor` slows pairs down: all of them ("linear"), or those that turn seldom in a text of
    `length` tokens: fewer than `low` times; those that turn more than `high` times are left alone
    ("llama3", "yarn", which rounds to `whole` pairs). `factors` are those of every pair
    ("longrope"). Rotated queries and keys become `stretch` times as long.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float = 1.0
    low: float = 0.0
    high: float = 0.0
    length: float = 0.0
    whole: bool = True
    factors: tuple[float, ...] = ()
    stretch: float = 1.0


@dataclass(frozen=True)
class Positions:
    """How a model knows where a token stands: the rows of its table and which is the first, or
    rotary, or T5's buckets, or ALiBi's slopes, which follow from the number of heads.

    `dims` coordinates of each head are rotated at the `base` frequency, scaled as `rope_scaling`
    says, plainly at `local_base` in local layers where that is not 0, and not at all in the layers
    that are `unrotated`; offsets fall into `buckets` up to `furthest`.
    """

    kind: Literal["learned", "sinusoidal", "rotary", "relative bias", "alibi"] = "learned"
    rows: int = 0
    first: int = 0
    dims: int = 0
    base: float = 0.0
    local_base: float = 0.0
    rope_scaling: RopeScaling | None = None
    unrotated: tuple[bool, ...] = ()
    buckets: int = 0
    furthest: int = 0


@dataclass(frozen=True)
class MixerSizes:
    """The sizes of what stands in the place of attention in some layers of a hybrid: `width`, how
    many positions a convolution sees; of a gated delta rule or a state space the number of its
    `heads` and of its `key_heads`, and `d_key` and `d_value`."""

    width: int = 0
    heads: int = 0
    key_heads: int = 0
    d_key: int = 0
    d_value: int = 0


@dataclass(frozen=True)
class Config:
    """The sizes and switches of a language model, in the words used everywhere in `probe`.

    `n_ctx` is the longest text in tokens, `d_vocab` the number of token embeddings, `epsilon` the
    norms'. `tied` says that the unembedding is the transposed token embedding; `n_layers` are those
    of the encoder where there is a decoder, too; `n_kv_heads` heads hold keys and values;
    `has_head` is False when the checkpoint holds no language-model head; `special_tokens` says that
    the tokenizer puts its own, such as [CLS], `prepend_bos` that one is put in front instead, and
    `split_special_tokens` that one which is written in a text is text.
    Layers that are `local` see a sliding window of `window` tokens, their own among them; where
    they read both ways, so many on either side of their own. `query_scalar` stands under the root
    in place of d_head; `scores_by_layer` says that scores are also divided by the number of their
    layer, counted from 1; `attn_logit_softcapping` and `final_logit_softcapping` bound scores and
    logits; 0 where there is none. Token embeddings are multiplied by `embed_scale`, all that is
    written to the stream by `write_scale`, which the weights of a `Block` hold, and W_U by
    `unembed_scale`. The config says of those in `biased`, letters of "qkvo", that they have biases.

    A routed MLP gives a token to `n_chosen` of its `n_experts` experts, `d_mlp` wide each, and to a
    shared one of `d_shared`; `normed_shares` says that the shares of the chosen ones sum to 1.
    `swiglu_sharpness` and `swiglu_limit` are those of a clamped gate, 0 where there is none.
    `wrapper` is the `model_type` of the model of images or sound whose text part this is.

    In a hybrid the layers that are `mixers` have no attention, and no heads, but what the row of
    the table says, of the sizes `mixer_sizes`.
    """

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    n_ctx: int
    d_vocab: int
    causal: bool
    epsilon: float
    activation: str
    prepend_bos: bool
    tied: bool = True
    special_tokens: bool = False
    n_decoder_layers: int = 0
    n_token_types: int = 0
    gated: bool = False
    has_head: bool = True
    split_special_tokens: bool = True
    embed_scale: float = 1.0
    write_scale: float = 1.0
    unembed_scale: float = 1.0
    window: int = 0
    local: tuple[bool, ...] = ()
    query_scalar: float = 0.0
    scores_by_layer: bool = False
    biased: str = ""
    attn_logit_softcapping: float = 0.0
    final_logit_softcapping: float = 0.0
    start_token: int | None = None
    positions: Positions = Positions()
    n_experts: int = 0
    n_chosen: int = 0
    d_shared: int = 0
    normed_shares: bool = True
    swiglu_sharpness: float = 0.0
    swiglu_limit: float = 0.0
    wrapper: str = ""
    mixers: tuple[bool, ...] = ()
    mixer_sizes: MixerSizes = MixerSizes()

    def has_heads(self, layer: int) -> bool:
        """Whether a layer has attention; in a hybrid some have another mixer in its place."""
        return not (self.mixers and self.mixers[layer])

    def hook_scale(self, quantity: str, layer: int) -> float:
        """What the tensor of a hook is still to be multiplied by: what a mixer writes is hooked in
        front of the scale of all that is written, everything else behind it."""
        in_front = quantity == "attn_out" and not self.has_heads(layer)
        return self.write_scale if in_front else 1.0

    def score_divisor(self, layer: int) -> float:
        """What products of queries and keys are divided by in a layer; 1 in a family that does not
        divide them."""
        if not self.family.scaled:
            return 1.0
        root = math.sqrt(self.query_scalar or self.d_head)
        return root * (layer + 1) if self.scores_by_layer else root

    @property
    def attends_plainly(self) -> bool:
        """Whether every layer has attention, and z of every head is A V, not gated."""
        return not (any(self.mixers) or self.family.gated_heads)

    @property
    def heads_in_all(self) -> int:
        """How many heads all layers have together."""
        return self.n_heads * (self.n_layers - sum(self.mixers))

    @property
    def family(self) -> Family:
        """The row of the table of architectures."""
        return FAMILIES[self.architecture]


@dataclass(frozen=True, eq=False)
class Model:
    """A model that passed every check of loading: the hooked bridge, and the raw tensors the same
    numbers come from.

    `weights` maps Hugging Face names without the family's prefix ("wte.weight",
    "h.0.attn.c_attn.weight") to tensors in `dtype` on `device`; the unembedding is there only when
    it is not tied to the embedding.
    """

    name: str
    bridge: "TransformerBridge"
    tokenizer: "PreTrainedTokenizerFast | MarianTokenizer"
    config: Config
    weights: Mapping[str, torch.Tensor]
    origin: Origin
    device: torch.device
    dtype: torch.dtype

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raises InputError: the bridge holds functions that no pickle takes, and a deep copy of it
        would go on reading parts of this one."""
        raise InputError(
            f"Copying the Model {self.name} (pickle, copy.deepcopy): its bridge cannot be copied; "
            "pass on the name, folder or object that it was loaded from, and load that again."
        )

    def __copy__(self) -> "Model":
        return replace(self)

    @property
    def said(self) -> str:
        """Its name, and where hooks stand on it that were kept: what a result says it is of."""
        return f"{self.name}, {self.origin.hooked}" if self.origin.hooks else self.name

    def __repr__(self) -> str:
        c = self.config
        layers = f"{c.n_layers} + {c.n_decoder_layers}" if c.n_decoder_layers else str(c.n_layers)
        size = f"{layers} layers x {c.n_heads} heads, d_model {c.d_model}"
        origin = self.origin
        file = f", {origin.file} stored in {origin.stored}" if origin.is_quantised else ""
        hooks = f", {origin.hooked}" if origin.hooks else ""
        return f"<Model {self.name}: {size}, {origin.kind}{file}{hooks}>"


def require_heads(config: Config, doing: str, instead: str) -> None:
    """Raises UnsupportedModel, naming `doing`, for a hybrid: some of its layers have no attention,
    and what they do is no matter of heads; and for gated heads, whose z is more than A V."""
    if config.attends_plainly:
        return
    problem = "its heads are gated"
    if any(config.mixers):
        problem = f"{sum(config.mixers)} of its {config.n_layers} layers have no attention"
    raise UnsupportedModel(
        f"Cannot do {doing} with a {config.family.name} model: {problem}; {instead}."
    )


def refuse(where: object, problem: str, step: str) -> ModelError:
    """The one form that every refusal to load has: what was tried, what was found, what to do."""
    return ModelError(f"Cannot load {where}: {problem}; {step}.")


def unsupported(where: object, problem: str, step: str) -> UnsupportedModel:
    """The same of a model whose numbers nobody has certified."""
    return UnsupportedModel(f"Cannot load {where}: {problem}; {step}.")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from `file`. Raises ModelError when it is absent, not UTF-8 JSON, or not an
    object."""
    if not file.is_file():
        raise refuse(
            file.parent, f"{file.name} is missing", RESAVE + " so that the folder is complete"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_hook=_special_float)
    except (ValueError, RecursionError, OSError) as error:
        raise refuse(
            file.parent, f"{file.name} is not readable JSON ({str(error)[:80]})", RESAVE
        ) from error
    if not isinstance(content, dict):
        raise refuse(file.parent, f"{file.name} is not a JSON object", RESAVE)
    return content


def _special_float(entry: dict[str, Any]) -> Any:
    """The number for which transformers writes {"__float__": "Infinity"}; any other object as it
    is."""
    named = entry.get("__float__")
    return float(named) if entry.keys() == {"__float__"} and isinstance(named, str) else entry
