"""One door for every model: an embedded, packaged or hub name, a folder, a GGUF file or an existing TransformerBridge
-> Model.

Decisions that stand here: raw weights (compatibility mode changes every head's contribution), eager attention, no
remote code, safetensors or GGUF only, and a self-check of the hooks on one short text before anybody sees the model.
What a folder must hold is decided in `checkpoint`, what a GGUF file must in `gguf_header` and `gguf`, what
TransformerLens must do in `bridge`, what a name stands for in `find`.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from probe.errors import InputError
from probe.model.bridge import boot, boot_gguf, boot_untrained, check_config_file, in_short, quiet, read_bridge
from probe.model.checkpoint import has_tokenizer, read_checkpoint, sha256_of, stored_types, weight_files
from probe.model.config import Config, read_config, read_json, refuse
from probe.model.find import find, name_of
from probe.model.hooks import check_hooks
from probe.model.model import Model
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    from probe.model.gguf_header import GgufFile

DTYPES = (torch.float32, torch.float64)
SHORT_TEXT = "The mole dug under the river bank."


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
    place, origin = find(source)
    read = _from_folder if place.is_dir() else _from_gguf
    return _checked(read(place, origin, device=where, dtype=kind, prepend_bos=prepend_bos))


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


def _from_folder(folder: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool) -> Model:
    config = read_config(folder, prepend_bos=prepend_bos)
    weights = read_checkpoint(folder, config, dtype=dtype, device=device)
    with quiet():
        check_config_file(folder)
        tokenizer = _tokenizer_of_folder(folder, config)
        bridge = boot(folder, tokenizer, config, device=device, dtype=dtype)
    stored = stored_types(folder, config.architecture)
    known = replace(origin, sha256=sha256_of(weight_files(folder)), stored=stored)
    return Model(origin.location, bridge, tokenizer, config, weights, known, device, dtype)


def _from_gguf(file: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool) -> Model:
    from probe.model.gguf import read_gguf_config, read_raw_config, read_tensors
    from probe.model.gguf_header import open_gguf

    opened = open_gguf(file)
    config = read_gguf_config(opened, prepend_bos=prepend_bos)
    weights = read_tensors(opened, config, dtype=dtype, device=device)
    with quiet():
        tokenizer = _tokenizer_of_gguf(opened, config)
        bridge = boot_gguf(file, read_raw_config(opened), tokenizer, config, weights)
    known = replace(origin, sha256=sha256_of((file,)), stored=opened.stored)
    return Model(origin.location, bridge, tokenizer, config, weights, known, device, dtype)


def _tokenizer_of_gguf(opened: "GgufFile", config: Config) -> "PreTrainedTokenizerFast":
    """The tokenizer.json in the folder of a GGUF file, or the tokenizer that the file describes."""
    from transformers import PreTrainedTokenizerFast

    from probe.model.gguf import read_gguf_tokenizer

    folder = opened.path.parent
    there = (folder / "tokenizer.json").is_file()
    tokenizer = _read_tokenizer(folder, PreTrainedTokenizerFast) if there else read_gguf_tokenizer(opened, config)
    return check_tokenizer(tokenizer, config, where=opened.path)


def _tokenizer_of_folder(folder: Path, config: Config) -> "PreTrainedTokenizerFast":
    """The fast tokenizer of `folder`, refused where transformers would quietly make up an empty one."""
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        step = "copy tokenizer.json (or vocab.json and merges.txt) of this model into the folder"
        raise refuse(folder, "its tokenizer is missing", step)
    return check_tokenizer(_read_tokenizer(folder, AutoTokenizer), config, where=folder)


def _read_tokenizer(folder: Path, reader: Any) -> Any:
    """The tokenizer files of `folder` by a class of transformers. Raises ModelError where they cannot be read."""
    if (folder / "tokenizer.json").is_file():
        read_json(folder / "tokenizer.json")
    try:
        return reader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # broad, because tokenizers raises Exception itself for a broken file
        raise refuse(folder, f"its tokenizer cannot be read ({in_short(error)})", "save the tokenizer again") from error


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
    name = name_of(Path(str(bridge.cfg.model_name)))
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
