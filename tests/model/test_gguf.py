"""GGUF files: accepted ones are computed correctly and read by two readers; refused ones give a
message.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
import typer.main
from families import make_family
from gguf import GGMLQuantizationType as Kind
from gguf_files import Change, write_gguf
from inside import FAMILIES, GGUF_FAMILIES, GGUF_KNOWN, app, untrained
from safetensors.torch import load_file
from test_load import refusal

import probe
from probe.model.gguf import GgufFile, read_raw_config

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
    """A folder of a family and a GGUF file with the same numbers, both loaded once. It is shared:
    do not change it."""

    folder: Path
    file: Path

    @cached_property
    def original(self) -> probe.Model:
        return probe.load(self.folder)

    @cached_property
    def from_file(self) -> probe.Model:
        return probe.load(self.file)


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory) -> Callable[..., Pair]:
    """The pair of a family in a type of numbers."""

    @cache
    def folder(kind: str) -> Path:
        return make_family(tmp_path_factory.mktemp("gguf") / "folder", kind, **SIZES.get(kind, {}))

    @cache
    def pair(kind: str, stored: Kind = Kind.F32) -> Pair:
        path = tmp_path_factory.mktemp("gguf") / "made" / "model.gguf"
        return Pair(folder(kind), write_gguf(folder(kind), path, stored))

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
    pair, family = pair_of(kind), FAMILIES[kind]
    original, from_file, encodes = pair.original, pair.from_file, family.kind == "encoder"
    assert from_file.weights.keys() == {n for n in original.weights if not n.startswith(HEADS)}
    for name, tensor in from_file.weights.items():
        true = original.weights[name]
        # A norm is stored as 1 + its weight, rounded.
        gain = family.norm_adds_one and tensor.dim() == 1 and name.endswith(".weight")
        assert torch.equal(tensor, true + 1 - 1 if gain else true)
    changed = {"has_lm_head": False} if encodes else {}
    assert {**vars(original.config), **changed} == vars(from_file.config)
    if not encodes:
        close = {"rtol": 0, "atol": 1e-4 if family.norm_adds_one else 0}
        torch.testing.assert_close(logits(from_file), logits(original), **close)
    assert len(probe.certify(from_file, TEXTS).require().rows) > 20
    for text in (*TEXTS, "She sold 1234 apples, twice!"):
        options = {"return_offsets_mapping": True, "add_special_tokens": encodes}
        cut = [dict(each.tokenizer(text, **options)) for each in (from_file, original)]
        assert cut[0] == cut[1]


def test_a_mistral_is_a_llama_in_a_file_and_one_with_a_window_is_refused(tmp_path) -> None:
    sizes = WIDE | {"head_dim": 8}
    folder = make_family(tmp_path / "mistral", "mistral", sliding_window=None, **sizes)
    from_file = probe.load(write_gguf(folder, tmp_path / "model.gguf", Kind.F32))
    assert from_file.config.architecture == "llama"
    assert torch.equal(logits(from_file), logits(probe.load(folder)))
    folder = make_family(tmp_path / "local", "mistral", **sizes)
    message = f"llama.attention.sliding_window is '5' {KEY}. {PLAIN}"
    file = write_gguf(folder, tmp_path / "local.gguf", Kind.F32)
    assert message in refusal(file, probe.UnsupportedModel)


@pytest.mark.parametrize(
    ("kind", "bias", "biased"), [("llama", True, "qkvo"), ("qwen3", False, "")]
)
def test_which_products_have_biases_is_read_from_the_tensors(tmp_path, kind, bias, biased) -> None:
    folder = make_family(tmp_path / kind, kind, **SIZES[kind], attention_bias=bias)
    from_file = probe.load(write_gguf(folder, tmp_path / "model.gguf", Kind.F32))
    original = probe.load(folder)
    assert from_file.config.biased_roles == original.config.biased_roles == biased
    assert from_file.config == original.config
    assert all(torch.equal(from_file.weights[name], t) for name, t in original.weights.items())


def test_a_roberta_is_a_bert_in_a_file_without_the_rows_that_no_token_uses(tmp_path) -> None:
    folder = make_family(tmp_path / "folder", "roberta", architecture="RobertaModel")
    from_file = probe.load(write_gguf(folder, tmp_path / "made" / "model.gguf", Kind.F32))
    original = probe.load(folder)
    assert (from_file.config.architecture, original.config.architecture) == ("bert", "roberta")
    last = [probe.trace(model, TEXTS[0]).resid_post[-1] for model in (from_file, original)]
    torch.testing.assert_close(*last, rtol=0, atol=1e-6)


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
    [(READ_TWICE[number % len(READ_TWICE)], stored) for number, stored in enumerate(STORED)],
)
def test_quantised_weights_are_the_dequantised_ones_and_both_readers_agree(pair_of, kind, stored):
    pair, family = pair_of(kind, stored), FAMILIES[kind]
    from_file, original = pair.from_file, load_file(pair.folder / "model.safetensors")
    assert probe.certify(from_file, TEXTS[:1]).ok
    name = next(n for n in from_file.weights if "up_proj" in n or "c_fc.weight" in n or ".wi." in n)
    whole = original[family.prefix + name]
    stored_way = whole.T if family.transposed else whole
    blocks = gguf.quantize(np.ascontiguousarray(stored_way.numpy()), stored)
    expected = torch.from_numpy(gguf.dequantize(blocks, stored).copy())
    assert torch.equal(from_file.weights[name], expected.T if family.transposed else expected)
    assert not torch.equal(from_file.weights[name], whole)
    assert readers_agree(from_file, pair.file)


def readers_agree(from_file: probe.Model, file: Path) -> bool:
    """Whether transformers reads every tensor of the file as it was read for `from_file`."""
    family, config = from_file.config.family, from_file.bridge.original_model.config
    model_class = getattr(transformers, family.architectures[0])
    options = {"gguf_file": file.name, "config": config, "dtype": torch.float32}
    theirs = model_class.from_pretrained(file.parent, **options).state_dict()
    read = {name.removeprefix(family.prefix): tensor for name, tensor in theirs.items()}
    shared = read.keys() & from_file.weights.keys()
    assert len(shared) > 20
    return all(torch.equal(read[name], from_file.weights[name]) for name in shared)


def test_an_origin_a_config_and_a_type_are_those_of_the_file(llama) -> None:
    origin, opened = vars(llama.from_file.origin), GgufFile(llama.file)
    expected = {"kind": "file", "location": "made/model", "revision": None, "stored": "float32"}
    expected |= {"sha256": hashlib.sha256(llama.file.read_bytes()).hexdigest()}
    assert {name: origin[name] for name in expected} == expected
    epsilon = opened.metadata["llama.attention.layer_norm_rms_epsilon"]
    assert epsilon == 1e-6  # without rounding to float32
    assert read_raw_config(opened)["head_dim"] == 8
    exact = probe.load(llama.file, dtype="float64")
    tensors = (*exact.weights.values(), *exact.bridge.parameters())
    assert {tensor.dtype for tensor in tensors} == {torch.float64}


def test_a_folder_with_one_file_is_that_file_and_one_with_two_is_refused(llama, tmp_path) -> None:
    (tmp_path / "any.gguf").write_bytes(llama.file.read_bytes())
    loaded = probe.load(tmp_path)
    assert (loaded.origin.kind, loaded.origin.location) == ("folder", tmp_path.name)
    assert torch.equal(logits(loaded), logits(llama.from_file))
    (tmp_path / "other.gguf").write_bytes(b"")
    assert refusal(tmp_path).endswith(
        f"holds 2 GGUF files. Give one of them, as {tmp_path}/any.gguf."
    )


def test_an_output_tensor_makes_the_unembedding_a_separate_weight(llama, tmp_path) -> None:
    weights = llama.from_file.weights
    assert not llama.from_file.config.tied
    assert not torch.equal(weights["lm_head.weight"], weights["embed_tokens.weight"])
    tied = make_family(tmp_path / "tied", "llama", tie_word_embeddings=True, **SIZES["llama"])
    both = probe.load(write_gguf(tied, tmp_path / "tied.gguf", Kind.F32))
    assert both.config.tied and "lm_head.weight" not in both.weights
    again, twin = probe.load(llama.from_file.bridge), untrained(llama.from_file, seed=1)
    assert again.weights.keys() == weights.keys() == twin.weights.keys()
    assert not torch.equal(twin.weights["embed_tokens.weight"], weights["embed_tokens.weight"])


def sentencepiece(**settings: object) -> tuple[list[str], Change]:
    """A SentencePiece vocabulary, and the change of metadata that writes it with other settings."""
    parts = ("\u2581", *"Themoldugrivbankap.", "Th", "The", "\u2581The")
    parts += ("mo", "mol", "mole", "\u2581mole")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += dict.fromkeys(parts)
    tokens += [f"[PAD{number}]" for number in range(len(tokens), 400)]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (400 - 259)]
    described = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": kinds}
    described |= {"scores": [-float(number) for number in range(400)], "merges": None}
    described |= {"add_bos_token": True, "bos_token_id": 1, "eos_token_id": 2}
    described |= {"unknown_token_id": 0, "padding_token_id": None} | settings
    return tokens, keys(**{f"tokenizer__ggml__{name}": value for name, value in described.items()})


@pytest.mark.parametrize(
    ("kind", "prefix", "text", "expected"),
    [
        ("llama", None, "The mole", ["<s>", "\u2581The", "\u2581mole"]),
        ("llama", True, "The mole", ["<s>", "\u2581The", "\u2581mole"]),
        ("llama", False, "The mole", ["<s>", "The", "\u2581mole"]),
        ("llama", False, " mole", ["<s>", "\u2581mole"]),
        ("gemma2", False, "The mole", ["<s>", "The", "\u2581mole"]),
    ],
)
def test_the_file_states_whether_a_text_begins_with_a_space(
    kind, prefix, text, expected, pair_of, tmp_path
) -> None:
    tokens, change = sentencepiece(add_space_prefix=prefix)
    tokenizer = probe.load(changed(pair_of(kind), tmp_path, change)).tokenizer
    cut = tokenizer(text, return_offsets_mapping=True)
    assert [tokens[number] for number in cut.input_ids] == expected
    assert tokenizer.decode(cut.input_ids, skip_special_tokens=True) == text
    assert text[slice(*cut.offset_mapping[-1])].strip() == "mole"


def test_a_space_that_the_tokenizer_of_a_family_never_puts_is_refused(pair_of, tmp_path) -> None:
    _, change = sentencepiece(add_space_prefix=True)
    message = ": its tokenizer puts a space in front of every text, which"
    assert message in refusal(changed(pair_of("gemma2"), tmp_path, change))


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
JOIN = "Join the parts with gguf-split --merge."
PLAIN, NORM = "Load a standard Llama.", "output_norm"
NO_TOKENS = keys(tokenizer__ggml__tokens=None, llama__vocab_size=400)
THESE = f"Load the safetensors of the model; GGUF files are read of {GGUF_KNOWN}."
KEY = "in its metadata, and no formula for it is certified"
BIAS = "blk.1.attn_q.bias is not a tensor of the Llama that its metadata describe"
SHAPE = "output_norm.weight has shape [31] where its metadata ask for [32]"
STRETCHED = "its rotary positions are stretched (rope_freqs.weight), which is not certified"
UNEVEN = of("rope_freqs", np.array([1, 1, 4, 8], np.float32))
OTHER = "Take another quantisation of the model, such as Q8_0 or Q4_K."
WHOLE = "its tensor 'output_norm.weight' is stored as I32, which cannot be turned into numbers"
MAMBA = "its general.architecture is 'mamba', which is not read from GGUF files"
RWKV = "its tokenizer is of the kind 'rwkv', which is not converted"
RULE = "its tokenizer cuts text by the rule 'new', which is not converted"
COUNT, LOST = "llama.block_count is {!r} in its metadata", "the tensor {} is missing"
DIMS = "its rope.dimension_count is 4 where a head has 8 dimensions"
DEEP = "num_hidden_layers is 1000000000 in its config"
BLOCKS = "its metadata ask for 10000 blocks and it has 2"
WRONG = [  # the change, the reason in the message, and the next step
    (tensor("blk.1.ffn_up.weight", None), LOST.format("blk.1.ffn_up.weight"), CONVERT),
    (tensor("blk.1.attn_q.bias", np.ones(32, np.float32)), BIAS, CONVERT),
    (of(NORM, np.ones(31, np.float32)), SHAPE, CONVERT),
    (of(NORM, np.full(32, np.nan, np.float32)), "output_norm.weight contains NaN", DAMAGED),
    (keys(llama__block_count=10**9), DEEP, "Correct its config."),
    (keys(llama__block_count=10_000), BLOCKS, CONVERT),
    (keys(llama__block_count=None), COUNT.format("None"), CONVERT),
    (keys(llama__block_count="two"), COUNT.format("two"), CONVERT),
    (keys(llama__rope__dimension_count=4), DIMS, CONVERT),
    (keys(llama__attention__value_length=4), "its keys and its values differ in length", CONVERT),
    (keys(split__count=3), "it is one part of 3", JOIN),
    (NO_TOKENS, "it holds no tokenizer", BESIDE),
    (keys(tokenizer__ggml__model="rwkv"), RWKV, BESIDE),
    (keys(tokenizer__ggml__pre="new"), RULE, BESIDE),
]
NOT_COVERED = [
    (keys(general__architecture="mamba"), MAMBA, THESE),
    (keys(llama__expert_count=8), f"llama.expert_count is '8' {KEY}", PLAIN),
    (keys(llama__rope__scaling__type="yarn"), f"llama.rope.scaling.type is 'yarn' {KEY}", PLAIN),
    (keys(llama__logit_scale=0.5), f"llama.logit_scale is '0.5' {KEY}", PLAIN),
    (UNEVEN, STRETCHED, "Load a model with plain rotary positions."),
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


def test_a_tensor_without_numbers_and_an_unknown_key_are_refused(llama, tmp_path) -> None:
    file, whole = tmp_path / "model.gguf", llama.file.read_bytes()
    file.write_bytes(packed("<Q", 0, at=4, after=NAMED)(whole))
    assert "output_norm.weight has shape [0] where its metadata ask for [32]" in refusal(file)
    file.write_bytes(replaced(b"llama.embedding_length", b"llama.context_lengthxx")(whole))
    assert "llama.context_lengthxx is '32' in its metadata" in refusal(file, probe.UnsupportedModel)


def test_a_file_cut_anywhere_and_a_missing_file_are_refused(llama, tmp_path) -> None:
    whole, file = llama.file.read_bytes(), tmp_path / "model.gguf"
    for end in range(4, len(whole), len(whole) // 20):
        file.write_bytes(whole[:end])
        assert CUT in refusal(file)
    absent = tmp_path / "absent.gguf"
    assert refusal(absent) == (
        f"Cannot load {absent}: there is no such file. Give the folder that holds config.json, the tokenizer and the "
        "safetensors, a .gguf file, or a name (tiny-senses)."
    )


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


# The command line


def test_every_command_that_runs_a_model_takes_a_device_and_a_type(run, llama) -> None:
    options = ["--model", llama.file, "--device", "cpu", "--dtype", "float64", "--json"]
    code, out, _ = run("check", TEXTS[0], *options)
    assert code == 0 and json.loads(out)["ok"] and json.loads(out)["dtype"] == "float64"
    commands = typer.main.get_command(app).commands
    for name in ("report", "walk", "check", "evaluate", "survey", "models"):
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert {"--device", "--dtype"} <= known


def test_a_bad_file_a_bad_device_and_a_bad_type_are_one_sentence_and_exit_2(run, llama, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(llama.file.read_bytes()[:200])
    for options, message in (
        (["--model", cut], f"probe: Cannot load {cut}: {CUT}"),
        (["--device", "nowhere"], "probe: Cannot use the device 'nowhere': PyTorch cannot store"),
        (["--dtype", "float16"], "'float16' is not one of 'float32', 'float64'"),
    ):
        code, out, err = run("check", *options)
        assert (code, out, err.count("\n")) == (2, "", 1) and message in err
