"""A loaded model as a record, with its sizes and switches; and the common form of loading
errors.
"""

import json
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn

import torch

from probe.errors import InputError, ModelError, UnsupportedModel, whole_number
from probe.model.architectures import FAMILIES, WRAPPERS
from probe.model.architectures.family import Family
from probe.provenance import Origin, content_key, numeric_versions

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import MarianTokenizer, PreTrainedTokenizerFast

RESAVE = "save the model again with save_pretrained"
LISTED = "load a model that `probe models` lists, such as tiny-senses"
# Hooks on a bridge affect everyone who runs it, and bridges around one model share its modules. The
# random state and the loggers belong to the whole process. So only one thread at a time runs a
# bridge, or makes one.
ONE_THREAD = threading.RLock()


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are changed for texts longer than the training texts.

    kind: "linear" slows down all pairs by `factor`; "llama3" and "yarn" slow down pairs that rotate
        fewer than `low` times in `length` tokens, and leave pairs that rotate more than `high`
        times unchanged; "longrope" has a factor for each pair
    whole: whether YaRN rounds to whole pairs
    factors: a factor for each pair ("longrope")
    attention_factor: the factor of the length of rotated queries and keys
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float = 1.0
    low: float = 0.0
    high: float = 0.0
    length: float = 0.0
    whole: bool = True
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0


@dataclass(frozen=True)
class Positions:
    """How a model encodes positions: with a table, rotations, or T5's buckets.

    rows: of the position table
    first: the row of the first token
    dims: the number of rotated coordinates of each head
    base: the base of the rotary frequencies; `rope_scaling` then scales the frequencies
    local_base: the base in local layers, whose frequencies are not scaled; 0 if it is the same
    unrotated: whether each layer has no rotation; empty if all layers have it
    buckets: of the offsets, up to `furthest`
    """

    kind: Literal["learned", "sinusoidal", "rotary", "relative bias"] = "learned"
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
    """The sizes of a hybrid's mixers.

    width: how many positions a convolution reads
    heads, key_heads, d_key, d_value: of a gated delta rule or a state space
    """

    width: int = 0
    heads: int = 0
    key_heads: int = 0
    d_key: int = 0
    d_value: int = 0


@dataclass(frozen=True)
class Config:
    """The sizes and switches of a language model, in the words of this library.

    n_layers: of the encoder, if there is also a decoder
    n_kv_heads: the number of heads of keys and values
    d_vocab: the number of token embeddings
    n_ctx: the longest text, in tokens
    epsilon: of the norms
    tied: whether the unembedding is the transposed token embedding
    has_lm_head: whether the checkpoint has a language-model head
    adds_special_tokens: whether the tokenizer adds special tokens such as [CLS]
    prepend_bos: whether one special token is added at the beginning instead
    split_special_tokens: whether a special token typed in the text is tokenised as plain characters
    local: whether each layer has a sliding window
    window: its size in tokens, including the query's; on either side of the query if the model
        reads both ways
    query_scalar: replaces d_head under the root of the score divisor; 0 without effect
    scores_by_layer: whether scores are also divided by the number of their layer, counted from 1
    attn_logit_softcapping, final_logit_softcapping: bounds of scores and logits; 0 without effect
    embed_scale: the factor of token embeddings
    write_scale: the factor of every write to the stream; the weights of a `Block` include it
    unembed_scale: the factor of W_U
    biased_roles: the letters of "qkvo" that have a bias according to the config
    n_experts: of a routed MLP, `d_mlp` wide each
    d_shared: the width of the expert that every token uses
    wrapper: the `model_type` of the model of images or sound whose text part this is
    mixers: in a hybrid, whether each layer has a mixer instead of attention
    mixer_sizes: the sizes of these mixers
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
    adds_special_tokens: bool = False
    n_decoder_layers: int = 0
    n_token_types: int = 0
    gated_mlp: bool = False
    has_lm_head: bool = True
    split_special_tokens: bool = True
    embed_scale: float = 1.0
    write_scale: float = 1.0
    unembed_scale: float = 1.0
    window: int = 0
    local: tuple[bool, ...] = ()
    query_scalar: float = 0.0
    scores_by_layer: bool = False
    biased_roles: str = ""
    attn_logit_softcapping: float = 0.0
    final_logit_softcapping: float = 0.0
    start_token: int | None = None
    positions: Positions = Positions()
    n_experts: int = 0
    d_shared: int = 0
    wrapper: str = ""
    mixers: tuple[bool, ...] = ()
    mixer_sizes: MixerSizes = MixerSizes()

    def has_heads(self, layer: int) -> bool:
        """Whether a layer has attention; some layers of a hybrid have another mixer."""
        return not (self.mixers and self.mixers[layer])

    def hook_scale(self, quantity: str, layer: int) -> float:
        """The factor that the tensor of a hook still lacks: the hook of a mixer's write comes
        before `write_scale` is applied, all other hooks after it.
        """
        in_front = quantity == "attn_out" and not self.has_heads(layer)
        return self.write_scale if in_front else 1.0

    def score_divisor(self, layer: int) -> float:
        """The divisor of products of queries and keys in a layer; 1 in a family that does not
        divide them.
        """
        if not self.family.divides_scores:
            return 1.0
        root = math.sqrt(self.query_scalar or self.d_head)
        return root * (layer + 1) if self.scores_by_layer else root

    @property
    def attends_plainly(self) -> bool:
        """Whether every layer has attention, and every head's z is A V without a gate."""
        return not (any(self.mixers) or self.family.gated_attention)

    @property
    def heads_in_all(self) -> int:
        """The number of heads of all layers together."""
        return self.n_heads * (self.n_layers - sum(self.mixers))

    @property
    def family(self) -> Family:
        """The row of the table of architectures."""
        return FAMILIES[self.architecture]

    def raw_name(self, name: str) -> str:
        """A tensor's name without the prefix of its class; empty for a tensor outside the text part
        of a model of images or sound.
        """
        return (WRAPPERS[self.wrapper] if self.wrapper else self.family).raw_name(name)


@dataclass(frozen=True, eq=False)
class Model:
    """A model that passed every check of loading: the hooked bridge, and the raw tensors with
    the same numbers.

    weights: Hugging Face names without the family's prefix ("wte.weight",
        "h.0.attn.c_attn.weight"), and tensors in `dtype` on `device`; they include the unembedding
        only if it is not tied to the embedding
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
        """Raises InputError: the bridge holds functions that cannot be pickled, and a deep copy
        of it would still read parts of this one.
        """
        raise InputError(
            f"Cannot copy the Model {self.name} (pickle, copy.deepcopy): its bridge cannot be "
            "copied. Pass on the name, folder or object that it was loaded from, and load that "
            "again."
        )

    def __copy__(self) -> "Model":
        return replace(self)

    @property
    def modules(self) -> dict[int, dict[str, torch.nn.Module]]:
        """The library's own modules that run in some layers, because the formulas here are those of
        attention and plain MLPs: "mixer", which replaces attention, and a routed "mlp".
        """
        modules: dict[int, dict[str, torch.nn.Module]] = {}
        for layer in range(self.config.n_layers):
            names = {"mlp": "mlp"} if self.config.n_experts else {}
            mixer = self.config.family.attentions[0].mixer
            if mixer is not None and not self.config.has_heads(layer):
                names["mixer"] = mixer.write_hook.partition(".")[0]
            modules[layer] = {
                role: getattr(self.bridge.blocks[layer], name).original_component
                for role, name in names.items()
            }
        return modules

    @property
    def settings(self) -> str:
        """The settings of the model: those that the formulas read, and the whole config of its
        library, without the folder that it came from.
        """
        library = self.bridge.original_model.config.to_dict()
        library.pop("_name_or_path", None)
        return repr(self.config) + json.dumps(library, sort_keys=True, default=str)

    @property
    def key(self) -> str:
        """A hash of everything in the model that its numbers depend on: weights, settings, device,
        dtype, and the versions of the libraries.

        The tokenizer is not included, because the numbers of given tokens do not depend on it.
        """
        compute = (str(self.device), str(self.dtype), *numeric_versions())
        return content_key(self.origin.sha256, self.settings, compute)

    @property
    def key_with_tokenizer(self) -> str:
        """`key` with the rules of the tokenizer, for the numbers of texts."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)  # Marian's has none
        rules = self.tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
        # Set by every call that pads or truncates; no text is padded or truncated here.
        for name in ("padding", "truncation"):
            rules.pop(name, None)
        return content_key(self.key, rules, self.tokenizer.bos_token_id)

    def __repr__(self) -> str:
        c = self.config
        layers = f"{c.n_layers} + {c.n_decoder_layers}" if c.n_decoder_layers else str(c.n_layers)
        size = f"{layers} layers x {c.n_heads} heads, d_model {c.d_model}"
        origin = self.origin
        file = f", {origin.file} stored in {origin.stored}" if origin.is_quantised else ""
        return f"<Model {self.name}: {size}, {origin.kind}{file}>"


def require_heads(config: Config, doing: str, instead: str) -> None:
    """Raises UnsupportedModel, naming `doing`, for a hybrid, because some of its layers have no
    heads, and for gated heads, whose z is not A V alone.
    """
    if config.attends_plainly:
        return
    problem = "its heads are gated"
    if any(config.mixers):
        problem = f"{sum(config.mixers)} of its {config.n_layers} layers have no attention"
    raise UnsupportedModel(
        f"Cannot do {doing} with a {config.family.name} model: {problem}. {_capitalised(instead)}."
    )


def require_head(
    model: Model, layer: int, head: int, *, doing: str, layers: int | None = None
) -> None:
    """Raises InputError, naming `doing`, for a layer or head that a model does not have, and for a
    layer without attention.

    layers: the number of layers; by default those of a single stack
    """
    sizes = {"layer": layers or model.config.n_layers, "head": model.config.n_heads}
    for (name, size), number in zip(sizes.items(), (layer, head), strict=True):
        if whole_number(number) is None or not 0 <= number < size:
            raise InputError(
                f"{doing} of {model.name}: {name} is {number!r}, expected 0 to {size - 1}. Choose "
                "one of these."
            )
    if not model.config.has_heads(layer):
        raise InputError(
            f"{doing} of {model.name}: its layer {layer} has no attention, and no heads. Give a "
            "layer with attention."
        )


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def refuse(where: object, problem: str, step: str) -> ModelError:
    """The common form of loading errors: the model, the problem and the next step."""
    return ModelError(f"Cannot load {where}: {problem}. {_capitalised(step)}.")


def unsupported(where: object, problem: str, step: str) -> UnsupportedModel:
    """`refuse` for a model whose numbers are not certified."""
    return UnsupportedModel(f"Cannot load {where}: {problem}. {_capitalised(step)}.")
