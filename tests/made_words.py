"""Records of words with planted effects, for what is said across words: no model, no sentences."""

from dataclasses import dataclass, field

import numpy as np

LAYERS, HEADS = 3, 4
DEPTHS = LAYERS + 1
SENSES_FROM = 2  # the depth from which on the senses of every word are apart
SEPARATION = np.array([0.5, 0.5, 0.9, 0.88])  # by depth


@dataclass(frozen=True, eq=False)
class MadeWord:
    """What a survey's summary reads of a word."""

    word: str
    net: np.ndarray
    gap: np.ndarray
    separation: np.ndarray
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
    squared_gap: np.ndarray = field(default_factory=lambda: np.zeros(DEPTHS))
    noun_squared_gap: np.ndarray = field(default_factory=lambda: np.zeros((0, DEPTHS)))


def by_depth(value):
    """A gap that is there from the depth on at which the senses are apart."""
    return np.where(np.arange(DEPTHS) >= SENSES_FROM, value, 0.0)


def of_heads(effects):
    """`layer head depth` of effects `layer head`, there from the depth on at which senses are."""
    return np.asarray(effects)[..., None] * (np.arange(DEPTHS) >= SENSES_FROM)


def made_word(
    number,
    effects,
    *,
    gap=1.0,
    general=None,
    noun_gap=0.5,
    rng=None,
    noise=0.0,
    **more,
):
    """A word whose heads have these effects (`layer head`, shares of its gap) beside noise in raw
    units; with `general`, also those of a noun in its place."""
    rng = rng or np.random.default_rng(number)

    def net(shares, size):
        return of_heads(np.asarray(shares) * size + noise * rng.normal(size=(LAYERS, HEADS)))

    beside = {}
    if general is not None:
        beside = {
            "nouns": ("fence",),
            "noun_gap": by_depth(noun_gap)[None],
            "noun_net": net(general, noun_gap)[None],
            "noun_squared_gap": by_depth(noun_gap**2)[None],
        }
    made = {
        "word": f"word{number:03}",
        "net": net(effects, gap),
        "gap": by_depth(gap),
        "separation": SEPARATION + 0.001 * rng.normal(size=DEPTHS),
        "squared_gap": by_depth(gap**2),
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
        pairs=0,
        reason=reason,
        left_out={reason: 4},
        squared_gap=nothing,
    )


def effects_of(**heads):
    """`layer head` of named heads: L0H1=.3."""
    effects = np.zeros((LAYERS, HEADS))
    for name, value in heads.items():
        layer, head = name[1:].split("H")
        effects[int(layer), int(head)] = value
    return effects
