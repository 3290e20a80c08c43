"""Dataclasses that describe one model family, `FAMILIES[model_type]`.

Family       the row itself
ConfigKeys   the keys of its settings (`Family.config_keys`)
Attention    the hooks and the weights of its layers (`Family.attentions`)
Mixer        what replaces attention in some layers of a hybrid (`Attention.mixer`)
Replacement  a hook that holds another quantity than its name says (`Attention.unreliable_hooks`)

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
# By role, such as "q" or "norm_mlp": the raw name of a tensor and its shape.
Parts = Mapping[str, tuple[str, str]]

# A layer without attention has neither these quantities nor weights with these roles.
QUANTITIES_OF_HEADS = ("q", "k", "v", "z", "pattern", "scores")
ROLES_OF_HEADS = ("q", "k", "v", "qkv", "o", "norm_q", "norm_k")

_LM_HEAD = re.compile("(ForCausalLM|ForMaskedLM|LMHeadModel)$")


@dataclass(frozen=True)
class Replacement:
    """A hook that holds another quantity than its name says."""

    # The hook within the block; empty if TransformerLens has no hook for the quantity.
    hook: str
    # What a trace holds instead, as a phrase for a sentence.
    traced_instead: str


@dataclass(frozen=True)
class Mixer:
    """What replaces attention in some layers of a hybrid: the library's own module runs there."""

    # The hook of its write to the residual stream, within the block.
    write_hook: str
    # Its tensors, which must all be there.
    parts: Parts
    # The name of a layer with this mixer in the config's `layer_types`.
    layer_type: str
    # By field of `MixerSizes`: the config key of the size.
    size_keys: Mapping[str, str]


@dataclass(frozen=True)
class Attention:
    """One attention in every layer of a stack, with the MLP after it."""

    # Its name in an encoder-decoder; empty in a model with a single stack.
    name: Literal["", "encoder", "decoder", "cross"]
    # By quantity of a Trace, such as "q" or "resid_mid": the hook within the block.
    hooks: Mapping[str, str]
    # The beginning of a layer's raw names; "{}" is replaced by the layer's number.
    layer_prefix: str
    # The weights of a layer; their names follow `layer_prefix`.
    parts: Parts
    # Whether a position reads only itself and what comes before it.
    causal: bool = False
    # By quantity: hooks that hold another quantity than their name says.
    unreliable_hooks: Mapping[str, Replacement] = field(default_factory=dict)
    # How the tensor with the role "qkv" is ordered: all queries, then all keys, then all values
    # ("by role"), or the three of each head together ("by head"); empty if there are three tensors.
    fused_qkv: Literal["", "by role", "by head"] = ""
    # Roles of weights that layer 0 does not have.
    absent_in_layer_0: tuple[str, ...] = ()
    # What replaces attention in some layers; None except in a hybrid.
    mixer: Mixer | None = None

    def hook_in(self, quantity: str, *, has_heads: bool) -> str:
        """The hook of a quantity within the block of a layer; empty if the layer does not have
        the quantity because it has no attention.
        """
        if has_heads or self.mixer is None:
            return self.hooks.get(quantity, "")
        if quantity == "attn_out":
            return self.mixer.write_hook
        return "" if quantity in QUANTITIES_OF_HEADS else self.hooks.get(quantity, "")

    @property
    def blocks(self) -> str:
        """The attribute of the bridge that lists the blocks of this stack."""
        return {"": "blocks", "encoder": "encoder_blocks"}.get(self.name, "decoder_blocks")


@dataclass(frozen=True)
class ConfigKeys:
    """The config keys of a family's settings, and the values of settings that are certified.

    A config key is the name of a setting, as an attribute of transformers' config object. That
    object resolves older and general names, absent keys and consequences of other keys. An empty
    key means that the family has no such setting.
    """

    # The key of the epsilon of norms; the number itself if there is no key.
    epsilon: str | float
    # The key of the MLP's activation; the activation itself if there is no key.
    activation: str = "hidden_act"
    # By field of `Config`, such as "d_mlp": keys of sizes that differ from the general ones
    # (`config.SIZES`).
    sizes: Mapping[str, str] = field(default_factory=dict)
    # The number of key and value heads in every model of the family; 0 if a key states it.
    fixed_kv_heads: int = 0
    # The longest text in tokens if the config states none, for positions without a limit; 0 for
    # positions with a limit.
    default_n_ctx: int = 0
    # By key: the values that the formulas cover. A config with another value is refused, and an
    # absent key counts as the first value.
    certified_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Pairs of keys whose values must be equal.
    equal_pairs: tuple[tuple[str, str], ...] = ()
    # The row of the position table for the first token, or the key of the row before it.
    first_position_row: int | str = 0
    # The number of rows of the position table that are not for tokens.
    reserved_position_rows: int = 0
    # The key of the number of rotated dimensions of a head; empty if they are a fraction of all.
    rotary_dims: str = ""
    # The key of the list that states for every layer whether its queries and keys are rotated;
    # empty if all layers' are.
    rotary_layers: str = ""
    # Whether only local layers are rotated, in a model with a window.
    rotates_local_layers_only: bool = False
    # A key and the value that it has in models with rotary positions; in other models of the family
    # no layer is rotated.
    rotary_if: tuple[str, str] = ("", "")
    # By key of a setting that is true or false: the weights, as letters of "qkvo", that have a bias
    # if it is true.
    biases: Mapping[str, str] = field(default_factory=dict)
    # The key of the sliding window: tokens including the query's, or on either side of it.
    window: str = ""
    # The key of the list that states which layers have the window; empty if all have it, or if
    # there is no window.
    layer_types: str = ""
    # The key of the number whose root divides scores, instead of d_head.
    query_scalar: str = ""
    # The key that states whether scores are also divided by the number of their layer, from 1.
    scores_by_layer: str = ""
    # The keys of the bounds of scores and logits; `Config` has the same names.
    softcaps: tuple[str, ...] = ()
    # The keys of constants: "embed" multiplies token embeddings, "write" every write to the stream,
    # and "scores" products of queries and keys, instead of 1 over a root; "unembed" multiplies
    # logits, and "logits" divides them.
    scales: Mapping[str, str] = field(default_factory=dict)
    # The key of the first token of a target, if `decoder_start_token_id` is not set.
    decoder_start: str = "decoder_start_token_id"


@dataclass(frozen=True)
class Family:
    """A row of the table: the common properties of the models of one architecture.

    The weights of layers are in `attentions`. Weights outside the blocks are given by raw names, in
    which "{}" is replaced by the name of a stack if each stack has such a weight.
    """

    # Its name in sentences and tables, as in "GPT-2".
    name: str
    # Whether it reads left to right, both ways, or one text both ways and another left to right.
    kind: Kind
    # The classes of transformers with a language-model head; tests build the first one.
    architectures: tuple[str, ...]
    # The keys of its settings, and the values of settings that are certified.
    config_keys: ConfigKeys
    # The classes without a language-model head, if their name is not one of `architectures` with
    # "Model" at the end.
    base_classes: tuple[str, ...] = ()
    # What precedes all raw names in the class with a language-model head, except those of the head.
    prefix: str = ""
    # Whether the matrices of layers are input x output, as in GPT-2's Conv1D; otherwise they are
    # output x input, as in torch.nn.Linear.
    transposed: bool = False

    # --- norms ---
    # The formula of every norm.
    norm: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    # Whether there is a norm before attention and before the MLP: x = norm(E) (pre-norm).
    norm_first: bool = True
    # Whether there is a norm after the sum of the stream and a write: norm(E + MLP(E)).
    norm_after_sum: bool = False
    # Whether there is a norm after a write, before it is added: E + norm(MLP(E)).
    norm_after_write: bool = False
    # Whether a norm multiplies by 1 + its weight.
    norm_adds_one: bool = False

    # --- positions ---
    # How the position of a token enters the model.
    positions: Literal["learned", "sinusoidal", "rotary", "relative bias"] = "learned"
    # Whether rotary positions rotate coordinates 2 i and 2 i + 1 together, not i and i + dims/2.
    rotary_adjacent_pairs: bool = False

    # --- attention and MLP ---
    # Whether d_head may differ from d_model / heads.
    d_head_is_independent: bool = False
    # Whether scores are divided by a root, such as that of d_head.
    divides_scores: bool = True
    # Whether z is gated: sigmoid(x W_gate) * (A V). "q" then holds queries and gates head by head.
    gated_attention: bool = False
    # Whether attention and MLP both read the stream that enters the block.
    parallel_attn_mlp: bool = False
    # Whether the MLP is gated: (activation(x W_gate) * (x W_up)) W_out.
    gated_mlp: bool = False
    # Whether a mixture of experts replaces the MLP: a router gives each token to a few of many
    # MLPs. The library's own module runs it. `experts_gate_up` and `experts_out` hold all experts.
    routed: bool = False

    # --- rounding in its code ---
    # The steps that the hooked model computes in float32 whatever its dtype. They are those of
    # transformers' code, or of the TransformerLens adapter where it differs
    # (`adapter_rounds_differently`):
    #   "variance"  the variance in a norm
    #   "norm"      the norm up to the gain
    #   "gain"      the gain of a norm
    #   "rotated"   queries and keys, rounded to float32 before they are rotated
    #   "rotation"  the whole rotation
    #   "scores"    the scores
    #   "softmax"   the softmax
    #   "router"    the weights of experts
    in_float32: tuple[
        Literal["variance", "norm", "gain", "rotated", "rotation", "scores", "softmax", "router"],
        ...,
    ] = ()
    # Whether the hooked model, in float64, rounds to float32 at other steps than Hugging Face's
    # model. Their logits then agree up to the rounding of float32 only.
    adapter_rounds_differently: bool = False

    # --- embeddings and unembedding ---
    # The stack; in an encoder-decoder the encoder, the decoder, and the decoder's cross-attention.
    attentions: tuple[Attention, ...] = ()
    # Whether the tokenizer adds special tokens such as [CLS]; otherwise one BOS is prepended.
    adds_special_tokens: bool = True
    # The token embedding.
    embed: str = ""
    # Whether token embeddings are multiplied by the root of d_model.
    scales_embedding: bool = False
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
    # Whether the product in `lm_head_transform`, and every LayerNorm outside the blocks, have a
    # bias.
    outer_biases: bool = True
    # Before the unembedding: the raw names of a product and of a norm, and the activation between
    # them; the MLP's activation if that is empty.
    lm_head_transform: tuple[str, str, str] = ("", "", "")
    # The bias of the unembedding, full name; empty without a bias.
    unembed_bias: str = ""
    # Weights that are read if a file has them, with their shapes.
    optional_weights: Mapping[str, str] = field(default_factory=dict)
    # Weights that no formula reads; "*" matches any text.
    ignored_weights: tuple[str, ...] = ()

    # The config of a tiny random model of the family, from which tests build one.
    tiny_config: Mapping[str, Any] = field(default_factory=dict)

    # --- other programs ---
    # The class whose TransformerLens adapter serves this family, if the family has none; "by the
    # row" if the adapter is built from this row.
    adapter: str = ""

    @property
    def classes_without_lm_head(self) -> tuple[str, ...]:
        """The classes of the same models without a language-model head."""
        if self.base_classes:
            return self.base_classes
        derived = [_LM_HEAD.sub("Model", name) for name in self.architectures]
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
        return "d_model with bias" if self.norm == "LayerNorm" and self.outer_biases else "d_model"

    @property
    def outer_shapes(self) -> dict[str, str]:
        """By raw name: the shapes of all weights outside the blocks, without the language-model
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
    def lm_head_shapes(self) -> dict[str, str]:
        """By raw name: the shapes of the language-model head, without the unembedding."""
        product = "d_model d_model with bias" if self.outer_biases else "d_model d_model"
        norm = self._norm_shape
        shapes = {
            self.lm_head_transform[0]: product,
            self.lm_head_transform[1]: norm,
            self.unembed_bias: "d_vocab without .weight",
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
