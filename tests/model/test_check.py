"""The certificate holds on sound models, and every fault that it is there for is named by the row that should name it."""

import math
from dataclasses import replace

import pytest
import torch
from handmade import ODD, random_model
from torch.nn import functional

from probe.errors import CrossCheckError, InputError
from probe.model import attention, check, hooks
from probe.model.architectures import FAMILIES
from probe.model.check import DEFAULT_TEXTS, Certificate, Row, certify
from probe.model.weights import read_stacks

LAYERS, HEADS, D_MODEL = ODD["n_layer"], ODD["n_head"], ODD["n_embd"]
D_HEAD = D_MODEL // HEADS
HOOKS = FAMILIES["gpt2"].attentions[0].hooks
BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(scope="module")
def model():
    return random_model(torch.float64)


def first_failure(certificate):
    with pytest.raises(CrossCheckError):
        certificate.require()
    row = next(row for row in certificate.rows if not row.ok)
    return row.layer, row.quantity


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("seed", [5, 6])
def test_a_sound_model_passes(dtype, tied, seed):
    certificate = certify(random_model(dtype, seed=seed, tied=tied)).require()
    assert certificate.ok
    for row in certificate.rows:
        assert row.error <= row.tolerance == BOUND[dtype]
        assert row.scale > 0.1
    assert certificate.worst.error > 0  # the two sides are two computations
    assert certificate.dtype == str(dtype).removeprefix("torch.")


def test_there_is_a_row_for_every_layer_and_quantity_in_the_order_of_the_computation(model):
    rows = [(row.layer, row.quantity) for row in certify(model).rows]
    within = check.formulas_of(FAMILIES["gpt2"].attentions[0], model.config)
    quantities = ["resid_pre", *within, "mlp_out", "resid_post"]
    expected = [(layer, name) for layer in range(LAYERS) for name in quantities]
    assert rows == [*expected, (None, "logits"), (None, "logits, Hugging Face")]
    wanted = {"x", "q", "k", "v", "scores", "pattern", "z", "delta_e", "attn_out", "resid_mid", "resid_post"}
    assert wanted <= set(quantities)


# --- faults in the raw weights ---------------------------------------------------------------------------------------


def with_tensor(model, name, change):
    """The model whose raw tensor is changed, while the hooked model keeps the true one."""
    changed = model.weights[name].clone()
    change(changed)
    return replace(model, weights={**model.weights, name: changed})


def nudge(columns):
    """Makes one number off by 1 % of the largest of its tensor: the smallest fault of its kind."""

    def change(tensor):
        part = tensor[..., columns]
        index = (0,) * (part.dim() - 1)
        part[index][0] += 0.01 * tensor.abs().max()

    return change


EVERYTHING = slice(None)
QUERIES, KEYS, VALUES = (slice(part * D_MODEL, (part + 1) * D_MODEL) for part in range(3))
FAULTS = [
    ("wpe.weight", EVERYTHING, (0, "resid_pre")),
    ("h.0.ln_1.weight", EVERYTHING, (0, "x")),
    ("h.1.ln_1.bias", EVERYTHING, (1, "x")),
    ("h.1.attn.c_attn.weight", QUERIES, (1, "q")),
    ("h.2.attn.c_attn.weight", KEYS, (2, "k")),
    ("h.0.attn.c_attn.weight", VALUES, (0, "v")),
    ("h.0.attn.c_attn.bias", QUERIES, (0, "q")),
    ("h.1.attn.c_attn.bias", KEYS, (1, "k")),
    ("h.2.attn.c_attn.bias", VALUES, (2, "v")),
    ("h.1.attn.c_proj.weight", EVERYTHING, (1, "delta_e")),
    ("h.2.attn.c_proj.bias", EVERYTHING, (2, "attn_out")),
    ("h.0.ln_2.weight", EVERYTHING, (0, "mlp_out")),
    ("h.1.ln_2.bias", EVERYTHING, (1, "mlp_out")),
    ("h.2.mlp.c_fc.weight", EVERYTHING, (2, "mlp_out")),
    ("h.0.mlp.c_fc.bias", EVERYTHING, (0, "mlp_out")),
    ("h.1.mlp.c_proj.weight", EVERYTHING, (1, "mlp_out")),
    ("h.2.mlp.c_proj.bias", EVERYTHING, (2, "mlp_out")),
    ("ln_f.weight", EVERYTHING, (None, "logits")),
    ("ln_f.bias", EVERYTHING, (None, "logits")),
]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("name", "columns", "expected"), FAULTS)
def test_one_wrong_number_in_any_raw_tensor_is_named(dtype, name, columns, expected):
    corrupt = with_tensor(random_model(dtype), name, nudge(columns))
    assert first_failure(certify(corrupt)) == expected


def test_the_faults_above_leave_no_kind_of_tensor_out(model):
    kinds = {name.split(".", 2)[-1] if name.startswith("h.") else name for name, _, _ in FAULTS}
    held = {name.split(".", 2)[-1] if name.startswith("h.") else name for name in model.weights}
    assert held - kinds == {"wte.weight"}


def test_one_wrong_token_vector_is_named_though_only_one_text_has_it(model):
    first, second = DEFAULT_TEXTS
    mine = set(model.tokenizer(second)["input_ids"]) - set(model.tokenizer(first)["input_ids"])

    def change(wte):
        wte[min(mine), 3] += 0.01

    corrupt = with_tensor(model, "wte.weight", change)
    assert first_failure(certify(corrupt, [first])) == (
        None,
        "logits",
    )  # its column of the unembedding, nothing earlier
    assert first_failure(certify(corrupt, [first, second])) == (0, "resid_pre")
    assert first_failure(certify(corrupt, [second, first])) == (0, "resid_pre")


def test_a_wrong_unembedding_is_named():
    corrupt = with_tensor(random_model(torch.float64, tied=False), "lm_head.weight", nudge(EVERYTHING))
    assert first_failure(certify(corrupt)) == (None, "logits")


def reorder_columns(part):
    def change(tensor):
        heads = tensor[..., part].unflatten(-1, (HEADS, D_HEAD)).roll(1, dims=-2).flatten(-2)
        tensor[..., part] = heads

    return change


def reorder_rows(tensor):
    tensor[:] = tensor.unflatten(0, (HEADS, D_HEAD)).roll(1, dims=0).flatten(0, 1)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("h.1.attn.c_attn.weight", reorder_columns(QUERIES), (1, "q")),
        ("h.2.attn.c_attn.weight", reorder_columns(VALUES), (2, "v")),
        ("h.1.attn.c_proj.weight", reorder_rows, (1, "delta_e")),
    ],
)
def test_heads_in_the_wrong_order_are_named(model, name, change, expected):
    assert first_failure(certify(with_tensor(model, name, change))) == expected


@pytest.mark.parametrize("name", ["h.1.attn.c_attn.weight", "h.1.mlp.c_fc.weight", "ln_f.bias"])
def test_not_a_number_is_a_failure(model, name):
    def change(tensor):
        tensor.view(-1)[0] = math.nan

    layer, quantity = first_failure(certify(with_tensor(model, name, change)))
    assert (layer, quantity) in {(1, "q"), (1, "mlp_out"), (None, "logits")}


def test_not_a_number_in_one_text_of_several_is_a_failure(model):
    first, second = DEFAULT_TEXTS
    mine = set(model.tokenizer(second)["input_ids"]) - set(model.tokenizer(first)["input_ids"])

    def change(wte):
        wte[min(mine)] = math.nan

    corrupt = with_tensor(model, "wte.weight", change)
    for texts in ([first, second], [second, first]):
        assert first_failure(certify(corrupt, texts)) == (0, "resid_pre")


# --- faults in the formulas ------------------------------------------------------------------------------------------


def without_scale(q, k):
    return q @ k.transpose(-1, -2)


def no_mask(scores):
    return scores


def mask_off_by_one(scores):
    n = scores.shape[-1]
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(2), -math.inf)


def mask_of_the_past(scores):
    n = scores.shape[-1]
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-1), -math.inf)


def mask_by_zero(scores):
    return scores * torch.ones_like(scores).tril()


def softmax_over_queries(scores):
    return torch.softmax(scores, dim=-2)


def softmax_over_heads(scores):
    return torch.nan_to_num(torch.softmax(scores, dim=-3))


def mix_transposed(pattern, v):
    return pattern.transpose(-1, -2) @ v


def unbiased_layer_norm(x, gain, bias, epsilon):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + epsilon).sqrt() * gain + bias


def exact_gelu(x):
    return functional.gelu(x)


def write_of_another_head(z, w_o):
    return z @ w_o.roll(1, dims=0)


@pytest.mark.parametrize(
    ("formula", "wrong", "expected"),
    [
        ("scores", without_scale, (0, "scores")),
        ("mask", no_mask, (0, "scores")),
        ("mask", mask_off_by_one, (0, "scores")),
        ("mask", mask_of_the_past, (0, "scores")),
        ("mask", mask_by_zero, (0, "scores")),
        ("softmax", softmax_over_queries, (0, "pattern")),
        ("softmax", softmax_over_heads, (0, "pattern")),
        ("mix", mix_transposed, (0, "z")),
        ("layer_norm", unbiased_layer_norm, (0, "x")),
        ("gelu_new", exact_gelu, (0, "mlp_out")),
        ("write", write_of_another_head, (0, "delta_e")),
    ],
)
@pytest.mark.parametrize("dtype", BOUND)
def test_a_wrong_formula_is_named(monkeypatch, dtype, formula, wrong, expected):
    monkeypatch.setattr(attention, formula, wrong)
    assert first_failure(certify(random_model(dtype))) == expected


def test_heads_cut_apart_the_wrong_way_are_named(monkeypatch, model):
    def interleaved(raw, config):
        weights = read_stacks(raw, config)[""]
        block = weights.blocks[1]
        cut = block.w_q.transpose(0, 1).flatten(1).unflatten(1, (D_HEAD, HEADS)).permute(2, 0, 1)
        blocks = (weights.blocks[0], replace(block, w_q=cut), *weights.blocks[2:])
        return {"": replace(weights, blocks=blocks)}

    monkeypatch.setattr(hooks, "read_stacks", interleaved)
    assert first_failure(certify(model)) == (1, "q")


def test_a_wrong_epsilon_is_named(model):
    wrong = replace(model, config=replace(model.config, epsilon=2e-5))
    assert first_failure(certify(wrong)) == (0, "x")


# --- faults in the hooked model --------------------------------------------------------------------------------------


def certify_with_hook(model, point, edit):
    """The certificate of a model that somebody left a permanent hook on."""
    where = model.bridge.hook_dict[f"blocks.1.{point}"]
    where.add_hook(lambda tensor, hook: edit(tensor), is_permanent=True)
    try:
        return certify(model)
    finally:
        where.remove_hooks(including_permanent=True)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_edits_is_named_where_it_edits(model, name):
    certificate = certify_with_hook(model, HOOKS[name], lambda tensor: tensor * (1 + 1e-6))
    assert first_failure(certificate) == (1, name)
    assert certify(model).ok


def test_a_hook_that_swaps_two_heads_is_named(model):
    swapped = [1, 0, *range(2, HEADS)]
    certificate = certify_with_hook(model, HOOKS["q"], lambda tensor: tensor[:, :, swapped])
    assert first_failure(certificate) == (1, "q")


def test_a_hook_that_makes_not_a_number_is_named(model):
    def edit(z):
        z = z.clone()
        z[:, -1, 2, 0] = math.nan
        return z

    certificate = certify_with_hook(model, HOOKS["z"], edit)
    assert first_failure(certificate) == (1, "z")
    assert math.isnan(certificate.worst.error)


def test_a_wrong_output_projection_in_the_hooked_model_is_named(model):
    weight = model.bridge.blocks[1].attn.o.original_component.weight
    before = weight.clone()
    with torch.no_grad():
        weight[0, 0] += 0.01
        try:
            certificate = certify(model)
        finally:
            weight.copy_(before)
    assert first_failure(certificate) == (1, "delta_e")


# --- what is said ----------------------------------------------------------------------------------------------------


def row(error, layer=2, quantity="pattern"):
    return Row(layer, quantity, "softmax(scores)", error, 1.0, 1e-5)


def test_the_first_failing_row_is_said_in_one_sentence():
    certificate = Certificate("gpt2", "float32", ("a",), (row(1e-6), row(3.2e-4), row(0.5, 3, "z")))
    with pytest.raises(CrossCheckError) as error:
        certificate.require()
    assert str(error.value) == (
        "Checking gpt2 against the from-scratch math: pattern of layer 2 is off by 3.2e-04 of its scale, expected at most "
        "1e-05; nothing is reported from numbers that disagree: run `probe check` on this model to see every row."
    )
    assert error.value.exit_code == 1
    assert certificate.worst.error == 0.5


def test_a_failure_of_the_whole_model_is_named_so():
    with pytest.raises(CrossCheckError, match="logits of the whole model is off by nan of its scale"):
        Certificate("gpt2", "float32", ("a",), (row(math.nan, None, "logits"),)).require()


def test_the_tolerance_itself_still_passes():
    assert row(1e-5).ok
    assert not row(1.0000001e-5).ok
    assert not row(math.nan).ok
    assert not row(math.inf).ok


@pytest.mark.parametrize(
    ("seen", "expected", "error"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0),
        ([1.5, -4.0], [1.0, -4.0], 0.125),  # .5 / 4
        ([0.0, 0.0], [0.0, 0.0], 0),
        ([0.0, 1e-9], [0.0, 0.0], math.inf),
        ([1.0, -3.4e38], [1.0, -math.inf], 0),  # masked by both, each in its way
        ([1.0, -100.0], [1.0, -math.inf], math.inf),
        ([1.0, -3.4e38], [1.0, -100.0], math.inf),
        ([math.inf, 1.0], [1.0, 1.0], math.inf),
    ],
)
def test_an_error_is_relative_to_the_scale(seen, expected, error):
    assert check._difference(torch.tensor(seen), torch.tensor(expected))[0] == error


@pytest.mark.parametrize(("seen", "expected"), [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)])
def test_an_error_against_not_a_number_is_none(seen, expected):
    assert math.isnan(check._difference(torch.tensor([2.0, seen]), torch.tensor([2.0, expected]))[0])


def test_a_text_that_does_not_fit_is_refused(model):
    with pytest.raises(InputError, match="expected at most 40"):
        certify(model, ["bank " * 50])
