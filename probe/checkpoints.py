"""What a GPT-2 folder must hold before any of it is believed.

A room of its own beside `models`, because nothing here knows modelling code: it reads files, compares the sizes that
the config promises with the sizes that the safetensors header states (before memory is taken), and returns raw
tensors. The from-scratch replay runs from these tensors, so they never pass through Hugging Face's model classes.
Sizes come from the file, never from a default: a config that leaves one out is refused.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from probe.errors import ModelError, UnsupportedModel

SUPPORTED = "GPT2LMHeadModel"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
FLOATS = ("F16", "BF16", "F32", "F64")
RESAVE = "save the model again with save_pretrained"

# What each variant key of a GPT-2 config must be for the from-scratch formulas to be the model's own.
STANDARD = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}


@dataclass(frozen=True)
class Config:
    """The sizes and switches of a causal language model, in the words used everywhere in `probe`.

    `n_ctx` is the longest text in tokens, `d_vocab` the number of token embeddings, `epsilon` LayerNorm's.
    `tied` says that the unembedding is the transposed token embedding. Raises ModelError where sizes disagree.
    """

    architecture: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    n_ctx: int
    d_vocab: int
    causal: bool
    epsilon: float
    activation: str
    prepend_bos: bool
    tied: bool = True

    def __post_init__(self) -> None:
        if self.n_heads * self.d_head != self.d_model:
            raise ModelError(
                f"The config asks for {self.n_heads} heads in {self.d_model} dimensions, which do not divide evenly; "
                "correct n_head or n_embd in config.json."
            )


@dataclass(frozen=True)
class Located:
    """One tensor as a safetensors header states it: where it lies, under which name, its shape and element type."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def refuse(where: object, problem: str, step: str) -> ModelError:
    """The one form that every refusal to load has: what was tried, what was found, what to do."""
    return ModelError(f"Cannot load {where}: {problem}; {step}.")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from `file`. Raises ModelError when it is absent, not UTF-8 JSON, or not an object."""
    if not file.is_file():
        raise refuse(file.parent, f"{file.name} is missing", RESAVE + " so that the folder is complete")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise refuse(file.parent, f"{file.name} is not valid JSON ({str(error)[:80]})", RESAVE) from error
    if not isinstance(found, dict):
        raise refuse(file.parent, f"{file.name} is not a JSON object", RESAVE)
    return found


def read_config(folder: Path, *, prepend_bos: bool) -> Config:
    """The config of `folder`. Raises ModelError for what is missing or absurd, UnsupportedModel for other models."""
    raw = read_json(folder / "config.json")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        step = f'add "architectures": ["{SUPPORTED}"] to config.json if that is what the model is'
        raise refuse(folder, f"config.json does not name one architecture (got {architectures!r})", step)
    return config_from(raw, where=folder, architecture=str(architectures[0]), prepend_bos=prepend_bos)


def config_from(raw: Mapping[str, Any], *, where: object, architecture: str, prepend_bos: bool) -> Config:
    """Hugging Face's GPT-2 config keys in `probe`'s words, after everything unsupported or absurd was refused."""
    _refuse_other_models(raw, where, architecture)
    sizes = {key: _size(raw.get(key), key, where) for key in SIZES}
    inner = raw.get("n_inner")
    epsilon = raw.get("layer_norm_epsilon", 1e-5)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise refuse(where, f"layer_norm_epsilon is {epsilon!r}", "give a number between 0 and 1 in config.json")
    return Config(
        architecture="gpt2",
        n_layers=sizes["n_layer"],
        n_heads=sizes["n_head"],
        d_model=sizes["n_embd"],
        d_head=sizes["n_embd"] // sizes["n_head"],
        d_mlp=4 * sizes["n_embd"] if inner is None else _size(inner, "n_inner", where),
        n_ctx=sizes["n_positions"],
        d_vocab=sizes["vocab_size"],
        causal=True,
        epsilon=float(epsilon),
        activation="gelu_new",
        prepend_bos=prepend_bos,
        tied=raw.get("tie_word_embeddings", True) is not False,
    )


def _refuse_other_models(raw: Mapping[str, Any], where: object, architecture: str) -> None:
    if raw.get("model_type", "gpt2") != "gpt2" or architecture != SUPPORTED:
        raise UnsupportedModel(
            f"Cannot load {where}: its architecture is {architecture} (model_type {raw.get('model_type')!r}) and only "
            f"{SUPPORTED} (GPT-2 of any size) is certified so far; load a GPT-2 or tiny-senses."
        )
    for key, standard in STANDARD.items():
        if raw.get(key, standard) != standard:
            raise UnsupportedModel(
                f"Cannot load {where}: {key} is {raw[key]!r} in its config, and the from-scratch check covers GPT-2 "
                f"with {standard!r} only; load a standard GPT-2 or tiny-senses."
            )
    for key in ("auto_map", "quantization_config"):
        if raw.get(key):
            reason = "would run code of its own" if key == "auto_map" else "is quantized"
            raise UnsupportedModel(f"Cannot load {where}: it {reason} ({key}); load a plain float checkpoint.")


def _size(value: object, key: str, where: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(where, f"{key} is {value!r} in its config", "give a whole number of at least 1")
    return value


def expected_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every GPT-2 tensor, lazily: an absurd number of layers costs nothing until it is reached."""
    d, m = config.d_model, config.d_mlp
    yield "wte.weight", (config.d_vocab, d)
    yield "wpe.weight", (config.n_ctx, d)
    for layer in range(config.n_layers):
        for part, shape in (
            ("attn.c_attn", (d, 3 * d)),
            ("attn.c_proj", (d, d)),
            ("mlp.c_fc", (d, m)),
            ("mlp.c_proj", (m, d)),
        ):
            yield f"h.{layer}.{part}.weight", shape
            yield f"h.{layer}.{part}.bias", shape[1:]
        for part in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
            yield f"h.{layer}.{part}", (d,)
    yield "ln_f.weight", (d,)
    yield "ln_f.bias", (d,)
    if not config.tied:
        yield "lm_head.weight", (config.d_vocab, d)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of `folder`, single or sharded, in name order. Raises ModelError when there are none."""
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if (folder / INDEX).is_file():
        names = sorted(set(_weight_map(folder).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise refuse(folder, f"{INDEX} names {missing[0]}, which is missing", "copy every shard into the folder")
        return tuple(folder / name for name in names)
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        problem = f"its weights are only a pickle ({pickled[0]}), which can run code when opened"
        raise refuse(folder, problem, f"{RESAVE}(safe_serialization=True) to get {SINGLE}")
    raise refuse(folder, f"there is no {SINGLE} and no {INDEX}", RESAVE)


def _weight_map(folder: Path) -> dict[str, str]:
    found = read_json(folder / INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise refuse(folder, f"{INDEX} holds no weight_map", RESAVE)
    for name in found.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise refuse(folder, f"{INDEX} points outside the folder ({name!r})", RESAVE)
    return found


def locate(folder: Path) -> dict[str, Located]:
    """Every tensor that the headers state, by name without "transformer.". Reads no tensor data."""
    found: dict[str, Located] = {}
    for file in weight_files(folder):
        for tensor in _header(file):
            name = tensor.name.removeprefix("transformer.")
            if name in found:
                raise refuse(folder, f"{name} is there twice ({found[name].file.name} and {file.name})", RESAVE)
            found[name] = tensor
    if not (folder / SINGLE).is_file():
        lacking = [name for name in _weight_map(folder) if name.removeprefix("transformer.") not in found]
        if lacking:
            raise refuse(folder, f"{INDEX} promises {lacking[0]}, and no shard holds it", RESAVE)
    return found


def _header(file: Path) -> list[Located]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (safe_open is no mapping)
            return [Located(file, n, tuple(s.get_shape()), s.get_dtype()) for n, s in sorted(slices.items())]
    except (SafetensorError, OSError) as error:
        raise refuse(file.parent, f"{file.name} is corrupt ({str(error)[:80]})", "copy or download it again") from error


def check_names(found: Mapping[str, Located], config: Config, *, where: object) -> None:
    """Headers against config: every tensor there, of the right shape and a float, and nothing that is not known."""
    known = set()
    for name, shape in expected_shapes(config):
        if name not in found:
            raise refuse(where, f"the tensor {name} is missing from its safetensors", RESAVE)
        if found[name].shape != shape:
            problem = f"{name} has shape {list(found[name].shape)} where config.json asks for {list(shape)}"
            raise refuse(where, problem, "use the config.json that belongs to these weights")
        if found[name].dtype not in FLOATS:
            raise refuse(where, f"{name} is stored as {found[name].dtype}", "load a plain float checkpoint")
        known.add(name)
    unknown = sorted(name for name in found if name not in known and not _is_buffer(name))
    if unknown and unknown != ["lm_head.weight"]:
        raise refuse(where, f"{unknown[0]} is not a tensor of the GPT-2 that config.json describes", RESAVE)


def _is_buffer(name: str) -> bool:
    """Old checkpoints carry the causal mask as tensors; no formula reads them."""
    return name.endswith((".attn.bias", ".attn.masked_bias"))


def read_weights(
    folder: Path, config: Config, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """The raw tensors by Hugging Face name without "transformer.", cast to `dtype` on `device`, all finite.

    "lm_head.weight" is among them only when the unembedding is not tied. Raises ModelError naming file and tensor.
    """
    found = locate(folder)
    check_names(found, config, where=folder)
    weights = {name: _read(found[name], dtype).to(device) for name, _ in expected_shapes(config)}
    if config.tied and "lm_head.weight" in found:
        _check_tie(_read(found["lm_head.weight"], dtype), weights["wte.weight"].cpu(), where=folder)
    return weights


def _check_tie(unembedding: torch.Tensor, embedding: torch.Tensor, *, where: object) -> None:
    if not torch.equal(unembedding, embedding):
        step = 'write "tie_word_embeddings": false into config.json if the two are meant to differ'
        raise refuse(where, "lm_head.weight differs from wte.weight although config.json ties them", step)


def _read(tensor: Located, dtype: torch.dtype) -> torch.Tensor:
    try:
        with safe_open(tensor.file, framework="pt") as opened:
            values: torch.Tensor = opened.get_tensor(tensor.name).to(dtype)
    except (SafetensorError, OSError) as error:
        problem = f"{tensor.file.name} is corrupt at {tensor.name} ({str(error)[:80]})"
        raise refuse(tensor.file.parent, problem, "copy or download it again") from error
    check_finite(values, tensor.name.removeprefix("transformer."), where=tensor.file.parent)
    return values


def check_finite(values: torch.Tensor, name: str, *, where: object) -> None:
    """Raises ModelError when any number in a weight is NaN or infinite: it would spread into every result."""
    if bool(torch.isfinite(values).all()):
        return
    kind = "NaN" if bool(torch.isnan(values).any()) else "an infinite number"
    raise refuse(where, f"{name} contains {kind}", "take an undamaged copy of the weights")


def sha256_of(files: tuple[Path, ...]) -> str:
    """sha256 of the bytes of the weight files, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
