"""One door for every model: a name, a folder, a GGUF file or an existing TransformerBridge ->
Model; and the weights of a model's one stack.

Every public function that takes a model begins with `model = load(model)`, so it takes what `load`
takes, and a Model passes through as it is. What `load` can be asked for stands in `ModelSource`.

Decisions that stand here: raw weights (compatibility mode changes every head's contribution), eager
attention, no remote code, safetensors or GGUF only, and a self-check of the hooks on one short text
before anybody sees the model. What a name stands for is decided in `find`, what a GGUF file must
hold in `gguf`, what TransformerLens must do in `bridge`; what a folder must hold before any of it
is believed, here: the sizes that the config promises are compared with those that the safetensors
headers state before memory is taken. The forward from scratch runs from the tensors read here,
which never pass through Hugging Face's model classes.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch
from safetensors import SafetensorError, safe_open

from probe.errors import InputError
from probe.model.architectures import FAMILIES, require_single
from probe.model.bridge import (
    LOCAL,
    boot,
    boot_gguf,
    boot_untrained,
    check_config_file,
    in_short,
    quiet,
    read_bridge,
)
from probe.model.find import INDEX, SINGLE, find, has_tokenizer, name_of, weight_files, weight_map
from probe.model.hooks import check_hooks
from probe.model.model import RESAVE, Config, Model, read_config, read_json, refuse
from probe.model.weights import Weights, check_finite, expected_shapes, read_stacks, stored_types
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    from probe.model.gguf import GgufFile

TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # how the first BERTs called the two of a norm
DTYPES = (torch.float32, torch.float64)
# Cuts in front of byte-level merges for which transformers' converter takes GPT-2's. SmolLM's own,
# which sets digits apart, gives the same tokens: its merges know no two digits.
LIKE_GPT2 = (None, "gpt-2", "gpt2", "default", "smollm", "mpt", "olmo", "jais", "phi-2")
GIVE_TOKENIZER = "put the tokenizer.json of this model beside the file"
SHORT_TEXT = "The mole dug under the river bank."


# Whatever a public function takes as its model. A Union, because TransformerLens is imported for
# types only and `|` cannot hold a name in quotes.
ModelSource: TypeAlias = Union[Model, "TransformerBridge", str, os.PathLike[str]]


def load(
    source: ModelSource,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    prepend_bos: bool = True,
) -> Model:
    """A checked Model of a name, a folder, a GGUF file or an existing TransformerBridge.

    An embedded name comes first ("tiny-senses"), then a packaged one ("smollm2"), then an existing
    folder or file or anything that looks like a path ("./gpt2", "~/gpt2", "a/b/c", "model.gguf"),
    then a hub name ("gpt2", "owner/name"). Weights stored in another type, float16 or quantised,
    are computed with in `dtype`, torch.float32 or torch.float64 or the name of one. A bridge keeps
    its own device and dtype and must be in raw mode; a Model comes back as it is. Raises ModelError
    or UnsupportedModel with one sentence that names the file and the next step.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> model
        <Model tiny-senses: 4 layers x 4 heads, d_model 128, embedded>
        >>> probe.load(model) is model
        True
    """
    if isinstance(source, Model):
        return source
    if not isinstance(source, str | os.PathLike):
        return _checked(_from_bridge(source, prepend_bos))
    loaded_dtype = _dtype(dtype, source)
    loaded_device = _device(device)
    path, origin = find(source)
    read = _from_folder if path.is_dir() else _from_gguf
    model = read(path, origin, device=loaded_device, dtype=loaded_dtype, prepend_bos=prepend_bos)
    return _checked(model)


def read_weights(model: ModelSource) -> Weights:
    """The weights of a model's one stack, in its own type, layer by layer and head by head.

    The tensors are views of the model's own. Raises UnsupportedModel for an encoder-decoder, which
    has several stacks.

    Example:
        >>> probe.read_weights("tiny-senses").blocks[0].w_q.shape  # head d_model d_head
        torch.Size([4, 128, 32])
    """
    model = load(model)
    require_single(model.config.architecture, "the reading of a word")
    (weights,) = read_stacks(model.weights, model.config).values()
    return weights


def _dtype(dtype: torch.dtype | str, source: object) -> torch.dtype:
    for known in DTYPES:
        if dtype in (known, str(known).removeprefix("torch.")):
            return known
    raise InputError(
        f"Cannot load {source} in {dtype}: the certificate holds for torch.float32 and "
        "torch.float64."
    )


def untrained(model: Model, *, seed: int) -> Model:
    """A model of the same shape and tokenizer with random weights: what it looks like where nothing
    was learned."""
    prefix = model.config.family.prefix
    with quiet():
        bridge, drawn = boot_untrained(model.bridge, model.tokenizer, seed=seed)
    names = {name.removeprefix(prefix): tensor for name, tensor in drawn.items()}
    weights = {name: names[name] for name in model.weights}
    name = f"{model.name}, untrained"
    origin = Origin(model.origin.kind, name, None, _sha256_of_tensors(weights))
    return Model(
        name, bridge, model.tokenizer, model.config, weights, origin, model.device, model.dtype
    )


def _device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"Cannot use the device {device!r} here; use 'cpu', which always works."
        ) from error
    return chosen


def _from_folder(
    folder: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool
) -> Model:
    config = read_config(folder, prepend_bos=prepend_bos)
    weights = read_checkpoint(folder, config, dtype=dtype, device=device)
    with quiet():
        check_config_file(folder)
        if not has_tokenizer(folder):  # transformers would quietly make up an empty one
            step = (
                "copy tokenizer.json (or vocab.json and merges.txt) of this model into the folder"
            )
            raise refuse(folder, "its tokenizer is missing", step)
        tokenizer = check_tokenizer(_read_tokenizer(folder, "AutoTokenizer"), config, where=folder)
        bridge = boot(folder, tokenizer, config, device=device, dtype=dtype)
    located = locate(folder, config.architecture)
    stored = stored_types((tensor.dtype for tensor in located.values()), TYPES)
    known = replace(origin, sha256=sha256_of(weight_files(folder)), stored=stored)
    return Model(origin.location, bridge, tokenizer, config, weights, known, device, dtype)


def _from_gguf(
    file: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool
) -> Model:
    from probe.model.gguf import open_gguf, read_gguf_config, read_raw_config, read_tensors

    opened = open_gguf(file)
    config = read_gguf_config(opened, prepend_bos=prepend_bos)
    weights = read_tensors(opened, config, dtype=dtype, device=device)
    with quiet():
        if (file.parent / "tokenizer.json").is_file():
            read = _read_tokenizer(file.parent, "PreTrainedTokenizerFast")
        else:
            read = read_gguf_tokenizer(opened, config)
        tokenizer = check_tokenizer(read, config, where=file)
        bridge = boot_gguf(file, read_raw_config(opened), tokenizer, config, weights)
    known = replace(origin, sha256=sha256_of((file,)), stored=opened.stored)
    return Model(origin.location, bridge, tokenizer, config, weights, known, device, dtype)


def read_gguf_tokenizer(opened: "GgufFile", config: Config) -> "PreTrainedTokenizerFast":
    """The tokenizer in the metadata, converted by transformers. Raises ModelError for one that it
    would get wrong."""
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        GGUF_TOKENIZER_TYPES,
    )

    kind = opened.metadata.get("tokenizer.ggml.model")
    cut = opened.metadata.get("tokenizer.ggml.pre")
    if not isinstance(opened.metadata.get("tokenizer.ggml.tokens"), list):
        raise refuse(opened.path, "it holds no tokenizer", GIVE_TOKENIZER)
    if (
        config.family.kind != "decoder"
        or not isinstance(kind, str)
        or kind not in GGUF_TOKENIZER_TYPES
    ):
        problem = f"its tokenizer is of the kind {str(kind)[:40]!r}, which is not converted"
        raise refuse(opened.path, problem, GIVE_TOKENIZER)
    if kind == "gpt2" and cut not in (*LIKE_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
        problem = f"its tokenizer cuts text by the rule {str(cut)[:40]!r}, which is not converted"
        raise refuse(opened.path, problem, GIVE_TOKENIZER)
    try:
        architecture, described, settings = get_gguf_tokenizer(str(opened.path))
        backend, _ = convert_gguf_tokenizer(architecture, described)
        own = _without_added(backend, len(described["tokens"]))
        return PreTrainedTokenizerFast(tokenizer_object=own, **settings)
    except Exception as error:  # broad, because tokenizers raises Exception itself
        raise refuse(
            opened.path, f"its tokenizer cannot be converted ({in_short(error)})", GIVE_TOKENIZER
        ) from error


def _without_added(backend: Any, known: int) -> Any:
    """Without tokens that the file does not know: the converter gives every byte-level one GPT-2's
    end of text."""
    if backend.get_vocab_size(with_added_tokens=True) <= known:
        return backend
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < known]
    return Tokenizer.from_str(json.dumps(state))


def _read_tokenizer(folder: Path, reader: str) -> Any:
    """The tokenizer files of `folder` by a class of transformers. Raises ModelError where they
    cannot be read."""
    import transformers

    if (folder / "tokenizer.json").is_file():
        read_json(folder / "tokenizer.json")
    try:
        return getattr(transformers, reader).from_pretrained(folder, **LOCAL)
    except (
        Exception
    ) as error:  # broad, because tokenizers raises Exception itself for a broken file
        raise refuse(
            folder, f"its tokenizer cannot be read ({in_short(error)})", "save the tokenizer again"
        ) from error


def check_tokenizer(tokenizer: Any, config: Config, *, where: object) -> "PreTrainedTokenizerFast":
    """The tokenizer itself, once it gives character offsets, fits the embedding, and has a BOS if
    one is asked for."""
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise refuse(
            where,
            "its tokenizer is not a fast one and gives no character offsets",
            "add tokenizer.json",
        )
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.d_vocab:
        problem = (
            f"its tokenizer has a token {largest} and the model embeds only {config.d_vocab} tokens"
        )
        raise refuse(where, problem, "use the tokenizer that belongs to these weights")
    try:
        ids = tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"]
    except Exception as error:  # broad, because tokenizers raises Exception itself
        problem = f"its tokenizer cannot cut a plain sentence ({in_short(error)})"
        raise refuse(where, problem, "save the tokenizer again") from error
    if not ids:
        raise refuse(
            where, "its tokenizer turns a plain sentence into nothing", "save the tokenizer again"
        )
    if config.prepend_bos and tokenizer.bos_token_id is None:
        raise refuse(where, "its tokenizer has no BOS token to prepend", "pass prepend_bos=False")
    return tokenizer


def _from_bridge(bridge: Any, prepend_bos: bool) -> Model:
    config, weights = read_bridge(bridge, prepend_bos=prepend_bos)
    embedding = weights[f"{config.family.embed}.weight"]
    dtype = embedding.dtype
    if dtype not in DTYPES:
        raise refuse("the bridge", f"it runs in {dtype}", "boot it again with dtype=torch.float32")
    if bridge.tokenizer is None:
        raise refuse("the bridge", "it has no tokenizer", "boot it again with tokenizer=...")
    tokenizer = check_tokenizer(bridge.tokenizer, config, where="the bridge")
    name = name_of(Path(str(bridge.cfg.model_name)))
    stored = str(dtype).removeprefix("torch.")
    origin = Origin("bridge", name, None, _sha256_of_tensors(weights), stored)
    return Model(name, bridge, tokenizer, config, weights, origin, embedding.device, dtype)


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


@dataclass(frozen=True)
class Located:
    """One tensor as a safetensors header states it: where it lies, under which name, its shape and
    element type."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def locate(folder: Path, architecture: str) -> dict[str, Located]:
    """Every tensor that the headers state, by name without its family's prefix; no tensor data is
    read."""
    located: dict[str, Located] = {}
    for file in weight_files(folder):
        for tensor in _header(file):
            name = _short(tensor.name, architecture)
            if name in located:
                raise refuse(
                    folder,
                    f"{name} is there twice ({located[name].file.name} and {file.name})",
                    RESAVE,
                )
            located[name] = tensor
    if not (folder / SINGLE).is_file():
        lacking = [name for name in weight_map(folder) if _short(name, architecture) not in located]
        if lacking:
            raise refuse(folder, f"{INDEX} promises {lacking[0]}, and no shard holds it", RESAVE)
    return located


def _short(name: str, architecture: str) -> str:
    plain = name.removeprefix(FAMILIES[architecture].prefix)
    return next(
        (plain.removesuffix(old) + new for old, new in OLD_NAMES.items() if plain.endswith(old)),
        plain,
    )


def _header(file: Path) -> list[Located]:
    try:
        with safe_open(file, framework="pt") as opened:
            located = []
            for name in sorted(opened.keys()):
                header = opened.get_slice(name)
                located.append(Located(file, name, tuple(header.get_shape()), header.get_dtype()))
            return located
    except (SafetensorError, OSError) as error:
        raise refuse(
            file.parent, f"{file.name} is corrupt ({str(error)[:80]})", "copy or download it again"
        ) from error


def _wanted(located: Mapping[str, Located], config: Config, *, where: object) -> list[str]:
    """The tensors to read, headers held against the config: all there, of the right shape, floats,
    and all known.

    Others that no formula reads may be there: copies of a tied embedding (which are checked),
    buffers, other heads.
    """
    wanted = []
    family = config.family
    for name, shape in expected_shapes(config, located):
        if name not in located:
            raise refuse(where, f"the tensor {name} is missing from its safetensors", RESAVE)
        if located[name].shape != shape:
            stored = list(located[name].shape)
            problem = f"{name} has shape {stored} where config.json asks for {list(shape)}"
            raise refuse(where, problem, "use the config.json that belongs to these weights")
        if located[name].dtype not in TYPES:
            raise refuse(
                where, f"{name} is stored as {located[name].dtype}", "load a plain float checkpoint"
            )
        wanted.append(name)
    ignored = (f"{family.unembed}.weight", *family.ignored)
    for name in sorted(located.keys() - set(wanted)):
        if not any(fnmatchcase(name, known) for known in ignored):
            raise refuse(
                where,
                f"{name} is not a tensor of the {family.name} that config.json describes",
                RESAVE,
            )
    return wanted


def read_checkpoint(
    folder: Path,
    config: Config,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> dict[str, torch.Tensor]:
    """The raw tensors by Hugging Face name without the family's prefix, cast to `dtype` on
    `device`, all finite.

    The unembedding ("lm_head.weight") is among them only when it is not tied. Raises ModelError
    naming file and tensor.
    """
    located = locate(folder, config.architecture)
    weights = {
        name: _read(located[name], dtype).to(device)
        for name in _wanted(located, config, where=folder)
    }
    family = config.family
    embed = family.embed + ".weight"
    for name in located.keys() - weights.keys():
        copies = name.endswith("embed_tokens.weight") or (
            name == family.unembed + ".weight" and config.tied
        )
        if copies and not torch.equal(_read(located[name], dtype), weights[embed].cpu()):
            step = (
                'write "tie_word_embeddings": false into config.json if the two are meant to differ'
            )
            raise refuse(
                folder, f"{name} differs from {embed} although config.json ties them", step
            )
    return weights


def _read(tensor: Located, dtype: torch.dtype) -> torch.Tensor:
    try:
        with safe_open(tensor.file, framework="pt") as opened:
            values: torch.Tensor = opened.get_tensor(tensor.name).to(dtype)
    except (SafetensorError, OSError) as error:
        problem = f"{tensor.file.name} is corrupt at {tensor.name} ({str(error)[:80]})"
        raise refuse(tensor.file.parent, problem, "copy or download it again") from error
    check_finite(values, tensor.name.removeprefix("transformer."), where=tensor.file.parent)
    return values


def sha256_of(files: tuple[Path, ...]) -> str:
    """sha256 of the bytes of the weight files, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()
