"""One door for every model: an embedded name, a hub name, a folder or an existing TransformerBridge -> Model.

Decisions that stand here: raw weights (compatibility mode changes every head's contribution), eager attention, no
remote code, safetensors only, and a self-check of the hooks on one short text before anybody sees the model.
What a folder must hold is decided in `checkpoint`, what TransformerLens must do in `bridge`, what is fetched in `hub`.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from probe.errors import InputError, ModelError
from probe.model.architectures import SUPPORTED
from probe.model.bridge import boot, boot_untrained, check_config_file, in_short, quiet, read_bridge
from probe.model.checkpoint import has_tokenizer, has_weights, read_checkpoint, sha256_of, weight_files
from probe.model.config import Config, read_config, read_json, refuse
from probe.model.hooks import check_hooks
from probe.model.model import Model
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


EMBEDDED = ("tiny-senses", "tiny-senses-bidirectional", "tiny-translator")
EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
DTYPES = (torch.float32, torch.float64)
# Names of folders that say nothing of the model in them: the folder around them is named as well.
UNTOLD = ("model", "models", "checkpoint", "weights", "output")
SHORT_TEXT = "The mole dug under the river bank."


@dataclass(frozen=True)
class Available:
    """One line of `available`: what to pass to `load`, of which kind it is, where it lies, and what it is."""

    name: str
    kind: Literal["embedded", "hub", "folder"]
    where: str
    what: str


def load(
    source: "str | os.PathLike[str] | TransformerBridge",
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    prepend_bos: bool = True,
) -> Model:
    """A checked Model from an embedded name, a hub name, a folder, or an existing TransformerBridge.

    An embedded name comes first, then an existing folder or anything that looks like a path ("./gpt2", "~/gpt2",
    "a/b/c"), then a hub name ("gpt2", "owner/name"). A bridge keeps its own device and dtype and must be in raw mode.
    Raises ModelError or UnsupportedModel with one sentence that names the file and the next step.
    """
    if not isinstance(source, str | os.PathLike):
        return _checked(_from_bridge(source, prepend_bos))
    if dtype not in DTYPES:
        raise InputError(f"Cannot load {source} in {dtype}: the certificate holds for torch.float32 and torch.float64.")
    where = _device(device)
    folder, origin = _find(source)
    return _checked(_from_folder(folder, origin, device=where, dtype=dtype, prepend_bos=prepend_bos))


def untrained(model: Model, *, seed: int) -> Model:
    """A model of the same shape and tokenizer whose weights were drawn at random: what nothing was learned looks like."""
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
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Cannot use the device {device!r} here; use 'cpu', which always works.") from error
    return found


def _find(source: str | os.PathLike[str]) -> tuple[Path, Origin]:
    """The folder behind a name or path, and its origin without the sha256, which is known after the checks."""
    text = os.fspath(source)
    if text in EMBEDDED:
        return EMBEDDED_FOLDER / text, Origin("embedded", text, None, "")
    folder = Path(text).expanduser()
    if folder.is_dir():
        return folder, Origin("folder", _name_of(folder.resolve()), None, "")
    if isinstance(source, os.PathLike) or _looks_like_a_path(text):
        what = "it is a file" if folder.exists() else "there is no such folder"
        step = f"give the folder that holds config.json, the tokenizer and the safetensors, or a name ({EMBEDDED[0]})"
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
    return (
        text.startswith((".", "~", "/", os.sep)) or text.endswith(("/", os.sep)) or text.count("/") > 1 or "\\" in text
    )


def _from_folder(folder: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool) -> Model:
    config = read_config(folder, prepend_bos=prepend_bos)
    weights = read_checkpoint(folder, config, dtype=dtype, device=device)
    with quiet():
        check_config_file(folder)
        tokenizer = _read_tokenizer(folder, config)
        bridge = boot(folder, tokenizer, config, device=device, dtype=dtype)
    known = Origin(origin.kind, origin.location, origin.revision, sha256_of(weight_files(folder)))
    return Model(origin.location, bridge, tokenizer, config, weights, known, device, dtype)


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
    if not tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"]:
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
    origin = Origin("bridge", name, None, _sha256_of_tensors(weights))
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
    """What `load` takes here: the embedded models, the models in the local hub cache, any other of a hub, any folder."""
    from probe.model.hub import cached_models

    shipped = [Available(n, "embedded", "ships with probe", _what(EMBEDDED_FOLDER / n)) for n in EMBEDDED]
    cached = [Available(name, "hub", "in the local cache", _what(folder)) for name, folder in cached_models()]
    anything = (
        Available(
            "gpt2, gpt2-medium, owner/name", "hub", "downloaded at first use, then cached", f"any of {SUPPORTED}"
        ),
        Available("path/to/folder", "folder", "this machine", "config.json, tokenizer and safetensors of one"),
    )
    return (*(row for row in (*shipped, *cached) if row.what), *anything)


def _what(folder: Path) -> str:
    """The size of the model in `folder` in a few words, or nothing when loading would refuse it at a glance."""
    try:
        config = read_config(folder, prepend_bos=True)
    except ModelError:
        return ""
    size = f"{config.family.name}, {config.n_layers} layers x {config.n_heads} heads, d_model {config.d_model}"
    return size if has_tokenizer(folder) and has_weights(folder) else ""
