"""What a notebook shows of a result: HTML, drawn by formatters that higher packages register.

Results (a trace, a study, a walk) are made in packages that know no page; pages know how to draw
them. So a result asks this leaf, and `probe.pages.report` registers a formatter for each type with
`html_of.register`. Pages load altair, so nothing imports them before a notebook first shows a
result: `probe/__init__.py`, the one module above all packages, sets `register_formatters` to a
function that imports them, and the first display calls it.
"""

from collections.abc import Callable
from functools import singledispatch

# Set by `probe/__init__.py`; importing pages twice does nothing, so every display may call it.
register_formatters: Callable[[], object] = lambda: None


@singledispatch
def html_of(result: object) -> str:
    """The HTML of a result, without scripts, its pictures inside, so that it stays in the saved
    notebook.

    Raises TypeError for a type that no formatter is registered for.
    """
    raise TypeError(f"no picture of a {type(result).__name__}")


class Displayed:
    """A result that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        register_formatters()
        return html_of(self)
