"""The records that a row of the table of architectures is made of.

A tensor of a row is a pair: its raw name, as in "self_attn.q_proj", and its shape, as in
"heads*d_head d_model with bias". The axes are in the order of the file, apart by a space. An axis
is a sum of products of these words and of whole numbers:

d_model         width of the residual stream
d_head          width of a head
d_mlp           width of the MLP, or of one expert
d_shared        width of the expert that every token is given to
d_vocab         token embeddings
heads           query heads
kv_heads        heads of keys and values
experts         experts of a routed MLP
positions       rows of the position table
token_types     rows of the table of token types
buckets         buckets of relative positions
kernel          positions that a convolution sees
mixer_heads     heads of a gated delta rule or a state space
d_value         width of the values of one of them
channels        queries, keys and values of all of them together

The file holds the tensor as NAME.weight, and `with bias` a second one, NAME.bias, as long as the
output. `without .weight` says that the tensor is called NAME itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["decoder", "encoder", "encoder-decoder"]
# By role, such as "q" or "norm_mlp": raw name and shape.
Parts = Mapping[str, tuple[str, str]]

# A layer without attention has none of these quantities, and none of these weights.
QUANTITIES_OF_HEADS = ("q", "k", "v", "z", "pattern", "scores")
OF_HEADS = ("q", "k", "v", "qkv", "o", "norm_q", "norm_k", "sinks")

_HEAD = re.compile("(ForCausalLM|ForMaskedLM|LMHeadModel)$")


@dataclass(frozen=True)
class Replacement:
    """A hook that holds something else than its name says."""

    # The hook within the block; empty where TransformerLens has none.
    raw: str
    # What a trace holds in its place, as a phrase of a sentence.
    instead: str


@dataclass(frozen=True)
class Mixer:
    """What some layers of a hybrid have in place of attention (`probe.model.recurrence`)."""

    # "short convolution", "gated delta rule" or "state space".
    formula: str
    # The hook of what it writes, within the block.
    written: str
    # All have `in`, `kernel` and `out`.
    # A gated delta rule also has `gate`, `beta`, `decay`, `decay_bias`, `log_rate` and `norm`.
    # Of these `in_gate` holds `in` and `gate`, `beta_decay` the two of its name, by key head.
    # A state space has `step_bias`, `log_rate`, `skip` and `norm`; its `in` holds gate, channels
    # and steps.
    parts: Parts
    # What the config's `layer_types` call a layer with this mixer.
    kind: str
    # The fields of `MixerSizes`, each with its setting.
    sizes: Mapping[str, str]


@dataclass(frozen=True)
class Attention:
    """One attention in every layer of a stack, with the MLP behind it."""

    # Which one in an encoder-decoder; empty in a model with a single stack.
    name: Literal["", "encoder", "decoder", "cross"]
    # By quantity of a Trace, such as "q" or "resid_mid": the hook within the block.
    hooks: Mapping[str, str]
    # How the raw names of a layer begin; "{}" stands for its number.
    layers: str
    # The weights of a layer.
    parts: Parts
    # Whether a position reads only itself and what comes before it.
    causal: bool = False
    # By quantity: hooks that hold something else than their name says.
    unreliable_hooks: Mapping[str, Replacement] = field(default_factory=dict)
    # How one tensor `qkv` holds queries, keys and values: all queries, then all keys, then all
    # values ("by role"), or the three of each head side by side ("by head").
    fused: Literal["", "by role", "by head"] = ""
    # Roles that the first layer does not have.
    not_in_first: tuple[str, ...] = ()
    # What some layers have in place of attention.
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
        """The attribute of the bridge that lists the blocks of this stack."""
        return {"": "blocks", "encoder": "encoder_blocks"}.get(self.name, "decoder_blocks")


@dataclass(frozen=True)
class Keys:
    """Where transformers' config object has the settings of a family, and which are certified.

    The names are attributes of that object, which resolves older and general names, absent keys and
    what follows from others. An empty name says that the family has no such setting.
    """

    # The epsilon of norms; the number itself where no setting says it.
    epsilon: str | float
    # The activation of the MLP; the activation itself where no setting says it.
    activation: str = "hidden_act"
    # Sizes, by field of `Config`, that are not under their general names (`config.SIZES`).
    sizes: Mapping[str, str] = field(default_factory=dict)
    # How many heads hold keys and values in every model of the family; 0 where a setting says it.
    kv_heads: int = 0
    # The usual length of a text in tokens, where positions have no end; 0 where they have one.
    n_ctx: int = 0
    # Settings with the values that are certified; the first one is that of an absent setting.
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Pairs of settings that must be equal.
    equal: tuple[tuple[str, str], ...] = ()
    # The row of the position table for the first token; or a setting, which is the row before.
    first: int | str = 0
    # Rows of the position table beyond those for tokens.
    reserved: int = 0
    # How many dimensions of a head are rotated; empty where it is a share of all.
    rotary_dims: str = ""
    # The list that says of every layer whether it is rotated; empty where all are.
    rotated: str = ""
    # A setting and its value in a model whose positions are rotated at all.
    rotated_by: tuple[str, str] = ("", "")
    # Settings that give biases, each with the letters of those it gives them to: some of "qkvo".
    biases: Mapping[str, str] = field(default_factory=dict)
    # How far local layers see: tokens up to their own, or on either side of it.
    window: str = ""
    # The list that says which layers are local; empty where all are, if there is a window.
    kinds: str = ""
    # What scores are divided by the root of, in place of d_head.
    query_scalar: str = ""
    # Whether scores are also divided by the number of their layer, counted from 1.
    scores_by_layer: str = ""
    # Bounds of scores and logits; the names are those of `Config`, too.
    caps: tuple[str, ...] = ()
    # Constants: "embed" multiplies token embeddings, "write" all that is written to the stream,
    # "scores" products of queries and keys in place of one over a root; "logits" divides logits.
    scales: Mapping[str, str] = field(default_factory=dict)
    # The first token of a target, where `decoder_start_token_id` does not say it.
    start: str = "decoder_start_token_id"


@dataclass(frozen=True)
class Routed:
    """A mixture of experts: a router gives each token to a few of many MLPs.

    Its weights are parts of a layer: `router` and `shared_router` are the gates. The experts are
    `expert_gate`, `expert_up` and `expert_out`, with "{}" for the number of the expert; or all in
    one tensor, input x output, `experts_gate_up` (gate and up coordinate by coordinate) and
    `experts_out`. `shared_gate`, `shared_up` and `shared_out` are the expert for every token.
    """

    # Whether the shares of a token are a softmax over all experts, or over the chosen ones.
    of_all: bool = True
    # The setting that says whether the shares of the chosen experts are divided by their sum;
    # empty where they always are.
    normed: str = ""
    # The setting of the width of the expert for every token; empty where there is none.
    shared: str = ""
    # The settings of the sharpness and the limit of a clamped gate; none where it is not clamped.
    clamp: tuple[()] | tuple[str, str] = ()
    # Tensors in which Hugging Face's class stacks what files hold expert by expert, each with the
    # roles that it holds below each other.
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Parts that Hugging Face's class calls otherwise than files do: its name, and that of files.
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GgufKeys:
    """What a GGUF file of a family holds otherwise than a checkpoint.

    A metadata key is named without the architecture in front, as "attention.head_count_kv". One
    that no field names is refused. Always, queries, keys and values of a single tensor are held by
    role, matrices output x input, experts in one tensor, and `offset` norms as 1 + their weight.
    """

    # The architecture by GGUF's name. Several rows may share one.
    architecture: str
    # The config keys that hold the number of a metadata key, beside `GGUF_SIZES`: one, or several
    # apart by spaces; points lead into objects.
    numbers: Mapping[str, str]
    # Of rows that share an architecture, a file is of this one if it has this tensor, or says
    # something under this metadata key. Empty: it is of this one if it is of no other.
    told_by: str = ""
    # Metadata keys that may hold a list of all layers: the config key of the list of kinds, and
    # what that calls a layer whose entry is true or above 0, and any other.
    layers: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    # Metadata keys that may be absent, with the values that are certified.
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Metadata keys that change no formula, or follow from others.
    unread: tuple[str, ...] = ()
    # Config keys that no metadata key tells, with their values.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # By tensor: the config keys that it tells by being there.
    by_tensor: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Roles whose rotary pairs are stored interleaved, (0, 1), (2, 3), …, and not as two halves.
    interleaved: tuple[str, ...] = ()
    # No metadata key holds the divisor of scores. A model with this many layers divides them by
    # sqrt(d_model / heads), and a model of any other size by sqrt(d_head). 0: no such exception.
    query_scalar: int = 0


@dataclass(frozen=True)
class Family:
    """A row of the table: all that the models of one architecture have in common.

    A field that a row leaves out has the default value given here. The weights of layers are in
    `attentions`. Those outside the blocks follow here as raw names, in which "{}" stands for the
    name of a stack where each stack has its own.
    """

    # What sentences and tables call it, as "GPT-2".
    name: str
    kind: Kind
    # The classes of transformers with a language-model head; the first one is made by tests.
    architectures: tuple[str, ...]
    # What the config says, and which settings are certified.
    keys: Keys
    # The class without a language-model head, where its name is not that of the others with
    # "Model" at the end.
    base: str = ""
    # What the class with a head puts in front of every name of a weight without one.
    prefix: str = ""
    # Whether the matrices of layers are input x output; all others are output x input.
    transposed: bool = False

    # --- norms ---
    norm: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    # Whether a norm is in front of what attention and the MLP read: x = norm(E) (pre-norm).
    norm_first: bool = True
    # Whether a norm is behind the sum of the stream and what is written: norm(E + MLP(E)).
    norm_after_sum: bool = False
    # Whether a norm is behind what is written, before it is added: E + norm(MLP(E)).
    norm_after_write: bool = False
    # Whether a norm multiplies by 1 + its weight.
    offset: bool = False

    # --- positions ---
    positions: Literal["learned", "sinusoidal", "rotary", "relative bias", "alibi"] = "learned"
    # Whether rotary positions rotate coordinates 2 i and 2 i + 1 together, not i and i + dims/2.
    interleaved: bool = False

    # --- attention and MLP ---
    # Whether the size of a head is free, and not d_model / heads.
    free_heads: bool = False
    # Whether scores are divided by a root, as that of d_head.
    scaled: bool = True
    # Whether z is gated: sigmoid(x W_gate) * (A V). "q" then holds queries and gates head by head.
    gated_heads: bool = False
    # Whether attention and MLP both read the stream that enters the block.
    parallel: bool = False
    # Whether the MLP is gated: (activation(x W_gate) * (x W_up)) W_out.
    gated: bool = False
    # The mixture of experts that is the MLP; None where it is a single one.
    routed: Routed | None = None

    # --- what its code rounds ---
    # What the code of transformers computes in float32 whatever the type of the model:
    #   "variance"  the variance in a norm
    #   "norm"      the norm up to the gain
    #   "gain"      the gain of a norm
    #   "rotated"   the queries and keys that are rotated
    #   "rotation"  the whole rotation
    #   "scores"    the scores
    #   "softmax"   the softmax
    #   "router"    the shares of experts
    in_float32: tuple[
        Literal["variance", "norm", "gain", "rotated", "rotation", "scores", "softmax", "router"],
        ...,
    ] = ()
    # Whether Hugging Face's model and the hooked one, in float64, round to float32 at different
    # steps.
    plain_rounds: bool = False

    # --- embeddings and unembedding ---
    # The stacks; two and a cross-attention in an encoder-decoder.
    attentions: tuple[Attention, ...] = ()
    # Whether the tokenizer puts special tokens of its own, such as [CLS]; else one BOS is put.
    special_tokens: bool = True
    # The token embedding.
    embed: str = ""
    # Whether token embeddings are multiplied by the root of d_model.
    scaled_embedding: bool = False
    # The table of learned positions or of relative biases; empty where there is none.
    position_table: str = ""
    # The table of token types; empty where there is none.
    type_table: str = ""
    # The norm between the embeddings and the first block; empty where there is none.
    embedding_norm: str = ""
    # The norm behind the last block; empty where there is none.
    final_norm: str = ""
    # The unembedding; in the file only where it is not tied to the embedding.
    unembed: str = "lm_head"
    # Whether the product of `transform`, and every LayerNorm outside the blocks, have a bias.
    biased: bool = True
    # In front of the unembedding: a product, a norm and an activation; the config's activation
    # where that is empty.
    transform: tuple[str, str, str] = ("", "", "")
    # The bias of the unembedding, whole name; empty where there is none.
    head_bias: str = ""
    # Weights that are read where they are there, with their shapes.
    optional: Mapping[str, str] = field(default_factory=dict)
    # Weights that no formula reads; "*" stands for any text.
    ignored: tuple[str, ...] = ()

    # The settings of a tiny random model of the family, from which tests build one.
    tiny: Mapping[str, Any] = field(default_factory=dict)

    # --- other programs ---
    # How a GGUF file holds the family; None where none does.
    gguf: GgufKeys | None = None
    # The class whose adapter of TransformerLens serves this family, where it has none for the
    # family's own; "by the row" where the adapter is made from this row.
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
        """The shape of a norm outside the blocks."""
        return "d_model with bias" if self.norm == "LayerNorm" and self.biased else "d_model"

    @property
    def outside(self) -> dict[str, str]:
        """The raw name and shape of every weight outside the blocks, except those of the
        language-model head."""
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
    """Parts of a block in which the weights of some roles have a bias, too."""
    return {
        role: (name, f"{shape} with bias" if role in roles else shape)
        for role, (name, shape) in parts.items()
    }
