"""How long work tells its caller what it is doing."""

from collections.abc import Callable

# Called with what is being done, and the share of all work that is finished, 0 to 1.
Progress = Callable[[str, float], None]


def silent(stage: str, share: float) -> None:
    """Says nothing."""
