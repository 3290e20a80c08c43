"""What a folder must hold before any of it is believed.

Nothing here knows modelling code: it reads files, compares the sizes that the config promises with the sizes that the
safetensors header states (before memory is taken), and returns raw tensors. The forward from scratch runs from these
tensors, so they never pass through Hugging Face's model classes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from probe.errors import ModelError
from probe.model.architectures import FAMILIES
from probe.model.config import RESAVE, Config, read_json, refuse
from probe.model.weights import expected_shapes, optional_shapes

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # how the first BERTs called the two of a norm


@dataclass(frozen=True)
class Located:
    """One tensor as a safetensors header states it: where it lies, under which name, its shape and element type."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


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


def stored_types(folder: Path, architecture: str) -> str:
    """The element types of the weights of `folder`, the one of most tensors first, as "bfloat16, float32"."""
    kinds = [TYPES.get(tensor.dtype, tensor.dtype) for tensor in locate(folder, architecture).values()]
    return ", ".join(sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind)))


def has_weights(folder: Path) -> bool:
    """True when `weight_files` would find something to read."""
    try:
        return bool(weight_files(folder))
    except ModelError:
        return False


def has_tokenizer(folder: Path) -> bool:
    """True when real tokenizer files are there; without them transformers quietly makes up an empty tokenizer."""
    return (folder / "tokenizer.json").is_file() or all((folder / n).is_file() for n in ("vocab.json", "merges.txt"))


def _weight_map(folder: Path) -> dict[str, str]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise refuse(folder, f"{INDEX} holds no weight_map", RESAVE)
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise refuse(folder, f"{INDEX} points outside the folder ({name!r})", RESAVE)
    return weight_map


def locate(folder: Path, architecture: str) -> dict[str, Located]:
    """Every tensor that the headers state, by name without its family's prefix ("transformer.").

    Reads no tensor data.
    """
    located: dict[str, Located] = {}
    for file in weight_files(folder):
        for tensor in _header(file):
            name = _short(tensor.name, architecture)
            if name in located:
                raise refuse(folder, f"{name} is there twice ({located[name].file.name} and {file.name})", RESAVE)
            located[name] = tensor
    if not (folder / SINGLE).is_file():
        lacking = [name for name in _weight_map(folder) if _short(name, architecture) not in located]
        if lacking:
            raise refuse(folder, f"{INDEX} promises {lacking[0]}, and no shard holds it", RESAVE)
    return located


def _short(name: str, architecture: str) -> str:
    plain = name.removeprefix(FAMILIES[architecture].prefix)
    return next((plain.removesuffix(old) + new for old, new in OLD_NAMES.items() if plain.endswith(old)), plain)


def _header(file: Path) -> list[Located]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (safe_open is no mapping)
            return [Located(file, n, tuple(s.get_shape()), s.get_dtype()) for n, s in sorted(slices.items())]
    except (SafetensorError, OSError) as error:
        raise refuse(file.parent, f"{file.name} is corrupt ({str(error)[:80]})", "copy or download it again") from error


def check_names(located: Mapping[str, Located], config: Config, *, where: object) -> None:
    """Headers against config: every tensor there, of the right shape and a float, and nothing that is not known."""
    known = set()
    optional = ((name, shape) for name, shape in optional_shapes(config) if name in located)
    for name, shape in chain(expected_shapes(config), optional):
        _check_header(located, name, shape, where=where)
        known.add(name)
    unknown = sorted(name for name in located if name not in known and not _is_ignored(name, config))
    if unknown:
        kind = config.family.name
        raise refuse(where, f"{unknown[0]} is not a tensor of the {kind} that config.json describes", RESAVE)


def _check_header(located: Mapping[str, Located], name: str, shape: tuple[int, ...], *, where: object) -> None:
    if name not in located:
        raise refuse(where, f"the tensor {name} is missing from its safetensors", RESAVE)
    if located[name].shape != shape:
        problem = f"{name} has shape {list(located[name].shape)} where config.json asks for {list(shape)}"
        raise refuse(where, problem, "use the config.json that belongs to these weights")
    if located[name].dtype not in TYPES:
        raise refuse(where, f"{name} is stored as {located[name].dtype}", "load a plain float checkpoint")


def _is_ignored(name: str, config: Config) -> bool:
    """What no formula reads: copies of a tied embedding (which are checked), buffers of old checkpoints, other
    heads.
    """
    family = config.family
    if name == family.unembed + ".weight":
        return True
    return any(
        name.startswith(known)
        if known.endswith(".")
        else name.endswith(known)
        if known.startswith(".")
        else name == known
        for known in family.ignored
    )


def read_checkpoint(
    folder: Path, config: Config, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """The raw tensors by Hugging Face name without the family's prefix, cast to `dtype` on `device`, all finite.

    The unembedding ("lm_head.weight") is among them only when it is not tied. Raises ModelError naming file and tensor.
    """
    located = locate(folder, config.architecture)
    check_names(located, config, where=folder)
    wanted = [name for name, _ in expected_shapes(config)] + [
        name for name, _ in optional_shapes(config) if name in located
    ]
    weights = {name: _read(located[name], dtype).to(device) for name in wanted}
    family = config.family
    embed = family.embed + ".weight"
    for name in located.keys() - weights.keys():
        if name.endswith("embed_tokens.weight") or (name == family.unembed + ".weight" and config.tied):
            _check_tie(name, _read(located[name], dtype), embed, weights[embed].cpu(), where=folder)
    return weights


def _check_tie(name: str, copy: torch.Tensor, embed: str, embedding: torch.Tensor, *, where: object) -> None:
    if not torch.equal(copy, embedding):
        step = 'write "tie_word_embeddings": false into config.json if the two are meant to differ'
        raise refuse(where, f"{name} differs from {embed} although config.json ties them", step)


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
    extremes = torch.stack(torch.aminmax(values))  # one pass and no mask as large as the tensor; NaN wins
    if bool(torch.isfinite(extremes).all()):
        return
    kind = "NaN" if bool(torch.isnan(extremes).any()) else "an infinite number"
    raise refuse(where, f"{name} contains {kind}", "take an undamaged copy of the weights")


def sha256_of(files: tuple[Path, ...]) -> str:
    """sha256 of the bytes of the weight files, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
