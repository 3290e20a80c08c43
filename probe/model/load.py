"""The entry point for every model: from a name, a folder, a GGUF file or a model in memory to a
Model; and the weights of a model's single stack.

Every public function that takes a model begins with `model = load(model)`, so it accepts what
`load` accepts (`ModelSource`), and a Model is passed through unchanged.

This module decides: raw weights (compatibility mode changes every head's contribution), eager
attention, no code that comes with a model, safetensors or GGUF only, and a self-check of the hooks
on one short text for every new model. transformers reads the files of a folder; what it reads is
checked here: every tensor is there, finite and of the shape that the config asks for, and the
tokenizer fits.

Other modules decide the rest: `find` the meaning of a name, `gguf` the requirements of a GGUF file,
`objects` what is read from an object in memory, `bridge` the use of TransformerLens.
"""

import hashlib
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union
from weakref import WeakKeyDictionary

import torch
from safetensors import safe_open
from typing_extensions import TypeAliasType

from probe.errors import InputError, ModelError, require_flag
from probe.model.agreement import SHORT_TEXT, require_agreement, text_ids
from probe.model.architectures import WRAPPERS
from probe.model.bridge import (
    LOCAL,
    boot_model,
    boot_untrained,
    class_of_row,
    fresh_model,
    in_short,
    quiet,
    read_model,
    text_settings,
)
from probe.model.config import AUTO_MAP, config_from, read_config, read_raw_config, resolve
from probe.model.find import (
    find,
    find_tokenizer,
    name_of,
    weight_files,
)
from probe.model.hooks import check_hooks
from probe.model.model import ONE_THREAD, RESAVE, Config, Model, refuse
from probe.model.objects import (
    ModelObject,
    config_of,
    model_object_of,
    read_state,
    require_same,
    require_same_words,
    require_untouched,
    state_key,
    tensors_of,
)
from probe.model.weights import Weights, expected_shapes, stored_types, weights_of
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
# The settings of torch for products of float32 numbers, and the values that do not round factors.
PRODUCTS = (
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "cuda.matmul.fp32_precision",
)
FULL_PRECISION = ("ieee", "none")
COPY_TOKENIZER = (
    "copy tokenizer.json of this model into the folder, or what it is made from (vocab.txt, "
    "vocab.json and merges.txt, or a SentencePiece model)"
)
PASS_TOKENIZER = "pass tokenizer=, as AutoTokenizer.from_pretrained(...) gives it"
COPY = "use model = probe.load(model, {}), which copies them"
# Tokens, besides special ones, of a tokenizer that its class creates without a file.
MADE_UP = {"▁"}
# The rows of an embedding are padded to a multiple of one of these numbers. Some published models
# have more rows, which their config states.
PADDED_TO = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
# Smallest fraction of an embedding's rows with a token. Padding adds a few percent.
LEAST_KNOWN = 0.9


# The models that a public function accepts, besides wrappers of other libraries around one of the
# objects. A Union, because the classes are imported for types only and `|` does not accept a name
# in quotes. An alias with a name, so that `help` shows the name instead of the union.
ModelSource = TypeAliasType(
    "ModelSource", Union[Model, "PreTrainedModel", "TransformerBridge", str, os.PathLike[str]]
)


class Loaded(NamedTuple):
    """The Model of an object in memory.

    state, options: the state and the options with which it was made
    tokenizer: the tokenizer that the caller passed; None without one
    """

    state: tuple[object, ...]
    options: tuple[object, ...]
    model: Model
    tokenizer: Any


# An object is loaded once; it is forgotten with the object.
_LOADED: WeakKeyDictionary[Any, Loaded] = WeakKeyDictionary()


def load(
    source: ModelSource,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    prepend_bos: bool = True,
    split_special_tokens: bool = True,
) -> Model:
    """A checked Model of a name, a folder, a GGUF file or a model in memory.

    source: an embedded name ("tiny-senses") comes first, then a packaged one ("smollm2"), then an
        existing folder or file or anything that looks like a path ("./gpt2", "~/gpt2", "a/b/c",
        "model.gguf"), then a hub name ("gpt2", "owner/name") with an optional revision
        ("owner/name@step1000"). In memory: a Hugging Face model with or without adapters, a
        TransformerBridge, or another library's wrapper of one of them
    tokenizer: for a Hugging Face model whose source does not determine it, or whose embedding was
        resized; it is remembered as long as the model lives
    device, dtype: of the computation. dtype is torch.float32 (default), torch.float64 or
        torch.bfloat16, or the name of one; weights stored in another type, float16 or quantised,
        are converted. A model in memory keeps its device and dtype (float16 must be converted) and
        shares its weights, unless these options ask for others
    prepend_bos: only for GPT-2, whose tokenizer does not add BOS; no effect in other families
    split_special_tokens: whether a special token typed in the text, such as "[MASK]" or
        "<|im_start|>", is tokenised as plain characters; False for questions at a mask and for chat
        templates. It can also be set for a Model

    An object in memory stays unchanged and is loaded once: a second call with the same options
    returns the same Model, until its tensors, its config or the settings of its parts change. A
    change through `.data` is not noticed; delete the Model and pass a new object in that case.
    Adapters are merged in a copy of the tensors that they change, and they are part of the model's
    name ("gpt2 + adapter default"). A Model from before a training step is outdated; call `load`
    with the object again. Special tokens follow the tokenizer's rules, whatever the source of the
    weights.

    A Model is returned as it is. Raises InputError for options other than those it was loaded with,
    and ModelError if its bridge has since got hooks or compatibility mode. Raises ModelError or
    UnsupportedModel with the name of the file and the next step.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> model
        <Model tiny-senses: 4 layers x 4 heads, d_model 128, embedded>
        >>> probe.load(model) is model
        True
    """
    require_flag(prepend_bos, "prepend_bos", doing="Loading a model")
    require_flag(split_special_tokens, "split_special_tokens", doing="Loading a model")
    model = _load(source, tokenizer, device=device, dtype=dtype, prepend_bos=prepend_bos)
    if not isinstance(source, Model):
        require_agreement(model)
    if split_special_tokens:
        return model
    return replace(model, config=replace(model.config, split_special_tokens=False))


def _load(
    source: ModelSource,
    tokenizer: Any = None,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    prepend_bos: bool = True,
) -> Model:
    """The Model of a source, which was not compared with its library."""
    _require_unchanged_torch()
    if isinstance(source, str | os.PathLike):
        _require_named(source, tokenizer)
        return _from_name(source, device=device, dtype=dtype, prepend_bos=prepend_bos)
    if isinstance(source, Model):
        _require_as_it_is(source, tokenizer, device=device, dtype=dtype, prepend_bos=prepend_bos)
        with ONE_THREAD:  # the run of another thread puts its hooks on the bridge
            require_untouched(source)
        return source
    model_object = model_object_of(source)
    return _from_object(
        model_object, tokenizer, device=device, dtype=dtype, prepend_bos=prepend_bos
    )


def _require_unchanged_torch() -> None:
    """Raises InputError if torch itself is set to compute differently from the model's parts."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputError(
            "Cannot run a model under torch.autocast: parts of it would be computed in another "
            'dtype than the reported one. Leave the block, or load it with dtype="bfloat16".'
        )
    for name in PRODUCTS:
        precision = attrgetter(name)(torch.backends)
        if precision not in FULL_PRECISION:
            raise InputError(
                f"Cannot run a model while torch may round the factors of float32 products to "
                f"{precision} (torch.backends.{name}): results would depend on the processor. Call "
                f'torch.set_float32_matmul_precision("highest"), or set torch.backends.{name} = '
                '"ieee".'
            )
    modules = torch.nn.modules.module
    if modules._global_forward_hooks or modules._global_forward_pre_hooks:
        raise InputError(
            "Cannot run a model with a hook on every module of the process "
            "(torch.nn.modules.module.register_module_forward_hook or the like): it changes the "
            "computation without changing the weights. Remove the hook."
        )


def _require_named(source: str | os.PathLike[str], tokenizer: Any) -> None:
    """Raises InputError for an empty name, and for a tokenizer, which only applies to an object."""
    if tokenizer is not None:
        raise InputError(
            f"Cannot load {source} with tokenizer=: a name, a folder and a file have a tokenizer. "
            "Omit it."
        )
    if not os.fspath(source):
        raise InputError(
            "Cannot load a model without a name: got an empty text, expected a name, a folder or a "
            "file. Give one."
        )


def _from_name(
    source: str | os.PathLike[str],
    *,
    device: str | torch.device | None,
    dtype: torch.dtype | str | None,
    prepend_bos: bool,
) -> Model:
    """The Model of a name, a folder or a file."""
    loaded_dtype = _dtype(torch.float32 if dtype is None else dtype, source)
    loaded_device = _device("cpu" if device is None else device)
    path, origin = find(source)
    read = _from_folder if path.is_dir() else _from_gguf
    model = read(path, origin, device=loaded_device, dtype=loaded_dtype, prepend_bos=prepend_bos)
    return _checked(model)


def as_model(
    source: ModelSource, *, device: str | None = None, dtype: torch.dtype | str | None = None
) -> Model:
    """The Model of a source. Unlike `load`, it does not check a Model's bridge for hooks, and does
    not compare a new model with its library: it is for functions that do not run the model, and for
    the certificate, which shows these differences.
    """
    return source if isinstance(source, Model) else _load(source, device=device, dtype=dtype)


def _require_as_it_is(
    model: Model,
    tokenizer: Any,
    *,
    device: str | torch.device | None,
    dtype: torch.dtype | str | None,
    prepend_bos: bool,
) -> None:
    """Raises InputError for options that differ from the options of a loaded Model."""
    difference = ""
    if dtype is not None and _dtype(dtype, model.name) != model.dtype:
        difference = f"dtype={dtype!r}, and it computes in {model.dtype}"
    elif device is not None and _device(device) != model.device:
        difference = f"device={device!r}, and it is on {str(model.device)!r}"
    elif tokenizer is not None and tokenizer is not model.tokenizer:
        difference = "another tokenizer"
    elif not prepend_bos and model.config.prepend_bos:
        difference = "prepend_bos=False, and it puts one in front"
    if difference:
        raise InputError(
            f"Cannot load the Model {model.name} again: got {difference}, expected its options or "
            "none. Load its source with the new options."
        )


def read_weights(model: ModelSource | Weights) -> Weights:
    """The weights of a model's single stack, in its dtype, layer by layer and head by head.
    Weights are returned as they are.

    The tensors are views of the model's, except output matrices of models whose config scales
    writes (Granite). Raises UnsupportedModel for an encoder-decoder, which has
    several stacks.

    Example:
        >>> from probe.model.load import read_weights
        >>> read_weights("tiny-senses").blocks[0].w_q.shape  # head d_model d_head
        torch.Size([4, 128, 32])
    """
    if isinstance(model, Weights):
        return model
    return weights_of(load(model))


def _dtype(dtype: torch.dtype | str, source: object) -> torch.dtype:
    for supported in DTYPES:
        if dtype in (supported, str(supported).removeprefix("torch.")):
            return supported
    raise InputError(
        f"Cannot load {source} in {dtype}: the certificate holds for torch.float32, torch.float64 "
        "and torch.bfloat16."
    )


def untrained(model: Model, *, seed: int) -> Model:
    """A model of the same shape and tokenizer with random weights, as a baseline without
    training. It is made once and kept as long as the model.
    """
    with ONE_THREAD:  # the workers of a survey may ask for it at the same time
        of_model = _UNTRAINED.setdefault(model, {})
        if seed not in of_model:
            of_model[seed] = _make_untrained(model, seed)
        return of_model[seed]


_UNTRAINED: WeakKeyDictionary[Model, dict[int, Model]] = WeakKeyDictionary()


def _make_untrained(model: Model, seed: int) -> Model:
    with quiet():
        bridge, tensors = boot_untrained(model.bridge, model.tokenizer, seed=seed)
    names = {model.config.family.raw_name(name): tensor for name, tensor in tensors.items()}
    weights = {name: names[name] for name in model.weights}
    name = f"{model.name}, untrained"
    origin = Origin(model.origin.kind, name, None, _sha256_of_tensors(weights))
    return Model(
        name, bridge, model.tokenizer, model.config, weights, origin, model.device, model.dtype
    )


def _device(device: str | torch.device) -> torch.device:
    try:
        torch_device = torch.device(device)
        torch.empty(1, device=torch_device).cpu()  # fails where a device holds no numbers
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(
            f"Cannot use the device {device!r}: PyTorch cannot store numbers on it here. Use "
            "'cpu', which always works."
        ) from error
    return torch_device


def _from_folder(
    folder: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool
) -> Model:
    config = read_config(folder, prepend_bos=prepend_bos)
    _require_room(folder, config)
    with quiet():
        tokenizer = check_tokenizer(_read_tokenizer(folder), config, where=folder)
        hf_model = read_model(folder, config, dtype=dtype).to(device)
    state, _ = read_state(hf_model)
    _require_ties(state, config, where=folder)
    weights = tensors_of(state, config, where=folder)
    how = [f"the text part of {WRAPPERS[config.wrapper].architecture}"] if config.wrapper else []
    if read_raw_config(folder).get(AUTO_MAP):
        how.append("as its class of transformers, without the code that comes with it")
    full_origin = replace(
        origin,
        sha256=sha256_of(weight_files(folder)),
        stored=_stored_in(folder, weights, config),
        read=", ".join(how),
    )
    weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    # Copies, because TransformerLens folds these into the product in front of them.
    weights |= {
        name: weights[name].clone() for name in config.family.optional_weights if name in weights
    }
    with quiet():
        if config.wrapper:
            settings = text_settings(hf_model.config, config)
            hf_model = fresh_model(class_of_row(config), settings, weights, config, where=folder)
        bridge = boot_model(hf_model, str(folder), tokenizer)
    return Model(origin.location, bridge, tokenizer, config, weights, full_origin, device, dtype)


def _require_room(folder: Path, config: Config) -> None:
    """Raises ModelError for a config that asks for more numbers than the files can hold, before
    transformers allocates memory for them.
    """
    size = sum(file.stat().st_size for file in weight_files(folder))
    wanted = 0
    for _, shape in expected_shapes(config):
        wanted += math.prod(shape)
        if wanted > size:
            problem = f"config.json asks for more numbers than its {size:,} bytes of safetensors"
            step = "copy or download every file again, or the config.json that belongs to them"
            raise refuse(folder, problem, step)


def _require_ties(state: Mapping[str, torch.Tensor], config: Config, *, where: object) -> None:
    """Raises ModelError for a stored copy of the embedding with other numbers, which transformers
    then does not tie.
    """
    embed = f"{config.family.embed}.weight"
    tensors = {config.raw_name(name): tensor for name, tensor in state.items()}
    for name, tensor in tensors.items():
        is_tied_head = config.tied and name == f"{config.family.unembed}.weight"
        is_copy = name.endswith("embed_tokens.weight") or (is_tied_head and config.has_lm_head)
        if is_copy and tensor.data_ptr() != tensors[embed].data_ptr():
            problem = f"{name} differs from {embed} although config.json ties them"
            step = 'write "tie_word_embeddings": false into config.json if the two may differ'
            raise refuse(where, problem, step)


def _stored_in(folder: Path, weights: Mapping[str, torch.Tensor], config: Config) -> str:
    """The element types of the weights in the files of a folder, in the form of `stored_types`.

    Raises ModelError for types without plain floats, and for a weight that is stored twice, of
    which transformers reads one.
    """
    kinds: dict[str, str] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            for full_name in sorted(opened.keys()):
                name = config.raw_name(full_name)
                if name in kinds:
                    raise refuse(folder, f"{name} is there twice ({file.name})", RESAVE)
                if name in weights:
                    kinds[name] = opened.get_slice(full_name).get_dtype()
                    if kinds[name] not in TYPES:
                        problem = f"{name} is stored as {kinds[name]}"
                        raise refuse(folder, problem, "load a plain float checkpoint")
    return stored_types(kinds.values(), TYPES)


def _from_gguf(
    file: Path, origin: Origin, *, device: torch.device, dtype: torch.dtype, prepend_bos: bool
) -> Model:
    from probe.model.gguf import GgufFile, read_raw_config, read_tensors
    from probe.model.gguf_tokenizer import read_gguf_tokenizer

    opened = GgufFile(file)
    raw = read_raw_config(opened)
    settings = resolve(raw, file)
    architecture = raw["architectures"][0]
    config = config_from(
        raw, where=file, architecture=architecture, prepend_bos=prepend_bos, resolved=settings
    )
    weights = read_tensors(opened, config, dtype=dtype, device=device)
    with quiet():
        if (file.parent / "tokenizer.json").is_file():
            read = _read_tokenizer(file.parent, "PreTrainedTokenizerFast")
        else:
            read = read_gguf_tokenizer(opened, config)
        tokenizer = check_tokenizer(read, config, where=file)
        hf_model = fresh_model(class_of_row(config), settings, weights, config, where=file)
        bridge = boot_model(hf_model.to(device), str(file), tokenizer)
    full_origin = replace(origin, sha256=sha256_of((file,)), stored=opened.stored, file=file.name)
    return Model(origin.location, bridge, tokenizer, config, weights, full_origin, device, dtype)


def _read_tokenizer(folder: Path, reader: str = "AutoTokenizer") -> Any:
    """The tokenizer files of `folder`, read by a class of transformers. Raises ModelError if
    they cannot be read.
    """
    import transformers

    try:
        tokenizer = getattr(transformers, reader).from_pretrained(folder, **LOCAL)
    except Exception as error:  # broad, because tokenizers raises Exception for a broken file
        problem = f"its tokenizer cannot be read ({in_short(error)})"
        raise refuse(folder, problem, COPY_TOKENIZER) from error
    # Where a class finds no file, it makes up a tokenizer of special tokens.
    is_fast = isinstance(tokenizer, transformers.PreTrainedTokenizerFast)
    if is_fast and tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys() <= MADE_UP:
        kind = type(tokenizer).__name__
        problem = f"transformers reads its tokenizer as a {kind}, which finds no vocabulary there"
        raise refuse(folder, problem, COPY_TOKENIZER)
    return tokenizer


def check_tokenizer(tokenizer: Any, config: Config, *, where: object) -> "PreTrainedTokenizerFast":
    """The tokenizer itself. Raises ModelError unless it provides character offsets, fits the
    embedding, and has a BOS if one is requested.
    """
    from transformers import MarianTokenizer, PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast | MarianTokenizer):
        raise refuse(
            where,
            f"its tokenizer ({type(tokenizer).__name__}) is not a fast one of transformers and "
            "gives no character offsets",
            "add tokenizer.json, or wrap what you hold in PreTrainedTokenizerFast",
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


def _from_object(
    model_object: ModelObject,
    tokenizer: Any,
    *,
    device: str | torch.device | None,
    dtype: torch.dtype | str | None,
    prepend_bos: bool,
) -> Model:
    """The Model of an object in memory; the earlier one if the object has not changed."""
    own_device = None if device is None else _device(device)
    own_dtype = None if dtype is None else _dtype(dtype, model_object.label)
    options = (own_device, own_dtype, prepend_bos)
    state = state_key(model_object)
    is_given = tokenizer is not None
    earlier = _LOADED.get(model_object.original)
    if earlier is not None:
        as_it_was = (earlier.state, earlier.options) == (state, options)
        as_it_was &= not earlier.model.bridge.compatibility_mode
        if as_it_was and tokenizer in (None, earlier.model.tokenizer):
            return _load(earlier.model)
        if tokenizer is None:  # need be given only once
            tokenizer = earlier.tokenizer
    read = _unfolded if model_object.folded else _shared
    with quiet():
        model = read(
            model_object, tokenizer, device=own_device, dtype=own_dtype, prepend_bos=prepend_bos
        )
    # One that was taken or given before is held to a new size of the embedding.
    if not is_given and (earlier is None or earlier.model.config.d_vocab != model.config.d_vocab):
        _require_unresized(model_object, model)
    _LOADED[model_object.original] = Loaded(state, options, model, tokenizer)
    return model


def _shared(
    model_object: ModelObject,
    tokenizer: Any,
    *,
    device: torch.device | None,
    dtype: torch.dtype | None,
    prepend_bos: bool,
) -> Model:
    """A Model around the tensors of an object."""
    state, adapters = read_state(model_object.original)
    config = config_of(model_object, state, prepend_bos=prepend_bos)
    weights = tensors_of(
        state, config, where=model_object.label, named_modules=model_object.original.named_modules()
    )
    stored = stored_types((str(t.dtype).removeprefix("torch.") for t in weights.values()), {})
    dtype = dtype or _own_dtype(model_object, weights)
    devices = {tensor.device for tensor in weights.values()}
    if len(devices) > 1 and device is None:
        problem = f"its weights lie on {len(devices)} devices"
        raise refuse(model_object.label, problem, COPY.format("device=..."))
    weights = {name: tensor.to(device, dtype) for name, tensor in weights.items()}
    state_tensors = {
        name: tensor.to(device, dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
    own_tokenizer = check_tokenizer(
        _tokenizer_of(model_object, tokenizer, config), config, where=model_object.label
    )
    if tokenizer is not None:
        _require_own_tokenizer(model_object, tokenizer, config)
    is_own = config.has_lm_head and not config.wrapper
    model_class = type(model_object.original) if is_own else class_of_row(config)
    settings = text_settings(model_object.original.config, config)
    fresh = fresh_model(
        model_class, settings, weights, config, where=model_object.label, extra=state_tensors
    )
    fresh = fresh.to(device or devices.pop())
    require_same(model_object, fresh, config, text_ids(own_tokenizer, config, settings))
    bridge = boot_model(fresh, model_object.source or model_object.name, own_tokenizer)
    origin = Origin(
        "in memory",
        model_object.name,
        None,
        _sha256_of_tensors(weights),
        stored,
        read=_how(model_object, adapters, config),
    )
    name = " + adapter ".join((model_object.name, *adapters))
    model = Model(name, bridge, own_tokenizer, config, weights, origin, fresh.device, dtype)
    return _checked(model)


def _how(model_object: ModelObject, adapters: tuple[str, ...], config: Config) -> str:
    """A description of what was read from an object, for the provenance of a result."""
    kind = type(model_object.original).__name__
    whole = kind if model_object.bridge is None else f"{kind} in a TransformerBridge"
    whole = f"the text part of {whole}" if config.wrapper else whole
    return f"{whole}, adapters merged: {', '.join(adapters)}" if adapters else whole


def _own_dtype(model_object: ModelObject, weights: Mapping[str, torch.Tensor]) -> torch.dtype:
    """The dtype of an object's weights."""
    dtypes = sorted({tensor.dtype for tensor in weights.values()}, key=str)
    if len(dtypes) == 1 and dtypes[0] in DTYPES:
        return dtypes[0]
    problem = f"its weights are in {' and '.join(map(str, dtypes))}"
    raise refuse(model_object.label, problem, COPY.format("dtype=torch.float32"))


def _tokenizer_of(model_object: ModelObject, argument: Any, config: Config) -> Any:
    """The tokenizer passed with an object, the one stored with it, or the one of its folder or
    hub name.
    """
    if isinstance(argument, str | os.PathLike):
        problem = f"tokenizer={os.fspath(argument)!r} is a name"
        step = f"pass what AutoTokenizer.from_pretrained({os.fspath(argument)!r}) returns"
        raise refuse(model_object.label, problem, step)
    if argument is not None:
        return argument
    if model_object.tokenizer is not None:
        return _with_own_rules(model_object, config)
    folder = find_tokenizer(model_object.source)
    if folder is None:
        if model_object.bridge is not None:
            raise refuse(
                model_object.label, "it has no tokenizer", "boot it again with tokenizer=..."
            )
        raise refuse(model_object.label, "its tokenizer is unknown", PASS_TOKENIZER)
    return _read_tokenizer(folder)


def _with_own_rules(model_object: ModelObject, config: Config) -> Any:
    """The tokenizer stored with an object.

    A bridge's tokenizer is read again from its source, because TransformerLens reads it with
    add_bos_token=True, which replaces its rules about special tokens. A tokenizer that was made in
    memory is not affected.
    """
    tokenizer = model_object.tokenizer
    stated = getattr(tokenizer, "init_kwargs", {})
    is_changed = model_object.bridge is not None and stated.get("add_bos_token")
    source = str(getattr(tokenizer, "name_or_path", "") or "")
    if not (is_changed and source and config.adds_special_tokens):
        return tokenizer
    folder = find_tokenizer(source)
    if folder is None:
        problem = (
            "TransformerLens made its tokenizer put a BOS in front, and the tokenizer's own rules "
            f"cannot be read from {name_of(Path(source))}, where it came from"
        )
        raise refuse(model_object.label, problem, PASS_TOKENIZER)
    return _read_tokenizer(folder)


def _require_unresized(model_object: ModelObject, model: Model) -> None:
    """Raises ModelError for an embedding whose number of rows fits neither its tokenizer, with
    or without padding, nor the model that the object came from.
    """
    rows = model.config.d_vocab
    tokens = max(model.tokenizer.get_vocab().values()) + 1
    folder = find_tokenizer(model_object.source)
    if folder is None and model_object.tokenizer is not None:  # the two came together
        return
    sizes = [-(-tokens // multiple) * multiple for multiple in PADDED_TO]
    if folder is not None:
        with suppress(ModelError):  # a folder without a config
            sizes.append(read_config(folder, prepend_bos=True).d_vocab)
    if rows not in sizes:
        problem = (
            f"its embedding has {rows:,} rows and its tokenizer {tokens:,} tokens, which padding "
            "does not explain; it may have been resized for another tokenizer"
        )
        raise refuse(model_object.label, problem, PASS_TOKENIZER)


def _require_own_tokenizer(model_object: ModelObject, tokenizer: Any, config: Config) -> None:
    """Raises ModelError for a tokenizer, passed by the caller, of another model: nearly every
    row of an embedding belongs to a token.
    """
    count = len(tokenizer)
    if count < LEAST_KNOWN * config.d_vocab:
        problem = f"the tokenizer knows {count:,} tokens and it embeds {config.d_vocab:,}"
        raise refuse(
            model_object.label, problem, "pass the tokenizer that belongs to these weights"
        )


def _unfolded(
    model_object: ModelObject,
    tokenizer: Any,
    *,
    device: torch.device | None,
    dtype: torch.dtype | None,
    prepend_bos: bool,
) -> Model:
    """The original model of a bridge in compatibility mode: read again from its source, and
    compared with the bridge, because folding preserves log-probabilities.
    """
    if not model_object.source:
        step = "give it without enable_compatibility_mode()"
        raise refuse(
            model_object.label, "it is in compatibility mode, which folds its weights", step
        )
    try:
        path, origin = find(model_object.source)
    except ModelError as error:
        problem = (
            "it is in compatibility mode, which folds its weights, and the untouched ones "
            f"cannot be read from {model_object.name}, where it came from"
        )
        raise refuse(
            model_object.label, problem, "give it without enable_compatibility_mode()"
        ) from error
    read = _from_folder if path.is_dir() else _from_gguf
    parameter = next(model_object.original.parameters())
    model = read(
        path,
        origin,
        device=device or parameter.device,
        dtype=dtype or (parameter.dtype if parameter.dtype in DTYPES else torch.float32),
        prepend_bos=prepend_bos,
    )
    ids = model.tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"]
    require_same_words(model_object, model, ids[: model.config.n_ctx])
    how = "asked for by a TransformerBridge in compatibility mode: its weights before folding"
    return _checked(replace(model, origin=replace(model.origin, read=how)))


def _sha256_of_tensors(weights: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        # as bytes, because numpy knows no bfloat16
        raw = weights[name].cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()


def _checked(model: Model) -> Model:
    ids = model.tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"]
    try:
        with quiet():
            check_hooks(model, ids[: model.config.n_ctx])
    except (RuntimeError, IndexError) as error:
        problem = f"it does not run on a short text ({in_short(error)})"
        raise refuse(model.name, problem, "correct its config") from error
    return model


def sha256_of(files: tuple[Path, ...]) -> str:
    """sha256 of the bytes of the weight files, in the given order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()
