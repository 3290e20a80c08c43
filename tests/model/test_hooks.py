"""Hooks are removed again, and the self-check of a new model's hooks can fail."""

from collections.abc import Callable

import pytest
import torch
from families import FAMILIES, LAYERS, PAIRED, REPRESENTATIVES, each_family, family_model
from inside import hooks, target_states
from torch import Tensor

import probe

TEXT = "The mole dug under the river bank."
STACKS = [
    (kind, number) for kind in REPRESENTATIVES for number in range(len(FAMILIES[kind].attentions))
]
CAUSAL = [(kind, number) for kind, number in STACKS if FAMILIES[kind].attentions[number].causal]


def hook_counts(model: probe.Model) -> list[tuple[str, int]]:
    return [(name, len(point.fwd_hooks)) for name, point in model.bridge.hook_dict.items()]


@pytest.mark.parametrize("kind", each_family())
def test_no_hook_is_left_behind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family_model(kind, torch.float64)
    tokens = probe.tokenize(model, TEXT)
    before = hook_counts(model)
    probe.trace(model, TEXT, *["the bank"] * (kind in PAIRED))
    if kind not in PAIRED:
        target_states(model, [tokens], [2])

        def fail_to_record(name: str, tensor: Tensor) -> Tensor:
            raise RuntimeError("while reading")

        with (
            pytest.raises(RuntimeError, match="while reading"),
            hooks.recording(model, fail_to_record),
        ):
            hooks.run(model, [tokens.ids])
    assert hook_counts(model) == before

    def fail_to_run(*_: object) -> Tensor:
        raise RuntimeError("while running")

    monkeypatch.setattr(hooks, "run", fail_to_run)
    with pytest.raises(RuntimeError, match="while running"):
        hooks.read(model, tokens.ids)
    assert hook_counts(model) == before


def self_check(
    model: probe.Model, number: int, quantity: str, edit: Callable[[Tensor], Tensor]
) -> str:
    """The message of the self-check while a hook of the last layer is edited. Afterwards the
    hooks must be as before."""
    attention, before = model.config.family.attentions[number], hook_counts(model)
    ids = model.tokenizer("The mole dug under the bank.", add_special_tokens=False)["input_ids"]
    where = f"{attention.blocks}.{LAYERS - 1}.{attention.hooks[quantity]}"
    with (
        model.bridge.hooks(fwd_hooks=[(where, lambda tensor, hook: edit(tensor))]),
        pytest.raises(probe.ModelError) as caught,
    ):
        hooks.check_hooks(model, ids)
    assert hook_counts(model) == before
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor:UserWarning")
@pytest.mark.parametrize(("kind", "number"), STACKS)
def test_rows_that_do_not_sum_to_one_and_an_edit_without_effect_are_detected(kind, number) -> None:
    model = family_model(kind, torch.float64)
    attention = FAMILIES[kind].attentions[number]
    assert self_check(model, number, "pattern", lambda rows: rows * 0.99) == (
        f"Cannot load {kind}: its hooks fail the self-check: the rows of its attention pattern do "
        f"not sum to 1. Load an unmodified {FAMILIES[kind].name}."
    )
    written = f"{attention.blocks}.{{}}.{attention.hooks['attn_out']}"
    silent = [
        (written.format(layer), lambda write, hook: torch.zeros_like(write))
        for layer in range(LAYERS - 1)
    ]
    with model.bridge.hooks(fwd_hooks=silent):
        message = self_check(model, number, "attn_out", torch.zeros_like)
    assert "an edit of a head's z does not change its logits" in message


@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor:UserWarning")
@pytest.mark.parametrize(("kind", "number"), CAUSAL)
def test_looking_ahead_is_detected_even_if_the_pattern_hides_it(kind: str, number: int) -> None:
    model = family_model(kind, torch.float64)
    for quantity, edit in (
        ("pattern", lambda rows: rows.mean(-1, keepdim=True).expand_as(rows)),
        ("attn_out", lambda write: write + write[:, -1:]),
    ):
        message = self_check(model, number, quantity, edit)
        assert "a position looks ahead at a later token" in message
