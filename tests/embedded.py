"""The embedded models, each loaded once in a process. They are shared, so no test may leave a hook
or a changed weight in one."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe import Model


@cache
def embedded(name: str = "tiny-senses") -> "Model":
    """An embedded model by its name, without options."""
    import probe

    return probe.load(name)
