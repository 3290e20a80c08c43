"""Models for TransformerLens: Hugging Face's model of a folder, or a new one around given
tensors, inside a bridge.

Every tensor is read once and shared with the formulas.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from probe.model.architectures import FAMILIES, WRAPPERS
from probe.model.architectures.family import Family
from probe.model.model import ONE_THREAD, RESAVE, Config, Model, refuse

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


BY_ROW = "by the row"
# Nothing is downloaded, and no code that comes with a model is run.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
READ = LOCAL | {"attn_implementation": "eager", "output_loading_info": True}
UPCAST = "reorder_and_upcast_attn"  # GPT-2's setting for scores in float32
REPORTED = {
    "missing_keys": "the tensor {} is missing",
    "error_msgs": "transformers reports an error: {}",
}
EAGER: dict[str, Any] = {"experts_implementation": "eager"}  # the others do not support float64


def read_model(folder: Path, config: Config, *, dtype: torch.dtype) -> Any:
    """Hugging Face's model of a folder, with every tensor that the config asks for and no other.

    A checkpoint without a language-model head gets a random one, always the same, because
    TransformerLens requires a head. Call it inside `quiet`, which restores the random state. Raises
    ModelError for files that transformers refuses or reads incompletely.
    """
    import transformers

    torch.manual_seed(0)
    class_name = config.family.architectures[0]
    if config.wrapper:
        class_name = WRAPPERS[config.wrapper].architecture
    try:
        # With the option, a tensor of another shape is listed, and not only counted.
        model, info = getattr(transformers, class_name).from_pretrained(
            folder, use_safetensors=True, dtype=dtype, ignore_mismatched_sizes=True, **READ, **EAGER
        )
    except Exception as error:  # broad, because each library under it raises its own classes
        problem = f"transformers cannot read its files ({type(error).__name__}: {in_short(error)})"
        raise refuse(folder, problem, "copy or download them again") from error
    _require_whole(info, config, where=folder)
    for name, stored, asked in sorted(info["mismatched_keys"]):
        raw_name = config.raw_name(name)
        problem = f"{raw_name} has shape {list(stored)} where config.json asks for {list(asked)}"
        raise refuse(folder, problem, "use the config.json that belongs to these weights")
    for name in map(config.raw_name, sorted(info["unexpected_keys"])):
        if not any(fnmatchcase(name, each) for each in _unread(config)):
            described = f"the {config.family.name} that config.json describes"
            raise refuse(folder, f"{name} is not a tensor of {described}", RESAVE)
    return model


def class_of_row(config: Config) -> Any:
    """transformers' class with a language-model head."""
    import transformers

    return getattr(transformers, config.family.architectures[0])


def text_settings(model_config: Any, config: Config) -> Any:
    """The config of the text model within a model's config, as its text class reads it."""

    if not config.wrapper:
        return model_config
    settings_class = class_of_row(config).config_class
    keys = model_config.get_text_config().to_dict()
    keys.pop("model_type")
    return settings_class(**keys | {"tie_word_embeddings": config.tied})


def fresh_model(
    model_class: Any,
    settings: Any,
    weights: Mapping[str, torch.Tensor],
    config: Config,
    *,
    where: object,
    extra: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> Any:
    """A new Hugging Face model around these very tensors.

    weights: by our names
    extra: by the class's names; no formula reads these

    Parameters without a tensor, such as the head of a checkpoint without one, are drawn at random,
    always the same. Raises ModelError if the class requires other parameters.
    """
    dtype = weights[f"{config.family.embed}.weight"].dtype
    settings = copy.deepcopy(settings)
    # A model that calls itself quantised can be neither moved nor saved, and these tensors were
    # dequantised.
    vars(settings).pop("quantization_config", None)
    settings.return_dict = True
    is_drawn = not config.has_lm_head or config.positions.kind == "sinusoidal"
    model = _build(model_class, settings, seed=0 if is_drawn else None, dtype=dtype)
    state = _full_names(weights, config)
    # Copies, because TransformerLens folds these into the product in front of them.
    state |= {name: state[name].clone() for name in config.family.optional_weights if name in state}
    parameters = model.state_dict().keys()
    state |= {name: extra[name] for name in extra.keys() & parameters if name not in state}
    info = model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    family = config.family
    if config.tied or not config.has_lm_head:
        tied = {f"{family.unembed}.weight", "lm_head.weight"}
    else:
        # transformers ties even an untied T5, and omits the scale of the tied embeddings.
        unembedding = weights[f"{family.unembed}.weight"]
        model.get_output_embeddings().weight = torch.nn.Parameter(unembedding)
        tied = set()
    missing = [
        name
        for name in info.missing_keys
        if name not in tied
        and not any(fnmatchcase(family.raw_name(name), each) for each in _unread(config))
    ]
    reported = {"missing_keys": missing, "error_msgs": info.unexpected_keys}
    _require_whole(reported, config, where=where)
    _keep_float64(model)
    return model.eval().requires_grad_(False)


def narrowed_modules(model: Any) -> list[torch.nn.Module]:
    """The attentions of a float64 model that compute scores in float32.

    The setting is meant to widen bfloat16; GPT-2's code fails if it narrows float64.
    """
    if model.dtype != torch.float64:
        return []
    return [module for module in model.modules() if getattr(module, UPCAST, False)]


def _keep_float64(model: Any) -> None:
    """Makes a float64 model compute its scores in float64."""
    for module in narrowed_modules(model):
        setattr(module, UPCAST, False)


def _require_whole(info: Mapping[str, Any], config: Config, *, where: object) -> None:
    """Raises ModelError if transformers reports a missing weight, except for the head of a
    checkpoint without one.
    """
    family = config.family
    heads = () if config.has_lm_head else (*family.lm_head_shapes, family.unembed)
    for kind, problem in REPORTED.items():
        names = [str(name) for name in info.get(kind, ())]
        reported = [name for name in names if not (heads and name.startswith(heads))]
        if reported:
            raise refuse(where, problem.format(config.raw_name(min(reported))), RESAVE)


def _build(
    model_class: Any, config: Any, *, seed: int | None, dtype: torch.dtype | None = None
) -> Any:
    """A new model with weights drawn from the seed.

    With None nothing is drawn, which saves seconds if every weight is replaced. Call it inside
    `quiet`, which restores the random state.
    """
    from transformers.initialization import no_init_weights

    options = EAGER | {"attn_implementation": "eager"} | ({} if dtype is None else {"dtype": dtype})
    if seed is None:
        with no_init_weights():
            return model_class._from_config(config, **options)
    torch.manual_seed(seed)
    return model_class._from_config(config, **options)


def _full_names(weights: Mapping[str, torch.Tensor], config: Config) -> dict[str, torch.Tensor]:
    """Our weights by the names that Hugging Face's class gives them."""
    family = config.family
    # The head is next to the module with the family's prefix, not inside it.
    without_prefix = (*family.lm_head_shapes, *family.optional_weights, family.unembed)
    return {
        name if name.startswith(without_prefix) else family.prefix + name: tensor
        for name, tensor in weights.items()
    }


def _unread(config: Config) -> tuple[str, ...]:
    """Patterns of the tensors in files and classes that no formula reads."""
    family = config.family
    return (f"{family.unembed}.weight", *family.ignored_weights, *family.optional_weights)


def boot_untrained(
    like: "TransformerBridge", tokenizer: Any, *, seed: int
) -> "tuple[TransformerBridge, dict[str, Any]]":
    """A bridge of the same shape with random weights, and these weights by Hugging Face name."""
    original = like.original_model
    parameter = next(like.parameters())
    model = _build(type(original), original.config, seed=seed).to(parameter.device, parameter.dtype)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return boot_model(model, "untrained", tokenizer), weights


def plain_model(model: Model) -> torch.nn.Module:
    """A new Hugging Face model without hooks around the same raw weights."""
    original: Any = model.bridge.original_model
    with quiet():
        plain: torch.nn.Module = fresh_model(
            type(original), original.config, model.weights, model.config, where=model.name
        )
    return plain.to(model.device)


def boot_model(model: Any, name: str, tokenizer: Any) -> "TransformerBridge":
    """Hugging Face's model inside a bridge, which rebuilds it; in raw mode."""
    from transformer_lens.model_bridge import TransformerBridge

    _keep_float64(model)
    # TransformerLens would reload a tokenizer without add_bos_token from its source, which may no
    # longer exist.
    tokenizer_copy = copy.deepcopy(tokenizer)
    tokenizer_copy.init_kwargs |= {"add_bos_token": True, "name_or_path": name}
    architectures = model.config.architectures
    family = FAMILIES[model.config.model_type]
    # TransformerLens finds its adapter by this name; a checkpoint without a head has another one.
    model.config.architectures = [family.adapter or type(model).__name__]
    if family.adapter == BY_ROW:
        model.config.architectures = [_register_adapter(family)]
    bridge = TransformerBridge.boot_transformers(
        name, hf_model=model, tokenizer=tokenizer_copy, device=str(model.device), dtype=model.dtype
    )
    # A later load of this bridge reads from these whether there was a head, and that the tokenizer
    # keeps its rules.
    model.config.architectures = architectures
    del tokenizer_copy.init_kwargs["add_bos_token"]
    for attention in family.attentions:
        if attention.fused_qkv == "by head":
            _share_by_head(bridge, model.config.num_attention_heads)
        if family.kind == "encoder":  # the adapter may be a decoder's
            for block in bridge.blocks:
                # A plain assignment would set it on Hugging Face's module inside.
                object.__setattr__(block.attn, "is_causal", False)
    return bridge.eval().requires_grad_(False)


class _OfFused(torch.nn.Module):
    """Queries, keys or values of a product that stores the three head by head.

    Their weights are extracted at every use: no view of the product has their shape, and
    TransformerLens' copies would take a third of a model's memory.
    """

    _source: tuple[torch.nn.Linear, int, int]

    def __init__(self, product: torch.nn.Linear, role: int, n_heads: int) -> None:
        super().__init__()
        # Not a submodule, because that would list its parameters a second time.
        object.__setattr__(self, "_source", (product, role, n_heads))

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        _, role, n_heads = self._source
        return tensor.unflatten(0, (n_heads, 3, -1))[:, role].flatten(0, 1)

    @property
    def weight(self) -> torch.Tensor:
        return self._part(self._source[0].weight)

    @property
    def bias(self) -> torch.Tensor | None:
        bias = self._source[0].bias
        return None if bias is None else self._part(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


def _share_by_head(bridge: Any, n_heads: int) -> None:
    """Makes the weights of queries, keys and values in every block parts of the product that
    they were copied from.
    """
    for block in bridge.blocks:
        product = block.attn.qkv.original_component
        for role, name in enumerate("qkv"):
            part = _OfFused(product, role, n_heads)
            component = getattr(block.attn, name)
            if torch.equal(part.weight, component.original_component.weight):
                component.set_original_component(part)


def _register_adapter(family: Family) -> str:
    """The name of an adapter that is built from an encoder's row and registered with
    TransformerLens.
    """
    from transformer_lens.factories import architecture_adapter_factory as factory
    from transformer_lens.model_bridge.supported_architectures.bert import BertArchitectureAdapter

    name = family.architectures[0]
    if name in factory.SUPPORTED_ARCHITECTURES:
        return name

    class RowAdapter(BertArchitectureAdapter):
        """BERT's adapter, with the module names of the row."""

        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            self.component_mapping = _modules_of(family, self.cfg)

        def prepare_model(self, hf_model: Any) -> None:
            """Does nothing: the row describes the model's only class."""

    factory.SUPPORTED_ARCHITECTURES[name] = RowAdapter
    factory.ArchitectureAdapterFactory.register_adapter(name, RowAdapter)
    return name


def _modules_of(family: Family, cfg: Any) -> dict[str, Any]:
    """TransformerLens' components for the modules of an encoder, by TransformerLens' names."""
    from transformer_lens.model_bridge import generalized_components as components

    (attention,) = family.attentions
    parts = {role: part for role, (part, _) in attention.parts.items()}
    linear = components.LinearBridge

    def norm(name: str) -> Any:
        native = {"use_native_layernorm_autograd": True}
        return components.NormalizationBridge(name=name, config=cfg, **native)

    hidden = linear(name=parts["gate_up" if "gate_up" in parts else "in"])
    mlp = {"in": hidden, "out": linear(name=parts["out"])}
    blocks = components.BlockBridge(
        name=family.prefix + attention.layer_prefix.removesuffix(".{}."),
        hook_alias_overrides={"hook_mlp_out": "mlp.out.hook_out", "hook_mlp_in": "mlp.in.hook_in"},
        submodules={
            "ln1": norm(parts["norm"]),
            "ln2": norm(parts["norm_mlp"]),
            "attn": _attention_of(parts, cfg),
            "mlp": components.MLPBridge(name=None, config=cfg, submodules=mlp),
        },
    )
    modules = {
        "embed": components.EmbeddingBridge(name=family.prefix + family.embed),
        "embed_ln": norm(family.prefix + family.embedding_norm),
        "blocks": blocks,
        "mlm_head": linear(name=family.lm_head_transform[0]),
        "ln_final": norm(family.lm_head_transform[1]),
        "unembed": components.UnembeddingBridge(name=family.unembed),
    }
    if family.position_table:
        table = family.prefix + family.position_table
        modules["pos_embed"] = components.PosEmbedBridge(name=table)
    return modules


def _attention_of(parts: Mapping[str, str], cfg: Any) -> Any:
    """TransformerLens' component for an encoder's attention, whose products may be fused."""
    from transformer_lens.model_bridge import generalized_components as components

    module = parts["o"].rpartition(".")[0]
    queries = parts.get("q", parts.get("qkv", ""))
    while not queries.startswith(module + "."):
        module = module.rpartition(".")[0]
    heads = {
        role: components.LinearBridge(name=part.removeprefix(module + "."))
        for role, part in parts.items()
        if role in ("q", "k", "v", "qkv", "o")
    }
    if "qkv" not in heads:
        return components.AttentionBridge(name=module, config=cfg, submodules=heads)
    split = partial(_thirds, name=heads["qkv"].name)
    attention = components.JointQKVPositionEmbeddingsAttentionBridge(
        name=module, config=cfg, split_qkv_matrix=split, submodules=heads
    )
    attention.is_causal = False
    return attention


def _thirds(attention: Any, *, name: str) -> tuple[torch.nn.Linear, ...]:
    """Queries, keys and values of a fused product as three separate products."""
    weight = getattr(attention, name).weight
    products = []
    for part in weight.chunk(3):
        rows, columns = part.shape
        product = torch.nn.Linear(columns, rows, bias=False, device="meta")
        product.weight = torch.nn.Parameter(part, requires_grad=False)
        products.append(product)
    return tuple(products)


def in_short(error: BaseException) -> str:
    """A library's error message, shortened to one line that fits into a sentence."""
    return " ".join((str(error) or type(error).__name__).split())[:120].rstrip(". ")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the libraries' warnings, log lines and progress bars, and protects the user's
    random state.

    The libraries draw random weights, which are then replaced. Everything is restored at the end.
    Only one thread is inside.
    """
    import transformers.utils.logging as bars

    with ONE_THREAD, warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # Read inside: another thread may have switched these off until it leaves.
        disabled = logging.root.manager.disable
        handlers = list(logging.root.handlers)
        had_bars = bars.is_progress_bar_enabled()
        warnings.simplefilter("ignore")
        try:
            logging.disable(logging.CRITICAL)
            bars.disable_progress_bar()
            yield
        finally:
            logging.disable(disabled)
            logging.root.handlers[:] = handlers
            if had_bars:
                bars.enable_progress_bar()
