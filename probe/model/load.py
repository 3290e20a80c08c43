"""One door for every model: an embedded, packaged or hub name, a folder, a GGUF file or an existing TransformerBridge
-> Model.

Decisions that stand here: raw weights (compatibility mode changes every head's contribution), eager attention, no
remote code, safetensors or GGUF only, and a self-check of the hooks on one short text before anybody sees the model.
What a folder must hold is decided in `checkpoint`, what a GGUF file must in `gguf_header` and `gguf`, what
TransformerLens must do in `bridge`, what is fetched in `hub`.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from probe.errors import InputError, ModelError
from probe.model.architectures import GGUF_KNOWN, SUPPORTED
from probe.model.bridge import boot, boot_gguf, boot_untrained, check_config_file, in_short, quiet, read_bridge
from probe.model.checkpoint import (
    INDEX,
    SINGLE,
    has_tokenizer,
    has_weights,
    read_checkpoint,
    sha256_of,
    stored_types,
    weight_files,
)
from probe.model.config import Config, read_config, read_json, refuse
from probe.model.hooks import check_hooks
from probe.model.model import Model
from probe.model.packaged import PACKAGED, Packaged, find_packaged, is_installed
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    from probe.model.gguf_header import GgufFile


EMBEDDED = ("tiny-senses", "tiny-senses-bidirectional", "tiny-translator")
EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
GGUF = ".gguf"
DTYPES = (torch.float32, torch.float64)
# Names of folders that say nothing of the model in them: the folder around them is named as well.
UNTOLD = ("model", "models", "checkpoint", "weights", "output")
SHORT_TEXT = "The mole dug under the river bank."


@dataclass(frozen=True)
class Available:
    """One line of `available`: what to pass to `load`, of which kind it is, where it lies, and what it is."""

    name: str
    kind: Literal["embedded", "package", "hub", "folder", "file"]
    where: str
    what: str


def load(
    source: "str | os.PathLike[str] | TransformerBridge",
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    prepend_bos: bool = True,
) -> Model:
    """A checked Model from an embedded name, a packaged one, a hub name, a folder, a GGUF file, or an existing
    TransformerBridge.

    An embedded name comes first ("tiny-senses"), then a packaged one ("smollm2"), then an existing folder or file or
    anything that looks like a path ("./gpt2", "~/gpt2", "a/b/c", "model.gguf"), then a hub name ("gpt2", "owner/name").
    Weights stored in another type, float16 or quantised, are computed with in `dtype`, torch.float32 or torch.float64
    or the name of one. A bridge keeps its own device and dtype and must be in raw mode. Raises ModelError or
    UnsupportedModel with one sentence that names the file and the next step.
    """
    if not isinstance(source, str | os.PathLike):
        return _checked(_from_bridge(source, prepend_bos))
    kind = next((known for known in DTYPES if dtype in (known, str(known).removeprefix("torch."))), None)
    if kind is None:
        raise InputError(f"Cannot load {source} in {dtype}: the certificate holds for torch.float32 and torch.float64.")
    where = _device(device)
    place, origin = _find(source)
    file = gguf_in(place)
    if file is not None:
        return _checked(_from_gguf(file, origin, device=where, dtype=kind, prepend_bos=prepend_bos))
    return _checked(_from_folder(place, origin, device=where, dtype=kind, prepend_bos=prepend_bos))


def untrained(model: Model, *, seed: int) -> Model:
    """A model of the same shape and tokenizer whose weights were drawn at random: what nothing was learned looks
    like.
    """
    prefix = model.config.family.prefix
    with quiet():
        bridge, drawn = boot_untrained(model.bridge, model.tokenizer, seed=seed)
    names = {name.removeprefix(prefix): tensor for name, tensor in drawn.items()}
    weights = {name: names[name] for name in model.weights}
    name = f"{model.name}, untrained"
    origin = Origin(model.origin.kind, name, None, _sha256_of_tensors(weights))
    return Model(name, bridge, model.tokenizer, model.config, weights, origin, model.device, model.dtype)


def _device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Cannot use the device {device!r} here; use 'cpu', which always works.") from error
    return chosen


def _find(source: str | os.PathLike[str]) -> tuple[Path, Origin]:
    """The folder or GGUF file behind a name or path, and its origin without the sha256, which is known after the
    checks.
    """
    text = os.fspath(source)
    if text in EMBEDDED:
        return EMBEDDED_FOLDER / text, Origin("embedded", text, None, "")
    if text in PACKAGED:
        file, version = find_packaged(text)
        return file, Origin("package", text, version, "")
    folder = Path(text).expanduser()
    if folder.is_dir():
        return folder, Origin("folder", _name_of(folder.resolve()), None, "")
    if folder.suffix == GGUF and folder.is_file():
        return folder, Origin("file", _name_of(folder.resolve().with_suffix("")), None, "")
    if isinstance(source, os.PathLike) or _looks_like_a_path(text):
        missing = "there is no such file" if folder.suffix == GGUF else "there is no such folder"
        what = "it is a file" if folder.exists() else missing
        step = (
            f"give the folder that holds config.json, the tokenizer and the safetensors, a {GGUF} file, or a name "
            f"({EMBEDDED[0]})"
        )
        raise refuse(text, what, step)
    from probe.model.hub import fetch

    folder, revision = fetch(text)
    return folder, Origin("hub", text, revision, "")


def _name_of(folder: Path) -> str:
    """The folder's name, after that of the folder around it where it says nothing by itself."""
    return (
        f"{folder.parent.name}/{folder.name}" if folder.name.lower() in UNTOLD and folder.parent.name else folder.name
    )


def _looks_like_a_path(text: str) -> bool:
    ends = (GGUF, "/", os.sep)
    return text.startswith((".", "~", "/", os.sep)) or text.endswith(ends) or text.count("/") > 1 or "\\" in text


def _from_folder(folder: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool) -> Model:
    config = read_config(folder, prepend_bos=prepend_bos)
    weights = read_checkpoint(folder, config, dtype=dtype, device=device)
    with quiet():
        check_config_file(folder)
        tokenizer = _read_tokenizer(folder, config)
        bridge = boot(folder, tokenizer, config, device=device, dtype=dtype)
    stored = stored_types(folder, config.architecture)
    known = replace(origin, sha256=sha256_of(weight_files(folder)), stored=stored)
    return Model(origin.location, bridge, tokenizer, config, weights, known, device, dtype)


def gguf_in(place: Path) -> Path | None:
    """The GGUF file that `place` is, or that it holds where it is a folder without safetensors; None where there is
    none.

    Raises ModelError for a folder of several.
    """
    if not place.is_dir():
        return place
    if (place / SINGLE).is_file() or (place / INDEX).is_file():
        return None
    held = sorted(file.name for file in place.glob(f"*{GGUF}"))
    if len(held) > 1:
        raise refuse(place, f"it holds {len(held)} GGUF files", f"give one of them, as {place / held[0]}")
    return place / held[0] if held else None


def _from_gguf(file: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool) -> Model:
    from probe.model.gguf import read_gguf_config, read_raw_config, read_tensors
    from probe.model.gguf_header import open_gguf

    opened = open_gguf(file)
    config = read_gguf_config(opened, prepend_bos=prepend_bos)
    weights = read_tensors(opened, config, dtype=dtype, device=device)
    with quiet():
        tokenizer = _read_tokenizer_beside(opened, config)
        bridge = boot_gguf(file, read_raw_config(opened), tokenizer, config, weights)
    known = replace(origin, sha256=sha256_of((file,)), stored=opened.stored)
    return Model(origin.location, bridge, tokenizer, config, weights, known, device, dtype)


def _read_tokenizer_beside(opened: "GgufFile", config: Config) -> "PreTrainedTokenizerFast":
    """The tokenizer.json that lies beside a GGUF file, or the tokenizer that the file describes."""
    from transformers import PreTrainedTokenizerFast

    from probe.model.gguf import read_gguf_tokenizer

    folder = opened.path.parent
    if not (folder / "tokenizer.json").is_file():
        return check_tokenizer(read_gguf_tokenizer(opened, config), config, where=opened.path)
    read_json(folder / "tokenizer.json")
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # broad, because tokenizers raises Exception itself for a broken file
        raise refuse(folder, f"its tokenizer cannot be read ({in_short(error)})", "save the tokenizer again") from error
    return check_tokenizer(tokenizer, config, where=opened.path)


def _read_tokenizer(folder: Path, config: Config) -> "PreTrainedTokenizerFast":
    """The fast tokenizer of `folder`, refused where transformers would quietly make up an empty one."""
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        step = "copy tokenizer.json (or vocab.json and merges.txt) of this model into the folder"
        raise refuse(folder, "its tokenizer is missing", step)
    if (folder / "tokenizer.json").is_file():
        read_json(folder / "tokenizer.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # broad, because tokenizers raises Exception itself for a broken file
        raise refuse(folder, f"its tokenizer cannot be read ({in_short(error)})", "save the tokenizer again") from error
    return check_tokenizer(tokenizer, config, where=folder)


def check_tokenizer(tokenizer: Any, config: Config, *, where: object) -> "PreTrainedTokenizerFast":
    """The tokenizer itself, once it gives character offsets, fits the embedding, and has a BOS if one is asked for."""
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise refuse(where, "its tokenizer is not a fast one and gives no character offsets", "add tokenizer.json")
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.d_vocab:
        problem = f"its tokenizer has a token {largest} and the model embeds only {config.d_vocab} tokens"
        raise refuse(where, problem, "use the tokenizer that belongs to these weights")
    try:
        ids = tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"]
    except Exception as error:  # broad, because tokenizers raises Exception itself
        problem = f"its tokenizer cannot cut a plain sentence ({in_short(error)})"
        raise refuse(where, problem, "save the tokenizer again") from error
    if not ids:
        raise refuse(where, "its tokenizer turns a plain sentence into nothing", "save the tokenizer again")
    if config.prepend_bos and tokenizer.bos_token_id is None:
        raise refuse(where, "its tokenizer has no BOS token to prepend", "pass prepend_bos=False")
    return tokenizer


def _from_bridge(bridge: Any, prepend_bos: bool) -> Model:
    config, weights = read_bridge(bridge, prepend_bos=prepend_bos)
    embedding = weights[f"{config.family.embed}.weight"]
    dtype, device = embedding.dtype, embedding.device
    if dtype not in DTYPES:
        raise refuse("the bridge", f"it runs in {dtype}", "boot it again with dtype=torch.float32")
    if bridge.tokenizer is None:
        raise refuse("the bridge", "it has no tokenizer", "boot it again with tokenizer=...")
    tokenizer = check_tokenizer(bridge.tokenizer, config, where="the bridge")
    name = _name_of(Path(str(bridge.cfg.model_name)))
    stored = str(dtype).removeprefix("torch.")
    origin = Origin("bridge", name, None, _sha256_of_tensors(weights), stored)
    return Model(name, bridge, tokenizer, config, weights, origin, device, dtype)


def _sha256_of_tensors(weights: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _checked(model: Model) -> Model:
    ids = model.tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"]
    with quiet():
        check_hooks(model, ids[: model.config.n_ctx])
    return model


def available() -> tuple[Available, ...]:
    """What `load` takes here: the embedded models, the models in the local hub cache, any other of a hub, any
    folder.
    """
    from probe.model.hub import cached_models

    packaged = [_packaged(row) for row in PACKAGED.values()]
    shipped = [Available(n, "embedded", "ships with probe", _what(EMBEDDED_FOLDER / n)) for n in EMBEDDED]
    cached = [Available(name, "hub", "in the local cache", _what(folder)) for name, folder in cached_models()]
    anything = (
        Available(
            "gpt2, gpt2-medium, owner/name", "hub", "downloaded at first use, then cached", f"any of {SUPPORTED}"
        ),
        Available("path/to/folder", "folder", "this machine", "config.json, tokenizer and safetensors of one"),
        Available(f"path/to/model{GGUF}", "file", "this machine", f"one of {GGUF_KNOWN}, quantised or not"),
    )
    return (*(row for row in (*shipped, *packaged, *cached) if row.what), *anything)


def _packaged(row: Packaged) -> Available:
    where = f"in the package {row.distribution}" if is_installed(row.name) else row.install
    return Available(row.name, "package", where, f"{row.what}, {row.licence}")


def _what(folder: Path) -> str:
    """The size of the model in `folder` in a few words, or nothing when loading would refuse it at a glance."""
    try:
        config = read_config(folder, prepend_bos=True)
    except ModelError:
        return ""
    size = f"{config.family.name}, {config.n_layers} layers x {config.n_heads} heads, d_model {config.d_model}"
    return size if has_tokenizer(folder) and has_weights(folder) else ""
