"""Everything that touches TransformerLens while a model is loaded: booting, reading a bridge back,
trusting its hooks.

Apart from `load`, which reads files only, so that each side of the certificate has its own way to
the weights.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from probe.errors import ModelError
from probe.model.architectures import FAMILIES
from probe.model.model import Config, Model, config_from, refuse
from probe.model.weights import check_finite, expected_shapes

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


RENAMED = {"embed_out.weight": "lm_head.weight"}  # what files call otherwise than the class does
# Nothing is fetched, and no code of others is run.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
READ = LOCAL | {"attn_implementation": "eager", "output_loading_info": True}


def check_config_file(folder: Path) -> None:
    """Raises ModelError when transformers cannot read config.json; else the tokenizer would be
    blamed for it."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder, **LOCAL)
    except Exception as error:  # broad, because its validation raises direct children of Exception
        problem = f"transformers refuses its config.json ({in_short(error)})"
        raise refuse(folder, problem, "correct that entry or take the original file") from error


def boot(
    folder: Path, tokenizer: Any, config: Config, *, device: torch.device, dtype: torch.dtype
) -> "TransformerBridge":
    """Hugging Face's model inside TransformerLens's bridge, raw mode.

    A checkpoint without language-model head gets a random one, the same each time: the bridge knows
    no other form.
    """
    import transformers

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model_class = getattr(transformers, config.family.architectures[0])
            model, info = model_class.from_pretrained(
                folder, use_safetensors=True, dtype=dtype, **READ
            )
    # whatever reading a checkpoint raises
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise refuse(
            folder, f"transformers refuses it ({in_short(error)})", "save it again"
        ) from error
    _require_whole(info, config, where=folder)
    return _wrap(model.to(device), str(folder), tokenizer)


def boot_gguf(
    file: Path,
    raw: Mapping[str, Any],
    tokenizer: Any,
    config: Config,
    weights: Mapping[str, torch.Tensor],
) -> "TransformerBridge":
    """The same from a GGUF file, read a second time, by transformers' own reader, where that knows
    the architecture.

    `raw` is the config in Hugging Face's keys. Other architectures are filled with `weights`, so
    that only the formulas are checked by two sides. The model is a fresh one: what the reader
    returns calls itself quantised.
    """
    import transformers
    from transformers.initialization import no_init_weights

    family = config.family
    embedding = weights[f"{family.embed}.weight"]
    model_class: Any = getattr(transformers, family.architectures[0])
    try:
        settings = model_class.config_class(
            **{key: value for key, value in raw.items() if key != "model_type"}
        )
        if family.gguf and family.gguf.transformers:
            state = _read_by_transformers(file, model_class, settings, config, embedding.dtype)
            with no_init_weights():  # every weight is replaced; drawing them takes seconds
                model = model_class._from_config(settings, attn_implementation="eager")
        else:
            state = {name: tensor.clone() for name, tensor in _full_names(weights, config).items()}
            model = _drawn(model_class, settings, seed=0)
        info = model.load_state_dict(state, strict=False, assign=True)
    except ModelError:
        raise
    # broad, because its readers and validators raise direct children of Exception
    except Exception as error:
        raise refuse(
            file, f"transformers refuses it ({in_short(error)})", "convert the model to GGUF again"
        ) from error
    model.tie_weights()
    tied = {f"{family.unembed}.weight", "lm_head.weight"} if config.tied else set()
    missing = [name for name in info.missing_keys if name not in (*tied, *family.ignored)]
    _require_whole(
        {"missing_keys": missing, "mismatched_keys": info.unexpected_keys}, config, where=file
    )
    return _wrap(model.to(embedding.device, embedding.dtype).eval(), str(file), tokenizer)


def _read_by_transformers(
    file: Path, model_class: Any, settings: Any, config: Config, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """All weights as transformers reads them, without its bar, its map of names made once instead
    of once a module."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reader

    once = cache(gguf.get_tensor_name_map)
    with (
        patch.object(gguf, "get_tensor_name_map", once),
        patch.object(reader, "tqdm", lambda items, **_: items),
    ):
        model, info = model_class.from_pretrained(
            file.parent, gguf_file=file.name, config=settings, dtype=dtype, **READ
        )
    _require_whole(info, config, where=file)
    return dict(model.state_dict())


def _require_whole(info: Mapping[str, Any], config: Config, *, where: Path) -> None:
    """Raises ModelError when transformers left a weight out; a head that the checkpoint never had
    is not one."""
    heads = () if config.has_head else (*config.family.head, config.family.unembed)
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        reported = [
            name for name in info.get(kind, ()) if not (heads and str(name).startswith(heads))
        ]
        if reported:
            raise refuse(
                where,
                f"transformers reports {kind.replace('_', ' ')} {min(reported)}",
                "save it again",
            )


def _drawn(model_class: Any, config: Any, *, seed: int) -> Any:
    """A fresh model with weights drawn from the seed; the random numbers of the caller go on as
    they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class._from_config(config, attn_implementation="eager")


def _full_names(weights: Mapping[str, torch.Tensor], config: Config) -> dict[str, torch.Tensor]:
    """Our weights by the names that Hugging Face's class gives them."""
    family = config.family
    # a head stands beside what has the family's prefix
    without_prefix = (*family.head, *family.optional, family.unembed)
    full = {}
    for name, tensor in weights.items():
        if name.startswith(without_prefix):
            full[RENAMED.get(name, name)] = tensor
        else:
            full[family.prefix + name] = tensor
    return full


def boot_untrained(
    like: "TransformerBridge", tokenizer: Any, *, seed: int
) -> "tuple[TransformerBridge, dict[str, Any]]":
    """A bridge of the same shape with weights drawn at random, and those weights by Hugging Face
    name."""
    original = like.original_model
    held = next(like.parameters())
    model = _drawn(type(original), original.config, seed=seed).to(held.device, held.dtype)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    weights |= {ours: weights[theirs] for ours, theirs in RENAMED.items() if theirs in weights}
    return _wrap(model, "untrained", tokenizer), weights


def plain_model(model: Model) -> torch.nn.Module:
    """A fresh Hugging Face model with no hooks, filled from the same raw weights."""
    original = model.bridge.original_model
    with quiet():
        plain = _drawn(type(original), original.config, seed=0)
    plain.load_state_dict(_full_names(model.weights, model.config), strict=False, assign=True)
    plain.tie_weights()
    if not model.config.tied:
        # transformers ties an untied T5 all the same, and leaves out the scale of the tied ones
        unembedding = model.weights[f"{model.config.family.unembed}.weight"]
        plain.get_output_embeddings().weight = torch.nn.Parameter(unembedding)
    return plain.to(model.device, model.dtype).eval()


def _wrap(model: Any, name: str, tokenizer: Any) -> "TransformerBridge":
    from transformer_lens.model_bridge import TransformerBridge

    # TransformerLens would read a tokenizer without add_bos_token again from where it came, which
    # may be gone by now.
    own = copy.deepcopy(tokenizer)
    own.init_kwargs |= {"add_bos_token": True, "name_or_path": name}
    stated = model.config.architectures
    # TransformerLens looks its adapter up by this name, which a headless checkpoint has otherwise
    model.config.architectures = [FAMILIES[model.config.model_type].adapter or type(model).__name__]
    bridge = TransformerBridge.boot_transformers(
        name, hf_model=model, tokenizer=own, device=str(model.device), dtype=model.dtype
    )
    # it says whether there was a head, also to who loads this bridge again
    model.config.architectures = stated
    return bridge.eval().requires_grad_(False)


def in_short(error: BaseException) -> str:
    """What a library said, on one line that fits into a sentence of ours."""
    return " ".join((str(error) or type(error).__name__).split())[:120].rstrip(". ")


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the libraries' warnings, log lines and loading bars from the user; restores everything
    on leaving."""
    import transformers.utils.logging as bars

    loggers = [
        logging.getLogger(name)
        for name in ("", "transformers", "transformer_lens", "huggingface_hub")
    ]
    levels = {logger: logger.level for logger in loggers}
    handlers = list(logging.getLogger().handlers)
    had_bars = bars.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            bars.disable_progress_bar()
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)
            logging.getLogger().handlers[:] = handlers
            if had_bars:
                bars.enable_progress_bar()


def read_bridge(bridge: Any, *, prepend_bos: bool) -> tuple[Config, dict[str, torch.Tensor]]:
    """Config and raw tensors of an existing bridge, by Hugging Face name without the family's
    prefix.

    Raises ModelError for anything but an untouched model in raw mode, in evaluation, with finite
    weights.
    """
    from transformer_lens.model_bridge import TransformerBridge

    if not isinstance(bridge, TransformerBridge):
        kind = type(bridge).__name__
        raise refuse(
            f"a {kind}",
            "only a name, a folder or a TransformerBridge can be loaded",
            "give one of these",
        )
    _check_raw(bridge)
    original = bridge.original_model
    raw = original.config.to_dict()
    architecture = type(original).__name__
    family = FAMILIES.get(str(raw.get("model_type")))
    stored: dict[str, torch.Tensor] = {}
    if family is not None:  # or the config is refused
        named = (raw.get("architectures") or [""])[0]
        if named in family.headless:  # says that the checkpoint had no head
            architecture = named
        stored = _state_of(original, family.prefix)
        unembed = f"{family.unembed}.weight"
        head = stored.get(RENAMED.get(unembed, unembed))
        table = stored.get(f"{family.embed}.weight")
        if head is not None and table is not None:
            # an untied T5's config, as transformers writes it, says tied
            raw["tie_word_embeddings"] = head.data_ptr() == table.data_ptr()
    config = config_from(
        raw, where="the bridge", architecture=architecture, prepend_bos=prepend_bos
    )
    # the bridge moves this bias into the product behind which it stood
    moved = RENAMED | {"final_logits_bias": f"{config.family.unembed}.bias"}
    optional = config.family.optional
    weights = {}
    for name, _ in expected_shapes(config, optional):
        tensor = stored[moved.get(name, name)]
        weights[name] = tensor[None] if name in optional and tensor.dim() == 1 else tensor
    for name, values in weights.items():
        check_finite(values, name, where="the bridge")
    return config, weights


def _state_of(original: torch.nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    """A model's tensors by name without the prefix, and without what the bridge puts around its
    parts."""
    state = {}
    for name, tensor in original.state_dict().items():
        plain = name.replace("._original_component", "").removeprefix(prefix)
        state[plain] = tensor.detach()
    return state


def _check_raw(bridge: Any) -> None:
    if bridge.compatibility_mode:
        step = (
            "boot it again with TransformerBridge.boot_transformers(...) and do not call "
            "enable_compatibility_mode()"
        )
        raise refuse(
            "the bridge",
            "it is in compatibility mode, which changes every head's contribution",
            step,
        )
    if bridge.training:
        problem = "it is in training mode, where dropout changes every run"
        raise refuse("the bridge", problem, "call bridge.eval() first")
    for point in sorted(bridge.hook_dict.values(), key=lambda point: point.name):
        for handle in (*point.fwd_hooks, *point.bwd_hooks):
            # some bridges pass values on by hooks of their own
            if not str(getattr(handle.user_hook, "__module__", "")).startswith("transformer_lens."):
                problem = (
                    f"it already carries hooks ({point.name}), which would change what is measured"
                )
                raise refuse("the bridge", problem, "call bridge.reset_hooks() first")
