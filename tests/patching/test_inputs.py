"""Arguments of swaps of heads and of readings of words: accepted, or refused with a sentence."""

import numpy as np
import pytest
import torch
from families import family_model

import probe
from probe.errors import InputError
from probe.model.load import read_weights
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.patching.heads import swap_heads, swap_pairs, swap_sets
from probe.patching.positions import trace_positions

A, B = "The muddy bank", "The rotten bank"
SIZES = "here [2, 2, 4, 7]"


@pytest.fixture(scope="module")
def model():
    return family_model("gpt2", torch.float32)


@pytest.fixture(scope="module")
def weights(model):
    return read_weights(model)


@pytest.fixture(scope="module")
def texts(model):
    return [probe.tokenize(model, text) for text in (A, B)]


@pytest.fixture(scope="module")
def states(model, texts):
    return target_states(model, texts, [len(tokens) - 1 for tokens in texts])


@pytest.fixture(scope="module")
def direction(states):
    return (states.resid[0, -1] - states.resid[1, -1])[None]


def test_tokens_and_arrays_are_accepted_like_ids_and_tensors(weights, texts, states, direction):
    ids = [tokens.ids for tokens in texts]
    expected = swap_heads(weights, ids, states.z.flip(0), direction)
    from_arrays = swap_heads(weights, texts, states.z.flip(0).numpy(), direction.numpy())
    assert torch.equal(from_arrays, expected)
    as_tensors = swap_heads(
        weights, [torch.tensor(row) for row in ids], states.z.flip(0), direction
    )
    assert torch.equal(as_tensors, expected)


def test_in_a_model_that_reads_both_ways_the_position_of_the_word_is_required():
    model = family_model("bert", torch.float32)
    texts = [
        probe.tokenize(model, text) for text in ("The muddy bank fell", "The rotten bank fell")
    ]
    at = [tokens.positions_of("bank")[-1] for tokens in texts]
    states = target_states(model, texts, at)
    inputs = (read_weights(model), texts, states.z.flip(0))
    direction = (states.resid[0, -1] - states.resid[1, -1])[None]
    with pytest.raises(InputError) as error:
        swap_heads(*inputs, direction)
    assert "without the position of the word, and this model reads both ways" in str(error.value)
    assert "Give TargetText(tokens.ids, tokens.positions_of(word)[-1]) of probe" in str(error.value)
    rows = [TargetText(tokens.ids, pos) for tokens, pos in zip(texts, at, strict=True)]
    effects = swap_heads(inputs[0], rows, inputs[2], direction)
    last = effects[0, -1, :, 0].sum()  # heads of the last layer move the read-out by their writes
    assert torch.isfinite(effects).all() and last.abs() > 0


def test_a_mask_may_be_an_array(weights, texts, states, direction):
    keep = torch.zeros(1, *states.z.shape[1:3], dtype=torch.bool)
    inputs = (weights, texts, states.z.flip(0))
    assert torch.equal(
        swap_sets(*inputs, keep.numpy(), direction), swap_sets(*inputs, keep, direction)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "got texts [], expected at least one. Give a list of the ids of each"),
        ({"rows": A}, f"got texts {A!r}, expected at least one. Give a list of the ids of each"),
        ({"rows": (1, 2, 3)}, "got the ids of one text, expected a list of texts. Put it into brac"),
        ({"rows": [A, B]}, f"in text 0: got {A!r}, expected the ids of its tokens. Give probe."),
        ({"rows": [(1, 2), ()]}, "in text 1: got (), expected the ids of its tokens. Give probe."),
        ({"rows": [(1, -2), (1, 3)]}, "in text 0: got the id -2, expected 0 to 399. Give the ids of"),
        ({"rows": [(1, 400), (1, 3)]}, "in text 0: got the id 400, expected 0 to 399. Give the ids"),
        ({"rows": [(1, 2), (3,) * 41]}, "in text 1: got 41 tokens, expected at most 40, the context"),
        ({"directions": torch.ones(28)}, "got directions of shape [28], expected direction d_model"),
        ({"directions": torch.ones(1, 7)}, "got directions of shape [1, 7], expected direction d_"),
        ({"directions": "up"}, "got directions of shape [0], expected direction d_model (28 numb"),
        ({"directions": torch.ones(3, 2, 28)}, "each), or row stage d_model for 2 rows. Give one"),
        ({"directions": torch.ones(2, 1, 28)}, "got directions of 1 stage for each row, expected 2,"),
        ({"directions": torch.full((1, 28), np.nan)}, "the directions contain NaN or infinite numbers"),
        ({"directions": torch.zeros(1, 28)}, "contain NaN or infinite numbers, or are all 0. Give a dif"),
        ({"donor_z": torch.ones(1, 2, 4, 7)}, "got donors of shape [1, 2, 4, 7], expected row la"),
        ({"donor_z": torch.ones(2, 2, 4, 8)}, f"expected row layer head d_head, {SIZES}. Give tar"),
        ({"donor_z": torch.ones(2, 3, 4, 7)}, "up to depth 3: the model has 2 blocks. Give a whole"),
        ({"donor_z": None}, "got donors of shape [0], expected row layer head d_head, here [2, 4, 7"),
        ({"donor_z": torch.full((2, 2, 4, 7), np.nan)}, "the donors contain NaN or infinite numbers. Give"),
    ],
)  # fmt: skip
def test_invalid_arguments_of_a_swap_are_refused_in_one_sentence(
    weights, texts, states, direction, change, message
):
    arguments = {"weights": weights, "rows": texts, "donor_z": states.z, "directions": direction}
    with pytest.raises(InputError) as error:
        swap_heads(*(arguments | change).values())
    assert str(error.value).startswith("Cannot swap heads") and message in str(error.value)


@pytest.mark.parametrize(
    ("sets", "got"),
    [
        (
            torch.ones(1, 2, 4),
            "Tensor, expected set layer head of True and False, here [sets, 2, 4]",
        ),
        (torch.ones(2, 4, dtype=torch.bool), "a mask of shape [2, 4]"),
        (torch.ones(1, 3, 4, dtype=torch.bool), "a mask of shape [1, 3, 4]"),
        (None, "NoneType"),
    ],
)
def test_sets_that_are_not_masks_are_refused_in_one_sentence(
    weights, texts, states, direction, sets, got
):
    with pytest.raises(InputError) as error:
        swap_sets(weights, texts, states.z, sets, direction)
    assert str(error.value).startswith(f"Cannot swap sets of heads: got {got}")
    assert str(error.value).endswith("Give a mask such as torch.zeros(1, 2, 4, dtype=torch.bool).")


def test_arguments_of_pairs_are_checked_like_those_of_swaps(model, weights, texts, direction):
    effects = swap_pairs(model, texts, texts, direction, depth=2)
    assert torch.equal(effects, swap_pairs(weights, texts, texts, direction, depth=2))
    with pytest.raises(InputError, match="in text 0: got the id -2, expected 0 to 399"):
        swap_pairs(weights, [(1, -2)], [(1, 3)], direction, depth=2)
    for wrong_shape in (direction[0], direction.expand(2, 2, 28)):
        with pytest.raises(
            InputError, match="got directions .* expected direction d_model .28 num"
        ):
            swap_pairs(weights, texts, texts, wrong_shape, depth=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"texts": [A], "against": [B]}, f"Cannot trace pairs in text 0: got {A!r}, expected the ids of its tokens"),
        ({"against": [(1, 2), (1, 3)]}, "Cannot trace pairs: got 1 texts and 2, expected equal numbers. Giv"),
        ({"directions": torch.ones(28)}, "or pair direction d_model for 1 pair. Give one directio"),
        ({"directions": torch.ones(1, 2, 3, 28)}, "got directions of shape [1, 2, 3, 28], expected "),
        ({"directions": torch.full((1, 28), np.inf)}, "Cannot trace pairs: the directions contain NaN"),
        ({"positions": 3}, "Cannot trace pairs: got positions 3, expected whole numbers counted from th"),
        ({"positions": []}, "got positions [], expected whole numbers counted from the word, 0 the"),
        ({"positions": [0.5]}, "0 the word and -1 the token before it. Give a list, as in [-1, 0]."),
    ],
)  # fmt: skip
def test_invalid_arguments_of_a_trace_are_refused_in_one_sentence(
    weights, direction, change, message
):
    arguments = {
        "model": weights,
        "texts": [(1, 2, 3)],
        "against": [(1, 4, 3)],
        "directions": direction,
        "depth": 2,
    }
    with pytest.raises(InputError) as error:
        trace_positions(**arguments | change)
    assert message in str(error.value)


def test_arguments_of_edges_are_checked_like_those_of_traces(weights, direction):
    with pytest.raises(
        InputError, match=r"^Cannot trace pairs in text 0: got 'The muddy bank', expect"
    ):
        probe.edges(weights, [A], [B], direction, depth=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"reach": -1},
            "got reach = -1, expected a share of the gap, at least 0. Give one such as 0.01,",
        ),
        (
            {"reach": "much"},
            "got reach = 'much', expected a share of the gap, at least 0. Give one ",
        ),
        ({"limit": 1.5}, "got limit = 1.5, expected a whole number from 0 on. Omit it for all"),
        (
            {"sample": -1},
            "got sample = -1, expected a whole number from 0 on. Omit it for 20",
        ),
        ({"seed": "today"}, "got seed = 'today', expected a whole number from 0 on. Omit it"),
    ],
)
def test_invalid_options_of_edges_are_refused(weights, direction, change, message):
    with pytest.raises(InputError) as error:
        probe.edges(weights, [(1, 2, 3)], [(1, 4, 3)], direction, depth=2, **change)
    assert str(error.value).startswith(f"Cannot measure edges: {message}")


def test_an_empty_list_of_receivers_is_refused(weights, direction):
    with pytest.raises(
        InputError, match=r"^Cannot trace pairs: got receivers \[\], expected whole num"
    ):
        probe.edges(weights, [(1, 2, 3)], [(1, 4, 3)], direction, depth=2, receivers=[])


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
def test_invalid_positions_of_words_are_refused_in_one_sentence(
    model, texts, sentences, targets, message
):
    with pytest.raises(InputError) as error:
        target_states(model, texts if sentences == 2 else sentences, targets)
    assert str(error.value).startswith("Cannot read ") and message in str(error.value)
