"""What every part of a walk looks at: one trace, the word in it, the same word elsewhere, the head, the tokens that are drawn."""

from dataclasses import dataclass

from probe.model.records import Trace
from probe.pages.walk.choose import Place

HEAD_NUMBERS = 6  # first coordinates shown of vectors of a head (d_head)
STREAM_NUMBERS = 4  # and of vectors of the stream (d_model)
CELLS = 28_500  # head x query x key that a page carries, about 2 MB: all heads of GPT-2 small up to 14 tokens


@dataclass(frozen=True, eq=False)
class Scene:
    """`shown` are the positions that are drawn; `layer` and `head` the head that is followed first."""

    trace: Trace
    here: Place
    other: Trace
    there: Place
    layer: int
    head: int
    shown: tuple[int, ...]

    @property
    def at(self) -> int:
        return self.here.at

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many layers, heads, d_model, d_head."""
        return self.trace.weights.shape

    @property
    def whole(self) -> bool:
        """Whether every token is drawn."""
        return len(self.shown) == len(self.trace.tokens)

    @property
    def layers(self) -> list[int]:
        """The layers whose heads can be followed on the page: all, or in a large model or text only the one that was chosen."""
        layers, heads = self.sizes[:2]
        cells = layers * heads * len(self.shown) ** 2
        return list(range(layers)) if cells <= CELLS else [self.layer]
