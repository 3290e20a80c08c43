"""Every newly loaded model is compared with its library's own forward on one text."""

from pathlib import Path

import pytest
import torch
from families import family_tokenizer, make_family, random_model
from inside import agreement, text_ids
from test_load import edit_config, refusal
from torch import Tensor, nn
from transformers import PreTrainedModel

import probe

DIFFERS = "transformers computes other numbers from its weights and config than the hooked model"


def two_way(folder: Path, kind: str) -> Path:
    """A decoder that transformers lets read both ways."""
    edit_config(make_family(folder, kind), is_causal=False)
    return folder


@pytest.mark.parametrize(("kind", "dtype"), [("llama", "float32"), ("gpt2", "bfloat16")])
def test_a_setting_that_only_the_library_reads_is_refused(kind, dtype, tmp_path: Path) -> None:
    """Families without a layer that has a window: with one, the hooks' own check refuses it."""
    folder = two_way(tmp_path / kind, kind)
    sentence = refusal(folder, dtype=dtype)
    assert sentence.startswith(f"Cannot load {kind}: {DIFFERS} of ")
    assert sentence.endswith("or run `probe check` on it to see what differs.")
    for ask in (
        lambda: probe.trace(folder, "The river bank"),
        lambda: probe.patch(folder, "The river bank", against="The money bank", at="bank"),
    ):
        with pytest.raises(probe.ModelError, match="transformers computes other numbers"):
            ask()
    certificate = probe.certify(folder)
    assert [row.quantity for row in certificate.rows if not row.ok] == ["logits, Hugging Face"]
    assert certificate.worst.error > 0.1


def test_an_object_is_refused_too_and_stays_refused_after_its_certificate() -> None:
    source = random_model("llama", is_causal=False)
    tokenizer = family_tokenizer("llama")
    assert DIFFERS in refusal(source, tokenizer=tokenizer)
    assert not probe.certify(source).ok  # its Model is kept, and was not compared
    assert DIFFERS in refusal(source)


def test_a_model_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    plain_model = agreement.plain_model

    def counting(model: probe.Model) -> nn.Module:
        built.append(model.name)
        return plain_model(model)

    monkeypatch.setattr(agreement, "plain_model", counting)
    folder = make_family(tmp_path / "once", "llama", seed=77)
    first, again = (probe.load(folder).settings for _ in range(2))
    assert built == ["once"] and first == again
    edit_config(folder, rms_norm_eps=0.5)
    probe.trace(folder, "The river bank")
    assert built == ["once", "once"]


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({}, 32),
        ({"sliding_window": 40}, 41),
        ({"rope_parameters": {"original_max_position_embeddings": 100}}, 101),
        ({"max_position_embeddings": 64, "sliding_window": 100}, 64),
        ({"max_position_embeddings": 4096, "sliding_window": 4095}, 512),
    ],
)
def test_the_text_is_longer_than_every_window_and_threshold(settings, length, tmp_path) -> None:
    """At most 512 tokens, and at most the context."""
    folder = make_family(
        tmp_path / "mistral", "mistral", **{"max_position_embeddings": 256} | settings
    )
    model = probe.load(folder)
    ids = text_ids(model.tokenizer, model.config, model.bridge.original_model.config)
    assert len(ids) == length


class ScaledLater(nn.Module):
    """Rotary positions that are slower from one position on."""

    def __init__(self, plain: nn.Module, first: int) -> None:
        super().__init__()
        self.plain = plain
        self.first = first

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        slower = torch.where(position_ids < self.first, position_ids, position_ids / 4)
        return self.plain(x, slower)


@pytest.mark.parametrize(
    ("kind", "first", "changes"),
    [
        ("llama", 16, {}),
        ("mistral", 41, {"max_position_embeddings": 64, "sliding_window": 41}),
    ],
)
def test_rotary_positions_that_change_late_in_a_text_are_noticed(kind, first, changes) -> None:
    source: PreTrainedModel = random_model(kind, **changes)
    source.model.rotary_emb = ScaledLater(source.model.rotary_emb, first)
    message = "on a short text it computes something else than its weights give"
    assert message in refusal(source, tokenizer=family_tokenizer(kind))
