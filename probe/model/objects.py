"""From an object in memory to the input of a Model: its class, its config and its tensors.

Supported are Hugging Face models, TransformerBridges, and other libraries' wrappers of these, which
are found by attribute, so that none of those libraries is imported. Only tensors are taken, and
they are shared; adapters are merged in a copy of the tensors that they change. The object itself
stays unchanged, because TransformerLens, which rebuilds its model, gets a new one of the same class
around the same tensors.

Anything else that could change the object's output, such as a modified forward or an adapter that
is merged differently, is detected by a test: on one short text, the object must compute what its
tensors give. A model on which its owner has put hooks is refused.
"""

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probe.model.architectures import FAMILIES, WRAPPERS
from probe.model.bridge import UPCAST, in_short, narrowed_modules
from probe.model.config import config_from, row_of
from probe.model.find import name_of
from probe.model.model import Config, Model, refuse
from probe.model.owner_hooks import require_no_hooks
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
OWN_CODE = "transformers_modules"  # the package of classes that trust_remote_code makes
TAKEN = "only a name, a folder, a GGUF file, a Hugging Face model or a TransformerBridge"
# The largest difference between an object's logits and those of a copy around the same tensors,
# relative to their scale. They may use different attention kernels, and merged adapters are rounded
# once more.
SAME = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 2**-6,
    torch.bfloat16: 2**-4,
}


# At each end of a text, the number of positions at which two models are compared.
AT_EACH_END = 8
# The settings with which attention and experts run step by step.
PLAINLY = {"_attn_implementation": "eager", "_experts_implementation": "eager"}


@dataclass(frozen=True, eq=False)
class ModelObject:
    """The Hugging Face model in an object.

    bridge: the bridge around it; None without one
    tokenizer: the tokenizer stored with it
    label: the object's name in sentences
    """

    original: Any
    bridge: Any | None
    tokenizer: Any | None
    label: str

    @property
    def source(self) -> str:
        """The name, folder or file from which the model says it came; empty without one."""
        if self.bridge is not None:
            return str(self.bridge.cfg.model_name)
        return str(getattr(self.original, "name_or_path", "") or "")

    @property
    def name(self) -> str:
        """The model's name: its source without this machine's folders, or its class."""
        path = Path(self.source)
        if not self.source:
            return type(self.original).__name__
        return name_of(path) if path.is_absolute() or path.exists() else self.source

    @property
    def folded(self) -> bool:
        """Whether its weights are no longer the original ones: compatibility mode folds norms
        into them and centres them, without a copy.
        """
        bridge = self.bridge
        return (
            bridge is not None
            and bridge.compatibility_mode
            and getattr(bridge, "_weights_processed", True)
        )


def model_object_of(source: object) -> ModelObject:
    """The model in an object.

    Raises ModelError for a class, for an object without a model or without numbers, and for hooks
    that would change the measurement.
    """
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
    label = "the bridge" if bridge is not None else f"the {type(original).__name__}"
    if type(original).__module__.partition(".")[0] == OWN_CODE:
        problem = "its class is code that came with the model, which is not certified"
        raise refuse(label, problem, "load it again without trust_remote_code")
    _require_weights(original, label)
    require_no_hooks(inner, label)
    return ModelObject(original, bridge, tokenizer, label)


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
        candidates = (getattr(inner, name, None) for name in WRAPPED_IN)
        inner = next((candidate for candidate in candidates if candidate is not None), None)
    raise refuse(f"a {type(source).__name__}", f"{TAKEN} can be loaded", "give one of these")


def _require_weights(original: nn.Module, label: str) -> None:
    """Raises ModelError for weights without numbers, or with numbers that only their library can
    read.
    """
    for name, tensor in original.named_parameters():
        if tensor.is_meta:
            problem = f"{name} is on the meta device and holds no numbers"
            step = (
                "load it again with from_pretrained, without device_map (with nnsight, as "
                "LanguageModel(..., dispatch=True))"
            )
            raise refuse(label, problem, step)
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            problem = f"{name} was made inside torch.inference_mode(), which forbids to share it"
            raise refuse(label, problem, "make the model outside, or inside torch.no_grad()")
        if type(tensor.data) is not Tensor:  # e.g. a quantised one of torchao
            problem = f"{name} is a {type(tensor.data).__name__}, which only its library can read"
            raise refuse(label, problem, "load it again without quantisation")
        if not tensor.is_floating_point() or tensor.element_size() == 1:  # float8 is not supported
            bits = 8 * tensor.element_size()
            problem = f"{name} is quantized ({tensor.dtype}, {bits} bits an element)"
            raise refuse(label, problem, "load it again without quantization_config")


def require_untouched(model: Model) -> None:
    """Raises ModelError if the bridge of a Model was changed after loading: by hooks, or by
    TransformerLens' compatibility mode, which folds weights.

    The bridge would then be another model than the weights.
    """
    label = f"the bridge of {model.name}"
    if model.bridge.compatibility_mode:
        problem = "it was put into compatibility mode, which folds and centres the weights"
        raise refuse(label, problem, "load the model again from what it was loaded from")
    require_no_hooks(model.bridge, label)


def state_key(model_object: ModelObject) -> tuple[object, ...]:
    """The state of an object, to detect changes: its tensors, how often each was changed in
    place, its config, the settings of its parts, and the active adapters. A change through
    `.data` is not detected.
    """
    tensors = (*model_object.original.parameters(), *model_object.original.buffers())
    versions = [(t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors]
    adapters = [
        (
            str(layer.active_adapters),
            layer.disable_adapters,
            getattr(layer, "merged", False),  # only some kinds of adapters have it
            str(getattr(layer, "scaling", "")),
        )
        for layer in model_object.original.modules()
        if _is_adapted(layer)
    ]
    settings = [_settings_of(module) for module in model_object.original.modules()]
    config = repr(getattr(model_object.original, "config", None))
    return (
        model_object.folded,
        tuple(versions),
        tuple(adapters),
        tuple(settings),
        config,
    )


def _settings_of(module: nn.Module) -> tuple[object, ...]:
    """The class of a module, its numbers and texts, and the functions that were put on it."""
    settings: list[object] = [type(module)]
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, bool | int | float | str):
            settings += [name, value]
        elif callable(value):
            settings += [name, id(value)]
    return tuple(settings)


def _is_adapted(module: Any) -> bool:
    """Whether PEFT put an adapter, or a copy for training, around a module."""
    if {"original_module", "modules_to_save"} <= module._modules.keys():
        return True
    return hasattr(module, "get_base_layer") and hasattr(module, "merge")


# --- tensors --------------------------------------------------------------------------------------


def read_state(original: nn.Module) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """A model's tensors by the names of its class, without the bridge's wrappers of its parts;
    and the adapters that were merged.
    """
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
    """The module of the model's class inside a wrapper of TransformerLens or PEFT."""
    if "_original_component" in module._modules:
        return module._modules["_original_component"]
    # PEFT's wrapper of a table of which an adapter trains some rows; the layer in it is merged.
    if "token_adapter" in module._modules:
        return module._modules["token_adapter"]
    if not _is_adapted(module):
        if "original_module" in module._modules:
            kind = type(module).__name__
            raise refuse(
                "a model with an adapter",
                f"PEFT puts a {kind} around one of its parts, which is not merged here",
                "give what PEFT's merge_and_unload() returns, or the model without the adapter",
            )
        return module
    layer: Any = module
    active = () if layer.disable_adapters else tuple(layer.active_adapters)
    if "original_module" in module._modules:  # trained as a whole, in a copy
        adapters |= dict.fromkeys(active)
        return layer.modules_to_save[active[0]] if active else layer.original_module
    if active and not layer.merged:
        adapters |= dict.fromkeys(active)
        layer = copy.deepcopy(layer)  # only the tensors that the adapter changes
        try:
            layer.merge(safe_merge=True)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise refuse(
                f"a model with the adapter {active[0]!r}",
                f"PEFT cannot merge it ({str(error).strip('. ') or type(error).__name__})",
                "disable or delete the adapter, or give the model without it",
            ) from error
    return layer.get_base_layer()


def config_of(
    model_object: ModelObject, state: Mapping[str, Tensor], *, prepend_bos: bool
) -> Config:
    """The config of a model in memory. Raises UnsupportedModel for a family outside the table."""
    raw = model_object.original.config.to_dict()
    raw.pop("quantization_config", None)  # the tensors of a dequantised file are floats
    architecture = type(model_object.original).__name__
    family = FAMILIES.get(row_of(raw))
    tied = None
    if family is not None:  # otherwise `config_from` refuses the config
        class_name = (raw.get("architectures") or [""])[0]
        if class_name in family.classes_without_lm_head:  # the checkpoint had no head
            architecture = class_name
        wrapper = WRAPPERS.get(str(raw.get("model_type")))
        plain = {(wrapper or family).raw_name(name): tensor for name, tensor in state.items()}
        head = plain.get(f"{family.unembed}.weight")
        table = plain.get(f"{family.embed}.weight")
        if head is not None and table is not None:
            # transformers writes "tied" into the config of an untied T5.
            tied = head.data_ptr() == table.data_ptr()
    return config_from(
        raw,
        where=model_object.label,
        architecture=architecture,
        prepend_bos=prepend_bos,
        resolved=model_object.original.config,
        tied=tied,
    )


def tensors_of(
    state: Mapping[str, Tensor],
    config: Config,
    *,
    where: object,
    named_modules: Iterable[tuple[str, nn.Module]] = (),
) -> dict[str, Tensor]:
    """The raw tensors of a model by Hugging Face name without the family's prefix, from its state.

    They include the unembedding only if it is not tied. Raises ModelError for a tensor that is
    missing, of another shape or not finite.
    """
    family = config.family
    stored = {config.raw_name(name): tensor for name, tensor in state.items()}
    # A bridge moves this bias into the product in front of it.
    other_names = {"final_logits_bias": f"{family.unembed}.bias"}
    weights = {}
    for name, shape in expected_shapes(config, family.optional_weights):
        tensor = stored.get(other_names.get(name, name), stored.get(name))
        if tensor is None:
            problem = f"the tensor {name} is missing from it{_part_with(name, named_modules)}"
            step = f"give a plain {family.name}, nothing of it quantized, pruned or replaced"
            raise refuse(where, problem, step)
        if name in family.optional_weights and tensor.dim() == 1:
            tensor = tensor[None]
        if tensor.shape != shape:
            problem = f"{name} has shape {list(tensor.shape)} where its config asks for"
            raise refuse(where, f"{problem} {list(shape)}", "correct its config")
        check_finite(tensor, name, where=where)
        weights[name] = tensor
    return weights


def _part_with(name: str, named_modules: Iterable[tuple[str, nn.Module]]) -> str:
    """The class of the module that should have a tensor; empty without one."""
    of_module = name.rpartition(".")[0]
    for path, module in named_modules:
        if f".{path}".endswith(f".{of_module}"):
            return f", which has a {type(module).__name__} there"
    return ""


# --- the object's own numbers ---------------------------------------------------------------------


def require_same(model_object: ModelObject, fresh: Any, config: Config, ids: list[int]) -> None:
    """Raises ModelError if the object computes other logits on `ids` than a new model around its
    tensors, or does not run.
    """
    try:
        logits = numbers(model_object.original, config, ids)
    except RuntimeError as fault:
        problem = f"it does not run on a short text ({in_short(fault)})"
        step = "give one that runs, with all weights of one type, as model.float() makes them"
        raise refuse(model_object.label, problem, step) from fault
    error = difference_of(logits, numbers(fresh, config, ids))
    if not error <= allowed_difference(model_object.original, fresh):
        problem = (
            f"on a short text it computes something else than its weights give (off by {error:.0e} "
            "of the scale), as with a forward that was changed"
        )
        step = "give the model as its library made it"
        if config.n_experts and fresh.dtype.itemsize < torch.float32.itemsize:
            problem += ", or with a router that chooses other experts once numbers are rounded"
            step += ', or pass dtype="float32"'
        raise refuse(model_object.label, problem, step)


def difference_of(computed: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the scale of the expected values; 0 if both are 0."""
    error = (computed - expected).abs().max()
    return float(error / expected.abs().max()) if error else 0.0


def allowed_difference(*models: Any) -> float:
    """The largest allowed difference, relative to the scale, between the logits of models with
    the same tensors.
    """
    return max(SAME[tensor.dtype] for model in models for tensor in model.parameters())


def require_same_words(model_object: ModelObject, reference: Any, ids: list[int]) -> None:
    """Raises ModelError if a folded bridge predicts other tokens after `ids` than the model from
    which it says it came; folding preserves these log-probabilities.
    """
    with torch.no_grad(), evaluating(model_object.bridge):
        row = torch.tensor([ids], device=reference.device)
        folded = model_object.bridge(row).double().log_softmax(-1).cpu()  # type: ignore[misc]
        exact = reference.bridge(row).double().log_softmax(-1).cpu()
    error = difference_of(folded, exact)
    if not error <= SAME[torch.float32]:
        problem = (
            f"it is in compatibility mode, which folds its weights, and {model_object.name}, where "
            f"it says that it came from, is another model (log-probabilities off by {error:.0e})"
        )
        raise refuse(model_object.label, problem, "give it without enable_compatibility_mode()")


def positions_at_ends(n: int) -> list[int]:
    """The first and the last positions of a text of `n` tokens, at which models are compared.

    Logits at every position of a long text would take a gigabyte.
    """
    return sorted({*range(min(n, AT_EACH_END)), *range(max(n - AT_EACH_END, 0), n)})


def numbers(model: Any, config: Config, ids: Sequence[int]) -> Tensor:
    """The logits of a Hugging Face model at the ends of a text, or the output of its last block if
    it has no language-model head.

    Shape: `pos d_vocab`, or `pos d_model`

    The model runs in evaluation mode, whatever its mode, with the plain implementations of
    attention ("eager") and experts: others round differently, and a router may then choose other
    experts.
    """
    device = next(model.parameters()).device
    inputs = {"input_ids": torch.tensor([[*ids]], device=device)}
    if config.start_token is not None:
        target = [config.start_token, *ids[:-1]]
        inputs["decoder_input_ids"] = torch.tensor([target], device=device)
    positions = torch.tensor(positions_at_ends(len(ids)), device=device)
    with torch.no_grad(), evaluating(model), _plainly(model):
        output = None
        if config.has_lm_head:
            only: dict[str, Any] = {}
            if "logits_to_keep" in inspect.signature(model.forward).parameters:
                only["logits_to_keep"] = positions
            output = getattr(model(**inputs, **only, return_dict=True), "logits", None)
        if output is None:
            output = model.base_model(**inputs, return_dict=True).last_hidden_state
    if output.shape[1] > len(positions):
        output = output[:, positions]
    return output[0].double().cpu()


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Puts every module into evaluation mode, and restores each module's mode."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _plainly(model: Any) -> Iterator[None]:
    """Runs attention and experts step by step, as in the formulas, and restores the settings of
    configs and modules.
    """
    all_configs = [getattr(module, "config", None) for module in model.modules()]
    configs = {
        id(config): config for config in all_configs if hasattr(config, "_attn_implementation")
    }
    original_settings = [
        (config, {name: getattr(config, name) for name in PLAINLY if hasattr(config, name)})
        for config in configs.values()  # the outermost first, because it sets the others
    ]
    original_settings += [(module, {UPCAST: True}) for module in narrowed_modules(model)]
    plain = PLAINLY | {UPCAST: False}
    try:
        for holder, values in original_settings:
            for name in values:
                setattr(holder, name, plain[name])
        yield
    finally:
        for holder, values in original_settings:
            for name, value in values.items():
                setattr(holder, name, value)
