"""The certificate holds for correct models (`test_families.py`), and every fault fails the right
row."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change_tensors, make_checkpoint
from families import FAMILIES, HEADS, LAYERS, REPRESENTATIVES, each_family, family_model
from handmade import random_model
from inside import DEFAULT_TEXTS, Certificate, Row, blocks, check, hooks, variants
from inside import attention as formulas
from safetensors.torch import load_file
from seeds import campaign_except
from torch import Tensor
from torch.nn import functional

import probe

TEXT = "The mole dug a tunnel under the muddy bank"
D_MODEL = 32  # of `make_checkpoint`
LONG = DEFAULT_TEXTS[1]  # of 35 tokens: a ReLU may be 0 at every token of a short one
STEPS = ("x", "q", "k", "v", "scores", "pattern", "z", "delta_e", "attn_out", "resid_mid")
LOGITS = [("", None, "logits"), ("", None, "logits, Hugging Face")]


@pytest.fixture(scope="module")
def model() -> probe.Model:
    return random_model(torch.float64)


@pytest.fixture(scope="module", autouse=True)
def made_once():
    """Make the plain model of each model once for all checks, and run a bridge once on each text,
    however many sets of raw weights it is compared with. `hooks.record_texts` is what it ran."""
    runs: dict[tuple[Any, ...], Any] = {}
    record_texts = hooks.record_texts

    def once(model: probe.Model, rows: Any, targets: Any) -> Any:
        hooked = [(name, len(point.fwd_hooks)) for name, point in model.bridge.hook_dict.items()]
        texts = (model.bridge, str(rows), str(targets), *hooked)
        if texts not in runs:
            runs[texts] = record_texts(model, rows, targets)
        return runs[texts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "plain_model", lru_cache(check.plain_model))
        patch.setattr(hooks, "record_texts", once)
        yield


def first_failure(certificate: Certificate) -> tuple[str, int | None, str]:
    with pytest.raises(probe.CrossCheckError):
        certificate.require()
    row = next(row for row in certificate.rows if not row.ok)
    return row.stack, row.layer, row.quantity


# --- rows -----------------------------------------------------------------------------------------


def rows_expected(kind: str) -> list[tuple[str, int | None, str]]:
    """A row for every layer and quantity, in the order of the computation."""

    def rows_of(stack: str, *quantities: str) -> list[tuple[str, int | None, str]]:
        return [(stack, layer, quantity) for layer in range(LAYERS) for quantity in quantities]

    by_layer, as_swaps, across = [], [], ""
    for attention in FAMILIES[kind].attentions:
        if attention.name == "cross":
            by_layer += rows_of("cross", "resid_pre", "memory", *STEPS)
            across = "cross "
            continue
        by_layer += rows_of(attention.name, "resid_pre", *STEPS, "mlp_out", "resid_post")
        kept = ("block, kept keys",) if attention.causal else ()
        as_swaps += rows_of(attention.name, "block", *kept)
    swapped = ((0, 0), (LAYERS // 2, HEADS - 1))
    swaps = [("", None, f"swap of {across}L{layer}H{head}") for layer, head in swapped]
    return [*by_layer, *as_swaps, *LOGITS, *swaps]


@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_every_quantity_has_a_row_with_its_tolerance_and_the_model_stays_as_it_was(kind) -> None:
    model, family = family_model(kind, torch.float64), FAMILIES[kind]
    points = model.bridge.hook_dict.items()
    before = [(name, len(point.fwd_hooks)) for name, point in points]
    certificate = probe.certify(model, [LONG]).require()
    assert [(name, len(point.fwd_hooks)) for name, point in points] == before
    assert certificate.dtype == "float64"
    assert [(row.stack, row.layer, row.quantity) for row in certificate.rows] == rows_expected(kind)
    rounded = {"block", "block, kept keys", "swap"} if family.in_float32 else set()
    rounded |= {"pattern"} if "softmax" in family.in_float32 else set()
    for row in certificate.rows:
        quantity = "swap" if row.quantity.startswith("swap") else row.quantity
        assert row.error <= row.tolerance == (1e-6 if quantity in rounded else 1e-12)
        assert bool(row.note) >= (quantity in rounded)
    replaced = {(row.stack, row.quantity) for row in certificate.rows if "replaced: " in row.note}
    stacks = family.attentions
    unreliable = {(stack.name, name) for stack in stacks for name in stack.unreliable_hooks}
    assert replaced >= {(stack, name) for stack, name in unreliable if name not in rounded}


def test_the_formulas_of_a_certificate_are_those_of_the_model() -> None:
    def formulas_of(kind: str) -> set[str]:
        return {row.formula for row in probe.certify(family_model(kind), [TEXT]).rows}

    assert "Q Kᵀ / √d_head / (layer + 1), masked" in formulas_of("gpt2, divided by layer")
    assert "Q Kᵀ / √d_head, masked" in formulas_of("gpt2")
    assert {"x W_Q + b_Q", "Σ ΔE + b_O"} <= formulas_of("llama, biased")
    assert {"x W_Q", "Σ ΔE"} <= formulas_of("gemma2")


# --- faults in the raw weights --------------------------------------------------------------------


def with_tensor(model: probe.Model, name: str, change: Callable[[Tensor], object]) -> probe.Model:
    """The model with one changed raw tensor, while the hooked model keeps the true one."""
    changed = model.weights[name].clone()
    change(changed)
    return replace(model, weights={**model.weights, name: changed})


def nudge(part: Tensor) -> None:
    """One number changed by 1 % of the largest: the smallest fault."""
    part[(0,) * part.dim()] += 0.01 * part.abs().max()


def every_row(tensor: Tensor) -> None:
    """A change of a few % in every row, not equal in all, because a softmax ignores a constant
    added to all of T5's buckets."""
    size = 0.01 * tensor.abs().max()
    tensor[..., 0] += size * (1 + torch.arange(len(tensor)) % 3) if tensor.dim() == 2 else size


# Queries, keys and values head by head; norms of heads; gate and up in one.
@pytest.mark.parametrize(
    "kind",
    campaign_except((*REPRESENTATIVES, "gpt_neox", "qwen3"), ("gpt2", "gemma2", "t5", "gpt_neox")),
)
def test_a_wrong_number_in_any_raw_tensor_is_named_by_its_layer(kind: str) -> None:
    model = family_model(kind, torch.float64)
    for name in model.weights:
        table = "relative_attention_bias" in name
        layer = re.search(r"\.(\d+)\.", f".{name}")
        wrong = with_tensor(model, name, every_row if table or layer is None else nudge)
        _, failed, quantity = first_failure(probe.certify(wrong, [LONG]))
        if layer is not None:
            assert failed == int(layer[1]), name
        else:  # an embedding, a norm or a bias at either end
            assert failed in (0, None) and quantity in ("resid_pre", "memory", "logits"), name


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("ln_1.weight", "x"),
        ("attn.c_attn.weight", "q"),
        ("attn.c_attn.bias", "q"),
        ("attn.c_proj.weight", "delta_e"),
        ("attn.c_proj.bias", "attn_out"),
        ("ln_2.bias", "mlp_out"),
        ("mlp.c_fc.weight", "mlp_out"),
        ("mlp.c_proj.bias", "mlp_out"),
    ],
)
def test_a_wrong_weight_fails_the_row_that_reads_it(model, name: str, quantity: str) -> None:
    wrong = with_tensor(model, f"h.1.{name}", nudge)
    assert first_failure(probe.certify(wrong, [LONG])) == ("", 1, quantity)
    untied = random_model(torch.float64, tied=False)
    wrong = with_tensor(untied, "lm_head.weight", nudge)
    assert first_failure(probe.certify(wrong, [LONG])) == LOGITS[0]


def test_heads_in_the_wrong_order_are_named(model) -> None:
    """The raw W_O on both sides would hide a wrong order of heads."""
    d_head = model.config.d_head

    def rolled(tensor: Tensor) -> None:
        tensor.copy_(tensor.roll(d_head, dims=0))

    wrong = with_tensor(model, "h.1.attn.c_proj.weight", rolled)
    assert first_failure(probe.certify(wrong, [TEXT])) == ("", 1, "delta_e")


@pytest.mark.parametrize("value", [0.01, math.nan])
def test_a_wrong_number_is_named_whichever_text_has_it(model, value: float) -> None:
    """In the vector of a token of the second text that the first does not have."""
    first, second = (set(model.tokenizer(text)["input_ids"]) for text in DEFAULT_TEXTS)
    token = min(second - first)

    def change(table: Tensor) -> None:
        table[token, 3] += value

    wrong = with_tensor(model, "wte.weight", change)
    assert first_failure(probe.certify(wrong, DEFAULT_TEXTS[0])) == LOGITS[0]  # its column of W_U
    for texts in (DEFAULT_TEXTS, DEFAULT_TEXTS[::-1]):
        assert first_failure(probe.certify(wrong, texts)) == ("", 0, "resid_pre")


# --- faults in what swaps run ---------------------------------------------------------------------

# Puts a fault into a block, or into the loop over blocks. The faults of the campaign change the code,
# and most are caught by the certificates of `test_families.py`; these need no copy of the code.
Injection = Callable[[pytest.MonkeyPatch], None]


def in_place_of(owner: object, name: str, wrong: Callable[..., Any]) -> Injection:
    """Another function, which is called with the true one first."""
    true = getattr(owner, name)
    return lambda patch: patch.setattr(owner, name, lambda *a, **how: wrong(true, *a, **how))


def activation(name: str, wrong: Callable[[Tensor], Tensor]) -> Injection:
    return lambda patch: patch.setitem(blocks.ACTIVATIONS, name, wrong)


def without_mask(true, *qkv, **how):
    return true(*qkv, **how | {"is_causal": False})


FAULTS: dict[str, tuple[str, Injection, str]] = {
    "no mask": ("gpt2", in_place_of(functional, "scaled_dot_product_attention", without_mask), "z"),
    "a mask one off": (
        "gpt2",
        in_place_of(
            formulas,
            "mask",
            lambda true, s: s.masked_fill(torch.ones_like(s).triu(2) > 0, -math.inf),
        ),
        "scores",
    ),
    "scores not scaled": (
        "gpt2",
        in_place_of(
            blocks, "scores", lambda true, w, block, qk, bias: qk if bias is None else qk + bias
        ),
        "scores",
    ),
    "scores cut off": (
        "gemma2",
        in_place_of(formulas, "softcap", lambda true, x, cap: x.clamp(-cap, cap)),
        "scores",
    ),
    "softmax over queries": (
        "gpt2",
        in_place_of(blocks, "softmax", lambda true, scores: scores.softmax(-2)),
        "pattern",
    ),
    "interleaved groups": (
        "llama",
        in_place_of(
            formulas,
            "repeat_kv",
            lambda true, k, heads: k.repeat(*(1,) * (k.dim() - 3), heads // k.shape[-3], 1, 1),
        ),
        "scores",
    ),
    "a mixer that starts at the word": (
        "lfm2",
        in_place_of(blocks, "mix_variants", lambda true, block, x, past: true(block, x, None)),
        "block, kept keys",
    ),
    "the bias of another query": (
        "t5",
        in_place_of(
            blocks.PositionTerms,
            "query_bias",
            lambda true, terms, block, pos, keys: true(terms, block, pos - 1, keys),
        ),
        "block, kept keys",
    ),
    "the write of another head": (
        "gpt2",
        in_place_of(formulas, "write", lambda true, z, w_o: z @ w_o.roll(1, dims=0)),
        "delta_e",
    ),
    "T5's activation": ("t5", activation("relu", functional.silu), "mlp_out"),
    "a swap one layer too late": (
        "gpt2",
        in_place_of(variants, "branches", lambda true, edited: true(edited.roll(1, dims=1))),
        "swap of L0H0",
    ),
    "a swap of cross-attention in the next head": (
        "t5",
        in_place_of(
            variants,
            "patch",
            lambda true, z, donor, edited: true(z, donor, edited.roll(1, dims=-1)),
        ),
        "swap of cross L0H0",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_what_swaps_run_fails_the_certificate(name, monkeypatch) -> None:
    kind, inject, quantity = FAULTS[name]
    model = family_model(kind)
    inject(monkeypatch)
    assert first_failure(probe.certify(model, [TEXT]))[2] == quantity


@pytest.mark.parametrize(
    ("kind", "changes", "quantity"),
    [
        ("gpt2", {"epsilon": 2e-5}, "x"),
        ("bert", {"epsilon": 2e-5}, "resid_pre"),
        ("gpt2, both", {"scores_by_layer": False}, "scores"),
        ("t5", {"furthest": 40}, "scores"),
        ("gpt_neox", {"dims": 4}, "scores"),
        ("llama", {"base": 500.0}, "scores"),
        ("llama 3", {"rope_scaling": None}, "scores"),
        ("gemma3_text", {"local_base": 20000.0}, "scores"),
        ("gemma2", {"local": (False, False)}, "scores"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "scores"),
        ("gemma2", {"query_scalar": 0.0}, "scores"),
        ("gemma2", {"final_logit_softcapping": 0.0}, "logits"),
        ("gemma2", {"embed_scale": 1.0}, "resid_pre"),
        ("qwen2, local from 1", {"window": 6}, "scores"),
        ("smollm3", {"unrotated": (False, False)}, "scores"),
    ],
)
def test_a_wrong_switch_of_the_config_or_of_its_positions_is_named(kind, changes, quantity) -> None:
    model = family_model(kind, torch.float64)
    config, positions = model.config, model.config.positions
    if vars(positions).keys() >= changes.keys():
        changes = {"positions": replace(positions, **changes)}
    wrong = replace(model, config=replace(config, **changes))
    assert first_failure(probe.certify(wrong, [TEXT]))[2] == quantity


# --- faults in the hooked model -------------------------------------------------------------------


@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_the_raw_hook_fails_the_row_that_its_replacement_passes(kind, monkeypatch) -> None:
    model, family = family_model(kind), FAMILIES[kind]
    for number, attention in enumerate(family.attentions):
        for quantity, replacement in attention.unreliable_hooks.items():
            if not replacement.hook:
                continue
            rest = {n: each for n, each in attention.unreliable_hooks.items() if n != quantity}
            raw = {**attention.hooks, quantity: replacement.hook}
            attentions = list(family.attentions)
            attentions[number] = replace(attention, hooks=raw, unreliable_hooks=rest)
            wrong = replace(family, attentions=tuple(attentions))
            monkeypatch.setitem(FAMILIES, kind, wrong)
            rows = probe.certify(model, [f"{TEXT} {quantity}"]).rows
            failed = {(row.stack, row.layer, row.quantity) for row in rows if not row.ok}
            assert {(attention.name, layer, quantity) for layer in range(LAYERS)} <= failed
            monkeypatch.setitem(FAMILIES, kind, family)


def certify_with_hook(
    model: probe.Model, where: str, edit: Callable[[Tensor], Tensor]
) -> Certificate:
    """The certificate of a model with a permanent hook."""
    point = model.bridge.hook_dict[where]
    point.add_hook(lambda tensor, hook: edit(tensor), is_permanent=True)
    try:
        return probe.certify(model, [f"{where} {TEXT[:9]}"])
    finally:
        point.remove_hooks(including_permanent=True)


@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor:UserWarning")
@pytest.mark.parametrize("kind", each_family("gpt2", "t5"))
def test_a_hook_that_edits_is_named_where_it_edits(kind: str) -> None:
    model, owners = family_model(kind, torch.float64), {}
    for attention in FAMILIES[kind].attentions:
        for quantity, hook in attention.hooks.items():
            # ΔE goes through the same projection
            first = "delta_e" if hook.endswith(".o.hook_out") else quantity
            owners.setdefault(f"{attention.blocks}.1.{hook}", (attention.name, 1, first))
    for where, owner in owners.items():
        certificate = certify_with_hook(model, where, lambda tensor: tensor * (1 + 1e-5))
        assert first_failure(certificate) == owner
    assert probe.certify(model, [TEXT]).ok


def test_a_hook_that_makes_not_a_number_and_a_wrong_projection_are_named(model) -> None:
    def edit(z: Tensor) -> Tensor:
        z = z.clone()
        z[:, -1, 2, 0] = math.nan
        return z

    certificate = certify_with_hook(model, "blocks.1.attn.hook_z", edit)
    assert first_failure(certificate) == ("", 1, "z")
    assert math.isnan(certificate.worst.error)
    weight = model.bridge.blocks[1].attn.o.original_component.weight
    shared = weight.data
    weight.data = shared.clone()  # the formulas read the same tensor
    weight.data[0, 0] += 0.01
    try:
        certificate = probe.certify(model, "a text of its own")
    finally:
        weight.data = shared
    assert first_failure(certificate) == ("", 1, "delta_e")


# --- messages -------------------------------------------------------------------------------------


def row(error: float, layer: int | None = 2, quantity: str = "pattern") -> Row:
    return Row(layer, quantity, "softmax(scores)", error, 1.0, 1e-5)


def test_the_first_failing_row_is_reported_in_one_sentence() -> None:
    certificate = Certificate("gpt2", "float32", ("a",), (row(1e-6), row(3.2e-4), row(0.5, 3, "z")))
    with pytest.raises(probe.CrossCheckError) as error:
        certificate.require()
    assert str(error.value) == (
        "Cannot certify gpt2: pattern of layer 2 is off by 3.2e-04 of its scale, expected at "
        "most 1e-05. No result is reported. Run `probe check` on this model to see every row."
    )
    assert error.value.exit_code == 1
    assert certificate.worst.error == 0.5
    with pytest.raises(probe.CrossCheckError, match="of the whole model is off by nan of its sca"):
        Certificate("gpt2", "float32", ("a",), (row(math.nan, None, "logits"),)).require()
    assert row(1e-5).ok
    assert not any(row(error).ok for error in (1.0000001e-5, math.nan, math.inf))


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


def test_values_that_are_rounding_errors_are_certified_and_a_wrong_weight_is_not(tmp_path) -> None:
    model = probe.load(canceling(tmp_path / "cancels"))
    assert probe.certify(model).require().ok
    other = probe.load(canceling(tmp_path / "other", off=1e-3))
    wrong = replace(model, weights=other.weights)
    assert first_failure(probe.certify(wrong)) == ("", 1, "v")
