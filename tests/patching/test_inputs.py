"""Arguments of swaps, traces and edges, and of readings of words: accepted, or refused with a
sentence."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from families import family_model
from inside import (
    TargetText,
    read_weights,
    swap_heads,
    swap_pairs,
    swap_sets,
    target_states,
    trace_positions,
)

import probe

A, B = "The muddy bank", "The rotten bank"


@pytest.fixture(scope="module")
def model() -> probe.Model:
    return family_model("gpt2")


@pytest.fixture(scope="module")
def texts(model):
    return [probe.tokenize(model, text) for text in (A, B)]


@pytest.fixture(scope="module")
def states(model, texts):
    return target_states(model, texts, [len(tokens) - 1 for tokens in texts])


@pytest.fixture(scope="module")
def direction(states):
    return (states.resid[0, -1] - states.resid[1, -1])[None]


def refused(ask: Callable[..., object], *arguments: object, **options: object) -> str:
    with pytest.raises(probe.InputError) as caught:
        ask(*arguments, **options)
    return str(caught.value)


def test_tokens_and_arrays_are_accepted_like_ids_and_tensors(model, texts, states, direction):
    weights, donors = read_weights(model), states.z.flip(0)
    ids = [tokens.ids for tokens in texts]
    expected = swap_heads(weights, ids, donors, direction)
    for source, rows in ((model, texts), (weights, [torch.tensor(row) for row in ids])):
        arrays = donors.numpy(), direction.numpy()
        assert torch.equal(swap_heads(source, rows, *arrays), expected)
    keep = torch.zeros(1, *donors.shape[1:3], dtype=torch.bool)
    by_set = swap_sets(weights, texts, donors, keep, direction)
    assert torch.equal(swap_sets(weights, texts, donors, keep.numpy(), direction), by_set)


def test_in_a_model_that_reads_both_ways_the_position_of_the_word_is_required():
    model = family_model("bert")
    texts = [probe.tokenize(model, f"{text} fell") for text in (A, B)]
    at = [tokens.positions_of("bank")[-1] for tokens in texts]
    states = target_states(model, texts, at)
    direction = (states.resid[0, -1] - states.resid[1, -1])[None]
    message = refused(swap_heads, model, texts, states.z.flip(0), direction)
    assert "without the position of the word, and this model reads both ways" in message
    assert "Give TargetText(tokens.ids, tokens.positions_of(word)[-1]) of probe.model" in message
    rows = [TargetText(tokens.ids, pos) for tokens, pos in zip(texts, at, strict=True)]
    effects = swap_heads(model, rows, states.z.flip(0), direction)
    assert torch.isfinite(effects).all() and effects[0, -1, :, 0].sum().abs() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "got texts [], expected at least one. Give a list of the ids of each"),
        ({"rows": A}, f"got texts {A!r}, expected at least one. Give a list of the ids of each"),
        ({"rows": (1, 2, 3)}, "got the ids of one text, expected a list of texts. Put it into bra"),
        ({"rows": [A, B]}, f"in text 0: got {A!r}, expected the ids of its tokens. Give probe."),
        ({"rows": [(1, 2), ()]}, "in text 1: got (), expected the ids of its tokens. Give probe."),
        ({"rows": [(1, -2), (1, 3)]}, "in text 0: got the id -2, expected 0 to 399. Give the ids "),
        ({"rows": [(1, 400), (1, 3)]}, "in text 0: got the id 400, expected 0 to 399. Give the id"),
        ({"rows": [(1, 2), (3,) * 41]}, "in text 1: got 41 tokens, expected at most 40, the conte"),
        ({"directions": torch.ones(28)}, "got directions of shape [28], expected direction d_mode"),
        ({"directions": "up"}, "got directions of shape [0], expected direction d_model (28 numb"),
        ({"directions": torch.ones(3, 2, 28)}, "each), or row stage d_model for 2 rows. Give one"),
        ({"directions": torch.ones(2, 1, 28)}, "got directions of 1 stage for each row, expected "),
        ({"directions": torch.full((1, 28), np.nan)}, "the directions contain NaN or infinite num"),
        ({"directions": torch.zeros(1, 28)}, "contain NaN or infinite numbers, or are all 0. Give"),
        ({"donor_z": torch.ones(1, 2, 4, 7)}, "got donors of shape [1, 2, 4, 7], expected row la"),
        ({"donor_z": torch.ones(2, 3, 4, 7)}, "up to depth 3: the model has 2 blocks. Give a whol"),
        ({"donor_z": None}, "got donors of shape [0], expected row layer head d_head, here [2, 4,"),
        ({"donor_z": torch.full((2, 2, 4, 7), np.nan)}, "the donors contain NaN or infinite numbe"),
    ],
)
def test_invalid_arguments_of_a_swap_are_refused(model, texts, states, direction, change, message):
    arguments = {"rows": texts, "donor_z": states.z, "directions": direction} | change
    sentence = refused(swap_heads, model, *arguments.values())
    assert sentence.startswith("Cannot swap heads") and message in sentence


@pytest.mark.parametrize(
    ("sets", "got"),
    [
        (torch.ones(1, 2, 4), "Tensor, expected set layer head of True and False, here [sets, 2, "),
        (torch.ones(2, 4, dtype=torch.bool), "a mask of shape [2, 4]"),
        (torch.ones(1, 3, 4, dtype=torch.bool), "a mask of shape [1, 3, 4]"),
        (None, "NoneType"),
    ],
)
def test_sets_that_are_not_masks_are_refused(model, texts, states, direction, sets, got):
    sentence = refused(swap_sets, model, texts, states.z, sets, direction)
    assert sentence.startswith(f"Cannot swap sets of heads: got {got}")
    assert sentence.endswith("Give a mask such as torch.zeros(1, 2, 4, dtype=torch.bool).")


# --- pairs: swaps both ways, traces over positions, and edges -------------------------------------

ONE, OTHER = [(1, 2, 3)], [(1, 4, 3)]
UNEQUAL = (
    "pair 0 has 3 and 2 tokens, expected equal numbers. Write its members equally long, omit the "
    "pair, or swap in each direction with swap_heads and the z of the other."
)
DEEP = "pairs up to depth 99: the model has 2 blocks. Give a whole number from 1 to 2."


@pytest.mark.parametrize(
    ("ask", "doing"),
    [
        (swap_pairs, "Cannot swap pairs"),
        (trace_positions, "Cannot trace pairs"),
        (probe.edges, "Cannot trace pairs"),
    ],
)
def test_pairs_that_do_not_fit_are_refused_by_every_function_of_pairs(model, direction, ask, doing):
    def sentence(a, b, depth=2, directions=direction):
        return refused(ask, model, a, b, directions, depth=depth)

    assert sentence([A], [B]).startswith(
        f"{doing} in text 0: got {A!r}, expected the ids of its to"
    )
    assert "in text 0: got the id -2, expected 0 to 399" in sentence([(1, -2)], [(1, 3)])
    assert sentence(ONE, [(1, 3)]) == f"{doing}: {UNEQUAL}"
    assert sentence(ONE, [*OTHER, *OTHER]) == (
        f"{doing}: got 1 texts and 2, expected equal numbers. Give each text a partner."
    )
    for depth in (99, 0):
        message = f"{doing.removesuffix('pairs')}{DEEP.replace('99', str(depth))}"
        assert sentence(ONE, OTHER, depth) == message
    for wrong in (direction[0], direction.expand(2, 2, 2, 28)):
        assert "got directions of shape" in sentence(ONE, OTHER, directions=wrong)
    infinite = torch.full((1, 28), np.inf)
    assert f"{doing}: the directions contain NaN" in sentence(ONE, OTHER, directions=infinite)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": 3}, "Cannot trace pairs: got positions 3, expected whole numbers counted f"),
        ({"positions": []}, "got positions [], expected whole numbers counted from the word, 0 th"),
        ({"positions": [0.5]}, "0 the word and -1 the token before it. Give a list, as in [-1, 0]"),
        ({"positions": [-4, 0]}, "Cannot trace positions -4 to 0 from the word: pair 0 has 2 toke"),
        ({"against": ONE}, "got members that are the same up to the word, expected a cue before i"),
    ],
)
def test_positions_that_cannot_be_traced_are_refused(model, direction, change, message):
    arguments = {"texts": ONE, "against": OTHER, "directions": direction, "depth": 2} | change
    assert message in refused(trace_positions, model, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reach": -1}, "measure edges: got reach = -1, expected a share of the gap, at least 0. "),
        ({"reach": "much"}, "got reach = 'much', expected a share of the gap, at least 0. Give on"),
        ({"limit": 1.5}, "got limit = 1.5, expected a whole number from 0 on. Omit it for all"),
        ({"sample": -1}, "got sample = -1, expected a whole number from 0 on. Omit it for 20"),
        ({"seed": "today"}, "got seed = 'today', expected a whole number from 0 on. Omit it"),
        ({"receivers": []}, "trace pairs: got receivers [], expected whole numbers counted from t"),
        ({"positions": [0], "receivers": [-1]}, "got senders at [0] and receivers at [-1], counte"),
    ],
)
def test_invalid_options_of_edges_are_refused(model, direction, change, message):
    sentence = refused(probe.edges, model, ONE, OTHER, direction, depth=2, **change)
    assert sentence.startswith("Cannot ") and message in sentence


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("total", 5), "got direction 5, expected 0 to 0. Give one of these."),
        (("total", -1), "got direction -1, expected 0 to 0. Give one of these."),
        (("fraction",), "got 'fraction', expected 'direct' or 'total'. Give one of these."),
    ],
)
def test_shares_that_do_not_exist_are_refused(model, direction, arguments, message):
    result = probe.edges(model, ONE, OTHER, direction, depth=2)
    assert refused(result.share, *arguments) == f"Cannot read shares of edges: {message}"


@pytest.mark.parametrize(
    ("sentences", "targets", "message"),
    [
        (2, [2], "got 2 tokenised texts of 2 and 1 positions, expected one position for each of"),
        ([A, B], [1, 1], "got 0 tokenised texts of 2 and 2 positions, expected one position for"),
        ([], [], "got 0 tokenised texts of 0 and 0 positions, expected one position for each of"),
        (2, [99, 2], "in text 0: got position 99 of "),
        (2, [1, -1], "in text 1: got position -1 of "),
        (2, [1, 1.5], "in text 1: got position 1.5 of "),
    ],
)
def test_invalid_positions_of_words_are_refused(model, texts, sentences, targets, message):
    sentence = refused(target_states, model, texts if sentences == 2 else sentences, targets)
    assert sentence.startswith("Cannot read ") and message in sentence
