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


HEAD = "layer=, head=, at=, source="


@pytest.mark.parametrize(
    ("name", "arguments", "by_position", "by_name"),
    [
        ("patch", (A, B, "bank"), "model, text", "against=, at="),
        ("patch_hooks", (A, B, "bank", [(0, 1)]), "model, text", "against=, at=, heads="),
        ("walk", (A, None, "bank"), "model, text, target", "at=, head=, beside="),
        ("decompose", (A, "bank", " and"), "model, text", "at=, tokens="),
        ("qk_attribution", (A, 1, 2), "model, text", HEAD),
        ("ov_attribution", (A, 1, 2), "model, text", f"{HEAD}, along="),
        ("qk_interventions", (A, 1), "model, text", HEAD),
        ("edges", ([A], [B], None, 3), "model, texts, against, directions", "depth="),
        ("survey", ("rows.csv", "out"), "model", "sentences=, out=, controls="),
        ("evaluate", ("rows.csv", "bank", "L0H1"), "model, words", "sentences="),
        ("study", ("bank", "rows.csv"), "model, words", "sentences=, seed=, permutations="),
        ("cues", ("bank", "rows.csv"), "model, word", "sentences=, texts=, cues="),
        ("shortcuts", ("bank", "rows.csv"), "model, words", "sentences=, pairs=, seed="),
        ("trace", (A, "bank", 0), "model, text, target", None),
    ],
)
def test_arguments_by_position_that_a_function_takes_by_name_are_refused(
    name: str,
    arguments: tuple[Any, ...],
    by_position: str,
    by_name: str | None,
    tiny: probe.Model,
) -> None:
    with pytest.raises(InputError) as error:
        getattr(probe, name)(tiny, *arguments)
    step = f"Give the others by name: {by_name}" if by_name else "Omit the others"
    assert str(error.value) == (
        f"Cannot call {name}: got {1 + len(arguments)} arguments by position, expected at most "
        f"{by_position.count(',') + 1} ({by_position}). {step}."
    )


def test_a_word_as_the_target_of_a_model_without_decoder_is_pointed_to_at(
    tiny: probe.Model,
) -> None:
    with pytest.raises(InputError, match="no decoder for a target. Give a word to follow as at=,"):
        probe.walk(tiny, A, "bank")
    with pytest.raises(InputError, match="methods of its trace, as at=.$"):
        probe.trace(tiny, A, "bank")


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
