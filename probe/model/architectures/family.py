"""The records of a row of the table of architectures.

A tensor of a row is a pair: its raw name, as in "self_attn.q_proj", and its shape, as in
"heads*d_head d_model with bias". The axes are in the order of the file, separated by spaces. An
axis is a sum of products of these words and of whole numbers:

d_model         width of the residual stream
d_head          width of a head
d_mlp           width of the MLP, or of one expert
d_shared        width of the expert that every token uses
d_vocab         token embeddings
heads           query heads
kv_heads        heads of keys and values
experts         experts of a routed MLP
positions       rows of the position table
token_types     rows of the table of token types
buckets         buckets of relative positions
kernel          positions that a convolution reads
mixer_heads     heads of a gated delta rule or a state space
d_value         width of the values of one of these heads
channels        queries, keys and values of all these heads together

The file stores the tensor as NAME.weight, and with `with bias` a second one, NAME.bias, of the
length of the output. With `without .weight`, the tensor is stored as NAME.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]
# By role, such as "q" or "norm_mlp": raw name and shape.
Parts = Mapping[str, tuple[str, str]]

# A layer without attention has neither these quantities nor these weights.
QUANTITIES_OF_HEADS = ("q", "k", "v", "z", "pattern", "scores")
OF_HEADS = ("q", "k", "v", "qkv", "o", "norm_q", "norm_k", "sinks")

_HEAD = re.compile("(ForCausalLM|ForMaskedLM|LMHeadModel)$")


@dataclass(frozen=True)
class Replacement:
    """A hook that holds another quantity than its name says."""

    # The hook within the block; empty if TransformerLens has none.
    raw: str
    # What a trace holds instead, as a phrase for a sentence.
    instead: str


@dataclass(frozen=True)
class Mixer:
    """What replaces attention in some layers of a hybrid (`probe.model.recurrence`)."""

    # "short convolution", "gated delta rule" or "state space".
    formula: str
    # The hook of its write, within the block.
    write: str
    # All have `in`, `kernel` and `out`.
    # A gated delta rule also has `gate`, `beta`, `decay`, `decay_bias`, `log_rate` and `norm`.
    # `in_gate` is `in` and `gate` in one tensor, `beta_decay` is `beta` and `decay`, by key head.
    # A state space has `step_bias`, `log_rate`, `skip` and `norm`; its `in` contains gate, channels
    # and steps.
    parts: Parts
    # The name of a layer with this mixer in the config's `layer_types`.
    kind: str
    # The fields of `MixerSizes`, each with its setting.
    sizes: Mapping[str, str]


@dataclass(frozen=True)
class Attention:
    """One attention in every layer of a stack, with the MLP after it."""

    # Its name in an encoder-decoder; empty in a model with a single stack.
    name: Literal["", "encoder", "decoder", "cross"]
    # By quantity of a Trace, such as "q" or "resid_mid": the hook within the block.
    hooks: Mapping[str, str]
    # The beginning of a layer's raw names; "{}" is replaced by its number.
    layers: str
    # The weights of a layer.
    parts: Parts
    # Whether a position reads only itself and what comes before it.
    causal: bool = False
    # By quantity: hooks that hold another one than their name says.
    unreliable_hooks: Mapping[str, Replacement] = field(default_factory=dict)
    # How one tensor `qkv` contains queries, keys and values: all queries, then all keys, then all
    # values ("by role"), or the three of each head together ("by head").
    fused: Literal["", "by role", "by head"] = ""
    # Roles that the first layer does not have.
    not_in_first: tuple[str, ...] = ()
    # What replaces attention in some layers.
    mixer: Mixer | None = None

    def hook_in(self, quantity: str, *, has_heads: bool) -> str:
        """The hook of a quantity within the block of a layer; empty if the layer does not have
        the quantity because it has no attention.
        """
        if has_heads or self.mixer is None:
            return self.hooks.get(quantity, "")
        if quantity == "attn_out":
            return self.mixer.write
        return "" if quantity in QUANTITIES_OF_HEADS else self.hooks.get(quantity, "")

    @property
    def blocks(self) -> str:
        """The attribute of the bridge that lists the blocks of this stack."""
        return {"": "blocks", "encoder": "encoder_blocks"}.get(self.name, "decoder_blocks")


@dataclass(frozen=True)
class Keys:
    """The names of a family's settings in transformers' config object, and the certified values.

    The names are attributes of that object, which resolves older and general names, absent keys and
    consequences of other keys. An empty name means that the family has no such setting.
    """

    # The epsilon of norms; the number itself if there is no setting.
    epsilon: str | float
    # The activation of the MLP; the activation itself if there is no setting.
    activation: str = "hidden_act"
    # Sizes, by field of `Config`, whose names are not the general ones (`config.SIZES`).
    sizes: Mapping[str, str] = field(default_factory=dict)
    # The number of heads of keys and values in every model of the family; 0 if there is a setting.
    kv_heads: int = 0
    # The usual length of a text in tokens, for positions without a limit; otherwise 0.
    n_ctx: int = 0
    # Settings with their certified values; the first value is that of an absent setting.
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Pairs of settings that must be equal.
    equal: tuple[tuple[str, str], ...] = ()
    # The row of the position table for the first token, or a setting with the row before it.
    first: int | str = 0
    # Rows of the position table that are not for tokens.
    reserved: int = 0
    # The number of rotated dimensions of a head; empty if it is a fraction of all.
    rotary_dims: str = ""
    # The list that states for every layer whether it is rotated; empty if all are.
    rotated: str = ""
    # A setting and its value in a model that has rotary positions at all.
    rotated_by: tuple[str, str] = ("", "")
    # Settings of biases, each with the letters of "qkvo" that it gives a bias to.
    biases: Mapping[str, str] = field(default_factory=dict)
    # The window of local layers: tokens including the query's, or on either side of it.
    window: str = ""
    # The list that states which layers are local; empty if all are, or if there is no window.
    kinds: str = ""
    # The number whose root divides scores, instead of d_head.
    query_scalar: str = ""
    # Whether scores are also divided by the number of their layer, counted from 1.
    scores_by_layer: str = ""
    # Bounds of scores and logits; `Config` has the same names.
    caps: tuple[str, ...] = ()
    # Constants: "embed" multiplies token embeddings, "write" every write to the stream, and
    # "scores" products of queries and keys, instead of 1 over a root; "logits" divides logits.
    scales: Mapping[str, str] = field(default_factory=dict)
    # The first token of a target, if `decoder_start_token_id` is not set.
    start: str = "decoder_start_token_id"


@dataclass(frozen=True)
class Routed:
    """A mixture of experts: a router gives each token to a few of many MLPs.

    Its weights are parts of a layer: `router` and `shared_router` are the gates. The experts are
    `expert_gate`, `expert_up` and `expert_out`, with "{}" for the number of the expert; or all in
    one tensor, input x output, `experts_gate_up` (gate and up coordinate by coordinate) and
    `experts_out`. `shared_gate`, `shared_up` and `shared_out` are the expert for every token.
    """

    # Whether the weights of a token's experts are a softmax over all experts, or over the chosen
    # ones.
    of_all: bool = True
    # The setting that states whether the weights of the chosen experts are divided by their sum;
    # empty if they always are.
    normed: str = ""
    # The setting of the width of the expert for every token; empty without such an expert.
    shared: str = ""
    # The settings of the sharpness and the limit of a clamped gate; empty if it is not clamped.
    clamp: tuple[()] | tuple[str, str] = ()
    # Tensors in which Hugging Face's class stacks what files store expert by expert, each with the
    # roles that are concatenated in it.
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Parts with different names in Hugging Face's class and in files: the class's, and the file's.
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GgufKeys:
    """The differences between a GGUF file of a family and a checkpoint.

    A metadata key is named without the architecture at its beginning, as in
    "attention.head_count_kv". A key that no field names is refused. In every GGUF file, a single
    tensor of queries, keys and values is stored by role, matrices are output x input, experts are
    in one tensor, and `offset` norms are 1 + their weight.
    """

    # GGUF's name of the architecture. Several rows may share one.
    architecture: str
    # The config keys that take the number of a metadata key, in addition to `GGUF_SIZES`: one, or
    # several separated by spaces; dots lead into objects.
    numbers: Mapping[str, str]
    # For rows that share an architecture: a file belongs to this row if it has this tensor or this
    # metadata key. Empty: it belongs to this row if it belongs to no other.
    told_by: str = ""
    # Metadata keys that may hold a list of all layers: the config key of the list of kinds, the
    # kind of a layer whose entry is true or above 0, and the kind of any other layer.
    layers: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    # Metadata keys that may be absent, with their certified values.
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Metadata keys that change no formula, or follow from others.
    unread: tuple[str, ...] = ()
    # Config keys that follow from no metadata key, with their values.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # By tensor: the config keys that follow from its presence.
    by_tensor: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Roles whose rotary pairs are stored interleaved, (0, 1), (2, 3), …, and not as two halves.
    interleaved: tuple[str, ...] = ()
    # The divisor of scores is not in the metadata. A model with this many layers divides them by
    # sqrt(d_model / heads), and a model of any other size by sqrt(d_head). 0: no such exception.
    query_scalar: int = 0


@dataclass(frozen=True)
class Family:
    """A row of the table: the common properties of the models of one architecture.

    The weights of layers are in `attentions`. Weights outside the blocks are given by raw names, in
    which "{}" is replaced by the name of a stack if each stack has such a weight.
    """

    # Its name in sentences and tables, as in "GPT-2".
    name: str
    kind: Kind
    # The classes of transformers with a language-model head; tests build the first one.
    architectures: tuple[str, ...]
    # The names of settings in the config, and the certified values.
    keys: Keys
    # The class without a language-model head, if its name is not one of the others with "Model" at
    # the end.
    base: str = ""
    # What the class with a head puts before every weight's name of the class without one.
    prefix: str = ""
    # Whether the matrices of layers are input x output; in other families they are output x input.
    transposed: bool = False

    # --- norms ---
    norm: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    # Whether there is a norm in front of attention and the MLP: x = norm(E) (pre-norm).
    norm_first: bool = True
    # Whether there is a norm after the sum of the stream and a write: norm(E + MLP(E)).
    norm_after_sum: bool = False
    # Whether there is a norm after a write, before it is added: E + norm(MLP(E)).
    norm_after_write: bool = False
    # Whether a norm multiplies by 1 + its weight.
    offset: bool = False

    # --- positions ---
    positions: Literal["learned", "sinusoidal", "rotary", "relative bias", "alibi"] = "learned"
    # Whether rotary positions rotate coordinates 2 i and 2 i + 1 together, not i and i + dims/2.
    interleaved: bool = False

    # --- attention and MLP ---
    # Whether the size of a head is independent, and not d_model / heads.
    free_heads: bool = False
    # Whether scores are divided by a root, such as that of d_head.
    scaled: bool = True
    # Whether z is gated: sigmoid(x W_gate) * (A V). "q" then holds queries and gates head by head.
    gated_heads: bool = False
    # Whether attention and MLP both read the stream that enters the block.
    parallel: bool = False
    # Whether the MLP is gated: (activation(x W_gate) * (x W_up)) W_out.
    gated: bool = False
    # The mixture of experts that replaces the MLP; None for a single MLP.
    routed: Routed | None = None

    # --- rounding in its code ---
    # The quantities that the code of transformers computes in float32 whatever the model's dtype:
    #   "variance"  the variance in a norm
    #   "norm"      the norm up to the gain
    #   "gain"      the gain of a norm
    #   "rotated"   the queries and keys that are rotated
    #   "rotation"  the whole rotation
    #   "scores"    the scores
    #   "softmax"   the softmax
    #   "router"    the weights of experts
    in_float32: tuple[
        Literal["variance", "norm", "gain", "rotated", "rotation", "scores", "softmax", "router"],
        ...,
    ] = ()
    # Whether Hugging Face's model and the hooked one, in float64, round to float32 at different
    # steps.
    plain_rounds: bool = False

    # --- embeddings and unembedding ---
    # The stacks; an encoder-decoder has two and a cross-attention.
    attentions: tuple[Attention, ...] = ()
    # Whether the tokenizer adds special tokens such as [CLS]; otherwise one BOS is prepended.
    special_tokens: bool = True
    # The token embedding.
    embed: str = ""
    # Whether token embeddings are multiplied by the root of d_model.
    scaled_embedding: bool = False
    # The table of learned positions or of relative biases; empty without a table.
    position_table: str = ""
    # The table of token types; empty without token types.
    type_table: str = ""
    # The norm between the embeddings and the first block; empty without a norm.
    embedding_norm: str = ""
    # The norm after the last block; empty without a norm.
    final_norm: str = ""
    # The unembedding; stored only if it is not tied to the embedding.
    unembed: str = "lm_head"
    # Whether the product of `transform`, and every LayerNorm outside the blocks, have a bias.
    biased: bool = True
    # Before the unembedding: a product, a norm and an activation; the config's activation if that
    # is empty.
    transform: tuple[str, str, str] = ("", "", "")
    # The bias of the unembedding, full name; empty without a bias.
    head_bias: str = ""
    # Weights that are read if they exist, with their shapes.
    optional: Mapping[str, str] = field(default_factory=dict)
    # Weights that no formula reads; "*" matches any text.
    ignored: tuple[str, ...] = ()

    # The settings of a tiny random model of the family, from which tests build one.
    tiny: Mapping[str, Any] = field(default_factory=dict)

    # --- other programs ---
    # How a GGUF file stores the family; None if GGUF files are not supported.
    gguf: GgufKeys | None = None
    # The class whose TransformerLens adapter serves this family, if the family has none; "by the
    # row" if the adapter is built from this row.
    adapter: str = ""

    @property
    def headless(self) -> tuple[str, ...]:
        """The classes of the same models without a language-model head."""
        if self.base:
            return (self.base,)
        derived = [_HEAD.sub("Model", name) for name in self.architectures]
        return tuple(name for name in dict.fromkeys(derived) if name not in self.architectures)

    def raw_name(self, name: str) -> str:
        """A tensor's name without the prefix of its class. In a class without a head, the part
        of `prefix` after the first dot is removed.
        """
        inside = self.prefix.partition(".")[2]
        front = self.prefix if name.startswith(self.prefix) else inside
        return name.removeprefix(front)

    @property
    def adds_plainly(self) -> bool:
        """Whether the writes of attention and of the MLP are added to the stream as they are."""
        return not (self.norm_after_sum or self.norm_after_write)

    @property
    def _norm_shape(self) -> str:
        """The shape of a norm outside the blocks."""
        return "d_model with bias" if self.norm == "LayerNorm" and self.biased else "d_model"

    @property
    def outside(self) -> dict[str, str]:
        """The raw name and shape of every weight outside the blocks, except the language-model
        head.
        """
        norm = self._norm_shape
        shapes = {
            self.embed: "d_vocab d_model",
            self.position_table: "buckets heads"
            if self.positions == "relative bias"
            else "positions d_model",
        }
        shapes |= {
            self.type_table: "token_types d_model",
            self.embedding_norm: norm,
            self.final_norm: norm,
        }
        stacks = [attention.name for attention in self.attentions if attention.name != "cross"]
        return {
            name.format(stack): shape for stack in stacks for name, shape in shapes.items() if name
        }

    @property
    def head(self) -> dict[str, str]:
        """The raw names and shapes of the language-model head, except the unembedding."""
        product = "d_model d_model with bias" if self.biased else "d_model d_model"
        norm = self._norm_shape
        shapes = {
            self.transform[0]: product,
            self.transform[1]: norm,
            self.head_bias: "d_vocab without .weight",
        }
        return {name: shape for name, shape in shapes.items() if name}


def without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table without some of its rows."""
    return {name: row for name, row in table.items() if name not in names}


def with_bias(parts: Parts, *roles: str) -> dict[str, tuple[str, str]]:
    """Parts of a block, with a bias added to the weights of some roles."""
    return {
        role: (name, f"{shape} with bias" if role in roles else shape)
        for role, (name, shape) in parts.items()
    }
