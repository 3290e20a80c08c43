"""Parameters: GPT-3's table as in introductions, and a loaded model's tensors compared with the
formula.
"""

import json
import re
from dataclasses import replace

import pytest
import torch
import transformers
from checkpoints import SMALL_PARAMETERS, make_checkpoint
from families import (
    HYBRIDS,
    PAIRED,
    REPRESENTATIVES,
    family_model,
    head_sizes,
    make_family,
    model_class,
)

import probe
from probe.model.find import EMBEDDED
from probe.model.load import load
from probe.model.parameters import (
    HEAD_PARTS,
    PUBLISHED,
    Sizes,
    count,
    count_parameters,
    count_tensors,
    published,
    sizes_of,
)
from probe.pages.parameters import parameter_sentences

# The numbers of the table in introductions (12,288 dimensions, 96 blocks of 96 heads of 128, 50,257
# tokens).
GPT3 = dict.fromkeys(("token embedding", "unembedding"), 617_558_016)
GPT3 |= dict.fromkeys(("query", "key", "value down", "value up"), 14_495_514_624)
GPT3 |= dict.fromkeys(("MLP up", "MLP down"), 57_982_058_496)


def test_gpt3_is_counted_as_introductions_count_it():
    counted = published("gpt3")
    assert {part.name: part.total for part in counted.parts} == GPT3
    assert all(part.each == 1_572_864 for part in counted.parts if part.name in HEAD_PARTS)
    assert (counted.per_head, counted.per_block) == (6_291_456, 603_979_776)
    assert (counted.attention, counted.total) == (57_982_058_496, 175_181_291_520)
    assert counted.square_value == 150_994_944
    assert 0.33 < counted.attention / counted.total < 0.34


def test_the_command_prints_every_number_of_gpt3(run):
    code, out, err = run("models", "gpt3")
    assert code == 0 and err == ""
    numbers_printed = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", out)}
    numbers = {
        1_572_864,
        6_291_456,
        603_979_776,
        57_982_058_496,
        175_181_291_520,
        150_994_944,
        617_558_016,
    }
    assert numbers | {12_288, 128, 96, 50_257} <= numbers_printed


def test_the_formula_without_matrices_only_adds_positions_biases_and_norms():
    sizes = PUBLISHED["gpt3"]
    d, more = sizes.d_model, count(sizes).total - published("gpt3").total
    assert more == 2048 * d + 96 * (4 * d + 4 * d + d + 4 * d) + 2 * d
    assert f"{more:,}" in parameter_sentences(published("gpt3"))[-1]


@pytest.mark.parametrize(
    ("kind", "changes", "unread"),
    [
        ("t5", {"feed_forward_proj": "gated-gelu"}, 0),
        ("llama", {"tie_word_embeddings": True}, 0),
        ("llama", {"num_key_value_heads": 1}, 0),
        ("gpt2", {"tie_word_embeddings": False}, 0),
        ("gpt2", {"n_inner": None}, 0),
        ("bert", {"architecture": "BertModel"}, 28 * 28 + 28),  # the pooler, which no formula reads
    ],
)
def test_variants_agree_with_hugging_face_too(kind, changes, unread, tmp_path):
    folder = make_family(tmp_path / kind, kind, **changes)
    model = load(folder)
    architecture = changes.get("architecture", model_class(kind).__name__)
    plain = number_of_parameters(architecture, transformers.AutoConfig.from_pretrained(folder))
    assert count_tensors(model).total == plain - unread


def number_of_parameters(architecture, config):
    """The number in Hugging Face's class, tied ones once; no weights are drawn."""
    with torch.device("meta"):
        return sum(
            part.numel() for part in getattr(transformers, architecture)(config).parameters()
        )


@pytest.mark.parametrize("kind", (*REPRESENTATIVES, "falcon", "pegasus", "mixtral"))
def test_tensors_of_every_family_agree_with_the_formula_and_with_hugging_face(kind):
    model = family_model(kind, torch.float64)
    counted = count_tensors(model)
    expected = number_of_parameters(model_class(kind).__name__, model.bridge.original_model.config)
    assert counted.total == expected == sum(part.total for part in counted.parts)
    assert counted.parts == count(sizes_of(model)).parts
    buffers = [name for name in model.weights if name == "final_logits_bias"]
    assert counted.tensors == len(model.weights) - len(buffers)
    by_name = {part.name: part for part in counted.parts}
    attentions = 6 if kind in PAIRED else 2
    # W_Q, W_K, W_V and W_O of one head have d_model x d_head numbers each.
    sizes = head_sizes(model)
    shared = sizes.kv_heads
    assert {by_name[name].each for name in HEAD_PARTS} == {sizes.d_model * sizes.d_head}
    assert [by_name[name].number for name in HEAD_PARTS] == [
        n * attentions for n in (4, shared, shared, 4)
    ]


@pytest.mark.real_model
@pytest.mark.parametrize("name", EMBEDDED)
def test_the_command_counts_the_parameters_of_an_embedded_model_as_torch_does(name, run):
    source = load(name).bridge.original_model.config
    listed = number_of_parameters(source.architectures[0], source)
    code, out, _ = run("models", name)
    assert code == 0 and f" of {listed:,}." in out


@pytest.mark.parametrize("kind", HYBRIDS)
def test_tensors_of_a_hybrid_agree_with_hugging_face_and_heads_are_those_of_attention(kind):
    model = family_model(kind)
    counted = count_tensors(model)
    settings = model.bridge.original_model.config
    assert counted.total == number_of_parameters(model_class(kind).__name__, settings)
    query = next(part for part in counted.parts if part.name == "query")
    assert (query.number, query.each) == (4, 32 * model.config.d_head)


def test_tied_weights_are_counted_once_and_untied_ones_twice(model, tmp_path):
    untied = probe.load(make_checkpoint(tmp_path / "untied", tied=False))
    once, twice = count_tensors(model), count_tensors(untied)
    assert twice.total - once.total == 400 * 32
    assert "counted once" in " ".join(parameter_sentences(once)) and "counted once" not in " ".join(
        parameter_sentences(twice)
    )


@pytest.mark.parametrize(
    ("change", "extra", "part"),
    [
        ({"d_mlp": 64}, (), "MLP up"),
        ({"n_ctx": 47}, (), "position embedding"),
        ({}, ("h.0.attn.extra",), "all tensors"),  # one that belongs to no part
    ],
)
def test_tensors_that_differ_from_the_config_are_refused_in_one_sentence(
    model, change, extra, part
):
    weights = model.weights | dict.fromkeys(extra, model.weights["ln_f.bias"])
    wrong = replace(model, config=replace(model.config, **change), weights=weights)
    message = rf"^Cannot count the parameters of .*: {part} came to [\d,]+, expected"
    with pytest.raises(probe.CrossCheckError, match=message):
        count_tensors(wrong)


def test_heads_narrower_than_the_model_are_counted_by_their_size():
    sizes = Sizes("odd", 1, 3, 10, 2, 7, 5, 4, tied=True)
    parts = {part.name: part.total for part in count(sizes).parts}
    assert parts["query"] == 3 * 10 * 2 and parts["MLP up"] == 70 and parts["unembedding"] == 0


def test_keys_and_values_that_heads_share_are_counted_once_in_a_block():
    """Eight queries and values up, two keys and values down, with 16 x 4 numbers each."""
    sizes = Sizes("shared", 3, 8, 16, 4, 7, 5, 4, tied=True, n_kv_heads=2)
    counted = count(sizes)
    assert (counted.per_head, counted.per_block) == (4 * 64, (2 * 8 + 2 * 2) * 64)
    assert counted.attention == 3 * counted.per_block
    assert parameter_sentences(counted)[0].startswith(
        "Per head 256, key and value shared by 4 heads; per block of 8 heads 1,280; "
    )


def test_json_holds_the_same_numbers(run, checkpoint):
    code, out, _ = run("models", checkpoint, "--json")
    counts = json.loads(out)
    assert code == 0 and counts["total"] == SMALL_PARAMETERS == sum(
        part["total"] for part in counts["parts"]
    )
    assert (
        counts["per_block"] == 4 * counts["per_head"] == 4 * 4 * 32 * 8 and counts["tensors"] == 28
    )


def test_the_public_function_takes_a_model_or_a_published_name(model, tiny):
    assert count_parameters(model) == count_tensors(model)
    assert count_parameters("tiny-senses") == count_tensors(tiny)
    assert count_parameters("gpt3") == published("gpt3")
    with pytest.raises(probe.ModelError, match=r"^Cannot load \./gpt5: there is no such folder"):
        count_parameters("./gpt5")
