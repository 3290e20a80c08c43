"""The number of parameters of a model, as torch lists them: by formula from its sizes, and
counted from its tensors.

Buffers, such as the bias that BART adds to its logits, are not parameters. For every head W_Q, W_K
and W_V (value down) are d_model x d_head and W_O (value up) is d_head x d_model. So a head's map of
values from d_model to d_model passes through d_head numbers, where a square matrix would have
d_model². Weights that are used twice (a tied unembedding) are counted once.

The table of GPT-3 in introductions counts only weight matrices: no position embeddings, biases or
norms, and the unembedding separately from the embedding. `count` can do the same.

Source: Brown et al. 2020 (GPT-3's sizes); Radford et al. 2019 (GPT-2's tensors).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probe.errors import CrossCheckError

if TYPE_CHECKING:
    from torch import Tensor

    from probe.model.load import ModelSource
    from probe.model.model import Config, Model
HEAD_PARTS = ("query", "key", "value down", "value up")
NOT_MATRICES = ("position embedding", "attention biases", "MLP biases", "norms")
# The parts that the tensors of all experts belong to, half of a tensor each if there are two.
EXPERT_PARTS = {"experts_gate_up": ("MLP gate", "MLP up"), "experts_out": ("MLP down",)}


@dataclass(frozen=True)
class Sizes:
    """The sizes from which the number of parameters follows. Sizes that are not given are as in
    GPT-2.

    n_layers: the number of attentions; an encoder-decoder has three for two layers
    tied: whether the unembedding is the transposed token embedding
    n_mlps: the number of MLPs
    biases: the numbers of biases of one attention and of one MLP
    norms: the parameters of all norms
    positions: the parameters of the position table
    others: the remaining parameters: token types, a head's transform
    """

    name: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    n_ctx: int
    tied: bool
    n_kv_heads: int = 0
    n_mlps: int = 0
    gated: bool = False
    biases: tuple[int, int] | None = None
    norms: int | None = None
    positions: int | None = None
    others: int = 0


@dataclass(frozen=True)
class ParameterPart:
    """One kind of tensor: `number` of them with `each` parameters; `shape` in words."""

    name: str
    shape: str
    each: int
    number: int

    @property
    def total(self) -> int:
        return self.each * self.number


@dataclass(frozen=True)
class Count:
    """A model's parameters by part, in the order of the forward pass.

    tensors: how many tensors were counted; 0 for a formula
    """

    sizes: Sizes
    parts: tuple[ParameterPart, ...]
    tensors: int = 0

    @property
    def total(self) -> int:
        return sum(part.total for part in self.parts)

    @property
    def per_head(self) -> int:
        """The parameters that one head uses; several heads may share their keys and values
        (`n_kv_heads`).
        """
        return sum(part.each for part in self._of_heads())

    @property
    def per_block(self) -> int:
        """The parameters of one attention with all of its heads; shared ones are counted once."""
        return self.attention // self.sizes.n_layers

    @property
    def attention(self) -> int:
        """The four matrices of every head of every block, without biases."""
        return sum(part.total for part in self._of_heads())

    @property
    def square_value(self) -> int:
        """The size of a single value matrix d_model x d_model, instead of value down and value
        up.
        """
        return self.sizes.d_model**2

    @property
    def matrices_only(self) -> bool:
        return not any(part.name in NOT_MATRICES for part in self.parts)

    def _of_heads(self) -> list[ParameterPart]:
        return [part for part in self.parts if part.name in HEAD_PARTS]


PUBLISHED = {"gpt3": Sizes("gpt3", 96, 96, 12288, 128, 4 * 12288, 50257, 2048, tied=False)}


def count_parameters(model: "ModelSource") -> Count:
    """The number of parameters of a model by part: for a name in PUBLISHED by formula, for any
    other model from its tensors (see `count_tensors`).

    Raises ModelError if the model cannot be loaded, and CrossCheckError in the cases of
    `count_tensors`.

    Example:
        >>> from probe.model.parameters import count_parameters
        >>> count_parameters("gpt3").total  # weight matrices only
        175181291520
        >>> count_parameters("tiny-senses").per_head  # query, key, value down, value up
        16384
    """
    if isinstance(model, str) and model in PUBLISHED:
        return published(model)
    # Imported here, because a published table does not need torch.
    from probe.model.load import load

    return count_tensors(load(model))


def published(name: str) -> Count:
    """The table of a published model by its name in PUBLISHED; weight matrices only."""
    return count(PUBLISHED[name], matrices_only=True)


def count(sizes: Sizes, *, matrices_only: bool = False) -> Count:
    """The parameters of a model of these sizes, by formula."""
    s = sizes
    heads = s.n_heads * s.n_layers
    keys = (s.n_kv_heads or s.n_heads) * s.n_layers
    mlps = s.n_mlps or s.n_layers
    of_attention, of_mlp = s.biases or (3 * s.n_heads * s.d_head + s.d_model, s.d_mlp + s.d_model)
    of_heads = f"3 x {s.n_heads} x {s.d_head:,} + {s.d_model:,}"
    norms = (2 * s.d_model, 2 * s.n_layers + 1) if s.norms is None else (s.norms, 1)
    positions = s.n_ctx * s.d_model if s.positions is None else s.positions

    def matrix(name: str, rows: int, columns: int, number: int) -> ParameterPart:
        return ParameterPart(name, f"{rows:,} x {columns:,}", rows * columns, number)

    parts = (
        matrix("token embedding", s.d_vocab, s.d_model, 1),
        ParameterPart(
            "position embedding",
            f"{positions // s.d_model:,} x {s.d_model:,}",
            positions,
            1 if positions else 0,
        ),
        matrix("query", s.d_model, s.d_head, heads),
        matrix("key", s.d_model, s.d_head, keys),
        matrix("value down", s.d_model, s.d_head, keys),
        matrix("value up", s.d_head, s.d_model, heads),
        ParameterPart(
            "attention biases",
            of_heads if s.biases is None else f"{of_attention:,}",
            of_attention,
            s.n_layers,
        ),
        *([matrix("MLP gate", s.d_model, s.d_mlp, mlps)] if s.gated else []),
        matrix("MLP up", s.d_model, s.d_mlp, mlps),
        matrix("MLP down", s.d_mlp, s.d_model, mlps),
        ParameterPart(
            "MLP biases",
            f"{of_mlp:,}" if s.biases else f"{s.d_mlp:,} + {s.d_model:,}",
            of_mlp,
            mlps,
        ),
        ParameterPart("norms", f"2 x {s.d_model:,}" if s.norms is None else f"{s.norms:,}", *norms),
        *([ParameterPart("others", f"{s.others:,}", s.others, 1)] if s.others else []),
        matrix("unembedding", s.d_model, s.d_vocab, 0 if s.tied else 1),
    )
    return Count(
        sizes, tuple(part for part in parts if not (matrices_only and part.name in NOT_MATRICES))
    )


def sizes_of(model: "Model") -> Sizes:
    """The sizes in a model's config, with its biases, norms and positions from the table of
    architectures.
    """
    import torch

    from probe.model.weights import expected_shapes, layers_of

    c = model.config
    family = c.family
    attentions = sum(layers_of(attention, c) for attention in family.attentions) - sum(c.mixers)
    mlps = sum(
        layers_of(attention, c)
        for attention in family.attentions
        if {"out", "experts_out"} & attention.parts.keys()
    )
    mlps *= max(1, c.n_experts)
    plain = Sizes(
        model.name,
        attentions,
        c.n_heads,
        c.d_model,
        c.d_head,
        c.d_mlp,
        c.d_vocab,
        c.n_ctx,
        tied=c.tied,
    )
    biased = all(
        shape.endswith("with bias")
        for attention in family.attentions
        for _, shape in attention.parts.values()
    )
    if (
        family.positions == "learned"
        and not family.type_table
        and family.kind == "decoder"
        and biased
        and c.n_kv_heads == c.n_heads
        and not family.config_keys.reserved_position_rows
    ):
        return plain
    shapes = expected_shapes(c, model.weights)
    numbers = _by_part({name: torch.empty(shape, device="meta") for name, shape in shapes}, c)
    return replace(
        plain,
        n_kv_heads=c.n_kv_heads,
        n_mlps=mlps,
        gated=c.gated_mlp,
        biases=(numbers["attention biases"] // attentions, numbers["MLP biases"] // mlps),
        norms=numbers["norms"],
        positions=numbers["position embedding"],
        others=numbers["others"],
    )


def count_tensors(model: "Model") -> Count:
    """The parameters of a loaded model, counted from its raw tensors; a tied unembedding counts
    once.

    Raises CrossCheckError if a part, or the sum over all tensors, differs from the formula.
    """
    expected = count(sizes_of(model))
    counted = _by_part(model.weights, model.config)
    stored = _all_of(model.weights, model.config)
    rows = [(part.name, counted[part.name], part.total) for part in expected.parts]
    for name, got, expected_number in [*rows, ("all tensors", stored, expected.total)]:
        if got != expected_number:
            raise CrossCheckError(
                f"Cannot count the parameters of {model.name}: {name} came to {got:,}, expected "
                f"{expected_number:,} from its config: they do not belong together. Save the model "
                "again with save_pretrained."
            )
    tensors = len(model.weights.keys() - model.config.family.optional_weights.keys())
    return Count(expected.sizes, expected.parts, tensors=tensors)


def _by_part(raw: "Mapping[str, Tensor]", config: "Config") -> dict[str, int]:
    """The number of parameters in the tensors of each part; "others" comes last.

    A tensor with two uses, such as the norm of a parallel block, counts once, and tables of sines
    count as positions.
    """
    from probe.model.weights import NORMS, read_stacks

    family = config.family
    blocks = [block for stack in read_stacks(raw, config).values() for block in stack.blocks]

    def tensors_of(*names: str) -> list["Tensor | None"]:
        full = [name.format(side) for name in names for side in ("", "encoder", "decoder")]
        return [raw.get(f"{name}.{kind}") for name in full for kind in ("weight", "bias")]

    parts: dict[str, list[Tensor | None]] = {
        "token embedding": tensors_of(family.embed),
        "position embedding": tensors_of(family.position_table),
        "query": [block.w_q for block in blocks],
        "key": [block.w_k for block in blocks],
        "value down": [block.w_v for block in blocks],
        "value up": [block.w_o for block in blocks if block.mixer is None],
        "attention biases": [bias for b in blocks for bias in (b.b_q, b.b_k, b.b_v, b.b_o)],
        "MLP gate": [b.w_gate for b in blocks],
        "MLP up": [part for b in blocks for part in (b.w_in, b.w_up)],
        "MLP down": [b.w_out for b in blocks],
        "MLP biases": [bias for b in blocks for bias in (b.b_in, b.b_out)],
        "norms": [
            getattr(b, name) for b in blocks for name in (*NORMS, "norm_bias", "norm_mlp_bias")
        ]
        + tensors_of(family.embedding_norm, family.final_norm),
        "unembedding": [] if config.tied else [raw.get(family.unembed + ".weight")],
    }
    sizes = {
        name: sum({id(tensor): tensor.numel() for tensor in tensors if tensor is not None}.values())
        for name, tensors in parts.items()
    }
    for name, size in _of_experts(raw, config):
        sizes[name] += size
    sizes["position embedding"] += _sines(config)
    return sizes | {"others": _all_of(raw, config) - sum(sizes.values())}


def _of_experts(raw: "Mapping[str, Tensor]", config: "Config") -> Iterator[tuple[str, int]]:
    """The part and the number of parameters of every tensor of the experts of a routed MLP."""
    if not config.n_experts:
        return
    (attention,) = config.family.attentions
    for layer in range(config.n_layers):
        for role, parts in EXPERT_PARTS.items():
            tensor = raw[attention.layer_prefix.format(layer) + attention.parts[role][0]]
            yield from ((part, tensor.numel() // len(parts)) for part in parts)


def _all_of(raw: "Mapping[str, Tensor]", config: "Config") -> int:
    """The number of parameters that torch lists: without buffers (a family's optional weights),
    but with tables of sines, which a checkpoint need not contain.
    """
    weights = [tensor for name, tensor in raw.items() if name not in config.family.optional_weights]
    return sum(tensor.numel() for tensor in weights) + _sines(config)


def _sines(config: "Config") -> int:
    """The numbers in the fixed position tables of all stacks."""
    if config.positions.kind != "sinusoidal":
        return 0
    stacks = [attention for attention in config.family.attentions if attention.name != "cross"]
    return len(stacks) * config.positions.rows * config.d_model
