"""Circuits with a known answer, planted into hand-built models at places that depend on the seed.

Every circuit says what it is made of and what a study has to find: the verdict of each planted head. `second`, `decoy`
and `accent` are features that no head and no neuron reads or writes that is not planted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from handmade import D_MLP, D_MODEL, HEADS, LAYERS, TURN, WRITTEN_BY_ANY, Head, Reading, Unit, make_handmade, resolver

from probe import Model, load

Place = tuple[int, int]
LENGTH = 1.25  # about what LayerNorm divides the word's vector by once its sense is written
EVEN = {
    "sense": 0.5,
    "accent": 0.5,
}  # the same for every cue of a sense: what one cue has less of the one it has more of the other


@dataclass(frozen=True)
class Circuit:
    """Heads and neurons, and the verdict of every planted head by its place."""

    heads: tuple[Head, ...]
    verdicts: tuple[str, ...]
    units: tuple[Unit, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple((head.layer, head.head) for head in self.heads)


def linear(layer: int, asks: Reading, gives: Reading) -> tuple[Unit, Unit]:
    """Two neurons that are a linear map, because gelu(x) - gelu(-x) = x."""
    return Unit(layer, asks, 0.0, gives), Unit(
        layer, {name: -value for name, value in asks.items()}, 0.0, _times(gives, -1)
    )


def step(layer: int, asks: Reading, at: float, gives: Reading, *, sharp: float = 60.0) -> tuple[Unit, Unit]:
    """Two neurons that give nothing while `asks` reads well below `at` and `gives` while it reads well above."""
    wide = 4.0  # the ramp from 0 to 1 is wide / sharp long: gelu(x + wide/2) - gelu(x - wide/2) = wide for large x
    scaled = _times(asks, sharp)
    return (
        Unit(layer, scaled, -sharp * at + wide / 2, _times(gives, 1 / wide)),
        Unit(layer, scaled, -sharp * at - wide / 2, _times(gives, -1 / wide)),
    )


def tidy(layer: int) -> tuple[Unit, ...]:
    """Neurons that take away most of what the random heads wrote, and silent ones: the senses have never been clearer.

    The read-out stands where the senses are clearest, so this is what places it after the whole circuit.
    """
    clean = tuple(unit for name in WRITTEN_BY_ANY for unit in linear(layer, {name: 1.0}, {name: -LENGTH}))
    return (*clean, *(Unit(layer, {}, 0.0, {}) for _ in range(D_MLP)))


def _times(reading: Reading, factor: float) -> Reading:
    return {name: factor * value for name, value in reading.items()}


# --- the circuits ----------------------------------------------------------------------------------------------------


def small_decoy(rng: np.random.Generator) -> Circuit:
    """Beside a resolver a head that copies the sense at a hundredth of its size where nothing else is: perfectly
    separable.
    """
    one, two = _places(rng, 2)
    return Circuit(
        (resolver(*one, takes=EVEN), resolver(*two, takes=EVEN, gives="decoy", size=0.03)), ("resolver", "carrier")
    )


def erased_decoy(rng: np.random.Generator) -> Circuit:
    """Beside a resolver a head that writes as much of the sense as it does, and neurons that take that away again."""
    one, two = _places(rng, 2)
    heads = (resolver(*one, takes=EVEN, size=4.0), resolver(*two, takes=EVEN, gives="decoy", size=1.0))
    return Circuit(heads, ("resolver", "carrier"), linear(two[0], {"decoy": 1.0}, {"decoy": -1.1}))


def additive(rng: np.random.Generator) -> Circuit:
    """Two heads that each write half of it, one from the sense of the cue and one from its accent."""
    one, two = _places(rng, 2)
    return Circuit(
        (resolver(*one, size=1.5), resolver(*two, takes={"accent": 1.0}, size=1.5)), ("resolver", "resolver")
    )


def either(rng: np.random.Generator) -> Circuit:
    """Two heads that write faintly, and neurons that write `resolved` as soon as one of them says the first sense."""
    return _combined(rng, at=-HINT)


def both(rng: np.random.Generator) -> Circuit:
    """The same, but neurons that write `resolved` only when both heads say the first sense."""
    return _combined(rng, at=HINT)


HINT = 0.15


def _combined(rng: np.random.Generator, *, at: float) -> Circuit:
    one, two = _places(rng, 2)
    heads = tuple(resolver(*place, takes=EVEN, gives="second", size=HINT) for place in (one, two))
    units = step(max(one[0], two[0]), {"second": 1.0}, at, {"resolved": 6.0})
    return Circuit(heads, ("resolver", "resolver"), units)


def backup(rng: np.random.Generator) -> Circuit:
    """A head that resolves, and a later one that looks at the cue only when the word was given another sense than the
    cue's.
    """
    first, second = sorted(rng.choice(LAYERS, size=2, replace=False).tolist())
    one, two = (first, int(rng.integers(HEADS))), (second, int(rng.integers(HEADS)))
    disagrees = ({"resolved": -9.0}, {name: 6 * weight for name, weight in EVEN.items()})
    watch = Head(*two, (disagrees, ({"anchor": 1.0}, {"is_bos": 6.0})), ((EVEN, {"resolved": 6.4}),))
    return Circuit((resolver(*one, takes=EVEN), watch), ("backup", "backup"))


def one_back(rng: np.random.Generator) -> Circuit:
    """A head that looks at the token before, whatever it is, and gives the word what sense it finds there."""
    [place] = _places(rng, 1)
    turn = 1000.0 * np.array([np.cos(TURN), np.sin(TURN)])
    looks = (
        ({"anchor": -1000.0 * np.cos(TURN / 2) / (D_MODEL / 2)}, {"anchor": 1.0}),  # further than half a turn: below 0
        ({"place_cos": turn[0], "place_sin": turn[1]}, {"place_cos": 1.0}),
        ({"place_sin": turn[0], "place_cos": -turn[1]}, {"place_sin": 1.0}),
    )
    return Circuit((Head(*place, looks, ((EVEN, {"resolved": 3.0}),)),), ("position-explained",))


def _places(rng: np.random.Generator, count: int) -> list[Place]:
    return [divmod(int(number), HEADS) for number in rng.permutation(LAYERS * HEADS)[:count]]


KINDS: dict[str, Callable[[np.random.Generator], Circuit]] = {
    make.__name__: make for make in (small_decoy, erased_decoy, additive, either, both, backup, one_back)
}


@cache
def planted_model(kind: str, seed: int) -> tuple[Model, Circuit]:
    """A model with one circuit in it, at places drawn with the seed. Shared: do not change it."""
    circuit = KINDS[kind](np.random.default_rng([seed, *map(ord, kind)]))
    with TemporaryDirectory() as folder:
        last = max(layer for layer, _ in circuit.places)
        here = [unit for unit in circuit.units if unit.layer == last]
        units = (*circuit.units, *tidy(last)[: D_MLP - len(here)])
        path = make_handmade(Path(folder) / "planted", circuit.heads, units=units, seed=seed)
        return load(path), circuit
