"""The owner's hooks of a model, put on a bridge around the same tensors (`hooks="keep"`)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from probe.model.bridge import in_short
from probe.model.model import Config, refuse
from probe.model.objects import ModelObject, allowed_difference, difference_of, numbers
from probe.model.owner_hooks import KEPT, WHOLE, Hook


def attach_hooks(model_object: ModelObject, bridge: Any, config: Config, ids: list[int]) -> None:
    """Puts the hooks of an object permanently on the same parts of a bridge around its tensors.

    Raises ModelError if the bridge has no such part or does not call it, if the hooks fail on the
    text `ids`, if the bridge then computes other logits than the object, and if a batch of two
    texts gives other logits than each text alone: swaps are run in batches.
    """
    KEPT[bridge] = [hook.function for hook in model_object.hooks]
    parts: dict[str, nn.Module] = {}
    for hook in model_object.hooks:
        module = _part_of(
            bridge if model_object.bridge is not None else bridge.original_model, hook
        )
        if module is None:
            raise _not_called(model_object, hook.part)
        parts[hook.part] = module
        if hook.on_point:
            module.add_hook(hook.function, is_permanent=True)
        elif hook.before:
            module.register_forward_pre_hook(hook.function, with_kwargs=hook.with_kwargs)
        else:
            module.register_forward_hook(hook.function, with_kwargs=hook.with_kwargs)
    second = [*ids[:-1], (ids[-1] + 1) % config.d_vocab]
    inner = bridge.original_model
    try:
        with _watching(parts) as called:
            single = torch.cat([numbers(inner, config, [row]) for row in (ids, second)])
        together = numbers(inner, config, [ids, second])
        expected = torch.cat(
            [numbers(model_object.original, config, [row]) for row in (ids, second)]
        )
    except Exception as error:  # a hook may raise any exception
        names = ", ".join(hooked_parts(model_object))
        problem = f"its hooks ({names}) fail on a short text ({in_short(error)})"
        raise refuse(
            model_object.label, problem, "let them work for texts of any length"
        ) from error
    for part in parts:
        if part not in called:
            raise _not_called(model_object, part)
    for result, reference, compared in (
        (single, expected, "a copy with the same hooks computes something else than it does"),
        (together, single, "with its hooks two texts together give something else than each alone"),
    ):
        error_of = difference_of(result, reference)
        if not error_of <= allowed_difference(model_object.original, inner):
            step = "let every hook be a function of what it is given, row by row"
            raise refuse(
                model_object.label, f"{compared} (off by {error_of:.0e} of the scale)", step
            )


def _part_of(root: Any, hook: Hook) -> Any:
    """The part of a bridge, or of the model in it, for a hook; None if there is no such part."""
    from transformer_lens.model_bridge.generalized_components import BlockBridge

    if hook.on_point:
        return root.hook_dict.get(hook.part)
    module = root
    for name in () if hook.part == WHOLE else hook.part.split("."):
        while name not in module._modules and "_original_component" in module._modules:
            module = module._modules["_original_component"]
        module = module._modules.get(name)
        if module is None:
            return None
    if isinstance(module, BlockBridge) and not hook.before:
        # A change of a block's output must be made inside the bridge's block, whose hook point then
        # holds it.
        return module.original_component
    return module


@contextmanager
def _watching(parts: Mapping[str, nn.Module]) -> Iterator[set[str]]:
    """The names of the parts that are called."""
    called: set[str] = set()

    def watch(part: str) -> Callable[..., None]:
        return lambda *_: called.add(part)

    handles = [module.register_forward_hook(watch(part)) for part, module in parts.items()]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def _not_called(model_object: ModelObject, part: str) -> Exception:
    problem = f"TransformerLens, through which it is read, does not run {part}, which has a hook"
    return refuse(model_object.label, problem, "put the hook on a block, its attention or its MLP")


def hooked_parts(model_object: ModelObject) -> tuple[str, ...]:
    """The names of the parts of an object that carry hooks."""
    return tuple(dict.fromkeys(hook.part for hook in model_object.hooks))
