"""A function takes the arguments of the previous version for one more version, with a warning."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import probe
from probe.errors import InputError
from probe.renamed import renamed

A, B = "The river bank", "The mortgage bank"


@renamed(positions={1: "sentences", 2: "words"}, corpus="sentences")
def ask(model: str, words: Any = None, *, sentences: Any = None) -> tuple[Any, ...]:
    return model, words, sentences


@pytest.mark.parametrize(
    ("call", "arguments", "present"),
    [
        (lambda: ask("m", "rows"), "argument 2", "sentences="),
        (lambda: ask("m", "rows", "bank"), "argument 2 and argument 3", "sentences=, words="),
        (lambda: ask("m", "rows", words="bank"), "argument 2", "sentences="),
        (lambda: ask("m", corpus="rows"), "corpus=", "sentences="),
    ],
)
def test_former_arguments_are_taken_with_a_warning(
    call: Callable[[], tuple[Any, ...]], arguments: str, present: str
) -> None:
    with pytest.warns(DeprecationWarning) as caught:
        result = call()
    assert result[0] == "m" and result[2] == "rows" and result[1] in (None, "bank")
    assert str(caught[0].message) == (
        f"ask: the next version will not take {arguments}. Write {present}."
    )
    assert caught[0].filename == __file__


def test_current_arguments_cause_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask("m", "bank", sentences="rows") == ("m", "bank", "rows")
        assert ask("m", sentences="rows") == ("m", None, "rows")


def test_the_public_functions_take_their_former_arguments(tiny: probe.Model) -> None:
    with pytest.warns(
        DeprecationWarning, match="^patch: the next version will not take argument 3"
    ):
        former = probe.patch(tiny, A, B, at=-1)
    assert former.equals(probe.patch(tiny, A, against=B, at=-1))
    with pytest.warns(DeprecationWarning, match="^walk: the next .* take word=. Write at=.$"):
        assert probe.walk(tiny, A, word="bank").word == "bank"
    with (
        pytest.warns(
            DeprecationWarning, match="^study: .* take foreseen=. Write gates_measured=.$"
        ),
        pytest.raises(InputError, match="Cannot find sentences with 'wug'"),
    ):
        probe.study(tiny, "wug", foreseen=print)
    tokens = probe.tokenize(tiny, A)
    with pytest.warns(
        DeprecationWarning, match="^target_states: the next .* sentences= and targets="
    ):
        probe.target_states(tiny, sentences=[tokens], targets=[2])
