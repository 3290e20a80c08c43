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
from inside import loading, manifest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2LMHeadModel

import probe

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


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


def test_config_and_origin_say_what_was_loaded(model: probe.Model, checkpoint: Path) -> None:
    config = vars(model.config)
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 32, "d_head": 8, "d_mlp": 128, "n_ctx": 48}
    sizes |= {"architecture": "gpt2", "d_vocab": 400, "epsilon": 1e-5, "activation": "gelu_new"}
    assert {name: config[name] for name in sizes} == sizes
    assert model.name == model.origin.location == checkpoint.name
    assert (model.origin.kind, model.origin.revision) == ("folder", None)
    assert model.origin.sha256 == hashlib.sha256((checkpoint / SINGLE).read_bytes()).hexdigest()


def test_names_without_prefix_old_buffers_and_a_repeated_tied_unembedding_are_accepted(copy, model):
    raw = load_file(copy / SINGLE).items()
    stored = {name.removeprefix("transformer."): tensor for name, tensor in raw}
    mask = torch.ones(1, 1, 48, 48, dtype=torch.uint8)  # neither a weight nor a float
    stored |= {"h.0.attn.bias": mask, "h.1.attn.masked_bias": torch.tensor(-1e4)}
    stored |= {"lm_head.weight": stored["wte.weight"].clone()}
    save_file(stored, copy / SINGLE, {"format": "pt"})
    loaded = probe.load(copy)
    assert loaded.origin.stored == "float32" and not loaded.origin.is_quantised
    assert set(loaded.weights) == set(model.weights)
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded.bridge(ids), model.bridge(ids))


@pytest.mark.parametrize(
    ("sizes", "extra_keys"),
    [  # layers, heads and width: DistilGPT-2 and XL
        ((6, 12, 48), {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "n_ctx": 48}),
        ((2, 25, 50), {"n_special": 0, "task_specific_params": {"x": {"max_length": 50}}}),
    ],
)
def test_every_size_of_gpt2_is_certified_with_additional_keys_in_its_config(
    tmp_path: Path, sizes: tuple[int, int, int], extra_keys: dict
) -> None:
    """The number of heads of each size, and the additional keys of the published config."""
    options = dict(zip(("n_layer", "n_head", "n_embd"), sizes, strict=True))
    folder = make_checkpoint(tmp_path / "size", **options)
    edit_config(folder, **extra_keys, resid_pdrop=0.1)
    rows = probe.certify(folder, "The mole dug under the river bank.").require().rows
    assert len({row.layer for row in rows if row.layer is not None}) == sizes[0]


def test_shards_are_read_like_one_file(copy: Path, model: probe.Model) -> None:
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
def test_half_precision_files_are_computed_in_float32_and_their_type_is_recorded(copy, stored):
    halves = {name: tensor.to(stored) for name, tensor in load_file(copy / SINGLE).items()}
    save_file(halves, copy / SINGLE, {"format": "pt"})
    loaded = probe.load(copy)
    assert torch.equal(loaded.weights["wte.weight"], halves["transformer.wte.weight"].float())
    assert {tensor.dtype for tensor in loaded.weights.values()} == {torch.float32}
    assert loaded.bridge(torch.tensor([[1, 2]])).dtype == torch.float32
    written = manifest("m", loaded.origin, seed=0, command="", data_sha256="")
    name = str(stored).removeprefix("torch.")
    assert written["weights_stored_as"] == loaded.origin.stored == name


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
NO_CONFIG = (
    "its config.json is missing or states nothing. Save the model again with save_pretrained"
)
BAD_CONFIG = "transformers cannot read its config.json (It looks like the config file at"
NO_WORDS = "transformers reads its tokenizer as a GPT2Tokenizer, which finds no vocabulary there."
NO_WEIGHTS = "there is no model.safetensors and no shard of it. Save the model again"
PICKLE = "its weights are only a pickle (pytorch_model.bin), which can run code when opened. "
WIDER = "asks for more numbers than its 23 bytes of safetensors. Copy or"
TRANSPOSED = (
    "has shape [128, 32] where config.json asks for [32, 128]. Use the config.json that bel"
)
FOREIGN = "its tokenizer has a token 381 and the model embeds only 300 tokens. Use the tokenizer"
LOST = "it has 1 of 2 shards (model-*-of-00002.safetensors). Copy every shard into the folder."
ADAPTER = "it is an adapter, as of LoRA (adapter_config.json), and no model. Load the model that it"
NAN, INF = float("nan"), float("inf")
REFUSED = {
    "no config": (remove("config.json"), NO_CONFIG),
    "config a list": (write("config.json", "[1]"), NO_CONFIG),
    "config not JSON": (write("config.json", "{oops"), BAD_CONFIG),
    "config not UTF-8": (write("config.json", b"\xff\xfe{}"), BAD_CONFIG),
    "no tokenizer": (remove(*TOKENIZER), NO_WORDS),
    "tokenizer empty": (tokenizer_file(vocab={}, merges=[]), NO_WORDS),
    "tokenizer not JSON": (write("tokenizer.json", "<html>"), "cannot be read (Expecting value"),
    "tokenizer broken": (tokenizer_file(type="Nope"), "cannot be read (data did not match any var"),
    "a tokenizer of another model": (lambda it: make_checkpoint(it, vocab_size=300), FOREIGN),
    "no weights": (remove(SINGLE), NO_WEIGHTS),
    "pickle only": (pickle_only, PICKLE),
    "an adapter": (
        lambda it: (remove("config.json", SINGLE)(it), write("adapter_config.json", "{}")(it)),
        ADAPTER,
    ),
    "truncated": (truncated, f"{UNREAD} (SafetensorError: Error while deserializing header"),
    "not safetensors": (write(SINGLE, "version https://git-lfs"), WIDER),
    "tensor missing": (tensors(transformer__ln_f__bias=None), "the tensor ln_f.bias is missing. S"),
    "misshapen": (tensors(transformer__h__0__mlp__c_fc__weight=lambda t: t.T), TRANSPOSED),
    "NaN": (tensors(transformer__ln_f__bias=with_value(NAN)), "ln_f.bias contains NaN. Take an un"),
    "inf": (tensors(transformer__wpe__weight=with_value(INF)), "contains an infinite number. Take"),
    "integers": (tensors(transformer__ln_f__bias=lambda t: t.int()), "ln_f.bias is stored as I32."),
    "unknown tensor": (
        tensors(transformer__h__0__attn__extra=lambda t: t),
        "h.0.attn.extra is not a tensor of the GPT-2 that config.json describes",
    ),
    "named twice": (tensors(wte__weight=lambda t: t), f"wte.weight is there twice ({SINGLE})"),
    "false tie": (
        tensors(lm_head__weight=lambda t: torch.ones(400, 32)),
        "lm_head.weight differs from wte.weight although config.json ties them. Write",
    ),
    "shard missing": (lost_shard, LOST),
    "index escapes": (index_with(more="../../x.safetensors"), f"{UNREAD} (FileNotFoundError: No"),
    "index empty": (lambda it: (remove(SINGLE)(it), write(INDEX, "{}")(it)), NO_WEIGHTS),
}


@pytest.mark.parametrize(("damage", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_folder_is_refused_with_its_reason(copy, damage, expected) -> None:
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
ABSENT = "there is no such folder. Give the folder that holds config.json"
KINDS = (
    "only a name, a folder, a GGUF file, a Hugging Face model or a TransformerBridge can be loaded."
    " Give one of these."
)
A_CLASS = "that is the name of a class, which holds no weights. Give a name, a folder, or an object"
ONE_VERSION = "is installed on this machine in one version, without revisions. Load"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        *((source, ABSENT) for source in NOWHERE),
        (Path(__file__), "it is a file. Give the folder"),
        ("README.md", "it is a file. Give"),
        (42, KINDS),
        ("LlamaForCausalLM", f"{A_CLASS} that from_pretrained(...) returned."),
        ("<class 'transformers.GPT2LMHeadModel'>", A_CLASS),
        ("transformers.GPT2LMHeadModel", A_CLASS),
        ("tiny-senses@x", f"tiny-senses {ONE_VERSION}"),
        ("smollm2@", f"smollm2 {ONE_VERSION}"),
    ],
)
def test_a_source_that_is_neither_a_folder_nor_a_hub_name_is_refused_with_its_reason(
    source: object, message: str
) -> None:
    description = "a int" if isinstance(source, int) else source
    assert refusal(source).startswith(f"Cannot load {description}: {message}")


def test_only_certified_number_formats_and_devices_that_are_here_are_accepted(checkpoint) -> None:
    for dtype in (torch.float16, torch.int64, "float16"):
        assert refusal(checkpoint, probe.InputError, dtype=dtype) == (
            f"Cannot load {checkpoint} in {dtype}: the certificate holds for torch.float32, "
            "torch.float64 and torch.bfloat16."
        )
    for device in ("toaster", "cuda:99", *[0] * (not torch.cuda.is_available())):
        assert refusal(checkpoint, probe.InputError, device=device) == (
            f"Cannot use the device {device!r}: PyTorch cannot store numbers on it here. Use "
            "'cpu', which always works."
        )


# Sources that every public function accepts


# Each of them is called with a model and with arguments that do not depend on it.
FUNCTIONS_OF_A_MODEL = {
    "certify": lambda model: probe.certify(model, ["the river bank"]).ok,
    "tokenize": lambda model: probe.tokenize(model, "the river bank"),
    "trace": lambda model: probe.trace(model, "the river bank").logits.argmax(-1).tolist(),
}


@pytest.mark.parametrize("name", FUNCTIONS_OF_A_MODEL)
def test_a_public_function_takes_what_load_takes(name, checkpoint, model) -> None:
    ask = FUNCTIONS_OF_A_MODEL[name]
    expected = ask(model)
    in_memory = GPT2LMHeadModel.from_pretrained(checkpoint)  # its folder determines its tokenizer
    for source in (str(checkpoint), model.bridge, in_memory):
        assert ask(source) == expected


def test_a_loaded_model_passes_through_as_it_is(model: probe.Model) -> None:
    assert probe.load(model) is model
    assert probe.load(model, dtype=torch.float32, device="cpu", tokenizer=model.tokenizer) is model


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float64"}, "got dtype='float64', and it computes in torch.float32, expected i"),
        ({"prepend_bos": False}, "got prepend_bos=False, and it puts one in front, expected its o"),
        ({"tokenizer": object()}, "got another tokenizer, expected its"),
    ],
)
def test_a_loaded_model_is_not_loaded_in_another_way(model, options, reason) -> None:
    sentence = refusal(model, probe.InputError, **options)
    assert sentence.startswith(f"Cannot load the Model {model.name} again: {reason}")
    assert sentence.endswith("Load its source with the new options.")


# The self-check


def test_a_model_whose_heads_write_nothing_passes_the_self_check(copy: Path) -> None:
    silent = {
        f"transformer.h.{layer}.attn.c_proj.weight": torch.zeros(32, 32) for layer in range(2)
    }
    assert probe.load(change_tensors(copy, silent)).config.n_layers == 2


def test_a_model_that_does_not_run_is_refused(copy: Path) -> None:
    edit_config(copy, resid_pdrop=float("nan"))
    assert "it does not run on a short text (dropout probability has to be" in refusal(copy)


def test_every_load_is_self_checked(model, checkpoint, monkeypatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(loading, "check_hooks", lambda model, ids: calls.append(model.name))
    probe.load(checkpoint)
    probe.load(GPT2LMHeadModel.from_pretrained(checkpoint))
    assert calls == [model.name, model.name]


# Side effects of loading


def test_loading_leaves_no_hook_and_changes_no_setting(checkpoint, capfd, monkeypatch) -> None:
    loggers = [logging.getLogger(name) for name in ("", "transformers", "transformer_lens")]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", logging.INFO)

    def state() -> list[object]:
        of_loggers = [(logger.level, list(logger.handlers)) for logger in loggers]
        of_torch = torch.is_grad_enabled(), torch.get_default_dtype()
        return [of_loggers, logging.root.manager.disable, list(warnings.filters), of_torch]

    before = state()
    loaded = probe.load(checkpoint)
    assert state() == before and capfd.readouterr() == ("", "")
    assert not [name for name, point in loaded.bridge.hook_dict.items() if point.has_hooks()]
    assert loaded.tokenizer is not loaded.bridge.tokenizer  # which the bridge configures
    ids = AutoTokenizer.from_pretrained(checkpoint)("The red apple.")["input_ids"]
    assert loaded.tokenizer("The red apple.")["input_ids"] == ids


def test_available_lists_what_ships_and_what_else_works() -> None:
    rows = probe.available()
    assert [row.kind for row in rows][-3:] == ["hub", "folder", "file"]
    assert rows[-2].what == "config.json, tokenizer and safetensors of one"
    assert [row.name for row in rows if row.kind == "package"] == ["smollm2", "minilm"]
    for row in rows:
        if row.kind == "embedded":
            assert re.fullmatch(r"(GPT-2|BERT|BART), \d+ layers x \d+ heads, d_model \d+", row.what)


def test_absurd_sizes_are_refused_before_memory_is_allocated(copy: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = (copy / SINGLE).read_bytes()
    for length in (2**63, 2**31, len(whole)):  # of the header
        (copy / SINGLE).write_bytes(struct.pack("<Q", length) + whole[8:])
        assert "transformers cannot read its files" in refusal(copy)
    for key in ("n_layer", "n_embd", "vocab_size", "n_positions", "n_inner"):
        edit_config(copy, **{key: 4 * 10**14})
        refusal(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_links_to_model_files_are_followed_and_a_broken_link_is_refused(copy, tmp_path):
    weights = copy / "model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to(tmp_path / "blob")
    assert probe.load(copy).config.n_layers == 2
    weights.unlink()
    weights.symlink_to(tmp_path / "nowhere")
    assert "safetensors" in refusal(copy)
