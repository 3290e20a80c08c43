"""Parameters: GPT-3's table as in introductions, and a loaded model's tensors compared with the
formula. `test_families.py` compares the total of every family and setting with Hugging Face's."""

import json
import re
from dataclasses import replace

import pytest
import torch
import transformers
from checkpoints import SMALL_PARAMETERS, make_checkpoint
from families import HYBRIDS, PAIRED, REPRESENTATIVES, family_model, head_sizes, make_family
from inside import HEAD_PARTS, PUBLISHED, Sizes, count, count_parameters, sizes_of

import probe
from probe.pages.parameters import parameter_sentences

# The numbers of the table in introductions (12,288 dimensions, 96 blocks of 96 heads of 128, 50,257
# tokens).
GPT3 = dict.fromkeys(("token embedding", "unembedding"), 617_558_016)
GPT3 |= dict.fromkeys(("query", "key", "value down", "value up"), 14_495_514_624)
GPT3 |= dict.fromkeys(("MLP up", "MLP down"), 57_982_058_496)


def test_gpt3_is_counted_as_introductions_count_it() -> None:
    counted = count_parameters("gpt3")
    assert {part.name: part.total for part in counted.parts} == GPT3
    assert all(part.each == 1_572_864 for part in counted.parts if part.name in HEAD_PARTS)
    assert (counted.per_head, counted.per_block) == (6_291_456, 603_979_776)
    assert (counted.attention, counted.total) == (57_982_058_496, 175_181_291_520)
    assert counted.square_value == 150_994_944
    assert 0.33 < counted.attention / counted.total < 0.34
    with pytest.raises(probe.ModelError, match=r"^Cannot load \./gpt5: there is no such folder"):
        count_parameters("./gpt5")


def test_the_command_prints_every_number_of_gpt3(run) -> None:
    code, out, err = run("models", "gpt3")
    assert code == 0 and err == ""
    printed = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", out)}
    numbers = {1_572_864, 6_291_456, 603_979_776, 57_982_058_496, 175_181_291_520, 150_994_944}
    assert numbers | {617_558_016, 12_288, 128, 96, 50_257} <= printed


def test_the_formula_without_matrices_only_adds_positions_biases_and_norms() -> None:
    sizes, matrices = PUBLISHED["gpt3"], count_parameters("gpt3")
    d, more = sizes.d_model, count(sizes).total - matrices.total
    assert more == 2048 * d + 96 * (4 * d + 4 * d + d + 4 * d) + 2 * d
    assert f"{more:,}" in parameter_sentences(matrices)[-1]


def number_of_parameters(architecture: str, config: object) -> int:
    """The number in Hugging Face's class, tied ones once; no weights are drawn."""
    with torch.device("meta"):
        model = getattr(transformers, architecture)(config)
    return sum(part.numel() for part in model.parameters())


@pytest.mark.parametrize("kind", (*REPRESENTATIVES, "mixtral", HYBRIDS[0]))
def test_the_tensors_of_a_family_agree_with_the_formula(kind: str) -> None:
    model = family_model(kind)
    counted = count_parameters(model)
    assert counted.total == sum(part.total for part in counted.parts)
    assert counted.tensors == len(model.weights)
    by_name = {part.name: part for part in counted.parts}
    if not model.config.mixers:
        assert counted.parts == count(sizes_of(model)).parts
    # W_Q, W_K, W_V and W_O of one head have d_model x d_head numbers each.
    sizes = head_sizes(model)
    attentions = 6 if kind in PAIRED else 1 if model.config.mixers else 2
    assert {by_name[name].each for name in HEAD_PARTS} == {sizes.d_model * sizes.d_head}
    shared = (4, sizes.kv_heads, sizes.kv_heads, 4)
    assert [by_name[name].number for name in HEAD_PARTS] == [n * attentions for n in shared]


def test_the_pooler_of_a_bert_which_no_formula_reads_is_not_counted(tmp_path) -> None:
    folder = make_family(tmp_path / "bert", "bert", architecture="BertModel")
    plain = number_of_parameters("BertModel", transformers.AutoConfig.from_pretrained(folder))
    assert count_parameters(folder).total == plain - (28 * 28 + 28)


def test_the_command_counts_the_parameters_of_an_embedded_model_as_torch_does(run) -> None:
    for name in [row.name for row in probe.available() if row.kind == "embedded"]:
        source = probe.load(name).bridge.original_model.config
        listed = number_of_parameters(source.architectures[0], source)
        code, out, _ = run("models", name)
        assert code == 0 and f" of {listed:,}." in out


def test_tied_weights_are_counted_once_and_untied_ones_twice(model, tmp_path) -> None:
    untied = probe.load(make_checkpoint(tmp_path / "untied", tied=False))
    once, twice = count_parameters(model), count_parameters(untied)
    assert twice.total - once.total == 400 * 32
    assert "counted once" in " ".join(parameter_sentences(once))
    assert "counted once" not in " ".join(parameter_sentences(twice))


@pytest.mark.parametrize(
    ("change", "extra", "part"),
    [
        ({"d_mlp": 64}, (), "MLP up"),
        ({"n_ctx": 47}, (), "position embedding"),
        ({}, ("h.0.attn.extra",), "all tensors"),  # one that belongs to no part
    ],
)
def test_tensors_that_differ_from_the_config_are_refused(model, change, extra, part) -> None:
    weights = model.weights | dict.fromkeys(extra, model.weights["ln_f.bias"])
    wrong = replace(model, config=replace(model.config, **change), weights=weights)
    message = rf"^Cannot count the parameters of .*: {part} came to [\d,]+, expected"
    with pytest.raises(probe.CrossCheckError, match=message):
        count_parameters(wrong)


def test_heads_narrower_than_the_model_and_shared_keys_are_counted_by_their_size() -> None:
    sizes = Sizes("odd", 1, 3, 10, 2, 7, 5, 4, tied=True)
    parts = {part.name: part.total for part in count(sizes).parts}
    assert parts["query"] == 3 * 10 * 2 and parts["MLP up"] == 70 and parts["unembedding"] == 0
    # Eight queries and values up, two keys and values down, with 16 x 4 numbers each.
    counted = count(Sizes("shared", 3, 8, 16, 4, 7, 5, 4, tied=True, n_kv_heads=2))
    assert (counted.per_head, counted.per_block) == (4 * 64, (2 * 8 + 2 * 2) * 64)
    assert counted.attention == 3 * counted.per_block
    assert parameter_sentences(counted)[0].startswith(
        "Per head 256, key and value shared by 4 heads; per block of 8 heads 1,280; "
    )


def test_json_holds_the_same_numbers(run, checkpoint) -> None:
    code, out, _ = run("models", checkpoint, "--json")
    counts = json.loads(out)
    assert code == 0 and counts["tensors"] == 28
    assert counts["total"] == SMALL_PARAMETERS == sum(part["total"] for part in counts["parts"])
    assert counts["per_block"] == 4 * counts["per_head"] == 4 * 4 * 32 * 8
