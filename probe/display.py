"""The HTML of a result in a notebook, from formatters that higher packages register.

Results (a trace, a study, a walk) are created in packages below `pages` and cannot import it. They
call `html_of` instead, and `probe.pages.report` registers a formatter for each type with
`html_of.register`. Pages load altair, so they are imported only when a notebook first shows a
result: `probe/__init__.py`, the one module above all packages, sets `register_formatters` to a
function that imports them, and the first display calls it.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

# By the name of a file in a result's folder, the function that reads it; set by `probe/__init__.py`
# for results of packages above `pages`. It gets the path of the file, and by name what every result
# has: model_name, origin, certificate, frames.
readers: dict[str, Callable[..., Any]] = {}
# Set by `probe/__init__.py`; importing pages twice does nothing, so every display may call it.
register_formatters: Callable[[], object] = lambda: None


@singledispatch
def html_of(result: object) -> str:
    """The HTML of a result, without scripts and with its charts inside, so that a saved notebook
    still shows it.

    Raises TypeError for a type without a registered formatter.
    """
    raise TypeError(f"no picture of a {type(result).__name__}")


class Displayed:
    """A result that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        register_formatters()
        return html_of(self)
