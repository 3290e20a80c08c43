"""Records of words with planted effects, for statistics across words: no model, no sentences."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

LAYERS, HEADS = 3, 4
DEPTHS = LAYERS + 1
SENSES_FROM = 2  # the first depth with a gap between the senses of every word


@dataclass(frozen=True, eq=False)
class MadeWord:
    """The part of a word's record that a survey's summary reads, for one pair of senses.

    gap, net: the same for every pair of sentences; also of the noun in the word's place, None for none
    """

    word: str
    net: np.ndarray
    gap: np.ndarray
    separation: np.ndarray
    squared_gap: np.ndarray
    kind: str = ""
    in_full: bool = False
    columns: dict = field(default_factory=dict)
    sentences: int = 4
    n_pairs: int = 4
    left_out: tuple = ()
    not_used: dict = field(default_factory=dict)
    measured: dict = field(default_factory=dict)
    reason: str = ""
    noun: str | None = None
    untrained_gap: np.ndarray | None = None
    noun_gap: np.ndarray | None = None
    noun_net: np.ndarray | None = None
    noun_squared_gap: np.ndarray | None = None
    attention: np.ndarray | None = None  # from the word to its cue; None without a known cue

    @property
    def attention_cue(self):
        """NaN for every head without a known cue."""
        unknown = np.full(self.net.shape[:2], np.nan)
        return unknown if self.attention is None else self.attention

    @property
    def layers(self):
        return len(self.net)

    @property
    def heads(self):
        return self.net.shape[1]

    @property
    def pairs(self):
        """The pair of senses; none for a word that was not measured."""
        if self.reason:
            return ()
        pair = SimpleNamespace(
            senses=("a", "b"),
            split=SimpleNamespace(rows=range(self.sentences)),
            pairs=range(self.n_pairs),
            raw_gap=np.tile(self.gap, (self.n_pairs, 1)),
            by_depth=self.separation,
            squared_gap=self.squared_gap,
            raw_effect=np.stack([self.net, np.abs(self.net)], axis=-1),
            untrained_gap=self.untrained_gap,
            attention={"cue": self.attention_cue},
        )
        return (pair,)

    def of_pairs(self, experiment):
        """The noun in the word's place, as measured in one pair of sentences."""
        assert experiment == "nouns"
        if self.reason:
            return ()
        if self.noun is None:
            return (None,)
        # Along the noun's axis, along the word's, and the length.
        measures = np.stack([self.noun_net, self.noun_net, np.abs(self.noun_net)], axis=-1)
        of_noun = SimpleNamespace(
            nouns=(self.noun,),
            pair_of=np.array([0]),
            heads=tuple(np.ndindex(self.net.shape[:2])),
            by_depth=measures.reshape(-1, *measures.shape[2:]),
            pair_gap=self.noun_gap[None],
            squared_gap=self.noun_squared_gap[None],
            word_squared_gap=self.squared_gap[None],
        )
        return (of_noun,)


def there(depths):
    """1 at depths with a gap between senses, else 0."""
    return (np.arange(depths) >= SENSES_FROM).astype(float)


def made_word(number, effects, *, gap=1.0, nouns=None, noun_gap=0.5, rng=None, noise=0.0, **more):
    """A word whose heads have these effects (`layer head`, shares of its gap) plus noise in raw
    units; with `nouns`, also the effects on a noun in its place, as shares of the word's gap."""
    rng = rng or np.random.default_rng(number)
    effects = np.asarray(effects)
    at = there(len(effects) + 1)

    def net(shares, size):
        return (np.asarray(shares) * size + noise * rng.normal(size=effects.shape))[..., None] * at

    beside = {}
    if nouns is not None:
        beside = {
            "noun": "fence",
            "noun_gap": noun_gap * at,
            "noun_net": net(nouns, gap),
            "noun_squared_gap": noun_gap**2 * at,
        }
    fields = {
        "word": f"word{number:03}",
        "net": net(effects, gap),
        "gap": gap * at,
        # Slightly less with every depth, so that the first depth with a gap is the best.
        "separation": 0.5
        + at * (0.4 - 0.01 * np.arange(len(at)))
        + 0.001 * rng.normal(size=len(at)),
        "squared_gap": gap**2 * at,
    }
    return MadeWord(**fields | beside | more)


def unmeasured(number, reason="all cues come after the word"):
    """A word that could not be measured."""
    missing = np.full(DEPTHS, np.nan)
    return MadeWord(
        word=f"word{number:03}",
        net=np.zeros((LAYERS, HEADS, DEPTHS)),
        gap=missing,
        separation=missing,
        squared_gap=missing,
        reason=reason,
        not_used={reason: 4},
    )


def effects_of(shape=(LAYERS, HEADS), **heads):
    """`layer head` of named heads: L0H1=.3."""
    effects = np.zeros(shape)
    for name, value in heads.items():
        layer, head = name[1:].split("H")
        effects[int(layer), int(head)] = value
    return effects
