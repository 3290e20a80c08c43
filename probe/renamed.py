"""Arguments under their former names and positions, accepted for one more version."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar
from warnings import warn

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def renamed(
    positions: Mapping[int, str] | None = None, **names: str
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator: the function also takes its former arguments, with a DeprecationWarning.

    positions: the names of arguments that were positional and are keyword-only now. They are taken
        by position only if the first of them is not given by name
    names: the present name of each former name

    Example:
        >>> from probe.renamed import renamed
        >>> @renamed(positions={1: "against"}, b="against")
        ... def compare(text, *, against):
        ...     return text, against
        >>> compare("The river bank", b="The mortgage bank")
        ('The river bank', 'The mortgage bank')
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def call(*by_position: Arguments.args, **by_name: Arguments.kwargs) -> Result:
            former = []
            present = []
            first = min(positions or {}, default=len(by_position))
            if positions and len(by_position) > first and positions[first] not in by_name:
                for position, value in enumerate(by_position[first:], start=first):
                    by_name[positions[position]] = value
                    former.append(f"argument {position + 1}")
                    present.append(positions[position])
                by_position = by_position[:first]  # type: ignore[assignment]
            for name in [name for name in by_name if name in names]:
                by_name[names[name]] = by_name.pop(name)
                former.append(f"{name}=")
                present.append(names[name])
            if former:
                warn(
                    f"{function.__name__}: the next version will not take "
                    f"{' and '.join(former)}. Write "
                    f"{', '.join(f'{name}=' for name in dict.fromkeys(present))}.",
                    DeprecationWarning,
                    stacklevel=2,
                )
            return function(*by_position, **by_name)

        return call

    return decorate
