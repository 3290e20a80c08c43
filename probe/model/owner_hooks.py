"""The hooks that a model's owner has put on it, which cause a refusal."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from torch import nn

from probe.model.model import refuse

# Hooks of these packages belong to the way a model runs; they do not change its meaning.
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "transformer_lens", "nnsight")
WHOLE = "the whole model"  # the name of a hook's part if it is on the model itself
REMOVE = "call remove() on the handle that register_forward_hook gave"
RESET = "call bridge.reset_hooks(including_permanent=True)"


def require_no_hooks(inner: Any, label: str) -> None:
    """Raises ModelError for a model on which its owner has put hooks."""
    for part, step in _hooks_of(inner):
        problem = f"it carries hooks ({part}), which would change what is measured"
        raise refuse(label, problem, f"{step}, or put the change into the weights")


def _hooks_of(inner: Any) -> Iterator[tuple[str, str]]:
    """The name of the part that carries each of the owner's hooks, and how to remove the hook.
    Libraries' hooks and hooks of gradients are excluded.
    """
    for point in getattr(inner, "hook_dict", {}).values():
        if not all(_of_library(handle.user_hook) for handle in point.fwd_hooks):
            yield point.name, RESET
    memo: set[nn.Module] = set()
    # The model that a bridge runs is not a submodule of it.
    roots = (inner, getattr(inner, "original_model", inner))
    for name, module in chain.from_iterable(root.named_modules(memo) for root in roots):
        functions = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if not all(map(_of_library, functions)):
            yield name.replace("_original_component.", "") or WHOLE, REMOVE


def _of_library(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    package = str(getattr(hook, "__module__", "")).partition(".")[0]
    return package in LIBRARIES
