"""What a row of the table of architectures says, as records; what the rows of several families
share.

Words of the shapes, in the order in which the file holds the axes: d d_model, e d_head, h heads x
d_head, g key-value heads x d_head, hgg queries, keys and values together, m d_mlp, 2m gate and up
together, x experts, s the width of a shared expert, v d_vocab, p rows of the position table, t
token types, b relative-position buckets, n heads, 2h queries and gates of heads that have both, 3d
three times d_model, w the width of a convolution; of a gated delta rule or a state space l its
heads, 2l twice as many, u d_value, lu heads x d_value, c queries, keys and values together, cg
these and the gate, cgl these and a step a head; "+" adds a bias as long as the output, "=" says
that the name is whole (no ".weight" behind it).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class Replacement:
    """A hook in a block that holds something else than its name says (`raw`, empty where there is
    none), and what the trace has instead."""

    raw: str
    instead: str


@dataclass(frozen=True)
class Mixer:
    """What stands in the place of attention in some layers of a hybrid: a short convolution, a
    gated delta rule or a state space (`probe.model.recurrence`).

    `formula` is its name, `written` the hook of what it writes, `parts` the raw name and shape of
    each of its weights: `in`, `kernel` and `out`; of a gated delta rule also `gate`, `beta`,
    `decay`, `decay_bias`, `log_rate` and `norm`, where `in_gate` and `beta_decay` hold two of them
    key head by key head; of a state space, whose `in` holds gate, channels and steps, also
    `step_bias`, `log_rate`, `skip` and `norm`. The config's list `kinds` says what each layer is,
    `kind` being this one; where there is no such list `attention_layers` is that of the numbers of
    the others, or every so many-th layer is one of these, by the key `attention_every` and what an
    absent one means. `sizes` are the config's keys of `MixerSizes`.
    """

    formula: str
    written: str
    parts: Mapping[str, tuple[str, str]]
    kinds: str
    kind: str
    sizes: Mapping[str, str]
    attention_layers: str = ""
    attention_every: tuple[str, int] = ("", 0)


# What a layer without attention has not: the quantities of heads, and their weights.
QUANTITIES_OF_HEADS = ("q", "k", "v", "z", "pattern", "scores")
OF_HEADS = ("q", "k", "v", "qkv", "o", "norm_q", "norm_k", "sinks")


@dataclass(frozen=True)
class Attention:
    """One attention per layer: its `name` in an encoder-decoder, its hooks, its weights and its
    mask.

    `hooks` maps quantities of a Trace to hooks within the block; `unreliable_hooks` maps quantities
    to hooks that hold something else. `layers` is the beginning of the raw names of a layer,
    `parts` the raw name and shape of each weight behind it, `not_in_first` those that the first
    layer does not have. `fused` says how a single tensor holds queries, keys and values: all
    queries, then all keys, then all values, or the three of each head together; one of "gate_up"
    holds the gate, then the other. In the layers of a hybrid that have no attention, `mixer` stands
    in its place.
    """

    name: Literal["", "encoder", "decoder", "cross"]
    hooks: Mapping[str, str]
    layers: str
    parts: Mapping[str, tuple[str, str]]
    causal: bool = False
    unreliable_hooks: Mapping[str, Replacement] = field(default_factory=dict)
    fused: Literal["", "by role", "by head"] = ""
    not_in_first: tuple[str, ...] = ()
    mixer: Mixer | None = None

    def hook_in(self, quantity: str, *, has_heads: bool) -> str:
        """The hook of a quantity within the block of a layer; empty where the layer has none
        because it has no attention."""
        if has_heads or self.mixer is None:
            return self.hooks.get(quantity, "")
        if quantity == "attn_out":
            return self.mixer.written
        return "" if quantity in QUANTITIES_OF_HEADS else self.hooks.get(quantity, "")

    @property
    def blocks(self) -> str:
        """The list of blocks in the bridge that it stands in."""
        return {"": "blocks", "encoder": "encoder_blocks"}.get(self.name, "decoder_blocks")


@dataclass(frozen=True)
class Keys:
    """The config keys of a family: sizes in our words; epsilon, activation and tie with what an
    absent key means there.

    A key of `must` may be absent; one that is there must be one of its values. The two keys of a
    pair in `equal` must agree. `wide`: d_mlp is 4 d_model where its key is absent. `first` is the
    first row of the position table that a token uses and `reserved` how many rows the table has
    beyond the context; a key in place of a number is counted from behind that token's row.
    `meant` are activations that a config calls otherwise than the family computes them.
    `context` is, for positions that have no end, the key of a usual length and that length.
    `kv_heads` is the key of how many heads hold keys and values; 0 stands for as many as query, and
    a number without a key is the family's own.

    `rotated` names the list that says which layers have rotary positions; where there is no such
    list all have but every so many-th, by the key beside it. `biases` are the keys that say whether
    queries, keys, values and outputs have biases: what an absent one means, and of which of the
    four ("qkvo").

    `window` is how far local layers look back, or, where it is `halved`, how much they see on both
    sides; `window_used` is the key that says whether there is one at all. `kinds` names the list of
    what each layer is; where there is no such list every `global_every`-th layer is global, the
    first of so many where `global_first` and else the last, none where it is 0. Without a list only
    layers from `local_from` on and below `local_below` are local.

    `query_scalar` is what stands under the root in place of d_head; the caps bound scores and
    logits. With each goes what an absent key means. `scores_by_layer` is the key that says whether
    scores are also divided by the number of their layer, counted from 1.

    `scales` are the keys of constants, 1 where absent: that which multiplies token embeddings
    (`embed`), all that attention and MLPs add to the stream (`write`), the products of queries and
    keys in place of one over a root (`scores`), and that which divides the logits (`logits`).
    `rotated_by` is the key and the word that say of a model whether its positions are rotated.

    A key of `other_names`, where it is there, stands for the one beside it. `mlp_rounded` are the
    keys that say whether d_mlp is two thirds of what the config states, times which factor, rounded
    up to a multiple of which number, with what absent ones mean.
    """

    sizes: Mapping[str, str]
    epsilon: tuple[str, float]
    activation: tuple[str, str] = ("hidden_act", "gelu")
    meant: Mapping[str, str] = field(default_factory=dict)
    tied: bool = True
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()
    wide: bool = False
    first: int | tuple[str, int] = 0
    reserved: int = 0
    context: tuple[str, int] = ("", 0)
    kv_heads: tuple[str, int] = ("num_key_value_heads", 0)
    rotary_share: float = 1.0
    rotary_dims: str = ""
    rotary_base: float = 10000.0
    local_base: tuple[str, float | None] = ("", None)
    rotated: tuple[str, tuple[str, int]] = ("", ("", 0))
    biases: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    window: tuple[str, int | None] = ("", None)
    window_used: str = ""
    local_from: tuple[str, int] = ("", 0)
    local_below: tuple[str, int] = ("", 0)
    halved: bool = False
    kinds: str = ""
    global_every: tuple[str, int] = ("", 0)
    global_first: bool = False
    query_scalar: tuple[str, float | None] = ("", None)
    scores_by_layer: str = ""
    attn_logit_softcapping: tuple[str, float | None] = ("", None)
    final_logit_softcapping: tuple[str, float | None] = ("", None)
    scales: Mapping[str, str] = field(default_factory=dict)
    rotated_by: tuple[str, str] = ("", "")
    start: tuple[str, ...] = ("decoder_start_token_id",)
    other_names: Mapping[str, str] = field(default_factory=dict)
    mlp_rounded: tuple[tuple[str, bool], tuple[str, float], tuple[str, int]] | None = None


@dataclass(frozen=True)
class Routed:
    """A routed MLP, one whose router gives every token to a few of its experts.

    `experts` are the config keys of which one says how many there are, `chosen` that of how many a
    token is given to. A token's shares come from a softmax over all experts (`of_all`), where
    `normed` (the key that says so, and what an absent one means) divided by the sum of those of the
    chosen; or over the chosen ones. `shared` is the key of the width of an expert that every token
    is given to, by a gate of its own; `clamp` those of the sharpness and the limit of a clamped
    gate, with what absent ones mean.

    In the parts of a layer `router` and `shared_router` are the gates; `expert_gate`, `expert_up`
    and `expert_out`, "{}" standing for the number of the expert, or `experts_gate_up` and
    `experts_out`, all experts in one tensor input x output, gate and up coordinate by coordinate;
    `shared_gate`, `shared_up` and `shared_out`. Where Hugging Face's class holds otherwise what
    files hold expert by expert, `stacked` has the roles that stand below each other in each of its
    tensors; `renamed` are parts that it calls otherwise.
    """

    experts: tuple[str, ...]
    chosen: str = "num_experts_per_tok"
    of_all: bool = True
    normed: tuple[str, bool] = ("", True)
    shared: str = ""
    clamp: tuple[tuple[str, float], tuple[str, float]] = (("", 0.0), ("", 0.0))
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GgufKeys:
    """What a GGUF file of a family holds otherwise than a checkpoint; `architecture` is its name
    there.

    Where several rows have one, a file is of the row `told_by` a tensor that it has, or a key that
    says something there, and without it of the other. `numbers` maps metadata keys, without the
    architecture in front, to the config's, beside those of GGUF_SIZES: to one, or to several apart
    by spaces, points leading into objects. A key of `layers` may hold a list of all layers: which
    key of the config lists them, and what that calls those where the entry is true or above 0, and
    the others. A key of `must` may be absent, and one that is there must be one of its values;
    those of `unread` change no formula, or follow from others; any other is refused. `settings` are
    what no key tells, and `by_tensor` what it tells that a tensor is there.

    The rows of an `interleaved` role, which positions rotate two by two, stand pair beside pair
    instead of half behind half. Always, queries, keys and values of a single tensor are held by
    role, matrices output x input, experts in one tensor, and `offset` norms as 1 + their weight.
    `query_scalar` is how many layers the one size has whose scores are divided by the root of
    d_model / n_heads, which no key tells; the others' are by that of the head.
    """

    architecture: str
    numbers: Mapping[str, str]
    told_by: str = ""
    layers: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_tensor: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interleaved: tuple[str, ...] = ()
    query_scalar: int = 0


_HEAD = re.compile("(ForCausalLM|ForMaskedLM|LMHeadModel)$")


@dataclass(frozen=True)
class Family:
    """What is common to every model of one architecture; `base` names the class without a
    language-model head where it is not the others' name with "Model" at its end.

    A norm may stand in front of what attention and the MLP read (`norm_first`, pre-norm), behind
    the sum of the stream and what they write (`norm_after_sum`, post-norm), or behind what they
    write, before it is added (`norm_after_write`, with `norm_first` a sandwich norm); the gain of
    an `offset` norm is 1 + its weight. `interleaved` rotary positions rotate coordinates 2 i and
    2 i + 1 together, the others i and i + dims/2. `in_float32` says what the architecture's own
    code computes in float32 whatever the model's type: the variance of its norms, its norms up to
    the gain or with it, the queries and keys that it rotates or the whole rotation, its scores, its
    softmax, the shares of its router. `plain_rounds` says that Hugging Face's model and the hooked
    one, run in float64, round to float32 at different steps. Of `gated_heads` z is gated: sigmoid(x
    W_gate) * (A V); "q" then holds queries and gates head by head. `transposed` families hold the
    matrices of their layers input x output, the others output x input. `routed` says how an MLP of
    experts is held and which of them a token is given to.

    `embed` to `head_bias` are the raw names of the weights of no layer; names with "{}" have one
    tensor per stack. `transform` is the product, the norm and the activation (the config's where
    empty) in front of the unembedding; its product and every LayerNorm of no layer have a bias
    where the family is `biased`. `optional` weights, with their shapes, are read where they
    are there; `ignored` ones are read by no formula, "*" in them standing for any text. `gguf` says
    how a GGUF file holds the family, None where it does not. `adapter` is the class whose adapter
    TransformerLens has for models of the same modules, where it has none for the family's own; "by
    the row" where it has none of that kind either.
    """

    name: str
    kind: Kind
    architectures: tuple[str, ...]
    keys: Keys
    base: str = ""
    prefix: str = ""
    transposed: bool = False
    norm: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    norm_first: bool = True
    norm_after_sum: bool = False
    norm_after_write: bool = False
    offset: bool = False
    gated: bool = False
    routed: Routed | None = None
    positions: Literal["learned", "sinusoidal", "rotary", "relative bias", "alibi"] = "learned"
    interleaved: bool = False
    scaled: bool = True
    gated_heads: bool = False
    scaled_embedding: bool = False
    in_float32: tuple[
        Literal["variance", "norm", "gain", "rotated", "rotation", "scores", "softmax", "router"],
        ...,
    ] = ()
    plain_rounds: bool = False
    parallel: bool = False
    special_tokens: bool = True
    free_heads: bool = False
    attentions: tuple[Attention, ...] = ()
    optional: Mapping[str, str] = field(default_factory=dict)
    embed: str = ""
    position_table: str = ""
    type_table: str = ""
    embedding_norm: str = ""
    final_norm: str = ""
    unembed: str = "lm_head"
    unembed_scaled: bool = False
    biased: bool = True
    transform: tuple[str, str, str] = ("", "", "")
    head_bias: str = ""
    ignored: tuple[str, ...] = ()
    gguf: GgufKeys | None = None
    adapter: str = ""

    @property
    def headless(self) -> tuple[str, ...]:
        """The classes of the same models without a language-model head."""
        if self.base:
            return (self.base,)
        derived = [_HEAD.sub("Model", name) for name in self.architectures]
        return tuple(name for name in dict.fromkeys(derived) if name not in self.architectures)

    def raw_name(self, name: str) -> str:
        """A tensor's name without what its class puts in front of it: `prefix`, or, in a class
        without a head, what of it is behind the first dot."""
        inside = self.prefix.partition(".")[2]
        front = self.prefix if name.startswith(self.prefix) else inside
        return name.removeprefix(front)

    @property
    def adds_plainly(self) -> bool:
        """Whether what attention and the MLP give is added to the stream as it is."""
        return not (self.norm_after_sum or self.norm_after_write)

    @property
    def _norm_shape(self) -> str:
        """That of a norm of no layer."""
        return "d +" if self.norm == "LayerNorm" and self.biased else "d"

    @property
    def outside(self) -> dict[str, str]:
        """The raw name and shape of every weight of no layer, without those of a language-model
        head."""
        norm = self._norm_shape
        shapes = {
            self.embed: "v d",
            self.position_table: "b n" if self.positions == "relative bias" else "p d",
        }
        shapes |= {self.type_table: "t d", self.embedding_norm: norm, self.final_norm: norm}
        stacks = [attention.name for attention in self.attentions if attention.name != "cross"]
        return {
            name.format(stack): shape for stack in stacks for name, shape in shapes.items() if name
        }

    @property
    def head(self) -> dict[str, str]:
        """The same of a language-model head, the unembedding apart."""
        product = "d d +" if self.biased else "d d"
        norm = self._norm_shape
        shapes = {self.transform[0]: product, self.transform[1]: norm, self.head_bias: "v ="}
        return {name: shape for name, shape in shapes.items() if name}


# What stands in front of the names of a text part: in files, or in the class.
TEXT = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.text_model.",
    "model.",
)
# What stands beside it, with "model." in front or without.
BESIDE = (
    "visual.",
    "vision_tower.",
    "vision_model.",
    "audio_tower.",
    "multi_modal_projector.",
    "connector.",
    "image_newline",
)


@dataclass(frozen=True)
class Wrapper:
    """A model of images or sound of which the text part is read, as the row of its `model_type`
    says: the class, and that `model_type` where the text part has one without a row, whose formulas
    are the same where all tokens are words."""

    architecture: str
    text: str = ""

    def raw_name(self, name: str) -> str:
        """The raw name of a weight of the text part, without what stands in front; empty for what
        stands beside it."""
        if name.removeprefix("model.").startswith(BESIDE):
            return ""
        front = next((prefix for prefix in TEXT if name.startswith(prefix)), "")
        return name.removeprefix(front)


def pre_norm_hooks(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block that norms what attention reads: E → x = norm(E) → E + attention."""
    return {
        **{
            name: f"hook_{name}"
            for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
        },
        **{name: f"{attn}.hook_{name}" for name in ("q", "k", "v", "pattern", "z")},
        "x": f"{norm}.hook_out",
        "scores": f"{attn}.hook_attn_scores",
    }


def post_norm_hooks(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block that norms the sum: x = E → norm(E + attention); the scores are
    recomputed."""
    other = {
        "x": f"{attn}.q.hook_in",
        "attn_out": f"{attn}.o.hook_out",
        "resid_mid": f"{norm}.hook_out",
    }
    return without(pre_norm_hooks(attn), "scores") | other


def without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table without some of its rows."""
    return {name: row for name, row in table.items() if name not in names}


def recomputed(attn: str = "attn") -> dict[str, Replacement]:
    """Scores whose hook holds something else."""
    return {"scores": Replacement(f"{attn}.hook_attn_scores", "scores recomputed from q.k")}


def post_norm_replacements(attn: str = "attn") -> dict[str, Replacement]:
    """Replacements in a block that norms the sum."""
    return recomputed(attn) | {
        "resid_mid": Replacement("hook_resid_mid", "read behind the norm of the sum")
    }


def causal(
    parts: Mapping[str, tuple[str, str]],
    unreliable_hooks: Mapping[str, Replacement] = MappingProxyType({}),
    *,
    fused: Literal["", "by role", "by head"] = "",
    read: Mapping[str, str] = MappingProxyType({}),
    layers: str = "layers.{}.",
) -> tuple[Attention]:
    """The single stack of a decoder that norms what attention reads; `read` are hooks other than
    the usual ones."""
    hooks = without(pre_norm_hooks(), *unreliable_hooks) | dict(read)
    replaced = dict(unreliable_hooks)  # a trace holds it, and can be pickled
    return (
        Attention("", hooks, layers, parts, causal=True, unreliable_hooks=replaced, fused=fused),
    )


# Keys that several families share: sizes in config.json; sizes in a GGUF file, of all, and what
# must be plain there.
HIDDEN = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_mlp": "intermediate_size",
    "d_vocab": "vocab_size",
    "n_ctx": "max_position_embeddings",
}
GGUF_SIZES = {
    "block_count": "n_layers",
    "embedding_length": "d_model",
    "feed_forward_length": "d_mlp",
    "context_length": "n_ctx",
    "attention.head_count": "n_heads",
    "vocab_size": "d_vocab",
}
GGUF_PLAIN = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}
