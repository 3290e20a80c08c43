"""An object in memory -> what `load` makes a Model of: its class, its config and its tensors.

Taken are Hugging Face models, TransformerBridges, and what other libraries wrap around one of
these: it is found by attribute, so that none of those libraries is imported. Only tensors are
taken, and they are shared; adapters are merged in a copy of the tensors that they touch. The object
itself stays as it is, because TransformerLens, which rebuilds the model that it is given, gets a
fresh one of the same class around the same tensors.

What else could decide what an object computes, a forward that somebody changed or an adapter that
is merged otherwise, is found by asking: on one short text the object must compute what its tensors
give.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probe.model.architectures import FAMILIES, WRAPPERS
from probe.model.bridge import RENAMED, as_in_files
from probe.model.find import name_of
from probe.model.model import Config, config_from, refuse, row_of
from probe.model.weights import check_finite, expected_shapes

# Where other libraries keep the model that they wrap: nnsight, torch.compile, DataParallel, PEFT
# and pipelines, sentence-transformers, trl.
WRAPPED_IN = (
    "_model",
    "_module",
    "_orig_mod",
    "module",
    "model",
    "auto_model",
    "pretrained_model",
)
MOST_WRAPPERS = 5
# Hooks of these packages are part of how a model runs, not of what somebody asks it.
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "transformer_lens", "nnsight")
TAKEN = "only a name, a folder, a GGUF file, a Hugging Face model or a TransformerBridge"
# Of the scale of the logits: by how much an object may differ from a copy around the same tensors.
# The two may attend by another kernel, and merged adapters are rounded once more.
SAME = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 2**-6,
    torch.bfloat16: 2**-4,
}


@dataclass(frozen=True, eq=False)
class Held:
    """The Hugging Face model behind an object, the bridge around it where there is one, and the
    tokenizer beside it; `said` is the object as a sentence names it."""

    original: Any
    bridge: Any | None
    tokenizer: Any | None
    said: str

    @property
    def source(self) -> str:
        """The name, folder or file that the model says it came from; empty where it says none."""
        if self.bridge is not None:
            return str(self.bridge.cfg.model_name)
        return str(getattr(self.original, "name_or_path", "") or "")

    @property
    def name(self) -> str:
        """What the model is called: its source without this machine's folders, or its class."""
        path = Path(self.source)
        if not self.source:
            return type(self.original).__name__
        return name_of(path) if path.is_absolute() or path.exists() else self.source

    @property
    def folded(self) -> bool:
        """Whether its weights are no more the model's own: compatibility mode folds norms into
        them and centres them, and keeps no copy."""
        bridge = self.bridge
        return (
            bridge is not None
            and bridge.compatibility_mode
            and getattr(bridge, "_weights_processed", True)
        )


def hold(source: object) -> Held:
    """The model in an object. Raises ModelError for a class, for what holds no model or no numbers,
    and for one whose hooks would change what is measured."""
    from transformer_lens.model_bridge import TransformerBridge

    if inspect.isclass(source):
        step = f"give an object of it, as {source.__name__}.from_pretrained(...) returns"
        raise refuse(f"the class {source.__name__}", "a class holds no weights", step)
    if getattr(getattr(source, "active_peft_config", None), "is_prompt_learning", False):
        problem = "its adapter puts learned vectors in front of every text, which no weight holds"
        step = "give the model without it, or one with a LoRA adapter"
        raise refuse(f"the {type(source).__name__}", problem, step)
    inner, tokenizer = _unwrap(source)
    bridge = inner if isinstance(inner, TransformerBridge) else None
    original = inner.original_model if bridge is not None else inner
    said = "the bridge" if bridge is not None else f"the {type(original).__name__}"
    _require_weights(original, said)
    _require_no_hooks(inner, said)
    return Held(original, bridge, tokenizer, said)


def _unwrap(source: object) -> tuple[Any, Any]:
    """The Hugging Face model or bridge in `source`, and the first tokenizer on the way to it."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel

    inner: Any = source
    tokenizer = None
    for _ in range(MOST_WRAPPERS):
        tokenizer = tokenizer or getattr(inner, "tokenizer", None)
        if isinstance(inner, PreTrainedModel | TransformerBridge):
            return inner, tokenizer
        held = (getattr(inner, name, None) for name in WRAPPED_IN)
        inner = next((one for one in held if one is not None), None)
    raise refuse(f"a {type(source).__name__}", f"{TAKEN} can be loaded", "give one of these")


def _require_weights(original: nn.Module, said: str) -> None:
    """ModelError for weights that hold no numbers, or numbers that only their own library reads."""
    for name, tensor in original.named_parameters():
        if tensor.is_meta:
            problem = f"{name} is on the meta device and holds no numbers"
            raise refuse(said, problem, "load it again with from_pretrained, without device_map")
        if not tensor.is_floating_point():
            bits = 8 * tensor.element_size()
            problem = f"{name} is quantized ({tensor.dtype}, {bits} bits an element)"
            raise refuse(said, problem, "load it again without quantization_config")


def _require_no_hooks(inner: Any, said: str) -> None:
    problem = "it already carries hooks ({}), which would change what is measured"
    if hasattr(inner, "hook_dict"):
        for point in sorted(inner.hook_dict.values(), key=lambda point: point.name):
            handles = (*point.fwd_hooks, *point.bwd_hooks)
            if not all(_of_library(handle.user_hook) for handle in handles):
                step = "call bridge.reset_hooks() first"
                raise refuse(said, problem.format(point.name), step)
    for name, module in inner.named_modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if not all(map(_of_library, hooks)):
            step = "call remove() on the handle that register_forward_hook gave"
            raise refuse(said, problem.format(name or "the whole model"), step)


def _of_library(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    package = str(getattr(hook, "__module__", "")).partition(".")[0]
    return package in LIBRARIES


def state_key(held: Held) -> tuple[object, ...]:
    """What tells whether an object is as it was: its tensors, how often each was changed in place,
    and which adapters are on. A change through `.data` is not told."""
    tensors = (*held.original.parameters(), *held.original.buffers())
    versions = [(t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors]
    adapters = [
        (str(layer.active_adapters), layer.disable_adapters, *_of_tuner(layer))
        for layer in held.original.modules()
        if _is_adapted(layer)
    ]
    return (held.folded, tuple(versions), tuple(adapters))


def _of_tuner(layer: Any) -> tuple[object, ...]:
    """Whether an adapter is merged already, and how strong each one is, as far as its kind has
    that."""
    return (getattr(layer, "merged", False), str(getattr(layer, "scaling", "")))


def _is_adapted(module: Any) -> bool:
    """Whether PEFT put an adapter, or a copy that it trains, around a module."""
    if {"original_module", "modules_to_save"} <= module._modules.keys():
        return True
    return hasattr(module, "get_base_layer") and hasattr(module, "merge")


# --- tensors --------------------------------------------------------------------------------------


def read_state(original: nn.Module) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """A model's tensors by the names of its class, without what a bridge puts around its parts;
    and the adapters that were merged for it."""
    state: dict[str, Tensor] = {}
    adapters: dict[str, None] = {}
    _collect(original, "", state, adapters)
    return state, tuple(adapters)


def _collect(
    module: nn.Module, prefix: str, state: dict[str, Tensor], adapters: dict[str, None]
) -> None:
    while (inner := _inner(module, adapters)) is not module:
        module = inner
    left_out = module._non_persistent_buffers_set
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and name not in left_out:
            state[prefix + name] = tensor.detach()
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{prefix}{name}.", state, adapters)


def _inner(module: nn.Module, adapters: dict[str, None]) -> Any:
    """The part of the model's own class behind what TransformerLens or PEFT put in its place."""
    if "_original_component" in module._modules:
        return module._modules["_original_component"]
    if not _is_adapted(module):
        return module
    layer: Any = module
    active = () if layer.disable_adapters else tuple(layer.active_adapters)
    if "original_module" in module._modules:  # trained whole, in a copy
        adapters |= dict.fromkeys(active)
        return layer.modules_to_save[active[0]] if active else layer.original_module
    if active and not layer.merged:
        adapters |= dict.fromkeys(active)
        layer = copy.deepcopy(layer)  # the tensors that are touched, and no others
        layer.merge(safe_merge=True)
    return layer.get_base_layer()


def read_object(
    held: Held, state: Mapping[str, Tensor], *, prepend_bos: bool
) -> tuple[Config, dict[str, Tensor]]:
    """Config and raw tensors of a model in memory, by Hugging Face name without the family's
    prefix.

    Raises UnsupportedModel for a family beyond the table, ModelError for a tensor that is missing,
    of another shape or not finite.
    """
    raw = held.original.config.to_dict()
    raw.pop("quantization_config", None)  # of a file that was dequantised: its tensors are floats
    architecture = type(held.original).__name__
    family = FAMILIES.get(row_of(raw))
    stored: dict[str, Tensor] = {}
    if family is not None:  # or the config is refused
        named = (raw.get("architectures") or [""])[0]
        if named in family.headless:  # says that the checkpoint had no head
            architecture = named
        wrapper = WRAPPERS.get(str(raw.get("model_type")))
        plain = {
            wrapper.raw_name(name) if wrapper else name.removeprefix(family.prefix): tensor
            for name, tensor in state.items()
        }
        stored = as_in_files(plain, family)
        unembed = f"{family.unembed}.weight"
        head = stored.get(RENAMED.get(unembed, unembed))
        table = stored.get(f"{family.embed}.weight")
        if head is not None and table is not None:
            # an untied T5's config, as transformers writes it, says tied
            raw["tie_word_embeddings"] = head.data_ptr() == table.data_ptr()
    config = config_from(raw, where=held.said, architecture=architecture, prepend_bos=prepend_bos)
    # a bridge moves this bias into the product behind which it stood
    moved = RENAMED | {"final_logits_bias": f"{config.family.unembed}.bias"}
    optional = config.family.optional
    weights = {}
    for name, shape in expected_shapes(config, optional):
        found = stored.get(moved.get(name, name), stored.get(name))
        if found is None:
            problem = f"the tensor {name} is missing from it"
            raise refuse(held.said, problem, f"give a plain {config.family.name}")
        tensor = found[None] if name in optional and found.dim() == 1 else found
        if tensor.shape != shape:
            problem = f"{name} has shape {list(tensor.shape)} where its config asks for"
            raise refuse(held.said, f"{problem} {list(shape)}", "correct its config")
        check_finite(tensor, name, where=held.said)
        weights[name] = tensor
    return config, weights


# --- the object's own numbers ---------------------------------------------------------------------


def require_same(held: Held, fresh: Any, config: Config, ids: list[int]) -> None:
    """ModelError where the object computes other logits on `ids` than a fresh model around its
    tensors."""
    own = numbers(held.original, config, ids)
    exact = numbers(fresh, config, ids)
    error = float((own - exact).abs().max() / exact.abs().max())
    parameters = (*held.original.parameters(), *fresh.parameters())
    if not error <= max(SAME[tensor.dtype] for tensor in parameters):
        problem = (
            f"on a short text it computes something else than its weights give (off by {error:.0e} "
            "of the scale), as with a forward that was changed"
        )
        raise refuse(held.said, problem, "give the model as its library made it")


def require_same_words(held: Held, untouched: Any, ids: list[int]) -> None:
    """ModelError where a folded bridge expects other tokens after `ids` than the model that it says
    it came from; folding keeps these log-probabilities."""
    with torch.no_grad(), evaluating(held.bridge):
        row = torch.tensor([ids], device=untouched.device)
        folded = held.bridge(row).double().log_softmax(-1).cpu()  # type: ignore[misc]
        exact = untouched.bridge(row).double().log_softmax(-1).cpu()
    error = float((folded - exact).abs().max() / exact.abs().max())
    if not error <= SAME[torch.float32]:
        problem = (
            f"it is in compatibility mode, which folds its weights, and {held.name}, where it says "
            f"that it came from, is another model (log-probabilities off by {error:.0e})"
        )
        raise refuse(held.said, problem, "give it without enable_compatibility_mode()")


def numbers(model: Any, config: Config, ids: list[int]) -> Tensor:
    """The logits of a Hugging Face model on one text, or what leaves its last block where it has no
    language-model head. In evaluation, whatever the model is in now."""
    device = next(model.parameters()).device
    inputs = {"input_ids": torch.tensor([ids], device=device)}
    if config.start_token is not None:
        target = [config.start_token, *ids[:-1]]
        inputs["decoder_input_ids"] = torch.tensor([target], device=device)
    with torch.no_grad(), evaluating(model):
        found = getattr(model(**inputs), "logits", None) if config.has_head else None
        if found is None:
            found = model.base_model(**inputs).last_hidden_state
    return found.double().cpu()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Every module in evaluation; each gets its own mode back."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
