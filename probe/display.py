"""What a notebook shows of a result: the page room draws it, and a result, which stands before that room, knows it by
name only, so that it is loaded when something is shown.
"""

from importlib import import_module

DRAWS = "probe.pages.report"


class Shown:
    """A result that a notebook shows as HTML without scripts, pictures included, which stays in the saved file."""

    def _repr_html_(self) -> str:
        return str(import_module(DRAWS).html_of(self))
