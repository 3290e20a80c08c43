"""The examples in the docstrings of public functions: every function has one, and its result is
correct."""

import doctest
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from inside import (
    bootstrap_t,
    count_parameters,
    ratio_interval,
    read_weights,
    sign_flip_test,
    swap_heads,
    swap_pairs,
    swap_sets,
    target_states,
    trace_positions,
)

import probe

IN_MODULES = (
    *(read_weights, count_parameters, target_states, swap_heads, swap_pairs, swap_sets),
    *(trace_positions, bootstrap_t, ratio_interval, sign_flip_test),
)


def public_functions() -> dict[str, Callable]:
    """Every public function by its name, including the functions of public modules, and those of
    other modules that the documentation of arguments refers to. Charts are drawn from a whole study
    in tests/charts/test_of_study.py."""
    functions = {function.__name__: function for function in IN_MODULES}
    for name in probe.__all__:
        value = getattr(probe, name)
        if name == "charts":
            continue
        if isinstance(value, ModuleType):
            functions |= {f"{name}.{inner}": getattr(value, inner) for inner in value.__all__}
        else:
            functions[name] = value
    return {name: value for name, value in functions.items() if not isinstance(value, type)}


FUNCTIONS = public_functions()
LONG_EXAMPLES = ("study", "cues")  # they measure a word in full


def failures_of(docstring: str, name: str) -> tuple[int, str]:
    """The number of statements in the examples of a docstring, and doctest's report of the
    failures."""
    example = doctest.DocTestParser().get_doctest(docstring, {"probe": probe}, name, None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    lines: list[str] = []
    runner.run(example, out=lines.append)
    return len(example.examples), "".join(lines)


@pytest.mark.usefixtures("embedded_once")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.campaign] * (name in LONG_EXAMPLES))
        for name in FUNCTIONS
    ],
)
def test_a_public_function_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    docstring = FUNCTIONS[name].__doc__ or ""
    assert "\n    Example:\n" in docstring, f"probe.{name} has no example"
    statements, failures = failures_of(docstring, name)
    assert statements > 0 and failures == ""
    called = name if FUNCTIONS[name] in IN_MODULES else f"probe.{name}"
    assert f"{called}(" in docstring, f"the example of {called} does not call it"


def test_a_wrong_example_is_noticed() -> None:
    statements, failures = failures_of("Example:\n    >>> 1 + 1\n    3\n", "wrong")
    assert statements == 1 and "Expected:\n    3\nGot:\n    2" in failures
