"""The hooks that a model's owner has put on it, and their places."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from probe.model.model import refuse

# Hooks of these packages belong to the way a model runs; they do not change its meaning.
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "transformer_lens", "nnsight")
WHOLE = "the whole model"  # the name of a hook's part if it is on the model itself
# By bridge: the functions of hooks that stay active.
KEPT: WeakKeyDictionary[Any, list[Callable[..., Any]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Hook:
    """A function on a part of a model.

    part: the name of the module, or of TransformerLens' hook point (`on_point`)
    before: whether it gets the module's input, not its output
    with_kwargs: whether it also gets keyword arguments, as in torch
    """

    part: str
    function: Callable[..., Any]
    on_point: bool = False
    before: bool = False
    with_kwargs: bool = False


def require_no_hooks(inner: Any, label: str, active: Sequence[Callable[..., Any]] = ()) -> None:
    """Raises ModelError for a model with hooks other than `active`."""
    hook = next((hook for hook in hooks_of(inner) if hook.function not in active), None)
    if hook is None:
        return
    problem = f"it already carries hooks ({hook.part}), which would change what is measured"
    step = "call remove() on the handle that register_forward_hook gave"
    if hook.on_point:
        step = "call bridge.reset_hooks() first"
    raise refuse(label, problem, f'{step}, or keep them with hooks="keep"')


def hooks_of(inner: Any) -> Iterator[Hook]:
    """The owner's hooks on a model, part by part, in the order in which they run. Libraries'
    hooks and hooks of gradients are excluded.
    """
    points = dict.fromkeys(getattr(inner, "hook_dict", {}).values())  # some have several names
    for point in sorted(points, key=lambda point: point.name):
        for handle in point.fwd_hooks:
            if not _of_library(handle.user_hook):
                yield Hook(point.name, handle.user_hook, on_point=True)
    memo: set[nn.Module] = set()
    # The model that a bridge runs is not a submodule of it.
    roots = (inner, getattr(inner, "original_model", inner))
    for name, module in chain.from_iterable(root.named_modules(memo) for root in roots):
        part = name.replace("_original_component.", "") or WHOLE  # `_part_of` finds it without this
        for number, function in module._forward_pre_hooks.items():
            if not _of_library(function):
                with_kwargs = number in module._forward_pre_hooks_with_kwargs
                yield Hook(part, function, before=True, with_kwargs=with_kwargs)
        for number, function in module._forward_hooks.items():
            if not _of_library(function):
                with_kwargs = number in module._forward_hooks_with_kwargs
                yield Hook(part, function, with_kwargs=with_kwargs)


def _of_library(hook: Any) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    package = str(getattr(hook, "__module__", "")).partition(".")[0]
    return package in LIBRARIES
