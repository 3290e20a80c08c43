"""The hooked side: texts padded to one length, hooks that are removed again, and a self-check
that can fail.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import LAYERS, PAIRED, REPRESENTATIVES, SINGLE, each_family, family_model
from torch import Tensor

from probe.errors import ModelError
from probe.model import forward, hooks
from probe.model.architectures import FAMILIES
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.tokens import tokenize
from probe.model.trace import target_states, trace

TEXTS = (
    "The mole dug under the river bank.",
    "Make a deposit at the bank",
    "the bank",
    "They walked by the old grey bank of the river and back again",
)
STACKS = [
    pytest.param(*family.values, number, marks=family.marks)
    for family in each_family()
    for number in range(len(FAMILIES[family.values[0]].attentions))
]
CAUSAL = [stack for stack in STACKS if FAMILIES[stack.values[0]].attentions[stack.values[1]].causal]


def test_threads_that_read_one_model_read_what_one_thread_reads() -> None:
    model = family_model("gpt2")
    texts = [tokenize(model, text) for text in TEXTS[:2]]
    expected = [target_states(model, [tokens], [2]).resid for tokens in texts]

    def read(number: int) -> list[Tensor]:
        return [target_states(model, [texts[number]], [2]).resid for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        for repeats, reference in zip(pool.map(read, range(2)), expected, strict=True):
            assert all(torch.equal(resid, reference) for resid in repeats)


# --- batches of texts -----------------------------------------------------------------------------


TYPED = [
    *(pytest.param(*kind.values, torch.float64, marks=kind.marks) for kind in each_family()),
    *((kind, torch.float32) for kind in REPRESENTATIVES),
]


@pytest.mark.parametrize(("kind", "dtype"), TYPED)
def test_a_batch_padded_on_the_right_gives_the_logits_of_each_text(
    kind: str, dtype: torch.dtype
) -> None:
    """Also for layers with windows in which a padded position would see only padding."""
    model = family_model(kind, dtype)
    rows = [list(tokenize(model, text).ids) for text in TEXTS]
    targets = [[model.config.start_token, *row[:-1]] for row in rows] if kind in PAIRED else None
    with torch.inference_mode():
        together = hooks.run(model, rows, targets)
        for number, row in enumerate(rows):
            single = hooks.run(model, [row], None if targets is None else [targets[number]])[0]
            torch.testing.assert_close(
                together[number, : len(single)], single, rtol=1e-5, atol=1e-5
            )


def test_the_mask_of_a_batch_comes_from_lengths_and_not_from_ids() -> None:
    """A padding token inside a text is part of it."""
    model = family_model("bert")
    pad = model.tokenizer.pad_token_id
    row = list(tokenize(model, TEXTS[0]).ids)
    row[3] = pad
    with torch.inference_mode():
        single = hooks.run(model, [row])
        together = hooks.run(model, [row, [*row, *row]])[0, : len(row)]
        without = model.bridge(
            torch.tensor([row]), attention_mask=(torch.tensor([row]) != pad).long()
        )
    torch.testing.assert_close(together, single[0], rtol=1e-5, atol=1e-5)
    assert (single - without).abs().max() > 1e-3


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_without_logits_the_same_hooks_see_the_same_tensors(kind: str) -> None:
    model = family_model(kind, torch.float64)
    ids, last, recordings = tokenize(model, TEXTS[0]).ids, {}, {}
    for head in (True, False):
        with hooks.recording(model, lambda name, tensor: tensor, hooks.AT_ONE_POSITION) as records:
            last[head] = hooks.run(model, [ids], head=head)[0]
        recordings[head] = records[""]
    for name in hooks.AT_ONE_POSITION:
        assert len(recordings[True][name]) == LAYERS
        torch.testing.assert_close(
            recordings[True][name], recordings[False][name], rtol=0, atol=1e-12
        )
    logits = forward.logits(read_weights(model), last[False])
    torch.testing.assert_close(
        logits, last[True], rtol=0, atol=1e-6 if FAMILIES[kind].in_float32 else 1e-12
    )


# --- removal of hooks -----------------------------------------------------------------------------


def hook_counts(model: Model) -> list[tuple[str, int]]:
    return [(name, len(point.fwd_hooks)) for name, point in model.bridge.hook_dict.items()]


@pytest.mark.parametrize("kind", each_family())
def test_no_hook_is_left_behind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family_model(kind, torch.float64)
    ids = tokenize(model, TEXTS[0]).ids
    before = hook_counts(model)
    if kind in PAIRED:
        trace(model, TEXTS[0], TEXTS[2])
    else:
        trace(model, TEXTS[0])
        target_states(model, [tokenize(model, TEXTS[0])], [2])

        def fail_to_record(name: str, tensor: Tensor) -> Tensor:
            raise RuntimeError("while reading")

        with (
            pytest.raises(RuntimeError, match="while reading"),
            hooks.recording(model, fail_to_record),
        ):
            hooks.run(model, [ids])
    assert hook_counts(model) == before

    def fail_to_run(*_: object) -> Tensor:
        raise RuntimeError("while running")

    monkeypatch.setattr(hooks, "run", fail_to_run)
    with pytest.raises(RuntimeError, match="while running"):
        hooks.read(model, ids)
    assert hook_counts(model) == before


# --- the self-check can fail, each part of it, in each attention ----------------------------------


def self_check(
    model: Model, kind: str, number: int, quantity: str, edit: Callable[[Tensor], Tensor]
) -> str:
    """The message of the self-check while a hook of the last layer is edited. Afterwards the
    hooks must be as before.
    """
    attention, before = FAMILIES[kind].attentions[number], hook_counts(model)
    ids = model.tokenizer("The mole dug under the bank.", add_special_tokens=False)["input_ids"]
    where = f"{attention.blocks}.{LAYERS - 1}.{attention.hooks[quantity]}"
    with (
        model.bridge.hooks(fwd_hooks=[(where, lambda tensor, hook: edit(tensor))]),
        pytest.raises(ModelError) as caught,
    ):
        hooks.check_hooks(model, ids)
    assert hook_counts(model) == before
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor:UserWarning")
@pytest.mark.parametrize(("kind", "number"), STACKS)
def test_rows_that_do_not_sum_to_one_and_an_edit_without_effect_are_detected(
    kind: str, number: int
) -> None:
    model = family_model(kind, torch.float64)
    attention = FAMILIES[kind].attentions[number]
    assert self_check(model, kind, number, "pattern", lambda rows: rows * 0.99) == (
        f"Cannot load {kind}: its hooks fail the self-check: the rows of its attention pattern do not sum to 1. "
        f"Load an unmodified {FAMILIES[kind].name}."
    )
    silent = [
        f"{attention.blocks}.{layer}.{attention.hooks['attn_out']}" for layer in range(LAYERS - 1)
    ]
    with model.bridge.hooks(
        fwd_hooks=[(where, lambda tensor, hook: torch.zeros_like(tensor)) for where in silent]
    ):
        message = self_check(model, kind, number, "attn_out", torch.zeros_like)
    assert "an edit of a head's z does not change its logits" in message


@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor:UserWarning")
@pytest.mark.parametrize(("kind", "number"), CAUSAL)
def test_looking_ahead_is_detected_even_if_the_pattern_hides_it(kind: str, number: int) -> None:
    model = family_model(kind, torch.float64)
    message = "a position looks ahead at a later token"
    assert message in self_check(
        model, kind, number, "pattern", lambda rows: rows.mean(-1, keepdim=True).expand_as(rows)
    )
    assert message in self_check(
        model, kind, number, "attn_out", lambda write: write + write[:, -1:]
    )
