"""Loading: accepted models, refused models with their messages, and a self-check that can fail."""

import hashlib
import json
import logging
import os
import pickle
import re
import resource
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import change_tensors, make_checkpoint
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2LMHeadModel

import probe
from probe.model.check import certify
from probe.model.find import INDEX, SINGLE, find
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.parameters import count_parameters


def refusal(source: object, error: type[Exception] = probe.ModelError, **options: object) -> str:
    """The message with which `source` is refused, checked to be one line that ends in a full
    stop.
    """
    with pytest.raises(error) as caught:
        probe.load(source, **options)
    sentence = str(caught.value)
    assert type(caught.value) is error
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


def edit_config(folder: Path, **changes: object) -> None:
    """Sets keys of config.json; None removes one."""
    config = json.loads((folder / "config.json").read_text()) | changes
    contents = {
        key: value for key, value in config.items() if key not in changes or value is not None
    }
    (folder / "config.json").write_text(json.dumps(contents))


# Accepted models


def test_config_and_origin_say_what_was_loaded(model: Model, checkpoint: Path) -> None:
    config = model.config
    assert (config.architecture, config.n_layers, config.n_heads) == ("gpt2", 2, 4)
    assert (config.d_model, config.d_head, config.d_mlp, config.n_ctx, config.d_vocab) == (
        32,
        8,
        128,
        48,
        400,
    )
    assert (config.causal, config.epsilon, config.activation, config.tied) == (
        True,
        1e-5,
        "gelu_new",
        True,
    )
    assert model.name == model.origin.location == checkpoint.name
    assert (model.origin.kind, model.origin.revision) == ("folder", None)
    assert model.origin.sha256 == hashlib.sha256((checkpoint / SINGLE).read_bytes()).hexdigest()


def test_an_untied_unembedding_is_among_the_weights_and_float64_is_float64_on_both_sides(
    tmp_path: Path,
) -> None:
    loaded = probe.load(make_checkpoint(tmp_path / "untied", tied=False), dtype=torch.float64)
    assert {tensor.dtype for tensor in (*loaded.weights.values(), *loaded.bridge.parameters())} == {
        torch.float64
    }
    assert not loaded.config.tied
    assert not torch.equal(loaded.weights["lm_head.weight"], loaded.weights["wte.weight"])
    bridged = probe.load(loaded.bridge)
    assert torch.equal(bridged.weights["lm_head.weight"], loaded.weights["lm_head.weight"])


def test_names_without_prefix_old_buffers_and_a_repeated_tied_unembedding_are_accepted(
    copy: Path, model: Model
) -> None:
    stored = {
        name.removeprefix("transformer."): tensor
        for name, tensor in load_file(copy / SINGLE).items()
    }
    mask = torch.ones(1, 1, 48, 48, dtype=torch.uint8)  # neither a weight nor a float
    extra = {"h.0.attn.bias": mask, "h.1.attn.masked_bias": torch.tensor(-1e4)}
    save_file(
        stored | extra | {"lm_head.weight": stored["wte.weight"].clone()},
        copy / SINGLE,
        {"format": "pt"},
    )
    loaded = probe.load(copy)
    assert loaded.origin.stored == "float32" and not loaded.origin.is_quantised
    assert set(loaded.weights) == set(model.weights)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded.bridge(ids), model.bridge(ids))


@pytest.mark.parametrize(
    ("sizes", "extra_keys", "dtype"),
    [  # layers, heads and width: DistilGPT-2, medium, large, XL
        ((6, 12, 48), {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "n_ctx": 48}, "float64"),
        ((3, 16, 64), {"n_special": 0, "predict_special_tokens": True, "n_ctx": 48}, "float32"),
        ((3, 20, 40), {"output_past": True, "summary_type": "cls_index"}, "float64"),
        ((2, 25, 50), {"task_specific_params": {"x": {"max_length": 50}}}, "float32"),
    ],
)
def test_every_size_of_gpt2_is_certified_with_additional_keys_in_its_config(
    tmp_path: Path, sizes: tuple[int, int, int], extra_keys: dict, dtype: str
) -> None:
    """The number of heads of each size, with narrow heads, and the additional keys of the
    published config.
    """
    options = dict(zip(("n_layer", "n_head", "n_embd"), sizes, strict=True))
    folder = make_checkpoint(tmp_path / "size", **options)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | extra_keys | {"resid_pdrop": 0.1, "summary_activation": None})
    )
    certificate = certify(
        probe.load(folder, dtype=dtype), ["The mole dug under the river bank."]
    ).require()
    assert len({row.layer for row in certificate.rows if row.layer is not None}) == sizes[0]


def test_shards_are_read_like_one_file(copy: Path, model: Model) -> None:
    shard(copy)
    loaded = probe.load(copy)
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in model.weights.items())
    parts = b"".join(file.read_bytes() for file in sorted(copy.glob("model-*.safetensors")))
    assert loaded.origin.sha256 == hashlib.sha256(parts).hexdigest()


def shard(folder: Path) -> dict[str, str]:
    """Splits model.safetensors in two with an index, and returns the index."""
    tensors = sorted(load_file(folder / SINGLE).items())
    index: dict[str, str] = {}
    for number, part in enumerate((tensors[:10], tensors[10:]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file(dict(part), folder / file, {"format": "pt"})
        index |= dict.fromkeys(dict(part), file)
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_computed_in_float32_and_their_type_is_recorded(
    copy: Path, stored: torch.dtype
) -> None:
    halves = {name: tensor.to(stored) for name, tensor in load_file(copy / SINGLE).items()}
    save_file(halves, copy / SINGLE, {"format": "pt"})
    loaded = probe.load(copy)
    assert torch.equal(loaded.weights["wte.weight"], halves["transformer.wte.weight"].float())
    assert {tensor.dtype for tensor in loaded.weights.values()} == {torch.float32}
    assert loaded.bridge(torch.tensor([[1, 2]])).dtype == torch.float32
    assert certify(loaded).ok
    manifest = probe.provenance.manifest("m", loaded.origin, seed=0, command="", data_sha256="")
    assert (
        manifest["weights_stored_as"] == loaded.origin.stored == str(stored).removeprefix("torch.")
    )


def test_a_string_of_the_folder_and_a_path_are_the_same(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    results = {find(source) for source in (checkpoint.name, f"./{checkpoint.name}", checkpoint)}
    assert {(path.resolve(), origin) for path, origin in results} == {
        (checkpoint.resolve(), find(checkpoint)[1])
    }


def test_a_folder_called_model_is_named_with_the_folder_around_it(tmp_path: Path) -> None:
    for name, location in (("model", "mine/model"), ("plain", "plain")):
        (tmp_path / "mine" / name).mkdir(parents=True)
        assert find(tmp_path / "mine" / name)[1].location == location


# Refused models and their messages


def remove(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def tensors(**changes: Callable[[torch.Tensor], torch.Tensor] | None) -> Callable[[Path], object]:
    """Changes tensors by name, with "__" for "."; None removes the tensor."""

    def change(folder: Path) -> None:
        stored = load_file(folder / SINGLE)
        by_tensor = {name.replace("__", "."): how for name, how in changes.items()}
        change_tensors(
            folder,
            {
                name: how and how(stored.get(name, torch.zeros(2)))
                for name, how in by_tensor.items()
            },
        )

    return change


def with_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[3] = value
        return tensor

    return change


def truncated(folder: Path) -> None:
    content = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(content[: len(content) // 2])


def pickle_only(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    (folder / SINGLE).unlink()


def lost_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def index_with(**changes: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        index = {"metadata": {}, "weight_map": shard(folder) | changes}
        (folder / INDEX).write_text(json.dumps(index))

    return change


def tokenizer_file(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"] |= changes
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return change


TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
UNREAD = "transformers cannot read its files"
UNKNOWN = "is not a tensor of the GPT-2 that config.json describes"
UNTIED = "differs from wte.weight although config.json ties them. Write"
TRANSPOSED = (
    "has shape [128, 32] where config.json asks for [32, 128]. Use the config.json that bel"
)
FOREIGN = "its tokenizer has a token 381 and the model embeds only 300 tokens. Use the tokenizer"
REFUSED = {
    "no config": (
        remove("config.json"),
        "its config.json is missing or states nothing. Save the model again with save_pretrained",
    ),
    "config not JSON": (
        write("config.json", "{oops"),
        "transformers cannot read its config.json (It looks like the config file at",
    ),
    "config not UTF-8": (
        write("config.json", b"\xff\xfe{}"),
        "transformers cannot read its config.json (It looks like the config file at",
    ),
    "config a list": (
        write("config.json", "[1]"),
        "its config.json is missing or states nothing. Save the model again",
    ),
    "no tokenizer": (
        remove(*TOKENIZER),
        "transformers reads its tokenizer as a GPT2Tokenizer, which finds no vocabulary there. Copy",
    ),
    "tokenizer not JSON": (
        write("tokenizer.json", "<html>"),
        "its tokenizer cannot be read (Expecting value",
    ),
    "tokenizer broken": (
        tokenizer_file(type="Nope"),
        "its tokenizer cannot be read (data did not match any variant",
    ),
    "tokenizer empty": (
        tokenizer_file(vocab={}, merges=[]),
        "transformers reads its tokenizer as a GPT2Tokenizer, which finds no vocabulary there. Copy",
    ),
    "no weights": (
        remove(SINGLE),
        "there is no model.safetensors and no shard of it. Save the model again",
    ),
    "pickle only": (
        pickle_only,
        "its weights are only a pickle (pytorch_model.bin), which can run code when opened. ",
    ),
    "truncated": (truncated, f"{UNREAD} (SafetensorError: Error while deserializing header"),
    "not safetensors": (
        write(SINGLE, "version https://git-lfs"),
        "config.json asks for more numbers than its 23 bytes of safetensors. Copy or",
    ),
    "tensor missing": (
        tensors(transformer__ln_f__bias=None),
        "the tensor ln_f.bias is missing. Save the model again",
    ),
    "misshapen": (
        tensors(transformer__h__0__mlp__c_fc__weight=lambda t: t.T),
        f"h.0.mlp.c_fc.weight {TRANSPOSED}",
    ),
    "NaN": (
        tensors(transformer__ln_f__bias=with_value(float("nan"))),
        "ln_f.bias contains NaN. Take an undamaged",
    ),
    "inf": (
        tensors(transformer__wpe__weight=with_value(float("inf"))),
        "wpe.weight contains an infinite number. Take",
    ),
    "integers": (
        tensors(transformer__ln_f__bias=lambda t: t.int()),
        "ln_f.bias is stored as I32. Load a plain float",
    ),
    "unknown tensor": (
        tensors(transformer__h__0__attn__extra=lambda t: t),
        f"h.0.attn.extra {UNKNOWN}",
    ),
    "named twice": (
        tensors(wte__weight=lambda t: t),
        f"wte.weight is there twice ({SINGLE})",
    ),
    "false tie": (
        tensors(lm_head__weight=lambda t: torch.ones(400, 32)),
        f"lm_head.weight {UNTIED}",
    ),
    "shard missing": (
        lost_shard,
        "it has 1 of 2 shards (model-*-of-00002.safetensors). Copy every shard into the folder.",
    ),
    "index escapes": (
        index_with(more="../../x.safetensors"),
        f"{UNREAD} (FileNotFoundError: No such file or directory: ",
    ),
    "index empty": (
        lambda it: (remove(SINGLE)(it), write(INDEX, "{}")(it)),
        "there is no model.safetensors and no shard of it. Save the model again",
    ),
    "a tokenizer of another model": (lambda it: make_checkpoint(it, vocab_size=300), FOREIGN),
}


@pytest.mark.parametrize(("damage", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_folder_is_refused_with_its_reason(
    copy: Path, damage: Callable[[Path], object], expected: str
) -> None:
    damage(copy)
    sentence = refusal(copy)
    assert sentence.startswith(f"Cannot load {copy}: ")
    assert expected in sentence


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.target),)


def test_a_pickle_is_never_opened(copy: Path, tmp_path: Path) -> None:
    (copy / SINGLE).unlink()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert "only a pickle" in refusal(copy)
    assert not (tmp_path / "exploded").exists()


def test_without_a_bos_token_prepend_bos_must_be_false(copy: Path) -> None:
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert "its tokenizer has no BOS token to prepend. Pass prepend_bos=False" in refusal(copy)
    assert probe.load(copy, prepend_bos=False).config.prepend_bos is False


NOWHERE = ("./nowhere", "~/no-such-folder-here", "a/b/c", "nowhere/", Path("nowhere"))
FILE = "it is a file. Give the folder"
ABSENT = "there is no such folder. Give the folder that holds config.json"
KINDS = (
    "only a name, a folder, a GGUF file, a Hugging Face model or a TransformerBridge can be loaded."
    " Give one of these."
)
A_CLASS = "that is the name of a class, which holds no weights. Give a name, a folder, or an object"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        *((source, ABSENT) for source in NOWHERE),
        (Path(__file__), "it is a file. Give the folder"),
        ("README.md", "it is a file. Give"),
        (42, KINDS),
        ("LlamaForCausalLM", f"{A_CLASS} that from_pretrained(...) returned."),
        ("GPT2LMHeadModel", A_CLASS),
        ("<class 'transformers.GPT2LMHeadModel'>", A_CLASS),
        ("transformers.GPT2LMHeadModel", A_CLASS),
        (
            "tiny-senses@x",
            (
                "tiny-senses is installed on this machine in one version, without revisions. Load "
                "tiny-senses, or a name of the hub with a revision, as owner/name@main."
            ),
        ),
        ("smollm2@", "smollm2 is installed on this machine in one version, without revisions."),
    ],
)
def test_a_source_that_is_neither_a_folder_nor_a_hub_name_is_refused_with_its_reason(
    source: object, message: str
) -> None:
    description = "a int" if isinstance(source, int) else source
    assert refusal(source).startswith(f"Cannot load {description}: {message}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, "float16"])
def test_only_the_certified_number_formats_are_accepted(
    checkpoint: Path, dtype: torch.dtype | str
) -> None:
    message = (
        f"Cannot load {checkpoint} in {dtype}: the certificate holds for torch.float32, "
        "torch.float64 and torch.bfloat16."
    )
    assert refusal(checkpoint, probe.InputError, dtype=dtype) == message


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_a_device_that_is_not_here_is_refused(checkpoint: Path, device: str) -> None:
    expected = (
        f"Cannot use the device {device!r}: PyTorch cannot store numbers on it here. Use 'cpu', "
        "which always works."
    )
    assert refusal(checkpoint, probe.InputError, device=device) == expected


# Sources that every public function accepts


# Each of them is called with a model and with arguments that do not depend on it.
FUNCTIONS_OF_A_MODEL = {
    "certify": lambda model: probe.certify(model, ["the river bank"]).ok,
    "count_parameters": lambda model: count_parameters(model).total,
    "read_weights": lambda model: read_weights(model).shape,
    "tokenize": lambda model: probe.tokenize(model, "the river bank"),
    "trace": lambda model: probe.trace(model, "the river bank").logits.argmax(-1).tolist(),
    "nearest_tokens": lambda model: probe.decomposition.nearest_tokens(model, torch.ones(32)),
}


@pytest.mark.parametrize("name", FUNCTIONS_OF_A_MODEL)
def test_a_public_function_takes_what_load_takes(name: str, checkpoint: Path, model: Model) -> None:
    ask = FUNCTIONS_OF_A_MODEL[name]
    expected = ask(model)
    in_memory = GPT2LMHeadModel.from_pretrained(checkpoint)  # its folder determines its tokenizer
    for source in (checkpoint, str(checkpoint), model.bridge, in_memory):
        assert ask(source) == expected


def test_every_public_function_of_a_model_says_that_it_takes_what_load_takes() -> None:
    functions = [getattr(probe, name) for name in probe.__all__]
    for module in (probe.decomposition, probe.cross):
        functions += [getattr(module, name) for name in module.__all__]
    of_models = 0
    for function in functions:
        annotation = getattr(function, "__annotations__", {}).get("model")
        if annotation is not None:
            assert "Union" in str(annotation) or "ModelSource" in str(annotation), function
            of_models += 1
    assert of_models >= 18


def test_a_loaded_model_passes_through_as_it_is(model: Model) -> None:
    assert probe.load(model) is model
    assert probe.load(model, dtype=torch.float32, device="cpu", tokenizer=model.tokenizer) is model


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"dtype": "float64"},
            "got dtype='float64', and it computes in torch.float32, expected its",
        ),
        (
            {"prepend_bos": False},
            "got prepend_bos=False, and it puts one in front, expected its opt",
        ),
        (
            {"tokenizer": object()},
            "got another tokenizer, expected its",
        ),
    ],
)
def test_a_loaded_model_is_not_loaded_in_another_way(
    model: Model, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(probe.InputError) as error:
        probe.load(model, **options)
    assert str(error.value).startswith(f"Cannot load the Model {model.name} again: {reason}")
    assert str(error.value).endswith("Load its source with the new options.")


def test_device_0_is_not_read_as_no_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("device 0 is there")
    with pytest.raises(probe.InputError, match="^Cannot use the device 0: PyTorch"):
        probe.load("tiny-senses", device=0)


# The self-check


def test_a_model_whose_heads_write_nothing_passes_the_self_check(copy: Path) -> None:
    silent = {
        f"transformer.h.{layer}.attn.c_proj.weight": torch.zeros(32, 32) for layer in range(2)
    }
    assert probe.load(change_tensors(copy, silent)).config.n_layers == 2


def test_a_model_that_does_not_run_is_refused(copy: Path) -> None:
    edit_config(copy, resid_pdrop=float("nan"))
    assert "it does not run on a short text (dropout probability has to be" in refusal(copy)


def test_every_load_is_self_checked(
    model: Model, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("probe.model.load.check_hooks", lambda model, ids: calls.append(model.name))
    probe.load(checkpoint)
    probe.load(GPT2LMHeadModel.from_pretrained(checkpoint))
    assert calls == [model.name, model.name]


# Side effects of loading


def test_loading_leaves_no_hook_and_changes_no_setting(
    checkpoint: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("", "transformers", "transformer_lens", "huggingface_hub")
    for name in names:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    state = lambda: (
        [(logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in names],
        logging.root.manager.disable,
        list(warnings.filters),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )
    before = state()
    loaded = probe.load(checkpoint)
    assert state() == before
    assert capfd.readouterr() == ("", "")
    assert not [name for name, point in loaded.bridge.hook_dict.items() if point.has_hooks()]


def test_the_tokenizer_is_not_the_one_that_the_bridge_configures(
    model: Model, checkpoint: Path
) -> None:
    assert model.tokenizer is not model.bridge.tokenizer
    ids = AutoTokenizer.from_pretrained(checkpoint)("The red apple.")["input_ids"]
    assert model.tokenizer("The red apple.")["input_ids"] == ids


def test_available_lists_what_ships_and_what_else_works() -> None:
    rows = probe.available()
    assert [row.kind for row in rows][-3:] == ["hub", "folder", "file"]
    assert rows[-2].what == "config.json, tokenizer and safetensors of one"
    assert [row.name for row in rows if row.kind == "package"] == ["smollm2", "minilm"]
    for row in rows:
        if row.kind == "embedded":
            assert re.fullmatch(r"(GPT-2|BERT|BART), \d+ layers x \d+ heads, d_model \d+", row.what)
            assert probe.load(row.name).origin.kind == "embedded"


def test_a_config_with_absurd_sizes_is_refused_before_memory_is_allocated(copy):
    raw = json.loads((copy / "config.json").read_text())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for key in ("n_layer", "n_embd", "vocab_size", "n_positions", "n_inner"):
        (copy / "config.json").write_text(
            json.dumps(raw | {key: 10**15 if key != "n_embd" else 4 * 10**14})
        )
        with pytest.raises(probe.ModelError):
            probe.load(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_a_header_larger_than_its_file_is_refused(copy):
    file = copy / "model.safetensors"
    whole = file.read_bytes()
    for length in (2**63, 2**31, len(whole)):
        file.write_bytes(struct.pack("<Q", length) + whole[8:])
        with pytest.raises(probe.ModelError, match="transformers cannot read its files"):
            probe.load(copy)


def test_links_to_model_files_are_followed_and_a_broken_link_is_refused(copy, tmp_path):
    weights = copy / "model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to(tmp_path / "blob")
    assert probe.load(copy).config.n_layers == 2
    weights.unlink()
    weights.symlink_to(tmp_path / "nowhere")
    with pytest.raises(probe.ModelError, match="safetensors"):
        probe.load(copy)
