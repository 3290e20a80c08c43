"""The certificate holds for correct models of every family, and every fault fails the right row."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoints import change_tensors, make_checkpoint
from families import (
    HEADS,
    LAYERS,
    PAIRED,
    each_family,
    family_model,
)
from handmade import random_model
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from probe.errors import CrossCheckError
from probe.model import attention as formulas
from probe.model import blocks, check, hooks, variants
from probe.model.architectures import FAMILIES
from probe.model.architectures.family import Attention, Family
from probe.model.blocks import Past, PositionTerms, Writer
from probe.model.check import (
    DEFAULT_TEXTS,
    FLOAT32_ROUTER,
    FLOAT32_SOFTMAX,
    FLOAT32_STEPS,
    PLAIN_ROUNDED,
    Certificate,
    Row,
    certify,
)
from probe.model.load import load, read_weights
from probe.model.model import Config, Model
from probe.model.tokens import tokenize
from probe.model.trace import target_states
from probe.model.variants import Branch, Step
from probe.model.weights import Block, Weights
from probe.patching import heads as swaps

TEXT = "The mole dug a tunnel under the muddy bank"
D_MODEL = 32  # of `make_checkpoint`
LONG = DEFAULT_TEXTS[1]  # of 35 tokens: a ReLU may be 0 at every token of a short one
BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}
STEPS = [
    "resid_pre",
    "x",
    "q",
    "k",
    "v",
    "scores",
    "pattern",
    "z",
    "delta_e",
    "attn_out",
    "resid_mid",
]
SDPA = "scaled_dot_product_attention"
LOGITS = [("", None, "logits"), ("", None, "logits, Hugging Face")]


def replaced(kind: str) -> set[tuple[str, str]]:
    """Stack and quantity of a row whose hook was replaced."""
    stacks = FAMILIES[kind].attentions
    return {(stack.name, quantity) for stack in stacks for quantity in stack.unreliable_hooks}


def rounded(kind: str) -> set[str]:
    """The quantities that the family's code computes from float32 in a float64 model."""
    family = FAMILIES[kind]
    by_step = {"softmax": {"pattern"}, "router": {"mlp_out", "resid_post"}}
    quantities = {quantity for step in family.in_float32 for quantity in by_step.get(step, ())}
    if family.in_float32:
        quantities |= {"block", "block, kept keys", "swap"}
    return quantities | ({"logits, Hugging Face"} if family.adapter_rounds_differently else set())


# Families with weights that no representative has: queries, keys and values head by head; experts
# and a shared one; norms of heads; gate and up in one.
OTHER_WEIGHTS = ("gpt_neox", "qwen2_moe", "qwen3", "modernbert")


def in_turn(families: Sequence[Any], *dtypes: torch.dtype) -> list:
    """Every family with one of the dtypes, alternating."""
    turns = zip(families, cycle(dtypes), strict=False)
    return [pytest.param(*family.values, dtype, marks=family.marks) for family, dtype in turns]


@pytest.fixture(scope="module")
def model() -> Model:
    return random_model(torch.float64)


@pytest.fixture(scope="module", autouse=True)
def plain_models_made_once():
    """Makes the plain model of each model once for all checks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "plain_model", lru_cache(check.plain_model))
        yield


def first_failure(certificate: Certificate) -> tuple[str, int | None, str]:
    with pytest.raises(CrossCheckError):
        certificate.require()
    row = next(row for row in certificate.rows if not row.ok)
    return row.stack, row.layer, row.quantity


# --- correct models -------------------------------------------------------------------------------


def rows_expected(kind: str) -> list[tuple[str, int | None, str]]:
    """A row for every layer and quantity, in the order of the computation."""

    def rows_of(stack: str, *quantities: str) -> list[tuple[str, int | None, str]]:
        return [(stack, layer, quantity) for layer in range(LAYERS) for quantity in quantities]

    family = FAMILIES[kind]
    mlp = ("mlp_out", "resid_post")
    by_layer = []
    as_swaps = []
    for attention in family.attentions:
        if attention.name == "cross":
            by_layer += rows_of("cross", STEPS[0], "memory", *STEPS[1:])
            continue
        by_layer += rows_of(attention.name, *STEPS, *mlp)
        kept = ("block, kept keys",) if attention.causal else ()
        as_swaps += rows_of(attention.name, "block", *kept)
    across = "cross " if kind in PAIRED else ""
    swapped = ((0, 0), (LAYERS // 2, HEADS - 1))
    swaps = [("", None, f"swap of {across}L{layer}H{head}") for layer, head in swapped]
    return [*by_layer, *as_swaps, *LOGITS, *swaps]


def kind_of(row: Row) -> str:
    """The quantity of a row, "swap" for a swap of any head."""
    return "swap" if row.quantity.startswith("swap") else row.quantity


def require_replacements_named(kind: str, rows: Sequence[Row]) -> None:
    assert {
        (row.stack, row.quantity) for row in rows if row.note.startswith("replaced: ")
    } == replaced(kind)
    for row in rows:
        if row.quantity == "scores" and row.note:
            assert row.note == "replaced: scores recomputed from q.k"
        if row.quantity in ("attn_out", "mlp_out") and FAMILIES[kind].norm_after_write:
            assert row.note == "replaced: read in front of its norm"


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("kind", each_family(also=("gptj", "mixtral", "modernbert")))
def test_a_sound_model_passes_and_is_left_as_it_was(kind: str, dtype: torch.dtype) -> None:
    """Also at late positions: the last rows of tables, large angles, the widest buckets."""
    model = family_model(kind, dtype)
    long = "The" + " bank" * (36 if kind not in ("t5", "mt5") else 80)
    assert len(tokenize(model, long)) > min(model.config.n_ctx, 80) - 4
    before = [(name, len(point.fwd_hooks)) for name, point in model.bridge.hook_dict.items()]
    certificate = certify(model, [*DEFAULT_TEXTS, long]).require()
    assert [
        (name, len(point.fwd_hooks)) for name, point in model.bridge.hook_dict.items()
    ] == before
    assert certificate.ok and certificate.dtype == str(dtype).removeprefix("torch.")
    assert [(row.stack, row.layer, row.quantity) for row in certificate.rows] == rows_expected(kind)
    wider = {kind_of(row) for row in certificate.rows if row.tolerance != BOUND[dtype]}
    assert wider == (rounded(kind) if dtype == torch.float64 else set())
    for row in certificate.rows:
        assert row.error <= row.tolerance == (1e-6 if kind_of(row) in wider else BOUND[dtype])
        assert row.scale > 0.05
        notes = (FLOAT32_ROUTER, FLOAT32_SOFTMAX, FLOAT32_STEPS, PLAIN_ROUNDED)
        assert (row.note in notes) == (kind_of(row) in wider)
    assert certificate.worst.error > 0  # the two sides are separate computations
    if not wider:
        require_replacements_named(kind, certificate.rows)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_gpt2_with_another_activation_passes_and_is_swapped_as_it_runs(
    activation: str, tmp_path: Path
) -> None:
    model = load(make_checkpoint(tmp_path, n_inner=40, activation_function=activation))
    assert certify(model).require().ok
    tokens = tokenize(model, "The mole dug a tunnel under the river bank")
    states = target_states(model, [tokens], [len(tokens) - 1])
    inputs = read_weights(model), [tokens.ids]
    direction = torch.nn.functional.normalize(torch.ones(1, inputs[0].shape[2]), dim=-1)

    # The hooked z replaces an equal z of the run of swaps.
    assert swaps.swap_heads(*inputs, states.z, direction).abs().max() < 1e-5
    assert swaps.swap_heads(*inputs, 0 * states.z, direction).abs().max() > 1e-3


def test_an_untied_gpt2_passes_and_its_wrong_unembedding_is_named() -> None:
    model = random_model(torch.float64, tied=False)
    assert certify(model).require().ok
    assert first_failure(certify(with_tensor(model, "lm_head.weight", nudge))) == LOGITS[0]


# --- faults in the raw weights --------------------------------------------------------------------


@pytest.fixture
def hooked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a bridge once on each text, however many sets of raw weights it is compared with."""
    runs: dict[tuple[Any, ...], Any] = {}
    record_text = hooks.record_text

    def once(model: Model, ids: Sequence[int], target: Sequence[int] | None) -> Any:
        text = (model.bridge, *ids, "target", *(target or ()))
        if text not in runs:
            runs[text] = record_text(model, ids, target)
        return runs[text]

    monkeypatch.setattr(hooks, "record_text", once)


def with_tensor(model: Model, name: str, change: Callable[[Tensor], object]) -> Model:
    """The model with one changed raw tensor, while the hooked model keeps the true one."""
    changed = model.weights[name].clone()
    change(changed)
    return replace(model, weights={**model.weights, name: changed})


def name_of(attention: Attention, layer: int, role: str, kind: str = "weight") -> str:
    """The raw name of the tensor of a role; queries, keys and values may be in one."""
    name, shape = attention.parts[role if role in attention.parts else "qkv"]
    whole = attention.layer_prefix.format(layer) + name.format(1)  # the second of several experts
    return whole if shape.endswith("without .weight") else f"{whole}.{kind}"


def of_role(model: Model, attention: Attention, tensor: Tensor, role: str) -> Tensor:
    """The part of a raw tensor with this role, whatever the order of axes in the file; q k v o
    as `head d_head ...`.
    """
    transposed = model.config.family.transposed and tensor.dim() == 2
    if role == "o" and tensor.dim() == 2:
        return (tensor if transposed else tensor.T).unflatten(0, (HEADS, -1))
    if role not in ("q", "k", "v"):
        return tensor
    tensor, index = tensor.T if transposed else tensor, "qkv".index(role)
    if role in attention.parts:
        return tensor.unflatten(0, (-1, model.config.d_head))
    if attention.fused_qkv == "by role":
        groups, d_head = model.config.n_kv_heads, model.config.d_head
        return tensor.split([heads * d_head for heads in (HEADS, groups, groups)])[index].unflatten(
            0, (-1, d_head)
        )
    return tensor.unflatten(0, (HEADS, 3, -1))[:, index]


def nudge(part: Tensor) -> None:
    """The tensor with one number changed by 1 % of the largest: the smallest fault."""
    part[(0,) * part.dim()] += 0.01 * part.abs().max()


def expected_quantity(role: str, *, bias: bool, family: Family) -> str:
    """The first row that must detect a wrong weight of this role."""
    first, second = ("resid_mid", "resid_post") if family.norm_after_sum else ("x", "mlp_out")
    normed = {
        "norm": first,
        "norm_mlp": second,
        "norm_out": "resid_mid",
        "norm_mlp_out": "resid_post",
    }
    normed |= {"norm_q": "scores", "norm_k": "scores"}
    writers = {"o": "attn_out" if bias else "delta_e"}
    writers |= dict.fromkeys(("in", "gate", "up", "gate_up", "out"), "mlp_out")
    return (normed | writers | {"q": "q", "k": "k", "v": "v"})[role]


def is_of_experts(role: str) -> bool:
    return "expert" in role or "shared" in role or role == "router"


@pytest.mark.usefixtures("hooked_once")
@pytest.mark.parametrize(("kind", "dtype"), in_turn(each_family(also=OTHER_WEIGHTS), *BOUND))
def test_one_wrong_number_in_any_raw_tensor_of_a_layer_is_named(
    kind: str, dtype: torch.dtype
) -> None:
    model, family = family_model(kind, dtype), FAMILIES[kind]
    remaining = {
        name
        for name in model.weights
        if any(name.startswith(a.layer_prefix.split("{")[0]) for a in family.attentions)
    }
    remaining -= {
        name
        for name in remaining
        if "relative_attention_bias" in name or "block" not in name and "layer" not in name
    }
    for attention in family.attentions:
        roles = [part for role in attention.parts for part in (role if role == "qkv" else [role])]
        # The library's own module reads the weights of a routed MLP.
        roles = [role for role in roles if not is_of_experts(role)]
        for number, role in enumerate(roles):
            remaining -= {
                name_of(attention, layer, role, kind)
                for layer in range(LAYERS)
                for kind in ("weight", "bias")
            }
            for ending in ("weight", "bias"):
                layer = (number + (ending == "bias")) % LAYERS
                name = name_of(attention, layer, role, ending)
                if name in model.weights:
                    corrupt = with_tensor(
                        model, name, lambda t, a=attention, r=role: nudge(of_role(model, a, t, r))
                    )
                    quantity = expected_quantity(role, bias=ending == "bias", family=family)
                    assert first_failure(certify(corrupt, [LONG])) == (
                        attention.name,
                        layer,
                        quantity,
                    ), (name, role)
    outside = {
        name
        for name in model.weights
        if name.rpartition(".")[0] in {*family.outer_shapes, *family.lm_head_shapes}
    }
    # Every kind of tensor is covered, except those that the library's own module reads.
    parts = {attention.parts[role][0] for role in attention.parts if is_of_experts(role)}
    of_experts = tuple(f".{part.partition('.{}')[0]}" for part in parts)
    assert {name for name in remaining if not any(part in name for part in of_experts)} <= outside


def every_row(tensor: Tensor) -> None:
    """A change of a few % in every row, not equal in all, because a softmax ignores a constant
    added to all of T5's buckets.
    """
    size = 0.01 * tensor.abs().max()
    tensor[..., 0] += size * (1 + torch.arange(len(tensor)) % 3) if tensor.dim() == 2 else size


@pytest.mark.usefixtures("hooked_once")
@pytest.mark.parametrize("kind", each_family())
def test_a_wrong_tensor_outside_the_layers_is_named(kind: str) -> None:
    model, family = family_model(kind, torch.float64), FAMILIES[kind]
    entering = (family.embed, family.position_table, family.type_table, family.embedding_norm)
    quantities = {
        name.format(side): "resid_pre"
        for name in entering
        for side in ("encoder", "decoder")
        if name
    }
    # The decoder's scores are replaced with the same table, so its pattern shows the fault.
    if family.positions == "relative bias":
        by_side = {"encoder": "scores", "decoder": "pattern"}
        quantities |= {
            family.position_table.format(side): quantity for side, quantity in by_side.items()
        }
    if family.kind == "encoder-decoder" and family.final_norm:
        quantities |= {family.final_norm.format("encoder"): "memory"}
    outside = [
        name
        for stem in {*family.outer_shapes, *family.lm_head_shapes, *family.optional_weights}
        for name in held_by(model, stem)
    ]
    assert len(outside) >= len(family.outer_shapes) + len(family.lm_head_shapes)
    for name in outside + ([f"{family.unembed}.weight"] if not model.config.tied else []):
        quantity = first_failure(certify(with_tensor(model, name, every_row), [TEXT]))[2]
        assert quantity == quantities.get(name.rpartition(".")[0], "logits"), name


def held_by(model: Model, stem: str) -> list[str]:
    return [name for name in (stem, f"{stem}.weight", f"{stem}.bias") if name in model.weights]


def words_of_the_second(model: Model) -> int:
    """A token of the second default text that the first does not have."""
    first, second = (set(model.tokenizer(text)["input_ids"]) for text in DEFAULT_TEXTS)
    return min(second - first)


@pytest.mark.parametrize("kind", each_family())
def test_one_wrong_token_vector_is_named_though_only_one_text_has_it(kind: str) -> None:
    model, (first, second) = family_model(kind, torch.float64), DEFAULT_TEXTS
    mine, name = words_of_the_second(model), f"{FAMILIES[kind].embed}.weight"

    def change(table: Tensor) -> None:
        table[mine, 3] += 0.01

    corrupt, entered = (
        with_tensor(model, name, change),
        (FAMILIES[kind].attentions[0].name, 0, "resid_pre"),
    )
    if model.config.tied:  # its column of the unembedding, nothing earlier
        assert first_failure(certify(corrupt, [first])) == ("", None, "logits")
    assert first_failure(certify(corrupt, [first, second])) == entered
    assert first_failure(certify(corrupt, [second, first])) == entered


@pytest.mark.parametrize(("role", "quantity"), [("q", "q"), ("v", "v"), ("o", "delta_e")])
@pytest.mark.parametrize("kind", each_family())
def test_heads_in_the_wrong_order_are_named(kind: str, role: str, quantity: str) -> None:
    model, attention = family_model(kind, torch.float64), FAMILIES[kind].attentions[-1]
    if role == "v" and model.config.n_kv_heads == 1:
        pytest.skip("one head has no order")

    def roll(tensor: Tensor) -> None:
        part = of_role(model, attention, tensor, role)
        part.copy_(part.roll(1, dims=0))

    certificate = certify(with_tensor(model, name_of(attention, 1, role), roll), [TEXT])
    assert first_failure(certificate) == (attention.name, 1, quantity)
    with pytest.raises(
        CrossCheckError, match=f"{quantity} of {attention.name} layer 1 is".replace("  ", " ")
    ):
        certificate.require()


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("h.1.attn.c_attn.weight", ("", 1, "q")),
        ("h.1.mlp.c_fc.weight", ("", 1, "mlp_out")),
        ("ln_f.bias", LOGITS[0]),
        ("wte.weight", ("", 0, "resid_pre")),  # of a token that only one of the texts has
    ],
)
def test_not_a_number_is_a_failure_whichever_text_has_it(
    model: Model, name: str, failed: object
) -> None:
    def change(tensor: Tensor) -> None:
        tensor[words_of_the_second(model) if name == "wte.weight" else 0].view(-1)[0] = math.nan

    corrupt = with_tensor(model, name, change)
    for texts in (DEFAULT_TEXTS, DEFAULT_TEXTS[::-1]):
        assert first_failure(certify(corrupt, texts)) == failed


# --- faults in what swaps run ---------------------------------------------------------------------

# Puts a fault into a block, or into the loop over blocks.
Injection = Callable[[pytest.MonkeyPatch], None]


def formula(name: str, wrong: Callable[..., Tensor]) -> Injection:
    """Another formula of `probe.model.attention`."""
    return lambda patch: patch.setattr(formulas, name, wrong)


def kernel(name: str, wrong: Callable[..., Tensor]) -> Injection:
    """Another function in place of one of torch's, in a block alone."""
    kernels = SimpleNamespace(**{**vars(functional), name: wrong})
    return lambda patch: patch.setattr(blocks, "functional", kernels)


def activation(name: str, wrong: Callable[..., Tensor]) -> Injection:
    return lambda patch: patch.setitem(blocks.ACTIVATIONS, name, wrong)


def step(name: str, wrong: Callable[..., Any]) -> Injection:
    """Another step of a block."""
    return lambda patch: patch.setattr(blocks, name, wrong)


def loop(owner: object, name: str, wrong: object) -> Injection:
    """Another part of the loop over blocks."""
    return lambda patch: patch.setattr(owner, name, wrong)


def mask_off_by_one(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(2), -math.inf)


def mask_of_the_past(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).tril(-1), -math.inf)


def unbiased_layer_norm(
    x: Tensor, shape: Any, gain: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + epsilon).sqrt() * gain + bias


def pairs_side_by_side(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2) * sin


def buckets_towards_the_query(table: Tensor, offsets: Tensor, **how: Any) -> Tensor:
    return true_relative_bias(table, -offsets, **how)


def interleaved_groups(k: Tensor, heads: int) -> Tensor:
    return k.repeat(*(1,) * (k.dim() - 3), heads // k.shape[-3], 1, 1)


def attention_with(**changes: Any) -> Callable[..., Tensor]:
    """torch's attention with other arguments."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *mask: Any, **how: Any) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, *mask, **{**how, **changes})

    return attend


def attention_of_interleaved_groups(
    q: Tensor, k: Tensor, v: Tensor, *mask: Any, **how: Any
) -> Tensor:
    k, v = (interleaved_groups(part, q.shape[-3]) for part in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, *mask, **how)


def grouped_in_turn(x: Tensor, shared: Tensor) -> Tensor:
    return true_grouped(x, shared.roll(1, dims=1))


def last_positions_unmasked(
    weights: Weights, block: Block, terms: PositionTerms, n: int, size: int
) -> Tensor | None:
    bias = true_bias_and_mask(weights, block, terms, n, size)
    return bias if bias is None or n == size else torch.zeros_like(bias)


def unscaled(weights: Weights, block: Block, qk: Tensor, bias: Tensor | None) -> Tensor:
    return qk if bias is None else qk + bias


def mixed_without_the_past(block: Block, x: Tensor, past: Past | None) -> Tensor:
    return true_mix_variants(block, x, None)


def placed_one_short(
    weights: Weights, block: Block, q: Tensor, k: Tensor, terms: PositionTerms, pos: Tensor
) -> tuple[Tensor, Tensor]:
    """Only against kept keys, where positions do not begin at 0."""
    return true_placed(weights, block, q, k, terms, pos - (pos.flatten()[0] > 0).long())


def without_bias(weights: Weights, block: Block) -> Writer:
    return true_attention_writer(weights, block)._replace(bias=None)


def without_norm_of_write(config: Config, writer: Writer, resid: Tensor, write: Tensor) -> Tensor:
    return resid + write


def one_layer_later(edited: Tensor) -> list[Branch]:
    return true_branches(edited.roll(1, dims=1))


def next_head(recipient: Tensor, donor: Tensor, edited: Tensor) -> Tensor:
    return true_patch(recipient, donor, edited.roll(1, dims=-1))


true_rotate, true_sliding_window = formulas.rotate, formulas.sliding_window
true_relative_bias, true_sinusoids = formulas.relative_bias, formulas.sinusoids
true_grouped, true_placed = blocks._grouped, blocks.placed
true_bias_and_mask, true_attention_writer = blocks.bias_and_mask, blocks.attention_writer
true_branches, true_patch = variants.branches, variants.patch
true_query_bias = PositionTerms.query_bias
true_rms_norm, true_mix_variants = functional.rms_norm, blocks.mix_variants
L0H0, L1H3 = "swap of L0H0", "swap of L1H3"
FAULTS: dict[str, tuple[str, Injection, str]] = {
    # the mask
    "no mask": ("gpt2", kernel(SDPA, attention_with(is_causal=False)), "z"),
    "a mask one off": ("gpt2", formula("mask", mask_off_by_one), "scores"),
    "a mask of the past": ("gpt2", formula("mask", mask_of_the_past), "scores"),
    "Qwen's mask": ("qwen2", formula("mask", lambda scores: scores), "scores"),
    "GPT-Neo's mask one off": ("gpt_neo", formula("mask", mask_off_by_one), "pattern"),
    "no mask of the last positions": (
        "gpt2",
        step("bias_and_mask", last_positions_unmasked),
        "block, kept keys",
    ),
    "no window": (
        "mistral",
        formula("sliding_window", lambda scores, window, **_: scores),
        "scores",
    ),
    "a window that looks back only": (
        "modernbert",
        formula("sliding_window", lambda s, window, **_: true_sliding_window(s, window + 1)),
        "scores",
    ),
    "a window one longer": (
        "gemma3_text",
        formula(
            "sliding_window", lambda s, window, **both: true_sliding_window(s, window + 1, **both)
        ),
        "scores",
    ),
    # the scale of scores
    "z of scores not scaled": ("gpt2", kernel(SDPA, attention_with(scale=1.0)), "z"),
    "z of scores scaled in T5": ("t5", kernel(SDPA, attention_with(scale=0.25)), "z"),
    "scores not scaled": ("gpt2", step("scores", unscaled), "scores"),
    "scores cut off": ("gemma2", formula("softcap", lambda x, c: x.clamp(-c, c)), "scores"),
    # the pattern
    "softmax over queries": (
        "gpt2",
        step("softmax", lambda scores: scores.softmax(-2)),
        "pattern",
    ),
    "softmax over heads": (
        "gpt2",
        step("softmax", lambda scores: scores.softmax(-3).nan_to_num()),
        "pattern",
    ),
    # rotary positions
    "no rotation": ("gpt_neox", formula("rotate", lambda x, cos, sin: x), "scores"),
    "rotation the other way": (
        "llama",
        formula("rotate", lambda x, cos, sin: true_rotate(x, cos, -sin)),
        "scores",
    ),
    "YaRN's queries and keys as long as before": (
        "olmo3",
        step("rotary_factor", lambda positions, local: 1.0),
        "scores",
    ),
    "pairs side by side": ("llama", formula("rotate", pairs_side_by_side), "scores"),
    "GPT-J's pairs apart": ("gptj", formula("halves", lambda x: x), "pattern"),
    "the word's rotary position one short": (
        "llama",
        step("placed", placed_one_short),
        "block, kept keys",
    ),
    # keys and values that heads share
    "interleaved groups": ("llama", formula("repeat_kv", interleaved_groups), "scores"),
    "Qwen's interleaved groups": ("qwen2", formula("repeat_kv", interleaved_groups), "scores"),
    "z of interleaved groups": ("llama", kernel(SDPA, attention_of_interleaved_groups), "z"),
    "kept keys of another group": ("llama", step("_grouped", grouped_in_turn), "block, kept keys"),
    "a mixer that starts at the word": (
        "lfm2",
        step("mix_variants", mixed_without_the_past),
        "block, kept keys",
    ),
    # norms
    "an unbiased variance": ("gpt2", kernel("layer_norm", unbiased_layer_norm), "x"),
    "another root": (
        "llama",
        kernel("rms_norm", lambda x, n, gain, epsilon: true_rms_norm(x, n, gain, 2 * epsilon)),
        "block",
    ),
    "no norm": (
        "bart",
        kernel("layer_norm", lambda x, n, gain, bias, epsilon: x * gain + bias),
        "resid_pre",
    ),
    "no norm of writes": ("gemma2", step("add_write", without_norm_of_write), "resid_mid"),
    # biases
    "b_O left out": ("gpt2", step("attention_writer", without_bias), "resid_mid"),
    "buckets towards the query": (
        "t5",
        formula("relative_bias", buckets_towards_the_query),
        "scores",
    ),
    "the bias of another query": (
        "t5",
        loop(
            PositionTerms,
            "query_bias",
            lambda terms, block, pos, keys: true_query_bias(terms, block, pos - 1, keys),
        ),
        "block, kept keys",
    ),
    "sines one later": (
        "marian",
        formula("sinusoids", lambda *sizes: true_sinusoids(*sizes).roll(1, dims=0)),
        "resid_pre",
    ),
    # writes and activations
    "the write of another head": (
        "gpt2",
        formula("write", lambda z, w_o: z @ w_o.roll(1, dims=0)),
        "delta_e",
    ),
    "another GELU": ("gpt2", activation("gelu_new", functional.gelu), "mlp_out"),
    "BERT's GELU": ("bert", activation("gelu", formulas.gelu_new), "mlp_out"),
    "T5's activation": ("t5", activation("relu", formulas.silu), "mlp_out"),
    "Llama's activation": ("llama", activation("silu", formulas.gelu), "mlp_out"),
    # the loop: a stage too late, and another head or variant
    "the MLP reads in front of the attention": (
        "gpt2",
        loop(
            Step,
            "mlp_input",
            property(lambda of_step: of_step._branched(variants.Z, of_step.resid_pre)),
        ),
        "block",
    ),
    "the stream after the attention is read": (
        "gpt2",
        loop(Step, "resid_post", property(lambda of_step: of_step.resid_mid)),
        "block",
    ),
    "a swap one layer too late": ("gpt2", loop(variants, "branches", one_layer_later), L0H0),
    "an encoder's swap one layer too late": (
        "bert",
        loop(variants, "branches", one_layer_later),
        L0H0,
    ),
    "a swap of the next head": ("llama", loop(variants, "patch", next_head), L0H0),
    "a swap of cross-attention in the next head": (
        "t5",
        loop(variants, "patch", next_head),
        "swap of cross L0H0",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_what_swaps_run_fails_the_certificate(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, inject, quantity = FAULTS[name]
    model = family_model(kind, torch.float32)
    inject(monkeypatch)
    assert first_failure(certify(model, [TEXT]))[2] == quantity


@pytest.mark.parametrize(
    ("kind", "changes", "quantity"),
    [
        ("gpt2", {"epsilon": 2e-5}, "x"),
        ("bert", {"epsilon": 2e-5}, "resid_pre"),
        ("t5", {"epsilon": 2e-5}, "x"),
        ("olmo2", {"epsilon": 2e-5}, "scores"),
        ("marian", {"epsilon": 2e-5}, "resid_mid"),
        ("gpt2", {"first": 1}, "resid_pre"),
        ("roberta", {"first": 1}, "resid_pre"),
        ("bart", {"first": 0}, "resid_pre"),
        ("t5", {"furthest": 40}, "scores"),
        ("gpt_neox", {"dims": 4}, "scores"),
        ("llama", {"base": 500.0}, "scores"),
        ("gptj", {"dims": 4}, "pattern"),
        ("gemma3_text", {"base": 10000.0}, "scores"),
        ("gemma3_text", {"local_base": 20000.0}, "scores"),
        ("gemma2", {"local": (False, False)}, "scores"),
        ("gemma2", {"local": (True, True)}, "scores"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "scores"),
        ("gemma2", {"query_scalar": 0.0}, "scores"),
        ("gemma2", {"final_logit_softcapping": 0.0}, "logits"),
        ("gemma2", {"embed_scale": 1.0}, "resid_pre"),
        ("gpt_neo", {"local": (True, False)}, "pattern"),
        ("olmo3", {"rope_scaling": None}, "scores"),
        ("olmo3", {"local_base": 0.0}, "scores"),
        ("smollm3", {"unrotated": (False, False)}, "scores"),
        ("smollm3", {"unrotated": (True, True)}, "scores"),
    ],
)
def test_a_wrong_switch_of_the_config_or_of_its_positions_is_named(
    kind: str, changes: dict[str, Any], quantity: str
) -> None:
    model = family_model(kind, torch.float64)
    config, positions = model.config, model.config.positions
    ours = not vars(positions).keys() >= changes.keys()
    wrong = (
        replace(config, **changes)
        if ours
        else replace(config, positions=replace(positions, **changes))
    )
    assert first_failure(certify(replace(model, config=wrong), [TEXT]))[2] == quantity


# --- faults in the hooked model -------------------------------------------------------------------


UNRELIABLE = [
    pytest.param(*family.values, number, quantity, marks=family.marks)
    for family in each_family(also=("bart", "gptj", "mbart"))
    for number, attention in enumerate(FAMILIES[family.values[0]].attentions)
    for quantity, replacement in attention.unreliable_hooks.items()
    if replacement.hook
]


@pytest.mark.parametrize(("kind", "number", "quantity"), UNRELIABLE)
def test_the_raw_hook_fails_the_row_that_its_replacement_passes(
    kind: str, number: int, quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, family = family_model(kind), FAMILIES[kind]
    attention = family.attentions[number]
    hooks = {**attention.hooks, quantity: attention.unreliable_hooks[quantity].hook}
    unreliable_hooks = {
        name: hook for name, hook in attention.unreliable_hooks.items() if name != quantity
    }
    raw_only = replace(attention, hooks=hooks, unreliable_hooks=unreliable_hooks)
    attentions = (*family.attentions[:number], raw_only, *family.attentions[number + 1 :])
    monkeypatch.setitem(FAMILIES, kind, replace(family, attentions=attentions))
    failed = {
        (row.stack, row.layer, row.quantity) for row in certify(model, [TEXT]).rows if not row.ok
    }
    assert {(attention.name, layer, quantity) for layer in range(LAYERS)} <= failed
    # A wrong resid_mid is also the input of the MLP and of cross-attention.
    assert {row[2] for row in failed} <= {quantity, "mlp_out", "resid_post", "resid_pre"}


def certify_with_hook(model: Model, where: str, edit: Callable[[Tensor], Tensor]) -> Certificate:
    """The certificate of a model with a permanent hook."""
    point = model.bridge.hook_dict[where]
    point.add_hook(lambda tensor, hook: edit(tensor), is_permanent=True)
    try:
        return certify(model, [TEXT])
    finally:
        point.remove_hooks(including_permanent=True)


@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor:UserWarning")
@pytest.mark.parametrize("kind", each_family())
def test_a_hook_that_edits_is_named_where_it_edits(kind: str) -> None:
    model, owners = family_model(kind, torch.float64), {}
    for attention in FAMILIES[kind].attentions:
        for quantity, hook in attention.hooks.items():
            first = (
                "delta_e" if hook.endswith(".o.hook_out") else quantity
            )  # ΔE goes through the same projection
            owners.setdefault(f"{attention.blocks}.1.{hook}", (attention.name, 1, first))
    for where, owner in owners.items():
        certificate = certify_with_hook(model, where, lambda tensor: tensor * (1 + 1e-5))
        assert first_failure(certificate) == owner
    assert certify(model, [TEXT]).ok


def test_a_hook_that_swaps_two_heads_or_makes_not_a_number_is_named(model: Model) -> None:
    order = [1, 0, *range(2, HEADS)]
    certificate = certify_with_hook(
        model, "blocks.1.attn.hook_q", lambda tensor: tensor[:, :, order]
    )
    assert first_failure(certificate) == ("", 1, "q")

    def edit(z: Tensor) -> Tensor:
        z = z.clone()
        z[:, -1, 2, 0] = math.nan
        return z

    certificate = certify_with_hook(model, "blocks.1.attn.hook_z", edit)
    assert first_failure(certificate) == ("", 1, "z")
    assert math.isnan(certificate.worst.error)


def test_a_wrong_output_projection_in_the_hooked_model_is_named(model: Model) -> None:
    weight = model.bridge.blocks[1].attn.o.original_component.weight
    shared = weight.data
    weight.data = shared.clone()  # the formulas read the same tensor
    weight.data[0, 0] += 0.01
    try:
        certificate = certify(model)
    finally:
        weight.data = shared
    assert first_failure(certificate) == ("", 1, "delta_e")


# --- messages -------------------------------------------------------------------------------------


def row(error, layer=2, quantity="pattern"):
    return Row(layer, quantity, "softmax(scores)", error, 1.0, 1e-5)


def test_the_first_failing_row_is_reported_in_one_sentence():
    certificate = Certificate("gpt2", "float32", ("a",), (row(1e-6), row(3.2e-4), row(0.5, 3, "z")))
    with pytest.raises(CrossCheckError) as error:
        certificate.require()
    assert str(error.value) == (
        "Cannot certify gpt2: pattern of layer 2 is off by 3.2e-04 of its scale, expected at "
        "most 1e-05. No result is reported. Run `probe check` on this model to see every row."
    )
    assert error.value.exit_code == 1
    assert certificate.worst.error == 0.5
    with pytest.raises(
        CrossCheckError, match="logits of the whole model is off by nan of its scale"
    ):
        Certificate("gpt2", "float32", ("a",), (row(math.nan, None, "logits"),)).require()
    assert row(1e-5).ok
    assert not any(row(error).ok for error in (1.0000001e-5, math.nan, math.inf))


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0),
        ([1.5, -4.0], [1.0, -4.0], 0.125),  # .5 / 4
        ([0.0, 0.0], [0.0, 0.0], 0),
        ([0.0, 1e-9], [0.0, 0.0], math.inf),
        ([1.0, -3.4e38], [1.0, -math.inf], 0),  # masked by both, each in its way
        ([1.0, -100.0], [1.0, -math.inf], math.inf),
        ([1.0, -3.4e38], [1.0, -100.0], math.inf),
        ([math.inf, 1.0], [1.0, 1.0], math.inf),
        *(
            ([2.0, a], [2.0, b], math.nan)
            for a, b in ((math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan))
        ),
    ],
)
def test_an_error_is_relative_to_the_scale_and_nan_if_a_number_is_nan(actual, expected, error):
    result = float(check._difference(torch.tensor(actual), torch.tensor(expected))[0])
    assert result == error or math.isnan(result) and math.isnan(error)


def canceling(folder: Path, *, off: float = 0.0) -> Path:
    """A GPT-2 in whose last layer all values cancel: equal columns of W_V read only the sum of the
    normed stream, which is 0.

    off: added to one weight
    """
    folder = make_checkpoint(folder)
    before = "transformer.h.1."
    tensors = load_file(folder / "model.safetensors")
    w_qkv = tensors[f"{before}attn.c_attn.weight"].clone()
    b_qkv = tensors[f"{before}attn.c_attn.bias"].clone()
    w_qkv[:, 2 * D_MODEL :] = torch.linspace(1, 2, D_MODEL)
    w_qkv[0, 2 * D_MODEL] += off
    b_qkv[2 * D_MODEL :] = 0
    changes = {"attn.c_attn.weight": w_qkv, "attn.c_attn.bias": b_qkv}
    changes |= {"ln_1.weight": torch.ones(D_MODEL), "ln_1.bias": torch.zeros(D_MODEL)}
    return change_tensors(folder, {before + name: values for name, values in changes.items()})


def test_values_that_are_rounding_errors_are_certified(tmp_path: Path) -> None:
    model = load(canceling(tmp_path / "cancels"))
    assert certify(model).require().ok
    other = load(canceling(tmp_path / "other", off=1e-3))
    wrong = replace(model, weights=other.weights)
    failed = [(row.layer, row.quantity) for row in certify(wrong).rows if not row.ok]
    assert failed[0] == (1, "v")
