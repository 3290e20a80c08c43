"""Circuits with a known answer, planted into hand-built models at heads that depend on the seed.

Every circuit describes its parts and the verdict that a study has to find for each planted head.
Only planted heads and neurons read or write the features `second`, `decoy` and `accent`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from handmade import (
    CUES,
    D_MLP,
    D_MODEL,
    HEADS,
    LAYERS,
    SENSES,
    TO_BOS,
    TURN,
    WORD,
    WRITTEN_BY_ANY,
    Head,
    Reading,
    Unit,
    make_handmade,
    make_sentences,
    resolver,
    write_vector,
)
from inside import TargetText, read_weights

from probe import Model, load, tokenize

HeadIndex = tuple[int, int]
# About the number by which LayerNorm divides the word's vector once its sense is written.
LENGTH = 1.25
# Equal for every cue of a sense: a cue with less of one feature has more of the other.
EVEN = {"sense": 0.5, "accent": 0.5}
TO_MARKER = ({"is_target": 8.0}, {"marker": 6.0})
# Equal for any token after the marker, the word or another noun in its place.
ANY_TO_MARKER = ({"anchor": 2.0}, {"marker": 6.0})


@dataclass(frozen=True)
class Circuit:
    """Heads and neurons, and the verdict of every planted head by its position."""

    heads: tuple[Head, ...]
    verdicts: tuple[str, ...]
    units: tuple[Unit, ...] = ()

    @property
    def head_indices(self) -> tuple[HeadIndex, ...]:
        return tuple((head.layer, head.head) for head in self.heads)


def linear(layer: int, asks: Reading, gives: Reading) -> tuple[Unit, Unit]:
    """Two neurons that are a linear map, because gelu(x) - gelu(-x) = x."""
    return Unit(layer, asks, 0.0, gives), Unit(layer, _times(asks, -1), 0.0, _times(gives, -1))


def step(
    layer: int, asks: Reading, at: float, gives: Reading, *, sharp: float = 60.0
) -> tuple[Unit, Unit]:
    """Two neurons that write nothing while `asks` is well below `at` and `gives` while it is well
    above."""
    # The ramp from 0 to 1 has length wide / sharp: gelu(x + wide/2) - gelu(x - wide/2) = wide for
    # large x.
    wide = 4.0
    asks, middle = _times(asks, sharp), -sharp * at
    up, down = (
        Unit(layer, asks, middle + sign * wide / 2, _times(gives, sign / wide)) for sign in (1, -1)
    )
    return up, down


def tidy(layer: int) -> tuple[Unit, ...]:
    """Neurons that remove most of the random heads' writes, and silent ones, so that the senses
    have their largest gap.

    The read-out layer is where the gap is largest, so this puts it after the whole circuit.
    """
    clean = tuple(
        unit for name in WRITTEN_BY_ANY for unit in linear(layer, {name: 1.0}, {name: -LENGTH})
    )
    return (*clean, *(Unit(layer, {}, 0.0, {}) for _ in range(D_MLP)))


def _times(reading: Reading, factor: float) -> Reading:
    return {name: factor * value for name, value in reading.items()}


# --- the circuits ---------------------------------------------------------------------------------


def small_decoy(rng: np.random.Generator) -> Circuit:
    """A resolver, and a head that copies the sense at a hundredth of its size to an empty
    coordinate: all separable."""
    first, second = _random_heads(rng, 2)
    heads = (resolver(*first, takes=EVEN), resolver(*second, takes=EVEN, gives="decoy", size=0.03))
    return Circuit(heads, ("resolver", "separates"))


def erased_decoy(rng: np.random.Generator) -> Circuit:
    """A resolver, and a head that writes the same amount of the sense, with neurons that remove its
    write."""
    first, second = _random_heads(rng, 2)
    heads = (
        resolver(*first, takes=EVEN, size=4.0),
        resolver(*second, takes=EVEN, gives="decoy", size=1.0),
    )
    erasing = linear(second[0], {"decoy": 1.0}, {"decoy": -1.1})
    return Circuit(heads, ("resolver", "separates"), erasing)


def additive(rng: np.random.Generator) -> Circuit:
    """Two heads that each write half of it: from the sense of the cue, and from its accent."""
    first, second = _random_heads(rng, 2)
    heads = (resolver(*first, size=1.5), resolver(*second, takes={"accent": 1.0}, size=1.5))
    return Circuit(heads, ("resolver", "resolver"))


def either(rng: np.random.Generator) -> Circuit:
    """Two heads with small writes, and neurons that write `resolved` if at least one of them writes
    the first sense."""
    return _combined(rng, at=-HINT)


def both(rng: np.random.Generator) -> Circuit:
    """The same, but neurons that write `resolved` only if both heads write the first sense."""
    return _combined(rng, at=HINT)


HINT = 0.15


def _combined(rng: np.random.Generator, *, at: float) -> Circuit:
    first, second = _random_heads(rng, 2)
    heads = tuple(
        resolver(*head, takes=EVEN, gives="second", size=HINT) for head in (first, second)
    )
    units = step(max(first[0], second[0]), {"second": 1.0}, at, {"resolved": 6.0})
    # Each writes less than 2 % of the gap: they move the word together with the neurons.
    return Circuit(heads, ("mover", "mover"), units)


def backup(rng: np.random.Generator) -> Circuit:
    """A resolver, and a later head that attends to the cue only if the word has another sense than
    the cue."""
    first, second = _in_order(rng)
    disagrees = ({"resolved": -9.0}, {name: 6 * weight for name, weight in EVEN.items()})
    # It gives a little more than was taken away, so that with no seed something is left.
    watch = Head(
        *second, (disagrees, ({"anchor": 1.0}, {"is_bos": 6.0})), ((EVEN, {"resolved": 6.5}),)
    )
    # A swap of the first alone does not change the next token: the second is its backup.
    return Circuit((resolver(*first, takes=EVEN), watch), ("unread", "backup"))


def decoy(rng: np.random.Generator) -> Circuit:
    """A resolver, and a head that writes the same amount of the sense where nothing reads it."""
    first, second = _random_heads(rng, 2)
    return Circuit(
        (resolver(*first, takes=EVEN), resolver(*second, takes=EVEN, gives="decoy")),
        ("resolver", "unread"),
    )


def two_step(rng: np.random.Generator) -> Circuit:
    """A mover writes the sense of the cue to the tokens after it except the word, and a reader
    reads it there."""
    first, second = _in_order(rng)
    asks = {"anchor": 2.0, "is_target": -20.0, "is_cue": -20.0}
    carries = ((EVEN, {"second": 2.0}), ({"is_cue": 1.0}, {"marker": 2.0}))
    mover = Head(*first, ((asks, {"is_cue": 6.0}), TO_BOS), carries)
    reader = Head(*second, (TO_MARKER, TO_BOS), (({"second": 1.0}, {"resolved": 3.0}),))
    return Circuit((mover, reader), ("none", "resolver"))


def weak_suppressor(rng: np.random.Generator) -> Circuit:
    """A later head removes a third of it."""
    return _suppressed(rng, -1.0)


def strong_suppressor(rng: np.random.Generator) -> Circuit:
    """A later head removes two thirds of it: the first writes three times the gap."""
    return _suppressed(rng, -2.0)


def _suppressed(rng: np.random.Generator, size: float) -> Circuit:
    first, second = _in_order(rng)
    return Circuit(
        (resolver(*first, takes=EVEN), resolver(*second, takes=EVEN, size=size)),
        ("resolver", "opposes"),
    )


def erased(rng: np.random.Generator) -> Circuit:
    """A resolver in the first layer, and a head of the second layer with the same write, which
    neurons of the third erase."""
    first, second = (0, int(rng.integers(HEADS))), (1, int(rng.integers(HEADS)))
    heads = (resolver(*first, takes=EVEN), resolver(*second, takes=EVEN, gives="decoy"))
    return Circuit(heads, ("resolver", "erased"), linear(2, {"decoy": 1.0}, {"decoy": -1.5}))


def function_word(rng: np.random.Generator) -> Circuit:
    """A head that reads "this" or "that" at the word, which goes with the sense, and never the
    marked cue. It acts on the word alone; `any_function_word` acts on any token."""
    [head] = _random_heads(rng, 1)
    return Circuit((_reader_of_marker(head, TO_MARKER),), ("resolver",))


def any_function_word(rng: np.random.Generator) -> Circuit:
    """A nuisance: the same head writes the sense of "this" or "that" to any token after it, so that
    other nouns in the word's place change as much as the word."""
    [head] = _random_heads(rng, 1)
    return Circuit((_reader_of_marker(head, ANY_TO_MARKER),), ("mover",))


def _reader_of_marker(head: HeadIndex, looks: tuple[Reading, Reading]) -> Head:
    return Head(*head, (looks, TO_BOS), (({"second": 1.0}, {"resolved": 3.0}),))


def matched(rng: np.random.Generator) -> Circuit:
    """A head writes to the word which cue of its sense the cue is, and nothing about the sense; a
    later head writes the sense of the cue to the word only if that fits the cue.

    The write of the first head must fit for either sense: swapped, it removes the sense equally often
    if the donor has the same sense.
    """
    first, second = _in_order(rng)
    cue_identity = {"sense": 0.5, "accent": -0.5}
    teller = resolver(*first, takes=cue_identity, gives="decoy", size=1.0)
    looks = (({"decoy": 8000.0}, cue_identity), ({"anchor": 1.0}, {"is_bos": 1.5}))
    reader = Head(*second, looks, ((EVEN, {"resolved": 3.0}),))
    return Circuit((teller, reader), ("none", "mover"))


def own_place(rng: np.random.Generator) -> Circuit:
    """A nuisance: a head that reads the position of a token from the token itself, for any token.
    Other nouns in the word's place change as much as the word."""
    [head_index] = _random_heads(rng, 1)
    # Far larger for equal positions than for positions one apart.
    looks = (
        ({"place_cos": 1000.0}, {"place_cos": 1.0}),
        ({"place_sin": 1000.0}, {"place_sin": 1.0}),
    )
    head = Head(*head_index, looks, (({"place_cos": 1.0}, {"resolved": 3.0}),))
    return Circuit((head,), ("confounded",))


def one_pair_only(rng: np.random.Generator) -> Circuit:
    """A resolver, and a head that distinguishes cues of one sense that the first treats as equal:
    it reads their sense minus their accent."""
    first, second = _random_heads(rng, 2)
    less = resolver(*second, takes={"sense": 0.5, "accent": -0.5}, gives="second", size=8.0)
    return Circuit((resolver(*first, takes=EVEN), less), ("resolver", "resolver"))


def one_back(rng: np.random.Generator) -> Circuit:
    """A head that attends to the previous token, whatever it is, and writes the sense that it finds
    there to the word."""
    [head] = _random_heads(rng, 1)
    return Circuit((copier(*head, EVEN, {"resolved": 3.0}),), ("position-explained",))


def copier(layer: int, head: int, takes: Reading, gives: Reading) -> Head:
    """A head that attends to the previous token, whatever it is, reads a feature there and writes a
    feature here."""
    turn = 1000.0 * np.array([np.cos(TURN), np.sin(TURN)])
    looks = (
        (
            {"anchor": -1000.0 * np.cos(TURN / 2) / (D_MODEL / 2)},
            {"anchor": 1.0},
        ),  # more than half a turn: below 0
        ({"place_cos": turn[0], "place_sin": turn[1]}, {"place_cos": 1.0}),
        ({"place_sin": turn[0], "place_cos": -turn[1]}, {"place_sin": 1.0}),
    )
    return Head(layer, head, looks, ((takes, gives),))


def _random_heads(rng: np.random.Generator, count: int) -> list[HeadIndex]:
    return [divmod(int(number), HEADS) for number in rng.permutation(LAYERS * HEADS)[:count]]


def _in_order(rng: np.random.Generator) -> tuple[HeadIndex, HeadIndex]:
    """A head of one layer and a head of a later one."""
    first, second = sorted(rng.choice(LAYERS, size=2, replace=False).tolist())
    return (first, int(rng.integers(HEADS))), (second, int(rng.integers(HEADS)))


KINDS: dict[str, Callable[[np.random.Generator], Circuit]] = {
    make.__name__: make
    for make in (
        *(
            small_decoy,
            erased_decoy,
            decoy,
            additive,
            either,
            both,
            backup,
            one_back,
            two_step,
            erased,
        ),
        *(weak_suppressor, strong_suppressor, function_word, any_function_word),
        *(own_place, matched),
    )
}


def circuit_of(kind: str, seed: int) -> Circuit:
    """A circuit at positions drawn with the seed."""
    return KINDS[kind](np.random.default_rng([seed, *map(ord, kind)]))


@cache
def planted_model(kind: str, seed: int) -> tuple[Model, Circuit]:
    """A model with one circuit, at positions drawn with the seed. Shared: do not change it."""
    circuit = circuit_of(kind, seed)
    return model_of(circuit, seed), circuit


def model_of(circuit: Circuit, seed: int) -> Model:
    """A model with a circuit in it."""
    with TemporaryDirectory() as folder:
        last = max(layer for layer, _ in circuit.head_indices)
        here = [unit for unit in circuit.units if unit.layer == last]
        units = (*circuit.units, *tidy(last)[: D_MLP - len(here)])
        return load(make_handmade(Path(folder) / "planted", circuit.heads, units=units, seed=seed))


# --- paths of several steps -----------------------------------------------------------------------

Edge = tuple[HeadIndex, int, HeadIndex, int, str]
CUE = (-1, -1)  # the embeddings as a sender


@dataclass(frozen=True)
class PlantedPaths:
    """Heads and neurons, and the effect of every edge between them with the cue `distance` tokens
    before the word: (denoise, noise), shares of the gap, by sender, its position, receiver, its
    position and channel. All other edges have no effect."""

    heads: tuple[Head, ...]
    edges: dict[Edge, tuple[float, float]]
    distance: int = 2
    units: tuple[Unit, ...] = ()


def two_steps(rng: np.random.Generator) -> PlantedPaths:
    """A mover copies the sense to the token after the cue, and a reader reads it there."""
    mover, reader = _rising(rng, 2)
    heads = (
        copier(*mover, EVEN, {"second": 1.0}),
        copier(*reader, {"second": 1.0}, {"resolved": 3.0}),
    )
    return PlantedPaths(heads, _chain(mover, reader))


def three_steps(rng: np.random.Generator) -> PlantedPaths:
    """The same over two tokens in between."""
    mover, middle, reader = _rising(rng, 3)
    first, second = (
        copier(*mover, EVEN, {"second": 1.0}),
        copier(*middle, {"second": 1.0}, {"decoy": 1.0}),
    )
    heads = (first, second, copier(*reader, {"decoy": 1.0}, {"resolved": 3.0}))
    return PlantedPaths(heads, _chain(mover, middle, reader), distance=3)


def two_ways(rng: np.random.Generator) -> PlantedPaths:
    """Two chains that each write half of it."""
    heads, chains = _two_chains(rng, {"resolved": 1.5})
    first_chain, second_chain = (_chain(*chain, does=(0.5, 0.5)) for chain in chains)
    return PlantedPaths(heads, first_chain | second_chain)


def either_way(rng: np.random.Generator) -> PlantedPaths:
    """Two chains that each end in a small write, and neurons that write `resolved` if at least one
    has the first sense."""
    heads, chains = _two_chains(rng, {"decoy": HINT})
    first_chain, second_chain = (_chain(*chain, does=(1.0, 0.0)) for chain in chains)
    units = step(
        2, {"decoy": 1.0}, -2 / 3 * HINT, {"resolved": 6.0}, sharp=120.0
    )  # for any size of the stream
    to_neurons = {(last, 0, (2, -1), 0, "input"): (1.0, 0.0) for _, last in chains}
    return PlantedPaths(heads, first_chain | second_chain | to_neurons, units=units)


def by_query(rng: np.random.Generator) -> PlantedPaths:
    """A head writes the sense to the word; a later one attends to the begin token for the first
    sense only."""
    first, second = _rising(rng, 2)
    asks = Head(
        *second, (({"second": 80.0}, {"is_bos": 12.0}),), (({"is_bos": 1.0}, {"resolved": 3.0}),)
    )
    heads = (
        resolver(*first, takes=EVEN, gives="second", size=0.1),
        asks,
    )  # almost nothing of the gap by itself
    edges = {(CUE, -2, first, 0, "value"): (1.0, 1.0), (first, 0, second, 0, "query"): (1.0, 1.0)}
    return PlantedPaths(heads, edges)


def by_key(rng: np.random.Generator) -> PlantedPaths:
    """A mover marks the token after the cue with the sense; a later head attends to it for one
    sense only."""
    first, second = _rising(rng, 2)
    looks = (({"is_target": 8.0}, {"second": 12.0}), ({"anchor": 1.0}, {"is_bos": 6.0}))
    heads = (
        copier(*first, EVEN, {"second": 1.0}),
        Head(*second, looks, (({"is_bos": 1.0}, {"resolved": 3.0}),)),
    )
    edges = {(CUE, -2, first, -1, "value"): (1.0, 1.0), (first, -1, second, 0, "key"): (1.0, 1.0)}
    return PlantedPaths(heads, edges)


def by_neurons(rng: np.random.Generator) -> PlantedPaths:
    """A mover copies the sense to the token after the cue; neurons there turn it into the feature
    that a reader reads."""
    mover, reader, neurons = (0, int(rng.integers(HEADS))), (2, int(rng.integers(HEADS))), (1, -1)
    heads = (
        copier(*mover, EVEN, {"second": 1.0}),
        copier(*reader, {"decoy": 1.0}, {"resolved": 3.0}),
    )
    edges = dict.fromkeys(
        [(CUE, -2, mover, -1, "value"), (mover, -1, neurons, -1, "input")], (1.0, 1.0)
    )
    edges[neurons, -1, reader, 0, "value"] = (1.0, 1.0)
    units = (step(1, {"second": sign}, 0.0, {"decoy": sign}) for sign in (1.0, -1.0))
    return PlantedPaths(heads, edges, units=tuple(unit for pair in units for unit in pair))


def by_function_word(rng: np.random.Generator) -> PlantedPaths:
    """A head that reads a function word before the word, and nothing of the cue."""
    [head] = _random_heads(rng, 1)
    return PlantedPaths(
        (copier(*head, EVEN, {"resolved": 6.0}),), {(CUE, -1, head, 0, "value"): (1.0, 1.0)}
    )


def _chain(
    *heads: HeadIndex, does: tuple[float, float] = (1.0, 1.0)
) -> dict[Edge, tuple[float, float]]:
    """Values from the cue to the first head, which reads one token after it, and so on to the
    word."""
    senders = [CUE, *heads]
    return {
        (sender, number - len(heads), receiver, number + 1 - len(heads), "value"): does
        for number, (sender, receiver) in enumerate(zip(senders, heads, strict=False))
    }


def _rising(rng: np.random.Generator, count: int) -> list[HeadIndex]:
    """Heads in increasing layers."""
    layers = sorted(rng.permutation(LAYERS)[:count].tolist())
    return [(layer, int(rng.integers(HEADS))) for layer in layers]


def _two_chains(
    rng: np.random.Generator, gives: Reading
) -> tuple[tuple[Head, ...], list[tuple[HeadIndex, HeadIndex]]]:
    """Two movers of one layer, whose writes readers of a later layer read, chain by chain."""
    early, late = sorted(rng.permutation(LAYERS)[:2].tolist())
    movers, readers = (rng.permutation(HEADS)[:2].tolist() for _ in range(2))
    features = ({"second": 1.0}, {"accent": 1.0})
    heads = [
        copier(early, head, EVEN, feature) for head, feature in zip(movers, features, strict=True)
    ]
    heads += [
        copier(late, head, feature, gives) for head, feature in zip(readers, features, strict=True)
    ]
    return tuple(heads), [
        ((early, mover), (late, reader)) for mover, reader in zip(movers, readers, strict=True)
    ]


PATH_KINDS: dict[str, Callable[[np.random.Generator], PlantedPaths]] = {
    make.__name__: make
    for make in (
        two_steps,
        three_steps,
        two_ways,
        either_way,
        by_query,
        by_key,
        by_neurons,
        by_function_word,
    )
}


@cache
def path_model(
    kind: str, seed: int, make: Callable[..., Path] = make_handmade
) -> tuple[Model, PlantedPaths]:
    """A model with such paths in it, at heads drawn with the seed. Shared: do not change it."""
    planted = PATH_KINDS[kind](np.random.default_rng([seed, *map(ord, kind)]))
    with TemporaryDirectory() as folder:
        path = make(Path(folder) / "paths", planted.heads, units=planted.units, seed=seed)
        return load(path), planted


def path_pairs(kind, seed=0, make=make_handmade):
    """Its weights, the members of its pairs, and its paths."""
    model, planted = path_model(kind, seed, make)
    return read_weights(model), *zip(*pairs_in(model, kind, planted.distance), strict=True), planted


AXIS = torch.tensor(write_vector({"resolved": 1.0}), dtype=torch.float32)[
    None
]  # where a resolved sense is written
CUES_EACH = 5


def flat(edge: Edge) -> tuple[object, ...]:
    """An edge as a row of `probe.patching.edges`."""
    sender, sender_pos, receiver, receiver_pos, channel = edge
    return *sender, sender_pos, *receiver, receiver_pos, channel


def pairs_in(model, kind, distance):
    """Members of aligned pairs up to the word, side by side."""
    if kind == "by_function_word":
        texts = by_function_word_texts()
    else:
        sentences = make_sentences(frames=2, distances=(distance,), cues=CUES_EACH)
        texts = [sentence.text.split(WORD)[0] + WORD for sentence in sentences]
    rows = [
        TargetText(tokens.ids, len(tokens) - 1)
        for tokens in (tokenize(model, text) for text in texts)
    ]
    return [*zip(rows[::2], rows[1::2], strict=True)]


def by_function_word_texts():
    """Every cue goes with a function word of its sense, directly before the word; two frames."""
    numbers = [
        (frame, pair) for frame in ("we saw", "they passed near") for pair in range(CUES_EACH)
    ]
    return [
        f"{frame} {CUES[sense][pair]} {CUES[sense][15 + pair]} {WORD}"
        for frame, pair in numbers
        for sense in SENSES
    ]
