"""The hooks that the owner of a model put on it: which there are, and where."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from probe.model.model import refuse

# Hooks of these packages are part of how a model runs, not of what somebody asks it.
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "transformer_lens", "nnsight")
WHOLE = "the whole model"  # as the part that a hook stands on
# By bridge: the functions of hooks that were kept.
KEPT: WeakKeyDictionary[Any, list[Callable[..., Any]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Hook:
    """A function that somebody put on a part of a model: a module, or a hook point of
    TransformerLens (`on_point`), by its name. `before`: it gets what enters the module, not what
    leaves it · `with_kwargs`: it gets keyword arguments, too, as torch has it."""

    part: str
    function: Callable[..., Any]
    on_point: bool = False
    before: bool = False
    with_kwargs: bool = False


def require_no_hooks(inner: Any, said: str, kept: Sequence[Callable[..., Any]] = ()) -> None:
    hook = next((hook for hook in hooks_of(inner) if hook.function not in kept), None)
    if hook is None:
        return
    problem = f"it already carries hooks ({hook.part}), which would change what is measured"
    step = "call remove() on the handle that register_forward_hook gave"
    if hook.on_point:
        step = "call bridge.reset_hooks() first"
    raise refuse(said, problem, f'{step}, or keep them with hooks="keep"')


def hooks_of(inner: Any) -> Iterator[Hook]:
    """The hooks that somebody put on a model, part by part, in the order in which they run there;
    those that libraries run with are left out, and so are hooks of gradients."""
    points = dict.fromkeys(getattr(inner, "hook_dict", {}).values())  # some have several names
    for point in sorted(points, key=lambda point: point.name):
        for handle in point.fwd_hooks:
            if not _of_library(handle.user_hook):
                yield Hook(point.name, handle.user_hook, on_point=True)
    seen: set[nn.Module] = set()
    # A bridge has the model that it runs as no part of its own.
    roots = (inner, getattr(inner, "original_model", inner))
    for name, module in chain.from_iterable(root.named_modules(seen) for root in roots):
        part = name.replace("_original_component.", "") or WHOLE  # found again without
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
