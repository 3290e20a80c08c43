"""Arguments by the names and in the order that they had in the version before, for one version."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar
from warnings import warn

Given = ParamSpec("Given")
Result = TypeVar("Result")


def renamed(
    places: Mapping[int, str] | None = None, **names: str
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """A decorator: the function also takes its former arguments, with a DeprecationWarning.

    places: the names of what was given by place and no longer is. It is taken by place only where
        nothing of the first of these names is given
    names: the present name of each former one

    Example:
        >>> from probe.renamed import renamed
        >>> @renamed(places={1: "against"}, b="against")
        ... def compare(text, *, against):
        ...     return text, against
        >>> compare("The river bank", b="The mortgage bank")
        ('The river bank', 'The mortgage bank')
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @wraps(function)
        def call(*given: Given.args, **by_name: Given.kwargs) -> Result:
            former = []
            first = min(places or {}, default=len(given))
            if places and len(given) > first and places[first] not in by_name:
                for place, value in enumerate(given[first:], start=first):
                    by_name[places[place]] = value
                    former.append(f"argument {place + 1}")
                given = given[:first]  # type: ignore[assignment]
            for name in [name for name in by_name if name in names]:
                by_name[names[name]] = by_name.pop(name)
                former.append(f"{name}=")
            if former:
                present = [*names.values(), *(places or {}).values()]
                warn(
                    f"{function.__name__}: {' and '.join(former)} will not be taken by the next "
                    f"version; write {', '.join(f'{name}=' for name in dict.fromkeys(present))}.",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return function(*given, **by_name)

        return call

    return decorate
