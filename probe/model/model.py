"""A loaded model as a record, and its sizes and switches: read from a config by the table of
architectures, refused where absurd or where the formulas do not hold.

A folder, a GGUF file and an existing bridge are held to the same rules. Sizes come from the file,
never from a default: a config that leaves one out is refused. A key that would make the formulas
another model's must have its standard value.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch

from probe.errors import InputError, ModelError, UnsupportedModel
from probe.model.architectures import FAMILIES, WRAPPERS
from probe.model.architectures.family import Family, Keys
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import MarianTokenizer, PreTrainedTokenizerFast

LOCAL = {"sliding_attention": True, "local": True, "full_attention": False, "global": False}
ATTENDS = "full_attention"  # what a list of kinds calls a layer with attention
# What older configs call them, as transformers reads it in any family.
OLDER_KINDS = {"attention": ATTENDS, "mamba": "linear_attention"}
AUTO_MAP = "auto_map"  # names classes in files that come with a model
MOST_LAYERS = 10_000  # what a config may promise before any tensor is looked at
RESAVE = "save the model again with save_pretrained"
LISTED = "load one of those that `probe models` lists, such as tiny-senses"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_bloom": "gelu_bloom",
    "relu": "relu",
    "relu2": "relu_squared",
}
ACTIVATIONS |= {"silu": "silu", "swish": "silu"}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# What a router does that is certified, by the keys of those that do something else.
ROUTERS: dict[str, tuple[Any, ...]] = {
    "scoring_func": ("softmax",),
    "topk_method": ("greedy", None),
    "n_group": (1, None),
    "routed_scaling_factor": (1.0, None),
}
BASES = ("rope_theta", "rotary_emb_base", "global_rope_theta")
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


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
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise refuse(
            file.parent, f"{file.name} is not readable JSON ({str(error)[:80]})", RESAVE
        ) from error
    if not isinstance(content, dict):
        raise refuse(file.parent, f"{file.name} is not a JSON object", RESAVE)
    return content


def read_config(folder: Path, *, prepend_bos: bool) -> Config:
    """The config of `folder`. Raises ModelError for what is missing or absurd, UnsupportedModel for
    other models."""
    raw = read_json(folder / "config.json")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        kind = raw.get("model_type", "gpt2")  # the first checkpoints of GPT-2 name no type
        rows = {name: family.architectures[0] for name, family in FAMILIES.items()}
        rows |= {name: wrapper.architecture for name, wrapper in WRAPPERS.items()}
        if not isinstance(kind, str) or kind not in rows:
            raise _unknown(folder, f"its model_type is {kind!r}", raw)
        problem = f"config.json does not name one architecture (got {architectures!r})"
        known = rows[kind]
        step = f'add "architectures": ["{known}"] to config.json if that is what the model is'
        raise refuse(folder, problem, step)
    return config_from(
        raw, where=folder, architecture=str(architectures[0]), prepend_bos=prepend_bos
    )


def config_from(
    raw: Mapping[str, Any], *, where: object, architecture: str, prepend_bos: bool
) -> Config:
    """Hugging Face's config keys in `probe`'s words.

    Raises UnsupportedModel for a family or class beyond the table, ModelError for absurd sizes.
    """
    kind = str(raw.get("model_type"))
    family = FAMILIES.get(kind)
    wrapper = WRAPPERS.get(kind)
    known: tuple[str, ...] = () if wrapper is None else (wrapper.architecture,)
    if family is not None:
        known = (*family.architectures, *family.headless)
    if architecture not in known and family is not None:
        listed = " or ".join(dict.fromkeys(family.architectures))
        problem = f"it is a {architecture}, and of model_type {kind!r} {listed} is certified"
        raise unsupported(where, problem + _own_code(raw), "give one of that class")
    if architecture not in known:
        named = f"its architecture is {architecture} (model_type {kind!r})"
        raise _unknown(where, named, raw)
    if raw.get("quantization_config"):
        problem = "it is quantized (quantization_config)"
        raise unsupported(where, problem, "load a plain float checkpoint")
    if family is None:
        text = _text_part(raw, where)
        named = FAMILIES[text["model_type"]].architectures[0]
        config = config_from(text, where=where, architecture=named, prepend_bos=prepend_bos)
        return replace(config, wrapper=kind)
    keys = family.keys
    raw = {**raw, **{ours: raw[name] for name, ours in keys.other_names.items() if name in raw}}
    _refuse_variants(raw, family, where)
    free = {"d_mlp"} if keys.wide and raw.get(keys.sizes["d_mlp"]) is None else set()
    sizes = {
        ours: size_from(raw.get(key), key, where)
        for ours, key in keys.sizes.items()
        if ours not in free
    }
    if keys.mlp_rounded is not None:
        sizes["d_mlp"] = _rounded_mlp(raw, keys.mlp_rounded, sizes["d_mlp"], where)
    n_heads = sizes["n_heads"]
    d_model = sizes["d_model"]
    d_head = sizes.get("d_head") or _head_size(raw, keys, sizes, where)
    if n_heads * d_head != d_model and not family.free_heads:
        raise ModelError(
            f"A config has {n_heads} heads of {d_head} dimensions and d_model {d_model}, which is "
            "not their product; correct the sizes."
        )
    activation, gated = _activation(raw, keys, where)
    kv_key, usual_kv = keys.kv_heads
    kv_heads = size_from(raw.get(kv_key) or usual_kv or n_heads, kv_key, where)
    if n_heads % kv_heads:
        problem = f"{n_heads} heads cannot share {kv_key} = {kv_heads} evenly"
        raise refuse(where, problem, "correct its config")
    has_decoder = family.kind == "encoder-decoder"
    window, local = _windows(raw, keys, sizes["n_layers"], where)
    scaled = raw.get("scale_embedding") or family.scaled_embedding
    tied = raw.get("tie_word_embeddings", keys.tied) is not False
    scales = {what: _scale(raw, key, where) for what, key in keys.scales.items()}
    query_scalar = _above_0(raw, keys.query_scalar, where)
    sizes |= {"n_kv_heads": kv_heads, "d_head": d_head}
    positions = _positions(raw, family, sizes, where)
    sizes["n_ctx"] = _context(raw, keys, sizes, where)
    if positions.rope_scaling is not None and positions.rope_scaling.factors:
        # a longer text has other frequencies from its first token on
        sizes["n_ctx"] = min(sizes["n_ctx"], int(positions.rope_scaling.length))
    usual: dict[str, Any] = {
        "d_mlp": 4 * d_model,
        "n_decoder_layers": sizes["n_layers"] if has_decoder else 0,
    }
    return Config(
        **(usual | sizes),
        architecture=kind,
        causal=family.kind == "decoder",
        epsilon=_epsilon(raw, keys, where),
        activation=activation,
        prepend_bos=prepend_bos and not family.special_tokens,
        tied=tied,
        special_tokens=family.special_tokens,
        n_token_types=raw.get("type_vocab_size", 2) if family.type_table else 0,
        gated=gated or family.gated,
        has_head=architecture not in family.headless,
        embed_scale=scales.get("embed", d_model**0.5 if scaled else 1.0),
        write_scale=scales.get("write", 1.0),
        unembed_scale=_unembed_scale(family, scales, d_model, tied=tied),
        window=window,
        local=local,
        query_scalar=scales["scores"] ** -2 if "scores" in scales else query_scalar,
        scores_by_layer=bool(keys.scores_by_layer and raw.get(keys.scores_by_layer)),
        biased="".join(roles for key, (usual, roles) in keys.biases.items() if raw.get(key, usual)),
        attn_logit_softcapping=_above_0(raw, keys.attn_logit_softcapping, where),
        final_logit_softcapping=_above_0(raw, keys.final_logit_softcapping, where),
        start_token=_start_token(raw, keys, where) if has_decoder else None,
        positions=positions,
        **_routing(raw, family, where),
        **_mixing(raw, family, sizes["n_layers"], where),
    )


def row_of(raw: Mapping[str, Any]) -> str:
    """The `model_type` whose row a config is read by: its own, or that of its text part."""
    kind = str(raw.get("model_type"))
    wrapper = WRAPPERS.get(kind)
    if wrapper is None:
        return kind
    return wrapper.text or str((raw.get("text_config") or {}).get("model_type"))


def _text_part(raw: Mapping[str, Any], where: object) -> dict[str, Any]:
    """The config of the text part of a model of images or sound. What it leaves out is what its
    class in transformers takes: the published ones name hardly more than differs from that."""
    from transformers import AutoConfig

    try:
        whole = AutoConfig.for_model(**raw)
    except Exception as error:  # broad, because its validation raises direct children of Exception
        problem = f"transformers refuses its config.json ({' '.join(str(error).split())[:120]})"
        raise refuse(where, problem, "correct that entry or take the original file") from error
    text = whole.get_text_config().to_dict()
    kind = WRAPPERS[str(raw["model_type"])].text or str(text["model_type"])
    if kind not in FAMILIES:
        raise _unknown(where, f"the model_type of its text part is {kind!r}", raw)
    tied = getattr(whole, "tie_word_embeddings", text.get("tie_word_embeddings"))
    return text | {"model_type": kind, "tie_word_embeddings": tied}


def _rounded_mlp(
    raw: Mapping[str, Any],
    rounded: tuple[tuple[str, bool], tuple[str, float], tuple[str, int]],
    stated: int,
    where: object,
) -> int:
    """d_mlp where the config states a width that is still to be made smaller and round."""
    asked, factor, multiple = rounded
    if not raw.get(*asked):
        return stated
    times = raw.get(*factor)
    if not _is_number(times):
        raise refuse(where, f"{factor[0]} is {times!r} in its config", "give a number above 0")
    of = size_from(raw.get(*multiple), multiple[0], where)
    return math.ceil(int(times * int(2 * stated / 3)) / of) * of


def _mixing(raw: Mapping[str, Any], family: Family, n_layers: int, where: object) -> dict[str, Any]:
    """Which layers of a hybrid have no attention, and the sizes of what they have. Raises
    ModelError where the config does not say it of every layer, UnsupportedModel where none has
    attention."""
    mixer = family.attentions[0].mixer
    if mixer is None:
        return {}
    _require_layers(n_layers, family.keys, where)
    kinds = raw.get(mixer.kinds)
    numbers = raw.get(mixer.attention_layers)
    if kinds is None and isinstance(numbers, list):
        kinds = [ATTENDS if layer in numbers else mixer.kind for layer in range(n_layers)]
    every, usual = mixer.attention_every
    if kinds is None and every:
        interval = size_from(raw.get(every, usual), every, where)
        attends = [(layer + 1) % interval == 0 for layer in range(n_layers)]
        kinds = [ATTENDS if here else mixer.kind for here in attends]
    if isinstance(kinds, list):
        kinds = [OLDER_KINDS.get(str(kind), kind) for kind in kinds]
    known = (ATTENDS, mixer.kind)
    if not (
        isinstance(kinds, list) and len(kinds) == n_layers and all(kind in known for kind in kinds)
    ):
        problem = f"{mixer.kinds} does not say which of its {n_layers} layers have attention"
        raise refuse(where, problem, "correct its config")
    mixers = tuple(kind == mixer.kind for kind in kinds)
    if all(mixers):
        problem = f"none of its {n_layers} layers has attention"
        raise unsupported(where, problem, "load a model with at least one layer of heads")
    sizes = {ours: size_from(raw.get(key), key, where) for ours, key in mixer.sizes.items()}
    found = MixerSizes(**sizes)
    if found.key_heads and found.heads % found.key_heads:
        key = mixer.sizes["key_heads"]
        problem = f"{found.heads} heads cannot share {key} = {found.key_heads} evenly"
        raise refuse(where, problem, "correct its config")
    return {"mixers": mixers, "mixer_sizes": found}


def _routing(raw: Mapping[str, Any], family: Family, where: object) -> dict[str, Any]:
    """The numbers of a routed MLP. Raises UnsupportedModel where a config has experts and its
    family none, or a router that no formula covers."""
    routed = family.routed
    if routed is None:
        key = next((key for key in EXPERTS if raw.get(key)), "")
        if key:
            problem = f"{key} is {raw[key]!r} in its config, and {family.name} is certified"
            step = f"load a standard {family.name}"
            raise unsupported(where, f"{problem} without a router and experts only", step)
        return {}
    for key, usual in ROUTERS.items():
        if raw.get(key, usual[0]) not in usual:
            problem = f"{key} of its router is {raw[key]!r} in its config"
            certified = f"and only {usual[0]!r} is certified"
            raise unsupported(where, f"{problem}, {certified}", "load another model")
    key = next((key for key in routed.experts if key in raw), routed.experts[0])
    experts = size_from(raw.get(key), key, where)
    chosen = size_from(raw.get(routed.chosen), routed.chosen, where)
    if chosen > experts:
        problem = f"{routed.chosen} is {chosen} and {key} {experts} in its config"
        raise refuse(where, problem, "correct its config")
    normed = raw.get(*routed.normed) if routed.normed[0] else routed.normed[1]
    if not isinstance(normed, bool):
        problem = f"{routed.normed[0]} is {normed!r} in its config"
        raise refuse(where, problem, "give true or false")
    sharpness, limit = routed.clamp
    return {
        "n_experts": experts,
        "n_chosen": chosen,
        "d_shared": size_from(raw.get(routed.shared), routed.shared, where) if routed.shared else 0,
        "normed_shares": normed,
        "swiglu_sharpness": _above_0(raw, sharpness, where),
        "swiglu_limit": _above_0(raw, limit, where),
    }


def _unknown(where: object, problem: str, raw: Mapping[str, Any]) -> UnsupportedModel:
    known = f"which is none of the {len(FAMILIES)} families whose numbers are certified"
    return unsupported(where, f"{problem}, {known}{_own_code(raw)}", LISTED)


def _own_code(raw: Mapping[str, Any]) -> str:
    """Why the code that comes with a model does not help; empty where there is none."""
    said = f", and code that comes with a model ({AUTO_MAP}) is never run"
    return said if raw.get(AUTO_MAP) else ""


def _refuse_variants(raw: Mapping[str, Any], family: Family, where: object) -> None:
    standard = f"load a standard {family.name}"
    for key, usual in family.keys.must.items():
        if raw.get(key, usual[0]) not in usual:
            covered = f"the from-scratch check covers {family.name} with {usual[0]!r} only"
            raise unsupported(
                where, f"{key} is {raw[key]!r} in its config, and {covered}", standard
            )
    for one, other in family.keys.equal:
        if raw.get(one) != raw.get(other, raw.get(one)):
            differ = f"{one} is {raw.get(one)!r} and {other} {raw[other]!r} in its config"
            certified = f"{family.name} is certified where the two are equal"
            raise unsupported(where, f"{differ}, and {certified}", standard)


def size_from(value: object, key: str, where: object) -> int:
    """A whole number of at least 1. Raises ModelError, naming `key`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(
            where, f"{key} is {value!r} in its config", "give a whole number of at least 1"
        )
    return value


def _is_number(value: object, *, below: float = math.inf) -> bool:
    """Whether it is a number above 0 and below the bound."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < below


def _head_size(raw: Mapping[str, Any], keys: Keys, sizes: Mapping[str, int], where: object) -> int:
    if raw.get("head_dim"):
        return size_from(raw["head_dim"], "head_dim", where)
    if sizes["d_model"] % sizes["n_heads"]:
        width = f"{keys.sizes['d_model']} is {sizes['d_model']}"
        heads = f"{keys.sizes['n_heads']} = {sizes['n_heads']} heads"
        problem = f"{width} and does not divide evenly among {heads}"
        raise refuse(where, problem, "correct its config")
    return sizes["d_model"] // sizes["n_heads"]


def _activation(raw: Mapping[str, Any], keys: Keys, where: object) -> tuple[str, bool]:
    """The activation by the name of its formula in `probe.model.attention`, and whether T5 gates
    it."""
    key, usual = keys.activation
    stated = str(raw.get(key, usual)) if key else usual
    gated = stated.startswith("gated-")
    name = stated.removeprefix("gated-")
    name = keys.meant.get(name, name)
    if gated and name == "gelu":
        name = "gelu_new"  # what T5's own config turns "gated-gelu" into
    if name not in ACTIVATIONS:
        problem = f"{key} is {stated!r} in its config; known are {', '.join(ACTIVATIONS)}"
        raise unsupported(where, problem, "load a standard model")
    return ACTIVATIONS[name], gated


def _epsilon(raw: Mapping[str, Any], keys: Keys, where: object) -> float:
    """The number a norm adds to the variance. Raises ModelError for anything but a number between 0
    and 1."""
    key, usual = keys.epsilon
    epsilon = raw.get(key, usual)
    if not _is_number(epsilon, below=1):
        raise refuse(where, f"{key} is {epsilon!r}", "give a number between 0 and 1 in config.json")
    return float(epsilon)


def _above_0(raw: Mapping[str, Any], key: tuple[str, float | None], where: object) -> float:
    """A number above 0 where the family has the key, 0 where it has not or the config says null."""
    name, usual = key
    value = raw.get(name, usual) if name else None
    if value is None:
        return 0.0
    if not _is_number(value):
        raise refuse(where, f"{name} is {value!r} in its config", "give a number above 0")
    return float(value)


def _scale(raw: Mapping[str, Any], key: str, where: object) -> float:
    """A constant that something is multiplied by, 1 where it is absent. Raises ModelError for
    anything but a number above 0."""
    value = raw.get(key, 1.0)
    if not _is_number(value):
        raise refuse(where, f"{key} is {value!r} in its config", "give a number above 0")
    return float(value)


def _unembed_scale(
    family: Family, scales: Mapping[str, float], d_model: int, *, tied: bool
) -> float:
    """What W_U is multiplied by."""
    if family.unembed_scaled and tied:
        return float(d_model**-0.5)
    return 1 / scales.get("logits", 1.0)


def _windows(
    raw: Mapping[str, Any], keys: Keys, n_layers: int, where: object
) -> tuple[int, tuple[bool, ...]]:
    """The sliding window of local layers, and which layers are local; 0 and none where a family or
    a model has no such."""
    name, usual = keys.window
    is_used = bool(name) and (not keys.window_used or bool(raw.get(keys.window_used)))
    if not is_used or raw.get(name, usual) is None:
        return 0, ()
    stated = size_from(raw.get(name, usual), name, where)
    window = stated // 2 if keys.halved else stated
    if not window:
        raise refuse(where, f"{name} is {stated} in its config", "give one of at least 2")
    _require_layers(n_layers, keys, where)
    kinds: Any = raw.get(keys.kinds)
    every = raw.get(*keys.global_every)
    if kinds is None and isinstance(every, int) and every >= 0:
        ahead = 0 if keys.global_first else 1
        between = _local_between(raw, keys, n_layers, where)
        return window, tuple(
            layer in between and (not every or (layer + ahead) % every > 0)
            for layer in range(n_layers)
        )
    try:
        named = list(_kinds_of_layers(kinds))
        if len(named) != n_layers:
            raise ValueError(f"{len(named)} kinds of {n_layers} layers")
        return window, tuple(LOCAL[name] for name in named)
    except (KeyError, TypeError, ValueError) as error:
        key = keys.kinds or keys.global_every[0]
        problem = f"{key} does not say which of its {n_layers} layers are local"
        raise refuse(where, problem, "correct its config") from error


def _local_between(raw: Mapping[str, Any], keys: Keys, n_layers: int, where: object) -> range:
    """The layers that may be local where no list says which are."""
    ends = []
    for (key, usual), unlimited in ((keys.local_from, 0), (keys.local_below, n_layers)):
        value = raw.get(key, usual) if key else unlimited
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            problem = f"{key} is {value!r} in its config"
            raise refuse(where, problem, "give a whole number of layers")
        ends.append(value)
    return range(*ends)


def _require_layers(n_layers: int, keys: Keys, where: object) -> None:
    """Raises ModelError for more layers than anything should be made for."""
    if n_layers > MOST_LAYERS:
        raise refuse(
            where, f"{keys.sizes['n_layers']} is {n_layers:,} in its config", "correct its config"
        )


def _kinds_of_layers(kinds: Any) -> Iterator[str]:
    """The kind of every layer, from a list of kinds, or from GPT-Neo's of kinds and how often they
    come again."""
    for kind in kinds:
        if isinstance(kind, str):
            yield kind
            continue
        names, times = kind
        for _ in range(min(times, MOST_LAYERS)):
            yield from names


def _context(raw: Mapping[str, Any], keys: Keys, sizes: Mapping[str, int], where: object) -> int:
    key, usual = keys.context
    if usual:
        # such positions have no end; this is the length that the family was trained on
        return size_from(raw.get(key, usual), key, where)
    taken = 0 if keys.reserved else _first_row(raw, keys)
    return size_from(sizes["n_ctx"] - taken, keys.sizes["n_ctx"], where)


def _first_row(raw: Mapping[str, Any], keys: Keys) -> int:
    """The first token's row in the position table: RoBERTa's is behind the padding's, BART keeps
    two free."""
    if isinstance(keys.first, int):
        return keys.first
    key, usual = keys.first
    return int(raw.get(key, usual)) + 1


def _positions(
    raw: Mapping[str, Any], family: Family, sizes: Mapping[str, int], where: object
) -> Positions:
    if family.positions == "relative bias":
        buckets = size_from(
            raw.get("relative_attention_num_buckets", 32), "relative_attention_num_buckets", where
        )
        furthest = size_from(
            raw.get("relative_attention_max_distance", 128),
            "relative_attention_max_distance",
            where,
        )
        return Positions("relative bias", buckets=buckets, furthest=furthest)
    if family.positions == "rotary":
        return _rotary(raw, family, sizes, where)
    if family.positions == "alibi":
        return Positions("alibi")
    rows = sizes["n_ctx"] + family.keys.reserved
    return Positions(family.positions, rows=rows, first=_first_row(raw, family.keys))


def _rotary(
    raw: Mapping[str, Any], family: Family, sizes: Mapping[str, int], where: object
) -> Positions:
    """Either spelling: rope_parameters, or rope_theta / rotary_emb_base, rotary_pct and
    rope_scaling."""
    keys = family.keys
    key = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    stated = _entries(raw.get(key) or {}, key, where)
    local = _entries(stated.get("sliding_attention") or {}, f"sliding_attention of {key}", where)
    whole = _entries(stated.get("full_attention") or stated, f"full_attention of {key}", where)
    base = whole.get("rope_theta") or next(filter(None, map(raw.get, BASES)), keys.rotary_base)
    local_base = local.get("rope_theta") or _above_0(raw, keys.local_base, where)
    for number in (base, local_base):
        if number != 0 and not _is_number(number):
            raise refuse(where, f"rope_theta is {number!r} in its config", "give a number above 0")
    dims = _rotary_dims(raw, whole, keys, sizes["d_head"], where)
    kind = rope_kind(local)
    if kind != "default":
        problem = f"rope_type is {kind!r} for its local layers"
        step = "load a model whose local layers have plain rotary positions"
        raise unsupported(where, f"{problem}, and only 'default' is certified there", step)
    return Positions(
        "rotary",
        dims=dims,
        base=float(base),
        local_base=float(local_base),
        rope_scaling=_rope_scaling(raw, whole, stated.get("truncate", True), dims, where),
        unrotated=_unrotated(raw, keys, sizes["n_layers"], where),
    )


def _rotary_dims(
    raw: Mapping[str, Any], stated: Mapping[str, Any], keys: Keys, d_head: int, where: object
) -> int:
    """How many coordinates of a head are rotated: a number, or a share of all."""
    if keys.rotary_dims:
        key = keys.rotary_dims
        dims = size_from(raw.get(key), key, where)
    else:
        key = "rotary_pct" if "rotary_pct" in raw else "partial_rotary_factor"
        share = stated.get("partial_rotary_factor", raw.get(key, keys.rotary_share))
        if not _is_number(share) or share > 1:
            raise refuse(where, f"{key} is {share!r} in its config", "give a number from 0 to 1")
        dims = int(d_head * share)
    if dims % 2 or not 0 < dims <= d_head:
        problem = f"{key} leaves {dims} of {d_head} dimensions of a head to its rotary positions"
        raise refuse(where, problem, "correct its config, so that they go in pairs")
    return dims


def _entries(value: Any, key: str, where: object) -> Mapping[str, Any]:
    """An object of a config. Raises ModelError, naming `key`, for anything else."""
    if not isinstance(value, Mapping):
        raise refuse(where, f"{key} is {value!r} in its config", "give an object with a rope_type")
    return value


def rope_kind(stated: Mapping[str, Any]) -> Any:
    """The name of a scaling of rotary positions; "default" where there is none."""
    return stated.get("rope_type", stated.get("type", "default"))


def _rope_scaling(
    raw: Mapping[str, Any], stated: Mapping[str, Any], whole: object, dims: int, where: object
) -> RopeScaling | None:
    """How the frequencies are scaled. Raises UnsupportedModel for a scaling that no formula covers,
    ModelError for one whose numbers are not there."""
    kind = rope_kind(stated)
    if kind in ("default", "dynamic"):
        # dynamic scaling begins behind max_position_embeddings, which is as far as a text may go
        return None
    if kind not in ROPE_KINDS:
        problem = f"rope_type of its rotary positions is {kind!r}"
        certified = f"certified are {', '.join(map(repr, ROPE_KINDS))} only"
        step = "load a model with one of these"
        raise unsupported(where, f"{problem}, and {certified}", step)
    length = original_length(raw, stated)

    def number(key: str, usual: object = None) -> float:
        value = usual if stated.get(key) is None else stated[key]
        if not _is_number(value):
            problem = f"{key} of its rotary positions is {value!r}"
            raise refuse(where, problem, "give a number in config.json")
        return float(value)  # type: ignore[arg-type]

    if kind == "linear":
        return RopeScaling("linear", number("factor"))
    if not _is_number(length):
        number("original_max_position_embeddings")
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        return RopeScaling("llama3", number("factor"), low, high, float(length))
    if kind == "yarn":
        factor = number("factor")
        fast = number("beta_fast", 32)
        slow = number("beta_slow", 1)
        stretch = number("attention_factor", _yarn_stretch(stated, factor))
        return RopeScaling("yarn", factor, slow, fast, float(length), whole is True, (), stretch)
    factors = stated.get("short_factor")
    of_pairs = factors if isinstance(factors, list) else []
    if len(of_pairs) != dims // 2 or not all(map(_is_number, of_pairs)):
        problem = f"short_factor of its rotary positions is not a list of {dims // 2} numbers"
        raise refuse(where, problem, "correct its config")
    factor = number("factor", raw.get("max_position_embeddings", 0) / length)
    usual = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    return RopeScaling(
        "longrope",
        length=float(length),
        factors=tuple(of_pairs),
        stretch=number("attention_factor", usual),
    )


def original_length(raw: Mapping[str, Any], stated: Mapping[str, Any]) -> Any:
    """How long the texts of training were before rotary positions were scaled."""
    key = "original_max_position_embeddings"
    return raw.get(key) or stated.get(key) or raw.get("max_position_embeddings")


def _yarn_stretch(stated: Mapping[str, Any], factor: float) -> float:
    """How much longer YaRN makes queries and keys where the config does not say."""

    def longer(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    scale, of_all = stated.get("mscale"), stated.get("mscale_all_dim")
    if _is_number(scale) and _is_number(of_all):
        return longer(scale) / longer(of_all)  # type: ignore[arg-type]
    return longer(1)


def _unrotated(
    raw: Mapping[str, Any], keys: Keys, n_layers: int, where: object
) -> tuple[bool, ...]:
    """The layers without positions of their own, by the family's list of 1 (rotated) and 0; all of
    them where the config says so of the model."""
    name, every = keys.rotated
    key, word = keys.rotated_by
    if key and raw.get(key) != word:
        _require_layers(n_layers, keys, where)
        return (True,) * n_layers
    if not name:
        return ()
    _require_layers(n_layers, keys, where)
    stated = raw.get(name)
    if stated is None:
        interval = size_from(raw.get(*every), every[0], where)
        return tuple((layer + 1) % interval == 0 for layer in range(n_layers))
    if not isinstance(stated, list) or len(stated) != n_layers or set(stated) - {0, 1}:
        problem = f"{name} does not say which of its {n_layers} layers are rotated"
        raise refuse(where, problem, "correct its config")
    return tuple(not rotated for rotated in stated)


def _start_token(raw: Mapping[str, Any], keys: Keys, where: object) -> int:
    """The token in front of every target; T5 writes it as its padding token."""
    token = next((raw[key] for key in keys.start if key in raw), None)
    if isinstance(token, bool) or not isinstance(token, int):
        raise refuse(
            where,
            f"decoder_start_token_id is {token!r} in its config",
            "give the token that starts a target",
        )
    return token
