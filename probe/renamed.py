"""Arguments under their former names and positions, accepted for one more version, and the refusal
of arguments by position that a function takes by name.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar
from warnings import warn

from probe.errors import InputError

NAMED = 3  # arguments in an error, if none is required
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def renamed(
    positions: Mapping[int, str] | None = None, **names: str
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator: the function also takes its former arguments, with a DeprecationWarning, and
    raises InputError for further arguments by position.

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
        parameters = inspect.signature(function).parameters.values()
        by_name_only = [each for each in parameters if each.kind == each.KEYWORD_ONLY]
        most = len(parameters) - len(by_name_only)
        listed = ", ".join(each.name for each in [*parameters][:most])
        required = [f"{each.name}=" for each in by_name_only if each.default is each.empty]
        further = required or [f"{each.name}=" for each in by_name_only[:NAMED]]
        step = f"Give the others by name: {', '.join(further)}" if further else "Omit the others"

        @wraps(function)
        def call(*by_position: Arguments.args, **by_name: Arguments.kwargs) -> Result:
            former = []
            present = []
            first = min(positions or {}, default=len(by_position))
            if any(position not in (positions or {}) for position in range(most, len(by_position))):
                raise InputError(
                    f"Cannot call {function.__name__}: got {len(by_position)} arguments by "
                    f"position, expected at most {most} ({listed}). {step}."
                )
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
