"""How many numbers a model was trained to have: by formula from its sizes, and counted from the tensors that were loaded.

For every head W_Q, W_K and W_V (value down) are d_model x d_head and W_O (value up) d_head x d_model; so a head's value map
d_model -> d_model goes through d_head numbers, where a square matrix would have d_model² of them. Weights that are used twice
(a tied unembedding) are counted once.

The table of GPT-3 that introductions print counts weight matrices only: no position embeddings, biases or norms, and the
unembedding apart from the embedding. `count` does the same when asked to.

Source: Brown et al. 2020 (GPT-3's sizes); Radford et al. 2019 (GPT-2's tensors).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe.errors import CrossCheckError, InputError
from probe.model.architectures import require_whole
from probe.stats.numbers import percent

if TYPE_CHECKING:
    from torch import Tensor

    from probe.model.load import Model
HEAD_PARTS = ("query", "key", "value down", "value up")
NOT_MATRICES = ("position embedding", "attention biases", "MLP biases", "norms")


@dataclass(frozen=True)
class Sizes:
    """What the number of parameters follows from; `tied`: the unembedding is the transposed token embedding."""

    name: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    n_ctx: int
    tied: bool


@dataclass(frozen=True)
class Part:
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
    """The parameters of a model by part, in the order of the forward pass; `tensors` says how many were counted (0: formula)."""

    sizes: Sizes
    parts: tuple[Part, ...]
    tensors: int = 0

    @property
    def total(self) -> int:
        return sum(part.total for part in self.parts)

    @property
    def per_head(self) -> int:
        return sum(part.each for part in self._of_heads())

    @property
    def per_block(self) -> int:
        return self.per_head * self.sizes.n_heads

    @property
    def attention(self) -> int:
        """The four matrices of every head of every block, without biases."""
        return sum(part.total for part in self._of_heads())

    @property
    def square_value(self) -> int:
        """What one value matrix d_model x d_model would have instead of value down and value up."""
        return self.sizes.d_model**2

    @property
    def matrices_only(self) -> bool:
        return not any(part.name in NOT_MATRICES for part in self.parts)

    def _of_heads(self) -> list[Part]:
        return [part for part in self.parts if part.name in HEAD_PARTS]


PUBLISHED = {"gpt3": Sizes("gpt3", 96, 96, 12288, 128, 4 * 12288, 50257, 2048, tied=False)}


def count_parameters(of: "Model | str") -> Count:
    """The parameters of a loaded model from its tensors (see `count_tensors`), or of a name in PUBLISHED by formula.

    Raises InputError for another name, CrossCheckError as `count_tensors`.
    """
    if not isinstance(of, str):
        return count_tensors(of)
    if of not in PUBLISHED:
        raise InputError(
            f"Counting the parameters of {of!r}: expected a loaded model or one of {', '.join(PUBLISHED)}; load the model "
            "first with probe.load."
        )
    return published(of)


def published(name: str) -> Count:
    """The table of a published model by its name in PUBLISHED, weight matrices only."""
    return count(PUBLISHED[name], matrices_only=True)


def count(sizes: Sizes, *, matrices_only: bool = False) -> Count:
    """The parameters of a GPT-2-shaped model of these sizes, by formula."""
    s = sizes
    heads, down, up = s.n_heads * s.n_layers, f"{s.d_model:,} x {s.d_head:,}", f"{s.d_head:,} x {s.d_model:,}"
    parts = (
        Part("token embedding", f"{s.d_vocab:,} x {s.d_model:,}", s.d_vocab * s.d_model, 1),
        Part("position embedding", f"{s.n_ctx:,} x {s.d_model:,}", s.n_ctx * s.d_model, 1),
        *(Part(name, up if name == "value up" else down, s.d_model * s.d_head, heads) for name in HEAD_PARTS),
        Part(
            "attention biases",
            f"3 x {s.n_heads} x {s.d_head:,} + {s.d_model:,}",
            3 * s.n_heads * s.d_head + s.d_model,
            s.n_layers,
        ),
        Part("MLP up", f"{s.d_model:,} x {s.d_mlp:,}", s.d_model * s.d_mlp, s.n_layers),
        Part("MLP down", f"{s.d_mlp:,} x {s.d_model:,}", s.d_model * s.d_mlp, s.n_layers),
        Part("MLP biases", f"{s.d_mlp:,} + {s.d_model:,}", s.d_mlp + s.d_model, s.n_layers),
        Part("norms", f"2 x {s.d_model:,}", 2 * s.d_model, 2 * s.n_layers + 1),
        Part("unembedding", f"{s.d_model:,} x {s.d_vocab:,}", s.d_vocab * s.d_model, 0 if s.tied else 1),
    )
    return Count(sizes, tuple(part for part in parts if not (matrices_only and part.name in NOT_MATRICES)))


def sizes_of(model: "Model") -> Sizes:
    """The sizes in a model's config."""
    c = model.config
    return Sizes(model.name, c.n_layers, c.n_heads, c.d_model, c.d_head, c.d_mlp, c.d_vocab, c.n_ctx, tied=c.tied)


def count_tensors(model: "Model") -> Count:
    """The parameters of a loaded model, counted from its raw tensors, a tied unembedding once.

    Raises CrossCheckError when a part, or the sum over all tensors, is not what the formula gives.
    """
    require_whole(model.config.architecture, "a count of parameters")
    expected = count(sizes_of(model))
    found = _by_part(model)
    stored = sum(tensor.numel() for tensor in model.weights.values())
    rows = [(part.name, found[part.name], part.total) for part in expected.parts]
    for name, got, wanted in [*rows, ("all tensors", stored, expected.total)]:
        if got != wanted:
            raise CrossCheckError(
                f"Counting the parameters of {model.name}: {name} came to {got:,}, expected {wanted:,} from its config; "
                "the weights and the config do not belong together, so save the model again with save_pretrained."
            )
    return Count(expected.sizes, expected.parts, tensors=len(model.weights))


def _by_part(model: "Model") -> dict[str, int]:
    """How many numbers the tensors of each part hold, from the raw weights arranged by head."""
    from probe.model.replay import read_weights

    weights = read_weights(model)
    blocks = weights.blocks
    return {
        "token embedding": weights.wte.numel(),
        "position embedding": weights.wpe.numel(),
        "query": _size([block.w_q for block in blocks]),
        "key": _size([block.w_k for block in blocks]),
        "value down": _size([block.w_v for block in blocks]),
        "value up": _size([block.w_o for block in blocks]),
        "attention biases": _size([bias for b in blocks for bias in (b.b_q, b.b_k, b.b_v, b.b_o)]),
        "MLP up": _size([block.w_in for block in blocks]),
        "MLP down": _size([block.w_out for block in blocks]),
        "MLP biases": _size([bias for b in blocks for bias in (b.b_in, b.b_out)]),
        "norms": _size(
            [part for b in blocks for part in (b.ln1_gain, b.ln1_bias, b.ln2_gain, b.ln2_bias)]
            + [weights.ln_f_gain, weights.ln_f_bias]
        ),
        "unembedding": 0 if weights.unembed.data_ptr() == weights.wte.data_ptr() else weights.unembed.numel(),
    }


def _size(tensors: Sequence["Tensor"]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def told(counted: Count) -> list[str]:
    """What the table comes to, in sentences."""
    s = counted.sizes
    share = counted.attention / counted.total
    heads = (
        f"Per head {counted.per_head:,}; per block of {s.n_heads} heads {counted.per_block:,}; attention in all "
        f"{counted.attention:,}, {percent(share)} of {counted.total:,}."
    )
    square = (
        f"A full square value matrix ({s.d_model:,} x {s.d_model:,}) would have {counted.square_value:,} where value down and "
        f"value up have {2 * s.d_model * s.d_head:,}."
    )
    lines = [heads, square]
    if s.tied:
        lines.append("The unembedding is the transposed token embedding (tied weights): counted once.")
    if counted.matrices_only:
        rest = count(s).total - counted.total
        lines.append(
            "By formula, weight matrices only, the unembedding apart from the embedding, as introductions count; "
            f"position embeddings, biases and norms would be {rest:,} more."
        )
    if counted.tensors:
        lines.append(f"Counted from the {counted.tensors} tensors of the loaded model; the formula gives the same.")
    return lines
