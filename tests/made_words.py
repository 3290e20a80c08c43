"""Records of words with planted effects, for statistics across words: no model, no sentences."""

import numpy as np
import xarray as xr
from inside import WordRecord

LAYERS, HEADS = 3, 4
DEPTHS = LAYERS + 1
SENSES_FROM = 2  # the first depth with a gap between the senses of every word


def record_of(
    *,
    word,
    net,
    gap,
    separation,
    squared_gap,
    kind="",
    columns=None,
    sentences=4,
    n_pairs=4,
    noun=None,
    untrained_gap=None,
    noun_gap=None,
    noun_net=None,
    noun_squared_gap=None,
    attention=None,
    reason="",
    not_used=None,
):
    """The part of a word's record that a survey's summary reads, for one pair of senses.

    gap, net: the same for every pair of sentences; also of the noun in the word's place, None for none
    attention: from the word to its cue; NaN for every head without a known cue
    """
    layers, heads = net.shape[:2]
    unknown = np.full((layers, heads), np.nan)
    senses = {
        "raw_gaps": (("sentence_pair", "stage"), np.tile(gap, (n_pairs, 1))),
        "separation": ("depth", separation),
        "squared_gap": ("depth", squared_gap),
    }
    if untrained_gap is not None:
        senses["untrained_gap"] = ("depth", untrained_gap)
    moved = np.stack([net, np.abs(net)], axis=-1)
    of_heads = {
        "attention_cue": (("layer", "head"), unknown if attention is None else attention),
        "moved_by_depth": (("layer", "head", "depth", "measure"), moved),
    }
    measured = {
        "senses": {
            "sentences": xr.Dataset({"part": ("row", ["tested"] * sentences)}),
            "0": xr.Dataset(senses, coords={"sense_a": "a", "sense_b": "b"}),
        },
        "heads": {"0": xr.Dataset(of_heads)},
        "nouns": None
        if noun is None
        else {"0": _noun(noun, noun_net, noun_gap, squared_gap, noun_squared_gap)},
    }
    return WordRecord(
        word=word,
        kind=kind,
        columns=columns or {},
        causal=True,
        left_out=(),
        not_used=not_used or {},
        reason=reason,
        heads=heads,
        has_heads=(True,) * layers,
        depth=0,
        measured={} if reason else measured,
    )


def _noun(noun, net, gap, word_squared_gap, squared_gap):
    """The noun in the word's place, as measured in one pair of sentences."""
    # Along the noun's axis, along the word's, and the length.
    measures = np.stack([net, net, np.abs(net)], axis=-1)
    layers, heads = np.indices(net.shape[:2])
    return xr.Dataset(
        {
            "pair_of": ("swap", [0]),
            "part_layer": ("part", layers.ravel()),
            "part_head": ("part", heads.ravel()),
            "moved_by_depth": (
                ("part", "depth", "measure"),
                measures.reshape(-1, *measures.shape[2:]),
            ),
            "pair_gap": (("swap", "depth"), gap[None]),
            "squared_gap": (("noun", "depth"), squared_gap[None]),
            "word_squared_gap": (("noun", "depth"), word_squared_gap[None]),
        },
        coords={"noun": [noun]},
    )


def net_of(word):
    """The net effect of each head of a word, which may be changed. `layer head depth`"""
    return word.measured["heads"]["0"].moved_by_depth.values[..., 0]


def gap_of(word):
    """The gap of a word. `depth`"""
    return word.measured["senses"]["0"].raw_gaps.values[0]


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
    return record_of(**fields | beside | more)


def unmeasured(number, reason="all cues come after the word"):
    """A word that could not be measured."""
    missing = np.full(DEPTHS, np.nan)
    return record_of(
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
