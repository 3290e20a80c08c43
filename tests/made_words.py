"""Records of words with planted effects, for what is said across words: no model, no sentences."""

from dataclasses import dataclass, field

import numpy as np

LAYERS, HEADS = 3, 4
DEPTHS = LAYERS + 1
SENSES_FROM = 2  # the depth from which on the senses of every word are apart


@dataclass(frozen=True, eq=False)
class MadeWord:
    """What a survey's summary reads of a word."""

    word: str
    net: np.ndarray
    gap: np.ndarray
    separation: np.ndarray
    squared_gap: np.ndarray
    kind: str = ""
    columns: dict = field(default_factory=dict)
    senses: int = 2
    sentences: int = 4
    pairs: int = 4
    left_out: dict = field(default_factory=dict)
    reason: str = ""
    nouns: tuple = ()
    noun_gap: np.ndarray = field(default_factory=lambda: np.zeros((0, DEPTHS)))
    noun_net: np.ndarray = field(default_factory=lambda: np.zeros((0, LAYERS, HEADS, DEPTHS)))
    noun_squared_gap: np.ndarray = field(default_factory=lambda: np.zeros((0, DEPTHS)))


def there(depths):
    """1 at the depths at which senses are apart, else 0."""
    return (np.arange(depths) >= SENSES_FROM).astype(float)


def made_word(number, effects, *, gap=1.0, general=None, noun_gap=0.5, rng=None, noise=0.0, **more):
    """A word whose heads have these effects (`layer head`, shares of its gap) beside noise in raw
    units; with `general`, also those of a noun in its place."""
    rng = rng or np.random.default_rng(number)
    effects = np.asarray(effects)
    at = there(len(effects) + 1)

    def net(shares, size):
        return (np.asarray(shares) * size + noise * rng.normal(size=effects.shape))[..., None] * at

    beside = {}
    if general is not None:
        beside = {
            "nouns": ("fence",),
            "noun_gap": noun_gap * at[None],
            "noun_net": net(general, noun_gap)[None],
            "noun_squared_gap": noun_gap**2 * at[None],
        }
    made = {
        "word": f"word{number:03}",
        "net": net(effects, gap),
        "gap": gap * at,
        # A little less with every depth, so that the first at which senses are apart is the best.
        "separation": 0.5
        + at * (0.4 - 0.01 * np.arange(len(at)))
        + 0.001 * rng.normal(size=len(at)),
        "squared_gap": gap**2 * at,
    }
    return MadeWord(**made | beside | more)


def unmeasured(number, reason="all cues stand behind the word"):
    """A word that could not be measured."""
    nothing = np.full(DEPTHS, np.nan)
    return MadeWord(
        f"word{number:03}",
        np.zeros((0, 0, 0)),
        nothing,
        nothing,
        nothing,
        pairs=0,
        reason=reason,
        left_out={reason: 4},
    )


def effects_of(shape=(LAYERS, HEADS), **heads):
    """`layer head` of named heads: L0H1=.3."""
    effects = np.zeros(shape)
    for name, value in heads.items():
        layer, head = name[1:].split("H")
        effects[int(layer), int(head)] = value
    return effects
